/* router/fleet/scrape.c - rounds over the workers, and the differences between two pages of one. */
#include "router/fleet/scrape.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/fleet/engine_stats.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

#define MAX_CALLS       8
#define MAX_QUERY_BYTES (256u << 10) /* 100 bytes for each GPU */
#define MAX_PAGE_BYTES  (4u << 20)   /* histograms with many labels: some hundred KB are usual */
#define PAUSE_SHARE     4            /* the least pause is this part of the interval */
#define MAX_SKIPPED     64           /* rounds between two tries of a worker without metrics */

struct engine {
    struct scrape *scrape;
    struct http_call *call; /* NULL: none */
    uint32_t worker, incarnation;
    uint32_t n_failures, n_skipped;  /* in a row; rounds since the last try */
    uint32_t n_lives;                /* restarts seen */
    bool was_asked_info;             /* since its start */
    bool has_engines, lacks_engines; /* as its bootstrap server answered last; neither: not asked */
    struct engine_stats last, now;   /* kind UNKNOWN: none */
};

struct scrape {
    struct loop *loop;
    struct http_client *client;
    struct registry *registry;
    struct log *log;
    struct scrape_config config;
    struct loop_timer timer;
    struct engine *engines; /* by worker id */
    uint32_t next, n_calls; /* of the round */
    uint64_t round_began_us;
};

static void pump(struct scrape *s);

/* --- what a page holds ------------------------------------------------------------------------ */

static bool fell(double before, double now) {
    return before >= 0 && now >= 0 && now < before;
}

static bool has_restarted(const struct engine *e) {
    return e->last.kind != e->now.kind || fell(e->last.prompt_tokens, e->now.prompt_tokens) ||
           fell(e->last.first_tokens, e->now.first_tokens) || e->last.start_s != e->now.start_s;
}

static double grown(double before, double now) {
    return before >= 0 && now >= before ? now - before : -1;
}

static int64_t gauge(double value) {
    return value >= 0 ? (int64_t)value : -1;
}

static void report_to_registry(struct engine *e) {
    const struct engine_stats *last = &e->last, *now = &e->now;
    struct registry_report report = {
        .running = gauge(now->running),
        .waiting = gauge(now->waiting),
        .kv_usage = now->kv_usage,
        .part = now->part,
        .counted = {.n_first_tokens = grown(last->first_tokens, now->first_tokens),
                    .prompt_tokens = grown(last->prompt_tokens, now->prompt_tokens),
                    .queried_tokens = grown(last->queried_tokens, now->queried_tokens),
                    .hit_tokens = grown(last->hit_tokens, now->hit_tokens)},
    };

    if (now->n_blocks >= 1 && now->block_size >= 1) {
        report.n_blocks = (uint64_t)now->n_blocks;
        report.block_size = (uint32_t)now->block_size;
    }
    /* The time of the start, or a count for engines that do not report it. */
    snprintf(report.generation, sizeof(report.generation), "%.3f-%u", MAX(now->start_s, 0),
             e->n_lives);
    registry_report(e->scrape->registry, e->worker, &report);
}

static void reset_engine(struct engine *e) {
    e->n_lives++;
    e->was_asked_info = false;
    e->last = e->now; /* no growth yet */
}

static void use_page(struct engine *e) {
    if (e->last.kind == ENGINE_UNKNOWN || has_restarted(e)) {
        reset_engine(e);
        log_event(e->scrape->log, LOG_INFO, "engine_metrics", log_u64("worker", e->worker),
                  log_z("kind", engine_kind_names[e->now.kind]), log_f64("blocks", e->now.n_blocks),
                  log_f64("block_size", e->now.block_size));
    } else {
        e->now.part = e->last.part; /* from /get_server_info */
        if (e->now.n_blocks < 0) {
            e->now.n_blocks = e->last.n_blocks;
            e->now.block_size = e->last.block_size;
        }
    }
    report_to_registry(e);
    e->last = e->now;
}

/* --- calls ------------------------------------------------------------------------------------ */

static void done(struct engine *e) {
    e->call = NULL;
    e->scrape->n_calls--;
    pump(e->scrape);
}

/* Uses the address that was resolved when the worker was added. */
static bool ask(struct engine *e, const struct registry_view *view, const char *path,
                http_client_fn *on_answer) {
    struct scrape *s = e->scrape;
    char url[REGISTRY_URL_MAX + 32];
    struct http_client_request request = {.url = url,
                                          .connect_to = view->address,
                                          .timeout_ms = s->config.timeout_ms,
                                          .max_body_bytes = MAX_PAGE_BYTES};

    snprintf(url, sizeof(url), "%s%s", view->url, path);
    return http_client_start(s->client, &request, on_answer, e, &e->call, NULL) == ST_OK;
}

/* The bootstrap server speaks http, at the worker's address. */
static bool ask_bootstrap(struct engine *e, const struct registry_view *view,
                          http_client_fn *on_answer) {
    const char *colon = strrchr(view->address, ':');
    char url[REGISTRY_URL_MAX + 32];
    struct http_client_request request = {
        .url = url, .timeout_ms = e->scrape->config.timeout_ms, .max_body_bytes = MAX_QUERY_BYTES};

    if (!colon) return false;
    snprintf(url, sizeof(url), "http://%.*s:%u/query", (int)(colon - view->address), view->address,
             (unsigned)view->part.bootstrap_port);
    return http_client_start(e->scrape->client, &request, on_answer, e, &e->call, NULL) == ST_OK;
}

