/* tests/unit/kernels/test_sim.c - the simulated backend: its clock, its text, its refusals. */
#include <ctype.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/tiny_model.h"

static const struct tiny_shape shape = {.n_layers = 2,
                                        .d_model = 64,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .d_ff = 64,
                                        .vocab = 260,
                                        .max_context = 4096,
                                        .kv_dtype = DTYPE_BF16,
                                        .weight_dtype = DTYPE_BF16};

struct sim {
    struct backend_device *dev;
    struct backend_model *model;
    struct backend_stage stage;
    uint8_t *host_pool;
    uint64_t block_bytes;
};

static void open_sim(struct sim *s, const char *profile, double speed) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_sim, NULL, 1, 16, 8, 4096};
    struct geometry g = tiny_geometry(&shape, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &shape);
    struct backend_config config = {.sim_profile = profile, .sim_speed = speed};
    struct backend_kv_info kv;

    limits.n_slots = 2;
    assert_int_equal(backend_sim.open(&s->dev, &config, NULL), ST_OK);
    assert_int_equal(backend_sim.load_begin(s->dev, &s->model, &g, &limits, NULL), ST_OK);
    assert_int_equal(backend_sim.load_end(s->model, NULL), ST_OK);
    assert_int_equal(backend_sim.kv_alloc(s->model, 1000000, 1000000, &kv, NULL), ST_OK);
    assert_int_equal(kv.block_bytes, 2 * 2 * 2 * 16 * 16 * 2);
    s->host_pool = kv.host_pool;
    s->block_bytes = kv.block_bytes;
    backend_sim.stage(s->model, 0, &s->stage);
}

static void close_sim(struct sim *s) {
    backend_sim.unload(s->model);
    backend_sim.close(s->dev);
}

/* A row of n tokens computes those from `first` on, in blocks from `block` on, of which its table
 * lacks those from `n_known` on; the flags of its output. */
static uint32_t go_on(struct sim *s, uint32_t row, const uint32_t *token, uint32_t n,
                      uint32_t first, uint32_t block, uint32_t n_known) {
    struct backend_step step = {.n_tokens = n - first, .n_rows = 1, .n_outputs = 1};
    backend_fence fence;

    s->stage.row[0] = (struct backend_row){row, 0, n - first, n};
    for (uint32_t i = n_known; i < (n + 15) / 16; i++)
        s->stage.update[step.n_updates++] = (struct backend_table_update){row, i, block + i};
    for (uint32_t i = first; i < n; i++) {
        s->stage.token[i - first] = (int32_t)token[i];
        s->stage.position[i - first] = i;
        s->stage.kv_slot[i - first] = block * 16 + i;
    }
    s->stage.output[0] = (struct backend_output){
        .row = row, .token_index = n - first - 1, .position = n, .mask = BACKEND_NO_MASK};
    assert_int_equal(backend_sim.submit(s->model, 0, &step, &fence, NULL), ST_OK);
    return s->stage.out_flags[0];
}

/* The same with row 0, bound again. */
static uint32_t run_row(struct sim *s, const uint32_t *prompt, uint32_t n, uint32_t first,
                        uint32_t block) {
    assert_int_equal(backend_sim.row_bind(s->model, 0, prompt, n, NULL, 0), ST_OK);
    return go_on(s, 0, prompt, n, first, block, 0);
}

