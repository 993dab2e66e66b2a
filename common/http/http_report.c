/* common/http/http_report.c - what the server counts and what it writes to the log.
 *
 * Each refusal is counted by its reason. A reason has one line a second at most, with the number of
 * refusals since its last line, so that an attack is visible and does not fill the log. */
#include <stdio.h>

#include "common/http/body_budget.h"
#include "common/http/http_metrics.h"
#include "common/http/http_server_internal.h"
#include "common/telemetry/log.h"

#define LINE_EVERY_US 1000000u

static const char *const refusal_names[HTTP_N_REFUSALS] = {
    [HTTP_MALFORMED] = "malformed",
    [HTTP_TOO_LARGE] = "too_large",
    [HTTP_DENIED] = "denied",
    [HTTP_HEAD_TIMEOUT] = "head_timeout",
    [HTTP_BODY_TIMEOUT] = "body_timeout",
    [HTTP_BODY_MEMORY] = "body_memory",
    [HTTP_BODY_SLOW] = "body_slow",
};

static const char *const closing_names[HTTP_N_CLOSINGS] = {
    [HTTP_CLOSED_IDLE] = "idle",
    [HTTP_CLOSED_SILENT] = "silent",
    [HTTP_CLOSED_ROOM] = "room",
    [HTTP_CLOSED_STALLED] = "stalled",
};

static const char *const pause_names[HTTP_N_PAUSES] = {
    [HTTP_PAUSE_CONNECTIONS] = "connections",
    [HTTP_PAUSE_DESCRIPTORS] = "descriptors",
};

/* This loop's part, which no other thread writes to. */
static struct metric *part(const struct http_report *r, uint32_t place, const char *reason) {
    const char *const values[] = {r->port, reason};

    return metric_part(r->metrics,
                       metrics_get(r->metrics, r->first + place, values, reason ? 2 : 1));
}

void http_server_report(struct http_server *server, const struct http_report *report) {
    struct server_report *to = &server->report;
    const char *const port[] = {report->port};

    to->log = report->log;
    to->port = report->port;
    if (!report->metrics) return;
    to->open = metrics_get(report->metrics, report->first + HTTP_AT_http_connections, port, 1);
    to->accepted = part(report, HTTP_AT_http_connections_total, NULL);
    to->handshakes = part(report, HTTP_AT_http_handshakes_failed_total, NULL);
    to->waits = part(report, HTTP_AT_http_body_waits_total, NULL);
    for (int i = 0; i < HTTP_N_REFUSALS; i++)
        to->refusals[i].metric = part(report, HTTP_AT_http_refused_total, refusal_names[i]);
    for (int i = 0; i < HTTP_N_CLOSINGS; i++)
        to->closings[i].metric = part(report, HTTP_AT_http_closed_total, closing_names[i]);
    for (int i = 0; i < HTTP_N_PAUSES; i++)
        to->pauses[i].metric = part(report, HTTP_AT_http_accept_pauses_total, pause_names[i]);
}

/* Whether it is time for a line; *n is what it is about. */
static bool is_due(struct http_server *server, struct server_count *c, uint64_t *n) {
    uint64_t now_us = loop_now_us(server->loop);

    if (c->metric) metric_inc(c->metric);
    c->n_unwritten++;
    if (!server->report.log || (c->line_us && now_us - c->line_us < LINE_EVERY_US)) return false;
    *n = c->n_unwritten;
    c->n_unwritten = 0;
    c->line_us = now_us;
    return true;
}

void report_refused(struct http_server *server, enum http_refusal why, const struct peer *p,
                    const struct error *err) {
    const struct server_report *r = &server->report;
    uint64_t n;

    if (!is_due(server, &server->report.refusals[why], &n)) return;
    log_event(r->log, LOG_WARN, "http_refused", log_z("port", r->port),
              log_z("reason", refusal_names[why]), log_u64("count", n),
              log_str("client", (struct str){p->client, p->client_len}),
              log_z("why", err ? err->message : ""));
}

void report_closed(struct http_server *server, enum http_closing why, const struct peer *p) {
    const struct server_report *r = &server->report;
    uint64_t n;

    if (!is_due(server, &server->report.closings[why], &n)) return;
    if (why == HTTP_CLOSED_IDLE) return; /* as is usual */
    log_event(r->log, why == HTTP_CLOSED_ROOM ? LOG_WARN : LOG_INFO, "http_closed",
              log_z("port", r->port), log_z("reason", closing_names[why]), log_u64("count", n),
              log_str("client", (struct str){p->client, p->client_len}),
              log_u64("open", server->stats.open_connections),
              log_u64("max_connections", server->limits.max_connections));
}

void report_pause(struct http_server *server, enum http_pause why) {
    const struct server_report *r = &server->report;
    uint64_t n;

    if (!is_due(server, &server->report.pauses[why], &n)) return;
    log_event(r->log, LOG_WARN, "http_accept_paused", log_z("port", r->port),
              log_z("reason", pause_names[why]), log_u64("count", n),
              log_u64("open", server->stats.open_connections),
              log_u64("max_connections", server->limits.max_connections),
              log_z("why", why == HTTP_PAUSE_CONNECTIONS
                               ? "each connection has a request in flight: new ones wait to be "
                                 "accepted; raise --max-connections or ulimit -n"
                               : "no descriptor is left: new connections wait to be accepted; "
                                 "raise ulimit -n"));
}

void report_opened(struct http_server *server) {
    server->stats.connections_total++;
    server->stats.open_connections++;
    if (!server->report.open) return;
    metric_shift(server->report.open, 1);
    metric_inc(server->report.accepted);
}

void report_gone(struct http_server *server) {
    server->stats.open_connections--;
    if (server->report.open) metric_shift(server->report.open, -1);
}

void report_handshake_failed(struct http_server *server) {
    server->stats.handshakes_failed_total++;
    if (server->report.handshakes) metric_inc(server->report.handshakes);
}

void report_wait(struct http_server *server) {
    if (server->report.waits) metric_inc(server->report.waits);
}

void http_metrics_of_budget(struct metrics *m, uint32_t first, struct body_budget *budget) {
    struct body_budget_stats s = body_budget_stats(budget);

    metric_set(METRICS_GET(m, first + HTTP_AT_http_body_bytes, "long"), (double)s.large_bytes);
    metric_set(METRICS_GET(m, first + HTTP_AT_http_body_bytes, "short"), (double)s.small_bytes);
    metric_set(metrics_at(m, first + HTTP_AT_http_body_limit_bytes), (double)s.total_bytes);
    metric_set(metrics_at(m, first + HTTP_AT_http_bodies_waiting), s.n_waiting);
}
