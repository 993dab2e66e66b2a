/* router/routing/routing.h - chooses the worker of each request: one object per model.
 *
 * It joins prefix index, simulated LRUs, load table and policy, and updates them together. Each
 * request has a ticket, embedded in the caller's exchange:
 *
 *     routing_route ──▶ routing_first_token ──▶ routing_ended(finished)
 *          │                                └─▶ routing_ended(aborted)   worker failed mid-answer
 *          └──────────▶ routing_ended(aborted)  then routing_route again, excluding that worker
 *
 * routing_route matches, picks and sends in one step, so that two requests that arrive together see
 * each other. Each routed ticket is ended exactly once. A worker that restarts or leaves in between
 * loses its blocks, not its tickets.
 *
 * A pure library: no clock, no I/O, no allocation after creation, no lock. The owner holds one
 * mutex around each call (1-2 us); scanning and hashing happen before, outside it. */
#ifndef ROUTER_ROUTING_ROUTING_H
#define ROUTER_ROUTING_ROUTING_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "router/pairing/pair.h"
#include "router/routing/load.h"
#include "router/routing/policy.h"

struct prefix_walk;
struct routing;

#define ROUTING_BYTES_PER_TOKEN 4.0 /* of English text */

struct routing_options {
    const struct policy_ops *policy;
    struct policy_options policy_options;
    uint32_t max_workers;        /* ids are below this; 1 to 1024 */
    uint64_t max_index_bytes;    /* memory of index and LRUs at most; at least 1 MiB */
    uint32_t prefix_block_bytes; /* prompt bytes per hash of a chain */
    uint64_t slow_start_us;      /* of new and returned workers (load.h); 0: none */
    double bytes_per_token;      /* first guess; learned from answers afterwards */
};

/* Embedded in the exchange; zero before its first use. `chain` must stay where it is until
 * routing_ended. */
struct route_ticket {
    struct load_ticket load; /* load.worker: the choice */
    const uint64_t *chain;
    const uint32_t *guesses; /* of the request: where the index has its blocks, or NULL */
    uint32_t n_blocks;
    uint32_t matched_blocks; /* leading blocks in the index for the worker */
    uint32_t n_recorded;     /* of them, entered into the index */
    uint64_t prompt_bytes;
    uint32_t epoch; /* of the worker's cache when sent */
    bool has_feedback;
    double wait_s;        /* predicted queueing; predicted prefill is load.work_s */
    double prompt_tokens; /* predicted */
    double cached_tokens; /* predicted; of these to be brought back from below the device: */
    double below_tokens;
    bool may_recompute;      /* computing them takes about as long */
    bool is_measured;        /* for the worker's speed */
    bool is_leg;             /* of a request that another worker decodes: routing_offer_prefill */
    struct fetch_plan fetch; /* of the cached ones; its source is WORKER_NONE without */
    bool is_fetch_over;      /* what came of it is known */
};

/* From the worker's answer; negative: not reported. */
struct route_feedback {
    int64_t prompt_tokens;
    int64_t cached_tokens;
    int64_t below_tokens;     /* of the cached ones, brought back from below the device: */
    bool has_below;           /* reported */
    uint32_t restored_tokens; /* brought for this request from other workers and tiers, in */
    uint64_t restore_us;
};

struct route_end {
    bool is_aborted;                /* not answered in full: error, disconnect, retry */
    int64_t output_tokens;          /* generated so far; negative: unknown, the mean is taken */
    struct route_feedback feedback; /* ignored if routing_first_token had one */
    uint64_t now_us;
};

/* Growth of a worker's own counters since the last report; negative: not reported. */
struct route_report {
    double n_first_tokens;
    double prompt_tokens;
    double queried_tokens, hit_tokens; /* looked up in its prefix cache; found there */
};

struct routing_stats {
    uint64_t index_bytes;              /* in use: it grows with what is held */
    uint64_t index_bytes_max;          /* reserved */
    uint64_t n_entries, n_entries_max; /* (block, worker) pairs */
    uint64_t n_blocks;                 /* distinct blocks */
    uint64_t n_refused;                /* pairs that found no room */
    uint64_t n_evicted;                /* pairs forgotten because a worker, or the index, is full */
    uint32_t n_open;                   /* requests */
    double bytes_per_token;
};

/* ST_INVALID names the option; ST_NOMEM when the index cannot be had. */
MUST_USE enum status routing_create(struct routing **out, const struct routing_options *options,
                                    struct error *err);
void routing_destroy(struct routing *r); /* NULL is fine; no ticket may be open */

