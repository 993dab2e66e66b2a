/* router/routing/load.h - what each worker is busy with, as counted by the router.
 *
 * Three numbers per worker price a request: L, the requests in flight; wait, the prefill seconds of
 * all requests sent that have no first token yet; and the tokens that requests in flight hold in KV
 * memory. Tickets change all of them: a ticket is opened once, gets its first token at most once
 * and is closed once, and subtracts what it added. So the sum of the loads is the number of open
 * tickets, on every path; load_check() counts. A light ticket, of a call that needs no device, is
 * counted as open and adds no load to its worker.
 *
 *     load_open ──▶ pending ──load_first_token──▶ running ──load_close──▶ gone
 *                      └──────────────────────load_close──────────────────▶
 *
 * A ticket whose prompt another worker computes is parked: it is in flight, keeps its memory, and
 * is no prefill of its worker.
 *
 *     pending ──load_park──▶ parked ──load_first_token──▶ running
 *        ▲──load_unpark────────┘
 *
 * A worker is a candidate iff its set of reasons is empty and its role is to answer
 * (worker_role.h); nothing else records that. Time is an argument; no lock, no allocation after
 * creation. Owner: one `struct routing`. */
#ifndef ROUTER_ROUTING_LOAD_H
#define ROUTER_ROUTING_LOAD_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "router/pairing/worker_role.h"
#include "router/routing/sorted_work.h"
#include "router/routing/worker_mask.h"

/* Why a worker may not be picked. Bits: several hold at once. */
enum worker_reason {
    WORKER_ABSENT = 1 << 0,    /* never announced, or removed */
    WORKER_STARTING = 1 << 1,  /* announced, not yet seen healthy */
    WORKER_DRAINING = 1 << 2,  /* finishes what it has */
    WORKER_UNHEALTHY = 1 << 3, /* probes fail */
    WORKER_EJECTED = 1 << 4,   /* requests fail: the breaker is open */
    WORKER_DISABLED = 1 << 5,  /* an operator disabled it */
};

/* In which order a worker prefills the prompts that it has. */
enum worker_order {
    WORKER_FCFS, /* as they came, or unknown */
    WORKER_SRPT, /* shortest remaining uncached prefill first */
};

/* A worker's /server_info. Zero means unknown and takes the default. */
struct worker_spec {
    uint64_t identity;           /* hash of its URL: the same on every replica and restart */
    uint64_t generation;         /* a change means that its cache is empty */
    uint32_t block_size;         /* tokens per KV block; default 16 */
    bool keeps_copies;           /* what is restored from a tier stays there too */
    uint8_t role, handover;      /* enum worker_role; enum worker_handover, 0: none */
    bool lacks_engines;          /* its handover needs their ids, which are unknown */
    uint64_t n_blocks;           /* default: high, learning shrinks it */
    uint64_t n_tier_blocks;      /* blocks kept in tiers below the device */
    double restore_tokens_per_s; /* from there; 0: in no time */
    double prefill_tokens_per_s; /* default 10,000 */
    double attn_context;         /* context at which attention costs as much as the rest; 30,000 */
    uint32_t enough_in_flight;   /* at this many, queued requests wait for another; 0: no limit */
    uint32_t max_in_flight;      /* at this many, it is no candidate; 0: no limit */
    enum worker_order order;
};

/* Readable; changed by the functions below alone. The fields that a decision reads of every worker
 * come first, in one cache line. */
struct load_worker {
    uint32_t in_flight;        /* open tickets: L(w) */
    uint32_t n_pending;        /* open tickets without a first token: Q(w) */
    double pending_work_s;     /* predicted prefill seconds of the tickets without a first token */
    double head_work_s;        /* predicted prefill seconds of the oldest pending ticket */
    uint64_t service_began_us; /* when that ticket's prefill began */
    double resident_tokens;    /* KV tokens that the open tickets are expected to fill */
    double capacity_tokens;    /* block_size x n_blocks: what may be in use at once */
    double s_per_token;        /* prefill: see load_set_speed */
    double attn_per_token;     /* share that attention adds per token of context: 1 / (2 A) */

