/* router/registry/registry_route.h - a request arrives, is sent to a worker, and ends. Threads: router loops. */
#ifndef ROUTER_REGISTRY_REGISTRY_ROUTE_H
#define ROUTER_REGISTRY_REGISTRY_ROUTE_H

#include <sys/socket.h>

#include "common/base/buf.h"
#include "common/net/mailbox.h"
#include "common/protocol/wire.h"
#include "router/registry/registry.h"
#include "router/registry/worker_kind.h"

struct registry_target { /* where an attempt goes */
    struct routing *routing;
    uint32_t worker;
    uint32_t incarnation;  /* differs between workers that had the same id one after the other */
    bool trusts_router;    /* takes x-incipit-salt */
    bool publishes_events; /* takes x-incipit-chain */
    bool is_third_party;   /* does not show its first token before the end, unless it streams */
    enum worker_kind kind;
    bool is_tls;            /* and its certificate is for the host of `authority` */
    uint32_t n_workers;     /* of its model */
    uint32_t max_model_len; /* as it says; 0: it does not */
    socklen_t addr_len;
    struct sockaddr_storage addr;
    uint64_t shared_id; /* the number by which other routers know the attempt; 0: they do not */
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

#endif
