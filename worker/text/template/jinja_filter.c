/* worker/text/template/jinja_filter.c - filters of one value, and finding a filter by its name. */
#include "worker/text/template/jinja_filter.h"

#include <math.h>
#include <stdlib.h>

/* --- filters of one value ----------------------------------------------------------------------*/
static enum status filter_trim(const struct jinja_filter_call *c) {
    struct jv chars = jinja_arg(c->args, 0, "chars");
    struct str s;

    TRY(jv_to_string(c->r, c->v, &s));
    TRY(jinja_charge_strip(c->r, s, chars));
    *c->out = jv_string(jinja_strip(s, chars, SIDE_BOTH));
    return ST_OK;
}

static enum status filter_length(const struct jinja_filter_call *c) {
    if (!jv_has_length(c->v)) return jinja_fail(c->r, "%s has no length", jv_type_name(c->v));
    *c->out = jv_int((int64_t)jv_length(c->v));
    return ST_OK;
}

/* separators=(between items, after keys), as json.dumps takes them. */
static enum status read_separators(const struct jinja_filter_call *c, struct jinja_json *how) {
    struct jv v = jinja_arg(c->args, 2, "separators");

    if (v.type == JV_UNDEFINED || v.type == JV_NONE) return ST_OK;
    if (v.type != JV_LIST || jv_list_count(v) != 2 || jv_list_at(v, 0).type != JV_STRING ||
        jv_list_at(v, 1).type != JV_STRING) {
        return jinja_fail(c->r, "separators must be two strings");
    }
    how->between_items = jv_list_at(v, 0).as.string;
    how->after_keys = jv_list_at(v, 1).as.string;
    return ST_OK;
}

/* tojson(ensure_ascii, indent, separators, sort_keys): json.dumps as transformers calls it. */
static enum status filter_tojson(const struct jinja_filter_call *c) {
    struct jv indent = jinja_arg(c->args, 1, "indent");
    struct jinja_json how = {.indent = -1, .after_keys = STR(": ")};

    if (indent.type == JV_INT && indent.as.integer >= 0) how.indent = indent.as.integer;
    how.between_items = how.indent < 0 ? STR(", ") : STR(",");
    how.is_ascii = jv_is_true(jinja_arg(c->args, 0, "ensure_ascii"));
    how.sorts_keys = jv_is_true(jinja_arg(c->args, 3, "sort_keys"));
    TRY(read_separators(c, &how));
    return jv_to_json(c->r, c->v, &how, c->out);
}

static enum status filter_default(const struct jinja_filter_call *c) {
    bool any_false = jv_is_true(jinja_arg(c->args, 1, "boolean"));
    struct jv otherwise = jinja_arg(c->args, 0, "default_value");

    *c->out = c->v;
    if (c->v.type == JV_UNDEFINED || (any_false && !jv_is_true(c->v))) {
        *c->out = otherwise.type == JV_UNDEFINED ? jv_string(STR("")) : otherwise;
    }
    return ST_OK;
}

static enum status change_case(const struct jinja_filter_call *c, enum jinja_case to) {
    struct str s;

    TRY(jv_to_string(c->r, c->v, &s));
    return jinja_change_case(c->r, s, to, c->out);
}

static enum status filter_upper(const struct jinja_filter_call *c) {
    return change_case(c, CASE_UPPER);
}

static enum status filter_lower(const struct jinja_filter_call *c) {
    return change_case(c, CASE_LOWER);
}

static enum status filter_title(const struct jinja_filter_call *c) {
    return change_case(c, CASE_WORDS);
}

static enum status filter_capitalize(const struct jinja_filter_call *c) {
    return change_case(c, CASE_CAPITALIZE);
}

static enum status filter_string(const struct jinja_filter_call *c) {
    struct str s;

    TRY(jv_to_string(c->r, c->v, &s));
    *c->out = jv_string(s);
    return ST_OK;
}

static enum status filter_safe(const struct jinja_filter_call *c) {
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

static enum status filter_int(const struct jinja_filter_call *c) {
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

static enum status filter_float(const struct jinja_filter_call *c) {
    struct jv otherwise = jinja_arg(c->args, 0, "default");
    double f = jv_is_number(c->v)       ? jv_to_number(c->v)
               : c->v.type == JV_STRING ? number_in(c->v.as.string)
                                        : NAN;

