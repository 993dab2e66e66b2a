/* tests/unit/router/fleet/test_fleet.c - sets that are wanted against what there is, with open
 * requests. */
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "router/fleet/fleet.h"
#include "router/fleet/health.h"
#include "router/registry/registry.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define DRAIN_US 10000000u

/* No server listens at these ports: probes fail, and only the fleet acts. */
struct fixture {
    struct loop *loop;
    struct registry *registry;
    struct http_client *client;
    struct health *health;
    struct fleet *fleet;
};

static void start(struct fixture *fx, uint32_t max_workers) {
    struct registry_config rc = {0};
    struct health_config hc = {.interval_us = 3600000000u,
                               .timeout_ms = 100,
                               .n_misses = 2,
                               .n_hits = 1,
                               .max_workers = max_workers,
                               .path = "/health"};
    struct fleet_config fc = {.drain_timeout_us = DRAIN_US};

    memset(fx, 0, sizeof(*fx));
    address_guard_init(&fc.guard);
    address_guard_allow_local(&fc.guard);
    assert_int_equal(address_guard_allow(&fc.found_guard, "0.0.0.0/0", NULL), ST_OK);
    routing_options_default(&rc.routing);
    rc.routing.policy = policy_find(STR("round_robin"));
    rc.routing.max_workers = max_workers;
    rc.routing.max_index_bytes = 1 << 20;
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(registry_create(&fx->registry, &rc, NULL), ST_OK);
    assert_int_equal(http_client_create(&fx->client, fx->loop, NULL), ST_OK);
    fx->health = health_create(fx->loop, fx->client, fx->registry, NULL, &hc, NULL, NULL);
    assert_int_equal(fleet_create(&fx->fleet, fx->loop, fx->registry, fx->health, NULL, &fc, NULL),
                     ST_OK);
}

static void finish(struct fixture *fx) {
    fleet_check(fx->fleet);
    fleet_destroy(fx->fleet);
    health_destroy(fx->health);
    http_client_destroy(fx->client);
    registry_destroy(fx->registry);
    loop_destroy(fx->loop);
}

static struct discovery_worker worker_at(const char *url) {
    struct discovery_worker w = {0};

    assert_int_equal(address_split(str_of(url), &w.url, NULL), ST_OK);
    return w;
}

/* Bit i: http://127.0.0.1:(i + 1) is wanted. */
static void want(struct fixture *fx, enum fleet_source source, unsigned bits) {
    struct discovery_set set = {0};
    char url[64];

    for (unsigned i = 0; i < 16; i++) {
        struct discovery_worker w;

        if (!(bits & (1u << i))) continue;
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", i + 1);
        w = worker_at(url);
        w.max_in_flight = i + 1;
        assert_int_equal(discovery_set_add(&set, &w, NULL), ST_OK);
    }
    fleet_set(fx->fleet, source, &set);
    discovery_set_fini(&set);
    fleet_check(fx->fleet);
}

static uint32_t n_workers(struct fixture *fx) {
    struct registry_totals totals;

    registry_totals(fx->registry, &totals);
    return totals.n_workers;
}

static uint32_t id_of(struct fixture *fx, const char *url) {
    struct registry_view view;

    for (uint32_t id = 0; id < registry_n_ids(fx->registry); id++)
        if (registry_get(fx->registry, id, &view) && strcmp(view.url, url) == 0) return id;
    return UINT32_MAX;
}

static uint32_t reasons(struct fixture *fx, uint32_t id) {
    struct registry_view view;

    assert_true(registry_get(fx->registry, id, &view));
    return view.reasons;
}

static void describe(struct fixture *fx, uint32_t id) {
    struct wire_server_info info = {.wire = 1, .model = "m", .generation = "g"};

    assert_int_equal(registry_describe(fx->registry, id, &info, false, NULL), ST_OK);
    registry_set_reason(fx->registry, id, WORKER_STARTING, false);
}

struct sent {
    uint64_t chain[1];
    struct route_ticket ticket;
    struct registry_target target;
};

