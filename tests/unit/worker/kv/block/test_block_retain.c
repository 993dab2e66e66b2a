/* tests/unit/worker/kv/block/test_block_retain.c - what is kept, for how long, and the order of
 * eviction that follows, against a search over all blocks. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/block/block_pool.h"
#include "worker/kv/block/block_reuse.h"

#define SECOND UINT64_C(1000000)
#define MINUTE (60 * SECOND)
#define HOUR   (60 * MINUTE)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPS 20000u
#else
#define N_OPS 200000u
#endif
#define N_BLOCKS  32u
#define MAX_KEPT  10u
#define CHAIN_MAX 8u
#define N_HOLDS   3u

static void publish(struct block_pool *pool, block_id id, block_id parent, uint32_t token) {
    struct block_hash hash = {{0}};
    struct prefix_key key = {&hash, PREFIX_ROOT, &token, NULL, 0};

    memcpy(hash.bytes, &token, sizeof(token));
    if (parent != BLOCK_NONE) key.parent = prefix_cache_prefix(block_pool_cache(pool), parent);
    block_pool_publish(pool, id, &key, 0);
    if (parent != BLOCK_NONE) block_pool_link(pool, id, parent);
}

/* --- planted ---------------------------------------------------------------------------------- */

static struct block_pool *make(uint32_t n_blocks, uint32_t max_retained) {
    return block_pool_create(&(struct block_pool_config){
        .n_blocks = n_blocks, .block_size = 1, .no_null = true, .max_retained = max_retained});
}

/* A chain of n blocks under names from `name` on, released at once; marked is its beginning. */
static void add_chain(struct block_pool *pool, uint32_t name, uint32_t n, uint32_t n_marked,
                      enum retention time, uint64_t tenant) {
    block_id ids[CHAIN_MAX], back[CHAIN_MAX];

    assert_int_equal(block_pool_acquire(pool, ids, n), ST_OK);
    for (uint32_t i = 0; i < n; i++) {
        publish(pool, ids[i], i > 0 ? ids[i - 1] : BLOCK_NONE, name + i);
        back[n - 1 - i] = ids[i];
    }
    if (n_marked > 0) block_pool_retain(pool, ids, n_marked, time, tenant);
    block_pool_release(pool, back, n);
    block_pool_check(pool);
}

/* The name that would be evicted as number k; UINT32_MAX: a blank. */
static uint32_t name_at(const struct block_pool *pool, uint32_t k) {
    block_id id = block_pool_next_free(pool, BLOCK_NONE);

    while (k-- > 0)
        id = block_pool_next_free(pool, id);
    if (!prefix_cache_contains(block_pool_cache(pool), id)) return UINT32_MAX;
    return prefix_cache_key(block_pool_cache(pool), id).tokens[0];
}

#define assert_order(pool, ...)                                                                    \
    do {                                                                                           \
        const uint32_t want[] = {__VA_ARGS__};                                                     \
        assert_int_equal(block_pool_n_free(pool), ARRAY_LEN(want));                                \
        for (uint32_t k_ = 0; k_ < ARRAY_LEN(want); k_++)                                          \
            assert_int_equal(name_at(pool, k_), want[k_]);                                         \
    } while (0)

static void marked_beginning_goes_last(void **state) {
    struct block_pool *pool = make(6, 6);
    block_id ids[6];

    (void)state;
    add_chain(pool, 10, 3, 2, RETAIN_5M, 0);
    add_chain(pool, 20, 3, 0, RETAIN_NONE, 0);
    assert_order(pool, 12, 22, 21, 20, 11, 10);
    assert_int_equal(block_pool_acquire(pool, ids, 6), ST_OK); /* it never stops an allocation */
    assert_int_equal(block_pool_retained(pool).n_evicted, 2);
    block_pool_check(pool);
    block_pool_destroy(pool);
}

static void longer_times_go_later(void **state) {
    struct block_pool *pool = make(6, 6);

    (void)state;
    add_chain(pool, 10, 2, 2, RETAIN_1H, 0);
    add_chain(pool, 20, 2, 2, RETAIN_5M, 0);
    add_chain(pool, 30, 2, 2, RETAIN_30M, 0);
    assert_order(pool, 21, 20, 31, 30, 11, 10);
    block_pool_destroy(pool);
}

