/* tests/support/tier_prompts.h - rounds of random prompts that an engine keeps and finds again, and
 * the answers that one without a cache computes. Half of a round has a prefix in common.
 *
 * PROMPTS is the number for each pair of place and type of KV (48). */
#ifndef TESTS_SUPPORT_TIER_PROMPTS_H
#define TESTS_SUPPORT_TIER_PROMPTS_H

#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/support.h"

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

/* --- restoring them --------------------------------------------------------------------------- */

struct restored {
    uint64_t n_prompts, n_cancelled, preemptions, found_tokens, could_tokens;
};

static inline uint32_t restored_wanted(void) {
    const char *s = getenv("PROMPTS");

    return s ? (uint32_t)atoi(s) : 3 * ROUND;
}

/* Little room on the device preempts, little in host memory restores in pieces. */
static inline struct setup setup_to_restore(struct round *x) {
    static const uint32_t device[] = {14, 30, 90}, host[] = {8, 60, 300}, budget[] = {24, 64, 512};
    static const enum preemption_mode modes[] = {PREEMPT_RECOMPUTE, PREEMPT_SWAP};

    return (struct setup){.machine = x->machine,
                          .n_blocks = device[draw(x, 3)],
                          .host_blocks = host[draw(x, 3)],
                          .budget = budget[draw(x, 3)],
                          .max_seqs = 1 + draw(x, 8),
                          .preemption = modes[draw(x, 2)]};
}

static inline void count_restored(const struct round *x, uint32_t i, const struct answer *answer,
                                  const char *place, struct restored *t) {
    t->n_prompts++;
    if (answer->finish == FINISH_ABORT) {
        t->n_cancelled++;
        assert_memory_equal(answer->token, x->computed[i].token,
                            answer->n * sizeof(answer->token[0]));
    } else {
        assert_same(&x->computed[i], answer, place, i);
        t->found_tokens += answer->cached_tokens;
        t->could_tokens += (x->n[i] - 1) / BLOCK * BLOCK;
    }
}

/* All at once; some are cancelled at some time. What they had until then is right, too. `source`:
 * the worker that each of them names; NULL: none. */
static inline void restore_all(struct round *x, struct engine_fixture *w,
                               const struct tier_source *source, const char *place,
                               struct restored *t) {
    static struct answer answers[ROUND];
    struct request *r[ROUND];
    uint32_t order = draw(x, ROUND);

    memset(answers, 0, sizeof(answers));
    w->lets_go = true;
    for (uint32_t i = 0; i < ROUND; i++) {
        uint32_t k = (i * 5 + order) % ROUND;
        struct request_params params = params_of(x, k);

        if (source) params.kv_source = *source;
        if (source) params.kv_source.n_tokens = x->n[k];
        r[k] = submit(w, &params, &answers[k]);
        if (draw(x, 4) == 0) loop_turn(w->loop, draw(x, 300));
        if (draw(x, 8) == 0) engine_cancel(w->e, r[draw(x, 2) || i == 0 ? k : (k + 11) % ROUND]);
    }
    fixture_run(w);
    for (uint32_t i = 0; i < ROUND; i++) {
        count_restored(x, i, &answers[i], place, t);
        request_unref(r[i]);
    }
    t->preemptions += stats_of(w).preemptions;
    WAIT_UNTIL(stats_of(w).host_held == 0);
    assert_idle(w);
}

static inline void restored_report(const struct restored *t, const char *place, enum dtype kv) {
    print_message("%-6s %-8s %6llu prompts, %llu cancelled, %llu preemptions, %.0f%% restored\n",
                  place, dtype_name(kv), (unsigned long long)t->n_prompts,
                  (unsigned long long)t->n_cancelled, (unsigned long long)t->preemptions,
                  100.0 * (double)t->found_tokens / (double)t->could_tokens);
    assert_true(2 * t->found_tokens > t->could_tokens);
}

#endif
