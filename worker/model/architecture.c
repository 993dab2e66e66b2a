/* worker/model/architecture.c - the table of architectures, and what several of them share. */
#include "worker/model/architecture.h"

#include <stdio.h>
#include <string.h>

#include "common/text/json.h"

#define QWEN_FIRST_WINDOW_LAYER 28 /* where max_window_layers is absent */

static const struct architecture *const built[] = {&architecture_llama, &architecture_mistral,
                                                   &architecture_qwen2, &architecture_qwen3};

enum status architecture_find(const struct architecture **out, const char *name,
                              struct error *err) {
    char names[256] = "";
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(built); i++) {
        if (strcmp(built[i]->name, name) == 0) {
            *out = built[i];
            return ST_OK;
        }
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s",
                              i == 0                      ? ""
                              : i + 1 == ARRAY_LEN(built) ? " or "
                                                          : ", ",
                              built[i]->name);
    }
    return error_set(err, ST_UNSUPPORTED, "unsupported architecture '%s': supported are %s", name,
                     names);
}

const struct tensor_name decoder_tensors[DECODER_TENSORS] = {
    {ROLE_EMBED, "model.embed_tokens.weight"},
    {ROLE_ATTN_NORM, "model.layers.%u.input_layernorm.weight"},
    {ROLE_Q, "model.layers.%u.self_attn.q_proj.weight"},
    {ROLE_Q_BIAS, "model.layers.%u.self_attn.q_proj.bias"},
    {ROLE_Q_NORM, "model.layers.%u.self_attn.q_norm.weight"},
    {ROLE_K, "model.layers.%u.self_attn.k_proj.weight"},
    {ROLE_K_BIAS, "model.layers.%u.self_attn.k_proj.bias"},
    {ROLE_K_NORM, "model.layers.%u.self_attn.k_norm.weight"},
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

/* --- windows ---------------------------------------------------------------------------------- */
void architecture_slide_from(struct model_config *m, uint32_t window, uint32_t first) {
    if (window >= m->max_context || first >= m->n_layers) return;
    m->sliding_window = window;
    memset(m->layer_kind + first, 1, m->n_layers - first);
}

static enum status read_layer_types(const struct json *list, struct model_config *m,
                                    struct error *err) {
    uint32_t layer = 0;
    struct str kind = STR_NULL;

    JSON_FOR_EACH(v, list) {
        if (json_to_str(v, &kind) != ST_OK) kind = STR("?");
        if (layer < m->n_layers && str_eq(kind, STR("sliding_attention"))) {
            m->layer_kind[layer++] = 1;
        } else if (layer < m->n_layers && str_eq(kind, STR("full_attention"))) {
            m->layer_kind[layer++] = 0;
        } else {
            return error_set(err, ST_UNSUPPORTED,
                             "unsupported layer_types[%u] '%.40s': supported are %u layers of "
                             "full_attention or sliding_attention",
                             layer, kind.ptr, m->n_layers);
        }
    }
    if (layer == m->n_layers) return ST_OK;
    return error_set(err, ST_INVALID,
                     "layer_types has %u entries for num_hidden_layers %u: download the model's "
                     "config.json again",
                     layer, m->n_layers);
}

enum status architecture_read_qwen_window(const struct json *config, struct model_config *m,
                                          struct error *err) {
    const struct json *types = json_get(config, "layer_types");
    uint32_t window = 0, first = QWEN_FIRST_WINDOW_LAYER;
    bool is_used = false;
    enum status st = json_get_bool(config, "use_sliding_window", &is_used, NULL, err);

    if (st == ST_OK && is_used)
        st = json_get_u32(config, "sliding_window", 1, UINT32_MAX, &window, NULL, err);
    if (st == ST_OK)
        st = json_get_u32(config, "max_window_layers", 0, UINT32_MAX, &first, NULL, err);
    if (st != ST_OK) return st;
    if (json_is_null(types)) {
        if (window) architecture_slide_from(m, window, first);
        return ST_OK;
    }
    if ((st = read_layer_types(types, m, err)) != ST_OK) return st;
    if (!memchr(m->layer_kind, 1, m->n_layers)) return ST_OK;
    if (window == 0) {
        return error_set(err, ST_INVALID,
                         "layer_types has sliding_attention, but sliding_window is null or "
                         "use_sliding_window false: download the model's config.json again");
    }
    if (window < m->max_context) {
        m->sliding_window = window;
    } else {
        memset(m->layer_kind, 0, m->n_layers);
    }
    return ST_OK;
}
