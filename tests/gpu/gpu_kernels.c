/* tests/gpu/gpu_kernels.c - what the device can do today, and how near to it each kernel comes.
 *
 *      gpu_kernels ceilings|kernels MODEL [SECONDS]       MODEL: a name of random_model.h
 *
 * One line of JSON per measurement. A kernel is timed in a graph of LAUNCHES launches that go round
 * several sets of buffers, so that nothing is found in the cache that a step would not find there;
 * the graph is replayed ROUNDS times, `us` is the median per launch. `bytes` and `flops` are what
 * the operation must move and multiply at least; the caller makes percentages of them. The shape
 * "tiny" is a rehearsal. After SECONDS (90) the rest is skipped, with a line that reports it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/products/product.h"
#include "kernels/cuda/products/quant.h"
#include "kernels/cuda/products/quant_library.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/kv_layout.h"
#include "tests/gpu/random_model.h"

#define LAUNCHES    20u
#define ROUNDS      12u
#define MAX_SETS    64u
#define BLOCK       16u
#define CHUNK_BYTES (UINT64_C(8) << 20) /* of random numbers, sent again and again */

struct bench {
    struct gpu *gpu;
    struct gpu_stream *s;
    struct gpu_event *start, *stop;
    struct gemm *gemm;
    const struct random_shape *shape;
    void *chunk; /* pinned, random bf16 */
    struct rng rng;
    bool is_tiny;
    double deadline_s;
};

