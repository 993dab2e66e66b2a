/* tests/unit/router/routing/test_policies_of_caches.c - policies that know what was sent where:
 * each at, below and above its published constants. */
#include "tests/support/cm.h"
#include "tests/support/policy_fixture.h"

#define MINUTE (UINT64_C(60) * 1000000)

/* --- cache_aware ------------------------------------------------------------------------------ */

static void cache_aware_needs_more_than_0_3(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "cache_aware", 4, NULL);
    prompt(&s, 5, 30, 0, 30);
    LOADS(&s, 1, 1, 0, 1);
    assert_int_equal(choose(&s), 2);
    sent(&s, 2);
    LOADS(&s, 0, 1, 1, 1);
    prompt(&s, 5, 30, 1, 100); /* 0.30 of it: not more */
    assert_int_equal(choose(&s), 0);
    prompt(&s, 5, 30, 1, 99);
    assert_int_equal(choose(&s), 2);
    s.prompt_bytes += 1; /* beyond the chain: not counted */
    assert_int_equal(choose(&s), 2);
    prompt(&s, 5, 30, 0, 30);
    assert_int_equal(choose(&s), 2);
    policy_fixture_fini(&s);
}

static void cache_aware_balances_beyond_64_and_1_5(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "cache_aware", 3, NULL);
    prompt(&s, 5, 30, 0, 30);
    sent(&s, 2);
    LOADS(&s, 0, 1, 64); /* 64 apart: not more */
    assert_int_equal(choose(&s), 2);
    LOADS(&s, 0, 1, 65);
    assert_int_equal(choose(&s), 0);
    LOADS(&s, 130, 140, 195); /* 65 apart, 1.5 times: not more */
    assert_int_equal(choose(&s), 2);
    LOADS(&s, 130, 140, 196);
    assert_int_equal(choose(&s), 0);
    policy_fixture_fini(&s);
}

static void cache_aware_breaks_ties_by_requests_sent(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "cache_aware", 3, NULL);
    prompt(&s, 5, 30, 0, 30);
    assert_int_equal(choose(&s), 0);
    s.load.workers[0].n_sent = 2;
    s.load.workers[1].n_sent = 1;
    s.load.workers[2].n_sent = 1;
    assert_int_equal(choose(&s), 1);
    policy_fixture_fini(&s);
}

static void cache_aware_keeps_the_first_owner(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "cache_aware", 4, NULL);
    prompt(&s, 5, 30, 0, 30);
    sent(&s, 3);
    sent(&s, 1); /* while uneven */
    LOADS(&s, 0, 0, 0, 60);
    assert_int_equal(choose(&s), 3);
    worker_mask_drop(s.candidates.words, 3); /* unhealthy: the other holder */
    assert_int_equal(choose(&s), 1);
    worker_mask_drop(s.candidates.words, 1); /* both: the least loaded */
    assert_int_equal(choose(&s), 0);
    s.candidates = (struct worker_mask){{0xF}};
    s.ops->worker_down(s.policy, 3);
    assert_int_equal(choose(&s), 1);
    s.ops->worker_up(s.policy, 1, &(struct worker_spec){.identity = 9, .generation = 2});
    assert_int_equal(choose(&s), 0); /* restarted: nothing is known of it */
    policy_fixture_fini(&s);
}

static void cache_aware_remembers_max_tree_size(void **state) {
    struct policy_options o;
    struct policy_fixture s;
    (void)state;

    policy_options_default(&o);
    o.max_tree_bytes = 40 * 128;
    policy_fixture_init(&s, "cache_aware", 2, &o);
    LOADS(&s, 0, 1);
    prompt(&s, 5, 30, 0, 30);
    sent(&s, 1);
    prompt(&s, 6, 10, 0, 10);
    sent(&s, 1);
    prompt(&s, 5, 30, 0, 30);
    assert_int_equal(choose(&s), 1);
    prompt(&s, 7, 21, 0, 21); /* 21 blocks more: the deepest 21 of the first are gone */
    sent(&s, 1);
    prompt(&s, 5, 30, 0, 30);
    assert_int_equal(choose(&s), 0); /* 9 of 30 are 0.3: not more */
    prompt(&s, 5, 29, 0, 29);
    assert_int_equal(choose(&s), 1);
    policy_fixture_fini(&s);
}

/* --- hash_trie -------------------------------------------------------------------------------- */

