/* tests/unit/worker/engine/test_engine_forks.c - samples that share their prompt, beam searches,
 * and the requests that they preempt: the same bits as alone and without a cache, and no block is
 * left. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/late_backend.h"
#include "worker/sched/beam_group.h"

#define N_PROMPTS 4
#define N_SAMPLES 3
#define N_ANSWERS 3
#define WIDTH     4

/* Of each prompt, some samples and one search. */
struct crowd {
    uint32_t prompt[N_PROMPTS][CONTEXT];
    struct request_params sample[N_PROMPTS][N_SAMPLES], search[N_PROMPTS];
};

struct answers {
    struct answer sample[N_PROMPTS][N_SAMPLES], search[N_PROMPTS][N_ANSWERS];
};

static void make_crowd(struct crowd *c) {
    static const uint32_t length[N_PROMPTS] = {2, 33, 64, 90};
    struct rng rng;

    rng_seed(&rng, 21);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct request_params p = request_params_default;

        for (uint32_t k = 0; k < length[i]; k++)
            c->prompt[i][k] = 8 + (uint32_t)rng_below(&rng, 120);
        p.prompt = c->prompt[i];
        p.n_prompt = length[i];
        p.n_logprobs = 3;
        p.max_tokens = 18 + i;
        p.priority = (int32_t)(i * 2 % 3);
        c->search[i] = p;
        c->search[i].min_tokens = i * 2;
        p.ignore_eos = true;
        for (uint32_t k = 0; k < N_SAMPLES; k++) {
            c->sample[i][k] = p;
            c->sample[i][k].temperature = k == 0 ? 0 : 0.9f;
            c->sample[i][k].frequency_penalty = i == 2 ? 0.4f : 0;
            c->sample[i][k].seed = 100 * i + k;
            if (k == 0 && i == 1) c->sample[i][k].prompt_logprobs = 2;
        }
    }
}

static void submit_search(struct engine_fixture *w, const struct request_params *p,
                          struct answer *a, struct request **out) {
    static const struct beam_params beams = {.width = WIDTH, .n = N_ANSWERS, .length_penalty = 1};
    struct request *r[N_ANSWERS];
    struct error err = {0};

    if (beam_group_create(r, p, &beams, &engine_info(w->e)->limits, &err) != ST_OK)
        fail_msg("%s", err.message);
    for (uint32_t i = 0; i < N_ANSWERS; i++) {
        r[i]->owner = a ? &a[i] : NULL;
        if (out) out[i] = r[i];
        if (engine_submit(w->e, r[i], &err) != ST_OK) fail_msg("%s", err.message);
        w->n_open++;
    }
}

/* The first sample is the parent of the others. */
static void submit_samples(struct engine_fixture *w, const struct request_params *p, uint32_t n,
                           struct answer *a, struct request **out) {
    struct request *parent = NULL, *r;
    struct error err = {0};

    for (uint32_t i = 0; i < n; i++) {
        if (request_create(&r, &p[i], &engine_info(w->e)->limits, &err) != ST_OK)
            fail_msg("%s", err.message);
        if (parent) request_set_parent(r, parent);
        if (!parent) parent = r;
        r->owner = a ? &a[i] : NULL;
        if (out) out[i] = r;
        if (engine_submit(w->e, r, &err) != ST_OK) fail_msg("%s", err.message);
        w->n_open++;
    }
}

static void run_alone_and_cold(const struct crowd *c, struct machine machine, struct answers *out) {
    struct engine_fixture w;

    memset(out, 0, sizeof(*out));
    fixture_open(&w, &(struct setup){.machine = machine, .no_caching = true});
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        for (uint32_t k = 0; k < N_SAMPLES; k++) {
            submit(&w, &c->sample[i][k], &out->sample[i][k]);
            fixture_run(&w);
        }
        submit_search(&w, &c->search[i], out->search[i], NULL);
        fixture_run(&w);
        assert_true(out->search[i][0].n > c->search[i].min_tokens);
    }
    assert_idle(&w);
    fixture_close(&w);
}

static struct engine_stats run_crowd(const struct crowd *c, const struct setup *s, const char *how,
                                     const struct answers *expected) {
    static struct answers got;
    struct engine_stats stats;
    struct engine_fixture w;

    fixture_open(&w, s);
    for (int round = 0; round < 2; round++) {
        memset(&got, 0, sizeof(got));
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            submit_samples(&w, c->sample[i], N_SAMPLES, got.sample[i], NULL);
            submit_search(&w, &c->search[i], got.search[i], NULL);
        }
        fixture_run(&w);
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            for (uint32_t k = 0; k < N_SAMPLES; k++)
                assert_same(&expected->sample[i][k], &got.sample[i][k], how, i * 100 + k);
            for (uint32_t k = 0; k < N_ANSWERS; k++)
                assert_same(&expected->search[i][k], &got.search[i][k], how, i * 100 + 10 + k);
        }
    }
    assert_idle(&w);
    stats = stats_of(&w);
    fixture_close(&w);
    if (stats.forks < 2 * N_PROMPTS) fail_msg("%s: hardly a fork", how);
    return stats;
}