static void must(enum status st, const struct error *err, const char *doing) {
    if (st != ST_OK) random_fail(doing, st, err);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void *room(struct bench *b, uint64_t n_bytes) {
    struct error err;
    void *p = NULL;

    must(gpu_alloc(b->gpu, &p, n_bytes, "a measurement", &err), &err, "allocating");
    return p;
}

static void *random_room(struct bench *b, uint64_t n_bytes) {
    uint8_t *p = room(b, n_bytes);
    struct error err;

    for (uint64_t at = 0; at < n_bytes; at += CHUNK_BYTES)
        gpu_copy(b->s, p + at, b->chunk, MIN(CHUNK_BYTES, n_bytes - at));
    must(gpu_stream_wait(b->s, &err), &err, "filling memory");
    return p;
}

static void *sent(struct bench *b, const void *from, uint64_t n_bytes) {
    void *p = room(b, n_bytes), *pinned = NULL;
    struct error err;

    must(gpu_alloc_pinned(b->gpu, &pinned, n_bytes, "a measurement", &err), &err, "allocating");
    memcpy(pinned, from, n_bytes);
    gpu_copy(b->s, p, pinned, n_bytes);
    must(gpu_stream_wait(b->s, &err), &err, "sending");
    gpu_free(b->gpu, pinned);
    return p;
}

/* --- time ------------------------------------------------------------------------------------- */

typedef void launch_fn(struct bench *b, void *args, uint32_t set);

struct timing {
    double us, us_min, us_max;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static struct timing time_launches(struct bench *b, launch_fn *launch, void *args,
                                   uint32_t n_sets) {
    struct gpu_graph *graph;
    double us[ROUNDS];
    struct error err;

    for (uint32_t i = 0; i < 3; i++) /* loads the kernel, wakes the clocks */
        launch(b, args, i % n_sets);
    must(gpu_stream_wait(b->s, &err), &err, "a first launch");
    gpu_capture_begin(b->s);
    for (uint32_t i = 0; i < LAUNCHES; i++)
        launch(b, args, i % n_sets);
    must(gpu_capture_end(b->s, &graph, &err), &err, "recording");
    for (uint32_t i = 0; i < ROUNDS; i++) {
        gpu_event_record(b->start, b->s);
        gpu_graph_launch(graph, b->s);
        gpu_event_record(b->stop, b->s);
        must(gpu_event_wait(b->stop, UINT64_C(60000000)), NULL, "a measurement");
        us[i] = gpu_event_elapsed_us(b->start, b->stop) / LAUNCHES;
    }
    gpu_graph_close(graph);
    qsort(us, ROUNDS, sizeof(*us), by_value);
    return (struct timing){us[ROUNDS / 2], us[0], us[ROUNDS - 1]};
}

static void print_row(const struct bench *b, const char *name, const char *what, struct timing t,
                      double bytes, double flops) {
    printf("{\"row\":\"kernel\",\"name\":\"%s\",\"model\":\"%s\",\"what\":\"%s\",\"us\":%.2f,"
           "\"us_min\":%.2f,\"us_max\":%.2f,\"bytes\":%.0f,\"flops\":%.0f}\n",
           name, b->shape->name, what, t.us, t.us_min, t.us_max, bytes, flops);
}

static bool is_late(const struct bench *b, const char *name, const char *what) {
    if (clock_s() < b->deadline_s) return false;
    printf(
        "{\"row\":\"kernel\",\"name\":\"%s\",\"model\":\"%s\",\"what\":\"%s\",\"skipped\":\"out of "
        "time\"}\n",
        name, b->shape->name, what);
    return true;
}

/* Sets of `n_bytes` that together exceed the cache three times. */
static uint32_t sets_for(const struct bench *b, uint64_t n_bytes) {
    uint64_t want_bytes = 3 * gpu_properties(b->gpu)->l2_bytes;

    if (b->is_tiny) return 2;
    return (uint32_t)MIN(MAX(CEIL_DIV(want_bytes, MAX(n_bytes, 1)), 1), MAX_SETS);
}

/* --- ceilings --------------------------------------------------------------------------------- */

struct copy {
    void *dst, *src;
    uint64_t n_bytes;
};

static void launch_copy(struct bench *b, void *args, uint32_t set) {
    const struct copy *c = args;

    (void)set;
    gpu_copy(b->s, c->dst, c->src, c->n_bytes);
}

static void measure_copies(struct bench *b) {
    const uint64_t n_bytes = b->is_tiny ? UINT64_C(1) << 16 : UINT64_C(4) << 30;
    const uint64_t host_bytes = b->is_tiny ? UINT64_C(1) << 16 : UINT64_C(1) << 28;
    struct copy c = {room(b, n_bytes), random_room(b, n_bytes), n_bytes};
    struct timing t = time_launches(b, launch_copy, &c, 1);
    void *pinned = NULL;
    struct error err;

    printf("{\"row\":\"ceiling\",\"name\":\"device copy\",\"us\":%.1f,\"gbs\":%.1f}\n", t.us_min,
           2.0 * (double)n_bytes / t.us_min / 1e3);
    must(gpu_alloc_pinned(b->gpu, &pinned, host_bytes, "a measurement", &err), &err, "pinned");
    for (int is_out = 0; is_out < 2; is_out++) {
        struct copy bus = {is_out ? pinned : c.dst, is_out ? c.dst : pinned, host_bytes};

        t = time_launches(b, launch_copy, &bus, 1);
        printf("{\"row\":\"ceiling\",\"name\":\"%s\",\"us\":%.1f,\"gbs\":%.1f}\n",
               is_out ? "bus out" : "bus in", t.us_min, (double)host_bytes / t.us_min / 1e3);
    }
    gpu_free(b->gpu, pinned);
    gpu_free(b->gpu, c.dst);
    gpu_free(b->gpu, c.src);
}

/* --- products --------------------------------------------------------------------------------- */

struct product {
    struct gemm_args args;
    uint16_t *w; /* (n_sets, n, k) */
};

static void launch_product(struct bench *b, void *args, uint32_t set) {
    struct product *p = args;
    struct gemm_args a = p->args;

    a.w = p->w + (uint64_t)set * a.shape.n * a.shape.k;
    gemm_run(b->gemm, b->s, &a);
}

static void launch_own(struct bench *b, void *args, uint32_t set) {
    struct product *p = args;
    struct gemm_args a = p->args;

    a.w = p->w + (uint64_t)set * a.shape.n * a.shape.k;
    product_own.run(b->s, &a);
}

static void launch_gemv(struct bench *b, void *args, uint32_t set) {
    struct product *p = args;
    const struct gemm_args *a = &p->args;
    struct gemv_args v = {.x = a->x,
                          .w = p->w + (uint64_t)set * a->shape.n * a->shape.k,
                          .y = a->y,
                          .m = a->m,
                          .n = a->shape.n,
                          .k = a->shape.k,
                          .x_stride = a->x_stride,
                          .y_stride = a->y_stride,
                          .is_f32_out = a->shape.is_f32_out};

    ops_gemv(b->s, &v);
}

static void measure_product(struct bench *b, const char *name, uint32_t n, uint32_t k,
                            bool is_f32_out, const uint32_t *counts, uint32_t n_counts) {
    uint32_t max_m = counts[n_counts - 1];
    uint64_t w_bytes = (uint64_t)n * k * 2;
    uint32_t n_sets = sets_for(b, w_bytes);
    struct product p = {.args = {.shape = {.n = n, .k = k, .is_f32_out = is_f32_out},
                                 .m = max_m,
                                 .x_stride = k,
                                 .y_stride = n}};
    struct error err;
    char what[64];

    p.w = random_room(b, w_bytes * n_sets);
    p.args.w = p.w;
    p.args.x = random_room(b, (uint64_t)max_m * k * 2);
    p.args.y = room(b, (uint64_t)max_m * n * (is_f32_out ? 4 : 2));
    must(gemm_tune(b->gemm, b->s, &p.args, max_m, &err), &err, "tuning");
    for (uint32_t i = 0; i < n_counts; i++) {
        double bytes =
            (double)w_bytes + 2.0 * counts[i] * k + counts[i] * (is_f32_out ? 4.0 : 2.0) * n;
        double flops = 2.0 * counts[i] * n * k;

        p.args.m = counts[i];
        snprintf(what, sizeof(what), "%s m=%u", name, counts[i]);
        if (is_late(b, "gemm", what)) break;
        print_row(b, "gemm", what, time_launches(b, launch_product, &p, n_sets), bytes, flops);
        print_row(b, "own", what, time_launches(b, launch_own, &p, n_sets), bytes, flops);
        if (counts[i] <= GEMV_MAX_ROWS)
            print_row(b, "gemv", what, time_launches(b, launch_gemv, &p, n_sets), bytes, flops);
    }
    gpu_free(b->gpu, p.w);
    gpu_free(b->gpu, (void *)(uintptr_t)p.args.x);
    gpu_free(b->gpu, p.args.y);
}

/* --- products of e4m3 codes ------------------------------------------------------------------- */

struct codes {
    struct quant_args a;
    struct quant_library l;
    const uint8_t *codes; /* (n_sets, matrix_bytes) */
    uint64_t matrix_bytes;
    bool is_refused; /* by the library, at any time */
};

static void launch_codes_own(struct bench *b, void *args, uint32_t set) {
    struct codes *c = args;

    c->a.w.codes = c->codes + set * c->matrix_bytes;
    quant_run(b->s, &c->a);
}

static void launch_codes_library(struct bench *b, void *args, uint32_t set) {
    struct codes *c = args;

    (void)b;
    c->a.w.codes = c->codes + set * c->matrix_bytes;
    c->is_refused |= !quant_library_run(&c->l, &c->a);
}

static void measure_codes_m(struct bench *b, struct codes *c, const char *name, uint32_t m,
                            uint32_t n_sets) {
    uint32_t n = c->a.w.n, k = c->a.w.k;
    double bytes = (double)c->matrix_bytes + 2.0 * m * k + 2.0 * m * n, flops = 2.0 * m * n * k;
    struct timing t;
    char what[64];

    c->a.a.m = m;
    snprintf(what, sizeof(what), "%s m=%u", name, m);
    if (is_late(b, "e4m3", what)) return;
    print_row(b, "e4m3 own", what, time_launches(b, launch_codes_own, c, n_sets), bytes, flops);
    if (!c->l.scratch || c->is_refused) return;
    t = time_launches(b, launch_codes_library, c, n_sets);
    if (!c->is_refused) print_row(b, "e4m3 library", what, t, bytes, flops);
}

/* One scale for each output; library: unpacking and rounding included. */
static void measure_codes(struct bench *b, const char *name, uint32_t n, uint32_t k,
                          const uint32_t *counts, uint32_t n_counts) {
    uint32_t max_m = counts[n_counts - 1], from_rows, n_sets;
    struct codes c = {.matrix_bytes = CEIL_DIV(n, QUANT_ROWS) * quant_block_bytes(DTYPE_F8E4M3, k)};
    float *scale = room(b, ALIGN_UP(n, QUANT_ROWS) * sizeof(*scale));
    uint64_t scratch_bytes;
    struct error err;

    n_sets = sets_for(b, c.matrix_bytes);
    c.codes = random_room(b, c.matrix_bytes * n_sets);
    gpu_fill(b->s, scale, 0x3C, ALIGN_UP(n, QUANT_ROWS) * sizeof(*scale)); /* 0.0115 */
    c.a.w = (struct packed_matrix){.codes = c.codes,
                                   .scale = scale,
                                   .dtype = DTYPE_F8E4M3,
                                   .n = n,
                                   .k = k,
                                   .group_k = k,
                                   .has_row_scales = true,
                                   .grain = QUANT_GRAIN_ROW,
                                   .part_end = {n}};
    c.a.a = (struct gemv_args){.m = max_m, .n = n, .k = k, .x_stride = k, .y_stride = n};
    c.a.a.x = random_room(b, (uint64_t)max_m * k * 2);
    c.a.a.y = room(b, (uint64_t)ALIGN_UP(max_m, GEMM_CODE_ROWS) * n * 2);
    c.l = (struct quant_library){.gemm = b->gemm, .stream = b->s};
    scratch_bytes = quant_library_bytes(b->gemm, &c.a.w, max_m);
    if (scratch_bytes) {
        c.l.scratch = room(b, scratch_bytes);
        must(quant_library_tune(&c.l, &c.a, max_m, &from_rows, &err), &err, "tuning");
        printf(
            "{\"row\":\"kernel\",\"name\":\"e4m3 library from\",\"model\":\"%s\",\"what\":\"%s\","
            "\"rows\":%u}\n",
            b->shape->name, name, from_rows);
    }
    for (uint32_t i = 0; i < n_counts; i++)
        measure_codes_m(b, &c, name, counts[i], n_sets);
    gpu_free(b->gpu, c.l.scratch);
    gpu_free(b->gpu, c.a.a.y);
    gpu_free(b->gpu, (void *)(uintptr_t)c.a.a.x);
    gpu_free(b->gpu, scale);
    gpu_free(b->gpu, (void *)(uintptr_t)c.codes);
}

static void measure_all_codes(struct bench *b) {
    static const uint32_t full[] = {32, 128, 512, 2048, 8192}, tiny[] = {20, 33};
    const struct random_shape *s = b->shape;
    const uint32_t *counts = b->is_tiny ? tiny : full;
    uint32_t n = b->is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full);
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;

    measure_codes(b, "qkv", q + 2 * kv, s->d_model, counts, n);
    measure_codes(b, "o", s->d_model, q, counts, n);
    measure_codes(b, "gate_up", 2 * s->d_ff, s->d_model, counts, n);
    measure_codes(b, "down", s->d_model, s->d_ff, counts, n);
}

struct quant_product {
    struct quant_args args;
    uint64_t code_bytes; /* of one set */
};

static void launch_quant(struct bench *b, void *args, uint32_t set) {
    const struct quant_product *p = args;
    struct quant_args a = p->args;

    a.w.codes += set * p->code_bytes;
    quant_run(b->s, &a);
}

/* Codes are random bytes. Of e4m3 with a scale for each output; of int4 with scales and zeros for
 * groups of 128 inputs. */
static void measure_quant(struct bench *b, const char *name, uint32_t n, uint32_t k,
                          enum dtype type, const uint32_t *counts, uint32_t n_counts) {
    uint32_t max_m = counts[n_counts - 1], blocks = CEIL_DIV(n, QUANT_ROWS);
    uint32_t group_k = type == DTYPE_U4 ? 128 : k;
    uint64_t n_scales = (uint64_t)blocks * QUANT_ROWS * quant_groups(k, group_k);
    struct quant_product p = {.code_bytes = blocks * quant_block_bytes(type, k)};
    uint32_t n_sets = sets_for(b, p.code_bytes);
    double w_bytes = (double)p.code_bytes + (double)n_scales * (type == DTYPE_U4 ? 6 : 4);
    char what[64];

    p.args.w = (struct packed_matrix){.codes = random_room(b, p.code_bytes * n_sets),
                                      .scale = random_room(b, n_scales * 4),
                                      .dtype = type,
                                      .n = n,
                                      .k = k,
                                      .group_k = group_k,
                                      .has_row_scales = true};
    if (type == DTYPE_U4) p.args.w.zero = random_room(b, n_scales * 2);
    p.args.a = (struct gemv_args){.x = random_room(b, (uint64_t)max_m * k * 2),
                                  .y = room(b, (uint64_t)max_m * n * 2),
                                  .n = n,
                                  .k = k,
                                  .x_stride = k,
                                  .y_stride = n};
    for (uint32_t i = 0; i < n_counts; i++) {
        p.args.a.m = counts[i];
        snprintf(what, sizeof(what), "%s %s m=%u", name, dtype_name(type), counts[i]);
        if (is_late(b, "quant", what)) break;
        print_row(b, "quant", what, time_launches(b, launch_quant, &p, n_sets),
                  w_bytes + 2.0 * counts[i] * (k + n), 2.0 * counts[i] * n * k);
    }
    gpu_free(b->gpu, (void *)(uintptr_t)p.args.w.codes);
    gpu_free(b->gpu, (void *)(uintptr_t)p.args.w.scale);
    gpu_free(b->gpu, (void *)(uintptr_t)p.args.w.zero);
    gpu_free(b->gpu, (void *)(uintptr_t)p.args.a.x);
    gpu_free(b->gpu, p.args.a.y);
}

static void measure_quants(struct bench *b) {
    static const uint32_t full[] = {1, 8, 32, 256}, tiny[] = {1, 3, 20};
    static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_U4};
    const struct random_shape *s = b->shape;
    const uint32_t *counts = b->is_tiny ? tiny : full;
    uint32_t n = b->is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full);
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        measure_quant(b, "gate_up", 2 * s->d_ff, s->d_model, types[i], counts, n);
        measure_quant(b, "down", s->d_model, s->d_ff, types[i], counts, n);
        measure_quant(b, "qkv", q + 2 * kv, s->d_model, types[i], counts, n);
        measure_quant(b, "o", s->d_model, q, types[i], counts, n);
    }
}

