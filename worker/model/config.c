/* worker/model/config.c - reading the two small files, and the RoPE table they imply.
 *
 * RoPE scaling follows the settings' definitions: linear divides positions; llama3 leaves short
 * wavelengths alone, divides long ones and blends between; YaRN blends by dimension and sharpens
 * attention by a factor on cos and sin. */
#include "worker/model/config.h"

#include "common/json.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

#define MAX_LAYERS  1024
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

static bool is_true(const struct json *c, const char *name) {
    bool value = false;

    return json_to_bool(json_get(c, name), &value) == ST_OK && value;
}

static enum status copy_text(const struct json *v, const char *name, char *out, size_t size,
                             struct error *err) {
    struct str s;

    if (json_to_str(v, &s) != ST_OK || s.len >= size) {
        return error_set(err, ST_INVALID, "'%s' is missing, or no name of at most %zu bytes", name,
                         size - 1);
    }
    memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
    return ST_OK;
}

/* --- shape -------------------------------------------------------------------------------------*/
static enum status read_heads(const struct json *c, struct model_config *m, struct error *err) {
    enum status st = need_u32(c, "num_attention_heads", MAX_LAYERS, &m->n_heads, err);
    bool has_head_dim;

    if (st != ST_OK) return st;
    m->n_kv_heads = m->n_heads;
    st = json_get_u32(c, "num_key_value_heads", 1, m->n_heads, &m->n_kv_heads, NULL, err);
    if (st == ST_OK) st = json_get_u32(c, "head_dim", 2, 1024, &m->head_dim, &has_head_dim, err);
    if (st != ST_OK) return st;
    if (m->n_heads % m->n_kv_heads) {
        return error_set(err, ST_INVALID,
                         "num_attention_heads %u is no multiple of "
                         "num_key_value_heads %u",
                         m->n_heads, m->n_kv_heads);
    }
    if (!has_head_dim) {
        if (m->d_model % m->n_heads) {
            return error_set(
                err, ST_INVALID,
                "hidden_size %u is no multiple of num_attention_heads %u, and there is "
                "no head_dim",
                m->d_model, m->n_heads);
        }
        m->head_dim = m->d_model / m->n_heads;
    }
    if (m->head_dim % 2 || m->head_dim > 1024) {
        return error_set(err, ST_UNSUPPORTED, "head_dim %u is not even, or over 1024", m->head_dim);
    }
    return ST_OK;
}

static enum status read_shape(const struct json *c, struct model_config *m, struct error *err) {
    enum status st;

    m->rms_eps = 1e-6;
    st = need_u32(c, "num_hidden_layers", MAX_LAYERS, &m->n_layers, err);
    if (st == ST_OK) st = need_u32(c, "hidden_size", MAX_WIDTH, &m->d_model, err);
    if (st == ST_OK) st = need_u32(c, "intermediate_size", MAX_WIDTH, &m->d_ff, err);
    if (st == ST_OK) st = need_u32(c, "vocab_size", MAX_VOCAB, &m->vocab, err);
    if (st == ST_OK) st = need_u32(c, "max_position_embeddings", MAX_CONTEXT, &m->max_context, err);
    if (st == ST_OK) st = json_get_f64(c, "rms_norm_eps", 0, 1, &m->rms_eps, NULL, err);
    if (st == ST_OK) st = read_heads(c, m, err);
    m->is_tied = is_true(c, "tie_word_embeddings");
    m->attention_bias = is_true(c, "attention_bias");
    m->mlp_bias = is_true(c, "mlp_bias");
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
                     "torch_dtype '%.40s' is not built; bfloat16, float16 and float32 are",
                     json_type(v) == JSON_STRING ? s.ptr : "?");
}

