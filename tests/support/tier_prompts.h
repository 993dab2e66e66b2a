/* tests/support/tier_prompts.h - rounds of random prompts that an engine keeps and finds again, and
 * the answers that one without a cache computes. Half of a round has a prefix in common. */
#ifndef TESTS_SUPPORT_TIER_PROMPTS_H
#define TESTS_SUPPORT_TIER_PROMPTS_H

#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"

#define BLOCK   16u
#define ROUND   16u /* prompts */
#define COMMON  64u /* tokens with which half of a round's prompts begin */
#define LONGEST 170u

struct round {
    struct machine machine;
    uint32_t token[ROUND][CONTEXT], n[ROUND], n_answer[ROUND];
    uint32_t n_blocks; /* that a prompt can find, each counted once */
    struct answer computed[ROUND];
    struct rng rng;
};

static inline uint32_t draw(struct round *x, uint32_t n) {
    return (uint32_t)rng_below(&x->rng, n);
}

static inline void draw_prompts(struct round *x, const struct machine *m, uint64_t seed) {
    memset(x, 0, sizeof(*x));
    x->machine = *m;
    rng_seed(&x->rng, seed);
    x->n_blocks = COMMON / BLOCK;
    for (uint32_t i = 0; i < ROUND; i++) {
        bool is_common = i % 2 == 0;

        x->n[i] = (is_common ? COMMON : BLOCK) + 1 + draw(x, LONGEST - COMMON);
        x->n_answer[i] = 1 + draw(x, CONTEXT - LONGEST);
        for (uint32_t t = 0; t < x->n[i]; t++)
            x->token[i][t] = is_common && t < COMMON ? (uint32_t)(seed + t) % 131 : draw(x, 131);
        x->n_blocks += (x->n[i] - 1) / BLOCK - (is_common ? COMMON / BLOCK : 0);
    }
}

static inline struct request_params params_of(const struct round *x, uint32_t i) {
    struct request_params params = request_params_default;

    params.prompt = x->token[i];
    params.n_prompt = x->n[i];
    params.max_tokens = x->n_answer[i];
    params.n_logprobs = 2;
    params.temperature = i % 3 ? 0.0f : 0.8f;
    params.seed = i;
    return params;
}

static inline void run_each(struct engine_fixture *w, const struct round *x) {
    for (uint32_t i = 0; i < ROUND; i++) {
        struct request_params params = params_of(x, i);
        struct answer answer = {.n = 0};

        submit(w, &params, &answer);
        fixture_run(w);
        assert_same(&x->computed[i], &answer, "written", i);
    }
}

static inline void compute(struct round *x) {
    struct setup s = {.machine = machine_of_one(x->machine), .no_caching = true};
    struct engine_fixture w;

    fixture_open(&w, &s);
    for (uint32_t i = 0; i < ROUND; i++) {
        struct request_params params = params_of(x, i);

        submit(&w, &params, &x->computed[i]);
    }
    fixture_run(&w);
    fixture_close(&w);
}

#endif
