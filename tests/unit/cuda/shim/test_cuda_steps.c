/* tests/unit/cuda/shim/test_cuda_steps.c - slots, feedback, graphs, fences, faults.
 *
 * The shim's device does what is put on its streams late and in any order that events allow, so
 * what is not ordered by them shows here. */
#include <poll.h>
#include <unistd.h>

#include "tests/unit/cuda/shim/cuda_fixture.h"

#define N_STEPS 5u
#define N_SEQS  3u

static const struct cuda_fixture_setup two_slots = {
    .max_rows = 4, .max_step_tokens = 32, .n_slots = 2};
static const struct cuda_fixture_setup two_ranks = {
    .max_rows = 4, .max_step_tokens = 32, .n_slots = 2, .tp_size = 2};

struct run {
    int32_t token[N_STEPS][N_SEQS];
    float logprob[N_STEPS][N_SEQS];
};

static void start_all(struct cuda_fixture *s) {
    for (uint32_t i = 0; i < N_SEQS; i++) {
        cuda_fixture_start(s, i, 3 + 7 * i);
        cuda_fixture_plan(s, i, 3 + 7 * i);
    }
    cuda_fixture_step(s);
}

static void set_sampling(struct cuda_fixture *s) {
    s->how.temperature = 0.8f;
    s->how.frequency_penalty = 0.3f; /* so that histories, grown on the device, matter */
    s->how.seed = 3;
    s->how.n_logprobs = 0;
}

static void take(struct cuda_fixture *s, uint32_t slot, uint32_t step, backend_fence f,
                 struct run *out) {
    assert_int_equal(s->cuda.ops->wait(s->cuda.dev, f, 60000000), ST_OK);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        out->token[step][i] = s->cuda.stage[slot].out_token[i];
        out->logprob[step][i] = s->cuda.stage[slot].out_logprob[i];
    }
}

/* Each step is submitted before the one before it is read, with references for tokens. */
static void run_ahead(struct cuda_fixture *s, struct run *out) {
    backend_fence fence[N_STEPS];
    struct error err = {0};

    for (uint32_t i = 0; i < N_STEPS; i++) {
        struct backend_stage *t = &s->cuda.stage[i % 2];
        struct backend_step step;

        if (i >= 2) take(s, i % 2, i - 2, fence[i - 2], out);
        for (uint32_t q = 0; q < N_SEQS; q++) {
            if (i > 0) s->seq[q].n++; /* unknown here */
            cuda_fixture_plan(s, q, 1);
        }
        cuda_fixture_lay_out_plan(s, t, &step);
        for (uint32_t q = 0; q < N_SEQS && i > 0; q++)
            t->token[q] = -1 - (int32_t)q;
        cuda_fixture_must(s->cuda.ops->submit(s->cuda.model, i % 2, &step, &fence[i], &err), &err,
                          "submit");
    }
    take(s, (N_STEPS - 2) % 2, N_STEPS - 2, fence[N_STEPS - 2], out);
    take(s, (N_STEPS - 1) % 2, N_STEPS - 1, fence[N_STEPS - 1], out);
}

static void run_one_by_one(struct cuda_fixture *s, struct run *out) {
    for (uint32_t i = 0; i < N_STEPS; i++) {
        for (uint32_t q = 0; q < N_SEQS; q++)
            cuda_fixture_plan(s, q, 1);
        cuda_fixture_step(s);
        memcpy(out->token[i], s->cuda.stage[0].out_token, sizeof(out->token[i]));
        memcpy(out->logprob[i], s->cuda.stage[0].out_logprob, sizeof(out->logprob[i]));
    }
}

static void run_both_ways(const struct cuda_fixture_setup *setup) {
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct run ahead, want;
        struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, setup, seed);

        set_sampling(s);
        start_all(s);
        run_ahead(s, &ahead);
        cuda_fixture_close(s);
        s = cuda_fixture_open_alone(&cuda_fixture_llama, setup, seed);
        set_sampling(s);
        start_all(s);
        run_one_by_one(s, &want);
        cuda_fixture_close(s);
        assert_memory_equal(&ahead, &want, sizeof(want));
    }
}

