/* kernels/cuda/device/gemm.h - matrix products through cuBLASLt, with plans chosen once; where it
 * cannot serve, through the kernels of struct gemm_own.
 *
 *      Y (m, n) = X (m, k) W (n, k)^T [+ bias (n)] [+ Y]          row-major, as checkpoints store W
 *
 * X and W are bf16, sums are fp32, Y is bf16 or fp32. A plan belongs to (n, k, type of Y, epilogue)
 * and to a bucket of m; gemm_tune times the candidates that the library proposes for each bucket on
 * real memory and keeps the fastest. With `is_deterministic` one algorithm without split-K serves
 * all m of a shape, so that a row's result does not depend on how many rows there are.
 *
 * cuBLASLt is opened with dlopen when the first device is (it is 0.5 GB and takes a second, cold).
 * The own kernels serve all products when it is not there, a shape for which it has no algorithm
 * (in deterministic mode, none that keeps a row's bits), and a call that it refuses after load, as
 * does its own first proposal for that call. gemm_note has the sentence. In deterministic mode a
 * call that is refused after load, twice, is a failed device: own kernels have other bits.
 *
 * X and W may both be e4m3 codes with fp32 scales, Y then bf16: by the library alone, on devices
 * and versions of it that have the scales (gemm_takes_codes). FP8 sums are promoted to fp32 on the
 * way (FAST_ACCUM 0). Their rows are always a multiple of GEMM_CODE_ROWS.
 *
 * A grouped product is one launch for many matrices (the experts of a layer), by the own kernels.
 * Implemented by the files gemm*.c; on the shim by plain loops. Thread: the device's. */
#ifndef KERNELS_CUDA_DEVICE_GEMM_H
#define KERNELS_CUDA_DEVICE_GEMM_H

#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gemm; /* a handle, its workspace, and the plans, of one device and one stream */

#define GEMM_CODE_ROWS 16u

enum gemm_codes {
    GEMM_BF16,     /* X and W are no codes */
    GEMM_F8_PLAIN, /* one scale of W; none of X */
    GEMM_F8_ROWS,  /* one of each row of X, and of each row of W */
    GEMM_F8_BLOCKS /* of X for a row and 128 of k, (k / 128, m); of W for 128 rows and 128 of k,
                    * (n / 128, gemm_block_scales(k)) */
};

struct gemm_shape {
    uint32_t n, k;
    bool is_f32_out;  /* Y is fp32 (logits), else bf16 */
    bool has_bias;    /* (n) bf16 */
    bool accumulates; /* Y += */
    enum gemm_codes codes;
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
    const uint8_t *x_codes, *w_codes; /* instead of x and w */
    const float *x_scale, *w_scale;   /* of codes */
};

/* Scales of 128 rows of W by blocks. */
static inline uint32_t gemm_block_scales(uint32_t k) {
    return ALIGN_UP(CEIL_DIV(k, 128u), 4u);
}

/* Rows [first_row[g], first_row[g + 1]) of X times the matrix of group g. */
struct gemm_grouped_args {
    const uint16_t *x;         /* (m, x_stride) bf16, sorted by group */
    const uint16_t *w;         /* (n_groups, n, k) bf16 */
    void *y;                   /* (m, y_stride) bf16 or fp32 */
    const uint32_t *first_row; /* (n_groups + 1) on the device, rising from 0; the last is at most
                                * m, and rows from there on are not computed */
    uint32_t m, n_groups;
    uint32_t n, k; /* multiples of 8, as the strides */
    uint32_t x_stride, y_stride;
    bool is_f32_out;
};

/* The backend's own kernels (kernels/cuda/products). */
struct gemm_own {
    void (*prepare)(void); /* called by gemm_open */
    void (*run)(struct gpu_stream *s, const struct gemm_args *a);
    void (*run_grouped)(struct gpu_stream *s, const struct gemm_grouped_args *a);
};

/* own NULL: there are none, and what the library cannot do is an error. */
MUST_USE enum status gemm_open(struct gemm **out, struct gpu *gpu, const struct gemm_own *own,
                               bool is_deterministic, struct error *err);
void gemm_close(struct gemm *g); /* NULL is fine */
/* Why own kernels serve, and what: the last sentence; NULL: cuBLASLt serves everything. */
const char *gemm_note(const struct gemm *g);
/* How many shapes the own kernels serve, of those tuned. */
uint32_t gemm_n_own(const struct gemm *g);

/* Makes the plans of a shape for every m up to max_m. `args` lends real buffers of max_m rows,
 * whose contents are overwritten. Called at load, once per shape; a shape known already costs
 * nothing. */
MUST_USE enum status gemm_tune(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args,
                               uint32_t max_m, struct error *err);

/* The shape must have been tuned. Can be captured into a graph; allocates nothing. */
void gemm_run(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args);

/* Whether the library has such products of codes, on this device. */
MUST_USE bool gemm_takes_codes(const struct gemm *g, const struct gemm_shape *shape);
/* Whether gemm_try may serve the shape: it was tuned, and the library has refused none of it. */
MUST_USE bool gemm_has_plan(const struct gemm *g, const struct gemm_shape *shape);
/* The caller's own kernels serve a shape of codes: gemm_note has why, except in deterministic mode,
 * where they always do. */
void gemm_leave_codes(struct gemm *g, const struct gemm_shape *shape);
/* gemm_run of codes, whose shape was tuned. false: the library refuses it, at load or now, and
 * nothing is put on the stream. */
MUST_USE bool gemm_try(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args);

/* One launch, by the own kernels; needs no tuning. */
void gemm_run_grouped(struct gemm *g, struct gpu_stream *s, const struct gemm_grouped_args *args);

#ifdef __cplusplus
}
#endif
#endif
