/* tests/support/engine_fixture.h - a whole engine on the reference backend and a tiny random model,
 * the loop it reports to, and what has come back. */
#ifndef TESTS_SUPPORT_ENGINE_FIXTURE_H
#define TESTS_SUPPORT_ENGINE_FIXTURE_H

#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "kernels/kv_layout.h"
#include "tests/support/cm.h"
#include "tests/support/tiny_model.h"
#include "worker/engine/engine.h"

#define EOS     7u
#define CONTEXT 192u
#ifndef MAX_OUT
#define MAX_OUT 64u
#endif

#ifndef ENGINE_FIXTURE_SHAPE
static const struct tiny_shape shape = {.n_layers = 2,
                                        .d_model = 32,
                                        .n_heads = 2,
                                        .n_kv_heads = 1,
                                        .head_dim = 16,
                                        .d_ff = 48,
                                        .vocab = 131,
                                        .max_context = CONTEXT,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};
#endif /* else a `shape` that the test has before */

static inline enum status load_tiny(void *arg, const struct backend_ops *ops,
                                    struct backend_device *dev, const struct geometry *g,
                                    const struct backend_limits *limits, struct backend_model **out,
                                    struct error *err) {
    struct backend_model *m;
    enum status st = ops->load_begin(dev, &m, g, limits, err);

    (void)arg;
    if (st != ST_OK) return st;
    st = tiny_load(ops, m, &shape, 1, ROLE_COUNT, err);
    if (st == ST_OK) st = ops->load_end(m, err);
    if (st == ST_OK) {
        *out = m;
    } else {
        ops->unload(m);
    }
    return st;
}

static inline enum status digest_tiny(void *arg, uint8_t out[32], struct error *err) {
    (void)arg, (void)err;
    memset(out, 1, 32); /* all have the same weights */
    return ST_OK;
}

/* The reference backend behind a gate: each step needs a permit, so a test knows where the engine
 * stands while it acts. */
static sem_t gate;
static struct backend_ops gated;
static _Atomic bool gate_breaks, gate_spoils; /* set before permits are given */

static inline enum status submit_through_gate(struct backend_model *m, uint32_t slot,
                                              const struct backend_step *step, backend_fence *out,
                                              struct error *err) {
    struct backend_stage stage;
    enum status st;

    while (sem_wait(&gate) != 0) {
    }
    if (gate_breaks) return error_set(err, ST_UNAVAILABLE, "the device is gone");
    st = backend_ref.submit(m, slot, step, out, err); /* has run on return */
    backend_ref.stage(m, slot, &stage);
    if (gate_spoils) stage.out_flags[0] |= OUT_NOT_FINITE;
    return st;
}

static inline void permit_steps(int n) {
    while (n-- > 0)
        sem_post(&gate);
}

static inline void withdraw_permits(void) {
    while (sem_trywait(&gate) == 0) {
    }
}

/* --- a fixture: a loop, an engine, and its results -------------------------------------------- */

struct answer {
    uint32_t token[MAX_OUT], n;
    float logprob[MAX_OUT], top_logprob[MAX_OUT][3];
    int32_t top_token[MAX_OUT][3];
    float prompt_logprob[CONTEXT];
    enum finish_reason finish;
    uint32_t stop_token, cached_tokens, n_preemptions, n_calls;
};

struct engine_fixture {
    struct loop *loop;
    struct engine *e;
    uint32_t n_open;
    bool is_drained, is_failed;
    bool lets_go; /* the test drops its references itself */
    struct error failure;
};

struct machine {
    const struct backend_ops *ops;
    const char *path;                /* instruction path of the cpu backend */
    const struct backend_ops *ranks; /* with ops = &backend_tp: two of these */
    enum dtype kv_dtype;             /* 0: the shape's */
};

/* The same without ranks. */
static inline struct machine machine_of_one(struct machine m) {
    return m.ranks ? (struct machine){m.ranks, m.path, NULL, m.kv_dtype} : m;
}

