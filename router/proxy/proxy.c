/* router/proxy/proxy.c - an exchange, from the request to its end.
 *
 *   client loop                     exchange                              worker
 *   on_request ── proxy_start ──▶ scan, hash, route (lock: 1-2 us)
 *                                 proxy_attempt ── head + same body ────▶
 *                                 relay: take_head    ◀── head ──────────   = first token
 *   raw bytes  ◀── relay ──────── send_payload        ◀── body ──────────
 *   raw_end    ◀── finish ─────── account: load released, LRU, metrics, log
 *
 * The states are drawn in exchange.h. What is retried, and what that costs:
 *
 *      the connection had died idle   the same worker, a fresh connection      free
 *      429, 503                       another worker, else that answer         free: nothing was done
 *      503, because it drains         another worker, else that answer         free, and no attempt
 *      unreachable                    another worker                           free, and no attempt
 *      broken off, silent             another worker                           from the retry budget
 *      500, 502, 504, no answer       another worker, else that answer         from the retry budget
 *      any, and no worker is up       the first that comes back: it waits in the queue
 *
 * Exchanges are recycled with their buffers, at the end of the turn in which they were closed,
 * because their callbacks may still be on the stack. A busy loop allocates nothing. */
#include "router/proxy/proxy.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/protocol/openai.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"
#include "router/prompt/raw_json.h"
#include "router/proxy/forward.h"
#include "router/proxy/poison.h"
#include "router/proxy/proxy_internal.h"

#define RETRY_PAUSE_US 20000  /* between two looks at the retry budget */
#define RETRY_PAUSES   50     /* then the request fails with Retry-After */
#define PAIR_PAUSE_US  100000 /* between two looks for a worker that prefills */
/* The retry budget, in unanswered retries: one open exchange in five, or 1.5 times the fair share
 * of one worker, so that a fleet of two or more can take over all that it had; and RETRY_MIN
 * more. */
#define RETRY_SHARE        5
#define RETRY_MIN          3
#define UNREACHED_FREE     16 /* attempts that reached no worker and do not count */
#define MAX_IDLE_EXCHANGES 256
#define KEPT_CHAIN_BLOCKS  1024 /* a recycled exchange keeps room for; 12 KiB */
#define SMALL_BODY_BYTES   2048 /* copied behind its head rather than gathered by the kernel */

static void pardon(struct exchange *x);

/* --- account: what an attempt leaves behind --------------------------------------------------- */

/* Whether the attempt shows how fast its worker is, and how long its answers are. */
static bool may_learn_from(enum registry_outcome outcome) {
    return outcome == OUTCOME_OK || outcome == OUTCOME_BROKEN || outcome == OUTCOME_UNKNOWN;
}

void proxy_end_ticket(struct exchange *x, bool is_aborted, enum registry_outcome outcome) {
    static const struct route_feedback nothing = {-1, -1};
    struct route_end end = {
        .is_aborted = is_aborted || !may_learn_from(outcome),
        .output_tokens = sse_usage_tokens(&x->try.usage),
        .feedback = may_learn_from(outcome) ? x->try.feedback : nothing,
        .now_us = loop_now_us(x->proxy->loop),
    };

    if (is_aborted) proxy_report_first_token(x); /* else the end implies it */
    x->try.first_token_unreported = false;
    loop_timer_stop(&x->try.prefill);
    proxy_release_retry(x);
    registry_ended(x->proxy->registry, &x->try.target, &x->try.ticket, &end, outcome);
}

void proxy_account(struct exchange *x, bool is_aborted, enum registry_outcome outcome) {
    if (!exchange_is_in(x, EXCHANGE_TICKET)) return;
    proxy_end_ticket(x, is_aborted, outcome);
    exchange_move(x, exchange_is_in(x, EXCHANGE_SENT) ? EXCHANGE_FINISHING : EXCHANGE_CHOOSING);
}

void proxy_report_first_token(struct exchange *x) {
    if (!x->try.first_token_unreported) return;
    x->try.first_token_unreported = false;
    registry_first_token(x->proxy->registry, &x->try.target, &x->try.ticket, &x->try.feedback,
                         x->try.first_token_us);
}

void proxy_release_retry(struct exchange *x) {
    if (x->try.is_retry) x->proxy->n_retrying--;
    x->try.is_retry = false;
}

