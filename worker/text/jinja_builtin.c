/* worker/text/jinja_builtin.c - filters, tests and global functions: three tables of names. */
#include "worker/text/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* What a filter is given, and where its result goes. */
struct call {
    struct jinja_run *r;
    struct jv v;
    const struct jinja_args *args;
    struct jv *out;
};

/* The value at "a.b.c" within v; `otherwise`, where one is given, stands for an undefined part. */
static enum status follow(struct jinja_run *r, struct jv v, struct str path, struct jv otherwise,
                          struct jv *out) {
    while (path.len) {
        const char *dot = memchr(path.ptr, '.', path.len);
        size_t n = dot ? (size_t)(dot - path.ptr) : path.len;

        TRY(jinja_charge(r, 1));
        TRY(jinja_attribute(r, v, (struct str){path.ptr, n}, &v));
        if (v.type == JV_UNDEFINED && otherwise.type != JV_UNDEFINED) v = otherwise;
        n += dot != NULL;
        path.ptr += n;
        path.len -= n;
    }
    *out = v;
    return ST_OK;
}

/* --- filters of one value ----------------------------------------------------------------------*/
static enum status filter_trim(const struct call *c) {
    struct str s;

    TRY(jv_to_string(c->r, c->v, &s));
    *c->out = jv_string(jinja_strip(s, jinja_arg(c->args, 0, "chars"), SIDE_BOTH));
    return ST_OK;
}

static enum status filter_length(const struct call *c) {
    if (!jv_has_length(c->v)) return jinja_fail(c->r, "%s has no length", jv_type_name(c->v));
    TRY(jinja_charge(c->r, c->v.type == JV_STRING ? c->v.as.string.len / 64 : 0));
    *c->out = jv_int((int64_t)jv_length(c->v));
    return ST_OK;
}

/* tojson(ensure_ascii, indent, separators, sort_keys): json.dumps as transformers calls it. */
static enum status filter_tojson(const struct call *c) {
    struct jv indent = jinja_arg(c->args, 1, "indent");

    if (jv_is_true(jinja_arg(c->args, 0, "ensure_ascii"))) {
        return jinja_fail(c->r, "tojson with ensure_ascii is not built");
    }
    if (jv_is_true(jinja_arg(c->args, 2, "separators"))) {
        return jinja_fail(c->r, "tojson with separators is not built");
    }
    return jv_to_json(c->r, c->v,
                      indent.type == JV_INT && indent.as.integer >= 0 ? indent.as.integer : -1,
                      jv_is_true(jinja_arg(c->args, 3, "sort_keys")), c->out);
}

static enum status filter_default(const struct call *c) {
    bool any_false = jv_is_true(jinja_arg(c->args, 1, "boolean"));
    struct jv otherwise = jinja_arg(c->args, 0, "default_value");

    *c->out = c->v;
    if (c->v.type == JV_UNDEFINED || (any_false && !jv_is_true(c->v))) {
        *c->out = otherwise.type == JV_UNDEFINED ? jv_string(STR("")) : otherwise;
    }
    return ST_OK;
}

static enum status change_case(const struct call *c, enum jinja_case to) {
    struct str s;

    TRY(jv_to_string(c->r, c->v, &s));
    return jinja_change_case(c->r, s, to, c->out);
}

static enum status filter_upper(const struct call *c) {
    return change_case(c, CASE_UPPER);
}

static enum status filter_lower(const struct call *c) {
    return change_case(c, CASE_LOWER);
}

static enum status filter_title(const struct call *c) {
    return change_case(c, CASE_TITLE);
}

static enum status filter_capitalize(const struct call *c) {
    return change_case(c, CASE_CAPITALIZE);
}

static enum status filter_string(const struct call *c) {
    struct str s;

    TRY(jv_to_string(c->r, c->v, &s));
    *c->out = jv_string(s);
    return ST_OK;
}

