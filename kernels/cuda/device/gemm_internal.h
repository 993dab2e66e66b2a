/* kernels/cuda/device/gemm_internal.h - what the files of gemm.h share: the library's functions, a
 * plan, and what is done with one. */
#ifndef KERNELS_CUDA_DEVICE_GEMM_INTERNAL_H
#define KERNELS_CUDA_DEVICE_GEMM_INTERNAL_H

#include <cublasLt.h>

#include "kernels/cuda/device/gemm.h"

#define GEMM_WORKSPACE_BYTES                                                                       \
    (UINT64_C(32) << 20)   /* what the library's guide recommends on Hopper */
#define GEMM_SHAPES    32u /* a model has five; a power of two */
#define GEMM_PROPOSALS 12u
#define GEMM_BUCKETS   23u

extern const uint32_t gemm_bucket_ends[GEMM_BUCKETS];

#define GEMM_LIBRARY_FUNCTIONS(X)                                                                  \
    X(get_version, cublasLtGetVersion)                                                             \
    X(status_string, cublasLtGetStatusString)                                                      \
    X(create, cublasLtCreate)                                                                      \
    X(destroy, cublasLtDestroy)                                                                    \
    X(matmul, cublasLtMatmul)                                                                      \
    X(layout_create, cublasLtMatrixLayoutCreate)                                                   \
    X(layout_destroy, cublasLtMatrixLayoutDestroy)                                                 \
    X(layout_set, cublasLtMatrixLayoutSetAttribute)                                                \
    X(desc_create, cublasLtMatmulDescCreate)                                                       \
    X(desc_destroy, cublasLtMatmulDescDestroy)                                                     \
    X(desc_set, cublasLtMatmulDescSetAttribute)                                                    \
    X(preference_create, cublasLtMatmulPreferenceCreate)                                           \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy)                                         \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute)                                        \
    X(propose, cublasLtMatmulAlgoGetHeuristic)                                                     \
    X(algo_check, cublasLtMatmulAlgoCheck)                                                         \
    X(algo_get, cublasLtMatmulAlgoConfigGetAttribute)

struct gemm_library {
#define FIELD(field, function) __typeof__(&function) field;
    GEMM_LIBRARY_FUNCTIONS(FIELD)
#undef FIELD
};

struct gemm_plan {
    struct gemm_shape shape;
    bool is_used, is_own; /* is_own: the own kernels serve it */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    uint32_t m, x_stride, y_stride; /* as the layouts have them now */
    const uint16_t *bias;           /* as the product has it */
    const float *x_scale, *w_scale;
    uint32_t n_buckets;
    cublasLtMatmulAlgo_t algo[GEMM_BUCKETS];
};

struct gemm {
    struct gpu *gpu;
    struct gemm_library lib;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;            /* on the device */
    const struct gemm_own *own; /* or NULL */
    bool is_deterministic, has_library;
    struct error note;                   /* why the own kernels serve; "" */
    struct gemm_plan plans[GEMM_SHAPES]; /* open addressing by shape_hash */
};

MUST_USE enum status gemm_refused(const struct gemm *g, cublasStatus_t code, const char *doing,
                                  struct error *err);

/* --- gemm_plan.c */

/* The plan of a shape, or the free place where it belongs, or NULL: all places are taken. */
struct gemm_plan *gemm_plan_find(struct gemm *g, const struct gemm_shape *shape);
/* Descriptors for m = 1; gemm_aim makes them those of a call of m rows. */
cublasStatus_t gemm_plan_make(struct gemm *g, struct gemm_plan *p, const struct gemm_shape *shape);
void gemm_plan_clear(struct gemm *g, struct gemm_plan *p);
cublasStatus_t gemm_aim(struct gemm *g, struct gemm_plan *p, const struct gemm_args *a, uint32_t m);
/* Puts the product that the plan is aimed at on the stream, with these weights. */
cublasStatus_t gemm_multiply(struct gemm *g, struct gpu_stream *s, const struct gemm_plan *p,
                             const struct gemm_args *a, const void *w,
                             const cublasLtMatmulAlgo_t *algo);
/* The library's first proposal for the very call; it is kept for the bucket when it works. */
cublasStatus_t gemm_multiply_as_proposed(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                                         const struct gemm_args *a, uint32_t bucket);
uint32_t gemm_propose(struct gemm *g, const struct gemm_plan *p,
                      cublasLtMatmulHeuristicResult_t proposals[GEMM_PROPOSALS]);
/* The shape is the own kernels' from now on. */
void gemm_give_to_own(struct gemm *g, struct gemm_plan *p, const struct gemm_args *a,
                      const char *why);
/* Which end of gemm_bucket_ends serves m; the last one all beyond. */
uint32_t gemm_bucket_of(uint32_t m, uint32_t n_buckets);
cublasStatus_t gemm_set_i32(struct gemm *g, struct gemm_plan *p,
                            cublasLtMatmulDescAttributes_t what, int32_t value);
cublasStatus_t gemm_set_pointer(struct gemm *g, struct gemm_plan *p,
                                cublasLtMatmulDescAttributes_t what, const void *pointer);

static inline const void *gemm_weights_of(const struct gemm_args *a) {
    return a->shape.codes ? (const void *)a->w_codes : a->w;
}

/* --- gemm_codes.c: what plans of codes have beyond others */

cublasStatus_t gemm_set_scale_modes(struct gemm *g, struct gemm_plan *p);
cublasStatus_t gemm_aim_scales(struct gemm *g, struct gemm_plan *p, const struct gemm_args *a);

#endif
