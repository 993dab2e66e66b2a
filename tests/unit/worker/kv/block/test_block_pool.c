/* tests/unit/worker/kv/block/test_block_pool.c - references, eviction order, the null block. */
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"

static struct block_pool *make(uint32_t n_blocks, enum free_order order, bool no_null) {
    return block_pool_create(&(struct block_pool_config){
        .n_blocks = n_blocks, .block_size = 1, .order = order, .no_null = no_null});
}

static void publish(struct block_pool *pool, block_id id, uint32_t token) {
    struct block_hash hash = {{(uint8_t)token}};
    struct prefix_key key = {&hash, PREFIX_ROOT, &token, NULL, 0};

    block_pool_publish(pool, id, &key, 0);
}

static block_id find(const struct block_pool *pool, uint32_t token) {
    struct block_hash hash = {{(uint8_t)token}};
    struct prefix_key key = {&hash, PREFIX_ROOT, &token, NULL, 0};

    return block_pool_find(pool, &key);
}

static void assert_queue(const struct block_pool *pool, const block_id *want, uint32_t n) {
    block_id id = BLOCK_NONE;

    assert_int_equal(block_pool_n_free(pool), n);
    for (uint32_t i = 0; i < n; i++) {
        id = block_pool_next_free(pool, id);
        assert_int_equal(id, want[i]);
    }
    assert_int_equal(block_pool_next_free(pool, id), BLOCK_NONE);
    block_pool_check(pool);
}

static void release_order_is_eviction_order(void **state) {
    struct block_pool *pool = make(4, FREE_ORDER_CLASSIC, false);
    block_id ids[3], next;

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 3), ST_OK);
    block_pool_release(pool, (block_id[]){ids[2], ids[1], ids[0]}, 3);
    assert_int_equal(block_pool_acquire(pool, &next, 1), ST_OK);
    assert_int_equal(next, ids[2]);
    block_pool_destroy(pool);
}

static void acquire_is_all_or_nothing(void **state) {
    struct block_pool *pool = make(4, FREE_ORDER_FRESH_FIRST, false);
    block_id ids[4] = {BLOCK_NONE};

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 4), ST_BUSY);
    assert_int_equal(ids[0], BLOCK_NONE);
    assert_queue(pool, (block_id[]){1, 2, 3}, 3);
    assert_int_equal(block_pool_acquire(pool, ids, 0), ST_OK);
    assert_int_equal(block_pool_acquire(pool, ids, 3), ST_OK);
    assert_true(block_pool_usage(pool) == 1.0);
    block_pool_destroy(pool);
}

static void fresh_first_splits_one_release(void **state) {
    const block_id all[4] = {3, 2, 1, 0};
    struct block_pool *pool = make(6, FREE_ORDER_FRESH_FIRST, true);
    block_id ids[4];

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 4), ST_OK);
    publish(pool, 0, 10);
    publish(pool, 2, 12);
    block_pool_release(pool, all, 4); /* blanks 3 1 to the head, hashed 2 0 to the tail */
    assert_queue(pool, (block_id[]){3, 1, 4, 5, 2, 0}, 6);
    block_pool_destroy(pool);
}

static void a_cached_block_lives_until_it_is_handed_out(void **state) {
    struct block_pool *pool = make(3, FREE_ORDER_CLASSIC, true);
    block_id ids[3];

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 1), ST_OK);
    publish(pool, ids[0], 42);
    block_pool_release(pool, ids, 1);
    assert_int_equal(find(pool, 42), 0);
    block_pool_touch(pool, ids, 1); /* revived */
    assert_int_equal(block_pool_ref_cnt(pool, 0), 1);
    assert_queue(pool, (block_id[]){1, 2}, 2);
    block_pool_touch(pool, ids, 1); /* shared */
    block_pool_release(pool, ids, 1);
    assert_queue(pool, (block_id[]){1, 2}, 2);
    block_pool_release(pool, ids, 1);
    assert_int_equal(block_pool_acquire(pool, ids, 3), ST_OK);
    assert_int_equal(find(pool, 42), BLOCK_NONE);
    assert_int_equal(block_pool_n_evicted(pool), 1);
    block_pool_destroy(pool);
}

static void the_null_block_is_nobodys(void **state) {
    const block_id with_null[3] = {2, BLOCK_NULL, 1};
    struct block_pool *pool = make(3, FREE_ORDER_FRESH_FIRST, false);
    block_id ids[2];

    (void)state;
    assert_int_equal(block_pool_n_usable(pool), 2);
    assert_int_equal(block_pool_acquire(pool, ids, 2), ST_OK);
    block_pool_touch(pool, with_null, 3);
    assert_int_equal(block_pool_ref_cnt(pool, BLOCK_NULL), 0);
    block_pool_release(pool, with_null, 3);
    block_pool_release(pool, with_null, 3);
    assert_queue(pool, (block_id[]){2, 1}, 2);
    block_pool_destroy(pool);
}

static void reset_wants_every_block_back(void **state) {
    struct block_pool *pool = make(3, FREE_ORDER_CLASSIC, false);
    block_id ids[2];

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 2), ST_OK);
    publish(pool, ids[0], 1);
    block_pool_release(pool, ids, 1);
    assert_int_equal(block_pool_reset(pool), ST_BUSY);
    assert_int_equal(block_pool_n_cached(pool), 1);
    block_pool_release(pool, ids + 1, 1);
    assert_int_equal(block_pool_reset(pool), ST_OK);
    assert_int_equal(block_pool_n_cached(pool), 0);
    assert_queue(pool, (block_id[]){1, 2}, 2); /* the order stays */
    block_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_order_is_eviction_order),
        cmocka_unit_test(acquire_is_all_or_nothing),
        cmocka_unit_test(fresh_first_splits_one_release),
        cmocka_unit_test(a_cached_block_lives_until_it_is_handed_out),
        cmocka_unit_test(the_null_block_is_nobodys),
        cmocka_unit_test(reset_wants_every_block_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
