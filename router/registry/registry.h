/* router/registry/registry.h - the workers, their models, and the one lock of the router.
 *
 * The control loop announces workers, reads what they say of themselves and removes them. The
 * router loops choose among them. What both need lives here: per worker its address and breaker,
 * per model one `routing` object (index, load table, policy). One mutex guards all of it; it is
 * held for match + pick + sent as one step, for first token, and for the end: a microsecond or two,
 * no system call, no allocation. It is a leaf: nothing else is locked while it is held.
 *
 *      control loop:  add -> (probe) -> describe -> set_reason ... -> remove
 *      router loop:   enter -> first_token -> ended           (from proxy.c, once per attempt)
 *                       └─ waits ─▶ mail to its loop, when a place is free
 *
 * A worker joins a model's routing when it has described itself; until then it cannot be picked. */
#ifndef ROUTER_REGISTRY_REGISTRY_H
#define ROUTER_REGISTRY_REGISTRY_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/net/mailbox.h"
#include "common/protocol/wire.h"
#include "router/registry/address.h"
#include "router/registry/admission.h"
#include "router/registry/breaker.h"
#include "router/registry/outcomes.h"
#include "router/registry/worker_kind.h"
#include "router/routing/routing.h"

#include <sys/socket.h>

#define REGISTRY_MAX_WORKERS 1024
#define REGISTRY_MAX_MODELS  64
#define REGISTRY_URL_MAX     ADDRESS_URL_MAX
#define REGISTRY_LABELS_MAX  256
/* The model of workers that do not say which they serve: of requests for models that no other serves. */
#define REGISTRY_ANY_MODEL "unknown"

struct metric;
struct prefix_walk;
struct registry;

struct registry_config {
    struct routing_options routing;     /* for each model; max_index_bytes is per model */
    struct admission_options admission; /* for each model */
    uint32_t max_worker_requests; /* in flight on each; 0: by what the worker says of itself */
    uint32_t max_concurrent;      /* in flight on all of them; 0: any */
    uint64_t trial_us; /* shortest pause of a worker that was ejected; 0: BREAKER_MIN_US */
};

MUST_USE enum status registry_create(struct registry **out, const struct registry_config *config,
                                     struct error *err);
void registry_destroy(struct registry *r); /* no request may be open; NULL is fine */

/* --- control loop ------------------------------------------------------------------------------ */

/* Adds a worker, at the address that was found for its name and from now on at no other. It is not
 * eligible (WORKER_STARTING) until described. Its id is the smallest that is free, which keeps masks of
 * workers short: that of a removed worker, once nothing is open there. So whoever keeps an id for
 * later keeps the incarnation with it. ST_EXISTS; ST_BUSY: no id is free. */
MUST_USE enum status registry_add_at(struct registry *r, const struct address_url *url,
                                     const struct address *addr, uint32_t *id, struct error *err);

/* The same from "http://host:port", whose name is looked up here, which may block. */
MUST_USE enum status registry_add(struct registry *r, const char *url, uint32_t *id,
                                  struct error *err);
MUST_USE enum status registry_remove(struct registry *r, uint32_t id);

/* What /server_info said. A new generation empties the worker's part of the index, and what its
 * predecessor did wrong is forgotten. */
MUST_USE enum status registry_describe(struct registry *r, uint32_t id,
                                       const struct wire_server_info *info, bool is_foreign,
                                       struct error *err);

/* What the metrics of an engine that is not ours say: its size, its life, what it counted. */
struct registry_report {
    uint64_t n_blocks;   /* 0: not said, as below */
    uint32_t block_size; /* tokens */
    char generation[WIRE_GENERATION_MAX];
    int64_t running, waiting; /* requests; negative: not said, as below */
    double kv_usage;          /* 0 to 1 */
    struct route_report counted;
};

/* Uses what is said; a new generation empties the worker's part of the index. Nothing happens unless
 * the worker is described and foreign. */
void registry_report(struct registry *r, uint32_t id, const struct registry_report *report);
void registry_set_reason(struct registry *r, uint32_t id, uint32_t reasons, bool is_set);

/* Who says that a worker drains; it is WORKER_DRAINING while anybody does. A new generation of the
 * worker no longer says so. */
enum registry_drain { DRAIN_OPERATOR = 1, DRAIN_WORKER = 2 };
void registry_set_draining(struct registry *r, uint32_t id, enum registry_drain who, bool is_set);
/* What an operator says of it: most requests at once (0: no limit), and words for people. */
void registry_configure(struct registry *r, uint32_t id, uint32_t max_in_flight,
                        const char *labels);
