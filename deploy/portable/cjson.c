/* deploy/portable/cjson.c - the part of cJSON that common/text/json.c calls, for the portable
 * worker.
 *
 * Debian has no static libcjson. common/text/json.c asks little of it: a tree of text that its own
 * strict pass (json_grammar.c) has found to be JSON, within its limits of depth, size and length of
 * numbers. Here is that, behind the library's header; what the strict pass refuses never comes
 * here, and what comes anyway ends as NULL. tests/unit/common/text/test_json.c runs with it as
 * well. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define MAX_DEPTH  1000 /* the library's own */
#define MAX_NUMBER 64

struct text {
    const char *p, *end;
    unsigned depth;
};

static cJSON *parse_value(struct text *t);

void *cJSON_malloc(size_t size) {
    return malloc(size);
}

void cJSON_Delete(cJSON *item) {
    cJSON *next;

    for (; item; item = next) {
        next = item->next;
        cJSON_Delete(item->child);
        free(item->valuestring);
        free(item->string);
        free(item);
    }
}

static cJSON *node(int type) {
    cJSON *item = calloc(1, sizeof(*item));

    if (item) item->type = type;
    return item;
}

static void skip_blanks(struct text *t) {
    while (t->p < t->end && (*t->p == ' ' || *t->p == '\t' || *t->p == '\n' || *t->p == '\r'))
        t->p++;
}

static cJSON_bool take(struct text *t, char c) {
    if (t->p == t->end || *t->p != c) return 0;
    t->p++;
    return 1;
}

/* --- strings ---------------------------------------------------------------------------------- */

static int hex4(const char *p, const char *end, unsigned *out) {
    char digits[5] = {0}, *stop;

    if (end - p < 4) return 0;
    memcpy(digits, p, 4);
    *out = (unsigned)strtoul(digits, &stop, 16);
    return stop == digits + 4;
}

