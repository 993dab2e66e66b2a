/* router/router.c - the only place that knows all of the router's objects.
 *
 *      main thread = control loop                      router loops 1..n
 *      -------------------------------------           --------------------------------
 *      signals, admin port, health (libcurl),          frontend: listener, http_server,
 *      supervisor (--launch)                            proxy, upstream pool
 *              |                                                |
 *              +------------- registry (one lock) -------------+
 *
 * Stages: listen (a port in use is reported first) -> start workers -> ready -> serve -> a signal
 * -> settle (not ready, but still serving) -> drain the frontends -> end the workers -> exit. */
#include "router/router.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/body_budget.h"
#include "common/http/http_client.h"
#include "common/net/file_watch.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"
#include "common/telemetry/loop_lag.h"
#include "router/access/certificates.h"
#include "router/access/isolation.h"
#include "router/access/keys.h"
#include "router/access/refusals.h"
#include "router/admin/admin.h"
#include "router/admin/admin_commands.h"
#include "router/fleet/fleet.h"
#include "router/fleet/health.h"
#include "router/fleet/scrape.h"
#include "router/fleet/supervisor.h"
#include "router/frontend.h"
#include "router/holds/holds.h"
#include "router/kv/kv_events.h"
#include "router/launch.h"
#include "router/metrics/router_metrics.h"
#include "router/options/router_options.h"
#include "router/poison/poison.h"
#include "router/proxy/decision_log.h"
#include "router/ready_message.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "router/router_internal.h"
#include "router/sharing/follow.h"
#include "router/sharing/share.h"
#include "router/upgrade/handover.h"
#include "router/upgrade/takeover.h"
#include "router/worker_sources.h"

#define TICK_US        100000u
#define FORGIVEN_US    2000000u /* window before all workers of a model were lost */
#define WORKER_STOP_US 5000000u /* time of launched workers after SIGTERM */

/* --- stopping --------------------------------------------------------------------------------- */

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
    health_stop(r->health);
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
    takeover_draining(r->takeover);
    log_event(r->log, LOG_INFO, "router_draining");
    drain_frontends(r, settle_us, (uint64_t)r->options->drain_timeout_ms * 1000);
    if (r->n_running == 0) workers_next(r);
}

/* A second signal ends open requests with an error; a third exits at once. */
static void stop_now(struct router *r) {
    if (r->is_hurried || r->n_running == 0) {
        loop_stop(r->loop);
        return;
    }
    r->is_hurried = true;
    drain_frontends(r, 0, 0);
}

/* Mail: a frontend's thread has ended. */
static void on_mail(struct mail *mail, void *arg) {
    struct router *r = arg;

    mem_free(mail);
    if (--r->n_running == 0) workers_next(r);
}

static const struct admin_asker by_signal = {.name = "none", .address = "signal"};

/* Who sends a signal may start and end us anyway: that it came is what the log keeps. */
static void log_signal(const struct router *r, const char *name) {
    admin_log_change(r->log, &by_signal, name, "", 0);
}

static void on_signal(int signo, void *arg) {
    struct router *r = arg;

    log_signal(r, signo == SIGTERM ? "SIGTERM" : "SIGINT");
    if (r->n_signals++) {
        stop_now(r);
        return;
    }
    /* Ctrl-C skips the settle time, which is for balancers. */
    stop(r, signo == SIGTERM ? (uint64_t)r->options->drain_settle_ms * 1000 : 0);
}

static void reload_worker_key(struct router *r) {
    char key[KEYS_TEXT_MAX];
    struct error err = {0};

    if (router_read_worker_key(r->options, key, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "worker_key_not_reloaded", log_z("why", err.message));
    } else if (strcmp(key, r->worker_key) != 0) {
        router_use_worker_key(r, key);
        log_event(r->log, LOG_INFO, "worker_key_reloaded");
    }
}

/* Reloads certificates and keys whose files have changed: a container gets no signal when its
 * Secret is renewed. An invalid file is logged and the old content stays. */
void router_reload_secrets(void *arg) {
    struct router *r = arg;
    struct error err = {0};

    if (keys_reload(r->keys, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "keys_not_reloaded", log_z("why", err.message));
    } else {
        log_event(r->log, LOG_INFO, "keys_reloaded", log_u64("keys", keys_count(r->keys)));
    }
    if (keys_reload(r->admin_keys, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "admin_keys_not_reloaded", log_z("why", err.message));
    }
    reload_worker_key(r);
    certificates_reload(r->certificates);
}