struct setup {
    struct machine machine; /* zeroed: the reference backend */
    double sim_speed; /* of the simulated backend, that of its first device; 0: it takes no time */
    uint32_t n_threads;
    uint32_t budget, n_blocks, block_size, max_seqs, max_waiting, hash_bits;
    uint32_t max_len;                      /* 0: of the shape */
    uint32_t window;                       /* tokens that every layer sees; 0: all */
    uint32_t host_blocks;                  /* for what is evicted and swapped out */
    const struct engine_tier_source *tier; /* below them; NULL: none */
    uint64_t tier_wait_us;                 /* 0: an hour */
    struct peer_server *peers;             /* gives their blocks; NULL: none */
    bool shares_host_pool;                 /* to processes of this host too */
    const uint8_t (*fleet_key)[32];        /* NULL: they are plain */
    enum preemption_mode preemption;
    enum scheduler_policy policy;
    bool no_caching, is_gated, is_deterministic;
    bool is_priced;          /* what is quicker is asked of tiers, and not restored always */
    enum engine_async async; /* zero: as the backend has it, off for ref and cpu */
    struct log *log;
};

static inline void keep_answer(struct answer *a, const struct request *r,
                               const struct request_progress *n) {
    const struct request_params *p = &r->params;

    a->n_calls++;
    for (uint32_t i = n->first; i < n->first + n->n; i++) {
        a->token[i] = request_output(r)[i];
        if (p->n_logprobs >= 0) a->logprob[i] = r->logprob[i];
        for (int32_t k = 0; k < p->n_logprobs; k++) {
            a->top_token[i][k] = r->top_token[i * (uint32_t)p->n_logprobs + (uint32_t)k];
            a->top_logprob[i][k] = r->top_logprob[i * (uint32_t)p->n_logprobs + (uint32_t)k];
        }
    }
    a->n = n->first + n->n;
    if (n->is_first) a->cached_tokens = r->cached_tokens;
    if (n->is_first && request_is_scored(r))
        memcpy(a->prompt_logprob + 1, r->prompt_logprob + 1, (r->n_prompt - 1) * sizeof(float));
    if (!n->is_finished) return;
    a->finish = r->finish;
    a->stop_token = r->stop_token;
    a->n_preemptions = r->n_preemptions;
}

static inline void on_progress(void *arg, struct request *r,
                               const struct request_progress *progress) {
    struct engine_fixture *w = arg;

    if (r->owner) keep_answer(r->owner, r, progress);
    if (!progress->is_finished) return;
    w->n_open--;
    if (!w->lets_go) request_unref(r);
}

static inline void on_drained(void *arg) {
    ((struct engine_fixture *)arg)->is_drained = true;
}

static inline void on_failed(void *arg, const struct error *err) {
    ((struct engine_fixture *)arg)->failure = *err;
    ((struct engine_fixture *)arg)->is_failed = true;
}

static inline struct engine_options tiny_options(const struct setup *s, float *inv_freq,
                                                 uint8_t *kinds) {
    static const uint32_t eos[] = {EOS};
    struct engine_options o = engine_options_default;

    o.backend = s->is_gated ? &gated : s->machine.ops ? s->machine.ops : &backend_ref;
    o.async = s->async;
    o.is_deterministic = s->is_deterministic;
    o.device.path = s->machine.path;
    o.device.sim_profile = s->sim_speed > 0 ? "default" : "instant";
    o.device.sim_speed = s->sim_speed;
    o.device.n_threads = MAX(s->n_threads, 1u);
    o.device.ranks = s->machine.ranks;
    o.device.tp_size = s->machine.ranks ? 2 : 1;
    o.geometry = tiny_geometry(&shape, inv_freq, kinds);
    if (s->machine.kv_dtype) o.geometry.kv_dtype = s->machine.kv_dtype;
    if (s->window) {
        memset(kinds, 1, shape.n_layers);
        o.geometry.layer_kind = kinds;
        o.geometry.sliding_window = s->window;
        o.kv.n_groups = 1;
        o.kv.group[0] = (struct kv_group_config){.kind = KV_SLIDING, .window = s->window};
    }
    o.load = load_tiny;
    o.block_size = s->block_size ? s->block_size : 16;
    o.n_blocks = s->n_blocks ? s->n_blocks : 400;
    o.max_model_len = s->max_len;
    o.max_logprobs = 3;
    if (s->max_waiting) o.max_waiting = s->max_waiting;
    o.kv.hash_truncate_bits = s->hash_bits;
    o.kv.no_caching = s->no_caching;
    o.kv.hash_seed = STR("test");
    o.scheduler.max_num_seqs = s->max_seqs ? s->max_seqs : 8;
    o.scheduler.max_num_batched_tokens = s->budget ? s->budget : 512;
    o.restores_always = !s->is_priced;
    o.host_kv_bytes = s->host_blocks * kv_layout_block_bytes(&o.geometry, o.block_size);
    o.digest_weights = digest_tiny;
    if (s->tier) o.tiers[o.n_tiers++] = *s->tier;
    o.peers = s->peers;
    o.shares_host_pool = s->shares_host_pool;
    o.fleet_key = s->fleet_key;
    o.tier_wait_us = s->tier_wait_us ? s->tier_wait_us : 3600ull * 1000 * 1000;
    o.scheduler.preemption = s->preemption;
    o.scheduler.policy = s->policy;
    o.scheduler.eos_ids = eos;
    o.scheduler.n_eos = 1;
    return o;
}

