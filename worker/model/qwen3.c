/* worker/model/qwen3.c - Qwen3, dense: each head of Q and K is normalised before it is rotated,
 * head_dim is a key (128 by default), and there are no biases unless attention_bias is true. */
#include "common/text/json.h"
#include "worker/model/architecture.h"

#define DEFAULT_HEAD_DIM 128

static enum status read(const struct json *config, struct model_config *m, struct error *err) {
    bool has_bias = false;
    enum status st = json_get_bool(config, "attention_bias", &has_bias, NULL, err);

    if (st != ST_OK) return st;
    if (json_is_null(json_get(config, "head_dim"))) m->head_dim = DEFAULT_HEAD_DIM;
    m->has_qk_norm = true;
    m->has_qkv_bias = m->has_o_bias = has_bias;
    return architecture_read_qwen_window(config, m, err);
}

const struct architecture architecture_qwen3 = {"Qwen3ForCausalLM", decoder_tensors,
                                                DECODER_TENSORS, read};
