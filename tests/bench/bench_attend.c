/* tests/bench/bench_attend.c - the CPU backend's attention over each type of KV pool.
 *
 *      decode   one query, 4 heads of one KV head, over its whole context
 *      prefill  24 queries at its end, as a prompt's tile
 *
 * Contexts go round over several KV heads, so that the pool of bf16 is in L2 (256 KiB), or leaves
 * every cache (256 MiB). A round measures every type once; a figure is the median over the rounds
 * of the ratio to bf16 within a round, in processor time of one thread.
 * Usage: bench_attend [path] [seconds per row]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu/path.h"
#include "kernels/kv_quant.h"

#define HEADS      4u
#define SIZE       16u /* tokens in a block */
#define MAX_ROUNDS 400u

static const enum dtype types[] = {DTYPE_BF16, DTYPE_F8E4M3, DTYPE_I8, DTYPE_F16, DTYPE_F32};
#define N_TYPES ARRAY_LEN(types)

struct context {
    struct geometry g;
    uint32_t n_tokens, n_queries;
    uint64_t block_bytes;
    uint8_t *pool;
    uint32_t *table, *position;
    float *q;
    void *out, *scratch;
    uint32_t next_head;
};

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Vectors of nearly normal numbers, a few of them over and over, as the pool keeps them. */
static void fill(struct context *c, uint32_t n_blocks) {
    enum { N_VECTORS = 251 };
    uint32_t hd = c->g.head_dim, vector_bytes = hd * (uint32_t)dtype_bytes(c->g.kv_dtype);
    uint32_t scale_bytes = kv_scale_bytes(c->g.kv_dtype), n = 2 * c->g.n_kv_heads * SIZE;
    uint8_t *vectors = mem_calloc(N_VECTORS, vector_bytes + scale_bytes);
    float *x = mem_calloc(hd, sizeof(*x));
    struct rng rng;

    rng_seed(&rng, 1);
    for (uint32_t v = 0; v < N_VECTORS; v++) {
        uint8_t *to = vectors + v * (vector_bytes + scale_bytes);

        for (uint32_t i = 0; i < hd; i++)
            x[i] = (float)(rng_f64(&rng) + rng_f64(&rng) + rng_f64(&rng) - 1.5);
        if (scale_bytes) kv_quantise(c->g.kv_dtype, x, hd, to, to + vector_bytes);
        for (uint32_t i = 0; i < hd && !scale_bytes; i++)
            dtype_put(c->g.kv_dtype, to, i, x[i]);
    }
    for (uint64_t i = 0; i < (uint64_t)n_blocks * n; i++) {
        uint8_t *block = c->pool + i / n * c->block_bytes;
        const uint8_t *from = vectors + i % N_VECTORS * (vector_bytes + scale_bytes);

        memcpy(block + i % n * vector_bytes, from, vector_bytes);
        memcpy(block + kv_tiles_bytes(&c->g, SIZE) + i % n * scale_bytes, from + vector_bytes,
               scale_bytes);
    }
    mem_free(vectors);
    mem_free(x);
}

static void open_context(struct context *c, enum dtype type, uint32_t head_dim, uint32_t kv_heads,
                         uint32_t n_tokens, uint32_t n_queries) {
    uint32_t n_blocks = n_tokens / SIZE;

    *c = (struct context){
        .g = {.n_layers = 1, .n_kv_heads = kv_heads, .head_dim = head_dim, .kv_dtype = type},
        .n_tokens = n_tokens,
        .n_queries = n_queries};
    c->block_bytes = kv_layout_block_bytes(&c->g, SIZE);
    c->pool = mem_alloc(n_blocks * c->block_bytes);
    fill(c, n_blocks);
    c->table = mem_calloc(n_blocks, sizeof(*c->table));
    for (uint32_t i = 0; i < n_blocks; i++)
        c->table[i] = (uint32_t)((uint64_t)i * 7919 % n_blocks);
    c->position = mem_calloc(n_queries, sizeof(*c->position));
    for (uint32_t i = 0; i < n_queries; i++)
        c->position[i] = n_tokens - n_queries + i;
    c->q = mem_calloc((size_t)n_queries * HEADS * head_dim, sizeof(float));
    for (uint32_t i = 0; i < n_queries * HEADS * head_dim; i++)
        c->q[i] = (float)(i % 37) / 37 - 0.5f;
    c->out = mem_calloc((size_t)n_queries * HEADS * head_dim, sizeof(float));
    c->scratch = mem_calloc(1, attend_scratch_bytes(HEADS, head_dim));
}

