/* router/fleet/discovery/kubernetes.c - pods, or endpoints of a service, as workers.
 *
 *      watch of the InferencePool, if one is configured
 *               | selector, ports
 *               v
 *      watch of pods or slices --> kube_store --> one set at the end of the loop's turn --> fleet
 *
 * After any events of a turn the whole set is computed from the store and reported once, never
 * before the first list is complete. That costs a microsecond per object; large sets have a pause
 * between them, of 40 ms at most. Probing is left to health.h.
 *
 * Two kinds of collections have an older name in some clusters: when one name is missing or
 * forbidden the other is tried, and when both are, they are tried in turns.
 *
 * A pool that is deleted or unreadable changes nothing: the pods it selected last stay. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_costs.h"
#include "router/fleet/discovery/kube_store.h"
#include "router/fleet/discovery/kube_watch.h"

#define PATH_MAX_BYTES   256
#define POOL_GROUP       "inference.networking.k8s.io"
#define POOL_OLD_GROUP   "inference.networking.x-k8s.io"
#define MISSING_AGAIN_US 30000000u /* longest delay before both names are tried again */
#define MISSING_FIRST_US 500000u

/* Pause between sets: 5,000 pods that change without end take an eighth of a core. */
#define PAUSE_PER_OBJECT_US 8u
#define PAUSE_MAX_US        40000u

struct kube_source;

/* A collection, by its current or its old name. */
struct follower {
    struct kube_source *source;
    struct kube_watch *watch; /* NULL while it must be started again */
    struct loop_timer again;
    const struct kube_watch_events *events;
    bool is_old;
    uint64_t right_us;  /* last confirmation by an earlier watch */
    uint32_t n_missing; /* 404 or 403 in a row */
    bool is_forbidden;  /* one of the last two was 403 */
};

struct kube_source {
    struct discovery discovery;
    struct loop *loop;
    struct log *log;
    discovery_fn *fn;
    void *arg;
    struct kube_client *client;
    struct kube_store *store;
    struct kube_costs *costs; /* NULL: not written */
    struct follower members, pool;
    struct loop_task report;
    struct loop_timer later; /* the next set, while it is too soon */
    enum kube_resource resource;
    char *selector, *service, *pool_name;
    bool is_everywhere, is_synced; /* synced: a list was complete */
    uint16_t port;
    uint32_t max_workers;
    struct kube_pool pool_now; /* selector "": not read yet */
    struct kube_store_stats stats;
    uint64_t n_updates, n_refused, published_us;
};

/* --- telling ---------------------------------------------------------------------------------- */

/* Logs a problem when it begins and when it grows, not with each event. */
static void say_left_out(struct kube_source *s, const struct kube_store_stats *now) {
    if (now->n_too_many > s->stats.n_too_many)
        log_event(s->log, LOG_WARN, "discovery_truncated", log_u64("workers", now->n_too_many),
                  log_z("why", "there are more than --max-workers"),
                  log_z("remedy", "raise it, or select fewer with --k8s-selector"));
    if (now->n_left_out && !s->stats.n_left_out)
        log_event(s->log, LOG_INFO, "kube_role_left_out", log_z("pod", now->left_out->name),
                  log_z("role", now->left_out->left_out_as), log_u64("pods", now->n_left_out),
                  log_z("why", "prefill and decode run on the same worker here"));
    if (now->n_misread > s->stats.n_misread)
        log_event(s->log, LOG_WARN, "kube_ports_misread", log_z("pod", now->misread->name),
                  log_u64("pods", now->n_misread),
                  log_z("remedy",
                        "write its annotation as 8000 or 8000,8001; until then it is as if "
                        "there were none"));
    if (now->n_portless > s->stats.n_portless)
        log_event(s->log, LOG_WARN, "kube_port_unknown", log_z("pod", now->portless->name),
                  log_u64("pods", now->n_portless),
                  log_z("remedy", "name it in the annotation incipit.dev/ports, in the pod's "
                                  "containerPorts, or with --k8s-port"));
}

static void report_set(void *arg) {
    struct kube_source *s = arg;
    struct discovery_set set = {0};
    struct kube_store_stats now;

    kube_store_workers(s->store, s->max_workers, &set, &now);
    say_left_out(s, &now);
    s->stats = now;
    s->stats.left_out = s->stats.portless = s->stats.misread =
        NULL; /* valid during the call alone */
    if (s->n_updates++ == 0)
        log_event(s->log, LOG_INFO, "kube_synced", log_u64("objects", now.n_objects),
                  log_u64("workers", now.n_used), log_u64("draining", now.n_draining));
    s->published_us = loop_now_us(s->loop);
    s->fn(&set, s->arg);
    discovery_set_fini(&set);
}

