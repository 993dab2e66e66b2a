/* tests/unit/router/routing/test_prefix_index.c - sets of workers per block, against a plain
 * matrix. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/prefix_index_internal.h"
#include "tests/support/cm.h"

/* Inserts, on the first ring of the worker. */
static bool add(struct prefix_index *x, uint64_t hash, uint32_t w) {
    uint32_t n = prefix_index_insert(x, hash, w), head = prefix_index_head(x, w, 0);
    struct prefix_record *r, *h = prefix_index_at(x, head);

    if (n == PREFIX_NONE) return false;
    r = prefix_index_at(x, n);
    r->prev = h->prev;
    r->next = head;
    prefix_index_at(x, h->prev)->next = n;
    h->prev = n;
    return true;
}

static void drop(struct prefix_index *x, uint64_t hash, uint32_t w) {
    uint32_t n = prefix_index_find(x, hash, w);
    const struct prefix_record *r = prefix_index_at(x, n);

    prefix_index_at(x, r->prev)->next = r->next;
    prefix_index_at(x, r->next)->prev = r->prev;
    prefix_index_remove(x, n);
}

static uint32_t ring_length(const struct prefix_index *x, uint32_t w) {
    uint32_t n = 0, head = prefix_index_head(x, w, 0);

    for (uint32_t e = prefix_index_at(x, head)->next; e != head; n++) {
        uint32_t next = prefix_index_at(x, e)->next;

        assert_int_equal(prefix_index_at(x, e)->worker, w);
        assert_int_equal(prefix_index_at(x, next)->prev, e);
        e = next;
    }
    return n;
}

/* The line of a block that worker 0 alone holds, and whether that is its home. */
static uint32_t line_of(const struct prefix_index *x, uint64_t hash, bool *is_home) {
    uint32_t n = prefix_index_find(x, hash, 0);

    *is_home = !prefix_index_at(x, n)->is_alt;
    return n / PREFIX_LINE - x->first_line;
}

/* The example of prefix_index_internal.h: blocks A to P are 0 to 15. */
static void the_worked_example_of_an_insert_holds(void **state) {
    static const uint8_t before[] = {1, 0, 0, 3, 1, 1, 2, 0, 0, 2, 1, 2, 2, 3, 3};
    static const uint8_t after[] = {7, 0, 0, 7, 1, 1, 2, 0, 0, 2, 1, 2, 2, 6, 7, 1};
    struct prefix_index *x = prefix_index_create_small(24, 1, 2);
    struct rng rng;
    uint64_t block[16];
    bool is_home;
    (void)state;

    rng_seed(&rng, 51);
    for (uint32_t i = 0; i < 16; i++)
        block[i] = rng_u64(&rng);
    for (uint32_t i = 0; i < 15; i++)
        assert_true(add(x, block[i], 0));
    for (uint32_t i = 0; i < 15; i++) {
        assert_int_equal(line_of(x, block[i], &is_home), before[i]);
        assert_int_equal(is_home, i != 12 && i != 13);
    }
    assert_int_equal(x->n_whole, 5);
    assert_true(add(x, block[15], 0));
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(line_of(x, block[i], &is_home), after[i]);
        assert_int_equal(is_home, i != 0 && i != 12 && i != 13);
    }
    assert_int_equal(x->n_whole, 3);
    prefix_index_check(x);
    prefix_index_destroy(x);
}

static void one_walk_gives_every_depth(void **state) {
    static const uint64_t chain[] = {11, 22, 33, 44};
    struct prefix_index *x = prefix_index_create(16, 3);
    uint64_t mask = 7;
    uint32_t depth[64] = {9, 9, 9};
    (void)state;

    for (uint32_t i = 0; i < 4; i++)
        assert_true(add(x, chain[i], 0));
    for (uint32_t i = 0; i < 2; i++)
        assert_true(add(x, chain[i], 1));
    assert_true(add(x, chain[3], 2)); /* without what comes before: no use */
    assert_int_equal(prefix_index_match(x, chain, 4, &mask, depth, NULL), 2);
    assert_int_equal(depth[0], 4);
    assert_int_equal(depth[1], 2);
    assert_int_equal(depth[2], 0);
    mask = 6; /* worker 0 is not asked about */
    depth[0] = 77;
    prefix_index_match(x, chain, 4, &mask, depth, NULL);
    assert_int_equal(depth[0], 77);
    assert_int_equal(depth[1], 2);
    prefix_index_destroy(x);
}

