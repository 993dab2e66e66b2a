/* tests/fuzz/fuzz_grammar.c - schemas, regular expressions, choices, grammars and tags of any text.
 *
 * The first byte chooses the kind, the second the options, and the rest is the spec; what follows a
 * NUL chooses the tokens of an answer. Whatever compiles must follow it: each token of the mask,
 * and no other, with all invariants kept. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"

#define STEPS 12u

static const char *const words[] = {"ab", "a\"",      "{\"", "\":", "true", "\\n",
                                    "  ", "\xE2\x82", "12",  "],",  "<f>",  "<|call|>"};
#define N_TOKENS (256u + (uint32_t)ARRAY_LEN(words))

static struct str bytes_of(const void *arg, uint32_t id) {
    static char bytes[256];

    (void)arg;
    if (id >= 256) return str_of(words[id - 256]);
    bytes[id] = (char)id;
    return (struct str){bytes + id, 1};
}

static bool is_special(const void *arg, uint32_t id) {
    (void)arg;
    return id == N_TOKENS - 1;
}

static bool is_marker(const void *arg, uint32_t id) {
    (void)arg;
    return id == N_TOKENS - 2;
}

static void check_mask(struct grammar_matcher *m, const struct vocabulary *v,
                       const uint32_t *kept) {
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        struct grammar_matcher fork;
        enum status st;

        grammar_matcher_fork(&fork, m);
        st = grammar_take(&fork, id);
        assert(st == ST_TOO_LARGE || (kept[id / 32] >> (id % 32) & 1) == (st == ST_OK));
        grammar_matcher_fini(&fork);
    }
}

static void follow(struct grammar *g, const struct vocabulary *v, const uint8_t *choice, size_t n) {
    struct grammar_matcher m;
    uint32_t kept[CEIL_DIV(N_TOKENS, 32)];

    grammar_matcher_init(&m, g);
    for (uint32_t step = 0; step < STEPS && step < n; step++) {
        const uint32_t *mask;
        uint32_t id, tries = 0;
        bool is_new;

        if (grammar_mask(&m, &mask, &is_new) != ST_OK) break; /* too much, which is an answer */
        memcpy(kept, mask, sizeof(kept));
        if (step % 4 == 3) check_mask(&m, v, kept);
        for (id = choice[step]; tries < N_TOKENS; id = (id + 1) % N_TOKENS, tries++)
            if (kept[id / 32] >> (id % 32) & 1) break;
        if (tries == N_TOKENS) {
            assert(grammar_is_accepting(&m) && !grammar_continues(&m));
            break;
        }
        if (choice[step] % 16 == 0) grammar_collect(g);
        if (grammar_take(&m, id) != ST_OK) break;
        if (choice[step] % 16 == 1) grammar_take_back(&m, 1);
    }
    grammar_check(g);
    grammar_matcher_fini(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct vocabulary_source source = {
        .n_tokens = N_TOKENS, .bytes = bytes_of, .is_special = is_special, .is_marker = is_marker};
    static struct vocabulary *v;
    struct grammar_spec spec = {0};
    struct grammar *g;
    struct error err;
    const uint8_t *end;

    if (!v) v = vocabulary_create(&source);
    if (n < 3) return 0;
    spec.kind = (enum grammar_kind)(data[0] % (GRAMMAR_TAG + 1));
    spec.is_closed = data[1] & 1;
    spec.spaces = data[1] & 2 ? GRAMMAR_SPACES_COMPACT : GRAMMAR_SPACES_FREE;
    end = memchr(data + 2, '\0', n - 2);
    spec.text.ptr = (const char *)data + 2;
    spec.text.len = end ? (size_t)(end - data) - 2 : n - 2;
    error_init(&err);
    if (grammar_compile(&g, &spec, v, &err) != ST_OK) {
        assert(err.message[0] != '\0');
        return 0;
    }
    if (end) follow(g, v, end + 1, n - (size_t)(end + 1 - data));
    grammar_unref(g);
    return 0;
}
