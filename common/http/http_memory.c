/* common/http/http_memory.c - memory of unanswered requests, and their least speed.
 *
 * Input kept over a turn is paid from the budget (body_budget.h): a short one from this loop's
 * pool, a long one by a claim of its whole length.
 *
 *      body begins ──▶ claim its length ──granted──▶ read on ──▶ handler ──▶ answer ends: released
 *                          │ refused                    │
 *                          ▼                            ▼ others wait, and it is slow
 *                    wait, not reading ──too long──▶ 503, retry-after
 *
 * A waiting body is not read: its sender's window closes. A timer retries waiting claims in the
 * order of their arrival, because the memory may be released on another loop. While claims wait
 * anywhere, each server ends those of its bodies that arrive so slowly that others would wait for
 * long; otherwise only the progress rule applies: a minimum of bytes in each period of
 * body_grace_ms. */
#include "common/http/body_budget.h"
#include "common/http/http_server_internal.h"

#define LONG_BYTES IOBUF_LARGE_BYTES /* above, a body is a long one */
#define RETRY_US   10000u            /* claims that wait are tried again */
#define PULSE_US   250000u           /* bodies that come are looked at */
#define SAMPLE_US  1000000u          /* over which a pace is measured */
#define FINISH_S   30u               /* while others wait, a body has to be there in so long */
#define UNFINISHED_US                                                                              \
    1000000u                /* a short request that takes longer gives way to one that is there */
#define REQUEST_BYTES 1024u /* beside its bytes: what its buffer has in excess, its records */
#define RETRY_AFTER_S "1"

/* --- refusing --------------------------------------------------------------------------------- */

static void refuse(struct peer *p, enum http_refusal why) {
    uint64_t total = body_budget_stats(p->server->limits.budget).total_bytes;
    struct error err = {0};

    if (why == HTTP_BODY_SLOW) {
        error_set(&err, ST_UNAVAILABLE,
                  "the request arrived too slowly while other requests waited for memory: send it "
                  "faster, or retry later");
    } else {
        error_set(&err, ST_UNAVAILABLE,
                  "the bodies of open requests fill --max-body-memory of %llu bytes, or the half "
                  "of it that one client or key may use: retry later",
                  (unsigned long long)total);
    }
    http_add_header(&p->exchange->req, STR("retry-after"), STR(RETRY_AFTER_S));
    peer_refuse(p, 503, why, &err);
    conn_flush(&p->conn);
}

/* --- paying ----------------------------------------------------------------------------------- */

static void give_back_pooled(struct exchange *x) {
    if (x->pooled_bytes) body_pool_give(x->peer->server->pool, x->pooled_bytes);
    x->pooled_bytes = 0;
}

void memory_release(struct exchange *x) {
    struct http_server *server = x->peer->server;

    if (!server->pool) return;
    give_back_pooled(x);
    if (list_is_linked(&x->link)) {
        list_remove(&x->link);
        conn_resume(&x->peer->conn);
    }
    body_budget_release(server->limits.budget, &x->claim);
}

void memory_owner(struct exchange *x) {
    struct http_server *server = x->peer->server;

    if (server->pool) body_budget_set_key(server->limits.budget, &x->claim, x->req.owner);
}

static bool is_long(const struct exchange *x, size_t input_bytes) {
    size_t announced = x->head.framing == HTTP_LENGTH_BODY ? x->total_len : 0;

    return MAX(announced, input_bytes) > LONG_BYTES;
}

/* What a long body has to have claimed before more of it is read. Of unknown length: as much
 * again. */
static uint64_t claim_for(const struct exchange *x, size_t input_bytes, bool is_whole) {
    if (x->head.framing == HTTP_LENGTH_BODY) return x->total_len;
    if (is_whole || input_bytes + IOBUF_LARGE_BYTES <= x->claim.bytes)
        return MAX(x->claim.bytes, input_bytes);
    return MIN(2 * (uint64_t)input_bytes, x->body.limit + LONG_BYTES);
}

static void pulse_in(struct http_server *server, uint64_t us) {
    if (us == RETRY_US || !loop_timer_is_running(&server->pulse))
        loop_timer_start(&server->pulse, us);
}

