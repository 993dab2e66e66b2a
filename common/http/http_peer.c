/* common/http/http_peer.c - one client connection: its input becomes requests, one after the other.
 *
 *      input:  [ head | body ............ | next request ... ]
 *              ^ request strings point in here, pinned until the answer has ended
 *
 * A chunked body is decoded in place: its payload moves down behind the head, so that the handler
 * sees one contiguous body whichever way it was sent, and nothing is allocated for it. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/http/http_server_internal.h"
#include "common/net/tls.h"

#define LINGER_BYTES       ((size_t)256 << 10) /* each may send so much behind its refusal, */
#define LINGER_TOTAL_BYTES ((size_t)64 << 20)  /* and all together so much, if that is more */

/* While bodies wait for memory many new ones are refused by their heads: so much comes with
 * those. */
#define PRESSED_BYTES ((size_t)8 << 10)

static void peer_advance(struct peer *p);

void peer_go_on(struct peer *p) {
    peer_advance(p);
}

void peer_set_state(struct peer *p, enum peer_state state) {
    struct http_server *server = p->server;

    if (p->state == PEER_ANSWERING) server->stats.open_requests--;
    if (state == PEER_ANSWERING) server->stats.open_requests++;
    server->n_lingering += (state == PEER_LINGERING) - (p->state == PEER_LINGERING);
    if (list_is_linked(&p->link)) list_remove(&p->link);
    if (state != PEER_GONE) list_push_back(&server->peers[state], &p->link);
    p->state = (uint8_t)state;
    p->since_us = p->stall_since_us = loop_now_us(server->loop);
    if (UNLIKELY(server->is_full) && state == PEER_IDLE) server_has_room(server);
}

/* --- leaving ---------------------------------------------------------------------------------- */

void peer_close(struct peer *p) {
    struct http_server *server = p->server;

    conn_fini(&p->conn);
    if (p->exchange) server_take_back(server, p->exchange);
    p->exchange = NULL;
    peer_set_state(p, PEER_GONE);
    places_leave(p);
    loop_defer(server->loop, &p->task); /* frees */
    report_gone(server);
    server_peer_gone(server);
}

/* Notifies the handler, if it has the request. */
static void abort_exchange(struct peer *p) {
    struct exchange *x = p->exchange;

    if (p->state != PEER_ANSWERING) return;
    p->server->stats.aborted_total++;
    peer_set_state(p, PEER_FLUSHING);
    if (x->req.on_abort) x->req.on_abort(&x->req);
}

void peer_abort(struct peer *p) {
    abort_exchange(p);
    conn_reset_on_close(&p->conn);
    peer_close(p);
}

/* After all is sent our side closes its direction, and the peer gets time to read before its unread
 * input would turn our close into a reset. */
static void linger(struct peer *p) {
    conn_shutdown_write(&p->conn);
    p->dropped_bytes = 0;
    if (p->has_long_rest) {
        conn_pause(&p->conn);
    } else {
        conn_resume(&p->conn);
    }
    peer_set_state(p, PEER_LINGERING);
}

static void drop_input(struct peer *p) {
    conn_unpin_input(&p->conn);
    conn_want_input(&p->conn, 0);
    conn_consume(&p->conn, conn_input(&p->conn).len);
}

/* Lingering reads are bounded: a few connections may each send a body's worth, but many cannot keep
 * the loop busy. */
static size_t linger_bytes(const struct http_server *server) {
    return MAX(LINGER_BYTES, LINGER_TOTAL_BYTES / MAX(1, server->n_lingering));
}

static void drop_late_input(struct peer *p) {
    p->dropped_bytes += conn_input(&p->conn).len;
    drop_input(p);
    if (p->dropped_bytes > linger_bytes(p->server)) conn_pause(&p->conn);
}

/* Is what is still to come of a request so long that it would not be read to its end? Then none of
 * it is: reading opens the window for more, and the end is no better for it. */
static bool has_long_rest(const struct exchange *x) {
    size_t n_here = conn_input(&x->peer->conn).len;

    if (x->is_whole || x->head.framing != HTTP_LENGTH_BODY) return false;
    return x->head.content_length > n_here + linger_bytes(x->peer->server);
}

void peer_end(struct peer *p) {
    peer_set_state(p, PEER_FLUSHING);
    if (!conn_is_open(&p->conn)) return; /* on_closed is on its way */
    drop_input(p);
    conn_flush(&p->conn);
    if (!conn_is_open(&p->conn)) return;
    if (conn_pending(&p->conn) == 0) {
        linger(p);
    } else {
        conn_pause(&p->conn); /* nothing of it is wanted, and all is sent before it matters */
    }
}

