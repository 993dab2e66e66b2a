/* router/body_classify_avx2.c - two 32-byte loads per group; see body_classify.c for the tricks. */
#include "router/body_classify.h"

#ifdef __AVX2__
#include <immintrin.h>

static inline uint64_t mask32(__m256i v, uint32_t shift) {
    return (uint64_t)(uint32_t)_mm256_movemask_epi8(v) << shift;
}

static inline __m256i equals(__m256i v, char c) {
    return _mm256_cmpeq_epi8(v, _mm256_set1_epi8(c));
}

void body_classify_avx2(const uint8_t *p, size_t n_groups, struct body_masks *out) {
    for (size_t g = 0; g < n_groups; g++) {
        struct body_masks m = {0};

        for (uint32_t shift = 0; shift < BODY_GROUP; shift += 32, p += 32) {
            __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
            __m256i folded = _mm256_or_si256(v, _mm256_set1_epi8(0x20));
            __m256i brackets = _mm256_or_si256(equals(folded, '{'), equals(folded, '}'));
            __m256i op = _mm256_or_si256(_mm256_or_si256(equals(v, ','), equals(v, ':')), brackets);
            __m256i space = _mm256_or_si256(_mm256_or_si256(equals(v, ' '), equals(v, '\t')),
                                            _mm256_or_si256(equals(v, '\n'), equals(v, '\r')));
            __m256i control = _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(0x1F)), v);

            m.quote |= mask32(equals(v, '"'), shift);
            m.backslash |= mask32(equals(v, '\\'), shift);
            m.op |= mask32(op, shift);
            m.space |= mask32(space, shift);
            m.control |= mask32(control, shift);
            m.high |= mask32(v, shift);
        }
        out[g] = m;
    }
}
#endif
