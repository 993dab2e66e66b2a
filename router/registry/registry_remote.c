/* router/registry/registry_remote.c - requests that other routers sent, under the one lock. Thread:
 * control.
 *
 * They are in the same load table and index as our own, so that choices, limits and the queue count
 * them, and are counted apart: the sum of the loads is n_open + n_remote. They do not affect the
 * worker's breaker; the router that sent them handles that. Their marks make the queue fair and the
 * sessions' memory one over all routers: each charges the others' requests to its own books. */
#include "router/registry/registry_remote.h"

#include <assert.h>
#include <string.h>

#include "common/protocol/request_events.h"
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

static uint64_t age_us(const struct route_request *rq, uint64_t now_us) {
    return now_us - MIN(rq->now_us, now_us);
}

static void charge(struct model *m, const struct request_mark *mark, double work_s,
                   uint64_t now_us) {
    hold_served(m->hold,
                &(struct hold_service){.tenant = mark->tenant,
                                       .priority = mark->priority,
                                       .weight = mark->weight_percent / 100.0,
                                       .work_s = work_s,
                                       .has_waited = mark->has_waited},
                now_us);
}

/* What is held of its session goes with it. */
static void join_turn(struct registry *r, struct worker *w, uint32_t id,
                      const struct route_request *rq, const struct request_mark *mark,
                      uint64_t now_us, struct registry_remote *m) {
    struct route_request as_now = *rq;

    if (!m->model->sessions || !mark->is_turn || age_us(rq, now_us) > SESSION_TTL_S * 1000000u)
        return;
    as_now.now_us = now_us;
    registry_join_remote(r, m->model, &as_now, mark, w->info.max_model_len, &m->turn);
    sessions_sent(m->model->sessions, &m->turn, id);
    m->model->n_turns += m->turn.is_open;
}

enum status registry_add_remote(struct registry *r, uint32_t id, uint32_t incarnation,
                                const struct route_request *rq, const struct request_mark *mark,
                                uint64_t now_us, struct registry_remote *m) {
    struct list decided;
    struct worker *w;

    list_init(&decided);
    pthread_mutex_lock(&r->lock);
    w = find(r, id, incarnation);
    if (w) {
        *m = (struct registry_remote){.model = w->model};
        if (mark) join_turn(r, w, id, rq, mark, now_us, m); /* before its prompt is known */
        routing_add_remote(w->model->routing, id, rq, &m->ticket);
        if (mark && age_us(rq, now_us) <= REGISTRY_CHARGED_US)
            charge(w->model, mark, m->ticket.load.work_s, now_us);
        w->n_remote++;
        r->n_remote++;
        if (m->turn.is_open && sessions_n_held(w->model->sessions))
            registry_grant(r, now_us, &decided);
    }
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
    return w ? ST_OK : ST_NOT_FOUND;
}

/* Of the worker of m; a context has no more than its model takes. */
static uint64_t possible_tokens(const struct registry *r, const struct registry_remote *m,
                                int64_t n_tokens) {
    const struct worker *w = &r->workers[m->ticket.load.worker];

    return n_tokens > 0 ? MIN((uint64_t)n_tokens, (uint64_t)w->info.max_model_len) : 0;
}

void registry_remote_first_token(struct registry *r, struct registry_remote *m,
                                 const struct route_feedback *feedback, uint64_t now_us) {
    struct list decided;

    list_init(&decided);
    pthread_mutex_lock(&r->lock);
    routing_first_token(m->model->routing, &m->ticket, feedback, now_us);
    if (feedback) m->n_prompt_tokens = possible_tokens(r, m, feedback->prompt_tokens);
    if (r->n_waiting) registry_grant_held(r, MAX(now_us, r->now_us), &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

/* As it was predicted, where the worker has not reported. */
static void end_turn(const struct registry *r, struct registry_remote *m, int64_t output_tokens,
                     uint64_t now_us) {
    int64_t n_tokens = (int64_t)m->n_prompt_tokens + MAX(output_tokens, 0);

    if (!m->turn.is_open) return;
    assert(m->model->n_turns);
    m->model->n_turns--;
    sessions_ended(m->model->sessions, &m->turn,
                   m->n_prompt_tokens ? possible_tokens(r, m, n_tokens) : 0, now_us);
}

void registry_remote_ended(struct registry *r, struct registry_remote *m,
                           const struct route_end *end, uint64_t now_us) {
    struct list decided;
    struct worker *w = &r->workers[m->ticket.load.worker];

    list_init(&decided);
    pthread_mutex_lock(&r->lock);
    routing_ended(m->model->routing, &m->ticket, end);
    end_turn(r, m, end->output_tokens, now_us);
    assert(w->n_remote && r->n_remote); /* an id with open requests is never reused */
    w->n_remote--;
    r->n_remote--;
    if (r->n_waiting) registry_grant(r, now_us, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_check(struct registry *r) {
    uint32_t n_open = 0, n_light = 0, n_remote = 0, n_waiting = 0;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n_models; i++) {
        const struct model *m = &r->models[i];

        routing_check(m->routing);
        n_open += routing_load(m->routing)->n_open;
        n_light += routing_load(m->routing)->n_light;
        n_waiting += hold_n_waiting(m->hold);
        if (m->sessions) sessions_check(m->sessions);
        if (m->sessions) n_waiting += sessions_n_held(m->sessions);
    }
    for (uint32_t id = 0; id < r->n_ids; id++)
        n_remote += r->workers[id].n_remote;
    assert(n_open == r->n_open + r->n_remote);
    assert(n_light == r->n_light);
    assert(n_remote == r->n_remote);
    assert(n_waiting == r->n_waiting);
    pthread_mutex_unlock(&r->lock);
    (void)n_open;
    (void)n_light;
    (void)n_remote;
    (void)n_waiting;
}
