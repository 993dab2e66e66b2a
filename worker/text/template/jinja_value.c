/* worker/text/template/jinja_value.c - values: memory, truth, order. */
#include "worker/text/template/jinja_internal.h"
#include "worker/text/unicode/unicode.h"

/* --- memory ------------------------------------------------------------------------------------*/
enum status jinja_alloc(struct jinja_run *r, size_t n, void **out) {
    if (n > r->limits.max_memory_bytes - r->memory_bytes) {
        return error_set(r->err, ST_TOO_LARGE,
                         "chat template, line %u: it needs more than %zu bytes of memory", r->line,
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
        st = error_set(r->err, ST_TOO_LARGE, "chat template, line %u: a string is too long",
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

int jinja_compare_text(struct str a, struct str b) {
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
enum status jv_descend(struct jinja_run *r) {
    TRY(jinja_charge(r, 1));
    if (r->depth >= JINJA_MAX_DEPTH) return jinja_fail(r, "a value is nested too deeply");
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
    TRY(jv_descend(r));
    switch (a.type) {
    case JV_STRING:
        if (a.as.string.len == b.as.string.len) TRY(jinja_charge(r, a.as.string.len / 64));
        *out = str_eq(a.as.string, b.as.string);
        break;
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
        TRY(jinja_charge(r, MIN(a.as.string.len, b.as.string.len) / 64));
        *out = jinja_compare_text(a.as.string, b.as.string);
    } else {
        return jinja_fail(r, "%s and %s cannot be ordered", jv_type_name(a), jv_type_name(b));
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
            return jinja_fail(r, "'in' of a string needs a string, not %s", jv_type_name(v));
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
    default: return jinja_fail(r, "'in' does not apply to %s", jv_type_name(container));
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
    default: return jinja_fail(r, "%s is not iterable", jv_type_name(v));
    }
}
