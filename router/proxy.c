/* router/proxy.c - the data path.
 *
 *   client loop                     exchange                              worker
 *   on_request ── proxy_start ──▶ scan, hash, route (lock: 1-2 us)
 *                                 attempt_start ── head + same body ────▶
 *                                 on_data: read_head  ◀── head ──────────   = first token
 *   raw bytes  ◀── relay ──────── send_payload        ◀── body ──────────
 *   raw_end    ◀── finish ─────── account: load released, LRU, metrics, log
 *
 * Invariant: an attempt that was routed is accounted exactly once (`is_routed`), on every path:
 * answered, failed, retried, abandoned by the client, timed out. Nothing is sent to the client while
 * a retry is still possible (`has_sent`).
 *
 * Framing is never passed through: a worker's body is taken apart and framed anew for the client, so
 * that a stream whose worker is lost between two chunks can still be ended with an error event.
 * Exchanges are recycled with their buffers: a busy loop allocates nothing. */
#include "router/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/http_parse.h"
#include "common/list.h"
#include "common/log.h"
#include "common/loop.h"
#include "common/mem.h"
#include "common/openai.h"
#include "common/rng.h"
#include "common/wire.h"
#include "router/body_scan.h"
#include "router/prompt_hash.h"
#include "router/registry.h"
#include "router/router_metrics.h"
#include "router/upstream.h"

#define HIGH_WATER_BYTES   (256 * 1024) /* queued for a slow client: stop reading its worker */
#define MAX_ATTEMPTS       8
#define RETRY_PAUSE_US     20000 /* before looking again whether a retry is affordable */
#define RETRY_SHARE        5     /* one in five open exchanges may be a retry, but at least ... */
#define RETRY_MIN          3
#define MAX_LOST           2     /* a request that has lost so many workers may be what kills them */
#define MAX_IDLE_EXCHANGES 256
#define REQUEST_ID_MAX     128

struct proxy {
    struct loop *loop;
    struct registry *registry;
    struct metrics *metrics;
    struct log *log;
    struct proxy_config config;
    struct upstream_pool *pool;
    struct rng rng;
    struct list idle; /* recycled exchanges */
    uint32_t n_idle, n_open, n_retrying;
    struct metric *ttft, *duration, *prompt_tokens, *cached_tokens, *predicted_tokens;
    struct metric *client_aborts, *streams_broken;
};

struct exchange {
    struct list link; /* on proxy->idle while recycled */
    struct proxy *proxy;
    struct http_request *req; /* NULL once answered or abandoned */
    struct body_scan scan;
    uint64_t start_us;
    struct route_request rq;
    struct route_ticket ticket;
    struct registry_target target;
    struct upstream *up;
    struct loop_timer timeout, retry;
    struct loop_task recycle;

    uint64_t *chain; /* grows, is kept */
    uint32_t chain_cap;
    uint32_t tried[MAX_ATTEMPTS];
    uint32_t n_tried, n_lost, n_attempts;

    struct buf out;  /* request head for the worker, then response head for the client */
    struct http_head head;
    struct http_body body;
    struct route_feedback feedback;
    int64_t output_tokens; /* as reported, or -1 */
    uint64_t n_events;     /* of a stream: about one per token */
    uint64_t first_token_us;
    uint64_t sent_bytes;
    char request_id[REQUEST_ID_MAX + 1];
    char tail[2]; /* last two bytes of a stream: is an event half sent? */
    bool is_routed, is_retry, has_input, has_head, has_sent, is_sse, is_chunked, is_paused;
    bool wants_explanation;
};

static void attempt_start(struct exchange *x, bool is_fresh);
static void fail(struct exchange *x, enum status st, const struct error *err);

/* --- account: what an attempt leaves behind ------------------------------------------------------*/