/* What comes back from host memory is what went there; anything else is noticed. */
static void a_row_that_meets_another_prefix_has_no_finite_output(void **state) {
    uint32_t prompt[40];
    struct backend_copy out[] = {{10, 3}, {11, 4}}, in[] = {{3, 20}, {4, 21}};
    backend_fence fence;
    struct sim s;

    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        prompt[i] = 'a' + i % 20;
    open_sim(&s, "instant", 0);
    assert_int_equal(run_row(&s, prompt, 40, 0, 10), 0);
    assert_int_equal(backend_sim.kv_swap_out(s.model, out, 2, &fence), ST_OK);
    assert_int_equal(backend_sim.kv_swap_in(s.model, in, 2, &fence), ST_OK);
    assert_int_equal(run_row(&s, prompt, 40, 32, 20), 0);
    s.host_pool[3 * s.block_bytes + 9] ^= 1; /* of the second slot */
    assert_int_equal(backend_sim.kv_swap_in(s.model, in, 2, &fence), ST_OK);
    assert_int_equal(run_row(&s, prompt, 40, 32, 20), OUT_NOT_FINITE);
    prompt[5]++; /* blocks of another prompt */
    assert_int_equal(run_row(&s, prompt, 40, 32, 10), OUT_NOT_FINITE);
    close_sim(&s);
}

/* A beam has a row, and then the tokens of another beam: its blocks alone say which. */
static void a_row_goes_on_behind_the_tokens_of_its_blocks(void **state) {
    uint32_t token[2][40];
    struct backend_copy fork = {11, 21};
    backend_fence fence;
    struct sim s;

    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        token[0][i] = token[1][i] = 'a' + i % 20;
    token[1][20]++;
    open_sim(&s, "instant", 0);
    for (uint32_t row = 0; row < 2; row++) {
        assert_int_equal(backend_sim.row_bind(s.model, row, token[row], 20, NULL, 0), ST_OK);
        assert_int_equal(go_on(&s, row, token[row], 20, 0, 10 + 10 * row, 0), 0);
        assert_int_equal(go_on(&s, row, token[row], 21, 20, 10 + 10 * row, 2), 0);
    }
    assert_int_equal(backend_sim.kv_copy(s.model, &fork, 1, &fence), ST_OK);
    assert_int_equal(go_on(&s, 1, token[0], 40, 21, 20, 0), 0);
    assert_int_equal(run_row(&s, token[0], 40, 39, 20), 0);
    assert_int_equal(run_row(&s, token[1], 40, 39, 20), OUT_NOT_FINITE);
    close_sim(&s);
}

/* Each row compares the slot behind which it goes on. */
static void a_row_whose_last_block_was_overwritten_has_no_finite_output(void **state) {
    struct backend_copy over = {10, 12};
    uint32_t prompt[40];
    backend_fence fence;
    struct sim s;

    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        prompt[i] = 'a' + i % 20;
    open_sim(&s, "instant", 0);
    assert_int_equal(run_row(&s, prompt, 36, 0, 10), 0);
    assert_int_equal(go_on(&s, 0, prompt, 38, 36, 10, 3), 0);
    assert_int_equal(backend_sim.kv_copy(s.model, &over, 1, &fence), ST_OK);
    assert_int_equal(go_on(&s, 0, prompt, 39, 38, 10, 3), OUT_NOT_FINITE);
    close_sim(&s);
}

/* One row of n tokens that end a context. */
static backend_fence submit(struct sim *s, uint32_t n, uint32_t context_len) {
    struct backend_step step = {.n_tokens = n, .n_rows = 1, .n_outputs = 1};
    backend_fence fence = 0;

    s->stage.row[0] = (struct backend_row){0, 0, n, context_len};
    for (uint32_t i = 0; i < n; i++) {
        s->stage.token[i] = 'a';
        s->stage.position[i] = context_len - n + i;
        s->stage.kv_slot[i] = -1;
    }
    s->stage.output[0] = (struct backend_output){
        .token_index = n - 1, .position = context_len, .mask = BACKEND_NO_MASK, .n_logprobs = 3};
    assert_int_equal(backend_sim.submit(s->model, 0, &step, &fence, NULL), ST_OK);
    return fence;
}

