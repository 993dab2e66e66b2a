/* router/worker_sources.c - see worker_sources.h. */
#include "router/worker_sources.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/fleet.h"
#include "router/metrics/router_metrics.h"
#include "router/options/router_options.h"
#include "router/registry/registry_view.h"

enum { STATIC, FILED, KUBE, DNS, N_SOURCES };

struct worker_sources {
    struct fleet *fleet;
    struct registry *registry;
    struct log *log;
    struct discovery *all[N_SOURCES]; /* NULL: not configured */
    _Atomic bool are_synced;
};

/* --- their sets ------------------------------------------------------------------------------- */

static void on_static_set(const struct discovery_set *set, void *arg) {
    fleet_set(((struct worker_sources *)arg)->fleet, FLEET_STATIC, set);
}

static void on_file_set(const struct discovery_set *set, void *arg) {
    struct worker_sources *s = arg;

    log_event(s->log, LOG_INFO, "worker_file_read", log_u64("workers", set->n));
    fleet_set(s->fleet, FLEET_FILE, set);
}

static void look_whether_synced(struct worker_sources *s) {
    struct discovery_stats stats;

    for (int i = KUBE; i < N_SOURCES; i++) {
        if (!s->all[i]) continue;
        discovery_stats(s->all[i], &stats);
        if (!stats.is_synced) return;
    }
    atomic_store_explicit(&s->are_synced, true, memory_order_relaxed);
}

static void on_kube_set(const struct discovery_set *set, void *arg) {
    struct worker_sources *s = arg;

    fleet_set(s->fleet, FLEET_KUBE, set);
    look_whether_synced(s);
}

static void on_dns_set(const struct discovery_set *set, void *arg) {
    struct worker_sources *s = arg;

    fleet_set(s->fleet, FLEET_DNS, set);
    look_whether_synced(s);
}

/* Cost of losing a worker: its open work and its cached blocks, in blocks. */
static double value_of(const char *url, void *arg) {
    struct worker_sources *s = arg;
    struct registry_view view;
    uint32_t id;

    if (!fleet_find(s->fleet, url, &id) || !registry_get(s->registry, id, &view)) return -1;
    return (double)view.routing.n_held_blocks + 100.0 * view.in_flight;
}

/* --- building --------------------------------------------------------------------------------- */

enum status worker_sources_guards(struct fleet_config *config, const struct router_options *o,
                                  struct error *err) {
    enum status st = ST_OK;

    address_guard_init(&config->guard);
    for (uint32_t i = 0; i < o->worker_allow_cidr.n && st == ST_OK; i++) {
        st = address_guard_allow(&config->guard, o->worker_allow_cidr.items[i], err);
        if (st != ST_OK) (void)error_prefix(err, "--worker-allow-cidr");
    }
    if (o->worker_allow_cidr.n == 0) address_guard_allow_local(&config->guard);
    address_guard_init(&config->found_guard); /* anywhere except where no worker may be */
    if (st == ST_OK) st = address_guard_allow(&config->found_guard, "0.0.0.0/0", err);
    if (st == ST_OK) st = address_guard_allow(&config->found_guard, "::/0", err);
    return st;
}

/* The option's items as written; commas divide them in the option table alone. */
static void join(const struct option_list *list, struct buf *out) {
    for (uint32_t i = 0; i < list->n; i++) {
        if (i) buf_append_char(out, ',');
        buf_append_str(out, str_of(list->items[i]));
    }
    buf_append_char(out, '\0');
}

static enum status create_kube(struct worker_sources *s, struct loop *loop,
                               const struct router_options *o, struct error *err) {
    struct kube_config server = {.kubeconfig = o->kubeconfig,
                                 .context = o->kube_context,
                                 .api_server = o->k8s_api_server,
                                 .token_file = o->k8s_token_file,
                                 .ca_file = o->k8s_ca_file,
                                 .namespace = o->k8s_namespace};
    struct discovery_kube_config config = {.server = &server,
                                           .resource = o->k8s_resource,
                                           .service = o->k8s_service,
                                           .pool = o->inference_pool,
                                           .role_label = o->k8s_role_label,
                                           .is_everywhere = o->k8s_all_namespaces,
                                           .port = (uint16_t)o->k8s_port,
                                           .max_workers = o->max_workers,
                                           .value = o->k8s_write_deletion_cost ? value_of : NULL};
    struct buf selector;
    enum status st;

    buf_init(&selector, 0);
    join(&o->k8s_selector, &selector);
    config.selector = buf_ptr(&selector);
    st = discovery_kube_create(&s->all[KUBE], &config, loop, s->log, on_kube_set, s, err);
    buf_fini(&selector);
    return st;
}

enum status worker_sources_create(struct worker_sources **out, struct loop *loop,
                                  struct fleet *fleet, struct registry *registry, struct log *log,
                                  const struct router_options *o, struct error *err) {
    struct discovery_static_lists lists = {&o->worker_urls, &o->prefill, &o->decode};
    struct worker_sources *s = mem_zalloc(sizeof(*s));
    enum status st;

    s->fleet = fleet;
    s->registry = registry;
    s->log = log;
    st = discovery_static_create(&s->all[STATIC], &lists, on_static_set, s, err);
    if (st == ST_OK && o->worker_file)
        st = discovery_file_create(&s->all[FILED], o->worker_file, loop, log, on_file_set, s, err);
    if (st == ST_OK && router_discovers_kube(o)) st = create_kube(s, loop, o, err);
    if (st == ST_OK && o->worker_dns)
        st = discovery_dns_create(&s->all[DNS], o->worker_dns, o->max_workers,
                                  DISCOVERY_DNS_POLL_US, loop, log, on_dns_set, s, err);
    if (st != ST_OK) {
        worker_sources_destroy(s);
        return st;
    }
    look_whether_synced(s);
    *out = s;
    return ST_OK;
}

void worker_sources_destroy(struct worker_sources *s) {
    if (!s) return;
    for (int i = 0; i < N_SOURCES; i++)
        discovery_destroy(s->all[i]);
    mem_free(s);
}

/* --- while it runs ---------------------------------------------------------------------------- */

void worker_sources_reload(struct worker_sources *s) {
    for (int i = 0; s && i < N_SOURCES; i++)
        discovery_reload(s->all[i]);
}

bool worker_sources_are_synced(const struct worker_sources *s) {
    return !s || atomic_load_explicit(&s->are_synced, memory_order_relaxed);
}

static void show(struct metrics *m, const char *source, const struct discovery_stats *stats) {
    metric_set(METRICS_GET(m, ROUTER_discovery_stale_seconds, source), stats->stale_s);
    metric_set(METRICS_GET(m, ROUTER_discovery_workers, source, "used"), stats->n_used);
    metric_set(METRICS_GET(m, ROUTER_discovery_workers, source, "draining"), stats->n_draining);
    metric_set(METRICS_GET(m, ROUTER_discovery_workers, source, "left_out"), stats->n_left_out);
    metric_reach(METRICS_GET(m, ROUTER_discovery_updates_total, source), stats->n_updates);
    metric_reach(METRICS_GET(m, ROUTER_discovery_refused_total, source), stats->n_refused);
}

void worker_sources_tick(struct worker_sources *s, struct metrics *m) {
    struct discovery_stats stats;

    for (int i = KUBE; s && i < N_SOURCES; i++) {
        if (!s->all[i]) continue;
        discovery_stats(s->all[i], &stats);
        show(m, s->all[i]->ops->name, &stats);
    }
}
