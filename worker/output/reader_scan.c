/* worker/output/reader_scan.c - where a JSON value ends. */
#include "worker/output/reader_internal.h"

bool reader_is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool ends_scalar(char c) {
    return c == ',' || c == '}' || c == ']' || reader_is_blank(c);
}

enum json_scan_result json_scan_byte(struct json_scan *s, char c) {
    if (s->in_string) {
        if (s->is_escaped)
            s->is_escaped = false;
        else if (c == '\\')
            s->is_escaped = true;
        else if (c == '"')
            s->in_string = false;
        return s->in_string || s->depth > 0 ? SCAN_MORE : SCAN_END;
    }
    if (s->is_scalar && s->depth == 0 && ends_scalar(c)) return SCAN_END_BEFORE;
    if ((unsigned char)c >= 0x7F || c == '<' || (c < ' ' && !reader_is_blank(c))) return SCAN_BAD;
    if (c == '"') {
        s->in_string = true;
    } else if (c == '{' || c == '[') {
        s->depth++;
    } else if (c == '}' || c == ']') {
        if (s->depth == 0) return SCAN_BAD;
        if (--s->depth == 0) return SCAN_END;
    } else if (s->depth == 0) {
        s->is_scalar = true;
    }
    return SCAN_MORE;
}

bool json_scan_is_plain(char c) {
    return (unsigned char)c >= ' ' && !reader_is_code(c);
}

size_t json_scan_run(const struct json_scan *s, struct str text) {
    size_t n = 0;

    if (!s->in_string || s->is_escaped) return 0;
    while (n < text.len && text.ptr[n] != '"' && text.ptr[n] != '\\' &&
           json_scan_is_plain(text.ptr[n]))
        n++;
    return n;
}
