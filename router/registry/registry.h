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
 *      registry_workers.h   workers arrive, are described, drained and removed          control loop
 *      registry_route.h     requests arrive, are sent and end                           router loops
 *      registry_remote.h    requests of other routers                                   control loop
 *      registry_state.h     what a successor needs to know of a worker                  control loop
 *      registry_view.h      copies for readers                                          any thread
 *
 * A worker joins a model's routing when it has described itself; until then it cannot be picked. */
#ifndef ROUTER_REGISTRY_REGISTRY_H
#define ROUTER_REGISTRY_REGISTRY_H

#include "common/base/status.h"
#include "router/registry/address.h"
#include "router/routing/admission.h"
#include "router/routing/routing.h"

#define REGISTRY_MAX_WORKERS 1024
#define REGISTRY_MAX_MODELS  64
#define REGISTRY_URL_MAX     ADDRESS_URL_MAX
#define REGISTRY_LABELS_MAX  256
/* The model of workers that do not report one: of requests for models that no other serves. */
#define REGISTRY_ANY_MODEL "unknown"

struct metric;
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

/* Control loop: other limits, policy options and slow start from now on; the rest of *config is as at
 * the start. Under the lock, once per model and worker, and allocates when queues grow: for operators. */
void registry_change(struct registry *r, const struct registry_config *config);

/* Where a sample of the decisions' durations goes, in seconds; NULL: nowhere. Before any request. */
void registry_measure(struct registry *r, struct metric *decision_seconds);

/* Asserts the invariants of all books, and that the sum of the loads is what is open here and what is
 * open elsewhere. O(size), under the lock: for tests. */
void registry_check(struct registry *r);

#endif
