/* worker/metrics/worker_metrics.c - the table, and what is read from the engine when a page is
 * written. */
#include "worker/metrics/worker_metrics.h"

#include <stdio.h>

#include "worker/engine/engine.h"
#include "worker/grammar/grammar_thread.h"
#include "worker/text/text_thread.h"

#define AS_NAMED_ROW(kind_, full_name_, labels_, help_, ...)                                       \
    {.kind = METRIC_##kind_, .name = full_name_, .labels = labels_, .help = help_, ##__VA_ARGS__},
#define AS_ROW(kind, name, ...)     AS_NAMED_ROW(kind, "vllm:" #name, __VA_ARGS__)
#define AS_OWN_ROW(kind, name, ...) AS_NAMED_ROW(kind, "incipit_" #name, __VA_ARGS__)

static const double worker_n_buckets[] = {1, 2, 5, 10, 20};
static const double worker_step_buckets[] = {1,   8,    16,   32,   64,   128,  256,
                                             512, 1024, 2048, 4096, 8192, 16384};
static const double worker_step_time_buckets[] = {
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5};
static const double worker_mask_buckets[] = {5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4,
                                             5e-4, .001, .002, .005, .01,  .05};
static const double worker_age_buckets[] = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,   2,
                                            5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800};
static const struct metric_def rows[] = {WORKER_METRICS(AS_ROW) WORKER_OWN_METRICS(AS_OWN_ROW)
                                             HTTP_METRICS(AS_OWN_ROW)};

const struct metric_def *worker_metrics_rows(uint32_t *n) {
    *n = ARRAY_LEN(rows);
    return rows;
}

struct metrics *worker_metrics_create(const char *model_name) {
    struct metrics *m = metrics_create(rows, ARRAY_LEN(rows));

    metrics_add_common_label(m, "model_name", model_name);
    metrics_add_common_label(m, "engine", "0");
    return m;
}

/* Counters of the engine are totals: a page adds what has come since the last one. */
static void advance(struct metric *counter, uint64_t total) {
    uint64_t shown = (uint64_t)metric_value(counter);

    if (total > shown) metric_add(counter, total - shown);
}

static void collect_retained(struct metrics *m, const struct block_retain_stats *s) {
    metric_set(metrics_at(m, WORKER_kv_retained_blocks), s->n_free);
    metric_set(metrics_at(m, WORKER_kv_retained_blocks_limit), s->n_max);
    advance(METRICS_GET(m, WORKER_kv_retained_total, "hit"), s->n_hit);
    advance(METRICS_GET(m, WORKER_kv_retained_total, "expired"), s->n_expired);
    advance(METRICS_GET(m, WORKER_kv_retained_total, "displaced"), s->n_displaced);
    advance(METRICS_GET(m, WORKER_kv_retained_total, "evicted"), s->n_evicted);
    advance(METRICS_GET(m, WORKER_kv_retained_total, "refused"), s->n_refused);
}

static void collect_holds(struct metrics *m, const struct engine_holds *s) {
    static const char *const outcomes[HOLD_ENDS] = {"released", "expired", "displaced", "evicted",
                                                    "reset"};

    metric_set(metrics_at(m, WORKER_kv_holds), s->table.n_holds);
    metric_set(metrics_at(m, WORKER_kv_held_blocks), s->table.n_blocks);
    metric_set(metrics_at(m, WORKER_kv_held_blocks_limit), s->table.max_blocks[HOLD_HERE]);
    metric_set(metrics_at(m, WORKER_kv_held_below_blocks), s->n_below_blocks);
    metric_set(metrics_at(m, WORKER_kv_held_below_blocks_limit), s->max_below_blocks);
    metric_reach(metrics_at(m, WORKER_kv_held_byte_seconds_total), (uint64_t)s->byte_s);
    metric_reach(metrics_at(m, WORKER_kv_holds_left_total), s->table.n_left);
    for (int why = 0; why < HOLD_ENDS; why++)
        advance(METRICS_GET(m, WORKER_kv_holds_ended_total, outcomes[why]), s->table.n_ended[why]);
    metric_reach(metrics_at(m, WORKER_kv_holds_refused_total), s->table.n_refused);
    metric_reach(metrics_at(m, WORKER_kv_hold_hits_total), s->table.n_hits);
    metric_reach(metrics_at(m, WORKER_kv_hold_saved_tokens_total), s->saved_tokens);
}

static void collect_cache(struct metrics *m, const struct engine_stats *s) {
    for (int cause = 0; cause < KV_MISS_COUNT; cause++) {
        const char *name = kv_miss_name((enum kv_miss)cause);

        advance(METRICS_GET(m, WORKER_prefix_miss_total, name), s->misses[cause]);
    }
    metric_set(METRICS_GET(m, WORKER_kv_host_blocks, "held"), s->host_held);
    metric_set(METRICS_GET(m, WORKER_kv_host_blocks, "cached"), s->host_cached);
    metric_set(METRICS_GET(m, WORKER_kv_host_blocks, "free"), s->host_total - s->host_held);
    advance(METRICS_GET(m, WORKER_kv_moved_blocks_total, "out"), s->moved_out);
    advance(METRICS_GET(m, WORKER_kv_moved_blocks_total, "in"), s->moved_in);
    collect_retained(m, &s->retained);
    collect_holds(m, &s->holds);
}