static enum status filter_safe(const struct call *c) {
    *c->out = c->v; /* nothing is escaped */
    return ST_OK;
}

/* The number a string spells, NaN when it spells none. */
static double number_in(struct str s) {
    char text[64], *end;
    double f;

    s = jinja_strip(s, jv_none(), SIDE_BOTH);
    if (!s.len || s.len >= sizeof(text)) return NAN;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    f = strtod(text, &end);
    return *end ? NAN : f;
}

static enum status filter_int(const struct call *c) {
    struct jv otherwise = jinja_arg(c->args, 0, "default");
    double f = jv_is_number(c->v)       ? jv_to_number(c->v)
               : c->v.type == JV_STRING ? number_in(c->v.as.string)
                                        : NAN;

    if (c->v.type == JV_INT) {
        *c->out = c->v;
    } else if (fabs(f) < 9e18) { /* false for a NaN */
        *c->out = jv_int((int64_t)f);
    } else {
        *c->out = otherwise.type == JV_UNDEFINED ? jv_int(0) : otherwise;
    }
    return ST_OK;
}

static enum status filter_float(const struct call *c) {
    struct jv otherwise = jinja_arg(c->args, 0, "default");
    double f = jv_is_number(c->v)       ? jv_to_number(c->v)
               : c->v.type == JV_STRING ? number_in(c->v.as.string)
                                        : NAN;

    *c->out = !isnan(f) ? jv_float(f) : otherwise.type == JV_UNDEFINED ? jv_float(0) : otherwise;
    return ST_OK;
}

static enum status filter_abs(const struct call *c) {
    if (!jv_is_number(c->v)) return jinja_fail(c->r, "abs wants a number");
    if (c->v.type == JV_FLOAT) {
        *c->out = jv_float(fabs(c->v.as.number));
    } else if (c->v.type == JV_INT && c->v.as.integer == INT64_MIN) {
        return jinja_fail(c->r, "an integer does not fit 64 bits");
    } else {
        *c->out = jv_int(c->v.type == JV_BOOL ? c->v.as.boolean : llabs(c->v.as.integer));
    }
    return ST_OK;
}

static enum status filter_round(const struct call *c) {
    struct jv precision = jinja_arg(c->args, 0, "precision");
    double scale = precision.type == JV_INT ? pow(10, (double)precision.as.integer) : 1;

    if (!jv_is_number(c->v)) return jinja_fail(c->r, "round wants a number");
    *c->out = jv_float(nearbyint(jv_to_number(c->v) * scale) / scale);
    return ST_OK;
}

static enum status filter_replace(const struct call *c) {
    struct jv max = jinja_arg(c->args, 2, "count");
    struct str s, from, to;

    TRY(jv_to_string(c->r, c->v, &s));
    TRY(jv_to_string(c->r, jinja_arg(c->args, 0, "old"), &from));
    TRY(jv_to_string(c->r, jinja_arg(c->args, 1, "new"), &to));
    return jinja_replace(c->r, s, from, to, max.type == JV_INT ? max.as.integer : -1, c->out);
}

/* indent(width=4, first=false, blank=false): the later lines get `width` blanks, empty ones only
 * with `blank`. */
static enum status filter_indent(const struct call *c) {
    struct jv width = jinja_arg(c->args, 0, "width");
    bool first = jv_is_true(jinja_arg(c->args, 1, "first"));
    bool blank = jv_is_true(jinja_arg(c->args, 2, "blank"));
    int64_t n = width.type == JV_INT ? MIN(MAX(width.as.integer, 0), 1024) : 4;
    struct str s;
    struct buf b;

