/* router/queue/admission.h - the requests that wait, in order.
 *
 * One per model, beside its routing and under the same lock. What may go next, and when, is
 * hold.h's to decide. Two orders, both behind 16 bands of priority, smaller first:
 *
 *      by price   debt + price - aging x time waited, smaller first; ties by arrival
 *                 price    prefill seconds that the request would cost now
 *                 debt     of its tenant: what it was served beyond the virtual time, less
 *                          ADMISSION_FREE_S, times ADMISSION_DEBT; 0 while no other tenant has
 *                          waited for ADMISSION_ALONE_US
 *      by turn    the least served tenant; of its first few, one whose prompt is cached where
 *                 there is room (at most ADMISSION_PASSED times before its elders); then arrival
 *
 * Both serve tenants by start-time fair queueing (Goyal et al., SIGCOMM 1996): a flow, which is a
 * tenant within a band, has been served `start` seconds of prefill, each divided by its weight. One
 * that comes back is raised to the virtual time, so that it has no savings. By price, the virtual
 * time is what the least served flow that waits had at the last ticket taken; when nothing waits,
 * all flows are equal, so that no debt remains either.
 *
 *      band 0 ... band 8: heap of flows ──▶ flow a: t1 t2 t3
 *                                           flow b: t1
 *
 * Other routers serve the same tenants (admission_served): a flow's start counts what it was given
 * there too, while tickets wait here. One that waited there is a guest for ADMISSION_GUEST_US: by
 * price, it is among the flows that wait, so that those ahead of it are in debt here as well. What
 * others report moves a flow at most ADMISSION_AHEAD_S beyond the virtual time, so that false
 * reports delay a tenant and never shut it out.
 *
 * Two bounds: the queue's size, and the predicted wait of a newcomer, from the pace at which
 * tickets leave. When the queue is full, a newcomer of a smaller band, or whose tenant has fewer
 * waiting, displaces the last ticket of the longest flow of the last band (of equals, the flow that
 * came last): one tenant's flood does not shut out the others.
 *
 * A pure library: no clock, no lock; it allocates at creation and in admission_configure. The owner
 * removes tickets whose deadline has passed. */
#ifndef ROUTER_QUEUE_ADMISSION_H
#define ROUTER_QUEUE_ADMISSION_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "common/base/status.h"
#include "router/queue/tree_heap.h"
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

/* By price. In a simulated overload of 5 %, aging of 0.05 takes the longest wait from 545 to 310 s
 * at the same mean as 0.02; 0.2 triples the mean. A request of 10 s is level with a new one of 1 s
 * after 180 s. */
#define ADMISSION_AGING    0.05 /* seconds of price per second waited */
#define ADMISSION_DEBT     10.0 /* seconds of price per second served beyond the free ones */
#define ADMISSION_FREE_S   1.0
#define ADMISSION_ALONE_US 60000000

/* A tenant with a queue elsewhere is served there more often than that, also while its requests
 * wait for the workers that have them cached. By 2 s, one that is not is forgotten here meanwhile,
 * and with it what it was not given. Its debtors here wait for nothing at most for so long. */
#define ADMISSION_GUEST_US 10000000
#define ADMISSION_AHEAD_S  60.0 /* of service */

struct admission;
struct admission_flow;

enum admission_order { ADMISSION_BY_TURN, ADMISSION_BY_PRICE };

struct admission_options {
    uint32_t queue_size;  /* tickets that may wait; 0: none */
    uint64_t max_wait_us; /* newcomers predicted to wait longer are refused; 0: no limit */
    enum admission_order order;
};

struct admission_ticket {     /* embedded in the waiter; zero: not waiting */
    struct list link;         /* in its flow, oldest first */
    struct tree_link in_flow; /* by price, unless it is taken off */
    struct admission_flow *flow;
    double work_s;     /* its price */
    uint64_t since_us; /* when it first arrived */
    uint64_t seq;
    uint32_t home, n_passed;
};