/* Keys that change the arithmetic, with the only value that is built. */
static enum status check_unbuilt(const struct json *c, const struct model_config *m,
                                 struct error *err) {
    struct str act = STR("silu"), method = STR("?");
    double partial = 1;
    uint32_t window = 0, first = 0;

    if (json_to_str(json_get(c, "hidden_act"), &act) == ST_OK && !str_eq(act, STR("silu"))) {
        return error_set(err, ST_UNSUPPORTED, "hidden_act '%.40s' is not built; silu is", act.ptr);
    }
    if (!json_is_null(json_get(c, "quantization_config"))) {
        const struct json *q = json_get(c, "quantization_config");

        if (json_to_str(json_get(q, "quant_method"), &method) != ST_OK) method = STR("?");
        return error_set(err, ST_UNSUPPORTED,
                         "quantization_config.quant_method '%.40s' is not built: take the model's "
                         "bfloat16, float16 or float32 folder",
                         method.ptr);
    }
    if (m->mlp_bias) {
        return error_set(err, ST_UNSUPPORTED, "mlp_bias true is not built; false is");
    }
    if (json_to_f64(json_get(c, "partial_rotary_factor"), &partial) == ST_OK && partial != 1) {
        return error_set(err, ST_UNSUPPORTED, "partial_rotary_factor %g is not built; 1 is",
                         partial);
    }
    if (!is_true(c, "use_sliding_window")) return ST_OK;
    if (json_get_u32(c, "sliding_window", 0, UINT32_MAX, &window, NULL, NULL) != ST_OK) window = 1;
    if (json_get_u32(c, "max_window_layers", 0, UINT32_MAX, &first, NULL, NULL) != ST_OK) first = 0;
    if (window && window < m->max_context && first < m->n_layers) {
        return error_set(err, ST_UNSUPPORTED,
                         "use_sliding_window with sliding_window %u from layer %u on is not built",
                         window, first);
    }
    return ST_OK;
}

/* --- RoPE --------------------------------------------------------------------------------------*/
static enum status need_f64(const struct json *c, const char *name, double min, double *out,
                            struct error *err) {
    bool is_present;
    enum status st = json_get_f64(c, name, min, 1e12, out, &is_present, err);

    if (st == ST_OK && !is_present) {
        st = error_set(err, ST_INVALID, "rope_scaling.%s is missing", name);
    }
    return st;
}

static enum status read_llama3(const struct json *s, struct rope_config *r, struct error *err) {
    enum status st = need_f64(s, "factor", 1, &r->factor, err);

    if (st == ST_OK) st = need_f64(s, "low_freq_factor", 1e-6, &r->low_freq_factor, err);
    if (st == ST_OK) st = need_f64(s, "high_freq_factor", 1e-6, &r->high_freq_factor, err);
    if (st == ST_OK) {
        st = need_f64(s, "original_max_position_embeddings", 1, &r->original_context, err);
    }
    if (st == ST_OK && r->high_freq_factor <= r->low_freq_factor) {
        st = error_set(err, ST_INVALID,
                       "rope_scaling.high_freq_factor %g is not above "
                       "low_freq_factor %g",
                       r->high_freq_factor, r->low_freq_factor);
    }
    return st;
}

static enum status read_yarn(const struct json *s, const struct model_config *m,
                             struct rope_config *r, struct error *err) {
    enum status st = need_f64(s, "factor", 1, &r->factor, err);

    r->original_context = m->max_context;
    r->beta_fast = 32;
    r->beta_slow = 1;
    if (!json_is_null(json_get(s, "mscale")) || !json_is_null(json_get(s, "mscale_all_dim"))) {
        return error_set(err, ST_UNSUPPORTED, "rope_scaling.mscale is not built");
    }
    if (st == ST_OK) {
        st = json_get_f64(s, "original_max_position_embeddings", 1, MAX_CONTEXT,
                          &r->original_context, NULL, err);
    }
    if (st == ST_OK) st = json_get_f64(s, "beta_fast", 1e-6, 1e6, &r->beta_fast, NULL, err);
    if (st == ST_OK) st = json_get_f64(s, "beta_slow", 1e-6, 1e6, &r->beta_slow, NULL, err);
    if (st == ST_OK) {
        st = json_get_f64(s, "attention_factor", 1e-6, 1e6, &r->attention_factor, NULL, err);
    }
    return st;
}

static void stretch_context(struct model_config *m, double tokens) {
    if (tokens > m->max_context) m->max_context = (uint32_t)MIN(tokens, (double)MAX_CONTEXT);
}

static enum status read_rope(const struct json *c, struct model_config *m, struct error *err) {
    const struct json *s = json_get(c, "rope_scaling"), *type;
    struct rope_config *r = &m->rope;
    struct str name = STR("default");
    enum status st;

