/* tests/gpu/gpu_products.c - products against float64, and a row's bits whatever m is.
 *
 *      gpu_products [MODEL]        MODEL: any; "tiny" is a rehearsal
 *
 * The shim's tests cover every kernel of ours, but its library of products is plain loops: what
 * cuBLASLt makes of our plans shows only here. Own products, which take its place, come last. For
 * each shape and many m: some hundred elements beside their float64 sums, two runs to the same
 * bits; with deterministic plans, each row to the same bits for every m. Exit code 1 with a
 * sentence at the first difference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/products/product.h"
#include "kernels/dtype.h"
#include "tests/gpu/random_model.h"

#define N_SAMPLES 400u
#define TOLERANCE 4e-3 /* of the sum's own size: bf16 results */

struct fixture {
    struct gpu *gpu;
    struct gpu_stream *s;
    struct gemm *gemm;
    struct rng rng;
    bool is_own; /* own products alone, which serve where there is no library */
};

struct matrix { /* (rows, columns) bf16, on both sides */
    uint16_t *host, *device;
    uint64_t n_bytes;
};

struct product {
    struct gemm_args args;
    struct matrix x, w, bias, before; /* before: what Y held, when it accumulates */
    uint8_t *y, *again, *first;       /* pinned, of max_m rows; first: of the m before */
    uint64_t row_bytes;
    uint32_t max_m;
};

static void must(enum status st, const struct error *err, const char *doing) {
    if (st != ST_OK) random_fail(doing, st, err);
}

static void *pinned(struct fixture *w, uint64_t n_bytes) {
    struct error err;
    void *p = NULL;

    must(gpu_alloc_pinned(w->gpu, &p, n_bytes, "a test", &err), &err, "allocating");
    return p;
}

static void *room(struct fixture *w, uint64_t n_bytes) {
    struct error err;
    void *p = NULL;

    must(gpu_alloc(w->gpu, &p, n_bytes, "a test", &err), &err, "allocating");
    return p;
}

static void finish(struct fixture *w) {
    struct error err;

    must(gpu_stream_wait(w->s, &err), &err, "a product");
}

static struct matrix draw(struct fixture *w, uint64_t n) {
    struct matrix m = {pinned(w, n * 2), room(w, n * 2), n * 2};

    for (uint64_t i = 0; i < n; i++)
        m.host[i] = bf16_of_f32((float)(rng_f64(&w->rng) * 2 - 1));
    gpu_copy(w->s, m.device, m.host, m.n_bytes);
    finish(w);
    return m;
}

static void release(struct fixture *w, struct matrix *m) {
    gpu_free(w->gpu, m->host);
    gpu_free(w->gpu, m->device);
}

static struct product product_of(struct fixture *w, struct gemm_shape shape, uint32_t max_m) {
    struct product p = {.max_m = max_m,
                        .row_bytes = (uint64_t)shape.n * (shape.is_f32_out ? 4 : 2)};
    struct error err;

    p.x = draw(w, (uint64_t)max_m * shape.k);
    p.w = draw(w, (uint64_t)shape.n * shape.k);
    p.bias = draw(w, shape.n);
    p.before = draw(w, max_m * p.row_bytes / 2);
    p.y = pinned(w, max_m * p.row_bytes);
    p.again = pinned(w, max_m * p.row_bytes);
    p.first = pinned(w, max_m * p.row_bytes);
    p.args = (struct gemm_args){.shape = shape,
                                .m = max_m,
                                .x = p.x.device,
                                .x_stride = shape.k,
                                .w = p.w.device,
                                .bias = shape.has_bias ? p.bias.device : NULL,
                                .y = room(w, max_m * p.row_bytes),
                                .y_stride = shape.n};
    must(gemm_tune(w->gemm, w->s, &p.args, max_m, &err), &err, "tuning");
    return p;
}

static void product_free(struct fixture *w, struct product *p) {
    release(w, &p->x);
    release(w, &p->w);
    release(w, &p->bias);
    release(w, &p->before);
    gpu_free(w->gpu, p->y);
    gpu_free(w->gpu, p->again);
    gpu_free(w->gpu, p->first);
    gpu_free(w->gpu, p->args.y);
}

static void run(struct fixture *w, struct product *p, uint32_t m, uint8_t *y) {
    p->args.m = m;
    gpu_copy(w->s, p->args.y, p->before.device, p->max_m * p->row_bytes);
    if (w->is_own)
        product_own.run(w->s, &p->args);
    else
        gemm_run(w->gemm, w->s, &p->args);
    gpu_copy(w->s, y, p->args.y, p->max_m * p->row_bytes);
    finish(w);
}

static NORETURN void differ(const struct product *p, uint32_t m, const char *what) {
    const struct gemm_shape *s = &p->args.shape;

    fprintf(stderr, "error: product (%u, %u) x (%u, %u)%s%s%s: %s\n", m, s->k, s->n, s->k,
            s->is_f32_out ? ", fp32" : "", s->has_bias ? ", bias" : "",
            s->accumulates ? ", accumulates" : "", what);
    exit(1);
}