/* New policy options and slow_start_us for later requests; other options stay. */
void routing_configure(struct routing *r, const struct policy_options *options,
                       uint64_t slow_start_us);

/* A worker is announced, or its /server_info was read again. A new generation empties its part of
 * the index. Reasons set earlier stay, except WORKER_ABSENT. */
void routing_worker_up(struct routing *r, uint32_t w, const struct worker_spec *spec);

/* The worker left: its part of the index is dropped and it is WORKER_ABSENT. The id may be used
 * again once its in_flight is 0. For a worker that may return, use routing_set_reason. */
void routing_worker_down(struct routing *r, uint32_t w);

/* Whether w exchanges KV with others (fetch.h); not, until this is called and once it has left. */
void routing_set_peer(struct routing *r, uint32_t w, const struct fetch_peer *peer);

/* The worker's cache was emptied: so is its part of the index. */
void routing_forget_cache(struct routing *r, uint32_t w);

/* The tokens that w's cache holds when it is full, counted by its events: bounds the learned factor
 * until the cache is lost or 0 is noted (capacity.h). */
void routing_note_capacity(struct routing *r, uint32_t w, double tokens);

/* The tokens that have entered w's cache so far, counted by its events; the count begins at 0 and
 * may begin again. What is more than the requests known here have entered is of others (clients
 * that bypass the router, say): it evicts blocks of ours, so it is entered without hashes. At most
 * ROUTING_FILL_MAX blocks a call: true, and there are more to enter. */
#define ROUTING_FILL_MAX 256u
bool routing_note_stored(struct routing *r, uint32_t w, double tokens, uint64_t now_us);

/* The worker is new, or has come back: see load_begin_slow_start. */
void routing_slow_start(struct routing *r, uint32_t w, uint64_t now_us);

/* Sets or clears bits of enum worker_reason. */
void routing_set_reason(struct routing *r, uint32_t w, uint32_t reasons, bool is_set);

/* Chooses a worker, counts the request as sent to it and opens *t: t->load.worker is the choice.
 * ST_UNAVAILABLE when no worker is eligible and not excluded; then nothing changed. */
MUST_USE enum status routing_route(struct routing *r, const struct route_request *rq,
                                   struct route_ticket *t, struct error *err);

/* routing_route in two steps, for a request that may wait (hold.h). An offer is valid until the
 * next call of any function here but routing_offer_price; it changes nothing, except that a policy
 * which takes turns counts it as a turn. routing_accept opens *t at the offered worker. */
struct route_offer {
    uint32_t worker;
    double work_s; /* prefill there */
    double wait_s; /* predicted queueing there, of it alone: load_wait_in_order_s */
};
MUST_USE enum status routing_offer(struct routing *r, const struct route_request *rq,
                                   struct route_offer *out, struct error *err);
double routing_offer_price(const struct routing *r); /* of the offered request: routing_price */
void routing_accept(struct routing *r, const struct route_request *rq, struct route_ticket *t);

/* For a request whose open ticket is *d: another worker to compute its prompt for d's, with what
 * both ways cost. Then routing_accept, with another ticket, opens the first leg there; its end is
 * is_aborted, after routing_first_token when it has computed the prompt. ST_UNAVAILABLE: no worker
 * prefills for d's. `rq`: without guesses, which are *d's. A long prompt whose fetch would be dear
 * ends the reservation of the worker that is offered (load_end_legs). */
MUST_USE enum status routing_offer_prefill(struct routing *r, const struct route_request *rq,
                                           const struct route_ticket *d, struct pair_price *out);

/* *leg was opened so: see load_note_leg. */
void routing_note_leg(struct routing *r, const struct route_ticket *leg, uint64_t now_us);

/* Takes the prefill off d's worker: see load_park. What d's answer reports of tokens is then not
 * learned from. routing_unpark: it computes the prompt after all. */
void routing_park(struct routing *r, struct route_ticket *t, uint64_t now_us);
void routing_unpark(struct routing *r, struct route_ticket *t, uint64_t now_us);

/* The worker of the first leg, whose ticket is still open, has so many of the prompt's tokens, for
 * *t's to fetch: its plan. False: it cannot use them. */
bool routing_hand_over(struct routing *r, struct route_ticket *t, uint32_t source, double tokens,
                       uint64_t now_us);

/* A second leg had its first token after so many seconds. */
void routing_learn_handover(struct routing *r, double tokens, double seconds, uint64_t now_us);

