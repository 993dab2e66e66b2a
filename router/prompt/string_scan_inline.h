/* router/prompt/string_scan_inline.h - finds the end of a short string without calling
 * string_scan.h.
 *
 * Keys, roles and names are most of a body's strings and few of its bytes: a call through a pointer
 * costs more than they do. One vector on x86-64, two words elsewhere. */
#ifndef ROUTER_PROMPT_STRING_SCAN_INLINE_H
#define ROUTER_PROMPT_STRING_SCAN_INLINE_H

#include <string.h>

#include "common/base/base.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define TEXT_SHORT_BYTES  16
#define TEXT_EACH_BYTE(c) (UINT64_C(0x0101010101010101) * (c))

/* Eight bytes, the first of them the lowest. */
static inline uint64_t text_load_word(const uint8_t *p) {
    uint64_t word;

    memcpy(&word, p, sizeof(word));
    return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? __builtin_bswap64(word) : word;
}

/* The highest bit of the first byte of the word that is a quote, a backslash, a control byte or
 * 0x80 or above. What is borrowed reaches only the bytes behind it, whose bits may be wrong. */
static inline uint64_t text_special_of_word(uint64_t word) {
    uint64_t quote = word ^ TEXT_EACH_BYTE('"'), backslash = word ^ TEXT_EACH_BYTE('\\');

    return ((quote - TEXT_EACH_BYTE(1)) | (backslash - TEXT_EACH_BYTE(1)) |
            (word - TEXT_EACH_BYTE(0x20)) | word) &
           TEXT_EACH_BYTE(0x80);
}

/* How many of the TEXT_SHORT_BYTES at p come before the first that is special in that way. */
static inline uint32_t text_short_len_of_words(const uint8_t *p) {
    uint64_t special = text_special_of_word(text_load_word(p));

    if (special) return (uint32_t)__builtin_ctzll(special) / 8;
    special = text_special_of_word(text_load_word(p + 8));
    return special ? 8 + (uint32_t)__builtin_ctzll(special) / 8 : TEXT_SHORT_BYTES;
}

static inline uint32_t text_short_len(const uint8_t *p) {
#ifdef __SSE2__
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i special = _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)); /* 0x80 and above are negative */

    special = _mm_or_si128(special, _mm_cmpeq_epi8(v, _mm_set1_epi8('"')));
    special = _mm_or_si128(special, _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    return (uint32_t)__builtin_ctz((uint32_t)_mm_movemask_epi8(special) | 1u << TEXT_SHORT_BYTES);
#else
    return text_short_len_of_words(p);
#endif
}

#endif
