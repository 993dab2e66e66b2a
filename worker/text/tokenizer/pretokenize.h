/* worker/text/tokenizer/pretokenize.h - cuts text into pre-tokens, the pieces that merges never
 * cross.
 *
 * The `pre_tokenizer` of tokenizer.json as a chain of operations; each cuts every piece that the
 * one before made, depth first, and the last hands its pieces out:
 *
 *      text ──▶ cut at pattern ──▶ cut at pattern ──▶ put a space in front ──▶ on_piece
 *
 * All kinds come down to three: a cut (a pattern, and what becomes of what it finds), ByteLevel's
 * space, Metaspace's blanks. The cut that nearly all models have, one expression that matches all
 * of the text, costs a loop and no copy. Immutable once loaded. */
#ifndef WORKER_TEXT_TOKENIZER_PRETOKENIZE_H
#define WORKER_TEXT_TOKENIZER_PRETOKENIZE_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/text/tokenizer/pattern.h"

struct json;

#define PRETOKENIZE_MAX_OPS 16

enum pretokenize_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_PREVIOUS,
    SPLIT_NEXT,
    SPLIT_CONTIGUOUS
};

struct pretokenize_op {
    enum { PRETOKENIZE_CUT, PRETOKENIZE_SPACE, PRETOKENIZE_METASPACE } kind;
    struct pattern pattern;
    enum pretokenize_behavior behavior;
    bool is_inverted; /* what lies between the matches is what is meant */
    enum { METASPACE_ALWAYS, METASPACE_FIRST, METASPACE_NEVER } prepend;
    struct str replacement; /* owned: Metaspace's blank */
};

struct pretokenizer {
    struct pretokenize_op ops[PRETOKENIZE_MAX_OPS];
    uint32_t n;
    bool is_byte_level; /* what is handed out stands for its bytes */
};

/* Reads it into a zeroed one; null is none. ST_UNSUPPORTED names what is unsupported. On failure
 * pretokenizer_fini is still due. */
MUST_USE enum status pretokenizer_load(struct pretokenizer *p, const struct json *v,
                                       struct error *err);
void pretokenizer_fini(struct pretokenizer *p);

/* What one text needs. Fill the first five; the memory is the run's own. */
struct pretokenize_run {
    const struct pretokenizer *chain;
    struct pattern_run *patterns;
    enum status (*on_piece)(void *arg, struct str piece); /* never empty; gone after the call */
    void *arg;
    struct error *err;
    struct buf copies[PRETOKENIZE_MAX_OPS];
};

void pretokenize_run_fini(struct pretokenize_run *run);

/* Hands out the pieces of `text`, which is valid UTF-8. `is_first`: it begins what was typed. */
MUST_USE enum status pretokenize(struct pretokenize_run *run, struct str text, bool is_first);

#endif
