/* tests/unit/cuda/shim/test_cuda_model.c - decoders of all kinds, on the CUDA backend and on ref.
 *
 * Each shape runs the same steps: two prompts, one whole and one in pieces, in steps that
 * mix them with decoding; then decoding alone, through the graphs of several buckets. */
#include "tests/support/quant_matrix.h"
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

/* Codes, scales, zeros and orders of every kind that checkpoints have, by few rows and by many. */
static void quantised_models_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.d_model = 128;
    shape.n_heads = 2;
    shape.d_ff = 160;
    for (size_t i = 0; i < QUANT_KINDS; i++) {
        shape.quant = &quant_kinds[i];
        shape.is_tied = i % 3 == 0;
        shape.has_qkv_bias = shape.has_o_bias = i % 2;
        check_shape(&shape);
    }
}

static const char *path_of(const struct tiny_shape *shape, const struct cuda_fixture_setup *how,
                           struct backend_info *info) {
    struct cuda_fixture *s = cuda_fixture_open_alone(shape, how, 1);

    backend_cuda.info(s->cuda.dev, info);
    cuda_fixture_close(s);
    return info->path;
}

/* The library multiplies in the steps themselves, not only while it is tuned. */
static void count_steps(struct cuda_fixture *s) {
    struct shim_calls before, after;

    s->cuda.model->n_spans = 0; /* no graphs of prompts */
    shim_calls(&before);
    run_steps(s);
    shim_calls(&after);
    /* two layers of four matrices, or of seven, in each of two steps; decode has few rows */
    assert_in_range(after.n_products - before.n_products, 2 * 2 * 4, 2 * 2 * 7);
}

/* Own tiles are slow here, so steps of prompts take the library's products, with inputs rounded to
 * e4m3; the reference does not round them. The scales are of outputs, blocks and matrices. */
static void e4m3_products_by_the_library_agree(void **state) {
    static const struct quant_kind whole = {DTYPE_F8E4M3, 0, 0, false, false, QUANT_INPUTS_F8};
    const struct quant_kind *const kinds[] = {&quant_kinds[1], &quant_kinds[2], &whole};
    struct tiny_shape shape = cuda_fixture_llama;
    struct backend_info info;

    (void)state;
    shape.d_model = 128;
    shape.n_heads = shape.n_kv_heads = 2;
    shape.d_ff = 256;
    shim_set_product_us(1);
    shim_set_kernel_us("quant_tile_kernel", 1000);
    for (uint32_t i = 0; i < ARRAY_LEN(kinds); i++) {
        shape.quant = kinds[i];
        for (uint32_t sm = 90; sm <= (i == 2 ? 100 : 90); sm += 10) {
            shim_set_sm(sm);
            assert_string_equal(path_of(&shape, &setup, &info),
                                sm == 90 ? "sm_90+f8" : "sm_100+f8");
            cuda_fixture_run_random_models(&shape, &setup, count_steps);
        }
        shim_set_sm(90);
    }
    shim_set_kernel_us(NULL, 0);
    shim_set_product_us(0);
}

/* In deterministic mode, of a checkpoint that rounds no inputs, on a device without the scales,
 * with sizes that the library lacks, without a clock, and where own tiles are faster. What the
 * library lacks is noted, for the log. */
