/* tests/unit/router/routing/test_prefix_lru_carry.c - what is carried over is held again, in the
 * same order. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/prefix_lru.h"
#include "tests/support/cm.h"

#define N_RECORDS 60000 /* whose names have all 44 bits */
#define N_CHAINS  40
#define CHAIN     24

struct books {
    struct prefix_index *index;
    struct prefix_lru *lru;
};

static struct books books_open(uint32_t n_workers, uint64_t capacity) {
    struct books b = {.index = prefix_index_create(N_RECORDS, n_workers)};

    b.lru = prefix_lru_create(b.index, n_workers);
    for (uint32_t w = 0; w < n_workers; w++)
        prefix_lru_set_capacity(b.lru, w, capacity);
    return b;
}

static void books_close(struct books *b) {
    prefix_lru_check(b->lru);
    prefix_lru_destroy(b->lru);
    prefix_index_destroy(b->index);
}

/* Chain c of a family: half of it is that of the family's others. */
static void chain_of(uint64_t c, uint64_t chain[CHAIN]) {
    for (uint32_t i = 0; i < CHAIN; i++)
        chain[i] = rng_at(i < CHAIN / 2 ? c / 4 : 1000 + c, i) & ~UINT64_C(0xFFFF);
}

static uint32_t depth_of(const struct books *b, uint32_t w, uint64_t c) {
    uint64_t chain[CHAIN], mask = UINT64_C(1) << w;
    uint32_t depth[64];

    chain_of(c, chain);
    prefix_index_match(b->index, chain, CHAIN, &mask, depth, NULL);
    return depth[w];
}

static uint32_t device_depth_of(const struct books *b, uint32_t w, uint64_t c) {
    uint64_t chain[CHAIN];

    chain_of(c, chain);
    return prefix_lru_on_device(b->lru, w, chain, depth_of(b, w, c), NULL);
}

static void serve(struct books *b, uint32_t w, uint64_t c, uint32_t n, uint32_t n_output) {
    uint64_t chain[CHAIN];

    chain_of(c, chain);
    assert_int_equal(prefix_lru_sent(b->lru, w, chain, n, NULL), n);
    prefix_lru_ended(b->lru, w, chain, n, NULL, n_output);
}

/* All items of a worker, in pieces of `max`. */
static uint32_t walk_all(const struct books *b, uint32_t w, uint32_t max, uint64_t *items,
                         uint32_t room) {
    struct prefix_walk walk = {0};
    uint32_t n = 0, got;

    while ((got = prefix_lru_walk(b->lru, w, &walk, items + n, max)) > 0) {
        n += got;
        assert_true(n + max <= room);
    }
    return n;
}

static void same_matches(const struct books *a, const struct books *b, uint32_t n_workers) {
    for (uint32_t w = 0; w < n_workers; w++) {
        assert_int_equal(prefix_lru_n_held(a->lru, w), prefix_lru_n_held(b->lru, w));
        assert_int_equal(prefix_lru_n_below(a->lru, w), prefix_lru_n_below(b->lru, w));
        for (uint64_t c = 0; c < N_CHAINS; c++) {
            assert_int_equal(depth_of(a, w, c), depth_of(b, w, c));
            assert_int_equal(device_depth_of(a, w, c), device_depth_of(b, w, c));
        }
    }
}

/* Whatever the pieces; and then both forget alike, which shows their order. n_below: a second list,
 * and no runs of output, which go there whole. */
