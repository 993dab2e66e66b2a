/* worker/model/quant/config_gptq.c - quantization_config of GPTQ's writers. */
#include <string.h>

#include "worker/model/quant/config_internal.h"

/* What `dynamic` may change for some modules; absent keys stay. */
static enum status read_shape(const struct json *q, struct quant_scheme *s, struct error *err) {
    uint32_t bits = s->bits;
    enum status st = json_get_u32(q, "bits", 1, 32, &bits, NULL, err);

    if (st == ST_OK && !json_is_null(json_get(q, "group_size")))
        st = quant_config_group(q, &s->group_size, err);
    if (st == ST_OK && bits != 4 && bits != 8)
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported bits %u of quant_method gptq: supported are 4 and 8; use "
                         "another checkpoint of this model",
                         bits);
    s->bits = bits;
    return st;
}

/* "-:EXPRESSION" leaves modules plain; "+:EXPRESSION" and "EXPRESSION" override. */
static enum status read_dynamic(struct quant_config *c, const struct json *dynamic,
                                struct error *err) {
    if (!json_is_null(dynamic) && json_type(dynamic) != JSON_OBJECT)
        return error_set(err, ST_INVALID, "'dynamic' is not an object");
    JSON_FOR_EACH(v, dynamic) {
        struct str key = json_key(v);
        struct quant_scheme scheme = c->scheme;
        bool is_plain = str_starts(key, STR("-:"));
        enum status st = ST_OK;

        if (is_plain || str_starts(key, STR("+:"))) key = (struct str){key.ptr + 2, key.len - 2};
        if (!is_plain) st = read_shape(v, &scheme, err);
        if (st == ST_OK) st = quant_config_add(c, RULE_REGEX, key, is_plain ? NULL : &scheme, err);
        if (st != ST_OK) return error_prefix(err, "dynamic"), st;
    }
    return ST_OK;
}

static enum status read_format(struct quant_config *c, const struct json *q, struct error *err) {
    static const char *const keys[] = {"checkpoint_format", "format"};
    struct str format = STR("gptq"), pack;
    bool is_marlin = false;
    enum status st = json_get_bool(q, "is_marlin_format", &is_marlin, NULL, err);

    if (is_marlin) return quant_config_refuse(c, err, "format", STR("marlin"), "gptq or gptq_v2");
    for (size_t i = 0; i < ARRAY_LEN(keys) && st == ST_OK; i++) {
        if (json_is_null(json_get(q, keys[i]))) continue;
        st = quant_config_str(q, keys[i], "gptq", &format, err);
        break;
    }
    if (st == ST_OK) st = quant_config_str(q, "pack_dtype", "int32", &pack, err);
    if (st != ST_OK) return st;
    c->scheme.is_v1 = str_eq(format, STR("gptq")) || format.len == 0;
    if (!c->scheme.is_v1 && !str_eq(format, STR("gptq_v2")))
        return quant_config_refuse(c, err, "checkpoint_format", format, "gptq or gptq_v2");
    if (!str_eq(pack, STR("int32")))
        return quant_config_refuse(c, err, "pack_dtype", pack, "int32");
    return ST_OK;
}

enum status quant_read_gptq(struct quant_config *c, const struct json *q, struct error *err) {
    bool has_head = false;
    enum status st;

    c->scheme = (struct quant_scheme){.form = QUANT_FORM_GPTQ, .bits = 4};
    st = read_format(c, q, err);
    if (st == ST_OK) st = read_shape(q, &c->scheme, err);
    if (st == ST_OK) st = json_get_bool(q, "lm_head", &has_head, NULL, err);
    if (st == ST_OK) st = read_dynamic(c, json_get(q, "dynamic"), err);
    if (st == ST_OK)
        st = quant_config_add_list(c, RULE_PART, json_get(q, "modules_to_not_convert"),
                                   "modules_to_not_convert", err);
    if (has_head) c->head = QUANT_WANT_SCHEME;
    if (!json_is_null(json_get(q, "modules_in_block_to_quantize")))
        c->otherwise = QUANT_WANT_EITHER;
    return st;
}
