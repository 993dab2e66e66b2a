/* router/router.c - the only place that knows all of the router's objects.
 *
 *      main thread = control loop                      router loops 1..n
 *      -------------------------------------           --------------------------------
 *      signals, admin port, health (libcurl),          frontend: listener, http_server,
 *      supervisor (--launch)                            proxy, upstream pool
 *              |                                                |
 *              +------------- registry (one lock) -------------+
 *
 * Life: listen (a port in use is said first) -> start workers -> ready -> serve -> a signal ->
 * settle (not ready, but still serving) -> drain the frontends -> end the workers -> gone. */
#include "router/router.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/http_client.h"
#include "common/loop.h"
#include "common/mailbox.h"
#include "common/mem.h"
#include "router/admin.h"
#include "router/certificates.h"
#include "router/admin_desk.h"
#include "router/fleet.h"
#include "router/follow.h"
#include "router/decision_log.h"
#include "router/frontend.h"
#include "router/handover.h"
#include "router/health.h"
#include "router/heartbeat.h"
#include "router/isolation.h"
#include "router/keys.h"
#include "router/launch.h"
#include "router/poison.h"
#include "router/prompt_hash.h"
#include "router/ready_message.h"
#include "router/registry.h"
#include "router/router_metrics.h"
#include "router/router_options.h"
#include "router/scrape.h"
#include "router/share.h"
#include "router/sources.h"
#include "router/succession.h"
#include "router/supervisor.h"

#define TICK_US           100000u
#define WORKER_STOP_US    5000000u /* what launched workers get after SIGTERM */
#define MAX_DEFAULT_LOOPS 8

struct router {
    const struct router_options *options;
    struct loop *loop;
    struct mailbox *box;
    struct log *log;
    struct metrics *metrics;
    struct registry *registry;
    struct keys *keys, *admin_keys;
    struct isolation isolation;
    struct certificates *certificates;
    struct http_client *client;
    struct health *health;
    struct scrape *scrape;
    struct follow *follow;          /* NULL: nothing is shared */
    struct share *share;            /* NULL: no --share-redis */
    struct decision_log *decisions; /* NULL: not kept */
    struct fleet *fleet;
    struct poison *poison;
    struct sources *sources;
    struct http_server *admin_server;
    struct admin admin;
    struct admin_desk *desk;
    struct supervisor *supervisor;
    struct frontend **frontends;
    uint32_t n_frontends, n_running, n_ready;
    struct succession *succession;
    struct loop_timer tick, deadline;
    uint64_t hash_secret; /* of prompts */
    uint64_t origin;      /* ours, for other routers; 0: nothing is shared */
    struct heartbeat heartbeat;
    struct error fatal;
    uint64_t started_us, n_restarts_counted;
    uint32_t n_signals; /* to end */
    _Atomic bool wants_drain;
    bool is_stopping, is_hurried, has_announced;
};

/* --- stopping ------------------------------------------------------------------------------------*/

static void end_loop(void *arg) {
    struct router *r = arg;

    loop_stop(r->loop);
}

static void workers_next(struct router *r) {
    if (!r->supervisor) {
        loop_stop(r->loop);
        return;
    }
    loop_timer_start(&r->deadline, WORKER_STOP_US);
    supervisor_stop(r->supervisor, end_loop, r);
}

static void drain_frontends(struct router *r, uint64_t settle_us, uint64_t timeout_us) {
    for (uint32_t i = 0; i < r->n_frontends; i++)
        frontend_drain(r->frontends[i], settle_us, timeout_us);
}

static void stop(struct router *r, uint64_t settle_us) {
    if (r->is_stopping) return;
    r->is_stopping = true;
    r->admin.is_draining = true;
    succession_leaving(r->succession);
    log_event(r->log, LOG_INFO, "router_draining");
    drain_frontends(r, settle_us, (uint64_t)r->options->drain_timeout_ms * 1000);
    if (r->n_running == 0) workers_next(r);
}

/* Who asks again does not want to wait for what is open: it is told, and ended. Who asks once more
 * wants nothing but the end. */
static void stop_now(struct router *r) {
    if (r->is_hurried || r->n_running == 0) {
        loop_stop(r->loop);
        return;
    }
    r->is_hurried = true;
    drain_frontends(r, 0, 0);
}

