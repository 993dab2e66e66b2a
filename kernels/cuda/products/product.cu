/* kernels/cuda/products/product.cu - bf16 products, one and grouped; see product.h.
 *
 * Blocks go through Y in bands of BAND tiles of rows, within a band column by column of tiles: the
 * blocks that run at once share their rows of X and of W in the cache. */
#include "kernels/cuda/products/product.h"
#include "kernels/cuda/products/tile.cuh"

#define BAND       16u
#define ENOUGH     128u /* blocks that fill a device of 66 multiprocessors or more, two on each */
#define SMALL_ROWS 64u  /* the small tile reads W again for every 32 rows */

/* Tile `i` of (n_rows, n_columns) tiles. */
static __device__ __forceinline__ uint2 tile_of(uint32_t i, uint32_t n_rows, uint32_t n_columns) {
    uint32_t band = i / (BAND * n_columns), first = band * BAND;
    uint32_t height = MIN(BAND, n_rows - first), within = i - first * n_columns;

    return make_uint2(first + within % height, within / height);
}

template <class T>
static __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    product_kernel(const __grid_constant__ struct gemm_args a) {
    SHARED_DYNAMIC(shared);
    uint2 tile =
        tile_of(blockIdx.x, CEIL_DIV(a.m, (uint32_t)T::BM), CEIL_DIV(a.shape.n, (uint32_t)T::BN));

    simt_wait_for_primary();
    tile_run<T>(a, tile.x * T::BM, tile.y * T::BN, (bf16 *)shared);
}

template <class T> static uint32_t n_tiles(const struct gemm_args *a) {
    return CEIL_DIV(a->m, (uint32_t)T::BM) * CEIL_DIV(a->shape.n, (uint32_t)T::BN);
}

extern "C" void product_run(struct gpu_stream *s, const struct gemm_args *a) {
    if (a->m == 0) return;
    if (a->m <= SMALL_ROWS || n_tiles<tile_large>(a) < ENOUGH / 4)
        LAUNCH((product_kernel<tile_small>), n_tiles<tile_small>(a), tile_small::THREADS,
               tile_small::BYTES, s, *a);
    else
        LAUNCH((product_kernel<tile_large>), n_tiles<tile_large>(a), tile_large::THREADS,
               tile_large::BYTES, s, *a);
}

/* --- grouped ---------------------------------------------------------------------------------- */

/* A group, and one of its tiles of rows. */
struct group_tile {
    uint32_t group, tile;
};

/* The `i`-th tile of rows of all groups, by one warp; group n_groups: there are not so many. Each
 * lane counts a part of the groups. */
static __device__ __forceinline__ struct group_tile find_tile(const struct gemm_grouped_args &a,
                                                              uint32_t i, uint32_t rows) {
    uint32_t lane = threadIdx.x % 32, before = 0;

    for (uint32_t first = 0; first < a.n_groups; first += 32) {
        uint32_t g = first + lane, n = 0, sum, here;

        if (g < a.n_groups) n = CEIL_DIV(a.first_row[g + 1] - a.first_row[g], rows);
        sum = n;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            uint32_t left = __shfl_sync(0xFFFFFFFFu, sum, (int)((lane - by) & 31));

            if (lane >= (uint32_t)by) sum += left;
        }
        here = __ballot_sync(0xFFFFFFFFu, before + sum > i);
        if (here) {
            int owner = __ffs((int)here) - 1;
            uint32_t end = __shfl_sync(0xFFFFFFFFu, sum, owner);
            uint32_t size = __shfl_sync(0xFFFFFFFFu, n, owner);

            return {first + (uint32_t)owner, i - (before + end - size)};
        }
        before += __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
    return {a.n_groups, 0};
}

template <class T>
static __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    grouped_kernel(const __grid_constant__ struct gemm_grouped_args a) {
    SHARED_DYNAMIC(shared);
    simt_wait_for_primary(); /* routing is what it wrote */
    struct group_tile t = find_tile(a, blockIdx.y, T::BM);
    struct gemm_args one = {};

    if (t.group == a.n_groups) return;
    uint32_t first = a.first_row[t.group];

    one.shape.n = a.n;
    one.shape.k = a.k;
    one.shape.is_f32_out = a.is_f32_out;
    one.m = a.first_row[t.group + 1] - first;
    one.x = a.x + (size_t)first * a.x_stride;
    one.x_stride = a.x_stride;
    one.w = a.w + (size_t)t.group * a.n * a.k;
    one.y = (uint8_t *)a.y + (size_t)first * a.y_stride * (a.is_f32_out ? 4 : 2);
    one.y_stride = a.y_stride;
    tile_run<T>(one, t.tile * T::BM, blockIdx.x * T::BN, (bf16 *)shared);
}

template <class T>
static void run_grouped(struct gpu_stream *s, const struct gemm_grouped_args *a) {
    uint32_t n_tiles = a->m / T::BM + MIN(a->n_groups, a->m);

    LAUNCH(grouped_kernel<T>, dim3(CEIL_DIV(a->n, (uint32_t)T::BN), n_tiles), T::THREADS, T::BYTES,
           s, *a);
}

/* By the rows of a group where they are spread evenly. */
extern "C" void product_run_grouped(struct gpu_stream *s, const struct gemm_grouped_args *a) {
    if (a->m == 0 || a->n_groups == 0) return;
    if (a->m / a->n_groups <= SMALL_ROWS)
        run_grouped<tile_small>(s, a);
    else
        run_grouped<tile_large>(s, a);
}

extern "C" void product_prepare(void) {
    ALLOW_SHARED(product_kernel<tile_small>, tile_small::BYTES);
    ALLOW_SHARED(product_kernel<tile_large>, tile_large::BYTES);
    ALLOW_SHARED(grouped_kernel<tile_small>, tile_small::BYTES);
    ALLOW_SHARED(grouped_kernel<tile_large>, tile_large::BYTES);
}

extern "C" const struct gemm_own product_own = {product_prepare, product_run, product_run_grouped};
