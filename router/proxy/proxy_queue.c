/* router/proxy/proxy_queue.c - an exchange that waits until its session may go (sessions.h), until
 * a worker can start it (hold.h), or while every worker is at its limit.
 *
 *      QUEUED: the client's connection stays open, nothing but comments is sent
 *         ├─ granted: a mail, with the ticket already open        ──▶ attempt
 *         ├─ displaced by another request (admission.h): a mail   ──▶ 429
 *         ├─ the last worker has left for good: a mail            ──▶ 503
 *         ├─ --queue-timeout, or --session-timeout                ──▶ 503
 *         ├─ its deadline can no longer be met: a mail, or time   ──▶ 429
 *         └─ the client leaves: out of the queue at once
 *
 * The thread whose event lets a request go routes it under the registry's lock; the loop of that
 * request gets a mail. Time lets requests go too, so a loop with QUEUED exchanges asks the registry
 * every HOLD_WALK_US. If its client left while the mail was on its way, the exchange stays MAIL_DUE
 * until the mail has come, and gives the slot back. */
#include <sched.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/telemetry/metrics.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/proxy_internal.h"

#define SESSION_RETRY_US 2000000 /* Retry-After of one whose session waited for too long */

static void count_refusal(struct exchange *x, const char *limit) {
    bool is_size = strcmp(limit, refusal_names[REFUSAL_QUEUE_SIZE]) == 0;

    proxy_count_refusal(x, is_size ? REFUSAL_QUEUE_SIZE : REFUSAL_QUEUE_TIMEOUT);
}

/* A number in a header or in the body; other texts are ignored. */
static int32_t to_priority(struct str text, int32_t otherwise) {
    bool is_negative = text.len > 1 && text.ptr[0] == '-';
    uint64_t n;

    if (is_negative) text = (struct str){text.ptr + 1, text.len - 1};
    if (!text.len || str_to_u64(text, &n) != ST_OK) return otherwise;
    n = MIN(n, (uint64_t)INT32_MAX);
    return is_negative ? -(int32_t)n : (int32_t)n;
}

/* That of its key, or a later one that the request names. */
static int32_t priority_of(const struct exchange *x) {
    int32_t own = x->key.key ? x->key.priority : 0, priority = own;

    priority = to_priority(http_request_header(x->req, STR("x-incipit-priority")), priority);
    priority = to_priority(http_request_header(x->req, STR("x-smg-priority")), priority);
    priority = to_priority(x->scan.spans[BODY_PRIORITY], priority);
    return MAX(own, priority);
}

/* Time alone lets requests go. */
static bool walks(const struct proxy *p) {
    return p->config.holds || p->config.joins_sessions;
}

/* Which does not change while it is QUEUED. */
static bool waits_for_session(const struct exchange *x) {
    return x->waiter.held.reason == HOLD_SESSION;
}

static uint64_t may_wait_us(const struct exchange *x) {
    const struct proxy_config *c = &x->proxy->config;

    return waits_for_session(x) ? MAX(c->session_timeout_us, c->queue_timeout_us)
                                : c->queue_timeout_us;
}

void proxy_on_walk(void *arg) {
    struct proxy *p = arg;

    registry_walk(p->registry, loop_now_us(p->loop));
    if (p->n_queued && walks(p)) loop_timer_start(&p->walk, HOLD_WALK_US);
}

void proxy_queue_configure(struct proxy *p) {
    if (p->n_queued && walks(p)) loop_timer_start(&p->walk, HOLD_WALK_US);
}

static void enter_queue(struct exchange *x, uint64_t now_us) {
    struct proxy *p = x->proxy;
    uint64_t most_us = may_wait_us(x), left_us = most_us - MIN(x->waited_us, most_us);

    if (x->due.by_us) left_us = MIN(left_us, x->due.by_us - MIN(x->due.by_us, now_us));
    exchange_move(x, EXCHANGE_QUEUED);
    x->queued_us = now_us;
    x->held_position = x->waiter.held.n_before + 1;
    metric_inc(METRICS_GET(p->metrics, ROUTER_requests_held_total, proxy_held_by(x)));
    loop_timer_start(&x->queue_timer, left_us);
    if (p->n_queued++ == 0 && walks(p)) loop_timer_start(&p->walk, HOLD_WALK_US);
    proxy_comment_position(x);
}

/* The registry has decided, or has given x back: x moves on to `to`. */
static void leave_queue(struct exchange *x, enum exchange_state to) {
    struct proxy *p = x->proxy;
    uint64_t waited_us = loop_now_us(p->loop) - x->queued_us;

    p->n_queued--;
    x->waited_us += waited_us;
    loop_timer_stop(&x->queue_timer);
    metric_observe(p->counts.queue_wait, (double)waited_us * 1e-6);
    exchange_move(x, to);
}

