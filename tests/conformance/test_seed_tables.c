/* tests/conformance/test_seed_tables.c - worked examples of prefix caching, block by block.
 *
 * The ten-block example: R0 = ABCD EFGH IJKL MNO, R1 shares its first ten letters, R2 its first
 * twelve. Then the duplicate example: two requests fill the same block side by side. Both run with
 * and without a null block: ids are then one higher and nothing else differs. */
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"

#define R0_TEXT "ABCDEFGHIJKLMNO"
#define R1_TEXT "ABCDEFGHIJklmn"
#define R2_TEXT "ABCDEFGHIJKL0123456789abcdefg"

/* What the two orders disagree on. */
struct ten_block_expectation {
    enum free_order order;
    const char *queue_t5, *queue_t6, *table_t7, *cached_t7, *queue_t7;
    uint64_t n_evicted;
};

static const struct ten_block_expectation classic = {
    FREE_ORDER_CLASSIC,
    "7 8 9 4 3 2",
    "7 8 9 4 3 2 6 5 1 0",
    "0 1 2 7 8 9 4 3",
    "0 1 2 4 5 7 8 9",
    "6 5",
    1,
};

static const struct ten_block_expectation fresh_first = {
    FREE_ORDER_FRESH_FIRST,
    "4 7 8 9 3 2",
    "6 4 7 8 9 3 2 5 1 0",
    "0 1 2 6 4 7 8 9",
    "0 1 2 3 4 5 6 7 8",
    "3 5",
    0,
};

static void run_ten_blocks(const struct ten_block_expectation *want, bool no_null) {
    uint32_t first = no_null ? 0 : 1;
    struct kv_manager_config config = kv_fixture_config(10 + first, 4);
    struct kv_manager *mgr;
    struct kv_req r0, r1, r2;

    config.order = want->order;
    config.no_null = no_null;
    mgr = kv_manager_create(&config);

    kv_req_text(&r0, mgr, R0_TEXT); /* t1 */
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_string_equal(kv_text_table(&r0, first), "0 1 2 3");
    assert_string_equal(kv_text_cached(mgr, first), "0 1 2");
    assert_string_equal(kv_text_queue(mgr, first), "4 5 6 7 8 9");

    assert_int_equal(kv_req_decode(&r0, 'P'), ST_OK); /* t3 */
    assert_int_equal(kv_req_decode(&r0, 'Q'), ST_OK);
    assert_string_equal(kv_text_table(&r0, first), "0 1 2 3 4");
    assert_string_equal(kv_text_cached(mgr, first), "0 1 2 3");
    assert_string_equal(kv_text_queue(mgr, first), "5 6 7 8 9");

    kv_req_text(&r1, mgr, R1_TEXT); /* t4 */
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 8);
    assert_string_equal(kv_text_table(&r1, first), "0 1 5 6");
    assert_string_equal(kv_text_refs(&r1), "2 2 1 1");
    assert_string_equal(kv_text_cached(mgr, first), "0 1 2 3 5");
    assert_string_equal(kv_text_queue(mgr, first), "7 8 9");
    kv_manager_check(mgr);

    kv_req_done(&r0); /* t5 */
    assert_string_equal(kv_text_queue(mgr, first), want->queue_t5);
    assert_string_equal(kv_text_cached(mgr, first), "0 1 2 3 5");
    kv_req_done(&r1); /* t6 */
    assert_string_equal(kv_text_queue(mgr, first), want->queue_t6);
    assert_string_equal(kv_text_cached(mgr, first), "0 1 2 3 5");
    kv_manager_check(mgr);

    kv_req_text(&r2, mgr, R2_TEXT); /* t7 */
    assert_int_equal(kv_req_admit(&r2), ST_OK);
    assert_int_equal(r2.n_hit, 12);
    assert_string_equal(kv_text_table(&r2, first), want->table_t7);
    assert_string_equal(kv_text_cached(mgr, first), want->cached_t7);
    assert_string_equal(kv_text_queue(mgr, first), want->queue_t7);
    assert_int_equal(block_pool_n_evicted(kv_manager_pool(mgr)), want->n_evicted);
    kv_manager_check(mgr);

    assert_int_equal(kv_manager_stats(mgr)->admitted.requests, 3);
    assert_int_equal(kv_manager_stats(mgr)->admitted.queries, 15 + 14 + 29);
    assert_int_equal(kv_manager_stats(mgr)->admitted.hits, 20);
    kv_req_done(&r2);
    kv_manager_destroy(mgr);
}

