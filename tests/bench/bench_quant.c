/* tests/bench/bench_quant.c - quantised products of the CPU backend beside bf16's, in one process.
 *
 *      M=1, 4, 16, 64, 512   weights per second, over those of bf16 on the same path
 *      beside llama.cpp      over its Q8_0 (int8, e4m3) and Q4_K_M (int4), where it is linked
 *
 * One pass is the four products of a layer of Llama-3.2-1B, inputs prepared too, cycling over
 * layers that leave every cache. A round measures every format once, one after the other; a figure
 * is the median over the rounds of the ratios within a round, and the ratio of the best passes.
 * With one thread, time is processor time. Usage: bench_quant [threads] [path] [seconds] [gate];
 * with `gate` the exit status is 1 where a median at M=1 is below 0.9 of its bar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/pool.h"
#include "kernels/quant.h"
#include "tests/bench/peer/peer.h"

#define N_LAYERS   4u
#define MAX_ROWS   512u
#define ROWS       240u /* at most in a chunk, as in forward.c */
#define PAD        16u
#define PANELS     4u
#define MAX_ROUNDS 400u
#define LONGEST    8192u

static const uint32_t shape[4][2] = {{3072, 2048}, {2048, 2048}, {16384, 2048}, {2048, 8192}};
static const uint32_t heights[] = {1, 4, 16, 64, MAX_ROWS};
#define N_HEIGHTS ARRAY_LEN(heights)

static const struct format {
    const char *name;
    enum dtype dtype;
    uint32_t group_n, group_k; /* 0: all inputs */
    bool has_zeros;
    enum quant_inputs inputs;
    double bar, bar_avx2; /* at M=1 */
    enum peer_type peer;
} formats[] = {
    {"bf16", DTYPE_BF16, 0, 0, false, QUANT_INPUTS_PLAIN, 0, 0, PEER_BF16},
    {"int8 W8A8", DTYPE_I8, 1, 0, false, QUANT_INPUTS_I8, 1.8, 1.8, PEER_Q8_0},
    {"int4 g128", DTYPE_U4, 1, 128, false, QUANT_INPUTS_PLAIN, 2.8, 2.0, PEER_Q4_K_M},
    {"int4 g128 zeros", DTYPE_U4, 1, 128, true, QUANT_INPUTS_PLAIN, 2.8, 2.0, PEER_Q4_K_M},
    {"e4m3 channel", DTYPE_F8E4M3, 1, 0, false, QUANT_INPUTS_PLAIN, 1.7, 1.7, PEER_Q8_0},
    {"e4m3 128x128", DTYPE_F8E4M3, 128, 128, false, QUANT_INPUTS_PLAIN, 1.7, 1.7, PEER_Q8_0},
};
#define N_FORMATS ARRAY_LEN(formats)

struct bench {
    const struct cpu_path *path;
    struct cpu_pool *pool;
    struct cpu_matrix w[N_FORMATS][N_LAYERS][4];
    struct peer_products *peer[PEER_TYPES];
    uint32_t next_layer[N_FORMATS];
    char *x, *rows; /* (MAX_ROWS, ...) acts; prepared */
    float *y;       /* (threads, ROWS, PANELS * PANEL) */
    char *scratch;  /* (threads, QUANT_SCRATCH) */
    uint64_t layer_weights;
};

