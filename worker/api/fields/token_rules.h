/* worker/api/fields/token_rules.h - the fields that restrict tokens: stop_token_ids, logit_bias,
 * allowed_token_ids and bad_words.
 *
 * A bad word is a run of tokens that must not be generated: its last token is banned wherever the
 * answer so far ends with the others. A word is written in two ways, at the start of a text and
 * after a space, and both are banned where the tokenizer makes two different first tokens of them;
 * so other engines read the field too. Thread: worker loop. */
#ifndef WORKER_API_FIELDS_TOKEN_RULES_H
#define WORKER_API_FIELDS_TOKEN_RULES_H

#include "common/base/status.h"

struct call_params;
struct json;
struct tokenizer;

#define BAD_WORDS_MAX      64  /* in a request */
#define BAD_WORD_BYTES_MAX 256 /* one of them */
#define ALLOWED_IDS_MAX    (1u << 20)

/* Fills in the four lists of `p`; what it allocates is freed by call_params_fini, on failure too.
 * ST_INVALID names the field. */
MUST_USE enum status token_rules_parse(struct call_params *p, const struct json *o, uint32_t vocab,
                                       const struct tokenizer *tokenizer, struct error *err);

#endif
