/* tests/unit/worker/kv/test_kv_manager.c - what the numbered cases leave out: chunks, tokens from
 * afar, lookahead, resumption, dirty tables, refused memory. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"

static struct kv_manager *make(uint32_t n_blocks, uint32_t block_size) {
    struct kv_manager_config config = kv_fixture_config(n_blocks, block_size);

    return kv_manager_create(&config);
}

static enum status allocate(struct kv_req *r, struct kv_alloc a) {
    return kv_manager_allocate(r->mgr, &r->seq, r->tokens, r->n_tokens, &a);
}

static void a_prompt_in_chunks_is_found_as_far_as_it_is_scheduled(void **state) {
    struct kv_manager *mgr = make(12, 4);
    struct kv_req first, second;

    (void)state;
    kv_req_text(&first, mgr, "ABCDEFGHIJKLMNOP");
    kv_req_text(&second, mgr, "ABCDEFGHIJKLMNOP");
    assert_int_equal(allocate(&first, (struct kv_alloc){.n_new = 10}), ST_OK);
    assert_int_equal(first.seq.table[0].n_blocks, 3);
    assert_int_equal(kv_manager_lookup(mgr, &second.seq, second.tokens, 16).n_tokens, 8);
    assert_int_equal(allocate(&first, (struct kv_alloc){.n_computed = 10, .n_new = 6}), ST_OK);
    assert_int_equal(first.seq.table[0].n_blocks, 4);
    /* All four blocks are there, but the last token must be computed. */
    assert_int_equal(kv_manager_lookup(mgr, &second.seq, second.tokens, 16).n_tokens, 12);
    kv_manager_check(mgr);
    kv_req_done(&first);
    kv_req_done(&second);
    kv_manager_destroy(mgr);
}

