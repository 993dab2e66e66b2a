/* tests/unit/worker/kv/block/test_block_table.c - slots, and the entries that the device's copy
 * lacks. */
#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "worker/kv/block/block_table.h"

static void slots_follow_the_table(void **state) {
    const block_id ids[3] = {7, 2, 9};
    struct block_table t;

    (void)state;
    assert_int_equal(block_table_init(&t, 3), ST_OK);
    block_table_append(&t, ids, 3);
    assert_int_equal(block_table_slot(&t, 0, 4), 28);
    assert_int_equal(block_table_slot(&t, 3, 4), 31);
    assert_int_equal(block_table_slot(&t, 4, 4), 8);
    assert_int_equal(block_table_slot(&t, 11, 4), 39);
    t.ids[0] = 1u << 30; /* beyond 32 bits in tokens */
    assert_true(block_table_slot(&t, 5, 16) == ((int64_t)1 << 34) + 5);
    block_table_clear(&t);
    block_table_fini(&t);
}

static void dirty_entries_are_the_appended_and_the_replaced(void **state) {
    const block_id ids[4] = {1, 2, 3, 4};
    struct block_table t;

    (void)state;
    assert_int_equal(block_table_init(&t, 6), ST_OK);
    block_table_append(&t, ids, 3);
    assert_int_equal(block_table_take_dirty(&t), 0);
    assert_int_equal(block_table_take_dirty(&t), 3); /* nothing new: an empty range */
    block_table_append(&t, ids, 2);
    assert_int_equal(block_table_take_dirty(&t), 3);
    block_table_replace(&t, 4, 9);
    block_table_replace(&t, 1, 8);
    assert_int_equal(block_table_take_dirty(&t), 1);
    assert_int_equal(t.ids[1], 8);
    block_table_clear(&t);
    assert_int_equal(block_table_take_dirty(&t), 0);
    block_table_fini(&t);
}

static void refused_memory_is_a_status(void **state) {
    struct block_table t = {0};

    (void)state;
    mem_fail_at(1);
    assert_int_equal(block_table_init(&t, 6), ST_NOMEM);
    mem_fail_at(0);
    block_table_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_follow_the_table),
        cmocka_unit_test(dirty_entries_are_the_appended_and_the_replaced),
        cmocka_unit_test(refused_memory_is_a_status),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
