/* worker/model/llama.c - Llama 2 and 3, and what is built like them (DeepSeek LLM, TinyLlama). */
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
    {ROLE_O_BIAS, "model.layers.%u.self_attn.o_proj.bias"},
    {ROLE_FFN_NORM, "model.layers.%u.post_attention_layernorm.weight"},
    {ROLE_GATE, "model.layers.%u.mlp.gate_proj.weight"},
    {ROLE_UP, "model.layers.%u.mlp.up_proj.weight"},
    {ROLE_DOWN, "model.layers.%u.mlp.down_proj.weight"},
    {ROLE_FINAL_NORM, "model.norm.weight"},
    {ROLE_LM_HEAD, "lm_head.weight"},
};

static void describe(const struct model_config *c, struct geometry *g) {
    g->has_qkv_bias = c->attention_bias;
    g->has_o_bias = c->attention_bias;
}

const struct architecture architecture_llama = {"LlamaForCausalLM", names, ARRAY_LEN(names),
                                                describe};