static void a_preempted_sequence_hits_its_own_blocks(void **state) {
    struct kv_manager *mgr = make(12, 4);
    struct kv_req r;
    uint32_t n_hashes;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFGHIJ");
    assert_int_equal(kv_req_admit(&r), ST_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(kv_req_decode(&r, 'k'), ST_OK);
    n_hashes = r.seq.n_hashes;
    assert_int_equal(n_hashes, 3);
    kv_req_free(&r);
    assert_int_equal(r.seq.n_hashes, n_hashes);
    assert_int_equal(kv_req_admit(&r), ST_OK);
    assert_int_equal(r.n_hit, 12); /* generated tokens included */
    kv_manager_record_admission(mgr, 14, 12, true);
    assert_int_equal(kv_manager_stats(mgr)->preempted.hits, 12);
    assert_int_equal(kv_manager_stats(mgr)->window.sum.requests, 2); /* not this one */
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

/* A manager that retains a quarter of its blocks, and a request that wants its first n kept. */
static struct kv_manager *make_retaining(uint32_t n_blocks) {
    struct kv_manager_config config = kv_fixture_config(n_blocks, 4);

    config.retained_share = 0.25;
    return kv_manager_create(&config);
}

static void run_text(struct kv_manager *mgr, const char *text, uint32_t n_kept, uint64_t tenant,
                     uint32_t *n_hit) {
    struct kv_retain keep = {n_kept, RETAIN_5M};
    struct kv_req r;

    kv_req_text(&r, mgr, text);
    r.seq.retain = &keep;
    r.seq.n_retain = n_kept > 0;
    r.seq.tenant = tenant;
    assert_int_equal(kv_req_admit(&r), ST_OK);
    if (n_hit) *n_hit = r.n_hit;
    kv_req_done(&r);
    kv_manager_check(mgr);
}

/* As much as `times` caches of other prompts, `second` after it was last used. */
static void run_others(struct kv_manager *mgr, uint32_t n_blocks, uint32_t times, uint64_t second) {
    kv_manager_set_now(mgr, second * 1000000);
    for (uint32_t i = 0; i < n_blocks * times / 4; i++) {
        struct kv_req r;

        kv_req_init(&r, mgr, NULL, false);
        kv_req_append_run(&r, 1000 + 16 * (i + n_blocks * times * (uint32_t)second), 16);
        assert_int_equal(kv_req_admit(&r), ST_OK);
        kv_req_done(&r);
    }
    kv_manager_check(mgr);
}

static void a_marked_prefix_outlives_other_traffic_for_its_time(void **state) {
    struct kv_manager *mgr = make_retaining(32);
    uint32_t n_hit;

    (void)state;
    run_text(mgr, "ABCDEFGHIJKLMNOPQRSTUVWX", 14, 0, NULL);
    run_others(mgr, 32, 100, 200);
    run_text(mgr, "ABCDEFGHIJKLMNOPQRSTUVWX", 0, 0, &n_hit);
    assert_int_equal(n_hit, 12); /* the whole blocks of what was marked, and no more */
    run_others(mgr, 32, 100, 499);
    run_text(mgr, "ABCDEFGHIJKLMNOPQRSTUVWX", 0, 0, &n_hit);
    assert_int_equal(n_hit, 12); /* the hit has started the time again */
    run_others(mgr, 32, 100, 799);
    run_text(mgr, "ABCDEFGHIJKLMNOPQRSTUVWX", 0, 0, &n_hit);
    assert_int_equal(n_hit, 0);
    assert_int_equal(block_pool_retained(kv_manager_pool(mgr)).n_expired, 3);
    kv_manager_destroy(mgr);
}

static void marks_beyond_the_budget_keep_heads_and_stop_no_request(void **state) {
    struct kv_manager *mgr = make_retaining(32);
    struct kv_req large;
    uint32_t n_hit;

    (void)state;
    kv_req_init(&large, mgr, NULL, false);
    kv_req_append_run(&large, 0, 120);
    large.seq.retain = &(struct kv_retain){120, RETAIN_24H};
    large.seq.n_retain = 1;
    assert_int_equal(kv_req_admit(&large), ST_OK); /* 30 of 31 blocks */
    kv_req_free(&large);
    assert_int_equal(block_pool_retained(kv_manager_pool(mgr)).n_free, 8);
    run_others(mgr, 32, 10, 1);
    assert_int_equal(kv_req_admit(&large), ST_OK);
    assert_int_equal(large.n_hit, 32);
    kv_req_done(&large);
    kv_manager_set_now(mgr, 2000000);
    run_text(mgr, "ABCDEFGHIJKLMNOPQRSTUVWX", 24, 5, NULL); /* a tenant has half: four blocks */
    run_others(mgr, 32, 10, 3);
    run_text(mgr, "ABCDEFGHIJKLMNOPQRSTUVWX", 0, 0, &n_hit);
    assert_int_equal(n_hit, 16);
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);
}

static void tokens_from_afar_take_blocks_and_are_published_when_there(void **state) {
    struct kv_alloc a = {.n_external = 8, .delay_publish = true};
    struct kv_manager *mgr = make(12, 4);
    struct kv_req r, other;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFGHIJ");
    kv_req_text(&other, mgr, "ABCDEFGHIJ");
    assert_int_equal(allocate(&r, a), ST_OK); /* nothing to compute yet */
    assert_int_equal(r.seq.table[0].n_blocks, 2);
    assert_int_equal(kv_manager_lookup(mgr, &other.seq, other.tokens, 10).n_tokens, 0);
    kv_manager_publish(mgr, &r.seq, r.tokens, 10, 8);
    assert_int_equal(kv_manager_lookup(mgr, &other.seq, other.tokens, 10).n_tokens, 8);
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_computed = 8, .n_new = 2}), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 3);
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_req_done(&other);
    kv_manager_destroy(mgr);
}