static void a_full_table_refuses(void **state) {
    struct prefix_index *x = prefix_index_create(5, 2);
    (void)state;

    for (uint64_t h = 1; h <= 4; h++)
        assert_true(add(x, h << 60, 0));
    assert_true(prefix_index_is_full(x));
    assert_false(add(x, 1ull << 60, 1)); /* a second worker takes two records */
    prefix_index_check(x);
    assert_true(add(x, 99, 0));
    assert_false(add(x, 98, 0));
    drop(x, 2ull << 60, 0);
    drop(x, 99, 0);
    assert_true(add(x, 1ull << 60, 1));
    assert_int_equal(x->n_used, 5);
    assert_int_equal(prefix_index_n_blocks(x), 3);
    drop(x, 1ull << 60, 0); /* and gives them back */
    assert_int_equal(x->n_used, 3);
    assert_true(prefix_index_has(x, 1ull << 60, 1));
    prefix_index_check(x);
    prefix_index_destroy(x);
}

/* To the last record, many times over: room is always found by moving others. */
static void fill(uint32_t anchor_bits) {
    enum { N = 20000 };
    struct prefix_index *x = prefix_index_create_small(N, 10, anchor_bits);
    static uint64_t hashes[N];
    uint64_t n_bytes = prefix_index_bytes_used(x);
    struct rng r;

    rng_seed(&r, 1);
    for (uint32_t i = 0; i < N; i++) {
        hashes[i] = rng_u64(&r);
        assert_true(add(x, hashes[i], i % 10));
        if (i % 500 == 0) prefix_index_check(x);
        assert_true(prefix_index_bytes_used(x) >= n_bytes);
        n_bytes = prefix_index_bytes_used(x);
    }
    assert_int_equal(x->n_used, N);
    for (uint32_t i = 0; i < 10 * N; i++) {
        uint32_t at = (uint32_t)rng_below(&r, N);

        drop(x, hashes[at], at % 10);
        hashes[at] = rng_u64(&r);
        assert_true(add(x, hashes[at], at % 10));
    }
    for (uint32_t i = 0; i < N; i++)
        assert_true(prefix_index_has(x, hashes[i], i % 10));
    for (uint32_t w = 0; w < 10; w++)
        assert_int_equal(ring_length(x, w), N / 10);
    prefix_index_check(x);
    prefix_index_destroy(x);
}

static void a_table_can_be_filled(void **state) {
    (void)state;
    fill(31); /* all its lines from the start */
}

static void a_table_grows_while_it_is_filled(void **state) {
    (void)state;
    for (uint32_t anchor_bits = 2; anchor_bits <= 12; anchor_bits += 5)
        fill(anchor_bits);
}

/* What is in use follows what is held, and is never more than what was asked for. */
static void a_small_fleet_takes_little_memory(void **state) {
    enum { N = 1000000 };
    struct prefix_index *x = prefix_index_create(N, 10);
    uint64_t first = prefix_index_bytes_used(x), most = prefix_index_bytes(N, 10);
    struct rng r;
    (void)state;

    rng_seed(&r, 7);
    assert_true(first < 600000);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(add(x, rng_u64(&r), i % 10));
        if (i == 10000) assert_int_equal(prefix_index_bytes_used(x), first);
        assert_true(prefix_index_bytes_used(x) <= MAX(first, (uint64_t)i * 16 * 8 / 3 + 65536));
    }
    assert_int_equal(prefix_index_bytes_used(x), most);
    prefix_index_destroy(x);
}

static void an_exhausted_mask_pool_refuses_the_fifth_worker(void **state) {
    struct prefix_index *x = prefix_index_create(2000, 100); /* 64 rows */
    uint32_t n_refused = 0;
    (void)state;

    for (uint64_t h = 1; h <= 70; h++) {
        for (uint32_t w = 90; w < 95; w++)
            n_refused += !add(x, h << 55, w);
    }
    assert_int_equal(n_refused, 6);
    prefix_index_check(x);
    prefix_index_destroy(x);
}

static void a_dropped_worker_matches_nothing_at_once(void **state) {
    static const uint64_t chain[] = {11, 22, 33};
    struct prefix_index *x = prefix_index_create(50, 70);
    uint64_t mask[2] = {7, 0};
    uint32_t depth[70];
    (void)state;

    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t w = 0; w + i < 3; w++)
            assert_true(add(x, chain[i], w));
    }
    prefix_index_drop(x, 0);
    prefix_index_match(x, chain, 3, mask, depth, NULL);
    assert_int_equal(depth[0], 0);
    assert_int_equal(depth[1], 2);
    assert_int_equal(depth[2], 1);
    assert_false(prefix_index_has(x, 11, 0));
    prefix_index_revive(x, prefix_index_at(x, prefix_index_find(x, 11, 0)));
    prefix_index_match(x, chain, 3, mask, depth, NULL);
    assert_int_equal(depth[0], 1); /* the other two are still dead */
    drop(x, 22, 0);
    drop(x, 33, 0);
    prefix_index_drop_done(x, 0);
    prefix_index_check(x);
    prefix_index_destroy(x);
}

