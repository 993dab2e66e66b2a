/* tests/unit/cuda/device/fake_libraries.c - cuBLASLt and NCCL as far as gemm.c and comm.c call
 * them, and a dlopen that finds them here, or not, as the test sets. See fake_cuda.h. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "tests/unit/cuda/device/fake_cuda.h"

/* --- cuBLASLt: algorithms ------------------------------------------------------------------------
 * What the library would propose, in its order; and what each costs in truth. */
static const struct {
    int32_t n_splits;
    uint32_t least_m; /* fits from here */
    double us_small;  /* up to m = 16 */
    double us_large;
    bool is_broken; /* fails when it is run */
    bool is_fickle; /* sums otherwise when there are more than 16 rows, and does not report it */
} algos[] = {
    {1, 1, 10, 3, false, false}, {4, 1, 2, 6, false, false},  {1, 1, 5, 5, false, false},
    {1, 1, 1, 1, true, false},   {1, 64, 9, 2, false, false}, {1, 1, 4, 4, false, true},
};

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};

struct product {
    int32_t is_transposed, epilogue, bias_type, w_mode, x_mode;
    const uint16_t *bias;
    const float *w_scale, *x_scale;
    int8_t is_fast;
};

static cublasStatus_t expect(bool is_right) {
    return is_right ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static bool is_set_refused(void) {
    return fake_cuda.refuse_set && --fake_cuda.refuse_set == 0;
}

size_t cublasLtGetVersion(void) {
    return fake_cuda.cublaslt_version ? fake_cuda.cublaslt_version : 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an error";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    struct layout *l = malloc(sizeof(*l));

    *l = (struct layout){type, rows, columns, ld};
    *out = (cublasLtMatrixLayout_t)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void *value, size_t n_bytes) {
    struct layout *l = (struct layout *)(void *)layout;

    if (is_set_refused()) return CUBLAS_STATUS_INVALID_VALUE;
    if (what == CUBLASLT_MATRIX_LAYOUT_COLS && n_bytes == 8)
        memcpy(&l->columns, value, 8);
    else if (what == CUBLASLT_MATRIX_LAYOUT_LD && n_bytes == 8)
        memcpy(&l->ld, value, 8);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t sums,
                                        cudaDataType_t scale) {
    *out = calloc(1, sizeof(struct product));
    return expect(sums == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
    free(product);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t n_bytes) {
    struct product *p = (struct product *)(void *)product;
    bool is_mode =
        what == CUBLASLT_MATMUL_DESC_A_SCALE_MODE || what == CUBLASLT_MATMUL_DESC_B_SCALE_MODE;
    const struct {
        cublasLtMatmulDescAttributes_t what;
        void *at;
        size_t n_bytes;
    } all[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &p->is_transposed, 4},
               {CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, 4},
               {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &p->bias_type, 4},
               {CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)&p->bias, 8},
               {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &p->w_mode, 4},
               {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &p->x_mode, 4},
               {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (void *)&p->w_scale, 8},
               {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (void *)&p->x_scale, 8},
               {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &p->is_fast, 1}};

    if ((is_mode && fake_cuda.has_no_scale_modes) || is_set_refused())
        return CUBLAS_STATUS_INVALID_VALUE;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i].what != what) continue;
        if (all[i].n_bytes != n_bytes) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(all[i].at, value, n_bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t n_bytes) {
    (void)preference;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&fake_cuda.preferred_workspace, value, n_bytes);
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&fake_cuda.preferred_reductions, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* Proposes all, whatever is preferred: the caller looks for itself. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *n = MIN(n_wanted, (int)ARRAY_LEN(algos));
    memset(results, 0, (size_t)*n * sizeof(*results));
    for (int i = 0; i < *n; i++)
        results[i].algo.data[0] = (uint64_t)i;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    const struct layout *x = (const struct layout *)(void *)b;

    (void)handle, (void)product, (void)a, (void)c, (void)d;
    result->workspaceSize = 0;
    if (x->type == CUDA_R_8F_E4M3 && x->columns % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    return x->columns < algos[algo->data[0]].least_m ? CUBLAS_STATUS_NOT_SUPPORTED
                                                     : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t what,
                                                    void *value, size_t n_bytes, size_t *written) {
    if (what == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        memcpy(value, &algos[algo->data[0]].n_splits, n_bytes);
    *written = n_bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t to_bf16(float f) {
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static double from_e4m3(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double x = exponent ? (8 + mantissa) * ldexp(1, exponent - 10) : mantissa * ldexp(1, -9);

    if ((code & 0x7F) == 0x7F) return NAN;
    return code & 0x80 ? -x : x;
}

/* A number of A or B, scaled as the library's guide has it for the mode: `i` of `row`. */
static double scaled(const struct layout *l, const void *p, int32_t mode, const float *scale,
                     uint64_t row, uint64_t i) {
    uint64_t at = row * (uint64_t)l->ld + i;
    double x;

    if (l->type == CUDA_R_16BF) return from_bf16(((const uint16_t *)p)[at]);
    x = from_e4m3(((const uint8_t *)p)[at]);
    switch (mode) {
    case 0: return scale ? x * *scale : x;
    case 3: return x * scale[row];
    case 4: return x * scale[i / 128 * l->columns + row];
    default: return x * scale[row / 128 * ALIGN_UP(CEIL_DIV(l->rows, 128u), 4u) + i / 128];
    }
}

/* What it takes of codes: scales by rows on both sides, or W's by blocks and X's by vectors. */
static bool are_codes_refused(const struct product *p, const struct layout *w,
                              const struct layout *x, const struct layout *y) {
    bool are_whole = p->w_mode == 0 && p->x_mode == 0;
    bool are_known =
        are_whole || (p->w_mode == 3 && p->x_mode == 3) || (p->w_mode == 5 && p->x_mode == 4);

    if (w->type == CUDA_R_16BF) return x->type != w->type;
    return x->type != w->type || y->type != CUDA_R_16BF || p->is_fast || !are_known ||
           (!are_whole && (fake_cuda.sm != 90 || !p->w_scale || !p->x_scale)) || w->rows % 16 ||
           w->columns % 16 || x->columns % 16 || w->ld % 16 || x->ld % 16 || y->ld % 16;
}

static void store(const struct layout *l, void *d, uint64_t at, double sum, bool adds) {
    if (l->type == CUDA_R_32F) {
        float *y = (float *)d + at;

        *y = (float)(sum + (adds ? *y : 0));
    } else {
        uint16_t *y = (uint16_t *)d + at;

        *y = to_bf16((float)(sum + (adds ? from_bf16(*y) : 0)));
    }
}

/* D (rows, columns) = A^T B, column-major, as the library's guide defines it. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    const struct product *p = (const struct product *)(void *)product;
    const struct layout *w = (const struct layout *)(void *)a_layout;
    const struct layout *x = (const struct layout *)(void *)b_layout;
    const struct layout *y = (const struct layout *)(void *)d_layout;
    const float one = *(const float *)alpha, keep = *(const float *)beta;

    (void)handle, (void)stream;
    if (!workspace || workspace_bytes < fake_cuda.preferred_workspace || c != d ||
        c_layout != d_layout || one != 1 || !p->is_transposed || w->rows != x->rows ||
        w->columns != y->rows || x->columns != y->columns ||
        (p->epilogue == CUBLASLT_EPILOGUE_BIAS && (!p->bias || p->bias_type != CUDA_R_16BF)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (are_codes_refused(p, w, x, y)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algos[algo->data[0]].is_broken || fake_cuda.product_error ||
        fake_cuda.refused_algos >> algo->data[0] & 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (fake_cuda.n_refusals) {
        fake_cuda.n_refusals--;
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    fake_cuda.n_products++;
    fake_cuda.last_algo = (uint32_t)algo->data[0];
    fake_cuda.clock_us +=
        x->columns <= 16 ? algos[algo->data[0]].us_small : algos[algo->data[0]].us_large;
    for (uint64_t row = 0; row < y->rows; row++)
        for (uint64_t column = 0; column < y->columns; column++) {
            double sum = p->epilogue == CUBLASLT_EPILOGUE_BIAS ? from_bf16(p->bias[row]) : 0;

            for (uint64_t i = 0; i < w->rows; i++)
                sum += scaled(w, a, p->w_mode, p->w_scale, row, i) *
                       scaled(x, b, p->x_mode, p->x_scale, column, i);
            if ((algos[algo->data[0]].is_fickle || fake_cuda.is_fickle) && x->columns > 16)
                sum *= 1 + 1.0 / 128;
            store(y, d, column * (uint64_t)y->ld + row, sum, keep == 1);
        }
    return CUBLAS_STATUS_SUCCESS;
}

/* --- NCCL: ranks are threads, and meet -------------------------------------------------------- */

#define MAX_RANKS 8

struct name {
    char bytes[128];
};

struct ranks { /* one communicator at a time */
    pthread_mutex_t lock;
    pthread_cond_t change;
    int size, n_waiting;
    unsigned turn;
    const void *from[MAX_RANKS];
};
static struct ranks ranks = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
static _Thread_local bool is_hidden;

void fake_nccl_hide(void) {
    is_hidden = true;
}

static void meet(void) {
    unsigned turn;

    (void)pthread_mutex_lock(&ranks.lock);
    turn = ranks.turn;
    if (++ranks.n_waiting == ranks.size) {
        ranks.n_waiting = 0;
        ranks.turn++;
        (void)pthread_cond_broadcast(&ranks.change);
    }
    while (ranks.turn == turn)
        (void)pthread_cond_wait(&ranks.change, &ranks.lock);
    (void)pthread_mutex_unlock(&ranks.lock);
}

static int nccl_version(int *version) {
    *version = 22809;
    return 0;
}

static const char *nccl_error(int code) {
    (void)code;
    return "unhandled";
}

static int nccl_name(struct name *out) {
    memset(out->bytes, 0x5A, sizeof(out->bytes));
    return 0;
}

static int nccl_init(void **out, int size, struct name name, int rank) {
    if (name.bytes[0] != 0x5A || name.bytes[127] != 0x5A || size > MAX_RANKS) return 4;
    (void)pthread_mutex_lock(&ranks.lock);
    ranks.size = size;
    fake_cuda.n_nccl_ranks++;
    (void)pthread_mutex_unlock(&ranks.lock);
    *out = (void *)(intptr_t)(rank + 1);
    meet();
    return 0;
}

static int nccl_destroy(void *comm) {
    (void)comm;
    (void)pthread_mutex_lock(&ranks.lock);
    fake_cuda.n_nccl_ranks--;
    (void)pthread_mutex_unlock(&ranks.lock);
    return 0;
}

static int nccl_sum(const void *from, void *to, size_t n, int type, int op, void *comm,
                    void *stream) {
    float *sums = calloc(n, sizeof(*sums));

    (void)stream;
    if (type != 9 || op != 0) return 4;
    ranks.from[(intptr_t)comm - 1] = from;
    meet();
    for (int rank = 0; rank < ranks.size; rank++)
        for (size_t i = 0; i < n; i++)
            sums[i] += from_bf16(((const uint16_t *)ranks.from[rank])[i]);
    meet();
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)to)[i] = to_bf16(sums[i]);
    free(sums);
    return 0;
}

static int nccl_gather(const void *mine, void *all, size_t n, int type, void *comm, void *stream) {
    (void)stream;
    if (type != 1) return 4;
    ranks.from[(intptr_t)comm - 1] = mine;
    meet();
    for (int rank = 0; rank < ranks.size; rank++)
        memcpy((char *)all + (size_t)rank * n, ranks.from[rank], n);
    meet();
    return 0;
}

/* --- the loader ------------------------------------------------------------------------------- */

#define HERE(name)                                                                                 \
    { #name, (void *)(uintptr_t)name }
#define AS(name, ours)                                                                             \
    { #name, (void *)(uintptr_t)ours }
static const struct {
    const char *name;
    void *address;
} symbols[] = {HERE(cublasLtGetVersion),
               HERE(cublasLtGetStatusString),
               HERE(cublasLtCreate),
               HERE(cublasLtDestroy),
               HERE(cublasLtMatmul),
               HERE(cublasLtMatrixLayoutCreate),
               HERE(cublasLtMatrixLayoutDestroy),
               HERE(cublasLtMatrixLayoutSetAttribute),
               HERE(cublasLtMatmulDescCreate),
               HERE(cublasLtMatmulDescDestroy),
               HERE(cublasLtMatmulDescSetAttribute),
               HERE(cublasLtMatmulPreferenceCreate),
               HERE(cublasLtMatmulPreferenceDestroy),
               HERE(cublasLtMatmulPreferenceSetAttribute),
               HERE(cublasLtMatmulAlgoGetHeuristic),
               HERE(cublasLtMatmulAlgoCheck),
               HERE(cublasLtMatmulAlgoConfigGetAttribute),
               AS(ncclGetVersion, nccl_version),
               AS(ncclGetErrorString, nccl_error),
               AS(ncclGetUniqueId, nccl_name),
               AS(ncclCommInitRank, nccl_init),
               AS(ncclCommDestroy, nccl_destroy),
               AS(ncclAllReduce, nccl_sum),
               AS(ncclAllGather, nccl_gather)};

/* The linker sends calls of the loader here (--wrap). */
void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlsym(void *library, const char *name);
char *__wrap_dlerror(void);
int __wrap_dlclose(void *library);

void *__wrap_dlopen(const char *path, int flags) {
    (void)flags;
    if (strstr(path, "cublasLt")) return fake_cuda.has_cublaslt ? &fake_cuda : NULL;
    if (strstr(path, "nccl")) return fake_cuda.has_nccl && !is_hidden ? &fake_cuda : NULL;
    return NULL;
}

void *__wrap_dlsym(void *library, const char *name) {
    (void)library;
    for (size_t i = 0; i < ARRAY_LEN(symbols); i++)
        if (strcmp(symbols[i].name, name) == 0) return symbols[i].address;
    return NULL;
}

char *__wrap_dlerror(void) {
    static char sentence[] = "no such file";

    return sentence;
}

int __wrap_dlclose(void *library) {
    (void)library;
    return 0;
}
