/* router/registry/registry_route.h - a request arrives, is sent to a worker, and ends. Threads:
 * router loops. */
#ifndef ROUTER_REGISTRY_REGISTRY_ROUTE_H
#define ROUTER_REGISTRY_REGISTRY_ROUTE_H

#include <sys/socket.h>

#include "common/base/buf.h"
#include "common/net/mailbox.h"
#include "common/protocol/request_events.h"
#include "common/protocol/wire.h"
#include "router/registry/registry.h"
#include "router/registry/worker_kind.h"
#include "router/registry/worker_part.h"
#include "router/sessions/sessions.h"

struct registry_target {      /* where an attempt goes */
    struct request_mark mark; /* the caller's; what it waited for is filled in */
    struct routing *routing;
    uint32_t worker;
    uint32_t incarnation;  /* distinguishes workers that had the same id */
    bool trusts_router;    /* takes x-incipit-salt */
    bool publishes_events; /* takes x-incipit-chain */
    bool may_pair;         /* another worker may compute its prompts: registry_pair.h */
    struct worker_part part;
    bool is_third_party; /* shows its first token at the end, unless it streams */
    enum worker_kind kind;
    bool is_tls;            /* and its certificate is for the host of `authority` */
    uint32_t n_workers;     /* of its model */
    uint32_t max_model_len; /* as reported; 0: not reported */
    socklen_t addr_len;
    struct sockaddr_storage addr;
    uint64_t shared_id; /* number of the attempt for other routers; 0: not shared */
    uint32_t authority_len;
    char authority[REGISTRY_URL_MAX]; /* "127.0.0.1:31000", for Host; and a NUL */
    uint32_t source_len;              /* of a worker to fetch KV from (fetch.h); 0: none */
    char source[REGISTRY_URL_MAX];    /* its authority */
    uint32_t source_tokens;           /* of the prompt that it holds */
    uint32_t source_computed;         /* of these, the last, by a first leg of this request */
};

enum registry_outcome {
    OUTCOME_OK,        /* the worker answered */
    OUTCOME_REFUSED,   /* 4xx: the worker did no work and is not at fault */
    OUTCOME_UNREACHED, /* no connection: the worker never received the request */
    OUTCOME_FAILED,    /* the connection broke or was silent for too long */
    OUTCOME_BROKEN,    /* as FAILED, after the client received a part of the answer */
    OUTCOME_ERROR,     /* 5xx */
    OUTCOME_EMPTY,     /* an empty answer, or an error with status 200 */
    OUTCOME_SPOILT,    /* as EMPTY, found after the client received a part of it */
    OUTCOME_UNKNOWN,   /* the client left first */
};

/* `model`: as the client wrote it; STR_NULL: the only or first model. ST_NOT_FOUND: no worker
 * serves it; ST_UNAVAILABLE: no worker can take it now. */
MUST_USE enum status registry_route(struct registry *r, struct str model,
                                    const struct route_request *rq, struct route_ticket *ticket,
                                    struct registry_target *out, struct error *err);
/* A dry run of registry_route: fills out[] with the candidates by id, at most `max`, and *choice.
 * Same errors. For operators: it holds the lock longer the more workers there are. */
struct registry_candidate {
    uint32_t worker, in_flight; /* L of the cost */
    struct policy_term term;
};
MUST_USE enum status registry_explain(struct registry *r, struct str model,
                                      const struct route_request *rq,
                                      struct registry_candidate *out, uint32_t max, uint32_t *n,
                                      uint32_t *choice, struct error *err);

/* registry_route for a request that may wait. ST_AGAIN: its worker has too much to do before it
 * (hold.h), or every worker is at its limit, or out of service and one may return by itself; later
 * a mail to w->box carries the decision, and `rq`, its chain, `ticket` and `out` belong to the
 * registry until then. ST_BUSY, or ST_UNAVAILABLE when all are out of service: the queue is full
 * too; err and w->limit name the limit. With w NULL, ST_AGAIN reports that the request would have
 * to wait. A request that failed on other workers, which `rq` excludes, keeps its place by
 * since_us; it waits only where requests are held back for a backlog. */
#define REGISTRY_DEADLINE "deadline"
struct registry_waiter {
    struct mail mail;         /* sent once for each ST_AGAIN, unless registry_leave returned true */
    struct mailbox *box;      /* the caller's, as are the next two */
    struct hold_request held; /* tenant, weight, priority, since_us and by_us are the caller's. With
                               * ST_AGAIN: wait_us (with ST_BUSY too), n_before and reason */
    const char *limit;        /* on refusal: the option that set the limit, or NULL */
    uint64_t retry_us;        /* with the limit "deadline": as hold_due has it */
    bool is_granted;   /* valid with the mail: `ticket` is open; else it is refused: displaced
                          * when `limit` is set, or every worker has left for good */
    struct hold *hold; /* for the registry, with the next ones */
    struct registry_target *target;
    struct model *model;      /* of the turn */
    uint64_t held_us;         /* when its session began to wait for it to go */
    struct session_turn turn; /* from registry_begin_turn to registry_end_turn: for reading too */
};
MUST_USE enum status registry_enter(struct registry *r, struct str model, struct route_request *rq,
                                    struct route_ticket *ticket, struct registry_target *out,
                                    struct registry_waiter *w, struct error *err);

