/* worker/text/jinja_eval.c - one run: expressions to values, statements to text.
 *
 * Every step is counted and every level of recursion too, so a run ends. A scope is a block's own
 * variables and a pointer outwards: `for` bodies and macros open one, `if` does not; assignment
 * always goes to the innermost, so a loop cannot change what is outside but through a namespace. */
#include "worker/text/jinja_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum status eval(struct jinja_run *r, const struct jinja_node *n, struct jv *out);
static enum status run_body(struct jinja_run *r, const struct jinja_node *n, enum flow *flow);

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

static enum status enter(struct jinja_run *r, const struct jinja_node *n) {
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

static enum status set_variable(struct jinja_run *r, struct str name, struct jv v) {
    struct jv vars = {.type = JV_DICT, .as.dict = &r->scope->vars};

    return jv_set(r, vars, jv_string(name), v);
}

static enum status push_scope(struct jinja_run *r, struct jinja_scope *outer) {
    void *scope = NULL;

    TRY(jinja_alloc(r, sizeof(struct jinja_scope), &scope));
    r->scope = scope;
    r->scope->outer = outer;
    return ST_OK;
}

/* --- attributes and items ----------------------------------------------------------------------*/
static enum status loop_attribute(struct jinja_run *r, const struct jinja_loop *l, struct str name,
                                  struct jv *out) {
    int64_t n = (int64_t)l->items->n, i = (int64_t)l->i;

    if (str_eq(name, STR("index")))
        *out = jv_int(i + 1);
    else if (str_eq(name, STR("index0")))
        *out = jv_int(i);
    else if (str_eq(name, STR("revindex")))
        *out = jv_int(n - i);
    else if (str_eq(name, STR("revindex0")))
        *out = jv_int(n - i - 1);
    else if (str_eq(name, STR("first")))
        *out = jv_bool(i == 0);
    else if (str_eq(name, STR("last")))
        *out = jv_bool(i == n - 1);
    else if (str_eq(name, STR("length")))
        *out = jv_int(n);
    else if (str_eq(name, STR("depth")))
        *out = jv_int(1); /* of recursive loops, which are not built */
    else if (str_eq(name, STR("depth0")))
        *out = jv_int(0);
    else if (str_eq(name, STR("previtem")))
        *out = i ? l->items->items[i - 1] : jv_undefined(name);
    else if (str_eq(name, STR("nextitem")))
        *out = i + 1 < n ? l->items->items[i + 1] : jv_undefined(name);
    else
        return jinja_fail(r, "loop has no attribute '" STR_FMT "'", STR_ARG(name));
    return ST_OK;
}

enum status jinja_attribute(struct jinja_run *r, struct jv v, struct str name, struct jv *out) {
    struct jv_entry *entry;

    *out = jv_undefined(name);
    switch (v.type) {
    case JV_UNDEFINED: return jinja_fail(r, "'" STR_FMT "' is undefined", STR_ARG(v.as.string));
    case JV_LOOP: return loop_attribute(r, v.as.loop, name, out);
    case JV_DICT:
    case JV_NAMESPACE:
        TRY(jv_find(r, v, jv_string(name), &entry));
        if (entry) *out = entry->value;
        return ST_OK;
    default: return ST_OK;
    }
}

static enum status item_at(struct jinja_run *r, struct jv v, int64_t i, struct jv *out) {
    int64_t n = (int64_t)jv_length(v);

