/* router/proxy/proxy_deadline.c - requests whose first token is due at some time.
 *
 *      x-slo-ttft-ms: 3000          milliseconds from the arrival of the request to its first token;
 *      x-incipit-deadline-ms: 3000  the smaller of the two. Retries of the router do not prolong it
 *
 * A request that would miss its deadline is refused at once with 429 and a time after which it is
 * likely to be accepted (deadline.h), and so is one that waits as soon as it cannot meet it. */
#include <stdio.h>

#include "common/http/http_server.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/proxy_internal.h"

#define DEADLINE_MS_MAX 86400000u

static const char *const names[] = {"x-slo-ttft-ms", "x-incipit-deadline-ms"};

static uint32_t count_headers(const struct http_request *req, struct str name) {
    uint32_t n = 0;

    for (uint16_t i = 0; i < req->n_headers; i++)
        n += str_eq_nocase(http_request_header_at(req, i).name, name);
    return n;
}

/* The value of one header; *ms stays as it is without it. */
static enum status read_ms(const struct exchange *x, const char *name, uint64_t *ms,
                           struct error *err) {
    struct str value = http_request_header(x->req, str_of(name));
    uint64_t n = 0;

    if (!value.ptr) return ST_OK;
    if (count_headers(x->req, str_of(name)) > 1) {
        return error_set_param(err, ST_INVALID, name,
                               "header %s appears more than once: send it "
                               "once",
                               name);
    }
    if (str_to_u64(value, &n) != ST_OK || n == 0 || n > DEADLINE_MS_MAX) {
        return error_set_param(
            err, ST_INVALID, name,
            "header %s is '%.*s': send whole milliseconds from 1 to %u, or leave "
            "it out",
            name, (int)MIN(value.len, 32), value.ptr, DEADLINE_MS_MAX);
    }
    *ms = *ms ? MIN(*ms, n) : n;
    return ST_OK;
}

enum status proxy_read_deadline(struct exchange *x, struct error *err) {
    enum status st = ST_OK;
    uint64_t ms = 0;

    if (!x->is_generation) return ST_OK;
    for (size_t i = 0; i < ARRAY_LEN(names) && st == ST_OK; i++)
        st = read_ms(x, names[i], &ms, err);
    if (st == ST_OK && ms) x->due.by_us = x->start_us + ms * 1000;
    return st;
}

uint64_t proxy_deadline_ms(const struct exchange *x) {
    return x->due.by_us ? (x->due.by_us - x->start_us) / 1000 : 0;
}

void proxy_note_late(struct exchange *x, uint64_t retry_us) {
    x->is_late = true;
    x->retry_after_us = MAX(retry_us, 1000000u);
    proxy_count_refusal(x, REFUSAL_DEADLINE);
}

enum status proxy_judge_deadline(struct exchange *x, struct error *err) {
    enum status st;

    proxy_note_claim(x);
    st = registry_judge(x->proxy->registry, x->scan.model, &x->rq, &x->due, err);
    if (st == ST_BUSY) proxy_note_late(x, x->due.retry_us);
    return st;
}

void proxy_refuse_late(struct exchange *x, uint64_t retry_us) {
    proxy_note_late(x, retry_us);
    PROXY_FAIL(x, ST_BUSY,
               "the request waited for a worker until its first token could not come within the "
               "%.1f s of its deadline: send it again in %.1f s, or with a later deadline",
               (double)proxy_deadline_ms(x) * 1e-3, (double)x->retry_after_us * 1e-6);
}

/* Of a client that left before its deadline nothing is known. */
static const char *outcome_of(const struct exchange *x, int code) {
    bool is_past = loop_now_us(x->proxy->loop) > x->due.by_us;

    if (x->is_late) return "refused";
    if (x->try.first_token_us) return x->try.first_token_us > x->due.by_us ? "missed" : "met";
    return code == 499 && !is_past ? "left" : "missed";
}

void proxy_count_deadline(struct exchange *x, int code) {
    if (!x->due.by_us) return;
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_deadlines_total, outcome_of(x, code)));
}
