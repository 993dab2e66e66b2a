/* tests/conformance/test_kv_fork_cases.c - sharing and copy-on-write: the PagedAttention paper's
 * examples of parallel sampling and beam search, and case 96. Blocks of 4, ids from 0 where the
 * example has them. */
#include <string.h>

#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"

static struct kv_manager *make(uint32_t n_blocks, bool no_null) {
    struct kv_manager_config config = kv_fixture_config(n_blocks, 4);

    config.no_null = no_null;
    return kv_manager_create(&config);
}

static uint32_t n_free(const struct kv_manager *mgr) {
    return block_pool_n_free(kv_manager_pool(mgr));
}

/* A prompt of 7 tokens in two blocks, two samples of it. The first that writes gets the copy, the
 * other keeps the block; the full one stays shared. */
static void parallel_sampling_copies_the_last_block_once(void **state) {
    struct kv_manager *mgr = make(8, true);
    struct kv_req a1, a2;

    (void)state;
    kv_req_text(&a1, mgr, "1234567");
    assert_int_equal(kv_req_admit(&a1), ST_OK);
    assert_string_equal(kv_text_table(&a1, 0), "0 1");
    assert_int_equal(kv_req_fork(&a2, &a1, 7), ST_OK);
    assert_string_equal(kv_text_table(&a2, 0), "0 1");
    assert_string_equal(kv_text_refs(&a1), "2 2");
    assert_string_equal(kv_text_moves(mgr, 0), "");
    assert_int_equal(n_free(mgr), 6);
    kv_manager_check(mgr);

    assert_int_equal(kv_req_decode(&a1, 'x'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "1>2");
    assert_string_equal(kv_text_table(&a1, 0), "0 2");
    assert_string_equal(kv_text_refs(&a1), "2 1");
    assert_int_equal(kv_req_decode(&a2, 'y'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), ""); /* alone by now */
    assert_string_equal(kv_text_table(&a2, 0), "0 1");
    assert_string_equal(kv_text_refs(&a2), "2 1");
    assert_int_equal(a1.seq.n_published, 2);
    assert_int_equal(a2.seq.n_published, 2);
    assert_memory_not_equal(&a1.seq.hashes[1], &a2.seq.hashes[1], sizeof(struct block_hash));
    kv_manager_check(mgr);

    assert_int_equal(kv_req_decode(&a1, 'x'), ST_OK); /* each in a block of its own */
    assert_int_equal(kv_req_decode(&a2, 'y'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "");
    assert_string_equal(kv_text_table(&a1, 0), "0 2 3");
    assert_string_equal(kv_text_table(&a2, 0), "0 1 4");
    kv_req_done(&a1);
    kv_manager_check(mgr);
    kv_req_done(&a2);
    assert_int_equal(n_free(mgr), 8);
    kv_manager_destroy(mgr);
}

/* Gives a beam four more tokens: one block. */
static void grow(struct kv_req *r, const char *text) {
    uint32_t n = (uint32_t)strlen(text);

    kv_req_append_text(r, text);
    assert_int_equal(kv_req_advance(r, n), ST_OK);
}

/* Width 4 over full blocks: 0 is the prompt, 1 and 2 branch from it, 3 follows 1 and 4 follows 2;
 * the beams end in 5, 6, 7 (after 3) and 8 (after 4). The next four best come two from 6 and two
 * from 7. */
static void beams_share_their_past_and_drop_it_with_the_last(void **state) {
    struct kv_manager *mgr = make(13, true);
    struct kv_req b[4], next[4];

    (void)state;
    kv_req_text(&b[0], mgr, "pppp");
    assert_int_equal(kv_req_admit(&b[0]), ST_OK);
    assert_int_equal(kv_req_fork(&b[3], &b[0], 4), ST_OK);
    grow(&b[0], "1111");
    grow(&b[3], "2222");
    grow(&b[0], "3333");
    grow(&b[3], "4444");
    assert_int_equal(kv_req_fork(&b[1], &b[0], 12), ST_OK);
    assert_int_equal(kv_req_fork(&b[2], &b[0], 12), ST_OK);
    grow(&b[0], "5555");
    grow(&b[1], "6666");
    grow(&b[2], "7777");
    grow(&b[3], "8888");
    assert_string_equal(kv_text_table(&b[0], 0), "0 1 3 5");
    assert_string_equal(kv_text_table(&b[1], 0), "0 1 3 6");
    assert_string_equal(kv_text_table(&b[2], 0), "0 1 3 7");
    assert_string_equal(kv_text_table(&b[3], 0), "0 2 4 8");
    assert_string_equal(kv_text_refs(&b[1]), "4 3 3 1");
    kv_manager_check(mgr);

    for (int i = 0; i < 4; i++)
        assert_int_equal(kv_req_fork(&next[i], &b[1 + i / 2], 16), ST_OK);
    for (int i = 0; i < 4; i++)
        kv_req_done(&b[i]);
    for (int i = 0; i < 4; i++) {
        kv_req_append(&next[i], (uint32_t)('a' + i));
        assert_int_equal(kv_req_advance(&next[i], 1), ST_OK);
    }
    assert_string_equal(kv_text_table(&next[0], 0), "0 1 3 6 9");
    assert_string_equal(kv_text_table(&next[1], 0), "0 1 3 6 10");
    assert_string_equal(kv_text_table(&next[2], 0), "0 1 3 7 11");
    assert_string_equal(kv_text_table(&next[3], 0), "0 1 3 7 12");
    assert_string_equal(kv_text_refs(&next[0]), "4 4 4 2 1");
    assert_string_equal(kv_text_moves(mgr, 0), "");        /* every write began a block */
    assert_string_equal(kv_text_queue(mgr, 0), "5 8 4 2"); /* the dropped beams' own blocks */
    kv_manager_check(mgr);
    for (int i = 0; i < 4; i++)
        kv_req_done(&next[i]);
    kv_manager_destroy(mgr);
}

static void case_96_the_copy_list_is_exact(void **state) {
    struct kv_manager *mgr = make(12, false);
    struct kv_req parent, child[3];

    (void)state;
    kv_req_text(&parent, mgr, "ABCDEF");
    assert_int_equal(kv_req_admit(&parent), ST_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kv_req_fork(&child[i], &parent, 6), ST_OK);
    assert_string_equal(kv_text_refs(&parent), "4 4");
    for (int i = 0; i < 3; i++)
        assert_int_equal(kv_req_decode(&child[i], (uint32_t)('a' + i)), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "2>3 2>4 2>5");
    assert_string_equal(kv_text_refs(&parent), "4 1");
    assert_int_equal(kv_req_decode(&parent, 'p'), ST_OK); /* the last holder writes in place */
    assert_string_equal(kv_text_moves(mgr, 0), "");
    assert_string_equal(kv_text_table(&parent, 0), "1 2");
    kv_manager_check(mgr);
    for (int i = 0; i < 3; i++)
        kv_req_done(&child[i]);
    kv_req_done(&parent);
    kv_manager_destroy(mgr);
}

static void case_96_a_full_block_is_not_copied(void **state) {
    struct kv_manager *mgr = make(12, false);
    struct kv_req parent, child;

    (void)state;
    kv_req_text(&parent, mgr, "ABCDEFGH");
    assert_int_equal(kv_req_admit(&parent), ST_OK);
    assert_int_equal(kv_req_fork(&child, &parent, 8), ST_OK);
    assert_int_equal(kv_req_decode(&child, 'x'), ST_OK);
    assert_int_equal(kv_req_decode(&parent, 'y'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "");
    assert_string_equal(kv_text_table(&child, 0), "1 2 3");
    assert_string_equal(kv_text_table(&parent, 0), "1 2 4");
    kv_manager_check(mgr);
    kv_req_done(&child);
    kv_req_done(&parent);
    kv_manager_destroy(mgr);
}

/* The last prompt token is recomputed, in a block that is full, shared and findable. */
static void a_fork_inside_a_full_block_leaves_it_as_it_is(void **state) {
    struct kv_manager *mgr = make(12, false);
    struct kv_req parent, child, other;

    (void)state;
    kv_req_text(&parent, mgr, "ABCDEFGH");
    assert_int_equal(kv_req_admit(&parent), ST_OK);
    assert_int_equal(kv_req_fork(&child, &parent, 7), ST_OK);
    assert_string_equal(kv_text_table(&child, 0), "1 2");
    kv_manager_check(mgr);
    assert_int_equal(kv_req_decode(&child, 'H'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "2>3");
    assert_string_equal(kv_text_table(&child, 0), "1 3");
    assert_string_equal(kv_text_refs(&parent), "2 1");
    kv_manager_check(mgr);

    /* The same after its parent has ended: no sequence holds the block, but it can be found. */
    kv_req_done(&child);
    assert_int_equal(kv_req_fork(&child, &parent, 6), ST_OK);
    kv_req_done(&parent);
    assert_string_equal(kv_text_refs(&child), "1 1");
    assert_int_equal(kv_req_decode(&child, 'x'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "2>4"); /* 3 is cached, 2 is left to its prefix */
    kv_req_text(&other, mgr, "ABCDEFGHI");
    assert_int_equal(kv_req_admit(&other), ST_OK);
    assert_int_equal(other.n_hit, 8);
    assert_string_equal(kv_text_table(&other, 0), "1 2 5");
    kv_manager_check(mgr);
    kv_req_done(&child);
    kv_req_done(&other);
    kv_manager_destroy(mgr);
}

static void a_copy_needs_a_free_block(void **state) {
    struct kv_manager *mgr = make(3, false);
    struct kv_req parent, child;

    (void)state;
    kv_req_text(&parent, mgr, "ABCDEF");
    assert_int_equal(kv_req_admit(&parent), ST_OK);
    assert_int_equal(kv_req_fork(&child, &parent, 6), ST_OK);
    assert_int_equal(kv_req_decode(&child, 'x'), ST_BUSY);
    assert_string_equal(kv_text_table(&child, 0), "1 2");
    assert_string_equal(kv_text_refs(&child), "2 2");
    assert_string_equal(kv_text_moves(mgr, 0), "");
    kv_req_done(&parent); /* one holder less: no copy, no block */
    assert_int_equal(kv_req_advance(&child, 1), ST_OK);
    assert_string_equal(kv_text_table(&child, 0), "1 2");
    kv_manager_check(mgr);
    kv_req_done(&child);
    kv_manager_destroy(mgr);
}

/* Blocks that wait to be published (their KV comes later) may be published by either. */
static void shared_blocks_are_published_once(void **state) {
    struct kv_alloc late = {.n_new = 10, .delay_publish = true};
    struct kv_manager *mgr = make(12, false);
    struct kv_req parent, child;

    (void)state;
    kv_req_text(&parent, mgr, "ABCDEFGHIJ");
    assert_int_equal(kv_manager_allocate(mgr, &parent.seq, parent.tokens, 10, &late), ST_OK);
    assert_int_equal(kv_req_fork(&child, &parent, 10), ST_OK);
    assert_int_equal(kv_req_decode(&child, 'x'), ST_OK);
    assert_string_equal(kv_text_cached(mgr, 0), "1 2");
    kv_manager_publish(mgr, &parent.seq, parent.tokens, 10, 10);
    assert_string_equal(kv_text_cached(mgr, 0), "1 2");
    assert_int_equal(parent.seq.n_published, 2);
    kv_manager_check(mgr);
    kv_req_done(&parent);
    kv_req_done(&child);
    kv_manager_destroy(mgr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parallel_sampling_copies_the_last_block_once),
        cmocka_unit_test(beams_share_their_past_and_drop_it_with_the_last),
        cmocka_unit_test(case_96_the_copy_list_is_exact),
        cmocka_unit_test(case_96_a_full_block_is_not_copied),
        cmocka_unit_test(a_fork_inside_a_full_block_leaves_it_as_it_is),
        cmocka_unit_test(a_copy_needs_a_free_block),
        cmocka_unit_test(shared_blocks_are_published_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
