/* tests/replay/fleet_model.c - arrivals and ends of steps, in order of time. */
#include "tests/replay/fleet_model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/replay/fleet_report.h"
#include "tests/replay/router_model.h"
#include "tests/support/routing_defaults.h"

/* The oracle's weights of what others lose: later arrivals, requests there, the larger batch. */
#define ORACLE_BETA    2
#define ORACLE_KAPPA   0.05
#define ORACLE_DELTA_S 0.01
#define TIE_S          1e-9

struct fleet {
    const struct fleet_options *options;
    const struct workload *workload;
    struct worker_model *workers;
    struct model_request *requests;
    struct router_models *routers; /* NULL: another chooser */
    struct worker_model_events events;
    struct rng rng; /* breaks an oracle's ties */
    double now_s;
};

void fleet_options_default(struct fleet_options *options) {
    *options = (struct fleet_options){.n_workers = 8,
                                      .cache_tokens = 700000,
                                      .policy = &policy_prefix,
                                      .declared_capacity = 1,
                                      .declared_attn_context = WORKER_ATTN_CONTEXT,
                                      .has_feedback = true,
                                      .n_routers = 1,
                                      .warm_share = 0.2,
                                      .seed = 1};
    policy_options_default(&options->policy_options);
}

bool fleet_choose_by_name(struct fleet_options *options, const char *name) {
    options->chooser = CHOOSER_POLICY;
    options->policy = NULL;
    if (strcmp(name, "oracle") == 0)
        options->chooser = CHOOSER_ORACLE;
    else if (strcmp(name, "oracle_selfish") == 0)
        options->chooser = CHOOSER_ORACLE_SELFISH;
    else
        options->policy = policy_find(str_of(name));
    return options->chooser != CHOOSER_POLICY || options->policy;
}

static double slowness(const struct fleet_options *o, uint32_t worker) {
    return o->slow_odd > 0 && worker % 2 ? o->slow_odd : 1;
}

double fleet_speed(const struct fleet_options *options) {
    double speed = 0;

    for (uint32_t i = 0; i < options->n_workers; i++)
        speed += 1 / slowness(options, i);
    return speed;
}

/* --- choosing -------------------------------------------------------------------------------- */

static double oracle_cost(struct fleet *f, struct worker_model *w, struct model_request *q) {
    bool is_selfish = f->options->chooser == CHOOSER_ORACLE_SELFISH;
    uint32_t n_found = worker_model_found(w, q);
    double n_live = worker_model_n_live(w), others = ORACLE_BETA + ORACLE_KAPPA * n_live;
    double prefill_s = worker_model_slowdown(w) *
                       worker_prefill_s((double)n_found * w->block_tokens, q->in->n_prompt);

    return worker_model_wait_s(w, q->n_units - n_found, f->now_s) +
           prefill_s * (1 + (is_selfish ? 0 : others)) +
           ((is_selfish ? 0 : ORACLE_DELTA_S) + TIE_S) * n_live;
}

static uint32_t pick_as_oracle(struct fleet *f, struct model_request *q) {
    double least = INFINITY;
    uint32_t best = 0, n_equal = 0;

    for (uint32_t w = 0; w < f->options->n_workers; w++) {
        double cost = oracle_cost(f, &f->workers[w], q);

        if (cost > least) continue;
        n_equal = cost < least ? 1 : n_equal + 1;
        least = cost;
        if (rng_below(&f->rng, n_equal) == 0) best = w;
    }
    return best;
}

static uint32_t pick(struct fleet *f, struct model_request *q) {
    switch (f->options->chooser) {
    case CHOOSER_POLICY: return router_models_pick(f->routers, q, f->now_s);
    case CHOOSER_LIST: return f->options->list[q->number];
    default: return pick_as_oracle(f, q);
    }
}

/* --- events ---------------------------------------------------------------------------------- */

static void on_first_token(void *ctx, struct model_request *q) {
    struct fleet *f = ctx;

    if (f->routers) router_models_first(f->routers, q, f->now_s);
}

static void on_ended(void *ctx, struct model_request *q) {
    struct fleet *f = ctx;

    if (f->routers) router_models_ended(f->routers, q, f->now_s);
}

