/* tests/unit/kernels/test_cpu_quant.c - products with quantised matrices, on every path.
 *
 * Every kind of matrix that checkpoints have, against sums in float64 of its weights as they are; a
 * row alone is that row among many, to the bit; K in two calls is K in one; int8 inputs give the
 * bits of the reference on all paths, and inputs in int16 those of their rule, which stands here in
 * plain loops. Numbers in comments are the conformance cases of quantised formats. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu/pack.h"
#include "kernels/ref/ops.h"
#include "tests/support/cm.h"
#include "tests/support/quant_matrix.h"
#include "tests/support/support.h"

static const char *const names[] = {"avx512bf16", "avx512", "avx2", "plain", "neon"};
#define N_PATHS 5u
#if defined(__x86_64__)
#define IS_EMULATED 0
#else
#define IS_EMULATED 1 /* it may be: the larger products would take minutes */
#endif

static const struct cpu_path *path_at(size_t i) {
    const struct cpu_path *path = NULL;

    return cpu_path_find(&path, names[i], NULL) == ST_OK ? path : NULL;
}

struct product {
    const struct cpu_path *path;
    const struct backend_tensor *t;
    struct cpu_matrix m;
    uint32_t n_rows;
    size_t width, row_bytes, y_stride;
    float *x;   /* (n_rows, width) rounded as the path's activations are */
    char *rows; /* (n_rows, row_bytes) prepared */
    float *y;   /* (n_rows, y_stride) */
    void *scratch;
};

/* Packs a tensor for a path. */
static struct cpu_matrix packed(const struct cpu_path *path, const struct backend_tensor *t) {
    struct cpu_format f;
    struct cpu_matrix m;
    struct error err = {0};

    if (cpu_format_of(&f, path, t, &err) != ST_OK) fail_msg("%s", err.message);
    m = cpu_matrix_quant(&f, (uint32_t)t->shape[0], (uint32_t)t->shape[1]);
    m.w = mem_try_aligned(CACHE_LINE, cpu_matrix_bytes(&m));
    memset(m.w, 0, cpu_matrix_bytes(&m));
    cpu_pack(&m, t, 0, 1);
    m.order = t->quant->order;
    return m;
}

static void prepare(struct product *p) {
    void *acts = mem_calloc(p->width, p->path->act_bytes);

    for (uint32_t r = 0; r < p->n_rows; r++) {
        p->path->to_act(acts, p->x + r * p->width, (uint32_t)p->width);
        p->path->from_act(p->x + r * p->width, acts, (uint32_t)p->width);
        p->path->prepare(p->rows + r * p->row_bytes, &p->m, acts);
    }
    mem_free(acts);
}

static void open_product(struct product *p, const struct cpu_path *path,
                         const struct backend_tensor *t, const float *x, uint32_t n_rows) {
    uint32_t k = (uint32_t)t->shape[1];

    *p = (struct product){.path = path, .t = t, .n_rows = n_rows, .width = ALIGN_UP(k, PANEL)};
    p->m = packed(path, t);
    p->row_bytes = cpu_inputs_bytes(&p->m, path->act_bytes);
    p->y_stride = (size_t)p->m.n_panels * PANEL;
    p->x = mem_calloc(n_rows * p->width, sizeof(float));
    p->rows = mem_calloc(n_rows, p->row_bytes);
    p->y = mem_calloc(n_rows * p->y_stride, sizeof(float));
    p->scratch = mem_try_aligned(CACHE_LINE, QUANT_SCRATCH);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(p->x + r * p->width, x + (size_t)r * k, k * sizeof(float));
    prepare(p);
}

static void close_product(struct product *p) {
    void *all[] = {p->m.w, p->x, p->rows, p->y, p->scratch};

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        mem_free(all[i]);
}

