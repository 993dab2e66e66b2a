/* common/base/ring.c - a bounded queue in one allocation. */
#include "common/base/ring.h"

#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

static void *slot(const struct ring *r, uint32_t offset) {
    uint64_t index = (uint64_t)r->head + offset;

    if (index >= r->cap) index -= r->cap;
    return r->items + index * r->item_bytes;
}

void ring_init(struct ring *r, size_t item_bytes, uint32_t capacity) {
    assert(capacity > 0 && item_bytes > 0);
    *r = (struct ring){.item_bytes = item_bytes, .cap = capacity};
    r->items = mem_calloc(capacity, item_bytes);
}

void ring_fini(struct ring *r) {
    mem_free(r->items);
    *r = (struct ring){0};
}

void *ring_push(struct ring *r) {
    if (r->n == r->cap) return NULL;
    return memset(slot(r, r->n++), 0, r->item_bytes);
}

void *ring_first(const struct ring *r) {
    return r->n ? slot(r, 0) : NULL;
}

void *ring_at(const struct ring *r, uint32_t index) {
    assert(index < r->n);
    return slot(r, index);
}

void ring_pop(struct ring *r) {
    assert(r->n > 0);
    r->n--;
    r->head = r->head + 1 == r->cap ? 0 : r->head + 1;
}

void ring_check(const struct ring *r) {
    assert(r->items && r->cap > 0);
    assert(r->n <= r->cap && r->head < r->cap);
}
