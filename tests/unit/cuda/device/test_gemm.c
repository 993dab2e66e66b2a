/* tests/unit/cuda/device/test_gemm.c - gemm.c upon a pretended cuBLASLt: products and choices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/cuda/device/gemm.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "tests/unit/cuda/device/fake_cuda.h"

struct fixture {
    struct gpu *gpu;
    struct gpu_stream *s;
    struct gemm *g;
};

static struct fixture fixture_open_with(const struct gemm_own *own, bool is_deterministic,
                                        bool has_library) {
    struct fixture w;

    fake_cuda_reset();
    fake_cuda.has_cublaslt = has_library;
    assert_int_equal(gpu_open(&w.gpu, 0, NULL), ST_OK);
    assert_int_equal(gpu_stream_open(w.gpu, &w.s, NULL), ST_OK);
    assert_int_equal(gemm_open(&w.g, w.gpu, own, is_deterministic, NULL), ST_OK);
    return w;
}

static struct fixture fixture_open(bool is_deterministic) {
    return fixture_open_with(NULL, is_deterministic, true);
}

static void fixture_close(struct fixture *w) {
    assert_int_equal(gpu_status(w->gpu, NULL), ST_OK);
    gemm_close(w->g);
    gpu_stream_close(w->s);
    assert_int_equal(fake_cuda.allocated_bytes, 0); /* tuning leaves nothing behind */
    gpu_close(w->gpu);
}

/* Random bf16; the room of strides filled too. */
static uint16_t *draw(struct rng *rng, size_t n) {
    uint16_t *p = malloc(n * 2);

    for (size_t i = 0; i < n; i++)
        p[i] = bf16_of_f32((float)rng_f64(rng) - 0.5f);
    return p;
}

struct example {
    struct gemm_args a;
    uint16_t *x, *w, *bias;
    void *y, *before;
    size_t y_bytes;
};

static struct example example_of(struct gemm_shape shape, uint32_t max_m, uint64_t seed) {
    struct example e;
    struct rng rng;

    rng_seed(&rng, seed);
    e.a = (struct gemm_args){.shape = shape, .m = max_m};
    e.a.x_stride = shape.k + 8;
    e.a.y_stride = shape.n + 16;
    e.a.x = e.x = draw(&rng, (size_t)max_m * e.a.x_stride);
    e.a.w = e.w = draw(&rng, (size_t)shape.n * shape.k);
    e.a.bias = e.bias = shape.has_bias ? draw(&rng, shape.n) : NULL;
    e.y_bytes = (size_t)max_m * e.a.y_stride * (shape.is_f32_out ? 4 : 2);
    e.a.y = e.y = calloc(1, e.y_bytes);
    e.before = malloc(e.y_bytes);
    return e;
}

static void example_free(struct example *e) {
    free(e->x);
    free(e->w);
    free(e->bias);
    free(e->y);
    free(e->before);
}

static double element(const struct example *e, const void *y, size_t at) {
    return dtype_get(e->a.shape.is_f32_out ? DTYPE_F32 : DTYPE_BF16, y, at);
}

static void assert_product(const struct example *e) {
    const struct gemm_args *a = &e->a;
    size_t at = 0;

    for (uint32_t i = 0; i < e->y_bytes / a->y_stride / (a->shape.is_f32_out ? 4 : 2); i++)
        for (uint32_t j = 0; j < a->y_stride; j++, at++) {
            double want = element(e, e->before, at), got = element(e, e->y, at);

            if (i < a->m && j < a->shape.n) {
                if (!a->shape.accumulates) want = 0;
                if (a->shape.has_bias) want += f32_of_bf16(e->bias[j]);
                for (uint32_t k = 0; k < a->shape.k; k++)
                    want += (double)f32_of_bf16(e->x[(size_t)i * a->x_stride + k]) *
                            f32_of_bf16(e->w[(size_t)j * a->shape.k + k]);
            }
            if (fabs(got - want) > 1e-5 + 0x1p-8 * fabs(want))
                fail_msg("y[%u][%u] = %g, not %g", i, j, got, want);
        }
}

