/* tests/replay/router_model.c - a routing object per router, and the workers' logs between them. */
#include "tests/replay/router_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/routing.h"
#include "tests/replay/event_ring.h"
#include "tests/replay/workload/crowd.h"
#include "tests/support/routing_defaults.h"

#define BYTES_PER_TOKEN 4

/* More than is ever filled: of the index, for a block that a worker declares, and besides. */
#define INDEX_BLOCK_BYTES 64
#define INDEX_BYTES       (UINT64_C(8) << 20)

/* A worker's log of 16 MiB, for chains of blocks of 256 bytes; blocks here are longer. */
#define RING_BYTES       (UINT64_C(16) << 20)
#define RING_BLOCK_BYTES 256

/* A request that another router has sent. */
struct adopted {
    struct route_ticket ticket;
    struct session_turn turn;
    uint64_t n_prompt; /* tokens */
    uint64_t chain[];
};

struct router_model {
    struct router_models *all;
    struct routing *routing;
    struct route_ticket *tickets;   /* by request */
    struct hold *hold;              /* NULL: requests never wait */
    struct session_model *sessions; /* NULL: those of sessions neither */
    uint64_t origin;                /* its name in the logs; another after a restart */
    uint64_t *positions;            /* (n_workers) sequence of the next event of each log */
    struct adopted **adopted;       /* by request; NULL without sharing */
};

struct router_models {
    struct router_model_options options;
    struct router_model *routers;
    struct event_ring **logs; /* (n_workers), or NULL */
    uint64_t *n_crashes;      /* (n_workers) so far */
    uint64_t n_origins;
    struct hold_request *held; /* by request; the next too. NULL: requests never wait */
    struct route_request *descriptions;
    const struct model_request **asked; /* by request, of sessions */
    double *retry_s;                    /* by request, of those refused */
};

static uint64_t us(double s) {
    return (uint64_t)(s * 1e6);
}

/* A flood comes through all routers. */
static struct router_model *router_of(struct router_models *all, const struct model_request *q) {
    bool is_apart = all->options.is_apart && q->in->tenant % 2 && q->in->tenant < TENANT_FLOOD;
    uint64_t lot = rng_at(all->options.seed, is_apart ? q->in->tenant : q->number);

    return &all->routers[lot % all->options.n_routers];
}

static uint64_t declared_blocks(const struct router_model_options *o) {
    return (uint64_t)(o->cache_tokens / o->block_tokens * o->declared_capacity);
}

static uint64_t all_blocks(const struct router_model_options *o) {
    return declared_blocks(o) + o->host_tokens / o->block_tokens;
}

static void announce(struct router_model *r, uint32_t w) {
    const struct router_model_options *o = &r->all->options;
    struct worker_spec spec = {
        .identity = rng_at(o->seed, w),
        .generation = 1 + r->all->n_crashes[w],
        .block_size = o->block_tokens,
        .n_blocks = declared_blocks(o),
        .n_tier_blocks = o->host_tokens / o->block_tokens,
        .restore_tokens_per_s = o->restore_tokens_per_s,
        .keeps_copies = true,
        .prefill_tokens_per_s = 1 / WORKER_PREFILL_S / (w % 2 ? o->slow_odd : 1),
        .attn_context = o->declared_attn_context,
        .order = o->order,
    };

    routing_worker_up(r->routing, w, &spec);
    if (o->kv_bytes_per_token > 0)
        routing_set_peer(r->routing, w, &(struct fetch_peer){1, w, o->kv_bytes_per_token});
}

