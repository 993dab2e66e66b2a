/* tests/unit/router/test_policies.c - each policy at, below and above its published constants. */
#include "tests/support/cm.h"

#include "common/mem.h"
#include "common/rng.h"
#include "router/policy/block_table.h"
#include "router/policy/hash_ring.h"

#include <string.h>

#define N_MAX  300 /* blocks of a test prompt */
#define MINUTE (UINT64_C(60) * 1000000)

/* A policy with a load table whose numbers the test writes itself. */
struct stand {
    const struct policy_ops *ops;
    struct policy_options options;
    void *policy;
    struct load load;
    struct worker_mask candidates;
    uint32_t matched[WORKERS_MAX];
    uint64_t chain[N_MAX], now_us, session_key;
    uint32_t n_blocks;
    uint64_t prompt_bytes;
};

static struct worker_spec spec_of(uint32_t w) {
    return (struct worker_spec){.identity = rng_at(77, w), .generation = 1, .n_blocks = 1000};
}

static void stand_init(struct stand *s, const char *name, uint32_t n_workers,
                       const struct policy_options *options) {
    memset(s, 0, sizeof(*s));
    s->ops = policy_find(str_of(name));
    assert_non_null(s->ops);
    if (options)
        s->options = *options;
    else
        policy_options_default(&s->options);
    load_init(&s->load, n_workers);
    s->policy = s->ops->create(&s->options, n_workers);
    assert_non_null(s->policy);
    for (uint32_t w = 0; w < n_workers; w++) {
        struct worker_spec spec = spec_of(w);

        load_worker_up(&s->load, w, &spec);
        if (s->ops->worker_up) s->ops->worker_up(s->policy, w, &s->load.workers[w].spec);
        worker_mask_add(s->candidates.words, w);
    }
}

static void stand_fini(struct stand *s) {
    s->ops->destroy(s->policy);
    load_fini(&s->load);
}

/* The first n_shared of n blocks are those of every prompt of `family`. */
static void prompt(struct stand *s, uint64_t family, uint32_t n_shared, uint64_t own, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        s->chain[i] = rng_at(i < n_shared ? family : family * 1000003 + own + 1, i);
    s->n_blocks = n;
    s->prompt_bytes = n * 128ull;
}

static struct route_request request_of(const struct stand *s) {
    return (struct route_request){.chain = s->chain,
                                  .n_blocks = s->n_blocks,
                                  .prompt_bytes = s->prompt_bytes,
                                  .session_key = s->session_key,
                                  .now_us = s->now_us};
}

static uint32_t pick(struct stand *s, struct policy_term *terms) {
    struct route_request rq = request_of(s);
    struct policy_view view = {.load = &s->load,
                               .candidates = s->candidates.words,
                               .matched_blocks = s->matched,
                               .prompt_tokens = (double)s->prompt_bytes / 4 + 1,
                               .tokens_per_block = 32};
    uint32_t w = s->ops->pick(s->policy, &rq, &view, terms);

    assert_true(w < s->load.n_workers && worker_mask_has(s->candidates.words, w));
    return w;
}

static uint32_t choose(struct stand *s) {
    return pick(s, NULL);
}

/* The prompt at hand went to w. */
static void sent(struct stand *s, uint32_t w) {
    struct route_request rq = request_of(s);

    if (s->ops->sent) s->ops->sent(s->policy, &rq, w);
}

static void set_loads(struct stand *s, const uint32_t *in_flight) {
    s->load.n_open = 0;
    for (uint32_t w = 0; w < s->load.n_workers; w++)
        s->load.n_open += s->load.workers[w].in_flight = in_flight[w];
}

#define LOADS(s, ...) set_loads(s, (const uint32_t[]){__VA_ARGS__})

/* Bit w: chosen at least once in 200 choices. */
static uint64_t choices(struct stand *s) {
    uint64_t seen = 0;

    for (int i = 0; i < 200; i++)
        seen |= UINT64_C(1) << choose(s);
    return seen;
}

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
    assert_int_equal(n, 12);
}