static void close_context(struct context *c) {
    mem_free(c->pool);
    mem_free(c->table);
    mem_free(c->position);
    mem_free(c->q);
    mem_free(c->out);
    mem_free(c->scratch);
}

/* Seconds of one KV head. */
static double attend_once(struct context *c, const struct cpu_path *path) {
    uint32_t head = c->next_head++ % c->g.n_kv_heads;
    size_t row = (size_t)HEADS * c->g.head_dim;
    struct attend a = {.q = c->q,
                       .q_stride = row,
                       .out = c->out,
                       .out_stride = row,
                       .position = c->position,
                       .n_queries = c->n_queries,
                       .heads = HEADS,
                       .head_dim = c->g.head_dim,
                       .k = c->pool + kv_tile_at(&c->g, SIZE, 0, 0, head),
                       .v = c->pool + kv_tile_at(&c->g, SIZE, 0, 1, head),
                       .k_scales = c->pool + kv_scales_at(&c->g, SIZE, 0, 0, head),
                       .v_scales = c->pool + kv_scales_at(&c->g, SIZE, 0, 1, head),
                       .block_stride = c->block_bytes,
                       .block_size = SIZE,
                       .table = c->table,
                       .scratch = c->scratch};
    double start = now();

    path->attend[c->g.kv_dtype](&a);
    return now() - start;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n) {
    qsort(x, n, sizeof(*x), by_value);
    return x[n / 2];
}

static void measure(const struct cpu_path *path, uint32_t head_dim, uint32_t kv_heads,
                    uint32_t n_tokens, uint32_t n_queries, double seconds) {
    static double ns[N_TYPES][MAX_ROUNDS], ratio[N_TYPES][MAX_ROUNDS];
    struct context c[N_TYPES];
    double end;
    uint32_t n = 0;

    for (size_t t = 0; t < N_TYPES; t++)
        open_context(&c[t], types[t], head_dim, kv_heads, n_tokens, n_queries);
    for (end = now() + seconds; n < MAX_ROUNDS && (now() < end || n < 3); n++) {
        for (size_t t = 0; t < N_TYPES; t++) {
            uint32_t repeats = MAX(1u, 65536 / n_tokens / n_queries);
            double sum = 0;

            attend_once(&c[t], path); /* what the others left in the caches goes */
            for (uint32_t i = 0; i < repeats; i++)
                sum += attend_once(&c[t], path);
            ns[t][n] = sum * 1e9 / repeats / n_tokens;
            ratio[t][n] = ns[t][n] / ns[0][n];
        }
    }
    printf("%-10s head_dim %3u, %5u tokens of %2u KV heads, %2u queries:", path->name, head_dim,
           n_tokens, kv_heads, n_queries);
    for (size_t t = 0; t < N_TYPES; t++) {
        printf("  %s %.2f", dtype_name(types[t]), median(ns[t], n));
        if (t) printf(" (%.2f)", median(ratio[t], n));
        close_context(&c[t]);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    const struct cpu_path *path;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 2;
    struct error err = {0};

    if (cpu_path_find(&path, argc > 1 ? argv[1] : NULL, &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("ns of one thread for a token of context and a KV head; beside it the ratio to bf16\n");
    for (uint32_t head_dim = 64; head_dim <= 128; head_dim *= 2) {
        measure(path, head_dim, 1, 65536 / head_dim, 1, seconds);
        measure(path, head_dim, 8, 8388608 / head_dim, 1, seconds);
        measure(path, head_dim, 8, 131072 / head_dim, 24, seconds);
    }
    return 0;
}
