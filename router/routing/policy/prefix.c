/* router/routing/policy/prefix.c - the default: the worker where the request costs least, to itself
 * and to the others. In seconds, for worker w:
 *
 *     cost(w) = max(wait(w), fetch(w), memory(w)) + u(w) x (1 + s(w) x (later + fleet x least L
 *               + decoding x L(w) + queued x Q(w))) + slot x L(w)
 *
 *     wait    prefill of what was sent to w before and has no first token yet
 *     memory  until enough KV memory is free there
 *     u       prefill of what w does not hold of this prompt, attention included
 *     fetch   until what another worker holds of it is there, where that is quicker than computing
 *             it (fetch.h); then u is of the rest, and w works on others meanwhile
 *     L       requests in flight on w; Q  those of them without a first token
 *     s       speed of prefill by the candidates' mean: a second of a slow worker is worth less to
 *             the others; 1 where all are equal
 *
 * later (--cost-later-arrivals) weighs later arrivals, which every second of prefill delays; fleet
 * (--cost-fleet-busy) makes them more the fuller the whole fleet is: while any worker is idle, a
 * hot prefix is soon computed there, but when all are busy what is cached must decide. decoding
 * (--cost-decoding) weighs the sequences that decode on w meanwhile, slot (--cost-batch-slot) the
 * larger batch. queued (--cost-queued) weighs those that will queue behind: a queue is where the
 * next ones come too, and the more so the longer it is, so a long prompt goes where there is none
 * and short ones share what is left. Nothing else is needed for hot prefixes: when their worker is
 * busy enough, computing them once more elsewhere is cheaper.
 *
 * A worker that computes the shortest prompt first (WORKER_SRPT) is priced by what it does
 * (--order-aware): wait is the rest of those shorter than u alone, and each longer one, which is
 * passed, weighs 1 more. Without queued x Q beside it, 32 x 700k at 0.95 has a mean of 1.00 s
 * instead of 0.96, 16 x 700k 1.09 instead of 1.06. auto does so while answers take less than half
 * of the workers' time: first tokens come sooner and answers end later, for more decode at once.
 * Requests are held by that wait too (router/queue/hold.h), whether the price knows it or not: the
 * price sends a prompt to where long ones are pending, and must not be overruled for what these
 * take.
 *
 * Mean time to first token by that of an oracle that sees every queue, batch and cache and
 * minimises the same cost with later 2 and queued 0 (make replay-bars TRACE=, seeds 1-5):
 *
 *     workers x tokens, load    16 x 700k 0.8  0.95   16 x 7M 0.95   4, 8, 32 x 700k 0.95
 *     as it is                           0.98  0.95           1.01   0.77  0.86  0.98
 *     tokens found cached                1.04  1.05           1.07   1.04  1.08  1.07
 *     whole answers                      1.01  0.98           0.91   0.92  0.93  1.02
 *     fleet 0, decoding 0.07             0.97  0.94           0.95   0.78  0.87  0.95
 *     tokens found cached                1.03  1.02           1.03   1.03  1.05  1.04
 *
 * So fleet gives some of the time to first token for more tokens found and sooner ends. A capacity
 * declared x0.5 to x8 costs 3 % at load 0.8.
 *
 * When more comes than can be computed (16 x 7M, load 1.00) queued matters most, and so does that Q
 * has no limit: without fleet the mean is 1.4 s, and would be 2.8 s if no more than 3 were counted.
 *
 * Costs within 1 % of the least are equal, and go to the worker that wins the rendezvous on the
 * first block that is not widely held (the last block when all are): so cold and short prompts
 * have a home, which every replica and every restart agrees on.
 *
 * Routers without shared events (third-party workers and no --share) see their own requests alone
 * and split each conversation between as many workers as there are routers. --home-weight F makes
 * them agree more often: a prompt that no worker is known to hold beyond what is widely held costs
 * F of its prefill less at its home. It trades time to first token for tokens found (16 x 700k,
 * load 0.8; tokens found, of those that one cache of the fleet's size would, and mean seconds, of R
 * routers that see their own requests alone):
 *
 *     home_weight          0            1            2
 *     R = 1        91 % 0.97    91 % 0.99    90 % 1.08
 *     R = 2        67 % 1.51    76 % 1.72    81 % 1.90
 *     R = 4        54 % 2.05    75 % 2.48    83 % 2.83
 *
 * A worker with more than max_load_factor x the mean in flight + load_floor is not priced, unless
 * that leaves none: a guard for loads that the formula does not see, such as endless decoding. */
