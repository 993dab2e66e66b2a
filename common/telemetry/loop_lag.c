/* common/telemetry/loop_lag.c - a timer that looks at how late it is. */
#include "common/telemetry/loop_lag.h"

#include "common/telemetry/metrics.h"

#define PERIOD_US 100000u

static void on_ring(void *arg) {
    struct loop_lag *h = arg;
    uint64_t now_us = loop_now_us(h->timer.loop);

    if (h->due_us) metric_observe(h->lag, (double)(now_us - MIN(h->due_us, now_us)) * 1e-6);
    metric_observe(h->turn, (double)loop_longest_turn_us(h->timer.loop) * 1e-6);
    h->due_us = now_us + PERIOD_US;
    loop_timer_start(&h->timer, PERIOD_US);
}

void loop_lag_start(struct loop_lag *h, struct loop *loop, struct metric *lag,
                    struct metric *turn) {
    *h = (struct loop_lag){.lag = lag, .turn = turn};
    loop_timer_init(&h->timer, loop, on_ring, h);
    loop_timer_start(&h->timer, 0);
}

void loop_lag_stop(struct loop_lag *h) {
    loop_timer_fini(&h->timer);
}
