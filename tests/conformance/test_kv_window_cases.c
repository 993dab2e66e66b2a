/* tests/conformance/test_kv_window_cases.c - numbered cases of windows, chunks and groups over one
 * pool. Null block on, ids from 1, classic order. */
#include <stdio.h>
#include <string.h>

#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "worker/kv/kv_coordinator.h"

#define COMMON_TOKENS 48
#define OTHER         1000

/* --- one group alone ------------------------------------------------------------------------- */

#define LONE_BLOCKS 32 /* of a sequence; blocks of the pool above that are free */
#define LONE_BS     2

/* One group over a pool, and a sequence whose blocks are cached where a text has 1. */
struct lone {
    struct kv_group group;
    struct block_hash hashes[LONE_BLOCKS];
    uint32_t tokens[LONE_BLOCKS * LONE_BS];
    struct kv_chain chain;
};

static void lone_init(struct lone *l, enum kv_attention kind, uint32_t window) {
    *l = (struct lone){.group = {.config = {kind, window}, .block_size = LONE_BS}};
    l->group.pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = 2 * LONE_BLOCKS + 1, .block_size = LONE_BS, .order = FREE_ORDER_CLASSIC});
    for (uint32_t i = 0; i < LONE_BLOCKS; i++) {
        l->hashes[i].bytes[0] = (uint8_t)(i + 1);
        for (uint32_t k = 0; k < LONE_BS; k++)
            l->tokens[i * LONE_BS + k] = i;
    }
    l->chain = (struct kv_chain){.hashes = l->hashes, .witnesses = l->hashes, .tokens = l->tokens};
}

static void lone_cache(struct lone *l, const char *flags) {
    for (uint32_t i = 0; flags[i]; i++) {
        struct prefix_key key = {
            .hash = &l->hashes[i], .tokens = &l->tokens[i * LONE_BS], .extra = &l->hashes[i]};
        block_id id;

        if (flags[i] == '0') continue;
        assert_int_equal(block_pool_acquire(l->group.pool, &id, 1), ST_OK);
        block_pool_publish(l->group.pool, id, &key, 0);
        block_pool_release(l->group.pool, &id, 1);
    }
}

/* The hit among `flags`, checked block by block: null before what is needed, real behind. */
static uint32_t lone_hit(enum kv_attention kind, uint32_t window, const char *flags,
                         uint32_t n_max) {
    block_id ids[LONE_BLOCKS];
    struct kv_range skipped;
    struct lone l;
    uint32_t n;

    lone_init(&l, kind, window);
    lone_cache(&l, flags);
    n = kv_group_find(&l.group, &l.chain, n_max, ids);
    skipped = kv_group_skipped(&l.group, n * LONE_BS, 0);
    for (uint32_t i = 0; i < n; i++) {
        bool is_needed = i >= skipped.to;

        assert_int_equal(ids[i] != BLOCK_NULL, is_needed);
        assert_true(!is_needed || flags[i] == '1');
    }
    block_pool_destroy(l.group.pool);
    return n;
}

static void case_60_sliding_window_hits(void **state) {
    static const struct {
        const char *flags;
        uint32_t want;
    } rows[] = {{"0000000000", 0},  {"1", 1},           {"10", 1},   {"11", 2},
                {"110", 2},         {"111", 3},         {"1110", 3}, {"110100110111", 12},
                {"11010011000", 8}, {"110100110001", 8}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t n = (uint32_t)strlen(rows[i].flags);

        assert_int_equal(lone_hit(KV_SLIDING, 4, rows[i].flags, n), rows[i].want);
    }
}

/* A last flag, behind the slash, is a token beyond the blocks and has no meaning. */
static void case_61_chunked_local_hits(void **state) {
    static const struct {
        const char *flags;
        uint32_t want;
    } rows[] = {{"1", 1},          {"10", 2},          {"11", 2},          {"110", 2},
                {"111", 3},        {"1110", 4},        {"0", 0},           {"010101001", 9},
                {"010101000", 8},  {"0101010011", 10}, {"1111000010", 10}, {"1111000001", 10},
                {"1111000000", 10}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t n = (uint32_t)strlen(rows[i].flags);

        assert_int_equal(lone_hit(KV_CHUNKED, 4, rows[i].flags, n), rows[i].want);
    }
}

