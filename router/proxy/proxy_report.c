/* router/proxy/proxy_report.c - the metrics of an exchange, its log line, and its decision.
 *
 * Every exchange passes here once, at its end. Each loop looks its parts of the counters up once
 * and then only adds; the log's own thread writes the line. Never prompts, never keys. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/decision_log.h"
#include "router/proxy/proxy_internal.h"

#define DECISION_LINE_MAX (256u * 1024)
#define STORED_LABEL      API_RESPONSES_PATH "/*"

/* Counts a request by path and code. Paths come from clients: unknown ones share a label. Each
 * label is composed once. */
static void count_request(struct proxy *p, struct str path, int code) {
    static const struct str known[PROXY_N_PATHS] = {{"/v1/chat/completions", 20},
                                                    {"/v1/completions", 15},
                                                    {API_MESSAGES_PATH, 12},
                                                    {API_RESPONSES_PATH, 13},
                                                    {API_COUNT_TOKENS_PATH, 25},
                                                    {"/generate", 9},
                                                    {"/v1/embeddings", 14},
                                                    {"/tokenize", 9},
                                                    {"/detokenize", 11},
                                                    {STORED_LABEL, sizeof(STORED_LABEL) - 1},
                                                    {"other", 5}};
    struct metric **counter;
    char text[16];
    size_t i = 0;

    while (i + 1 < PROXY_N_PATHS && !str_eq(path, known[i]))
        i++;
    assert(code >= 0 && code < PROXY_N_CODES);
    counter = &p->counts.requests[i][code];
    if (!*counter) {
        snprintf(text, sizeof(text), "%d", code);
        *counter = metric_part(p->metrics,
                               METRICS_GET(p->metrics, ROUTER_requests_total, known[i].ptr, text));
    }
    metric_inc(*counter);
}

/* Of the answered attempt. */
static void count_fetch(const struct exchange *x) {
    const struct route_feedback *f = &x->try.feedback;
    const struct fetch_plan *plan = &x->try.ticket.fetch;
    struct proxy *p = x->proxy;

    if (!(plan->fetch_tokens > 0)) return;
    metric_inc(p->counts.fetches);
    metric_add(p->counts.fetch_predicted, (uint64_t)plan->fetch_tokens);
    if (!f->restored_tokens) {
        metric_inc(p->counts.fetches_missed);
        return;
    }
    metric_add(p->counts.fetched_tokens, f->restored_tokens);
    metric_observe(p->counts.fetch_seconds, (double)f->restore_us * 1e-6);
}

static void count_tokens(const struct exchange *x) {
    struct proxy *p = x->proxy;
    const struct route_feedback *f = &x->try.feedback;
    const struct route_ticket *t = proxy_prefill_ticket(x);
    int64_t output_tokens = sse_usage_tokens(&x->try.usage);

    if (f->prompt_tokens > 0) metric_add(p->counts.prompt_tokens, (uint64_t)f->prompt_tokens);
    if (f->cached_tokens > 0) metric_add(p->counts.cached_tokens, (uint64_t)f->cached_tokens);
    if (f->has_below) metric_add(p->counts.below_tokens, (uint64_t)f->below_tokens);
    if (output_tokens > 0) metric_add(p->counts.output_tokens, (uint64_t)output_tokens);
    if (!x->try.first_token_us) return;
    count_fetch(x);
    metric_add(p->counts.predicted_tokens, (uint64_t)t->cached_tokens);
    metric_add(p->counts.predicted_below, (uint64_t)t->below_tokens);
    metric_add(p->counts.prefix_blocks, t->n_blocks);
    metric_add(p->counts.matched_blocks, t->matched_blocks);
    metric_inc(t->matched_blocks ? p->counts.prompts_hit : p->counts.prompts_missed);
}

const char *proxy_held_by(const struct exchange *x) {
    static const char *const names[] = {[HOLD_FULL] = "full",
                                        [HOLD_BACKLOG] = "backlog",
                                        [HOLD_BEHIND] = "behind",
                                        [HOLD_SESSION] = "session"};

    return x->held_position ? names[x->waiter.held.reason] : "";
}

const char *proxy_session_of(const struct exchange *x) {
    static const char *const names[] = {[SESSION_BEGUN] = "new",
                                        [SESSION_BY_ID] = "id",
                                        [SESSION_BY_END] = "end",
                                        [SESSION_BY_ANCHOR] = "anchor"};

    if (x->state == EXCHANGE_QUEUED) return ""; /* the turn is the registry's */
    return x->waiter.turn.is_open ? names[x->waiter.turn.how] : "";
}

static double seconds_since_start(const struct exchange *x, uint64_t then_us) {
    return (double)(then_us - x->start_us) * 1e-6;
}

static double ttft_s(const struct exchange *x) { /* 0: no token */
    return x->try.first_token_us ? seconds_since_start(x, x->try.first_token_us) : 0;
}

