/* tests/unit/worker/model/test_config.c - config.json and generation_config.json, and RoPE tables.
 * The expected frequencies were computed apart, from the definitions, in double precision. */
#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/model/architecture.h"
#include "worker/model/config.h"

#define SHAPE                                                                                      \
    "\"num_hidden_layers\":2,\"hidden_size\":64,\"intermediate_size\":128,"                        \
    "\"num_attention_heads\":4,\"vocab_size\":512,\"max_position_embeddings\":2048"
#define MODEL(name) "{\"architectures\":[\"" name "\"]," SHAPE
#define LLAMA       MODEL("LlamaForCausalLM")
#define MISTRAL     MODEL("MistralForCausalLM")
#define QWEN2       MODEL("Qwen2ForCausalLM")
#define QWEN3       MODEL("Qwen3ForCausalLM")

static struct model_config parse(const char *text, const char *generation) {
    struct model_config m = {.n_layers = 0};
    struct error err = {0};

    if (config_parse(&m, str_of(text), str_of(generation), &err) != ST_OK) {
        fail_msg("%s", err.message);
    }
    return m;
}

static void absent_keys_get_the_documented_defaults(void **state) {
    struct model_config m = parse(LLAMA "}", NULL);

    (void)state;
    assert_string_equal(m.architecture->name, "LlamaForCausalLM");
    assert_int_equal(m.n_kv_heads, 4);
    assert_int_equal(m.head_dim, 16);
    assert_true(m.rms_eps == 1e-6);
    assert_true(m.rope.theta == 10000);
    assert_int_equal(m.dtype, DTYPE_BF16);
    assert_int_equal(m.n_eos, 0);
    assert_false(m.is_tied || m.has_bos || m.generation.has_temperature);
}

static void keys_are_read(void **state) {
    struct model_config m =
        parse(LLAMA ",\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-5,"
                    "\"rope_theta\":500000.0,\"torch_dtype\":\"float16\",\"eos_token_id\":7,"
                    "\"bos_token_id\":1,\"tie_word_embeddings\":true,\"attention_bias\":true,"
                    "\"rope_scaling\":null,\"sliding_window\":4096}",
              "{\"eos_token_id\":[5,6],\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95}");

    (void)state;
    assert_int_equal(m.n_kv_heads, 2);
    assert_int_equal(m.head_dim, 32);
    assert_int_equal(m.dtype, DTYPE_F16);
    assert_true(m.is_tied && m.has_qkv_bias && m.has_o_bias && m.has_bos);
    assert_int_equal(m.bos, 1);
    assert_int_equal(m.n_eos, 2); /* the generation file wins */
    assert_int_equal(m.eos[1], 6);
    assert_true(m.generation.has_temperature && m.generation.temperature == 0.6);
    assert_true(m.generation.has_top_k && m.generation.top_k == 20);
    assert_false(m.generation.has_repetition_penalty);
}

