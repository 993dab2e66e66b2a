/* tests/unit/cuda/shim/test_attend_codes.c - attention over quantised pools, against attention in
 * double over the same codes. What was never written, scales too, is NaN. */
#include "tests/support/cm.h"
#include "tests/unit/cuda/shim/attend_case.h"

static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};

static struct attend_shape shape_of(uint32_t head_dim, uint32_t group, uint32_t n_kv,
                                    uint32_t n_sm) {
    return (struct attend_shape){group * n_kv, n_kv, head_dim, 8, 512, n_sm, false};
}

/* The worst error of the layer as planned, late and early copies, n_seeds each. */
static double layer_error(const struct attend_shape *shape, const struct backend_row *rows,
                          uint32_t n_rows, uint32_t n_padding, uint32_t window, uint64_t n_seeds) {
    struct attend_planner *p = attend_planner_create(shape);
    uint32_t n_tokens = rows[n_rows - 1].first_token + rows[n_rows - 1].n_tokens;
    struct attend_case c;
    double *exact, worst = 0;

    case_init(&c, shape, rows, n_rows, n_tokens + n_padding, window, attend_max_partials(p),
              n_tokens * 77 + window);
    exact = case_reference(&c);
    for (uint64_t seed = 1; seed <= n_seeds; seed++)
        for (int copies = 0; copies < 2; copies++) {
            double error;

            shim_set(seed, copies ? SHIM_COPIES_EARLY : SHIM_COPIES_LATE);
            case_run(&c, p, n_tokens, 0);
            error = case_error(&c, exact);
            worst = MAX(worst, error);
        }
    mem_free(exact);
    case_fini(&c);
    attend_planner_destroy(p);
    return worst;
}

static void expect_right(const struct attend_shape *shape, const struct backend_row *rows,
                         uint32_t n_rows, uint32_t n_padding, uint32_t window) {
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        double worst;

        case_kv_dtype = types[i];
        worst = layer_error(shape, rows, n_rows, n_padding, window, 1);
        if (!(worst <= CASE_BOUND))
            print_error("%s, head_dim %u, heads %u / %u, %u multiprocessors, window %u%s: %.2e\n",
                        dtype_name(types[i]), shape->head_dim, shape->n_heads, shape->n_kv_heads,
                        shape->n_sm, window, shape->is_deterministic ? ", deterministic" : "",
                        worst);
        assert_true(worst <= CASE_BOUND);
    }
}

static const uint32_t head_dims[] = {64, 96, 128}, groups[] = {1, 4, 6, 7, 16};

/* One token each, whole and in parts. */
static const struct backend_row single[] = {{5, 0, 1, 1},  {2, 1, 1, 15},  {7, 2, 1, 16},
                                            {0, 3, 1, 17}, {3, 4, 1, 257}, {1, 5, 1, 700}};

/* Decode rows, a whole prompt, chunks over cached prefixes; lengths beside multiples of 16, 64. */
static const struct backend_row ragged[] = {
    {5, 0, 1, 1},   {2, 1, 1, 129},   {7, 2, 33, 33},
    {0, 35, 2, 65}, {3, 37, 70, 201}, {1, 107, 16, 320},
};

static void decode_of_all_head_dims_and_groups(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(head_dims); i++)
        for (uint32_t j = 0; j < ARRAY_LEN(groups); j++) {
            struct attend_shape shape = shape_of(head_dims[i], groups[j], 1 + j % 2, 20);

            expect_right(&shape, single, ARRAY_LEN(single), j % 3, 0);
        }
}

static void prompts_of_all_head_dims_and_groups(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(head_dims); i++)
        for (uint32_t j = 0; j < ARRAY_LEN(groups); j++) {
            struct attend_shape shape = shape_of(head_dims[i], groups[j], 1, j & 1 ? 1 : 132);

            expect_right(&shape, ragged, (i + j) & 1 ? 6 : 4, 2, 0);
        }
}

static void long_prefixes_are_split(void **state) {
    static const struct backend_row rows[] = {{2, 0, 1, 90}, {3, 1, 100, 1100}};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(head_dims); i++) {
        struct attend_shape shape = shape_of(head_dims[i], 4, 1, 8);

        expect_right(&shape, rows, 2, 0, 0);
    }
}

static void windows_of_all_kinds(void **state) {
    static const uint32_t windows[] = {1, 16, 17, 63, 100, 255};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(windows); i++) {
        struct attend_shape shape = shape_of(head_dims[i % 3], 4, 1, i & 1 ? 1 : 132);

        expect_right(&shape, single, ARRAY_LEN(single), 0, windows[i]);
        expect_right(&shape, ragged, ARRAY_LEN(ragged), 0, windows[i]);
    }
}

