/* kernels/cuda/products/quant_tile.cu - products of many rows with quantised matrices; see quant.h.
 *
 * As tile.cuh, in slices of 64 inputs, with two sums for each element of Y: that of the group under
 * way, and the total, to which it is added times its scale when the group ends. Codes come to
 * shared memory as they are packed; a lane turns its own into the fragments of a product, so no
 * unpacked weight is ever stored. Their order of inputs is that of the packing: a lane's eight
 * inputs of 32 are its parts of two products, so it reads X by 16 bytes, not by matrix loads.
 *
 *      shared   | X 0 | units 0 | X 1 | units 1 | ...
 *
 * Eight lanes read 128 bytes of X at once, four pieces of two rows. bf16: a row is 128 bytes, and
 * odd rows have their halves exchanged. int8: a row is 64 bytes, its lanes read 8 each, and rows 2
 * and 3 of every four have theirs exchanged. */
#include "kernels/cuda/products/quant_codes.cuh"
#include "kernels/cuda/products/tile.cuh"

#define SLICE 64 /* inputs */

/* IS_S8: X is int8 codes, sums are whole. */
template <int DTYPE_, bool IS_S8_, class Shape> struct quant_tile : Shape {
    static constexpr int DTYPE = DTYPE_;
    static constexpr bool IS_S8 = IS_S8_;
    static constexpr int X_ROW = IS_S8 ? SLICE : SLICE * 2; /* bytes */
    static constexpr int X_BYTES = Shape::BM * X_ROW;
    static constexpr int UNITS = DTYPE == DTYPE_U4 ? 1 : 2; /* of a row block in a slice */
    static constexpr int N_BLOCKS = Shape::BN / 16;         /* row blocks */
    static constexpr int STAGE_BYTES = X_BYTES + N_BLOCKS * UNITS * (int)QUANT_UNIT_BYTES;
    static constexpr int ALL_BYTES = STAGE_BYTES * Shape::STAGES;
};

typedef tile_shape<128, 128, SLICE, 2, 4, 4, 1> shape_large;
typedef tile_shape<32, 64, SLICE, 1, 4, 8, 2> shape_small;

struct quant_tile_args {
    struct gemm_args y; /* x and w are not looked at */
    struct packed_matrix w;
    const uint8_t *x;     /* bf16, or codes */
    uint64_t x_row_bytes; /* from row to row */
    const float *x_scale; /* (m) of codes */
    uint32_t n_groups, n_units;
};

/* The byte of a slice of X where 16-byte piece `piece` of row `row` lies. */
template <class T> static __device__ __forceinline__ int x_at(int row, int piece) {
    if (T::IS_S8) return row * T::X_ROW + (piece ^ (row >> 1 & 1) * 2) * 16;
    return row * T::X_ROW + (piece ^ (row & 1) * 4) * 16;
}

template <class T>
static __device__ __forceinline__ void load_x(uint8_t *stage, const struct quant_tile_args &a,
                                              uint32_t m0, uint32_t slice) {
    constexpr int PIECES = T::X_ROW / 16;
    uint64_t row_bytes = T::IS_S8 ? a.x_row_bytes : (uint64_t)a.w.k * 2;

#pragma unroll
    for (int i = 0; i < T::BM * PIECES / T::THREADS; i++) {
        int at = (int)threadIdx.x + i * T::THREADS, row = at / PIECES, piece = at % PIECES;
        uint64_t byte = (uint64_t)slice * T::X_ROW + (uint32_t)piece * 16;
        const uint8_t *from = a.x + MIN(m0 + (uint32_t)row, a.y.m - 1) * a.x_row_bytes;
        bool is_there = byte < row_bytes;

        copy_async16_if(stage + x_at<T>(row, piece), from + (is_there ? byte : 0), is_there);
    }
}

