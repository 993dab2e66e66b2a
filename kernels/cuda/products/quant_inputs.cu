/* kernels/cuda/products/quant_inputs.cu - inputs as some quantised matrices want them: gathered by
 * an order, rounded to int8. One block a token; see quant.h. */
#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/products/quant.h"

#define THREADS 256u

struct gather_args {
    const uint16_t *x;
    const uint32_t *order; /* (k) or NULL */
    uint16_t *gathered;    /* (m, k) */
    uint32_t x_stride, k;
};

static __global__ void __launch_bounds__(THREADS)
    quant_gather_kernel(const __grid_constant__ struct gather_args a) {
    const uint16_t *x = a.x + (size_t)blockIdx.x * a.x_stride;
    uint16_t *to = a.gathered + (size_t)blockIdx.x * a.k;

    simt_wait_for_primary();
    simt_launch_dependents();
    for (uint32_t i = threadIdx.x; i < a.k; i += THREADS)
        to[i] = x[a.order[i]];
}

extern "C" void quant_gather_inputs(struct gpu_stream *s, const struct quant_args *a,
                                    uint16_t *gathered) {
    struct gather_args g = {a->a.x, a->w.order, gathered, a->a.x_stride, a->a.k};

    LAUNCH(quant_gather_kernel, dim3(a->a.m), THREADS, 0, s, g);
}

struct round_args {
    const uint16_t *x;
    int8_t *codes; /* (m, stride), zeros from k on */
    float *scale;  /* (m) */
    uint32_t x_stride, k, stride;
};

/* The largest of the block's, by all threads; of a NaN a NaN, whose bits are above all. */
static __device__ __forceinline__ uint32_t block_max(uint32_t x) {
    SHARED(uint32_t, part, THREADS / 32);

#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        x = max(x, __shfl_xor_sync(0xFFFFFFFFu, x, mask));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    for (uint32_t i = 0; i < THREADS / 32; i++)
        x = max(x, part[i]);
    return x;
}

/* As kernels/ref: max / 127, or 1; NaN, and codes 0, when an input is not finite. */
static __device__ __forceinline__ float scale_of(uint32_t max_bits) {
    float scale = __fdiv_rn(__uint_as_float(max_bits), 127.0f);

    if (max_bits >= 0x7F800000u) return __uint_as_float(0x7FC00000u);
    return scale > 0 ? scale : 1.0f;
}

static __device__ __forceinline__ int8_t code_of(float x, float scale) {
    float code = rintf(__fdiv_rn(x, scale));

    return scale == scale ? (int8_t)fminf(fmaxf(code, -127.0f), 127.0f) : (int8_t)0;
}

static __device__ __forceinline__ uint32_t four_codes(const uint16_t *x, uint32_t at, uint32_t k,
                                                      float scale) {
    uint32_t codes = 0;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (at + i < k) codes |= (uint32_t)(uint8_t)code_of(low_of(x[at + i]), scale) << 8 * i;
    return codes;
}

static __global__ void __launch_bounds__(THREADS)
    quant_round_kernel(const __grid_constant__ struct round_args a) {
    const uint16_t *x = a.x + (size_t)blockIdx.x * a.x_stride;
    int8_t *to = a.codes + (size_t)blockIdx.x * a.stride;
    uint32_t max = 0;
    float scale;

    simt_wait_for_primary();
    simt_launch_dependents();
    for (uint32_t i = threadIdx.x; i < a.k; i += THREADS)
        max = MAX(max, (uint32_t)(x[i] & 0x7FFFu) << 16);
    scale = scale_of(block_max(max));
    for (uint32_t i = threadIdx.x * 4; i < a.stride; i += THREADS * 4)
        *(uint32_t *)(to + i) = four_codes(x, i, a.k, scale);
    if (threadIdx.x == 0) a.scale[blockIdx.x] = scale;
}

extern "C" void quant_round_inputs(struct gpu_stream *s, const struct quant_args *a, int8_t *codes,
                                   float *scale) {
    struct round_args r = {a->a.x, codes, scale, a->a.x_stride, a->a.k, quant_code_stride(a->a.k)};

    LAUNCH(quant_round_kernel, dim3(a->a.m), THREADS, 0, s, r);
}
