/* router/registry/registry_sessions.c - turns of sessions, which wait as a whole until their
 * contexts fit into the workers' caches (router/sessions).
 *
 *      begin_turn ─▶ goes ──▶ registry_enter ... the request's attempts ... ──▶ end_turn
 *          │                        ▲                                            │
 *          └▶ its session waits ────┘ registry_go_on ◀── grant_sessions ◀────────┘ every 5 ms too
 *
 * A model whose workers do not all report their memory lets every turn go. */
#include <assert.h>
#include <math.h>

#include "common/protocol/request_events.h"
#include "router/registry/registry_internal.h"

static struct registry_waiter *waiter_of(struct session_turn *t) {
    return CONTAINER_OF(t, struct registry_waiter, turn);
}

void registry_grant_sessions(struct registry *r, struct model *m, uint64_t now_us,
                             struct list *decided) {
    struct session_turn *t;

    while ((t = sessions_next(m->sessions, now_us)) != NULL) {
        m->n_turns++;
        registry_go_on(r, m, waiter_of(t), now_us, decided);
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

struct memory {
    double device_tokens, host_tokens;
    bool is_unknown;
};

/* A worker that is out of service for a while keeps its cache; one that drains does not count. */
static void add_worker(struct memory *sum, const struct worker *w, uint32_t id) {
    double block_size = w->info.block_size;

    if (worker_reasons(w, id) & (WORKER_ABSENT | WORKER_DRAINING | WORKER_DISABLED)) return;
    sum->is_unknown |= !w->info.n_blocks || !w->info.block_size;
    sum->device_tokens += (double)w->info.n_blocks * block_size;
    sum->host_tokens += (double)wire_tier_blocks(&w->info) * block_size;
}

static void count_memory(struct registry *r, struct model *m) {
    struct memory sum = {0};

    for (uint32_t id = 0; id < r->n_ids; id++) {
        const struct worker *w = &r->workers[id];

        if (w->is_used && w->is_described && w->model == m) add_worker(&sum, w, id);
    }
    if (sum.is_unknown) sum = (struct memory){0};
    sessions_set_capacity(m->sessions, sum.device_tokens, sum.host_tokens);
}

void registry_count_memory(struct registry *r) {
    for (uint32_t i = 0; i < r->n_models; i++)
        if (r->models[i].sessions) count_memory(r, &r->models[i]);
}

/* --- a turn ----------------------------------------------------------------------------------- */

static struct session_arrival arrival_of(const struct model *m, const struct route_request *rq,
                                         const struct registry_turn *turn) {
    double bytes_per_token = routing_bytes_per_token(m->routing);
    double blocks = fmax(rq->n_blocks, 1), tokens = (double)rq->prompt_bytes / bytes_per_token;
    struct session_arrival a = {
        .prompt = {.chain = rq->chain,
                   .n_blocks = turn->n_blocks,
                   .n_system = turn->n_system,
                   .id = turn->id,
                   .parent_id = turn->parent_id,
                   .tenant = turn->tenant,
                   .tokens_per_block = tokens / blocks},
        .prompt_tokens = tokens,
        .answer_tokens = routing_load(m->routing)->mean_output_tokens,
        .is_final = turn->is_final,
        .now_us = rq->now_us,
    };

    return a;
}

static enum status refuse(const struct registry *r, struct model *m, struct registry_waiter *w,
                          uint64_t now_us, struct error *err) {
    sessions_leave(m->sessions, &w->turn, now_us);
    w->limit = "queue-size";
    w->held.wait_us = 0;
    return error_set(err, ST_BUSY,
                     "more sessions are active than the workers' caches hold, and the queue of %u "
                     "is full (--queue-size): retry later",
                     r->config.hold.queue_size);
}

/* True when w itself may go at once, because idle sessions could be put to rest. */
static bool grant_with(struct registry *r, struct model *m, struct registry_waiter *w,
                       uint64_t now_us, struct list *decided) {
    struct session_turn *t;

    while ((t = sessions_next(m->sessions, now_us)) != NULL) {
        m->n_turns++;
        if (t == &w->turn) return true;
        registry_go_on(r, m, waiter_of(t), now_us, decided);
    }
    return false;
}

/* What is known of the prompt is not needed where the session is found by its name. */
static void look_up(struct model *m, struct route_request *rq, struct session_arrival *arrival) {
    uint64_t id = arrival->prompt.id;

    if (!id || !sessions_has(m->sessions, id))
        arrival->prompt.n_known = routing_known_blocks(m->routing, rq);
}

static enum status begin(struct registry *r, struct model *m, const struct registry_turn *turn,
                         struct registry_waiter *w, struct list *decided, struct error *err) {
    struct route_request *rq = w->held.rq;
    struct session_arrival arrival = arrival_of(m, rq, turn);
    uint32_t n_before = sessions_n_held(m->sessions);

    look_up(m, rq, &arrival);
    w->model = m;
    if (sessions_arrive(m->sessions, &arrival, &w->turn)) {
        m->n_turns += w->turn.is_open;
        return ST_OK;
    }
    if (grant_with(r, m, w, rq->now_us, decided)) return ST_OK;
    if (n_before + hold_n_waiting(m->hold) >= r->config.hold.queue_size)
        return refuse(r, m, w, rq->now_us, err);
    w->held.reason = HOLD_SESSION;
    w->held.n_before = n_before;
    w->held_us = rq->now_us;
    w->limit = NULL;
    w->is_granted = false;
    r->n_waiting++;
    return ST_AGAIN;
}

enum status registry_begin_turn(struct registry *r, struct str model, struct route_request *rq,
                                struct route_ticket *ticket, struct registry_target *out,
                                const struct registry_turn *turn, struct registry_waiter *w,
                                struct error *err) {
    enum status st = ST_OK;
    struct list decided;
    struct model *m;

    list_init(&decided);
    registry_lock(r);
    r->now_us = MAX(r->now_us, rq->now_us);
    if (registry_choose_model(r, model, &m, NULL) != ST_OK || !m->sessions) goto done;
    w->held.rq = rq;
    w->held.ticket = ticket;
    w->target = out;
    st = begin(r, m, turn, w, &decided, err);
done:
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
    return st;
}

void registry_join_remote(struct registry *r, struct model *m, struct route_request *rq,
                          const struct request_mark *mark, uint32_t max_tokens,
                          struct session_turn *t) {
    uint32_t block_bytes = r->config.routing.prefix_block_bytes;
    struct registry_turn turn = {.id = mark->session,
                                 .tenant = mark->tenant,
                                 .n_blocks = registry_whole_blocks(rq, block_bytes),
                                 .n_system = MIN(mark->n_system, rq->n_blocks),
                                 .is_final = mark->is_last};
    struct session_arrival arrival = arrival_of(m, rq, &turn);

    arrival.held_s = mark->held_s;
    arrival.origin = mark->origin;
    arrival.waits_s = mark->sessions_wait_s;
    if (max_tokens && arrival.prompt_tokens > max_tokens) {
        arrival.prompt.tokens_per_block *= max_tokens / arrival.prompt_tokens;
        arrival.prompt_tokens = max_tokens;
    }
    look_up(m, rq, &arrival);
    sessions_arrive_remote(m->sessions, &arrival, t);
}

void registry_end_turn(struct registry *r, struct registry_waiter *w, uint32_t worker,
                       uint64_t n_tokens, uint64_t now_us) {
    struct list decided;

    if (!w->turn.is_open) return;
    list_init(&decided);
    registry_lock(r);
    assert(w->model->n_turns);
    w->model->n_turns--;
    if (worker != WORKER_NONE) sessions_sent(w->model->sessions, &w->turn, worker);
    sessions_ended(w->model->sessions, &w->turn, n_tokens, now_us);
    if (r->n_waiting) registry_grant(r, now_us, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}
