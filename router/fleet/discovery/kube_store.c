/* router/fleet/discovery/kube_store.c - see kube_store.h. */
#include "router/fleet/discovery/kube_store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/map.h"
#include "common/base/mem.h"

struct entry {
    struct kube_object object;
    uint32_t round; /* of the last list that had it */
    bool is_gone;   /* only its version counts */
};

struct kube_store {
    enum kube_resource resource;
    char *role_label;
    uint16_t port, targets[KUBE_TARGETS_MAX];
    uint32_t n_targets;
    struct strmap by_key;
    uint32_t round, n_gone;
    uint32_t n_pods; /* of all entries */
    bool is_listing;
};

struct kube_store *kube_store_create(enum kube_resource resource, const char *role_label) {
    struct kube_store *s = mem_zalloc(sizeof(*s));
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    s->resource = resource;
    s->role_label = mem_strdup(role_label);
    strmap_init(&s->by_key, seed);
    return s;
}

static void entry_destroy(struct entry *e) {
    kube_object_fini(&e->object);
    mem_free(e);
}

void kube_store_destroy(struct kube_store *s) {
    const struct strmap_slot *slot;

    if (!s) return;
    for (size_t i = 0; (slot = strmap_next(&s->by_key, &i)) != NULL;)
        entry_destroy(slot->value);
    strmap_fini(&s->by_key);
    mem_free(s->role_label);
    mem_free(s);
}

void kube_store_set_ports(struct kube_store *s, uint16_t port, const uint16_t *targets,
                          uint32_t n_targets) {
    s->port = port;
    s->n_targets = MIN(n_targets, KUBE_TARGETS_MAX);
    for (uint32_t i = 0; i < s->n_targets; i++)
        s->targets[i] = targets[i];
}

/* --- what is published ------------------------------------------------------------------------ */

/* Removes deleted entries, and with `is_sweep` those missing in this round. */
static void forget(struct kube_store *s, bool is_sweep) {
    struct entry **victims = mem_calloc(s->by_key.n + 1, sizeof(struct entry *));
    const struct strmap_slot *slot;
    size_t n = 0;

    for (size_t i = 0; (slot = strmap_next(&s->by_key, &i)) != NULL;) {
        struct entry *e = slot->value;

        if (e->is_gone || (is_sweep && e->round != s->round)) victims[n++] = e;
    }
    for (size_t i = 0; i < n; i++) {
        s->n_gone -= victims[i]->is_gone;
        s->n_pods -= victims[i]->object.n_pods;
        strmap_erase(&s->by_key, str_of(victims[i]->object.key));
        entry_destroy(victims[i]);
    }
    mem_free(victims);
}

void kube_store_begin(struct kube_store *s) {
    s->is_listing = true;
    s->round++;
}

void kube_store_end(struct kube_store *s) {
    if (!s->is_listing) return;
    s->is_listing = false;
    forget(s, true);
}

static bool is_late(const struct kube_store *s, const struct entry *e,
                    const struct kube_object *object) {
    if (s->is_listing || e->object.version == 0 || object->version == 0) return false;
    return e->is_gone ? object->version <= e->object.version : object->version < e->object.version;
}

/* For `object` in the place of `e`, which may be NULL. */
static bool has_room(const struct kube_store *s, const struct entry *e,
                     const struct kube_object *object) {
    if (!e && s->by_key.n >= KUBE_STORE_MAX) return false;
    return s->n_pods - (e ? e->object.n_pods : 0) + object->n_pods <= KUBE_STORE_MAX;
}

/* The entry of this key, created if absent. */
static enum status get_entry(struct kube_store *s, const struct kube_object *object,
                             struct entry **out, struct error *err) {
    struct entry *e = strmap_find(&s->by_key, str_of(object->key));

    if (!e && s->by_key.n >= KUBE_STORE_MAX && s->n_gone) forget(s, false);
    if (!has_room(s, e, object))
        return error_set(err, ST_TOO_LARGE,
                         "more than %d objects are selected: select fewer with --k8s-selector",
                         KUBE_STORE_MAX);
    if (!e) {
        e = mem_zalloc(sizeof(*e));
        memcpy(e->object.key, object->key, sizeof(e->object.key));
        strmap_insert(&s->by_key, str_of(object->key), e);
    }
    *out = e;
    return ST_OK;
}