static void measure_square(struct bench *b) {
    const uint32_t n = b->is_tiny ? 64 : 8192;
    struct product p = {.args = {.shape = {.n = n, .k = n}, .m = n, .x_stride = n, .y_stride = n}};
    struct timing t;
    struct error err;

    p.args.w = p.w = random_room(b, (uint64_t)n * n * 2);
    p.args.x = random_room(b, (uint64_t)n * n * 2);
    p.args.y = room(b, (uint64_t)n * n * 2);
    must(gemm_tune(b->gemm, b->s, &p.args, n, &err), &err, "tuning");
    t = time_launches(b, launch_product, &p, 1);
    printf("{\"row\":\"ceiling\",\"name\":\"product\",\"us\":%.1f,\"tflops\":%.1f}\n", t.us,
           2.0 * n * n * n / t.us / 1e6);
    gpu_free(b->gpu, p.w);
    gpu_free(b->gpu, (void *)(uintptr_t)p.args.x);
    gpu_free(b->gpu, p.args.y);
}

static void measure_products(struct bench *b) {
    static const uint32_t full[] = {1, 4, 8, 32, 256, 2048}, tiny[] = {1, 3, 8};
    const struct random_shape *s = b->shape;
    const uint32_t *counts = b->is_tiny ? tiny : full;
    uint32_t n = b->is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full);
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;

    measure_product(b, "qkv", q + 2 * kv, s->d_model, false, counts, n);
    measure_product(b, "o", s->d_model, q, false, counts, n);
    measure_product(b, "gate_up", 2 * s->d_ff, s->d_model, false, counts, n);
    measure_product(b, "down", s->d_model, s->d_ff, false, counts, n);
    measure_product(b, "head", ALIGN_UP(s->vocab, 64), s->d_model, true, counts, n - 1);
}

