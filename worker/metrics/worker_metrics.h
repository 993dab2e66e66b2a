/* worker/metrics/worker_metrics.h - the worker's metrics, under vLLM's names where it has one, else
 * incipit_... Names are public: add, alias, never rename. */
#ifndef WORKER_METRICS_WORKER_METRICS_H
#define WORKER_METRICS_WORKER_METRICS_H

#include "common/http/http_metrics.h"
#include "common/telemetry/metrics.h"
#include "worker/kv/block/block_ages.h"

struct engine;

#define WORKER_METRICS(X)                                                                          \
    X(GAUGE, num_requests_running, "", "Requests in the running batch.")                           \
    X(GAUGE, num_requests_waiting, "", "Requests waiting to be scheduled.")                        \
    X(GAUGE, kv_cache_usage_perc, "",                                                              \
      "Share of KV blocks in use, 0 to 1; cached blocks without a user count as free.",            \
      .aliases = "vllm:gpu_cache_usage_perc")                                                      \
    X(GAUGE, cache_config_info, "block_size,cache_dtype,num_gpu_blocks,enable_prefix_caching",     \
      "Configuration of the KV cache in labels; always 1.")                                        \
    X(COUNTER, prefix_cache_queries_total, "", "Prompt tokens looked up in the prefix cache.",     \
      .aliases = "vllm:gpu_prefix_cache_queries_total")                                            \
    X(COUNTER, prefix_cache_hits_total, "", "Prompt tokens found in the prefix cache.",            \
      .aliases = "vllm:gpu_prefix_cache_hits_total")                                               \
    X(COUNTER, external_prefix_cache_queries_total, "",                                            \
      "Prompt tokens looked up in KV blocks offloaded to host memory, after a miss in the "        \
      "device's prefix cache.")                                                                    \
    X(COUNTER, external_prefix_cache_hits_total, "",                                               \
      "Prompt tokens found in KV blocks offloaded to host memory.")                                \
    X(GAUGE, num_requests_swapped, "",                                                             \
      "Preempted requests that wait with their KV blocks in host memory.")                         \
    X(COUNTER, num_preemptions_total, "",                                                          \
      "Times that a running request was stopped to free its KV blocks.")                           \
    X(COUNTER, prompt_tokens_total, "",                                                            \
      "Prompt tokens of admitted requests, cached ones included.")                                 \
    X(COUNTER, prompt_tokens_cached_total, "",                                                     \
      "Prompt tokens of admitted requests found in the prefix cache.")                             \
    X(COUNTER, generation_tokens_total, "", "Tokens generated.")                                   \
    X(COUNTER, request_success_total, "finished_reason",                                           \
      "Finished requests by the reason why they finished.")                                        \
    X(HISTOGRAM, time_to_first_token_seconds, "",                                                  \
      "Time from the arrival of a request to its first token.",                                    \
      METRIC_BUCKETS(metrics_ttft_buckets))                                                        \
    X(HISTOGRAM, inter_token_latency_seconds, "",                                                  \
      "Time between two consecutive tokens of a request.", METRIC_BUCKETS(metrics_itl_buckets),    \
      .aliases = "vllm:time_per_output_token_seconds")                                             \
    X(HISTOGRAM, request_time_per_output_token_seconds, "",                                        \
      "Mean time between the output tokens of a request.", METRIC_BUCKETS(metrics_itl_buckets))    \
    X(HISTOGRAM, e2e_request_latency_seconds, "",                                                  \
      "Time from the arrival of a request to its end.", METRIC_BUCKETS(metrics_latency_buckets))   \
    X(HISTOGRAM, request_queue_time_seconds, "",                                                   \
      "Time from the arrival of a request until it is first scheduled.",                           \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_prefill_time_seconds, "",                                                 \
      "Time from when a request is first scheduled to its first token.",                           \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_decode_time_seconds, "",                                                  \
      "Time from the first to the last token of a request.",                                       \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_inference_time_seconds, "",                                               \
      "Time from when a request is first scheduled to its last token.",                            \
      METRIC_BUCKETS(metrics_latency_buckets))                                                     \
    X(HISTOGRAM, request_params_n, "",                                                             \
      "Samples that a request asks for per prompt (parameter n).",                                 \
      METRIC_BUCKETS(worker_n_buckets))                                                            \
    X(HISTOGRAM, request_params_max_tokens, "",                                                    \
      "Most tokens per sample that a request asks for (parameter max_tokens).",                    \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_prompt_tokens, "", "Prompt tokens of a request.",                         \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_prefill_kv_computed_tokens, "",                                           \
      "Prompt tokens of a request that were computed because they were not cached.",               \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_generation_tokens, "", "Tokens generated for a request.",                 \
      METRIC_BUCKETS(metrics_token_buckets))                                                       \
    X(HISTOGRAM, request_max_num_generation_tokens, "",                                            \
      "Most tokens that a request may generate.", METRIC_BUCKETS(metrics_token_buckets))           \
    X(HISTOGRAM, iteration_tokens_total, "",                                                       \
      "Tokens computed in one step (one batch on the device).",                                    \
      METRIC_BUCKETS(worker_step_buckets))                                                         \
    X(HISTOGRAM, kv_block_lifetime_seconds, "",                                                    \
      "Time from the allocation of a KV block to its eviction, for a sample of blocks "            \
      "(--kv-cache-metrics).",                                                                     \
      METRIC_BUCKETS(worker_age_buckets))                                                          \
    X(HISTOGRAM, kv_block_idle_before_evict_seconds, "",                                           \
      "Time from the last use of a KV block to its eviction, for a sample of blocks "              \
      "(--kv-cache-metrics).",                                                                     \
      METRIC_BUCKETS(worker_age_buckets))                                                          \
    X(HISTOGRAM, kv_block_reuse_gap_seconds, "",                                                   \
      "Time between two prefix cache hits of a KV block, for a sample of blocks "                  \
      "(--kv-cache-metrics).",                                                                     \
      METRIC_BUCKETS(worker_age_buckets))