/* Takes the contents of `object` in every case. */
static enum status put(struct kube_store *s, struct kube_object *object, bool is_gone,
                       struct error *err) {
    struct entry *e = NULL;
    enum status st = get_entry(s, object, &e, err);

    if (st != ST_OK || is_late(s, e, object)) {
        kube_object_fini(object);
        return st;
    }
    s->n_pods += object->n_pods - e->object.n_pods;
    kube_object_fini(&e->object);
    s->n_gone += (uint32_t)is_gone - (uint32_t)e->is_gone;
    e->object = *object;
    e->is_gone = is_gone;
    e->round = s->round;
    return ST_OK;
}

enum status kube_store_object(struct kube_store *s, struct str json, struct error *err) {
    struct kube_object object;
    enum status st = s->resource == KUBE_PODS ? kube_pod_read(&object, json, s->role_label, err)
                                              : kube_slice_read(&object, json, err);

    return st == ST_OK ? put(s, &object, false, err) : st;
}

enum status kube_store_gone(struct kube_store *s, struct str json, struct error *err) {
    struct kube_object object;
    enum status st = kube_identity_read(&object, json, err);

    return st == ST_OK ? put(s, &object, true, err) : st;
}

/* --- what follows ----------------------------------------------------------------------------- */

struct candidate {
    const struct kube_pod *pod;
    uint16_t port;
};

struct candidates {
    struct candidate *items;
    size_t n, cap;
};

static void push(struct candidates *c, const struct kube_pod *pod, uint16_t port) {
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 64;
        c->items = mem_realloc(c->items, c->cap * sizeof(*c->items));
    }
    c->items[c->n++] = (struct candidate){pod, port};
}

/* Its own ports, or the default. */
static uint32_t ports_of(const struct kube_store *s, const struct kube_pod *pod,
                         const uint16_t **out) {
    if (pod->n_ports) {
        *out = pod->ports;
        return pod->n_ports;
    }
    *out = s->n_targets ? s->targets : s->port ? &s->port : &pod->usual_port;
    return s->n_targets ? s->n_targets : **out != 0;
}

static void collect_pod(const struct kube_store *s, const struct kube_pod *pod,
                        struct candidates *out, struct kube_store_stats *stats) {
    const uint16_t *ports;
    uint32_t n = ports_of(s, pod, &ports);

    if (pod->left_out_as[0]) {
        stats->n_left_out++;
        stats->left_out = pod;
    }
    if (pod->use == KUBE_UNUSED) return;
    if (n == 0) {
        stats->n_portless++;
        stats->portless = pod;
    }
    if (pod->is_misread) {
        stats->n_misread++;
        stats->misread = pod;
    }
    for (uint32_t i = 0; i < n; i++)
        push(out, pod, ports[i]);
}

static void collect(const struct kube_store *s, struct candidates *out,
                    struct kube_store_stats *stats) {
    const struct strmap_slot *slot;

    for (size_t i = 0; (slot = strmap_next(&s->by_key, &i)) != NULL;) {
        const struct entry *e = slot->value;

        stats->n_objects += !e->is_gone;
        for (uint32_t k = 0; k < e->object.n_pods; k++)
            collect_pod(s, &e->object.pods[k], out, stats);
    }
}

static int sign(int64_t v) {
    return (v > 0) - (v < 0);
}

/* Negative: a precedes b of two with one endpoint. A total order, so that routers agree. */
static int preference(const struct kube_pod *a, const struct kube_pod *b) {
    bool a_is_6 = strchr(a->host, ':') != NULL, b_is_6 = strchr(b->host, ':') != NULL;
    int order;

    if (a->use != b->use) return (int)b->use - (int)a->use;
    if (a_is_6 != b_is_6) return (int)a_is_6 - (int)b_is_6;
    if ((order = strcmp(b->created, a->created)) != 0) return order;
    if ((order = strcmp(a->uid, b->uid)) != 0) return order;
    return strcmp(a->host, b->host);
}

static int by_address(const void *x, const void *y) {
    const struct candidate *a = x, *b = y;
    int order = sign((int64_t)a->port - b->port);

    if (order == 0) order = strcmp(a->pod->host, b->pod->host);
    return order ? order : preference(a->pod, b->pod);
}