static void begin_sample(struct exchange *x, uint64_t now_us) {
    x->sample_us = x->period_us = now_us;
    x->sample_bytes = x->period_bytes = x->came_bytes;
    x->pace = PACE_UNKNOWN;
}

void memory_begin(struct exchange *x) {
    begin_sample(x, loop_now_us(x->peer->server->loop));
}

/* Not read until its claim is granted. */
static bool put_off(struct peer *p, uint64_t bytes, enum body_verdict verdict) {
    struct http_server *server = p->server;
    struct exchange *x = p->exchange;

    if (!body_budget_wait(server->limits.budget, &x->claim, bytes, verdict)) return false;
    if (!list_is_linked(&x->link)) {
        list_push_back(&server->waiting, &x->link);
        x->wait_us = loop_now_us(server->loop);
        conn_pause(&p->conn);
        report_wait(server);
    }
    pulse_in(server, RETRY_US);
    return true;
}

static bool hold_long(struct peer *p, size_t input_bytes, bool is_whole) {
    struct exchange *x = p->exchange;
    uint64_t need = claim_for(x, input_bytes, is_whole), more = need - MIN(need, x->claim.bytes);
    enum body_verdict verdict;

    give_back_pooled(x);
    if (more == 0) return true;
    verdict = body_budget_take(p->server->limits.budget, &x->claim, more);
    if (verdict == BODY_GRANTED) {
        if (!is_whole) pulse_in(p->server, PULSE_US);
        return true;
    }
    if (!put_off(p, more, verdict)) refuse(p, HTTP_BODY_MEMORY);
    return false;
}

/* The one that has been coming for longest. */
static struct peer *oldest_unfinished(struct http_server *server, const struct peer *except,
                                      uint64_t age_us) {
    static const enum peer_state states[] = {PEER_HEAD, PEER_BODY};
    uint64_t now_us = loop_now_us(server->loop);
    struct peer *oldest = NULL;

    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        LIST_FOR_EACH(it, &server->peers[states[i]]) {
            struct peer *p = LIST_ENTRY(it, struct peer, link);

            if (now_us - p->since_us < age_us) break; /* as are all behind it */
            if (p == except || !p->exchange->pooled_bytes) continue;
            if (!oldest || p->since_us < oldest->since_us) oldest = p;
            break;
        }
    }
    return oldest;
}

static bool take_from_pool(struct peer *p, uint32_t bytes, uint64_t age_us) {
    struct http_server *server = p->server;
    struct peer *victim;

    while (!body_pool_take(server->pool, bytes)) {
        victim = oldest_unfinished(server, p, age_us);
        if (!victim) return false;
        refuse(victim, HTTP_BODY_SLOW);
    }
    p->exchange->pooled_bytes = bytes;
    return true;
}

static bool hold_short(struct peer *p, uint32_t bytes) {
    struct exchange *x = p->exchange;

    if (x->claim.bytes || bytes == x->pooled_bytes) return true;
    give_back_pooled(x);
    if (LIKELY(take_from_pool(p, bytes, UNFINISHED_US))) return true;
    if (body_budget_take(p->server->limits.budget, &x->claim, LONG_BYTES) == BODY_GRANTED)
        return true;
    if (take_from_pool(p, bytes, 0)) return true;
    refuse(p, HTTP_BODY_MEMORY);
    return false;
}

/* Part of a short request waits in a buffer for what was announced, or for as much again, not in
 * the large one that it was received in. Returns what that takes. */
static uint32_t settle(struct peer *p, size_t input_bytes) {
    const struct exchange *x = p->exchange;
    bool is_announced = x->head.framing == HTTP_LENGTH_BODY && x->total_len > input_bytes;

    conn_shrink_input(&p->conn, is_announced ? x->total_len - input_bytes : input_bytes);
    return (uint32_t)p->conn.in.cap;
}

bool memory_hold(struct peer *p, bool is_whole) {
    struct exchange *x = p->exchange;
    size_t n = conn_input(&p->conn).len;

    if (!p->server->pool || list_is_linked(&x->link)) return p->server->pool == NULL;
    if (UNLIKELY(is_long(x, is_whole ? x->total_len : n))) return hold_long(p, n, is_whole);
    return hold_short(p, (is_whole ? (uint32_t)n : settle(p, n)) + REQUEST_BYTES);
}

