/* worker/text/unicode/unicode.h - the little of Unicode that pre-tokenizers and normalizers need.
 *
 * Classes of characters as bit sets, from the tables of one Unicode version (unicode_tables.h, made
 * by make_unicode_tables.py); decomposition, composition and case through utf8proc. Text that is
 * already composed, which is nearly all text, never reaches the library. Pure. */
#ifndef WORKER_TEXT_UNICODE_UNICODE_H
#define WORKER_TEXT_UNICODE_UNICODE_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

#define UC_LU    (1u << 0) /* letters: upper, lower, title case, modifier, other */
#define UC_LL    (1u << 1)
#define UC_LT    (1u << 2)
#define UC_LM    (1u << 3)
#define UC_LO    (1u << 4)
#define UC_ND    (1u << 5)  /* decimal digits */
#define UC_NO    (1u << 6)  /* other numbers, letter-like ones too */
#define UC_M     (1u << 7)  /* mark, category M* */
#define UC_P     (1u << 8)  /* punctuation, P* */
#define UC_S     (1u << 9)  /* symbol, S* */
#define UC_SPACE (1u << 10) /* White_Space, what \s matches */
#define UC_WORD  (1u << 11) /* what \w matches: alphabetic, mark, digit, connector */

#define UC_L (UC_LU | UC_LL | UC_LT | UC_LM | UC_LO)
#define UC_N (UC_ND | UC_NO)

uint32_t unicode_class(uint32_t cp); /* a set of the UC_* above; 0 for the rest */

/* How normal forms treat a character: NFC may change it or join it to the preceding one; some form
 * may; none does. Inert characters are those missing in the tables of the reference library
 * (Unicode 9), and unassigned ones. */
#define UC_NFC_TOUCHED (1u << 12)
#define UC_TOUCHED     (1u << 13)
#define UC_INERT       (1u << 14)
#define UC_ACCENT      (1u << 15) /* a mark of Unicode 9: what StripAccents takes off */

uint32_t unicode_traits(uint32_t cp); /* a set of these four */

/* Decodes the character at p (p < end): its code point, and its length in *n. A byte that begins no
 * well-formed character counts alone and gives U+FFFD, so a walk always ends. */
uint32_t unicode_decode(const char *p, const char *end, uint32_t *n);

/* Writes cp (<= 10FFFF) as UTF-8, 1 to 4 bytes; returns how many. */
uint32_t unicode_encode(uint32_t cp, char out[4]);

/* True when `s` is certainly in NFC already: it has no character that a composition may touch. */
bool unicode_is_nfc_quick(struct str s);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends the normal form of `s` (valid UTF-8) to *out, in time O(n). As in the tokenizers library,
 * characters newer than Unicode 9 stay as they are. ST_NOMEM. */
MUST_USE enum status unicode_normalize(enum unicode_form form, struct str s, struct buf *out,
                                       struct error *err);

/* The lower case of cp: at most three characters, at `out`; returns how many. */
uint32_t unicode_lower(uint32_t cp, uint32_t out[3]);

#endif
