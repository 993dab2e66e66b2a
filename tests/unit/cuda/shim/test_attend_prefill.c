/* tests/unit/cuda/shim/test_attend_prefill.c - whole layers as planned, against attention in
 * double. */
#include "tests/support/cm.h"
#include "tests/unit/cuda/shim/attend_case.h"

static struct attend_shape shape_of(uint32_t head_dim, uint32_t group, uint32_t n_kv,
                                    uint32_t n_sm) {
    return (struct attend_shape){group * n_kv, n_kv, head_dim, 8, 512, n_sm, false};
}

/* The worst error of the layer over the schedules: late and early copies, n_seeds each. */
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
    double worst = layer_error(shape, rows, n_rows, n_padding, window, 3);

    if (!(worst <= CASE_BOUND))
        print_error("head_dim %u, heads %u / %u, %u multiprocessors, window %u%s: error %.2e\n",
                    shape->head_dim, shape->n_heads, shape->n_kv_heads, shape->n_sm, window,
                    shape->is_deterministic ? ", deterministic" : "", worst);
    assert_true(worst <= CASE_BOUND);
}

/* Decode rows, a whole prompt, chunks over cached prefixes; lengths beside multiples of 16 and
 * 64. */
static const struct backend_row ragged[] = {
    {5, 0, 1, 1},   {2, 1, 1, 129},   {7, 2, 33, 33},
    {0, 35, 2, 65}, {3, 37, 70, 201}, {1, 107, 16, 320},
};

static void ragged_rows_of_all_groups(void **state) {
    static const uint32_t groups[] = {1, 4, 6, 7, 8, 16};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(groups); i++) {
        struct attend_shape shape = shape_of(i & 1 ? 64 : 128, groups[i], 1, 1);

        expect_right(&shape, ragged, i & 1 ? 6 : 4, 2, 0); /* in tiles of 128 packed rows */
    }
}

static void few_tiles_are_split(void **state) {
    static const struct backend_row rows[] = {{4, 0, 1, 700}, {1, 1, 5, 1001}, {6, 6, 40, 560}};
    struct attend_shape shape = shape_of(64, 6, 2, 132);

    (void)state;
    expect_right(&shape, rows, 3, 3, 0);
    expect_right(&shape, rows, 3, 0, 300);
    shape = shape_of(128, 7, 1, 132);
    expect_right(&shape, rows, 2, 0, 0);
    shape = shape_of(96, 3, 1, 132);
    expect_right(&shape, rows, 3, 1, 0);
    for (uint32_t i = 0; i < 3; i++) { /* the long one in 16 parts of 128 rows */
        static const struct backend_row long_one[] = {{2, 0, 1, 90}, {3, 1, 100, 1100}};

        shape = shape_of((uint32_t[]){64, 96, 128}[i], 4, 1, 8);
        expect_right(&shape, long_one, 2, 0, i == 1 ? 500 : 0);
    }
}

static void windows_of_all_kinds(void **state) {
    static const uint32_t windows[] = {1, 16, 63, 65, 100};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(windows); i++) {
        struct attend_shape shape = shape_of(i & 1 ? 128 : 64, 4, 1, i & 1 ? 1 : 132);

        expect_right(&shape, ragged, 6, 0, windows[i]);
    }
}

/* The grid of a graph: items left over do nothing, padding becomes zero. */
static void fixed_grids_compute_the_same(void **state) {
    static const struct backend_row rows[] = {{4, 0, 1, 700}, {1, 1, 1, 64}, {6, 2, 1, 1}};

    (void)state;
    for (int is_deterministic = 0; is_deterministic < 2; is_deterministic++) {
        struct attend_shape shape = shape_of(64, 4, 2, 20);
        struct attend_planner *p;
        struct attend_case c;
        double *exact;

        shape.is_deterministic = is_deterministic;
        p = attend_planner_create(&shape);
        case_init(&c, &shape, rows, 3, 5, 0, attend_max_partials(p), 3);
        exact = case_reference(&c);
        case_run(&c, p, 3, 6);
        assert_true(case_error(&c, exact) <= CASE_BOUND);
        mem_free(exact);
        case_fini(&c);
        attend_planner_destroy(p);
    }
}