/* Reloads everything that can be reloaded. */
static void on_hangup(int signo, void *arg) {
    struct router *r = arg;
    struct error err = {0};

    (void)signo;
    log_signal(r, "SIGHUP");
    takeover_reload(r->takeover, false);
    admin_config_reload(&r->config, &by_signal);
    worker_sources_reload(r->sources);
    file_watch_know(r->secrets);
    router_reload_secrets(r);
    if (r->decisions && decision_log_reopen(r->decisions, &err) != ST_OK) {
        log_event(r->log, LOG_ERROR, "decision_log_not_reopened", log_z("why", err.message));
    }
    takeover_reload(r->takeover, true);
}

static void on_upgrade(int signo, void *arg) {
    struct router *r = arg;

    (void)signo;
    log_signal(r, "SIGUSR2");
    takeover_spawn(r->takeover);
}

/* A successor accepts from our sockets: open requests finish here within the drain time. */
static void on_succeeded(void *arg) {
    struct router *r = arg;

    if (r->is_stopping) return;
    r->is_stopping = true;
    takeover_draining(r->takeover);
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
    if (!r->has_announced) loop_stop(r->loop); /* it has not served yet */
}

/* --- readiness -------------------------------------------------------------------------------- */

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

/* A request may lose two workers: when more are gone, that request was not the cause. */
static void forgive_if_all_are_gone(struct router *r) {
    uint64_t now_us = loop_now_us(r->loop);

    if (!poison_is_empty(r->poison) && registry_any_down(r->registry, POISON_LOST + 1))
        poison_forgive(r->poison, now_us - MIN(now_us, FORGIVEN_US));
}

static void on_tick(void *arg) {
    struct router *r = arg;

    registry_tick(r->registry, loop_now_us(r->loop));
    refusals_tick(r->refusals, loop_now_us(r->loop));
    if (r->health) health_tick(r->health);
    forgive_if_all_are_gone(r);
    if (r->wants_drain) stop(r, (uint64_t)r->options->drain_settle_ms * 1000);
    metric_reach(metrics_at(r->metrics, ROUTER_decision_log_dropped_total),
                 decision_log_n_dropped(r->decisions));
    if (r->fleet) fleet_tick(r->fleet, loop_now_us(r->loop));
    worker_sources_tick(r->sources, r->metrics);
    if (r->supervisor) {
        uint64_t n = supervisor_restarts(r->supervisor);

        metric_add(metrics_at(r->metrics, ROUTER_worker_restarts_total), n - r->n_restarts_counted);
        r->n_restarts_counted = n;
    }
    loop_timer_start(&r->tick, TICK_US);
}

/* --- building --------------------------------------------------------------------------------- */