/* Links of two tokens under blocks of four: a block goes by the second of its two hashes. */
static void case_62_a_chain_finer_than_the_blocks(void **state) {
    struct kv_manager_config fine = kv_fixture_config(9, 2), coarse = kv_fixture_config(9, 4);
    struct kv_manager *by_two, *by_four;
    struct kv_req a, b, again;

    (void)state;
    coarse.hash_block_size = 2;
    coarse.n_groups = 1;
    coarse.group[0] = (struct kv_group_config){KV_SLIDING, 8};
    by_two = kv_manager_create(&fine);
    by_four = kv_manager_create(&coarse);
    kv_req_text(&a, by_two, "ABCDEFGH");
    kv_req_text(&b, by_four, "ABCDEFGH");
    assert_int_equal(kv_req_admit(&a), ST_OK);
    assert_int_equal(kv_req_admit(&b), ST_OK);
    assert_int_equal(a.seq.n_hashes, 4);
    assert_int_equal(b.seq.n_hashes, 2);
    assert_memory_equal(&b.seq.hashes[0], &a.seq.hashes[1], sizeof(struct block_hash));
    assert_memory_equal(&b.seq.hashes[1], &a.seq.hashes[3], sizeof(struct block_hash));
    kv_req_text(&again, by_four, "ABCDEFGHI");
    assert_int_equal(kv_req_admit(&again), ST_OK);
    assert_int_equal(again.n_hit, 8);
    kv_manager_check(by_four);
    kv_req_done(&a);
    kv_req_done(&b);
    kv_req_done(&again);
    kv_manager_destroy(by_two);
    kv_manager_destroy(by_four);
}

/* Extra keys belong to their link of the chain; sequences with other keys share nothing behind it.
 * */
static void a_finer_chain_has_the_same_extra_keys(void **state) {
    const struct block_mm_item items[2] = {{STR("cat"), 1, 2}, {STR("dog"), 5, 1}};
    const struct block_extras extras = {.cache_salt = STR("s"), .items = items, .n_items = 2};
    struct block_mm_item others[2] = {items[0], {STR("cow"), 5, 1}};
    const struct block_extras other = {.cache_salt = STR("s"), .items = others, .n_items = 2};
    struct kv_manager_config fine = kv_fixture_config(9, 2), coarse = kv_fixture_config(9, 4);
    struct kv_manager *by_two, *by_four;
    struct kv_req a, b, c;

    (void)state;
    coarse.hash_block_size = 2;
    by_two = kv_manager_create(&fine);
    by_four = kv_manager_create(&coarse);
    kv_req_init(&a, by_two, &extras, false);
    kv_req_init(&b, by_four, &extras, false);
    kv_req_init(&c, by_four, &other, false);
    kv_req_append_text(&a, "ABCDEFGHI");
    kv_req_append_text(&b, "ABCDEFGHI");
    kv_req_append_text(&c, "ABCDEFGHI");
    assert_int_equal(kv_req_admit(&a), ST_OK);
    assert_int_equal(kv_req_admit(&b), ST_OK);
    assert_memory_equal(&b.seq.hashes[0], &a.seq.hashes[1], sizeof(struct block_hash));
    assert_memory_equal(&b.seq.hashes[1], &a.seq.hashes[3], sizeof(struct block_hash));
    assert_int_equal(kv_req_admit(&c), ST_OK);
    assert_int_equal(c.n_hit, 4);
    assert_memory_not_equal(&c.seq.extra_digests[1], &b.seq.extra_digests[1],
                            sizeof(struct block_hash));
    kv_manager_check(by_four);
    kv_req_done(&a);
    kv_req_done(&b);
    kv_req_done(&c);
    kv_manager_destroy(by_two);
    kv_manager_destroy(by_four);
}

