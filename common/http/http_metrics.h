/* common/http/http_metrics.h - the metrics of an HTTP server, as rows for the tables of the
 * programs.
 *
 * A program puts HTTP_METRICS into its own table, so that the rows have consecutive ids, and gives
 * the first id to http_server_report. Names are public: add, alias, never rename. `port`: client or
 * admin. */
#ifndef COMMON_HTTP_HTTP_METRICS_H
#define COMMON_HTTP_HTTP_METRICS_H

#include "common/telemetry/metrics.h"

#define HTTP_METRICS(X)                                                                            \
    X(GAUGE, http_connections, "port", "Open connections to this server.")                         \
    X(COUNTER, http_connections_total, "port", "Connections accepted by this server.")             \
    X(COUNTER, http_closed_total, "port,reason",                                                   \
      "Connections closed by this server without an answer. idle: for too long between requests; " \
      "silent: never sent a byte; room: idle, closed for a new one at the limit of connections; "  \
      "stalled: the client read nothing of its answer.")                                           \
    X(COUNTER, http_refused_total, "port,reason",                                                  \
      "Requests that this server itself refused. malformed: not HTTP; too_large; denied: not "     \
      "permitted, refused before the body; head_timeout, body_timeout: came too slowly; "          \
      "body_memory: no memory for the body in time; body_slow: the body made no progress while "   \
      "others waited.")                                                                            \
    X(COUNTER, http_handshakes_failed_total, "port", "TLS handshakes that failed or timed out.")   \
    X(COUNTER, http_accept_pauses_total, "port,reason",                                            \
      "Times that accepting stopped because no idle connection could be closed: at the limit of "  \
      "connections, or without descriptors.")                                                      \
    X(COUNTER, http_body_waits_total, "port",                                                      \
      "Request bodies that waited for room in --max-body-memory.")                                 \
    X(GAUGE, http_body_bytes, "size",                                                              \
      "Memory that request bodies hold in this process: long ones (above 64 KiB), short ones.")    \
    X(GAUGE, http_body_limit_bytes, "", "Limit of the memory of all request bodies.")              \
    X(GAUGE, http_bodies_waiting, "", "Request bodies that wait for memory now.")

#define HTTP_METRIC_PLACE(kind, name, ...) HTTP_AT_##name,
enum http_metric_place { HTTP_METRICS(HTTP_METRIC_PLACE) HTTP_METRIC_COUNT };

struct body_budget;

/* Sets the gauges of the budget; when the page is made. `first`: the id of http_connections. */
void http_metrics_of_budget(struct metrics *m, uint32_t first, struct body_budget *budget);

#endif