/* Warns when every user of the machine can read the file. */
static void warn_of_readable(struct router *r, const char *path) {
    struct stat st;

    if (!path || stat(path, &st) != 0 || !(st.st_mode & S_IROTH)) return;
    log_event(r->log, LOG_WARN, "key_file_is_world_readable", log_z("file", path),
              log_z("remedy", "chmod 600"));
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

static enum status build_sources(struct router *r, struct error *err) {
    enum status st =
        worker_sources_create(&r->sources, r->loop, r->fleet, r->registry, r->log, r->options, err);

    r->admin.sources = r->sources;
    r->admin.is_synced = worker_sources_are_synced;
    worker_sources_tick(r->sources, r->metrics); /* before readiness is reported */
    return st;
}

/* The name by which this router recognizes its own requests in a loop. */
static void choose_name(struct router *r) {
    uint64_t id;

    hash_random(&id, sizeof(id));
    snprintf(r->name, sizeof(r->name), WIRE_ROUTER_NAME "%016llx", (unsigned long long)id);
}

/* Derives a common salt secret from the hash seed that replicas and restarts share. A short seed
 * could be guessed and is not used. */
static void share_salts(struct router *r) {
    const struct router_options *o = r->options;
    uint8_t seed[sizeof(r->hash_secret)];

    if (!r->isolation.is_random) return;
    if (o->prefix_hash_seed) {
        size_t n = strlen(o->prefix_hash_seed);

        if (n >= ISOLATION_SECRET_MIN) isolation_derive(&r->isolation, o->prefix_hash_seed, n);
    } else if (o->state_dir) {
        for (size_t i = 0; i < sizeof(seed); i++)
            seed[i] = (uint8_t)(r->hash_secret >> (8 * i));
        isolation_derive(&r->isolation, seed, sizeof(seed));
    }
}

static enum status open_certificates(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    const struct certificates_config config = {.cert = o->tls_cert_path,
                                               .key = o->tls_key_path,
                                               .worker_ca = o->worker_ca,
                                               .worker_cert = o->worker_cert,
                                               .worker_key = o->worker_key,
                                               .is_worker_insecure = o->worker_tls_insecure};

    return certificates_open(&r->certificates, &config, r->log, r->metrics, err);
}

/* The error of a file that cannot be read names its flag. */
static enum status create_keys(struct keys **out, const char *flag, const char *file,
                               const char *single, struct error *err) {
    enum status st = keys_create(out, file, single, err);

    if (file && st != ST_OK && st != ST_INVALID) error_prefix(err, "%s", flag);
    return st;
}

static enum status build_control(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    struct scrape_config scrape = router_scrape_config(r);
    const struct kv_events_config kv = {.mode = (enum kv_events_mode)o->kv_events,
                                        .memory_bytes = o->kv_events_memory,
                                        .max_workers = o->max_workers};
    struct health_config health = router_health_config(r);
    char worker_key[KEYS_TEXT_MAX];
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
    if (st == ST_OK) share_salts(r);
    if (st == ST_OK) takeover_keep_salts(r->takeover, &r->isolation);
    if (st == ST_OK) router_watch_secrets(r);
    if (st == ST_OK) st = open_certificates(r, err);
    if (st == ST_OK) {
        st = create_keys(&r->keys, "--api-keys-file", o->api_keys_file, o->api_key, err);
    }
    if (st == ST_OK) {
        st = create_keys(&r->admin_keys, "--admin-api-key-file", o->admin_api_key_file,
                         o->admin_api_key, err);
    }
    if (st == ST_OK && o->decision_log) {
        st = decision_log_open(&r->decisions, o->decision_log, o->decision_log_secret_file, err);
    }
    if (st == ST_OK) st = http_client_create(&r->client, r->loop, err);
    if (st == ST_OK) st = router_build_registry(r, err);
    if (st != ST_OK) return st;
    http_client_trust(r->client, &trust);
    if ((st = router_read_worker_key(o, worker_key, err)) != ST_OK) return st;
    router_use_worker_key(r, worker_key);
    health.on_hung = on_worker_hung;
    loop_lag_start(&r->loop_lag, r->loop,
                   METRICS_GET(r->metrics, ROUTER_loop_lag_seconds, "control"),
                   METRICS_GET(r->metrics, ROUTER_loop_turn_seconds, "control"));
    loop_timer_init(&r->tick, r->loop, on_tick, r);
    loop_timer_init(&r->deadline, r->loop, end_loop, r);
    on_tick(r); /* before the first worker: slow starts need the time */
    r->health = health_create(r->loop, r->client, r->registry, r->log, &health, on_worker_ready, r);
    if (o->engine_metrics_interval_ms) {
        r->scrape = scrape_create(r->loop, r->client, r->registry, r->log, &scrape);
    }
    r->kv_events = kv_events_create(r->loop, r->client, r->registry, r->metrics, r->log, &kv);
    st = router_build_sharing(r, err);
    if (st != ST_OK) return st;
    r->started_us = loop_now_us(r->loop);
    return router_build_fleet(r, err);
}

static enum status open_takeover(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    const struct takeover_config config = {.handover = o->handover,
                                           .state_dir = o->state_dir,
                                           .hash_seed = o->prefix_hash_seed,
                                           .port = o->port,
                                           .admin_port = o->admin_port,
                                           .handover_wait_ms = o->handover_wait_ms};

    return takeover_open(&r->takeover, &config, r->log, err);
}

/* These go with the next version. */
static const struct log_renamed renamed[] = {
    {"worker_draining_for_removal", "worker_leaving"},
    {"worker_undrained", "worker_stays"},
    {"worker_protocol_newer", "worker_speaks_newer_wire"},
    {"worker_events_lost", "worker_not_followed"},
    {"router_replaced", "router_succeeded"},
    {"index_restored", "index_recalled"},
    {"index_restore_failed", "index_not_recalled"},
    {"discovery_truncated", "discovery_left_out"},
    {"kube_list_deferred", "kube_list_put_off"},
    {"gpu_unused", "gpu_left_over"},
    {"gpu_query_failed", "gpus_unknown"},
    {NULL, NULL},
};

enum status router_create(struct router **out, const struct router_options *options,
                          struct options *live, struct error *err) {
    struct router *r = mem_zalloc(sizeof(*r));
    struct log_config log = {.fd = 2,
                             .level = (enum log_level)options->log_level,
                             .format = (enum log_format)options->log_format,
                             .max_per_s = options->log_rate,
                             .other = {"request", options->log_requests_rate},
                             .renamed = renamed,
                             .is_async = true};
    enum status st = router_options_check(options, err);

    *out = NULL;
    r->options = options;
    if (st != ST_OK) goto fail;
    r->log = log_create(&log);
    r->metrics = router_metrics_create();
    r->refusals = refusals_create(r->metrics, r->log);
    st = open_takeover(r, err);
    if (st != ST_OK) goto fail;
    r->hash_secret = takeover_hash_seed(r->takeover);
    r->origin = router_choose_origin(options);
    choose_name(r);
    r->poison = poison_create((uint64_t)options->poison_memory_ms * 1000);
    st = build_control(r, err);
    if (st != ST_OK) goto fail;
    r->admin.registry = r->registry;
    r->admin.wants_drain = &r->wants_drain;
    r->admin.keys = r->admin_keys;
    r->config = (struct admin_config){live, r->log, router_prepare_change, router_finish_change, r};
    r->admin.commands = r->commands;
    r->admin.is_on_main = options->is_admin_on_main;
    r->admin.name = r->name;
    r->admin.metrics = r->metrics;
    r->admin.log = r->log;
    r->admin.refusals = r->refusals;
    registry_measure(r->registry, metrics_at(r->metrics, ROUTER_decision_seconds));
    r->admin.started_wall_s = clock_wall_us() / 1000000;
    st = router_build_frontends(r, err);
    if (st == ST_OK) st = router_build_admin(r, err);
    if (st == ST_OK) st = build_sources(r, err);
    if (st == ST_OK && options->launch) st = start_workers(r, err);
    if (st != ST_OK) goto fail;
    admin_commands_set_config(r->commands, &r->config);
    *out = r;
    return ST_OK;
fail:
    router_destroy(r);
    return st;
}

/* Requests arrive from here on. */
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
        router_take_admin_socket(r);
        admin = takeover_admin_socket(r->takeover);
    }
    log_event(r->log, LOG_INFO, "router_listening", log_z("host", r->options->host),
              log_u64("port", frontend_port(r->frontends[0])),
              log_u64("admin_port", http_server_port(r->admin_server)),
              log_u64("loops", r->n_frontends), log_z("policy", policy_names[r->options->policy]));
    return takeover_serving(r->takeover, sockets, n, admin, err);
}