static void collect_tier(struct metrics *m, const struct lower_stats *t) {
    const char *name = t->name;

    advance(METRICS_GET(m, WORKER_kv_tier_requests_total, name, "awaited"), t->n_awaited);
    advance(METRICS_GET(m, WORKER_kv_tier_requests_total, name, "dearer"), t->n_dearer);
    advance(METRICS_GET(m, WORKER_kv_tier_requests_total, name, "late"), t->n_late);
    advance(METRICS_GET(m, WORKER_kv_tier_requests_total, name, "full"), t->n_full);
    advance(METRICS_GET(m, WORKER_kv_tier_restored_tokens_total, name), t->restored_tokens);
    for (int r = 0; r < TIER_N_RESULTS; r++) {
        const char *result = tier_result_name((enum tier_result)r);

        advance(METRICS_GET(m, WORKER_kv_tier_loads_total, name, result), t->loads[r]);
        advance(METRICS_GET(m, WORKER_kv_tier_stores_total, name, result), t->stores[r]);
    }
    for (int cause = UNIT_FINE + 1; cause < UNIT_N_CAUSES; cause++) {
        advance(METRICS_GET(m, WORKER_kv_tier_rejected_total, name,
                            unit_cause_name((enum unit_cause)cause)),
                t->rejected[cause]);
    }
    advance(METRICS_GET(m, WORKER_kv_tier_bytes_total, name, "in"), t->loaded_bytes);
    advance(METRICS_GET(m, WORKER_kv_tier_bytes_total, name, "out"), t->stored_bytes);
    metric_reach(METRICS_GET(m, WORKER_kv_tier_load_seconds_total, name),
                 (uint64_t)(t->load_s * 1e6));
    advance(METRICS_GET(m, WORKER_kv_tier_dropped_total, name), t->n_dropped);
    advance(METRICS_GET(m, WORKER_kv_tier_write_pauses_total, name), t->n_pauses);
    metric_set(METRICS_GET(m, WORKER_kv_tier_unwritten_blocks, name), t->n_unwritten);
    metric_set(METRICS_GET(m, WORKER_kv_tier_bytes, name), (double)t->bytes);
    metric_set(METRICS_GET(m, WORKER_kv_tier_blocks, name), (double)t->n_units);
    metric_set(METRICS_GET(m, WORKER_kv_tier_writable, name), t->can_write);
}

void worker_metrics_collect(struct metrics *m, struct engine *engine) {
    struct engine_stats s;

    engine_stats(engine, &s);
    metric_set(metrics_at(m, WORKER_num_requests_running), s.running);
    metric_set(metrics_at(m, WORKER_num_requests_waiting), s.waiting);
    metric_set(metrics_at(m, WORKER_kv_cache_usage_perc),
               s.kv_total ? 1.0 - (double)s.kv_free / (double)s.kv_total : 0);
    metric_set(metrics_at(m, WORKER_kv_waste_ratio), s.kv_waste);
    metric_set(metrics_at(m, WORKER_steps_in_flight), s.flights);
    advance(metrics_at(m, WORKER_prefix_cache_queries_total), s.prefix_queries);
    advance(metrics_at(m, WORKER_prefix_cache_hits_total), s.prefix_hits);
    advance(metrics_at(m, WORKER_external_prefix_cache_queries_total), s.host_queries);
    advance(metrics_at(m, WORKER_external_prefix_cache_hits_total), s.host_hits);
    metric_set(metrics_at(m, WORKER_num_requests_swapped), s.swapped);
    advance(metrics_at(m, WORKER_num_preemptions_total), s.preemptions);
    advance(metrics_at(m, WORKER_swap_outs_total), s.swap_outs);
    advance(metrics_at(m, WORKER_forks_total), s.forks);
    advance(METRICS_GET(m, WORKER_grammar_masks_total, "computed"), s.masks_new);
    advance(METRICS_GET(m, WORKER_grammar_masks_total, "cached"), s.masks_known);
    advance(metrics_at(m, WORKER_grammar_forced_tokens_total), s.forced_tokens);
    advance(metrics_at(m, WORKER_prompt_tokens_total), s.prompt_tokens);
    advance(metrics_at(m, WORKER_prompt_tokens_cached_total), s.cached_tokens);
    advance(metrics_at(m, WORKER_generation_tokens_total), s.generated_tokens);
    collect_cache(m, &s);
    for (uint32_t i = 0; i < s.n_tiers; i++)
        collect_tier(m, &s.tiers[i]);
    for (int reason = FINISH_STOP; reason <= FINISH_ERROR; reason++) {
        const char *name = finish_reason_name((enum finish_reason)reason);

        advance(METRICS_GET(m, WORKER_request_success_total, name), s.finished[reason]);
    }
}