/* --- rows ------------------------------------------------------------------------------------- */

static void launch_norm(struct bench *b, void *args, uint32_t set) {
    struct norm_args a = *(const struct norm_args *)args;
    uint64_t at = (uint64_t)set * a.n * a.d;

    a.x += at;
    a.y += at;
    a.h += at;
    ops_norm(b->s, &a);
}

static void launch_swiglu(struct bench *b, void *args, uint32_t set) {
    struct swiglu_args a = *(const struct swiglu_args *)args;

    a.gate_up += (uint64_t)set * a.n_tokens * 2 * a.f;
    a.act += (uint64_t)set * a.n_tokens * a.f;
    ops_swiglu(b->s, &a);
}

static void measure_rows(struct bench *b, uint32_t n) {
    const struct random_shape *s = b->shape;
    uint32_t d = s->d_model, f = s->d_ff;
    uint64_t norm_bytes = (uint64_t)n * d * 2, swiglu_bytes = (uint64_t)n * f * 2;
    uint32_t norm_sets = sets_for(b, 3 * norm_bytes), swiglu_sets = sets_for(b, 3 * swiglu_bytes);
    char what[32];

    snprintf(what, sizeof(what), "T=%u", n);
    if (is_late(b, "norm", what)) return;
    {
        struct norm_args a = {.x = random_room(b, norm_bytes * norm_sets),
                              .y = random_room(b, norm_bytes * norm_sets),
                              .weight = random_room(b, d * 2ull),
                              .h = room(b, norm_bytes * norm_sets),
                              .n = n,
                              .d = d,
                              .eps = 1e-5f};

        print_row(b, "norm", what, time_launches(b, launch_norm, &a, norm_sets),
                  4.0 * (double)norm_bytes, 0);
        gpu_free(b->gpu, a.x);
        gpu_free(b->gpu, (void *)(uintptr_t)a.y);
        gpu_free(b->gpu, (void *)(uintptr_t)a.weight);
        gpu_free(b->gpu, a.h);
    }
    {
        struct swiglu_args a = {.gate_up = random_room(b, 2 * swiglu_bytes * swiglu_sets),
                                .act = room(b, swiglu_bytes * swiglu_sets),
                                .n_tokens = n,
                                .f = f};

        print_row(b, "swiglu", what, time_launches(b, launch_swiglu, &a, swiglu_sets),
                  3.0 * (double)swiglu_bytes, 0);
        gpu_free(b->gpu, (void *)(uintptr_t)a.gate_up);
        gpu_free(b->gpu, a.act);
    }
}

