/* router/registry/registry.c - workers and models: the control loop's half. registry.h lists what
 * the lock covers; requests are in registry_route.c. */
#include "router/registry/registry.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "router/registry/registry_internal.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_workers.h"

/* The lock is held for a microsecond or two, so a waiter spins: sleeping and waking costs ten. */
static void init_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attr;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &attr);
    pthread_mutexattr_destroy(&attr);
}

enum status registry_create(struct registry **out, const struct registry_config *config,
                            struct error *err) {
    struct registry *r = mem_zalloc(sizeof(*r));
    struct routing *trial;
    enum status st;

    *out = NULL;
    r->config = *config;
    buf_init(&r->outbox, 0);
    r->terms = mem_calloc(config->routing.max_workers, sizeof(*r->terms));
    init_lock(&r->lock);
    /* Reports a wrong option or a lack of memory at the start instead of at the first worker. */
    st = routing_create(&trial, &config->routing, err);
    if (st != ST_OK) {
        registry_destroy(r);
        return st;
    }
    routing_destroy(trial);
    *out = r;
    return ST_OK;
}

void registry_destroy(struct registry *r) {
    if (!r) return;
    for (uint32_t i = 0; i < r->n_models; i++) {
        hold_destroy(r->models[i].hold);
        sessions_destroy(r->models[i].sessions);
        routing_destroy(r->models[i].routing);
    }
    pthread_mutex_destroy(&r->lock);
    buf_fini(&r->outbox);
    mem_free(r->terms);
    mem_free(r);
}

/* --- workers that come and go ----------------------------------------------------------------- */

static uint32_t worker_in_flight(const struct worker *w, uint32_t id) {
    return w->model ? routing_load(w->model->routing)->workers[id].in_flight : 0;
}

/* An id is free again when no request of its previous worker is in flight. */
static bool id_is_free(const struct registry *r, uint32_t id) {
    const struct worker *w = &r->workers[id];

    return !w->is_used && !w->n_remote && worker_in_flight(w, id) == 0;
}

