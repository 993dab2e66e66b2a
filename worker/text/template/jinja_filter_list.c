/* worker/text/template/jinja_filter_list.c - filters of lists: choosing, mapping, joining,
 * sorting. */
#include <stdlib.h>

#include "worker/text/template/jinja_filter.h"

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

/* --- filters of lists --------------------------------------------------------------------------*/
static enum status filter_list(const struct jinja_filter_call *c) {
    struct jv items;

    TRY(jv_iterate(c->r, c->v, &items));
    TRY(jv_new_list(c->r, items.as.list->n, c->out)); /* a list, though it was a tuple */
    for (size_t i = 0; i < items.as.list->n; i++)
        TRY(jv_push(c->r, *c->out, items.as.list->items[i]));
    return ST_OK;
}

static enum status end_item(const struct jinja_filter_call *c, bool is_last) {
    struct jv items;

    TRY(jv_iterate(c->r, c->v, &items));
    *c->out = !items.as.list->n ? jv_undefined(STR("an item of an empty list"))
                                : items.as.list->items[is_last ? items.as.list->n - 1 : 0];
    return ST_OK;
}

static enum status filter_first(const struct jinja_filter_call *c) {
    return end_item(c, false);
}

static enum status filter_last(const struct jinja_filter_call *c) {
    return end_item(c, true);
}

static enum status filter_reverse(const struct jinja_filter_call *c) {
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
static enum status attributes(const struct jinja_filter_call *c, struct jv attribute,
                              struct jv *out) {
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

static enum status filter_join(const struct jinja_filter_call *c) {
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
static enum status filter_map(const struct jinja_filter_call *c) {
    struct jinja_args rest = rest_of(c->args, 1);
    struct jv name = jinja_arg(c->args, 0, ""),
              attribute = jinja_arg(c->args, c->args->n, "attribute");
    struct jv items;

    if (name.type != JV_STRING && attribute.type != JV_STRING) {
        return jinja_fail(c->r, "map needs the name of a filter or an attribute");
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
static enum status choose(const struct jinja_filter_call *c, bool by_attribute, bool keeps) {
    struct jv name = jinja_arg(c->args, 0, ""), items, test;
    struct jinja_args rest = rest_of(c->args, by_attribute ? 2 : 1);

    if (by_attribute && name.type != JV_STRING)
        return jinja_fail(c->r, "the filter needs the name of an attribute");
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

static enum status filter_select(const struct jinja_filter_call *c) {
    return choose(c, false, true);
}

static enum status filter_reject(const struct jinja_filter_call *c) {
    return choose(c, false, false);
}

static enum status filter_selectattr(const struct jinja_filter_call *c) {
    return choose(c, true, true);
}

static enum status filter_rejectattr(const struct jinja_filter_call *c) {
    return choose(c, true, false);
}

static enum status filter_unique(const struct jinja_filter_call *c) {
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

/* `keys` and `values` run in parallel; string keys compare without case unless case_sensitive. */
static enum status sort(const struct jinja_filter_call *c, struct jv keys, struct jv values,
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

static enum status filter_sort(const struct jinja_filter_call *c) {
    struct jv keys, values, first = jinja_arg(c->args, 0, "reverse");
    struct jinja_filter_call by_value = *c;

    if (c->args->n && jv_is_true(first)) {
        return jinja_fail(c->r, "sort needs reverse as a named argument");
    }
    TRY(attributes(&by_value, jv_none(), &values));
    TRY(attributes(c, jinja_arg(c->args, 2, "attribute"), &keys));
    return sort(c, keys, values, jv_is_true(jinja_arg(c->args, 1, "case_sensitive")));
}

static enum status filter_dictsort(const struct jinja_filter_call *c) {
    struct jv keys, values;

    if (c->v.type != JV_DICT) return jinja_fail(c->r, "dictsort needs a mapping");
    TRY(jv_iterate(c->r, c->v, &keys));
    TRY(jinja_items(c->r, c->v, &values));
    return sort(c, keys, values, jv_is_true(jinja_arg(c->args, 0, "case_sensitive")));
}

static enum status extreme(const struct jinja_filter_call *c, int sign) {
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

static enum status filter_min(const struct jinja_filter_call *c) {
    return extreme(c, -1);
}

static enum status filter_max(const struct jinja_filter_call *c) {
    return extreme(c, 1);
}

/* sum(attribute, start=0) */
static enum status filter_sum(const struct jinja_filter_call *c) {
    struct jv items, start = jinja_arg(c->args, 1, "start");

    TRY(attributes(c, jinja_arg(c->args, 0, "attribute"), &items));
    *c->out = start.type == JV_UNDEFINED ? jv_int(0) : start;
    for (size_t i = 0; i < items.as.list->n; i++)
        TRY(jinja_binary(c->r, OP_ADD, *c->out, items.as.list->items[i], c->out));
    return ST_OK;
}

/* Of objects alone: the keys of a mapping are none of its attributes. */
static enum status filter_attr(const struct jinja_filter_call *c) {
    struct jv name = jinja_arg(c->args, 0, "name");

    if (name.type != JV_STRING) return jinja_fail(c->r, "attr needs a string");
    *c->out = jv_undefined(name.as.string);
    return c->v.type == JV_DICT ? ST_OK : jinja_attribute(c->r, c->v, name.as.string, c->out);
}

/* --- the table -------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    jinja_filter_fn run;
} filters[] = {{"join", filter_join},
               {"first", filter_first},
               {"last", filter_last},
               {"map", filter_map},
               {"select", filter_select},
               {"reject", filter_reject},
               {"list", filter_list},
               {"selectattr", filter_selectattr},
               {"rejectattr", filter_rejectattr},
               {"unique", filter_unique},
               {"reverse", filter_reverse},
               {"sort", filter_sort},
               {"dictsort", filter_dictsort},
               {"min", filter_min},
               {"max", filter_max},
               {"sum", filter_sum},
               {"attr", filter_attr}};

jinja_filter_fn jinja_find_list_filter(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
        if (str_eq(name, str_of(filters[i].name))) return filters[i].run;
    }
    return NULL;
}
