/* tests/unit/router/fleet/test_kube_store.c - a store of pods against a cluster that is known, and
 * the fleet that follows from it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "router/fleet/discovery/kube_store.h"
#include "router/fleet/fleet.h"
#include "router/fleet/health.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "tests/support/cm.h"
#include "tests/support/pods.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define ROLE "incipit.dev/role"

static void deliver(struct kube_store *s, const struct pod_text *text) {
    struct error err = {0};
    struct buf json;

    buf_init(&json, 0);
    pod_text_write(&json, text);
    if (kube_store_object(s, buf_str(&json), &err) != ST_OK) fail_msg("%s", err.message);
    buf_fini(&json);
}

static void deliver_deletion(struct kube_store *s, const struct pod_text *text) {
    struct buf json;

    buf_init(&json, 0);
    pod_text_write(&json, text);
    assert_int_equal(kube_store_gone(s, buf_str(&json), NULL), ST_OK);
    buf_fini(&json);
}

/* "10.0.0.1:8000 10.0.0.2:8000(drains)" */
static const char *shown(struct kube_store *s, uint32_t max, struct kube_store_stats *stats) {
    static char out[2048];
    struct kube_store_stats unused;
    struct discovery_set set = {0};
    size_t n = 0;

    out[0] = '\0';
    kube_store_workers(s, max, &set, stats ? stats : &unused);
    for (uint32_t i = 0; i < set.n; i++)
        n += (size_t)snprintf(out + n, sizeof(out) - n, "%s%s%s", i ? " " : "",
                              set.workers[i].url.authority,
                              set.workers[i].is_draining ? "(drains)" : "");
    discovery_set_fini(&set);
    kube_store_check(s);
    return out;
}

#define SHOWS(s, text) assert_string_equal(shown(s, 100, NULL), text)

static void pods_missing_in_a_list_are_removed(void **state) {
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);

    (void)state;
    kube_store_begin(s);
    deliver(s, &(struct pod_text){.name = "a", .ip = "10.0.0.1", .created = "1"});
    deliver(s, &(struct pod_text){.name = "b", .ip = "10.0.0.2", .created = "2"});
    kube_store_end(s);
    SHOWS(s, "10.0.0.1:8000 10.0.0.2:8000");
    kube_store_begin(s);
    SHOWS(s, "10.0.0.1:8000 10.0.0.2:8000");
    deliver(s, &(struct pod_text){.name = "b", .ip = "10.0.0.2", .created = "2"});
    kube_store_begin(s); /* the list failed half-way and restarts */
    deliver(s, &(struct pod_text){.name = "b", .ip = "10.0.0.2", .created = "2"});
    kube_store_end(s);
    SHOWS(s, "10.0.0.2:8000");
    kube_store_destroy(s);
}

static void a_late_event_changes_nothing(void **state) {
    struct pod_text a = {.name = "a", .ip = "10.0.0.1", .version = 5};
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);

    (void)state;
    deliver(s, &a);
    deliver(s, &(struct pod_text){.name = "a", .ip = "10.0.0.1", .version = 7, .is_deleted = true});
    SHOWS(s, "10.0.0.1:8000(drains)");
    deliver(s, &a);
    SHOWS(s, "10.0.0.1:8000(drains)");
    a.version = 9;
    deliver_deletion(s, &a);
    SHOWS(s, "");
    a.version = 8;
    deliver(s, &a);
    SHOWS(s, "");
    a.version = 12; /* its label came back */
    deliver(s, &a);
    SHOWS(s, "10.0.0.1:8000");
    kube_store_begin(s); /* the cluster was restored from an old copy */
    a.version = 3;
    deliver(s, &a);
    kube_store_end(s);
    a.version = 4;
    a.ready = "False";
    deliver(s, &a);
    SHOWS(s, "10.0.0.1:8000(drains)");
    kube_store_destroy(s);
}

static void an_address_belongs_to_its_current_pod(void **state) {
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);
    struct discovery_set set = {0};
    struct kube_store_stats stats;

    (void)state;
    deliver(
        s, &(struct pod_text){.name = "old", .ip = "10.0.0.1", .is_deleted = true, .created = "1"});
    deliver(s, &(struct pod_text){.name = "new", .ip = "10.0.0.1", .created = "2"});
    kube_store_workers(s, 100, &set, &stats);
    assert_int_equal(set.n, 1);
    assert_string_equal(set.workers[0].uid, "uid-new");
    assert_false(set.workers[0].is_draining);
    discovery_set_fini(&set);
    deliver(s, &(struct pod_text){.name = "old", .ip = "10.0.0.1", .created = "1"});
    kube_store_workers(s, 100, &set, &stats);
    assert_string_equal(set.workers[0].uid, "uid-new"); /* both claim it: the younger is right */
    discovery_set_fini(&set);
    kube_store_destroy(s);
}

