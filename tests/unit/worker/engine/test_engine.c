/* tests/unit/worker/engine/test_engine.c - the whole engine on the reference backend and a tiny
 * random model: the same request has the same answer to the bit, however it is run; and whatever is
 * cancelled, drained or dropped, no block and no reference is left. */
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "common/loop.h"
#include "common/mem.h"
#include "common/rng.h"
#include "tests/support/cm.h"
#include "tests/support/tiny_model.h"
#include "worker/engine/engine.h"

#define EOS     7u
#define CONTEXT 192u
#define MAX_OUT 64u

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

static enum status load_tiny(void *arg, const struct backend_ops *ops, struct backend_device *dev,
                             const struct geometry *g, const struct backend_limits *limits,
                             struct backend_model **out, struct error *err) {
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

/* The reference backend behind a gate: each step needs a permit, so a test knows where the engine
 * stands while it acts. */
static sem_t gate;
static struct backend_ops gated;
static _Atomic bool gate_breaks, gate_spoils; /* set before permits are given */

static enum status submit_through_gate(struct backend_model *m, uint32_t slot,
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

static void permit_steps(int n) {
    while (n-- > 0)
        sem_post(&gate);
}

static void withdraw_permits(void) {
    while (sem_trywait(&gate) == 0) {
    }
}

/* --- a world: a loop, an engine, and what has come back ---------------------------------------- */

struct answer {
    uint32_t token[MAX_OUT], n;
    float logprob[MAX_OUT], top_logprob[MAX_OUT][3];
    int32_t top_token[MAX_OUT][3];
    float prompt_logprob[CONTEXT];
    enum finish_reason finish;
    uint32_t stop_token, cached_tokens, n_preemptions, n_calls;
};

struct world {
    struct loop *loop;
    struct engine *e;
    uint32_t n_open;
    bool is_drained, is_failed;
    bool lets_go; /* the test drops its references itself */
};

struct machine {
    const struct backend_ops *ops;
    const char *path; /* instruction path of the cpu backend */
};

struct setup {
    struct machine machine; /* zeroed: the reference backend */
    uint32_t n_threads;
    uint32_t budget, n_blocks, block_size, max_seqs, max_waiting, hash_bits;
    bool no_caching, is_gated;
    struct log *log;
};

static void keep_answer(struct answer *a, const struct request *r, const struct request_news *n) {
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

static void on_news(void *arg, struct request *r, const struct request_news *news) {
    struct world *w = arg;

    if (r->owner) keep_answer(r->owner, r, news);
    if (!news->is_finished) return;
    w->n_open--;
    if (!w->lets_go) request_unref(r);
}

static void on_drained(void *arg) {
    ((struct world *)arg)->is_drained = true;
}

static void on_failed(void *arg, const struct error *err) {
    (void)err;
    ((struct world *)arg)->is_failed = true;
}

static struct engine_options tiny_options(const struct setup *s, float *inv_freq, uint8_t *kinds) {
    static const uint32_t eos[] = {EOS};
    struct engine_options o = engine_options_default;

    o.backend = s->is_gated ? &gated : s->machine.ops ? s->machine.ops : &backend_ref;
    o.device.path = s->machine.path;
    o.device.n_threads = MAX(s->n_threads, 1u);
    o.geometry = tiny_geometry(&shape, inv_freq, kinds);
    o.load = load_tiny;
    o.block_size = s->block_size ? s->block_size : 16;
    o.n_blocks = s->n_blocks ? s->n_blocks : 400;
    o.max_logprobs = 3;
    if (s->max_waiting) o.max_waiting = s->max_waiting;
    o.kv.hash_truncate_bits = s->hash_bits;
    o.kv.no_caching = s->no_caching;
    o.kv.hash_seed = STR("test");
    o.scheduler.max_num_seqs = s->max_seqs ? s->max_seqs : 8;
    o.scheduler.max_num_batched_tokens = s->budget ? s->budget : 512;
    o.scheduler.eos_ids = eos;
    o.scheduler.n_eos = 1;
    return o;
}

static void world_open(struct world *w, const struct setup *s) {
    float inv_freq[8];
    uint8_t kinds[8];
    struct engine_options o = tiny_options(s, inv_freq, kinds);
    struct error err = {0};

    *w = (struct world){0};
    gate_breaks = gate_spoils = false;
    withdraw_permits();
    o.log = s->log;
    o.callbacks = (struct engine_callbacks){
        .on_news = on_news, .on_drained = on_drained, .on_failed = on_failed, .arg = w};
    assert_int_equal(loop_create(&w->loop, NULL), ST_OK);
    if (engine_create(&w->e, &o, w->loop, &err) != ST_OK) fail_msg("%s", err.message);
}

static struct engine_stats stats_of(struct world *w) {
    struct engine_stats s;

    engine_stats(w->e, &s);
    return s;
}

/* Turns the loop until everything that was submitted has ended. */
static void world_run(struct world *w) {
    while (w->n_open > 0)
        loop_turn(w->loop, 1000000);
}

static void world_close(struct world *w) {
    engine_destroy(w->e);
    loop_destroy(w->loop);
}

/* After all have ended: every block is free. */
static void assert_idle(struct world *w) {
    struct engine_stats s = stats_of(w);

    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.queued_tokens, 0);
    assert_int_equal(s.kv_free, s.kv_total);
}

static struct request *submit(struct world *w, const struct request_params *p, struct answer *a) {
    struct request *r;
    struct error err = {0};

    if (request_create(&r, p, &engine_info(w->e)->limits, &err) != ST_OK)
        fail_msg("%s", err.message);
    r->owner = a;
    if (engine_submit(w->e, r, &err) != ST_OK) fail_msg("%s", err.message);
    w->n_open++;
    return r;
}

static void note_reset(struct engine_reset *reset) {
    reset->reset_running = false; /* the sign that it came */
}

/* The engine hears of it before it takes any of n_permits more steps. */
static void reset_cache(struct world *w, int n_permits) {
    struct engine_reset reset = {.reset_running = true, .on_done = note_reset};

    engine_reset_prefix_cache(w->e, &reset);
    permit_steps(n_permits);
    while (reset.reset_running)
        loop_turn(w->loop, 1000000);
    assert_true(reset.is_ok);
}

/* --- eight requests --------------------------------------------------------------------------- */

#define N_CASES 8

struct cases {
    uint32_t prompt[N_CASES][CONTEXT];
    struct request_params p[N_CASES];
    struct token_bias bias[2];
};

/* Prompts of many lengths, some with a common opening; greedy and drawn; every parameter once. */
static void make_cases(struct cases *c) {
    static const uint32_t length[N_CASES] = {1, 5, 16, 33, 64, 90, 100, 120};
    struct rng rng;

    rng_seed(&rng, 11);
    for (uint32_t i = 0; i < N_CASES; i++) {
        for (uint32_t k = 0; k < length[i]; k++)
            c->prompt[i][k] = k < 40 && i % 2 ? 3 + k % 60 : 8 + (uint32_t)rng_below(&rng, 120);
        c->p[i] = request_params_default;
        c->p[i].prompt = c->prompt[i];
        c->p[i].n_prompt = length[i];
        c->p[i].max_tokens = 20 + i;
        c->p[i].n_logprobs = 3;
        c->p[i].seed = 1000 + i;
        c->p[i].ignore_eos = true;
        c->p[i].temperature = i % 2 ? 0.8f : 0.0f;
    }
    c->p[1].top_k = 20;
    c->p[3].top_p = 0.9f;
    c->p[5].min_p = 0.02f;
    c->p[4].repetition_penalty = 1.3f;
    c->p[5].frequency_penalty = 0.5f;
    c->p[6].presence_penalty = 0.7f;
    c->p[7].prompt_logprobs = 2;
    c->p[3].ignore_eos = false;
    c->p[3].min_tokens = 10;
    c->bias[0] = (struct token_bias){20, 4.0f};
    c->bias[1] = (struct token_bias){21, -100.0f};
    c->p[2].bias = c->bias;
    c->p[2].n_bias = 2;
}

static void assert_same(const struct answer *a, const struct answer *b, const char *how,
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

/* Each alone, in an engine without a cache: what every other way must give. */
static void run_alone_and_cold(const struct cases *c, struct machine machine, struct answer *out) {
    struct world w;

    world_open(&w, &(struct setup){.machine = machine, .no_caching = true});
    for (uint32_t i = 0; i < N_CASES; i++) {
        memset(&out[i], 0, sizeof(out[i]));
        submit(&w, &c->p[i], &out[i]);
        world_run(&w);
        assert_int_equal(out[i].cached_tokens, 0);
        assert_true(out[i].finish == FINISH_LENGTH || out[i].finish == FINISH_STOP);
    }
    world_close(&w);
}

/* Eight at once, cold and then warm. */
static void run_together(const struct cases *c, const struct setup *s, const char *how,
                         const struct answer *expected, bool wants_preemptions) {
    static struct answer got[N_CASES];
    uint32_t n_preemptions = 0, n_cached = 0;
    struct world w;

    world_open(&w, s);
    for (int round = 0; round < 2; round++) {
        memset(got, 0, sizeof(got));
        for (uint32_t i = 0; i < N_CASES; i++)
            submit(&w, &c->p[i], &got[i]);
        world_run(&w);
        for (uint32_t i = 0; i < N_CASES; i++) {
            assert_same(&expected[i], &got[i], how, i);
            n_preemptions += got[i].n_preemptions;
            n_cached += got[i].cached_tokens;
        }
    }
    assert_true(n_cached > 0);
    if (wants_preemptions && n_preemptions == 0) fail_msg("%s: nothing was preempted", how);
    assert_idle(&w);
    world_close(&w);
}

static const struct way {
    const char *how;
    struct setup setup;
    bool wants_preemptions;
} ways[] = {
    {"budget 512, two threads", {.budget = 512, .n_threads = 2}, false},
    {"budget 64", {.budget = 64}, false},
    {"budget 16", {.budget = 16}, false},
    {"few blocks", {.n_blocks = 14}, true},
    {"few small blocks, budget 16", {.budget = 16, .block_size = 2, .n_blocks = 130}, true},
    {"block size 1", {.block_size = 1, .n_blocks = 2000}, false},
    {"budget 9", {.budget = 9}, false},
    {"three at a time", {.max_seqs = 3}, false},
    {"block size 4", {.block_size = 4}, false},
    {"hashes of eight bits", {.block_size = 1, .n_blocks = 1200, .hash_bits = 8}, false},
};

static void run_all_ways(struct machine machine, size_t n_ways) {
    static struct cases c;
    static struct answer expected[N_CASES];

    make_cases(&c);
    run_alone_and_cold(&c, machine, expected);
    for (size_t i = 0; i < n_ways; i++) {
        struct setup s = ways[i].setup;

        s.machine = machine;
        run_together(&c, &s, ways[i].how, expected, ways[i].wants_preemptions);
    }
}

static void case_100_the_same_answer_however_it_is_run(void **state) {
    (void)state;
    run_all_ways((struct machine){0}, ARRAY_LEN(ways));
}

static void case_100_on_each_instruction_path_of_the_cpu(void **state) {
    static const char *const paths[] = {"plain", "avx2", "avx512", "avx512bf16"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct backend_config config = {.path = paths[i], .n_threads = 1};
        struct backend_info info;

        if (backend_cpu.probe(&config, &info, NULL) == ST_OK)
            run_all_ways((struct machine){&backend_cpu, paths[i]}, 6);
    }
}

static void case_99_colliding_hashes_are_never_believed(void **state) {
    static struct answer expected[40], got[40];
    static uint32_t prompt[40][24];
    struct request_params p = request_params_default;
    struct world cold, warm;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 5);
    world_open(&cold, &(struct setup){.no_caching = true});
    world_open(&warm, &(struct setup){.block_size = 2, .hash_bits = 1});
    p.temperature = 0;
    p.max_tokens = 4;
    p.n_logprobs = 0;
    p.n_prompt = 24;
    for (uint32_t i = 0; i < 40; i++) {
        for (uint32_t k = 0; k < 24; k++)
            prompt[i][k] = 8 + (uint32_t)rng_below(&rng, 3);
        p.prompt = prompt[i];
        submit(&cold, &p, &expected[i]);
        submit(&warm, &p, &got[i]);
        world_run(&cold);
        world_run(&warm);
        assert_same(&expected[i], &got[i], "one-bit hashes", i);
    }
    assert_true(stats_of(&warm).prefix_hits > 0);
    world_close(&cold);
    world_close(&warm);
}

static void all_but_one_token_is_cached_with_block_size_one(void **state) {
    static struct answer a[2];
    static uint32_t prompt[8] = {9, 10, 11, 12, 13, 14, 15, 16};
    struct request_params p = request_params_default;
    struct world w;

    (void)state;
    world_open(&w, &(struct setup){.block_size = 1});
    p.prompt = prompt;
    p.n_prompt = 8;
    p.temperature = 0;
    for (int i = 0; i < 2; i++) {
        submit(&w, &p, &a[i]);
        world_run(&w);
    }
    assert_int_equal(a[0].cached_tokens, 0);
    assert_int_equal(a[1].cached_tokens, 7);
    assert_int_equal(stats_of(&w).prompt_tokens, 16);
    assert_int_equal(stats_of(&w).cached_tokens, 7);
    world_close(&w);
}

/* --- life and death --------------------------------------------------------------------------- */

static struct request_params long_params(const uint32_t *prompt, uint32_t n) {
    struct request_params p = request_params_default;

    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = MAX_OUT;
    p.ignore_eos = true;
    return p;
}

static void cancel_ends_once_and_frees(void **state) {
    static struct answer a[3];
    static uint32_t prompt[40];
    struct request *r[3];
    struct request_params p = long_params(prompt, 40);
    struct world w;

    (void)state;
    memset(a, 0, sizeof(a));
    world_open(&w, &(struct setup){.max_seqs = 2, .is_gated = true});
    for (int i = 0; i < 3; i++)
        r[i] = submit(&w, &p, &a[i]);
    engine_cancel(w.e, r[2]); /* still waiting, or not even heard of */
    permit_steps(4);
    while (a[0].n < 4)
        loop_turn(w.loop, 1000000);
    engine_cancel(w.e, r[0]); /* heard after the fifth step at the latest */
    engine_cancel(w.e, r[0]); /* the second does nothing */
    permit_steps(1000);
    world_run(&w);
    assert_int_equal(a[0].finish, FINISH_ABORT);
    assert_true(a[0].n == 4 || a[0].n == 5);
    assert_int_equal(a[1].finish, FINISH_LENGTH);
    assert_int_equal(a[1].n, MAX_OUT);
    assert_int_equal(a[2].finish, FINISH_ABORT);
    assert_int_equal(a[2].n, 0);
    assert_idle(&w);
    assert_int_equal(stats_of(&w).finished[FINISH_ABORT], 2);
    assert_int_equal(stats_of(&w).finished[FINISH_LENGTH], 1);
    world_close(&w);
}

static void cancel_races_with_the_end(void **state) {
    static uint32_t prompt[4];
    struct request_params p = long_params(prompt, 4);
    struct rng rng;
    struct world w;

    (void)state;
    rng_seed(&rng, 3);
    world_open(&w, &(struct setup){0});
    for (int i = 0; i < 300; i++) {
        struct request *r;

        p.max_tokens = 1 + (uint32_t)rng_below(&rng, 3);
        r = submit(&w, &p, NULL);
        for (uint64_t k = rng_below(&rng, 3); k > 0; k--)
            loop_turn(w.loop, 50);
        if (w.n_open > 0) engine_cancel(w.e, r);
        world_run(&w);
    }
    assert_idle(&w);
    world_close(&w);
}

static void completed_by_its_creator_counts_as_stopped(void **state) {
    static struct answer a;
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct request *r;
    struct world w;

    (void)state;
    memset(&a, 0, sizeof(a));
    world_open(&w, &(struct setup){.is_gated = true});
    r = submit(&w, &p, &a);
    engine_complete(w.e, r);
    engine_cancel(w.e, r); /* the first reason holds */
    permit_steps(1000);
    world_run(&w);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_idle(&w);
    assert_int_equal(stats_of(&w).finished[FINISH_STOP], 1);
    assert_int_equal(stats_of(&w).finished[FINISH_ABORT], 0);
    world_close(&w);
}

/* The creator cancels and drops its reference at once, at any moment of a request's life. The end
 * is still told; what is left when the engine goes is freed with it. */
static void a_creator_may_let_go_at_any_time(void **state) {
    struct engine_reset reset = {.reset_running = true, .is_ok = true, .on_done = note_reset};
    static uint32_t prompt[40];
    struct request_params p = long_params(prompt, 40);
    struct rng rng;
    struct world w;

    (void)state;
    rng_seed(&rng, 5);
    world_open(&w, &(struct setup){.max_seqs = 2});
    w.lets_go = true;
    for (int i = 0; i < 200; i++) {
        struct request *r = submit(&w, &p, NULL);

        for (uint64_t k = rng_below(&rng, 3); k > 0; k--)
            loop_turn(w.loop, 50);
        engine_cancel(w.e, r);
        request_unref(r);
    }
    world_run(&w);
    assert_idle(&w);
    for (int i = 0; i < 5; i++) {
        struct request *r = submit(&w, &p, NULL);

        if (i > 0) engine_cancel(w.e, r);
        request_unref(r);
    }
    engine_reset_prefix_cache(w.e, &reset);
    world_close(&w);
    assert_false(reset.reset_running); /* it was told, too */
}

static void a_slow_reader_gets_many_tokens_at_once(void **state) {
    static struct answer a;
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct world w;

    (void)state;
    memset(&a, 0, sizeof(a));
    world_open(&w, &(struct setup){.is_gated = true});
    submit(&w, &p, &a);
    permit_steps(10);
    while (stats_of(&w).steps < 10)
        sched_yield();
    loop_turn(w.loop, 1000000);
    assert_true(a.n >= 9 && a.n_calls <= 2); /* the tenth may be told after the statistics */
    permit_steps(1000);
    world_run(&w);
    assert_int_equal(a.n, MAX_OUT);
    world_close(&w);
}

static void a_lost_device_ends_everything(void **state) {
    static struct answer a[3];
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct request *late;
    struct error err = {0};
    struct world w;

    (void)state;
    memset(a, 0, sizeof(a));
    world_open(&w, &(struct setup){.is_gated = true, .max_seqs = 2});
    for (int i = 0; i < 3; i++)
        submit(&w, &p, &a[i]);
    permit_steps(2);
    while (a[0].n < 2)
        loop_turn(w.loop, 1000000);
    gate_breaks = true;
    permit_steps(1);
    world_run(&w);
    for (int i = 0; i < 3; i++)
        assert_int_equal(a[i].finish, FINISH_ERROR);
    while (!w.is_failed)
        loop_turn(w.loop, 1000000);
    assert_int_equal(request_create(&late, &p, &engine_info(w.e)->limits, NULL), ST_OK);
    assert_int_equal(engine_submit(w.e, late, &err), ST_UNAVAILABLE);
    request_unref(late);
    assert_idle(&w);
    assert_true(stats_of(&w).is_failed);
    world_close(&w);
}

static void numbers_that_are_not_finite_end_one_request(void **state) {
    static struct answer a[2];
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct world w;

    (void)state;
    memset(a, 0, sizeof(a));
    world_open(&w, &(struct setup){.is_gated = true});
    for (int i = 0; i < 2; i++)
        submit(&w, &p, &a[i]);
    while (a[0].n < 3 || a[1].n < 3) { /* the second may have missed the first step */
        permit_steps(1);
        loop_turn(w.loop, 1000000);
    }
    gate_spoils = true;
    permit_steps(1);
    while (w.n_open == 2)
        loop_turn(w.loop, 1000000);
    gate_spoils = false;
    permit_steps(1000);
    world_run(&w);
    assert_int_equal((a[0].finish == FINISH_ERROR) + (a[1].finish == FINISH_ERROR), 1);
    assert_int_equal((a[0].finish == FINISH_LENGTH) + (a[1].finish == FINISH_LENGTH), 1);
    assert_idle(&w);
    world_close(&w);
}

static void the_log_says_what_was_cached(void **state) {
    static struct answer a;
    static uint32_t prompt[8] = {1, 2, 3, 4, 5, 6, 8, 9};
    struct request_params p = long_params(prompt, 8);
    char line[4096];
    FILE *file = tmpfile();
    struct log *log = log_create(&(struct log_config){.fd = fileno(file), .level = LOG_INFO});
    struct world w;
    uint32_t n_cold = 0, n_warm = 0;

    (void)state;
    world_open(&w, &(struct setup){.block_size = 1, .log = log});
    for (int i = 0; i < 3; i++) {
        submit(&w, &p, &a);
        world_run(&w);
    }
    world_close(&w);
    log_destroy(log);
    rewind(file);
    while (fgets(line, sizeof(line), file)) {
        if (!strstr(line, "prefill_batch")) continue;
        if (strstr(line, "new_tokens=8 cached_tokens=0")) n_cold++;
        if (strstr(line, "new_tokens=1 cached_tokens=7")) n_warm++;
    }
    assert_int_equal(n_cold, 1);
    assert_int_equal(n_warm, 2);
    fclose(file);
}

static void drain_finishes_what_is_there(void **state) {
    static struct answer a[4];
    static uint32_t prompt[30];
    struct request_params p = long_params(prompt, 30);
    struct request *late;
    struct error err = {0};
    struct world w;

    (void)state;
    memset(a, 0, sizeof(a));
    world_open(&w, &(struct setup){.max_seqs = 2});
    for (int i = 0; i < 4; i++)
        submit(&w, &p, &a[i]);
    engine_drain(w.e);
    engine_drain(w.e);
    assert_int_equal(request_create(&late, &p, &engine_info(w.e)->limits, NULL), ST_OK);
    assert_int_equal(engine_submit(w.e, late, &err), ST_UNAVAILABLE);
    request_unref(late);
    assert_false(w.is_drained);
    while (!w.is_drained)
        loop_turn(w.loop, 1000000);
    assert_int_equal(w.n_open, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(a[i].n, MAX_OUT);
    assert_true(stats_of(&w).is_draining);
    world_close(&w);
}

static void destroy_drops_what_runs(void **state) {
    static uint32_t prompt[30];
    static struct answer a[6];
    struct request_params p = long_params(prompt, 30);
    struct request *r[6];
    struct world w;

    (void)state;
    for (int turns = 0; turns < 4; turns++) {
        memset(a, 0, sizeof(a));
        world_open(&w, &(struct setup){.max_seqs = 2});
        for (int i = 0; i < 6; i++)
            r[i] = submit(&w, &p, &a[i]);
        for (int i = 0; i < turns; i++)
            loop_turn(w.loop, 1000000);
        world_close(&w);
        for (int i = 0; i < 6; i++) /* ours are still ours, unless their end was told */
            if (a[i].finish == FINISH_NONE) request_unref(r[i]);
    }
}

static void the_waiting_limit_is_kept(void **state) {
    static uint32_t prompt[30];
    struct request_params p = long_params(prompt, 30);
    struct request *r;
    struct error err = {0};
    struct world w;
    uint32_t n = 0;

    (void)state;
    world_open(&w, &(struct setup){.max_seqs = 1, .max_waiting = 3});
    for (;;) {
        assert_int_equal(request_create(&r, &p, &engine_info(w.e)->limits, NULL), ST_OK);
        if (engine_submit(w.e, r, &err) != ST_OK) break;
        n++;
        w.n_open++;
    }
    assert_int_equal(err.status, ST_BUSY);
    request_unref(r);
    assert_true(n == 3 || n == 4); /* one may run already */
    world_run(&w);
    for (int i = 0; i < 10; i++) { /* the count comes back to where it was */
        submit(&w, &p, NULL);
        world_run(&w);
    }
    assert_idle(&w);
    world_close(&w);
}

static void reset_forgets_and_answers_stay_the_same(void **state) {
    static struct answer a[3];
    static uint32_t prompt[50];
    struct request_params p = long_params(prompt, 50);
    struct world w;

    (void)state;
    memset(a, 0, sizeof(a));
    p.n_logprobs = 1;
    world_open(&w, &(struct setup){.is_gated = true});
    submit(&w, &p, &a[0]);
    permit_steps(1000);
    world_run(&w);
    withdraw_permits();
    reset_cache(&w, 0);
    submit(&w, &p, &a[1]);
    permit_steps(8);
    while (a[1].n < 5)
        loop_turn(w.loop, 1000000);
    reset_cache(&w, 1000); /* in the middle: it is preempted and computed anew */
    world_run(&w);
    submit(&w, &p, &a[2]);
    world_run(&w);
    assert_int_equal(a[1].n_preemptions, 1);
    assert_int_equal(a[1].cached_tokens, 0);
    assert_int_equal(a[2].cached_tokens, 48);
    assert_same(&a[0], &a[1], "reset while running", 1);
    assert_same(&a[0], &a[2], "warm", 2);
    world_close(&w);
}

static void case_73_too_little_memory_names_the_longest(void **state) {
    float inv_freq[8];
    uint8_t kinds[8];
    struct engine_options o =
        tiny_options(&(struct setup){.n_blocks = 6}, inv_freq, kinds); /* 5 usable: 80 tokens */
    struct engine *e = NULL;
    struct loop *loop;
    struct error err = {0};

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "80"));
    o.max_model_len = 80;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_OK);
    assert_int_equal(engine_info(e)->n_blocks, 5);
    engine_destroy(e);
    memset(&err, 0, sizeof(err));
    o.n_blocks = 0;
    o.kv_bytes = 1;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_NOMEM);
    o.kv_bytes = 0;
    o.weight_bytes = 1ull << 60;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "weights take"));
    o.max_model_len = CONTEXT + 1;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_INVALID);
    assert_string_equal(err.param, "max-model-len");
    loop_destroy(loop);
}

