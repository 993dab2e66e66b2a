/* kernels/dtype.h - the element types of weights and of the KV pool, one element at a time.
 *
 * bf16 is the upper half of a float; rounding to it is to nearest, ties to even. Everything here
 * is exact integer work, so it gives the same bits on every machine. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <string.h>

#include "kernels/backend.h"

static inline float f32_of_bits(uint32_t u) {
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t bits_of_f32(float f) {
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float f32_of_bf16(uint16_t h) {
    return f32_of_bits((uint32_t)h << 16);
}

/* A NaN stays a NaN: its payload is cut and the quiet bit set. */
static inline uint16_t bf16_of_f32(float f) {
    uint32_t u = bits_of_f32(f);

    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

static inline float f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;

    if (exponent == 31) return f32_of_bits(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f; /* exact: subnormal halves are normal floats */

        return sign ? -f : f;
    }
    return f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* To nearest, ties to even; from 65520 on it is infinite. */
static inline uint16_t f16_of_f32(float f) {
    uint32_t u = bits_of_f32(f), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;

    if (a > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (a >> 13 & 0x3FFu));
    if (a >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u);
    if (a < 0x38800000u) /* subnormal: beside 0.5 the last place of a float is 2^-24 */
        return (uint16_t)(sign | (bits_of_f32(f32_of_bits(a) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | (a - 0x38000000u + 0xFFFu + (a >> 13 & 1u)) >> 13);
}

/* e4m3: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; largest 448, no infinity, NaN 7f and
 * ff. */
#define E4M3_MAX 448.0f
#define E4M3_NAN 0x7Fu

static inline float f32_of_e4m3(uint8_t c) {
    float f = f32_of_f16((uint16_t)((c & 0x7Fu) << 7)) * 256.0f; /* exact, subnormals included */

    if ((c & 0x7Fu) == E4M3_NAN) f = f32_of_bits(0x7FC00000u);
    return c & 0x80u ? -f : f;
}

/* To nearest, ties to even, at most 448; what is not finite becomes a NaN with its sign. */
static inline uint8_t e4m3_of_f32(float f) {
    uint32_t u = bits_of_f32(f), sign = u >> 24 & 0x80u, a = u & 0x7FFFFFFFu, c;

    if (a >= 0x7F800000u) return (uint8_t)(sign | E4M3_NAN);
    if (a < 0x3C800000u) { /* subnormal: beside 2^14 the last place of a float is 2^-9 */
        c = bits_of_f32(f32_of_bits(a) + 0x1p14f) - 0x46800000u;
    } else {
        c = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    }
    return (uint8_t)(sign | MIN(c, 0x7Eu));
}

/* 0 for DTYPE_U4, whose elements have no address, and for unknown types. */
static inline size_t dtype_bytes(enum dtype t) {
    switch (t) {
    case DTYPE_F32:
    case DTYPE_I32: return 4;
    case DTYPE_F16:
    case DTYPE_BF16: return 2;
    case DTYPE_F8E4M3:
    case DTYPE_I8: return 1;
    default: return 0;
    }
}

/* Bytes of n elements in a row; rows of DTYPE_U4 begin at bytes. */
static inline size_t dtype_row_bytes(enum dtype t, size_t n) {
    return t == DTYPE_U4 ? (n + 1) / 2 : n * dtype_bytes(t);
}

static inline const char *dtype_name(enum dtype t) {
    static const char *const names[DTYPE_COUNT] = {"f32", "f16", "bf16", "f8e4m3",
                                                   "i8",  "u4",  "i32"};

    return (unsigned)t < DTYPE_COUNT ? names[t] : "unknown";
}

/* As options, config.json and other engines write it. */
static inline const char *dtype_long_name(enum dtype t) {
    static const char *const names[DTYPE_COUNT] = {"float32", "float16", "bfloat16", "fp8_e4m3",
                                                   "int8",    "int4",    "int32"};

    return (unsigned)t < DTYPE_COUNT ? names[t] : "unknown";
}

static inline bool dtype_is_float(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

/* Element i of an array of floating type t. Arrays may be unaligned: mapped files are. */
static inline float dtype_get(enum dtype t, const void *p, size_t i) {
    uint16_t h;
    float f;

    if (t == DTYPE_F32) {
        memcpy(&f, (const char *)p + i * 4, 4);
        return f;
    }
    memcpy(&h, (const char *)p + i * 2, 2);
    return t == DTYPE_BF16 ? f32_of_bf16(h) : f32_of_f16(h);
}

/* Stores into an array of floating type t, rounded to it. */
static inline void dtype_put(enum dtype t, void *p, size_t i, float f) {
    if (t == DTYPE_F32) {
        memcpy((char *)p + i * 4, &f, 4);
    } else {
        uint16_t h = t == DTYPE_BF16 ? bf16_of_f32(f) : f16_of_f32(f);

        memcpy((char *)p + i * 2, &h, 2);
    }
}

#endif