/* The client left before the decision came. */
static void end_after_mail(struct exchange *x) {
    x->proxy->n_awaiting_mail--;
    if (x->waiter.is_granted) proxy_end_ticket(x, true, OUTCOME_UNKNOWN);
    proxy_recycle(x);
}

static void on_queue_decision(struct mail *mail, void *arg) {
    struct registry_waiter *w = CONTAINER_OF(mail, struct registry_waiter, mail);
    struct exchange *x = CONTAINER_OF(w, struct exchange, waiter);

    (void)arg;
    if (x->state == EXCHANGE_MAIL_DUE) {
        end_after_mail(x);
        return;
    }
    leave_queue(x, w->is_granted ? EXCHANGE_SENDING : EXCHANGE_CHOOSING);
    if (w->is_granted) {
        proxy_attempt_queued(x);
        return;
    }
    if (!w->limit) {
        PROXY_FAIL(x, ST_UNAVAILABLE,
                   "the workers that the request waited for are draining, disabled or removed: try "
                   "again later");
        return;
    }
    if (str_eq(str_of(w->limit), STR(REGISTRY_DEADLINE))) {
        proxy_refuse_late(x, w->retry_us);
        return;
    }
    count_refusal(x, w->limit);
    PROXY_FAIL(x, ST_BUSY,
               "all workers are at their limit, the queue is full (--queue-size), and a request of "
               "higher priority, or of a tenant with fewer in it, took this one's place: try again "
               "later");
}

void proxy_on_queue_timeout(void *arg) {
    struct exchange *x = arg;

    if (!registry_leave(x->proxy->registry, &x->waiter)) return; /* the decision is on its way */
    leave_queue(x, EXCHANGE_CHOOSING);
    if (x->due.by_us && loop_now_us(x->proxy->loop) >= x->due.by_us) {
        proxy_refuse_late(x, 0);
        return;
    }
    if (waits_for_session(x)) {
        proxy_count_refusal(x, REFUSAL_SESSION_TIMEOUT);
        x->retry_after_us = SESSION_RETRY_US;
        PROXY_FAIL(x, ST_UNAVAILABLE,
                   "more sessions are active than the workers' caches hold, and this one's turn "
                   "did not come within the %.1f s of --session-timeout: retry within %d s to keep "
                   "its place",
                   (double)may_wait_us(x) * 1e-6, SESSION_GRACE_S);
        return;
    }
    count_refusal(x, "queue-timeout");
    PROXY_FAIL(x, ST_UNAVAILABLE,
               "no worker could start the request within the %.1f s of --queue-timeout: all had "
               "too much to do, or were at their limit or out of service: try again later",
               (double)x->proxy->config.queue_timeout_us * 1e-6);
}

static uint64_t tenant_hash(const struct exchange *x) {
    return hash_64(x->tenant.ptr ? x->tenant.ptr : "", x->tenant.len, x->proxy->config.hash_secret);
}

void proxy_note_claim(struct exchange *x) {
    struct hold_request *held = &x->waiter.held;

    held->weight = x->key.key ? x->key.weight : 1;
    held->max_share = x->key.key ? x->key.max_share : 1;
    held->priority = x->due.priority = priority_of(x);
    held->tenant = x->due.tenant = tenant_hash(x);
}

/* Tenant, priority and mailbox: needed only when there is no room. */
static enum status prepare_to_wait(struct exchange *x, struct error *err) {
    struct proxy *p = x->proxy;
    struct registry_waiter *w = &x->waiter;
    enum status st = ST_OK;

    if (!p->mailbox) st = mailbox_open(&p->mailbox, p->loop, on_queue_decision, p, err);
    w->box = p->mailbox;
    w->limit = NULL;
    w->held.since_us = x->start_us;
    w->held.by_us = x->due.by_us;
    proxy_note_claim(x);
    return st;
}

/* --- sessions --------------------------------------------------------------------------------- */

static uint64_t name_hash(struct str name, uint64_t scope) {
    return name.len ? hash_64(name.ptr, name.len, scope) | 1 : 0;
}

/* Of the names in its headers; those of two tenants are never equal. */
static struct registry_turn describe_turn(const struct exchange *x) {
    uint32_t block_bytes = x->proxy->config.prefix_block_bytes;
    struct registry_turn turn = {.tenant = tenant_hash(x)};
    struct session_names names;
    uint64_t whole;

    session_names_of(x->req, &names);
    whole = name_hash(names.session, turn.tenant);
    turn.id = names.member.len ? name_hash(names.member, whole) : whole;
    if (names.member.len) turn.parent_id = whole;
    if (names.parent.len)
        turn.parent_id = name_hash(names.parent, names.is_parent_member ? whole : turn.tenant);
    turn.is_final = names.is_final;
    turn.n_blocks = registry_whole_blocks(&x->rq, block_bytes);
    turn.n_system = (uint32_t)MIN(CEIL_DIV(x->system_bytes, block_bytes), x->rq.n_blocks);
    return turn;
}