static void every_port_is_a_worker(void **state) {
    static const uint16_t targets[] = {9000, 9001};
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);
    struct kube_store_stats stats;

    (void)state;
    deliver(s, &(struct pod_text){
                   .name = "a", .ip = "10.0.0.1", .annotations = "\"incipit.dev/ports\":\"1,2\""});
    deliver(s, &(struct pod_text){.name = "b", .ip = "fd00::b"});
    deliver(s, &(struct pod_text){.name = "c", .ip = "10.0.0.3", .containers = "[]"});
    assert_string_equal(shown(s, 100, &stats), "10.0.0.1:1 10.0.0.1:2 [fd00::b]:8000");
    assert_int_equal(stats.n_portless, 1);
    assert_string_equal(stats.portless->name, "c");
    kube_store_set_ports(s, 80, NULL, 0);
    SHOWS(s, "10.0.0.1:1 10.0.0.1:2 [fd00::b]:80 10.0.0.3:80");
    kube_store_set_ports(s, 80, targets, 2);
    SHOWS(s, "10.0.0.1:1 10.0.0.1:2 [fd00::b]:9000 [fd00::b]:9001 10.0.0.3:9000 10.0.0.3:9001");
    kube_store_destroy(s);
}

static void invalid_ports_are_ignored_and_counted(void **state) {
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);
    struct kube_store_stats stats;

    (void)state;
    deliver(s, &(struct pod_text){.name = "a",
                                  .ip = "10.0.0.1",
                                  .annotations = "\"incipit.dev/ports\":\"80;81\""});
    deliver(s, &(struct pod_text){.name = "b", .ip = "10.0.0.2"});
    assert_string_equal(shown(s, 100, &stats), "10.0.0.1:8000 10.0.0.2:8000");
    assert_int_equal(stats.n_misread, 1);
    assert_string_equal(stats.misread->name, "a");
    deliver(s, &(struct pod_text){.name = "a",
                                  .ip = "10.0.0.1",
                                  .annotations = "\"incipit.dev/ports\":\"80,81\""});
    assert_string_equal(shown(s, 100, &stats), "10.0.0.1:80 10.0.0.1:81 10.0.0.2:8000");
    assert_int_equal(stats.n_misread, 0);
    kube_store_destroy(s);
}

static void where_there_are_too_many_the_young_wait(void **state) {
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);
    struct kube_store_stats stats;

    (void)state;
    deliver(s, &(struct pod_text){.name = "c", .ip = "10.0.0.3", .created = "3"});
    deliver(s, &(struct pod_text){.name = "a", .ip = "10.0.0.1", .created = "1", .ready = "False"});
    deliver(s, &(struct pod_text){.name = "b", .ip = "10.0.0.2", .created = "2"});
    assert_string_equal(shown(s, 2, &stats), "10.0.0.2:8000 10.0.0.3:8000");
    assert_int_equal(stats.n_too_many, 0); /* who is not ready is not missed */
    assert_string_equal(shown(s, 1, &stats), "10.0.0.2:8000");
    assert_int_equal(stats.n_too_many, 1);
    kube_store_destroy(s);
}

/* --- slices ----------------------------------------------------------------------------------- */

static void deliver_slice(struct kube_store *s, const char *name, const char *endpoints) {
    struct error err = {0};
    struct buf json;

    buf_init(&json, 0);
    buf_appendf(&json,
                "{\"metadata\":{\"uid\":\"%s\"},\"endpoints\":[%s],\"ports\":[{\"port\":8000}]}",
                name, endpoints);
    if (kube_store_object(s, buf_str(&json), &err) != ST_OK) fail_msg("%s", err.message);
    buf_fini(&json);
}

#define ENDPOINT(ip, uid, conditions)                                                              \
    "{\"addresses\":[\"" ip "\"],\"targetRef\":{\"uid\":\"" uid "\"},\"conditions\":{" conditions  \
    "}}"
