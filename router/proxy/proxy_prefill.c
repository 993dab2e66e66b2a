/* router/proxy/proxy_prefill.c - one worker computes a prompt, another decodes it: the first leg.
 *
 *      proxy_pair      may it be split, does it pay? ── opens the leg, parks the exchange's ticket
 *      send_leg        head and body to P
 *      on_leg_data     P's answer: kept in turn, drained at once
 *      leg_is_done     what it hands over becomes members of the second leg's body
 *      proxy_leg_failed  in turn, D computes the prompt itself; at once, both are left, and D may
 *                        get the plain request where it can compute the prompt
 *
 * P is judged as the worker of any attempt is; D is judged by its own leg. A leg that fails costs a
 * retry from the budget (the prompt is computed twice), and is never refused for want of one: D has
 * done nothing yet. The states are in leg.h. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/protocol/wire.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/proxy_internal.h"

#define LEG_INTERIM_MAX 16
/* A request that P refuses is mostly refused by D too, whose answer the client should have. */
#define LEG_GRACE_US 500000
/* Where D can compute the prompt itself, a leg may take that many times the predicted wait and
 * prefill, and that much more: P may be slower than what is known of it, or trickle its answer.
 * Then D computes the prompt, and P is not blamed. Other legs end with D's. */
#define LEG_TIMES   8
#define LEG_MORE_US UINT64_C(5000000)
#define LEG_MOST_S  3600.0

static const struct upstream_user leg_user;

bool proxy_awaits_leg(const struct exchange *x) {
    return x->leg && x->leg->is_open && !handover_is_required(x->leg->target.part.handover);
}

bool proxy_is_handed(const struct exchange *x) {
    return x->leg && x->leg->result == LEG_HANDED;
}

bool proxy_has_leg_at(const struct exchange *x, uint32_t worker, uint32_t incarnation) {
    return x->leg && x->leg->is_open && x->leg->target.worker == worker &&
           x->leg->target.incarnation == incarnation;
}

struct str proxy_leg_members(const struct exchange *x) {
    return proxy_is_handed(x) ? buf_str(&x->leg->members) : STR("");
}

const struct route_ticket *proxy_prefill_ticket(const struct exchange *x) {
    return proxy_is_handed(x) ? &x->leg->ticket : &x->try.ticket;
}

/* --- its end ---------------------------------------------------------------------------------- */

static struct route_feedback usage_of(const struct leg *leg) {
    struct route_feedback f = leg->feedback;

    if (f.prompt_tokens < 0) f.prompt_tokens = leg->usage.prompt_tokens;
    if (f.cached_tokens < 0) f.cached_tokens = leg->usage.cached_tokens;
    return registry_bound_usage(&leg->target, f);
}

int64_t proxy_leg_hits(const struct exchange *x) {
    return usage_of(x->leg).cached_tokens;
}

static void count_leg(struct exchange *x, const char *outcome) {
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_prefill_legs_total, outcome));
}

/* `is_computed`: P has the prompt. */
static void end_ticket(struct exchange *x, bool is_computed, enum registry_outcome outcome) {
    struct leg *leg = x->leg;
    uint64_t now_us = loop_now_us(x->proxy->loop);
    struct route_feedback feedback = usage_of(leg);
    struct route_end end = {
        .is_aborted = true, .output_tokens = 1, .feedback = {-1, -1}, .now_us = now_us};

    if (!leg->is_open) return;
    leg->is_open = false;
    loop_timer_stop(&leg->bound);
    if (is_computed)
        registry_first_token(x->proxy->registry, &leg->target, &leg->ticket, &feedback, now_us);
    registry_ended(x->proxy->registry, &leg->target, &leg->ticket, &end, outcome);
}

static void drop_connection(struct leg *leg) {
    loop_defer_cancel(&leg->send);
    loop_timer_stop(&leg->grace);
    upstream_discard(leg->up);
    leg->up = NULL;
}

/* The worker may not notice that its connection is gone. */
static void abort_at(struct exchange *x, const struct registry_target *target) {
    const struct handover_ops *ops = x->leg->ops;
    struct buf body;

    if (!ops->abort_path) return;
    buf_init(&body, 0);
    ops->abort_body(&x->leg->h, &body);
    if (buf_status(&body) == ST_OK)
        notices_send(&x->proxy->notices, target, ops->abort_path, x->proxy->config.worker_key,
                     buf_str(&body));
    buf_fini(&body);
}

