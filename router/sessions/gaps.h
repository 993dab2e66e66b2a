/* router/sessions/gaps.h - how long sessions pause between two turns.
 *
 * A histogram of gaps by quarter octaves that forgets: every count is halved when there are
 * GAPS_MAX. A session that has been idle for longer than the quantile of GAPS_SHARE is not expected
 * back soon. Too short a bound rests sessions that are about to return, which then have to wait;
 * too long a bound lets idle ones occupy memory. In the modelled fleet of tests/replay, at twice
 * the memory, shares of 0.90, 0.94, 0.95 and 0.97 give 2.53, 2.82, 2.92 and 2.82 turns a second;
 * at once the memory they make 0.5, 2.5, 3.3 and 6.4 % of the turns wait. */
#ifndef ROUTER_SESSIONS_GAPS_H
#define ROUTER_SESSIONS_GAPS_H

#include "common/base/base.h"

#define GAPS_FIRST_S 60.0 /* until GAPS_MIN have been seen */
#define GAPS_LEAST_S 20.0 /* of the bound */
#define GAPS_MOST_S  300.0
#define GAPS_SHARE   0.94
#define GAPS_MIN     64
#define GAPS_MAX     4096
#define GAPS_BINS    24 /* the first: below GAPS_LEAST_S */

struct gaps { /* zero: none seen */
    uint32_t n[GAPS_BINS], n_all;
    double long_s; /* the bound; 0: GAPS_FIRST_S */
};

void gaps_add(struct gaps *g, double gap_s);
double gaps_long_s(const struct gaps *g);

#endif
