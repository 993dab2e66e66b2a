/* kernels/cuda/device/gemm.c - matrix products by cuBLASLt: one plan per shape, made and timed at
 * load; own kernels behind it.
 *
 * cuBLASLt thinks in columns. Row-major Y (m, n) is its D with n rows and m columns, and
 *
 *      Y = X W^T + b       is       D (n, m) = op(A) B + b        A = W, stored (k, n), transposed
 *                                                                B = X, stored (k, m)
 *
 * so that nothing is copied or transposed, and the bias, one number per row of D, is ours per
 * output.
 *
 * The library proposes algorithms by a model of the machine that is often wrong below 64 rows,
 * where the product is a stream of weights. So each bucket of m has its own: the fastest of the
 * first few proposals, timed on the weights themselves. Weights smaller than the cache are copied
 * side by side until they exceed it, for in a step each product finds its weights cold.
 *
 * What changes from call to call is written into the plan's own descriptors (m, strides, the bias),
 * only when it differs from the call before; the rest of gemm_run is a look-up and the library's
 * launch. The library reads descriptors during the call, never later, so graphs keep what they saw.
 *
 * Deterministic plans: proposals without split-K or any other reduction across blocks; the one that
 * loses least over all m serves them all, so the order of a row's sums never changes. That is put
 * to the test, for an algorithm may divide its sums by the size of the product undocumented: of
 * equal rows, any number of them must give equal bits. A shape for which none does is left to the
 * own kernels.
 *
 * A call that the library refuses in service, though it took the ends of its bucket at load, gets
 * the library's first proposal for that very call; when that is refused too the shape is the own
 * kernels' from then on. Both may round otherwise, and recorded graphs keep what they have; so a
 * deterministic plan is asked once more for the same algorithm, and then the device fails.
 *
 * Products of e4m3 codes: A and B as above, each with a scale mode and a pointer to scales. Which
 * modes there are depends on the version and on the device (NVIDIA/CUDALibrarySamples issues 270
 * and 310): a scale of the whole matrix from sm_89 on, scales of rows and of blocks on sm_90 alone,
 * from 12.9 on. Sizes are multiples of 16. Their weights were written just before, so they are
 * timed warm. What the library does not take is left to the caller, who has own kernels for it.
 *
 * LIMITS: 32 shapes; k and both strides multiples of 8 elements, all pointers of 16 bytes. */
#include "kernels/cuda/device/gemm.h"

#include <assert.h>
#include <string.h>

#include <cublasLt.h>

#include "common/base/mem.h"
#include "kernels/cuda/device/gpu_internal.h"

#define WORKSPACE_BYTES (UINT64_C(32) << 20) /* what the library's guide recommends on Hopper */
#define MAX_SHAPES      32u                  /* a model has five; a power of two */
#define MAX_PROPOSALS   12u
#define ALIGN_BYTES     16u /* what the vector loads and TMA of all kernels ask for */
#define COLD_CACHES     2u  /* weights that go round in a timing, in caches */
#define MAX_COPIES      32u
#define TIMED_RUNS      10u
#define LONG_LOOK_US    1000.0 /* at most so long, or three runs, or one of each copy */
#define HOPELESS        1.3    /* times the best so far */
#define SOME_BF16       0x3D   /* both bytes of 0.0461: its multiples make sums that are rounded */

/* cublasLtMatmulMatrixScale_t: older toolkits lack the names. */
enum { SCALE_WHOLE = 0, SCALE_ROWS = 3, SCALE_VECTORS = 4, SCALE_BLOCKS = 5 };

/* Upper ends of the buckets of m. Dense where a step decodes, as the graphs are; a third apart
 * above, where tiles matter more than m. The last one serves all beyond. */
static const uint32_t bucket_ends[] = {1,    2,    4,    8,    16,   24,   32,  48,
                                       64,   96,   128,  192,  256,  384,  512, 768,
                                       1024, 1536, 2048, 3072, 4096, 6144, 8192};
#define N_BUCKETS ((uint32_t)ARRAY_LEN(bucket_ends))

#define LIBRARY_FUNCTIONS(X)                                                                       \
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

struct library {
#define FIELD(field, function) __typeof__(&function) field;
    LIBRARY_FUNCTIONS(FIELD)
#undef FIELD
};

