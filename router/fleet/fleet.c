/* router/fleet/fleet.c - one entry per worker that is wanted, and the state it is in. */
#include "router/fleet/fleet.h"

#include <assert.h>
#include <string.h>

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/net/resolver.h"
#include "common/telemetry/log.h"
#include "router/access/certificates.h"
#include "router/fleet/health.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

#define RETRY_US 5000000u /* before adding a worker is tried again */

enum entry_state { LOOKING_UP, WAITING, IN, REMOVING };

struct entry {
    struct list link;
    struct fleet *fleet;
    struct discovery_worker worker;
    enum fleet_source source;
    enum entry_state state;
    uint32_t id;        /* IN, REMOVING */
    uint64_t until_us;  /* WAITING: the next try; REMOVING: the end of the drain */
    bool is_wanted;     /* false while LOOKING_UP: drop it when the answer comes */
    bool is_crowded;    /* WAITING: for room */
    bool is_stopped;    /* IN: an operator has set it to drain */
    fleet_added_fn *fn; /* called once when added */
    void *arg;
};

struct fleet {
    struct loop *loop;
    struct registry *registry;
    struct health *health;
    struct log *log;
    struct fleet_config config;
    struct resolver *resolver;
    struct list entries;
    struct strmap by_url; /* the same */
    struct entry *by_id[REGISTRY_MAX_WORKERS];
    uint32_t n;
    bool has_more_room; /* since the last tick */
};

static const char *const source_names[] = {
    [FLEET_STATIC] = "--worker-urls",     [FLEET_FILE] = "--worker-file",
    [FLEET_LAUNCHED] = "--launch",        [FLEET_API] = "the admin API",
    [FLEET_KUBE] = "--service-discovery", [FLEET_DNS] = "--worker-dns"};

static struct entry *find_url(const struct fleet *f, const char *url) {
    return strmap_find(&f->by_url, str_of(url));
}

static struct entry *find_id(const struct fleet *f, uint32_t id) {
    return id < REGISTRY_MAX_WORKERS ? f->by_id[id] : NULL;
}

static void entry_destroy(struct entry *e) {
    list_remove(&e->link);
    strmap_erase(&e->fleet->by_url, str_of(e->worker.url.url));
    e->fleet->n--;
    mem_free(e);
}

static void report_added(struct entry *e, enum status st, const struct error *err) {
    fleet_added_fn *fn = e->fn;

    e->fn = NULL;
    if (fn) fn(st, e->id, err, e->arg);
}

static bool is_drained(const struct entry *e) {
    return e->state == REMOVING || e->is_stopped || e->worker.is_draining;
}

static void show_draining(struct entry *e) {
    registry_set_draining(e->fleet->registry, e->id, DRAIN_OPERATOR, is_drained(e));
}

/* --- coming ------------------------------------------------------------------------------------*/

static void entry_failed(struct entry *e, enum status st, const struct error *err) {
    struct fleet *f = e->fleet;

    log_event(f->log, LOG_WARN, "worker_not_added", log_z("url", e->worker.url.url),
              log_z("why", err->message));
    report_added(e, st, err);
    if (!e->is_wanted || e->source == FLEET_API) {
        entry_destroy(e);
        return;
    }
    e->state = WAITING;
    e->is_crowded = st == ST_BUSY;
    e->until_us = loop_now_us(f->loop) + RETRY_US;
}

static void entry_found(struct entry *e, enum status st, const struct address *found,
                        const struct error *why) {
    struct fleet *f = e->fleet;
    struct error err = {0};

    if (why) err = *why;
    if (st == ST_OK && !e->is_wanted) {
        st =
            error_set(&err, ST_NOT_FOUND, "worker %s was removed meanwhile: add it again if needed",
                      e->worker.url.url);
    }
    if (st == ST_OK && e->worker.url.is_https && f->config.certificates) {
        st = certificates_expect_workers(f->config.certificates, &err);
    }
    if (st == ST_OK) st = registry_add_at(f->registry, &e->worker.url, found, &e->id, &err);
    if (st != ST_OK) {
        entry_failed(e, st, &err);
        return;
    }
    e->state = IN;
    f->by_id[e->id] = e;
    registry_configure(f->registry, e->id, e->worker.max_in_flight, e->worker.labels);
    show_draining(e);
    log_event(f->log, LOG_INFO, "worker_added", log_u64("worker", e->id),
              log_z("url", e->worker.url.url), log_z("by", source_names[e->source]));
    health_watch(f->health, e->id);
    report_added(e, ST_OK, NULL);
}

