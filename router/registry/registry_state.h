/* router/registry/registry_state.h - the state of a worker that a successor takes over. Thread:
 * control. */
#ifndef ROUTER_REGISTRY_REGISTRY_STATE_H
#define ROUTER_REGISTRY_REGISTRY_STATE_H

#include "common/protocol/wire.h"
#include "router/registry/registry.h"

struct prefix_walk;

/* What this router learned of a worker, for a successor (snapshot.h). Valid for a worker of the
 * same URL, model and generation. */
struct registry_memory {
    char url[REGISTRY_URL_MAX], model[WIRE_MODEL_MAX], generation[WIRE_GENERATION_MAX];
    struct routing_learned learned;
    uint64_t events_next; /* next request event for follow.h; 0: unknown */
};
bool registry_memory_get(struct registry *r, uint32_t id, struct registry_memory *out);

/* The next blocks that it holds (prefix_lru_walk); 0: the end, or another worker has the id. */
uint32_t registry_memory_walk(struct registry *r, uint32_t id, const struct registry_memory *of,
                              struct prefix_walk *walk, uint64_t *items, uint32_t max);

/* False: worker `id` is not (or not yet) the one that `m` describes. */
bool registry_memory_set(struct registry *r, uint32_t id, const struct registry_memory *m);

/* Returns how many were inserted (prefix_lru_restore); holds the lock for 0.1 us per item. */
uint32_t registry_memory_restore(struct registry *r, uint32_t id, const struct registry_memory *m,
                                 const uint64_t *items, uint32_t n);

#endif
