/* tests/unit/common/http/test_http_tls.c - the HTTP server behind a handshake. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/conn.h"
#include "common/net/tls.h"
#include "tests/support/certs.h"
#include "tests/support/client.h"
#include "tests/unit/common/http/http_fixture.h"

static struct certs certs;

struct tls_fixture {
    struct fixture http;
    struct tls *server_tls, *client_tls;
    struct tls_ticket *ticket;
};

static void start_tls(struct tls_fixture *fx, const struct http_limits *limits) {
    const struct tls_config server = {
        .cert = certs_path(&certs, "a.pem"), .key = certs_path(&certs, "a.key"), .is_server = true};
    const struct tls_config client = {.ca = certs_path(&certs, "ca.pem")};

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(tls_create(&fx->server_tls, &server, NULL), ST_OK);
    assert_int_equal(tls_create(&fx->client_tls, &client, NULL), ST_OK);
    buf_init(&fx->http.seen, 0);
    assert_int_equal(loop_create(&fx->http.loop, NULL), ST_OK);
    fx->http.server = http_server_create(fx->http.loop, limits, &events, &fx->http);
    assert_int_equal(
        http_server_listen_tls(fx->http.server, fx->server_tls, "127.0.0.1", 0, false, NULL),
        ST_OK);
}

static void finish_tls(struct tls_fixture *fx) {
    finish(&fx->http);
    tls_ticket_forget(&fx->ticket);
    tls_destroy(fx->server_tls);
    tls_destroy(fx->client_tls);
}

/* A client that speaks TLS. */
struct caller {
    struct conn conn;
    struct buf got;
    bool is_closed;
    enum conn_end end;
};

static void on_data(struct conn *c, void *owner) {
    struct conn_bytes in = conn_input(c);

    buf_append(&((struct caller *)owner)->got, in.ptr, in.len);
    conn_consume(c, in.len);
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct caller *caller = owner;

    caller->is_closed = true;
    caller->end = end;
    conn_fini(c);
}

static const struct conn_events caller_events = {.on_data = on_data, .on_closed = on_closed};

static void call(struct tls_fixture *fx, struct caller *caller) {
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons(http_server_port(fx->http.server)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    memset(caller, 0, sizeof(*caller));
    buf_init(&caller->got, 0);
    assert_int_equal(conn_connect(&caller->conn, fx->http.loop, (struct sockaddr *)&addr,
                                  sizeof(addr), 1000000, &caller_events, caller, NULL),
                     ST_OK);
    tls_connect(&caller->conn, fx->client_tls, "localhost", &fx->ticket);
}

static void hang_up(struct caller *caller) {
    conn_fini(&caller->conn);
    buf_fini(&caller->got);
}

static bool has(const struct caller *caller, const char *text) {
    return str_find(buf_str(&caller->got), str_of(text)) >= 0;
}

static void requests_and_streams_are_as_without(void **state) {
    struct tls_fixture fx;
    struct caller a;

    (void)state;
    start_tls(&fx, NULL);
    call(&fx, &a);
    conn_write(&a.conn, POST_ABC, strlen(POST_ABC));
    TURN_UNTIL(fx.http.loop, has(&a, "\r\n\r\nabc"));
    buf_clear(&a.got);
    for (const char *p = POST_ABC; *p; p++) { /* a record for each byte */
        conn_write(&a.conn, p, 1);
        conn_flush(&a.conn);
        loop_turn(fx.http.loop, 0);
    }
    TURN_UNTIL(fx.http.loop, has(&a, "\r\n\r\nabc"));
    conn_write(&a.conn, "GET /sse HTTP/1.1\r\nhost: a\r\n\r\n", 31);
    TURN_UNTIL(fx.http.loop, has(&a, "[DONE]"));
    hang_up(&a);
    TURN_UNTIL(fx.http.loop, http_server_stats(fx.http.server).open_connections == 0);
    assert_int_equal(http_server_stats(fx.http.server).requests_total, 3);
    finish_tls(&fx);
}

static void pipelined_requests_that_come_with_the_handshake_are_answered(void **state) {
    struct tls_fixture fx;
    struct caller a;

    (void)state;
    start_tls(&fx, NULL);
    call(&fx, &a);
    conn_write(&a.conn, POST_ABC POST_ABC POST_ABC, 3 * strlen(POST_ABC));
    TURN_UNTIL(fx.http.loop, http_server_stats(fx.http.server).requests_total == 3);
    hang_up(&a);
    finish_tls(&fx);
}

static void a_body_larger_than_any_buffer_comes_back(void **state) {
    const size_t len = 5u << 20;
    char *body = mem_alloc(len);
    struct tls_fixture fx;
    struct caller a;
    char head[100];

    (void)state;
    for (size_t i = 0; i < len; i++)
        body[i] = (char)(i * 2654435761u >> 24);
    start_tls(&fx, NULL);
    call(&fx, &a);
    snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %zu\r\n\r\n",
             len);
    conn_write(&a.conn, head, strlen(head));
    conn_write(&a.conn, body, len);
    TURN_UNTIL(fx.http.loop, buf_len(&a.got) > len);
    assert_memory_equal(buf_ptr(&a.got) + buf_len(&a.got) - len, body, len);
    hang_up(&a);
    finish_tls(&fx);
    mem_free(body);
}