struct plan {
    struct gemm_shape shape;
    bool is_used, is_own; /* is_own: the own kernels serve it */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    uint32_t m, x_stride, y_stride; /* as the layouts have them now */
    const uint16_t *bias;           /* as the product has it */
    const float *x_scale, *w_scale;
    uint32_t n_buckets;
    cublasLtMatmulAlgo_t algo[N_BUCKETS];
};

struct gemm {
    struct gpu *gpu;
    struct library lib;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;            /* on the device */
    const struct gemm_own *own; /* or NULL */
    bool is_deterministic, has_library;
    struct error note;             /* why the own kernels serve; "" */
    struct plan plans[MAX_SHAPES]; /* open addressing by shape_hash */
};

/* A buffer of weights, and the copies of it that keep a timing cold. */
struct cold_weights {
    uint8_t *copies;
    uint64_t n_bytes; /* of one */
    uint32_t n;
};

/* --- the library ------------------------------------------------------------------------------ */

static enum status library_open(struct library *lib, struct error *err) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        NULL};
    void *handle = NULL;
    enum status st = gpu_library_open(
        &handle, names, "cuBLASLt",
        "install it (package libcublas of the CUDA toolkit, 12.8 or newer), or name its folder in "
        "LD_LIBRARY_PATH",
        err);

#define FIND(field, function)                                                                      \
    if (st == ST_OK) st = gpu_library_find(handle, &lib->field, #function, err);
    LIBRARY_FUNCTIONS(FIND)
#undef FIND
    return st;
}

static enum status refused(const struct gemm *g, cublasStatus_t code, const char *doing,
                           struct error *err) {
    return error_set(err, ST_INTERNAL, "cuBLASLt %zu refused %s: %s", g->lib.get_version(), doing,
                     g->lib.status_string(code));
}

static cublasStatus_t prefer_u32(struct gemm *g, cublasLtMatmulPreferenceAttributes_t what,
                                 uint32_t value) {
    return g->lib.preference_set(g->preference, what, &value, sizeof(value));
}

static cublasStatus_t make_preference(struct gemm *g) {
    const uint64_t workspace_bytes = WORKSPACE_BYTES;
    cublasStatus_t code = g->lib.preference_create(&g->preference);

    if (!code)
        code = g->lib.preference_set(g->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                     &workspace_bytes, sizeof(workspace_bytes));
    if (!code) code = prefer_u32(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, ALIGN_BYTES);
    if (!code) code = prefer_u32(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, ALIGN_BYTES);
    if (!code) code = prefer_u32(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, ALIGN_BYTES);
    if (!code) code = prefer_u32(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, ALIGN_BYTES);
    if (!code && g->is_deterministic)
        code = prefer_u32(g, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                          CUBLASLT_REDUCTION_SCHEME_NONE);
    return code;
}

static enum status library_start(struct gemm *g, struct error *err) {
    enum status st = library_open(&g->lib, err);
    cublasStatus_t code;

    if (st != ST_OK) return st;
    code = g->lib.create(&g->handle);
    if (!code) code = make_preference(g);
    return code ? refused(g, code, "to start", err) : ST_OK;
}

static void library_stop(struct gemm *g) {
    if (g->preference) (void)g->lib.preference_destroy(g->preference);
    if (g->handle) (void)g->lib.destroy(g->handle);
    g->preference = NULL;
    g->handle = NULL;
}

/* Own kernels take the place of a library that cannot be opened or does not start. */
enum status gemm_open(struct gemm **out, struct gpu *gpu, const struct gemm_own *own,
                      bool is_deterministic, struct error *err) {
    struct gemm *g = mem_zalloc(sizeof(*g));
    struct error why;
    enum status st;

    g->gpu = gpu;
    g->own = own;
    if (own) own->prepare();
    g->is_deterministic = is_deterministic;
    st = library_start(g, &why);
    g->has_library = st == ST_OK;
    if (g->has_library) {
        st = gpu_alloc(gpu, &g->workspace, WORKSPACE_BYTES, "the workspace of matrix products",
                       &why);
    } else if (own) {
        library_stop(g);
        st = error_set(&g->note, ST_OK, "own kernels compute all matrix products: %s", why.message);
    }
    if (st != ST_OK) {
        gemm_close(g);
        return error_set(err, st, "%s", why.message);
    }
    *out = g;
    return ST_OK;
}

const char *gemm_note(const struct gemm *g) {
    return g->note.message[0] ? g->note.message : NULL;
}

uint32_t gemm_n_own(const struct gemm *g) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < MAX_SHAPES; i++)
        n += g->plans[i].is_used && g->plans[i].is_own && !g->plans[i].shape.codes;
    return n;
}

