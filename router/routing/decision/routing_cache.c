/* router/routing/decision/routing_cache.c - how much of each worker's cache is in use, in blocks.
 *
 * What a worker can keep of earlier prompts is its capacity (declared, times what was learned: see
 * capacity.h) less what its open requests fill. What enters its cache without a hash here counts as
 * anonymous blocks: answers, the ends of long prompts, and what is not sent by this router. */
#include <assert.h>
#include <math.h>

#include "router/routing/decision/routing_internal.h"

#define BLOCKS_MAX     1e15       /* blocks: keeps the product within 64 bits */
#define ROUNDING       1e-6       /* blocks: by which a whole quotient may be too small */
#define UNSTORED_SHARE (1.0 / 32) /* of the cache: what is stored in some ticks of its events */

static uint64_t blocks_of(const struct routing *r, double tokens) {
    return (uint64_t)(int64_t)MIN(MAX(tokens / r->tokens_per_block, 1), BLOCKS_MAX);
}

void routing_fit_cache(struct routing *r, uint32_t w, uint64_t now_us) {
    const struct load_worker *k = &r->load.workers[w];
    const struct cache_state *c = &r->caches[w];
    double tokens = k->capacity_tokens * c->device.factor;

    tokens -= load_growing_tokens(&r->load, k, now_us);
    tokens -= (double)c->unrecorded_bytes / r->bytes_per_token;
    if (load_below_tokens(k) > 0)
        prefix_lru_set_below(r->lru, w, blocks_of(r, load_below_tokens(k) * c->below.factor),
                             k->spec.keeps_copies);
    prefix_lru_set_capacity(r->lru, w, blocks_of(r, tokens));
    worker_mask_set(r->fetch.full.words, w, prefix_lru_is_full(r->lru, w));
}

void routing_reset_cache(struct cache_state *c, uint32_t epoch) {
    *c = (struct cache_state){.epoch = epoch};
    capacity_init(&c->device);
    capacity_init(&c->below);
}

void routing_drop_cache(struct routing *r, uint32_t w) {
    struct cache_state *c = &r->caches[w];
    double stored_tokens = c->stored_tokens;

    prefix_lru_drop_worker(r->lru, w);
    routing_reset_cache(c, c->epoch + 1);
    c->stored_tokens = stored_tokens;
    c->n_entered = prefix_lru_n_entered(r->lru, w);
}

void routing_forget_cache(struct routing *r, uint32_t w) {
    assert(w < r->load.n_workers);
    routing_drop_cache(r, w);
    routing_fit_cache(r, w, 0);
}

/* --- by the events of a worker ---------------------------------------------------------------- */

void routing_note_capacity(struct routing *r, uint32_t w, double tokens) {
    const struct load_worker *k = &r->load.workers[w];
    double declared = k->capacity_tokens + load_below_tokens(k);

    capacity_count(&r->caches[w].device, declared > 0 ? tokens / declared : 0);
    capacity_count(&r->caches[w].below, declared > 0 ? tokens / declared : 0);
    routing_fit_cache(r, w, 0);
}

/* Tokens that requests have entered here and the worker has not stored yet, at most: those of open
 * requests, and of those that ended since it was last heard of. The bound also forgets what was
 * entered while no events came. */
static double most_unstored(const struct load_worker *k, const struct cache_state *c) {
    return k->resident_tokens + k->capacity_tokens * c->device.factor * UNSTORED_SHARE;
}

/* Tokens that open requests may have stored and that are entered when they end: output, and what of
 * their prompts has no record. */
static double most_unentered(const struct routing *r, uint32_t w, uint64_t now_us) {
    const struct cache_state *c = &r->caches[w];

    return load_growing_tokens(&r->load, &r->load.workers[w], now_us) +
           (double)MAX(c->unrecorded_bytes, 0) / r->bytes_per_token;
}

bool routing_note_stored(struct routing *r, uint32_t w, double tokens, uint64_t now_us) {
    const struct load_worker *k = &r->load.workers[w];
    struct cache_state *c = &r->caches[w];
    uint64_t n_entered = prefix_lru_n_entered(r->lru, w);
    double n_foreign;

    assert(w < r->load.n_workers);
    c->excess_tokens += MAX(tokens - c->stored_tokens, 0);
    c->excess_tokens -= (double)(n_entered - c->n_entered) * r->tokens_per_block;
    c->excess_tokens = MAX(c->excess_tokens, -most_unstored(k, c));
    c->excess_tokens = MIN(c->excess_tokens, k->capacity_tokens * c->device.factor);
    c->stored_tokens = tokens;
    c->n_entered = n_entered;
    n_foreign = floor((c->excess_tokens - most_unentered(r, w, now_us)) / r->tokens_per_block);
    if (n_foreign < 1) return false;
    prefix_lru_fill(r->lru, w, (uint32_t)MIN(n_foreign, ROUTING_FILL_MAX));
    c->excess_tokens -= MIN(n_foreign, ROUTING_FILL_MAX) * r->tokens_per_block;
    return n_foreign > ROUTING_FILL_MAX;
}

/* --- what has no hashes ----------------------------------------------------------------------- */

int64_t routing_unrecorded_bytes(const struct routing *r, const struct route_ticket *t) {
    return (int64_t)t->prompt_bytes - (int64_t)t->n_recorded * r->options.prefix_block_bytes;
}

/* The worker keeps its own full blocks, which are smaller than ours; the remainder, positive or
 * negative, is carried to the next request. */
uint32_t routing_anonymous_blocks(struct routing *r, const struct route_ticket *t,
                                  double output_tokens) {
    uint32_t w = t->load.worker;
    double block_bytes = r->options.prefix_block_bytes;
    double tokens = (double)(int64_t)t->prompt_bytes / r->bytes_per_token + output_tokens;
    double kv_block_bytes = r->load.workers[w].block_size * r->bytes_per_token;
    double kept_bytes = floor(tokens / r->load.workers[w].block_size + ROUNDING) * kv_block_bytes;
    double rest = r->caches[w].rest_bytes + kept_bytes - t->n_blocks * block_bytes;
    double n = floor(MAX(rest, 0) / block_bytes + ROUNDING);

    r->caches[w].rest_bytes =
        MAX(rest - n * block_bytes, -ROUTING_BLOCKS_OVERCOUNTED_MAX * block_bytes);
    return (uint32_t)MIN(n, (double)UINT32_MAX);
}

/* --- looking in, and taken along -------------------------------------------------------------- */

uint32_t routing_walk(const struct routing *r, uint32_t w, struct prefix_walk *walk,
                      uint64_t *items, uint32_t max) {
    return prefix_lru_walk(r->lru, w, walk, items, max);
}

uint32_t routing_restore(struct routing *r, uint32_t w, const uint64_t *items, uint32_t n) {
    return prefix_lru_restore(r->lru, w, items, n);
}

double routing_capacity_factor(const struct routing *r, uint32_t w) {
    assert(w < r->load.n_workers);
    return r->caches[w].device.factor;
}
