/* worker/model/quant/config_compressed.c - quantization_config of compressed-tensors.
 *
 * Groups of modules, each with a scheme for weights and one for inputs. Modules that `ignore`
 * matches are plain; then names and expressions of `targets` decide, group by group, and last the
 * class "Linear", as compressed-tensors' match_targets has it. */
#include <string.h>

#include "worker/model/quant/config_internal.h"

/* The settings of weights or inputs. */
struct args {
    bool is_present, is_float, is_symmetric, is_dynamic;
    uint32_t bits, group_size, block_n, block_k;
    struct str strategy;
};

static enum status read_block(const struct json *v, struct args *a, struct error *err) {
    static const uint32_t max = 1u << 20;
    uint64_t n = 0, k = 0;
    struct str text, second;
    ptrdiff_t x;

    if (json_to_str(v, &text) == ST_OK) { /* "128x128" */
        x = str_find(text, STR("x"));
        if (x >= 0) {
            second = (struct str){text.ptr + x + 1, text.len - (size_t)x - 1};
            text.len = (size_t)x;
            if (str_to_u64(text, &n) != ST_OK || str_to_u64(second, &k) != ST_OK) n = 0;
        }
    } else if (json_type(v) == JSON_ARRAY && json_count(v) == 2) {
        if (json_to_u64(json_first(v), &n) != ST_OK ||
            json_to_u64(json_next(json_first(v)), &k) != ST_OK)
            n = 0;
    }
    if (!n || !k || n > max || k > max)
        return error_set(err, ST_INVALID, "'block_structure' is not two sizes, as in [128, 128]");
    a->block_n = (uint32_t)n;
    a->block_k = (uint32_t)k;
    return ST_OK;
}

static enum status read_dynamic(const struct json *v, struct args *a, struct error *err) {
    struct str text;

    if (json_is_null(v) || json_to_bool(v, &a->is_dynamic) == ST_OK) return ST_OK;
    if (json_to_str(v, &text) == ST_OK && str_eq(text, STR("local"))) return ST_OK;
    return error_set(err, ST_INVALID, "'dynamic' is not true, false or \"local\"");
}

static enum status read_args(const struct quant_config *c, const struct json *v, const char *what,
                             struct args *a, struct error *err) {
    struct str type = STR_NULL;
    enum status st;

    *a = (struct args){.is_symmetric = true, .bits = 8};
    if (json_is_null(v)) return ST_OK;
    if (json_type(v) != JSON_OBJECT) return error_set(err, ST_INVALID, "'%s' is no object", what);
    a->is_present = true;
    st = quant_config_str(v, "type", "int", &type, err);
    if (st == ST_OK) st = quant_config_str(v, "strategy", "", &a->strategy, err);
    if (st == ST_OK) st = json_get_u32(v, "num_bits", 1, 32, &a->bits, NULL, err);
    if (st == ST_OK) st = json_get_bool(v, "symmetric", &a->is_symmetric, NULL, err);
    if (st == ST_OK) st = quant_config_group(v, &a->group_size, err);
    if (st == ST_OK) st = read_dynamic(json_get(v, "dynamic"), a, err);
    if (st == ST_OK && !json_is_null(json_get(v, "block_structure")))
        st = read_block(json_get(v, "block_structure"), a, err);
    if (st != ST_OK) return error_prefix(err, "%s", what), st;
    a->is_float = str_eq(type, STR("float"));
    if (!a->is_float && !str_eq(type, STR("int")))
        return quant_config_refuse(c, err, "type", type, "int or float");
    if (a->strategy.len == 0)
        a->strategy = a->block_n ? STR("block") : a->group_size ? STR("group") : STR("tensor");
    return ST_OK;
}

/* --- formats ----------------------------------------------------------------------------------*/
static const struct format {
    const char *name;
    bool is_float, is_packed;
} formats[] = {
    {"float-quantized", true, false}, {"int-quantized", false, false},
    {"naive-quantized", true, false}, {"naive-quantized", false, false},
    {"pack-quantized", false, true},
};