static void carry_and_compare(uint64_t n_below) {
    enum { N_WORKERS = 3, ROOM = 40000 };
    uint64_t *items = mem_calloc(ROOM, sizeof(*items));

    for (uint64_t round = 0; round < 60; round++) {
        struct books a = books_open(N_WORKERS, 700), b = books_open(N_WORKERS, 700);
        struct rng rng;

        for (uint32_t w = 0; w < N_WORKERS; w++) {
            prefix_lru_set_capacity(a.lru, w, 700 - n_below);
            prefix_lru_set_capacity(b.lru, w, 700 - n_below);
            prefix_lru_set_below(a.lru, w, n_below, false);
            prefix_lru_set_below(b.lru, w, n_below, false);
        }
        rng_seed(&rng, round);
        for (int i = 0; i < 200; i++) {
            serve(&a, (uint32_t)rng_below(&rng, N_WORKERS), rng_below(&rng, N_CHAINS),
                  1 + (uint32_t)rng_below(&rng, CHAIN), (uint32_t)rng_below(&rng, n_below ? 1 : 5));
        }
        for (uint32_t w = 0; w < N_WORKERS; w++) {
            uint32_t max = 2 + (uint32_t)rng_below(&rng, 90);
            uint32_t n = walk_all(&a, w, max, items, ROOM);

            for (uint32_t i = 0; i < n; i += MIN(n - i, 37u)) {
                uint32_t piece = MIN(n - i, 37u);

                assert_int_equal(prefix_lru_restore(b.lru, w, items + i, piece), piece);
            }
        }
        prefix_lru_check(b.lru);
        same_matches(&a, &b, N_WORKERS);
        for (uint64_t capacity = 600; capacity; capacity /= 2) {
            for (uint32_t w = 0; w < N_WORKERS; w++) {
                for (int i = 0; i < 20; i++) { /* an event takes no more than so many */
                    prefix_lru_set_capacity(a.lru, w, capacity);
                    prefix_lru_set_capacity(b.lru, w, capacity);
                }
            }
            same_matches(&a, &b, N_WORKERS);
        }
        books_close(&a);
        books_close(&b);
    }
    mem_free(items);
}

static void carried_blocks_are_held_and_evicted_as_before(void **state) {
    (void)state;
    carry_and_compare(0);
}

static void both_lists_are_carried_over(void **state) {
    (void)state;
    carry_and_compare(300);
    carry_and_compare(650);
}

/* The successor has evicted blocks of its own by then, which are younger. */
static void what_is_carried_enters_below_what_is_there(void **state) {
    struct books a = books_open(1, 2 * CHAIN), b = books_open(1, CHAIN);
    uint64_t items[256];
    uint32_t n;

    (void)state;
    prefix_lru_set_below(b.lru, 0, 2 * CHAIN, true);
    serve(&a, 0, 0, CHAIN, 0);
    serve(&a, 0, 8, CHAIN, 0);
    n = walk_all(&a, 0, 100, items, ARRAY_LEN(items));
    serve(&b, 0, 16, CHAIN, 0);
    serve(&b, 0, 24, CHAIN, 0);
    assert_int_equal(prefix_lru_restore(b.lru, 0, items, n), CHAIN); /* then it is full */
    assert_int_equal(depth_of(&b, 0, 8), CHAIN);
    assert_int_equal(device_depth_of(&b, 0, 8), 0);
    prefix_lru_set_below(b.lru, 0, CHAIN, true);
    assert_int_equal(depth_of(&b, 0, 8), 0);
    assert_int_equal(depth_of(&b, 0, 16), CHAIN);
    books_close(&a);
    books_close(&b);
}

/* Blocks fall from the device while the walk is under way: it goes on behind them. */
static void a_walk_follows_blocks_below(void **state) {
    struct books a = books_open(1, 4 * CHAIN), b = books_open(1, 100 * CHAIN);
    struct prefix_walk walk = {0};
    uint64_t items[2048];
    uint32_t n = 0, got;

    (void)state;
    prefix_lru_set_below(a.lru, 0, 100 * CHAIN, false);
    for (uint64_t c = 0; c < 10; c++)
        serve(&a, 0, 4 * c, CHAIN, 0);
    for (uint64_t c = 10; (got = prefix_lru_walk(a.lru, 0, &walk, items + n, 32)) > 0; c++) {
        n += got;
        assert_true(n + 32 <= ARRAY_LEN(items));
        serve(&a, 0, 4 * c, CHAIN, 0);
    }
    assert_true(n <= 11 * CHAIN); /* nothing twice */
    assert_int_equal(prefix_lru_restore(b.lru, 0, items, n), n);
    for (uint64_t c = 0; c < 10; c++)
        assert_int_equal(depth_of(&b, 0, 4 * c), CHAIN);
    books_close(&a);
    books_close(&b);
}

/* Open requests count as youngest, and what they alone use is not lost. */
static void blocks_in_use_are_carried_over_first(void **state) {
    struct books a = books_open(1, 1000), b = books_open(1, 1000);
    uint64_t chain[CHAIN], items[256];
    uint32_t n;

    (void)state;
    serve(&a, 0, 0, CHAIN, 2);
    chain_of(9, chain);
    assert_int_equal(prefix_lru_sent(a.lru, 0, chain, CHAIN, NULL), CHAIN);
    n = walk_all(&a, 0, 16, items, ARRAY_LEN(items));
    assert_int_equal(prefix_lru_restore(b.lru, 0, items, n), n);
    assert_int_equal(depth_of(&b, 0, 9), CHAIN);
    prefix_lru_set_capacity(b.lru, 0, CHAIN);
    assert_int_equal(depth_of(&b, 0, 0), 0);
    assert_int_equal(depth_of(&b, 0, 9), CHAIN);
    prefix_lru_ended(a.lru, 0, chain, CHAIN, NULL, 0);
    books_close(&a);
    books_close(&b);
}

