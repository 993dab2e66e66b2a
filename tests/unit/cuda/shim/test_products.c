/* tests/unit/cuda/shim/test_products.c - the own matrix products, one and grouped. */
#include "kernels/cuda/products/product.h"
#include "kernels/ref/ops.h"
#include "tests/support/kernel_fixture.h"

struct product_case {
    struct kernel_fixture fixture;
    struct gemm_args a;
};

static void run_product(const void *args) {
    product_run(NULL, args);
}

/* Y as it begins: numbers to add to, or NaN; and in `f`, the same. */
static void make_y(struct product_case *c, float *f) {
    struct gemm_shape s = c->a.shape;
    size_t n = (size_t)c->a.m * c->a.y_stride;
    enum dtype dtype = s.is_f32_out ? DTYPE_F32 : DTYPE_BF16;

    c->a.y = kernel_fixture_room(&c->fixture, n * dtype_bytes(dtype));
    for (size_t i = 0; i < n; i++) {
        f[i] = NAN;
        if (i % c->a.y_stride >= s.n) continue;
        f[i] = s.accumulates ? f32_of_bf16(bf16_of_f32(kernel_fixture_draw(&c->fixture, 1))) : 0;
        if (s.accumulates) dtype_put(dtype, c->a.y, i, f[i]);
    }
}

static void make_product(struct product_case *c, struct gemm_shape shape, uint32_t m,
                         uint32_t spare) {
    struct kernel_fixture *k = &c->fixture;
    uint32_t x_stride = shape.k + spare, y_stride = shape.n + spare;
    float *x = kernel_fixture_floats((size_t)m * x_stride);
    float *y = kernel_fixture_floats((size_t)m * y_stride);
    float *bias = kernel_fixture_floats(shape.n), *row = kernel_fixture_floats(shape.n);
    struct ref_matrix w;

    kernel_fixture_init(k, m * 31 + shape.n * 7 + shape.k);
    c->a = (struct gemm_args){.shape = shape,
                              .m = m,
                              .x = kernel_fixture_draw_bf16(k, (size_t)m * x_stride, 0, 1, x),
                              .x_stride = x_stride,
                              .w = kernel_fixture_draw_bf16(k, (size_t)shape.n * shape.k, 0,
                                                            1.0f / sqrtf((float)shape.k), NULL),
                              .y_stride = y_stride};
    if (shape.has_bias) c->a.bias = kernel_fixture_draw_bf16(k, shape.n, 0, 1, bias);
    make_y(c, y);
    w = (struct ref_matrix){.data = c->a.w, .dtype = DTYPE_BF16, .n = shape.n, .k = shape.k};
    for (uint32_t i = 0; i < m; i++) {
        ref_linear(row, x + (size_t)i * x_stride, &w, shape.has_bias ? bias : NULL, 1);
        for (uint32_t j = 0; j < shape.n; j++)
            y[(size_t)i * y_stride + j] += row[j];
    }
    kernel_fixture_want(k, c->a.y, shape.is_f32_out ? DTYPE_F32 : DTYPE_BF16, y);
    free(x);
    free(bias);
    free(row);
}

static void check_product(struct gemm_shape shape, uint32_t m, uint32_t spare) {
    struct product_case c;

    make_product(&c, shape, m, spare);
    kernel_fixture_check(&c.fixture, run_product, &c.a);
    kernel_fixture_fini(&c.fixture);
}

#define WIDE 4104u /* outputs with which 65 rows and more take the large tile */

static void products_of_ragged_sizes_equal_the_reference(void **state) {
    static const uint32_t ms[] = {1, 17, 32, 33, 65, 129}, ns[] = {8, 64, 136, 264},
                          ks[] = {8, 40, 72, 160, 264};

    (void)state;
    for (uint32_t i = 0; i < 12; i++)
        check_product((struct gemm_shape){.n = ns[i * 5 % 4], .k = ks[i * 3 % 5]}, ms[i % 6],
                      i % 3 * 8);
    check_product((struct gemm_shape){.n = 264, .k = 72}, 260, 8);
    check_product((struct gemm_shape){.n = WIDE, .k = 40}, 65, 0);
    check_product((struct gemm_shape){.n = WIDE, .k = 8}, 129, 0);
    check_product((struct gemm_shape){.n = 264, .k = 200}, 1921, 0);
}

static void products_have_all_epilogues(void **state) {
    static const struct gemm_shape shapes[] = {{136, 72, true, false, false},
                                               {136, 72, false, true, false},
                                               {136, 72, false, false, true},
                                               {136, 72, true, true, true}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct gemm_shape wide = shapes[i];

        check_product(shapes[i], 19, 16);
        wide.n = WIDE;
        check_product(wide, 66, 8);
    }
}