    uint32_t reasons;                   /* enum worker_reason bits; 0: may be picked */
    uint32_t block_size;                /* from spec */
    double quiet_s;                     /* seconds without a pending ticket, up to */
    uint64_t quiet_as_of_us;            /* this time */
    double sum_first_s;                 /* sum over running tickets: time of the first token */
    double sum_first_quiet_s;           /* sum over running tickets: quiet_s at the first token */
    uint64_t ramp_from_us;              /* when its slow start began, if it is in `ramping` */
    struct list pending;                /* pending tickets, in order of sending */
    struct worker_spec spec;            /* defaults filled in */
    uint64_t n_sent, n_first, n_closed; /* since creation */
    double report_delay_s;              /* of first tokens, learned: see load_learn_report */
    double busy_s;                      /* seconds with a pending ticket, as quiet_s */
    double unseen_share;                /* of the latest first tokens: predicted, not reported */
};

/* One request on one worker. Embedded in the caller's ticket, which must outlive it. */
struct load_ticket {
    struct list link; /* on its worker's `pending` */
    uint32_t worker;
    bool is_open, is_pending, is_parked, is_light;
    double work_s;          /* predicted prefill seconds */
    double resident_tokens; /* what it added */
    uint64_t sent_us, first_us;
    double first_quiet_s; /* its worker's quiet_s at the first token */
};

/* Tokens per second of one request, learned from ended ones: `quiet` while its worker only decodes,
 * `busy` while it also prefills. A least-squares line over decayed sums: tokens = quiet * quiet
 * seconds + busy * busy seconds. */
struct load_speed {
    double quiet, busy;
    double qq, qb, bb, nq, nb; /* sums of n (tokens), q and b (seconds), each divided by q + b */
};

/* The first legs of a worker that prefills for others: see load_note_leg. */
struct load_legs {
    double work_s;     /* prefill, decayed, as of */
    uint64_t as_of_us; /* this time; 0: the worker came after the last look */
    bool is_reserved;  /* for them */
};

struct load {
    struct load_worker *workers; /* by id */
    uint32_t *in_flight;         /* in_flight of each worker, for vector loops over a mask */
    double *tokens_per_s;        /* 1 / s_per_token of each worker, for the same */
    struct sorted_work *sorted;  /* work_s of each worker's pending tickets */
    struct load_legs *legs;      /* of each worker */
    double *hold_s;     /* predicted wait up to which each is given requests: see load_set_hold */
    uint32_t n_workers; /* ids are below this */
    uint32_t n_words;   /* words of a mask up to the last worker ever eligible */
    uint32_t n_open;    /* open tickets of all workers */
    uint32_t n_light;   /* of them, light ones */
    uint32_t n_eligible, n_ramping;
    struct worker_mask eligible; /* workers that may be picked */
    struct worker_mask prefills; /* workers that compute prompts for others */
    struct worker_mask busy;     /* workers at enough_in_flight */
    struct worker_mask full;     /* workers at max_in_flight */
    struct worker_mask ramping;  /* workers in their slow start; leaves lazily */
    struct worker_mask srpt;     /* workers whose order is WORKER_SRPT */
    struct worker_mask eased;    /* see load_take_eased */
    uint64_t slow_start_us;      /* how long one lasts; 0: none */
    double hold_fcfs_s, hold_srpt_s;
    double mean_output_tokens; /* running means over ended requests */
    double mean_decode_s;      /* first token to end */
    double mean_prefill_s;     /* predicted work of those that got their first token, */
    double mean_running;       /* and how many then ran on the worker */
    double first_work_s;       /* predicted prefill of all that ever had a first token */
    struct load_speed speed;
};

