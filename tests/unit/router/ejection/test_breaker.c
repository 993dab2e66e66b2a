/* tests/unit/router/ejection/test_breaker.c - the states, their times, and random events against
 * the rules. */
#include "common/base/rng.h"
#include "router/ejection/breaker.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void break_it(struct breaker *b, enum breaker_cause cause, bool is_seen, uint64_t cost_us,
                     uint64_t now_us) {
    const struct breaker_failure failure = {
        .cause = cause, .is_seen = is_seen, .cost_us = cost_us, .min_us = 500000};

    breaker_failed(b, &failure, now_us);
}

static void seen_failure_opens_it_for_a_second(void **state) {
    struct breaker b = {0};

    (void)state;
    assert_true(breaker_admits(&b));
    break_it(&b, BREAKER_LOST, true, 0, 1000);
    assert_false(breaker_admits(&b));
    breaker_tick(&b, 1000 + BREAKER_MIN_US - 1);
    assert_false(breaker_admits(&b));
    breaker_tick(&b, 1000 + BREAKER_MIN_US);
    assert_int_equal(b.state, BREAKER_HALF_OPEN);
}

static void half_open_admits_one_at_a_time(void **state) {
    struct breaker b = {.state = BREAKER_HALF_OPEN, .n_seen = 1};

    (void)state;
    assert_true(breaker_admits(&b));
    breaker_sent(&b);
    assert_false(breaker_admits(&b));
    breaker_undecided(&b); /* its client left: the next one may try */
    assert_true(breaker_admits(&b));
    breaker_sent(&b);
    breaker_succeeded(&b);
    assert_int_equal(b.state, BREAKER_CLOSED);
    assert_int_equal(b.n_seen, 0);
}

static void the_pause_is_twenty_times_the_cost_of_an_unseen_failure(void **state) {
    static const uint64_t cost_us[] = {0, 20000, 100000, 2000000, 3000000, UINT64_MAX};
    static const uint64_t pause_us[] = {500000, 500000, 2000000, 40000000, 60000000, 60000000};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cost_us); i++) {
        struct breaker b = {0};

        for (int k = 0; k < 3; k++) { /* no longer each time: a mended worker is found soon */
            break_it(&b, BREAKER_ERRORS, false, cost_us[i], 7);
            assert_int_equal(b.until_us - 7, pause_us[i]);
            breaker_tick(&b, b.until_us);
            breaker_sent(&b);
        }
    }
}

static void an_answered_probe_closes_breakers_opened_by_probes(void **state) {
    static const struct {
        enum breaker_cause cause;
        bool was_away, is_closed;
    } cases[] = {{BREAKER_UNREACHED, false, true},
                 {BREAKER_LOST, false, false},
                 {BREAKER_LOST, true, true},
                 {BREAKER_ERRORS, true, false},
                 {BREAKER_EMPTY, true, false}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct breaker b = {0};

        assert_false(breaker_probed(&b, true)); /* it is closed already */
        break_it(&b, cases[i].cause, false, 0, 1);
        assert_int_equal(breaker_probed(&b, cases[i].was_away), cases[i].is_closed);
        assert_int_equal(breaker_admits(&b), cases[i].is_closed);
    }
}

static void the_pause_doubles_up_to_a_minute(void **state) {
    struct breaker b = {0};
    uint64_t now_us = 5, wanted_us = BREAKER_MIN_US;

    (void)state;
    for (int i = 0; i < 12; i++) {
        break_it(&b, BREAKER_LOST, true, 0, now_us);
        assert_int_equal(b.until_us - now_us, wanted_us);
        now_us = b.until_us;
        breaker_tick(&b, now_us);
        breaker_sent(&b);
        wanted_us = MIN(wanted_us * 2, BREAKER_MAX_US);
    }
    breaker_succeeded(&b);
    break_it(&b, BREAKER_LOST, true, 0, now_us);
    assert_int_equal(b.until_us - now_us, BREAKER_MIN_US);
}

static void those_that_were_under_way_are_one_event(void **state) {
    struct breaker b = {0};

    (void)state;
    for (int i = 0; i < 100; i++)
        break_it(&b, BREAKER_LOST, true, 0, 1000 + (uint64_t)i);
    assert_int_equal(b.n_seen, 1);
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
        switch (rng_below(&rng, 6)) {
        case 0:
            break_it(&b, (enum breaker_cause)rng_below(&rng, BREAKER_N_CAUSES), rng_below(&rng, 2),
                     rng_below(&rng, 5000000), now_us);
            break;
        case 1: breaker_succeeded(&b); break;
        case 2: breaker_undecided(&b); break;
        case 3:
            if (breaker_admits(&b)) breaker_sent(&b);
            break;
        case 4: breaker_probed(&b, rng_below(&rng, 2)); break;
        default: breaker_tick(&b, now_us); break;
        }
        if (b.state == BREAKER_OPEN) {
            assert_true(b.until_us <= now_us + BREAKER_MAX_US);
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
        cmocka_unit_test(seen_failure_opens_it_for_a_second),
        cmocka_unit_test(the_pause_is_twenty_times_the_cost_of_an_unseen_failure),
        cmocka_unit_test(an_answered_probe_closes_breakers_opened_by_probes),
        cmocka_unit_test(half_open_admits_one_at_a_time),
        cmocka_unit_test(the_pause_doubles_up_to_a_minute),
        cmocka_unit_test(those_that_were_under_way_are_one_event),
        cmocka_unit_test(random_events_never_lock_a_worker_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
