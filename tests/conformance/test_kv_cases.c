/* tests/conformance/test_kv_cases.c - numbered cases of what the KV manager keeps and finds: one
 * full-attention group, blocks of 16 tokens, 11 blocks with the null block (ids from 1) by default.
 * Where the two free orders give other ids or queues, a case runs under both. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"

#define COMMON_TOKENS 48 /* ids 0..47: three full blocks */
#define OTHER         1000

static const enum free_order both_orders[2] = {FREE_ORDER_CLASSIC, FREE_ORDER_FRESH_FIRST};

static const char *by_order(enum free_order order, const char *classic, const char *fresh_first) {
    return order == FREE_ORDER_CLASSIC ? classic : fresh_first;
}

static struct kv_manager *make(uint32_t n_blocks, uint32_t block_size, enum free_order order) {
    struct kv_manager_config config = kv_fixture_config(n_blocks, block_size);

    config.order = order;
    return kv_manager_create(&config);
}

/* n_common tokens that others have too, then n_own that start at `own`. */
static void request(struct kv_req *r, struct kv_manager *mgr, uint32_t n_common, uint32_t own,
                    uint32_t n_own) {
    kv_req_init(r, mgr, NULL, false);
    kv_req_append_run(r, 0, n_common);
    kv_req_append_run(r, own, n_own);
}

static const struct block_hash *hash_of(const struct kv_req *r, uint32_t index) {
    return prefix_cache_hash(block_pool_cache(kv_manager_pool(r->mgr)), r->seq.table[0].ids[index]);
}

static uint32_t n_free(const struct kv_manager *mgr) {
    return block_pool_n_free(kv_manager_pool(mgr));
}

static uint32_t n_keys(const struct kv_manager *mgr) {
    return block_pool_cache(kv_manager_pool(mgr))->n_keys;
}

static void run_case_20(enum free_order order) {
    struct kv_manager *mgr = make(11, 16, order);
    struct kv_req r0, r1, r2, r3;

    request(&r0, mgr, COMMON_TOKENS, OTHER, 7);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(r0.n_hit, 0);
    assert_string_equal(kv_text_table(&r0, 0), "1 2 3 4");
    assert_string_equal(kv_text_refs(&r0), "1 1 1 1");
    for (uint32_t i = 0; i < 3; i++) {
        assert_memory_equal(hash_of(&r0, i), &r0.seq.hashes[i], sizeof(struct block_hash));
    }
    assert_null(hash_of(&r0, 3));

    request(&r1, mgr, COMMON_TOKENS, 2 * OTHER, 5);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 48);
    assert_string_equal(kv_text_table(&r1, 0), "1 2 3 5");
    assert_string_equal(kv_text_refs(&r1), "2 2 2 1");
    assert_int_equal(n_free(mgr), 5);
    kv_manager_check(mgr);

    kv_req_done(&r0);
    kv_req_done(&r1);
    assert_string_equal(kv_text_queue(mgr, 0),
                        by_order(order, "6 7 8 9 10 4 5 3 2 1", "5 4 6 7 8 9 10 3 2 1"));
    request(&r2, mgr, COMMON_TOKENS, 3 * OTHER, 6);
    assert_int_equal(kv_req_admit(&r2), ST_OK);
    assert_int_equal(r2.n_hit, 48);
    assert_string_equal(kv_text_table(&r2, 0), by_order(order, "1 2 3 6", "1 2 3 5"));
    assert_int_equal(n_free(mgr), 6);
    kv_req_done(&r2);
    kv_manager_check(mgr);

    request(&r3, mgr, 0, 4 * OTHER, 160);
    assert_int_equal(kv_req_admit(&r3), ST_OK);
    assert_int_equal(r3.n_hit, 0);
    assert_string_equal(kv_text_table(&r3, 0),
                        by_order(order, "7 8 9 10 4 5 6 3 2 1", "5 4 6 7 8 9 10 3 2 1"));
    assert_int_equal(n_free(mgr), 0);
    assert_true(kv_manager_usage(mgr) == 1.0);
    kv_manager_check(mgr);
    kv_req_done(&r3);
    kv_manager_destroy(mgr);
}

static void case_20_prefill_hit_free_reuse(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        run_case_20(both_orders[i]);
}

