/* tests/unit/cuda/shim/quant_case.h - a random quantised product, packed for the device, and what
 * it must give: in float64, with the rounding errors that fp32 sums may make. */
#ifndef TESTS_UNIT_CUDA_SHIM_QUANT_CASE_H
#define TESTS_UNIT_CUDA_SHIM_QUANT_CASE_H

#include "kernels/cuda/products/quant.h"
#include "tests/support/kernel_fixture.h"

struct quant_shape {
    enum dtype dtype;
    uint32_t m, n, k;
    uint32_t group_n, group_k; /* 0: 1, and k */
    bool has_zeros, has_order, is_i8_inputs;
    bool has_bias, has_norm, is_swiglu, is_f32_out, accumulates, is_deterministic;
    uint32_t spare; /* elements between the rows of x, and of y */
};

struct quant_case {
    struct kernel_fixture fixture;
    struct quant_args a;
    struct backend_quant q;
    uint32_t n_w;   /* rows of W */
    uint8_t *codes; /* (n_w, pitch) as checkpoints have them */
    uint64_t pitch;
    float *scale, *x;
    int16_t *zero;
    uint32_t *order;
    double *want, *size; /* (m, n_w) x W^T, and the sums of |x w| */
};

static inline float quant_case_code(const struct quant_case *c, uint32_t n, uint32_t k) {
    const uint8_t *row = c->codes + n * c->pitch;

    switch (c->a.w.dtype) {
    case DTYPE_F8E4M3: return f32_of_e4m3(row[k]);
    case DTYPE_I8: return (float)(int8_t)row[k];
    default: return (float)(row[k / 2] >> k % 2 * 4 & 15);
    }
}

static inline void quant_case_draw(struct quant_case *c, const struct quant_shape *s) {
    struct rng *rng = &c->fixture.rng;
    uint32_t n_groups = quant_groups(s->k, c->q.group_k);
    uint32_t n_scales = CEIL_DIV(c->n_w, c->q.group_n) * n_groups;

    c->pitch = dtype_row_bytes(s->dtype, s->k);
    c->codes = malloc(c->n_w * c->pitch);
    for (uint64_t i = 0; i < c->n_w * c->pitch; i++) {
        c->codes[i] = (uint8_t)rng_below(rng, 256);
        if (s->dtype == DTYPE_F8E4M3 && (c->codes[i] & 0x7F) == 0x7F) c->codes[i] ^= 1;
    }
    c->scale = malloc(n_scales * sizeof(float));
    for (uint32_t i = 0; i < n_scales; i++)
        c->scale[i] = (rng_below(rng, 4) ? 1.0f : -1.0f) * /* of both signs, as in checkpoints */
                      (0.5f + (float)rng_f64(rng)) / sqrtf((float)s->k) *
                      (s->dtype == DTYPE_F8E4M3 ? 0x1p-7f
                       : s->dtype == DTYPE_I8   ? 0x1p-6f
                                                : 0.25f);
    if (s->has_zeros) {
        c->zero = malloc((uint64_t)c->n_w * n_groups * sizeof(int16_t));
        for (uint64_t i = 0; i < (uint64_t)c->n_w * n_groups; i++)
            c->zero[i] = (int16_t)(s->dtype == DTYPE_U4 ? (int)rng_below(rng, 16)
                                                        : (int)rng_below(rng, 256) - 128);
    }
    if (s->has_order) {
        c->order = malloc(s->k * sizeof(uint32_t));
        for (uint32_t i = 0; i < s->k; i++) {
            uint32_t j = (uint32_t)rng_below(rng, i + 1);

            c->order[i] = c->order[j];
            c->order[j] = i;
        }
    }
    c->q.scale = c->scale;
    c->q.zero = c->zero;
    c->q.order = c->order;
}

