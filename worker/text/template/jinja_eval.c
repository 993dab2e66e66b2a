/* worker/text/template/jinja_eval.c - expressions to values.
 *
 * Every step is counted and every level of recursion too, so a run ends. A scope is a block's own
 * variables and a pointer outwards: `for` bodies and macros open one, `if` does not; assignment
 * always goes to the innermost, so a loop cannot change what is outside but through a namespace. */
#include <stdarg.h>
#include <stdio.h>

#include "worker/text/template/jinja_internal.h"

static enum status eval(struct jinja_run *r, const struct jinja_node *n, struct jv *out);

/* --- limits and errors -------------------------------------------------------------------------*/
enum status jinja_fail(struct jinja_run *r, const char *fmt, ...) {
    char what[ERROR_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return error_set(r->err, ST_INVALID, "chat template, line %u: %s", r->line, what);
}

enum status jinja_charge(struct jinja_run *r, uint64_t steps) {
    r->steps += steps;
    if (r->steps <= r->limits.max_steps) return ST_OK;
    return error_set(r->err, ST_TOO_LARGE, "chat template, line %u: more than %llu steps", r->line,
                     (unsigned long long)r->limits.max_steps);
}

enum status jinja_enter(struct jinja_run *r, const struct jinja_node *n) {
    r->line = n->line;
    TRY(jinja_charge(r, 1));
    if (r->depth >= JINJA_MAX_DEPTH) {
        return error_set(r->err, ST_TOO_LARGE, "chat template, line %u: more than %d levels deep",
                         r->line, JINJA_MAX_DEPTH);
    }
    r->depth++;
    return ST_OK;
}

/* --- variables ---------------------------------------------------------------------------------*/
static enum status find_variable(struct jinja_run *r, struct str name, struct jv *out) {
    for (struct jinja_scope *s = r->scope; s; s = s->outer) {
        struct jv vars = {.type = JV_DICT, .as.dict = &s->vars};
        struct jv_entry *entry;

        TRY(jv_find(r, vars, jv_string(name), &entry));
        if (!entry) continue;
        *out = entry->value;
        return ST_OK;
    }
    *out = jv_undefined(name);
    if (jinja_is_global(name)) out->type = JV_FUNCTION;
    return ST_OK;
}

enum status jinja_assign(struct jinja_run *r, struct str name, struct jv v) {
    struct jv vars = {.type = JV_DICT, .as.dict = &r->scope->vars};

    return jv_set(r, vars, jv_string(name), v);
}

enum status jinja_push_scope(struct jinja_run *r, struct jinja_scope *outer) {
    void *scope = NULL;

    TRY(jinja_alloc(r, sizeof(struct jinja_scope), &scope));
    r->scope = scope;
    r->scope->outer = outer;
    return ST_OK;
}

/* --- operators -------------------------------------------------------------------------------- */
static enum status eval_binary(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv a, b;

    TRY(eval(r, n->a, &a));
    TRY(eval(r, n->b, &b));
    r->line = n->line;
    return jinja_binary(r, n->op, a, b, out);
}

static enum status eval_slice(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    const struct jinja_node *parts[] = {n->b, n->c, n->d};
    struct jv v, bounds[3];

    TRY(eval(r, n->a, &v));
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        bounds[i] = jv_none();
        if (parts[i]) TRY(eval(r, parts[i], &bounds[i]));
    }
    r->line = n->line;
    return jinja_slice(r, v, bounds, out);
}

/* a < b < c compares neighbours, and stops at the first that fails. */
static enum status eval_compare(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv left, right;
    bool holds = true;

    TRY(eval(r, n->a, &left));
    for (const struct jinja_node *c = n->children; c && holds; c = c->next) {
        TRY(eval(r, c->a, &right));
        r->line = c->line;
        TRY(jinja_compare(r, c->op, left, right, &holds));
        left = right;
    }
    *out = jv_bool(holds);
    return ST_OK;
}

