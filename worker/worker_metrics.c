/* worker/worker_metrics.c - the table, and what is read from the engine when a page is written. */
#include "worker/worker_metrics.h"

#include <stdio.h>

#include "worker/engine/engine.h"

#define AS_ROW(kind_, name_, labels_, help_, ...)                                                  \
    {.kind = METRIC_##kind_, .name = "vllm:" #name_, .labels = labels_, .help = help_,             \
     ##__VA_ARGS__},

static const struct metric_def rows[] = {WORKER_METRICS(AS_ROW)};

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

struct watch { /* what collect needs; lives in the engine's creator for the process's life */
    struct metrics *m;
    struct engine *engine;
};

static void collect(void *arg) {
    struct watch *w = arg;
    struct engine_stats s;

    engine_stats(w->engine, &s);
    metric_set(metrics_at(w->m, WORKER_num_requests_running), s.running);
    metric_set(metrics_at(w->m, WORKER_num_requests_waiting), s.waiting);
    metric_set(metrics_at(w->m, WORKER_kv_cache_usage_perc),
               s.kv_total ? 1.0 - (double)s.kv_free / (double)s.kv_total : 0);
    advance(metrics_at(w->m, WORKER_prefix_cache_queries_total), s.prefix_queries);
    advance(metrics_at(w->m, WORKER_prefix_cache_hits_total), s.prefix_hits);
    advance(metrics_at(w->m, WORKER_num_preemptions_total), s.preemptions);
    advance(metrics_at(w->m, WORKER_prompt_tokens_total), s.prompt_tokens);
    advance(metrics_at(w->m, WORKER_prompt_tokens_cached_total), s.cached_tokens);
    advance(metrics_at(w->m, WORKER_generation_tokens_total), s.generated_tokens);
    for (enum finish_reason reason = FINISH_STOP; reason <= FINISH_ERROR; reason++) {
        advance(METRICS_GET(w->m, WORKER_request_success_total, finish_reason_name(reason)),
                s.finished[reason]);
    }
}
