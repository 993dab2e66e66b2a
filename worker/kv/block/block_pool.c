/* worker/kv/block/block_pool.c - reference counts over a free queue and a prefix cache. */
#include "worker/kv/block/block_pool.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "worker/kv/block/block_ages.h"
#include "worker/kv/block/block_reuse.h"
#include "worker/kv/block/free_queue.h"

_Static_assert(BLOCK_NONE == FREE_QUEUE_NONE && BLOCK_NONE == PREFIX_CACHE_NONE,
               "one value for no block");

/* With FREE_ORDER_REUSE the queue has more rings. A block that is due for eviction while a child of
 * it is cached waits on the ring of parents, and follows its last child:
 *
 *      ring 0         blanks, and parents whose last child was evicted: taken first
 *      RING_PARENTS   due, with children: taken last
 *      RING_KIND + c blocks of kind c, by time of release: the head with the highest cost */
enum { RING_PARENTS = 1, RING_KIND = 2, N_RINGS = RING_KIND + REUSE_KINDS };

/* The rings of retained blocks follow, in each order. */

struct block_place {
    uint64_t released_us;
    block_id parent; /* BLOCK_NONE: the first of its chain, or unknown */
    uint32_t
        parent_incarnation; /* of that block, when it was linked: a later one is not its parent */
    uint32_t incarnation;   /* how often it was handed out */
    uint32_t n_children;    /* cached blocks linked to this incarnation */
    uint16_t kind;          /* < REUSE_KINDS */
    bool is_due;            /* on the ring of parents */
};

struct block_pool {
    struct block_pool_config config;
    uint32_t *ref_cnt; /* (n_blocks); 0 exactly for the blocks on the queue, and the null block */
    struct free_queue queue;
    struct prefix_cache cache;
    uint64_t n_evicted;
    struct block_retain *retain;                   /* NULL: none is */
    struct block_place *places;                    /* (n_blocks) of FREE_ORDER_REUSE, else NULL */
    uint64_t kind_bits[CEIL_DIV(REUSE_KINDS, 64)]; /* may have free blocks; 0: has none */
    uint32_t victim_kind; /* that the last victim came from; REUSE_KINDS: choose again */
    uint64_t victim_us;   /* when that one was released */
};

static bool is_null(const struct block_pool *pool, block_id id) {
    return id == BLOCK_NULL && !pool->config.no_null;
}

static void begin_incarnation(struct block_pool *pool, block_id id) {
    struct block_place *place = &pool->places[id];

    *place = (struct block_place){.parent = BLOCK_NONE, .incarnation = place->incarnation + 1};
}

struct block_pool *block_pool_create(const struct block_pool_config *config) {
    struct block_pool *pool = mem_zalloc(sizeof(*pool));
    uint32_t n_rings = config->reuse ? N_RINGS : 1;

    assert(config->n_blocks >= (config->no_null ? 1 : 2) && config->n_blocks < BLOCK_NONE);
    pool->config = *config;
    pool->ref_cnt = mem_calloc(config->n_blocks, sizeof(*pool->ref_cnt));
    prefix_cache_init(&pool->cache, config->n_blocks, config->block_size);
    assert((config->order == FREE_ORDER_REUSE) == (config->reuse != NULL));
    free_queue_init_rings(&pool->queue, config->n_blocks, n_rings + RETAIN_RINGS);
    if (config->max_retained > 0 || config->can_hold)
        pool->retain =
            block_retain_create(config->n_blocks, config->max_retained, &pool->queue, n_rings);
    if (config->reuse) pool->places = mem_calloc(config->n_blocks, sizeof(*pool->places));
    pool->victim_kind = REUSE_KINDS;
    for (block_id id = 0; id < config->n_blocks; id++) {
        if (pool->places) begin_incarnation(pool, id);
        if (!is_null(pool, id)) free_queue_push_back(&pool->queue, id);
    }
    return pool;
}

void block_pool_destroy(struct block_pool *pool) {
    if (!pool) return;
    free_queue_fini(&pool->queue);
    prefix_cache_fini(&pool->cache);
    mem_free(pool->ref_cnt);
    mem_free(pool->places);
    block_retain_destroy(pool->retain);
    mem_free(pool);
}

/* --- the order by reuse ----------------------------------------------------------------------- */

