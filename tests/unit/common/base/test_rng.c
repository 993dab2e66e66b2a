/* tests/unit/common/base/test_rng.c - the published sequences, ranges and replay. */
#include <math.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void the_sequences_are_the_published_ones(void **state) {
    /* xoshiro256** from the state {1, 2, 3, 4}, by its authors' code. */
    static const uint64_t published[] = {11520, 0, 1509978240, 1215971899390074240,
                                         1216172134540287360};
    struct rng rng = {{1, 2, 3, 4}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(published); i++) {
        assert_true(rng_u64(&rng) == published[i]);
    }
    assert_true(rng_mix(0) == 0xE220A8397B1DCDAFu); /* the first output of splitmix64 from 0 */
}

static void a_seed_replays(void **state) {
    struct rng a, b, c;
    int n_equal = 0;

    (void)state;
    rng_seed(&a, 7);
    rng_seed(&b, 7);
    rng_seed(&c, 8);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = rng_u64(&a);

        assert_true(x == rng_u64(&b));
        n_equal += x == rng_u64(&c);
    }
    assert_int_equal(n_equal, 0);
}

static void below_is_within_and_even(void **state) {
    uint32_t counts[7] = {0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 70000; i++)
        counts[rng_below(&rng, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_in_range(counts[i], 9500, 10500); /* over 5 sigma */
    assert_int_equal(rng_below(&rng, 1), 0);
}

static void fractions_are_in_the_unit_interval(void **state) {
    double sum = 0;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 100000; i++) {
        double x = rng_f64(&rng);

        assert_true(x >= 0 && x < 1);
        sum += x;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.006); /* over 6 sigma */
}

static void a_counter_gives_the_same_number_each_time(void **state) {
    uint64_t forward[100];
    int n_bits = 0;

    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        forward[i] = rng_at(42, i);
    for (uint64_t i = 100; i-- > 0;)
        assert_true(rng_at(42, i) == forward[i]);
    for (uint64_t i = 0; i < 99;
         i++) { /* neighbours, and the same counter of another seed, differ */
        n_bits += __builtin_popcountll(forward[i] ^ forward[i + 1]);
        assert_true(forward[i] != rng_at(43, i));
    }
    assert_in_range(n_bits, 99 * 28, 99 * 36);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sequences_are_the_published_ones),
        cmocka_unit_test(a_seed_replays),
        cmocka_unit_test(below_is_within_and_even),
        cmocka_unit_test(fractions_are_in_the_unit_interval),
        cmocka_unit_test(a_counter_gives_the_same_number_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
