/* kernels/cuda/products/tile.cuh - one tile of a bf16 product, by one block. For .cu files.
 *
 * A block computes BM rows of X times BN rows of W. Both come in slices of BK elements of k through
 * a ring of STAGES by cp.async; each of WM x WN warps multiplies its part by mma.sync. One barrier
 * a slice: the slice that is asked for behind it goes where the one before was read.
 *
 *      shared   | X 0 | W 0 | X 1 | W 1 | ...      slices of (BM, BK) and (BN, BK) elements
 *
 * In a slice the 16-byte pieces of a row are permuted, so that the eight rows of a matrix load lie
 * in different banks: rows of 128 bytes by their number, rows of 64 bytes, where two share the
 * banks, by half of it.
 *
 * Rows beyond the last are the last again and are not stored; pieces of k beyond the end are zeros,
 * of both. Adding their products changes no bit, so BK does not show in the result. */
#ifndef KERNELS_CUDA_PRODUCTS_TILE_CUH
#define KERNELS_CUDA_PRODUCTS_TILE_CUH

#include "kernels/cuda/device/gemm.h"
#include "kernels/cuda/device/simt.h"

/* BLOCKS: of a multiprocessor. */
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int BLOCKS_> struct tile_shape {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_, THREADS = WM * WN * 32;
    static constexpr int FM = BM / WM / 16, FN = BN / WN / 8; /* fragments of a warp */
    static constexpr int PIECES = BK / 8;                     /* of a row */
    static constexpr int STAGE = (BM + BN) * BK;              /* elements */
    static constexpr int BYTES = STAGE * STAGES * 2;
};

/* Many rows, and few: those are a stream of W, and each block has 40 KiB of it on their way. */
typedef tile_shape<128, 128, 32, 2, 2, 4, 2> tile_large;
typedef tile_shape<32, 64, 64, 1, 4, 6, 2> tile_small;

/* The element of a slice where piece `piece` of row `row` lies. */
template <class T> static __device__ __forceinline__ int tile_at(int row, int piece) {
    if constexpr (T::PIECES == 8) return row * T::BK + (piece ^ (row & 7)) * 8;
    return row * T::BK + (piece ^ (row >> 1 & 3)) * 8;
}

/* What a block multiplies: rows from its first on. */
struct tile_operands {
    const uint16_t *x, *w; /* its first rows */
    uint32_t n_x, n_w;     /* rows there are, from there */
    uint32_t x_stride, k;  /* w_stride is k */
};

/* ROWS rows of a slice, by all threads. */
template <class T, int ROWS>
static __device__ __forceinline__ void tile_load_rows(bf16 *shared, const uint16_t *from,
                                                      uint32_t n_rows, uint32_t stride, uint32_t k,
                                                      uint32_t k0) {
#pragma unroll
    for (int i = 0; i < ROWS * T::PIECES / T::THREADS; i++) {
        int at = (int)threadIdx.x + i * T::THREADS, row = at / T::PIECES, piece = at % T::PIECES;
        uint32_t k_at = k0 + (uint32_t)piece * 8;
        const uint16_t *p = from + (size_t)MIN((uint32_t)row, n_rows - 1) * stride;

        copy_async16_if(shared + tile_at<T>(row, piece), p + MIN(k_at, k - 8), k_at < k);
    }
}

template <class T>
static __device__ __forceinline__ void tile_load(bf16 *stage, const struct tile_operands &o,
                                                 uint32_t k0) {
    tile_load_rows<T, T::BM>(stage, o.x, o.n_x, o.x_stride, o.k, k0);
    tile_load_rows<T, T::BN>(stage + T::BM * T::BK, o.w, o.n_w, o.k, o.k, k0);
}

/* A warp's operands for 16 elements of k. */
template <class T> struct tile_fragments { uint32_t x[T::FM][4], w[T::FN / 2][4]; };

template <class T>
static __device__ __forceinline__ void tile_fetch(struct tile_fragments<T> *f, const bf16 *stage,
                                                  int step) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int x_row = warp % T::WM * (T::FM * 16) + lane % 16, x_piece = step * 2 + lane / 16;
    int w_row = warp / T::WM * (T::FN * 8) + (lane / 16) * 8 + lane % 8;
    int w_piece = step * 2 + lane / 8 % 2;

#pragma unroll
    for (int i = 0; i < T::FM; i++)
        load_matrix4(f->x[i], stage + tile_at<T>(x_row + i * 16, x_piece));
#pragma unroll
    for (int i = 0; i < T::FN / 2; i++)
        load_matrix4(f->w[i], stage + T::BM * T::BK + tile_at<T>(w_row + i * 16, w_piece));
}

