/* tests/replay/engine_replay.h - one worker's real scheduler and KV manager beside the router's
 * books of it, in virtual time.
 *
 *     arrival ──▶ routing_route: predicted tokens      router's library
 *        └──────▶ scheduler_add ──▶ step, step ...     worker's libraries
 *                     admitted: cached tokens            the truth
 *                     first token ──▶ routing_first_token(feedback)
 *                     end         ──▶ routing_ended(output tokens)
 *
 * A step lasts what worker_model.h gives for it; nothing sleeps, and no random number is drawn, so
 * equal input gives equal output. The only place where both sides are linked into one program. */
#ifndef TESTS_REPLAY_ENGINE_REPLAY_H
#define TESTS_REPLAY_ENGINE_REPLAY_H

#include "common/base/base.h"
#include "worker/sched/scheduler.h"

/* Blocks of the prompt are named: equal names from the start mean equal tokens. */
struct replay_request {
    uint64_t arrival_us;
    uint32_t n_prompt, n_output; /* tokens, at least one each */
    const uint32_t *blocks;      /* (n_prompt / block_size, rounded up) */
};

struct replay_options {
    uint32_t block_size;   /* tokens of a named block */
    uint32_t kv_block;     /* tokens, of the KV manager; divides block_size; 0: the same */
    uint32_t chain_block;  /* tokens, of the router's chain, whose last block is then a short one,
                             * as prompt_hash makes it; 0: block_size, full ones only */
    uint32_t chain_tokens; /* of a prompt, that are hashed at most; 0: all of it */
    uint32_t cache_tokens; /* of the worker */
    uint32_t host_tokens;  /* and of its host memory, where evicted blocks go */
    uint32_t off_tokens;   /* a request is off when it is by more than this */
    enum scheduler_policy policy; /* of the worker */
    double itl_target_s;          /* of the worker; 0: none */
};

struct replay_result {
    uint64_t prompt_tokens, predicted_tokens, cached_tokens;
    uint32_t n_requests, n_preempted;
    uint32_t n_exact;       /* predicted to the block */
    uint32_t n_off;         /* by more than off_tokens, and never preempted */
    uint32_t worst;         /* request that is off most, of those never preempted */
    int64_t worst_tokens;   /* predicted less cached, of that one */
    double capacity_factor; /* that the router has learned by the end */
    double mean_ttft_s, p99_ttft_s, mean_e2e_s, longest_wait_s; /* wait: until it begins */
    double longest_step_s; /* of those with requests that generate */
    double prefill_rate;   /* tokens/s that the worker has measured by the end */
    double busy_share;     /* of the time from first arrival to last end */
    double waste;          /* share of the slots of blocks in use that held no token, over time */
    double worst_waste;    /* of any step in which at least a hundredth of the blocks was in use */
};

/* Requests in order of arrival, each within 90 % of the cache. */
void replay_on_engine(const struct replay_request *requests, uint32_t n,
                      const struct replay_options *options, struct replay_result *result);

#endif
