/* common/telemetry/heartbeat.c - a timer that looks at how late it is. */
#include "common/telemetry/heartbeat.h"

#include "common/telemetry/metrics.h"

#define PERIOD_US 100000u

static void on_ring(void *arg) {
    struct heartbeat *h = arg;
    uint64_t now_us = loop_now_us(h->timer.loop);

    if (h->due_us) metric_observe(h->lag, (double)(now_us - MIN(h->due_us, now_us)) * 1e-6);
    metric_observe(h->turn, (double)loop_longest_turn_us(h->timer.loop) * 1e-6);
    h->due_us = now_us + PERIOD_US;
    loop_timer_start(&h->timer, PERIOD_US);
}

void heartbeat_start(struct heartbeat *h, struct loop *loop, struct metric *lag,
                     struct metric *turn) {
    *h = (struct heartbeat){.lag = lag, .turn = turn};
    loop_timer_init(&h->timer, loop, on_ring, h);
    loop_timer_start(&h->timer, 0);
}

void heartbeat_stop(struct heartbeat *h) {
    loop_timer_fini(&h->timer);
}
