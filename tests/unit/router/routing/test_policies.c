/* tests/unit/router/routing/test_policies.c - the table of policies, and those that remember no
 * prompts: each at, below and above its published constants. */
#include <string.h>

#include "common/base/mem.h"
#include "router/routing/policy/hash_ring.h"
#include "tests/support/cm.h"
#include "tests/support/policy_fixture.h"

/* --- the table of policies -------------------------------------------------------------------- */

static void every_name_finds_its_policy(void **state) {
    uint32_t n = 0;
    (void)state;

    for (; policy_names[n]; n++) {
        const struct policy_ops *ops = policy_find(str_of(policy_names[n]));

        assert_non_null(ops);
        assert_string_equal(ops->name, policy_names[n]);
        for (uint32_t i = 0; i < n; i++)
            assert_string_not_equal(policy_names[i], policy_names[n]);
    }
    assert_true(n > 1);
}

/* --- random, power_of_two, session ------------------------------------------------------------ */

static void random_is_uniform_over_candidates(void **state) {
    struct policy_fixture s;
    uint32_t count[100] = {0};
    (void)state;

    policy_fixture_init(&s, "random", 100, NULL);
    worker_mask_drop(s.candidates.words, 7);
    for (int i = 0; i < 99000; i++)
        count[choose(&s)]++;
    for (uint32_t w = 0; w < 100; w++)
        assert_in_range(count[w], w == 7 ? 0 : 850, w == 7 ? 0 : 1150);
    policy_fixture_fini(&s);
}

static void power_of_two_takes_the_lighter_of_two(void **state) {
    struct policy_fixture s;
    uint32_t count[4] = {0};
    (void)state;

    policy_fixture_init(&s, "power_of_two", 4, NULL);
    LOADS(&s, 3, 2, 1, 0);
    for (int i = 0; i < 60000; i++)
        count[choose(&s)]++;
    assert_int_equal(count[0], 0); /* loses to each other; never drawn against itself */
    assert_in_range(count[1], 9000, 11000);
    assert_in_range(count[2], 19000, 21000);
    assert_in_range(count[3], 29000, 31000);
    s.candidates = (struct worker_mask){{1 << 0}};
    assert_int_equal(choose(&s), 0);
    LOADS(&s, 5, 5, 5, 5);
    s.candidates = (struct worker_mask){{0xF}};
    assert_int_equal(choices(&s), 0xF);
    policy_fixture_fini(&s);
}

static void a_session_stays_and_moves_alone(void **state) {
    struct policy_fixture s;
    uint32_t home[1000], n_moved = 0;
    (void)state;

    policy_fixture_init(&s, "session", 10, NULL);
    for (uint32_t i = 0; i < 1000; i++) {
        s.session_key = rng_at(1, i);
        home[i] = choose(&s);
    }
    worker_mask_drop(s.candidates.words, 4);
    for (uint32_t i = 0; i < 1000; i++) {
        s.session_key = rng_at(1, i);
        if (home[i] != 4) assert_int_equal(choose(&s), home[i]);
        n_moved += home[i] == 4;
    }
    assert_in_range(n_moved, 60, 140);
    policy_fixture_fini(&s);
}

static void a_session_is_bounded_by_factor_and_floor(void **state) {
    struct policy_fixture s;
    uint32_t home, loads[4] = {0};
    (void)state;

    policy_fixture_init(&s, "session", 4, NULL);
    s.session_key = 123;
    home = choose(&s);
    loads[home] = 32; /* mean 8: the limit is 2 x 8 + 16 */
    set_loads(&s, loads);
    assert_int_equal(choose(&s), home);
    loads[home] = 33; /* mean 8.25: 32.5 */
    set_loads(&s, loads);
    assert_int_not_equal(choose(&s), home);
    s.session_key = 0; /* no session: the least loaded, all of them in turn */
    assert_int_equal(choices(&s), 0xF & ~(1u << home));
    policy_fixture_fini(&s);
}

/* --- prefix: homes --------------------------------------------------------------------------- */

/* Two routers that share nothing see different loads. */
static void with_a_home_weight_uncached_prompts_go_home_at_any_load(void **state) {
    struct policy_options options;
    uint32_t n_moved[2] = {0};
    struct policy_fixture s;
    (void)state;

    policy_options_default(&options);
    for (int is_weighted = 0; is_weighted < 2; is_weighted++) {
        options.home_weight = is_weighted ? 4 : 0;
        policy_fixture_init(&s, "prefix", 4, &options);
        for (uint64_t i = 0; i < 200; i++) {
            uint32_t home;

            prompt(&s, i, 0, 0, 64);
            LOADS(&s, 3, 3, 3, 3);
            home = choose(&s);
            LOADS(&s, 0, 2, 4, 6);
            n_moved[is_weighted] += choose(&s) != home;
        }
        policy_fixture_fini(&s);
    }
    assert_in_range(n_moved[0], 100, 200);
    assert_int_equal(n_moved[1], 0);
}

