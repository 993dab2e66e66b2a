/* kernels/cuda/ops/gemv_tiles.cu - products of three to sixteen rows, at the speed of reading W
 * once; see ops.h.
 *
 * As gemv.cu, but a warp owns sixteen rows of W and the tensor cores multiply: W is the matrix A of
 * the instruction, sixteen rows by k, and x the matrix B, k by eight rows of x. In what order the
 * instruction's sixteen k lie in memory does not matter as long as it is the same for both, so each
 * lane reads 16 bytes in a row and calls them what it must hold:
 *
 *      lane l     W row l / 4      x row l / 4      elements 8 * (l % 4) .. + 8 of 32
 *                                                   0..4: first product   4..8: second
 *
 * A stage of the ring has two steps of 32; two stages are a chunk, the part of k that a warp takes
 * at a time where several share their rows.
 *
 * The norm is folded in as there, except that the tensor cores want x times weight rounded to bf16;
 * the scale still multiplies the sum. Rows of x that are not there are the last one again, rows of
 * W too; their results are not stored. */
#include <assert.h>

#include "kernels/cuda/ops/gemv.cuh"

#define W_ROWS 16  /* per warp */
#define X_ROWS 8   /* per tile */
#define STEP   32u /* of k, two products */
#define STEPS  2   /* of a stage */
#define HALF   (STEP * STEPS)
#define CHUNK  (2 * HALF)

/* The numbers of y that a warp makes for each row of x: with SwiGLU, of eight gates and their
 * ups. */
template <bool IS_SWIGLU> static __host__ __device__ constexpr uint32_t outputs_of() {
    return IS_SWIGLU ? W_ROWS / 2 : W_ROWS;
}

/* A lane's part of a warp's sums. */
template <int TILES> struct lane_sums {
    /* W rows l / 4 and, from [2] on, l / 4 + 8; x rows 2 * (l % 4) and the next */
    float product[TILES][4];
    float square[TILES]; /* of x row l / 4, its own elements only */
};

/* A warp's sums, for all to see. */
template <int TILES> struct warp_sums {
    float product[TILES * X_ROWS][W_ROWS];
    float square[TILES * X_ROWS];
};

/* Where a lane reads: two rows of W, and one row of x per tile. */
template <int TILES> struct lane_rows { const uint16_t *w[2], *x[TILES]; };

template <int TILES, bool IS_SWIGLU>
static __device__ __forceinline__ struct lane_rows<TILES> rows_of(const struct gemv_args &a,
                                                                  uint32_t first) {
    uint32_t row = threadIdx.x % 32 / 4, output = MIN(first + row, a.n - 1);
    uint32_t second = IS_SWIGLU ? a.n + output : MIN(first + row + 8, a.n - 1);
    struct lane_rows<TILES> r;

    r.w[0] = a.w + (size_t)output * a.k;
    r.w[1] = a.w + (size_t)second * a.k;
#pragma unroll
    for (int t = 0; t < TILES; t++)
        r.x[t] = a.x + (size_t)MIN(t * X_ROWS + row, a.m - 1) * a.x_stride;
    return r;
}

/* x becomes x times weight; its squares are added to `sum`. */
static __device__ __forceinline__ uint4
weigh_eight(uint4 x, uint4 weight, float *sum) {
    float f[8], w[8];

    eight_unpack(f, x);
    eight_unpack(w, weight);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        *sum = fmaf(f[i], f[i], *sum);
        f[i] *= w[i];
    }
    return eight_pack(f);
}

static __device__ __forceinline__ void multiply(float product[4], const uint4 w[2], uint4 x) {
    const uint32_t first[4] = {w[0].x, w[1].x, w[0].y, w[1].y};
    const uint32_t second[4] = {w[0].z, w[1].z, w[0].w, w[1].w};

    multiply_add(product, first, x.x, x.y);
    multiply_add(product, second, x.z, x.w);
}

/* Where half `i` of a warp's part of k begins: its chunks are `stride` apart. */
static __device__ __forceinline__ uint32_t half_at(uint32_t part, uint32_t i, uint32_t stride) {
    return part * CHUNK + i / 2 * stride + i % 2 * HALF;
}

