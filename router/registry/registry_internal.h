/* router/registry/registry_internal.h - shared by the files of the registry: everything under its
 * lock.
 *
 *   registry.c        workers and models: the control loop
 *   registry_route.c  requests that are sent, wait and end: the router loops
 *   registry_sessions.c  turns that are joined to sessions, and wait with them: the router loops
 *   registry_pair.c   prompts that are computed apart from their decoding: the router loops
 *   registry_remote.c requests that other routers sent: the control loop
 *   registry_kv.c     caches of workers, from their events: the control loop
 *   registry_outbox.c events of our requests to third-party workers, for other routers
 *   registry_view.c   copies for any thread */
#ifndef ROUTER_REGISTRY_REGISTRY_INTERNAL_H
#define ROUTER_REGISTRY_REGISTRY_INTERNAL_H

#include <pthread.h>

#include "router/registry/registry.h"
#include "router/registry/registry_kv.h"
#include "router/registry/registry_remote.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_state.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

struct worker {
    bool is_used, is_described, is_third_party, is_tls, is_suspect;
    enum worker_kind kind;
    struct worker_part part;
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
    uint32_t reasons;                /* while it has no model; then its routing has them */
    uint64_t n_sent, n_failed;       /* our own requests */
    struct registry_report reported; /* last */
    struct worker_engines engines;   /* of its bootstrap server */
    uint32_t next_engine;            /* for the next prompt computed for another worker */
    uint32_t max_in_flight;          /* set by an operator; 0: see bound */
    uint32_t draining;               /* enum registry_drain bits */
    uint32_t n_remote;               /* open requests of other routers */
    bool is_followed;                /* its event stream is connected */
    struct wire_load load;
    bool has_load;
    char labels[REGISTRY_LABELS_MAX];
    struct registry_kv kv; /* from its events; zero: none */
};

struct model {
    char name[WIRE_MODEL_MAX];
    uint32_t name_len;
    char other_names[WIRE_NAMES_MAX]; /* aliases of its workers */
    struct routing *routing;
    struct hold *hold;
    struct sessions *sessions; /* NULL: whole sessions do not wait */
    uint32_t n_turns;          /* of sessions: open */
    uint32_t max_model_len;
    uint32_t n_workers;
    bool was_eligible;    /* a worker was eligible at the last check */
    uint64_t eligible_us; /* when a check last found one; 0: never */
};

struct registry {
    pthread_mutex_t lock;
    struct registry_config config;
    uint32_t n_ids, n_models;
    uint64_t n_contended, lock_wait_ns, n_decisions;
    struct metric *decision_seconds;
    struct policy_term *terms; /* by worker id, for the current dry run */
    uint32_t n_open;           /* our own, of all models, like n_waiting */
    uint32_t n_light;          /* of them, those that take no place */
    uint32_t n_legs;           /* of them, first legs: their requests are counted too */
    uint32_t n_remote;         /* of other routers */
    struct buf outbox;         /* of registry_outbox.c, with the fields below */
    size_t outbox_max;
    bool outbox_is_cut; /* an event did not fit */
    uint64_t origin, scheme, n_shared_ids;
    uint32_t n_waiting;
    uint32_t next_model; /* first to be granted room */
    uint64_t now_us;     /* of the last tick: precise enough for slow starts */
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

/* Reasons against picking it: enum worker_reason bits. */
static inline uint32_t worker_reasons(const struct worker *w, uint32_t id) {
    return w->model ? routing_load(w->model->routing)->workers[id].reasons : w->reasons;
}

/* Sets or clears reasons where they are stored. */
void worker_set_reason(struct worker *w, uint32_t id, uint32_t reasons, bool is_set);
void worker_set_draining(struct worker *w, uint32_t id, uint32_t who, bool is_set);

/* Records whether the model has an eligible worker, and since when it has none. */
void model_note_eligible(struct model *m, uint64_t now_us);
/* True when requests may wait for its workers: one is eligible, or was at most a queue timeout ago
 * and one is out of service for a temporary reason. */
bool model_may_wait(const struct registry *r, const struct model *m, uint64_t now_us);

/* Copies the breaker's state to the load table. */
void worker_show_breaker(struct worker *w, uint32_t id);

/* Fills the target of an opened ticket, and counts it. */
void registry_fill_target(struct registry *r, struct routing *routing,
                          const struct route_ticket *ticket, struct registry_target *out);

/* The target's source of KV, by its ticket. */
void registry_fill_source(const struct registry *r, const struct route_ticket *ticket,
                          struct registry_target *out);

/* Clears the record of its answers: it counts from the beginning. */
void worker_acquit(struct worker *w, uint32_t id);

/* Events for other routers about an attempt at a worker that publishes none. */
void outbox_accepted(struct registry *r, const struct route_ticket *ticket,
                     struct registry_target *target);
void outbox_first(struct registry *r, const struct registry_target *target,
                  const struct route_feedback *feedback, uint64_t now_us);
void outbox_ended(struct registry *r, const struct registry_target *target,
                  const struct route_end *end);

/* Places waiting requests, model by model in turn; the second only those of models that hold
 * requests back (hold_is_on). registry_notify sends their mails after the lock is released. */
void registry_grant(struct registry *r, uint64_t now_us, struct list *decided);
void registry_grant_held(struct registry *r, uint64_t now_us, struct list *decided);

/* By its name as the client wrote it. No name, or the "default" of SGLang's clients where no model
 * is called so: the first. */
MUST_USE enum status registry_choose_model(struct registry *r, struct str name, struct model **out,
                                           struct error *err);
/* For the router loops: counts how often the lock is contended. */
void registry_lock(struct registry *r);

/* A waiter whose session may go is placed, or waits for a worker, or no worker takes it. */
void registry_go_on(struct registry *r, struct model *m, struct registry_waiter *w, uint64_t now_us,
                    struct list *decided);
/* A turn that another router has sent: see sessions_arrive_remote. Its prompt has at most so many
 * tokens; 0: any. */
void registry_join_remote(struct registry *r, struct model *m, struct route_request *rq,
                          const struct request_mark *mark, uint32_t max_tokens,
                          struct session_turn *t);
/* Lets go the turns of m whose sessions may go. */
void registry_grant_sessions(struct registry *r, struct model *m, uint64_t now_us,
                             struct list *decided);
/* Sets what the sessions of each model may occupy: the memory of its workers. */
void registry_count_memory(struct registry *r);

/* Takes those out of the queue that no worker will ever take: all have left for good. */
void registry_give_up(struct registry *r, struct list *decided);
void registry_notify(struct list *decided);

#endif
