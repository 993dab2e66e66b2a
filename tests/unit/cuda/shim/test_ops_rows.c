/* tests/unit/cuda/shim/test_ops_rows.c - what is done row by row: embedding, norms, SwiGLU. */
#include "kernels/cuda/ops/ops.h"
#include "kernels/ref/ops.h"
#include "tests/support/kernel_fixture.h"

static const uint32_t token_counts[] = {1, 3, 17, 64};

/* --- embedding */

static void run_embed(const void *args) {
    ops_embed(NULL, args);
}

struct embed_case {
    struct kernel_fixture fixture;
    struct embed_args a;
};

/* Tokens of all kinds: ids, references to outputs of the step before, and nonsense. */
static void make_embed(struct embed_case *c, uint32_t T, uint32_t d) {
    uint32_t vocab = 50, n_previous = 7;
    int32_t token[64], previous[7];
    struct kernel_fixture *k = &c->fixture;
    float *id = kernel_fixture_floats(T), *x = kernel_fixture_floats((size_t)T * d);
    uint16_t *table;

    kernel_fixture_init(k, T * 1000 + d);
    table = kernel_fixture_draw_bf16(k, (size_t)vocab * d, 0, 1, NULL);
    for (uint32_t i = 0; i < n_previous; i++)
        previous[i] = (int32_t)rng_below(&k->rng, vocab);
    for (uint32_t t = 0; t < T; t++) {
        uint32_t kind = t % 5;

        token[t] = kind == 1   ? -1 - (int32_t)rng_below(&k->rng, n_previous)
                   : kind == 3 ? (t % 2 ? (int32_t)vocab : -1 - (int32_t)n_previous)
                               : (int32_t)rng_below(&k->rng, vocab);
        id[t] = (float)(kind == 1 ? previous[-1 - token[t]] : kind == 3 ? -1 : token[t]);
        for (uint32_t i = 0; i < d && id[t] >= 0; i++)
            x[(size_t)t * d + i] = f32_of_bf16(table[(size_t)id[t] * d + i]);
    }
    c->a = (struct embed_args){.table = table,
                               .token = kernel_fixture_put(k, token, T * 4),
                               .previous = kernel_fixture_put(k, previous, sizeof(previous)),
                               .id = kernel_fixture_room(k, T * 4),
                               .x = kernel_fixture_room(k, (size_t)T * d * 2),
                               .n_tokens = T,
                               .d = d,
                               .vocab = vocab,
                               .n_previous = n_previous};
    kernel_fixture_want(k, c->a.id, DTYPE_I32, id);
    kernel_fixture_want(k, c->a.x, DTYPE_BF16, x);
}

static void embedding_takes_ids_and_references(void **state) {
    static const uint32_t widths[] = {8, 96, 256, 2056, 4096};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(token_counts); i++) {
        for (size_t j = 0; j < ARRAY_LEN(widths); j++) {
            struct embed_case c;

            make_embed(&c, token_counts[i], widths[j]);
            kernel_fixture_check(&c.fixture, run_embed, &c.a);
            kernel_fixture_fini(&c.fixture);
        }
    }
}

static void embedding_planted_bugs_are_caught(void **state) {
    struct embed_case c;

    (void)state;
    make_embed(&c, 17, 96);
    assert_true(kernel_fixture_catches(&c.fixture, "embed_wrong_output", run_embed, &c.a));
    kernel_fixture_fini(&c.fixture);
}

/* --- norms */

static void run_norm(const void *args) {
    ops_norm(NULL, args);
}

struct norm_shape {
    uint32_t T, d;
    bool adds, has_bias;
    uint32_t n_gathered; /* 0: all rows, in order */
    float mean, scale;   /* of the residual */
};

struct norm_case {
    struct kernel_fixture fixture;
    struct norm_args a;
};

/* What x is after x += y + bias, rounded. */
static void add_rounded(float *x, const float *y, const float *bias, const struct norm_shape *s) {
    for (size_t i = 0; i < (size_t)s->T * s->d && s->adds; i++)
        x[i] = f32_of_bf16(bf16_of_f32(x[i] + y[i] + (s->has_bias ? bias[i % s->d] : 0)));
}

static void make_norm(struct norm_case *c, const struct norm_shape *s) {
    size_t n = (size_t)s->T * s->d, stride = 18;
    struct kernel_fixture *k = &c->fixture;
    float *x = kernel_fixture_floats(n), *y = kernel_fixture_floats(n), *h;
    float *weight = kernel_fixture_floats(s->d), *bias = kernel_fixture_floats(s->d);
    uint32_t n_rows = s->n_gathered ? s->n_gathered : s->T, *row = NULL;

    kernel_fixture_init(k, n + s->adds * 2 + s->has_bias);
    c->a = (struct norm_args){.x = kernel_fixture_draw_bf16(k, n, s->mean, s->scale, x),
                              .weight = kernel_fixture_draw_bf16(k, s->d, 1, 0.3f, weight),
                              .row_stride = (uint32_t)stride,
                              .n = n_rows,
                              .d = s->d,
                              .eps = 1e-5f};
    if (s->adds) c->a.y = kernel_fixture_draw_bf16(k, n, 0, s->scale, y);
    if (s->has_bias) c->a.bias = kernel_fixture_draw_bf16(k, s->d, 0, s->scale, bias);
    if (s->n_gathered) c->a.row = row = kernel_fixture_room(k, n_rows * stride * 4);
    c->a.h = kernel_fixture_room(k, (size_t)n_rows * s->d * 2);

    add_rounded(x, y, bias, s);
    h = kernel_fixture_floats((size_t)n_rows * s->d);
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t from = row ? (uint32_t)rng_below(&k->rng, s->T) : i;

        if (row) row[i * stride] = from;
        ref_rmsnorm(h + (size_t)i * s->d, x + (size_t)from * s->d, weight, 1, s->d, c->a.eps);
    }
    kernel_fixture_want(k, c->a.h, DTYPE_BF16, h);
    if (s->adds && !row)
        kernel_fixture_want(k, c->a.x, DTYPE_BF16, x);
    else
        free(x);
    free(y);
    free(weight);
    free(bias);
}

