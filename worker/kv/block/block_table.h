/* worker/kv/block/block_table.h - the blocks of one sequence: logical block number to physical
 * block.
 *
 *      token position p  ->  ids[p / block_size], offset p % block_size
 *
 * The device keeps a copy of each table; `dirty_from` is the first entry that the copy lacks. The
 * memory is taken once, at init, for the longest the sequence may become. Thread: engine. */
#ifndef WORKER_KV_BLOCK_BLOCK_TABLE_H
#define WORKER_KV_BLOCK_BLOCK_TABLE_H

#include "common/base/status.h"
#include "worker/kv/block/block_pool.h"

struct block_table {
    block_id *ids; /* (capacity) */
    uint32_t n_blocks, capacity;
    uint32_t dirty_from;  /* <= n_blocks */
    uint32_t n_inherited; /* leading entries from a fork or from host memory, whose blocks may be
                           * published beyond what this sequence has computed */
};

MUST_USE enum status block_table_init(struct block_table *t, uint32_t capacity); /* or ST_NOMEM */
void block_table_fini(struct block_table *t); /* holds no references: release the blocks before */

void block_table_append(struct block_table *t, const block_id *ids, uint32_t n);
void block_table_replace(struct block_table *t, uint32_t index, block_id id);
void block_table_clear(struct block_table *t);

/* Replaces an entry that no later token reads by the null block. The device keeps its stale entry,
 * which it never reads again. */
void block_table_drop(struct block_table *t, uint32_t index);

/* Entries [result, n_blocks) are new to the device; the next call starts after them. */
uint32_t block_table_take_dirty(struct block_table *t);

/* Where the KV of the token at `position` lives in the pool, in tokens. */
static inline int64_t block_table_slot(const struct block_table *t, uint32_t position,
                                       uint32_t block_size) {
    return (int64_t)t->ids[position / block_size] * block_size + position % block_size;
}

#endif