static void open_routing(struct router_model *r) {
    const struct router_model_options *o = &r->all->options;
    struct routing_options ro;
    struct error err = {0};

    routing_options_default(&ro);
    ro.policy = o->policy;
    ro.policy_options = o->policy_options;
    ro.policy_options.seed = o->seed;
    ro.max_workers = o->n_workers;
    ro.max_index_bytes = INDEX_BYTES + o->n_workers * all_blocks(o) * INDEX_BLOCK_BYTES;
    ro.prefix_block_bytes = o->block_tokens * BYTES_PER_TOKEN;
    ro.bytes_per_token = BYTES_PER_TOKEN;
    if (routing_create(&r->routing, &ro, &err) != ST_OK) {
        fprintf(stderr, "replay: %s\n", err.message);
        exit(2);
    }
    for (uint32_t w = 0; w < o->n_workers; w++)
        announce(r, w);
    if (o->hold_s > 0)
        r->hold = hold_create(r->routing, &(struct hold_options){.queue_size = ADMISSION_SIZE_MAX,
                                                                 .fcfs_s = o->hold_s,
                                                                 .srpt_s = o->hold_s});
    r->origin = ++r->all->n_origins;
    for (uint32_t w = 0; r->all->logs && w < o->n_workers; w++)
        r->positions[w] = event_ring_oldest(r->all->logs[w]);
}

static void open_sessions(struct router_model *r) {
    const struct router_model_options *o = &r->all->options;

    if (o->sessions == SESSIONS_OFF) return;
    r->sessions = session_model_create(&(struct session_model_options){
        .n_requests = o->n_requests,
        .block_tokens = o->block_tokens,
        .device_tokens = o->is_admitting ? (double)o->n_workers * o->cache_tokens : 0,
        .host_tokens = o->is_admitting ? (double)o->n_workers * o->host_tokens : 0,
        .has_names = o->sessions == SESSIONS_NAMED,
        .is_final_told = o->is_final_told});
}

/* --- the workers' logs ----------------------------------------------------------------------- */

static void write_event(struct router_models *all, const struct model_request *q, double now_s,
                        struct request_event e) {
    if (!all->logs) return;
    e.t_us = us(now_s);
    e.request = q->number;
    event_ring_put(all->logs[q->worker], &e);
}

static void charge(struct router_model *r, const struct adopted *a, const struct request_mark *mark,
                   double now_s) {
    if (!r->hold || !mark->tenant) return;
    hold_served(r->hold,
                &(struct hold_service){.tenant = mark->tenant,
                                       .weight = mark->weight_percent / 100.0,
                                       .work_s = a->ticket.load.work_s,
                                       .has_waited = mark->has_waited},
                us(now_s));
}

static void adopt(struct router_model *r, uint32_t w, const struct request_event *e, double now_s) {
    const struct request_chain *chain = &e->chain;
    struct adopted *a = mem_zalloc(sizeof(*a) + chain->n_blocks * sizeof(*a->chain));
    struct route_request rq = {.chain = a->chain,
                               .n_blocks = chain->n_blocks,
                               .prompt_bytes = chain->prompt_bytes,
                               .now_us = e->t_us};

    memcpy(a->chain, chain->blocks, chain->n_blocks * sizeof(*a->chain));
    if (r->sessions && e->mark.is_turn)
        session_model_remote(r->sessions, r->all->asked[e->request]->in, &e->mark,
                             routing_known_blocks(r->routing, &rq), w, &a->turn, now_s);
    routing_add_remote(r->routing, w, &rq, &a->ticket);
    charge(r, a, &e->mark, now_s);
    r->adopted[e->request] = a;
}

static void end_adopted(struct router_model *r, uint64_t request, const struct route_end *end,
                        double now_s) {
    struct adopted *a = r->adopted[request];
    uint64_t n_output = end->output_tokens > 0 ? (uint64_t)end->output_tokens : 0;

    if (r->sessions)
        session_model_remote_ended(r->sessions, &a->turn, a->n_prompt ? a->n_prompt + n_output : 0,
                                   now_s);
    routing_ended(r->routing, &a->ticket, end);
    mem_free(a);
    r->adopted[request] = NULL;
}