/* --- attention -------------------------------------------------------------------------------- */

struct attention {
    struct attend_args args;
    struct attend_grid grid;
    void *list;
    const uint8_t *pool;
    struct geometry g; /* of the pool, whose layers are the sets */
};

static void launch_attention(struct bench *b, void *args, uint32_t set) {
    const struct attention *t = args;
    struct attend_args a = t->args;

    a.k = t->pool + kv_tile_at(&t->g, BLOCK, set, 0, 0);
    a.v = t->pool + kv_tile_at(&t->g, BLOCK, set, 1, 0);
    a.scales = t->pool + kv_scales_at(&t->g, BLOCK, set, 0, 0);
    attend_layer(b->s, &a, t->list, &t->grid);
}

static void launch_rope(struct bench *b, void *args, uint32_t set) {
    struct rope_args a = *(const struct rope_args *)args;

    a.layer = set;
    a.scales_at += set * 2 * a.n_kv_heads * BLOCK * kv_scale_bytes(a.kv_dtype);
    ops_rope(b->s, &a);
}

/* The K and V that `rows` rows of context `context` write for their last `fresh` tokens. */
static void measure_rope(struct bench *b, uint16_t *qkv, uint8_t *kv, const struct geometry *g,
                         uint32_t n_tokens, const char *what) {
    const struct random_shape *s = b->shape;
    uint32_t width = (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    uint32_t *position = mem_calloc(n_tokens, sizeof(*position));
    int64_t *slot = mem_calloc(n_tokens, sizeof(*slot));
    struct rope_args a = {.qkv = qkv,
                          .turn = random_room(b, (uint64_t)n_tokens * s->head_dim * 4),
                          .kv = kv,
                          .block_stride = (int64_t)kv_layout_block_bytes(g, BLOCK),
                          .scales_at = (uint32_t)kv_scales_at(g, BLOCK, 0, 0, 0),
                          .kv_dtype = g->kv_dtype,
                          .n_tokens = n_tokens,
                          .n_heads = s->n_heads,
                          .n_kv_heads = s->n_kv_heads,
                          .hd = s->head_dim,
                          .eps = 1e-5f};

    for (uint32_t i = 0; i < n_tokens; i++) {
        position[i] = i;
        slot[i] = i + BLOCK;
    }
    a.position = sent(b, position, n_tokens * sizeof(*position));
    a.kv_slot = sent(b, slot, n_tokens * sizeof(*slot));
    print_row(b, "rope", what, time_launches(b, launch_rope, &a, g->n_layers),
              4.0 * n_tokens * width, 0);
    gpu_free(b->gpu, (void *)(uintptr_t)a.turn);
    gpu_free(b->gpu, (void *)(uintptr_t)a.position);
    gpu_free(b->gpu, (void *)(uintptr_t)a.kv_slot);
    mem_free(position);
    mem_free(slot);
}

/* Block tables of rows that lie scattered over the pool. */
static int32_t *scatter(struct bench *b, uint32_t n_rows, uint32_t per_row) {
    uint32_t n = n_rows * per_row;
    int32_t *table = mem_calloc(n, sizeof(*table));

    for (uint32_t i = 0; i < n; i++)
        table[i] = (int32_t)i + 1;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)rng_below(&b->rng, i);
        int32_t t = table[i - 1];

        table[i - 1] = table[j];
        table[j] = t;
    }
    return table;
}

