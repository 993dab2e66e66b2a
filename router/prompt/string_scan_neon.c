/* router/prompt/string_scan_neon.c - four 16-byte loads per group.
 * ARM has no movemask: each byte keeps its bit of 1, 2, 4 ... 128, and three rounds of pairwise
 * additions put eight of them into each byte of the mask. */
#include "router/prompt/string_scan.h"

#ifdef __aarch64__
#include "router/prompt/string_scan_utf8.h"

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

static inline struct text_masks masks_neon(const uint8_t *p) {
    uint8x16_t quote[4], backslash[4], control[4], high[4];

    for (uint32_t i = 0; i < 4; i++, p += 16) {
        uint8x16_t v = vld1q_u8(p);

        quote[i] = equals(v, '"');
        backslash[i] = equals(v, '\\');
        control[i] = vcltq_u8(v, vdupq_n_u8(0x20));
        high[i] = vcgeq_u8(v, vdupq_n_u8(0x80));
    }
    return (struct text_masks){
        .quote = mask64(quote),
        .backslash = mask64(backslash),
        .control = mask64(control),
        .high = mask64(high),
    };
}

static inline size_t skip_neon(const uint8_t *p, size_t n_groups, bool *has_high) {
    uint8x16_t seen = vdupq_n_u8(0);
    size_t g = 0;

    for (; g < n_groups; g++) {
        uint8x16_t special = vdupq_n_u8(0), bytes = vdupq_n_u8(0);

        for (int i = 0; i < 4; i++, p += 16) {
            uint8x16_t v = vld1q_u8(p);

            special = vorrq_u8(special, vorrq_u8(equals(v, '"'), equals(v, '\\')));
            special = vorrq_u8(special, vcltq_u8(v, vdupq_n_u8(0x20)));
            bytes = vorrq_u8(bytes, v);
        }
        if (vmaxvq_u8(special)) break;
        seen = vorrq_u8(seen, bytes);
    }
    *has_high |= vmaxvq_u8(seen) >= 0x80;
    return g;
}

struct string_scan_end string_scan_end_neon(const uint8_t *body, size_t n, size_t pos) {
    return text_end_long(body, n, pos, masks_neon, skip_neon);
}

/* --- UTF-8, as in string_scan_avx2.c ---------------------------------------------------------- */

static inline uint8x16_t utf8_errors(uint8x16_t v, uint8x16_t last) {
    static const uint8_t first_high[] = {UTF8_FIRST_HIGH}, first_low[] = {UTF8_FIRST_LOW},
                         second_high[] = {UTF8_SECOND_HIGH};
    uint8x16_t before1 = vextq_u8(last, v, 15), before2 = vextq_u8(last, v, 14);
    uint8x16_t before3 = vextq_u8(last, v, 13);
    uint8x16_t pair =
        vandq_u8(vandq_u8(vqtbl1q_u8(vld1q_u8(first_high), vshrq_n_u8(before1, 4)),
                          vqtbl1q_u8(vld1q_u8(first_low), vandq_u8(before1, vdupq_n_u8(0x0F)))),
                 vqtbl1q_u8(vld1q_u8(second_high), vshrq_n_u8(v, 4)));
    uint8x16_t third = vqsubq_u8(before2, vdupq_n_u8(0xE0 - 0x80));
    uint8x16_t fourth = vqsubq_u8(before3, vdupq_n_u8(0xF0 - 0x80));

    return veorq_u8(pair, vandq_u8(vorrq_u8(third, fourth), vdupq_n_u8(0x80)));
}

size_t string_scan_bad_utf8_neon(const uint8_t *text, size_t n) {
    uint8x16_t last = vdupq_n_u8(0);
    bool is_behind_ascii = true;

    for (size_t pos = 0; pos <= n; pos += TEXT_GROUP) { /* at pos == n: did the last one end? */
        uint8_t tail[TEXT_GROUP] = {0};
        const uint8_t *p = text + pos;

        if (n - pos < TEXT_GROUP) p = memcpy(tail, p, n - pos);
        uint8x16_t a = vld1q_u8(p), b = vld1q_u8(p + 16);
        uint8x16_t c = vld1q_u8(p + 32), d = vld1q_u8(p + 48);
        bool is_ascii = vmaxvq_u8(vorrq_u8(vorrq_u8(a, b), vorrq_u8(c, d))) < 0x80;

        if (!is_ascii || !is_behind_ascii) {
            uint8x16_t errors = vorrq_u8(vorrq_u8(utf8_errors(a, last), utf8_errors(b, a)),
                                         vorrq_u8(utf8_errors(c, b), utf8_errors(d, c)));

            if (vmaxvq_u8(errors)) return utf8_bad_near(text, n, pos);
        }
        last = d;
        is_behind_ascii = is_ascii;
    }
    return n;
}
#endif
