/* common/base/ring.h - a bounded queue of items of one size, first in, first out.
 *
 * The memory is taken once, so a full queue is an answer and not an allocation. Items are handed
 * out as pointers into the ring: fill what ring_push returns, read what ring_first returns, before
 * the next call. One thread. */
#ifndef COMMON_BASE_RING_H
#define COMMON_BASE_RING_H

#include "common/base/base.h"

struct ring {
    char *items;
    size_t item_bytes;
    uint32_t cap;
    uint32_t head; /* index of the oldest */
    uint32_t n;
};

void ring_init(struct ring *r, size_t item_bytes, uint32_t capacity); /* capacity > 0 */
void ring_fini(struct ring *r);

void *ring_push(struct ring *r);                     /* zeroed room at the back; NULL when full */
void *ring_first(const struct ring *r);              /* the oldest; NULL when empty */
void *ring_at(const struct ring *r, uint32_t index); /* 0 is the oldest; index < n */
void ring_pop(struct ring *r);                       /* drops the oldest; must not be empty */

static inline bool ring_is_full(const struct ring *r) {
    return r->n == r->cap;
}

void ring_check(const struct ring *r);

#endif
