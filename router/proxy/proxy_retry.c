/* router/proxy/proxy_retry.c - choosing a worker again, when an attempt has failed.
 *
 * What is retried, and what that costs:
 *
 *      the connection had died idle   the same worker, a fresh connection      free
 *      429, 503                       another worker, else that answer         free: nothing was done
 *      503, because it drains         another worker, else that answer         free, and no attempt
 *      unreachable                    another worker                           free, and no attempt
 *      broken off, silent             another worker                           from the retry budget
 *      500, 502, 504, no answer       another worker, else that answer         from the retry budget
 *      any, and no worker is up       the first that comes back: it waits in the queue */
#include <assert.h>

#include "router/metrics/router_metrics.h"
#include "router/proxy/proxy_internal.h"

#define RETRY_PAUSE_US 20000  /* between two looks at the retry budget */
#define RETRY_PAUSES   50     /* then the request fails with Retry-After */
#define PAIR_PAUSE_US  100000 /* between two looks for a worker that prefills */
/* The retry budget, in unanswered retries: one open exchange in five, or 1.5 times the fair share
 * of one worker, so that a fleet of two or more can take over all that it had; and RETRY_MIN
 * more. */
#define RETRY_SHARE    5
#define RETRY_MIN      3
#define UNREACHED_FREE 16 /* attempts that reached no worker and do not count */

static bool has_attempts(const struct exchange *x) {
    if (x->is_lookup) return false; /* no other worker has it */
    return x->n_lost < x->max_lost && x->n_attempts < x->proxy->config.max_attempts;
}

static bool may_retry(const struct exchange *x, uint32_t cause) {
    if (x->proxy->config.never_retried & cause) return false;
    return has_attempts(x) && (x->is_safe || cause == RETRY_CONNECT);
}

static bool is_over_budget(const struct exchange *x) {
    const struct proxy *p = x->proxy;
    uint32_t n_workers = x->try.target.n_workers, own = RETRY_MIN;

    if (n_workers > 1) own += p->n_open * 3 / (2 * n_workers);
    return p->n_retrying >= MAX(own, p->n_open / RETRY_SHARE);
}

/* The id of a tried worker that was removed may belong to another one. */
static void forget_removed(struct exchange *x) {
    if (!x->n_tried) return;
    x->n_tried =
        registry_keep_current(x->proxy->registry, x->tried, x->tried_incarnations, x->n_tried);
}

static void exclude_tried(struct exchange *x) {
    forget_removed(x);
    x->rq.exclude = x->tried;
    x->rq.n_exclude = x->n_tried;
}

/* Chooses another worker, even above its limit, and opens a ticket. */
static enum status route(struct exchange *x) {
    enum status st;

    if (x->is_lookup) return ST_UNAVAILABLE;
    exclude_tried(x);
    x->rq.now_us = loop_now_us(x->proxy->loop);
    if (x->wants_explanation || x->proxy->config.decisions) proxy_explain(x);
    st = registry_route(x->proxy->registry, x->scan.model, &x->rq, &x->try.ticket, &x->try.target,
                        NULL);
    if (st == ST_OK) exchange_move(x, EXCHANGE_SENDING);
    return st;
}

/* A worker is not chosen again for this request. */
static void note_tried_at(struct exchange *x, const struct registry_target *target) {
    uint32_t n = x->n_tried;

    if (n && x->tried[n - 1] == target->worker &&
        x->tried_incarnations[n - 1] == target->incarnation)
        return;
    assert(n < MAX_ATTEMPTS);
    x->tried[n] = target->worker;
    x->tried_incarnations[n] = target->incarnation;
    x->n_tried++;
}

static void note_tried(struct exchange *x) {
    note_tried_at(x, &x->try.target);
}

static void end_attempt(struct exchange *x, const char *reason, enum registry_outcome outcome) {
    proxy_account(x, true, outcome);
    proxy_end_comment(x);
    if (x->state == EXCHANGE_FALLBACK) exchange_move(x, EXCHANGE_CHOOSING);
    x->failure = reason;
    proxy_log_failure(x, reason);
}

static void count_retry(struct exchange *x) {
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_retries_total, x->failure));
}

/* Sends the routed request. `is_paid`: from the retry budget. */
static void begin_retry(struct exchange *x, bool is_paid) {
    count_retry(x);
    x->try.is_retry = is_paid;
    x->proxy->n_retrying += is_paid;
    proxy_attempt(x, false);
}

