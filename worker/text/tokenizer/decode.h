/* worker/text/tokenizer/decode.h - the `decoder` of tokenizer.json, worked into the tokens.
 *
 * Most of what a decoder does it does to each token alone, so that it is done once, at load: what
 * an id stands for is then plain bytes. What is left looks across tokens: runs of byte tokens
 * (<0xE2><0x82> <0xAC>), and what is stripped from the very beginning; detokenize.h does that. */
#ifndef WORKER_TEXT_TOKENIZER_DECODE_H
#define WORKER_TEXT_TOKENIZER_DECODE_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct json;

#define DECODE_MAX_OPS     8
#define DECODE_MAX_CONTENT 32

struct decode_op {
    enum { DECODE_REPLACE, DECODE_STRIP, DECODE_BYTES } kind;
    char from[DECODE_MAX_CONTENT], to[DECODE_MAX_CONTENT]; /* Strip: from */
    uint32_t start, stop;
};

struct decoder {
    struct decode_op ops[DECODE_MAX_OPS]; /* per token */
    uint32_t n;
    bool is_fused;                  /* while loading: later steps see one text */
    char strip[DECODE_MAX_CONTENT]; /* up to n_strip times at the beginning of the text */
    uint32_t n_strip;
    char blank[DECODE_MAX_CONTENT]; /* dropped from the first token; empty: none is */
};

/* Reads it into a zeroed one. ST_UNSUPPORTED names what is unsupported. */
MUST_USE enum status decoder_load(struct decoder *d, const struct json *v, bool is_byte_level,
                                  struct error *err);

/* What a key may become: steps that lengthen one another's work do so by powers. */
#define DECODE_MAX_BYTES (1u << 20)

/* Appends what the token spelled `key` stands for; or sets *byte (0 to 255) when it is a byte
 * token, -1 otherwise. ST_TOO_LARGE over DECODE_MAX_BYTES. */
MUST_USE enum status decoder_bake(const struct decoder *d, struct str key, struct buf *out,
                                  int *byte);

/* The same for the first token of a text, where `blank` is dropped. */
void decoder_bake_first(const struct decoder *d, struct str key, struct buf *out);

#endif
