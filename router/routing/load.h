/* router/routing/load.h - what each worker is busy with, as far as the router knows.
 *
 * Three numbers per worker price a request: L, the requests in flight; wait, the prefill seconds
 * of everything sent that has no first token yet; and the tokens held in KV memory by what is in
 * flight. All of them move by tickets: a ticket is opened once, told of its first token at most
 * once, and closed once, and what it added is what it takes away. So the sum of the loads is the
 * number of open tickets, on every path; load_check() counts.
 *
 *     load_open ──▶ pending ──load_first_token──▶ running ──load_close──▶ gone
 *                      └──────────────────────load_close──────────────────▶
 *
 * A worker is a candidate iff its set of reasons against it is empty; nothing else records that.
 * Time is an argument; no lock, no allocation after creation. Owner: one `struct routing`. */
#ifndef ROUTER_ROUTING_LOAD_H
#define ROUTER_ROUTING_LOAD_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "router/routing/worker_mask.h"

/* Why a worker may not be picked. Bits: several hold at once. */
enum worker_reason {
    WORKER_ABSENT = 1 << 0,    /* never announced, or removed */
    WORKER_STARTING = 1 << 1,  /* announced, not yet seen healthy */
    WORKER_DRAINING = 1 << 2,  /* finishes what it has */
    WORKER_UNHEALTHY = 1 << 3, /* probes fail */
    WORKER_EJECTED = 1 << 4,   /* requests fail: the breaker is open */
    WORKER_DISABLED = 1 << 5,  /* an operator said so */
};

/* What a worker says of itself in /server_info. Zero means unknown, and a default is taken. */
struct worker_spec {
    uint64_t identity;      /* hash of its URL: the same on every replica and restart */
    uint64_t generation;    /* hash of its generation; a change means that its cache is gone */
    uint32_t block_size;    /* tokens per KV block; default 16 */
    uint64_t n_blocks;      /* KV blocks on the device; default: a high guess, shrunk by feedback */
    uint64_t n_tier_blocks; /* and what it keeps elsewhere of blocks that left the device */
    double prefill_tokens_per_s; /* default 10,000 */
    double attn_context;         /* context at which attention costs as much as the rest; 30,000 */
    uint32_t enough_in_flight;   /* with these it has no room for those who wait; 0: any */
    uint32_t max_in_flight;      /* with these it is no candidate; 0: any */
};

/* Read freely; changed only by the functions below. What a decision reads of every worker comes
 * first: one cache line. */
struct load_worker {
    uint32_t in_flight;        /* open tickets: L(w) */
    uint32_t n_pending;        /* of these, without a first token: Q(w) */
    double pending_work_s;     /* predicted prefill seconds of the tickets without a first token */
    double head_work_s;        /* of the first of them */
    uint64_t service_began_us; /* when that one got the prefill to itself */
    double resident_tokens;    /* KV tokens that the open tickets are expected to fill */
    double capacity_tokens;    /* block_size x n_blocks: what may be in use at once */
    double s_per_token;        /* prefill, from spec */
    double attn_per_token;     /* share that attention adds per token of context: 1 / (2 A) */

    uint32_t reasons;                   /* enum worker_reason bits; 0: may be picked */
    double cache_tokens;                /* what it can find again: of all tiers */
    uint32_t block_size;                /* of spec; read of those that match */
    double quiet_s;                     /* that it has had nothing pending, as of */
    uint64_t quiet_as_of_us;            /* this moment */
    double sum_first_s;                 /* times of the first tokens of the others, */
    double sum_first_quiet_s;           /* and its quiet_s at those */
    uint64_t ramp_from_us;              /* when its slow start began, if it is in `ramping` */
    struct list pending;                /* those, in order of sending */
    struct worker_spec spec;            /* defaults filled in */
    uint64_t n_sent, n_first, n_closed; /* since creation */
};

/* One request on one worker. Embedded in the caller's ticket, which must outlive it. */
struct load_ticket {
    struct list link; /* on its worker's `pending` */
    uint32_t worker;
    bool is_open, is_pending;
    double work_s;          /* predicted prefill seconds */
    double resident_tokens; /* what it added */
    uint64_t sent_us, first_us;
    double first_quiet_s; /* its worker's quiet_s at the first token */
};

/* Tokens that one request generates per second, learned from ended ones: `quiet` while its worker
 * has nothing else to do than to generate, `busy` while prompts are being computed. A line fitted
 * to sums that forget: tokens = quiet * quiet seconds + busy * busy seconds. */
struct load_speed {
    double quiet, busy;
    double qq, qb, bb, nq, nb; /* n tokens, q quiet and b busy seconds; each over q + b */
};