static void tokens_come_from_the_step_in_flight(void **state) {
    (void)state;
    run_both_ways(&two_slots);
}

static void tokens_come_from_the_step_in_flight_of_two_ranks(void **state) {
    (void)state;
    run_both_ways(&two_ranks);
}

/* Row 1 is given to another while a step that penalises its old tokens is under way. */
static void a_row_is_bound_again_while_its_step_runs(void **state) {
    static const uint32_t other[20] = {1, 2, 3};
    int32_t want[N_SEQS];

    (void)state;
    for (int is_rebound = 0; is_rebound < 2; is_rebound++) {
        struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &two_slots, 4);
        struct backend_step step;
        backend_fence fence;
        struct error err = {0};

        set_sampling(s);
        s->how.repetition_penalty = 1.9f;
        start_all(s);
        for (uint32_t q = 0; q < N_SEQS; q++)
            cuda_fixture_plan(s, q, 1);
        cuda_fixture_lay_out_plan(s, &s->cuda.stage[1], &step);
        cuda_fixture_must(backend_cuda.submit(s->cuda.model, 1, &step, &fence, &err), &err,
                          "submit");
        for (int i = 0; i < 40 && is_rebound; i++) { /* round the buffer that bindings go through */
            backend_cuda.row_free(s->cuda.model, 1);
            assert_int_equal(backend_cuda.row_bind(s->cuda.model, 1, other, 20, NULL, 0), ST_OK);
        }
        assert_int_equal(backend_cuda.wait(s->cuda.dev, fence, 60000000), ST_OK);
        if (is_rebound)
            assert_memory_equal(s->cuda.stage[1].out_token, want, sizeof(want));
        else
            memcpy(want, s->cuda.stage[1].out_token, sizeof(want));
        cuda_fixture_close(s);
    }
}

/* One output more than any bucket holds, and the step is launched call by call. */
static void graphs_and_single_launches_give_the_same_bits(void **state) {
    static const struct cuda_fixture_setup setup = {
        .max_rows = 6, .max_outputs = 7, .max_step_tokens = 48, .is_deterministic = true};
    float want[6 * CUDA_FIXTURE_TOP];

    (void)state;
    for (int is_eager = 0; is_eager < 2; is_eager++) {
        struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, 9);
        struct backend_stage *t = &s->cuda.stage[0];
        struct backend_step step;

        for (uint32_t q = 0; q < 6; q++) {
            cuda_fixture_start(s, q, 2 + 2 * q);
            cuda_fixture_plan(s, q, 2 + 2 * q);
        }
        cuda_fixture_step(s);
        for (uint32_t q = 0; q < 6; q++)
            cuda_fixture_plan(s, q, 1);
        cuda_fixture_lay_out_plan(s, t, &step);
        if (is_eager) t->output[step.n_outputs++] = t->output[5];
        cuda_fixture_run_side(&s->cuda, 0, &step);
        if (is_eager)
            assert_memory_equal(t->out_top_logprob, want, sizeof(want));
        else
            memcpy(want, t->out_top_logprob, sizeof(want));
        cuda_fixture_close(s);
    }
}

