/* common/text/json.c - the tree: cJSON's nodes behind our own name. The only file that includes
 * cJSON.
 *
 * A struct json is a cJSON node. Two things are ours: the grammar pass before cJSON is let near the
 * text, and exact integers. cJSON stores a double; an integer that may not fit one keeps its text
 * in `valuestring`, which cJSON leaves NULL on numbers and frees with the node. */
#include "common/text/json.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "common/base/mem.h"
#include "common/text/json_internal.h"

#define DEFAULT_MAX_BYTES  ((size_t)32 << 20)
#define DEFAULT_MAX_DEPTH  64
#define DEFAULT_MAX_VALUES 2000000
#define HARD_MAX_DEPTH     512 /* the stack of the recursive passes, and below cJSON's own 1000 */
#define EXACT_F64          0x1p53 /* every integer up to here is a double */
#define FEW_KEYS           8      /* up to here comparing all pairs is quicker than sorting */

static const cJSON *node(const struct json *v) {
    return (const cJSON *)(const void *)v;
}

static const struct json *wrap(const cJSON *n) {
    return (const struct json *)(const void *)n;
}

/* --- building ---------------------------------------------------------------------------------*/
static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sets *twice to a key that the object holds twice, NULL when all differ. Sorting, not hashing: a
 * peer chooses the keys. */
static enum status find_double_key(const cJSON *object, size_t n, const char **twice) {
    const char *few[FEW_KEYS], **keys = few;
    size_t i = 0;

    *twice = NULL;
    if (n > FEW_KEYS) keys = mem_try(n * sizeof(*keys));
    if (!keys) return ST_NOMEM;
    for (const cJSON *it = object->child; it; it = it->next)
        keys[i++] = it->string;
    if (n > FEW_KEYS) {
        qsort(keys, n, sizeof(*keys), compare_keys);
        for (i = 1; i < n && !*twice; i++) {
            if (strcmp(keys[i - 1], keys[i]) == 0) *twice = keys[i];
        }
        mem_free(keys);
        return ST_OK;
    }
    for (i = 1; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(keys[j], keys[i]) == 0) *twice = keys[i];
        }
    }
    return ST_OK;
}

static enum status refuse_double_keys(const cJSON *v, struct error *err) {
    const char *twice;
    size_t n = 0;
    enum status st;

    for (const cJSON *it = v->child; it; it = it->next) {
        n++;
        if (!it->child) continue;
        st = refuse_double_keys(it, err);
        if (st != ST_OK) return st;
    }
    if (!cJSON_IsObject(v) || n < 2) return ST_OK;
    st = find_double_key(v, n, &twice);
    if (st != ST_OK) return error_set(err, st, "out of memory for an object of %zu keys", n);
    if (!twice) return ST_OK;
    return error_set_param(
        err, ST_INVALID, twice,
        "not valid JSON: the key \"%.64s\" appears twice in one object: keep one", twice);
}

/* Walks the numbers in document order beside the list of those to keep exactly. */
struct keeper {
    const struct json_exact *next, *end;
    uint64_t ordinal;
};

static enum status keep_exact(cJSON *v, struct keeper *k) {
    enum status st;

