/* router/ejection/outcomes.h - a worker's latest answers, compared with those of its peers.
 *
 * Good and bad answers are counted over a sliding window of two halves:
 *
 *      |<- before: 5 s ->|<- now: up to 5 s ->|        a half that is over becomes `before`
 *
 * A worker stands out when its last few answers were all bad, or half of those in the window, and
 * its peers fail half as often or less. So a request that every worker answers with an error ejects
 * none of them, nor does a fault of the whole fleet. This is the outlier rule of Envoy (consecutive
 * 5xx, failure percentage), with the peers' share in place of a fixed one.
 *
 * Pure: time is an argument. Owner: registry, under its lock. */
#ifndef ROUTER_EJECTION_OUTCOMES_H
#define ROUTER_EJECTION_OUTCOMES_H

#include "common/base/base.h"

#define OUTCOMES_HALF_US  5000000ull /* half of the window */
#define OUTCOMES_IN_A_ROW 3 /* consecutive bad answers; each cost a client one more attempt */

struct outcomes {
    uint64_t began_us;
    uint32_t n_good, n_bad;
    uint32_t n_good_before, n_bad_before;
    uint32_t n_bad_in_a_row;
};

struct outcomes_sum {
    uint32_t n_good, n_bad;
};

void outcomes_add(struct outcomes *o, bool is_good, uint64_t now_us);

/* One bad answer was the request's fault: takes it out of the count. */
void outcomes_pardon(struct outcomes *o);

struct outcomes_sum outcomes_sum(struct outcomes *o, uint64_t now_us);

/* `peers`: the sums of all others, added up. */
bool outcomes_stand_out(struct outcomes *o, struct outcomes_sum peers, uint64_t now_us);

#endif
