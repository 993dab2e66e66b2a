/* router/fleet/engine_stats.h - state of a third-party engine, read from its pages.
 *
 * vLLM and SGLang do not report in each response what our workers do (common/protocol/wire.h), but
 * their /metrics pages have it: prompt tokens, tokens looked up and found in the prefix cache,
 * first tokens, running and waiting requests, and the size of the cache, which SGLang also reports
 * on /get_server_info. Reads both, in old spellings and new:
 *
 *      vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1184.0      one sample a line
 *      vllm:cache_config_info{block_size="16",num_gpu_blocks="27000",...} 1.0
 *
 * Samples of one name are summed over their labels (engines of one process, streaming or not),
 * except ranks of one tensor-parallel group, which all report the same: the first is used. Of
 * several spellings on one page the newest counts. A page is outside input: malformed parts are
 * skipped, and values are limited. Pure; no allocation for pages.
 *
 * Follows: the exposition format of Prometheus 0.0.4, as far as its client libraries write it. */
#ifndef ROUTER_FLEET_ENGINE_STATS_H
#define ROUTER_FLEET_ENGINE_STATS_H

#include "common/base/buf.h"
#include "router/registry/worker_part.h"

enum engine_kind { ENGINE_UNKNOWN, ENGINE_VLLM, ENGINE_SGLANG, ENGINE_KIND_COUNT };
extern const char *const engine_kind_names[ENGINE_KIND_COUNT];

/* Negative: not reported. Counters are since the engine's start. */
struct engine_stats {
    enum engine_kind kind;
    double prompt_tokens;              /* of requests that were begun */
    double queried_tokens, hit_tokens; /* looked up in the prefix cache; found there */
    double first_tokens;               /* requests with a first token */
    double running, waiting;           /* requests */
    double kv_usage;                   /* 0 to 1; of several engines the fullest */
    double n_blocks, block_size;       /* of the KV cache */
    double start_s;                    /* wall clock of the process's start */
    struct worker_part part;           /* its role and bootstrap port; a port of 0: not reported */
};

/* False: the page has no metric of a known engine. */
bool engine_stats_read_page(struct engine_stats *out, struct str page);

/* SGLang's /get_server_info: sets n_blocks, block_size and part if they are there. */
void engine_stats_read_info(struct engine_stats *stats, struct str json);

/* GET /query of the bootstrap server of vLLM's MooncakeConnector: the engines that have registered,
 * in order, at most WORKER_ENGINES_MAX. False: it is no such answer, or has none.
 *
 *      {"0": {"engine_id": "<uuid>", "worker_addr": {...}}, "1": ...}        by data-parallel rank */
MUST_USE bool engine_stats_read_engines(struct worker_engines *out, struct str json);

/* --- the parser ------------------------------------------------------------------------------- */

struct prom_sample {
    struct str name;
    struct str labels; /* between the braces, as written; empty without */
    double value;
};

/* Takes the next sample off the front of *page; false at its end. */
bool prom_next(struct str *page, struct prom_sample *out);

/* A label's value as written, with its escapes; STR_NULL when it has none of that name. */
struct str prom_label(struct str labels, struct str name);

#endif
