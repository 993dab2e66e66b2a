/* worker/grammar/schema/schema_disjoint.c - do two alternatives of a oneOf exclude each other?
 *
 * A grammar can enforce "one of" only where a value is of one alternative at most, so this must be
 * sure; a doubt is answered no. Scalars are compared exactly, as languages. Objects are
 * distinguished by a property that both require and whose values exclude each other (a const,
 * mostly), or that one requires and the other forbids. */
#include "worker/grammar/schema/schema_internal.h"

#define MAX_DEPTH 4u /* of properties looked into */

static const uint8_t scalars = TYPE_NULL | TYPE_BOOL | TYPE_NUMBER | TYPE_STRING;

static bool lists_scalars(const struct shape *sh) {
    for (uint32_t i = 0; i < sh->n_values; i++)
        if (json_type(sh->value[i]) == JSON_ARRAY || json_type(sh->value[i]) == JSON_OBJECT)
            return false;
    return sh->value != NULL;
}

static bool scalars_are_disjoint(struct schema *s, const struct shape *a, const struct shape *b) {
    struct exprs *x = s->exprs;
    expr_id p = EXPR_NONE, q = EXPR_NONE, both;

    if (!(a->types & b->types & scalars)) return true;
    if (a->value ? schema_values(s, a, &p) != ST_OK : (p = schema_scalars(s, a), false))
        return false;
    if (b->value ? schema_values(s, b, &q) != ST_OK : (q = schema_scalars(s, b), false))
        return false;
    both = expr_and(x, p, q);
    exprs_freeze(x);
    return !expr_is_alive(x, both) && exprs_failure(x) == EXPRS_OK;
}

static bool conjunctions_are_disjoint(struct schema *s, const struct conjunction *a,
                                      const struct conjunction *b, uint32_t depth) {
    struct shapes p = {0}, q = {0};

    if (depth >= MAX_DEPTH || !exprs_pay(s->exprs, 10)) return false;
    if (schema_shapes(s, a, &p) != ST_OK || schema_shapes(s, b, &q) != ST_OK) return false;
    for (uint32_t i = 0; i < p.n; i++)
        for (uint32_t k = 0; k < q.n; k++)
            if (!schema_are_disjoint(s, p.shape[i], q.shape[k], depth + 1)) return false;
    return true;
}

static const struct property *find(const struct shape *sh, struct str name) {
    for (uint32_t i = 0; i < sh->n_properties; i++)
        if (str_eq(sh->property[i].name, name)) return &sh->property[i];
    return NULL;
}

static bool forbids(const struct schema *s, const struct shape *sh) {
    bool is_silent = s->options->is_closed && sh->has_object && !sh->has_extra;

    return sh->n_patterns == 0 && (is_silent || conjunction_has_false(&sh->extra));
}

/* Is there a property that a requires by which it is no b? */
static bool tells_apart(struct schema *s, const struct shape *a, const struct shape *b,
                        uint32_t depth) {
    for (uint32_t i = 0; i < a->n_properties; i++) {
        const struct property *p = &a->property[i], *q;

        if (!p->is_required) continue;
        q = find(b, p->name);
        if (!q && forbids(s, b)) return true;
        if (q && q->is_required && conjunctions_are_disjoint(s, &p->value, &q->value, depth))
            return true;
    }
    return false;
}

bool schema_are_disjoint(struct schema *s, const struct shape *a, const struct shape *b,
                         uint32_t depth) {
    uint8_t common = a->types & b->types;

    if (common == 0) return true;
    if (!exprs_pay(s->exprs, 10)) return false;
    if (!scalars_are_disjoint(s, a, b)) return false;
    if (common & TYPE_ARRAY & ~(lists_scalars(a) || lists_scalars(b) ? TYPE_ARRAY : 0))
        return false;
    if (!(common & TYPE_OBJECT)) return true;
    return tells_apart(s, a, b, depth) || tells_apart(s, b, a, depth);
}
