/* kernels/cuda/device/gemm.h - matrix products through cuBLASLt, with plans chosen once.
 *
 *      Y (m, n) = X (m, k) W (n, k)^T [+ bias (n)] [+ Y]          row-major, as checkpoints store W
 *
 * X and W are bf16, sums are fp32, Y is bf16 or fp32. A plan belongs to (n, k, type of Y, epilogue)
 * and to a bucket of m; gemm_tune times the candidates that the library proposes for each bucket on
 * real memory and keeps the fastest. With `is_deterministic` one algorithm without split-K serves
 * all m of a shape, so that a row's result does not depend on how many rows there are.
 *
 * cuBLASLt is opened with dlopen when the first device is (it is 0.5 GB and takes a second, cold).
 * Implemented by gemm.c; on the shim by plain loops. Thread: the device's. */
#ifndef KERNELS_CUDA_DEVICE_GEMM_H
#define KERNELS_CUDA_DEVICE_GEMM_H

#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gemm; /* a handle, its workspace, and the plans, of one device and one stream */

struct gemm_shape {
    uint32_t n, k;
    bool is_f32_out;  /* Y is fp32 (logits), else bf16 */
    bool has_bias;    /* (n) bf16 */
    bool accumulates; /* Y += */
};

struct gemm_args {
    struct gemm_shape shape;
    uint32_t m;
    const uint16_t *x; /* (m, x_stride) bf16 */
    uint32_t x_stride; /* elements from row to row */
    const uint16_t *w; /* (n, k) bf16 */
    const uint16_t *bias;
    void *y; /* (m, y_stride) */
    uint32_t y_stride;
};

MUST_USE enum status gemm_open(struct gemm **out, struct gpu *gpu, bool is_deterministic,
                               struct error *err);
void gemm_close(struct gemm *g); /* NULL is fine */

/* Makes the plans of a shape for every m up to max_m. `args` lends real buffers of max_m rows,
 * whose contents are overwritten. Called at load, once per shape; a shape known already costs
 * nothing. */
MUST_USE enum status gemm_tune(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args,
                               uint32_t max_m, struct error *err);

/* The shape must have been tuned. Can be captured into a graph; allocates nothing. */
void gemm_run(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args);

#ifdef __cplusplus
}
#endif
#endif
