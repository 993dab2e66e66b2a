/* common/http/http_reply.c - answers: whole, streamed or raw.
 *
 * The head is built in a buffer of the server's and goes out together with the body: small answers
 * are one copy into the connection's queue and one send, large bodies are sent from where they
 * are. */
#include <assert.h>

#include "common/http/http_server_internal.h"
#include "common/protocol/api.h"
#include "common/protocol/openai.h"

/* Lengths of chunks are written in front of the data they belong to. */
static struct str chunk_size(size_t n, char out[20]) {
    static const char hex[] = "0123456789abcdef";
    size_t at = 18;

    out[18] = '\r';
    out[19] = '\n';
    do {
        out[--at] = hex[n & 15];
        n >>= 4;
    } while (n);
    return (struct str){out + at, 20 - at};
}

static struct conn *conn_of(const struct exchange *x) {
    return &x->peer->conn;
}

bool http_wants_close(const struct http_request *req) {
    const struct exchange *x = exchange_of(req);
    const struct http_server *server = x->peer->server;
    uint32_t most = server->limits.max_requests_per_connection;

    return x->is_refused || !x->head.keep_alive || server->is_closing ||
           (most && x->peer->n_requests >= most);
}

static bool may_have_body(int code) {
    return code >= 200 && code != 204 && code != 304;
}

static struct iovec piece(struct str s) {
    return (struct iovec){(void *)(uintptr_t)s.ptr, s.len};
}

/* Status line and headers up to, not including, those about the body. */
static struct buf *begin_head(struct exchange *x, int code, const char *content_type, bool close) {
    struct http_server *server = x->peer->server;
    struct buf *head = &server->scratch;

    assert(x->answer == ANSWER_NONE);
    buf_clear(head);
    buf_append_str(head, STR("HTTP/1.1 "));
    buf_append_u64(head, (uint64_t)code);
    buf_append_char(head, ' ');
    buf_append_str(head, str_of(http_reason(code)));
    buf_append_str(head, STR("\r\ndate: "));
    buf_append_str(head, server_date(server));
    if (content_type) {
        buf_append_str(head, STR("\r\ncontent-type: "));
        buf_append_str(head, str_of(content_type));
    }
    buf_append_str(head, STR("\r\n"));
    buf_append_str(head, buf_str(&x->fields));
    if (buf_status(&x->fields) != ST_OK) head->has_failed = true;
    if (close) {
        buf_append_str(head, STR("connection: close\r\n"));
    } else if (x->head.minor_version == 0) {
        buf_append_str(head, STR("connection: keep-alive\r\n"));
    }
    return head;
}

void http_add_header(struct http_request *req, struct str name, struct str value) {
    struct buf *fields = &exchange_of(req)->fields;

    assert(http_is_token(name));
    assert(!memchr(value.ptr, '\r', value.len) && !memchr(value.ptr, '\n', value.len));
    buf_append_str(fields, name);
    buf_append_str(fields, STR(": "));
    buf_append_str(fields, value);
    buf_append_str(fields, STR("\r\n"));
}

void http_reply(struct http_request *req, int code, const char *content_type, struct str body) {
    struct exchange *x = exchange_of(req);
    bool close = http_wants_close(req);
    struct buf *head = begin_head(x, code, content_type, close);
    struct iovec iov[2];

    if (may_have_body(code)) {
        buf_append_str(head, STR("content-length: "));
        buf_append_u64(head, body.len);
        buf_append_str(head, STR("\r\n"));
    }
    buf_append_str(head, STR("\r\n"));
    if (buf_status(head) != ST_OK) {
        http_stream_break(req);
        return;
    }
    iov[0] = piece(buf_str(head));
    iov[1] = piece(body);
    conn_writev(conn_of(x), iov, may_have_body(code) && req->method != HTTP_HEAD ? 2 : 1);
    exchange_end(x, !close);
}

static void reply_error(struct exchange *x, enum status st, int code, const struct error *err) {
    struct buf body;

    buf_init(&body, 0);
    api_append_error(&body, api_of(x->req.path), st, code, err);
    if (buf_status(&body) == ST_OK) {
        http_reply(&x->req, code, OPENAI_JSON, buf_str(&body));
    } else {
        http_stream_break(&x->req);
    }
    buf_fini(&body);
}

void http_reply_error(struct http_request *req, enum status st, const struct error *err) {
    reply_error(exchange_of(req), st, status_http_code(st), err);
}

