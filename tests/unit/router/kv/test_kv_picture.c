/* tests/unit/router/kv/test_kv_picture.c - what a stream of batches adds up to, beside an engine
 * whose cache is a plain LRU. */
#include <string.h>

#include "common/base/rng.h"
#include "router/kv/kv_picture.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static struct kv_budget budget = {.max = UINT64_C(1) << 28};

/* --- batches ---------------------------------------------------------------------------------- */

static void begin(struct buf *b, uint32_t n_events) {
    buf_clear(b);
    msgpack_begin_array(b, 2);
    msgpack_put_f64(b, 1.5);
    msgpack_begin_array(b, n_events);
}

static void put_hashes(struct buf *b, const uint64_t *hashes, uint32_t n) {
    msgpack_begin_array(b, n);
    for (uint32_t i = 0; i < n; i++)
        msgpack_put_u64(b, hashes[i]);
}

static void put_stored(struct buf *b, const uint64_t *hashes, uint32_t n, const char *medium,
                       int group, const char *kind) {
    msgpack_begin_map(b, 6);
    msgpack_put_str(b, STR("type"));
    msgpack_put_str(b, STR("BlockStored"));
    msgpack_put_str(b, STR("block_hashes"));
    put_hashes(b, hashes, n);
    msgpack_put_str(b, STR("block_size"));
    msgpack_put_u64(b, 16);
    msgpack_put_str(b, STR("medium"));
    msgpack_put_str(b, str_of(medium));
    msgpack_put_str(b, STR("group_idx"));
    group < 0 ? msgpack_put_nil(b) : msgpack_put_u64(b, (uint64_t)group);
    msgpack_put_str(b, STR("kv_cache_spec_kind"));
    msgpack_put_str(b, str_of(kind));
}

static void put_removed(struct buf *b, const uint64_t *hashes, uint32_t n, const char *medium,
                        int group) {
    msgpack_begin_array(b, 4);
    msgpack_put_str(b, STR("BlockRemoved"));
    put_hashes(b, hashes, n);
    msgpack_put_str(b, str_of(medium));
    group < 0 ? msgpack_put_nil(b) : msgpack_put_u64(b, (uint64_t)group);
}

static void put_cleared(struct buf *b) {
    msgpack_begin_array(b, 1);
    msgpack_put_str(b, STR("AllBlocksCleared"));
}

static struct kv_picture_change take(struct kv_picture *p, const struct buf *b) {
    struct kv_picture_change change;

    assert_int_equal(kv_picture_take(p, buf_str(b), &change), ST_OK);
    kv_picture_check(p);
    return change;
}

/* --- an engine -------------------------------------------------------------------------------- */

#define CACHE_BLOCKS 600u
#define N_DIFFERENT  4000u

struct engine {
    uint64_t used[N_DIFFERENT]; /* 0: not held; else when it was used */
    uint64_t now, n_stored;
    uint32_t n;
};

static uint32_t coldest(const struct engine *e) {
    uint32_t victim = N_DIFFERENT;

    for (uint32_t i = 0; i < N_DIFFERENT; i++) {
        if (e->used[i] && (victim == N_DIFFERENT || e->used[i] < e->used[victim])) victim = i;
    }
    return victim;
}

/* One step: a few blocks are used; what is new is stored, what has no room removed before. */
static void step(struct engine *e, struct rng *rng, struct buf *b) {
    uint64_t stored[8], removed[8];
    uint32_t n_stored = 0, n_removed = 0, n = 1 + (uint32_t)rng_below(rng, 8);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = (uint32_t)rng_below(rng, N_DIFFERENT);

        if (!e->used[block]) {
            if (e->n == CACHE_BLOCKS) {
                uint32_t victim = coldest(e);

                e->used[victim] = 0;
                e->n--;
                removed[n_removed++] = victim;
            }
            stored[n_stored++] = block;
            e->n_stored++;
            e->n++;
        }
        e->used[block] = ++e->now;
    }
    begin(b, 2);
    put_removed(b, removed, n_removed, "GPU", -1);
    put_stored(b, stored, n_stored, "GPU", -1, "full_attention");
}

static void assert_equals(const struct kv_picture *p, const struct engine *e) {
    assert_int_equal(p->ledger.n_blocks[KV_DEVICE], e->n);
    for (uint32_t i = 0; i < N_DIFFERENT; i++)
        assert_int_equal(kv_ledger_has(&p->ledger, i, KV_DEVICE), e->used[i] != 0);
}

