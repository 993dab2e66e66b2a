/* tests/unit/kernels/test_ref.c - the reference backend: its own invariances, and its refusals. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "tests/support/tiny_model.h"

static const struct tiny_shape llama = {.n_layers = 2,
                                        .d_model = 24,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 8,
                                        .d_ff = 40,
                                        .vocab = 97,
                                        .max_context = 96,
                                        .is_tied = true,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};

#define N_NEW 12

static void run_one(struct tiny_model *m, uint32_t n_prompt, uint32_t chunk, float temperature,
                    int32_t *token, float *logprob) {
    uint32_t prompt[64];
    struct tiny_request q = {
        .prompt = prompt, .n_prompt = n_prompt, .n_new = N_NEW, .token = token, .logprob = logprob};

    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (i * 31 + 7) % m->shape.vocab;
    q.how = (struct backend_output){.temperature = temperature,
                                    .top_p = 1,
                                    .seed = 5,
                                    .repetition_penalty = 1,
                                    .mask = BACKEND_NO_MASK};
    tiny_run(m, &q, 1, chunk);
}

static void same_answer_for_every_chunk_and_block_size(void **state) {
    static const uint32_t chunks[] = {64, 1, 7, 16}, sizes[] = {1, 3, 16, 128};
    struct tiny_shape shapes[3] = {llama, llama, llama};

    (void)state;
    shapes[1].has_qkv_bias = shapes[1].has_qk_norm = shapes[1].has_o_bias = true;
    shapes[1].is_tied = false;
    shapes[1].kv_dtype = DTYPE_F32;
    shapes[2].sliding_window = 9;
    for (size_t g = 0; g < ARRAY_LEN(shapes); g++) {
        int32_t want[N_NEW], token[N_NEW];
        float want_logprob[N_NEW], logprob[N_NEW];
        bool is_first = true;

        for (size_t b = 0; b < ARRAY_LEN(sizes); b++) {
            struct tiny_setup setup = {&backend_ref, NULL, 1, sizes[b], 2, 64};
            struct tiny_model m;

            tiny_open(&m, &setup, &shapes[g], 1);
            for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
                run_one(&m, 50, chunks[c], 0.8f, token, logprob);
                if (is_first) {
                    memcpy(want, token, sizeof(token));
                    memcpy(want_logprob, logprob, sizeof(logprob));
                }
                is_first = false;
                assert_memory_equal(token, want, sizeof(token));
                assert_memory_equal(logprob, want_logprob, sizeof(logprob));
            }
            tiny_close(&m);
        }
    }
}

static void a_missing_weight_is_named(void **state) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_ref, NULL, 1, 16, 2, 64};
    struct geometry g = tiny_geometry(&llama, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &llama);
    struct backend_device *dev;
    struct backend_model *m;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, &err), ST_OK);
    assert_int_equal(backend_ref.load_begin(dev, &m, &g, &limits, &err), ST_OK);
    assert_int_equal(tiny_load(&backend_ref, m, &llama, 1, ROLE_UP, &err), ST_OK);
    assert_int_equal(backend_ref.load_end(m, &err), ST_INVALID);
    assert_string_equal(err.message, "weight up, layer 0 is missing from the model");
    backend_ref.unload(m);
    limits.block_size = 129;
    assert_int_equal(backend_ref.load_begin(dev, &m, &g, &limits, &err), ST_INVALID);
    assert_string_equal(err.message, "block_size is 129: give 1 to 128");
    backend_ref.close(dev);
}

static void windows_that_make_no_sense_are_refused(void **state) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_ref, NULL, 1, 16, 2, 64};
    struct tiny_shape sliding = llama;
    struct backend_limits limits = tiny_limits(&setup, &llama);
    struct backend_device *dev;
    struct backend_model *m;
    struct geometry g;
    struct error err = {0};

    (void)state;
    sliding.sliding_window = 9;
    g = tiny_geometry(&sliding, inv_freq, kind);
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, &err), ST_OK);
    g.sliding_window = 0;
    assert_int_equal(backend_ref.load_begin(dev, &m, &g, &limits, &err), ST_INVALID);
    assert_string_equal(err.message, "layer 1 has a sliding window, but sliding_window is 0");
    kind[0] = 2;
    assert_int_equal(backend_ref.load_begin(dev, &m, &g, &limits, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "layer 0 is of kind 2"));
    backend_ref.close(dev);
}

static void refused_memory_names_the_figures(void **state) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_ref, NULL, 1, 16, 2, 64};
    struct geometry g = tiny_geometry(&llama, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &llama);
    struct backend_config config = {.memory_bytes = 1 << 20};
    struct backend_kv_info kv;
    struct backend_device *dev;
    struct backend_model *m;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_ref.open(&dev, &config, &err), ST_OK);
    assert_int_equal(backend_ref.load_begin(dev, &m, &g, &limits, &err), ST_OK);
    assert_int_equal(tiny_load(&backend_ref, m, &llama, 1, ROLE_COUNT, &err), ST_OK);
    assert_int_equal(backend_ref.load_end(m, &err), ST_OK);
    assert_int_equal(backend_ref.kv_alloc(m, 1000000, 0, &kv, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "the KV pool: 1953.1 MiB wanted"));
    assert_non_null(strstr(err.message, "1.0 MiB allowed"));
    assert_int_equal(backend_ref.kv_alloc(m, 4, 0, &kv, &err), ST_OK);
    backend_ref.unload(m);
    backend_ref.close(dev);
}

static void a_wrong_step_is_refused_and_changes_nothing(void **state) {
    struct tiny_setup setup = {&backend_ref, NULL, 1, 16, 2, 64};
    struct backend_step step = {.n_tokens = 1, .n_rows = 1};
    struct tiny_model m;
    backend_fence fence = 77;
    struct error err = {0};

    (void)state;
    tiny_open(&m, &setup, &llama, 1);
    m.stage.row[0] = (struct backend_row){0, 0, 1, 1};
    m.stage.token[0] = 97;
    m.stage.position[0] = 0;
    m.stage.kv_slot[0] = 0;
    assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_INVALID);
    m.stage.token[0] = -1; /* no step before this one */
    assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_INVALID);
    m.stage.token[0] = 1;
    m.stage.kv_slot[0] = 1 << 30;
    assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_INVALID);
    m.stage.kv_slot[0] = -1;
    m.stage.position[0] = 96;
    assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_INVALID);
    assert_int_equal(backend_ref.submit(m.model, 1, &step, &fence, &err), ST_INVALID);
    assert_int_equal(fence, 77);
    m.stage.position[0] = 1; /* its row has a context of 1 */
    assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_INVALID);
    assert_string_equal(err.message,
                        "token 0 of a step has position 1, in a row whose 1 tokens end a "
                        "context of 1");
    m.stage.position[0] = 0;
    assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_OK);
    tiny_close(&m);
}