    TRY(jv_to_string(c->r, c->v, &s));
    TRY(jinja_charge(c->r, s.len / 16));
    buf_init(&b, c->r->limits.max_memory_bytes);
    for (size_t i = 0, line = 0; i <= s.len; i++) {
        bool begins = i == 0 || s.ptr[i - 1] == '\n', is_empty = i == s.len || s.ptr[i] == '\n';

        if (begins && (line++ ? blank || !is_empty : first)) {
            if (width.type == JV_STRING)
                buf_append_str(&b, width.as.string);
            else
                for (int64_t k = 0; k < n; k++)
                    buf_append_char(&b, ' ');
        }
        if (i < s.len) buf_append_char(&b, s.ptr[i]);
    }
    return jinja_take(c->r, &b, c->out);
}

static enum status filter_items(const struct call *c) {
    if (c->v.type == JV_UNDEFINED) return jv_new_list(c->r, 0, c->out);
    if (c->v.type != JV_DICT) return jinja_fail(c->r, "%s has no items", jv_type_name(c->v));
    return jinja_items(c->r, c->v, c->out);
}

/* --- filters of lists --------------------------------------------------------------------------*/
static enum status filter_list(const struct call *c) {
    struct jv items;

    TRY(jv_iterate(c->r, c->v, &items));
    TRY(jv_new_list(c->r, items.as.list->n, c->out)); /* a list, though it was a tuple */
    for (size_t i = 0; i < items.as.list->n; i++)
        TRY(jv_push(c->r, *c->out, items.as.list->items[i]));
    return ST_OK;
}

static enum status end_item(const struct call *c, bool is_last) {
    struct jv items;

    TRY(jv_iterate(c->r, c->v, &items));
    *c->out = !items.as.list->n ? jv_undefined(STR("an item of an empty list"))
                                : items.as.list->items[is_last ? items.as.list->n - 1 : 0];
    return ST_OK;
}

static enum status filter_first(const struct call *c) {
    return end_item(c, false);
}

static enum status filter_last(const struct call *c) {
    return end_item(c, true);
}

static enum status filter_reverse(const struct call *c) {
    struct jv items, list;

    TRY(jv_iterate(c->r, c->v, &items));
    TRY(jv_new_list(c->r, items.as.list->n, &list));
    for (size_t i = items.as.list->n; i-- > 0;)
        TRY(jv_push(c->r, list, items.as.list->items[i]));
    if (c->v.type == JV_STRING) return jinja_join(c->r, list, STR(""), c->out);
    *c->out = list;
    return ST_OK;
}

/* The items, or with `attribute` that of each. */
static enum status attributes(const struct call *c, struct jv attribute, struct jv *out) {
    struct jv items, otherwise = jinja_arg(c->args, c->args->n, "default");

    TRY(jv_iterate(c->r, c->v, &items));
    TRY(jv_new_list(c->r, items.as.list->n, out));
    for (size_t i = 0; i < items.as.list->n; i++) {
        struct jv v = items.as.list->items[i];

        if (attribute.type == JV_STRING) TRY(follow(c->r, v, attribute.as.string, otherwise, &v));
        TRY(jv_push(c->r, *out, v));
    }
    return ST_OK;
}

static enum status filter_join(const struct call *c) {
    struct str separator = STR("");
    struct jv items;

    TRY(attributes(c, jinja_arg(c->args, 1, "attribute"), &items));
    TRY(jv_to_string(c->r, jinja_arg(c->args, 0, "d"), &separator));
    return jinja_join(c->r, items, separator, c->out);
}

/* The arguments without the first n. */
static struct jinja_args rest_of(const struct jinja_args *args, size_t n) {
    struct jinja_args rest = *args;

    n = MIN(n, rest.n);
    if (n) rest.positional += n;
    rest.n -= n;
    return rest;
}

/* map('filter', its arguments), or map(attribute='a.b', default=x). */
static enum status filter_map(const struct call *c) {
    struct jinja_args rest = rest_of(c->args, 1);
    struct jv name = jinja_arg(c->args, 0, ""),
              attribute = jinja_arg(c->args, c->args->n, "attribute");
    struct jv items;

