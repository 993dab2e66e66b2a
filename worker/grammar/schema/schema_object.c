/* worker/grammar/schema/schema_object.c - the keywords of objects, merged into a shape.
 *
 * A property that one node declares and another does not is, for the other, an additional one: it
 * must satisfy that node's additionalProperties too, or the patternProperties that its name
 * matches. */
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/schema/schema_internal.h"

/* Does a name, spelled as in JSON, match? */
static bool matches(struct schema *s, expr_id e, struct str name) {
    struct buf spelled;
    bool is_match;

    buf_init(&spelled, 0);
    char_spell_json(name, &spelled);
    exprs_freeze(s->exprs);
    is_match = expr_matches(s->exprs, e, buf_str(&spelled));
    exprs_note(s->exprs, &spelled);
    buf_fini(&spelled);
    return is_match;
}

struct reader {
    struct schema *s;
    struct shape *shape;
    const struct json *node, *properties, *patterns, *extra;
    struct strmap place_of; /* name -> index + 1 in the shape's properties */
    uint32_t n_before;      /* properties of the shape that other nodes brought */
    uint32_t n_patterns_before;
};

static struct property *find(const struct reader *r, struct str name) {
    uintptr_t place = (uintptr_t)strmap_find(&r->place_of, name);

    return place ? &r->shape->property[place - 1] : NULL;
}

static struct property *add_property(struct reader *r, struct str name) {
    struct shape *sh = r->shape;

    sh->property = schema_grow(r->s, sh->property, sh->n_properties, &sh->cap_properties,
                               sizeof(*sh->property));
    sh->property[sh->n_properties] = (struct property){.name = name};
    strmap_insert(&r->place_of, name, (void *)(uintptr_t)++sh->n_properties);
    return &sh->property[sh->n_properties - 1];
}

/* What nodes merged before ask of a property that they do not declare. */
static void add_earlier(struct reader *r, struct property *p) {
    bool is_matched = false;

    for (uint32_t i = 0; i < r->n_patterns_before; i++) {
        if (!matches(r->s, r->shape->pattern[i].name, p->name)) continue;
        is_matched = true;
        conjunction_add_all(r->s, &p->value, &r->shape->pattern[i].value);
    }
    if (!is_matched) conjunction_add_all(r->s, &p->value, &r->shape->extra);
}

static enum status read_properties(struct reader *r) {
    if (json_type(r->properties) == JSON_ABSENT) return ST_OK;
    if (json_type(r->properties) != JSON_OBJECT)
        return schema_refuse(r->s, r->properties, "properties must be an object");
    JSON_FOR_EACH(it, r->properties) {
        struct property *p = find(r, json_key(it));

        if (!p) {
            p = add_property(r, json_key(it));
            if (r->shape->has_object) add_earlier(r, p);
        }
        conjunction_add(r->s, &p->value, it);
    }
    return ST_OK;
}

static enum status read_patterns(struct reader *r) {
    struct shape *sh = r->shape;
    struct regex_rules rules = {.form = CHARS_IN_JSON};

    if (json_type(r->patterns) == JSON_ABSENT) return ST_OK;
    if (json_type(r->patterns) != JSON_OBJECT)
        return schema_refuse(r->s, r->patterns, "patternProperties must be an object");
    JSON_FOR_EACH(it, r->patterns) {
        struct pattern_property *p;
        struct error err = {0};

        sh->pattern =
            schema_grow(r->s, sh->pattern, sh->n_patterns, &sh->cap_patterns, sizeof(*sh->pattern));
        p = &sh->pattern[sh->n_patterns];
        *p = (struct pattern_property){.source = json_key(it)};
        if (regex_expr_parse(&p->name, r->s->exprs, p->source, &rules, &err) != ST_OK)
            return schema_refuse(r->s, it, "%s", err.message);
        conjunction_add(r->s, &p->value, it);
        if (sh->has_object) conjunction_add_all(r->s, &p->value, &sh->extra);
        sh->n_patterns++;
    }
    return ST_OK;
}

/* The node's patterns for each declared property, and its additionalProperties for those that it
 * neither declares nor matches. */