static void budget_keeps_what_was_used_last_and_heads(void **state) {
    struct block_pool *pool = make(8, 4);

    (void)state;
    add_chain(pool, 10, 3, 3, RETAIN_5M, 0);
    add_chain(pool, 20, 3, 3, RETAIN_5M, 0);
    add_chain(pool, 30, 2, 0, RETAIN_NONE, 0);
    assert_order(pool, 12, 11, 31, 30, 10, 22, 21, 20);
    assert_int_equal(block_pool_retained(pool).n_displaced, 2);
    assert_int_equal(block_pool_retained(pool).n_free, 4);
    block_pool_destroy(pool);
}

static void marks_alike_are_least_recently_used(void **state) {
    struct block_pool *pool = make(8, 3);

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        add_chain(pool, 10 * i, 2, 2, RETAIN_1H, 0);
    assert_order(pool, 1, 0, 11, 10, 21, 20, 31, 30);
    block_pool_destroy(pool);
}

static void hit_starts_the_time_again_and_idleness_ends_it(void **state) {
    struct block_pool *pool = make(4, 4);
    block_id head;

    (void)state;
    block_pool_set_now(pool, SECOND);
    add_chain(pool, 10, 1, 1, RETAIN_5M, 0);
    add_chain(pool, 20, 1, 0, RETAIN_NONE, 0);
    assert_order(pool, UINT32_MAX, UINT32_MAX, 20, 10);
    head = block_pool_next_free(
        pool, block_pool_next_free(
                  pool, block_pool_next_free(pool, block_pool_next_free(pool, BLOCK_NONE))));
    block_pool_set_now(pool, 4 * MINUTE);
    block_pool_touch(pool, &head, 1); /* by a request without marks */
    block_pool_release(pool, &head, 1);
    block_pool_set_now(pool, 8 * MINUTE);
    assert_int_equal(block_pool_retained(pool).n_free, 1);
    block_pool_set_now(pool, 9 * MINUTE);
    assert_int_equal(block_pool_retained(pool).n_free, 0);
    assert_int_equal(block_pool_retained(pool).n_hit, 1);
    assert_int_equal(block_pool_retained(pool).n_expired, 1);
    assert_order(pool, UINT32_MAX, UINT32_MAX, 20, 10);
    block_pool_touch(pool, &head, 1); /* found, and no longer kept */
    block_pool_release(pool, &head, 1);
    assert_int_equal(block_pool_retained(pool).n_free, 0);
    block_pool_destroy(pool);
}

static void largest_share_of_its_time_goes_first(void **state) {
    struct block_pool *pool = make(4, 4);
    block_id ids[2];

    (void)state;
    add_chain(pool, 10, 1, 1, RETAIN_1H, 0);
    block_pool_set_now(pool, 30 * MINUTE);
    add_chain(pool, 20, 1, 1, RETAIN_5M, 0);
    block_pool_set_now(pool, 31 * MINUTE);
    assert_int_equal(block_pool_acquire(pool, ids, 2), ST_OK); /* the blanks */
    assert_int_equal(block_pool_acquire(pool, ids, 1), ST_OK); /* 31 of 60, not 1 of 5 */
    assert_int_equal(name_at(pool, 0), 20);
    block_pool_destroy(pool);
}

static void seconds_are_the_longest_time_within(void **state) {
    (void)state;
    assert_int_equal(retention_of_seconds(299), RETAIN_NONE);
    assert_int_equal(retention_of_seconds(300), RETAIN_5M);
    assert_int_equal(retention_of_seconds(1800), RETAIN_30M);
    assert_int_equal(retention_of_seconds(4000), RETAIN_1H);
    assert_int_equal(retention_of_seconds(12 * 3600), RETAIN_12H);
    assert_int_equal(retention_of_seconds(UINT32_MAX), RETAIN_24H);
}

static void longer_of_two_times_counts(void **state) {
    struct block_pool *pool = make(2, 2);
    block_id id;

    (void)state;
    add_chain(pool, 10, 1, 1, RETAIN_1H, 0);
    id = block_pool_next_free(pool, block_pool_next_free(pool, BLOCK_NONE));
    block_pool_touch(pool, &id, 1);
    block_pool_retain(pool, &id, 1, RETAIN_5M, 0);
    block_pool_release(pool, &id, 1);
    block_pool_set_now(pool, 59 * MINUTE);
    assert_int_equal(block_pool_retained(pool).n_free, 1);
    block_pool_set_now(pool, HOUR);
    assert_int_equal(block_pool_retained(pool).n_free, 0);
    block_pool_destroy(pool);
}