void exchange_end(struct exchange *x, bool keep_alive) {
    struct peer *p = x->peer;
    size_t total_len = x->total_len;

    keep_alive =
        keep_alive && !x->is_refused && (!p->server->is_draining || p->server->drain_idle_us);
    p->has_long_rest = has_long_rest(x);
    p->exchange = NULL;
    server_take_back(p->server, x);
    if (!keep_alive || !conn_is_open(&p->conn)) {
        peer_end(p);
        return;
    }
    conn_unpin_input(&p->conn);
    conn_want_input(&p->conn, 0);
    conn_consume(&p->conn, total_len);
    conn_expect_input(&p->conn, total_len); /* the next one is likely as long */
    peer_set_state(p, PEER_IDLE);
    if (!p->is_advancing && conn_input(&p->conn).len) loop_defer(p->server->loop, &p->task);
}

void peer_refuse(struct peer *p, int code, enum http_refusal why, const struct error *err) {
    struct exchange *x = p->exchange;

    x->is_refused = true;
    p->server->stats.refused_total++;
    report_refused(p->server, why, p, err);
    reply_refusal(x, code, err);
}

static void refuse(struct peer *p, int code, const struct error *err) {
    peer_refuse(p, code, code == 413 ? HTTP_TOO_LARGE : HTTP_MALFORMED, err);
}

void peer_timed_out(struct peer *p) {
    const struct http_limits *l = &p->server->limits;
    bool is_head = p->state == PEER_HEAD;
    struct error err = {0};

    if (is_head) {
        error_set(&err, ST_TIMEOUT, "the request head did not arrive within %u ms: send it faster",
                  l->head_timeout_ms);
    } else {
        error_set(
            &err, ST_TIMEOUT,
            "the request body arrived at less than %u bytes per second for %u ms: send it faster",
            l->body_min_bytes_per_s, l->body_grace_ms);
    }
    p->server->stats.timeouts_total++;
    peer_refuse(p, 408, is_head ? HTTP_HEAD_TIMEOUT : HTTP_BODY_TIMEOUT, &err);
    conn_flush(&p->conn);
}

void peer_check_stall(struct peer *p, uint64_t now_us) {
    if (conn_pending(&p->conn) == 0 || p->seen_sent_bytes != p->conn.sent_bytes) {
        p->seen_sent_bytes = p->conn.sent_bytes;
        p->stall_since_us = now_us;
    }
}

/* --- from bytes to a request ------------------------------------------------------------------ */

static void begin_request(struct peer *p) {
    p->exchange = server_lend_exchange(p->server);
    p->exchange->peer = p;
    p->exchange->claim.address = p->address->id;
}

static void fill_request(struct exchange *x) {
    const char *data = conn_input(&x->peer->conn).ptr;
    const struct http_head *h = &x->head;
    struct http_request *req = &x->req;

    req->method = h->method;
    req->minor_version = h->minor_version;
    req->n_headers = h->n_headers;
    req->method_name = http_span_str(h->method_span, data);
    req->target = http_span_str(h->target, data);
    req->path = http_span_str(h->path, data);
    req->query = http_span_str(h->query, data);
    req->body = (struct str){data + h->head_len, x->body_len};
}

/* Returns whether the body may be read. */
static bool head_is_welcome(struct exchange *x) {
    struct http_server *server = x->peer->server;
    struct error err;
    enum status st;

    x->req.received_us = loop_now_us(server->loop);
    if (!server->events.on_head) return true;
    error_init(&err);
    fill_request(x);
    st = server->events.on_head(&x->req, server->arg, &err);
    memory_owner(x);
    if (st == ST_OK) return true;
    peer_refuse(x->peer, status_http_code(st), HTTP_DENIED, err.message[0] ? &err : NULL);
    return false;
}

static bool take_head(struct peer *p) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct exchange *x = p->exchange;
    struct conn_bytes in = conn_input(&p->conn);
    uint64_t limit = p->server->limits.max_body_bytes;
    struct error err;
    enum status st;

    error_init(&err);
    st = http_head_parse(&x->head, in.ptr, in.len, &err);
    if (st == ST_AGAIN) return false;
    if (st != ST_OK) {
        refuse(p, x->head.refused_code, &err);
        return false;
    }
    if (!head_is_welcome(x)) return false;
    if (x->head.framing == HTTP_LENGTH_BODY && x->head.content_length > limit) {
        error_set(&err, ST_TOO_LARGE, "the body of %llu bytes exceeds the limit of %llu: send less",
                  (unsigned long long)x->head.content_length, (unsigned long long)limit);
        refuse(p, 413, &err);
        return false;
    }
    http_body_init(&x->body, &x->head, limit);
    memory_begin(x);
    if (x->head.framing == HTTP_LENGTH_BODY) {
        conn_want_input(&p->conn, x->head.head_len + (size_t)x->head.content_length);
    }
    if (x->head.expects_continue && in.len == x->head.head_len) {
        conn_write(&p->conn, go_on, sizeof(go_on) - 1);
    }
    return true;
}