/* The only mail: a frontend's thread has ended. */
static void on_mail(struct mail *mail, void *arg) {
    struct router *r = arg;

    mem_free(mail);
    if (--r->n_running == 0) workers_next(r);
}

static void on_signal(int signo, void *arg) {
    struct router *r = arg;

    if (r->n_signals++) {
        stop_now(r);
        return;
    }
    /* Whoever presses a key waits for it; a service manager's signal has balancers behind it. */
    stop(r, signo == SIGTERM ? (uint64_t)r->options->drain_settle_ms * 1000 : 0);
}

/* What can be read again is; what is wrong is said, and the old stays. */
static void on_hangup(int signo, void *arg) {
    struct router *r = arg;
    struct error err = {0};

    (void)signo;
    succession_reload(r->succession, false);
    sources_reload(r->sources);
    if (keys_reload(r->keys, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "keys_not_reloaded", log_z("why", err.message));
    } else {
        log_event(r->log, LOG_INFO, "keys_reloaded", log_u64("keys", keys_count(r->keys)));
    }
    certificates_reload(r->certificates);
    if (r->decisions && decision_log_reopen(r->decisions, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "decision_log_not_reopened", log_z("why", err.message));
    }
    if (keys_reload(r->admin_keys, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "admin_keys_not_reloaded", log_z("why", err.message));
    }
    succession_reload(r->succession, true);
}

static void on_upgrade(int signo, void *arg) {
    (void)signo;
    succession_spawn(((struct router *)arg)->succession);
}

/* Another process accepts from our sockets: what is open here ends here, in its own time. */
static void on_succeeded(void *arg) {
    struct router *r = arg;

    if (r->is_stopping) return;
    r->is_stopping = true;
    succession_leaving(r->succession);
    log_event(r->log, LOG_INFO, "router_draining");
    http_server_leave_sockets(r->admin_server);
    http_server_announce_close(r->admin_server);
    for (uint32_t i = 0; i < r->n_frontends; i++) {
        frontend_leave(r->frontends[i], (uint64_t)r->options->drain_settle_ms * 1000,
                       (uint64_t)r->options->drain_timeout_ms * 1000);
    }
}

static void on_worker_fatal(const struct error *err, void *arg) {
    struct router *r = arg;

    r->fatal = *err;
    stop(r, 0);
    if (!r->has_announced) loop_stop(r->loop); /* nobody was served yet */
}

/* --- readiness -----------------------------------------------------------------------------------*/

static const char *scheme(const struct router *r) {
    return certificates_for_clients(r->certificates) ? "https" : "http";
}

static void print_ready_message(const struct router *r) {
    const struct router_options *o = r->options;
    const char *host = strcmp(o->host, "0.0.0.0") == 0 ? "127.0.0.1" : o->host;
    char name[WIRE_MODEL_MAX] = "", url[128];
    uint32_t len;

    snprintf(url, sizeof(url), "%s://%s:%u", scheme(r), host, frontend_port(r->frontends[0]));
    if (!registry_model(r->registry, 0, name, &len)) name[0] = '\0';
    ready_message_print(o->ready_message, url, name);
}

static void on_worker_ready(uint32_t worker, void *arg) {
    struct router *r = arg;
    double after_s = (double)(loop_now_us(r->loop) - r->started_us) * 1e-6;
    struct registry_view view;

    (void)registry_get(r->registry, worker, &view);
    if (r->has_announced || !fleet_is_from(r->fleet, worker, FLEET_LAUNCHED)) return;
    r->n_ready++;
    printf("worker %u of %u ready after %.1f s: %s serves %s on %s\n", r->n_ready,
           supervisor_count(r->supervisor), after_s, view.url, view.info.model, view.info.backend);
    if (r->n_ready == supervisor_count(r->supervisor)) {
        r->has_announced = true;
        printf("\nReady. ");
        print_ready_message(r);
    }
    fflush(stdout);
}

