/* tests/unit/cuda/shim/test_cuda_tp.c - a model over two pretended devices: the CUDA backend under
 * backend_tp, beside ref, which knows of no ranks.
 *
 * Its sums are rounded to bf16 between the ranks, so it agrees within the bounds of one device, not
 * to the bit; what is divided wrongly is off by whole logits. */
#include "tests/support/quant_matrix.h"
#include "tests/unit/cuda/shim/cuda_fixture.h"

static const struct cuda_fixture_setup setup = {.max_rows = 6, .max_step_tokens = 48, .tp_size = 2};

/* Prefill, chunks beside decode, decode alone. */
static void run_steps(struct cuda_fixture *s) {
    cuda_fixture_start(s, 0, 21);
    cuda_fixture_start(s, 3, 40);
    cuda_fixture_plan(s, 0, 21);
    cuda_fixture_plan(s, 3, 17);
    cuda_fixture_step(s);
    cuda_fixture_plan(s, 3, 23);
    cuda_fixture_plan(s, 0, 1);
    cuda_fixture_step(s);
    for (int i = 0; i < 3; i++) {
        cuda_fixture_plan(s, 0, 1);
        cuda_fixture_plan(s, 3, 1);
        cuda_fixture_step(s);
    }
    cuda_fixture_end(s, 0);
    cuda_fixture_plan(s, 3, 1);
    cuda_fixture_step(s);
}

static void check_shape(const struct tiny_shape *shape) {
    cuda_fixture_run_random_models(shape, &setup, run_steps);
}

static void two_devices_agree_with_the_reference(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.has_qkv_bias = shape.has_o_bias = true;
    check_shape(&shape);
}

/* A rank takes its rows of codes and scales, or its groups of inputs. */
static void two_devices_divide_quantised_matrices(void **state) {
    static const uint32_t kinds[] = {2, 4, 9};
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.d_ff = 256;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        shape.quant = &quant_kinds[kinds[i]];
        check_shape(&shape);
    }
}

/* With one scale a matrix, as files have it: each rank's part has it too. */
static void two_devices_multiply_e4m3_by_the_library(void **state) {
    static const struct quant_kind whole = {DTYPE_F8E4M3, 0, 0, false, false, QUANT_INPUTS_F8};
    struct tiny_shape shape = cuda_fixture_llama;
    struct cuda_fixture *s;
    struct backend_info info;

    (void)state;
    shape.d_model = 128;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.d_ff = 256;
    shape.quant = &whole;
    shim_set_sm(100);
    shim_set_product_us(1);
    shim_set_kernel_us("quant_tile_kernel", 1000);
    s = cuda_fixture_open_alone(&shape, &setup, 1);
    s->cuda.ops->info(s->cuda.dev, &info);
    cuda_fixture_close(s);
    if (!strstr(info.path, "sm_100+f8")) fail_msg("%s", info.path);
    check_shape(&shape);
    shim_set_kernel_us(NULL, 0);
    shim_set_product_us(0);
    shim_set_sm(90);
}

static void two_devices_share_a_kv_head(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.is_tied = shape.has_qk_norm = true;
    shape.sliding_window = 19;
    check_shape(&shape);
}

/* Two KV heads, one on each device with its scales; then one that both have. */
static void two_devices_have_quantised_caches(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.kv_dtype = DTYPE_F8E4M3;
    check_shape(&shape);
    shape.n_kv_heads = 1;
    shape.kv_dtype = DTYPE_I8;
    check_shape(&shape);
}

/* Ranks time their products together, and may choose alike or not: here their clocks agree. */
static void two_devices_choose_their_products_together(void **state) {
    (void)state;
    for (uint32_t product_us = 1; product_us <= 100; product_us += 99) {
        struct cuda_fixture *s;

        shim_set_product_us(product_us);
        s = cuda_fixture_open(&cuda_fixture_llama, &setup, 3);
        run_steps(s);
        cuda_fixture_close(s);
    }
    shim_set_product_us(0);
}

/* --- memory that devices seem to reach */

static void expect_note(const struct cuda_fixture *s, const char *words) {
    struct backend_info info;

    s->cuda.ops->info(s->cuda.dev, &info);
    if (words ? !strstr(info.note, words) : info.note[0] != '\0')
        fail_msg("'%s', wanted '%s'", info.note, words ? words : "");
}

/* Opens the model, and has NCCL make its sums: with the fault still there they are right. */
static void check_nccl(uint64_t seed, const char *words) {
    struct tiny_shape shape = cuda_fixture_llama;
    struct cuda_fixture *s;

    shim_set(seed, SHIM_COPIES_LATE);
    s = cuda_fixture_open(&shape, &setup, 7);
    expect_note(s, "NCCL sums over GPUs 0, 1, not their own memory: GPU ");
    expect_note(s, words);
    run_steps(s);
    cuda_fixture_close(s);
    shim_set(0, SHIM_COPIES_LATE);
}

static void devices_that_reach_each_other_sum_through_their_memory(void **state) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, 7);

    (void)state;
    expect_note(s, NULL);
    cuda_fixture_close(s);
}

static void devices_that_do_not_reach_each_other_sum_by_nccl(void **state) {
    (void)state;
    shim_set_peers(false);
    check_nccl(0, "does not reach the memory of the others");
    check_nccl(5, "does not reach the memory of the others");
    shim_set_peers(true);
}

