/* tests/replay/replay_engine.c - engine_replay on a workload: `make replay-engine [TRACE=FILE]`.
 *
 * Without a trace: an hour of generated conversations. Time is stretched so that the work is LOAD
 * of what one worker can do. Twice: with blocks of the workload's size on both sides, and with
 * those that a worker and the router really have, where neither's end where prompts and answers do.
 * Then times at higher loads, by arrival (fcfs) and by the least remaining prefill (srpt).
 * Exits 1 when the prediction is off by more than 3 % in total, or by more than two blocks for any
 * request that was never preempted, or when of the slots in blocks of 16 that were in use more than
 * 4 % held no token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "tests/replay/engine_replay.h"
#include "tests/replay/workload/generator.h"

#define CACHE_TOKENS 700000
#define LOAD         0.5
#define TOTAL_SHARE  0.03
#define OFF_BLOCKS   2
#define KV_BLOCK     16
#define CHAIN_BLOCK  256
#define WASTE_SHARE  0.04
#define DURATION_S   3600
#define CHATS_PER_S  2.05

/* Tokens have 29 bits in engine_replay.c. */
static uint32_t token_of(uint64_t name) {
    return (uint32_t)(name >> 36);
}

static struct replay_request *convert(const struct workload *w) {
    struct replay_request *requests = mem_calloc(w->n, sizeof(*requests));

    for (uint32_t i = 0; i < w->n; i++) {
        const struct workload_request *q = &w->requests[i];
        uint32_t n = CEIL_DIV(q->n_prompt, w->block_tokens), *blocks;

        blocks = mem_calloc(n, sizeof(*blocks));
        for (uint32_t b = 0; b < n; b++)
            blocks[b] = token_of(b < q->n_names ? q->chain[b] : rng_at(i, b));
        requests[i] = (struct replay_request){.arrival_us = (uint64_t)(q->arrival_s * 1e6),
                                              .n_prompt = q->n_prompt,
                                              .n_output = q->n_output,
                                              .blocks = blocks};
    }
    return requests;
}

static void free_requests(struct replay_request *requests, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        mem_free((uint32_t *)(uintptr_t)requests[i].blocks);
    mem_free(requests);
}

static bool replay(const struct replay_request *requests, uint32_t n, const char *what,
                   const struct replay_options *o) {
    struct replay_result r;
    double share;

    replay_on_engine(requests, n, o, &r);
    share = (double)r.predicted_tokens / (double)r.cached_tokens - 1;
    printf("  %s: engine busy %.0f %%, %u preempted\n", what, 100 * r.busy_share, r.n_preempted);
    printf("    prompt tokens %llu, cached %llu, predicted %llu: %+.2f %%\n",
           (unsigned long long)r.prompt_tokens, (unsigned long long)r.cached_tokens,
           (unsigned long long)r.predicted_tokens, 100 * share);
    printf("    exact for %u requests; off by more than %u tokens: %u; worst %+lld (request %u)\n",
           r.n_exact, o->off_tokens, r.n_off, (long long)r.worst_tokens, r.worst);
    printf("    slots in use without a token: %.3f %% over time, %.3f %% in the worst step\n",
           100 * r.waste, 100 * r.worst_waste);
    return fabs(share) <= TOTAL_SHARE && !r.n_off && (!o->kv_block || r.waste <= WASTE_SHARE);
}

/* The same requests at another load, by arrival and by what they lack. */
static void compare_orders(const struct replay_request *requests, uint32_t n, double load,
                           const struct replay_options *fine) {
    struct replay_request *faster = mem_calloc(n, sizeof(*faster));

    for (uint32_t i = 0; i < n; i++) {
        faster[i] = requests[i];
        faster[i].arrival_us = (uint64_t)((double)requests[i].arrival_us * LOAD / load);
    }
    for (int policy = POLICY_FCFS; policy <= POLICY_SRPT; policy += POLICY_SRPT) {
        struct replay_options o = *fine;
        struct replay_result r;

        o.policy = (enum scheduler_policy)policy;
        replay_on_engine(faster, n, &o, &r);
        printf("  load %.2f, %s: first token %.3f s, p99 %.1f s, last %.1f s; longest wait %.0f s, "
               "%u preempted\n",
               load, scheduler_policy_name(o.policy), r.mean_ttft_s, r.p99_ttft_s, r.mean_e2e_s,
               r.longest_wait_s, r.n_preempted);
    }
    mem_free(faster);
}

static void open_workload(struct workload *w, const char *trace) {
    struct trace t = {trace, TRACE_BLOCK, TRACE_TICKS_PER_S, 0};
    struct error err = {0};

    if (!trace) {
        generate(w, generator_find("conversations"), 1, DURATION_S, CHATS_PER_S);
    } else if (workload_read(w, &t, &err) != ST_OK) {
        fprintf(stderr, "replay-engine: %s\n", err.message);
        exit(2);
    }
    workload_load(w, &(struct workload_target){
                         .n_workers = 1, .cache_tokens = CACHE_TOKENS, .speed = 1, .load = LOAD});
}

int main(int argc, char **argv) {
    struct replay_options same = {.cache_tokens = CACHE_TOKENS}, fine;
    struct replay_request *requests;
    struct workload w;
    bool ok;

    open_workload(&w, argc > 1 ? argv[1] : NULL);
    same.block_size = w.block_tokens;
    same.off_tokens = OFF_BLOCKS * w.block_tokens;
    fine = same;
    fine.off_tokens = OFF_BLOCKS * CHAIN_BLOCK;
    fine.kv_block = KV_BLOCK;
    fine.chain_block = CHAIN_BLOCK;
    requests = convert(&w);
    printf("replay-engine: %u requests in %.0f s\n", w.n, workload_span_s(&w));
    ok = replay(requests, w.n, "blocks of 512 tokens on both sides", &same);
    ok = replay(requests, w.n, "blocks of 16 tokens, hashed by 256", &fine) && ok;
    compare_orders(requests, w.n, 0.8, &fine);
    compare_orders(requests, w.n, 0.95, &fine);
    compare_orders(requests, w.n, 1.05, &fine);
    free_requests(requests, w.n);
    workload_free(&w);
    return ok ? 0 : 1;
}
