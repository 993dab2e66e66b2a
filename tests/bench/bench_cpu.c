/* tests/bench/bench_cpu.c - how near the CPU kernels come to this machine's roofs.
 *
 *      decode  M=1   GB/s of weights against the best read loop of this process
 *      decode  M=4   against M=1
 *      prefill M=512 multiply-adds against the peak of the path's dot product
 *
 * One pass is the four products of a layer of Qwen2-0.5B (q,k,v | o | gate,up | down), cycling
 * over enough layers to leave every cache. All measurements are interleaved and repeated, and the
 * best of each is taken: bandwidth on shared machines swings by a factor of two, ratios in one
 * process do not. With one thread, time is processor time, so that neighbours who take the core
 * do not count; with several it is the clock's, and the machine must be quiet. Usage: bench_cpu
 * [threads] [path] [seconds]. Prints a table, and exits with 1 below a goal when BENCH_GATE is
 * set. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/pool.h"

#define N_LAYERS 12u
#define MAX_ROWS 512u
#define ROWS     240u /* rows of a chunk, as in forward.c */

static const uint32_t shapes[4][2] = {{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}};

struct bench {
    const struct cpu_path *path;
    struct cpu_pool *pool;
    struct cpu_matrix w[N_LAYERS][4];
    uint8_t *x; /* act (MAX_ROWS, 4864) */
    float *y;   /* (MAX_ROWS, 9728) */
    uint32_t next_layer;
    uint64_t layer_bytes, layer_weights;
    const uint8_t *reading;
    uint64_t read_bytes, sink[POOL_MAX_THREADS * 8];
};

struct job {
    struct bench *b;
    const struct cpu_matrix *w;
    uint32_t n_rows, n_panel_chunks, panels;
};

static void run_chunk(void *arg, uint32_t chunk, uint32_t worker) {
    const struct job *j = arg;
    uint32_t p = chunk % j->n_panel_chunks * j->panels, r = chunk / j->n_panel_chunks * ROWS;
    size_t width = ALIGN_UP(j->w->k, PANEL), stride = j->w->n_panels * PANEL;

    (void)worker;
    j->b->path->gemm(j->w->w + (size_t)p * j->w->k_pairs * PANEL * 2,
                     MIN(j->panels, j->w->n_panels - p), j->w->k_pairs,
                     j->b->x + r * width * j->b->path->act_bytes, width, MIN(ROWS, j->n_rows - r),
                     j->b->y + r * stride + p * PANEL, stride);
}

