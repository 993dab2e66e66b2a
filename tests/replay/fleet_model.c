/* tests/replay/fleet_model.c - arrivals and ends of steps, in order of time. */
#include "tests/replay/fleet_model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/replay/fleet_report.h"
#include "tests/replay/rollout.h"
#include "tests/support/routing_defaults.h"

/* The oracle's weights of what others lose: later arrivals, requests there, the larger batch. */
#define ORACLE_BETA    2
#define ORACLE_KAPPA   0.05
#define ORACLE_DELTA_S 0.01
#define TIE_S          1e-9

/* Of the time: when workers crash, and how long they are gone. */
#define CRASH_SHARE  0.5
#define REPAIR_SHARE 0.1

struct fleet {
    const struct fleet_options *options;
    const struct workload *workload;
    struct worker_model *workers;
    struct model_request *requests;
    struct router_models *routers; /* NULL: another chooser */
    struct fetch_model *fetches;   /* NULL: there are none */
    struct worker_model_events events;
    struct rng rng; /* breaks an oracle's ties */
    double now_s;

    uint32_t n_arrived;      /* of those with a time of their own */
    struct heap returns;     /* requests of a closed loop, by arrival */
    struct report *late;     /* (n) first tokens that the routers learn of later */
    uint32_t n_late, n_told; /* of them */
    double restart_s, crash_s, repair_s, walked_s;
    bool is_walk_due;

    /* Of a process that tries a worker for a request. */
    bool is_tried;
    uint32_t n_seen; /* requests it looks at, the first ones */
    uint32_t n_due;  /* of those, without a first token */
    double sum_s;    /* time to first token of the others */
};

struct report {
    double at_s;
    struct model_request *q;
};

