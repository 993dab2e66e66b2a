/* kernels/cuda/products/quant_gemv.cu - products of up to sixteen rows with quantised matrices, at
 * the speed of reading the codes once; see quant.h.
 *
 * As gemv_tiles.cu of kernels/cuda/ops: a warp owns sixteen outputs, a row block, or with SwiGLU
 * that of their gates and that of their ups; the tensor cores multiply, W as matrix A, x as matrix
 * B. Units of codes come by asynchronous copies into the warp's ring of stages; a lane reads only
 * what it copied itself. Where n alone gives too few warps, those of a block share a row block,
 * each taking every 2nd, 4th or 8th stage.
 *
 * A stage's products go to the sum of the group under way, which is added to the total, times its
 * scale, where the group ends or the warp goes on in another one. */
#include <assert.h>

#include "kernels/cuda/ops/gemv.cuh"
#include "kernels/cuda/products/quant_codes.cuh"

#define X_ROWS 8 /* per tile */

/* STREAMS: row blocks of a warp. IS_S8: x is int8 codes, and of a matrix with one group; the bits
 * of a sum are an int32's, and warps add them before anything is rounded. */
template <int TILES_, int DTYPE_, bool IS_NORM_, bool IS_SWIGLU_, bool IS_S8_ = false>
struct quant_gemv {
    static constexpr int TILES = TILES_, DTYPE = DTYPE_;
    static constexpr bool IS_S8 = IS_S8_;
    static constexpr bool IS_NORM = IS_NORM_, IS_SWIGLU = IS_SWIGLU_;
    static constexpr int STREAMS = IS_SWIGLU ? 2 : 1, UNITS = GEMV_PIECES / STREAMS;
    static constexpr int UNIT_STEPS = DTYPE == DTYPE_U4 ? 2 : 1;
    static constexpr uint32_t STEPS = UNITS * UNIT_STEPS; /* of a stage */
};

struct quant_gemv_plan {
    struct gemv_args a;
    struct packed_matrix w;
    uint32_t log_split, n_groups, n_units, n_steps;
    const int8_t *codes; /* (m, quant_code_stride) of x, */
    const float *scale;  /* (m) and their scales */
};

/* A lane's part of a warp's sums; see gemv_tiles.cu. */
template <class T> struct lane_sums {
    float sum[T::TILES][T::STREAMS][4], total[T::TILES][T::STREAMS][4];
    int32_t whole[T::TILES][4]; /* IS_S8: the sums */
    float square[T::TILES];
};

/* A warp's sums, for all to see. */
template <class T> struct warp_sums {
    float product[T::TILES * X_ROWS][QUANT_ROWS * T::STREAMS];
    float square[T::TILES * X_ROWS];
};

/* A warp: its row blocks, and the group under way. */
template <class T> struct warp_place {
    uint32_t block[T::STREAMS], share, group;
    float scale[T::STREAMS][2];
    struct quant_zeros zero[T::STREAMS];
};

/* The first step of the warp's i-th stage. */
template <class T>
static __device__ __forceinline__ uint32_t step_of(const struct quant_gemv_plan &p, uint32_t share,
                                                   uint32_t i) {
    return (share + (i << p.log_split)) * T::STEPS;
}

/* Asks for a stage. What lies behind the end of a row block is its last unit again, which is not
 * used; of a stage behind the end nothing is copied, for the warp's sums will lie there. */
template <class T>
static __device__ __forceinline__ void ask(struct gemv_stage *stage,
                                           const struct quant_gemv_plan &p,
                                           const struct warp_place<T> &w, uint32_t i) {
    uint32_t lane = threadIdx.x % 32, first = step_of<T>(p, w.share, i) / T::UNIT_STEPS;

#pragma unroll
    for (int j = 0; j < GEMV_PIECES && first < p.n_units; j++) {
        uint32_t unit = MIN(first + (uint32_t)j % T::UNITS, p.n_units - 1);
        size_t at = (size_t)w.block[j / T::UNITS] * p.n_units + unit;

        copy_async16(&stage->piece[j][lane], p.w.codes + at * QUANT_UNIT_BYTES + lane * 16);
    }
    copy_commit();
}

template <class T>
static __device__ __forceinline__ void begin_group(struct warp_place<T> *w,
                                                   const struct quant_gemv_plan &p,
                                                   uint32_t group) {
    uint32_t row = p.w.has_row_scales ? threadIdx.x % 32 / 4 : 0;

    w->group = group;
#pragma unroll
    for (int i = 0; i < T::STREAMS; i++) {
        const float *scale = quant_scales_at(p.w, p.n_groups, w->block[i], group);

        w->scale[i][0] = scale[row];
        w->scale[i][1] = scale[row + (p.w.has_row_scales ? 8 : 0)];
        w->zero[i] = quant_load_zeros<T::DTYPE>(p.w, p.n_groups, w->block[i], group);
    }
}

