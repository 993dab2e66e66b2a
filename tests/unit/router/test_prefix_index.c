/* tests/unit/router/test_prefix_index.c - sets of workers per block, against a plain matrix. */
#include "tests/support/cm.h"

#include "common/mem.h"
#include "common/rng.h"
#include "router/prefix_index.h"

#include <string.h>

static void one_walk_gives_every_depth(void **state) {
    static const uint64_t chain[] = {11, 22, 33, 44};
    struct prefix_index *x = prefix_index_create(16, 3);
    uint64_t mask = 7;
    uint32_t depth[64] = {9, 9, 9};
    (void)state;

    for (uint32_t i = 0; i < 4; i++)
        assert_true(prefix_index_insert(x, chain[i], 0));
    for (uint32_t i = 0; i < 2; i++)
        assert_true(prefix_index_insert(x, chain[i], 1));
    assert_true(prefix_index_insert(x, chain[3], 2)); /* without what comes before: no use */
    assert_int_equal(prefix_index_match(x, chain, 4, &mask, depth), 2);
    assert_int_equal(depth[0], 4);
    assert_int_equal(depth[1], 2);
    assert_int_equal(depth[2], 0);
    mask = 6; /* worker 0 is not asked about */
    depth[0] = 77;
    prefix_index_match(x, chain, 4, &mask, depth);
    assert_int_equal(depth[0], 77);
    assert_int_equal(depth[1], 2);
    prefix_index_destroy(x);
}

static void a_full_table_refuses(void **state) {
    struct prefix_index *x = prefix_index_create(4, 2);
    (void)state;

    for (uint64_t h = 0; h < 4; h++)
        assert_true(prefix_index_insert(x, h << 60, 0));
    assert_false(prefix_index_insert(x, 99, 0));
    assert_true(prefix_index_insert(x, 0, 1)); /* known block: room */
    prefix_index_erase(x, 1ull << 60, 0);
    assert_true(prefix_index_insert(x, 99, 0));
    prefix_index_check(x);
    prefix_index_destroy(x);
}

static void an_exhausted_mask_pool_refuses_the_fifth_worker(void **state) {
    struct prefix_index *x = prefix_index_create(200, 100); /* 64 rows */
    uint32_t n_refused = 0;
    (void)state;

    for (uint64_t h = 1; h <= 70; h++) {
        for (uint32_t w = 90; w < 95; w++)
            n_refused += !prefix_index_insert(x, h << 55, w);
    }
    assert_int_equal(n_refused, 6);
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
static void behaves_like_a_matrix(void **state) {
    static const uint32_t fleets[] = {1, 5, 64, 65, 300, 1024};
    static bool has[N_HASHES][WORKERS_MAX];
    (void)state;

    for (size_t f = 0; f < ARRAY_LEN(fleets); f++) {
        uint32_t n_workers = fleets[f];
        struct prefix_index *x = prefix_index_create(N_HASHES, n_workers);
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
                prefix_index_erase(x, hashes[b], w);
            else
                assert_true(prefix_index_insert(x, hashes[b], w));
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
                uint32_t got_shared = prefix_index_match(x, chain, 12, mask, depth);
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
                prefix_index_check(x);
            }
        }
        prefix_index_destroy(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_walk_gives_every_depth),
        cmocka_unit_test(a_full_table_refuses),
        cmocka_unit_test(an_exhausted_mask_pool_refuses_the_fifth_worker),
        cmocka_unit_test(refused_memory_is_an_answer),
        cmocka_unit_test(behaves_like_a_matrix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