/* Rows [first, first + n) in one go, into y. */
static void run(const struct product *p, uint32_t first, uint32_t n, float *y, bool continues) {
    for (uint32_t r = 0; r < n; r += QUANT_ROWS) {
        for (uint32_t panel = 0; panel < p->m.n_panels; panel += QUANT_PANELS) {
            memset(p->scratch, 0xFF, QUANT_SCRATCH);
            p->path->quant(&p->m, panel, MIN(QUANT_PANELS, p->m.n_panels - panel),
                           p->rows + (first + r) * p->row_bytes, MIN(QUANT_ROWS, n - r),
                           y + (size_t)r * p->y_stride + panel * PANEL, p->y_stride, continues,
                           p->scratch);
        }
    }
}

static float *random_inputs(struct rng *r, size_t n) {
    float *x = mem_calloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_f64(r) + rng_f64(r) - 0.9);
    return x;
}

static const char *name_of(const struct backend_tensor *t) {
    static char text[96];

    snprintf(text, sizeof(text), "%s (%u, %u), groups (%u, %u)%s%s", dtype_name(t->dtype),
             (unsigned)t->shape[0], (unsigned)t->shape[1], t->quant->group_n, t->quant->group_k,
             t->quant->zero ? ", zeros" : "", t->quant->order ? ", order" : "");
    return text;
}

static bool has_blocks(const struct product *p) {
    return cpu_inputs_kind(&p->m) == INPUTS_I16;
}

/* The input that a code of column k meets. */
static float input_at(const struct product *p, const float *x, uint32_t k) {
    return x[p->t->quant->order ? p->t->quant->order[k] : k];
}

/* Of the inputs of a block that begins at k: [k, end). */
static float largest_input(const struct product *p, const float *x, uint32_t k, uint32_t end) {
    float max = 0;

    for (; k < end; k++)
        max = fmaxf(max, fabsf(input_at(p, x, k)));
    return max;
}

static uint32_t block_end(const struct product *p, uint32_t k) {
    uint32_t group_k = p->t->quant->group_k, in_group = k % group_k;

    return MIN(k + MIN(QUANT_BLOCK - in_group % QUANT_BLOCK, group_k - in_group), p->m.k);
}

/* Case 63: 1e-6 of the sum of what is added; with zeros, code and zero are added apart. Inputs in
 * int16 may each be off by 2^-15 of the largest of their block. */
static void check_float64(const struct product *p, uint32_t row) {
    const struct backend_quant *q = p->t->quant;
    const float *x = p->x + row * p->width;
    uint64_t row_groups = quant_row_groups(q, p->m.k), pitch = dtype_row_bytes(p->m.dtype, p->m.k);

    for (uint32_t n = 0; n < p->m.n; n += 5) {
        const uint8_t *codes = (const uint8_t *)p->t->data + n * pitch;
        double sum = 0, size = 0, rounded = 0, largest = 0, got = p->y[row * p->y_stride + n];

        for (uint32_t k = 0, end = 0; k < p->m.k; k++) {
            uint32_t g = k / q->group_k;
            double in = input_at(p, x, k), code = quant_code(p->m.dtype, codes, k),
                   zero = quant_zero(q, p->m.dtype, row_groups, n, g),
                   scale = quant_scale(q, row_groups, n, g);

            sum += in * (code - zero) * scale;
            size += fabs(in) * (fabs(code) + fabs(zero)) * fabs(scale);
            if (has_blocks(p) && k == end) {
                end = block_end(p, k);
                largest = (double)largest_input(p, x, k, end);
            }
            rounded += largest * 0x1p-15 * fabs(code - zero) * fabs(scale);
        }
        if (!(fabs(got - sum) <= 1e-6 * size + rounded))
            fail_msg("%s: %s: row %u, output %u: %g, in float64 %g, size %g", p->path->name,
                     name_of(p->t), row, n, got, sum, size);
    }
}

/* Output n of a row by the rule of int16 inputs: a power of two as the scale of a block, the
 * smallest from 2^-126 on with which the largest input rounds to less than 2^15. */