template <class T>
static __device__ __forceinline__ void load_units(uint8_t *stage, const struct quant_tile_args &a,
                                                  uint32_t n0, uint32_t slice) {
    uint32_t last_block = (a.w.n - 1) / QUANT_ROWS;

#pragma unroll
    for (int i = 0; i < T::N_BLOCKS * T::UNITS * 32 / T::THREADS; i++) {
        int at = (int)threadIdx.x + i * T::THREADS, piece = at % 32, unit = at / 32;
        uint32_t block = MIN(n0 / QUANT_ROWS + (uint32_t)(unit / T::UNITS), last_block);
        uint32_t in_row = slice * T::UNITS + (uint32_t)(unit % T::UNITS);
        bool is_there = in_row < a.n_units;
        uint64_t from = (uint64_t)block * a.n_units + (is_there ? in_row : 0);

        copy_async16_if(stage + T::X_BYTES + at * 16,
                        a.w.codes + from * QUANT_UNIT_BYTES + piece * 16, is_there);
    }
}

/* What a warp has: its place in the tile, its sums, and the group under way. */
template <class Number, int FM, int FN> struct quant_sums {
    int x_row, block;     /* first row of X, first row block, in the tile */
    uint32_t w_block;     /* the same of the matrix */
    uint32_t group, left; /* steps that the group has left */
    float scale[FN][2];
    struct quant_zeros zero[FN / 2];
    Number sum[FM][FN][4];
    float total[FM][FN][4];
};
template <class T> struct sums_of { typedef quant_sums<float, T::FM, T::FN> type; };
template <class Shape> struct sums_of<quant_tile<DTYPE_I8, true, Shape>> {
    typedef quant_sums<int32_t, Shape::FM, Shape::FN> type;
};

/* Scales of a lane's columns, zeros of its rows of W. What lies behind the last row block is that
 * again: it is not stored. */
template <class T, class Sums>
static __device__ __forceinline__ void begin_group(Sums *w, const struct quant_tile_args &a) {
    uint32_t last_block = (a.w.n - 1) / QUANT_ROWS, column = threadIdx.x % 4 * 2;

    w->left = quant_group_steps(a.w);
#pragma unroll
    for (int j = 0; j < T::FN; j++) {
        uint32_t block = MIN(w->w_block + j / 2, last_block);
        const float *at = quant_scales_at(a.w, a.n_groups, block, w->group);
        uint32_t first = a.w.has_row_scales ? j % 2 * 8 + column : 0;

        w->scale[j][0] = at[first];
        w->scale[j][1] = at[first + a.w.has_row_scales];
        if (j % 2 == 0)
            w->zero[j / 2] = quant_load_zeros<T::DTYPE>(a.w, a.n_groups, block, w->group);
    }
}

/* Rounded twice, as kernels/ref has it, where sums are whole. */
static __device__ __forceinline__ float add_scaled(float total, float sum, float scale) {
    return fmaf(sum, scale, total);
}
static __device__ __forceinline__ float add_scaled(float total, int32_t sum, float scale) {
    return __fadd_rn(total, __fmul_rn((float)sum, scale));
}

template <class T, class Sums> static __device__ __forceinline__ void end_group(Sums *w) {
#pragma unroll
    for (int i = 0; i < T::FM; i++) {
#pragma unroll
        for (int j = 0; j < T::FN; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                w->total[i][j][c] =
                    add_scaled(w->total[i][j][c], w->sum[i][j][c], w->scale[j][c % 2]);
                w->sum[i][j][c] = 0;
            }
        }
    }
    w->group++;
}

/* A lane's inputs of a step: of rows lane / 4 and lane / 4 + 8, eight each. */
template <class T>
static __device__ __forceinline__ void fetch_x(uint4 x[T::FM][2], const uint8_t *stage, int x_row,
                                               int step) {
    int row = x_row + (int)threadIdx.x % 32 / 4, c = (int)threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < T::FM * 2; i++) {
        if (T::IS_S8) {
            uint2 codes =
                *(const uint2 *)(stage + x_at<T>(row + i * 8, step * 2 + c / 2) + c % 2 * 8);

            x[i / 2][i % 2] = make_uint4(codes.x, codes.y, 0, 0);
        } else {
            x[i / 2][i % 2] = *(const uint4 *)(stage + x_at<T>(row + i * 8, step * 4 + c));
        }
    }
}