static void products_are_row_major_as_checkpoints_are(void **state) {
    static const struct gemm_shape shapes[] = {{24, 16, false, false, false},
                                               {8, 40, true, false, false},
                                               {40, 8, false, true, false},
                                               {24, 16, false, false, true},
                                               {24, 16, true, true, true}};
    static const uint32_t counts[] = {1, 2, 7, 17, 33};

    (void)state;
    for (int is_deterministic = 0; is_deterministic < 2; is_deterministic++) {
        struct fixture w = fixture_open(is_deterministic);

        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            struct example e = example_of(shapes[i], 33, i + 1);

            assert_int_equal(gemm_tune(w.g, w.s, &e.a, 33, NULL), ST_OK);
            for (size_t j = 0; j < ARRAY_LEN(counts); j++) {
                e.a.m = counts[j];
                memset(e.y, 0, e.y_bytes);
                memcpy(e.before, e.y, e.y_bytes);
                gemm_run(w.g, w.s, &e.a);
                assert_product(&e);
            }
            example_free(&e);
        }
        fixture_close(&w);
    }
}

static void strides_and_biases_may_change_from_call_to_call(void **state) {
    struct fixture w = fixture_open(false);
    struct gemm_shape shape = {16, 24, false, true, false};
    struct example one = example_of(shape, 9, 1), two = example_of(shape, 9, 2);

    (void)state;
    two.a.x_stride = 24;
    two.a.y_stride = 16;
    two.y_bytes = (size_t)9 * 16 * 2;
    assert_int_equal(gemm_tune(w.g, w.s, &one.a, 9, NULL), ST_OK);
    for (int turn = 0; turn < 4; turn++) {
        struct example *e = turn % 2 ? &two : &one;

        e->a.m = 9 - (uint32_t)turn;
        memcpy(e->before, e->y, e->y_bytes);
        gemm_run(w.g, w.s, &e->a);
        assert_product(e);
    }
    example_free(&one);
    example_free(&two);
    fixture_close(&w);
}

static uint32_t algo_of(struct fixture *w, struct example *e, uint32_t m) {
    e->a.m = m;
    gemm_run(w->g, w->s, &e->a);
    return fake_cuda.last_algo;
}

static void each_bucket_takes_the_fastest_algorithm_that_fits(void **state) {
    struct fixture w = fixture_open(false);
    struct example e = example_of((struct gemm_shape){8, 8, false, false, false}, 200, 3);
    uint32_t n;

    (void)state;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 200, NULL), ST_OK);
    assert_int_equal(algo_of(&w, &e, 1), 1);  /* split-K wins when m is small */
    assert_int_equal(algo_of(&w, &e, 16), 1); /* the broken one, faster still, never */
    assert_int_equal(algo_of(&w, &e, 17), 0);
    assert_int_equal(algo_of(&w, &e, 64), 0); /* 49 to 64: the last does not fit all of them */
    assert_int_equal(algo_of(&w, &e, 65), 4);
    assert_int_equal(algo_of(&w, &e, 200), 4);
    n = fake_cuda.n_products;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 200, NULL), ST_OK); /* known already */
    assert_int_equal(fake_cuda.n_products, n);
    assert_int_equal(fake_cuda.preferred_workspace, 32 << 20);
    example_free(&e);
    fixture_close(&w);
}

static void a_deterministic_shape_has_one_algorithm_that_splits_nothing(void **state) {
    struct fixture w = fixture_open(true);
    struct example e = example_of((struct gemm_shape){8, 8, false, false, false}, 200, 4);
    uint32_t first;

    (void)state;
    assert_int_equal(fake_cuda.preferred_reductions, 0);
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 200, NULL), ST_OK);
    first = algo_of(&w, &e, 1);
    assert_int_equal(first, 0); /* the last would be faster, but its sums depend on the rows */
    for (uint32_t m = 2; m <= 200; m++)
        assert_int_equal(algo_of(&w, &e, m), first);
    example_free(&e);
    fixture_close(&w);
}

static void small_weights_are_timed_cold(void **state) {
    struct fixture w = fixture_open(false);
    /* 8 KiB of weights; the pretended cache has 64 KiB: 16 copies fill it twice */
    struct example e = example_of((struct gemm_shape){64, 64, false, false, false}, 1, 5);
    uint32_t copies = fake_cuda.n_copies;

    (void)state;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 1, NULL), ST_OK);
    assert_int_equal(fake_cuda.n_copies - copies, 16);
    example_free(&e);
    fixture_close(&w);
}

