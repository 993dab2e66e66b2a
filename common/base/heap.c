/* common/base/heap.c - sift up, sift down. Indices are 1-based: the children of i are 2i and 2i +
 * 1. */
#include "common/base/heap.h"

#include <assert.h>

#include "common/base/mem.h"

#define MIN_CAP 16

static struct heap_link *at(const struct heap *h, size_t place) {
    return h->items[place - 1];
}

static void put(struct heap *h, size_t place, struct heap_link *link) {
    h->items[place - 1] = link;
    link->place = place;
}

static void sift_up(struct heap *h, size_t place, struct heap_link *link) {
    for (; place > 1 && h->before(link, at(h, place / 2)); place /= 2) {
        put(h, place, at(h, place / 2));
    }
    put(h, place, link);
}

static void sift_down(struct heap *h, size_t place, struct heap_link *link) {
    for (;;) {
        size_t child = place * 2;

        if (child > h->n) break;
        if (child < h->n && h->before(at(h, child + 1), at(h, child))) child++;
        if (!h->before(at(h, child), link)) break;
        put(h, place, at(h, child));
        place = child;
    }
    put(h, place, link);
}

void heap_init(struct heap *h, heap_before_fn *before) {
    *h = (struct heap){.before = before};
}

void heap_fini(struct heap *h) {
    for (size_t i = 0; i < h->n; i++)
        h->items[i]->place = 0;
    mem_free(h->items);
    heap_init(h, h->before);
}

void heap_reserve(struct heap *h, size_t n) {
    if (n <= h->cap) return;
    h->cap = MAX(n, MAX((size_t)MIN_CAP, h->cap * 2));
    h->items = mem_realloc(h->items, h->cap * sizeof(struct heap_link *));
}

void heap_push(struct heap *h, struct heap_link *link) {
    assert(!heap_is_linked(link));
    heap_reserve(h, h->n + 1);
    h->n++;
    sift_up(h, h->n, link);
}

struct heap_link *heap_first(const struct heap *h) {
    return h->n ? h->items[0] : NULL;
}

struct heap_link *heap_pop(struct heap *h) {
    struct heap_link *first = heap_first(h);

    if (first) heap_remove(h, first);
    return first;
}

void heap_remove(struct heap *h, struct heap_link *link) {
    size_t place = link->place;
    struct heap_link *last;

    assert(place >= 1 && place <= h->n && at(h, place) == link);
    last = at(h, h->n--);
    link->place = 0;
    if (last == link) return;
    put(h, place, last);
    heap_update(h, last);
}

void heap_update(struct heap *h, struct heap_link *link) {
    size_t place = link->place;

    assert(place >= 1 && place <= h->n && at(h, place) == link);
    if (place > 1 && h->before(link, at(h, place / 2))) {
        sift_up(h, place, link);
    } else {
        sift_down(h, place, link);
    }
}

void heap_check(const struct heap *h) {
    for (size_t place = 1; place <= h->n; place++) {
        assert(at(h, place)->place == place);
        if (place > 1) assert(!h->before(at(h, place), at(h, place / 2)));
    }
}
