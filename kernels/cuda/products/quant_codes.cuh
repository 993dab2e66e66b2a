/* kernels/cuda/products/quant_codes.cuh - codes into bf16, and where scales lie. For .cu files.
 *
 * All conversions are exact. e4m3 becomes bf16 by moving exponent and mantissa into place and
 * multiplying by 2^120, which subnormal codes survive; int4 by way of 128 + code, int8 by way of
 * 2^23 + 128 + code. A NaN of e4m3 would become 480: weights are looked at when they are loaded. */
#ifndef KERNELS_CUDA_PRODUCTS_QUANT_CODES_CUH
#define KERNELS_CUDA_PRODUCTS_QUANT_CODES_CUH

#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/products/quant.h"

/* A lane's 16 bytes of a unit, or of int4 half of them: eight codes of two rows. */
struct quant_eights {
    uint32_t row[2][2]; /* of int4 the first word only */
};

/* What is subtracted from the codes of two rows: int4: -(128 + zero) twice as bf16; int8: 2^23 +
 * 128 + zero as fp32 bits; e4m3: nothing. */
struct quant_zeros {
    uint32_t of[2];
};

template <int DTYPE> static __device__ __forceinline__ uint32_t quant_zero_bits(int zero) {
    if (DTYPE == DTYPE_U4) return (uint32_t)(0xC300 | zero) * 0x00010001u;
    return __float_as_uint(8388736.0f + (float)zero);
}

static __device__ __forceinline__ uint32_t quant_e4m3_pair(uint32_t x) { /* bytes 1 and 3 */
    return fma_bf16x2((x & 0x80008000u) | (x & 0x7F007F00u) >> 4, 0x7B807B80u, 0x80008000u);
}

static __device__ __forceinline__ float quant_i8_value(uint32_t x, uint32_t byte, uint32_t zero) {
    uint32_t bits = __byte_perm(x, 0x4B000000u, 0x7440u | byte);

    return __uint_as_float(bits) - __uint_as_float(zero);
}

/* Eight codes of a row less its zero: pairs (k0, k1) (k2, k3) (k4, k5) (k6, k7). */
template <int DTYPE>
static __device__ __forceinline__ void quant_unpack(uint32_t pair[4], const uint32_t codes[2],
                                                    uint32_t zero) {
    if (DTYPE == DTYPE_F8E4M3) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            pair[2 * i] = quant_e4m3_pair(codes[i] << 8);
            pair[2 * i + 1] = quant_e4m3_pair(codes[i]);
        }
    } else if (DTYPE == DTYPE_U4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[i] =
                fma_bf16x2((codes[0] >> 4 * i & 0x000F000Fu) | 0x43004300u, 0x3F803F80u, zero);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t x = codes[i / 2] ^ 0x80808080u, byte = (uint32_t)i % 2 * 2;

            pair[i] = pack_bf16(quant_i8_value(x, byte, zero), quant_i8_value(x, byte + 1, zero));
        }
    }
}

/* The codes of step `s` of a unit; of units of one step, s is 0. `lane` is the lane's 16 bytes. */
template <int DTYPE>
static __device__ __forceinline__ struct quant_eights quant_eights_of(uint4 lane, int s) {
    if (DTYPE == DTYPE_U4) return {{{s ? lane.z : lane.x, 0}, {s ? lane.w : lane.y, 0}}};
    return {{{lane.x, lane.y}, {lane.z, lane.w}}};
}

/* Steps of a group, all of them when there is one. */
static __device__ __forceinline__ uint32_t quant_group_steps(const struct packed_matrix &w) {
    return CEIL_DIV(MIN(w.group_k, w.k), QUANT_STEP);
}

/* The scales of `group` for row block `block` begin here; rows are apart by has_row_scales. */
static __device__ __forceinline__ const float *quant_scales_at(const struct packed_matrix &w,
                                                               uint32_t n_groups, uint32_t block,
                                                               uint32_t group) {
    return w.scale + ((size_t)block * n_groups + group) * (w.has_row_scales ? QUANT_ROWS : 1);
}

/* Zeros of rows lane / 4 and lane / 4 + 8 of a block. */
template <int DTYPE>
static __device__ __forceinline__ struct quant_zeros quant_load_zeros(const struct packed_matrix &w,
                                                                      uint32_t n_groups,
                                                                      uint32_t block,
                                                                      uint32_t group) {
    int zero[2] = {DTYPE == DTYPE_U4 ? 8 : 0, DTYPE == DTYPE_U4 ? 8 : 0};

    if (DTYPE == DTYPE_F8E4M3) return {{0, 0}};
    if (w.zero) {
        const int16_t *at =
            w.zero + ((size_t)block * n_groups + group) * QUANT_ROWS + threadIdx.x % 32 / 4;

        zero[0] = at[0];
        zero[1] = at[8];
    }
    return {{quant_zero_bits<DTYPE>(zero[0]), quant_zero_bits<DTYPE>(zero[1])}};
}

#endif