void registry_forget_cache(struct registry *r, uint32_t id); /* it was told to flush it */
/* Behind its address there is another worker now: what was known of the last one is forgotten, its
 * requests keep their places, and it is WORKER_STARTING until it has been described. */
void registry_replace(struct registry *r, uint32_t id);
/* Breakers, and places for those who wait: every 100 ms or so, and when a worker has come back. */
void registry_tick(struct registry *r, uint64_t now_us);

/* A probe of the worker was answered with what it should be; `was_away`: the one before was not. */
void registry_probed(struct registry *r, uint32_t id, bool was_away);

/* True when no worker of the model of `id` may be picked, so that requests wait for the first that
 * answers; registry_any_down: whether there is such a model, of so
 * many workers or more. */
bool registry_is_down(struct registry *r, uint32_t id);
bool registry_any_down(struct registry *r, uint32_t n_workers);

/* What has become of the breaker of `id` since it was asked last: for the log. */
struct registry_news {
    bool was_ejected, has_returned; /* both: one after the other */
    enum breaker_cause cause;       /* of the ejection */
    struct outcomes_sum latest;     /* its answers, then */
    uint64_t pause_us;
};
bool registry_take_news(struct registry *r, uint32_t id, struct registry_news *out);

/* --- requests of other routers: control loop, from follow.c ------------------------------------- */

/* The workers that tell of their requests, by id. Returns how many; at most `max`. */
struct registry_teller {
    uint32_t id, incarnation;
    char generation[WIRE_GENERATION_MAX];
};
uint32_t registry_tellers(struct registry *r, struct registry_teller *out, uint32_t max);
void registry_set_followed(struct registry *r, uint32_t id, uint32_t incarnation, bool is_followed);

/* It is not what it was described as: it should be described again. */
void registry_suspect(struct registry *r, uint32_t id, uint32_t incarnation);

/* The worker has a request that did not come from here: it is entered as if it had, but for the
 * breaker and --max-concurrent-requests. Embedded in whoever keeps it, with the request's chain, until
 * it has ended. ST_NOT_FOUND: there is no such worker any more. Times may lie back. */
struct registry_mirror {
    struct routing *routing;
    struct route_ticket ticket;
};
MUST_USE enum status registry_adopt(struct registry *r, uint32_t id, uint32_t incarnation,
                                    const struct route_request *rq, struct registry_mirror *m);
void registry_adopted_first(struct registry *r, struct registry_mirror *m,
                            const struct route_feedback *feedback, uint64_t now_us);
/* Exactly once, whatever became of the worker. `now_us`: of those who wait for the place. */
void registry_adopted_ended(struct registry *r, struct registry_mirror *m,
                            const struct route_end *end, uint64_t now_us);

/* What is sent to workers that are not ours, for other routers: frames of common/protocol/request_events.h whose
 * sequence is the worker's identity. Before any request; `take` appends what there is to `out` and
 * empties it. False: something found no room since the last time, for want of somebody who takes. */
void registry_open_outbox(struct registry *r, uint64_t origin, uint64_t scheme, size_t max_bytes);
bool registry_take_outbox(struct registry *r, struct buf *out);

/* The workers that are described and not ours, by id: returns how many, at most `max`. *n_unknown: those
 * that are not described yet. */
struct registry_foreign {
    uint64_t identity;
    uint32_t id, incarnation;
};
uint32_t registry_foreign(struct registry *r, struct registry_foreign *out, uint32_t max,
                          uint32_t *n_unknown);

/* Asserts the invariants of all books, and that the sum of the loads is what is open here and what is
 * open elsewhere. O(size), under the lock: for tests. */
void registry_check(struct registry *r);

/* What is known of a worker besides what it says itself, for the process that comes after this one
 * (snapshot.h). It is true of the worker as long as URL, model and generation are the same. */
struct registry_memory {
    char url[REGISTRY_URL_MAX], model[WIRE_MODEL_MAX], generation[WIRE_GENERATION_MAX];
    struct routing_learned learned;
    uint64_t events_next; /* what follow.h has taken of its request events; 0: not said */
};
bool registry_memory_get(struct registry *r, uint32_t id, struct registry_memory *out);

/* The next of the blocks that it holds (prefix_lru_walk); 0: that was all, or it is another now. */
uint32_t registry_memory_walk(struct registry *r, uint32_t id, const struct registry_memory *of,
                              struct prefix_walk *walk, uint64_t *items, uint32_t max);

/* False: worker `id` is not, or not yet, the one that `m` is of. */
bool registry_memory_set(struct registry *r, uint32_t id, const struct registry_memory *m);

