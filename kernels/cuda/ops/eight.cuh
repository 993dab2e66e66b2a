/* kernels/cuda/ops/eight.cuh - eight bf16 in one access of 16 bytes, the unit of the small kernels.
 * For .cu files, after simt.h. */
#ifndef KERNELS_CUDA_EIGHT_CUH
#define KERNELS_CUDA_EIGHT_CUH

#include "kernels/cuda/device/simt.h"

static __device__ __forceinline__ uint4 eight_load(const uint16_t *p) {
    return *(const uint4 *)p;
}

static __device__ __forceinline__ void eight_store(uint16_t *p, uint4 eight) {
    *(uint4 *)p = eight;
}

static __device__ __forceinline__ void eight_unpack(float f[8], uint4 eight) {
    f[0] = low_of(eight.x);
    f[1] = high_of(eight.x);
    f[2] = low_of(eight.y);
    f[3] = high_of(eight.y);
    f[4] = low_of(eight.z);
    f[5] = high_of(eight.z);
    f[6] = low_of(eight.w);
    f[7] = high_of(eight.w);
}

static __device__ __forceinline__ uint4 eight_pack(const float f[8]) {
    uint4 eight;

    eight.x = pack_bf16(f[0], f[1]);
    eight.y = pack_bf16(f[2], f[3]);
    eight.z = pack_bf16(f[4], f[5]);
    eight.w = pack_bf16(f[6], f[7]);
    return eight;
}

/* f += the eight at p; nothing when p is NULL. */
static __device__ __forceinline__ void eight_add(float f[8], const uint16_t *p, size_t at) {
    float g[8];

    if (!p) return;
    eight_unpack(g, eight_load(p + at));
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] += g[i];
}

#endif