/* P has computed the prompt, and D has not answered with it. */
static bool is_unused(const struct exchange *x) {
    const struct leg *leg = x->leg;
    bool is_used = exchange_is_in(x, EXCHANGE_SENT) && x->try.head.status_code < 400;

    return leg->result == LEG_HANDED && leg->handed_us && !is_used && leg->ops->holds_kv;
}

void proxy_drop_leg(struct exchange *x) {
    struct leg *leg = x->leg;
    bool is_answered = exchange_is_in(x, EXCHANGE_BIT(FINISHING));

    if (!leg) return;
    drop_connection(leg);
    if (is_unused(x)) metric_inc(metrics_at(x->proxy->metrics, ROUTER_prefill_unused_total));
    if (leg->is_open && is_answered) { /* D had the KV: P's answer is of no more use */
        end_ticket(x, true, OUTCOME_OK);
        count_leg(x, "handed");
    } else if (leg->is_open) {
        end_ticket(x, false, OUTCOME_UNKNOWN);
        count_leg(x, "aborted");
        abort_at(x, &leg->target);
    }
    leg->result = LEG_NONE;
}

void proxy_destroy_leg(struct exchange *x) {
    struct leg *leg = x->leg;

    if (!leg) return;
    proxy_drop_leg(x);
    loop_timer_fini(&leg->grace);
    loop_timer_fini(&leg->bound);
    buf_fini(&leg->first_members);
    buf_fini(&leg->out);
    buf_fini(&leg->answer);
    buf_fini(&leg->members);
    mem_free(leg);
    x->leg = NULL;
}

void proxy_leg_failed(struct exchange *x, const char *reason, enum registry_outcome outcome) {
    struct leg *leg = x->leg;

    drop_connection(leg);
    end_ticket(x, false, outcome);
    count_leg(x, "failed");
    log_event(x->proxy->log, LOG_WARN, "prefill_leg_failed", log_z("id", x->request_id),
              log_u64("worker", leg->target.worker), log_u64("decodes", x->try.target.worker),
              log_z("reason", reason));
    if (leg->ops->is_at_once) {
        if (exchange_is_in(x, EXCHANGE_SENT)) return; /* D has what it needed */
        abort_at(x, &x->try.target);
        proxy_pair_failed(x, "prefill_failed");
        return;
    }
    leg->result = LEG_FAILED;
    proxy_release_retry(x);
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_retries_total, "prefill_failed"));
    x->try.is_retry = true;
    x->proxy->n_retrying++;
    x->rq.now_us = loop_now_us(x->proxy->loop);
    registry_unpair(x->proxy->registry, &x->try.target, &x->try.ticket, x->rq.now_us);
    if (x->n_lost >= x->max_lost) {
        proxy_fail_poison(x, true);
    } else {
        proxy_attempt_goes_on(x, false);
    }
}

static void on_grace_over(void *arg) {
    proxy_leg_failed(arg, "refused_by_worker", OUTCOME_REFUSED);
}

static void on_bound(void *arg) {
    proxy_leg_failed(arg, "leg_timeout", OUTCOME_UNKNOWN);
}

void proxy_note_second_leg(struct exchange *x) {
    struct leg *leg = x->leg;
    const struct route_ticket *t = &x->try.ticket;

    if (!proxy_is_handed(x) || !leg->handed_us || x->try.form != ANSWER_SSE) return;
    registry_learn_fetch(
        x->proxy->registry, &x->try.target, MAX(t->prompt_tokens - t->cached_tokens, 0),
        (double)(x->try.first_token_us - leg->handed_us) * 1e-6, x->try.first_token_us);
}

/* --- its answer ------------------------------------------------------------------------------- */

static enum registry_outcome outcome_of_code(int code) {
    if (code >= 500 && code != 501 && code != 505) return OUTCOME_ERROR;
    return OUTCOME_REFUSED;
}

static const char *reason_of_code(int code) {
    uint32_t cause = retry_cause_of_status(code);

    return cause ? retry_name(cause) : "refused_by_worker";
}

/* What the second leg gets of it. */
static enum status hand_over(struct exchange *x, uint64_t now_us) {
    struct leg *leg = x->leg;
    struct route_feedback f = usage_of(leg);

    if (leg->ops->is_at_once) return ST_OK;
    if (leg->ops->second_members)
        return leg->ops->second_members(&leg->h, buf_str(&leg->answer), &leg->members);
    if (f.prompt_tokens <= 0 || f.cached_tokens < 0 ||
        !registry_hand_over(x->proxy->registry, &x->try.target, &x->try.ticket, &leg->target,
                            (uint32_t)f.prompt_tokens,
                            (uint32_t)(f.prompt_tokens - f.cached_tokens), now_us))
        return ST_NOT_FOUND;
    return ST_OK;
}

