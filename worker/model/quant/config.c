/* worker/model/quant/config.c - see config.h: which method, its rules, and fp8, awq, modelopt. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/model/quant/config_internal.h"

#define MAX_RULES       100000u
#define MAX_REGEX       1000u
#define MAX_REGEX_BYTES ((uint64_t)16 << 20) /* compiled, of all together */
#define MAX_RULE_NAME   256u                 /* bytes: names of modules have fewer */
#define MAX_GROUP       (1u << 20)

/* --- for the readers --------------------------------------------------------------------------*/
static enum status compile(struct quant_config *c, struct quant_rule *rule, struct error *err) {
    enum status st;

    if (c->n_regex == MAX_REGEX)
        return error_set(err, ST_INVALID,
                         "more than %u expressions of names of modules: put several into one, as "
                         "in (a|b)",
                         MAX_REGEX);
    if ((st = pattern_compile(&rule->pattern, rule->text, err)) != ST_OK) return st;
    c->n_regex++;
    c->regex_bytes += pattern_bytes(rule->pattern);
    if (c->regex_bytes <= MAX_REGEX_BYTES) return ST_OK;
    pattern_free(rule->pattern);
    return error_set(err, ST_INVALID,
                     "the expressions up to '%.100s' take more than %" PRIu64
                     " bytes: write shorter ones, without counts such as {1000}",
                     rule->text.ptr, MAX_REGEX_BYTES);
}

enum status quant_config_add(struct quant_config *c, enum rule_kind kind, struct str text,
                             const struct quant_scheme *scheme, struct error *err) {
    struct quant_rule rule = {.kind = kind, .text = text, .is_plain = !scheme};
    enum status st = ST_OK;

    if (scheme) rule.scheme = *scheme;
    if (c->n_rules == MAX_RULES)
        return error_set(err, ST_INVALID, "more than %u names of modules", MAX_RULES);
    if (kind == RULE_REGEX) st = compile(c, &rule, err);
    if (st != ST_OK) return st;
    if ((c->n_rules & (c->n_rules - 1)) == 0)
        c->rules = mem_realloc(c->rules, MAX(2u * c->n_rules, 1u) * sizeof(*c->rules));
    c->rules[c->n_rules++] = rule;
    return ST_OK;
}

enum status quant_config_add_list(struct quant_config *c, enum rule_kind kind,
                                  const struct json *list, const char *key, struct error *err) {
    struct str name;

    if (!json_is_null(list) && json_type(list) != JSON_ARRAY)
        return error_set(err, ST_INVALID, "'%s' is not a list of names of modules", key);
    JSON_FOR_EACH(v, list) {
        enum status st = json_to_str(v, &name);

        if (st == ST_OK && name.len > MAX_RULE_NAME) st = ST_INVALID;
        if (st != ST_OK)
            return error_set(err, ST_INVALID, "'%s' has an entry that is no name of a module", key);
        if ((st = quant_config_add(c, kind, name, NULL, err)) != ST_OK) return st;
    }
    return ST_OK;
}

enum status quant_config_str(const struct json *object, const char *key, const char *otherwise,
                             struct str *out, struct error *err) {
    const struct json *v = json_get(object, key);

    *out = otherwise ? str_of(otherwise) : STR_NULL;
    if (json_is_null(v) || json_to_str(v, out) == ST_OK) return ST_OK;
    return error_set(err, ST_INVALID, "'%s' is %s: it is a string", key, json_type_name(v));
}

enum status quant_config_refuse(const struct quant_config *c, struct error *err, const char *key,
                                struct str value, const char *is_read) {
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported %s '%.60s' of quant_method %s: supported is %s; use another "
                     "checkpoint of this model, or one that is not quantised",
                     key, value.ptr, c->method, is_read);
}

enum status quant_config_group(const struct json *object, uint32_t *group_size, struct error *err) {
    int64_t size = -1;
    enum status st = json_get_i64(object, "group_size", -1, MAX_GROUP, &size, NULL, err);

    if (st == ST_OK && size == 0)
        return error_set(err, ST_INVALID, "'group_size' is 0: it is -1 or the inputs of a group");
    *group_size = size > 0 ? (uint32_t)size : 0;
    return st;
}

