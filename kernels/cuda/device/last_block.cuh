/* kernels/cuda/device/last_block.cuh - the block of several that is through last, to go on with
 * what all of them wrote: work that would else be a launch of its own. */
#ifndef KERNELS_CUDA_DEVICE_LAST_BLOCK_CUH
#define KERNELS_CUDA_DEVICE_LAST_BLOCK_CUH

#include "kernels/cuda/device/simt.h"

/* True in the one block, of the n that share the counter, that is through last; it then sees what
 * the others wrote. The counter is 0 again. */
static __device__ __forceinline__ bool ends_last(uint32_t *ended, uint32_t n_blocks) {
    SHARED(uint32_t, before, 1);

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before[0] = atomicAdd(ended, 1u);
    __syncthreads();
    if (before[0] != n_blocks - 1) return false;
    if (threadIdx.x == 0) *ended = 0;
    __threadfence();
    return true;
}

#endif