static float by_rule(const struct product *p, const float *x, uint32_t n) {
    const struct backend_quant *q = p->t->quant;
    const uint8_t *codes = (const uint8_t *)p->t->data + n * dtype_row_bytes(p->m.dtype, p->m.k);
    uint64_t row_groups = quant_row_groups(q, p->m.k);
    bool is_fused = strcmp(p->path->name, "plain") != 0;
    float y = 0;

    for (uint32_t k = 0, end; k < p->m.k; k = end) {
        uint32_t g = k / q->group_k;
        double largest, unit = 0x1p-126;
        float weight = quant_scale(q, row_groups, n, g), sum;
        int64_t whole = 0;

        end = block_end(p, k);
        largest = (double)largest_input(p, x, k, end);
        while (largest / unit >= 32767.5)
            unit *= 2;
        for (; k < end; k++) {
            int zero = quant_zero(q, p->m.dtype, row_groups, n, g);

            whole += (int64_t)rint((double)input_at(p, x, k) / unit) *
                     (int64_t)(quant_code(p->m.dtype, codes, k) - (float)zero);
        }
        sum = (float)whole * (float)unit;
        y = is_fused ? fmaf(sum, weight, y) : y + sum * weight;
    }
    return y;
}

static void check_rule(const struct product *p, uint32_t row) {
    for (uint32_t n = 0; n < p->m.n; n += 3) {
        float got = p->y[row * p->y_stride + n], want = by_rule(p, p->x + row * p->width, n);

        if (got != want)
            fail_msg("%s: %s: row %u, output %u: %.9g, by the rule %.9g", p->path->name,
                     name_of(p->t), row, n, (double)got, (double)want);
    }
}

/* The rule of int8 inputs, to the bit: the reference has it in plain loops. */
static void check_reference(const struct product *p, uint32_t row) {
    struct ref_matrix w = {p->t->data, p->m.dtype, p->m.n, p->m.k, p->t->quant};
    float *want = mem_calloc(p->m.n, sizeof(*want));

    ref_linear(want, p->x + row * p->width, &w, NULL, 1);
    for (uint32_t n = 0; n < p->m.n; n++) {
        float got = p->y[row * p->y_stride + n];

        if (memcmp(&got, &want[n], sizeof(got)) != 0)
            fail_msg("%s: %s: row %u, output %u: %.9g, reference %.9g", p->path->name,
                     name_of(p->t), row, n, (double)got, (double)want[n]);
    }
    mem_free(want);
}

/* Cases 59, 61: a row is the same alone and among others. */
static void check_rows(const struct product *p, uint32_t n_rows) {
    float *tiled = mem_calloc(n_rows * p->y_stride, sizeof(*tiled));

    memset(tiled, 0xFF, n_rows * p->y_stride * sizeof(*tiled));
    run(p, 0, n_rows, tiled, false);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (memcmp(tiled + r * p->y_stride, p->y + r * p->y_stride, p->m.n * sizeof(float)) != 0)
            fail_msg("%s: %s: row %u of %u differs from the row alone", p->path->name,
                     name_of(p->t), r, n_rows);
    }
    mem_free(tiled);
}

static void check_product(const struct cpu_path *path, const struct backend_tensor *t,
                          const uint32_t *heights, size_t n_heights, struct rng *rng) {
    uint32_t most = heights[n_heights - 1];
    float *x = random_inputs(rng, most * t->shape[1]);
    struct product p;

    open_product(&p, path, t, x, most);
    for (uint32_t r = 0; r < most; r++)
        run(&p, r, 1, p.y + r * p.y_stride, false);
    for (size_t i = 0; i < n_heights; i++)
        check_rows(&p, heights[i]);
    if (t->quant->inputs == QUANT_INPUTS_I8)
        check_reference(&p, most - 1);
    else
        check_float64(&p, most - 1);
    if (has_blocks(&p)) check_rule(&p, most - 1);
    close_product(&p);
    mem_free(x);
}

