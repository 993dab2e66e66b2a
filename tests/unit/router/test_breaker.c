/* tests/unit/router/test_breaker.c - the states, their times, and random events against the rules. */
#include "tests/support/cm.h"

#include "common/rng.h"
#include "router/breaker.h"
#include "tests/support/support.h"

static void a_failure_opens_it_for_a_second(void **state) {
    struct breaker b = {0};

    (void)state;
    assert_true(breaker_admits(&b));
    breaker_failed(&b, 1000);
    assert_false(breaker_admits(&b));
    breaker_tick(&b, 1000 + BREAKER_MIN_US - 1);
    assert_false(breaker_admits(&b));
    breaker_tick(&b, 1000 + BREAKER_MIN_US);
    assert_int_equal(b.state, BREAKER_HALF_OPEN);
}

static void half_open_admits_one_at_a_time(void **state) {
    struct breaker b = {.state = BREAKER_HALF_OPEN, .n_failures = 1};

    (void)state;
    assert_true(breaker_admits(&b));
    breaker_sent(&b);
    assert_false(breaker_admits(&b));
    breaker_undecided(&b); /* its client left: the next one may try */
    assert_true(breaker_admits(&b));
    breaker_sent(&b);
    breaker_succeeded(&b);
    assert_int_equal(b.state, BREAKER_CLOSED);
    assert_int_equal(b.n_failures, 0);
}

static void the_pause_doubles_up_to_a_minute(void **state) {
    struct breaker b = {0};
    uint64_t now_us = 5, wanted_us = BREAKER_MIN_US;

    (void)state;
    for (int i = 0; i < 12; i++) {
        breaker_failed(&b, now_us);
        assert_int_equal(b.until_us - now_us, wanted_us);
        now_us = b.until_us;
        breaker_tick(&b, now_us);
        breaker_sent(&b);
        wanted_us = MIN(wanted_us * 2, BREAKER_MAX_US);
    }
    breaker_succeeded(&b);
    breaker_failed(&b, now_us);
    assert_int_equal(b.until_us - now_us, BREAKER_MIN_US);
}

static void those_that_were_under_way_are_one_event(void **state) {
    struct breaker b = {0};

    (void)state;
    for (int i = 0; i < 100; i++)
        breaker_failed(&b, 1000 + (uint64_t)i);
    assert_int_equal(b.n_failures, 1);
    assert_int_equal(b.until_us, 1000 + BREAKER_MIN_US);
    breaker_succeeded(&b); /* an answer from before the failure */
    assert_int_equal(b.state, BREAKER_OPEN);
}

static void random_events_never_lock_a_worker_out(void **state) {
    struct breaker b = {0};
    struct rng rng;
    uint64_t now_us = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 200000; i++) {
        now_us += rng_below(&rng, 500000);
        switch (rng_below(&rng, 5)) {
        case 0: breaker_failed(&b, now_us); break;
        case 1: breaker_succeeded(&b); break;
        case 2: breaker_undecided(&b); break;
        case 3:
            if (breaker_admits(&b)) breaker_sent(&b);
            break;
        default: breaker_tick(&b, now_us); break;
        }
        if (b.state == BREAKER_OPEN) {
            assert_true(b.n_failures > 0 && b.until_us <= now_us + BREAKER_MAX_US);
        }
        assert_int_equal(breaker_admits(&b),
                         b.state == BREAKER_CLOSED || b.state == BREAKER_HALF_OPEN);
    }
    breaker_tick(&b, now_us + BREAKER_MAX_US);
    breaker_undecided(&b);
    assert_true(breaker_admits(&b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_opens_it_for_a_second),
        cmocka_unit_test(half_open_admits_one_at_a_time),
        cmocka_unit_test(the_pause_doubles_up_to_a_minute),
        cmocka_unit_test(those_that_were_under_way_are_one_event),
        cmocka_unit_test(random_events_never_lock_a_worker_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
