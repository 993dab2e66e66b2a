/* router/prompt/body_text.h - the text in a body's strings, nearly all of it, 64 bytes at a time.
 *
 * The one part of the body scan that depends on the instruction set. Two questions: where does a
 * string end, and is what lies in it UTF-8? All versions give the same answers; the plain one, byte
 * by byte, is their definition. Pure, allocates nothing; any thread. */
#ifndef ROUTER_PROMPT_BODY_TEXT_H
#define ROUTER_PROMPT_BODY_TEXT_H

#include "common/base/base.h"

struct body_text_end {
    size_t at;
    bool is_ascii; /* nothing from the start to there is 0x80 or above */
};

/* Where the string ends whose text begins at `pos`, behind its opening quote: at the first quote
 * that no backslash escapes, or at a control byte (below 0x20) before that; at n when there is
 * neither. */
typedef struct body_text_end body_text_end_fn(const uint8_t *body, size_t n, size_t pos);

/* Where the first sequence begins that is not well-formed UTF-8; n when all are. */
typedef size_t body_text_bad_utf8_fn(const uint8_t *text, size_t n);

struct body_text {
    const char *name;
    body_text_end_fn *end;
    body_text_bad_utf8_fn *bad_utf8;
};

/* The i-th version this machine can run, fastest first; NULL after the last, which is plain C. */
const struct body_text *body_text_at(uint32_t i);

body_text_end_fn body_text_end_plain, body_text_end_sse2, body_text_end_avx2, body_text_end_avx512,
    body_text_end_neon;
body_text_bad_utf8_fn body_text_bad_utf8_plain, body_text_bad_utf8_avx2, body_text_bad_utf8_avx512,
    body_text_bad_utf8_neon;

#endif
