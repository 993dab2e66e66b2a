/* tests/bench/bench_cpu.c - how near the CPU kernels come to this machine's roofs.
 *
 *      decode  M=1     weights read per second, against the best read loop of this process
 *      decode  M=4     against M=1
 *      decode  M=16    against the lower of the read loop and the peak's 16th part
 *      prefill M=512   multiply-adds, against the peak of the path's dot product
 *      a busy core     two threads while another process spins on one core, against one thread
 *      beside ggml     the same products with the same bits, where it is linked (LLAMA=DIR)
 *
 * One pass is the four products of a layer (q,k,v | o | gate,up | down), cycling over enough layers
 * to leave every cache. A round measures everything once, and a figure is the median over the
 * rounds of the ratios *within* a round: the bandwidth of a shared machine swings by a factor of
 * two from second to second, a ratio of neighbours in time does not. With one thread, time is
 * processor time, so that neighbours who take the core do not count; with several it is the
 * clock's, and the machine should be quiet. Bytes of weights count, so that types can be compared.
 * Usage: bench_cpu [threads] [path] [seconds per model] [bf16, f16 or f32]. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/pool.h"
#include "kernels/dtype.h"
#include "tests/bench/peer/peer.h"

#define MAX_LAYERS 12u
#define MAX_ROWS   512u
#define ROWS       240u /* at most in a chunk, as in forward.c */
#define PAD        16u /* acts between rows, so that those of a tile are not in one set of the cache */
#define PANELS     4u /* of a chunk */
#define MAX_ROUNDS 1000u

struct shape {
    const char *name;
    uint32_t product[4][2]; /* outputs, inputs */
    uint32_t n_layers;      /* enough to leave a cache of 256 MiB */
};

static const struct shape shapes[] = {
    {"Qwen2-0.5B", {{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}}, 12},
    {"Llama-3.2-1B", {{3072, 2048}, {2048, 2048}, {16384, 2048}, {2048, 8192}}, 4},
};

struct bench {
    const struct cpu_path *path;
    enum dtype dtype; /* of the weights */
    struct cpu_pool *pool;
    const struct shape *shape;
    struct peer_products *peer; /* or NULL */
    struct cpu_matrix w[MAX_LAYERS][4];
    uint8_t *x; /* act (MAX_ROWS, the longest input) */
    float *y;   /* (threads, ROWS, PANELS * PANEL): results go on from there, in cache */
    uint32_t next_layer;
    uint64_t layer_bytes, layer_weights;
    const uint8_t *reading;
    uint64_t read_bytes, sink[POOL_MAX_THREADS * 8];
};