static enum status check_format(const struct quant_config *c, struct str format,
                                const struct args *w, struct error *err) {
    bool is_packed = false, is_known = false;

    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        if (!str_eq(format, str_of(formats[i].name)) || formats[i].is_float != w->is_float)
            continue;
        is_packed = formats[i].is_packed;
        is_known = true;
    }
    if (!is_known)
        return quant_config_refuse(c, err, "format", format,
                                   "float-quantized with floats, int-quantized and pack-quantized "
                                   "with integers");
    if (w->bits == 8 || (is_packed && w->bits == 4)) return ST_OK;
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported num_bits %u of format %.40s: supported are 8, and 4 of "
                     "pack-quantized; use another checkpoint of this model",
                     w->bits, format.ptr);
}

static enum status check_strategy(const struct quant_config *c, const struct args *w,
                                  struct error *err) {
    static const char *const integers[] = {"tensor", "channel", "group"};
    static const char *const floats[] = {"tensor", "channel", "block"};
    const char *const *list = w->is_float ? floats : integers;

    for (size_t i = 0; i < ARRAY_LEN(integers); i++) {
        if (str_eq(w->strategy, str_of(list[i]))) return ST_OK;
    }
    return quant_config_refuse(c, err, "strategy of weights", w->strategy,
                               w->is_float ? "tensor, channel or block with floats"
                                           : "tensor, channel or group with integers");
}

/* What becomes of the inputs. int8 inputs of a checkpoint with static scales get a scale for each
 * token instead, which is at least as close. */
static enum status read_inputs(const struct quant_config *c, const struct args *w,
                               const struct args *in, struct quant_scheme *s, struct error *err) {
    s->inputs = QUANT_INPUTS_PLAIN;
    if (!in->is_present) return ST_OK;
    if (in->bits != 8 || in->is_float != w->is_float || w->bits != 8)
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported input_activations of %u bits beside weights of %u bits: "
                         "supported are 8 beside 8, both int or both float, or none; use another "
                         "checkpoint of this model",
                         in->bits, w->bits);
    if (!in->is_float) {
        if (!in->is_symmetric)
            return quant_config_refuse(c, err, "symmetric of input_activations", STR("false"),
                                       "true");
        s->inputs = QUANT_INPUTS_I8;
    } else if (str_eq(in->strategy, STR("group"))) {
        s->inputs = QUANT_INPUTS_F8_GROUPS;
    } else {
        s->inputs = in->is_dynamic ? QUANT_INPUTS_F8 : QUANT_INPUTS_F8_STATIC;
    }
    return ST_OK;
}

static enum status read_scheme(const struct quant_config *c, const struct json *group,
                               struct str format, struct quant_scheme *s, struct error *err) {
    struct args w, in;
    struct str own;
    enum status st = read_args(c, json_get(group, "weights"), "weights", &w, err);

    if (st == ST_OK)
        st = read_args(c, json_get(group, "input_activations"), "input_activations", &in, err);
    if (st == ST_OK) st = quant_config_str(group, "format", NULL, &own, err);
    if (st != ST_OK) return st;
    if (!w.is_present) return error_set(err, ST_INVALID, "a group of config_groups has no weights");
    if (own.ptr) format = own;
    if ((st = check_format(c, format, &w, err)) != ST_OK) return st;
    if ((st = check_strategy(c, &w, err)) != ST_OK) return st;
    *s = (struct quant_scheme){
        .form = w.is_float                              ? QUANT_FORM_F8
                : str_eq(format, STR("pack-quantized")) ? QUANT_FORM_PACKED
                                                        : QUANT_FORM_I8,
        .bits = w.bits,
        .group_size = str_eq(w.strategy, STR("group")) ? w.group_size : 0,
        .block_n = str_eq(w.strategy, STR("block")) ? w.block_n : 0,
        .block_k = str_eq(w.strategy, STR("block")) ? w.block_k : 0,
        .is_symmetric = w.is_symmetric,
    };
    if (str_eq(w.strategy, STR("block")) && !w.block_n)
        return error_set(err, ST_INVALID, "strategy block without 'block_structure'");
    if (str_eq(w.strategy, STR("group")) && !w.group_size)
        return error_set(err, ST_INVALID,
                         "strategy group without 'group_size', or with -1: the number of "
                         "inputs of a group is missing; download config.json again");
    if (!w.is_symmetric && (w.is_float || in.is_present))
        return quant_config_refuse(c, err, "symmetric of weights", STR("false"),
                                   "true, or integers beside inputs that are not quantised");
    return read_inputs(c, &w, &in, s, err);
}

