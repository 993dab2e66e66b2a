/* worker/model/qwen2.c - Qwen2, Qwen2.5 and the R1 distillations on them: a Llama whose Q, K and V
 * always have a bias, even if config.json lacks it, and whose later layers may have a window. */
#include "worker/model/architecture.h"

static enum status read(const struct json *config, struct model_config *m, struct error *err) {
    m->has_qkv_bias = true;
    return architecture_read_qwen_window(config, m, err);
}

const struct architecture architecture_qwen2 = {"Qwen2ForCausalLM", decoder_tensors,
                                                DECODER_TENSORS, read};
