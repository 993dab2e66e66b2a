/* tests/unit/replay/test_engine_replay.c - the router's books against the engine's own, on made-up
 * conversations: a few dozen at a time, each turn the opening of the next, pauses between them. */
#include "tests/support/cm.h"

#include "common/mem.h"
#include "common/rng.h"
#include "tests/replay/engine_replay.h"

#include <stdlib.h>

#define BLOCK_SIZE 64
#define N_CHATS    300
#define TURNS_MAX  8
#define FIRST_MAX  60 /* blocks of a first prompt */
#define LATER_MAX  12 /* that a later turn adds */
#define SYSTEM     4  /* blocks that every prompt begins with */
#define BLOCKS_MAX (FIRST_MAX + TURNS_MAX * LATER_MAX)

struct workload {
    struct replay_request *requests;
    uint32_t (*blocks)[BLOCKS_MAX]; /* by chat */
    uint32_t n;
};

static int by_arrival(const void *a, const void *b) {
    const struct replay_request *x = a, *y = b;

    return (x->arrival_us > y->arrival_us) - (x->arrival_us < y->arrival_us);
}

/* Chats begin at random over the time given and pause up to two minutes between turns. */
static struct workload make_workload(uint64_t seed, uint64_t time_us) {
    struct workload w = {.requests = mem_calloc(N_CHATS * TURNS_MAX, sizeof(*w.requests)),
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

static void free_workload(struct workload *w) {
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
    struct workload w = make_workload(1, 600000000);
    struct replay_options o = {.block_size = BLOCK_SIZE, .cache_tokens = 4000000};
    struct replay_result r;
    (void)state;

    replay_on_engine(w.requests, w.n, &o, &r);
    print(&r);
    assert_true(r.cached_tokens > r.prompt_tokens / 2);
    assert_int_equal(r.n_exact, r.n_requests);
    free_workload(&w);
}

static void what_a_full_worker_forgot_is_predicted(void **state) {
    struct workload w = make_workload(2, 600000000);
    struct replay_options o = {
        .block_size = BLOCK_SIZE, .cache_tokens = 60000, .off_tokens = 4 * BLOCK_SIZE};
    struct replay_result r;
    (void)state;

    replay_on_engine(w.requests, w.n, &o, &r);
    print(&r);
    assert_true(r.cached_tokens < r.prompt_tokens / 2); /* much was forgotten */
    assert_in_range(r.predicted_tokens, r.cached_tokens * 97 / 100, r.cached_tokens * 103 / 100);
    assert_in_range(r.n_off, 0, r.n_requests / 100);
    free_workload(&w);
}

/* Neither side's blocks end where prompts and answers do. */
static void small_blocks_under_large_ones_are_predicted(void **state) {
    struct workload w = make_workload(4, 600000000);
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
    free_workload(&w);
}

static void equal_input_gives_equal_output(void **state) {
    struct workload w = make_workload(3, 300000000);
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
    free_workload(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_for_all_every_hit_is_predicted),
        cmocka_unit_test(what_a_full_worker_forgot_is_predicted),
        cmocka_unit_test(small_blocks_under_large_ones_are_predicted),
        cmocka_unit_test(equal_input_gives_equal_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
