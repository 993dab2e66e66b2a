/* tests/conformance/test_kv_part_cases.c - numbered cases of the parts below the manager: free
 * queue (1-7), hashing (8-17), the map with duplicates (28, 34), the hit-rate window (45, 46). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "worker/kv/block/free_queue.h"

/* --- free queue ------------------------------------------------------------------------------ */

static void fill(struct free_queue *q, uint32_t capacity, const uint32_t *ids, uint32_t n) {
    free_queue_init(q, capacity);
    for (uint32_t i = 0; i < n; i++)
        free_queue_push_back(q, ids ? ids[i] : i);
}

static void assert_queue(const struct free_queue *q, const uint32_t *want, uint32_t n) {
    uint32_t id = free_queue_first(q);

    assert_int_equal(q->count, n);
    for (uint32_t i = 0; i < n; i++, id = free_queue_next(q, id))
        assert_int_equal(id, want[i]);
    assert_int_equal(id, FREE_QUEUE_NONE);
    free_queue_check(q);
}

static void case_01_queue_of_one(void **state) {
    struct free_queue q;

    (void)state;
    fill(&q, 1, NULL, 1);
    assert_int_equal(q.count, 1);
    assert_int_equal(free_queue_first(&q), 0);
    assert_int_equal(free_queue_next(&q, 0), FREE_QUEUE_NONE);
    free_queue_fini(&q);
}

static void case_02_queue_operations(void **state) {
    struct free_queue q;

    (void)state;
    fill(&q, 5, NULL, 5);
    assert_int_equal(free_queue_pop_front(&q), 0);
    free_queue_remove(&q, 2);
    assert_queue(&q, (uint32_t[]){1, 3, 4}, 3);
    free_queue_push_back(&q, 2);
    assert_queue(&q, (uint32_t[]){1, 3, 4, 2}, 4);
    for (int i = 0; i < 4; i++)
        assert_int_not_equal(free_queue_pop_front(&q), FREE_QUEUE_NONE);
    assert_int_equal(q.count, 0);
    assert_int_equal(free_queue_pop_front(&q), FREE_QUEUE_NONE);
    free_queue_fini(&q);
}

static void case_03_queue_append(void **state) {
    struct free_queue q;

    (void)state;
    fill(&q, 6, (uint32_t[]){0, 4, 5, 1, 2, 3}, 6);
    assert_queue(&q, (uint32_t[]){0, 4, 5, 1, 2, 3}, 6);
    free_queue_fini(&q);
}

static void case_04_queue_popped_links_are_cleared(void **state) {
    static const uint32_t order[6] = {1, 3, 5, 4, 0, 2};
    struct free_queue q;

    (void)state;
    fill(&q, 6, order, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(free_queue_pop_front(&q), order[i]);
        assert_false(free_queue_contains(&q, order[i]));
        free_queue_check(&q);
    }
    free_queue_fini(&q);
}

static void case_05_queue_all_free(void **state) {
    struct free_queue q;

    (void)state;
    fill(&q, 5, NULL, 5);
    assert_queue(&q, (uint32_t[]){0, 1, 2, 3, 4}, 5);
    assert_int_equal(free_queue_pop_front(&q), 0);
    free_queue_remove(&q, 2);
    free_queue_push_back(&q, 2);
    assert_queue(&q, (uint32_t[]){1, 3, 4, 2}, 4);
    free_queue_fini(&q);
}

static void case_06_released_blanks_are_prepended_in_order(void **state) {
    struct block_pool *pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = 8, .block_size = 1, .order = FREE_ORDER_FRESH_FIRST, .no_null = true});
    block_id ids[6], id = BLOCK_NONE;

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 6), ST_OK);
    block_pool_release(pool, (block_id[]){5, 4}, 2);
    for (uint32_t i = 0; i < 4; i++) {
        id = block_pool_next_free(pool, id);
        assert_int_equal(id, ((block_id[]){5, 4, 6, 7})[i]);
    }
    block_pool_destroy(pool);
}

static const uint32_t one_token = 1;
static const struct block_hash some_hash = {{1}};
static const struct prefix_key some_key = {&some_hash, PREFIX_ROOT, &one_token, NULL, 0};

static void publish_block_1(void *pool) {
    block_pool_publish(pool, 1, &some_key, 0);
}

