/* router/proxy/proxy_relay.c - the worker's answer: parsed, learned from, passed on.
 *
 * Before its first byte is sent, a lost worker means a retry. Afterwards an error event ends a
 * stream, and other answers end visibly incomplete. A worker's body is unframed and framed again
 * for the client, so that a stream whose worker is lost between two chunks can still end with an
 * error event.
 *
 * Back-pressure: at most HIGH_WATER_BYTES and one receive wait for a slow client; then the worker
 * is not read until the client has caught up. */
#include <stdio.h>
#include <string.h>

#include "common/net/tls.h"
#include "common/protocol/wire.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/answers/stream_error.h"
#include "router/proxy/proxy_internal.h"

#define HIGH_WATER_BYTES (256 * 1024) /* waiting for a slow client: stop reading its worker */
#define MAX_INTERIM      16           /* 1xx heads before an answer */
#define LOAD_INTERVAL_US 100000u      /* between two reports of one worker's load */

/* --- to the client ---------------------------------------------------------------------------- */

/* The held head, once. From here on the request is not retried. */
static void send_head(struct exchange *x) {
    if (exchange_is_in(x, EXCHANGE_SENT)) return;
    if (!x->has_early_head) {
        http_raw_write(x->req, buf_str(&x->out));
    } else if (x->is_route_due && x->try.is_stream) {
        proxy_comment_route(x);
    }
    exchange_move(x, x->state == EXCHANGE_HELD ? EXCHANGE_ANSWERING : EXCHANGE_FINISHING);
    buf_clear(&x->out);
}

static void send_payload(struct exchange *x, struct str payload) {
    if (payload.len == 0) return;
    send_head(x);
    x->try.sent_bytes += payload.len;
    proxy_write_body(x, payload);
}

/* --- what is learned -------------------------------------------------------------------------- */

/* Errors and empty answers have no tokens. */
static bool is_answer(const struct exchange *x) {
    return x->try.head.status_code < 400 && x->try.outcome != OUTCOME_EMPTY &&
           x->try.outcome != OUTCOME_SPOILT &&
           (x->try.usage.n_events > 0 || !x->try.usage.has_error);
}

static void on_first_token(struct exchange *x) {
    struct proxy *p = x->proxy;

    if (x->try.first_token_us || !exchange_is_in(x, EXCHANGE_TICKET) || !is_answer(x) ||
        !x->is_generation)
        return;
    x->try.first_token_us = loop_now_us(p->loop);
    loop_timer_stop(&x->try.prefill);
    proxy_release_retry(x);
    proxy_note_second_leg(x);
    x->try.first_token_unreported = true;
}

/* Of the cached tokens, those that were below the device. */
static void read_tiers(struct exchange *x, const char *data, struct route_feedback *f) {
    struct str value = http_head_find(&x->try.head, data, STR(WIRE_CACHED_TIERS));
    uint32_t n;

    if (!value.ptr || wire_parse_tiers(value, &n) != ST_OK || n > f->cached_tokens) return;
    f->below_tokens = n;
    f->has_below = true;
}

int64_t proxy_token_header(const struct http_head *head, const char *data, struct str name) {
    struct str value;
    uint32_t n;

    if (!(head->names & HTTP_NAME_BIT(HTTP_NAME_OURS))) return -1;
    value = http_head_find(head, data, name);
    return value.ptr && wire_parse_tokens(value, &n) == ST_OK ? (int64_t)n : -1;
}

/* What was brought for this request, and how long that took: one is nothing without the other.
 * Behind a first leg it is no hit, and may be more than what was. */
