/* common/base/backoff.h - how long to wait before trying again.
 *
 * The n-th delay in a row is drawn from nothing to first * 2^n, at most `max`: "full jitter", with
 * which a thousand clients of one server that was away come back spread out. Follows: Brooker,
 * Exponential Backoff and Jitter, 2015. Time is the caller's. Pure. */
#ifndef COMMON_BASE_BACKOFF_H
#define COMMON_BASE_BACKOFF_H

#include "common/base/rng.h"

struct backoff {               /* embedded */
    uint32_t first_ms, max_ms; /* both > 0 */
    uint32_t n_failures;       /* since the last success; success sets it to 0 */
};

/* Counts a failure. */
static inline uint32_t backoff_next_ms(struct backoff *b, struct rng *rng) {
    uint64_t most_ms = (uint64_t)b->first_ms << MIN(b->n_failures, 31u);

    b->n_failures += b->n_failures < 31;
    return (uint32_t)rng_below(rng, MIN(most_ms, b->max_ms) + 1);
}

#endif