static inline void fixture_open(struct engine_fixture *w, const struct setup *s) {
    float inv_freq[128];
    uint8_t kinds[8];
    struct engine_options o = tiny_options(s, inv_freq, kinds);
    struct error err = {0};

    *w = (struct engine_fixture){0};
    gate_breaks = gate_spoils = false;
    withdraw_permits();
    o.log = s->log;
    o.callbacks = (struct engine_callbacks){
        .on_progress = on_progress, .on_drained = on_drained, .on_failed = on_failed, .arg = w};
    assert_int_equal(loop_create(&w->loop, NULL), ST_OK);
    if (engine_create(&w->e, &o, w->loop, &err) != ST_OK) fail_msg("%s", err.message);
}

static inline struct engine_stats stats_of(struct engine_fixture *w) {
    struct engine_stats s;

    engine_stats(w->e, &s);
    return s;
}

/* Turns the loop until everything that was submitted has ended. */
static inline void fixture_run(struct engine_fixture *w) {
    while (w->n_open > 0)
        loop_turn(w->loop, 1000000);
}

static inline void fixture_close(struct engine_fixture *w) {
    engine_destroy(w->e);
    loop_destroy(w->loop);
}

/* After all have ended: every block is free. */
static inline void assert_idle(struct engine_fixture *w) {
    struct engine_stats s = stats_of(w);

    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.queued_tokens, 0);
    assert_int_equal(s.kv_free, s.kv_total);
}

static inline struct request *submit(struct engine_fixture *w, const struct request_params *p,
                                     struct answer *a) {
    struct request *r;
    struct error err = {0};

    if (request_create(&r, p, &engine_info(w->e)->limits, &err) != ST_OK)
        fail_msg("%s", err.message);
    r->owner = a;
    if (engine_submit(w->e, r, &err) != ST_OK) fail_msg("%s", err.message);
    w->n_open++;
    return r;
}

static inline void note_reset(struct engine_reset *reset) {
    reset->reset_running = false; /* the sign that it came */
}

/* The engine receives it before it takes any of n_permits more steps. */
static inline void reset_cache(struct engine_fixture *w, int n_permits) {
    struct engine_reset reset = {.reset_running = true, .on_done = note_reset};

    engine_reset_prefix_cache(w->e, &reset);
    permit_steps(n_permits);
    while (reset.reset_running)
        loop_turn(w->loop, 1000000);
    assert_true(reset.is_ok);
}

static inline void assert_same(const struct answer *a, const struct answer *b, const char *how,
                               uint32_t which) {
    if (a->n != b->n || memcmp(a->token, b->token, sizeof(a->token)) != 0)
        fail_msg("%s: request %u has other tokens", how, which);
    if (memcmp(a->logprob, b->logprob, sizeof(a->logprob)) != 0 ||
        memcmp(a->top_logprob, b->top_logprob, sizeof(a->top_logprob)) != 0 ||
        memcmp(a->top_token, b->top_token, sizeof(a->top_token)) != 0 ||
        memcmp(a->prompt_logprob, b->prompt_logprob, sizeof(a->prompt_logprob)) != 0)
        fail_msg("%s: request %u has other logprobs", how, which);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->stop_token, b->stop_token);
}

/* Once, before the first fixture. */
static inline void gate_init(void) {
    sem_init(&gate, 0, 0);
    gated = backend_ref;
    gated.submit = submit_through_gate;
}

#endif
