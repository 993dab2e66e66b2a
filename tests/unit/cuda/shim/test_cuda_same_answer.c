/* tests/unit/cuda/shim/test_cuda_same_answer.c - is_deterministic: one request, the same bits,
 * however it comes.
 *
 * The watched sequence is computed whole, in chunks, token by token, alone, beside others, after a
 * prefix that another sequence left in the pool, and again after a preemption: tokens, logprobs,
 * alternatives and the bytes of its K and V must be equal to the bit, under other seeds of the shim
 * too. */
#include "tests/support/quant_matrix.h"
#include "tests/unit/cuda/shim/cuda_fixture.h"

#define N_PROMPT 39u
#define N_NEW    6u

struct answer {
    int32_t token[N_NEW];
    float logprob[N_NEW], top[N_NEW][CUDA_FIXTURE_TOP];
    uint64_t kv; /* a hash of its K and V, scales included */
};

struct way {
    const char *name;
    uint32_t chunk, n_beside, preempt_at; /* 0: not preempted */
    bool shares_prefix;
    uint32_t n_ranks; /* 0: one device, without backend_tp */
};

static const struct cuda_fixture_setup setup = {
    .max_rows = 6, .max_step_tokens = 48, .is_deterministic = true};

static void set_prompt(struct cuda_fixture_seq *q, uint32_t vocab) {
    for (uint32_t i = 0; i < N_PROMPT; i++)
        q->token[i] = (i * i + 31 * i + 7) % vocab;
}

/* The first blocks of row 5, which has the same prompt, serve row 0. */
static void share_prefix(struct cuda_fixture *s) {
    struct cuda_fixture_seq *q = &s->seq[0], *other = &s->seq[5];

    cuda_fixture_start(s, 5, N_PROMPT);
    set_prompt(other, s->shape.vocab);
    cuda_fixture_plan(s, 5, 11);
    cuda_fixture_step(s);
    cuda_fixture_plan(s, 5, N_PROMPT - 11);
    cuda_fixture_step(s);
    for (; q->n_blocks < N_PROMPT / CUDA_FIXTURE_BLOCK; q->n_blocks++) {
        q->block[q->n_blocks] = other->block[q->n_blocks];
        s->users[q->block[q->n_blocks]]++;
    }
    q->n_computed = q->n_blocks * CUDA_FIXTURE_BLOCK;
}

static void note(struct cuda_fixture *s, struct answer *a) {
    const struct backend_stage *t = &s->cuda.stage[0];

    for (uint32_t i = 0; i < s->step.n_outputs; i++) {
        uint32_t at = s->seq[0].n - N_PROMPT - 1;

        if (t->output[i].row != 0) continue;
        a->token[at] = t->out_token[i];
        a->logprob[at] = t->out_logprob[i];
        memcpy(a->top[at], t->out_top_logprob + i * CUDA_FIXTURE_TOP, sizeof(a->top[at]));
    }
}

static uint64_t hash_bytes(uint64_t hash, const uint8_t *p, size_t n) { /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 0x100000001B3u;
    return hash;
}

/* Of all positions that row 0 has computed, wherever its blocks are. */
static uint64_t hash_kv(struct cuda_fixture *s) {
    struct geometry g = {.n_layers = s->shape.n_layers,
                         .n_kv_heads = s->shape.n_kv_heads,
                         .head_dim = s->shape.head_dim,
                         .kv_dtype = s->shape.kv_dtype};
    size_t vector_bytes = g.head_dim * dtype_bytes(g.kv_dtype);
    uint8_t *block = mem_alloc(s->cuda.block_bytes);
    uint64_t hash = 0xCBF29CE484222325u;

    for (uint32_t t = 0; t < s->seq[0].n_computed; t++) {
        uint32_t at = t % CUDA_FIXTURE_BLOCK, scale = kv_scale_bytes(g.kv_dtype);

        assert_int_equal(s->cuda.ops->kv_read(s->cuda.model,
                                              s->seq[0].block[t / CUDA_FIXTURE_BLOCK], block,
                                              s->cuda.block_bytes),
                         ST_OK);
        for (uint32_t i = 0; i < g.n_layers * g.n_kv_heads * 2; i++) {
            uint32_t layer = i / 2 / g.n_kv_heads, head = i / 2 % g.n_kv_heads;

            hash = hash_bytes(hash,
                              block + kv_tile_at(&g, CUDA_FIXTURE_BLOCK, layer, i & 1, head) +
                                  at * vector_bytes,
                              vector_bytes);
            hash = hash_bytes(hash,
                              block + kv_scales_at(&g, CUDA_FIXTURE_BLOCK, layer, i & 1, head) +
                                  (size_t)at * scale,
                              scale);
        }
    }
    mem_free(block);
    return hash;
}

