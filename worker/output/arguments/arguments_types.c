/* worker/output/arguments/arguments_types.c - the types that a tool's schema allows a
 * parameter, and a text as a value of one of them. */
#include "common/text/json.h"
#include "worker/output/arguments/arguments_internal.h"

#define MAX_HOPS 16u /* over references and alternatives */

static const struct json *member(const struct json *object, struct str name) {
    if (json_type(object) == JSON_OBJECT) JSON_FOR_EACH(it, object)
    if (str_eq(json_key(it), name)) return it;
    return NULL;
}

/* `#/$defs/x`; no escapes. NULL if it leads nowhere. */
static const struct json *follow(const struct json *root, struct str pointer) {
    if (!str_starts(pointer, STR("#"))) return NULL;
    for (size_t i = 1; root && i < pointer.len;) {
        const char *from = pointer.ptr + i + 1;
        const char *to;

        if (pointer.ptr[i] != '/') return NULL;
        to = memchr(from, '/', pointer.len - i - 1);
        if (!to) to = pointer.ptr + pointer.len;
        root = member(root, (struct str){from, (size_t)(to - from)});
        i += 1 + (size_t)(to - from);
    }
    return root;
}

static unsigned type_named(const struct json *name) {
    static const struct {
        struct str name;
        unsigned type;
    } types[] = {
        {STR("null"), TYPE_NULL},       {STR("boolean"), TYPE_BOOLEAN},
        {STR("integer"), TYPE_INTEGER}, {STR("number"), TYPE_NUMBER},
        {STR("string"), TYPE_STRING},   {STR("array"), TYPE_ARRAY},
        {STR("object"), TYPE_OBJECT},
    };
    struct str text;

    if (json_to_str(name, &text) != ST_OK) return 0;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (str_eq(text, types[i].name)) return types[i].type;
    return 0;
}

static unsigned type_of_value(const struct json *v) {
    static const unsigned types[] = {
        [JSON_NULL] = TYPE_NULL,     [JSON_BOOL] = TYPE_BOOLEAN, [JSON_NUMBER] = TYPE_NUMBER,
        [JSON_STRING] = TYPE_STRING, [JSON_ARRAY] = TYPE_ARRAY,  [JSON_OBJECT] = TYPE_OBJECT,
    };

    return types[json_type(v)];
}

static unsigned types_in(const struct json *root, const struct json *schema, uint32_t hops);

/* 0 as soon as one alternative may be anything. */
static unsigned types_of_any(const struct json *root, const struct json *list, uint32_t hops) {
    unsigned all = 0;

    JSON_FOR_EACH(it, list) {
        unsigned types = types_in(root, it, hops);

        if (!types) return 0;
        all |= types;
    }
    return all;
}

static unsigned types_of_all(const struct json *root, const struct json *list, uint32_t hops) {
    unsigned all = ~0u, types;

    JSON_FOR_EACH(it, list)
    if ((types = types_in(root, it, hops)) != 0) all &= types;
    return all == ~0u ? 0 : all;
}

static unsigned types_said(const struct json *root, const struct json *schema, uint32_t hops) {
    const struct json *v;
    unsigned types = 0;
    struct str ref;

    if ((v = json_get(schema, "type")) != NULL) {
        if (json_type(v) != JSON_ARRAY) return type_named(v);
        JSON_FOR_EACH(it, v) types |= type_named(it);
        return types;
    }
    if ((v = json_get(schema, "const")) != NULL) return type_of_value(v);
    if ((v = json_get(schema, "enum")) != NULL) {
        JSON_FOR_EACH(it, v) types |= type_of_value(it);
        return types;
    }
    if (json_to_str(json_get(schema, "$ref"), &ref) == ST_OK)
        return types_in(root, follow(root, ref), hops);
    if ((v = json_get(schema, "anyOf")) != NULL) return types_of_any(root, v, hops);
    if ((v = json_get(schema, "oneOf")) != NULL) return types_of_any(root, v, hops);
    return types_of_all(root, json_get(schema, "allOf"), hops);
}

static unsigned types_in(const struct json *root, const struct json *schema, uint32_t hops) {
    unsigned types;
    bool is_nullable;

    if (hops == 0 || json_type(schema) != JSON_OBJECT) return 0;
    types = types_said(root, schema, hops - 1);
    if (types && json_to_bool(json_get(schema, "nullable"), &is_nullable) == ST_OK && is_nullable)
        types |= TYPE_NULL;
    return types;
}

unsigned types_of(const struct json *parameters, struct str name) {
    const struct json *schema = member(json_get(parameters, "properties"), name);

    if (!schema) schema = json_get(parameters, "additionalProperties");
    return types_in(parameters, schema, MAX_HOPS);
}

static struct str trim(struct str s) {
    while (s.len > 0 && is_blank((unsigned char)s.ptr[0]))
        s = (struct str){s.ptr + 1, s.len - 1};
    while (s.len > 0 && is_blank((unsigned char)s.ptr[s.len - 1]))
        s.len--;
    return s;
}

/* Of a text that is JSON. */
static unsigned type_of_text(struct str json) {
    switch (json.ptr[0]) {
    case 'n': return TYPE_NULL;
    case 't':
    case 'f': return TYPE_BOOLEAN;
    case '"': return TYPE_STRING;
    case '[': return TYPE_ARRAY;
    case '{': return TYPE_OBJECT;
    }
    for (size_t i = 0; i < json.len; i++)
        if (strchr(".eE", json.ptr[i])) return TYPE_NUMBER;
    return TYPE_INTEGER | TYPE_NUMBER;
}

void types_convert(unsigned types, struct str text, struct buf *out) {
    struct str t = trim(text);
    size_t before = buf_len(out);

    if (!types || types & TYPE_BOOLEAN) {
        bool is_true = str_eq_nocase(t, STR("true"));

        if (is_true || str_eq_nocase(t, STR("false"))) {
            buf_append_str(out, is_true ? STR("true") : STR("false"));
            return;
        }
    }
    if ((types & (TYPE_NULL | TYPE_STRING)) == TYPE_NULL && str_eq(t, STR("None"))) {
        buf_append_str(out, STR("null")); /* templates print earlier ones so */
        return;
    }
    if (literal_convert(t, out)) {
        unsigned is = type_of_text(t);
        unsigned may = !types                ? ~0u
                       : types & TYPE_STRING ? types & ~(unsigned)TYPE_STRING
                                             : types | ~(unsigned)TYPE_NULL;

        if (is & may) return;
        buf_truncate(out, before);
    }
    put_quoted_str(out, text);
}
