/* router/routing/prefix_lru.h - what each worker's cache has by now forgotten: a simulated LRU per worker.
 *
 * The engine behind each worker keeps computed blocks until it needs their memory, coldest first.
 * We keep the same books. An entry is one block on one worker:
 *
 *     sent        pinned, not computed: counts for matching and against the capacity
 *     first token pinned, computed:     stays if the request is aborted from now on
 *     ended       unpinned, computed:   on the worker's list, oldest first, last block before the
 *                                       first one so that the deepest goes first
 *     aborted before the first token:   what was never computed is removed
 *
 * It counts from the moment it is sent, because when the next request's turn comes in the engine's
 * queue, the ones before it have taken their blocks: on a trace of 12,031 requests that predicts
 * the hit of each to within 512 tokens, whatever the blocks of either side (make replay-engine).
 *
 * Invariant: an entry is on its worker's list of cold ones iff it is computed and unpinned, and
 * exists iff it is computed or pinned. The entries are the records of the prefix index, which this
 * module alone inserts and removes. Output is kept as anonymous runs of blocks: they take room and
 * age, and match nothing.
 *
 * When the index is full, the coldest entry of whoever has most of them is given up; when all is
 * pinned, the rest of the chain is not recorded. A worker whose cache is gone is forgotten in one
 * stroke; its entries are taken away a few at a time, as events come. So is what lies above a
 * capacity that was lowered. No event costs more than its own blocks and TIDY_MAX others.
 * No lock; no allocation after creation. */
#ifndef ROUTER_ROUTING_PREFIX_LRU_H
#define ROUTER_ROUTING_PREFIX_LRU_H

#include "common/base/base.h"
#include "router/routing/prefix_index.h"

struct prefix_lru;

#define PREFIX_LRU_TIDY_MAX 64u

/* `index` must outlive it; only the LRU writes to it from now on. */
struct prefix_lru *prefix_lru_create(struct prefix_index *index, uint32_t n_workers) MUST_USE;
void prefix_lru_destroy(struct prefix_lru *l);
uint64_t prefix_lru_bytes(uint32_t n_workers);

/* Blocks that worker w can hold; what is above is evicted, now or at the next events. */
void prefix_lru_set_capacity(struct prefix_lru *l, uint32_t w, uint64_t n_blocks);

/* The events of a request: sent, then ended (it has had its first token, whatever came of it) or
 * aborted (it has not). `sent` says how many leading blocks found room; the others take the same
 * chain with that n. A chain does not hold the same hash twice. `guesses`, which may be NULL, has
 * room for n + 1: `sent` takes what prefix_index_match saw, since when nothing may have been written
 * to the index, and leaves what the others take. */
MUST_USE uint32_t prefix_lru_sent(struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                                  uint32_t n, uint32_t *guesses);
void prefix_lru_ended(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                      const uint32_t *guesses, uint32_t n_output_blocks);
void prefix_lru_aborted(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                        const uint32_t *guesses);

/* The worker's cache is gone: every entry of it, pinned or not. Requests that were open on it
 * must not be reported afterwards. Constant time, but for a second call before the entries of the
 * first are all taken away: that one does it. */
void prefix_lru_drop_worker(struct prefix_lru *l, uint32_t w);

/* Blocks of w, pending and output too; those in use by open requests. */
uint64_t prefix_lru_n_held(const struct prefix_lru *l, uint32_t w);
uint32_t prefix_lru_n_pinned(const struct prefix_lru *l, uint32_t w);

uint64_t prefix_lru_n_entries(const struct prefix_lru *l); /* dead ones too */
uint64_t prefix_lru_n_refused(const struct prefix_lru *l);
uint64_t prefix_lru_n_evicted(const struct prefix_lru *l); /* the coldest, one at a time */

/* --- carried over to another process (prefix_lru_carry.c)
 *
 * What a worker holds as a list of items of 64 bits, the youngest first: a block, by the high 48 bits
 * of a hash that any index takes for the block's, the low 16 zero; or n < 2^16 blocks without a name.
 * What open requests use counts as youngest. Items come in pieces, between which requests may go on: a
 * walk finds its place again by a block that it has seen, and what has been used meanwhile may come
 * twice or be missed. */
#define PREFIX_WALK_MARKS 8u
struct prefix_walk {                   /* zero before the first piece */
    uint64_t marks[PREFIX_WALK_MARKS]; /* blocks that were seen last, the latest first */
    uint64_t n_items;                  /* so far */
    uint32_t n_marks;
    bool is_cold, is_over; /* it has come to the cold ones; to their end */
};

/* Writes at most `max` items, max >= 2; 0: that was all. */
uint32_t prefix_lru_walk(const struct prefix_lru *l, uint32_t w, struct prefix_walk *walk,
                         uint64_t *items, uint32_t max);

/* Enters items as held and older than everything that w holds, in the order of a walk; what it holds
 * is passed over. Returns how many were taken: fewer when w, or the index, is full; nothing is
 * evicted. */
uint32_t prefix_lru_restore(struct prefix_lru *l, uint32_t w, const uint64_t *items, uint32_t n);

void prefix_lru_check(const struct prefix_lru *l); /* asserts the invariants; O(size) */

#endif
