/* tests/unit/cuda/shim/test_quant_library.c - e4m3 products by the library: panels of weights,
 * rounded inputs, and the product of both beside float64 on the same codes. */
#include "kernels/cuda/products/product.h"
#include "kernels/cuda/products/quant_library.h"
#include "tests/unit/cuda/shim/quant_case.h"

/* --- panels ----------------------------------------------------------------------------------- */

struct unpack_case {
    struct packed_matrix w;
    struct quant_panel p;
};

static void run_unpack(const void *args) {
    const struct unpack_case *u = args;

    quant_unpack_panel(NULL, &u->w, &u->p);
}

/* Outputs [first, first + n) of a matrix as `s` has it: codes and scales of the panel. */
static struct unpack_case unpack_case_of(struct quant_case *c, const struct quant_shape *s,
                                         uint32_t first, uint32_t n) {
    bool has_blocks = s->group_n == 128;
    uint32_t n_groups = quant_groups(s->k, c->q.group_k), width = gemm_block_scales(s->k);
    uint32_t n_scales = has_blocks ? CEIL_DIV(n, 128u) * width : n;
    float *codes = kernel_fixture_floats((size_t)n * s->k),
          *scale = kernel_fixture_floats(n_scales);
    struct unpack_case u = {c->a.w, {first, n, NULL, NULL}};

    u.w.grain = has_blocks ? QUANT_GRAIN_BLOCK : QUANT_GRAIN_ROW;
    u.p.codes = kernel_fixture_room(&c->fixture, (size_t)n * s->k);
    u.p.scale = kernel_fixture_room(&c->fixture, n_scales * sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < s->k; k++)
            codes[(size_t)i * s->k + k] = (int8_t)c->codes[(first + i) * c->pitch + k];
    for (uint32_t i = 0; i < n_scales; i++) {
        if (!has_blocks)
            scale[i] = c->scale[(first + i) / c->q.group_n * n_groups];
        else if (i % width < n_groups)
            scale[i] = c->scale[(first / 128 + i / width) * n_groups + i % width];
    }
    kernel_fixture_want(&c->fixture, u.p.codes, DTYPE_I8, codes);
    kernel_fixture_want(&c->fixture, u.p.scale, DTYPE_F32, scale);
    return u;
}

static void check_panel(const struct quant_shape *s, uint32_t first, uint32_t n) {
    struct quant_case c;
    struct unpack_case u;

    quant_case_make(&c, s);
    u = unpack_case_of(&c, s, first, n);
    for (unsigned i = 0; i < c.fixture.n_rooms; i++)
        if (c.fixture.room[i].p == c.a.a.y) c.fixture.room[i].want = NULL; /* not written */
    kernel_fixture_check(&c.fixture, run_unpack, &u);
    quant_case_free(&c);
}

/* Rows and inputs that fill no unit, no row block, no warp; panels from the middle on. */
static void panels_are_unpacked_to_the_bit(void **state) {
    static const uint32_t ks[] = {16, 48, 128, 272, 1040, 2064};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(ks); i++) {
        struct quant_shape s = {.dtype = DTYPE_F8E4M3, .m = 1, .n = 72, .k = ks[i]};

        check_panel(&s, 0, 72);
        check_panel(&s, 32, i % 2 ? 40 : 16);
        s.group_n = 48; /* not of whole row blocks below: each row block has one */
        check_panel(&s, 16, 56);
    }
}

static void panels_have_the_scales_of_their_blocks(void **state) {
    static const uint32_t ks[] = {128, 384, 1152};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(ks); i++) {
        struct quant_shape s = {
            .dtype = DTYPE_F8E4M3, .m = 1, .n = 384, .k = ks[i], .group_n = 128, .group_k = 128};

        check_panel(&s, 0, 384);
        check_panel(&s, 128, 256);
        s.n = 320;
        check_panel(&s, 128, 192);
    }
}

/* --- inputs ----------------------------------------------------------------------------------- */

struct round_case {
    struct kernel_fixture f;
    struct quant_args a;
    uint32_t rows;
    uint8_t *codes;
    float *scale;
};