struct admission_claim { /* of a newcomer */
    uint64_t tenant;     /* hash of the tenant */
    int32_t priority;    /* 0 is usual, smaller is sooner; clamped to [-8, 7] */
    double work_s;       /* predicted prefill: the price */
    uint32_t home;       /* by turn: worker that holds its prompt's opening, or WORKER_NONE */
    double weight;       /* of the tenant: its share in proportion to others; 0 is 1 */
    double max_share;    /* of what is served while others wait; 0 is 1: no bound */
    uint64_t since_us;   /* by price: when the request first arrived, before any retry */
};

enum admission_verdict {
    ADMISSION_WAITS,
    ADMISSION_FULL,     /* queue full of tickets with equal or better claims */
    ADMISSION_TOO_LONG, /* predicted wait above max_wait_us */
};

struct admission *admission_create(const struct admission_options *options);
void admission_destroy(struct admission *a); /* the queue must be empty; NULL is fine */

/* New options; waiting tickets stay, in the new order. Allocates when the queue grows. */
void admission_configure(struct admission *a, const struct admission_options *options);

/* Queues *t. *wait_us: predicted wait, whatever the verdict. *displaced: NULL, or the ticket that
 * gave way and no longer waits. With bins of half an octave, by price, the prediction is rough. */
enum admission_verdict admission_push(struct admission *a, struct admission_ticket *t,
                                      const struct admission_claim *claim, uint64_t *wait_us,
                                      struct admission_ticket **displaced);

/* By turn: takes the next ticket in order; NULL when the queue is empty. `room`: mask of workers
 * with room. */
struct admission_ticket *admission_pop(struct admission *a, const struct worker_mask *room,
                                       uint64_t now_us);

/* By price. A ticket may be taken off its place, so that others come first. It still waits:
 * admission_put_back returns it to its place; admission_take ends its wait, and charges its tenant
 * work_s. */
struct admission_ticket *admission_first(const struct admission *a); /* in place; NULL: none is */
struct admission_ticket *admission_first_free(const struct admission *a); /* without debt */
void admission_take_off(struct admission *a, struct admission_ticket *t);
void admission_put_back(struct admission *a, struct admission_ticket *t);
void admission_take(struct admission *a, struct admission_ticket *t, double work_s,
                    uint64_t now_us);

/* Does t come before u? Both wait, in their place or off it. */
bool admission_precedes(const struct admission *a, const struct admission_ticket *t,
                        const struct admission_ticket *u);

/* Its order among tickets of its band whose tenants are in debt, or among those whose are not: to
 * keep some in a heap elsewhere. It grows while the ticket waits at the same price, and never gets
 * smaller, by what its tenant is charged and when its tenant falls into debt. */
double admission_order(const struct admission_ticket *t);

/* Has the tenant of the waiting ticket a debt? */
bool admission_in_debt(const struct admission_ticket *t);

/* A new price of a waiting ticket, in its place or off it. */
void admission_reprice(struct admission *a, struct admission_ticket *t, double work_s);

/* The claim's tenant was given claim->work_s by another router. The weight is what its last ticket
 * here had; where it had none, the claim's. has_waited: it waited there. True: it was given more
 * than others that wait. Does nothing while none waits in its band. */
bool admission_served(struct admission *a, const struct admission_claim *claim, bool has_waited,
                      uint64_t now_us);

/* Leaves without being served: nothing is charged. It must be waiting. */
void admission_remove(struct admission *a, struct admission_ticket *t);

static inline bool admission_is_waiting(const struct admission_ticket *t) {
    return t->flow != NULL;
}

uint32_t admission_n_waiting(const struct admission *a);
double admission_work_s(const struct admission *a); /* the prices of all that wait */

/* How many tickets are before a newcomer with this claim: by price, roughly. */
uint32_t admission_n_before(const struct admission *a, const struct admission_claim *claim);
/* Of what costs no more than a newcomer, the share that is before it: 1 of one tenant alone, less
 * where tenants take turns. */
double admission_fair_share(const struct admission *a, const struct admission_claim *claim);

/* The place of a waiting ticket, from 1; by price, those of equal bins count as before it. */
uint32_t admission_position(const struct admission *a, const struct admission_ticket *t);
void admission_check(const struct admission *a); /* asserts the invariants; O(n) */

#endif