/* Its body is complete. */
static void leg_is_done(struct exchange *x) {
    struct leg *leg = x->leg;
    struct upstream *up = leg->up;
    uint64_t now_us = loop_now_us(x->proxy->loop);
    enum status st = hand_over(x, now_us);

    leg->up = NULL;
    if (leg->head.keep_alive && leg->head.framing != HTTP_CLOSE_BODY &&
        conn_pending(&up->conn) == 0) {
        upstream_release(up);
    } else {
        upstream_discard(up);
    }
    if (st != ST_OK) {
        proxy_leg_failed(x, "nothing_handed_over", OUTCOME_OK);
        return;
    }
    end_ticket(x, true, OUTCOME_OK);
    count_leg(x, "handed");
    metric_observe(METRICS_GET(x->proxy->metrics, ROUTER_prefill_leg_seconds),
                   (double)(now_us - leg->began_us) * 1e-6);
    leg->result = LEG_HANDED;
    if (!handover_is_required(leg->target.part.handover)) leg->handed_us = now_us;
    if (leg->ops->is_at_once) return;
    x->rq.now_us = now_us;
    proxy_attempt_goes_on(x, false);
}

/* False: it has failed. */
static bool take_head(struct exchange *x, const char *data) {
    struct leg *leg = x->leg;
    int code = leg->head.status_code;
    bool is_sse = str_starts(http_head_get(&leg->head, data, HTTP_NAME_CONTENT_TYPE),
                             STR("text/event-stream"));

    if (code >= 400 && code < 500 && leg->ops->is_at_once) {
        drop_connection(leg);
        loop_timer_start(&leg->grace, LEG_GRACE_US);
        return false;
    }
    if (code != 200) {
        proxy_leg_failed(x, reason_of_code(code), outcome_of_code(code));
        return false;
    }
    leg->has_head = true;
    leg->feedback.prompt_tokens = proxy_token_header(&leg->head, data, STR(WIRE_PROMPT_TOKENS));
    leg->feedback.cached_tokens = proxy_token_header(&leg->head, data, STR(WIRE_CACHED_TOKENS));
    sse_usage_init(&leg->usage, x->api, is_sse);
    http_body_init(&leg->parse, &leg->head, leg->ops->is_at_once ? 0 : LEG_ANSWER_MAX);
    conn_consume(&leg->up->conn, leg->head.head_len);
    return true;
}

/* False: not complete, or it has failed. */
static bool read_head(struct exchange *x) {
    struct leg *leg = x->leg;
    struct conn_bytes in = conn_input(&leg->up->conn);
    enum status st = http_head_parse(&leg->head, in.ptr, in.len, NULL);

    while (st == ST_OK && leg->head.status_code < 200) {
        if (leg->head.status_code == 101 || ++leg->n_interim > LEG_INTERIM_MAX) break;
        conn_consume(&leg->up->conn, leg->head.head_len);
        http_response_init(&leg->head, false);
        in = conn_input(&leg->up->conn);
        st = http_head_parse(&leg->head, in.ptr, in.len, NULL);
    }
    if (st == ST_AGAIN) return false;
    if (st != ST_OK || leg->head.status_code < 200) {
        proxy_leg_failed(x, "malformed", OUTCOME_FAILED);
        return false;
    }
    return take_head(x, in.ptr);
}

static void take_payload(struct leg *leg, struct str payload) {
    sse_usage_feed(&leg->usage, payload);
    if (!leg->ops->is_at_once) buf_append_str(&leg->answer, payload);
}

static void read_answer(struct exchange *x) {
    struct leg *leg = x->leg;
    struct conn_bytes in;
    struct str payload;
    size_t used;
    enum status st;

    if (leg->head.framing == HTTP_NO_BODY) {
        leg_is_done(x);
        return;
    }
    while ((in = conn_input(&leg->up->conn)).len > 0) {
        st = http_body_next(&leg->parse, in.ptr, in.len, &used, &payload, NULL);
        if (st != ST_OK && st != ST_AGAIN) {
            proxy_leg_failed(x, "malformed", OUTCOME_FAILED);
            return;
        }
        take_payload(leg, payload);
        conn_consume(&leg->up->conn, used);
        if (st == ST_OK) {
            leg_is_done(x);
            return;
        }
    }
}

/* --- its request ------------------------------------------------------------------------------ */