static void run_round(const void *args) {
    const struct round_case *r = args;

    quant_round_f8(NULL, &r->a, r->rows, r->codes, r->scale);
}

/* Codes and scale of n inputs, as quant_library.h has it. */
static void round_inputs(const float *x, uint32_t n, float *codes, float *scale) {
    float most = 0;
    bool is_finite = true;

    for (uint32_t i = 0; i < n; i++) {
        is_finite &= isfinite(x[i]) != 0;
        most = fmaxf(most, fabsf(x[i]));
    }
    *scale = !is_finite ? NAN : most < 0x1p-100f ? 1 : most / 448.0f;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = is_finite ? (int8_t)e4m3_of_f32(x[i] * (1.0f / *scale)) : 0x7F;
}

static void draw_inputs(struct round_case *r, float *x, uint32_t m, uint32_t k, uint32_t stride) {
    uint16_t *bits = (uint16_t *)(uintptr_t)r->a.a.x;

    for (uint32_t i = 0; i < m * stride; i++) {
        float size = i / stride % 3 == 1 ? 1e-30f : i % 97 == 0 ? 300.0f : 1.0f;

        if (i / stride == 2 && m > 2) size = 0;
        bits[i] = bf16_of_f32(x[i] * size);
        x[i] = f32_of_bf16(bits[i]);
    }
    (void)k;
}

static void round_case_make(struct round_case *r, uint32_t m, uint32_t k, bool has_blocks) {
    uint32_t stride = k + 8, rows = ALIGN_UP(m, 16u), groups = has_blocks ? k / 128 : 1;
    float *x = kernel_fixture_floats((size_t)m * stride), *codes, *scale;

    memset(r, 0, sizeof(*r));
    kernel_fixture_init(&r->f, m * 31 + k);
    r->rows = rows;
    r->a.w.grain = has_blocks ? QUANT_GRAIN_BLOCK : QUANT_GRAIN_ROW;
    r->a.a = (struct gemv_args){.m = m, .k = k, .x_stride = stride};
    r->a.a.x = kernel_fixture_draw_bf16(&r->f, (size_t)m * stride, 0, 1, x);
    draw_inputs(r, x, m, k, stride);
    r->codes = kernel_fixture_room(&r->f, (size_t)rows * k);
    r->scale = kernel_fixture_room(&r->f, (size_t)rows * groups * sizeof(float));
    codes = kernel_fixture_floats((size_t)rows * k);
    scale = kernel_fixture_floats((size_t)rows * groups);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t g = 0; g < groups; g++) {
            scale[g * rows + i] = 1;
            if (i < m)
                round_inputs(x + (size_t)i * stride + (size_t)g * 128, k / groups,
                             codes + (size_t)i * k + (size_t)g * 128, &scale[g * rows + i]);
        }
    kernel_fixture_want(&r->f, r->codes, DTYPE_I8, codes);
    kernel_fixture_want(&r->f, r->scale, DTYPE_F32, scale);
    free(x);
}

/* Very small rows, rows of zeros, outliers, and rows that only fill the sixteen up. */
static void inputs_are_rounded_for_each_token(void **state) {
    static const uint32_t ks[] = {16, 400, 2064, 4112};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(ks); i++) {
        struct round_case r;

        round_case_make(&r, i % 2 ? 19 : 5, ks[i], false);
        kernel_fixture_check(&r.f, run_round, &r);
        kernel_fixture_fini(&r.f);
    }
}

static void inputs_are_rounded_for_each_token_and_group(void **state) {
    static const uint32_t ks[] = {128, 384, 2048, 2176};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(ks); i++) {
        struct round_case r;

        round_case_make(&r, i % 2 ? 19 : 5, ks[i], true);
        kernel_fixture_check(&r.f, run_round, &r);
        kernel_fixture_fini(&r.f);
    }
}

