/* tests/replay/replay_eviction.c - hits of one KV cache, by its size and the order of eviction:
 * `make replay-eviction [TRACE=FILE]`.
 *
 * Requests pass one by one, in order of arrival, through a KV manager: each is found, allocated,
 * published and freed at once, its answer included. So the figures are about eviction alone, not
 * about load. Without a trace: an hour of generated conversations. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/replay/workload/generator.h"
#include "worker/kv/kv_manager.h"

#define DURATION_S  3600
#define CHATS_PER_S 2.05

struct cache {
    struct kv_manager *kv;
    uint32_t *tokens; /* (n_blocks) one stands for a block */
    uint64_t n_hit, n_prompt;
};

/* A block of the KV manager is a block of the workload. */
static void pass(struct cache *c, const struct workload *w, uint32_t number) {
    const struct workload_request *q = &w->requests[number];
    uint32_t n_prompt = CEIL_DIV(q->n_prompt, w->block_tokens);
    uint32_t n = CEIL_DIV(q->n_prompt + q->n_output, w->block_tokens);
    struct kv_alloc alloc = {.n_new = 0};
    struct kv_seq seq;

    for (uint32_t i = 0; i < n; i++)
        c->tokens[i] =
            i < q->n_blocks ? (uint32_t)(q->chain[i] >> 32) : (uint32_t)rng_at(number, i);
    if (kv_seq_init(&seq, c->kv, n, NULL, false, NULL) != ST_OK) abort();
    seq.n_prompt = MAX(q->n_blocks, 1u);
    kv_manager_set_now(c->kv, (uint64_t)(q->arrival_s * 1e6));
    alloc.hit = kv_manager_lookup(c->kv, &seq, c->tokens, n_prompt);
    alloc.n_new = n - alloc.hit.n_blocks;
    if (kv_manager_allocate(c->kv, &seq, c->tokens, n, &alloc) != ST_OK) abort();
    c->n_hit += (uint64_t)alloc.hit.n_blocks * w->block_tokens;
    c->n_prompt += q->n_prompt;
    kv_manager_free(c->kv, &seq);
    kv_seq_fini(&seq);
    kv_manager_clear_moves(c->kv);
}

static double hit_share(const struct workload *w, double cache_tokens, enum free_order order) {
    uint32_t n_blocks = (uint32_t)(cache_tokens / w->block_tokens);
    struct cache c = {.tokens = mem_calloc(n_blocks, sizeof(*c.tokens))};

    c.kv = kv_manager_create(&(struct kv_manager_config){.n_blocks = n_blocks + 1,
                                                         .block_size = 1,
                                                         .max_model_len = n_blocks,
                                                         .order = order,
                                                         .hash_seed = STR("replay"),
                                                         .no_explain = true,
                                                         .no_stats = true});
    for (uint32_t i = 0; i < w->n; i++)
        pass(&c, w, i);
    kv_manager_destroy(c.kv);
    mem_free(c.tokens);
    return (double)c.n_hit / (double)c.n_prompt;
}

int main(int argc, char **argv) {
    struct trace t = {argc > 1 ? argv[1] : NULL, TRACE_BLOCK, TRACE_TICKS_PER_S, 0};
    const double sizes[] = {1.4e6, 2.8e6, 5.6e6, 11.2e6, 28e6};
    struct error err = {0};
    struct workload w;

    if (!t.path) {
        generate(&w, generator_find("conversations"), 1, DURATION_S, CHATS_PER_S);
    } else if (workload_read(&w, &t, &err) != ST_OK) {
        fprintf(stderr, "replay-eviction: %s\n", err.message);
        return 2;
    }
    printf("replay-eviction: %u requests; share of prompt tokens that hit\n", w.n);
    printf("%14s  %8s  %8s\n", "cache tokens", "lru", "reuse");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        printf("%14.0f  %6.2f %%  %6.2f %%\n", sizes[i],
               100 * hit_share(&w, sizes[i], FREE_ORDER_FRESH_FIRST),
               100 * hit_share(&w, sizes[i], FREE_ORDER_REUSE));
    workload_free(&w);
    return 0;
}