static void a_followed_cache_is_pictured_exactly(void **state) {
    static struct engine e;
    struct kv_picture p;
    struct rng rng;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    rng_seed(&rng, support_seed());
    kv_picture_init(&p, &budget, 1);
    kv_picture_reset(&p, true, true);
    for (uint32_t i = 0; i < 3000; i++) {
        step(&e, &rng, &b);
        take(&p, &b);
        if (i % 100 == 0) assert_equals(&p, &e);
    }
    assert_equals(&p, &e);
    assert_true(kv_picture_capacity(&p) > 0.98 * CACHE_BLOCKS * 16);
    assert_true(kv_picture_capacity(&p) <= CACHE_BLOCKS * 16);
    assert_int_equal(p.stored_tokens, e.n_stored * 16);
    kv_picture_fini(&p);
    buf_fini(&b);
}

/* Begun late it has less, never more, and is complete when the cache has been turned over. */
static void a_picture_begun_late_has_no_phantoms_and_becomes_complete(void **state) {
    static struct engine e;
    struct kv_picture p;
    struct rng rng;
    struct buf b;
    uint32_t n_steps = 0;

    (void)state;
    buf_init(&b, 0);
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < 1000; i++)
        step(&e, &rng, &b);
    kv_picture_init(&p, &budget, 1);
    kv_picture_reset(&p, false, true);
    while (!p.is_complete) {
        assert_true(kv_picture_capacity(&p) == 0);
        step(&e, &rng, &b);
        take(&p, &b);
        for (uint32_t i = 0; i < N_DIFFERENT; i++)
            assert_true(!kv_ledger_has(&p.ledger, i, KV_DEVICE) || e.used[i]);
        assert_true(++n_steps < 100000);
    }
    assert_true(p.ledger.n_blocks[KV_DEVICE] > 0.95 * e.n);
    kv_picture_fini(&p);
    buf_fini(&b);
}

static void cleared_empties_every_tier_and_completes(void **state) {
    static const uint64_t h[] = {1, 2, 3};
    struct kv_picture p;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    kv_picture_init(&p, &budget, 1);
    kv_picture_reset(&p, false, true);
    begin(&b, 2);
    put_stored(&b, h, 3, "GPU", -1, "full_attention");
    put_stored(&b, h, 2, "CPU", -1, "full_attention");
    assert_false(take(&p, &b).was_cleared);
    assert_int_equal(p.ledger.n_blocks[KV_DEVICE], 3);
    assert_int_equal(p.ledger.n_blocks[KV_HOST], 2);
    begin(&b, 2);
    put_cleared(&b);
    put_stored(&b, h, 1, "GPU", -1, "full_attention");
    assert_true(take(&p, &b).was_cleared);
    assert_int_equal(p.ledger.n, 1);
    assert_int_equal(p.ledger.n_blocks[KV_HOST], 0);
    assert_true(p.is_complete);
    kv_picture_fini(&p);
    buf_fini(&b);
}

static void a_removal_takes_a_block_from_its_own_tier(void **state) {
    static const uint64_t h[] = {1, 2};
    struct kv_picture p;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    kv_picture_init(&p, &budget, 1);
    begin(&b, 4);
    put_stored(&b, h, 2, "GPU", -1, "full_attention");
    put_stored(&b, h, 1, "CPU_PINNED", -1, "full_attention");
    put_removed(&b, h, 2, "GPU", -1);
    put_removed(&b, h, 2, "XML", -1); /* of no known tier */
    take(&p, &b);
    assert_int_equal(p.ledger.n_blocks[KV_DEVICE], 0);
    assert_int_equal(p.ledger.n_blocks[KV_HOST], 1);
    assert_int_equal(p.counts.n_ignored, 1);
    kv_picture_fini(&p);
    buf_fini(&b);
}

static void one_group_of_full_attention_counts(void **state) {
    static const uint64_t window[] = {1, 2, 3}, full[] = {11, 12}, other[] = {21};
    struct kv_picture p;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    kv_picture_init(&p, &budget, 1);
    begin(&b, 5);
    put_stored(&b, window, 3, "GPU", 0, "sliding_window");
    put_stored(&b, full, 2, "GPU", 1, "full_attention");
    put_stored(&b, other, 1, "GPU", 2, "full_attention");
    put_removed(&b, window, 3, "GPU", 0);
    put_removed(&b, full, 1, "GPU", 1);
    take(&p, &b);
    assert_int_equal(p.ledger.n, 1);
    assert_true(kv_ledger_has(&p.ledger, 12, KV_DEVICE));
    assert_int_equal(p.counts.n_events[KV_STORED], 1);
    assert_int_equal(p.counts.n_ignored, 3);
    kv_picture_fini(&p);
    buf_fini(&b);
}