static enum status send_one(struct fixture *fx, struct sent *s) {
    struct route_request rq = {.chain = s->chain, .n_blocks = 1, .prompt_bytes = 100, .now_us = 1};

    memset(&s->ticket, 0, sizeof(s->ticket));
    return registry_route(fx->registry, STR("m"), &rq, &s->ticket, &s->target, NULL);
}

static void end_one(struct fixture *fx, struct sent *s) {
    struct route_end end = {.output_tokens = 1, .feedback = {-1, -1}, .now_us = 2};

    registry_ended(fx->registry, &s->target, &s->ticket, &end, OUTCOME_OK);
}

struct answer {
    int n;
    enum status st;
    uint32_t id;
    char message[ERROR_MESSAGE_MAX];
};

static void on_added(enum status st, uint32_t id, const struct error *err, void *arg) {
    struct answer *a = arg;

    a->n++;
    a->st = st;
    a->id = id;
    snprintf(a->message, sizeof(a->message), "%s", err ? err->message : "");
}

/* ---------------------------------------------------------------------------------------------- */

static void a_set_adds_new_workers_and_drains_missing_ones(void **state) {
    struct registry_view view;
    struct fixture fx;
    struct sent open;
    uint32_t id;

    (void)state;
    start(&fx, 8);
    want(&fx, FLEET_FILE, 3);
    assert_int_equal(n_workers(&fx), 2);
    id = id_of(&fx, "http://127.0.0.1:1");
    assert_true(registry_get(fx.registry, id, &view));
    assert_int_equal(view.max_in_flight, 1);
    describe(&fx, id);
    assert_int_equal(send_one(&fx, &open), ST_OK);

    want(&fx, FLEET_FILE, 6);
    assert_int_equal(n_workers(&fx), 3);
    assert_int_equal(reasons(&fx, id), WORKER_DRAINING);
    fleet_tick(fx.fleet, loop_now_us(fx.loop));
    assert_int_equal(n_workers(&fx), 3); /* it still has one to finish */
    end_one(&fx, &open);
    fleet_tick(fx.fleet, loop_now_us(fx.loop));
    assert_int_equal(n_workers(&fx), 2);
    assert_int_equal(id_of(&fx, "http://127.0.0.1:1"), UINT32_MAX);
    finish(&fx);
}

static void a_worker_that_returns_to_the_set_stays(void **state) {
    struct fixture fx;
    struct sent open;
    uint32_t id;

    (void)state;
    start(&fx, 8);
    want(&fx, FLEET_FILE, 1);
    id = id_of(&fx, "http://127.0.0.1:1");
    describe(&fx, id);
    assert_int_equal(send_one(&fx, &open), ST_OK);
    want(&fx, FLEET_FILE, 0);
    assert_int_equal(reasons(&fx, id), WORKER_DRAINING);
    want(&fx, FLEET_FILE, 1);
    assert_int_equal(reasons(&fx, id), 0);
    fleet_tick(fx.fleet, loop_now_us(fx.loop) + 2 * DRAIN_US);
    assert_int_equal(n_workers(&fx), 1);
    end_one(&fx, &open);
    finish(&fx);
}

static void patience_with_a_draining_one_ends(void **state) {
    struct fixture fx;
    struct sent open;
    uint64_t now_us;

    (void)state;
    start(&fx, 8);
    want(&fx, FLEET_FILE, 1);
    describe(&fx, 0);
    assert_int_equal(send_one(&fx, &open), ST_OK);
    now_us = loop_now_us(fx.loop);
    want(&fx, FLEET_FILE, 0);
    fleet_tick(fx.fleet, now_us + DRAIN_US - 1);
    assert_int_equal(n_workers(&fx), 1);
    fleet_tick(fx.fleet, now_us + DRAIN_US + 1000000);
    assert_int_equal(n_workers(&fx), 0);
    end_one(&fx, &open); /* it finishes all the same */
    finish(&fx);
}