static void other_e4m3_products_are_own(void **state) {
    struct tiny_shape shape = cuda_fixture_llama, odd = shape, plain = shape;
    struct cuda_fixture_setup strict = setup;
    struct backend_info info;

    (void)state;
    strict.is_deterministic = true;
    shape.quant = odd.quant = &quant_kinds[1];
    plain.quant = &quant_kinds[0];
    odd.d_model = 72;
    odd.d_ff = 48;
    odd.n_kv_heads = 2;
    assert_string_equal(path_of(&shape, &setup, &info), "sm_90"); /* no clock */
    shim_set_product_us(1);
    assert_string_equal(path_of(&shape, &setup, &info), "sm_90"); /* own tiles are faster */
    shim_set_kernel_us("quant_tile_kernel", 1000);
    assert_string_equal(path_of(&shape, &setup, &info), "sm_90+f8");
    assert_string_equal(info.note, "");
    assert_string_equal(path_of(&shape, &strict, &info), "sm_90");
    assert_string_equal(info.note, ""); /* which was asked for */
    assert_string_equal(path_of(&plain, &setup, &info), "sm_90");
    assert_string_equal(info.note, "");
    assert_string_equal(path_of(&odd, &setup, &info), "sm_90");
    assert_non_null(strstr(info.note, "own kernels compute matrix products of e4m3 codes"));
    shim_set_sm(100);
    assert_string_equal(path_of(&shape, &setup, &info), "sm_100");
    assert_non_null(strstr(info.note, "own kernels compute matrix products of e4m3 codes"));
    shim_set_sm(90);
    shim_set_library(false);
    assert_string_equal(path_of(&shape, &setup, &info), "sm_90");
    shim_set_library(true);
    shim_set_kernel_us(NULL, 0);
    shim_set_product_us(0);
}

/* One device, and two ranks. */
static void own_products_serve_where_the_librarys_gave_room(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;
    struct cuda_fixture_setup small = setup;
    struct backend_info info;

    (void)state;
    shape.d_model = 128;
    shape.n_heads = shape.n_kv_heads = 2;
    shape.d_ff = 256;
    shape.quant = &quant_kinds[1];
    small.gives_room = true;
    shim_set_product_us(1);
    shim_set_kernel_us("quant_tile_kernel", 1000);
    assert_string_equal(path_of(&shape, &small, &info), "sm_90");
    assert_non_null(strstr(info.note, "there is no room for the KV cache"));
    cuda_fixture_run_random_models(&shape, &small, run_steps);
    small.tp_size = 2;
    cuda_fixture_run_random_models(&shape, &small, run_steps);
    shim_set_kernel_us(NULL, 0);
    shim_set_product_us(0);
}

/* What the library refuses in service, own products make. */
static void e4m3_products_that_are_refused_are_own(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;
    struct cuda_fixture *s;

    (void)state;
    shape.quant = &quant_kinds[1];
    shim_set_product_us(1);
    shim_set_kernel_us("quant_tile_kernel", 1000);
    s = cuda_fixture_open(&shape, &setup, 1);
    assert_true(s->cuda.model->library.scratch != NULL);
    shim_refuse_codes(true);
    s->cuda.model->n_spans = 0; /* recorded steps have been taken already */
    cuda_fixture_poison(&s->cuda, s->setup.n_blocks);
    run_steps(s); /* within the bounds of own products */
    cuda_fixture_close(s);
    shim_refuse_codes(false);
    shim_set_kernel_us(NULL, 0);
    shim_set_product_us(0);
}

/* Modules that a checkpoint leaves plain: bf16 beside codes. */
static void models_of_both_kinds_of_matrices_agree(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.quant = &quant_kinds[9];
    shape.plain_roles = 1u << ROLE_O | 1u << ROLE_LM_HEAD;
    check_shape(&shape);
    shape.plain_roles = 1u << ROLE_Q | 1u << ROLE_K | 1u << ROLE_V | 1u << ROLE_DOWN;
    check_shape(&shape);
}

/* As worker/model lists them. */
static void fill_formats(const struct tiny_shape *s, struct matrix_format *format) {
    uint32_t all = 1u << 20;

    memset(format, 0, 2 * ROLE_COUNT * sizeof(*format));
    for (uint32_t i = 0; i < 2 * ROLE_COUNT; i++) {
        if (s->plain_roles >> i % ROLE_COUNT & 1) continue;
        format[i] = (struct matrix_format){s->quant->dtype, s->quant->inputs,
                                           s->quant->group_k ? s->quant->group_k : all};
    }
}

