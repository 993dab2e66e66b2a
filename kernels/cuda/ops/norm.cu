/* kernels/cuda/ops/norm.cu - the residual stream and its RMSNorm; see ops.h.
 *
 * A block per row. The row is read once, 16 bytes at a time, kept in registers while the block sums
 * its squares, and written as h; the residual goes back in between, and what is normalised is the
 * rounded value that goes back, so that a later reader of x sees what this norm saw.
 *
 * Threads follow the width: one piece of eight per thread up to 512 threads, because a decode step
 * has few rows and what counts is how soon the last load was issued; then 2 or 4 pieces per
 * thread. */
#include <assert.h>

#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/ops/ops.h"

#define MAX_THREADS 512u
#define MAX_PIECES  4u /* OPS_MAX_WIDTH / 8 / MAX_THREADS */

/* The same sum in every thread. `sums` has a place for each warp. */
static __device__ float block_sum(float x, float *sums) {
    uint32_t n_warps = blockDim.x / 32;

#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, mask);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (uint32_t i = 0; i < n_warps; i++)
        x += sums[i];
    return x;
}

/* x + y + bias, the eight at `at` of a row, rounded; stored where it stays the residual. */
static __device__ uint4 add_to_residual(const struct norm_args &a, size_t row, uint32_t at, uint4 x,
                                        uint4 y) {
    float f[8], g[8];
    uint4 sum;

    eight_unpack(f, x);
    eight_unpack(g, y);
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] += g[i];
    eight_add(f, a.bias, at);
    sum = eight_pack(f);
    if (!a.row) eight_store(a.x + row * a.d + at, sum);
    return sum;
}

static __device__ float sum_of_squares(uint4 x) {
    float f[8], sum = 0;

    eight_unpack(f, x);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(f[i], f[i], sum);
    return sum;
}

static __device__ uint4 scale_by(uint4 x, uint4 weight, float scale) {
    float f[8], w[8];

    eight_unpack(f, x);
    eight_unpack(w, weight);
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] *= scale * w[i];
    return eight_pack(f);
}

template <int N_PIECES>
static __global__ void __launch_bounds__(MAX_THREADS)
    norm_kernel(const __grid_constant__ struct norm_args a) {
    SHARED(float, sums, MAX_THREADS / 32);
    uint4 x[N_PIECES], y[N_PIECES], weight[N_PIECES];
    float sum = 0, scale;

    /* all loads before the first use; that of the weights before the wait */
#pragma unroll
    for (int p = 0; p < N_PIECES; p++) {
        uint32_t at = (threadIdx.x + p * blockDim.x) * 8;

        if (at < a.d) weight[p] = eight_load(a.weight + at);
    }
    simt_wait_for_primary();
    simt_launch_dependents();

    size_t row = a.row ? a.row[(size_t)blockIdx.x * a.row_stride] : blockIdx.x;
#pragma unroll
    for (int p = 0; p < N_PIECES; p++) {
        uint32_t at = (threadIdx.x + p * blockDim.x) * 8;

        if (at >= a.d) continue;
        x[p] = eight_load(a.x + row * a.d + at);
        if (a.y) y[p] = eight_load(a.y + row * a.d + at);
    }
#pragma unroll
    for (int p = 0; p < N_PIECES; p++) {
        uint32_t at = (threadIdx.x + p * blockDim.x) * 8;

        if (at >= a.d) continue;
        if (a.y) x[p] = add_to_residual(a, row, at, x[p], y[p]);
        sum += sum_of_squares(x[p]);
    }
    scale = rsqrtf(block_sum(sum, sums) / (float)a.d + a.eps);
#pragma unroll
    for (int p = 0; p < N_PIECES; p++) {
        uint32_t at = (threadIdx.x + p * blockDim.x) * 8;

        if (at < a.d)
            eight_store(a.h + (size_t)blockIdx.x * a.d + at, scale_by(x[p], weight[p], scale));
    }
}

extern "C" void ops_norm(struct gpu_stream *s, const struct norm_args *a) {
    uint32_t n_threads = MIN(MAX_THREADS, CEIL_DIV(a->d / 8, 32u) * 32u);
    uint32_t n_pieces = CEIL_DIV(a->d / 8, n_threads);

    assert(a->d % 8 == 0 && n_pieces <= MAX_PIECES);
    if (a->n == 0) return;
    if (n_pieces == 1)
        LAUNCH(norm_kernel<1>, dim3(a->n), n_threads, 0, s, *a);
    else if (n_pieces == 2)
        LAUNCH(norm_kernel<2>, dim3(a->n), n_threads, 0, s, *a);
    else
        LAUNCH(norm_kernel<4>, dim3(a->n), n_threads, 0, s, *a);
}
