/* worker/model/llama.c - Llama 2 and 3, and what is built like them (DeepSeek LLM, TinyLlama,
 * DeepSeek-R1-Distill-Llama). attention_bias gives all four projections a bias. */
#include "common/text/json.h"
#include "worker/model/architecture.h"

static enum status read(const struct json *config, struct model_config *m, struct error *err) {
    bool has_bias = false;
    enum status st = json_get_bool(config, "attention_bias", &has_bias, NULL, err);

    m->has_qkv_bias = m->has_o_bias = has_bias;
    return st;
}

const struct architecture architecture_llama = {"LlamaForCausalLM", decoder_tensors,
                                                DECODER_TENSORS, read};
