/* tests/conformance/test_kv_room_cases.c - numbered cases of how much room there is: what a call
 * takes is what was counted, when it is refused, and how many blocks memory is worth. One
 * full-attention group; test_kv_window_cases.c has the same for groups. */
#include <string.h>

#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "worker/kv/kv_plan.h"

#define OTHER 1000

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

static uint32_t n_free(const struct kv_manager *mgr) {
    return block_pool_n_free(kv_manager_pool(mgr));
}

/* One block is cached and free; a request hits it and wants one more. `n_other_free` are left. */
static enum status admit_beside(uint32_t n_other_free, struct kv_req *r, struct kv_manager **mgr) {
    struct kv_req cached;

    *mgr = make(2 + n_other_free, 16, FREE_ORDER_CLASSIC);
    request(&cached, *mgr, 16, 0, 0);
    assert_int_equal(kv_req_admit(&cached), ST_OK);
    kv_req_done(&cached);
    request(r, *mgr, 20, 0, 0);
    return kv_req_admit(r);
}

static void case_67_a_free_hit_is_counted_once(void **state) {
    struct kv_manager *mgr;
    struct kv_req r;

    (void)state;
    assert_int_equal(admit_beside(1, &r, &mgr), ST_OK);
    assert_string_equal(kv_text_table(&r, 0), "1 2");
    assert_int_equal(n_free(mgr), 0);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
    assert_int_equal(admit_beside(0, &r, &mgr), ST_BUSY); /* the hit itself must not be taken */
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void case_68_the_count_equals_what_is_taken(void **state) {
    (void)state;
    for (uint32_t n = 4; n <= 16; n += 4) {
        struct kv_manager *enough = make(1 + n / 4, 4, FREE_ORDER_FRESH_FIRST);
        struct kv_manager *short_by_one = n > 4 ? make(n / 4, 4, FREE_ORDER_FRESH_FIRST) : NULL;
        struct kv_req r;

        request(&r, enough, n, 0, 0);
        assert_int_equal(kv_req_admit(&r), ST_OK);
        assert_int_equal(n_free(enough), 0);
        kv_req_done(&r);
        kv_manager_destroy(enough);
        if (!short_by_one) continue;
        request(&r, short_by_one, n, 0, 0);
        assert_int_equal(kv_req_admit(&r), ST_BUSY);
        assert_int_equal(n_free(short_by_one), n / 4 - 1);
        kv_req_done(&r);
        kv_manager_destroy(short_by_one);
    }
}

/* What was taken ahead for drafts is more than what is wanted now: nothing is taken, or given. */
static void case_69_surplus_is_never_negative(void **state) {
    struct kv_alloc ahead = {.n_new = 5, .n_lookahead = 7};
    struct kv_alloc afar = {.n_computed = 5, .n_external = 1, .delay_publish = true};
    struct kv_manager *mgr = make(11, 4, FREE_ORDER_FRESH_FIRST);
    struct kv_req r;

    (void)state;
    request(&r, mgr, 6, 0, 0);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 6, &ahead), ST_OK);
    assert_string_equal(kv_text_table(&r, 0), "1 2 3");
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 6, &afar), ST_OK);
    assert_string_equal(kv_text_table(&r, 0), "1 2 3");
    assert_int_equal(n_free(mgr), 7);
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

/* Two devices with half the layers each, or a third and two: the poorer one decides for both. */
static void case_71_72_all_ranks_have_equally_many_blocks(void **state) {
    struct kv_rank ranks[2] = {{10 * 1000, 1000}, {20 * 1000 + 999, 1000}};
    struct kv_plan plan = {.ranks = ranks, .n_ranks = 2, .block_size = 16, .max_model_len = 64};
    uint32_t n = 0;

    (void)state;
    assert_int_equal(kv_plan_blocks(&plan, &n, NULL), ST_OK);
    assert_int_equal(n, 10);
    ranks[0] = (struct kv_rank){30 * 1000, 1000};
    assert_int_equal(kv_plan_blocks(&plan, &n, NULL), ST_OK);
    assert_int_equal(n, 20);
    ranks[1].block_bytes = 2000; /* twice the layers in the same memory */
    assert_int_equal(kv_plan_blocks(&plan, &n, NULL), ST_OK);
    assert_int_equal(n, 10);
}

