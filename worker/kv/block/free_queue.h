/* worker/kv/block/free_queue.h - the unused blocks, coldest first.
 *
 * An intrusive doubly linked ring over block numbers, with one sentinel: every operation is O(1)
 * and nothing is allocated after init. The head is the next block to be handed out, so the order of
 * this queue is the eviction order. A block that is not on the queue has cleared links: the queue
 * is the only record of whether a block is free. A queue may have several rings, each with a
 * sentinel; the functions without a ring's number are about ring 0.
 *
 *      sentinel <-> head (next victim) <-> ... <-> tail (last to go) <-> sentinel
 *
 * Thread: engine. */
#ifndef WORKER_KV_BLOCK_FREE_QUEUE_H
#define WORKER_KV_BLOCK_FREE_QUEUE_H

#include "common/base/base.h"

#define FREE_QUEUE_NONE UINT32_MAX

struct free_queue_link {
    uint32_t prev, next; /* FREE_QUEUE_NONE: not on the queue */
};

struct free_queue {
    struct free_queue_link *links; /* (capacity + n_rings); sentinels at the end */
    uint32_t capacity;             /* members are numbered below it */
    uint32_t n_rings;
    uint32_t count; /* of all rings */
};

void free_queue_init(struct free_queue *q, uint32_t capacity); /* empty, with one ring */
void free_queue_init_rings(struct free_queue *q, uint32_t capacity, uint32_t n_rings);
void free_queue_fini(struct free_queue *q);

bool free_queue_contains(const struct free_queue *q, uint32_t id);

/* `id` must not be on the queue (asserted). */
void free_queue_push_back(struct free_queue *q, uint32_t id);
void free_queue_push_front(struct free_queue *q, uint32_t id);
void free_queue_push_back_to(struct free_queue *q, uint32_t ring, uint32_t id);

/* The head taken off, or FREE_QUEUE_NONE when there is none. */
uint32_t free_queue_pop_front(struct free_queue *q);

/* `id` must be on the queue (asserted). */
void free_queue_remove(struct free_queue *q, uint32_t id);

/* For walks: head first; FREE_QUEUE_NONE after the tail. */
uint32_t free_queue_first(const struct free_queue *q);
uint32_t free_queue_first_of(const struct free_queue *q, uint32_t ring);
uint32_t free_queue_next(const struct free_queue *q, uint32_t id); /* of its ring */

void free_queue_check(const struct free_queue *q); /* O(capacity) */

#endif
