/* worker/grammar/schema/schema_raw.c - an object as parameters, strings as raw text.
 *
 *      first(i)  ->  key name(i) value(i) rest(i + 1)          |  first(i + 1)  if i is optional
 *      rest(i)   ->  between key name(i) value(i) rest(i + 1)  |  rest(i + 1)   if i is optional
 *      value     ->  text raw end  |  json JSON end
 *
 * Parameters are those that the schema declares or requires, in its order; its words about others
 * are left out, so that every answer is still one that it accepts. A string with a pattern, a
 * format or a length is written without the characters that JSON escapes: there both spellings are
 * one. Some templates print null and booleans as Python does, and models write them so. */
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/schema/schema_internal.h"

static bool is_limited(const struct shape *sh) {
    return sh->content != EXPR_ANY || sh->min_length > 0 || sh->max_length != EXPR_FOREVER;
}

/* Characters that are spelled inside the quotes of JSON as they are outside. */
static expr_id unescaped(struct schema *s) {
    struct char_set set = {0};
    expr_id e;

    char_set_add(&set, 0, 0x1F);
    char_set_add(&set, '"', '"');
    char_set_add(&set, '\\', '\\');
    char_set_complement(&set);
    e = expr_repeat(s->exprs, char_set_expr(&set, s->exprs, CHARS_PLAIN), 0, EXPR_FOREVER);
    char_set_fini(&set);
    return e;
}

/* Does the string satisfy the other keywords of the shape? */
static bool is_member(struct schema *s, const struct shape *sh, struct str value) {
    expr_id both;

    if (!(sh->types & TYPE_STRING)) return false;
    if (!is_limited(sh)) return true;
    both = expr_and(s->exprs, schema_string_content(s, sh),
                    char_text_expr(s->exprs, value, CHARS_IN_JSON));
    exprs_freeze(s->exprs);
    return expr_is_alive(s->exprs, both);
}

expr_id schema_raw_strings(struct schema *s, const struct shape *sh, expr_id raw) {
    struct exprs *x = s->exprs;
    expr_id e = EXPR_NONE;
    struct str text;

    if (!sh->value && !(sh->types & TYPE_STRING)) return EXPR_NONE;
    if (!sh->value && !is_limited(sh)) return raw;
    if (!sh->value)
        return expr_and(x, raw, expr_and(x, schema_string_content(s, sh), unescaped(s)));
    for (uint32_t i = 0; i < sh->n_values; i++)
        if (json_to_str(sh->value[i], &text) == ST_OK && is_member(s, sh, text))
            e = expr_alt(x, e, expr_literal(x, text));
    return expr_and(x, raw, e);
}

bool schema_without_strings(struct schema *s, const struct shape *sh, struct shape *out) {
    *out = *sh;
    out->types &= (uint8_t)~TYPE_STRING;
    if (!sh->value) return out->types != 0;
    out->value = arena_alloc(&s->arena, MAX(sh->n_values, 1u) * sizeof(const struct json *));
    out->n_values = 0;
    for (uint32_t i = 0; i < sh->n_values; i++)
        if (json_type(sh->value[i]) != JSON_STRING) out->value[out->n_values++] = sh->value[i];
    return out->n_values > 0;
}

/* --- words of Python -------------------------------------------------------------------------- */

static bool is_type_but_string(const struct json *type) {
    struct str name;

    if (json_type(type) == JSON_ARRAY) {
        JSON_FOR_EACH(it, type) {
            if (!is_type_but_string(it)) return false;
        }
        return true;
    }
    return json_to_str(type, &name) == ST_OK && !str_eq(name, STR("string"));
}

/* Its types are named, so that a reader of the word knows that it is no string. */
static bool names_types_but_string(const struct json *node) {
    static const char *const others[] = {"const", "enum", "$ref", "oneOf", "allOf"};
    const struct json *list = json_get(node, "anyOf");

    if (json_get(node, "type")) return is_type_but_string(json_get(node, "type"));
    if (json_type(list) != JSON_ARRAY) return false;
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (json_get(node, others[i])) return false;
    JSON_FOR_EACH(it, list) {
        if (!is_type_but_string(json_get(it, "type"))) return false;
    }
    return true;
}

/* Takes null and booleans out of a shape. */
static expr_id take_words(struct schema *s, struct shape *sh) {
    expr_id e = EXPR_NONE;

    if (sh->value) return e;
    if (sh->types & TYPE_NULL) e = expr_alt(s->exprs, e, expr_literal(s->exprs, STR("None")));
    if (sh->types & TYPE_BOOL && sh->bools & 2)
        e = expr_alt(s->exprs, e, expr_literal(s->exprs, STR("True")));
    if (sh->types & TYPE_BOOL && sh->bools & 1)
        e = expr_alt(s->exprs, e, expr_literal(s->exprs, STR("False")));
    sh->types &= (uint8_t) ~(TYPE_NULL | TYPE_BOOL);
    return e;
}

