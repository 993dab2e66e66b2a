/* router/registry/registry_remote.h - requests that other routers sent to the same workers, and
 * events of our requests for them. Thread: control. */
#ifndef ROUTER_REGISTRY_REGISTRY_REMOTE_H
#define ROUTER_REGISTRY_REGISTRY_REMOTE_H

#include "common/base/buf.h"
#include "common/protocol/wire.h"
#include "router/registry/registry.h"
#include "router/sessions/sessions.h"

struct model;
struct request_mark;

/* Workers that publish events of their requests, by id. Returns how many, at most `max`. */
struct registry_publisher {
    uint32_t id, incarnation;
    char generation[WIRE_GENERATION_MAX];
};
uint32_t registry_publishers(struct registry *r, struct registry_publisher *out, uint32_t max);
void registry_set_followed(struct registry *r, uint32_t id, uint32_t incarnation, bool is_followed);

/* A request that another router sent to the worker, entered as if sent from here, except for the
 * breaker and --max-concurrent-requests. The owner embeds it, with the request's chain, until it
 * has ended. ST_NOT_FOUND: the worker was removed. Times may be in the past.
 *
 * `mark`: of a router with the same hashes, or NULL. Its tenant is charged in the queue here,
 * unless it was sent more than REGISTRY_CHARGED_US before `now_us`; and the turn joins its session
 * here, unless SESSION_TTL_S have passed. */
#define REGISTRY_CHARGED_US 10000000
struct registry_remote {
    struct model *model;
    struct route_ticket ticket;
    struct session_turn turn;
    uint64_t n_prompt_tokens; /* reported; 0: not yet, or more than can be */
};
MUST_USE enum status registry_add_remote(struct registry *r, uint32_t id, uint32_t incarnation,
                                         const struct route_request *rq,
                                         const struct request_mark *mark, uint64_t now_us,
                                         struct registry_remote *m);
void registry_remote_first_token(struct registry *r, struct registry_remote *m,
                                 const struct route_feedback *feedback, uint64_t now_us);
/* Exactly once, even for a removed worker. `now_us`: for requests waiting for room. */
void registry_remote_ended(struct registry *r, struct registry_remote *m,
                           const struct route_end *end, uint64_t now_us);

/* Events of requests to third-party workers, for other routers: frames of request_events.h whose
 * sequence is the worker's identity. Open before any request. `take` appends all events to `out`
 * and empties the outbox. False: an event did not fit since the last call. */
void registry_open_outbox(struct registry *r, uint64_t origin, uint64_t scheme, size_t max_bytes);
bool registry_take_outbox(struct registry *r, struct buf *out);

/* Described third-party workers, by id: returns how many, at most `max`. *n_unknown: workers not
 * yet described. */
struct registry_third_party {
    uint64_t identity;
    uint32_t id, incarnation;
};
uint32_t registry_third_party(struct registry *r, struct registry_third_party *out, uint32_t max,
                              uint32_t *n_unknown);

#endif