    if (cJSON_IsNumber(v) && k->ordinal++ == k->next->ordinal) {
        struct str text = k->next->text;

        v->valuestring = cJSON_malloc(text.len + 1);
        if (!v->valuestring) return ST_NOMEM;
        memcpy(v->valuestring, text.ptr, text.len);
        v->valuestring[text.len] = '\0';
        k->next++;
    }
    for (cJSON *it = v->child; it && k->next < k->end; it = it->next) {
        st = keep_exact(it, k);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static struct json_limits with_defaults(const struct json_limits *limits) {
    struct json_limits l = limits ? *limits : (struct json_limits){0};

    if (!l.max_bytes) l.max_bytes = DEFAULT_MAX_BYTES;
    if (!l.max_depth) l.max_depth = DEFAULT_MAX_DEPTH;
    if (!l.max_values) l.max_values = DEFAULT_MAX_VALUES;
    l.max_depth = MIN(l.max_depth, (uint32_t)HARD_MAX_DEPTH);
    return l;
}

static enum status build(cJSON **out, struct str text, const struct buf *exacts,
                         struct error *err) {
    cJSON *root = cJSON_ParseWithLengthOpts(text.ptr, text.len, NULL, false);
    struct str list = buf_str(exacts);
    enum status st;

    if (!root) return error_set(err, ST_NOMEM, "out of memory for %zu bytes of JSON", text.len);
    *out = root;
    if (list.len) {
        const struct json_exact *first = (const void *)list.ptr;
        struct keeper k = {first, first + list.len / sizeof(*first), 0};

        st = keep_exact(root, &k);
        if (st != ST_OK) return error_set(err, st, "out of memory for the numbers of the JSON");
        assert(k.next == k.end);
    }
    return refuse_double_keys(root, err);
}

enum status json_parse(struct json **out, struct str text, const struct json_limits *limits,
                       struct error *err) {
    struct json_limits l = with_defaults(limits);
    cJSON *root = NULL;
    struct buf exacts;
    enum status st;

    if (text.len > l.max_bytes) {
        return error_set(err, ST_TOO_LARGE, "JSON of %zu bytes: at most %zu are accepted", text.len,
                         l.max_bytes);
    }
    buf_init(&exacts, 0);
    st = json_grammar_check(text, &l, &exacts, err);
    if (st == ST_OK && buf_status(&exacts) != ST_OK) {
        st = error_set(err, ST_NOMEM, "out of memory for the numbers of the JSON");
    }
    if (st == ST_OK) st = build(&root, text, &exacts, err);
    buf_fini(&exacts);
    if (st != ST_OK) {
        cJSON_Delete(root);
        return st;
    }
    *out = (struct json *)(void *)root;
    return ST_OK;
}

void json_destroy(struct json *root) {
    cJSON_Delete((cJSON *)(void *)root);
}

/* --- asking -----------------------------------------------------------------------------------*/
enum json_type json_type(const struct json *v) {
    if (!v) return JSON_ABSENT;
    switch (node(v)->type & 0xFF) {
    case cJSON_NULL: return JSON_NULL;
    case cJSON_False:
    case cJSON_True: return JSON_BOOL;
    case cJSON_Number: return JSON_NUMBER;
    case cJSON_String: return JSON_STRING;
    case cJSON_Array: return JSON_ARRAY;
    default: return JSON_OBJECT;
    }
}

const char *json_type_name(const struct json *v) {
    static const char *const names[] = {
        [JSON_ABSENT] = "nothing",   [JSON_NULL] = "null",       [JSON_BOOL] = "a boolean",
        [JSON_NUMBER] = "a number",  [JSON_STRING] = "a string", [JSON_ARRAY] = "an array",
        [JSON_OBJECT] = "an object",
    };

    return names[json_type(v)];
}

bool json_is_null(const struct json *v) {
    return json_type(v) <= JSON_NULL;
}

const struct json *json_get(const struct json *object, const char *name) {
    if (json_type(object) != JSON_OBJECT) return NULL;
    return wrap(cJSON_GetObjectItemCaseSensitive(node(object), name));
}

const struct json *json_first(const struct json *v) {
    return v ? wrap(node(v)->child) : NULL;
}

const struct json *json_next(const struct json *v) {
    return wrap(node(v)->next);
}

size_t json_count(const struct json *v) {
    size_t n = 0;

    JSON_FOR_EACH(it, v) n++;
    return n;
}

struct str json_key(const struct json *member) {
    return str_of(node(member)->string);
}

enum status json_to_bool(const struct json *v, bool *out) {
    if (json_type(v) != JSON_BOOL) return ST_INVALID;
    *out = cJSON_IsTrue(node(v));
    return ST_OK;
}

enum status json_to_f64(const struct json *v, double *out) {
    if (json_type(v) != JSON_NUMBER) return ST_INVALID;
    *out = node(v)->valuedouble;
    return ST_OK;
}

/* The number as sign and magnitude, when it is whole and exactly known. */
static enum status to_integer(const struct json *v, bool *is_negative, uint64_t *magnitude) {
    double d;

    if (json_type(v) != JSON_NUMBER) return ST_INVALID;
    if (node(v)->valuestring) {
        struct str text = str_of(node(v)->valuestring);

        *is_negative = text.ptr[0] == '-';
        return str_to_u64((struct str){text.ptr + *is_negative, text.len - *is_negative},
                          magnitude);
    }
    d = node(v)->valuedouble;
    if (fabs(d) > EXACT_F64 || d != floor(d)) return ST_INVALID;
    *is_negative = d < 0;
    *magnitude = (uint64_t)fabs(d);
    return ST_OK;
}

enum status json_to_u64(const struct json *v, uint64_t *out) {
    bool is_negative;
    uint64_t magnitude;

    if (to_integer(v, &is_negative, &magnitude) != ST_OK) return ST_INVALID;
    if (is_negative && magnitude) return ST_INVALID;
    *out = magnitude;
    return ST_OK;
}

enum status json_to_i64(const struct json *v, int64_t *out) {
    bool is_negative;
    uint64_t magnitude;

    if (to_integer(v, &is_negative, &magnitude) != ST_OK) return ST_INVALID;
    if (magnitude > (uint64_t)INT64_MAX + is_negative) return ST_INVALID;
    *out = is_negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return ST_OK;
}

enum status json_to_str(const struct json *v, struct str *out) {
    if (json_type(v) != JSON_STRING) return ST_INVALID;
    *out = str_of(node(v)->valuestring);
    return ST_OK;
}

bool json_find(const struct json *from, const struct json *node, struct buf *pointer) {
    size_t length = buf_len(pointer), index = 0;

    if (from == node) return true;
    JSON_FOR_EACH(it, from) {
        struct str key = json_key(it);

        if (json_type(from) == JSON_ARRAY) {
            buf_appendf(pointer, "/%zu", index++);
        } else {
            buf_append_char(pointer, '/');
            for (size_t i = 0; i < MIN(key.len, 100u); i++) {
                if (key.ptr[i] == '~' || key.ptr[i] == '/') {
                    buf_appendf(pointer, "~%d", key.ptr[i] == '/');
                } else {
                    buf_append_char(pointer, key.ptr[i]);
                }
            }
        }
        if (json_find(it, node, pointer)) return true;
        buf_truncate(pointer, length);
    }
    return false;
}

/* --- members of a request ---------------------------------------------------------------------*/
/* What the client sent, short enough for a message. */
static const char *show(const struct json *v, char *out, size_t size) {
    if (json_type(v) == JSON_BOOL) return cJSON_IsTrue(node(v)) ? "true" : "false";
    if (json_type(v) != JSON_NUMBER) return json_type_name(v);
    if (node(v)->valuestring) return node(v)->valuestring;
    snprintf(out, size, "%.15g", node(v)->valuedouble);
    return out;
}

static enum status wrong(const struct json *v, const char *name, const char *expected,
                         struct error *err) {
    char sent[40];

    return error_set_param(err, ST_INVALID, name, "%s must be %s, not %s", name, expected,
                           show(v, sent, sizeof(sent)));
}

/* The member, or NULL when it is absent or null; *is_present distinguishes the two. */
static const struct json *present(const struct json *object, const char *name, bool *is_present) {
    const struct json *v = json_get(object, name);

    if (is_present) *is_present = !json_is_null(v);
    return json_is_null(v) ? NULL : v;
}

enum status json_get_bool(const struct json *object, const char *name, bool *out, bool *is_present,
                          struct error *err) {
    const struct json *v = present(object, name, is_present);

    if (!v || json_to_bool(v, out) == ST_OK) return ST_OK;
    return wrong(v, name, "true or false", err);
}

enum status json_get_u64(const struct json *object, const char *name, uint64_t min, uint64_t max,
                         uint64_t *out, bool *is_present, struct error *err) {
    const struct json *v = present(object, name, is_present);
    char expected[80];
    uint64_t value;

    if (!v) return ST_OK;
    if (json_to_u64(v, &value) == ST_OK && value >= min && value <= max) {
        *out = value;
        return ST_OK;
    }
    snprintf(expected, sizeof(expected), "an integer from %llu to %llu", (unsigned long long)min,
             (unsigned long long)max);
    return wrong(v, name, expected, err);
}

enum status json_get_u32(const struct json *object, const char *name, uint32_t min, uint32_t max,
                         uint32_t *out, bool *is_present, struct error *err) {
    bool has_value;
    uint64_t value;
    enum status st = json_get_u64(object, name, min, max, &value, &has_value, err);

    if (is_present) *is_present = has_value;
    if (st == ST_OK && has_value) *out = (uint32_t)value;
    return st;
}

enum status json_get_i64(const struct json *object, const char *name, int64_t min, int64_t max,
                         int64_t *out, bool *is_present, struct error *err) {
    const struct json *v = present(object, name, is_present);
    char expected[80];
    int64_t value;

    if (!v) return ST_OK;
    if (json_to_i64(v, &value) == ST_OK && value >= min && value <= max) {
        *out = value;
        return ST_OK;
    }
    snprintf(expected, sizeof(expected), "an integer from %lld to %lld", (long long)min,
             (long long)max);
    return wrong(v, name, expected, err);
}

enum status json_get_f64(const struct json *object, const char *name, double min, double max,
                         double *out, bool *is_present, struct error *err) {
    const struct json *v = present(object, name, is_present);
    char expected[80];
    double value;

    if (!v) return ST_OK;
    if (json_to_f64(v, &value) == ST_OK && value >= min && value <= max) {
        *out = value;
        return ST_OK;
    }
    if (min <= -DBL_MAX && max >= DBL_MAX) {
        snprintf(expected, sizeof(expected), "a number");
    } else if (max >= DBL_MAX) {
        snprintf(expected, sizeof(expected), "a number of at least %g", min);
    } else {
        snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
    }
    return wrong(v, name, expected, err);
}

enum status json_get_str(const struct json *object, const char *name, size_t max_bytes,
                         struct str *out, bool *is_present, struct error *err) {
    const struct json *v = present(object, name, is_present);
    struct str value;

    if (!v) return ST_OK;
    if (json_to_str(v, &value) != ST_OK) return wrong(v, name, "a string", err);
    if (value.len > max_bytes) {
        return error_set_param(err, ST_INVALID, name,
                               "%s must be a string of at most %zu bytes, not %zu", name, max_bytes,
                               value.len);
    }
    *out = value;
    return ST_OK;
}

enum status json_get_array(const struct json *object, const char *name, const struct json **out,
                           struct error *err) {
    const struct json *v = present(object, name, NULL);

    if (v && json_type(v) != JSON_ARRAY) return wrong(v, name, "an array", err);
    *out = v;
    return ST_OK;
}

enum status json_get_object(const struct json *object, const char *name, const struct json **out,
                            struct error *err) {
    const struct json *v = present(object, name, NULL);

    if (v && json_type(v) != JSON_OBJECT) return wrong(v, name, "an object", err);
    *out = v;
    return ST_OK;
}

/* --- writing what was read --------------------------------------------------------------------*/
void json_put_tree(struct json_writer *w, const struct json *v) {
    bool is_object = json_type(v) == JSON_OBJECT;

    switch (json_type(v)) {
    case JSON_ABSENT:
    case JSON_NULL: json_put_null(w); return;
    case JSON_BOOL: json_put_bool(w, cJSON_IsTrue(node(v))); return;
    case JSON_STRING: json_put_str(w, str_of(node(v)->valuestring)); return;
    case JSON_NUMBER:
        if (node(v)->valuestring) {
            json_put_raw(w, str_of(node(v)->valuestring));
        } else {
            json_put_f64(w, node(v)->valuedouble);
        }
        return;
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    }
    is_object ? json_begin_object(w) : json_begin_array(w);
    JSON_FOR_EACH(it, v) {
        if (is_object) json_put_key_str(w, json_key(it));
        json_put_tree(w, it);
    }
    is_object ? json_end_object(w) : json_end_array(w);
}
