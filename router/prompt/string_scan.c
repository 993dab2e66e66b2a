/* router/prompt/string_scan.c - the plain and SSE2 versions, and the choice between all of them. */
#include "router/prompt/string_scan.h"

#include "common/base/isa.h"
#include "router/prompt/string_scan_internal.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

struct string_scan_end string_scan_end_plain(const uint8_t *body, size_t n, size_t pos) {
    uint8_t seen = 0;

    for (; pos < n && body[pos] != '"' && body[pos] >= 0x20; pos++) {
        seen |= body[pos];
        if (body[pos] == '\\' && pos + 1 < n && body[pos + 1] >= 0x20) seen |= body[++pos];
    }
    return (struct string_scan_end){pos, seen < 0x80};
}

/* Length of the well-formed sequence at p, which begins with 0x80 or above; 0 when it is not
 * one. */
static size_t sequence_len(const uint8_t *p, size_t n) {
    uint8_t low = 0x80, high = 0xBF; /* of the second byte: no overlong forms, no surrogates */
    size_t len;

    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        len = 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        len = 3;
        if (p[0] == 0xE0) low = 0xA0;
        if (p[0] == 0xED) high = 0x9F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        len = 4;
        if (p[0] == 0xF0) low = 0x90;
        if (p[0] == 0xF4) high = 0x8F;
    } else {
        return 0;
    }
    if (n < len || p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return len;
}

size_t string_scan_bad_utf8_plain(const uint8_t *text, size_t n) {
    for (size_t pos = 0; pos < n;) {
        uint64_t word;
        size_t len = 1;

        if (n - pos >= sizeof(word)) {
            memcpy(&word, text + pos, sizeof(word));
            if (!(word & UINT64_C(0x8080808080808080))) {
                pos += sizeof(word);
                continue;
            }
        }
        if (text[pos] >= 0x80) len = sequence_len(text + pos, n - pos);
        if (!len) return pos;
        pos += len;
    }
    return n;
}

#ifdef __SSE2__
static inline uint64_t mask16(__m128i v, uint32_t shift) {
    return (uint64_t)(uint32_t)_mm_movemask_epi8(v) << shift;
}

static inline __m128i equals(__m128i v, char c) {
    return _mm_cmpeq_epi8(v, _mm_set1_epi8(c));
}

static inline __m128i is_control(__m128i v) {
    return _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1F)), v);
}

static inline __m128i is_special(__m128i v) {
    return _mm_or_si128(_mm_or_si128(equals(v, '"'), equals(v, '\\')), is_control(v));
}

static inline struct text_masks masks_sse2(const uint8_t *p) {
    struct text_masks m = {0};

    for (uint32_t shift = 0; shift < TEXT_GROUP; shift += 16, p += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);

        m.quote |= mask16(equals(v, '"'), shift);
        m.backslash |= mask16(equals(v, '\\'), shift);
        m.control |= mask16(is_control(v), shift);
        m.high |= mask16(v, shift);
    }
    return m;
}

static inline size_t skip_sse2(const uint8_t *p, size_t n_groups, bool *has_high) {
    __m128i seen = _mm_setzero_si128();
    size_t g = 0;

    for (; g < n_groups; g++) {
        __m128i special = _mm_setzero_si128(), bytes = _mm_setzero_si128();

        for (int i = 0; i < 4; i++, p += 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);

            special = _mm_or_si128(special, is_special(v));
            bytes = _mm_or_si128(bytes, v);
        }
        if (_mm_movemask_epi8(special)) break;
        seen = _mm_or_si128(seen, bytes);
    }
    *has_high |= _mm_movemask_epi8(seen) != 0;
    return g;
}

static __attribute__((noinline)) struct string_scan_end end_long_sse2(const uint8_t *body, size_t n,
                                                                      size_t pos) {
    return text_end_long(body, n, pos, masks_sse2, skip_sse2);
}

static inline struct text_look look_sse2(const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);

    return (struct text_look){mask16(is_special(v), 0), mask16(v, 0)};
}

struct string_scan_end string_scan_end_sse2(const uint8_t *body, size_t n, size_t pos) {
    return text_end(body, n, pos, 16, look_sse2, end_long_sse2);
}
#endif

const struct string_scan *string_scan_at(uint32_t i) {
    static const struct string_scan versions[] = {
#ifdef __x86_64__
        {"avx512", string_scan_end_avx512, string_scan_bad_utf8_avx512},
        {"avx2", string_scan_end_avx2, string_scan_bad_utf8_avx2},
        {"sse2", string_scan_end_sse2, string_scan_bad_utf8_plain},
#endif
#ifdef __aarch64__
        {"neon", string_scan_end_neon, string_scan_bad_utf8_neon},
#endif
        {"plain", string_scan_end_plain, string_scan_bad_utf8_plain},
    };
    uint32_t first = 0;

#ifdef __x86_64__
    if (!isa_has_avx512()) first = isa_has_avx2() ? 1 : 2;
#endif
    return first + i < ARRAY_LEN(versions) ? &versions[first + i] : NULL;
}
