/* kernels/cuda/products/product.h - matrix products by kernels of our own.
 *
 *      Y (m, n) = X (m, k) W (n, k)^T [+ bias (n)] [+ Y]
 *
 * They serve where cuBLASLt cannot: on a machine without it, in deterministic mode where none of
 * its algorithms gives a row the same bits in every batch, and in place of a call that it refuses.
 * Tensor cores by mma.sync, which every device from sm_80 on has.
 *
 * Promise: an element of Y is one chain of fp32 sums over k in steps of 16, whatever m is and
 * whatever tile computes it; so a row has the same bits alone and among any others, in a grouped
 * product too. What they ask: n, k and strides multiples of 8, pointers of 16 bytes; 0 of anything
 * launches nothing. Can be captured into a graph.
 *
 * Follows CUTLASS's tiles for Ampere (block 128x128x32, warps of 64x64, cp.async stages). */
#ifndef KERNELS_CUDA_PRODUCTS_PRODUCT_H
#define KERNELS_CUDA_PRODUCTS_PRODUCT_H

#include "kernels/cuda/device/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* On each device before the first product: allows the shared memory of the tiles. */
void product_prepare(void);

void product_run(struct gpu_stream *s, const struct gemm_args *a);
void product_run_grouped(struct gpu_stream *s, const struct gemm_grouped_args *a);

extern const struct gemm_own product_own; /* all three, for gemm_open */

#ifdef __cplusplus
}
#endif
#endif