static void run_way(const struct tiny_shape *shape, const struct way *w, uint64_t seed,
                    struct answer *a) {
    struct cuda_fixture_setup its = setup;
    struct cuda_fixture *s;
    struct cuda_fixture_seq *q;
    bool is_preempted = false;

    its.tp_size = w->n_ranks;
    s = cuda_fixture_open_alone(shape, &its, 7);
    q = &s->seq[0];
    shim_set(seed, seed % 2 ? SHIM_COPIES_LATE : SHIM_COPIES_EARLY);
    s->how.temperature = 0.7f;
    s->how.top_p = 0.9f;
    s->how.seed = 5;
    s->how.repetition_penalty = 1.2f;
    cuda_fixture_start(s, 0, N_PROMPT);
    set_prompt(q, shape->vocab);
    cuda_fixture_unbind(s, 0);
    cuda_fixture_bind(s, 0);
    if (w->shares_prefix) share_prefix(s);
    for (uint32_t i = 1; i <= w->n_beside; i++)
        cuda_fixture_start(s, i, 1 + 5 * i);
    while (q->n < N_PROMPT + N_NEW) {
        if (w->preempt_at && q->n == N_PROMPT + w->preempt_at && !is_preempted) {
            cuda_fixture_preempt(s, 0);
            is_preempted = true;
        }
        cuda_fixture_plan(s, 0, MIN(w->chunk, cuda_fixture_left(s, 0)));
        for (uint32_t i = 1; i <= w->n_beside; i++)
            cuda_fixture_plan(s, i, MIN(cuda_fixture_left(s, i), 4u));
        cuda_fixture_step(s);
        note(s, a);
    }
    a->kv = hash_kv(s);
    cuda_fixture_close(s);
}

static void compare_ways(const struct tiny_shape *shape, const struct way *ways, size_t n) {
    struct answer want, got;

    for (size_t i = 0; i < n; i++) {
        memset(&got, 0, sizeof(got));
        run_way(shape, &ways[i], i, &got);
        if (i == 0) want = got;
        if (memcmp(&want, &got, sizeof(got)))
            fail_msg("%s: first token %d for %d, logprob %a for %a; last %d for %d", ways[i].name,
                     got.token[0], want.token[0], (double)got.logprob[0], (double)want.logprob[0],
                     got.token[N_NEW - 1], want.token[N_NEW - 1]);
    }
}

static void check_ways(const struct tiny_shape *shape) {
    static const struct way ways[] = {
        {"whole", 48, 0, 0, false, 0},         {"in chunks of 16", 16, 0, 0, false, 0},
        {"in chunks of 7", 7, 2, 0, false, 0}, {"token by token", 1, 0, 0, false, 0},
        {"beside others", 24, 4, 0, false, 0}, {"after a shared prefix", 48, 0, 0, true, 0},
        {"preempted", 16, 1, 3, false, 0},
    };

    compare_ways(shape, ways, ARRAY_LEN(ways));
}

static void the_answer_is_the_same_every_time(void **state) {
    (void)state;
    check_ways(&cuda_fixture_llama);
}

static void with_windows_too(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.sliding_window = 13;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.has_qk_norm = true;
    check_ways(&shape);
}

/* By own products, whose tiles depend on the number of rows. */
static void without_a_library_too(void **state) {
    (void)state;
    shim_set_library(false);
    check_ways(&cuda_fixture_llama);
    shim_set_library(true);
}

