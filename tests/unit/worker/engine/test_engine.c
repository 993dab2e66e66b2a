/* tests/unit/worker/engine/test_engine.c - the same request has the same answer to the bit, however
 * it is run: alone or together, cold or cached, preempted or not. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/late_backend.h"

#define N_CASES 8

struct cases {
    uint32_t prompt[N_CASES][CONTEXT];
    struct request_params p[N_CASES];
    struct token_bias bias[2];
};

/* Prompts of many lengths, some with a common opening; greedy and drawn; every parameter once. */
static void make_cases(struct cases *c) {
    static const uint32_t length[N_CASES] = {1, 5, 16, 33, 64, 90, 100, 120};
    struct rng rng;

    rng_seed(&rng, 11);
    for (uint32_t i = 0; i < N_CASES; i++) {
        for (uint32_t k = 0; k < length[i]; k++)
            c->prompt[i][k] = k < 40 && i % 2 ? 3 + k % 60 : 8 + (uint32_t)rng_below(&rng, 120);
        c->p[i] = request_params_default;
        c->p[i].prompt = c->prompt[i];
        c->p[i].n_prompt = length[i];
        c->p[i].max_tokens = 20 + i;
        c->p[i].n_logprobs = 3;
        c->p[i].seed = 1000 + i;
        c->p[i].ignore_eos = true;
        c->p[i].temperature = i % 2 ? 0.8f : 0.0f;
    }
    c->p[1].top_k = 20;
    c->p[3].top_p = 0.9f;
    c->p[5].min_p = 0.02f;
    c->p[4].repetition_penalty = 1.3f;
    c->p[5].frequency_penalty = 0.5f;
    c->p[6].presence_penalty = 0.7f;
    c->p[7].prompt_logprobs = 2;
    c->p[3].ignore_eos = false;
    c->p[3].min_tokens = 10;
    c->bias[0] = (struct token_bias){20, 4.0f};
    c->bias[1] = (struct token_bias){21, -100.0f};
    c->p[2].bias = c->bias;
    c->p[2].n_bias = 2;
}

/* Each alone, in an engine without a cache: what every other way must give. */
static void run_alone_and_cold(const struct cases *c, struct machine machine, struct answer *out) {
    struct engine_fixture w;

    fixture_open(&w, &(struct setup){.machine = machine, .no_caching = true});
    for (uint32_t i = 0; i < N_CASES; i++) {
        memset(&out[i], 0, sizeof(out[i]));
        submit(&w, &c->p[i], &out[i]);
        fixture_run(&w);
        assert_int_equal(out[i].cached_tokens, 0);
        assert_true(out[i].finish == FINISH_LENGTH || out[i].finish == FINISH_STOP);
    }
    fixture_close(&w);
}

/* Eight at once, cold and then warm. */
static void run_together_as(const struct cases *c, const struct setup *s, const char *how,
                            const struct answer *expected, bool wants_preemptions) {
    static struct answer got[N_CASES];
    uint32_t n_preemptions = 0, n_cached = 0;
    struct engine_fixture w;

    fixture_open(&w, s);
    for (int round = 0; round < 2; round++) {
        memset(got, 0, sizeof(got));
        for (uint32_t i = 0; i < N_CASES; i++)
            submit(&w, &c->p[i], &got[i]);
        fixture_run(&w);
        for (uint32_t i = 0; i < N_CASES; i++) {
            assert_same(&expected[i], &got[i], how, i);
            n_preemptions += got[i].n_preemptions;
            n_cached += got[i].cached_tokens;
        }
    }
    assert_true(n_cached > 0);
    if (wants_preemptions && n_preemptions == 0) fail_msg("%s: nothing was preempted", how);
    assert_idle(&w);
    fixture_close(&w);
}

/* One step after the other, and with two in flight; the device that works on its own has two. */
static void run_together(const struct cases *c, const struct setup *s, const char *how,
                         const struct answer *expected, bool wants_preemptions) {
    bool is_late = s->machine.ops == &backend_late;
    char name[128];

    for (int async = is_late ? ASYNC_ON : ASYNC_OFF; async <= ASYNC_ON; async++) {
        struct setup each = *s;

        each.async = (enum engine_async)async;
        snprintf(name, sizeof(name), "%s%s", how, async == ASYNC_ON ? ", two steps in flight" : "");
        run_together_as(c, &each, name, expected, wants_preemptions);
    }
}

static const struct way {
    const char *how;
    struct setup setup;
    bool wants_preemptions;
} ways[] = {
    {"budget 512, two threads", {.budget = 512, .n_threads = 2}, false},
    {"budget 64", {.budget = 64}, false},
    {"budget 16", {.budget = 16}, false},
    {"few blocks", {.n_blocks = 14}, true},
    {"few small blocks, budget 16", {.budget = 16, .block_size = 2, .n_blocks = 130}, true},
    {"block size 1", {.block_size = 1, .n_blocks = 2000}, false},
    {"budget 9", {.budget = 9}, false},
    {"three at a time", {.max_seqs = 3}, false},
    {"block size 4", {.block_size = 4}, false},
    {"hashes of eight bits", {.block_size = 1, .n_blocks = 1200, .hash_bits = 8}, false},
};