void proxy_mark(struct exchange *x) {
    double weight = x->key.key ? x->key.weight : 1;

    x->try.target.mark = (struct request_mark){.tenant = tenant_hash(x),
                                               .weight_percent = (uint32_t)(weight * 100 + 0.5),
                                               .priority = priority_of(x)};
}

static void mark_turn(struct request_mark *mark, const struct registry_turn *turn) {
    mark->is_turn = true;
    mark->session = turn->id;
    mark->n_system = turn->n_system;
    mark->is_last = turn->is_final;
}

enum status proxy_begin_turn(struct exchange *x, struct error *err) {
    struct proxy *p = x->proxy;
    struct registry_turn turn;
    enum status st;

    if (!p->config.joins_sessions || !x->is_generation) return ST_OK;
    st = prepare_to_wait(x, err);
    if (st != ST_OK) return st;
    turn = describe_turn(x);
    mark_turn(&x->try.target.mark, &turn);
    x->rq.now_us = loop_now_us(p->loop);
    st = registry_begin_turn(p->registry, x->scan.model, &x->rq, &x->try.ticket, &x->try.target,
                             &turn, &x->waiter, err);
    if (st == ST_AGAIN) {
        enter_queue(x, x->rq.now_us);
    } else if (st != ST_OK && x->waiter.limit) {
        count_refusal(x, x->waiter.limit);
    }
    return st;
}

void proxy_end_turn(struct exchange *x) {
    int64_t prompt = x->try.feedback.prompt_tokens, answer = sse_usage_tokens(&x->try.usage);
    uint64_t n_tokens = prompt > 0 ? (uint64_t)(prompt + MAX(answer, 0)) : 0;

    registry_end_turn(x->proxy->registry, &x->waiter,
                      x->n_attempts ? x->try.target.worker : WORKER_NONE, n_tokens,
                      loop_now_us(x->proxy->loop));
}

enum status proxy_route_or_queue(struct exchange *x, struct error *err) {
    struct proxy *p = x->proxy;
    uint64_t now_us = loop_now_us(p->loop);
    enum status st;

    x->rq.now_us = now_us;
    x->waiter.limit = NULL;
    if (x->is_light) {
        st =
            registry_route(p->registry, x->scan.model, &x->rq, &x->try.ticket, &x->try.target, err);
        if (st == ST_OK) exchange_move(x, EXCHANGE_SENDING);
        if (st != ST_UNAVAILABLE) return st; /* else it waits until a worker is up */
    }
    if (x->due.by_us) {
        st = proxy_judge_deadline(x, err);
        if (st != ST_OK) return st;
    }
    if (x->wants_explanation || p->config.decisions) proxy_explain(x);
    st = registry_enter(p->registry, x->scan.model, &x->rq, &x->try.ticket, &x->try.target, NULL,
                        err);
    if (st == ST_AGAIN) {
        st = prepare_to_wait(x, err);
        if (st != ST_OK) return st;
        st = registry_enter(p->registry, x->scan.model, &x->rq, &x->try.ticket, &x->try.target,
                            &x->waiter, err);
    }
    if (st == ST_OK) {
        exchange_move(x, EXCHANGE_SENDING);
    } else if (st == ST_AGAIN) {
        enter_queue(x, now_us);
    } else if (x->waiter.limit && x->waiter.held.by_us &&
               str_eq(str_of(x->waiter.limit), STR(REGISTRY_DEADLINE))) {
        proxy_note_late(x, x->waiter.retry_us);
    } else if (x->waiter.limit) {
        x->retry_after_us = MAX(x->waiter.held.wait_us, 1000000u);
        count_refusal(x, x->waiter.limit);
    }
    return st;
}

void proxy_leave_queue(struct exchange *x) {
    bool is_decided = !registry_leave(x->proxy->registry, &x->waiter);

    leave_queue(x, is_decided ? EXCHANGE_MAIL_DUE : EXCHANGE_CHOOSING);
    x->proxy->n_awaiting_mail += is_decided;
}

void proxy_queue_fini(struct proxy *p) {
    struct list mails, *link;

    list_init(&mails);
    while (p->n_awaiting_mail) { /* their mails come within moments */
        if (mailbox_take(p->mailbox, &mails) == 0) sched_yield();
        while ((link = list_pop_front(&mails)) != NULL)
            on_queue_decision(mail_of(link), p);
        loop_turn(p->loop, 0); /* recycles */
    }
    mailbox_close(p->mailbox);
}