/* Asks for a lane's part of the half chunk of W at `from`, unless that is behind the end of k. Of
 * one that reaches over the end, what lies behind is the last of the row again: it meets zeros. */
static __device__ __forceinline__ void ask_half(struct gemv_stage *to, const uint16_t *const row[2],
                                                uint32_t from, uint32_t k) {
    uint32_t lane = threadIdx.x % 32, at = from + lane % 4 * 8;

    if (from < k) {
#pragma unroll
        for (uint32_t i = 0; i < GEMV_PIECES; i++)
            copy_async16(&to->piece[i][lane], row[i % 2] + MIN(at + i / 2 * STEP, k - 8));
    }
    copy_commit();
}

static __device__ __forceinline__ uint4 load_or_zeros(const uint16_t *row, uint32_t at,
                                                      uint32_t k) {
    return at < k ? eight_load(row + at) : make_uint4(0, 0, 0, 0);
}

template <int TILES, bool IS_NORM>
static __device__ __forceinline__ void multiply_half(struct lane_sums<TILES> *sums,
                                                     const struct gemv_args &a,
                                                     const uint16_t *const row[TILES],
                                                     const uint4 w[GEMV_PIECES], uint32_t at,
                                                     uint32_t k) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint4 weight;

        if (IS_NORM) weight = load_or_zeros(a.norm_weight, at + s * STEP, k);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint4 x = load_or_zeros(row[t], at + s * STEP, k);

            if (IS_NORM) x = weigh_eight(x, weight, &sums->square[t]);
            multiply(sums->product[t], &w[2 * s], x);
        }
    }
}

/* Asks for the first stages: W is written by no kernel of a step, so this needs no wait. */
static __device__ __forceinline__ void begin_halves(const struct gemv_plan &p,
                                                    const uint16_t *const row[2], uint32_t part,
                                                    struct gemv_stage *stages) {
#pragma unroll
    for (uint32_t i = 0; i < GEMV_STAGES; i++)
        ask_half(&stages[i], row, half_at(part, i, CHUNK << p.log_split), p.a.k);
}

/* The warp's part of k. A stage is asked for again when it has been used. */
template <int TILES, bool IS_NORM>
static __device__ __forceinline__ void add_halves(struct lane_sums<TILES> *sums,
                                                  const struct gemv_plan &p,
                                                  const struct lane_rows<TILES> &rows,
                                                  uint32_t part, struct gemv_stage *stages) {
    uint32_t k = p.a.k, stride = CHUNK << p.log_split, lane = threadIdx.x % 32;

    for (uint32_t i = 0, u = 0, from; (from = half_at(part, i, stride)) < k; i++) {
        uint4 w[GEMV_PIECES];

        copy_wait<GEMV_STAGES - 1>();
#pragma unroll
        for (int j = 0; j < GEMV_PIECES; j++)
            w[j] = stages[u].piece[j][lane];
        multiply_half<TILES, IS_NORM>(sums, p.a, rows.x, w, from + lane % 4 * 8, k);
        ask_half(&stages[u], rows.w, half_at(part, i + GEMV_STAGES, stride), k);
        u = u + 1 == GEMV_STAGES ? 0 : u + 1;
    }
}

/* Lays a lane's sums where all find them. */
template <int TILES>
static __device__ __forceinline__ void lay_out(struct warp_sums<TILES> *to,
                                               const struct lane_sums<TILES> &sums) {
    uint32_t lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;

#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float square = sums.square[t];

        square += __shfl_xor_sync(0xFFFFFFFFu, square, 1);
        square += __shfl_xor_sync(0xFFFFFFFFu, square, 2);
        if (lane % 4 == 0) to->square[t * X_ROWS + row] = square;
#pragma unroll
        for (int i = 0; i < 4; i++)
            to->product[t * X_ROWS + column + i % 2][row + i / 2 * 8] = sums.product[t][i];
    }
}