/* The walk goes on while blocks are used, forgotten and entered: it ends, and misses little. */
static void a_walk_bears_requests_between_its_pieces(void **state) {
    enum { ROOM = 40000 };
    uint64_t *items = mem_calloc(ROOM, sizeof(*items));

    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        struct books a = books_open(2, 800), b = books_open(2, 800);
        struct prefix_walk walk = {0};
        uint32_t n = 0, got, n_known = 0, n_carried = 0;
        struct rng rng;

        rng_seed(&rng, 77 + round);
        for (int i = 0; i < 150; i++)
            serve(&a, (uint32_t)rng_below(&rng, 2), rng_below(&rng, N_CHAINS), CHAIN, 3);
        while ((got = prefix_lru_walk(a.lru, 0, &walk, items + n, 64)) > 0) {
            n += got;
            assert_true(n + 64 <= ROOM);
            serve(&a, (uint32_t)rng_below(&rng, 2), rng_below(&rng, N_CHAINS), CHAIN, 3);
        }
        (void)prefix_lru_restore(b.lru, 0, items, n);
        prefix_lru_check(b.lru);
        for (uint64_t c = 0; c < N_CHAINS; c++) {
            n_known += depth_of(&a, 0, c);
            n_carried += MIN(depth_of(&a, 0, c), depth_of(&b, 0, c));
        }
        assert_true(n_carried * 10 >= n_known * 7); /* 13 pieces of chaos, a chain in use at each */
        books_close(&a);
        books_close(&b);
    }
    mem_free(items);
}

/* Who has sent before the snapshot came keeps what is younger; what is full takes no more. */
static void blocks_already_held_are_younger(void **state) {
    struct books a = books_open(1, 1000), b = books_open(1, 3 * CHAIN);
    uint64_t items[256];
    uint32_t n;

    (void)state;
    for (uint64_t c = 0; c < 32; c += 8)
        serve(&a, 0, c, CHAIN, 0);
    n = walk_all(&a, 0, 100, items, ARRAY_LEN(items));
    assert_int_equal(n, 4 * CHAIN);
    serve(&b, 0, 16, CHAIN, 0);
    serve(&b, 0, 36, CHAIN, 0);
    assert_int_equal(prefix_lru_restore(b.lru, 0, items, n), CHAIN);
    assert_int_equal(depth_of(&b, 0, 24), CHAIN); /* the youngest that fitted */
    prefix_lru_set_capacity(b.lru, 0, 2 * CHAIN);
    assert_int_equal(depth_of(&b, 0, 24), 0);
    assert_int_equal(depth_of(&b, 0, 16), CHAIN);
    books_close(&a);
    books_close(&b);
}

static void a_name_stands_for_its_block_and_for_no_other(void **state) {
    struct books b = books_open(2, 100000);

    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t hash = rng_at(5, i);
        uint32_t w = (uint32_t)(i % 2), e;

        assert_int_equal(prefix_lru_sent(b.lru, w, &hash, 1, NULL), 1);
        if (i % 3 == 0) assert_int_equal(prefix_lru_sent(b.lru, 1 - w, &hash, 1, NULL), 1);
        e = prefix_index_find(b.index, hash, w);
        assert_true((prefix_index_name(b.index, e) & 0xFFFFF) == 0);
        assert_int_equal(
            prefix_index_find(b.index, prefix_index_hash_named(prefix_index_name(b.index, e)), w),
            e);
    }
    prefix_lru_drop_worker(b.lru, 0);
    prefix_lru_drop_worker(b.lru, 1);
    books_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(carried_blocks_are_held_and_evicted_as_before),
        cmocka_unit_test(both_lists_are_carried_over),
        cmocka_unit_test(what_is_carried_enters_below_what_is_there),
        cmocka_unit_test(a_walk_follows_blocks_below),
        cmocka_unit_test(blocks_in_use_are_carried_over_first),
        cmocka_unit_test(a_walk_bears_requests_between_its_pieces),
        cmocka_unit_test(blocks_already_held_are_younger),
        cmocka_unit_test(a_name_stands_for_its_block_and_for_no_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
