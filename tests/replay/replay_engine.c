/* tests/replay/replay_engine.c - engine_replay on a trace file: `make replay-engine TRACE=FILE`.
 *
 * The trace is one JSON object per line: timestamp in ms, input_length and output_length in tokens,
 * hash_ids of consecutive blocks of 512 tokens. Equal stamps are spread evenly up to the next one;
 * then time is stretched so that the work is LOAD of what one worker can do. Twice: with blocks of
 * the trace's size on both sides, and with those that a worker and the router really have, where
 * neither's end where prompts and answers do. Exits 1 when the prediction is off by more than 3 % in
 * total, or by more than two blocks for any request that was never preempted, or when of the slots in
 * blocks of 16 that were in use more than 4 % held no token. */
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "tests/replay/engine_replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE   512
#define CACHE_TOKENS 700000
#define LOAD         0.5
#define TOTAL_SHARE  0.03
#define OFF_BLOCKS   2
#define KV_BLOCK     16
#define CHAIN_BLOCK  256
#define WASTE_SHARE  0.04

struct trace {
    struct replay_request *requests;
    uint32_t n, n_max;
};

static void read_line(struct trace *t, struct str line) {
    struct replay_request *q;
    struct json *root;
    uint32_t *blocks, n_blocks = 0, n_max;

    if (json_parse(&root, line, NULL, NULL) != ST_OK) {
        fprintf(stderr, "replay: line %u of the trace is not JSON\n", t->n + 1);
        exit(2);
    }
    if (t->n == t->n_max) {
        t->n_max = MAX(2 * t->n_max, 1024u);
        t->requests = mem_realloc(t->requests, t->n_max * sizeof(*t->requests));
    }
    q = &t->requests[t->n++];
    if (json_get_u64(root, "timestamp", 0, UINT64_MAX, &q->arrival_us, NULL, NULL) != ST_OK ||
        json_get_u32(root, "input_length", 1, 1u << 24, &q->n_prompt, NULL, NULL) != ST_OK ||
        json_get_u32(root, "output_length", 0, 1u << 24, &q->n_output, NULL, NULL) != ST_OK) {
        fprintf(stderr, "replay: line %u of the trace lacks a field\n", t->n);
        exit(2);
    }
    q->arrival_us *= 1000;
    q->n_output = MAX(q->n_output, 1u);
    n_max = CEIL_DIV(q->n_prompt, (uint32_t)BLOCK_SIZE);
    blocks = mem_calloc(n_max, sizeof(*blocks));
    JSON_FOR_EACH(it, json_get(root, "hash_ids")) {
        uint64_t id = 0;

        if (n_blocks < n_max && json_to_u64(it, &id) == ST_OK) blocks[n_blocks++] = (uint32_t)id;
    }
    q->n_prompt = MIN(q->n_prompt, n_blocks * BLOCK_SIZE);
    q->blocks = blocks;
    json_destroy(root);
}

static void read_trace(struct trace *t, const char *path) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    ssize_t n;

    if (!f) {
        fprintf(stderr, "replay: cannot open %s\n", path);
        exit(2);
    }
    while ((n = getline(&line, &size, f)) > 0)
        read_line(t, (struct str){line, (size_t)n - (line[n - 1] == '\n')});
    free(line);
    fclose(f);
}

static void spread_equal_stamps(struct trace *t) {
    for (uint32_t i = 0, end; i < t->n; i = end) {
        uint64_t base = t->requests[i].arrival_us, next;

        for (end = i; end < t->n && t->requests[end].arrival_us == base; end++)
            ;
        next = end < t->n ? t->requests[end].arrival_us : base + 1000000;
        for (uint32_t k = i; k < end; k++)
            t->requests[k].arrival_us = base + (next - base) * (k - i) / (end - i);
    }
}

static bool replay(const struct trace *t, const char *what, const struct replay_options *o) {
    struct replay_result r;
    double share;

    replay_on_engine(t->requests, t->n, o, &r);
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

int main(int argc, char **argv) {
    struct replay_options same = {.block_size = BLOCK_SIZE,
                                  .cache_tokens = CACHE_TOKENS,
                                  .off_tokens = OFF_BLOCKS * BLOCK_SIZE};
    struct replay_options fine = same;
    struct trace t = {0};
    double stretch;
    bool ok;

    fine.off_tokens = OFF_BLOCKS * CHAIN_BLOCK;
    fine.kv_block = KV_BLOCK;
    fine.chain_block = CHAIN_BLOCK;
    if (argc != 2) return 2;
    read_trace(&t, argv[1]);
    if (!t.n) return 2;
    spread_equal_stamps(&t);
    stretch = replay_work_s(t.requests, t.n, &same) / LOAD /
              ((double)t.requests[t.n - 1].arrival_us * 1e-6);
    for (uint32_t i = 0; i < t.n; i++)
        t.requests[i].arrival_us = (uint64_t)((double)t.requests[i].arrival_us * stretch);
    printf("replay-engine: %u requests, time x %.2f\n", t.n, stretch);
    ok = replay(&t, "blocks of 512 tokens on both sides", &same);
    ok = replay(&t, "blocks of 16 tokens, hashed by 256", &fine) && ok;
    for (uint32_t i = 0; i < t.n; i++)
        mem_free((uint32_t *)(uintptr_t)t.requests[i].blocks);
    mem_free(t.requests);
    return ok ? 0 : 1;
}