/* Ends the routed attempt, if there is one. */
static void account(struct exchange *x, bool is_aborted, enum registry_outcome outcome) {
    struct route_end end = {
        .is_aborted = is_aborted,
        .output_tokens = x->output_tokens >= 0 ? x->output_tokens
                         : x->n_events > 0     ? (int64_t)x->n_events
                                               : -1,
        .feedback = x->feedback,
        .now_us = loop_now_us(x->proxy->loop),
    };

    if (!x->is_routed) return;
    x->is_routed = false;
    if (x->is_retry) x->proxy->n_retrying--;
    x->is_retry = false;
    registry_ended(x->proxy->registry, &x->target, &x->ticket, &end, outcome);
}

static void drop_upstream(struct exchange *x) {
    upstream_discard(x->up);
    x->up = NULL;
}

static void exchange_free(struct exchange *x) {
    loop_timer_fini(&x->timeout);
    loop_timer_fini(&x->retry);
    buf_fini(&x->out);
    mem_free(x->chain);
    mem_free(x);
}

static void on_recycle(void *arg) {
    struct exchange *x = arg;
    struct proxy *p = x->proxy;

    if (p->n_idle >= MAX_IDLE_EXCHANGES) {
        exchange_free(x);
        return;
    }
    list_push_front(&p->idle, &x->link);
    p->n_idle++;
}

/* The request is over, one way or the other. */
static void close_exchange(struct exchange *x, int code) {
    struct proxy *p = x->proxy;
    uint64_t now_us = loop_now_us(p->loop);
    double duration_s = (double)(now_us - x->start_us) * 1e-6;

    loop_timer_stop(&x->timeout);
    loop_timer_stop(&x->retry);
    metric_observe(p->duration, duration_s);
    log_event(p->log, LOG_INFO, "request", log_z("id", x->request_id), log_i64("code", code),
              log_u64("worker", x->n_attempts ? x->target.worker : 0),
              log_u64("attempts", x->n_attempts), log_f64("duration_s", duration_s),
              log_f64("ttft_s",
                      x->first_token_us ? (double)(x->first_token_us - x->start_us) * 1e-6 : 0),
              log_i64("prompt_tokens", x->feedback.prompt_tokens),
              log_i64("cached_tokens", x->feedback.cached_tokens),
              log_f64("predicted_cached_tokens", x->ticket.cached_tokens));
    x->req = NULL;
    p->n_open--;
    loop_defer(p->loop, &x->recycle);
}

static void count_code(struct exchange *x, int code) {
    char text[8];

    snprintf(text, sizeof(text), "%d", code);
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_requests_total, "proxied", text));
}

/* Answers with an error of our own. Nothing has been sent yet. */
static void fail(struct exchange *x, enum status st, const struct error *err) {
    struct http_request *req = x->req;
    int code = status_http_code(st);

    drop_upstream(x);
    account(x, true, OUTCOME_UNKNOWN);
    count_code(x, code);
    close_exchange(x, code);
    if (st == ST_UNAVAILABLE || st == ST_BUSY) http_add_header(req, STR("retry-after"), STR("1"));
    http_reply_error(req, st, err);
}

/* --- the worker's answer -------------------------------------------------------------------------*/

static void write_to_client(struct exchange *x, struct str bytes) {
    http_raw_write(x->req, bytes);
    x->has_sent = true;
}

/* The held head, once. */
static void send_head(struct exchange *x) {
    if (x->has_sent) return;
    write_to_client(x, buf_str(&x->out));
    buf_clear(&x->out);
}

static void send_payload(struct exchange *x, struct str payload) {
    char size[24];
    int n;

    if (payload.len == 0) return;
    send_head(x);
    x->sent_bytes += payload.len;
    if (x->is_chunked) {
        n = snprintf(size, sizeof(size), "%zx\r\n", payload.len);
        http_raw_writev(x->req, (struct str[]){{size, (size_t)n}, payload, STR("\r\n")}, 3);
    } else {
        http_raw_write(x->req, payload);
    }
    if (payload.len >= 2) {
        memcpy(x->tail, payload.ptr + payload.len - 2, 2);
    } else {
        x->tail[0] = x->tail[1];
        x->tail[1] = payload.ptr[0];
    }
}