static void sources_leave_each_others_workers_alone(void **state) {
    struct fixture fx;
    struct error err = {0};
    struct answer a = {0};
    struct discovery_worker w = worker_at("http://127.0.0.1:9");

    (void)state;
    start(&fx, 8);
    want(&fx, FLEET_STATIC, 1);
    want(&fx, FLEET_FILE, 3); /* the first of them is there already */
    assert_int_equal(n_workers(&fx), 2);
    want(&fx, FLEET_FILE, 0);
    fleet_tick(fx.fleet, 1);
    assert_int_equal(n_workers(&fx), 1);
    assert_int_equal(reasons(&fx, 0) & WORKER_DRAINING, 0);

    want(&fx, FLEET_FILE, 2);
    assert_int_equal(fleet_remove(fx.fleet, id_of(&fx, "http://127.0.0.1:2"), false, &err),
                     ST_EXISTS);
    assert_non_null(strstr(err.message, "--worker-file"));
    assert_int_equal(fleet_remove(fx.fleet, 77, false, &err), ST_NOT_FOUND);
    assert_int_equal(fleet_remove(fx.fleet, 0, true, NULL), ST_OK); /* of the command line */
    assert_int_equal(n_workers(&fx), 1);
    fleet_add(fx.fleet, FLEET_API, &w, on_added, &a);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.st, ST_OK);
    assert_true(fleet_is_from(fx.fleet, a.id, FLEET_API));
    fleet_add(fx.fleet, FLEET_API, &w, on_added, &a);
    assert_int_equal(a.st, ST_EXISTS);
    assert_int_equal(fleet_remove(fx.fleet, id_of(&fx, "http://127.0.0.1:9"), false, NULL), ST_OK);
    fleet_add(fx.fleet, FLEET_API, &w, on_added, &a);
    assert_int_equal(a.st, ST_EXISTS);
    assert_non_null(strstr(a.message, "leaving"));
    fleet_tick(fx.fleet, 1);
    assert_int_equal(n_workers(&fx), 1);
    finish(&fx);
}

static void strangers_addresses_are_judged_and_ours_are_not(void **state) {
    struct fixture fx;
    struct answer a = {0};
    struct discovery_worker w = worker_at("http://169.254.169.254:80");

    (void)state;
    start(&fx, 8);
    fleet_add(fx.fleet, FLEET_API, &w, on_added, &a);
    assert_int_equal(a.st, ST_FORBIDDEN);
    w = worker_at("http://0xa9fea9fe:80");
    fleet_add(fx.fleet, FLEET_API, &w, on_added, &a);
    assert_int_equal(a.st, ST_FORBIDDEN);
    assert_int_equal(fleet_n_wanted(fx.fleet), 0);
    w = worker_at("http://192.0.2.1:80");
    fleet_add(fx.fleet, FLEET_LAUNCHED, &w, on_added, &a);
    assert_int_equal(a.st, ST_OK);
    finish(&fx);
}

static void a_name_is_looked_up_and_a_wrong_one_is_forgotten_or_tried_again(void **state) {
    struct fixture fx;
    struct answer a = {0};
    struct discovery_worker w = worker_at("http://no-such-name.invalid:80");
    struct discovery_set set = {0};

    (void)state;
    start(&fx, 8);
    fleet_add(fx.fleet, FLEET_API, &w, on_added, &a);
    assert_int_equal(a.n, 0);
    TURN_UNTIL(fx.loop, a.n == 1);
    assert_int_equal(a.st, ST_NOT_FOUND);
    assert_int_equal(fleet_n_wanted(fx.fleet), 0);

    assert_int_equal(discovery_set_add(&set, &w, NULL), ST_OK);
    fleet_set(fx.fleet, FLEET_FILE, &set);
    assert_int_equal(fleet_n_wanted(fx.fleet), 1);
    want(&fx, FLEET_FILE, 0); /* while it is being looked up */
    TURN_UNTIL(fx.loop, fleet_n_wanted(fx.fleet) == 0);
    fleet_set(fx.fleet, FLEET_FILE, &set);
    for (int i = 0; i < 3; i++) { /* as often as it takes */
        for (int k = 0; k < 100; k++)
            loop_turn(fx.loop, 1000);
        fleet_tick(fx.fleet, UINT64_MAX / 2);
    }
    assert_int_equal(fleet_n_wanted(fx.fleet), 1);
    discovery_set_fini(&set);
    finish(&fx);
}

