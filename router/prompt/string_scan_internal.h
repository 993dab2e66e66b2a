/* router/prompt/string_scan_internal.h - what the versions of string_scan.h share: the search for a
 * string's end, written once over three functions that each instruction set has of its own, which
 * are inlined.
 *
 * A group is the 64 bytes from any position on. Bit i of a mask is a property of byte i of a group.
 * Text without anything special is skipped by skip(), a few instructions for each group; masks are
 * made where it stops. After Langdale and Lemire, Parsing Gigabytes of JSON per Second, 2019. */
#ifndef ROUTER_PROMPT_STRING_SCAN_INTERNAL_H
#define ROUTER_PROMPT_STRING_SCAN_INTERNAL_H

#include <string.h>

#include "router/prompt/string_scan.h"

#define TEXT_GROUP 64

struct text_masks {
    uint64_t quote;     /* "              */
    uint64_t backslash; /* \              */
    uint64_t control;   /* below 0x20     */
    uint64_t high;      /* 0x80 and above */
};

/* The masks of the group at p. */
typedef struct text_masks text_masks_fn(const uint8_t *p);

/* Of the n_groups at p, how many come before the first with a quote, a backslash or a control byte.
 * Sets *has_high when one of those holds a byte of 0x80 or above. */
typedef size_t text_skip_fn(const uint8_t *p, size_t n_groups, bool *has_high);

/* The bytes that a backslash escapes: those after an odd run of backslashes. *carry: the first
 * byte of the next group is one. */
static inline uint64_t text_find_escaped(uint64_t backslash, uint64_t *carry) {
    const uint64_t even = UINT64_C(0x5555555555555555);
    uint64_t follows, odd_starts, sum;

    backslash &= ~*carry;
    follows = backslash << 1 | *carry;
    odd_starts = backslash & ~even & ~follows;
    *carry = __builtin_add_overflow(odd_starts, backslash, &sum);
    return (even ^ sum << 1) & follows;
}

/* The masks of the n_left < 64 last bytes of the body, which end the group that is loaded: no byte
 * behind the body is read. */
static inline struct text_masks text_masks_of_tail(const uint8_t *body, size_t n, size_t n_left,
                                                   text_masks_fn *masks) {
    uint32_t shift = (uint32_t)(TEXT_GROUP - n_left);
    struct text_masks m;

    if (n < TEXT_GROUP) {
        uint8_t group[TEXT_GROUP] = {0};

        memcpy(group + TEXT_GROUP - n, body, n);
        m = masks(group);
    } else {
        m = masks(body + n - TEXT_GROUP);
    }
    return (struct text_masks){m.quote >> shift, m.backslash >> shift, m.control >> shift,
                               m.high >> shift};
}

/* A first look at the text. */
struct text_look {
    uint64_t special; /* quote, backslash or control */
    uint64_t high;
};
typedef struct text_look text_look_fn(const uint8_t *p);

/* The search itself, over the whole text. */
static inline __attribute__((always_inline)) struct string_scan_end text_end_long(
    const uint8_t *body, size_t n, size_t pos, text_masks_fn *masks, text_skip_fn *skip) {
    uint64_t is_escaped = 0; /* 0 or 1: the first byte of the group is */
    bool has_high = false;

    pos += TEXT_GROUP * skip(body + pos, (n - pos) / TEXT_GROUP, &has_high);
    while (pos < n) {
        size_t n_left = n - pos;
        struct text_masks m =
            n_left >= TEXT_GROUP ? masks(body + pos) : text_masks_of_tail(body, n, n_left, masks);
        uint64_t stop = m.quote | m.control;

        if (m.backslash | is_escaped)
            stop = (m.quote & ~text_find_escaped(m.backslash, &is_escaped)) | m.control;
        if (stop) {
            bool is_ascii = !has_high && !(m.high & (stop ^ (stop - 1)));

            return (struct string_scan_end){pos + (size_t)__builtin_ctzll(stop), is_ascii};
        }
        has_high |= m.high != 0;
        if (n_left <= TEXT_GROUP) break;
        pos += TEXT_GROUP;
        if (!m.backslash) pos += TEXT_GROUP * skip(body + pos, (n - pos) / TEXT_GROUP, &has_high);
    }
    return (struct string_scan_end){n, !has_high};
}

/* The search: most strings are short, and end among the first `width` bytes. end_long is the search
 * above, made a function of its own. */
static inline __attribute__((always_inline)) struct string_scan_end text_end(
    const uint8_t *body, size_t n, size_t pos, size_t width, text_look_fn *look,
    string_scan_end_fn *end_long) {
    if (LIKELY(n - pos >= width)) {
        struct text_look first = look(body + pos);

        if (first.special) {
            size_t at = pos + (size_t)__builtin_ctzll(first.special);
            bool is_ascii = !(first.high & (first.special ^ (first.special - 1)));

            if (body[at] != '\\') return (struct string_scan_end){at, is_ascii};
        }
    }
    return end_long(body, n, pos);
}

#endif
