/* tests/support/grammar_fixture.c - see grammar_fixture.h. */
#include "tests/support/grammar_fixture.h"

#include <stdio.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"

struct tokens {
    struct str *text;
    uint32_t n;
};

static struct str bytes_of(const void *arg, uint32_t id) {
    const struct tokens *t = arg;

    return t->text[id];
}

static bool is_special(const void *arg, uint32_t id) {
    const struct tokens *t = arg;

    return id + FIXTURE_SPECIALS >= t->n;
}

struct vocabulary *fixture_vocabulary(struct rng *rng, uint32_t n_more, const char *alphabet) {
    static const char *const specials[FIXTURE_SPECIALS] = {"<|end|>", "<|call|>", "<|x|>"};
    struct tokens t = {.n = 256 + n_more + FIXTURE_SPECIALS};
    struct vocabulary_source source = {
        .n_tokens = t.n, .arg = &t, .bytes = bytes_of, .is_special = is_special};
    struct vocabulary *v;
    struct arena arena;

    arena_init(&arena, 0);
    t.text = mem_calloc(t.n, sizeof(*t.text));
    for (uint32_t id = 0; id < t.n; id++) {
        size_t len = id < 256 ? 1 : 1 + rng_below(rng, id % 16 == 0 ? 40 : 5);
        char *text = arena_alloc(&arena, len);

        for (size_t i = 0; i < len; i++)
            text[i] = id < 256 ? (char)id : alphabet[rng_below(rng, strlen(alphabet))];
        t.text[id] = (struct str){text, len};
        if (is_special(&t, id)) t.text[id] = str_of(specials[id + FIXTURE_SPECIALS - t.n]);
    }
    v = vocabulary_create(&source);
    vocabulary_check(v);
    mem_free(t.text);
    arena_fini(&arena);
    return v;
}

static uint32_t encode_longest(const void *arg, struct str text, uint32_t *ids, uint32_t max) {
    const struct vocabulary *v = arg;
    uint32_t n = 0;

    while (text.len > 0 && n < max) {
        struct str longest = STR_NULL;

        for (uint32_t id = 0; id < v->n_tokens; id++) {
            struct str s = vocabulary_bytes(v, id);

            if (s.len <= longest.len || !str_starts(text, s)) continue;
            longest = s;
            ids[n] = id;
        }
        text = (struct str){text.ptr + longest.len, text.len - longest.len};
        n++;
    }
    return n;
}

void fixture_vocabulary_encodes(struct vocabulary *v) {
    v->arg = v;
    v->encode = encode_longest;
}

struct grammar *fixture_grammar(enum grammar_kind kind, const char *text, bool is_closed,
                                const struct vocabulary *v) {
    struct grammar_spec spec = {.kind = kind, .text = str_of(text), .is_closed = is_closed};
    struct grammar *g = NULL;
    struct error err = {0};

    if (grammar_compile(&g, &spec, v, &err) != ST_OK) fail_msg("%s: %s", text, err.message);
    return g;
}

const char *fixture_refusal(enum grammar_kind kind, const char *text, const struct vocabulary *v) {
    struct grammar_spec spec = {.kind = kind, .text = str_of(text)};
    struct grammar *g = NULL;
    static struct error err;

    error_init(&err);
    if (grammar_compile(&g, &spec, v, &err) == ST_OK) {
        grammar_unref(g);
        fail_msg("accepted: %.200s", text);
    }
    return err.message;
}

void fixture_mask(struct grammar_matcher *m, const struct vocabulary *v, uint32_t *mask) {
    memset(mask, 0, v->n_words * sizeof(*mask));
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        struct str bytes = vocabulary_bytes(v, id);

        if (bytes.len > 0 && grammar_allows(m, bytes)) mask[id / 32] |= 1u << (id % 32);
    }
}