static void run_all_ways(struct machine machine, size_t n_ways) {
    static struct cases c;
    static struct answer expected[N_CASES];

    make_cases(&c);
    run_alone_and_cold(&c, machine_of_one(machine), expected);
    for (size_t i = 0; i < n_ways; i++) {
        struct setup s = ways[i].setup;

        s.machine = machine;
        run_together(&c, &s, ways[i].how, expected, ways[i].wants_preemptions);
    }
}

/* Of the order of prompts: 40 of the list of cases for orders. */
static void order_40_the_same_answer_in_every_order(void **state) {
    static const struct way orders[] = {
        {"fcfs, budget 16", {.budget = 16, .policy = POLICY_FCFS}, false},
        {"by priority, budget 16", {.budget = 16, .policy = POLICY_PRIORITY}, false},
        {"by remaining prefill, budget 16", {.budget = 16, .policy = POLICY_SRPT}, false},
        {"by remaining prefill", {.policy = POLICY_SRPT}, false},
        {"by remaining prefill, few blocks", {.n_blocks = 14, .policy = POLICY_SRPT}, true},
        {"by remaining prefill, few small blocks",
         {.budget = 16, .block_size = 2, .n_blocks = 130, .policy = POLICY_SRPT},
         true},
        {"by remaining prefill, three at a time",
         {.budget = 9, .max_seqs = 3, .policy = POLICY_SRPT},
         false},
    };
    static const struct backend_ops *const machines[] = {&backend_ref, &backend_cpu, &backend_late};
    static struct cases c;
    static struct answer expected[N_CASES];

    (void)state;
    make_cases(&c);
    late_plan_set(&(struct late_plan){.seed = 9, .done_percent = 50});
    for (size_t m = 0; m < ARRAY_LEN(machines); m++) {
        struct machine machine = {.ops = machines[m]};

        run_alone_and_cold(&c, machine, expected);
        for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
            struct setup s = orders[i].setup;

            s.machine = machine;
            run_together(&c, &s, orders[i].how, expected, orders[i].wants_preemptions);
        }
    }
}

static void case_100_the_same_answer_however_it_is_run(void **state) {
    (void)state;
    run_all_ways((struct machine){0}, ARRAY_LEN(ways));
}

static void case_100_on_each_instruction_path_of_the_cpu(void **state) {
    static const char *const paths[] = {"plain", "neon", "avx2", "avx512", "avx512bf16"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct backend_config config = {.path = paths[i], .n_threads = 1};
        struct backend_info info;

        if (backend_cpu.probe(&config, &info, NULL) == ST_OK)
            run_all_ways((struct machine){&backend_cpu, paths[i]}, 6);
    }
}

static void case_100_over_two_ranks(void **state) {
    (void)state;
    run_all_ways((struct machine){.ops = &backend_tp, .ranks = &backend_cpu}, 5);
    run_all_ways((struct machine){.ops = &backend_tp, .ranks = &backend_ref}, 1);
}

static void case_100_on_a_device_that_works_on_its_own(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        late_plan_set(&(struct late_plan){.seed = seed, .done_percent = (uint32_t)seed * 35});
        run_all_ways((struct machine){.ops = &backend_late}, seed == 1 ? ARRAY_LEN(ways) : 5);
    }
}

/* One at a time in as many blocks as a window takes: 64 tokens, where a request has up to 147. */
static void run_alone_in_the_least_pool(const struct cases *c, struct machine machine,
                                        const struct answer *expected) {
    static struct answer got;
    struct engine_fixture w;

    fixture_open(&w,
                 &(struct setup){.machine = machine, .window = 24, .budget = 16, .n_blocks = 5});
    assert_int_equal(engine_info(w.e)->n_blocks, 4);
    for (uint32_t i = 0; i < N_CASES; i++) {
        memset(&got, 0, sizeof(got));
        submit(&w, &c->p[i], &got);
        fixture_run(&w);
        assert_same(&expected[i], &got, "the least pool", i);
    }
    assert_idle(&w);
    fixture_close(&w);
}

/* Every layer slides: a sequence holds blocks for its window alone, so a pool of fewer tokens than
 * one request has serves them all, and cached windows are hit. */