/* Before registry_enter, for a request with a deadline: see hold_judge. ST_BUSY: it would miss it.
 * One that waits and can no longer meet it (held.by_us) is refused by mail, with the limit
 * "deadline". */
MUST_USE enum status registry_judge(struct registry *r, struct str model,
                                    const struct route_request *rq, struct hold_due *due,
                                    struct error *err);
/* A turn of a session, before registry_enter: it is joined to its session. ST_OK: enter it.
 * ST_AGAIN: its session waits, as with registry_enter, and it is not entered any more. ST_BUSY: the
 * queue is full. Without sessions, or for an unknown model, ST_OK. The turn that goes is ended
 * once, when the request is over; ending one that is not open does nothing. */
struct registry_turn {
    uint64_t id, parent_id, tenant; /* hashes; id 0: the request names no session */
    uint32_t n_blocks;              /* registry_whole_blocks */
    uint32_t n_system;              /* that the system prompt touches; 0: unknown */
    bool is_final;
};
/* Blocks of the chain that a continuation of the prompt has too. */
static inline uint32_t registry_whole_blocks(const struct route_request *rq, uint32_t block_bytes) {
    uint64_t n = rq->prompt_bytes ? (rq->prompt_bytes - 1) / block_bytes : 0;

    return (uint32_t)MIN(n, (uint64_t)rq->n_blocks);
}
MUST_USE enum status registry_begin_turn(struct registry *r, struct str model,
                                         struct route_request *rq, struct route_ticket *ticket,
                                         struct registry_target *out,
                                         const struct registry_turn *turn,
                                         struct registry_waiter *w, struct error *err);
/* `worker`: which has its prompt now, or WORKER_NONE. n_tokens of prompt and answer; 0: unknown. */
void registry_end_turn(struct registry *r, struct registry_waiter *w, uint32_t worker,
                       uint64_t n_tokens, uint64_t now_us);

/* Stops waiting. False: it is already decided and the mail is on its way. */
bool registry_leave(struct registry *r, struct registry_waiter *w);

/* Its place in the order, from 1: roughly, where the order is by price. 1 if it no longer waits. */
uint32_t registry_position(struct registry *r, const struct registry_waiter *w);

/* Every HOLD_WALK_US while requests of a loop wait. */
void registry_walk(struct registry *r, uint64_t now_us);

/* What a worker has counted of a prompt; negative: nothing. Impossible numbers (above the model's
 * length, or more cached than prompt tokens) become nothing, all of them: they are neither counted
 * nor learned from nor charged to a key. */
struct route_feedback registry_bound_usage(const struct registry_target *target,
                                           struct route_feedback f);

/* `feedback` NULL: not observed, predicted to be due now. */
void registry_first_token(struct registry *r, const struct registry_target *target,
                          struct route_ticket *ticket, const struct route_feedback *feedback,
                          uint64_t now_us);
void registry_ended(struct registry *r, const struct registry_target *target,
                    struct route_ticket *ticket, const struct route_end *end,
                    enum registry_outcome outcome);

/* A request failed with OUTCOME_ERROR or OUTCOME_EMPTY on each of these workers and succeeded on
 * none: the request is at fault, and the failures are not counted. */
struct registry_accused {
    uint32_t worker, incarnation;
};
void registry_pardon(struct registry *r, const struct registry_accused *accused, uint32_t n,
                     uint64_t now_us);

/* Stores a worker's x-incipit-load; a draining worker gets no more requests. */
void registry_note_load(struct registry *r, const struct registry_target *target,
                        const struct wire_load *load);

/* The worker refused a request because it drains: it gets none until it reports otherwise. */
void registry_note_draining(struct registry *r, const struct registry_target *target);

/* Keeps, in order, those of n formerly chosen workers that still have their id (an id may belong to
 * another worker by now). Returns how many are left. */
uint32_t registry_keep_current(struct registry *r, uint32_t *ids, uint32_t *incarnations,
                               uint32_t n);

/* The worker that has stored the responses with this mark (api.h), or WORKER_NONE. */
uint32_t registry_find_mark(struct registry *r, struct str mark);

/* Opens a light ticket there, even while that worker drains or is at its limit. ST_NOT_FOUND,
 * without a sentence: no worker has this mark; ST_UNAVAILABLE: it is out of service. */
MUST_USE enum status registry_route_stored(struct registry *r, struct str mark, uint64_t now_us,
                                           struct route_ticket *ticket, struct registry_target *out,
                                           struct error *err);

/* True when a worker other than the target's and the excluded ones can take a request for its
 * model. */
bool registry_has_other(struct registry *r, const struct registry_target *target,
                        const uint32_t *exclude, uint32_t n_exclude);

#endif