void reply_refusal(struct exchange *x, int code, const struct error *err) {
    const char *head = conn_input(conn_of(x)).ptr; /* which moves while a body arrives */
    enum status st = ST_INVALID;

    x->req.path = http_span_str(x->head.path, head);
    if (code == 413) st = ST_TOO_LARGE;
    if (code == 501) st = ST_UNSUPPORTED;
    if (err && status_http_code(err->status) == code) st = err->status;
    reply_error(x, st, code, err);
}

/* --- streams ---------------------------------------------------------------------------------- */

void http_stream_begin(struct http_request *req, int code, const char *content_type) {
    struct exchange *x = exchange_of(req);
    bool close = http_wants_close(req) || req->minor_version == 0;
    struct buf *head = begin_head(x, code, content_type, close);

    assert(may_have_body(code));
    x->is_chunked = req->minor_version == 1;
    if (close) x->head.keep_alive = false; /* as was announced */
    if (x->is_chunked) buf_append_str(head, STR("transfer-encoding: chunked\r\n"));
    buf_append_str(head, STR("\r\n"));
    x->answer = ANSWER_STREAM;
    if (buf_status(head) != ST_OK) {
        conn_fail(conn_of(x), CONN_NOMEM);
        return;
    }
    conn_write(conn_of(x), buf_ptr(head), buf_len(head));
}

/* `n` pieces of payload as one chunk; iov has room for one before and one after them. */
static void write_chunk(struct exchange *x, struct iovec *iov, int n) {
    size_t total = 0;
    char size[20];

    assert(x->answer == ANSWER_STREAM);
    for (int i = 1; i <= n; i++)
        total += iov[i].iov_len;
    if (total == 0 || x->req.method == HTTP_HEAD) return;
    if (!x->is_chunked) {
        conn_writev(conn_of(x), iov + 1, n);
        return;
    }
    iov[0] = piece(chunk_size(total, size));
    iov[n + 1] = piece(STR("\r\n"));
    conn_writev(conn_of(x), iov, n + 2);
}

void http_stream_write(struct http_request *req, struct str bytes) {
    struct iovec iov[3];

    iov[1] = piece(bytes);
    write_chunk(exchange_of(req), iov, 1);
}

void http_sse_event(struct http_request *req, struct str json) {
    struct iovec iov[5];

    iov[1] = piece(STR("data: "));
    iov[2] = piece(json);
    iov[3] = piece(STR("\n\n"));
    write_chunk(exchange_of(req), iov, 3);
}

void http_stream_end(struct http_request *req) {
    struct exchange *x = exchange_of(req);

    assert(x->answer == ANSWER_STREAM);
    if (x->is_chunked && req->method != HTTP_HEAD) conn_write(conn_of(x), "0\r\n\r\n", 5);
    exchange_end(x, !http_wants_close(req));
}

/* A body with a length or in chunks is visibly incomplete, and what was sent still arrives. To a
 * client of 1.0 an orderly end of the connection could be the end of the body: it gets a reset. */
void http_stream_break(struct http_request *req) {
    struct exchange *x = exchange_of(req);

    if (req->minor_version == 0) {
        conn_flush(conn_of(x));
        conn_reset_on_close(conn_of(x));
        conn_fail(conn_of(x), CONN_RESET);
    }
    x->is_refused = true;
    exchange_end(x, false);
}

/* --- raw -------------------------------------------------------------------------------------- */

void http_raw_writev(struct http_request *req, const struct str *pieces, int n) {
    struct exchange *x = exchange_of(req);
    struct iovec iov[CONN_IOV_MAX];

    assert(x->answer != ANSWER_STREAM && n <= CONN_IOV_MAX);
    x->answer = ANSWER_RAW;
    for (int i = 0; i < n; i++)
        iov[i] = piece(pieces[i]);
    conn_writev(conn_of(x), iov, n);
}

void http_raw_write(struct http_request *req, struct str bytes) {
    http_raw_writev(req, &bytes, 1);
}

void http_raw_chunk(struct http_request *req, struct str payload) {
    char size[20];

    if (payload.len == 0) return;
    http_raw_writev(req, (struct str[]){chunk_size(payload.len, size), payload, STR("\r\n")}, 3);
}

void http_raw_flush(struct http_request *req) {
    conn_flush(conn_of(exchange_of(req)));
}

void http_raw_end(struct http_request *req, bool keep_alive) {
    http_raw_flush(req);
    exchange_end(exchange_of(req), keep_alive && exchange_of(req)->head.keep_alive);
}

/* --- flow ------------------------------------------------------------------------------------- */

size_t http_pending_bytes(const struct http_request *req) {
    return conn_pending(conn_of(exchange_of(req)));
}