/* The large tile and the small one, and every place in either: the same chain of sums. */
static void a_row_has_the_same_bits_in_every_batch(void **state) {
    static const uint32_t counts[] = {1, 2, 16, 17, 31, 33, 64, 65, 100};
    struct gemm_shape shape = {.n = WIDE, .k = 200, .is_f32_out = true};
    struct product_case c;
    float *y = kernel_fixture_floats((size_t)100 * WIDE);

    (void)state;
    make_product(&c, shape, 140, 0);
    run_product(&c.a);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        struct gemm_args some = c.a;
        uint32_t first = (uint32_t)i * 4;

        some.m = counts[i];
        some.x += (size_t)first * some.x_stride;
        some.y = y;
        run_product(&some);
        assert_memory_equal(y, (float *)c.a.y + (size_t)first * WIDE,
                            (size_t)counts[i] * WIDE * sizeof(float));
    }
    kernel_fixture_fini(&c.fixture);
    free(y);
}

static void matrix_loads_have_no_bank_conflicts(void **state) {
    static const uint32_t ms[] = {20, 70};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ms); i++) {
        struct product_case c;
        struct shim_stats stats;

        shim_stats_clear();
        make_product(&c, (struct gemm_shape){.n = WIDE, .k = 128}, ms[i], 0);
        run_product(&c.a);
        shim_stats(i ? "tile_large" : "tile_small", &stats);
        assert_true(stats.n_matrix_phases > 0);
        assert_int_equal(stats.n_bank_conflicts, 0);
        kernel_fixture_fini(&c.fixture);
    }
}

static void product_planted_bugs_are_caught(void **state) {
    static const char *const plants[] = {"product_late_copy_wait", "product_no_barrier",
                                         "product_no_k_tail", "product_wrong_half",
                                         "product_last_row_is_lost"};

    (void)state;
    for (uint32_t is_large = 0; is_large < 2; is_large++) {
        struct product_case c;

        make_product(&c, (struct gemm_shape){.n = is_large ? WIDE : 136, .k = 200},
                     is_large ? 74 : 25, 0);
        for (size_t i = 0; i < ARRAY_LEN(plants); i++) {
            if (!kernel_fixture_catches(&c.fixture, plants[i], run_product, &c.a))
                fail_msg("%s, %s tile", plants[i], is_large ? "large" : "small");
        }
        kernel_fixture_fini(&c.fixture);
    }
}

/* --- grouped ---------------------------------------------------------------------------------- */

struct grouped_case {
    struct kernel_fixture fixture;
    struct gemm_grouped_args a;
};

static void run_grouped(const void *args) {
    product_run_grouped(NULL, args);
}

/* `spare` rows more than the groups have: not computed. */
static void make_grouped(struct grouped_case *c, const uint32_t *sizes, uint32_t n_groups,
                         uint32_t n, uint32_t k, uint32_t spare) {
    struct kernel_fixture *f = &c->fixture;
    uint32_t first[65] = {0}, m;
    float *x, *y;

    for (uint32_t g = 0; g < n_groups; g++)
        first[g + 1] = first[g] + sizes[g];
    m = first[n_groups];
    kernel_fixture_init(f, m + n + k);
    x = kernel_fixture_floats((size_t)(m + spare) * k);
    y = kernel_fixture_floats((size_t)(m + spare) * n);
    c->a = (struct gemm_grouped_args){
        .x = kernel_fixture_draw_bf16(f, (size_t)(m + spare) * k, 0, 1, x),
        .w = kernel_fixture_draw_bf16(f, (size_t)n_groups * n * k, 0, 1.0f / sqrtf((float)k), NULL),
        .y = kernel_fixture_room(f, (size_t)(m + spare) * n * 2),
        .first_row = kernel_fixture_put(f, first, (n_groups + 1) * sizeof(*first)),
        .m = m + spare,
        .n_groups = n_groups,
        .n = n,
        .k = k,
        .x_stride = k,
        .y_stride = n};
    for (uint32_t g = 0; g < n_groups; g++) {
        struct ref_matrix w = {
            .data = c->a.w + (size_t)g * n * k, .dtype = DTYPE_BF16, .n = n, .k = k};

        ref_linear(y + (size_t)first[g] * n, x + (size_t)first[g] * k, &w, NULL, sizes[g]);
    }
    for (size_t i = (size_t)m * n; i < (size_t)(m + spare) * n; i++)
        y[i] = NAN;
    kernel_fixture_want(f, c->a.y, DTYPE_BF16, y);
    free(x);
}

static void grouped_products_take_groups_of_any_size(void **state) {
    static const uint32_t sizes[] = {0, 1, 17, 300, 0, 0, 33, 0};
    static const uint32_t many[40] = {[3] = 2, [31] = 40, [32] = 1, [39] = 5};
    struct grouped_case c;

    (void)state;
    make_grouped(&c, sizes, 4, 72, 40, 0);
    kernel_fixture_check(&c.fixture, run_grouped, &c.a); /* 79 rows a group: the large tile */
    kernel_fixture_fini(&c.fixture);
    make_grouped(&c, sizes, 8, 136, 72, 3);
    kernel_fixture_check(&c.fixture, run_grouped, &c.a);
    kernel_fixture_fini(&c.fixture);
    make_grouped(&c, many, 40, 72, 40, 1);
    kernel_fixture_check(&c.fixture, run_grouped, &c.a);
    kernel_fixture_fini(&c.fixture);
}