/* Returns how many were taken (prefix_lru_restore); the lock is held for 0.1 us each. */
uint32_t registry_memory_restore(struct registry *r, uint32_t id, const struct registry_memory *m,
                                 const uint64_t *items, uint32_t n);

/* --- what is there: any thread -------------------------------------------------------------------*/

struct registry_view { /* a copy */
    uint32_t id;
    char url[REGISTRY_URL_MAX];
    char address[ADDRESS_TEXT_MAX]; /* "127.0.0.1:31000": where it is connected to */
    struct wire_server_info info;   /* zero until described */
    bool is_described, is_foreign;
    uint32_t reasons; /* enum worker_reason; 0: may be picked */
    uint32_t in_flight;
    uint32_t n_mirrored;       /* of these, sent by other routers */
    bool is_followed;          /* we hear of those */
    uint64_t n_sent, n_failed; /* our own requests */
    enum breaker_state breaker;
    enum breaker_cause cause; /* of its last ejection */
    uint64_t n_ejected[BREAKER_N_CAUSES];
    uint32_t incarnation;                   /* another worker of the same id has another */
    int64_t engine_running, engine_waiting; /* as its metrics say; negative: not said */
    double engine_kv_usage;                 /* likewise */
    uint32_t max_in_flight, draining;       /* enum registry_drain bits */
    struct wire_load load;                  /* as it said last */
    bool has_load;
    char labels[REGISTRY_LABELS_MAX];
    uint32_t n_pending;     /* in flight without a first token */
    double resident_tokens; /* expected of what is in flight */
    struct routing_worker_stats routing;
};

/* Copies worker `id`; false when there is none. Ids are below REGISTRY_MAX_WORKERS. */
bool registry_get(struct registry *r, uint32_t id, struct registry_view *out);
uint32_t registry_n_ids(struct registry *r); /* all ids are below this */

struct registry_totals {
    uint32_t n_workers, n_eligible, n_open, n_waiting;
    bool may_wait; /* a model's workers are all out of service, for less than --queue-timeout */
    uint32_t n_mirrored, n_followed; /* open requests of other routers, besides n_open; workers */
    uint64_t index_bytes, n_entries, n_blocks, n_refused, n_evicted;
    uint64_t n_contended, lock_wait_ns; /* the lock, as the router loops found it */
};
void registry_totals(struct registry *r, struct registry_totals *out);

/* Where a sample of the decisions' durations goes, in seconds; NULL: nowhere. Before any request. */
void registry_measure(struct registry *r, struct metric *decision_seconds);

/* The i-th name of a model that has a worker, and its largest context; false after the last. */
bool registry_model(struct registry *r, uint32_t i, char name[WIRE_MODEL_MAX],
                    uint32_t *max_model_len);

/* The i-th model that ever had a worker, for dashboards and autoscalers; false after the last. */
struct registry_model_stats {
    char name[WIRE_MODEL_MAX];
    uint32_t n_workers, n_open,
        n_waiting;          /* workers; requests sent and not ended; that wait here */
    double bytes_per_token; /* of its prompts, as learned */
    /* 0 to 1: the mean over the workers that may be picked of how full each is, that is the larger
     * of its places taken and its KV memory in use. 1 while requests wait, and when there are
     * requests but no such worker. A worker that says of itself neither how many requests it
     * computes at once nor how full it is counts as full once it queues them. */
    double saturation;
};
bool registry_model_stats(struct registry *r, uint32_t i, struct registry_model_stats *out);

/* --- router loops -------------------------------------------------------------------------------*/

struct registry_target { /* where an attempt goes */
    struct routing *routing;
    uint32_t worker;
    uint32_t incarnation; /* differs between workers that had the same id one after the other */
    bool trusts_router;   /* takes x-incipit-salt */
    bool tells_requests;  /* takes x-incipit-chain */
    bool is_foreign;      /* does not show its first token before the end, unless it streams */
    enum worker_kind kind;
    bool is_tls;            /* and its certificate is for the host of `authority` */
    uint32_t n_workers;     /* of its model */
    uint32_t max_model_len; /* as it says; 0: it does not */
    socklen_t addr_len;
    struct sockaddr_storage addr;
    uint64_t told; /* the number by which other routers know the attempt; 0: they do not */
    uint32_t authority_len;
    char authority[REGISTRY_URL_MAX]; /* "127.0.0.1:31000", for Host; and a NUL */
};

