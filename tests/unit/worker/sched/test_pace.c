/* tests/unit/worker/sched/test_pace.c - what is learned of a device with known constants. */
#include <math.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/sched/pace.h"

#define CONTEXT 30000.0

static void work_grows_with_context(void **state) {
    struct pace p;

    (void)state;
    pace_init(&p, 1000, 0);
    assert_true(pace_work(&p, 50000, 50100) == 100);
    pace_init(&p, 1000, 1000);
    assert_true(fabs(pace_work(&p, 1000, 1001) - 2.0005) < 1e-9);
    for (uint32_t at = 0; at < 100000; at += 999)
        assert_true(fabs(pace_work(&p, 0, at) + pace_work(&p, at, 2 * at) -
                         pace_work(&p, 0, 2 * at)) < 1e-6 * (1 + pace_work(&p, 0, 2 * at)));
}

static void tokens_within_a_time_take_no_longer(void **state) {
    struct rng rng;
    struct pace p;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < 10000; i++) {
        uint32_t first = (uint32_t)rng_below(&rng, 200000), n;
        double seconds = rng_f64(&rng) * 2;

        pace_init(&p, 1 + (double)rng_below(&rng, 50000), i % 3 ? CONTEXT : 0);
        n = pace_tokens_within(&p, first, seconds);
        assert_true(pace_prefill_s(&p, first, first + n) <= seconds + 1e-9);
        assert_true(pace_prefill_s(&p, first, first + n + 1) >= seconds - 1e-9);
    }
    assert_int_equal(pace_tokens_within(&p, 0, -1), 0);
    assert_int_equal(pace_tokens_within(&p, 0, NAN), 0);
}

/* The device declares a rate that is three times its own: half a minute of work corrects it. */
static void a_wrong_declaration_is_corrected(void **state) {
    const double rate = 20000, base_s = 0.006, row_s = 20e-6;
    struct rng rng;
    struct pace p;

    (void)state;
    rng_seed(&rng, support_seed());
    pace_init(&p, 3 * rate, CONTEXT);
    assert_true(pace_rate(&p) == 3 * rate);
    for (double now_s = 0; now_s < 60;) {
        uint32_t rows = (uint32_t)rng_below(&rng, 100), first = (uint32_t)rng_below(&rng, 20000);
        uint32_t n = rng_below(&rng, 3) ? 0 : (uint32_t)rng_below(&rng, 4096);
        double work = pace_work(&p, first, first + n), s = base_s + row_s * rows + work / rate;

        pace_learn(&p, rows, work, s);
        now_s += s;
    }
    assert_true(fabs(pace_rate(&p) / rate - 1) < 0.08);
    assert_true(fabs(pace_base_s(&p, 64) - (base_s + row_s * 82)) < 0.001);
}

/* Three times slower from now on: within 15 % after 60 s. */
static void a_change_of_speed_is_followed(void **state) {
    struct pace p;

    (void)state;
    pace_init(&p, 20000, 0);
    for (uint32_t i = 0; i < 1000; i++)
        pace_learn(&p, 0, 2000, 0.1);
    assert_true(fabs(pace_rate(&p) / 20000 - 1) < 0.01);
    for (uint32_t i = 0; i < 200; i++)
        pace_learn(&p, 0, 2000, 0.3);
    assert_true(fabs(pace_rate(&p) / (20000 / 3.0) - 1) < 0.15);
}

static void nonsense_teaches_nothing(void **state) {
    struct pace p;

    (void)state;
    pace_init(&p, NAN, -5);
    assert_true(pace_rate(&p) == PACE_UNKNOWN && pace_base_s(&p, 3) == 0);
    pace_learn(&p, 3, 100, 0);
    pace_learn(&p, 3, 100, -1);
    pace_learn(&p, 3, 100, NAN);
    pace_learn(&p, 3, NAN, 1e-3);
    assert_true(pace_rate(&p) == PACE_UNKNOWN);
    pace_learn(&p, UINT32_MAX, 0, 0.5);
    assert_true(pace_base_s(&p, UINT32_MAX) == 0.5);
    pace_learn(&p, 0, 1000, 0.2); /* less than the base: the prompt takes a share all the same */
    assert_true(pace_rate(&p) > 0 && isfinite(pace_rate(&p)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_grows_with_context),
        cmocka_unit_test(tokens_within_a_time_take_no_longer),
        cmocka_unit_test(a_wrong_declaration_is_corrected),
        cmocka_unit_test(a_change_of_speed_is_followed),
        cmocka_unit_test(nonsense_teaches_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
