/* router/prompt/string_scan_utf8.h - the tables of the vector check of UTF-8.
 *
 * After Keiser and Lemire, Validating UTF-8 In Less Than One Instruction Per Byte, 2020. Three
 * nibbles decide whether two neighbouring bytes may follow each other: the high and low one of the
 * first byte and the high one of the second. Each table has the errors that its nibble allows; an
 * error exists when all three agree. The rest, that a third or fourth byte is a continuation, shows
 * as TWO_CONTS where the byte two or three places before does not require it. */
#ifndef ROUTER_PROMPT_STRING_SCAN_UTF8_H
#define ROUTER_PROMPT_STRING_SCAN_UTF8_H

#include "router/prompt/string_scan_internal.h"

enum utf8_error {
    TOO_SHORT = 1 << 0,  /* a lead byte, then no continuation */
    TOO_LONG = 1 << 1,   /* ASCII, then a continuation */
    OVERLONG_3 = 1 << 2, /* E0, then below A0 */
    TOO_LARGE = 1 << 3,  /* F4, then above 8F; F5 and above, then above 8F */
    SURROGATE = 1 << 4,  /* ED, then above 9F */
    OVERLONG_2 = 1 << 5, /* C0, C1 */
    OVERLONG_4 = 1 << 6, /* F0, then below 90; or F5 and above, then below 90 */
    TWO_CONTS = 1 << 7,  /* right behind a lead byte of three or four, else wrong */
    ANY_LOW = TOO_SHORT | TOO_LONG | TWO_CONTS, /* whatever the low nibble */
    FROM_F5 = ANY_LOW | TOO_LARGE | OVERLONG_4,
    BEHIND = TOO_LONG | OVERLONG_2 | TWO_CONTS, /* whichever continuation */
};

/* Sixteen entries each, one for each value of the nibble. */
#define UTF8_FIRST_HIGH                                                                            \
    TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG,                \
        (char)TWO_CONTS, (char)TWO_CONTS, (char)TWO_CONTS, (char)TWO_CONTS,                        \
        TOO_SHORT | OVERLONG_2, TOO_SHORT, TOO_SHORT | OVERLONG_3 | SURROGATE,                     \
        TOO_SHORT | TOO_LARGE | OVERLONG_4
#define UTF8_FIRST_LOW                                                                             \
    (char)(ANY_LOW | OVERLONG_2 | OVERLONG_3 | OVERLONG_4), (char)(ANY_LOW | OVERLONG_2),          \
        (char)ANY_LOW, (char)ANY_LOW, (char)(ANY_LOW | TOO_LARGE), (char)FROM_F5, (char)FROM_F5,   \
        (char)FROM_F5, (char)FROM_F5, (char)FROM_F5, (char)FROM_F5, (char)FROM_F5, (char)FROM_F5,  \
        (char)(FROM_F5 | SURROGATE), (char)FROM_F5, (char)FROM_F5
#define UTF8_SECOND_HIGH                                                                           \
    TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT,        \
        (char)(BEHIND | OVERLONG_3 | OVERLONG_4), (char)(BEHIND | OVERLONG_3 | TOO_LARGE),         \
        (char)(BEHIND | SURROGATE | TOO_LARGE), (char)(BEHIND | SURROGATE | TOO_LARGE), TOO_SHORT, \
        TOO_SHORT, TOO_SHORT, TOO_SHORT

/* The first bad sequence of a text that is sound up to the group at `pos`, except that a sequence
 * begun before may not end as it should: found again byte by byte. */
static inline size_t utf8_bad_near(const uint8_t *text, size_t n, size_t pos) {
    size_t start = pos;

    for (size_t back = 1; back <= 3 && back <= pos; back++) {
        if (text[pos - back] < 0x80) break;
        if (text[pos - back] >= 0xC0) {
            start = pos - back;
            break;
        }
    }
    return start + string_scan_bad_utf8_plain(text + start, n - start);
}

#endif
