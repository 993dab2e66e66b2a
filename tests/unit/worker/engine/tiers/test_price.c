/* tests/unit/worker/engine/tiers/test_price.c - what a load will take, learned from loads. */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/engine/tiers/price.h"

#define LATENCY_S 3e-3
#define RATE      200e6

static void learn(struct price *p, uint64_t n_bytes, double factor) {
    price_learn(p, n_bytes, LATENCY_S * factor, (double)n_bytes / RATE * factor);
}

static void before_any_load_it_is_a_guess(void **state) {
    struct price p;
    double sigma_s, s;

    (void)state;
    price_init(&p);
    s = price_expect_s(&p, 1 << 20, &sigma_s);
    assert_true(s > 0 && sigma_s == s);
}

static void it_is_learned_from_steady_loads(void **state) {
    struct price p;
    double sigma_s, s;

    (void)state;
    price_init(&p);
    for (uint32_t i = 0; i < 100; i++)
        learn(&p, (1 + i % 7) << 18, 1);
    s = price_expect_s(&p, 8 << 20, &sigma_s);
    assert_true(s > 0.99 * (LATENCY_S + (8 << 20) / RATE));
    assert_true(s < 1.01 * (LATENCY_S + (8 << 20) / RATE));
    assert_true(sigma_s < 0.05 * s);
}

static void loads_that_vary_are_less_certain(void **state) {
    struct price steady, wild;
    double steady_s, wild_s;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    price_init(&steady);
    price_init(&wild);
    for (uint32_t i = 0; i < 200; i++) {
        learn(&steady, 1 << 20, 1);
        learn(&wild, 1 << 20, rng_below(&rng, 2) ? 0.3 : 1.7);
    }
    (void)price_expect_s(&steady, 1 << 20, &steady_s);
    (void)price_expect_s(&wild, 1 << 20, &wild_s);
    assert_true(wild_s > 10 * steady_s);
}

static void one_load_that_hung_is_forgotten(void **state) {
    struct price p;
    double before_s, after_s;

    (void)state;
    price_init(&p);
    for (uint32_t i = 0; i < 100; i++)
        learn(&p, 1 << 20, 1);
    before_s = price_expect_s(&p, 1 << 20, NULL);
    learn(&p, 1 << 20, 1000);
    assert_true(price_expect_s(&p, 1 << 20, NULL) > 50 * before_s);
    for (uint32_t i = 0; i < 100; i++)
        learn(&p, 1 << 20, 1);
    after_s = price_expect_s(&p, 1 << 20, NULL);
    assert_true(after_s < 1.1 * before_s);
}

/* As those behind a network's delay: short loads take nearly as long as longer ones. */
static void short_loads_teach_what_a_long_one_takes(void **state) {
    struct rng rng;
    struct price p;

    (void)state;
    rng_seed(&rng, support_seed());
    price_init(&p);
    for (uint32_t i = 0; i < 30; i++) {
        double noise = 0.95 + 0.1 * rng_f64(&rng);
        double n_bytes = (double)((1 + rng_below(&rng, 16)) << 14);

        price_learn(&p, (uint64_t)n_bytes, 0, (LATENCY_S + n_bytes / RATE) * noise);
    }
    for (uint64_t n = 1 << 14; n <= 4 << 20; n *= 4) {
        double s = price_expect_s(&p, n, NULL), real_s = LATENCY_S + (double)n / RATE;

        assert_true(s > 0.7 * real_s && s < 1.4 * real_s);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_any_load_it_is_a_guess),
        cmocka_unit_test(it_is_learned_from_steady_loads),
        cmocka_unit_test(loads_that_vary_are_less_certain),
        cmocka_unit_test(one_load_that_hung_is_forgotten),
        cmocka_unit_test(short_loads_teach_what_a_long_one_takes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
