/* router/router_build.c - builds the parts of a router from its options.
 *
 *      registry ──▶ sharing ──▶ fleet, admin commands ──▶ frontends ──▶ admin port
 *
 * Options become the configuration of each part here and nowhere else. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/body_budget.h"
#include "common/http/http_client.h"
#include "common/net/file_watch.h"
#include "common/options/options_live.h"
#include "common/options/process_limits.h"
#include "common/telemetry/log.h"
#include "router/access/certificates.h"
#include "router/admin/admin_commands.h"
#include "router/fleet/fleet.h"
#include "router/frontend.h"
#include "router/holds/holds.h"
#include "router/kv/kv_events.h"
#include "router/metrics/router_metrics.h"
#include "router/options/router_options.h"
#include "router/poison/poison.h"
#include "router/prompt/prompt_hash.h"
#include "router/proxy/retry.h"
#include "router/registry/registry.h"
#include "router/router_internal.h"
#include "router/sharing/follow.h"
#include "router/sharing/share.h"
#include "router/upgrade/handover.h"
#include "router/upgrade/takeover.h"
#include "router/worker_sources.h"

#define MAX_DEFAULT_LOOPS 8

#define MAX_DEFAULT_BODY_MEMORY (UINT64_C(1) << 30)

/* Descriptors reserved from clients. A request in flight needs one to its worker as well. */
#define ADMIN_CONNECTIONS   256u /* at most this many, and at most */
#define ADMIN_PART          32u  /* one in so many of all descriptors */
#define ADMIN_LEAST         8u
#define PROCESS_DESCRIPTORS 64u /* listeners, logs, watched files, discovery */
#define LOOP_DESCRIPTORS    8u  /* of each loop */
#define WORKER_DESCRIPTORS                                                                         \
    3u /* of each worker: probes, metrics, events; at most a quarter of all */
#define LEAST_CONNECTIONS 4u

/* --queue-size auto. Requests that wait for a backlog would be in the workers' queues otherwise,
 * which have room for thousands. */
#define HELD_QUEUE_SIZE 10000
#define FULL_QUEUE_SIZE 100

/* Policies of other systems are compared with those systems, which hold nothing. */
static struct hold_options hold_options_of(const struct router_options *o) {
    struct hold_options hold = {.max_wait_us = (uint64_t)o->queue_timeout_ms * 1000};

    if (o->hold_ms != HOLD_AUTO) {
        hold.fcfs_s = hold.srpt_s = o->hold_ms * 1e-3;
    } else if (policy_find(str_of(policy_names[o->policy])) == &policy_prefix) {
        hold.fcfs_s = HOLD_FCFS_S;
        hold.srpt_s = HOLD_SRPT_S;
    }
    hold.queue_size = o->queue_size;
    if (o->queue_size == QUEUE_AUTO)
        hold.queue_size = hold.fcfs_s > 0 ? HELD_QUEUE_SIZE : FULL_QUEUE_SIZE;
    return hold;
}

#define SESSIONS_KEPT 100000 /* of each model; 20 MB when all are there */

static bool joins_sessions(const struct router_options *o) {
    return o->session_admission == SESSION_ADMISSION_AUTO &&
           policy_find(str_of(policy_names[o->policy])) == &policy_prefix;
}

static struct registry_config registry_config_of(const struct router *r) {
    const struct router_options *o = r->options;

    return (struct registry_config){
        .vllm_handover =
            o->kv_connector == KV_CONNECTOR_MOONCAKE ? HANDOVER_MOONCAKE : HANDOVER_NIXL,
        .routing = {.policy = policy_find(str_of(policy_names[o->policy])),
                    .policy_options = o->policy_options,
                    .max_workers = o->max_workers,
                    .max_index_bytes = o->max_index_bytes,
                    .prefix_block_bytes = o->prefix_block_bytes,
                    .slow_start_us = (uint64_t)o->slow_start_ms * 1000,
                    .bytes_per_token = ROUTING_BYTES_PER_TOKEN},
        .hold = hold_options_of(o),
        .max_worker_requests = o->max_worker_requests,
        .max_sessions = joins_sessions(o) ? SESSIONS_KEPT : 0,
        .max_concurrent = o->max_concurrent_requests,
        .trial_us = (uint64_t)o->probe_interval_ms * 1000,
    };
}

