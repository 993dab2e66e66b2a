/* tests/unit/kernels/test_dtype.c - conversions of small floats: every float of 20 leading bits,
 * and under the rounding modes of a caller. The ties and ends of e4m3 are in test_kv_quant.c. */
#include <math.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "kernels/dtype.h"
#include "tests/support/cm.h"

/* The nearest value of e4m3 by its definition; x is finite. */
static double nearest(double x) {
    double a = fmin(fabs(x), 448), step = ldexp(1, a < 0x1p-6 ? -9 : ilogb(a) - 3);

    return copysign(fmin(nearbyint(a / step) * step, 448), x);
}

static void every_float_of_20_bits_becomes_its_nearest_e4m3(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1u << 20; i++) {
        float x = f32_of_bits((uint32_t)i << 12), back;
        uint8_t code = e4m3_of_f32(x);

        back = f32_of_e4m3(code);
        assert_int_equal(code >> 7, i >> 19);
        if (isfinite(x)) {
            if ((double)back != nearest((double)x))
                fail_msg("%a became %a", (double)x, (double)back);
        } else {
            assert_int_equal(code & 0x7F, E4M3_NAN);
            assert_true(isnan(back));
        }
    }
}

/* Subnormal codes are normal floats at every step, so a caller may flush subnormals. */
static void flushing_subnormals_changes_no_decoder(void **state) {
    float e4m3[256], f16[65536 / 16];
    uint32_t n_wrong = 0;

    (void)state;
    for (uint32_t i = 0; i < 256; i++)
        e4m3[i] = f32_of_e4m3((uint8_t)i);
    for (uint32_t i = 0; i < ARRAY_LEN(f16); i++)
        f16[i] = f32_of_f16((uint16_t)(i * 16 + 1));
#if defined(__SSE2__)
    unsigned old = _mm_getcsr();

    _mm_setcsr(old | 0x8040u); /* FTZ and DAZ */
    for (uint32_t i = 0; i < 256; i++) {
        float f = f32_of_e4m3((uint8_t)i);

        n_wrong += bits_of_f32(f) != bits_of_f32(e4m3[i]);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(f16); i++) {
        float f = f32_of_f16((uint16_t)(i * 16 + 1));

        n_wrong += bits_of_f32(f) != bits_of_f32(f16[i]);
    }
    _mm_setcsr(old);
#endif
    assert_int_equal(n_wrong, 0);
    assert_true(e4m3[1] == 0x1p-9f && f16[0] == 0x1p-24f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_float_of_20_bits_becomes_its_nearest_e4m3),
        cmocka_unit_test(flushing_subnormals_changes_no_decoder),
    };

    return cmocka_run_group_tests_name("kernels/dtype", tests, NULL, NULL);
}