static void ten_blocks_classic(void **state) {
    (void)state;
    run_ten_blocks(&classic, true);
    run_ten_blocks(&classic, false);
}

static void ten_blocks_fresh_first(void **state) {
    (void)state;
    run_ten_blocks(&fresh_first, true);
    run_ten_blocks(&fresh_first, false);
}

/* Prompt ABCDEF, outputs G, H, I. Ends with R1 in three blocks and R2 having computed H as well. */
static struct kv_manager *fill_the_same_block(bool dedup, struct kv_req *r1, struct kv_req *r2) {
    struct kv_manager_config config = kv_fixture_config(10, 4);
    struct kv_manager *mgr;

    config.no_null = true;
    config.dedup = dedup;
    mgr = kv_manager_create(&config);

    kv_req_text(r1, mgr, "ABCDEF");
    assert_int_equal(kv_req_admit(r1), ST_OK);
    assert_string_equal(kv_text_table(r1, 0), "0 1");
    assert_int_equal(kv_req_decode(r1, 'G'), ST_OK);
    assert_int_equal(kv_req_decode(r1, 'H'), ST_OK);
    assert_string_equal(kv_text_table(r1, 0), "0 1");
    assert_string_equal(kv_text_cached(mgr, 0), "0 1");
    assert_int_equal(kv_req_decode(r1, 'I'), ST_OK);
    assert_string_equal(kv_text_table(r1, 0), "0 1 2");

    kv_req_text(r2, mgr, "ABCDEF");
    assert_int_equal(kv_req_admit(r2), ST_OK);
    assert_int_equal(r2->n_hit, 4);
    assert_string_equal(kv_text_table(r2, 0), "0 3");
    assert_int_equal(kv_req_decode(r2, 'G'), ST_OK);
    assert_string_equal(kv_text_table(r2, 0), "0 3");
    block_table_take_dirty(&r2->seq.table[0]);
    assert_int_equal(kv_req_decode(r2, 'H'), ST_OK);
    kv_manager_check(mgr);
    return mgr;
}

static block_id lookup_of_second_block(struct kv_manager *mgr) {
    struct kv_req r;
    struct kv_hit hit;
    block_id id;

    kv_req_text(&r, mgr, "ABCDEFGH?");
    hit = kv_manager_lookup(mgr, &r.seq, r.tokens, r.n_tokens);
    assert_int_equal(hit.n_tokens, 8);
    id = hit.ids[0][1];
    kv_req_done(&r);
    return id;
}

static void duplicates_both_stay_and_the_first_is_found(void **state) {
    struct kv_req r1, r2;
    struct kv_manager *mgr = fill_the_same_block(false, &r1, &r2);

    (void)state;
    assert_string_equal(kv_text_table(&r2, 0), "0 3");
    assert_string_equal(kv_text_cached(mgr, 0), "0 1 3");
    assert_int_equal(prefix_cache_copies(block_pool_cache(kv_manager_pool(mgr)), 3), 2);
    kv_req_done(&r1);
    assert_string_equal(kv_text_queue(mgr, 0), "4 5 6 7 8 9 2 1");
    kv_manager_check(mgr);
    kv_req_done(&r2);
    assert_string_equal(kv_text_queue(mgr, 0), "4 5 6 7 8 9 2 1 3 0");
    assert_int_equal(lookup_of_second_block(mgr), 1);
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);
}

static void dedup_switches_to_the_block_that_is_there(void **state) {
    struct kv_req r1, r2;
    struct kv_manager *mgr = fill_the_same_block(true, &r1, &r2);

    (void)state;
    assert_string_equal(kv_text_table(&r2, 0), "0 1");
    assert_int_equal(block_table_take_dirty(&r2.seq.table[0]), 1); /* the device's copy must be
                                                                    * updated */
    assert_string_equal(kv_text_cached(mgr, 0), "0 1");
    assert_string_equal(kv_text_refs(&r2), "2 2");
    assert_string_equal(kv_text_queue(mgr, 0), "4 5 6 7 8 9 3");
    kv_req_done(&r1);
    assert_string_equal(kv_text_queue(mgr, 0), "4 5 6 7 8 9 3 2");
    kv_req_done(&r2);
    assert_string_equal(kv_text_queue(mgr, 0), "4 5 6 7 8 9 3 2 1 0");
    assert_int_equal(lookup_of_second_block(mgr), 1);
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_blocks_classic),
        cmocka_unit_test(ten_blocks_fresh_first),
        cmocka_unit_test(duplicates_both_stay_and_the_first_is_found),
        cmocka_unit_test(dedup_switches_to_the_block_that_is_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
