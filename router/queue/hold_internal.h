/* router/queue/hold_internal.h - what the files of hold.h share.
 *
 *      hold.c            the queue, deadlines, placing what arrives, walks by turn
 *      hold_by_price.c   walks by price: which of those that wait is tried for which worker
 *
 * Not for others. */
#ifndef ROUTER_QUEUE_HOLD_INTERNAL_H
#define ROUTER_QUEUE_HOLD_INTERNAL_H

#include "common/base/rng.h"
#include "router/queue/hold.h"

/* See hold.h. Tenants in debt and others apart, each heap by an order that may have grown since. */
struct lane {
    struct tree_heap free, owing;
};

struct hold {
    struct routing *routing;
    struct admission *queue;
    struct hold_options options;
    struct list waiting; /* the oldest price first */
    uint32_t n_waiting;
    struct lane *lanes;        /* by worker */
    struct list again, tried;  /* off their place in the order: the oldest try first */
    struct worker_mask looked; /* workers to look at in the next walk */
    uint64_t full_walk_us;     /* the last that looked at all */
    uint64_t all_us;           /* the last that tried all */
    uint32_t n_eligible;       /* workers, in the last walk */
    uint32_t n_tries;          /* from the first in order that may fail until the next */
    uint32_t n_free_tries;     /* besides, of tenants without debt */
    uint64_t uneven_until_us;  /* another router has sent a request of a tenant in debt */
    uint64_t deep_us;          /* tries further down are accounted for up to this time */
    bool is_starving;          /* a worker found none, and no more may be tried */
    uint64_t learned_us;       /* deadlines_learn */
    struct deadlines due;
    struct rng rng; /* of retry times */
};

static inline const struct load *load_of(const struct hold *h) {
    return routing_load(h->routing);
}

static inline struct hold_request *request_of(struct admission_ticket *t) {
    return CONTAINER_OF(t, struct hold_request, place);
}

/* --- hold.c */
void hold_forget(struct hold *h, struct hold_request *q);
/* When it has failed on every worker that there is, it may fail on one of them again. */
bool hold_offer_any(struct hold *h, struct route_request *rq, struct route_offer *offer);

/* --- hold_by_price.c */
struct hold_walk {
    uint32_t n_max; /* that may be placed yet */
    uint64_t now_us;
    struct list *placed;
};

void hold_enter_lane(struct hold *h, struct hold_request *q, uint32_t w, double work_s);
void hold_leave_lane(struct hold *h, struct hold_request *q);
/* Returns those that were tried to their place in the order. */
void hold_put_back(struct hold *h, struct list *tried);
void hold_walk_by_price(struct hold *h, struct hold_walk *k);
size_t hold_check_lanes(const struct hold *h); /* asserts the invariants; how many are in lanes */

#endif