static void case_07_a_hash_is_set_once(void **state) {
    struct block_pool *pool =
        block_pool_create(&(struct block_pool_config){.n_blocks = 2, .block_size = 1});
    block_id id;

    (void)state;
    assert_int_equal(block_pool_acquire(pool, &id, 1), ST_OK);
    assert_null(prefix_cache_hash(block_pool_cache(pool), 1));
    publish_block_1(pool);
    assert_memory_equal(prefix_cache_hash(block_pool_cache(pool), 1), &some_hash,
                        sizeof(some_hash));
    assert_true(kv_aborts(publish_block_1, pool));
    block_pool_release(pool, &id, 1);
    assert_int_equal(block_pool_reset(pool), ST_OK);
    assert_null(prefix_cache_hash(block_pool_cache(pool), 1));
    block_pool_destroy(pool);
}

/* --- hashing --------------------------------------------------------------------------------- */

static struct block_hasher *hasher_of(uint32_t block_size, struct str seed) {
    struct block_hasher_config config = {
        .algo = BLOCK_HASH_SHA256_CBOR, .block_size = block_size, .seed = seed};

    return block_hasher_create(&config);
}

static struct block_hash sha256_of(const void *data, size_t n) {
    struct sha256 *sha = sha256_create();
    struct block_hash out;

    sha256_begin(sha);
    sha256_add(sha, data, n);
    sha256_end(sha, out.bytes);
    sha256_destroy(sha);
    return out;
}

static void case_08_none_hash(void **state) {
    static const char cbor[] = "\x70python hash seed";
    struct block_hasher *unset = hasher_of(1, STR_NULL);
    struct block_hasher *set = hasher_of(1, STR("python hash seed"));
    struct block_hash a = *block_hasher_root(unset), b = *block_hasher_root(set), zero = {0};
    struct block_hash want = sha256_of(cbor, sizeof(cbor) - 1);

    (void)state;
    assert_memory_not_equal(&a, &zero, sizeof(a));
    assert_memory_equal(&b, &want, sizeof(b));
    block_hasher_destroy(unset);
    block_hasher_destroy(set);
}

static void case_09_block_hash_is_of_parent_tokens_and_extras(void **state) {
    static const uint8_t extra[] = "\x82\x64key1\x64key2";
    struct block_hasher *h = hasher_of(3, STR_NULL);
    struct block_hash root = *block_hasher_root(h), got, want;
    uint8_t message[128] = {0x83, 0x58, 0x20};
    size_t n = 3;

    (void)state;
    memcpy(message + n, root.bytes, 32);
    n += 32;
    memcpy(message + n, "\x83\x01\x02\x03", 4);
    n += 4;
    memcpy(message + n, extra, sizeof(extra) - 1);
    n += sizeof(extra) - 1;
    want = sha256_of(message, n);
    block_hasher_next(h, &root, (uint32_t[]){1, 2, 3}, extra, sizeof(extra) - 1, &got);
    assert_memory_equal(&got, &want, sizeof(got));
    block_hasher_destroy(h);
}

/* The extra keys of tokens [start, end), as hexadecimal CBOR; "" for none. */
static const char *extras_of(const struct block_extras *x, uint32_t start, uint32_t end,
                             uint32_t *cursor) {
    static uint8_t bytes[BLOCK_EXTRAS_MAX_BYTES];
    static char text[256];
    size_t n = block_extras_encode(x, start, end, cursor, bytes);

    text[0] = '\0';
    assert_true(2 * n < sizeof(text));
    for (size_t i = 0; i < n; i++)
        sprintf(text + 2 * i, "%02x", bytes[i]);
    return text;
}

#define HASH1 "656861736831" /* text(5) "hash1" */
#define HASH2 "656861736832"
#define SALT  "6473616c74" /* text(4) "salt" */