static void on_found(enum status st, const struct address *found, const struct error *err,
                     void *arg) {
    entry_found(arg, st, found, err);
}

/* The guard for the source of a worker; the operator's own list has none. */
static const struct address_guard *guard_of(const struct entry *e) {
    if (e->source == FLEET_API) return &e->fleet->config.guard;
    return e->source == FLEET_KUBE || e->source == FLEET_DNS ? &e->fleet->config.found_guard : NULL;
}

/* Numeric addresses are added at once, so that workers get ids in the order of their list. */
static void entry_look_up(struct entry *e) {
    struct fleet *f = e->fleet;
    const struct address_guard *guard = guard_of(e);
    struct address address;
    struct error err = {0};
    enum status st = address_resolve_number(&e->worker.url, guard, &address, &err);

    e->state = LOOKING_UP;
    if (st != ST_AGAIN) {
        entry_found(e, st, &address, &err);
        return;
    }
    st = resolver_start(f->resolver, &e->worker.url, guard, on_found, e, &err);
    if (st != ST_OK) entry_failed(e, st, &err);
}

static struct entry *entry_create(struct fleet *f, enum fleet_source source,
                                  const struct discovery_worker *worker) {
    struct entry *e = mem_zalloc(sizeof(*e));

    e->fleet = f;
    e->source = source;
    e->worker = *worker;
    e->is_wanted = true;
    list_push_back(&f->entries, &e->link);
    strmap_insert(&f->by_url, str_of(worker->url.url), e);
    f->n++;
    return e;
}

void fleet_add(struct fleet *f, enum fleet_source source, const struct discovery_worker *worker,
               fleet_added_fn *fn, void *arg) {
    struct entry *e = find_url(f, worker->url.url);
    struct error err = {0};

    if (e) {
        error_set_param(&err, ST_EXISTS, "url",
                        e->state == REMOVING ? "worker %s is leaving: try again when it has gone"
                                             : "worker %s is already there",
                        worker->url.url);
        if (fn) fn(ST_EXISTS, e->id, &err, arg);
        return;
    }
    e = entry_create(f, source, worker);
    e->fn = fn;
    e->arg = arg;
    entry_look_up(e);
}

/* --- going -------------------------------------------------------------------------------------*/

static void entry_remove(struct entry *e) {
    struct fleet *f = e->fleet;

    health_unwatch(f->health, e->id);
    if (registry_remove(f->registry, e->id) != ST_OK) assert(!"it is there while it has an id");
    f->by_id[e->id] = NULL;
    f->has_more_room = true;
    log_event(f->log, LOG_INFO, "worker_removed", log_u64("worker", e->id),
              log_z("url", e->worker.url.url));
    entry_destroy(e);
}

/* The worker is no longer wanted. May free e. */
static void entry_leave(struct entry *e) {
    struct fleet *f = e->fleet;

    switch (e->state) {
    case LOOKING_UP: e->is_wanted = false; break;
    case WAITING: entry_destroy(e); break;
    case IN:
        e->state = REMOVING;
        e->until_us = loop_now_us(f->loop) + f->config.drain_timeout_us;
        show_draining(e);
        log_event(f->log, LOG_INFO, "worker_draining_for_removal", log_u64("worker", e->id),
                  log_z("url", e->worker.url.url));
        break;
    case REMOVING: break;
    }
}

static void entry_stay(struct entry *e) {
    e->is_wanted = true;
    if (e->state != REMOVING) return;
    e->state = IN;
    show_draining(e);
}

