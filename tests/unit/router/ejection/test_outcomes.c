/* tests/unit/router/ejection/test_outcomes.c - outliers among peers. */
#include "common/base/rng.h"
#include "router/ejection/outcomes.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static const struct outcomes_sum good_peers = {.n_good = 300}, no_peers = {0};

static void add(struct outcomes *o, const char *what, uint64_t now_us) {
    for (; *what; what++)
        outcomes_add(o, *what == '+', now_us);
}

static void three_bad_answers_in_a_row_stand_out(void **state) {
    struct outcomes o = {0};

    (void)state;
    add(&o, "++++++++++++++++++++--", 1);
    assert_false(outcomes_stand_out(&o, good_peers, 1));
    add(&o, "-", 1);
    assert_true(outcomes_stand_out(&o, good_peers, 1));
    assert_true(outcomes_stand_out(&o, no_peers, 1)); /* no peer failed too */
}

static void half_of_the_answers_stand_out(void **state) {
    struct outcomes o = {0};

    (void)state;
    add(&o, "+-+-", 1);
    assert_false(outcomes_stand_out(&o, good_peers, 1)); /* two are few */
    add(&o, "+-", 1);
    assert_true(outcomes_stand_out(&o, good_peers, 1));
    add(&o, "++", 1);
    assert_false(outcomes_stand_out(&o, good_peers, 1));
}

static void peers_that_fail_as_often_are_no_contrast(void **state) {
    struct outcomes o = {0};

    (void)state;
    add(&o, "----", 1);
    assert_false(outcomes_stand_out(&o, (struct outcomes_sum){.n_good = 3, .n_bad = 7}, 1));
    assert_true(outcomes_stand_out(&o, (struct outcomes_sum){.n_good = 7, .n_bad = 3}, 1));
}

static void pardoned_answers_do_not_count(void **state) {
    struct outcomes o = {0};

    (void)state;
    add(&o, "---", 1);
    outcomes_pardon(&o);
    assert_false(outcomes_stand_out(&o, good_peers, 1));
    for (int i = 0; i < 5; i++)
        outcomes_pardon(&o); /* never below nothing */
    assert_int_equal(outcomes_sum(&o, 1).n_bad, 0);
}

static void old_outcomes_are_forgotten(void **state) {
    struct outcomes o = {0};

    (void)state;
    add(&o, "+++-", OUTCOMES_HALF_US);
    assert_int_equal(outcomes_sum(&o, 2 * OUTCOMES_HALF_US).n_good, 3); /* in the half before */
    add(&o, "+", 2 * OUTCOMES_HALF_US);
    assert_int_equal(outcomes_sum(&o, 3 * OUTCOMES_HALF_US).n_good, 1);
    assert_int_equal(outcomes_sum(&o, 3 * OUTCOMES_HALF_US).n_bad, 0);
    assert_int_equal(outcomes_sum(&o, 9 * OUTCOMES_HALF_US).n_good, 0);
}

/* Against a list of what happened. */
static void random_answers_are_counted_right(void **state) {
    enum { N = 4000 };
    static struct {
        uint64_t at_us;
        bool is_good;
    } outcomes[N];
    struct outcomes o = {0};
    uint64_t now_us = 1, half_us = 0;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < N; i++) {
        struct outcomes_sum sum;
        uint32_t n_good = 0, n_bad = 0;

        now_us += rng_below(&rng, 300) == 0 ? 12000000 : rng_below(&rng, 40000);
        outcomes[i].at_us = now_us;
        outcomes[i].is_good = rng_below(&rng, 3) > 0;
        outcomes_add(&o, outcomes[i].is_good, now_us);
        if (o.began_us == now_us) half_us = now_us;
        sum = outcomes_sum(&o, now_us);
        for (int k = 0; k <= i; k++) { /* all of this half, and none older than two */
            if (outcomes[k].at_us < half_us) continue;
            n_good += outcomes[k].is_good;
            n_bad += !outcomes[k].is_good;
        }
        assert_true(sum.n_good >= n_good && sum.n_bad >= n_bad);
        n_good = n_bad = 0;
        for (int k = 0; k <= i; k++) {
            if (now_us - outcomes[k].at_us > 3 * OUTCOMES_HALF_US) continue;
            n_good += outcomes[k].is_good;
            n_bad += !outcomes[k].is_good;
        }
        assert_true(sum.n_good <= n_good && sum.n_bad <= n_bad);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_bad_answers_in_a_row_stand_out),
        cmocka_unit_test(half_of_the_answers_stand_out),
        cmocka_unit_test(peers_that_fail_as_often_are_no_contrast),
        cmocka_unit_test(pardoned_answers_do_not_count),
        cmocka_unit_test(old_outcomes_are_forgotten),
        cmocka_unit_test(random_answers_are_counted_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
