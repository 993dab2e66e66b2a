/* tests/unit/kernels/test_host_kv.c - whole blocks to host memory and back, byte for byte, on every
 * backend of the host; sim, which keeps bytes of its own kind, checks and counts alike. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/support/tiny_model.h"

#define N_BLOCKS 48

static const struct tiny_shape shape = {.n_layers = 2,
                                        .d_model = 32,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .d_ff = 40,
                                        .vocab = 128,
                                        .max_context = 96,
                                        .is_tied = true,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};
/* Blocks of 64 KiB: enough of them at once go the way of large moves. */
static const struct tiny_shape wide = {.n_layers = 2,
                                       .d_model = 64,
                                       .n_heads = 8,
                                       .n_kv_heads = 8,
                                       .head_dim = 64,
                                       .d_ff = 64,
                                       .vocab = 128,
                                       .max_context = 96,
                                       .is_tied = true,
                                       .weight_dtype = DTYPE_BF16,
                                       .kv_dtype = DTYPE_BF16};

static void open_model(struct tiny_model *m, const struct backend_ops *ops,
                       const struct tiny_shape *s) {
    struct tiny_setup setup = {ops, NULL, 1, 16, 8, 64};

    setup.n_host_blocks = N_BLOCKS;
    tiny_open(m, &setup, s, 1); /* 8 rows of 6 blocks, and the null block */
}

static void fill_block(struct tiny_model *m, uint32_t block, uint8_t *bytes, uint64_t n,
                       struct rng *rng) {
    for (uint64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)rng_u64(rng);
    assert_int_equal(m->setup.ops->kv_write(m->model, block, bytes, n), ST_OK);
}

static void assert_block(struct tiny_model *m, uint32_t block, const uint8_t *bytes, uint64_t n) {
    uint8_t *found = mem_alloc(n);

    assert_int_equal(m->setup.ops->kv_read(m->model, block, found, n), ST_OK);
    assert_memory_equal(found, bytes, n);
    mem_free(found);
}

/* Case 95 of tests/conformance: out to places in another order, other content over them, back into
 * other blocks. */
static void round_trip(const struct backend_ops *ops, const struct tiny_shape *s) {
    struct backend_copy out[N_BLOCKS], in[N_BLOCKS];
    struct tiny_model m;
    backend_fence fence, last = 0;
    struct rng rng;
    uint8_t *bytes;
    uint64_t n;

    open_model(&m, ops, s);
    rng_seed(&rng, support_seed());
    n = ops->kv_block_bytes(m.model);
    bytes = mem_alloc(N_BLOCKS * n);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        fill_block(&m, i, bytes + i * n, n, &rng);
        out[i] = (struct backend_copy){i, (i * 29 + 5) % N_BLOCKS};
        in[i] = (struct backend_copy){out[i].dst, (i * 31 + 7) % N_BLOCKS};
    }
    assert_int_equal(ops->kv_swap_out(m.model, out, N_BLOCKS, &last), ST_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        uint8_t *others = mem_alloc(n);

        fill_block(&m, i, others, n, &rng);
        mem_free(others);
    }
    assert_int_equal(ops->kv_swap_in(m.model, in, N_BLOCKS, &fence), ST_OK);
    assert_true(fence > last);
    assert_int_equal(ops->wait(m.dev, fence, 1000000), ST_OK);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        assert_block(&m, in[i].dst, bytes + i * n, n);
    mem_free(bytes);
    tiny_close(&m);
}

static void case_95_a_round_trip_keeps_the_bytes(void **state) {
    (void)state;
    round_trip(&backend_ref, &shape);
    round_trip(&backend_ref, &wide);
    round_trip(&backend_cpu, &shape);
    round_trip(&backend_cpu, &wide);
    for (int type = DTYPE_F8E4M3; type <= DTYPE_I8; type++) { /* scales move with their block */
        struct tiny_shape quantised[2] = {shape, wide};

        quantised[0].kv_dtype = quantised[1].kv_dtype = (enum dtype)type;
        round_trip(&backend_ref, &quantised[0]);
        round_trip(&backend_cpu, &quantised[1]);
    }
}