/* Ten blocks 1..10 of two tokens; the table after each count of computed tokens. */
static const char *after_skip(struct lone *l, struct block_table *t, uint32_t n_computed,
                              uint32_t n_prompt) {
    static char text[128];
    block_id scratch[LONE_BLOCKS];

    kv_group_drop_skipped(&l->group, t, n_computed, n_prompt, scratch);
    text[0] = '\0';
    for (uint32_t i = 0; i < t->n_blocks; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%u", i ? " " : "", t->ids[i]);
    return text;
}

static void lone_table(struct lone *l, struct block_table *t, uint32_t n) {
    block_id ids[LONE_BLOCKS];

    assert_int_equal(block_table_init(t, LONE_BLOCKS), ST_OK);
    assert_int_equal(block_pool_acquire(l->group.pool, ids, n), ST_OK);
    block_table_append(t, ids, n);
}

static void lone_fini(struct lone *l, struct block_table *t) {
    block_id scratch[LONE_BLOCKS];

    kv_group_release(&l->group, t, scratch);
    block_table_fini(t);
    assert_int_equal(block_pool_n_free(l->group.pool), block_pool_n_usable(l->group.pool));
    block_pool_check(l->group.pool);
    block_pool_destroy(l->group.pool);
}

/* The last n of the free queue, which in classic order are those given back last. */
static const char *queue_tail(const struct block_pool *pool, uint32_t n) {
    static char text[64];
    uint32_t skip = block_pool_n_free(pool) - n;

    text[0] = '\0';
    for (block_id id = block_pool_next_free(pool, BLOCK_NONE); id != BLOCK_NONE;
         id = block_pool_next_free(pool, id)) {
        if (skip > 0) {
            skip--;
            continue;
        }
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%u", text[0] ? " " : "", id);
    }
    return text;
}

static void case_63_a_window_gives_back_behind_itself(void **state) {
    struct block_table t;
    struct lone l;

    (void)state;
    lone_init(&l, KV_SLIDING, 4);
    lone_table(&l, &t, 10);
    assert_string_equal(after_skip(&l, &t, 0, 0), "1 2 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 4, 0), "1 2 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 5, 0), "0 2 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 6, 0), "0 2 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 7, 0), "0 0 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 11, 0), "0 0 0 0 5 6 7 8 9 10");
    assert_string_equal(queue_tail(l.group.pool, 4), "1 2 4 3"); /* the higher one first */
    assert_int_equal(block_table_take_dirty(&t), 0);
    lone_fini(&l, &t);
}

static void case_64_a_chunk_gives_back_those_before_it(void **state) {
    struct block_table t;
    struct lone l;

    (void)state;
    lone_init(&l, KV_CHUNKED, 4);
    lone_table(&l, &t, 10);
    assert_string_equal(after_skip(&l, &t, 0, 0), "1 2 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 4, 0), "0 0 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 6, 0), "0 0 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 12, 0), "0 0 0 0 0 0 7 8 9 10");
    assert_string_equal(queue_tail(l.group.pool, 6), "2 1 6 5 4 3");
    lone_fini(&l, &t);
}

/* In tokens, with blocks of one. */
static uint32_t skipped_tokens(enum kv_attention kind, uint32_t window, uint32_t n_computed) {
    struct kv_group g = {.config = {kind, window}, .block_size = 1};

    return kv_group_skipped(&g, n_computed, 0).to;
}

static void case_65_skipped_tokens(void **state) {
    (void)state;
    assert_int_equal(skipped_tokens(KV_FULL, 0, 1000), 0);
    assert_int_equal(skipped_tokens(KV_SLIDING, 4, 7), 4);
    assert_int_equal(skipped_tokens(KV_SLIDING, 4, 3), 0);
    assert_int_equal(skipped_tokens(KV_SLIDING, 4, 4), 1);
    assert_int_equal(skipped_tokens(KV_SLIDING, 1, 5), 5); /* itself only */
    assert_int_equal(skipped_tokens(KV_CHUNKED, 8, 13), 8);
    assert_int_equal(skipped_tokens(KV_CHUNKED, 8, 8), 8);
    assert_int_equal(skipped_tokens(KV_CHUNKED, 8, 7), 0);
}

