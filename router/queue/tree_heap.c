/* router/queue/tree_heap.c - leftist trees: melding, and ranks repaired upwards after a removal. */
#include "router/queue/tree_heap.h"

#include <assert.h>

static uint32_t rank_of(const struct tree_link *link) {
    return link ? link->rank : 0;
}

/* Puts the child of the higher rank on the left; true when the rank of `link` has changed. */
static bool settle(struct tree_link *link) {
    uint32_t was = link->rank;

    if (rank_of(link->left) < rank_of(link->right)) {
        struct tree_link *left = link->left;

        link->left = link->right;
        link->right = left;
    }
    link->rank = rank_of(link->right) + 1;
    return link->rank != was;
}

/* Both may be NULL. The result's parent is the caller's to set. Down the right spines, then ranks
 * on the way back. */
static struct tree_link *meld(struct tree_link *a, struct tree_link *b, tree_before_fn *before) {
    struct tree_link *top = NULL, **place = &top, *last = NULL;

    while (a && b) {
        struct tree_link *first = before(b, a) ? b : a;

        if (first == b) b = a;
        *place = first;
        first->parent = last;
        last = first;
        place = &first->right;
        a = first->right;
    }
    *place = a ? a : b;
    if (*place) (*place)->parent = last;
    for (; last; last = last->parent)
        settle(last);
    return top;
}

void tree_heap_push(struct tree_heap *h, struct tree_link *link, tree_before_fn *before) {
    assert(!tree_heap_is_linked(link));
    *link = (struct tree_link){.rank = 1};
    h->root = meld(h->root, link, before);
}

void tree_heap_remove(struct tree_heap *h, struct tree_link *link, tree_before_fn *before) {
    struct tree_link *parent = link->parent, *rest = meld(link->left, link->right, before);

    assert(tree_heap_is_linked(link));
    if (rest) rest->parent = parent;
    if (!parent) {
        h->root = rest;
    } else if (parent->left == link) {
        parent->left = rest;
    } else {
        parent->right = rest;
    }
    while (parent && settle(parent))
        parent = parent->parent;
    *link = (struct tree_link){0};
}

/* The left spine may be as long as the heap is large, so only the right is recursion. */
static size_t check(const struct tree_link *link, const struct tree_link *parent,
                    tree_before_fn *before) {
    size_t n = 0;

    for (; link; parent = link, link = link->left, n++) {
        assert(link->parent == parent && !(parent && before(link, parent)));
        assert(rank_of(link->left) >= rank_of(link->right));
        assert(link->rank == rank_of(link->right) + 1);
        n += check(link->right, link, before);
    }
    return n;
}

size_t tree_heap_check(const struct tree_heap *h, tree_before_fn *before) {
    return check(h->root, NULL, before);
}