static void an_operator_stops_one_and_lets_it_go_on(void **state) {
    struct discovery_worker w = worker_at("http://127.0.0.1:1");
    struct registry_view view;
    struct fixture fx;

    (void)state;
    start(&fx, 8);
    want(&fx, FLEET_FILE, 1);
    describe(&fx, 0);
    assert_int_equal(fleet_set_draining(fx.fleet, 0, true, NULL), ST_OK);
    assert_int_equal(reasons(&fx, 0), WORKER_DRAINING);
    want(&fx, FLEET_FILE, 1); /* a reload is no order to go on */
    assert_int_equal(reasons(&fx, 0), WORKER_DRAINING);
    fleet_tick(fx.fleet, UINT64_MAX / 2);
    assert_int_equal(n_workers(&fx), 1);
    assert_int_equal(fleet_set_draining(fx.fleet, 0, false, NULL), ST_OK);
    assert_int_equal(reasons(&fx, 0), 0);
    snprintf(w.labels, sizeof(w.labels), "zone=b");
    w.max_in_flight = 5;
    assert_int_equal(fleet_change(fx.fleet, 0, &w, NULL), ST_OK);
    assert_true(registry_get(fx.registry, 0, &view));
    assert_string_equal(view.labels, "zone=b");
    assert_int_equal(view.max_in_flight, 5);
    assert_int_equal(fleet_change(fx.fleet, 1, &w, NULL), ST_NOT_FOUND);
    finish(&fx);
}

static void found(struct fixture *fx, const char *url, const char *uid, bool is_draining) {
    struct discovery_worker w = worker_at(url);
    struct discovery_set set = {0};

    snprintf(w.uid, sizeof(w.uid), "%s", uid);
    w.is_draining = is_draining;
    assert_int_equal(discovery_set_add(&set, &w, NULL), ST_OK);
    fleet_set(fx->fleet, FLEET_KUBE, &set);
    discovery_set_fini(&set);
    fleet_check(fx->fleet);
}

static void a_source_may_drain_one_and_change_its_mind(void **state) {
    static const char url[] = "http://127.0.0.1:1";
    struct error err = {0};
    struct fixture fx;

    (void)state;
    start(&fx, 8);
    found(&fx, url, "a", true); /* no worker starts as draining */
    assert_int_equal(fleet_n_wanted(fx.fleet), 0);
    found(&fx, url, "a", false);
    describe(&fx, 0);
    assert_int_equal(reasons(&fx, 0), 0);
    found(&fx, url, "a", true);
    assert_int_equal(reasons(&fx, 0), WORKER_DRAINING);
    fleet_tick(fx.fleet, UINT64_MAX / 2); /* it is still wanted: who drains may take its time */
    assert_int_equal(n_workers(&fx), 1);
    found(&fx, url, "a", false);
    assert_int_equal(reasons(&fx, 0), 0);
    assert_int_equal(fleet_set_draining(fx.fleet, 0, true, NULL), ST_OK);
    found(&fx, url, "a", true);
    found(&fx, url, "a", false); /* the operator has not changed his */
    assert_int_equal(reasons(&fx, 0), WORKER_DRAINING);
    assert_int_equal(fleet_remove(fx.fleet, 0, false, &err), ST_EXISTS);
    assert_non_null(strstr(err.message, "--service-discovery"));
    finish(&fx);
}