enum status router_build_registry(struct router *r, struct error *err) {
    struct registry_config config = registry_config_of(r);

    hash_random(&config.routing.policy_options.seed, sizeof(config.routing.policy_options.seed));
    return registry_create(&r->registry, &config, err);
}

struct health_config router_health_config(const struct router *r) {
    const struct router_options *o = r->options;

    return (struct health_config){.interval_us = (uint64_t)o->probe_interval_ms * 1000,
                                  .timeout_ms = o->probe_timeout_ms,
                                  .n_misses = o->probe_misses,
                                  .n_hits = o->probe_hits,
                                  .max_workers = o->max_workers,
                                  .path = o->probe_path,
                                  .routers = metrics_at(r->metrics, ROUTER_routers_refused_total),
                                  .isolates = router_isolates(o)};
}

struct scrape_config router_scrape_config(const struct router *r) {
    const struct router_options *o = r->options;

    return (struct scrape_config){.interval_us = (uint64_t)o->engine_metrics_interval_ms * 1000,
                                  .timeout_ms = o->probe_timeout_ms,
                                  .max_workers = o->max_workers};
}

/* Where tenants are apart, equal chains are in one cache only under equal salts. */
uint64_t router_hash_scheme(const struct router *r) {
    const struct router_options *o = r->options;
    uint64_t secret = r->hash_secret;
    char salt[ISOLATION_SALT_CHARS + 1];

    if (router_isolates(o)) {
        isolation_salt(&r->isolation, STR(""), STR_NULL, salt);
        secret = hash_64(salt, ISOLATION_SALT_CHARS, secret);
    }
    return prompt_hash_scheme(secret, o->prefix_block_bytes);
}

/* A restarted router gets a new origin: its earlier requests are no longer open. */
uint64_t router_choose_origin(const struct router_options *o) {
    uint64_t origin;

    if (o->share == SHARE_NONE && !o->share_redis) return 0;
    hash_random(&origin, sizeof(origin));
    return origin | 1;
}

/* Events of other routers come from workers that publish them, else from the routers themselves. */
enum status router_build_sharing(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    uint64_t scheme = router_hash_scheme(r);
    struct follow_config follow = {.origin = r->origin,
                                   .scheme = scheme,
                                   .block_bytes = o->prefix_block_bytes,
                                   .max_workers = o->max_workers,
                                   .silence_ms = FOLLOW_SILENCE_MS,
                                   .silence_us = FOLLOW_SILENCE_US,
                                   .from = takeover_follow_from,
                                   .arg = r->takeover};
    struct share_config share = {.url = o->share_redis,
                                 .password = o->share_redis_password,
                                 .key = o->share_redis_key,
                                 .max_entries = o->share_redis_entries,
                                 .origin = r->origin,
                                 .scheme = scheme,
                                 .block_bytes = o->prefix_block_bytes,
                                 .silence_us = SHARE_SILENCE_US,
                                 .outbox_bytes = SHARE_OUTBOX_BYTES};

    if (o->share == SHARE_WORKERS) {
        r->follow = follow_create(r->loop, r->client, r->registry, r->metrics, r->log, &follow);
    }
    if (!o->share_redis) return ST_OK;
    return share_create(&r->share, r->loop, r->registry, r->metrics, r->log, &share, err);
}

enum status router_build_fleet(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    struct fleet_config config = {.certificates = r->certificates,
                                  .drain_timeout_us = (uint64_t)o->drain_timeout_ms * 1000};
    enum status st = worker_sources_guards(&config, o, err);

    if (st == ST_OK) {
        st = fleet_create(&r->fleet, r->loop, r->registry, r->health, r->log, &config, err);
    }
    if (st == ST_OK) {
        st = admin_commands_create(&r->commands, r->loop, r->registry, r->fleet, r->client, r->log,
                                   err);
    }
    return st;
}

