/* router/fleet/discovery/kube_json.c - brackets and quotes, counted. */
#include "router/fleet/discovery/kube_json.h"

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word_byte(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
           c == 'E';
}

/* --- one value -------------------------------------------------------------------------------- */

/* The bytes of a string that are left, its closing quote included; all of them when it goes on. */
static size_t skip_string(struct kube_scan *s, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (s->is_escaped) {
            s->is_escaped = false;
        } else if (p[i] == '\\') {
            s->is_escaped = true;
        } else if (p[i] == '"') {
            s->is_string = false;
            return i + 1;
        }
    }
    return n;
}

static bool open_container(struct kube_scan *s, bool is_object) {
    if (s->depth == KUBE_JSON_DEPTH_MAX) return false;
    s->is_object &= ~(UINT64_C(1) << s->depth);
    s->is_object |= (uint64_t)is_object << s->depth;
    s->depth++;
    return true;
}

static bool close_container(struct kube_scan *s, bool is_object) {
    if (s->depth == 0) return false;
    s->depth--;
    return (s->is_object >> s->depth & 1) == is_object;
}

/* A byte outside strings. False: it may not be there. */
static bool take(struct kube_scan *s, char c) {
    if (is_blank(c)) return true;
    if (c == '{' || c == '[') {
        if (!open_container(s, c == '{')) return false;
    } else if (c == '}' || c == ']') {
        if (!close_container(s, c == '}')) return false;
    } else if (c == '"') {
        s->is_string = true;
    } else if (is_word_byte(c)) {
        s->is_word = s->depth == 0;
    } else if ((c != ',' && c != ':') || s->depth == 0) {
        return false;
    }
    s->has_begun = true;
    return true;
}

enum status kube_scan_feed(struct kube_scan *s, struct str piece, size_t *n) {
    size_t i = 0;

    while (i < piece.len) {
        if (s->is_string) {
            i += skip_string(s, piece.ptr + i, piece.len - i);
        } else if (s->is_word && !is_word_byte(piece.ptr[i])) {
            *n = i;
            return ST_OK;
        } else if (!take(s, piece.ptr[i++])) {
            return ST_INVALID;
        }
        if (s->has_begun && !s->is_string && !s->is_word && s->depth == 0) {
            *n = i;
            return ST_OK;
        }
    }
    return ST_AGAIN;
}

/* --- members ---------------------------------------------------------------------------------- */

static char next_byte(struct str *rest) {
    while (rest->len && is_blank(*rest->ptr)) {
        rest->ptr++;
        rest->len--;
    }
    if (rest->len == 0) return '\0';
    rest->len--;
    return *rest->ptr++;
}

static bool cut_value(struct str *rest, struct str *value) {
    struct kube_scan scan = {0};
    size_t n;

    while (rest->len && is_blank(*rest->ptr)) {
        rest->ptr++;
        rest->len--;
    }
    if (kube_scan_feed(&scan, *rest, &n) != ST_OK) return false;
    *value = (struct str){rest->ptr, n};
    *rest = (struct str){rest->ptr + n, rest->len - n};
    return true;
}

static bool is_string(struct str value) {
    return value.len >= 2 && value.ptr[0] == '"';
}

bool kube_members_next(struct kube_members *m, struct str *key, struct str *value) {
    char c = next_byte(&m->rest);
    struct str quoted;

    m->is_bad = true;
    if (c == '}' && m->has_begun) m->is_bad = false;
    if (c != (m->has_begun ? ',' : '{')) return false;
    if (!m->has_begun) { /* an empty object has no member before its end */
        struct str after = m->rest;

        if (next_byte(&after) == '}') {
            m->rest = after;
            m->is_bad = false;
            return false;
        }
    }
    m->has_begun = true;
    if (!cut_value(&m->rest, &quoted) || !is_string(quoted)) return false;
    if (next_byte(&m->rest) != ':' || !cut_value(&m->rest, value)) return false;
    *key = (struct str){quoted.ptr + 1, quoted.len - 2};
    m->is_bad = false;
    return true;
}

struct str kube_json_get(struct str object, const char *name) {
    struct kube_members m = {.rest = object};
    struct str key, value, wanted = str_of(name);

    while (kube_members_next(&m, &key, &value)) {
        if (str_eq(key, wanted)) return value;
    }
    return STR_NULL;
}

struct str kube_json_plain(struct str value) {
    if (!is_string(value) || memchr(value.ptr, '\\', value.len)) return STR_NULL;
    return (struct str){value.ptr + 1, value.len - 2};
}
