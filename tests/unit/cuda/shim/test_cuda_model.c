/* tests/unit/cuda/shim/test_cuda_model.c - decoders of all kinds, on the CUDA backend and on ref.
 *
 * Each shape runs the same steps: two prompts, one whole and one in pieces, in steps that
 * mix them with decoding; then decoding alone, through the graphs of several buckets. */
#include "tests/unit/cuda/shim/cuda_fixture.h"

static const struct cuda_fixture_setup setup = {.max_rows = 6, .max_step_tokens = 48};

/* Four sequences, so that there are steps of one token, of a few, and of many. */
static void run_steps(struct cuda_fixture *s) {
    cuda_fixture_start(s, 0, 21);
    cuda_fixture_start(s, 3, 40);
    cuda_fixture_plan(s, 0, 21);
    cuda_fixture_plan(s, 3, 17);
    cuda_fixture_step(s);
    cuda_fixture_plan(s, 3, 23);
    cuda_fixture_plan(s, 0, 1);
    cuda_fixture_step(s);
    cuda_fixture_start(s, 1, 1);
    cuda_fixture_start(s, 5, 9);
    for (int i = 0; i < 3; i++) {
        for (uint32_t q = 0; q < 6; q++) {
            if (s->seq[q].is_live) cuda_fixture_plan(s, q, cuda_fixture_left(s, q));
        }
        cuda_fixture_step(s);
    }
    cuda_fixture_end(s, 3);
    for (int i = 0; i < 2; i++) {
        cuda_fixture_plan(s, 5, 1);
        cuda_fixture_step(s);
    }
}

static void check_shape(const struct tiny_shape *shape) {
    cuda_fixture_run_random_models(shape, &setup, run_steps);
}

static void llama_agrees_with_the_reference(void **state) {
    (void)state;
    check_shape(&cuda_fixture_llama);
}

static void head_dim_128_and_groups_of_four_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.head_dim = 128;
    shape.n_heads = 4;
    check_shape(&shape);
}

static void biases_and_a_tied_head_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.has_qkv_bias = shape.has_o_bias = shape.is_tied = true;
    shape.n_heads = 6;
    shape.n_kv_heads = 2;
    check_shape(&shape);
}

static void norms_of_heads_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.has_qk_norm = true;
    shape.n_kv_heads = 2;
    check_shape(&shape);
}

static void sliding_windows_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.sliding_window = 19;
    check_shape(&shape);
}

/* A checkpoint in f32 or f16 is rounded as it comes. */
static void wider_checkpoints_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.weight_dtype = DTYPE_F32;
    shape.vocab = 257;
    check_shape(&shape);
}

/* Other products have other bits: the path names them. */
static void without_a_library_own_products_serve(void **state) {
    struct backend_info info;
    struct cuda_fixture *s;

    (void)state;
    shim_set_library(false);
    check_shape(&cuda_fixture_llama);
    s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, 1);
    backend_cuda.info(s->cuda.dev, &info);
    assert_string_equal(info.path, "sm_90+own");
    cuda_fixture_close(s);
    shim_set_library(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_agrees_with_the_reference),
        cmocka_unit_test(head_dim_128_and_groups_of_four_agree),
        cmocka_unit_test(biases_and_a_tied_head_agree),
        cmocka_unit_test(norms_of_heads_agree),
        cmocka_unit_test(sliding_windows_agree),
        cmocka_unit_test(wider_checkpoints_agree),
        cmocka_unit_test(without_a_library_own_products_serve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