static void a_group_has_the_bits_of_a_product(void **state) {
    static const uint32_t sizes[] = {0, 1, 17, 300};
    struct grouped_case c;
    struct gemm_args one;
    uint16_t *y = calloc(300 * 72, 2);

    (void)state;
    make_grouped(&c, sizes, 4, 72, 136, 0);
    run_grouped(&c.a);
    for (uint32_t g = 1; g < 4; g++) {
        uint32_t first = c.a.first_row[g];

        one = (struct gemm_args){.shape = {.n = 72, .k = 136},
                                 .m = sizes[g],
                                 .x = c.a.x + (size_t)first * 136,
                                 .x_stride = 136,
                                 .w = c.a.w + (size_t)g * 72 * 136,
                                 .y = y,
                                 .y_stride = 72};
        run_product(&one);
        assert_memory_equal(y, (uint16_t *)c.a.y + (size_t)first * 72, (size_t)sizes[g] * 72 * 2);
    }
    kernel_fixture_fini(&c.fixture);
    free(y);
}

/* What gemm.h gives on the shim with its library, and without, by the own kernel. */
static void grouped_products_of_gemm_h_agree(void **state) {
    static const uint32_t sizes[] = {0, 1, 17, 300};
    struct gpu *gpu;
    struct gpu_stream *s;
    void *x, *w, *first, *y[2], *host;

    (void)state;
    assert_int_equal(gpu_open(&gpu, 0, NULL), ST_OK);
    assert_int_equal(gpu_stream_open(gpu, &s, NULL), ST_OK);
    assert_int_equal(gpu_alloc(gpu, &x, 318 * 40 * 2, "x", NULL), ST_OK);
    assert_int_equal(gpu_alloc(gpu, &w, 4 * 72 * 40 * 2, "w", NULL), ST_OK);
    assert_int_equal(gpu_alloc(gpu, &first, 5 * 4, "rows", NULL), ST_OK);
    assert_int_equal(gpu_alloc_pinned(gpu, &host, 2 * 318 * 72 * 2, "host", NULL), ST_OK);
    for (uint32_t i = 0; i < 318 * 40; i++)
        ((uint16_t *)host)[i] = bf16_of_f32((float)(i * 7 % 23) - 11);
    gpu_copy(s, x, host, 318 * 40 * 2);
    gpu_copy(s, w, (uint16_t *)host + 100, 4 * 72 * 40 * 2);
    assert_int_equal(gpu_stream_wait(s, NULL), ST_OK);
    for (uint32_t i = 0, n = 0; i < 5; i++) {
        ((uint32_t *)host)[i] = n;
        if (i < 4) n += sizes[i];
    }
    gpu_copy(s, first, host, 5 * 4);
    for (int i = 0; i < 2; i++) {
        struct gemm *gemm;

        shim_set_library(i == 0);
        assert_int_equal(gpu_alloc(gpu, &y[i], 318 * 72 * 2, "y", NULL), ST_OK);
        assert_int_equal(gemm_open(&gemm, gpu, &product_own, false, NULL), ST_OK);
        gemm_run_grouped(gemm, s,
                         &(struct gemm_grouped_args){.x = x,
                                                     .w = w,
                                                     .y = y[i],
                                                     .first_row = first,
                                                     .m = 318,
                                                     .n_groups = 4,
                                                     .n = 72,
                                                     .k = 40,
                                                     .x_stride = 40,
                                                     .y_stride = 72});
        assert_int_equal(gpu_stream_wait(s, NULL), ST_OK);
        gemm_close(gemm);
    }
    shim_set_library(true);
    for (int i = 0; i < 2; i++)
        gpu_copy(s, (uint8_t *)host + i * 318 * 72 * 2, y[i], 318 * 72 * 2);
    assert_int_equal(gpu_stream_wait(s, NULL), ST_OK);
    assert_memory_equal(host, (uint8_t *)host + 318 * 72 * 2, 318 * 72 * 2); /* whole numbers */
    gpu_stream_close(s);
    gpu_close(gpu);
}

static void grouped_planted_bugs_are_caught(void **state) {
    static const uint32_t sizes[40] = {[1] = 1, [2] = 17, [31] = 40, [33] = 3};
    struct grouped_case c;

    (void)state;
    make_grouped(&c, sizes, 40, 72, 40, 2);
    assert_true(kernel_fixture_catches(&c.fixture, "grouped_first_lanes", run_grouped, &c.a));
    assert_true(kernel_fixture_catches(&c.fixture, "grouped_same_matrix", run_grouped, &c.a));
    kernel_fixture_fini(&c.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_ragged_sizes_equal_the_reference),
        cmocka_unit_test(products_have_all_epilogues),
        cmocka_unit_test(a_row_has_the_same_bits_in_every_batch),
        cmocka_unit_test(matrix_loads_have_no_bank_conflicts),
        cmocka_unit_test(product_planted_bugs_are_caught),
        cmocka_unit_test(grouped_products_take_groups_of_any_size),
        cmocka_unit_test(a_group_has_the_bits_of_a_product),
        cmocka_unit_test(grouped_products_of_gemm_h_agree),
        cmocka_unit_test(grouped_planted_bugs_are_caught),
    };

    product_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
