/* router/registry/registry_view.h - copies of what the registry holds, for any thread. */
#ifndef ROUTER_REGISTRY_REGISTRY_VIEW_H
#define ROUTER_REGISTRY_REGISTRY_VIEW_H

#include "common/protocol/wire.h"
#include "router/ejection/breaker.h"
#include "router/registry/registry.h"
#include "router/registry/registry_kv.h"
#include "router/registry/worker_part.h"
#include "router/sessions/sessions.h"

struct registry_view { /* a copy */
    uint32_t id;
    char url[REGISTRY_URL_MAX];
    char address[ADDRESS_TEXT_MAX]; /* the address that is connected to */
    struct wire_server_info info;   /* zero until described */
    bool is_described, is_third_party;
    uint32_t reasons; /* enum worker_reason; 0: may be picked */
    uint32_t in_flight;
    uint32_t n_remote;         /* of in_flight, sent by other routers */
    bool is_followed;          /* its event stream is connected */
    uint64_t n_sent, n_failed; /* our own requests */
    enum breaker_state breaker;
    enum breaker_cause cause; /* of its last ejection */
    uint64_t n_ejected[BREAKER_N_CAUSES];
    uint32_t incarnation;                   /* distinguishes workers that had the same id */
    int64_t engine_running, engine_waiting; /* from its metrics; negative: not reported */
    double engine_kv_usage;                 /* 0 to 1, from its metrics; negative: not reported */
    uint32_t max_in_flight, draining;       /* enum registry_drain bits */
    struct wire_load load;                  /* last reported */
    bool has_load;
    struct worker_part part;
    char labels[REGISTRY_LABELS_MAX];
    uint32_t n_pending;     /* in flight without a first token */
    double resident_tokens; /* predicted for requests in flight */
    struct routing_worker_stats routing;
    struct registry_kv kv; /* from its KV events; zero: none are followed */
};

/* Copies worker `id`; false when there is none. Ids are below REGISTRY_MAX_WORKERS. */
bool registry_get(struct registry *r, uint32_t id, struct registry_view *out);
uint32_t registry_n_ids(struct registry *r); /* all ids are below this */

struct registry_totals {
    uint32_t n_workers, n_eligible, n_open, n_waiting;
    bool may_wait; /* a model's workers are all out of service, for less than --queue-timeout */
    uint32_t n_remote,
        n_followed; /* open requests of other routers; workers with a connected event stream */
    uint64_t index_bytes, n_entries, n_blocks, n_refused, n_evicted;
    uint64_t n_contended, lock_wait_ns; /* contention of the lock by router loops */
};
void registry_totals(struct registry *r, struct registry_totals *out);

/* The i-th name of a model that has a worker, and its largest context; false after the last. */
bool registry_model(struct registry *r, uint32_t i, char name[WIRE_MODEL_MAX],
                    uint32_t *max_model_len);

/* The i-th model that ever had a worker, for dashboards and autoscalers; false after the last. */
struct registry_model_stats {
    char name[WIRE_MODEL_MAX];
    uint32_t n_workers, n_open, n_waiting; /* workers; requests in flight; requests waiting */
    double bytes_per_token;                /* of its prompts, as learned */
    /* 0 to 1: the mean over eligible workers of the larger of their shares of places taken and of
     * KV memory in use. 1 while requests wait, and when there are requests but no such worker. A
     * worker that reports neither max_num_seqs nor KV usage counts as full when it has a queue. */
    double saturation;
    bool joins_sessions;
    struct sessions_stats sessions; /* if so */
};
bool registry_model_stats(struct registry *r, uint32_t i, struct registry_model_stats *out);

#endif