    *out = jv_undefined(STR("item"));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return ST_OK;
    TRY(jinja_charge(r, v.type == JV_STRING ? v.as.string.len / 16 : 0));
    *out = v.type == JV_LIST ? v.as.list->items[i]
                             : jv_string(jinja_slice_text(v.as.string, (size_t)i, 1));
    return ST_OK;
}

static enum status subscript(struct jinja_run *r, struct jv v, struct jv key, struct jv *out) {
    if (key.type == JV_STRING) return jinja_attribute(r, v, key.as.string, out);
    if (v.type == JV_UNDEFINED) return jinja_attribute(r, v, STR(""), out);
    if (v.type == JV_DICT) {
        struct jv_entry *entry;

        TRY(jv_find(r, v, key, &entry));
        *out = entry ? entry->value : jv_undefined(STR("item"));
        return ST_OK;
    }
    if ((v.type == JV_LIST || v.type == JV_STRING) && key.type == JV_INT) {
        return item_at(r, v, key.as.integer, out);
    }
    *out = jv_undefined(STR("item"));
    return ST_OK;
}

static enum status slice_bound(struct jinja_run *r, const struct jinja_node *n, int64_t length,
                               int64_t low, int64_t high, int64_t absent, int64_t *out) {
    struct jv v = jv_none();

    if (n) TRY(eval(r, n, &v));
    *out = absent;
    if (v.type == JV_NONE) return ST_OK;
    if (v.type != JV_INT) return jinja_fail(r, "a slice wants integers, not %s", jv_type_name(v));
    *out = v.as.integer < 0 ? MAX(v.as.integer, -length) + length : v.as.integer;
    if (v.as.integer < -length) *out = low;
    *out = MIN(MAX(*out, low), high);
    return ST_OK;
}

/* As Python's: bounds are clipped, a negative step walks backwards. */
static enum status eval_slice(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv v, list, step_value = jv_none();
    int64_t length, from, to, step = 1;
    bool is_text;

    TRY(eval(r, n->a, &v));
    if (n->d) TRY(eval(r, n->d, &step_value));
    if (step_value.type == JV_INT) step = step_value.as.integer;
    if (!step) return jinja_fail(r, "a slice has step 0");
    is_text = v.type == JV_STRING;
    if (!is_text && v.type != JV_LIST) {
        return jinja_fail(r, "%s has no slices", jv_type_name(v));
    }
    length = (int64_t)jv_length(v);
    if (step > 0) {
        TRY(slice_bound(r, n->b, length, 0, length, 0, &from));
        TRY(slice_bound(r, n->c, length, 0, length, length, &to));
    } else {
        TRY(slice_bound(r, n->b, length, -1, length - 1, length - 1, &from));
        TRY(slice_bound(r, n->c, length, -1, length - 1, -1, &to));
    }
    if (is_text && step == 1) {
        TRY(jinja_charge(r, v.as.string.len / 16));
        *out = jv_string(
            jinja_slice_text(v.as.string, (size_t)from, to > from ? (size_t)(to - from) : 0));
        return ST_OK;
    }
    TRY(jv_iterate(r, v, &v));
    TRY(jv_new_list(r, 0, &list));
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        TRY(jv_push(r, list, v.as.list->items[i]));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (is_text) return jinja_join(r, list, STR(""), out);
    *out = list;
    return ST_OK;
}

/* --- operators ---------------------------------------------------------------------------------*/
static int64_t whole_of(struct jv v) {
    return v.type == JV_BOOL ? v.as.boolean : v.as.integer;
}

static enum status integer_operation(struct jinja_run *r, enum jinja_op op, int64_t a, int64_t b,
                                     struct jv *out) {
    int64_t v = 0, base = a;
    bool overflows = false;

    switch (op) {
    case OP_ADD: overflows = __builtin_add_overflow(a, b, &v); break;
    case OP_SUB: overflows = __builtin_sub_overflow(a, b, &v); break;
    case OP_MUL: overflows = __builtin_mul_overflow(a, b, &v); break;
    case OP_FLOOR_DIV:
    case OP_MOD:       /* towards minus infinity, as Python's */
        if (b == -1) { /* the one case that can overflow */
            overflows = op == OP_FLOOR_DIV && __builtin_sub_overflow(0, a, &v);
            break;
        }
        v = op == OP_MOD ? a % b : a / b;
        if (a % b && (a < 0) != (b < 0)) v += op == OP_MOD ? b : -1;
        break;
    case OP_POW:
        if (b > 64 && (a > 1 || a < -1)) overflows = true;
        if (b > 64) b = 64 + b % 2; /* of -1, 0 and 1 only the parity matters */
        for (v = 1; b > 0 && !overflows; b--)
            overflows = __builtin_mul_overflow(v, base, &v);
        break;
    default: return ST_INTERNAL;
    }
    if (overflows) return jinja_fail(r, "an integer does not fit 64 bits");
    *out = jv_int(v);
    return ST_OK;
}

static enum status number_operation(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
                                    struct jv *out) {
    bool is_whole = a.type != JV_FLOAT && b.type != JV_FLOAT;
    double x = jv_to_number(a), y = jv_to_number(b);