static void narrow_properties(struct reader *r) {
    struct shape *sh = r->shape;

    for (uint32_t i = 0; i < sh->n_properties; i++) {
        struct property *p = &sh->property[i];
        bool is_known = false;

        for (uint32_t k = r->n_patterns_before; k < sh->n_patterns; k++) {
            if (!matches(r->s, sh->pattern[k].name, p->name)) continue;
            is_known = true;
            conjunction_add_all(r->s, &p->value, &sh->pattern[k].value);
        }
        if (is_known || i >= r->n_before || !r->extra) continue;
        JSON_FOR_EACH(it, r->properties) {
            if (str_eq(json_key(it), p->name)) is_known = true;
        }
        if (!is_known) conjunction_add(r->s, &p->value, r->extra);
    }
    for (uint32_t k = 0; r->extra && k < r->n_patterns_before; k++)
        conjunction_add(r->s, &sh->pattern[k].value, r->extra);
    if (r->extra) conjunction_add(r->s, &sh->extra, r->extra);
}

/* A required property that is not declared comes behind those that are, with any value that
 * additional ones may have. */
static enum status read_required(struct reader *r) {
    const struct json *list = json_get(r->node, "required");
    struct str name;

    if (json_type(list) == JSON_ABSENT || json_type(list) == JSON_BOOL)
        return ST_OK; /* draft 3's */
    if (json_type(list) != JSON_ARRAY)
        return schema_refuse(r->s, list, "required must be an array of names");
    JSON_FOR_EACH(it, list) {
        struct property *p;

        if (json_to_str(it, &name) != ST_OK)
            return schema_refuse(r->s, it, "required must be an array of names");
        p = find(r, name);
        if (!p) {
            r->n_patterns_before = r->shape->n_patterns;
            p = add_property(r, name);
            add_earlier(r, p);
        }
        p->is_required = true;
    }
    return ST_OK;
}

/* The names of all properties, declared ones too. */
static enum status read_names(struct reader *r) {
    const struct json *v = json_get(r->node, "propertyNames");
    struct conjunction c = {0};
    struct shapes shapes = {0};
    expr_id names = EXPR_NONE;
    enum status st;

    if (json_type(v) == JSON_ABSENT) return ST_OK;
    conjunction_add(r->s, &c, v);
    if ((st = schema_shapes(r->s, &c, &shapes)) != ST_OK) return st;
    for (uint32_t i = 0; i < shapes.n; i++) {
        const struct shape *sh = shapes.shape[i];

        if (!(sh->types & TYPE_STRING)) continue;
        if (sh->value) {
            for (uint32_t k = 0; k < sh->n_values; k++) {
                struct str name;

                if (json_to_str(sh->value[k], &name) != ST_OK) continue;
                names =
                    expr_alt(r->s->exprs, names, char_text_expr(r->s->exprs, name, CHARS_IN_JSON));
            }
        } else {
            names = expr_alt(r->s->exprs, names, schema_string_content(r->s, sh));
        }
    }
    r->shape->names = expr_and(r->s->exprs, r->shape->names, names);
    return ST_OK;
}

static bool has_keywords(const struct json *node) {
    static const char *const names[] = {"properties", "patternProperties", "additionalProperties",
                                        "required",   "propertyNames",     "unevaluatedProperties"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_type(json_get(node, names[i])) != JSON_ABSENT) return true;
    return false;
}

enum status schema_object_keywords(struct schema *s, struct shape *shape, const struct json *node) {
    struct reader r = {.s = s,
                       .shape = shape,
                       .node = node,
                       .properties = json_get(node, "properties"),
                       .patterns = json_get(node, "patternProperties"),
                       .extra = json_get(node, "additionalProperties"),
                       .n_before = shape->n_properties,
                       .n_patterns_before = shape->n_patterns};
    bool value;
    enum status st;

    if (!has_keywords(node)) return ST_OK;
    if (!r.extra && json_to_bool(json_get(node, "unevaluatedProperties"), &value) == ST_OK &&
        !value)
        r.extra = json_get(node, "unevaluatedProperties");
    shape->has_extra |= r.extra || r.patterns;
    strmap_init(&r.place_of, 0);
    for (uint32_t i = 0; i < shape->n_properties; i++)
        strmap_insert(&r.place_of, shape->property[i].name, (void *)(uintptr_t)(i + 1));
    st = read_properties(&r);
    if (st == ST_OK) st = read_patterns(&r);
    if (st == ST_OK) narrow_properties(&r);
    if (st == ST_OK) st = read_required(&r);
    if (st == ST_OK) st = read_names(&r);
    strmap_fini(&r.place_of);
    shape->has_object = true;
    return st;
}
