/* kernels/cuda/ops/blocks.cu - moving KV blocks; see ops.h.
 *
 * A block of all layers is 0.5 to 2 MiB in one piece: the copy is cut into chunks of 16 KiB, one
 * per thread block, each thread with four loads on their way before its first store. */
#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/ops.h"

#define N_THREADS 256u
#define LOADS     4u
#define CHUNK     (N_THREADS * LOADS) /* in pieces of 16 bytes */

static __global__ void __launch_bounds__(N_THREADS)
    copy_blocks_kernel(const __grid_constant__ struct copy_blocks_args a) {
    simt_wait_for_primary();

    uint64_t n_pieces = a.block_bytes / 16, end = n_pieces;
    uint32_t n_chunks = (uint32_t)CEIL_DIV(n_pieces, CHUNK);
    struct backend_copy pair = a.pairs[blockIdx.x / n_chunks];
    const uint4 *src = (const uint4 *)a.kv + pair.src * n_pieces;
    uint4 *dst = (uint4 *)a.kv + pair.dst * n_pieces;
    uint64_t first = (uint64_t)(blockIdx.x % n_chunks) * CHUNK + threadIdx.x;
    uint4 piece[LOADS];

#pragma unroll
    for (uint32_t i = 0; i < LOADS; i++)
        if (first + i * N_THREADS < end) piece[i] = src[first + i * N_THREADS];
#pragma unroll
    for (uint32_t i = 0; i < LOADS; i++)
        if (first + i * N_THREADS < end) dst[first + i * N_THREADS] = piece[i];
}

extern "C" void ops_copy_blocks(struct gpu_stream *s, const struct copy_blocks_args *a) {
    uint32_t n_chunks = (uint32_t)CEIL_DIV(a->block_bytes / 16, CHUNK);

    if (a->n_pairs == 0) return;
    LAUNCH(copy_blocks_kernel, dim3(a->n_pairs * n_chunks), N_THREADS, 0, s, *a);
}
