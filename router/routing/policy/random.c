/* router/routing/policy/random.c - any candidate, all equally likely. To compare with.
 *
 * Follows `random` of smg and sglang-router. Constants: none. */
#include "common/base/mem.h"
#include "router/routing/policy/choose.h"

static uint32_t random_pick(void *self, const struct route_request *rq,
                            const struct policy_view *view, struct policy_term *terms) {
    struct rng *own = self, rng = *own;
    uint32_t w = choose_random(view, view->candidates, &rng);

    (void)rq;
    choose_mark(view, terms);
    if (!terms) *own = rng;
    return w;
}

const struct policy_ops policy_random = {
    .name = "random",
    .create = choose_rng_create,
    .destroy = mem_free,
    .pick = random_pick,
};
