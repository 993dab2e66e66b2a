/* router/routing/policy/block_table.h - which of the latest blocks went to which workers.
 *
 * What the tries and tables of other routers become when prompts are chains of hashes: h_i names
 * the whole opening up to block i, so a table of single blocks is a trie. All blocks share one
 * order by age; when the table is full the oldest block is evicted for all of its workers. (The LRU
 * of prefix_lru.h differs: it simulates what each *worker* evicted.)
 *
 *      hash ──▶ { holders: a mask of workers; owner: the first of them }
 *      oldest ◀── age ──▶ youngest      put: moves to the youngest; find: stays in place
 *
 * A dropped worker's blocks are invalid at once; their room is reclaimed gradually, by later puts.
 * All memory is allocated at creation: about 48 bytes and a mask per block. No lock, no clock. */
#ifndef ROUTER_ROUTING_POLICY_BLOCK_TABLE_H
#define ROUTER_ROUTING_POLICY_BLOCK_TABLE_H

#include "router/routing/policy.h"

struct block_table;

struct block_holders {
    const uint64_t *mask; /* never empty; valid until any call but block_table_find */
    uint32_t owner;       /* a member: the one that was sent the block first */
    uint64_t put_us;      /* when it was last sent */
};

/* NULL when memory is refused. n_blocks is at least 1. */
struct block_table *block_table_create(uint32_t n_blocks, uint32_t n_workers) MUST_USE;
void block_table_destroy(struct block_table *t); /* NULL is fine */

bool block_table_find(struct block_table *t, uint64_t hash, struct block_holders *out);

/* Adds w to the block's holders and makes it the youngest. May evict the oldest block. */
void block_table_put(struct block_table *t, uint64_t hash, uint32_t w, uint64_t now_us);

/* Forgets the blocks that were last put before `before_us`. */
void block_table_expire(struct block_table *t, uint64_t before_us);

/* Forgets what w holds unless `spec` is the worker and the generation that held it. */
void block_table_worker_up(struct block_table *t, uint32_t w, const struct worker_spec *spec);
void block_table_worker_down(struct block_table *t, uint32_t w);

/* Tidies up to n entries after drops. Puts call it. */
void block_table_tidy(struct block_table *t, uint32_t n);

/* Blocks in use, including entries without holders that were not tidied yet. */
uint32_t block_table_n_blocks(const struct block_table *t);
void block_table_check(const struct block_table *t); /* asserts the invariants; O(size) */

#endif