/* SO_REUSEPORT would share the port with another router of this user: tests whether it is free. */
static enum status check_port(const struct router *r, struct error *err) {
    static const struct http_server_events none = {0};
    struct http_server *trial = http_server_create(r->loop, NULL, &none, NULL);
    enum status st =
        http_server_listen(trial, r->options->host, (uint16_t)r->options->port, false, err);

    http_server_destroy(trial);
    return st == ST_OK ? st : error_prefix(err, "--host, --port");
}

static uint32_t admin_connections(void) {
    return MIN(ADMIN_CONNECTIONS, MAX(ADMIN_LEAST, process_descriptors() / ADMIN_PART));
}

/* Client connections of one of n loops: half of the remaining descriptors; the other half is for
 * workers. */
static uint32_t client_connections(const struct router *r, uint32_t n) {
    uint64_t all = process_descriptors(), of_workers = WORKER_DESCRIPTORS * r->options->max_workers;
    uint64_t kept = PROCESS_DESCRIPTORS + LOOP_DESCRIPTORS * (n + 1) + admin_connections() +
                    MIN(of_workers, all / 4);
    uint64_t most = all > kept ? (all - kept) / 2 / n : 0;

    return (uint32_t)MIN(MAX(most, LEAST_CONNECTIONS), r->options->max_connections);
}

static void on_collect(void *arg) {
    struct router *r = arg;

    http_metrics_of_budget(r->metrics, ROUTER_http_connections, r->bodies);
}

static uint64_t body_memory(const struct router_options *o) {
    if (o->max_body_memory) return o->max_body_memory;
    return body_budget_default(process_memory_limit(""), MAX_DEFAULT_BODY_MEMORY);
}

/* Of clients, on one of n loops. */
static struct http_limits limits_of(const struct router *r, uint32_t n) {
    const struct router_options *o = r->options;

    return (struct http_limits){.max_connections = client_connections(r, n),
                                .max_body_bytes = o->max_body_bytes,
                                .head_timeout_ms = o->head_timeout_ms,
                                .idle_timeout_ms = o->idle_timeout_ms,
                                .budget = r->bodies};
}

/* What requests may take together, on n loops and the admin port. */
static void build_bounds(struct router *r, uint32_t n) {
    r->bodies = body_budget_create(body_memory(r->options), n + 1);
    metrics_on_collect(r->metrics, on_collect, r);
}

/* Of limits that are lower than their options. */
static void log_bounds(const struct router *r, uint32_t n) {
    const struct router_options *o = r->options;
    uint32_t most = client_connections(r, n);

    if (most < o->max_connections) {
        log_event(r->log, LOG_INFO, "connections_limited",
                  log_u64("max_connections", o->max_connections), log_u64("per_loop", most),
                  log_u64("loops", n), log_u64("descriptors", process_descriptors()),
                  log_z("remedy",
                        "raise ulimit -n: each client takes two descriptors, and some are "
                        "kept for the admin port and for workers"));
    }
    if (body_budget_largest(r->bodies) < o->max_body_bytes) {
        log_event(r->log, LOG_WARN, "max_body_bytes_limited",
                  log_u64("max_body_bytes", o->max_body_bytes),
                  log_u64("max_body_memory", body_memory(o)),
                  log_z("why", "a body cannot be longer than three quarters of --max-body-memory: "
                               "raise it, or the memory that this process may use"));
    }
}

static struct proxy_config proxy_config_of(const struct router *r) {
    const struct router_options *o = r->options;
    bool wants_session = policy_find(str_of(policy_names[o->policy]))->uses_session;
    uint32_t retried = retry_causes(&o->retry_on);

