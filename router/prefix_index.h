/* router/prefix_index.h - which workers hold which prefix blocks.
 *
 * An open-addressing table from block hash to a set of workers, sized once. What is in it is
 * decided elsewhere (prefix_lru.h); this is only the set, and the walk that asks it about a whole
 * chain for all workers at once:
 *
 *     block     0        1        2        3            depth of worker a = 4
 *     workers {a,b,c}  {a,b}    {a,b}     {a}                            b = 3, c = 1, others 0
 *
 * Up to 64 workers a set is one word. Above, a set of up to four workers is stored as their ids
 * in that word, and a larger one as a row of a pool of masks; when the pool is exhausted the
 * insertion is refused, which costs a hit and nothing else. No lock; no allocation after creation. */
#ifndef ROUTER_PREFIX_INDEX_H
#define ROUTER_PREFIX_INDEX_H

#include "common/base.h"
#include "router/worker_mask.h"

struct prefix_index;

/* Room for n_blocks blocks of n_workers workers; NULL when memory is refused. */
struct prefix_index *prefix_index_create(uint32_t n_blocks, uint32_t n_workers) MUST_USE;
void prefix_index_destroy(struct prefix_index *x);

/* What prefix_index_create will allocate. */
uint64_t prefix_index_bytes(uint32_t n_blocks, uint32_t n_workers);

/* Adds w to the block's set (it must not be in it). False: no room. */
MUST_USE bool prefix_index_insert(struct prefix_index *x, uint64_t hash, uint32_t w);
/* Takes w out of the block's set (it must be in it). */
void prefix_index_erase(struct prefix_index *x, uint64_t hash, uint32_t w);

/* Asks for the block's memory; worth it a dozen blocks ahead of its use. */
void prefix_index_prefetch(const struct prefix_index *x, uint64_t hash);

bool prefix_index_has(const struct prefix_index *x, uint64_t hash, uint32_t w);
uint32_t prefix_index_n_blocks(const struct prefix_index *x);

/* depth[w] = leading blocks of the chain that w holds, for each w of `mask`. Returns how many
 * leading blocks are widely held: by more than half of `mask`. One walk, prefetched. */
uint32_t prefix_index_match(const struct prefix_index *x, const uint64_t *chain, uint32_t n,
                            const uint64_t *mask, uint32_t *depth);

void prefix_index_check(const struct prefix_index *x); /* asserts the invariants; O(size) */

#endif
