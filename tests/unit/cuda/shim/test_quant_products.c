/* tests/unit/cuda/shim/test_quant_products.c - products with quantised matrices: few rows, many,
 * all types, groups, zeros and orders. */
#include "tests/unit/cuda/shim/quant_case.h"

/* To the bit, but for the sign of zero. */
#define ASSERT_EQUAL(got, want) assert_true((got) == (want))

static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8, DTYPE_U4};

static void check(const struct quant_shape *s) {
    struct quant_case c;

    quant_case_make(&c, s);
    kernel_fixture_check(&c.fixture, quant_case_run, &c.a);
    quant_case_free(&c);
}

static void few_rows_take_all_types_and_groups(void **state) {
    static const uint32_t ms[] = {1, 3, 8, 9, 16}, groups[] = {0, 32, 64, 128, 96},
                          ks[] = {8, 136, 320, 1088};

    (void)state;
    for (uint32_t i = 0; i < 30; i++)
        check(&(struct quant_shape){.dtype = types[i % 3],
                                    .m = ms[i % 5],
                                    .n = i % 4 ? 40 : 8,
                                    .k = ks[i % 4],
                                    .group_k = groups[(i * 2 + i / 5) % 5],
                                    .group_n = i % 7 == 0 ? 128 : 0,
                                    .has_zeros = types[i % 3] != DTYPE_F8E4M3 && i % 2,
                                    .is_f32_out = i % 2,
                                    .spare = i % 3 * 8});
}

static void few_rows_have_all_fusions(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct quant_shape s = {
            .dtype = types[i], .m = 2 + 9 * (i % 2), .n = 48, .k = 328, .group_k = 64};

        s.has_bias = s.accumulates = true;
        check(&s);
        s.accumulates = false;
        s.has_norm = true;
        check(&s);
        s.m = 12;
        s.has_bias = false;
        s.is_swiglu = true;
        s.has_zeros = types[i] != DTYPE_F8E4M3;
        check(&s);
        s.m = 1;
        s.group_k = 0;
        check(&s);
    }
}

static void many_rows_take_all_types_and_groups(void **state) {
    static const uint32_t ms[] = {17, 33, 65, 100}, groups[] = {0, 32, 64, 128, 96},
                          ks[] = {8, 72, 136, 320};

    (void)state;
    for (uint32_t i = 0; i < 24; i++)
        check(&(struct quant_shape){.dtype = types[i % 3],
                                    .m = ms[i % 4],
                                    .n = i % 5 ? 72 : 8,
                                    .k = ks[(i + i / 4) % 4],
                                    .group_k = groups[(i * 2 + i / 5) % 5],
                                    .group_n = i % 7 == 0 ? 128 : 0,
                                    .has_zeros = types[i % 3] != DTYPE_F8E4M3 && i % 2,
                                    .has_bias = i % 3 == 1,
                                    .accumulates = i % 4 == 1,
                                    .is_f32_out = i % 2,
                                    .spare = i % 3 * 8});
}

/* Enough tiles for the large one. */
static void large_tiles_take_all_types(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        check(&(struct quant_shape){.dtype = types[i],
                                    .m = 131,
                                    .n = 4104,
                                    .k = i ? 136 : 72,
                                    .group_k = 32 << i,
                                    .has_zeros = i > 0,
                                    .spare = 8});
    check(&(struct quant_shape){
        .dtype = DTYPE_I8, .m = 131, .n = 4104, .k = 72, .is_i8_inputs = true});
}

static void orders_are_gathered(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        check(&(struct quant_shape){.dtype = types[i],
                                    .m = 5 + 20 * i,
                                    .n = 24,
                                    .k = 136,
                                    .group_k = 64,
                                    .has_order = true,
                                    .spare = 8});
}

/* Few rows of one group go another way than many, and to the same bits. */
static void int8_inputs_of_few_rows_have_the_bits_of_many(void **state) {
    static const uint32_t ks[] = {8, 136, 1096};

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct quant_shape s = {.dtype = DTYPE_I8,
                                .m = 17,
                                .n = 40,
                                .k = ks[i],
                                .is_i8_inputs = true,
                                .has_bias = i == 2,
                                .is_f32_out = true};
        struct quant_case c;
        float *y = kernel_fixture_floats((size_t)16 * 40);

        quant_case_make(&c, &s);
        quant_case_run(&c.a);
        for (uint32_t m = 1; m <= 16; m += 5) {
            struct quant_args some = c.a;

            some.a.m = m;
            some.a.y = y;
            quant_case_run(&some);
            assert_memory_equal(y, c.a.a.y, m * 40 * sizeof(float));
        }
        quant_case_free(&c);
        free(y);
    }
    check(&(struct quant_shape){.dtype = DTYPE_I8,
                                .m = 3,
                                .n = 4104,
                                .k = 520,
                                .is_i8_inputs = true,
                                .accumulates = true,
                                .spare = 8});
}

