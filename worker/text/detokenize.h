/* worker/text/detokenize.h - one request's tokens, as they come, to text that is always UTF-8.
 *
 * A token may end in the middle of a character. What is not yet a whole character is held back
 * until its rest arrives; bytes that can never become one are replaced by U+FFFD, once per maximal
 * broken part, as Python's decoder does. So the pieces given out join to the decoding of the whole.
 *
 *      ids ──▶ bytes ──▶ [ up to 3 held ] ──▶ whole characters
 *
 * One struct per stream of tokens; any one thread at a time; it allocates nothing. */
#ifndef WORKER_TEXT_DETOKENIZE_H
#define WORKER_TEXT_DETOKENIZE_H

#include "common/base.h"
#include "common/buf.h"

struct tokenizer;

struct detokenizer {
    const struct tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    uint8_t n_held;
    char held[4];
};

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool skip_special);

/* Appends what has become whole characters with this token. */
void detokenizer_push(struct detokenizer *d, uint32_t id, struct buf *out);

/* The sequence is over: what was held back becomes one U+FFFD. */
void detokenizer_finish(struct detokenizer *d, struct buf *out);

/* The text of one token alone, as logprobs show it: broken parts become U+FFFD. The bytes
 * themselves are tokenizer_bytes(). */
void detokenize_one(const struct tokenizer *t, uint32_t id, struct buf *out);

/* Appends `bytes` with every maximal broken part replaced by U+FFFD. */
void detokenize_repair(struct str bytes, struct buf *out);

#endif