static void run_through_a_window(struct machine machine) {
    static const struct way through_window[] = {
        {"a window", {.window = 24}, false},
        {"a window, budget 16", {.window = 24, .budget = 16}, false},
        {"a window, few blocks", {.window = 24, .budget = 16, .n_blocks = 9}, true},
        {"a window, small blocks",
         {.window = 24, .budget = 16, .block_size = 4, .n_blocks = 60},
         false},
    };
    static struct cases c;
    static struct answer expected[N_CASES], seeing_all[N_CASES];
    struct engine_fixture w;

    make_cases(&c);
    memset(expected, 0, sizeof(expected));
    run_alone_and_cold(&c, machine, seeing_all);
    fixture_open(&w, &(struct setup){.machine = machine, .window = 24, .no_caching = true});
    for (uint32_t i = 0; i < N_CASES; i++) {
        submit(&w, &c.p[i], &expected[i]);
        fixture_run(&w);
    }
    fixture_close(&w);
    assert_memory_not_equal(expected[6].logprob, seeing_all[6].logprob, sizeof(c.bias));
    for (size_t i = 0; i < ARRAY_LEN(through_window); i++) {
        struct setup s = through_window[i].setup;

        s.machine = machine;
        run_together(&c, &s, through_window[i].how, expected, through_window[i].wants_preemptions);
    }
    run_alone_in_the_least_pool(&c, machine, expected);
}

static void the_same_answer_through_a_window(void **state) {
    (void)state;
    run_through_a_window((struct machine){0});
    run_through_a_window((struct machine){.ops = &backend_cpu});
    late_plan_set(&(struct late_plan){.seed = 4});
    run_through_a_window((struct machine){.ops = &backend_late});
}

/* Whatever the cache keeps, an answer is its request's alone. */
static void case_100_with_quantised_caches(void **state) {
    static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct machine tp = {.ops = &backend_tp, .ranks = &backend_cpu, .kv_dtype = types[i]};
        struct engine_fixture w;

        run_all_ways((struct machine){.kv_dtype = types[i]}, 5);
        run_all_ways((struct machine){.ops = &backend_cpu, .kv_dtype = types[i]}, ARRAY_LEN(ways));
        run_all_ways(tp, 4);
        run_through_a_window((struct machine){.ops = &backend_cpu, .kv_dtype = types[i]});
        fixture_open(&w, &(struct setup){.machine = tp});
        assert_int_equal(engine_info(w.e)->kv_dtype, types[i]);
        assert_int_equal(engine_info(w.e)->block_bytes,
                         16 * 2 * shape.n_layers * shape.n_kv_heads *
                             (shape.head_dim + kv_scale_bytes(types[i])) * 2); /* both ranks */
        fixture_close(&w);
    }
}

static void case_99_colliding_hashes_never_hit(void **state) {
    static struct answer expected[40], got[40];
    static uint32_t prompt[40][24];
    struct request_params p = request_params_default;
    struct engine_fixture cold, warm;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 5);
    fixture_open(&cold, &(struct setup){.no_caching = true});
    fixture_open(&warm, &(struct setup){.block_size = 2, .hash_bits = 1});
    p.temperature = 0;
    p.max_tokens = 4;
    p.n_logprobs = 0;
    p.n_prompt = 24;
    for (uint32_t i = 0; i < 40; i++) {
        for (uint32_t k = 0; k < 24; k++)
            prompt[i][k] = 8 + (uint32_t)rng_below(&rng, 3);
        p.prompt = prompt[i];
        submit(&cold, &p, &expected[i]);
        submit(&warm, &p, &got[i]);
        fixture_run(&cold);
        fixture_run(&warm);
        assert_same(&expected[i], &got[i], "one-bit hashes", i);
    }
    assert_true(stats_of(&warm).prefix_hits > 0);
    fixture_close(&cold);
    fixture_close(&warm);
}

static void all_but_one_token_is_cached_with_block_size_one(void **state) {
    static struct answer a[2];
    static uint32_t prompt[8] = {9, 10, 11, 12, 13, 14, 15, 16};
    struct request_params p = request_params_default;
    struct engine_fixture w;

    (void)state;
    fixture_open(&w, &(struct setup){.block_size = 1});
    p.prompt = prompt;
    p.n_prompt = 8;
    p.temperature = 0;
    for (int i = 0; i < 2; i++) {
        submit(&w, &p, &a[i]);
        fixture_run(&w);
    }
    assert_int_equal(a[0].cached_tokens, 0);
    assert_int_equal(a[1].cached_tokens, 7);
    assert_int_equal(stats_of(&w).prompt_tokens, 16);
    assert_int_equal(stats_of(&w).cached_tokens, 7);
    fixture_close(&w);
}

int main(void) {
    gate_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_40_the_same_answer_in_every_order),
        cmocka_unit_test(case_100_the_same_answer_however_it_is_run),
        cmocka_unit_test(case_100_on_each_instruction_path_of_the_cpu),
        cmocka_unit_test(case_100_over_two_ranks),
        cmocka_unit_test(case_100_on_a_device_that_works_on_its_own),
        cmocka_unit_test(the_same_answer_through_a_window),
        cmocka_unit_test(case_100_with_quantised_caches),
        cmocka_unit_test(case_99_colliding_hashes_never_hit),
        cmocka_unit_test(all_but_one_token_is_cached_with_block_size_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
