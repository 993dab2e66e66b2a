/* worker/grammar/schema/schema_keywords.c - the keywords of each type, merged into a shape.
 *
 * Merging is intersection: the larger minimum, the smaller maximum, both patterns. An item or
 * property that two nodes describe must satisfy both, so its conjunction has both. */
#include <math.h>

#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/schema/schema_internal.h"

/* --- reading ---------------------------------------------------------------------------------- */

/* A count: a whole number, not negative. Large ones are as good as no limit. */
static enum status get_count(struct schema *s, const struct json *node, const char *name,
                             uint32_t *out, bool *is_there) {
    const struct json *v = json_get(node, name);
    uint64_t n;

    *is_there = json_type(v) != JSON_ABSENT;
    if (!*is_there) return ST_OK;
    if (json_to_u64(v, &n) != ST_OK)
        return schema_refuse(s, v, "%s must be a whole number, 0 or more", name);
    *out = (uint32_t)MIN(n, EXPR_FOREVER);
    return ST_OK;
}

static enum status merge_counts(struct schema *s, const struct json *node, const char *min_name,
                                const char *max_name, uint32_t *min, uint32_t *max) {
    uint32_t low, high;
    bool has_low, has_high;
    enum status st = get_count(s, node, min_name, &low, &has_low);

    if (st == ST_OK) st = get_count(s, node, max_name, &high, &has_high);
    if (st != ST_OK) return st;
    if (has_low && has_high && low > high)
        return schema_refuse(s, node, "%s > %s", min_name, max_name);
    if (has_low) *min = MAX(*min, low);
    if (has_high) *max = MIN(*max, high);
    return ST_OK;
}

/* --- type, enum, const ------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint8_t type;
} type_names[] = {{"null", TYPE_NULL},      {"boolean", TYPE_BOOL},  {"number", TYPE_NUMBER},
                  {"integer", TYPE_NUMBER}, {"string", TYPE_STRING}, {"array", TYPE_ARRAY},
                  {"object", TYPE_OBJECT}};

static enum status add_type(struct schema *s, const struct json *v, uint8_t *types,
                            bool *is_number) {
    struct str name;

    if (json_to_str(v, &name) != ST_OK) return schema_refuse(s, v, "a type must be a string");
    for (size_t i = 0; i < ARRAY_LEN(type_names); i++) {
        if (!str_eq(name, str_of(type_names[i].name))) continue;
        *types |= type_names[i].type;
        *is_number |= str_eq(name, STR("number"));
        return ST_OK;
    }
    return schema_refuse(s, v, "unknown type \"%.*s\"", (int)MIN(name.len, 40), name.ptr);
}

static enum status merge_type(struct schema *s, struct shape *shape, const struct json *node) {
    const struct json *v = json_get(node, "type");
    uint8_t types = 0;
    bool is_number = false;
    enum status st = ST_OK;

    if (json_type(v) == JSON_ABSENT) return ST_OK;
    if (json_type(v) != JSON_ARRAY) {
        st = add_type(s, v, &types, &is_number);
    } else {
        JSON_FOR_EACH(it, v) {
            if (st == ST_OK) st = add_type(s, it, &types, &is_number);
        }
    }
    shape->types &= types;
    shape->is_integer |= !is_number;
    return st;
}

static uint8_t type_of(const struct json *v) {
    switch (json_type(v)) {
    case JSON_NULL: return TYPE_NULL;
    case JSON_BOOL: return TYPE_BOOL;
    case JSON_NUMBER: return TYPE_NUMBER;
    case JSON_STRING: return TYPE_STRING;
    case JSON_ARRAY: return TYPE_ARRAY;
    default: return TYPE_OBJECT;
    }
}

/* The same text when written: numbers by value, members in any order. */
static bool is_equal(struct schema *s, const struct json *a, const struct json *b) {
    struct buf p, q;
    struct json_writer w;
    bool same;

    if (json_type(a) != json_type(b)) return false;
    buf_init(&p, 0);
    buf_init(&q, 0);
    json_writer_init(&w, &p);
    json_put_tree(&w, a);
    json_writer_init(&w, &q);
    json_put_tree(&w, b);
    same = str_eq(buf_str(&p), buf_str(&q));
    exprs_note(s->exprs, &p);
    buf_fini(&p);
    exprs_note(s->exprs, &q);
    buf_fini(&q);
    return same;
}

/* Keeps of the listed values those in the new list, where there was one before. */
static void merge_list(struct schema *s, struct shape *shape, const struct json **list,
                       uint32_t n) {
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        bool is_in = !shape->value;

        for (uint32_t k = 0; k < shape->n_values && !is_in; k++)
            is_in = exprs_pay(s->exprs, 10) && is_equal(s, shape->value[k], list[i]);
        if (is_in) list[kept++] = list[i];
    }
    shape->value = list;
    shape->n_values = kept;
    if (kept == 0) shape->types = 0;
}

