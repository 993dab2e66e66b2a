/* tests/replay/workload/crowd.h - who comes when: draws of arrivals, bursts, and crowds.
 *
 *     draw    random arrivals: where in its tick each request of a trace comes, and when in the
 *             round each copy of the trace begins. Without a draw both are spread evenly
 *     burst   each ten minutes begin with a minute at so many times the mean rate; the mean stays
 *     flash   after half time so large a share of the requests opens with one new prefix
 *     flood   after half time so large a share is replaced by requests of one tenant, with long
 *             prompts that have nothing in common
 *
 * Draws are splitmix64 streams seeded as in the independent simulator of RESULTS.md, so that draw n
 * is the same arrivals in both. */
#ifndef TESTS_REPLAY_WORKLOAD_CROWD_H
#define TESTS_REPLAY_WORKLOAD_CROWD_H

#include "common/base/rng.h"
#include "tests/replay/workload/workload.h"

/* Uniform in [0, 1); the next of the stream. */
static inline double crowd_lot(uint64_t *state) {
    uint64_t x = rng_mix(*state);

    *state += 0x9E3779B97F4A7C15u;
    return (double)(x >> 11) * 0x1p-53;
}

static inline uint64_t crowd_seed_of_ticks(uint64_t draw) {
    return draw * 7919 + 3;
}

static inline uint64_t crowd_seed_of_copies(uint64_t draw) {
    return draw * 104729 + 11;
}

/* Replaces some of n requests from `first` on, which come after half_s, by those of a flash crowd
 * and of a flood, whose tenants are below. */
#define TENANT_FLASH 998
#define TENANT_FLOOD 999
void crowd_replace(struct workload *w, uint32_t first, uint32_t n, double half_s,
                   const struct crowd *crowd, uint64_t *lots);

/* Moves arrivals into the bursts. */
void crowd_burst(struct workload *w, const struct crowd *crowd);

#endif
