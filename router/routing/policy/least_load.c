/* router/routing/policy/least_load.c - the candidate with the fewest requests in flight, for
 * comparison. Ties rotate: among equals the first after the last choice, by ascending id, so that
 * an idle fleet is used evenly and tests are deterministic. */
#include "common/base/mem.h"
#include "router/routing/policy.h"

struct least_load {
    uint32_t next;
};

static void *least_load_create(const struct policy_options *options, uint32_t n_workers) {
    (void)options;
    (void)n_workers;
    return mem_zalloc(sizeof(struct least_load));
}

static uint32_t least_load_pick(void *self, const struct route_request *rq,
                                const struct policy_view *view, struct policy_term *terms) {
    struct least_load *p = self;
    const struct load *load = view->load;
    uint32_t n_words = load->n_words, best = WORKER_NONE;

    (void)rq;
    WORKER_MASK_FOR_EACH(w, view->candidates, n_words) {
        uint32_t n = load->workers[w].in_flight;
        bool is_less = best == WORKER_NONE || n < load->workers[best].in_flight;
        bool is_tie_in_turn = best != WORKER_NONE && n == load->workers[best].in_flight &&
                              best < p->next && w >= p->next;

        if (is_less || is_tie_in_turn) best = w;
        if (terms) terms[w] = (struct policy_term){.is_candidate = true, .cost_s = n};
    }
    if (!terms) p->next = best + 1;
    return best;
}

const struct policy_ops policy_least_load = {
    .name = "least_load",
    .create = least_load_create,
    .destroy = mem_free,
    .pick = least_load_pick,
};
