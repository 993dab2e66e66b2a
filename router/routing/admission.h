/* router/routing/admission.h - who waits when every worker is full, and who is sent next.
 *
 * One per model, beside its routing and under the same lock. A request that finds all workers with
 * enough in flight waits here; when one has less the next is popped. The order:
 *
 *      priority   16 bands, smaller first; a band is served only when those before it are empty
 *      tenant     within a band each tenant gets an equal share of prefill work: the flow that has
 *                 been served least comes next (start-time fair queueing, Goyal et al., SIGCOMM 1996:
 *                 what deficit round robin does, without its quantum)
 *      home       of the first few of a flow, one whose prompt is cached where there is room, so that
 *                 a full fleet keeps its hits; nobody is passed more than a few times for it
 *      arrival    else first in, first out
 *
 *      band 0 ... band 8: heap of flows by start ──▶ flow a: t1 t2 t3     start: work done so far
 *                                                    flow b: t1           in the band's own time
 *
 * The queue is bounded twice: by its size, and by the wait that a newcomer would have, predicted from
 * the pace at which places have become free. A queue longer than what it can serve in time would
 * only turn late answers into useless ones. When it is full, a newcomer whose tenant has fewer
 * waiting, or who comes first by priority, takes the place of the last of the longest flow (of the
 * last band; of equals, the flow that came last): one tenant's flood does not shut out the others.
 *
 * A pure library: no clock, no lock, no allocation but at creation and in admission_configure. Deadlines are the owner's: it
 * removes who has waited too long. */
#ifndef ROUTER_ROUTING_ADMISSION_H
#define ROUTER_ROUTING_ADMISSION_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "common/base/status.h"
#include "router/routing/worker_mask.h"

#define ADMISSION_BANDS     16
#define ADMISSION_SIZE_MAX  100000
#define ADMISSION_PACE_FROM 8 /* pops before the pace is believed */
/* Tickets of a flow that are looked at for their home, until one has been passed so often. Measured
 * in test_overload, openings that no worker can hold all of, twice the load, one hard bound of 10 on
 * each worker: 35 good answers a second first in, first out; 62 with 16 and 8; 68 with these; no more
 * with twice as many. */
#define ADMISSION_LOOK   32
#define ADMISSION_PASSED 16

struct admission;
struct admission_flow;

struct admission_options {
    uint32_t queue_size;  /* most that wait; 0: nobody does */
    uint64_t max_wait_us; /* a newcomer who would wait longer is refused; 0: any */
};

struct admission_ticket { /* embedded in who waits; zero: does not */
    struct list link;     /* in its flow, oldest first */
    struct admission_flow *flow;
    double work_s;
    uint32_t home, n_passed;
};

struct admission_claim { /* who wants to wait */
    uint64_t tenant;     /* a hash of who asks */
    int32_t priority;    /* 0 is usual, smaller is sooner; clamped to [-8, 7] */
    double work_s;       /* predicted prefill */
    uint32_t home;       /* worker that holds its prompt's opening, or WORKER_NONE: all are alike */
};

enum admission_verdict {
    ADMISSION_WAITS,
    ADMISSION_FULL,     /* of those who have no less right to wait */
    ADMISSION_TOO_LONG, /* the wait would be longer than max_wait_us */
};

struct admission *admission_create(const struct admission_options *options);
void admission_destroy(struct admission *a); /* nobody waits; NULL is fine */

/* Other options from now on; who waits stays. Allocates when the queue grows. */
void admission_configure(struct admission *a, const struct admission_options *options);

/* Lets *t wait. *wait_us: predicted until its turn, whatever the verdict. *displaced: NULL, or one who
 * had to go for it and waits no longer. */
enum admission_verdict admission_push(struct admission *a, struct admission_ticket *t,
                                      const struct admission_claim *claim, uint64_t *wait_us,
                                      struct admission_ticket **displaced);

/* The next in order, who waits no longer; NULL when nobody does. `room`: the workers that have a
 * place, as a mask. */
struct admission_ticket *admission_pop(struct admission *a, const struct worker_mask *room,
                                       uint64_t now_us);

void admission_remove(struct admission *a, struct admission_ticket *t); /* one who waits */

static inline bool admission_is_waiting(const struct admission_ticket *t) {
    return t->flow != NULL;
}

uint32_t admission_n_waiting(const struct admission *a);
void admission_check(const struct admission *a); /* asserts the invariants; O(n) */

#endif