/* The id may belong to another worker when an answer arrives. */
static bool is_still_there(const struct engine *e, struct registry_view *view) {
    return registry_get(e->scrape->registry, e->worker, view) &&
           view->incarnation == e->incarnation;
}

static void log_engines(struct engine *e, const struct registry_view *view,
                        const struct http_client_response *response) {
    struct log *log = e->scrape->log;

    if (e->has_engines) {
        log_event(log, LOG_INFO, "bootstrap_found", log_u64("worker", e->worker),
                  log_u64("port", view->part.bootstrap_port));
        return;
    }
    log_event(
        log, LOG_WARN, "bootstrap_unknown", log_u64("worker", e->worker),
        log_u64("port", view->part.bootstrap_port), log_i64("code", response->code),
        log_z("why", response->status == ST_OK ? "the answer names no engine" : response->message));
}

static void on_engines(const struct http_client_response *response, void *arg) {
    struct engine *e = arg;
    struct worker_engines engines = {0};
    struct registry_view view;
    bool is_known;

    if (is_still_there(e, &view)) {
        is_known = response->status == ST_OK && response->code == 200 &&
                   engine_stats_read_engines(&engines, response->body);
        registry_set_engines(e->scrape->registry, e->worker, e->incarnation, &engines);
        if (is_known ? !e->has_engines : !e->lacks_engines) {
            e->has_engines = is_known;
            e->lacks_engines = !is_known;
            log_engines(e, &view, response);
        }
    }
    done(e);
}

static bool ask_engines(struct engine *e, const struct registry_view *view) {
    return view->part.handover == HANDOVER_MOONCAKE && view->part.role != WORKER_DECODE &&
           ask_bootstrap(e, view, on_engines);
}

/* The last call of a worker's turn. */
static void finish(struct engine *e) {
    struct registry_view view;

    if (is_still_there(e, &view) && ask_engines(e, &view)) return;
    done(e);
}

static void on_info(const struct http_client_response *response, void *arg) {
    struct engine *e = arg;
    struct registry_view view;

    if (response->status == ST_OK && response->code == 200 && is_still_there(e, &view)) {
        engine_stats_read_info(&e->last, response->body);
        e->now = e->last;
        report_to_registry(e);
    }
    finish(e);
}

static void on_page(const struct http_client_response *response, void *arg) {
    struct engine *e = arg;
    struct registry_view view;

    e->call = NULL;
    if (!is_still_there(e, &view) || response->status != ST_OK || response->code != 200 ||
        !engine_stats_read_page(&e->now, response->body)) {
        e->n_failures++;
        finish(e);
        return;
    }
    e->n_failures = 0;
    use_page(e);
    if (e->now.kind == ENGINE_SGLANG && !e->was_asked_info) {
        e->was_asked_info = true;
        if (ask(e, &view, "/get_server_info", on_info)) return;
    }
    finish(e);
}

/* A worker without metrics is read in every 1st, 2nd, 4th ... round. */
static bool is_due(struct engine *e) {
    uint32_t wanted = e->n_failures < 6 ? (1u << e->n_failures) - 1 : MAX_SKIPPED - 1;

    if (e->n_skipped++ < wanted) return false;
    e->n_skipped = 0;
    return true;
}

static void begin_worker(struct scrape *s, uint32_t worker) {
    struct engine *e = &s->engines[worker];
    struct registry_view view;

    if (e->call || !registry_get(s->registry, worker, &view)) return;
    if (!view.is_described || !view.is_third_party) return;
    if (!e->scrape || e->incarnation != view.incarnation) {
        *e = (struct engine){.scrape = s, .worker = worker, .incarnation = view.incarnation};
    }
    if (is_due(e) ? ask(e, &view, "/metrics", on_page) : ask_engines(e, &view)) s->n_calls++;
}

/* Keeps calls open until the round is over. */
static void pump(struct scrape *s) {
    uint32_t n = MIN(registry_n_ids(s->registry), s->config.max_workers);
    uint64_t end_us, now_us;

    while (s->next < n && s->n_calls < MAX_CALLS)
        begin_worker(s, s->next++);
    if (s->next < n || s->n_calls > 0) return;
    end_us = s->round_began_us + s->config.interval_us;
    now_us = loop_now_us(s->loop);
    /* A pause follows even a round that took longer. */
    loop_timer_start(&s->timer,
                     MAX(end_us - MIN(end_us, now_us), s->config.interval_us / PAUSE_SHARE));
}

static void on_timer(void *arg) {
    struct scrape *s = arg;

    s->next = 0;
    s->round_began_us = loop_now_us(s->loop);
    pump(s);
}

struct scrape *scrape_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct log *log,
                             const struct scrape_config *config) {
    struct scrape *s = mem_zalloc(sizeof(*s));

    s->loop = loop;
    s->client = client;
    s->registry = registry;
    s->log = log;
    s->config = *config;
    s->engines = mem_calloc(config->max_workers, sizeof(*s->engines));
    loop_timer_init(&s->timer, loop, on_timer, s);
    loop_timer_start(&s->timer, MIN(config->interval_us, 100000u)); /* soon, for the cache sizes */
    return s;
}

void scrape_configure(struct scrape *s, const struct scrape_config *config) {
    s->config = *config;
    if (loop_timer_is_running(&s->timer))
        loop_timer_start(&s->timer, MIN(config->interval_us, 100000u));
}

void scrape_destroy(struct scrape *s) {
    if (!s) return;
    for (uint32_t w = 0; w < s->config.max_workers; w++)
        http_call_cancel(s->engines[w].call);
    loop_timer_fini(&s->timer);
    mem_free(s->engines);
    mem_free(s);
}