/* More outputs than logits are held of, with biases in both pieces. */
static void outputs_beyond_one_piece_agree(void **state) {
    static const struct cuda_fixture_setup setup = {
        .max_rows = 2, .max_outputs = 264, .max_step_tokens = 48};
    struct cuda_fixture *s = cuda_fixture_open(&cuda_fixture_llama, &setup, 5);
    struct backend_stage *r = &s->ref.stage[0], *c = &s->cuda.stage[0];
    struct backend_step step;

    (void)state;
    s->how.n_logprobs = 1;
    cuda_fixture_start(s, 0, 12);
    cuda_fixture_plan(s, 0, 12);
    cuda_fixture_lay_out_plan(s, r, &step);
    step.n_outputs = 264;
    for (uint32_t i = 0; i < step.n_outputs; i++) {
        r->output[i] = s->how;
        r->output[i].want = i % 3 ? WANT_SCORE : WANT_SAMPLE;
        r->output[i].row = 1; /* unused row: histories must not matter */
        r->output[i].score_token = i;
        r->output[i].token_index = i % 12;
    }
    for (uint32_t i = 0; i < 3; i++) /* these win */
        r->bias[step.n_bias++] = (struct backend_bias){i ? 255 + i : 3, 70 + i, 50};
    r->output[256].want = r->output[257].want = WANT_SAMPLE;
    cuda_fixture_copy_stage(c, r, &step);
    memcpy(c->bias, r->bias, step.n_bias * sizeof(*c->bias));
    cuda_fixture_run_side(&s->ref, 0, &step);
    cuda_fixture_run_side(&s->cuda, 0, &step);
    assert_int_equal(c->out_token[3], 70);
    assert_int_equal(c->out_token[256], 71);
    assert_int_equal(c->out_token[257], 72);
    for (uint32_t i = 0; i < step.n_outputs; i++) {
        if (r->output[i].want == WANT_SCORE) assert_int_equal(c->out_token[i], i);
        if (c->out_token[i] == r->out_token[i] &&
            !(fabs((double)c->out_logprob[i] - (double)r->out_logprob[i]) <= CUDA_FIXTURE_BOUND))
            fail_msg("output %u: %g, reference %g", i, (double)c->out_logprob[i],
                     (double)r->out_logprob[i]);
    }
    cuda_fixture_close(s);
}

/* No token for the first mask, 299 alone for the second. */
static void fill_two_masks(void *mask) {
    memset(mask, 0, 2 * CEIL_DIV(300, 32) * sizeof(uint32_t));
    ((uint32_t *)mask)[CEIL_DIV(300, 32) + 9] = 1u << 11;
}

static void masks_and_biases_choose(void **state) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &two_slots, 6);
    struct backend_stage *t = &s->cuda.stage[0];
    struct backend_step step;

    (void)state;
    start_all(s);
    for (uint32_t q = 0; q < N_SEQS; q++)
        cuda_fixture_plan(s, q, 1);
    cuda_fixture_lay_out_plan(s, t, &step);
    step.n_masks = 2;
    step.fill_masks = fill_two_masks;
    step.fill_arg = t->mask;
    t->output[0].mask = 1;
    t->output[2].mask = 0;
    t->bias[step.n_bias++] = (struct backend_bias){1, 17, 100};
    cuda_fixture_run_side(&s->cuda, 0, &step);
    assert_int_equal(t->out_token[0], 299);
    assert_int_equal(t->out_token[1], 17);
    assert_int_equal(t->out_flags[2], OUT_NONE_ALLOWED);
    cuda_fixture_close(s);
}

/* A clock by which products of one kind or the other are slow decides which of them decode. */
static void few_rows_take_the_faster_products(void **state) {
    static const struct cuda_fixture_setup five = {.max_rows = 5, .max_step_tokens = 48};

    (void)state;
    for (uint32_t product_us = 1; product_us <= 100; product_us += 99) {
        struct shim_stats own;
        struct cuda_fixture *s;

        shim_set_product_us(product_us);
        s = cuda_fixture_open(&cuda_fixture_llama, &five, 4);
        for (uint32_t n = 1; n <= GEMV_MAX_ROWS; n++)
            assert_int_equal(s->cuda.model->takes_library[n], product_us == 1 && n <= 5);
        cuda_fixture_start(s, 0, 21);
        cuda_fixture_start(s, 2, 18);
        cuda_fixture_plan(s, 0, 21);
        cuda_fixture_plan(s, 2, 18);
        cuda_fixture_step(s);
        shim_stats_clear();
        for (int i = 0; i < 3; i++) {
            cuda_fixture_plan(s, 0, 1);
            if (i) cuda_fixture_plan(s, 2, 1);
            cuda_fixture_step(s);
        }
        shim_stats("gemv", &own);
        assert_int_equal(own.n_launches > 0, product_us > 1);
        cuda_fixture_close(s);
    }
    shim_set_product_us(0);
}