/* Element (m, r) of x W^T: the warps of a split, from `first` on, together, and the scale of the
 * norm. */
template <int TILES, bool IS_NORM>
static __device__ float finish_sum(struct gemv_stage *stages, uint32_t first,
                                   const struct gemv_plan &p, uint32_t m, uint32_t r) {
    float product = 0, square = 0;

    for (uint32_t i = 0; i < 1u << p.log_split; i++) {
        const struct warp_sums<TILES> *part =
            gemv_found<struct warp_sums<TILES>>(stages, first + i);

        product += part->product[m][r];
        square += part->square[m];
    }
    return IS_NORM ? product * gemv_scale(square, p.a) : product;
}

template <int TILES, bool IS_NORM, bool IS_SWIGLU>
static __global__ void __launch_bounds__(GEMV_THREADS, 3)
    gemv_tiles_kernel(const __grid_constant__ struct gemv_plan p) {
    constexpr uint32_t OUTPUTS = outputs_of<IS_SWIGLU>();
    SHARED(struct gemv_stage, stages, GEMV_WARPS * GEMV_STAGES);
    uint32_t groups = GEMV_WARPS >> p.log_split, warp = threadIdx.x / 32;
    uint32_t first = (blockIdx.x * groups + (warp >> p.log_split)) * OUTPUTS;
    uint32_t share = warp & ((1u << p.log_split) - 1);
    struct gemv_stage *mine = stages + warp * GEMV_STAGES;
    struct lane_rows<TILES> rows = rows_of<TILES, IS_SWIGLU>(p.a, first);
    struct lane_sums<TILES> sums = {};

    begin_halves(p, rows.w, share, mine);
    simt_wait_for_primary();
    simt_launch_dependents();
    add_halves<TILES, IS_NORM>(&sums, p, rows, share, mine);
    __syncwarp();
    lay_out<TILES>(gemv_found<struct warp_sums<TILES>>(stages, warp), sums);
    __syncthreads();

    for (uint32_t i = threadIdx.x; i < groups * p.a.m * OUTPUTS; i += GEMV_THREADS) {
        uint32_t group = i / (p.a.m * OUTPUTS), m = i / OUTPUTS % p.a.m, r = i % OUTPUTS;
        uint32_t n = (blockIdx.x * groups + group) * OUTPUTS + r, part = group << p.log_split;
        float y = finish_sum<TILES, IS_NORM>(stages, part, p, m, r);

        if (IS_SWIGLU)
            y = gemv_silu(y) * finish_sum<TILES, IS_NORM>(stages, part, p, m, r + OUTPUTS);
        if (n < p.a.n) gemv_store(p.a, y, gemv_load_addends(p.a, m, n), m, n);
    }
}

template <int TILES, bool IS_NORM, bool IS_SWIGLU>
static void launch(struct gpu_stream *s, const struct gemv_args *a) {
    uint32_t n_groups = CEIL_DIV(a->n, outputs_of<IS_SWIGLU>());
    struct gemv_plan p = {*a, gemv_log_split(n_groups, a->k, CHUNK)};
    dim3 grid(CEIL_DIV(n_groups, GEMV_WARPS >> p.log_split));

    LAUNCH((gemv_tiles_kernel<TILES, IS_NORM, IS_SWIGLU>), grid, GEMV_THREADS, 0, s, p);
}

template <int TILES> static void launch_tiles(struct gpu_stream *s, const struct gemv_args *a) {
    if (a->norm_weight && a->is_swiglu)
        launch<TILES, true, true>(s, a);
    else if (a->norm_weight)
        launch<TILES, true, false>(s, a);
    else if (a->is_swiglu)
        launch<TILES, false, true>(s, a);
    else
        launch<TILES, false, false>(s, a);
}

void gemv_run_tiles(struct gpu_stream *s, const struct gemv_args *a) {
    assert(a->m >= 1 && a->m <= 2 * X_ROWS);
    if (a->m <= X_ROWS)
        launch_tiles<1>(s, a);
    else
        launch_tiles<2>(s, a);
}