static enum status merge_values(struct schema *s, struct shape *shape, const struct json *node) {
    const struct json *values = json_get(node, "enum"), *constant = json_get(node, "const"), **list;
    uint32_t n = 0;

    if (json_type(values) != JSON_ABSENT) {
        if (json_type(values) != JSON_ARRAY || !json_first(values))
            return schema_refuse(s, values, "enum must be an array of values, one at least");
        list = arena_alloc(&s->arena, json_count(values) * sizeof(const struct json *));
        JSON_FOR_EACH(it, values) {
            list[n++] = it;
        }
        merge_list(s, shape, list, n);
    }
    if (json_type(constant) != JSON_ABSENT) {
        list = arena_alloc(&s->arena, sizeof(const struct json *));
        list[0] = constant;
        merge_list(s, shape, list, 1);
    }
    if (shape->value) {
        uint8_t types = 0;

        for (uint32_t i = 0; i < shape->n_values; i++)
            types |= type_of(shape->value[i]);
        shape->types &= types;
    }
    return ST_OK;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static enum status read_decimal(struct schema *s, const struct json *v, const char *name,
                                struct decimal *out) {
    struct buf text;
    int64_t whole;
    double number;
    enum status st = ST_INVALID;

    buf_init(&text, 0);
    if (json_type(v) == JSON_NUMBER && json_to_i64(v, &whole) == ST_OK) {
        buf_appendf(&text, "%lld", (long long)whole);
        st = decimal_parse(out, buf_str(&text));
    } else if (json_to_f64(v, &number) == ST_OK) {
        buf_append_f64(&text, number);
        st = decimal_parse(out, buf_str(&text));
    }
    exprs_note(s->exprs, &text);
    buf_fini(&text);
    if (st == ST_OK) return ST_OK;
    return schema_refuse(s, v, "%s must be a number of at most %u digits on each side of the point",
                         name, DECIMAL_MAX_DIGITS);
}

/* Keeps the narrower of two bounds; `sign` 1 of lower ones, -1 of upper ones. */
static enum status merge_bound(struct schema *s, const struct json *node, const char *name,
                               bool is_exclusive, int sign, struct bound *b) {
    const struct json *v = json_get(node, name);
    struct bound other = {.is_set = true, .is_exclusive = is_exclusive};
    int order;
    enum status st;

    if (json_type(v) == JSON_ABSENT || json_type(v) == JSON_BOOL) return ST_OK; /* draft 4's flag */
    if ((st = read_decimal(s, v, name, &other.at)) != ST_OK) return st;
    order = b->is_set ? sign * decimal_compare(&other.at, &b->at) : 1;
    if (order > 0 || (order == 0 && is_exclusive)) *b = other;
    return ST_OK;
}

static enum status merge_multiple(struct schema *s, struct shape *shape, const struct json *node) {
    const struct json *v = json_get(node, "multipleOf");
    double number, digits;
    uint64_t whole, a, b;

    if (json_type(v) == JSON_ABSENT) return ST_OK;
    if (json_to_u64(v, &whole) == ST_OK && whole >= 1 && whole <= 10000) {
        a = shape->multiple ? shape->multiple : 1;
        for (b = whole; a % b != 0 && a <= 10000;) /* the least common multiple */
            a += shape->multiple ? shape->multiple : 1;
        if (a > 10000) return schema_refuse(s, v, "multipleOf is too large together with another");
        shape->multiple = a;
        return ST_OK;
    }
    if (json_to_f64(v, &number) == ST_OK && number > 0 && number < 1) {
        digits = round(-log10(number));
        if (digits <= 15 && fabs(number * pow(10, digits) - 1) < 1e-9) {
            shape->max_fraction = MIN(shape->max_fraction, (uint32_t)digits);
            return ST_OK;
        }
    }
    return schema_refuse(s, v, "multipleOf is supported for 1 to 10000, and for 0.1, 0.01, ...");
}

static enum status merge_numbers(struct schema *s, struct shape *shape, const struct json *node) {
    enum status st = merge_bound(s, node, "minimum", false, 1, &shape->low);
    int order;

