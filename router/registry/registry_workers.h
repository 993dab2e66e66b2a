/* router/registry/registry_workers.h - workers arrive, are described, drained and removed. Thread: control. */
#ifndef ROUTER_REGISTRY_REGISTRY_WORKERS_H
#define ROUTER_REGISTRY_REGISTRY_WORKERS_H

#include "common/protocol/wire.h"
#include "router/registry/registry.h"
#include "router/routing/breaker.h"
#include "router/routing/outcomes.h"

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
                                       const struct wire_server_info *info, bool is_third_party,
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
struct registry_breaker_change {
    bool was_ejected, has_returned; /* both: one after the other */
    enum breaker_cause cause;       /* of the ejection */
    struct outcomes_sum latest;     /* its answers, then */
    uint64_t pause_us;
};
bool registry_take_breaker_change(struct registry *r, uint32_t id,
                                  struct registry_breaker_change *out);

/* It is not what it was described as: it should be described again. */
void registry_suspect(struct registry *r, uint32_t id, uint32_t incarnation);

/* True once after a request to `id` failed: it should be described again. Until it has been, it is
 * WORKER_STARTING, unless nobody else could take its requests meanwhile. */
bool registry_take_suspicion(struct registry *r, uint32_t id);

#endif
