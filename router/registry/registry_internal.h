/* router/registry/registry_internal.h - what the files of the registry share: everything under its lock.
 *
 *   registry.c        workers that come, change and go: the control loop
 *   registry_route.c  requests that are sent, wait and end: the router loops
 *   registry_remote.c requests that other routers have sent: the control loop
 *   registry_outbox.c what they are told of ours, where the worker does not tell them
 *   registry_view.c   what is only looked at, by any thread */
#ifndef ROUTER_REGISTRY_REGISTRY_INTERNAL_H
#define ROUTER_REGISTRY_REGISTRY_INTERNAL_H

#include "router/registry/registry.h"
#include "router/registry/registry_remote.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_state.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

#include <pthread.h>

struct worker {
    bool is_used, is_described, is_third_party, is_tls, is_suspect;
    enum worker_kind kind;
    char url[REGISTRY_URL_MAX];
    uint32_t authority_len;
    char authority[REGISTRY_URL_MAX];
    uint32_t incarnation;
    struct address addr;
    struct wire_server_info info;
    struct breaker breaker;
    struct outcomes outcomes;
    uint64_t n_ejected[BREAKER_N_CAUSES];
    struct registry_breaker_change news;
    struct model *model;             /* NULL until described */
    uint32_t reasons;                /* before it has a model; afterwards its routing keeps them */
    uint64_t n_sent, n_failed;       /* our own requests */
    struct registry_report reported; /* last */
    uint32_t max_in_flight;          /* what an operator allows; 0: see bound */
    uint32_t draining;               /* enum registry_drain bits */
    uint32_t n_remote;               /* open requests of other routers */
    bool is_followed;                /* it is being heard of those */
    struct wire_load load;
    bool has_load;
    char labels[REGISTRY_LABELS_MAX];
};

struct model {
    char name[WIRE_MODEL_MAX];
    uint32_t name_len;
    char other_names[WIRE_NAMES_MAX]; /* that its workers answer to as well */
    struct routing *routing;
    struct admission *admission;
    uint32_t max_model_len;
    uint32_t n_workers;
    bool was_eligible;    /* a worker could be picked, since the last look */
    uint64_t eligible_us; /* when one could last be, as a look found it; 0: never */
};

struct registry {
    pthread_mutex_t lock;
    struct registry_config config;
    uint32_t n_ids, n_models;
    uint64_t n_contended, lock_wait_ns, n_decisions;
    struct metric *decision_seconds;
    struct policy_term *terms; /* by worker id, of the dry run at hand */
    uint32_t n_open;           /* our own, of all models, like n_waiting */
    uint32_t n_remote;         /* of other routers */
    struct buf outbox;         /* of registry_outbox.c, as are: */
    size_t outbox_max;
    bool outbox_is_cut; /* something found no room in it */
    uint64_t origin, scheme, n_shared_ids;
    uint32_t n_waiting;
    uint32_t next_model; /* is looked at first when a place is free */
    uint64_t now_us;     /* of the last tick: near enough for slow starts */
    struct worker workers[REGISTRY_MAX_WORKERS];
    struct model models[REGISTRY_MAX_MODELS];
};

static inline bool model_is_called(const struct model *m, struct str name) {
    return str_eq((struct str){m->name, m->name_len}, name);
}

static inline bool model_is_also_called(const struct model *m, struct str name) {
    const char *cursor = m->other_names;
    struct str other;

    while ((other = wire_names_next(&cursor)).len) {
        if (str_eq(other, name)) return true;
    }
    return false;
}

/* Why it may not be picked: enum worker_reason. */
static inline uint32_t worker_reasons(const struct worker *w, uint32_t id) {
    return w->model ? routing_load(w->model->routing)->workers[id].reasons : w->reasons;
}

/* Sets or clears them, where they are kept. */
void worker_set_reason(struct worker *w, uint32_t id, uint32_t reasons, bool is_set);
void worker_set_draining(struct worker *w, uint32_t id, uint32_t who, bool is_set);

/* Looks whether it has a worker that can be picked, and since when it has not. */
void model_note_eligible(struct model *m, uint64_t now_us);
/* Requests may wait for its workers: one can be picked, or could be not longer ago than a request may
 * wait, and one is out of service for a reason that ends by itself. */
bool model_may_wait(const struct registry *r, const struct model *m, uint64_t now_us);

/* The breaker says whether the worker may be picked; the load table must say the same. */
void worker_show_breaker(struct worker *w, uint32_t id);

/* What was wrong with it is over, as far as its answers say: from now on they count anew. */
void worker_acquit(struct worker *w, uint32_t id);

/* For the other routers, of an attempt at a worker that tells nothing itself. */
void outbox_accepted(struct registry *r, const struct route_ticket *ticket,
                     struct registry_target *target);
void outbox_first(struct registry *r, const struct registry_target *target,
                  const struct route_feedback *feedback, uint64_t now_us);
void outbox_ended(struct registry *r, const struct registry_target *target,
                  const struct route_end *end);

/* Gives the places that are free to those who wait, model by model in turn. Their mails are sent by
 * registry_notify, when the lock is no longer held. */
void registry_grant(struct registry *r, uint64_t now_us, struct list *decided);
void registry_notify(struct list *decided);

#endif