static int by_target(const void *x, const void *y) {
    const struct candidate *a = x, *b = y;
    int order = sign((int64_t)a->port - b->port);

    if (order == 0) order = strcmp(a->pod->uid, b->pod->uid);
    return order ? order : preference(a->pod, b->pod);
}

static int by_age(const void *x, const void *y) {
    const struct candidate *a = x, *b = y;
    int order = (int)b->pod->use - (int)a->pod->use;

    if (order == 0) order = strcmp(a->pod->created, b->pod->created);
    if (order == 0) order = strcmp(a->pod->uid, b->pod->uid);
    if (order == 0) order = strcmp(a->pod->host, b->pod->host);
    return order ? order : sign((int64_t)a->port - b->port);
}

static bool same_address(const struct candidate *a, const struct candidate *b) {
    return a->port == b->port && strcmp(a->pod->host, b->pod->host) == 0;
}

static bool same_target(const struct candidate *a, const struct candidate *b) {
    return a->port == b->port && a->pod->uid[0] && strcmp(a->pod->uid, b->pod->uid) == 0;
}

/* Keeps the first of each run of equals. */
static void merge(struct candidates *c, int (*order)(const void *, const void *),
                  bool (*is_same)(const struct candidate *, const struct candidate *)) {
    size_t n = 0;

    if (c->n) qsort(c->items, c->n, sizeof(*c->items), order);
    for (size_t i = 0; i < c->n; i++)
        if (n == 0 || !is_same(&c->items[n - 1], &c->items[i])) c->items[n++] = c->items[i];
    c->n = n;
}

static void add(struct discovery_set *out, const struct candidate *c,
                struct kube_store_stats *stats) {
    bool is_6 = strchr(c->pod->host, ':') != NULL;
    struct discovery_worker worker = {.is_draining = c->pod->use == KUBE_DRAIN};
    char url[ADDRESS_URL_MAX];

    snprintf(url, sizeof(url), is_6 ? "http://[%s]:%u" : "http://%s:%u", c->pod->host, c->port);
    memcpy(worker.uid, c->pod->uid, sizeof(worker.uid));
    memcpy(worker.labels, c->pod->labels, sizeof(worker.labels));
    if (address_split(str_of(url), &worker.url, NULL) != ST_OK) assert(!"a number and a port");
    if (discovery_set_add(out, &worker, NULL) != ST_OK) return; /* one address in two spellings */
    stats->n_used += !worker.is_draining;
    stats->n_draining += worker.is_draining;
}

void kube_store_workers(struct kube_store *s, uint32_t max, struct discovery_set *out,
                        struct kube_store_stats *stats) {
    struct candidates c = {0};
    size_t n;

    *stats = (struct kube_store_stats){0};
    max = MIN(max, DISCOVERY_MAX_WORKERS);
    collect(s, &c, stats);
    if (s->resource == KUBE_ENDPOINTSLICES) merge(&c, by_target, same_target);
    merge(&c, by_address, same_address);
    if (c.n) qsort(c.items, c.n, sizeof(*c.items), by_age);
    n = MIN(c.n, max);
    for (size_t i = 0; i < n; i++)
        add(out, &c.items[i], stats);
    for (size_t i = n; i < c.n && c.items[i].pod->use == KUBE_USE; i++)
        stats->n_too_many++;
    mem_free(c.items);
}

const struct kube_pod *kube_store_find(const struct kube_store *s, const char *uid) {
    const struct entry *e = strmap_find(&s->by_key, str_of(uid));

    return e && e->object.n_pods ? e->object.pods : NULL;
}

void kube_store_check(const struct kube_store *s) {
    const struct strmap_slot *slot;
    uint32_t n_gone = 0, n_pods = 0;

    strmap_check(&s->by_key);
    for (size_t i = 0; (slot = strmap_next(&s->by_key, &i)) != NULL;) {
        const struct entry *e = slot->value;

        assert(str_eq(slot->key, str_of(e->object.key)));
        assert(!e->is_gone || e->object.n_pods == 0);
        assert(e->round <= s->round);
        n_gone += e->is_gone;
        n_pods += e->object.n_pods;
    }
    assert(n_pods == s->n_pods && n_pods <= KUBE_STORE_MAX);
    assert(n_gone == s->n_gone && s->by_key.n <= KUBE_STORE_MAX);
}