/* Would the policy choose w rather than v, were they the only ones? Changes nothing but its lots.
 * It takes a third of an offer's time; among more workers a policy may weigh terms otherwise. */
bool routing_prefers(struct routing *r, const struct route_request *rq, uint32_t w, uint32_t v);

/* Applies the learned speeds of workers (speed.h) and what their legs have shown (load_note_leg) to
 * later requests, at most once a second; the owner calls it at least as often. */
void routing_apply_speeds(struct routing *r, uint64_t now_us);

/* Bounds of the predicted wait: see load_set_hold. */
void routing_set_hold(struct routing *r, double fcfs_s, double srpt_s);

/* Workers that have less to do by an event: see load_take_eased. */
void routing_take_eased(struct routing *r, struct worker_mask *eased);

/* Enters a request that another router sent to w as if it had been sent from here; *t is used as
 * any ticket until routing_ended. w need not be eligible. now_us and the later times may be in the
 * past. */
void routing_add_remote(struct routing *r, uint32_t w, const struct route_request *rq,
                        struct route_ticket *t);

/* Opens *t at w for a request that needs no device (is_light). w need not be eligible. */
void routing_open_light(struct routing *r, uint32_t w, uint64_t now_us, struct route_ticket *t);

/* Prefill seconds of the request on the worker that holds most of its prompt: its weight in the
 * queue. *home: that worker, or WORKER_NONE when more than half of them hold as much. Changes
 * nothing. */
double routing_price(struct routing *r, const struct route_request *rq, uint32_t *home);

/* Leading blocks of the prompt that some eligible worker holds. Changes nothing. */
uint32_t routing_known_blocks(struct routing *r, const struct route_request *rq);

/* The first token arrived; further calls do nothing. `feedback` may be NULL. For a worker whose
 * first token is invisible, call it after t->wait_s + t->load.work_s. */
void routing_first_token(struct routing *r, struct route_ticket *t,
                         const struct route_feedback *feedback, uint64_t now_us);

/* Exactly once per routed ticket. Finished without a first token implies one. */
void routing_ended(struct routing *r, struct route_ticket *t, const struct route_end *end);

/* Learns from a worker's counters when its answers report no usage. Reports are summed until they
 * cover enough requests, and dropped when other routers send to that worker too or when its answers
 * report cached tokens. */
void routing_worker_report(struct routing *r, uint32_t w, const struct route_report *report);

/* Dry run: fills terms[w] for each of max_workers ids (zeroes for non-candidates) and returns the
 * choice, or WORKER_NONE. */
uint32_t routing_explain(struct routing *r, const struct route_request *rq,
                         struct policy_term *terms);

/* One worker's terms of the cost, and the assumed state of its cache. */
struct routing_worker_stats {
    double wait_s, memory_s; /* for an empty request */
    uint64_t n_held_blocks;
    uint64_t n_below_blocks; /* of these, below the device */
    double capacity_factor;  /* learned multiple of the declared capacity of the device */
    double below_factor;     /* and of what is below */
    double tokens_per_s;     /* prefill: declared, corrected by what was learned */
};
void routing_worker_stats(const struct routing *r, uint32_t w, uint64_t now_us,
                          struct routing_worker_stats *out);

/* --- state carried over a restart or a takeover --------------------------------------------- */

/* What was learned of the model and of worker w. */
struct routing_learned {
    double prompt_bytes, prompt_tokens; /* decayed sums over the last prompts */
    double capacity_factor, below_factor;
    double speed_work_s, speed_busy_s; /* speed.h: W, A */
};
void routing_get_learned(const struct routing *r, uint32_t w, struct routing_learned *out);

/* Ignores values out of range, and the model's values when this object has learned its own. */
void routing_set_learned(struct routing *r, uint32_t w, const struct routing_learned *learned);

/* Blocks that w holds, in pieces, and their insertion elsewhere: see prefix_lru.h. */
uint32_t routing_walk(const struct routing *r, uint32_t w, struct prefix_walk *walk,
                      uint64_t *items, uint32_t max);
uint32_t routing_restore(struct routing *r, uint32_t w, const uint64_t *items, uint32_t n);

const struct load *routing_load(const struct routing *r);
double routing_bytes_per_token(const struct routing *r); /* of prompts, as learned */

/* Learned cache capacity of the device of `w` as a multiple of the declared one. */
double routing_capacity_factor(const struct routing *r, uint32_t w);

void routing_stats(const struct routing *r, struct routing_stats *stats);
void routing_check(const struct routing *r); /* asserts the invariants of all parts */

#endif