    return (struct proxy_config){
        .prefix_block_bytes = o->prefix_block_bytes,
        .max_prefix_blocks = (uint32_t)MAX(1, CEIL_DIV(o->max_prefix_bytes, o->prefix_block_bytes)),
        .hash_secret = r->hash_secret,
        .origin = o->share == SHARE_WORKERS ? r->origin : 0,
        .scheme = router_hash_scheme(r),
        .queue_timeout_us = (uint64_t)o->queue_timeout_ms * 1000,
        .session_timeout_us = (uint64_t)o->session_timeout_ms * 1000,
        .joins_sessions = joins_sessions(o),
        .holds = hold_options_of(o).fcfs_s > 0,
        .request_timeout_us = (uint64_t)o->request_timeout_ms * 1000,
        .first_byte_timeout_us = (uint64_t)o->first_byte_timeout_ms * 1000,
        .stream_idle_timeout_us = (uint64_t)o->stream_idle_timeout_ms * 1000,
        .keepalive_us = (uint64_t)(o->sse_keepalive_s * 1e6),
        .poison = r->poison,
        .refusals = r->refusals,
        .connect_timeout_us = (uint64_t)o->connect_timeout_ms * 1000,
        .upstream_idle_us = 60 * 1000000ull,
        .worker_tls = certificates_for_workers(r->certificates),
        .max_workers = o->max_workers,
        .max_attempts = o->max_retries + 1,
        .never_retried = RETRY_ALL & ~retried,
        .expose_worker_headers = o->expose_worker_headers,
        .forward_authorization = o->forward_authorization,
        .forward = &o->forward,
        .admin_keys = r->admin_keys,
        .explains_to_clients = o->explains_to_clients,
        .noise_rule = (enum client_noise_rule)o->strip_client_noise,
        .name = r->name,
        .worker_key = str_of(r->worker_key),
        .log_every = o->log_requests,
        .log_rate = o->log_requests_rate,
        .decisions = r->decisions,
        .keys = r->keys,
        .session_headers = {o->session_headers.items, wants_session ? o->session_headers.n : 0},
        .isolation = router_isolates(o) ? &r->isolation : NULL,
        .tenant_header = o->trust_tenant_header ? o->tenant_header : NULL};
}

/* They take the options that are live from r->options, and the key of the workers. */
static void configure_frontends(struct router *r) {
    struct proxy_config proxy = proxy_config_of(r);
    struct http_limits limits;

    if (!r->n_frontends) return; /* not built yet */
    limits = limits_of(r, r->n_frontends);
    r->admin.dry_run.keeps_noise = proxy.noise_rule == NOISE_KEPT;
    for (uint32_t i = 0; i < r->n_frontends; i++)
        frontend_configure(r->frontends[i], &limits, &proxy);
}

static enum status build_holds(struct router *r, const struct proxy_config *proxy,
                               struct error *err) {
    const struct holds_config config = {
        .loop = r->loop,
        .registry = r->registry,
        .client = r->client,
        .log = r->log,
        .metrics = r->metrics,
        .keys = r->keys,
        .isolation = proxy->isolation,
        .tenant_header = proxy->tenant_header,
        .prefix_block_bytes = proxy->prefix_block_bytes,
        .max_prefix_blocks = proxy->max_prefix_blocks,
        .max_workers = r->options->max_workers,
        .hash_secret = proxy->hash_secret,
        .poison = r->poison,
        .timeout_ms = (uint32_t)MIN(proxy->request_timeout_us / 1000, UINT32_MAX),
    };

    enum status st = holds_create(&r->holds, &config, err);

    if (st == ST_OK) admin_commands_set_holds(r->commands, holds_put_all, r->holds);
    return st;
}