void block_pool_link(struct block_pool *pool, block_id id, block_id parent) {
    if (!pool->places || parent == BLOCK_NONE) return;
    assert(prefix_cache_contains(&pool->cache, id) && pool->places[id].parent == BLOCK_NONE);
    if (!prefix_cache_contains(&pool->cache, parent) ||
        prefix_cache_prefix(&pool->cache, parent) != prefix_cache_parent(&pool->cache, id))
        return;
    pool->places[id].parent = parent;
    pool->places[id].parent_incarnation = pool->places[parent].incarnation;
    pool->places[parent].n_children++;
}

void block_pool_set_kind(struct block_pool *pool, const block_id *ids, uint32_t n, uint32_t kind) {
    if (!pool->places) return;
    assert(kind < REUSE_KINDS);
    for (uint32_t i = 0; i < n; i++)
        pool->places[ids[i]].kind = (uint16_t)kind;
}

static void queue_by_kind(struct block_pool *pool, block_id id) {
    uint32_t kind = pool->places[id].kind;

    pool->places[id].released_us = block_reuse_now_us(pool->config.reuse);
    free_queue_push_back_to(&pool->queue, RING_KIND + kind, id);
    pool->kind_bits[kind / 64] |= UINT64_C(1) << kind % 64;
}

/* The kind whose oldest block costs most; REUSE_KINDS: no block is queued by kind. */
static uint32_t choose_kind(struct block_pool *pool) {
    uint32_t best = REUSE_KINDS;
    double most = -1;

    for (uint32_t w = 0; w < ARRAY_LEN(pool->kind_bits); w++) {
        for (uint64_t bits = pool->kind_bits[w]; bits; bits &= bits - 1) {
            uint32_t kind = w * 64 + (uint32_t)__builtin_ctzll(bits);
            block_id id = free_queue_first_of(&pool->queue, RING_KIND + kind);
            double cost;

            if (id == BLOCK_NONE) {
                pool->kind_bits[w] &= ~(UINT64_C(1) << kind % 64);
                continue;
            }
            cost = block_reuse_cost(pool->config.reuse, kind, pool->places[id].released_us);
            if (cost <= most) continue;
            most = cost;
            best = kind;
        }
    }
    return best;
}

/* Costs do not change within an acquire: a choice is good until the kind's head is of another
 * release. */
static block_id costliest(struct block_pool *pool) {
    block_id id = BLOCK_NONE;

    if (pool->victim_kind < REUSE_KINDS)
        id = free_queue_first_of(&pool->queue, RING_KIND + pool->victim_kind);
    if (id != BLOCK_NONE && pool->places[id].released_us == pool->victim_us) return id;
    pool->victim_kind = choose_kind(pool);
    if (pool->victim_kind == REUSE_KINDS) return BLOCK_NONE;
    id = free_queue_first_of(&pool->queue, RING_KIND + pool->victim_kind);
    pool->victim_us = pool->places[id].released_us;
    return id;
}

/* BLOCK_NONE: only retained ones are free. */
static block_id next_by_reuse(struct block_pool *pool) {
    for (;;) {
        block_id id = free_queue_first(&pool->queue);

        if (id != BLOCK_NONE) return id;
        id = costliest(pool);
        if (id == BLOCK_NONE) return free_queue_first_of(&pool->queue, RING_PARENTS);
        if (pool->places[id].n_children == 0) return id;
        free_queue_remove(&pool->queue, id);
        free_queue_push_back_to(&pool->queue, RING_PARENTS, id);
        pool->places[id].is_due = true;
    }
}

/* Its content goes: its parent has one child less, and follows when it was due. */
static void unlink_from_parent(struct block_pool *pool, block_id id) {
    struct block_place *place = &pool->places[id];
    block_id parent = place->parent;

    place->parent = BLOCK_NONE;
    if (parent == BLOCK_NONE || pool->places[parent].incarnation != place->parent_incarnation)
        return;
    assert(pool->places[parent].n_children > 0);
    if (--pool->places[parent].n_children > 0 || !pool->places[parent].is_due) return;
    pool->places[parent].is_due = false;
    free_queue_remove(&pool->queue, parent);
    free_queue_push_back(&pool->queue, parent);
}

/* --- retained blocks -------------------------------------------------------------------------- */

static void queue_cached(struct block_pool *pool, block_id id) {
    if (pool->places)
        queue_by_kind(pool, id);
    else
        free_queue_push_back(&pool->queue, id);
}

