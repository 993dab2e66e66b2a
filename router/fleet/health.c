/* router/fleet/health.c - one small state machine per worker, driven by a timer and two answers. */
#include "router/fleet/health.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/text/json.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "router/registry/worker_kind.h"

#define STARTING_INTERVAL_US 50000u
#define CONFIRM_INTERVAL_US  50000u /* after the first good answer of one that was out */
#define DOWN_PROBES_PER_S    2000u /* between any two probes: 1000 workers are probed twice a second */
#define ANSWER_BYTES_MAX     65536 /* responses are outside input */
#define DESCRIBE_EVERY                                                                             \
    10 /* answers between descriptions: bounds how long a quick restart stays unnoticed */
#define NEVER_READY_MISSES                                                                         \
    20 /* misses before one log line: a wrong URL or certificate never recovers by itself */
#define STARTUP_US 60000000u /* then it is probed at the usual interval */

struct probe {
    struct health *health;
    struct loop_timer timer;
    struct http_call *call;        /* under way; NULL otherwise */
    uint64_t watched_us, asked_us; /* watched since; when the last probe was due */
    uint64_t due_us;               /* the next one */
    uint32_t worker, n_misses, n_hits;
    bool is_watched, needs_description, is_third_party, is_unhealthy, is_hung, is_ready, is_router;
    bool has_health; /* the probed path once returned 200 */
    bool is_any;     /* model unknown: it may report one later */
};

struct health {
    struct loop *loop;
    struct http_client *client;
    struct registry *registry;
    struct log *log;
    struct health_config config;
    health_ready_fn *on_ready;
    void *arg;
    struct probe *probes; /* by worker id */
    uint32_t n_watched;
};

/* While none of its model may be picked. */
static uint64_t down_interval_us(const struct health *h) {
    uint64_t least_us = (uint64_t)h->n_watched * 1000000u / DOWN_PROBES_PER_S;

    return MIN(MAX(least_us, HEALTH_DOWN_US), h->config.interval_us);
}

static void ask(struct probe *p, const char *path, http_client_fn *on_answer) {
    struct health *h = p->health;
    struct registry_view view;
    struct http_client_request request = {.timeout_ms = h->config.timeout_ms,
                                          .max_body_bytes = ANSWER_BYTES_MAX};
    struct error err = {0};
    char url[REGISTRY_URL_MAX + HEALTH_PATH_MAX + 1];

    if (!registry_get(h->registry, p->worker, &view)) return;
    snprintf(url, sizeof(url), "%s%s", view.url, path);
    request.url = url;
    request.connect_to = view.address;
    if (http_client_start(h->client, &request, on_answer, p, &p->call, &err) != ST_OK) {
        log_event(h->log, LOG_ERROR, "probe_failed", log_z("url", url), log_z("why", err.message));
        loop_timer_start(&p->timer, h->config.interval_us);
    }
}

static void schedule(struct probe *p) {
    struct health *h = p->health;
    uint64_t now_us = loop_now_us(h->loop), interval_us = h->config.interval_us;

    if (!p->is_ready && now_us - p->watched_us < STARTUP_US) {
        interval_us = MIN(STARTING_INTERVAL_US, interval_us);
    } else if (registry_is_down(h->registry, p->worker)) {
        interval_us = down_interval_us(h);
    } else if (p->is_unhealthy && p->n_hits > 0) {
        interval_us = MIN(CONFIRM_INTERVAL_US, interval_us);
    }
    p->due_us = MAX(p->asked_us + interval_us, now_us);
    loop_timer_start(&p->timer, p->due_us - now_us);
}

/* Spreads the probes of workers that were added together: a thousand at once would be a burst of
 * some 30 ms on this loop, which on a small machine delays the router loops. The first interval of
 * each is shortened by a share of its own; an interval counts from when the probe was due, or
 * delays of this loop would bring probes together again. */
static void spread(struct probe *p) {
    uint32_t share = p->worker * 0x9E3779B9u; /* of 2^32: neighbours lie far apart */
    uint64_t now_us = loop_now_us(p->health->loop);

    p->asked_us = now_us - MIN(now_us, (p->health->config.interval_us * share) >> 32);
}

static void report_hung(struct probe *p, bool is_hung) {
    struct health *h = p->health;

    p->is_hung = is_hung;
    if (h->config.on_hung) h->config.on_hung(p->worker, is_hung, h->arg);
}