/* Tokens of cache in tiers below the device, and the seconds to bring some back. */
static inline double load_below_tokens(const struct load_worker *w) {
    return (double)w->block_size * (double)w->spec.n_tier_blocks;
}
static inline double load_restore_s(const struct load_worker *w, double tokens) {
    return w->spec.restore_tokens_per_s > 0 ? tokens / w->spec.restore_tokens_per_s : 0;
}

void load_init(struct load *l, uint32_t n_workers);
void load_fini(struct load *l);

/* Announces a worker or changes its spec; clears WORKER_ABSENT only. */
void load_worker_up(struct load *l, uint32_t w, const struct worker_spec *spec);

/* The worker is gone. Its open tickets stay counted until each is closed. */
void load_worker_down(struct load *l, uint32_t w);

void load_set_reason(struct load *l, uint32_t w, uint32_t reasons, bool is_set);

/* A worker of role prefill that could answer clients by itself (HANDOVER_PEER) is reserved for legs
 * while it has long ones: while the prefill of those of LOAD_LEG_LEAST_S or more, which forgets
 * with a half-life of LOAD_LEG_HALF_LIFE_S, is at least that. Shorter ones hold up others by what a
 * reader does not notice: they go there while it is reserved, and do not keep it so. A new worker
 * begins with LOAD_LEG_FIRST_S. So a fleet that gets no long prompts is one of equal workers. Not
 * reserved, a worker is eligible as those of role both, and gets legs still. load_look_at_legs: at
 * least each second. */
#define LOAD_LEG_HALF_LIFE_S 30.0
#define LOAD_LEG_LEAST_S     0.2
#define LOAD_LEG_FIRST_S     0.4
void load_note_leg(struct load *l, uint32_t w, double work_s, uint64_t now_us);
void load_look_at_legs(struct load *l, uint64_t now_us);
void load_end_legs(struct load *l, uint32_t w); /* what it computes takes too long to fetch */

/* Sequences that a leg of work_s holds up at w: none where it is reserved for legs, or will be by
 * this one, for then they go and no others come. */
double load_held_up(const struct load *l, uint32_t w, double work_s);

/* Least L in a mask; 0 when the mask is empty. */
uint32_t load_least_in_flight(const struct load *l, const uint64_t *mask);

/* Seconds to prefill tokens [cached, total) of one prompt on `w`: linear plus attention. */
double load_prefill_s(const struct load_worker *w, double cached_tokens, double total_tokens);

/* Seconds until every request already sent to `w` has its first token. */
double load_wait_s(const struct load_worker *w, uint64_t now_us);

/* The same for a request of work_s on a worker that computes the shortest first: the remaining work
 * of those that are shorter, the shortest being computed. *n_longer: those that it passes. */
double load_wait_shorter_s(const struct load *l, uint32_t w, double work_s, uint64_t now_us,
                           uint32_t *n_longer);

/* Seconds before a request of work_s has its turn on w, by the order of that worker: those of
 * load_wait_shorter_s or load_wait_s. */
double load_wait_in_order_s(const struct load *l, uint32_t w, double work_s, uint64_t now_us);

/* Replaces the speed that a worker declares, for later requests, until load_worker_up. */
void load_set_speed(struct load *l, uint32_t w, double tokens_per_s);

/* Mean tokens of prefill per second of the workers in a mask, which is not empty. */
double load_mean_speed(const struct load *l, const uint64_t *mask);

/* Since creation, of all workers: predicted prefill that is done, and seconds in which a worker had
 * some to do. */
void load_get_done(const struct load *l, double *work_s, double *busy_s, uint64_t now_us);

/* Share of a worker's time that answers take, the rest being prompts: by the means of requests. */
double load_decode_share(const struct load *l);

/* Late binding: workers of each order are given requests while load_wait_in_order_s is at most so
 * much. 0: always. A worker's own bound is at least twice the delay of its reports, and
 * LOAD_UNSEEN_HOLD_S when first tokens are not reported at all: a bound below that leaves a worker
 * idle while the books still have it busy. */
#define LOAD_UNSEEN_HOLD_S 1.0
void load_set_hold(struct load *l, double fcfs_s, double srpt_s);