/* A line beyond this second's rate is not composed: it would cost more than all the counting. */
static bool has_room_in_log(struct proxy *p) {
    uint64_t second = loop_now_us(p->loop) / 1000000;

    if (!log_is_on(p->log, LOG_INFO)) return false;
    if (second != p->log_second) {
        p->log_second = second;
        p->n_logged = 0;
    }
    if (p->n_logged < p->config.log_rate) {
        p->n_logged++;
        return true;
    }
    p->n_unlogged++;
    return false;
}

/* One of --log-requests, and each failure. */
static bool is_logged(struct proxy *p, int code) {
    if (p->config.log_every == 0) return false;
    if (++p->n_reported % p->config.log_every != 0 && code < 500) return false;
    return has_room_in_log(p);
}

static void log_request(const struct exchange *x, int code, double duration_s) {
    struct str model = x->scan.model, tenant = x->tenant;
    bool was_sent = x->n_attempts > 0;

    if (!tenant.ptr || (x->key.key && !key_is_named(x->key.key))) tenant = STR("");
    log_event(x->proxy->log, LOG_INFO, "request", log_z("id", x->request_id), log_i64("code", code),
              log_str("path", x->req->path), log_str("model", model.ptr ? model : STR("")),
              log_str("tenant", tenant),
              log_i64("worker", was_sent ? (int64_t)x->try.target.worker : -1),
              log_i64("prefill_worker", proxy_is_handed(x) ? (int64_t)x->leg->target.worker : -1),
              log_u64("attempts", x->n_attempts), log_bool("stream", x->try.form == ANSWER_SSE),
              log_f64("duration_s", duration_s), log_f64("ttft_s", ttft_s(x)),
              log_f64("held_s", (double)x->waited_us * 1e-6), log_z("held_by", proxy_held_by(x)),
              log_u64("position", x->held_position), log_u64("deadline_ms", proxy_deadline_ms(x)),
              log_z("session", proxy_session_of(x)), log_u64("body_bytes", x->req->body.len),
              log_u64("answer_bytes", x->try.sent_bytes),
              log_i64("prompt_tokens", x->try.feedback.prompt_tokens),
              log_i64("cached_tokens", x->try.feedback.cached_tokens),
              log_f64("predicted_cached_tokens", was_sent ? x->try.ticket.cached_tokens : 0),
              log_u64("blocks", x->rq.n_blocks),
              log_u64("matched_blocks", was_sent ? x->try.ticket.matched_blocks : 0),
              log_i64("output_tokens", MAX(sse_usage_tokens(&x->try.usage), 0)),
              log_u64("skipped", x->proxy->n_unlogged));
    x->proxy->n_unlogged = 0;
}

void proxy_log_failure(const struct exchange *x, const char *reason) {
    log_event(x->proxy->log, LOG_WARN, "attempt_failed", log_z("id", x->request_id),
              log_u64("worker", x->try.target.worker), log_z("reason", reason));
}

static void log_decision(const struct exchange *x, int code, double duration_s) {
    struct proxy *p = x->proxy;
    struct str model = x->scan.model;

    decision_log_put(p->config.decisions,
                     &(struct decision){
                         .id = proxy_request_id(x),
                         .model = model.ptr ? model : STR(""),
                         .arrived_wall_us = clock_wall_us() - (uint64_t)(duration_s * 1e6),
                         .code = code,
                         .worker = x->try.target.worker,
                         .n_attempts = x->n_attempts,
                         .prefill_worker = proxy_is_handed(x) ? (int64_t)x->leg->target.worker : -1,
                         .pair = x->has_price ? &x->pair : NULL,
                         .rq = &x->rq,
                         .ticket = &x->try.ticket,
                         .why = &x->why,
                         .feedback = x->try.feedback,
                         .output_tokens = MAX(sse_usage_tokens(&x->try.usage), 0),
                         .ttft_s = ttft_s(x),
                         .duration_s = duration_s,
                     },
                     &p->line);
}

void proxy_explain(struct exchange *x) {
    struct proxy *p = x->proxy;

    if (!p->candidates) {
        p->candidates = mem_try(p->config.max_workers * sizeof(*p->candidates));
        if (!p->candidates) return;
    }
    explain(p->registry, x->scan.model, &x->rq, p->candidates, p->config.max_workers, &x->why);
}

void proxy_report(struct exchange *x, int code) {
    struct proxy *p = x->proxy;
    double duration_s = seconds_since_start(x, loop_now_us(p->loop));

    count_request(p, x->is_lookup ? STR(STORED_LABEL) : x->req->path, code);
    count_tokens(x);
    proxy_count_deadline(x, code);
    metric_observe(p->counts.duration, duration_s);
    if (x->try.first_token_us) metric_observe(p->counts.ttft, ttft_s(x));
    if (is_logged(p, code)) log_request(x, code, duration_s);
    if (p->config.decisions && x->n_attempts > 0 && !x->is_lookup)
        log_decision(x, code, duration_s);
}

void proxy_prepare_reports(struct proxy *p) {
#define BIND(field, name)                                                                          \
    p->counts.field = metric_part(p->metrics, metrics_at(p->metrics, ROUTER_##name));
    PROXY_METRICS(BIND)
    buf_init(&p->line, DECISION_LINE_MAX);
}