void fleet_options_default(struct fleet_options *options) {
    *options = (struct fleet_options){.n_workers = 8,
                                      .cache_tokens = 700000,
                                      .policy = &policy_prefix,
                                      .declared_capacity = 1,
                                      .declared_attn_context = WORKER_ATTN_CONTEXT,
                                      .has_feedback = true,
                                      .is_restore_told = true,
                                      .fetch_latency_s = 5e-3,
                                      .kv_bytes_per_token = 131072,
                                      .n_routers = 1,
                                      .walk_s = HOLD_WALK_US * 1e-6,
                                      .n_ahead = 256,
                                      .n_tried = 4,
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
    else if (strcmp(name, "rollout") == 0)
        options->chooser = CHOOSER_ROLLOUT;
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

static uint32_t pick_by_rollout(struct fleet *f, struct model_request *q);

static uint32_t pick(struct fleet *f, struct model_request *q) {
    switch (f->options->chooser) {
    case CHOOSER_POLICY: return router_models_pick(f->routers, q, f->now_s);
    case CHOOSER_LIST: return f->options->list[q->number];
    case CHOOSER_ROLLOUT: return f->is_tried ? pick_as_oracle(f, q) : pick_by_rollout(f, q);
    default: return pick_as_oracle(f, q);
    }
}

/* --- a request's life ------------------------------------------------------------------------ */

static void on_first_token(void *ctx, struct model_request *q) {
    struct fleet *f = ctx;

    f->is_walk_due = true;
    if (f->is_tried && q->number < f->n_seen) {
        f->n_due--;
        f->sum_s += q->first_s - q->arrival_s;
    }
    if (!f->routers) return;
    if (f->options->late_first_s > 0)
        f->late[f->n_late++] = (struct report){f->now_s + f->options->late_first_s, q};
    else
        router_models_first(f->routers, q, f->now_s);
}

static void schedule_next(struct fleet *f, const struct model_request *ended) {
    struct model_request *q = &f->requests[ended->in->next - 1];

    q->arrival_s = f->now_s + ended->in->gap_s;
    if (q->arrival_s <= f->workload->end_s) heap_push(&f->returns, &q->later);
}

static void on_ended(void *ctx, struct model_request *q) {
    struct fleet *f = ctx;

    f->is_walk_due = true;
    if (f->routers) router_models_ended(f->routers, q, f->now_s);
    if (q->in->next) schedule_next(f, q);
}

/* It comes again once, if its client obeys. */
static void refuse(struct fleet *f, struct model_request *q) {
    q->is_refused = true;
    model_request_fini(q);
    if (q->n_refused++ || !f->options->comes_again) return;
    q->arrival_s = f->now_s + router_models_retry_s(f->routers, q->number);
    heap_push(&f->returns, &q->later);
}

struct fetch_trial {
    struct fleet *f;
    struct model_request *q;
    struct fetch_offer offer;
};

static double live_until_first(void *ctx, uint32_t way);

/* From the router's source, or not; one choice in so many is judged. */
static void begin_fetch(struct fleet *f, struct model_request *q) {
    const struct fetch_plan *plan = router_models_fetch(f->routers, q);
    struct fetch_offer chosen = {plan->source, plan->tokens};
    struct fetch_trial t = {.f = f, .q = q};

    if (!f->is_tried && fetch_model_is_judged(f->fetches, q, &chosen, &t.offer)) {
        double seconds[FETCH_N_WAYS];

        rollout_costs(FETCH_N_WAYS, live_until_first, &t, seconds);
        fetch_model_judge(
            f->fetches, plan->source != WORKER_NONE ? FETCH_WAY_FETCH : FETCH_WAY_COMPUTE, seconds);
    }
    fetch_model_begin(f->fetches, q, &chosen, f->now_s);
}

static void add(struct fleet *f, struct model_request *q) {
    if (f->routers) router_models_sent(f->routers, q, f->now_s);
    worker_model_add(&f->workers[q->worker], q, f->now_s);
}

static void on_placed(void *ctx, uint32_t request, uint32_t worker) {
    struct fleet *f = ctx;
    struct model_request *q = &f->requests[request];

    if (worker == ROUTER_MODEL_REFUSED) {
        refuse(f, q);
        return;
    }
    q->worker = worker;
    q->held_s = f->now_s - q->arrival_s;
    if (f->fetches) begin_fetch(f, q);
    add(f, q);
}

static void place(struct fleet *f, struct model_request *q) {
    uint32_t worker = pick(f, q);

    f->is_walk_due |= worker == WORKER_NONE;
    if (worker != WORKER_NONE) on_placed(f, q->number, worker);
}

static void begin(struct fleet *f, uint32_t number, double arrival_s) {
    struct model_request *q = &f->requests[number];
    const struct fleet_options *o = f->options;
    uint32_t n_refused = q->n_refused;

    model_request_init(q, &f->workload->requests[number], number, &f->workers[0]);
    q->n_refused = n_refused;
    q->arrival_s = arrival_s;
    if (o->due_s > 0)
        q->by_s = arrival_s + o->due_s + o->due_prefills * worker_prefill_s(0, q->in->n_prompt);
    place(f, q);
}

static void on_back(void *ctx, struct model_request *q) {
    struct fleet *f = ctx;

    if (f->routers) router_models_aborted(f->routers, q, f->now_s);
    begin(f, q->number, q->arrival_s);
}

/* --- events ---------------------------------------------------------------------------------- */

static void arrive(struct fleet *f) {
    uint32_t number = f->n_arrived++;

    begin(f, number, f->workload->requests[number].arrival_s);
}

static void come_back(struct fleet *f) {
    struct model_request *q = HEAP_ENTRY(heap_pop(&f->returns), struct model_request, later);

    begin(f, (uint32_t)(q - f->requests), q->arrival_s);
}

static void tell_first(struct fleet *f) {
    f->is_walk_due = true;
    router_models_first(f->routers, f->late[f->n_told++].q, f->now_s);
}

static void walk(struct fleet *f) {
    f->walked_s = f->now_s;
    f->is_walk_due = false;
    router_models_walk(f->routers, f->now_s, on_placed, f);
}

static void restart(struct fleet *f) {
    router_models_restart(f->routers);
    f->restart_s = INFINITY;
}

static void crash(struct fleet *f) {
    f->crash_s = INFINITY;
    for (uint32_t i = 0; i < f->options->n_crashes; i++)
        router_models_down(f->routers, i);
    for (uint32_t i = 0; i < f->options->n_crashes; i++)
        worker_model_crash(&f->workers[i], &f->events, f->now_s);
}

static void repair(struct fleet *f) {
    f->repair_s = INFINITY;
    f->is_walk_due = true;
    for (uint32_t i = 0; i < f->options->n_crashes; i++)
        router_models_up(f->routers, i);
}

static double next_arrival_s(const struct fleet *f) {
    uint32_t next = f->n_arrived;

    return next < f->workload->n ? f->workload->requests[next].arrival_s : INFINITY;
}

static double next_return_s(const struct fleet *f) {
    const struct heap_link *first = heap_first(&f->returns);

    return first ? HEAP_ENTRY_CONST(first, struct model_request, later)->arrival_s : INFINITY;
}

static bool has_queue(const struct fleet *f) {
    return f->routers && (f->options->hold_s > 0 || f->options->is_admitting);
}

static double next_walk_s(const struct fleet *f) {
    if (!has_queue(f) || !router_models_n_waiting(f->routers)) return INFINITY;
    return fmax(f->now_s, f->walked_s + f->options->walk_s);
}

static double next_report_s(const struct fleet *f) {
    return f->n_told < f->n_late ? f->late[f->n_told].at_s : INFINITY;
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

/* The earliest event happens; of equals, the first here. False: there is none. */
static bool happen(struct fleet *f) {
    const struct {
        double at_s;
        void (*happens)(struct fleet *f);
    } events[] = {
        {f->restart_s, restart},        {f->crash_s, crash},    {f->repair_s, repair},
        {next_report_s(f), tell_first}, {next_walk_s(f), walk}, {next_return_s(f), come_back},
        {next_arrival_s(f), arrive},
    };
    size_t first = 0;
    struct worker_model *w;

    for (size_t i = 1; i < ARRAY_LEN(events); i++)
        first = events[i].at_s < events[first].at_s ? i : first;
    f->now_s = events[first].at_s;
    w = next_step(f);
    if (isinf(f->now_s)) return false;
    if (w)
        worker_model_step(w, &f->events, f->now_s);
    else
        events[first].happens(f);
    if (f->is_walk_due && has_queue(f)) walk(f);
    return true;
}

/* --- the future ------------------------------------------------------------------------------ */

struct trial {
    struct fleet *f;
    struct model_request *q;
    uint32_t workers[ROLLOUT_MAX], n;
    double costs[ROLLOUT_MAX];
};

/* Keeps the n_tried cheapest, in order. */
static void consider(struct trial *t, uint32_t worker, double cost) {
    uint32_t i = t->n, n_max = MIN(MAX(t->f->options->n_tried, 1u), ROLLOUT_MAX);

    if (t->n < n_max)
        t->n++;
    else if (cost >= t->costs[--i])
        return;
    for (; i && cost < t->costs[i - 1]; i--) {
        t->workers[i] = t->workers[i - 1];
        t->costs[i] = t->costs[i - 1];
    }
    t->workers[i] = worker;
    t->costs[i] = cost;
}

/* In a process of its own: the sum of the times to first token. */
static double live_on(void *ctx, uint32_t choice) {
    struct trial *t = ctx;
    struct fleet *f = t->f;

    f->is_tried = true;
    f->n_seen = f->n_arrived + MIN(f->options->n_ahead, f->workload->n - f->n_arrived);
    for (uint32_t i = 0; i < f->n_seen; i++)
        f->n_due += !(f->requests[i].first_s > 0);
    on_placed(f, t->q->number, t->workers[choice]);
    while (f->n_due && happen(f))
        continue;
    return f->sum_s;
}

/* In a process of its own: the time to first token of a request that fetches, or computes. */
static double live_until_first(void *ctx, uint32_t way) {
    struct fetch_trial *t = ctx;
    struct fleet *f = t->f;

    f->is_tried = true;
    f->n_seen = 0;
    if (way == FETCH_WAY_FETCH) fetch_model_begin(f->fetches, t->q, &t->offer, f->now_s);
    add(f, t->q);
    while (!(t->q->first_s > 0) && happen(f))
        continue;
    return t->q->first_s > 0 ? t->q->first_s - t->q->arrival_s : INFINITY;
}

static uint32_t pick_by_rollout(struct fleet *f, struct model_request *q) {
    struct trial t = {.f = f, .q = q};

    for (uint32_t w = 0; w < f->options->n_workers; w++)
        consider(&t, w, oracle_cost(f, &f->workers[w], q));
    return t.workers[t.n > 1 ? rollout_least(t.n, live_on, &t) : 0];
}

/* --- the fleet ------------------------------------------------------------------------------- */

static void open_routers(struct fleet *f) {
    const struct fleet_options *o = f->options;

    if (o->chooser != CHOOSER_POLICY) return;
    f->routers = router_models_create(&(struct router_model_options){
        .n_workers = o->n_workers,
        .cache_tokens = o->cache_tokens,
        .host_tokens = o->worker.host_tokens,
        .restore_tokens_per_s = o->is_restore_told ? o->worker.restore_tokens_per_s : 0,
        .kv_bytes_per_token = o->fetch_tokens_per_s > 0 ? o->kv_bytes_per_token : 0,
        .block_tokens = f->workload->block_tokens,
        .n_requests = f->workload->n,
        .policy = o->policy,
        .policy_options = o->policy_options,
        .declared_capacity = o->declared_capacity,
        .declared_attn_context = o->declared_attn_context,
        .order = o->is_order_told ? o->worker.order : WORKER_FCFS,
        .is_speed_fixed = o->is_speed_fixed,
        .slow_odd = o->is_speed_told ? slowness(o, 1) : 1,
        .hashed_tokens = o->hashed_tokens,
        .has_feedback = o->has_feedback,
        .hold_s = o->hold_s,
        .sessions = o->sessions,
        .is_admitting = o->is_admitting,
        .is_final_told = o->is_final_told,
        .has_tenants = o->has_tenants,
        .odd_weight = o->odd_weight,
        .refuses = o->due_s > 0 && !o->is_never_refused,
        .n_routers = o->n_routers,
        .is_shared = o->is_shared,
        .is_apart = o->is_apart,
        .has_no_marks = o->has_no_marks,
        .delay_s = o->delay_s,
        .late_delay_s = o->late_delay_s,
        .seed = o->seed,
    });
}

static void open_fetches(struct fleet *f) {
    const struct fleet_options *o = f->options;

    if (!f->routers || !(o->fetch_tokens_per_s > 0)) return;
    f->fetches =
        fetch_model_create(&(struct fetch_model_options){.n_workers = o->n_workers,
                                                         .tokens_per_s = o->fetch_tokens_per_s,
                                                         .latency_s = o->fetch_latency_s,
                                                         .judged = o->judged_fetches},
                           f->workers);
}

static void open_worker(struct fleet *f, uint32_t i) {
    struct worker_options o = f->options->worker;

    o.cache_tokens = f->options->cache_tokens;
    o.block_tokens = f->workload->block_tokens;
    o.slow = slowness(f->options, i);
    worker_model_init(&f->workers[i], &o);
}

static bool comes_before(const struct heap_link *a, const struct heap_link *b) {
    const struct model_request *x = HEAP_ENTRY_CONST(a, struct model_request, later);
    const struct model_request *y = HEAP_ENTRY_CONST(b, struct model_request, later);

    return x->arrival_s != y->arrival_s ? x->arrival_s < y->arrival_s : x < y;
}

static void open_events(struct fleet *f) {
    const struct fleet_options *o = f->options;
    double span_s = workload_span_s(f->workload);

    heap_init(&f->returns, comes_before);
    f->late = mem_calloc((size_t)f->workload->n + 1, sizeof(*f->late));
    f->restart_s = f->crash_s = f->repair_s = INFINITY;
    if (o->is_restarted && f->routers) f->restart_s = fleet_window_s(f->workload, o);
    if (o->n_crashes && f->routers) {
        f->crash_s = CRASH_SHARE * span_s;
        f->repair_s = (CRASH_SHARE + REPAIR_SHARE) * span_s;
    }
}

static void open_fleet(struct fleet *f) {
    f->events = (struct worker_model_events){on_first_token, on_ended, on_back, f};
    f->requests = mem_calloc((size_t)f->workload->n + 1, sizeof(*f->requests));
    f->workers = mem_calloc(f->options->n_workers, sizeof(*f->workers));
    for (uint32_t i = 0; i < f->options->n_workers; i++)
        open_worker(f, i);
    rng_seed(&f->rng, f->options->seed);
    open_routers(f);
    open_fetches(f);
    open_events(f);
}

static void close_fleet(struct fleet *f) {
    for (uint32_t i = 0; i < f->options->n_workers; i++) {
        worker_model_check(&f->workers[i]);
        worker_model_fini(&f->workers[i]);
    }
    router_models_destroy(f->routers);
    fetch_model_destroy(f->fetches);
    heap_fini(&f->returns);
    mem_free(f->late);
    mem_free(f->workers);
    mem_free(f->requests);
}

void fleet_run(const struct workload *workload, const struct workload_bound *bound,
               const struct fleet_options *options, struct fleet_result *result) {
    struct fleet f = {.options = options, .workload = workload};

    open_fleet(&f);
    while (happen(&f))
        check(&f);
    fleet_report(&(struct fleet_record){workload, bound, options, f.requests, f.workers}, result);
    if (f.routers) router_models_sessions(f.routers, &result->sessions.joined);
    if (f.fetches) result->fetches = fetch_model_judgement(f.fetches);
    close_fleet(&f);
}