/* An input that is not finite makes a token's codes and scale NaN; of blocks, its group's. */
static void inputs_that_are_not_finite_are_kept(void **state) {
    static const uint16_t bits[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF81};

    (void)state;
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(bits); i++) {
        bool has_blocks = i % 2;
        struct round_case r;

        round_case_make(&r, 4, 384, has_blocks);
        ((uint16_t *)(uintptr_t)r.a.a.x)[3 * r.a.a.x_stride + 200] = bits[i / 2];
        run_round(&r);
        for (uint32_t k = 0; k < 384; k++) {
            bool is_hit = !has_blocks || k / 128 == 1;

            assert_int_equal((r.codes[3 * 384 + k] & 0x7F) == 0x7F, is_hit);
            assert_int_equal(isnan(r.scale[has_blocks ? k / 128 * 16 + 3 : 3]) != 0, is_hit);
        }
        assert_false(isnan(r.scale[2]));
        kernel_fixture_fini(&r.f);
    }
}

/* --- the product ------------------------------------------------------------------------------ */

/* A device, its library, and a product on them; `c` has the case in host memory. */
struct bench {
    struct quant_case c;
    struct gpu *gpu;
    struct quant_library l;
    struct quant_args a;
    uint64_t n_bytes;
};

static void *to_device(struct bench *b, const void *from, uint64_t n_bytes) {
    void *p, *pinned;

    assert_int_equal(gpu_alloc(b->gpu, &p, n_bytes, "a test", NULL), ST_OK);
    assert_int_equal(gpu_alloc_pinned(b->gpu, &pinned, n_bytes, "a test", NULL), ST_OK);
    memcpy(pinned, from, n_bytes);
    gpu_copy(b->l.stream, p, pinned, n_bytes);
    assert_int_equal(gpu_stream_wait(b->l.stream, NULL), ST_OK);
    gpu_free(b->gpu, pinned);
    return p;
}

static void bench_open(struct bench *b, const struct quant_shape *s, enum quant_grain grain) {
    uint32_t n_blocks = CEIL_DIV(s->n, QUANT_ROWS);
    uint32_t n_scales;
    struct packed_matrix *w = &b->a.w;
    uint64_t y_bytes;

    memset(b, 0, sizeof(*b));
    quant_case_make(&b->c, s);
    assert_int_equal(gpu_open(&b->gpu, 0, NULL), ST_OK);
    assert_int_equal(gpu_stream_open(b->gpu, &b->l.stream, NULL), ST_OK);
    assert_int_equal(gemm_open(&b->l.gemm, b->gpu, &product_own, false, NULL), ST_OK);
    b->a = b->c.a;
    n_scales = n_blocks * quant_groups(s->k, w->group_k) * (w->has_row_scales ? QUANT_ROWS : 1);
    w->grain = grain;
    w->part_end[0] = s->n;
    w->codes = to_device(b, w->codes, n_blocks * quant_block_bytes(w->dtype, s->k));
    w->scale = to_device(b, w->scale, n_scales * sizeof(float));
    b->a.a.x = to_device(b, b->a.a.x, (uint64_t)s->m * b->a.a.x_stride * 2);
    y_bytes = (uint64_t)ALIGN_UP(s->m, 16u) * b->a.a.y_stride * 2;
    assert_int_equal(gpu_alloc(b->gpu, &b->a.a.y, y_bytes, "a test", NULL), ST_OK);
    b->n_bytes = quant_library_bytes(b->l.gemm, w, s->m);
    if (b->n_bytes)
        assert_int_equal(gpu_alloc(b->gpu, &b->l.scratch, b->n_bytes, "a test", NULL), ST_OK);
}

static void bench_close(struct bench *b) {
    gemm_close(b->l.gemm);
    gpu_stream_close(b->l.stream);
    gpu_close(b->gpu); /* and all of its memory */
    quant_case_free(&b->c);
}

/* Of the codes that x has: their values, in float64. */
static void code_row(const struct bench *b, uint32_t row, double *x) {
    const struct quant_args *a = &b->a;
    const float *from = b->c.x + (size_t)row * a->a.x_stride;
    uint32_t width = a->w.grain == QUANT_GRAIN_BLOCK ? 128 : a->a.k;
    float *codes = kernel_fixture_floats(a->a.k), scale;

    for (uint32_t k = 0; k < a->a.k; k += width) {
        round_inputs(from + k, width, codes + k, &scale);
        for (uint32_t i = k; i < k + width; i++)
            x[i] = (double)f32_of_e4m3((uint8_t)(int8_t)codes[i]) * scale;
    }
    free(codes);
}