/* Cases 59, 61, 63. */
static void products_of_all_kinds_on_all_paths(void **state) {
    static const uint32_t sizes[][2] = {{64, 8},    {1, 64},    {100, 100}, {65, 896},
                                        {200, 384}, {130, 640}, {128, 1600}};
    static const uint32_t few[] = {1, 2, 3, 4, 5, 6, 7, 9, 16, 17, 24, 25, 31}, many[] = {48, 512};
    struct quant_matrix m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t i = 0; i < N_PATHS * QUANT_KINDS * ARRAY_LEN(sizes); i++) {
        const struct cpu_path *path = path_at(i % N_PATHS);
        const uint32_t *size = sizes[i / N_PATHS / QUANT_KINDS];

        if (!path || (IS_EMULATED && size[1] > 200)) continue;
        quant_matrix_fill(&m, &quant_kinds[i / N_PATHS % QUANT_KINDS], size[0], size[1], &rng);
        check_product(path, &m.tensor, few, ARRAY_LEN(few), &rng);
        if (size[1] == 640) check_product(path, &m.tensor, many, ARRAY_LEN(many), &rng);
        quant_matrix_free(&m);
    }
}

/* One row of x through a tensor, on a path. */
static void product_of(const struct cpu_path *path, const struct backend_tensor *t, const float *x,
                       float *y) {
    struct product p;

    open_product(&p, path, t, x, 1);
    run(&p, 0, 1, p.y, false);
    memcpy(y, p.y, p.m.n * sizeof(*y));
    close_product(&p);
}

/* --- inputs in int16 ------------------------------------------------------------------------- */

/* Inputs of a row: of one size; of all sizes; blocks of zeros among others; some that a block's
 * scale leaves nothing of; subnormal ones; large floats; the largest rounds up to 2^15. */
enum inputs { EVEN, ALL_SIZES, SOME_ZEROS, OUTLIERS, SUBNORMAL, HUGE_ONES, ROUNDED_UP, N_INPUTS };

static void fill_inputs(float *x, uint32_t k, enum inputs kind, struct rng *rng) {
    for (uint32_t i = 0; i < k; i++) {
        x[i] = (float)rng_f64(rng) - 0.5f;
        if (kind == ALL_SIZES) x[i] = ldexpf(x[i], (int)rng_below(rng, 60) - 30);
        if (kind == SOME_ZEROS && i / 64 % 3 == 1) x[i] = 0;
        if (kind == OUTLIERS && rng_below(rng, 64) == 0) x[i] *= 1e6f;
        if (kind == SUBNORMAL) x[i] *= 0x1p-125f;
        if (kind == HUGE_ONES) x[i] *= 0x1p115f;
        if (kind == ROUNDED_UP && rng_below(rng, 4) == 0) x[i] = i % 2 ? 0.99999f : -0.99999f;
    }
}

/* Groups of all lengths: shorter than a vector, no multiple of one, longer than a block. */
static const struct quant_kind block_kinds[] = {
    {DTYPE_U4, 1, 8, true, false, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 24, false, true, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 128, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 136, true, true, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 0, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_I8, 1, 40, true, false, QUANT_INPUTS_PLAIN},
    {DTYPE_I8, 1, 264, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_I8, 1, 0, true, true, QUANT_INPUTS_PLAIN},
};

static void blocks_have_the_bits_of_their_rule(void **state) {
    enum { N = 70, K = 1000, MOST = 13 };
    static float x[MOST * K];
    struct quant_matrix m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t i = 0; i < N_PATHS * ARRAY_LEN(block_kinds) * N_INPUTS; i++) {
        const struct cpu_path *path = path_at(i % N_PATHS);
        enum inputs inputs = (enum inputs)(i / N_PATHS % N_INPUTS);
        struct product p;

        if (!path) continue;
        quant_matrix_fill(&m, &block_kinds[i / N_PATHS / N_INPUTS], N, K, &rng);
        for (uint32_t r = 0; r < MOST; r++)
            fill_inputs(x + r * K, K, inputs, &rng);
        open_product(&p, path, &m.tensor, x, MOST);
        for (uint32_t r = 0; r < MOST; r++) {
            run(&p, r, 1, p.y + r * p.y_stride, false);
            check_rule(&p, r);
        }
        for (uint32_t n = 2; n <= MOST; n++)
            check_rows(&p, n);
        close_product(&p);
        quant_matrix_free(&m);
    }
}

