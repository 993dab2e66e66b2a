/* router/prompt/string_scan_avx2.c - two 32-byte loads per group. */
#include "router/prompt/string_scan.h"

#ifdef __AVX2__
#include "router/prompt/string_scan_utf8.h"

#include <immintrin.h>

static inline __m256i load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline uint64_t mask64(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high)
                                                     << 32;
}

static inline __m256i equals(__m256i v, char c) {
    return _mm256_cmpeq_epi8(v, _mm256_set1_epi8(c));
}

static inline __m256i is_control(__m256i v) {
    return _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(0x1F)), v);
}

static inline struct text_masks masks_avx2(const uint8_t *p) {
    __m256i a = load(p), b = load(p + 32);

    return (struct text_masks){
        .quote = mask64(equals(a, '"'), equals(b, '"')),
        .backslash = mask64(equals(a, '\\'), equals(b, '\\')),
        .control = mask64(is_control(a), is_control(b)),
        .high = mask64(a, b),
    };
}

static inline __m256i is_special(__m256i v) {
    return _mm256_or_si256(_mm256_or_si256(equals(v, '"'), equals(v, '\\')), is_control(v));
}

static inline size_t skip_avx2(const uint8_t *p, size_t n_groups, bool *has_high) {
    __m256i seen = _mm256_setzero_si256();
    size_t g = 0;

    for (; g < n_groups; g++, p += TEXT_GROUP) {
        __m256i a = load(p), b = load(p + 32);

        if (_mm256_movemask_epi8(_mm256_or_si256(is_special(a), is_special(b)))) break;
        seen = _mm256_or_si256(seen, _mm256_or_si256(a, b));
    }
    *has_high |= _mm256_movemask_epi8(seen) != 0;
    return g;
}

static __attribute__((noinline)) struct string_scan_end end_long_avx2(const uint8_t *body, size_t n,
                                                                      size_t pos) {
    return text_end_long(body, n, pos, masks_avx2, skip_avx2);
}

static inline struct text_look look_avx2(const uint8_t *p) {
    __m256i v = load(p);

    return (struct text_look){(uint32_t)_mm256_movemask_epi8(is_special(v)),
                              (uint32_t)_mm256_movemask_epi8(v)};
}

struct string_scan_end string_scan_end_avx2(const uint8_t *body, size_t n, size_t pos) {
    return text_end(body, n, pos, 32, look_avx2, end_long_avx2);
}

/* --- UTF-8 ----------------------------------------------------------------------------------- */

static inline __m256i look_up(__m256i table, __m256i nibbles) {
    return _mm256_shuffle_epi8(table, nibbles);
}

static inline __m256i high_nibbles(__m256i v) {
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0F));
}

/* v moved up by n bytes, with the last n of the 32 bytes before. */
#define BEFORE(v, last, n) _mm256_alignr_epi8(v, _mm256_permute2x128_si256(last, v, 0x21), 16 - (n))

/* Not zero where `v`, which comes behind `last`, breaks a rule. */
static inline __m256i utf8_errors(__m256i v, __m256i last) {
    const __m256i first_high = _mm256_setr_epi8(UTF8_FIRST_HIGH, UTF8_FIRST_HIGH);
    const __m256i first_low = _mm256_setr_epi8(UTF8_FIRST_LOW, UTF8_FIRST_LOW);
    const __m256i second_high = _mm256_setr_epi8(UTF8_SECOND_HIGH, UTF8_SECOND_HIGH);
    __m256i before1 = BEFORE(v, last, 1), before2 = BEFORE(v, last, 2);
    __m256i before3 = BEFORE(v, last, 3);
    __m256i pair = _mm256_and_si256(
        _mm256_and_si256(look_up(first_high, high_nibbles(before1)),
                         look_up(first_low, _mm256_and_si256(before1, _mm256_set1_epi8(0x0F)))),
        look_up(second_high, high_nibbles(v)));
    /* E0 and above, or F0 and above: 0x80 is left of it. */
    __m256i third = _mm256_subs_epu8(before2, _mm256_set1_epi8(0xE0 - 0x80));
    __m256i fourth = _mm256_subs_epu8(before3, _mm256_set1_epi8(0xF0 - 0x80));
    __m256i asked = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8((char)0x80));

    return _mm256_xor_si256(pair, asked);
}

size_t string_scan_bad_utf8_avx2(const uint8_t *text, size_t n) {
    __m256i last = _mm256_setzero_si256();
    bool is_behind_ascii = true;

    for (size_t pos = 0; pos <= n; pos += TEXT_GROUP) { /* at pos == n: did the last one end? */
        uint8_t tail[TEXT_GROUP] = {0};
        const uint8_t *p = text + pos;

        if (n - pos < TEXT_GROUP) p = memcpy(tail, p, n - pos);
        __m256i a = load(p), b = load(p + 32);
        bool is_ascii = !_mm256_movemask_epi8(_mm256_or_si256(a, b));

        if (!is_ascii || !is_behind_ascii) {
            __m256i errors = _mm256_or_si256(utf8_errors(a, last), utf8_errors(b, a));

            if (!_mm256_testz_si256(errors, errors)) return utf8_bad_near(text, n, pos);
        }
        last = b;
        is_behind_ascii = is_ascii;
    }
    return n;
}
#endif
