/* tests/replay/fleet_model.h - a discrete-event model of a fleet: a workload, routers with the
 * product's routing library (router_model.h), workers with its KV manager (worker_model.h).
 *
 * Virtual time: nothing sleeps, equal input gives equal output. The library is given what a proxy
 * would give it. Beside its policies there are choosers that see everything:
 *
 *   oracle          the worker where the request costs least, to itself and to the others, by each
 *                   worker's real queue, batch and cache:
 *                   wait + prefill x (1 + 2 + 0.05 L) + 10 ms x L, with L requests there
 *   oracle_selfish  the same without the others: the least time to its own first token
 *
 *   rollout         of the n_tried workers where an oracle's cost is least, the one after which the
 *                   next n_ahead requests, which then go as the oracle says, and all that are here
 *                   have the least time to first token: it sees their true arrivals. Open
 *                   workloads; some hundred times as slow, so for a slice of one
 *
 * With fetch_tokens_per_s workers bring KV from one another. A transfer begins when its request is
 * sent, after the earlier ones of both ends. Choices about that are judged by what comes of both
 * ways, in processes of their own: with the router's source, or the worker that holds most, and
 * without.
 *
 * An oracle decides request by request and does not see the future, so a policy may do better. */
#ifndef TESTS_REPLAY_FLEET_MODEL_H
#define TESTS_REPLAY_FLEET_MODEL_H

#include "router/routing/policy.h"
#include "tests/replay/fetch_model.h"
#include "tests/replay/router_model.h"
#include "tests/replay/worker_model.h"

enum fleet_chooser {
    CHOOSER_POLICY,
    CHOOSER_ORACLE,
    CHOOSER_ORACLE_SELFISH,
    CHOOSER_ROLLOUT,
    CHOOSER_LIST
};

struct fleet_options {
    uint32_t n_workers;
    uint32_t cache_tokens;        /* of each worker */
    struct worker_options worker; /* besides cache_tokens and block_tokens */
    double slow_odd;              /* every second worker's steps take so many times as long; 0: 1 */
    bool is_speed_told;           /* those workers report their own speed, not the others' */
    bool is_speed_fixed;          /* routers learn nothing of speeds */
    bool is_order_told;           /* workers report their order; else routers take it for fcfs */
    bool is_restore_told; /* workers report how fast they bring blocks back from host memory */
    enum fleet_chooser chooser;
    const struct policy_ops *policy;      /* of CHOOSER_POLICY */
    struct policy_options policy_options; /* of CHOOSER_POLICY */
    const uint32_t *list;                 /* of CHOOSER_LIST: (n) a worker for each request */
    uint32_t n_ahead, n_tried; /* of CHOOSER_ROLLOUT: requests it sees, workers it tries */
    double fetch_tokens_per_s; /* between two workers; 0: they exchange no KV */
    double fetch_latency_s;    /* of each fetch */
    double kv_bytes_per_token;
    uint32_t judged_fetches;       /* of so many choices about fetching one is judged; 0: none */
    double declared_capacity;      /* as a multiple of the real one */
    double declared_attn_context;  /* tokens; what workers report of themselves */
    uint32_t hashed_tokens;        /* of a prompt at most; 0: all */
    bool has_feedback;             /* workers report what was cached */
    double late_first_s;           /* delay before routers see a first token */
    uint32_t n_crashes;            /* workers that crash at half time, for a tenth of it */
    double hold_s;                 /* requests wait in a router (router_model.h) */
    double walk_s;                 /* so often at least while one does */
    enum router_sessions sessions; /* as in router_model.h, and the next two */
    bool is_admitting, is_final_told;
    bool has_tenants;             /* routers know of them; else all are one */
    double odd_weight;            /* of every second tenant */
    double due_s;                 /* deadlines: so long and due_prefills x the prefill of */
    double due_prefills;          /* the whole prompt after a request came; 0: none */
    bool is_never_refused;        /* deadlines are only counted */
    bool comes_again;             /* a refused request, once, when the router asks for it */
    uint32_t n_routers;           /* requests are spread over them at random */
    bool is_apart, has_no_marks;  /* of routers: router_model.h */
    bool is_shared;               /* routers read each other's requests in workers' logs */
    double delay_s, late_delay_s; /* so much later: accepted requests, all else */
    double window_share;          /* of the time, where the window begins; 0: none */
    bool is_restarted;            /* routers lose their books there */
    double warm_share;            /* of the time; requests before it are not reported */
    bool is_checked;              /* invariants are asserted at every event */
    uint64_t seed;
};

/* Of a closed loop with sessions: between the warm-up and the end. */
struct fleet_sessions {
    double turns_per_s;               /* that ended */
    double mean_prompt_tokens;        /* of turns */
    double hit_of_known;              /* of prompt tokens that an infinite cache would have found */
    double ttft_s, single_ttft_s;     /* means: of turns, of requests without a session */
    double short_ttft_s, long_ttft_s; /* of turns of less than 30,000 tokens, of over 120,000 */
    double held_share, mean_held_s, longest_held_s; /* turns that waited in a router */
    struct session_model_result joined;
};

/* Of requests that arrive after the warm-up. */
struct fleet_result {
    uint32_t n;
    double mean_ttft_s, p50_ttft_s, p99_ttft_s, longest_ttft_s, mean_e2e_s;
    double mean_itl_s, p90_itl_s;
    double good_share;          /* first token within 2 s, then 50 ms at most between tokens */
    double flood_ttft_s;        /* mean of the flood's tenant (crowd.h) */
    double worst_tenant_ttft_s; /* mean of the tenant, another, that waits longest */
    double hit_share;           /* of prompt tokens: found cached */
    double pooled_hit_share;    /* what one cache of the fleet's size would have found */
    double busy_share;          /* of the workers' time, until the last end */
    double imbalance;           /* most prefill tokens of a worker, by the mean */
    double request_imbalance;   /* the same of requests */
    double held_share, mean_held_s, longest_held_s; /* requests that waited in a router */
    double odd_by_even;   /* prefill of every second tenant, by that of the others, between the
                         * warm-up and the last arrival */
    uint32_t n_lost;      /* requests, by crashes after their first token */
    double fetched_share; /* of prompt tokens: from another worker */
    struct fetch_judgement fetches;
    double refused_share, missed_share; /* deadlines: refused; of those accepted, too late */
    double due_share;                   /* of all: in time */
    double again_share;                 /* of those that came again: accepted then */
    struct fleet_sessions sessions;
    double window_hit_of_pooled, window_ttft_s; /* of five minutes after window_share */
};

/* The speed of all workers together, in workers of the usual speed. */
double fleet_speed(const struct fleet_options *options);

void fleet_options_default(struct fleet_options *options); /* eight workers, policy `prefix` */

/* A policy of the library, or an oracle, by name; false when there is none. */
bool fleet_choose_by_name(struct fleet_options *options, const char *name);

/* `bound` may be NULL, and then pooled_hit_share is 0. */
void fleet_run(const struct workload *workload, const struct workload_bound *bound,
               const struct fleet_options *options, struct fleet_result *result);

#endif
