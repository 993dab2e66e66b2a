/* router/queue/hold.h - late binding: a request is given to a worker when that worker can start it
 * soon, and waits here until then.
 *
 * A request is placed when the worker that the policy chooses for it has a predicted wait, for it
 * (load_wait_in_order_s), of at most H. Else it waits in the model's queue, in the order of
 * admission.h: what is short goes first, which a worker that serves in order of arrival would not
 * do, and a prompt that became cached meanwhile, or a worker that became free, is taken as it is
 * then.
 *
 *      hold_place ──▶ placed               only when nothing waits: nothing overtakes the queue
 *          └─ST_AGAIN─▶ hold_wait ─ ─ ─ ─ ─ ┐
 *                                           ▼
 *      hold_walk: in order, each is tried against its own worker ──▶ placed, or stays
 *
 * When nothing waits and less than HOLD_BUSY_SHARE of the workers are above H it is placed all the
 * same: a prompt behind another at the worker that has it cached is no reason for a queue while
 * others are idle. In replay, 16 x 700k, that leaves 0.04 % held at load 0.5 instead of 1.3 %, and
 * the mean times at 0.95 and above within 1.5 %; the longest wait of four workers is 71 s, not 115.
 *
 * A request that was tried is in the lane of the worker that it was meant for, in order, and a new
 * one in the lane of the worker that has its prompt:
 *
 *      order     a  b  c  d  e ...      all, but those that were tried a moment ago
 *      lanes     w1: a d     w2: c      each by its worker; b and e are not known yet
 *
 * A worker that has less to do is given the first of its lane that it could begin within H, or the
 * first in the order, whichever comes first, until it has enough. So a request that waits for one
 * worker is not tried each time that another has a first token, and a worker finds what it has
 * cached behind any number of others. The lane of a worker that leaves is closed, and what was
 * tried for it is tried for the others; when one comes back, all that was tried is.
 *
 * The walk looks at the workers that had a first token or an end since the last one, and at all
 * every HOLD_WALK_US, when a worker comes back, and while HOLD_FEW or fewer wait. A try costs a
 * decision; what was tried before is first asked whether it still prefers the worker of its lane
 * (routing_prefers), which costs a third of that. Those that fail are counted: of the first in the
 * order, one per HOLD_TRY_US and HOLD_TRIES at once; further down one per HOLD_DEEP_US, for a
 * worker that has nothing to do and nothing in its lane. With two at once and none further down,
 * workers idle while those at the front wait for others: replay at load 1.05 then takes 44 s
 * instead of 3.7 s. One further down per 8 ms puts more long prompts before short ones: bursts take
 * 2.39 s instead of 2.23 s. For ADMISSION_GUEST_US after another router has sent a held request of
 * a tenant in debt, HOLD_FREE_TRIES more are tried of tenants without debt, one per HOLD_FREE_US:
 * else a router that finds its requests later than others find theirs leaves them the workers, and
 * tenants through different routers do not get their shares (tests/replay/RESULTS.md).
 *
 * While HOLD_FEW or fewer wait, all are tried every HOLD_ALL_US. Prices are taken when a request
 * enters and at each try, and of HOLD_REPRICED others (of few, of all) per HOLD_WALK_US, those
 * first whose price is oldest: what is cached changes while they wait.
 *
 * H is a worker's own (load_set_hold). A tenant in debt (admission.h) is placed where the wait is
 * at most HOLD_IN_DEBT_S: its requests are not to lie before those of others in the workers'
 * queues. With both H 0, requests wait only while every worker is full (load_has_room), and are
 * served by turn. Full workers and backlog are two reasons to wait in one queue.
 *
 * A pure library: no clock, no lock; it allocates when created and configured. The owner takes out
 * requests whose time is over. Mean time to first token by these rules: tests/replay. */
#ifndef ROUTER_QUEUE_HOLD_H
#define ROUTER_QUEUE_HOLD_H

#include "router/queue/admission.h"
#include "router/queue/deadline.h"
#include "router/routing/routing.h"

#define HOLD_WALK_US    5000
#define HOLD_TRIES      16
#define HOLD_TRY_US     1000
#define HOLD_FREE_US    100
#define HOLD_FREE_TRIES 64
#define HOLD_DEEP_US    100000
#define HOLD_FEW        64
#define HOLD_ALL_US     50000
#define HOLD_REPRICED   2
#define HOLD_IN_DEBT_S  0.1
#define HOLD_BUSY_SHARE 0.8
/* Default before workers that prefill in order of arrival. By 0.4 s they begin with more prefill
 * before a request: in replay 3 % longer on four workers, and 1 % at load 1.05. */
#define HOLD_FCFS_S 0.3
/* Default before those that prefill the shortest first: they can interrupt a prompt, which the
 * router cannot. In replay, three draws, mean and share of good requests (first token within 2 s,
 * 50 ms between tokens) by 4 s and by 1 s: bursts 2.77 s, 57 % and 2.32 s, 61 %; load 1.05 3.69 s,
 * 10 % and 4.02 s, 24 %; load 0.95 1.13 s, 58 % and 1.12 s, 57 %; by 0.4 s there 54 %. */
