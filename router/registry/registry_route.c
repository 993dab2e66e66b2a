/* router/registry/registry_route.c - requests arrive, are sent to a worker, and end: under the one
 * lock.
 *
 *      enter ─▶ place ─▶ target ──▶ first_token ──▶ ended ─▶ judge the worker
 *                 │ not now             │             │
 *                 └▶ wait ◀──── grant ◀─┴─────────────┴── every 5 ms
 *                                 (mails are sent after the lock)
 *
 * A new request never overtakes waiting ones: registry_enter first places those that can be. What
 * is placed and when is decided by hold.h; its ticket is opened under the same lock, and its loop
 * is notified by mail. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/telemetry/metrics.h"
#include "router/registry/registry_internal.h"

#define PROMPT_TOKENS_MAX    (1 << 20) /* of a worker that does not report max_model_len */
#define DECISIONS_PER_SAMPLE 64        /* reading the clock twice costs a twentieth of a decision */

static void wait_for_lock(struct registry *r) {
    uint64_t began_ns = clock_now_ns();

    pthread_mutex_lock(&r->lock);
    r->lock_wait_ns += clock_now_ns() - began_ns;
    r->n_contended++;
}

/* Reads the clock only when it has to wait. */
void registry_lock(struct registry *r) {
    if (UNLIKELY(pthread_mutex_trylock(&r->lock) != 0)) wait_for_lock(r);
}

/* --- which model, which worker ---------------------------------------------------------------- */

/* No worker serves the model: lists those that are served. */
static enum status fail_no_model(const struct registry *r, struct str name, struct error *err) {
    char list[256] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < r->n_models && n < sizeof(list); i++) {
        const struct model *m = &r->models[i];

        if (m->n_workers == 0) continue;
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", n ? ", " : "", m->name);
    }
    if (n == 0) {
        return error_set(err, ST_UNAVAILABLE,
                         "no worker is ready yet: retry in a moment, or see GET /workers");
    }
    return error_set_param(err, ST_NOT_FOUND, "model",
                           "The model `%.*s` does not exist. Served here: %s",
                           (int)MIN(name.len, 128), name.ptr, list);
}

enum status registry_choose_model(struct registry *r, struct str name, struct model **out,
                                  struct error *err) {
    struct model *any = NULL;

    for (uint32_t i = 0; i < r->n_models; i++) {
        struct model *m = &r->models[i];

        if (m->n_workers == 0) continue;
        if (name.ptr && !model_is_called(m, name)) {
            if (model_is_called(m, STR(REGISTRY_ANY_MODEL))) any = m;
            continue;
        }
        *out = m;
        return ST_OK;
    }
    for (uint32_t i = 0; i < r->n_models;
         i++) { /* a model's own name precedes an alias of another */
        struct model *m = &r->models[i];

        if (m->n_workers == 0 || !model_is_also_called(m, name)) continue;
        *out = m;
        return ST_OK;
    }
    *out = any;
    if (any) return ST_OK;
    if (str_eq(name, STR("default"))) return registry_choose_model(r, STR_NULL, out, err);
    return fail_no_model(r, name, err);
}

void registry_measure(struct registry *r, struct metric *decision_seconds) {
    r->decision_seconds = decision_seconds;
}

/* Samples how long decisions take: 0 for one that is not sampled. */
static uint64_t begin_decision(struct registry *r) {
    bool is_measured = r->decision_seconds && r->n_decisions++ % DECISIONS_PER_SAMPLE == 0;

    return is_measured ? clock_now_ns() : 0;
}

static void end_decision(struct registry *r, uint64_t began_ns) {
    if (!began_ns) return;
    metric_observe(r->decision_seconds, (double)(clock_now_ns() - began_ns) * 1e-9);
}

static enum status decide(struct registry *r, struct model *m, const struct route_request *rq,
                          struct route_ticket *ticket, struct error *err) {
    uint64_t began_ns = begin_decision(r);
    enum status st = routing_route(m->routing, rq, ticket, err);

    end_decision(r, began_ns);
    return st;
}

