/* worker/grammar/grammar.h - what an answer must look like, and which tokens may come next.
 *
 *      spec (a JSON Schema, a regular expression, ...)
 *        │ grammar_compile         front ends: schema/, notation/, tags/, core/regex_expr.h
 *        ▼
 *      rules over lexemes and tokens (core/rules.h)
 *        │ on demand               core/rows.h, core/expr.h
 *        ▼
 *      row ──▶ mask of tokens      a walk of the vocabulary's trie, then remembered
 *
 * Nothing is computed for a whole grammar in advance: compiling takes about a millisecond, and
 * includes the first mask, so that what is too much for masks is refused before a request runs. A
 * *matcher* is one answer's place in a grammar: a number. All requests of a grammar share what has
 * been computed for it.
 *
 * Where only one text may follow, the mask has one token: the first of the tokenizer's own spelling
 * of it (grammar_force.c).
 *
 * Markers are tokens: where rules name a token, ordinary tokens do not spell it, and no text of a
 * grammar is spelt with special tokens or those that it names. Where an answer may end,
 * grammar_is_accepting holds; the caller allows its end tokens then.
 *
 * Ownership: counted; the last grammar_unref frees, on any thread. Threads: one at a time uses a
 * grammar with its matchers. It is compiled on a grammar thread, and belongs to the engine from the
 * first matcher on, whose threads take turns (worker/engine/masks.h).
 *
 * LIMITS. GRAMMAR_MAX_BYTES of memory for each grammar: beyond a quarter of it rows that no answer
 * needs are forgotten. While all of them together take more than their limit (grammar_count_in),
 * each may have GRAMMAR_CROWDED_BYTES. GRAMMAR_MASK_WORK for each mask. An answer that takes more
 * fails. */
#ifndef WORKER_GRAMMAR_GRAMMAR_H
#define WORKER_GRAMMAR_GRAMMAR_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/list.h"
#include "common/base/status.h"

struct grammar;
struct vocabulary;

#define GRAMMAR_MAX_BYTES     ((size_t)64 << 20)
#define GRAMMAR_CROWDED_BYTES ((size_t)4 << 20)
#define GRAMMAR_COMPILE_WORK  750000u      /* at most about 50 ms */
#define GRAMMAR_MASK_WORK     250000u      /* about 10 ms of a thread */
#define GRAMMAR_TEXT_MAX      (256u << 10) /* of a spec */
#define GRAMMAR_ROLLBACK_MAX  16u          /* tokens that can be taken back */

enum grammar_kind {
    GRAMMAR_JSON_SCHEMA, /* text: the schema, as JSON */
    GRAMMAR_REGEX,       /* the whole answer matches it */
    GRAMMAR_CHOICE,      /* text: a JSON array of strings; the answer is one of them */
    GRAMMAR_EBNF,        /* GBNF: `root ::= ...` */
    GRAMMAR_LARK,        /* `start: ...` */
    GRAMMAR_TAG,         /* text: a structural tag, as JSON (tags/tags.h) */
};

/* White space between the tokens of JSON. Never around the whole. */
enum grammar_spaces {
    GRAMMAR_SPACES_FREE,    /* a few blanks and line ends wherever JSON has them */
    GRAMMAR_SPACES_COMPACT, /* one blank behind a comma and a colon of an object or array */
    GRAMMAR_SPACES_PATTERN, /* what matches `spaces_pattern` */
};

struct grammar_spec {
    enum grammar_kind kind;
    struct str text;
    enum grammar_spaces spaces; /* of schemas; of those inside a tag that do not say */
    struct str spaces_pattern;
    bool is_closed; /* objects have no other properties than declared, unless the schema allows
                     * some */
    const atomic_bool *is_abandoned; /* once true, compiling ends early; NULL: never */
};

/* One reference, the caller's. `vocabulary` must outlive it. ST_INVALID with the place that was
 * wrong, or too much; ST_CLOSED when it is abandoned. */
MUST_USE enum status grammar_compile(struct grammar **out, const struct grammar_spec *spec,
                                     const struct vocabulary *vocabulary, struct error *err);
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */

size_t grammar_bytes(const struct grammar *g); /* as of the last mask; any thread */
/* From now on until it is freed its bytes are part of *total, which must outlive it as *max_bytes
 * must: the most that all who count there may take. */
void grammar_count_in(struct grammar *g, atomic_size_t *total, const atomic_size_t *max_bytes);

/* --- an answer in progress -------------------------------------------------------------------- */

struct grammar_matcher {     /* embedded; zero: none */
    struct grammar *grammar; /* a reference */
    struct list link;
    uint32_t row;
    uint32_t before[GRAMMAR_ROLLBACK_MAX]; /* a ring: rows before the latest tokens */
    uint32_t n_taken;
};

void grammar_matcher_init(struct grammar_matcher *m, struct grammar *g);
void grammar_matcher_fork(struct grammar_matcher *m, const struct grammar_matcher *from);
void grammar_matcher_fini(struct grammar_matcher *m);

/* One token more. ST_INVALID, and nothing is taken, when it is not allowed; ST_TOO_LARGE when that
 * took more work or memory than the limits; ST_BUSY, when all grammars took more memory. */
MUST_USE enum status grammar_take(struct grammar_matcher *m, uint32_t token);
void grammar_take_back(struct grammar_matcher *m, uint32_t n); /* of the latest tokens */

bool grammar_is_accepting(const struct grammar_matcher *m); /* the answer may end here */
bool grammar_continues(const struct grammar_matcher *m);    /* and may go on */

/* The tokens that may come next: a bit each, (ceil(n_tokens / 32)) words that belong to the grammar
 * and hold until the next call for any of its matchers. End tokens are the caller's. *is_new: it
 * was computed now. ST_TOO_LARGE, ST_BUSY: as grammar_take. */
MUST_USE enum status grammar_mask(struct grammar_matcher *m, const uint32_t **mask, bool *is_new);
bool grammar_mask_is_known(
    const struct grammar_matcher *m); /* it would be computed now otherwise */

/* The token that must come next: the mask has no other, and the answer may not end. False also
 * where only a walk of the vocabulary would show it. */
bool grammar_forced_token(struct grammar_matcher *m, uint32_t *token);

/* Appends the bytes that must come next, whichever tokens spell them; at most 64. */
void grammar_forced(struct grammar_matcher *m, struct buf *out);

/* --- for tests -------------------------------------------------------------------------------- */

/* Can the bytes come next? Nothing is taken. */
bool grammar_allows(struct grammar_matcher *m, struct str bytes);
/* Are they a whole answer, from the beginning? */
bool grammar_accepts(struct grammar *g, struct str bytes);
uint64_t grammar_collections(const struct grammar *g);
void grammar_collect(struct grammar *g); /* forgets what no matcher needs */
void grammar_check(const struct grammar *g);

#endif