/* --- those that wait -------------------------------------------------------------------------- */

static void try_again(struct exchange *x, uint64_t now_us) {
    struct peer *p = x->peer;
    struct http_server *server = p->server;
    uint64_t bytes = x->claim.wanted_bytes;
    enum body_verdict verdict = body_budget_take(server->limits.budget, &x->claim, bytes);

    if (verdict == BODY_GRANTED) {
        list_remove(&x->link);
        begin_sample(x, now_us);
        conn_resume(&p->conn);
        peer_go_on(p);
    } else if (now_us - x->wait_us > (uint64_t)server->limits.body_wait_ms * 1000) {
        refuse(p, HTTP_BODY_MEMORY);
    } else {
        list_remove(&x->link);
        list_push_back(&server->waiting, &x->link);
        (void)body_budget_wait(server->limits.budget, &x->claim, bytes, verdict);
    }
}

/* --- those that come slowly ------------------------------------------------------------------- */

static void measure(struct exchange *x, uint64_t now_us) {
    uint64_t us = now_us - x->sample_us;

    if (us < SAMPLE_US) return;
    x->pace = (x->came_bytes - x->sample_bytes) * 1000000u / us;
    x->sample_us = now_us;
    x->sample_bytes = x->came_bytes;
}

/* At this pace the rest would take too long for waiting bodies. */
static bool is_slow(const struct exchange *x, uint64_t least_pace) {
    uint64_t rest = x->claim.bytes - MIN(x->came_bytes, x->claim.bytes);

    return x->pace != PACE_UNKNOWN && x->pace <= least_pace && x->pace * FINISH_S < rest;
}

/* Those that stand still first, then those that crawl; no more than what is waited for. */
static void end_slow(struct http_server *server, uint64_t now_us) {
    uint64_t freed = 0;

    for (int crawls = 0; crawls < 2; crawls++) {
        LIST_FOR_EACH(it, &server->peers[PEER_BODY]) {
            struct peer *p = LIST_ENTRY(it, struct peer, link);
            struct exchange *x = p->exchange;
            uint64_t held = x->claim.bytes;

            if (!held || list_is_linked(&x->link)) continue;
            measure(x, now_us);
            if (!body_budget_is_short(server->limits.budget) ||
                !is_slow(x, crawls ? UINT64_MAX : 0) ||
                body_budget_pressure(server->limits.budget, &x->claim) <= freed)
                continue;
            refuse(p, HTTP_BODY_SLOW);
            freed += held;
        }
    }
}

void memory_pulse(void *arg) {
    struct http_server *server = arg;
    uint64_t now_us = loop_now_us(server->loop);
    struct list waiting, *link;

    end_slow(server, now_us);
    list_init(&waiting);
    list_splice_back(&waiting, &server->waiting);
    while ((link = list_first(&waiting)))
        try_again(LIST_ENTRY(link, struct exchange, link), now_us);
    if (!list_is_empty(&server->waiting))
        pulse_in(server, RETRY_US);
    else if (!list_is_empty(&server->peers[PEER_BODY]))
        pulse_in(server, PULSE_US);
}

/* Too little has come in the period that has just ended. */
static bool is_overdue(struct exchange *x, uint64_t now_us) {
    const struct http_limits *l = &x->peer->server->limits;
    uint64_t us = now_us - x->period_us, came = x->came_bytes - x->period_bytes;

    if (list_is_linked(&x->link) || us <= (uint64_t)l->body_grace_ms * 1000) return false;
    if (came < us * l->body_min_bytes_per_s / 1000000u) return true;
    x->period_us = now_us;
    x->period_bytes = x->came_bytes;
    return false;
}

void memory_sweep(struct http_server *server) {
    uint64_t now_us = loop_now_us(server->loop);

    LIST_FOR_EACH(it, &server->peers[PEER_BODY]) {
        struct peer *p = LIST_ENTRY(it, struct peer, link);

        if (is_overdue(p->exchange, now_us)) peer_timed_out(p);
    }
}
