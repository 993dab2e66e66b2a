/* worker/text/unicode/unicode.c - classes by table, UTF-8 by hand, case by library; normal forms
 * are unicode_normalize.c. */
#include "worker/text/unicode/unicode.h"

#include <utf8proc.h>

#include "worker/text/unicode/unicode_tables.h"

#define ALL_CLASSES (UC_NFC_TOUCHED - 1)

static inline uint32_t entry_of(uint32_t cp) {
    uint32_t at;

    if (cp > 0x10FFFF) return 0;
    at = (uint32_t)unicode_index[cp >> UNICODE_SHIFT] << UNICODE_SHIFT;
    return unicode_kinds[unicode_blocks[at | (cp & ((1u << UNICODE_SHIFT) - 1))] - '@'];
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
        if (entry_of(cp) & UC_NFC_TOUCHED) return false;
        p += n;
    }
    return true;
}

uint32_t unicode_traits(uint32_t cp) {
    return entry_of(cp) & ~ALL_CLASSES;
}

/* Letters of Unicode 16 and 17, which the reference has and older libraries lack. */
static const struct {
    uint32_t first, last, lower;
} newer_case[] = {
    {0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7CE, 0xA7CE, 0xA7CF},    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
    {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
    {0x16EA0, 0x16EB8, 0x16EBB},
};

uint32_t unicode_lower(uint32_t cp, uint32_t out[3]) {
    if (cp == 0x130) { /* the one whose lower case is two characters */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    for (size_t i = 0; cp >= newer_case[0].first && i < ARRAY_LEN(newer_case); i++) {
        if (cp < newer_case[i].first || cp > newer_case[i].last) continue;
        out[0] = newer_case[i].lower + (cp - newer_case[i].first);
    }
    return 1;
}
