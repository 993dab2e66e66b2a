/* router/registry/registry_memory.c - what another process can use of the registry's state of a
 * worker. */
#include <string.h>

#include "router/registry/registry_internal.h"
#include "router/registry/registry_state.h"
#include "router/routing/prefix_lru.h"

static bool is_of(const struct registry *r, uint32_t id, const struct registry_memory *m) {
    const struct worker *w = &r->workers[id];

    return id < r->n_ids && w->is_used && w->is_described && strcmp(w->url, m->url) == 0 &&
           strcmp(w->model->name, m->model) == 0 && strcmp(w->info.generation, m->generation) == 0;
}

bool registry_memory_get(struct registry *r, uint32_t id, struct registry_memory *out) {
    const struct worker *w = &r->workers[id];
    bool is_there;

    pthread_mutex_lock(&r->lock);
    is_there = id < r->n_ids && w->is_used && w->is_described;
    if (is_there) {
        memcpy(out->url, w->url, sizeof(out->url));
        memcpy(out->model, w->model->name, sizeof(out->model));
        memcpy(out->generation, w->info.generation, sizeof(out->generation));
        out->events_next = 0;
        routing_get_learned(w->model->routing, id, &out->learned);
    }
    pthread_mutex_unlock(&r->lock);
    return is_there;
}

uint32_t registry_memory_walk(struct registry *r, uint32_t id, const struct registry_memory *of,
                              struct prefix_walk *walk, uint64_t *items, uint32_t max) {
    uint32_t n = 0;

    pthread_mutex_lock(&r->lock);
    if (is_of(r, id, of)) n = routing_walk(r->workers[id].model->routing, id, walk, items, max);
    pthread_mutex_unlock(&r->lock);
    return n;
}

bool registry_memory_set(struct registry *r, uint32_t id, const struct registry_memory *m) {
    bool is_it;

    pthread_mutex_lock(&r->lock);
    is_it = is_of(r, id, m);
    if (is_it) routing_set_learned(r->workers[id].model->routing, id, &m->learned);
    pthread_mutex_unlock(&r->lock);
    return is_it;
}

uint32_t registry_memory_restore(struct registry *r, uint32_t id, const struct registry_memory *m,
                                 const uint64_t *items, uint32_t n) {
    uint32_t n_taken = 0;

    pthread_mutex_lock(&r->lock);
    if (is_of(r, id, m)) n_taken = routing_restore(r->workers[id].model->routing, id, items, n);
    pthread_mutex_unlock(&r->lock);
    return n_taken;
}
