/* kernels/kv_quant.h - how a vector of K or V becomes codes and a scale, and what they stand for.
 *
 * A vector is one token's K or V of one KV head. Its input is what a bf16 pool would hold: K behind
 * norm and RoPE, and V, each rounded to bf16. A is the largest magnitude in it. Code and scale
 * depend on this vector alone, so a token's bytes are equal however its prompt was cut.
 *
 *      e4m3   scale 2^e, stored as e + 127 (E8M0): the smallest power of two with A <= 448 * 2^e,
 *             at least 2^-127; 1 where A is 0. code = e4m3(x / 2^e), which is exact division.
 *      int8   scale: A / 127 in f32, rounded up to a bf16; 1 where A is 0. code = x / scale in f32,
 *             to nearest, ties to even, within -127 to 127.
 *
 * A vector with an infinity or a NaN is marked, so that answers which saw it are flagged: e4m3 has
 * the code 7f (a NaN) everywhere and the scale 1, int8 the code -128 everywhere and a NaN as scale.
 * So one code shows whether a vector is marked. In the pool the scale ff of e4m3 is a NaN too. A
 * query that sees a marked K or V has NaNs as its result.
 *
 * What attention reads is code * scale, exact in f32 (barring underflow). Scales per (token, head):
 * vLLM's fp8_per_token_head and int8_per_token_head (2026), there in f32; a power of two may be
 * multiplied where it is cheapest without changing a bit. */
#ifndef KERNELS_KV_QUANT_H
#define KERNELS_KV_QUANT_H

#include "kernels/dtype.h"
#include "kernels/kv_layout.h"

#define KV_QUANT_VERSION 1 /* of the rules above: a part of a cached block's identity */

#define KV_E8M0_ONE 127u
#define KV_E8M0_NAN 255u
#define KV_I8_MARK  (-128)
#define KV_BF16_NAN 0x7FC0u
#define KV_BF16_INF 0x7F800000u
#define KV_BF16_ONE 0x3F80u

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

/* E8M0 of the scale for a finite largest magnitude. */
static inline uint8_t kv_e8m0_of_max(uint32_t max) {
    int32_t e = (int32_t)(max >> 23) - 8 + ((max & 0x7FFFFFu) > 0x600000u); /* 448 = 1.75 * 2^8 */

    if (max == 0) return KV_E8M0_ONE;
    return (uint8_t)(e > 0 ? e : 0); /* at most 247 */
}

/* bf16 of the scale for a finite largest magnitude. */
static inline uint16_t kv_bf16_of_max(uint32_t max) {
    if (max == 0) return KV_BF16_ONE;
    return (uint16_t)((bits_of_f32(f32_of_bits(max) / 127.0f) + 0xFFFFu) >> 16);
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

/* One vector: n codes, and its scale of kv_scale_bytes. */
static inline void kv_quantise_e4m3(const float *x, uint32_t n, uint8_t *codes, uint8_t *scale) {
    uint32_t max = kv_max_bits(x, n);
    float inverse;

    *scale = KV_E8M0_ONE;
    if (max >= KV_BF16_INF) {
        memset(codes, E4M3_NAN, n);
        return;
    }
    *scale = kv_e8m0_of_max(max);
    inverse = f32_of_bits((254u - *scale) << 23);
    for (uint32_t i = 0; i < n; i++)
        codes[i] = kv_e4m3(kv_input(x[i]) * inverse);
}

static inline void kv_quantise_i8(const float *x, uint32_t n, uint8_t *codes, uint8_t *scale) {
    uint32_t max = kv_max_bits(x, n);
    uint16_t bf16 = max >= KV_BF16_INF ? KV_BF16_NAN : kv_bf16_of_max(max);
    float divisor = f32_of_bf16(bf16);

    memcpy(scale, &bf16, sizeof(bf16));
    if (max >= KV_BF16_INF) {
        memset(codes, KV_I8_MARK, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint8_t)kv_round_i8(kv_input(x[i]) / divisor);
}

static inline void kv_quantise(enum dtype kv, const float *x, uint32_t n, uint8_t *codes,
                               uint8_t *scale) {
    if (kv == DTYPE_F8E4M3)
        kv_quantise_e4m3(x, n, codes, scale);
    else
        kv_quantise_i8(x, n, codes, scale);
}

/* What code i stands for, without its scale. */
static inline float kv_code_value(enum dtype kv, const uint8_t *codes, size_t i) {
    return kv == DTYPE_F8E4M3 ? f32_of_e4m3(codes[i]) : (float)(int8_t)codes[i];
}

/* Scale i of a trailer. */
static inline float kv_scale_value(enum dtype kv, const uint8_t *scales, size_t i) {
    uint16_t bf16;

    if (kv == DTYPE_F8E4M3) return kv_scale_of_e8m0(scales[i]);
    memcpy(&bf16, scales + i * sizeof(bf16), sizeof(bf16));
    return f32_of_bf16(bf16);
}

#endif