    if (st == ST_OK) st = merge_bound(s, node, "exclusiveMinimum", true, 1, &shape->low);
    if (st == ST_OK) st = merge_bound(s, node, "maximum", false, -1, &shape->high);
    if (st == ST_OK) st = merge_bound(s, node, "exclusiveMaximum", true, -1, &shape->high);
    if (st == ST_OK) st = merge_multiple(s, shape, node);
    if (st != ST_OK || !shape->low.is_set || !shape->high.is_set) return st;
    order = decimal_compare(&shape->low.at, &shape->high.at);
    if (order > 0 && (json_get(node, "minimum") || json_get(node, "exclusiveMinimum")) &&
        (json_get(node, "maximum") || json_get(node, "exclusiveMaximum")))
        return schema_refuse(s, node, "minimum > maximum");
    if (order > 0 || (order == 0 && (shape->low.is_exclusive || shape->high.is_exclusive)))
        shape->types &= (uint8_t)~TYPE_NUMBER;
    return ST_OK;
}

/* --- strings ---------------------------------------------------------------------------------- */

static enum status read_pattern(struct schema *s, const struct json *at, struct str source,
                                expr_id *out) {
    struct regex_rules rules = {.form = CHARS_IN_JSON};
    struct error err = {0};

    if (regex_expr_parse(out, s->exprs, source, &rules, &err) == ST_OK) return ST_OK;
    return schema_refuse(s, at, "%s", err.message);
}

static enum status merge_strings(struct schema *s, struct shape *shape, const struct json *node) {
    const struct json *pattern = json_get(node, "pattern");
    struct str text;
    expr_id e;
    enum status st =
        merge_counts(s, node, "minLength", "maxLength", &shape->min_length, &shape->max_length);

    if (st != ST_OK) return st;
    if (json_type(pattern) != JSON_ABSENT) {
        if (json_to_str(pattern, &text) != ST_OK)
            return schema_refuse(s, pattern, "pattern must be a string");
        if ((st = read_pattern(s, pattern, text, &e)) != ST_OK) return st;
        shape->content = expr_and(s->exprs, shape->content, e);
    }
    if (json_to_str(json_get(node, "format"), &text) == ST_OK)
        shape->content = expr_and(s->exprs, shape->content, schema_format(s, text));
    if (shape->min_length > shape->max_length) shape->types &= (uint8_t)~TYPE_STRING;
    return ST_OK;
}

/* --- arrays ----------------------------------------------------------------------------------- */

/* The i-th item of the node: in `prefix`, or `rest`, which may be absent. */
static void merge_items(struct schema *s, struct shape *shape, const struct json *prefix,
                        const struct json *rest) {
    const struct json *it = json_first(prefix);
    bool value;
    uint32_t i = 0;

    for (; it || i < shape->n_prefix; i++) {
        if (i == shape->n_prefix) {
            shape->prefix =
                schema_grow(s, shape->prefix, i, &shape->cap_prefix, sizeof(*shape->prefix));
            shape->prefix[shape->n_prefix++] = shape->rest;
        }
        if (it) {
            conjunction_add(s, &shape->prefix[i], it);
        } else if (rest) {
            conjunction_add(s, &shape->prefix[i], rest);
        }
        it = it ? json_next(it) : NULL;
    }
    if (!rest) return;
    if (json_to_bool(rest, &value) == ST_OK && !value) {
        shape->max_items = MIN(shape->max_items, (uint32_t)json_count(prefix));
    } else {
        conjunction_add(s, &shape->rest, rest);
    }
}

static enum status merge_arrays(struct schema *s, struct shape *shape, const struct json *node) {
    const struct json *prefix = json_get(node, "prefixItems"), *items = json_get(node, "items");
    bool value;
    enum status st =
        merge_counts(s, node, "minItems", "maxItems", &shape->min_items, &shape->max_items);

    if (st != ST_OK) return st;
    if (json_type(prefix) != JSON_ABSENT && json_type(prefix) != JSON_ARRAY)
        return schema_refuse(s, prefix, "prefixItems must be an array of schemas");
    if (json_type(items) == JSON_ARRAY) { /* of drafts before 2020-12 */
        prefix = items;
        items = json_get(node, "additionalItems");
    }
    if (!items && json_to_bool(json_get(node, "unevaluatedItems"), &value) == ST_OK && !value)
        items = json_get(node, "unevaluatedItems");
    merge_items(s, shape, prefix, items);
    if (shape->min_items > shape->max_items) shape->types &= (uint8_t)~TYPE_ARRAY;
    return ST_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

enum status schema_keywords(struct schema *s, struct shape *shape, const struct json *node) {
    enum status st = merge_type(s, shape, node);

    if (st == ST_OK) st = merge_values(s, shape, node);
    if (st == ST_OK) st = merge_numbers(s, shape, node);
    if (st == ST_OK) st = merge_strings(s, shape, node);
    if (st == ST_OK) st = merge_arrays(s, shape, node);
    if (st == ST_OK)
        st = merge_counts(s, node, "minProperties", "maxProperties", &shape->min_properties,
                          &shape->max_properties);
    if (st == ST_OK) st = schema_object_keywords(s, shape, node);
    if (shape->min_properties > shape->max_properties) shape->types &= (uint8_t)~TYPE_OBJECT;
    return st;
}
