/* router/registry/registry_remote.c - requests that other routers sent, under the one lock. Thread:
 * control.
 *
 * They are in the same load table and index as our own, so that choices, limits and the queue count
 * them, and are counted apart: the sum of the loads is n_open + n_remote. They do not affect the
 * worker's breaker; the router that sent them handles that. */
#include "router/registry/registry_remote.h"

#include <assert.h>
#include <string.h>

#include "router/registry/registry.h"
#include "router/registry/registry_internal.h"
#include "router/registry/registry_workers.h"

static struct worker *find(struct registry *r, uint32_t id, uint32_t incarnation) {
    struct worker *w = &r->workers[id];

    return id < r->n_ids && w->is_used && w->is_described && w->incarnation == incarnation ? w
                                                                                           : NULL;
}

uint32_t registry_publishers(struct registry *r, struct registry_publisher *out, uint32_t max) {
    uint32_t n = 0;

    pthread_mutex_lock(&r->lock);
    for (uint32_t id = 0; id < r->n_ids && n < max; id++) {
        const struct worker *w = &r->workers[id];

        if (!w->is_used || !w->is_described || !w->info.publishes_events) continue;
        out[n].id = id;
        out[n].incarnation = w->incarnation;
        memcpy(out[n].generation, w->info.generation, WIRE_GENERATION_MAX);
        n++;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

void registry_set_followed(struct registry *r, uint32_t id, uint32_t incarnation,
                           bool is_followed) {
    struct worker *w;

    pthread_mutex_lock(&r->lock);
    w = find(r, id, incarnation);
    if (w) w->is_followed = is_followed;
    pthread_mutex_unlock(&r->lock);
}

void registry_suspect(struct registry *r, uint32_t id, uint32_t incarnation) {
    struct worker *w;

    pthread_mutex_lock(&r->lock);
    w = find(r, id, incarnation);
    if (w) w->is_suspect = true;
    pthread_mutex_unlock(&r->lock);
}

enum status registry_add_remote(struct registry *r, uint32_t id, uint32_t incarnation,
                                const struct route_request *rq, struct registry_remote *m) {
    struct worker *w;

    pthread_mutex_lock(&r->lock);
    w = find(r, id, incarnation);
    if (w) {
        *m = (struct registry_remote){.routing = w->model->routing};
        routing_add_remote(m->routing, id, rq, &m->ticket);
        w->n_remote++;
        r->n_remote++;
    }
    pthread_mutex_unlock(&r->lock);
    return w ? ST_OK : ST_NOT_FOUND;
}

void registry_remote_first_token(struct registry *r, struct registry_remote *m,
                                 const struct route_feedback *feedback, uint64_t now_us) {
    struct list decided;

    list_init(&decided);
    pthread_mutex_lock(&r->lock);
    routing_first_token(m->routing, &m->ticket, feedback, now_us);
    if (r->n_waiting) registry_grant_held(r, MAX(now_us, r->now_us), &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_remote_ended(struct registry *r, struct registry_remote *m,
                           const struct route_end *end, uint64_t now_us) {
    struct list decided;
    struct worker *w = &r->workers[m->ticket.load.worker];

    list_init(&decided);
    pthread_mutex_lock(&r->lock);
    routing_ended(m->routing, &m->ticket, end);
    assert(w->n_remote && r->n_remote); /* an id with open requests is never reused */
    w->n_remote--;
    r->n_remote--;
    if (r->n_waiting) registry_grant(r, now_us, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_check(struct registry *r) {
    uint32_t n_open = 0, n_remote = 0, n_waiting = 0;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n_models; i++) {
        const struct model *m = &r->models[i];

        routing_check(m->routing);
        n_open += routing_load(m->routing)->n_open;
        n_waiting += hold_n_waiting(m->hold);
        if (m->sessions) sessions_check(m->sessions);
        if (m->sessions) n_waiting += sessions_n_held(m->sessions);
    }
    for (uint32_t id = 0; id < r->n_ids; id++)
        n_remote += r->workers[id].n_remote;
    assert(n_open == r->n_open + r->n_remote);
    assert(n_remote == r->n_remote);
    assert(n_waiting == r->n_waiting);
    pthread_mutex_unlock(&r->lock);
    (void)n_open;
    (void)n_remote;
    (void)n_waiting;
}