    if (name.type != JV_STRING && attribute.type != JV_STRING) {
        return jinja_fail(c->r, "map wants the name of a filter, or an attribute");
    }
    TRY(attributes(c, name.type == JV_STRING ? jv_none() : attribute, &items));
    for (size_t i = 0; i < items.as.list->n && name.type == JV_STRING; i++) {
        struct jv *v = &items.as.list->items[i];

        TRY(jinja_filter(c->r, name.as.string, *v, &rest, v));
    }
    *c->out = items;
    return ST_OK;
}

/* select, reject, selectattr, rejectattr: keeps the items (or those whose attribute) passes, or
 * fails, a test; without a test, truth. */
static enum status choose(const struct call *c, bool by_attribute, bool keeps) {
    struct jv name = jinja_arg(c->args, 0, ""), items, test;
    struct jinja_args rest = rest_of(c->args, by_attribute ? 2 : 1);

    if (by_attribute && name.type != JV_STRING) return jinja_fail(c->r, "an attribute is wanted");
    test = jinja_arg(c->args, by_attribute ? 1 : 0, "");
    TRY(jv_iterate(c->r, c->v, &items));
    TRY(jv_new_list(c->r, 0, c->out));
    for (size_t i = 0; i < items.as.list->n; i++) {
        struct jv item = items.as.list->items[i], v = item;
        bool passes;

        TRY(jinja_charge(c->r, 1));
        if (by_attribute) TRY(follow(c->r, v, name.as.string, jv_undefined(STR("")), &v));
        passes = jv_is_true(v);
        if (test.type == JV_STRING) TRY(jinja_test(c->r, test.as.string, v, &rest, &passes));
        if (passes == keeps) TRY(jv_push(c->r, *c->out, item));
    }
    return ST_OK;
}

static enum status filter_select(const struct call *c) {
    return choose(c, false, true);
}

static enum status filter_reject(const struct call *c) {
    return choose(c, false, false);
}

static enum status filter_selectattr(const struct call *c) {
    return choose(c, true, true);
}

static enum status filter_rejectattr(const struct call *c) {
    return choose(c, true, false);
}

static enum status filter_unique(const struct call *c) {
    struct jv items;

    TRY(jv_iterate(c->r, c->v, &items));
    TRY(jv_new_list(c->r, 0, c->out));
    for (size_t i = 0; i < items.as.list->n; i++) {
        bool is_there;

        TRY(jinja_charge(c->r, c->out->as.list->n));
        TRY(jv_contains(c->r, *c->out, items.as.list->items[i], &is_there));
        if (!is_there) TRY(jv_push(c->r, *c->out, items.as.list->items[i]));
    }
    return ST_OK;
}

/* --- sorting -----------------------------------------------------------------------------------*/
struct sorted {
    struct jv key, value;
    size_t at; /* keeps equal ones in order */
};

struct sorting {
    struct jinja_run *r;
    bool is_reverse;
    enum status st;
};

