/* tests/support/late_backend.h - the reference backend, later: a device that works on its own.
 *
 * Its input (steps, rows, copies) goes into a queue and is done in order, some time after the call:
 * at a later poll, wait or submit, how soon by chance. So whatever the engine does too early shows:
 * outputs are poisoned until their fence was seen to be done, a slot must not be staged while its
 * step is in the queue, arrays are read when the step runs and not when it is submitted, a row's
 * tokens change when the device comes to it. No clock and no thread: time passes when the engine
 * looks. Answers are those of `ref`, to the bit.
 *
 * Thread: the engine's; functions marked "for the test" below may be called by any thread. */
#ifndef TESTS_SUPPORT_LATE_BACKEND_H
#define TESTS_SUPPORT_LATE_BACKEND_H

#include "kernels/backend.h"

extern const struct backend_ops backend_late;

/* For the next device that is opened. */
struct late_plan {
    uint64_t seed;
    uint32_t done_percent; /* chance that a look finds one job more done; 0: 50 */
    uint64_t lost_at;      /* the step (from 1) that kills the device; 0: none */
    uint64_t spoiled;      /* the step whose first output is not finite; 0: none */
    bool no_event_fd;      /* it does not signal completion */
};
void late_plan_set(const struct late_plan *plan);

/* While held, nothing is executed or signalled; waits block. */
void late_hold(bool is_held);

/* Of the device opened last. */
struct late_counts {
    uint64_t n_submitted, n_done; /* steps */
    uint64_t n_behind;            /* steps that were submitted behind another one */
    uint64_t n_references;        /* tokens named by their output in the step before */
};
struct late_counts late_counts(void);

#endif
