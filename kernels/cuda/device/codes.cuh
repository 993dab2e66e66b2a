/* kernels/cuda/device/codes.cuh - the codes and scales of a quantised KV pool, on the device.
 *
 * The rules are those of kernels/kv_quant.h, to the bit. Codes widen to bf16 without rounding: e4m3
 * by one conversion to f16 where there is one (sm_89 and newer), else by shifts; int8 by a
 * difference of two bf16 between 128 and 256. A NaN code stays a NaN. */
#ifndef KERNELS_CUDA_DEVICE_CODES_CUH
#define KERNELS_CUDA_DEVICE_CODES_CUH

#include "kernels/cuda/device/simt.h"

enum { KV_BF16, KV_E4M3, KV_I8 }; /* of the pool: the parameter KV of templates */

#ifdef __CUDACC__
#include <cuda_fp16.h>

/* Two f16 times a power of two, as two bf16; of codes, exact. */
static __device__ __forceinline__ uint32_t bf16_of_f16(uint32_t halves, float times) {
    __half2 pair;
    float2 two;

    memcpy(&pair, &halves, 4);
    two = __half22float2(pair);
    return pack_bf16(two.x * times, two.y * times);
}
/* a - b, where it is exact. */
static __device__ __forceinline__ uint32_t subtract_bf16(uint32_t a, uint32_t b) {
    __nv_bfloat162 x, y;
    uint32_t bits;

    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    x = __hsub2(x, y);
    memcpy(&bits, &x, 4);
    return bits;
}
#else
static inline float f32_of_half(uint32_t half) {
    float size = __uint_as_float((half & 0x7FFFu) << 13) * 0x1p112f;

    if ((half & 0x7C00u) == 0x7C00u) size = half & 0x3FFu ? NAN : INFINITY;
    return half & 0x8000u ? -size : size;
}
static inline uint32_t bf16_of_f16(uint32_t halves, float times) {
    return pack_bf16(f32_of_half(halves & 0xFFFFu) * times, f32_of_half(halves >> 16) * times);
}
static inline uint32_t subtract_bf16(uint32_t a, uint32_t b) {
    return pack_bf16(low_of(a) - low_of(b), high_of(a) - high_of(b));
}
#endif

/* --- reading */

/* Two e4m3 codes, each the upper byte of its half, to two bf16. The f16 with the same bits, one
 * place further down, is the value over 2^8; a NaN code gets the exponent of a NaN. */
static __device__ __forceinline__ uint32_t widen_e4m3_shifted(uint32_t halves) {
    uint32_t size = halves & 0x7F007F00u, is_nan = (size + 0x01000100u) & 0x80008000u;

    return bf16_of_f16((halves & 0x80008000u) | size >> 1 | is_nan >> 1, 256.0f);
}

/* Four codes, the first in the lowest byte, to bf16: pairs[0] has the first two. */
template <int KV>
static __device__ __forceinline__ void widen_codes(uint32_t pairs[2], uint32_t four) {
    if constexpr (KV == KV_E4M3) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        uint32_t low, high;

        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; "
            "cvt.rn.f16x2.e4m3x2 %1, h;}"
            : "=r"(low), "=r"(high)
            : "r"(four));
        pairs[0] = bf16_of_f16(low, 1.0f);
        pairs[1] = bf16_of_f16(high, 1.0f);
#else
        pairs[0] = widen_e4m3_shifted(__byte_perm(four, 0, 0x1404));
        pairs[1] = widen_e4m3_shifted(__byte_perm(four, 0, 0x3424));
#endif
    } else { /* 128 + the lower seven bits, less 128, or 256 of a negative code */
        uint32_t low = __byte_perm(four, 0x43u, 0x4140), high = __byte_perm(four, 0x43u, 0x4342);

        pairs[0] = subtract_bf16(low & 0xFF7FFF7Fu, low & 0xFF80FF80u);
        pairs[1] = subtract_bf16(high & 0xFF7FFF7Fu, high & 0xFF80FF80u);
    }
}

/* A scale from its byte. */
static __device__ __forceinline__ float scale_value(uint32_t byte) {
    return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

/* --- writing */

/* The byte of a vector's scale, from the bits of its largest magnitude. */
template <int KV> static __device__ __forceinline__ uint32_t scale_of_max(uint32_t max) {
    constexpr uint32_t LARGEST = KV == KV_I8 ? 0x7E0000 : 0x600000; /* 127, 448: mantissa */
    int e = (int)(max >> 23) - (KV == KV_I8 ? 6 : 8) + ((max & 0x7FFFFFu) > LARGEST);

    if (max >= 0x7F800000u) return KV == KV_I8 ? 255 : 127;
    if (max == 0) return 127;
    return (uint32_t)(e > 0 ? e : 0);
}

/* To nearest, ties to even; |x| is at most 448. */
static __device__ __forceinline__ uint32_t code_e4m3(float x) {
    uint32_t u = __float_as_uint(x), a = u & 0x7FFFFFFFu, code;

    if (a < 0x3C800000u) /* beside 2^14 the last place of a float is 2^-9 */
        code = __float_as_uint(__uint_as_float(a) + 16384.0f) - 0x46800000u;
    else
        code = ((a + 0x7FFFFu + (a >> 20 & 1)) >> 20) - (120u << 3);
    return (u >> 24 & 0x80u) | code;
}

/* Codes of four elements of a vector whose scale and largest magnitude are these. */
template <int KV>
static __device__ __forceinline__ uint32_t code_four(const float *x, uint32_t scale, uint32_t max) {
    float inverse = __uint_as_float((254u - scale) << 23);
    uint32_t four = 0;

    if (max >= 0x7F800000u) return KV == KV_I8 ? 0x80808080u : 0x7F7F7F7Fu;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float code = x[i] * inverse;

        if constexpr (KV == KV_I8) /* beside 1.5 * 2^23 the last place of a float is 1 */
            four |= (__float_as_uint(code + 12582912.0f) & 0xFF) << 8 * i;
        else
            four |= code_e4m3(code) << 8 * i;
    }
    return four;
}

#endif
