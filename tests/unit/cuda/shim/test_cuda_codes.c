/* tests/unit/cuda/shim/test_cuda_codes.c - quantised caches in the whole backend, beside ref with
 * the same type of cache. The pool begins as ff throughout: NaN codes, NaN scales. */
#include "kernels/kv_quant.h"
#include "tests/unit/cuda/shim/cuda_fixture.h"

static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};
static const struct cuda_fixture_setup setup = {
    .max_rows = 6, .max_step_tokens = 64, .n_host_blocks = 20, .n_slots = 2};

/* Prompts, chunks beside decode, decode alone, in and out of blocks. */
static void run_steps(struct cuda_fixture *s) {
    cuda_fixture_start(s, 0, 33);
    cuda_fixture_start(s, 3, 40);
    cuda_fixture_start(s, 5, 1);
    cuda_fixture_plan(s, 0, 33);
    cuda_fixture_plan(s, 3, 17);
    cuda_fixture_step(s);
    cuda_fixture_plan(s, 3, 23);
    cuda_fixture_plan(s, 0, 1);
    cuda_fixture_plan(s, 5, 1);
    cuda_fixture_step(s);
    for (int i = 0; i < 9; i++) {
        cuda_fixture_plan(s, 0, 1);
        cuda_fixture_plan(s, 3, 1);
        cuda_fixture_plan(s, 5, 1);
        cuda_fixture_step(s);
    }
}

static void steps_agree_with_the_reference(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct tiny_shape shape = cuda_fixture_llama;
        struct cuda_fixture_setup loose = setup;

        shape.kv_dtype = types[i];
        cuda_fixture_run_random_models(&shape, &setup, run_steps);
        loose.is_deterministic = true;
        cuda_fixture_run_random_models(&shape, &loose, run_steps);
        shape.n_heads = 6;
        shape.n_kv_heads = 2;
        shape.has_qkv_bias = true;
        shape.sliding_window = 19;
        cuda_fixture_run_random_models(&shape, &setup, run_steps);
        shape.head_dim = 96;
        cuda_fixture_run_random_models(&shape, &setup, run_steps);
        shape.head_dim = 128;
        cuda_fixture_run_random_models(&shape, &setup, run_steps);
    }
}

/* bf16 blocks in the bytes of one hundred quantised ones. */
static double bf16_ratio(enum dtype kv, uint32_t head_dim) {
    struct tiny_shape shape = cuda_fixture_llama;
    struct cuda_fixture *s;
    double bytes[2];

    shape.head_dim = head_dim;
    for (int i = 0; i < 2; i++) {
        shape.kv_dtype = i ? kv : DTYPE_BF16;
        s = cuda_fixture_open_alone(&shape, &setup, 3);
        bytes[i] = (double)backend_cuda.kv_block_bytes(s->cuda.model);
        assert_int_equal(bytes[i], s->cuda.block_bytes);
        cuda_fixture_close(s);
    }
    return bytes[0] / bytes[1];
}

static void about_twice_as_many_blocks_fit(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        assert_true(bf16_ratio(types[i], 64) >= 1.96);
        assert_true(bf16_ratio(types[i], 128) >= 1.98);
    }
}

static void read_block(struct cuda_fixture *s, uint32_t block, uint8_t *bytes) {
    assert_int_equal(backend_cuda.kv_read(s->cuda.model, block, bytes, s->cuda.block_bytes), ST_OK);
}

/* Written, copied within the pool, out to host memory and in elsewhere: trailer and all. */
static void blocks_keep_every_byte(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct tiny_shape shape = cuda_fixture_llama;
        struct backend_copy pairs[] = {{1, 2}, {2, 7}, {7, 3}};
        struct cuda_fixture *s;
        uint8_t *want, *got;
        backend_fence f;

        shape.kv_dtype = types[i];
        shape.n_kv_heads = 2;
        s = cuda_fixture_open_alone(&shape, &setup, 3 + i);
        want = mem_alloc(s->cuda.block_bytes);
        got = mem_alloc(s->cuda.block_bytes);
        for (uint64_t k = 0; k < s->cuda.block_bytes; k++)
            want[k] = (uint8_t)rng_u64(&s->rng);
        assert_int_equal(backend_cuda.kv_write(s->cuda.model, 1, want, s->cuda.block_bytes), ST_OK);
        assert_int_equal(backend_cuda.kv_copy(s->cuda.model, &pairs[0], 1, &f), ST_OK);
        assert_int_equal(backend_cuda.kv_swap_out(s->cuda.model, &pairs[1], 1, &f), ST_OK);
        assert_int_equal(backend_cuda.kv_swap_in(s->cuda.model, &pairs[2], 1, &f), ST_OK);
        for (uint32_t block = 1; block <= 3; block++) {
            memset(got, 0, s->cuda.block_bytes);
            read_block(s, block, got);
            assert_memory_equal(got, want, s->cuda.block_bytes);
        }
        mem_free(want);
        mem_free(got);
        cuda_fixture_close(s);
    }
}

