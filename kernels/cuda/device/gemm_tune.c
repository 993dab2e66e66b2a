/* kernels/cuda/device/gemm_tune.c - which algorithm of the library serves a shape: timed at load.
 *
 * The library proposes algorithms by a model of the machine that is often wrong below 64 rows,
 * where the product is a stream of weights. So each bucket of m has its own: the fastest of the
 * first few proposals, timed on the weights themselves. Weights smaller than the cache are copied
 * side by side until they exceed it, for in a step each product finds its weights cold.
 *
 * Deterministic plans: proposals without split-K or any other reduction across blocks; the one that
 * loses least over all m serves them all, so the order of a row's sums never changes. That is put
 * to the test, for an algorithm may divide its sums by the size of the product undocumented: of
 * equal rows, any number of them must give equal bits. A shape for which none does is left to the
 * own kernels. */
#include <string.h>

#include "kernels/cuda/device/gemm_internal.h"

#define COLD_CACHES  2u /* weights that go round in a timing, in caches */
#define MAX_COPIES   32u
#define TIMED_RUNS   10u
#define LONG_LOOK_US 1000.0 /* at most so long, or three runs, or one of each copy */
#define HOPELESS     1.3    /* times the best so far */
#define SOME_BF16    0x3D   /* both bytes of 0.0461: its multiples make sums that are rounded */

/* A buffer of weights, and the copies of it that keep a timing cold. */
struct cold_weights {
    uint8_t *copies;
    uint64_t n_bytes; /* of one */
    uint32_t n;
};

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
    return c->copies ? c->copies + (i % c->n) * c->n_bytes : gemm_weights_of(args);
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
static double mean_us(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                      const struct gemm_args *args, const struct cold_weights *cold,
                      const struct stopwatch *watch, const cublasLtMatmulAlgo_t *algo, uint32_t n) {
    uint32_t i;

    gpu_event_record(watch->start, s);
    for (i = 0; i < n; i++)
        if (gemm_multiply(g, s, p, args, cold_next(cold, args, i), algo)) return -1;
    gpu_event_record(watch->stop, s);
    if (gpu_event_wait(watch->stop, UINT64_MAX) != ST_OK) return -1;
    return gpu_event_elapsed_us(watch->start, watch->stop) / n;
}

/* The same, looked at closely unless it is clearly slower than `best_us` (if positive): most
 * proposals are, and large products take their time. */
static double time_algo(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                        const struct gemm_args *args, const struct cold_weights *cold,
                        const struct stopwatch *watch, const cublasLtMatmulAlgo_t *algo,
                        double best_us) {
    const uint32_t glance = cold->copies ? cold->n : 2;
    double us, again_us;
    uint32_t n_runs;

    if (gemm_multiply(g, s, p, args, gemm_weights_of(args), algo))
        return -1; /* loads the kernel, too */
    us = mean_us(g, s, p, args, cold, watch, algo, glance);
    if (us < 0 || (best_us > 0 && us > HOPELESS * best_us)) return us;
    n_runs = MAX((uint32_t)MIN(LONG_LOOK_US / MAX(us, 1.0), TIMED_RUNS), glance);
    again_us = mean_us(g, s, p, args, cold, watch, algo, n_runs);
    return again_us < 0 ? again_us : MIN(us, again_us);
}

static bool works_now(struct gemm *g, const struct gemm_plan *p, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};

    return g->lib.algo_check(g->handle, p->product, p->w, p->x, p->y, p->y, algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= GEMM_WORKSPACE_BYTES;
}

/* Whether the algorithm fits every m from `first_m` to `last_m`; leaves the plan aimed at the
 * last. */
