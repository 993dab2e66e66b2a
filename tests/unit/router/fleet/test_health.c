/* tests/unit/router/fleet/test_health.c - a worker that answers, falls ill, hangs, and comes
 * back. */
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/http/http_client.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "router/fleet/health.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"

/* One worker on the loop of the test. */
struct fixture {
    struct loop *loop;
    struct registry *registry;
    struct http_client *client;
    struct health *health;
    struct http_server *worker;
    uint16_t port;
    uint32_t id;
    /* What it does. */
    int health_code;
    bool is_silent, is_third_party, describes_nothing;
    const char *generation, *model;
    /* What was reported. */
    int n_ready, n_hung, n_back, n_probes, n_infos;
};

static void on_request(struct http_request *req, void *arg) {
    struct fixture *fx = arg;
    struct buf body;

    if (fx->is_silent) return; /* kept, never answered */
    buf_init(&body, 0);
    if (str_eq(req->path, STR("/health"))) {
        fx->n_probes++;
        http_reply(req, fx->health_code, NULL, STR(""));
    } else if (str_eq(req->path, STR("/server_info")) && !fx->is_third_party &&
               !fx->describes_nothing) {
        struct wire_server_info info = {.wire = 1, .block_size = 16, .n_blocks = 100};

        fx->n_infos++;
        snprintf(info.model, sizeof(info.model), "%s", fx->model);
        snprintf(info.generation, sizeof(info.generation), "%s", fx->generation);
        wire_append_server_info(&body, &info);
        http_reply(req, 200, "application/json", buf_str(&body));
    } else if (str_eq(req->path, STR("/v1/models")) && !fx->describes_nothing) {
        buf_appendf(&body, "{\"data\":[{\"id\":\"%s\",\"max_model_len\":4096}]}", fx->model);
        http_reply(req, 200, "application/json", buf_str(&body));
    } else {
        http_reply(req, 404, NULL, STR(""));
    }
    buf_fini(&body);
}

static void on_ready(uint32_t worker, void *arg) {
    struct fixture *fx = arg;

    assert_int_equal(worker, fx->id);
    fx->n_ready++;
}

static void on_hung(uint32_t worker, bool is_hung, void *arg) {
    struct fixture *fx = arg;

    assert_int_equal(worker, fx->id);
    fx->n_hung += is_hung;
    fx->n_back += !is_hung;
}

static void open_worker(struct fixture *fx) {
    static const struct http_server_events events = {.on_request = on_request};

    fx->worker = http_server_create(fx->loop, NULL, &events, fx);
    assert_int_equal(http_server_listen(fx->worker, "127.0.0.1", fx->port, false, NULL), ST_OK);
    fx->port = http_server_port(fx->worker);
}

#define PATIENT_MS 20000 /* where a slow machine must not look like a worker that hangs */

static void start_every(struct fixture *fx, uint32_t timeout_ms, uint32_t interval_us) {
    struct health_config hc = {.interval_us = interval_us,
                               .timeout_ms = timeout_ms,
                               .n_misses = 2,
                               .n_hits = 2,
                               .max_workers = 4,
                               .path = "/health",
                               .on_hung = on_hung};
    struct registry_config rc = {0};
    char url[64];

    memset(fx, 0, sizeof(*fx));
    fx->health_code = 200;
    fx->model = "m";
    fx->generation = "g1";
    routing_options_default(&rc.routing);
    rc.routing.policy = policy_find(STR("round_robin"));
    rc.routing.max_workers = 4;
    rc.routing.max_index_bytes = 1 << 20;
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(registry_create(&fx->registry, &rc, NULL), ST_OK);
    assert_int_equal(http_client_create(&fx->client, fx->loop, NULL), ST_OK);
    open_worker(fx);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", fx->port);
    assert_int_equal(registry_add(fx->registry, url, &fx->id, NULL), ST_OK);
    fx->health = health_create(fx->loop, fx->client, fx->registry, NULL, &hc, on_ready, fx);
}

