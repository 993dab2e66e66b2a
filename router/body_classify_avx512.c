/* router/body_classify_avx512.c - one load per group; compares give the masks directly. */
#include "router/body_classify.h"

#ifdef __AVX512BW__
#include <immintrin.h>

static inline uint64_t equals(__m512i v, char c) {
    return _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(c));
}

void body_classify_avx512(const uint8_t *p, size_t n_groups, struct body_masks *out) {
    for (size_t g = 0; g < n_groups; g++, p += BODY_GROUP) {
        __m512i v = _mm512_loadu_si512(p);
        __m512i folded = _mm512_or_si512(v, _mm512_set1_epi8(0x20));

        out[g] = (struct body_masks){
            .quote = equals(v, '"'),
            .backslash = equals(v, '\\'),
            .op = equals(folded, '{') | equals(folded, '}') | equals(v, ',') | equals(v, ':'),
            .space = equals(v, ' ') | equals(v, '\t') | equals(v, '\n') | equals(v, '\r'),
            .control = _mm512_cmplt_epu8_mask(v, _mm512_set1_epi8(0x20)),
            .high = _mm512_movepi8_mask(v),
        };
    }
}
#endif
