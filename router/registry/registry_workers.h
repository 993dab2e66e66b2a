/* router/registry/registry_workers.h - workers arrive, are described, drained and removed. Thread:
 * control. */
#ifndef ROUTER_REGISTRY_REGISTRY_WORKERS_H
#define ROUTER_REGISTRY_REGISTRY_WORKERS_H

#include "common/protocol/wire.h"
#include "router/ejection/breaker.h"
#include "router/ejection/outcomes.h"
#include "router/registry/registry.h"
#include "router/registry/worker_part.h"

/* Adds a worker at its resolved address. It is not eligible (WORKER_STARTING) until described. Its
 * id is the smallest free one, which keeps masks short: an id is reused after its worker was
 * removed and has nothing open, so code that keeps an id keeps the incarnation with it. ST_EXISTS;
 * ST_BUSY: no id is free. */
MUST_USE enum status registry_add_at(struct registry *r, const struct address_url *url,
                                     const struct address *addr, uint32_t *id, struct error *err);

MUST_USE enum status registry_remove(struct registry *r, uint32_t id);

/* Stores a worker's /server_info. A new generation empties its part of the index and clears its
 * record of failures. */
MUST_USE enum status registry_describe(struct registry *r, uint32_t id,
                                       const struct wire_server_info *info, bool is_third_party,
                                       struct error *err);

/* Read from the metrics of a third-party engine. */
struct registry_report {
    uint64_t n_blocks;   /* 0: not reported */
    uint32_t block_size; /* tokens */
    char generation[WIRE_GENERATION_MAX];
    int64_t running, waiting; /* requests; negative: not reported */
    double kv_usage;          /* 0 to 1 */
    struct worker_part part;  /* bootstrap_port 0: not reported; its handover is not read */
    struct route_report counted;
};

/* Stores a report; a new generation empties the worker's part of the index. Ignored unless the
 * worker is described and third-party. */
void registry_report(struct registry *r, uint32_t id, const struct registry_report *report);

/* The engines behind a worker's bootstrap server; none: they are unknown, and it computes no
 * prompts for others where its handover needs them. */
void registry_set_engines(struct registry *r, uint32_t id, uint32_t incarnation,
                          const struct worker_engines *engines);
void registry_set_reason(struct registry *r, uint32_t id, uint32_t reasons, bool is_set);

/* Sources of draining; a worker is WORKER_DRAINING while any is set. A new generation of the worker
 * clears DRAIN_WORKER. */
enum registry_drain { DRAIN_OPERATOR = 1, DRAIN_WORKER = 2 };
void registry_set_draining(struct registry *r, uint32_t id, enum registry_drain who, bool is_set);
/* Set by an operator: most requests at once (0: no limit), and free-form labels. */
void registry_configure(struct registry *r, uint32_t id, uint32_t max_in_flight,
                        const char *labels);
void registry_forget_cache(struct registry *r, uint32_t id); /* after a flush */
/* Another worker answers at its address: its learned state is dropped, its open requests stay, and
 * it is WORKER_STARTING until described. */
void registry_replace(struct registry *r, uint32_t id);
/* Advances breakers and grants room to waiting requests: every 100 ms, and when a worker has
 * returned. */
void registry_tick(struct registry *r, uint64_t now_us);

/* A probe of the worker succeeded; `was_away`: the previous one did not. */
void registry_probed(struct registry *r, uint32_t id, bool was_away);

/* True when no worker of the model of `id` may be picked, so that requests wait for the first to
 * return. registry_any_down: true when there is such a model with n_workers or more. */
bool registry_is_down(struct registry *r, uint32_t id);
bool registry_any_down(struct registry *r, uint32_t n_workers);

/* Changes of the breaker of `id` since the last call, for the log. */
struct registry_breaker_change {
    bool was_ejected, has_returned; /* both: one after the other */
    enum breaker_cause cause;       /* of the ejection */
    struct outcomes_sum latest;     /* its answers at the ejection */
    uint64_t pause_us;
};
bool registry_take_breaker_change(struct registry *r, uint32_t id,
                                  struct registry_breaker_change *out);

/* The worker differs from its description: describe it again. */
void registry_suspect(struct registry *r, uint32_t id, uint32_t incarnation);

/* True once after a request to `id` failed: describe it again. Until then it is WORKER_STARTING,
 * unless no other worker could take its requests meanwhile. */
bool registry_take_suspicion(struct registry *r, uint32_t id);

#endif
