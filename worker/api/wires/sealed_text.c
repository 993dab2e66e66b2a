/* worker/api/wires/sealed_text.c - base64url without padding, behind a mark. */
#include "worker/api/wires/sealed_text.h"

#define MARK STR("incipit1.")

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void sealed_text_put(struct buf *out, struct str text) {
    uint32_t bits = 0, n = 0;

    buf_append_str(out, MARK);
    for (size_t i = 0; i < text.len; i++) {
        bits = bits << 8 | (uint8_t)text.ptr[i];
        for (n += 8; n >= 6; n -= 6)
            buf_append_char(out, digits[bits >> (n - 6) & 63]);
    }
    if (n) buf_append_char(out, digits[bits << (6 - n) & 63]);
}

static int value_of(char c) {
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

/* What a string of JSON can hold here (json.h). */
static bool is_text(struct str s) {
    return str_is_utf8(s) && (s.len == 0 || !memchr(s.ptr, 0, s.len));
}

bool sealed_text_open(struct str sealed, struct buf *out) {
    size_t before = buf_len(out);
    uint32_t bits = 0, n = 0;

    if (!str_starts(sealed, MARK)) return false;
    for (size_t i = MARK.len; i < sealed.len; i++) {
        int v = value_of(sealed.ptr[i]);

        if (v < 0) {
            buf_truncate(out, before);
            return false;
        }
        bits = bits << 6 | (uint32_t)v;
        n += 6;
        if (n < 8) continue;
        n -= 8;
        buf_append_char(out, (char)(bits >> n & 255));
    }
    if (is_text((struct str){buf_ptr(out) + before, buf_len(out) - before})) return true;
    buf_truncate(out, before);
    return false;
}
