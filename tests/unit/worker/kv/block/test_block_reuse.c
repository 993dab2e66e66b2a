/* tests/unit/worker/kv/block/test_block_reuse.c - what is learned of kinds, and the order of
 * eviction that follows, against a search over all free blocks. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/block/block_pool.h"
#include "worker/kv/block/block_reuse.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPS 50000u
#else
#define N_OPS 500000u /* of two blocks at the mean */
#endif
#define N_BLOCKS 24u
#define NEW_MAX  3u

static struct block_hash hash_of(uint64_t name) {
    struct block_hash hash = {{0}};
    uint64_t x = rng_mix(name + 1);

    memcpy(hash.bytes, &x, sizeof(x));
    return hash;
}

/* --- kinds ------------------------------------------------------------------------------------ */

static void turns_are_known_by_lineage(void **state) {
    struct block_reuse *r = block_reuse_create();
    struct block_hash chain[4] = {hash_of(1), hash_of(2), hash_of(3), hash_of(4)};
    uint32_t first, second;

    (void)state;
    first = block_reuse_arrived(r, chain, 2, 0);
    assert_int_equal(first / REUSE_FRESH, 0);
    block_reuse_ended(r, first, &chain[1], NULL);
    second = block_reuse_arrived(r, chain, 4, 4);
    assert_int_equal(second, REUSE_FRESH); /* the second turn, all of it cached */
    assert_int_equal(block_reuse_arrived(r, chain, 2, 0) / REUSE_FRESH, 0); /* an end counts once */
    block_reuse_destroy(r);
}

static void a_kind_that_returns_costs_less_to_keep(void **state) {
    struct block_reuse *r = block_reuse_create();

    (void)state;
    for (uint64_t i = 0; i < 2 * REUSE_COUNT_MAX; i++) {
        struct block_hash prompt = hash_of(2 * i), answer = hash_of(2 * i + 1);
        uint32_t kind = block_reuse_arrived(r, &prompt, 1, i % 2);

        assert_true(kind < REUSE_GENERATED);
        block_reuse_ended(r, kind, &prompt, &answer);
        if (i % 4 == 0) block_reuse_arrived(r, &prompt, 1, 1);
    }
    block_reuse_set_now(r, 1000000);
    assert_true(block_reuse_cost(r, REUSE_GENERATED, 1000000) >
                2 * block_reuse_cost(r, REUSE_FRESH - 1, 0)); /* answers never returned */
    assert_true(block_reuse_cost(r, 0, 0) > block_reuse_cost(r, 0, 1000000));
    block_reuse_destroy(r);
}

/* --- the order -------------------------------------------------------------------------------- */

struct model_block {
    uint64_t released_us;
    block_id parent;
    uint32_t kind;
    bool is_cached, had_child;
};

struct order_fixture {
    struct block_pool *pool;
    struct block_reuse *reuse;
    struct rng rng;
    struct model_block blocks[N_BLOCKS];
    uint64_t now_us, n_names, n_evicted, n_parents;
};

