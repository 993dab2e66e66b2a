/* tests/unit/common/base/test_backoff.c - delays that grow, spread, and restart. */
#include "common/base/backoff.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void delays_double_up_to_their_limit_and_fill_their_range(void **state) {
    static const uint32_t most_ms[] = {500, 1000, 2000, 4000, 8000, 16000, 30000, 30000};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t n = 0; n < ARRAY_LEN(most_ms); n++) {
        uint32_t least = UINT32_MAX, most = 0;

        for (int i = 0; i < 400; i++) {
            struct backoff b = {.first_ms = 500, .max_ms = 30000, .n_failures = (uint32_t)n};
            uint32_t ms = backoff_next_ms(&b, &rng);

            assert_int_equal(b.n_failures, n + 1);
            assert_true(ms <= most_ms[n]);
            least = MIN(least, ms);
            most = MAX(most, ms);
        }
        assert_true(least < most_ms[n] / 8);
        assert_true(most > most_ms[n] / 8 * 7);
    }
}

static void any_number_of_failures_is_counted_safely(void **state) {
    struct backoff b = {.first_ms = UINT32_MAX, .max_ms = UINT32_MAX};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 1000; i++)
        (void)backoff_next_ms(&b, &rng);
    assert_int_equal(b.n_failures, 31);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delays_double_up_to_their_limit_and_fill_their_range),
        cmocka_unit_test(any_number_of_failures_is_counted_safely),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
