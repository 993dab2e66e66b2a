/* router/proxy/proxy_head.c - the two heads that the proxy writes.
 *
 * Both are built from parsed parts: hop-by-hop headers end here, and framing and forwarding headers
 * are the router's. Headers that are passed on are normalized to name ": " value CR LF by
 * http_write_kept. Room for the whole head is reserved once. */
#include <string.h>

#include "common/protocol/request_events.h"
#include "common/protocol/wire.h"
#include "router/proxy/proxy_internal.h"

/* Bytes of the router's own fields, with id, salt and the client's address. */
#define OWN_MAX 768
_Static_assert(REQUEST_ID_MAX + ISOLATION_SALT_CHARS + HTTP_ADDRESS_MAX + 400 + 48 <= OWN_MAX,
               "fixed text: at most 400 bytes");

static char *put(char *to, struct str s) {
    return mempcpy(to, s.ptr, s.len);
}

/* `name` with its colon and blank. */
static inline char *put_field(char *to, struct str name, struct str value) {
    return put(put(put(to, name), value), STR("\r\n"));
}

/* --- to the worker ---------------------------------------------------------------------------- */

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* Eight hexadecimal digits at once: each half byte of v is spread to a byte, then '0' is added to
 * all, and the distance to 'a' to those above 9. */
static void write_hex(char out[8], uint32_t v) {
    uint64_t digits = v, above_9;

    digits = (digits | digits << 16) & UINT64_C(0x0000FFFF0000FFFF);
    digits = (digits | digits << 8) & UINT64_C(0x00FF00FF00FF00FF);
    digits = (digits | digits << 4) & UINT64_C(0x0F0F0F0F0F0F0F0F);
    above_9 = (digits + UINT64_C(0x0606060606060606)) >> 4 & UINT64_C(0x0101010101010101);
    digits += UINT64_C(0x3030303030303030) + above_9 * ('a' - '9' - 1);
    memcpy(out, &digits, sizeof(digits));
}

/* "req-" and 32 hexadecimal digits. */
#define MADE_ID_LEN 36

static void make_request_id(char *out, struct rng *rng) {
    memcpy(out, "req-", 4);
    for (size_t i = 4; i < MADE_ID_LEN; i += 16) {
        uint64_t v = rng_u64(rng);

        write_hex(out + i, (uint32_t)v);
        write_hex(out + i + 8, (uint32_t)(v >> 32));
    }
    out[MADE_ID_LEN] = '\0';
}

void proxy_choose_request_id(struct exchange *x) {
    struct str given = http_head_get(http_request_head(x->req), http_request_head_bytes(x->req),
                                     HTTP_NAME_X_REQUEST_ID);
    size_t i = 0;

    while (i < given.len && i < REQUEST_ID_MAX && is_plain(given.ptr[i]))
        i++;
    if (i > 0 && i == given.len) {
        memcpy(x->request_id, given.ptr, i);
        x->request_id[i] = '\0';
        x->request_id_len = (uint8_t)i;
        return;
    }
    make_request_id(x->request_id, &x->proxy->rng);
    x->request_id_len = MADE_ID_LEN;
}

/* Set by the router, or not for workers. */
static uint32_t names_not_forwarded(const struct exchange *x) {
    uint32_t ids = HTTP_NAME_BIT(HTTP_NAME_HOST) | HTTP_NAME_BIT(HTTP_NAME_CONTENT_LENGTH) |
                   HTTP_NAME_BIT(HTTP_NAME_EXPECT) | HTTP_NAME_BIT(HTTP_NAME_X_REQUEST_ID) |
                   HTTP_NAME_BIT(HTTP_NAME_WAY) | HTTP_NAME_BIT(HTTP_NAME_OURS);

    if (x->proxy->config.forward_authorization && !x->proxy->config.worker_key.len) return ids;
    return ids | HTTP_NAME_BIT(HTTP_NAME_AUTHORIZATION) | HTTP_NAME_BIT(HTTP_NAME_X_API_KEY);
}

/* Below the 32 KiB that a worker takes as a head. */
#define HEAD_WITH_CHAIN_MAX (30u << 10)

/* For the other routers, which learn of the request from the worker: as many blocks as fit after
 * `taken` bytes. */
static struct request_chain chain_for_worker(const struct exchange *x, size_t taken) {
    const struct proxy_config *config = &x->proxy->config;
    struct request_chain chain = {.origin = config->origin,
                                  .scheme = config->scheme,
                                  .prompt_bytes = x->rq.prompt_bytes,
                                  .n_blocks = MIN(x->rq.n_blocks, (uint32_t)CHAIN_BLOCKS_MAX),
                                  .blocks = x->rq.chain};
    size_t left = HEAD_WITH_CHAIN_MAX - MIN(taken, (size_t)HEAD_WITH_CHAIN_MAX);

