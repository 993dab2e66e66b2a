/* router/metrics/router_metrics.h - what the router counts. Names are public: add, alias, never
 * rename.
 *
 * Two tables. The counters of the first live as long as the router. The second is computed from the
 * registry for each worker when the page is requested, so that a removed worker leaves nothing
 * behind. */
#ifndef ROUTER_METRICS_ROUTER_METRICS_H
#define ROUTER_METRICS_ROUTER_METRICS_H

#include "common/http/http_metrics.h"
#include "common/telemetry/metrics.h"

#define ROUTER_DECISION_BUCKETS 11
extern const double router_decision_buckets[ROUTER_DECISION_BUCKETS]; /* 500 ns to 1 ms */

#define ROUTER_METRICS(X)                                                                          \
    X(COUNTER, requests_total, "path,code",                                                        \
      "Requests proxied, by path and status code (499: the client disconnected).",                 \
      .aliases = "smg_http_responses_total,sgl_router_requests_total")                             \
    X(GAUGE, requests_in_flight, "", "Requests sent to workers by this router and not yet ended.", \
      .aliases = "sgl_router_running_requests")                                                    \
    X(GAUGE, holds, "", "Prefixes that clients hold through this router.")                         \
    X(GAUGE, held_bytes, "", "Bytes of KV that workers hold for these, copies counted.")           \
    X(GAUGE, held_byte_seconds, "", "Bytes that these hold, times the seconds of holding so far.") \
    X(GAUGE, holds_saved_seconds, "", "Seconds of prefill that hits of these saved so far.")       \
    X(HISTOGRAM, ttft_seconds, "",                                                                 \
      "Time from a received request to its first token, measured in the router.",                  \
      METRIC_BUCKETS(metrics_ttft_buckets), .aliases = "smg_router_ttft_seconds")                  \
    X(HISTOGRAM, request_duration_seconds, "",                                                     \
      "Time from a received request to the end of its answer.",                                    \
      METRIC_BUCKETS(metrics_latency_buckets),                                                     \
      .aliases = "smg_http_request_duration_seconds,sgl_router_request_duration_seconds")          \
    X(COUNTER, prompt_tokens_total, "", "Prompt tokens, as reported by workers.",                  \
      .aliases = "vllm:input_tokens_total")                                                        \
    X(COUNTER, cached_tokens_total, "",                                                            \
      "Prompt tokens found in a worker's cache, as reported by workers.")                          \
    X(COUNTER, predicted_cached_tokens_total, "",                                                  \
      "Prompt tokens that the prefix index expected in the chosen worker's cache.")                \
    X(COUNTER, cached_below_tokens_total, "",                                                      \
      "Cached prompt tokens from below the device, as reported by workers.")                       \
    X(COUNTER, predicted_below_tokens_total, "",                                                   \
      "Cached prompt tokens expected below the chosen worker's device.")                           \
    X(COUNTER, kv_fetches_total, "",                                                               \
      "Requests sent with the name of another worker to fetch KV from.")                           \
    X(COUNTER, kv_fetches_missed_total, "",                                                        \
      "Requests sent with the name of a worker to fetch KV from, and answered without fetched "    \
      "KV.")                                                                                       \
    X(COUNTER, kv_fetch_predicted_tokens_total, "",                                                \
      "Prompt tokens whose KV was expected from the worker that the request names.")               \
    X(COUNTER, kv_fetched_tokens_total, "",                                                        \
      "Prompt tokens whose KV was fetched from the worker that the request names, as reported.")   \
    X(HISTOGRAM, kv_fetch_seconds, "",                                                             \
      "Time to fetch the KV of one request from another worker, as reported.",                     \
      METRIC_BUCKETS(metrics_seconds_buckets))                                                     \
    X(COUNTER, output_tokens_total, "",                                                            \
      "Tokens generated, as reported by workers; without a report, one for each event of a "       \
      "stream.",                                                                                   \
      .aliases = "vllm:output_tokens_total")                                                       \
    X(COUNTER, prefix_blocks_total, "",                                                            \
      "Blocks (--prefix-block-bytes) of the prompts that were sent to workers.")                   \
    X(COUNTER, matched_prefix_blocks_total, "",                                                    \
      "Blocks of the prompts sent that the chosen worker held, by the prefix index.")              \
    X(COUNTER, prompts_hit_total, "",                                                              \
      "Prompts sent to a worker that held part of them, by the prefix index.",                     \
      .aliases = "sgl_router_cache_hits_total")                                                    \
    X(COUNTER, prompts_missed_total, "",                                                           \
      "Prompts sent to a worker that held no part of them, by the prefix index.",                  \
      .aliases = "sgl_router_cache_misses_total")                                                  \
    X(COUNTER, client_noise_total, "kind",                                                         \
      "Requests with text that a client changes each time, by kind: billing_header or "            \
      "total_tokens (--strip-client-noise).")                                                      \
    X(COUNTER, retries_total, "reason",                                                            \
      "Requests sent again to another worker, by the failure of the attempt before.",              \
      .aliases = "sgl_router_retries_total,smg_worker_retries_total")                              \
    X(COUNTER, retry_budget_exhausted_total, "outcome",                                            \
      "Requests not retried at once because the retry budget was exhausted, by outcome: waited, "  \
      "given_up, or passed_on (the error).")                                                       \
    X(COUNTER, prefill_choices_total, "choice",                                                    \
      "Requests for workers that can take prompts computed elsewhere, by choice: apart, together " \
      "(cheaper), or unfit (a request that cannot be split).")                                     \
    X(COUNTER, prefill_legs_total, "outcome",                                                      \
      "Prompts sent to a worker that prefills for another, by outcome: handed (over), failed "     \
      "(the decoding worker computed it, or the request was retried) or aborted (the request "     \
      "ended).")                                                                                   \
    X(COUNTER, prefill_unused_total, "",                                                           \
      "Prompts handed over by a vLLM worker which no answer used, because the client left or the " \
      "decoding worker failed. The worker keeps their KV until its own timeout.")                  \
    X(HISTOGRAM, prefill_leg_seconds, "", "Time of first legs that handed their prompt over.",     \
      METRIC_BUCKETS(metrics_ttft_buckets))                                                        \
    X(GAUGE, requests_waiting, "", "Requests waiting for their worker or their session.",          \
      .aliases = "smg_scheduler_queue_depth")                                                      \
    X(HISTOGRAM, queue_wait_seconds, "",                                                           \
      "Time that requests waited for a worker, also of requests that were then rejected.",         \
      METRIC_BUCKETS(metrics_latency_buckets), .aliases = "smg_scheduler_queue_wait_seconds")      \
    X(COUNTER, requests_held_total, "reason",                                                      \
      "Requests that began to wait in this router, by reason: backlog (--hold-ms), behind "        \
      "(others waited), full (every worker), or session.")                                         \
    X(COUNTER, deadlines_total, "outcome",                                                         \
      "Requests with a deadline for their first token (x-slo-ttft-ms), by outcome: met, missed, "  \
      "refused (429), or left (the client disconnected before it).")                               \
    X(COUNTER, stream_comments_total, "kind",                                                      \
      "Comments that this router added to streams, by kind: keepalive (--sse-keepalive-s) or "     \
      "position (in the queue).")                                                                  \
    X(COUNTER, requests_refused_total, "limit",                                                    \
      "Requests rejected before they reached a worker, by limit: an option, key (a limit of the "  \
      "API key), body and others.",                                                                \
      .aliases = "smg_http_rate_limit_total")                                                      \
    X(COUNTER, requests_forbidden_total, "why",                                                    \
      "Requests that must not be forwarded, by reason: path, body field, explanation, or loop "    \
      "(back to this router).")                                                                    \
    X(COUNTER, routers_refused_total, "",                                                          \
      "Workers rejected because they are routers, this one or another.")                           \
    X(COUNTER, poison_suspected_total, "stage",                                                    \
      "Requests aborted as suspected of killing workers, by stage: found, or refused (an equal "   \
      "body was found before).")                                                                   \
    X(COUNTER, streams_broken_total, "", "Answers that a worker cut off after their first byte.")  \
    X(COUNTER, client_aborts_total, "",                                                            \
      "Requests whose client disconnected before the end of the answer.")                          \
    X(GAUGE, workers, "state", "Workers by state: all, or eligible (ready for requests).",         \
      .aliases = "smg_worker_pool_size")                                                           \
    X(GAUGE, tls_certificate_expiry_timestamp_seconds, "side",                                     \
      "Expiry of the certificate shown to clients or to workers, in seconds since 1970.")          \
    X(GAUGE, index_bytes, "",                                                                      \
      "Memory in use by the prefix index and the simulated caches; from 128 MiB on, all reserved " \
      "memory is resident.")                                                                       \
    X(GAUGE, index_entries, "", "(block, worker) pairs in the prefix index.",                      \
      .aliases = "sgl_router_tree_size")                                                           \
    X(GAUGE, index_blocks, "",                                                                     \
      "Distinct prompt blocks in the prefix index, however many workers hold each.")               \
    X(COUNTER, index_evictions_total, "",                                                          \
      "(block, worker) pairs evicted from the prefix index because a simulated cache or the "      \
      "index was full.")                                                                           \
    X(COUNTER, index_refused_total, "",                                                            \
      "(block, worker) pairs not entered into the prefix index, which was full.")                  \
    X(GAUGE, inflight, "model", "Requests in flight from this router, by model.")                  \
    X(GAUGE, queue_depth, "model", "Requests waiting in this router for a worker, by model.")      \
    X(GAUGE, saturation, "model",                                                                  \
      "Load of a model's workers, 0 to 1, and half of the prefill seconds per worker that wait; "  \
      "1 while full workers or sessions are waited for. Keep it at 0.7.")                          \
    X(GAUGE, bytes_per_token, "model",                                                             \
      "Prompt bytes per token of a model, learned from the token counts that workers report.")     \
    X(GAUGE, sessions, "model,state",                                                              \
      "Sessions by state: active (of all routers), waiting until they may be, or resting "         \
      "(--session-admission).")                                                                    \
    X(GAUGE, session_tokens, "model,kind",                                                         \
      "Context tokens of active sessions, and the limit above which sessions wait; 0: none.")      \
    X(COUNTER, session_turns_total, "model,joined",                                                \
      "Requests by what found their session: id, end, anchor; new, or none.")                      \
    X(COUNTER, sessions_paused_total, "model,reason",                                              \
      "Active sessions that ceased to be: idle (another waited), gone, final, or excess (of "      \
      "their contexts over the limit).")                                                           \
    X(GAUGE, session_repeated_ratio, "model",                                                      \
      "Share of prompt tokens that a session's last turn had too, beside those that sessions "     \
      "have in common; below 0.5 no session waits.")                                               \
    X(HISTOGRAM, decision_seconds, "",                                                             \
      "Time to choose and account a worker; one request in 64 is measured.",                       \
      METRIC_BUCKETS(router_decision_buckets))                                                     \
    X(HISTOGRAM, loop_lag_seconds, "loop",                                                         \
      "Lateness of the timers of an event loop: proxy (requests) or control.",                     \
      METRIC_BUCKETS(metrics_seconds_buckets))                                                     \
    X(HISTOGRAM, loop_turn_seconds, "loop",                                                        \
      "Longest turn of an event loop in each tenth of a second.",                                  \
      METRIC_BUCKETS(metrics_seconds_buckets))                                                     \
    X(COUNTER, lock_wait_seconds_total, "",                                                        \
      "Time that event loops waited for the lock of the worker registry.", .scale = 1e-9)          \
    X(COUNTER, lock_contended_total, "",                                                           \
      "Times that an event loop had to wait for the lock of the worker registry.")                 \
    X(COUNTER, decision_log_dropped_total, "",                                                     \
      "Routing decisions missing in the decision log: buffer or disk full.")                       \
    X(COUNTER, log_lines_dropped_total, "",                                                        \
      "Log lines dropped because the reader of the log was slow or gone.")                         \
    X(GAUGE, followed_workers, "",                                                                 \
      "Workers whose stream of request events (sent, first token, ended) of all routers is "       \
      "connected.")                                                                                \
    X(GAUGE, shared_requests_in_flight, "",                                                        \
      "Requests in flight on this router's workers that were sent by other routers.")              \
    X(COUNTER, shared_events_total, "kind",                                                        \
      "Request events received from workers, by kind: accepted, first (token), ended, load, "      \
      "cleared (the cache).")                                                                      \
    X(COUNTER, shared_gaps_total, "",                                                              \
      "Gaps in the request events of a worker: read too late, or disconnected for too long.")      \
    X(HISTOGRAM, shared_lag_seconds, "",                                                           \
      "Delay of request events received from workers, beyond the delay of the fastest event.")     \
    X(GAUGE, kv_event_streams, "", "Connected streams of KV events.")                              \
    X(GAUGE, kv_event_bytes, "", "Memory of blocks in KV events (--kv-events-memory).")            \
    X(COUNTER, kv_events_total, "kind",                                                            \
      "KV events by kind: stored, removed, cleared, ignored; of their streams: gap, lost "         \
      "(without replay), restart, refused (no room).")                                             \
    X(GAUGE, redis_connected, "", "1 while the stream at --share-redis is written to and read.")   \
    X(COUNTER, redis_events_total, "",                                                             \
      "Request events received from other routers through --share-redis.")                         \
    X(COUNTER, redis_dropped_total, "",                                                            \
      "Request events of this router that were not written to --share-redis.")                     \
    X(COUNTER, worker_restarts_total, "", "Restarts of launched workers.")                         \
    X(GAUGE, discovery_stale_seconds, "source",                                                    \
      "Time since a source (kubernetes, dns) last confirmed its set of workers; 0 while it "       \
      "answers.")                                                                                  \
    X(GAUGE, discovery_workers, "source,state",                                                    \
      "Workers found by a source (kubernetes, dns), by state: used, draining, or left_out.")       \
    X(COUNTER, discovery_updates_total, "source", "Updates of the set of workers, by source.")     \
    X(COUNTER, discovery_refused_total, "source",                                                  \
      "Invalid Kubernetes objects and failed answers of a source of workers (kubernetes, dns).")

