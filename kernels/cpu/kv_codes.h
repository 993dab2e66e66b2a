/* kernels/cpu/kv_codes.h - codes of a quantised KV pool (kernels/kv_quant.h) as vectors of bf16.
 *
 * Every finite code is exact in bf16, so K and V of a quantised pool become the panels that a bf16
 * pool has. Scales go elsewhere: K's multiplies the score, V's the weight of its position. A code
 * 7f of e4m3 becomes 480 here: its reader replaces the vector's scale by a NaN.
 * Included by path_body.inc, for its LANES. */
#ifndef KERNELS_CPU_KV_CODES_H
#define KERNELS_CPU_KV_CODES_H

#include "kernels/cpu/lanes.h"
#include "kernels/kv_quant.h"

typedef uint32_t vu __attribute__((vector_size(LANES * 4)));

/* Each byte in a word of its own. gcc makes scalars of the vector's conversion. */
INLINE vi vi_load_byte(const uint8_t *p) {
#if LANES == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif LANES == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    uint32_t word;

    memcpy(&word, p, sizeof(word));
#ifdef NEON
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word))));
#else
    return (vi){word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, (int32_t)(word >> 24)};
#endif
#endif
}

/* The first n bytes of LANES words, zeros behind them. */
INLINE vi vi_load_some_bytes(const uint8_t *p, uint32_t n) {
    uint8_t x[LANES * 4] = {0};

    memcpy(x, p, n);
    return vi_load(x);
}

/* Two codes, in the low byte of each half of a word, become two bf16 there. */
INLINE vi pairs_of_e4m3(vi x) {
#if LANES == 16
    /* Below 8 a code is a subnormal, m * 2^-9: of a table. */
    const __m512i small = _mm512_broadcast_i32x4(
        _mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
    __m512i v = (__m512i)x, low = _mm512_and_si512(v, _mm512_set1_epi16(0x7F)), y;

    y = _mm512_add_epi16(_mm512_slli_epi16(low, 4), _mm512_set1_epi16(0x3C00));
    y = _mm512_mask_permutexvar_epi16(y, _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x78)), v,
                                      small);
    return (vi)_mm512_ternarylogic_epi32(y, _mm512_slli_epi16(v, 8), _mm512_set1_epi16(-0x8000),
                                         0xF8); /* y | sign & mask */
#else
    vf low = (vf)((x << 20) & 0x07F00000) * vf_set1(0x1p120f);
    vf high = (vf)((x << 4) & 0x07F00000) * vf_set1(0x1p120f);

    return ((x & 0x00800080) << 8) | (vi)high | (vi)low >> 16;
#endif
}

INLINE vi pairs_of_i8(vi x) {
    vf low = __builtin_convertvector(x << 24 >> 24, vf);
    vf high = __builtin_convertvector(x << 8 >> 24, vf);

    return (vi)high | (vi)((vu)low >> 16);
}

INLINE vi pairs_of(const enum dtype kv, vi x) {
    return kv == DTYPE_F8E4M3 ? pairs_of_e4m3(x) : pairs_of_i8(x);
}

/* LANES scales of a trailer. */
INLINE vf vf_load_scales(const uint8_t *p) {
    vi b = vi_load_byte(p);

    return (vf)((b << 23) | ((b == 0) & 0x00400000) | ((b == KV_E8M0_NAN) & 0x00400000));
}

#endif
