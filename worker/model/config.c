/* worker/model/config.c - reading the two small files.
 *
 * The architecture is looked up first, so that a model of another kind is refused by its name and
 * not by the first key that it lacks. */
#include "worker/model/config.h"

#include <stdio.h>
#include <string.h>

#include "common/text/json.h"
#include "worker/model/architecture.h"

#define MAX_WIDTH   (1u << 20)
#define MAX_VOCAB   (1u << 22)
#define MAX_CONTEXT (1u << 26)

static enum status need_u32(const struct json *c, const char *name, uint32_t max, uint32_t *out,
                            struct error *err) {
    bool is_present;
    enum status st = json_get_u32(c, name, 1, max, out, &is_present, err);

    if (st == ST_OK && !is_present) return error_set(err, ST_INVALID, "'%s' is missing", name);
    return st;
}

static enum status copy_text(const struct json *v, const char *name, char *out, size_t size,
                             struct error *err) {
    struct str s;

    if (json_to_str(v, &s) != ST_OK || s.len >= size) {
        return error_set(err, ST_INVALID, "'%s' is missing or is not a name of at most %zu bytes",
                         name, size - 1);
    }
    memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
    return ST_OK;
}

/* --- shape -------------------------------------------------------------------------------------*/
static enum status read_heads(const struct json *c, struct model_config *m, struct error *err) {
    enum status st = need_u32(c, "num_attention_heads", CONFIG_MAX_LAYERS, &m->n_heads, err);
    bool has_head_dim;

    if (st != ST_OK) return st;
    m->n_kv_heads = m->n_heads;
    st = json_get_u32(c, "num_key_value_heads", 1, m->n_heads, &m->n_kv_heads, NULL, err);
    if (st == ST_OK) st = json_get_u32(c, "head_dim", 2, 1024, &m->head_dim, &has_head_dim, err);
    if (st != ST_OK) return st;
    if (m->n_heads % m->n_kv_heads) {
        return error_set(err, ST_INVALID,
                         "num_attention_heads %u is not a multiple of num_key_value_heads %u: "
                         "download the model's config.json again",
                         m->n_heads, m->n_kv_heads);
    }
    if (!has_head_dim) {
        if (m->d_model % m->n_heads) {
            return error_set(err, ST_INVALID,
                             "hidden_size %u is not a multiple of num_attention_heads %u, and "
                             "head_dim is missing: download the model's config.json again",
                             m->d_model, m->n_heads);
        }
        m->head_dim = m->d_model / m->n_heads;
    }
    if (m->head_dim % 2 || m->head_dim > 1024) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported head_dim %u: supported are even numbers up to 1024",
                         m->head_dim);
    }
    return ST_OK;
}

static enum status read_shape(const struct json *c, struct model_config *m, struct error *err) {
    enum status st;

    m->rms_eps = 1e-6;
    st = need_u32(c, "num_hidden_layers", CONFIG_MAX_LAYERS, &m->n_layers, err);
    if (st == ST_OK) st = need_u32(c, "hidden_size", MAX_WIDTH, &m->d_model, err);
    if (st == ST_OK) st = need_u32(c, "intermediate_size", MAX_WIDTH, &m->d_ff, err);
    if (st == ST_OK) st = need_u32(c, "vocab_size", MAX_VOCAB, &m->vocab, err);
    if (st == ST_OK) st = need_u32(c, "max_position_embeddings", MAX_CONTEXT, &m->max_context, err);
    if (st == ST_OK) st = json_get_f64(c, "rms_norm_eps", 0, 1, &m->rms_eps, NULL, err);
    if (st == ST_OK) st = read_heads(c, m, err);
    if (st == ST_OK) st = json_get_bool(c, "tie_word_embeddings", &m->is_tied, NULL, err);
    return st;
}

static enum status read_dtype(const struct json *c, struct model_config *m, struct error *err) {
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}, {"float32", DTYPE_F32}};
    const struct json *v = json_get(c, "torch_dtype");
    struct str s;

    m->dtype = DTYPE_BF16;
    if (json_is_null(v)) v = json_get(c, "dtype"); /* its name in newer files */
    if (json_is_null(v)) return ST_OK;
    for (size_t i = 0; json_to_str(v, &s) == ST_OK && i < ARRAY_LEN(names); i++) {
        if (!str_eq(s, str_of(names[i].name))) continue;
        m->dtype = names[i].dtype;
        return ST_OK;
    }
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported torch_dtype '%.40s': supported are bfloat16, float16 and float32",
                     json_type(v) == JSON_STRING ? s.ptr : "?");
}