/* --- fp8, awq, modelopt -----------------------------------------------------------------------*/
static enum status read_block(struct quant_config *c, const struct json *q, struct error *err) {
    const struct json *block = json_get(q, "weight_block_size"), *second = NULL;
    uint64_t n = 0, k = 0;

    if (json_is_null(block)) return ST_OK;
    if (json_count(block) == 2) second = json_next(json_first(block));
    if (!second || json_to_u64(json_first(block), &n) != ST_OK ||
        json_to_u64(second, &k) != ST_OK || !n || !k || n > MAX_GROUP || k > MAX_GROUP)
        return error_set(err, ST_INVALID, "'weight_block_size' is not two sizes, as in [128, 128]");
    c->scheme.block_n = (uint32_t)n;
    c->scheme.block_k = (uint32_t)k;
    return ST_OK;
}

static enum status read_fp8(struct quant_config *c, const struct json *q, struct error *err) {
    struct str fmt, activation;
    enum status st = quant_config_str(q, "fmt", "e4m3", &fmt, err);

    c->scheme = (struct quant_scheme){.form = QUANT_FORM_F8, .bits = 8, .is_symmetric = true};
    if (st == ST_OK) st = quant_config_str(q, "activation_scheme", "dynamic", &activation, err);
    if (st == ST_OK) st = read_block(c, q, err);
    if (st != ST_OK) return st;
    if (!str_eq(fmt, STR("e4m3")) && !str_eq(fmt, STR("float8_e4m3fn")))
        return quant_config_refuse(c, err, "fmt", fmt, "e4m3");
    if (str_eq(activation, STR("static"))) {
        c->scheme.inputs = QUANT_INPUTS_F8_STATIC;
    } else if (str_eq(activation, STR("dynamic"))) {
        c->scheme.inputs = c->scheme.block_n ? QUANT_INPUTS_F8_GROUPS : QUANT_INPUTS_F8;
    } else {
        return quant_config_refuse(c, err, "activation_scheme", activation, "dynamic or static");
    }
    st = quant_config_add_list(c, RULE_PART, json_get(q, "modules_to_not_convert"),
                               "modules_to_not_convert", err);
    if (st != ST_OK) return st;
    return quant_config_add_list(c, RULE_PART, json_get(q, "ignored_layers"), "ignored_layers",
                                 err);
}

static enum status read_awq(struct quant_config *c, const struct json *q, struct error *err) {
    static const char *const keys[] = {"version", "format", "checkpoint_format"};
    uint32_t bits = 4;
    bool has_zeros = true;
    struct str version;
    enum status st = json_get_u32(q, "bits", 1, 32, &bits, NULL, err);

    c->scheme = (struct quant_scheme){.form = QUANT_FORM_AWQ, .bits = 4};
    if (st == ST_OK) st = quant_config_group(q, &c->scheme.group_size, err);
    if (st == ST_OK) st = json_get_bool(q, "zero_point", &has_zeros, NULL, err);
    for (size_t i = 0; i < ARRAY_LEN(keys) && st == ST_OK; i++) {
        st = quant_config_str(q, keys[i], "gemm", &version, err);
        if (st == ST_OK && !str_eq_nocase(version, STR("gemm")))
            st = quant_config_refuse(c, err, keys[i], version, "gemm");
    }
    if (st != ST_OK) return st;
    if (bits != 4)
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported bits %u of quant_method awq: supported is 4; use another "
                         "checkpoint of this model",
                         bits);
    c->scheme.is_symmetric = !has_zeros;
    return quant_config_add_list(c, RULE_PART, json_get(q, "modules_to_not_convert"),
                                 "modules_to_not_convert", err);
}

static enum status read_modelopt(struct quant_config *c, const struct json *q, struct error *err) {
    static const struct {
        const char *name;
        enum quant_inputs inputs;
        uint32_t block;
    } algos[] = {{"FP8", QUANT_INPUTS_F8_STATIC, 0},
                 {"FP8_PER_CHANNEL_PER_TOKEN", QUANT_INPUTS_F8, 0},
                 {"FP8_PB_WO", QUANT_INPUTS_PLAIN, 128}};
    struct str algo;
    enum status st = quant_config_str(q, "quant_algo", "", &algo, err);
    size_t i = 0;

