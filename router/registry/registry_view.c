/* router/registry/registry_view.c - copies of what is there, made under the lock, for any
 * thread. */
#include "router/registry/registry_view.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "router/registry/registry_internal.h"
#include "router/registry/registry_workers.h"

static void view_load(const struct routing *routing, uint32_t id, struct registry_view *out) {
    const struct load_worker *k = &routing_load(routing)->workers[id];

    out->in_flight = k->in_flight;
    out->n_pending = k->n_pending;
    out->resident_tokens = k->resident_tokens;
    routing_worker_stats(routing, id, clock_now_us(), &out->routing);
}

bool registry_get(struct registry *r, uint32_t id, struct registry_view *out) {
    bool is_there = false;

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && r->workers[id].is_used) {
        const struct worker *w = &r->workers[id];

        *out = (struct registry_view){
            .id = id,
            .info = w->info,
            .is_described = w->is_described,
            .is_third_party = w->is_third_party,
            .reasons = worker_reasons(w, id),
            .n_remote = w->n_remote,
            .is_followed = w->is_followed,
            .n_sent = w->n_sent,
            .n_failed = w->n_failed,
            .breaker = w->breaker.state,
            .cause = w->breaker.cause,
            .incarnation = w->incarnation,
            .engine_running = w->reported.running,
            .engine_waiting = w->reported.waiting,
            .engine_kv_usage = w->reported.kv_usage,
            .max_in_flight = w->max_in_flight,
            .draining = w->draining,
            .load = w->load,
            .has_load = w->has_load,
            .kv = w->kv,
        };
        if (w->model) view_load(w->model->routing, id, out);
        memcpy(out->n_ejected, w->n_ejected, sizeof(out->n_ejected));
        memcpy(out->url, w->url, sizeof(out->url));
        out->part = w->part;
        memcpy(out->labels, w->labels, sizeof(out->labels));
        address_text(&w->addr, out->address);
        is_there = true;
    }
    pthread_mutex_unlock(&r->lock);
    return is_there;
}

static bool model_is_down(const struct model *m) {
    return m->n_workers > 0 && !load_has_eligible(routing_load(m->routing));
}

bool registry_is_down(struct registry *r, uint32_t id) {
    bool is_down;

    pthread_mutex_lock(&r->lock);
    is_down = id < r->n_ids && r->workers[id].is_described && model_is_down(r->workers[id].model);
    pthread_mutex_unlock(&r->lock);
    return is_down;
}

bool registry_any_down(struct registry *r, uint32_t n_workers) {
    bool is_any = false;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n_models; i++)
        is_any = is_any || (r->models[i].n_workers >= n_workers && model_is_down(&r->models[i]));
    pthread_mutex_unlock(&r->lock);
    return is_any;
}

uint32_t registry_n_ids(struct registry *r) {
    uint32_t n;

    pthread_mutex_lock(&r->lock);
    n = r->n_ids;
    pthread_mutex_unlock(&r->lock);
    return n;
}

void registry_totals(struct registry *r, struct registry_totals *out) {
    struct routing_stats stats;

    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&r->lock);
    for (uint32_t id = 0; id < r->n_ids; id++) {
        if (!r->workers[id].is_used) continue;
        out->n_workers++;
        out->n_followed += r->workers[id].is_followed;
        if (r->workers[id].is_described && worker_reasons(&r->workers[id], id) == 0) {
            out->n_eligible++;
        }
    }
    for (uint32_t i = 0; i < r->n_models; i++) {
        routing_stats(r->models[i].routing, &stats);
        out->index_bytes += stats.index_bytes;
        out->n_entries += stats.n_entries;
        out->n_refused += stats.n_refused;
        out->n_evicted += stats.n_evicted;
        out->n_blocks += stats.n_blocks;
        out->may_wait |= model_may_wait(r, &r->models[i], r->now_us);
    }
    out->n_open = r->n_open - r->n_legs;
    out->n_remote = r->n_remote;
    out->n_contended = r->n_contended;
    out->lock_wait_ns = r->lock_wait_ns;
    out->n_waiting = r->n_waiting;
    pthread_mutex_unlock(&r->lock);
}

