/* tests/unit/worker/model/test_quant_model.c - whole quantised folders: bound, counted, streamed
 * into a backend that looks at what arrives. */
#include <stdio.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "tests/support/cm.h"
#include "tests/support/spec_checkpoint.h"
#include "worker/model/model.h"

/* One layer, d_model 8, 2 heads of 4, 1 KV head, d_ff 16, vocab 32. */
#define CONFIG(more)                                                                               \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":1,\"hidden_size\":8,"         \
    "\"intermediate_size\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                \
    "\"vocab_size\":32,\"max_position_embeddings\":64,\"eos_token_id\":3" more "}"
#define FP8 ",\"quantization_config\":{\"quant_method\":\"fp8\"}"
#define PLAIN                                                                                      \
    "model.embed_tokens.weight:BF16:32,8:1 model.norm.weight:BF16:8:1 "                            \
    "model.layers.0.input_layernorm.weight:BF16:8:1 "                                              \
    "model.layers.0.post_attention_layernorm.weight:BF16:8:1 "
#define F8(module, n, k)                                                                           \
    module ".weight:F8_E4M3:" n "," k ":r " module ".weight_scale:F32:" n ",1:s "
#define L "model.layers.0."
#define ATTENTION                                                                                  \
    F8(L "self_attn.q_proj", "8", "8")                                                             \
    F8(L "self_attn.k_proj", "4", "8")                                                             \
    F8(L "self_attn.v_proj", "4", "8") F8(L "self_attn.o_proj", "8", "8")
#define FFN                                                                                        \
    F8(L "mlp.gate_proj", "16", "8") F8(L "mlp.up_proj", "16", "8") F8(L "mlp.down_proj", "8", "16")
#define HEAD "lm_head.weight:BF16:32,8:1 "

/* --- a backend that looks ----------------------------------------------------------------------*/
struct backend_model {
    uint32_t n_loaded, n_quantised;
    float down_scale;
};

static struct backend_model seen;

static enum status begin(struct backend_device *dev, struct backend_model **out,
                         const struct geometry *g, const struct backend_limits *limits,
                         struct error *err) {
    (void)dev, (void)limits, (void)err;
    seen = (struct backend_model){0};
    *out = &seen;
    return g->quant_types == QUANT_TYPE(DTYPE_F8E4M3) ? ST_OK : ST_INVALID;
}

static enum status take(struct backend_model *m, const struct backend_tensor *t,
                        struct error *err) {
    m->n_loaded++;
    m->n_quantised += t->quant != NULL;
    if (t->role == ROLE_DOWN) m->down_scale = t->quant->scale[7];
    return t->quant ? quant_check(t, "it", err) : ST_OK;
}

static enum status end(struct backend_model *m, struct error *err) {
    (void)m, (void)err;
    return ST_OK;
}

static void unload(struct backend_model *m) {
    (void)m;
}

static const struct backend_ops ops = {
    .load_begin = begin, .load_tensor = take, .load_end = end, .unload = unload};

/* --- folders -----------------------------------------------------------------------------------*/
static void write_folder(char folder[SPEC_FOLDER], const char *config, const char *specs) {
    spec_folder(folder);
    spec_write_bytes(folder, "config.json", str_of(config));
    spec_write_bytes(folder, "tokenizer.json", STR("{}"));
    if (specs) spec_write(folder, "model.safetensors", specs);
}

static struct model *must_open(const char *folder) {
    struct model *m = NULL;
    struct error err = {0};

    if (model_open(&m, folder, &err) != ST_OK) fail_msg("%s", err.message);
    return m;
}

static void must_load(const struct model *m) {
    struct backend_limits limits = {.max_rows = 1};
    struct model_rounding rounding;
    struct backend_model *out;
    struct geometry g;
    struct error err = {0};

    model_geometry(m, &g);
    if (model_load(m, &ops, NULL, &g, &limits, NULL, NULL, &rounding, &out, &err) != ST_OK)
        fail_msg("%s", err.message);
    assert_int_equal(rounding.n_rounded, 0);
    assert_int_equal(seen.n_quantised, 7);
    assert_true(seen.down_scale == 8);
}