/* An fp32 sum errs by rounding alone: of Σ|x w|, which is what float64 shows. */
static void sums_are_as_close_as_fp32_allows(void **state) {
    static const uint32_t ms[] = {4, 40};

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct quant_shape s = {.dtype = types[i % 3],
                                .m = ms[i / 3],
                                .n = 32,
                                .k = 1024,
                                .group_k = i % 2 ? 128 : 0,
                                .group_n = i % 2 ? 128 : 0,
                                .is_f32_out = true};
        struct quant_case c;

        quant_case_make(&c, &s);
        quant_case_run(&c.a);
        for (uint32_t j = 0; j < s.m * s.n; j++) {
            double off = fabs(((float *)c.a.a.y)[j] - c.want[j]);

            if (off > 1e-6 * c.size[j])
                fail_msg("%s [%u]: off by %g of %g", dtype_name(s.dtype), j, off, c.size[j]);
        }
        quant_case_free(&c);
    }
}

/* Whole sums are exact: the value and the two roundings are known. */
static void int8_inputs_give_the_bits_of_the_reference(void **state) {
    struct quant_shape s = {.dtype = DTYPE_I8,
                            .m = 21,
                            .n = 40,
                            .k = 200,
                            .group_k = 64,
                            .is_i8_inputs = true,
                            .is_f32_out = true};
    struct quant_case c;

    (void)state;
    quant_case_make(&c, &s);
    quant_case_run(&c.a);
    for (uint32_t m = 0; m < s.m; m++) {
        const float *x = c.x + m * s.k;
        float max = 0, scale;

        for (uint32_t k = 0; k < s.k; k++)
            max = fmaxf(max, fabsf(x[k]));
        scale = max / 127;
        for (uint32_t n = 0; n < s.n; n++) {
            volatile float total = 0; /* never fused */

            for (uint32_t g = 0; g < 4; g++) {
                int sum = 0;

                for (uint32_t k = g * 64; k < MIN(g * 64 + 64, s.k); k++)
                    sum += (int)rintf(x[k] / scale) * (int8_t)c.codes[n * s.k + k];
                volatile float part = (float)sum * c.scale[n * 4 + g];
                total = total + part;
            }
            total = total * scale;
            ASSERT_EQUAL(((float *)c.a.a.y)[m * s.n + n], total);
        }
    }
    quant_case_free(&c);
}

/* Largest codes and inputs of a long row: no sum leaves 32 bits. */
static void int8_extremes_do_not_overflow(void **state) {
    struct quant_shape s = {
        .dtype = DTYPE_I8, .m = 1, .n = 8, .k = 16384, .is_i8_inputs = true, .is_f32_out = true};
    struct quant_case c;

    (void)state;
    quant_case_make(&c, &s);
    memset((void *)(uintptr_t)c.a.w.codes, 0x80, quant_block_bytes(DTYPE_I8, s.k));
    for (uint32_t k = 0; k < s.k; k++)
        ((uint16_t *)(uintptr_t)c.a.a.x)[k] = bf16_of_f32(k ? -2.0f : 2.0f);
    quant_case_run(&c.a);
    for (uint32_t n = 0; n < s.n; n++)
        ASSERT_EQUAL(((float *)c.a.a.y)[n], (float)(128 * 127 * 16382) * c.scale[n] * (2.0f / 127));
    quant_case_free(&c);
}

/* Rows of zeros are zeros, of either rule; an infinity is not hidden. */
static void zero_and_infinite_rows_are_kept(void **state) {
    (void)state;
    for (int is_i8 = 0; is_i8 < 2; is_i8++) {
        struct quant_shape s = {.dtype = DTYPE_I8,
                                .m = 18,
                                .n = 16,
                                .k = 72,
                                .is_i8_inputs = is_i8,
                                .is_f32_out = true};
        struct quant_case c;

        quant_case_make(&c, &s);
        memset((void *)(uintptr_t)c.a.a.x, 0, s.k * 2);
        ((uint16_t *)(uintptr_t)c.a.a.x)[17 * s.k + 5] = 0x7F80;
        quant_case_run(&c.a);
        for (uint32_t n = 0; n < s.n; n++) {
            ASSERT_EQUAL(((float *)c.a.a.y)[n], 0);
            assert_true(isfinite(((float *)c.a.a.y)[16 * s.n + n]));
            assert_false(isfinite(((float *)c.a.a.y)[17 * s.n + n]));
        }
        quant_case_free(&c);
    }
}