#define HOLD_SRPT_S 1.0

struct hold;

struct hold_options {
    uint32_t queue_size; /* see admission_options */
    uint64_t max_wait_us;
    double fcfs_s, srpt_s; /* H; both 0: off, and both above 0: on */
};

enum hold_reason {
    HOLD_FULL,    /* every worker is full, or out of service */
    HOLD_BACKLOG, /* its worker's predicted wait is above H */
    HOLD_BEHIND,  /* others wait */
    HOLD_SESSION, /* its session waits, before it comes here (router/sessions) */
};

/* Embedded in the caller's; zero before its first use. The pointers are the caller's, and belong to
 * this module while it waits. */
struct hold_request {
    struct list link; /* among those that wait, or in the caller's list of placed ones */
    struct admission_ticket place; /* zero: does not wait */
    struct deadline_entry due;
    struct route_request *rq;    /* now_us is set at each try */
    struct route_ticket *ticket; /* opened when it is placed */
    uint64_t tenant;             /* hash */
    double weight, max_share;    /* of the tenant; 0 is 1 */
    int32_t priority;            /* see admission.h */
    uint64_t since_us;           /* when it first arrived: a retry keeps its place in the order */
    uint64_t by_us;              /* its first token is due; 0: no deadline */
    uint64_t wait_us;            /* predicted by hold_wait */
    uint32_t n_before;           /* in the order when it began to wait; by price roughly */
    enum hold_reason reason;     /* why it began to wait */
    struct tree_link in_lane;    /* of the worker of its last try, with its work there */
    uint32_t lane;
    bool is_owing; /* its tenant was in debt when it was put there, */
    double order;  /* with this order */
    double lane_work_s;
    struct list tried_link; /* while it is off its place in the order, after a try */
    bool was_tried;         /* since it came: its lane is of the worker that the policy chose */
};

/* `routing` is the caller's and outlives it. */
struct hold *hold_create(struct routing *routing, const struct hold_options *options);
void hold_destroy(struct hold *h); /* nothing may wait; NULL is fine */

/* New options; those that wait stay, in the new order. */
void hold_configure(struct hold *h, const struct hold_options *options);

/* Of a request with a deadline, before it is placed or waits. */
struct hold_due {
    uint64_t tenant, by_us;
    int32_t priority;
    double predicted_s; /* until its first token */
    uint64_t retry_us;  /* after which it would probably be accepted; see deadline.h */
};

/* ST_BUSY: it would miss its deadline. Nothing changes. */
MUST_USE enum status hold_judge(struct hold *h, const struct route_request *rq,
                                struct hold_due *due, struct error *err);

/* Places a request that does not wait. ST_AGAIN: it has to wait; *reason is why. ST_UNAVAILABLE:
 * no worker is eligible and not excluded. */
MUST_USE enum status hold_place(struct hold *h, struct route_request *rq,
                                struct route_ticket *ticket, enum hold_reason *reason,
                                struct error *err);

/* Queues q: see admission_push. The caller walks next. */
MUST_USE enum admission_verdict hold_wait(struct hold *h, struct hold_request *q,
                                          struct hold_request **displaced);

/* Places what can be placed, at most n_max, and appends it to `placed`, with open tickets. One that
 * excludes all workers that there are is placed as if it excluded none. */
void hold_walk(struct hold *h, uint32_t n_max, uint64_t now_us, struct list *placed);

/* One that waits and can no longer meet its deadline, or NULL. *retry_us: as of hold_due. */
struct hold_request *hold_hopeless(struct hold *h, uint64_t now_us, uint64_t *retry_us);

/* Another router has sent a request of the tenant, which has_waited there for a worker: it is
 * charged here too (admission_served). `work_s` of prefill, as predicted when it was sent. */
struct hold_service {
    uint64_t tenant; /* by the same hash */
    int32_t priority;
    double weight; /* by that router; 0: unknown */
    double work_s;
    bool has_waited;
};
void hold_served(struct hold *h, const struct hold_service *service, uint64_t now_us);

/* It leaves without being placed, and its tenant is not charged. It must be waiting. */
void hold_leave(struct hold *h, struct hold_request *q);

static inline bool hold_is_waiting(const struct hold_request *q) {
    return admission_is_waiting(&q->place);
}

/* Of one that waits, from 1: see admission_position. */
uint32_t hold_position(const struct hold *h, const struct hold_request *q);

/* One of those that wait, or NULL: to refuse them all. */
struct hold_request *hold_any(struct hold *h);
uint32_t hold_n_waiting(const struct hold *h);
double hold_waiting_s(const struct hold *h); /* prefill of all that wait, as last priced */
bool hold_is_on(const struct hold *h);       /* backlog is a reason to wait */
void hold_check(const struct hold *h);       /* asserts the invariants; O(n) */

#endif