static size_t put_utf8(char *out, unsigned c) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4, i;
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};

    for (i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* After \u: one escape or a pair of surrogates. */
static size_t unescape_unicode(struct text *t, char *out) {
    unsigned c, low;

    if (!hex4(t->p, t->end, &c)) return 0;
    t->p += 4;
    if (c >= 0xDC00 && c <= 0xDFFF) return 0;
    if (c >= 0xD800 && c <= 0xDBFF) {
        if (t->end - t->p < 6 || t->p[0] != '\\' || t->p[1] != 'u') return 0;
        if (!hex4(t->p + 2, t->end, &low) || low < 0xDC00 || low > 0xDFFF) return 0;
        t->p += 6;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return put_utf8(out, c);
}

/* After the backslash; no escape is shorter than what it stands for. */
static size_t unescape(struct text *t, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;

    if (t->p == t->end) return 0;
    if (*t->p == 'u') {
        t->p++;
        return unescape_unicode(t, out);
    }
    at = *t->p ? strchr(from, *t->p) : NULL;
    if (!at) return 0;
    t->p++;
    *out = to[at - from];
    return 1;
}

static char *parse_string(struct text *t) {
    const char *close;
    char *out, *w;
    size_t n;

    if (!take(t, '"')) return NULL;
    for (close = t->p; close < t->end && *close != '"'; close++)
        if (*close == '\\') close++;
    if (close >= t->end) return NULL;
    w = out = malloc((size_t)(close - t->p) + 1);
    if (!out) return NULL;
    while (t->p < close) {
        if (*t->p != '\\') {
            *w++ = *t->p++;
            continue;
        }
        t->p++;
        n = unescape(t, w);
        if (n == 0) {
            free(out);
            return NULL;
        }
        w += n;
    }
    *w = '\0';
    t->p++;
    return out;
}

/* --- values ----------------------------------------------------------------------------------- */

static cJSON *parse_text(struct text *t) {
    cJSON *item = node(cJSON_String);

    if (!item) return NULL;
    item->valuestring = parse_string(t);
    if (item->valuestring) return item;
    cJSON_Delete(item);
    return NULL;
}

static cJSON *parse_number(struct text *t) {
    char digits[MAX_NUMBER] = {0}, *stop;
    size_t n = 0;
    cJSON *item;

    while (t->p + n < t->end && n + 1 < sizeof(digits) && t->p[n] &&
           strchr("+-.eE0123456789", t->p[n]))
        n++;
    memcpy(digits, t->p, n);
    item = node(cJSON_Number);
    if (!item) return NULL;
    item->valuedouble = strtod(digits, &stop);
    if (stop == digits) {
        cJSON_Delete(item);
        return NULL;
    }
    t->p += stop - digits;
    return item;
}

static cJSON *parse_word(struct text *t, const char *word, int type) {
    size_t n = strlen(word);

    if ((size_t)(t->end - t->p) < n || memcmp(t->p, word, n) != 0) return NULL;
    t->p += n;
    return node(type);
}

/* One member of an object (with its name) or of an array. */
static cJSON *parse_member(struct text *t, int is_object) {
    char *name = NULL;
    cJSON *item;

    skip_blanks(t);
    if (is_object) {
        name = parse_string(t);
        if (!name) return NULL;
        skip_blanks(t);
        if (!take(t, ':')) {
            free(name);
            return NULL;
        }
    }
    item = parse_value(t);
    if (item)
        item->string = name;
    else
        free(name);
    skip_blanks(t);
    return item;
}

/* The members are a list whose first knows the last, as the library's. */
static cJSON *parse_members(struct text *t, int is_object, char close) {
    cJSON *list = node(is_object ? cJSON_Object : cJSON_Array), *item;

    t->p++;
    skip_blanks(t);
    if (!list || take(t, close)) return list;
    do {
        item = parse_member(t, is_object);
        if (!item) goto fail;
        if (list->child) {
            list->child->prev->next = item;
            item->prev = list->child->prev;
        } else {
            list->child = item;
        }
        list->child->prev = item;
    } while (take(t, ','));
    if (take(t, close)) return list;
fail:
    cJSON_Delete(list);
    return NULL;
}

static cJSON *parse_value(struct text *t) {
    cJSON *item = NULL;

    skip_blanks(t);
    if (t->p == t->end || t->depth == MAX_DEPTH) return NULL;
    t->depth++;
    switch (*t->p) {
    case '{': item = parse_members(t, 1, '}'); break;
    case '[': item = parse_members(t, 0, ']'); break;
    case '"': item = parse_text(t); break;
    case 't': item = parse_word(t, "true", cJSON_True); break;
    case 'f': item = parse_word(t, "false", cJSON_False); break;
    case 'n': item = parse_word(t, "null", cJSON_NULL); break;
    default: item = parse_number(t); break;
    }
    t->depth--;
    return item;
}

cJSON *cJSON_ParseWithLengthOpts(const char *value, size_t length, const char **end,
                                 cJSON_bool wants_zero) {
    struct text t = {value, value + length, 0};
    cJSON *item = parse_value(&t);

    (void)wants_zero;
    if (end) *end = t.p;
    return item;
}

/* --- questions -------------------------------------------------------------------------------- */

cJSON *cJSON_GetObjectItemCaseSensitive(const cJSON *object, const char *name) {
    cJSON *item = object && name ? object->child : NULL;

    while (item && (!item->string || strcmp(item->string, name) != 0))
        item = item->next;
    return item;
}

static int type_of(const cJSON *item) {
    return item ? item->type & 0xFF : 0;
}

cJSON_bool cJSON_IsTrue(const cJSON *item) {
    return type_of(item) == cJSON_True;
}

cJSON_bool cJSON_IsObject(const cJSON *item) {
    return type_of(item) == cJSON_Object;
}

cJSON_bool cJSON_IsNumber(const cJSON *item) {
    return type_of(item) == cJSON_Number;
}