/* A number behind `"name":` in the payload, or -1. */
static int64_t find_number(struct str payload, const char *name) {
    ptrdiff_t at = str_find(payload, str_of(name));
    int64_t value = 0;
    size_t i;

    if (at < 0) return -1;
    i = (size_t)at + strlen(name);
    while (i < payload.len && payload.ptr[i] == ' ') i++;
    if (i >= payload.len || (unsigned)(payload.ptr[i] - '0') > 9) return -1;
    for (; i < payload.len && (unsigned)(payload.ptr[i] - '0') <= 9 && value < INT32_MAX; i++) {
        value = value * 10 + (payload.ptr[i] - '0');
    }
    return value;
}

/* Learns from what passes by: events of a stream, and the usage at the end. An estimate: a number
 * cut in two by the network is not seen. */
static void learn_usage(struct exchange *x, struct str payload) {
    int64_t n = find_number(payload, "\"completion_tokens\":");

    if (x->is_sse) {
        for (size_t i = 1; i < payload.len; i++) {
            x->n_events += payload.ptr[i] == '\n' && payload.ptr[i - 1] == '\n';
        }
    }
    if (n < 0) return;
    x->output_tokens = n;
    if (x->feedback.prompt_tokens < 0) {
        x->feedback.prompt_tokens = find_number(payload, "\"prompt_tokens\":");
    }
    if (x->feedback.cached_tokens < 0) {
        x->feedback.cached_tokens = find_number(payload, "\"cached_tokens\":");
    }
}

static void on_first_token(struct exchange *x) {
    struct proxy *p = x->proxy;

    if (x->first_token_us || !x->is_routed) return;
    x->first_token_us = loop_now_us(p->loop);
    metric_observe(p->ttft, (double)(x->first_token_us - x->start_us) * 1e-6);
    registry_first_token(p->registry, &x->target, &x->ticket, &x->feedback, x->first_token_us);
}

static int64_t token_header(struct exchange *x, const char *data, struct str name) {
    struct str value = http_head_find(&x->head, data, name);
    uint32_t n;

    return value.ptr && wire_parse_tokens(value, &n) == ST_OK ? (int64_t)n : -1;
}

static bool goes_to_client(const struct exchange *x, const char *data, struct str name) {
    if (http_header_is_hop_by_hop(&x->head, data, name)) return false;
    if (str_eq_nocase(name, STR("content-length"))) return false; /* framed anew below */
    if (str_eq_nocase(name, STR("x-request-id"))) return false;   /* ours */
    return x->proxy->config.expose_worker_headers || !wire_is_ours(name);
}

/* Builds the client's response head in x->out and decides how its body is framed. */
static void build_client_head(struct exchange *x, const char *data) {
    struct buf *out = &x->out;
    bool may_chunk = x->req->minor_version >= 1;

    buf_clear(out);
    buf_appendf(out, "HTTP/1.1 %u %s\r\n", x->head.status_code,
                http_reason((int)x->head.status_code));
    for (uint16_t i = 0; i < x->head.n_headers; i++) {
        struct str name = http_span_str(x->head.headers[i].name, data);
        struct str value = http_span_str(x->head.headers[i].value, data);

        if (!goes_to_client(x, data, name)) continue;
        buf_append_str(out, name);
        buf_append(out, ": ", 2);
        buf_append_str(out, value);
        buf_append(out, "\r\n", 2);
    }
    buf_appendf(out, "x-request-id: %s\r\n", x->request_id);
    if (x->wants_explanation) {
        buf_appendf(out,
                    "x-incipit-route: worker=%u attempts=%u blocks=%u matched=%u "
                    "predicted_cached_tokens=%.0f cached_tokens=%lld\r\n",
                    x->target.worker, x->n_attempts, x->rq.n_blocks, x->ticket.matched_blocks,
                    x->ticket.cached_tokens, (long long)x->feedback.cached_tokens);
    }
    x->is_chunked = false;
    switch (x->head.framing) {
    case HTTP_NO_BODY:
        if (x->head.status_code != 204 && x->head.status_code != 304) {
            buf_append_str(out, STR("content-length: 0\r\n"));
        }
        break;
    case HTTP_LENGTH_BODY:
        buf_appendf(out, "content-length: %llu\r\n", (unsigned long long)x->head.content_length);
        break;
    case HTTP_CHUNKED_BODY:
    case HTTP_CLOSE_BODY:
        x->is_chunked = may_chunk;
        if (may_chunk) buf_append_str(out, STR("transfer-encoding: chunked\r\n"));
        break;
    }
    if (http_wants_close(x->req) || (!may_chunk && x->head.framing != HTTP_LENGTH_BODY)) {
        buf_append_str(out, STR("connection: close\r\n"));
    }
    buf_append(out, "\r\n", 2);
}

