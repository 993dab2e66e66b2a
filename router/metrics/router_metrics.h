/* router/metrics/router_metrics.h - what the router counts. Names are public: add, alias, never rename.
 *
 * Two tables. The first is of counters that live as long as the router. The second is read from the
 * registry for each worker whenever the page is asked for, so that a worker that has gone leaves
 * nothing behind, and nothing is kept up to date that nobody looks at. */
#ifndef ROUTER_METRICS_ROUTER_METRICS_H
#define ROUTER_METRICS_ROUTER_METRICS_H

#include "common/http/http_metrics.h"
#include "common/telemetry/metrics.h"

#define ROUTER_DECISION_BUCKETS 11
extern const double router_decision_buckets[ROUTER_DECISION_BUCKETS]; /* 500 ns to 1 ms */

#define ROUTER_METRICS(X)                                                                          \
    X(COUNTER, requests_total, "path,code",                                                        \
      "Requests proxied, by path and status code; 499: the client left.",                          \
      .aliases = "smg_http_responses_total,sgl_router_requests_total")                             \
    X(GAUGE, requests_in_flight, "", "Requests sent to a worker from here and not ended.",         \
      .aliases = "sgl_router_running_requests")                                                    \
    X(HISTOGRAM, ttft_seconds, "", "Request received to first token, as the router sees it.",      \
      METRIC_BUCKETS(metrics_ttft_buckets), .aliases = "smg_router_ttft_seconds")                  \
    X(HISTOGRAM, request_duration_seconds, "", "Request received to end of the answer.",           \
      METRIC_BUCKETS(metrics_latency_buckets),                                                     \
      .aliases = "smg_http_request_duration_seconds,sgl_router_request_duration_seconds")          \
    X(COUNTER, prompt_tokens_total, "", "Prompt tokens, as workers reported them.",                \
      .aliases = "vllm:input_tokens_total")                                                        \
    X(COUNTER, cached_tokens_total, "", "Prompt tokens found in a worker's cache, as reported.")   \
    X(COUNTER, predicted_cached_tokens_total, "", "The same, as the index predicted.")             \
    X(COUNTER, output_tokens_total, "",                                                            \
      "Tokens generated: as reported, or else one for each event of a stream.",                    \
      .aliases = "vllm:output_tokens_total")                                                       \
    X(COUNTER, prefix_blocks_total, "", "Prefix blocks of the prompts that were sent to workers.") \
    X(COUNTER, matched_prefix_blocks_total, "",                                                    \
      "Of these, blocks that the chosen worker held, as the index believed.")                      \
    X(COUNTER, prompts_hit_total, "", "Prompts sent to a worker that held some of their blocks.",  \
      .aliases = "sgl_router_cache_hits_total")                                                    \
    X(COUNTER, prompts_missed_total, "",                                                           \
      "Prompts sent to a worker that held none of their blocks.",                                  \
      .aliases = "sgl_router_cache_misses_total")                                                  \
    X(COUNTER, retries_total, "reason", "Attempts on another worker, by what the one before did.", \
      .aliases = "sgl_router_retries_total,smg_worker_retries_total")                              \
    X(COUNTER, retry_budget_exhausted_total, "outcome",                                            \
      "Requests that were not tried again at once because too many others were: they waited, "     \
      "were "                                                                                      \
      "given up, or the error that their worker answered was passed on.")                          \
    X(GAUGE, requests_waiting, "",                                                                 \
      "Requests that wait because every worker is at its limit or out of service.",                \
      .aliases = "smg_scheduler_queue_depth")                                                      \
    X(HISTOGRAM, queue_wait_seconds, "", "What those waited, served or not.",                      \
      METRIC_BUCKETS(metrics_latency_buckets), .aliases = "smg_scheduler_queue_wait_seconds")      \
    X(COUNTER, requests_refused_total, "limit",                                                    \
      "Requests refused before a worker was asked, by what refused them: an option, a key's own "  \
      "limit (key), a key that is missing or unknown, a body that cannot be read.",                \
      .aliases = "smg_http_rate_limit_total")                                                      \
    X(COUNTER, requests_forbidden_total, "why",                                                    \
      "Requests refused because they may not be forwarded: for their path, a field of their "      \
      "body, "                                                                                     \
      "an explanation that they ask for, or because they had passed this router before (loop).")   \
    X(COUNTER, routers_refused_total, "",                                                          \
      "Workers that turned out to be routers, this one or another, and are not used.")             \
    X(COUNTER, poison_suspected_total, "stage",                                                    \
      "Requests given up as what workers die of: found when they lost workers, or refused "        \
      "because the same client's same body had.")                                                  \
    X(COUNTER, streams_broken_total, "",                                                           \
      "Answers that a worker broke off after their first byte.")                                   \
    X(COUNTER, client_aborts_total, "", "Clients that left before the end of their answer.")       \
    X(GAUGE, workers, "state", "Workers, all and eligible.", .aliases = "smg_worker_pool_size")    \
    X(GAUGE, tls_certificate_expiry_timestamp_seconds, "side",                                     \
      "When the certificate shown to clients, or to workers, ends: seconds since 1970.")           \
    X(GAUGE, index_bytes, "",                                                                      \
      "Memory in use by the prefix index and the simulated LRUs. Resident is all that is "         \
      "reserved where that is 128 MiB or more.")                                                   \
    X(GAUGE, index_entries, "", "(block, worker) pairs in the prefix index.",                      \
      .aliases = "sgl_router_tree_size")                                                           \
    X(GAUGE, index_blocks, "", "Different blocks among them.")                                     \
    X(COUNTER, index_evictions_total, "",                                                          \
      "Pairs forgotten, coldest first: their worker is believed full, or the index is.")           \
    X(COUNTER, index_refused_total, "", "Pairs that found no room: all others were in use.")       \
    X(GAUGE, inflight, "model",                                                                    \
      "Requests of each model, sent to a worker from here and not ended.")                         \
    X(GAUGE, queue_depth, "model", "Requests of each model that wait here for a worker.")          \
    X(GAUGE, saturation, "model",                                                                  \
      "How full the workers of each model are, 0 to 1, and 1 while requests wait: scale on it, "   \
      "at 0.7.")                                                                                   \
    X(GAUGE, bytes_per_token, "model", "Prompt bytes to a token, as learned.")                     \
    X(HISTOGRAM, decision_seconds, "",                                                             \
      "Match, choice and account of a request, one in 64 measured.",                               \
      METRIC_BUCKETS(router_decision_buckets))                                                     \
    X(HISTOGRAM, loop_lag_seconds, "loop",                                                         \
      "How late an event loop's timers are: what everything on it waits. Of the loops that carry " \
      "requests, and of the one that controls.",                                                   \
      METRIC_BUCKETS(metrics_seconds_buckets))                                                     \
    X(HISTOGRAM, loop_turn_seconds, "loop",                                                        \
      "The longest turn of an event loop in each tenth of a second: what one callback made all "   \
      "others wait.",                                                                              \
      METRIC_BUCKETS(metrics_seconds_buckets))                                                     \
    X(COUNTER, lock_wait_seconds_total, "",                                                        \
      "Time that event loops have waited for the registry's lock.", .scale = 1e-9)                 \
    X(COUNTER, lock_contended_total, "", "How often they had to.")                                 \
    X(COUNTER, decision_log_dropped_total, "",                                                     \
      "Decisions that were not logged for want of room, in memory or on disk.")                    \
    X(COUNTER, log_lines_dropped_total, "",                                                        \
      "Log lines that were not written because whoever reads them is slow, or gone.")              \
    X(GAUGE, followed_workers, "",                                                                 \
      "Workers that tell, just now, what other routers have sent them.")                           \
    X(GAUGE, shared_requests_in_flight, "",                                                        \
      "Requests of other routers on these workers: with our own, the sum of the loads.")           \
    X(COUNTER, shared_events_total, "kind", "What workers told of requests, our own among them.")  \
    X(COUNTER, shared_gaps_total, "",                                                              \
      "Times that some of it was lost: too far behind, for too long without a connection.")        \
    X(HISTOGRAM, shared_lag_seconds, "",                                                           \
      "How much later than by the shortest way such an event came.")                               \
    X(GAUGE, redis_connected, "", "1 while --share-redis is written to and followed.")             \
    X(COUNTER, redis_events_total, "",                                                             \
      "What other routers told there of requests to workers that are not ours.")                   \
    X(COUNTER, redis_dropped_total, "", "Entries of ours that it did not take.")                   \
    X(COUNTER, worker_restarts_total, "", "Launched workers that were started again.")             \
    X(GAUGE, discovery_stale_seconds, "source",                                                    \
      "Since a source (kubernetes, dns) last knew the workers to be what it told; 0 while it "     \
      "does.")                                                                                     \
    X(GAUGE, discovery_workers, "source,state",                                                    \
      "Workers found: used, draining, and left out for their role or for want of a port or "       \
      "place.")                                                                                    \
    X(COUNTER, discovery_updates_total, "source",                                                  \
      "Times that a source told which workers it finds.")                                          \
    X(COUNTER, discovery_refused_total, "source",                                                  \
      "Objects and answers of a source that could not be used.")

