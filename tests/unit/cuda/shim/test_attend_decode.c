/* tests/unit/cuda/shim/test_attend_decode.c - the decode kernel against attention in
 * double. */
#include <stdio.h>

#include "tests/support/cm.h"
#include "tests/unit/cuda/shim/attend_case.h"

#define MAX_ITEMS 512

static const uint32_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 999};
static const uint32_t splits[] = {1, 2, 9};

/* One row per (length, splits), and a padding token. */
struct decode_case {
    struct attend_case c;
    struct backend_row rows[ARRAY_LEN(lengths) * ARRAY_LEN(splits)];
    struct attend_item *items; /* (MAX_ITEMS) */
    uint32_t n_items, n_partials;
};

/* The row's pages in n parts as even as can be; parts that get none are empty items. */
static void split_row(struct decode_case *d, const struct backend_row *row, uint32_t n) {
    uint32_t begin = case_row_start(&d->c, row), page = begin / ATTEND_PAGE;
    uint32_t n_pages = CEIL_DIV(row->context_len, ATTEND_PAGE) - page;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = (page + n_pages * i / n) * ATTEND_PAGE;
        uint32_t to = (page + n_pages * (i + 1) / n) * ATTEND_PAGE;

        assert_true(d->n_items < MAX_ITEMS);
        from = MAX(from, begin);
        to = MIN(to, row->context_len);
        d->items[d->n_items++] =
            (struct attend_item){.row = (int32_t)row->row,
                                 .first_token = (int32_t)row->first_token,
                                 .n_tokens = 1,
                                 .position = (int32_t)row->context_len - 1,
                                 .begin = (int32_t)MIN(from, to),
                                 .end = (int32_t)to,
                                 .partial = n == 1 ? -1 : (int32_t)(d->n_partials + i),
                                 .first_part = n == 1 ? 0 : (int32_t)d->n_partials,
                                 .n_parts = n == 1 ? 0 : (int32_t)n};
    }
    if (n > 1) d->n_partials += n;
}

static void decode_init(struct decode_case *d, uint32_t head_dim, uint32_t group, uint32_t n_kv,
                        uint32_t max_length, uint32_t window, uint64_t seed) {
    struct attend_shape shape = {group * n_kv, n_kv, head_dim, 64, 64, 132, false};
    uint32_t n = 0;

    memset(d, 0, sizeof(*d));
    d->items = mem_calloc(MAX_ITEMS, sizeof(*d->items));
    for (uint32_t l = 0; l < ARRAY_LEN(lengths); l++)
        for (uint32_t s = 0; s < ARRAY_LEN(splits); s++)
            if (lengths[l] <= max_length) {
                d->rows[n] = (struct backend_row){(n * 7 + 3) % 64, n, 1, lengths[l]};
                n++;
            }
    case_init(&d->c, &shape, d->rows, n, n + 1, window, n * 9, seed);
    for (uint32_t i = 0; i < n; i++) {
        split_row(d, &d->rows[i], splits[i % ARRAY_LEN(splits)]);
        d->items[d->n_items++].row = -1;
    }
    d->items[d->n_items++] = (struct attend_item){.first_token = (int32_t)n, .partial = -1};
}

static void decode_fini(struct decode_case *d) {
    case_fini(&d->c);
    mem_free(d->items);
}

static double decode_error(struct decode_case *d, const double *exact) {
    struct attend_args args = case_args(&d->c);

    case_poison(&d->c);
    attend_launch_decode(NULL, &args, d->items, d->n_items);
    return case_error(&d->c, exact);
}

/* The worst error over schedules: late and early copies, three seeds each. */
static double worst_error(struct decode_case *d) {
    double *exact = case_reference(&d->c), worst = 0;

    for (uint64_t seed = 1; seed <= 3; seed++)
        for (int copies = 0; copies < 2; copies++) {
            double error;

            shim_set(seed, copies ? SHIM_COPIES_EARLY : SHIM_COPIES_LATE);
            error = decode_error(d, exact);
            worst = MAX(worst, error);
        }
    mem_free(exact);
    return worst;
}