/* The answer is complete. */
static void finish(struct exchange *x) {
    struct proxy *p = x->proxy;
    struct http_request *req = x->req;
    struct upstream *up = x->up;
    int code = x->head.status_code;
    bool keep_client = !http_wants_close(req) &&
                       (x->is_chunked || x->head.framing == HTTP_LENGTH_BODY ||
                        x->head.framing == HTTP_NO_BODY);

    on_first_token(x);
    send_head(x);
    if (x->is_chunked) http_raw_write(req, STR("0\r\n\r\n"));
    x->up = NULL;
    if (x->head.keep_alive && x->head.framing != HTTP_CLOSE_BODY) {
        upstream_release(up);
    } else {
        upstream_discard(up);
    }
    if (x->feedback.prompt_tokens > 0) {
        metric_add(p->prompt_tokens, (uint64_t)x->feedback.prompt_tokens);
    }
    if (x->feedback.cached_tokens > 0) {
        metric_add(p->cached_tokens, (uint64_t)x->feedback.cached_tokens);
    }
    metric_add(p->predicted_tokens, (uint64_t)x->ticket.cached_tokens);
    account(x, code >= 400, OUTCOME_OK);
    count_code(x, code);
    close_exchange(x, code);
    http_raw_end(req, keep_client);
}

/* --- when a worker fails --------------------------------------------------------------------------*/

/* The worker broke off after the client has seen part of its answer: say so in the stream, or close
 * before the announced end, so that nobody takes it for complete. */
static void break_off(struct exchange *x) {
    static const char event[] =
        "data: {\"error\":{\"message\":\"The worker that was answering was lost; what was "
        "generated so far is above. Send the request again.\",\"type\":\"upstream_error\","
        "\"param\":null,\"code\":\"worker_lost\"}}\n\n";
    struct http_request *req = x->req;

    drop_upstream(x);
    account(x, true, OUTCOME_FAILED);
    metric_inc(x->proxy->streams_broken);
    if (x->is_sse) {
        if (x->sent_bytes && memcmp(x->tail, "\n\n", 2) != 0) send_payload(x, STR("\n\n"));
        send_payload(x, (struct str){event, sizeof(event) - 1});
        if (x->is_chunked) http_raw_write(req, STR("0\r\n\r\n"));
    }
    count_code(x, 502);
    close_exchange(x, 502);
    http_raw_end(req, false);
}

static bool may_retry(const struct exchange *x) {
    return x->n_lost < MAX_LOST && x->n_attempts < x->proxy->config.max_attempts &&
           x->n_tried < MAX_ATTEMPTS;
}

/* Chooses a worker for the next attempt and counts the request as sent to it. */
static enum status route(struct exchange *x, struct error *err) {
    struct str model = x->scan.spans[BODY_MODEL];
    enum status st;

    x->rq.now_us = loop_now_us(x->proxy->loop);
    st = registry_route(x->proxy->registry, model.ptr ? body_unquote(model) : STR_NULL, &x->rq,
                        &x->ticket, &x->target, err);
    x->is_routed = st == ST_OK;
    return st;
}

