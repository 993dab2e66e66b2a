/* worker/worker_grammars.c - the tokens of a model as a vocabulary's source. */
#include "worker/worker_grammars.h"

#include <string.h>

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

/* An added token that is neither a word nor white space, but begins with a bracket or a symbol
 * (U+2000 to U+2FFF): <tool_call>, [ARGS]. */
static bool is_marker(const void *arg, uint32_t id) {
    const struct worker_tokens *t = arg;
    struct str s = tokenizer_bytes(t->tokenizer, id);

    return tokenizer_is_added(t->tokenizer, id) && s.len >= 3 &&
           (s.ptr[0] == '<' || s.ptr[0] == '[' || (uint8_t)s.ptr[0] == 0xE2);
}

/* Ids of no more than `max` tokens; nothing that is put around a text. */
static uint32_t encode(const void *arg, struct str text, uint32_t *ids, uint32_t max) {
    const struct worker_tokens *t = arg;
    struct token_list list = {0};
    uint32_t n = 0;

    if (!str_is_utf8(text)) return 0;
    if (tokenizer_encode(t->tokenizer, text, TOKENIZE_PLAIN, &list, NULL) == ST_OK && list.n <= max)
        n = (uint32_t)list.n;
    if (n > 0) memcpy(ids, list.ids, n * sizeof(*ids));
    token_list_fini(&list);
    return n;
}

enum status worker_start_grammars(struct grammar_thread **out, struct loop *loop,
                                  const struct worker_tokens *tokens, struct error *err) {
    struct vocabulary_source source = {.n_tokens = tokens->config->vocab,
                                       .arg = tokens,
                                       .bytes = bytes_of,
                                       .is_special = is_special,
                                       .is_marker = is_marker,
                                       .encode = encode};

    return grammar_thread_start(out, loop, &source, err);
}