static void steps_take_the_modelled_time_one_after_another(void **state) {
    struct sim s;
    uint64_t start_us;
    backend_fence first, second;
    enum status early;

    (void)state;
    open_sim(&s, NULL, 0);
    start_us = clock_now_us();
    first = submit(&s, 1, 1000);    /* 6000 + 20 + 27 us */
    second = submit(&s, 100, 3000); /* 6000 + 20 + 100 * 50 * (1 + 2950 / 30000) us */
    assert_int_equal(second, first + 1);
    /* A busy machine may be late, so only "not before" is asked; early answers count if in time. */
    early = backend_sim.poll(s.dev, first);
    if (clock_now_us() - start_us < 6047) assert_int_equal(early, ST_AGAIN);
    early = backend_sim.wait(s.dev, second, 1000);
    if (clock_now_us() - start_us < 6047 + 11511) assert_int_equal(early, ST_TIMEOUT);
    assert_int_equal(backend_sim.wait(s.dev, first, 60000000), ST_OK);
    assert_true(clock_now_us() - start_us >= 6047);
    assert_int_equal(backend_sim.wait(s.dev, second, 60000000), ST_OK);
    assert_true(clock_now_us() - start_us >= 6047 + 11511);
    assert_int_equal(backend_sim.poll(s.dev, first), ST_OK);
    assert_int_equal(backend_sim.poll(s.dev, second + 1), ST_INVALID);
    close_sim(&s);
}

static void the_event_fd_is_readable_when_a_fence_is_done(void **state) {
    struct sim s;
    struct pollfd p = {.events = POLLIN};
    backend_fence a, b;

    (void)state;
    open_sim(&s, NULL, 3);
    p.fd = backend_sim.event_fd(s.dev);
    assert_int_equal(poll(&p, 1, 0), 0);
    a = submit(&s, 1, 10);
    b = submit(&s, 1, 10);
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_int_equal(backend_sim.poll(s.dev, a), ST_OK);
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_int_equal(backend_sim.poll(s.dev, b), ST_OK);
    assert_int_equal(poll(&p, 1, 0), 0);
    close_sim(&s);
}

/* Who waits for the second of two is woken by the first, takes the signal away, and is woken
 * again. */
static void the_event_fd_signals_a_later_fence(void **state) {
    struct pollfd p = {.events = POLLIN};
    uint64_t signal;
    struct sim s;
    backend_fence b;

    (void)state;
    open_sim(&s, NULL, 3);
    (void)submit(&s, 1, 10);
    b = submit(&s, 1, 10);
    do {
        p.fd = backend_sim.event_fd(s.dev);
        assert_int_equal(poll(&p, 1, 5000), 1);
        assert_int_equal(read(p.fd, &signal, sizeof(signal)), sizeof(signal));
    } while (backend_sim.poll(s.dev, b) == ST_AGAIN);
    assert_int_equal(backend_sim.poll(s.dev, b), ST_OK);
    close_sim(&s);
}

static void the_text_is_words_and_depends_on_the_prompt_alone(void **state) {
    static const uint32_t prompt[] = {10, 20, 30}, other[] = {10, 20, 31};
    char text[2][401] = {{0}};
    struct sim s;

    (void)state;
    open_sim(&s, "instant", 0);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(backend_sim.row_bind(s.model, 0, prompt, 3, NULL, 0), ST_OK);
        for (uint32_t i = 0; i < 400; i++) {
            if (pass && i == 200) { /* preempted, and taken up again */
                uint32_t output[200];

                for (int j = 0; j < 200; j++)
                    output[j] = (uint32_t)text[1][j];
                backend_sim.row_free(s.model, 0);
                assert_int_equal(backend_sim.row_bind(s.model, 0, prompt, 3, output, 200), ST_OK);
            }
            assert_int_equal(backend_sim.wait(s.dev, submit(&s, 1, 3 + i), 1000), ST_OK);
            text[pass][i] = (char)s.stage.out_token[0];
            assert_true(islower(text[pass][i]) || text[pass][i] == ' ' || text[pass][i] == '.');
            assert_int_equal(s.stage.out_top_token[0], s.stage.out_token[0]);
            assert_true(s.stage.out_logprob[0] < 0);
        }
        backend_sim.row_free(s.model, 0);
    }
    assert_string_equal(text[0], text[1]);
    assert_non_null(strchr(text[0], ' '));
    assert_null(strstr(text[0], "  "));
    assert_int_equal(backend_sim.row_bind(s.model, 0, other, 3, NULL, 0), ST_OK);
    for (uint32_t i = 0; i < 400; i++) {
        assert_int_equal(backend_sim.wait(s.dev, submit(&s, 1, 3 + i), 1000), ST_OK);
        text[1][i] = (char)s.stage.out_token[0];
    }
    assert_string_not_equal(text[0], text[1]);
    close_sim(&s);
}

