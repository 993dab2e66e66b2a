/* router/routing/policy/choose.h - shared by policies: random choice, least loaded, home of a key.
 * All read the in-flight counts of a non-empty mask of view->load->n_words words. Pure. */
#ifndef ROUTER_ROUTING_POLICY_CHOOSE_H
#define ROUTER_ROUTING_POLICY_CHOOSE_H

#include "common/base/rng.h"
#include "router/routing/policy.h"

/* Requests in flight over a set. */
struct choose_spread {
    uint32_t n, min, max;
    uint64_t total;
    double mean, stddev; /* of the population */
};

struct choose_spread choose_spread(const struct policy_view *view, const uint64_t *set);

/* The k-th member, from 0; k is below the count. */
uint32_t choose_nth(const struct policy_view *view, const uint64_t *set, uint32_t k);

/* Uniform. */
uint32_t choose_random(const struct policy_view *view, const uint64_t *set, struct rng *rng);

/* Fewest in flight, random among equals. */
uint32_t choose_least(const struct policy_view *view, const uint64_t *set, struct rng *rng);

/* Of the candidates with at most `limit` in flight the one with the highest rendezvous weight for
 * `key`, or WORKER_NONE: all replicas agree on it, and few keys move when a worker comes or goes.
 * O(workers). */
uint32_t choose_home(const struct policy_view *view, uint64_t key, double limit);

/* For dry runs of policies without costs; terms may be NULL. */
void choose_mark(const struct policy_view *view, struct policy_term *terms);

/* The constructors of policies whose state is one generator. */
void *choose_rng_create(const struct policy_options *options, uint32_t n_workers);

#endif
