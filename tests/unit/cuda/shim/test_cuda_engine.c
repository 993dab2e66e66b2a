/* tests/unit/cuda/shim/test_cuda_engine.c - a whole engine on the CUDA backend, two steps in
 * flight, on the shim's device, which executes its queue some time later.
 *
 * With is_deterministic a request has the same bits however it is run: alone and cold, one step
 * after the other, is what all else must give. */
#include <string.h>

#include "common/telemetry/log.h"
#include "kernels/cuda/cuda_internal.h"
#include "tests/shim/shim_control.h"
#include "tests/support/tiny_model.h"

#define ENGINE_FIXTURE_SHAPE
static const struct tiny_shape shape = {.n_layers = 2,
                                        .d_model = 64,
                                        .n_heads = 2,
                                        .n_kv_heads = 1,
                                        .head_dim = 64,
                                        .d_ff = 64,
                                        .vocab = 131,
                                        .max_context = 192,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};
#include "tests/support/engine_fixture.h"

#define N_CASES 6

static const struct machine cuda = {.ops = &backend_cuda};

struct cases {
    uint32_t prompt[N_CASES][CONTEXT];
    struct request_params p[N_CASES];
};

static void make_cases(struct cases *c) {
    static const uint32_t length[N_CASES] = {1, 5, 16, 33, 40, 60};
    struct rng rng;

    rng_seed(&rng, 31);
    for (uint32_t i = 0; i < N_CASES; i++) {
        for (uint32_t k = 0; k < length[i]; k++)
            c->prompt[i][k] = k < 32 && i % 2 ? 3 + k : 8 + (uint32_t)rng_below(&rng, 120);
        c->p[i] = request_params_default;
        c->p[i].prompt = c->prompt[i];
        c->p[i].n_prompt = length[i];
        c->p[i].max_tokens = 5 + i;
        c->p[i].n_logprobs = 2;
        c->p[i].seed = 50 + i;
        c->p[i].ignore_eos = i != 2;
        c->p[i].temperature = i % 2 ? 0.8f : 0.0f;
    }
    c->p[1].top_k = 20;
    c->p[3].repetition_penalty = 1.3f;
    c->p[5].frequency_penalty = 0.5f;
}

static void run_together(const struct cases *c, struct setup s, const char *how,
                         const struct answer *expected, bool wants_preemptions) {
    static struct answer got[N_CASES];
    uint32_t n_cached = 0;
    struct engine_fixture w;

    s.machine = cuda;
    s.is_deterministic = true;
    fixture_open(&w, &s);
    for (int round = 0; round < 2; round++) {
        memset(got, 0, sizeof(got));
        for (uint32_t i = 0; i < N_CASES; i++)
            submit(&w, &c->p[i], &got[i]);
        fixture_run(&w);
        for (uint32_t i = 0; i < N_CASES; i++) {
            assert_same(&expected[i], &got[i], how, i);
            n_cached += got[i].cached_tokens;
        }
    }
    assert_true(n_cached > 0);
    assert_true(!wants_preemptions || stats_of(&w).preemptions > 0);
    assert_idle(&w);
    fixture_close(&w);
}

static void the_same_answer_however_it_is_run(void **state) {
    static struct cases c;
    static struct answer expected[N_CASES];
    struct engine_fixture w;

    (void)state;
    make_cases(&c);
    fixture_open(&w, &(struct setup){.machine = cuda,
                                     .no_caching = true,
                                     .is_deterministic = true,
                                     .n_blocks = 40,
                                     .async = ASYNC_OFF});
    assert_int_equal(engine_info(w.e)->n_slots, 1);
    for (uint32_t i = 0; i < N_CASES; i++) {
        submit(&w, &c.p[i], &expected[i]);
        fixture_run(&w);
    }
    fixture_close(&w);
    run_together(&c, (struct setup){.n_blocks = 60}, "two in flight", expected, false);
    run_together(&c, (struct setup){.n_blocks = 60, .budget = 24}, "small steps", expected, false);
    run_together(&c, (struct setup){.n_blocks = 13}, "few blocks", expected, true);
    run_together(&c, (struct setup){.n_blocks = 13, .host_blocks = 40, .preemption = PREEMPT_SWAP},
                 "few blocks, swapped", expected, true);
}

/* Whatever is cancelled at whatever moment, nothing is left, and the device has not failed. */
static void cancels_at_any_moment_leave_nothing(void **state) {
    static struct cases c;
    struct engine_fixture w;
    struct rng rng;

    (void)state;
    make_cases(&c);
    rng_seed(&rng, 12);
    fixture_open(&w, &(struct setup){.machine = cuda,
                                     .n_blocks = 20,
                                     .host_blocks = 20,
                                     .preemption = PREEMPT_SWAP,
                                     .budget = 32});
    assert_int_equal(engine_info(w.e)->n_slots, 2);
    w.lets_go = true;
    for (uint32_t n = 0; n < 40; n += N_CASES) {
        struct request *r[N_CASES];

        for (uint32_t i = 0; i < N_CASES; i++)
            r[i] = submit(&w, &c.p[i], NULL);
        for (uint32_t i = 0; i < N_CASES; i++) {
            for (uint64_t k = rng_below(&rng, 4); k > 0; k--)
                loop_turn(w.loop, 2000);
            if (rng_below(&rng, 3) > 0) engine_cancel(w.e, r[i]);
            request_unref(r[i]);
        }
    }
    fixture_run(&w);
    assert_false(w.is_failed);
    assert_idle(&w);
    fixture_close(&w);
}

/* Each request ends with a step behind which nothing can go: the engine sleeps on the event fd, and
 * two ranks must ring it each time. */
static void two_devices_finish_their_requests(void **state) {
    static struct cases c;
    struct engine_fixture w;

    (void)state;
    make_cases(&c);
    shim_set_devices(2);
    fixture_open(&w, &(struct setup){.machine = {.ops = &backend_tp, .ranks = &backend_cuda},
                                     .n_blocks = 40});
    assert_int_equal(engine_info(w.e)->n_slots, 2);
    for (uint32_t i = 0; i < N_CASES; i++) {
        static struct answer got;

        got = (struct answer){0};
        submit(&w, &c.p[i], &got);
        fixture_run(&w);
        assert_true(got.n > 0);
    }
    assert_idle(&w);
    fixture_close(&w);
    shim_set_devices(1);
}

/* Without cuBLASLt own kernels serve: the log has why. */
static void a_device_that_is_slowed_is_in_the_log(void **state) {
    char line[4096];
    uint32_t n_found[2] = {0};

    (void)state;
    for (uint32_t has_library = 0; has_library < 2; has_library++) {
        FILE *file = tmpfile();
        struct log *log = log_create(&(struct log_config){.fd = fileno(file), .level = LOG_INFO});
        struct engine_fixture w;

        shim_set_library(has_library);
        fixture_open(&w, &(struct setup){.machine = cuda, .n_blocks = 40, .log = log});
        fixture_close(&w);
        log_destroy(log);
        rewind(file);
        while (fgets(line, sizeof(line), file))
            n_found[has_library] += strstr(line, "device_slowed") && strstr(line, "backend=cuda") &&
                                    strstr(line, "own kernels compute all matrix products");
        fclose(file);
    }
    shim_set_library(true);
    assert_int_equal(n_found[0], 1);
    assert_int_equal(n_found[1], 0);
}

int main(void) {
    gate_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_answer_however_it_is_run),
        cmocka_unit_test(cancels_at_any_moment_leave_nothing),
        cmocka_unit_test(two_devices_finish_their_requests),
        cmocka_unit_test(a_device_that_is_slowed_is_in_the_log),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
