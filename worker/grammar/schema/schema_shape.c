/* worker/grammar/schema/schema_shape.c - the alternatives of nodes that hold together.
 *
 * One shape is begun that allows all; each node narrows it. anyOf and oneOf make several of each:
 * one for each alternative. What has no value left is dropped. */
#include "worker/grammar/schema/schema_internal.h"

static void add_shape(struct schema *s, struct shapes *out, struct shape *shape) {
    out->shape = schema_grow(s, out->shape, out->n, &out->cap, sizeof(*out->shape));
    out->shape[out->n++] = shape;
}

static void *copy_array(struct schema *s, const void *array, uint32_t n, size_t size) {
    void *copy;

    if (n == 0) return NULL;
    copy = arena_alloc(&s->arena, n * size);
    return memcpy(copy, array, n * size);
}

static struct shape *fork_shape(struct schema *s, const struct shape *from) {
    struct shape *to = arena_alloc(&s->arena, sizeof(*to));

    *to = *from;
    to->property = copy_array(s, from->property, from->n_properties, sizeof(*to->property));
    to->prefix = copy_array(s, from->prefix, from->n_prefix, sizeof(*to->prefix));
    to->pattern = copy_array(s, from->pattern, from->n_patterns, sizeof(*to->pattern));
    to->cap_properties = to->n_properties;
    to->cap_prefix = to->n_prefix;
    to->cap_patterns = to->n_patterns;
    return to;
}

/* --- keywords that are refused ---------------------------------------------------------------- */

static bool is_member(const struct json *node, const char *name) {
    return json_type(json_get(node, name)) != JSON_ABSENT;
}

static enum status refuse_keywords(struct schema *s, const struct json *node) {
    static const char *const names[] = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "contains",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "$dynamicRef",
                                        "$recursiveRef"};
    static const char *const unevaluated[] = {"unevaluatedProperties", "unevaluatedItems"};
    static const char *const applicators[] = {"$ref", "allOf", "anyOf", "oneOf"};
    bool value = false;

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (is_member(node, names[i]))
            return schema_refuse(s, node, "the keyword \"%s\" is not supported", names[i]);
    if (json_to_bool(json_get(node, "uniqueItems"), &value) == ST_OK && value)
        return schema_refuse(s, node, "the keyword \"uniqueItems\" is not supported");
    for (size_t i = 0; i < ARRAY_LEN(unevaluated); i++) {
        const struct json *v = json_get(node, unevaluated[i]);
        bool is_simple = json_to_bool(v, &value) == ST_OK;

        for (size_t k = 0; k < ARRAY_LEN(applicators) && !(is_simple && value); k++)
            is_simple &= !is_member(node, applicators[k]);
        if (v && !is_simple)
            return schema_refuse(s, node,
                                 "the keyword \"%s\" is supported as false, without $ref, allOf, "
                                 "anyOf and oneOf beside it",
                                 unevaluated[i]);
    }
    return ST_OK;
}

/* --- narrowing -------------------------------------------------------------------------------- */

static enum status apply(struct schema *s, const struct json *node, struct shapes *shapes,
                         uint32_t hops);

static enum status apply_ref(struct schema *s, const struct json *node, struct shapes *shapes,
                             uint32_t hops) {
    const struct json *to, *v = json_get(node, "$ref");
    struct str ref;
    enum status st;

    if (json_type(v) == JSON_ABSENT) return ST_OK;
    if (json_to_str(v, &ref) != ST_OK) return schema_refuse(s, v, "$ref must be a string");
    if ((st = schema_resolve(s, node, ref, &to)) != ST_OK) return st;
    return apply(s, to, shapes, hops + 1);
}

static enum status list_of(struct schema *s, const struct json *node, const char *name,
                           const struct json **out) {
    const struct json *list = json_get(node, name);

    *out = NULL;
    if (json_type(list) == JSON_ABSENT) return ST_OK;
    if (json_type(list) != JSON_ARRAY || !json_first(list))
        return schema_refuse(s, list, "%s must be an array of schemas, one at least", name);
    *out = list;
    return ST_OK;
}

static enum status apply_all_of(struct schema *s, const struct json *node, struct shapes *shapes,
                                uint32_t hops) {
    const struct json *list;
    enum status st = list_of(s, node, "allOf", &list);

    if (st != ST_OK || !list) return st;
    JSON_FOR_EACH(it, list) {
        if ((st = apply(s, it, shapes, hops + 1)) != ST_OK) return st;
    }
    return ST_OK;
}

/* Alternatives of a oneOf must exclude each other by themselves, or together with what is beside
 * them. */
