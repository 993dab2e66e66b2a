/* tests/unit/shim/test_shim.c - the shim itself: instructions, schedules, and what it forbids. */
#include "tests/support/cm.h"

#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "kernels/shim/shim_control.h"
#include "tests/unit/shim/toy.h"

static void fragments_are_matrices(void **state) {
    _Alignas(16) uint16_t a[256], b[128];
    float c[128];

    (void)state;
    for (uint32_t i = 0; i < 256; i++)
        a[i] = (uint16_t)(0x3F00 + i % 97);
    for (uint32_t i = 0; i < 128; i++)
        b[i] = (uint16_t)(0x3E80 + i % 53);
    shim_set(3, SHIM_COPIES_LATE);
    toy_product(NULL, &(struct toy_product){a, b, c});
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t j = 0; j < 8; j++) {
            double sum = 0;
            for (uint32_t k = 0; k < 16; k++) {
                uint32_t x = (uint32_t)a[i * 16 + k] << 16, y = (uint32_t)b[k * 8 + j] << 16;
                float fx, fy;

                memcpy(&fx, &x, 4);
                memcpy(&fy, &y, 4);
                sum += (double)fx * fy;
            }
            assert_true(fabs(sum - c[i * 8 + j]) < 1e-5);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_are_matrices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