static double seconds_now(const struct bench *b) {
    struct timespec t;

    clock_gettime(cpu_pool_threads(b->pool) == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- passes ---------------------------------------------------------------------------------- */

struct job {
    struct bench *b;
    const struct cpu_matrix *w;
    uint32_t n_rows, rows, n_panel_chunks;
};

static void run_prepare(void *arg, uint32_t chunk, uint32_t worker) {
    const struct job *j = arg;
    struct bench *b = j->b;
    size_t width = ALIGN_UP(j->w->k, PANEL) + PAD;
    size_t row_bytes = cpu_inputs_bytes(j->w, b->path->act_bytes);

    (void)worker;
    for (uint32_t r = chunk * 16; r < MIN((chunk + 1) * 16, j->n_rows); r++)
        b->path->prepare(b->rows + r * row_bytes, j->w, b->x + r * width * b->path->act_bytes);
}

static void run_chunk(void *arg, uint32_t chunk, uint32_t worker) {
    const struct job *j = arg;
    struct bench *b = j->b;
    uint32_t p = chunk % j->n_panel_chunks * PANELS, r = chunk / j->n_panel_chunks * j->rows;
    uint32_t n_panels = MIN(PANELS, j->w->n_panels - p), n = MIN(j->rows, j->n_rows - r);
    size_t width = ALIGN_UP(j->w->k, PANEL) + PAD, stride = PANELS * PANEL;
    float *y = b->y + worker * ROWS * stride;

    if (j->w->dtype == DTYPE_BF16)
        b->path->gemm[DTYPE_BF16](cpu_matrix_panel(j->w, p), n_panels, j->w->k_pairs,
                                  b->x + r * width * b->path->act_bytes, width, n, y, stride,
                                  false);
    else
        b->path->quant(j->w, p, n_panels, b->rows + r * cpu_inputs_bytes(j->w, b->path->act_bytes),
                       n, y, stride, false, b->scratch + worker * QUANT_SCRATCH);
}

/* One layer at M rows; weights per second. */
static double pass(struct bench *b, uint32_t format, uint32_t n_rows) {
    double start = seconds_now(b);
    uint32_t rows = CEIL_DIV(n_rows, CEIL_DIV(n_rows, ROWS));

    for (int i = 0; i < 4; i++) {
        const struct cpu_matrix *w = &b->w[format][b->next_layer[format] % N_LAYERS][i];
        struct job j = {b, w, n_rows, rows, CEIL_DIV(w->n_panels, PANELS)};

        if (w->dtype != DTYPE_BF16)
            cpu_pool_run(b->pool, CEIL_DIV(n_rows, 16u), n_rows <= 16, run_prepare, &j);
        cpu_pool_run(b->pool, j.n_panel_chunks * CEIL_DIV(n_rows, rows), false, run_chunk, &j);
    }
    b->next_layer[format]++;
    return (double)b->layer_weights / (seconds_now(b) - start);
}

static double peer_pass(struct bench *b, enum peer_type type, uint32_t n_rows) {
    double start = seconds_now(b);

    peer_products_pass(b->peer[type], n_rows);
    return (double)b->layer_weights / (seconds_now(b) - start);
}

/* --- rounds ---------------------------------------------------------------------------------- */

static double ratio[N_FORMATS][N_HEIGHTS][2][MAX_ROUNDS]; /* over bf16; over the peer */
static double best[N_FORMATS + PEER_TYPES][N_HEIGHTS];
static uint32_t n_ratios[N_HEIGHTS];

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n) {
    qsort(x, n, sizeof(*x), by_value);
    return n ? x[n / 2] : 0;
}

static void measure_height(struct bench *b, uint32_t h) {
    double v[N_FORMATS], peer[PEER_TYPES] = {0};
    uint32_t n = n_ratios[h];

    for (uint32_t f = 0; f < N_FORMATS; f++) {
        v[f] = pass(b, f, heights[h]);
        best[f][h] = MAX(best[f][h], v[f]);
    }
    for (int t = 0; t < PEER_TYPES && peer_name(); t++) {
        peer[t] = peer_pass(b, (enum peer_type)t, heights[h]);
        best[N_FORMATS + t][h] = MAX(best[N_FORMATS + t][h], peer[t]);
    }
    v[0] = (v[0] + pass(b, 0, heights[h])) / 2; /* before and after the others */
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        ratio[f][h][0][n] = v[f] / v[0];
        ratio[f][h][1][n] = peer_name() ? v[f] / peer[formats[f].peer] : 0;
    }
    n_ratios[h]++;
}

static void measure(struct bench *b, double seconds) {
    uint64_t end_us = clock_now_us() + (uint64_t)(seconds * 1e6);

    for (uint32_t round = 0; round < MAX_ROUNDS && (round < 9 || clock_now_us() < end_us);
         round++) {
        for (uint32_t h = 0; h < N_HEIGHTS; h++) {
            if (heights[h] <= 16 || round % 8 == 0) measure_height(b, h);
        }
    }
}

/* Median and best of each; whether all medians at M=1 reach 0.9 of their bars. */
static bool report(struct bench *b) {
    bool is_avx2 = strcmp(b->path->name, "avx2") == 0, passes = true;

    printf("path %s, %u threads, %u rounds; bf16 %.1f GB/s at M=1, best\n", b->path->name,
           cpu_pool_threads(b->pool), n_ratios[0], best[0][0] * 2e-9);
    printf("  over bf16: median (best)       M=1            M=4            M=16           M=64     "
           "      M=512\n");
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        double bar = is_avx2 ? formats[f].bar_avx2 : formats[f].bar, at_one = 0;

        printf("  %-26s", formats[f].name);
        for (uint32_t h = 0; h < N_HEIGHTS; h++) {
            double m = median(ratio[f][h][0], n_ratios[h]);

            if (h == 0) at_one = m;
            printf("  %5.2f (%5.2f)", m, best[f][h] / best[0][h]);
        }
        printf("  (goal %.1f at M=1)\n", bar);
        if (at_one < 0.9 * bar) passes = false;
    }
    for (uint32_t f = 0; f < N_FORMATS && peer_name(); f++) {
        enum peer_type t = formats[f].peer;

        printf("  over %s %-13s", peer_type_name(t), formats[f].name);
        for (uint32_t h = 0; h < N_HEIGHTS; h++)
            printf("  %5.2f (%5.2f)", median(ratio[f][h][1], n_ratios[h]),
                   best[f][h] / best[N_FORMATS + t][h]);
        printf("  (goal 1.0, from M=4 on 1.3)\n");
    }
    return passes;
}

/* --- set-up ---------------------------------------------------------------------------------- */