static void scales_and_zeros_at_their_ends_are_exact_enough(void **state) {
    struct quant_shape s = {.dtype = DTYPE_U4,
                            .m = 2,
                            .n = 16,
                            .k = 128,
                            .group_k = 64,
                            .has_zeros = true,
                            .is_f32_out = true};

    (void)state;
    for (int is_tile = 0; is_tile < 2; is_tile++, s.m = 20) {
        struct quant_case c;

        quant_case_make(&c, &s);
        for (uint32_t i = 0; i < 2 * QUANT_ROWS; i++) {
            ((float *)(uintptr_t)c.a.w.scale)[i] = i % 2 ? 6e4f : 1e-7f;
            ((int16_t *)(uintptr_t)c.a.w.zero)[i] = i % 3 ? 15 : 0;
        }
        quant_case_run(&c.a);
        for (uint32_t n = 0; n < s.n; n++) {
            double want = 0, size = 0;

            for (uint32_t k = 0; k < s.k; k++) {
                uint32_t at = k / 64 * QUANT_ROWS + n;
                double w = (quant_case_code(&c, n, k) - c.a.w.zero[at]) * (double)c.a.w.scale[at];

                want += c.x[k] * w;
                size += fabs(c.x[k] * w);
            }
            assert_true(fabs(((float *)c.a.a.y)[n] - want) <= 1e-6 * size);
        }
        quant_case_free(&c);
    }
}

/* Deterministic: one chain of sums for every m. */
static void rows_have_the_same_bits_in_every_batch(void **state) {
    static const uint32_t counts[] = {1, 2, 3, 4, 16, 17, 64, 65, 128};

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct quant_shape s = {.dtype = i < 3 ? types[i] : DTYPE_I8,
                                .m = 130,
                                .n = 4104,
                                .k = 136,
                                .group_k = 64,
                                .is_i8_inputs = i == 3,
                                .is_f32_out = true,
                                .is_deterministic = true};
        float *y = kernel_fixture_floats((size_t)128 * s.n);
        struct quant_case c;

        quant_case_make(&c, &s);
        quant_case_run(&c.a);
        for (size_t j = 0; j < ARRAY_LEN(counts); j++) {
            struct quant_args some = c.a;

            some.a.m = counts[j];
            some.a.x += 2 * s.k;
            some.a.y = y;
            quant_case_run(&some);
            assert_memory_equal(y, (float *)c.a.a.y + 2 * s.n,
                                (size_t)counts[j] * s.n * sizeof(float));
        }
        quant_case_free(&c);
        free(y);
    }
}

/* Few rows, too, have the same bits among any others, up to eight and above. */
static void few_rows_have_the_same_bits_among_any_others(void **state) {
    struct quant_shape s = {
        .dtype = DTYPE_U4, .m = 16, .n = 40, .k = 1088, .group_k = 64, .is_f32_out = true};
    struct quant_case c;
    float *y = kernel_fixture_floats((size_t)16 * 40);

    (void)state;
    quant_case_make(&c, &s);
    quant_case_run(&c.a);
    for (uint32_t m = 1; m < 16; m += 2) {
        struct quant_args some = c.a;

        some.a.m = m;
        some.a.y = y;
        quant_case_run(&some);
        assert_memory_equal(y, c.a.a.y, m * 40 * sizeof(float));
    }
    quant_case_free(&c);
    free(y);
}

/* Scales of each matrix of a fused one stay its own: the rows are those of separate products. */
static void fused_matrices_equal_separate_ones(void **state) {
    (void)state;
    for (uint32_t m = 3; m < 40; m += 30) {
        struct quant_shape s = {
            .dtype = DTYPE_F8E4M3, .m = m, .n = 64, .k = 136, .group_k = 64, .is_f32_out = true};
        struct quant_case c;
        float *y = kernel_fixture_floats((size_t)m * 32);

        quant_case_make(&c, &s);
        quant_case_run(&c.a);
        for (uint32_t part = 0; part < 2; part++) {
            struct quant_args one = c.a;

            one.w.n = one.a.n = one.a.y_stride = 32;
            one.w.codes += part * 2 * quant_block_bytes(s.dtype, s.k);
            one.w.scale += (size_t)part * 2 * 3 * QUANT_ROWS;
            one.a.y = y;
            quant_case_run(&one);
            for (uint32_t i = 0; i < m; i++)
                assert_memory_equal(y + (size_t)i * 32,
                                    (float *)c.a.a.y + (size_t)i * 64 + part * 32, 32 * 4);
        }
        quant_case_free(&c);
        free(y);
    }
}

