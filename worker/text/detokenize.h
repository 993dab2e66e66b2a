/* worker/text/detokenize.h - tokens to text that is always UTF-8, all at once or as they come.
 *
 * A token may end in the middle of a character. What is not yet a whole character is held back
 * until its rest arrives; bytes that can never become one are replaced by U+FFFD, once per maximal
 * broken part, as Python's decoder does. Where a vocabulary of characters falls back on byte
 * tokens, a run of those is held back to its end: it is text if all of it is UTF-8, else one U+FFFD
 * per byte, as the reference decoder has it. (A run of more than DETOKENIZE_MAX_RUN gives out what
 * is whole.)
 *
 *      ids ──▶ bytes ──▶ [ held ] ──▶ whole characters
 *
 * The pieces given out join to what detokenize() gives, however the ids are divided.
 * One struct per stream of tokens; any one thread at a time. */
#ifndef WORKER_TEXT_DETOKENIZE_H
#define WORKER_TEXT_DETOKENIZE_H

#include "common/base/base.h"
#include "common/base/buf.h"

struct tokenizer;

#define DETOKENIZE_MAX_RUN 64

struct detokenizer {
    const struct tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    bool is_first;    /* no token yet */
    uint8_t n_held;   /* the beginning of a character, or a run of byte tokens */
    uint32_t n_strip; /* still to be dropped from the beginning */
    char held[DETOKENIZE_MAX_RUN];
};

/* The tokens are a text of their own: SentencePiece's first space is not shown. */
void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool skip_special);

/* The tokens continue others, such as a prompt: a leading space is text. */
void detokenizer_init_after(struct detokenizer *d, const struct tokenizer *t, bool skip_special);

/* Appends what has become whole characters with this token. Allocates nothing but in *out. */
void detokenizer_push(struct detokenizer *d, uint32_t id, struct buf *out);

/* The sequence is over: what was held back comes out. */
void detokenizer_finish(struct detokenizer *d, struct buf *out);

/* Appends the text of the ids; those that stand for nothing add nothing. */
void detokenize(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                struct buf *out);

/* The text of one token alone, as logprobs show it: broken parts become U+FFFD. The bytes
 * themselves are tokenizer_bytes(). */
void detokenize_one(const struct tokenizer *t, uint32_t id, struct buf *out);

/* Appends `bytes` with every maximal broken part replaced by U+FFFD. */
void detokenize_repair(struct str bytes, struct buf *out);

#endif
