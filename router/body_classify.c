/* router/body_classify.c - the plain and SSE2 versions, and the choice between all of them. */
#include "router/body_classify.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

void body_classify_plain(const uint8_t *p, size_t n_groups, struct body_masks *out) {
    for (size_t g = 0; g < n_groups; g++, p += BODY_GROUP) {
        struct body_masks m = {0};

        for (uint32_t i = 0; i < BODY_GROUP; i++) {
            uint64_t bit = UINT64_C(1) << i;

            switch (p[i]) {
            case '"': m.quote |= bit; break;
            case '\\': m.backslash |= bit; break;
            case '{':
            case '}':
            case '[':
            case ']':
            case ',':
            case ':': m.op |= bit; break;
            case '\t':
            case '\n':
            case '\r': m.control |= bit; /* fall through */
            case ' ': m.space |= bit; break;
            default:
                if (p[i] < 0x20) m.control |= bit;
                if (p[i] >= 0x80) m.high |= bit;
            }
        }
        out[g] = m;
    }
}

#ifdef __SSE2__
static inline uint64_t mask16(__m128i v, uint32_t shift) {
    return (uint64_t)(uint32_t)_mm_movemask_epi8(v) << shift;
}

static inline __m128i equals(__m128i v, char c) {
    return _mm_cmpeq_epi8(v, _mm_set1_epi8(c));
}

void body_classify_sse2(const uint8_t *p, size_t n_groups, struct body_masks *out) {
    for (size_t g = 0; g < n_groups; g++) {
        struct body_masks m = {0};

        for (uint32_t shift = 0; shift < BODY_GROUP; shift += 16, p += 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
            /* [ and ] differ from { and } in one bit, which no other byte pair shares. */
            __m128i folded = _mm_or_si128(v, _mm_set1_epi8(0x20));
            __m128i brackets = _mm_or_si128(equals(folded, '{'), equals(folded, '}'));
            __m128i op = _mm_or_si128(_mm_or_si128(equals(v, ','), equals(v, ':')), brackets);
            __m128i space = _mm_or_si128(_mm_or_si128(equals(v, ' '), equals(v, '\t')),
                                         _mm_or_si128(equals(v, '\n'), equals(v, '\r')));
            __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1F)), v);

            m.quote |= mask16(equals(v, '"'), shift);
            m.backslash |= mask16(equals(v, '\\'), shift);
            m.op |= mask16(op, shift);
            m.space |= mask16(space, shift);
            m.control |= mask16(control, shift);
            m.high |= mask16(v, shift);
        }
        out[g] = m;
    }
}
#endif

const struct body_classifier *body_classifier_at(uint32_t i) {
    static const struct body_classifier versions[] = {
#ifdef __x86_64__
        {"avx512", body_classify_avx512}, {"avx2", body_classify_avx2},
        {"sse2", body_classify_sse2},
#endif
#ifdef __aarch64__
        {"neon", body_classify_neon},
#endif
        {"plain", body_classify_plain},
    };
    uint32_t first = 0;

#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx512bw")) first = __builtin_cpu_supports("avx2") ? 1 : 2;
#endif
    return first + i < ARRAY_LEN(versions) ? &versions[first + i] : NULL;
}
