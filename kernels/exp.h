/* kernels/exp.h - the exponential of the kernels, the same bits everywhere.
 *
 * libm's expf differs between machines in the last bit, and a library may pick another version
 * tomorrow. This one is Cody-Waite reduction and a polynomial of degree 7 (the coefficients of the
 * Cephes library), written with separate multiplications and additions, so that compiler and
 * machine have no choice left. Error below 2 units in the last place; exp_f32(0) is 1, and anything
 * under -87.3 is 0. A loop of constant length over it is vectorised. */
#ifndef KERNELS_EXP_H
#define KERNELS_EXP_H

#include "kernels/dtype.h"

#define EXP_LOG2E  1.44269504088896341f
#define EXP_LN2_HI 0.693359375f /* short: n * EXP_LN2_HI is exact */
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_MIN    (-87.3f)    /* below: 0; the result would be subnormal */
#define EXP_MAX    88.0f       /* above: as 88 */
#define EXP_ROUND  12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

static inline float exp_f32(float x) {
    float c = x > EXP_MIN ? x : EXP_MIN, t, n, r, p;
    int32_t k;

    c = c < EXP_MAX ? c : EXP_MAX;
    t = c * EXP_LOG2E + EXP_ROUND;
    n = t - EXP_ROUND;
    r = c - n * EXP_LN2_HI;
    r = r - n * EXP_LN2_LO;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    k = (int32_t)n;
    p = f32_of_bits(bits_of_f32(p) + ((uint32_t)k << 23));
    return x > EXP_MIN ? p : 0.0f;
}

#endif
