/* router/proxy_head.c - the two heads that the proxy writes.
 *
 * Both are made anew from parsed parts, never copied whole: hop-by-hop headers end here, framing is
 * ours, and so are the headers that say who asks and through whom. */
#include "router/proxy_internal.h"

#include <string.h>

#include "common/wire.h"

static void append_field(struct buf *out, struct str name, struct str value) {
    buf_append_str(out, name);
    buf_append(out, ": ", 2);
    buf_append_str(out, value);
    buf_append(out, "\r\n", 2);
}

static void append_number_field(struct buf *out, struct str name, uint64_t value) {
    buf_append_str(out, name);
    buf_append(out, ": ", 2);
    buf_append_u64(out, value);
    buf_append(out, "\r\n", 2);
}

/* --- to the worker --------------------------------------------------------------------------------*/

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* "req-" and 32 hexadecimal digits. */
static void make_request_id(char *out, struct rng *rng) {
    static const char hex[] = "0123456789abcdef";
    uint64_t v = 0;

    memcpy(out, "req-", 4);
    for (size_t i = 0; i < 32; i++, v >>= 4) {
        if (i % 16 == 0) v = rng_u64(rng);
        out[4 + i] = hex[v & 15];
    }
    out[36] = '\0';
}

void proxy_choose_request_id(struct exchange *x) {
    struct str given = http_request_header(x->req, STR("x-request-id"));
    size_t i = 0;

    while (i < given.len && i < REQUEST_ID_MAX && is_plain(given.ptr[i]))
        i++;
    if (i > 0 && i == given.len) {
        memcpy(x->request_id, given.ptr, i);
        x->request_id[i] = '\0';
        return;
    }
    make_request_id(x->request_id, &x->proxy->rng);
}

static bool is_credential(struct str name) {
    return str_eq_nocase(name, STR("authorization")) || str_eq_nocase(name, STR("x-api-key"));
}

/* A head has a dozen headers and every request two heads: names are compared by length first, and
 * letters only where it is equal. */
static bool goes_to_worker(const struct exchange *x, struct str name) {
    static const struct str ours[] = {{"host", 4},      {"content-length", 14},
                                      {"expect", 6},    {"x-request-id", 12},
                                      {"forwarded", 9}, {"x-real-ip", 9}};
    static const struct str way_here = {"x-forwarded-", 12};

    for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
        if (str_eq_nocase(name, ours[i])) return false;
    }
    if (name.len > way_here.len && str_eq_nocase((struct str){name.ptr, way_here.len}, way_here)) {
        return false;
    }
    if (wire_is_ours(name)) return false;
    if (!x->proxy->config.forward_authorization && is_credential(name)) return false;
    return !http_header_is_hop_by_hop(http_request_head(x->req), http_request_head_bytes(x->req),
                                      name);
}

void proxy_build_worker_head(struct exchange *x) {
    struct buf *out = &x->out;
    char client[HTTP_ADDRESS_MAX];
    uint16_t port;

    http_request_client(x->req, client, &port);
    buf_clear(out);
    buf_append_str(out, STR("POST "));
    buf_append_str(out, x->req->target);
    buf_append_str(out, STR(" HTTP/1.1\r\n"));
    append_field(out, STR("host"), str_of(x->target.authority));
    append_number_field(out, STR("content-length"), proxy_body_len(x));
    for (uint16_t i = 0; i < x->req->n_headers; i++) {
        struct http_field f = http_request_header_at(x->req, i);

        if (goes_to_worker(x, f.name)) append_field(out, f.name, f.value);
    }
    if (x->is_salted && x->target.trusts_router) {
        append_field(out, STR(WIRE_SALT), str_of(x->salt));
    }
    append_field(out, STR("x-request-id"), str_of(x->request_id));
    append_field(out, STR("x-forwarded-for"), str_of(client));
    append_field(out, STR("x-forwarded-proto"),
                 http_request_is_tls(x->req) ? STR("https") : STR("http"));
    buf_append(out, "\r\n", 2);
}

/* --- to the client --------------------------------------------------------------------------------*/

static bool goes_to_client(const struct exchange *x, const char *data, struct str name) {
    if (http_header_is_hop_by_hop(&x->head, data, name)) return false;
    if (str_eq_nocase(name, STR("content-length"))) return false; /* framed anew below */
    if (str_eq_nocase(name, STR("x-request-id"))) return false;   /* ours */
    return x->proxy->config.expose_worker_headers || !wire_is_ours(name);
}

/* Decides how the body is framed for the client, and says so. A client that speaks 1.0 knows no
 * chunks: without a length, closing is the end. */
static void append_framing(struct exchange *x) {
    struct buf *out = &x->out;
    bool knows_chunks = x->req->minor_version >= 1;

    x->is_chunked = false;
    x->will_close = http_wants_close(x->req);
    switch (x->head.framing) {
    case HTTP_NO_BODY:
        if (x->head.status_code != 204 && x->head.status_code != 304) {
            buf_append_str(out, STR("content-length: 0\r\n"));
        }
        break;
    case HTTP_LENGTH_BODY:
        append_number_field(out, STR("content-length"), x->head.content_length);
        break;
    case HTTP_CHUNKED_BODY:
    case HTTP_CLOSE_BODY:
        x->is_chunked = knows_chunks;
        if (knows_chunks) buf_append_str(out, STR("transfer-encoding: chunked\r\n"));
        x->will_close = x->will_close || !knows_chunks;
        break;
    }
    if (x->will_close) {
        buf_append_str(out, STR("connection: close\r\n"));
    } else if (!knows_chunks) {
        buf_append_str(out, STR("connection: keep-alive\r\n"));
    }
}

void proxy_build_client_head(struct exchange *x, const char *data) {
    struct buf *out = &x->out;

    buf_clear(out);
    buf_append_str(out, STR("HTTP/1.1 "));
    buf_append_u64(out, x->head.status_code);
    buf_append_char(out, ' ');
    buf_append_str(out, str_of(http_reason((int)x->head.status_code)));
    buf_append(out, "\r\n", 2);
    for (uint16_t i = 0; i < x->head.n_headers; i++) {
        struct str name = http_span_str(x->head.headers[i].name, data);

        if (!goes_to_client(x, data, name)) continue;
        append_field(out, name, http_span_str(x->head.headers[i].value, data));
    }
    append_field(out, STR("x-request-id"), str_of(x->request_id));
    if (x->wants_explanation) {
        buf_appendf(out,
                    "x-incipit-route: worker=%u attempts=%u blocks=%u matched=%u "
                    "predicted_cached_tokens=%.0f cached_tokens=%lld",
                    x->target.worker, x->n_attempts, x->rq.n_blocks, x->ticket.matched_blocks,
                    x->ticket.cached_tokens, (long long)x->feedback.cached_tokens);
        explain_append(out, &x->why, x->target.worker);
        buf_append(out, "\r\n", 2);
    }
    append_framing(x);
    buf_append(out, "\r\n", 2);
}
