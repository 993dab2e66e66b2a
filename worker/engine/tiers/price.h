/* worker/engine/tiers/price.h - seconds that a tier takes for a load, learned from its jobs.
 *
 *      expected = latency + bytes * seconds per byte      each a moving average over jobs
 *      sigma    = expected * root mean square of (actual / expected - 1)
 *
 * Until jobs were seen: guesses, and as uncertain as they are long. Pure. */
#ifndef WORKER_ENGINE_TIERS_PRICE_H
#define WORKER_ENGINE_TIERS_PRICE_H

#include "common/base/base.h"

struct price {
    double latency_s, s_per_byte;
    double variance; /* of actual / expected */
    uint64_t n_seen;
};

void price_init(struct price *p);
double price_expect_s(const struct price *p, uint64_t n_bytes, double *sigma_s);

/* A job of so many bytes waited, then worked. */
void price_learn(struct price *p, uint64_t n_bytes, double waited_s, double worked_s);

#endif
