/* common/base/heap.h - a binary heap of things that know their place in it.
 *
 * The heap holds pointers to links embedded in the elements, and each link holds its index, so an
 * element can be taken out of the middle (a cancelled deadline) or moved after its key changed.
 * Equal keys come out in no promised order: put a sequence number into the comparison where it
 * matters. One thread. */
#ifndef COMMON_BASE_HEAP_H
#define COMMON_BASE_HEAP_H

#include "common/base/base.h"

struct heap_link {
    size_t place; /* 1-based index in the heap; 0: in none */
};

/* Does `a` come out before `b`? A strict order. */
typedef bool heap_before_fn(const struct heap_link *a, const struct heap_link *b);

struct heap {
    struct heap_link **items;
    size_t n, cap;
    heap_before_fn *before;
};

#define HEAP_ENTRY(link, type, member) CONTAINER_OF(link, type, member)
/* The same in a heap_before_fn, whose links are const. */
#define HEAP_ENTRY_CONST(link, type, member)                                                       \
    ((const type *)(const void *)((const char *)(link)-offsetof(type, member)))

void heap_init(struct heap *h, heap_before_fn *before); /* allocates nothing */
void heap_fini(struct heap *h);                         /* the elements stay the caller's */
void heap_reserve(struct heap *h, size_t n);            /* up to n elements need no allocation */

void heap_push(struct heap *h, struct heap_link *link);   /* O(log n) */
struct heap_link *heap_first(const struct heap *h);       /* NULL when empty */
struct heap_link *heap_pop(struct heap *h);               /* NULL when empty */
void heap_remove(struct heap *h, struct heap_link *link); /* it must be in this heap */
void heap_update(struct heap *h, struct heap_link *link); /* after its key changed */

static inline bool heap_is_linked(const struct heap_link *link) {
    return link->place != 0;
}

void heap_check(const struct heap *h); /* asserts order and places; O(n) */

#endif