static int by_sort_key(const void *a, const void *b, void *arg) {
    const struct sorted *x = a, *y = b;
    struct sorting *s = arg;
    int order = 0;

    if (s->st == ST_OK) s->st = jv_compare(s->r, x->key, y->key, &order);
    if (s->is_reverse) order = -order;
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* `keys` and `values` run in parallel; text keys are compared without case unless asked. */
static enum status sort(const struct call *c, struct jv keys, struct jv values,
                        bool is_case_sensitive) {
    struct sorting s = {c->r, jv_is_true(jinja_arg(c->args, c->args->n, "reverse")), ST_OK};
    size_t n = values.as.list->n;
    void *memory = NULL;
    struct sorted *a;

    TRY(jinja_alloc(c->r, n * sizeof(*a), &memory));
    a = memory;
    for (size_t i = 0; i < n; i++) {
        a[i] = (struct sorted){keys.as.list->items[i], values.as.list->items[i], i};
        if (a[i].key.type == JV_STRING && !is_case_sensitive) {
            TRY(jinja_change_case(c->r, a[i].key.as.string, CASE_LOWER, &a[i].key));
        }
    }
    if (n) qsort_r(a, n, sizeof(*a), by_sort_key, &s);
    TRY(s.st);
    TRY(jv_new_list(c->r, n, c->out));
    for (size_t i = 0; i < n; i++)
        TRY(jv_push(c->r, *c->out, a[i].value));
    return ST_OK;
}

static enum status filter_sort(const struct call *c) {
    struct jv keys, values, first = jinja_arg(c->args, 0, "reverse");
    struct call by_value = *c;

    if (c->args->n && jv_is_true(first)) {
        return jinja_fail(c->r, "sort wants reverse=true by name");
    }
    TRY(attributes(&by_value, jv_none(), &values));
    TRY(attributes(c, jinja_arg(c->args, 2, "attribute"), &keys));
    return sort(c, keys, values, jv_is_true(jinja_arg(c->args, 1, "case_sensitive")));
}

static enum status filter_dictsort(const struct call *c) {
    struct jv keys, values;

    if (c->v.type != JV_DICT) return jinja_fail(c->r, "dictsort wants a mapping");
    TRY(jv_iterate(c->r, c->v, &keys));
    TRY(jinja_items(c->r, c->v, &values));
    return sort(c, keys, values, jv_is_true(jinja_arg(c->args, 0, "case_sensitive")));
}

static enum status extreme(const struct call *c, int sign) {
    struct jv items;

    TRY(jv_iterate(c->r, c->v, &items));
    *c->out = jv_undefined(STR("the extreme of an empty list"));
    for (size_t i = 0; i < items.as.list->n; i++) {
        int order = sign;

        if (i) TRY(jv_compare(c->r, items.as.list->items[i], *c->out, &order));
        if (order * sign > 0) *c->out = items.as.list->items[i];
    }
    return ST_OK;
}

static enum status filter_min(const struct call *c) {
    return extreme(c, -1);
}

static enum status filter_max(const struct call *c) {
    return extreme(c, 1);
}

static const struct {
    const char *name;
    enum status (*run)(const struct call *c);
} filters[] = {
    {"trim", filter_trim},       {"length", filter_length},   {"count", filter_length},
    {"tojson", filter_tojson},   {"join", filter_join},       {"first", filter_first},
    {"last", filter_last},       {"default", filter_default}, {"d", filter_default},
    {"upper", filter_upper},     {"lower", filter_lower},     {"title", filter_title},
    {"items", filter_items},     {"map", filter_map},         {"select", filter_select},
    {"reject", filter_reject},   {"list", filter_list},       {"selectattr", filter_selectattr},
    {"string", filter_string},   {"int", filter_int},         {"rejectattr", filter_rejectattr},
    {"float", filter_float},     {"indent", filter_indent},   {"replace", filter_replace},
    {"unique", filter_unique},   {"safe", filter_safe},       {"capitalize", filter_capitalize},
    {"reverse", filter_reverse}, {"sort", filter_sort},       {"dictsort", filter_dictsort},
    {"abs", filter_abs},         {"round", filter_round},     {"min", filter_min},
    {"max", filter_max},
};

enum status jinja_filter(struct jinja_run *r, struct str name, struct jv v,
                         const struct jinja_args *args, struct jv *out) {
    struct jv result;
    struct call c = {r, v, args, &result};

    for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
        if (!str_eq(name, str_of(filters[i].name))) continue;
        TRY(jinja_charge(r, 1));
        if (r->depth >= JINJA_MAX_DEPTH) return jinja_fail(r, "filters are nested too deep");
        r->depth++; /* map calls filters */
        TRY(filters[i].run(&c));
        r->depth--;
        *out = result;
        return ST_OK;
    }
    return jinja_fail(r, "there is no filter '" STR_FMT "'", STR_ARG(name));
}