static void fences_come_and_are_announced(void **state) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &two_slots, 2);
    int fd = backend_cuda.event_fd(s->cuda.dev);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct backend_step step;
    backend_fence f;
    uint64_t count;
    struct error err = {0};

    (void)state;
    assert_true(fd >= 0);
    cuda_fixture_start(s, 0, 5);
    cuda_fixture_plan(s, 0, 5);
    cuda_fixture_lay_out_plan(s, &s->cuda.stage[0], &step);
    cuda_fixture_must(backend_cuda.submit(s->cuda.model, 0, &step, &f, &err), &err, "submit");
    assert_int_equal(backend_cuda.poll(s->cuda.dev, f + 1), ST_INVALID);
    assert_int_equal(backend_cuda.wait(s->cuda.dev, f, 60000000), ST_OK);
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
    assert_int_equal(backend_cuda.poll(s->cuda.dev, f), ST_OK);
    assert_int_equal(backend_cuda.poll(s->cuda.dev, 0), ST_OK);
    assert_true(backend_cuda.step_us(s->cuda.model, 0) >= 0);
    for (uint32_t i = 0; i < 2 * CUDA_FENCES; i++) { /* its event serves another now */
        backend_fence g;

        assert_int_equal(backend_cuda.kv_copy(s->cuda.model, NULL, 0, &g), ST_OK);
        assert_int_equal(g, f + 1 + i);
    }
    assert_int_equal(backend_cuda.poll(s->cuda.dev, f), ST_OK);
    cuda_fixture_close(s);
}

static void a_wrong_step_is_a_sentence(void **state) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &two_slots, 2);
    struct backend_stage *t = &s->cuda.stage[0];
    struct backend_step step;
    backend_fence f;
    struct error err = {0};

    (void)state;
    cuda_fixture_start(s, 0, 5);
    cuda_fixture_plan(s, 0, 5);
    cuda_fixture_lay_out_plan(s, t, &step);
    t->token[2] = 300;
    assert_int_equal(backend_cuda.submit(s->cuda.model, 0, &step, &f, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "token 2 of a step is 300"));
    t->token[2] = -1;
    assert_int_equal(backend_cuda.submit(s->cuda.model, 0, &step, &f, &err), ST_INVALID);
    t->token[2] = 3;
    t->output[0].token_index = 5;
    assert_int_equal(backend_cuda.submit(s->cuda.model, 0, &step, &f, &err), ST_INVALID);
    cuda_fixture_close(s);
}

static void after_a_fault_every_call_returns_lost(void **state) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &two_slots, 2);
    struct backend_step step;
    struct backend_copy pair = {1, 2};
    backend_fence f;
    struct error err = {0};
    enum status st;
    uint8_t block[64];

    (void)state;
    start_all(s);
    for (uint32_t q = 0; q < N_SEQS; q++)
        cuda_fixture_plan(s, q, 1);
    cuda_fixture_lay_out_plan(s, &s->cuda.stage[0], &step);
    shim_fail_launch(3);
    st = backend_cuda.submit(s->cuda.model, 0, &step, &f, &err);
    if (st == ST_OK) st = backend_cuda.wait(s->cuda.dev, f, 60000000);
    shim_fail_launch(0);
    assert_int_equal(st, ST_CLOSED);
    err = (struct error){0};
    assert_int_equal(backend_cuda.submit(s->cuda.model, 1, &step, &f, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "lost"));
    assert_int_equal(backend_cuda.poll(s->cuda.dev, 1), ST_CLOSED);
    assert_int_equal(backend_cuda.row_bind(s->cuda.model, 3, NULL, 0, NULL, 0), ST_CLOSED);
    assert_int_equal(backend_cuda.kv_copy(s->cuda.model, &pair, 1, &f), ST_CLOSED);
    assert_int_equal(backend_cuda.kv_swap_in(s->cuda.model, NULL, 0, &f), ST_CLOSED);
    assert_int_not_equal(backend_cuda.kv_read(s->cuda.model, 1, block, sizeof(block)), ST_OK);
    cuda_fixture_close(s);
}