static void deterministic_layers_are_attention(void **state) {
    static const struct backend_row rows[] = {{4, 0, 1, 700}, {1, 1, 5, 513}, {6, 6, 40, 256}};
    struct attend_shape shape = shape_of(64, 6, 1, 132);

    (void)state;
    shape.is_deterministic = true;
    expect_right(&shape, rows, 3, 2, 0);
    shape.n_sm = 1; /* few partials: chunks are added up in a block */
    expect_right(&shape, rows, 3, 0, 100);
    shape = shape_of(128, 2, 1, 1);
    shape.is_deterministic = true;
    expect_right(&shape, rows, 3, 0, 0);
}

/* Vectors of the largest and of the smallest numbers, and of zeros. */
static void scales_at_their_ends(void **state) {
    static const struct backend_row rows[] = {{0, 0, 1, 40}, {1, 1, 20, 60}};
    struct attend_shape shape = shape_of(128, 2, 1, 20);

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct attend_planner *p = attend_planner_create(&shape);
        struct attend_case c;
        uint16_t vector[128];
        double *exact;

        case_kv_dtype = types[i];
        case_init(&c, &shape, rows, 2, 21, 0, attend_max_partials(p), 8);
        for (uint32_t t = 0; t < 60; t++) {
            for (uint32_t e = 0; e < 128; e++)
                vector[e] = t % 4 == 0 ? 0 : t % 4 == 1 ? (uint16_t)e : bf16_of_f32(0.01f);
            if (t < 40) case_put(&c, 0, t, 0, 0, vector);
            case_put(&c, 1, t, 0, 0, vector);
            if (t % 4 == 2) vector[t] = bf16_of_f32(3e38f);
            if (t < 40) case_put(&c, 0, t, 1, 0, vector);
            case_put(&c, 1, t, 1, 0, vector);
        }
        exact = case_reference(&c);
        case_run(&c, p, 21, 0);
        assert_true(case_error(&c, exact) <= CASE_BOUND);
        mem_free(exact);
        case_fini(&c);
        attend_planner_destroy(p);
    }
}

/* A marked vector that a query sees does not vanish; one that none sees does not show. */
static void marked_vectors_are_passed_on(void **state) {
    static const struct backend_row rows[] = {{0, 0, 1, 40}, {1, 1, 20, 60}};
    struct attend_shape shape = shape_of(64, 2, 1, 20);
    uint16_t vector[64] = {[7] = 0x7F80};

    (void)state;
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(types); i++) {
        struct attend_planner *p = attend_planner_create(&shape);
        struct attend_case c;

        case_kv_dtype = types[i / 2];
        case_init(&c, &shape, rows, 2, 21, 0, attend_max_partials(p), 8);
        case_put(&c, 0, 21, i & 1, 0, vector);
        case_put(&c, 1, 59, i & 1, 0, vector);
        case_run(&c, p, 21, 0);
        for (uint32_t e = 0; e < 128; e++) {
            assert_true(isnan(f32_of_bf16(c.mix[e])));
            assert_true(isnan(f32_of_bf16(c.mix[20 * 128 + e])));
            if (!(i & 1)) assert_false(isnan(f32_of_bf16(c.mix[19 * 128 + e])));
        }
        case_fini(&c);
        attend_planner_destroy(p);
    }
}

static void planted_bugs_are_caught(void **state) {
    static const char *const decode[] = {"late_copy_wait",       "stale_scale",
                                         "no_tail_mask",         "codes_swapped",
                                         "scale_of_a_neighbour", "merge_too_early"};
    static const char *const prefill[] = {"late_copy_wait",   "no_loop_barrier",
                                          "no_widen_barrier", "stale_scale",
                                          "no_mask",          "scale_of_a_neighbour"};
    static const struct backend_row rows[] = {{2, 0, 40, 230}};

    (void)state;
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(decode); i++) {
        struct attend_shape shape = shape_of(128, 2, 1, 20);
        double worst;

        case_kv_dtype = types[i & 1];
        shim_plant(decode[i / 2]);
        worst = layer_error(&shape, single, ARRAY_LEN(single), 0, 0, 3);
        shim_plant(NULL);
        if (worst <= CASE_BOUND) fail_msg("%s was not caught in decode", decode[i / 2]);
    }
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(prefill); i++) {
        struct attend_shape shape = shape_of(i & 1 ? 64 : 128, 2, 1, 1);
        double worst;

        case_kv_dtype = types[i & 1];
        shim_plant(prefill[i / 2]);
        worst = layer_error(&shape, rows, 1, 0, 0, 3);
        shim_plant(NULL);
        if (worst <= CASE_BOUND) fail_msg("%s was not caught in prefill", prefill[i / 2]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_of_all_head_dims_and_groups),
        cmocka_unit_test(prompts_of_all_head_dims_and_groups),
        cmocka_unit_test(long_prefixes_are_split),
        cmocka_unit_test(windows_of_all_kinds),
        cmocka_unit_test(deterministic_layers_are_attention),
        cmocka_unit_test(scales_at_their_ends),
        cmocka_unit_test(marked_vectors_are_passed_on),
        cmocka_unit_test(planted_bugs_are_caught),
    };

    attend_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