static void run_case_21(enum free_order order) {
    struct kv_manager *mgr = make(11, 16, order);
    struct kv_req r0, r1, r2;

    kv_req_init(&r0, mgr, NULL, true);
    kv_req_append_run(&r0, 0, COMMON_TOKENS + 7);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(r0.n_hit, 0);
    request(&r1, mgr, COMMON_TOKENS, 2 * OTHER, 5);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 48);
    kv_req_done(&r1);

    kv_req_init(&r2, mgr, NULL, true);
    kv_req_append_run(&r2, 0, COMMON_TOKENS + 6);
    assert_int_equal(kv_req_admit(&r2), ST_OK);
    assert_int_equal(r2.n_hit, 0);
    assert_string_equal(kv_text_refs(&r2), "1 1 1 1");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_not_equal(r2.seq.table[0].ids[i], r0.seq.table[0].ids[i]);
        assert_memory_equal(hash_of(&r2, i), hash_of(&r0, i), sizeof(struct block_hash));
    }
    kv_manager_check(mgr);
    kv_req_done(&r0);
    kv_req_done(&r2);
    kv_manager_destroy(mgr);
}

static void case_21_prompt_logprobs_store_and_do_not_read(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        run_case_21(both_orders[i]);
}

static void case_22_decode(void **state) {
    struct kv_manager *mgr = make(11, 16, FREE_ORDER_FRESH_FIRST);
    struct kv_req r;

    (void)state;
    request(&r, mgr, 55, 0, 0);
    assert_int_equal(kv_req_admit(&r), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 4);
    kv_req_append_run(&r, 2 * OTHER, 4);
    assert_int_equal(kv_req_advance(&r, 4), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 4);
    assert_null(hash_of(&r, 3));
    kv_req_append_run(&r, 3 * OTHER, 19);
    assert_int_equal(kv_req_advance(&r, 19), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 5);
    assert_non_null(hash_of(&r, 3));
    assert_null(hash_of(&r, 4));
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void run_case_23(enum free_order order) {
    struct kv_manager *mgr = make(11, 16, order);
    struct kv_req r0, r1, r2;

    request(&r0, mgr, 87, 0, 0);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(r0.seq.table[0].n_blocks, 6);
    request(&r1, mgr, 0, OTHER, 48);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.seq.table[0].n_blocks, 3);
    assert_int_equal(n_free(mgr), 1);
    kv_req_done(&r0);
    assert_string_equal(kv_text_queue(mgr, 0), by_order(order, "10 6 5 4 3 2 1", "6 10 5 4 3 2 1"));
    kv_req_done(&r1);
    assert_string_equal(kv_text_queue(mgr, 0),
                        by_order(order, "10 6 5 4 3 2 1 9 8 7", "6 10 5 4 3 2 1 9 8 7"));
    request(&r2, mgr, 35, 0, 0);
    assert_int_equal(kv_req_admit(&r2), ST_OK);
    assert_int_equal(r2.n_hit, 32);
    assert_string_equal(kv_text_table(&r2, 0), by_order(order, "1 2 10", "1 2 6"));
    assert_int_equal(n_free(mgr), 7);
    kv_manager_check(mgr);
    kv_req_done(&r2);
    kv_manager_destroy(mgr);
}

static void case_23_eviction_order(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        run_case_23(both_orders[i]);
}

static void case_24_reuse_clears_the_hash(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kv_manager *mgr = make(2, 16, both_orders[i]);
        struct kv_req r0, r1;

        request(&r0, mgr, 16, 0, 0);
        assert_int_equal(kv_req_admit(&r0), ST_OK);
        assert_non_null(hash_of(&r0, 0));
        kv_req_done(&r0);
        request(&r1, mgr, 0, OTHER, 15);
        assert_int_equal(kv_req_admit(&r1), ST_OK);
        assert_string_equal(kv_text_table(&r1, 0), "1");
        assert_null(hash_of(&r1, 0));
        assert_int_equal(n_keys(mgr), 0);
        kv_req_done(&r1);
        kv_manager_destroy(mgr);
    }
}

static void case_25_a_hit_is_not_evicted_for_its_own_request(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kv_manager *mgr = make(3, 16, both_orders[i]);
        struct kv_req r0, r1, r2;

        request(&r0, mgr, 16, 0, 0);
        request(&r1, mgr, 0, OTHER, 16);
        assert_int_equal(kv_req_admit(&r0), ST_OK);
        assert_int_equal(kv_req_admit(&r1), ST_OK);
        kv_req_done(&r0);
        kv_req_done(&r1);
        request(&r2, mgr, 16, OTHER, 16); /* block 1 is the coldest, and the hit */
        assert_int_equal(kv_req_admit(&r2), ST_OK);
        assert_int_equal(r2.n_hit, 16);
        assert_string_equal(kv_text_table(&r2, 0), "1 2");
        kv_manager_check(mgr);
        kv_req_done(&r2);
        kv_manager_destroy(mgr);
    }
}