static void send_leg(void *arg) {
    struct exchange *x = arg;
    struct leg *leg = x->leg;
    struct iovec pieces[1 + PROXY_BODY_PIECES_MAX];
    int n;

    if (conn_is_connecting(&leg->up->conn)) return;
    pieces[0] = (struct iovec){buf_ptr(&leg->out), buf_len(&leg->out)};
    n = proxy_leg_body_pieces(x, pieces + 1);
    conn_sendv_lent(&leg->up->conn, pieces, n + 1);
}

static void on_leg_connected(void *arg) {
    struct exchange *x = arg;

    loop_defer_last(x->proxy->loop, &x->leg->send);
}

static enum status connect_leg(struct exchange *x, bool is_fresh) {
    struct leg *leg = x->leg;
    enum status st;

    leg->is_fresh = is_fresh;
    http_response_init(&leg->head, false);
    st = upstream_acquire(x->proxy->pool, &leg->target, is_fresh, &leg_user, x, &leg->up, NULL);
    if (st == ST_OK) loop_defer_last(x->proxy->loop, &leg->send);
    return st;
}

/* The connection was dead before the request was sent. */
static void send_leg_again(struct exchange *x) {
    drop_connection(x->leg);
    if (connect_leg(x, true) != ST_OK) proxy_leg_failed(x, "no_connection", OUTCOME_UNKNOWN);
}

static void on_leg_data(void *arg) {
    struct exchange *x = arg;

    if (loop_task_is_deferred(&x->leg->send)) { /* bytes before the request: no answer to it */
        send_leg_again(x);
    } else if (x->leg->has_head || read_head(x)) {
        read_answer(x);
    }
}

static void on_leg_closed(enum conn_end end, void *arg) {
    struct exchange *x = arg;
    struct leg *leg = x->leg;
    bool was_up = end != CONN_REFUSED && end != CONN_TIMED_OUT && end != CONN_TLS;

    if (leg->has_head && leg->head.framing == HTTP_CLOSE_BODY && end == CONN_EOF &&
        http_body_eof(&leg->parse, NULL) == ST_OK) {
        leg_is_done(x);
        return;
    }
    if (leg->up->is_reused && !leg->has_head && conn_input(&leg->up->conn).len == 0 &&
        !leg->is_fresh) { /* it had died idle */
        send_leg_again(x);
        return;
    }
    x->n_lost += was_up;
    proxy_leg_failed(x, conn_end_name(end), was_up ? OUTCOME_FAILED : OUTCOME_UNREACHED);
}

static const struct upstream_user leg_user = {
    .on_data = on_leg_data, .on_connected = on_leg_connected, .on_closed = on_leg_closed};

/* --- may it be split? ------------------------------------------------------------------------- */

static void count_choice(struct exchange *x, const char *choice) {
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_prefill_choices_total, choice));
}

/* The host of "host:port" or "[::1]:port". */
static struct str host_of(const struct registry_target *target) {
    struct str host = {target->authority, target->authority_len};

    while (host.len && host.ptr[host.len - 1] != ':')
        host.len--;
    if (host.len) host.len--;
    if (host.len > 2 && host.ptr[0] == '[') return (struct str){host.ptr + 1, host.len - 2};
    return host;
}

/* A leg without connection and ticket. False: no memory. */
static bool prepare_leg(struct exchange *x, const struct handover_ops *ops) {
    struct leg *leg = x->leg;

    if (!leg) {
        leg = mem_try_zalloc(sizeof(*leg));
        if (!leg) return false;
        buf_init(&leg->first_members, 0);
        buf_init(&leg->out, 0);
        buf_init(&leg->answer, LEG_ANSWER_MAX);
        buf_init(&leg->members, LEG_ANSWER_MAX + 1024);
        loop_task_init(&leg->send, send_leg, x);
        loop_timer_init(&leg->grace, x->proxy->loop, on_grace_over, x);
        loop_timer_init(&leg->bound, x->proxy->loop, on_bound, x);
        x->leg = leg;
    }
    leg->ops = ops;
    leg->result = LEG_NONE;
    leg->has_head = false;
    leg->handed_us = 0;
    leg->n_interim = 0;
    leg->ticket = (struct route_ticket){0};
    leg->feedback = (struct route_feedback){-1, -1};
    sse_usage_init(&leg->usage, x->api, false);
    return true;
}