/* `fresh` new tokens on each of n_rows rows whose contexts then have `context` tokens. The sets are
 * layers of a pool with the model's own strides: of as many layers as fit 24 GiB. */
static void measure_attention(struct bench *b, uint32_t n_rows, uint32_t context, uint32_t fresh,
                              enum dtype kv) {
    const struct random_shape *s = b->shape;
    uint32_t per_row = CEIL_DIV(context, BLOCK), n_blocks = n_rows * per_row + 1;
    uint32_t kv_width = s->n_kv_heads * s->head_dim, q_width = s->n_heads * s->head_dim;
    uint64_t n_tokens = (uint64_t)n_rows * fresh;
    struct geometry g = {
        .n_layers = 1, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .kv_dtype = kv};
    uint64_t layer_bytes = kv_layout_block_bytes(&g, BLOCK);
    uint64_t pool_layers = (UINT64_C(24) << 30) / (n_blocks * layer_bytes);
    uint32_t n_layers = (uint32_t)MAX(MIN(MIN(pool_layers, s->n_layers), MAX_SETS), 1);
    struct attend_shape shape = {s->n_heads, s->n_kv_heads,      s->head_dim,
                                 n_rows,     (uint32_t)n_tokens, gpu_properties(b->gpu)->n_sm,
                                 false};
    struct attend_planner *planner = attend_planner_create(&shape);
    struct backend_row *rows = mem_calloc(n_rows, sizeof(*rows));
    void *list = mem_alloc(attend_list_bytes(planner) + 16);
    int32_t *table = scatter(b, n_rows, per_row);
    struct attention t;
    uint64_t n_ended = (uint64_t)MAX(attend_max_partials(planner), 1) * s->n_kv_heads * 4;
    uint8_t *pool;
    uint16_t *qkv;
    double pairs = (double)n_rows * ((double)fresh * (context - fresh) + fresh * (fresh + 1.0) / 2);
    char what[64], type[16] = "";

    g.n_layers = n_layers;
    if (kv != DTYPE_BF16) snprintf(type, sizeof(type), " %s", dtype_name(kv));
    if (fresh == 1)
        snprintf(what, sizeof(what), "B=%u L=%u%s", n_rows, context, type);
    else
        snprintf(what, sizeof(what), "B=%u T=%u P=%u%s", n_rows, fresh, context - fresh, type);
    if (is_late(b, fresh == 1 ? "decode_attention" : "prefill_attention", what)) goto out;
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = (struct backend_row){i, i * fresh, fresh, context};
    attend_plan(planner, rows, n_rows, (uint32_t)n_tokens, (uint32_t)n_tokens, 0, 0, list, &t.grid);
    t.list = sent(b, list, attend_list_bytes(planner));
    pool = random_room(b, n_blocks * kv_layout_block_bytes(&g, BLOCK));
    t.pool = pool;
    t.g = g;
    qkv = random_room(b, n_tokens * (q_width + 2 * kv_width) * 2);
    t.args = (struct attend_args){
        .qkv = qkv,
        .table = sent(b, table, (uint64_t)n_rows * per_row * 4),
        .partial = room(b, (uint64_t)MAX(attend_max_partials(planner), 1) * q_width * 4),
        .partial_state = room(b, (uint64_t)MAX(attend_max_partials(planner), 1) * s->n_heads * 8),
        .ended = room(b, n_ended),
        .mix = room(b, n_tokens * q_width * 2),
        .qkv_stride = q_width + 2 * kv_width,
        .block_stride = (int64_t)kv_layout_block_bytes(&g, BLOCK),
        .kv_dtype = kv,
        .table_stride = (int32_t)per_row,
        .n_heads = (int32_t)s->n_heads,
        .n_kv_heads = (int32_t)s->n_kv_heads,
        .head_dim = (int32_t)s->head_dim,
        .scale_log2 = 1.44269504f / sqrtf((float)s->head_dim)};
    gpu_fill(b->s, t.args.ended, 0, n_ended);
    print_row(b, fresh == 1 ? "decode_attention" : "prefill_attention", what,
              time_launches(b, launch_attention, &t, n_layers),
              (double)n_rows * context * (double)layer_bytes / BLOCK +
                  4.0 * (double)n_tokens * q_width,
              4.0 * q_width * pairs);
    measure_rope(b, qkv, pool, &g, (uint32_t)MIN(n_tokens, (n_blocks - 1) * BLOCK), what);
    gpu_free(b->gpu, t.list);
    gpu_free(b->gpu, pool);
    gpu_free(b->gpu, qkv);
    gpu_free(b->gpu, (void *)(uintptr_t)t.args.table);
    gpu_free(b->gpu, t.args.partial);
    gpu_free(b->gpu, t.args.partial_state);
    gpu_free(b->gpu, t.args.ended);
    gpu_free(b->gpu, t.args.mix);
out:
    attend_planner_destroy(planner);
    mem_free(rows);
    mem_free(list);
    mem_free(table);
}

