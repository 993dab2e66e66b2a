/* kernels/cuda/ops/gemv.cu - products of one or two rows, at the speed of reading W once; see
 * ops.h.
 *
 * A warp owns four rows of W. Its lanes take 16 bytes of each at a time, out of the ring of
 * gemv.cuh. x is small, read by all, and found in L1, where W, which is read once, is not kept.
 * Where n alone gives too few warps, 2, 4 or 8 warps of a block share the four rows, each taking
 * every 2nd, 4th or 8th step of k.
 *
 *      k ──▶  | warp 0 | warp 1 | warp 0 | warp 1 |      (split 2; a step is 256 elements)
 *
 * The order of a sum: a lane's elements by rising k, the lanes of a warp as a tree, the warps of a
 * split by rising number. It depends on n and k, not on m: a row of y has the same bits alone or
 * beside another.
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

/* Asks for a lane's part of the step at `at`; behind the end of k, for nothing. */
static __device__ __forceinline__ void ask_step(struct gemv_stage *to,
                                                const uint16_t *const row[ROWS], uint32_t at,
                                                uint32_t k) {
    if (at < k) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            copy_async16(&to->piece[r][threadIdx.x % 32], row[r] + at);
    }
    copy_commit();
}

/* Where a lane reads: its warp's rows of W, from `at` on, every `step`. */
struct gemv_lane {
    const uint16_t *row[ROWS];
    uint32_t at, step;
};

/* Asks for the first stages: W is written by no kernel of a step, so this needs no wait. */
template <bool IS_SWIGLU>
static __device__ __forceinline__ struct gemv_lane begin_lane(const struct gemv_plan &p,
                                                              uint32_t first, uint32_t part,
                                                              struct gemv_stage *stages) {
    struct gemv_lane l;

    l.step = STEP << p.log_split;
    l.at = part * STEP + threadIdx.x % 32 * 8;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        l.row[r] = row_of<IS_SWIGLU>(p.a, first, r);
#pragma unroll
    for (int u = 0; u < GEMV_STAGES; u++)
        ask_step(&stages[u], l.row, l.at + u * l.step, p.a.k);
    return l;
}

/* The lane's share of its warp's part of k. A stage is asked for again when it has been used. */
template <int M, bool IS_NORM>
static __device__ __forceinline__ void add_lane(struct gemv_sums<M> *sums,
                                                const struct gemv_plan &p,
                                                const struct gemv_lane &l,
                                                struct gemv_stage *stages) {
    uint32_t k = p.a.k, lane = threadIdx.x % 32, at = l.at;

    for (uint32_t from = at - lane * 8, u = 0; from < k; from += l.step, at += l.step) {
        uint4 w[ROWS];

        copy_wait<GEMV_STAGES - 1>();
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            w[r] = stages[u].piece[r][lane];
        if (at < k) add_eight<M, IS_NORM>(sums, p.a, w, at);
        ask_step(&stages[u], l.row, at + GEMV_STAGES * l.step, k);
        u = u + 1 == GEMV_STAGES ? 0 : u + 1;
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

/* Element (m, r) of x W^T: the warps of a split, from `first` on, together, and the scale of the
 * norm. */
template <int M, bool IS_NORM>
static __device__ float finish_sum(struct gemv_stage *stages, uint32_t first,
                                   const struct gemv_plan &p, int m, int r) {
    float product = 0, square = 0;

    for (uint32_t i = 0; i < 1u << p.log_split; i++) {
        const struct gemv_sums<M> *part = gemv_found<struct gemv_sums<M>>(stages, first + i);

        product += part->product[m][r];
        square += part->square[m];
    }
    return IS_NORM ? product * gemv_scale(square, p.a) : product;
}

template <int M, bool IS_NORM, bool IS_SWIGLU>
static __global__ void __launch_bounds__(GEMV_THREADS, M == 1 ? 4 : 3)
    gemv_kernel(const __grid_constant__ struct gemv_plan p) {
    constexpr int OUTPUTS = outputs_of<IS_SWIGLU>();
    SHARED(struct gemv_stage, stages, GEMV_WARPS * GEMV_STAGES);
    uint32_t groups = GEMV_WARPS >> p.log_split, warp = threadIdx.x / 32;
    uint32_t first = (blockIdx.x * groups + (warp >> p.log_split)) * OUTPUTS;
    struct gemv_stage *mine = stages + warp * GEMV_STAGES;
    struct gemv_lane lane = begin_lane<IS_SWIGLU>(p, first, warp & ((1u << p.log_split) - 1), mine);
    struct gemv_sums<M> sums = {};
    struct gemv_addends add = {0, 0};

    /* One thread for each number of y: (group, m, output). What it adds is loaded before the sums
     * of W, or the block would end with a wait for it. */
    uint32_t group = threadIdx.x / (M * OUTPUTS);
    int m = threadIdx.x / OUTPUTS % M, r = threadIdx.x % OUTPUTS;
    uint32_t n = (blockIdx.x * groups + group) * OUTPUTS + r;
    bool has_output = group < groups && n < p.a.n;

    simt_wait_for_primary();
    simt_launch_dependents();
    if (has_output && !IS_SWIGLU) add = gemv_load_addends(p.a, m, n);
    add_lane<M, IS_NORM>(&sums, p, lane, mine);
    sum_lanes<M>(&sums);
    __syncwarp();
    if (threadIdx.x % 32 == 0) *gemv_found<struct gemv_sums<M>>(stages, warp) = sums;
    __syncthreads();
    if (!has_output) return;

    float y = finish_sum<M, IS_NORM>(stages, group << p.log_split, p, m, r);

    if (IS_SWIGLU)
        y = gemv_silu(y) * finish_sum<M, IS_NORM>(stages, group << p.log_split, p, m, r + OUTPUTS);
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
    default: gemv_run_tiles(s, a); break;
    }
}