bool registry_model(struct registry *r, uint32_t i, char name[WIRE_MODEL_MAX],
                    uint32_t *max_model_len) {
    bool is_there = false;

    pthread_mutex_lock(&r->lock);
    for (uint32_t k = 0; k < r->n_models && !is_there; k++) {
        const struct model *m = &r->models[k];
        const char *cursor = m->other_names;
        struct str called = {m->name, m->name_len};

        if (m->n_workers == 0) continue;
        for (; called.len && i > 0; i--)
            called = wire_names_next(&cursor);
        if (!called.len) continue;
        snprintf(name, WIRE_MODEL_MAX, STR_FMT, STR_ARG(called));
        *max_model_len = m->max_model_len;
        is_there = true;
    }
    pthread_mutex_unlock(&r->lock);
    return is_there;
}

#define HELD_S     2.0
#define ALL_RAMPED (UINT64_MAX / 4) /* a time after every slow start */

/* Load of a worker, 0 to 1. Its last report is ignored when nothing is in flight there. */
static double fullness(const struct worker *w, const struct load_worker *k) {
    double share = 0;

    if (k->spec.enough_in_flight) {
        share = (double)k->in_flight / k->spec.enough_in_flight;
    } else if (w->reported.waiting > 0) {
        share = 1;
    }
    if (w->has_load && w->load.kv_total && k->in_flight) {
        share = MAX(share, 1 - (double)w->load.kv_free / (double)w->load.kv_total);
    }
    if (w->is_third_party) share = MAX(share, w->reported.kv_usage);
    return MIN(share, 1);
}

static uint32_t n_waiting_of(const struct model *m) {
    return hold_n_waiting(m->hold) + (m->sessions ? sessions_n_held(m->sessions) : 0);
}

/* Mean load of the workers, and what waits for a backlog: HELD_S each is a full load. A request
 * that waits a moment is no reason for another worker. */
static double saturation(const struct registry *r, const struct model *m, uint32_t n_requests) {
    const struct load *load = routing_load(m->routing);
    double sum = hold_waiting_s(m->hold) / HELD_S;
    uint32_t n = 0;

    if (m->sessions && sessions_n_held(m->sessions)) return 1;
    if (hold_n_waiting(m->hold) > 0 && (!hold_is_on(m->hold) || !load_has_room(load, ALL_RAMPED)))
        return 1;
    for (uint32_t id = 0; id < r->n_ids; id++) {
        const struct worker *w = &r->workers[id];

        if (!w->is_used || w->model != m || worker_reasons(w, id) != 0) continue;
        sum += fullness(w, &load->workers[id]);
        n++;
    }
    return n ? MIN(sum / n, 1) : n_requests > 0;
}

/* Open requests of other routers on its workers. */
static uint32_t n_remote_of(const struct registry *r, const struct model *m) {
    uint32_t n = 0;

    for (uint32_t id = 0; id < r->n_ids; id++) {
        if (r->workers[id].is_used && r->workers[id].model == m) n += r->workers[id].n_remote;
    }
    return n;
}

bool registry_model_stats(struct registry *r, uint32_t i, struct registry_model_stats *out) {
    struct routing_stats stats;
    bool is_there;

    pthread_mutex_lock(&r->lock);
    is_there = i < r->n_models;
    if (is_there) {
        const struct model *m = &r->models[i];

        routing_stats(m->routing, &stats);
        *out = (struct registry_model_stats){
            .n_workers = m->n_workers,
            .n_open = stats.n_open - MIN(n_remote_of(r, m), stats.n_open),
            .n_waiting = n_waiting_of(m),
            .bytes_per_token = stats.bytes_per_token,
            .saturation = saturation(r, m, stats.n_open),
            .joins_sessions = m->sessions != NULL,
        };
        if (m->sessions) sessions_stats(m->sessions, &out->sessions);
        memcpy(out->name, m->name, sizeof(out->name));
    }
    pthread_mutex_unlock(&r->lock);
    return is_there;
}
