/* worker/text/tokenizer/tokenizer_internal.h - what loading fills and encoding reads.
 *
 *      id   -> keys[id]    how the vocabulary writes it: bytes in a byte-level one, else its characters
 *      id   -> bytes[id]   what it stands for in text
 *      key  -> id          by hash: the vocabulary of the merges (not literals that bytes cannot spell)
 *      pair -> merge       bpe.h
 *
 * In a byte-level vocabulary the two arrays are one. All bytes of all tokens lie in one arena. */
#ifndef WORKER_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H
#define WORKER_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H

#include "common/base/mem.h"
#include "worker/text/tokenizer/added_tokens.h"
#include "worker/text/tokenizer/bpe.h"
#include "worker/text/tokenizer/decode.h"
#include "worker/text/tokenizer/normalize.h"
#include "worker/text/tokenizer/pretokenize.h"
#include "worker/text/tokenizer/tokenizer.h"

/* No published vocabulary has more than some 260,000 entries; the limit keeps a broken file from
 * asking for gigabytes. */
#define TOKENIZER_MAX_VOCAB  (1u << 22)
#define TOKENIZER_MAX_AROUND 8 /* ids a post-processor puts before or after a text */

#define TOKEN_SPECIAL 1u
#define TOKEN_WHOLE   2u /* its key, as one pre-token, is encoded as just this token */
#define TOKEN_BYTE    4u /* one of a run of bytes that are characters together */
#define TOKEN_ADDED   8u /* listed in the file's added_tokens */

/* The characters below this have their ids in a table; a vocabulary of characters has most
 * there. */
#define TOKENIZER_CHARS 0x10000u

struct token_slot {
    uint32_t id, tag; /* TOKEN_NONE: empty; the tag is the upper half of the hash */
};

struct tokenizer {
    struct arena arena;
    struct str *keys, *bytes; /* (n_tokens) */
    uint8_t *flags;           /* (n_tokens) TOKEN_* */
    uint32_t n_tokens;
    struct token_slot *slots; /* (mask + 1), open addressing */
    uint32_t mask;
    uint32_t byte_id[256]; /* the token that stands for the byte; TOKEN_NONE for none */
    uint32_t *char_id;     /* (TOKENIZER_CHARS), of a vocabulary of characters; else NULL */
    uint32_t unk;          /* stands for what the vocabulary lacks; TOKEN_NONE: that is dropped */
    bool has_byte_fallback, fuses_unk;
    bool ignores_merges; /* a pre-token that is a vocabulary entry is that entry */
    bool cuts_at_blanks; /* no merge reaches over the beginning of a ▁: words are encoded apart */
    struct bpe bpe;
    struct added_tokens raw, normalized;
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct decoder decoder;
    uint32_t bos, eos;
    uint32_t before[TOKENIZER_MAX_AROUND], after[TOKENIZER_MAX_AROUND];
    uint32_t n_before, n_after;
};

static inline bool tokenizer_is_byte_level(const struct tokenizer *t) {
    return t->pretokenizer.is_byte_level;
}

struct json;

/* NULL when memory was refused. */
struct tokenizer *tokenizer_alloc(uint32_t n_tokens, bool is_byte_level);

/* Gives an id its key (copied); false when it has one already. */
bool tokenizer_set_key(struct tokenizer *t, uint32_t id, struct str key);
void tokenizer_index(struct tokenizer *t, uint32_t id); /* makes it findable by its key */

/* TOKEN_NONE when the vocabulary of the merges has no such entry. */
uint32_t tokenizer_lookup(const struct tokenizer *t, struct str key);

/* The symbols of a pre-token before any merge, at most one for each of its bytes. */
size_t tokenizer_symbols(const struct tokenizer *t, struct str piece, uint32_t *ids);

/* U+2581, the blank of SentencePiece. */
#define TOKENIZER_BLANK STR("\xE2\x96\x81")

/* post_processor.c: the ids that the post-processor puts around a text. */
MUST_USE enum status tokenizer_post_processor_load(struct tokenizer *t,
                                                   const struct json *post_processor,
                                                   struct error *err);

#endif
