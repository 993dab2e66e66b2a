/* tests/unit/router/routing/test_routing_others.c - a worker that others use too: what its events
 * count, beside an engine whose cache is a plain LRU. */
#include "common/base/mem.h"
#include "router/routing/prefix_lru.h"
#include "tests/support/cm.h"
#include "tests/support/routing_fixture.h"

static void note_stored(struct routing *r, double tokens, uint64_t now_us) {
    while (routing_note_stored(r, 0, tokens, now_us))
        routing_check(r);
}

/* The worker holds 4000 blocks of 16 tokens. What it stores of our own requests ages nothing, and
 * neither does a count that begins again. */
static void blocks_that_others_store_age_ours(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct route_ticket t = {0};
    struct prompt p = prompt_of(1, 50, 0, 50);
    struct route_request rq = request_of(&p, 9);
    (void)state;

    send(r, &p, &t, 1);
    finish(r, &t, 2);
    note_stored(r, 1616, 3); /* the prompt and its output */
    note_stored(r, 61616, 4);
    assert_int_equal(routing_known_blocks(r, &rq), 50);
    note_stored(r, 0, 5);
    note_stored(r, 1000, 6);
    assert_int_equal(routing_known_blocks(r, &rq), 50);
    note_stored(r, 4000, 7);
    assert_in_range(routing_known_blocks(r, &rq), 0, 20);
    note_stored(r, 8000, 8);
    assert_int_equal(routing_known_blocks(r, &rq), 0);
    routing_check(r);
    routing_destroy(r);
}

/* The worker stores all of a prompt while part of it has a record, and output while it grows. */
static void what_open_requests_store_is_not_taken_for_that_of_others(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(1, 50, 0, 50);
    struct route_request rq = request_of(&p, 1);
    struct route_ticket t = {0};
    struct routing_worker_stats was, is;
    (void)state;

    rq.prompt_bytes = 40000;
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
    routing_worker_stats(r, 0, 1, &was);
    note_stored(r, 10000, 2);
    routing_worker_stats(r, 0, 2, &is);
    assert_int_equal(is.n_held_blocks, was.n_held_blocks);
    finish(r, &t, 3);
    note_stored(r, 10000, 4);
    routing_worker_stats(r, 0, 4, &is);
    assert_in_range(is.n_held_blocks, 40000 / BLOCK_BYTES, 40000 / BLOCK_BYTES + 1);
    note_stored(r, 10320, 5);
    routing_worker_stats(r, 0, 5, &is);
    assert_in_range(is.n_held_blocks, 40000 / BLOCK_BYTES + 9, 40000 / BLOCK_BYTES + 11);
    routing_check(r);
    routing_destroy(r);
}

/* What was entered while no events came is not set off against what others store for ever. */
static void requests_while_no_events_come_hide_little_of_others(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct route_ticket t = {0};
    struct routing_worker_stats was, is;
    (void)state;

    for (uint64_t i = 0; i < 30; i++) {
        struct prompt p = prompt_of(i + 1, 50, 0, 50);

        send(r, &p, &t, 2 * i);
        finish(r, &t, 2 * i + 1);
    }
    routing_worker_stats(r, 0, 100, &was);
    note_stored(r, 0, 100);
    note_stored(r, 64000 / 32 + 3200, 101); /* the bound, and 100 blocks */
    routing_worker_stats(r, 0, 102, &is);
    assert_int_equal(is.n_held_blocks, was.n_held_blocks + 100);
    routing_check(r);
    routing_destroy(r);
}

static void a_cleared_cache_does_not_count_others_twice(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct routing_worker_stats s;
    (void)state;

    note_stored(r, 30000, 1);
    routing_worker_stats(r, 0, 1, &s);
    assert_int_equal(s.n_held_blocks, 30000 / 32);
    routing_forget_cache(r, 0);
    note_stored(r, 30000, 2);
    routing_worker_stats(r, 0, 2, &s);
    assert_int_equal(s.n_held_blocks, 0);
    note_stored(r, 30320, 3);
    routing_worker_stats(r, 0, 3, &s);
    assert_int_equal(s.n_held_blocks, 10);
    routing_check(r);
    routing_destroy(r);
}

/* --- an engine beside the index --------------------------------------------------------------- */

/* Conversations of up to 40 of our blocks of 32 tokens, or 80 of the engine's. Each turn is the
 * conversation so far and two to five new blocks, of which the engine then holds all. */
#define N_CONVERSATIONS 20000u
#define MOST_BLOCKS     40u
#define ENGINE_BLOCKS   2000u /* of ours: half of its own 4000 */
#define N_ACTIVE        240u
#define N_TURNS         40000u

struct engine {
    uint64_t *used; /* by conversation and block: when it was; 0: not held */
    uint32_t *ring; /* blocks in the order of use, those that were used again later included */
    uint64_t n_used, n_oldest;
    uint32_t n_held;
    double stored_tokens;
};

