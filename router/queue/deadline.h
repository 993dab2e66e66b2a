/* router/queue/deadline.h - will a request that waits have its first token in time?
 *
 * A request that misses its deadline has cost as much as a good one, and has delayed others; so one
 * that cannot make it is refused as soon as that is known. Two tests:
 *
 *      hopeless     now + its own prefill > deadline          at arrival, and while it waits
 *      predicted    least wait + W / (1 - rho) > deadline     at arrival
 *
 *      least wait   of any worker
 *      W            prefill of waiting requests that are not longer than it, divided by capacity
 *      rho          the same of requests that arrive, per second: they will go before it as well
 *      capacity     workers x the share of a worker's time that prompts get
 *
 * What waits is served shortest first (admission.h), so what is longer does not count; nor does
 * what is of a later band. Work is kept in 64 bins of half an octave per band. What arrives is
 * forgotten with a half-life of 30 s. The share is learned: work of first tokens by seconds in
 * which a worker had prompts to compute, with a half-life of a minute of those; 0.8 at first.
 *
 * In a simulated overload of 5 %, with 3 s + 2 x its own prefill for each request, the two tests
 * refuse few, and nearly all others meet their deadline (tests/replay). One long request that is
 * refused lets several shorter ones pass.
 *
 * A pure library: no clock, no lock, no allocation. */
#ifndef ROUTER_QUEUE_DEADLINE_H
#define ROUTER_QUEUE_DEADLINE_H

#include "common/base/base.h"
#include "router/queue/tree_heap.h"

#define DEADLINE_BANDS       16
#define DEADLINE_BINS        64
#define DEADLINE_HALF_LIFE_S 30.0
#define DEADLINE_RHO_MAX     0.97
#define DEADLINE_SHARE       0.8 /* of a worker's time for prompts, before it is learned */

struct deadline_bins {
    double arriving_s[DEADLINE_BINS]; /* decayed sums of prefill */
    double waiting_s[DEADLINE_BINS];
    uint32_t n_waiting[DEADLINE_BINS];
};

struct deadlines {
    struct deadline_bins bands[DEADLINE_BANDS];
    uint64_t as_of_us;     /* of the sums */
    double work_s, busy_s; /* decayed sums for the share */
    double seen_work_s, seen_busy_s;
    struct tree_heap by_time; /* entries with a deadline: the first to become hopeless */
};

struct deadline_entry { /* embedded in a request that waits; zero: does not */
    struct tree_link in_time;
    uint64_t by_us; /* its first token is due; 0: no deadline */
    double work_s;  /* its prefill */
    uint32_t band;
    bool is_waiting;
};

/* A request as it arrives. */
struct deadline_claim {
    uint32_t band;
    double work_s;
    double n_workers;
    double fair; /* share of W and rho that goes before it, other tenants' turns aside; 1: all */
};

void deadlines_init(struct deadlines *d);

/* A request was accepted; of all that are, with a deadline or without. */
void deadlines_arrived(struct deadlines *d, uint32_t band, double work_s, uint64_t now_us);

/* Totals so far of first tokens' work, and of seconds in which workers had prompts. counts: what
 * came since the last call is learned from; only where requests wait, workers are busy in full. */
void deadlines_learn(struct deadlines *d, double work_s, double busy_s, bool counts);
double deadlines_share(const struct deadlines *d);

/* A request begins to wait; its price changes; it waits no longer. */
void deadlines_enter(struct deadlines *d, struct deadline_entry *e, uint32_t band, double work_s,
                     uint64_t by_us);
void deadlines_reprice(struct deadlines *d, struct deadline_entry *e, double work_s);
void deadlines_leave(struct deadlines *d, struct deadline_entry *e);

/* One that waits and is hopeless by now; NULL: none. It stays entered. */
struct deadline_entry *deadlines_hopeless(const struct deadlines *d, uint64_t now_us);

/* W / (1 - rho). */
double deadlines_wait_s(const struct deadlines *d, const struct deadline_claim *claim);

void deadlines_check(const struct deadlines *d, uint32_t n_waiting); /* asserts; O(n) */

#endif
