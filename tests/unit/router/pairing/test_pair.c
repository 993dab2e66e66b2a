/* tests/unit/router/pairing/test_pair.c - when a prompt is computed apart; what a fetch takes. */
#include "router/pairing/pair.h"
#include "tests/support/cm.h"

#define SECOND UINT64_C(1000000)

static void an_idle_worker_keeps_its_prompts(void **state) {
    struct pair_price p = {.work_d_s = 3, .work_p_s = 3, .fetch_s = 0.2, .delta = 0.9};
    (void)state;

    assert_false(pair_pays(&p));
    p.decodes = 1; /* one sequence is held up for 2.7 s */
    assert_true(pair_pays(&p));
    p.delta = 0; /* it is not */
    assert_false(pair_pays(&p));
    p.wait_d_s = 1;
    assert_true(pair_pays(&p));
    p.wait_p_s = 1;
    assert_false(pair_pays(&p));
}

static void a_slow_fetch_is_never_chosen(void **state) {
    struct pair_price p = {.wait_d_s = 100, .work_d_s = 2, .work_p_s = 0, .fetch_s = 1};
    (void)state;

    assert_false(pair_pays(&p));
    p.fetch_s = 0.99;
    assert_true(pair_pays(&p));
}

static void a_fetch_is_a_line_that_is_learned_and_forgotten(void **state) {
    struct pair_fetch f = {0};
    double first_s = pair_fetch_s(&f, 8000, 0);
    (void)state;

    assert_float_equal(pair_fetch_s(&f, 0, 0), 0.020, 1e-9);
    assert_float_equal(pair_fetch_s(&f, 32768, 0), 0.220, 1e-9);
    for (int i = 0; i < 100; i++)
        pair_fetch_learn(&f, 1000.0 * (i % 10), 0.1 + 1e-3 * (i % 10), SECOND);
    assert_float_equal(pair_fetch_s(&f, 0, SECOND), 0.1, 0.01);
    for (int i = 0; i < 1000; i++)
        pair_fetch_learn(&f, 1000.0 * (i % 20), 0.5 + 0.1 * (i % 20), SECOND);
    assert_float_equal(pair_fetch_s(&f, 8000, SECOND), 1.3, 0.1);
    assert_float_equal(pair_fetch_s(&f, 8000, 3600 * SECOND), first_s, 0.01);
}

static void nonsense_is_not_learned(void **state) {
    struct pair_fetch f = {0};
    (void)state;

    pair_fetch_learn(&f, -1, 1, 0);
    pair_fetch_learn(&f, 1, -1, 0);
    pair_fetch_learn(&f, 0.0 / 0.0, 1, 0);
    assert_float_equal(f.n, 0, 0);
    for (int i = 0; i < 100; i++)
        pair_fetch_learn(&f, 1000.0 * i, 100.0 - i, 0); /* longer is quicker: no slope */
    assert_true(pair_fetch_s(&f, 1e6, 0) >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_worker_keeps_its_prompts),
        cmocka_unit_test(a_slow_fetch_is_never_chosen),
        cmocka_unit_test(a_fetch_is_a_line_that_is_learned_and_forgotten),
        cmocka_unit_test(nonsense_is_not_learned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