static void unsupported_or_invalid_settings_are_named(void **state) {
    static const struct {
        const char *text, *message;
        enum status st;
    } cases[] = {
        {"{}", "architectures", ST_INVALID},
        {"[]", "object", ST_INVALID},
        {"", "config.json", ST_INVALID},
        {"{\"architectures\":[\"LlamaForCausalLM\"]}", "num_hidden_layers", ST_INVALID},
        {"{\"architectures\":[\"GPT2LMHeadModel\"],\"n_embd\":768}",
         "unsupported architecture 'GPT2LMHeadModel': supported are "
         "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM",
         ST_UNSUPPORTED},
        {"{\"architectures\":[\"MixtralForCausalLM\"]}", "'MixtralForCausalLM'", ST_UNSUPPORTED},
        {LLAMA ",\"num_key_value_heads\":3}", "num_key_value_heads", ST_INVALID},
        {LLAMA ",\"head_dim\":33}", "unsupported head_dim 33: supported are even numbers",
         ST_UNSUPPORTED},
        {LLAMA ",\"hidden_act\":\"gelu\"}", "unsupported hidden_act \"gelu\"", ST_UNSUPPORTED},
        {LLAMA ",\"num_experts\":64}", "unsupported num_experts 64: use a dense model",
         ST_UNSUPPORTED},
        {LLAMA ",\"num_local_experts\":8}", "num_local_experts 8", ST_UNSUPPORTED},
        {LLAMA ",\"logits_scaling\":8}", "logits_scaling 8", ST_UNSUPPORTED},
        {LLAMA ",\"final_logit_softcapping\":30.0}", "final_logit_softcapping 30", ST_UNSUPPORTED},
        {QWEN2 ",\"use_mrope\":true}", "unsupported use_mrope true", ST_UNSUPPORTED},
        {LLAMA ",\"vision_config\":{\"depth\":2}}", "vision_config", ST_UNSUPPORTED},
        {LLAMA ",\"torch_dtype\":\"float8\"}", "'float8'", ST_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}",
         "unsupported rope_scaling.rope_type 'longrope': supported", ST_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", "'dynamic'",
         ST_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[16,24,24]}}",
         "mrope_section", ST_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]}}",
         "mrope_section", ST_UNSUPPORTED},
        {LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
         "rope_parameters.full_attention", ST_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":[1]}", "rope_scaling is an array", ST_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", "factor is missing", ST_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e9}}", "factor", ST_INVALID},
        {LLAMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5", ST_UNSUPPORTED},
        {LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.25}}",
         "partial_rotary_factor 0.25", ST_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
               "\"high_freq_factor\":1,\"original_max_position_embeddings\":8192}}",
         "high_freq_factor", ST_INVALID},
        {LLAMA ",\"eos_token_id\":512}", "eos_token_id", ST_INVALID},
        {LLAMA ",\"tie_word_embeddings\":\"yes\"}", "tie_word_embeddings", ST_INVALID},
        {LLAMA ",\"mlp_bias\":true}", "unsupported mlp_bias true", ST_UNSUPPORTED},
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":0}", "sliding_window", ST_INVALID},
        {QWEN2 ",\"layer_types\":[\"full_attention\"]}", "layer_types has 1 entries", ST_INVALID},
        {QWEN2 ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]}",
         "layer_types[1] 'chunked_attention'", ST_UNSUPPORTED},
        {QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "sliding_window is null", ST_INVALID},
        {MISTRAL ",\"sliding_window\":64,"
                 "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "layer_types", ST_UNSUPPORTED},
    };
    struct model_config m;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {0};
        enum status st = config_parse(&m, str_of(cases[i].text), STR_NULL, &err);

        if (st != cases[i].st || !strstr(err.message, cases[i].message)) {
            fail_msg("case %zu: %s: %s", i, status_name(st), err.message);
        }
    }
}

static void architectures_read_their_own_keys(void **state) {
    struct model_config m = parse(QWEN2 ",\"attention_bias\":false,\"sliding_window\":64}", NULL);

    (void)state;
    assert_true(m.has_qkv_bias && !m.has_o_bias && !m.has_qk_norm);
    assert_int_equal(m.sliding_window, 0); /* it is not in use */
    m = parse(QWEN3 ",\"head_dim\":32}", NULL);
    assert_true(m.has_qk_norm && !m.has_qkv_bias && !m.has_o_bias);
    assert_int_equal(m.head_dim, 32);
    assert_int_equal(parse(QWEN3 "}", NULL).head_dim, 128);
    m = parse(QWEN3 ",\"attention_bias\":true}", NULL);
    assert_true(m.has_qkv_bias && m.has_o_bias);
    m = parse(MISTRAL ",\"attention_bias\":true}", NULL); /* a key that it does not have */
    assert_false(m.has_qkv_bias || m.has_o_bias);
    assert_int_equal(parse(LLAMA ",\"sliding_window\":64}", NULL).sliding_window, 0);
}