static void quantised_too(void **state) {
    static const uint32_t kinds[] = {2, 4, 11}; /* e4m3 in blocks, int8 inputs, int4 in an order */
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        shape.quant = &quant_kinds[kinds[i]];
        check_ways(&shape);
    }
}

static void of_quantised_caches_too(void **state) {
    static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        shape.kv_dtype = types[i];
        shape.n_heads = i ? 4 : 2;
        shape.n_kv_heads = i ? 2 : 1;
        shape.sliding_window = i ? 13 : 0;
        check_ways(&shape);
    }
}

static void only_a_deterministic_model_reports_it(void **state) {
    struct backend_info info;
    struct cuda_fixture_setup loose = setup;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct cuda_fixture *s;

        loose.is_deterministic = i;
        s = cuda_fixture_open_alone(&cuda_fixture_llama, &loose, 1);
        backend_cuda.info(s->cuda.dev, &info);
        assert_int_equal(!!(info.flags & BACKEND_INVARIANT), i);
        cuda_fixture_close(s);
    }
}

static void over_any_number_of_ranks(void **state) {
    static const struct way ways[] = {
        {"one device", 48, 0, 0, false, 0},
        {"two ranks", 48, 0, 0, false, 2},
        {"two ranks in chunks beside others", 16, 2, 0, false, 2},
        {"four ranks", 48, 0, 0, false, 4},
        {"four ranks in chunks beside others", 7, 2, 0, false, 4},
    };
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.vocab = 500;
    shape.has_qkv_bias = shape.has_o_bias = true;
    compare_ways(&shape, ways, ARRAY_LEN(ways));
    shim_set_library(false); /* own products */
    compare_ways(&shape, ways, ARRAY_LEN(ways) - 1);
    shim_set_library(true);
}

/* A step of `n` tokens; the library refuses one of its products. ST_OK: with the right result. */
static enum status run_refused(bool is_deterministic, uint32_t n, struct cuda_fixture **out) {
    struct cuda_fixture_setup its = setup;
    struct cuda_fixture *s;
    struct error err = {0};
    backend_fence fence;
    enum status st = ST_OK;

    its.is_deterministic = is_deterministic;
    s = *out = is_deterministic ? cuda_fixture_open_alone(&cuda_fixture_llama, &its, 7)
                                : cuda_fixture_open(&cuda_fixture_llama, &its, 7);
    cuda_fixture_start(s, 0, n);
    cuda_fixture_plan(s, 0, n);
    shim_refuse_product(1);
    if (is_deterministic) {
        cuda_fixture_lay_out_plan(s, &s->cuda.stage[0], &s->step);
        st = backend_cuda.submit(s->cuda.model, 0, &s->step, &fence, &err);
        if (st == ST_OK) st = backend_cuda.wait(s->cuda.dev, fence, 60000000);
    } else {
        cuda_fixture_step(s);
    }
    shim_refuse_product(0);
    return st;
}

/* Own kernels have other bits than the graphs that are recorded: the step is lost, not changed. */
static void a_product_refused_in_service_never_changes_the_bits(void **state) {
    struct cuda_fixture *s;

    (void)state;
    assert_int_equal(run_refused(true, 39, &s), ST_CLOSED);
    assert_non_null(strstr(backend_cuda.fault(s->cuda.dev), "refused a product"));
    cuda_fixture_close(s);
    assert_int_equal(run_refused(false, 39, &s), ST_OK);
    cuda_fixture_plan(s, 0, 1);
    cuda_fixture_step(s);
    cuda_fixture_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_any_number_of_ranks),
        cmocka_unit_test(the_answer_is_the_same_every_time),
        cmocka_unit_test(with_windows_too),
        cmocka_unit_test(without_a_library_too),
        cmocka_unit_test(quantised_too),
        cmocka_unit_test(of_quantised_caches_too),
        cmocka_unit_test(only_a_deterministic_model_reports_it),
        cmocka_unit_test(a_product_refused_in_service_never_changes_the_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