static void apply(struct router_model *r, uint32_t w, const struct request_event *e, double now_s) {
    struct adopted *a = r->adopted[e->request];
    struct route_feedback feedback = {e->prompt_tokens, e->cached_tokens};
    struct route_end end = {
        .output_tokens = e->output_tokens, .feedback = {-1, -1}, .now_us = e->t_us};

    if (e->kind == REQUEST_ACCEPTED && e->chain.origin != r->origin) adopt(r, w, e, now_s);
    if (a && e->kind == REQUEST_FIRST) {
        a->n_prompt = (uint64_t)e->prompt_tokens;
        routing_first_token(r->routing, &a->ticket, &feedback, e->t_us);
    }
    if (a && e->kind == REQUEST_ENDED) end_adopted(r, e->request, &end, now_s);
}

/* Everything that the workers have sent by now. */
static void read_logs(struct router_model *r, double now_s) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    const struct router_model_options *o = &r->all->options;
    struct request_event e;

    for (uint32_t w = 0; r->all->logs && w < o->n_workers; w++) {
        struct event_ring *log = r->all->logs[w];
        uint64_t end =
            event_ring_sent(log, r->positions[w], us(now_s), us(o->delay_s), us(o->late_delay_s));

        while (event_ring_next(log, &r->positions[w], end, blocks, &e))
            apply(r, w, &e, now_s);
    }
}

static void drop_adopted(struct router_model *r) {
    struct route_end end = {.is_aborted = true, .output_tokens = -1, .feedback = {-1, -1}};

    for (uint32_t i = 0; r->adopted && i < r->all->options.n_requests; i++) {
        if (r->adopted[i]) end_adopted(r, i, &end, 0);
    }
}

/* --- a router's life ------------------------------------------------------------------------- */

static void open_router(struct router_models *all, struct router_model *r) {
    const struct router_model_options *o = &all->options;

    r->all = all;
    r->tickets = mem_calloc((size_t)o->n_requests + 1, sizeof(*r->tickets));
    r->positions = mem_calloc(o->n_workers, sizeof(*r->positions));
    if (all->logs) r->adopted = mem_calloc((size_t)o->n_requests + 1, sizeof(struct adopted *));
    open_routing(r);
    open_sessions(r);
}

static void close_router(struct router_model *r) {
    drop_adopted(r);
    if (r->hold) hold_check(r->hold);
    hold_destroy(r->hold);
    session_model_destroy(r->sessions);
    routing_check(r->routing);
    routing_destroy(r->routing);
    mem_free(r->adopted);
    mem_free(r->positions);
    mem_free(r->tickets);
}

struct router_models *router_models_create(const struct router_model_options *options) {
    struct router_models *all = mem_zalloc(sizeof(*all));
    uint64_t ring_bytes =
        RING_BYTES * RING_BLOCK_BYTES / ((uint64_t)options->block_tokens * BYTES_PER_TOKEN);

    all->options = *options;
    all->n_crashes = mem_calloc(options->n_workers, sizeof(*all->n_crashes));
    if (options->hold_s > 0) {
        all->held = mem_calloc((size_t)options->n_requests + 1, sizeof(*all->held));
        all->descriptions = mem_calloc((size_t)options->n_requests + 1, sizeof(*all->descriptions));
        all->retry_s = mem_calloc((size_t)options->n_requests + 1, sizeof(*all->retry_s));
    }
    if (options->sessions != SESSIONS_OFF)
        all->asked = mem_calloc((size_t)options->n_requests + 1, sizeof(void *));
    all->routers = mem_calloc(options->n_routers, sizeof(*all->routers));
    if (options->is_shared) all->logs = mem_calloc(options->n_workers, sizeof(struct event_ring *));
    for (uint32_t w = 0; all->logs && w < options->n_workers; w++)
        all->logs[w] = event_ring_create(ring_bytes);
    for (uint32_t i = 0; i < options->n_routers; i++)
        open_router(all, &all->routers[i]);
    return all;
}

void router_models_destroy(struct router_models *all) {
    if (!all) return;
    for (uint32_t i = 0; i < all->options.n_routers; i++)
        close_router(&all->routers[i]);
    for (uint32_t w = 0; all->logs && w < all->options.n_workers; w++)
        event_ring_destroy(all->logs[w]);
    mem_free(all->asked);
    mem_free(all->held);
    mem_free(all->retry_s);
    mem_free(all->descriptions);
    mem_free(all->n_crashes);
    mem_free(all->logs);
    mem_free(all->routers);
    mem_free(all);
}