static void on_worker_hung(uint32_t worker, bool is_hung, void *arg) {
    struct router *r = arg;
    struct registry_view view;

    if (!registry_get(r->registry, worker, &view)) return;
    if (is_hung) {
        log_event(r->log, LOG_WARN, "worker_hung", log_u64("worker", worker),
                  log_z("url", view.url), log_u64("in_flight", view.in_flight));
    }
    for (uint32_t i = 0; i < r->n_frontends; i++)
        frontend_worker_hung(r->frontends[i], worker, view.incarnation, is_hung);
}

static void on_tick(void *arg) {
    struct router *r = arg;

    registry_tick(r->registry, loop_now_us(r->loop));
    if (r->wants_drain) stop(r, (uint64_t)r->options->drain_settle_ms * 1000);
    metric_reach(metrics_at(r->metrics, ROUTER_decision_log_dropped_total),
                 decision_log_n_dropped(r->decisions));
    if (r->fleet) fleet_tick(r->fleet, loop_now_us(r->loop));
    sources_tick(r->sources, r->metrics);
    if (r->supervisor) {
        uint64_t n = supervisor_restarts(r->supervisor);

        metric_add(metrics_at(r->metrics, ROUTER_worker_restarts_total), n - r->n_restarts_counted);
        r->n_restarts_counted = n;
    }
    loop_timer_start(&r->tick, TICK_US);
}

/* --- building ------------------------------------------------------------------------------------*/

/* Anybody who may log in here may read it. */
static void warn_of_readable(struct router *r, const char *path) {
    struct stat st;

    if (!path || stat(path, &st) != 0 || !(st.st_mode & S_IROTH)) return;
    log_event(r->log, LOG_WARN, "key_file_is_world_readable", log_z("file", path),
              log_z("remedy", "chmod 600"));
}

static enum status build_registry(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    struct registry_config config;

    routing_options_default(&config.routing);
    config.routing.policy = policy_find(str_of(policy_names[o->policy]));
    config.routing.policy_options = o->policy_options;
    hash_random(&config.routing.policy_options.seed, sizeof(config.routing.policy_options.seed));
    config.routing.max_workers = o->max_workers;
    config.routing.max_index_bytes = o->max_index_bytes;
    config.routing.prefix_block_bytes = o->prefix_block_bytes;
    config.admission = (struct admission_options){
        .queue_size = o->queue_size, .max_wait_us = (uint64_t)o->queue_timeout_ms * 1000};
    config.max_worker_requests = o->max_worker_requests;
    config.max_concurrent = o->max_concurrent_requests;
    config.routing.slow_start_us = (uint64_t)o->slow_start_ms * 1000;
    return registry_create(&r->registry, &config, err);
}

/* Where tenants are apart, equal chains are in one cache only under equal salts. */
static uint64_t scheme_of_hashes(const struct router *r) {
    const struct router_options *o = r->options;
    uint64_t secret = r->hash_secret;
    char salt[ISOLATION_SALT_CHARS + 1];

    if (o->isolate_by == ISOLATE_TENANT) {
        isolation_salt(&r->isolation, STR(""), STR_NULL, salt);
        secret = hash_64(salt, ISOLATION_SALT_CHARS, secret);
    }
    return prompt_hash_scheme(secret, o->prefix_block_bytes);
}

/* A router that starts anew is another one to the workers: what it had open is not open any more. */
static uint64_t choose_origin(const struct router_options *o) {
    uint64_t origin;

    if (o->share == SHARE_NONE && !o->share_redis) return 0;
    hash_random(&origin, sizeof(origin));
    return origin | 1;
}

/* Loops share their port, and so would another router of this user: look whether it is free. */
static enum status check_port(const struct router *r, struct error *err) {
    static const struct http_server_events none = {0};
    struct http_server *trial = http_server_create(r->loop, NULL, &none, NULL);
    enum status st =
        http_server_listen(trial, r->options->host, (uint16_t)r->options->port, false, err);

    http_server_destroy(trial);
    return st;
}