/* 20 blocks wanted; ten unused hits leave the queue too. */
static void case_66_free_hits_count_and_null_ones_do_not(void **state) {
    struct block_table t = {.capacity = LONE_BLOCKS};
    block_id hits[10];
    struct kv_need need;
    struct lone l;

    (void)state;
    lone_init(&l, KV_SLIDING, 100);
    for (block_id i = 0; i < 10; i++)
        hits[i] = i + 1;
    need = kv_group_need(&l.group, &t, hits, 10, 10 * LONE_BS, 20 * LONE_BS);
    assert_int_equal(need.n_new, 10);
    assert_int_equal(need.n_new + need.n_revived, 20);
    /* Five of the ten are null, since a window of this length has left them. */
    memset(hits, 0, 5 * sizeof(*hits));
    l.group.config.window = 5 * LONE_BS + 1;
    need = kv_group_need(&l.group, &t, hits, 10, 10 * LONE_BS, 20 * LONE_BS);
    assert_int_equal(need.n_new + need.n_revived, 15);
    block_pool_destroy(l.group.pool);
}

static void case_70_reference_window_keeps_the_prompt(void **state) {
    struct block_table t;
    struct lone l;

    (void)state;
    lone_init(&l, KV_REFERENCE, 8);
    l.group.block_size = 4;
    lone_table(&l, &t, 10);
    assert_string_equal(after_skip(&l, &t, 28, 0), "1 2 3 4 5 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 28, 16), "1 2 3 4 0 6 7 8 9 10");
    assert_string_equal(after_skip(&l, &t, 36, 16), "1 2 3 4 0 0 0 8 9 10");
    lone_fini(&l, &t);
}

/* --- groups over one pool -------------------------------------------------------------------- */

static struct kv_manager *make_groups(uint32_t n_blocks, uint32_t block_size, uint32_t n_groups,
                                      const struct kv_group_config *groups) {
    struct kv_manager_config config = kv_fixture_config(n_blocks, block_size);

    config.n_groups = n_groups;
    memcpy(config.group, groups, n_groups * sizeof(*groups));
    return kv_manager_create(&config);
}

static void request(struct kv_req *r, struct kv_manager *mgr, uint32_t n_common, uint32_t own,
                    uint32_t n_own) {
    kv_req_init(r, mgr, NULL, false);
    kv_req_append_run(r, 0, n_common);
    kv_req_append_run(r, own, n_own);
}

static const struct kv_group_config full_and_two_windows[] = {
    {KV_FULL, 0}, {KV_SLIDING, 32}, {KV_SLIDING, 32}};

/* Blocks hit when these (group, block) of the common prefix are no longer in the cache. */
static uint32_t hit_without(uint32_t n_gone, const uint32_t (*gone)[2]) {
    struct kv_manager *mgr = make_groups(21, 16, 3, full_and_two_windows);
    const struct prefix_cache *looked_at = block_pool_cache(kv_manager_pool(mgr));
    struct prefix_cache *cache;
    struct kv_req r0, r1;
    struct kv_hit hit;

    memcpy(&cache, &looked_at,
           sizeof(cache)); /* reaching in: no sequence of calls evicts just so */
    request(&r0, mgr, COMMON_TOKENS, OTHER, 7);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    for (uint32_t i = 0; i < n_gone; i++)
        assert_true(prefix_cache_erase(cache, r0.seq.table[gone[i][0]].ids[gone[i][1]]));
    request(&r1, mgr, COMMON_TOKENS, 2 * OTHER, 5);
    hit = kv_manager_lookup(mgr, &r1.seq, r1.tokens, r1.n_tokens);
    assert_int_equal(hit.n_tokens, hit.n_blocks * 16);
    kv_req_done(&r1);
    kv_req_done(&r0);
    kv_manager_destroy(mgr);
    return hit.n_blocks;
}

#define HIT_WITHOUT(...)                                                                           \
    hit_without(sizeof((uint32_t[][2]){__VA_ARGS__}) / sizeof(uint32_t[2]),                        \
                (const uint32_t[][2]){__VA_ARGS__})

static void case_55_full_and_two_windows(void **state) {
    struct kv_manager *mgr = make_groups(21, 16, 3, full_and_two_windows);
    struct kv_req r0, r1;

    (void)state;
    request(&r0, mgr, COMMON_TOKENS, OTHER, 7);
    assert_int_equal(kv_req_admit(&r0), ST_OK);
    assert_string_equal(kv_text_group(&r0, 0), "1 2 3 4");
    assert_string_equal(kv_text_group(&r0, 1), "5 6 7 8");
    assert_string_equal(kv_text_group(&r0, 2), "9 10 11 12");
    request(&r1, mgr, COMMON_TOKENS, 2 * OTHER, 5);
    assert_int_equal(kv_req_admit(&r1), ST_OK);
    assert_int_equal(r1.n_hit, 48);
    assert_string_equal(kv_text_group(&r1, 0), "1 2 3 13");
    assert_string_equal(kv_text_group(&r1, 1), "0 6 7 14");
    assert_string_equal(kv_text_group(&r1, 2), "0 10 11 15");
    kv_manager_check(mgr);
    kv_req_done(&r0);
    kv_req_done(&r1);
    kv_manager_check(mgr);
    kv_manager_destroy(mgr);

    assert_int_equal(HIT_WITHOUT({1, 0}, {2, 0}), 3); /* the windows do not need their first */
    assert_int_equal(HIT_WITHOUT({0, 0}), 0);
    assert_int_equal(HIT_WITHOUT({0, 2}, {1, 2}, {2, 2}), 2);
    assert_int_equal(HIT_WITHOUT({0, 2}), 2);
    assert_int_equal(HIT_WITHOUT({1, 2}), 2);
    assert_int_equal(HIT_WITHOUT({2, 2}), 2);
    assert_int_equal(HIT_WITHOUT({0, 2}, {1, 0}), 0);
}

static void case_57_59_any_mix_of_groups_hits_alike(void **state) {
    static const struct kv_group_config kinds[] = {
        {KV_FULL, 0}, {KV_SLIDING, 32}, {KV_SLIDING, 64}, {KV_CHUNKED, 32}};

    (void)state;
    for (uint32_t mix = 1; mix < 16; mix++) { /* every non-empty choice of the four */
        struct kv_group_config groups[4];
        struct kv_manager *mgr;
        struct kv_req r0, r1;
        uint32_t n = 0;

        for (uint32_t k = 0; k < 4; k++)
            if (mix >> k & 1) groups[n++] = kinds[k];
        mgr = make_groups(10 * n + 1, 16, n, groups);
        request(&r0, mgr, COMMON_TOKENS, OTHER, 7);
        assert_int_equal(kv_req_admit(&r0), ST_OK);
        /* Where all layers see their own chunk only, what is before it need not even exist. */
        assert_int_equal(r0.n_hit, mix == 8 ? 32 : 0);
        request(&r1, mgr, COMMON_TOKENS, 2 * OTHER, 5);
        assert_int_equal(kv_req_admit(&r1), ST_OK);
        assert_int_equal(r1.n_hit, 48);
        for (uint32_t g = 0; g < n; g++)
            assert_int_equal(r1.seq.table[g].n_blocks, 4);
        kv_manager_check(mgr);
        kv_req_done(&r0);
        kv_req_done(&r1);
        assert_int_equal(block_pool_n_free(kv_manager_pool(mgr)), 10 * n);
        kv_manager_check(mgr);
        kv_manager_destroy(mgr);
    }
}

/* A long answer holds a window of blocks, whatever its length; what it gave back is taken again. */
static void a_window_holds_as_much_as_it_sees(void **state) {
    const struct kv_group_config window = {KV_SLIDING, 8};
    struct kv_manager *mgr = make_groups(5, 4, 1, &window); /* four blocks for 100 tokens */
    struct kv_req r;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFGH");
    assert_int_equal(kv_req_admit(&r), ST_OK);
    for (uint32_t i = 0; i < 92; i++) {
        uint32_t n_live = 0;

        assert_int_equal(kv_req_decode(&r, i), ST_OK);
        for (uint32_t b = 0; b < r.seq.table[0].n_blocks; b++)
            n_live += r.seq.table[0].ids[b] != BLOCK_NULL;
        assert_true(n_live <= 3);
        kv_manager_check(mgr);
    }
    assert_int_equal(r.seq.table[0].n_blocks, 25);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

/* Blocks a request of n tokens takes when admitted whole: exactly what was counted, in all
 * groups. */
static void case_68_the_count_equals_what_is_taken_by_groups(void **state) {
    const struct kv_group_config groups[] = {{KV_FULL, 0}, {KV_SLIDING, 8}, {KV_CHUNKED, 8}};

    (void)state;
    for (uint32_t n = 4; n <= 16; n += 4) {
        for (uint32_t n_short = 0; n_short < 2; n_short++) {
            struct kv_manager *mgr = make_groups(1 + 3 * n / 4 - n_short, 4, 3, groups);
            struct kv_req r;

            request(&r, mgr, n, 0, 0);
            assert_int_equal(kv_req_admit(&r), n_short ? ST_BUSY : ST_OK);
            assert_int_equal(block_pool_n_free(kv_manager_pool(mgr)), n_short ? 3 * n / 4 - 1 : 0);
            kv_manager_check(mgr);
            kv_req_done(&r);
            kv_manager_destroy(mgr);
        }
    }
}

/* Forty tokens in chunks of eight through a window of eight: never more than five blocks. */
static void case_98_a_window_needs_no_room_for_the_whole(void **state) {
    const struct kv_group_config window = {KV_SLIDING, 8};
    struct kv_manager_config config = kv_fixture_config(6, 4);
    struct kv_alloc a = {.n_new = 8, .full_sequence_must_fit = true};
    struct kv_manager *mgr;
    struct kv_req r, r2;

    (void)state;
    config.n_groups = 1;
    config.group[0] = window;
    mgr = kv_manager_create(&config); /* a step may take any number of tokens at once */
    request(&r, mgr, 40, 0, 0);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 40, &a), ST_BUSY);
    kv_req_done(&r);
    kv_manager_destroy(mgr);

    config.max_step_tokens = 8;
    mgr = kv_manager_create(&config);
    request(&r, mgr, 40, 0, 0);
    assert_int_equal(kv_manager_most_blocks(mgr, 40), 5);
    for (; a.n_computed < 40; a.n_computed += 8) {
        assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 40, &a), ST_OK);
        a.full_sequence_must_fit = false;
        kv_manager_check(mgr);
    }
    assert_string_equal(kv_text_group(&r, 0), "0 0 0 0 0 0 1 4 3 2");
    /* One block is left: a second one must wait though its first token would fit. */
    request(&r2, mgr, 40, 0, 0);
    a = (struct kv_alloc){.n_new = 4, .full_sequence_must_fit = true};
    assert_int_equal(kv_manager_allocate(mgr, &r2.seq, r2.tokens, 40, &a), ST_BUSY);
    a.full_sequence_must_fit = false;
    assert_int_equal(kv_manager_allocate(mgr, &r2.seq, r2.tokens, 40, &a), ST_OK);
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_req_done(&r2);
    kv_manager_destroy(mgr);
}

