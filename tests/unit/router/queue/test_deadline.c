/* tests/unit/router/queue/test_deadline.c - who would be late, by the rule of deadline.h. */
#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/queue/deadline.h"
#include "tests/support/cm.h"

#define BAND    8
#define SECOND  UINT64_C(1000000)
#define N_MODEL 300

static struct deadline_claim claim_of(double work_s, double n_workers) {
    return (struct deadline_claim){
        .band = BAND, .work_s = work_s, .n_workers = n_workers, .fair = 1};
}

static double wait_s(const struct deadlines *d, double work_s, double n_workers) {
    struct deadline_claim c = claim_of(work_s, n_workers);

    return deadlines_wait_s(d, &c);
}

static void only_what_is_not_longer_counts_and_is_divided_by_capacity(void **state) {
    struct deadline_entry brief = {0}, mid = {0}, lengthy = {0};
    struct deadlines d;

    (void)state;
    deadlines_init(&d);
    deadlines_enter(&d, &brief, BAND, 1, 0);
    deadlines_enter(&d, &mid, BAND, 4, 0);
    deadlines_enter(&d, &lengthy, BAND, 30, 0);
    assert_true(wait_s(&d, 0.4, 2) == 0);
    assert_float_equal(wait_s(&d, 2.5, 2), 1 / (2 * DEADLINE_SHARE), 1e-9);
    assert_float_equal(wait_s(&d, 10, 2), 5 / (2 * DEADLINE_SHARE), 1e-9);
    assert_float_equal(wait_s(&d, 10, 20), 5 / (20 * DEADLINE_SHARE), 1e-9);
    deadlines_leave(&d, &brief);
    assert_float_equal(wait_s(&d, 10, 2), 4 / (2 * DEADLINE_SHARE), 1e-9);
    deadlines_leave(&d, &mid);
    deadlines_leave(&d, &lengthy);
    assert_true(wait_s(&d, 100, 2) == 0);
    deadlines_check(&d, 0);
}

static void earlier_bands_count_whole_and_later_ones_do_not(void **state) {
    struct deadline_entry first = {0}, last = {0};
    struct deadlines d;

    (void)state;
    deadlines_init(&d);
    deadlines_enter(&d, &first, BAND - 1, 50, 0);
    deadlines_enter(&d, &last, BAND + 1, 0.1, 0);
    assert_float_equal(wait_s(&d, 1, 1), 50 / DEADLINE_SHARE, 1e-9);
    deadlines_leave(&d, &first);
    assert_true(wait_s(&d, 1, 1) == 0);
    deadlines_leave(&d, &last);
}

/* What arrives and is shorter goes before it as well; what is longer does not. */
static void arrivals_prolong_the_wait_up_to_a_cap_and_are_forgotten(void **state) {
    double rate = DEADLINE_SHARE / 2, steady, now_s;
    struct deadline_entry waits = {0};
    struct deadlines d;

    (void)state;
    deadlines_init(&d);
    deadlines_enter(&d, &waits, BAND, 1, 0);
    for (now_s = 1; now_s < 600; now_s += 0.5)
        deadlines_arrived(&d, BAND, rate * 0.5, (uint64_t)(now_s * 1e6));
    steady = wait_s(&d, 5, 1);
    assert_float_equal(steady * DEADLINE_SHARE, 2, 0.1); /* rho is a half */
    assert_float_equal(wait_s(&d, 5, 100), 0.01 / DEADLINE_SHARE, 0.001);
    for (int i = 0; i < 100; i++)
        deadlines_arrived(&d, BAND, 3, (uint64_t)(now_s * 1e6));
    assert_float_equal(wait_s(&d, 5, 1) * DEADLINE_SHARE, 1 / (1 - DEADLINE_RHO_MAX), 1e-6);
    assert_true(wait_s(&d, 2, 1) < 1.1 * steady); /* those were longer than this one */
    deadlines_arrived(&d, BAND, 0.001, (uint64_t)((now_s + 10 * DEADLINE_HALF_LIFE_S) * 1e6));
    assert_float_equal(wait_s(&d, 5, 1) * DEADLINE_SHARE, 1, 0.02);
    deadlines_leave(&d, &waits);
}

static void turns_of_other_tenants_are_set_aside(void **state) {
    struct deadline_claim c = claim_of(10, 1);
    struct deadline_entry waits = {0};
    struct deadlines d;

    (void)state;
    deadlines_init(&d);
    deadlines_enter(&d, &waits, BAND, 8, 0);
    deadlines_arrived(&d, BAND, 8, SECOND);
    c.fair = 0.25;
    assert_true(deadlines_wait_s(&d, &c) < 0.26 * wait_s(&d, 10, 1));
    c.fair = 0;
    assert_true(deadlines_wait_s(&d, &c) == 0);
    deadlines_leave(&d, &waits);
}