static void publish_soon(struct kube_source *s) {
    uint64_t pause_us = MIN((uint64_t)s->stats.n_objects * PAUSE_PER_OBJECT_US, PAUSE_MAX_US);
    uint64_t passed_us = loop_now_us(s->loop) - s->published_us;

    if (!s->is_synced || loop_timer_is_running(&s->later)) return;
    if (passed_us >= pause_us) {
        loop_defer(s->loop, &s->report);
    } else {
        loop_timer_start(&s->later, pause_us - passed_us);
    }
}

/* --- what the watches say --------------------------------------------------------------------- */

static void refused(struct kube_source *s, const struct error *err) {
    s->n_refused++;
    log_event(s->log, LOG_WARN, "kube_object_refused", log_z("why", err->message));
}

static void on_begin(void *arg) {
    struct follower *f = arg;

    kube_store_begin(f->source->store);
}

static void on_object(struct str json, void *arg) {
    struct follower *f = arg;
    struct error err = {0};

    if (kube_store_object(f->source->store, json, &err) != ST_OK) refused(f->source, &err);
}

static void on_gone(struct str json, void *arg) {
    struct follower *f = arg;
    struct error err = {0};

    if (kube_store_gone(f->source->store, json, &err) != ST_OK) refused(f->source, &err);
}

static void on_end(void *arg) {
    struct follower *f = arg;

    f->n_missing = 0;
    f->is_forbidden = false;
    kube_store_end(f->source->store);
    f->source->is_synced = true;
    publish_soon(f->source);
}

static void on_change(void *arg) {
    struct follower *f = arg;

    publish_soon(f->source);
}

static void log_missing(struct follower *f) {
    struct kube_source *s = f->source;

    log_event(s->log, LOG_WARN, "kube_api_missing",
              log_z("resource", f == &s->pool ? "inferencepools" : "endpointslices"),
              log_z("why", "the API server has neither its current nor its old version"),
              log_z("remedy", f == &s->pool ? "install the InferencePool's definition, or name "
                                              "the pods with --k8s-selector instead"
                                            : "leave --k8s-resource away: every cluster has "
                                              "pods"));
}

/* Both names have been refused n times: 0.5 s, 1 s, 2 s ... 30 s. */
static uint64_t pause_us(uint32_t n) {
    return MIN((uint64_t)MISSING_FIRST_US << MIN(n - 1, 10u), MISSING_AGAIN_US);
}

/* A timer replaces the watch, which cannot be done inside its callback. */
static bool try_other_name(struct follower *f, bool is_forbidden) {
    struct kube_source *s = f->source;
    bool is_round;

    if (f == &s->members && s->resource == KUBE_PODS) return true; /* every cluster has pods */
    f->is_old = !f->is_old;
    is_round = ++f->n_missing % 2 == 0;
    if (!is_round) f->is_forbidden = false;
    f->is_forbidden |= is_forbidden;
    /* In the second round: a starting server has no definitions yet. */
    if (is_round && f->n_missing > 2 && !f->is_forbidden) log_missing(f);
    loop_timer_start(&f->again, is_round ? pause_us(f->n_missing / 2) : 0);
    return false;
}

static bool on_missing(void *arg) {
    return try_other_name(arg, false);
}

static bool on_forbidden(void *arg) {
    return try_other_name(arg, true);
}

/* --- the pool --------------------------------------------------------------------------------- */

static bool pools_are_equal(const struct kube_pool *a, const struct kube_pool *b) {
    return strcmp(a->selector, b->selector) == 0 && a->n_ports == b->n_ports &&
           memcmp(a->ports, b->ports, a->n_ports * sizeof(a->ports[0])) == 0;
}

static void on_pool(struct str json, void *arg) {
    struct follower *f = arg;
    struct kube_source *s = f->source;
    struct error err = {0};
    struct kube_pool pool, was = s->pool_now;

    if (kube_pool_read(&pool, json, &err) != ST_OK) {
        refused(s, &err);
        return;
    }
    if (pools_are_equal(&pool, &was)) return;
    s->pool_now = pool;
    log_event(s->log, LOG_INFO, "inference_pool_read", log_z("pool", s->pool_name),
              log_z("selector", pool.selector), log_u64("ports", pool.n_ports));
    kube_store_set_ports(s->store, s->port, pool.ports, pool.n_ports);
    if (strcmp(pool.selector, was.selector) != 0) loop_timer_start(&s->members.again, 0);
    publish_soon(s);
}

