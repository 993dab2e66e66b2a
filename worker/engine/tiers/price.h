/* worker/engine/tiers/price.h - seconds that a tier takes for a load, learned from its loads.
 *
 *      expected = wait + latency + bytes * seconds per byte
 *      sigma    = expected * root mean square of (actual / expected - 1)
 *
 * A load is all that is asked for at once, until the last of it is there. Its wait, until it
 * begins, is for other loads or for a connection, and averaged: the rate has no part in it. Latency
 * and rate are those of the line that fits what loads took from there on, by least squares: one
 * average of each would take a network's delay for its rate, and so price short loads too low and
 * long ones too high, or the reverse. A later load weighs as much more as in a moving average; of a
 * large one the relative error counts. Where loads of one size leave latency open, it is the guess.
 * Until loads were seen: guesses, and as uncertain as they are long. Pure. */
#ifndef WORKER_ENGINE_TIERS_PRICE_H
#define WORKER_ENGINE_TIERS_PRICE_H

#include "common/base/base.h"

struct price {
    double wait_s, latency_s, s_per_byte;
    double variance;        /* of actual / expected */
    double n, b, bb, t, bt; /* weighted sums over loads: 1, bytes, seconds */
    uint64_t n_seen;
};

void price_init(struct price *p);
double price_expect_s(const struct price *p, uint64_t n_bytes, double *sigma_s);

/* A load of so many bytes, at least one, waited, then worked. */
void price_learn(struct price *p, uint64_t n_bytes, double waited_s, double worked_s);

#endif
