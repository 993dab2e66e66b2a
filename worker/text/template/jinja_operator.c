/* worker/text/template/jinja_operator.c - what operators do with values: arithmetic as Python's
 * within 64 bits, order, attributes, items and slices. */
#include <math.h>

#include "worker/text/template/jinja_internal.h"

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
        *out = jv_int(1); /* of recursive loops, which are unsupported */
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
    int64_t n;

    TRY(jinja_charge(r, v.type == JV_STRING ? v.as.string.len / 16 : 0));
    n = (int64_t)jv_length(v);
    *out = jv_undefined(STR("item"));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return ST_OK;
    *out = v.type == JV_LIST ? v.as.list->items[i]
                             : jv_string(jinja_slice_text(v.as.string, (size_t)i, 1));
    return ST_OK;
}

enum status jinja_subscript(struct jinja_run *r, struct jv v, struct jv key, struct jv *out) {
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

static enum status slice_bound(struct jinja_run *r, struct jv v, int64_t length, int64_t low,
                               int64_t high, int64_t absent, int64_t *out) {
    *out = absent;
    if (v.type == JV_NONE) return ST_OK;
    if (v.type != JV_INT) return jinja_fail(r, "a slice needs integers, not %s", jv_type_name(v));
    *out = v.as.integer < 0 ? MAX(v.as.integer, -length) + length : v.as.integer;
    if (v.as.integer < -length) *out = low;
    *out = MIN(MAX(*out, low), high);
    return ST_OK;
}

/* As Python's: bounds are clipped, a negative step walks backwards. */
enum status jinja_slice(struct jinja_run *r, struct jv v, const struct jv bounds[3],
                        struct jv *out) {
    int64_t length, from, to, step = bounds[2].type == JV_INT ? bounds[2].as.integer : 1;
    struct jv list;
    bool is_text;

    if (!step) return jinja_fail(r, "a slice has step 0");
    is_text = v.type == JV_STRING;
    if (!is_text && v.type != JV_LIST) {
        return jinja_fail(r, "%s cannot be sliced", jv_type_name(v));
    }
    length = (int64_t)jv_length(v);
    if (step > 0) {
        TRY(slice_bound(r, bounds[0], length, 0, length, 0, &from));
        TRY(slice_bound(r, bounds[1], length, 0, length, length, &to));
    } else {
        TRY(slice_bound(r, bounds[0], length, -1, length - 1, length - 1, &from));
        TRY(slice_bound(r, bounds[1], length, -1, length - 1, -1, &to));
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

/* --- arithmetic --------------------------------------------------------------------------------*/
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
    if (overflows) return jinja_fail(r, "an integer exceeds 64 bits");
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

/* `a op b`, except comparisons. */
enum status jinja_binary(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
                         struct jv *out) {
    if (op == OP_CONCAT) {
        struct str x, y;

        TRY(jv_to_string(r, a, &x));
        TRY(jv_to_string(r, b, &y));
        return concat(r, x, y, out);
    }
    if (jv_is_number(a) && jv_is_number(b)) return number_operation(r, op, a, b, out);
    if (op == OP_ADD && a.type == JV_STRING && b.type == JV_STRING) {
        return concat(r, a.as.string, b.as.string, out);
    }
    if (op == OP_ADD && a.type == JV_LIST && b.type == JV_LIST) return append_lists(r, a, b, out);
    if (op == OP_MUL && a.type == JV_STRING && b.type == JV_INT) {
        return repeat(r, a.as.string, b.as.integer, out);
    }
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED) {
        struct str name = a.type == JV_UNDEFINED ? a.as.string : b.as.string;

        return jinja_fail(r, "'" STR_FMT "' is undefined", STR_ARG(name));
    }
    return jinja_fail(r, "unsupported operand types: %s and %s", jv_type_name(a), jv_type_name(b));
}

enum status jinja_compare(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
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