static void a_home_weight_does_not_move_cached_prompts(void **state) {
    struct policy_options options;
    struct policy_fixture s;
    (void)state;

    policy_options_default(&options);
    options.home_weight = 4;
    policy_fixture_init(&s, "prefix", 4, &options);
    for (uint64_t i = 0; i < 50; i++) {
        prompt(&s, i, 0, 0, 64);
        s.matched[2] = 60;
        assert_int_equal(choose(&s), 2);
    }
    policy_fixture_fini(&s);
}

/* --- hash ring: chwbl, simhash ---------------------------------------------------------------- */

static void the_ring_has_256_points_a_worker(void **state) {
    struct hash_ring *ring = hash_ring_create(10, 256);
    (void)state;

    for (uint32_t w = 0; w < 10; w++) {
        hash_ring_add(ring, w, rng_at(3, w));
        hash_ring_add(ring, w, rng_at(3, w));
        hash_ring_check(ring);
        assert_int_equal(hash_ring_n_points(ring), 256 * (w + 1));
    }
    hash_ring_remove(ring, 5);
    hash_ring_remove(ring, 5);
    hash_ring_check(ring);
    hash_ring_add(ring, 6, 99); /* the id was given to another worker */
    hash_ring_check(ring);
    assert_int_equal(hash_ring_n_points(ring), 256 * 9);
    hash_ring_destroy(ring);
    for (uint64_t i = 1; i <= 3; i++) {
        mem_fail_at(i);
        ring = hash_ring_create(10, 256);
        mem_fail_at(0);
        assert_int_equal(ring != NULL, i == 3);
        hash_ring_destroy(ring);
    }
}

static void chwbl_divides_the_keys_and_moves_few(void **state) {
    struct policy_fixture s;
    uint32_t count[8] = {0}, home[4000];
    (void)state;

    policy_fixture_init(&s, "chwbl", 8, NULL);
    for (uint32_t i = 0; i < 4000; i++) {
        prompt(&s, i, 1, 0, 1);
        count[home[i] = choose(&s)]++;
    }
    for (uint32_t w = 0; w < 8; w++)
        assert_in_range(count[w], 375, 650);
    s.ops->worker_down(s.policy, 2);
    worker_mask_drop(s.candidates.words, 2);
    for (uint32_t i = 0; i < 4000; i++) {
        prompt(&s, i, 1, 0, 1);
        if (home[i] != 2) assert_int_equal(choose(&s), home[i]);
    }
    policy_fixture_fini(&s);
}

static void chwbl_keys_on_the_block_of_the_100th_byte(void **state) {
    struct policy_options o;
    struct policy_fixture s;
    uint32_t home;
    (void)state;

    policy_fixture_init(&s, "chwbl", 16, NULL);
    prompt(&s, 5, 1, 0, 10);
    home = choose(&s);
    for (uint64_t own = 1; own < 50; own++) { /* what follows block 0 does not matter */
        prompt(&s, 5, 1, own, 10);
        assert_int_equal(choose(&s), home);
    }
    policy_fixture_fini(&s);
    policy_options_default(&o);
    o.chwbl_prefix_bytes = 129; /* in block 1 */
    policy_fixture_init(&s, "chwbl", 16, &o);
    uint64_t seen = 0;
    for (uint64_t own = 0; own < 100; own++) {
        prompt(&s, 5, 1, own, 10);
        seen |= UINT64_C(1) << choose(&s);
    }
    assert_true(__builtin_popcountll(seen) > 10);
    policy_fixture_fini(&s);
}

static void chwbl_takes_up_to_1_25_times_the_mean(void **state) {
    struct policy_fixture s;
    uint32_t home, loads[4];
    (void)state;

    policy_fixture_init(&s, "chwbl", 4, NULL);
    prompt(&s, 5, 1, 0, 1);
    home = choose(&s);
    /* (total + 1) / 4 x 1.25 with total = 15 is 5 */
    for (uint32_t w = 0; w < 4; w++)
        loads[w] = w == home ? 5 : w == (home + 1) % 4 ? 4 : 3;
    set_loads(&s, loads);
    assert_int_equal(choose(&s), home);
    loads[home] = 6; /* 17 / 4 x 1.25 = 5.3 */
    set_loads(&s, loads);
    assert_int_not_equal(choose(&s), home);
    LOADS(&s, 9, 9, 9, 9); /* 37 / 4 x 1.25 = 11.6 */
    assert_int_equal(choose(&s), home);
    LOADS(&s, 0, 0, 0, 0);
    assert_int_equal(choose(&s), home);
    memset(loads, 0, sizeof(loads)); /* one request: 2 / 4 x 1.25 = 0.6 */
    loads[home] = 1;
    set_loads(&s, loads);
    assert_int_not_equal(choose(&s), home);
    policy_fixture_fini(&s);
}

