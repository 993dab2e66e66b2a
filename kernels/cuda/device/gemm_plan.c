/* kernels/cuda/device/gemm_plan.c - a plan: the descriptors of a shape, and the library's calls
 * with them.
 *
 * cuBLASLt thinks in columns. Row-major Y (m, n) is its D with n rows and m columns, and
 *
 *      Y = X W^T + b       is       D (n, m) = op(A) B + b        A = W, stored (k, n), transposed
 *                                                                B = X, stored (k, m)
 *
 * so that nothing is copied or transposed, and the bias, one number per row of D, is ours per
 * output.
 *
 * What changes from call to call is written into the plan's own descriptors (m, strides, the bias),
 * only when it differs from what was last written; the rest of gemm_run is a look-up and the
 * library's launch. The library reads descriptors during the call, never later, so graphs keep what
 * they saw. */
#include "kernels/cuda/device/gemm_internal.h"
#include "kernels/cuda/device/gpu_internal.h"

/* Upper ends of the buckets of m. Dense where a step decodes, as the graphs are; a third apart
 * above, where tiles matter more than m. The last one serves all beyond. */
const uint32_t gemm_bucket_ends[GEMM_BUCKETS] = {1,    2,    4,    8,    16,   24,   32,  48,
                                                 64,   96,   128,  192,  256,  384,  512, 768,
                                                 1024, 1536, 2048, 3072, 4096, 6144, 8192};

static uint32_t shape_hash(const struct gemm_shape *s) {
    uint32_t flags = (uint32_t)s->is_f32_out | (uint32_t)s->has_bias << 1 |
                     (uint32_t)s->accumulates << 2 | (uint32_t)s->codes << 3;

    return ((s->n * 0x9E3779B1u) ^ (s->k * 0x85EBCA77u) ^ (flags * 0xC2B2AE3Du)) >> 16;
}

static bool shape_equal(const struct gemm_shape *a, const struct gemm_shape *b) {
    return a->n == b->n && a->k == b->k && a->is_f32_out == b->is_f32_out &&
           a->has_bias == b->has_bias && a->accumulates == b->accumulates && a->codes == b->codes;
}

struct gemm_plan *gemm_plan_find(struct gemm *g, const struct gemm_shape *shape) {
    uint32_t at = shape_hash(shape), i;
    struct gemm_plan *p;

    for (i = 0; i < GEMM_SHAPES; i++) {
        p = &g->plans[(at + i) % GEMM_SHAPES];
        if (!p->is_used || shape_equal(&p->shape, shape)) return p;
    }
    return NULL;
}

uint32_t gemm_bucket_of(uint32_t m, uint32_t n_buckets) {
    uint32_t i = 0;

    while (i + 1 < n_buckets && m > gemm_bucket_ends[i])
        i++;
    return i;
}

cublasStatus_t gemm_set_i32(struct gemm *g, struct gemm_plan *p,
                            cublasLtMatmulDescAttributes_t what, int32_t value) {
    return g->lib.desc_set(p->product, what, &value, sizeof(value));
}

cublasStatus_t gemm_set_pointer(struct gemm *g, struct gemm_plan *p,
                                cublasLtMatmulDescAttributes_t what, const void *pointer) {
    return g->lib.desc_set(p->product, what, &pointer, sizeof(pointer));
}