/* Tokens that another store delivers take blocks where the next token sees them, null elsewhere. */
static void tokens_from_afar_below_a_window_take_no_blocks(void **state) {
    const struct kv_group_config groups[] = {{KV_FULL, 0}, {KV_SLIDING, 5}};
    struct kv_alloc a = {.n_external = 12, .n_new = 2, .delay_publish = true};
    struct kv_manager *mgr = make_groups(20, 4, 2, groups);
    struct kv_req r, other;

    (void)state;
    request(&r, mgr, 20, 0, 0);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 20, &a), ST_OK);
    assert_string_equal(kv_text_group(&r, 0), "1 2 3 4");
    assert_string_equal(kv_text_group(&r, 1), "0 0 5 6"); /* token 12 sees 8 to 12 */
    assert_int_equal(block_pool_n_free(kv_manager_pool(mgr)), 13);
    kv_manager_publish(mgr, &r.seq, r.tokens, 20, 14); /* they have come */
    request(&other, mgr, 20, 0, 0);
    assert_int_equal(kv_req_admit(&other), ST_OK);
    assert_int_equal(other.n_hit, 12);
    assert_string_equal(kv_text_group(&other, 1), "0 0 5 9 10");
    kv_manager_check(mgr);
    kv_req_done(&r);
    kv_req_done(&other);
    kv_manager_destroy(mgr);
}