static void restart(struct router_model *r) {
    struct route_end end = {.is_aborted = true, .output_tokens = -1, .feedback = {-1, -1}};

    for (uint32_t i = 0; i < r->all->options.n_requests; i++) {
        if (r->tickets[i].load.is_open) routing_ended(r->routing, &r->tickets[i], &end);
    }
    drop_adopted(r);
    hold_destroy(r->hold);
    routing_destroy(r->routing);
    open_routing(r);
}

void router_models_restart(struct router_models *all) {
    for (uint32_t i = 0; i < all->options.n_routers; i++)
        restart(&all->routers[i]);
}

/* --- a request's life ------------------------------------------------------------------------ */

static struct route_request describe(const struct router_models *all, const struct model_request *q,
                                     double now_s) {
    const struct router_model_options *o = &all->options;
    uint32_t most = o->hashed_tokens ? o->hashed_tokens / o->block_tokens : UINT32_MAX;

    return (struct route_request){.chain = q->in->chain,
                                  .n_blocks = MIN(q->in->n_blocks, most),
                                  .prompt_bytes = (uint64_t)q->in->n_prompt * BYTES_PER_TOKEN,
                                  .session_key = q->in->session,
                                  .now_us = us(now_s)};
}

/* --- waiting --------------------------------------------------------------------------------- */

static uint64_t tenant_of(const struct router_model *r, const struct model_request *q) {
    return r->all->options.has_tenants ? q->in->tenant + 1 : 0;
}

/* 0: 1, as others have. */
static double weight_of(const struct router_model *r, const struct model_request *q) {
    return q->in->tenant % 2 ? r->all->options.odd_weight : 0;
}

static void begin_wait(struct router_model *r, const struct model_request *q) {
    struct hold_request *held = &r->all->held[q->number], *displaced;

    *held = (struct hold_request){
        .rq = &r->all->descriptions[q->number],
        .ticket = &r->tickets[q->number],
        .tenant = tenant_of(r, q),
        .weight = weight_of(r, q),
        .since_us = us(q->arrival_s),
        .by_us = r->all->options.refuses ? us(q->by_s) : 0,
    };
    if (hold_wait(r->hold, held, &displaced) != ADMISSION_WAITS || displaced) abort();
}

static bool is_refused(struct router_model *r, const struct model_request *q,
                       const struct route_request *rq) {
    struct hold_due due = {.tenant = tenant_of(r, q), .by_us = us(q->by_s)};

    if (hold_judge(r->hold, rq, &due, NULL) == ST_OK) return false;
    r->all->retry_s[q->number] = (double)due.retry_us * 1e-6;
    return true;
}

static uint32_t place(struct router_model *r, const struct model_request *q, double now_s) {
    struct route_request *rq = &r->all->descriptions[q->number];
    struct route_ticket *t = &r->tickets[q->number];
    enum hold_reason reason;
    enum status st;

    *rq = describe(r->all, q, now_s);
    if (r->all->options.refuses && is_refused(r, q, rq)) return ROUTER_MODEL_REFUSED;
    st = hold_place(r->hold, rq, t, &reason, NULL);
    if (st == ST_OK) return t->load.worker;
    if (st != ST_AGAIN) abort();
    begin_wait(r, q);
    return WORKER_NONE;
}

static void refuse_hopeless(struct router_model *r, double now_s, placed_fn *on_placed, void *ctx) {
    struct hold_request *held;
    uint64_t retry_us;

    while ((held = hold_hopeless(r->hold, us(now_s), &retry_us)) != NULL) {
        uint32_t request = (uint32_t)(held - r->all->held);

        hold_leave(r->hold, held);
        r->all->retry_s[request] = (double)retry_us * 1e-6;
        on_placed(ctx, request, ROUTER_MODEL_REFUSED);
    }
}