/* Unless it has to wait: ST_AGAIN. */
static enum status place(struct registry *r, struct model *m, struct route_request *rq,
                         struct route_ticket *ticket, enum hold_reason *reason, struct error *err) {
    uint64_t began_ns = begin_decision(r);
    enum status st = hold_place(m->hold, rq, ticket, reason, err);

    end_decision(r, began_ns);
    return st;
}

void registry_fill_source(const struct registry *r, const struct route_ticket *ticket,
                          struct registry_target *out) {
    const struct worker *source;

    out->source_len = out->source_computed = 0;
    if (ticket->fetch.source == WORKER_NONE) return;
    source = &r->workers[ticket->fetch.source];
    out->source_len = source->authority_len;
    memcpy(out->source, source->authority, source->authority_len + 1);
    out->source_tokens = (uint32_t)ticket->fetch.tokens;
}

/* May it get prompts that others compute? */
static bool may_pair(const struct routing *routing, const struct worker *w) {
    return w->part.handover && w->part.role != WORKER_PREFILL &&
           !worker_mask_is_empty(routing_load(routing)->prefills.words,
                                 routing_load(routing)->n_words);
}

void registry_fill_target(struct registry *r, struct routing *routing,
                          const struct route_ticket *ticket, struct registry_target *out) {
    uint32_t id = ticket->load.worker;
    struct worker *w = &r->workers[id];

    r->n_open++;
    r->n_light += ticket->load.is_light;
    w->n_sent++;
    out->routing = routing;
    out->worker = id;
    out->incarnation = w->incarnation;
    out->is_third_party = w->is_third_party;
    out->kind = w->kind;
    out->part = w->part;
    out->may_pair = may_pair(routing, w) && !ticket->load.is_light;
    out->trusts_router = w->info.trusts_router;
    out->publishes_events = w->info.publishes_events;
    out->is_tls = w->is_tls;
    out->n_workers = w->model->n_workers;
    out->max_model_len = w->info.max_model_len;
    out->addr = w->addr.addr;
    out->addr_len = w->addr.len;
    out->authority_len = w->authority_len;
    memcpy(out->authority, w->authority, w->authority_len + 1);
    registry_fill_source(r, ticket, out);
    out->shared_id = 0;
    if (w->model->sessions)
        out->mark.sessions_wait_s = sessions_wait_s(w->model->sessions, ticket->load.sent_us);
    if (r->origin && w->is_third_party && !ticket->load.is_light) outbox_accepted(r, ticket, out);
    if (w->breaker.state == BREAKER_HALF_OPEN) {
        breaker_sent(&w->breaker);
        worker_show_breaker(w, id);
    }
}

enum status registry_route(struct registry *r, struct str model, const struct route_request *rq,
                           struct route_ticket *ticket, struct registry_target *out,
                           struct error *err) {
    struct model *m;
    enum status st;

    registry_lock(r);
    st = registry_choose_model(r, model, &m, err);
    if (st == ST_OK) st = decide(r, m, rq, ticket, err);
    if (st == ST_OK) registry_fill_target(r, m->routing, ticket, out);
    pthread_mutex_unlock(&r->lock);
    return st;
}