/* Now, or when the predecessor's state is restored. */
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
    if (router_has_tenants(r->options) && !router_isolates(r->options)) {
        log_event(r->log, LOG_WARN, "tenants_share_caches",
                  log_z("why", "any client can find out, prefix by prefix, what others have sent: "
                               "see --isolate-by"));
    }
    if (router_isolates(r->options) && r->isolation.is_random) {
        log_event(r->log, LOG_WARN, "isolation_secret_is_random",
                  log_z("why", "tenants' cached prompts are lost with this process, and other "
                               "routers cannot use them: see --isolation-secret-file"));
    }
    warn_of_readable(r, r->options->api_keys_file);
    warn_of_readable(r, r->options->admin_api_key_file);
    warn_of_readable(r, r->options->isolation_secret_file);
    warn_of_readable(r, r->options->decision_log_secret_file);
    warn_of_readable(r, r->options->tls_key_path);
    warn_of_readable(r, r->options->worker_key);
    warn_of_readable(r, r->options->worker_api_key_file);
}

enum status router_run(struct router *r, struct error *err) {
    const struct takeover_events events = {on_ready, on_succeeded, r};
    const struct snapshot_source index = {r->registry, r->follow, router_hash_scheme(r)};

    warn(r);
    takeover_prepare(r->takeover, r->loop, r->fleet, &index, &events);
    if (r->fatal.status == ST_OK) loop_run(r->loop);
    takeover_save(r->takeover);
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
    takeover_close(r->takeover);
    http_server_destroy(r->admin_server);
    scrape_destroy(r->scrape);
    kv_events_destroy(r->kv_events);
    admin_commands_destroy(r->commands);
    holds_destroy(r->holds);
    worker_sources_destroy(r->sources);
    fleet_destroy(r->fleet);
    health_destroy(r->health);
    follow_destroy(r->follow);
    share_destroy(r->share);
    http_client_destroy(r->client);
    loop_lag_stop(&r->loop_lag);
    loop_timer_fini(&r->tick);
    loop_timer_fini(&r->deadline);
    if (r->box) mailbox_take(r->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        mem_free(mail_of(link));
    mailbox_close(r->box);
    registry_destroy(r->registry);
    poison_destroy(r->poison);
    refusals_destroy(r->refusals);
    keys_destroy(r->keys);
    certificates_close(r->certificates);
    keys_destroy(r->admin_keys);
    file_watch_destroy(r->secrets);
    loop_destroy(r->loop);
    body_budget_destroy(r->bodies);
    decision_log_close(r->decisions);
    metrics_destroy(r->metrics);
    log_destroy(r->log);
    mem_free(r);
}