double router_models_retry_s(const struct router_models *all, uint32_t request) {
    return all->retry_s[request];
}

static void walk(struct router_model *r, double now_s, placed_fn *on_placed, void *ctx) {
    struct list placed;

    refuse_hopeless(r, now_s, on_placed, ctx);
    list_init(&placed);
    hold_walk(r->hold, UINT32_MAX, us(now_s), &placed);
    for (struct list *it; (it = list_pop_front(&placed));) {
        struct hold_request *held = LIST_ENTRY(it, struct hold_request, link);

        on_placed(ctx, (uint32_t)(held - r->all->held), held->ticket->load.worker);
    }
}

static uint32_t choose(struct router_model *r, const struct model_request *q, double now_s) {
    struct route_request rq = describe(r->all, q, now_s);
    struct route_ticket *t = &r->tickets[q->number];

    if (r->hold) return place(r, q, now_s);
    if (routing_route(r->routing, &rq, t, NULL) != ST_OK) abort();
    return t->load.worker;
}

/* True: the request waits for its session. */
static bool begin_turn(struct router_model *r, const struct model_request *q, double now_s) {
    struct route_request rq = describe(r->all, q, now_s);

    if (!r->sessions) return false;
    r->all->asked[q->number] = q;
    return !session_model_arrive(r->sessions, q->in, q->number,
                                 routing_known_blocks(r->routing, &rq), now_s);
}

static void admit_sessions(struct router_model *r, double now_s, placed_fn *on_placed, void *ctx) {
    uint32_t number, worker;

    while ((number = session_model_next(r->sessions, now_s)) != UINT32_MAX) {
        worker = choose(r, r->all->asked[number], now_s);
        if (worker != WORKER_NONE) on_placed(ctx, number, worker);
    }
}

void router_models_walk(struct router_models *all, double now_s, placed_fn *on_placed, void *ctx) {
    for (uint32_t i = 0; i < all->options.n_routers; i++) {
        struct router_model *r = &all->routers[i];
        bool has_turns = r->sessions && session_model_n_held(r->sessions);
        bool has_held = r->hold && hold_n_waiting(r->hold);

        if (!has_turns && !has_held) continue;
        read_logs(r, now_s);
        if (has_turns) admit_sessions(r, now_s, on_placed, ctx);
        if (r->hold) walk(r, now_s, on_placed, ctx);
    }
}

uint32_t router_models_n_waiting(const struct router_models *all) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < all->options.n_routers; i++) {
        n += all->routers[i].hold ? hold_n_waiting(all->routers[i].hold) : 0;
        n += all->routers[i].sessions ? session_model_n_held(all->routers[i].sessions) : 0;
    }
    return n;
}

void router_models_sessions(const struct router_models *all, struct session_model_result *out) {
    *out = (struct session_model_result){0};
    for (uint32_t i = 0; i < all->options.n_routers && all->routers[i].sessions; i++) {
        struct session_model_result one;

        session_model_report(all->routers[i].sessions, &one);
        out->n_turns += one.n_turns;
        out->n_joined += one.n_joined;
        out->n_false += one.n_false;
        out->n_begun += one.n_begun;
        out->n_rested += one.n_rested;
        out->n_expired += one.n_expired;
        out->long_s = one.long_s;
    }
}

/* --- events ---------------------------------------------------------------------------------- */

uint32_t router_models_pick(struct router_models *all, const struct model_request *q,
                            double now_s) {
    struct router_model *r = router_of(all, q);

    read_logs(r, now_s);
    if (!all->options.is_speed_fixed) routing_apply_speeds(r->routing, us(now_s));
    if (begin_turn(r, q, now_s)) return WORKER_NONE;
    return choose(r, q, now_s);
}

const struct fetch_plan *router_models_fetch(struct router_models *all,
                                             const struct model_request *q) {
    return &router_of(all, q)->tickets[q->number].fetch;
}

