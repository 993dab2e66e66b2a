/* kernels/cuda/products/quant_panels.cu - e4m3 codes as the library wants them: weights unpacked
 * row by row, inputs rounded; and the scales of tokens where the library has no place for them.
 * See quant_library.h. */
#include "kernels/cuda/device/codes.cuh"
#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/products/quant_codes.cuh"
#include "kernels/cuda/products/quant_library.h"

#define THREADS 256u
#define UNITS                                                                                      \
    4u /* of a warp: 128 inputs of sixteen rows, 16 bytes of each on their way to a lane */

/* --- weights ---------------------------------------------------------------------------------- */

struct unpack_args {
    struct packed_matrix w;
    struct quant_panel panel;
    uint32_t n_units, n_groups, block_scales;
};

/* The panel's scales of a row block. */
static __device__ __forceinline__ void put_scales(const struct unpack_args &a) {
    uint32_t block = a.panel.first / QUANT_ROWS + blockIdx.x, t = threadIdx.x;
    uint32_t row = blockIdx.x * QUANT_ROWS + t;

    if (a.w.grain == QUANT_GRAIN_BLOCK) {
        float *to = a.panel.scale + blockIdx.x / 8 * a.block_scales;

        for (; blockIdx.x % 8 == 0 && t < a.block_scales; t += THREADS)
            to[t] = t < a.n_groups ? quant_scales_at(a.w, a.n_groups, block, t)[0] : 0;
    } else if (t < QUANT_ROWS && row < a.panel.n) {
        a.panel.scale[row] = quant_scales_at(a.w, a.n_groups, block, 0)[a.w.has_row_scales ? t : 0];
    }
}

/* A lane's eight codes of a row: the second and third of each four change places again. */
static __device__ __forceinline__ void put_eight(const struct unpack_args &a, uint32_t row,
                                                 uint32_t at, uint32_t first, uint32_t second) {
    if (row < a.panel.n && at < a.w.k)
        *(uint2 *)(a.panel.codes + (size_t)row * a.w.k + at) =
            make_uint2(__byte_perm(first, 0, 0x3120), __byte_perm(second, 0, 0x3120));
}

/* Blocks of (row block, THREADS / 32 * UNITS units). */
static __global__ void __launch_bounds__(THREADS)
    quant_unpack_kernel(const __grid_constant__ struct unpack_args a) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t block = a.panel.first / QUANT_ROWS + blockIdx.x;
    uint32_t unit = (blockIdx.y * (THREADS / 32) + warp) * UNITS;
    uint32_t row = blockIdx.x * QUANT_ROWS + lane / 4;
    uint4 codes[UNITS] = {};

#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++)
        if (unit + i < a.n_units)
            codes[i] = load_once(
                a.w.codes + ((size_t)block * a.n_units + unit + i) * QUANT_UNIT_BYTES + lane * 16);
    simt_wait_for_primary();
    simt_launch_dependents();
    if (blockIdx.y == 0) put_scales(a);
#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++) {
        uint32_t at = (unit + i) * QUANT_STEP + lane % 4 * 8;

        put_eight(a, row, at, codes[i].x, codes[i].y);
        put_eight(a, row + 8, at, codes[i].z, codes[i].w);
    }
}

extern "C" void quant_unpack_panel(struct gpu_stream *s, const struct packed_matrix *w,
                                   const struct quant_panel *p) {
    struct unpack_args a = {*w, *p, CEIL_DIV(w->k, QUANT_STEP), quant_groups(w->k, w->group_k),
                            gemm_block_scales(w->k)};

    LAUNCH(quant_unpack_kernel,
           dim3(CEIL_DIV(p->n, QUANT_ROWS), CEIL_DIV(a.n_units, THREADS / 32 * UNITS)), THREADS, 0,
           s, a);
}

/* --- inputs ----------------------------------------------------------------------------------- */

struct round_f8_args {
    const uint16_t *x;
    uint8_t *codes; /* (rows, k) */
    float *scale;
    uint32_t x_stride, m, k;
};

/* Bits of the largest magnitude among eight bf16; of a NaN those of a NaN, which are above all. */
static __device__ __forceinline__ uint32_t eight_max(uint4 x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
        most = max(most, max(words[i] << 16 & 0x7FFF0000u, words[i] & 0x7FFF0000u));
    return most;
}

/* Four numbers times `inverse`, at most 448, as codes. */
static __device__ __forceinline__ uint32_t four_f8(const float *x, float inverse) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t four;

    asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; "
        "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(four)
        : "f"(x[0] * inverse), "f"(x[1] * inverse), "f"(x[2] * inverse), "f"(x[3] * inverse));
    return four;
#else
    uint32_t four = 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
        four |= code_e4m3(x[i] * inverse) << 8 * i;
    return four;
#endif
}

/* A scale, from the bits of the largest number. */
static __device__ __forceinline__ float f8_scale(uint32_t most) {
    if (most >= 0x7F800000u) return __uint_as_float(0x7FC00000u);
    return most < 0x0D800000u ? 1.0f : __fdiv_rn(__uint_as_float(most), 448.0f);
}