/* `is_silent`: no byte within the timeout. */
static void missed(struct probe *p, bool is_silent, const char *why) {
    struct health *h = p->health;

    p->n_hits = 0;
    p->n_misses++;
    p->needs_description = true; /* it may come back as another */
    if (p->is_ready && !p->is_unhealthy && p->n_misses >= h->config.n_misses) {
        p->is_unhealthy = true;
        registry_set_reason(h->registry, p->worker, WORKER_UNHEALTHY, true);
        log_event(h->log, LOG_WARN, "worker_unhealthy", log_u64("worker", p->worker),
                  log_z("why", why));
        if (is_silent) report_hung(p, true);
    } else if (!p->is_ready && p->n_misses % NEVER_READY_MISSES == 0) {
        log_event(h->log, LOG_WARN, "worker_not_ready", log_u64("worker", p->worker),
                  log_z("why", why));
    }
    schedule(p);
}

/* A good answer. Requests that wait for the worker are served at once. */
static void well(struct probe *p) {
    struct health *h = p->health;

    registry_probed(h->registry, p->worker, p->n_misses > 0);
    if (p->n_misses > 0) registry_tick(h->registry, loop_now_us(h->loop));
    p->n_misses = 0;
    schedule(p);
}

static void described(struct probe *p, const struct wire_server_info *info, bool is_third_party) {
    struct health *h = p->health;
    struct error err = {0};
    bool was_unhealthy;

    if (registry_describe(h->registry, p->worker, info, is_third_party, &err) != ST_OK) {
        log_event(h->log, LOG_ERROR, "worker_refused", log_u64("worker", p->worker),
                  log_z("why", err.message));
        schedule(p);
        return;
    }
    if (info->wire > WIRE_VERSION) {
        log_event(h->log, LOG_WARN, "worker_protocol_newer", log_u64("worker", p->worker),
                  log_u64("wire", info->wire), log_u64("known", WIRE_VERSION));
    }
    was_unhealthy = p->is_unhealthy;
    p->needs_description = p->is_unhealthy = p->is_router = false;
    p->is_third_party = is_third_party;
    registry_set_reason(h->registry, p->worker, WORKER_STARTING | WORKER_UNHEALTHY, false);
    if (p->is_hung) report_hung(p, false);
    if (!p->is_ready) {
        p->is_ready = true;
        spread(p);
        log_event(h->log, LOG_INFO, "worker_ready", log_u64("worker", p->worker),
                  log_z("model", info->model), log_z("backend", info->backend),
                  log_u64("block_size", info->block_size), log_u64("blocks", info->n_blocks),
                  log_u64("tier_blocks", wire_tier_blocks(info)),
                  log_bool("is_foreign", is_third_party));
        if (h->config.isolates && worker_kind_of(is_third_party, info->backend) == WORKER_OTHER) {
            log_event(h->log, LOG_WARN, "worker_may_not_isolate", log_u64("worker", p->worker),
                      log_z("why", "nothing shows that its engine reads cache_salt: if it caches "
                                   "prefixes, tenants share them there"));
        }
        if (h->on_ready) h->on_ready(p->worker, h->arg);
    } else if (was_unhealthy) {
        log_event(h->log, LOG_INFO, "worker_healthy", log_u64("worker", p->worker));
    }
    well(p);
}

/* It is an HTTP server without description: it is used as a worker of any model. */
static void take_for_any(struct probe *p, struct wire_server_info *info) {
    struct health *h = p->health;
    struct registry_view view;

    snprintf(info->model, sizeof(info->model), REGISTRY_ANY_MODEL);
    snprintf(info->backend, sizeof(info->backend), "foreign");
    if (!p->is_ready && registry_get(h->registry, p->worker, &view)) {
        log_event(h->log, LOG_WARN, "worker_of_unknown_model", log_u64("worker", p->worker),
                  log_z("url", view.url),
                  log_z("why", "neither /server_info nor /v1/models describes it: it gets requests "
                               "for every model that no other worker serves"));
    }
    described(p, info, true);
}

/* It lacks the path, or answers every path with a page. */
static bool has_no_list(const struct http_client_response *response) {
    int code = response->code;
    struct json *root = NULL;
    bool is_json;

    if (code == 404 || code == 405 || code == 501) return true;
    if (code != 200) return false;
    is_json = json_parse(&root, response->body, NULL, NULL) == ST_OK;
    json_destroy(root);
    return !is_json;
}

