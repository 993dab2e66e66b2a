/* worker/text/jinja_value.c - values: memory, truth, order, and Python's two ways to spell them. */
#include "worker/text/jinja_internal.h"
#include "worker/text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- memory ------------------------------------------------------------------------------------*/
enum status jinja_alloc(struct jinja_run *r, size_t n, void **out) {
    if (n > r->limits.max_memory_bytes - r->memory_bytes) {
        return error_set(r->err, ST_TOO_LARGE,
                         "chat template, line %u: it wants more than %zu bytes", r->line,
                         r->limits.max_memory_bytes);
    }
    r->memory_bytes += n + 16; /* small ones are rounded up */
    if (r->memory_bytes > r->limits.max_memory_bytes) r->memory_bytes = r->limits.max_memory_bytes;
    *out = arena_alloc(&r->arena, n);
    return ST_OK;
}

enum status jv_copy(struct jinja_run *r, struct str s, struct jv *out) {
    void *copy;

    TRY(jinja_charge(r, s.len / 64));
    TRY(jinja_alloc(r, s.len + 1, &copy));
    if (s.len) memcpy(copy, s.ptr, s.len);
    *out = jv_string((struct str){copy, s.len});
    return ST_OK;
}

enum status jinja_take(struct jinja_run *r, struct buf *b, struct jv *out) {
    enum status st = buf_status(b);

    if (st != ST_OK) {
        st = error_set(r->err, ST_TOO_LARGE, "chat template, line %u: its text is too long",
                       r->line);
    } else {
        st = jv_copy(r, buf_str(b), out);
    }
    buf_fini(b);
    return st;
}

enum status jv_new_list(struct jinja_run *r, size_t n, struct jv *out) {
    void *list = NULL, *items = NULL;

    TRY(jinja_alloc(r, sizeof(struct jv_list), &list));
    if (n) TRY(jinja_alloc(r, n * sizeof(struct jv), &items));
    *out = (struct jv){.type = JV_LIST, .as.list = list};
    out->as.list->items = items;
    out->as.list->cap = n;
    return ST_OK;
}

enum status jv_push(struct jinja_run *r, struct jv list, struct jv v) {
    struct jv_list *l = list.as.list;
    void *grown;

    TRY(jinja_charge(r, 1));
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;

        TRY(jinja_alloc(r, cap * sizeof(*l->items), &grown));
        if (l->n) memcpy(grown, l->items, l->n * sizeof(*l->items));
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return ST_OK;
}

size_t jv_list_count(struct jv list) {
    return list.as.list->n;
}

struct jv jv_list_at(struct jv list, size_t i) {
    return list.as.list->items[i];
}

enum status jv_new_dict(struct jinja_run *r, size_t n, struct jv *out) {
    void *dict = NULL, *entries = NULL;

    TRY(jinja_alloc(r, sizeof(struct jv_dict), &dict));
    if (n) TRY(jinja_alloc(r, n * sizeof(struct jv_entry), &entries));
    *out = (struct jv){.type = JV_DICT, .as.dict = dict};
    out->as.dict->entries = entries;
    out->as.dict->cap = n;
    return ST_OK;
}

static enum status append_entry(struct jinja_run *r, struct jv_dict *d, struct jv key,
                                struct jv v) {
    void *grown;

    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 8;

        TRY(jinja_alloc(r, cap * sizeof(*d->entries), &grown));
        if (d->n) memcpy(grown, d->entries, d->n * sizeof(*d->entries));
        d->entries = grown;
        d->cap = cap;
    }
    d->entries[d->n++] = (struct jv_entry){key, v};
    return ST_OK;
}

enum status jv_find(struct jinja_run *r, struct jv dict, struct jv key, struct jv_entry **out) {
    struct jv_dict *d = dict.as.dict;

    *out = NULL;
    TRY(jinja_charge(r, d->n / 4));
    for (size_t i = 0; i < d->n; i++) {
        bool is_equal;

        TRY(jv_equal(r, d->entries[i].key, key, &is_equal));
        if (!is_equal) continue;
        *out = &d->entries[i];
        break;
    }
    return ST_OK;
}

enum status jv_set(struct jinja_run *r, struct jv dict, struct jv key, struct jv v) {
    struct jv_entry *entry;

    TRY(jv_find(r, dict, key, &entry));
    if (!entry) return append_entry(r, dict.as.dict, key, v);
    entry->value = v;
    return ST_OK;
}

enum status jv_add(struct jinja_run *r, struct jv dict, struct str key, struct jv v) {
    return append_entry(r, dict.as.dict, jv_string(key), v);
}