#define READY "\"ready\":true"
#define GOING "\"ready\":false,\"serving\":true,\"terminating\":true"

static void slices_of_a_service_are_one_set(void **state) {
    struct kube_store *s = kube_store_create(KUBE_ENDPOINTSLICES, ROLE);

    (void)state;
    deliver_slice(s, "s1", ENDPOINT("10.0.0.1", "a", READY) "," ENDPOINT("10.0.0.2", "b", GOING));
    deliver_slice(s, "s2", ENDPOINT("10.0.0.3", "c", READY));
    SHOWS(s, "10.0.0.1:8000 10.0.0.3:8000 10.0.0.2:8000(drains)");
    /* One that is moved to another slice stands in both for a moment. */
    deliver_slice(s, "s2", ENDPOINT("10.0.0.3", "c", READY) "," ENDPOINT("10.0.0.2", "b", READY));
    SHOWS(s, "10.0.0.1:8000 10.0.0.2:8000 10.0.0.3:8000");
    deliver_slice(s, "s1", ENDPOINT("10.0.0.1", "a", READY));
    SHOWS(s, "10.0.0.1:8000 10.0.0.2:8000 10.0.0.3:8000");
    /* A pod of two addresses is one worker. */
    deliver_slice(s, "s6", ENDPOINT("fd00::1", "a", READY) "," ENDPOINT("fd00::4", "d", READY));
    SHOWS(s, "10.0.0.1:8000 10.0.0.2:8000 10.0.0.3:8000 [fd00::4]:8000");
    assert_int_equal(kube_store_gone(s, STR("{\"metadata\":{\"uid\":\"s1\"}}"), NULL), ST_OK);
    SHOWS(s, "[fd00::1]:8000 10.0.0.2:8000 10.0.0.3:8000 [fd00::4]:8000");
    kube_store_destroy(s);
}

/* A slice may have a thousand of them: what is counted is what takes memory. */
static void endpoints_are_counted_not_slices(void **state) {
    struct kube_store *s = kube_store_create(KUBE_ENDPOINTSLICES, ROLE);
    enum status st = ST_OK;
    struct error err = {0};
    struct buf json;
    int i;

    (void)state;
    for (i = 0; i < 100 && st == ST_OK; i++) {
        buf_init(&json, 0);
        buf_appendf(&json, "{\"metadata\":{\"uid\":\"s%d\"},\"endpoints\":[", i);
        for (int k = 0; k < KUBE_ENDPOINTS_MAX; k++)
            buf_appendf(&json, "%s{\"addresses\":[\"10.0.%d.%d\"]}", k ? "," : "", k / 250,
                        k % 250);
        buf_appendf(&json, "],\"ports\":[{\"port\":%d}]}", 8000 + i);
        st = kube_store_object(s, buf_str(&json), &err);
        buf_fini(&json);
    }
    assert_int_equal(st, ST_TOO_LARGE);
    assert_non_null(strstr(err.message, "--k8s-selector"));
    assert_int_equal(i, KUBE_STORE_MAX / KUBE_ENDPOINTS_MAX + 1);
    kube_store_check(s);
    deliver_slice(s, "s1", ENDPOINT("10.0.0.1", "a", READY)); /* one that gets smaller makes room */
    deliver_slice(s, "s99", ENDPOINT("10.0.0.2", "b", READY));
    assert_int_equal(kube_store_gone(s, STR("{\"metadata\":{\"uid\":\"s2\"}}"), NULL), ST_OK);
    kube_store_check(s);
    kube_store_destroy(s);
}

/* --- against a cluster that is known ---------------------------------------------------------- */

#define N_PODS      12
#define N_ADDRESSES 6
#define N_EVENTS    64

struct known_pod {
    bool is_there, is_ready, is_deleted, is_failed;
    int address; /* -1: none yet */
    uint64_t version, born;
    char uid[32];
};

struct known_event {
    int slot;
    struct known_pod pod;
    bool is_gone;
};

struct cluster {
    struct known_pod pods[N_PODS];
    struct known_event
        events[N_EVENTS]; /* since the last list; the first n_updates may come again */
    uint32_t n_events, n_updates;
    uint64_t version;
};