void proxy_drop_upstream(struct exchange *x) {
    proxy_drop_leg(x);
    loop_defer_cancel(&x->try.send);
    upstream_discard(x->try.up);
    x->try.up = NULL;
}

static void exchange_free(struct exchange *x) {
    proxy_destroy_leg(x);
    loop_timer_fini(&x->timeout);
    loop_timer_fini(&x->retry);
    loop_timer_fini(&x->try.prefill);
    loop_timer_fini(&x->queue_timer);
    buf_fini(&x->out);
    mem_free(x->chain);
    mem_free(x);
}

static void on_recycle(void *arg) {
    struct exchange *x = arg;
    struct proxy *p = x->proxy;

    proxy_destroy_leg(x);
    if (p->n_idle >= MAX_IDLE_EXCHANGES) {
        exchange_free(x);
        return;
    }
    if (x->chain_cap > KEPT_CHAIN_BLOCKS) {
        mem_free(x->chain);
        x->chain = NULL;
        x->chain_cap = 0;
    }
    exchange_move(x, EXCHANGE_IDLE);
    list_push_front(&p->idle, &x->link);
    p->n_idle++;
}

void proxy_close(struct exchange *x, int code) {
    struct proxy *p = x->proxy;

    loop_timer_stop(&x->timeout);
    loop_timer_stop(&x->retry);
    pardon(x);
    list_remove(&x->link);
    proxy_report(x, code);
    proxy_drop_leg(x);
    proxy_release_key(x); /* its tenant's name may go with it */
    x->req = NULL;
    p->n_open--;
    if (x->state == EXCHANGE_QUEUED) proxy_leave_queue(x);
    if (x->state != EXCHANGE_MAIL_DUE) proxy_recycle(x);
}

void proxy_recycle(struct exchange *x) {
    proxy_end_turn(x);
    exchange_move(x, EXCHANGE_ENDED);
    loop_defer(x->proxy->loop, &x->recycle);
}

void proxy_fail(struct exchange *x, enum status st, const struct error *err) {
    struct http_request *req = x->req;

    proxy_drop_upstream(x);
    proxy_account(x, true, OUTCOME_UNKNOWN);
    if (x->has_early_head) {
        proxy_fail_stream(x, st, err);
        return;
    }
    http_add_header(req, STR("x-request-id"), proxy_request_id(x));
    if (st == ST_UNAVAILABLE || st == ST_BUSY) proxy_add_retry_after(x);
    proxy_close(x, status_http_code(st));
    http_reply_error(req, st, err);
}

/* --- choosing, and choosing again ------------------------------------------------------------- */

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