static void a_quantised_folder_is_bound_counted_and_loaded(void **state) {
    char folder[SPEC_FOLDER];
    struct geometry g;
    struct model *m;
    static const uint32_t seven[ROLE_COUNT] = {
        [ROLE_Q] = 8,    [ROLE_K] = 8,  [ROLE_V] = 8,    [ROLE_O] = 8,
        [ROLE_GATE] = 8, [ROLE_UP] = 8, [ROLE_DOWN] = 16};
    uint64_t codes = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 16 * 8, scales = 8 + 4 + 4 + 8 + 16 + 16 + 8;

    (void)state;
    write_folder(folder, CONFIG(FP8), PLAIN ATTENTION FFN HEAD);
    m = must_open(folder);
    assert_string_equal(model_quantization(m), "fp8");
    assert_int_equal(model_dtype(m), DTYPE_BF16);
    model_geometry(m, &g);
    assert_true(g.o_group == 1 && g.down_group == 1);
    for (int role = 0; role < ROLE_COUNT; role++) /* the seven matrices, whose groups are rows */
        assert_int_equal(g.format[role].group_k, seven[role]);
    assert_true(g.format[ROLE_Q].dtype == DTYPE_F8E4M3);
    assert_int_equal(model_n_params(m), 2 * 32 * 8 + 3 * 8 + codes);
    assert_int_equal(model_weight_bytes(m, DTYPE_BF16),
                     codes + 4 * scales + 2 * 2 * 32 * 8 + 4 * 24);
    must_load(m);
    assert_int_equal(seen.n_loaded, 12);
    model_close(m);
    spec_erase(folder);
}

static void scales_of_a_kv_cache_are_counted_and_not_used(void **state) {
    char folder[SPEC_FOLDER];
    struct model *m;

    (void)state;
    write_folder(folder, CONFIG(FP8),
                 PLAIN ATTENTION FFN HEAD L "self_attn.k_scale:F32:-:1 " L
                                            "self_attn.v_proj.v_scale:F32:1:1");
    m = must_open(folder);
    assert_int_equal(model_n_kv_scales(m), 2);
    must_load(m);
    model_close(m);
    spec_erase(folder);
}

static void a_head_beside_a_tied_embedding_is_left(void **state) {
    char folder[SPEC_FOLDER];
    struct model *m;

    (void)state;
    write_folder(folder, CONFIG(",\"tie_word_embeddings\":true" FP8), PLAIN ATTENTION FFN HEAD);
    m = must_open(folder);
    must_load(m);
    assert_int_equal(seen.n_loaded, 11);
    model_close(m);
    spec_erase(folder);
}

/* Codes in one file, their scales in another. */
static void tensors_of_a_module_lie_in_different_shards(void **state) {
    static const char index[] = "{\"weight_map\":{\"model.norm.weight\":\"one.safetensors\",\"" L
                                "mlp.down_proj.weight_scale\":\"two.safetensors\"}}";
    char folder[SPEC_FOLDER];
    struct model *m;

    (void)state;
    write_folder(folder, CONFIG(FP8), NULL);
    spec_write(folder, "one.safetensors",
               PLAIN ATTENTION HEAD F8(L "mlp.gate_proj", "16", "8") F8(L "mlp.up_proj", "16", "8")
                   L "mlp.down_proj.weight:F8_E4M3:8,16:r");
    spec_write(folder, "two.safetensors", L "mlp.down_proj.weight_scale:F32:8,1:s");
    spec_write_bytes(folder, "model.safetensors.index.json", str_of(index));
    m = must_open(folder);
    must_load(m);
    model_close(m);
    spec_erase(folder);
}

static void hf_quant_config_is_read(void **state) {
    static const char hf[] = "{\"quantization\":{\"quant_algo\":\"FP8_PER_CHANNEL_PER_TOKEN\","
                             "\"exclude_modules\":[\"lm_head\"]}}";
    char folder[SPEC_FOLDER];
    struct model *m;

    (void)state;
    write_folder(folder, CONFIG(""), PLAIN ATTENTION FFN HEAD);
    spec_write_bytes(folder, "hf_quant_config.json", str_of(hf));
    m = must_open(folder);
    assert_string_equal(model_quantization(m), "modelopt");
    must_load(m);
    model_close(m);
    spec_erase(folder);
}