/* What the legs carry beside the client's body. */
static void write_first(struct exchange *x) {
    struct leg *leg = x->leg;
    uint64_t secret[2]; /* not to be guessed from what clients see, as the proxy's rng is */
    char rank[48];      /* of several engines behind a port, the one that D will ask */
    const char *own = x->leg->ops->first_head;
    uint32_t n_engines = 0;

    buf_clear(&leg->first_members);
    buf_clear(&leg->answer);
    buf_clear(&leg->members);
    hash_random(secret, sizeof(secret));
    leg->h = (struct handover){.body = x->req->body,
                               .host = host_of(&leg->target),
                               .bootstrap_port = leg->target.part.bootstrap_port,
                               .room = secret[0] & INT64_MAX};
    snprintf(leg->h.rid, sizeof(leg->h.rid), "incipit-%016llx%016llx",
             (unsigned long long)leg->h.room, (unsigned long long)secret[1]);
    if (leg->ops->needs_engine &&
        registry_next_engine(x->proxy->registry, &leg->target, &leg->engine, &n_engines))
        leg->h.engine = str_of(leg->engine.id);
    if (n_engines > 1) {
        snprintf(rank, sizeof(rank), "x-data-parallel-rank: %u\r\n", leg->engine.rank);
        own = rank;
    }
    leg->n_cuts = 0;
    if (leg->ops->first_dropped)
        leg->n_cuts = handover_cuts(x->req->body, leg->ops->first_dropped, leg->cuts);
    if (leg->ops->first_members) leg->ops->first_members(&leg->h, &leg->first_members);
    proxy_build_head_for(x, &leg->target, proxy_leg_body_len(x), own, &leg->out);
    if (leg->ops->is_at_once && leg->ops->second_members(&leg->h, STR_NULL, &leg->members) == ST_OK)
        leg->result = LEG_HANDED;
}

static bool is_written(const struct leg *leg) {
    return buf_status(&leg->first_members) == ST_OK && buf_status(&leg->out) == ST_OK &&
           buf_status(&leg->members) == ST_OK;
}

static void bound_leg(struct exchange *x) {
    double s = LEG_TIMES * (x->pair.wait_p_s + x->pair.work_p_s);

    loop_timer_start(&x->leg->bound, LEG_MORE_US + (uint64_t)(MIN(s, LEG_MOST_S) * 1e6));
}

static enum status begin_leg(struct exchange *x, struct error *err) {
    struct leg *leg = x->leg;
    bool is_required = handover_is_required(leg->target.part.handover), has_both;
    enum status st = ST_NOMEM;

    leg->is_open = true;
    leg->began_us = x->rq.now_us;
    count_choice(x, "apart");
    if (!is_required) bound_leg(x);
    write_first(x);
    has_both = !leg->ops->is_at_once || leg->result == LEG_HANDED;
    if (has_both && is_written(leg)) st = connect_leg(x, false);
    if (st == ST_OK) return leg->ops->is_at_once ? ST_OK : ST_AGAIN;
    if (!is_required) {
        proxy_leg_failed(x, has_both ? "no_connection" : "engine_unknown", OUTCOME_UNKNOWN);
        return ST_AGAIN;
    }
    return error_set(err, ST_UNAVAILABLE,
                     "the router is out of memory or connections: send the request again later");
}

static enum status refuse_unfit(const struct exchange *x, struct error *err) {
    return error_set(err, ST_NOT_FOUND,
                     "POST %.*s is not served by workers that prefill and decode apart: use "
                     "/v1/chat/completions or /v1/completions",
                     (int)MIN(x->req->path.len, 100), x->req->path.ptr);
}

enum status proxy_pair(struct exchange *x, struct error *err) {
    const struct registry_target *d = &x->try.target;
    const struct handover_ops *ops = handover_ops_of(d->part.handover);
    bool is_required = handover_is_required(d->part.handover);
    enum status st;

    if (!ops || !d->may_pair || !x->is_generation || x->rq.is_continued) return ST_OK;
    if (!is_required && x->n_attempts > 1) return ST_OK; /* a retry is not made riskier */
    if ((ops->is_unsalted && x->is_salted) || !ops->fits(x->req->path, x->req->body)) {
        count_choice(x, "unfit");
        return is_required ? refuse_unfit(x, err) : ST_OK;
    }
    if (!prepare_leg(x, ops)) {
        return is_required ? error_set(err, ST_NOMEM, "out of memory for a request's first leg")
                           : ST_OK;
    }
    x->rq.now_us = loop_now_us(x->proxy->loop);
    st = registry_pair(x->proxy->registry, d, &x->rq, &x->try.ticket, &x->leg->ticket,
                       &x->leg->target, &x->pair);
    x->has_price = st == ST_OK || st == ST_AGAIN;
    if (st == ST_OK) return begin_leg(x, err);
    if (is_required) {
        error_set(err, ST_UNAVAILABLE,
                  "no worker that prefills can take the request now: send it again later");
        return ST_BUSY;
    }
    if (st == ST_AGAIN) count_choice(x, "together");
    return ST_OK;
}