enum status registry_add_at(struct registry *r, const struct address_url *url,
                            const struct address *addr, uint32_t *id, struct error *err) {
    struct worker fresh = {.is_used = true, .reasons = WORKER_STARTING, .addr = *addr};
    uint32_t chosen = REGISTRY_MAX_WORKERS, limit = r->config.routing.max_workers;
    enum status st = ST_OK;

    fresh.is_tls = url->is_https;
    memcpy(fresh.url, url->url, sizeof(fresh.url));
    memcpy(fresh.authority, url->authority, sizeof(fresh.authority));
    fresh.authority_len = (uint32_t)strlen(fresh.authority);
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < limit; i++) {
        if (r->workers[i].is_used && strcmp(r->workers[i].url, fresh.url) == 0) {
            st = error_set_param(err, ST_EXISTS, "url", "worker %s is already there, with id %u",
                                 fresh.url, i);
            break;
        }
        if (chosen == REGISTRY_MAX_WORKERS && id_is_free(r, i)) chosen = i;
    }
    if (st == ST_OK && chosen == REGISTRY_MAX_WORKERS) {
        st = error_set(err, ST_BUSY, "the limit of %u workers is reached: raise --max-workers",
                       limit);
    }
    if (st == ST_OK) {
        fresh.reported = (struct registry_report){.running = -1, .waiting = -1, .kv_usage = -1};
        fresh.incarnation = r->workers[chosen].incarnation + 1;
        r->workers[chosen] = fresh;
        r->n_ids = MAX(r->n_ids, chosen + 1);
        *id = chosen;
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

static void leave_model(struct registry *r, struct worker *w, uint32_t id) {
    if (!w->model) return;
    routing_worker_down(w->model->routing, id);
    if (w->model->sessions) sessions_worker_lost(w->model->sessions, id);
    w->model->n_workers--;
    w->is_described = false;
    registry_count_memory(r);
}

enum status registry_remove(struct registry *r, uint32_t id) {
    enum status st = ST_NOT_FOUND;

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && r->workers[id].is_used) {
        leave_model(r, &r->workers[id], id); /* keeps .model: tickets may be open */
        r->workers[id].is_used = false;
        st = ST_OK;
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* --- their models ----------------------------------------------------------------------------- */

static struct model *model_find(struct registry *r, struct str name) {
    for (uint32_t i = 0; i < r->n_models; i++) {
        if (model_is_called(&r->models[i], name)) return &r->models[i];
    }
    return NULL;
}

static bool has_no_turns(const struct model *m) {
    return !m->n_turns && !(m->sessions && sessions_n_held(m->sessions));
}

/* A place for one more model: a free one, or that of a model without workers and open or waiting
 * requests, so that the fleet may use any number of names over time. */
static struct model *find_place(struct registry *r) {
    for (uint32_t i = 0; i < r->n_models; i++) {
        struct model *m = &r->models[i];

        if (m->n_workers == 0 && routing_load(m->routing)->n_open == 0 &&
            hold_n_waiting(m->hold) == 0 && has_no_turns(m)) {
            return m;
        }
    }
    return r->n_models < REGISTRY_MAX_MODELS ? &r->models[r->n_models] : NULL;
}

/* Stores `fresh` there; the caller owns the previous contents. */
static struct model take_place(struct registry *r, struct model *place, const struct model *fresh) {
    struct model former = *place;

    for (uint32_t id = 0; id < r->n_ids; id++) {
        if (r->workers[id].model == place) r->workers[id].model = NULL; /* a removed worker's */
    }
    *place = *fresh;
    if (place == &r->models[r->n_models]) r->n_models++;
    return former;
}

/* Makes a place for the model unless it has one. Only the control thread adds models, so its
 * memory, tens of megabytes, is allocated and freed without the lock. */
static enum status model_ensure(struct registry *r, const char *name, struct error *err) {
    struct model fresh = {0}, former, *place;
    bool is_known;
    enum status st;

    pthread_mutex_lock(&r->lock);
    is_known = model_find(r, str_of(name)) != NULL;
    place = find_place(r);
    pthread_mutex_unlock(&r->lock);
    if (is_known) return ST_OK;
    if (!place) {
        return error_set(
            err, ST_BUSY,
            "more than %u models at once: \"%s\" is not routed; start another router for it",
            REGISTRY_MAX_MODELS, name);
    }
    st = routing_create(&fresh.routing, &r->config.routing, err);
    if (st != ST_OK) return st;
    if (r->config.max_sessions) fresh.sessions = sessions_create(r->config.max_sessions);
    if (r->config.max_sessions && !fresh.sessions) {
        routing_destroy(fresh.routing);
        return error_set(err, ST_NOMEM,
                         "no memory for the sessions of \"%s\": set --session-admission off", name);
    }
    fresh.hold = hold_create(fresh.routing, &r->config.hold);
    snprintf(fresh.name, sizeof(fresh.name), "%s", name);
    fresh.name_len = (uint32_t)strlen(fresh.name);
    pthread_mutex_lock(&r->lock);
    former = take_place(r, place, &fresh);
    pthread_mutex_unlock(&r->lock);
    hold_destroy(former.hold);
    sessions_destroy(former.sessions);
    routing_destroy(former.routing);
    return ST_OK;
}

/* --- their properties ------------------------------------------------------------------------- */

/* A worker gets more requests than it computes at once, so that its own scheduler never idles; and
 * twice that of requests whose prompts are cached there (load.h). An operator's limit is the
 * maximum. */
#define BEYOND_BATCH 4 /* a quarter more */
#define CACHED_THERE 2 /* times that */
#define BATCH_MAX    1000000u

static void bound(const struct registry *r, const struct worker *w, struct worker_spec *spec) {
    uint32_t limit = w->max_in_flight ? w->max_in_flight : r->config.max_worker_requests;
    uint32_t n = MIN(w->info.max_num_seqs, BATCH_MAX);

    spec->enough_in_flight = spec->max_in_flight = limit;
    if (limit || !n) return;
    spec->enough_in_flight = n + MAX(n / BEYOND_BATCH, 1u);
    spec->max_in_flight = spec->enough_in_flight * CACHED_THERE;
}

static struct worker_spec spec_of(const struct registry *r, struct worker *w) {
    struct worker_part published =
        w->kind == WORKER_OURS ? worker_part_published(&w->info) : w->reported.part;
    struct worker_part part =
        worker_part_of(w->kind, w->labels, &published, r->config.vllm_handover);
    struct worker_spec spec = {
        .role = part.role,
        .handover = part.handover,
        .lacks_engines = part.handover == HANDOVER_MOONCAKE && !w->engines.n,
        .identity = hash_64(w->url, strlen(w->url), 0),
        .generation = hash_64(w->info.generation, strlen(w->info.generation), 1),
        .block_size = w->info.block_size,
        .n_blocks = w->info.n_blocks,
        .n_tier_blocks = wire_tier_blocks(&w->info),
        .restore_tokens_per_s = wire_restore_tokens_per_s(&w->info),
        .keeps_copies = w->info.n_tiers && w->info.tiers[0].is_inclusive,
        .prefill_tokens_per_s = w->info.prefill_tokens_per_s,
        .attn_context = w->info.attn_context,
        .order = strcmp(w->info.schedule_policy, "srpt") == 0 ? WORKER_SRPT : WORKER_FCFS,
    };

    w->part = part;
    bound(r, w, &spec);
    return spec;
}

/* Its KV blocks, for others that have equal ones, under equal keys. A host is an address without
 * its port: pods of one node count as apart. */
static struct fetch_peer peer_of(const struct worker *w) {
    const struct wire_kv_peer *peer = &w->info.kv_peer;
    char host[ADDRESS_TEXT_MAX];
    const char *port;

    if (!peer->fingerprint[0]) return (struct fetch_peer){0};
    address_text(&w->addr, host);
    port = strrchr(host, ':');
    return (struct fetch_peer){
        .fabric =
            hash_64(peer->fingerprint, strlen(peer->fingerprint), 2u + peer->is_encrypted) | 1,
        .host = hash_64(host, port ? (size_t)(port - host) : strlen(host), 4),
        .bytes_per_token = (double)peer->bytes_per_token};
}

void worker_set_reason(struct worker *w, uint32_t id, uint32_t reasons, bool is_set) {
    if (w->model && w->is_described) {
        w->model->was_eligible |= load_has_eligible(routing_load(w->model->routing));
        routing_set_reason(w->model->routing, id, reasons, is_set);
    } else {
        w->reasons = is_set ? w->reasons | reasons : w->reasons & ~reasons;
    }
}

void worker_set_draining(struct worker *w, uint32_t id, uint32_t who, bool is_set) {
    w->draining = is_set ? w->draining | who : w->draining & ~who;
    worker_set_reason(w, id, WORKER_DRAINING, w->draining != 0);
}

void worker_show_breaker(struct worker *w, uint32_t id) {
    bool is_ejected = !breaker_admits(&w->breaker);
    bool is_shown = (worker_reasons(w, id) & WORKER_EJECTED) != 0;

    if (is_ejected != is_shown) worker_set_reason(w, id, WORKER_EJECTED, is_ejected);
}

void worker_acquit(struct worker *w, uint32_t id) {
    if (w->breaker.state != BREAKER_CLOSED) w->news.has_returned = true;
    breaker_close(&w->breaker);
    w->outcomes = (struct outcomes){0};
    worker_show_breaker(w, id);
}

/* Keeps what reports taught when an announcement reports less. */
static struct wire_server_info with_what_is_known(const struct worker *w,
                                                  const struct wire_server_info *info) {
    struct wire_server_info full = *info;

    if (!w->is_third_party || strcmp(w->info.model, info->model) != 0) return full;
    if (!full.n_blocks) full.n_blocks = w->info.n_blocks;
    if (!full.block_size) full.block_size = w->info.block_size;
    if (!full.generation[0]) memcpy(full.generation, w->info.generation, WIRE_GENERATION_MAX);
    return full;
}

enum status registry_describe(struct registry *r, uint32_t id, const struct wire_server_info *info,
                              bool is_third_party, struct error *err) {
    struct worker *w = &r->workers[id];
    enum status st = model_ensure(r, info->model, err);
    struct wire_server_info full;
    struct worker_spec spec;
    struct fetch_peer peer;
    struct model *m;
    bool is_new;

    if (st != ST_OK) return st;
    pthread_mutex_lock(&r->lock);
    full = with_what_is_known(w, info);
    if (!w->is_used) {
        st = error_set(err, ST_NOT_FOUND, "worker %u was removed: add it again if needed", id);
        goto done;
    }
    m = model_find(r, str_of(info->model));
    is_new = !w->is_described || strcmp(w->info.generation, full.generation) != 0;
    if (w->is_described && is_new) {
        worker_acquit(w, id);
        w->has_load = false;
        if (w->draining & DRAIN_WORKER) worker_set_draining(w, id, DRAIN_WORKER, false);
    }
    if (w->model != m || !w->is_described) {
        uint32_t reasons = worker_reasons(w, id);

        leave_model(r, w, id);
        w->model = m;
        m->n_workers++;
        routing_set_reason(m->routing, id, ~(uint32_t)WORKER_ABSENT, false);
        routing_set_reason(m->routing, id, reasons & ~(uint32_t)WORKER_ABSENT, true);
    }
    w->info = full;
    w->is_third_party = is_third_party;
    w->kind = worker_kind_of(is_third_party, info->backend);
    spec = spec_of(r, w);
    peer = peer_of(w);
    routing_worker_up(m->routing, id, &spec);
    routing_set_peer(m->routing, id, &peer);
    if (is_new) routing_slow_start(m->routing, id, r->now_us);
    if (is_new && m->sessions) sessions_worker_lost(m->sessions, id);
    m->max_model_len = info->max_model_len;
    memcpy(m->other_names, info->other_names, sizeof(m->other_names));
    w->is_described = true;
    registry_count_memory(r);
done:
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* True when it changed the worker's description. */
static bool take_report(struct wire_server_info *info, const struct registry_report *report) {
    struct wire_server_info was = *info;

    if (report->n_blocks) info->n_blocks = report->n_blocks;
    if (report->block_size) info->block_size = report->block_size;
    if (report->generation[0]) memcpy(info->generation, report->generation, WIRE_GENERATION_MAX);
    return info->n_blocks != was.n_blocks || info->block_size != was.block_size ||
           strcmp(info->generation, was.generation) != 0;
}

void registry_report(struct registry *r, uint32_t id, const struct registry_report *report) {
    struct worker *w = &r->workers[id];
    struct worker_spec spec;

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && w->is_used && w->is_described && w->is_third_party) {
        bool is_other_part = memcmp(&w->reported.part, &report->part, sizeof(report->part)) != 0;

        w->reported = *report;
        if (report->generation[0] && strcmp(report->generation, w->info.generation) != 0)
            w->engines.n = 0; /* a new process has new ones */
        if (take_report(&w->info, report) || is_other_part) {
            spec = spec_of(r, w);
            routing_worker_up(w->model->routing, id, &spec);
            registry_count_memory(r);
        }
        routing_worker_report(w->model->routing, id, &report->counted);
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_set_engines(struct registry *r, uint32_t id, uint32_t incarnation,
                          const struct worker_engines *engines) {
    struct worker *w = &r->workers[id];

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && w->is_used && w->is_described && w->incarnation == incarnation) {
        bool had_any = w->engines.n > 0;

        w->engines = *engines;
        if (had_any != (engines->n > 0)) {
            struct worker_spec spec = spec_of(r, w);

            routing_worker_up(w->model->routing, id, &spec);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_change(struct registry *r, const struct registry_config *config) {
    uint64_t seed = r->config.routing.policy_options.seed;

    pthread_mutex_lock(&r->lock);
    r->config = *config;
    r->config.routing.policy_options.seed = seed;
    for (uint32_t i = 0; i < r->n_models; i++) {
        hold_configure(r->models[i].hold, &config->hold);
        routing_configure(r->models[i].routing, &config->routing.policy_options,
                          config->routing.slow_start_us);
    }
    for (uint32_t id = 0; id < r->n_ids; id++) {
        struct worker *w = &r->workers[id];
        struct worker_spec spec;

        if (!w->is_used || !w->is_described) continue;
        spec = spec_of(r, w);
        routing_worker_up(w->model->routing, id, &spec);
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_set_reason(struct registry *r, uint32_t id, uint32_t reasons, bool is_set) {
    struct worker *w = &r->workers[id];

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && w->is_used) {
        bool is_back =
            !is_set && w->is_described && (worker_reasons(w, id) & reasons & WORKER_UNHEALTHY) != 0;

        worker_set_reason(w, id, reasons, is_set);
        if (is_back) routing_slow_start(w->model->routing, id, r->now_us);
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_set_draining(struct registry *r, uint32_t id, enum registry_drain who, bool is_set) {
    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && r->workers[id].is_used)
        worker_set_draining(&r->workers[id], id, who, is_set);
    pthread_mutex_unlock(&r->lock);
}

void registry_configure(struct registry *r, uint32_t id, uint32_t max_in_flight,
                        const char *labels) {
    struct worker *w = &r->workers[id];

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && w->is_used) {
        snprintf(w->labels, sizeof(w->labels), "%s", labels);
        w->max_in_flight = max_in_flight;
        if (w->is_described) {
            struct worker_spec spec = spec_of(r, w);

            routing_worker_up(w->model->routing, id, &spec);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_forget_cache(struct registry *r, uint32_t id) {
    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && r->workers[id].is_used && r->workers[id].is_described) {
        routing_forget_cache(r->workers[id].model->routing, id);
        if (r->workers[id].model->sessions)
            sessions_worker_lost(r->workers[id].model->sessions, id);
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_replace(struct registry *r, uint32_t id) {
    struct worker *w = &r->workers[id];

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && w->is_used) {
        if (w->is_described) {
            routing_forget_cache(w->model->routing, id);
            if (w->model->sessions) sessions_worker_lost(w->model->sessions, id);
            routing_slow_start(w->model->routing, id, r->now_us);
        }
        w->incarnation++;
        w->info.generation[0] = w->info.response_mark[0] = '\0';
        w->has_load = w->is_followed = false;
        w->kv = (struct registry_kv){0};
        w->engines.n = 0;
        w->reported = (struct registry_report){.running = -1, .waiting = -1, .kv_usage = -1};
        worker_acquit(w, id);
        worker_set_draining(w, id, DRAIN_WORKER, false);
        worker_set_reason(w, id, WORKER_UNHEALTHY, false);
        worker_set_reason(w, id, WORKER_STARTING, true);
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_tick(struct registry *r, uint64_t now_us) {
    struct list decided;

    list_init(&decided);
    pthread_mutex_lock(&r->lock);
    r->now_us = now_us;
    for (uint32_t id = 0; id < r->n_ids; id++) {
        struct worker *w = &r->workers[id];

        if (!w->is_used || w->breaker.state != BREAKER_OPEN) continue;
        breaker_tick(&w->breaker, now_us);
        worker_show_breaker(w, id);
    }
    for (uint32_t i = 0; i < r->n_models; i++) {
        model_note_eligible(&r->models[i], now_us);
        routing_apply_speeds(r->models[i].routing, now_us);
    }
    registry_count_memory(r);
    registry_grant(r, now_us, &decided);
    registry_give_up(r, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_probed(struct registry *r, uint32_t id, bool was_away) {
    struct worker *w = &r->workers[id];

    pthread_mutex_lock(&r->lock);
    if (id < r->n_ids && w->is_used && breaker_probed(&w->breaker, was_away)) {
        w->news.has_returned = true;
        worker_show_breaker(w, id);
    }
    pthread_mutex_unlock(&r->lock);
}

bool registry_take_breaker_change(struct registry *r, uint32_t id,
                                  struct registry_breaker_change *out) {
    struct worker *w = &r->workers[id];

    pthread_mutex_lock(&r->lock);
    *out = w->news;
    w->news = (struct registry_breaker_change){0};
    pthread_mutex_unlock(&r->lock);
    return out->was_ejected || out->has_returned;
}