static void folders_that_do_not_fit_are_refused_by_name(void **state) {
    static const struct {
        const char *config, *specs, *message;
    } cases[] = {
        {CONFIG(""), PLAIN ATTENTION FFN HEAD,
         "module model.layers.0.self_attn.q_proj has the tensor "
         "model.layers.0.self_attn.q_proj.weight of F8_E4M3, but config.json has no "
         "quantization_config"},
        {CONFIG(FP8),
         PLAIN ATTENTION HEAD F8(L "mlp.gate_proj", "16", "8") F8(L "mlp.up_proj", "16", "8") L
         "mlp.down_proj.weight:BF16:8,16:1",
         "module model.layers.0.mlp.down_proj has the tensor model.layers.0.mlp.down_proj.weight "
         "of "
         "BF16, but config.json has the module quantised"},
        {CONFIG(",\"quantization_config\":{\"quant_method\":\"fp8\",\"ignored_layers\":["
                "\"model.layers.0.mlp.up_proj\"]}"),
         PLAIN ATTENTION FFN HEAD,
         "module model.layers.0.mlp.up_proj has the tensor model.layers.0.mlp.up_proj.weight of "
         "F8_E4M3, but quantization_config leaves the module plain"},
        {CONFIG(FP8), PLAIN ATTENTION FFN HEAD "model.layers.0.mlp.up_proj.qzeros:I32:4:r",
         "unsupported tensor model.layers.0.mlp.up_proj.qzeros in the checkpoint"},
        {CONFIG(FP8),
         PLAIN ATTENTION HEAD F8(L "mlp.gate_proj", "16", "8") F8(L "mlp.up_proj", "16", "8"),
         "the checkpoint has no tensor model.layers.0.mlp.down_proj.weight"},
        {CONFIG(",\"quantization_config\":{\"quant_method\":\"hqq\"}"), PLAIN,
         "config.json: quantization_config: unsupported quant_method 'hqq'"},
        {CONFIG(",\"tie_word_embeddings\":true" FP8), PLAIN ATTENTION FFN F8("lm_head", "32", "8"),
         "unsupported tensor lm_head.weight of F8_E4M3 beside a tied embedding: config.json makes "
         "the embedding the head"},
        {CONFIG(",\"tie_word_embeddings\":true" FP8),
         PLAIN ATTENTION FFN HEAD "lm_head.qweight:I32:8,4:r ",
         "unsupported tensor lm_head.qweight of I32 beside a tied embedding"},
        {CONFIG(FP8), "model.embed_tokens.weight:F8_E4M3:32,8:r",
         "unsupported type of tensor model.embed_tokens.weight, F8_E4M3"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char folder[SPEC_FOLDER];
        struct model *m = NULL;
        struct error err = {0};

        write_folder(folder, cases[i].config, cases[i].specs);
        if (model_open(&m, folder, &err) == ST_OK) fail_msg("case %zu was opened", i);
        if (!strstr(err.message, cases[i].message))
            fail_msg("case %zu: %s; wanted %s", i, err.message, cases[i].message);
        spec_erase(folder);
    }
}

/* Cut at every byte of its last part: refused, and nothing is read beyond the end. */
static void a_truncated_file_is_refused(void **state) {
    char folder[SPEC_FOLDER], path[128];
    struct model *m = NULL;

    (void)state;
    write_folder(folder, CONFIG(FP8), PLAIN ATTENTION FFN HEAD);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    for (int i = 0; i < 200; i++) {
        FILE *f = fopen(path, "rb");
        long size;

        assert_int_equal(fseek(f, 0, SEEK_END), 0);
        size = ftell(f);
        fclose(f);
        assert_int_equal(truncate(path, size - 7), 0);
        assert_int_equal(model_open(&m, folder, NULL), ST_INVALID);
    }
    spec_erase(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quantised_folder_is_bound_counted_and_loaded),
        cmocka_unit_test(scales_of_a_kv_cache_are_counted_and_not_used),
        cmocka_unit_test(a_head_beside_a_tied_embedding_is_left),
        cmocka_unit_test(tensors_of_a_module_lie_in_different_shards),
        cmocka_unit_test(hf_quant_config_is_read),
        cmocka_unit_test(folders_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(a_truncated_file_is_refused),
    };

    return cmocka_run_group_tests_name("worker/model/quant", tests, NULL, NULL);
}