/* --- parameters ------------------------------------------------------------------------------- */

static bool is_blank(symbol s) {
    return s == rules_text(EXPR_EMPTY);
}

/* Values of any type are raw text alone: as JSON they would be text too. */
static enum status write_value(struct schema *s, symbol rule, const struct conjunction *c) {
    const struct schema_raw *raw = s->options->raw;
    const struct json *at = c->n ? c->node[0] : s->root;
    symbol json = rules_add(s->rules);
    bool has_words = raw->has_python && c->n == 1 && names_types_but_string(at);
    struct shapes shapes = {0};
    expr_id e = EXPR_NONE, words = EXPR_NONE;
    enum status st = schema_shapes(s, c, &shapes);

    for (uint32_t i = 0; i < shapes.n && st == ST_OK; i++) {
        struct shape rest;

        if (raw->raw == EXPR_NONE) {
            st = schema_write(s, json, shapes.shape[i], at);
            continue;
        }
        e = expr_alt(s->exprs, e, schema_raw_strings(s, shapes.shape[i], raw->raw));
        if (!schema_without_strings(s, shapes.shape[i], &rest)) continue;
        if (has_words) words = expr_alt(s->exprs, words, take_words(s, &rest));
        st = schema_write(s, json, &rest, at);
    }
    if (words != EXPR_NONE) rules_produce(s->rules, json, (symbol[]){rules_text(words)}, 1);
    if (e != EXPR_NONE)
        rules_produce(s->rules, rule, (symbol[]){raw->text, rules_text(e), raw->end}, 3);
    if (raw->raw == EXPR_NONE)
        rules_produce(s->rules, rule, (symbol[]){raw->json, json}, 2);
    else if (e != raw->raw)
        rules_produce(s->rules, rule, (symbol[]){raw->json, json, raw->end}, 3);
    return st;
}

/* propertyNames is about declared ones too. */
static expr_id name_of(struct schema *s, const struct shape *sh, struct str name) {
    expr_id both;

    if (sh->names != EXPR_ANY) {
        both = expr_and(s->exprs, char_text_expr(s->exprs, name, CHARS_IN_JSON), sh->names);
        exprs_freeze(s->exprs);
        if (!expr_is_alive(s->exprs, both)) return EXPR_NONE;
    }
    return expr_literal(s->exprs, name);
}

/* One parameter, and what follows it. */
static void write_parameter(struct schema *s, symbol rule, bool is_first, const expr_id name,
                            symbol value, symbol next) {
    const struct schema_raw *raw = s->options->raw;
    symbol all[5];
    uint32_t n = 0;

    if (!is_first && !is_blank(raw->between)) all[n++] = raw->between;
    if (!is_blank(raw->key)) all[n++] = raw->key;
    all[n++] = rules_text(name);
    all[n++] = value;
    all[n++] = next;
    rules_produce(s->rules, rule, all, n);
}

static enum status write_parameters(struct schema *s, symbol rule, const struct shape *sh,
                                    const struct json *at) {
    symbol first = rule, rest = 0; /* 0: nothing leads there */
    uint32_t n_required = 0;
    enum status st = schema_check_optional(s, sh, at);

    if (st != ST_OK) return st;
    for (uint32_t i = 0; i < sh->n_properties; i++)
        n_required += sh->property[i].is_required;
    if (sh->min_properties > n_required || sh->max_properties < sh->n_properties)
        return schema_refuse(s, at, "minProperties and maxProperties are supported in JSON alone");
    for (uint32_t i = 0; i < sh->n_properties && st == ST_OK; i++) {
        const struct property *p = &sh->property[i];
        symbol value = rules_add(s->rules), next = rules_add(s->rules), later = 0;
        expr_id name = name_of(s, sh, p->name);

        if (first) write_parameter(s, first, true, name, value, next);
        if (rest) write_parameter(s, rest, false, name, value, next);
        if (first && !p->is_required) {
            later = rules_add(s->rules);
            rules_produce(s->rules, first, &later, 1);
        }
        if (rest && !p->is_required) rules_produce(s->rules, rest, &next, 1);
        st = write_value(s, value, &p->value);
        first = later;
        rest = next;
    }
    if (first) rules_produce(s->rules, first, NULL, 0);
    if (rest) rules_produce(s->rules, rest, NULL, 0);
    return st;
}

enum status schema_write_raw(struct schema *s, symbol rule, const struct conjunction *c) {
    const struct json *at = s->root;
    struct shapes shapes = {0};
    bool has_object = false;
    enum status st = schema_shapes(s, c, &shapes);

    for (uint32_t i = 0; i < shapes.n && st == ST_OK; i++) {
        const struct shape *sh = shapes.shape[i];

        if (sh->value || !(sh->types & TYPE_OBJECT)) continue;
        has_object = true;
        st = write_parameters(s, rule, sh, at);
    }
    if (st == ST_OK && !has_object)
        return schema_refuse(s, at, "parameters are an object: its type must allow one");
    return st;
}