static void check_norm(const struct norm_shape *s) {
    struct norm_case c;

    make_norm(&c, s);
    kernel_fixture_check(&c.fixture, run_norm, &c.a);
    kernel_fixture_fini(&c.fixture);
}

static void norm_adds_rounds_and_scales(void **state) {
    static const uint32_t widths[] = {8, 64, 264, 1536};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(token_counts); i++) {
        for (size_t j = 0; j < ARRAY_LEN(widths); j++) {
            check_norm(&(struct norm_shape){token_counts[i], widths[j], .scale = 1});
            check_norm(&(struct norm_shape){token_counts[i], widths[j], .adds = true, .scale = 1});
        }
    }
}

static void norm_takes_wide_rows(void **state) {
    static const uint32_t widths[] = {4096, 4104, 8192, 8200, 12288, 16384};

    (void)state;
    for (size_t j = 0; j < ARRAY_LEN(widths); j++)
        check_norm(&(struct norm_shape){3, widths[j], .adds = true, .has_bias = true, .scale = 1});
}

static void norm_takes_large_small_and_constant_rows(void **state) {
    (void)state;
    check_norm(&(struct norm_shape){3, 520, .adds = true, .has_bias = true, .scale = 3e4f});
    check_norm(&(struct norm_shape){3, 520, .adds = true, .has_bias = true, .scale = 1e-6f});
    check_norm(&(struct norm_shape){3, 520, .mean = 2.5f});
    check_norm(&(struct norm_shape){3, 520}); /* zeros: eps alone is under the root */
}

static void norm_gathers_and_leaves_the_residual(void **state) {
    (void)state;
    check_norm(&(struct norm_shape){17, 96, .n_gathered = 1, .scale = 1});
    check_norm(&(struct norm_shape){17, 1536, .n_gathered = 40, .adds = true, .scale = 1});
    check_norm(
        &(struct norm_shape){3, 4104, .n_gathered = 5, .adds = true, .has_bias = true, .scale = 1});
}

static void norm_planted_bugs_are_caught(void **state) {
    static const struct norm_shape plain = {3, 1536, .adds = true, .scale = 1};
    static const struct norm_shape gathered = {17, 96, .n_gathered = 9, .adds = true, .scale = 1};
    struct norm_case c;

    (void)state;
    make_norm(&c, &plain);
    assert_true(kernel_fixture_catches(&c.fixture, "norm_no_barrier", run_norm, &c.a));
    assert_true(kernel_fixture_catches(&c.fixture, "norm_before_sum", run_norm, &c.a));
    kernel_fixture_fini(&c.fixture);
    make_norm(&c, &gathered);
    assert_true(kernel_fixture_catches(&c.fixture, "norm_gather_stores", run_norm, &c.a));
    kernel_fixture_fini(&c.fixture);
}

/* --- SwiGLU */

static void run_swiglu(const void *args) {
    ops_swiglu(NULL, args);
}

static void check_swiglu(uint32_t T, uint32_t f, float scale) {
    size_t n = (size_t)T * f;
    float *gate_up = kernel_fixture_floats(2 * n), *act = kernel_fixture_floats(n);
    struct kernel_fixture k;
    struct swiglu_args a = {.n_tokens = T, .f = f};

    kernel_fixture_init(&k, n);
    a.gate_up = kernel_fixture_draw_bf16(&k, 2 * n, 0, scale, gate_up);
    a.act = kernel_fixture_room(&k, n * 2);
    for (size_t t = 0; t < T; t++)
        ref_swiglu(act + t * f, gate_up + 2 * t * f, gate_up + (2 * t + 1) * f, f);
    kernel_fixture_want(&k, a.act, DTYPE_BF16, act);
    kernel_fixture_check(&k, run_swiglu, &a);
    kernel_fixture_fini(&k);
    free(gate_up);
}

static void swiglu_is_silu_times_up(void **state) {
    static const uint32_t widths[] = {8, 264, 2056};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(token_counts); i++) {
        for (size_t j = 0; j < ARRAY_LEN(widths); j++)
            check_swiglu(token_counts[i], widths[j], 1);
    }
    check_swiglu(3, 264, 60); /* far into both ends of the exponential */
    check_swiglu(3, 264, 0);
}

static void nothing_is_launched_for_no_tokens(void **state) {
    (void)state;
    ops_embed(NULL, &(struct embed_args){.d = 8});
    ops_norm(NULL, &(struct norm_args){.d = 8});
    ops_swiglu(NULL, &(struct swiglu_args){.f = 8});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_takes_ids_and_references),
        cmocka_unit_test(embedding_planted_bugs_are_caught),
        cmocka_unit_test(norm_adds_rounds_and_scales),
        cmocka_unit_test(norm_takes_wide_rows),
        cmocka_unit_test(norm_takes_large_small_and_constant_rows),
        cmocka_unit_test(norm_gathers_and_leaves_the_residual),
        cmocka_unit_test(norm_planted_bugs_are_caught),
        cmocka_unit_test(swiglu_is_silu_times_up),
        cmocka_unit_test(nothing_is_launched_for_no_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