static enum status check_disjoint(struct schema *s, const struct json *list,
                                  const struct shapes *of, const uint32_t *alternative) {
    for (uint32_t i = 0; i < of->n; i++)
        for (uint32_t k = 0; k < i; k++) {
            if (alternative[i] == alternative[k]) continue;
            if (schema_are_disjoint(s, of->shape[i], of->shape[k], 0)) continue;
            if (exprs_failure(s->exprs) != EXPRS_OK) return ST_INVALID;
            return schema_refuse(
                s, list,
                "alternatives %u and %u of oneOf may both hold: distinguish them by "
                "type, const or enum, or use anyOf",
                alternative[k], alternative[i]);
        }
    return ST_OK;
}

/* Of each shape, one for each alternative. */
static enum status apply_alternatives(struct schema *s, const struct json *node, const char *name,
                                      bool is_one, struct shapes *shapes, uint32_t hops) {
    const struct json *list;
    struct shapes all = {0};
    uint32_t *alternative, number = 0;
    enum status st = list_of(s, node, name, &list);

    if (st != ST_OK || !list) return st;
    alternative = arena_alloc(&s->arena, SHAPES_MAX * sizeof(*alternative));
    JSON_FOR_EACH(it, list) {
        struct shapes own = {0};

        for (uint32_t i = 0; i < shapes->n; i++)
            add_shape(s, &own, fork_shape(s, shapes->shape[i]));
        if ((st = apply(s, it, &own, hops + 1)) != ST_OK) return st;
        if (all.n + own.n > SHAPES_MAX || !exprs_pay(s->exprs, 20u * (own.n + 1)))
            return schema_refuse(s, list,
                                 "%s has more than %u alternatives, nested ones multiplied", name,
                                 SHAPES_MAX);
        for (uint32_t i = 0; i < own.n; i++) {
            alternative[all.n] = number;
            add_shape(s, &all, own.shape[i]);
        }
        number++;
    }
    if (is_one && (st = check_disjoint(s, list, &all, alternative)) != ST_OK) return st;
    *shapes = all;
    return ST_OK;
}

static enum status apply_object(struct schema *s, const struct json *node, struct shapes *shapes,
                                uint32_t hops) {
    enum status st = refuse_keywords(s, node);
    uint32_t kept = 0;

    if (st != ST_OK) return st;
    for (uint32_t i = 0; i < shapes->n && st == ST_OK; i++)
        st = schema_keywords(s, shapes->shape[i], node);
    for (uint32_t i = 0; i < shapes->n && st == ST_OK; i++)
        if (shapes->shape[i]->types != 0) shapes->shape[kept++] = shapes->shape[i];
    shapes->n = kept;
    if (st == ST_OK) st = apply_ref(s, node, shapes, hops);
    if (st == ST_OK) st = apply_all_of(s, node, shapes, hops);
    if (st == ST_OK) st = apply_alternatives(s, node, "anyOf", false, shapes, hops);
    if (st == ST_OK) st = apply_alternatives(s, node, "oneOf", true, shapes, hops);
    return st;
}

static enum status apply(struct schema *s, const struct json *node, struct shapes *shapes,
                         uint32_t hops) {
    bool value;

    if (hops > HOPS_MAX)
        return schema_refuse(s, node,
                             "the references lead back here without a value between: this "
                             "recursion is empty, or deeper than %u",
                             HOPS_MAX);
    if (!exprs_pay(s->exprs, 1)) return ST_INVALID;
    if (json_to_bool(node, &value) == ST_OK) {
        if (!value) shapes->n = 0;
        return ST_OK;
    }
    if (json_type(node) != JSON_OBJECT)
        return schema_refuse(s, node, "a schema is an object or a boolean, not %s",
                             json_type_name(node));
    return apply_object(s, node, shapes, hops);
}

enum status schema_shapes(struct schema *s, const struct conjunction *c, struct shapes *out) {
    static const struct shape everything = {.types = TYPE_ALL,
                                            .bools = 3,
                                            .max_fraction = UINT32_MAX,
                                            .max_length = EXPR_FOREVER,
                                            .content = EXPR_ANY,
                                            .max_items = EXPR_FOREVER,
                                            .names = EXPR_ANY,
                                            .max_properties = EXPR_FOREVER};
    struct shapes shapes = {0};
    enum status st = ST_OK;

    if (s->n_nested >= NESTED_MAX)
        return schema_refuse(s, c->n ? c->node[0] : s->root,
                             "propertyNames or oneOf are nested in their own schemas more than %u "
                             "times",
                             NESTED_MAX);
    s->n_nested++;
    add_shape(s, &shapes, fork_shape(s, &everything));
    for (uint32_t i = 0; i < c->n && st == ST_OK; i++)
        st = apply(s, c->node[i], &shapes, 0);
    s->n_nested--;
    *out = shapes;
    return st;
}