static void end_marks(struct block_pool *pool) {
    block_id id;

    if (!pool->retain) return;
    while ((id = block_retain_pop_ended(pool->retain)) != BLOCK_NONE)
        queue_cached(pool, id);
}

void block_pool_retain(struct block_pool *pool, const block_id *ids, uint32_t n,
                       enum retention time, uint64_t tenant) {
    if (pool->config.max_retained == 0) return;
    for (uint32_t i = 0; i < n; i++) {
        if (is_null(pool, ids[i])) continue;
        if (!prefix_cache_contains(&pool->cache, ids[i]) ||
            !block_retain_mark(pool->retain, ids[i], time, tenant))
            return;
    }
}

/* Off the queue, with no user to come. */
static void leave_queue(struct block_pool *pool, block_id id) {
    block_retain_leave(pool->retain, id);
    free_queue_remove(&pool->queue, id);
    if (pool->places) pool->places[id].is_due = false;
}

static void queue_again(struct block_pool *pool, block_id id) {
    if (!block_retain_push(pool->retain, id)) queue_cached(pool, id);
    end_marks(pool);
}

void block_pool_hold(struct block_pool *pool, block_id id) {
    bool is_free = pool->ref_cnt[id] == 0;

    assert(pool->config.can_hold && prefix_cache_contains(&pool->cache, id));
    if (is_free) leave_queue(pool, id);
    block_retain_hold(pool->retain, id);
    if (is_free) queue_again(pool, id);
}

void block_pool_unhold(struct block_pool *pool, block_id id) {
    bool is_free = pool->ref_cnt[id] == 0;

    if (is_free) leave_queue(pool, id);
    block_retain_unhold(pool->retain, id);
    if (is_free) queue_again(pool, id);
}

void block_pool_set_now(struct block_pool *pool, uint64_t now_us) {
    if (!pool->retain) return;
    block_retain_set_now(pool->retain, now_us);
    end_marks(pool);
}

struct block_retain_stats block_pool_retained(const struct block_pool *pool) {
    return pool->retain ? block_retain_stats(pool->retain) : (struct block_retain_stats){0};
}

/* --- the pool --------------------------------------------------------------------------------- */

static void evict(struct block_pool *pool, block_id id) {
    if (pool->config.on_evict) pool->config.on_evict(pool->config.arg, id);
    if (pool->config.ages) block_ages_evicted(pool->config.ages, id);
    if (pool->places) unlink_from_parent(pool, id);
    if (pool->retain) block_retain_forget(pool->retain, id);
    prefix_cache_erase(&pool->cache, id);
    pool->n_evicted++;
}

/* The coldest free block, off the queue. */
static block_id take_coldest(struct block_pool *pool) {
    block_id id = pool->places ? next_by_reuse(pool) : free_queue_first(&pool->queue);

    if (id == BLOCK_NONE) return block_retain_evict(pool->retain);
    free_queue_remove(&pool->queue, id);
    return id;
}

enum status block_pool_acquire(struct block_pool *pool, block_id *ids, uint32_t n) {
    if (n > pool->queue.count) return ST_BUSY;
    pool->victim_kind = REUSE_KINDS;
    for (uint32_t i = 0; i < n; i++) {
        block_id id = take_coldest(pool);

        assert(pool->ref_cnt[id] == 0);
        if (prefix_cache_contains(&pool->cache, id)) evict(pool, id);
        if (pool->config.ages) block_ages_acquired(pool->config.ages, id);
        if (pool->places) begin_incarnation(pool, id);
        pool->ref_cnt[id] = 1;
        ids[i] = id;
    }
    return ST_OK;
}

void block_pool_touch(struct block_pool *pool, const block_id *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (is_null(pool, ids[i])) continue;
        if (pool->ref_cnt[ids[i]]++ == 0) {
            if (pool->retain) block_retain_hit(pool->retain, ids[i]);
            free_queue_remove(&pool->queue, ids[i]);
            if (pool->places) pool->places[ids[i]].is_due = false;
        }
        if (pool->config.ages) block_ages_hit(pool->config.ages, ids[i]);
    }
}

static bool goes_to_head(const struct block_pool *pool, block_id id) {
    return pool->config.order != FREE_ORDER_CLASSIC && !prefix_cache_contains(&pool->cache, id);
}