/* --- tests -------------------------------------------------------------------------------------*/
/* Tests that look at the value alone. */
static bool test_value(struct str name, struct jv v, bool *out) {
    bool is_text = v.type == JV_STRING, is_list = v.type == JV_LIST, is_dict = v.type == JV_DICT;

    if (str_eq(name, STR("defined")))
        *out = v.type != JV_UNDEFINED;
    else if (str_eq(name, STR("undefined")))
        *out = v.type == JV_UNDEFINED;
    else if (str_eq(name, STR("none")))
        *out = v.type == JV_NONE;
    else if (str_eq(name, STR("string")))
        *out = is_text;
    else if (str_eq(name, STR("mapping")))
        *out = is_dict;
    else if (str_eq(name, STR("sequence")))
        *out = is_text || is_list || is_dict || v.type == JV_UNDEFINED;
    else if (str_eq(name, STR("iterable")))
        *out = is_text || is_list || is_dict || v.type == JV_UNDEFINED;
    else if (str_eq(name, STR("number")))
        *out = jv_is_number(v);
    else if (str_eq(name, STR("integer")))
        *out = v.type == JV_INT;
    else if (str_eq(name, STR("float")))
        *out = v.type == JV_FLOAT;
    else if (str_eq(name, STR("boolean")))
        *out = v.type == JV_BOOL;
    else if (str_eq(name, STR("true")))
        *out = v.type == JV_BOOL && v.as.boolean;
    else if (str_eq(name, STR("false")))
        *out = v.type == JV_BOOL && !v.as.boolean;
    else if (str_eq(name, STR("callable")))
        *out = v.type == JV_FUNCTION;
    else
        return false;
    return true;
}

static enum status test_division(struct jinja_run *r, struct jv v, int64_t by, int64_t rest,
                                 bool *out) {
    if (v.type != JV_INT || by == 0) return jinja_fail(r, "an integer is wanted");
    *out = by == -1 ? rest == 0 : llabs(v.as.integer % by) == rest;
    return ST_OK;
}

static const struct {
    const char *names[3];
    enum jinja_op op;
} comparisons[] = {
    {{"eq", "equalto", "=="}, OP_EQ}, {{"ne", "!=", ""}, OP_NE},
    {{"lt", "lessthan", "<"}, OP_LT}, {{"gt", "greaterthan", ">"}, OP_GT},
    {{"le", "<=", ""}, OP_LE},        {{"ge", ">=", ""}, OP_GE},
};

static enum status test_comparison(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
                                   bool *out) {
    int order = 0;

    if (op == OP_EQ || op == OP_NE) {
        TRY(jv_equal(r, a, b, out));
        *out = *out == (op == OP_EQ);
        return ST_OK;
    }
    TRY(jv_compare(r, a, b, &order));
    *out = op == OP_LT   ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
    return ST_OK;
}

enum status jinja_test(struct jinja_run *r, struct str name, struct jv v,
                       const struct jinja_args *args, bool *out) {
    struct jv other = jinja_arg(args, 0, "other");

    TRY(jinja_charge(r, 1));
    if (test_value(name, v, out)) return ST_OK;
    if (str_eq(name, STR("in"))) return jv_contains(r, other, v, out);
    if (str_eq(name, STR("even"))) return test_division(r, v, 2, 0, out);
    if (str_eq(name, STR("odd"))) return test_division(r, v, 2, 1, out);
    if (str_eq(name, STR("divisibleby"))) {
        return test_division(r, v, other.type == JV_INT ? other.as.integer : 0, 0, out);
    }
    for (size_t i = 0; i < ARRAY_LEN(comparisons); i++) {
        for (size_t k = 0; k < ARRAY_LEN(comparisons[i].names); k++) {
            if (!str_eq(name, str_of(comparisons[i].names[k]))) continue;
            return test_comparison(r, comparisons[i].op, v, other, out);
        }
    }
    return jinja_fail(r, "there is no test '" STR_FMT "'", STR_ARG(name));
}