/* The address of a worker may have become a router's. */
static void refused_router(struct probe *p, struct str name) {
    struct health *h = p->health;

    p->needs_description = true;
    if (!p->is_router) {
        p->is_router = true;
        if (h->config.routers) metric_inc(h->config.routers);
        log_event(h->log, LOG_ERROR, "worker_is_a_router", log_u64("worker", p->worker),
                  log_str("name", name),
                  log_z("why",
                        "it is not used: take it out of the list, or narrow the selector, that "
                        "names workers"));
    }
    if (p->is_ready && !p->is_unhealthy) {
        p->is_unhealthy = true;
        registry_set_reason(h->registry, p->worker, WORKER_UNHEALTHY, true);
    }
    schedule(p);
}

static bool is_router(struct probe *p, struct str body) {
    struct str name = STR_NULL;
    struct json *root = NULL;
    bool is = json_parse(&root, body, NULL, NULL) == ST_OK &&
              json_to_str(json_get(root, WIRE_ROUTER), &name) == ST_OK;

    if (is) refused_router(p, name);
    json_destroy(root);
    return is;
}

/* Which engine it is, by who owns its model: "vllm", "sglang". */
static const char *backend_of(const struct json *model) {
    struct str owner = STR_NULL;

    if (json_to_str(json_get(model, "owned_by"), &owner) != ST_OK) return "foreign";
    if (str_eq(owner, STR("vllm"))) return "vllm";
    return str_eq(owner, STR("sglang")) ? "sglang" : "foreign";
}

/* The other names of the model that /v1/models lists first: not its adapters, which have a
 * parent. */
static void read_other_names(const struct json *data, struct wire_server_info *info) {
    const struct json *first = json_first(data);
    struct str name;

    JSON_FOR_EACH(item, data) {
        if (item == first || !json_is_null(json_get(item, "parent"))) continue;
        if (json_to_str(json_get(item, "id"), &name) == ST_OK)
            wire_names_add(info->other_names, name);
    }
}

/* GET /v1/models of an engine that is not ours: its first model is what we route by. */
static void on_models(const struct http_client_response *response, void *arg) {
    struct probe *p = arg;
    struct wire_server_info info = {.wire = WIRE_VERSION};
    struct json *root = NULL;
    struct str name = STR_NULL;

    p->call = NULL;
    if (response->status == ST_OK && response->code == 200 &&
        json_parse(&root, response->body, NULL, NULL) == ST_OK) {
        const struct json *first = json_first(json_get(root, "data"));

        if (json_to_str(json_get(first, "id"), &name) != ST_OK) name = STR_NULL;
        if (json_get_u32(first, "max_model_len", 0, UINT32_MAX, &info.max_model_len, NULL, NULL) !=
            ST_OK) {
            info.max_model_len = 0;
        }
        if (name.ptr && name.len < sizeof(info.model)) {
            memcpy(info.model, name.ptr, name.len);
            snprintf(info.backend, sizeof(info.backend), "%s", backend_of(first));
            read_other_names(json_get(root, "data"), &info);
        }
    }
    json_destroy(root);
    p->is_any = !info.model[0];
    if (info.model[0]) {
        described(p, &info, true);
    } else if (response->status == ST_OK && has_no_list(response)) {
        take_for_any(p, &info);
    } else {
        missed(p, response->status == ST_TIMEOUT,
               "neither /server_info nor /v1/models describes it");
    }
}

static void on_info(const struct http_client_response *response, void *arg) {
    struct probe *p = arg;
    struct wire_server_info info;
    struct error err = {0};
    int code = response->code;

    p->call = NULL;
    if (response->status != ST_OK) {
        missed(p, response->status == ST_TIMEOUT, response->message);
    } else if (code == 200 && wire_parse_server_info(response->body, &info, &err) == ST_OK) {
        described(p, &info, false);
    } else if (code == 200 && is_router(p, response->body)) {
        return;
    } else if (code == 200 || code == 404 || code == 405 || code == 501) {
        ask(p, "/v1/models", on_models); /* it has no /server_info of ours */
    } else {
        missed(p, false, "GET /server_info failed");
    }
}

/* A server without the probed path counts as healthy. */
static bool is_alive(const struct probe *p, int code) {
    return code == 200 || (!p->has_health && (code == 404 || code == 405 || code == 501));
}

