/* tests/unit/common/test_http_server.c - the server over real loopback sockets.
 *
 * Server and clients share one thread: the test turns the loop until what it waits for is there. */
#include "common/http_server.h"

#include "common/clock.h"
#include "common/conn.h"
#include "common/loop.h"
#include "common/mem.h"
#include "common/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_KEPT   8
#define PATIENCE_US 5000000u

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_request *kept[MAX_KEPT]; /* of /keep, to be answered by the test */
    int n_kept, n_aborted, n_drained;
    struct buf seen; /* method, target, headers and body of the last request */
    enum status head_says;
};

static void note(struct fixture *fx, struct http_request *req) {
    buf_clear(&fx->seen);
    buf_appendf(&fx->seen, "%.*s %.*s %u|", STR_ARG(req->method_name), STR_ARG(req->target),
                req->minor_version);
    for (uint16_t i = 0; i < req->n_headers; i++) {
        struct http_field f = http_request_header_at(req, i);

        buf_appendf(&fx->seen, "%.*s=%.*s;", STR_ARG(f.name), STR_ARG(f.value));
    }
    buf_append_char(&fx->seen, '|');
    buf_append_str(&fx->seen, req->body);
}

static void echo(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, "text/plain", req->body);
}

static void forget_kept(struct http_request *req) {
    struct fixture *fx = req->user;

    fx->n_aborted++;
}

static void keep(struct http_request *req, void *arg) {
    struct fixture *fx = arg;

    assert_true(fx->n_kept < MAX_KEPT);
    req->user = fx;
    req->on_abort = forget_kept;
    fx->kept[fx->n_kept++] = req;
}

static void three_events(struct http_request *req, void *arg) {
    (void)arg;
    http_stream_begin(req, 200, HTTP_SSE);
    http_sse_event(req, STR("{\"n\":1}"));
    http_sse_event(req, STR("{\"n\":2}"));
    http_sse_event(req, STR("[DONE]"));
    http_stream_end(req);
}

static void no_content(struct http_request *req, void *arg) {
    (void)arg;
    http_add_header(req, STR("x-test"), STR("yes"));
    http_reply(req, 204, NULL, STR(""));
}

static const struct http_route routes[] = {
    {HTTP_POST, "/echo", echo},         {HTTP_GET, "/echo", echo}, {HTTP_POST, "/keep", keep},
    {HTTP_GET, "/sse", three_events}, {HTTP_GET, "/none", no_content}, {HTTP_GET, NULL, NULL},
};

static void on_request(struct http_request *req, void *arg) {
    note(arg, req);
    http_route_request(routes, req, arg);
}

static enum status on_head(struct http_request *req, void *arg, struct error *err) {
    struct fixture *fx = arg;

    if (fx->head_says == ST_OK) return ST_OK;
    return error_set(err, fx->head_says, "not you: %.*s", STR_ARG(req->path));
}

static const struct http_server_events events = {.on_request = on_request, .on_head = on_head};

static void start_with(struct fixture *fx, const struct http_limits *limits) {
    struct error err = {0};

    memset(fx, 0, sizeof(*fx));
    buf_init(&fx->seen, 0);
    assert_int_equal(loop_create(&fx->loop, &err), ST_OK);
    fx->server = http_server_create(fx->loop, limits, &events, fx);
    assert_int_equal(http_server_listen(fx->server, "127.0.0.1", 0, false, &err), ST_OK);
}

static void start(struct fixture *fx) {
    start_with(fx, NULL);
}

static void finish(struct fixture *fx) {
    http_server_destroy(fx->server);
    loop_destroy(fx->loop);
    buf_fini(&fx->seen);
}

/* --- a client ---------------------------------------------------------------------------------- */

struct client {
    int fd;
    bool is_closed, was_reset;
    struct buf got;
};

