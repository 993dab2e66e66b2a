/* worker/text/tokenizer/normalize.h - what a tokenizer does to text before it looks for tokens.
 *
 * The `normalizer` of tokenizer.json as a list of steps, each from one text to the next: NFC and
 * its kin, Lowercase, StripAccents, Strip, Replace, Prepend. Immutable once loaded. */
#ifndef WORKER_TEXT_TOKENIZER_NORMALIZE_H
#define WORKER_TEXT_TOKENIZER_NORMALIZE_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/text/tokenizer/pattern.h"
#include "worker/text/unicode/unicode.h"

struct json;

#define NORMALIZE_MAX_STEPS 16

struct normalize_step {
    enum {
        NORMALIZE_FORM,
        NORMALIZE_LOWERCASE,
        NORMALIZE_STRIP_ACCENTS,
        NORMALIZE_STRIP,
        NORMALIZE_REPLACE,
        NORMALIZE_PREPEND,
    } kind;
    enum unicode_form form;
    bool strips_left, strips_right;
    struct pattern pattern;
    char *content; /* owned: what a Replace puts, and a Prepend */
    size_t n_content;
};

struct normalizer {
    struct normalize_step steps[NORMALIZE_MAX_STEPS];
    uint32_t n;
};

/* Reads it into a zeroed one; null is none. ST_UNSUPPORTED names the step that is unsupported, or
 * the library that the build lacks. On failure normalizer_fini is still due. */
MUST_USE enum status normalizer_load(struct normalizer *n, const struct json *v, struct error *err);
void normalizer_fini(struct normalizer *n);

/* *out is the normal form of `text` (valid UTF-8): `text` itself, or in one of the two buffers,
 * which are the caller's and may be used again. */
MUST_USE enum status normalizer_apply(const struct normalizer *n, struct pattern_run *run,
                                      struct str text, struct buf between[2], struct str *out,
                                      struct error *err);

#endif