static void case_26_caching_off(void **state) {
    struct kv_manager_config config = kv_fixture_config(5, 4);
    struct kv_manager *mgr;
    struct kv_req r0, r1;

    (void)state;
    config.no_caching = true;
    mgr = kv_manager_create(&config);
    request(&r0, mgr, 10, 0, 0);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(r0.seq.table[0].n_blocks, 3);
    kv_req_done(&r0);
    request(&r1, mgr, 16, 0, 0);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 0);
    assert_int_equal(r1.seq.table[0].n_blocks, 4);
    kv_req_append_run(&r1, OTHER, 4);
    assert_int_equal(kv_req_advance(&r1, 4), ST_BUSY);
    assert_int_equal(n_keys(mgr), 0);
    kv_manager_check(mgr);
    kv_req_done(&r1);
    kv_manager_destroy(mgr);
}

static void case_27_publishing_full_blocks_in_turn(void **state) {
    struct kv_manager *mgr = make(11, 4, FREE_ORDER_FRESH_FIRST);
    struct kv_alloc a = {.n_new = 14, .delay_publish = true};
    struct kv_req r;

    (void)state;
    request(&r, mgr, 14, 0, 0);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 14, &a), ST_OK);
    assert_int_equal(n_keys(mgr), 0);
    kv_manager_publish(mgr, &r.seq, r.tokens, 14, 8);
    assert_int_equal(n_keys(mgr), 2);
    kv_manager_publish(mgr, &r.seq, r.tokens, 14, 14);
    assert_int_equal(n_keys(mgr), 3);
    kv_manager_publish(mgr, &r.seq, r.tokens, 14, 14);
    assert_int_equal(n_keys(mgr), 3);
    assert_null(hash_of(&r, 3));
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

/* The digest kept for the extra keys of one block is that of these n bytes of CBOR; 0: zeros. */
static void assert_extra(const struct kv_req *r, uint32_t index, const char *cbor, size_t n) {
    struct block_hash want = {0};
    struct sha256 *sha = sha256_create();

    if (n > 0) {
        sha256_begin(sha);
        sha256_add(sha, cbor, n);
        sha256_end(sha, want.bytes);
    }
    assert_memory_equal(&r->seq.extra_digests[index], &want, sizeof(want));
    sha256_destroy(sha);
}

#define CBOR(literal) literal, sizeof(literal) - 1

static void case_29_multimodal_items(void **state) {
    const struct block_mm_item items[3] = {
        {STR("aaa"), 11, 10}, {STR("bbb"), 30, 18}, {STR("ccc"), 48, 7}};
    const struct block_extras extras = {.items = items, .n_items = 3};
    struct kv_manager *mgr = make(11, 16, FREE_ORDER_FRESH_FIRST);
    struct kv_req r0, r1;

    (void)state;
    kv_req_init(&r0, mgr, &extras, false);
    kv_req_append_run(&r0, 0, 48 + 7 + 4);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(r0.n_hit, 0);
    assert_int_equal(r0.seq.n_hashes, 3);
    assert_extra(&r0, 0, CBOR("\201\202caaa\013"));             /* [["aaa", 11]] */
    assert_extra(&r0, 1, CBOR("\202\202caaa\044\202cbbb\016")); /* [["aaa", -5], ["bbb", 14]] */
    assert_extra(&r0, 2, CBOR("\201\202cbbb\041"));             /* [["bbb", -2]] */
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(kv_req_decode(&r0, OTHER + i), ST_OK);
    assert_int_equal(r0.seq.n_hashes, 4);
    assert_extra(&r0, 3, CBOR("\201\202cccc\000")); /* [["ccc", 0]] */
    kv_req_init(&r1, mgr, &extras, false);
    kv_req_append_run(&r1, 0, 48 + 7);
    kv_req_append_run(&r1, 2 * OTHER, 5);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 48);
    kv_manager_check(mgr);
    kv_req_done(&r0);
    kv_req_done(&r1);
    kv_manager_destroy(mgr);
}