static void plan_clear(struct gemm *g, struct plan *p) {
    if (p->product) (void)g->lib.desc_destroy(p->product);
    if (p->w) (void)g->lib.layout_destroy(p->w);
    if (p->x) (void)g->lib.layout_destroy(p->x);
    if (p->y) (void)g->lib.layout_destroy(p->y);
    *p = (struct plan){.is_used = false};
}

void gemm_close(struct gemm *g) {
    uint32_t i;

    if (!g) return;
    for (i = 0; i < MAX_SHAPES; i++)
        if (g->plans[i].is_used) plan_clear(g, &g->plans[i]);
    gpu_free(g->gpu, g->workspace);
    library_stop(g);
    mem_free(g);
}

/* --- plans ------------------------------------------------------------------------------------ */

static uint32_t shape_hash(const struct gemm_shape *s) {
    uint32_t flags = (uint32_t)s->is_f32_out | (uint32_t)s->has_bias << 1 |
                     (uint32_t)s->accumulates << 2 | (uint32_t)s->codes << 3;

    return ((s->n * 0x9E3779B1u) ^ (s->k * 0x85EBCA77u) ^ (flags * 0xC2B2AE3Du)) >> 16;
}

static bool shape_equal(const struct gemm_shape *a, const struct gemm_shape *b) {
    return a->n == b->n && a->k == b->k && a->is_f32_out == b->is_f32_out &&
           a->has_bias == b->has_bias && a->accumulates == b->accumulates && a->codes == b->codes;
}

/* The plan of a shape, or the free place where it belongs, or NULL: all places are taken. */
static struct plan *plan_find(struct gemm *g, const struct gemm_shape *shape) {
    uint32_t at = shape_hash(shape), i;
    struct plan *p;

    for (i = 0; i < MAX_SHAPES; i++) {
        p = &g->plans[(at + i) % MAX_SHAPES];
        if (!p->is_used || shape_equal(&p->shape, shape)) return p;
    }
    return NULL;
}

static uint32_t bucket_of(uint32_t m, uint32_t n_buckets) {
    uint32_t i = 0;

    while (i + 1 < n_buckets && m > bucket_ends[i])
        i++;
    return i;
}

static cublasStatus_t set_i32(struct gemm *g, struct plan *p, cublasLtMatmulDescAttributes_t what,
                              int32_t value) {
    return g->lib.desc_set(p->product, what, &value, sizeof(value));
}

/* How A, our W, and B, our X, are scaled. */
static cublasStatus_t set_scale_modes(struct gemm *g, struct plan *p) {
    static const int32_t modes[][2] = {[GEMM_F8_PLAIN] = {SCALE_WHOLE, SCALE_WHOLE},
                                       [GEMM_F8_ROWS] = {SCALE_ROWS, SCALE_ROWS},
                                       [GEMM_F8_BLOCKS] = {SCALE_BLOCKS, SCALE_VECTORS}};
    const int8_t is_fast = 0;
    cublasStatus_t code =
        g->lib.desc_set(p->product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &is_fast, sizeof(is_fast));

    if (p->shape.codes == GEMM_F8_PLAIN) return code; /* what older libraries do */
    if (!code) code = set_i32(g, p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, modes[p->shape.codes][0]);
    if (!code) code = set_i32(g, p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, modes[p->shape.codes][1]);
    return code;
}