/* Fused matrices keep their own groups of outputs: here each has n rows. */
static inline void quant_case_pack(struct quant_case *c, const struct quant_shape *s) {
    struct packed_matrix *w = &c->a.w;
    uint32_t n_blocks = CEIL_DIV(c->n_w, QUANT_ROWS), n_groups = quant_groups(s->k, c->q.group_k);
    uint64_t block_bytes = quant_block_bytes(s->dtype, s->k);
    uint32_t width = quant_has_row_scales(&c->q) ? QUANT_ROWS : 1;
    uint8_t *codes = kernel_fixture_room(&c->fixture, n_blocks * block_bytes);
    float *scale =
        kernel_fixture_room(&c->fixture, (uint64_t)n_blocks * n_groups * width * sizeof(float));
    int16_t *zero = NULL;

    if (s->has_zeros)
        zero = kernel_fixture_room(&c->fixture, (uint64_t)n_blocks * n_groups * QUANT_ROWS * 2);
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t first = b * QUANT_ROWS, n_rows = MIN(QUANT_ROWS, c->n_w - first);

        quant_pack_codes(codes + b * block_bytes, s->dtype, c->codes + first * c->pitch, c->pitch,
                         n_rows, s->k);
        quant_pack_scales(scale + (uint64_t)b * n_groups * width, &c->q, width > 1, first, n_rows,
                          s->k);
        if (zero)
            quant_pack_zeros(zero + (uint64_t)b * n_groups * QUANT_ROWS, &c->q, s->dtype, first,
                             n_rows, s->k);
    }
    w->codes = codes;
    w->scale = scale;
    w->zero = zero;
    w->has_row_scales = width > 1;
    if (s->has_order) w->order = kernel_fixture_put(&c->fixture, c->order, s->k * sizeof(uint32_t));
}

/* A row of x as the product takes it: normalised, or rounded to int8. */
static inline void quant_case_row(const struct quant_case *c, const struct quant_shape *s,
                                  uint32_t m, const float *norm, double *x) {
    const float *from = c->x + (size_t)m * (s->k + s->spare);
    double square = 0, max = 0;

    for (uint32_t i = 0; i < s->k; i++) {
        x[i] = from[i];
        square += x[i] * x[i];
        max = fmax(max, fabs(x[i]));
    }
    for (uint32_t i = 0; i < s->k && s->has_norm; i++)
        x[i] = f32_of_bf16(bf16_of_f32(from[i] * norm[i])) / sqrt(square / s->k + 1e-5);
    if (s->is_i8_inputs) {
        float scale = (float)max / 127;

        for (uint32_t i = 0; i < s->k; i++)
            x[i] = (double)fminf(fmaxf(rintf(from[i] / scale), -127), 127) * scale;
    }
}

static inline void quant_case_compute(struct quant_case *c, const struct quant_shape *s,
                                      const float *norm) {
    uint32_t n_groups = quant_groups(s->k, c->q.group_k);
    double *x = malloc(s->k * sizeof(*x));

    c->want = calloc((size_t)s->m * c->n_w, sizeof(double));
    c->size = calloc((size_t)s->m * c->n_w, sizeof(double));
    for (uint32_t m = 0; m < s->m; m++) {
        quant_case_row(c, s, m, norm, x);
        for (uint32_t n = 0; n < c->n_w; n++)
            for (uint32_t k = 0; k < s->k; k++) {
                uint32_t g = k / MIN(c->q.group_k, s->k);
                int zero = c->zero ? c->zero[n * n_groups + g] : s->dtype == DTYPE_U4 ? 8 : 0;
                double w = ((double)quant_case_code(c, n, k) - zero) *
                           (double)c->scale[n / c->q.group_n * n_groups + g];
                double product = x[c->order ? c->order[k] : k] * w;

                c->want[(size_t)m * c->n_w + n] += product;
                c->size[(size_t)m * c->n_w + n] += fabs(product);
            }
    }
    free(x);
}