/* What a swap brought out lies in host memory as kv_read gives it; what is put there comes in. */
static void check_address(const struct backend_ops *ops, const struct tiny_shape *s) {
    struct backend_copy out = {3, 5}, in = {6, 4};
    struct tiny_model m;
    backend_fence fence;
    struct rng rng;
    uint8_t *bytes;
    uint64_t n;

    open_model(&m, ops, s);
    rng_seed(&rng, support_seed());
    n = ops->kv_block_bytes(m.model);
    bytes = mem_alloc(n);
    fill_block(&m, 3, bytes, n, &rng);
    assert_int_equal(ops->kv_swap_out(m.model, &out, 1, &fence), ST_OK);
    assert_int_equal(ops->wait(m.dev, fence, 1000000), ST_OK);
    assert_memory_equal(m.host_pool + 5 * n, bytes, n);
    for (uint64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)rng_u64(&rng);
    memcpy(m.host_pool + 6 * n, bytes, n);
    assert_int_equal(ops->kv_swap_in(m.model, &in, 1, &fence), ST_OK);
    assert_int_equal(ops->wait(m.dev, fence, 1000000), ST_OK);
    assert_block(&m, 4, bytes, n);
    mem_free(bytes);
    tiny_close(&m);
}

static void host_blocks_have_an_address(void **state) {
    struct tiny_shape quantised = shape;

    (void)state;
    quantised.kv_dtype = DTYPE_F8E4M3;
    check_address(&backend_ref, &shape);
    check_address(&backend_cpu, &wide);
    check_address(&backend_cpu, &quantised);
}

/* In one call, a block may be the target of one pair and the source of the next. */
static void pairs_run_in_their_order(void **state) {
    struct backend_copy chain[] = {{1, 2}, {2, 3}, {3, 1}};
    uint8_t bytes[3][4096];
    struct tiny_model m;
    backend_fence fence;
    struct rng rng;
    uint64_t n;

    (void)state;
    open_model(&m, &backend_cpu, &shape);
    rng_seed(&rng, support_seed());
    n = backend_cpu.kv_block_bytes(m.model);
    assert_true(n <= sizeof(bytes[0]));
    for (uint32_t i = 0; i < 3; i++)
        fill_block(&m, i + 1, bytes[i], n, &rng);
    assert_int_equal(backend_cpu.kv_copy(m.model, chain, 3, &fence), ST_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_block(&m, i + 1, bytes[0], n);
    tiny_close(&m);
}

static void a_bad_pair_moves_nothing(void **state) {
    const struct backend_ops *const all[] = {&backend_ref, &backend_cpu, &backend_sim};

    (void)state;
    for (size_t b = 0; b < ARRAY_LEN(all); b++) {
        struct backend_copy pairs[] = {{1, 2}, {1, 10000}}, back[] = {{2, 3}};
        uint8_t before[4096], zeros[4096] = {0};
        struct tiny_model m;
        backend_fence fence;
        struct rng rng;
        uint64_t n;

        open_model(&m, all[b], &shape);
        rng_seed(&rng, support_seed());
        n = all[b]->kv_block_bytes(m.model);
        assert_int_equal(all[b]->kv_swap_out(m.model, pairs, 2, &fence), ST_INVALID);
        assert_int_equal(all[b]->kv_swap_in(m.model, pairs, 2, &fence), ST_INVALID);
        assert_int_equal(all[b]->kv_copy(m.model, pairs, 2, &fence), ST_INVALID);
        pairs[1] = (struct backend_copy){N_BLOCKS + 1, 0}; /* one more than the device has */
        assert_int_equal(all[b]->kv_swap_out(m.model, pairs, 2, &fence), ST_INVALID);
        pairs[1] = (struct backend_copy){N_BLOCKS, 0}; /* one more than the host has */
        assert_int_equal(all[b]->kv_swap_in(m.model, pairs, 2, &fence), ST_INVALID);
        if (all[b] != &backend_sim) {
            fill_block(&m, 1, before, n, &rng);
            assert_int_equal(all[b]->kv_swap_out(m.model, pairs, 0, &fence), ST_OK);
            pairs[1] = (struct backend_copy){10000, 0};
            assert_int_equal(all[b]->kv_write(m.model, 3, zeros, n), ST_OK);
            assert_int_equal(all[b]->kv_swap_out(m.model, &(struct backend_copy){3, 2}, 1, &fence),
                             ST_OK);
            assert_int_equal(all[b]->kv_swap_out(m.model, pairs, 2, &fence), ST_INVALID);
            assert_int_equal(all[b]->kv_swap_in(m.model, back, 1, &fence), ST_OK);
            assert_block(&m, 3, zeros, n); /* not block 1's: the first pair did not run either */
        }
        tiny_close(&m);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_95_a_round_trip_keeps_the_bytes),
        cmocka_unit_test(host_blocks_have_an_address),
        cmocka_unit_test(pairs_run_in_their_order),
        cmocka_unit_test(a_bad_pair_moves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
