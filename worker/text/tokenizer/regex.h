/* worker/text/tokenizer/regex.h - the regular expressions that tokenizers are written in, and no
 * others.
 *
 * Alternatives of sequences of characters and classes ([^\r\n\p{L}]), each with a greedy or
 * possessive repetition; groups, without case too, once or optional; a look ahead at one character;
 * line ends. That covers GPT-2 to DeepSeek-V3 and the tiktoken family. Matching backtracks as those
 * engines do, so the first alternative that fits wins; every step is counted, so that no text can
 * make it endless.
 *
 * Expressions outside the subset are detected at compile time and left to pcre2 (pattern.h).
 * Immutable once compiled; any thread may match. */
#ifndef WORKER_TEXT_TOKENIZER_REGEX_H
#define WORKER_TEXT_TOKENIZER_REGEX_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct regex;

/* ST_UNSUPPORTED when the expression has what is not covered, may match nothing, or is broken. */
MUST_USE enum status regex_compile(struct regex **out, struct str source);
void regex_destroy(struct regex *r); /* NULL is fine */

/* The first match at or after offset `from` of `text` (valid UTF-8): true, and its bounds.
 * Subtracts its steps from *steps; at 0 it returns false. */
bool regex_find(const struct regex *r, struct str text, size_t from, uint64_t *steps, size_t *begin,
                size_t *end);

#endif