/* Within the rounding to bf16 (two of them where tokens are scaled afterwards) and 1e-3 of Σ|x w|. */
static void assert_row(const struct bench *b, const uint16_t *y, uint32_t row) {
    const struct quant_case *c = &b->c;
    uint32_t k_groups = quant_groups(b->a.a.k, c->q.group_k);
    double *x = malloc(b->a.a.k * sizeof(*x));

    code_row(b, row, x);
    for (uint32_t n = 0; n < b->a.a.n; n++) {
        double want = 0, size = 0, got = f32_of_bf16(y[(size_t)row * b->a.a.y_stride + n]);

        for (uint32_t k = 0; k < b->a.a.k; k++) {
            uint32_t group = n / c->q.group_n * k_groups + k / MIN(c->q.group_k, b->a.a.k);
            double product = x[k] * quant_case_code(c, n, k) * (double)c->scale[group];

            want += product;
            size += fabs(product);
        }
        if (fabs(got - want) > 0x1p-8 * fabs(want) + 1e-3 * size)
            fail_msg("y[%u][%u] = %g, not %g", row, n, got, want);
    }
    free(x);
}

static bool bench_runs(struct bench *b) {
    return b->n_bytes && quant_library_run(&b->l, &b->a);
}

static void assert_product(struct bench *b) {
    uint64_t n_bytes = (uint64_t)b->a.a.m * b->a.a.y_stride * 2;
    uint32_t from_rows;
    void *y;

    assert_int_equal(quant_library_tune(&b->l, &b->a, b->a.a.m, &from_rows, NULL), ST_OK);
    assert_true(quant_library_run(&b->l, &b->a));
    assert_int_equal(gpu_alloc_pinned(b->gpu, &y, n_bytes, "a test", NULL), ST_OK);
    gpu_copy(b->l.stream, y, b->a.a.y, n_bytes);
    assert_int_equal(gpu_stream_wait(b->l.stream, NULL), ST_OK);
    for (uint32_t row = 0; row < b->a.a.m; row += row < 3 || row + 4 > b->a.a.m ? 1 : 7)
        assert_row(b, y, row);
    gpu_free(b->gpu, y);
}

/* What one scale is for, and how many rows there are. */
static void library_products_agree_with_float64_on_the_same_codes(void **state) {
    static const struct {
        enum quant_grain grain;
        uint32_t group_n, group_k, n, k, m;
    } cases[] = {{QUANT_GRAIN_ROW, 1, 0, 144, 272, 33},
                 {QUANT_GRAIN_ROW, 1, 0, 16, 16, 17},
                 {QUANT_GRAIN_MATRIX, 160, 0, 160, 400, 40},
                 {QUANT_GRAIN_BLOCK, 128, 128, 256, 384, 37},
                 {QUANT_GRAIN_BLOCK, 128, 128, 128, 640, 64}};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quant_shape s = {.dtype = DTYPE_F8E4M3,
                                .m = cases[i].m,
                                .n = cases[i].n,
                                .k = cases[i].k,
                                .group_n = cases[i].group_n,
                                .group_k = cases[i].group_k,
                                .spare = 16};
        struct bench b;

        bench_open(&b, &s, cases[i].grain);
        if (b.n_bytes) /* a card without the scales: own kernels, elsewhere */
            assert_product(&b);
        bench_close(&b);
    }
}

/* Each matrix of a fused one by its own scale, and Y by those of tokens afterwards. */
static void a_device_with_one_scale_a_matrix_takes_them_one_by_one(void **state) {
    struct quant_shape s = {
        .dtype = DTYPE_F8E4M3, .m = 21, .n = 144, .k = 272, .group_n = 48, .spare = 16};
    struct bench b;

    (void)state;
    for (uint32_t sm = 89; sm <= 120; sm += 31) {
        shim_set_sm(sm);
        bench_open(&b, &s, QUANT_GRAIN_MATRIX);
        for (uint32_t i = 0; i < 3; i++)
            b.a.w.part_end[i] = (i + 1) * 48;
        b.n_bytes = quant_library_bytes(b.l.gemm, &b.a.w, s.m);
        assert_true(b.n_bytes > 0);
        assert_product(&b);
        bench_close(&b);
    }
    shim_set_sm(90);
}