static void another_worker_behind_an_old_address_has_an_empty_index(void **state) {
    static const char url[] = "http://127.0.0.1:1";
    struct registry_view before, after;
    struct fixture fx;
    struct sent open;

    (void)state;
    start(&fx, 8);
    found(&fx, url, "a", false);
    describe(&fx, 0);
    assert_int_equal(send_one(&fx, &open), ST_OK);
    assert_true(registry_get(fx.registry, 0, &before));
    assert_int_equal(before.routing.n_held_blocks, 1);
    found(&fx, url, "a", false);
    assert_true(registry_get(fx.registry, 0, &after));
    assert_int_equal(after.routing.n_held_blocks, 1);
    assert_int_equal(fleet_set_draining(fx.fleet, 0, true, NULL), ST_OK);

    found(&fx, url, "b", false);
    assert_true(registry_get(fx.registry, 0, &after));
    assert_int_equal(after.routing.n_held_blocks, 0);
    assert_int_equal(after.incarnation, before.incarnation + 1);
    assert_int_equal(after.in_flight, 1); /* whatever becomes of it */
    assert_int_equal(after.reasons, WORKER_STARTING);
    end_one(&fx, &open);
    describe(&fx, 0);
    assert_int_equal(send_one(&fx, &open), ST_OK);
    end_one(&fx, &open);
    finish(&fx);
}

static void found_addresses_are_judged(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, 8);
    found(&fx, "http://169.254.169.254:80", "a", false);
    assert_int_equal(n_workers(&fx), 0);
    found(&fx, "http://192.0.2.1:80", "a", false);
    assert_int_equal(n_workers(&fx), 1);
    finish(&fx);
}

static void a_worker_beyond_the_limit_is_added_when_one_leaves(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, 2);
    want(&fx, FLEET_KUBE, 7);
    assert_int_equal(n_workers(&fx), 2);
    want(&fx, FLEET_KUBE, 6);
    fleet_tick(fx.fleet, 1); /* goes */
    fleet_tick(fx.fleet, 2);
    assert_int_equal(n_workers(&fx), 2);
    assert_int_not_equal(id_of(&fx, "http://127.0.0.1:3"), UINT32_MAX);
    finish(&fx);
}

/* Whatever is asked in whatever order, in the end there is exactly what is wanted. */
static void random_sets_settle(void **state) {
    unsigned file = 0, fixed = 0;
    uint64_t now_us = 1;
    struct fixture fx;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&fx, 32);
    for (int step = 0; step < 3000; step++) {
        unsigned bits = (unsigned)rng_below(&rng, 1u << 8);

        switch (rng_below(&rng, 6)) {
        case 0: want(&fx, FLEET_FILE, file = bits); break;
        case 1: want(&fx, FLEET_STATIC, fixed = bits); break;
        case 2:
            if (fleet_set_draining(fx.fleet, (uint32_t)rng_below(&rng, 10), rng_below(&rng, 2),
                                   NULL) != ST_OK)
                fleet_check(fx.fleet);
            break;
        default: fleet_tick(fx.fleet, now_us += 1000); break;
        }
        fleet_check(fx.fleet);
        if (step % 100 != 99) continue;
        for (int k = 0; k < 2; k++) { /* the second takes over once the first has left */
            fleet_tick(fx.fleet, now_us += 1000);
            want(&fx, FLEET_FILE, file);
            want(&fx, FLEET_STATIC, fixed);
        }
        for (unsigned i = 0; i < 8; i++) {
            char url[64];
            bool is_wanted = ((file | fixed) >> i) & 1;

            snprintf(url, sizeof(url), "http://127.0.0.1:%u", i + 1);
            if ((id_of(&fx, url) != UINT32_MAX) != is_wanted) fail_msg("%s after %d", url, step);
        }
    }
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_adds_new_workers_and_drains_missing_ones),
        cmocka_unit_test(a_worker_that_returns_to_the_set_stays),
        cmocka_unit_test(patience_with_a_draining_one_ends),
        cmocka_unit_test(sources_leave_each_others_workers_alone),
        cmocka_unit_test(strangers_addresses_are_judged_and_ours_are_not),
        cmocka_unit_test(a_name_is_looked_up_and_a_wrong_one_is_forgotten_or_tried_again),
        cmocka_unit_test(an_operator_stops_one_and_lets_it_go_on),
        cmocka_unit_test(a_source_may_drain_one_and_change_its_mind),
        cmocka_unit_test(another_worker_behind_an_old_address_has_an_empty_index),
        cmocka_unit_test(found_addresses_are_judged),
        cmocka_unit_test(a_worker_beyond_the_limit_is_added_when_one_leaves),
        cmocka_unit_test(random_sets_settle),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
