/* tests/replay/fleet_bound.h - a mean time to first token that no router and no order of prompts
 * can go below.
 *
 * It is the larger of two means over the requests that a replay reports:
 *
 *     alone     each computes, without waiting and on the fastest worker, what no earlier request
 *               begins with: whatever caches hold, that part is computed after it has come
 *     pooled    all workers are one that is as fast as they are together; it computes the same
 *               work, the shortest remaining first, which is the best order for one machine
 *
 * Both take a cache without end, at once up to date, and no decoding beside prompts. A block that
 * several have in common is the first one's work: a fleet that computes it for a later one first
 * completes the first one no sooner. Steps count: at least one for each WORKER_CHUNK tokens alone,
 * and their share of a full one pooled.
 *
 * LIMITS: of open workloads; what comes when another has ended has no bound. Refused requests and
 * those that another process computed before are no part of it. */
#ifndef TESTS_REPLAY_FLEET_BOUND_H
#define TESTS_REPLAY_FLEET_BOUND_H

#include "tests/replay/fleet_model.h"

/* Seconds; 0 for a closed loop. */
double fleet_bound_s(const struct workload *workload, const struct fleet_options *options);

#endif
