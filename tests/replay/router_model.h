/* tests/replay/router_model.h - the routers of a modelled fleet: the routing library, given what a
 * proxy would give it.
 *
 *     router_models_pick  ──▶  chain, 4 bytes per token      ──▶ routing_route
 *     router_models_first ──▶  cached tokens, if reported    ──▶ routing_first_token
 *     router_models_ended ──▶  output tokens                 ──▶ routing_ended
 *          each also ──▶ event_ring of the worker ── before a pick ──▶ routing_add_remote ...
 *
 * With hold_s a request may wait in its router until a worker can start it (router/queue/hold.h):
 *
 *     router_models_pick ──▶ hold_place ──▶ a worker, or hold_wait
 *     router_models_walk ──▶ hold_walk  ──▶ on_placed
 *
 * With `sessions` whole sessions wait in their router (router/sessions/sessions.h), before hold_s:
 *
 *     router_models_pick ──▶ sessions_arrive ──▶ held, or as above
 *     router_models_walk ──▶ sessions_next ──▶ as above
 *
 * Several routers share their requests as router/sharing/follow.c does: each reads the workers'
 * logs with a delay and enters the others' requests into books of its own, their tenants and their
 * sessions too. A router that is restarted begins with empty books and replays what the logs still
 * have. */
#ifndef TESTS_REPLAY_ROUTER_MODEL_H
#define TESTS_REPLAY_ROUTER_MODEL_H

#include "router/queue/hold.h"
#include "router/routing/policy.h"
#include "router/sessions/sessions.h"
#include "tests/replay/session_model.h"
#include "tests/replay/worker_model.h"

enum router_sessions { SESSIONS_OFF, SESSIONS_NAMED, SESSIONS_UNNAMED };

struct router_model_options {
    uint32_t n_workers, cache_tokens, host_tokens, block_tokens, n_requests;
    const struct policy_ops *policy;
    struct policy_options policy_options;
    double declared_capacity;     /* as a multiple of the real one */
    double declared_attn_context; /* tokens; what workers report of themselves */
    double restore_tokens_per_s;  /* that workers report; 0: they do not */
    double kv_bytes_per_token;    /* that workers exchange; 0: they do not. Each has a host */
    bool is_speed_fixed;          /* nothing is learned of speeds */
    double slow_odd;              /* every second worker reports so many times less speed */
    enum worker_order order;      /* that workers report */
    uint32_t hashed_tokens;       /* of a prompt at most; 0: all */
    bool has_feedback;            /* workers report what was cached */
    uint32_t n_routers;
    bool is_shared;                /* routers read the workers' logs: of accepted requests after */
    double delay_s, late_delay_s;  /* delay_s, of the rest after late_delay_s */
    double hold_s;                 /* 0: requests never wait in a router */
    enum router_sessions sessions; /* turns are joined: requests name their session, or do not */
    bool is_admitting;             /* whole sessions wait (router/sessions/sessions.h) */
    bool is_final_told;            /* requests say which is the last of its session */
    bool has_tenants;              /* else all requests are of one */
    double odd_weight;             /* of every second tenant; 0: 1, as the others have */
    bool is_apart;     /* each of those comes through one router, the others through all */
    bool has_no_marks; /* routers do not tell each other of tenants and sessions */
    bool refuses;      /* what will miss its deadline (hold.h); else all are kept */
    uint64_t seed;
};

struct router_models;

struct router_models *router_models_create(const struct router_model_options *options);
void router_models_destroy(struct router_models *all); /* no request may be open */

/* The worker that the request's router chooses, or WORKER_NONE: it waits until a walk places it. A
 * request's `number` is below n_requests. */
uint32_t router_models_pick(struct router_models *all, const struct model_request *q, double now_s);
/* Chosen too: no worker, because the request would miss its deadline. When its client is to send it
 * again. */
#define ROUTER_MODEL_REFUSED (WORKER_NONE - 1)
double router_models_retry_s(const struct router_models *all, uint32_t request);

/* All routers place what waits and can be placed now. To be called when anything has happened to a
 * worker, when a request begins to wait, and every HOLD_WALK_US while one does. */
typedef void placed_fn(void *ctx, uint32_t request, uint32_t worker);
void router_models_walk(struct router_models *all, double now_s, placed_fn *on_placed, void *ctx);
uint32_t router_models_n_waiting(const struct router_models *all);

/* Of the sessions of all routers together; zeroes without. */
void router_models_sessions(const struct router_models *all, struct session_model_result *out);

/* What the request, whose worker is chosen, is to fetch; its source is WORKER_NONE without. */
const struct fetch_plan *router_models_fetch(struct router_models *all,
                                             const struct model_request *q);

/* It was sent to q->worker; its first token was there; it has ended. */
void router_models_sent(struct router_models *all, const struct model_request *q, double now_s);
void router_models_first(struct router_models *all, const struct model_request *q, double now_s);
void router_models_ended(struct router_models *all, const struct model_request *q, double now_s);

/* It was sent and came back without a token. */
void router_models_aborted(struct router_models *all, const struct model_request *q, double now_s);

/* A worker is gone, with all its requests, which have ended; and another is there in its place.
 * Routers that share are not modelled then. */
void router_models_down(struct router_models *all, uint32_t worker);
void router_models_up(struct router_models *all, uint32_t worker);

/* All routers: open requests are forgotten, as their connections would be. */
void router_models_restart(struct router_models *all);

#endif
