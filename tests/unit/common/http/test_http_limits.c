/* tests/unit/common/http/test_http_limits.c - what the server refuses, cuts off and survives; how
 * it ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/conn.h"
#include "common/net/loop.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/unit/common/http/http_fixture.h"

/* --- refusals and limits ---------------------------------------------------------------------- */

static void malformed_requests_get_a_sentence_and_a_close(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc"));
    client_expect_close(&c, fx.loop);
    assert_false(c.was_reset);
    assert_true(str_starts(buf_str(&c.got), STR("HTTP/1.1 400 Bad Request\r\n")));
    assert_int_equal(client_count(&c, "connection: close\r\n"), 1);
    assert_int_equal(client_count(&c, "{\"error\":{\"message\":\"Content-Length '+3' is not"), 1);
    assert_int_equal(http_server_stats(fx.server).refused_total, 1);
    assert_int_equal(http_server_stats(fx.server).requests_total, 0);
    client_close(&c);
    finish(&fx);
}

static void too_large_bodies_are_refused_readably(void **state) {
    static char junk[100000];
    const struct http_limits limits = {.max_body_bytes = 1000};
    static const char *const heads[] = {
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n186A0\r\n",
    };
    struct fixture fx;
    struct client c;

    (void)state;
    start_with(&fx, &limits);
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        client_open(&c, http_server_port(fx.server));
        client_send(&c, fx.loop, str_of(heads[i]));
        client_send(&c, fx.loop,
                    (struct str){junk, sizeof(junk)}); /* and does not stop to listen */
        client_expect_close(&c, fx.loop);
        assert_false(c.was_reset);
        assert_int_equal(client_count(&c, "HTTP/1.1 413"), 1);
        assert_int_equal(client_count(&c, "limit of 1000"), 1);
        client_close(&c);
    }
    finish(&fx);
}

/* Where no handler has seen the head, and where the head has moved since one saw it. */
static void refusals_have_the_form_of_their_path(void **state) {
    static char junk[120000];
    const struct http_limits limits = {.max_body_bytes = 200000};
    static const struct http_server_events without_head = {.on_request = on_request};
    static const char *const heads[] = {
        "POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 200001\r\n\r\n",
        "POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "1D4C0\r\n",
    };
    struct fixture fx;
    struct client c;

    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(heads); i++) {
        start_on(&fx, &limits, i % 2 ? &events : &without_head);
        client_open(&c, http_server_port(fx.server));
        client_send(&c, fx.loop, str_of(heads[i / 2]));
        client_send(&c, fx.loop, (struct str){junk, sizeof(junk)});
        client_send(&c, fx.loop, STR("\r\n1D4C0\r\n"));
        client_expect_close(&c, fx.loop);
        assert_int_equal(client_count(&c, "HTTP/1.1 413"), 1);
        assert_int_equal(
            client_count(&c, "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\""), 1);
        client_close(&c);
        finish(&fx);
    }
}

static void a_head_can_be_refused_before_its_body(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    fx.head_status = ST_DENIED;
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"));
    client_expect(&c, fx.loop, "HTTP/1.1 401 Unauthorized");
    client_expect(&c, fx.loop, "not you: /echo");
    client_expect_close(&c, fx.loop);
    assert_int_equal(http_server_stats(fx.server).requests_total, 0);
    client_close(&c);
    finish(&fx);
}

static void slow_senders_are_cut_off(void **state) {
    const struct http_limits limits = {
        .head_timeout_ms = 60, .body_grace_ms = 60, .idle_timeout_ms = 60};
    static const char *const starts[] = {
        "POST /ec", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\nab", ""};
    struct fixture fx;

    (void)state;
    start_with(&fx, &limits);
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        struct client c;

        client_open(&c, http_server_port(fx.server));
        client_send(&c, fx.loop, str_of(starts[i]));
        client_expect_close(&c, fx.loop);
        assert_int_equal(client_count(&c, "HTTP/1.1 408 Request Timeout"), starts[i][0] ? 1 : 0);
        client_close(&c);
    }
    assert_int_equal(http_server_stats(fx.server).timeouts_total, 2);
    finish(&fx);
}

