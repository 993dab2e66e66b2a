/* tests/unit/cuda/shim/test_ops_gemv.c - products of one to sixteen rows, and all that is fused
 * with them. */
#include "kernels/cuda/ops/ops.h"
#include "kernels/ref/ops.h"
#include "tests/support/kernel_fixture.h"

struct gemv_shape {
    uint32_t m, n, k;
    bool has_bias, has_norm, is_swiglu, is_f32_out, accumulates;
    uint32_t spare; /* elements between the rows of x, and of y */
};

struct gemv_case {
    struct kernel_fixture fixture;
    struct gemv_args a;
};

static void run_gemv(const void *args) {
    ops_gemv(NULL, args);
}

/* The norm as it is folded in: of more than two rows, x times weight is rounded. */
static void norm_row(float *x, const struct gemv_args *a, const float *weight) {
    float square = 0;

    if (a->m <= 2) {
        ref_rmsnorm(x, x, weight, 1, a->k, a->eps);
        return;
    }
    for (uint32_t i = 0; i < a->k; i++)
        square += x[i] * x[i];
    for (uint32_t i = 0; i < a->k; i++)
        x[i] = f32_of_bf16(bf16_of_f32(x[i] * weight[i])) / sqrtf(square / (float)a->k + a->eps);
}

/* One row of y before it is added to what was there. x (k) */
static void compute_row(float *y, float *x, const struct gemv_args *a, const float *norm,
                        const float *bias) {
    struct ref_matrix w = {a->w, DTYPE_BF16, a->is_swiglu ? 2 * a->n : a->n, a->k, NULL};
    float *both = kernel_fixture_floats(w.n);

    if (norm) norm_row(x, a, norm);
    ref_linear(both, x, &w, bias, 1);
    if (a->is_swiglu)
        ref_swiglu(y, both, both + a->n, a->n);
    else
        memcpy(y, both, a->n * sizeof(float));
    free(both);
}

/* y as it begins: random numbers to add to, or NaN; and in `f`, the same. */
static void make_y(struct gemv_case *c, const struct gemv_shape *s, float *f) {
    size_t n = (size_t)s->m * c->a.y_stride;
    uint8_t *y = kernel_fixture_room(&c->fixture, n * (s->is_f32_out ? 4 : 2));

    for (size_t i = 0; i < n; i++) {
        f[i] = NAN;
        if (i % c->a.y_stride >= s->n) continue;
        f[i] = s->accumulates ? f32_of_bf16(bf16_of_f32(kernel_fixture_draw(&c->fixture, 1))) : 0;
        if (s->accumulates) dtype_put(s->is_f32_out ? DTYPE_F32 : DTYPE_BF16, y, i, f[i]);
    }
    c->a.y = y;
}

static void make_gemv(struct gemv_case *c, const struct gemv_shape *s) {
    struct kernel_fixture *k = &c->fixture;
    uint32_t x_stride = s->k + s->spare, y_stride = s->n + s->spare;
    size_t n_w = (size_t)(s->is_swiglu ? 2 : 1) * s->n * s->k;
    float *x = kernel_fixture_floats((size_t)s->m * x_stride),
          *y = kernel_fixture_floats((size_t)s->m * y_stride);
    float *norm = kernel_fixture_floats(s->k), *bias = kernel_fixture_floats(s->n),
          *row = kernel_fixture_floats(s->n);

    kernel_fixture_init(k, n_w + s->m + s->has_norm * 8 + s->accumulates * 16);
    c->a = (struct gemv_args){
        .x = kernel_fixture_draw_bf16(k, (size_t)s->m * x_stride, 0, 1, x),
        .w = kernel_fixture_draw_bf16(k, n_w, 0, 1.0f / sqrtf((float)s->k), NULL),
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .x_stride = x_stride,
        .y_stride = y_stride,
        .eps = 1e-5f,
        .is_f32_out = s->is_f32_out,
        .accumulates = s->accumulates,
        .is_swiglu = s->is_swiglu};
    if (s->has_bias) c->a.bias = kernel_fixture_draw_bf16(k, s->n, 0, 1, bias);
    if (s->has_norm) c->a.norm_weight = kernel_fixture_draw_bf16(k, s->k, 1, 0.3f, norm);
    make_y(c, s, y);
    for (uint32_t m = 0; m < s->m; m++) {
        compute_row(row, x + (size_t)m * x_stride, &c->a, s->has_norm ? norm : NULL,
                    s->has_bias ? bias : NULL);
        for (uint32_t n = 0; n < s->n; n++)
            y[(size_t)m * y_stride + n] += row[n];
    }
    kernel_fixture_want(k, c->a.y, s->is_f32_out ? DTYPE_F32 : DTYPE_BF16, y);
    free(x);
    free(norm);
    free(bias);
    free(row);
}

static void check_gemv(const struct gemv_shape *s) {
    struct gemv_case c;

    make_gemv(&c, s);
    kernel_fixture_check(&c.fixture, run_gemv, &c.a);
    kernel_fixture_fini(&c.fixture);
}