    if ((op == OP_DIV || op == OP_FLOOR_DIV || op == OP_MOD) && y == 0) {
        return jinja_fail(r, "division by zero");
    }
    if (is_whole && op != OP_DIV && !(op == OP_POW && y < 0)) {
        return integer_operation(r, op, whole_of(a), whole_of(b), out);
    }
    switch (op) {
    case OP_ADD: *out = jv_float(x + y); return ST_OK;
    case OP_SUB: *out = jv_float(x - y); return ST_OK;
    case OP_MUL: *out = jv_float(x * y); return ST_OK;
    case OP_DIV: *out = jv_float(x / y); return ST_OK;
    case OP_FLOOR_DIV: *out = jv_float(floor(x / y)); return ST_OK;
    case OP_MOD: *out = jv_float(x - y * floor(x / y)); return ST_OK;
    case OP_POW: *out = jv_float(pow(x, y)); return ST_OK;
    default: return ST_INTERNAL;
    }
}

static enum status concat(struct jinja_run *r, struct str a, struct str b, struct jv *out) {
    void *text;

    TRY(jinja_charge(r, (a.len + b.len) / 64));
    TRY(jinja_alloc(r, a.len + b.len + 1, &text));
    if (a.len) memcpy(text, a.ptr, a.len);
    if (b.len) memcpy((char *)text + a.len, b.ptr, b.len);
    *out = jv_string((struct str){text, a.len + b.len});
    return ST_OK;
}

static enum status repeat(struct jinja_run *r, struct str s, int64_t n, struct jv *out) {
    void *text;
    size_t total;

    if (n < 0) n = 0;
    if (__builtin_mul_overflow(s.len, (size_t)n, &total)) total = SIZE_MAX / 2;
    TRY(jinja_alloc(r, total + 1, &text));
    TRY(jinja_charge(r, total / 64 + (uint64_t)(s.len ? n : 0)));
    for (int64_t i = 0; s.len && i < n; i++)
        memcpy((char *)text + (size_t)i * s.len, s.ptr, s.len);
    *out = jv_string((struct str){text, total});
    return ST_OK;
}

static enum status append_lists(struct jinja_run *r, struct jv a, struct jv b, struct jv *out) {
    TRY(jv_new_list(r, a.as.list->n + b.as.list->n, out));
    for (size_t i = 0; i < a.as.list->n; i++)
        TRY(jv_push(r, *out, a.as.list->items[i]));
    for (size_t i = 0; i < b.as.list->n; i++)
        TRY(jv_push(r, *out, b.as.list->items[i]));
    return ST_OK;
}

static enum status eval_binary(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv a, b;

    TRY(eval(r, n->a, &a));
    TRY(eval(r, n->b, &b));
    r->line = n->line;
    if (n->op == OP_CONCAT) {
        struct str x, y;

        TRY(jv_to_string(r, a, &x));
        TRY(jv_to_string(r, b, &y));
        return concat(r, x, y, out);
    }
    if (jv_is_number(a) && jv_is_number(b)) return number_operation(r, n->op, a, b, out);
    if (n->op == OP_ADD && a.type == JV_STRING && b.type == JV_STRING) {
        return concat(r, a.as.string, b.as.string, out);
    }
    if (n->op == OP_ADD && a.type == JV_LIST && b.type == JV_LIST)
        return append_lists(r, a, b, out);
    if (n->op == OP_MUL && a.type == JV_STRING && b.type == JV_INT) {
        return repeat(r, a.as.string, b.as.integer, out);
    }
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED) {
        struct str name = a.type == JV_UNDEFINED ? a.as.string : b.as.string;

        return jinja_fail(r, "'" STR_FMT "' is undefined", STR_ARG(name));
    }
    return jinja_fail(r, "%s and %s do not go together here", jv_type_name(a), jv_type_name(b));
}

static enum status compare(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
                           bool *out) {
    int order = 0;

    if (op == OP_EQ || op == OP_NE) {
        TRY(jv_equal(r, a, b, out));
        *out = *out == (op == OP_EQ);
        return ST_OK;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        TRY(jv_contains(r, b, a, out));
        *out = *out == (op == OP_IN);
        return ST_OK;
    }
    TRY(jv_compare(r, a, b, &order));
    *out = op == OP_LT   ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
    return ST_OK;
}

/* a < b < c compares neighbours, and stops at the first that fails. */
static enum status eval_compare(struct jinja_run *r, const struct jinja_node *n, struct jv *out) {
    struct jv left, right;
    bool holds = true;

    TRY(eval(r, n->a, &left));
    for (const struct jinja_node *c = n->children; c && holds; c = c->next) {
        TRY(eval(r, c->a, &right));
        r->line = c->line;
        TRY(compare(r, c->op, left, right, &holds));
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
            return jinja_fail(r, "an argument without a name follows one with");
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
        TRY(set_variable(r, p->name, v));
    }
    if (i < args->n)
        return jinja_fail(r, "macro '" STR_FMT "' takes %zu arguments, not %zu",
                          STR_ARG(macro->name), i, args->n);
    return ST_OK;
}

