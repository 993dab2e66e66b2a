/* worker/model/qwen2.c - Qwen2, Qwen2.5 and the R1 distillations on them: a Llama whose Q, K and V
 * always have a bias, whatever config.json says. */
#include "worker/model/model_internal.h"

static const struct tensor_name names[] = {
    {ROLE_EMBED, "model.embed_tokens.weight"},
    {ROLE_ATTN_NORM, "model.layers.%u.input_layernorm.weight"},
    {ROLE_Q, "model.layers.%u.self_attn.q_proj.weight"},
    {ROLE_Q_BIAS, "model.layers.%u.self_attn.q_proj.bias"},
    {ROLE_K, "model.layers.%u.self_attn.k_proj.weight"},
    {ROLE_K_BIAS, "model.layers.%u.self_attn.k_proj.bias"},
    {ROLE_V, "model.layers.%u.self_attn.v_proj.weight"},
    {ROLE_V_BIAS, "model.layers.%u.self_attn.v_proj.bias"},
    {ROLE_O, "model.layers.%u.self_attn.o_proj.weight"},
    {ROLE_FFN_NORM, "model.layers.%u.post_attention_layernorm.weight"},
    {ROLE_GATE, "model.layers.%u.mlp.gate_proj.weight"},
    {ROLE_UP, "model.layers.%u.mlp.up_proj.weight"},
    {ROLE_DOWN, "model.layers.%u.mlp.down_proj.weight"},
    {ROLE_FINAL_NORM, "model.norm.weight"},
    {ROLE_LM_HEAD, "lm_head.weight"},
};

static void describe(const struct model_config *c, struct geometry *g) {
    (void)c;
    g->has_qkv_bias = true;
}

const struct architecture architecture_qwen2 = {"Qwen2ForCausalLM", names, ARRAY_LEN(names),
                                                describe};