static void tenant_has_half_of_the_budget(void **state) {
    struct block_pool *pool = make(16, 8);

    (void)state;
    add_chain(pool, 10, 6, 6, RETAIN_1H, 7);
    assert_int_equal(block_pool_retained(pool).n_free, 4);
    assert_int_equal(block_pool_retained(pool).n_refused, 1);
    add_chain(pool, 20, 2, 2, RETAIN_1H, 7);
    assert_int_equal(block_pool_retained(pool).n_free, 4);
    add_chain(pool, 30, 4, 4, RETAIN_1H, 8);
    assert_int_equal(block_pool_retained(pool).n_free, 8);
    block_pool_destroy(pool);
}

static void reset_forgets_marks(void **state) {
    struct block_pool *pool = make(4, 4);

    (void)state;
    add_chain(pool, 10, 3, 3, RETAIN_1H, 7);
    assert_int_equal(block_pool_reset(pool), ST_OK);
    block_pool_check(pool);
    assert_int_equal(block_pool_retained(pool).n_free, 0);
    assert_int_equal(block_pool_n_free(pool), 4);
    block_pool_destroy(pool);
}

static void nothing_is_kept_without_a_budget(void **state) {
    struct block_pool *pool = make(4, 0);

    (void)state;
    add_chain(pool, 10, 2, 2, RETAIN_1H, 0);
    add_chain(pool, 20, 2, 0, RETAIN_NONE, 0);
    assert_order(pool, 11, 10, 21, 20);
    assert_int_equal(block_pool_retained(pool).n_max, 0);
    block_pool_destroy(pool);
}

/* --- beside a model --------------------------------------------------------------------------- */

static const uint64_t times_us[RETENTIONS] = {0,    5 * MINUTE, 30 * MINUTE,
                                              HOUR, 12 * HOUR,  24 * HOUR};

struct model_block {
    int64_t place;        /* in the queue, while it is free */
    uint64_t released_us; /* while it is free and marked */
    block_id parent;
    uint32_t time, tenant;
    uint32_t n_holds;
    bool is_cached, is_free;
};

struct model_hold {
    block_id ids[N_BLOCKS]; /* (n) of one chain; BLOCK_NONE: evicted */
    uint32_t n;             /* 0: none */
};

struct fixture {
    struct block_pool *pool;
    struct block_reuse *reuse; /* NULL: another order */
    enum free_order order;
    struct rng rng;
    struct model_block blocks[N_BLOCKS];
    struct model_hold holds[N_HOLDS];
    uint32_t n_evicted_held;
    uint64_t now_us;
    int64_t last, first; /* places */
    uint32_t n_names;
};