/* Runs a body and gives what it wrote as a string. */
static enum status capture(struct jinja_run *r, const struct jinja_node *body, struct jv *out) {
    struct buf text, *outer = r->out;
    enum flow flow;
    enum status st;

    buf_init(&text, r->limits.max_output_bytes);
    r->out = &text;
    st = run_body(r, body, &flow);
    r->out = outer;
    if (st == ST_OK) return jinja_take(r, &text, out);
    buf_fini(&text);
    return st;
}

static enum status call_macro(struct jinja_run *r, const struct jinja_macro *m,
                              const struct jinja_args *args, struct jv *out) {
    struct jinja_scope *caller = r->scope;

    TRY(enter(r, m->node));
    TRY(push_scope(r, m->scope));
    TRY(bind_parameters(r, m->node, args));
    TRY(capture(r, m->node->body, out));
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
    return jinja_fail(r, "%s cannot be called", jv_type_name(f));
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
            return jinja_fail(r, "%s cannot be a key", jv_type_name(key));
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
    if (!jv_is_number(v)) return jinja_fail(r, "%s has no negative", jv_type_name(v));
    if (v.type != JV_FLOAT) return number_operation(r, OP_SUB, jv_int(0), v, out);
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
        return subscript(r, a, b, out);
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
    TRY(enter(r, n));
    TRY(eval_kind(r, n, out));
    r->depth--;
    return ST_OK;
}

/* --- statements --------------------------------------------------------------------------------*/
static enum status write_text(struct jinja_run *r, struct str s) {
    r->output_bytes += s.len;
    if (r->output_bytes > r->limits.max_output_bytes) {
        return error_set(r->err, ST_TOO_LARGE,
                         "chat template, line %u: more than %zu bytes of text", r->line,
                         r->limits.max_output_bytes);
    }
    TRY(jinja_charge(r, s.len / 64));
    buf_append_str(r->out, s);
    if (buf_status(r->out) == ST_OK) return ST_OK;
    return error_set(r->err, ST_NOMEM, "no memory for the text of a chat template");
}

static enum status assign(struct jinja_run *r, const struct jinja_node *target, struct jv v) {
    struct jv ns;

    if (target->kind == NODE_NAME) return set_variable(r, target->name, v);
    TRY(eval(r, target->a, &ns));
    if (ns.type != JV_NAMESPACE) {
        return jinja_fail(r, "'" STR_FMT "' is no namespace: only those can be assigned to",
                          STR_ARG(target->a->name));
    }
    return jv_set(r, ns, jv_string(target->name), v);
}

/* One target takes the value; several take its items. */
static enum status assign_all(struct jinja_run *r, const struct jinja_node *targets, struct jv v) {
    size_t i = 0;

    if (!targets->next) return assign(r, targets, v);
    TRY(jv_iterate(r, v, &v));
    for (const struct jinja_node *t = targets; t; t = t->next, i++) {
        if (i >= v.as.list->n) return jinja_fail(r, "too few values to unpack");
        TRY(assign(r, t, v.as.list->items[i]));
    }
    return i == v.as.list->n ? ST_OK : jinja_fail(r, "too many values to unpack");
}

/* The items that pass the loop's own `if`. */
static enum status filter_items(struct jinja_run *r, const struct jinja_node *n, struct jv *items) {
    struct jinja_scope *outer = r->scope;
    struct jv kept;

    TRY(jv_new_list(r, 0, &kept));
    TRY(push_scope(r, outer));
    for (size_t i = 0; i < items->as.list->n; i++) {
        struct jv holds;

        TRY(assign_all(r, n->children, items->as.list->items[i]));
        TRY(eval(r, n->b, &holds));
        if (jv_is_true(holds)) TRY(jv_push(r, kept, items->as.list->items[i]));
    }
    r->scope = outer;
    *items = kept;
    return ST_OK;
}

