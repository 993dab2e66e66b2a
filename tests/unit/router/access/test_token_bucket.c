/* tests/unit/router/access/test_token_bucket.c - rates, bursts, debts, and clocks that go
 * backwards. */
#include "common/base/rng.h"
#include "router/access/token_bucket.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static bool take(struct token_bucket *b, double rate, double burst, double amount, uint64_t us) {
    if (token_bucket_wait_us(b, rate, burst, amount, us)) return false;
    token_bucket_take(b, amount);
    return true;
}

static void it_begins_full_and_fills_at_its_rate(void **state) {
    struct token_bucket b = {0};

    (void)state;
    for (int i = 0; i < 5; i++)
        assert_true(take(&b, 10, 5, 1, 7));
    assert_int_equal(token_bucket_wait_us(&b, 10, 5, 1, 7), 100000);
    assert_int_equal(token_bucket_wait_us(&b, 10, 5, 1, 7 + 60000), 40000);
    assert_true(take(&b, 10, 5, 1, 7 + 100000));
    assert_false(take(&b, 10, 5, 1, 7 + 100000));
}

static void a_request_above_the_burst_passes_a_full_bucket_and_leaves_debt(void **state) {
    struct token_bucket b = {0};

    (void)state;
    assert_true(take(&b, 100, 10, 60, 1));
    assert_int_equal(token_bucket_wait_us(&b, 100, 10, 1, 1), 510000); /* 51 are missing */
    assert_false(take(&b, 100, 10, 60, 1 + 599000));
    assert_true(take(&b, 100, 10, 60, 1 + 600000));
}

static void an_overcharge_is_refunded(void **state) {
    struct token_bucket b = {0};

    (void)state;
    assert_true(take(&b, 1, 10, 10, 1));
    token_bucket_take(&b, -4);
    assert_true(take(&b, 1, 10, 4, 1));
    assert_false(take(&b, 1, 10, 1, 1));
    token_bucket_take(&b, -1000); /* never more than full */
    assert_true(take(&b, 1, 10, 10, 1));
    assert_false(take(&b, 1, 10, 1, 1));
}

static void over_any_time_no_more_passes_than_the_rate_and_one_burst(void **state) {
    struct rng rng;
    struct token_bucket b = {0};
    double passed = 0, biggest = 0;
    uint64_t now_us = 1000000;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 100000; i++) {
        double amount = 1 + (double)(rng_u64(&rng) % 50);
        uint64_t seen_us = now_us - rng_u64(&rng) % 1000; /* loops differ by a turn */

        now_us += rng_u64(&rng) % 20000;
        if (take(&b, 100, 20, amount, seen_us)) {
            passed += amount;
            biggest = biggest > amount ? biggest : amount;
        }
        assert_true(passed <= 100 * (double)(now_us - 1000000) * 1e-6 + 20 + biggest + 0.5);
    }
    assert_true(passed > 0.9 * 100 * (double)(now_us - 1000000) * 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_begins_full_and_fills_at_its_rate),
        cmocka_unit_test(a_request_above_the_burst_passes_a_full_bucket_and_leaves_debt),
        cmocka_unit_test(an_overcharge_is_refunded),
        cmocka_unit_test(over_any_time_no_more_passes_than_the_rate_and_one_burst),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