static void decode_is_attention(uint32_t head_dim, uint32_t group, uint32_t n_kv, uint32_t window) {
    static struct decode_case d;
    double worst;

    decode_init(&d, head_dim, group, n_kv, UINT32_MAX, window, head_dim * 31 + group);
    worst = worst_error(&d);
    if (!(worst <= CASE_BOUND))
        print_error("head_dim %u, group %u, window %u: error %.2e\n", head_dim, group, window,
                    worst);
    assert_true(worst <= CASE_BOUND);
    decode_fini(&d);
}

static void heads_of_64(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        decode_is_attention(64, (uint32_t[]){1, 4, 6, 7, 8, 16}[i], i < 3 ? 2 : 1, 0);
}

static void heads_of_96(void **state) {
    (void)state;
    decode_is_attention(96, 4, 2, 0);
    decode_is_attention(96, 9, 1, 0);
}

static void heads_of_128(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        decode_is_attention(128, (uint32_t[]){1, 4, 6, 7, 8, 16}[i], i < 2 ? 2 : 1, 0);
}

static void windows_begin_where_they_should(void **state) {
    static const uint32_t windows[] = {1, 16, 17, 100, 255, 257};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(windows); i++)
        decode_is_attention(i & 1 ? 128 : 64, 4, 1, windows[i]);
}

static void matrices_are_read_without_bank_conflicts(void **state) {
    static const uint32_t dims[] = {64, 96, 128};
    static struct decode_case d;
    struct shim_stats stats;
    struct attend_args args;

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(dims); i++) {
        decode_init(&d, dims[i], 4, 1, 257, 0, i);
        args = case_args(&d.c);
        shim_stats_clear();
        attend_launch_decode(NULL, &args, d.items, d.n_items);
        shim_stats("decode_kernel", &stats);
        assert_true(stats.n_matrix_phases > 1000);
        assert_int_equal(stats.n_bank_conflicts, 0);
        decode_fini(&d);
    }
}

/* A NaN of a row's own does not vanish: the sampler must see it. */
static void not_a_number_is_passed_on(void **state) {
    static struct decode_case d;
    double *exact;

    (void)state;
    decode_init(&d, 64, 4, 1, 17, 0, 5);
    exact = case_reference(&d.c);
    d.c.qkv[5] = 0x7FC0;
    decode_error(&d, exact);
    assert_true(isnan(f32_of_bf16(d.c.mix[0])));
    mem_free(exact);
    decode_fini(&d);
}

/* A graph runs them again and again. */
static void counters_are_zero_again(void **state) {
    static struct decode_case d;
    double *exact;

    (void)state;
    decode_init(&d, 64, 4, 2, 999, 0, 11);
    exact = case_reference(&d.c);
    for (int i = 0; i < 3; i++) {
        assert_true(decode_error(&d, exact) <= CASE_BOUND);
        for (uint32_t k = 0; k < d.c.n_partials * 2; k++)
            assert_int_equal(d.c.ended[k], 0);
    }
    mem_free(exact);
    decode_fini(&d);
}

static void planted_bugs_are_caught(void **state) {
    static const char *const bugs[] = {"late_copy_wait",          "swizzle_on_one_side",
                                       "swapped_fragment",        "no_tail_mask",
                                       "no_barrier_before_parts", "no_barrier_after_parts",
                                       "window_off_by_one",       "merge_too_early"};
    static struct decode_case d;

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(bugs); i++) {
        uint32_t window = strcmp(bugs[i], "window_off_by_one") ? 0 : 20;
        double worst;

        decode_init(&d, 64, 4, 1, 257, window, 9);
        shim_plant(bugs[i]);
        worst = worst_error(&d);
        shim_plant(NULL);
        if (worst <= CASE_BOUND) print_error("%s was not caught\n", bugs[i]);
        assert_true(worst > CASE_BOUND);
        decode_fini(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_of_64),
        cmocka_unit_test(heads_of_96),
        cmocka_unit_test(heads_of_128),
        cmocka_unit_test(windows_begin_where_they_should),
        cmocka_unit_test(matrices_are_read_without_bank_conflicts),
        cmocka_unit_test(not_a_number_is_passed_on),
        cmocka_unit_test(counters_are_zero_again),
        cmocka_unit_test(planted_bugs_are_caught),
    };

    attend_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