static double seconds_now(const struct bench *b) {
    struct timespec t;

    clock_gettime(cpu_pool_threads(b->pool) == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- products -------------------------------------------------------------------------------- */

struct job {
    struct bench *b;
    const struct cpu_matrix *w;
    uint32_t n_rows, rows, n_panel_chunks;
};

static void run_chunk(void *arg, uint32_t chunk, uint32_t worker) {
    const struct job *j = arg;
    uint32_t p = chunk % j->n_panel_chunks * PANELS, r = chunk / j->n_panel_chunks * j->rows;
    size_t width = ALIGN_UP(j->w->k, PANEL) + PAD, stride = PANELS * PANEL;

    j->b->path->gemm[j->w->dtype](cpu_matrix_panel(j->w, p), MIN(PANELS, j->w->n_panels - p),
                                  j->w->k_pairs, j->b->x + r * width * j->b->path->act_bytes, width,
                                  MIN(j->rows, j->n_rows - r), j->b->y + worker * ROWS * stride,
                                  stride, false);
}

/* One layer at M rows; weights per second. */
static double pass(struct bench *b, uint32_t n_rows) {
    double start = seconds_now(b);
    uint32_t rows = CEIL_DIV(n_rows, CEIL_DIV(n_rows, ROWS));

    for (int i = 0; i < 4; i++) {
        const struct cpu_matrix *w = &b->w[b->next_layer % b->shape->n_layers][i];
        struct job j = {b, w, n_rows, rows, CEIL_DIV(w->n_panels, PANELS)};

        cpu_pool_run(b->pool, j.n_panel_chunks * CEIL_DIV(n_rows, rows), false, run_chunk, &j);
    }
    b->next_layer++;
    return (double)b->layer_weights / (seconds_now(b) - start);
}

/* The same by the other engine. */
static double peer_pass(struct bench *b, uint32_t n_rows) {
    double start = seconds_now(b);

    peer_products_pass(b->peer, n_rows);
    return (double)b->layer_weights / (seconds_now(b) - start);
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

/* The largest product of a layer, read and no more; weights per second. */
static double read_pass(struct bench *b) {
    double start = seconds_now(b);
    const struct cpu_matrix *w = &b->w[b->next_layer++ % b->shape->n_layers][2];

    b->reading = (const uint8_t *)w->w;
    b->read_bytes = cpu_matrix_bytes(w);
    cpu_pool_run(b->pool, 16, false, run_read, b);
    return (double)b->read_bytes / (double)dtype_bytes(b->dtype) / (seconds_now(b) - start);
}

static void run_peak(void *arg, uint32_t chunk, uint32_t worker) {
    (void)chunk, (void)worker;
    ((struct bench *)arg)->path->peak(20000);
}

/* Multiply-adds per second. */
static double peak_pass(struct bench *b) {
    double start = seconds_now(b), seconds;

    cpu_pool_run(b->pool, 16, false, run_peak, b);
    seconds = seconds_now(b) - start;
    return 8 * b->path->peak(20000) / seconds;
}

/* --- rounds ---------------------------------------------------------------------------------- */

enum figure { READ, ONE, FOUR, SIXTEEN, PEAK, MANY, N_ABSOLUTE };
enum ratio { ONE_OF_READ, FOUR_OF_ONE, SIXTEEN_OF_ROOF, MANY_OF_PEAK, N_RATIOS };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n) {
    qsort(x, n, sizeof(*x), by_value);
    return x[n / 2];
}

/* Ours over theirs, medians over rounds of its own: the threads of both would meet. */
static void measure_beside_peer(struct bench *b, double seconds) {
    static const uint32_t rows[] = {1, 4, 16, MAX_ROWS};
    static double ratio[ARRAY_LEN(rows)][MAX_ROUNDS];
    uint32_t n[ARRAY_LEN(rows)] = {0};
    uint64_t end_us;

    b->peer = peer_products_open(PEER_BF16, b->shape->product, b->shape->n_layers,
                                 cpu_pool_threads(b->pool));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        peer_products_prepare(b->peer, rows[i]);
        peer_products_pass(b->peer, rows[i]); /* its threads start */
    }
    end_us = clock_now_us() + (uint64_t)(seconds * 1e6);
    for (uint32_t round = 0; round < MAX_ROUNDS && (round < 9 || clock_now_us() < end_us);
         round++) {
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            double theirs;

            if (rows[i] == MAX_ROWS && round % 8) continue;
            theirs = peer_pass(b, rows[i]);
            ratio[i][n[i]++] = pass(b, rows[i]) / theirs;
        }
    }
    printf("  beside %s:", peer_name());
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        printf("  M=%u %.2f times", rows[i], n[i] ? median(ratio[i], n[i]) : 0);
    printf(" (goal 1.0, from M=4 on 1.5)\n");
    peer_products_close(b->peer);
}

