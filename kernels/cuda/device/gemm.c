/* kernels/cuda/device/gemm.c - matrix products by cuBLASLt, and own kernels behind it: a handle,
 * and the products that it makes.
 *
 * A call that the library refuses in service, though it took the ends of its bucket at load, gets
 * the library's first proposal for that very call; when that is refused too the shape is the own
 * kernels' from then on. Both may round otherwise, and recorded graphs keep what they have; so a
 * deterministic plan is asked once more for the same algorithm, and then the device fails.
 *
 * LIMITS: 32 shapes; k and both strides multiples of 8 elements, all pointers of 16 bytes. */
#include "kernels/cuda/device/gemm.h"

#include "common/base/mem.h"
#include "kernels/cuda/device/gemm_internal.h"
#include "kernels/cuda/device/gpu_internal.h"

#define ALIGN_BYTES 16u /* what the vector loads and TMA of all kernels ask for */

/* --- the library ------------------------------------------------------------------------------ */

static enum status library_open(struct gemm_library *lib, struct error *err) {
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
    GEMM_LIBRARY_FUNCTIONS(FIND)
#undef FIND
    return st;
}

enum status gemm_refused(const struct gemm *g, cublasStatus_t code, const char *doing,
                         struct error *err) {
    return error_set(err, ST_INTERNAL, "cuBLASLt %zu refused %s: %s", g->lib.get_version(), doing,
                     g->lib.status_string(code));
}

static cublasStatus_t prefer_u32(struct gemm *g, cublasLtMatmulPreferenceAttributes_t what,
                                 uint32_t value) {
    return g->lib.preference_set(g->preference, what, &value, sizeof(value));
}

static cublasStatus_t make_preference(struct gemm *g) {
    const uint64_t workspace_bytes = GEMM_WORKSPACE_BYTES;
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
    return code ? gemm_refused(g, code, "to start", err) : ST_OK;
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
        st = gpu_alloc(gpu, &g->workspace, GEMM_WORKSPACE_BYTES, "the workspace of matrix products",
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

    for (uint32_t i = 0; i < GEMM_SHAPES; i++)
        n += g->plans[i].is_used && g->plans[i].is_own && !g->plans[i].shape.codes;
    return n;
}

void gemm_close(struct gemm *g) {
    uint32_t i;

    if (!g) return;
    for (i = 0; i < GEMM_SHAPES; i++)
        if (g->plans[i].is_used) gemm_plan_clear(g, &g->plans[i]);
    gpu_free(g->gpu, g->workspace);
    library_stop(g);
    mem_free(g);
}

/* --- products --------------------------------------------------------------------------------- */

static void fail_refused(struct gemm *g, const struct gemm_args *a, cublasStatus_t code,
                         const char *what_to_do) {
    gpu_fail(g->gpu, "cuBLASLt refused the product (%u, %u) x (%u, %u): %s%s", a->m, a->shape.k,
             a->shape.n, a->shape.k, g->lib.status_string(code), what_to_do);
}

/* What the library did not take. */
static void run_refused(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                        const struct gemm_args *a, uint32_t bucket) {
    cublasStatus_t code = gemm_aim(g, p, a, a->m); /* which may be what failed */

    if (!code)
        code = g->is_deterministic ? gemm_multiply(g, s, p, a, a->w, &p->algo[bucket])
                                   : gemm_multiply_as_proposed(g, s, p, a, bucket);
    if (!code) return;
    if (g->is_deterministic) {
        fail_refused(g, a, code,
                     ", though it has computed it before; own kernels would give other bits than "
                     "--deterministic promises: start again, or without it");
    } else if (!g->own) {
        fail_refused(g, a, code, "");
    } else {
        gemm_give_to_own(g, p, a, "refused it in service");
        g->own->run(s, a);
    }
}

void gemm_run(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args) {
    struct gemm_plan *p = gemm_plan_find(g, &args->shape);
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
    bucket = gemm_bucket_of(args->m, p->n_buckets);
    code = gemm_aim(g, p, args, args->m);
    if (!code) code = gemm_multiply(g, s, p, args, gemm_weights_of(args), &p->algo[bucket]);
    if (UNLIKELY(code)) run_refused(g, s, p, args, bucket);
}

void gemm_run_grouped(struct gemm *g, struct gpu_stream *s, const struct gemm_grouped_args *args) {
    if (g->own)
        g->own->run_grouped(s, args);
    else
        gpu_fail(g->gpu, "a grouped product of %u matrices: there are no own kernels",
                 args->n_groups);
}