/* --- refusals --------------------------------------------------------------------------------- */

static bool is_taken(enum quant_grain grain, uint32_t n, uint32_t k, bool has_note) {
    struct quant_shape s = {.dtype = DTYPE_F8E4M3,
                            .m = 20,
                            .n = n,
                            .k = k,
                            .group_n = grain == QUANT_GRAIN_BLOCK    ? 128
                                       : grain == QUANT_GRAIN_MATRIX ? n
                                                                     : 1,
                            .group_k = grain == QUANT_GRAIN_BLOCK ? 128 : 0};
    struct bench b;
    bool is;

    bench_open(&b, &s, grain);
    is = b.n_bytes > 0;
    assert_int_equal(gemm_note(b.l.gemm) != NULL, has_note);
    bench_close(&b);
    return is;
}

static void sizes_that_the_library_lacks_are_left_to_own_products(void **state) {
    (void)state;
    shim_set_sm(90);
    assert_true(is_taken(QUANT_GRAIN_ROW, 48, 32, false));
    assert_false(is_taken(QUANT_GRAIN_ROW, 40, 32, true));
    assert_false(is_taken(QUANT_GRAIN_ROW, 48, 24, true));
    assert_true(is_taken(QUANT_GRAIN_BLOCK, 128, 256, false));
    assert_false(is_taken(QUANT_GRAIN_BLOCK, 144, 256, true));
    assert_false(is_taken(QUANT_GRAIN_BLOCK, 128, 272, true));
    assert_false(is_taken(QUANT_GRAIN_OTHER, 48, 32, false));
}

static void devices_without_the_scales_have_own_products(void **state) {
    static const uint32_t sms[] = {80, 86, 89, 100, 120};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(sms); i++) {
        bool has_one = sms[i] >= 89;

        shim_set_sm(sms[i]);
        assert_false(is_taken(QUANT_GRAIN_ROW, 48, 32, true));
        assert_false(is_taken(QUANT_GRAIN_BLOCK, 128, 128, true));
        assert_int_equal(is_taken(QUANT_GRAIN_MATRIX, 48, 32, !has_one), has_one);
    }
    shim_set_sm(90);
    shim_set_library(false);
    assert_false(is_taken(QUANT_GRAIN_ROW, 48, 32, true));
    shim_set_library(true);
}

static uint64_t launches_of(const char *kernel) {
    struct shim_stats stats;

    shim_stats(kernel, &stats);
    return stats.n_launches;
}

/* Once: from then on nothing is launched that own kernels would have to do again. */
static void a_refusal_in_service_is_reported(void **state) {
    struct quant_shape s = {.dtype = DTYPE_F8E4M3, .m = 20, .n = 48, .k = 32};
    struct shim_calls before, after;
    uint32_t from_rows;
    struct bench b;

    (void)state;
    shim_refuse_codes(false); /* a device is no shim */
    bench_open(&b, &s, QUANT_GRAIN_ROW);
    assert_int_equal(quant_library_tune(&b.l, &b.a, s.m, &from_rows, NULL), ST_OK);
    assert_true(bench_runs(&b));
    shim_refuse_codes(true);
    assert_false(bench_runs(&b));
    shim_refuse_codes(false);
    assert_int_equal(gpu_stream_wait(b.l.stream, NULL), ST_OK);
    shim_stats_clear();
    shim_calls(&before);
    assert_false(bench_runs(&b));
    assert_int_equal(gpu_stream_wait(b.l.stream, NULL), ST_OK);
    shim_calls(&after);
    assert_int_equal(after.n_kernels, before.n_kernels);
    assert_int_equal(after.n_products, before.n_products);
    assert_int_equal(launches_of("quant_"), 0);
    bench_close(&b);
}