template <class T>
static __device__ __forceinline__ void tile_multiply(float sum[T::FM][T::FN][4],
                                                     const struct tile_fragments<T> &f) {
#pragma unroll
    for (int i = 0; i < T::FM; i++) {
#pragma unroll
        for (int j = 0; j < T::FN; j++)
            multiply_add(sum[i][j], f.x[i], f.w[j / 2][j % 2 * 2], f.w[j / 2][j % 2 * 2 + 1]);
    }
}

/* A slice: the fragments of the next 16 elements are fetched before those at hand are used. */
template <class T>
static __device__ __forceinline__ void tile_add_slice(float sum[T::FM][T::FN][4],
                                                      const bf16 *stage) {
    struct tile_fragments<T> f[2];

    tile_fetch<T>(&f[0], stage, 0);
#pragma unroll
    for (int step = 0; step < T::BK / 16; step++) {
        if (step + 1 < T::BK / 16) tile_fetch<T>(&f[(step + 1) % 2], stage, step + 1);
        tile_multiply<T>(sum, f[step % 2]);
    }
}

template <class T>
static __device__ __forceinline__ void tile_sum(float sum[T::FM][T::FN][4],
                                                const struct tile_operands &o, bf16 *shared) {
    uint32_t n_slices = CEIL_DIV(o.k, (uint32_t)T::BK);

#pragma unroll
    for (int i = 0; i < T::STAGES - 1; i++) {
        if ((uint32_t)i < n_slices) tile_load<T>(shared + i * T::STAGE, o, (uint32_t)(i * T::BK));
        copy_commit();
    }
    for (uint32_t t = 0; t < n_slices; t++) {
        uint32_t next = t + T::STAGES - 1;

        copy_wait<T::STAGES - 2>();
        __syncthreads();
        if (next < n_slices) tile_load<T>(shared + next % T::STAGES * T::STAGE, o, next * T::BK);
        copy_commit();
        tile_add_slice<T>(sum, shared + t % T::STAGES * T::STAGE);
    }
}

/* Elements (row, column) and (row, column + 1) of Y. */
static __device__ __forceinline__ void tile_store_pair(const struct gemm_args &a, uint32_t row,
                                                       uint32_t column, float first, float second) {
    size_t at = (size_t)row * a.y_stride + column;

    if (a.shape.has_bias) {
        uint32_t bias = *(const uint32_t *)(a.bias + column);

        first += low_of(bias);
        second += high_of(bias);
    }
    if (a.shape.is_f32_out) {
        float2 *y = (float2 *)((float *)a.y + at);

        if (a.shape.accumulates) first += y->x, second += y->y;
        *y = make_float2(first, second);
    } else {
        uint32_t *y = (uint32_t *)((uint16_t *)a.y + at);

        if (a.shape.accumulates) first += low_of(*y), second += high_of(*y);
        *y = pack_bf16(first, second);
    }
}

/* A warp's sums to Y: the block's first row and column, and the rows there are. */
template <class T>
static __device__ __forceinline__ void tile_store(const struct gemm_args &a,
                                                  const float sum[T::FM][T::FN][4], uint32_t m0,
                                                  uint32_t n0) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t row = m0 + warp % T::WM * (T::FM * 16) + lane / 4;
    uint32_t column = n0 + warp / T::WM * (T::FN * 8) + lane % 4 * 2;

#pragma unroll
    for (int i = 0; i < T::FM; i++) {
#pragma unroll
        for (int j = 0; j < T::FN; j++) {
            uint32_t r = row + i * 16, c = column + j * 8;

            if (c >= a.shape.n) continue;
            if (r < a.m) tile_store_pair(a, r, c, sum[i][j][0], sum[i][j][1]);
            if (r + 8 < a.m) tile_store_pair(a, r + 8, c, sum[i][j][2], sum[i][j][3]);
        }
    }
}

/* The tile of Y at (m0, n0). */
template <class T>
static __device__ __forceinline__ void tile_run(const struct gemm_args &a, uint32_t m0, uint32_t n0,
                                                bf16 *shared) {
    float sum[T::FM][T::FN][4] = {};
    struct tile_operands o = {a.x + (size_t)m0 * a.x_stride,
                              a.w + (size_t)n0 * a.shape.k,
                              a.m - m0,
                              a.shape.n - n0,
                              a.x_stride,
                              a.shape.k};

    tile_sum<T>(sum, o, shared);
    tile_store<T>(a, sum, m0, n0);
}

#endif