/* Chooses another worker, now or when retries have become affordable. */
static void retry_elsewhere(struct exchange *x) {
    struct proxy *p = x->proxy;
    struct error err = {0};
    uint32_t affordable = MAX(RETRY_MIN, p->n_open / RETRY_SHARE);

    if (p->n_retrying >= affordable) { /* a storm of retries would hit those still standing */
        loop_timer_start(&x->retry, RETRY_PAUSE_US);
        return;
    }
    x->rq.exclude = x->tried;
    x->rq.n_exclude = x->n_tried;
    if (route(x, &err) != ST_OK) {
        error_set(&err, ST_UNAVAILABLE,
                  "the worker failed before it answered, and no other can take the request now: "
                  "try again");
        fail(x, ST_UNAVAILABLE, &err);
        return;
    }
    x->is_retry = true;
    p->n_retrying++;
    attempt_start(x, false);
}

static void on_retry_timer(void *arg) {
    retry_elsewhere(arg);
}

/* The attempt failed before the client saw anything. `is_lost`: the worker died on it. */
static void attempt_failed(struct exchange *x, const char *reason, bool is_lost,
                           enum registry_outcome outcome) {
    struct error err = {0};

    drop_upstream(x);
    account(x, true, outcome);
    x->n_lost += is_lost;
    if (x->n_tried < MAX_ATTEMPTS) x->tried[x->n_tried++] = x->target.worker;
    log_event(x->proxy->log, LOG_WARN, "attempt_failed", log_z("id", x->request_id),
              log_u64("worker", x->target.worker), log_z("reason", reason));
    if (may_retry(x)) {
        metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_retries_total, reason));
        retry_elsewhere(x);
        return;
    }
    error_set(&err, ST_BAD_GATEWAY,
              x->n_lost >= MAX_LOST
                  ? "%u workers were lost while they worked on this request: it is not tried again"
                  : "no worker answered after %u attempts: try again later",
              x->n_lost >= MAX_LOST ? x->n_lost : x->n_attempts);
    fail(x, ST_BAD_GATEWAY, &err);
}

static void on_upstream_closed(enum conn_end end, void *arg) {
    struct exchange *x = arg;
    struct error err = {0};

    if (x->has_head && x->head.framing == HTTP_CLOSE_BODY && end == CONN_EOF &&
        http_body_eof(&x->body, &err) == ST_OK) {
        finish(x);
    } else if (x->has_sent) {
        break_off(x);
    } else if (x->up->is_reused && !x->has_input) { /* it had been closed while it was idle */
        drop_upstream(x);
        attempt_start(x, true);
    } else {
        attempt_failed(x, conn_end_name(end), end != CONN_REFUSED && end != CONN_TIMED_OUT,
                       OUTCOME_FAILED);
    }
}

/* What the worker sent is not HTTP. */
static void on_malformed(struct exchange *x) {
    if (x->has_sent) {
        break_off(x);
    } else {
        attempt_failed(x, "malformed", false, OUTCOME_FAILED);
    }
}

/* --- relay ---------------------------------------------------------------------------------------*/

/* Parses the worker's head. False: not complete, or the exchange has moved on. */
static bool read_head(struct exchange *x) {
    struct conn_bytes in = conn_input(&x->up->conn);
    struct str content_type;
    enum status st = http_head_parse(&x->head, in.ptr, in.len, NULL);

    x->has_input = x->has_input || in.len > 0;
    if (st == ST_AGAIN) return false;
    if (st != ST_OK) {
        on_malformed(x);
        return false;
    }
    if (x->head.status_code < 200) { /* 1xx: another head follows */
        conn_consume(&x->up->conn, x->head.head_len);
        http_response_init(&x->head, false);
        return read_head(x);
    }
    if (x->head.status_code == 503 && may_retry(x)) { /* draining or full: others may not be */
        attempt_failed(x, "refused_by_worker", false, OUTCOME_OK);
        return false;
    }
    x->feedback.prompt_tokens = token_header(x, in.ptr, STR(WIRE_PROMPT_TOKENS));
    x->feedback.cached_tokens = token_header(x, in.ptr, STR(WIRE_CACHED_TOKENS));
    content_type = http_head_find(&x->head, in.ptr, STR("content-type"));
    x->is_sse = str_starts(content_type, STR("text/event-stream"));
    build_client_head(x, in.ptr);
    if (buf_status(&x->out) != ST_OK) {
        on_malformed(x);
        return false;
    }
    http_body_init(&x->body, &x->head, 0);
    x->has_head = true;
    if (x->feedback.prompt_tokens >= 0) on_first_token(x); /* ours: the head is the first token */
    if (x->is_sse) send_head(x);
    conn_consume(&x->up->conn, x->head.head_len);
    return true;
}