#include <float.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/policy.h"

#define TIE_MARGIN       0.01
#define COST_PASSED      1.0 /* of each longer prompt that is passed, per second of new prefill */
#define DECODE_SHARE_MAX 0.5 /* of the workers' time: above, passing costs more than it saves */
#define SPEED_ROUNDING   1e-9

struct prefix {
    struct policy_options options;
    double *costs;       /* by worker id; only of the last pick */
    double later_weight; /* of that pick: what new prefill costs later arrivals */
    double mean_speed;   /* of its candidates */
    bool is_aware;       /* of the workers' order */
};

static void prefix_configure(void *self, const struct policy_options *options) {
    struct prefix *p = self;

    p->options = *options;
}

static void *prefix_create(const struct policy_options *options, uint32_t n_workers) {
    struct prefix *p = mem_zalloc(sizeof(*p));

    prefix_configure(p, options);
    p->costs = mem_calloc(n_workers, sizeof(*p->costs));
    return p;
}

static void prefix_destroy(void *self) {
    struct prefix *p = self;

    mem_free(p->costs);
    mem_free(p);
}

/* Speed of w by the candidates' mean. Exactly 1 where all are equal, whatever a sum rounds to. */
static double relative_speed(const struct prefix *p, const struct load *load, uint32_t w) {
    double speed = load->tokens_per_s[w] / p->mean_speed;

    return fabs(speed - 1) < SPEED_ROUNDING ? 1 : speed;
}

/* Prefill before this one on w; *queued: what those behind it weigh. */
static double wait_s(const struct prefix *p, const struct load *load, uint32_t w, double prefill_s,
                     uint64_t now_us, double *queued) {
    const struct load_worker *k = &load->workers[w];
    uint32_t n_longer;
    double before_s;

    if (!p->is_aware || !worker_mask_has(load->srpt.words, w)) {
        *queued = p->options.cost_queued * k->n_pending;
        return load_wait_s(k, now_us);
    }
    before_s = load_wait_shorter_s(load, w, prefill_s, now_us, &n_longer);
    *queued = p->options.cost_queued * k->n_pending + COST_PASSED * n_longer;
    return before_s;
}

static struct policy_term price(const struct prefix *p, const struct route_request *rq,
                                const struct policy_view *view, uint32_t w) {
    const struct load *load = view->load;
    const struct load_worker *k = &load->workers[w];
    double in_flight = k->in_flight, new_tokens, queued, speed, weight;
    struct policy_prefill u = policy_prefill(view, w);
    struct policy_term t = {.is_candidate = true};

    t.matched_tokens = u.cached_tokens;
    t.below_tokens = u.below_tokens;
    t.fetch_tokens = u.fetch.fetch_tokens;
    t.fetch_s = u.fetch.fetch_s;
    t.source = u.fetch.source;
    t.prefill_s = u.work_s;
    new_tokens = view->prompt_tokens - u.cached_tokens + u.below_tokens + u.fetch.fetch_tokens;
    t.memory_s = load_memory_wait_s(load, k, new_tokens + load->mean_output_tokens);
    t.wait_s = wait_s(p, load, w, t.prefill_s, rq->now_us, &queued);
    speed = relative_speed(p, load, w);
    weight =
        1 + p->later_weight * speed + p->options.cost_decoding * in_flight * speed + queued * speed;
    t.cost_s = MAX(MAX(t.wait_s, t.fetch_s), t.memory_s) + t.prefill_s * weight +
               u.fetch.displaced_s * (weight - 1) + p->options.cost_batch_slot_s * in_flight;
    return t;
}