static struct backend_tensor random_tensor(const struct format *f, uint32_t n, uint32_t k,
                                           struct backend_quant *q, struct rng *r) {
    uint32_t group_k = f->group_k ? f->group_k : k, row_groups = CEIL_DIV(k, group_k);
    struct backend_tensor t = {.dtype = f->dtype,
                               .n_dims = 2,
                               .shape = {n, k},
                               .n_bytes = n * dtype_row_bytes(f->dtype, k)};
    float *scale = mem_calloc((size_t)n * row_groups, sizeof(*scale));
    int16_t *zero = f->has_zeros ? mem_calloc((size_t)n * row_groups, sizeof(*zero)) : NULL;
    uint64_t *words = mem_alloc(t.n_bytes);

    for (uint64_t i = 0; i < t.n_bytes / 8; i++) {
        words[i] = rng_u64(r);
        if (f->dtype == DTYPE_BF16)
            words[i] = (words[i] & 0x81FF81FF81FF81FFu) | 0x3C003C003C003C00u;
        if (f->dtype == DTYPE_F8E4M3) words[i] &= 0xBFBFBFBFBFBFBFBFu; /* no NaN */
    }
    for (uint64_t i = 0; i < (uint64_t)n * row_groups; i++) {
        scale[i] = f32_of_f16((uint16_t)(0x1C00 | (rng_u64(r) & 0x3FF)));
        if (zero) zero[i] = (int16_t)rng_below(r, 16);
    }
    *q = (struct backend_quant){.inputs = f->inputs,
                                .group_n = f->group_n,
                                .group_k = group_k,
                                .scale = scale,
                                .zero = zero};
    t.data = words;
    if (f->dtype != DTYPE_BF16) t.quant = q;
    return t;
}

static void fill_matrix(struct bench *b, const struct format *f, struct cpu_matrix *w, uint32_t n,
                        uint32_t k, struct rng *r) {
    struct backend_quant q;
    struct backend_tensor t = random_tensor(f, n, k, &q, r);
    struct cpu_format format;
    uint64_t n_bytes;

    *w = cpu_matrix_shape(f->dtype, n, k);
    if (t.quant && cpu_format_of(&format, b->path, &t, NULL) == ST_OK)
        *w = cpu_matrix_quant(&format, n, k);
    n_bytes = ALIGN_UP(cpu_matrix_bytes(w), (uint64_t)2 << 20);
    w->w = mem_try_aligned(2 << 20, n_bytes);
    if (!w->w) abort();
    (void)madvise(w->w, n_bytes, MADV_HUGEPAGE); /* as a model */
    memset(w->w, 0, n_bytes);
    cpu_pack(w, &t, 0, 1);
    mem_free(t.data);
    mem_free((void *)(uintptr_t)q.scale);
    mem_free((void *)(uintptr_t)q.zero);
}

static void fill_rows(struct bench *b, struct rng *r) {
    size_t n = (size_t)MAX_ROWS * (LONGEST + PAD);
    float row[64];

    b->x = mem_calloc(n, sizeof(float));
    b->rows = mem_calloc(MAX_ROWS, LONGEST * 5);
    for (size_t i = 0; i < n; i += 64) {
        for (int j = 0; j < 64; j++)
            row[j] = (float)rng_f64(r) - 0.5f;
        b->path->to_act(b->x + i * b->path->act_bytes, row, 64);
    }
    b->y = mem_calloc((size_t)cpu_pool_threads(b->pool) * ROWS * PANELS * PANEL, sizeof(float));
    b->scratch = mem_try_aligned(CACHE_LINE, cpu_pool_threads(b->pool) * QUANT_SCRATCH);
}

static void fill(struct bench *b) {
    struct rng r;

    rng_seed(&r, 1);
    for (uint32_t i = 0; i < N_FORMATS * N_LAYERS * 4; i++) {
        const uint32_t *s = shape[i % 4];

        fill_matrix(b, &formats[i / 4 / N_LAYERS], &b->w[i / 4 / N_LAYERS][i / 4 % N_LAYERS][i % 4],
                    s[0], s[1], &r);
        if (i < 4) b->layer_weights += (uint64_t)s[0] * s[1];
    }
    fill_rows(b, &r);
    for (int t = 0; t < PEER_TYPES && peer_name(); t++) {
        b->peer[t] =
            peer_products_open((enum peer_type)t, shape, N_LAYERS, cpu_pool_threads(b->pool));
        for (uint32_t h = 0; h < N_HEIGHTS; h++) {
            peer_products_prepare(b->peer[t], heights[h]);
            peer_products_pass(b->peer[t], heights[h]); /* its threads start */
        }
    }
}

int main(int argc, char **argv) {
    static struct bench b;
    struct error err = {0};
    bool is_gate = argc > 4 && strcmp(argv[4], "gate") == 0, passes;

    if (cpu_path_find(&b.path, argc > 2 ? argv[2] : NULL, &err) != ST_OK ||
        cpu_pool_create(&b.pool, argc > 1 ? (uint32_t)atoi(argv[1]) : 0, &err) != ST_OK) {
        fprintf(stderr, "bench_quant: %s\n", err.message);
        return 2;
    }
    fill(&b);
    measure(&b, argc > 3 ? atof(argv[3]) : 10);
    passes = report(&b);
    cpu_pool_destroy(b.pool);
    return is_gate && !passes;
}