static uint32_t hit_with_salt(struct kv_manager *mgr, struct str salt) {
    struct block_extras extras = {.cache_salt = salt};
    struct kv_req r;

    kv_req_init(&r, mgr, &extras, false);
    kv_req_append_run(&r, 0, COMMON_TOKENS + 11);
    assert_int_equal(kv_req_admit(&r), ST_OK);
    assert_extra(&r, 1, NULL, 0); /* in the first block only */
    kv_req_done(&r);
    return r.n_hit;
}

static void case_30_salts_separate(void **state) {
    struct kv_manager *mgr = make(11, 16, FREE_ORDER_FRESH_FIRST);

    (void)state;
    assert_int_equal(hit_with_salt(mgr, STR("salt1")), 0);
    assert_int_equal(hit_with_salt(mgr, STR("salt1")), 48);
    assert_int_equal(hit_with_salt(mgr, STR("salt2")), 0);
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);
}

static void case_31_too_few_free_blocks_change_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kv_manager *mgr = make(11, 16, both_orders[i]);
        struct kv_req r0, r1, r2, r3;
        char queue[64];
        struct kv_hit hit;

        request(&r0, mgr, 48, 0, 0);
        assert_int_equal(kv_req_admit(&r0), ST_OK);
        request(&r1, mgr, 96, 0, 0);
        assert_int_equal(kv_req_admit(&r1), ST_OK);
        assert_int_equal(r1.n_hit, 48);
        kv_req_done(&r1);
        request(&r2, mgr, 0, OTHER, 32);
        assert_int_equal(kv_req_admit(&r2), ST_OK);
        assert_int_equal(n_free(mgr), 5);
        snprintf(queue, sizeof(queue), "%s", kv_text_queue(mgr, 0));

        request(&r3, mgr, 96, 2 * OTHER, 48);
        assert_int_equal(kv_req_admit(&r3), ST_BUSY);
        assert_int_equal(r3.n_hit, 96);
        assert_int_equal(r3.seq.table[0].n_blocks, 0);
        assert_string_equal(kv_text_queue(mgr, 0), queue);
        hit = kv_manager_lookup(mgr, &r3.seq, r3.tokens, r3.n_tokens);
        for (uint32_t b = 0; b < 6; b++) {
            assert_int_equal(block_pool_ref_cnt(kv_manager_pool(mgr), hit.ids[0][b]), b < 3);
        }
        kv_manager_check(mgr);
        kv_req_done(&r0);
        kv_req_done(&r2);
        kv_req_done(&r3);
        kv_manager_destroy(mgr);
    }
}

static void case_32_reset(void **state) {
    struct kv_manager *mgr = make(11, 16, FREE_ORDER_FRESH_FIRST);
    struct kv_req r0, r1;

    (void)state;
    request(&r0, mgr, 55, 0, 0);
    request(&r1, mgr, 55, 0, 0);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_true(hit_window_rate(&kv_manager_stats(mgr)->window) > 0);
    assert_int_equal(kv_manager_reset_prefix_cache(mgr), ST_BUSY);
    assert_int_equal(n_keys(mgr), 3);
    kv_req_done(&r0);
    assert_int_equal(kv_manager_reset_prefix_cache(mgr), ST_BUSY);
    kv_req_done(&r1);
    assert_int_equal(kv_manager_reset_prefix_cache(mgr), ST_OK);
    assert_int_equal(n_keys(mgr), 0);
    assert_string_equal(kv_text_cached(mgr, 0), "");
    assert_true(hit_window_rate(&kv_manager_stats(mgr)->window) == 0);
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);
}

static void case_33_statistics_off(void **state) {
    struct kv_manager_config config = kv_fixture_config(11, 16);
    struct kv_manager *mgr;
    struct kv_req r;

    (void)state;
    config.no_stats = true;
    mgr = kv_manager_create(&config);
    assert_null(kv_manager_stats(mgr));
    request(&r, mgr, 55, 0, 0);
    assert_int_equal(kv_req_admit(&r), ST_OK);
    kv_req_done(&r);
    assert_int_equal(kv_manager_reset_prefix_cache(mgr), ST_OK);
    assert_null(kv_manager_stats(mgr));
    kv_manager_destroy(mgr);
}

static void release_block_1(void *pool) {
    block_id id = 1;

    block_pool_release(pool, &id, 1);
}

