/* router/registry/registry.h - the workers, their models, and the one lock of the router.
 *
 * The control loop announces workers, reads their descriptions and removes them. The router loops
 * choose among them. Shared state is here: per worker its address and breaker, per model one
 * `routing` object (index, load table, policy). One mutex guards all of it. It is held for match +
 * pick + sent as one step, for a first token, and for an end: a microsecond or two, no system call,
 * no allocation. It is a leaf: no other lock is taken while it is held.
 *
 *      control loop:  add -> (probe) -> describe -> set_reason ... -> remove
 *      router loop:   enter -> first_token -> ended           (from proxy.c, once per attempt)
 *                       └─ waits ─▶ mail to its loop, when a worker can take it (hold.h)
 *
 *      registry_workers.h   workers arrive, are described, drained and removed          control loop
 *      registry_route.h     requests arrive, are sent and end                           router loops
 *      registry_remote.h    requests of other routers                                   control loop
 *      registry_kv.h        caches that workers report by KV events                control loop
 *      registry_state.h     state of a worker for a successor                           control loop
 *      registry_view.h      copies for readers                                          any thread
 *
 * A worker joins a model's routing when it is described; until then it cannot be picked. */
#ifndef ROUTER_REGISTRY_REGISTRY_H
#define ROUTER_REGISTRY_REGISTRY_H

#include "common/base/status.h"
#include "common/net/address.h"
#include "router/queue/hold.h"
#include "router/routing/routing.h"

#define REGISTRY_MAX_WORKERS 1024
#define REGISTRY_MAX_MODELS  64
#define REGISTRY_URL_MAX     ADDRESS_URL_MAX
#define REGISTRY_LABELS_MAX  256
/* The model of workers that report none. It serves requests for models that no other worker
 * serves. */
#define REGISTRY_ANY_MODEL "unknown"

struct metric;
struct registry;

struct registry_config {
    struct routing_options routing; /* for each model; max_index_bytes is per model */
    struct hold_options hold;       /* for each model */
    uint32_t max_worker_requests;   /* in flight on each; 0: from the worker's description */
    uint32_t max_sessions;          /* of each model that are known; 0: turns are not joined */
    uint32_t max_concurrent;        /* in flight on all of them; 0: any */
    uint8_t vllm_handover;          /* enum worker_handover of vLLM workers with a role */
    uint64_t trial_us; /* shortest pause of a worker that was ejected; 0: BREAKER_MIN_US */
};

MUST_USE enum status registry_create(struct registry **out, const struct registry_config *config,
                                     struct error *err);
void registry_destroy(struct registry *r); /* no request may be open; NULL is fine */

/* Control loop: new limits, policy options and slow start; the rest of *config stays as at the
 * start. Takes the lock once per model and worker, and allocates when queues grow: for
 * operators. */
void registry_change(struct registry *r, const struct registry_config *config);

/* Sink for a sample of decision times in seconds; NULL: none. Before any request. */
void registry_measure(struct registry *r, struct metric *decision_seconds);

/* Asserts all invariants, and that the sum of the loads equals the requests open here and
 * elsewhere. O(size), under the lock: for tests. */
void registry_check(struct registry *r);

#endif
