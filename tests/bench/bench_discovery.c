/* tests/bench/bench_discovery.c - what one event of one pod costs the control loop, by the size of
 * the fleet: reading it, rebuilding the set, comparing the set. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "router/fleet/discovery/kube_store.h"
#include "router/fleet/fleet.h"
#include "router/fleet/health.h"
#include "router/registry/registry.h"
#include "tests/support/pods.h"
#include "tests/support/routing_defaults.h"

#define N_EVENTS 400

struct fixture {
    struct loop *loop;
    struct registry *registry;
    struct http_client *client;
    struct health *health;
    struct fleet *fleet;
    struct kube_store *store;
    uint64_t version;
};

static void must(enum status st) {
    if (st != ST_OK) abort();
}

static void start(struct fixture *s) {
    struct registry_config rc = {0};
    struct health_config hc = {.interval_us = 3600000000u,
                               .timeout_ms = 100,
                               .n_misses = 2,
                               .n_hits = 1,
                               .max_workers = REGISTRY_MAX_WORKERS,
                               .path = "/health"};
    struct fleet_config fc = {.drain_timeout_us = 1000000};

    must(address_guard_allow(&fc.found_guard, "0.0.0.0/0", NULL));
    routing_options_default(&rc.routing);
    rc.routing.policy = policy_find(STR("prefix"));
    rc.routing.max_workers = REGISTRY_MAX_WORKERS;
    must(loop_create(&s->loop, NULL));
    must(registry_create(&s->registry, &rc, NULL));
    must(http_client_create(&s->client, s->loop, NULL));
    s->health = health_create(s->loop, s->client, s->registry, NULL, &hc, NULL, NULL);
    must(fleet_create(&s->fleet, s->loop, s->registry, s->health, NULL, &fc, NULL));
    s->store = kube_store_create(KUBE_PODS, "incipit.dev/role");
}

static void finish(struct fixture *s) {
    kube_store_destroy(s->store);
    fleet_destroy(s->fleet);
    health_destroy(s->health);
    http_client_destroy(s->client);
    registry_destroy(s->registry);
    loop_destroy(s->loop);
}

static void write_pod(struct fixture *s, struct buf *json, uint32_t i, const char *ready) {
    char name[32], ip[32];

    snprintf(name, sizeof(name), "worker-7d9f-%u", i);
    snprintf(ip, sizeof(ip), "10.1.%u.%u", i / 250, i % 250 + 1);
    buf_clear(json);
    pod_text_write(
        json, &(struct pod_text){.name = name, .ip = ip, .ready = ready, .version = ++s->version});
}

static void look(struct fixture *s, uint64_t *set_ns, uint64_t *fleet_ns) {
    struct discovery_set set = {0};
    struct kube_store_stats stats;
    uint64_t t0 = clock_now_ns(), t1;

    kube_store_workers(s->store, REGISTRY_MAX_WORKERS, &set, &stats);
    t1 = clock_now_ns();
    fleet_set(s->fleet, FLEET_KUBE, &set);
    *set_ns += t1 - t0;
    *fleet_ns += clock_now_ns() - t1;
    discovery_set_fini(&set);
}

static void measure(uint32_t n_pods) {
    uint64_t read_ns = 0, set_ns = 0, fleet_ns = 0, unused = 0, t;
    struct fixture s = {0};
    struct buf json;

    start(&s);
    buf_init(&json, 0);
    for (uint32_t i = 0; i < n_pods; i++) {
        write_pod(&s, &json, i, "True");
        must(kube_store_object(s.store, buf_str(&json), NULL));
    }
    look(&s, &unused, &unused);
    for (uint32_t i = 0; i < N_EVENTS; i++) {
        write_pod(&s, &json, i / 2 % n_pods, i % 2 ? "True" : "False");
        t = clock_now_ns();
        must(kube_store_object(s.store, buf_str(&json), NULL));
        read_ns += clock_now_ns() - t;
        look(&s, &set_ns, &fleet_ns);
    }
    printf("%u pods: an event of %zu bytes: read %.1f us, set %.1f us, fleet %.1f us\n", n_pods,
           buf_len(&json), (double)read_ns / N_EVENTS / 1e3, (double)set_ns / N_EVENTS / 1e3,
           (double)fleet_ns / N_EVENTS / 1e3);
    buf_fini(&json);
    finish(&s);
}

int main(void) {
    measure(16);
    measure(128);
    measure(1000);
    return 0;
}