    *c->out = !isnan(f) ? jv_float(f) : otherwise.type == JV_UNDEFINED ? jv_float(0) : otherwise;
    return ST_OK;
}

static enum status filter_abs(const struct jinja_filter_call *c) {
    if (!jv_is_number(c->v)) return jinja_fail(c->r, "abs needs a number");
    if (c->v.type == JV_FLOAT) {
        *c->out = jv_float(fabs(c->v.as.number));
    } else if (c->v.type == JV_INT && c->v.as.integer == INT64_MIN) {
        return jinja_fail(c->r, "an integer exceeds 64 bits");
    } else {
        *c->out = jv_int(c->v.type == JV_BOOL ? c->v.as.boolean : llabs(c->v.as.integer));
    }
    return ST_OK;
}

static enum status filter_round(const struct jinja_filter_call *c) {
    struct jv precision = jinja_arg(c->args, 0, "precision");
    double scale = precision.type == JV_INT ? pow(10, (double)precision.as.integer) : 1;

    if (!jv_is_number(c->v)) return jinja_fail(c->r, "round needs a number");
    *c->out = jv_float(nearbyint(jv_to_number(c->v) * scale) / scale);
    return ST_OK;
}

static enum status filter_replace(const struct jinja_filter_call *c) {
    struct jv max = jinja_arg(c->args, 2, "count");
    struct str s, from, to;

    TRY(jv_to_string(c->r, c->v, &s));
    TRY(jv_to_string(c->r, jinja_arg(c->args, 0, "old"), &from));
    TRY(jv_to_string(c->r, jinja_arg(c->args, 1, "new"), &to));
    return jinja_replace(c->r, s, from, to, max.type == JV_INT ? max.as.integer : -1, c->out);
}

/* indent(width=4, first=false, blank=false): the later lines get `width` blanks, empty ones only
 * with `blank`. */
static enum status filter_indent(const struct jinja_filter_call *c) {
    struct jv width = jinja_arg(c->args, 0, "width");
    bool first = jv_is_true(jinja_arg(c->args, 1, "first"));
    bool blank = jv_is_true(jinja_arg(c->args, 2, "blank"));
    int64_t n = width.type == JV_INT ? MIN(MAX(width.as.integer, 0), 1024) : 4;
    struct str s;
    struct buf b;

    TRY(jv_to_string(c->r, c->v, &s));
    TRY(jinja_charge(c->r, s.len / 16));
    buf_init(&b, c->r->limits.max_memory_bytes);
    for (size_t i = 0, line = 0; i <= s.len && !b.has_failed; i++) {
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

static enum status filter_items(const struct jinja_filter_call *c) {
    if (c->v.type == JV_UNDEFINED) return jv_new_list(c->r, 0, c->out);
    if (c->v.type != JV_DICT) return jinja_fail(c->r, "%s has no items", jv_type_name(c->v));
    return jinja_items(c->r, c->v, c->out);
}

/* --- the table -------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    jinja_filter_fn run;
} filters[] = {
    {"trim", filter_trim},     {"length", filter_length},         {"count", filter_length},
    {"tojson", filter_tojson}, {"default", filter_default},       {"d", filter_default},
    {"upper", filter_upper},   {"lower", filter_lower},           {"title", filter_title},
    {"items", filter_items},   {"string", filter_string},         {"int", filter_int},
    {"float", filter_float},   {"indent", filter_indent},         {"replace", filter_replace},
    {"safe", filter_safe},     {"capitalize", filter_capitalize}, {"abs", filter_abs},
    {"round", filter_round}};

static jinja_filter_fn find(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
        if (str_eq(name, str_of(filters[i].name))) return filters[i].run;
    }
    return jinja_find_list_filter(name);
}

enum status jinja_filter(struct jinja_run *r, struct str name, struct jv v,
                         const struct jinja_args *args, struct jv *out) {
    jinja_filter_fn run = find(name);
    struct jv result;
    struct jinja_filter_call c = {r, v, args, &result};

    if (!run) return jinja_fail(r, "unknown filter '" STR_FMT "'", STR_ARG(name));
    TRY(jinja_charge(r, 1 + (v.type == JV_STRING ? v.as.string.len / 64 : 0)));
    if (r->depth >= JINJA_MAX_DEPTH) return jinja_fail(r, "filters are nested too deeply");
    r->depth++; /* map calls filters */
    TRY(run(&c));
    r->depth--;
    *out = result;
    return ST_OK;
}