static void defaults_are_the_published_ones(void **state) {
    struct policy_options o;
    (void)state;

    policy_options_default(&o);
    assert_float_equal(o.cache_threshold, 0.3, 0); /* smg, command line */
    assert_int_equal(o.balance_abs, 64);
    assert_float_equal(o.balance_rel, 1.5, 0);
    assert_int_equal(o.max_tree_bytes, 67108864);
    assert_float_equal(o.scorer_queue_weight, 2, 0); /* EPP, default profile */
    assert_float_equal(o.scorer_kv_weight, 2, 0);
    assert_float_equal(o.scorer_prefix_weight, 3, 0);
    assert_int_equal(o.scorer_max_blocks, 256);
    assert_float_equal(o.bounded_load, 1.25, 0); /* KubeAI: meanLoadFactor 125 */
    assert_int_equal(o.ring_replication, 256);
    assert_int_equal(o.chwbl_prefix_bytes, 100);
    assert_int_equal(o.prefix_min_match, 0);     /* production-stack */
    assert_int_equal(o.aibrix_imbalance_abs, 8); /* AIBrix, its code */
    assert_float_equal(o.aibrix_stddev_factor, 1, 0);
    assert_int_equal(o.aibrix_table_blocks, 200000);
    assert_int_equal(o.aibrix_ttl_ms, 20 * 60 * 1000);
}

/* --- random, power_of_two, session ------------------------------------------------------------ */

static void random_is_uniform_over_candidates(void **state) {
    struct stand s;
    uint32_t count[100] = {0};
    (void)state;

    stand_init(&s, "random", 100, NULL);
    worker_mask_drop(s.candidates.words, 7);
    for (int i = 0; i < 99000; i++)
        count[choose(&s)]++;
    for (uint32_t w = 0; w < 100; w++)
        assert_in_range(count[w], w == 7 ? 0 : 850, w == 7 ? 0 : 1150);
    stand_fini(&s);
}

static void power_of_two_takes_the_lighter_of_two(void **state) {
    struct stand s;
    uint32_t count[4] = {0};
    (void)state;

    stand_init(&s, "power_of_two", 4, NULL);
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
    stand_fini(&s);
}

static void a_session_stays_and_moves_alone(void **state) {
    struct stand s;
    uint32_t home[1000], n_moved = 0;
    (void)state;

    stand_init(&s, "session", 10, NULL);
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
    stand_fini(&s);
}

static void a_session_is_bounded_by_factor_and_floor(void **state) {
    struct stand s;
    uint32_t home, loads[4] = {0};
    (void)state;

    stand_init(&s, "session", 4, NULL);
    s.session_key = 123;
    home = choose(&s);
    loads[home] = 32; /* mean 8: the limit is 2 x 8 + 16 */
    set_loads(&s, loads);
    assert_int_equal(choose(&s), home);
    loads[home] = 33; /* mean 8.25: 32.5 */
    set_loads(&s, loads);
    assert_int_not_equal(choose(&s), home);
    s.session_key = 0; /* nobody's: the least loaded, all of them in turn */
    assert_int_equal(choices(&s), 0xF & ~(1u << home));
    stand_fini(&s);
}

/* --- hash ring: chwbl, simhash ----------------------------------------------------------------- */

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
    struct stand s;
    uint32_t count[8] = {0}, home[4000];
    (void)state;

    stand_init(&s, "chwbl", 8, NULL);
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
    stand_fini(&s);
}

static void chwbl_keys_on_the_block_of_the_100th_byte(void **state) {
    struct policy_options o;
    struct stand s;
    uint32_t home;
    (void)state;

    stand_init(&s, "chwbl", 16, NULL);
    prompt(&s, 5, 1, 0, 10);
    home = choose(&s);
    for (uint64_t own = 1; own < 50; own++) { /* what follows block 0 does not matter */
        prompt(&s, 5, 1, own, 10);
        assert_int_equal(choose(&s), home);
    }
    stand_fini(&s);
    policy_options_default(&o);
    o.chwbl_prefix_bytes = 129; /* in block 1 */
    stand_init(&s, "chwbl", 16, &o);
    uint64_t seen = 0;
    for (uint64_t own = 0; own < 100; own++) {
        prompt(&s, 5, 1, own, 10);
        seen |= UINT64_C(1) << choose(&s);
    }
    assert_true(__builtin_popcountll(seen) > 10);
    stand_fini(&s);
}

