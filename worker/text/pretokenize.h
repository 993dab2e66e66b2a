/* worker/text/pretokenize.h - cuts text into pre-tokens, the pieces that merges never cross.
 *
 * Each known family writes its cut as a regular expression in tokenizer.json. We recognise the
 * expression by its text and run a matcher written by hand: no regex library, linear time, and no
 * backtracking to exploit. Alternatives are tried in the order of the expression, as its engine
 * would. An expression that is not in the table is refused by name. Pure; any thread. */
#ifndef WORKER_TEXT_PRETOKENIZE_H
#define WORKER_TEXT_PRETOKENIZE_H

#include "common/base.h"
#include "common/buf.h"

enum pretokenize_kind {
    PRETOKENIZE_WHOLE,  /* no cut: the text is one piece */
    PRETOKENIZE_GPT2,   /* ByteLevel with use_regex */
    PRETOKENIZE_QWEN2,  /* one digit at a time */
    PRETOKENIZE_LLAMA3, /* up to three digits at a time */
    PRETOKENIZE_QWEN35, /* QWEN2, with marks counted among the letters */
};

/* The kind that a Split expression stands for. False when it is none we know. */
bool pretokenize_recognise(struct str regex, enum pretokenize_kind *out);

/* Length in bytes of the piece that begins at `p`; at least 1 (p < end). Valid UTF-8 is cut between
 * characters; in other text a stray byte counts as a character of no class. */
size_t pretokenize_next(enum pretokenize_kind kind, const char *p, const char *end);

#endif
