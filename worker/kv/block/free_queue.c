/* worker/kv/block/free_queue.c - rings of indices; ring r has sentinel `capacity` + r. */
#include "worker/kv/block/free_queue.h"

#include <assert.h>

#include "common/base/mem.h"

void free_queue_init(struct free_queue *q, uint32_t capacity) {
    free_queue_init_rings(q, capacity, 1);
}

void free_queue_init_rings(struct free_queue *q, uint32_t capacity, uint32_t n_rings) {
    q->links = mem_alloc(((size_t)capacity + n_rings) * sizeof(*q->links));
    q->capacity = capacity;
    q->n_rings = n_rings;
    q->count = 0;
    for (uint32_t i = 0; i < capacity; i++) {
        q->links[i] = (struct free_queue_link){FREE_QUEUE_NONE, FREE_QUEUE_NONE};
    }
    for (uint32_t i = capacity; i < capacity + n_rings; i++)
        q->links[i] = (struct free_queue_link){i, i};
}

void free_queue_fini(struct free_queue *q) {
    mem_free(q->links);
    q->links = NULL;
}

bool free_queue_contains(const struct free_queue *q, uint32_t id) {
    return q->links[id].next != FREE_QUEUE_NONE;
}

static void insert_between(struct free_queue *q, uint32_t prev, uint32_t id, uint32_t next) {
    assert(id < q->capacity && !free_queue_contains(q, id));
    q->links[id] = (struct free_queue_link){prev, next};
    q->links[prev].next = id;
    q->links[next].prev = id;
    q->count++;
}

void free_queue_push_back(struct free_queue *q, uint32_t id) {
    free_queue_push_back_to(q, 0, id);
}

void free_queue_push_back_to(struct free_queue *q, uint32_t ring, uint32_t id) {
    assert(ring < q->n_rings);
    insert_between(q, q->links[q->capacity + ring].prev, id, q->capacity + ring);
}

void free_queue_push_front(struct free_queue *q, uint32_t id) {
    insert_between(q, q->capacity, id, q->links[q->capacity].next);
}

void free_queue_remove(struct free_queue *q, uint32_t id) {
    struct free_queue_link *link = &q->links[id];

    assert(id < q->capacity && free_queue_contains(q, id));
    q->links[link->prev].next = link->next;
    q->links[link->next].prev = link->prev;
    *link = (struct free_queue_link){FREE_QUEUE_NONE, FREE_QUEUE_NONE};
    q->count--;
}

uint32_t free_queue_pop_front(struct free_queue *q) {
    uint32_t id = q->links[q->capacity].next;

    if (id == q->capacity) return FREE_QUEUE_NONE;
    free_queue_remove(q, id);
    return id;
}

uint32_t free_queue_first(const struct free_queue *q) {
    return free_queue_first_of(q, 0);
}

uint32_t free_queue_first_of(const struct free_queue *q, uint32_t ring) {
    return free_queue_next(q, q->capacity + ring);
}

uint32_t free_queue_next(const struct free_queue *q, uint32_t id) {
    uint32_t next = q->links[id].next;

    return next >= q->capacity ? FREE_QUEUE_NONE : next;
}

void free_queue_check(const struct free_queue *q) {
    uint32_t n_linked = 0, n_walked = 0;

    for (uint32_t i = 0; i < q->capacity; i++) {
        if (free_queue_contains(q, i))
            n_linked++;
        else
            assert(q->links[i].prev == FREE_QUEUE_NONE);
    }
    for (uint32_t r = 0; r < q->n_rings; r++) {
        for (uint32_t id = free_queue_first_of(q, r); id != FREE_QUEUE_NONE;
             id = free_queue_next(q, id)) {
            assert(q->links[q->links[id].next].prev == id);
            assert(++n_walked <= q->count); /* a cycle past the sentinel would never end */
        }
    }
    assert(n_linked == q->count && n_walked == q->count);
}
