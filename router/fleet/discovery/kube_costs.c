/* router/fleet/discovery/kube_costs.c - see kube_costs.h.
 *
 *      timer: sum the cost of each pod --> those that changed wait --> a few PATCHes at once */
#include "router/fleet/discovery/kube_costs.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery/kube_client.h"

#define MAX_OPEN     4
#define LEAST_CHANGE 256
#define PATH_BYTES   (KUBE_NAME_MAX + KUBE_NAMESPACE_MAX + 64)

struct cost {
    struct list link; /* on `waiting`, until it is written */
    struct kube_costs *costs;
    struct http_call *call; /* while it is being written */
    char uid[DISCOVERY_UID_MAX];
    double sum; /* of its workers, this round */
    int32_t written, wanted;
    uint32_t round;
    bool is_written;
};

struct kube_costs {
    struct loop_timer timer;
    struct log *log;
    struct kube_client *client;
    struct kube_store *store;
    uint64_t every_us;
    kube_value_fn *value;
    void *arg;
    struct strmap by_uid;
    struct list waiting;
    uint32_t n_open, round;
    bool is_refused; /* the last answer was 403: logged once */
};

bool kube_costs_differ(int32_t before, int32_t now) {
    int64_t change = llabs((int64_t)now - before),
            of = MAX(llabs((int64_t)before), llabs((int64_t)now));

    return change >= LEAST_CHANGE && change * 10 > of;
}

/* --- writing ---------------------------------------------------------------------------------- */

static void write_next(struct kube_costs *c);

static void on_written(const struct http_client_response *response, void *arg) {
    struct cost *cost = arg;
    struct kube_costs *c = cost->costs;
    bool is_refused = response->status == ST_OK && response->code == 403;

    cost->call = NULL;
    c->n_open--;
    if (response->status == ST_OK && response->code / 100 == 2) {
        cost->written = cost->wanted;
        cost->is_written = true;
    }
    if (is_refused && !c->is_refused)
        log_event(c->log, LOG_WARN, "deletion_cost_refused",
                  log_z("remedy", "give the router's Role the verb patch on pods, or leave "
                                  "--k8s-write-deletion-cost away"));
    c->is_refused = is_refused;
    if (!is_refused) write_next(c);
}

static enum status write_cost(struct kube_costs *c, struct cost *cost) {
    const struct kube_pod *pod = kube_store_find(c->store, cost->uid);
    char path[PATH_BYTES], body[128];
    int n;

    if (!pod || !pod->name[0]) return ST_NOT_FOUND; /* the pod was removed meanwhile */
    snprintf(path, sizeof(path), "/api/v1/namespaces/%s/pods/%s", pod->namespace, pod->name);
    n = snprintf(body, sizeof(body),
                 "{\"metadata\":{\"annotations\":{\"controller.kubernetes.io/pod-deletion-cost\":"
                 "\"%d\"}}}",
                 cost->wanted);
    return kube_client_call(c->client, "PATCH", path, "application/merge-patch+json",
                            (struct str){body, (size_t)n}, on_written, cost, &cost->call, NULL);
}

static void write_next(struct kube_costs *c) {
    struct list *link;

    while (c->n_open < MAX_OPEN && (link = list_pop_front(&c->waiting)) != NULL)
        c->n_open += write_cost(c, LIST_ENTRY(link, struct cost, link)) == ST_OK;
}

/* --- what is to be written -------------------------------------------------------------------- */

static struct cost *get_cost(struct kube_costs *c, const char *uid) {
    struct cost *cost = strmap_find(&c->by_uid, str_of(uid));

    if (!cost) {
        cost = mem_zalloc(sizeof(*cost));
        cost->costs = c;
        snprintf(cost->uid, sizeof(cost->uid), "%s", uid);
        strmap_insert(&c->by_uid, str_of(uid), cost);
    }
    if (cost->round != c->round) cost->sum = 0;
    cost->round = c->round;
    return cost;
}

static void sum_up(struct kube_costs *c) {
    struct discovery_set set = {0};
    struct kube_store_stats stats;

    c->round++;
    kube_store_workers(c->store, DISCOVERY_MAX_WORKERS, &set, &stats);
    for (uint32_t i = 0; i < set.n; i++) {
        double value = c->value(set.workers[i].url.url, c->arg);

        if (value >= 0 && set.workers[i].uid[0]) get_cost(c, set.workers[i].uid)->sum += value;
    }
    discovery_set_fini(&set);
}

static void cost_destroy(struct cost *cost) {
    http_call_cancel(cost->call);
    if (list_is_linked(&cost->link)) list_remove(&cost->link);
    strmap_erase(&cost->costs->by_uid, str_of(cost->uid));
    mem_free(cost);
}

/* Frees the entries of removed pods, or all. */
static void forget(struct kube_costs *c, bool is_all) {
    struct cost **victims = mem_calloc(c->by_uid.n + 1, sizeof(struct cost *));
    const struct strmap_slot *slot;
    size_t n = 0;

    for (size_t i = 0; (slot = strmap_next(&c->by_uid, &i)) != NULL;) {
        struct cost *cost = slot->value;

        if (is_all || (cost->round != c->round && !cost->call)) victims[n++] = cost;
    }
    for (size_t i = 0; i < n; i++)
        cost_destroy(victims[i]);
    mem_free(victims);
}

static void on_timer(void *arg) {
    struct kube_costs *c = arg;
    const struct strmap_slot *slot;

    loop_timer_start(&c->timer, c->every_us);
    sum_up(c);
    forget(c, false);
    for (size_t i = 0; (slot = strmap_next(&c->by_uid, &i)) != NULL;) {
        struct cost *cost = slot->value;

        if (cost->call) continue;
        cost->wanted = (int32_t)MIN(cost->sum, (double)INT32_MAX);
        if (list_is_linked(&cost->link)) continue;
        if (!cost->is_written || kube_costs_differ(cost->written, cost->wanted))
            list_push_back(&c->waiting, &cost->link);
    }
    write_next(c);
}

struct kube_costs *kube_costs_create(struct loop *loop, struct log *log, struct kube_client *client,
                                     struct kube_store *store, uint64_t every_us,
                                     kube_value_fn *value, void *arg) {
    struct kube_costs *c = mem_zalloc(sizeof(*c));

    c->log = log;
    c->client = client;
    c->store = store;
    c->every_us = every_us;
    c->value = value;
    c->arg = arg;
    list_init(&c->waiting);
    strmap_init(&c->by_uid, 0);
    loop_timer_init(&c->timer, loop, on_timer, c);
    loop_timer_start(&c->timer, c->every_us);
    return c;
}

void kube_costs_destroy(struct kube_costs *c) {
    if (!c) return;
    loop_timer_fini(&c->timer);
    forget(c, true);
    strmap_fini(&c->by_uid);
    mem_free(c);
}
