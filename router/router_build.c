/* router/router_build.c - the parts of a router, as its options want them.
 *
 *      registry ──▶ sharing ──▶ fleet, admin commands ──▶ frontends ──▶ admin port
 *
 * Options become the configuration of each part here and nowhere else. */
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/process_limits.h"
#include "common/http/body_budget.h"
#include "common/telemetry/log.h"
#include "router/access/certificates.h"
#include "router/admin/admin_commands.h"
#include "router/fleet/fleet.h"
#include "router/frontend.h"
#include "router/metrics/router_metrics.h"
#include "router/options/router_options.h"
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

/* Descriptors that clients may not take. A request in flight has one to its worker as well. */
#define ADMIN_CONNECTIONS   256u /* at most; and at most ... */
#define ADMIN_PART          32u  /* ... one in so many of all descriptors, */
#define ADMIN_LEAST         8u
#define PROCESS_DESCRIPTORS 64u /* listeners, logs, files that are read again, discovery */
#define LOOP_DESCRIPTORS    8u  /* of each loop */
#define WORKER_DESCRIPTORS                                                                         \
    3u /* of each worker: probes, metrics, events; at most a quarter of all */
#define LEAST_CONNECTIONS 4u

enum status router_build_registry(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    struct registry_config config = {
        .routing = {.policy = policy_find(str_of(policy_names[o->policy])),
                    .policy_options = o->policy_options,
                    .max_workers = o->max_workers,
                    .max_index_bytes = o->max_index_bytes,
                    .prefix_block_bytes = o->prefix_block_bytes,
                    .slow_start_us = (uint64_t)o->slow_start_ms * 1000,
                    .bytes_per_token = ROUTING_BYTES_PER_TOKEN},
        .admission = {.queue_size = o->queue_size,
                      .max_wait_us = (uint64_t)o->queue_timeout_ms * 1000},
        .max_worker_requests = o->max_worker_requests,
        .max_concurrent = o->max_concurrent_requests,
        .trial_us = (uint64_t)o->probe_interval_ms * 1000,
    };

    hash_random(&config.routing.policy_options.seed, sizeof(config.routing.policy_options.seed));
    return registry_create(&r->registry, &config, err);
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

/* A router that starts anew is another one to the workers: what it had open is not open any more. */
uint64_t router_choose_origin(const struct router_options *o) {
    uint64_t origin;

    if (o->share == SHARE_NONE && !o->share_redis) return 0;
    hash_random(&origin, sizeof(origin));
    return origin | 1;
}

/* What other routers send is told by the workers, or, of workers that do not, by the routers. */
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

/* Loops share their port, and so would another router of this user: look whether it is free. */
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

/* Of clients, on one of n loops: what is left of the descriptors, half of it for workers. */
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

/* What requests may take together, on n loops and the admin port. */
static void build_bounds(struct router *r, struct http_limits *limits, uint32_t n) {
    const struct router_options *o = r->options;
    uint64_t bytes = o->max_body_memory
                         ? o->max_body_memory
                         : body_budget_default(process_memory_limit(""), MAX_DEFAULT_BODY_MEMORY);

    r->bodies = body_budget_create(bytes, n + 1);
    limits->budget = r->bodies;
    limits->max_connections = client_connections(r, n);
    metrics_on_collect(r->metrics, on_collect, r);
    if (limits->max_connections < o->max_connections) {
        log_event(
            r->log, LOG_INFO, "connections_limited", log_u64("max_connections", o->max_connections),
            log_u64("per_loop", limits->max_connections), log_u64("loops", n),
            log_u64("descriptors", process_descriptors()),
            log_z("remedy", "raise ulimit -n: each client takes two descriptors, and some are "
                            "kept for the admin port and for workers"));
    }
    if (body_budget_largest(r->bodies) < o->max_body_bytes) {
        log_event(r->log, LOG_WARN, "max_body_bytes_limited",
                  log_u64("max_body_bytes", o->max_body_bytes), log_u64("max_body_memory", bytes),
                  log_z("why", "a body cannot be longer than three quarters of --max-body-memory: "
                               "raise it, or the memory that this process may use"));
    }
}

enum status router_build_frontends(struct router *r, struct error *err) {
    const struct router_options *o = r->options;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = o->n_threads ? o->n_threads : (uint32_t)MIN(MAX(cores, 1), MAX_DEFAULT_LOOPS);
    bool wants_session = policy_find(str_of(policy_names[o->policy]))->uses_session;
    uint32_t retried = retry_causes(&o->retry_on);
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
                  .scheme = router_hash_scheme(r),
                  .queue_timeout_us = (uint64_t)o->queue_timeout_ms * 1000,
                  .request_timeout_us = (uint64_t)o->request_timeout_ms * 1000,
                  .first_byte_timeout_us = (uint64_t)o->first_byte_timeout_ms * 1000,
                  .stream_idle_timeout_us = (uint64_t)o->stream_idle_timeout_ms * 1000,
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
                  .name = r->name,
                  .worker_key = str_of(r->worker_key),
                  .log_every = o->log_requests,
                  .log_rate = o->log_requests_rate,
                  .decisions = r->decisions,
                  .keys = r->keys,
                  .session_headers = {o->session_headers.items,
                                      wants_session ? o->session_headers.n : 0},
                  .isolation = router_isolates(o) ? &r->isolation : NULL,
                  .tenant_header = o->trust_tenant_header ? o->tenant_header : NULL},
        .control = r->box,
    };
    bool is_given = takeover_has_sockets(r->takeover);
    enum status st = n > 1 && !is_given ? check_port(r, err) : ST_OK;
    int sockets[HANDOVER_SOCKETS_MAX];

    if (st != ST_OK) return st;
    build_bounds(r, &config.limits, n);
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

/* Beyond this machine its key goes over the wire. */
static struct tls *admin_tls(const struct router *r) {
    return router_is_loopback(r->options->admin_host) ? NULL
                                                      : certificates_for_clients(r->certificates);
}

void router_take_admin_socket(struct router *r) {
    http_server_take_socket(r->admin_server, admin_tls(r), takeover_admin_socket(r->takeover));
}

enum status router_build_admin(struct router *r, struct error *err) {
    static const struct http_server_events events = {.on_request = on_admin_request,
                                                     .on_head = on_admin_head};
    /* A body may be a request that /debug/route explains. */
    struct http_limits limits = {.max_body_bytes = r->options->max_body_bytes,
                                 .max_connections = admin_connections(),
                                 .budget = r->bodies};
    const struct http_report report = {r->metrics, ROUTER_http_connections, r->log, "admin"};
    enum status st;

    r->admin_server = http_server_create(r->loop, &limits, &events, r);
    http_server_report(r->admin_server, &report);
    if (takeover_admin_socket(r->takeover) >= 0) {
        if (!takeover_has_predecessor(r->takeover))
            router_take_admin_socket(r); /* else when it is ready */
        return ST_OK;
    }
    st = http_server_listen_tls(r->admin_server, admin_tls(r), r->options->admin_host,
                                (uint16_t)r->options->admin_port, false, err);
    return st == ST_OK ? st : error_prefix(err, "--admin-host, --admin-port");
}