/* --- unsupported settings --------------------------------------------------------------------- */
/* Keys that change the arithmetic. One that is absent, null or has the value of the list is
 * fine. */
static const struct unbuilt {
    const char *name, *neutral, *instead;
} unbuilt[] = {
    {"hidden_act", "\"silu\"", "use a model whose activation is silu"},
    {"mlp_bias", "false", "use a model without biases in its MLP"},
    {"num_experts", "0", "use a dense model"},
    {"num_local_experts", "0", "use a dense model"},
    {"n_routed_experts", "0", "use a dense model"},
    {"moe_intermediate_size", NULL, "use a dense model"},
    {"use_mrope", "false", "use a text-only model"},
    {"vision_config", NULL, "use a text-only model"},
    {"audio_config", NULL, "use a text-only model"},
    {"text_config", NULL, "use a text-only model"},
    {"is_encoder_decoder", "false", "use a decoder-only model"},
    {"attn_logit_softcapping", NULL, "use a model without soft caps"},
    {"final_logit_softcapping", NULL, "use a model without soft caps"},
    {"attention_chunk_size", NULL, "use a model of full or sliding attention"},
    {"kv_lora_rank", NULL, "use a model of plain or grouped attention"},
    {"embedding_multiplier", "1", "use a model without multipliers"},
    {"attention_multiplier", NULL, "use a model without multipliers"},
    {"residual_multiplier", "1", "use a model without multipliers"},
    {"logits_scaling", "1", "use a model without multipliers"},
    {"logit_scale", "1", "use a model without multipliers"},
};

static enum status check_unbuilt(const struct json *c, struct error *err) {
    enum status st = ST_OK;
    struct json_writer w;
    struct buf value;

    buf_init(&value, 0);
    for (size_t i = 0; i < ARRAY_LEN(unbuilt) && st == ST_OK; i++) {
        const struct unbuilt *u = &unbuilt[i];
        const struct json *v = json_get(c, u->name);

        if (json_is_null(v)) continue;
        buf_clear(&value);
        json_writer_init(&w, &value);
        json_put_tree(&w, v);
        if (u->neutral && str_eq(buf_str(&value), str_of(u->neutral))) continue;
        buf_append_char(&value, '\0');
        st = error_set(err, ST_UNSUPPORTED, "unsupported %s %.80s: %s", u->name,
                       buf_str(&value).ptr, u->instead);
    }
    buf_fini(&value);
    return st;
}

/* --- tokens and sampling -----------------------------------------------------------------------*/
/* An id, or a list of them; the list stays as it was when the key is absent. */
static enum status read_eos(const struct json *c, struct model_config *m, struct error *err) {
    const struct json *v = json_get(c, "eos_token_id");
    uint32_t n = 0;

    if (json_is_null(v)) return ST_OK;
    for (const struct json *id = json_type(v) == JSON_ARRAY ? json_first(v) : v; id;
         id = json_type(v) == JSON_ARRAY ? json_next(id) : NULL) {
        uint64_t value;

        if (json_to_u64(id, &value) != ST_OK || value >= m->vocab || n == CONFIG_MAX_EOS) {
            return error_set(
                err, ST_INVALID,
                "eos_token_id must be an id below vocab_size %u, or a list of at most %d ids",
                m->vocab, CONFIG_MAX_EOS);
        }
        m->eos[n++] = (uint32_t)value;
    }
    m->n_eos = n;
    return ST_OK;
}

static enum status read_generation(const struct json *c, struct generation_config *g,
                                   struct error *err) {
    enum status st =
        json_get_f64(c, "temperature", 0, 100, &g->temperature, &g->has_temperature, err);

    if (st == ST_OK) st = json_get_f64(c, "top_p", 0, 1, &g->top_p, &g->has_top_p, err);
    if (st == ST_OK) st = json_get_f64(c, "min_p", 0, 1, &g->min_p, &g->has_min_p, err);
    if (st == ST_OK) st = json_get_u32(c, "top_k", 0, UINT32_MAX, &g->top_k, &g->has_top_k, err);
    if (st == ST_OK) {
        st = json_get_f64(c, "repetition_penalty", 1e-6, 100, &g->repetition_penalty,
                          &g->has_repetition_penalty, err);
    }
    return st;
}