/* --- groups -----------------------------------------------------------------------------------*/
static bool is_class(struct str target) {
    return !str_starts(target, STR("re:")) && !memchr(target.ptr, '.', target.len) &&
           !str_eq(target, STR("lm_head"));
}

static enum status add_target(struct quant_config *c, struct str target,
                              const struct quant_scheme *s, struct error *err) {
    if (str_starts(target, STR("re:")))
        return quant_config_add(c, RULE_REGEX, (struct str){target.ptr + 3, target.len - 3}, s,
                                err);
    return quant_config_add(c, is_class(target) ? RULE_CLASS : RULE_NAME, target, s, err);
}

/* One pass adds names and expressions, another classes. */
static enum status add_targets(struct quant_config *c, const struct json *group,
                               const struct quant_scheme *s, bool of_classes, struct error *err) {
    const struct json *targets = json_get(group, "targets");
    struct str target;

    if (json_type(targets) != JSON_ARRAY)
        return error_set(err, ST_INVALID, "a group of config_groups has no list 'targets'");
    JSON_FOR_EACH(v, targets) {
        enum status st = ST_OK;

        if (json_to_str(v, &target) != ST_OK)
            return error_set(err, ST_INVALID, "'targets' has an entry that is no string");
        if (str_eq(target, STR("Embedding")))
            return quant_config_refuse(c, err, "target", target, "Linear");
        if (is_class(target) == of_classes) st = add_target(c, target, s, err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static enum status add_ignored(struct quant_config *c, const struct json *list, struct error *err) {
    struct str name;

    if (!json_is_null(list) && json_type(list) != JSON_ARRAY)
        return error_set(err, ST_INVALID, "'ignore' is not a list of names of modules");
    JSON_FOR_EACH(v, list) {
        enum status st;

        if (json_to_str(v, &name) != ST_OK)
            return error_set(err, ST_INVALID, "'ignore' has an entry that is no string");
        if ((st = add_target(c, name, NULL, err)) != ST_OK) return st;
    }
    return ST_OK;
}

/* Parts that change the arithmetic and are not built. */
static enum status check_rest(const struct quant_config *c, const struct json *q,
                              struct error *err) {
    const struct json *transform = json_get(q, "transform_config");
    const struct json *sparsity = json_get(q, "sparsity_config");
    struct str format;
    enum status st = quant_config_str(sparsity, "format", "dense", &format, err);

    if (st != ST_OK) return st;
    if (!str_eq(format, STR("dense")))
        return quant_config_refuse(c, err, "sparsity_config format", format, "dense");
    if (json_count(json_get(transform, "config_groups")) > 0)
        return quant_config_refuse(c, err, "transform_config", STR("of several groups"), "none");
    return ST_OK;
}

enum status quant_read_compressed(struct quant_config *c, const struct json *q, struct error *err) {
    const struct json *groups = json_get(q, "config_groups");
    struct str format;
    enum status st = quant_config_str(q, "format", "", &format, err);

    if (st == ST_OK) st = check_rest(c, q, err);
    if (st != ST_OK) return st;
    if (json_type(groups) != JSON_OBJECT)
        return error_set(err, ST_INVALID, "'config_groups' is missing or no object");
    st = add_ignored(c, json_get(q, "ignore"), err);
    for (int of_classes = 0; of_classes < 2; of_classes++) {
        JSON_FOR_EACH(group, st == ST_OK ? groups : NULL) {
            struct quant_scheme scheme;

            if ((st = read_scheme(c, group, format, &scheme, err)) != ST_OK)
                return error_prefix(err, "%.60s", json_key(group).ptr), st;
            c->scheme = scheme; /* of a module left plain, should the file have it quantised */
            if ((st = add_targets(c, group, &scheme, of_classes, err)) != ST_OK) return st;
        }
    }
    return st;
}