/* Writes the mask of eligible workers within their bound, those that compute the shortest first
 * always: something may be short enough. False: there is none. */
bool load_get_ready(const struct load *l, struct worker_mask *ready, uint64_t now_us);

/* Writes the mask of workers that have less to do, or more leave, than at the last call, for
 * another reason than that time went on: a first token, an end, a worker that is eligible again. */
void load_take_eased(struct load *l, struct worker_mask *eased);

/* Share of the eligible workers whose whole wait is above their bound. */
double load_backlog_share(const struct load *l, uint64_t now_us);

/* The first token of a request came late_s after the prediction; is_seen false: nothing was
 * reported. had_wait: others were pending on the worker when it was sent, so that the prediction
 * contains theirs too; then the delay is not learned. */
void load_learn_report(struct load *l, uint32_t w, bool is_seen, bool had_wait, double late_s);

/* Seconds until `need_tokens` more fit into the KV memory of `w`: 0 while they fit. */
double load_memory_wait_s(const struct load *l, const struct load_worker *w, double need_tokens);

/* KV tokens of `w` beside prompts: half a block per open request, and the output generated since
 * the first tokens.
 *
 * A worker generates far less while it prefills: a step with a piece of a prompt takes many times
 * as long as a step without. One speed for both would triple the estimate during a burst of long
 * prompts and evict blocks that the worker still has. Output generated until all pending requests
 * have their first token is included: the next request's turn comes then. */
double load_growing_tokens(const struct load *l, const struct load_worker *w, uint64_t now_us);

/* Two bounds limit a worker. While any worker is below enough_in_flight, requests are admitted. Up
 * to max_in_flight the policy decides where they go: the worker with room is not always where a
 * prompt is cached, and waiting there costs less than computing it again.
 *
 * Drops from `mask` the workers at max_in_flight, unless all of them are. */
void load_drop_full(const struct load *l, uint64_t *mask);

/* True when any worker may be picked. */
bool load_has_eligible(const struct load *l);

/* True when a worker is below enough_in_flight and below its slow-start share (unless all workers
 * are in slow start). load_get_room writes the mask of such workers. */
bool load_has_room(const struct load *l, uint64_t now_us);
void load_get_room(const struct load *l, struct worker_mask *room, uint64_t now_us);

/* Starts the slow start of a new or returned worker: until slow_start_us from now its share grows
 * from a tenth to the whole, so that a cold cache or a warming engine does not receive everything
 * at once. Does nothing when slow_start_us is 0. */
void load_begin_slow_start(struct load *l, uint32_t w, uint64_t now_us);

/* Drops from `mask` the workers at their slow-start share of the mean in flight, plus one. Drops
 * none when no other worker is in the mask, so that a fleet that starts together can start. A full
 * worker counts as another, so call this before load_drop_full. Costs nothing while no worker is in
 * slow start. */
void load_drop_ramping(const struct load *l, uint64_t *mask, uint64_t now_us);

/* Requests in flight per eligible worker. */
double load_mean_in_flight(const struct load *l);

void load_open(struct load *l, struct load_ticket *t, uint32_t w, double work_s, double new_tokens,
               uint64_t now_us);
void load_open_light(struct load *l, struct load_ticket *t, uint32_t w, uint64_t now_us);
void load_first_token(struct load *l, struct load_ticket *t,
                      uint64_t now_us); /* a second call does nothing */
/* Another worker computes the prompt of a pending ticket; that has failed, and it is pending
 * again, behind the others. */
void load_park(struct load *l, struct load_ticket *t, uint64_t now_us);
void load_unpark(struct load *l, struct load_ticket *t, uint64_t now_us);
/* Updates the means with output_tokens unless the request was aborted. Closing twice is a bug. */
void load_close(struct load *l, struct load_ticket *t, double output_tokens, bool is_aborted,
                uint64_t now_us);

void load_check(const struct load *l); /* asserts every invariant above */

#endif