static enum status read_architecture(const struct json *c, struct model_config *m,
                                     struct error *err) {
    const struct json *list = json_get(c, "architectures");
    struct str name = STR_NULL;
    char text[64];

    if (json_to_str(json_first(list), &name) != ST_OK || json_count(list) != 1) {
        return error_set(err, ST_INVALID,
                         "'architectures' is not a list of one name, such as "
                         "[\"LlamaForCausalLM\"]: download the model's config.json again");
    }
    snprintf(text, sizeof(text), "%s", name.ptr);
    return architecture_find(&m->architecture, text, err);
}

static enum status read_config(const struct json *c, struct model_config *m, struct error *err) {
    enum status st;

    if (json_type(c) != JSON_OBJECT)
        return error_set(err, ST_INVALID, "the file is not a JSON object");
    st = read_architecture(c, m, err);
    if (st == ST_OK && !json_is_null(json_get(c, "model_type"))) {
        st = copy_text(json_get(c, "model_type"), "model_type", m->model_type,
                       sizeof(m->model_type), err);
    }
    if (st == ST_OK) st = check_unbuilt(c, err);
    if (st == ST_OK) st = read_shape(c, m, err);
    if (st == ST_OK) st = read_dtype(c, m, err);
    if (st == ST_OK) st = rope_read(&m->rope, c, &m->max_context, err);
    if (st == ST_OK) st = m->architecture->read(c, m, err);
    if (st == ST_OK) st = read_eos(c, m, err);
    if (st == ST_OK) {
        st = json_get_u32(c, "bos_token_id", 0, MAX_VOCAB, &m->bos, &m->has_bos, err);
    }
    return st;
}

enum status config_parse(struct model_config *out, struct str config, struct str generation,
                         struct error *err) {
    struct model_config m = {.n_eos = 0};
    struct json *root = NULL;
    enum status st = json_parse(&root, config, NULL, err);

    if (st == ST_OK) st = read_config(root, &m, err);
    json_destroy(root);
    if (st != ST_OK) return error_prefix(err, "config.json"), st;
    if (generation.len) {
        root = NULL;
        st = json_parse(&root, generation, NULL, err);
        if (st == ST_OK) st = read_eos(root, &m, err);
        if (st == ST_OK) st = read_generation(root, &m.generation, err);
        json_destroy(root);
        if (st != ST_OK) return error_prefix(err, "generation_config.json"), st;
    }
    *out = m;
    return ST_OK;
}

enum status generation_config_merge(struct generation_config *g, struct str text, char ignored[64],
                                    struct error *err) {
    static const char *const names[] = {"temperature", "top_p", "min_p", "top_k",
                                        "repetition_penalty"};
    struct generation_config new = {0};
    struct json *root = NULL;
    enum status st = json_parse(&root, text, NULL, err);

    ignored[0] = '\0';
    if (st == ST_OK && json_type(root) != JSON_OBJECT)
        st =
            error_set(err, ST_INVALID, "the value must be an object, not %s", json_type_name(root));
    if (st == ST_OK) st = read_generation(root, &new, err);
    JSON_FOR_EACH(member, st == ST_OK ? root : NULL) {
        bool is_known = false;

        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            is_known |= str_eq(json_key(member), str_of(names[i]));
        if (!is_known && !ignored[0]) snprintf(ignored, 64, "%s", json_key(member).ptr);
    }
    json_destroy(root);
    if (st != ST_OK) return st;
    if (new.has_temperature) g->temperature = new.temperature;
    if (new.has_top_p) g->top_p = new.top_p;
    if (new.has_min_p) g->min_p = new.min_p;
    if (new.has_top_k) g->top_k = new.top_k;
    if (new.has_repetition_penalty) g->repetition_penalty = new.repetition_penalty;
    g->has_temperature |= new.has_temperature;
    g->has_top_p |= new.has_top_p;
    g->has_min_p |= new.has_min_p;
    g->has_top_k |= new.has_top_k;
    g->has_repetition_penalty |= new.has_repetition_penalty;
    return ST_OK;
}