static uint32_t below(struct fixture *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

/* The free block with the least place; of those with that time: the others' is RETAIN_NONE. */
static block_id coldest_of(const struct fixture *w, uint32_t time) {
    block_id best = BLOCK_NONE;

    for (block_id id = 0; id < N_BLOCKS; id++) {
        const struct model_block *b = &w->blocks[id];

        if (!b->is_free || b->n_holds > 0 || b->time != time) continue;
        if (best == BLOCK_NONE || b->place < w->blocks[best].place) best = id;
    }
    return best;
}

/* The marked one that has been idle for the largest share of its time. */
static block_id coldest_marked(const struct fixture *w, double *idle) {
    block_id best = BLOCK_NONE;

    *idle = -1;
    for (uint32_t time = RETAIN_5M; time < RETENTIONS; time++) {
        block_id id = coldest_of(w, time);
        double share;

        if (id == BLOCK_NONE) continue;
        share = (double)(w->now_us - w->blocks[id].released_us) / (double)times_us[time];
        if (share <= *idle) continue;
        *idle = share;
        best = id;
    }
    return best;
}

static block_id coldest_held(const struct fixture *w) {
    block_id best = BLOCK_NONE;

    for (block_id id = 0; id < N_BLOCKS; id++) {
        const struct model_block *b = &w->blocks[id];

        if (!b->is_free || b->n_holds == 0) continue;
        if (best == BLOCK_NONE || b->place < w->blocks[best].place) best = id;
    }
    return best;
}

static block_id coldest(const struct fixture *w) {
    block_id id = coldest_of(w, RETAIN_NONE);
    double idle;

    if (id == BLOCK_NONE) id = coldest_marked(w, &idle);
    return id == BLOCK_NONE ? coldest_held(w) : id;
}

static uint32_t n_retained(const struct fixture *w) {
    uint32_t n = 0;

    for (block_id id = 0; id < N_BLOCKS; id++)
        n += w->blocks[id].is_free && w->blocks[id].n_holds == 0 &&
             w->blocks[id].time != RETAIN_NONE;
    return n;
}

static void end_mark(struct fixture *w, block_id id) {
    w->blocks[id].time = RETAIN_NONE;
    w->blocks[id].place = ++w->last;
}

static void end_marks(struct fixture *w) {
    double idle;
    block_id id;

    while ((id = coldest_marked(w, &idle)) != BLOCK_NONE && (idle >= 1 || n_retained(w) > MAX_KEPT))
        end_mark(w, id);
}

static void set_now(struct fixture *w, uint64_t now_us) {
    w->now_us = now_us;
    if (w->reuse) block_reuse_set_now(w->reuse, now_us);
    block_pool_set_now(w->pool, now_us);
    end_marks(w);
}

static void forget_held(struct fixture *w, block_id id) {
    w->n_evicted_held += w->blocks[id].n_holds > 0;
    for (uint32_t h = 0; h < N_HOLDS; h++)
        for (uint32_t i = 0; i < w->holds[h].n; i++)
            if (w->holds[h].ids[i] == id) w->holds[h].ids[i] = BLOCK_NONE;
}

static void take(struct fixture *w, block_id *ids, uint32_t n) {
    bool was_kept[N_BLOCKS];
    uint32_t n_others = 0;

    for (block_id id = 0; id < N_BLOCKS; id++) {
        was_kept[id] = w->blocks[id].time != RETAIN_NONE || w->blocks[id].n_holds > 0;
        n_others += w->blocks[id].is_free && !was_kept[id];
    }
    assert_int_equal(block_pool_acquire(w->pool, ids, n), ST_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (w->reuse) {
            assert_int_equal(was_kept[ids[i]], i >= n_others); /* the rest is reuse's own order */
        } else {
            assert_int_equal(ids[i], coldest(w));
        }
        forget_held(w, ids[i]);
        w->blocks[ids[i]] = (struct model_block){.parent = BLOCK_NONE};
    }
}

static void release(struct fixture *w, const block_id *ids, uint32_t n) {
    block_pool_release(w->pool, ids, n);
    for (uint32_t i = 0; i < n; i++) {
        struct model_block *b = &w->blocks[ids[i]];

        if (block_pool_ref_cnt(w->pool, ids[i]) > 0) continue;
        b->is_free = true;
        b->released_us = w->now_us;
        b->place = ++w->last;
        if (b->is_cached || w->order == FREE_ORDER_CLASSIC) continue;
        b->place = w->first - (int64_t)n + (int64_t)i;
    }
    w->first -= n;
    end_marks(w);
}

static uint32_t n_of_tenant(const struct fixture *w, uint32_t tenant) {
    uint32_t n = 0;

    for (block_id id = 0; id < N_BLOCKS; id++)
        n += w->blocks[id].time != RETAIN_NONE && w->blocks[id].tenant == tenant;
    return n;
}

static void mark(struct fixture *w, const block_id *ids, uint32_t n, uint32_t time,
                 uint32_t tenant) {
    block_pool_retain(w->pool, ids, n, time, tenant);
    for (uint32_t i = 0; i < n; i++) {
        struct model_block *b = &w->blocks[ids[i]];

        if (!b->is_cached) return;
        if (b->time == RETAIN_NONE) {
            if (tenant > 0 && n_of_tenant(w, tenant) >= MAX_KEPT / 2) return;
            b->tenant = tenant;
        }
        b->time = MAX(b->time, time);
    }
}

/* A chain that is cached, in use from now on, first block first; 0: none was drawn. */
static uint32_t touch_chain(struct fixture *w, block_id *ids) {
    block_id last = below(w, N_BLOCKS), back[N_BLOCKS];
    uint32_t n = 0;

    if (!w->blocks[last].is_cached) return 0;
    for (block_id id = last; id != BLOCK_NONE; id = w->blocks[id].parent)
        back[n++] = id;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = back[n - 1 - i];
        w->blocks[ids[i]].is_free = false;
    }
    block_pool_touch(w->pool, ids, n);
    return n;
}

/* Of the last block first; what is free goes to the back of its new place. */
static void hold(struct fixture *w, struct model_hold *h, const block_id *ids, uint32_t n) {
    h->n = n;
    for (uint32_t i = n; i-- > 0;) {
        struct model_block *b = &w->blocks[ids[i]];

        h->ids[i] = ids[i];
        block_pool_hold(w->pool, ids[i]);
        b->n_holds++;
        b->place = ++w->last;
        end_marks(w);
    }
}

