/* tests/unit/common/net/test_timer_wheel.c - the wheel against an array of due times. No clock. */
#include <string.h>

#include "common/base/rng.h"
#include "common/net/timer_wheel.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_TIMERS 300

struct model {
    struct timer_wheel wheel;
    struct timer_wheel_entry timers[N_TIMERS];
    uint64_t due_tick[N_TIMERS]; /* 0: not running */
    uint64_t now_us;
};

static void start(struct model *m, uint64_t now_us) {
    memset(m, 0, sizeof(*m));
    m->now_us = now_us;
    timer_wheel_init(&m->wheel, now_us);
}

static void start_timer(struct model *m, size_t i, uint64_t due_us) {
    uint64_t tick = CEIL_DIV(due_us, TIMER_WHEEL_TICK_US);

    timer_wheel_start(&m->wheel, &m->timers[i], due_us);
    m->due_tick[i] = MAX(tick, m->now_us / TIMER_WHEEL_TICK_US + 1);
}

static uint64_t earliest_tick(const struct model *m) {
    uint64_t first = TIMER_WHEEL_NEVER;

    for (size_t i = 0; i < N_TIMERS; i++)
        if (m->due_tick[i]) first = MIN(first, m->due_tick[i]);
    return first;
}

/* Pops all that is due at m->now_us: exactly those of the model, in the order of their ticks. */
static void pop_all(struct model *m) {
    uint64_t last_tick = 0, now_tick = m->now_us / TIMER_WHEEL_TICK_US;
    struct timer_wheel_entry *e;

    while ((e = timer_wheel_pop(&m->wheel, m->now_us))) {
        size_t i = (size_t)(e - m->timers);

        assert_true(m->due_tick[i] != 0 && m->due_tick[i] <= now_tick);
        assert_true(m->due_tick[i] >= last_tick);
        last_tick = m->due_tick[i];
        m->due_tick[i] = 0;
    }
    assert_true(earliest_tick(m) > now_tick);
}

static void a_wheel_without_timers_has_no_deadline(void **state) {
    struct timer_wheel_entry e = {0};
    struct timer_wheel wheel;

    (void)state;
    timer_wheel_init(&wheel, 123456789);
    assert_true(timer_wheel_next_us(&wheel) == TIMER_WHEEL_NEVER);
    assert_null(timer_wheel_pop(&wheel, 999999999));
    timer_wheel_stop(&e); /* nothing happens */
    timer_wheel_start(&wheel, &e, 2000000000);
    timer_wheel_stop(&e);
    assert_true(timer_wheel_next_us(&wheel) == TIMER_WHEEL_NEVER);
    timer_wheel_check(&wheel);
}

static void a_timer_is_never_early_and_late_by_less_than_a_tick(void **state) {
    (void)state;
    for (uint64_t after_us = 1; after_us < UINT64_C(1) << 50; after_us = after_us * 3 + 1) {
        static struct model m;

        start(&m, 987654321);
        start_timer(&m, 0, m.now_us + after_us);
        assert_null(timer_wheel_pop(&m.wheel, m.now_us + after_us - 1));
        assert_ptr_equal(timer_wheel_pop(&m.wheel, m.now_us + after_us + TIMER_WHEEL_TICK_US - 1),
                         &m.timers[0]);
    }
}

/* A sleeper that wakes at the wheel's deadline wakes for a lone timer just when it is due, and for
 * one of many once per row at most. */
static void no_sleeper_wakes_early(void **state) {
    static struct model m;

    (void)state;
    for (uint64_t after_us = 1000; after_us < UINT64_C(1) << 50; after_us *= 7) {
        for (size_t n = 1; n <= 8; n *= 8) {
            int n_wakes = 0;

            start(&m, 1234567890123);
            for (size_t i = 0; i < n; i++)
                start_timer(&m, i, m.now_us + after_us);
            while (m.due_tick[0]) {
                uint64_t next_us = timer_wheel_next_us(&m.wheel);

                assert_true(next_us > m.now_us && next_us <= m.due_tick[0] * TIMER_WHEEL_TICK_US);
                m.now_us = next_us;
                pop_all(&m);
                n_wakes++;
            }
            assert_true(n_wakes <= (n == 1 ? 1 : TIMER_WHEEL_LEVELS));
        }
    }
}