void block_pool_release(struct block_pool *pool, const block_id *ids, uint32_t n) {
    uint32_t n_blank = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (is_null(pool, ids[i])) continue;
        assert(pool->ref_cnt[ids[i]] > 0);
        if (--pool->ref_cnt[ids[i]] > 0) continue;
        if (goes_to_head(pool, ids[i]))
            n_blank++;
        else if (!pool->retain || !block_retain_push(pool->retain, ids[i]))
            queue_cached(pool, ids[i]);
    }
    /* Backwards, so that blanks lie at the head in the order given. They are the ones that lost
     * their last user above and have not been queued. */
    for (uint32_t i = n; n_blank > 0; i--) {
        block_id id = ids[i - 1];

        if (is_null(pool, id) || pool->ref_cnt[id] > 0 || free_queue_contains(&pool->queue, id)) {
            continue;
        }
        free_queue_push_front(&pool->queue, id);
        n_blank--;
    }
    end_marks(pool);
}

void block_pool_publish(struct block_pool *pool, block_id id, const struct prefix_key *key,
                        uint64_t prefix) {
    assert(pool->ref_cnt[id] > 0);
    prefix_cache_insert(&pool->cache, id, key, prefix);
}

uint64_t block_pool_new_number(struct block_pool *pool) {
    return prefix_cache_new_number(&pool->cache);
}

bool block_pool_unpublish(struct block_pool *pool, block_id id) {
    assert(!pool->retain);
    if (pool->places) unlink_from_parent(pool, id);
    return prefix_cache_erase(&pool->cache, id);
}

block_id block_pool_find(const struct block_pool *pool, const struct prefix_key *key) {
    return prefix_cache_find(&pool->cache, key);
}

enum status block_pool_reset(struct block_pool *pool) {
    if (block_pool_n_free(pool) != block_pool_n_usable(pool)) return ST_BUSY;
    prefix_cache_clear(&pool->cache);
    while (block_pool_retained(pool).n_free > 0)
        free_queue_push_back(&pool->queue, block_retain_evict(pool->retain));
    for (block_id id = 0; pool->places && id < pool->config.n_blocks; id++) {
        begin_incarnation(pool, id);
        if (is_null(pool, id)) continue;
        free_queue_remove(&pool->queue, id); /* no kind is left */
        free_queue_push_back(&pool->queue, id);
    }
    if (pool->config.ages) block_ages_reset(pool->config.ages);
    return ST_OK;
}

uint32_t block_pool_n_free(const struct block_pool *pool) {
    return pool->queue.count;
}

uint32_t block_pool_n_usable(const struct block_pool *pool) {
    return pool->config.n_blocks - (pool->config.no_null ? 0 : 1);
}

uint32_t block_pool_n_cached(const struct block_pool *pool) {
    return pool->cache.n_cached;
}

uint64_t block_pool_n_evicted(const struct block_pool *pool) {
    return pool->n_evicted;
}

double block_pool_usage(const struct block_pool *pool) {
    return 1.0 - (double)block_pool_n_free(pool) / block_pool_n_usable(pool);
}

uint32_t block_pool_ref_cnt(const struct block_pool *pool, block_id id) {
    return pool->ref_cnt[id];
}

const struct prefix_cache *block_pool_cache(const struct block_pool *pool) {
    return &pool->cache;
}

block_id block_pool_next_free(const struct block_pool *pool, block_id id) {
    block_id next;

    if (pool->places || !pool->retain)
        return id == BLOCK_NONE ? free_queue_first(&pool->queue)
                                : free_queue_next(&pool->queue, id);
    if (id != BLOCK_NONE &&
        (block_retain_is_marked(pool->retain, id) || block_retain_is_held(pool->retain, id)))
        return block_retain_next(pool->retain, id);
    next = id == BLOCK_NONE ? free_queue_first(&pool->queue) : free_queue_next(&pool->queue, id);
    return next == BLOCK_NONE ? block_retain_next(pool->retain, BLOCK_NONE) : next;
}

/* A prefix number and the queue position of its last copy; n_blocks: in use. */
struct prefix_place {
    uint64_t prefix;
    uint32_t place;
};

static int by_prefix(const void *a, const void *b) {
    const struct prefix_place *x = a, *y = b;

    return (x->prefix > y->prefix) - (x->prefix < y->prefix);
}

static int by_prefix_then_place(const void *a, const void *b) {
    const struct prefix_place *x = a, *y = b;
    int order = by_prefix(a, b);

    return order ? order : (x->place > y->place) - (x->place < y->place);
}

