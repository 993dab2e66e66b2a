/* kernels/cpu/lanes.h - a vector of floats, as wide as the path that includes this.
 *
 * A path file defines LANES (4, 8 or 16) and includes path_body.inc, which is written against the
 * few names below. Most are the compiler's own vector arithmetic; intrinsics stand where an
 * instruction decides the result (fma) or where the compiler is known to do badly (broadcast,
 * maximum). With 4 lanes nothing is assumed about the machine, unless NEON is compiled in: ARM's
 * Advanced SIMD, which has an fma. */
#ifndef KERNELS_CPU_LANES_H
#define KERNELS_CPU_LANES_H

#ifndef LANES
#define LANES 4
#endif
#if LANES > 4
#include <immintrin.h>
#elif defined(NEON)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <string.h>

#include "kernels/exp.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL /* speed is nothing here, and instrumented tiles take minutes to compile */
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

INLINE vf vf_load(const float *p) {
    vf v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE void vf_store(float *p, vf v) {
    memcpy(p, &v, sizeof(v));
}

INLINE vi vi_load(const void *p) {
    vi v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* Keeps it in a register: the compiler would load it again wherever it is used. */
INLINE void vi_keep(vi *v) {
#if LANES == 16
    __asm__("" : "+v"(*v));
#elif defined(__SSE2__)
    __asm__("" : "+x"(*v));
#else
    (void)v;
#endif
}

INLINE vf vf_set1(float x) {
#if LANES == 16
    return _mm512_set1_ps(x);
#elif LANES == 8
    return _mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}

INLINE vi vi_set1(int32_t x) {
#if LANES == 16
    return (vi)_mm512_set1_epi32(x);
#elif LANES == 8
    return (vi)_mm256_set1_epi32(x);
#else
    return (vi){x, x, x, x};
#endif
}

INLINE vi vi_iota(void) {
    vi v;

    for (int i = 0; i < LANES; i++)
        v[i] = i;
    return v;
}

/* a * b + c; fused where the path has the instruction */
INLINE vf vf_fma(vf a, vf b, vf c) {
#if LANES == 16
    return _mm512_fmadd_ps(a, b, c);
#elif LANES == 8
    return _mm256_fmadd_ps(a, b, c);
#elif defined(NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

INLINE vf vf_select(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

INLINE vf vf_max(vf a, vf b) {
#if LANES == 16
    return _mm512_max_ps(a, b);
#elif LANES == 8
    return _mm256_max_ps(a, b);
#else
    return vf_select(a > b, a, b);
#endif
}

/* Lanes are added in halves: (i, i + LANES/2), then (i, i + LANES/4) ... Always in this order. */
INLINE float vf_sum(vf v) {
    float x[LANES];

    vf_store(x, v);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            x[i] += x[i + half];
    }
    return x[0];
}

INLINE float vf_max_lane(vf v) {
    float x[LANES];

    vf_store(x, v);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    }
    return x[0];
}

#if LANES == 16
INLINE int32_t vi_sum(vi v) {
    return _mm512_reduce_add_epi32((__m512i)v);
}

INLINE int32_t vi_max_lane(vi v) {
    return _mm512_reduce_max_epi32((__m512i)v);
}
#else
typedef int32_t vi4 __attribute__((vector_size(16)));

INLINE int32_t vi_sum(vi v) {
    vi4 part[LANES / 4];

    memcpy(part, &v, sizeof(v));
    part[0] += LANES == 8 ? part[LANES / 4 - 1] : (vi4){0};
    return (part[0][0] + part[0][1]) + (part[0][2] + part[0][3]);
}

INLINE int32_t vi_max_lane(vi v) {
    vi4 part[LANES / 4], a, b, is_more;

    memcpy(part, &v, sizeof(v));
    a = part[0], b = part[LANES / 4 - 1], is_more = a > b;
    a = (is_more & a) | (~is_more & b);
    return MAX(MAX(a[0], a[1]), MAX(a[2], a[3]));
}
#endif

/* The polynomial of exp.h, fused; the same in every lane. exp(0) is 1; below EXP_MIN it is 0. */
INLINE vf vf_exp(vf x) {
    vi is_normal = x > vf_set1(EXP_MIN);
    vf c = vf_select(is_normal, x, vf_set1(EXP_MIN)), t, n, r, p;

    c = vf_select(c < vf_set1(EXP_MAX), c, vf_set1(EXP_MAX));
    t = vf_fma(c, vf_set1(EXP_LOG2E), vf_set1(EXP_ROUND));
    n = t - vf_set1(EXP_ROUND);
    r = vf_fma(n, vf_set1(-EXP_LN2_HI), c);
    r = vf_fma(n, vf_set1(-EXP_LN2_LO), r);
    p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, r * r, r) + vf_set1(1.0f);
    /* the low bits of t are n: shifted up they are n in the exponent */
    return (vf)(((vi)p + ((vi)t << 23)) & is_normal);
}

/* Swaps, between two rows, the elements whose column has the bit `s` clear in one and set in the
 * other: one of log2(LANES) stages of a transposition. */
INLINE void swap_columns(vi *a, vi *b, const int s) {
    vi x = *a, y = *b;

#if defined(__clang__) /* it has no shuffle of two vectors by a vector */
    for (int j = 0; j < LANES; j++) {
        (*a)[j] = j & s ? y[j ^ s] : x[j];
        (*b)[j] = j & s ? y[j] : x[j ^ s];
    }
#else
    vi low, high;

    UNROLL for (int j = 0; j < LANES; j++) {
        low[j] = j & s ? (j ^ s) + LANES : j;
        high[j] = j & s ? j + LANES : j ^ s;
    }
    *a = __builtin_shuffle(x, y, low);
    *b = __builtin_shuffle(x, y, high);
#endif
}

/* A square of LANES x LANES words: column c of the rows becomes row c. */
INLINE void transpose_rows(vi r[LANES]) {
    UNROLL for (int i = 0; i < LANES; i++) if (!(i & 1)) swap_columns(&r[i], &r[i + 1], 1);
    UNROLL for (int i = 0; i < LANES; i++) if (!(i & 2)) swap_columns(&r[i], &r[i + 2], 2);
#if LANES > 4
    UNROLL for (int i = 0; i < LANES; i++) if (!(i & 4)) swap_columns(&r[i], &r[i + 4], 4);
#endif
#if LANES > 8
    UNROLL for (int i = 0; i < LANES; i++) if (!(i & 8)) swap_columns(&r[i], &r[i + 8], 8);
#endif
}

/* dst[c * dst_stride + r] = src[r][c] of such a square. */
INLINE void transpose_words(uint32_t *dst, size_t dst_stride, const uint32_t *const src[],
                            size_t from) {
    vi r[LANES];

    UNROLL for (int i = 0; i < LANES; i++) r[i] = vi_load(src[i] + from);
    transpose_rows(r);
    UNROLL for (int i = 0; i < LANES; i++) memcpy(dst + i * dst_stride, &r[i], sizeof(r[i]));
}

/* The even and odd elements of pairs of bf16, as floats. */
INLINE vf vf_low(vi pairs) {
    return (vf)(pairs << 16);
}

INLINE vf vf_high(vi pairs) {
    return (vf)(pairs & vi_set1((int32_t)0xFFFF0000u));
}

/* Pairs of int8 as pairs of int16. gcc makes two halves of the vector's conversion. */
INLINE vi vi_widen_bytes(const char *p) {
#if LANES == 16
    return (vi)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif LANES == 8
    return (vi)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
#else
    typedef int16_t vs __attribute__((vector_size(LANES * 4)));
    typedef int8_t vc __attribute__((vector_size(LANES * 2)));
    vc v;

    memcpy(&v, p, sizeof(v));
    return (vi) __builtin_convertvector(v, vs);
#endif
}

/* Each 16-bit number in a word of its own. */
INLINE vi vi_load_half(const uint16_t *p) {
    vh h;

    memcpy(&h, p, sizeof(h));
    return __builtin_convertvector(h, vi);
}

INLINE vf vf_load_bf16(const uint16_t *p) {
    return (vf)(vi_load_half(p) << 16);
}

/* Exact. Without an instruction for it: the mantissa under a float's exponent, or a small
 * integer. */
INLINE vf vf_load_f16(const uint16_t *p) {
#if LANES == 16
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif LANES == 8
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(NEON)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    vi u = vi_load_half(p), sign = (u & 0x8000) << 16, a = u & 0x7FFF;
    vf small = __builtin_convertvector(a, vf) * vf_set1(0x1p-24f);
    vi normal = (a << 13) + (112 << 23), special = a >= 0x7C00;

    normal += special & (112 << 23); /* infinities and NaNs */
    return (vf)(sign | (vi)vf_select(a < 0x400, small, (vf)normal));
#endif
}

/* The first n < LANES elements of a row, zeros behind them. */
INLINE vf vf_load_some(const float *p, uint32_t n) {
    float x[LANES] = {0};

    memcpy(x, p, n * sizeof(*x));
    return vf_load(x);
}

INLINE vf vf_load_some_f16(const uint16_t *p, uint32_t n) {
    uint16_t x[LANES] = {0};

    memcpy(x, p, n * sizeof(*x));
    return vf_load_f16(x);
}

INLINE vi vi_load_some_half(const uint16_t *p, uint32_t n) {
    uint16_t x[LANES] = {0};

    memcpy(x, p, n * sizeof(*x));
    return vi_load_half(x);
}

/* To nearest, ties to even; no NaN. */
INLINE vf vf_round_bf16(vf v) {
    vi u = (vi)v;

    return (vf)((u + 0x7FFF + (u >> 16 & 1)) & (int32_t)0xFFFF0000u);
}

/* To nearest, ties to even, as bf16_of_f32. */
INLINE void vf_store_bf16(uint16_t *p, vf v) {
    vi u = (vi)v, odd = (u >> 16) & 1, is_nan = v != v;
    vi rounded = (u + 0x7FFF + odd) >> 16;
    vh h = __builtin_convertvector((is_nan & 0x7FC0) | (~is_nan & rounded), vh);

    memcpy(p, &h, sizeof(h));
}

#endif