/* Ejections of each worker have one more label, the reason: enum breaker_cause. */
#define ROUTER_EJECTIONS_NAME "worker_ejections_total"
#define ROUTER_EJECTIONS_HELP                                                                      \
    "Times that a worker was ejected (taken out of service), by reason: unreachable, lost "        \
    "(connection), errors (5xx), empty (200 without an answer)."

/* kind, name, help, aliases, value. Each has the labels `worker`, its URL, and `model`; `v` is its
 * struct registry_view. A negative value is unknown and not shown. */
#define ROUTER_WORKER_METRICS(X)                                                                   \
    X(GAUGE, worker_in_flight, "Requests in flight on each worker.",                               \
      "smg_worker_requests_active,sgl_router_worker_load", v->in_flight)                           \
    X(GAUGE, worker_shared_in_flight,                                                              \
                                                                                                   \
      "Requests in flight on each worker that were sent by other routers.", "", v->n_remote)       \
    X(GAUGE, worker_followed,                                                                      \
      "1 while the worker's stream of request events (sent, first token, ended) is connected.",    \
      "", v->is_followed)                                                                          \
    X(GAUGE, worker_pending, "Requests in flight on each worker that have no first token yet.",    \
      "", v->n_pending)                                                                            \
    X(GAUGE, worker_eligible, "1 while the worker is ready for new requests.",                     \
      "smg_worker_health,sgl_router_worker_health", v->is_described && v->reasons == 0)            \
    X(COUNTER, worker_requests_total, "Requests sent to each worker.",                             \
      "smg_worker_selection_total,sgl_router_processed_requests_total", (double)v->n_sent)         \
    X(COUNTER, worker_failures_total,                                                              \
      "Requests sent to each worker that failed because of the worker.",                           \
      "smg_worker_errors_total", (double)v->n_failed)                                              \
    X(GAUGE, worker_breaker_state,                                                                 \
      "Circuit breaker of the worker: 0 closed, 1 open (ejected), 2 half open (on trial).",        \
      "smg_worker_cb_state,sgl_router_cb_state", v->breaker == BREAKER_TRYING ? 2 : v->breaker)    \
    X(GAUGE, worker_wait_seconds,                                                                  \
                                                                                                   \
      "Predicted prefill time of requests on the worker without a first token (wait in the "       \
      "routing cost).",                                                                            \
      "", v->routing.wait_s)                                                                       \
    X(GAUGE, worker_memory_wait_seconds,                                                           \
                                                                                                   \
      "Predicted wait for KV memory on the worker (mem in the routing cost).", "",                 \
      v->routing.memory_s)                                                                         \
    X(GAUGE, worker_resident_tokens,                                                               \
                                                                                                   \
      "Tokens of KV cache that requests in flight on the worker are expected to fill.", "",        \
      v->resident_tokens)                                                                          \
    X(GAUGE, worker_capacity_tokens,                                                               \
                                                                                                   \
      "Tokens that fit in the KV cache on the worker's device; 0: not reported.", "",              \
      (double)v->info.n_blocks * v->info.block_size)                                               \
    X(GAUGE, worker_cache_tokens,                                                                  \
                                                                                                   \
      "Tokens that fit in the KV cache of the worker, lower tiers (memory, disk) included.", "",   \
      (double)(v->info.n_blocks + wire_tier_blocks(&v->info)) * v->info.block_size)                \
    X(GAUGE, worker_capacity_factor,                                                               \
                                                                                                   \
      "Factor on incipit_worker_capacity_tokens that corrects the size of the worker's cache, "    \
      "learned from reported cache hits.",                                                         \
      "", v->routing.capacity_factor)                                                              \
    X(GAUGE, worker_below_factor,                                                                  \
                                                                                                   \
      "Learned factor on the worker's memory below its device.", "", v->routing.below_factor)      \
    X(GAUGE, worker_restore_tokens_per_second,                                                     \
                                                                                                   \
      "Tokens per second that the worker restores from below its device; 0: not reported.", "",    \
      wire_restore_tokens_per_s(&v->info))                                                         \
    X(GAUGE, worker_prefill_tokens_per_second,                                                     \
                                                                                                   \
      "Prefill speed of the worker in tokens per second, as it reports, corrected by what first "  \
      "tokens show.",                                                                              \
      "", v->routing.tokens_per_s)                                                                 \
    X(GAUGE, worker_kv_event_blocks,                                                               \
                                                                                                   \
      "Blocks on the worker's device, by its KV events.", "",                                      \
      v->kv.is_followed ? (double)v->kv.n_blocks[0] : -1)                                          \
    X(GAUGE, worker_index_blocks,                                                                  \
                                                                                                   \
      "Blocks that the worker holds, by the prefix index.", "", (double)v->routing.n_held_blocks)  \
    X(GAUGE, worker_index_below_blocks,                                                            \
                                                                                                   \
      "Blocks that the worker holds below its device alone, by the prefix index.", "",             \
      (double)v->routing.n_below_blocks)                                                           \
    X(GAUGE, worker_engine_running,                                                                \
                                                                                                   \
      "Requests running on the worker, as it reports.",                                            \
      "smg_engine_running_requests,vllm:num_requests_running",                                     \
      v->has_load ? v->load.running : (double)v->engine_running)                                   \
    X(GAUGE, worker_engine_waiting,                                                                \
                                                                                                   \
      "Requests waiting on the worker, as it reports.",                                            \
      "smg_engine_waiting_requests,vllm:num_requests_waiting",                                     \
      v->has_load ? v->load.waiting : (double)v->engine_waiting)                                   \
    X(GAUGE, worker_engine_kv_usage,                                                               \
                                                                                                   \
      "Share of the worker's KV cache in use, 0 to 1.", "smg_engine_token_usage",                  \
      v->has_load && v->load.kv_total ? 1 - (double)v->load.kv_free / (double)v->load.kv_total     \
                                      : v->engine_kv_usage)

#define ROUTER_METRIC_ID(kind, name, ...) ROUTER_##name,
enum router_metric {
    ROUTER_METRICS(ROUTER_METRIC_ID) HTTP_METRICS(ROUTER_METRIC_ID) ROUTER_METRIC_COUNT
};

struct metrics *router_metrics_create(void);

#endif