static void check_element(const struct product *p, uint32_t m, uint32_t row, uint32_t column) {
    const struct gemm_shape *s = &p->args.shape;
    enum dtype type = s->is_f32_out ? DTYPE_F32 : DTYPE_BF16;
    uint64_t at = (uint64_t)row * s->n + column;
    double want = s->has_bias ? (double)f32_of_bf16(p->bias.host[column]) : 0, size = fabs(want);
    double got = (double)dtype_get(type, p->y, at);
    char text[96];

    if (s->accumulates) want += (double)dtype_get(type, p->before.host, at);
    for (uint32_t i = 0; i < s->k; i++) {
        double term = (double)f32_of_bf16(p->x.host[(uint64_t)row * s->k + i]) *
                      (double)f32_of_bf16(p->w.host[(uint64_t)column * s->k + i]);

        want += term;
        size += term * term;
    }
    if (fabs(got - want) <= TOLERANCE * (fabs(want) + sqrt(size))) return;
    snprintf(text, sizeof(text), "y[%u][%u] = %g, not %g", row, column, got, want);
    differ(p, m, text);
}

/* Rows beyond m must be as they were. */
static void check(struct fixture *w, struct product *p, uint32_t m) {
    uint64_t rest = (p->max_m - m) * p->row_bytes;

    run(w, p, m, p->y);
    run(w, p, m, p->again);
    if (memcmp(p->y, p->again, m * p->row_bytes) != 0) differ(p, m, "two runs, two answers");
    if (memcmp(p->y + m * p->row_bytes, (uint8_t *)p->before.host + m * p->row_bytes, rest) != 0)
        differ(p, m, "rows beyond m were written");
    for (uint32_t i = 0; i < N_SAMPLES; i++)
        check_element(p, m, (uint32_t)rng_below(&w->rng, m),
                      (uint32_t)rng_below(&w->rng, p->args.shape.n));
}

static void check_shape(struct fixture *w, struct gemm_shape shape, const uint32_t *counts,
                        uint32_t n_counts, bool is_deterministic) {
    struct product p = product_of(w, shape, counts[n_counts - 1]);
    uint32_t last_m = 0;

    for (uint32_t i = 0; i < n_counts; i++) {
        check(w, &p, counts[i]);
        if (is_deterministic && memcmp(p.y, p.first, last_m * p.row_bytes) != 0)
            differ(&p, counts[i], "a row's bits depend on how many there are");
        last_m = counts[i];
        memcpy(p.first, p.y, last_m * p.row_bytes);
    }
    product_free(w, &p);
}

static void check_all(bool is_tiny, bool is_deterministic, bool is_own) {
    static const struct gemm_shape full[] = {
        {6144, 4096, false, false, false}, {4096, 4096, false, false, false},
        {4096, 4096, false, false, true},  {14336, 4096, false, false, false},
        {4096, 14336, false, false, true}, {8192, 4096, true, false, false},
        {2048, 1536, false, true, false},  {1536, 8960, false, false, false}};
    static const struct gemm_shape tiny[] = {{24, 16, false, false, false},
                                             {40, 32, false, true, false},
                                             {64, 16, true, false, false},
                                             {16, 24, false, false, true}};
    static const uint32_t full_counts[] = {1, 2, 5, 16, 17, 31, 64, 100, 256, 257, 1000};
    static const uint32_t tiny_counts[] = {1, 2, 5, 17};
    struct fixture w = {.is_own = is_own};
    struct error err;

    rng_seed(&w.rng, is_deterministic ? 5 : 3);
    must(gpu_open(&w.gpu, 0, &err), &err, "opening the device");
    must(gpu_stream_open(w.gpu, &w.s, &err), &err, "opening a stream");
    must(gemm_open(&w.gemm, w.gpu, &product_own, is_deterministic, &err), &err,
         "opening the products");
    for (size_t i = 0; i < (is_tiny ? ARRAY_LEN(tiny) : ARRAY_LEN(full)); i++)
        if (is_tiny)
            check_shape(&w, tiny[i], tiny_counts, ARRAY_LEN(tiny_counts), is_deterministic);
        else
            check_shape(&w, full[i], full_counts, ARRAY_LEN(full_counts), is_deterministic);
    gemm_close(w.gemm);
    gpu_stream_close(w.s);
    gpu_close(w.gpu);
}

int main(int argc, char **argv) {
    bool is_tiny = argc > 1 && strcmp(argv[1], "tiny") == 0;

    check_all(is_tiny, false, false);
    check_all(is_tiny, true, false);
    check_all(is_tiny, true, true);
    printf("{\"row\":\"products\",\"holds\":true}\n");
    return 0;
}