enum status router_build_frontends(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = o->n_threads ? o->n_threads : (uint32_t)MIN(MAX(cores, 1), MAX_DEFAULT_LOOPS);
    struct frontend_config config = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .share_port = n > 1,
        .tls = certificates_for_clients(r->certificates),
        .proxy = proxy_config_of(r),
        .control = r->box,
    };
    bool is_given = takeover_has_sockets(r->takeover);
    enum status st = n > 1 && !is_given ? check_port(r, err) : ST_OK;
    int sockets[HANDOVER_SOCKETS_MAX];

    if (st != ST_OK) return st;
    build_bounds(r, n);
    log_bounds(r, n);
    config.limits = limits_of(r, n);
    r->admin.dry_run = (struct dry_run){.registry = r->registry,
                                        .prefix_block_bytes = config.proxy.prefix_block_bytes,
                                        .max_prefix_blocks = config.proxy.max_prefix_blocks,
                                        .max_workers = o->max_workers,
                                        .hash_secret = config.proxy.hash_secret,
                                        .session_headers = config.proxy.session_headers,
                                        .is_isolated = config.proxy.isolation != NULL,
                                        .keeps_noise = config.proxy.noise_rule == NOISE_KEPT};
    st = build_holds(r, &config.proxy, err);
    if (st != ST_OK) return st;
    config.holds = r->holds;
    r->frontends = mem_calloc(n, sizeof(*r->frontends));
    config.sockets = sockets;
    for (uint32_t i = 0; i < n; i++) {
        config.n_sockets = takeover_client_sockets(r->takeover, i, n, sockets, ARRAY_LEN(sockets));
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

/* Beyond loopback its key crosses the network. */
static struct tls *admin_tls(const struct router *r) {
    return router_is_loopback(r->options->admin_host) ? NULL
                                                      : certificates_for_clients(r->certificates);
}

void router_take_admin_socket(struct router *r) {
    http_server_take_socket(r->admin_server, admin_tls(r), takeover_admin_socket(r->takeover));
}

/* A body may be a request that /debug/route explains. */
static struct http_limits admin_limits(const struct router *r) {
    return (struct http_limits){.max_body_bytes = r->options->max_body_bytes,
                                .max_connections = admin_connections(),
                                .budget = r->bodies};
}

enum status router_build_admin(struct router *r, struct error *err) {
    static const struct http_server_events events = {.on_request = on_admin_request,
                                                     .on_head = on_admin_head};
    struct http_limits limits = admin_limits(r);
    const struct http_report report = {r->metrics, ROUTER_http_connections, r->log, "admin"};
    enum status st;

    r->admin_server = http_server_create(r->loop, &limits, &events, r);
    http_server_report(r->admin_server, &report);
    if (takeover_admin_socket(r->takeover) >= 0) {
        if (!takeover_has_predecessor(r->takeover))
            router_take_admin_socket(r); /* else taken when it is ready */
        return ST_OK;
    }
    st = http_server_listen_tls(r->admin_server, admin_tls(r), r->options->admin_host,
                                (uint16_t)r->options->admin_port, false, err);
    return st == ST_OK ? st : error_prefix(err, "--admin-host, --admin-port");
}

/* --- keys and their files --------------------------------------------------------------------- */

#define BEARER "authorization: Bearer "

enum status router_read_worker_key(const struct router_options *o, char out[KEYS_TEXT_MAX],
                                   struct error *err) {
    enum status st = ST_OK;

    out[0] = '\0';
    if (o->worker_api_key) {
        snprintf(out, KEYS_TEXT_MAX, "%s", o->worker_api_key);
    } else if (o->worker_api_key_file) {
        st = keys_read_first(o->worker_api_key_file, out, err);
    }
    if (st != ST_OK) return st;
    for (const char *p = out; *p; p++) {
        if (*p > ' ' && *p < 127) continue;
        return error_set_param(err, ST_INVALID, "worker-api-key",
                               "worker-api-key has a character that no header can hold: use "
                               "printable ASCII without spaces");
    }
    return ST_OK;
}

/* For what is forwarded, and for what this program itself asks workers. */
void router_use_worker_key(struct router *r, const char *key) {
    char line[KEYS_TEXT_MAX + sizeof(BEARER)];

    snprintf(r->worker_key, sizeof(r->worker_key), "%s", key);
    snprintf(line, sizeof(line), BEARER "%s", r->worker_key);
    http_client_header(r->client, key[0] ? line : NULL);
    configure_frontends(r);
}

void router_watch_secrets(struct router *r) {
    const struct router_options *o = r->options;
    const char *const files[] = {o->api_keys_file, o->admin_api_key_file, o->worker_api_key_file,
                                 o->tls_cert_path, o->tls_key_path,       o->worker_ca,
                                 o->worker_cert,   o->worker_key};

    file_watch_destroy(r->secrets);
    r->secrets = file_watch_create(r->loop, files, ARRAY_LEN(files), router_reload_secrets, r);
}

/* --- options that change while it runs -------------------------------------------------------- */

/* The option's name if it is one that changes, else NULL. */
static const char *changed(const struct options_change *c, const char *option) {
    for (uint32_t i = 0; i < options_change_n_changed(c); i++) {
        if (strcmp(options_change_at(c, i)->option, option) == 0) return option;
    }
    return NULL;
}

/* The first of two that changes. */
static const char *changed_of(const struct options_change *c, const char *a, const char *b) {
    return changed(c, a) ? a : changed(c, b);
}

/* The option that a check of all is about, as far as it is known. */
static const char *at_fault(const struct options_change *c, const struct error *err) {
    if (err->param[0]) return err->param;
    return options_change_n_changed(c) == 1 ? options_change_at(c, 0)->option : NULL;
}

static void prepare_keys(struct options_change *c, const char *option, struct keys *keys,
                         const char *file, const char *single, struct keys_change **out) {
    struct error err = {0};

    if (option && keys_prepare(keys, file, single, out, &err) != ST_OK)
        options_change_refuse(c, option, err.message);
}

void router_prepare_change(struct options_change *c, void *arg) {
    struct router *r = arg;
    const struct router_options *o = options_change_target(c);
    const char *worker_key = changed_of(c, "worker-api-key-file", "worker-api-key");
    struct error err = {0};

    r->change = (struct router_change){0};
    if (router_options_check(o, &err) != ST_OK)
        options_change_refuse(c, at_fault(c, &err), err.message);
    prepare_keys(c, changed_of(c, "api-keys-file", "api-key"), r->keys, o->api_keys_file,
                 o->api_key, &r->change.keys);
    prepare_keys(c, changed_of(c, "admin-api-key-file", "admin-api-key"), r->admin_keys,
                 o->admin_api_key_file, o->admin_api_key, &r->change.admin_keys);
    r->change.has_worker_key = worker_key != NULL;
    if (worker_key && router_read_worker_key(o, r->change.worker_key, &err) != ST_OK)
        options_change_refuse(c, worker_key, err.message);
}

static void configure_scrape(struct router *r) {
    struct scrape_config config = router_scrape_config(r);

    if (!config.interval_us) {
        scrape_destroy(r->scrape);
        r->scrape = NULL;
    } else if (r->scrape) {
        scrape_configure(r->scrape, &config);
    } else {
        r->scrape = scrape_create(r->loop, r->client, r->registry, r->log, &config);
    }
}

/* Each part takes its values from r->options. */
static void configure_parts(struct router *r) {
    const struct router_options *o = r->options;
    struct registry_config registry = registry_config_of(r);
    struct health_config health = router_health_config(r);
    struct http_limits admin = admin_limits(r);

    log_set_level(r->log, (enum log_level)o->log_level);
    log_set_rates(r->log, o->log_rate, o->log_requests_rate);
    registry_change(r->registry, &registry);
    health_configure(r->health, &health);
    configure_scrape(r);
    kv_events_set_mode(r->kv_events, (enum kv_events_mode)o->kv_events);
    fleet_set_drain_timeout(r->fleet, (uint64_t)o->drain_timeout_ms * 1000);
    poison_set_memory(r->poison, (uint64_t)o->poison_memory_ms * 1000);
    body_budget_set_total(r->bodies, body_memory(o));
    http_server_set_limits(r->admin_server, &admin);
    configure_frontends(r);
}

void router_finish_change(const struct options_change *c, bool is_committed, void *arg) {
    struct router *r = arg;
    struct router_change *x = &r->change;

    if (!is_committed) {
        keys_drop(x->keys);
        keys_drop(x->admin_keys);
    } else {
        if (x->keys) keys_commit(r->keys, x->keys);
        if (x->admin_keys) keys_commit(r->admin_keys, x->admin_keys);
        if (x->has_worker_key) router_use_worker_key(r, x->worker_key);
        if (options_change_n_changed(c)) configure_parts(r);
        if (changed_of(c, "api-keys-file", "admin-api-key-file") || x->has_worker_key)
            router_watch_secrets(r);
        if (changed_of(c, "max-body-bytes", "max-body-memory") || changed(c, "max-connections"))
            log_bounds(r, r->n_frontends);
    }
    explicit_bzero(x, sizeof(*x));
}
