/* router/prompt/raw_json.c - see raw_json.h. */
#include "router/prompt/raw_json.h"

#include <string.h>

#include "router/prompt/body_scan.h"
#include "router/prompt/string_scan.h"
#include "router/prompt/string_scan_inline.h"

/* --- single values ---------------------------------------------------------------------------- */

const char *raw_skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* From an opening quote to behind the closing one. */
static const char *skip_string(const char *p, const char *end) {
    size_t n = (size_t)(end - p), at;

    if (n > TEXT_SHORT_BYTES) { /* a key or a name: a call would cost more */
        at = 1 + text_short_len((const uint8_t *)p + 1);
        if (at <= TEXT_SHORT_BYTES && p[at] == '"') return p + at + 1;
    }
    at = string_scan_at(0)->end((const uint8_t *)p, n, 1).at;
    return at < n && p[at] == '"' ? p + at + 1 : NULL;
}

static const char *skip_scalar(const char *p, const char *end) {
    const char *start = p;

    while (p < end && !strchr(",]} \t\r\n", *p))
        p++;
    return p > start ? p : NULL;
}

const char *raw_skip_value(const char *p, const char *end) {
    uint32_t depth = 0;

    while (p < end) {
        char c = *p;

        if (c == '"') {
            p = skip_string(p, end);
            if (!p) return NULL;
        } else if (!depth && c != '{' && c != '[') {
            return skip_scalar(p, end);
        } else {
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
            p++;
        }
        if (!depth) return p;
    }
    return NULL;
}

struct str raw_text(struct str raw) {
    return raw.len && raw.ptr[0] == '"' ? body_unquote(raw) : STR_NULL;
}

/* --- members and items ------------------------------------------------------------------------ */

struct raw_walk raw_walk_of(struct str raw) {
    bool is_container = raw.len > 1 && (raw.ptr[0] == '{' || raw.ptr[0] == '[');

    if (!is_container) return (struct raw_walk){.is_broken = true};
    return (struct raw_walk){.p = raw.ptr + 1, .end = raw.ptr + raw.len};
}

static bool break_off(struct raw_walk *walk) {
    walk->is_broken = true;
    return false;
}

/* To the next member or item. False: the closing bracket is there, or nothing. */
static bool find_next(struct raw_walk *walk) {
    if (walk->is_broken) return false;
    walk->p = raw_skip_space(walk->p, walk->end);
    if (walk->p == walk->end) return break_off(walk);
    return *walk->p != '}' && *walk->p != ']';
}

/* A value, and the comma behind it. */
static bool take_value(struct raw_walk *walk, struct str *out) {
    const char *from = walk->p, *to = raw_skip_value(from, walk->end);

    if (!to) return break_off(walk);
    *out = raw_between(from, to);
    walk->p = raw_skip_space(to, walk->end);
    if (walk->p < walk->end && *walk->p == ',') walk->p++;
    return true;
}

bool raw_next_item(struct raw_walk *walk, struct str *out) {
    return find_next(walk) && take_value(walk, out);
}

bool raw_next_member(struct raw_walk *walk, struct raw_member *out) {
    const char *from, *to;

    if (!find_next(walk)) return false;
    from = walk->p;
    if (*from != '"') return break_off(walk);
    to = skip_string(from, walk->end);
    if (!to) return break_off(walk);
    out->key = raw_between(from, to);
    out->name = raw_text(out->key);
    walk->p = raw_skip_space(to, walk->end);
    if (walk->p == walk->end || *walk->p != ':') return break_off(walk);
    walk->p = raw_skip_space(walk->p + 1, walk->end);
    return take_value(walk, &out->value);
}

/* --- text with escapes ------------------------------------------------------------------------ */

size_t raw_read_char(const char *p, const char *end, char *value) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;
    uint32_t code = 0;

    *value = *p;
    if (*p != '\\') return 1;
    *value = 0;
    if (end - p < 2) return 1;
    at = memchr(from, p[1], sizeof(from) - 1);
    if (at) *value = to[at - from];
    if (p[1] != 'u' || end - p < 6) return 2;
    for (int i = 2; i < 6; i++) {
        int digit = str_hex_value((uint8_t)p[i]);

        if (digit < 0) return 2;
        code = code * 16 + (uint32_t)digit;
    }
    if (code < 0x80) *value = (char)code;
    return 6;
}

const char *raw_match(const char *p, const char *end, const char *want) {
    for (; *want; want++) {
        char c;
        size_t n;

        if (p == end) return NULL;
        n = raw_read_char(p, end, &c);
        if (c != *want) return NULL;
        p += n;
    }
    return p;
}

/* An escape is longer than what it stands for. */
bool raw_text_is(struct str text, const char *want) {
    size_t n = strlen(want);

    if (!text.ptr || text.len < n) return false;
    if (text.len == n) return memcmp(text.ptr, want, n) == 0;
    return memchr(text.ptr, '\\', text.len) &&
           raw_match(text.ptr, text.ptr + text.len, want) == text.ptr + text.len;
}