static struct request_mark mark_of(const struct router_model *r, const struct model_request *q,
                                   double now_s) {
    const struct router_model_options *o = &r->all->options;

    if (o->has_no_marks) return (struct request_mark){0};
    return (struct request_mark){
        .tenant = q->in->tenant + 1u,
        .weight_percent = (uint32_t)(weight_of(r, q) * 100),
        .session = o->sessions == SESSIONS_NAMED ? q->in->session : 0,
        .n_system = q->in->n_system,
        .is_turn = r->sessions != NULL,
        .is_last = o->is_final_told && q->in->is_final,
        .has_waited = r->hold && q->held_s > 0,
        .held_s = r->sessions && q->held_s > 0 ? (uint32_t)fmax(q->held_s, 1) : 0,
        .sessions_wait_s = r->sessions ? session_model_wait_s(r->sessions, now_s) : 0};
}

void router_models_sent(struct router_models *all, const struct model_request *q, double now_s) {
    struct route_request rq = describe(all, q, now_s);
    struct router_model *r = router_of(all, q);

    if (r->sessions) session_model_sent(r->sessions, q->number, q->worker);
    write_event(all, q, now_s,
                (struct request_event){.kind = REQUEST_ACCEPTED,
                                       .mark = mark_of(r, q, now_s),
                                       .chain = {.origin = r->origin,
                                                 .scheme = 1,
                                                 .prompt_bytes = rq.prompt_bytes,
                                                 .n_blocks = rq.n_blocks,
                                                 .blocks = rq.chain}});
}

void router_models_first(struct router_models *all, const struct model_request *q, double now_s) {
    struct router_model *r = router_of(all, q);
    struct route_ticket *t = &r->tickets[q->number];
    struct route_feedback feedback = {q->in->n_prompt,
                                      all->options.has_feedback ? (int64_t)q->cached : -1,
                                      all->options.has_feedback ? (int64_t)q->restored : 0,
                                      all->options.has_feedback && all->options.host_tokens,
                                      q->fetched,
                                      us(q->ready_s > 0 ? q->ready_s - q->added_s : 0)};

    write_event(all, q, now_s,
                (struct request_event){.kind = REQUEST_FIRST,
                                       .prompt_tokens = feedback.prompt_tokens,
                                       .cached_tokens = feedback.cached_tokens});
    if (t->load.is_open) routing_first_token(r->routing, t, &feedback, us(now_s));
}

void router_models_ended(struct router_models *all, const struct model_request *q, double now_s) {
    struct router_model *r = router_of(all, q);
    struct route_ticket *t = &r->tickets[q->number];
    struct route_end end = {.is_aborted = q->is_lost,
                            .output_tokens = q->in->n_output,
                            .feedback = {-1, -1},
                            .now_us = us(now_s)};

    write_event(all, q, now_s,
                (struct request_event){.kind = REQUEST_ENDED, .output_tokens = q->in->n_output});
    if (r->sessions) session_model_ended(r->sessions, q->in, q->number, now_s);
    if (t->load.is_open) routing_ended(r->routing, t, &end);
}

void router_models_aborted(struct router_models *all, const struct model_request *q, double now_s) {
    struct router_model *r = router_of(all, q);
    struct route_ticket *t = &r->tickets[q->number];
    struct route_end end = {
        .is_aborted = true, .output_tokens = -1, .feedback = {-1, -1}, .now_us = us(now_s)};

    if (t->load.is_open) routing_ended(r->routing, t, &end);
}

void router_models_down(struct router_models *all, uint32_t worker) {
    for (uint32_t i = 0; i < all->options.n_routers; i++) {
        routing_worker_down(all->routers[i].routing, worker);
        if (all->routers[i].sessions) session_model_worker_lost(all->routers[i].sessions, worker);
    }
    all->n_crashes[worker]++;
}

void router_models_up(struct router_models *all, uint32_t worker) {
    for (uint32_t i = 0; i < all->options.n_routers; i++)
        announce(&all->routers[i], worker);
}