static void hash_trie_draws_among_those_with_the_longest(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "hash_trie", 4, NULL);
    assert_int_equal(choices(&s), 0xF);
    prompt(&s, 5, 10, 0, 20);
    sent(&s, 1);
    sent(&s, 2);
    prompt(&s, 5, 10, 1, 20);
    sent(&s, 3);
    LOADS(&s, 0, 500, 500, 500); /* there is no load term */
    prompt(&s, 5, 10, 2, 20);
    assert_int_equal(choices(&s), 0xE);
    prompt(&s, 5, 10, 0, 30);
    assert_int_equal(choices(&s), 0x6);
    prompt(&s, 5, 10, 1, 20);
    assert_int_equal(choices(&s), 0x8);
    prompt(&s, 6, 10, 1, 20);
    assert_int_equal(choices(&s), 0xF);
    worker_mask_drop(s.candidates.words, 3);
    prompt(&s, 5, 10, 1, 20); /* of those that are there */
    assert_int_equal(choices(&s), 0x6);
    s.ops->worker_down(s.policy, 1);
    assert_int_equal(choices(&s), 0x4);
    policy_fixture_fini(&s);
}

static void hash_trie_has_a_least_match(void **state) {
    struct policy_options o;
    struct policy_fixture s;
    (void)state;

    policy_options_default(&o);
    o.prefix_min_match = 1280;
    policy_fixture_init(&s, "hash_trie", 4, &o);
    prompt(&s, 5, 10, 0, 20);
    sent(&s, 1);
    prompt(&s, 5, 10, 1, 20); /* 1280 bytes: enough */
    assert_int_equal(choices(&s), 0x2);
    prompt(&s, 5, 10, 0, 9); /* 1152 */
    assert_int_equal(choices(&s), 0xF);
    policy_fixture_fini(&s);
}

/* --- aibrix ----------------------------------------------------------------------------------- */

static void aibrix_picks_the_least_loaded_beyond_8(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "aibrix", 4, NULL);
    prompt(&s, 5, 20, 0, 20);
    sent(&s, 2);
    LOADS(&s, 0, 8, 5, 8); /* 8 apart: not more */
    assert_int_equal(choose(&s), 2);
    LOADS(&s, 0, 9, 5, 9);
    assert_int_equal(choose(&s), 0);
    policy_fixture_fini(&s);
}

static void aibrix_skips_workers_above_one_sigma(void **state) {
    struct policy_options o;
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "aibrix", 4, NULL);
    prompt(&s, 5, 20, 0, 20);
    sent(&s, 2);
    LOADS(&s, 3, 1, 3, 1); /* mean 2, sigma 1: at it */
    assert_int_equal(choose(&s), 2);
    LOADS(&s, 3, 1, 4, 1); /* mean 2.25, sigma 1.3: above it */
    assert_int_equal(choices(&s), 0xA);
    policy_fixture_fini(&s);
    policy_options_default(&o);
    o.aibrix_stddev_factor = 2;
    policy_fixture_init(&s, "aibrix", 4, &o);
    prompt(&s, 5, 20, 0, 20);
    sent(&s, 2);
    LOADS(&s, 3, 1, 4, 1);
    assert_int_equal(choose(&s), 2);
    policy_fixture_fini(&s);
}

static void aibrix_sorts_by_percent_then_load(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "aibrix", 4, NULL);
    prompt(&s, 5, 10, 0, 20);
    sent(&s, 0);
    sent(&s, 1);
    prompt(&s, 5, 10, 1, 20);
    sent(&s, 2);
    prompt(&s, 5, 10, 0, 20);
    LOADS(&s, 1, 0, 0, 0);
    assert_int_equal(choose(&s), 1);
    LOADS(&s, 1, 1, 0, 1);
    assert_int_equal(choices(&s), 0x3);
    prompt(&s, 5, 10, 0, 300); /* 20 of 300 and 10 of 300: 6 and 3 percent */
    assert_int_equal(choices(&s), 0x3);
    prompt(&s, 6, 10, 0, 20); /* nothing known: the least */
    assert_int_equal(choose(&s), 2);
    policy_fixture_fini(&s);
}