static void gemv_takes_any_n_and_odd_k(void **state) {
    static const uint32_t ns[] = {1, 5, 64}, ks[] = {8, 120, 264, 1032, 4104};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ns); i++) {
        for (size_t j = 0; j < ARRAY_LEN(ks); j++)
            check_gemv(&(struct gemv_shape){1 + (uint32_t)(i + j) % 2, ns[i], ks[j]});
    }
}

static void tiles_take_any_m_n_and_odd_k(void **state) {
    static const uint32_t ns[] = {1, 8, 17, 37}, ks[] = {8, 120, 264, 1032};

    (void)state;
    for (uint32_t m = 3; m <= GEMV_MAX_ROWS; m++)
        check_gemv(&(struct gemv_shape){m, 21, 136, .spare = 8});
    for (size_t i = 0; i < ARRAY_LEN(ns); i++) {
        for (size_t j = 0; j < ARRAY_LEN(ks); j++)
            check_gemv(&(struct gemv_shape){3 + (uint32_t)(i * 5 + j) % 14, ns[i], ks[j]});
    }
}

static void gemv_has_all_epilogues_for_all_rows(void **state) {
    static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 11};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row_counts); i++) {
        uint32_t m = row_counts[i];

        check_gemv(&(struct gemv_shape){m, 37, 520, .has_bias = true});
        check_gemv(&(struct gemv_shape){m, 37, 520, .accumulates = true, .spare = 8});
        check_gemv(&(struct gemv_shape){m, 37, 520, .is_f32_out = true, .spare = 24});
        check_gemv(&(struct gemv_shape){m, 37, 520, .has_bias = true, .accumulates = true,
                                        .is_f32_out = true});
        check_gemv(&(struct gemv_shape){m, 37, 520, .has_norm = true, .has_bias = true});
        check_gemv(&(struct gemv_shape){m, 37, 520, .is_swiglu = true, .spare = 8});
        check_gemv(&(struct gemv_shape){m, 37, 520, .is_swiglu = true, .has_norm = true});
        check_gemv(&(struct gemv_shape){m, 1, 2056, .is_swiglu = true, .has_norm = true});
    }
}

/* Enough rows of W for every split of k, the last without one. */
static void gemv_splits_k_where_n_is_small(void **state) {
    (void)state;
    check_gemv(&(struct gemv_shape){1, 8, 2048});
    check_gemv(&(struct gemv_shape){1, 4094, 520, .accumulates = true});
    check_gemv(&(struct gemv_shape){1, 8190, 520});
    check_gemv(&(struct gemv_shape){5, 16, 1024});
    check_gemv(&(struct gemv_shape){5, 4100, 264, .accumulates = true});
}

/* Rows [m, m + n_rows) of the two or sixteen of `c` by themselves. */
static void check_some_rows(const struct gemv_case *c, uint32_t m, uint32_t n_rows) {
    struct gemv_args some = c->a;
    float *y = mem_calloc(GEMV_MAX_ROWS * 37, sizeof(*y));

    some.m = n_rows;
    some.x += (size_t)m * some.x_stride;
    some.y = y;
    run_gemv(&some);
    assert_memory_equal(y, (float *)c->a.y + (size_t)m * 37, n_rows * 37 * sizeof(float));
    mem_free(y);
}

static void a_row_has_the_same_bits_among_any_others(void **state) {
    struct gemv_case c;

    (void)state;
    shim_set(1, SHIM_COPIES_LATE);
    make_gemv(&c, &(struct gemv_shape){2, 37, 1032, .has_norm = true, .is_f32_out = true});
    run_gemv(&c.a);
    for (uint32_t m = 0; m < 2; m++)
        check_some_rows(&c, m, 1);
    kernel_fixture_fini(&c.fixture);
    make_gemv(&c, &(struct gemv_shape){16, 37, 1032, .has_norm = true, .is_f32_out = true});
    run_gemv(&c.a);
    for (uint32_t n_rows = 3; n_rows < 16; n_rows += 2) {
        for (uint32_t m = 0; m + n_rows <= 16; m += 3)
            check_some_rows(&c, m, n_rows);
    }
    kernel_fixture_fini(&c.fixture);
}

static void gemv_planted_bugs_are_caught(void **state) {
    static const char *const plants[][6] = {
        {"gemv_no_tail", "gemv_no_barrier", "gemv_one_part", "gemv_up_is_gate", "gemv_late_wait",
         "gemv_early_refill"},
        {"tiles_no_tail", "tiles_no_barrier", "tiles_one_part", "tiles_swapped", "tiles_late_wait",
         "tiles_early_refill"}};
    struct gemv_case c;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        make_gemv(&c,
                  &(struct gemv_shape){2 + 7 * i, 37, 9224, .has_norm = true, .is_swiglu = true});
        for (size_t j = 0; j < 6; j++) {
            if (!kernel_fixture_catches(&c.fixture, plants[i][j], run_gemv, &c.a))
                fail_msg("%s", plants[i][j]);
        }
        kernel_fixture_fini(&c.fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemv_takes_any_n_and_odd_k),
        cmocka_unit_test(tiles_take_any_m_n_and_odd_k),
        cmocka_unit_test(gemv_has_all_epilogues_for_all_rows),
        cmocka_unit_test(gemv_splits_k_where_n_is_small),
        cmocka_unit_test(a_row_has_the_same_bits_among_any_others),
        cmocka_unit_test(gemv_planted_bugs_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
