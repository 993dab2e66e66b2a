/* router/proxy/proxy_comments.c - comments in a stream that is silent, and errors behind them.
 *
 * Balancers and clients end a connection on which nothing comes for a while, and a long prompt
 * takes that while. A line that begins with a colon is a comment of server-sent events: readers
 * skip it.
 *
 *      : keep-alive            after --sse-keepalive-s without a byte, between two events alone
 *      : queued position 3     when a request begins to wait, and at the same pace
 *
 *      the worker's head is there        to every stream: the status is known to be 200
 *      nothing of a worker is there      only if the client asked (x-incipit-queue-comments: 1):
 *                                        with the first comment it gets a head with status 200, and
 *                                        any later error is an event (api.h)
 *
 * Comments end nothing: until its client has more than them, a request may go to another worker,
 * and no first token is learned. A worker's own comments are passed on in the same way. An answer
 * that is not streamed gets none, nor does a client that has not taken what it has. */
#include <stdio.h>

#include "router/metrics/router_metrics.h"
#include "router/proxy/answers/stream_error.h"
#include "router/proxy/proxy_internal.h"

#define QUEUE_COMMENTS "x-incipit-queue-comments"
#define COLLECTED_MAX  (32u << 10) /* of an error that becomes an event; a longer one is named */

void proxy_choose_comments(struct exchange *x) {
    struct str wish;

    if (!x->scan.is_stream || !x->is_generation ||
        !(http_request_head(x->req)->names & HTTP_NAME_BIT(HTTP_NAME_OURS)))
        return;
    wish = http_request_header(x->req, STR(QUEUE_COMMENTS));
    x->wants_comments = str_eq(wish, STR("1")) || str_eq_nocase(wish, STR("true"));
}

void proxy_write_body(struct exchange *x, struct str bytes) {
    x->client_bytes += bytes.len;
    if (x->is_chunked) {
        http_raw_chunk(x->req, bytes);
    } else {
        http_raw_write(x->req, bytes);
    }
}

/* --- comments --------------------------------------------------------------------------------- */

/* That of the worker if it is there, else one of the router. */
static void send_early_head(struct exchange *x) {
    struct buf head;

    if (x->has_early_head || exchange_is_in(x, EXCHANGE_SENT)) return;
    x->has_early_head = true;
    if (x->state == EXCHANGE_HELD) {
        http_raw_write(x->req, buf_str(&x->out));
        buf_clear(&x->out);
        return;
    }
    buf_init(&head, HTTP_MAX_HEAD_BYTES); /* x->out may have a request that is not sent yet */
    proxy_put_early_head(x, &head);
    http_raw_write(x->req, buf_str(&head));
    buf_fini(&head);
    x->is_route_due = x->wants_explanation;
}

static void send_comment(struct exchange *x, struct str comment, const char *kind) {
    send_early_head(x);
    proxy_write_body(x, comment);
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_stream_comments_total, kind));
    x->heard_bytes = x->client_bytes;
    x->heard_us = loop_now_us(x->proxy->loop);
}

void proxy_comment_position(struct exchange *x) {
    char text[64];
    int n;

    if (!x->wants_comments) return;
    n = snprintf(text, sizeof(text), ": queued position %u\n\n", x->held_position);
    send_comment(x, (struct str){text, (size_t)n}, "position");
}

void proxy_comment_route(struct exchange *x) {
    struct buf line;

    buf_init(&line, HTTP_MAX_HEAD_BYTES);
    buf_append_str(&line, STR(": "));
    proxy_put_route(x, &line);
    buf_append_str(&line, STR("\n\n"));
    if (buf_status(&line) == ST_OK) proxy_write_body(x, buf_str(&line));
    buf_fini(&line);
    x->is_route_due = false;
}

/* May one stand behind what the client has? */
static bool may_comment(const struct exchange *x) {
    switch (x->state) {
    case EXCHANGE_QUEUED:
    case EXCHANGE_PAUSED:
    case EXCHANGE_SENDING:
    case EXCHANGE_RECEIVING: return x->has_early_head || x->wants_comments;
    case EXCHANGE_HELD:
        return (x->has_early_head || x->try.is_stream) && !x->is_amid_comment &&
               !proxy_needs_event(x);
    case EXCHANGE_ANSWERING:
        return x->try.is_stream && !sse_usage_is_amid_event(&x->try.usage) &&
               !x->try.usage.has_done;
    default: return false;
    }
}