static void lookahead_takes_slots_and_publishes_nothing(void **state) {
    struct kv_manager *mgr = make(12, 4);
    struct kv_req r;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFG");
    /* One known token and three drafts: the block is full of them, and not findable. */
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_new = 7 + 3, .n_lookahead = 3}), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 4); /* 13 slots */
    assert_int_equal(r.seq.n_published, 1);
    /* All drafts refused: what is owned already is enough. */
    kv_req_append(&r, 'x');
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_computed = 7, .n_new = 1}), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 4);
    assert_int_equal(r.seq.n_published, 2);
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void slots_end_at_the_longest_sequence(void **state) {
    struct kv_manager_config config = kv_fixture_config(12, 4);
    struct kv_manager *mgr;
    struct kv_req r;

    (void)state;
    config.max_model_len = 10;
    mgr = kv_manager_create(&config);
    kv_req_text(&r, mgr, "ABCDEFGHIJ");
    assert_int_equal(r.seq.table[0].capacity, 3);
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_new = 10, .n_lookahead = 5}), ST_OK);
    assert_int_equal(r.seq.table[0].n_blocks, 3);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void reserved_blocks_are_left_for_others(void **state) {
    struct kv_manager *mgr = make(5, 4);
    struct kv_req r;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFGH");
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_new = 8, .reserved_blocks = 3}), ST_BUSY);
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_new = 8, .reserved_blocks = 9}), ST_BUSY);
    assert_int_equal(allocate(&r, (struct kv_alloc){.n_new = 8, .reserved_blocks = 2}), ST_OK);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void adapters_do_not_share(void **state) {
    const struct block_extras a = {.lora = STR("a")}, b = {.lora = STR("b")};
    const struct block_extras *who[] = {NULL, &a, &b, NULL, &a, &b};
    struct kv_manager *mgr = make(20, 4);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(who); i++) {
        struct kv_req r;

        kv_req_init(&r, mgr, who[i], false);
        kv_req_append_text(&r, "ABCDEFGHI");
        assert_int_equal(kv_req_admit(&r), ST_OK);
        assert_int_equal(r.n_hit, i < 3 ? 0 : 8);
        kv_req_done(&r);
    }
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);
}

static void extras_are_hashed_alike_in_one_piece_and_token_by_token(void **state) {
    const struct block_mm_item items[2] = {{STR("cat"), 2, 5}, {STR("dog"), 9, 2}};
    const struct block_extras extras = {
        .lora = STR("a"), .cache_salt = STR("s"), .items = items, .n_items = 2};
    struct kv_manager *mgr = make(20, 3);
    struct kv_req whole, slow;

    (void)state;
    kv_req_init(&whole, mgr, &extras, false);
    kv_req_init(&slow, mgr, &extras, false);
    kv_req_append_text(&whole, "ABCDEFGHIJKLMNOP");
    kv_seq_extend_hashes(mgr, &whole.seq, whole.tokens, whole.n_tokens);
    for (uint32_t n = 1; n <= whole.n_tokens; n++) {
        kv_seq_extend_hashes(mgr, &slow.seq, whole.tokens, n);
        assert_int_equal(slow.seq.n_hashes, n / 3);
    }
    assert_memory_equal(slow.seq.hashes, whole.seq.hashes, 5 * sizeof(struct block_hash));
    assert_memory_equal(slow.seq.extra_digests, whole.seq.extra_digests,
                        5 * sizeof(struct block_hash));
    kv_req_done(&whole);
    kv_req_done(&slow);
    kv_manager_destroy(mgr);
}