static void client_open(struct client *c, struct fixture *fx) {
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons(http_server_port(fx->server)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    buf_init(&c->got, 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
}

static void client_close(struct client *c) {
    close(c->fd);
    buf_fini(&c->got);
}

/* Returns the bytes received at once. */
static size_t client_read(struct client *c) {
    char *to = buf_reserve(&c->got, 65536);
    ssize_t n = recv(c->fd, to, 65536, 0);

    if (n > 0) {
        buf_commit(&c->got, (size_t)n);
        return (size_t)n;
    }
    if (n == 0) c->is_closed = true;
    if (n < 0 && errno == ECONNRESET) c->is_closed = c->was_reset = true;
    return 0;
}

static void client_send(struct client *c, struct fixture *fx, struct str s) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;

    while (s.len && clock_now_us() < until_us) {
        ssize_t n = send(c->fd, s.ptr, s.len, MSG_NOSIGNAL);

        if (n > 0) s = (struct str){s.ptr + n, s.len - (size_t)n};
        if (n < 0 && errno != EAGAIN) return;
        if (s.len) loop_turn(fx->loop, 1000);
    }
}

/* Turns until the client has received `needle`. */
static void client_expect(struct client *c, struct fixture *fx, const char *needle) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;

    while (str_find(buf_str(&c->got), str_of(needle)) < 0) {
        loop_turn(fx->loop, 1000);
        client_read(c);
        if (clock_now_us() > until_us) {
            fail_msg("waited for '%s', got '%.*s'", needle, (int)buf_len(&c->got),
                     c->got.data ? buf_ptr(&c->got) : "");
        }
    }
}

static void client_expect_close(struct client *c, struct fixture *fx) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;

    while (!c->is_closed) {
        loop_turn(fx->loop, 1000);
        client_read(c);
        if (clock_now_us() > until_us) fail_msg("the connection stays open");
    }
}

