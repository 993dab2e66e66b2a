/* router/prompt/string_scan_avx512.c - one load per group; compares give the masks directly. */
#include "router/prompt/string_scan.h"

#ifdef __AVX512BW__
#include "router/prompt/string_scan_utf8.h"

#include <immintrin.h>

static inline uint64_t equals(__m512i v, char c) {
    return _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(c));
}

static inline uint64_t is_control(__m512i v) {
    return _mm512_cmplt_epu8_mask(v, _mm512_set1_epi8(0x20));
}

static inline struct text_masks masks_avx512(const uint8_t *p) {
    __m512i v = _mm512_loadu_si512(p);

    return (struct text_masks){
        .quote = equals(v, '"'),
        .backslash = equals(v, '\\'),
        .control = is_control(v),
        .high = _mm512_movepi8_mask(v),
    };
}

static inline uint64_t is_special(__m512i v) {
    return equals(v, '"') | equals(v, '\\') | is_control(v);
}

static inline size_t skip_avx512(const uint8_t *p, size_t n_groups, bool *has_high) {
    __m512i seen = _mm512_setzero_si512();
    size_t g = 0;

    for (; g < n_groups; g++, p += TEXT_GROUP) {
        __m512i v = _mm512_loadu_si512(p);

        if (is_special(v)) break;
        seen = _mm512_or_si512(seen, v);
    }
    *has_high |= _mm512_movepi8_mask(seen) != 0;
    return g;
}

static __attribute__((noinline)) struct string_scan_end end_long_avx512(const uint8_t *body,
                                                                        size_t n, size_t pos) {
    return text_end_long(body, n, pos, masks_avx512, skip_avx512);
}

static inline struct text_look look_avx512(const uint8_t *p) {
    __m512i v = _mm512_loadu_si512(p);

    return (struct text_look){is_special(v), _mm512_movepi8_mask(v)};
}

struct string_scan_end string_scan_end_avx512(const uint8_t *body, size_t n, size_t pos) {
    return text_end(body, n, pos, 64, look_avx512, end_long_avx512);
}

/* --- UTF-8, as in string_scan_avx2.c ---------------------------------------------------------- */

static inline __m512i look_up(__m128i table, __m512i nibbles) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}

static inline __m512i high_nibbles(__m512i v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0F));
}

/* v moved up by n bytes, with the last n of the 64 bytes before. */
#define BEFORE(v, last, n) _mm512_alignr_epi8(v, _mm512_alignr_epi64(v, last, 6), 16 - (n))

static inline uint64_t utf8_errors(__m512i v, __m512i last) {
    const __m128i first_high = _mm_setr_epi8(UTF8_FIRST_HIGH);
    const __m128i first_low = _mm_setr_epi8(UTF8_FIRST_LOW);
    const __m128i second_high = _mm_setr_epi8(UTF8_SECOND_HIGH);
    __m512i before1 = BEFORE(v, last, 1), before2 = BEFORE(v, last, 2);
    __m512i before3 = BEFORE(v, last, 3);
    __m512i pair = _mm512_and_si512(
        _mm512_and_si512(look_up(first_high, high_nibbles(before1)),
                         look_up(first_low, _mm512_and_si512(before1, _mm512_set1_epi8(0x0F)))),
        look_up(second_high, high_nibbles(v)));
    __m512i third = _mm512_subs_epu8(before2, _mm512_set1_epi8(0xE0 - 0x80));
    __m512i fourth = _mm512_subs_epu8(before3, _mm512_set1_epi8(0xF0 - 0x80));
    __m512i asked = _mm512_and_si512(_mm512_or_si512(third, fourth), _mm512_set1_epi8((char)0x80));

    return _mm512_cmpneq_epi8_mask(pair, asked);
}

size_t string_scan_bad_utf8_avx512(const uint8_t *text, size_t n) {
    __m512i last = _mm512_setzero_si512();
    bool is_behind_ascii = true;

    for (size_t pos = 0; pos <= n; pos += TEXT_GROUP) { /* at pos == n: did the last one end? */
        size_t n_left = n - pos;
        __mmask64 wanted = n_left < TEXT_GROUP ? (UINT64_C(1) << n_left) - 1 : ~UINT64_C(0);
        __m512i v = _mm512_maskz_loadu_epi8(wanted, text + pos);
        bool is_ascii = !_mm512_movepi8_mask(v);

        if ((!is_ascii || !is_behind_ascii) && utf8_errors(v, last))
            return utf8_bad_near(text, n, pos);
        last = v;
        is_behind_ascii = is_ascii;
    }
    return n;
}
#endif