static void relay(struct exchange *x) {
    struct conn_bytes in;
    struct str payload;
    size_t used;
    enum status st;

    if (!x->has_head && !read_head(x)) return;
    if (x->head.framing == HTTP_NO_BODY) {
        finish(x);
        return;
    }
    while ((in = conn_input(&x->up->conn)).len > 0) {
        st = http_body_next(&x->body, in.ptr, in.len, &used, &payload, NULL);
        if (st != ST_OK && st != ST_AGAIN) {
            on_malformed(x);
            return;
        }
        if (payload.len) {
            on_first_token(x);
            learn_usage(x, payload);
            send_payload(x, payload);
        }
        conn_consume(&x->up->conn, used);
        if (st == ST_OK) {
            finish(x);
            return;
        }
        if (http_pending_bytes(x->req) > HIGH_WATER_BYTES) {
            conn_pause(&x->up->conn);
            x->is_paused = true;
            return;
        }
    }
}

static void on_upstream_data(void *arg) {
    relay(arg);
}

static void on_client_drain(struct http_request *req) {
    struct exchange *x = req->user;

    if (!x->is_paused || !x->up) return;
    x->is_paused = false;
    conn_resume(&x->up->conn);
    relay(x);
}

static void on_client_abort(struct http_request *req) {
    struct exchange *x = req->user;

    drop_upstream(x); /* closing it is how a worker hears that nobody listens any more */
    account(x, true, OUTCOME_UNKNOWN);
    metric_inc(x->proxy->client_aborts);
    close_exchange(x, 499);
}

static void on_timeout(void *arg) {
    struct exchange *x = arg;
    struct error err = {0};

    if (x->has_sent) {
        break_off(x);
        return;
    }
    error_set(&err, ST_TIMEOUT,
              "no answer within %llu s: raise --request-timeout, or ask for fewer tokens",
              (unsigned long long)(x->proxy->config.request_timeout_us / 1000000));
    fail(x, ST_TIMEOUT, &err);
}

/* --- towards the worker --------------------------------------------------------------------------*/

static bool goes_to_worker(const struct exchange *x, struct str name) {
    static const struct str ours[] = {
        {"host", 4}, {"content-length", 14}, {"expect", 6}, {"x-request-id", 12},
        {"x-forwarded-for", 15}, {"x-forwarded-proto", 17}, {"x-forwarded-host", 16}};

    for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
        if (str_eq_nocase(name, ours[i])) return false;
    }
    if (wire_is_ours(name)) return false;
    if (!x->proxy->config.forward_authorization && str_eq_nocase(name, STR("authorization"))) {
        return false;
    }
    return !http_header_is_hop_by_hop(http_request_head(x->req), http_request_head_bytes(x->req),
                                      name);
}

static void build_worker_head(struct exchange *x) {
    struct buf *out = &x->out;
    char client[HTTP_ADDRESS_MAX];
    uint16_t port;

    http_request_client(x->req, client, &port);
    buf_clear(out);
    buf_append_str(out, STR("POST "));
    buf_append_str(out, x->req->target);
    buf_appendf(out, " HTTP/1.1\r\nhost: %s\r\ncontent-length: %zu\r\n", x->target.authority,
                x->req->body.len);
    for (uint16_t i = 0; i < x->req->n_headers; i++) {
        struct http_field f = http_request_header_at(x->req, i);

        if (!goes_to_worker(x, f.name)) continue;
        buf_append_str(out, f.name);
        buf_append(out, ": ", 2);
        buf_append_str(out, f.value);
        buf_append(out, "\r\n", 2);
    }
    buf_appendf(out, "x-request-id: %s\r\nx-forwarded-for: %s\r\nx-forwarded-proto: http\r\n\r\n",
                x->request_id, client);
}