static void read_restored(struct exchange *x, const char *data, struct route_feedback *f) {
    struct str us = http_head_find(&x->try.head, data, STR(WIRE_RESTORE_US));
    int64_t n = proxy_token_header(&x->try.head, data, STR(WIRE_RESTORED));
    int64_t most = x->try.target.source_computed ? f->prompt_tokens : f->cached_tokens;
    uint64_t restore_us;

    if (n <= 0 || n > most || str_to_u64(us, &restore_us) != ST_OK) return;
    f->restored_tokens = (uint32_t)n;
    f->restore_us = restore_us;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* The numbers of the body, unless the head had them. */
static void learn_usage(struct exchange *x) {
    struct route_feedback *f = &x->try.feedback;

    if (x->is_light) return; /* tokens that were counted, not computed */
    if (f->prompt_tokens < 0) f->prompt_tokens = x->try.usage.prompt_tokens;
    if (f->cached_tokens < 0) f->cached_tokens = x->try.usage.cached_tokens;
    if (proxy_is_handed(x) && !x->try.target.source_computed)
        f->cached_tokens = proxy_leg_hits(x); /* what was fetched was computed for this request */
    *f = registry_bound_usage(&x->try.target, *f);
}

/* --- is it an answer? ------------------------------------------------------------------------- */

static bool is_success(const struct exchange *x) {
    return x->try.head.status_code >= 200 && x->try.head.status_code < 300;
}

/* Only the end of the body follows this payload. */
static bool is_last_payload(const struct exchange *x, const char *rest, size_t n) {
    struct http_body body = x->try.body;
    struct str payload;
    size_t used;

    return body.framing == HTTP_CHUNKED_BODY && n > 0 &&
           http_body_next(&body, rest, n, &used, &payload, NULL) == ST_OK && payload.len == 0;
}

static void note_outer_bytes(struct exchange *x, struct str payload) {
    while (payload.len && (uint8_t)payload.ptr[payload.len - 1] <= ' ')
        payload.len--;
    if (payload.len == 0) return;
    x->try.last_byte = payload.ptr[payload.len - 1];
    while ((uint8_t)payload.ptr[0] <= ' ')
        payload.ptr++;
    if (!x->try.first_byte) x->try.first_byte = payload.ptr[0];
}

/* An error in place of an answer: it blames the request, or its worker. */
static enum registry_outcome judge_error(struct str error) {
    return answer_blames_request(error) ? OUTCOME_REFUSED : OUTCOME_EMPTY;
}

static bool is_completion(struct str path) {
    return str_eq(path, STR("/v1/chat/completions")) || str_eq(path, STR("/v1/completions"));
}

/* By the beginning of a whole answer, or by all of it where that has come. */
static enum registry_outcome judge_json(struct exchange *x, struct str payload, bool is_all) {
    enum answer_fault fault = ANSWER_FINE;

    if (is_all) {
        fault = answer_judge(payload, x->try.target.is_third_party && is_completion(x->req->path));
    } else if (answer_is_error(payload)) {
        fault = ANSWER_ERROR;
    }
    if (fault == ANSWER_ERROR) return judge_error(payload);
    return fault == ANSWER_FINE ? OUTCOME_OK : OUTCOME_EMPTY;
}

/* A stream that has an error before its first event, or its end. */
static enum registry_outcome judge_stream(struct exchange *x, struct str payload, bool had_error) {
    if (x->try.usage.has_error && !had_error) return judge_error(payload);
    return x->try.usage.n_events == 0 && x->try.usage.has_done ? OUTCOME_EMPTY : OUTCOME_OK;
}

/* False: it was no answer, and another worker has the request now. */
static bool check_payload(struct exchange *x, struct str payload, bool is_all) {
    struct attempt *a = &x->try;
    enum registry_outcome outcome = OUTCOME_OK;
    bool had_error = a->usage.has_error;

    if (x->is_lookup) return true; /* tokens of an earlier answer are not counted again */
    sse_usage_feed(&a->usage, payload);
    if (!is_success(x) || !x->is_safe || a->outcome != OUTCOME_OK) return true;
    if (a->form == ANSWER_SSE) {
        outcome = judge_stream(x, payload, had_error);
    } else if (a->form == ANSWER_JSON) {
        note_outer_bytes(x, payload);
        if (!exchange_is_in(x, EXCHANGE_SENT)) outcome = judge_json(x, payload, is_all);
    }
    if (outcome == OUTCOME_OK) return true;
    if (outcome == OUTCOME_EMPTY && exchange_is_in(x, EXCHANGE_SENT)) outcome = OUTCOME_SPOILT;
    a->outcome = outcome;
    return outcome != OUTCOME_EMPTY ||
           !proxy_replace_answer(x, "empty_answer", RETRY_EMPTY, outcome);
}

/* The body is complete. False: there was none, and another worker has the request now. */
static bool check_end(struct exchange *x) {
    struct attempt *a = &x->try;

    if (!is_success(x) || !x->is_safe || a->outcome != OUTCOME_OK) return true;
    if (a->sent_bytes == 0) {
        a->outcome = OUTCOME_EMPTY;
        return !proxy_replace_answer(x, "empty_answer", RETRY_EMPTY, OUTCOME_EMPTY);
    }
    if (a->form == ANSWER_SSE ? a->usage.n_events == 0
                              : a->first_byte == '{' && a->last_byte != '}')
        a->outcome = OUTCOME_SPOILT;
    return true;
}

static enum registry_outcome outcome_of(const struct exchange *x) {
    int code = x->try.head.status_code;

    if (code >= 500 && code != 501 && code != 505) return OUTCOME_ERROR;
    return code >= 400 && x->try.outcome == OUTCOME_OK ? OUTCOME_REFUSED : x->try.outcome;
}

/* The answer is complete. */
static void finish(struct exchange *x) {
    struct http_request *req = x->req;
    struct upstream *up = x->try.up;
    enum registry_outcome outcome = outcome_of(x);

    if (outcome == OUTCOME_ERROR || outcome == OUTCOME_EMPTY)
        outcome = proxy_answer_failed(x, outcome);
    learn_usage(x);
    on_first_token(x);
    if (proxy_needs_event(x)) proxy_send_collected(x);
    send_head(x);
    if (x->is_chunked) http_raw_write(req, STR("0\r\n\r\n"));
    x->try.up = NULL;
    /* The rest of a request that was answered early is not sent. */
    if (x->try.head.keep_alive && x->try.head.framing != HTTP_CLOSE_BODY &&
        conn_pending(&up->conn) == 0) {
        upstream_release(up);
    } else {
        upstream_discard(up);
    }
    proxy_account(x, !is_answer(x) || !x->is_generation, outcome);
    proxy_close(x, x->try.head.status_code);
    http_raw_end(req, !x->will_close);
}

/* Behind the last event of an answer there is none: nothing is missing. */
static void send_break(struct exchange *x, const struct stream_break *why) {
    struct api_stream stream = proxy_stream(x);
    struct buf event;

    buf_init(&event, 0);
    if (!x->try.usage.has_done) stream_error_break(&event, &stream, why);
    if (sse_usage_is_amid_event(&x->try.usage)) send_payload(x, STR("\n\n"));
    send_payload(x, buf_str(&event));
    buf_fini(&event);
    if (x->is_chunked) http_raw_write(x->req, STR("0\r\n\r\n"));
}

#define BREAK(code, type, name, what, advice)                                                      \
    { code, type, name, what "; what was generated so far is above." advice }
#define AGAIN " Send the request again."

void proxy_break_off(struct exchange *x, enum break_cause cause) {
    static const struct {
        enum registry_outcome outcome;
        struct stream_break why;
    } causes[] = {
        [BROKEN_WORKER_LOST] = {OUTCOME_BROKEN,
                                BREAK(502, "upstream_error", "worker_lost",
                                      "The worker that was answering was lost", AGAIN)},
        [BROKEN_IDLE] = {OUTCOME_BROKEN,
                         BREAK(504, "upstream_error", "worker_silent",
                               "The worker that was answering has fallen silent", AGAIN)},
        [BROKEN_SHUTDOWN] = {OUTCOME_UNKNOWN, BREAK(503, "ServiceUnavailableError", "shutting_down",
                                                    "The router is shutting down", AGAIN)},
        [BROKEN_TIMEOUT] = {OUTCOME_UNKNOWN,
                            BREAK(504, "TimeoutError", "timeout",
                                  "The answer took longer than the router's --request-timeout",
                                  "")},
    };
    struct http_request *req = x->req;
    /* A declared length leaves no room for an event. */
    bool sends_event = x->try.form == ANSWER_SSE && x->try.head.framing != HTTP_LENGTH_BODY;

    proxy_drop_upstream(x);
    proxy_account(x, true, causes[cause].outcome);
    if (causes[cause].outcome == OUTCOME_BROKEN) metric_inc(x->proxy->counts.streams_broken);
    if (sends_event) send_break(x, &causes[cause].why);
    proxy_close(x, causes[cause].why.code);
    if (sends_event) {
        http_raw_end(req, false);
    } else {
        http_stream_break(req);
    }
}

/* The worker's bytes are not HTTP. */
static void on_malformed(struct exchange *x) {
    if (exchange_is_in(x, EXCHANGE_SENT)) {
        proxy_break_off(x, BROKEN_WORKER_LOST);
    } else {
        proxy_attempt_failed(x, "malformed", RETRY_MALFORMED, false, OUTCOME_FAILED);
    }
}

/* --- from the worker -------------------------------------------------------------------------- */

/* Passes on the load that the worker reports: at intervals, and with each 503. */
static void note_load(struct exchange *x, const char *data, bool is_urgent) {
    uint64_t *next_us = &x->proxy->next_load_us[x->try.target.worker];
    uint64_t now_us = loop_now_us(x->proxy->loop);
    struct wire_load load;
    struct str value;

    if (now_us < *next_us && !is_urgent) return;
    value = http_head_find(&x->try.head, data, STR(WIRE_LOAD));
    if (!value.ptr || wire_parse_load(value, &load) != ST_OK) return;
    *next_us = now_us + LOAD_INTERVAL_US;
    registry_note_load(x->proxy->registry, &x->try.target, &load);
}

/* Whether it refuses because it drains: it then gets no more requests. */
static bool note_draining(struct exchange *x, const char *data) {
    if (x->try.head.status_code != 503 || !(x->try.head.names & HTTP_NAME_BIT(HTTP_NAME_OURS)) ||
        !str_eq(http_head_find(&x->try.head, data, STR(WIRE_REASON)), STR(WIRE_DRAINING)))
        return false;
    registry_note_draining(x->proxy->registry, &x->try.target);
    return true;
}

/* The target is no worker, and the client's path may be the cause: the worker is not blamed, and
 * the redirect is not passed on. */
static void on_redirect(struct exchange *x) {
    proxy_log_failure(x, "redirected");
    PROXY_FAIL(x, ST_BAD_GATEWAY,
               "the worker answered %d, a redirect, which the router does not follow: check the "
               "path of the request and the worker's URL",
               x->try.head.status_code);
}

static enum answer_form form_of(struct str content_type) {
    if (str_starts(content_type, STR("text/event-stream"))) return ANSWER_SSE;
    return str_starts(content_type, STR("application/json")) ? ANSWER_JSON : ANSWER_OTHER;
}

/* Events that the router can read, between which it can add comments. */
static bool is_open_stream(const struct exchange *x, const char *data) {
    const struct http_head *head = &x->try.head;
    struct str encoding;

    if (x->try.form != ANSWER_SSE || head->status_code != 200 ||
        (head->framing != HTTP_CHUNKED_BODY && head->framing != HTTP_CLOSE_BODY))
        return false;
    encoding = http_head_find(head, data, STR("content-encoding"));
    return encoding.len == 0 || str_eq_nocase(encoding, STR("identity"));
}

/* The head is there; its bytes are at `data`. False: the exchange has moved on. */
static bool take_head(struct exchange *x, const char *data) {
    int code = x->try.head.status_code;
    uint32_t cause = retry_cause_of_status(code);

    if (!x->try.target.is_third_party) note_load(x, data, code == 503);
    if (note_draining(x, data)) {
        if (proxy_leave_draining(x)) return false;
    } else if ((code == 429 || code == 503) && proxy_try_another(x)) {
        return false;
    } else if (cause && code != 503 &&
               proxy_replace_answer(x, retry_name(cause), cause, OUTCOME_ERROR)) {
        return false;
    }
    if (code >= 300 && code < 400) {
        on_redirect(x);
        return false;
    }
    x->try.feedback.prompt_tokens = proxy_token_header(&x->try.head, data, STR(WIRE_PROMPT_TOKENS));
    x->try.feedback.cached_tokens = proxy_token_header(&x->try.head, data, STR(WIRE_CACHED_TOKENS));
    if (x->try.feedback.cached_tokens >= 0) {
        read_tiers(x, data, &x->try.feedback);
        read_restored(x, data, &x->try.feedback);
    }
    x->try.form = form_of(http_head_get(&x->try.head, data, HTTP_NAME_CONTENT_TYPE));
    x->try.is_stream = is_open_stream(x, data);
    sse_usage_init(&x->try.usage, x->api, x->try.form == ANSWER_SSE);
    if (x->has_early_head) {
        buf_clear(&x->out);
    } else {
        proxy_build_client_head(x, data);
    }
    if (buf_status(&x->out) != ST_OK) {
        on_malformed(x);
        return false;
    }
    http_body_init(&x->try.body, &x->try.head, 0);
    if (x->state != EXCHANGE_FALLBACK) exchange_move(x, EXCHANGE_HELD);
    if (x->try.feedback.prompt_tokens >= 0)
        on_first_token(x); /* the head comes with the first token */
    conn_consume(&x->try.up->conn, x->try.head.head_len);
    return true;
}

/* Parses the worker's head. False: not complete, or the exchange has moved on. */
static bool read_head(struct exchange *x) {
    struct conn_bytes in = conn_input(&x->try.up->conn);
    enum status st = http_head_parse(&x->try.head, in.ptr, in.len, NULL);
    bool has_begun = in.len > 0;

    while (st == ST_OK && x->try.head.status_code < 200) { /* 1xx: another head follows */
        /* 101 without an Upgrade, and too many others, are errors. */
        if (x->try.head.status_code == 101 || ++x->try.n_interim > MAX_INTERIM) break;
        conn_consume(&x->try.up->conn, x->try.head.head_len);
        http_response_init(&x->try.head, false);
        in = conn_input(&x->try.up->conn);
        st = http_head_parse(&x->try.head, in.ptr, in.len, NULL);
    }
    if (st == ST_AGAIN) {
        if (has_begun && x->state == EXCHANGE_SENDING) exchange_move(x, EXCHANGE_RECEIVING);
        return false;
    }
    if (st != ST_OK || x->try.head.status_code < 200) {
        on_malformed(x);
        return false;
    }
    return take_head(x, in.ptr);
}

/* Payload of an answer: what it shows is learned, then it goes on to the client. */
static void take_payload(struct exchange *x, struct str payload) {
    if (proxy_has_comments_alone(x)) { /* no first token, and no end of retries */
        proxy_pass_comments(x, payload);
        return;
    }
    if (proxy_needs_event(x)) {
        proxy_collect(x, payload);
        return;
    }
    if (!x->try.first_token_us && (x->try.form != ANSWER_SSE || x->try.usage.n_token_events > 0)) {
        if (!x->try.target.is_third_party) learn_usage(x); /* it comes before its first event */
        on_first_token(x);
    }
    send_payload(x, payload);
}

static void relay(struct exchange *x) {
    struct conn_bytes in;
    struct str payload;
    size_t used;
    enum status st;

    if (!exchange_is_in(x, EXCHANGE_HEAD) && !read_head(x)) return;
    if (x->try.head.framing == HTTP_NO_BODY) {
        if (check_end(x)) finish(x);
        return;
    }
    while ((in = conn_input(&x->try.up->conn)).len > 0) {
        st = http_body_next(&x->try.body, in.ptr, in.len, &used, &payload, NULL);
        if (st != ST_OK && st != ST_AGAIN) {
            on_malformed(x);
            return;
        }
        if (payload.len) {
            bool is_all = x->try.form != ANSWER_SSE && !exchange_is_in(x, EXCHANGE_SENT) &&
                          (st == ST_OK || is_last_payload(x, in.ptr + used, in.len - used));

            if (!check_payload(x, payload, is_all)) return;
            take_payload(x, payload);
        }
        conn_consume(&x->try.up->conn, used);
        if (st == ST_OK) {
            if (check_end(x)) finish(x);
            return;
        }
        if (http_pending_bytes(x->req) > HIGH_WATER_BYTES) {
            conn_pause(&x->try.up->conn);
            return;
        }
    }
}

/* The connection was dead before the request was sent, or is no good for it. */
static void send_again(struct exchange *x) {
    loop_defer_cancel(&x->try.send);
    upstream_discard(x->try.up);
    x->try.up = NULL;
    proxy_attempt(x, true);
}

static void on_upstream_data(void *arg) {
    struct exchange *x = arg;

    if (loop_task_is_deferred(&x->try.send)) { /* bytes before the request: no answer to it */
        send_again(x);
    } else {
        relay(x);
        if (exchange_is_in(x, EXCHANGE_SENT)) http_raw_flush(x->req); /* comments may wait */
        proxy_report_first_token(x);
    }
}

static void on_upstream_closed(enum conn_end end, void *arg) {
    struct exchange *x = arg;
    struct error err = {0};

    if (end == CONN_TLS) {
        log_event(x->proxy->log, LOG_WARN, "worker_handshake_failed",
                  log_u64("worker", x->try.target.worker),
                  log_z("why", tls_failure(&x->try.up->conn)));
    }
    if (exchange_is_in(x, EXCHANGE_HEAD) && x->try.head.framing == HTTP_CLOSE_BODY &&
        end == CONN_EOF && http_body_eof(&x->try.body, &err) == ST_OK) {
        if (check_end(x)) finish(x);
    } else if (exchange_is_in(x, EXCHANGE_SENT)) {
        proxy_break_off(x, BROKEN_WORKER_LOST);
    } else if (end == CONN_NOMEM) { /* of the router: the worker is not blamed */
        proxy_attempt_failed(x, conn_end_name(end), RETRY_RESET, false, OUTCOME_UNKNOWN);
    } else if (x->try.up->is_reused && x->state == EXCHANGE_SENDING) {
        send_again(x);
    } else {
        /* One that closed a connection and cannot be reached now was probably lost. */
        bool was_up = end != CONN_REFUSED && end != CONN_TIMED_OUT && end != CONN_TLS;
        bool is_lost = was_up || x->try.n_connections > 1;

        proxy_attempt_failed(x, conn_end_name(end), is_lost ? RETRY_RESET : RETRY_CONNECT, is_lost,
                             was_up ? OUTCOME_FAILED : OUTCOME_UNREACHED);
    }
}

/* The request waited for this, so that a large body is not copied. */
static void on_upstream_connected(void *arg) {
    struct exchange *x = arg;

    loop_defer_last(x->proxy->loop, &x->try.send);
}

const struct upstream_user proxy_relay = {.on_data = on_upstream_data,
                                          .on_connected = on_upstream_connected,
                                          .on_closed = on_upstream_closed};

void proxy_on_client_drain(struct http_request *req) {
    struct exchange *x = req->user;

    if (!x->try.up || !conn_is_paused(&x->try.up->conn)) return;
    conn_resume(&x->try.up->conn);
    relay(x);
    proxy_report_first_token(x);
}