static void measure(struct bench *b, double seconds) {
    static double absolute[N_ABSOLUTE][MAX_ROUNDS], ratio[N_RATIOS][MAX_ROUNDS];
    uint64_t end_us = clock_now_us() + (uint64_t)(seconds * 1e6);
    uint32_t n = 0;
    double m[N_ABSOLUTE], giga = (double)dtype_bytes(b->dtype) * 1e-9;

    while (n < MAX_ROUNDS && clock_now_us() < end_us) {
        double v[N_ABSOLUTE] = {
            [READ] = read_pass(b),   [ONE] = pass(b, 1),    [FOUR] = pass(b, 4),
            [SIXTEEN] = pass(b, 16), [PEAK] = peak_pass(b), [MANY] = n % 4 ? 0 : pass(b, MAX_ROWS)};

        v[READ] = MAX(v[READ], read_pass(b)); /* the best there is */
        for (int i = 0; i < N_ABSOLUTE; i++)
            absolute[i][n] = v[i];
        if (n % 4) absolute[MANY][n] = absolute[MANY][n - 1];
        ratio[ONE_OF_READ][n] = v[ONE] / v[READ];
        ratio[FOUR_OF_ONE][n] = v[FOUR] / v[ONE];
        ratio[SIXTEEN_OF_ROOF][n] = v[SIXTEEN] / MIN(v[READ], v[PEAK] / 16);
        ratio[MANY_OF_PEAK][n] = n % 4 ? ratio[MANY_OF_PEAK][n - 1] : v[MANY] * MAX_ROWS / v[PEAK];
        n++;
    }
    for (int i = 0; i < N_ABSOLUTE; i++)
        m[i] = median(absolute[i], n);
    printf("path %s, %u threads, a layer of %s in %s, %u rounds\n", b->path->name,
           cpu_pool_threads(b->pool), b->shape->name, dtype_name(b->dtype), n);
    printf("  read loop      %7.1f GB/s\n", m[READ] * giga);
    printf("  decode  M=1    %7.1f GB/s    %5.1f %% of the read loop (goal 90)\n", m[ONE] * giga,
           100 * median(ratio[ONE_OF_READ], n));
    printf("  decode  M=4    %7.1f GB/s    %5.1f %% of M=1 (goal 90)\n", m[FOUR] * giga,
           100 * median(ratio[FOUR_OF_ONE], n));
    printf("  decode  M=16   %7.1f GB/s    %5.1f %% of the lower roof, %.1f GB/s (goal 70)\n",
           m[SIXTEEN] * giga, 100 * median(ratio[SIXTEEN_OF_ROOF], n),
           MIN(m[READ], m[PEAK] / 16) * giga);
    printf("  peak           %7.1f GFLOP/s\n", m[PEAK] * 2e-9);
    printf("  prefill M=512  %7.1f GFLOP/s %5.1f %% of the peak (goal 85)\n",
           m[MANY] * 2e-9 * MAX_ROWS, 100 * median(ratio[MANY_OF_PEAK], n));
}

/* --- a neighbour ----------------------------------------------------------------------------- */

static pid_t spin_on_a_core(void) {
    cpu_set_t mine, one;
    int core = CPU_SETSIZE - 1;
    pid_t pid;

    if (sched_getaffinity(0, sizeof(mine), &mine) != 0 || CPU_COUNT(&mine) < 2) return -1;
    while (!CPU_ISSET(core, &mine))
        core--;
    pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    (void)!sched_setaffinity(0, sizeof(one), &one);
    for (;;) {
        __asm__ volatile("");
    }
}