static void a_shape_that_was_not_tuned_sticks(void **state) {
    struct fixture w = fixture_open(false);
    struct example e = example_of((struct gemm_shape){8, 16, false, false, false}, 1, 6);
    struct error err;

    (void)state;
    e.a.m = 0;
    gemm_run(w.g, w.s, &e.a); /* nothing to do is nothing wrong */
    assert_int_equal(gpu_status(w.gpu, NULL), ST_OK);
    e.a.m = 1;
    gemm_run(w.g, w.s, &e.a);
    assert_int_equal(gpu_status(w.gpu, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "(8, 16) was not tuned"));
    gemm_close(w.g);
    gpu_stream_close(w.s);
    gpu_close(w.gpu);
    example_free(&e);
}

static void a_product_that_nothing_can_do_is_refused_at_load(void **state) {
    struct fixture w = fixture_open(false);
    struct example e = example_of((struct gemm_shape){8, 16, true, true, false}, 1, 7);
    struct error err;

    (void)state;
    fake_cuda.product_error = 1;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 1, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "with a bias"));
    fake_cuda.product_error = 0;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 1, NULL), ST_OK);
    fake_cuda.product_error = 1;
    gemm_run(w.g, w.s, &e.a);
    assert_int_equal(gpu_status(w.gpu, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "not supported"));
    gemm_close(w.g);
    gpu_stream_close(w.s);
    gpu_close(w.gpu);
    example_free(&e);
}

static void without_the_library_the_error_names_what_to_install(void **state) {
    struct gpu *gpu;
    struct gemm *g = NULL;
    struct error err;

    (void)state;
    fake_cuda_reset();
    fake_cuda.has_cublaslt = false;
    assert_int_equal(gpu_open(&gpu, 0, NULL), ST_OK);
    assert_int_equal(gemm_open(&g, gpu, NULL, false, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "cuBLASLt cannot be opened"));
    assert_non_null(strstr(err.message, "libcublas"));
    assert_null(g);
    gpu_close(gpu);
    assert_int_equal(fake_cuda.allocated_bytes, 0);
}

/* --- own kernels, and when they serve --------------------------------------------------------- */

static uint32_t n_own_, n_own_grouped_;

static void own_run(struct gpu_stream *s, const struct gemm_args *a) {
    (void)s;
    n_own_++;
    for (uint32_t i = 0; i < a->m; i++)
        for (uint32_t j = 0; j < a->shape.n; j++) {
            float sum = 0;

            for (uint32_t k = 0; k < a->shape.k; k++)
                sum += f32_of_bf16(a->x[(size_t)i * a->x_stride + k]) *
                       f32_of_bf16(a->w[(size_t)j * a->shape.k + k]);
            ((uint16_t *)a->y)[(size_t)i * a->y_stride + j] = bf16_of_f32(sum);
        }
}

static void own_run_grouped(struct gpu_stream *s, const struct gemm_grouped_args *a) {
    (void)s, (void)a;
    n_own_grouped_++;
}

static void own_prepare(void) {
}

static const struct gemm_own own = {own_prepare, own_run, own_run_grouped};

/* A product of m rows, which is right, by own kernels or not. */
static void run_and_expect(struct fixture *w, struct example *e, uint32_t m, bool is_own) {
    uint32_t n = n_own_;

    e->a.m = m;
    memset(e->y, 0, e->y_bytes);
    memcpy(e->before, e->y, e->y_bytes);
    gemm_run(w->g, w->s, &e->a);
    assert_product(e);
    assert_int_equal(n_own_ - n, is_own);
}

static void without_the_library_own_kernels_serve(void **state) {
    struct fixture w = fixture_open_with(&own, false, false);
    struct example e = example_of((struct gemm_shape){24, 16, false, false, false}, 33, 1);

    (void)state;
    assert_non_null(strstr(gemm_note(w.g), "own kernels compute all matrix products: cuBLASLt"));
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 33, NULL), ST_OK);
    assert_int_equal(gemm_n_own(w.g), 1);
    run_and_expect(&w, &e, 1, true);
    run_and_expect(&w, &e, 33, true);
    gemm_run_grouped(w.g, w.s, &(struct gemm_grouped_args){.m = 1, .n_groups = 1});
    assert_int_equal(n_own_grouped_, 1);
    example_free(&e);
    fixture_close(&w);
}