/* Prices the workers with at most `limit` requests in flight. Returns the least cost, INFINITY if
 * there are none. */
static double price_all(struct prefix *p, const struct route_request *rq,
                        const struct policy_view *view, double limit, struct policy_term *terms) {
    const struct load *load = view->load;
    double least = INFINITY;

    WORKER_MASK_FOR_EACH(w, view->candidates, load->n_words) {
        p->costs[w] = INFINITY;
        if (load->workers[w].in_flight > limit) continue;
        struct policy_term t = price(p, rq, view, w);
        p->costs[w] = t.cost_s;
        least = MIN(least, t.cost_s);
        if (terms) terms[w] = t;
    }
    return least;
}

/* Does any candidate hold more of the prompt than what is widely held? */
static bool is_known(const struct policy_view *view) {
    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) {
        if (view->matched_blocks[w] > view->n_shared_blocks) return true;
    }
    return false;
}

static uint64_t rendezvous_key(const struct route_request *rq, const struct policy_view *view) {
    if (!rq->n_blocks) return rq->session_key;
    return rq->chain[MIN(view->n_shared_blocks, rq->n_blocks - 1)];
}

/* The rendezvous winner among those that cost at most `most`. */
static uint32_t home_of(const struct prefix *p, const struct policy_view *view, uint64_t key,
                        double most) {
    const struct load *load = view->load;
    uint32_t best = WORKER_NONE;
    uint64_t best_weight = 0;

    WORKER_MASK_FOR_EACH(w, view->candidates, load->n_words) {
        uint64_t weight;

        if (p->costs[w] > most) continue;
        weight = rng_mix(load->workers[w].spec.identity ^ key);
        if (best != WORKER_NONE && weight <= best_weight) continue;
        best = w;
        best_weight = weight;
    }
    return best;
}

/* Takes home_weight of the prefill off what the home costs; returns the least cost then. */
static double favour_home(struct prefix *p, const struct route_request *rq,
                          const struct policy_view *view, double least, struct policy_term *terms) {
    uint32_t home = home_of(p, view, rendezvous_key(rq, view), DBL_MAX);
    struct policy_term t;

    if (home == WORKER_NONE) return least;
    t = price(p, rq, view, home);
    p->costs[home] = MAX(p->costs[home] - p->options.home_weight * t.prefill_s, 0);
    if (terms) terms[home].cost_s = p->costs[home];
    return MIN(least, p->costs[home]);
}

static bool is_aware(const struct prefix *p, const struct load *load) {
    if (p->options.order_aware != ORDER_AWARE_AUTO) return p->options.order_aware == ORDER_AWARE_ON;
    return load_decode_share(load) < DECODE_SHARE_MAX;
}

static uint32_t prefix_pick(void *self, const struct route_request *rq,
                            const struct policy_view *view, struct policy_term *terms) {
    struct prefix *p = self;
    const struct load *load = view->load;
    double limit = INFINITY, least;

    if (p->options.max_load_factor > 0)
        limit = p->options.max_load_factor * load_mean_in_flight(load) + p->options.load_floor;
    p->later_weight = p->options.cost_later_arrivals +
                      p->options.cost_fleet_busy * load_least_in_flight(load, view->candidates);
    p->mean_speed = load_mean_speed(load, view->candidates);
    p->is_aware = is_aware(p, load);
    least = price_all(p, rq, view, limit, terms);
    if (least == INFINITY) least = price_all(p, rq, view, INFINITY, terms);
    if (p->options.home_weight > 0 && rq->n_blocks && !is_known(view))
        least = favour_home(p, rq, view, least, terms);
    return home_of(p, view, rendezvous_key(rq, view), least * (1 + TIE_MARGIN));
}

const struct policy_ops policy_prefix = {
    .name = "prefix",
    .create = prefix_create,
    .destroy = prefix_destroy,
    .configure = prefix_configure,
    .pick = prefix_pick,
};
