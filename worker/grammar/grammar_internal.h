/* worker/grammar/grammar_internal.h - what the files of a compiled grammar share. */
#ifndef WORKER_GRAMMAR_GRAMMAR_INTERNAL_H
#define WORKER_GRAMMAR_GRAMMAR_INTERNAL_H

#include "worker/grammar/core/rows.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"

/* A row's mask is the number of one that is kept, or of one token, which is the number then. */
#define MASK_OF_ONE 0x80000000u

/* Masks by content: most rows of a grammar share a few dozen. */
struct mask_store {
    uint32_t **mask; /* (n) of vocabulary->n_words */
    uint32_t n, cap;
    uint32_t *slot; /* number + 1; (n_slots), a power of two */
    uint32_t n_slots;
};

struct grammar {
    atomic_uint refs;
    atomic_size_t n_bytes; /* for other threads */
    atomic_size_t *total;  /* that these bytes are part of, or NULL; and its limit */
    const atomic_size_t *total_max;
    const struct vocabulary *vocabulary;
    struct exprs *exprs;
    struct rules *rules;
    struct rows *rows;
    struct mask_store mask_of;
    uint32_t *one; /* (vocabulary->n_words) the mask of one_token alone */
    uint32_t one_token;
    uint32_t *named; /* (n_named) sorted: tokens of a trie that the rules name, which are no text */
    uint32_t n_named;
    size_t kept_bytes; /* by the last collection */
    uint64_t n_collections;
    struct list matchers;
};

/* grammar_front.c: writes the rules that a spec asks for. */
MUST_USE enum status grammar_front_end(struct grammar *g, const struct grammar_spec *spec,
                                       symbol *start, struct error *err);

/* grammar_force.c: the bytes that must follow a row, at most `max`, and the rows behind each in
 * `path` (max + 1); the token that must, if the tokenizer spells them. */
#define GRAMMAR_FORCED_MAX 64u
uint32_t grammar_force(struct grammar *g, row_id row, uint32_t max, char *bytes, row_id *path);
bool grammar_force_token(struct grammar *g, row_id row, uint32_t *token);

/* grammar_mask.c: is it a token of a trie that the rules name? Then no text is spelt with it. */
bool grammar_names(const struct grammar *g, uint32_t token);

/* Before each use: fuel for one mask, and room for its rows. */
void grammar_prepare(struct grammar *g);

void grammar_note_bytes(struct grammar *g); /* what it takes now, for other threads */

/* What it may take now; what the status of its failure is. */
size_t grammar_allowance(const struct grammar *g);
enum status grammar_limit_status(const struct grammar *g);

void grammar_masks_drop(struct grammar *g); /* and their memory; rows no longer have one */

#endif
