/* router/proxy/proxy_watch.c - exchanges whose worker has stopped sending.
 *
 * Nothing is measured per request: a timer walks the list of open exchanges some times a second and
 * compares:
 *
 *      no first byte of a body for --first-byte-timeout      retried like any other failure
 *      no further byte for --stream-idle-timeout      ended: a stream with an error event
 *      no further byte, and its worker was found hung      ended after a tenth of that time
 *      a stream without a byte for --sse-keepalive-s       a comment, see proxy_comments.c
 *
 * The timeout is long because a healthy engine may hold a stream up: it preempts, or computes long
 * prompts of others first. A hung worker does not answer its probes either; answering them, or a
 * byte of the stream, ends the suspicion.
 *
 * When probes find a worker hung (health.h), the control loop calls proxy_worker_hung: exchanges
 * that wait for that worker and whose clients have nothing move to other workers at once. They cost
 * no retry budget, since the hung worker does not do their work. If no other worker can take one,
 * it stays. */
#include "router/proxy/proxy_internal.h"

#define SWEEP_US     250000u /* or a quarter of a short timeout */
#define SWEEP_MIN_US 10000u
#define HUNG_DIVISOR 10 /* a hung worker gets this fraction of --stream-idle-timeout */

/* Of the body: a head alone proves nothing. */
static bool waits_for_first_byte(const struct exchange *x) {
    return exchange_is_in(x, EXCHANGE_TICKET & ~EXCHANGE_SENT);
}

/* Its worker was found hung, and has sent nothing since. */
static bool is_hung(const struct exchange *x) {
    return x->try.hung_us && x->try.hung_bytes == x->try.sent_bytes;
}

static uint64_t since_us(uint64_t then_us, uint64_t now_us) {
    return now_us > then_us ? now_us - then_us : 0;
}

static bool is_idle_answer(struct exchange *x, uint64_t now_us) {
    uint64_t usual_us = x->proxy->config.stream_idle_timeout_us;

    if (!exchange_is_in(x, EXCHANGE_SENT)) return false;
    if (conn_is_paused(&x->try.up->conn) || x->try.seen_bytes != x->try.sent_bytes ||
        !x->try.seen_us) {
        x->try.seen_bytes = x->try.sent_bytes;
        x->try.seen_us = now_us;
        return false;
    }
    return now_us - x->try.seen_us >= usual_us ||
           (is_hung(x) &&
            since_us(MAX(x->try.seen_us, x->try.hung_us), now_us) >= usual_us / HUNG_DIVISOR);
}

static void check_timeouts(struct exchange *x, uint64_t now_us) {
    const struct proxy_config *config = &x->proxy->config;

    /* rq.now_us may be of another loop, which granted the slot and whose clock is ahead. */
    if (config->first_byte_timeout_us && waits_for_first_byte(x) &&
        since_us(x->rq.now_us, now_us) >= config->first_byte_timeout_us) {
        if (proxy_awaits_leg(x)) {
            proxy_leg_failed(x, "first_byte_timeout", OUTCOME_FAILED);
            return;
        }
        proxy_attempt_failed(x, "first_byte_timeout", RETRY_TIMEOUT, false, OUTCOME_FAILED);
    } else if (config->stream_idle_timeout_us && is_idle_answer(x, now_us)) {
        proxy_break_off(x, BROKEN_IDLE);
    }
}

/* A check may end its own exchange, which leaves the list, and no other. */
void proxy_on_sweep(void *arg) {
    struct proxy *p = arg;
    uint64_t now_us = loop_now_us(p->loop);

    LIST_FOR_EACH(it, &p->open) {
        struct exchange *x = LIST_ENTRY(it, struct exchange, link);

        if (p->config.keepalive_us) proxy_keep_alive(x, now_us);
        check_timeouts(x, now_us);
    }
    loop_timer_start(&p->sweep, p->sweep_us);
}

static uint64_t sweep_for(uint64_t timeout_us, uint64_t sweep_us) {
    return timeout_us ? MIN(sweep_us, MAX(timeout_us / 4, SWEEP_MIN_US)) : sweep_us;
}

void proxy_watch_configure(struct proxy *p) {
    uint64_t first_us = p->config.first_byte_timeout_us, idle_us = p->config.stream_idle_timeout_us;
    uint64_t keep_us = p->config.keepalive_us;

    p->sweep_us = sweep_for(first_us, sweep_for(idle_us, sweep_for(keep_us, SWEEP_US)));
    if (first_us || idle_us || keep_us) {
        loop_timer_start(&p->sweep, p->sweep_us);
    } else {
        loop_timer_stop(&p->sweep);
    }
}

void proxy_end_all(struct proxy *p) {
    LIST_FOR_EACH(it, &p->open) {
        struct exchange *x = LIST_ENTRY(it, struct exchange, link);

        if (exchange_is_in(x, EXCHANGE_SENT)) {
            proxy_break_off(x, BROKEN_SHUTDOWN);
        } else {
            PROXY_FAIL(x, ST_UNAVAILABLE, "the router is shutting down: send the request again");
        }
    }
}

static bool is_with(const struct exchange *x, uint32_t worker, uint32_t incarnation) {
    return exchange_is_in(x, EXCHANGE_TICKET) && x->try.target.worker == worker &&
           x->try.target.incarnation == incarnation;
}

void proxy_worker_hung(struct proxy *p, uint32_t worker, uint32_t incarnation) {
    LIST_FOR_EACH(it, &p->open) {
        struct exchange *x = LIST_ENTRY(it, struct exchange, link);

        if (proxy_has_leg_at(x, worker, incarnation)) {
            proxy_leg_failed(x, "worker_hung", OUTCOME_UNKNOWN);
            continue;
        }
        if (!is_with(x, worker, incarnation)) continue;
        if (!exchange_is_in(x, EXCHANGE_SENT)) {
            proxy_leave_hung(x);
        } else if (!is_hung(x)) {
            x->try.hung_us = loop_now_us(p->loop);
            x->try.hung_bytes = x->try.sent_bytes;
        }
    }
}

void proxy_worker_answers(struct proxy *p, uint32_t worker, uint32_t incarnation) {
    LIST_FOR_EACH(it, &p->open) {
        struct exchange *x = LIST_ENTRY(it, struct exchange, link);

        if (is_with(x, worker, incarnation)) x->try.hung_us = 0;
    }
}