/* Every algorithm sums otherwise above 16 rows: there is no refusal, and no fickle row. */
static void own_kernels_serve_a_shape_that_no_algorithm_keeps_the_bits_of(void **state) {
    struct fixture w = fixture_open_with(&own, true, true);
    struct example e = example_of((struct gemm_shape){24, 16, false, false, false}, 33, 2);
    struct example f = example_of((struct gemm_shape){8, 16, false, false, false}, 33, 3);
    struct error err;

    (void)state;
    fake_cuda.is_fickle = true;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 33, NULL), ST_OK);
    fake_cuda.is_fickle = false;
    assert_non_null(strstr(gemm_note(w.g), "(m, 16) x (24, 16): cuBLASLt has no algorithm that"));
    assert_int_equal(gemm_tune(w.g, w.s, &f.a, 33, NULL), ST_OK);
    assert_int_equal(gemm_n_own(w.g), 1);
    run_and_expect(&w, &e, 1, true);
    run_and_expect(&w, &e, 33, true);
    run_and_expect(&w, &f, 33, false);
    fixture_close(&w);
    w = fixture_open(true);
    fake_cuda.is_fickle = true;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 33, &err), ST_UNSUPPORTED); /* none of our own */
    assert_non_null(strstr(err.message, "the same bits in every batch"));
    example_free(&e);
    example_free(&f);
    fixture_close(&w);
}

/* First the library's own proposal for the call, then own kernels; never a lost device. */
static void a_refusal_in_service_has_two_ways_out(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);
    struct example e = example_of((struct gemm_shape){8, 8, false, false, false}, 200, 4);

    (void)state;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 200, NULL), ST_OK);
    run_and_expect(&w, &e, 200, false);
    assert_int_equal(fake_cuda.last_algo, 4);
    fake_cuda.refused_algos = 1 << 4;
    run_and_expect(&w, &e, 200, false);
    assert_int_equal(fake_cuda.last_algo, 0); /* the first proposal */
    assert_null(gemm_note(w.g));
    fake_cuda.refused_algos = 0;
    run_and_expect(&w, &e, 200, false);
    assert_int_equal(fake_cuda.last_algo, 0); /* kept */
    fake_cuda.product_error = 1;
    run_and_expect(&w, &e, 200, true);
    assert_non_null(strstr(gemm_note(w.g), "cuBLASLt refused it in service"));
    fake_cuda.product_error = 0;
    run_and_expect(&w, &e, 3, true); /* from now on, whatever m is */
    example_free(&e);
    fixture_close(&w);
}

/* An attribute that is refused keeps its value, and is written again before the next try. */
static void descriptors_are_never_stale(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);
    struct gemm_shape shape = {16, 24, false, true, false};
    struct example one = example_of(shape, 33, 1), two = example_of(shape, 33, 2);

    (void)state;
    two.a.x_stride = 24;
    two.a.y_stride = 16;
    two.y_bytes = (size_t)33 * 16 * 2;
    assert_int_equal(gemm_tune(w.g, w.s, &one.a, 33, NULL), ST_OK);
    for (uint32_t nth = 1; nth <= 5; nth++) { /* both counts of rows, both strides, the bias */
        run_and_expect(&w, &one, 20, false);
        fake_cuda.refuse_set = nth;
        run_and_expect(&w, &two, 30, false);
        assert_int_equal(fake_cuda.refuse_set, 0);
    }
    example_free(&one);
    example_free(&two);
    fixture_close(&w);
}

/* The first proposal and own kernels might sum otherwise: the same algorithm is asked once more. */
static void a_refusal_of_a_deterministic_shape_fails_the_device(void **state) {
    struct fixture w = fixture_open_with(&own, true, true);
    struct example e = example_of((struct gemm_shape){8, 8, false, false, false}, 40, 5);
    struct error err;

    (void)state;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 40, NULL), ST_OK);
    fake_cuda.n_refusals = 1;
    run_and_expect(&w, &e, 40, false);
    assert_int_equal(fake_cuda.last_algo, 0); /* as tuned */
    assert_int_equal(gpu_status(w.gpu, NULL), ST_OK);
    fake_cuda.n_refusals = 2;
    n_own_ = 0;
    gemm_run(w.g, w.s, &e.a);
    assert_int_equal(n_own_, 0);
    assert_int_equal(gpu_status(w.gpu, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "refused the product (40, 8) x (8, 8)"));
    assert_non_null(strstr(err.message, "start again, or without it"));
    gemm_close(w.g);
    gpu_stream_close(w.s);
    gpu_close(w.gpu);
    example_free(&e);
}

