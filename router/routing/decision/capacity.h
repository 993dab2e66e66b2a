/* router/routing/decision/capacity.h - how large a cache is, by the share of prompts found in it.
 *
 * The capacity is what the worker declares times a factor. The factor stays as it is while reports
 * agree with predictions. The two kinds of difference are not symmetric:
 *
 * - Surplus: much more was cached than predicted. Only a cache larger than assumed does that, so
 *   each such report raises the factor and opens a search: the factor creeps up until prompts are
 *   missed or CAPACITY_SEARCH_REPORTS have passed. Without a search a cache declared far too small would stay
 *   unseen, because requests that would show it are sent elsewhere.
 * - Miss: less was cached. That happens with the right capacity too: a block that matches when a
 *   request is sent may be evicted before its turn, more often on a full worker. So a share of
 *   misses is allowed, and the rest adds up until it is worth two whole prompts.
 *
 * One report, worked out (test_routing_learning.c runs it). 20 requests of 1,600 tokens were sent
 * to a worker; 160 tokens of each were predicted to be cached. The worker counts 20 first tokens,
 * 32,000 tokens looked up and 12,800 found:
 *
 *     shares    predicted 3,200 / 32,000 = 0.10, found 12,800 / 32,000 = 0.40, surplus 0.30
 *     surplus   0.30 >= CAPACITY_SURPLUS_MIN: factor x CAPACITY_GROWTH^(0.30 x 20) = 1.05^6 = 1.340
 *     search    n_search = 256; each later request that agrees: factor x 1.002
 *
 * A miss after that ends the search. One answer with 0.60 predicted and 0.20 found adds 0.40 to
 * missed_prompts; the next takes 0.125 x 0.60 away first. The sixth such answer brings it above 2:
 * 0.40 + 5 x (0.40 - 0.075) = 2.025, and the factor is multiplied by CAPACITY_SHRINK = 0.9.
 *
 * A worker whose events are counted has a factor that is never above its count. Others may use the
 * worker too: what of it is left to our requests is still learned, by misses, and found again by
 * surplus.
 *
 * A worker with memory below its device has two: of the device, by what was found there, and of
 * what is below, by what was found in all. Pure. */
#ifndef ROUTER_ROUTING_DECISION_CAPACITY_H
#define ROUTER_ROUTING_DECISION_CAPACITY_H

#include <assert.h>
#include <math.h>

#include "common/base/base.h"

#define CAPACITY_SURPLUS_MIN        0.125 /* share: a smaller surplus is the edge of the evicted part */
#define CAPACITY_SURPLUS_RATIO      2.0   /* found / predicted: less is such an edge too */
#define CAPACITY_GROWTH             1.05  /* factor per prompt of surplus */
#define CAPACITY_SEARCH_GROWTH      1.002 /* factor per request while a search lasts */
#define CAPACITY_SEARCH_REPORTS     256   /* requests that a search lasts */
#define CAPACITY_SHRINK             0.9   /* factor per CAPACITY_MISSED_PROMPTS_MAX */
#define CAPACITY_MISSED_SHARE       0.125 /* of predicted tokens: above the misses at saturation */
#define CAPACITY_MISSED_PROMPTS_MAX 2.0   /* prompts missed in all beyond the allowed share */
#define CAPACITY_PROMPTS_MAX        64    /* prompts that one report counts as at most */
#define CAPACITY_MIN                (1.0 / 64)
#define CAPACITY_MAX                64.0

struct capacity {
    double factor;         /* learned; 1 to begin with */
    double missed_prompts; /* beyond the allowed share */
    uint32_t n_search;     /* requests left of a search */
    double counted;        /* by the worker's events: the largest factor; 0: none */
};

static inline void capacity_init(struct capacity *c) {
    *c = (struct capacity){.factor = 1};
}

/* Takes the factor over from elsewhere; out of range: does nothing. */
static inline void capacity_take(struct capacity *c, double factor) {
    if (factor < CAPACITY_MIN || factor > CAPACITY_MAX) return;
    c->factor = c->counted > 0 ? MIN(factor, c->counted) : factor;
}

/* The factor by the worker's own count; 0: it is no longer known. The first one takes the place of
 * what was learned; of later ones the factor keeps its share. */
static inline void capacity_count(struct capacity *c, double factor) {
    double was = c->counted;

    c->counted = factor > 0 ? MIN(MAX(factor, CAPACITY_MIN), CAPACITY_MAX) : 0;
    if (c->counted > 0 && was == 0) *c = (struct capacity){c->counted, .counted = c->counted};
    if (c->counted > 0 && was > 0)
        c->factor = MIN(MAX(c->factor / was * c->counted, CAPACITY_MIN), c->counted);
}

/* Compares the cached shares of n prompts. A difference below `tolerance` counts as none. */
static inline void capacity_weigh(struct capacity *c, uint32_t n, double predicted, double found,
                                  double tolerance) {
    double excess = found - predicted, n_prompts = MIN(n, CAPACITY_PROMPTS_MAX);

    c->missed_prompts = MAX(c->missed_prompts - CAPACITY_MISSED_SHARE * predicted * n_prompts, 0);
    if (excess >= MAX(tolerance, CAPACITY_SURPLUS_MIN)) {
        c->factor *= pow(CAPACITY_GROWTH, fmax(excess * n_prompts, 1));
        c->n_search = CAPACITY_SEARCH_REPORTS;
    } else if (excess <= -tolerance) {
        c->missed_prompts -= excess * n_prompts;
        c->n_search = 0;
    } else if (c->n_search) {
        uint32_t n_steps = MIN(n, c->n_search);

        c->factor *= pow(CAPACITY_SEARCH_GROWTH, n_steps);
        c->n_search -= n_steps;
    }
    for (; c->missed_prompts > CAPACITY_MISSED_PROMPTS_MAX;
         c->missed_prompts -= CAPACITY_MISSED_PROMPTS_MAX)
        c->factor *= CAPACITY_SHRINK;
    c->factor = MIN(MAX(c->factor, CAPACITY_MIN), c->counted > 0 ? c->counted : CAPACITY_MAX);
}

/* The same of one prompt. When most of what was found was predicted, the boundary between kept and
 * evicted blocks runs through this prompt. Its place follows from an estimate (load_growing_tokens)
 * and proves nothing. */
static inline void capacity_weigh_prompt(struct capacity *c, double predicted, double found,
                                         double tolerance) {
    if (found > predicted && found < predicted * CAPACITY_SURPLUS_RATIO) found = predicted;
    capacity_weigh(c, 1, predicted, found, tolerance);
}

/* Asserts the ranges. */
static inline void capacity_check(const struct capacity *c) {
    assert(c->factor >= CAPACITY_MIN && c->factor <= CAPACITY_MAX);
    assert(c->missed_prompts >= 0 && c->missed_prompts <= CAPACITY_MISSED_PROMPTS_MAX);
    assert(c->n_search <= CAPACITY_SEARCH_REPORTS);
    assert(c->counted == 0 || c->factor <= c->counted);
    (void)c;
}

#endif