static void wrong_options_get_a_sentence(void **state) {
    struct backend_device *dev;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_sim.open(&dev, &(struct backend_config){.sim_profile = "tpu"}, &err),
                     ST_UNSUPPORTED);
    assert_string_equal(err.message, "no simulated device named tpu: there are h200-8b, instant");
    assert_int_equal(backend_sim.open(&dev, &(struct backend_config){.sim_speed = -1}, &err),
                     ST_INVALID);
}

/* 80 MB over the host's link take 1.6 ms, here stretched to minutes; copies within the device are
 * forty times as fast, and what is submitted behind them waits for them. */
static void moves_take_the_time_of_their_link(void **state) {
    enum { N = 20000 };
    struct backend_copy *pairs = mem_calloc(N, sizeof(*pairs));
    const double speeds[] = {1e-5, 1};
    backend_fence swap, step;
    struct sim s;

    (void)state;
    for (uint32_t i = 0; i < N; i++)
        pairs[i] = (struct backend_copy){i, i};
    for (int instant = 0; instant < 2; instant++) {
        open_sim(&s, instant ? "instant" : NULL, speeds[instant]);
        assert_int_equal(backend_sim.kv_swap_out(s.model, pairs, N, &swap), ST_OK);
        step = submit(&s, 1, 1);
        assert_int_equal(backend_sim.poll(s.dev, swap), instant ? ST_OK : ST_AGAIN);
        assert_int_equal(backend_sim.poll(s.dev, step), instant ? ST_OK : ST_AGAIN);
        close_sim(&s);
    }
    mem_free(pairs);
}

static void allow_x(void *arg) {
    struct sim *s = arg;

    assert_int_equal(s->stage.mask['x' / 32], 0); /* once */
    s->stage.mask['x' / 32] = 1u << ('x' % 32);
}

static void masks_that_are_late_are_asked_for(void **state) {
    struct sim s;
    struct backend_step step = {
        .n_tokens = 1, .n_rows = 1, .n_outputs = 1, .n_masks = 1, .fill_masks = allow_x};
    backend_fence fence;

    (void)state;
    open_sim(&s, "instant", 1);
    step.fill_arg = &s;
    (void)submit(&s, 1, 1);
    s.stage.output[0].mask = 0;
    memset(s.stage.mask, 0, CEIL_DIV(shape.vocab, 32) * sizeof(*s.stage.mask));
    assert_int_equal(backend_sim.submit(s.model, 0, &step, &fence, NULL), ST_OK);
    assert_int_equal(s.stage.out_token[0], 'x');
    close_sim(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_that_meets_another_prefix_has_no_finite_output),
        cmocka_unit_test(a_row_goes_on_behind_the_tokens_of_its_blocks),
        cmocka_unit_test(a_row_whose_last_block_was_overwritten_has_no_finite_output),
        cmocka_unit_test(steps_take_the_modelled_time_one_after_another),
        cmocka_unit_test(the_event_fd_is_readable_when_a_fence_is_done),
        cmocka_unit_test(the_event_fd_signals_a_later_fence),
        cmocka_unit_test(the_text_is_words_and_depends_on_the_prompt_alone),
        cmocka_unit_test(wrong_options_get_a_sentence),
        cmocka_unit_test(moves_take_the_time_of_their_link),
        cmocka_unit_test(masks_that_are_late_are_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