/* Equal scales of rows are one of the matrix, which the library may have where it lacks others. */
static void one_scale_is_tried_where_scales_of_rows_are_refused(void **state) {
    struct quant_shape s = {.dtype = DTYPE_F8E4M3, .m = 20, .n = 48, .k = 272, .group_n = 48};
    static const enum quant_grain grains[] = {QUANT_GRAIN_MATRIX, QUANT_GRAIN_ROW};

    (void)state;
    shim_refuse_row_scales(true);
    for (uint32_t i = 0; i < ARRAY_LEN(grains); i++) {
        uint32_t from_rows;
        struct bench b;

        bench_open(&b, &s, grains[i]);
        if (i == 0) assert_product(&b);
        assert_int_equal(quant_library_tune(&b.l, &b.a, s.m, &from_rows, NULL), ST_OK);
        assert_int_equal(bench_runs(&b), i == 0);
        assert_int_equal(gpu_stream_wait(b.l.stream, NULL), ST_OK);
        bench_close(&b);
    }
    shim_refuse_row_scales(false);
}

/* The shim's clock: three launches of the library's way, or one kernel of the own. */
static void rows_are_multiplied_the_faster_way(void **state) {
    struct quant_shape s = {.dtype = DTYPE_F8E4M3, .m = 200, .n = 48, .k = 32};
    static const uint32_t own_us[] = {10, 40};
    struct bench b;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t from_rows = 0;

        shim_set_product_us(i == 2 ? 0 : 5);
        shim_set_kernel_us("quant_tile_kernel", own_us[i % 2]);
        bench_open(&b, &s, QUANT_GRAIN_ROW);
        assert_int_equal(quant_library_tune(&b.l, &b.a, s.m, &from_rows, NULL), ST_OK);
        assert_int_equal(from_rows, i == 1 ? 25 : 0);
        bench_close(&b);
    }
    shim_set_kernel_us(NULL, 0);
}

/* --- which matrices --------------------------------------------------------------------------- */

static void grains_are_those_of_checkpoints_that_round_inputs(void **state) {
    static const float one[] = {1, 1}, other[] = {1, 2};
    static const uint32_t order = 0;
    struct backend_quant q = {
        .inputs = QUANT_INPUTS_F8, .group_n = 64, .group_k = 256, .scale = one};

    (void)state;
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 64, 256), QUANT_GRAIN_MATRIX);
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 65, 256), QUANT_GRAIN_MATRIX);
    q.scale = other;
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 64, 256), QUANT_GRAIN_MATRIX);
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 65, 256), QUANT_GRAIN_ROW);
    assert_int_equal(quant_grain_of(&q, DTYPE_I8, 64, 256), QUANT_GRAIN_OTHER);
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 64, 512), QUANT_GRAIN_OTHER);
    q.inputs = QUANT_INPUTS_F8_STATIC;
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 64, 256), QUANT_GRAIN_MATRIX);
    q.inputs = QUANT_INPUTS_PLAIN;
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 64, 256), QUANT_GRAIN_OTHER);
    q = (struct backend_quant){
        .inputs = QUANT_INPUTS_F8_GROUPS, .group_n = 128, .group_k = 128, .scale = one};
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 256, 256), QUANT_GRAIN_BLOCK);
    q.order = &order;
    assert_int_equal(quant_grain_of(&q, DTYPE_F8E4M3, 256, 256), QUANT_GRAIN_OTHER);

    assert_int_equal(quant_grain_join(QUANT_GRAIN_MATRIX, QUANT_GRAIN_MATRIX, 40),
                     QUANT_GRAIN_MATRIX);
    assert_int_equal(quant_grain_join(QUANT_GRAIN_MATRIX, QUANT_GRAIN_ROW, 48), QUANT_GRAIN_ROW);
    assert_int_equal(quant_grain_join(QUANT_GRAIN_BLOCK, QUANT_GRAIN_BLOCK, 256),
                     QUANT_GRAIN_BLOCK);
    assert_int_equal(quant_grain_join(QUANT_GRAIN_BLOCK, QUANT_GRAIN_BLOCK, 192),
                     QUANT_GRAIN_OTHER);
    assert_int_equal(quant_grain_join(QUANT_GRAIN_BLOCK, QUANT_GRAIN_ROW, 256), QUANT_GRAIN_OTHER);
}