static enum status not_found(uint32_t id, struct error *err) {
    return error_set(err, ST_NOT_FOUND, "unknown worker %u: GET /workers lists the workers", id);
}

enum status fleet_remove(struct fleet *f, uint32_t id, bool is_forced, struct error *err) {
    struct entry *e = find_id(f, id);

    if (!e) return not_found(id, err);
    if (e->source != FLEET_STATIC && e->source != FLEET_API) {
        return error_set(err, ST_EXISTS, "worker %s comes from %s, which would add it again: %s",
                         e->worker.url.url, source_names[e->source],
                         e->source == FLEET_FILE ? "remove it there"
                                                 : "set it to drain with PATCH instead");
    }
    if (is_forced) {
        entry_remove(e);
    } else {
        entry_leave(e);
    }
    return ST_OK;
}

enum status fleet_set_draining(struct fleet *f, uint32_t id, bool is_draining, struct error *err) {
    struct entry *e = find_id(f, id);

    if (!e) return not_found(id, err);
    e->is_stopped = is_draining;
    show_draining(e);
    return ST_OK;
}

static void entry_change(struct entry *e, const struct discovery_worker *worker) {
    if (e->worker.max_in_flight == worker->max_in_flight &&
        strcmp(e->worker.labels, worker->labels) == 0)
        return;
    e->worker.max_in_flight = worker->max_in_flight;
    memcpy(e->worker.labels, worker->labels, sizeof(e->worker.labels));
    if (e->state == IN || e->state == REMOVING) {
        registry_configure(e->fleet->registry, e->id, worker->max_in_flight, worker->labels);
    }
}

enum status fleet_change(struct fleet *f, uint32_t id, const struct discovery_worker *worker,
                         struct error *err) {
    struct entry *e = find_id(f, id);

    if (!e) return not_found(id, err);
    entry_change(e, worker);
    return ST_OK;
}

/* --- whole sets --------------------------------------------------------------------------------*/

/* Another worker is behind its URL; it has nothing of the old one's cache. */
static void entry_replace(struct entry *e, const char *uid) {
    struct fleet *f = e->fleet;
    bool is_other = e->worker.uid[0] && uid[0] && strcmp(e->worker.uid, uid) != 0;

    if (uid[0]) memcpy(e->worker.uid, uid, sizeof(e->worker.uid));
    if (!is_other || (e->state != IN && e->state != REMOVING)) return;
    e->is_stopped = false; /* that applied to the old worker */
    registry_replace(f->registry, e->id);
    health_unwatch(f->health, e->id);
    health_watch(f->health, e->id);
    log_event(f->log, LOG_INFO, "worker_replaced", log_u64("worker", e->id),
              log_z("url", e->worker.url.url), log_z("uid", uid));
}

static void entry_want(struct entry *e, const struct discovery_worker *worker) {
    bool was_drained = e->state == IN && is_drained(e);

    entry_replace(e, worker->uid);
    e->worker.is_draining = worker->is_draining;
    entry_stay(e);
    entry_change(e, worker);
    if (e->state != IN || was_drained == is_drained(e)) return;
    show_draining(e);
    if (was_drained)
        log_event(e->fleet->log, LOG_INFO, "worker_undrained", log_u64("worker", e->id),
                  log_z("url", e->worker.url.url), log_z("by", source_names[e->source]));
    else
        log_event(e->fleet->log, LOG_INFO, "worker_draining", log_u64("worker", e->id),
                  log_z("url", e->worker.url.url), log_z("by", source_names[e->source]));
}

void fleet_set(struct fleet *f, enum fleet_source source, const struct discovery_set *set) {
    LIST_FOR_EACH(it, &f->entries) {
        struct entry *e = LIST_ENTRY(it, struct entry, link);

        if (e->source == source && !discovery_set_find(set, e->worker.url.url)) entry_leave(e);
    }
    for (uint32_t i = 0; i < set->n; i++) {
        const struct discovery_worker *worker = &set->workers[i];
        struct entry *e = find_url(f, worker->url.url);

        if (!e) {
            if (!worker->is_draining) entry_look_up(entry_create(f, source, worker));
        } else if (e->source == source) {
            entry_want(e, worker);
        } else if (e->state == REMOVING ||
                   !e->is_wanted) { /* taken over from the source that released it */
            e->source = source;
            entry_want(e, worker);
        }
    }
}

