/* worker/text/unicode.h - the little of Unicode that pre-tokenizers and normalizers need.
 *
 * Classes of characters as bit sets, from the tables of one Unicode version (unicode_tables.h, made
 * by make_unicode_tables.py), and canonical composition through utf8proc where the build has it.
 * Text that is already composed, which is nearly all text, never reaches the library. Pure. */
#ifndef WORKER_TEXT_UNICODE_H
#define WORKER_TEXT_UNICODE_H

#include "common/base.h"
#include "common/buf.h"
#include "common/status.h"

#define UC_L     1u  /* letter, category L* */
#define UC_N     2u  /* number, N* */
#define UC_M     4u  /* mark, M* */
#define UC_P     8u  /* punctuation, P* */
#define UC_S     16u /* symbol, S* */
#define UC_SPACE 32u /* White_Space, what \s matches */

uint32_t unicode_class(uint32_t cp); /* a set of UC_*; 0 for the rest */

/* Decodes the character at p (p < end): its code point, and its length in *n. A byte that begins no
 * well-formed character counts alone and gives U+FFFD, so a walk always ends. */
uint32_t unicode_decode(const char *p, const char *end, uint32_t *n);

/* Writes cp (<= 10FFFF) as UTF-8, 1 to 4 bytes; returns how many. */
uint32_t unicode_encode(uint32_t cp, char out[4]);

/* True when `s` is certainly in NFC already: it has no character that a composition may touch. */
bool unicode_is_nfc_quick(struct str s);

/* *out gets the NFC form of `s` (valid UTF-8), for the caller to mem_free. ST_UNSUPPORTED when the
 * build has no utf8proc and the quick check does not settle it; ST_INVALID for
 * hundreds of combining marks in a row; ST_NOMEM. */
MUST_USE enum status unicode_to_nfc(struct str s, char **out, size_t *out_len, struct error *err);

#endif