static void own_kernels_serve_a_shape_that_nothing_else_can_do(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);
    struct example e = example_of((struct gemm_shape){8, 16, false, false, false}, 3, 6);

    (void)state;
    fake_cuda.product_error = 1;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 3, NULL), ST_OK);
    fake_cuda.product_error = 0;
    run_and_expect(&w, &e, 3, true);
    assert_non_null(strstr(gemm_note(w.g), "has no algorithm for it"));
    example_free(&e);
    fixture_close(&w);
}

/* --- codes ------------------------------------------------------------------------------------ */

struct codes {
    struct gemm_args a;
    uint8_t *x, *w;
    float *x_scale, *w_scale;
    uint16_t *y;
};

static float *draw_scales(struct rng *rng, size_t n) {
    float *p = calloc(n, sizeof(*p));

    for (size_t i = 0; i < n; i++)
        p[i] = (float)rng_f64(rng) + 0.5f;
    return p;
}

static uint8_t *draw_codes(struct rng *rng, size_t n) {
    uint8_t *p = malloc(n);

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(rng_below(rng, 0x50) | rng_below(rng, 2) << 7); /* below 16 */
    return p;
}

static struct codes codes_of(enum gemm_codes codes, uint32_t n, uint32_t k, uint32_t max_m) {
    struct rng rng;
    struct codes c;
    uint32_t groups = codes == GEMM_F8_BLOCKS ? k / 128 : 1;

    rng_seed(&rng, n + k);
    c.x = draw_codes(&rng, (size_t)max_m * (k + 16));
    c.w = draw_codes(&rng, (size_t)n * k);
    c.x_scale = draw_scales(&rng, (size_t)max_m * groups);
    c.w_scale = draw_scales(&rng, (size_t)n + (size_t)n * gemm_block_scales(k));
    c.y = calloc(max_m * (n + 16ull), 2);
    c.a = (struct gemm_args){.shape = {.n = n, .k = k, .codes = codes},
                             .m = max_m,
                             .x_codes = c.x,
                             .x_stride = k + 16,
                             .w_codes = c.w,
                             .x_scale = codes == GEMM_F8_PLAIN ? NULL : c.x_scale,
                             .w_scale = c.w_scale,
                             .y = c.y,
                             .y_stride = n + 16};
    return c;
}

static void codes_free(struct codes *c) {
    free(c->x);
    free(c->w);
    free(c->x_scale);
    free(c->w_scale);
    free(c->y);
}

/* By what the product of codes i of row m of X and of row n of W is multiplied. */
static double scales_at(const struct codes *c, uint32_t m, uint32_t n, uint32_t i) {
    const struct gemm_args *a = &c->a;

    switch (a->shape.codes) {
    case GEMM_F8_PLAIN: return c->w_scale[0];
    case GEMM_F8_ROWS: return (double)c->x_scale[m] * c->w_scale[n];
    default:
        return (double)c->x_scale[i / 128 * a->m + m] *
               c->w_scale[n / 128 * gemm_block_scales(a->shape.k) + i / 128];
    }
}

static void assert_codes(const struct codes *c) {
    const struct gemm_args *a = &c->a;

    for (uint32_t m = 0; m < a->m; m += 3)
        for (uint32_t n = 0; n < a->shape.n; n += 5) {
            double want = 0, size = 0, got = f32_of_bf16(c->y[m * (size_t)a->y_stride + n]);

            for (uint32_t i = 0; i < a->shape.k; i++) {
                double product = f32_of_e4m3(c->x[m * (size_t)a->x_stride + i]) *
                                 f32_of_e4m3(c->w[n * (size_t)a->shape.k + i]) *
                                 scales_at(c, m, n, i);

                want += product;
                size += fabs(product);
            }
            if (fabs(got - want) > 0x1p-8 * fabs(want) + 1e-6 * size)
                fail_msg("codes %d, y[%u][%u] = %g, not %g", a->shape.codes, m, n, got, want);
        }
}