/* Sends the request to x->target. `is_fresh`: not on a connection that was kept alive. */
static void attempt_start(struct exchange *x, bool is_fresh) {
    static const struct upstream_user user = {.on_data = on_upstream_data,
                                              .on_closed = on_upstream_closed};
    struct error err = {0};
    enum status st;

    x->n_attempts += !is_fresh;
    x->has_input = x->has_head = x->is_paused = false;
    x->feedback = (struct route_feedback){-1, -1};
    x->output_tokens = -1;
    x->n_events = 0;
    http_response_init(&x->head, false);
    build_worker_head(x);
    st = buf_status(&x->out);
    if (st == ST_OK) {
        st = upstream_acquire(x->proxy->pool, x->target.worker, (struct sockaddr *)&x->target.addr,
                              x->target.addr_len, is_fresh, &user, x, &x->up, &err);
    }
    if (st != ST_OK) {
        fail(x, st, &err);
        return;
    }
    conn_writev(&x->up->conn,
                (struct iovec[]){{buf_ptr(&x->out), buf_len(&x->out)},
                                 {(void *)(uintptr_t)x->req->body.ptr, x->req->body.len}},
                2);
    conn_flush(&x->up->conn);
}

/* --- from the client -----------------------------------------------------------------------------*/

/* Keeps a request id that is safe to pass on and to log; makes one otherwise. */
static void choose_request_id(struct exchange *x) {
    struct str given = http_request_header(x->req, STR("x-request-id"));
    size_t i = 0;

    while (i < given.len && i < REQUEST_ID_MAX) {
        char c = given.ptr[i];
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                        c == '.' || c == '_' || c == '-';

        if (!is_plain) break;
        i++;
    }
    if (i > 0 && i == given.len) {
        memcpy(x->request_id, given.ptr, i);
        x->request_id[i] = '\0';
        return;
    }
    snprintf(x->request_id, sizeof(x->request_id), "req-%016llx%016llx",
             (unsigned long long)rng_u64(&x->proxy->rng),
             (unsigned long long)rng_u64(&x->proxy->rng));
}

static enum status hash_prompt(struct exchange *x, struct error *err) {
    const struct proxy_config *config = &x->proxy->config;
    struct str prompt = body_scan_prompt(&x->scan), session = x->scan.spans[BODY_PROMPT_CACHE_KEY];
    struct prompt_scope scope = {
        .model = x->scan.spans[BODY_MODEL],
        .adapter = x->scan.spans[BODY_LORA_PATH].ptr ? x->scan.spans[BODY_LORA_PATH]
                                                     : x->scan.spans[BODY_ADAPTER],
        .tools = x->scan.spans[BODY_TOOLS],
        .cache_salt = x->scan.spans[BODY_CACHE_SALT],
    };
    uint32_t n = prompt_hash_n_blocks(prompt.len, config->prefix_block_bytes,
                                      config->max_prefix_blocks);

    if (n > x->chain_cap) {
        uint64_t *chain = mem_try_realloc(x->chain, n * sizeof(*chain));

        if (!chain) return error_set(err, ST_NOMEM, "out of memory for a prompt's hash chain");
        x->chain = chain;
        x->chain_cap = n;
    }
    prompt_hash_chain(prompt, prompt_hash_seed(&scope, config->hash_secret),
                      config->prefix_block_bytes, x->chain, n);
    if (!session.ptr) session = x->scan.spans[BODY_SESSION_ID];
    x->rq = (struct route_request){
        .chain = x->chain,
        .n_blocks = n,
        .prompt_bytes = prompt.len,
        .max_output_tokens = x->scan.max_output_tokens,
        .session_key = session.ptr ? hash_64(session.ptr, session.len, config->hash_secret) : 0,
    };
    return ST_OK;
}