static uint32_t below(struct order_fixture *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

static bool has_child(const struct order_fixture *w, block_id id) {
    for (block_id b = 1; b < N_BLOCKS; b++) {
        if (w->blocks[b].is_cached && w->blocks[b].parent == id) return true;
    }
    return false;
}

static double cost(const struct order_fixture *w, block_id id) {
    return block_reuse_cost(w->reuse, w->blocks[id].kind, w->blocks[id].released_us);
}

/* Takes one block: a blank one, or one without children that costs most, or one whose children went
 * before it. */
static block_id take_one(struct order_fixture *w) {
    bool is_free[N_BLOCKS], has_blank = false;
    struct model_block *b;
    double most = 0;
    block_id id;

    for (block_id i = 1; i < N_BLOCKS; i++) {
        is_free[i] = block_pool_ref_cnt(w->pool, i) == 0;
        has_blank |= is_free[i] && !w->blocks[i].is_cached;
        if (is_free[i] && w->blocks[i].is_cached && !has_child(w, i)) most = MAX(most, cost(w, i));
    }
    assert_int_equal(block_pool_acquire(w->pool, &id, 1), ST_OK);
    assert_true(is_free[id]);
    b = &w->blocks[id];
    if (b->is_cached) {
        assert_false(has_child(w, id));
        assert_true(!has_blank || b->had_child);
        assert_true(cost(w, id) >= most || b->had_child);
        w->n_evicted++;
        w->n_parents += b->had_child;
    }
    *b = (struct model_block){.parent = BLOCK_NONE};
    return id;
}

static void publish(struct order_fixture *w, block_id id, block_id parent) {
    const struct prefix_cache *cache = block_pool_cache(w->pool);
    struct block_hash hash = hash_of(++w->n_names);
    uint32_t token = (uint32_t)w->n_names;
    struct prefix_key key = {&hash, PREFIX_ROOT, &token, NULL, 0};

    if (parent != BLOCK_NONE) key.parent = prefix_cache_prefix(cache, parent);
    block_pool_publish(w->pool, id, &key, 0);
    block_pool_link(w->pool, id, parent);
    w->blocks[id] = (struct model_block){.parent = parent, .is_cached = true};
    if (parent != BLOCK_NONE) w->blocks[parent].had_child = true;
}

/* The blocks of a cached chain that ends at `last`, in use from now on; the last first. */
static uint32_t touch_chain(struct order_fixture *w, block_id last, block_id *ids) {
    uint32_t n = 0;

    for (block_id id = last; id != BLOCK_NONE; id = w->blocks[id].parent) {
        assert_true(w->blocks[id].is_cached); /* eviction never cut it in two */
        ids[n++] = id;
    }
    block_pool_touch(w->pool, ids, n);
    return n;
}

static void learn(struct order_fixture *w) {
    struct block_hash hash = hash_of(below(w, 64));
    uint32_t kind = block_reuse_arrived(w->reuse, &hash, 1, below(w, 2));

    block_reuse_ended(w->reuse, kind, &hash, below(w, 2) ? &hash : NULL);
}

/* A request that continues some chain by up to NEW_MAX blocks, the last perhaps not full. */
static void serve(struct order_fixture *w) {
    block_id chain[N_BLOCKS], held[NEW_MAX], last = 1 + below(w, N_BLOCKS - 1);
    uint32_t n_chain = 0, n_new = 1 + below(w, NEW_MAX), kind = below(w, REUSE_KINDS), n = 0;

    if (!w->blocks[last].is_cached || below(w, 4) == 0) last = BLOCK_NONE;
    n_chain = touch_chain(w, last, chain);
    n_new = MIN(n_new, block_pool_n_free(w->pool));
    for (; n < n_new; n++) {
        held[n] = take_one(w);
        if (n + 1 == n_new && below(w, 4) == 0) continue;
        publish(w, held[n], n > 0 ? held[n - 1] : last);
    }
    block_pool_set_kind(w->pool, held, n, kind);
    block_pool_set_kind(w->pool, chain, n_chain, kind);
    while (n-- > 0) {
        block_pool_release(w->pool, &held[n], 1);
        w->blocks[held[n]].kind = kind;
        w->blocks[held[n]].released_us = w->now_us;
    }
    block_pool_release(w->pool, chain, n_chain);
    for (uint32_t i = 0; i < n_chain; i++) {
        w->blocks[chain[i]].kind = kind;
        w->blocks[chain[i]].released_us = w->now_us;
    }
}

static void the_costliest_leaf_is_evicted(void **state) {
    struct order_fixture *w = mem_zalloc(sizeof(*w));

    (void)state;
    w->reuse = block_reuse_create();
    w->pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = N_BLOCKS, .block_size = 1, .order = FREE_ORDER_REUSE, .reuse = w->reuse});
    rng_seed(&w->rng, support_seed());
    for (uint32_t i = 0; i < N_OPS; i++) {
        w->now_us += below(w, 2) * below(w, 20000000);
        block_reuse_set_now(w->reuse, w->now_us);
        if (below(w, 4) == 0) learn(w);
        serve(w);
        block_pool_check(w->pool);
        if (below(w, 20000) > 0) continue;
        assert_int_equal(block_pool_reset(w->pool), ST_OK);
        block_pool_check(w->pool);
        memset(w->blocks, 0, sizeof(w->blocks));
        for (block_id id = 0; id < N_BLOCKS; id++)
            w->blocks[id].parent = BLOCK_NONE;
    }
    assert_true(w->n_evicted > N_OPS / 2 && w->n_parents > N_OPS / 50);
    block_pool_destroy(w->pool);
    block_reuse_destroy(w->reuse);
    mem_free(w);
}

/* Of one kind the order is that of release. */
static void one_kind_is_lru(void **state) {
    struct block_reuse *reuse = block_reuse_create();
    struct block_pool *pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = 5, .block_size = 1, .order = FREE_ORDER_REUSE, .reuse = reuse});
    struct order_fixture w = {.pool = pool, .reuse = reuse};
    block_id ids[4], next[4];

    (void)state;
    assert_int_equal(block_pool_acquire(pool, ids, 4), ST_OK);
    for (uint32_t i = 0; i < 4; i++)
        publish(&w, ids[i], BLOCK_NONE);
    for (uint32_t i = 0; i < 4; i++) {
        block_reuse_set_now(reuse, 1000 * i);
        block_pool_release(pool, &ids[i * 3 % 4], 1);
    }
    assert_int_equal(block_pool_acquire(pool, next, 4), ST_OK);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(next[i], ids[i * 3 % 4]);
    block_pool_release(pool, next, 4);
    block_pool_destroy(pool);
    block_reuse_destroy(reuse);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_are_known_by_lineage),
        cmocka_unit_test(a_kind_that_returns_costs_less_to_keep),
        cmocka_unit_test(one_kind_is_lru),
        cmocka_unit_test(the_costliest_leaf_is_evicted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
