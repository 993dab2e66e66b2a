/* router/routing/policy/power_of_two.c - of two random candidates the one with fewer requests in
 * flight.
 *
 * Follows `power_of_two` of smg and sglang-router, and power-of-two of AIBrix: two different
 * workers are drawn, the first one wins a tie. Theory: Mitzenmacher, The Power of Two Choices in
 * Randomized Load Balancing. Constants: two.
 * Differs: smg compares token usage when both workers report it; this counts requests always. */
#include "common/base/mem.h"
#include "router/routing/policy/choose.h"

static uint32_t power_of_two_pick(void *self, const struct route_request *rq,
                                  const struct policy_view *view, struct policy_term *terms) {
    struct rng *own = self, rng = *own;
    const struct load_worker *workers = view->load->workers;
    uint32_t n = worker_mask_count(view->candidates, view->load->n_words);
    uint32_t i = (uint32_t)rng_below(&rng, n), j, a, b;

    (void)rq;
    choose_mark(view, terms);
    a = b = choose_nth(view, view->candidates, i);
    if (n > 1) {
        j = (uint32_t)rng_below(&rng, n - 1);
        b = choose_nth(view, view->candidates, j + (j >= i));
    }
    if (!terms) *own = rng;
    return workers[b].in_flight < workers[a].in_flight ? b : a;
}

const struct policy_ops policy_power_of_two = {
    .name = "power_of_two",
    .create = choose_rng_create,
    .destroy = mem_free,
    .pick = power_of_two_pick,
};
