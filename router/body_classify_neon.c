/* router/body_classify_neon.c - four 16-byte loads per group; see body_classify.c for the tricks.
 * ARM has no movemask: each byte keeps its bit of 1, 2, 4 ... 128, and three rounds of pairwise
 * additions put eight of them into each byte of the mask. */
#include "router/body_classify.h"

#ifdef __aarch64__
#include <arm_neon.h>

static inline uint64_t mask64(const uint8x16_t v[4]) {
    const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t low = vpaddq_u8(vandq_u8(v[0], bits), vandq_u8(v[1], bits));
    uint8x16_t high = vpaddq_u8(vandq_u8(v[2], bits), vandq_u8(v[3], bits));
    uint8x16_t sum = vpaddq_u8(low, high);

    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

static inline uint8x16_t equals(uint8x16_t v, char c) {
    return vceqq_u8(v, vdupq_n_u8((uint8_t)c));
}

void body_classify_neon(const uint8_t *p, size_t n_groups, struct body_masks *out) {
    for (size_t g = 0; g < n_groups; g++) {
        uint8x16_t quote[4], backslash[4], op[4], space[4], control[4], high[4];

        for (uint32_t i = 0; i < 4; i++, p += 16) {
            uint8x16_t v = vld1q_u8(p), folded = vorrq_u8(v, vdupq_n_u8(0x20));
            uint8x16_t brackets = vorrq_u8(equals(folded, '{'), equals(folded, '}'));

            quote[i] = equals(v, '"');
            backslash[i] = equals(v, '\\');
            op[i] = vorrq_u8(vorrq_u8(equals(v, ','), equals(v, ':')), brackets);
            space[i] = vorrq_u8(vorrq_u8(equals(v, ' '), equals(v, '\t')),
                                vorrq_u8(equals(v, '\n'), equals(v, '\r')));
            control[i] = vcltq_u8(v, vdupq_n_u8(0x20));
            high[i] = vcgeq_u8(v, vdupq_n_u8(0x80));
        }
        out[g] = (struct body_masks){
            .quote = mask64(quote),
            .backslash = mask64(backslash),
            .op = mask64(op),
            .space = mask64(space),
            .control = mask64(control),
            .high = mask64(high),
        };
    }
}
#endif
