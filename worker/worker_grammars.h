/* worker/worker_grammars.h - grammar threads over the model's tokenizer. */
#ifndef WORKER_WORKER_GRAMMARS_H
#define WORKER_WORKER_GRAMMARS_H

#include "common/base/status.h"
#include "worker/grammar/grammar_thread.h"
#include "worker/model/config.h"

struct tokenizer;

/* What grammar threads read while they run: it must outlive them. */
struct worker_tokens {
    const struct tokenizer *tokenizer;
    const struct model_config *config;
};

/* Tokens that end an answer are special, whatever the tokenizer's file has them for: no text of a
 * grammar is spelt with them. */
MUST_USE enum status worker_start_grammars(struct grammar_thread **out, struct loop *loop,
                                           const struct worker_tokens *tokens, struct error *err);

#endif