/* Sums of inputs that have 8 significant bits, down to 1 / 128 of the largest, are exact. */
static void inputs_in_bf16_are_exact(void **state) {
    enum { N = 70, K = 128 };
    static float x[K], y[N];
    struct quant_kind kinds[2] = {{DTYPE_U4, 1, 0, true, false, QUANT_INPUTS_PLAIN},
                                  {DTYPE_I8, 1, 0, true, false, QUANT_INPUTS_PLAIN}};
    struct quant_matrix m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t i = 0; i < N_PATHS * 64; i++) {
        const struct cpu_path *path = path_at(i % N_PATHS);
        int size = (int)rng_below(&rng, 200) - 100;

        if (!path) continue;
        quant_matrix_fill(&m, &kinds[i / N_PATHS % 2], N, K, &rng);
        for (uint64_t n = 0; n < N; n++)
            ((float *)(uintptr_t)m.quant.scale)[n] = 1;
        for (int k = 0; k < K; k++) { /* from 1 / 128 of 255, 1.99, up to it */
            double bits = (double)(128 + rng_below(&rng, 128));

            x[k] = (float)ldexp(rng_below(&rng, 2) ? bits : -bits, size - (int)rng_below(&rng, 7));
        }
        x[i % K] = (float)ldexp(255, size);
        product_of(path, &m.tensor, x, y);
        for (uint64_t n = 0; n < N; n++) {
            double want = 0;

            for (uint64_t k = 0; k < K; k++)
                want += (double)x[k] * quant_matrix_weight(&m.tensor, n, k);
            assert_true(y[n] == (float)want);
        }
        quant_matrix_free(&m);
    }
}

/* The most that a sum can be: 128 * 255 * 32767 is below 2^31. */
static void sums_of_blocks_do_not_overflow(void **state) {
    enum { K = 256 };
    static int8_t codes[2][K];
    static float x[K];
    float scale[2] = {1, 1}, y[2];
    int16_t zero[2] = {127, -128};
    struct backend_quant q = {.group_n = 1, .group_k = K, .scale = scale, .zero = zero};
    struct backend_tensor t = {.dtype = DTYPE_I8,
                               .n_dims = 2,
                               .shape = {2, K},
                               .data = codes,
                               .n_bytes = sizeof(codes),
                               .quant = &q};

    (void)state;
    memset(codes[0], -128, K);
    memset(codes[1], 127, K);
    for (size_t i = 0; i < N_PATHS * 2; i++) {
        float in = i / N_PATHS ? 32640 : -32640; /* of 8 bits */

        if (!path_at(i % N_PATHS)) continue;
        for (int k = 0; k < K; k++)
            x[k] = in;
        product_of(path_at(i % N_PATHS), &t, x, y);
        assert_true(y[0] == -255 * K * in && y[1] == 255 * K * in);
    }
}

/* --- extremes -------------------------------------------------------------------------------- */

/* Case 60: 16384 * 128 * 127 stays below 2^31, offsets included. */
static void int8_sums_of_extremes_do_not_overflow(void **state) {
    enum { K = 16384 };
    static int8_t codes[2 * K];
    static float x[K];
    float scale[2] = {1, 0.5f}, y[2];
    struct backend_quant q = {
        .inputs = QUANT_INPUTS_I8, .group_n = 1, .group_k = K, .scale = scale};
    struct backend_tensor t = {.dtype = DTYPE_I8,
                               .n_dims = 2,
                               .shape = {2, K},
                               .data = codes,
                               .n_bytes = sizeof(codes),
                               .quant = &q};

    (void)state;
    for (size_t i = 0; i < N_PATHS * 4; i++) {
        int8_t w = i / N_PATHS % 2 ? 127 : -128, in = i / N_PATHS / 2 ? 127 : -127;

        if (!path_at(i % N_PATHS)) continue;
        memset(codes, w, sizeof(codes));
        for (int k = 0; k < K; k++)
            x[k] = in;
        product_of(path_at(i % N_PATHS), &t, x, y);
        assert_true(y[0] == (float)((int64_t)K * w * in) && y[1] == y[0] / 2);
    }
}

