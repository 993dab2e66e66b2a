/* tests/support/sched_fixture.h - a scheduler over a KV manager, and requests with made-up tokens.
 * */
#ifndef TESTS_SUPPORT_SCHED_FIXTURE_H
#define TESTS_SUPPORT_SCHED_FIXTURE_H

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "worker/sched/beam_group.h"
#include "worker/sched/scheduler.h"

#define FIXTURE_EOS   50u
#define FIXTURE_VOCAB 100000u

struct sched_fixture {
    struct kv_manager *kv;
    struct scheduler *s;
    struct schedule step;
    struct request_limits limits;
};

struct fixture_options {
    uint32_t n_blocks, block_size; /* usable blocks */
    uint32_t n_host_blocks;
    uint32_t window; /* tokens that every layer sees; 0: all */
    bool dedup;
    double watermark;
    struct scheduler_options scheduler;
};

/* "Plenty of blocks, max_num_seqs 16, budget 8192". */
static inline struct fixture_options fixture_defaults(void) {
    struct fixture_options o = {.n_blocks = 10000, .block_size = 16};

    o.scheduler = scheduler_options_default;
    o.scheduler.max_num_seqs = 16;
    o.scheduler.max_num_batched_tokens = 8192;
    o.scheduler.max_outputs = 16384;
    o.scheduler.max_model_len = 8192;
    o.scheduler.full_sequence_must_fit = false;
    return o;
}

static inline void fixture_open(struct sched_fixture *f, const struct fixture_options *o) {
    static const uint32_t eos[] = {FIXTURE_EOS};
    struct scheduler_options so = o->scheduler;
    struct kv_manager_config kv = {.n_blocks = o->n_blocks + 1,
                                   .block_size = o->block_size,
                                   .max_model_len = so.max_model_len,
                                   .max_step_tokens = so.max_num_batched_tokens,
                                   .watermark = o->watermark,
                                   .n_host_blocks = o->n_host_blocks,
                                   .dedup = o->dedup,
                                   .hash_seed = STR("fixture")};

    if (o->window > 0) {
        kv.n_groups = 1;
        kv.group[0] = (struct kv_group_config){.kind = KV_SLIDING, .window = o->window};
    }
    f->kv = kv_manager_create(&kv);
    so.eos_ids = eos;
    so.n_eos = 1;
    assert_int_equal(scheduler_create(&f->s, &so, f->kv, NULL), ST_OK);
    schedule_init(&f->step, f->s);
    f->limits = (struct request_limits){.vocab = FIXTURE_VOCAB,
                                        .max_model_len = so.max_model_len,
                                        .max_logprobs = REQUEST_LOGPROBS_MAX,
                                        .max_beam_candidates = BEAM_CANDIDATES_MAX,
                                        .max_num_seqs = so.max_num_seqs,
                                        .n_eos = 1,
                                        .kv = f->kv};
}

static inline uint32_t fixture_free_blocks(const struct sched_fixture *f) {
    return block_pool_n_free(kv_manager_pool(f->kv));
}

static inline void fixture_close(struct sched_fixture *f) {
    struct request *r;

    while ((r = scheduler_any(f->s)) != NULL)
        scheduler_end(f->s, r, FINISH_ABORT, 0);
    scheduler_check(f->s);
    assert_int_equal(fixture_free_blocks(f), block_pool_n_usable(kv_manager_pool(f->kv)));
    schedule_fini(&f->step);
    scheduler_destroy(f->s);
    kv_manager_destroy(f->kv);
}

/* A request whose n tokens are all `token`: equal tokens share blocks, others do not. */
static inline struct request *fixture_request(struct sched_fixture *f, uint32_t n, uint32_t token,
                                              const struct request_params *base) {
    struct request_params p = base ? *base : request_params_default;
    uint32_t *prompt = mem_alloc(n * sizeof(*prompt));
    struct error err = {0};
    struct request *r = NULL;

    for (uint32_t i = 0; i < n; i++)
        prompt[i] = token;
    p.prompt = prompt;
    p.n_prompt = n;
    if (request_create(&r, &p, &f->limits, &err) != ST_OK) fail_msg("%s", err.message);
    mem_free(prompt);
    return r;
}

static inline struct request *fixture_add(struct sched_fixture *f, uint32_t n, uint32_t token,
                                          const struct request_params *base) {
    struct request *r = fixture_request(f, n, token, base);

    assert_int_equal(scheduler_add(f->s, r, NULL), ST_OK);
    return r;
}

static inline void fixture_step(struct sched_fixture *f) {
    scheduler_step(f->s, &f->step, 1);
    scheduler_check(f->s);
}

/* Gives `token` to every sampled entry of the step. */
static inline void fixture_take(struct sched_fixture *f, uint32_t token) {
    for (uint32_t i = 0; i < f->step.n_entries; i++)
        (void)scheduler_take(f->s, &f->step.entry[i], token, 2);
    scheduler_check(f->s);
}

#endif
