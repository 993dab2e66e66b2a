/* worker/kv/block/block_table.c - an array, and from which entry on the device's copy is stale. */
#include "worker/kv/block/block_table.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

enum status block_table_init(struct block_table *t, uint32_t capacity) {
    block_id *ids = mem_try(MAX(capacity, 1) * sizeof(*ids));

    if (!ids) return ST_NOMEM;
    *t = (struct block_table){.ids = ids, .capacity = capacity};
    return ST_OK;
}

void block_table_fini(struct block_table *t) {
    assert(t->n_blocks == 0);
    mem_free(t->ids);
    *t = (struct block_table){0};
}

void block_table_append(struct block_table *t, const block_id *ids, uint32_t n) {
    assert(n <= t->capacity - t->n_blocks);
    memcpy(t->ids + t->n_blocks, ids, n * sizeof(*ids));
    t->n_blocks += n;
}

void block_table_replace(struct block_table *t, uint32_t index, block_id id) {
    assert(index < t->n_blocks);
    t->ids[index] = id;
    t->dirty_from = MIN(t->dirty_from, index);
}

void block_table_drop(struct block_table *t, uint32_t index) {
    assert(index < t->n_blocks);
    t->ids[index] = BLOCK_NULL;
}

void block_table_clear(struct block_table *t) {
    t->n_blocks = t->dirty_from = t->n_inherited = 0;
}

uint32_t block_table_take_dirty(struct block_table *t) {
    uint32_t first = t->dirty_from;

    t->dirty_from = t->n_blocks;
    return first;
}
