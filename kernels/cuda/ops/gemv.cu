/* kernels/cuda/ops/gemv.cu - products of one to four rows, at the speed of reading W once; see
 * ops.h.
 *
 * A warp owns four rows of W. Its lanes read each 16 bytes at a time; the loads of the next turn
 * are issued before this turn's are used, so that 4 KiB per warp (2 KiB with three or four rows,
 * which want the registers) are always on their way, and sixteen warps per multiprocessor cover the
 * latency of the memory. x is small, read by all, and found in L1, where W, which is read once, is
 * not kept. Where n alone gives too few warps, 2, 4 or 8 warps of a block share the four rows, each
 * taking every 2nd, 4th or 8th step of k.
 *
 *      k ──▶  | warp 0 | warp 1 | warp 0 | warp 1 |      (split 2; a step is 256 elements)
 *
 * The order of a sum: a lane's elements by rising k, the lanes of a warp as a tree, the warps of a
 * split by rising number. It depends on n and k, not on m: a row of y has the same bits alone or
 * among four.
 *
 * The norm is folded in: the weights multiply x on the way, the sum of squares is taken beside the
 * products by every warp for its own part of k, and the scale, which is the same for a whole row,
 * multiplies the result. So there is no barrier before the stream of W begins. */
#include <assert.h>

#include "kernels/cuda/ops/gemv.cuh"

#define ROWS 4    /* of W per warp */
#define STEP 256u /* of k, eight for each lane */

/* The numbers of y that a warp makes for each row of x. */
template <bool IS_SWIGLU> static __host__ __device__ constexpr int outputs_of() {
    return IS_SWIGLU ? ROWS / 2 : ROWS;
}

/* What a warp found: products by (row of x, row of W), and squares by row of x. */
template <int M> struct gemv_sums { float product[M][ROWS], square[M]; };

/* The rows of W of a warp whose first output is `first`: four outputs, or two gates and their ups.
 * Past the last, the last again: its result is not stored. */
template <bool IS_SWIGLU>
static __device__ const uint16_t *row_of(const struct gemv_args &a, uint32_t first, int r) {
    uint32_t output = first + (uint32_t)(IS_SWIGLU ? r % 2 : r);
    uint32_t row = MIN(output, a.n - 1) + (IS_SWIGLU && r >= 2 ? a.n : 0);

    return a.w + (size_t)row * a.k;
}

/* Adds the products of eight elements of k. */
template <int M, bool IS_NORM>
static __device__ __forceinline__ void add_eight(struct gemv_sums<M> *sums,
                                                 const struct gemv_args &a, const uint4 w[ROWS],
                                                 uint32_t at) {
    float x[M][8], f[8];

#pragma unroll
    for (int m = 0; m < M; m++)
        eight_unpack(x[m], eight_load(a.x + (size_t)m * a.x_stride + at));
    if (IS_NORM) {
        eight_unpack(f, eight_load(a.norm_weight + at));
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sums->square[m] = fmaf(x[m][i], x[m][i], sums->square[m]);
                x[m][i] *= f[i];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        eight_unpack(f, w[r]);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                sums->product[m][r] = fmaf(f[i], x[m][i], sums->product[m][r]);
        }
    }
}

/* Steps that are loaded together: with one or two rows of x there are registers for two. */
template <int M> static __device__ constexpr int steps_of() {
    return M <= 2 ? 2 : 1;
}

/* What lies behind the end of k is the last of the row again, which is not added. */
template <int STEPS>
static __device__ __forceinline__ void load_steps(uint4 w[STEPS][ROWS],
                                                  const uint16_t *const row[ROWS], uint32_t at,
                                                  uint32_t step, uint32_t k) {
#pragma unroll
    for (int u = 0; u < STEPS; u++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            w[u][r] = load_once(row[r] + MIN(at + u * step, k - 8));
    }
}

/* The lane's share of its warp's part of k, the next steps always on their way: loaded within the
 * same turn, the compiler would put each load beside its use. */
template <int M, bool IS_NORM, bool IS_SWIGLU>
static __device__ __forceinline__ void add_lane(struct gemv_sums<M> *sums,
                                                const struct gemv_plan &p, uint32_t first,
                                                uint32_t part) {
    constexpr int STEPS = steps_of<M>();
    uint32_t k = p.a.k;
    uint32_t step = STEP << p.log_split, at = part * STEP + threadIdx.x % 32 * 8;
    const uint16_t *row[ROWS];
    uint4 w[STEPS][ROWS], next[STEPS][ROWS];

#pragma unroll
    for (int r = 0; r < ROWS; r++)
        row[r] = row_of<IS_SWIGLU>(p.a, first, r);
    load_steps<STEPS>(next, row, at, step, p.a.k);
    for (uint32_t from = part * STEP; from < k; from += STEPS * step, at += STEPS * step) {
        memcpy(w, next, sizeof(w));
        if (from + STEPS * step < k) load_steps<STEPS>(next, row, at + STEPS * step, step, p.a.k);
#pragma unroll
        for (int u = 0; u < STEPS; u++)
            if (at + u * step < k) add_eight<M, IS_NORM>(sums, p.a, w[u], at + u * step);
    }
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, mask);
    return x;
}

