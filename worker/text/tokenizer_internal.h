/* worker/text/tokenizer_internal.h - what loading fills and encoding reads.
 *
 *      id    -> tokens[id]   bytes it stands for, and flags
 *      bytes -> ids by hash  the vocabulary of the merges (not literals that bytes cannot spell)
 *      pair  -> merge        bpe.h
 *
 * All bytes of all tokens lie in one arena. */
#ifndef WORKER_TEXT_TOKENIZER_INTERNAL_H
#define WORKER_TEXT_TOKENIZER_INTERNAL_H

#include "common/mem.h"
#include "worker/text/added_tokens.h"
#include "worker/text/bpe.h"
#include "worker/text/pretokenize.h"
#include "worker/text/tokenizer.h"

/* No published vocabulary has more than some 260,000 entries; the limit keeps a broken file from
 * asking for gigabytes. */
#define TOKENIZER_MAX_VOCAB (1u << 22)
#define TOKENIZER_MAX_FRAME 8 /* ids a post-processor puts before or after a text */

struct token {
    struct str bytes;
    bool is_special;
    bool is_whole; /* its bytes, as one pre-token, are encoded as just this token */
};

struct tokenizer {
    struct arena arena;
    struct token *tokens; /* (n_tokens) */
    uint32_t n_tokens;
    uint32_t *by_bytes; /* (mask + 1) ids, TOKEN_NONE when empty; open addressing */
    uint32_t by_bytes_mask;
    uint32_t byte_id[256];
    struct bpe bpe;
    struct added_tokens raw, normalized;
    enum pretokenize_kind pretokenize;
    bool has_nfc;
    bool ignores_merges; /* a pre-token that is a vocabulary entry is that entry */
    uint32_t bos, eos;
    uint32_t before[TOKENIZER_MAX_FRAME], after[TOKENIZER_MAX_FRAME];
    uint32_t n_before, n_after;
};

struct tokenizer *tokenizer_alloc(uint32_t n_tokens); /* NULL when memory was refused */

/* Gives an id its bytes (copied); false when it has some already. */
bool tokenizer_set_bytes(struct tokenizer *t, uint32_t id, struct str bytes);
void tokenizer_index(struct tokenizer *t, uint32_t id); /* makes it findable by its bytes */

/* TOKEN_NONE when the vocabulary of the merges has no such entry. */
uint32_t tokenizer_lookup(const struct tokenizer *t, struct str bytes);

#endif