#define ENOUGH 20 /* blocks of 16: one search of the longest prompt, and two more */

static const struct way {
    const char *how;
    struct setup setup;
    bool preempts, swaps, reads_host;
} ways[] = {
    {"all at once", {.max_seqs = 64}, false, false, false},
    {"five rows, budget 16", {.max_seqs = 5, .budget = 16}, false, false, false},
    {"block size 4, budget 9", {.budget = 9, .block_size = 4}, false, false, false},
    {"block size 1, no cache",
     {.block_size = 1, .n_blocks = 3000, .no_caching = true},
     false,
     false,
     false},
    {"few blocks", {.n_blocks = ENOUGH, .preemption = PREEMPT_RECOMPUTE}, true, false, false},
    {"few blocks, swapped",
     {.n_blocks = ENOUGH, .host_blocks = 100, .preemption = PREEMPT_SWAP},
     true,
     true,
     false},
    {"few blocks, forks swapped",
     {.n_blocks = ENOUGH, .host_blocks = 30, .preemption = PREEMPT_AUTO, .budget = 24},
     true,
     true,
     false},
    {"few blocks, by priority",
     {.n_blocks = ENOUGH, .preemption = PREEMPT_RECOMPUTE, .policy = POLICY_PRIORITY},
     true,
     false,
     false},
    {"few blocks, by remaining prefill",
     {.n_blocks = ENOUGH, .preemption = PREEMPT_RECOMPUTE, .policy = POLICY_SRPT},
     true,
     false,
     false},
    {"few blocks, budget 16, swapped, by remaining prefill",
     {.n_blocks = ENOUGH,
      .host_blocks = 100,
      .preemption = PREEMPT_SWAP,
      .budget = 16,
      .policy = POLICY_SRPT},
     true,
     true,
     false},
    {"few blocks, a second tier",
     {.n_blocks = ENOUGH, .host_blocks = 200, .preemption = PREEMPT_RECOMPUTE},
     true,
     false,
     true},
    {"small blocks, both tiers, by priority",
     {.n_blocks = 52,
      .block_size = 4,
      .host_blocks = 200,
      .preemption = PREEMPT_SWAP,
      .policy = POLICY_PRIORITY},
     true,
     true,
     true},
};

static void run_all_ways(struct machine machine, enum engine_async async) {
    static struct crowd c;
    static struct answers expected;

    make_crowd(&c);
    run_alone_and_cold(&c, machine_of_one(machine), &expected);
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        struct setup s = ways[i].setup;
        struct engine_stats stats;

        s.machine = machine;
        s.async = async;
        stats = run_crowd(&c, &s, ways[i].how, &expected);
        if (ways[i].preempts && stats.preemptions == 0)
            fail_msg("%s: nothing was preempted", ways[i].how);
        if (ways[i].swaps && stats.swap_outs == 0) fail_msg("%s: nothing was swapped", ways[i].how);
        if (ways[i].reads_host && stats.host_hits == 0)
            fail_msg("%s: nothing came from host memory", ways[i].how);
    }
}

static void case_100_for_samples_and_beams(void **state) {
    (void)state;
    run_all_ways((struct machine){0}, ASYNC_OFF); /* with two in flight: the late device below */
}

static void case_100_for_samples_and_beams_on_the_cpu(void **state) {
    (void)state;
    run_all_ways((struct machine){.ops = &backend_cpu}, ASYNC_OFF);
    run_all_ways((struct machine){.ops = &backend_cpu}, ASYNC_ON);
    run_all_ways((struct machine){.ops = &backend_cpu, .kv_dtype = DTYPE_F8E4M3}, ASYNC_OFF);
    run_all_ways((struct machine){.ops = &backend_cpu, .kv_dtype = DTYPE_I8}, ASYNC_OFF);
}

static void case_100_for_samples_and_beams_over_two_ranks(void **state) {
    (void)state;
    run_all_ways((struct machine){.ops = &backend_tp, .ranks = &backend_cpu}, ASYNC_OFF);
    run_all_ways((struct machine){.ops = &backend_tp, .ranks = &backend_cpu}, ASYNC_ON);
}

static void case_100_on_a_device_that_works_on_its_own(void **state) {
    (void)state;
    late_plan_set(&(struct late_plan){.seed = 1, .done_percent = 40});
    run_all_ways((struct machine){.ops = &backend_late}, ASYNC_AUTO);
}

/* Which notices a block that is not the request's own, though its bits do not change an answer. */
static void case_100_in_the_simulation(void **state) {
    (void)state;
    run_all_ways((struct machine){.ops = &backend_sim}, ASYNC_OFF);
    run_all_ways((struct machine){.ops = &backend_sim}, ASYNC_AUTO);
}