void worker_metrics_describe(struct metrics *m, const struct engine *engine,
                             const char *cache_dtype, bool is_caching) {
    const struct engine_info *info = engine_info(engine);
    char block_size[16], n_blocks[16];

    snprintf(block_size, sizeof(block_size), "%u", info->block_size);
    snprintf(n_blocks, sizeof(n_blocks), "%u", info->n_blocks);
    metric_set(METRICS_GET(m, WORKER_cache_config_info, block_size, cache_dtype, n_blocks,
                           is_caching ? "True" : "False"),
               1);
    metric_set(METRICS_GET(m, WORKER_backend_info, info->backend, info->device.device,
                           info->device.path, info->device.uuid),
               1);
}

/* Seconds from a to b, if both came. */
static void observe_span(struct metrics *m, enum worker_metric id, uint64_t a_us, uint64_t b_us) {
    if (a_us && b_us >= a_us) metric_observe(metrics_at(m, id), (double)(b_us - a_us) * 1e-6);
}

void worker_metrics_observe(struct metrics *m, const struct worker_request_times *t) {
    observe_span(m, WORKER_time_to_first_token_seconds, t->arrival_us, t->first_token_us);
    observe_span(m, WORKER_e2e_request_latency_seconds, t->arrival_us, t->finished_us);
    observe_span(m, WORKER_request_queue_time_seconds, t->arrival_us, t->scheduled_us);
    observe_span(m, WORKER_request_prefill_time_seconds, t->scheduled_us, t->first_token_us);
    observe_span(m, WORKER_request_inference_time_seconds, t->scheduled_us, t->finished_us);
    observe_span(m, WORKER_request_decode_time_seconds, t->first_token_us, t->finished_us);
    if (t->output_tokens > 1 && t->finished_us >= t->first_token_us) {
        metric_observe(metrics_at(m, WORKER_request_time_per_output_token_seconds),
                       (double)(t->finished_us - t->first_token_us) * 1e-6 /
                           (t->output_tokens - 1));
    }
    metric_observe(metrics_at(m, WORKER_request_prompt_tokens), t->prompt_tokens);
    metric_observe(metrics_at(m, WORKER_request_prefill_kv_computed_tokens),
                   t->prompt_tokens - MIN(t->cached_tokens, t->prompt_tokens));
    metric_observe(metrics_at(m, WORKER_request_generation_tokens), t->output_tokens);
    metric_observe(metrics_at(m, WORKER_request_max_num_generation_tokens), t->max_tokens);
}

void worker_metrics_on_block_age(void *metrics, enum block_age age, uint64_t us) {
    static const enum worker_metric rows_of[] = {
        [BLOCK_AGE_LIFETIME] = WORKER_kv_block_lifetime_seconds,
        [BLOCK_AGE_IDLE] = WORKER_kv_block_idle_before_evict_seconds,
        [BLOCK_AGE_REUSE_GAP] = WORKER_kv_block_reuse_gap_seconds,
    };

    metric_observe(metrics_at(metrics, rows_of[age]), (double)us * 1e-6);
}

void worker_metrics_observe_call(struct metrics *m, uint32_t n, uint32_t max_tokens) {
    metric_observe(metrics_at(m, WORKER_request_params_n), n);
    metric_observe(metrics_at(m, WORKER_request_params_max_tokens), max_tokens);
}

void worker_metrics_observe_text(struct metrics *m, uint64_t submitted_us, uint64_t waited_us) {
    if (submitted_us == 0) return;
    metric_observe(metrics_at(m, WORKER_tokenizer_wait_seconds), (double)waited_us * 1e-6);
}

void worker_metrics_collect_text(struct metrics *m, struct text_thread *t) {
    struct text_thread_stats s;

    text_thread_stats(t, &s);
    metric_set(metrics_at(m, WORKER_tokenizer_queue_texts), (double)s.n_waiting);
    metric_set(metrics_at(m, WORKER_tokenizer_queue_bytes), (double)s.waiting_bytes);
    advance(metrics_at(m, WORKER_tokenizer_slices_total), s.n_slices);
    advance(metrics_at(m, WORKER_tokenizer_overtakes_total), s.n_between);
    advance(METRICS_GET(m, WORKER_tokenizer_refused_total, "length"), s.n_over_length);
    advance(METRICS_GET(m, WORKER_tokenizer_refused_total, "tokens"), s.n_over_tokens);
    advance(METRICS_GET(m, WORKER_tokenizer_refused_total, "queue"), s.n_over_queue);
}

void worker_metrics_collect_grammars(struct metrics *m, const struct grammar_thread *t) {
    struct grammar_thread_stats s;

    grammar_thread_stats(t, &s);
    advance(METRICS_GET(m, WORKER_grammar_compilations_total, "ok"), s.n_compiled);
    advance(METRICS_GET(m, WORKER_grammar_compilations_total, "refused"), s.n_refused);
    metric_reach(metrics_at(m, WORKER_grammar_compile_seconds_total), s.compile_us);
    advance(metrics_at(m, WORKER_grammar_cache_hits_total), s.n_hits);
    metric_set(metrics_at(m, WORKER_grammar_cache_grammars), (double)s.n_cached);
    metric_set(metrics_at(m, WORKER_grammar_cache_bytes), (double)s.cached_bytes);
}