/* Wherever a kernel fails, loading included: no call hangs, none pretends. */
static enum status start_and_run(struct cuda_fixture_side *side) {
    float inv_freq[128];
    uint8_t kind[64];
    struct geometry g = tiny_geometry(&cuda_fixture_llama, inv_freq, kind);
    struct backend_limits limits = cuda_fixture_limits(&two_slots, &cuda_fixture_llama);
    struct backend_kv_info kv;
    struct backend_step step = {.n_tokens = 1, .n_rows = 1, .n_updates = 1, .n_outputs = 1};
    backend_fence f;
    enum status st;

    *side = (struct cuda_fixture_side){.ops = &backend_cuda};
    st = backend_cuda.open(&side->dev, &(struct backend_config){0}, NULL);
    if (st == ST_OK) st = backend_cuda.load_begin(side->dev, &side->model, &g, &limits, NULL);
    if (st == ST_OK)
        st = tiny_load(&backend_cuda, side->model, &cuda_fixture_llama, 1, ROLE_COUNT, NULL);
    if (st == ST_OK) st = backend_cuda.load_end(side->model, NULL);
    if (st == ST_OK) st = backend_cuda.kv_alloc(side->model, 9, 2, &kv, NULL);
    for (uint32_t i = 0; i < 3 && st == ST_OK; i++) {
        struct backend_stage *t = &side->stage[0];

        backend_cuda.stage(side->model, 0, t);
        t->row[0] = (struct backend_row){0, 0, 1, i + 1};
        t->token[0] = i ? -1 : 5;
        t->position[0] = i;
        t->kv_slot[0] = 16 + i;
        t->update[0] = (struct backend_table_update){0, 0, 1};
        t->output[0] = (struct backend_output){.top_p = 1, .mask = BACKEND_NO_MASK};
        st = backend_cuda.submit(side->model, 0, &step, &f, NULL);
        if (st == ST_OK) st = backend_cuda.wait(side->dev, f, 60000000);
    }
    return st;
}

static void a_kernel_may_fail_anywhere(void **state) {
    struct cuda_fixture_side side;
    enum status st = ST_CLOSED;
    uint32_t n;

    (void)state;
    shim_set(3, SHIM_COPIES_LATE);
    for (n = 1; st != ST_OK; n += 3) {
        backend_fence f;

        shim_fail_launch(n);
        st = start_and_run(&side);
        shim_fail_launch(0);
        if (st != ST_OK) {
            assert_int_equal(st, ST_CLOSED);
            if (side.model && side.model->moves)
                assert_int_equal(backend_cuda.kv_copy(side.model, NULL, 0, &f), ST_CLOSED);
        }
        backend_cuda.unload(side.model);
        backend_cuda.close(side.dev);
    }
    assert_true(n > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_come_from_the_step_in_flight),
        cmocka_unit_test(tokens_come_from_the_step_in_flight_of_two_ranks),
        cmocka_unit_test(a_row_is_bound_again_while_its_step_runs),
        cmocka_unit_test(graphs_and_single_launches_give_the_same_bits),
        cmocka_unit_test(outputs_beyond_one_piece_agree),
        cmocka_unit_test(masks_and_biases_choose),
        cmocka_unit_test(few_rows_take_the_faster_products),
        cmocka_unit_test(fences_come_and_are_announced),
        cmocka_unit_test(a_wrong_step_is_a_sentence),
        cmocka_unit_test(after_a_fault_every_call_returns_lost),
        cmocka_unit_test(a_kernel_may_fail_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
