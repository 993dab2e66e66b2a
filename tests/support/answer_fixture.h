/* tests/support/answer_fixture.h - a random answer that grows in random pieces. */
#ifndef TESTS_SUPPORT_ANSWER_FIXTURE_H
#define TESTS_SUPPORT_ANSWER_FIXTURE_H

#include <stdio.h>

#include "common/base/rng.h"
#include "worker/output/answer.h"

/* Adds 0 to 3 characters of `text` at a time, and calls `look` now and then. */
struct answer_growth {
    struct answer *answer;
    struct rng *rng;
    void (*look)(void *arg);
    void *arg;
};

static inline void grow_text(const struct answer_growth *g, enum part_kind kind, const char *text) {
    for (size_t i = 0, n = strlen(text), k; i < n; i += k) {
        struct str piece = {text + i, k = 1 + rng_below(g->rng, MIN(3, n - i))};

        if (kind == PART_CALL) {
            answer_add_arguments(g->answer, piece);
        } else {
            answer_add(g->answer, kind, piece);
        }
        if (rng_below(g->rng, 2)) g->look(g->arg);
    }
}

/* Up to 5 parts; the last of them may be a call that is cut. */
static inline void grow_answer(const struct answer_growth *g) {
    static const char *const texts[] = {"", "\n\n", "On it.", "\n \"quoted\"\n", "x"};
    static const char *const arguments[] = {"{}", "{\"x\": 1}", "{\"s\": \"a\\\"}{\"}"};
    uint64_t n = rng_below(g->rng, 6);
    char id[16];

    for (uint64_t i = 0; i < n; i++) {
        enum part_kind kind = rng_below(g->rng, 3);
        bool is_cut = i + 1 == n && rng_below(g->rng, 3) == 0;

        if (kind != PART_CALL) {
            grow_text(g, kind, texts[rng_below(g->rng, ARRAY_LEN(texts))]);
            continue;
        }
        snprintf(id, sizeof(id), "call_%u", (unsigned)i);
        answer_begin_call(g->answer, STR("find"), str_of(id));
        grow_text(g, kind, is_cut ? "{\"x\": " : arguments[rng_below(g->rng, 3)]);
        answer_end_call(g->answer, is_cut);
    }
    answer_end(g->answer);
}

#endif