    while (request_chain_text_max(chain.n_blocks) > left && chain.n_blocks > 0)
        chain.n_blocks -= CEIL_DIV(chain.n_blocks, 64);
    return chain;
}

void proxy_build_head_for(struct exchange *x, const struct registry_target *target, size_t body_len,
                          const char *own, struct buf *out) {
    const struct http_head *head = http_request_head(x->req);
    struct str host = {target->authority, target->authority_len};
    struct str client = http_request_client(x->req);
    struct str key = x->proxy->config.worker_key;
    struct str source = {target->source, target->source_len};
    size_t room = http_kept_max(head) + host.len + key.len + source.len + OWN_MAX;
    bool sends_chain = target->publishes_events && x->is_generation && x->proxy->config.origin;
    struct request_chain chain;
    char *to;

    if (sends_chain) {
        chain = chain_for_worker(x, room);
        room += request_chain_text_max(chain.n_blocks);
    }
    buf_clear(out);
    to = buf_reserve(out, room);
    if (!to) return;
    to = put(put(to, x->req->method_name), STR(" "));
    to = put(to, x->req->target);
    to = put(to, STR(" HTTP/1.1\r\nhost: "));
    to = put(to, host);
    if (!x->is_lookup) {
        to = put(to, STR("\r\ncontent-length: "));
        to = str_put_u64(to, body_len);
    }
    to = put(to, STR("\r\n"));
    if (own) to = put(to, str_of(own)); /* before a client's of that name: the first counts */
    to = http_write_kept(to, head, http_request_head_bytes(x->req), names_not_forwarded(x));
    if (key.len) to = put_field(to, STR("authorization: Bearer "), key);
    if (x->is_salted && target->trusts_router)
        to = put_field(to, STR(WIRE_SALT ": "), (struct str){x->salt, ISOLATION_SALT_CHARS});
    if (sends_chain) {
        to = put(to, STR(WIRE_CHAIN ": "));
        to = request_chain_put(to, &chain, &target->mark);
        to = put(to, STR("\r\n"));
    }
    if (source.len) {
        to = put(put(to, STR(WIRE_KV_SOURCE ": ")), source);
        to = str_put_u64(put(to, STR(";tokens=")), target->source_tokens);
        if (target->source_computed)
            to = str_put_u64(put(to, STR(";computed=")), target->source_computed);
        to = put(to, STR("\r\n"));
    }
    if (x->proxy->config.name) /* a second Via, after the client's */
        to = put_field(to, STR("via: 1.1 "), str_of(x->proxy->config.name));
    to = put_field(to, STR("x-request-id: "), proxy_request_id(x));
    to = put_field(to, STR("x-forwarded-for: "), client);
    to = put(to, http_request_is_tls(x->req) ? STR("x-forwarded-proto: https\r\n\r\n")
                                             : STR("x-forwarded-proto: http\r\n\r\n"));
    buf_commit(out, (size_t)(to - buf_ptr(out)));
}

void proxy_build_worker_head(struct exchange *x) {
    proxy_build_head_for(x, &x->try.target, proxy_body_len(x), NULL, &x->out);
}

/* --- to the client ---------------------------------------------------------------------------- */

/* Set below, private to worker and router, or of the worker's own site. */
static uint32_t names_not_relayed(const struct exchange *x) {
    uint32_t ids = HTTP_NAME_BIT(HTTP_NAME_CONTENT_LENGTH) | HTTP_NAME_BIT(HTTP_NAME_X_REQUEST_ID) |
                   HTTP_NAME_BIT(HTTP_NAME_SITE);

    return x->proxy->config.expose_worker_headers ? ids : ids | HTTP_NAME_BIT(HTTP_NAME_OURS);
}

static char *put_connection(const struct exchange *x, char *to) {
    if (x->will_close) return put(to, STR("connection: close\r\n"));
    return x->req->minor_version >= 1 ? to : put(to, STR("connection: keep-alive\r\n"));
}

/* HTTP/1.0 has no chunks: without a length, the end is a close. */
static char *put_chunked(struct exchange *x, char *to) {
    x->is_chunked = x->req->minor_version >= 1;
    x->will_close = x->will_close || !x->is_chunked;
    return x->is_chunked ? put(to, STR("transfer-encoding: chunked\r\n")) : to;
}