/* Moves payload down behind the head. Everything up to `from` was decoded by earlier calls. */
static bool take_chunks(struct peer *p) {
    struct exchange *x = p->exchange;
    struct conn_bytes in = conn_input(&p->conn);
    size_t from = x->head.head_len + x->body_len, to = from, used;
    struct error err = {0};
    struct str payload;
    enum status st;

    x->came_bytes += in.len - from;
    do {
        st = http_body_next(&x->body, in.ptr + from, in.len - from, &used, &payload, &err);
        if (payload.len) memmove(in.ptr + to, payload.ptr, payload.len);
        to += payload.len;
        from += used;
    } while (st == ST_AGAIN && from < in.len);
    if (st != ST_OK && st != ST_AGAIN) {
        refuse(p, x->body.refused_code, &err);
        return false;
    }
    x->body_len = to - x->head.head_len;
    x->total_len = from;
    if (st == ST_OK) return true;
    conn_input_truncate(&p->conn, to);
    conn_want_input(&p->conn, to + IOBUF_LARGE_BYTES);
    return false;
}

static bool take_body(struct peer *p) {
    struct exchange *x = p->exchange;

    switch (x->head.framing) {
    case HTTP_CHUNKED_BODY: return take_chunks(p);
    case HTTP_LENGTH_BODY: x->body_len = (size_t)x->head.content_length; break;
    default: break;
    }
    x->total_len = x->head.head_len + x->body_len;
    x->came_bytes = conn_input(&p->conn).len;
    return x->came_bytes >= x->total_len;
}

/* Hands the complete request over. Returns whether it was answered at once. */
static bool deliver(struct peer *p) {
    struct http_server *server = p->server;
    struct exchange *x = p->exchange;

    conn_pin_input(&p->conn);
    if (!conn_is_open(&p->conn)) return false;
    fill_request(x);
    p->n_requests++;
    server->stats.requests_total++;
    peer_set_state(p, PEER_ANSWERING);
    server->events.on_request(&x->req, server->arg);
    return p->state == PEER_IDLE;
}

/* The rest of a request is still to come, unless it was refused. One that came whole is never in
 * these two states. */
static bool wait_for_rest(struct peer *p, enum peer_state state) {
    if (p->exchange && !p->exchange->is_refused && p->state != state) peer_set_state(p, state);
    return false;
}

/* Nothing is kept, and nothing is handed over, that the budget has no room for. */
static bool read_body(struct peer *p) {
    struct exchange *x = p->exchange;

    if (!x->is_whole) {
        bool is_whole = take_body(p);

        if (p->exchange != x) return false; /* it was refused */
        x->is_whole = is_whole;
    }
    if (!memory_hold(p, x->is_whole)) return wait_for_rest(p, PEER_BODY);
    return x->is_whole ? deliver(p) : wait_for_rest(p, PEER_BODY);
}

static bool read_head(struct peer *p) {
    if (take_head(p)) return read_body(p);
    if (p->exchange) (void)memory_hold(p, false);
    return wait_for_rest(p, PEER_HEAD);
}

/* One step; false when more input, or the end of an answer, must come first. */
static bool step(struct peer *p) {
    switch ((enum peer_state)p->state) {
    case PEER_NEW:
    case PEER_IDLE:
        if (conn_input(&p->conn).len == 0) return false;
        begin_request(p);
        return read_head(p);
    case PEER_HEAD: return read_head(p);
    case PEER_BODY: return read_body(p);
    case PEER_FLUSHING: drop_input(p); return false;
    case PEER_LINGERING: drop_late_input(p); return false;
    default: return false;
    }
}

static void peer_advance(struct peer *p) {
    p->is_advancing = true;
    while (conn_is_open(&p->conn) && step(p)) {
    }
    p->is_advancing = false;
}

/* --- the beginning: TLS ----------------------------------------------------------------------- */

static void on_connected(struct conn *c, void *owner) {
    struct peer *p = owner;
    struct error err = {0};

    if (tls_is_on(c)) {
        peer_set_state(p, PEER_NEW);
        return;
    }
    report_handshake_failed(p->server);
    error_set(&err, ST_INVALID, "this port speaks TLS: begin the URL with https://");
    begin_request(p);
    refuse(p, 400, &err);
}

/* --- events of the connection ----------------------------------------------------------------- */

static void on_data(struct conn *c, void *owner) {
    (void)c;
    peer_advance(owner);
}