/* --- calls -------------------------------------------------------------------------------------*/
static enum status eval_arguments(struct jinja_run *r, const struct jinja_node *first,
                                  struct jinja_args *args) {
    void *positional = NULL, *named = NULL;
    size_t n_positional = 0, n_named = 0;

    memset(args, 0, sizeof(*args));
    for (const struct jinja_node *n = first; n; n = n->next) {
        if (n->name.len)
            n_named++;
        else
            n_positional++;
    }
    if (n_positional) TRY(jinja_alloc(r, n_positional * sizeof(struct jv), &positional));
    if (n_named) TRY(jinja_alloc(r, n_named * sizeof(struct jv_entry), &named));
    for (const struct jinja_node *n = first; n; n = n->next) {
        struct jv v;

        TRY(eval(r, n->a, &v));
        if (n->name.len) {
            ((struct jv_entry *)named)[args->n_named++] = (struct jv_entry){jv_string(n->name), v};
        } else if (args->n_named) {
            return jinja_fail(r, "a positional argument follows a named one");
        } else {
            ((struct jv *)positional)[args->n++] = v;
        }
    }
    args->positional = positional;
    args->named = named;
    return ST_OK;
}

struct jv jinja_arg(const struct jinja_args *args, size_t i, const char *name) {
    if (i < args->n) return args->positional[i];
    for (size_t k = 0; k < args->n_named; k++) {
        if (jv_is_string(args->named[k].key, name)) return args->named[k].value;
    }
    return jv_undefined(str_of(name));
}

static enum status bind_parameters(struct jinja_run *r, const struct jinja_node *macro,
                                   const struct jinja_args *args) {
    size_t i = 0;

    for (const struct jinja_node *p = macro->children; p; p = p->next, i++) {
        struct jv v = jv_undefined(p->name);
        bool is_given = i < args->n;

        if (is_given) v = args->positional[i];
        for (size_t k = 0; !is_given && k < args->n_named; k++) {
            is_given = str_eq(args->named[k].key.as.string, p->name);
            if (is_given) v = args->named[k].value;
        }
        if (!is_given && p->a) TRY(eval(r, p->a, &v));
        TRY(jinja_assign(r, p->name, v));
    }
    if (i < args->n)
        return jinja_fail(r, "macro '" STR_FMT "' takes %zu arguments, but got %zu",
                          STR_ARG(macro->name), i, args->n);
    return ST_OK;
}

static enum status call_macro(struct jinja_run *r, const struct jinja_macro *m,
                              const struct jinja_args *args, struct jv *out) {
    struct jinja_scope *caller = r->scope;

    TRY(jinja_enter(r, m->node));
    TRY(jinja_push_scope(r, m->scope));
    TRY(bind_parameters(r, m->node, args));
    TRY(jinja_capture(r, m->node->body, out));
    r->scope = caller;
    r->depth--;
    return ST_OK;
}

enum status jinja_call(struct jinja_run *r, struct jv f, const struct jinja_args *args,
                       struct jv *out) {
    if (f.type == JV_FUNCTION && f.macro) return call_macro(r, f.macro, args, out);
    if (f.type == JV_FUNCTION) return jinja_call_global(r, f.as.string, args, out);
    if (f.type == JV_UNDEFINED) {
        return jinja_fail(r, "'" STR_FMT "' is undefined", STR_ARG(f.as.string));
    }
    return jinja_fail(r, "%s is not callable", jv_type_name(f));
}

/* a.name(...) is a method of a's value, unless a is a namespace or a dict that holds a function. */
static enum status eval_call(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jinja_args args;
    struct jv self, f;

    if (n->a->kind == NODE_ATTR) {
        TRY(eval(r, n->a->a, &self));
        TRY(eval_arguments(r, n->children, &args));
        r->line = n->line;
        if (self.type == JV_DICT || self.type == JV_NAMESPACE) {
            TRY(jinja_attribute(r, self, n->a->name, &f));
            if (f.type == JV_FUNCTION) return jinja_call(r, f, &args, out);
        }
        return jinja_method(r, self, n->a->name, &args, out);
    }
    TRY(eval(r, n->a, &f));
    TRY(eval_arguments(r, n->children, &args));
    r->line = n->line;
    return jinja_call(r, f, &args, out);
}