/* A token changes its own codes and scales, and no other byte of its block. */
static void an_append_leaves_the_rest_of_a_block(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct tiny_shape shape = cuda_fixture_llama;
        struct cuda_fixture *s;
        uint8_t *before, *after;
        uint64_t n_changed = 0, n_most;

        shape.kv_dtype = types[i];
        s = cuda_fixture_open_alone(&shape, &setup, 3 + i);
        cuda_fixture_poison(&s->cuda, s->setup.n_blocks);
        before = mem_alloc(s->cuda.block_bytes);
        after = mem_alloc(s->cuda.block_bytes);
        cuda_fixture_start(s, 0, 9);
        cuda_fixture_plan(s, 0, 9);
        cuda_fixture_step(s);
        read_block(s, s->seq[0].block[0], before);
        cuda_fixture_plan(s, 0, 1);
        cuda_fixture_step(s);
        read_block(s, s->seq[0].block[0], after);
        n_most = s->cuda.block_bytes / CUDA_FIXTURE_BLOCK; /* of a token */
        for (uint64_t k = 0; k < s->cuda.block_bytes; k++) {
            if (before[k] == after[k]) continue;
            assert_int_equal(before[k], 0xFF);
            n_changed++;
        }
        assert_in_range(n_changed, n_most * 9 / 10, n_most);
        mem_free(before);
        mem_free(after);
        cuda_fixture_close(s);
    }
}

/* A vector that was not finite when it was stored is known by its codes, and flags the answer. */
static void marked_vectors_flag_the_answer(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(types); i++) {
        struct tiny_shape shape = cuda_fixture_llama;
        struct geometry g = {.n_layers = 2, .n_kv_heads = 1, .head_dim = 64};
        float vector[64] = {[3] = NAN};
        struct cuda_fixture *s;
        uint8_t *block;

        shape.kv_dtype = g.kv_dtype = types[i / 2];
        s = cuda_fixture_open_alone(&shape, &setup, 3 + i);
        block = mem_alloc(s->cuda.block_bytes);
        cuda_fixture_start(s, 0, 20);
        cuda_fixture_plan(s, 0, 20);
        cuda_fixture_step(s);
        assert_int_equal(s->cuda.stage[0].out_flags[0], 0);
        read_block(s, s->seq[0].block[0], block);
        kv_quantise(g.kv_dtype, vector, 64,
                    block + kv_tile_at(&g, CUDA_FIXTURE_BLOCK, 0, i & 1, 0) + 5 * 64,
                    block + kv_scales_at(&g, CUDA_FIXTURE_BLOCK, 0, i & 1, 0) + 5);
        assert_int_equal(
            backend_cuda.kv_write(s->cuda.model, s->seq[0].block[0], block, s->cuda.block_bytes),
            ST_OK);
        cuda_fixture_plan(s, 0, 1);
        cuda_fixture_step(s);
        assert_int_equal(s->cuda.stage[0].out_flags[0] & OUT_NOT_FINITE, OUT_NOT_FINITE);
        mem_free(block);
        cuda_fixture_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_agree_with_the_reference),
        cmocka_unit_test(about_twice_as_many_blocks_fit),
        cmocka_unit_test(blocks_keep_every_byte),
        cmocka_unit_test(an_append_leaves_the_rest_of_a_block),
        cmocka_unit_test(marked_vectors_flag_the_answer),
    };

    return cmocka_run_group_tests_name("kernels/cuda, quantised caches", tests, NULL, NULL);
}