static void unhold(struct fixture *w, struct model_hold *h) {
    for (uint32_t i = h->n; i-- > 0;) {
        struct model_block *b = &w->blocks[h->ids[i]];

        if (h->ids[i] == BLOCK_NONE || --b->n_holds > 0) continue;
        block_pool_unhold(w->pool, h->ids[i]);
        b->released_us = w->now_us;
        b->place = ++w->last;
        end_marks(w);
    }
    h->n = 0;
}

/* Some chain, whoever uses it. */
static void hold_one(struct fixture *w) {
    struct model_hold *h = &w->holds[below(w, N_HOLDS)];
    block_id last = below(w, N_BLOCKS), ids[N_BLOCKS], back[N_BLOCKS];
    uint32_t n = 0;

    unhold(w, h);
    if (!w->blocks[last].is_cached) return;
    for (block_id id = last; id != BLOCK_NONE; id = w->blocks[id].parent)
        back[n++] = id;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = back[n - 1 - i];
    hold(w, h, ids, n);
}

/* A request: hits, new blocks, the last of them blank; marks; all back. */
static void run_one(struct fixture *w) {
    block_id ids[2 * N_BLOCKS], back[2 * N_BLOCKS];
    uint32_t n = below(w, 3) ? touch_chain(w, ids) : 0, n_new;

    n_new = MIN(below(w, n < CHAIN_MAX ? 6 : 2), block_pool_n_free(w->pool));
    if (below(w, 50) == 0) n_new = block_pool_n_free(w->pool); /* what is held goes too */
    take(w, ids + n, n_new);
    for (uint32_t i = n; i + 1 < n + n_new; i++) {
        block_id parent = i > 0 ? ids[i - 1] : BLOCK_NONE;

        publish(w->pool, ids[i], parent, ++w->n_names);
        w->blocks[ids[i]].is_cached = true;
        w->blocks[ids[i]].parent = parent;
    }
    n += n_new;
    if (below(w, 2)) mark(w, ids, below(w, n + 1), 1 + below(w, RETENTIONS - 1), below(w, 4));
    for (uint32_t i = 0; i < n; i++)
        back[i] = ids[n - 1 - i];
    if (below(w, 8) == 0) hold_one(w);
    release(w, back, n);
    if (below(w, 8) == 0) hold_one(w);
}

static void run(enum free_order order) {
    struct fixture w = {.order = order};
    struct block_retain_stats stats;

    rng_seed(&w.rng, 11 + (uint64_t)order);
    if (order == FREE_ORDER_REUSE) w.reuse = block_reuse_create();
    w.pool = block_pool_create(&(struct block_pool_config){.n_blocks = N_BLOCKS,
                                                           .block_size = 1,
                                                           .order = order,
                                                           .no_null = true,
                                                           .max_retained = MAX_KEPT,
                                                           .can_hold = true,
                                                           .reuse = w.reuse});
    for (block_id id = 0; id < N_BLOCKS; id++)
        w.blocks[id] =
            (struct model_block){.is_free = true, .place = ++w.last, .parent = BLOCK_NONE};
    for (uint32_t i = 0; i < N_OPS; i++) {
        if (below(&w, 4) == 0)
            set_now(&w, w.now_us + below(&w, below(&w, 50) ? 60 : 90000) * SECOND);
        run_one(&w);
        block_pool_check(w.pool);
        assert_int_equal(block_pool_retained(w.pool).n_free, n_retained(&w));
    }
    stats = block_pool_retained(w.pool);
    assert_true(stats.n_hit > 100 && stats.n_expired > 100 && stats.n_displaced > 100 &&
                stats.n_refused > 100);
    assert_true(w.n_evicted_held > 100);
    block_pool_destroy(w.pool);
    block_reuse_destroy(w.reuse);
}

static void order_is_that_of_the_model(void **state) {
    (void)state;
    run(FREE_ORDER_FRESH_FIRST);
    run(FREE_ORDER_CLASSIC);
    run(FREE_ORDER_REUSE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marked_beginning_goes_last),
        cmocka_unit_test(longer_times_go_later),
        cmocka_unit_test(budget_keeps_what_was_used_last_and_heads),
        cmocka_unit_test(marks_alike_are_least_recently_used),
        cmocka_unit_test(hit_starts_the_time_again_and_idleness_ends_it),
        cmocka_unit_test(largest_share_of_its_time_goes_first),
        cmocka_unit_test(longer_of_two_times_counts),
        cmocka_unit_test(seconds_are_the_longest_time_within),
        cmocka_unit_test(tenant_has_half_of_the_budget),
        cmocka_unit_test(reset_forgets_marks),
        cmocka_unit_test(nothing_is_kept_without_a_budget),
        cmocka_unit_test(order_is_that_of_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