static enum status build_frontends(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = o->n_threads ? o->n_threads : (uint32_t)MIN(MAX(cores, 1), MAX_DEFAULT_LOOPS);
    bool wants_session = policy_find(str_of(policy_names[o->policy]))->uses_session;
    struct frontend_config config = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .share_port = n > 1,
        .tls = certificates_for_clients(r->certificates),
        .limits = {.max_connections = o->max_connections,
                   .max_body_bytes = o->max_body_bytes,
                   .head_timeout_ms = o->head_timeout_ms,
                   .idle_timeout_ms = o->idle_timeout_ms},
        .proxy = {.prefix_block_bytes = o->prefix_block_bytes,
                  .max_prefix_blocks =
                      (uint32_t)MAX(1, CEIL_DIV(o->max_prefix_bytes, o->prefix_block_bytes)),
                  .hash_secret = r->hash_secret,
                  .origin = o->share == SHARE_WORKERS ? r->origin : 0,
                  .scheme = scheme_of_hashes(r),
                  .queue_timeout_us = (uint64_t)o->queue_timeout_ms * 1000,
                  .request_timeout_us = (uint64_t)o->request_timeout_ms * 1000,
                  .first_byte_timeout_us = (uint64_t)o->first_byte_timeout_ms * 1000,
                  .stream_idle_timeout_us = (uint64_t)o->stream_idle_timeout_ms * 1000,
                  .poison = r->poison,
                  .connect_timeout_us = (uint64_t)o->connect_timeout_ms * 1000,
                  .upstream_idle_us = 60 * 1000000ull,
                  .worker_tls = certificates_for_workers(r->certificates),
                  .max_workers = o->max_workers,
                  .max_attempts = o->max_retries + 1,
                  .expose_worker_headers = o->expose_worker_headers,
                  .forward_authorization = o->forward_authorization,
                  .log_every = o->log_requests,
                  .log_rate = o->log_rate,
                  .decisions = r->decisions,
                  .keys = r->keys,
                  .session_headers = {o->session_headers.items,
                                      wants_session ? o->session_headers.n : 0},
                  .isolation = o->isolate_by == ISOLATE_TENANT ? &r->isolation : NULL,
                  .tenant_header = o->trust_tenant_header ? o->tenant_header : NULL},
        .control = r->box,
    };
    bool is_given = succession_has_sockets(r->succession);
    enum status st = n > 1 && !is_given ? check_port(r, err) : ST_OK;
    int sockets[HANDOVER_SOCKETS_MAX];

    if (st != ST_OK) return st;
    r->admin.dry_run = (struct dry_run){.registry = r->registry,
                                        .prefix_block_bytes = config.proxy.prefix_block_bytes,
                                        .max_prefix_blocks = config.proxy.max_prefix_blocks,
                                        .max_workers = o->max_workers,
                                        .hash_secret = config.proxy.hash_secret,
                                        .session_headers = config.proxy.session_headers,
                                        .is_isolated = config.proxy.isolation != NULL};
    r->frontends = mem_calloc(n, sizeof(*r->frontends));
    config.sockets = sockets;
    for (uint32_t i = 0; i < n; i++) {
        config.n_sockets =
            succession_client_sockets(r->succession, i, n, sockets, ARRAY_LEN(sockets));
        st = frontend_create(&r->frontends[i], &config, r->registry, r->metrics, r->log, &r->admin,
                             err);
        if (st != ST_OK) return st;
        config.port = frontend_port(r->frontends[0]);
        r->n_frontends++;
    }
    return ST_OK;
}

static void on_admin_request(struct http_request *req, void *arg) {
    struct router *r = arg;

    admin_handle(&r->admin, req, NULL);
}

static enum status on_admin_head(struct http_request *req, void *arg, struct error *err) {
    struct router *r = arg;

    return admin_check(&r->admin, req, NULL, err);
}

/* Beyond this machine its key goes over the wire. */
static struct tls *admin_tls(const struct router *r) {
    return router_is_loopback(r->options->admin_host) ? NULL
                                                      : certificates_for_clients(r->certificates);
}

static void adopt_admin(struct router *r) {
    http_server_adopt(r->admin_server, admin_tls(r), succession_admin_socket(r->succession));
}

static enum status build_admin(struct router *r, struct error *err) {
    static const struct http_server_events events = {.on_request = on_admin_request,
                                                     .on_head = on_admin_head};
    /* A body may be a request that /debug/route explains. */
    struct http_limits limits = {.max_body_bytes = r->options->max_body_bytes,
                                 .max_connections = 256};
    enum status st;

