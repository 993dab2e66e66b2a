/* worker/text/template/jinja_repr.c - values as text, in Python's two ways: str and repr, and
 * json.dumps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker/text/template/jinja_internal.h"
#include "worker/text/unicode/unicode.h"

/* The shortest digits that read back, placed as Python's repr places them. */
static void repr_float(struct buf *b, double f, bool is_json) {
    char text[40], digits[32];
    int precision = 1, exponent, n;

    if (isnan(f) || isinf(f)) {
        const char *name = isnan(f) ? (is_json ? "NaN" : "nan")
                           : f > 0  ? (is_json ? "Infinity" : "inf")
                                    : (is_json ? "-Infinity" : "-inf");

        buf_append_str(b, str_of(name));
        return;
    }
    do {
        snprintf(text, sizeof(text), "%.*e", precision - 1, f);
    } while (strtod(text, NULL) != f && ++precision <= 17);
    exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= 16 || exponent < -4) {
        n = (int)(strchr(text, 'e') - text);
        buf_append(b, text, (size_t)n);
        buf_appendf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    snprintf(digits, sizeof(digits), "%.*f", MAX(precision - 1 - exponent, 1), f);
    buf_append_str(b, str_of(digits));
}

/* Python's repr of a string: single quotes unless it has those and no double ones. */
static void repr_string(struct buf *b, struct str s) {
    bool has_single = str_find(s, STR("'")) >= 0, has_double = str_find(s, STR("\"")) >= 0;
    char quote = has_single && !has_double ? '"' : '\'';

    buf_append_char(b, quote);
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = (uint8_t)s.ptr[i];

        if (c == (uint8_t)quote || c == '\\') {
            buf_append_char(b, '\\');
            buf_append_char(b, (char)c);
        } else if (c == '\n') {
            buf_append_str(b, STR("\\n"));
        } else if (c == '\r') {
            buf_append_str(b, STR("\\r"));
        } else if (c == '\t') {
            buf_append_str(b, STR("\\t"));
        } else if (c < 0x20 || c == 0x7F) {
            buf_appendf(b, "\\x%02x", c);
        } else {
            buf_append_char(b, (char)c);
        }
    }
    buf_append_char(b, quote);
}

/* A character beyond ASCII as JSON escapes it: in two halves above FFFF. */
static void repr_escaped(struct buf *b, uint32_t cp) {
    if (cp > 0xFFFF) {
        buf_appendf(b, "\\u%04x", 0xD800 + ((cp - 0x10000) >> 10));
        cp = 0xDC00 + ((cp - 0x10000) & 0x3FF);
    }
    buf_appendf(b, "\\u%04x", cp);
}

static void repr_json_string(struct buf *b, struct str s, bool is_ascii) {
    buf_append_char(b, '"');
    for (size_t i = 0; i < s.len; i++) {
        static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
        uint8_t c = (uint8_t)s.ptr[i];
        const char *simple = memchr(from, c, sizeof(from) - 1);

        if (simple) {
            buf_append_char(b, '\\');
            buf_append_char(b, to[simple - from]);
        } else if (c < 0x20) {
            buf_appendf(b, "\\u%04x", c);
        } else if (c >= 0x80 && is_ascii) {
            uint32_t n;

            repr_escaped(b, unicode_decode(s.ptr + i, s.ptr + s.len, &n));
            i += n - 1;
        } else {
            buf_append_char(b, (char)c);
        }
    }
    buf_append_char(b, '"');
}

/* How to spell: Python's str and repr, or json.dumps. */
struct repr_run {
    struct buf out;
    bool is_json;
    struct jinja_json json; /* of str and repr: on one line */
    uint32_t level;
};

static void new_line(struct repr_run *s) {
    if (s->json.indent < 0) return;
    buf_append_char(&s->out, '\n');
    for (int64_t i = 0; i < s->json.indent * s->level && !s->out.has_failed; i++)
        buf_append_char(&s->out, ' ');
}

static void separate(struct repr_run *s, size_t i) {
    if (i) buf_append_str(&s->out, s->json.between_items);
    new_line(s);
}

static enum status repr_value(struct jinja_run *r, struct repr_run *s, struct jv v);

static enum status repr_list(struct jinja_run *r, struct repr_run *s, const struct jv_list *l) {
    bool is_tuple = l->is_tuple && !s->is_json;

    buf_append_char(&s->out, is_tuple ? '(' : '[');
    s->level++;
    for (size_t i = 0; i < l->n; i++) {
        separate(s, i);
        TRY(repr_value(r, s, l->items[i]));
    }
    s->level--;
    if (l->n) new_line(s);
    if (is_tuple && l->n == 1) buf_append_char(&s->out, ',');
    buf_append_char(&s->out, is_tuple ? ')' : ']');
    return ST_OK;
}

