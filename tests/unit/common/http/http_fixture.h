/* tests/unit/common/http/http_fixture.h - a server with a handler for each way of answering. */
#ifndef TESTS_UNIT_COMMON_HTTP_HTTP_FIXTURE_H
#define TESTS_UNIT_COMMON_HTTP_HTTP_FIXTURE_H

#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "tests/support/cm.h"

#define MAX_KEPT 8

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_request *kept[MAX_KEPT]; /* of /keep, to be answered by the test */
    int n_kept, n_aborted, n_drained;
    struct buf seen; /* method, target, headers and body of the last request */
    enum status head_status;
    uint64_t owner; /* of all bodies, set when a head has come */
    int taken;      /* the socket of /take */
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

static void take(struct http_request *req, void *arg) {
    struct fixture *fx = arg;
    struct error err = {0};
    enum status st = http_request_take_socket(req, STR("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
                                              &fx->taken, &err);

    if (st != ST_OK) http_reply_error(req, st, &err);
}

static const struct http_route routes[] = {
    {HTTP_POST, "/echo", echo},       {HTTP_GET, "/echo", echo},       {HTTP_POST, "/keep", keep},
    {HTTP_GET, "/sse", three_events}, {HTTP_GET, "/none", no_content}, {HTTP_GET, "/take", take},
    {HTTP_GET, NULL, NULL},
};

static void on_request(struct http_request *req, void *arg) {
    note(arg, req);
    http_route_request(routes, req, arg);
}

static enum status on_head(struct http_request *req, void *arg, struct error *err) {
    struct fixture *fx = arg;

    req->owner = fx->owner;
    if (fx->head_status == ST_OK) return ST_OK;
    return error_set(err, fx->head_status, "not you: %.*s", STR_ARG(req->path));
}

static const struct http_server_events events = {.on_request = on_request, .on_head = on_head};

static UNUSED void start_on(struct fixture *fx, const struct http_limits *limits,
                            const struct http_server_events *on) {
    struct error err = {0};

    memset(fx, 0, sizeof(*fx));
    buf_init(&fx->seen, 0);
    assert_int_equal(loop_create(&fx->loop, &err), ST_OK);
    fx->server = http_server_create(fx->loop, limits, on, fx);
    assert_int_equal(http_server_listen(fx->server, "127.0.0.1", 0, false, &err), ST_OK);
}

static UNUSED void start_with(struct fixture *fx, const struct http_limits *limits) {
    start_on(fx, limits, &events);
}

static UNUSED void start(struct fixture *fx) {
    start_with(fx, NULL);
}

static UNUSED void finish(struct fixture *fx) {
    http_server_destroy(fx->server);
    loop_destroy(fx->loop);
    buf_fini(&fx->seen);
}

#define POST_ABC "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"

#endif