template <int M> static __device__ __forceinline__ void sum_lanes(struct gemv_sums<M> *sums) {
#pragma unroll
    for (int m = 0; m < M; m++) {
        sums->square[m] = warp_sum(sums->square[m]);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sums->product[m][r] = warp_sum(sums->product[m][r]);
    }
}

/* Element (m, r) of x W^T: the warps of a split together, and the scale of the norm. */
template <int M, bool IS_NORM>
static __device__ float finish_sum(const struct gemv_sums<M> *part, const struct gemv_plan &p,
                                   int m, int r) {
    float product = 0, square = 0;

    for (uint32_t i = 0; i < 1u << p.log_split; i++) {
        product += part[i].product[m][r];
        square += part[i].square[m];
    }
    return IS_NORM ? product * gemv_scale(square, p.a) : product;
}

template <int M, bool IS_NORM, bool IS_SWIGLU>
static __global__ void __launch_bounds__(GEMV_THREADS, 2)
    gemv_kernel(const __grid_constant__ struct gemv_plan p) {
    simt_wait_for_primary();

    constexpr int OUTPUTS = outputs_of<IS_SWIGLU>();
    SHARED(struct gemv_sums<M>, found, GEMV_WARPS);
    uint32_t groups = GEMV_WARPS >> p.log_split, warp = threadIdx.x / 32;
    uint32_t first = (blockIdx.x * groups + (warp >> p.log_split)) * OUTPUTS;
    struct gemv_sums<M> sums = {};
    struct gemv_addends add = {0, 0};

    /* One thread for each number of y: (group, m, output). What it adds is loaded before the stream
     * of W, or the block would end with a wait for it. */
    uint32_t group = threadIdx.x / (M * OUTPUTS);
    int m = threadIdx.x / OUTPUTS % M, r = threadIdx.x % OUTPUTS;
    uint32_t n = (blockIdx.x * groups + group) * OUTPUTS + r;
    bool has_output = group < groups && n < p.a.n;

    if (has_output && !IS_SWIGLU) add = gemv_load_addends(p.a, m, n);
    add_lane<M, IS_NORM, IS_SWIGLU>(&sums, p, first, warp & ((1u << p.log_split) - 1));
    sum_lanes<M>(&sums);
    if (threadIdx.x % 32 == 0) found[warp] = sums;
    __syncthreads();
    if (!has_output) return;

    const struct gemv_sums<M> *part = found + (group << p.log_split);
    float y = finish_sum<M, IS_NORM>(part, p, m, r);

    if (IS_SWIGLU) y = gemv_silu(y) * finish_sum<M, IS_NORM>(part, p, m, r + OUTPUTS);
    gemv_store(p.a, y, add, m, n);
}

template <int M, bool IS_NORM, bool IS_SWIGLU>
static void launch(struct gpu_stream *s, const struct gemv_args *a) {
    uint32_t n_groups = CEIL_DIV(a->n, (uint32_t)outputs_of<IS_SWIGLU>());
    struct gemv_plan p = {*a, gemv_log_split(n_groups, a->k, STEP)};
    dim3 grid(CEIL_DIV(n_groups, GEMV_WARPS >> p.log_split));

    LAUNCH((gemv_kernel<M, IS_NORM, IS_SWIGLU>), grid, GEMV_THREADS, 0, s, p);
}

template <int M> static void launch_rows(struct gpu_stream *s, const struct gemv_args *a) {
    if (a->norm_weight && a->is_swiglu)
        launch<M, true, true>(s, a);
    else if (a->norm_weight)
        launch<M, true, false>(s, a);
    else if (a->is_swiglu)
        launch<M, false, true>(s, a);
    else
        launch<M, false, false>(s, a);
}

extern "C" void ops_gemv(struct gpu_stream *s, const struct gemv_args *a) {
    if (a->m == 0) return;
    assert(a->m <= GEMV_MAX_ROWS && a->k % 8 == 0 && a->x_stride % 8 == 0);
    switch (a->m) {
    case 1: launch_rows<1>(s, a); break;
    case 2: launch_rows<2>(s, a); break;
    case 3: launch_rows<3>(s, a); break;
    case 4: launch_rows<4>(s, a); break;
    default: gemv_run_tiles(s, a); break;
    }
}