struct load {
    struct load_worker *workers; /* by id */
    uint32_t *in_flight;         /* their L side by side; for whole words of a mask */
    uint32_t n_workers;          /* ids are below this */
    uint32_t n_words;            /* of a mask, up to the last worker that was ever eligible */
    uint32_t n_open;             /* open tickets of all workers */
    uint32_t n_eligible, n_ramping;
    struct worker_mask eligible; /* workers with no reason against them */
    struct worker_mask busy;     /* workers with enough in flight */
    struct worker_mask full;     /* workers with the most */
    struct worker_mask ramping;  /* workers in their slow start, or lately so */
    uint64_t slow_start_us;      /* how long one lasts; 0: none */
    double mean_output_tokens;   /* running means over ended requests */
    double mean_decode_s;        /* first token to end */
    struct load_speed speed;
};

void load_init(struct load *l, uint32_t n_workers);
void load_fini(struct load *l);

/* Announces a worker or changes what is known of it; clears WORKER_ABSENT only. */
void load_worker_up(struct load *l, uint32_t w, const struct worker_spec *spec);

/* The worker is gone. Its open tickets stay counted until each is closed. */
void load_worker_down(struct load *l, uint32_t w);

void load_set_reason(struct load *l, uint32_t w, uint32_t reasons, bool is_set);

/* The least L among the workers of a mask; 0 when it is empty. */
uint32_t load_least_in_flight(const struct load *l, const uint64_t *mask);

/* Seconds to prefill tokens [cached, total) of one prompt on `w`: linear plus attention. */
double load_prefill_s(const struct load_worker *w, double cached_tokens, double total_tokens);

/* Seconds until what was sent to `w` before now has its first token. */
double load_wait_s(const struct load_worker *w, uint64_t now_us);

/* Seconds until `need_tokens` more fit into the KV memory of `w`: 0 while they fit. */
double load_memory_wait_s(const struct load *l, const struct load_worker *w, double need_tokens);

/* KV tokens of `w` besides prompts: the unused half of the block that each of its open requests
 * has begun, and what those with a first token have generated since then.
 *
 * A worker generates far less while it computes prompts: a step with a piece of one takes many
 * times as long as a step without. By one speed for both, a burst of long prompts would seem to fill
 * three times what it does, and what the books then forget to make room for it is still in the
 * worker's cache. What will be generated until all that was sent has its first token is counted
 * already: the next request's turn comes then. */
double load_growing_tokens(const struct load *l, const struct load_worker *w, uint64_t now_us);

/* Two bounds on what a worker is sent. While any worker has less than is enough for it, requests are
 * let in: none idles while somebody waits. Where those go is the policy's business up to the most
 * that each may have: the worker with room is not always where a prompt is cached, and to wait in
 * another costs less than to compute it again.
 *
 * Drops from `mask` the workers that have the most, unless all of them do. */
void load_drop_full(const struct load *l, uint64_t *mask);

/* May any worker be picked? */
bool load_has_eligible(const struct load *l);

/* Has any of them less than enough, and less than its slow start allows (unless all are in theirs)?
 * Which ones? */
bool load_has_room(const struct load *l, uint64_t now_us);
void load_get_room(const struct load *l, struct worker_mask *room, uint64_t now_us);

/* A worker is new, or has come back: until slow_start_us from now its share grows from a tenth to
 * the whole, so that a cold cache, or an engine that is still warming up, is not met by everything
 * at once. Does nothing when slow_start_us is 0. */
void load_begin_slow_start(struct load *l, uint32_t w, uint64_t now_us);

/* Drops from `mask` the workers that have all that their slow start allows: that share of the mean in
 * flight, and one. Drops none when there is no other worker in the mask: a fleet that starts
 * together, starts. A full worker is another one too, so call it before load_drop_full. Costs
 * nothing while no worker is in its slow start. */
void load_drop_ramping(const struct load *l, uint64_t *mask, uint64_t now_us);

/* Requests in flight per eligible worker. */
double load_mean_in_flight(const struct load *l);

void load_open(struct load *l, struct load_ticket *t, uint32_t w, double work_s, double new_tokens,
               uint64_t now_us);
void load_first_token(struct load *l, struct load_ticket *t, uint64_t now_us); /* twice is once */
/* output_tokens teaches the means unless the request was aborted. Closing twice is a bug. */
void load_close(struct load *l, struct load_ticket *t, double output_tokens, bool is_aborted,
                uint64_t now_us);

void load_check(const struct load *l); /* asserts every invariant above */

#endif
