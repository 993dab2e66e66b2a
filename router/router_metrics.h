/* router/router_metrics.h - what the router counts. Names are public: add, alias, never rename. */
#ifndef ROUTER_ROUTER_METRICS_H
#define ROUTER_ROUTER_METRICS_H

#include "common/metrics.h"

struct registry;

#define ROUTER_METRICS(X)                                                                          \
    X(COUNTER, requests_total, "path,code",                                                        \
      "Requests proxied, by path and status code; 499: the client left.",                          \
      .aliases = "smg_http_responses_total")                                                       \
    X(GAUGE, requests_in_flight, "",                                                               \
      "Requests sent to a worker and not ended: the sum of the loads.")                            \
    X(HISTOGRAM, ttft_seconds, "", "Request received to first token, as the router sees it.",      \
      METRIC_BUCKETS(metrics_ttft_buckets), .aliases = "smg_router_ttft_seconds")                  \
    X(HISTOGRAM, request_duration_seconds, "", "Request received to end of the answer.",           \
      METRIC_BUCKETS(metrics_latency_buckets), .aliases = "smg_http_request_duration_seconds")     \
    X(COUNTER, prompt_tokens_total, "", "Prompt tokens, as workers reported them.")                \
    X(COUNTER, cached_tokens_total, "", "Prompt tokens found in a worker's cache, as reported.",   \
      .aliases = "sgl_router_cache_hits_total")                                                    \
    X(COUNTER, predicted_cached_tokens_total, "", "The same, as the index predicted.")             \
    X(COUNTER, retries_total, "reason", "Attempts on another worker, by what the one before did.", \
      .aliases = "sgl_router_retries_total,smg_worker_retries_total")                              \
    X(COUNTER, requests_refused_total, "limit",                                                    \
      "Requests refused with 429 or 503 because of a limit, by which.",                            \
      .aliases = "smg_http_rate_limit_total")                                                      \
    X(COUNTER, streams_broken_total, "",                                                           \
      "Answers that a worker broke off after their first byte.")                                   \
    X(COUNTER, client_aborts_total, "", "Clients that left before the end of their answer.")       \
    X(GAUGE, workers, "state", "Workers, all and eligible.", .aliases = "smg_worker_pool_size")    \
    X(GAUGE, worker_in_flight, "worker", "Requests in flight on each worker.",                     \
      .aliases = "smg_worker_requests_active", .max_children = 1024)                               \
    X(GAUGE, worker_eligible, "worker", "1 when the worker may be picked.",                        \
      .aliases = "smg_worker_health", .max_children = 1024)                                        \
    X(GAUGE, tls_certificate_expiry_timestamp_seconds, "side",                                     \
      "When the certificate shown to clients, or to workers, ends: seconds since 1970.")           \
    X(GAUGE, index_bytes, "", "Memory of the prefix index and the simulated LRUs.")                \
    X(GAUGE, index_entries, "", "(block, worker) pairs in the prefix index.",                      \
      .aliases = "sgl_router_tree_size")                                                           \
    X(COUNTER, worker_restarts_total, "", "Launched workers that were started again.")

#define ROUTER_METRIC_ID(kind, name, ...) ROUTER_##name,
enum router_metric { ROUTER_METRICS(ROUTER_METRIC_ID) ROUTER_METRIC_COUNT };

struct metrics *router_metrics_create(void);

/* Sets the gauges from the registry's state; call before writing the page. */
void router_metrics_collect(struct metrics *m, struct registry *registry);

#endif