/* The kinds of both layers as a number: 10 is sliding, then full. */
static int kinds(const char *text, uint32_t window) {
    struct model_config m = parse(text, NULL);

    assert_int_equal(m.sliding_window, window);
    return m.layer_kind[0] * 10 + m.layer_kind[1];
}

#define LONG_MISTRAL                                                                               \
    "{\"architectures\":[\"MistralForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":64,"      \
    "\"intermediate_size\":128,\"num_attention_heads\":4,\"vocab_size\":512,"                      \
    "\"max_position_embeddings\":32768"

/* transformers' MistralConfig: 4096 unless the key is there. */
static void mistral_without_the_key_has_a_window(void **state) {
    (void)state;
    assert_int_equal(kinds(LONG_MISTRAL "}", 4096), 11);
    assert_int_equal(kinds(LONG_MISTRAL ",\"sliding_window\":null}", 0), 0);
    assert_int_equal(kinds(LONG_MISTRAL ",\"sliding_window\":128}", 128), 11);
    assert_int_equal(
        kinds(LONG_MISTRAL ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}", 4096),
        11);
}

static void windows_are_per_layer(void **state) {
    (void)state;
    assert_int_equal(kinds(MISTRAL ",\"sliding_window\":64}", 64), 11);
    assert_int_equal(kinds(MISTRAL ",\"sliding_window\":null}", 0), 0);
    assert_int_equal(kinds(MISTRAL "}", 0), 0);                         /* the whole context */
    assert_int_equal(kinds(MISTRAL ",\"sliding_window\":2048}", 0), 0); /* the whole context */
#define IN_USE ",\"use_sliding_window\":true,\"sliding_window\":128"
    assert_int_equal(kinds(QWEN2 IN_USE ",\"max_window_layers\":1}", 128), 1);
    assert_int_equal(kinds(QWEN2 IN_USE ",\"max_window_layers\":0}", 128), 11);
    assert_int_equal(kinds(QWEN2 IN_USE ",\"max_window_layers\":2}", 0), 0);
    assert_int_equal(kinds(QWEN2 IN_USE "}", 0), 0);
    assert_int_equal(
        kinds(QWEN3 IN_USE ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", 128),
        10);
}

static void assert_near(float got, double want) {
    if (fabs(got - want) > 2e-7 * want) fail_msg("%.9g, want %.9g", got, want);
}

static void rope_tables_follow_their_definitions(void **state) {
    static const uint32_t llama3_at[] = {0, 1, 20, 28, 30, 32, 35, 40, 63};
    static const double llama3[] = {1,
                                    0.814617234,
                                    0.0165604401,
                                    0.00321144599,
                                    0.00137189357,
                                    0.000524846161,
                                    9.55621235e-05,
                                    3.4281022e-05,
                                    3.06892599e-07};
    static const uint32_t yarn_at[] = {0, 10, 23, 24, 30, 35, 38, 40, 63};
    static const double yarn[] = {1,
                                  0.115478198,
                                  0.00697830585,
                                  0.00537532149,
                                  0.00106436098,
                                  0.000246258407,
                                  9.2623017e-05,
                                  4.44569853e-05,
                                  3.1023444e-07};
    struct model_config m = parse(
        LLAMA ",\"head_dim\":128,\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\","
              "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
              "\"original_max_position_embeddings\":8192}}",
        NULL);
    float table[64], scale;

    (void)state;
    rope_table(&m.rope, m.head_dim, table, &scale);
    for (size_t i = 0; i < ARRAY_LEN(llama3); i++)
        assert_near(table[llama3_at[i]], llama3[i]);
    assert_true(scale == 1);
    m = parse(LLAMA ",\"head_dim\":128,\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"yarn\","
                    "\"factor\":4,\"original_max_position_embeddings\":32768}}",
              NULL);
    rope_table(&m.rope, m.head_dim, table, &scale);
    for (size_t i = 0; i < ARRAY_LEN(yarn); i++)
        assert_near(table[yarn_at[i]], yarn[i]);
    assert_near(scale, 1.138629436);
    assert_int_equal(m.max_context, 131072);
    m = parse(LLAMA ",\"head_dim\":4,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,"
                    "\"rope_theta\":100}}",
              NULL);
    rope_table(&m.rope, m.head_dim, table, &scale);
    assert_near(table[0], 0.5);
    assert_near(table[1], 0.05);
    assert_int_equal(m.max_context, 4096);
}

#define YARN                                                                                       \
    LLAMA ",\"head_dim\":32,\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":"  \
          "4,"

static void yarn_has_options(void **state) {
    struct model_config m = parse(YARN "\"original_max_position_embeddings\":512}}", NULL);
    float rounded[16], exact[16], scale;

    (void)state;
    rope_table(&m.rope, m.head_dim, rounded, &scale);
    m = parse(YARN "\"original_max_position_embeddings\":512,\"truncate\":false,"
                   "\"attention_factor\":0.75}}",
              NULL);
    rope_table(&m.rope, m.head_dim, exact, &scale);
    assert_true(scale == 0.75f);
    /* Dimensions 1.62 and 7.64: rounding makes the ramp begin at 1, and end at 8. */
    assert_true(rounded[1] == exact[1] && rounded[2] < exact[2] && rounded[8] == exact[8]);
    m = parse(YARN "\"mscale\":0.707,\"mscale_all_dim\":1.0}}", NULL);
    rope_table(&m.rope, m.head_dim, exact, &scale);
    assert_near(scale, (0.1 * 0.707 * log(4) + 1) / (0.1 * log(4) + 1));
    m = parse(LLAMA ",\"rope_scaling\":{\"type\":\"yarn\","
                    "\"original_max_position_embeddings\":512}}",
              NULL);
    assert_true(m.rope.factor == 4); /* 2048 / 512 */
    assert_int_equal(m.max_context, 2048);
}

static void both_spellings_are_one(void **state) {
    static const char *const texts[] = {
        LLAMA ",\"rope_theta\":500.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
        LLAMA ",\"rope_theta\":500.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}}",
        LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":500}}",
        LLAMA ",\"rope_scaling\":null,"
              "\"rope_parameters\":{\"type\":\"linear\",\"factor\":2,\"rope_theta\":500}}",
    };
    float first[8], table[8], scale;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct model_config m = parse(texts[i], NULL);

        rope_table(&m.rope, m.head_dim, i ? table : first, &scale);
        if (i) assert_memory_equal(table, first, sizeof(first));
        assert_int_equal(m.max_context, 4096);
    }
}

static void damaged_text_is_refused_or_read(void **state) {
    static const char good[] = LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4},"
                                     "\"eos_token_id\":[1,2],\"head_dim\":16}";
    char text[sizeof(good)];
    struct model_config m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 5000; round++) {
        memcpy(text, good, sizeof(good));
        for (int i = 0; i < 3; i++) {
            text[rng_below(&rng, sizeof(good) - 1)] = (char)(32 + rng_below(&rng, 95));
        }
        if (config_parse(&m, (struct str){text, sizeof(good) - 1}, STR_NULL, NULL) == ST_OK) {
            float table[512], scale;

            rope_table(&m.rope, m.head_dim, table, &scale);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_get_the_documented_defaults),
        cmocka_unit_test(keys_are_read),
        cmocka_unit_test(unsupported_or_invalid_settings_are_named),
        cmocka_unit_test(architectures_read_their_own_keys),
        cmocka_unit_test(windows_are_per_layer),
        cmocka_unit_test(mistral_without_the_key_has_a_window),
        cmocka_unit_test(yarn_has_options),
        cmocka_unit_test(both_spellings_are_one),
        cmocka_unit_test(rope_tables_follow_their_definitions),
        cmocka_unit_test(damaged_text_is_refused_or_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
