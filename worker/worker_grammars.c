/* worker/worker_grammars.c - the tokens of a model as a vocabulary's source. */
#include "worker/worker_grammars.h"

#include "worker/text/tokenizer/tokenizer.h"

static struct str bytes_of(const void *arg, uint32_t id) {
    const struct worker_tokens *t = arg;

    return tokenizer_bytes(t->tokenizer, id);
}

static bool is_special(const void *arg, uint32_t id) {
    const struct worker_tokens *t = arg;

    for (uint32_t i = 0; i < t->config->n_eos; i++)
        if (t->config->eos[i] == id) return true;
    return tokenizer_is_special(t->tokenizer, id);
}

enum status worker_start_grammars(struct grammar_thread **out, struct loop *loop,
                                  const struct worker_tokens *tokens, struct error *err) {
    struct vocabulary_source source = {.n_tokens = tokens->config->vocab,
                                       .arg = tokens,
                                       .bytes = bytes_of,
                                       .is_special = is_special};

    return grammar_thread_start(out, loop, &source, err);
}