/* Ejections of each worker have a label more, the reason: enum breaker_cause. */
#define ROUTER_EJECTIONS_NAME "worker_ejections_total"
#define ROUTER_EJECTIONS_HELP                                                                      \
    "Times that a worker was taken out of service for what its connections or answers did: "       \
    "unreachable, lost (broken off, silent, not HTTP), errors (5xx), empty (200 without an "       \
    "answer)."

/* kind, name, help, aliases, value. Each has the labels `worker`, its URL, and `model`; `v` is its
 * struct registry_view. A negative value is not known and not shown. */
#define ROUTER_WORKER_METRICS(X)                                                                   \
    X(GAUGE, worker_in_flight, "Requests in flight on each worker: L of the cost.",                \
      "smg_worker_requests_active,sgl_router_worker_load", v->in_flight)                           \
    X(GAUGE, worker_shared_in_flight, "Of these, requests that other routers sent.", "",           \
      v->n_mirrored)                                                                               \
    X(GAUGE, worker_followed, "1 while it is heard of those.", "", v->is_followed)                 \
    X(GAUGE, worker_pending, "Of these, requests without a first token.", "", v->n_pending)        \
    X(GAUGE, worker_eligible, "1 when the worker may be picked.",                                  \
      "smg_worker_health,sgl_router_worker_health", v->is_described && v->reasons == 0)            \
    X(COUNTER, worker_requests_total, "Requests sent to each worker.",                             \
      "smg_worker_selection_total,sgl_router_processed_requests_total", (double)v->n_sent)         \
    X(COUNTER, worker_failures_total, "Of these, requests that failed because of it.",             \
      "smg_worker_errors_total", (double)v->n_failed)                                              \
    X(GAUGE, worker_breaker_state, "0: closed. 1: open, ejected. 2: half open, on trial.",         \
      "smg_worker_cb_state,sgl_router_cb_state", v->breaker == BREAKER_TRYING ? 2 : v->breaker)    \
    X(GAUGE, worker_wait_seconds,                                                                  \
      "Predicted prefill of what was sent and has no first token: wait of the cost.", "",          \
      v->routing.wait_s)                                                                           \
    X(GAUGE, worker_memory_wait_seconds,                                                           \
      "Predicted wait for KV memory of a short request: mem of the cost.", "",                     \
      v->routing.memory_s)                                                                         \
    X(GAUGE, worker_resident_tokens, "KV tokens that what is in flight is expected to fill.", "",  \
      v->resident_tokens)                                                                          \
    X(GAUGE, worker_capacity_tokens, "KV tokens that the worker declares; 0: not said.", "",       \
      (double)v->info.n_blocks * v->info.block_size)                                               \
    X(GAUGE, worker_cache_tokens,                                                                  \
      "KV tokens that the worker declares to find again: on its device and in the tiers below.",   \
      "", (double)(v->info.n_blocks + wire_tier_blocks(&v->info)) * v->info.block_size)            \
    X(GAUGE, worker_capacity_factor,                                                               \
      "Factor on worker_cache_tokens in the router's books, learned from what was really cached.", \
      "", v->routing.capacity_factor)                                                              \
    X(GAUGE, worker_index_blocks, "Prefix blocks it is believed to hold, answers included.", "",   \
      (double)v->routing.n_held_blocks)                                                            \
    X(GAUGE, worker_engine_running, "Requests running, as the worker or its metrics page says.",   \
      "smg_engine_running_requests,vllm:num_requests_running",                                     \
      v->has_load ? v->load.running : (double)v->engine_running)                                   \
    X(GAUGE, worker_engine_waiting, "Requests waiting there, likewise.",                           \
      "smg_engine_waiting_requests,vllm:num_requests_waiting",                                     \
      v->has_load ? v->load.waiting : (double)v->engine_waiting)                                   \
    X(GAUGE, worker_engine_kv_usage, "Share of its KV cache in use, 0 to 1, likewise.",            \
      "smg_engine_token_usage",                                                                    \
      v->has_load && v->load.kv_total ? 1 - (double)v->load.kv_free / (double)v->load.kv_total     \
                                      : v->engine_kv_usage)

#define ROUTER_METRIC_ID(kind, name, ...) ROUTER_##name,
enum router_metric {
    ROUTER_METRICS(ROUTER_METRIC_ID) HTTP_METRICS(ROUTER_METRIC_ID) ROUTER_METRIC_COUNT
};

struct metrics *router_metrics_create(void);

#endif