static void memory_of_peers_that_is_not_as_announced_is_found_out(void **state) {
    static const struct {
        enum shim_peer_fault fault;
        const char *words;
    } cases[] = {
        {SHIM_PEERS_LOST, "has waited 5 s for a word from another"},
        {SHIM_PEERS_LATE, "has waited 5 s for a word from another"},
        {SHIM_PEERS_STALE, "reads other numbers there than were written"},
    };

    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        shim_set_peer_fault(cases[i / 2].fault);
        check_nccl(i % 2 * 9, cases[i / 2].words);
        shim_set_peer_fault(SHIM_PEERS_SOUND);
    }
}

static void peers_can_be_switched_off(void **state) {
    (void)state;
    assert_int_equal(setenv("INCIPIT_CUDA_PEERS", "0", 1), 0);
    check_nccl(0, "INCIPIT_CUDA_PEERS=0");
    assert_int_equal(unsetenv("INCIPIT_CUDA_PEERS"), 0);
}

/* A trial that ends the device, as an address that is not mapped does, ends the start with what to
 * do, at every rank. */
static void a_trial_that_fails_is_a_sentence(void **state) {
    struct backend_config config = {.ranks = &backend_cuda, .tp_size = 2};
    struct backend_device *dev = NULL;
    struct error err = {0};

    (void)state;
    shim_set_devices(2);
    shim_fail_launch(1);
    assert_int_equal(backend_tp.open(&dev, &config, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "set INCIPIT_CUDA_PEERS=0 in the environment"));
    shim_fail_launch(0);
    shim_set_devices(1);
    assert_null(dev);
}

/* Blocks are whole on the outside: out of one device into two, and back. */
static void move_blocks(enum dtype kv) {
    struct cuda_fixture_setup one = setup;
    struct cuda_fixture *a, *b;
    uint8_t *block, *back;
    uint64_t n;
    struct tiny_shape shape = cuda_fixture_llama;

    shape.n_kv_heads = 2;
    shape.kv_dtype = kv;
    one.tp_size = 0;
    a = cuda_fixture_open(&shape, &one, 5);
    b = cuda_fixture_open(&shape, &setup, 5);
    n = a->cuda.block_bytes;
    assert_int_equal(b->cuda.block_bytes, n);
    block = mem_alloc(n);
    back = mem_alloc(n);
    for (uint32_t i = 0; i < 5; i++) {
        for (uint64_t k = 0; k < n; k++)
            block[k] = (uint8_t)rng_u64(&a->rng);
        assert_int_equal(a->cuda.ops->kv_write(a->cuda.model, i, block, n), ST_OK);
        assert_int_equal(a->cuda.ops->kv_read(a->cuda.model, i, back, n), ST_OK);
        assert_int_equal(b->cuda.ops->kv_write(b->cuda.model, i, back, n), ST_OK);
        memset(back, 0, n);
        assert_int_equal(b->cuda.ops->kv_read(b->cuda.model, i, back, n), ST_OK);
        assert_memory_equal(back, block, n);
    }
    mem_free(block);
    mem_free(back);
    cuda_fixture_close(a);
    cuda_fixture_close(b);
}

static void blocks_move_between_one_device_and_two(void **state) {
    (void)state;
    move_blocks(DTYPE_BF16);
    move_blocks(DTYPE_F8E4M3);
    move_blocks(DTYPE_I8);
}

/* Whichever device it is and wherever in the step: the call that sees it ends, and so does all
 * that comes after. */
static void a_device_that_fails_leaves_no_rank_waiting(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth <= 16; nth += 5) {
        struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, nth);
        struct error err = {0};
        backend_fence fence;
        enum status st;

        cuda_fixture_start(s, 0, 21);
        cuda_fixture_plan(s, 0, 21);
        cuda_fixture_lay_out_plan(s, &s->cuda.stage[0], &s->step);
        shim_fail_launch(nth);
        st = backend_tp.submit(s->cuda.model, 0, &s->step, &fence, &err);
        if (st == ST_OK) st = backend_tp.wait(s->cuda.dev, fence, 10000000);
        assert_int_not_equal(st, ST_OK);
        assert_int_not_equal(st, ST_AGAIN);
        shim_fail_launch(0);
        cuda_fixture_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_devices_agree_with_the_reference),
        cmocka_unit_test(two_devices_divide_quantised_matrices),
        cmocka_unit_test(two_devices_multiply_e4m3_by_the_library),
        cmocka_unit_test(two_devices_share_a_kv_head),
        cmocka_unit_test(two_devices_have_quantised_caches),
        cmocka_unit_test(two_devices_choose_their_products_together),
        cmocka_unit_test(devices_that_reach_each_other_sum_through_their_memory),
        cmocka_unit_test(devices_that_do_not_reach_each_other_sum_by_nccl),
        cmocka_unit_test(memory_of_peers_that_is_not_as_announced_is_found_out),
        cmocka_unit_test(peers_can_be_switched_off),
        cmocka_unit_test(a_trial_that_fails_is_a_sentence),
        cmocka_unit_test(blocks_move_between_one_device_and_two),
        cmocka_unit_test(a_device_that_fails_leaves_no_rank_waiting),
    };

    return cmocka_run_group_tests_name("kernels/cuda, two ranks", tests, NULL, NULL);
}
