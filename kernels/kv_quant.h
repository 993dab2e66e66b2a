/* kernels/kv_quant.h - how a vector of K or V becomes codes and a scale, and what they stand for.
 *
 * A vector is one token's K or V of one KV head. Its input is what a bf16 pool would hold: K behind
 * norm and RoPE, and V, each rounded to bf16. A is the largest magnitude in it. Code and scale
 * depend on this vector alone, so a token's bytes are equal however its prompt was cut.
 *
 *      scale   2^e, stored as e + 127 (E8M0): the smallest power of two with A <= M * 2^e, at least
 *              2^-127; 1 where A is 0. M is the largest code: 448 of e4m3, 127 of int8
 *      code    x / 2^e, which is exact division, as e4m3 or as a whole number: to nearest, ties to
 *              even
 *
 * A vector with an infinity or a NaN is marked, so that answers which saw it are flagged: e4m3 has
 * the code 7f (a NaN) everywhere and the scale 1; int8, which has no such code, -128 everywhere and
 * the scale ff, E8M0's NaN. So one code shows whether a vector is marked. A query that sees a
 * marked K or V has NaNs as its result.
 *
 * What attention reads is code * scale, exact in f32 (barring underflow). Scales per (token, head):
 * vLLM's fp8_per_token_head and int8_per_token_head (2026), there in f32; a power of two takes a
 * byte, and may be multiplied where it is cheapest without changing a bit. */
#ifndef KERNELS_KV_QUANT_H
#define KERNELS_KV_QUANT_H

#include "kernels/dtype.h"
#include "kernels/kv_layout.h"

#define KV_QUANT_VERSION 2 /* of the rules above: a part of a cached block's identity */

#define KV_E8M0_ONE 127u
#define KV_E8M0_NAN 255u
#define KV_I8_MARK  0x80u /* -128 */
#define KV_BF16_INF 0x7F800000u

static inline bool kv_is_quantised(enum dtype kv) {
    return kv_scale_bytes(kv) > 0;
}

static inline float kv_scale_of_e8m0(uint8_t b) {
    return f32_of_bits(b == KV_E8M0_NAN ? 0x7FC00000u : b == 0 ? 0x00400000u : (uint32_t)b << 23);
}

/* What a bf16 pool would hold, as a float: x rounded as bf16_of_f32 does. All in words, so that a
 * loop over it becomes vectors. */
static inline float kv_input(float x) {
    uint32_t u = bits_of_f32(x), rounded = (u + 0x7FFFu + (u >> 16 & 1u)) & 0xFFFF0000u;

    return f32_of_bits((u & 0x7FFFFFFFu) > 0x7F800000u ? (u & 0xFFFF0000u) | 0x400000u : rounded);
}

/* The bits of the largest magnitude among the inputs; KV_BF16_INF or more: not finite. */
static inline uint32_t kv_max_bits(const float *x, uint32_t n) {
    uint32_t max = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t a = bits_of_f32(kv_input(x[i])) & 0x7FFFFFFFu;

        max = a > max ? a : max;
    }
    return max;
}

/* The scale for a finite largest magnitude. M is 1.75 * 2^8 or 1.984375 * 2^6. */
static inline uint8_t kv_e8m0_of_max(enum dtype kv, uint32_t max) {
    bool is_e4m3 = kv == DTYPE_F8E4M3;
    int32_t e = (int32_t)(max >> 23) - (is_e4m3 ? 8 : 6) +
                ((max & 0x7FFFFFu) > (is_e4m3 ? 0x600000u : 0x7E0000u));

    if (max == 0) return KV_E8M0_ONE;
    return (uint8_t)(e > 0 ? e : 0); /* at most 249 */
}

/* v is at most 127 in magnitude: the sum rounds at 1, ties to even. */
static inline int8_t kv_round_i8(float v) {
    return (int8_t)((int32_t)bits_of_f32(v + 0x1.8p23f) - 0x4B400000);
}

/* e4m3_of_f32 where |v| is at most 448: without a branch, which would be guessed wrong. */
static inline uint8_t kv_e4m3(float v) {
    uint32_t u = bits_of_f32(v), a = u & 0x7FFFFFFFu;
    uint32_t normal = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t small = bits_of_f32(f32_of_bits(a) + 0x1p14f) - 0x46800000u;

    return (uint8_t)((u >> 24 & 0x80u) | (a < 0x3C800000u ? small : normal));
}

/* One vector: n codes and its scale. */
static inline void kv_quantise(enum dtype kv, const float *x, uint32_t n, uint8_t *codes,
                               uint8_t *scale) {
    bool is_e4m3 = kv == DTYPE_F8E4M3;
    uint32_t max = kv_max_bits(x, n);
    float inverse;

    if (max >= KV_BF16_INF) {
        *scale = is_e4m3 ? KV_E8M0_ONE : KV_E8M0_NAN;
        memset(codes, is_e4m3 ? E4M3_NAN : KV_I8_MARK, n);
        return;
    }
    *scale = kv_e8m0_of_max(kv, max);
    inverse = f32_of_bits((254u - *scale) << 23);
    if (is_e4m3)
        for (uint32_t i = 0; i < n; i++)
            codes[i] = kv_e4m3(kv_input(x[i]) * inverse);
    else
        for (uint32_t i = 0; i < n; i++)
            codes[i] = (uint8_t)kv_round_i8(kv_input(x[i]) * inverse);
}

/* What code i stands for, without its scale. */
static inline float kv_code_value(enum dtype kv, const uint8_t *codes, size_t i) {
    return kv == DTYPE_F8E4M3 ? f32_of_e4m3(codes[i]) : (float)(int8_t)codes[i];
}

#endif