static void hashes_of_another_kind_begin_another_picture(void **state) {
    static const uint64_t h[] = {1, 2, 3};
    struct kv_picture p;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    kv_picture_init(&p, &budget, 1);
    begin(&b, 1);
    put_stored(&b, h, 3, "GPU", -1, "full_attention");
    assert_false(take(&p, &b).is_other);
    begin(&b, 1);
    msgpack_begin_array(&b, 5);
    msgpack_put_str(&b, STR("BlockStored"));
    msgpack_begin_array(&b, 1);
    msgpack_put_bin(&b, "\0\0\0\0\0\0\0\1", 8);
    msgpack_put_nil(&b);
    msgpack_begin_array(&b, 0);
    msgpack_put_u64(&b, 16);
    assert_true(take(&p, &b).is_other);
    assert_int_equal(p.ledger.n, 1);
    assert_false(p.is_complete);
    kv_picture_fini(&p);
    buf_fini(&b);
}

static void without_room_a_picture_is_not_complete(void **state) {
    static uint64_t h[4000];
    struct kv_budget small = {.max = 16 * 1024};
    struct kv_picture p;
    struct buf b;

    (void)state;
    for (uint64_t i = 0; i < ARRAY_LEN(h); i++)
        h[i] = i;
    buf_init(&b, 0);
    kv_picture_init(&p, &small, 1);
    kv_picture_reset(&p, true, true);
    begin(&b, 1);
    put_stored(&b, h, ARRAY_LEN(h), "GPU", -1, "full_attention");
    take(&p, &b);
    assert_false(p.is_complete);
    assert_int_equal(p.ledger.n, 640);
    assert_int_equal(p.counts.n_refused, ARRAY_LEN(h) - 640);
    kv_picture_fini(&p);
    buf_fini(&b);
}

static void a_digest_completes_a_picture_or_shows_that_it_is_wrong(void **state) {
    static const uint64_t h[] = {1, 2, 3};
    struct kv_frame digest = {.kind = KV_FRAME_DIGEST,
                              .n_sets = 3,
                              .sets = {{KV_DEVICE, 0, 3, 1 ^ 2 ^ 3},
                                       {KV_HOST, 0, 1, 2},
                                       {KV_DEVICE, 1, 7, 99}}}; /* of a group that is not counted */
    struct kv_picture p;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    kv_picture_init(&p, &budget, 1);
    assert_true(kv_picture_compare(&p, &digest)); /* which group counts is not known */
    assert_false(p.is_complete);
    begin(&b, 2);
    put_stored(&b, h, 3, "GPU", 0, "full_attention");
    put_stored(&b, h + 1, 1, "CPU", 0, "full_attention");
    take(&p, &b);
    assert_false(p.is_complete);
    assert_true(kv_picture_compare(&p, &digest));
    assert_true(p.is_complete);
    digest.sets[1].digest = 3;
    assert_false(kv_picture_compare(&p, &digest));
    assert_false(p.is_complete);
    digest.sets[1].digest = 2;
    digest.sets[0].n_blocks = 4;
    assert_false(kv_picture_compare(&p, &digest));
    p.lacks_room = true; /* which explains the difference */
    assert_true(kv_picture_compare(&p, &digest));
    assert_false(p.is_complete);
    kv_picture_reset(&p, false, true);
    digest.n_sets = 0;
    assert_true(kv_picture_compare(&p, &digest)); /* it holds nothing */
    assert_true(p.is_complete);
    kv_picture_fini(&p);
    buf_fini(&b);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_followed_cache_is_pictured_exactly),
        cmocka_unit_test(a_picture_begun_late_has_no_phantoms_and_becomes_complete),
        cmocka_unit_test(cleared_empties_every_tier_and_completes),
        cmocka_unit_test(a_removal_takes_a_block_from_its_own_tier),
        cmocka_unit_test(one_group_of_full_attention_counts),
        cmocka_unit_test(hashes_of_another_kind_begin_another_picture),
        cmocka_unit_test(without_room_a_picture_is_not_complete),
        cmocka_unit_test(a_digest_completes_a_picture_or_shows_that_it_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