/* A step of 32 inputs for 16 rows of X and 8 of W. */
static __device__ __forceinline__ void multiply_step(float sum[4], const uint4 x[2],
                                                     const uint32_t w[4]) {
    const uint32_t first[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
    const uint32_t second[4] = {x[0].z, x[1].z, x[0].w, x[1].w};

    multiply_add(sum, first, w[0], w[1]);
    multiply_add(sum, second, w[2], w[3]);
}
static __device__ __forceinline__ void multiply_step(int32_t sum[4], const uint4 x[2],
                                                     const uint32_t w[4]) {
    const uint32_t both[4] = {x[0].x, x[1].x, x[0].y, x[1].y};

    multiply_add_s8(sum, both, w[0], w[1]);
}

template <class T, class Sums>
static __device__ __forceinline__ void add_step(Sums *w, const uint8_t *stage, int step) {
    uint4 x[T::FM][2];

    fetch_x<T>(x, stage, w->x_row, step);
#pragma unroll
    for (int b = 0; b < T::FN / 2; b++) {
        int unit = (w->block + b) * T::UNITS + (T::UNITS == 2 ? step : 0);
        const uint8_t *at = stage + T::X_BYTES + unit * (int)QUANT_UNIT_BYTES;
        struct quant_eights codes = quant_eights_of<T::DTYPE>(
            *(const uint4 *)(at + threadIdx.x % 32 * 16), T::UNITS == 2 ? 0 : step);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t pairs[4] = {codes.row[half][0], codes.row[half][1], 0, 0};

            if (!T::IS_S8) quant_unpack<T::DTYPE>(pairs, codes.row[half], w->zero[b].of[half]);
#pragma unroll
            for (int i = 0; i < T::FM; i++)
                multiply_step(w->sum[i][b * 2 + half], x[i], pairs);
        }
    }
}

/* Two steps; behind the last one there are zeros. */
template <class T, class Sums>
static __device__ __forceinline__ void add_slice(Sums *w, const struct quant_tile_args &a,
                                                 const uint8_t *stage, uint32_t slice) {
    uint32_t n_steps = CEIL_DIV(a.w.k, QUANT_STEP);

#pragma unroll
    for (int step = 0; step < 2; step++) {
        uint32_t next = slice * 2 + (uint32_t)step + 1;

        if (next > n_steps) return;
        add_step<T>(w, stage, step);
        if (--w->left > 0 && next < n_steps) continue;
        end_group<T>(w);
        if (next < n_steps) begin_group<T>(w, a);
    }
}

template <class T, class Sums>
static __device__ __forceinline__ void add_slices(Sums *w, const struct quant_tile_args &a,
                                                  uint8_t *shared, uint32_t m0, uint32_t n0) {
    uint32_t n_slices = CEIL_DIV(a.w.k, (uint32_t)SLICE);

#pragma unroll
    for (int i = 0; i < T::STAGES - 1; i++) {
        if ((uint32_t)i < n_slices) {
            load_units<T>(shared + i * T::STAGE_BYTES, a, n0, (uint32_t)i);
            load_x<T>(shared + i * T::STAGE_BYTES, a, m0, (uint32_t)i);
        }
        copy_commit();
    }
    for (uint32_t t = 0; t < n_slices; t++) {
        uint32_t next = t + T::STAGES - 1;

        copy_wait<T::STAGES - 2>();
        __syncthreads();
        if (next < n_slices) {
            load_units<T>(shared + next % T::STAGES * T::STAGE_BYTES, a, n0, next);
            load_x<T>(shared + next % T::STAGES * T::STAGE_BYTES, a, m0, next);
        }
        copy_commit();
        add_slice<T>(w, a, shared + t % T::STAGES * T::STAGE_BYTES, t);
    }
}

/* The scales of a lane's tokens. */
template <class T, class Sums>
static __device__ __forceinline__ void scale_rows(Sums *w, const struct quant_tile_args &a,
                                                  uint32_t m0) {
    uint32_t row = m0 + (uint32_t)w->x_row + threadIdx.x % 32 / 4;

#pragma unroll
    for (int i = 0; i < T::FM * 2; i++) {
        float scale = a.x_scale[MIN(row + i * 8, a.y.m - 1)];

#pragma unroll
        for (int j = 0; j < T::FN; j++) {
            w->total[i / 2][j][i % 2 * 2] = __fmul_rn(w->total[i / 2][j][i % 2 * 2], scale);
            w->total[i / 2][j][i % 2 * 2 + 1] = __fmul_rn(w->total[i / 2][j][i % 2 * 2 + 1], scale);
        }
    }
}

