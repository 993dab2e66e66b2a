/* router/registry/registry_state.h - what a successor needs to know of a worker. Thread: control. */
#ifndef ROUTER_REGISTRY_REGISTRY_STATE_H
#define ROUTER_REGISTRY_REGISTRY_STATE_H

#include "common/protocol/wire.h"
#include "router/registry/registry.h"

struct prefix_walk;

/* What is known of a worker besides what it says itself, for the process that comes after this one
 * (snapshot.h). It is true of the worker as long as URL, model and generation are the same. */
struct registry_memory {
    char url[REGISTRY_URL_MAX], model[WIRE_MODEL_MAX], generation[WIRE_GENERATION_MAX];
    struct routing_learned learned;
    uint64_t events_next; /* what follow.h has taken of its request events; 0: not said */
};
bool registry_memory_get(struct registry *r, uint32_t id, struct registry_memory *out);

/* The next of the blocks that it holds (prefix_lru_walk); 0: that was all, or it is another now. */
uint32_t registry_memory_walk(struct registry *r, uint32_t id, const struct registry_memory *of,
                              struct prefix_walk *walk, uint64_t *items, uint32_t max);

/* False: worker `id` is not, or not yet, the one that `m` is of. */
bool registry_memory_set(struct registry *r, uint32_t id, const struct registry_memory *m);

/* Returns how many were taken (prefix_lru_restore); the lock is held for 0.1 us each. */
uint32_t registry_memory_restore(struct registry *r, uint32_t id, const struct registry_memory *m,
                                 const uint64_t *items, uint32_t n);

#endif
