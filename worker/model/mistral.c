/* worker/model/mistral.c - Mistral: a Llama without biases whose layers all have the window
 * sliding_window: 4096 where the key is absent, as transformers has it (MistralConfig), and none of
 * them where it is null (versions from 0.2 on). */
#include "common/text/json.h"
#include "worker/model/architecture.h"

#define DEFAULT_WINDOW 4096u

static enum status read(const struct json *config, struct model_config *m, struct error *err) {
    const struct json *types = json_get(config, "layer_types");
    uint32_t window = json_get(config, "sliding_window") ? 0 : DEFAULT_WINDOW;
    enum status st = json_get_u32(config, "sliding_window", 1, UINT32_MAX, &window, NULL, err);
    struct str kind;

    if (st != ST_OK) return st;
    JSON_FOR_EACH(v, types) {
        if (json_to_str(v, &kind) == ST_OK &&
            str_eq(kind, window ? STR("sliding_attention") : STR("full_attention")))
            continue;
        return error_set(err, ST_UNSUPPORTED,
                         "layer_types are not all %s, as a sliding_window of %u implies for "
                         "MistralForCausalLM: use a model whose layers are all of one kind",
                         window ? "sliding_attention" : "full_attention", window);
    }
    if (window) architecture_slide_from(m, window, 0);
    return ST_OK;
}

const struct architecture architecture_mistral = {"MistralForCausalLM", decoder_tensors,
                                                  DECODER_TENSORS, read};