static void write_event(struct buf *json, const struct known_event *e) {
    const struct known_pod *p = &e->pod;
    char name[32], ip[32], created[32];

    snprintf(name, sizeof(name), "w-%d", e->slot);
    snprintf(ip, sizeof(ip), "127.0.0.1%d", p->address);
    snprintf(created, sizeof(created), "%012llu", (unsigned long long)p->born);
    pod_text_write(json, &(struct pod_text){.name = name,
                                            .uid = p->uid,
                                            .ip = p->address < 0 ? NULL : ip,
                                            .phase = p->is_failed ? "Failed" : NULL,
                                            .ready = p->is_ready ? "True" : "False",
                                            .created = created,
                                            .is_deleted = p->is_deleted,
                                            .version = p->version});
}

static void deliver_event(struct kube_store *s, const struct known_event *e) {
    struct buf json;

    buf_init(&json, 0);
    write_event(&json, e);
    if (e->is_gone) {
        assert_int_equal(kube_store_gone(s, buf_str(&json), NULL), ST_OK);
    } else {
        assert_int_equal(kube_store_object(s, buf_str(&json), NULL), ST_OK);
    }
    buf_fini(&json);
}

static void happen(struct cluster *c, struct rng *rng) {
    int slot = (int)rng_below(rng, N_PODS);
    struct known_pod *p = &c->pods[slot];
    bool is_gone = false;

    if (c->n_events == N_EVENTS) return;
    if (!p->is_there) { /* another pod, of the same name as of a StatefulSet */
        *p = (struct known_pod){.is_there = true, .address = -1, .born = ++c->version};
        snprintf(p->uid, sizeof(p->uid), "u-%llu", (unsigned long long)p->born);
    } else {
        switch (rng_below(rng, 6)) {
        case 0:
        case 1: p->address = (int)rng_below(rng, N_ADDRESSES); break;
        case 2: p->is_ready = !p->is_ready; break;
        case 3: p->is_deleted = true; break;
        case 4: p->is_failed = rng_below(rng, 4) == 0; break;
        case 5: is_gone = true; break;
        }
        c->version++;
    }
    p->version = c->version;
    c->events[c->n_events++] = (struct known_event){slot, *p, is_gone};
    if (is_gone) p->is_there = false;
}

static void list(struct cluster *c, struct kube_store *s) {
    kube_store_begin(s);
    for (int i = 0; i < N_PODS; i++)
        if (c->pods[i].is_there) deliver_event(s, &(struct known_event){i, c->pods[i], false});
    kube_store_end(s);
    c->n_events = c->n_updates = 0;
}

/* The rest of the events in any order, some of them again. */
static void catch_up(struct cluster *c, struct kube_store *s, struct rng *rng) {
    while (c->n_updates < c->n_events) {
        uint32_t i = c->n_updates + (uint32_t)rng_below(rng, c->n_events - c->n_updates);
        struct known_event e = c->events[i];

        c->events[i] = c->events[c->n_updates];
        c->events[c->n_updates++] = e;
        deliver_event(s, &e);
        if (rng_below(rng, 3) == 0) deliver_event(s, &c->events[rng_below(rng, c->n_updates)]);
    }
}

/* The pod that has this address, or NULL. */
static const struct known_pod *owner(const struct cluster *c, int address) {
    const struct known_pod *best = NULL;
    bool best_is_used = false;

    for (int i = 0; i < N_PODS; i++) {
        const struct known_pod *p = &c->pods[i];
        bool is_used = p->is_ready && !p->is_deleted;

        if (!p->is_there || p->address != address || p->is_failed) continue;
        if (best && (best_is_used > is_used || (best_is_used == is_used && best->born > p->born)))
            continue;
        best = p;
        best_is_used = is_used;
    }
    return best;
}

static void compare(const struct cluster *c, const struct discovery_set *set, int step) {
    uint32_t n = 0;

    for (int a = 0; a < N_ADDRESSES; a++) {
        const struct known_pod *p = owner(c, a);
        const struct discovery_worker *w;
        char url[64];

        snprintf(url, sizeof(url), "http://127.0.0.1%d:8000", a);
        w = discovery_set_find(set, url);
        if (!p != !w) fail_msg("step %d: %s is %s", step, url, w ? "there" : "missing");
        if (!p) continue;
        n++;
        if (strcmp(w->uid, p->uid) != 0)
            fail_msg("step %d: %s is %s, not %s", step, url, w->uid, p->uid);
        assert_int_equal(w->is_draining, !p->is_ready || p->is_deleted);
    }
    assert_int_equal(set->n, n);
}

