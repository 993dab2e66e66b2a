/* tests/support/routing_fixture.h - a routing of equal workers, made-up prompts, whole requests. */
#ifndef TESTS_SUPPORT_ROUTING_FIXTURE_H
#define TESTS_SUPPORT_ROUTING_FIXTURE_H

#include "common/base/rng.h"
#include "router/routing/routing.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"

#define SECOND            UINT64_C(1000000)
#define PROMPT_BLOCKS_MAX 64 /* blocks of a test prompt */
#define BLOCK_BYTES       128

/* A fleet of equal workers that read 10,000 tokens a second; one token is four bytes. */
static inline struct routing *fleet(uint32_t n_workers, const char *policy) {
    struct routing_options o;
    struct routing *r = NULL;
    struct error err = {0};

    routing_options_default(&o);
    o.policy = policy_find(str_of(policy));
    o.max_workers = n_workers;
    o.max_index_bytes = 1 << 20;
    o.prefix_block_bytes = BLOCK_BYTES;
    assert_int_equal(routing_create(&r, &o, &err), ST_OK);
    for (uint32_t w = 0; w < n_workers; w++)
        routing_worker_up(r, w,
                          &(struct worker_spec){.identity = 1000 + w,
                                                .generation = 1,
                                                .block_size = 16,
                                                .n_blocks = 4000,
                                                .prefill_tokens_per_s = 10000});
    return r;
}

/* The chain of a prompt: its first n_shared blocks are those of every prompt of `family`. */
struct prompt {
    uint64_t chain[PROMPT_BLOCKS_MAX];
    uint32_t n;
};

static inline struct prompt prompt_of(uint64_t family, uint32_t n_shared, uint64_t own,
                                      uint32_t n) {
    struct prompt p = {.n = n};

    for (uint32_t i = 0; i < n; i++)
        p.chain[i] = rng_at(i < n_shared ? family : family * 1000003 + own + 1, i);
    return p;
}

static inline struct route_request request_of(const struct prompt *p, uint64_t now_us) {
    return (struct route_request){.chain = p->chain,
                                  .n_blocks = p->n,
                                  .prompt_bytes = (uint64_t)p->n * BLOCK_BYTES,
                                  .now_us = now_us};
}

static inline uint32_t send(struct routing *r, const struct prompt *p, struct route_ticket *t,
                            uint64_t now_us) {
    struct route_request rq = request_of(p, now_us);

    assert_int_equal(routing_route(r, &rq, t, NULL), ST_OK);
    return t->load.worker;
}

static inline void finish(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    struct route_end end = {.output_tokens = 10, .now_us = now_us, .feedback = {-1, -1}};

    routing_first_token(r, t, NULL, now_us);
    routing_ended(r, t, &end);
}

static inline void give_up(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    routing_ended(
        r, t,
        &(struct route_end){
            .is_aborted = true, .output_tokens = -1, .now_us = now_us, .feedback = {-1, -1}});
}

#endif
