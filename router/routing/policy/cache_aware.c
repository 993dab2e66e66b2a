/* router/routing/policy/cache_aware.c - where most of the prompt went before, unless the fleet is
 * uneven.
 *
 * Follows `cache_aware` of smg and sglang-router (model_gateway/src/policies/cache_aware.rs, its
 * string tree):
 *
 *     uneven: most - least in flight > balance_abs and most > balance_rel x least
 *             ──▶ least (in flight, requests ever sent, id)
 *     even, and matched / total > cache_threshold ──▶ the owner of the deepest node
 *     even, and less is known ──▶ least
 *
 * and the prompt is entered for the chosen worker. The owner of a node is the first worker that was
 * sent it: holders are not compared by load, so a hot prefix stays with its owner until the fleet
 * is uneven; and the threshold is a share of the prompt, so a shared opening that is short beside
 * the rest is never a hit.
 *
 * Constants, those of the command line there: --cache-threshold 0.3, --balance-abs-threshold 64,
 * --balance-rel-threshold 1.5, --max-tree-size 67,108,864. (Its library has 0.5, 32, 1.1, 10,000.)
 * Differs: matches whole blocks of the raw prompt, roles included, where smg matches characters of
 * the message texts. The tree's size is text bytes of all workers together, as in newer versions,
 * and is kept at every insertion, oldest and deepest first, instead of by a sweep each
 * --eviction-interval. An owner that is down is replaced by another holder, and without one the
 * request goes to the least loaded (smg: to the first healthy worker, and is not entered). A
 * worker that leaves or restarts is forgotten. The gates on KV usage, off by default there, do not
 * exist. */
#include "common/base/mem.h"
#include "router/routing/policy/block_table.h"
#include "router/routing/policy/choose.h"

struct cache_aware {
    struct block_table *table;
    struct policy_options options;
};

static void cache_aware_configure(void *self, const struct policy_options *options) {
    struct cache_aware *p = self;

    p->options = *options;
}

static void *cache_aware_create(const struct policy_options *options, uint32_t n_workers) {
    struct cache_aware *p = mem_zalloc(sizeof(*p));
    uint64_t n_blocks = options->max_tree_bytes / options->block_bytes;

    cache_aware_configure(p, options);
    p->table = block_table_create((uint32_t)MAX(n_blocks, 1), n_workers);
    if (p->table) return p;
    mem_free(p);
    return NULL;
}

static void cache_aware_destroy(void *self) {
    struct cache_aware *p = self;

    block_table_destroy(p->table);
    mem_free(p);
}

static uint32_t least(const struct policy_view *view) {
    const struct load_worker *workers = view->load->workers;
    uint32_t best = WORKER_NONE;

    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) {
        const struct load_worker *k = &workers[w], *b = &workers[best == WORKER_NONE ? w : best];

        if (best == WORKER_NONE || k->in_flight < b->in_flight ||
            (k->in_flight == b->in_flight && k->n_sent < b->n_sent))
            best = w;
    }
    return best;
}

/* Bytes of the leading blocks that any worker was sent; *deepest is the entry of the last of
 * them. */
static uint64_t match(const struct cache_aware *p, const struct route_request *rq,
                      struct block_holders *deepest) {
    uint32_t n = 0;

    while (n < rq->n_blocks && block_table_find(p->table, rq->chain[n], deepest))
        n++;
    return (uint64_t)n * p->options.block_bytes;
}

/* The owner, or another holder when the owner is no candidate, or WORKER_NONE. */
static uint32_t holder(const struct policy_view *view, const struct block_holders *h) {
    if (worker_mask_has(view->candidates, h->owner)) return h->owner;
    WORKER_MASK_FOR_EACH(w, h->mask, view->load->n_words) {
        if (worker_mask_has(view->candidates, w)) return w;
    }
    return WORKER_NONE;
}

static uint32_t cache_aware_pick(void *self, const struct route_request *rq,
                                 const struct policy_view *view, struct policy_term *terms) {
    const struct cache_aware *p = self;
    const struct policy_options *o = &p->options;
    struct choose_spread s = choose_spread(view, view->candidates);
    uint64_t total = MIN(rq->prompt_bytes, (uint64_t)rq->n_blocks * o->block_bytes), matched;
    struct block_holders deepest;
    uint32_t w = WORKER_NONE;

    choose_mark(view, terms);
    if (s.max - s.min > o->balance_abs && s.max > o->balance_rel * s.min) return least(view);
    matched = MIN(match(p, rq, &deepest), total);
    if (matched && (double)matched > o->cache_threshold * (double)total) w = holder(view, &deepest);
    return w != WORKER_NONE ? w : least(view);
}

/* Last block first: of equal age, the deepest is the oldest and goes first. */
static void cache_aware_sent(void *self, const struct route_request *rq, uint32_t w) {
    struct cache_aware *p = self;

    for (uint32_t i = rq->n_blocks; i-- > 0;)
        block_table_put(p->table, rq->chain[i], w, rq->now_us);
}

static void cache_aware_worker_up(void *self, uint32_t w, const struct worker_spec *spec) {
    block_table_worker_up(((struct cache_aware *)self)->table, w, spec);
}

static void cache_aware_worker_down(void *self, uint32_t w) {
    block_table_worker_down(((struct cache_aware *)self)->table, w);
}

const struct policy_ops policy_cache_aware = {
    .name = "cache_aware",
    .create = cache_aware_create,
    .destroy = cache_aware_destroy,
    .configure = cache_aware_configure,
    .pick = cache_aware_pick,
    .sent = cache_aware_sent,
    .worker_up = cache_aware_worker_up,
    .worker_down = cache_aware_worker_down,
};
