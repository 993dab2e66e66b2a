/* kernels/cuda/ops/gemv.cuh - what the two kernels for few rows share: how warps divide the work,
 * how W arrives, and what becomes of a sum. gemv.cu is for one and two rows, gemv_tiles.cu for
 * three to sixteen.
 *
 * W comes by asynchronous copies into a ring of three stages of 2 KiB for each warp, so that 4 KiB
 * of a warp are on their way whenever it waits, and 64 KiB of a multiprocessor that holds two
 * blocks. A lane reads only what it copied itself: no barrier is needed. Registers do not do for
 * this: the loads of a loop that are used in a later turn all share one scoreboard, so a wait for
 * the first of them waits for the last. */
#ifndef KERNELS_CUDA_GEMV_CUH
#define KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/device/simt.h"

#define GEMV_WARPS        8u /* of a block */
#define GEMV_THREADS      (GEMV_WARPS * 32u)
#define GEMV_ENOUGH_WARPS 2048u /* in a grid: sixteen on each of 128 multiprocessors */
#define GEMV_STAGES       3     /* of a warp: 48 KiB of a block, twice within the smallest card's */
#define GEMV_PIECES       4     /* of a stage: copies of 16 bytes for each lane */

/* Bytes of W that a warp uses together; piece p of lane l is piece[p][l]. */
struct gemv_stage {
    uint4 piece[GEMV_PIECES][32];
};

/* A warp's sums lie over its own stages, once all its lanes have used those. */
template <class Sums>
static __device__ __forceinline__ Sums *gemv_found(struct gemv_stage *stages, uint32_t warp) {
    static_assert(sizeof(Sums) <= GEMV_STAGES * sizeof(struct gemv_stage), "a warp's own stages");
    return (Sums *)(stages + warp * GEMV_STAGES);
}

struct gemv_plan {
    struct gemv_args a;
    uint32_t log_split; /* 1 << log_split warps share their rows of W: 1, 2, 4 or 8 */
};

/* Doubled until the device is full, as long as every warp has a whole step of k. Does not look at
 * m, so that a row's bits do not. */
static inline uint32_t gemv_log_split(uint32_t n_groups, uint32_t k, uint32_t step) {
    uint32_t log = 0;

    while (1u << log < GEMV_WARPS && n_groups << log < GEMV_ENOUGH_WARPS && step << (log + 1) <= k)
        log++;
    return log;
}

/* What the norm multiplies a row of results by. */
static __device__ __forceinline__ float gemv_scale(float sum_of_squares,
                                                   const struct gemv_args &a) {
    return rsqrtf(sum_of_squares / (float)a.k + a.eps);
}

static __device__ __forceinline__ float gemv_silu(float gate) {
    return gate / (1.0f + expf(-gate));
}

/* What is added to element (m, n) of the product, as its bits: a conversion would be the first use,
 * and be waited for where the loads stand. */
struct gemv_addends {
    uint32_t bias, before;
};
static __device__ __forceinline__ struct gemv_addends gemv_load_addends(const struct gemv_args &a,
                                                                        uint32_t m, uint32_t n) {
    size_t at = (size_t)m * a.y_stride + n;
    struct gemv_addends add = {0, 0};

    if (a.bias) add.bias = a.bias[n];
    if (!a.accumulates) return add;
    add.before = a.is_f32_out ? ((const uint32_t *)a.y)[at] : ((const uint16_t *)a.y)[at];
    return add;
}

static __device__ __forceinline__ void gemv_store(const struct gemv_args &a, float y,
                                                  struct gemv_addends add, uint32_t m, uint32_t n) {
    size_t at = (size_t)m * a.y_stride + n;

    y += low_of(add.bias);
    if (a.is_f32_out)
        ((float *)a.y)[at] = __uint_as_float(add.before) + y;
    else
        ((bf16 *)a.y)[at] = bf16_of(low_of(add.before) + y);
}

/* ops_gemv for more than two rows. */
void gemv_run_tiles(struct gpu_stream *s, const struct gemv_args *a);

#endif
