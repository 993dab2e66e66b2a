/* kernels/cuda/attend/attend_merge.cu - the parts of a token's attention become one, where the
 * prefill kernel left them.
 *
 * A thread holds four dimensions of one head and goes over the token's partials from left to right,
 * with the same two functions that the other kernels use for adding parts: a token whose parts were
 * added in one block or here has the same bits.
 *
 *      block = (token, HEADS heads)     HEADS * HD / 4 = HD threads */
#include "kernels/cuda/attend/attend.h"

#include "kernels/cuda/attend/attend_tile.cuh"
#include "kernels/cuda/device/simt.h"

#define HEADS 4

struct merge_args {
    struct attend_args a;
    const struct attend_merge *merges; /* (gridDim.x) */
};

template <int HD>
static __global__ void __launch_bounds__(HD)
    merge_kernel(const __grid_constant__ struct merge_args args) {
    simt_wait_for_primary();
    simt_launch_dependents();

    const struct attend_args &a = args.a;
    const struct attend_merge merge = args.merges[blockIdx.x];
    int head = (int)blockIdx.y * HEADS + (int)threadIdx.x / (HD / 4);
    int column = (int)threadIdx.x % (HD / 4) * 4;

    if (merge.token < 0 || head >= a.n_heads) return;
    merge_parts<HD>(a, merge.token, head, column, merge.first, merge.stride, merge.n);
}

extern "C" void attend_launch_merge(struct gpu_stream *s, const struct attend_args *args,
                                    const struct attend_merge *merges, uint32_t n_merges) {
    struct merge_args all = {*args, merges};
    dim3 grid(n_merges, ((uint32_t)args->n_heads + HEADS - 1) / HEADS);

    switch (args->head_dim) {
    case 64: LAUNCH(merge_kernel<64>, grid, 64, 0, s, all); break;
    case 96: LAUNCH(merge_kernel<96>, grid, 96, 0, s, all); break;
    default: LAUNCH(merge_kernel<128>, grid, 128, 0, s, all); break;
    }
}