template <class T>
static __device__ __forceinline__ void end_group(struct lane_sums<T> *sums,
                                                 const struct warp_place<T> &w) {
#pragma unroll
    for (int t = 0; t < T::TILES; t++) {
#pragma unroll
        for (int i = 0; i < T::STREAMS; i++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                sums->total[t][i][c] =
                    fmaf(sums->sum[t][i][c], w.scale[i][c / 2], sums->total[t][i][c]);
                sums->sum[t][i][c] = 0;
            }
        }
    }
}

static __device__ __forceinline__ uint4 load_or_zeros(const uint16_t *row, uint32_t at,
                                                      uint32_t k) {
    return at < k ? eight_load(row + at) : make_uint4(0, 0, 0, 0);
}

/* x becomes x times weight; its squares are added to `sum`. */
static __device__ __forceinline__ uint4 weigh_eight(uint4 x, uint4 weight, float *sum) {
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

/* A lane's eight inputs of a step, of one row of x in each tile. */
template <class T>
static __device__ __forceinline__ void load_inputs(uint4 x[T::TILES], struct lane_sums<T> *sums,
                                                   const struct gemv_args &a, uint32_t step) {
    uint32_t at = step * QUANT_STEP + threadIdx.x % 4 * 8, row = threadIdx.x % 32 / 4;
    uint4 weight;

    if (T::IS_NORM) weight = load_or_zeros(a.norm_weight, at, a.k);
#pragma unroll
    for (int t = 0; t < T::TILES; t++) {
        x[t] = load_or_zeros(a.x + (size_t)MIN(t * X_ROWS + row, a.m - 1) * a.x_stride, at, a.k);
        if (T::IS_NORM) x[t] = weigh_eight(x[t], weight, &sums->square[t]);
    }
}

template <class T>
static __device__ __forceinline__ void add_step(struct lane_sums<T> *sums,
                                                const struct warp_place<T> &w,
                                                const uint4 x[T::TILES],
                                                const uint4 units[T::STREAMS], int step) {
#pragma unroll
    for (int i = 0; i < T::STREAMS; i++) {
        struct quant_eights codes = quant_eights_of<T::DTYPE>(units[i], step);
        uint32_t top[4], low[4];

        quant_unpack<T::DTYPE>(top, codes.row[0], w.zero[i].of[0]);
        quant_unpack<T::DTYPE>(low, codes.row[1], w.zero[i].of[1]);
        const uint32_t first[4] = {top[0], low[0], top[1], low[1]};
        const uint32_t second[4] = {top[2], low[2], top[3], low[3]};

#pragma unroll
        for (int t = 0; t < T::TILES; t++) {
            multiply_add(sums->sum[t][i], first, x[t].x, x[t].y);
            multiply_add(sums->sum[t][i], second, x[t].z, x[t].w);
        }
    }
}

/* The same with codes of x: whole sums, without groups. */
template <class T>
static __device__ __forceinline__ void add_whole_step(struct lane_sums<T> *sums,
                                                      const struct quant_gemv_plan &p, uint4 unit,
                                                      uint32_t step) {
    uint32_t at = step * QUANT_STEP + threadIdx.x % 4 * 8, row = threadIdx.x % 32 / 4;
    const uint32_t w[4] = {unit.x, unit.z, unit.y, unit.w};

#pragma unroll
    for (int t = 0; t < T::TILES; t++) {
        size_t first = (size_t)MIN(t * X_ROWS + row, p.a.m - 1) * ALIGN_UP(p.a.k, 64u);
        uint2 x = *(const uint2 *)(p.codes + first + at);

        multiply_add_s8(sums->whole[t], w, x.x, x.y);
    }
}

template <class T>
static __device__ __forceinline__ void add_whole_stage(struct lane_sums<T> *sums,
                                                       const struct quant_gemv_plan &p,
                                                       const struct gemv_stage &stage,
                                                       uint32_t from) {
#pragma unroll
    for (uint32_t s = 0; s < T::STEPS; s++) {
        if (s + from >= p.n_steps) return;
        add_whole_step<T>(sums, p, stage.piece[s][threadIdx.x % 32], from + s);
    }
}

/* The steps of a stage; `from` is its first. */
template <class T>
static __device__ __forceinline__ void add_stage(struct lane_sums<T> *sums, struct warp_place<T> *w,
                                                 const struct quant_gemv_plan &p,
                                                 const struct gemv_stage &stage, uint32_t from) {
    uint32_t group_steps = quant_group_steps(p.w), group = from / group_steps;
    uint32_t left = group_steps - from % group_steps;

#pragma unroll
    for (uint32_t s = 0; s < T::STEPS; s++) {
        uint4 x[T::TILES], units[T::STREAMS];

        if (from + s >= p.n_steps) return;
        if (group != w->group) {
            end_group<T>(sums, *w);
            begin_group<T>(w, p, group);
        }
#pragma unroll
        for (int i = 0; i < T::STREAMS; i++)
            units[i] = stage.piece[i * T::UNITS + s / T::UNIT_STEPS][threadIdx.x % 32];
        load_inputs<T>(x, sums, p.a, from + s);
        add_step<T>(sums, *w, x, units, (int)s % T::UNIT_STEPS);
        if (--left == 0) group++, left = group_steps;
    }
}

template <class T>
static __device__ __forceinline__ void add_stages(struct lane_sums<T> *sums,
                                                  struct warp_place<T> *w,
                                                  const struct quant_gemv_plan &p,
                                                  struct gemv_stage *stages) {
    for (uint32_t i = 0, u = 0, from; (from = step_of<T>(p, w->share, i)) < p.n_steps; i++) {
        copy_wait<GEMV_STAGES - 1>();
        if constexpr (T::IS_S8)
            add_whole_stage<T>(sums, p, stages[u], from);
        else
            add_stage<T>(sums, w, p, stages[u], from);
        ask<T>(&stages[u], p, *w, i + GEMV_STAGES);
        u = u + 1 == GEMV_STAGES ? 0 : u + 1;
    }
    if (!T::IS_S8) end_group<T>(sums, *w);
}

/* Lays a lane's sums where all find them. */
template <class T>
static __device__ __forceinline__ void lay_out(struct warp_sums<T> *to,
                                               const struct lane_sums<T> &sums) {
    uint32_t lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;

#pragma unroll
    for (int t = 0; t < T::TILES; t++) {
        float square = sums.square[t];

        square += __shfl_xor_sync(0xFFFFFFFFu, square, 1);
        square += __shfl_xor_sync(0xFFFFFFFFu, square, 2);
        if (lane % 4 == 0) to->square[t * X_ROWS + row] = square;
#pragma unroll
        for (int i = 0; i < T::STREAMS * 4; i++)
            to->product[t * X_ROWS + column + i % 2][i / 4 * QUANT_ROWS + row + i % 4 / 2 * 8] =
                T::IS_S8 ? __int_as_float(sums.whole[t][i % 4]) : sums.total[t][i / 4][i % 4];
    }
}

/* Element (m, r) of x W^T: the warps of a split, from `first` on, together, and the scale of the
 * norm. */
template <class T>
static __device__ float finish_sum(struct gemv_stage *stages, uint32_t first,
                                   const struct quant_gemv_plan &p, uint32_t m, uint32_t r) {
    float product = 0, square = 0;

    for (uint32_t i = 0; i < 1u << p.log_split; i++) {
        const struct warp_sums<T> *part = gemv_found<struct warp_sums<T>>(stages, first + i);

        product += part->product[m][r];
        square += part->square[m];
    }
    return T::IS_NORM ? product * gemv_scale(square, p.a) : product;
}

/* The same of whole sums: as kernels/ref rounds them. n: the output. */
template <class T>
static __device__ float finish_whole(struct gemv_stage *stages, uint32_t first,
                                     const struct quant_gemv_plan &p, uint32_t m, uint32_t r,
                                     uint32_t n) {
    float w_scale = quant_scales_at(p.w, 1, n / QUANT_ROWS, 0)[p.w.has_row_scales ? r : 0];
    int32_t sum = 0;

    for (uint32_t i = 0; i < 1u << p.log_split; i++)
        sum += __float_as_int(gemv_found<struct warp_sums<T>>(stages, first + i)->product[m][r]);
    return __fmul_rn(__fmul_rn((float)sum, w_scale), p.scale[m]);
}

/* The block's outputs, each by one thread: (group of warps, m, output). */
template <class T>
static __device__ __forceinline__ void store_all(const struct quant_gemv_plan &p,
                                                 struct gemv_stage *stages) {
    uint32_t groups = GEMV_WARPS >> p.log_split;

    for (uint32_t i = threadIdx.x; i < groups * p.a.m * QUANT_ROWS; i += GEMV_THREADS) {
        uint32_t group = i / (p.a.m * QUANT_ROWS), m = i / QUANT_ROWS % p.a.m, r = i % QUANT_ROWS;
        uint32_t n = (blockIdx.x * groups + group) * QUANT_ROWS + r, part = group << p.log_split;
        float y;

        if (n >= p.a.n) continue;
        if (T::IS_S8)
            y = finish_whole<T>(stages, part, p, m, r, n);
        else
            y = finish_sum<T>(stages, part, p, m, r);
        if (T::IS_SWIGLU) y = gemv_silu(y) * finish_sum<T>(stages, part, p, m, r + QUANT_ROWS);
        gemv_store(p.a, y, gemv_load_addends(p.a, m, n), m, n);
    }
}

template <class T>
static __global__ void __launch_bounds__(GEMV_THREADS, 2)
    quant_gemv_kernel(const __grid_constant__ struct quant_gemv_plan p) {
    SHARED(struct gemv_stage, stages, GEMV_WARPS * GEMV_STAGES);
    uint32_t groups = GEMV_WARPS >> p.log_split, warp = threadIdx.x / 32;
    uint32_t n_blocks = CEIL_DIV(p.a.n, QUANT_ROWS);
    uint32_t block = MIN(blockIdx.x * groups + (warp >> p.log_split), n_blocks - 1);
    struct gemv_stage *mine = stages + warp * GEMV_STAGES;
    struct lane_sums<T> sums = {};
    struct warp_place<T> w = {};

    w.share = warp & ((1u << p.log_split) - 1);
#pragma unroll
    for (int i = 0; i < T::STREAMS; i++)
        w.block[i] = block + (uint32_t)i * n_blocks; /* ups lie behind all gates */
    for (uint32_t i = 0; i < GEMV_STAGES; i++)
        ask<T>(&mine[i], p, w, i);
    begin_group<T>(&w, p, MIN(step_of<T>(p, w.share, 0) / quant_group_steps(p.w), p.n_groups - 1));
    simt_wait_for_primary();
    simt_launch_dependents();
    add_stages<T>(&sums, &w, p, mine);
    __syncwarp();
    lay_out<T>(gemv_found<struct warp_sums<T>>(stages, warp), sums);
    __syncthreads();
    store_all<T>(p, stages);
}

/* --- launching -------------------------------------------------------------------------------- */

template <class T>
static void launch(struct gpu_stream *s, const struct quant_args *a, const int8_t *codes = NULL,
                   const float *scale = NULL) {
    uint32_t n_blocks = CEIL_DIV(a->a.n, QUANT_ROWS);
    struct quant_gemv_plan p = {a->a,
                                a->w,
                                gemv_log_split(n_blocks, a->w.k, T::STEPS * QUANT_STEP),
                                quant_groups(a->w.k, a->w.group_k),
                                CEIL_DIV(a->w.k, quant_unit_k(a->w.dtype)),
                                CEIL_DIV(a->w.k, QUANT_STEP),
                                codes,
                                scale};

    LAUNCH(quant_gemv_kernel<T>, dim3(CEIL_DIV(n_blocks, GEMV_WARPS >> p.log_split)), GEMV_THREADS,
           0, s, p);
}

template <int TILES, int DTYPE>
static void launch_fused(struct gpu_stream *s, const struct quant_args *a) {
    if (a->a.is_swiglu)
        launch<quant_gemv<TILES, DTYPE, true, true>>(s, a);
    else if (a->a.norm_weight)
        launch<quant_gemv<TILES, DTYPE, true, false>>(s, a);
    else
        launch<quant_gemv<TILES, DTYPE, false, false>>(s, a);
}

template <int TILES> static void launch_type(struct gpu_stream *s, const struct quant_args *a) {
    switch (a->w.dtype) {
    case DTYPE_F8E4M3: launch_fused<TILES, DTYPE_F8E4M3>(s, a); break;
    case DTYPE_I8: launch_fused<TILES, DTYPE_I8>(s, a); break;
    default: launch_fused<TILES, DTYPE_U4>(s, a); break;
    }
}

extern "C" void quant_run_gemv(struct gpu_stream *s, const struct quant_args *a) {
    assert(a->a.m >= 1 && a->a.m <= GEMV_MAX_ROWS && (!a->a.is_swiglu || a->a.norm_weight));
    if (a->a.m <= X_ROWS)
        launch_type<1>(s, a);
    else
        launch_type<2>(s, a);
}

extern "C" void quant_run_whole_gemv(struct gpu_stream *s, const struct quant_args *a,
                                     const int8_t *codes, const float *scale) {
    assert(a->a.m >= 1 && a->a.m <= GEMV_MAX_ROWS && quant_groups(a->w.k, a->w.group_k) == 1);
    if (a->a.m <= X_ROWS)
        launch<quant_gemv<1, DTYPE_I8, false, false, true>>(s, a, codes, scale);
    else
        launch<quant_gemv<2, DTYPE_I8, false, false, true>>(s, a, codes, scale);
}
