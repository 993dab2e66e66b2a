/* worker/text/tokenizer/bpe.h - byte-pair merges.
 *
 * Of all neighbouring pairs that have a merge, the one of lowest rank is replaced first, the
 * leftmost where ranks are equal, until none is left. A merge is one lookup in a hash table of
 * pairs of ids. Short pieces (nearly all) are merged in an array by looking for the smallest; long
 * ones over a linked list with a heap, so that no piece costs more than O(n log n).
 *
 * Immutable after the last bpe_add; then any thread may merge. */
#ifndef WORKER_TEXT_TOKENIZER_BPE_H
#define WORKER_TEXT_TOKENIZER_BPE_H

#include "common/base/base.h"
#include "common/base/status.h"

#define BPE_NO_PAIR UINT64_MAX

struct bpe_merge {
    uint64_t pair; /* left << 32 | right; BPE_NO_PAIR in an empty slot */
    uint32_t rank;
    uint32_t merged; /* the id they become */
};

struct bpe {
    struct bpe_merge *slots;
    uint32_t mask;
    uint32_t n, max;
};

MUST_USE enum status bpe_init(struct bpe *b, uint32_t max_merges); /* ST_NOMEM */
void bpe_fini(struct bpe *b);

/* At most max_merges in all. A pair that is there keeps its first rank. */
void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

/* Called now and then in the middle of a long piece; false ends it. */
struct bpe_pace {
    bool (*may_continue)(void *arg);
    void *arg;
};

/* Merges ids[0..n) in place; returns how many remain, or 0 when memory for a long piece was
 * refused (n > 0; ids are then undefined). */
MUST_USE size_t bpe_run(const struct bpe *b, uint32_t *ids, size_t n);

/* The same, and 0 also when `pace` (may be NULL) ended it. A long piece takes 24 bytes a symbol. */
MUST_USE size_t bpe_run_paced(const struct bpe *b, uint32_t *ids, size_t n,
                              const struct bpe_pace *pace);

#endif