/* The attempt is accounted, with an answer. False: no other worker takes the request. */
static bool replace_worker(struct exchange *x, bool is_paid) {
    if (route(x) != ST_OK) {
        exchange_move(x, EXCHANGE_FALLBACK);
        return false;
    }
    proxy_drop_upstream(x);
    begin_retry(x, is_paid);
    return true;
}

bool proxy_leave_draining(struct exchange *x) {
    if (x->n_drained >= x->proxy->config.max_workers) return false; /* workers that come and go */
    x->n_drained++;
    proxy_account(x, true, OUTCOME_UNKNOWN);
    x->failure = "worker_draining";
    if (!replace_worker(x, false)) return false;
    x->n_attempts--;
    return true;
}

static void accuse(struct exchange *x) {
    if (x->try.blame == BLAME_ACCUSED || x->n_accused >= MAX_ATTEMPTS) return;
    x->try.blame = BLAME_ACCUSED;
    x->accused[x->n_accused++] =
        (struct registry_accused){x->try.target.worker, x->try.target.incarnation};
}

enum registry_outcome proxy_answer_failed(struct exchange *x, enum registry_outcome outcome) {
    if (x->try.blame == BLAME_SPARED) return OUTCOME_REFUSED;
    accuse(x);
    return outcome;
}

void proxy_pardon(struct exchange *x) {
    if (x->try.blame == BLAME_SPARED || (x->try.blame == BLAME_ACCUSED && x->n_accused > 1)) {
        registry_pardon(x->proxy->registry, x->accused, x->n_accused, loop_now_us(x->proxy->loop));
    }
    x->n_accused = 0;
}

bool proxy_try_another(struct exchange *x) {
    bool is_error = x->try.head.status_code == 503;

    if (!has_attempts(x) || (is_error && x->proxy->config.never_retried & RETRY_503)) return false;
    if (is_error) accuse(x);
    end_attempt(x, "refused_by_worker", is_error ? OUTCOME_ERROR : OUTCOME_REFUSED);
    note_tried(x);
    return replace_worker(x, false);
}

/* A worker that was handed a prompt answers with an error. It may have failed to fetch it: where it
 * can compute the prompt, it may get the plain request, and is not to blame. Else another worker is
 * preferred, and the same may try again with another partner. */
static bool replace_pair(struct exchange *x, const char *reason, enum registry_outcome outcome) {
    bool is_alone = !handover_is_required(x->try.target.part.handover);
    bool has_other = registry_has_other(x->proxy->registry, &x->try.target, x->tried, x->n_tried);

    proxy_drop_leg(x);
    if (!is_alone) accuse(x);
    end_attempt(x, is_alone ? "handover_failed" : reason, is_alone ? OUTCOME_REFUSED : outcome);
    if (!is_alone && has_other) note_tried(x);
    return replace_worker(x, true);
}

bool proxy_replace_answer(struct exchange *x, const char *reason, uint32_t cause,
                          enum registry_outcome outcome) {
    if (!may_retry(x, cause)) return false;
    if (is_over_budget(x)) {
        metric_inc(
            METRICS_GET(x->proxy->metrics, ROUTER_retry_budget_exhausted_total, "passed_on"));
        x->try.blame = BLAME_SPARED;
        return false;
    }
    if (proxy_is_handed(x)) return replace_pair(x, reason, outcome);
    accuse(x);
    end_attempt(x, reason, outcome);
    note_tried(x);
    return replace_worker(x, true);
}

/* No worker is up: the first to come back is used, tried or not. */
static void wait_for_any(struct exchange *x) {
    struct error err = {0};
    enum status st;

    x->n_tried = 0;
    x->rq.exclude = NULL;
    x->rq.n_exclude = 0;
    count_retry(x);
    st = proxy_route_or_queue(x, &err);
    if (st == ST_OK) {
        proxy_attempt(x, false);
    } else if (st != ST_AGAIN) {
        proxy_fail(x, st, &err);
    }
}

