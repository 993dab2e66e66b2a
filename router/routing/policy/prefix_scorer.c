/* router/routing/policy/prefix_scorer.c - a weighted sum of three scores from 0 to 1; the largest
 * wins.
 *
 * Follows the default profile of the Gateway API inference extension's endpoint picker (EPP), as
 * llm-d ships it, with its approximate prefix index:
 *
 *     score(w) = 2 x queue + 2 x (1 - KV utilisation) + 3 x matched / total blocks
 *
 *     queue   (most - own) / (most - least) of the requests waiting; 1 for all when they are equal.
 *             The one whose prompt is being computed does not wait.
 *     total   blocks of the prompt, at most 256 of 64 bytes: what follows is ignored
 *
 * random among equals. Constants: --queue-scorer-weight 2, --kv-cache-utilization-scorer-weight 2,
 * --prefix-cache-scorer-weight 3, --max-prefix-blocks-to-match 256.
 * Differs: the index and the per-worker LRU are those of the router (capacity as the worker
 * declares it, which is what autoTune does there), in blocks of 256 bytes. EPP scrapes queue and
 * utilisation from the engines; here they are the requests without a first token, less one, and
 * the KV tokens expected in use, as the router itself counts them: never late, and without what
 * others send. */
#include "common/base/mem.h"
#include "router/routing/policy/choose.h"

#define EPP_BLOCK_BYTES 64 /* 16 tokens of 4 characters */

struct prefix_scorer {
    double queue_weight, kv_weight, prefix_weight;
    uint32_t max_blocks; /* of ours */
    struct rng rng;
};

static void prefix_scorer_configure(void *self, const struct policy_options *options) {
    struct prefix_scorer *p = self;
    uint64_t max_bytes = (uint64_t)options->scorer_max_blocks * EPP_BLOCK_BYTES;

    p->queue_weight = options->scorer_queue_weight;
    p->kv_weight = options->scorer_kv_weight;
    p->prefix_weight = options->scorer_prefix_weight;
    p->max_blocks = (uint32_t)MAX(max_bytes / options->block_bytes, 1);
}

static void *prefix_scorer_create(const struct policy_options *options, uint32_t n_workers) {
    struct prefix_scorer *p = mem_zalloc(sizeof(*p));

    (void)n_workers;
    prefix_scorer_configure(p, options);
    rng_seed(&p->rng, options->seed);
    return p;
}

static uint32_t n_waiting(const struct load_worker *k) {
    return k->n_pending ? k->n_pending - 1 : 0;
}

static double score(const struct prefix_scorer *p, const struct route_request *rq,
                    const struct policy_view *view, uint32_t w, uint32_t least, uint32_t most) {
    const struct load_worker *k = &view->load->workers[w];
    uint32_t total = MIN(rq->n_blocks, p->max_blocks);
    double queue = most > least ? (double)(most - n_waiting(k)) / (most - least) : 1;
    double used = MIN(k->resident_tokens / k->capacity_tokens, 1);
    double prefix = total ? (double)MIN(view->matched_blocks[w], total) / total : 0;

    return p->queue_weight * queue + p->kv_weight * (1 - used) + p->prefix_weight * prefix;
}

static uint32_t prefix_scorer_pick(void *self, const struct route_request *rq,
                                   const struct policy_view *view, struct policy_term *terms) {
    struct prefix_scorer *p = self;
    struct rng rng = p->rng;
    uint32_t best = WORKER_NONE, n_equal = 0, least = UINT32_MAX, most = 0;
    double best_score = 0;

    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) {
        least = MIN(least, n_waiting(&view->load->workers[w]));
        most = MAX(most, n_waiting(&view->load->workers[w]));
    }
    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) {
        double s = score(p, rq, view, w, least, most);

        if (best == WORKER_NONE || s > best_score)
            n_equal = 0;
        else if (s < best_score)
            continue;
        if (rng_below(&rng, ++n_equal) > 0) continue;
        best = w;
        best_score = s;
    }
    choose_mark(view, terms);
    if (!terms) p->rng = rng;
    return best;
}

const struct policy_ops policy_prefix_scorer = {
    .name = "prefix_scorer",
    .create = prefix_scorer_create,
    .destroy = mem_free,
    .configure = prefix_scorer_configure,
    .pick = prefix_scorer_pick,
};
