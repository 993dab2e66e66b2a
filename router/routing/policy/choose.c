/* router/routing/policy/choose.c - loops over the members of a mask. */
#include "router/routing/policy/choose.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"

struct choose_spread choose_spread(const struct policy_view *view, const uint64_t *set) {
    struct choose_spread s = {.min = UINT32_MAX};
    double squares = 0;

    WORKER_MASK_FOR_EACH(w, set, view->load->n_words) {
        uint32_t n = view->load->workers[w].in_flight;

        s.n++;
        s.total += n;
        squares += (double)n * n;
        s.min = MIN(s.min, n);
        s.max = MAX(s.max, n);
    }
    assert(s.n);
    s.mean = (double)s.total / s.n;
    s.stddev = sqrt(fmax(0, squares / s.n - s.mean * s.mean));
    return s;
}

uint32_t choose_nth(const struct policy_view *view, const uint64_t *set, uint32_t k) {
    WORKER_MASK_FOR_EACH(w, set, view->load->n_words) {
        if (!k--) return w;
    }
    assert(!"k is below the count");
    return WORKER_NONE;
}

uint32_t choose_random(const struct policy_view *view, const uint64_t *set, struct rng *rng) {
    uint32_t n = worker_mask_count(set, view->load->n_words);

    return choose_nth(view, set, (uint32_t)rng_below(rng, n));
}

uint32_t choose_least(const struct policy_view *view, const uint64_t *set, struct rng *rng) {
    const struct load_worker *workers = view->load->workers;
    uint32_t best = WORKER_NONE, n_equal = 0;

    WORKER_MASK_FOR_EACH(w, set, view->load->n_words) {
        if (best == WORKER_NONE || workers[w].in_flight < workers[best].in_flight) {
            best = w;
            n_equal = 1;
        } else if (workers[w].in_flight == workers[best].in_flight) {
            if (rng_below(rng, ++n_equal) == 0) best = w;
        }
    }
    return best;
}

uint32_t choose_home(const struct policy_view *view, uint64_t key, double limit) {
    uint64_t best_weight = 0;
    uint32_t best = WORKER_NONE;

    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) {
        const struct load_worker *k = &view->load->workers[w];
        uint64_t weight = rng_mix(k->spec.identity ^ key);

        if (k->in_flight > limit || (best != WORKER_NONE && weight <= best_weight)) continue;
        best = w;
        best_weight = weight;
    }
    return best;
}

void choose_mark(const struct policy_view *view, struct policy_term *terms) {
    if (!terms) return;
    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) terms[w].is_candidate = true;
}

void *choose_rng_create(const struct policy_options *options, uint32_t n_workers) {
    struct rng *rng = mem_alloc(sizeof(*rng));

    (void)n_workers;
    rng_seed(rng, options->seed);
    return rng;
}
