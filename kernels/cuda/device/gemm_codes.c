/* kernels/cuda/device/gemm_codes.c - products of e4m3 codes.
 *
 * A and B as in gemm_plan.c, each with a scale mode and a pointer to scales. Which modes there are
 * depends on the version and on the device (NVIDIA/CUDALibrarySamples issues 270 and 310): a scale
 * of the whole matrix from sm_89 on, scales of rows and of blocks on sm_90 alone, from 12.9 on.
 * Sizes are multiples of 16. Their weights were written just before, so they are timed warm. What
 * the library does not take is left to the caller, who has own kernels for it. */
#include <assert.h>

#include "kernels/cuda/device/gemm_internal.h"
#include "kernels/cuda/device/gpu_internal.h"

/* cublasLtMatmulMatrixScale_t: older toolkits lack the names. */
enum { SCALE_WHOLE = 0, SCALE_ROWS = 3, SCALE_VECTORS = 4, SCALE_BLOCKS = 5 };

/* How A, our W, and B, our X, are scaled. */
cublasStatus_t gemm_set_scale_modes(struct gemm *g, struct gemm_plan *p) {
    static const int32_t modes[][2] = {[GEMM_F8_PLAIN] = {SCALE_WHOLE, SCALE_WHOLE},
                                       [GEMM_F8_ROWS] = {SCALE_ROWS, SCALE_ROWS},
                                       [GEMM_F8_BLOCKS] = {SCALE_BLOCKS, SCALE_VECTORS}};
    const int8_t is_fast = 0;
    cublasStatus_t code =
        g->lib.desc_set(p->product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &is_fast, sizeof(is_fast));

    if (p->shape.codes == GEMM_F8_PLAIN) return code; /* what older libraries do */
    if (!code)
        code = gemm_set_i32(g, p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, modes[p->shape.codes][0]);
    if (!code)
        code = gemm_set_i32(g, p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, modes[p->shape.codes][1]);
    return code;
}

cublasStatus_t gemm_aim_scales(struct gemm *g, struct gemm_plan *p, const struct gemm_args *a) {
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

    if (p->w_scale != a->w_scale)
        code = gemm_set_pointer(g, p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a->w_scale);
    if (code) return code;
    p->w_scale = a->w_scale;
    if (p->x_scale != a->x_scale)
        code = gemm_set_pointer(g, p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a->x_scale);
    if (!code) p->x_scale = a->x_scale;
    return code;
}

static const char *why_no_codes(const struct gemm *g, const struct gemm_shape *shape) {
    uint32_t sm = gpu_properties(g->gpu)->sm;

    if (g->is_deterministic) return "own kernels keep the bits of a row";
    if (g->lib.get_version() < (shape->codes == GEMM_F8_PLAIN ? 120000u : 120900u))
        return "this version of cuBLASLt lacks its scales";
    if (shape->codes == GEMM_F8_PLAIN ? sm < 89 : sm != 90)
        return "cuBLASLt lacks its scales on this device";
    if (shape->n % 16 || shape->k % 16) return "cuBLASLt takes multiples of 16";
    if (shape->codes == GEMM_F8_BLOCKS && (shape->n % 128 || shape->k % 128))
        return "blocks at its edges are not whole";
    return NULL;
}

bool gemm_takes_codes(const struct gemm *g, const struct gemm_shape *shape) {
    return g->has_library && !why_no_codes(g, shape);
}

void gemm_leave_codes(struct gemm *g, const struct gemm_shape *shape) {
    const char *why = g->has_library ? why_no_codes(g, shape) : NULL;

    /* Without a library the note has all; deterministic mode was asked for, which is no news. */
    if (why && !g->is_deterministic)
        (void)error_set(&g->note, ST_OK,
                        "own kernels compute the matrix product (m, %u) x (%u, %u) of e4m3 codes: "
                        "%s",
                        shape->k, shape->n, shape->k, why);
}

bool gemm_has_plan(const struct gemm *g, const struct gemm_shape *shape) {
    const struct gemm_plan *p = gemm_plan_find((struct gemm *)(uintptr_t)g, shape);

    return p && p->n_buckets > 0 && !p->is_own;
}

bool gemm_try(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args) {
    struct gemm_plan *p = gemm_plan_find(g, &args->shape);
    uint32_t bucket;

    if (!gemm_has_plan(g, &args->shape)) return false;
    assert(args->m % GEMM_CODE_ROWS == 0);
    bucket = gemm_bucket_of(args->m, p->n_buckets);
    if (!gemm_aim(g, p, args, args->m) &&
        (!gemm_multiply(g, s, p, args, args->w_codes, &p->algo[bucket]) ||
         !gemm_multiply_as_proposed(g, s, p, args, bucket)))
        return true;
    gemm_give_to_own(g, p, args, "refused it in service");
    return false;
}