cublasStatus_t gemm_plan_make(struct gemm *g, struct gemm_plan *p, const struct gemm_shape *shape) {
    const cudaDataType_t y_type = shape->is_f32_out ? CUDA_R_32F : CUDA_R_16BF;
    const cudaDataType_t type = shape->codes ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    cublasStatus_t code;

    *p = (struct gemm_plan){.shape = *shape, .is_used = true};
    p->m = 1;
    p->x_stride = shape->k;
    p->y_stride = shape->n;
    code = g->lib.desc_create(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!code) code = gemm_set_i32(g, p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (!code && shape->has_bias) {
        code = gemm_set_i32(g, p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        if (!code) code = gemm_set_i32(g, p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    if (!code && shape->codes) code = gemm_set_scale_modes(g, p);
    if (!code) code = g->lib.layout_create(&p->w, type, shape->k, shape->n, shape->k);
    if (!code) code = g->lib.layout_create(&p->x, type, shape->k, 1, shape->k);
    if (!code) code = g->lib.layout_create(&p->y, y_type, shape->n, 1, shape->n);
    return code;
}

void gemm_plan_clear(struct gemm *g, struct gemm_plan *p) {
    if (p->product) (void)g->lib.desc_destroy(p->product);
    if (p->w) (void)g->lib.layout_destroy(p->w);
    if (p->x) (void)g->lib.layout_destroy(p->x);
    if (p->y) (void)g->lib.layout_destroy(p->y);
    *p = (struct gemm_plan){.is_used = false};
}

static cublasStatus_t aim_rows(struct gemm *g, struct gemm_plan *p, uint32_t m) {
    const uint64_t columns = m;
    cublasStatus_t code =
        g->lib.layout_set(p->x, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));

    if (!code)
        code = g->lib.layout_set(p->y, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
    p->m = code ? 0 : m; /* 0: the layouts may differ */
    return code;
}

static cublasStatus_t aim_stride(struct gemm *g, cublasLtMatrixLayout_t layout, uint32_t *now,
                                 uint32_t stride) {
    const int64_t elements = stride;
    cublasStatus_t code =
        g->lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_LD, &elements, sizeof(elements));

    if (!code) *now = stride;
    return code;
}

static cublasStatus_t aim_bias(struct gemm *g, struct gemm_plan *p, const uint16_t *bias) {
    cublasStatus_t code = gemm_set_pointer(g, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);

    if (!code) p->bias = bias;
    return code;
}

cublasStatus_t gemm_aim(struct gemm *g, struct gemm_plan *p, const struct gemm_args *a,
                        uint32_t m) {
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

    if (p->m != m) code = aim_rows(g, p, m);
    if (!code && p->x_stride != a->x_stride) code = aim_stride(g, p->x, &p->x_stride, a->x_stride);
    if (!code && p->y_stride != a->y_stride) code = aim_stride(g, p->y, &p->y_stride, a->y_stride);
    if (!code && p->shape.has_bias && p->bias != a->bias) code = aim_bias(g, p, a->bias);
    if (!code && p->shape.codes) code = gemm_aim_scales(g, p, a);
    return code;
}

cublasStatus_t gemm_multiply(struct gemm *g, struct gpu_stream *s, const struct gemm_plan *p,
                             const struct gemm_args *a, const void *w,
                             const cublasLtMatmulAlgo_t *algo) {
    const float alpha = 1, beta = p->shape.accumulates ? 1 : 0;
    const void *x = p->shape.codes ? (const void *)a->x_codes : a->x;
    bool overlaps; /* of what comes next: the library launches its kernels as it likes */
    cudaStream_t stream = (cudaStream_t)gpu_stream_launches(s, &overlaps);
    cublasStatus_t code =
        g->lib.matmul(g->handle, p->product, &alpha, w, p->w, x, p->x, &beta, a->y, p->y, a->y,
                      p->y, algo, g->workspace, GEMM_WORKSPACE_BYTES, stream);

    if (code) (void)gpu_stream_handle(s); /* no kernel came, which the next one could overlap */
    return code;
}

uint32_t gemm_propose(struct gemm *g, const struct gemm_plan *p,
                      cublasLtMatmulHeuristicResult_t proposals[GEMM_PROPOSALS]) {
    int n = 0;

    if (g->lib.propose(g->handle, p->product, p->w, p->x, p->y, p->y, g->preference, GEMM_PROPOSALS,
                       proposals, &n))
        return 0;
    return (uint32_t)n;
}

cublasStatus_t gemm_multiply_as_proposed(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                                         const struct gemm_args *a, uint32_t bucket) {
    cublasLtMatmulHeuristicResult_t proposals[GEMM_PROPOSALS];
    cublasStatus_t code = CUBLAS_STATUS_NOT_SUPPORTED;

    if (gemm_propose(g, p, proposals) > 0)
        code = gemm_multiply(g, s, p, a, gemm_weights_of(a), &proposals[0].algo);
    if (!code) p->algo[bucket] = proposals[0].algo;
    return code;
}

void gemm_give_to_own(struct gemm *g, struct gemm_plan *p, const struct gemm_args *a,
                      const char *why) {
    p->is_own = true;
    (void)error_set(
        &g->note, ST_OK, "own kernels compute the matrix product (m, %u) x (%u, %u)%s: cuBLASLt %s",
        a->shape.k, a->shape.n, a->shape.k, a->shape.codes ? " of e4m3 codes" : "", why);
}
