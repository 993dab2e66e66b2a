/* tests/support/policy_fixture.h - one policy, without routing, before loads and prompts of a
 * test's own. */
#ifndef TESTS_SUPPORT_POLICY_FIXTURE_H
#define TESTS_SUPPORT_POLICY_FIXTURE_H

#include <string.h>

#include "common/base/rng.h"
#include "router/routing/policy.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"

#define FIXTURE_BLOCKS_MAX 300 /* blocks of a test prompt */

/* A policy with a load table whose numbers the test writes itself. */
struct policy_fixture {
    const struct policy_ops *ops;
    struct policy_options options;
    void *policy;
    struct load load;
    struct worker_mask candidates;
    uint32_t matched[WORKERS_MAX];
    uint64_t chain[FIXTURE_BLOCKS_MAX], now_us, session_key;
    uint32_t n_blocks;
    uint64_t prompt_bytes;
};

static inline struct worker_spec spec_of(uint32_t w) {
    return (struct worker_spec){.identity = rng_at(77, w), .generation = 1, .n_blocks = 1000};
}

static inline void policy_fixture_init(struct policy_fixture *s, const char *name,
                                       uint32_t n_workers, const struct policy_options *options) {
    memset(s, 0, sizeof(*s));
    s->ops = policy_find(str_of(name));
    assert_non_null(s->ops);
    if (options)
        s->options = *options;
    else
        policy_options_default(&s->options);
    load_init(&s->load, n_workers);
    s->policy = s->ops->create(&s->options, n_workers);
    assert_non_null(s->policy);
    for (uint32_t w = 0; w < n_workers; w++) {
        struct worker_spec spec = spec_of(w);

        load_worker_up(&s->load, w, &spec);
        if (s->ops->worker_up) s->ops->worker_up(s->policy, w, &s->load.workers[w].spec);
        worker_mask_add(s->candidates.words, w);
    }
}

static inline void policy_fixture_fini(struct policy_fixture *s) {
    s->ops->destroy(s->policy);
    load_fini(&s->load);
}

/* The first n_shared of n blocks are those of every prompt of `family`. */
static inline void prompt(struct policy_fixture *s, uint64_t family, uint32_t n_shared,
                          uint64_t own, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        s->chain[i] = rng_at(i < n_shared ? family : family * 1000003 + own + 1, i);
    s->n_blocks = n;
    s->prompt_bytes = n * 128ull;
}

static inline struct route_request request_of(const struct policy_fixture *s) {
    return (struct route_request){.chain = s->chain,
                                  .n_blocks = s->n_blocks,
                                  .prompt_bytes = s->prompt_bytes,
                                  .session_key = s->session_key,
                                  .now_us = s->now_us};
}

static inline uint32_t pick(struct policy_fixture *s, struct policy_term *terms) {
    struct route_request rq = request_of(s);
    struct policy_view view = {.load = &s->load,
                               .candidates = s->candidates.words,
                               .matched_blocks = s->matched,
                               .prompt_tokens = (double)s->prompt_bytes / 4 + 1,
                               .tokens_per_block = 32};
    uint32_t w = s->ops->pick(s->policy, &rq, &view, terms);

    assert_true(w < s->load.n_workers && worker_mask_has(s->candidates.words, w));
    return w;
}

static inline uint32_t choose(struct policy_fixture *s) {
    return pick(s, NULL);
}

/* The prompt at hand went to w. */
static inline void sent(struct policy_fixture *s, uint32_t w) {
    struct route_request rq = request_of(s);

    if (s->ops->sent) s->ops->sent(s->policy, &rq, w);
}

static inline void set_loads(struct policy_fixture *s, const uint32_t *in_flight) {
    s->load.n_open = 0;
    for (uint32_t w = 0; w < s->load.n_workers; w++)
        s->load.n_open += s->load.workers[w].in_flight = in_flight[w];
}

#define LOADS(s, ...) set_loads(s, (const uint32_t[]){__VA_ARGS__})

/* Bit w: chosen at least once in 200 choices. */
static inline uint64_t choices(struct policy_fixture *s) {
    uint64_t seen = 0;

    for (int i = 0; i < 200; i++)
        seen |= UINT64_C(1) << choose(s);
    return seen;
}

#endif