static void chwbl_takes_up_to_1_25_times_the_mean(void **state) {
    struct stand s;
    uint32_t home, loads[4];
    (void)state;

    stand_init(&s, "chwbl", 4, NULL);
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
    stand_fini(&s);
}

static void simhash_joins_prompts_that_share_most(void **state) {
    struct stand s;
    uint32_t n_joined = 0, n_strangers = 0;
    (void)state;

    stand_init(&s, "simhash", 16, NULL);
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
    stand_fini(&s);
}

static void simhash_counts_128_blocks(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "simhash", 64, NULL);
    for (uint64_t family = 0; family < 50; family++) {
        uint32_t home;

        prompt(&s, family, 128, 0, 128);
        home = choose(&s);
        prompt(&s, family, 128, 1, 300);
        assert_int_equal(choose(&s), home);
    }
    stand_fini(&s);
}

/* --- cache_aware ------------------------------------------------------------------------------ */

static void cache_aware_needs_more_than_0_3(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "cache_aware", 4, NULL);
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
    stand_fini(&s);
}

static void cache_aware_balances_beyond_64_and_1_5(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "cache_aware", 3, NULL);
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
    stand_fini(&s);
}

static void cache_aware_breaks_ties_by_requests_sent(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "cache_aware", 3, NULL);
    prompt(&s, 5, 30, 0, 30);
    assert_int_equal(choose(&s), 0);
    s.load.workers[0].n_sent = 2;
    s.load.workers[1].n_sent = 1;
    s.load.workers[2].n_sent = 1;
    assert_int_equal(choose(&s), 1);
    stand_fini(&s);
}

static void cache_aware_keeps_the_first_owner(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "cache_aware", 4, NULL);
    prompt(&s, 5, 30, 0, 30);
    sent(&s, 3);
    sent(&s, 1); /* while uneven, say */
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
    stand_fini(&s);
}

static void cache_aware_remembers_max_tree_size(void **state) {
    struct policy_options o;
    struct stand s;
    (void)state;

    policy_options_default(&o);
    o.max_tree_bytes = 40 * 128;
    stand_init(&s, "cache_aware", 2, &o);
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
    stand_fini(&s);
}

/* --- hash_trie -------------------------------------------------------------------------------- */

static void hash_trie_draws_among_those_with_the_longest(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "hash_trie", 4, NULL);
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
    stand_fini(&s);
}

static void hash_trie_has_a_least_match(void **state) {
    struct policy_options o;
    struct stand s;
    (void)state;

    policy_options_default(&o);
    o.prefix_min_match = 1280;
    stand_init(&s, "hash_trie", 4, &o);
    prompt(&s, 5, 10, 0, 20);
    sent(&s, 1);
    prompt(&s, 5, 10, 1, 20); /* 1280 bytes: enough */
    assert_int_equal(choices(&s), 0x2);
    prompt(&s, 5, 10, 0, 9); /* 1152 */
    assert_int_equal(choices(&s), 0xF);
    stand_fini(&s);
}

/* --- aibrix ----------------------------------------------------------------------------------- */

static void aibrix_asks_only_the_least_beyond_8(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "aibrix", 4, NULL);
    prompt(&s, 5, 20, 0, 20);
    sent(&s, 2);
    LOADS(&s, 0, 8, 5, 8); /* 8 apart: not more */
    assert_int_equal(choose(&s), 2);
    LOADS(&s, 0, 9, 5, 9);
    assert_int_equal(choose(&s), 0);
    stand_fini(&s);
}

