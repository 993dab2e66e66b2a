/* worker/metrics/worker_metrics.h - what the worker counts, under the names that dashboards of this field
 * already know, plus our own. Names are public: add, alias, never rename. */
#ifndef WORKER_METRICS_WORKER_METRICS_H
#define WORKER_METRICS_WORKER_METRICS_H

#include "common/http/http_metrics.h"
#include "common/telemetry/metrics.h"
#include "worker/kv/block/block_ages.h"

struct engine;

#define WORKER_METRICS(X)                                                                          \
    X(GAUGE, num_requests_running, "", "Requests in the running batch.")                           \
    X(GAUGE, num_requests_waiting, "", "Requests waiting to run.")                                 \
    X(GAUGE, kv_cache_usage_perc, "",                                                              \
      "Share of KV blocks in use, 0 to 1; cached blocks without a user count as free.",            \
      .aliases = "vllm:gpu_cache_usage_perc")                                                      \
    X(GAUGE, cache_config_info, "block_size,num_gpu_blocks,enable_prefix_caching",                 \
      "Configuration of the KV cache; always 1.")                                                  \
    X(COUNTER, prefix_cache_queries_total, "", "Prompt tokens looked up in the prefix cache.",     \
      .aliases = "vllm:gpu_prefix_cache_queries_total")                                            \
    X(COUNTER, prefix_cache_hits_total, "", "Prompt tokens found in the prefix cache.",            \
      .aliases = "vllm:gpu_prefix_cache_hits_total")                                               \
    X(COUNTER, external_prefix_cache_queries_total, "",                                            \
      "Prompt tokens missing in the device's cache and looked up in host memory.")                 \
    X(COUNTER, external_prefix_cache_hits_total, "", "Prompt tokens found in host memory.")        \
    X(GAUGE, num_requests_swapped, "", "Waiting requests with their KV in host memory.")           \
    X(COUNTER, num_preemptions_total, "", "Times that a running request was preempted.")           \
    X(COUNTER, prompt_tokens_total, "",                                                            \
      "Prompt tokens of admitted requests, cached ones included.")                                 \
    X(COUNTER, prompt_tokens_cached_total, "",                                                     \
      "Prompt tokens of admitted requests found in the cache.")                                    \
    X(COUNTER, generation_tokens_total, "", "Tokens generated.")                                   \
    X(COUNTER, request_success_total, "finished_reason", "Requests ended, by reason.")             \
    X(HISTOGRAM, time_to_first_token_seconds, "",                                                  \
      "Time from the arrival of a request to its first token.",                                    \
      METRIC_BUCKETS(metrics_ttft_buckets))                                                        \
    X(HISTOGRAM, inter_token_latency_seconds, "",                                                  \
      "Time between two tokens of a request, each gap.", METRIC_BUCKETS(metrics_itl_buckets),      \
      .aliases = "vllm:time_per_output_token_seconds")                                             \
    X(HISTOGRAM, request_time_per_output_token_seconds, "",                                        \
      "Mean time between the tokens of a request.", METRIC_BUCKETS(metrics_itl_buckets))           \
    X(HISTOGRAM, e2e_request_latency_seconds, "",                                                  \
      "Time from the arrival of a request to its end.", METRIC_BUCKETS(metrics_latency_buckets))   \
    X(HISTOGRAM, request_queue_time_seconds, "",                                                   \
      "Time from the arrival of a request until it is first scheduled.",                           \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_prefill_time_seconds, "",                                                 \
      "Time from the first schedule of a request to its first token.",                             \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_decode_time_seconds, "",                                                  \
      "Time from the first to the last token of a request.",                                       \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_inference_time_seconds, "",                                               \
      "Time from the first schedule of a request to its last token.",                              \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_params_n, "", "Samples per prompt that a call asks for.",                 \
      METRIC_BUCKETS(worker_n_buckets))                                                            \
    X(HISTOGRAM, request_params_max_tokens, "", "Most tokens that a call allows each sample.",     \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_prompt_tokens, "", "Prompt tokens of a request.",                         \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_prefill_kv_computed_tokens, "",                                           \
      "Prompt tokens of a request that were computed, not found in the cache.",                    \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_generation_tokens, "", "Tokens generated for a request.",                 \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_max_num_generation_tokens, "",                                            \
      "Most tokens that a request may generate.", METRIC_BUCKETS(metrics_token_buckets))           \
    X(HISTOGRAM, iteration_tokens_total, "", "Tokens computed in one step.",                       \
      METRIC_BUCKETS(worker_step_buckets))                                                         \
    X(HISTOGRAM, kv_block_lifetime_seconds, "",                                                    \
      "Time from the allocation of a KV block to its eviction, of a sample (--kv-cache-metrics).", \
      METRIC_BUCKETS(worker_age_buckets))                                                          \
    X(HISTOGRAM, kv_block_idle_before_evict_seconds, "",                                           \
      "Time from the last use of a KV block to its eviction, of a sample (--kv-cache-metrics).",   \
      METRIC_BUCKETS(worker_age_buckets))                                                          \
    X(HISTOGRAM, kv_block_reuse_gap_seconds, "",                                                   \
      "Time between two hits of a KV block, of a sample (--kv-cache-metrics).",                    \
      METRIC_BUCKETS(worker_age_buckets))

