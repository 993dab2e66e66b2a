/* router/fleet/engine_stats.h - what an engine that is not ours says of itself, read from its pages.
 *
 * vLLM and SGLang tell in no response what our workers tell in each (common/protocol/wire.h), but their
 * /metrics pages count it: prompt tokens, tokens looked up and found in the prefix cache, first
 * tokens, what runs and waits, and how large the cache is. SGLang tells the last also on
 * /get_server_info. This reads both, in old spellings and new:
 *
 *      vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1184.0      one sample a line
 *      vllm:cache_config_info{block_size="16",num_gpu_blocks="27000",...} 1.0
 *
 * Samples of one name are summed over their labels (engines of one process, streaming or not), but
 * for ranks of one tensor-parallel group, which all tell the same: of them the first is taken. Of
 * several spellings on one page the newest counts. A page is outside input: what is malformed is
 * passed over, and nothing read here is trusted further than a limit. Pure; no allocation for pages.
 *
 * Follows: the exposition format of Prometheus 0.0.4, as far as its client libraries write it. */
#ifndef ROUTER_FLEET_ENGINE_STATS_H
#define ROUTER_FLEET_ENGINE_STATS_H

#include "common/base/buf.h"

enum engine_kind { ENGINE_UNKNOWN, ENGINE_VLLM, ENGINE_SGLANG, ENGINE_KIND_COUNT };
extern const char *const engine_kind_names[ENGINE_KIND_COUNT];

/* Negative: not said. Counters are since the engine's start. */
struct engine_stats {
    enum engine_kind kind;
    double prompt_tokens;              /* of requests that were begun */
    double queried_tokens, hit_tokens; /* looked up in the prefix cache; found there */
    double first_tokens;               /* requests that have had theirs */
    double running, waiting;           /* requests */
    double kv_usage;                   /* 0 to 1; of several engines the fullest */
    double n_blocks, block_size;       /* of the KV cache */
    double start_s;                    /* wall clock of the process's start */
};

/* False when the page has nothing of an engine that is known. */
bool engine_stats_read_page(struct engine_stats *out, struct str page);

/* SGLang's /get_server_info: sets n_blocks and block_size if they are there. */
void engine_stats_read_info(struct engine_stats *stats, struct str json);

/* --- the parser ---------------------------------------------------------------------------------*/

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