static void aibrix_passes_over_who_is_above_one_sigma(void **state) {
    struct policy_options o;
    struct stand s;
    (void)state;

    stand_init(&s, "aibrix", 4, NULL);
    prompt(&s, 5, 20, 0, 20);
    sent(&s, 2);
    LOADS(&s, 3, 1, 3, 1); /* mean 2, sigma 1: at it */
    assert_int_equal(choose(&s), 2);
    LOADS(&s, 3, 1, 4, 1); /* mean 2.25, sigma 1.3: above it */
    assert_int_equal(choices(&s), 0xA);
    stand_fini(&s);
    policy_options_default(&o);
    o.aibrix_stddev_factor = 2;
    stand_init(&s, "aibrix", 4, &o);
    prompt(&s, 5, 20, 0, 20);
    sent(&s, 2);
    LOADS(&s, 3, 1, 4, 1);
    assert_int_equal(choose(&s), 2);
    stand_fini(&s);
}

static void aibrix_sorts_by_percent_then_load(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "aibrix", 4, NULL);
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
    stand_fini(&s);
}

static void aibrix_holds_200000_blocks_of_4_bytes(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "aibrix", 2, NULL);
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
    stand_fini(&s);
}

static void aibrix_forgets_after_20_minutes(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "aibrix", 2, NULL);
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
    stand_fini(&s);
}

/* --- prefix_scorer ---------------------------------------------------------------------------- */

static void scorer_weighs_2_2_3(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "prefix_scorer", 2, NULL);
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
    stand_fini(&s);
}

static void scorer_spans_the_queue_from_least_to_most(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "prefix_scorer", 3, NULL);
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
    stand_fini(&s);
}

static void scorer_sees_256_blocks_of_64_bytes(void **state) {
    struct stand s;
    (void)state;

    stand_init(&s, "prefix_scorer", 2, NULL);
    prompt(&s, 5, 300, 0, 300); /* 128 of our blocks are the 16,384 bytes */
    s.matched[0] = 128;
    s.matched[1] = 300;
    assert_int_equal(choices(&s), 0x3);
    s.matched[0] = 127;
    assert_int_equal(choose(&s), 1);
    s.n_blocks = 0;
    assert_int_equal(choices(&s), 0x3);
    stand_fini(&s);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_finds_its_policy),
        cmocka_unit_test(defaults_are_the_published_ones),
        cmocka_unit_test(random_is_uniform_over_candidates),
        cmocka_unit_test(power_of_two_takes_the_lighter_of_two),
        cmocka_unit_test(a_session_stays_and_moves_alone),
        cmocka_unit_test(a_session_is_bounded_by_factor_and_floor),
        cmocka_unit_test(the_ring_has_256_points_a_worker),
        cmocka_unit_test(chwbl_divides_the_keys_and_moves_few),
        cmocka_unit_test(chwbl_keys_on_the_block_of_the_100th_byte),
        cmocka_unit_test(chwbl_takes_up_to_1_25_times_the_mean),
        cmocka_unit_test(simhash_joins_prompts_that_share_most),
        cmocka_unit_test(simhash_counts_128_blocks),
        cmocka_unit_test(cache_aware_needs_more_than_0_3),
        cmocka_unit_test(cache_aware_balances_beyond_64_and_1_5),
        cmocka_unit_test(cache_aware_breaks_ties_by_requests_sent),
        cmocka_unit_test(cache_aware_keeps_the_first_owner),
        cmocka_unit_test(cache_aware_remembers_max_tree_size),
        cmocka_unit_test(hash_trie_draws_among_those_with_the_longest),
        cmocka_unit_test(hash_trie_has_a_least_match),
        cmocka_unit_test(aibrix_asks_only_the_least_beyond_8),
        cmocka_unit_test(aibrix_passes_over_who_is_above_one_sigma),
        cmocka_unit_test(aibrix_sorts_by_percent_then_load),
        cmocka_unit_test(aibrix_holds_200000_blocks_of_4_bytes),
        cmocka_unit_test(aibrix_forgets_after_20_minutes),
        cmocka_unit_test(scorer_weighs_2_2_3),
        cmocka_unit_test(scorer_spans_the_queue_from_least_to_most),
        cmocka_unit_test(scorer_sees_256_blocks_of_64_bytes),
        cmocka_unit_test(refused_memory_is_an_answer_of_create),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