static void engine_use(struct engine *e, uint32_t block) {
    e->n_held += !e->used[block];
    if (!e->used[block]) e->stored_tokens += 32;
    e->used[block] = ++e->n_used;
    e->ring[e->n_used] = block;
    while (e->n_held > ENGINE_BLOCKS) {
        uint32_t oldest = e->ring[++e->n_oldest];

        if (e->used[oldest] != e->n_oldest) continue; /* used again */
        e->used[oldest] = 0;
        e->n_held--;
    }
}

static uint32_t engine_has(const struct engine *e, const uint32_t *blocks, uint32_t n) {
    uint32_t i = 0;

    while (i < n && e->used[blocks[i]])
        i++;
    return i;
}

/* Mean tokens of a prompt that were expected too much, and expected too little. */
struct faults {
    double over, under;
};

/* `direct`: of ten conversations, how many bypass the router. has_events: it counts. has_usage: the
 * answers report what was cached. */
static struct faults play(uint32_t direct, bool has_events, bool has_usage) {
    struct routing *r = fleet(1, "prefix");
    struct engine e = {
        .used = mem_calloc(N_CONVERSATIONS * MOST_BLOCKS, sizeof(*e.used)),
        .ring = mem_calloc(N_TURNS * MOST_BLOCKS, sizeof(*e.ring)),
    };
    uint32_t active[N_ACTIVE], n_blocks[N_ACTIVE] = {0}, next = N_ACTIVE, n = 0;
    struct faults f = {0, 0};
    struct rng rng;

    rng_seed(&rng, 7);
    for (uint32_t i = 0; i < N_ACTIVE; i++)
        active[i] = i;
    for (uint32_t turn = 1; turn < N_TURNS; turn++) {
        uint32_t i = (uint32_t)rng_below(&rng, N_ACTIVE), c = active[i], blocks[MOST_BLOCKS],
                 cached;
        struct prompt p = {.n = n_blocks[i] += 2 + (uint32_t)rng_below(&rng, 4)};
        struct route_ticket t = {0};
        bool is_ours = rng_at(3, c) % 10 >= direct;

        for (uint32_t k = 0; k < p.n; k++) {
            blocks[k] = c * MOST_BLOCKS + k;
            p.chain[k] = rng_at(5, blocks[k]);
        }
        cached = engine_has(&e, blocks, p.n);
        if (is_ours) {
            send(r, &p, &t, turn);
            if (turn > N_TURNS / 2) {
                f.over += 32.0 * t.matched_blocks > 32.0 * cached
                              ? 32.0 * (t.matched_blocks - cached)
                              : 0;
                f.under += cached > t.matched_blocks ? 32.0 * (cached - t.matched_blocks) : 0;
                n++;
            }
        }
        for (uint32_t k = p.n; k-- > 0;)
            engine_use(&e, blocks[k]);
        if (is_ours)
            routing_ended(
                r, &t,
                &(struct route_end){.output_tokens = 0,
                                    .now_us = turn,
                                    .feedback = {32 * p.n, has_usage ? (int64_t)32 * cached : -1}});
        if (has_events && e.n_oldest) routing_note_capacity(r, 0, 64000);
        if (has_events && turn % 5 == 0) note_stored(r, e.stored_tokens, turn);
        if (p.n + 5 <= MOST_BLOCKS && rng_below(&rng, 8)) continue;
        active[i] = next++; /* another conversation */
        n_blocks[i] = 0;
        assert_true(next < N_CONVERSATIONS);
    }
    routing_check(r);
    routing_destroy(r);
    mem_free(e.used);
    mem_free(e.ring);
    return (struct faults){f.over / n, f.under / n};
}

/* Where all come through the router, the index is never above the engine; and events make it no
 * worse than it is without, however many bypass it. */
static void events_make_no_index_worse(void **state) {
    (void)state;
    for (uint32_t direct = 0; direct <= 9; direct += 3) {
        for (int has_usage = 0; has_usage < 2; has_usage++) {
            struct faults with = play(direct, true, has_usage),
                          without = play(direct, false, has_usage);

            assert_true(with.over + with.under <= without.over + without.under + 0.5);
            if (direct == 0) assert_float_equal(with.over, 0, 0);
        }
    }
}

/* Most of what was expected too much on a worker that others use is not expected any more; where
 * answers report what was cached, that was learned before, but more slowly. */
static void events_show_what_others_evict(void **state) {
    (void)state;
    assert_true(play(6, true, false).over < play(6, false, false).over / 5);
    assert_true(play(6, true, true).over < play(6, false, true).over * 0.8);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_others_store_age_ours),
        cmocka_unit_test(what_open_requests_store_is_not_taken_for_that_of_others),
        cmocka_unit_test(requests_while_no_events_come_hide_little_of_others),
        cmocka_unit_test(a_cleared_cache_does_not_count_others_twice),
        cmocka_unit_test(events_make_no_index_worse),
        cmocka_unit_test(events_show_what_others_evict),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