static void on_drain(struct conn *c, void *owner) {
    struct peer *p = owner;

    (void)c;
    if (p->state == PEER_ANSWERING && p->exchange->req.on_drain) {
        p->exchange->req.on_drain(&p->exchange->req);
    }
}

static void on_flushed(struct conn *c, void *owner) {
    struct peer *p = owner;

    (void)c;
    if (p->state == PEER_FLUSHING) linger(p);
    if (UNLIKELY(p->server->is_full) && p->state == PEER_IDLE) server_has_room(p->server);
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct peer *p = owner;

    (void)c;
    if (end == CONN_TLS) report_handshake_failed(p->server);
    abort_exchange(p);
    peer_close(p);
}

static const struct conn_events peer_events = {
    .on_data = on_data,
    .on_connected = on_connected,
    .on_drain = on_drain,
    .on_flushed = on_flushed,
    .on_closed = on_closed,
};

static void at_end_of_turn(void *arg) {
    struct peer *p = arg;

    if (p->state == PEER_GONE) {
        mem_free(p);
    } else {
        peer_advance(p);
    }
}

/* Its address as text; how long it is. */
static size_t write_address(const struct sockaddr_storage *addr, char text[HTTP_ADDRESS_MAX]) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;

    if (addr->ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, text, HTTP_ADDRESS_MAX);
    } else {
        inet_ntop(AF_INET, &v4->sin_addr, text, HTTP_ADDRESS_MAX);
    }
    return strlen(text);
}

void peer_open(struct http_server *server, struct tls *tls, int fd,
               const struct sockaddr_storage *addr) {
    char client[HTTP_ADDRESS_MAX] = "";
    size_t n = write_address(addr, client);
    struct peer *p = mem_zalloc(sizeof(*p) + n); /* most addresses are short, and peers are many */

    p->server = server;
    p->state = PEER_GONE;
    loop_task_init(&p->task, at_end_of_turn, p);
    memcpy(p->client, client, n);
    p->client_len = (uint8_t)n;
    places_enter(p, addr);
    report_opened(server);
    conn_init(&p->conn, server->loop, fd, &peer_events, p);
    conn_receive_much(&p->conn);
    if (!list_is_empty(&server->waiting)) conn_expect_input(&p->conn, PRESSED_BYTES);
    if (tls) tls_accept(&p->conn, tls);
    peer_set_state(p, tls ? PEER_HANDSHAKE : PEER_NEW);
}

/* --- leaving HTTP ----------------------------------------------------------------------------- */

enum status http_request_take_socket(struct http_request *req, struct str head, int *fd,
                                     struct error *err) {
    struct exchange *x = exchange_of(req);
    struct peer *p = x->peer;
    int own;

    if (http_request_is_tls(req))
        return error_set(err, ST_UNSUPPORTED, "a connection with TLS has no upgrade: use http://");
    if (conn_input(&p->conn).len != x->total_len)
        return error_set(err, ST_INVALID,
                         "bytes came behind the request: send them behind the answer");
    own = fcntl(p->conn.watch.fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return error_set(err, ST_IO, "no descriptor for the socket: %s", strerror(errno));
    conn_write(&p->conn, head.ptr, head.len);
    conn_flush(&p->conn);
    if (!conn_is_open(&p->conn) || conn_pending(&p->conn) > 0) {
        close(own);
        peer_abort(p);
        *fd = -1;
        return ST_OK;
    }
    peer_close(p);
    *fd = own;
    return ST_OK;
}

/* --- questions about a request ---------------------------------------------------------------- */

const struct http_head *http_request_head(const struct http_request *req) {
    return &exchange_of(req)->head;
}

const char *http_request_head_bytes(const struct http_request *req) {
    return conn_input(&exchange_of(req)->peer->conn).ptr;
}

struct http_field http_request_header_at(const struct http_request *req, uint16_t i) {
    const struct http_header *h = &exchange_of(req)->head.headers[i];
    const char *data = http_request_head_bytes(req);

    assert(i < req->n_headers);
    return (struct http_field){http_span_str(h->name, data), http_span_str(h->value, data)};
}

struct str http_request_header(const struct http_request *req, struct str name) {
    return http_head_find(&exchange_of(req)->head, http_request_head_bytes(req), name);
}

struct loop *http_request_loop(const struct http_request *req) {
    return exchange_of(req)->peer->server->loop;
}

bool http_request_is_tls(const struct http_request *req) {
    return tls_is_on(&exchange_of(req)->peer->conn);
}

struct str http_request_client(const struct http_request *req) {
    const struct peer *p = exchange_of(req)->peer;

    return (struct str){p->client, p->client_len};
}
