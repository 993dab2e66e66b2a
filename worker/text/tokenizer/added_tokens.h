/* worker/text/tokenizer/added_tokens.h - the tokens that are found in text before anything else.
 *
 * Special tokens (<|im_end|>) and other strings that a tokenizer must not split. Two sets: those
 * searched in the raw text, and those searched after normalization. At each position the longest
 * wins; the search continues behind it. Entries are sorted, and a match narrows the range of
 * entries byte by byte, so a position without a token costs one bit test. Immutable once sorted. */
#ifndef WORKER_TEXT_TOKENIZER_ADDED_TOKENS_H
#define WORKER_TEXT_TOKENIZER_ADDED_TOKENS_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define ADDED_SPECIAL     1u
#define ADDED_SINGLE_WORD 2u /* not inside a word */
#define ADDED_LSTRIP      4u /* swallows white space before it */
#define ADDED_RSTRIP      8u /* and after it */
#define ADDED_NORMALIZED  16u

#define ADDED_MAX_BYTES 1024 /* of one token */

struct added_token {
    struct str content; /* owned by the tokenizer */
    uint32_t id;
    uint32_t flags;
};

struct added_tokens {
    struct added_token *tokens; /* by content */
    uint32_t n;
    uint64_t first[4]; /* bit b: some token begins with byte b */
};

/* Sorts the n tokens (taken over; allocated by mem_*), and drops doubles. */
void added_tokens_init(struct added_tokens *set, struct added_token *take, uint32_t n);
void added_tokens_fini(struct added_tokens *set);

const struct added_token *added_tokens_find(const struct added_tokens *set, struct str content);

struct added_match {
    const struct added_token *token; /* NULL: no more; begin and end are the end of the text */
    const char *begin, *end;         /* with the white space it swallows */
};

/* The first match at or after `from` in `text`. With skip_special, special tokens are passed over
 * as if their bytes were spoken for. */
struct added_match added_tokens_next(const struct added_tokens *set, struct str text,
                                     const char *from, bool skip_special);

#endif
