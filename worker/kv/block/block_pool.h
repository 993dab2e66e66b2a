/* worker/kv/block/block_pool.h - the physical KV blocks of one worker.
 *
 * The pool hands out blocks by id. A block whose ref_cnt falls to 0 goes to the free queue but
 * keeps its content and its hash: it can be found and revived until it is handed out again. So the
 * free queue is the eviction order, and nothing else that decides records when a block was used
 * (block_ages.h looks on).
 *
 *      in use      ref_cnt > 0, not on the free queue; published once it is full
 *      cached      ref_cnt = 0, on the queue, published: a hit revives it
 *      blank       ref_cnt = 0, on the queue, no content that can be hit
 *
 *      retained    cached, and a client has asked to keep it: see block_retain.h
 *      held        cached, and a client holds it: taken when nothing else is free
 *
 * Two orders. `classic` appends whatever is released. `fresh-first` (default) puts blanks at the
 * head, so that an empty block is reused before one that may still be hit.
 *
 * Thread: engine. All records are allocated at creation. Follows: Kwon et al., PagedAttention,
 * SOSP 2023, section 4, and the free queue of vLLM's block pool. */
#ifndef WORKER_KV_BLOCK_BLOCK_POOL_H
#define WORKER_KV_BLOCK_BLOCK_POOL_H

#include "common/base/status.h"
#include "worker/kv/block/block_retain.h"
#include "worker/kv/block/prefix_cache.h"

struct block_ages;
struct block_reuse;

typedef uint32_t block_id; /* 0 is the null block: never handed out, safe padding */
#define BLOCK_NULL 0u
#define BLOCK_NONE UINT32_MAX

enum free_order { FREE_ORDER_FRESH_FIRST, FREE_ORDER_CLASSIC, FREE_ORDER_REUSE };

struct block_pool_config {
    uint32_t n_blocks;   /* the null block included: >= 2, or >= 1 without it */
    uint32_t block_size; /* tokens */
    enum free_order order;
    bool no_null;          /* block 0 is a block like the others */
    uint32_t max_retained; /* free blocks that are evicted after all others; 0: none is */
    bool can_hold;         /* block_pool_hold is used */
    /* Called before a published block is evicted, while its content can still be queried. May be
     * NULL; must not change the pool. */
    void (*on_evict)(void *arg, block_id id);
    void *arg;
    struct block_ages *ages;   /* borrowed, measures residencies; may be NULL */
    struct block_reuse *reuse; /* borrowed, gives the order FREE_ORDER_REUSE; NULL with others */
};
struct block_pool;

struct block_pool *block_pool_create(const struct block_pool_config *config);
void block_pool_destroy(struct block_pool *pool); /* NULL is fine */

/* Takes the n coldest free blocks, with ref_cnt 1, forgetting what they held. All or nothing:
 * ST_BUSY if fewer are free. */
MUST_USE enum status block_pool_acquire(struct block_pool *pool, block_id *ids, uint32_t n);

/* One more reference to each: revives the cached ones. The null block is left alone. */
void block_pool_touch(struct block_pool *pool, const block_id *ids, uint32_t n);

/* Drops one reference each. Pass a request's blocks last to first: its tail then goes before its
 * prefix, which others are likelier to share. A block without references aborts. */
void block_pool_release(struct block_pool *pool, const block_id *ids, uint32_t n);

/* Makes a full block in use findable under `key`. It must not be published yet (asserted).
 * `prefix`: the number of this content in another pool; 0: it has none. */
void block_pool_publish(struct block_pool *pool, block_id id, const struct prefix_key *key,
                        uint64_t prefix);

/* A number for a content that another pool has first; later, publish is passed it here too. */
uint64_t block_pool_new_number(struct block_pool *pool);

/* With FREE_ORDER_REUSE: `parent`, which is published, has the tokens before those of `id`. It
 * stays until `id` is evicted, unless nothing else is free. With other orders: does nothing. */
void block_pool_link(struct block_pool *pool, block_id id, block_id parent);

/* With FREE_ORDER_REUSE: the kind (block_reuse.h) that blocks in use go to when they are released.
 * With other orders: does nothing. */
void block_pool_set_kind(struct block_pool *pool, const block_id *ids, uint32_t n, uint32_t kind);

/* Marks blocks in use, the first of their chain first, up to the one that is not published or that
 * the tenant has no share left for (0: of no tenant). With max_retained 0: does nothing. */
void block_pool_retain(struct block_pool *pool, const block_id *ids, uint32_t n,
                       enum retention time, uint64_t tenant);

/* A published block, in use or free, is evicted when nothing else is free; no more so. Of a chain
 * call them for the last block first. Eviction ends it as well. With can_hold only. */
void block_pool_hold(struct block_pool *pool, block_id id);
void block_pool_unhold(struct block_pool *pool, block_id id);

/* The time of releases from now on; what clients asked to keep until then goes behind the others.
 * Monotonic microseconds. */
void block_pool_set_now(struct block_pool *pool, uint64_t now_us);

/* Unpublishes the block, which stays where it is. False when it was not published. Not of a pool
 * that retains blocks. */
bool block_pool_unpublish(struct block_pool *pool, block_id id);

/* The first published block with that content, in use or free, or BLOCK_NONE. Changes nothing. */
block_id block_pool_find(const struct block_pool *pool, const struct prefix_key *key);

/* Forgets every published block. ST_BUSY, and nothing done, while any block is in use. The order
 * of the free queue stays. */
MUST_USE enum status block_pool_reset(struct block_pool *pool);

uint32_t block_pool_n_free(const struct block_pool *pool);    /* blank and cached */
uint32_t block_pool_n_usable(const struct block_pool *pool);  /* all but the null block */
uint32_t block_pool_n_cached(const struct block_pool *pool);  /* published, in use or free */
uint64_t block_pool_n_evicted(const struct block_pool *pool); /* published blocks that were evicted
                                                               * */
struct block_retain_stats block_pool_retained(const struct block_pool *pool);
double block_pool_usage(const struct block_pool *pool); /* in use / usable */
uint32_t block_pool_ref_cnt(const struct block_pool *pool, block_id id);
const struct prefix_cache *block_pool_cache(const struct block_pool *pool);

/* The next block after `id` in eviction order (BLOCK_NONE: the first), or BLOCK_NONE. Retained
 * blocks come last; among those of different times to live the order changes with time. With
 * FREE_ORDER_REUSE: of those that are blank, or whose children were evicted, alone. */
block_id block_pool_next_free(const struct block_pool *pool, block_id id);

/* Asserts the invariants of pool, queue and cache, leaf first included: a free cached block always
 * has a copy of its parent in use or behind it, so that eviction never cuts a chain in two. With
 * FREE_ORDER_REUSE: that links and their counts agree, and what has children is not next. */
void block_pool_check(const struct block_pool *pool);

/* The same without leaf first: of a pool whose blocks' parents may be elsewhere. */
void block_pool_check_parts(const struct block_pool *pool);

#endif