/* --- time --------------------------------------------------------------------------------------*/

static void entry_tick(struct entry *e, bool has_more_room, uint64_t now_us) {
    struct registry_view view;

    if (e->state == WAITING && (now_us >= e->until_us || (e->is_crowded && has_more_room))) {
        entry_look_up(e);
    } else if (e->state == REMOVING) {
        bool is_idle =
            !registry_get(e->fleet->registry, e->id, &view) ||
            view.in_flight <= view.n_remote; /* requests of other routers need no drain here */

        if (is_idle || now_us >= e->until_us) entry_remove(e);
    }
}

void fleet_tick(struct fleet *f, uint64_t now_us) {
    bool has_more_room = f->has_more_room;

    f->has_more_room = false;
    LIST_FOR_EACH(it, &f->entries) {
        entry_tick(LIST_ENTRY(it, struct entry, link), has_more_room, now_us);
    }
}

/* --- the fleet ---------------------------------------------------------------------------------*/

const struct discovery_worker *fleet_worker(const struct fleet *f, uint32_t id) {
    const struct entry *e = find_id(f, id);

    return e ? &e->worker : NULL;
}

bool fleet_find(const struct fleet *f, const char *url, uint32_t *id) {
    const struct entry *e = find_url(f, url);

    if (!e || (e->state != IN && e->state != REMOVING)) return false;
    *id = e->id;
    return true;
}

bool fleet_is_from(const struct fleet *f, uint32_t id, enum fleet_source source) {
    const struct entry *e = find_id(f, id);

    return e && e->source == source;
}

uint32_t fleet_n_wanted(const struct fleet *f) {
    return f->n;
}

enum status fleet_create(struct fleet **out, struct loop *loop, struct registry *registry,
                         struct health *health, struct log *log, const struct fleet_config *config,
                         struct error *err) {
    struct fleet *f = mem_zalloc(sizeof(*f));
    enum status st;

    f->loop = loop;
    f->registry = registry;
    f->health = health;
    f->log = log;
    f->config = *config;
    list_init(&f->entries);
    st = resolver_create(&f->resolver, loop, err);
    if (st != ST_OK) {
        mem_free(f);
        return st;
    }
    *out = f;
    return ST_OK;
}

void fleet_set_drain_timeout(struct fleet *f, uint64_t timeout_us) {
    f->config.drain_timeout_us = timeout_us;
}

void fleet_destroy(struct fleet *f) {
    struct list *link;

    if (!f) return;
    resolver_destroy(f->resolver);
    while ((link = list_first(&f->entries)) != NULL)
        entry_destroy(LIST_ENTRY(link, struct entry, link));
    strmap_fini(&f->by_url);
    mem_free(f);
}

void fleet_check(const struct fleet *f) {
    uint32_t n = 0, n_in = 0, n_ids = 0;
    struct registry_view view;

    LIST_FOR_EACH(it, &f->entries) {
        struct entry *e = LIST_ENTRY(it, struct entry, link);
        bool is_in = e->state == IN || e->state == REMOVING;

        n++;
        n_in += is_in;
        assert(find_url(f, e->worker.url.url) == e);
        assert(e->is_wanted || e->state == LOOKING_UP || e->state == REMOVING);
        if (!is_in) continue;
        assert(f->by_id[e->id] == e && registry_get(f->registry, e->id, &view));
        assert(strcmp(view.url, e->worker.url.url) == 0);
        assert(((view.draining & DRAIN_OPERATOR) != 0) == is_drained(e));
    }
    for (uint32_t id = 0; id < REGISTRY_MAX_WORKERS; id++)
        n_ids += f->by_id[id] != NULL;
    strmap_check(&f->by_url);
    assert(n == f->n && n == f->by_url.n && n_in == n_ids);
}