static void case_93_double_free_aborts(void **state) {
    struct block_pool *pool =
        block_pool_create(&(struct block_pool_config){.n_blocks = 2, .block_size = 1});
    block_id id;

    (void)state;
    assert_int_equal(block_pool_acquire(pool, &id, 1), ST_OK);
    assert_false(kv_aborts(release_block_1, pool)); /* in a child: still held here */
    block_pool_release(pool, &id, 1);
    assert_true(kv_aborts(release_block_1, pool));
    block_pool_destroy(pool);
}

#define COLLISION_BLOCKS 24

/* Text in blocks of two letters out of three under a hash cut to `bits`: nearly every hash
 * collides, and each hit must still hold exactly the requested letters. */
static uint64_t run_collisions(enum block_hash_algo algo, uint32_t bits, bool dedup) {
    struct kv_manager_config config = kv_fixture_config(COLLISION_BLOCKS, 2);
    char held[COLLISION_BLOCKS][16] = {""}; /* the whole prefix a block was published for */
    uint64_t n_hits = 0;
    struct kv_manager *mgr;
    struct rng rng;

    config.hash_algo = algo;
    config.hash_truncate_bits = bits;
    config.dedup = dedup;
    mgr = kv_manager_create(&config);
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 5000; round++) {
        char text[12] = "";
        struct kv_req r;
        uint32_t n = 3 + (uint32_t)rng_below(&rng, 8);

        for (uint32_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_below(&rng, 3));
        kv_req_text(&r, mgr, text);
        assert_int_equal(kv_req_admit(&r), ST_OK);
        n_hits += r.n_hit;
        for (uint32_t i = 0; i < n / 2; i++) {
            char *prefix = held[r.seq.table[0].ids[i]];

            if (i < r.n_hit / 2)
                assert_memory_equal(prefix, text, 2 * (i + 1));
            else
                snprintf(prefix, sizeof(held[0]), "%.*s", (int)(2 * (i + 1)), text);
        }
        kv_manager_check(mgr);
        kv_req_done(&r);
    }
    kv_manager_destroy(mgr);
    return n_hits;
}

static void case_99_a_collision_is_never_served(void **state) {
    static const enum block_hash_algo algos[] = {BLOCK_HASH_XXH3_128, BLOCK_HASH_SHA256_CBOR,
                                                 BLOCK_HASH_XXHASH_CBOR};
    uint64_t n_hits = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(algos); i++) {
        uint64_t honest = run_collisions(algos[i], 0, false);

        assert_true(honest > 0);
        for (uint32_t bits = 1; bits <= 8; bits += 7) {
            assert_int_equal(run_collisions(algos[i], bits, false), honest); /* and none is lost */
            n_hits += run_collisions(algos[i], bits, true);
        }
    }
    assert_true(n_hits > 0);
}

static void only_prefixes_are_shared(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kv_manager *mgr = make(11, 4, both_orders[i]);
        struct kv_req first, second;

        kv_req_text(&first, mgr, "ABCDEFGHI");
        kv_req_text(&second, mgr, "DCABEFGHI");
        assert_int_equal(kv_req_admit(&first), ST_OK);
        assert_int_equal(kv_req_admit(&second), ST_OK);
        assert_int_equal(second.n_hit, 0); /* EFGH is there, behind another block */
        assert_string_equal(kv_text_refs(&second), "1 1 1");
        assert_memory_not_equal(&first.seq.hashes[1], &second.seq.hashes[1],
                                sizeof(struct block_hash));
        assert_int_equal(n_keys(mgr), 4);
        kv_manager_check(mgr);
        kv_req_done(&first);
        kv_req_done(&second);
        kv_manager_destroy(mgr);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_20_prefill_hit_free_reuse),
        cmocka_unit_test(case_21_prompt_logprobs_store_and_do_not_read),
        cmocka_unit_test(case_22_decode),
        cmocka_unit_test(case_23_eviction_order),
        cmocka_unit_test(case_24_reuse_clears_the_hash),
        cmocka_unit_test(case_25_a_hit_is_not_evicted_for_its_own_request),
        cmocka_unit_test(case_26_caching_off),
        cmocka_unit_test(case_27_publishing_full_blocks_in_turn),
        cmocka_unit_test(case_29_multimodal_items),
        cmocka_unit_test(case_30_salts_separate),
        cmocka_unit_test(case_31_too_few_free_blocks_change_nothing),
        cmocka_unit_test(case_32_reset),
        cmocka_unit_test(case_33_statistics_off),
        cmocka_unit_test(case_93_double_free_aborts),
        cmocka_unit_test(case_99_a_collision_is_never_served),
        cmocka_unit_test(only_prefixes_are_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