static void simhash_joins_prompts_that_share_most(void **state) {
    struct policy_fixture s;
    uint32_t n_joined = 0, n_strangers = 0;
    (void)state;

    policy_fixture_init(&s, "simhash", 16, NULL);
    for (uint64_t family = 0; family < 200; family++) {
        uint32_t home;

        prompt(&s, family, 100, 0, 102);
        home = choose(&s);
        prompt(&s, family, 100, 1, 102);
        n_joined += choose(&s) == home;
        prompt(&s, family + 1000, 100, 1, 102);
        n_strangers += choose(&s) == home;
    }
    assert_in_range(n_joined, 110, 200);
    assert_in_range(n_strangers, 1, 40);
    policy_fixture_fini(&s);
}

static void simhash_counts_128_blocks(void **state) {
    struct policy_fixture s;
    (void)state;

    policy_fixture_init(&s, "simhash", 64, NULL);
    for (uint64_t family = 0; family < 50; family++) {
        uint32_t home;

        prompt(&s, family, 128, 0, 128);
        home = choose(&s);
        prompt(&s, family, 128, 1, 300);
        assert_int_equal(choose(&s), home);
    }
    policy_fixture_fini(&s);
}

/* --- all of them ------------------------------------------------------------------------------ */

static void refused_memory_is_an_answer_of_create(void **state) {
    struct policy_options o;
    (void)state;

    policy_options_default(&o);
    o.max_tree_bytes = 1 << 16;
    for (uint32_t i = 0; policy_names[i]; i++) {
        const struct policy_ops *ops = policy_find(str_of(policy_names[i]));
        bool is_refused = true;

        for (uint64_t n = 1; is_refused; n++) {
            mem_fail_at(n);
            void *policy = ops->create(&o, 8);
            mem_fail_at(0);
            is_refused = !policy;
            if (policy) ops->destroy(policy);
        }
    }
}

static void other_options_hold_from_the_next_pick_on(void **state) {
    struct policy_fixture s;
    uint32_t home, loads[4] = {0};
    (void)state;

    policy_fixture_init(&s, "session", 4, NULL);
    s.session_key = 123;
    home = choose(&s);
    loads[home] = 17;
    set_loads(&s, loads);
    assert_int_equal(choose(&s), home);
    s.options.load_floor = 0;
    s.ops->configure(s.policy, &s.options); /* the limit is 2 x 4.25 */
    assert_int_not_equal(choose(&s), home);
    s.options.max_load_factor = 4;
    s.ops->configure(s.policy, &s.options);
    assert_int_equal(choose(&s), home);
    policy_fixture_fini(&s);
}

static void every_policy_takes_other_options(void **state) {
    struct policy_options o, other;
    struct policy_fixture s;
    (void)state;

    policy_options_default(&o);
    other = o;
    other.home_weight = 1;
    other.cache_threshold = 0.9;
    other.prefix_min_match = 1000;
    other.scorer_max_blocks = other.chwbl_prefix_bytes = 1;
    other.bounded_load = 1;
    other.aibrix_imbalance_abs = 0;
    other.aibrix_ttl_ms = 1000;
    for (uint32_t i = 0; policy_names[i]; i++) {
        policy_fixture_init(&s, policy_names[i], 4, &o);
        prompt(&s, 1, 10, 2, 40);
        for (int turn = 0; turn < 4; turn++) {
            if (s.ops->configure) s.ops->configure(s.policy, turn & 1 ? &o : &other);
            assert_in_range(choose(&s), 0, 3);
        }
        policy_fixture_fini(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_finds_its_policy),
        cmocka_unit_test(random_is_uniform_over_candidates),
        cmocka_unit_test(power_of_two_takes_the_lighter_of_two),
        cmocka_unit_test(a_session_stays_and_moves_alone),
        cmocka_unit_test(a_session_is_bounded_by_factor_and_floor),
        cmocka_unit_test(with_a_home_weight_uncached_prompts_go_home_at_any_load),
        cmocka_unit_test(a_home_weight_does_not_move_cached_prompts),
        cmocka_unit_test(the_ring_has_256_points_a_worker),
        cmocka_unit_test(chwbl_divides_the_keys_and_moves_few),
        cmocka_unit_test(chwbl_keys_on_the_block_of_the_100th_byte),
        cmocka_unit_test(chwbl_takes_up_to_1_25_times_the_mean),
        cmocka_unit_test(simhash_joins_prompts_that_share_most),
        cmocka_unit_test(simhash_counts_128_blocks),
        cmocka_unit_test(refused_memory_is_an_answer_of_create),
        cmocka_unit_test(other_options_hold_from_the_next_pick_on),
        cmocka_unit_test(every_policy_takes_other_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