static void plain_http_on_a_tls_port_gets_a_clear_error(void **state) {
    struct tls_fixture fx;
    struct client c;

    (void)state;
    start_tls(&fx, NULL);
    client_open(&c, http_server_port(fx.http.server));
    client_send(&c, fx.http.loop, STR(POST_ABC));
    client_expect(&c, fx.http.loop, "HTTP/1.1 400 ");
    client_expect(&c, fx.http.loop, "begin the URL with https://");
    client_expect_close(&c, fx.http.loop);
    assert_false(c.was_reset);
    client_close(&c);
    assert_int_equal(http_server_stats(fx.http.server).requests_total, 0);
    assert_int_equal(http_server_stats(fx.http.server).handshakes_failed_total, 1);
    TURN_UNTIL(fx.http.loop, http_server_stats(fx.http.server).open_connections == 0);
    finish_tls(&fx);
}

static void a_slow_handshake_is_closed(void **state) {
    static const struct http_limits limits = {.handshake_timeout_ms = 40};
    static const char *const parts[] = {"", "\x16", "\x16\x03\x01\x02\x00\x01"};
    struct tls_fixture fx;
    struct client c;

    (void)state;
    start_tls(&fx, &limits);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        client_open(&c, http_server_port(fx.http.server));
        client_send(&c, fx.http.loop, str_of(parts[i]));
        client_expect_close(&c, fx.http.loop);
        client_close(&c);
        assert_int_equal(http_server_stats(fx.http.server).timeouts_total, i + 1);
    }
    finish_tls(&fx);
}

static void a_broken_answer_cannot_be_taken_for_a_complete_one(void **state) {
    struct tls_fixture fx;
    struct caller a;

    (void)state;
    start_tls(&fx, NULL);
    call(&fx, &a);
    conn_write(&a.conn, "POST /keep HTTP/1.0\r\n\r\n", 23);
    TURN_UNTIL(fx.http.loop, fx.http.n_kept == 1);
    http_stream_begin(fx.http.kept[0], 200, "text/plain"); /* to 1.0: closing is the end */
    http_stream_write(fx.http.kept[0], STR("half"));
    TURN_UNTIL(fx.http.loop, has(&a, "half"));
    http_stream_break(fx.http.kept[0]);
    TURN_UNTIL(fx.http.loop, a.is_closed);
    assert_int_equal(a.end, CONN_RESET);
    hang_up(&a);
    call(&fx, &a);
    conn_write(&a.conn, "POST /keep HTTP/1.0\r\n\r\n", 23);
    TURN_UNTIL(fx.http.loop, fx.http.n_kept == 2);
    http_stream_begin(fx.http.kept[1], 200, "text/plain");
    http_stream_write(fx.http.kept[1], STR("whole"));
    http_stream_end(fx.http.kept[1]);
    TURN_UNTIL(fx.http.loop, a.is_closed);
    assert_int_equal(a.end, CONN_EOF);
    assert_true(has(&a, "whole"));
    hang_up(&a);
    finish_tls(&fx);
}

static void draining_closes_handshakes_and_ends_open_requests(void **state) {
    struct tls_fixture fx;
    struct caller a;
    struct client c;

    (void)state;
    start_tls(&fx, NULL);
    call(&fx, &a);
    conn_write(&a.conn, "POST /keep HTTP/1.1\r\nhost: a\r\n\r\n", 32);
    TURN_UNTIL(fx.http.loop, fx.http.n_kept == 1);
    client_open(&c, http_server_port(fx.http.server));
    TURN_UNTIL(fx.http.loop, http_server_stats(fx.http.server).open_connections == 2);
    http_server_drain(fx.http.server, NULL, NULL);
    client_expect_close(&c, fx.http.loop);
    http_reply(fx.http.kept[0], 200, NULL, STR("last"));
    TURN_UNTIL(fx.http.loop, a.is_closed);
    assert_true(has(&a, "last"));
    client_close(&c);
    hang_up(&a);
    finish_tls(&fx);
}

static int make_certs(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    certs_init(&certs);
    certs_make(&certs, &(struct certs_spec){.name = "a", .host = "localhost"});
    return 0;
}

static int remove_certs(void **state) {
    (void)state;
    certs_fini(&certs);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_and_streams_are_as_without),
        cmocka_unit_test(pipelined_requests_that_come_with_the_handshake_are_answered),
        cmocka_unit_test(a_body_larger_than_any_buffer_comes_back),
        cmocka_unit_test(plain_http_on_a_tls_port_gets_a_clear_error),
        cmocka_unit_test(a_slow_handshake_is_closed),
        cmocka_unit_test(a_broken_answer_cannot_be_taken_for_a_complete_one),
        cmocka_unit_test(draining_closes_handshakes_and_ends_open_requests),
    };

    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