/* A window needs no room for a whole sequence; each group needs its own. */
static void case_73_groups_share_the_blocks(void **state) {
    struct kv_rank rank = {.memory_bytes = 11 * 1000, .block_bytes = 1000};
    struct kv_plan plan = {.ranks = &rank,
                           .n_ranks = 1,
                           .block_size = 16,
                           .max_model_len = 160,
                           .max_step_tokens = 16,
                           .n_groups = 1,
                           .group = {{KV_SLIDING, 33}}};
    struct error err = {0};
    uint32_t n = 0;

    (void)state;
    plan.max_model_len = 100000; /* 32 behind, 16 of the step, in at most four blocks */
    rank.memory_bytes = 5 * 1000;
    assert_int_equal(kv_plan_blocks(&plan, &n, &err), ST_OK);
    rank.memory_bytes = 4 * 1000;
    assert_int_equal(kv_plan_blocks(&plan, &n, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "longest that fits is 48"));
    plan.n_groups = 2; /* beside full attention */
    plan.group[1] = (struct kv_group_config){KV_FULL, 0};
    rank.memory_bytes = 15 * 1000;
    plan.max_model_len = 160;
    assert_int_equal(kv_plan_blocks(&plan, &n, &err), ST_OK);
    plan.max_model_len = 161;
    assert_int_equal(kv_plan_blocks(&plan, &n, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "longest that fits is 160"));
}

static enum status plan_one(uint64_t memory_bytes, uint32_t max_model_len, uint32_t *n,
                            struct error *err) {
    const struct kv_rank rank = {.memory_bytes = memory_bytes, .block_bytes = 1000};
    const struct kv_plan plan = {
        .ranks = &rank, .n_ranks = 1, .block_size = 16, .max_model_len = max_model_len};

    return kv_plan_blocks(&plan, n, err);
}

static void case_73_too_little_memory_names_the_longest_sequence(void **state) {
    struct error err = {0};
    uint32_t n = 7;

    (void)state;
    assert_int_equal(plan_one(11 * 1000 + 999, 160, &n, &err), ST_OK);
    assert_int_equal(n, 11);
    n = 7;
    assert_int_equal(plan_one(11 * 1000, 161, &n, &err), ST_NOMEM);
    assert_int_equal(n, 7);
    assert_non_null(strstr(err.message, "161"));
    assert_non_null(strstr(err.message, "longest that fits is 160"));
    assert_int_equal(plan_one(999, 1, &n, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "longest that fits is 0"));
}

static void case_97_watermark_when_something_is_scheduled(void **state) {
    struct kv_manager_config config = kv_fixture_config(11, 16);
    struct kv_alloc a = {.n_new = 96, .has_scheduled = true};
    struct kv_manager *mgr;
    struct kv_req r0, r1;

    (void)state;
    config.watermark = 0.1; /* of 11 blocks: one */
    mgr = kv_manager_create(&config);
    request(&r0, mgr, 0, OTHER, 64);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(n_free(mgr), 6);
    request(&r1, mgr, 96, 0, 0);
    assert_int_equal(kv_manager_allocate(mgr, &r1.seq, r1.tokens, 96, &a), ST_BUSY);
    a.n_new = 80; /* five blocks, one stays */
    assert_int_equal(kv_manager_allocate(mgr, &r1.seq, r1.tokens, 96, &a), ST_OK);
    a.n_computed = 80;
    a.n_new = 16; /* running: the watermark is not for it */
    assert_int_equal(kv_manager_allocate(mgr, &r1.seq, r1.tokens, 96, &a), ST_OK);
    kv_req_done(&r1);

    request(&r1, mgr, 96, 0, 0);
    a = (struct kv_alloc){.n_new = 96}; /* nothing scheduled: progress comes first */
    assert_int_equal(kv_manager_allocate(mgr, &r1.seq, r1.tokens, 96, &a), ST_OK);
    kv_req_done(&r0);
    kv_req_done(&r1);
    kv_manager_destroy(mgr);
}

static void case_98_the_full_sequence_must_fit(void **state) {
    struct kv_alloc first_chunk = {.n_new = 16};
    struct kv_manager *mgr = make(8, 16, FREE_ORDER_FRESH_FIRST);
    struct kv_req r, cached;

    (void)state;
    request(&r, mgr, 160, 0, 0);
    first_chunk.full_sequence_must_fit = true;
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 160, &first_chunk), ST_BUSY);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 112, &first_chunk), ST_OK);
    kv_req_done(&r);

    /* Hits are not needed again, but free ones are no longer there to take. */
    request(&cached, mgr, 48, 0, 0);
    assert_int_equal(kv_req_admit(&cached), ST_OK);
    request(&r, mgr, 112, 0, 0);
    first_chunk.hit = kv_manager_lookup(mgr, &r.seq, r.tokens, 112);
    assert_int_equal(first_chunk.hit.n_tokens, 48);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 112, &first_chunk), ST_OK);
    kv_req_done(&cached);
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_67_a_free_hit_is_counted_once),
        cmocka_unit_test(case_68_the_count_equals_what_is_taken),
        cmocka_unit_test(case_69_surplus_is_never_negative),
        cmocka_unit_test(case_71_72_all_ranks_have_equally_many_blocks),
        cmocka_unit_test(case_73_groups_share_the_blocks),
        cmocka_unit_test(case_73_too_little_memory_names_the_longest_sequence),
        cmocka_unit_test(case_97_watermark_when_something_is_scheduled),
        cmocka_unit_test(case_98_the_full_sequence_must_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