static void measure_beside_a_neighbour(struct bench *b, double seconds) {
    static double ratio[2][MAX_ROUNDS];
    struct cpu_pool *single, *both;
    uint64_t end_us;
    uint32_t n = 0;
    pid_t pid = spin_on_a_core();

    if (pid < 0) {
        printf("SKIPPED a busy core: this process may use one core only\n");
        return;
    }
    if (cpu_pool_create(&single, 1, NULL) != ST_OK || cpu_pool_create(&both, 2, NULL) != ST_OK)
        abort();
    end_us = clock_now_us() + (uint64_t)(seconds * 1e6);
    while (n < MAX_ROUNDS && clock_now_us() < end_us) {
        for (int i = 0; i < 2; i++) {
            uint32_t rows = i ? 96 : 1;
            double us[2];

            for (int threads = 0; threads < 2; threads++) {
                uint64_t start_us = clock_now_us();

                b->pool = threads ? both : single;
                for (int repeat = 0; repeat < (i ? 2 : 4); repeat++)
                    pass(b, rows);
                us[threads] = (double)(clock_now_us() - start_us);
            }
            ratio[i][n] = us[0] / us[1];
        }
        n++;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cpu_pool_destroy(single);
    cpu_pool_destroy(both);
    printf("2 threads with one core busy elsewhere: %.0f %% of 1 thread at M=1, %.0f %% at M=96 "
           "(goal 90)\n",
           100 * median(ratio[0], n), 100 * median(ratio[1], n));
}

/* --- set-up ---------------------------------------------------------------------------------- */

static void fill(struct bench *b) {
    struct rng r;
    uint32_t longest = 0;
    float *row;

    rng_seed(&r, 1);
    b->layer_bytes = b->layer_weights = 0;
    for (uint32_t l = 0; l < b->shape->n_layers; l++) {
        for (int i = 0; i < 4; i++) {
            struct cpu_matrix *w = &b->w[l][i];
            uint64_t n;

            *w = cpu_matrix_shape(b->dtype, b->shape->product[i][0], b->shape->product[i][1]);
            n = cpu_matrix_bytes(w);
            w->w = mem_try_aligned(2 << 20, ALIGN_UP(n, (uint64_t)2 << 20));
            if (!w->w) abort();
            (void)madvise(w->w, ALIGN_UP(n, (uint64_t)2 << 20), MADV_HUGEPAGE); /* as a model */
            for (uint64_t e = 0; e < n / dtype_bytes(b->dtype); e++)
                dtype_put(b->dtype, w->w, e,
                          f32_of_bf16((uint16_t)(0x3C00 | (rng_u64(&r) & 0x81FF))));
            if (l == 0) b->layer_bytes += n, b->layer_weights += n / dtype_bytes(b->dtype);
            longest = MAX(longest, w->k);
        }
    }
    longest = ALIGN_UP(longest, PANEL) + PAD;
    b->x = mem_calloc((size_t)MAX_ROWS * longest, sizeof(float));
    b->y = mem_calloc((size_t)MAX(cpu_pool_threads(b->pool), 2u) * ROWS * PANELS * PANEL,
                      sizeof(float));
    row = mem_calloc(longest, sizeof(float));
    for (uint32_t m = 0; m < MAX_ROWS; m++) {
        for (uint32_t i = 0; i < longest; i++)
            row[i] = (float)rng_f64(&r) - 0.5f;
        b->path->to_act(b->x + (size_t)m * longest * b->path->act_bytes, row, longest);
    }
    mem_free(row);
}

static void empty(struct bench *b) {
    for (uint32_t l = 0; l < b->shape->n_layers; l++) {
        for (int i = 0; i < 4; i++)
            mem_free(b->w[l][i].w);
    }
    mem_free(b->x);
    mem_free(b->y);
}

int main(int argc, char **argv) {
    static struct bench b;
    struct error err = {0};
    double seconds = argc > 3 ? atof(argv[3]) : 10;

    if (cpu_path_find(&b.path, argc > 2 ? argv[2] : NULL, &err) != ST_OK ||
        cpu_pool_create(&b.pool, argc > 1 ? (uint32_t)atoi(argv[1]) : 0, &err) != ST_OK) {
        fprintf(stderr, "bench_cpu: %s\n", err.message);
        return 2;
    }
    b.dtype = argc <= 4 || strcmp(argv[4], "bf16") == 0 ? DTYPE_BF16
              : strcmp(argv[4], "f16") == 0             ? DTYPE_F16
                                                        : DTYPE_F32;
    b.path = cpu_path_for(b.path, b.dtype);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        b.shape = &shapes[i];
        fill(&b);
        measure(&b, seconds);
        if (peer_name() && b.dtype == DTYPE_BF16) measure_beside_peer(&b, seconds);
        if (i == 0) {
            struct cpu_pool *pool = b.pool;

            measure_beside_a_neighbour(&b, seconds / 2);
            b.pool = pool;
        }
        empty(&b);
    }
    cpu_pool_destroy(b.pool);
    return 0;
}
