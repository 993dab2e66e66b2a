/* tests/unit/replay/test_engine_replay.c - the router's books against the engine's own, on made-up
 * conversations: a few dozen at a time, each turn the opening of the next, pauses between them. */
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/replay/engine_replay.h"
#include "tests/replay/worker_model.h"
#include "tests/replay/workload/workload.h"
#include "tests/support/cm.h"

#define BLOCK_SIZE 64
#define N_CHATS    300
#define TURNS_MAX  8
#define FIRST_MAX  60 /* blocks of a first prompt */
#define LATER_MAX  12 /* that a later turn adds */
#define SYSTEM     4  /* blocks that every prompt begins with */
#define BLOCKS_MAX (FIRST_MAX + TURNS_MAX * LATER_MAX)

struct chats {
    struct replay_request *requests;
    uint32_t (*blocks)[BLOCKS_MAX]; /* by chat */
    uint32_t n;
};

static int by_arrival(const void *a, const void *b) {
    const struct replay_request *x = a, *y = b;

    return (x->arrival_us > y->arrival_us) - (x->arrival_us < y->arrival_us);
}

/* Chats begin at random over the time given and pause up to two minutes between turns. */
static struct chats make_chats(uint64_t seed, uint64_t time_us) {
    struct chats w = {.requests = mem_calloc(N_CHATS * TURNS_MAX, sizeof(*w.requests)),
                      .blocks = mem_calloc(N_CHATS, sizeof(*w.blocks))};
    struct rng r;

    rng_seed(&r, seed);
    for (uint32_t c = 0; c < N_CHATS; c++) {
        uint64_t at_us = rng_below(&r, time_us);
        uint32_t n_blocks = SYSTEM + 1 + (uint32_t)rng_below(&r, FIRST_MAX - SYSTEM);
        uint32_t n_turns = 1 + (uint32_t)rng_below(&r, TURNS_MAX);

        for (uint32_t b = 0; b < BLOCKS_MAX; b++)
            w.blocks[c][b] = b < SYSTEM ? b : 1000 * (c + 1) + b;
        for (uint32_t t = 0; t < n_turns; t++) {
            w.requests[w.n++] = (struct replay_request){
                .arrival_us = at_us,
                .n_prompt = n_blocks * BLOCK_SIZE - (uint32_t)rng_below(&r, BLOCK_SIZE),
                .n_output = 1 + (uint32_t)rng_below(&r, 200),
                .blocks = w.blocks[c],
            };
            n_blocks += (uint32_t)rng_below(&r, LATER_MAX);
            at_us += 5000000 + rng_below(&r, 120000000);
        }
    }
    qsort(w.requests, w.n, sizeof(*w.requests), by_arrival);
    return w;
}

static void free_chats(struct chats *w) {
    mem_free(w->requests);
    mem_free(w->blocks);
}

static void print(const struct replay_result *r) {
    print_message("%u requests, %u preempted, busy %.2f: cached %llu of %llu, predicted %llu, "
                  "%u exact, %u off, worst %lld\n",
                  r->n_requests, r->n_preempted, r->busy_share,
                  (unsigned long long)r->cached_tokens, (unsigned long long)r->prompt_tokens,
                  (unsigned long long)r->predicted_tokens, r->n_exact, r->n_off,
                  (long long)r->worst_tokens);
}

static void with_room_for_all_every_hit_is_predicted(void **state) {
    struct chats w = make_chats(1, 600000000);
    struct replay_options o = {.block_size = BLOCK_SIZE, .cache_tokens = 4000000};
    struct replay_result r;
    (void)state;

    replay_on_engine(w.requests, w.n, &o, &r);
    print(&r);
    assert_true(r.cached_tokens > r.prompt_tokens / 2);
    assert_int_equal(r.n_exact, r.n_requests);
    free_chats(&w);
}

static void what_a_full_worker_forgot_is_predicted(void **state) {
    struct chats w = make_chats(2, 600000000);
    struct replay_options o = {
        .block_size = BLOCK_SIZE, .cache_tokens = 60000, .off_tokens = 4 * BLOCK_SIZE};
    struct replay_result r;
    (void)state;

    replay_on_engine(w.requests, w.n, &o, &r);
    print(&r);
    assert_true(r.cached_tokens < r.prompt_tokens / 2); /* much was forgotten */
    assert_in_range(r.predicted_tokens, r.cached_tokens * 97 / 100, r.cached_tokens * 103 / 100);
    assert_in_range(r.n_off, 0, r.n_requests / 100);
    free_chats(&w);
}