static double seconds_now(const struct bench *b) {
    struct timespec t;

    clock_gettime(cpu_pool_threads(b->pool) == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One layer at M rows; seconds. */
static double pass(struct bench *b, uint32_t n_rows) {
    double start = seconds_now(b);
    uint32_t panels = n_rows <= 6 ? 4 : 1;

    for (int i = 0; i < 4; i++) {
        const struct cpu_matrix *w = &b->w[b->next_layer % N_LAYERS][i];
        struct job j = {b, w, n_rows, CEIL_DIV(w->n_panels, panels), panels};

        cpu_pool_run(b->pool, j.n_panel_chunks * CEIL_DIV(n_rows, ROWS), false, run_chunk, &j);
    }
    b->next_layer++;
    return seconds_now(b) - start;
}

/* --- roofs ----------------------------------------------------------------------------------- */

#define READ_STREAMS 4u

static void run_read(void *arg, uint32_t chunk, uint32_t worker) {
    typedef uint64_t v8 __attribute__((vector_size(64), aligned(16)));
    struct bench *b = arg;
    uint64_t part = b->read_bytes / 16, stream = part / READ_STREAMS / 64 * 64;
    const uint8_t *p = b->reading + chunk * part;
    v8 a[READ_STREAMS] = {{0}};

    for (uint64_t i = 0; i < stream; i += 64) {
        for (uint32_t s = 0; s < READ_STREAMS; s++) {
            __builtin_prefetch(p + s * stream + i + 4096);
            a[s] ^= *(const v8 *)(const void *)(p + s * stream + i);
        }
    }
    for (uint32_t s = 1; s < READ_STREAMS; s++)
        a[0] ^= a[s];
    for (int i = 0; i < 8; i++)
        b->sink[worker * 8] += a[0][i];
}

static double read_pass(struct bench *b) {
    double start = seconds_now(b);
    const struct cpu_matrix *w = &b->w[b->next_layer++ % N_LAYERS][2]; /* the largest */

    b->reading = (const uint8_t *)w->w;
    b->read_bytes = cpu_matrix_bytes(w);
    cpu_pool_run(b->pool, 16, false, run_read, b);
    return seconds_now(b) - start;
}

static void run_peak(void *arg, uint32_t chunk, uint32_t worker) {
    (void)chunk, (void)worker;
    ((struct bench *)arg)->path->peak(20000);
}

static double peak_pass(struct bench *b, double *operations) {
    double start = seconds_now(b), seconds;

    cpu_pool_run(b->pool, 16, false, run_peak, b);
    seconds = seconds_now(b) - start;
    *operations = 16 * b->path->peak(20000);
    return seconds;
}

static void fill(struct bench *b) {
    struct rng r;
    float *row = mem_alloc(4864 * sizeof(float));

    rng_seed(&r, 1);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (int i = 0; i < 4; i++) {
            struct cpu_matrix *w = &b->w[l][i];
            uint64_t n;

            *w = cpu_matrix_shape(shapes[i][0], shapes[i][1]);
            n = cpu_matrix_bytes(w);
            w->w = mem_try_aligned(2 << 20, ALIGN_UP(n, (uint64_t)2 << 20));
            if (!w->w) abort();
            for (uint64_t e = 0; e < n / 2; e++)
                w->w[e] = (uint16_t)(0x3C00 | (rng_u64(&r) & 0x81FF));
            if (l == 0) b->layer_bytes += n, b->layer_weights += n / 2;
        }
    }
    b->x = mem_calloc((size_t)MAX_ROWS * 4864, sizeof(float));
    b->y = mem_calloc((size_t)MAX_ROWS * 9728, sizeof(float));
    for (uint32_t i = 0; i < 4864; i++)
        row[i] = (float)rng_f64(&r) - 0.5f;
    for (uint32_t m = 0; m < MAX_ROWS; m++)
        b->path->to_act(b->x + (size_t)m * 4864 * b->path->act_bytes, row, 4864);
    mem_free(row);
}

static double best(double a, double b) {
    return a > b ? a : b;
}

int main(int argc, char **argv) {
    static struct bench b;
    struct error err = {0};
    double seconds = argc > 3 ? atof(argv[3]) : 5, read = 0, one = 0, four = 0, sixteen = 0,
           many = 0, peak = 0;
    uint64_t end_us;
    bool is_good;

    if (cpu_path_find(&b.path, argc > 2 ? argv[2] : NULL, &err) != ST_OK ||
        cpu_pool_create(&b.pool, argc > 1 ? (uint32_t)atoi(argv[1]) : 0, &err) != ST_OK) {
        fprintf(stderr, "bench_cpu: %s\n", err.message);
        return 2;
    }
    fill(&b);
    end_us = clock_now_us() + (uint64_t)(seconds * 1e6);
    do {
        double operations, t;

        for (int i = 0; i < 6; i++) {
            t = read_pass(&b);
            read = best(read, (double)b.read_bytes / t);
            one = best(one, (double)b.layer_bytes / pass(&b, 1));
            four = best(four, (double)b.layer_bytes / pass(&b, 4));
            sixteen = best(sixteen, (double)b.layer_bytes / pass(&b, 16));
        }
        t = peak_pass(&b, &operations);
        peak = best(peak, operations / t);
        many = best(many, 2.0 * (double)b.layer_weights * MAX_ROWS / pass(&b, MAX_ROWS));
    } while (clock_now_us() < end_us);
    printf("path %s, %u threads, a layer of Qwen2-0.5B\n", b.path->name, cpu_pool_threads(b.pool));
    printf("  read loop      %7.1f GB/s\n", read * 1e-9);
    printf("  decode  M=1    %7.1f GB/s   %5.1f %% of the read loop (goal 90)\n", one * 1e-9,
           100 * one / read);
    printf("  decode  M=4    %7.1f GB/s   %5.1f %% of M=1 (goal 90)\n", four * 1e-9,
           100 * four / one);
    printf("  decode  M=16   %7.1f GB/s   %5.1f %% of M=1\n", sixteen * 1e-9, 100 * sixteen / one);
    printf("  peak           %7.1f GFLOP/s\n", peak * 1e-9);
    printf("  prefill M=512  %7.1f GFLOP/s %4.1f %% of the peak (goal 85)\n", many * 1e-9,
           100 * many / peak);
    is_good = one >= 0.9 * read && four >= 0.9 * one && many >= 0.85 * peak;
    cpu_pool_destroy(b.pool);
    return getenv("BENCH_GATE") && !is_good ? 1 : 0;
}