    r->admin_server = http_server_create(r->loop, &limits, &events, r);
    if (succession_admin_socket(r->succession) >= 0) {
        if (!succession_is_heir(r->succession)) adopt_admin(r); /* else when it is ready */
        return ST_OK;
    }
    st = http_server_listen_tls(r->admin_server, admin_tls(r), r->options->admin_host,
                                (uint16_t)r->options->admin_port, false, err);
    return st == ST_OK ? st : error_prefix(err, "admin port (--admin-port)");
}

static enum status start_workers(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    enum status st = launch_workers(&r->supervisor, o, r->loop, r->log, on_worker_fatal, r, err);
    uint32_t n = st == ST_OK ? supervisor_count(r->supervisor) : 0;
    char url[64];

    if (st != ST_OK) return st;
    printf("incipit-router " INCIPIT_VERSION ": %s://%s:%u, admin on port %u; starting %u "
           "worker%s%s%s\n",
           scheme(r), o->host, frontend_port(r->frontends[0]), http_server_port(r->admin_server), n,
           n == 1 ? "" : "s", o->model ? " on " : "", o->model ? o->model : "");
    fflush(stdout);
    for (uint32_t i = 0; st == ST_OK && i < n; i++) {
        struct discovery_worker worker = {0};

        snprintf(url, sizeof(url), "http://127.0.0.1:%u", supervisor_port(r->supervisor, i));
        st = address_split(str_of(url), &worker.url, err);
        if (st == ST_OK) fleet_add(r->fleet, FLEET_LAUNCHED, &worker, NULL, NULL);
    }
    return st;
}

/* --- the fleet -----------------------------------------------------------------------------------*/

static enum status build_fleet(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    struct fleet_config config = {.certificates = r->certificates,
                                  .drain_timeout_us = (uint64_t)o->drain_timeout_ms * 1000};
    enum status st = sources_guards(&config, o, err);

    if (st == ST_OK) {
        st = fleet_create(&r->fleet, r->loop, r->registry, r->health, r->log, &config, err);
    }
    if (st == ST_OK) {
        st = admin_desk_create(&r->desk, r->loop, r->registry, r->fleet, r->client, err);
    }
    return st;
}

static enum status build_sources(struct router *r, struct error *err) {
    enum status st =
        sources_create(&r->sources, r->loop, r->fleet, r->registry, r->log, r->options, err);

    r->admin.sources = r->sources;
    return st;
}

/* What other routers send is told by the workers, or, of workers that do not, by the routers. */
static enum status build_sharing(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    uint64_t scheme = scheme_of_hashes(r);
    struct follow_config follow = {.origin = r->origin,
                                   .scheme = scheme,
                                   .block_bytes = o->prefix_block_bytes,
                                   .max_workers = o->max_workers,
                                   .silence_ms = FOLLOW_SILENCE_MS,
                                   .patience_us = FOLLOW_PATIENCE_US};
    struct share_config share = {.url = o->share_redis,
                                 .password = o->share_redis_password,
                                 .key = o->share_redis_key,
                                 .max_entries = o->share_redis_entries,
                                 .origin = r->origin,
                                 .scheme = scheme,
                                 .block_bytes = o->prefix_block_bytes,
                                 .patience_us = SHARE_PATIENCE_US};

    if (o->share == SHARE_WORKERS) {
        r->follow = follow_create(r->loop, r->client, r->registry, r->metrics, r->log, &follow);
    }
    if (!o->share_redis) return ST_OK;
    return share_create(&r->share, r->loop, r->registry, r->metrics, r->log, &share, err);
}