static enum status run_for(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    struct jinja_scope *outer = r->scope;
    struct jinja_loop *loop;
    struct jv items;
    void *memory = NULL;

    TRY(eval(r, n->a, &items));
    r->line = n->line;
    TRY(jv_iterate(r, items, &items));
    if (n->b) TRY(filter_items(r, n, &items));
    if (!items.as.list->n) return run_body(r, n->other, flow);
    TRY(jinja_alloc(r, sizeof(*loop), &memory));
    loop = memory;
    loop->items = items.as.list;
    TRY(push_scope(r, outer));
    for (; loop->i < items.as.list->n && *flow != FLOW_BREAK; loop->i++) {
        TRY(jinja_charge(r, 1));
        r->scope->vars.n = 0; /* each round begins with none */
        TRY(set_variable(r, STR("loop"), (struct jv){.type = JV_LOOP, .as.loop = loop}));
        TRY(assign_all(r, n->children, items.as.list->items[loop->i]));
        TRY(run_body(r, n->body, flow));
        if (*flow == FLOW_CONTINUE) *flow = FLOW_ON;
    }
    *flow = FLOW_ON;
    r->scope = outer;
    return ST_OK;
}

static enum status run_if(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    for (;;) {
        struct jv v;

        TRY(eval(r, n->a, &v));
        if (jv_is_true(v)) return run_body(r, n->body, flow);
        if (!n->other) return ST_OK;
        if (n->other->kind != NODE_IF || n->other->next) return run_body(r, n->other, flow);
        n = n->other;
    }
}

static enum status run_set_block(struct jinja_run *r, const struct jinja_node *n) {
    struct jinja_scope *outer = r->scope;
    struct jv v;

    TRY(capture(r, n->body, &v));
    if (n->a) { /* filters; the innermost reads the text as the variable without a name */
        TRY(push_scope(r, outer));
        TRY(set_variable(r, STR(""), v));
        TRY(eval(r, n->a, &v));
        r->scope = outer;
    }
    return assign(r, n->children, v);
}

static enum status run_macro(struct jinja_run *r, const struct jinja_node *n) {
    void *memory = NULL;
    struct jinja_macro *m;

    TRY(jinja_alloc(r, sizeof(*m), &memory));
    m = memory;
    m->node = n;
    m->scope = r->scope;
    return set_variable(r, n->name,
                        (struct jv){.type = JV_FUNCTION, .as.string = n->name, .macro = m});
}

static enum status run_statement(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    struct str text;
    struct jv v;

    switch (n->kind) {
    case NODE_TEXT: return write_text(r, n->value.as.string);
    case NODE_PRINT:
        TRY(eval(r, n->a, &v));
        TRY(jv_to_string(r, v, &text));
        return write_text(r, text);
    case NODE_IF: return run_if(r, n, flow);
    case NODE_FOR: return run_for(r, n, flow);
    case NODE_SET: TRY(eval(r, n->a, &v)); return assign_all(r, n->children, v);
    case NODE_SET_BLOCK: return run_set_block(r, n);
    case NODE_MACRO: return run_macro(r, n);
    case NODE_BREAK: *flow = FLOW_BREAK; return ST_OK;
    case NODE_CONTINUE: *flow = FLOW_CONTINUE; return ST_OK;
    default: return ST_INTERNAL;
    }
}

/* Sets *flow; after a break or continue the rest of the body is skipped. */
static enum status run_body(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    *flow = FLOW_ON;
    for (; n && *flow == FLOW_ON; n = n->next) {
        TRY(enter(r, n));
        TRY(run_statement(r, n, flow));
        r->depth--;
    }
    return ST_OK;
}

/* --- runs --------------------------------------------------------------------------------------*/
struct jinja_run *jinja_run_create(const struct jinja_program *p, const struct jinja_limits *limits,
                                   int64_t now_s, struct error *err) {
    struct jinja_run *r = mem_zalloc(sizeof(*r));

    r->program = p;
    if (limits) r->limits = *limits;
    if (!r->limits.max_steps) r->limits.max_steps = 5000000;
    if (!r->limits.max_output_bytes) r->limits.max_output_bytes = 32u << 20;
    if (!r->limits.max_memory_bytes) r->limits.max_memory_bytes = 128u << 20;
    r->now_s = now_s;
    r->err = err;
    r->scope = &r->globals;
    arena_init(&r->arena, 0);
    return r;
}

void jinja_run_destroy(struct jinja_run *r) {
    if (!r) return;
    arena_fini(&r->arena);
    mem_free(r);
}

enum status jinja_run_set(struct jinja_run *r, const char *name, struct jv v) {
    struct jv globals = {.type = JV_DICT, .as.dict = &r->globals.vars};

    return jv_set(r, globals, jv_string(str_of(name)), v);
}

enum status jinja_run_render(struct jinja_run *r, struct buf *out) {
    enum flow flow;

    r->out = out;
    return run_body(r, r->program->body, &flow);
}