#define TURN_UNTIL(fx, condition)                                                                  \
    do {                                                                                           \
        uint64_t until_us_ = clock_now_us() + PATIENCE_US;                                         \
        while (!(condition)) {                                                                     \
            loop_turn((fx)->loop, 1000);                                                           \
            if (clock_now_us() > until_us_) fail_msg("never: %s", #condition);                     \
        }                                                                                          \
    } while (0)

static int count_of(const struct buf *b, const char *needle) {
    struct str rest = buf_str(b);
    int n = 0;
    ptrdiff_t at;

    while ((at = str_find(rest, str_of(needle))) >= 0) {
        rest = (struct str){rest.ptr + at + 1, rest.len - (size_t)at - 1};
        n++;
    }
    return n;
}

#define POST_ABC "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"

/* --- requests and answers ------------------------------------------------------------------------ */

static void one_connection_serves_many_requests(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    for (int i = 0; i < 3; i++) {
        buf_clear(&c.got);
        client_send(&c, &fx, STR(POST_ABC));
        client_expect(&c, &fx, "content-length: 3\r\n\r\nabc");
        assert_true(str_starts(buf_str(&c.got), STR("HTTP/1.1 200 OK\r\ndate: ")));
        assert_int_equal(count_of(&c.got, "connection:"), 0);
    }
    assert_int_equal(http_server_stats(fx.server).requests_total, 3);
    assert_int_equal(http_server_stats(fx.server).connections_total, 1);
    assert_int_equal(http_server_stats(fx.server).open_requests, 0);
    client_close(&c);
    finish(&fx);
}

static void pipelined_requests_are_answered_in_order(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx,
                STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1"
                    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo"
                    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nthree"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    loop_turn(fx.loop, 1000);
    assert_int_equal(http_server_stats(fx.server).requests_total, 1);
    http_reply(fx.kept[0], 200, "text/plain", STR("one"));
    client_expect(&c, &fx, "three");
    assert_true(str_find(buf_str(&c.got), STR("one")) < str_find(buf_str(&c.got), STR("two")));
    assert_int_equal(count_of(&c.got, "HTTP/1.1 200"), 3);
    client_close(&c);
    finish(&fx);
}

static void a_kept_request_keeps_its_strings_while_more_arrives(void **state) {
    struct fixture fx;
    struct client c;
    struct buf more;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    buf_init(&more, 0);
    client_send(&c, &fx, STR("POST /keep?q=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    for (int i = 0; i < 3000; i++) buf_append_str(&more, STR(POST_ABC)); /* 165 KB */
    client_send(&c, &fx, (struct str){buf_ptr(&more), 100000});
    for (int i = 0; i < 10; i++) loop_turn(fx.loop, 1000);
    assert_true(str_eq(fx.kept[0]->body, STR("body")));
    assert_true(str_eq(fx.kept[0]->query, STR("q=1")));
    assert_true(str_eq(http_request_header(fx.kept[0], STR("HOST")), STR("a")));
    http_reply(fx.kept[0], 200, NULL, STR(""));
    client_send(&c, &fx, (struct str){buf_ptr(&more) + 100000, buf_len(&more) - 100000});
    TURN_UNTIL(&fx, (client_read(&c), http_server_stats(fx.server).requests_total == 3001));
    TURN_UNTIL(&fx, (client_read(&c), count_of(&c.got, "\r\n\r\nabc") == 3000));
    buf_fini(&more);
    client_close(&c);
    finish(&fx);
}

static void bodies_are_equal_however_they_are_framed_and_cut(void **state) {
    static const char *const forms[] = {
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\nTrailer: dropped\r\n\r\n",
    };
    struct fixture fx;

    (void)state;
    start(&fx);
    for (size_t form = 0; form < ARRAY_LEN(forms); form++) {
        for (size_t piece = 1; piece < 200; piece += 33) {
            struct str rest = str_of(forms[form]);
            struct client c;

            client_open(&c, &fx);
            while (rest.len) {
                size_t n = MIN(piece, rest.len);

                client_send(&c, &fx, (struct str){rest.ptr, n});
                rest = (struct str){rest.ptr + n, rest.len - n};
                loop_turn(fx.loop, 100);
            }
            client_expect(&c, &fx, "content-length: 11\r\n\r\nhello world");
            client_close(&c);
        }
    }
    finish(&fx);
}

static void large_bodies_arrive_intact(void **state) {
    const size_t sizes[] = {4000, 4096, 65500, 65536, 70000, 1u << 20, 5u << 20};
    struct fixture fx;

    (void)state;
    start(&fx);
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        size_t n = sizes[s], head, answer;
        struct client c;
        struct buf sent;
        uint64_t until_us = clock_now_us() + PATIENCE_US;

        buf_init(&sent, 0);
        client_open(&c, &fx);
        buf_appendf(&sent, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
        head = buf_len(&sent);
        for (size_t i = 0; i < n; i++) buf_append_char(&sent, (char)('a' + (i * 7 + i / 251) % 26));
        client_send(&c, &fx, buf_str(&sent));
        client_expect(&c, &fx, "\r\n\r\n");
        answer = (size_t)str_find(buf_str(&c.got), STR("\r\n\r\n")) + 4 + n;
        while (buf_len(&c.got) < answer && clock_now_us() < until_us) {
            loop_turn(fx.loop, 100);
            client_read(&c);
        }
        assert_int_equal(buf_len(&c.got), answer);
        assert_memory_equal(buf_ptr(&c.got) + buf_len(&c.got) - n, buf_ptr(&sent) + head, n);
        buf_fini(&sent);
        client_close(&c);
    }
    finish(&fx);
}

static void head_is_answered_without_body(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("HEAD /sse HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, &fx, "transfer-encoding: chunked\r\n\r\n");
    client_send(&c, &fx, STR("HEAD /nowhere HTTP/1.1\r\nHost: a\r\n\r\n" POST_ABC));
    client_expect(&c, &fx, "\r\n\r\nabc");
    assert_int_equal(count_of(&c.got, "{"), 0);
    assert_int_equal(count_of(&c.got, "404 Not Found"), 1);
    client_close(&c);
    finish(&fx);
}

static void answers_without_content_have_no_length(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("GET /none HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, &fx, "HTTP/1.1 204 No Content\r\n");
    client_expect(&c, &fx, "x-test: yes\r\n\r\n");
    assert_int_equal(count_of(&c.got, "content-length"), 0);
    client_close(&c);
    finish(&fx);
}

static void unknown_paths_and_methods_are_told_what_exists(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, &fx, "no such path: /nowhere");
    client_send(&c, &fx, STR("DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, &fx, "HTTP/1.1 405 Method Not Allowed");
    client_expect(&c, &fx, "allow: POST, GET, HEAD\r\n");
    client_send(&c, &fx, STR("OPTIONS /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, &fx, "HTTP/1.1 204");
    client_close(&c);
    finish(&fx);
}

static void expect_continue_is_answered_before_the_body(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx,
                STR("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: "
                    "100-continue\r\n\r\n"));
    client_expect(&c, &fx, "HTTP/1.1 100 Continue\r\n\r\n");
    client_send(&c, &fx, STR("abc"));
    client_expect(&c, &fx, "HTTP/1.1 200 OK");
    client_expect(&c, &fx, "abc");
    client_close(&c);
    finish(&fx);
}

static void old_clients_get_old_answers(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("GET /sse HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    client_expect_close(&c, &fx);
    assert_false(c.was_reset);
    assert_int_equal(count_of(&c.got, "chunked"), 0);
    assert_int_equal(count_of(&c.got, "connection: close\r\n"), 1);
    assert_true(str_ends(buf_str(&c.got), STR("\r\n\r\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\n"
                                              "data: [DONE]\n\n")));
    client_close(&c);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    client_expect(&c, &fx, "connection: keep-alive\r\n");
    client_send(&c, &fx, STR("GET /echo HTTP/1.0\r\n\r\n"));
    client_expect(&c, &fx, "connection: close\r\n");
    client_expect_close(&c, &fx);
    client_close(&c);
    finish(&fx);
}

/* --- streams ------------------------------------------------------------------------------------- */

static void writes_of_one_turn_leave_in_one_send(void **state) {
    struct fixture fx;
    struct client c;
    size_t n;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("GET /sse HTTP/1.1\r\nHost: a\r\n\r\n"));
    do {
        loop_turn(fx.loop, 1000);
        n = client_read(&c);
    } while (n == 0);
    assert_true(str_ends(buf_str(&c.got), STR("\r\n\r\nf\r\ndata: {\"n\":1}\n\n\r\n"
                                              "f\r\ndata: {\"n\":2}\n\n\r\n"
                                              "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")));
    client_close(&c);
    finish(&fx);
}

static void a_stream_arrives_as_it_is_written(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    http_stream_begin(fx.kept[0], 200, HTTP_SSE);
    client_expect(&c, &fx, "\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        char json[16];

        snprintf(json, sizeof(json), "%d", i);
        http_sse_event(fx.kept[0], str_of(json));
        client_expect(&c, &fx, json);
    }
    http_stream_end(fx.kept[0]);
    client_expect(&c, &fx, "0\r\n\r\n");
    client_send(&c, &fx, STR(POST_ABC));
    client_expect(&c, &fx, "abc");
    assert_int_equal(fx.n_aborted, 0);
    client_close(&c);
    finish(&fx);
}

static void a_client_that_leaves_aborts_its_request_once(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    for (int i = 0; i < 2; i++) {
        client_open(&c, &fx);
        client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        TURN_UNTIL(&fx, fx.n_kept == i + 1);
        if (i == 1) http_stream_begin(fx.kept[1], 200, HTTP_SSE);
        client_close(&c);
        TURN_UNTIL(&fx, fx.n_aborted == i + 1);
    }
    TURN_UNTIL(&fx, http_server_stats(fx.server).open_connections == 0);
    assert_int_equal(http_server_stats(fx.server).aborted_total, 2);
    assert_int_equal(http_server_stats(fx.server).open_requests, 0);
    finish(&fx);
}

static void count_drain(struct http_request *req) {
    struct fixture *fx = req->user;

    fx->n_drained++;
}

static void a_slow_reader_is_waited_for(void **state) {
    static char piece[10000];
    struct fixture fx;
    struct client c;
    size_t written = 0;

    (void)state;
    start(&fx);
    memset(piece, 'x', sizeof(piece));
    client_open(&c, &fx);
    client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    fx.kept[0]->on_drain = count_drain;
    http_stream_begin(fx.kept[0], 200, "text/plain");
    while (http_pending_bytes(fx.kept[0]) < 200000) {
        http_stream_write(fx.kept[0], (struct str){piece, sizeof(piece)});
        http_flush(fx.kept[0]);
        written += sizeof(piece);
        assert_true(written < 100u << 20);
    }
    loop_turn(fx.loop, 1000);
    assert_int_equal(fx.n_drained, 0);
    TURN_UNTIL(&fx, (client_read(&c), fx.n_drained == 1));
    assert_true(http_pending_bytes(fx.kept[0]) <= CONN_LOW_WATER_BYTES);
    http_stream_end(fx.kept[0]);
    client_expect(&c, &fx, "\r\n0\r\n\r\n");
    assert_int_equal(count_of(&c.got, "\r\n2710\r\n"), written / sizeof(piece));
    client_close(&c);
    finish(&fx);
}

static void a_broken_stream_has_no_end(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    http_stream_begin(fx.kept[0], 200, HTTP_SSE);
    http_sse_event(fx.kept[0], STR("{}"));
    http_stream_break(fx.kept[0]);
    client_expect_close(&c, &fx);
    assert_true(str_ends(buf_str(&c.got), STR("data: {}\n\n\r\n")));
    client_close(&c);
    finish(&fx);
}

static void raw_answers_are_passed_through(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    for (int i = 0; i < 2; i++) {
        client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        TURN_UNTIL(&fx, fx.n_kept == i + 1);
        assert_false(http_wants_close(fx.kept[i]));
        http_raw_write(fx.kept[i], STR("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"));
        assert_true(http_stream_has_begun(fx.kept[i]));
        http_raw_write(fx.kept[i], STR("raw!"));
        http_raw_end(fx.kept[i], i == 0);
    }
    client_expect_close(&c, &fx);
    assert_true(str_eq(buf_str(&c.got), STR("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nraw!"
                                            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nraw!")));
    client_close(&c);
    finish(&fx);
}

/* --- refusals and limits --------------------------------------------------------------------------- */

static void malformed_requests_get_a_sentence_and_a_close(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc"));
    client_expect_close(&c, &fx);
    assert_false(c.was_reset);
    assert_true(str_starts(buf_str(&c.got), STR("HTTP/1.1 400 Bad Request\r\n")));
    assert_int_equal(count_of(&c.got, "connection: close\r\n"), 1);
    assert_int_equal(count_of(&c.got, "{\"error\":{\"message\":\"Content-Length '+3' is not"), 1);
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
        client_open(&c, &fx);
        client_send(&c, &fx, str_of(heads[i]));
        client_send(&c, &fx, (struct str){junk, sizeof(junk)}); /* and does not stop to listen */
        client_expect_close(&c, &fx);
        assert_false(c.was_reset);
        assert_int_equal(count_of(&c.got, "HTTP/1.1 413"), 1);
        assert_int_equal(count_of(&c.got, "limit of 1000"), 1);
        client_close(&c);
    }
    finish(&fx);
}

static void a_head_can_be_refused_before_its_body(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    fx.head_says = ST_DENIED;
    client_open(&c, &fx);
    client_send(&c, &fx, STR("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"));
    client_expect(&c, &fx, "HTTP/1.1 401 Unauthorized");
    client_expect(&c, &fx, "not you: /echo");
    client_expect_close(&c, &fx);
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

        client_open(&c, &fx);
        client_send(&c, &fx, str_of(starts[i]));
        client_expect_close(&c, &fx);
        assert_int_equal(count_of(&c.got, "HTTP/1.1 408 Request Timeout"), starts[i][0] ? 1 : 0);
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
    client_open(&c, &fx);
    client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    http_stream_begin(fx.kept[0], 200, "text/plain");
    for (int i = 0; i < 16; i++) http_stream_write(fx.kept[0], (struct str){piece, sizeof(piece)});
    TURN_UNTIL(&fx, fx.n_aborted == 1);
    client_expect_close(&c, &fx);
    client_close(&c);
    finish(&fx);
}

static void connections_above_the_limit_wait(void **state) {
    const struct http_limits limits = {.max_connections = 1};
    struct fixture fx;
    struct client a, b;

    (void)state;
    start_with(&fx, &limits);
    client_open(&a, &fx);
    client_send(&a, &fx, STR(POST_ABC));
    client_expect(&a, &fx, "abc");
    client_open(&b, &fx);
    client_send(&b, &fx, STR(POST_ABC));
    for (int i = 0; i < 5; i++) loop_turn(fx.loop, 1000);
    assert_int_equal(client_read(&b), 0);
    client_close(&a);
    client_expect(&b, &fx, "abc");
    client_close(&b);
    finish(&fx);
}

static void a_taken_port_is_named(void **state) {
    struct fixture fx;
    struct error err = {0};
    char expected[80];

    (void)state;
    start(&fx);
    snprintf(expected, sizeof(expected), "port %u is in use: choose another with --port",
             http_server_port(fx.server));
    assert_int_equal(http_server_listen(fx.server, "127.0.0.1", http_server_port(fx.server), false,
                                        &err), ST_IO);
    assert_string_equal(err.message, expected);
    assert_int_equal(http_server_listen(fx.server, "localhost", 0, false, &err), ST_INVALID);
    finish(&fx);
}

/* --- ending ---------------------------------------------------------------------------------------- */

static void count_call(void *arg) {
    ++*(int *)arg;
}

static void draining_finishes_what_is_open(void **state) {
    struct fixture fx;
    struct client idle, busy;
    int n_done = 0;

    (void)state;
    start(&fx);
    client_open(&idle, &fx);
    client_open(&busy, &fx);
    client_send(&idle, &fx, STR(POST_ABC));
    client_expect(&idle, &fx, "abc");
    client_send(&busy, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    http_server_drain(fx.server, count_call, &n_done);
    client_expect_close(&idle, &fx);
    assert_int_equal(n_done, 0);
    http_reply(fx.kept[0], 200, NULL, STR("done"));
    client_expect(&busy, &fx, "connection: close\r\n");
    client_expect_close(&busy, &fx);
    client_close(&busy);
    TURN_UNTIL(&fx, n_done == 1);
    client_close(&idle);
    finish(&fx);
}

static void destroying_aborts_what_is_open(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, &fx);
    client_send(&c, &fx, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(&fx, fx.n_kept == 1);
    http_server_destroy(fx.server);
    assert_int_equal(fx.n_aborted, 1);
    fx.server = NULL;
    client_close(&c);
    finish(&fx);
}

/* --- chance --------------------------------------------------------------------------------------- */

/* Random valid requests, cut at random, pipelined at random: every answer comes, in order. */
static void random_traffic_is_answered_in_order(void **state) {
    struct rng rng;
    struct fixture fx;
    struct client c;
    struct buf sent, wanted;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&fx);
    client_open(&c, &fx);
    buf_init(&sent, 0);
    buf_init(&wanted, 0);
    for (int i = 0; i < 300; i++) {
        size_t n = rng_below(&rng, rng_below(&rng, 10) == 0 ? 90000 : 300);
        struct buf body;

        buf_init(&body, 0);
        buf_appendf(&body, "<%d>", i);
        for (size_t k = 0; k < n; k++) buf_append_char(&body, (char)('a' + k % 26));
        if (rng_below(&rng, 2)) {
            buf_appendf(&sent, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
                        buf_len(&body));
            buf_append_str(&sent, buf_str(&body));
        } else {
            struct str rest = buf_str(&body);

            buf_append_str(&sent, STR("POST /echo HTTP/1.1\r\nHost: a\r\n"
                                      "Transfer-Encoding: chunked\r\n\r\n"));
            while (rest.len) {
                size_t part = 1 + rng_below(&rng, rest.len);

                buf_appendf(&sent, "%zX\r\n", part);
                buf_append(&sent, rest.ptr, part);
                buf_append_str(&sent, STR("\r\n"));
                rest = (struct str){rest.ptr + part, rest.len - part};
            }
            buf_append_str(&sent, STR("0\r\n\r\n"));
        }
        buf_append_str(&wanted, buf_str(&body));
        buf_fini(&body);
    }
    for (struct str rest = buf_str(&sent); rest.len;) {
        size_t n = MIN(rest.len, 1 + (size_t)rng_below(&rng, 20000));

        client_send(&c, &fx, (struct str){rest.ptr, n});
        rest = (struct str){rest.ptr + n, rest.len - n};
        if (rng_below(&rng, 2)) loop_turn(fx.loop, 200);
        client_read(&c);
    }
    TURN_UNTIL(&fx, (client_read(&c), http_server_stats(fx.server).requests_total == 300));
    client_expect(&c, &fx, "<299>");
    for (int i = 0; i < 50; i++) {
        loop_turn(fx.loop, 100);
        client_read(&c);
    }
    for (struct str rest = buf_str(&c.got), want = buf_str(&wanted); rest.len;) {
        ptrdiff_t end = str_find(rest, STR("\r\n\r\n")), at = str_find(rest, STR("length: "));
        size_t n = strtoul(rest.ptr + at + 8, NULL, 10);

        assert_true(end > 0 && at > 0 && rest.len >= (size_t)end + 4 + n && want.len >= n);
        assert_memory_equal(rest.ptr + end + 4, want.ptr, n);
        rest = (struct str){rest.ptr + end + 4 + n, rest.len - (size_t)end - 4 - n};
        want = (struct str){want.ptr + n, want.len - n};
        if (!rest.len) assert_int_equal(want.len, 0);
    }
    buf_fini(&sent);
    buf_fini(&wanted);
    client_close(&c);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_connection_serves_many_requests),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_kept_request_keeps_its_strings_while_more_arrives),
        cmocka_unit_test(bodies_are_equal_however_they_are_framed_and_cut),
        cmocka_unit_test(large_bodies_arrive_intact),
        cmocka_unit_test(head_is_answered_without_body),
        cmocka_unit_test(answers_without_content_have_no_length),
        cmocka_unit_test(unknown_paths_and_methods_are_told_what_exists),
        cmocka_unit_test(expect_continue_is_answered_before_the_body),
        cmocka_unit_test(old_clients_get_old_answers),
        cmocka_unit_test(writes_of_one_turn_leave_in_one_send),
        cmocka_unit_test(a_stream_arrives_as_it_is_written),
        cmocka_unit_test(a_client_that_leaves_aborts_its_request_once),
        cmocka_unit_test(a_slow_reader_is_waited_for),
        cmocka_unit_test(a_broken_stream_has_no_end),
        cmocka_unit_test(raw_answers_are_passed_through),
        cmocka_unit_test(malformed_requests_get_a_sentence_and_a_close),
        cmocka_unit_test(too_large_bodies_are_refused_readably),
        cmocka_unit_test(a_head_can_be_refused_before_its_body),
        cmocka_unit_test(slow_senders_are_cut_off),
        cmocka_unit_test(a_reader_that_stops_is_aborted),
        cmocka_unit_test(connections_above_the_limit_wait),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(draining_finishes_what_is_open),
        cmocka_unit_test(destroying_aborts_what_is_open),
        cmocka_unit_test(random_traffic_is_answered_in_order),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