static enum status build_control(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    struct scrape_config scrape = {.interval_us = (uint64_t)o->engine_metrics_interval_ms * 1000,
                                   .timeout_ms = o->probe_timeout_ms,
                                   .max_workers = o->max_workers};
    struct health_config health = {.interval_us = (uint64_t)o->probe_interval_ms * 1000,
                                   .timeout_ms = o->probe_timeout_ms,
                                   .n_misses = o->probe_misses,
                                   .n_hits = o->probe_hits,
                                   .max_workers = o->max_workers,
                                   .path = o->probe_path,
                                   .on_hung = on_worker_hung};
    const struct http_client_trust trust = {.ca = o->worker_ca,
                                            .cert = o->worker_cert,
                                            .key = o->worker_key,
                                            .is_insecure = o->worker_tls_insecure};
    enum status st = loop_create(&r->loop, err);

    if (st == ST_OK) st = mailbox_open(&r->box, r->loop, on_mail, r, err);
    if (st == ST_OK) st = loop_on_signal(r->loop, SIGTERM, on_signal, r, err);
    if (st == ST_OK) st = loop_on_signal(r->loop, SIGINT, on_signal, r, err);
    if (st == ST_OK) st = loop_on_signal(r->loop, SIGHUP, on_hangup, r, err);
    if (st == ST_OK) st = loop_on_signal(r->loop, SIGUSR2, on_upgrade, r, err);
    if (st == ST_OK) {
        st = isolation_init(&r->isolation, o->isolation_secret_file, o->isolation_secret, err);
    }
    if (st == ST_OK) succession_keep_salts(r->succession, &r->isolation);
    if (st == ST_OK) st = certificates_open(&r->certificates, o, r->log, r->metrics, err);
    if (st == ST_OK) st = keys_create(&r->keys, o->api_keys_file, o->api_key, err);
    if (st == ST_OK) {
        st = keys_create(&r->admin_keys, o->admin_api_key_file, o->admin_api_key, err);
    }
    if (st == ST_OK && o->decision_log) {
        st = decision_log_open(&r->decisions, o->decision_log, o->decision_log_secret_file, err);
    }
    if (st == ST_OK) st = http_client_create(&r->client, r->loop, err);
    if (st == ST_OK) st = build_registry(r, err);
    if (st != ST_OK) return st;
    http_client_trust(r->client, &trust);
    heartbeat_start(&r->heartbeat, r->loop,
                    METRICS_GET(r->metrics, ROUTER_loop_lag_seconds, "control"),
                    METRICS_GET(r->metrics, ROUTER_loop_turn_seconds, "control"));
    loop_timer_init(&r->tick, r->loop, on_tick, r);
    loop_timer_init(&r->deadline, r->loop, end_loop, r);
    on_tick(r); /* before the first worker is heard of: slow starts begin at a time */
    r->health = health_create(r->loop, r->client, r->registry, r->log, &health, on_worker_ready, r);
    if (o->engine_metrics_interval_ms) {
        r->scrape = scrape_create(r->loop, r->client, r->registry, r->log, &scrape);
    }
    st = build_sharing(r, err);
    if (st != ST_OK) return st;
    r->started_us = loop_now_us(r->loop);
    return build_fleet(r, err);
}

enum status router_create(struct router **out, const struct router_options *options,
                          struct error *err) {
    struct router *r = mem_zalloc(sizeof(*r));
    struct log_config log = {.fd = 2,
                             .level = (enum log_level)options->log_level,
                             .format = (enum log_format)options->log_format,
                             .max_per_s = options->log_rate,
                             .is_async = true};
    enum status st = router_options_check(options, err);

    *out = NULL;
    r->options = options;
    if (st != ST_OK) goto fail;
    r->log = log_create(&log);
    r->metrics = router_metrics_create();
    st = succession_open(&r->succession, options, r->log, err);
    if (st != ST_OK) goto fail;
    r->hash_secret = succession_hash_seed(r->succession);
    r->origin = choose_origin(options);
    r->poison = poison_create((uint64_t)options->poison_memory_ms * 1000);
    st = build_control(r, err);
    if (st != ST_OK) goto fail;
    r->admin.registry = r->registry;
    r->admin.wants_drain = &r->wants_drain;
    r->admin.keys = r->admin_keys;
    r->admin.desk = r->desk;
    r->admin.is_on_main = options->is_admin_on_main;
    r->admin.metrics = r->metrics;
    r->admin.log = r->log;
    registry_measure(r->registry, metrics_at(r->metrics, ROUTER_decision_seconds));
    r->admin.started_wall_s = clock_wall_us() / 1000000;
    st = build_frontends(r, err);
    if (st == ST_OK) st = build_admin(r, err);
    if (st == ST_OK) st = build_sources(r, err);
    if (st == ST_OK && options->launch) st = start_workers(r, err);
    if (st != ST_OK) goto fail;
    *out = r;
    return ST_OK;
fail:
    router_destroy(r);
    return st;
}