static const enum gemm_codes all_codes[] = {GEMM_F8_PLAIN, GEMM_F8_ROWS, GEMM_F8_BLOCKS};

static void codes_are_multiplied_with_their_scales(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all_codes); i++) {
        struct codes c = codes_of(all_codes[i], 256, 384, 64);
        uint32_t n_products;

        assert_true(gemm_takes_codes(w.g, &c.a.shape));
        assert_int_equal(gemm_tune(w.g, w.s, &c.a, 64, NULL), ST_OK);
        n_products = fake_cuda.n_products;
        for (c.a.m = 32; c.a.m <= 64; c.a.m += 16) {
            memset(c.y, 0, 64 * 272 * 2);
            assert_true(gemm_try(w.g, w.s, &c.a));
            assert_codes(&c);
        }
        assert_int_equal(fake_cuda.n_products - n_products, 3);
        codes_free(&c);
    }
    assert_int_equal(gemm_n_own(w.g), 0);
    assert_null(gemm_note(w.g));
    fixture_close(&w);
}

/* Bits: which of all_codes are taken. */
static uint32_t taken_by(size_t version, int sm, bool is_deterministic) {
    struct fixture w = fixture_open_with(&own, is_deterministic, true);
    struct gemm_shape shape = {.n = 128, .k = 256};
    uint32_t taken = 0;

    gemm_close(w.g);
    gpu_stream_close(w.s);
    gpu_close(w.gpu);
    fake_cuda.cublaslt_version = version;
    fake_cuda.sm = sm;
    assert_int_equal(gpu_open(&w.gpu, 0, NULL), ST_OK);
    assert_int_equal(gpu_stream_open(w.gpu, &w.s, NULL), ST_OK);
    assert_int_equal(gemm_open(&w.g, w.gpu, &own, is_deterministic, NULL), ST_OK);
    for (uint32_t i = 0; i < ARRAY_LEN(all_codes); i++) {
        shape.codes = all_codes[i];
        taken |= (uint32_t)gemm_takes_codes(w.g, &shape) << i;
    }
    gemm_leave_codes(w.g, &shape);
    assert_int_equal(gemm_note(w.g) == NULL, is_deterministic || (taken & 4) != 0);
    fixture_close(&w);
    return taken;
}

static void scales_depend_on_version_and_device(void **state) {
    (void)state;
    assert_int_equal(taken_by(130100, 90, false), 7);
    assert_int_equal(taken_by(120900, 90, false), 7);
    assert_int_equal(taken_by(120803, 90, false), 1);
    assert_int_equal(taken_by(110805, 90, false), 0);
    assert_int_equal(taken_by(130100, 89, false), 1);
    assert_int_equal(taken_by(130100, 100, false), 1);
    assert_int_equal(taken_by(130100, 120, false), 1);
    assert_int_equal(taken_by(130100, 86, false), 0);
    assert_int_equal(taken_by(130100, 90, true), 0);
}

static void sizes_of_codes_are_multiples(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);
    struct gemm_shape shape = {.n = 16, .k = 48, .codes = GEMM_F8_ROWS};

    (void)state;
    assert_true(gemm_takes_codes(w.g, &shape));
    shape.k = 40;
    assert_false(gemm_takes_codes(w.g, &shape));
    gemm_leave_codes(w.g, &shape);
    assert_non_null(strstr(gemm_note(w.g), "(m, 40) x (16, 40) of e4m3 codes: cuBLASLt takes"));
    shape.k = 48;
    shape.n = 24;
    assert_false(gemm_takes_codes(w.g, &shape));
    shape = (struct gemm_shape){.n = 128, .k = 144, .codes = GEMM_F8_BLOCKS};
    assert_false(gemm_takes_codes(w.g, &shape));
    fixture_close(&w);
}

