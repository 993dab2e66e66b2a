/* router/queue/tree_heap.h - a heap of elements that are linked to each other.
 *
 * A leftist tree (Crane 1972; Knuth, TAOCP 3, 5.2.3): the elements hold the links, so that any
 * number of heaps need no memory of their own, and no operation allocates. Each takes O(log n),
 * removal from the middle too. heap.h is quicker where one array per heap is affordable.
 *
 *            2            a node's rank is that of its right child plus one, and at most
 *           / \           that of its left child plus one: so the right spine, which all
 *          5   3          work follows, has at most log2(n + 1) nodes
 *         / \
 *        9   6            one thread */
#ifndef ROUTER_QUEUE_TREE_HEAP_H
#define ROUTER_QUEUE_TREE_HEAP_H

#include "common/base/base.h"

struct tree_link { /* zero: in no heap */
    struct tree_link *parent, *left, *right;
    uint32_t rank; /* 0: in no heap */
};

/* Does `a` come out before `b`? A strict order; put a sequence number into it where equals must
 * keep theirs. */
typedef bool tree_before_fn(const struct tree_link *a, const struct tree_link *b);

/* The root, which comes out first; NULL: empty. The same `before` with each call. */
struct tree_heap {
    struct tree_link *root;
};

void tree_heap_push(struct tree_heap *h, struct tree_link *link, tree_before_fn *before);
void tree_heap_remove(struct tree_heap *h, struct tree_link *link, tree_before_fn *before);

static inline bool tree_heap_is_linked(const struct tree_link *link) {
    return link->rank != 0;
}

/* Asserts order, ranks and parents; returns the number of elements. */
size_t tree_heap_check(const struct tree_heap *h, tree_before_fn *before);

#endif