struct jv jv_get(struct jinja_run *r, struct jv dict, struct str key) {
    struct jv_entry *entry = NULL;

    if (dict.type == JV_DICT && jv_find(r, dict, jv_string(key), &entry) == ST_OK && entry) {
        return entry->value;
    }
    return jv_undefined(key);
}

/* --- questions ---------------------------------------------------------------------------------*/
size_t jinja_characters(struct str s) {
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += ((uint8_t)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

struct str jinja_slice_text(struct str s, size_t from, size_t n) {
    const char *p = s.ptr, *end = s.ptr + s.len, *begin;
    uint32_t bytes;

    for (; from > 0 && p < end; from--, p += bytes)
        unicode_decode(p, end, &bytes);
    begin = p;
    for (; n > 0 && p < end; n--, p += bytes)
        unicode_decode(p, end, &bytes);
    return (struct str){begin, (size_t)(p - begin)};
}

bool jv_has_length(struct jv v) {
    return v.type == JV_UNDEFINED || v.type == JV_STRING || v.type == JV_LIST || v.type == JV_DICT;
}

size_t jv_length(struct jv v) {
    switch (v.type) {
    case JV_STRING: return jinja_characters(v.as.string);
    case JV_LIST: return v.as.list->n;
    case JV_DICT: return v.as.dict->n;
    default: return 0;
    }
}

bool jv_is_true(struct jv v) {
    switch (v.type) {
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v.as.boolean;
    case JV_INT: return v.as.integer != 0;
    case JV_FLOAT: return v.as.number != 0;
    case JV_STRING: return v.as.string.len != 0;
    case JV_LIST: return v.as.list->n != 0;
    case JV_DICT: return v.as.dict->n != 0;
    default: return true;
    }
}

bool jv_is_number(struct jv v) {
    return v.type == JV_BOOL || v.type == JV_INT || v.type == JV_FLOAT;
}

double jv_to_number(struct jv v) {
    if (v.type == JV_FLOAT) return v.as.number;
    return v.type == JV_BOOL ? v.as.boolean : (double)v.as.integer;
}

bool jv_is_string(struct jv v, const char *s) {
    return v.type == JV_STRING && str_eq(v.as.string, str_of(s));
}

const char *jv_type_name(struct jv v) {
    static const char *const names[] = {"undefined",   "none",       "a boolean", "an integer",
                                        "a float",     "a string",   "a list",    "a mapping",
                                        "a namespace", "a function", "a loop"};

    return names[v.type];
}

static int64_t integer_of(struct jv v) {
    return v.type == JV_BOOL ? v.as.boolean : v.as.integer;
}

static int compare_text(struct str a, struct str b) {
    size_t n = MIN(a.len, b.len);
    int c = n ? memcmp(a.ptr, b.ptr, n) : 0;

    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int compare_numbers(struct jv a, struct jv b) {
    if (a.type == JV_FLOAT || b.type == JV_FLOAT) {
        double x = jv_to_number(a), y = jv_to_number(b);

        return (x > y) - (x < y);
    }
    return (integer_of(a) > integer_of(b)) - (integer_of(a) < integer_of(b));
}

/* Values nest as deep as evaluation may: each level went through one of its steps. */
static enum status descend(struct jinja_run *r) {
    TRY(jinja_charge(r, 1));
    if (r->depth >= JINJA_MAX_DEPTH) return jinja_fail(r, "a value is nested too deep");
    r->depth++;
    return ST_OK;
}

static enum status equal_lists(struct jinja_run *r, const struct jv_list *a,
                               const struct jv_list *b, bool *out) {
    *out = a->n == b->n && a->is_tuple == b->is_tuple;
    for (size_t i = 0; *out && i < a->n; i++)
        TRY(jv_equal(r, a->items[i], b->items[i], out));
    return ST_OK;
}

static enum status equal_dicts(struct jinja_run *r, struct jv a, struct jv b, bool *out) {
    *out = a.as.dict->n == b.as.dict->n;
    for (size_t i = 0; *out && i < a.as.dict->n; i++) {
        struct jv_entry *other;

        TRY(jv_find(r, b, a.as.dict->entries[i].key, &other));
        *out = other != NULL;
        if (other) TRY(jv_equal(r, a.as.dict->entries[i].value, other->value, out));
    }
    return ST_OK;
}

enum status jv_equal(struct jinja_run *r, struct jv a, struct jv b, bool *out) {
    *out = false;
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return ST_OK;
    }
    if (a.type != b.type) return ST_OK;
    TRY(descend(r));
    switch (a.type) {
    case JV_STRING: *out = str_eq(a.as.string, b.as.string); break;
    case JV_LIST: TRY(equal_lists(r, a.as.list, b.as.list, out)); break;
    case JV_DICT: TRY(equal_dicts(r, a, b, out)); break;
    case JV_NAMESPACE: *out = a.as.dict == b.as.dict; break;
    case JV_LOOP: *out = a.as.loop == b.as.loop; break;
    case JV_FUNCTION: *out = a.macro == b.macro && str_eq(a.as.string, b.as.string); break;
    default: *out = true; break; /* none, undefined */
    }
    r->depth--;
    return ST_OK;
}

enum status jv_compare(struct jinja_run *r, struct jv a, struct jv b, int *out) {
    TRY(jinja_charge(r, 1));
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = compare_numbers(a, b);
    } else if (a.type == JV_STRING && b.type == JV_STRING) {
        *out = compare_text(a.as.string, b.as.string);
    } else {
        return jinja_fail(r, "%s and %s have no order", jv_type_name(a), jv_type_name(b));
    }
    return ST_OK;
}

enum status jv_contains(struct jinja_run *r, struct jv container, struct jv v, bool *out) {
    struct jv_entry *entry;

    *out = false;
    switch (container.type) {
    case JV_UNDEFINED: return ST_OK;
    case JV_STRING:
        if (v.type != JV_STRING) {
            return jinja_fail(r, "'in' a string wants a string, not %s", jv_type_name(v));
        }
        TRY(jinja_charge(r, container.as.string.len / 16));
        *out = str_find(container.as.string, v.as.string) >= 0;
        return ST_OK;
    case JV_LIST:
        for (size_t i = 0; !*out && i < container.as.list->n; i++) {
            TRY(jv_equal(r, container.as.list->items[i], v, out));
        }
        return ST_OK;
    case JV_DICT:
        TRY(jv_find(r, container, v, &entry));
        *out = entry != NULL;
        return ST_OK;
    default: return jinja_fail(r, "%s contains nothing", jv_type_name(container));
    }
}

enum status jv_iterate(struct jinja_run *r, struct jv v, struct jv *list) {
    struct str s = v.as.string;

    if (v.type == JV_LIST) {
        *list = v;
        return ST_OK;
    }
    TRY(jv_new_list(r, 0, list));
    switch (v.type) {
    case JV_UNDEFINED: return ST_OK;
    case JV_DICT:
        for (size_t i = 0; i < v.as.dict->n; i++)
            TRY(jv_push(r, *list, v.as.dict->entries[i].key));
        return ST_OK;
    case JV_STRING:
        while (s.len) {
            uint32_t n;

            unicode_decode(s.ptr, s.ptr + s.len, &n);
            TRY(jv_push(r, *list, jv_string((struct str){s.ptr, n})));
            s.ptr += n;
            s.len -= n;
        }
        return ST_OK;
    default: return jinja_fail(r, "%s cannot be looped over", jv_type_name(v));
    }
}

/* --- spelling ----------------------------------------------------------------------------------*/
/* The shortest digits that read back, placed as Python's repr places them. */
static void spell_float(struct buf *b, double f, bool is_json) {
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
static void spell_repr(struct buf *b, struct str s) {
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

static void spell_json_string(struct buf *b, struct str s) {
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
        } else {
            buf_append_char(b, (char)c);
        }
    }
    buf_append_char(b, '"');
}

/* How to spell: Python's str and repr, or json.dumps. */
struct spelling {
    struct buf out;
    bool is_json, sorts_keys;
    int64_t indent; /* < 0: on one line */
    uint32_t level;
};

static void new_line(struct spelling *s) {
    if (s->indent < 0) return;
    buf_append_char(&s->out, '\n');
    for (int64_t i = 0; i < s->indent * s->level; i++)
        buf_append_char(&s->out, ' ');
}

static void separate(struct spelling *s, size_t i) {
    if (i) buf_append_str(&s->out, s->indent < 0 ? STR(", ") : STR(","));
    new_line(s);
}

static enum status spell(struct jinja_run *r, struct spelling *s, struct jv v);

static enum status spell_list(struct jinja_run *r, struct spelling *s, const struct jv_list *l) {
    bool is_tuple = l->is_tuple && !s->is_json;

    buf_append_char(&s->out, is_tuple ? '(' : '[');
    s->level++;
    for (size_t i = 0; i < l->n; i++) {
        separate(s, i);
        TRY(spell(r, s, l->items[i]));
    }
    s->level--;
    if (l->n) new_line(s);
    if (is_tuple && l->n == 1) buf_append_char(&s->out, ',');
    buf_append_char(&s->out, is_tuple ? ')' : ']');
    return ST_OK;
}

static int by_key(const void *a, const void *b) {
    return compare_text(((const struct jv_entry *)a)->key.as.string,
                        ((const struct jv_entry *)b)->key.as.string);
}

static enum status sorted_entries(struct jinja_run *r, const struct jv_dict *d,
                                  struct jv_entry **out) {
    void *copy;

    for (size_t i = 0; i < d->n; i++) {
        if (d->entries[i].key.type != JV_STRING) return jinja_fail(r, "only text keys are sorted");
    }
    TRY(jinja_alloc(r, d->n * sizeof(**out), &copy));
    if (d->n) memcpy(copy, d->entries, d->n * sizeof(**out));
    qsort(copy, d->n, sizeof(**out), by_key);
    *out = copy;
    return ST_OK;
}

static enum status spell_key(struct jinja_run *r, struct spelling *s, struct jv key) {
    bool needs_quotes = s->is_json && key.type != JV_STRING;

    if (needs_quotes) buf_append_char(&s->out, '"');
    TRY(spell(r, s, key));
    if (needs_quotes) buf_append_char(&s->out, '"');
    return ST_OK;
}

static enum status spell_dict(struct jinja_run *r, struct spelling *s, const struct jv_dict *d) {
    struct jv_entry *entries = d->entries;

    if (s->sorts_keys) TRY(sorted_entries(r, d, &entries));
    buf_append_char(&s->out, '{');
    s->level++;
    for (size_t i = 0; i < d->n; i++) {
        separate(s, i);
        TRY(spell_key(r, s, entries[i].key));
        buf_append_str(&s->out, STR(": "));
        TRY(spell(r, s, entries[i].value));
    }
    s->level--;
    if (d->n) new_line(s);
    buf_append_char(&s->out, '}');
    return ST_OK;
}

static enum status spell_nested(struct jinja_run *r, struct spelling *s, struct jv v) {
    TRY(descend(r));
    if (v.type == JV_LIST) {
        TRY(spell_list(r, s, v.as.list));
    } else {
        TRY(spell_dict(r, s, v.as.dict));
    }
    r->depth--;
    if (s->out.has_failed) return jinja_fail(r, "a value is too long to print");
    return ST_OK;
}

static enum status spell(struct jinja_run *r, struct spelling *s, struct jv v) {
    TRY(jinja_charge(r, 1));
    switch (v.type) {
    case JV_UNDEFINED:
        if (!s->is_json) return ST_OK;
        return jinja_fail(r, "'" STR_FMT "' is undefined and has no JSON", STR_ARG(v.as.string));
    case JV_NONE: buf_append_str(&s->out, s->is_json ? STR("null") : STR("None")); break;
    case JV_BOOL:
        buf_append_str(&s->out, s->is_json ? (v.as.boolean ? STR("true") : STR("false"))
                                           : (v.as.boolean ? STR("True") : STR("False")));
        break;
    case JV_INT: buf_appendf(&s->out, "%lld", (long long)v.as.integer); break;
    case JV_FLOAT: spell_float(&s->out, v.as.number, s->is_json); break;
    case JV_STRING:
        TRY(jinja_charge(r, v.as.string.len / 64));
        if (s->is_json) {
            spell_json_string(&s->out, v.as.string);
        } else {
            spell_repr(&s->out, v.as.string);
        }
        break;
    case JV_LIST:
    case JV_DICT: return spell_nested(r, s, v);
    default: return jinja_fail(r, "%s cannot be printed", jv_type_name(v));
    }
    return ST_OK;
}

static enum status spell_all(struct jinja_run *r, struct spelling *s, struct jv v, struct jv *out) {
    enum status st;

    buf_init(&s->out, r->limits.max_output_bytes);
    st = spell(r, s, v);
    if (st == ST_OK) return jinja_take(r, &s->out, out);
    buf_fini(&s->out);
    return st;
}

enum status jv_to_string(struct jinja_run *r, struct jv v, struct str *out) {
    struct spelling s = {.indent = -1};
    struct jv text;

    if (v.type == JV_STRING) {
        *out = v.as.string;
        return ST_OK;
    }
    if (v.type == JV_UNDEFINED) {
        *out = STR("");
        return ST_OK;
    }
    TRY(spell_all(r, &s, v, &text));
    *out = text.as.string;
    return ST_OK;
}

enum status jv_to_json(struct jinja_run *r, struct jv v, int64_t indent, bool sorts_keys,
                       struct jv *out) {
    struct spelling s = {.is_json = true, .indent = MIN(indent, 64), .sorts_keys = sorts_keys};

    return spell_all(r, &s, v, out);
}