/* Named incipit_... */
#define WORKER_OWN_METRICS(X)                                                                      \
    X(GAUGE, kv_waste_ratio, "",                                                                   \
      "Share of token slots in used KV blocks that hold no token (partly filled last blocks), 0 "  \
      "to 1.")                                                                                     \
    X(COUNTER, prefix_miss_total, "cause",                                                         \
      "Requests by the cause why the rest of the prompt was not cached; none: the whole prompt "   \
      "was cached.")                                                                               \
    X(GAUGE, kv_host_blocks, "state",                                                              \
      "KV blocks in host memory by state: held by preempted sequences, cached, free; a block may " \
      "be held and cached.")                                                                       \
    X(COUNTER, swap_outs_total, "",                                                                \
      "Preemptions that moved the KV blocks of a sequence to host memory.")                        \
    X(COUNTER, forks_total, "",                                                                    \
      "Samples and beams that started by sharing KV blocks of another sequence.")                  \
    X(COUNTER, kv_moved_blocks_total, "direction",                                                 \
      "KV blocks copied between device and host memory, by direction.")                            \
    X(GAUGE, kv_retained_blocks, "",                                                               \
      "KV blocks that no request uses and that are evicted after all others, because a client "    \
      "marked their prompt to be kept.")                                                           \
    X(GAUGE, kv_retained_blocks_limit, "", "Most KV blocks that marked prompts keep.")             \
    X(COUNTER, kv_retained_total, "outcome",                                                       \
      "KV blocks of marked prompts by outcome: hit by a later request, expired unused, displaced " \
      "by other marked prompts, evicted although marked, refused because of the tenant's share.")  \
    X(GAUGE, kv_holds, "", "Prefixes that clients hold with POST /cache/hold.")                    \
    X(GAUGE, kv_held_blocks, "",                                                                   \
      "KV blocks that clients hold, those of several holds once: in host memory with "             \
      "--kv-offload-bytes, else on the device.")                                                   \
    X(GAUGE, kv_held_blocks_limit, "", "Most KV blocks that clients hold, each hold's counted.")   \
    X(GAUGE, kv_held_below_blocks, "",                                                             \
      "KV blocks that clients hold and the tier below host memory has (--kv-file).")               \
    X(GAUGE, kv_held_below_blocks_limit, "", "Most KV blocks that clients hold there.")            \
    X(COUNTER, kv_held_byte_seconds_total, "",                                                     \
      "Bytes of KV that clients hold, each hold's counted, times the seconds of holding.")         \
    X(COUNTER, kv_holds_ended_total, "outcome",                                                    \
      "Holds that ended, by why: released by their owner, expired unused, displaced after half "   \
      "of their time unused, evicted because a request needed the device's last blocks, reset.")   \
    X(COUNTER, kv_holds_refused_total, "",                                                         \
      "Holds refused because of --hold-bytes, a holder's half of it, or 1,024 holds.")             \
    X(COUNTER, kv_hold_hits_total, "", "Requests that took blocks of a hold from the cache.")      \
    X(COUNTER, kv_hold_saved_tokens_total, "", "Prompt tokens that these requests took from it.")  \
    X(COUNTER, kv_holds_left_total, "",                                                            \
      "Holds that left host memory for others, because the tier below has all of them.")           \
    X(COUNTER, kv_tier_requests_total, "tier,outcome",                                             \
      "Requests with a part of their prompt in a tier below host memory (--kv-file), by outcome: " \
      "awaited, they waited for it; dearer, computing was quicker or the tier late; late, "        \
      "computed at their "                                                                         \
      "deadline after waiting; full, computed because no host block was free for it.")             \
    X(COUNTER, kv_tier_restored_tokens_total, "tier",                                              \
      "Tokens whose KV was brought from a tier to host memory, verified.")                         \
    X(COUNTER, kv_tier_loads_total, "tier,result",                                                 \
      "KV blocks requested of a tier, by result; rejected: what came was not the block that was "  \
      "asked for, and was computed instead.")                                                      \
    X(COUNTER, kv_tier_rejected_total, "tier,cause",                                               \
      "KV blocks that a tier delivered and verification refused, by the first difference.")        \
    X(COUNTER, kv_tier_stores_total, "tier,result", "KV blocks written to a tier, by result.")     \
    X(COUNTER, kv_tier_bytes_total, "tier,direction",                                              \
      "Bytes of KV blocks moved between host memory and a tier, by direction: in, out.")           \
    X(COUNTER, kv_tier_load_seconds_total, "tier",                                                 \
      "Time of a tier's loads, from submission to completion; several may run at once.",           \
      .scale = 1e-6)                                                                               \
    X(COUNTER, kv_tier_dropped_total, "tier",                                                      \
      "KV blocks worth writing to a tier that were evicted from host memory before, or that the "  \
      "tier failed to write.")                                                                     \
    X(COUNTER, kv_tier_write_pauses_total, "tier",                                                 \
      "Pauses of writing to a tier because decode steps took 5 % longer while it was written to.") \
    X(GAUGE, kv_tier_unwritten_blocks, "tier",                                                     \
      "KV blocks of host memory that wait to be written to a tier.")                               \
    X(GAUGE, kv_tier_bytes, "tier", "Bytes that a tier holds.")                                    \
    X(GAUGE, kv_tier_blocks, "tier", "KV blocks that a tier holds for this model.")                \
    X(GAUGE, kv_tier_writable, "tier", "1 while a tier takes new KV blocks, 0 after failures.")    \
    X(COUNTER, kv_peer_served_total, "result",                                                     \
      "Questions of other workers for KV blocks (--kv-peers), by why no more was sent; ok: all "   \
      "of it was.")                                                                                \
    X(COUNTER, kv_peer_served_bytes_total, "", "Bytes of KV blocks sent to other workers.")        \
    X(COUNTER, kv_peer_placed_bytes_total, "",                                                     \
      "Bytes of KV blocks that workers of the host were left to copy from shared memory "          \
      "(--kv-peer-shm).")                                                                          \
    X(COUNTER, kv_peer_refused_total, "",                                                          \
      "Connections of other workers that were refused: another key, model or form of blocks, or "  \
      "no room.")                                                                                  \
    X(GAUGE, kv_peer_connections, "", "Connections of other workers that ask for KV blocks.")      \
    X(COUNTER, requests_denied_total, "",                                                          \
      "Requests rejected with 401 because they sent no key of --api-key or --api-key-file.")       \
    X(COUNTER, request_events_total, "",                                                           \
      "Events of requests (accepted, first token, ended) published for routers.")                  \
    X(COUNTER, request_events_sent_bytes_total, "",                                                \
      "Bytes of request events (GET /request_events) sent to all routers.")                        \
    X(COUNTER, request_events_gaps_total, "",                                                      \
      "Times that a router had to start over with request events because events were overwritten " \
      "or the worker had restarted.")                                                              \
    X(GAUGE, request_events_kept_bytes, "",                                                        \
      "Bytes of request events kept for routers that reconnect.")                                  \
    X(GAUGE, request_events_subscribers, "",                                                       \
      "Routers that follow this worker's request events (open streams of GET /request_events).")   \
    X(GAUGE, responses_stored, "",                                                                 \
      "Answers of /v1/responses that are stored for previous_response_id and GET.")                \
    X(GAUGE, responses_stored_bytes, "",                                                           \
      "Bytes of stored answers of /v1/responses, of at most --responses-store-bytes.")             \
    X(COUNTER, responses_evicted_total, "",                                                        \
      "Stored answers of /v1/responses dropped for want of room or after a day.")                  \
    X(GAUGE, tokenizer_queue_texts, "", "Texts waiting for a tokenizer thread.")                   \
    X(GAUGE, tokenizer_queue_bytes, "", "Bytes of the texts waiting for a tokenizer thread.")      \
    X(HISTOGRAM, tokenizer_wait_seconds, "",                                                       \
      "Time a text waited for a tokenizer thread; texts of at most 4 KiB do not wait.",            \
      METRIC_BUCKETS(metrics_ttft_buckets))                                                        \
    X(COUNTER, tokenizer_slices_total, "",                                                         \
      "Slices of long texts tokenized; shorter texts may be tokenized between two slices.")        \
    X(COUNTER, tokenizer_overtakes_total, "",                                                      \
      "Texts tokenized between two slices of a longer text.")                                      \
    X(COUNTER, tokenizer_refused_total, "reason",                                                  \
      "Texts refused by reason: length, more bytes than the model's maximum length can hold; "     \
      "tokens, more tokens than the model's maximum length; queue, --tokenizer-queue-bytes is "    \
      "full.")                                                                                     \
    X(COUNTER, grammar_compilations_total, "outcome",                                              \
      "Grammars (schemas, regular expressions, choices) compiled to constrain answers, by "        \
      "outcome: ok, refused.")                                                                     \
    X(COUNTER, grammar_compile_seconds_total, "",                                                  \
      "Time of grammar threads spent compiling grammars.", .scale = 1e-6)                          \
    X(COUNTER, grammar_cache_hits_total, "",                                                       \
      "Requests whose grammar was compiled already, or was being compiled for another request.")   \
    X(GAUGE, grammar_cache_grammars, "", "Compiled grammars kept for requests to come.")           \
    X(GAUGE, grammar_cache_bytes, "",                                                              \
      "Memory of the compiled grammars kept for requests to come, their masks included.")          \
    X(COUNTER, grammar_masks_total, "source",                                                      \
      "Masks of allowed tokens used in steps, by source: computed, cached.")                       \
    X(COUNTER, grammar_forced_tokens_total, "",                                                    \
      "Tokens generated without a step of their own, because a grammar or a reasoning budget "     \
      "allowed no other.")                                                                         \
    X(HISTOGRAM, grammar_mask_seconds, "",                                                         \
      "Time to compute a mask of allowed tokens that was not cached.",                             \
      METRIC_BUCKETS(worker_mask_buckets))                                                         \
    X(GAUGE, backend_info, "backend,device,path,uuid",                                             \
      "Backend, device, CPU instruction set and GPU UUID in labels; always 1.")                    \
    X(GAUGE, steps_in_flight, "",                                                                  \
      "Steps (batches) submitted to the device and not finished, 0 to 2.")                         \
    X(HISTOGRAM, step_host_seconds, "",                                                            \
      "Time of the host per step (scheduling, input arrays, outputs), in part while the device "   \
      "computes.",                                                                                 \
      METRIC_BUCKETS(worker_step_time_buckets))                                                    \
    X(HISTOGRAM, step_device_seconds, "", "Time of the device per step (one batch).",              \
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
void worker_metrics_describe(struct metrics *m, const struct engine *engine,
                             const char *cache_dtype, bool is_caching);

/* What one finished request adds. Times are clock_now_us, 0 for what never came. */
struct worker_request_times {
    uint64_t arrival_us, scheduled_us, first_token_us, finished_us;
    uint32_t prompt_tokens, cached_tokens, output_tokens, max_tokens;
};
void worker_metrics_observe(struct metrics *m, const struct worker_request_times *t);

/* Observes a block's age at a reuse or an eviction; `metrics` is the registry. Any thread. */
void worker_metrics_on_block_age(void *metrics, enum block_age age, uint64_t us);

/* Counts one call, for any number of prompts. */
void worker_metrics_observe_call(struct metrics *m, uint32_t n, uint32_t max_tokens);

/* A text has come back from the tokenizer's queue, where it was put at submitted_us (0: it was
 * not). */
void worker_metrics_observe_text(struct metrics *m, uint64_t submitted_us, uint64_t waited_us);

struct text_thread;
void worker_metrics_collect_text(struct metrics *m, struct text_thread *t);

struct grammar_thread;
void worker_metrics_collect_grammars(struct metrics *m, const struct grammar_thread *t);

#endif
