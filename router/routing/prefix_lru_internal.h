/* router/routing/prefix_lru_internal.h - the rings of the simulated LRUs, for the two files that
 * walk them.
 *
 *   prefix_lru.c        the events of requests
 *   prefix_lru_carry.c  what is held, carried over to another process */
#ifndef ROUTER_ROUTING_PREFIX_LRU_INTERNAL_H
#define ROUTER_ROUTING_PREFIX_LRU_INTERNAL_H

#include "router/routing/prefix_index_internal.h"
#include "router/routing/prefix_lru.h"

enum ring { RING_PINNED, RING_COLD, RING_DEAD };

struct lru_worker {
    uint64_t n_held;   /* blocks, pending and anonymous ones included */
    uint64_t capacity; /* blocks */
    uint32_t n_pinned, n_cold, n_dead;
};

struct prefix_lru {
    struct prefix_index *index;
    struct lru_worker *workers;
    uint32_t n_workers, n_words;
    struct worker_mask lost; /* workers with dead entries */
    uint64_t n_entries, n_cold, n_dead, n_refused, n_evicted;
    uint32_t largest, next_in_turn; /* see prefix_lru.c */
};

static inline struct prefix_record *lru_at(const struct prefix_lru *l, uint32_t e) {
    return &l->index->records[e];
}

static inline uint32_t lru_head(const struct prefix_lru *l, uint32_t w, enum ring ring) {
    return prefix_index_head(l->index, w, ring);
}

static inline void lru_link_after(struct prefix_lru *l, uint32_t prev, uint32_t e) {
    struct prefix_record *r = lru_at(l, e);

    r->prev = prev;
    r->next = lru_at(l, prev)->next;
    lru_at(l, r->next)->prev = e;
    lru_at(l, prev)->next = e;
}

#endif
