/* kernels/cuda/ops/swiglu.cu - act = silu(gate) * up, eight elements per thread; see ops.h.
 *
 * The division is the approximate one, to 2 units of the last place: the exact one is a branch and
 * a dozen instructions, which with thousands of tokens takes as long as the memory does. Where the
 * exponential is infinite, or above 2^126, it gives 0, which is what the result rounds to. */
#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/ops/ops.h"

#define N_THREADS 256u

static __global__ void __launch_bounds__(N_THREADS)
    swiglu_kernel(const __grid_constant__ struct swiglu_args a) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t at = (blockIdx.y * N_THREADS + threadIdx.x) * 8;
    const uint16_t *row = a.gate_up + (size_t)blockIdx.x * 2 * a.f;
    float gate[8], up[8];

    if (at >= a.f) return;
    eight_unpack(gate, eight_load(row + at));
    eight_unpack(up, eight_load(row + a.f + at));
#pragma unroll
    for (int i = 0; i < 8; i++)
        gate[i] = __fdividef(gate[i], 1.0f + expf(-gate[i])) * up[i];
    eight_store(a.act + (size_t)blockIdx.x * a.f + at, eight_pack(gate));
}

extern "C" void ops_swiglu(struct gpu_stream *s, const struct swiglu_args *a) {
    if (a->n_tokens == 0) return;
    LAUNCH(swiglu_kernel, dim3(a->n_tokens, CEIL_DIV(a->f / 8, N_THREADS)), N_THREADS, 0, s, *a);
}