void proxy_keep_alive(struct exchange *x, uint64_t now_us) {
    if (!x->scan.is_stream || !x->is_generation) return;
    if (x->heard_bytes != x->client_bytes) {
        x->heard_bytes = x->client_bytes;
        x->heard_us = now_us;
        return;
    }
    if (now_us - MIN(x->heard_us, now_us) < x->proxy->config.keepalive_us || !may_comment(x) ||
        http_pending_bytes(x->req) > 0)
        return;
    if (x->state == EXCHANGE_QUEUED && x->wants_comments) {
        x->held_position = registry_position(x->proxy->registry, &x->waiter);
        proxy_comment_position(x);
    } else {
        send_comment(x, STR(": keep-alive\n\n"), "keepalive");
    }
}

/* --- a worker's comments ---------------------------------------------------------------------- */

bool proxy_has_comments_alone(const struct exchange *x) {
    return x->state == EXCHANGE_HELD && x->try.is_stream && !sse_usage_has_begun(&x->try.usage);
}

void proxy_pass_comments(struct exchange *x, struct str payload) {
    send_early_head(x);
    proxy_write_body(x, payload);
    x->is_amid_comment = sse_usage_is_amid_event(&x->try.usage);
}

void proxy_end_comment(struct exchange *x) {
    if (!x->is_amid_comment || exchange_is_in(x, EXCHANGE_SENT)) return;
    proxy_write_body(x, STR("\n\n"));
    x->is_amid_comment = false;
}

/* --- errors behind what the client has -------------------------------------------------------- */

struct api_stream proxy_stream(const struct exchange *x) {
    const struct sse_usage *seen = &x->try.usage;
    bool has_events = exchange_is_in(x, EXCHANGE_SENT);

    return (struct api_stream){
        .api = x->api,
        .sequence = has_events ? (uint64_t)(seen->sequence + 1) : 0,
        .id = has_events ? (struct str){seen->id, seen->n_id} : STR(""),
    };
}

bool proxy_needs_event(const struct exchange *x) {
    return x->has_early_head && !x->try.is_stream;
}

void proxy_collect(struct exchange *x, struct str payload) {
    if (buf_len(&x->out) + payload.len <= COLLECTED_MAX) {
        buf_append_str(&x->out, payload);
    } else {
        buf_clear(&x->out);
        buf_append_char(&x->out, '?'); /* no JSON */
    }
}

void proxy_send_collected(struct exchange *x) {
    struct api_stream stream = proxy_stream(x);
    struct buf event;

    buf_init(&event, 0);
    stream_error_relay(&event, &stream, x->try.head.status_code, buf_str(&x->out));
    proxy_write_body(x, buf_str(&event));
    buf_fini(&event);
}

/* Ends the exchange, and then its client's request. */
static void end_with(struct exchange *x, int code, const struct buf *event) {
    struct http_request *req = x->req;

    proxy_end_comment(x);
    proxy_write_body(x, buf_str(event));
    if (x->is_chunked) http_raw_write(req, STR("0\r\n\r\n"));
    proxy_close(x, code);
    http_raw_end(req, !x->will_close);
}

void proxy_fail_stream(struct exchange *x, enum status st, const struct error *err) {
    struct api_stream stream = proxy_stream(x);
    struct buf event;

    buf_init(&event, 0);
    api_append_error_event(&event, &stream, st, status_http_code(st), err);
    end_with(x, status_http_code(st), &event);
    buf_fini(&event);
}

void proxy_fail_stream_json(struct exchange *x, int code, struct str json) {
    struct api_stream stream = proxy_stream(x);
    struct buf event;

    buf_init(&event, 0);
    stream_error_relay(&event, &stream, code, json);
    end_with(x, code, &event);
    buf_fini(&event);
}