/* Our own, named incipit_... */
#define WORKER_OWN_METRICS(X)                                                                      \
    X(GAUGE, kv_waste_ratio, "",                                                                   \
      "Share of the token slots in KV blocks in use that hold no token: the ends of last blocks.") \
    X(COUNTER, prefix_miss_total, "cause",                                                         \
      "Requests by the reason why no more of their prompt was found in the cache; none: all was "  \
      "found.")                                                                                    \
    X(GAUGE, kv_host_blocks, "state",                                                              \
      "Blocks of host memory for KV: held by swapped sequences, cached (a block may be both), "    \
      "free.")                                                                                     \
    X(COUNTER, swap_outs_total, "", "Preemptions that kept the KV in host memory.")                \
    X(COUNTER, forks_total, "", "Samples and beams that share the blocks of another sequence.")    \
    X(COUNTER, kv_moved_blocks_total, "direction", "Blocks copied out to host memory, or in.")     \
    X(COUNTER, requests_denied_total, "",                                                          \
      "Requests answered 401 for lack of a key of --api-key or --api-key-file.")                   \
    X(COUNTER, request_events_total, "", "Request events published for routers.")                  \
    X(COUNTER, request_events_sent_bytes_total, "",                                                \
      "Bytes of request events sent to all subscribers.")                                          \
    X(COUNTER, request_events_gaps_total, "",                                                      \
      "Subscribers of request events that started over because events were overwritten or the "    \
      "worker had restarted.")                                                                     \
    X(GAUGE, request_events_kept_bytes, "", "Bytes of request events that can be replayed.")       \
    X(GAUGE, request_events_subscribers, "",                                                       \
      "Open streams of request events, one for each router.")                                      \
    X(GAUGE, tokenizer_queue_texts, "", "Texts that wait for a tokenizer thread.")                 \
    X(GAUGE, tokenizer_queue_bytes, "", "Bytes of the texts that wait for a tokenizer thread.")    \
    X(HISTOGRAM, tokenizer_wait_seconds, "",                                                       \
      "Time that a text waited for a tokenizer thread; texts of at most 4 KiB do not wait.",       \
      METRIC_BUCKETS(metrics_ttft_buckets))                                                        \
    X(COUNTER, tokenizer_slices_total, "",                                                         \
      "Slices of long texts tokenized; after each, shorter texts may go first.")                   \
    X(COUNTER, tokenizer_overtakes_total, "", "Texts tokenized in the middle of a longer one.")    \
    X(COUNTER, tokenizer_refused_total, "reason",                                                  \
      "Texts refused: length, too many bytes for the model's length; tokens, too many tokens for " \
      "it; queue, no room in --tokenizer-queue-bytes.")                                            \
    X(GAUGE, backend_info, "backend,device,path,uuid",                                             \
      "Backend, device, instruction path and GPU UUID that compute; always 1.")                    \
    X(GAUGE, steps_in_flight, "", "Steps at the device: one runs, one may wait behind it.")        \
    X(HISTOGRAM, step_host_seconds, "",                                                            \
      "Time of the engine's thread for a step: schedule, arrays, outputs. An asynchronous device " \
      "computes meanwhile.",                                                                       \
      METRIC_BUCKETS(worker_step_time_buckets))                                                    \
    X(HISTOGRAM, step_device_seconds, "", "Time of the device for a step.",                        \
      METRIC_BUCKETS(worker_step_time_buckets))

#define WORKER_METRIC_ID(kind, name, ...) WORKER_##name,
enum worker_metric {
    WORKER_METRICS(WORKER_METRIC_ID) WORKER_OWN_METRICS(WORKER_METRIC_ID)
        HTTP_METRICS(WORKER_METRIC_ID) WORKER_METRIC_COUNT
};

const struct metric_def *worker_metrics_rows(uint32_t *n); /* the table, for a page about it */

struct metrics *worker_metrics_create(const char *model_name);

/* Brings the page up to the engine's state; call before metrics_write. */
void worker_metrics_collect(struct metrics *m, struct engine *engine);

/* The info metrics, once: what computes, and what the cache was configured to. */
void worker_metrics_describe(struct metrics *m, const struct engine *engine, bool is_caching);

/* What one finished request adds. Times are clock_now_us, 0 for what never came. */
struct worker_request_times {
    uint64_t arrival_us, scheduled_us, first_token_us, finished_us;
    uint32_t prompt_tokens, cached_tokens, output_tokens, max_tokens;
};
void worker_metrics_observe(struct metrics *m, const struct worker_request_times *t);

/* Observes a block's age at a reuse or an eviction; `metrics` is the registry. Any thread. */
void worker_metrics_on_block_age(void *metrics, enum block_age age, uint64_t us);

/* What one call adds, whatever the number of its prompts. */
void worker_metrics_observe_call(struct metrics *m, uint32_t n, uint32_t max_tokens);

/* A text has come back from the tokenizer's queue, where it was put at submitted_us (0: it was not). */
void worker_metrics_observe_text(struct metrics *m, uint64_t submitted_us, uint64_t waited_us);

struct text_thread;
void worker_metrics_collect_text(struct metrics *m, struct text_thread *t);

#endif
