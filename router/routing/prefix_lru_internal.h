/* router/routing/prefix_lru_internal.h - the rings of the simulated LRUs, for the two files that
 * walk them.
 *
 *   prefix_lru.c        the events of requests
 *   prefix_lru_carry.c  what is held, carried over to another process */
#ifndef ROUTER_ROUTING_PREFIX_LRU_INTERNAL_H
#define ROUTER_ROUTING_PREFIX_LRU_INTERNAL_H

#include "router/routing/prefix_index_internal.h"
#include "router/routing/prefix_lru.h"

enum ring { RING_PINNED, RING_COLD, RING_BELOW, RING_DEAD };

struct lru_worker {
    uint64_t n_held;   /* blocks on the device, pending and anonymous ones included */
    uint64_t capacity; /* blocks */
    uint64_t n_held_below, below_capacity;
    uint64_t n_copies; /* of n_held: below too */
    uint64_t n_entered;
    uint32_t n_pinned, n_cold, n_below, n_dead;
    bool keeps_copies;
};

struct prefix_lru {
    struct prefix_index *index;
    struct lru_worker *workers;
    uint32_t n_workers, n_words;
    struct worker_mask lost;  /* workers with dead entries */
    struct worker_mask below; /* workers with entries below the device */
    uint64_t n_entries, n_dead, n_refused, n_evicted;
    uint64_t n_cold;                /* entries that may be evicted: those below included */
    uint32_t largest, next_in_turn; /* see prefix_lru.c */
};

static inline struct prefix_record *lru_at(const struct prefix_lru *l, uint32_t e) {
    return &l->index->records[e];
}

/* A computed block without a request that has left the device. */
static inline bool lru_is_below(const struct prefix_record *r) {
    return !r->is_computed && (!r->pins || r->kind == PREFIX_RUN);
}

static inline enum ring lru_ring_of(const struct prefix_record *r) {
    if (lru_is_below(r)) return RING_BELOW;
    return r->pins && r->kind != PREFIX_RUN ? RING_PINNED : RING_COLD;
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

/* Counts an entry that enters or leaves the ring of those below. */
static inline void lru_count_below(struct prefix_lru *l, uint32_t w, int32_t n, int64_t n_blocks) {
    struct lru_worker *k = &l->workers[w];

    k->n_below += (uint32_t)n;
    k->n_held_below += (uint64_t)n_blocks;
    worker_mask_set(l->below.words, w, k->n_below > 0);
}

#endif
