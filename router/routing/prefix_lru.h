/* router/routing/prefix_lru.h - a simulated LRU per worker: what its cache has evicted by now.
 *
 * The engine of each worker keeps computed blocks until it needs their memory, and evicts the
 * coldest first. This module simulates that. An entry is one block on one worker:
 *
 *     sent        pinned, not computed: counts for matching and against the capacity
 *     first token pinned, computed:     stays if the request is aborted from now on
 *     ended       unpinned, computed:   on the worker's list, oldest first, last block before the
 *                                       first one so that the deepest is evicted first
 *     aborted before the first token:   blocks that were never computed are removed
 *
 * A worker with memory below its device (host, disk) has a second list. What is evicted from the
 * first enters the second as its youngest, and matches as before; a request that uses it brings it
 * back to the first. `keeps_copies`: a copy of that stays below and takes room there until the
 * block leaves the device again.
 *
 *     sent ──▶ pinned ──▶ cold: capacity ──oldest──▶ below: below_capacity ──oldest──▶ forgotten
 *                ▲            │                        │
 *                └── sent ────┴────────────────────────┘
 *
 * A block counts from the moment it is sent: when the next request reaches the head of the engine's
 * queue, the requests before it have taken their blocks. On a trace of 12,031 requests that
 * predicts the hit of each within 512 tokens, for any block sizes of either side (make
 * replay-engine).
 *
 * Invariant: an entry is on its worker's cold list iff it is on the device and unpinned, below iff
 * it is neither, and each entry is computed or pinned. The entries are the records of the prefix
 * index, which this module alone inserts and removes. Output is kept as anonymous runs of blocks:
 * they take room and age, and match nothing.
 *
 * When the index is full, the coldest entry of the worker with most entries is evicted; when all
 * are pinned, the rest of the chain is not recorded. Dropping a worker is O(1); its entries are
 * removed a few at a time by later events, as are those above a lowered capacity. No event costs
 * more than its own blocks and TIDY_MAX others. No lock; no allocation after creation. */
#ifndef ROUTER_ROUTING_PREFIX_LRU_H
#define ROUTER_ROUTING_PREFIX_LRU_H

#include "common/base/base.h"
#include "router/routing/prefix_index.h"

struct prefix_lru;

#define PREFIX_LRU_TIDY_MAX 64u

/* `index` must outlive it, and the LRU alone writes to it. */
struct prefix_lru *prefix_lru_create(struct prefix_index *index, uint32_t n_workers) MUST_USE;
void prefix_lru_destroy(struct prefix_lru *l);
uint64_t prefix_lru_bytes(uint32_t n_workers);

/* Blocks that worker w can hold on its device. Blocks above are evicted now and by later events. */
void prefix_lru_set_capacity(struct prefix_lru *l, uint32_t w, uint64_t n_blocks);
/* The same of its memory below the device: 0 to begin with. */
void prefix_lru_set_below(struct prefix_lru *l, uint32_t w, uint64_t n_blocks, bool keeps_copies);

/* The events of a request: sent, then ended (it had its first token) or aborted (it had none).
 * `sent` returns how many leading blocks found room; the other calls take the same chain with that
 * n. A chain has no hash twice. `guesses`, which may be NULL, has room for n + 1: `sent` takes what
 * prefix_index_match wrote, with no write to the index in between, and leaves what the others
 * take. */
MUST_USE uint32_t prefix_lru_sent(struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                                  uint32_t n, uint32_t *guesses);
void prefix_lru_ended(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                      const uint32_t *guesses, uint32_t n_output_blocks);
void prefix_lru_aborted(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                        const uint32_t *guesses);

/* Enters n blocks without a hash as the youngest: of requests that are not known here. */
void prefix_lru_fill(struct prefix_lru *l, uint32_t w, uint32_t n_blocks);

/* Drops every entry of a worker, pinned or not. No further events of requests open on it may
 * follow. Constant time, except for a second call before the entries of the first are all
 * removed. */
void prefix_lru_drop_worker(struct prefix_lru *l, uint32_t w);

/* Workers that have blocks below their device. */
const uint64_t *prefix_lru_below(const struct prefix_lru *l);

/* Of the n leading blocks of a chain that w holds, those before the first that is below its device.
 * `guesses`: what prefix_index_match wrote, or NULL. Looks at a few blocks: a chain is used from
 * its beginning, so it leaves the device from its end. prefix_lru_ask_device prefetches the first.
 */
uint32_t prefix_lru_on_device(const struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                              uint32_t n, const uint32_t *guesses);
void prefix_lru_ask_device(const struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                           uint32_t n, const uint32_t *guesses);

/* Blocks of w, pending and output included; of these below the device; blocks in use by open
 * requests. */
uint64_t prefix_lru_n_held(const struct prefix_lru *l, uint32_t w);
uint64_t prefix_lru_n_below(const struct prefix_lru *l, uint32_t w);
uint32_t prefix_lru_n_pinned(const struct prefix_lru *l, uint32_t w);

/* True when more blocks push out what w has: of its last memory, where it has some below. */
bool prefix_lru_is_full(const struct prefix_lru *l, uint32_t w);

/* Blocks that requests have entered since the creation, output included, those by prefix_lru_fill
 * not. */
uint64_t prefix_lru_n_entered(const struct prefix_lru *l, uint32_t w);

uint64_t prefix_lru_n_entries(const struct prefix_lru *l); /* dead ones included */
uint64_t prefix_lru_n_refused(const struct prefix_lru *l);
uint64_t prefix_lru_n_evicted(const struct prefix_lru *l); /* the coldest, one at a time */

/* --- transfer to another process (prefix_lru_carry.c)
 *
 * What a worker holds as a list of items of 64 bits, the youngest first: a block, by the high 48
 * bits of a hash that stands for it in any index, the low 16 zero; or n < 2^16 blocks without a
 * hash. Blocks in use count as youngest, those below the device as oldest: the order alone has both
 * lists, because the receiver fills the device first. Items come in pieces, with requests in
 * between: a walk resumes at a block that it has seen, and blocks used meanwhile may come twice or
 * be missed. */
#define PREFIX_WALK_MARKS 8u
struct prefix_walk {                   /* zero before the first piece */
    uint64_t marks[PREFIX_WALK_MARKS]; /* last blocks seen, the latest first */
    uint64_t n_items;                  /* so far */
    uint32_t n_marks;
    uint32_t ring; /* reached: in use, cold, below */
    bool is_over;  /* reached the end */
};

/* Writes at most `max` items, max >= 2; 0: the walk is over. */
uint32_t prefix_lru_walk(const struct prefix_lru *l, uint32_t w, struct prefix_walk *walk,
                         uint64_t *items, uint32_t max);

/* Inserts items as older than everything that w holds, in the order of a walk. Skips blocks that w
 * holds. Returns how many were inserted: fewer when w or the index is full. Evicts nothing. */
uint32_t prefix_lru_restore(struct prefix_lru *l, uint32_t w, const uint64_t *items, uint32_t n);

void prefix_lru_check(const struct prefix_lru *l); /* asserts the invariants; O(size) */

#endif