/* All codes of all types, one at a time, through the unpacking of both kernels. */
static void every_code_is_unpacked_exactly(void **state) {
    (void)state;
    for (uint32_t t = 0; t < 3; t++) {
        for (uint32_t m = 1; m < 40; m += 16) {
            struct quant_shape s = {
                .dtype = types[t], .m = m, .n = 256, .k = 64, .is_f32_out = true};
            struct quant_case c;

            quant_case_make(&c, &s);
            for (uint32_t n = 0; n < s.n; n++)
                for (uint32_t k = 0; k < s.k; k++) {
                    uint8_t code = (uint8_t)(n + k);

                    if (s.dtype == DTYPE_F8E4M3 && (code & 0x7F) == 0x7F) code = 0;
                    if (s.dtype == DTYPE_U4) k++, code = (uint8_t)(code * 37);
                    c.codes[n * c.pitch + (s.dtype == DTYPE_U4 ? k / 2 : k)] = code;
                }
            for (uint32_t b = 0; b < s.n / 16; b++)
                quant_pack_codes((uint8_t *)(uintptr_t)c.a.w.codes +
                                     b * quant_block_bytes(s.dtype, s.k),
                                 s.dtype, c.codes + b * 16 * c.pitch, c.pitch, 16, s.k);
            memset((void *)(uintptr_t)c.a.a.x, 0, m * s.k * 2);
            for (uint32_t i = 0; i < m; i++) /* row i takes column i */
                ((uint16_t *)(uintptr_t)c.a.a.x)[i * s.k + i] = 0x3F80;
            quant_case_run(&c.a);
            for (uint32_t i = 0; i < m * s.n; i++) {
                float zero = s.dtype == DTYPE_U4 ? 8 : 0;
                float want = (quant_case_code(&c, i % s.n, i / s.n) - zero) * c.scale[i % s.n];

                ASSERT_EQUAL(((float *)c.a.a.y)[i], want);
            }
            quant_case_free(&c);
        }
    }
}

static void quant_planted_bugs_are_caught(void **state) {
    static const char *const tile_plants[] = {"quant_late_copy_wait",     "quant_no_barrier",
                                              "quant_group_is_not_ended", "quant_scale_of_before",
                                              "quant_zero_of_before",     "quant_swapped_halves",
                                              "quant_x_is_not_swizzled"};
    static const char *const gemv_plants[] = {"quant_gemv_no_tail",   "quant_gemv_no_barrier",
                                              "quant_gemv_one_part",  "quant_gemv_up_is_gate",
                                              "quant_gemv_late_wait", "quant_scale_of_before"};
    struct quant_shape s = {
        .dtype = DTYPE_U4, .m = 40, .n = 72, .k = 456, .group_k = 64, .has_zeros = true};
    struct quant_case c;

    (void)state;
    quant_case_make(&c, &s);
    for (size_t i = 0; i < ARRAY_LEN(tile_plants); i++) {
        if (!kernel_fixture_catches(&c.fixture, tile_plants[i], quant_case_run, &c.a))
            fail_msg("%s", tile_plants[i]);
    }
    quant_case_free(&c);
    s.m = 9;
    s.n = 48;
    s.k = 1096;
    s.has_norm = s.is_swiglu = true;
    quant_case_make(&c, &s);
    for (size_t i = 0; i < ARRAY_LEN(gemv_plants); i++) {
        if (!kernel_fixture_catches(&c.fixture, gemv_plants[i], quant_case_run, &c.a))
            fail_msg("%s", gemv_plants[i]);
    }
    quant_case_free(&c);
}

static void rounding_planted_bugs_are_caught(void **state) {
    struct quant_shape s = {.dtype = DTYPE_I8, .m = 3, .n = 24, .k = 392, .is_i8_inputs = true};
    struct quant_case c;

    (void)state;
    quant_case_make(&c, &s);
    assert_true(kernel_fixture_catches(&c.fixture, "round_no_barrier", quant_case_run, &c.a));
    assert_true(kernel_fixture_catches(&c.fixture, "round_truncates", quant_case_run, &c.a));
    quant_case_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_unpacked_exactly),
        cmocka_unit_test(few_rows_take_all_types_and_groups),
        cmocka_unit_test(few_rows_have_all_fusions),
        cmocka_unit_test(many_rows_take_all_types_and_groups),
        cmocka_unit_test(large_tiles_take_all_types),
        cmocka_unit_test(orders_are_gathered),
        cmocka_unit_test(sums_are_as_close_as_fp32_allows),
        cmocka_unit_test(int8_inputs_give_the_bits_of_the_reference),
        cmocka_unit_test(int8_inputs_of_few_rows_have_the_bits_of_many),
        cmocka_unit_test(int8_extremes_do_not_overflow),
        cmocka_unit_test(zero_and_infinite_rows_are_kept),
        cmocka_unit_test(scales_and_zeros_at_their_ends_are_exact_enough),
        cmocka_unit_test(rows_have_the_same_bits_in_every_batch),
        cmocka_unit_test(few_rows_have_the_same_bits_among_any_others),
        cmocka_unit_test(fused_matrices_equal_separate_ones),
        cmocka_unit_test(quant_planted_bugs_are_caught),
        cmocka_unit_test(rounding_planted_bugs_are_caught),
    };

    quant_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