/* At load or in service: the caller has own kernels, and the device goes on. */
static void codes_that_are_refused_are_the_callers(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);
    struct codes c = codes_of(GEMM_F8_ROWS, 32, 64, 128), d = codes_of(GEMM_F8_PLAIN, 48, 64, 48),
                 e = codes_of(GEMM_F8_BLOCKS, 128, 128, 48);

    (void)state;
    assert_int_equal(gemm_tune(w.g, w.s, &c.a, 128, NULL), ST_OK);
    assert_true(gemm_try(w.g, w.s, &c.a));
    assert_int_equal(fake_cuda.last_algo, 4);
    fake_cuda.refused_algos = 1 << 4;
    assert_true(gemm_try(w.g, w.s, &c.a));
    assert_int_equal(fake_cuda.last_algo, 0); /* the first proposal */
    fake_cuda.refused_algos = 0;
    fake_cuda.product_error = 1;
    assert_false(gemm_try(w.g, w.s, &c.a));
    assert_non_null(strstr(gemm_note(w.g), "of e4m3 codes: cuBLASLt refused it in service"));
    assert_int_equal(gemm_tune(w.g, w.s, &d.a, 48, NULL), ST_OK);
    assert_non_null(strstr(gemm_note(w.g), "of e4m3 codes: cuBLASLt has no algorithm for it"));
    fake_cuda.product_error = 0;
    assert_false(gemm_try(w.g, w.s, &c.a));
    assert_false(gemm_try(w.g, w.s, &d.a));
    fake_cuda.has_no_scale_modes = true;
    assert_int_equal(gemm_tune(w.g, w.s, &e.a, 48, NULL), ST_OK);
    assert_non_null(strstr(gemm_note(w.g), "of e4m3 codes: cuBLASLt refuses its scales"));
    assert_false(gemm_try(w.g, w.s, &e.a));
    codes_free(&c);
    codes_free(&d);
    codes_free(&e);
    fixture_close(&w);
}

static void codes_are_not_multiplied_with_stale_scales(void **state) {
    struct fixture w = fixture_open_with(&own, false, true);
    float other[16] = {2};

    (void)state;
    for (uint32_t nth = 1; nth <= 2; nth++) {
        struct codes c = codes_of(GEMM_F8_ROWS, 16, 16 * nth, 32);
        uint32_t n_products;

        assert_false(gemm_has_plan(w.g, &c.a.shape));
        assert_int_equal(gemm_tune(w.g, w.s, &c.a, 32, NULL), ST_OK);
        assert_true(gemm_has_plan(w.g, &c.a.shape));
        n_products = fake_cuda.n_products;
        c.a.w_scale = other;
        c.a.x_scale = other;
        fake_cuda.refuse_set = nth;
        assert_false(gemm_try(w.g, w.s, &c.a));
        assert_int_equal(fake_cuda.n_products, n_products);
        assert_false(gemm_has_plan(w.g, &c.a.shape));
        codes_free(&c);
    }
    fixture_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_row_major_as_checkpoints_are),
        cmocka_unit_test(strides_and_biases_may_change_from_call_to_call),
        cmocka_unit_test(each_bucket_takes_the_fastest_algorithm_that_fits),
        cmocka_unit_test(a_deterministic_shape_has_one_algorithm_that_splits_nothing),
        cmocka_unit_test(small_weights_are_timed_cold),
        cmocka_unit_test(a_shape_that_was_not_tuned_sticks),
        cmocka_unit_test(a_product_that_nothing_can_do_is_refused_at_load),
        cmocka_unit_test(without_the_library_the_error_names_what_to_install),
        cmocka_unit_test(without_the_library_own_kernels_serve),
        cmocka_unit_test(own_kernels_serve_a_shape_that_no_algorithm_keeps_the_bits_of),
        cmocka_unit_test(a_refusal_in_service_has_two_ways_out),
        cmocka_unit_test(descriptors_are_never_stale),
        cmocka_unit_test(a_refusal_of_a_deterministic_shape_fails_the_device),
        cmocka_unit_test(own_kernels_serve_a_shape_that_nothing_else_can_do),
        cmocka_unit_test(codes_are_multiplied_with_their_scales),
        cmocka_unit_test(scales_depend_on_version_and_device),
        cmocka_unit_test(sizes_of_codes_are_multiples),
        cmocka_unit_test(codes_that_are_refused_are_the_callers),
        cmocka_unit_test(codes_are_not_multiplied_with_stale_scales),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