static void measure_attentions(struct bench *b) {
    static const struct {
        uint32_t n_rows, context, fresh;
        enum dtype kv;
    } full[] = {{1, 1024, 1, DTYPE_BF16},     {1, 8192, 1, DTYPE_BF16},
                {32, 1024, 1, DTYPE_BF16},    {32, 8192, 1, DTYPE_BF16},
                {256, 1024, 1, DTYPE_BF16},   {1, 1024, 1024, DTYPE_BF16},
                {1, 8192, 8192, DTYPE_BF16},  {1, 8192, 2048, DTYPE_BF16},
                {1, 8320, 128, DTYPE_BF16},   {32, 8192, 1, DTYPE_F8E4M3},
                {256, 1024, 1, DTYPE_F8E4M3}, {1, 8320, 128, DTYPE_F8E4M3},
                {32, 8192, 1, DTYPE_I8},      {256, 1024, 1, DTYPE_I8}},
      tiny[] = {{3, 40, 1, DTYPE_BF16},
                {2, 40, 7, DTYPE_BF16},
                {3, 40, 1, DTYPE_F8E4M3},
                {2, 40, 7, DTYPE_I8}};

    for (size_t i = 0; i < (b->is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full)); i++)
        if (b->is_tiny)
            measure_attention(b, tiny[i].n_rows, tiny[i].context, tiny[i].fresh, tiny[i].kv);
        else
            measure_attention(b, full[i].n_rows, full[i].context, full[i].fresh, full[i].kv);
}

/* --- sampling --------------------------------------------------------------------------------- */

struct sampling_case {
    struct sampling_args args;
    uint32_t needs;
};

static void launch_sampling(struct bench *b, void *args, uint32_t set) {
    const struct sampling_case *c = args;
    struct sampling_args a = c->args;

    a.logits += (uint64_t)set * a.n_bucket * a.vocab_stride;
    sampling_launch(b->s, &a, c->needs);
}

/* f32 logits between -4 and 4. */
static float *random_logits(struct bench *b, uint64_t n) {
    uint64_t n_drawn = MIN(n, UINT64_C(1) << 20);
    float *drawn = mem_calloc(n_drawn, sizeof(*drawn)), *p = room(b, n * 4), *first;
    struct error err;

    for (uint64_t i = 0; i < n_drawn; i++)
        drawn[i] = (float)(rng_f64(&b->rng) * 8 - 4);
    first = sent(b, drawn, n_drawn * 4);
    for (uint64_t at = 0; at < n; at += n_drawn)
        gpu_copy(b->s, p + at, first, MIN(n_drawn, n - at) * 4);
    must(gpu_stream_wait(b->s, &err), &err, "filling logits");
    gpu_free(b->gpu, first);
    mem_free(drawn);
    return p;
}

static void measure_sampling(struct bench *b, uint32_t n, const char *kind, float temperature,
                             float top_p) {
    uint32_t vocab = b->shape->vocab, stride = ALIGN_UP(vocab, 64), n_sets = 2;
    uint64_t scratch_bytes = sampling_scratch_bytes(n, vocab);
    struct backend_output *output = mem_calloc(n, sizeof(*output));
    struct backend_step step = {.n_outputs = n};
    struct sampling_case c = {.args = {.vocab = vocab,
                                       .vocab_stride = stride,
                                       .max_context = 1u << 14,
                                       .max_outputs = n,
                                       .n_bucket = n}};
    struct sampling_args *a = &c.args;
    char what[48];

    snprintf(what, sizeof(what), "%s n=%u", kind, n);
    for (uint32_t i = 0; i < n; i++)
        output[i] = (struct backend_output){.row = i,
                                            .seed = i,
                                            .position = 5,
                                            .temperature = temperature,
                                            .top_p = top_p,
                                            .repetition_penalty = 1,
                                            .mask = BACKEND_NO_MASK};
    if (is_late(b, "sampling", what)) {
        mem_free(output);
        return;
    }
    c.needs = sampling_needs(output, n, 0);
    a->step = sent(b, &step, sizeof(step));
    a->output = sent(b, output, n * sizeof(*output));
    a->logits = random_logits(b, (uint64_t)n_sets * n * stride);
    a->bias = room(b, 64);
    a->mask = room(b, 64);
    a->history = room(b, (uint64_t)n * (a->max_context + 1) * 4);
    a->row = room(b, n * sizeof(struct sampling_row));
    gpu_fill(b->s, a->row, 0, n * sizeof(struct sampling_row));
    a->out_token = room(b, n * 4);
    a->out_logprob = room(b, n * 4);
    a->out_rank = room(b, n * 4);
    a->out_flags = room(b, n * 4);
    a->out_top_token = room(b, 64);
    a->out_top_logprob = room(b, 64);
    a->scratch = room(b, scratch_bytes);
    gpu_fill(b->s, a->scratch, 0, scratch_bytes);
    print_row(b, "sampling", what, time_launches(b, launch_sampling, &c, n_sets), 4.0 * n * vocab,
              0);
    gpu_free(b->gpu, (void *)(uintptr_t)a->step);
    gpu_free(b->gpu, (void *)(uintptr_t)a->output);
    gpu_free(b->gpu, (void *)(uintptr_t)a->logits);
    gpu_free(b->gpu, (void *)(uintptr_t)a->bias);
    gpu_free(b->gpu, (void *)(uintptr_t)a->mask);
    gpu_free(b->gpu, a->history);
    gpu_free(b->gpu, a->row);
    gpu_free(b->gpu, a->out_token);
    gpu_free(b->gpu, a->out_logprob);
    gpu_free(b->gpu, a->out_rank);
    gpu_free(b->gpu, a->out_flags);
    gpu_free(b->gpu, a->out_top_token);
    gpu_free(b->gpu, a->out_top_logprob);
    gpu_free(b->gpu, a->scratch);
    mem_free(output);
}