static void a_stop_id_and_min_tokens_are_obeyed(void **state) {
    static struct answer a[2];
    static uint32_t prompt[20] = {9, 9, 9};
    struct request_params p = long_params(prompt, 20);
    uint32_t first;
    struct world w;

    (void)state;
    memset(a, 0, sizeof(a));
    world_open(&w, &(struct setup){0});
    p.temperature = 0;
    submit(&w, &p, &a[0]);
    world_run(&w);
    first = a[0].token[0];
    p.stop_ids = &first;
    p.n_stop_ids = 1;
    memset(&a[0], 0, sizeof(a[0]));
    submit(&w, &p, &a[0]);
    p.min_tokens = 6;
    submit(&w, &p, &a[1]);
    world_run(&w);
    assert_int_equal(a[0].n, 1);
    assert_int_equal(a[0].finish, FINISH_STOP);
    assert_int_equal(a[0].stop_token, first);
    assert_true(a[1].n >= 6);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_not_equal(a[1].token[i], first); /* banned */
    world_close(&w);
}

int main(void) {
    sem_init(&gate, 0, 0);
    gated = backend_ref;
    gated.submit = submit_through_gate;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_100_the_same_answer_however_it_is_run),
        cmocka_unit_test(case_100_on_each_instruction_path_of_the_cpu),
        cmocka_unit_test(case_99_colliding_hashes_are_never_believed),
        cmocka_unit_test(all_but_one_token_is_cached_with_block_size_one),
        cmocka_unit_test(cancel_ends_once_and_frees),
        cmocka_unit_test(cancel_races_with_the_end),
        cmocka_unit_test(completed_by_its_creator_counts_as_stopped),
        cmocka_unit_test(a_creator_may_let_go_at_any_time),
        cmocka_unit_test(a_slow_reader_gets_many_tokens_at_once),
        cmocka_unit_test(a_lost_device_ends_everything),
        cmocka_unit_test(numbers_that_are_not_finite_end_one_request),
        cmocka_unit_test(the_log_says_what_was_cached),
        cmocka_unit_test(drain_finishes_what_is_there),
        cmocka_unit_test(destroy_drops_what_runs),
        cmocka_unit_test(the_waiting_limit_is_kept),
        cmocka_unit_test(reset_forgets_and_answers_stay_the_same),
        cmocka_unit_test(case_73_too_little_memory_names_the_longest),
        cmocka_unit_test(a_stop_id_and_min_tokens_are_obeyed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