/* --- global functions --------------------------------------------------------------------------*/
static enum status global_raise(struct jinja_run *r, const struct jinja_args *args,
                                struct jv *out) {
    struct str what;

    (void)out;
    TRY(jv_to_string(r, jinja_arg(args, 0, "message"), &what));
    return error_set_param(r->err, ST_INVALID, "messages", STR_FMT, STR_ARG(what));
}

static enum status global_range(struct jinja_run *r, const struct jinja_args *args,
                                struct jv *out) {
    int64_t bound[3] = {0, 0, 1};

    for (size_t i = 0; i < MIN(args->n, 3u); i++) {
        if (args->positional[i].type != JV_INT) return jinja_fail(r, "range wants integers");
        bound[i] = args->positional[i].as.integer;
    }
    if (args->n == 1) {
        bound[1] = bound[0];
        bound[0] = 0;
    }
    if (!args->n || !bound[2]) return jinja_fail(r, "range wants an end, and a step that is not 0");
    TRY(jv_new_list(r, 0, out));
    for (int64_t i = bound[0]; bound[2] > 0 ? i < bound[1] : i > bound[1];) {
        TRY(jv_push(r, *out, jv_int(i)));
        if (__builtin_add_overflow(i, bound[2], &i)) break;
    }
    return ST_OK;
}

/* dict(a=1, ...), and namespace(a=1, ...) which may also copy a mapping. */
static enum status global_dict(struct jinja_run *r, const struct jinja_args *args, struct jv *out) {
    TRY(jv_new_dict(r, args->n_named, out));
    if (args->n && args->positional[0].type == JV_DICT) {
        const struct jv_dict *from = args->positional[0].as.dict;

        for (size_t i = 0; i < from->n; i++) {
            TRY(jv_set(r, *out, from->entries[i].key, from->entries[i].value));
        }
    }
    for (size_t i = 0; i < args->n_named; i++) {
        TRY(jv_set(r, *out, args->named[i].key, args->named[i].value));
    }
    return ST_OK;
}

static enum status global_namespace(struct jinja_run *r, const struct jinja_args *args,
                                    struct jv *out) {
    TRY(global_dict(r, args, out));
    out->type = JV_NAMESPACE;
    return ST_OK;
}

static enum status global_strftime(struct jinja_run *r, const struct jinja_args *args,
                                   struct jv *out) {
    struct jv format = jinja_arg(args, 0, "format");
    char text[256], pattern[128];
    time_t now = (time_t)r->now_s;
    struct tm tm;
    size_t n;

    if (format.type != JV_STRING || format.as.string.len >= sizeof(pattern)) {
        return jinja_fail(r, "strftime_now wants a format of at most %zu bytes",
                          sizeof(pattern) - 1);
    }
    memcpy(pattern, format.as.string.ptr, format.as.string.len);
    pattern[format.as.string.len] = '\0';
    gmtime_r(&now, &tm);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = strftime(text, sizeof(text), pattern, &tm);
#pragma GCC diagnostic pop
    return jv_copy(r, (struct str){text, n}, out);
}

static const struct {
    const char *name;
    enum status (*run)(struct jinja_run *r, const struct jinja_args *args, struct jv *out);
} globals[] = {
    {"raise_exception", global_raise}, {"range", global_range},
    {"namespace", global_namespace},   {"dict", global_dict},
    {"strftime_now", global_strftime},
};

bool jinja_is_global(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(globals); i++) {
        if (str_eq(name, str_of(globals[i].name))) return true;
    }
    return false;
}

enum status jinja_call_global(struct jinja_run *r, struct str name, const struct jinja_args *args,
                              struct jv *out) {
    for (size_t i = 0; i < ARRAY_LEN(globals); i++) {
        if (str_eq(name, str_of(globals[i].name))) return globals[i].run(r, args, out);
    }
    return ST_INTERNAL;
}
