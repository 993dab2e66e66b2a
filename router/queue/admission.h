/* router/queue/admission.h - the queue in front of full workers.
 *
 * One per model, beside its routing and under the same lock. A request that finds all workers at
 * their enough_in_flight waits here; when a worker has room again the next is popped, in this
 * order:
 *
 *      priority   16 bands, smaller first; a band is served when those before it are empty
 *      tenant     within a band each tenant gets an equal share of prefill work: the least served flow
 *                 comes next (start-time fair queueing, Goyal et al., SIGCOMM 1996)
 *      home       among the first few of a flow, one whose prompt is cached where there is room, so that
 *                 a full fleet keeps its hits; a ticket is passed at most ADMISSION_PASSED times
 *      arrival    else first in, first out
 *
 *      band 0 ... band 8: heap of flows by start ──▶ flow a: t1 t2 t3     start: work done so far
 *                                                    flow b: t1           in the band's own time
 *
 * Two bounds: the queue's size, and the predicted wait of a newcomer, from the pace of pops. When
 * the queue is full, a newcomer of a smaller band, or whose tenant has fewer waiting, displaces the
 * last ticket of the longest flow of the last band (of equals, the flow that came last): one
 * tenant's flood does not shut out the others.
 *
 * A pure library: no clock, no lock; it allocates at creation and in admission_configure. The owner
 * removes tickets whose deadline has passed. */
#ifndef ROUTER_ROUTING_ADMISSION_H
#define ROUTER_ROUTING_ADMISSION_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "common/base/status.h"
#include "router/routing/worker_mask.h"

#define ADMISSION_BANDS     16
#define ADMISSION_SIZE_MAX  100000
#define ADMISSION_PACE_FROM 8 /* pops before the pace is used */
/* Tickets of a flow searched for their home, and how often one may be passed. Measured in
 * test_overload (twice the load, openings that no worker can hold all of, 10 in flight per worker):
 * 35 good answers a second first in, first out; 62 with 16 and 8; 68 with these; 68 with twice as
 * many. */
#define ADMISSION_LOOK   32
#define ADMISSION_PASSED 16

struct admission;
struct admission_flow;

struct admission_options {
    uint32_t queue_size;  /* tickets that may wait; 0: none */
    uint64_t max_wait_us; /* newcomers predicted to wait longer are refused; 0: no limit */
};

struct admission_ticket { /* embedded in the waiter; zero: not waiting */
    struct list link;     /* in its flow, oldest first */
    struct admission_flow *flow;
    double work_s;
    uint32_t home, n_passed;
};

struct admission_claim { /* of a newcomer */
    uint64_t tenant;     /* hash of the tenant */
    int32_t priority;    /* 0 is usual, smaller is sooner; clamped to [-8, 7] */
    double work_s;       /* predicted prefill */
    uint32_t home;       /* worker that holds its prompt's opening, or WORKER_NONE */
};

enum admission_verdict {
    ADMISSION_WAITS,
    ADMISSION_FULL,     /* queue full of tickets with equal or better claims */
    ADMISSION_TOO_LONG, /* predicted wait above max_wait_us */
};

struct admission *admission_create(const struct admission_options *options);
void admission_destroy(struct admission *a); /* the queue must be empty; NULL is fine */

/* New options; waiting tickets stay. Allocates when the queue grows. */
void admission_configure(struct admission *a, const struct admission_options *options);

/* Queues *t. *wait_us: predicted wait, whatever the verdict. *displaced: NULL, or the ticket that
 * gave way and no longer waits. */
enum admission_verdict admission_push(struct admission *a, struct admission_ticket *t,
                                      const struct admission_claim *claim, uint64_t *wait_us,
                                      struct admission_ticket **displaced);

/* Takes the next ticket in order; NULL when the queue is empty. `room`: mask of workers with
 * room. */
struct admission_ticket *admission_pop(struct admission *a, const struct worker_mask *room,
                                       uint64_t now_us);

void admission_remove(struct admission *a, struct admission_ticket *t); /* must be waiting */

static inline bool admission_is_waiting(const struct admission_ticket *t) {
    return t->flow != NULL;
}

uint32_t admission_n_waiting(const struct admission *a);
void admission_check(const struct admission *a); /* asserts the invariants; O(n) */

#endif