static void measure_samplings(struct bench *b) {
    static const uint32_t full[] = {1, 32, 256}, tiny[] = {1, 3};
    const uint32_t *counts = b->is_tiny ? tiny : full;

    for (uint32_t i = 0; i < (b->is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full)); i++) {
        measure_sampling(b, counts[i], "greedy", 0, 1);
        measure_sampling(b, counts[i], "temperature", 0.8f, 1);
        measure_sampling(b, counts[i], "top-p", 0.8f, 0.9f);
    }
}

/* --- blocks ----------------------------------------------------------------------------------- */

static void launch_blocks(struct bench *b, void *args, uint32_t set) {
    (void)set;
    ops_copy_blocks(b->s, args);
}

static void measure_blocks(struct bench *b) {
    const struct random_shape *s = b->shape;
    uint32_t n = b->is_tiny ? 3 : 128;
    struct backend_copy pairs[128];
    struct copy_blocks_args a = {
        .block_bytes = 4ull * s->n_layers * s->n_kv_heads * s->head_dim * BLOCK, .n_pairs = n};
    char what[32];

    snprintf(what, sizeof(what), "n=%u", n);
    for (uint32_t i = 0; i < n; i++)
        pairs[i] = (struct backend_copy){i, n + i};
    a.kv = random_room(b, 2 * n * a.block_bytes);
    a.pairs = sent(b, pairs, n * sizeof(*pairs));
    print_row(b, "copy_blocks", what, time_launches(b, launch_blocks, &a, 1),
              2.0 * n * (double)a.block_bytes, 0);
    gpu_free(b->gpu, a.kv);
    gpu_free(b->gpu, (void *)(uintptr_t)a.pairs);
}

/* --- */

static void bench_open(struct bench *b, const struct random_shape *shape, double seconds) {
    struct error err;
    uint16_t *numbers;

    memset(b, 0, sizeof(*b));
    b->shape = shape;
    b->is_tiny = strcmp(shape->name, "tiny") == 0;
    b->deadline_s = clock_s() + seconds;
    rng_seed(&b->rng, 11);
    must(gpu_open(&b->gpu, 0, &err), &err, "opening the device");
    must(gpu_stream_open(b->gpu, &b->s, &err), &err, "opening a stream");
    must(gpu_event_open(b->gpu, &b->start, &err), &err, "making an event");
    must(gpu_event_open(b->gpu, &b->stop, &err), &err, "making an event");
    must(gemm_open(&b->gemm, b->gpu, &product_own, false, &err), &err, "opening the products");
    must(gpu_alloc_pinned(b->gpu, &b->chunk, CHUNK_BYTES, "random numbers", &err), &err, "pinned");
    numbers = b->chunk;
    for (uint64_t i = 0; i < CHUNK_BYTES / 2; i++)
        numbers[i] = bf16_of_f32((float)(rng_f64(&b->rng) - 0.5));
    attend_prepare();
    quant_prepare();
}

static void bench_close(struct bench *b) {
    struct error err;

    must(gpu_status(b->gpu, &err), &err, "the measurements");
    gemm_close(b->gemm);
    gpu_event_close(b->start);
    gpu_event_close(b->stop);
    gpu_stream_close(b->s);
    gpu_close(b->gpu);
}

/* A sentence as a string of JSON: without what would end it. */
static void print_text(const char *name, const char *text) {
    printf(",\"%s\":\"", name);
    for (; *text; text++)
        putchar(*text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '\'' : *text);
    putchar('"');
}

static void print_device(const struct gpu_properties *p, const struct gemm *gemm) {
    printf(
        "{\"row\":\"device\",\"name\":\"%s\",\"uuid\":\"%s\",\"sm\":%u,\"n_sm\":%u,\"driver\":%u,"
        "\"runtime\":%u,\"l2_bytes\":%llu,\"memory_bytes\":%llu",
        p->name, p->uuid, p->sm, p->n_sm, p->driver, p->runtime, (unsigned long long)p->l2_bytes,
        (unsigned long long)p->memory_total);
    print_text("products", gemm_note(gemm) ? gemm_note(gemm) : "cuBLASLt");
    puts("}");
}

int main(int argc, char **argv) {
    const struct random_shape *shape = argc > 2 ? random_shape_find(argv[2]) : NULL;
    static const uint32_t full[] = {1, 32, 256, 4096}, tiny[] = {1, 5};
    struct bench b;

    if (!shape) {
        fprintf(stderr, "usage: gpu_kernels ceilings|kernels MODEL [SECONDS]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_open(&b, shape, argc > 3 ? strtod(argv[3], NULL) : 90);
    if (strcmp(argv[1], "ceilings") == 0) {
        print_device(gpu_properties(b.gpu), b.gemm);
        measure_copies(&b);
        measure_square(&b);
    } else {
        measure_attentions(&b);
        for (uint32_t i = 0; i < (b.is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full)); i++)
            measure_rows(&b, b.is_tiny ? tiny[i] : full[i]);
        measure_samplings(&b);
        measure_blocks(&b);
        measure_quants(&b);
        measure_products(&b);
        measure_all_codes(&b);
    }
    bench_close(&b);
    return 0;
}