/* Y as it begins, and as it must be. */
static inline void quant_case_make_y(struct quant_case *c, const struct quant_shape *s,
                                     const float *bias) {
    enum dtype dtype = s->is_f32_out ? DTYPE_F32 : DTYPE_BF16;
    uint32_t stride = s->n + s->spare;
    float *y = kernel_fixture_floats((size_t)s->m * stride);

    c->a.a.y = kernel_fixture_room(&c->fixture, (size_t)s->m * stride * dtype_bytes(dtype));
    for (uint32_t i = 0; i < s->m * stride; i++) {
        uint32_t n = i % stride;
        size_t at = (size_t)(i / stride) * c->n_w + n;
        float before =
            s->accumulates ? f32_of_bf16(bf16_of_f32(kernel_fixture_draw(&c->fixture, 1))) : 0;

        y[i] = NAN;
        if (n >= s->n) continue;
        if (s->accumulates) dtype_put(dtype, c->a.a.y, i, before);
        y[i] = (float)c->want[at] + bias[n] + before;
        if (s->is_swiglu)
            y[i] = (float)(c->want[at] / (1 + exp(-c->want[at])) * c->want[at + s->n]);
    }
    kernel_fixture_want(&c->fixture, c->a.a.y, dtype, y);
}

static inline void quant_case_make(struct quant_case *c, const struct quant_shape *s) {
    struct kernel_fixture *f = &c->fixture;
    uint32_t x_stride = s->k + s->spare;
    float *norm = kernel_fixture_floats(s->k), *bias = kernel_fixture_floats(s->n);
    uint64_t n_scratch;

    memset(c, 0, sizeof(*c));
    kernel_fixture_init(f, s->m * 131 + s->n * 7 + s->k + (uint32_t)s->dtype);
    c->n_w = s->is_swiglu ? 2 * s->n : s->n;
    c->q = (struct backend_quant){.group_n = s->group_n ? s->group_n : 1,
                                  .group_k = s->group_k ? s->group_k : s->k};
    if (s->is_i8_inputs) c->q.inputs = QUANT_INPUTS_I8;
    c->a.w = (struct packed_matrix){
        .dtype = s->dtype, .inputs = c->q.inputs, .n = c->n_w, .k = s->k, .group_k = c->q.group_k};
    c->a.is_deterministic = s->is_deterministic;
    quant_case_draw(c, s);
    quant_case_pack(c, s);
    c->x = kernel_fixture_floats((size_t)s->m * x_stride);
    c->a.a =
        (struct gemv_args){.x = kernel_fixture_draw_bf16(f, (size_t)s->m * x_stride, 0, 1, c->x),
                           .m = s->m,
                           .n = s->n,
                           .k = s->k,
                           .x_stride = x_stride,
                           .y_stride = s->n + s->spare,
                           .eps = 1e-5f,
                           .is_f32_out = s->is_f32_out,
                           .accumulates = s->accumulates,
                           .is_swiglu = s->is_swiglu};
    if (s->has_bias) c->a.a.bias = kernel_fixture_draw_bf16(f, s->n, 0, 1, bias);
    if (s->has_norm) c->a.a.norm_weight = kernel_fixture_draw_bf16(f, s->k, 1, 0.3f, norm);
    n_scratch = quant_scratch_bytes(&c->a.w, s->m);
    if (n_scratch) c->a.scratch = aligned_alloc(256, ALIGN_UP(n_scratch, 256));
    quant_case_compute(c, s, norm);
    quant_case_make_y(c, s, bias);
    free(norm);
    free(bias);
}

static inline void quant_case_free(struct quant_case *c) {
    kernel_fixture_fini(&c->fixture);
    free(c->a.scratch);
    free(c->codes);
    free(c->scale);
    free(c->zero);
    free(c->order);
    free(c->x);
    free(c->want);
    free(c->size);
}

static inline void quant_case_run(const void *args) {
    quant_run(NULL, args);
}

#endif