    if (st != ST_OK) return st;
    while (i < ARRAY_LEN(algos) && !str_eq(algo, str_of(algos[i].name)))
        i++;
    if (i == ARRAY_LEN(algos))
        return quant_config_refuse(c, err, "quant_algo", algo,
                                   "FP8, FP8_PER_CHANNEL_PER_TOKEN or FP8_PB_WO");
    c->scheme = (struct quant_scheme){.form = QUANT_FORM_F8,
                                      .bits = 8,
                                      .is_symmetric = true,
                                      .block_n = algos[i].block,
                                      .block_k = algos[i].block,
                                      .inputs = algos[i].inputs};
    st = quant_config_add_list(c, RULE_GLOB, json_get(q, "ignore"), "ignore", err);
    if (st != ST_OK) return st;
    return quant_config_add_list(c, RULE_GLOB, json_get(q, "exclude_modules"), "exclude_modules",
                                 err);
}

/* --- which method -----------------------------------------------------------------------------*/
static const struct method {
    const char *name;
    enum status (*read)(struct quant_config *c, const struct json *q, struct error *err);
    enum quant_want otherwise, head; /* lm_head, where no list names it */
} methods[] = {
    {"fp8", read_fp8, QUANT_WANT_SCHEME, QUANT_WANT_EITHER},
    {"compressed-tensors", quant_read_compressed, QUANT_WANT_PLAIN, QUANT_WANT_PLAIN},
    {"awq", read_awq, QUANT_WANT_SCHEME, QUANT_WANT_EITHER},
    {"gptq", quant_read_gptq, QUANT_WANT_SCHEME, QUANT_WANT_PLAIN},
    {"modelopt", read_modelopt, QUANT_WANT_SCHEME, QUANT_WANT_EITHER},
};

#define SUPPORTED                                                                                  \
    "supported are fp8, compressed-tensors, awq, gptq and modelopt's FP8; use a checkpoint of "    \
    "one of these, or the model's bfloat16 or float16 folder"

static enum status find_method(const struct method **out, const struct json *q, struct error *err) {
    struct str name;
    enum status st = quant_config_str(q, "quant_method", NULL, &name, err);

    if (st != ST_OK) return st;
    if (!name.ptr && !json_is_null(json_get(q, "quant_algo"))) name = STR("modelopt");
    if (!name.ptr)
        return error_set(
            err, ST_INVALID,
            "it has no 'quant_method', which names the format of the weights: " SUPPORTED);
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        if (!str_eq(name, str_of(methods[i].name))) continue;
        *out = &methods[i];
        return ST_OK;
    }
    return error_set(err, ST_UNSUPPORTED, "unsupported quant_method '%.60s': " SUPPORTED, name.ptr);
}

/* modelopt's, which quantises the KV cache alone: the weights are plain. */
static bool is_of_kv_cache(const struct json *q) {
    const struct json *method = json_get(q, "quant_method");
    struct str name = STR("modelopt");

    if (!json_is_null(method) && json_to_str(method, &name) != ST_OK) return false;
    return str_eq(name, STR("modelopt")) && json_is_null(json_get(q, "quant_algo")) &&
           json_get(q, "kv_cache_quant_algo");
}

/* Leaves c->method NULL when the weights are plain. */
static enum status read(struct quant_config *c, const struct json *q, struct error *err) {
    const struct method *m = NULL;
    enum status st;

    if (json_type(q) != JSON_OBJECT)
        return error_set(err, ST_INVALID, "it is %s, not an object", json_type_name(q));
    if (json_is_null(json_get(q, "quant_method")) &&
        json_type(json_get(q, "quantization")) == JSON_OBJECT)
        q = json_get(q, "quantization"); /* modelopt's, copied from hf_quant_config.json */
    if (is_of_kv_cache(q)) return ST_OK;
    if ((st = find_method(&m, q, err)) != ST_OK) return st;
    c->method = m->name;
    c->otherwise = m->otherwise;
    c->head = m->head;
    return m->read(c, q, err);
}