static void arrive(struct fleet *f, uint32_t number) {
    struct model_request *q = &f->requests[number];

    model_request_init(q, &f->workload->requests[number], number, &f->workers[0]);
    q->worker = pick(f, q);
    if (f->routers) router_models_sent(f->routers, q, f->now_s);
    worker_model_add(&f->workers[q->worker], q, f->now_s);
}

/* The worker whose step ends before the time that is set, which becomes that end; or NULL. */
static struct worker_model *next_step(struct fleet *f) {
    struct worker_model *first = NULL;

    for (uint32_t i = 0; i < f->options->n_workers; i++) {
        if (f->workers[i].step_end_s >= f->now_s) continue;
        first = &f->workers[i];
        f->now_s = first->step_end_s;
    }
    return first;
}

static void check(const struct fleet *f) {
    for (uint32_t i = 0; f->options->is_checked && i < f->options->n_workers; i++)
        worker_model_check(&f->workers[i]);
}

static void run(struct fleet *f) {
    double restart_s =
        f->options->is_restarted ? fleet_window_s(f->workload, f->options) : INFINITY;

    for (uint32_t next = 0;; check(f)) {
        struct worker_model *w;

        f->now_s = next < f->workload->n ? f->workload->requests[next].arrival_s : INFINITY;
        w = next_step(f);
        if (isinf(f->now_s)) return;
        if (f->now_s >= restart_s && f->routers) {
            router_models_restart(f->routers);
            restart_s = INFINITY;
        }
        if (w)
            worker_model_step(w, &f->events, f->now_s);
        else
            arrive(f, next++);
    }
}

/* --- the fleet ------------------------------------------------------------------------------- */

static void open_routers(struct fleet *f) {
    const struct fleet_options *o = f->options;

    if (o->chooser != CHOOSER_POLICY) return;
    f->routers = router_models_create(&(struct router_model_options){
        .n_workers = o->n_workers,
        .cache_tokens = o->cache_tokens,
        .block_tokens = f->workload->block_tokens,
        .n_requests = f->workload->n,
        .policy = o->policy,
        .policy_options = o->policy_options,
        .declared_capacity = o->declared_capacity,
        .declared_attn_context = o->declared_attn_context,
        .order = o->is_order_told ? o->worker.order : WORKER_FCFS,
        .slow_odd = o->is_speed_told ? slowness(o, 1) : 1,
        .hashed_tokens = o->hashed_tokens,
        .has_feedback = o->has_feedback,
        .n_routers = o->n_routers,
        .is_shared = o->is_shared,
        .delay_s = o->delay_s,
        .late_delay_s = o->late_delay_s,
        .seed = o->seed,
    });
}

static void open_worker(struct fleet *f, uint32_t i) {
    struct worker_options o = f->options->worker;

    o.cache_tokens = f->options->cache_tokens;
    o.block_tokens = f->workload->block_tokens;
    o.slow = slowness(f->options, i);
    worker_model_init(&f->workers[i], &o);
}

static void open_fleet(struct fleet *f) {
    f->events = (struct worker_model_events){on_first_token, on_ended, f};
    f->requests = mem_calloc((size_t)f->workload->n + 1, sizeof(*f->requests));
    f->workers = mem_calloc(f->options->n_workers, sizeof(*f->workers));
    for (uint32_t i = 0; i < f->options->n_workers; i++)
        open_worker(f, i);
    rng_seed(&f->rng, f->options->seed);
    open_routers(f);
}

static void close_fleet(struct fleet *f) {
    for (uint32_t i = 0; i < f->options->n_workers; i++) {
        worker_model_check(&f->workers[i]);
        worker_model_fini(&f->workers[i]);
    }
    router_models_destroy(f->routers);
    mem_free(f->workers);
    mem_free(f->requests);
}

void fleet_run(const struct workload *workload, const struct workload_bound *bound,
               const struct fleet_options *options, struct fleet_result *result) {
    struct fleet f = {.options = options, .workload = workload};

    open_fleet(&f);
    run(&f);
    fleet_report(&(struct fleet_record){workload, bound, options, f.requests, f.workers}, result);
    close_fleet(&f);
}
