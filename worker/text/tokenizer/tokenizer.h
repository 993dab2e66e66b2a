/* worker/text/tokenizer/tokenizer.h - text to token ids and back.
 *
 * Loads a Hugging Face tokenizer.json with a BPE model, byte-level (GPT-2, Llama-3, Qwen, DeepSeek)
 * or of characters with bytes to fall back on (SentencePiece style: Llama-2, Mistral, Gemma), and
 * knows one tokenizer that needs no file: a byte is a token. Features of a tokenizer.json that this
 * module lacks are refused by name at load; none is approximated.
 *
 *      text -> added tokens cut out -> normalized -> added tokens again -> pre-tokens -> symbols -> merges
 *
 * Added tokens are found twice because some are written against the text as typed and some against
 * the normalized text. Without TOKENIZE_PLAIN, user text that contains `<|im_end|>` becomes that
 * special token, as in every other engine.
 *
 * A tokenizer is immutable once loaded: any thread may use it. Encoding n bytes takes O(n log n)
 * for any text; the caller bounds n (long prompts belong on a text thread). */
#ifndef WORKER_TEXT_TOKENIZER_TOKENIZER_H
#define WORKER_TEXT_TOKENIZER_TOKENIZER_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct tokenizer;

/* Token ids that grow. Zero-initialise; free with token_list_fini. */
struct token_list {
    uint32_t *ids;
    size_t n, cap;
};

void token_list_fini(struct token_list *list);
MUST_USE enum status token_list_push(struct token_list *list, uint32_t id); /* ST_NOMEM */

/* Reads `folder`/tokenizer.json, and tokenizer_config.json beside it for the bos and eos token.
 * ST_NOT_FOUND without the file, ST_INVALID when it is broken, ST_UNSUPPORTED for a feature that
 * this module lacks, named in the message. Takes a second for 150,000 merges. */
MUST_USE enum status tokenizer_open(struct tokenizer **out, const char *folder, struct error *err);

/* Loads from memory; `config` may be STR_NULL. Neither text is needed afterwards. */
MUST_USE enum status tokenizer_parse(struct tokenizer **out, struct str tokenizer_json,
                                     struct str config_json, struct error *err);

/* The built-in one: ids 0..255 are bytes, then <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258.
 * 512 ids in all; the rest stand for nothing and decode to nothing. */
struct tokenizer *tokenizer_create_bytes(void);
#define TOKENIZER_BYTES_VOCAB 512

void tokenizer_destroy(struct tokenizer *t); /* NULL is fine */

#define TOKENIZE_SPECIAL 1u /* put bos and eos where the file's post-processor puts them */
#define TOKENIZE_PLAIN   2u /* special tokens spelled in the text are just text */

/* Appends the ids of `text` to *out. ST_INVALID when the text is not UTF-8, ST_UNSUPPORTED when it
 * needs a Unicode library that this build lacks, ST_TOO_LARGE when it was made to cost, ST_NOMEM.
 * On failure *out is as before. For the way back see detokenize.h. */
MUST_USE enum status tokenizer_encode(const struct tokenizer *t, struct str text, uint32_t flags,
                                      struct token_list *out, struct error *err);

/* For long texts: encodes in slices, within a limit of tokens. */
struct tokenize_pace {
    size_t max_tokens; /* one more ends it; SIZE_MAX: all are wanted */
    /* After each TOKENIZE_SLICE of work, with the bytes of text done since the last time (0 in the
     * middle of a long piece). May take its time, and may tokenize something else; false ends it.
     * NULL: none. */
    bool (*on_slice)(void *arg, size_t n_bytes);
    void *arg;
    bool has_too_many; /* out */
};

#define TOKENIZE_SLICE (32u << 10) /* bytes of text; half a millisecond to 30 ms */

/* ST_TOO_LARGE with has_too_many, when the text has more than max_tokens, what the post-processor
 * adds included; ST_CLOSED when on_slice ended it. */
MUST_USE enum status tokenizer_encode_paced(const struct tokenizer *t, struct str text,
                                            uint32_t flags, struct tokenize_pace *pace,
                                            struct token_list *out, struct error *err);

/* The maximum bytes of text per token: n tokens never hold more than n times as many bytes. 0:
 * unbounded, because tokens absorb white space or a normalizer drops text. */
uint64_t tokenizer_max_bytes_per_token(const struct tokenizer *t);

/* One more than the largest id. A model's vocab may be larger (padding), never smaller. */
uint32_t tokenizer_vocab(const struct tokenizer *t);

/* The bytes an id stands for amid others (`▁the` is " the"); empty for an id beyond the vocabulary.
 * Lives as long as `t`. */
struct str tokenizer_bytes(const struct tokenizer *t, uint32_t id);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
bool tokenizer_is_added(const struct tokenizer *t, uint32_t id); /* special ones among them */

/* The id that is written so in the vocabulary (a byte-level one holds bytes): an added token first.
 * False when there is none. */
bool tokenizer_find(const struct tokenizer *t, struct str text, uint32_t *id);

#define TOKEN_NONE 0xFFFFFFFFu
uint32_t tokenizer_bos(const struct tokenizer *t); /* TOKEN_NONE when the files name none */

#endif
