/* tests/unit/router/proxy/test_proxy_queue.c - exchanges that wait because every worker is at its
 * limit. */
#include <signal.h>

#include "tests/support/cm.h"
#include "tests/support/proxy_fixture.h"

static uint32_t n_waiting(struct fixture *fx) {
    struct registry_totals totals;

    registry_totals(fx->registry, &totals);
    return totals.n_waiting;
}

/* One worker that takes one request at a time and has one; another waits. */
static void start_full_with(struct fixture *fx, struct proxy_config config, struct client *first,
                            struct client *second) {
    static const struct fake_step steps[] = {{NULL}, {JSON_OK}};

    config.queue_timeout_us = 60000000;
    start_with(fx, 1, config, false);
    registry_configure(fx->registry, 0, 1, "");
    fake_play(&fx->fake, steps, 2);
    ask(fx, first, ASK, "");
    TURN_UNTIL(fx->loop, fx->fake.n_requests == 1);
    ask(fx, second, ASK, "");
    TURN_UNTIL(fx->loop, n_waiting(fx) == 1);
    assert_int_equal(n_open(fx), 1);
}

static void start_full(struct fixture *fx, struct client *first, struct client *second) {
    start_full_with(fx, usual, first, second);
}

/* Who gives a place looks at a clock of its own, which may be ahead. */
static void a_slot_with_a_future_time_is_not_overdue(void **state) {
    static const struct fake_step silent[] = {{NULL}};
    struct proxy_config config = usual;
    struct fixture fx;
    struct client first, second;

    (void)state;
    config.first_byte_timeout_us = 400000;
    start_full_with(&fx, config, &first, &second);
    fake_play(&fx.fake, silent, 1);
    registry_configure(fx.registry, 0, 2, "");
    registry_tick(fx.registry, loop_now_us(fx.loop) + 10000000);
    TURN_UNTIL(fx.loop, n_open(&fx) == 2 && fx.fake.n_requests == 1);
    client_expect(&first, fx.loop, "HTTP/1.1 503"); /* all have been looked at */
    assert_int_equal(n_open(&fx), 1);
    fake_send(&fx.fake, STR(JSON_OK));
    client_expect(&second, fx.loop, "{\"ok\":true}");
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

/* Time lets those go that wait already. */
static void the_walk_begins_when_options_ask_for_it(void **state) {
    struct registry_config registry = {.hold = {.queue_size = 4, .fcfs_s = 60, .srpt_s = 60}};
    struct proxy_config config = usual;
    struct fixture fx;
    struct client first, second;

    (void)state;
    start_full(&fx, &first, &second);
    routing_options_default(&registry.routing);
    registry.routing.max_workers = config.max_workers = 8;
    registry_change(fx.registry, &registry);
    config.queue_timeout_us = 60000000;
    config.holds = true;
    proxy_configure(fx.proxy, &config);
    registry_configure(fx.registry, 0, 2, "");
    TURN_UNTIL(fx.loop, n_open(&fx) == 2 && fx.fake.n_requests == 2);
    assert_int_equal(n_waiting(&fx), 0);
    client_expect(&second, fx.loop, "{\"ok\":true}");
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

static void a_request_waits_for_the_end_of_another(void **state) {
    struct fixture fx;
    struct client first, second;

    (void)state;
    start_full(&fx, &first, &second);
    fake_send(&fx.fake, STR(JSON_OK));
    client_expect(&second, fx.loop, "{\"ok\":true}");
    client_expect(&first, fx.loop, "{\"ok\":true}");
    assert_int_equal(fx.fake.n_requests, 2);
    assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_queue_wait_seconds)), 1);
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

/* A client leaves before, with or after the place that it waited for. */
static void a_cancel_during_a_grant_returns_the_slot(void **state) {
    (void)state;
    for (int turns = 0; turns < 4; turns++) {
        struct fixture fx;
        struct client first, second, third;

        start_full(&fx, &first, &second);
        fake_send(&fx.fake, STR(JSON_OK));
        for (int i = 0; i < turns; i++)
            loop_turn(fx.loop, 1000);
        client_close(&second);
        client_expect(&first, fx.loop, "{\"ok\":true}");
        TURN_UNTIL(fx.loop, n_waiting(&fx) == 0 && n_open(&fx) == 0);
        ask(&fx, &third, ASK, "{\"ok\":true}");
        client_close(&first);
        client_close(&third);
        finish(&fx);
    }
}

static void a_shutdown_ends_waiting_requests(void **state) {
    struct fixture fx;
    struct client first, second;

    (void)state;
    start_full(&fx, &first, &second);
    http_server_destroy(
        fx.server); /* the first gives its place to the second, which ends as well */
    fx.server = NULL;
    assert_int_equal(n_waiting(&fx), 0);
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_walk_begins_when_options_ask_for_it),
        cmocka_unit_test(a_request_waits_for_the_end_of_another),
        cmocka_unit_test(a_cancel_during_a_grant_returns_the_slot),
        cmocka_unit_test(a_shutdown_ends_waiting_requests),
        cmocka_unit_test(a_slot_with_a_future_time_is_not_overdue),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