/* Case 62. Inputs that add up exactly, so that every path is exact. */
static void int4_zeros_and_scales_at_their_ends(void **state) {
    enum { K = 64, N = 64 };
    static uint8_t codes[N * K / 2];
    static float scale[N * 2], x[K];
    static int16_t zero[N * 2];
    float y[N];
    struct backend_quant q = {.group_n = 1, .group_k = 32, .scale = scale, .zero = zero};
    struct backend_tensor t = {.dtype = DTYPE_U4,
                               .n_dims = 2,
                               .shape = {N, K},
                               .data = codes,
                               .n_bytes = sizeof(codes),
                               .quant = &q};

    (void)state;
    for (int k = 0; k < K; k++)
        x[k] = (float)(k % 5 - 1);
    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (uint8_t)(i * 37);
    for (size_t i = 0; i < N * 2; i++) {
        scale[i] = f32_of_f16(f16_of_f32(i % 4 < 2 ? 1e-7f : 6e4f));
        zero[i] = i % 3 ? 0 : 15;
    }
    for (size_t i = 0; i < N_PATHS; i++) {
        if (!path_at(i)) continue;
        product_of(path_at(i), &t, x, y);
        for (uint64_t n = 0; n < N; n++) {
            double want = 0;

            for (uint64_t k = 0; k < K; k++)
                want += x[k] * quant_matrix_weight(&t, n, k);
            assert_true(fabs(y[n] - want) <= 1e-7 * fabs(want));
        }
    }
}

/* Case 65. */
static void zeros_give_zeros_and_infinities_are_seen(void **state) {
    static float x[256], y[70];
    struct quant_matrix m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t i = 0; i < N_PATHS * QUANT_KINDS; i++) {
        const struct cpu_path *path = path_at(i % N_PATHS);

        if (!path) continue;
        quant_matrix_fill(&m, &quant_kinds[i / N_PATHS], 70, 256, &rng);
        memset(x, 0, sizeof(x));
        product_of(path, &m.tensor, x, y);
        for (int n = 0; n < 70; n++)
            assert_true(y[n] == 0);
        for (int k = 0; k < 128; k++) /* a group of zeros beside another */
            x[k] = (float)rng_f64(&rng);
        product_of(path, &m.tensor, x, y);
        for (int n = 0; n < 70; n++)
            assert_true(isfinite(y[n]));
        x[7] = i % 2 ? INFINITY : NAN;
        if (i % 2) memset(m.tensor.data, 0x11, m.tensor.n_bytes); /* 0 * inf is seen anyway */
        product_of(path, &m.tensor, x, y);
        for (int n = 0; n < 70; n++)
            assert_false(isfinite(y[n]));
        quant_matrix_free(&m);
    }
}

#if defined(__x86_64__)
/* Case 38: weights whose codes are subnormal, under a caller that flushes subnormal floats. */
static void weights_are_the_same_where_subnormals_are_flushed(void **state) {
    static float x[256], y[128], flushed[128];
    struct quant_matrix m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int k = 0; k < 256; k++)
        x[k] = (float)(rng_f64(&rng) - 0.3);
    for (size_t i = 0; i < N_PATHS * QUANT_KINDS; i++) {
        const struct cpu_path *path = path_at(i % N_PATHS);
        unsigned csr = _mm_getcsr();

        if (!path) continue;
        quant_matrix_fill(&m, &quant_kinds[i / N_PATHS], 128, 256, &rng);
        for (uint64_t c = 0; c < m.tensor.n_bytes && m.tensor.dtype == DTYPE_F8E4M3; c++)
            ((uint8_t *)m.tensor.data)[c] &= 0x87; /* subnormal ones */
        product_of(path, &m.tensor, x, y);
        _mm_setcsr(csr | 0x8040); /* flush to zero, denormals are zeros */
        product_of(path, &m.tensor, x, flushed);
        _mm_setcsr(csr);
        assert_memory_equal(y, flushed, sizeof(y));
        quant_matrix_free(&m);
    }
}
#endif