/* One key outweighs all others by far, or all weigh the same. */
static void extreme_scores_stay_exact(void **state) {
    struct attend_shape shape = shape_of(128, 4, 1, 132);

    (void)state;
    for (int is_flat = 0; is_flat < 2; is_flat++) {
        struct attend_planner *p = attend_planner_create(&shape);
        struct attend_case c;
        double *exact;

        case_init(&c, &shape, ragged, 5, 107, 0, attend_max_partials(p), 4);
        for (size_t i = 0; i < (size_t)107 * 6 * 128; i++) {
            float q = f32_of_bf16(c.qkv[i]);

            if (!isnan(q)) c.qkv[i] = is_flat ? 0 : bf16_of_f32(q * 64);
        }
        exact = case_reference(&c);
        case_run(&c, p, 107, 0);
        assert_true(case_error(&c, exact) <= CASE_BOUND);
        mem_free(exact);
        case_fini(&c);
        attend_planner_destroy(p);
    }
}

static void deterministic_layers_are_attention(void **state) {
    static const struct backend_row rows[] = {{4, 0, 1, 700}, {1, 1, 5, 513}, {6, 6, 40, 256}};
    struct attend_shape shape = shape_of(64, 6, 1, 132);

    (void)state;
    shape.is_deterministic = true;
    expect_right(&shape, rows, 3, 2, 0);
    expect_right(&shape, rows, 3, 0, 100);
    shape.n_sm = 1; /* few partials: chunks are added up in a block */
    expect_right(&shape, rows, 3, 0, 0);
    shape = shape_of(128, 2, 1, 1);
    shape.is_deterministic = true;
    expect_right(&shape, rows, 3, 0, 300);
}

static void matrices_are_read_without_bank_conflicts(void **state) {
    static const uint32_t dims[] = {64, 96, 128};
    struct shim_stats stats;

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(dims); i++) {
        struct attend_shape shape = shape_of(dims[i], 4, 1, 1);

        shim_stats_clear();
        assert_true(layer_error(&shape, ragged, 4, 0, 0, 1) <= CASE_BOUND);
        shim_stats("prefill_kernel", &stats);
        assert_true(stats.n_matrix_phases > 1000);
        assert_int_equal(stats.n_bank_conflicts, 0);
    }
}

static void planted_bugs_are_caught(void **state) {
    static const char *const bugs[] = {
        "late_copy_wait", "swizzle_on_one_side", "swapped_fragment",
        "no_mask",        "no_loop_barrier",     "no_query_barrier",
        "early_refill",   "wrong_causal_offset", "window_off_by_one"};
    static const struct backend_row rows[] = {{2, 0, 40, 230}};

    (void)state;
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(bugs); i++) {
        const char *bug = bugs[i / 2];
        struct attend_shape shape = shape_of(i & 1 ? 128 : 64, 2, 1, 1);
        uint32_t window = strcmp(bug, "window_off_by_one") ? 0 : 20;
        double worst;

        /* These queries stay in shared memory, and the loop's barrier is theirs, too. */
        if (shape.head_dim == 128 && !strcmp(bug, "no_query_barrier")) continue;
        shim_plant(bug);
        worst = layer_error(&shape, rows, 1, 0, window, 3);
        shim_plant(NULL);
        if (worst <= CASE_BOUND)
            print_error("%s was not caught, head_dim %u\n", bug, shape.head_dim);
        assert_true(worst > CASE_BOUND);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_rows_of_all_groups),
        cmocka_unit_test(few_tiles_are_split),
        cmocka_unit_test(windows_of_all_kinds),
        cmocka_unit_test(fixed_grids_compute_the_same),
        cmocka_unit_test(extreme_scores_stay_exact),
        cmocka_unit_test(deterministic_layers_are_attention),
        cmocka_unit_test(matrices_are_read_without_bank_conflicts),
        cmocka_unit_test(planted_bugs_are_caught),
    };

    attend_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
