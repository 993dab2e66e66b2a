/* tests/unit/cuda/shim/test_ops_blocks.c - copies of KV blocks, and changes of block tables. */
#include "kernels/cuda/ops/ops.h"
#include "tests/support/kernel_fixture.h"

static void run_copies(const void *args) {
    ops_copy_blocks(NULL, args);
}

/* Distinct blocks in pairs, in disorder; `want` is the pool as int32 after the copies. */
static void make_copies(struct kernel_fixture *k, struct copy_blocks_args *a, uint32_t n_blocks,
                        uint32_t block_bytes, uint32_t n_pairs) {
    uint32_t words = block_bytes / 4, n_words = n_blocks * words, block[128];
    struct backend_copy pair[64];
    float *want = kernel_fixture_floats(n_words);
    int32_t *kv;

    kernel_fixture_init(k, n_words + n_pairs);
    kv = kernel_fixture_room(k, (size_t)n_words * 4);
    for (uint32_t i = 0; i < n_words; i++) { /* exact as float */
        kv[i] = (int32_t)rng_below(&k->rng, 1 << 24);
        want[i] = (float)kv[i];
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t j = (uint32_t)rng_below(&k->rng, i + 1);

        block[i] = block[j];
        block[j] = i;
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        /* one source serves two: a block that is shared is copied for each writer */
        pair[i] = (struct backend_copy){block[i / 2], block[n_blocks - 1 - i]};
        memcpy(want + pair[i].dst * words, want + pair[i].src * words, words * sizeof(float));
    }
    *a = (struct copy_blocks_args){.kv = kv,
                                   .pairs = kernel_fixture_put(k, pair, n_pairs * sizeof(*pair)),
                                   .block_bytes = block_bytes,
                                   .n_pairs = n_pairs};
    kernel_fixture_want(k, kv, DTYPE_I32, want);
}

static void whole_blocks_are_copied(void **state) {
    static const uint32_t sizes[] = {16, 48, 16384, 16400, 40976};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (uint32_t n_pairs = 1; n_pairs <= 27; n_pairs += 13) {
            struct copy_blocks_args a;
            struct kernel_fixture k;

            make_copies(&k, &a, 42, sizes[i], n_pairs);
            kernel_fixture_check(&k, run_copies, &a);
            kernel_fixture_fini(&k);
        }
    }
}

/* --- both ends of a step */

static void run_stage(const void *args) {
    ops_stage(NULL, args);
}

static void make_stage(struct kernel_fixture *k, struct stage_args *a, uint32_t n_words,
                       uint32_t n_updates) {
    uint32_t n_rows = 60, stride = 600, *table, *from, *to;
    struct backend_table_update *update;
    float *want = kernel_fixture_floats((size_t)n_rows * stride);
    float *want_to = kernel_fixture_floats(n_words);

    kernel_fixture_init(k, n_words + n_updates);
    table = kernel_fixture_room(k, (size_t)n_rows * stride * 4);
    from = kernel_fixture_room(k, n_words * 4ull);
    to = kernel_fixture_room(k, n_words * 4ull);
    update = kernel_fixture_room(k, MAX(n_updates, 1u) * sizeof(*update));
    for (uint32_t i = 0; i < n_words; i++)
        want_to[i] = (float)(from[i] = i * 7919u % 1000003);
    for (uint32_t i = 0; i < n_rows * stride; i++)
        want[i] = (float)(int32_t)(table[i] = i % 1000);
    for (uint32_t i = 0; i < n_updates; i++) {
        uint32_t at = (i * 7919u + 13) % (n_rows * stride); /* none twice */

        update[i] = (struct backend_table_update){at / stride, at % stride,
                                                  (uint32_t)rng_below(&k->rng, 1 << 20)};
        want[at] = (float)update[i].block;
    }
    *a = (struct stage_args){.from = from,
                             .to = to,
                             .n_bytes = n_words * 4ull,
                             .table = table,
                             .update = update,
                             .n_updates = n_updates,
                             .table_stride = stride};
    kernel_fixture_want(k, table, DTYPE_I32, want);
    if (n_words) kernel_fixture_want(k, to, DTYPE_I32, want_to);
}

static void arrays_and_tables_are_staged(void **state) {
    static const uint32_t counts[][2] = {{16, 0}, {16, 1}, {4096, 300}, {80000, 5}, {32, 20000}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        struct stage_args a;
        struct kernel_fixture k;

        make_stage(&k, &a, counts[i][0], counts[i][1]);
        kernel_fixture_check(&k, run_stage, &a);
        kernel_fixture_fini(&k);
    }
}

static void run_fetch(const void *args) {
    ops_fetch(NULL, args);
}

static void make_fetch(struct kernel_fixture *k, struct fetch_args *a, uint32_t n_pieces,
                       uint32_t n) {
    *a = (struct fetch_args){.n_pieces = n_pieces};
    kernel_fixture_init(k, n);
    for (uint32_t p = 0; p < n_pieces; p++) {
        uint32_t n_words = p < 4 ? n : 5 * n, *from = kernel_fixture_room(k, n_words * 4ull);
        uint32_t *to = kernel_fixture_room(k, n_words * 4ull);
        float *want = kernel_fixture_floats(n_words);

        for (uint32_t i = 0; i < n_words; i++)
            want[i] = (float)(from[i] = i * 31 + p);
        a->piece[p] = (struct fetch_piece){from, to, n_words};
        kernel_fixture_want(k, to, DTYPE_I32, want);
    }
}

static void outputs_are_fetched(void **state) {
    static const uint32_t counts[][2] = {{4, 1}, {4, 256}, {6, 7}, {6, 4000}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        struct fetch_args a;
        struct kernel_fixture k;

        make_fetch(&k, &a, counts[i][0], counts[i][1]);
        kernel_fixture_check(&k, run_fetch, &a);
        kernel_fixture_fini(&k);
    }
}

static void block_planted_bugs_are_caught(void **state) {
    struct stage_args u;
    struct fetch_args f;
    struct copy_blocks_args c;
    struct kernel_fixture k;

    (void)state;
    make_copies(&k, &c, 42, 16400, 3);
    assert_true(kernel_fixture_catches(&k, "copy_no_tail", run_copies, &c));
    kernel_fixture_fini(&k);
    make_stage(&k, &u, 80000, 20000);
    assert_true(kernel_fixture_catches(&k, "update_once", run_stage, &u));
    assert_true(kernel_fixture_catches(&k, "stage_once", run_stage, &u));
    kernel_fixture_fini(&k);
    make_fetch(&k, &f, 6, 9);
    assert_true(kernel_fixture_catches(&k, "fetch_first_piece", run_fetch, &f));
    kernel_fixture_fini(&k);
}

static void nothing_is_launched_for_nothing(void **state) {
    (void)state;
    ops_copy_blocks(NULL, &(struct copy_blocks_args){.block_bytes = 16});
    ops_stage(NULL, &(struct stage_args){.table_stride = 1});
    ops_fetch(NULL, &(struct fetch_args){.n_pieces = 4});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_blocks_are_copied),
        cmocka_unit_test(arrays_and_tables_are_staged),
        cmocka_unit_test(outputs_are_fetched),
        cmocka_unit_test(block_planted_bugs_are_caught),
        cmocka_unit_test(nothing_is_launched_for_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
