/* router/routing/policy/aibrix.c - the best match among workers that are not busier than usual.
 *
 * Follows `prefix-cache` of AIBrix (pkg/plugins/gateway/algorithms/prefix_cache.go and the hash
 * table in utils/prefixcacheindexer):
 *
 *     most - least in flight > 8: only the workers with the least are left
 *     of these, by percent of blocks matched, then by fewest in flight, then at random:
 *         the first with in flight <= mean + 1 x standard deviation
 *     none: the fewest in flight, random among equals
 *
 * and the prompt's full blocks are entered for the chosen worker. Looking up does not refresh a
 * block, entering does; a block that was not entered for 20 minutes is forgotten.
 *
 * Constants, those of the code (16 and 2 in its README): --aibrix-imbalance-abs-count 8,
 * --aibrix-stddev-factor 1, --aibrix-block-number 200,000, --aibrix-eviction-duration 20m.
 * Differs: its blocks are 4 bytes and ours 256, so its table of 200,000 blocks is 3,125 of ours:
 * the same 800 KB of distinct prompt text, which is why it seldom finds anything; raise it. The
 * table is swept when it is used instead of every second. Mean and deviation are of the
 * candidates. Workers that leave or restart are forgotten. */
#include <string.h>

#include "common/base/mem.h"
#include "router/routing/policy/block_table.h"
#include "router/routing/policy/choose.h"

#define AIBRIX_BLOCK_BYTES 4

struct aibrix {
    struct block_table *table;
    struct policy_options options;
    uint32_t *depth; /* by worker id; only of the last pick */
    struct rng rng;
};

static void aibrix_destroy(void *self) {
    struct aibrix *p = self;

    block_table_destroy(p->table);
    mem_free(p->depth);
    mem_free(p);
}

static void aibrix_configure(void *self, const struct policy_options *options) {
    struct aibrix *p = self;

    p->options = *options;
}

static void *aibrix_create(const struct policy_options *options, uint32_t n_workers) {
    struct aibrix *p = mem_zalloc(sizeof(*p));
    uint64_t bytes = (uint64_t)options->aibrix_table_blocks * AIBRIX_BLOCK_BYTES;

    aibrix_configure(p, options);
    p->depth = mem_calloc(n_workers, sizeof(*p->depth));
    rng_seed(&p->rng, options->seed);
    p->table = block_table_create((uint32_t)MAX(bytes / options->block_bytes, 1), n_workers);
    if (p->table) return p;
    aibrix_destroy(p);
    return NULL;
}

static uint32_t n_full_blocks(const struct aibrix *p, const struct route_request *rq) {
    return (uint32_t)MIN((uint64_t)rq->n_blocks, rq->prompt_bytes / p->options.block_bytes);
}

static bool is_expired(const struct aibrix *p, uint64_t put_us, uint64_t now_us) {
    return put_us + (uint64_t)p->options.aibrix_ttl_ms * 1000 < now_us;
}

/* depth[w] = leading blocks that w was sent, for each w of `ready`: written when w falls out. */
static void match(struct aibrix *p, const struct route_request *rq, uint32_t n,
                  const uint64_t *ready, uint32_t n_words) {
    struct worker_mask live = {0};
    uint64_t any = 1;
    uint32_t i;

    memcpy(live.words, ready, n_words * sizeof(*live.words));
    for (i = 0; i < n && any; i++) {
        struct block_holders h;

        if (!block_table_find(p->table, rq->chain[i], &h) || is_expired(p, h.put_us, rq->now_us))
            break;
        any = 0;
        for (uint32_t k = 0; k < n_words; k++) {
            uint64_t gone = live.words[k] & ~h.mask[k];

            any |= live.words[k] &= h.mask[k];
            for (; gone; gone &= gone - 1)
                p->depth[k * 64 + (uint32_t)__builtin_ctzll(gone)] = i;
        }
    }
    WORKER_MASK_FOR_EACH(w, live.words, n_words) p->depth[w] = i;
}

/* The members of `ready` that matched and are at most at `limit`: the best, or WORKER_NONE. */
static uint32_t best_match(const struct aibrix *p, const struct policy_view *view,
                           const uint64_t *ready, uint32_t n_blocks, double limit,
                           struct rng *rng) {
    const struct load_worker *workers = view->load->workers;
    uint32_t best = WORKER_NONE, best_percent = 0, n_equal = 0;

    WORKER_MASK_FOR_EACH(w, ready, view->load->n_words) {
        uint32_t percent = n_blocks ? p->depth[w] * 100 / n_blocks : 0;
        bool is_better;

        if (!p->depth[w] || workers[w].in_flight > limit) continue;
        is_better = best == WORKER_NONE || percent > best_percent ||
                    (percent == best_percent && workers[w].in_flight < workers[best].in_flight);
        if (is_better)
            n_equal = 0;
        else if (percent != best_percent || workers[w].in_flight != workers[best].in_flight)
            continue;
        if (rng_below(rng, ++n_equal) == 0) {
            best = w;
            best_percent = percent;
        }
    }
    return best;
}

static uint32_t aibrix_pick(void *self, const struct route_request *rq,
                            const struct policy_view *view, struct policy_term *terms) {
    struct aibrix *p = self;
    struct rng rng = p->rng;
    struct choose_spread s = choose_spread(view, view->candidates);
    struct worker_mask ready = {0};
    uint32_t n = n_full_blocks(p, rq), w;

    WORKER_MASK_FOR_EACH(c, view->candidates, view->load->n_words) {
        if (s.max - s.min <= p->options.aibrix_imbalance_abs ||
            view->load->workers[c].in_flight == s.min)
            worker_mask_add(ready.words, c);
    }
    match(p, rq, n, ready.words, view->load->n_words);
    w = best_match(p, view, ready.words, n, s.mean + p->options.aibrix_stddev_factor * s.stddev,
                   &rng);
    if (w == WORKER_NONE) w = choose_least(view, view->candidates, &rng);
    choose_mark(view, terms);
    if (!terms) p->rng = rng;
    return w;
}

static void aibrix_sent(void *self, const struct route_request *rq, uint32_t w) {
    struct aibrix *p = self;
    uint64_t ttl_us = (uint64_t)p->options.aibrix_ttl_ms * 1000;

    if (rq->now_us > ttl_us) block_table_expire(p->table, rq->now_us - ttl_us);
    for (uint32_t i = 0, n = n_full_blocks(p, rq); i < n; i++)
        block_table_put(p->table, rq->chain[i], w, rq->now_us);
}

static void aibrix_worker_up(void *self, uint32_t w, const struct worker_spec *spec) {
    block_table_worker_up(((struct aibrix *)self)->table, w, spec);
}

static void aibrix_worker_down(void *self, uint32_t w) {
    block_table_worker_down(((struct aibrix *)self)->table, w);
}

const struct policy_ops policy_aibrix = {
    .name = "aibrix",
    .create = aibrix_create,
    .destroy = aibrix_destroy,
    .configure = aibrix_configure,
    .pick = aibrix_pick,
    .sent = aibrix_sent,
    .worker_up = aibrix_worker_up,
    .worker_down = aibrix_worker_down,
};
