/* worker/text/unicode.c - classes by table, UTF-8 by hand, composition by library. */
#include "worker/text/unicode.h"

#include "worker/text/unicode_tables.h"

#include <stdlib.h>
#include <utf8proc.h>

#define NFC_TOUCHED (1u << 12)
#define ALL_CLASSES (NFC_TOUCHED - 1)

static inline uint32_t entry_of(uint32_t cp) {
    uint32_t block;

    if (cp > 0x10FFFF) return 0;
    block = unicode_index[cp >> UNICODE_SHIFT];
    return unicode_kinds[unicode_blocks[block << UNICODE_SHIFT |
                                        (cp & ((1u << UNICODE_SHIFT) - 1))]];
}

uint32_t unicode_class(uint32_t cp) {
    return entry_of(cp) & ALL_CLASSES;
}

static inline bool is_tail(uint8_t b) {
    return (b & 0xC0) == 0x80;
}

uint32_t unicode_decode(const char *p, const char *end, uint32_t *n) {
    const uint8_t *u = (const uint8_t *)p;
    size_t left = (size_t)(end - p);
    uint32_t cp;

    *n = 1;
    if (u[0] < 0x80) return u[0];
    if (u[0] >= 0xC2 && u[0] <= 0xDF && left >= 2 && is_tail(u[1])) {
        *n = 2;
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    }
    if ((u[0] & 0xF0) == 0xE0 && left >= 3 && is_tail(u[1]) && is_tail(u[2])) {
        cp = (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
        if (cp >= 0x800 && (cp < 0xD800 || cp > 0xDFFF)) {
            *n = 3;
            return cp;
        }
    }
    if (u[0] >= 0xF0 && u[0] <= 0xF4 && left >= 4 && is_tail(u[1]) && is_tail(u[2]) &&
        is_tail(u[3])) {
        cp = (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
        if (cp >= 0x10000 && cp <= 0x10FFFF) {
            *n = 4;
            return cp;
        }
    }
    return 0xFFFD;
}

uint32_t unicode_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool unicode_is_nfc_quick(struct str s) {
    const char *p = s.ptr, *end = s.ptr + s.len;

    while (p < end) {
        uint32_t n, cp;

        if ((uint8_t)*p < 0x80) {
            p++;
            continue;
        }
        cp = unicode_decode(p, end, &n);
        if (entry_of(cp) & NFC_TOUCHED) return false;
        p += n;
    }
    return true;
}

/* The library sorts a run of combining marks in quadratic time. Real text has a handful in a row
 * (Unicode's stream-safe form allows 30); a run over this is made to cost. */
#define MAX_MARK_RUN 256

static bool has_endless_marks(struct str s) {
    const char *p = s.ptr, *end = s.ptr + s.len;
    uint32_t run = 0;

    while (p < end) {
        uint32_t n, cp = unicode_decode(p, end, &n);

        p += n;
        if (cp < 0x80 || !utf8proc_get_property((utf8proc_int32_t)cp)->combining_class) {
            run = 0;
        } else if (++run > MAX_MARK_RUN) {
            return true;
        }
    }
    return false;
}

enum status unicode_normalize(enum unicode_form form, struct str s, struct buf *out,
                              struct error *err) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};

    if (form == UNICODE_NFC && unicode_is_nfc_quick(s)) {
        buf_append_str(out, s);
        return buf_status(out);
    }
    static const utf8proc_option_t options[] = {
        UTF8PROC_STABLE | UTF8PROC_COMPOSE, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n;

    if (has_endless_marks(s)) {
        return error_set(err, ST_INVALID, "the text has more than %d combining marks in a row",
                         MAX_MARK_RUN);
    }
    n = utf8proc_map((const utf8proc_uint8_t *)s.ptr, (utf8proc_ssize_t)s.len, &composed,
                     options[form]);
    if (n < 0) {
        return error_set(err, ST_NOMEM, "cannot bring text to %s: %s", names[form],
                         utf8proc_errmsg(n));
    }
    buf_append(out, composed, (size_t)n);
    free(composed); /* the library's malloc */
    return buf_status(out);
}

uint32_t unicode_lower(uint32_t cp, uint32_t out[3]) {
    if (cp == 0x130) { /* the one whose lower case is two characters */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}