static void refused_memory_is_an_answer(void **state) {
    (void)state;
    for (uint64_t i = 1; i <= 2; i++) {
        mem_fail_at(i);
        assert_null(prefix_index_create(100, 200));
        mem_fail_at(0);
    }
}

#define N_HASHES 40

/* Random inserts and erases compared with a matrix, matches with the definition. */
static void compare_with_a_matrix(uint32_t anchor_bits) {
    static const uint32_t fleets[] = {1, 5, 64, 65, 300, 1024};
    static bool has[N_HASHES][WORKERS_MAX];

    for (size_t f = 0; f < ARRAY_LEN(fleets); f++) {
        uint32_t n_workers = fleets[f];
        struct prefix_index *x =
            prefix_index_create_small(N_HASHES * (n_workers + 1), n_workers, anchor_bits);
        uint64_t hashes[N_HASHES];
        struct rng r;

        rng_seed(&r, f);
        memset(has, 0, sizeof(has));
        for (int i = 0; i < N_HASHES; i++) /* a third of them crowd one home */
            hashes[i] = i % 3 ? rng_u64(&r) : UINT64_MAX - (uint64_t)i;
        for (int step = 0; step < 60000; step++) {
            uint32_t b = (uint32_t)rng_below(&r, N_HASHES),
                     span = step / 10000 % 2 ? n_workers : MIN(n_workers, 7u);
            uint32_t w = (uint32_t)rng_below(&r, span);

            if (has[b][w])
                drop(x, hashes[b], w);
            else
                assert_true(add(x, hashes[b], w));
            has[b][w] = !has[b][w];
            assert_int_equal(prefix_index_has(x, hashes[b], w), has[b][w]);
            if (step % 100 == 0) {
                uint64_t chain[12], mask[WORKER_MASK_WORDS] = {0};
                uint32_t depth[WORKERS_MAX], pick[12], n_mask = 0, n_shared = 0;

                for (uint32_t i = 0; i < 12; i++) {
                    pick[i] = (uint32_t)rng_below(&r, N_HASHES);
                    chain[i] = hashes[pick[i]];
                }
                for (uint32_t v = 0; v < n_workers; v++) {
                    if (rng_below(&r, 3)) worker_mask_add(mask, v), n_mask++;
                }
                uint32_t got_shared = prefix_index_match(x, chain, 12, mask, depth, NULL);
                for (uint32_t i = 0; i < 12; i++) {
                    uint32_t n = 0;
                    WORKER_MASK_FOR_EACH(v, mask, CEIL_DIV(n_workers, 64u)) {
                        uint32_t d = 0;
                        while (d <= i && has[pick[d]][v])
                            d++;
                        n += d == i + 1;
                        if (i == 11) assert_int_equal(depth[v], d);
                    }
                    if (n > n_mask / 2) n_shared = i + 1;
                }
                assert_int_equal(got_shared, n_shared);
                if (step % 1000 == 0) prefix_index_check(x);
            }
        }
        for (uint32_t w = 0; w < n_workers; w++) {
            uint32_t n = 0;

            for (int i = 0; i < N_HASHES; i++)
                n += has[i][w];
            assert_int_equal(ring_length(x, w), n);
        }
        prefix_index_check(x);
        prefix_index_destroy(x);
    }
}

static void behaves_like_a_matrix(void **state) {
    (void)state;
    compare_with_a_matrix(31);
}

static void behaves_like_a_matrix_while_it_grows(void **state) {
    (void)state;
    compare_with_a_matrix(2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worked_example_of_an_insert_holds),
        cmocka_unit_test(one_walk_gives_every_depth),
        cmocka_unit_test(a_full_table_refuses),
        cmocka_unit_test(a_table_can_be_filled),
        cmocka_unit_test(a_table_grows_while_it_is_filled),
        cmocka_unit_test(a_small_fleet_takes_little_memory),
        cmocka_unit_test(an_exhausted_mask_pool_refuses_the_fifth_worker),
        cmocka_unit_test(a_dropped_worker_matches_nothing_at_once),
        cmocka_unit_test(refused_memory_is_an_answer),
        cmocka_unit_test(behaves_like_a_matrix),
        cmocka_unit_test(behaves_like_a_matrix_while_it_grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