static void start_with(struct fixture *fx, uint32_t timeout_ms) {
    start_every(fx, timeout_ms, 10000);
}

static void start(struct fixture *fx) {
    start_with(fx, PATIENT_MS);
}

static void finish(struct fixture *fx) {
    health_destroy(fx->health);
    http_client_destroy(fx->client);
    http_server_destroy(fx->worker);
    registry_destroy(fx->registry);
    loop_destroy(fx->loop);
}

static struct registry_view look(struct fixture *fx) {
    struct registry_view view;

    assert_true(registry_get(fx->registry, fx->id, &view));
    return view;
}

static uint32_t reasons(struct fixture *fx) {
    return look(fx).reasons;
}

static void start_ready(struct fixture *fx) {
    start(fx);
    health_watch(fx->health, fx->id);
    TURN_UNTIL(fx->loop, fx->n_ready == 1);
    assert_int_equal(reasons(fx), 0);
}

/* ---------------------------------------------------------------------------------------------- */

static void a_worker_is_ready_once_it_has_described_itself(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    fx.health_code = 503;
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_probes >= 3);
    assert_int_equal(reasons(&fx), WORKER_STARTING);
    assert_int_equal(fx.n_infos, 0);
    fx.health_code = 200;
    TURN_UNTIL(fx.loop, fx.n_ready == 1);
    assert_string_equal(look(&fx).info.model, "m");
    assert_false(look(&fx).is_third_party);
    finish(&fx);
}

static void an_engine_that_is_not_ours_is_known_by_its_models(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    fx.is_third_party = true;
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_ready == 1);
    assert_true(look(&fx).is_third_party);
    assert_string_equal(look(&fx).info.model, "m");
    assert_int_equal(look(&fx).info.max_model_len, 4096);
    finish(&fx);
}

static void misses_take_it_out_and_hits_bring_it_back(void **state) {
    struct fixture fx;
    int before;

    (void)state;
    start_ready(&fx);
    fx.health_code = 500;
    TURN_UNTIL(fx.loop, reasons(&fx) == WORKER_UNHEALTHY);
    assert_int_equal(fx.n_hung, 0); /* it answers: it is not hung */
    before = fx.n_infos;
    fx.health_code = 200;
    TURN_UNTIL(fx.loop, reasons(&fx) == 0);
    assert_true(fx.n_infos > before); /* it may have been another */
    assert_int_equal(fx.n_ready, 1);
    assert_int_equal(fx.n_back, 0); /* from a hang: there was none */
    finish(&fx);
}

static void an_exited_worker_is_not_hung(void **state) {
    struct fixture fx;

    (void)state;
    start_ready(&fx);
    http_server_destroy(fx.worker);
    TURN_UNTIL(fx.loop, reasons(&fx) & WORKER_UNHEALTHY);
    assert_int_equal(fx.n_hung, 0);
    fx.generation = "g2";
    open_worker(&fx);
    TURN_UNTIL(fx.loop, reasons(&fx) == 0);
    assert_string_equal(look(&fx).info.generation, "g2");
    finish(&fx);
}

static void a_hung_worker_is_reported_once(void **state) {
    struct fixture fx;

    (void)state;
    start_with(&fx, 60);
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_ready == 1);
    TURN_UNTIL(fx.loop, reasons(&fx) == 0);
    fx.is_silent = true;
    TURN_UNTIL(fx.loop, fx.n_hung == 1);
    assert_int_equal(reasons(&fx), WORKER_UNHEALTHY);
    for (int i = 0; i < 300; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.n_hung, 1);
    assert_int_equal(fx.n_back, 0);
    fx.is_silent = false;
    TURN_UNTIL(fx.loop, reasons(&fx) == 0);
    assert_int_equal(fx.n_back, 1);
    fx.is_silent = true; /* and again */
    TURN_UNTIL(fx.loop, fx.n_hung == 2);
    finish(&fx);
}