/* Chooses and writes the framing of the body. */
static char *put_framing(struct exchange *x, char *to) {
    x->is_chunked = false;
    x->will_close = http_wants_close(x->req);
    switch (x->try.head.framing) {
    case HTTP_NO_BODY:
        if (x->try.head.status_code != 204 && x->try.head.status_code != 304) {
            to = put(to, STR("content-length: 0\r\n"));
        }
        break;
    case HTTP_LENGTH_BODY:
        to = put(to, STR("content-length: "));
        to = str_put_u64(to, x->try.head.content_length);
        to = put(to, STR("\r\n"));
        break;
    case HTTP_CHUNKED_BODY:
    case HTTP_CLOSE_BODY: to = put_chunked(x, to); break;
    }
    return put_connection(x, to);
}

void proxy_put_early_head(struct exchange *x, struct buf *out) {
    char *to = buf_reserve(out, OWN_MAX);

    if (!to) return;
    x->will_close = http_wants_close(x->req);
    to = put(to, STR("HTTP/1.1 200 OK\r\ncontent-type: " HTTP_SSE "\r\n"
                     "cache-control: no-cache\r\n"));
    to = put_field(to, STR("x-request-id: "), proxy_request_id(x));
    to = put_chunked(x, to);
    to = put(put_connection(x, to), STR("\r\n"));
    buf_commit(out, (size_t)(to - buf_ptr(out)));
}

void proxy_put_route(struct exchange *x, struct buf *out) {
    buf_appendf(out,
                WIRE_ROUTE ": worker=%u attempts=%u blocks=%u matched=%u "
                           "predicted_cached_tokens=%.0f cached_tokens=%lld",
                x->try.target.worker, x->n_attempts, x->rq.n_blocks, x->try.ticket.matched_blocks,
                x->try.ticket.cached_tokens, (long long)x->try.feedback.cached_tokens);
    if (x->try.ticket.below_tokens > 0 || x->try.feedback.has_below)
        buf_appendf(out, " predicted_below_tokens=%.0f below_tokens=%lld",
                    x->try.ticket.below_tokens, (long long)x->try.feedback.below_tokens);
    if (x->try.target.source_len)
        buf_appendf(out,
                    " fetch_from=%u fetch_tokens=%.0f fetch_s=%.4g restored_tokens=%u "
                    "restore_s=%.4g",
                    x->try.ticket.fetch.source, x->try.ticket.fetch.tokens,
                    x->try.ticket.fetch.fetch_s, x->try.feedback.restored_tokens,
                    (double)x->try.feedback.restore_us / 1e6);
    buf_appendf(out, " held_ms=%llu", (unsigned long long)x->waited_us / 1000);
    if (x->held_position)
        buf_appendf(out, " position=%u held_by=%s", x->held_position, proxy_held_by(x));
    if (proxy_is_handed(x)) buf_appendf(out, " prefill_worker=%u", x->leg->target.worker);
    if (x->due.by_us)
        buf_appendf(out, " deadline_ms=%llu", (unsigned long long)proxy_deadline_ms(x));
    if (x->waiter.turn.is_open) buf_appendf(out, " session=%s", proxy_session_of(x));
    explain_append(out, &x->why, x->try.target.worker);
}

/* The standard's reason; the worker's for a code without one. */
static char *put_status_line(char *to, const struct http_head *head, const char *data) {
    uint16_t code = head->status_code;
    struct str reason;

    if (code == 200) return put(to, STR("HTTP/1.1 200 OK\r\n"));
    reason = str_of(http_reason(code));
    to = put(to, STR("HTTP/1.1 "));
    to = str_put_u64(to, code);
    *to++ = ' ';
    to = put(to, reason.len ? reason : http_span_str(head->reason, data));
    return put(to, STR("\r\n"));
}

void proxy_build_client_head(struct exchange *x, const char *data) {
    struct buf *out = &x->out;
    char *to;

    buf_clear(out);
    to = buf_reserve(out, http_kept_max(&x->try.head) + OWN_MAX);
    if (!to) return;
    to = put_status_line(to, &x->try.head, data);
    to = http_write_kept(to, &x->try.head, data, names_not_relayed(x));
    to = put_field(to, STR("x-request-id: "), proxy_request_id(x));
    to = put_framing(x, to);
    buf_commit(out, (size_t)(to - buf_ptr(out)));
    if (x->wants_explanation) {
        proxy_put_route(x, out);
        buf_append_str(out, STR("\r\n"));
    }
    buf_append_str(out, STR("\r\n"));
}