/* --- packing --------------------------------------------------------------------------------- */

/* Case 67: two matrices side by side, in turns or one behind the other, are those two. */
static void outputs_of_a_fused_matrix_are_those_of_its_parts(void **state) {
    enum { N = 128, K = 200 };
    static float x[K], y[2][N];
    struct quant_matrix part[2];
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int k = 0; k < K; k++)
        x[k] = (float)(rng_f64(&rng) - 0.3);
    for (size_t i = 0; i < N_PATHS * QUANT_KINDS * 2; i++) {
        const struct cpu_path *path = path_at(i % N_PATHS);
        uint32_t step = 1 + (uint32_t)(i / N_PATHS / QUANT_KINDS);
        struct cpu_format f;
        struct product p;

        if (!path) continue;
        for (int j = 0; j < 2; j++) {
            quant_matrix_fill(&part[j], &quant_kinds[i / N_PATHS % QUANT_KINDS], N, K, &rng);
            if (j && part[0].quant.order)
                memcpy((void *)(uintptr_t)part[1].quant.order, part[0].quant.order,
                       K * sizeof(uint32_t));
            product_of(path, &part[j].tensor, x, y[j]);
        }
        open_product(&p, path, &part[0].tensor, x, 1);
        assert_int_equal(cpu_format_of(&f, path, &part[1].tensor, NULL), ST_OK);
        if (cpu_format_equal(&f, &p.m.format)) {
            mem_free(p.m.w);
            p.m = cpu_matrix_quant(&f, 2 * N, K);
            p.m.order = part[0].quant.order;
            p.m.w = mem_try_aligned(CACHE_LINE, cpu_matrix_bytes(&p.m));
            memset(p.m.w, 0, cpu_matrix_bytes(&p.m));
            cpu_pack(&p.m, &part[0].tensor, 0, step);
            cpu_pack(&p.m, &part[1].tensor, step == 2 ? PANEL : N, step);
            mem_free(p.y);
            p.y = mem_calloc(2 * N, sizeof(float));
            p.y_stride = 2 * N;
            run(&p, 0, 1, p.y, false);
            for (int n = 0; n < 2 * N; n++) {
                int of = step == 2 ? n / 64 % 2 : n / N,
                    at = step == 2 ? n / 128 * 64 + n % 64 : n % N;

                assert_memory_equal(&p.y[n], &y[of][at], sizeof(float));
            }
        }
        close_product(&p);
        quant_matrix_free(&part[0]);
        quant_matrix_free(&part[1]);
    }
}

static void groups_that_are_no_multiple_of_8_are_refused(void **state) {
    struct quant_kind kind = {DTYPE_U4, 1, 12, false, false, QUANT_INPUTS_PLAIN};
    struct quant_matrix m;
    struct cpu_format f;
    struct error err = {0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, 1);
    quant_matrix_fill(&m, &kind, 3, 24, &rng);
    assert_int_equal(cpu_format_of(&f, &cpu_path_plain, &m.tensor, &err), ST_UNSUPPORTED);
    assert_string_equal(err.message, "a weight has groups of 12 inputs: the cpu backend takes "
                                     "multiples of 8; use another --backend");
    quant_matrix_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_all_kinds_on_all_paths),
        cmocka_unit_test(blocks_have_the_bits_of_their_rule),
        cmocka_unit_test(inputs_in_bf16_are_exact),
        cmocka_unit_test(sums_of_blocks_do_not_overflow),
        cmocka_unit_test(int8_sums_of_extremes_do_not_overflow),
        cmocka_unit_test(int4_zeros_and_scales_at_their_ends),
        cmocka_unit_test(zeros_give_zeros_and_infinities_are_seen),
#if defined(__x86_64__)
        cmocka_unit_test(weights_are_the_same_where_subnormals_are_flushed),
#endif
        cmocka_unit_test(outputs_of_a_fused_matrix_are_those_of_its_parts),
        cmocka_unit_test(groups_that_are_no_multiple_of_8_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