static enum status read_config(struct quant_config *c, const char *key, struct error *err) {
    enum status st = read(c, json_get(c->config, key), err);

    if (st != ST_OK) error_prefix(err, "config.json: %s", key);
    return st;
}

static enum status read_hf(struct quant_config *c, struct str text, struct error *err) {
    enum status st = json_parse(&c->hf, text, NULL, err);
    const struct json *q = st == ST_OK ? json_get(c->hf, "quantization") : NULL;

    if (st == ST_OK && json_type(c->hf) != JSON_OBJECT)
        st = error_set(err, ST_INVALID, "it is %s, not an object: download the model again",
                       json_type_name(c->hf));
    if (st == ST_OK && !json_is_null(q)) {
        st = read(c, q, err);
        if (st != ST_OK) error_prefix(err, "quantization");
    }
    if (st != ST_OK) error_prefix(err, "hf_quant_config.json");
    return st;
}

enum status quant_config_parse(struct quant_config **out, struct str config,
                               struct str hf_quant_config, struct error *err) {
    static const char *const keys[] = {
        "quantization_config", "compression_config" /* of older writers of compressed-tensors */};
    struct quant_config *c = mem_zalloc(sizeof(*c));
    enum status st = json_parse(&c->config, config, NULL, err);
    size_t i = 0;

    if (st != ST_OK) error_prefix(err, "config.json");
    while (st == ST_OK && i < ARRAY_LEN(keys) && json_is_null(json_get(c->config, keys[i])))
        i++;
    if (st == ST_OK && i < ARRAY_LEN(keys))
        st = read_config(c, keys[i], err);
    else if (st == ST_OK && hf_quant_config.ptr)
        st = read_hf(c, hf_quant_config, err);
    if (st == ST_OK && c->method) {
        *out = c;
        return ST_OK;
    }
    if (st == ST_OK) *out = NULL;
    quant_config_free(c);
    return st;
}

void quant_config_free(struct quant_config *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n_rules; i++)
        pattern_free(c->rules[i].pattern);
    mem_free(c->rules);
    json_destroy(c->config);
    json_destroy(c->hf);
    mem_free(c);
}

const char *quant_config_method(const struct quant_config *c) {
    return c ? c->method : NULL;
}

/* --- one module -------------------------------------------------------------------------------*/
/* *is_open: a loose reading of the rule would match. */
static enum status matches(const struct quant_rule *r, const char *module, bool *is_match,
                           bool *is_open, struct error *err) {
    struct str name = str_of(module);

    switch (r->kind) {
    case RULE_NAME: *is_match = str_eq(name, r->text); return ST_OK;
    case RULE_CLASS: *is_match = str_eq(r->text, STR("Linear")); return ST_OK;
    case RULE_REGEX: return pattern_match(r->pattern, name, is_match, err);
    case RULE_PART:
    case RULE_GLOB:
        *is_match = name_has_part(name, r->text) ||
                    (r->kind == RULE_GLOB && fnmatch(r->text.ptr, module, 0) == 0);
        *is_open |= r->text.len > 0 && str_find(name, r->text) >= 0;
        return ST_OK;
    }
    return ST_OK;
}

enum status quant_config_find(const struct quant_config *c, const char *module,
                              enum quant_want *want, struct quant_scheme *scheme,
                              struct error *err) {
    bool is_open = false, is_head = strcmp(module, "lm_head") == 0;

    *want = QUANT_WANT_PLAIN;
    for (uint32_t i = 0; c && i < c->n_rules; i++) {
        const struct quant_rule *r = &c->rules[i];
        bool is_match = false;
        enum status st = matches(r, module, &is_match, &is_open, err);

        if (st != ST_OK) return st;
        if (!is_match) continue;
        *scheme = r->is_plain ? c->scheme : r->scheme;
        *want = r->is_plain ? QUANT_WANT_PLAIN : QUANT_WANT_SCHEME;
        return ST_OK;
    }
    if (!c) return ST_OK;
    *scheme = c->scheme;
    *want = is_open ? QUANT_WANT_EITHER : is_head ? c->head : c->otherwise;
    return ST_OK;
}