static void an_overdue_timer_fires_at_the_next_tick(void **state) {
    static struct model m;

    (void)state;
    start(&m, 5000000);
    start_timer(&m, 0, 0);
    assert_null(timer_wheel_pop(&m.wheel, m.now_us)); /* one that restarts itself ends a pass */
    assert_ptr_equal(timer_wheel_pop(&m.wheel, m.now_us + TIMER_WHEEL_TICK_US), &m.timers[0]);
    assert_null(timer_wheel_pop(&m.wheel, 1)); /* time does not go back */
    timer_wheel_check(&m.wheel);
}

static void due_ones_may_be_stopped_and_started_between_pops(void **state) {
    static struct model m;

    (void)state;
    start(&m, 5000000);
    for (size_t i = 0; i < 3; i++)
        start_timer(&m, i, 5010000);
    assert_ptr_equal(timer_wheel_pop(&m.wheel, 5020000), &m.timers[0]);
    assert_true(timer_wheel_next_us(&m.wheel) <= 5020000);
    timer_wheel_stop(&m.timers[1]);
    timer_wheel_start(&m.wheel, &m.timers[0], 5015000); /* due as well by now */
    timer_wheel_check(&m.wheel);
    assert_ptr_equal(timer_wheel_pop(&m.wheel, 5020000), &m.timers[2]);
    assert_ptr_equal(timer_wheel_pop(&m.wheel, 5020000), &m.timers[0]);
    assert_null(timer_wheel_pop(&m.wheel, 5020000));
}

/* Of all magnitudes, so that most rows are used, and below what the steps can add up to. */
static uint64_t some_us(struct rng *rng) {
    return rng_u64(rng) >> (64 - 1 - rng_below(rng, 40));
}

static void random_steps_agree_with_a_list_of_due_times(void **state) {
    static struct model m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&m, some_us(&rng));
    for (int step = 0; step < 40000; step++) {
        size_t i = (size_t)rng_below(&rng, N_TIMERS);
        uint64_t us = some_us(&rng), next_us, first = earliest_tick(&m);

        switch (rng_below(&rng, 8)) {
        case 0:
        case 1:
        case 2: start_timer(&m, i, m.now_us + us); break;
        case 3: start_timer(&m, i, m.now_us - MIN(m.now_us, us)); break;
        case 4:
            timer_wheel_stop(&m.timers[i]);
            m.due_tick[i] = 0;
            break;
        case 5:
            m.now_us += us >> rng_below(&rng, 30);
            pop_all(&m);
            break;
        default:
            next_us = timer_wheel_next_us(&m.wheel);
            assert_int_equal(next_us == TIMER_WHEEL_NEVER, first == TIMER_WHEEL_NEVER);
            if (first == TIMER_WHEEL_NEVER) break;
            assert_true(next_us > m.now_us && next_us <= first * TIMER_WHEEL_TICK_US);
            m.now_us = next_us;
            pop_all(&m);
        }
        if (step % 16 == 0) timer_wheel_check(&m.wheel);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wheel_without_timers_has_no_deadline),
        cmocka_unit_test(a_timer_is_never_early_and_late_by_less_than_a_tick),
        cmocka_unit_test(no_sleeper_wakes_early),
        cmocka_unit_test(an_overdue_timer_fires_at_the_next_tick),
        cmocka_unit_test(due_ones_may_be_stopped_and_started_between_pops),
        cmocka_unit_test(random_steps_agree_with_a_list_of_due_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
