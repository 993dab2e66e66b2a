/* router/routing/policy/round_robin.c - each candidate in turn, by ascending id. To compare
 * with. */
#include "common/base/mem.h"
#include "router/routing/policy.h"

struct round_robin {
    uint32_t next; /* the id to look at first */
};

static void *round_robin_create(const struct policy_options *options, uint32_t n_workers) {
    (void)options;
    (void)n_workers;
    return mem_zalloc(sizeof(struct round_robin));
}

static uint32_t round_robin_pick(void *self, const struct route_request *rq,
                                 const struct policy_view *view, struct policy_term *terms) {
    struct round_robin *p = self;
    uint32_t n_words = view->load->n_words;
    uint32_t w = worker_mask_next(view->candidates, n_words, p->next);

    (void)rq;
    if (w == WORKER_NONE) w = worker_mask_next(view->candidates, n_words, 0);
    if (!terms) {
        p->next = w + 1;
        return w;
    }
    WORKER_MASK_FOR_EACH(c, view->candidates, n_words) terms[c].is_candidate = true;
    return w;
}

const struct policy_ops policy_round_robin = {
    .name = "round_robin",
    .create = round_robin_create,
    .destroy = mem_free,
    .pick = round_robin_pick,
};