static __device__ __forceinline__ void put_codes(uint8_t *to, uint4 x, float scale) {
    float f[8], inverse = __fdiv_rn(1.0f, scale);
    uint2 codes = make_uint2(0x7F7F7F7Fu, 0x7F7F7F7Fu);

    eight_unpack(f, x);
    if (scale == scale) codes = make_uint2(four_f8(f, inverse), four_f8(f + 4, inverse));
    *(uint2 *)to = codes;
}

/* The largest of the block's, by all threads. */
static __device__ __forceinline__ uint32_t largest_of_block(uint32_t x) {
    SHARED(uint32_t, part, THREADS / 32);

#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        x = max(x, __shfl_xor_sync(0xFFFFFFFFu, x, mask));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < THREADS / 32; i++)
        x = max(x, part[i]);
    return x;
}

static __device__ __forceinline__ void round_row(const struct round_f8_args &a, const uint16_t *x,
                                                 uint8_t *to) {
    uint32_t most = 0, n = a.k / 8;
    float scale;

    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        most = max(most, eight_max(eight_load(x + (size_t)i * 8)));
    scale = f8_scale(largest_of_block(most));
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        put_codes(to + (size_t)i * 8, eight_load(x + (size_t)i * 8), scale);
    if (threadIdx.x == 0) a.scale[blockIdx.x] = scale;
}

/* A group of 128 inputs is sixteen threads' eights; k is whole groups, but warps are two. */
static __device__ __forceinline__ void round_groups(const struct round_f8_args &a,
                                                    const uint16_t *x, uint8_t *to) {
    uint32_t n = a.k / 8;

    for (uint32_t i = threadIdx.x; i < ALIGN_UP(n, 32u); i += THREADS) {
        uint4 eight = i < n ? eight_load(x + (size_t)i * 8) : make_uint4(0, 0, 0, 0);
        uint32_t most = eight_max(eight);
        float scale;

#pragma unroll
        for (int mask = 8; mask > 0; mask /= 2)
            most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, mask));
        scale = f8_scale(most);
        if (i >= n) continue;
        put_codes(to + (size_t)i * 8, eight, scale);
        if (i % 16 == 0) a.scale[(size_t)(i / 16) * gridDim.x + blockIdx.x] = scale;
    }
}

static __device__ __forceinline__ void put_nothing(const struct round_f8_args &a, uint8_t *to,
                                                   bool is_grouped) {
    uint32_t n_scales = is_grouped ? a.k / 128 : 1;

    for (uint32_t i = threadIdx.x; i < a.k / 8; i += THREADS)
        *(uint2 *)(to + (size_t)i * 8) = make_uint2(0, 0);
    for (uint32_t i = threadIdx.x; i < n_scales; i += THREADS)
        a.scale[(size_t)i * gridDim.x + blockIdx.x] = 1;
}

/* One block a row. */
template <bool IS_GROUPED>
static __global__ void __launch_bounds__(THREADS)
    quant_round_f8_kernel(const __grid_constant__ struct round_f8_args a) {
    const uint16_t *x = a.x + (size_t)blockIdx.x * a.x_stride;
    uint8_t *to = a.codes + (size_t)blockIdx.x * a.k;

    simt_wait_for_primary();
    simt_launch_dependents();
    if (blockIdx.x >= a.m)
        put_nothing(a, to, IS_GROUPED);
    else if (IS_GROUPED)
        round_groups(a, x, to);
    else
        round_row(a, x, to);
}

extern "C" void quant_round_f8(struct gpu_stream *s, const struct quant_args *a, uint32_t rows,
                               uint8_t *codes, float *scale) {
    struct round_f8_args r = {a->a.x, codes, scale, a->a.x_stride, a->a.m, a->a.k};

    if (a->w.grain == QUANT_GRAIN_BLOCK)
        LAUNCH(quant_round_f8_kernel<true>, dim3(rows), THREADS, 0, s, r);
    else
        LAUNCH(quant_round_f8_kernel<false>, dim3(rows), THREADS, 0, s, r);
}

/* --- outputs ---------------------------------------------------------------------------------- */

struct scale_rows_args {
    uint16_t *y;
    const float *scale;
    uint32_t y_stride, n;
};

static __global__ void __launch_bounds__(THREADS)
    quant_scale_rows_kernel(const __grid_constant__ struct scale_rows_args a) {
    uint16_t *y = a.y + (size_t)blockIdx.x * a.y_stride;
    float scale, f[8];

    simt_wait_for_primary();
    simt_launch_dependents();
    scale = a.scale[blockIdx.x];
    for (uint32_t i = threadIdx.x * 8; i < a.n; i += THREADS * 8) {
        eight_unpack(f, eight_load(y + i));
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] *= scale;
        eight_store(y + i, eight_pack(f));
    }
}

extern "C" void quant_scale_rows(struct gpu_stream *s, uint16_t *y, uint32_t y_stride, uint32_t m,
                                 uint32_t n, const float *scale) {
    struct scale_rows_args a = {y, scale, y_stride, n};

    LAUNCH(quant_scale_rows_kernel, dim3(m), THREADS, 0, s, a);
}
