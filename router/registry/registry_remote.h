/* router/registry/registry_remote.h - requests that other routers have sent to the same workers, and what
 * they learn of ours. Thread: control. */
#ifndef ROUTER_REGISTRY_REGISTRY_REMOTE_H
#define ROUTER_REGISTRY_REGISTRY_REMOTE_H

#include "common/base/buf.h"
#include "common/protocol/wire.h"
#include "router/registry/registry.h"

/* The workers that tell of their requests, by id. Returns how many; at most `max`. */
struct registry_publisher {
    uint32_t id, incarnation;
    char generation[WIRE_GENERATION_MAX];
};
uint32_t registry_publishers(struct registry *r, struct registry_publisher *out, uint32_t max);
void registry_set_followed(struct registry *r, uint32_t id, uint32_t incarnation, bool is_followed);

/* The worker has a request that did not come from here: it is entered as if it had, but for the
 * breaker and --max-concurrent-requests. Embedded in whoever keeps it, with the request's chain, until
 * it has ended. ST_NOT_FOUND: there is no such worker any more. Times may lie back. */
struct registry_remote {
    struct routing *routing;
    struct route_ticket ticket;
};
MUST_USE enum status registry_add_remote(struct registry *r, uint32_t id, uint32_t incarnation,
                                         const struct route_request *rq, struct registry_remote *m);
void registry_remote_first_token(struct registry *r, struct registry_remote *m,
                                 const struct route_feedback *feedback, uint64_t now_us);
/* Exactly once, whatever became of the worker. `now_us`: of those who wait for the place. */
void registry_remote_ended(struct registry *r, struct registry_remote *m,
                           const struct route_end *end, uint64_t now_us);

/* What is sent to workers that are not ours, for other routers: frames of common/protocol/request_events.h whose
 * sequence is the worker's identity. Before any request; `take` appends what there is to `out` and
 * empties it. False: something found no room since the last time, for want of somebody who takes. */
void registry_open_outbox(struct registry *r, uint64_t origin, uint64_t scheme, size_t max_bytes);
bool registry_take_outbox(struct registry *r, struct buf *out);

/* The workers that are described and not ours, by id: returns how many, at most `max`. *n_unknown: those
 * that are not described yet. */
struct registry_third_party {
    uint64_t identity;
    uint32_t id, incarnation;
};
uint32_t registry_third_party(struct registry *r, struct registry_third_party *out, uint32_t max,
                              uint32_t *n_unknown);

#endif