/* Neither side's blocks end where prompts and answers do. */
static void small_blocks_under_large_ones_are_predicted(void **state) {
    struct chats w = make_chats(4, 600000000);
    struct replay_options o = {.block_size = BLOCK_SIZE,
                               .kv_block = 4,
                               .chain_block = BLOCK_SIZE,
                               .cache_tokens = 60000,
                               .off_tokens = 4 * BLOCK_SIZE};
    struct replay_result r;
    (void)state;

    replay_on_engine(w.requests, w.n, &o, &r);
    print(&r);
    assert_in_range(r.predicted_tokens, r.cached_tokens * 99 / 100, r.cached_tokens * 101 / 100);
    assert_int_equal(r.n_off, 0);
    free_chats(&w);
}

/* The worker's own scheduler near saturation: what lacks least first answers sooner. */
static void the_least_remaining_prefill_first_answers_sooner(void **state) {
    struct chats w = make_chats(7, 600000000);
    struct replay_options o = {.block_size = BLOCK_SIZE, .cache_tokens = 200000};
    struct replay_result fcfs, srpt, steady;
    (void)state;

    for (uint32_t i = 0; i < w.n; i++)
        w.requests[i].arrival_us = w.requests[i].arrival_us * 10 / 30;
    replay_on_engine(w.requests, w.n, &o, &fcfs);
    o.policy = POLICY_SRPT;
    replay_on_engine(w.requests, w.n, &o, &srpt);
    o.itl_target_s = 0.05;
    replay_on_engine(w.requests, w.n, &o, &steady);
    print_message("busy %.2f: first token %.2f, %.2f, %.2f s; step %.3f, %.3f, %.3f s\n",
                  srpt.busy_share, fcfs.mean_ttft_s, srpt.mean_ttft_s, steady.mean_ttft_s,
                  fcfs.longest_step_s, srpt.longest_step_s, steady.longest_step_s);
    assert_true(srpt.mean_ttft_s < 0.9 * fcfs.mean_ttft_s);
    assert_true(srpt.mean_e2e_s < 1.01 * fcfs.mean_e2e_s);
    assert_true(srpt.longest_step_s > 0.09);
    assert_true(steady.mean_ttft_s > srpt.mean_ttft_s);
    assert_true(steady.prefill_rate * WORKER_PREFILL_S > 0.85);
    assert_true(steady.prefill_rate * WORKER_PREFILL_S < 1.15);
    free_chats(&w);
}

/* Coding agents: a prompt of 195,000 tokens at the median, of which each turn repeats all and adds
 * a little; twice as many agents as the worker can keep. LONG_REQUESTS=10000 for the whole
 * figure. */
#define AGENT_BLOCK  512
#define AGENT_FIRST  300 /* blocks of a first prompt */
#define AGENT_MAX    500
#define AGENT_TOKENS 4000000 /* of the worker's cache: some twenty agents */
#define N_AGENTS     40

struct agents {
    struct replay_request *requests;
    uint32_t **blocks; /* each request's; a session's turns share one */
    uint32_t n, n_blocks;
};

static struct agents make_agents(uint64_t seed, uint32_t n) {
    struct agents a = {.requests = mem_calloc(n, sizeof(*a.requests)),
                       .blocks = mem_calloc(n, sizeof(*a.blocks))};
    uint32_t *of[N_AGENTS] = {0}, length[N_AGENTS] = {0}, next_id = 1;
    struct rng r;

    rng_seed(&r, seed);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = (uint32_t)rng_below(&r, N_AGENTS);

        if (!of[s] || length[s] + 4 > AGENT_MAX) { /* a new task */
            of[s] = a.blocks[a.n_blocks++] = mem_calloc(AGENT_MAX, sizeof(*of[s]));
            for (uint32_t b = 0; b < AGENT_MAX; b++)
                of[s][b] = b < 8 ? b : next_id++;
            length[s] = AGENT_FIRST + (uint32_t)rng_below(&r, AGENT_MAX - AGENT_FIRST - 4);
        }
        length[s] += 1 + (uint32_t)rng_below(&r, 4);
        a.requests[i] = (struct replay_request){
            .n_prompt = length[s] * AGENT_BLOCK - (uint32_t)rng_below(&r, AGENT_BLOCK),
            .n_output = 1 + (uint32_t)rng_below(&r, 400),
            .blocks = of[s],
        };
        a.n++;
    }
    return a;
}

static void free_agents(struct agents *a) {
    for (uint32_t i = 0; i < a->n_blocks; i++)
        mem_free(a->blocks[i]);
    mem_free(a->blocks);
    mem_free(a->requests);
}

static uint32_t n_long_requests(void) {
    const char *given = getenv("LONG_REQUESTS");

    return given ? (uint32_t)strtoul(given, NULL, 10) : 500;
}