    *r = (struct rope_config){.theta = 10000, .factor = 1};
    if (json_is_null(s)) s = json_get(c, "rope_parameters"); /* its name in newer files */
    st = json_get_f64(c, "rope_theta", 2, 1e12, &r->theta, NULL, err);
    if (st == ST_OK && !json_is_null(s)) {
        st = json_get_f64(s, "rope_theta", 2, 1e12, &r->theta, NULL, err);
    }
    if (st != ST_OK || json_is_null(s)) return st;
    type = json_get(s, "rope_type");
    if (json_is_null(type)) type = json_get(s, "type"); /* its name in older files */
    if (!json_is_null(type) && json_to_str(type, &name) != ST_OK) name = STR("?");
    if (str_eq(name, STR("default"))) return ST_OK;
    if (str_eq(name, STR("linear"))) {
        r->type = ROPE_LINEAR;
        st = need_f64(s, "factor", 1, &r->factor, err);
        if (st == ST_OK) stretch_context(m, m->max_context * r->factor);
        return st;
    }
    if (str_eq(name, STR("llama3"))) {
        r->type = ROPE_LLAMA3;
        return read_llama3(s, r, err);
    }
    if (str_eq(name, STR("yarn"))) {
        r->type = ROPE_YARN;
        st = read_yarn(s, m, r, err);
        if (st == ST_OK) stretch_context(m, r->original_context * r->factor);
        return st;
    }
    return error_set(
        err, ST_UNSUPPORTED,
        "rope_scaling.rope_type '%.40s' is not built; default, linear, llama3 and yarn "
        "are",
        name.ptr);
}

static double scale_llama3(const struct rope_config *r, double f) {
    double wavelength = 2 * PI / f;
    double smooth = (r->original_context / wavelength - r->low_freq_factor) /
                    (r->high_freq_factor - r->low_freq_factor);

    smooth = MIN(MAX(smooth, 0.0), 1.0);
    return f * ((1 - smooth) / r->factor + smooth);
}

/* The dimension that turns `rotations` times within the original context. */
static double yarn_dimension(const struct rope_config *r, uint32_t head_dim, double rotations) {
    return head_dim * log(r->original_context / (rotations * 2 * PI)) / (2 * log(r->theta));
}

static double scale_yarn(const struct rope_config *r, uint32_t head_dim, uint32_t i, double f) {
    double low = MAX(floor(yarn_dimension(r, head_dim, r->beta_fast)), 0.0);
    double high = MIN(ceil(yarn_dimension(r, head_dim, r->beta_slow)), head_dim - 1.0);
    double ramp = (i - low) / (high == low ? 0.001 : high - low);

    ramp = MIN(MAX(ramp, 0.0), 1.0);
    return f / r->factor * ramp + f * (1 - ramp);
}

void config_rope_table(const struct model_config *c, float *inv_freq, float *scale) {
    const struct rope_config *r = &c->rope;

    *scale = 1;
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        double f = pow(r->theta, -2.0 * i / c->head_dim);

        switch (r->type) {
        case ROPE_DEFAULT: break;
        case ROPE_LINEAR: f /= r->factor; break;
        case ROPE_LLAMA3: f = scale_llama3(r, f); break;
        case ROPE_YARN: f = scale_yarn(r, c->head_dim, i, f); break;
        }
        inv_freq[i] = (float)f;
    }
    if (r->type == ROPE_YARN) {
        *scale = (float)(r->attention_factor > 0 ? r->attention_factor : 0.1 * log(r->factor) + 1);
    }
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
            return error_set(err, ST_INVALID,
                             "eos_token_id is no id below vocab_size %u, nor a list of at most %d",
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

static enum status read_config(const struct json *c, struct model_config *m, struct error *err) {
    const struct json *architecture = json_first(json_get(c, "architectures"));
    enum status st;

    if (json_type(c) != JSON_OBJECT) return error_set(err, ST_INVALID, "it is no JSON object");
    st = copy_text(architecture, "architectures", m->architecture, sizeof(m->architecture), err);
    if (st == ST_OK && !json_is_null(json_get(c, "model_type"))) {
        st = copy_text(json_get(c, "model_type"), "model_type", m->model_type,
                       sizeof(m->model_type), err);
    }
    if (st == ST_OK) st = read_shape(c, m, err);
    if (st == ST_OK) st = read_dtype(c, m, err);
    if (st == ST_OK) st = check_unbuilt(c, m, err);
    if (st == ST_OK) st = read_rope(c, m, err);
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
