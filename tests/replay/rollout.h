/* tests/replay/rollout.h - what would happen: each of several futures in a process of its own.
 *
 * A child is a copy of the whole model, so nothing needs to know how to copy itself; the parent's
 * model does not move. POSIX fork: not with other threads. */
#ifndef TESTS_REPLAY_ROLLOUT_H
#define TESTS_REPLAY_ROLLOUT_H

#include "common/base/base.h"

#define ROLLOUT_MAX 64 /* futures at once */

/* The cost of each choice in [0, n), n in [1, ROLLOUT_MAX]. `cost` runs in a child, may change all
 * that ctx names, and writes nowhere. */
void rollout_costs(uint32_t n, double (*cost)(void *ctx, uint32_t choice), void *ctx,
                   double costs[]);

/* The choice with the least; of equals the first. */
uint32_t rollout_least(uint32_t n, double (*cost)(void *ctx, uint32_t choice), void *ctx);

#endif