/* --- expressions -------------------------------------------------------------------------------*/
static enum status eval_list(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    TRY(jv_new_list(r, 0, out));
    out->as.list->is_tuple = n->value.type == JV_BOOL;
    for (const struct jinja_node *c = n->children; c; c = c->next) {
        struct jv v;

        TRY(eval(r, c, &v));
        TRY(jv_push(r, *out, v));
    }
    return ST_OK;
}

static enum status eval_dict(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    TRY(jv_new_dict(r, 0, out));
    for (const struct jinja_node *c = n->children; c; c = c->next->next) {
        struct jv key, v;

        TRY(eval(r, c, &key));
        TRY(eval(r, c->next, &v));
        if (key.type != JV_STRING && !jv_is_number(key) && key.type != JV_NONE) {
            return jinja_fail(r, "%s cannot be a mapping key", jv_type_name(key));
        }
        TRY(jv_set(r, *out, key, v));
    }
    return ST_OK;
}

static enum status eval_filter(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jinja_args args;
    struct jv v;

    TRY(eval(r, n->a, &v));
    TRY(eval_arguments(r, n->children, &args));
    r->line = n->line;
    return jinja_filter(r, n->name, v, &args, out);
}

static enum status eval_test(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jinja_args args;
    bool holds = false;
    struct jv v;

    TRY(eval(r, n->a, &v));
    TRY(eval_arguments(r, n->children, &args));
    r->line = n->line;
    TRY(jinja_test(r, n->name, v, &args, &holds));
    *out = jv_bool(holds);
    return ST_OK;
}

static enum status eval_negate(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv v;

    TRY(eval(r, n->a, &v));
    if (!jv_is_number(v)) return jinja_fail(r, "%s cannot be negated", jv_type_name(v));
    if (v.type != JV_FLOAT) return jinja_binary(r, OP_SUB, jv_int(0), v, out);
    *out = jv_float(-v.as.number);
    return ST_OK;
}

static enum status eval_kind(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv a, b;

    switch (n->kind) {
    case NODE_CONST: *out = n->value; return ST_OK;
    case NODE_NAME: return find_variable(r, n->name, out);
    case NODE_LIST: return eval_list(r, n, out);
    case NODE_DICT: return eval_dict(r, n, out);
    case NODE_ATTR: TRY(eval(r, n->a, &a)); return jinja_attribute(r, a, n->name, out);
    case NODE_ITEM:
        TRY(eval(r, n->a, &a));
        TRY(eval(r, n->b, &b));
        return jinja_subscript(r, a, b, out);
    case NODE_SLICE: return eval_slice(r, n, out);
    case NODE_CALL: return eval_call(r, n, out);
    case NODE_FILTER: return eval_filter(r, n, out);
    case NODE_TEST: return eval_test(r, n, out);
    case NODE_NOT:
        TRY(eval(r, n->a, &a));
        *out = jv_bool(!jv_is_true(a));
        return ST_OK;
    case NODE_NEGATE: return eval_negate(r, n, out);
    case NODE_AND:
    case NODE_OR:
        TRY(eval(r, n->a, out));
        return jv_is_true(*out) == (n->kind == NODE_AND) ? eval(r, n->b, out) : ST_OK;
    case NODE_BINARY: return eval_binary(r, n, out);
    case NODE_COMPARE: return eval_compare(r, n, out);
    case NODE_IF_ELSE:
        TRY(eval(r, n->b, &b));
        if (jv_is_true(b)) return eval(r, n->a, out);
        if (n->c) return eval(r, n->c, out);
        *out = jv_undefined(STR("the other branch of an if"));
        return ST_OK;
    default: return ST_INTERNAL;
    }
}

static enum status eval(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    TRY(jinja_enter(r, n));
    TRY(eval_kind(r, n, out));
    r->depth--;
    return ST_OK;
}

enum status jinja_eval(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    return eval(r, n, out);
}
