/* tests/replay/fleet_model.h - a small discrete-event model of a fleet behind the routing library.
 *
 * Each worker is a paged prefix cache (LRU, pinned while in use, deepest block forgotten first)
 * under continuous batching: first come first served, CHUNK tokens a step, of which every decoding
 * sequence takes one and the prompt at the head of the queue the rest. A step lasts
 *
 *     6 ms + 20 us per sequence + 27 ns per token of context + 50 us per prompt token x (1 + c/30k)
 *
 * about an 8B model on one H200. Virtual time, no chance: equal input gives equal output. It knows
 * nothing of other simulators, and is kept small; its purpose is to notice a policy that broke. */
#ifndef TESTS_REPLAY_FLEET_MODEL_H
#define TESTS_REPLAY_FLEET_MODEL_H

#include "router/routing/policy.h"
#include "tests/replay/conversations.h"

struct fleet_options {
    uint32_t n_workers;
    uint32_t cache_tokens;                /* of each worker */
    const struct policy_ops *policy;      /* NULL: the oracle */
    struct policy_options policy_options; /* the oracle uses its weights too */
    double declared_capacity;             /* as a multiple of the real one */
    uint32_t hashed_tokens;               /* of a prompt at most; 0: all */
    double declared_attn_context;         /* tokens; what workers say of themselves */
    bool has_feedback;                    /* workers tell what was cached */
};

/* Of the requests after the first quarter of the time. */
struct fleet_result {
    double mean_ttft_s, p99_ttft_s, mean_e2e_s;
    double hit_share;  /* of prompt tokens */
    double busy_share; /* of the workers' time, until the last arrival */
    double imbalance;  /* most prefill tokens of a worker, by the mean */
};

void fleet_options_default(struct fleet_options *options); /* eight workers, policy `prefix` */

/* The oracle minimises the cost of `prefix` without --cost-queued, but sees each worker's real cache, queue
 * and batch: what a router without guesses would do. */
void fleet_run(const struct conversations *c, const struct fleet_options *options,
               struct fleet_result *result);

#endif
