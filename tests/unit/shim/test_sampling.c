/* tests/unit/shim/test_sampling.c - the kernels of sampling choose what kernels/sample.c chooses. */
#include "tests/support/cm.h"

#include "tests/support/support.h"
#include "tests/unit/shim/sampling_stand.h"

static void launch(struct stand *s, enum sampling_level level) {
    stand_poison(s);
    sampling_launch(NULL, &s->args, level);
}

static void everything_at_once_is_as_on_the_host(void **state) {
    static const uint32_t vocabs[] = {1, 31, 2048, 4095, 4097, 9001, 20000};

    (void)state;
    for (uint32_t round = 0; round < 28; round++) {
        struct stand *s = stand_create(vocabs[round % ARRAY_LEN(vocabs)], support_seed() + round);

        shim_set(round + 1, round % 2 ? SHIM_COPIES_EARLY : SHIM_COPIES_LATE);
        for (uint32_t step = 0; step < 3; step++) {
            s->step.n_outputs = stand_below(s, STAND_OUTPUTS + 1);
            for (uint32_t k = 0; k < s->step.n_outputs; k++) {
                stand_fill(s, k, stand_below(s, 2) ? STAND_NORMAL : stand_below(s, STAND_KINDS));
                s->output[k] = stand_output(s);
            }
            stand_surroundings(s);
            stand_reference(s);
            launch(s, SAMPLING_FULL);
            assert_int_equal(stand_difference(s, true), -1);
        }
        stand_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once_is_as_on_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
