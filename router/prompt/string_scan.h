/* router/prompt/string_scan.h - scans the text of a body's strings, 64 bytes at a time.
 *
 * The only part of the body scan that depends on the instruction set: where a string ends, and
 * whether it is UTF-8. All versions give equal results; the plain one, byte by byte, is their
 * definition. Pure, allocates nothing; any thread. */
#ifndef ROUTER_PROMPT_STRING_SCAN_H
#define ROUTER_PROMPT_STRING_SCAN_H

#include "common/base/base.h"

struct string_scan_end {
    size_t at;
    bool is_ascii; /* nothing from the start to there is 0x80 or above */
};

/* Where the string ends whose text begins at `pos`, behind its opening quote: at the first quote
 * that no backslash escapes, or at a control byte (below 0x20) before that; at n when there is
 * neither. */
typedef struct string_scan_end string_scan_end_fn(const uint8_t *body, size_t n, size_t pos);

/* Where the first sequence begins that is not well-formed UTF-8; n when all are. */
typedef size_t string_scan_bad_utf8_fn(const uint8_t *text, size_t n);

struct string_scan {
    const char *name;
    string_scan_end_fn *end;
    string_scan_bad_utf8_fn *bad_utf8;
};

/* The i-th version this machine can run, fastest first; NULL after the last, which is plain C. */
const struct string_scan *string_scan_at(uint32_t i);

string_scan_end_fn string_scan_end_plain, string_scan_end_sse2, string_scan_end_avx2,
    string_scan_end_avx512, string_scan_end_neon;
string_scan_bad_utf8_fn string_scan_bad_utf8_plain, string_scan_bad_utf8_avx2,
    string_scan_bad_utf8_avx512, string_scan_bad_utf8_neon;

#endif