static void samples_share_the_prompt_and_compute_one_token_each(void **state) {
    struct request_params p[5];
    uint32_t prompt[40];
    struct engine_fixture w;

    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        prompt[i] = 10 + i;
    for (uint32_t k = 0; k < 5; k++) {
        p[k] = request_params_default;
        p[k].prompt = prompt;
        p[k].n_prompt = 40;
        p[k].seed = k;
        p[k].max_tokens = 8;
        p[k].ignore_eos = true;
    }
    fixture_open(&w, &(struct setup){.is_gated = true});
    submit_samples(&w, p, 5, NULL, NULL);
    permit_steps(1000); /* not before: the first could end before the others arrive */
    fixture_run(&w);
    assert_int_equal(stats_of(&w).forks, 4);
    assert_int_equal(stats_of(&w).prefill_tokens, 40 + 4);
    fixture_close(&w);
}

/* Plain ones, samples and searches, let go of at any moment of their lives. */
static void cancel_a_thousand(struct machine machine, enum engine_async async) {
    static uint32_t prompt[3][60];
    struct request_params p[4];
    struct rng rng;
    struct engine_fixture w;

    rng_seed(&rng, 17);
    fixture_open(&w, &(struct setup){.machine = machine,
                                     .n_blocks = 40,
                                     .host_blocks = 60,
                                     .preemption = PREEMPT_SWAP,
                                     .budget = 48,
                                     .max_waiting = 2000,
                                     .async = async});
    w.lets_go = true;
    for (uint32_t n = 0; n < 1000;) {
        struct request *r[16];
        uint32_t n_new = 0;

        for (uint32_t kind = 0; kind < 3; kind++) {
            p[0] = request_params_default;
            p[0].prompt = prompt[kind];
            p[0].n_prompt = 20 + 15 * kind;
            p[0].max_tokens = MAX_OUT;
            p[0].ignore_eos = true;
            p[1] = p[2] = p[3] = p[0];
            prompt[kind][rng_below(&rng, p[0].n_prompt)] = 8 + (uint32_t)rng_below(&rng, 4);
            if (kind == 0) submit_samples(&w, p, 1, NULL, r + n_new);
            if (kind == 1) submit_samples(&w, p, 4, NULL, r + n_new);
            if (kind == 2) submit_search(&w, p, NULL, r + n_new);
            n_new += kind == 0 ? 1 : kind == 1 ? 4 : N_ANSWERS;
        }
        for (uint64_t k = rng_below(&rng, 6); k > 0; k--)
            loop_turn(w.loop, 200);
        for (uint32_t i = 0; i < n_new; i++) {
            engine_cancel(w.e, r[(i * 5) % n_new]);
            if (rng_below(&rng, 2)) loop_turn(w.loop, 50);
            request_unref(r[(i * 5) % n_new]);
        }
        n += n_new;
    }
    fixture_run(&w);
    assert_idle(&w);
    assert_int_equal(stats_of(&w).host_held, 0);
    assert_int_equal(stats_of(&w).finished[FINISH_ERROR], 0);
    fixture_close(&w);
}

static void after_a_thousand_cancels_every_block_is_free(void **state) {
    (void)state;
    cancel_a_thousand((struct machine){0}, ASYNC_OFF);
    cancel_a_thousand((struct machine){0}, ASYNC_ON);
    late_plan_set(&(struct late_plan){.seed = 7, .done_percent = 20});
    cancel_a_thousand((struct machine){.ops = &backend_late}, ASYNC_AUTO);
    cancel_a_thousand((struct machine){.ops = &backend_sim}, ASYNC_AUTO);
}

static void a_search_that_never_fits_is_refused(void **state) {
    static uint32_t prompt[20];
    static struct answer a[N_ANSWERS];
    struct request_params p = request_params_default;
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    p.prompt = prompt;
    p.n_prompt = 20;
    p.max_tokens = 140; /* four beams of 9 blocks and one they share: there are 12 */
    fixture_open(&w, &(struct setup){.n_blocks = 13});
    submit_search(&w, &p, a, NULL);
    fixture_run(&w);
    for (uint32_t i = 0; i < N_ANSWERS; i++)
        assert_int_equal(a[i].finish, FINISH_ERROR);
    assert_idle(&w);
    p.max_tokens = 8;
    submit_search(&w, &p, a, NULL);
    fixture_run(&w);
    assert_int_equal(a[0].n, 8);
    assert_idle(&w);
    fixture_close(&w);
}

int main(void) {
    gate_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_100_for_samples_and_beams),
        cmocka_unit_test(case_100_for_samples_and_beams_on_the_cpu),
        cmocka_unit_test(case_100_for_samples_and_beams_over_two_ranks),
        cmocka_unit_test(case_100_on_a_device_that_works_on_its_own),
        cmocka_unit_test(case_100_in_the_simulation),
        cmocka_unit_test(samples_share_the_prompt_and_compute_one_token_each),
        cmocka_unit_test(after_a_thousand_cancels_every_block_is_free),
        cmocka_unit_test(a_search_that_never_fits_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