/* Two blocks of three tokens, hashed by a manager for a request with these extras. */
static void hash_two_blocks(const struct block_extras *extras, struct block_hash out[2]) {
    struct kv_manager_config config = kv_fixture_config(4, 3);
    struct kv_manager *mgr = kv_manager_create(&config);
    struct kv_req r;

    kv_req_init(&r, mgr, extras, false);
    kv_req_append_run(&r, 0, 6);
    kv_seq_extend_hashes(mgr, &r.seq, r.tokens, r.n_tokens);
    assert_int_equal(r.seq.n_hashes, 2);
    memcpy(out, r.seq.hashes, 2 * sizeof(*out));
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void case_10_each_block_sees_its_own_item(void **state) {
    const struct block_mm_item items[2] = {{STR("hash1"), 0, 3}, {STR("hash2"), 3, 3}};
    const struct block_extras x = {.items = items, .n_items = 2};
    struct block_hash two[2];
    uint32_t cursor = 0;

    (void)state;
    hash_two_blocks(&x, two);
    assert_string_equal(extras_of(&x, 0, 3, &cursor), "8182" HASH1 "00");
    assert_string_equal(extras_of(&x, 3, 6, &cursor), "8182" HASH2 "00");
}

static void case_11_without_items_there_are_no_extras(void **state) {
    struct block_extras none = {0};
    struct block_hash with[2], without[2];
    uint32_t cursor = 0;

    (void)state;
    assert_string_equal(extras_of(&none, 0, 3, &cursor), "");
    hash_two_blocks(NULL, without);
    hash_two_blocks(&none, with);
    assert_memory_equal(with, without, sizeof(with));
}

static void case_12_another_first_item_changes_both_hashes(void **state) {
    const struct block_mm_item a[2] = {{STR("hash1"), 0, 3}, {STR("hash2"), 3, 3}};
    const struct block_mm_item b[2] = {{STR("hash3"), 0, 3}, {STR("hash2"), 3, 3}};
    struct block_hash x[2], y[2];

    (void)state;
    hash_two_blocks(&(struct block_extras){.items = a, .n_items = 2}, x);
    hash_two_blocks(&(struct block_extras){.items = b, .n_items = 2}, y);
    assert_memory_not_equal(&x[0], &y[0], sizeof(x[0]));
    assert_memory_not_equal(&x[1], &y[1], sizeof(x[1]));
}

static void case_13_items_by_relative_offset(void **state) {
    const struct block_mm_item items[2] = {{STR("hash1"), 0, 5}, {STR("hash2"), 10, 5}};
    const struct block_extras x = {.items = items, .n_items = 2};
    static const struct {
        uint32_t start, end, next;
        const char *extras;
    } cases[] = {
        {0, 5, 1, "8182" HASH1 "00"},
        {3, 8, 1, "8182" HASH1 "22"}, /* -3 */
        {6, 10, 1, ""},
        {0, 15, 2, "8282" HASH1 "0082" HASH2 "0a"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t cursor = 0;

        assert_string_equal(extras_of(&x, cases[i].start, cases[i].end, &cursor), cases[i].extras);
        assert_int_equal(cursor, cases[i].next);
    }
}

static void case_14_no_items_leave_the_cursor(void **state) {
    struct block_extras x = {0};
    uint32_t cursor = 0;

    (void)state;
    assert_string_equal(extras_of(&x, 0, 5, &cursor), "");
    assert_int_equal(cursor, 0);
}

static void case_15_salt_in_the_first_block_only(void **state) {
    const struct block_mm_item item = {STR("hash1"), 0, 5};
    const struct block_extras salt = {.cache_salt = STR("salt")};
    const struct block_extras both = {.items = &item, .n_items = 1, .cache_salt = STR("salt")};
    uint32_t cursor = 0;

    (void)state;
    assert_string_equal(extras_of(&salt, 0, 1, &cursor), "81" SALT);
    assert_string_equal(extras_of(&salt, 0, 10, &cursor), "81" SALT);
    assert_string_equal(extras_of(&salt, 1, 2, &cursor), "");
    assert_string_equal(extras_of(&salt, 6, 10, &cursor), "");
    assert_string_equal(extras_of(&both, 0, 5, &cursor), "8282" HASH1 "00" SALT);
}

static void case_17_adapter_name_in_every_block(void **state) {
    struct block_extras x = {.lora = STR("lora")};
    uint32_t cursor = 0;

    (void)state;
    assert_string_equal(extras_of(&x, 0, 5, &cursor), "81646c6f7261");
    assert_string_equal(extras_of(&x, 5, 10, &cursor), "81646c6f7261");
    x.lora = STR_NULL;
    assert_string_equal(extras_of(&x, 0, 5, &cursor), "");
}

/* --- the map --------------------------------------------------------------------------------- */

static struct prefix_key key_in(const uint32_t *token, const struct block_hash *hash,
                                uint32_t group) {
    return (struct prefix_key){hash, PREFIX_ROOT, token, NULL, group};
}

static void case_28_groups_are_separate_entries(void **state) {
    static const uint32_t tokens[3] = {0, 1, 2};
    static const struct block_hash hashes[3] = {{{0}}, {{1}}, {{2}}};
    struct prefix_cache cache;
    struct prefix_key key;

    (void)state;
    prefix_cache_init(&cache, 8, 1);
    for (uint32_t i = 0; i < 2; i++) {
        key = key_in(&tokens[i], &hashes[i], 0);
        prefix_cache_insert(&cache, i, &key, 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        key = key_in(&tokens[i], &hashes[i], 1);
        prefix_cache_insert(&cache, 2 + i, &key, 0);
    }
    assert_int_equal(cache.n_keys, 5);
    key = key_in(&tokens[2], &hashes[2], 1);
    assert_int_equal(prefix_cache_find(&cache, &key), 4);
    key = key_in(&tokens[2], &hashes[2], 0);
    assert_int_equal(prefix_cache_find(&cache, &key), PREFIX_CACHE_NONE);
    prefix_cache_fini(&cache);
}

static void case_34_map_with_duplicates(void **state) {
    static const uint32_t tokens[4] = {0, 1, 2, 0};
    static const struct block_hash hashes[4] = {{{0}}, {{1}}, {{2}}, {{0}}};
    struct prefix_cache cache;
    struct prefix_key keys[4];

    (void)state;
    prefix_cache_init(&cache, 4, 1);
    for (uint32_t i = 0; i < 4; i++) {
        keys[i] = key_in(&tokens[i], &hashes[i], 0);
        prefix_cache_insert(&cache, i, &keys[i], 0);
    }
    assert_true(prefix_cache_erase(&cache, 1));
    assert_int_equal(prefix_cache_find(&cache, &keys[1]), PREFIX_CACHE_NONE);
    assert_int_equal(prefix_cache_find(&cache, &keys[0]), 0);
    assert_int_equal(prefix_cache_copies(&cache, 0), 2);
    assert_int_equal(cache.n_keys, 2);
    assert_true(prefix_cache_erase(&cache, 0));
    assert_int_equal(prefix_cache_find(&cache, &keys[0]), 3);
    assert_int_equal(prefix_cache_copies(&cache, 3), 1);
    assert_true(prefix_cache_erase(&cache, 2));
    assert_true(prefix_cache_erase(&cache, 3));
    assert_int_equal(cache.n_keys, 0);
    prefix_cache_check(&cache);
    prefix_cache_fini(&cache);
}

/* --- the window ------------------------------------------------------------------------------ */

static void add(struct hit_window *w, uint64_t requests, uint64_t queries, uint64_t hits) {
    hit_window_add(w, (struct kv_counts){requests, queries, hits});
}

static void assert_rate(const struct hit_window *w, double want) {
    assert_true(fabs(hit_window_rate(w) - want) < 1e-12);
}

static void case_45_hit_rate_of_the_last_requests(void **state) {
    struct hit_window w;

    (void)state;
    hit_window_init(&w, 5);
    add(&w, 1, 20, 9);
    assert_rate(&w, 0.45);
    add(&w, 4, 80, 16);
    assert_rate(&w, 0.25);
    add(&w, 1, 10, 2);
    assert_rate(&w, 18.0 / 90.0);
    hit_window_reset(&w);
    assert_rate(&w, 0.0);
    hit_window_fini(&w);
}

static void case_46_empty_batches_are_ignored(void **state) {
    struct hit_window w;

    (void)state;
    hit_window_init(&w, 5);
    add(&w, 0, 0, 0);
    add(&w, 1, 20, 9);
    add(&w, 0, 0, 0);
    add(&w, 4, 80, 16);
    assert_rate(&w, 0.25);
    add(&w, 0, 0, 0);
    add(&w, 11, 20, 10);
    assert_rate(&w, 0.5);
    add(&w, 22, 40, 30);
    assert_rate(&w, 0.75);
    hit_window_fini(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_01_queue_of_one),
        cmocka_unit_test(case_02_queue_operations),
        cmocka_unit_test(case_03_queue_append),
        cmocka_unit_test(case_04_queue_popped_links_are_cleared),
        cmocka_unit_test(case_05_queue_all_free),
        cmocka_unit_test(case_06_released_blanks_are_prepended_in_order),
        cmocka_unit_test(case_07_a_hash_is_set_once),
        cmocka_unit_test(case_08_none_hash),
        cmocka_unit_test(case_09_block_hash_is_of_parent_tokens_and_extras),
        cmocka_unit_test(case_10_each_block_sees_its_own_item),
        cmocka_unit_test(case_11_without_items_there_are_no_extras),
        cmocka_unit_test(case_12_another_first_item_changes_both_hashes),
        cmocka_unit_test(case_13_items_by_relative_offset),
        cmocka_unit_test(case_14_no_items_leave_the_cursor),
        cmocka_unit_test(case_15_salt_in_the_first_block_only),
        cmocka_unit_test(case_17_adapter_name_in_every_block),
        cmocka_unit_test(case_28_groups_are_separate_entries),
        cmocka_unit_test(case_34_map_with_duplicates),
        cmocka_unit_test(case_45_hit_rate_of_the_last_requests),
        cmocka_unit_test(case_46_empty_batches_are_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
