/* worker/text/template/jinja_builtin.c - tests and global functions: two tables of names. */
#include <stdlib.h>
#include <time.h>

#include "worker/text/template/jinja_internal.h"

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
    if (v.type != JV_INT || by == 0) return jinja_fail(r, "the test needs an integer");
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
    return jinja_fail(r, "unknown test '" STR_FMT "'", STR_ARG(name));
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
        if (args->positional[i].type != JV_INT) return jinja_fail(r, "range needs integers");
        bound[i] = args->positional[i].as.integer;
    }
    if (args->n == 1) {
        bound[1] = bound[0];
        bound[0] = 0;
    }
    if (!args->n || !bound[2]) return jinja_fail(r, "range needs an end and a step other than 0");
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
        return jinja_fail(r, "strftime_now needs a format of at most %zu bytes",
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