static void on_health(const struct http_client_response *response, void *arg) {
    struct probe *p = arg;
    struct health *h = p->health;
    uint32_t wanted = 1;

    p->call = NULL;
    if (response->status == ST_OK && response->code == 200) p->has_health = true;
    if (response->status != ST_OK || !is_alive(p, response->code)) {
        missed(p, response->status == ST_TIMEOUT,
               response->status == ST_OK ? "GET /health was not answered with 200"
                                         : response->message);
        return;
    }
    p->n_hits++;
    if (p->is_unhealthy && !registry_is_down(h->registry, p->worker)) wanted = h->config.n_hits;
    registry_set_draining(h->registry, p->worker, DRAIN_WORKER,
                          false); /* a draining worker returns 503 */
    if ((!p->is_third_party || p->is_any) && p->n_hits % DESCRIBE_EVERY == 0) {
        p->needs_description = true;
    }
    if (p->needs_description && p->n_hits >= wanted) {
        ask(p, WIRE_INFO_PATH, on_info);
        return;
    }
    if (p->is_unhealthy) {
        schedule(p); /* once more */
    } else {
        well(p);
    }
}

static void on_timer(void *arg) {
    struct probe *p = arg;
    struct health *h = p->health;
    uint64_t now_us = loop_now_us(h->loop);

    p->asked_us = now_us - p->due_us < h->config.interval_us ? p->due_us : now_us;
    if (registry_take_suspicion(h->registry, p->worker)) p->needs_description = true;
    ask(p, h->config.path, on_health);
}

struct health *health_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct log *log,
                             const struct health_config *config, health_ready_fn *on_ready,
                             void *arg) {
    struct health *h = mem_zalloc(sizeof(*h));

    h->loop = loop;
    h->client = client;
    h->registry = registry;
    h->log = log;
    h->config = *config;
    h->on_ready = on_ready;
    h->arg = arg;
    h->probes = mem_calloc(config->max_workers, sizeof(*h->probes));
    return h;
}

void health_configure(struct health *h, const struct health_config *config) {
    h->config.interval_us = config->interval_us;
    h->config.timeout_ms = config->timeout_ms;
    h->config.n_misses = config->n_misses;
    h->config.n_hits = config->n_hits;
    h->config.path = config->path;
    for (uint32_t w = 0; w < h->config.max_workers; w++) {
        struct probe *p = &h->probes[w];

        if (p->is_watched && !p->call) schedule(p);
    }
}

void health_watch(struct health *h, uint32_t worker) {
    struct probe *p = &h->probes[worker];

    *p = (struct probe){.health = h,
                        .worker = worker,
                        .is_watched = true,
                        .needs_description = true,
                        .watched_us = loop_now_us(h->loop),
                        .due_us = loop_now_us(h->loop)};
    loop_timer_init(&p->timer, h->loop, on_timer, p);
    loop_timer_start(&p->timer, 0);
    h->n_watched++;
}

void health_unwatch(struct health *h, uint32_t worker) {
    struct probe *p = &h->probes[worker];

    if (!p->is_watched) return;
    http_call_cancel(p->call);
    loop_timer_fini(&p->timer);
    p->is_watched = false;
    h->n_watched--;
}

static void log_breaker_change(struct health *h, uint32_t worker) {
    struct registry_breaker_change news;

    if (!registry_take_breaker_change(h->registry, worker, &news)) return;
    if (news.was_ejected) {
        log_event(h->log, LOG_WARN, "worker_ejected", log_u64("worker", worker),
                  log_z("reason", breaker_cause_names[news.cause]),
                  log_u64("bad_answers", news.latest.n_bad),
                  log_u64("good_answers", news.latest.n_good),
                  log_f64("tried_again_after_s", (double)news.pause_us * 1e-6));
    }
    if (news.has_returned) {
        log_event(h->log, LOG_INFO, "worker_returned", log_u64("worker", worker));
    }
}

/* Its next probe is sooner, if no worker of its model may be picked. */
static void probe_now(struct probe *p) {
    struct health *h = p->health;
    uint64_t soon_us = loop_now_us(h->loop) + down_interval_us(h);

    if (p->call || p->due_us <= soon_us || !registry_is_down(h->registry, p->worker)) return;
    p->due_us = loop_now_us(h->loop);
    loop_timer_start(&p->timer, 0);
}

void health_tick(struct health *h) {
    bool is_any_down = registry_any_down(h->registry, 1);

    for (uint32_t w = 0; w < h->config.max_workers; w++) {
        if (!h->probes[w].is_watched) continue;
        log_breaker_change(h, w);
        if (is_any_down) probe_now(&h->probes[w]);
    }
}

void health_stop(struct health *h) {
    for (uint32_t w = 0; w < h->config.max_workers; w++)
        health_unwatch(h, w);
}

void health_destroy(struct health *h) {
    if (!h) return;
    health_stop(h);
    mem_free(h->probes);
    mem_free(h);
}