/* What drafts may still take back is not given up. */
static void unsettled_tokens_hold_the_window_back(void **state) {
    const struct kv_group_config window = {KV_SLIDING, 5};
    struct kv_alloc a = {.n_computed = 8, .n_new = 1, .n_unsettled = 1};
    struct kv_manager *mgr = make_groups(10, 4, 1, &window);
    struct kv_req r;

    (void)state;
    request(&r, mgr, 12, 0, 0);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 12, &(struct kv_alloc){.n_new = 8}),
                     ST_OK);
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 12, &a), ST_OK);
    assert_string_equal(kv_text_group(&r, 0), "1 2 3"); /* token 7 sees 3 */
    a = (struct kv_alloc){.n_computed = 8, .n_new = 1};
    assert_int_equal(kv_manager_allocate(mgr, &r.seq, r.tokens, 12, &a), ST_OK);
    assert_string_equal(kv_text_group(&r, 0), "0 2 3");
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

/* A child needs what its first token looks back at; a parent that has gone on may have lost it. */
static void a_fork_behind_the_window_is_refused(void **state) {
    const struct kv_group_config groups[] = {{KV_FULL, 0}, {KV_SLIDING, 5}};
    struct kv_manager *mgr = make_groups(40, 4, 2, groups);
    struct kv_req r, child;

    (void)state;
    kv_req_text(&r, mgr, "ABCDEFGHIJ");
    assert_int_equal(kv_req_admit(&r), ST_OK);
    assert_int_equal(kv_req_fork(&child, &r, 9), ST_OK); /* sees tokens 5 to 9 */
    assert_string_equal(kv_text_group(&r, 1), "4 5 6");
    assert_string_equal(kv_text_group(&child, 1), "0 5 6");
    assert_int_equal(kv_req_decode(&child, 'x'), ST_OK);
    assert_string_equal(kv_text_moves(mgr, 0), "3>7 6>8");
    kv_manager_check(mgr);
    kv_req_done(&child);
    for (int i = 0; i < 4; i++)
        assert_int_equal(kv_req_decode(&r, 'y'), ST_OK); /* 14 computed: the last saw 9 to 13 */
    assert_string_equal(kv_text_group(&r, 1), "0 0 6 10");
    assert_int_equal(kv_req_fork(&child, &r, 9), ST_NOT_FOUND);
    assert_int_equal(child.seq.table[0].n_blocks, 0);
    kv_req_done(&child);
    assert_int_equal(kv_req_fork(&child, &r, 13), ST_OK);
    kv_manager_check(mgr);
    kv_req_done(&child);
    kv_req_done(&r);
    kv_manager_destroy(mgr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_55_full_and_two_windows),
        cmocka_unit_test(case_57_59_any_mix_of_groups_hits_alike),
        cmocka_unit_test(case_60_sliding_window_hits),
        cmocka_unit_test(case_61_chunked_local_hits),
        cmocka_unit_test(case_62_a_chain_finer_than_the_blocks),
        cmocka_unit_test(a_finer_chain_has_the_same_extra_keys),
        cmocka_unit_test(case_63_a_window_gives_back_behind_itself),
        cmocka_unit_test(case_64_a_chunk_gives_back_those_before_it),
        cmocka_unit_test(case_65_skipped_tokens),
        cmocka_unit_test(case_66_free_hits_count_and_null_ones_do_not),
        cmocka_unit_test(case_68_the_count_equals_what_is_taken_by_groups),
        cmocka_unit_test(case_98_a_window_needs_no_room_for_the_whole),
        cmocka_unit_test(tokens_from_afar_below_a_window_take_no_blocks),
        cmocka_unit_test(unsettled_tokens_hold_the_window_back),
        cmocka_unit_test(case_70_reference_window_keeps_the_prompt),
        cmocka_unit_test(a_window_holds_as_much_as_it_sees),
        cmocka_unit_test(a_fork_behind_the_window_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