static struct exchange *exchange_open(struct proxy *p) {
    struct list *link = list_pop_front(&p->idle);
    struct exchange *x;

    if (link) {
        p->n_idle--;
        x = LIST_ENTRY(link, struct exchange, link);
    } else {
        x = mem_try_zalloc(sizeof(*x));
        if (!x) return NULL;
        x->proxy = p;
        buf_init(&x->out, 4 * HTTP_MAX_HEAD_BYTES);
        loop_timer_init(&x->timeout, p->loop, on_timeout, x);
        loop_timer_init(&x->retry, p->loop, on_retry_timer, x);
        loop_task_init(&x->recycle, on_recycle, x);
    }
    memset(&x->ticket, 0, sizeof(x->ticket));
    x->n_tried = x->n_lost = x->n_attempts = 0;
    x->first_token_us = x->sent_bytes = 0;
    x->feedback = (struct route_feedback){-1, -1};
    x->output_tokens = -1;
    x->n_events = 0;
    memset(x->tail, 0, sizeof(x->tail));
    x->up = NULL;
    x->is_routed = x->is_retry = x->has_input = x->has_head = x->has_sent = false;
    x->is_sse = x->is_chunked = x->is_paused = false;
    p->n_open++;
    return x;
}

void proxy_start(struct proxy *p, struct http_request *req) {
    struct exchange *x = exchange_open(p);
    struct error err = {0};
    enum status st;

    if (!x) {
        error_set(&err, ST_NOMEM, "out of memory: try again");
        http_reply_error(req, ST_NOMEM, &err);
        return;
    }
    x->req = req;
    x->start_us = loop_now_us(p->loop);
    x->wants_explanation = http_request_header(req, STR("x-incipit-route")).ptr != NULL;
    req->user = x;
    req->on_abort = on_client_abort;
    req->on_drain = on_client_drain;
    choose_request_id(x);
    loop_timer_start(&x->timeout, p->config.request_timeout_us);
    st = body_scan(req->body, &x->scan, &err);
    if (st == ST_OK) st = hash_prompt(x, &err);
    if (st == ST_OK) st = route(x, &err);
    if (st != ST_OK) {
        fail(x, st, &err);
        return;
    }
    attempt_start(x, false);
}

/* --- the proxy -----------------------------------------------------------------------------------*/

struct proxy *proxy_create(struct loop *loop, struct registry *registry, struct metrics *metrics,
                           struct log *log, const struct proxy_config *config) {
    struct proxy *p = mem_zalloc(sizeof(*p));
    struct upstream_pool_config pool = {
        .max_workers = config->max_workers,
        .max_idle_per_worker = 256,
        .idle_timeout_us = config->upstream_idle_us,
        .connect_timeout_us = config->connect_timeout_us,
    };
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    p->loop = loop;
    p->registry = registry;
    p->metrics = metrics;
    p->log = log;
    p->config = *config;
    p->config.max_attempts = MIN(config->max_attempts, MAX_ATTEMPTS);
    p->pool = upstream_pool_create(loop, &pool);
    rng_seed(&p->rng, seed);
    list_init(&p->idle);
    p->ttft = metrics_at(metrics, ROUTER_ttft_seconds);
    p->duration = metrics_at(metrics, ROUTER_request_duration_seconds);
    p->prompt_tokens = metrics_at(metrics, ROUTER_prompt_tokens_total);
    p->cached_tokens = metrics_at(metrics, ROUTER_cached_tokens_total);
    p->predicted_tokens = metrics_at(metrics, ROUTER_predicted_cached_tokens_total);
    p->client_aborts = metrics_at(metrics, ROUTER_client_aborts_total);
    p->streams_broken = metrics_at(metrics, ROUTER_streams_broken_total);
    return p;
}

void proxy_destroy(struct proxy *p) {
    struct list *link;

    if (!p) return;
    while ((link = list_pop_front(&p->idle)) != NULL) {
        exchange_free(LIST_ENTRY(link, struct exchange, link));
    }
    upstream_pool_destroy(p->pool);
    mem_free(p);
}
