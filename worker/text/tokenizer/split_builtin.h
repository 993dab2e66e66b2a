/* worker/text/tokenizer/split_builtin.h - the cuts of the commonest families, by hand.
 *
 * Each family writes its cut as a regular expression in tokenizer.json. The commonest are
 * recognised by their text and run by a matcher written for them: linear time, no backtracking,
 * several times the speed of an engine. Alternatives are tried in the order of the expression, as
 * its engine would. Others are for pattern.h. Pure; any thread. */
#ifndef WORKER_TEXT_TOKENIZER_SPLIT_BUILTIN_H
#define WORKER_TEXT_TOKENIZER_SPLIT_BUILTIN_H

#include "common/base/base.h"
#include "common/base/buf.h"

enum builtin_split {
    BUILTIN_GPT2,   /* ByteLevel with use_regex */
    BUILTIN_QWEN2,  /* one digit at a time */
    BUILTIN_LLAMA3, /* up to three digits at a time */
    BUILTIN_QWEN35, /* QWEN2, with marks counted among the letters */
};

/* What ByteLevel cuts at, with use_regex. */
#define BUILTIN_GPT2_REGEX                                                                         \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* The built-in that equals a Split expression. False when there is none. */
bool split_builtin_find(struct str regex, enum builtin_split *out);

/* Length in bytes of the piece that begins at `p`; at least 1 (p < end). Valid UTF-8 is cut between
 * characters; in other text a stray byte counts as a character of no class. */
size_t split_builtin_next(enum builtin_split kind, const char *p, const char *end);

#endif
