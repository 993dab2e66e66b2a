/* worker/model/mistral.c - Mistral: a Llama without biases whose layers all have the window
 * sliding_window (4096 in version 0.1), or none of them when it is null (later versions). */
#include "worker/model/architecture.h"

#include "common/json.h"

static enum status read(const struct json *config, struct model_config *m, struct error *err) {
    const struct json *types = json_get(config, "layer_types");
    uint32_t window = 0;
    enum status st = json_get_u32(config, "sliding_window", 1, UINT32_MAX, &window, NULL, err);
    struct str kind;

    if (st != ST_OK) return st;
    JSON_FOR_EACH(v, types) {
        if (json_to_str(v, &kind) == ST_OK &&
            str_eq(kind, window ? STR("sliding_attention") : STR("full_attention")))
            continue;
        return error_set(err, ST_UNSUPPORTED,
                         "layer_types that differ from layer to layer are not built for "
                         "MistralForCausalLM: take a model whose layers are all alike");
    }
    if (window) architecture_slide_from(m, window, 0);
    return ST_OK;
}

const struct architecture architecture_mistral = {"MistralForCausalLM", decoder_tensors,
                                                  DECODER_TENSORS, read};