/* Of all requests on one worker with such a cache. */
static double work_s(const struct agents *a, uint32_t cache_tokens) {
    struct workload w = {.block_tokens = AGENT_BLOCK};
    struct workload_bound bound;

    for (uint32_t i = 0; i < a->n; i++) {
        const struct replay_request *q = &a->requests[i];
        uint32_t n_blocks = q->n_prompt / AGENT_BLOCK;
        uint64_t *chain = workload_new_chain(&w, n_blocks);

        for (uint32_t b = 0; b < n_blocks; b++)
            chain[b] = workload_name(q->blocks[b] | (uint64_t)b << 32);
        workload_add(&w, (struct workload_request){.n_prompt = q->n_prompt,
                                                   .n_output = q->n_output,
                                                   .n_blocks = n_blocks,
                                                   .chain = chain});
    }
    workload_bound(&w, cache_tokens, &bound);
    workload_bound_free(&bound);
    workload_free(&w);
    return bound.work_s;
}

static struct replay_result replay_agents(uint32_t chain_tokens, uint32_t cache_tokens,
                                          uint32_t host_tokens) {
    struct agents a = make_agents(5, n_long_requests());
    struct replay_options o = {.block_size = AGENT_BLOCK,
                               .kv_block = 16,
                               .chain_block = 64,
                               .chain_tokens = chain_tokens,
                               .cache_tokens = cache_tokens,
                               .host_tokens = host_tokens,
                               .off_tokens = 1024};
    double us = work_s(&a, cache_tokens) * 1e6 / 0.5 / a.n;
    struct replay_result r;

    for (uint32_t i = 0; i < a.n; i++)
        a.requests[i].arrival_us = (uint64_t)(us * i);
    replay_on_engine(a.requests, a.n, &o, &r);
    print(&r);
    print_message("capacity factor %.3f\n", r.capacity_factor);
    free_agents(&a);
    return r;
}

static void long_prompts_are_predicted_and_teach_no_capacity(void **state) {
    struct replay_result r = replay_agents(0, AGENT_TOKENS, 0);
    (void)state;

    assert_in_range(r.prompt_tokens / r.n_requests, 180000, 240000);
    assert_in_range(r.predicted_tokens, r.cached_tokens * 98 / 100, r.cached_tokens * 102 / 100);
    assert_true(r.capacity_factor >= 0.9 && r.capacity_factor <= 1.1);
}

static void bytes_beyond_the_chain_teach_no_capacity(void **state) {
    struct replay_result r = replay_agents(65536, AGENT_TOKENS, 0);
    (void)state;

    assert_true(r.predicted_tokens < r.cached_tokens / 2);
    assert_true(r.capacity_factor == 1);
}

/* Of the blocks that came back from host memory both tiers have one: they keep less than their
 * sum. */
static void blocks_in_host_memory_are_predicted(void **state) {
    struct replay_result r = replay_agents(0, AGENT_TOKENS / 4, AGENT_TOKENS);
    (void)state;

    assert_in_range(r.predicted_tokens, r.cached_tokens * 90 / 100, r.cached_tokens * 110 / 100);
    assert_true(r.capacity_factor >= 0.8 && r.capacity_factor <= 1.1);
}

static void equal_input_gives_equal_output(void **state) {
    struct chats w = make_chats(3, 300000000);
    struct replay_options o = {
        .block_size = BLOCK_SIZE, .cache_tokens = 60000, .off_tokens = 4 * BLOCK_SIZE};
    struct replay_result a, b;
    (void)state;

    replay_on_engine(w.requests, w.n, &o, &a);
    replay_on_engine(w.requests, w.n, &o, &b);
    assert_int_equal(a.cached_tokens, b.cached_tokens);
    assert_int_equal(a.predicted_tokens, b.predicted_tokens);
    assert_int_equal(a.n_exact, b.n_exact);
    assert_int_equal(a.worst, b.worst);
    assert_true(a.busy_share == b.busy_share);
    free_chats(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_for_all_every_hit_is_predicted),
        cmocka_unit_test(what_a_full_worker_forgot_is_predicted),
        cmocka_unit_test(long_prompts_are_predicted_and_teach_no_capacity),
        cmocka_unit_test(bytes_beyond_the_chain_teach_no_capacity),
        cmocka_unit_test(blocks_in_host_memory_are_predicted),
        cmocka_unit_test(small_blocks_under_large_ones_are_predicted),
        cmocka_unit_test(the_least_remaining_prefill_first_answers_sooner),
        cmocka_unit_test(equal_input_gives_equal_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