/* One row per cached prefix, sorted by prefix number. Returns how many. */
static uint32_t last_copies(const struct block_pool *pool, const uint32_t *place,
                            struct prefix_place *rows) {
    uint32_t n = 0, n_kept = 0;

    for (block_id id = 0; id < pool->config.n_blocks; id++) {
        if (!prefix_cache_contains(&pool->cache, id)) continue;
        rows[n++] = (struct prefix_place){prefix_cache_prefix(&pool->cache, id), place[id]};
    }
    qsort(rows, n, sizeof(*rows), by_prefix_then_place);
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 == n || rows[i + 1].prefix != rows[i].prefix) rows[n_kept++] = rows[i];
    }
    return n_kept;
}

static void check_leaf_first(const struct block_pool *pool, const uint32_t *place) {
    struct prefix_place *rows = mem_calloc((size_t)pool->cache.n_cached + 1, sizeof(*rows));
    uint32_t n_rows = last_copies(pool, place, rows);

    for (block_id id = 0; id < pool->config.n_blocks; id++) {
        struct prefix_place wanted = {PREFIX_ROOT, 0};
        const struct prefix_place *parent;

        if (prefix_cache_contains(&pool->cache, id)) {
            wanted.prefix = prefix_cache_parent(&pool->cache, id);
        }
        if (wanted.prefix == PREFIX_ROOT) continue;
        parent = bsearch(&wanted, rows, n_rows, sizeof(*rows), by_prefix);
        assert(parent != NULL);
        assert(parent->place > place[id] || parent->place == pool->config.n_blocks);
    }
    mem_free(rows);
}

/* `n_children`: (n_blocks), overwritten. */
static void check_links(const struct block_pool *pool, uint32_t *n_children) {
    for (block_id id = 0; id < pool->config.n_blocks; id++)
        n_children[id] = 0;
    for (block_id id = 0; id < pool->config.n_blocks; id++) {
        const struct block_place *place = &pool->places[id];

        if (!prefix_cache_contains(&pool->cache, id)) {
            assert(place->parent == BLOCK_NONE || is_null(pool, id));
            continue;
        }
        if (place->parent == BLOCK_NONE ||
            pool->places[place->parent].incarnation != place->parent_incarnation)
            continue;
        assert(prefix_cache_prefix(&pool->cache, place->parent) ==
               prefix_cache_parent(&pool->cache, id));
        n_children[place->parent]++;
    }
    for (block_id id = 0; id < pool->config.n_blocks; id++) {
        const struct block_place *place = &pool->places[id];

        assert(place->n_children == n_children[id]);
        assert(!place->is_due || pool->ref_cnt[id] == 0);
    }
    for (block_id id = free_queue_first(&pool->queue); id != BLOCK_NONE;
         id = free_queue_next(&pool->queue, id))
        assert(n_children[id] == 0);
    for (block_id id = free_queue_first_of(&pool->queue, RING_PARENTS); id != BLOCK_NONE;
         id = free_queue_next(&pool->queue, id))
        assert(n_children[id] > 0 && pool->places[id].is_due);
}

void block_pool_check_parts(const struct block_pool *pool) {
    free_queue_check(&pool->queue);
    prefix_cache_check(&pool->cache);
    if (pool->retain) block_retain_check(pool->retain);
    for (block_id id = 0; id < pool->config.n_blocks; id++) {
        bool is_free = free_queue_contains(&pool->queue, id);

        assert(!pool->retain || !block_retain_is_marked(pool->retain, id) ||
               prefix_cache_contains(&pool->cache, id));
        if (!is_null(pool, id))
            assert(is_free == (pool->ref_cnt[id] == 0));
        else
            assert(!is_free && !prefix_cache_contains(&pool->cache, id));
    }
}

void block_pool_check(const struct block_pool *pool) {
    uint32_t n_blocks = pool->config.n_blocks, n_place = 0;
    uint32_t *place = mem_calloc(n_blocks, sizeof(*place));

    block_pool_check_parts(pool);
    for (block_id id = 0; id < n_blocks; id++)
        place[id] = n_blocks;
    if (pool->places) {
        check_links(pool, place);
        mem_free(place);
        return;
    }
    for (block_id id = block_pool_next_free(pool, BLOCK_NONE); id != BLOCK_NONE;
         id = block_pool_next_free(pool, id)) {
        place[id] = n_place++;
    }
    check_leaf_first(pool, place);
    mem_free(place);
}