static void on_pool_gone(struct str json, void *arg) {
    struct follower *f = arg;

    (void)json;
    log_event(f->source->log, LOG_WARN, "inference_pool_gone", log_z("pool", f->source->pool_name),
              log_z("remedy", "the workers stay as they are: create it again, or restart without "
                              "--inference-pool"));
}

static void on_pool_begin(void *arg) {
    (void)arg;
}

static void on_pool_end(void *arg) {
    struct follower *f = arg;
    struct kube_source *s = f->source;

    f->n_missing = 0;
    f->is_forbidden = false;
    if (!s->pool_now.selector[0])
        log_event(s->log, LOG_WARN, "inference_pool_unknown", log_z("pool", s->pool_name),
                  log_z("namespace", kube_client_namespace(s->client)),
                  log_z("remedy", "there is none of this name, or it cannot be read: it is waited "
                                  "for"));
}

static const struct kube_watch_events member_events = {.begin = on_begin,
                                                       .object = on_object,
                                                       .gone = on_gone,
                                                       .end = on_end,
                                                       .change = on_change,
                                                       .missing = on_missing,
                                                       .forbidden = on_forbidden};
static const struct kube_watch_events pool_events = {.begin = on_pool_begin,
                                                     .object = on_pool,
                                                     .gone = on_pool_gone,
                                                     .end = on_pool_end,
                                                     .missing = on_missing,
                                                     .forbidden = on_forbidden};

/* --- the watches ------------------------------------------------------------------------------ */

static void put_path(const struct kube_source *s, const char *root, const char *plural,
                     char path[PATH_MAX_BYTES]) {
    if (s->is_everywhere) {
        snprintf(path, PATH_MAX_BYTES, "%s/%s", root, plural);
    } else {
        snprintf(path, PATH_MAX_BYTES, "%s/namespaces/%s/%s", root,
                 kube_client_namespace(s->client), plural);
    }
}

static enum status follow(struct follower *f, const char *root, const char *group,
                          const char *older_group, const char *plural, const char *selector,
                          const char *field, struct error *err) {
    struct kube_source *s = f->source;
    char path[PATH_MAX_BYTES], what[PATH_MAX_BYTES];
    struct kube_watch_config config = {.path = path,
                                       .selector = selector,
                                       .field_selector = field,
                                       .what = what,
                                       .resource = plural,
                                       .group = group,
                                       .older_group = older_group,
                                       .events = f->events,
                                       .arg = f};

    put_path(s, root, plural, path);
    snprintf(what, sizeof(what), "%s in %s%s", plural, s->is_everywhere ? "all" : "namespace ",
             s->is_everywhere ? " namespaces" : kube_client_namespace(s->client));
    return kube_watch_create(&f->watch, s->client, &config, err);
}

static enum status follow_pool(struct kube_source *s, struct error *err) {
    char field[KUBE_NAME_MAX + 16];
    bool is_old = s->pool.is_old;

    snprintf(field, sizeof(field), "metadata.name=%s", s->pool_name);
    return follow(&s->pool,
                  is_old ? "/apis/" POOL_OLD_GROUP "/v1alpha2" : "/apis/" POOL_GROUP "/v1",
                  POOL_GROUP, POOL_OLD_GROUP, "inferencepools", "", field, err);
}

static enum status follow_slices(struct kube_source *s, struct error *err) {
    struct buf selector;
    enum status st;

    buf_init(&selector, 0);
    if (s->service) buf_appendf(&selector, "kubernetes.io/service-name=%s", s->service);
    if (s->service && s->selector[0]) buf_append_char(&selector, ',');
    buf_append(&selector, s->selector, strlen(s->selector) + 1);
    st = follow(&s->members,
                s->members.is_old ? "/apis/discovery.k8s.io/v1beta1" : "/apis/discovery.k8s.io/v1",
                "discovery.k8s.io", NULL, "endpointslices", buf_ptr(&selector), "", err);
    buf_fini(&selector);
    return st;
}

static enum status follow_members(struct kube_source *s, struct error *err) {
    if (s->resource == KUBE_ENDPOINTSLICES) return follow_slices(s, err);
    return follow(&s->members, "/api/v1", "", NULL, "pods",
                  s->pool_name ? s->pool_now.selector : s->selector, "", err);
}

