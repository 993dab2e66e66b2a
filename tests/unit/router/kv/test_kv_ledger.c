/* tests/unit/router/kv/test_kv_ledger.c - the ledger against an array, over a million steps. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/kv/kv_ledger.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_HASHES 5000u
#define N_STEPS  1000000u

/* Hashes that an unfriendly engine would choose: they differ in the high bits alone. */
static uint64_t hash_at(uint32_t i) {
    return (uint64_t)i << 40;
}

static void blocks_held_are_those_of_the_model(void **state) {
    static uint8_t model[N_HASHES];
    struct kv_budget budget = {.max = 1u << 20};
    uint64_t n_blocks[KV_TIER_COUNT] = {0};
    struct kv_ledger l;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    kv_ledger_init(&l, &budget, rng_u64(&rng));
    for (uint32_t step = 0; step < N_STEPS; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, N_HASHES), tier = (uint32_t)rng_below(&rng, 4);
        bool had = model[i] >> tier & 1;
        /* It fills, and empties again. */
        bool is_store = rng_below(&rng, 100) < (step / 100000 % 2 ? 30 : 70);

        assert_int_equal(kv_ledger_has(&l, hash_at(i), (enum kv_tier)tier), had);
        if (is_store) {
            assert_true(kv_ledger_store(&l, hash_at(i), (enum kv_tier)tier, 16));
            n_blocks[tier] += !had;
            model[i] |= (uint8_t)(1u << tier);
        } else {
            assert_int_equal(kv_ledger_remove(&l, hash_at(i), (enum kv_tier)tier), had);
            n_blocks[tier] -= had;
            model[i] &= (uint8_t) ~(1u << tier);
        }
        if (step % 50000 == 0) kv_ledger_check(&l);
        if (step == N_STEPS / 2) {
            kv_ledger_clear(&l);
            memset(model, 0, sizeof(model));
            memset(n_blocks, 0, sizeof(n_blocks));
        }
    }
    kv_ledger_check(&l);
    for (uint32_t i = 0; i < N_HASHES; i++) { /* no phantoms, nothing missing */
        for (uint32_t tier = 0; tier < KV_TIER_COUNT; tier++)
            assert_int_equal(kv_ledger_has(&l, hash_at(i), (enum kv_tier)tier),
                             model[i] >> tier & 1);
    }
    for (uint32_t tier = 0; tier < KV_TIER_COUNT; tier++) {
        assert_int_equal(l.n_blocks[tier], n_blocks[tier]);
        assert_int_equal(l.n_tokens[tier], n_blocks[tier] * 16);
    }
    kv_ledger_fini(&l);
    assert_int_equal(budget.used, 0);
}

static void a_block_leaves_with_its_last_tier(void **state) {
    struct kv_budget budget = {.max = 1u << 20};
    struct kv_ledger l;

    (void)state;
    kv_ledger_init(&l, &budget, 1);
    assert_false(kv_ledger_has(&l, 7, KV_DEVICE));
    assert_false(kv_ledger_remove(&l, 7, KV_DEVICE));
    assert_true(kv_ledger_store(&l, 7, KV_DEVICE, 16));
    assert_true(kv_ledger_store(&l, 7, KV_HOST, 16));
    assert_true(kv_ledger_store(&l, 7, KV_HOST, 16)); /* again: nothing */
    assert_int_equal(l.n, 1);
    assert_true(kv_ledger_remove(&l, 7, KV_DEVICE));
    assert_int_equal(l.n, 1);
    assert_true(kv_ledger_has(&l, 7, KV_HOST));
    assert_true(kv_ledger_remove(&l, 7, KV_HOST));
    assert_int_equal(l.n, 0);
    kv_ledger_check(&l);
    kv_ledger_fini(&l);
}

/* The budget is for all ledgers together; a full one refuses new blocks and keeps the others. */
static void a_full_budget_refuses_blocks_and_keeps_those_held(void **state) {
    struct kv_budget budget = {.max = 3 * 16 * 1024};
    struct kv_ledger a, b;
    uint32_t n = 0;

    (void)state;
    kv_ledger_init(&a, &budget, 1);
    kv_ledger_init(&b, &budget, 2);
    while (kv_ledger_store(&a, n, KV_DEVICE, 1))
        n++;
    assert_int_equal(n, 2048 * 5 / 8);
    assert_true(kv_ledger_store(&b, 1, KV_DEVICE, 1));
    for (uint32_t i = 0; i < n; i++)
        assert_true(kv_ledger_has(&a, i, KV_DEVICE));
    assert_true(kv_ledger_store(&a, 5, KV_HOST, 1)); /* of a block that it has */
    assert_true(kv_ledger_remove(&a, 0, KV_DEVICE));
    assert_true(kv_ledger_store(&a, n, KV_DEVICE, 1)); /* in its place */
    kv_ledger_check(&a);
    kv_ledger_fini(&a);
    kv_ledger_fini(&b);
    assert_int_equal(budget.used, 0);
}

static void without_memory_blocks_are_refused(void **state) {
    struct kv_budget budget = {.max = 1u << 30};
    struct kv_ledger l;
    uint64_t n = 0;

    (void)state;
    kv_ledger_init(&l, &budget, 1);
    mem_fail_at(2);
    while (kv_ledger_store(&l, n, KV_DEVICE, 1))
        n++;
    mem_fail_at(0);
    assert_int_equal(n, 640);
    kv_ledger_check(&l);
    assert_true(kv_ledger_store(&l, n, KV_DEVICE, 1));
    kv_ledger_fini(&l);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_held_are_those_of_the_model),
        cmocka_unit_test(a_block_leaves_with_its_last_tier),
        cmocka_unit_test(a_full_budget_refuses_blocks_and_keeps_those_held),
        cmocka_unit_test(without_memory_blocks_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
