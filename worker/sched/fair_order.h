/* worker/sched/fair_order.h - the order of prompts: band, begun answers, then debt + key.
 *
 * Each prompt has a turn, and a tenant whose prompts share the device fairly. A turn's key is
 * constant while it waits: seconds of prefill that it lacks + FAIR_AGING x its time of arrival,
 * which orders as "seconds lacking - FAIR_AGING x seconds waited" does. What has been computed for
 * a tenant is charged to it, and
 *
 *      debt = FAIR_WEIGHT x max(0, served - least served among the active - FAIR_QUANTUM_S)
 *
 * A tenant is active while one of its prompts waits or is in progress. One that becomes active
 * is raised to the virtual time, the most that the least served has had: neither savings nor
 * debts outlive a time without prompts.
 *
 *      tenants without debt, by their first turn ─┐
 *      tenants in debt, by first turn + served ───┴─▶ first of all         (heaps of heaps)
 *      all active tenants, by served ───▶ least
 *
 * The least served only grows, so a tenant leaves the debtors when it is found at their head.
 * O(log) of turns and of tenants. A tenant without turns is forgotten once the virtual time has
 * reached what it was served, or when more than FAIR_IDLE_MAX are kept.
 *
 * Memory: mem_alloc when a tenant or the most turns ever arrive. One thread. Follows: Shreedhar and
 * Varghese, Efficient Fair Queueing using Deficit Round Robin, 1995; Goyal et al., Start-time Fair
 * Queuing, 1996. */
#ifndef WORKER_SCHED_FAIR_ORDER_H
#define WORKER_SCHED_FAIR_ORDER_H

#include "common/base/base.h"
#include "common/base/heap.h"
#include "common/base/map.h"

#define FAIR_AGING     0.05 /* seconds of prefill that a second of waiting is worth */
#define FAIR_QUANTUM_S 2.0  /* prefill that a tenant may have had before others */
#define FAIR_WEIGHT    10.0
#define FAIR_IDLE_MAX  1024u

struct fair_tenant;

/* Part of a request. The first group is the caller's, set before push or update. */
struct fair_turn {
    int32_t band; /* smaller first */
    bool has_begun, is_resumed;
    double key;
    uint64_t seq; /* of arrival */

    struct heap_link link;      /* in its tenant's heap while it waits */
    struct fair_tenant *tenant; /* between join and leave */
    bool is_in_progress;
};

struct fair_order {
    struct heap clear, indebted; /* of tenants with waiting turns */
    struct heap served;          /* of active tenants */
    struct heap idle;            /* of tenants without turns, by served */
    struct map tenants;          /* by number */
    uint32_t n_in_progress;      /* turns */
    double virtual_s;
    uint64_t epoch; /* counts the times without an active tenant */
};

void fair_order_init(struct fair_order *o);
void fair_order_fini(struct fair_order *o); /* no turn has joined */

/* Gives the turn its tenant; before everything else, until leave. */
void fair_order_join(struct fair_order *o, struct fair_turn *t, uint64_t tenant);
void fair_order_leave(struct fair_order *o,
                      struct fair_turn *t); /* harmless if it has not joined */

void fair_order_push(struct fair_order *o, struct fair_turn *t);   /* it waits */
void fair_order_remove(struct fair_order *o, struct fair_turn *t); /* harmless if it does not */
void fair_order_update(struct fair_order *o, struct fair_turn *t); /* its key has changed */
struct fair_turn *fair_order_first(struct fair_order *o);          /* of the waiting, or NULL */

/* In progress: its tenant stays active although it does not wait. */
void fair_order_begin(struct fair_order *o, struct fair_turn *t);
void fair_order_end(struct fair_order *o, struct fair_turn *t);

/* Prefill seconds that were scheduled for it. */
void fair_order_charge(struct fair_order *o, struct fair_turn *t, double seconds);

double fair_order_debt(const struct fair_order *o, const struct fair_turn *t);
bool fair_order_before(const struct fair_order *o, const struct fair_turn *a,
                       const struct fair_turn *b);
uint32_t fair_order_n_tenants(const struct fair_order *o);

void fair_order_check(const struct fair_order *o); /* asserts every invariant; for tests */

#endif