static void a_reader_that_stops_is_aborted(void **state) {
    static char piece[1u << 20];
    const struct http_limits limits = {.write_stall_timeout_ms = 80};
    struct fixture fx;
    struct client c;

    (void)state;
    start_with(&fx, &limits);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_stream_begin(fx.kept[0], 200, "text/plain");
    for (int i = 0; i < 16; i++)
        http_stream_write(fx.kept[0], (struct str){piece, sizeof(piece)});
    TURN_UNTIL(fx.loop, fx.n_aborted == 1);
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void connections_above_the_limit_wait_for_those_in_flight(void **state) {
    const struct http_limits limits = {.max_connections = 1};
    struct fixture fx;
    struct client a, b;

    (void)state;
    start_with(&fx, &limits);
    client_open(&a, http_server_port(fx.server));
    client_send(&a, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    client_open(&b, http_server_port(fx.server));
    client_send(&b, fx.loop, STR(POST_ABC));
    for (int i = 0; i < 5; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(client_read(&b), 0);
    client_close(&a);
    client_expect(&b, fx.loop, "abc");
    client_close(&b);
    finish(&fx);
}

static void a_taken_port_is_named(void **state) {
    struct fixture fx;
    struct error err = {0};
    char expected[80];

    (void)state;
    start(&fx);
    snprintf(expected, sizeof(expected), "port %u is in use: choose another",
             http_server_port(fx.server));
    assert_int_equal(
        http_server_listen(fx.server, "127.0.0.1", http_server_port(fx.server), false, &err),
        ST_IO);
    assert_string_equal(err.message, expected);
    assert_int_equal(http_server_listen(fx.server, "localhost", 0, false, &err), ST_INVALID);
    finish(&fx);
}

static void loops_may_share_a_port(void **state) {
    struct http_server *first, *second;
    struct fixture fx;
    uint16_t port;

    (void)state;
    start(&fx);
    first = http_server_create(fx.loop, NULL, &events, &fx);
    second = http_server_create(fx.loop, NULL, &events, &fx);
    assert_int_equal(http_server_listen(first, "127.0.0.1", 0, true, NULL), ST_OK);
    port = http_server_port(first);
    assert_int_equal(http_server_listen(second, "127.0.0.1", port, false, NULL), ST_IO);
    assert_int_equal(http_server_listen(second, "127.0.0.1", port, true, NULL), ST_OK);
    http_server_destroy(first);
    http_server_destroy(second);
    finish(&fx);
}

/* A refused allocation, wherever it strikes, ends in an answer or a close; nothing leaks or
 * hangs. */
static void every_refused_allocation_is_survived(void **state) {
    static char chunk[70000];
    int n_answered = 0, n_closed = 0;

    (void)state;
    for (uint64_t n = 1; n <= 12; n++) {
        uint64_t until_us = clock_now_us() + CLIENT_TIMEOUT_US;
        struct fixture fx;
        struct client c;

        start(&fx);
        client_open(&c, http_server_port(fx.server));
        assert_non_null(buf_reserve(&c.got, 1u << 20)); /* the client is to be spared */
        buf_append(&fx.seen, chunk, sizeof(chunk));
        buf_append(&fx.seen, chunk, sizeof(chunk));
        mem_fail_at(n);
        client_send(&c, fx.loop,
                    STR("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                        "11170\r\n"));
        client_send(&c, fx.loop, (struct str){chunk, sizeof(chunk)});
        client_send(&c, fx.loop, STR("\r\n0\r\n\r\nGET /sse HTTP/1.1\r\nHost: a\r\n\r\n"));
        while (!c.is_closed && client_count(&c, "[DONE]") == 0 && clock_now_us() < until_us) {
            loop_turn(fx.loop, 1000);
            client_read(&c);
        }
        mem_fail_at(0);
        n_closed += c.is_closed;
        n_answered += client_count(&c, "[DONE]") == 1;
        assert_true(c.is_closed || client_count(&c, "[DONE]") == 1);
        client_close(&c);
        finish(&fx);
    }
    assert_true(n_closed > 0 && n_answered > 0);
}

/* --- ending ----------------------------------------------------------------------------------- */

static void count_call(void *arg) {
    ++*(int *)arg;
}

static void draining_finishes_open_requests(void **state) {
    struct fixture fx;
    struct client idle, busy;
    int n_done = 0;

    (void)state;
    start(&fx);
    client_open(&idle, http_server_port(fx.server));
    client_open(&busy, http_server_port(fx.server));
    client_send(&idle, fx.loop, STR(POST_ABC));
    client_expect(&idle, fx.loop, "abc");
    client_send(&busy, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_server_drain(fx.server, count_call, &n_done);
    client_expect_close(&idle, fx.loop);
    assert_int_equal(n_done, 0);
    http_reply(fx.kept[0], 200, NULL, STR("done"));
    client_expect(&busy, fx.loop, "connection: close\r\n");
    client_expect_close(&busy, fx.loop);
    client_close(&busy);
    TURN_UNTIL(fx.loop, n_done == 1);
    client_close(&idle);
    finish(&fx);
}

/* An answer that leaves its connection open is over before it is sent. */
static void draining_sends_answers_of_the_same_turn(void **state) {
    struct fixture fx;
    struct client c;
    int n_done = 0;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_reply(fx.kept[0], 200, NULL, STR("done"));
    http_server_drain(fx.server, count_call, &n_done);
    client_expect(&c, fx.loop, "done");
    client_expect_close(&c, fx.loop);
    assert_false(c.was_reset);
    client_close(&c);
    TURN_UNTIL(fx.loop, n_done == 1);
    finish(&fx);
}

/* Neither a drain nor the end of its idle time cuts off a client that is still reading. */
static void a_slow_reader_gets_all_of_its_last_answer(void **state) {
    static char body[16u << 20];
    const struct http_limits limits = {.idle_timeout_ms = 60};
    struct fixture fx;
    struct client c;
    int n_done = 0;

    (void)state;
    for (int drains = 0; drains < 2; drains++) {
        start_with(&fx, &limits);
        client_open(&c, http_server_port(fx.server));
        client_send(&c, fx.loop,
                    STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        TURN_UNTIL(fx.loop, fx.n_kept == 1);
        http_reply(fx.kept[0], 200, NULL, (struct str){body, sizeof(body)});
        loop_turn(fx.loop, 0);
        if (drains) {
            http_server_drain(fx.server, count_call, &n_done);
        } else {
            uint64_t until_us = clock_now_us() + 200000; /* more than its idle time */

            while (clock_now_us() < until_us)
                loop_turn(fx.loop, 10000);
        }
        client_expect_close(&c, fx.loop);
        assert_false(c.was_reset);
        assert_true(buf_len(&c.got) > sizeof(body));
        client_close(&c);
        if (drains) TURN_UNTIL(fx.loop, n_done == 1);
        finish(&fx);
    }
}

static void turn_for_us(struct fixture *fx, uint64_t us) {
    uint64_t until_us = clock_now_us() + us;

    while (clock_now_us() < until_us)
        loop_turn(fx->loop, 5000);
}

/* Its time begins with the announcement, however long it was idle before. */
static void an_idle_connection_has_time_for_one_more_request(void **state) {
    struct fixture fx;
    struct client late, silent, queued;
    int n_done = 0;

    (void)state;
    start(&fx);
    client_open(&late, http_server_port(fx.server));
    client_open(&silent, http_server_port(fx.server));
    client_send(&late, fx.loop, STR(POST_ABC));
    client_expect(&late, fx.loop, "abc");
    turn_for_us(&fx, 150000);
    client_open(&queued, http_server_port(fx.server)); /* connected, and not accepted yet */
    http_server_drain_idle(fx.server, 100000, count_call, &n_done);
    loop_turn(fx.loop, 0);
    client_send(&late, fx.loop, STR(POST_ABC));
    client_expect(&late, fx.loop, "connection: close");
    client_expect_close(&late, fx.loop);
    client_send(&queued, fx.loop, STR(POST_ABC));
    client_expect(&queued, fx.loop, "connection: close");
    client_expect_close(&queued, fx.loop);
    client_expect_close(&silent, fx.loop);
    assert_false(silent.was_reset || queued.was_reset || late.was_reset);
    client_close(&late);
    client_close(&queued);
    client_close(&silent);
    TURN_UNTIL(fx.loop, n_done == 1);
    finish(&fx);
}

/* A stream that began before the drain leaves its connection open: its client was not
 * asked to close. */
static void a_late_end_still_leaves_time_for_a_request(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_raw_write(fx.kept[0], STR("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"));
    http_server_drain_idle(fx.server, 60000000, NULL, NULL);
    http_raw_write(fx.kept[0], STR("ok"));
    http_raw_end(fx.kept[0], true);
    client_expect(&c, fx.loop, "ok");
    client_send(&c, fx.loop, STR(POST_ABC));
    client_expect(&c, fx.loop, "connection: close");
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void a_draining_server_answers_a_received_request(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR(POST_ABC));
    client_expect(&c, fx.loop, "abc");
    assert_int_equal(send(c.fd, POST_ABC, sizeof(POST_ABC) - 1, 0), sizeof(POST_ABC) - 1);
    http_server_drain(fx.server, NULL, NULL);
    client_expect(&c, fx.loop, "connection: close");
    client_expect_close(&c, fx.loop);
    assert_int_equal(client_count(&c, "abc"), 2);
    client_close(&c);
    finish(&fx);
}

static void a_request_that_meets_the_end_is_not_reset(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR(POST_ABC));
    client_expect(&c, fx.loop, "abc");
    http_server_drain(fx.server, NULL, NULL);
    loop_turn(fx.loop, 0);
    client_send(&c, fx.loop, STR(POST_ABC));
    turn_for_us(&fx, 50000);
    client_expect_close(&c, fx.loop);
    assert_false(c.was_reset);
    client_close(&c);
    finish(&fx);
}

static void destroying_aborts_open_requests(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_server_destroy(fx.server);
    assert_int_equal(fx.n_aborted, 1);
    fx.server = NULL;
    client_close(&c);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_requests_get_a_sentence_and_a_close),
        cmocka_unit_test(too_large_bodies_are_refused_readably),
        cmocka_unit_test(refusals_have_the_form_of_their_path),
        cmocka_unit_test(a_head_can_be_refused_before_its_body),
        cmocka_unit_test(slow_senders_are_cut_off),
        cmocka_unit_test(a_reader_that_stops_is_aborted),
        cmocka_unit_test(connections_above_the_limit_wait_for_those_in_flight),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(loops_may_share_a_port),
        cmocka_unit_test(every_refused_allocation_is_survived),
        cmocka_unit_test(draining_finishes_open_requests),
        cmocka_unit_test(draining_sends_answers_of_the_same_turn),
        cmocka_unit_test(a_slow_reader_gets_all_of_its_last_answer),
        cmocka_unit_test(an_idle_connection_has_time_for_one_more_request),
        cmocka_unit_test(a_late_end_still_leaves_time_for_a_request),
        cmocka_unit_test(a_draining_server_answers_a_received_request),
        cmocka_unit_test(a_request_that_meets_the_end_is_not_reset),
        cmocka_unit_test(destroying_aborts_open_requests),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