static bool works_between(struct gemm *g, struct gemm_plan *p, const struct gemm_args *args,
                          const cublasLtMatmulAlgo_t *algo, uint32_t first_m, uint32_t last_m) {
    return gemm_aim(g, p, args, first_m) == CUBLAS_STATUS_SUCCESS && works_now(g, p, algo) &&
           gemm_aim(g, p, args, last_m) == CUBLAS_STATUS_SUCCESS && works_now(g, p, algo);
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
static enum status tune_bucket(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                               const struct gemm_args *args, const struct cold_weights *cold,
                               const struct stopwatch *watch, uint32_t bucket, uint32_t max_m,
                               struct error *err) {
    cublasLtMatmulHeuristicResult_t proposals[GEMM_PROPOSALS];
    const uint32_t step = p->shape.codes ? GEMM_CODE_ROWS : 1;
    const uint32_t last_m = MIN(gemm_bucket_ends[bucket], max_m) / step * step;
    const uint32_t first_m = ALIGN_UP(bucket == 0 ? 1 : gemm_bucket_ends[bucket - 1] + 1, step);
    double best_us = -1, us;
    uint32_t n = 0, i;

    if (first_m > last_m) return ST_OK; /* no call of codes has as many rows */
    if (gemm_aim(g, p, args, last_m) == CUBLAS_STATUS_SUCCESS) n = gemm_propose(g, p, proposals);
    for (i = 0; i < n; i++) {
        if (!works_between(g, p, args, &proposals[i].algo, first_m, last_m)) continue;
        us = time_algo(g, s, p, args, cold, watch, &proposals[i].algo, best_us);
        if (us < 0 || (best_us >= 0 && us >= best_us)) continue;
        best_us = us;
        p->algo[bucket] = proposals[i].algo;
    }
    if (best_us >= 0) return ST_OK;
    if (!g->own && !p->shape.codes) return nothing_works(&p->shape, last_m, err);
    gemm_give_to_own(g, p, args, "has no algorithm for it");
    return ST_OK;
}

/* Proposals of several m, each once, that never split a sum and fit every m. */
static uint32_t propose_for_all(struct gemm *g, struct gemm_plan *p, const struct gemm_args *args,
                                const uint32_t *m, uint32_t n_m, cublasLtMatmulAlgo_t *algos) {
    cublasLtMatmulHeuristicResult_t proposals[GEMM_PROPOSALS];
    uint32_t n_algos = 0, n, i, j, k;

    for (i = 0; i < n_m; i++) {
        if (gemm_aim(g, p, args, m[i])) continue;
        n = gemm_propose(g, p, proposals);
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
static bool keeps_its_bits(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                           const struct gemm_args *args, uint8_t *pinned,
                           const cublasLtMatmulAlgo_t *algo, uint32_t max_m) {
    const uint32_t m[] = {1, MIN(17, max_m), MIN(256, max_m), max_m};
    const uint64_t size = args->shape.is_f32_out ? 4 : 2, n_bytes = args->shape.n * size;

    for (uint32_t i = 0; i < ARRAY_LEN(m); i++) {
        gpu_fill(s, args->y, 0, ((m[i] - 1ull) * args->y_stride) * size + n_bytes);
        if (gemm_aim(g, p, args, m[i]) || gemm_multiply(g, s, p, args, args->w, algo)) return false;
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
static uint32_t least_loss(double us[4][4 * GEMM_PROPOSALS], const double best_us[4], uint32_t n) {
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

static enum status tune_for_all(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                                const struct gemm_args *args, const struct cold_weights *cold,
                                const struct stopwatch *watch, uint32_t max_m, struct error *err) {
    const uint32_t m[4] = {1, MIN(32, max_m), MIN(256, max_m), MIN(2048, max_m)};
    cublasLtMatmulAlgo_t algos[4 * GEMM_PROPOSALS];
    double us[4][4 * GEMM_PROPOSALS], best_us[4] = {0};
    uint32_t n = propose_for_all(g, p, args, m, 4, algos), chosen, i, j;
    void *pinned;
    enum status st = gpu_alloc_pinned(g->gpu, &pinned, args->shape.n * 8ull, "rows", err);

    if (st != ST_OK) return st;
    for (i = 0; i < 4; i++) {
        (void)gemm_aim(g, p, args, m[i]);
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
        gemm_give_to_own(g, p, args,
                         "has no algorithm that gives a row the same bits in every batch");
        return ST_OK;
    }
    if (n == 0) return nothing_works(&p->shape, max_m, err);
    if (chosen == n)
        return error_set(err, ST_UNSUPPORTED,
                         "cuBLASLt has no algorithm for the product (%u, %u) x (%u, %u) that gives "
                         "a row the same bits in every batch: start without --deterministic",
                         max_m, p->shape.k, p->shape.n, p->shape.k);
    for (i = 0; i < GEMM_BUCKETS; i++)
        p->algo[i] = algos[chosen];
    return ST_OK;
}

/* Codes are multiplied by more than GEMM_CODE_ROWS rows. */
static uint32_t first_bucket(const struct gemm_plan *p) {
    return p->shape.codes ? gemm_bucket_of(GEMM_CODE_ROWS + 1, GEMM_BUCKETS) : 0;
}

static enum status tune(struct gemm *g, struct gpu_stream *s, struct gemm_plan *p,
                        const struct gemm_args *args, uint32_t max_m, struct error *err) {
    const uint32_t n_buckets = gemm_bucket_of(max_m, GEMM_BUCKETS) + 1;
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
    struct gemm_plan *p = gemm_plan_find(g, &args->shape);
    cublasStatus_t code;
    enum status st;

    if (!p)
        return error_set(err, ST_INTERNAL, "more than %u shapes of matrix products", GEMM_SHAPES);
    if (p->is_used) return ST_OK;
    if (!g->has_library) {
        *p = (struct gemm_plan){
            .shape = args->shape, .is_used = true, .is_own = true, .n_buckets = 1};
        return ST_OK;
    }
    code = gemm_plan_make(g, p, &args->shape);
    if (code && args->shape.codes) {
        gemm_give_to_own(g, p, args, "refuses its scales");
        return ST_OK;
    }
    st = code ? gemm_refused(g, code, "the shape of a product", err)
              : tune(g, s, p, args, MAX(max_m, 1), err);
    if (st != ST_OK) gemm_plan_clear(g, p);
    return st;
}
