/* tests/unit/common/telemetry/test_loop_lag.c - a loop that is held up is seen to be late. */
#include "common/base/clock.h"
#include "common/telemetry/loop_lag.h"
#include "common/telemetry/metrics.h"
#include "tests/support/cm.h"

static const struct metric_def rows[] = {{METRIC_HISTOGRAM, "lag_seconds", "", "Lag."},
                                         {METRIC_HISTOGRAM, "turn_seconds", "", "Turn."}};

static void hold(void *arg) {
    uint64_t until_us = clock_now_us() + 30000;

    (void)arg;
    while (clock_now_us() < until_us)
        ;
}

static void the_longest_turn_is_seen_though_no_ring_is_late(void **state) {
    struct metrics *m = metrics_create(rows, 2);
    struct metric *turn = metric_part(m, metrics_at(m, 1));
    struct loop_lag beat;
    struct loop_task task;
    struct loop *loop;

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    loop_lag_start(&beat, loop, metric_part(m, metrics_at(m, 0)), turn);
    while (metric_count(turn) == 0)
        loop_turn(loop, 20000);
    loop_task_init(&task, hold, NULL);
    loop_defer(loop, &task);
    while (metric_count(turn) == 1)
        loop_turn(loop, 20000);
    assert_true(metric_value(turn) >= 0.03);
    loop_lag_stop(&beat);
    loop_destroy(loop);
    metrics_destroy(m);
}

static void a_loop_that_is_held_up_is_late(void **state) {
    struct metrics *m = metrics_create(rows, 2);
    struct metric *lag = metric_part(m, metrics_at(m, 0));
    struct loop_lag beat = {0};
    struct loop *loop;
    uint64_t until_us;

    (void)state;
    loop_lag_stop(&beat); /* a zeroed one is fine */
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    loop_lag_start(&beat, loop, lag, metric_part(m, metrics_at(m, 1)));
    while (metric_count(lag) == 0)
        loop_turn(loop, 20000);
    assert_true(metric_value(lag) >= 0);
    until_us = clock_now_us() + 300000; /* as if a callback took so long */
    while (clock_now_us() < until_us)
        ;
    loop_turn(loop, 0);
    loop_turn(loop, 1000);
    assert_int_equal(metric_count(lag), 2);
    assert_true(metric_value(lag) >= 0.199);
    loop_lag_stop(&beat);
    loop_destroy(loop);
    metrics_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_that_is_held_up_is_late),
        cmocka_unit_test(the_longest_turn_is_seen_though_no_ring_is_late),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
