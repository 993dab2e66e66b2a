/* tests/unit/router/proxy/test_proxy_watch.c - workers that fall silent, and those who wait for
 * them. */
#include <signal.h>

#include "tests/support/cm.h"
#include "tests/support/proxy_fixture.h"

static void requests_waiting_for_a_hung_worker_go_to_another(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {NULL, FAKE_KEEP}, {JSON_OK});
    client_open(&c, fx.port);
    client_send(&c, fx.loop, STR(ASK));
    TURN_UNTIL(fx.loop, fx.fake.n_requests == 1);
    proxy_worker_hung(fx.proxy, 1 - fx.fake.served_by[0], 1); /* another one */
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 77);    /* an earlier one at its place */
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.fake.n_requests, 1);
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    client_expect(&c, fx.loop, "{\"ok\":true}");
    assert_int_not_equal(fx.fake.served_by[0], fx.fake.served_by[1]);
    assert_true(retries(&fx, "worker_hung") == 1);
    client_close(&c);
    finish(&fx);
}

static void many_leave_a_hung_worker_at_once(void **state) {
    struct client c[40];
    struct fixture fx;

    (void)state;
    start(&fx, 2);
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, true);
    PLAY(&fx, {NULL, FAKE_KEEP});
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_open(&c[i], fx.port);
        client_send(&c[i], fx.loop, STR(ASK));
    }
    TURN_UNTIL(fx.loop, fx.fake.n_requests == ARRAY_LEN(c));
    PLAY(&fx, {JSON_OK});
    proxy_worker_hung(fx.proxy, 0, 1); /* there is no other worker: they stay */
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.fake.n_requests, 0);
    assert_int_equal(n_open(&fx), ARRAY_LEN(c));
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, false);
    proxy_worker_hung(fx.proxy, 0, 1);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_expect(&c[i], fx.loop, "{\"ok\":true}");
        client_close(&c[i]);
    }
    finish(&fx);
}

static void a_stream_already_begun_stays(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    for (int i = 0; i < 10; i++)
        loop_turn(fx.loop, 1000);
    fake_send(&fx.fake, STR("8\r\ndata: b\n\r\n0\r\n\r\n"));
    client_expect(&c, fx.loop, "data: b");
    assert_int_equal(fx.fake.n_requests, 1);
    client_close(&c);
    finish(&fx);
}

static void no_first_byte_in_time_is_a_failure(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.first_byte_timeout_us = 50000;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {NULL, FAKE_KEEP}, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}");
    assert_int_equal(fx.fake.n_requests, 2);
    assert_true(retries(&fx, "first_byte_timeout") == 1);
    client_close(&c);
    finish(&fx);
}

static void a_stalled_stream_is_ended(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.stream_idle_timeout_us = 400000;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    client_expect(&c, fx.loop, "worker_silent");
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void a_stream_of_a_worker_that_hangs_is_ended_sooner(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.stream_idle_timeout_us = 10 * CLIENT_TIMEOUT_US / 5;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    client_expect(&c, fx.loop, "worker_silent"); /* the default timeout is too long for a test */
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

/* Turns until the watch has looked at what there is for longer than a tenth of `idle_us`. */
static void let_a_tenth_pass(struct fixture *fx, uint64_t idle_us) {
    uint64_t until_us = clock_now_us() + idle_us / 10 + 600000; /* and two sweeps */

    while (clock_now_us() < until_us)
        loop_turn(fx->loop, 10000);
}

static void a_worker_that_answers_again_has_the_usual_time(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.stream_idle_timeout_us = 5000000;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    proxy_worker_answers(fx.proxy, fx.fake.served_by[0], 77); /* not this one */
    proxy_worker_answers(fx.proxy, fx.fake.served_by[0], 1);
    let_a_tenth_pass(&fx, config.stream_idle_timeout_us);
    fake_send(&fx.fake, STR("8\r\ndata: b\n\r\n0\r\n\r\n"));
    client_expect(&c, fx.loop, "data: b");
    client_close(&c);
    finish(&fx);
}

static void at_the_end_all_clients_get_an_error(void **state) {
    struct client streaming, waiting;
    struct fixture fx;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"}, {NULL, FAKE_KEEP});
    ask(&fx, &streaming, ASK, "data: a");
    client_open(&waiting, fx.port);
    client_send(&waiting, fx.loop, STR(ASK));
    TURN_UNTIL(fx.loop, fx.fake.n_requests == 2);
    proxy_end_all(fx.proxy);
    client_expect(&streaming, fx.loop, "shutting_down");
    client_expect_close(&streaming, fx.loop);
    client_expect(&waiting, fx.loop, "HTTP/1.1 503");
    assert_true(n_open(&fx) == 0);
    client_close(&streaming);
    client_close(&waiting);
    finish(&fx);
}

static void a_worker_without_answer_ends_in_a_timeout(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.request_timeout_us = 50000;
    start_with(&fx, 1, config, false);
    PLAY(&fx, {NULL}, {SSE_HEAD "9\r\ndata: 1\n\n\r\n"});
    ask(&fx, &c, ASK, "HTTP/1.1 504");
    client_close(&c);
    ask(&fx, &c, ASK, "\"code\":\"timeout\"");
    client_expect_close(&c, fx.loop);
    assert_true(counted(&fx, "504") == 2);
    client_close(&c);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_waiting_for_a_hung_worker_go_to_another),
        cmocka_unit_test(many_leave_a_hung_worker_at_once),
        cmocka_unit_test(a_stream_already_begun_stays),
        cmocka_unit_test(no_first_byte_in_time_is_a_failure),
        cmocka_unit_test(a_stalled_stream_is_ended),
        cmocka_unit_test(a_stream_of_a_worker_that_hangs_is_ended_sooner),
        cmocka_unit_test(a_worker_that_answers_again_has_the_usual_time),
        cmocka_unit_test(at_the_end_all_clients_get_an_error),
        cmocka_unit_test(a_worker_without_answer_ends_in_a_timeout),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