static void blocks_move_and_come_back(void **state) {
    struct tiny_setup setup = {&backend_ref, NULL, 1, 16, 2, 64};
    struct backend_kv_info kv;
    struct backend_copy pair = {1, 0};
    struct tiny_model m;
    backend_fence fence;
    uint8_t a[4096], b[4096];
    uint64_t n;

    (void)state;
    tiny_open(&m, &setup, &llama, 1);
    assert_int_equal(backend_ref.kv_alloc(m.model, 4, 4, &kv, NULL), ST_EXISTS);
    n = backend_ref.kv_block_bytes(m.model);
    assert_int_equal(n, 2 * 2 * 2 * 16 * 8 * 2);
    for (size_t i = 0; i < n; i++)
        a[i] = (uint8_t)(i * 7);
    assert_int_equal(backend_ref.kv_write(m.model, 1, a, n), ST_OK);
    assert_int_equal(backend_ref.kv_copy(m.model, &pair, 1, &fence), ST_OK);
    assert_int_equal(backend_ref.poll(m.dev, fence), ST_OK);
    assert_int_equal(backend_ref.kv_read(m.model, 0, b, n), ST_OK);
    assert_memory_equal(a, b, n);
    assert_int_equal(backend_ref.kv_read(m.model, 10000, b, n), ST_INVALID);
    assert_int_equal(backend_ref.kv_swap_out(m.model, &pair, 1, &fence), ST_INVALID);
    tiny_close(&m);
}

static void a_step_can_name_the_token_of_the_step_before(void **state) {
    struct tiny_setup setup = {&backend_ref, NULL, 1, 16, 2, 64};
    struct tiny_model m;
    struct backend_step step = {.n_tokens = 1, .n_rows = 1, .n_outputs = 1};
    struct error err = {0};
    backend_fence fence;
    int32_t by_reference, first;

    (void)state;
    tiny_open(&m, &setup, &llama, 3);
    for (int pass = 0; pass < 2; pass++) {
        m.stage.row[0] = (struct backend_row){0, 0, 1, 1};
        m.stage.token[0] = 5;
        m.stage.position[0] = 0;
        m.stage.kv_slot[0] = 0;
        m.stage.output[0] = (struct backend_output){.top_p = 1, .mask = BACKEND_NO_MASK};
        assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_OK);
        first = m.stage.out_token[0];
        m.stage.row[0].context_len = 2;
        m.stage.token[0] = pass ? first : -1;
        m.stage.position[0] = 1;
        m.stage.kv_slot[0] = 1;
        assert_int_equal(backend_ref.submit(m.model, 0, &step, &fence, &err), ST_OK);
        if (pass == 0)
            by_reference = m.stage.out_token[0];
        else
            assert_int_equal(m.stage.out_token[0], by_reference);
    }
    tiny_close(&m);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    assert_int_equal(bf16_of_f32(1.0f), 0x3F80);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x3F808000)), 0x3F80);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x3F818000)), 0x3F82);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x3F808001)), 0x3F81);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x7F800001)), 0x7FC0);
    assert_true(f32_of_f16(0x3C00) == 1.0f && f32_of_f16(0xC000) == -2.0f);
    assert_true(f32_of_f16(0x0001) == 0x1p-24f && isinf(f32_of_f16(0x7C00)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_answer_for_every_chunk_and_block_size),
        cmocka_unit_test(a_missing_weight_is_named),
        cmocka_unit_test(windows_that_make_no_sense_are_refused),
        cmocka_unit_test(refused_memory_names_the_figures),
        cmocka_unit_test(a_wrong_step_is_refused_and_changes_nothing),
        cmocka_unit_test(blocks_move_and_come_back),
        cmocka_unit_test(a_step_can_name_the_token_of_the_step_before),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