/* Descriptors for m = 1; `aim` makes them fit a call. */
static cublasStatus_t plan_make(struct gemm *g, struct plan *p, const struct gemm_shape *shape) {
    const cudaDataType_t y_type = shape->is_f32_out ? CUDA_R_32F : CUDA_R_16BF;
    const cudaDataType_t type = shape->codes ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    cublasStatus_t code;

    *p = (struct plan){.shape = *shape, .is_used = true};
    p->m = 1;
    p->x_stride = shape->k;
    p->y_stride = shape->n;
    code = g->lib.desc_create(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!code) code = set_i32(g, p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (!code && shape->has_bias) {
        code = set_i32(g, p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        if (!code) code = set_i32(g, p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    if (!code && shape->codes) code = set_scale_modes(g, p);
    if (!code) code = g->lib.layout_create(&p->w, type, shape->k, shape->n, shape->k);
    if (!code) code = g->lib.layout_create(&p->x, type, shape->k, 1, shape->k);
    if (!code) code = g->lib.layout_create(&p->y, y_type, shape->n, 1, shape->n);
    return code;
}

static cublasStatus_t aim_rows(struct gemm *g, struct plan *p, uint32_t m) {
    const uint64_t columns = m;
    cublasStatus_t code =
        g->lib.layout_set(p->x, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));

    if (!code)
        code = g->lib.layout_set(p->y, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
    p->m = m;
    return code;
}

static cublasStatus_t aim_stride(struct gemm *g, cublasLtMatrixLayout_t layout, uint32_t *now,
                                 uint32_t stride) {
    const int64_t elements = stride;

    *now = stride;
    return g->lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_LD, &elements, sizeof(elements));
}

static cublasStatus_t set_pointer(struct gemm *g, struct plan *p,
                                  cublasLtMatmulDescAttributes_t what, const void *pointer) {
    return g->lib.desc_set(p->product, what, &pointer, sizeof(pointer));
}

static cublasStatus_t aim_bias(struct gemm *g, struct plan *p, const uint16_t *bias) {
    p->bias = bias;
    return set_pointer(g, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

static cublasStatus_t aim_scales(struct gemm *g, struct plan *p, const struct gemm_args *a) {
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

    if (p->w_scale != a->w_scale)
        code = set_pointer(g, p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a->w_scale);
    if (!code && p->x_scale != a->x_scale)
        code = set_pointer(g, p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a->x_scale);
    p->w_scale = a->w_scale;
    p->x_scale = a->x_scale;
    return code;
}

/* Makes the descriptors those of this call. */
static cublasStatus_t aim(struct gemm *g, struct plan *p, const struct gemm_args *a, uint32_t m) {
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

    if (p->m != m) code = aim_rows(g, p, m);
    if (!code && p->x_stride != a->x_stride) code = aim_stride(g, p->x, &p->x_stride, a->x_stride);
    if (!code && p->y_stride != a->y_stride) code = aim_stride(g, p->y, &p->y_stride, a->y_stride);
    if (!code && p->shape.has_bias && p->bias != a->bias) code = aim_bias(g, p, a->bias);
    if (!code && p->shape.codes) code = aim_scales(g, p, a);
    return code;
}

static const void *weights_of(const struct gemm_args *a) {
    return a->shape.codes ? (const void *)a->w_codes : a->w;
}

static cublasStatus_t multiply(struct gemm *g, struct gpu_stream *s, const struct plan *p,
                               const struct gemm_args *a, const void *w,
                               const cublasLtMatmulAlgo_t *algo) {
    const float alpha = 1, beta = p->shape.accumulates ? 1 : 0;
    const void *x = p->shape.codes ? (const void *)a->x_codes : a->x;
    bool overlaps; /* of what comes next: the library launches its kernels as it likes */
    cudaStream_t stream = (cudaStream_t)gpu_stream_launches(s, &overlaps);
    cublasStatus_t code =
        g->lib.matmul(g->handle, p->product, &alpha, w, p->w, x, p->x, &beta, a->y, p->y, a->y,
                      p->y, algo, g->workspace, WORKSPACE_BYTES, stream);

    if (code) (void)gpu_stream_handle(s); /* no kernel came, which the next one could overlap */
    return code;
}

static uint32_t propose(struct gemm *g, const struct plan *p,
                        cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS]) {
    int n = 0;

    if (g->lib.propose(g->handle, p->product, p->w, p->x, p->y, p->y, g->preference, MAX_PROPOSALS,
                       proposals, &n))
        return 0;
    return (uint32_t)n;
}

/* The shape is the own kernels' from now on. */
static void give_to_own(struct gemm *g, struct plan *p, const struct gemm_args *a,
                        const char *why) {
    p->is_own = true;
    (void)error_set(
        &g->note, ST_OK, "own kernels compute the matrix product (m, %u) x (%u, %u)%s: cuBLASLt %s",
        a->shape.k, a->shape.n, a->shape.k, a->shape.codes ? " of e4m3 codes" : "", why);
}

/* The library's first proposal for the very call; it is kept for the bucket when it works. */
static cublasStatus_t multiply_as_proposed(struct gemm *g, struct gpu_stream *s, struct plan *p,
                                           const struct gemm_args *a, uint32_t bucket) {
    cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS];
    cublasStatus_t code = CUBLAS_STATUS_NOT_SUPPORTED;

    if (propose(g, p, proposals) > 0)
        code = multiply(g, s, p, a, weights_of(a), &proposals[0].algo);
    if (!code) p->algo[bucket] = proposals[0].algo;
    return code;
}

static void fail_refused(struct gemm *g, const struct gemm_args *a, cublasStatus_t code,
                         const char *what_to_do) {
    gpu_fail(g->gpu, "cuBLASLt refused the product (%u, %u) x (%u, %u): %s%s", a->m, a->shape.k,
             a->shape.n, a->shape.k, g->lib.status_string(code), what_to_do);
}

/* What the library did not take. */
static void run_refused(struct gemm *g, struct gpu_stream *s, struct plan *p,
                        const struct gemm_args *a, uint32_t bucket) {
    cublasStatus_t code = g->is_deterministic ? multiply(g, s, p, a, a->w, &p->algo[bucket])
                                              : multiply_as_proposed(g, s, p, a, bucket);

    if (!code) return;
    if (g->is_deterministic) {
        fail_refused(g, a, code,
                     ", though it has computed it before; own kernels would give other bits than "
                     "--deterministic promises: start again, or without it");
    } else if (!g->own) {
        fail_refused(g, a, code, "");
    } else {
        give_to_own(g, p, a, "refused it in service");
        g->own->run(s, a);
    }
}

void gemm_run(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args) {
    struct plan *p = plan_find(g, &args->shape);
    cublasStatus_t code;
    uint32_t bucket;

    if (args->m == 0) return;
    if (UNLIKELY(!p || p->n_buckets == 0)) {
        gpu_fail(g->gpu, "the product (m, %u) x (%u, %u) was not tuned at load", args->shape.k,
                 args->shape.n, args->shape.k);
        return;
    }
    if (p->is_own) {
        g->own->run(s, args);
        return;
    }
    bucket = bucket_of(args->m, p->n_buckets);
    code = aim(g, p, args, args->m);
    if (!code) code = multiply(g, s, p, args, weights_of(args), &p->algo[bucket]);
    if (UNLIKELY(code)) run_refused(g, s, p, args, bucket);
}

static const char *why_no_codes(const struct gemm *g, const struct gemm_shape *shape) {
    uint32_t sm = gpu_properties(g->gpu)->sm;

    if (g->is_deterministic) return "deterministic mode has own kernels for it";
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

    if (why) /* without a library the note has all */
        (void)error_set(&g->note, ST_OK,
                        "own kernels compute the matrix product (m, %u) x (%u, %u) of e4m3 codes: "
                        "%s",
                        shape->k, shape->n, shape->k, why);
}

bool gemm_try(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args) {
    struct plan *p = plan_find(g, &args->shape);
    uint32_t bucket;

    if (!p || p->n_buckets == 0 || p->is_own) return false;
    assert(args->m % GEMM_CODE_ROWS == 0);
    bucket = bucket_of(args->m, p->n_buckets);
    if (!aim(g, p, args, args->m) && !multiply(g, s, p, args, args->w_codes, &p->algo[bucket]))
        return true;
    if (multiply_as_proposed(g, s, p, args, bucket) == CUBLAS_STATUS_SUCCESS) return true;
    give_to_own(g, p, args, "refused it in service");
    return false;
}

void gemm_run_grouped(struct gemm *g, struct gpu_stream *s, const struct gemm_grouped_args *args) {
    if (g->own)
        g->own->run_grouped(s, args);
    else
        gpu_fail(g->gpu, "a grouped product of %u matrices: there are no own kernels",
                 args->n_groups);
}

/* --- tuning ----------------------------------------------------------------------------------- */

/* Copies weights that would stay in the cache until there are COLD_CACHES of them. Without memory
 * for that the timing is warm, and still better than none. */
static void cold_open(struct cold_weights *c, struct gemm *g, struct gpu_stream *s,
                      const struct gemm_args *args) {
    const uint64_t want_bytes = gpu_properties(g->gpu)->l2_bytes * COLD_CACHES;
    void *copies = NULL;
    uint32_t i;

    *c = (struct cold_weights){.n_bytes = (uint64_t)args->shape.n * args->shape.k * 2, .n = 1};
    if (c->n_bytes >= want_bytes || args->shape.codes) return;
    c->n = (uint32_t)MIN(CEIL_DIV(want_bytes, c->n_bytes), MAX_COPIES);
    if (gpu_memory_free(g->gpu) / 2 < c->n * c->n_bytes ||
        gpu_alloc(g->gpu, &copies, c->n * c->n_bytes, "tuning", NULL) != ST_OK) {
        c->n = 1;
        return;
    }
    c->copies = copies;
    for (i = 0; i < c->n; i++)
        gpu_copy(s, c->copies + i * c->n_bytes, args->w, c->n_bytes);
}

static const void *cold_next(const struct cold_weights *c, const struct gemm_args *args,
                             uint32_t i) {
    return c->copies ? c->copies + (i % c->n) * c->n_bytes : weights_of(args);
}

struct stopwatch {
    struct gpu_event *start, *stop;
};

static enum status stopwatch_open(struct stopwatch *w, struct gpu *gpu, struct error *err) {
    enum status st;

    *w = (struct stopwatch){NULL, NULL};
    st = gpu_event_open(gpu, &w->start, err);
    return st == ST_OK ? gpu_event_open(gpu, &w->stop, err) : st;
}

static void stopwatch_close(struct stopwatch *w) {
    gpu_event_close(w->start);
    gpu_event_close(w->stop);
}

/* Microseconds of one product by this algorithm, the mean of n, weights cold; negative: it
 * fails. */
static double mean_us(struct gemm *g, struct gpu_stream *s, struct plan *p,
                      const struct gemm_args *args, const struct cold_weights *cold,
                      const struct stopwatch *watch, const cublasLtMatmulAlgo_t *algo, uint32_t n) {
    uint32_t i;

    gpu_event_record(watch->start, s);
    for (i = 0; i < n; i++)
        if (multiply(g, s, p, args, cold_next(cold, args, i), algo)) return -1;
    gpu_event_record(watch->stop, s);
    if (gpu_event_wait(watch->stop, UINT64_MAX) != ST_OK) return -1;
    return gpu_event_elapsed_us(watch->start, watch->stop) / n;
}

/* The same, looked at closely unless it is clearly slower than `best_us` (if positive): most
 * proposals are, and large products take their time. */
static double time_algo(struct gemm *g, struct gpu_stream *s, struct plan *p,
                        const struct gemm_args *args, const struct cold_weights *cold,
                        const struct stopwatch *watch, const cublasLtMatmulAlgo_t *algo,
                        double best_us) {
    const uint32_t glance = cold->copies ? cold->n : 2;
    double us, again_us;
    uint32_t n_runs;

    if (multiply(g, s, p, args, weights_of(args), algo)) return -1; /* loads the kernel, too */
    us = mean_us(g, s, p, args, cold, watch, algo, glance);
    if (us < 0 || (best_us > 0 && us > HOPELESS * best_us)) return us;
    n_runs = MAX((uint32_t)MIN(LONG_LOOK_US / MAX(us, 1.0), TIMED_RUNS), glance);
    again_us = mean_us(g, s, p, args, cold, watch, algo, n_runs);
    return again_us < 0 ? again_us : MIN(us, again_us);
}

static bool works_now(struct gemm *g, const struct plan *p, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};

    return g->lib.algo_check(g->handle, p->product, p->w, p->x, p->y, p->y, algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE_BYTES;
}

/* Whether the algorithm fits every m from `first_m` to `last_m`; leaves the plan aimed at the
 * last. */
static bool works_between(struct gemm *g, struct plan *p, const struct gemm_args *args,
                          const cublasLtMatmulAlgo_t *algo, uint32_t first_m, uint32_t last_m) {
    return aim(g, p, args, first_m) == CUBLAS_STATUS_SUCCESS && works_now(g, p, algo) &&
           aim(g, p, args, last_m) == CUBLAS_STATUS_SUCCESS && works_now(g, p, algo);
}

static bool splits_sums(struct gemm *g, const cublasLtMatmulAlgo_t *algo) {
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    int32_t n_splits = 1;
    size_t written = 0;

    (void)g->lib.algo_get(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &n_splits, sizeof(n_splits),
                          &written);
    (void)g->lib.algo_get(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme),
                          &written);
    return n_splits > 1 || n_splits < 0 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

static enum status nothing_works(const struct gemm_shape *shape, uint32_t m, struct error *err) {
    return error_set(err, ST_UNSUPPORTED,
                     "cuBLASLt has no algorithm for the product (%u, %u) x (%u, %u)%s: k and the "
                     "strides must be multiples of 8",
                     m, shape->k, shape->n, shape->k, shape->has_bias ? " with a bias" : "");
}

/* The fastest proposal for one bucket of m, timed at its end. */
static enum status tune_bucket(struct gemm *g, struct gpu_stream *s, struct plan *p,
                               const struct gemm_args *args, const struct cold_weights *cold,
                               const struct stopwatch *watch, uint32_t bucket, uint32_t max_m,
                               struct error *err) {
    cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS];
    const uint32_t last_m = MIN(bucket_ends[bucket], max_m);
    const uint32_t after = bucket == 0 ? 1 : bucket_ends[bucket - 1] + 1;
    const uint32_t first_m = p->shape.codes ? ALIGN_UP(after, GEMM_CODE_ROWS) : after;
    double best_us = -1, us;
    uint32_t n = 0, i;

    if (aim(g, p, args, last_m) == CUBLAS_STATUS_SUCCESS) n = propose(g, p, proposals);
    for (i = 0; i < n; i++) {
        if (!works_between(g, p, args, &proposals[i].algo, MIN(first_m, last_m), last_m)) continue;
        us = time_algo(g, s, p, args, cold, watch, &proposals[i].algo, best_us);
        if (us < 0 || (best_us >= 0 && us >= best_us)) continue;
        best_us = us;
        p->algo[bucket] = proposals[i].algo;
    }
    if (best_us >= 0) return ST_OK;
    if (!g->own && !p->shape.codes) return nothing_works(&p->shape, last_m, err);
    give_to_own(g, p, args, "has no algorithm for it");
    return ST_OK;
}

/* Proposals of several m, each once, that never split a sum and fit every m. */
static uint32_t propose_for_all(struct gemm *g, struct plan *p, const struct gemm_args *args,
                                const uint32_t *m, uint32_t n_m, cublasLtMatmulAlgo_t *algos) {
    cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS];
    uint32_t n_algos = 0, n, i, j, k;

    for (i = 0; i < n_m; i++) {
        if (aim(g, p, args, m[i])) continue;
        n = propose(g, p, proposals);
        for (j = 0; j < n; j++) {
            for (k = 0; k < n_algos; k++)
                if (memcmp(&algos[k], &proposals[j].algo, sizeof(algos[k])) == 0) break;
            if (k < n_algos || splits_sums(g, &proposals[j].algo)) continue;
            if (works_between(g, p, args, &proposals[j].algo, 1, m[n_m - 1]))
                algos[n_algos++] = proposals[j].algo;
        }
    }
    return n_algos;
}

/* Whether a row's bits are the same alone and anywhere among equal rows, however many. x must hold
 * equal rows; `pinned` has room for two rows of y. */
static bool keeps_its_bits(struct gemm *g, struct gpu_stream *s, struct plan *p,
                           const struct gemm_args *args, uint8_t *pinned,
                           const cublasLtMatmulAlgo_t *algo, uint32_t max_m) {
    const uint32_t m[] = {1, MIN(17, max_m), MIN(256, max_m), max_m};
    const uint64_t size = args->shape.is_f32_out ? 4 : 2, n_bytes = args->shape.n * size;

    for (uint32_t i = 0; i < ARRAY_LEN(m); i++) {
        gpu_fill(s, args->y, 0, ((m[i] - 1ull) * args->y_stride) * size + n_bytes);
        if (aim(g, p, args, m[i]) || multiply(g, s, p, args, args->w, algo)) return false;
        for (uint64_t j = 0; j < (i ? 3 : 1); j++) { /* the first, the middle, the last */
            uint8_t *row = pinned + (i ? n_bytes : 0);
            uint64_t at = j * (m[i] - 1) / 2 * args->y_stride * size;

            gpu_copy(s, row, (const uint8_t *)args->y + at, n_bytes);
            if (gpu_stream_wait(s, NULL) != ST_OK || memcmp(pinned, row, i ? n_bytes : 0) != 0)
                return false;
        }
    }
    return true;
}

/* One algorithm for all m: the smallest sum of times, each over the best at that m. */
static uint32_t least_loss(double us[4][4 * MAX_PROPOSALS], const double best_us[4], uint32_t n) {
    uint32_t chosen = n, i, j;
    double loss, least = 0;

    for (j = 0; j < n; j++) {
        for (loss = 0, i = 0; i < 4; i++)
            loss += us[i][j] < 0 ? 1e9 : us[i][j] / MAX(best_us[i], 1e-3);
        if (loss >= 1e9 || (chosen < n && loss >= least)) continue;
        least = loss;
        chosen = j;
    }
    return chosen;
}

static enum status tune_for_all(struct gemm *g, struct gpu_stream *s, struct plan *p,
                                const struct gemm_args *args, const struct cold_weights *cold,
                                const struct stopwatch *watch, uint32_t max_m, struct error *err) {
    const uint32_t m[4] = {1, MIN(32, max_m), MIN(256, max_m), MIN(2048, max_m)};
    cublasLtMatmulAlgo_t algos[4 * MAX_PROPOSALS];
    double us[4][4 * MAX_PROPOSALS], best_us[4] = {0};
    uint32_t n = propose_for_all(g, p, args, m, 4, algos), chosen, i, j;
    void *pinned;
    enum status st = gpu_alloc_pinned(g->gpu, &pinned, args->shape.n * 8ull, "rows", err);

    if (st != ST_OK) return st;
    for (i = 0; i < 4; i++) {
        (void)aim(g, p, args, m[i]);
        for (j = 0; j < n; j++) {
            us[i][j] = time_algo(g, s, p, args, cold, watch, &algos[j], best_us[i]);
            if (us[i][j] > 0 && (best_us[i] <= 0 || us[i][j] < best_us[i])) best_us[i] = us[i][j];
        }
    }
    gpu_fill(s, (void *)(uintptr_t)args->x, SOME_BF16,
             ((max_m - 1ull) * args->x_stride + args->shape.k) * 2);
    while ((chosen = least_loss(us, best_us, n)) < n &&
           !keeps_its_bits(g, s, p, args, pinned, &algos[chosen], max_m))
        us[0][chosen] = -1;
    gpu_free(g->gpu, pinned);
    if (chosen == n && g->own) {
        give_to_own(g, p, args, "has no algorithm that gives a row the same bits in every batch");
        return ST_OK;
    }
    if (n == 0) return nothing_works(&p->shape, max_m, err);
    if (chosen == n)
        return error_set(err, ST_UNSUPPORTED,
                         "cuBLASLt has no algorithm for the product (%u, %u) x (%u, %u) that gives "
                         "a row the same bits in every batch: start without --deterministic",
                         max_m, p->shape.k, p->shape.n, p->shape.k);
    for (i = 0; i < N_BUCKETS; i++)
        p->algo[i] = algos[chosen];
    return ST_OK;
}

/* Codes are multiplied by more than GEMM_CODE_ROWS rows. */
static uint32_t first_bucket(const struct plan *p) {
    return p->shape.codes ? bucket_of(GEMM_CODE_ROWS + 1, N_BUCKETS) : 0;
}

static enum status tune(struct gemm *g, struct gpu_stream *s, struct plan *p,
                        const struct gemm_args *args, uint32_t max_m, struct error *err) {
    const uint32_t n_buckets = bucket_of(max_m, N_BUCKETS) + 1;
    struct cold_weights cold;
    struct stopwatch watch;
    uint32_t i;
    enum status st = stopwatch_open(&watch, g->gpu, err);

    cold_open(&cold, g, s, args);
    if (st == ST_OK && g->is_deterministic)
        st = tune_for_all(g, s, p, args, &cold, &watch, max_m, err);
    else
        for (i = first_bucket(p); st == ST_OK && !p->is_own && i < n_buckets; i++)
            st = tune_bucket(g, s, p, args, &cold, &watch, i, max_m, err);
    if (gpu_stream_wait(s, st == ST_OK ? err : NULL) != ST_OK && st == ST_OK) st = ST_CLOSED;
    gpu_free(g->gpu, cold.copies);
    stopwatch_close(&watch);
    if (st == ST_OK) p->n_buckets = n_buckets;
    return st;
}

enum status gemm_tune(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args,
                      uint32_t max_m, struct error *err) {
    struct plan *p = plan_find(g, &args->shape);
    cublasStatus_t code;
    enum status st;

    if (!p)
        return error_set(err, ST_INTERNAL, "more than %u shapes of matrix products", MAX_SHAPES);
    if (p->is_used) return ST_OK;
    if (!g->has_library) {
        *p = (struct plan){.shape = args->shape, .is_used = true, .is_own = true, .n_buckets = 1};
        return ST_OK;
    }
    code = plan_make(g, p, &args->shape);
    if (code && args->shape.codes) {
        give_to_own(g, p, args, "refuses its scales");
        return ST_OK;
    }
    st = code ? refused(g, code, "the shape of a product", err)
              : tune(g, s, p, args, MAX(max_m, 1), err);
    if (st != ST_OK) plan_clear(g, p);
    return st;
}
