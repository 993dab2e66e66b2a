/* common/telemetry/loop_lag.h - how late a loop is: what every request on it waits besides its own
 * time.
 *
 * Each loop has a timer that rings ten times a second; how much later than it should is observed. A
 * callback that holds its loop up for 20 ms is seen in one ring of five, and every ring is late
 * when the loop has more to do than it can. Timers ring up to a millisecond late by their nature.
 * And each ring observes the longest turn since the one before, so that no callback goes unseen.
 * Thread: that of the loop. */
#ifndef COMMON_TELEMETRY_LOOP_LAG_H
#define COMMON_TELEMETRY_LOOP_LAG_H

#include "common/net/loop.h"

struct metric;

struct loop_lag { /* embedded */
    struct loop_timer timer;
    struct metric *lag, *turn; /* histograms, seconds; this loop's alone */
    uint64_t due_us;
};

/* Begins when the loop turns. */
void loop_lag_start(struct loop_lag *h, struct loop *loop, struct metric *lag, struct metric *turn);
void loop_lag_stop(struct loop_lag *h); /* a zeroed one is fine */

#endif