enum status registry_explain(struct registry *r, struct str model, const struct route_request *rq,
                             struct registry_candidate *out, uint32_t max, uint32_t *n,
                             uint32_t *choice, struct error *err) {
    struct model *m;
    enum status st;

    *n = 0;
    pthread_mutex_lock(&r->lock);
    st = registry_choose_model(r, model, &m, err);
    if (st == ST_OK) {
        *choice = routing_explain(m->routing, rq, r->terms);
        if (*choice == WORKER_NONE) {
            st = error_set(err, ST_UNAVAILABLE,
                           "no worker is available: see GET /workers for the reasons");
        }
    }
    for (uint32_t w = 0; st == ST_OK && w < r->config.routing.max_workers && *n < max; w++) {
        if (!r->terms[w].is_candidate && w != *choice) continue;
        out[(*n)++] = (struct registry_candidate){w, routing_load(m->routing)->workers[w].in_flight,
                                                  r->terms[w]};
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* --- places, and who waits for them ----------------------------------------------------------- */

/* Of --max-concurrent-requests. */
static uint32_t n_free(const struct registry *r) {
    uint32_t most = r->config.max_concurrent;

    return most ? most - MIN(r->n_open - r->n_light - r->n_legs, most) : UINT32_MAX;
}

static bool has_room(const struct registry *r, const struct model *m, uint64_t now_us) {
    return n_free(r) > 0 && load_has_room(routing_load(m->routing), now_us);
}

void model_note_eligible(struct model *m, uint64_t now_us) {
    if (m->was_eligible || load_has_eligible(routing_load(m->routing))) m->eligible_us = now_us;
    m->was_eligible = false;
}

/* True for a temporary reason to be out of service. */
static bool may_come_back(const struct registry *r, const struct model *m) {
    const uint32_t for_good = WORKER_ABSENT | WORKER_DRAINING | WORKER_DISABLED;

    for (uint32_t id = 0; id < r->n_ids; id++) {
        const struct worker *w = &r->workers[id];

        if (w->is_used && w->is_described && w->model == m && !(worker_reasons(w, id) & for_good))
            return true;
    }
    return false;
}

bool model_may_wait(const struct registry *r, const struct model *m, uint64_t now_us) {
    uint64_t most_us = r->config.hold.max_wait_us; /* 0: any */

    if (load_has_eligible(routing_load(m->routing))) return true;
    if (!m->was_eligible && m->eligible_us == 0) return false; /* it never had an eligible worker */
    /* Another loop's clock may be ahead of this one's. */
    return (m->was_eligible || most_us == 0 || now_us < m->eligible_us + most_us) &&
           may_come_back(r, m);
}

static struct registry_waiter *waiter_of(struct hold_request *q) {
    return CONTAINER_OF(q, struct registry_waiter, held);
}

static void refuse_hopeless(struct registry *r, struct model *m, uint64_t now_us,
                            struct list *decided) {
    struct hold_request *q;
    uint64_t retry_us;

    while ((q = hold_hopeless(m->hold, now_us, &retry_us)) != NULL) {
        struct registry_waiter *w = waiter_of(q);

        hold_leave(m->hold, q);
        r->n_waiting--;
        w->is_granted = false;
        w->limit = REGISTRY_DEADLINE;
        w->retry_us = retry_us;
        list_push_back(decided, &w->mail.link);
    }
}

static void grant(struct registry *r, struct model *m, uint64_t now_us, struct list *decided) {
    struct list placed, *link;

    refuse_hopeless(r, m, now_us, decided);
    if (m->sessions) registry_grant_sessions(r, m, now_us, decided);
    list_init(&placed);
    hold_walk(m->hold, n_free(r), now_us, &placed);
    while ((link = list_pop_front(&placed)) != NULL) {
        struct registry_waiter *w = waiter_of(LIST_ENTRY(link, struct hold_request, link));

        r->n_waiting--;
        w->is_granted = true;
        w->target->mark.has_waited = true;
        registry_fill_target(r, m->routing, w->held.ticket, w->target);
        list_push_back(decided, &w->mail.link);
    }
}

void registry_grant(struct registry *r, uint64_t now_us, struct list *decided) {
    for (uint32_t i = 0; r->n_waiting && i < r->n_models; i++)
        grant(r, &r->models[(r->next_model + i) % r->n_models], now_us, decided);
    r->next_model++;
}

void registry_grant_held(struct registry *r, uint64_t now_us, struct list *decided) {
    if (r->config.hold.fcfs_s > 0 || r->config.max_sessions) registry_grant(r, now_us, decided);
}

void registry_walk(struct registry *r, uint64_t now_us) {
    struct list decided;

    list_init(&decided);
    registry_lock(r);
    r->now_us = MAX(r->now_us, now_us);
    registry_grant_held(r, now_us, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_give_up(struct registry *r, struct list *decided) {
    for (uint32_t i = 0; r->n_waiting && i < r->n_models; i++) {
        struct model *m = &r->models[i];
        struct hold_request *q;

        if (!hold_is_on(m->hold) || load_has_eligible(routing_load(m->routing)) ||
            may_come_back(r, m))
            continue;
        while ((q = hold_any(m->hold)) != NULL) {
            hold_leave(m->hold, q);
            r->n_waiting--;
            waiter_of(q)->is_granted = false;
            list_push_back(decided, &waiter_of(q)->mail.link);
        }
    }
}

void registry_notify(struct list *decided) {
    struct list *link;

    while ((link = list_pop_front(decided)) != NULL) {
        struct registry_waiter *w = CONTAINER_OF(mail_of(link), struct registry_waiter, mail);

        mailbox_push(w->box, &w->mail);
    }
}

static const char *why_full(const struct registry_waiter *w) {
    return w->held.reason == HOLD_FULL ? "all workers are at their limit"
                                       : "requests are held back until workers can start them";
}

static enum status refuse(const struct registry *r, const struct model *m,
                          struct registry_waiter *w, enum admission_verdict verdict,
                          struct error *err) {
    const struct hold_options *o = &r->config.hold;

    if (!load_has_eligible(routing_load(m->routing))) {
        w->limit = "queue-size";
        return error_set(err, ST_UNAVAILABLE,
                         "all workers are out of service and the queue has %u requests "
                         "(--queue-size): retry later",
                         hold_n_waiting(m->hold));
    }
    if (verdict == ADMISSION_TOO_LONG) {
        w->limit = "queue-timeout";
        return error_set(err, ST_BUSY,
                         "%s, and the predicted wait of %.1f s exceeds --queue-timeout %.1f s: "
                         "retry later",
                         why_full(w), (double)w->held.wait_us * 1e-6,
                         (double)o->max_wait_us * 1e-6);
    }
    w->limit = "queue-size";
    return error_set(err, ST_BUSY, "%s and the queue of %u is full (--queue-size): retry later",
                     why_full(w), o->queue_size);
}

static void displace(struct hold_request *q, struct list *decided) {
    struct registry_waiter *w = waiter_of(q);

    w->limit = "queue-size";
    w->is_granted = false;
    list_push_back(decided, &w->mail.link);
}

void registry_go_on(struct registry *r, struct model *m, struct registry_waiter *w, uint64_t now_us,
                    struct list *decided) {
    enum admission_verdict verdict = ADMISSION_WAITS;
    struct hold_request *displaced = NULL;
    enum status st = ST_AGAIN;
    enum hold_reason reason;

    w->held.rq->now_us = now_us;
    w->hold = m->hold;
    w->target->mark.held_s = (uint32_t)MAX((now_us - MIN(w->held_us, now_us)) / 1000000, 1u);
    if (has_room(r, m, now_us)) {
        st = place(r, m, w->held.rq, w->held.ticket, &reason, NULL);
    } else if (!model_may_wait(r, m, now_us)) {
        st = decide(r, m, w->held.rq, w->held.ticket, NULL);
    }
    if (st == ST_AGAIN) verdict = hold_wait(m->hold, &w->held, &displaced);
    if (displaced) displace(displaced, decided);
    r->n_waiting -= st != ST_AGAIN || verdict != ADMISSION_WAITS || displaced;
    if (st == ST_AGAIN && verdict == ADMISSION_WAITS) return;
    if (st == ST_AGAIN) w->limit = "queue-size";
    w->is_granted = st == ST_OK;
    if (w->is_granted) registry_fill_target(r, m->routing, w->held.ticket, w->target);
    list_push_back(decided, &w->mail.link);
}

/* Queues w until a worker of m can take it; that may be at once, when others wait for another. */
static enum status wait_for_place(struct registry *r, struct model *m, struct registry_waiter *w,
                                  struct list *decided, struct error *err) {
    uint64_t now_us = w->held.rq->now_us;
    struct hold_request *displaced;
    enum admission_verdict verdict;

    verdict = hold_wait(m->hold, &w->held, &displaced);
    if (verdict != ADMISSION_WAITS) return refuse(r, m, w, verdict, err);
    w->hold = m->hold;
    w->limit = NULL;
    w->is_granted = false;
    if (displaced) {
        displace(displaced, decided);
    } else {
        r->n_waiting++;
    }
    if (hold_is_on(m->hold)) grant(r, m, now_us, decided);
    if (hold_is_waiting(&w->held)) return ST_AGAIN;
    list_remove(&w->mail.link); /* decided at once: no mail */
    if (w->is_granted) return ST_OK;
    return error_set(err, ST_BUSY,
                     "the request cannot be computed before its deadline: send it "
                     "with a later one");
}

enum status registry_enter(struct registry *r, struct str model, struct route_request *rq,
                           struct route_ticket *ticket, struct registry_target *out,
                           struct registry_waiter *w, struct error *err) {
    enum hold_reason reason = HOLD_FULL;
    struct list decided;
    struct model *m;
    enum status st;

    list_init(&decided);
    registry_lock(r);
    st = registry_choose_model(r, model, &m, err);
    if (st != ST_OK) goto done;
    if (r->n_waiting) registry_grant(r, rq->now_us, &decided); /* waiting requests come first */
    model_note_eligible(m, rq->now_us);
    if (has_room(r, m, rq->now_us)) {
        st = place(r, m, rq, ticket, &reason, err);
    } else {
        st = model_may_wait(r, m, rq->now_us) ? ST_AGAIN : decide(r, m, rq, ticket, err);
    }
    if (st == ST_OK) registry_fill_target(r, m->routing, ticket, out);
    if (st == ST_AGAIN && w) {
        w->held.rq = rq;
        w->held.ticket = ticket;
        w->held.reason = reason;
        w->target = out;
        st = wait_for_place(r, m, w, &decided, err);
    }
done:
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
    return st;
}

enum status registry_judge(struct registry *r, struct str model, const struct route_request *rq,
                           struct hold_due *due, struct error *err) {
    struct model *m;
    enum status st;

    registry_lock(r);
    st = registry_choose_model(r, model, &m, NULL);
    st = st == ST_OK ? hold_judge(m->hold, rq, due, err) : ST_OK; /* registry_enter reports it */
    pthread_mutex_unlock(&r->lock);
    return st;
}

bool registry_leave(struct registry *r, struct registry_waiter *w) {
    bool was_waiting;

    pthread_mutex_lock(&r->lock);
    was_waiting = w->turn.is_held || hold_is_waiting(&w->held);
    if (w->turn.is_held) {
        sessions_leave(w->model->sessions, &w->turn, r->now_us);
    } else if (was_waiting) {
        hold_leave(w->hold, &w->held);
    }
    r->n_waiting -= was_waiting;
    pthread_mutex_unlock(&r->lock);
    return was_waiting;
}

uint32_t registry_position(struct registry *r, const struct registry_waiter *w) {
    uint32_t position;

    pthread_mutex_lock(&r->lock);
    position = w->turn.is_held ? w->held.n_before + 1 : 1;
    if (hold_is_waiting(&w->held)) position = hold_position(w->hold, &w->held);
    pthread_mutex_unlock(&r->lock);
    return position;
}

/* --- what becomes of it ----------------------------------------------------------------------- */

/* Ejecting more than half of the fleet costs more than the faults of its workers. */
static bool may_eject(const struct registry *r, const struct model *m, uint32_t candidate) {
    uint32_t n_out = 1;

    for (uint32_t id = 0; id < r->n_ids; id++) {
        const struct worker *w = &r->workers[id];

        if (id != candidate && w->is_used && w->model == m && worker_reasons(w, id)) n_out++;
    }
    return n_out * 2 <= m->n_workers;
}

/* True when its answers stand out among those of the other workers of its model. */
static bool stands_out(struct registry *r, struct worker *w, uint64_t now_us) {
    struct outcomes_sum peers = {0};

    if (w->outcomes.n_bad_in_a_row == 0) return false; /* its last answer was good */
    for (uint32_t id = 0; id < r->n_ids; id++) {
        struct worker *other = &r->workers[id];
        struct outcomes_sum sum;

        if (other == w || !other->is_used || other->model != w->model) continue;
        sum = outcomes_sum(&other->outcomes, now_us);
        peers.n_good += sum.n_good;
        peers.n_bad += sum.n_bad;
    }
    return outcomes_stand_out(&w->outcomes, peers, now_us);
}

static void eject(const struct registry *r, struct worker *w, struct breaker_failure *failure,
                  uint64_t now_us) {
    bool was_open = w->breaker.state == BREAKER_OPEN;

    failure->min_us = r->config.trial_us ? r->config.trial_us : BREAKER_MIN_US;
    breaker_failed(&w->breaker, failure, now_us);
    if (was_open) return;
    w->n_ejected[failure->cause]++;
    w->news = (struct registry_breaker_change){.was_ejected = true,
                                               .cause = failure->cause,
                                               .latest = outcomes_sum(&w->outcomes, now_us),
                                               .pause_us = w->breaker.pause_us};
}

/* A connection that failed or broke: one event suffices. */
static void fault_of_connection(struct registry *r, uint32_t id, struct breaker_failure *failure,
                                uint64_t now_us) {
    struct worker *w = &r->workers[id];

    w->n_failed++;
    w->is_suspect = true;
    /* A worker that refuses connections serves no request, even as the last one. */
    if (failure->cause == BREAKER_UNREACHED || !breaker_admits(&w->breaker) ||
        may_eject(r, w->model, id)) {
        eject(r, w, failure, now_us);
    }
}

/* An empty or error answer may be the request's fault: it takes several, and peers that do
 * better. */
static void fault_of_answer(struct registry *r, uint32_t id, struct breaker_failure *failure,
                            uint64_t now_us) {
    struct worker *w = &r->workers[id];

    w->n_failed++;
    outcomes_add(&w->outcomes, false, now_us);
    if (!breaker_admits(&w->breaker) || (stands_out(r, w, now_us) && may_eject(r, w->model, id))) {
        eject(r, w, failure, now_us);
    }
}

static void passed_trial(struct registry *r, uint32_t id, uint64_t now_us) {
    struct worker *w = &r->workers[id];

    if (w->breaker.cause >= BREAKER_ERRORS) routing_slow_start(w->model->routing, id, now_us);
    worker_acquit(w, id);
}

/* A trial succeeds at its first token, long before the end of a long answer, except for a worker
 * whose answers broke after that. */
static void began(struct registry *r, const struct registry_target *target, uint64_t now_us) {
    uint32_t id = target->worker;
    struct worker *w = &r->workers[id];

    if (!w->is_used || !w->is_described || w->incarnation != target->incarnation) return;
    if (w->breaker.state != BREAKER_TRYING || w->breaker.n_seen > 0) return;
    passed_trial(r, id, now_us);
}

static void answered(struct registry *r, uint32_t id, uint64_t now_us) {
    struct worker *w = &r->workers[id];

    if (w->breaker.state == BREAKER_TRYING) {
        passed_trial(r, id, now_us);
    } else {
        breaker_succeeded(&w->breaker);
    }
    outcomes_add(&w->outcomes, true, now_us);
}

static void judge(struct registry *r, const struct registry_target *target,
                  const struct route_ticket *ticket, enum registry_outcome outcome,
                  uint64_t now_us) {
    uint32_t id = target->worker;
    struct worker *w = &r->workers[id];
    uint64_t sent_us = ticket->load.sent_us;
    struct breaker_failure failure = {.cost_us = now_us > sent_us ? now_us - sent_us : 0};

    if (!w->is_used || !w->is_described || w->incarnation != target->incarnation) return;
    if (outcome == OUTCOME_OK && ticket->load.is_light) outcome = OUTCOME_REFUSED;
    switch (outcome) {
    case OUTCOME_OK: answered(r, id, now_us); break;
    case OUTCOME_REFUSED: /* or light: reachable; the quality of its answers is unknown */
        if (w->breaker.cause < BREAKER_ERRORS) {
            breaker_succeeded(&w->breaker);
        } else {
            breaker_undecided(&w->breaker);
        }
        break;
    case OUTCOME_UNKNOWN: breaker_undecided(&w->breaker); break;
    case OUTCOME_UNREACHED:
    case OUTCOME_FAILED:
    case OUTCOME_BROKEN:
        failure.cause = outcome == OUTCOME_UNREACHED ? BREAKER_UNREACHED : BREAKER_LOST;
        failure.is_seen = outcome == OUTCOME_BROKEN;
        fault_of_connection(r, id, &failure, now_us);
        break;
    case OUTCOME_ERROR:
    case OUTCOME_EMPTY:
    case OUTCOME_SPOILT:
        failure.cause = outcome == OUTCOME_ERROR ? BREAKER_ERRORS : BREAKER_EMPTY;
        failure.is_seen = outcome == OUTCOME_SPOILT;
        fault_of_answer(r, id, &failure, now_us);
        break;
    }
    worker_show_breaker(w, id);
}

void registry_pardon(struct registry *r, const struct registry_accused *accused, uint32_t n,
                     uint64_t now_us) {
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = accused[i].worker;
        struct worker *w = &r->workers[id];

        if (!w->is_used || !w->is_described || w->incarnation != accused[i].incarnation) continue;
        outcomes_pardon(&w->outcomes);
        if (w->breaker.state == BREAKER_OPEN && w->breaker.cause >= BREAKER_ERRORS &&
            !stands_out(r, w, now_us)) {
            worker_acquit(w, id);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_first_token(struct registry *r, const struct registry_target *target,
                          struct route_ticket *ticket, const struct route_feedback *feedback,
                          uint64_t now_us) {
    struct list decided;

    list_init(&decided);
    registry_lock(r);
    routing_first_token(target->routing, ticket, feedback, now_us);
    if (target->shared_id) outbox_first(r, target, feedback, now_us);
    if (feedback) began(r, target, now_us);
    if (r->n_waiting) registry_grant_held(r, now_us, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_ended(struct registry *r, const struct registry_target *target,
                    struct route_ticket *ticket, const struct route_end *end,
                    enum registry_outcome outcome) {
    struct list decided;

    list_init(&decided);
    registry_lock(r);
    r->n_light -= ticket->load.is_light;
    r->n_legs -= ticket->is_leg;
    routing_ended(target->routing, ticket, end);
    if (target->shared_id) outbox_ended(r, target, end);
    r->n_open--;
    judge(r, target, ticket, outcome, end->now_us);
    if (r->n_waiting) registry_grant(r, end->now_us, &decided);
    pthread_mutex_unlock(&r->lock);
    registry_notify(&decided);
}

void registry_note_load(struct registry *r, const struct registry_target *target,
                        const struct wire_load *load) {
    struct worker *w = &r->workers[target->worker];

    pthread_mutex_lock(&r->lock);
    if (w->is_used && w->incarnation == target->incarnation) {
        w->load = *load;
        w->has_load = true;
        worker_set_draining(w, target->worker, DRAIN_WORKER, load->draining);
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_note_draining(struct registry *r, const struct registry_target *target) {
    struct worker *w = &r->workers[target->worker];

    pthread_mutex_lock(&r->lock);
    if (w->is_used && w->incarnation == target->incarnation)
        worker_set_draining(w, target->worker, DRAIN_WORKER, true);
    pthread_mutex_unlock(&r->lock);
}

uint32_t registry_keep_current(struct registry *r, uint32_t *ids, uint32_t *incarnations,
                               uint32_t n) {
    uint32_t n_kept = 0;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < n; i++) {
        const struct worker *w = &r->workers[ids[i]];

        if (!w->is_used || w->incarnation != incarnations[i]) continue;
        ids[n_kept] = ids[i];
        incarnations[n_kept++] = incarnations[i];
    }
    pthread_mutex_unlock(&r->lock);
    return n_kept;
}

static uint32_t find_mark(const struct registry *r, struct str mark) {
    for (uint32_t id = 0; mark.len && id < r->n_ids; id++) {
        const struct worker *w = &r->workers[id];

        if (w->is_used && w->is_described && str_eq(str_of(w->info.response_mark), mark)) return id;
    }
    return WORKER_NONE;
}

uint32_t registry_find_mark(struct registry *r, struct str mark) {
    uint32_t found;

    pthread_mutex_lock(&r->lock);
    found = find_mark(r, mark);
    pthread_mutex_unlock(&r->lock);
    return found;
}

enum status registry_route_stored(struct registry *r, struct str mark, uint64_t now_us,
                                  struct route_ticket *ticket, struct registry_target *out,
                                  struct error *err) {
    enum status st = ST_OK;
    uint32_t id;

    registry_lock(r);
    id = find_mark(r, mark);
    if (id == WORKER_NONE) {
        st = ST_NOT_FOUND;
    } else if (worker_reasons(&r->workers[id], id) & ~(uint32_t)WORKER_DRAINING) {
        st = error_set(err, ST_UNAVAILABLE,
                       "the worker that has stored this response is out of service: try again "
                       "later, or send the whole input");
    } else {
        routing_open_light(r->workers[id].model->routing, id, now_us, ticket);
        registry_fill_target(r, r->workers[id].model->routing, ticket, out);
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

bool registry_has_other(struct registry *r, const struct registry_target *target,
                        const uint32_t *exclude, uint32_t n_exclude) {
    struct worker_mask mask;
    bool is_any = false;

    pthread_mutex_lock(&r->lock);
    mask = routing_load(target->routing)->eligible;
    pthread_mutex_unlock(&r->lock);
    worker_mask_drop(mask.words, target->worker);
    for (uint32_t i = 0; i < n_exclude; i++)
        worker_mask_drop(mask.words, exclude[i]);
    for (uint32_t i = 0; i < WORKER_MASK_WORDS; i++)
        is_any = is_any || mask.words[i];
    return is_any;
}

static bool others_can_serve(const struct registry *r, uint32_t id) {
    for (uint32_t other = 0; other < r->n_ids; other++) {
        const struct worker *w = &r->workers[other];

        if (other != id && w->is_used && w->is_described && w->model == r->workers[id].model &&
            worker_reasons(w, other) == 0) {
            return true;
        }
    }
    return false;
}

bool registry_take_suspicion(struct registry *r, uint32_t id) {
    struct worker *w = &r->workers[id];
    bool was;

    pthread_mutex_lock(&r->lock);
    was = w->is_used && w->is_suspect;
    w->is_suspect = false;
    if (was && others_can_serve(r, id)) worker_set_reason(w, id, WORKER_STARTING, true);
    pthread_mutex_unlock(&r->lock);
    return was;
}

/* --- what workers report ---------------------------------------------------------------------- */

struct route_feedback registry_bound_usage(const struct registry_target *target,
                                           struct route_feedback f) {
    int64_t most = target->max_model_len ? target->max_model_len : PROMPT_TOKENS_MAX;

    if (f.prompt_tokens > most || (f.prompt_tokens >= 0 && f.cached_tokens > f.prompt_tokens))
        return (struct route_feedback){-1, -1};
    return f;
}