/* Chooses another worker, at once or when the budget has room. */
static void retry_elsewhere(struct exchange *x, bool is_free) {
    struct proxy *p = x->proxy;
    struct error err = {0};
    enum status st;

    if (!is_free && is_over_budget(x)) {
        if (x->n_pauses == 0 || x->n_pauses == RETRY_PAUSES) {
            metric_inc(METRICS_GET(p->metrics, ROUTER_retry_budget_exhausted_total,
                                   x->n_pauses ? "given_up" : "waited"));
        }
        if (x->n_pauses++ < RETRY_PAUSES) {
            exchange_move(x, EXCHANGE_PAUSED); /* spares the remaining workers */
            loop_timer_start(&x->retry, RETRY_PAUSE_US);
            return;
        }
        PROXY_FAIL(x, ST_UNAVAILABLE,
                   "the worker failed before it answered and the retry budget is exhausted: send "
                   "the request again later");
        return;
    }
    exclude_tried(x);
    st = p->config.holds ? proxy_route_or_queue(x, &err) : route(x);
    if (x->is_late) {
        proxy_fail(x, st, &err);
        return;
    }
    if (st == ST_AGAIN) { /* QUEUED, with the time of its first arrival */
        x->is_requeued = true;
        return;
    }
    if (st == ST_UNAVAILABLE && registry_is_down(p->registry, x->try.target.worker)) {
        wait_for_any(x);
        return;
    }
    if (st != ST_OK) {
        PROXY_FAIL(x, ST_UNAVAILABLE,
                   "the worker failed before it answered and no other can take the request now: "
                   "send the request again");
        return;
    }
    begin_retry(x, true);
}

void proxy_on_retry_timer(void *arg) {
    exchange_move(arg, EXCHANGE_CHOOSING);
    retry_elsewhere(arg, false);
}

/* The worker never had the request: the attempt does not count. */
static bool was_never_sent(struct exchange *x, enum registry_outcome outcome) {
    if (outcome != OUTCOME_UNREACHED || x->try.n_connections > 1 ||
        x->n_unreached >= UNREACHED_FREE)
        return false;
    x->n_unreached++;
    x->n_attempts--;
    return true;
}

void proxy_attempt_failed(struct exchange *x, const char *reason, uint32_t cause, bool is_lost,
                          enum registry_outcome outcome) {
    bool is_free = was_never_sent(x, outcome);

    proxy_drop_upstream(x);
    end_attempt(x, reason, outcome);
    if (!is_free) note_tried(x);
    x->n_lost += is_lost;
    if (may_retry(x, cause)) {
        retry_elsewhere(x, is_free);
    } else if (x->n_lost >= x->max_lost) {
        proxy_fail_poison(x, true);
    } else if (x->is_lookup) {
        PROXY_FAIL(x, ST_BAD_GATEWAY,
                   "the worker that has stored this response did not answer: try again later, or "
                   "send the whole input");
    } else {
        PROXY_FAIL(x, ST_BAD_GATEWAY, "no worker answered after %u attempts: try again later",
                   x->n_attempts);
    }
}

void proxy_pair_failed(struct exchange *x, const char *reason) {
    struct registry_target p = x->leg->target;
    bool is_free = !handover_is_required(p.part.handover);

    proxy_drop_upstream(x);
    end_attempt(x, reason, OUTCOME_UNKNOWN);
    note_tried_at(x, &p);
    if (x->n_lost >= x->max_lost) {
        proxy_fail_poison(x, true);
    } else if (is_free || may_retry(x, RETRY_RESET)) {
        retry_elsewhere(x, is_free);
    } else {
        PROXY_FAIL(x, ST_BAD_GATEWAY, "no worker answered after %u attempts: try again later",
                   x->n_attempts);
    }
}

void proxy_leave_hung(struct exchange *x) {
    forget_removed(x);
    if (!may_retry(x, RETRY_TIMEOUT) || x->n_tried >= MAX_ATTEMPTS ||
        !registry_has_other(x->proxy->registry, &x->try.target, x->tried, x->n_tried)) {
        return;
    }
    proxy_drop_upstream(x);
    end_attempt(x, "worker_hung", OUTCOME_UNKNOWN);
    note_tried(x);
    if (route(x) == ST_OK) {
        begin_retry(x, false);
    } else {
        retry_elsewhere(x, false); /* the other one has gone meanwhile */
    }
}

void proxy_attempt_queued(struct exchange *x) {
    bool is_retry = x->is_requeued;

    x->is_requeued = false;
    if (is_retry) {
        begin_retry(x, true);
    } else {
        proxy_attempt(x, false);
    }
}

/* No worker prefills for the one that answers, which cannot do so alone: the last may have been
 * lost just now, before it is found to be out of service and requests wait in the queue for it. So
 * the request is routed again after a pause, to workers that it has tried too. */
void proxy_pause_for_pair(struct exchange *x, const struct error *err) {
    if (x->n_pauses++ >= RETRY_PAUSES) {
        proxy_fail(x, err->status, err);
        return;
    }
    proxy_account(x, true, OUTCOME_UNKNOWN);
    x->failure = "no_prefill_worker";
    x->n_attempts--;
    x->n_tried = 0;
    exchange_move(x, EXCHANGE_PAUSED);
    loop_timer_start(&x->retry, PAIR_PAUSE_US);
}