static enum status check_formats(const struct tiny_shape *shape, struct error *err) {
    float inv_freq[32];
    uint8_t layer_kind[2];
    struct matrix_format format[2 * ROLE_COUNT];
    struct geometry g = tiny_geometry(shape, inv_freq, layer_kind);
    struct backend_limits limits = cuda_fixture_limits(&setup, shape);

    fill_formats(shape, format);
    g.format = format;
    return backend_cuda.check(&(struct backend_config){0}, &g, &limits, err);
}

/* Before the weights are read where the formats are known, by check and at load; else when the
 * tensor comes. */
static void check_refused(const struct tiny_shape *shape, const char *sentence) {
    float inv_freq[32];
    uint8_t layer_kind[2];
    struct matrix_format format[2 * ROLE_COUNT];
    struct geometry g = tiny_geometry(shape, inv_freq, layer_kind);
    struct backend_limits limits = cuda_fixture_limits(&setup, shape);
    struct backend_config config = {0};
    struct backend_device *dev;
    struct backend_model *model;
    struct error err = {0};

    assert_int_equal(check_formats(shape, &err), ST_UNSUPPORTED);
    if (!strstr(err.message, sentence)) fail_msg("%s", err.message);
    assert_int_equal(backend_cuda.open(&dev, &config, &err), ST_OK);
    fill_formats(shape, format);
    g.format = format;
    assert_int_equal(backend_cuda.load_begin(dev, &model, &g, &limits, &err), ST_UNSUPPORTED);
    if (!strstr(err.message, sentence)) fail_msg("%s", err.message);
    g.format = NULL;
    assert_int_equal(backend_cuda.load_begin(dev, &model, &g, &limits, &err), ST_OK);
    assert_int_equal(tiny_load(&backend_cuda, model, shape, 1, ROLE_COUNT, &err), ST_UNSUPPORTED);
    if (!strstr(err.message, sentence)) fail_msg("%s", err.message);
    backend_cuda.unload(model);
    backend_cuda.close(dev);
}

static void matrices_that_cannot_be_multiplied_at_once_are_refused(void **state) {
    static const struct quant_kind thin = {DTYPE_U4, 1, 16, false, false, QUANT_INPUTS_PLAIN};
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.quant = &quant_kinds[9];
    shape.plain_roles = 1u << ROLE_K;
    check_refused(&shape, "it has another type than the matrix");
    shape.plain_roles = 0;
    shape.d_ff = 88;
    check_refused(&shape, "weight up, layer 0: the cuda backend takes gate and up of");
    shape.d_ff = 96;
    assert_int_equal(check_formats(&shape, NULL), ST_OK);
    shape.quant = &thin;
    check_refused(&shape, "takes groups of a multiple of 32 inputs");
}

/* Codes take the memory of codes. */
static void quantised_models_take_less_memory(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;
    uint64_t n_bytes[2];

    (void)state;
    shape.d_model = 256;
    shape.d_ff = 512;
    for (int i = 0; i < 2; i++) {
        struct cuda_fixture *s;

        if (i) shape.quant = &quant_kinds[8];
        s = cuda_fixture_open_alone(&shape, &setup, 1);
        n_bytes[i] = s->cuda.dev->bytes;
        cuda_fixture_close(s);
    }
    /* 2 layers of 3 * 512 * 256 + 2.5 * 128 * 256 weights and a head: 1.5 bytes each less */
    assert_true(n_bytes[1] + 1200000 < n_bytes[0]);
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
        cmocka_unit_test(quantised_models_agree),
        cmocka_unit_test(e4m3_products_by_the_library_agree),
        cmocka_unit_test(other_e4m3_products_are_own),
        cmocka_unit_test(own_products_serve_where_the_librarys_gave_room),
        cmocka_unit_test(e4m3_products_that_are_refused_are_own),
        cmocka_unit_test(models_of_both_kinds_of_matrices_agree),
        cmocka_unit_test(matrices_that_cannot_be_multiplied_at_once_are_refused),
        cmocka_unit_test(quantised_models_take_less_memory),
        cmocka_unit_test(without_a_library_own_products_serve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