static void new_entries_are_reported_once(void **state) {
    struct kv_manager *mgr = make(12, 4);
    struct kv_req r0, r1;

    (void)state;
    kv_req_text(&r0, mgr, "ABCDEFGH");
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    kv_req_text(&r1, mgr, "ABCDEFGHI");
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 8);
    assert_int_equal(block_table_take_dirty(&r1.seq.table[0]), 0); /* hits are new to its row */
    assert_int_equal(kv_req_decode(&r1, 'x'), ST_OK);
    assert_int_equal(block_table_take_dirty(&r1.seq.table[0]), 3); /* nothing */
    for (int i = 0; i < 3; i++)
        assert_int_equal(kv_req_decode(&r1, 'x'), ST_OK);
    assert_int_equal(r1.seq.table[0].n_blocks, 4);
    assert_int_equal(block_table_take_dirty(&r1.seq.table[0]), 3); /* the fourth */
    kv_req_done(&r0);
    kv_req_done(&r1);
    kv_manager_destroy(mgr);
}

static void freeing_an_empty_request_is_allowed(void **state) {
    struct kv_manager *mgr = make(3, 4);
    struct kv_req r;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFGHIJKLMNOP");
    kv_req_free(&r);
    assert_int_equal(kv_req_admit(&r), ST_BUSY);
    kv_req_free(&r);
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

static void waste_counts_slots_without_tokens(void **state) {
    struct kv_manager *mgr = make(12, 4);
    struct kv_req r0, r1, child;

    (void)state;
    assert_true(kv_manager_waste(mgr) == 0);
    kv_req_text(&r0, mgr, "ABCDEFGHIJ");
    kv_req_text(&r1, mgr, "ABCDEFGHI");
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_int_equal(kv_manager_idle_slots(mgr), 2);
    assert_true(kv_manager_waste(mgr) == 2.0 / 12);
    assert_int_equal(kv_req_admit(&r1), ST_OK); /* two blocks are the other's */
    assert_int_equal(kv_manager_idle_slots(mgr), 2 + 3);
    assert_true(kv_manager_waste(mgr) == 5.0 / 16);
    assert_int_equal(kv_req_fork(&child, &r0, 10), ST_OK);
    assert_true(kv_manager_waste(mgr) == 5.0 / 16); /* nothing new */
    assert_int_equal(kv_req_decode(&child, 'x'), ST_OK);
    assert_int_equal(kv_manager_idle_slots(mgr), 2 + 3 + 1); /* a copy with one token more */
    assert_int_equal(kv_req_decode(&r1, 'y'), ST_OK);
    assert_int_equal(kv_manager_idle_slots(mgr), 2 + 2 + 1);
    kv_req_append(&r0, 'z');
    assert_int_equal(
        allocate(&r0, (struct kv_alloc){.n_computed = 10, .n_new = 1, .n_lookahead = 2}), ST_OK);
    assert_int_equal(kv_manager_idle_slots(mgr),
                     1 + 4 + 2 + 1); /* slots for drafts hold none yet */
    kv_req_done(&child);
    kv_req_done(&r0);
    kv_req_done(&r1);
    assert_int_equal(kv_manager_idle_slots(mgr), 0);
    kv_manager_destroy(mgr);
}

/* Both branches fill the block they share alike: the one that is done second keeps its own. */
static void dedup_keeps_blocks_of_a_fork(void **state) {
    struct kv_alloc late = {.n_new = 10, .delay_publish = true};
    struct kv_manager_config config = kv_fixture_config(12, 4);
    struct kv_req parent, child, other;
    struct kv_manager *mgr;

    (void)state;
    config.dedup = true;
    mgr = kv_manager_create(&config);
    kv_req_text(&parent, mgr, "ABCDEFGHIJ");
    assert_int_equal(allocate(&parent, late), ST_OK);
    assert_int_equal(kv_req_fork(&child, &parent, 10), ST_OK);
    kv_req_text(&other, mgr, "ABCDx");
    assert_int_equal(kv_req_admit(&other), ST_OK); /* publishes ABCD, which both branches have */
    kv_manager_publish(mgr, &parent.seq, parent.tokens, 10, 10);
    assert_string_equal(kv_text_table(&parent, 0), "1 2 3");
    kv_req_done(&parent);
    kv_req_done(&other);
    kv_manager_check(mgr); /* EFGH is held, and so is an ABCD before it */
    assert_int_equal(kv_req_decode(&child, 'K'), ST_OK);
    assert_string_equal(kv_text_table(&child, 0), "1 2 3");
    kv_manager_check(mgr);
    kv_req_done(&child);
    kv_manager_destroy(mgr);
}

static void a_fork_hashes_nothing_twice(void **state) {
    const struct block_mm_item items[2] = {{STR("cat"), 2, 5}, {STR("dog"), 9, 2}};
    const struct block_extras extras = {.cache_salt = STR("s"), .items = items, .n_items = 2};
    struct kv_manager *mgr = make(20, 3);
    struct kv_req parent, child;

    (void)state;
    kv_req_init(&parent, mgr, &extras, false);
    kv_req_append_text(&parent, "ABCDEFGHIJKLMNOP");
    assert_int_equal(kv_req_admit(&parent), ST_OK);
    assert_int_equal(kv_req_fork(&child, &parent, 8), ST_OK);
    assert_int_equal(child.seq.n_hashes, 2);
    for (uint32_t i = 8; i < 16; i++)
        assert_int_equal(kv_req_decode(&child, parent.tokens[i]), ST_OK);
    assert_int_equal(child.seq.n_hashes, 5);
    assert_memory_equal(child.seq.hashes, parent.seq.hashes, 5 * sizeof(struct block_hash));
    assert_memory_equal(child.seq.extra_digests, parent.seq.extra_digests,
                        5 * sizeof(struct block_hash));
    kv_manager_check(mgr);
    kv_req_done(&parent);
    kv_req_done(&child);
    kv_manager_destroy(mgr);
}

static void refused_memory_and_extras_are_a_status(void **state) {
    const struct block_extras extras = {.lora = STR("a")};
    struct block_mm_item items[2] = {{STR("a"), 4, 1}, {STR("b"), 3, 1}};
    const struct block_extras unsorted = {.items = items, .n_items = 2};
    struct kv_manager *mgr = make(3, 4);
    struct error err = {0};
    struct kv_seq seq;

    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        mem_fail_at(n);
        assert_int_equal(kv_seq_init(&seq, mgr, 100, &extras, false, &err), ST_NOMEM);
        assert_non_null(strstr(err.message, "100"));
        kv_seq_fini(&seq); /* fine once more */
    }
    mem_fail_at(4);
    assert_int_equal(kv_seq_init(&seq, mgr, 100, &extras, false, &err), ST_OK);
    kv_seq_fini(&seq);
    mem_fail_at(0);
    assert_int_equal(kv_seq_init(&seq, mgr, 100, &unsorted, false, &err), ST_INVALID);
    kv_seq_fini(&seq);
    kv_manager_destroy(mgr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_in_chunks_is_found_as_far_as_it_is_scheduled),
        cmocka_unit_test(a_preempted_sequence_hits_its_own_blocks),
        cmocka_unit_test(a_marked_prefix_outlives_other_traffic_for_its_time),
        cmocka_unit_test(marks_beyond_the_budget_keep_heads_and_stop_no_request),
        cmocka_unit_test(tokens_from_afar_take_blocks_and_are_published_when_there),
        cmocka_unit_test(lookahead_takes_slots_and_publishes_nothing),
        cmocka_unit_test(slots_end_at_the_longest_sequence),
        cmocka_unit_test(reserved_blocks_are_left_for_others),
        cmocka_unit_test(adapters_do_not_share),
        cmocka_unit_test(extras_are_hashed_alike_in_one_piece_and_token_by_token),
        cmocka_unit_test(new_entries_are_reported_once),
        cmocka_unit_test(freeing_an_empty_request_is_allowed),
        cmocka_unit_test(waste_counts_slots_without_tokens),
        cmocka_unit_test(dedup_keeps_blocks_of_a_fork),
        cmocka_unit_test(a_fork_hashes_nothing_twice),
        cmocka_unit_test(refused_memory_and_extras_are_a_status),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