static void aibrix_holds_200000_blocks_of_4_bytes(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "aibrix", 2, NULL);
    LOADS(&s, 0, 1);
    prompt(&s, 5, 250, 0, 250); /* 25 prompts of 250 are the 6,250 blocks */
    sent(&s, 1);
    for (uint64_t i = 0; i < 24; i++) {
        prompt(&s, 100 + i, 250, 0, 250);
        sent(&s, 0);
    }
    prompt(&s, 5, 250, 0, 250);
    assert_int_equal(choose(&s), 1);
    prompt(&s, 99, 1, 0, 1); /* one more: the first block goes, and all behind it are lost */
    sent(&s, 0);
    prompt(&s, 5, 250, 0, 250);
    assert_int_equal(choose(&s), 0);
    policy_fixture_fini(&s);
}

static void aibrix_forgets_after_20_minutes(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "aibrix", 2, NULL);
    LOADS(&s, 0, 1);
    prompt(&s, 5, 20, 0, 20);
    s.now_us = MINUTE;
    sent(&s, 1);
    s.now_us = 21 * MINUTE;
    assert_int_equal(choose(&s), 1);
    s.now_us++;
    assert_int_equal(choose(&s), 0);
    s.prompt_bytes -= 1; /* its last block is not full: not entered */
    sent(&s, 1);
    s.prompt_bytes += 1;
    assert_int_equal(choose(&s), 1);
    policy_fixture_fini(&s);
}

/* --- prefix_scorer ---------------------------------------------------------------------------- */

static void scorer_weighs_2_2_3(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "prefix_scorer", 2, NULL);
    prompt(&s, 5, 100, 0, 100);
    s.matched[1] = 100;
    s.load.workers[1].n_pending = 50; /* queue 2 x (1 - 0) against prefix 3 x 1 */
    assert_int_equal(choose(&s), 1);
    s.load.workers[1].resident_tokens = 0.49 * s.load.workers[1].capacity_tokens;
    assert_int_equal(choose(&s), 1); /* 3 + 1.02 against 2 + 2 */
    s.load.workers[1].resident_tokens = 0.51 * s.load.workers[1].capacity_tokens;
    assert_int_equal(choose(&s), 0);
    s.load.workers[0].n_pending = 50; /* equal queues: 1 for both */
    assert_int_equal(choose(&s), 1);
    policy_fixture_fini(&s);
}

static void scorer_spans_the_queue_from_least_to_most(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "prefix_scorer", 3, NULL);
    prompt(&s, 5, 90, 0, 90);
    s.load.workers[0].n_pending = 1; /* being computed: as good as none */
    s.load.workers[1].n_pending = 4;
    s.load.workers[2].n_pending = 5;
    s.matched[1] = 45; /* 2 x 1/4 + 1.5 against 2: equal */
    assert_int_equal(choices(&s), 0x3);
    s.matched[1] = 46;
    assert_int_equal(choose(&s), 1);
    s.matched[1] = 44;
    assert_int_equal(choose(&s), 0);
    policy_fixture_fini(&s);
}

static void scorer_sees_256_blocks_of_64_bytes(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "prefix_scorer", 2, NULL);
    prompt(&s, 5, 300, 0, 300); /* 128 of our blocks are the 16,384 bytes */
    s.matched[0] = 128;
    s.matched[1] = 300;
    assert_int_equal(choices(&s), 0x3);
    s.matched[0] = 127;
    assert_int_equal(choose(&s), 1);
    s.n_blocks = 0;
    assert_int_equal(choices(&s), 0x3);
    policy_fixture_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_aware_needs_more_than_0_3),
        cmocka_unit_test(cache_aware_balances_beyond_64_and_1_5),
        cmocka_unit_test(cache_aware_breaks_ties_by_requests_sent),
        cmocka_unit_test(cache_aware_keeps_the_first_owner),
        cmocka_unit_test(cache_aware_remembers_max_tree_size),
        cmocka_unit_test(hash_trie_draws_among_those_with_the_longest),
        cmocka_unit_test(hash_trie_has_a_least_match),
        cmocka_unit_test(aibrix_picks_the_least_loaded_beyond_8),
        cmocka_unit_test(aibrix_skips_workers_above_one_sigma),
        cmocka_unit_test(aibrix_sorts_by_percent_then_load),
        cmocka_unit_test(aibrix_holds_200000_blocks_of_4_bytes),
        cmocka_unit_test(aibrix_forgets_after_20_minutes),
        cmocka_unit_test(scorer_weighs_2_2_3),
        cmocka_unit_test(scorer_spans_the_queue_from_least_to_most),
        cmocka_unit_test(scorer_sees_256_blocks_of_64_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