enum registry_outcome {
    OUTCOME_OK,        /* the worker answered */
    OUTCOME_REFUSED,   /* with 4xx: it did no work, and is not to blame */
    OUTCOME_UNREACHED, /* no connection could be made: it never had the request */
    OUTCOME_FAILED,    /* the connection broke, or was silent for too long */
    OUTCOME_BROKEN,    /* so, and the client had seen a part of the answer */
    OUTCOME_ERROR,     /* it answered 5xx */
    OUTCOME_EMPTY,     /* its answer was none, or an error with status 200 */
    OUTCOME_SPOILT,    /* so, as was found when the client had seen a part of it */
    OUTCOME_UNKNOWN,   /* the client left first */
};

/* `model` is as the client wrote it, STR_NULL for none: the only or first model. ST_NOT_FOUND when
 * nobody serves it, ST_UNAVAILABLE when nobody can take it now. */
MUST_USE enum status registry_route(struct registry *r, struct str model,
                                    const struct route_request *rq, struct route_ticket *ticket,
                                    struct registry_target *out, struct error *err);
/* A dry run of registry_route: fills out[] with those that might be chosen, by id, at most `max`, and
 * *choice. Same errors; for people: it takes the lock for longer the more workers there are. */
struct registry_candidate {
    uint32_t worker, in_flight; /* L of the cost */
    struct policy_term term;
};
MUST_USE enum status registry_explain(struct registry *r, struct str model,
                                      const struct route_request *rq,
                                      struct registry_candidate *out, uint32_t max, uint32_t *n,
                                      uint32_t *choice, struct error *err);

/* The same for a request's first attempt, which waits its turn when every worker is at its limit:
 * ST_AGAIN, and later a mail to w->box says what was decided. So does one that finds every worker out of
 * service, when one of them may come back by itself; `rq` excludes none then. `rq`, its chain, `ticket`
 * and `out` are the registry's until then. ST_BUSY, or ST_UNAVAILABLE when all are out: there is no room
 * to wait either; err says which limit, and w->limit. With w NULL ST_AGAIN only says that it would have
 * to wait. */
struct registry_waiter {
    struct mail mail;    /* is sent once for each ST_AGAIN, unless registry_leave returned true */
    struct mailbox *box; /* the caller's, as are the next two */
    uint64_t tenant;     /* a hash of who asks */
    int32_t priority;    /* see admission.h */
    uint64_t wait_us;    /* predicted, with ST_AGAIN and ST_BUSY */
    const char *limit; /* when refused, and when not is_granted: the option that set it; or NULL */
    bool is_granted;   /* in the mail: `ticket` is open; else another took the place */
    struct admission_ticket place; /* the registry's, as is the rest */
    struct admission *admission;
    struct route_request *rq;
    struct route_ticket *ticket;
    struct registry_target *target;
};
MUST_USE enum status registry_enter(struct registry *r, struct str model, struct route_request *rq,
                                    struct route_ticket *ticket, struct registry_target *out,
                                    struct registry_waiter *w, struct error *err);

/* Gives up waiting. False: it has been decided already, and the mail is on its way. */
bool registry_leave(struct registry *r, struct registry_waiter *w);

/* `feedback` NULL: nothing was seen, by prediction the first token should be there. */
void registry_first_token(struct registry *r, const struct registry_target *target,
                          struct route_ticket *ticket, const struct route_feedback *feedback,
                          uint64_t now_us);
void registry_ended(struct registry *r, const struct registry_target *target,
                    struct route_ticket *ticket, const struct route_end *end,
                    enum registry_outcome outcome);

/* A request failed with OUTCOME_ERROR or OUTCOME_EMPTY on each of these, and was answered by none: it
 * is the request that is to blame. */
struct registry_accused {
    uint32_t worker, incarnation;
};
void registry_pardon(struct registry *r, const struct registry_accused *accused, uint32_t n,
                     uint64_t now_us);

/* What x-incipit-load said; a worker that says it drains gets no more. */
void registry_note_load(struct registry *r, const struct registry_target *target,
                        const struct wire_load *load);

/* It refused a request because it drains: it gets no more until it says otherwise. */
void registry_note_draining(struct registry *r, const struct registry_target *target);

/* Of n workers that were once chosen keeps those that are still there under their ids, in order:
 * another may have been given the id of one that was removed. Returns how many are left. */
uint32_t registry_keep_current(struct registry *r, uint32_t *ids, uint32_t *incarnations,
                               uint32_t n);

/* Whether anybody but the target's worker and those excluded can take a request for its model now. */
bool registry_has_other(struct registry *r, const struct registry_target *target,
                        const uint32_t *exclude, uint32_t n_exclude);

/* True once after a request to `id` failed: it should be described again. Until it has been, it is
 * WORKER_STARTING, unless nobody else could take its requests meanwhile. */
bool registry_take_suspicion(struct registry *r, uint32_t id);

#endif