/* --- planted bugs ----------------------------------------------------------------------------- */

static void panel_planted_bugs_are_caught(void **state) {
    static const char *const plants[] = {"panel_codes_as_packed", "panel_no_tail",
                                         "panel_scale_of_a_neighbour"};
    struct quant_shape s = {.dtype = DTYPE_F8E4M3, .m = 1, .n = 72, .k = 144};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(plants); i++) {
        struct quant_case c;
        struct unpack_case u;

        quant_case_make(&c, &s);
        u = unpack_case_of(&c, &s, 16, 40);
        for (unsigned j = 0; j < c.fixture.n_rooms; j++)
            if (c.fixture.room[j].p == c.a.a.y) c.fixture.room[j].want = NULL;
        if (!kernel_fixture_catches(&c.fixture, plants[i], run_unpack, &u))
            fail_msg("%s", plants[i]);
        quant_case_free(&c);
    }
}

static void f8_planted_bugs_are_caught(void **state) {
    static const char *const plants[] = {"f8_no_barrier", "f8_half_a_group", "f8_no_padding"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(plants); i++) {
        struct round_case r;

        round_case_make(&r, 19, 384, i == 1);
        if (!kernel_fixture_catches(&r.f, plants[i], run_round, &r)) fail_msg("%s", plants[i]);
        kernel_fixture_fini(&r.f);
    }
}

struct scale_case {
    uint16_t *y;
    float *scale;
};

static void run_scale(const void *args) {
    const struct scale_case *c = args;

    quant_scale_rows(NULL, c->y, 3000, 5, 2568, c->scale);
}

static void outputs_are_scaled_for_each_token(void **state) {
    struct kernel_fixture f;
    struct scale_case c;
    float *want = kernel_fixture_floats((size_t)5 * 3000);

    (void)state;
    kernel_fixture_init(&f, 7);
    c.y = kernel_fixture_draw_bf16(&f, (size_t)5 * 3000, 0, 1, want);
    c.scale = kernel_fixture_room(&f, 5 * sizeof(float));
    for (uint32_t i = 0; i < 5; i++)
        c.scale[i] = (float)(i + 1) * 0.3f;
    for (uint32_t i = 0; i < 5 * 3000; i++)
        want[i] = i % 3000 < 2568 ? want[i] * c.scale[i / 3000] : NAN;
    kernel_fixture_want(&f, c.y, DTYPE_BF16, want);
    kernel_fixture_check(&f, run_scale, &c);
    assert_true(kernel_fixture_catches(&f, "scale_of_first_row", run_scale, &c));
    kernel_fixture_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(panels_are_unpacked_to_the_bit),
        cmocka_unit_test(panels_have_the_scales_of_their_blocks),
        cmocka_unit_test(inputs_are_rounded_for_each_token),
        cmocka_unit_test(inputs_are_rounded_for_each_token_and_group),
        cmocka_unit_test(inputs_that_are_not_finite_are_kept),
        cmocka_unit_test(outputs_are_scaled_for_each_token),
        cmocka_unit_test(library_products_agree_with_float64_on_the_same_codes),
        cmocka_unit_test(grains_are_those_of_checkpoints_that_round_inputs),
        cmocka_unit_test(a_device_with_one_scale_a_matrix_takes_them_one_by_one),
        cmocka_unit_test(sizes_that_the_library_lacks_are_left_to_own_products),
        cmocka_unit_test(devices_without_the_scales_have_own_products),
        cmocka_unit_test(a_refusal_in_service_is_reported),
        cmocka_unit_test(one_scale_is_tried_where_scales_of_rows_are_refused),
        cmocka_unit_test(rows_are_multiplied_the_faster_way),
        cmocka_unit_test(panel_planted_bugs_are_caught),
        cmocka_unit_test(f8_planted_bugs_are_caught),
    };

    quant_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