static double stale_s(const struct follower *f) {
    if (f->watch && kube_watch_is_synced(f->watch)) return kube_watch_stale_s(f->watch);
    return (double)(loop_now_us(f->source->loop) - f->right_us) * 1e-6;
}

/* The store stays until the new list is complete. */
static void on_again(void *arg) {
    struct follower *f = arg;
    struct kube_source *s = f->source;
    struct error err = {0};
    enum status st;

    f->right_us = loop_now_us(s->loop) - (uint64_t)(stale_s(f) * 1e6);
    kube_watch_destroy(f->watch);
    f->watch = NULL;
    st = f == &s->pool ? follow_pool(s, &err) : follow_members(s, &err);
    if (st == ST_OK) return;
    refused(s, &err);
    loop_timer_start(&f->again, MISSING_AGAIN_US);
}

/* --- the source ------------------------------------------------------------------------------- */

static void kube_stats(struct discovery *d, struct discovery_stats *out) {
    struct kube_source *s = CONTAINER_OF(d, struct kube_source, discovery);

    out->is_synced = s->n_updates > 0;
    out->stale_s = stale_s(&s->members);
    if (s->pool_name) out->stale_s = MAX(out->stale_s, stale_s(&s->pool));
    out->n_used = s->stats.n_used;
    out->n_draining = s->stats.n_draining;
    out->n_left_out = s->stats.n_left_out + s->stats.n_portless + s->stats.n_too_many;
    out->n_updates = s->n_updates;
    out->n_refused = s->n_refused;
}

static void kube_destroy(struct discovery *d) {
    struct kube_source *s = CONTAINER_OF(d, struct kube_source, discovery);

    loop_defer_cancel(&s->report);
    loop_timer_fini(&s->later);
    loop_timer_fini(&s->members.again);
    loop_timer_fini(&s->pool.again);
    kube_costs_destroy(s->costs);
    kube_watch_destroy(s->members.watch);
    kube_watch_destroy(s->pool.watch);
    kube_client_destroy(s->client);
    kube_store_destroy(s->store);
    mem_free(s->selector);
    mem_free(s->service);
    mem_free(s->pool_name);
    mem_free(s);
}

static const struct discovery_ops kube_ops = {
    .name = "kubernetes", .stats = kube_stats, .destroy = kube_destroy};

static void follower_init(struct follower *f, struct kube_source *s,
                          const struct kube_watch_events *events) {
    f->source = s;
    f->events = events;
    f->right_us = loop_now_us(s->loop);
    loop_timer_init(&f->again, s->loop, on_again, f);
}

static char *copy(const char *z) {
    return z && z[0] ? mem_strdup(z) : NULL;
}

static struct kube_source *source_create(const struct discovery_kube_config *config,
                                         struct loop *loop, struct log *log, discovery_fn *fn,
                                         void *arg) {
    struct kube_source *s = mem_zalloc(sizeof(*s));

    s->discovery.ops = &kube_ops;
    s->loop = loop;
    s->log = log;
    s->fn = fn;
    s->arg = arg;
    s->resource = (enum kube_resource)config->resource;
    s->selector = mem_strdup(config->selector ? config->selector : "");
    s->service = copy(config->service);
    s->pool_name = copy(config->pool);
    s->is_everywhere = config->is_everywhere;
    s->port = config->port;
    s->max_workers = config->max_workers;
    s->store = kube_store_create(s->resource, config->role_label);
    kube_store_set_ports(s->store, s->port, NULL, 0);
    loop_task_init(&s->report, report_set, s);
    loop_timer_init(&s->later, loop, report_set, s);
    follower_init(&s->members, s, &member_events);
    follower_init(&s->pool, s, &pool_events);
    return s;
}

enum status discovery_kube_create(struct discovery **out,
                                  const struct discovery_kube_config *config, struct loop *loop,
                                  struct log *log, discovery_fn *fn, void *arg, struct error *err) {
    struct kube_source *s = source_create(config, loop, log, fn, arg);
    enum status st = kube_client_create(&s->client, loop, log, config->server, err);

    if (st == ST_OK) st = s->pool_name ? follow_pool(s, err) : follow_members(s, err);
    if (st != ST_OK) {
        kube_destroy(&s->discovery);
        return st;
    }
    if (config->value)
        s->costs = kube_costs_create(loop, log, s->client, s->store, KUBE_COSTS_EVERY_US,
                                     config->value, arg);
    *out = &s->discovery;
    return ST_OK;
}