/* Blocks go column by column of tiles: those that run at once share the codes. */
template <class T>
static __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    quant_tile_kernel(const __grid_constant__ struct quant_tile_args a) {
    SHARED_DYNAMIC(shared);
    int warp = (int)threadIdx.x / 32;
    uint32_t m0 = blockIdx.x * T::BM, n0 = blockIdx.y * T::BN;
    typename sums_of<T>::type w = {};

    w.x_row = warp % T::WM * (T::FM * 16);
    w.block = warp / T::WM * (T::FN / 2);
    w.w_block = n0 / QUANT_ROWS + (uint32_t)w.block;
    begin_group<T>(&w, a);
    simt_wait_for_primary();
    add_slices<T>(&w, a, shared, m0, n0);
    if (T::IS_S8) scale_rows<T>(&w, a, m0);
    tile_store<T>(a.y, w.total, m0, n0);
}

/* --- launching -------------------------------------------------------------------------------- */

#define SMALL_ROWS 64u /* the small tile reads W again for every 32 rows */
#define ENOUGH     64u /* blocks that half fill a device */

template <class T> static void launch(struct gpu_stream *s, const struct quant_tile_args *a) {
    dim3 grid(CEIL_DIV(a->y.m, (uint32_t)T::BM), CEIL_DIV(a->y.shape.n, (uint32_t)T::BN));

    LAUNCH(quant_tile_kernel<T>, grid, T::THREADS, T::ALL_BYTES, s, *a);
}

template <int DTYPE, bool IS_S8>
static void launch_shape(struct gpu_stream *s, const struct quant_tile_args *a) {
    uint32_t n_large = CEIL_DIV(a->y.m, (uint32_t)shape_large::BM) *
                       CEIL_DIV(a->y.shape.n, (uint32_t)shape_large::BN);

    if (a->y.m <= SMALL_ROWS || n_large < ENOUGH)
        launch<quant_tile<DTYPE, IS_S8, shape_small>>(s, a);
    else
        launch<quant_tile<DTYPE, IS_S8, shape_large>>(s, a);
}

static struct gemm_args y_of(const struct gemv_args *a) {
    struct gemm_args y = {};

    y.shape.n = a->n;
    y.shape.k = a->k;
    y.shape.is_f32_out = a->is_f32_out;
    y.shape.has_bias = a->bias != NULL;
    y.shape.accumulates = a->accumulates;
    y.m = a->m;
    y.bias = a->bias;
    y.y = a->y;
    y.y_stride = a->y_stride;
    return y;
}

extern "C" void quant_run_tiles(struct gpu_stream *s, const struct quant_args *q,
                                const int8_t *codes, const float *scale) {
    struct quant_tile_args a = {};

    a.y = y_of(&q->a);
    a.w = q->w;
    a.n_groups = quant_groups(q->w.k, q->w.group_k);
    a.n_units = CEIL_DIV(q->w.k, quant_unit_k(q->w.dtype));
    if (codes) {
        a.x = (const uint8_t *)codes;
        a.x_row_bytes = quant_code_stride(q->a.k);
        a.x_scale = scale;
        launch_shape<DTYPE_I8, true>(s, &a);
        return;
    }
    a.x = (const uint8_t *)q->a.x;
    a.x_row_bytes = (uint64_t)q->a.x_stride * 2;
    switch (q->w.dtype) {
    case DTYPE_F8E4M3: launch_shape<DTYPE_F8E4M3, false>(s, &a); break;
    case DTYPE_I8: launch_shape<DTYPE_I8, false>(s, &a); break;
    default: launch_shape<DTYPE_U4, false>(s, &a); break;
    }
}

template <int DTYPE, bool IS_S8> static void allow(void) {
    ALLOW_SHARED((quant_tile_kernel<quant_tile<DTYPE, IS_S8, shape_large>>),
                 (quant_tile<DTYPE, IS_S8, shape_large>::ALL_BYTES));
    ALLOW_SHARED((quant_tile_kernel<quant_tile<DTYPE, IS_S8, shape_small>>),
                 (quant_tile<DTYPE, IS_S8, shape_small>::ALL_BYTES));
}

extern "C" void quant_prepare(void) {
    allow<DTYPE_F8E4M3, false>();
    allow<DTYPE_I8, false>();
    allow<DTYPE_U4, false>();
    allow<DTYPE_I8, true>();
}