/* From here on requests come. */
static enum status serve(struct router *r, struct error *err) {
    int sockets[HANDOVER_SOCKETS_MAX], admin;
    uint32_t n = 0;
    enum status st;

    for (uint32_t i = 0; i < r->n_frontends; i++)
        n += frontend_sockets(r->frontends[i], sockets + n, HANDOVER_SOCKETS_MAX - n);
    for (uint32_t i = 0; i < r->n_frontends; i++) {
        st = frontend_start(r->frontends[i], err);
        if (st != ST_OK) return st;
        r->n_running++;
    }
    if (http_server_sockets(r->admin_server, &admin, 1) == 0) {
        adopt_admin(r);
        admin = succession_admin_socket(r->succession);
    }
    log_event(r->log, LOG_INFO, "router_listening", log_z("host", r->options->host),
              log_u64("port", frontend_port(r->frontends[0])),
              log_u64("admin_port", http_server_port(r->admin_server)),
              log_u64("loops", r->n_frontends), log_z("policy", policy_names[r->options->policy]));
    return succession_serving(r->succession, sockets, n, admin, err);
}

/* Now, or when there is nothing left to wait for of a predecessor. */
static void on_ready(enum status st, const struct error *err, void *arg) {
    struct router *r = arg;

    if (st == ST_OK) {
        st = serve(r, &r->fatal);
    } else {
        r->fatal = *err;
    }
    if (st != ST_OK) loop_stop(r->loop);
}

static void warn(struct router *r) {
    if (!router_is_loopback(r->options->host) && !keys_are_needed(r->keys)) {
        log_event(r->log, LOG_WARN, "clients_need_no_key", log_z("host", r->options->host),
                  log_z("why", "other machines may send requests, and no key is asked of them: see "
                               "--api-keys-file"));
    }
    if (r->options->isolate_by == ISOLATE_TENANT && r->isolation.is_random) {
        log_event(r->log, LOG_WARN, "isolation_secret_is_random",
                  log_z("why", "tenants' cached prompts are lost with this process, and other "
                               "routers cannot use them: see --isolation-secret-file"));
    }
    warn_of_readable(r, r->options->api_keys_file);
    warn_of_readable(r, r->options->admin_api_key_file);
}

enum status router_run(struct router *r, struct error *err) {
    const struct succession_events events = {on_ready, on_succeeded, r};

    warn(r);
    succession_prepare(r->succession, r->loop, r->registry, r->fleet, scheme_of_hashes(r), &events);
    if (r->fatal.status == ST_OK) loop_run(r->loop);
    succession_save(r->succession);
    if (err) *err = r->fatal;
    return r->fatal.status;
}

void router_destroy(struct router *r) {
    struct list unread, *link;

    if (!r) return;
    list_init(&unread);
    for (uint32_t i = 0; i < r->n_frontends; i++) {
        if (r->n_running > 0) frontend_drain(r->frontends[i], 0, 0);
        frontend_destroy(r->frontends[i]);
    }
    mem_free(r->frontends);
    supervisor_destroy(r->supervisor);
    succession_close(r->succession);
    http_server_destroy(r->admin_server);
    scrape_destroy(r->scrape);
    admin_desk_destroy(r->desk);
    sources_destroy(r->sources);
    fleet_destroy(r->fleet);
    health_destroy(r->health);
    follow_destroy(r->follow);
    share_destroy(r->share);
    http_client_destroy(r->client);
    heartbeat_stop(&r->heartbeat);
    loop_timer_fini(&r->tick);
    loop_timer_fini(&r->deadline);
    if (r->box) mailbox_take(r->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        mem_free(mail_of(link));
    mailbox_close(r->box);
    registry_destroy(r->registry);
    poison_destroy(r->poison);
    keys_destroy(r->keys);
    certificates_close(r->certificates);
    keys_destroy(r->admin_keys);
    loop_destroy(r->loop);
    decision_log_close(r->decisions);
    metrics_destroy(r->metrics);
    log_destroy(r->log);
    mem_free(r);
}