static int by_key(const void *a, const void *b) {
    return jinja_compare_text(((const struct jv_entry *)a)->key.as.string,
                              ((const struct jv_entry *)b)->key.as.string);
}

static enum status sorted_entries(struct jinja_run *r, const struct jv_dict *d,
                                  struct jv_entry **out) {
    void *copy;

    for (size_t i = 0; i < d->n; i++) {
        if (d->entries[i].key.type != JV_STRING)
            return jinja_fail(r, "sort_keys needs string keys");
    }
    TRY(jinja_alloc(r, d->n * sizeof(**out), &copy));
    if (d->n) memcpy(copy, d->entries, d->n * sizeof(**out));
    qsort(copy, d->n, sizeof(**out), by_key);
    *out = copy;
    return ST_OK;
}

static enum status repr_key(struct jinja_run *r, struct repr_run *s, struct jv key) {
    bool needs_quotes = s->is_json && key.type != JV_STRING;

    if (needs_quotes) buf_append_char(&s->out, '"');
    TRY(repr_value(r, s, key));
    if (needs_quotes) buf_append_char(&s->out, '"');
    return ST_OK;
}

static enum status repr_dict(struct jinja_run *r, struct repr_run *s, const struct jv_dict *d) {
    struct jv_entry *entries = d->entries;

    if (s->json.sorts_keys) TRY(sorted_entries(r, d, &entries));
    buf_append_char(&s->out, '{');
    s->level++;
    for (size_t i = 0; i < d->n; i++) {
        separate(s, i);
        TRY(repr_key(r, s, entries[i].key));
        buf_append_str(&s->out, s->json.after_keys);
        TRY(repr_value(r, s, entries[i].value));
    }
    s->level--;
    if (d->n) new_line(s);
    buf_append_char(&s->out, '}');
    return ST_OK;
}

static enum status repr_nested(struct jinja_run *r, struct repr_run *s, struct jv v) {
    TRY(jv_descend(r));
    if (v.type == JV_LIST) {
        TRY(repr_list(r, s, v.as.list));
    } else {
        TRY(repr_dict(r, s, v.as.dict));
    }
    r->depth--;
    if (s->out.has_failed) return jinja_fail(r, "a value is too long to print");
    return ST_OK;
}

static enum status repr_value(struct jinja_run *r, struct repr_run *s, struct jv v) {
    TRY(jinja_charge(r, 1));
    switch (v.type) {
    case JV_UNDEFINED:
        if (!s->is_json) return ST_OK;
        return jinja_fail(r, "'" STR_FMT "' is undefined and cannot be converted to JSON",
                          STR_ARG(v.as.string));
    case JV_NONE: buf_append_str(&s->out, s->is_json ? STR("null") : STR("None")); break;
    case JV_BOOL:
        buf_append_str(&s->out, s->is_json ? (v.as.boolean ? STR("true") : STR("false"))
                                           : (v.as.boolean ? STR("True") : STR("False")));
        break;
    case JV_INT: buf_appendf(&s->out, "%lld", (long long)v.as.integer); break;
    case JV_FLOAT:
        TRY(jinja_charge(r, 16)); /* tries up to 17 precisions */
        repr_float(&s->out, v.as.number, s->is_json);
        break;
    case JV_STRING:
        TRY(jinja_charge(r, v.as.string.len / 64));
        if (s->is_json) {
            repr_json_string(&s->out, v.as.string, s->json.is_ascii);
        } else {
            repr_string(&s->out, v.as.string);
        }
        break;
    case JV_LIST:
    case JV_DICT: return repr_nested(r, s, v);
    default: return jinja_fail(r, "%s cannot be printed", jv_type_name(v));
    }
    return ST_OK;
}

static enum status repr_all(struct jinja_run *r, struct repr_run *s, struct jv v, struct jv *out) {
    enum status st;

    buf_init(&s->out, r->limits.max_output_bytes);
    st = repr_value(r, s, v);
    if (st == ST_OK) return jinja_take(r, &s->out, out);
    buf_fini(&s->out);
    return st;
}

enum status jv_to_string(struct jinja_run *r, struct jv v, struct str *out) {
    struct repr_run s = {
        .json = {.indent = -1, .between_items = STR(", "), .after_keys = STR(": ")}};
    struct jv text;

    if (v.type == JV_STRING) {
        *out = v.as.string;
        return ST_OK;
    }
    if (v.type == JV_UNDEFINED) {
        *out = STR("");
        return ST_OK;
    }
    TRY(repr_all(r, &s, v, &text));
    *out = text.as.string;
    return ST_OK;
}

enum status jv_to_json(struct jinja_run *r, struct jv v, const struct jinja_json *how,
                       struct jv *out) {
    struct repr_run s = {.is_json = true, .json = *how};

    s.json.indent = MIN(how->indent, 64);
    return repr_all(r, &s, v, out);
}