static void a_success_ends_the_reported_draining(void **state) {
    struct fixture fx;

    (void)state;
    start_ready(&fx);
    registry_set_draining(fx.registry, fx.id, DRAIN_WORKER, true);
    TURN_UNTIL(fx.loop, reasons(&fx) == 0);
    registry_set_draining(fx.registry, fx.id, DRAIN_OPERATOR, true);
    fx.n_probes = 0;
    TURN_UNTIL(fx.loop, fx.n_probes == 5);
    assert_int_equal(reasons(&fx), WORKER_DRAINING); /* the operator's drain stays */
    finish(&fx);
}

static void a_restart_between_two_probes_is_noticed(void **state) {
    struct fixture fx;

    (void)state;
    start_ready(&fx);
    fx.generation = "g2";
    TURN_UNTIL(fx.loop, strcmp(look(&fx).info.generation, "g2") == 0);
    assert_int_equal(fx.n_ready, 1);
    finish(&fx);
}

static void an_unwatched_worker_is_not_probed(void **state) {
    struct fixture fx;
    int before;

    (void)state;
    start_ready(&fx);
    health_unwatch(fx.health, fx.id);
    health_unwatch(fx.health, fx.id);
    before = fx.n_probes;
    for (int i = 0; i < 50; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.n_probes, before);
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_ready == 2);
    finish(&fx);
}

/* What waits for it should not wait for its turn to be probed. */
static void last_worker_is_probed_at_once_when_it_is_out(void **state) {
    struct fixture fx;
    int n_probes;

    (void)state;
    start_every(&fx, PATIENT_MS, 3600000000u);
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_ready == 1);
    health_tick(fx.health);
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 1000);
    n_probes = fx.n_probes;
    registry_set_reason(fx.registry, fx.id, WORKER_DISABLED, true);
    health_tick(fx.health);
    TURN_UNTIL(fx.loop, fx.n_probes > n_probes + 2); /* and again, until it is back */
    registry_set_reason(fx.registry, fx.id, WORKER_DISABLED, false);
    finish(&fx);
}

static void server_that_describes_nothing_serves_any_model(void **state) {
    struct registry_view view;
    struct fixture fx;

    (void)state;
    start(&fx);
    fx.describes_nothing = true;
    fx.health_code = 404;
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_ready == 1);
    assert_true(registry_get(fx.registry, fx.id, &view));
    assert_true(view.is_third_party && view.reasons == 0);
    assert_string_equal(view.info.model, REGISTRY_ANY_MODEL);
    fx.describes_nothing = false; /* it may report later */
    fx.is_third_party = true;
    TURN_UNTIL(fx.loop,
               (registry_get(fx.registry, fx.id, &view), strcmp(view.info.model, "m") == 0));
    finish(&fx);
}

/* One that had the path, and has it no more, is another server, or a broken one. */
static void lost_health_path_is_a_miss(void **state) {
    struct registry_view view;
    struct fixture fx;

    (void)state;
    start(&fx);
    health_watch(fx.health, fx.id);
    TURN_UNTIL(fx.loop, fx.n_ready == 1);
    fx.health_code = 404;
    TURN_UNTIL(fx.loop, (registry_get(fx.registry, fx.id, &view), view.reasons != 0));
    assert_int_equal(view.reasons, WORKER_UNHEALTHY);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_worker_is_probed_at_once_when_it_is_out),
        cmocka_unit_test(server_that_describes_nothing_serves_any_model),
        cmocka_unit_test(lost_health_path_is_a_miss),
        cmocka_unit_test(a_worker_is_ready_once_it_has_described_itself),
        cmocka_unit_test(an_engine_that_is_not_ours_is_known_by_its_models),
        cmocka_unit_test(misses_take_it_out_and_hits_bring_it_back),
        cmocka_unit_test(an_exited_worker_is_not_hung),
        cmocka_unit_test(a_hung_worker_is_reported_once),
        cmocka_unit_test(a_success_ends_the_reported_draining),
        cmocka_unit_test(a_restart_between_two_probes_is_noticed),
        cmocka_unit_test(an_unwatched_worker_is_not_probed),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