/* No server listens there: only the fleet acts. */
struct fixture {
    struct loop *loop;
    struct registry *registry;
    struct http_client *client;
    struct health *health;
    struct fleet *fleet;
};

static void start(struct fixture *fx) {
    struct registry_config rc = {0};
    struct health_config hc = {.interval_us = 3600000000u,
                               .timeout_ms = 100,
                               .n_misses = 2,
                               .n_hits = 1,
                               .max_workers = 32,
                               .path = "/health"};
    struct fleet_config fc = {.drain_timeout_us = 1000000};

    assert_int_equal(address_guard_allow(&fc.found_guard, "0.0.0.0/0", NULL), ST_OK);
    routing_options_default(&rc.routing);
    rc.routing.policy = policy_find(STR("round_robin"));
    rc.routing.max_workers = 32;
    rc.routing.max_index_bytes = 1 << 20;
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(registry_create(&fx->registry, &rc, NULL), ST_OK);
    assert_int_equal(http_client_create(&fx->client, fx->loop, NULL), ST_OK);
    fx->health = health_create(fx->loop, fx->client, fx->registry, NULL, &hc, NULL, NULL);
    assert_int_equal(fleet_create(&fx->fleet, fx->loop, fx->registry, fx->health, NULL, &fc, NULL),
                     ST_OK);
}

static void finish(struct fixture *fx) {
    fleet_destroy(fx->fleet);
    health_destroy(fx->health);
    http_client_destroy(fx->client);
    registry_destroy(fx->registry);
    loop_destroy(fx->loop);
}

/* A pod in use is registered and eligible once probed; a registered pod out of use drains. */
static void compare_fleet(struct fixture *fx, const struct discovery_set *set) {
    struct registry_view view;
    uint32_t n_used = 0, n_open = 0, id;

    for (uint32_t i = 0; i < set->n; i++) {
        const struct discovery_worker *w = &set->workers[i];

        n_used += !w->is_draining;
        if (!fleet_find(fx->fleet, w->url.url, &id)) {
            assert_true(w->is_draining); /* no worker starts as draining */
            continue;
        }
        assert_string_equal(fleet_worker(fx->fleet, id)->uid, w->uid);
        assert_true(registry_get(fx->registry, id, &view));
        assert_int_equal((view.reasons & WORKER_DRAINING) != 0, w->is_draining);
    }
    for (id = 0; id < registry_n_ids(fx->registry); id++)
        n_open += registry_get(fx->registry, id, &view) && !(view.reasons & WORKER_DRAINING);
    assert_int_equal(n_open, n_used);
}

static void after_any_events_the_workers_are_those_of_the_cluster(void **state) {
    struct kube_store *s = kube_store_create(KUBE_PODS, ROLE);
    struct cluster c = {0};
    struct fixture fx;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&fx);
    for (int step = 0; step < 4000; step++) {
        struct discovery_set set = {0};
        struct kube_store_stats stats;

        for (uint32_t n = (uint32_t)rng_below(&rng, 6); n > 0; n--)
            happen(&c, &rng);
        if (c.n_events > N_EVENTS / 2 || rng_below(&rng, 10) == 0) {
            list(&c, s); /* whatever events were lost before */
        } else {
            catch_up(&c, s, &rng);
        }
        kube_store_check(s);
        kube_store_workers(s, 100, &set, &stats);
        compare(&c, &set, step);
        fleet_set(fx.fleet, FLEET_KUBE, &set);
        if (rng_below(&rng, 2)) fleet_tick(fx.fleet, loop_now_us(fx.loop) + (uint64_t)step * 10);
        fleet_check(fx.fleet);
        compare_fleet(&fx, &set);
        discovery_set_fini(&set);
    }
    finish(&fx);
    kube_store_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pods_missing_in_a_list_are_removed),
        cmocka_unit_test(a_late_event_changes_nothing),
        cmocka_unit_test(an_address_belongs_to_its_current_pod),
        cmocka_unit_test(every_port_is_a_worker),
        cmocka_unit_test(invalid_ports_are_ignored_and_counted),
        cmocka_unit_test(where_there_are_too_many_the_young_wait),
        cmocka_unit_test(slices_of_a_service_are_one_set),
        cmocka_unit_test(endpoints_are_counted_not_slices),
        cmocka_unit_test(after_any_events_the_workers_are_those_of_the_cluster),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
