/* kernels/cuda/ops/edges.cu - both ends of a step: what the host has packed comes, and the outputs
 * go; see ops.h.
 *
 * A copy through a copy engine keeps the compute stream idle for some 5 us on either side
 * [estimated], and nothing can overlap it. These are kernels that read and write pinned memory of
 * the host themselves, across the bus: 2 to 200 KB there, 16 bytes a thread, and some KB back. */
#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/ops.h"

#define N_THREADS  256u
#define MAX_BLOCKS 64u /* enough to keep the bus busy */

static __global__ void __launch_bounds__(N_THREADS)
    stage_kernel(const __grid_constant__ struct stage_args a) {
    const uint4 *from = (const uint4 *)a.from;
    uint4 *to = (uint4 *)a.to;
    uint32_t first = blockIdx.x * N_THREADS + threadIdx.x, all = gridDim.x * N_THREADS;

    simt_wait_for_primary();
    simt_launch_dependents();
    for (uint64_t i = first; i < a.n_bytes / 16; i += all)
        to[i] = from[i];
    for (uint32_t i = first; i < a.n_updates; i += all) {
        struct backend_table_update u = a.update[i];

        a.table[(size_t)u.row * a.table_stride + u.index] = u.block;
    }
}

extern "C" void ops_stage(struct gpu_stream *s, const struct stage_args *a) {
    uint64_t n = MAX(a->n_bytes / 16, a->n_updates);

    if (n == 0) return;
    LAUNCH(stage_kernel, dim3((uint32_t)MIN(MAX_BLOCKS, CEIL_DIV(n, N_THREADS))), N_THREADS, 0, s,
           *a);
}

static __global__ void __launch_bounds__(N_THREADS)
    fetch_kernel(const __grid_constant__ struct fetch_args a) {
    const struct fetch_piece &piece = a.piece[blockIdx.y];

    simt_wait_for_primary();
    simt_launch_dependents();
    for (uint32_t i = blockIdx.x * N_THREADS + threadIdx.x; i < piece.n; i += gridDim.x * N_THREADS)
        piece.to[i] = piece.from[i];
}

extern "C" void ops_fetch(struct gpu_stream *s, const struct fetch_args *a) {
    uint32_t longest = 0;

    for (uint32_t i = 0; i < a->n_pieces; i++)
        longest = MAX(longest, a->piece[i].n);
    if (longest == 0) return;
    LAUNCH(fetch_kernel, dim3(MIN(MAX_BLOCKS, CEIL_DIV(longest, N_THREADS)), a->n_pieces),
           N_THREADS, 0, s, *a);
}