/* No worker answered it without an error: the request is to blame. */
static void pardon(struct exchange *x) {
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

static void on_retry_timer(void *arg) {
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

/* --- an attempt ------------------------------------------------------------------------------- */

/* A third-party worker shows the first token of a whole answer only with the last: the predicted
 * end of the prefill stands in for it. */
static void watch_prefill(struct exchange *x) {
    double s = x->try.ticket.wait_s + x->try.ticket.load.work_s;

    if (!x->try.target.is_third_party || x->scan.is_stream || !x->is_generation) return;
    loop_timer_start(&x->try.prefill, (uint64_t)(MIN(s, 3600) * 1e6));
}

static void on_prefill_done(void *arg) {
    struct exchange *x = arg;

    registry_first_token(x->proxy->registry, &x->try.target, &x->try.ticket, NULL,
                         loop_now_us(x->proxy->loop));
}

static void reset_attempt(struct attempt *a, bool is_fresh) {
    a->n_connections = is_fresh ? 2 : 1;
    a->is_stream = a->first_token_unreported = false;
    a->form = ANSWER_OTHER;
    a->blame = BLAME_NONE;
    a->outcome = OUTCOME_OK;
    a->first_byte = a->last_byte = '\0';
    a->feedback = (struct route_feedback){-1, -1};
    sse_usage_init(&a->usage, API_OPENAI, false);
    a->first_token_us = a->sent_bytes = a->seen_bytes = a->seen_us = a->hung_us = 0;
    a->n_interim = 0;
    http_response_init(&a->head, false);
}

/* Head and body; the body from the client's buffer. */
static void send_request(void *arg) {
    struct exchange *x = arg;
    struct iovec pieces[1 + PROXY_BODY_PIECES_MAX];
    int n = 1;

    if (conn_is_connecting(&x->try.up->conn)) return; /* on_upstream_connected sends it */
    if (proxy_body_len(x) > SMALL_BODY_BYTES) n += proxy_body_pieces(x, pieces + 1);
    pieces[0] = (struct iovec){buf_ptr(&x->out), buf_len(&x->out)};
    if (n == 1) {
        conn_sendv(&x->try.up->conn, pieces, n);
    } else {
        conn_sendv_lent(&x->try.up->conn, pieces, n); /* pinned while the attempt lasts */
    }
}

/* One piece is cheaper to send than two. */
static void append_small_body(struct exchange *x) {
    struct iovec pieces[PROXY_BODY_PIECES_MAX];
    int n;

    if (proxy_body_len(x) > SMALL_BODY_BYTES) return;
    n = proxy_body_pieces(x, pieces);
    for (int i = 0; i < n; i++)
        buf_append(&x->out, pieces[i].iov_base, pieces[i].iov_len);
}

/* No worker prefills for the one that answers, which cannot do so alone: the last may have been
 * lost just now, before it is found to be out of service and requests wait in the queue for it. So
 * the request is routed again after a pause, to workers that it has tried too. */
static void pause_for_pair(struct exchange *x, const struct error *err) {
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

void proxy_attempt(struct exchange *x, bool is_fresh) {
    struct error err;
    enum status st;

    error_init(&err);
    if (x->n_attempts) reset_attempt(&x->try, is_fresh); /* else it was opened so */
    x->n_attempts += !is_fresh;
    st = proxy_permit_target(x, &err);
    if (st != ST_OK) {
        proxy_fail(x, st, &err);
        return;
    }
    if (!is_fresh) st = proxy_pair(x, &err);
    if (st == ST_AGAIN) return;
    if (st == ST_BUSY) {
        pause_for_pair(x, &err);
        return;
    }
    if (st != ST_OK) {
        proxy_fail(x, st, &err);
        return;
    }
    proxy_attempt_goes_on(x, is_fresh);
}

void proxy_attempt_goes_on(struct exchange *x, bool is_fresh) {
    struct error err;
    enum status st;

    error_init(&err);
    proxy_build_worker_head(x);
    append_small_body(x);
    st = buf_status(&x->out);
    if (st == ST_OK) {
        st = upstream_acquire(x->proxy->pool, &x->try.target, is_fresh, &proxy_relay, x, &x->try.up,
                              &err);
    }
    if (st != ST_OK) { /* descriptors or memory of this process: another worker would not help */
        PROXY_FAIL(x, ST_UNAVAILABLE,
                   "the router is out of memory or connections: send the request again later");
        return;
    }
    if (!is_fresh) watch_prefill(x);
    loop_defer_last(x->proxy->loop, &x->try.send);
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

/* --- from the client -------------------------------------------------------------------------- */

static void on_client_abort(struct http_request *req) {
    struct exchange *x = req->user;

    proxy_drop_upstream(x); /* the close ends the worker's work */
    proxy_account(x, true, OUTCOME_UNKNOWN);
    metric_inc(x->proxy->counts.client_aborts);
    proxy_close(x, 499);
}

static void on_timeout(void *arg) {
    struct exchange *x = arg;

    if (exchange_is_in(x, EXCHANGE_SENT)) {
        proxy_break_off(x, BROKEN_TIMEOUT);
        return;
    }
    PROXY_FAIL(x, ST_TIMEOUT,
               "no answer within %llu s: raise --request-timeout, or ask for fewer tokens",
               (unsigned long long)(x->proxy->config.request_timeout_us / 1000000));
}

/* What the client writes differently in each request: not hashed, and cut from what is sent where
 * the rule has it. */
static void find_noise(struct exchange *x) {
    static const char *const names[NOISE_KIND_COUNT] = {"billing_header", "total_tokens"};
    enum client_noise_rule rule = x->proxy->config.noise_rule;

    x->noise.n = 0;
    if (rule == NOISE_KEPT || !x->is_generation) return;
    client_noise_find(&x->scan, &x->noise);
    x->cuts_noise = rule == NOISE_CUT_FROM_ALL || x->api == API_MESSAGES;
    for (int i = 0; x->noise.n && i < NOISE_KIND_COUNT; i++) {
        if (x->noise.found[i])
            metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_client_noise_total, names[i]));
    }
}

/* What a request of Responses continues is known to the worker that has stored it. */
static void find_stored(struct exchange *x) {
    struct str id = raw_text(x->scan.spans[BODY_PREVIOUS_RESPONSE_ID]);

    if (!id.len) return;
    x->rq.is_continued = true;
    x->rq.stored_at = registry_find_mark(x->proxy->registry, api_mark_of(id));
    x->rq.n_blocks = 0; /* of another prompt */
    x->system_bytes = 0;
}

/* Chain, size and session, which routing uses. */
static enum status hash_prompt(struct exchange *x, struct error *err) {
    const struct proxy_config *config = &x->proxy->config;
    struct prompt_text prompt = {&x->scan, &x->noise, x->api};
    struct str session = session_name(x->req, &x->scan, &config->session_headers);
    struct prompt_scope scope = prompt_scope_of(&x->scan);
    struct prompt_hashed hashed = {0};
    uint32_t n_max = 0;

    find_noise(x);
    if (x->is_generation)
        n_max = prompt_hash_n_blocks(prompt_text_max(&x->scan, x->api), config->prefix_block_bytes,
                                     config->max_prefix_blocks);
    if (x->is_salted) scope.tenant = x->tenant;
    if (n_max > x->chain_cap) {
        uint64_t *chain = /* followed by the guesses */
            mem_try_realloc(x->chain,
                            n_max * sizeof(*chain) + (n_max + 1) * sizeof(*x->rq.guesses));

        if (!chain) return error_set(err, ST_NOMEM, "out of memory for a prompt's hash chain");
        x->chain = chain;
        x->chain_cap = n_max;
    }
    if (n_max)
        prompt_hash_text(&prompt,
                         prompt_hash_seed_memo(&x->proxy->seed, &scope, config->hash_secret),
                         config->prefix_block_bytes, x->chain, n_max, &hashed);
    x->system_bytes = hashed.n_system;
    x->rq = (struct route_request){
        .chain = x->chain,
        .guesses = (uint32_t *)(x->chain + x->chain_cap),
        .n_blocks = hashed.n_blocks,
        .prompt_bytes = hashed.n_bytes,
        .max_output_tokens = x->scan.max_output_tokens,
        .session_key = session.len ? hash_64(session.ptr, session.len, config->hash_secret) : 0,
        .is_light = x->is_light,
    };
    if (x->api == API_RESPONSES) find_stored(x);
    return ST_OK;
}

static struct exchange *exchange_open(struct proxy *p) {
    struct list *link = list_pop_front(&p->idle);
    struct exchange *x;

    if (link) {
        p->n_idle--;
        x = LIST_ENTRY(link, struct exchange, link);
    } else {
        x = mem_try_zalloc(sizeof(*x));
        if (!x) return NULL;
        x->proxy = p;
        buf_init(&x->out, 4 * HTTP_MAX_HEAD_BYTES);
        loop_timer_init(&x->timeout, p->loop, on_timeout, x);
        loop_timer_init(&x->retry, p->loop, on_retry_timer, x);
        loop_timer_init(&x->try.prefill, p->loop, on_prefill_done, x);
        loop_task_init(&x->try.send, send_request, x);
        loop_task_init(&x->recycle, on_recycle, x);
        loop_timer_init(&x->queue_timer, p->loop, proxy_on_queue_timeout, x);
    }
    x->rq.n_blocks = x->why.n = 0;
    x->has_price = false;
    list_push_back(&p->open, &x->link);
    x->n_tried = x->n_lost = x->n_attempts = x->n_pauses = x->n_drained = 0;
    x->n_unreached = x->n_accused = 0;
    x->waited_us = x->retry_after_us = x->client_bytes = x->heard_bytes = 0;
    x->held_position = 0;
    x->is_requeued = false;
    x->max_lost = POISON_LOST;
    x->try.up = NULL;
    x->is_salted = x->is_refused = x->cuts_noise = x->try.is_retry = false;
    x->due.by_us = 0;
    x->is_late = x->wants_comments = x->has_early_head = x->is_amid_comment = x->is_route_due =
        false;
    x->tenant = STR_NULL;
    reset_attempt(&x->try, false);
    exchange_move(x, EXCHANGE_OPEN);
    p->n_open++;
    return x;
}

void proxy_start(struct proxy *p, struct http_request *req) {
    struct exchange *x = exchange_open(p);
    struct error err;
    enum status st;

    error_init(&err);
    if (!x) {
        refusals_note(p->config.refusals, REFUSAL_MEMORY, http_request_client(req),
                      loop_now_us(p->loop));
        error_set(&err, ST_NOMEM, "the router is out of memory: send the request again later");
        http_reply_error(req, ST_NOMEM, &err);
        return;
    }
    x->req = req;
    x->start_us = x->heard_us = loop_now_us(p->loop);
    req->user = x;
    req->on_abort = on_client_abort;
    req->on_drain = proxy_on_client_drain;
    x->is_lookup = req->method != HTTP_POST;
    proxy_choose_request_id(x);
    loop_timer_start(&x->timeout, p->config.request_timeout_us);
    if (x->is_lookup) {
        proxy_look_up(x);
        return;
    }
    st = proxy_permit_call(x, &err);
    if (st == ST_OK) st = body_scan(req->body, &x->scan, &err);
    if (st != ST_OK) x->scan = (struct body_scan){0}; /* not that of an earlier request */
    if (st == ST_OK) st = proxy_permit_body(x, &err);
    if (st == ST_OK) proxy_choose_comments(x);
    if (st == ST_OK) st = proxy_read_deadline(x, &err);
    if (st == ST_OK && p->identifies_clients) st = proxy_admit(x, &err);
    if (st == ST_OK && proxy_is_poison(x)) {
        proxy_fail_poison(x, false);
        return;
    }
    if (st == ST_OK) st = hash_prompt(x, &err);
    if (st == ST_OK) proxy_mark(x);
    if (st == ST_OK) st = proxy_begin_turn(x, &err);
    if (st == ST_OK) st = proxy_route_or_queue(x, &err);
    if (st == ST_AGAIN) return; /* QUEUED */
    if (st != ST_OK) {
        proxy_count_failure(x, st);
        proxy_fail(x, st, &err);
        return;
    }
    proxy_attempt(x, false);
}

/* --- the proxy -------------------------------------------------------------------------------- */

struct proxy *proxy_create(struct loop *loop, struct registry *registry, struct metrics *metrics,
                           struct log *log, const struct proxy_config *config) {
    struct proxy *p = mem_zalloc(sizeof(*p));
    struct upstream_pool_config pool = {
        .max_workers = config->max_workers,
        .max_idle_per_worker = 256,
        .idle_timeout_us = config->upstream_idle_us,
        .connect_timeout_us = config->connect_timeout_us,
        .tls = config->worker_tls,
    };
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    p->loop = loop;
    p->registry = registry;
    p->metrics = metrics;
    p->log = log;
    p->pool = upstream_pool_create(loop, &pool);
    notices_init(&p->notices, loop, p->pool);
    rng_seed(&p->rng, seed);
    list_init(&p->idle);
    list_init(&p->open);
    p->next_load_us = mem_calloc(config->max_workers, sizeof(*p->next_load_us));
    loop_timer_init(&p->sweep, loop, proxy_on_sweep, p);
    loop_timer_init(&p->walk, loop, proxy_on_walk, p);
    proxy_configure(p, config);
    p->identifies_clients =
        keys_are_needed(config->keys) || config->isolation || config->tenant_header;
    proxy_prepare_reports(p);
    return p;
}

void proxy_configure(struct proxy *p, const struct proxy_config *config) {
    p->config = *config;
    p->config.max_attempts = MIN(config->max_attempts, MAX_ATTEMPTS);
    upstream_pool_set_connect_timeout(p->pool, config->connect_timeout_us);
    proxy_watch_configure(p);
    proxy_queue_configure(p);
}

void proxy_destroy(struct proxy *p) {
    struct list *link;

    if (!p) return;
    proxy_queue_fini(p);
    notices_fini(&p->notices);
    while ((link = list_pop_front(&p->idle)) != NULL) {
        exchange_free(LIST_ENTRY(link, struct exchange, link));
    }
    loop_timer_fini(&p->sweep);
    loop_timer_fini(&p->walk);
    upstream_pool_destroy(p->pool);
    mem_free(p->candidates);
    buf_fini(&p->line);
    mem_free(p->next_load_us);
    mem_free(p);
}