static void the_share_is_learned_from_what_counts_alone(void **state) {
    struct deadlines d;

    (void)state;
    deadlines_init(&d);
    assert_float_equal(deadlines_share(&d), DEADLINE_SHARE, 1e-9);
    for (int i = 1; i <= 600; i++)
        deadlines_learn(&d, 0.5 * i, i, true);
    assert_float_equal(deadlines_share(&d), 0.5, 0.1);
    for (int i = 601; i <= 1200; i++)
        deadlines_learn(&d, 300, i, false); /* no request waited */
    assert_float_equal(deadlines_share(&d), 0.5, 0.1);
    for (int i = 1201; i <= 3000; i++)
        deadlines_learn(&d, 300, i, true); /* nothing is done at all */
    assert_true(deadlines_share(&d) > 0);
    deadlines_learn(&d, 0, 0, true); /* totals begin again */
    deadlines_learn(&d, 1e12, 0, true);
    assert_true(isfinite(deadlines_share(&d)));
    deadlines_check(&d, 0);
}

static void the_first_that_cannot_make_it_is_found_at_that_moment(void **state) {
    struct deadline_entry a = {0}, b = {0}, none = {0};
    struct deadlines d;

    (void)state;
    deadlines_init(&d);
    deadlines_enter(&d, &none, BAND, 100, 0);
    deadlines_enter(&d, &a, BAND, 2, 10 * SECOND); /* by 8 s */
    deadlines_enter(&d, &b, BAND, 5, 12 * SECOND); /* by 7 s */
    assert_null(deadlines_hopeless(&d, 7 * SECOND));
    assert_ptr_equal(deadlines_hopeless(&d, 7 * SECOND + 1), &b);
    deadlines_reprice(&d, &b, 1); /* more of it is cached by now: by 11 s */
    assert_null(deadlines_hopeless(&d, 8 * SECOND));
    assert_ptr_equal(deadlines_hopeless(&d, 9 * SECOND), &a);
    deadlines_leave(&d, &a);
    assert_ptr_equal(deadlines_hopeless(&d, 12 * SECOND), &b);
    deadlines_leave(&d, &b);
    assert_null(deadlines_hopeless(&d, UINT64_MAX));
    deadlines_leave(&d, &none);
}

/* --- beside a list that is searched whole ---------------------------------------------------- */

static void assert_as_the_list(const struct deadlines *d, const struct deadline_entry *all,
                               uint64_t now_us) {
    const struct deadline_entry *found = deadlines_hopeless(d, now_us);
    double least = INFINITY, waiting_s = 0;
    uint32_t n = 0;

    for (int i = 0; i < N_MODEL; i++) {
        const struct deadline_entry *e = &all[i];

        if (!e->is_waiting) continue;
        n++;
        waiting_s += e->work_s;
        if (e->by_us) least = fmin(least, (double)e->by_us - e->work_s * 1e6);
    }
    deadlines_check(d, n);
    assert_int_equal(found != NULL, least < (double)now_us);
    if (found) assert_float_equal((double)found->by_us - found->work_s * 1e6, least, 1);
    assert_float_equal(deadlines_wait_s(d, &(struct deadline_claim){.band = DEADLINE_BANDS - 1,
                                                                    .work_s = 1e9,
                                                                    .n_workers = 1,
                                                                    .fair = 1}) *
                           deadlines_share(d),
                       waiting_s, 1e-6 * (1 + waiting_s));
}

static void random_waiters_are_counted_as_a_list_counts_them(void **state) {
    struct deadline_entry all[N_MODEL] = {0};
    uint64_t now_us = SECOND;
    struct deadlines d;
    struct rng rng;

    (void)state;
    deadlines_init(&d);
    rng_seed(&rng, 5);
    for (int i = 0; i < 60000; i++) {
        struct deadline_entry *e = &all[rng_below(&rng, N_MODEL)];
        double work_s = exp2((double)rng_below(&rng, 30) - 12) * (1 + rng_f64(&rng));

        now_us += rng_below(&rng, 2000);
        if (!e->is_waiting) {
            deadlines_enter(&d, e, (uint32_t)rng_below(&rng, DEADLINE_BANDS - 1), work_s,
                            rng_below(&rng, 2) ? now_us + rng_below(&rng, 300 * SECOND) : 0);
        } else if (rng_below(&rng, 3)) {
            deadlines_reprice(&d, e, work_s);
        } else {
            deadlines_leave(&d, e);
        }
        if (i % 50 == 0) assert_as_the_list(&d, all, now_us);
    }
    for (int i = 0; i < N_MODEL; i++) {
        if (all[i].is_waiting) deadlines_leave(&d, &all[i]);
    }
    assert_as_the_list(&d, all, now_us);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_not_longer_counts_and_is_divided_by_capacity),
        cmocka_unit_test(earlier_bands_count_whole_and_later_ones_do_not),
        cmocka_unit_test(arrivals_prolong_the_wait_up_to_a_cap_and_are_forgotten),
        cmocka_unit_test(turns_of_other_tenants_are_set_aside),
        cmocka_unit_test(the_share_is_learned_from_what_counts_alone),
        cmocka_unit_test(the_first_that_cannot_make_it_is_found_at_that_moment),
        cmocka_unit_test(random_waiters_are_counted_as_a_list_counts_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
