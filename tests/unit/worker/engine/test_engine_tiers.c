/* tests/unit/worker/engine/test_engine_tiers.c - what one engine wrote below host memory, another
 * restores: the same answers as computed, whatever comes up, or does not. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/late_backend.h"
#include "tests/support/memory_tier.h"
#include "tests/support/support.h"

#define N_PROMPTS 6
#define BLOCK     16u
#define COMMON    48u /* tokens that all prompts begin with */
#define N_ANSWER  8u

static const struct machine machines[] = {
    {.ops = &backend_ref, .kv_dtype = DTYPE_F32},   {.ops = &backend_ref, .kv_dtype = DTYPE_BF16},
    {.ops = &backend_cpu, .kv_dtype = DTYPE_BF16},  {.ops = &backend_cpu, .kv_dtype = DTYPE_F8E4M3},
    {.ops = &backend_late, .kv_dtype = DTYPE_BF16},
};

struct prompts {
    uint32_t token[N_PROMPTS][CONTEXT], n[N_PROMPTS];
    uint32_t n_blocks; /* different ones that a prompt can find */
    struct answer answer[N_PROMPTS];
};

static void draw_prompts(struct prompts *p, uint64_t seed) {
    struct rng rng;

    memset(p, 0, sizeof(*p));
    rng_seed(&rng, seed);
    p->n_blocks = COMMON / BLOCK;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        p->n[i] = COMMON + 2 * BLOCK + (uint32_t)rng_below(&rng, 90);
        p->n_blocks += (p->n[i] - 1) / BLOCK - COMMON / BLOCK;
        for (uint32_t t = 0; t < p->n[i]; t++)
            p->token[i][t] = t < COMMON ? t % 100 : (uint32_t)rng_below(&rng, 130);
    }
}

static struct request_params params_of(const struct prompts *p, uint32_t i) {
    struct request_params params = request_params_default;

    params.prompt = p->token[i];
    params.n_prompt = p->n[i];
    params.max_tokens = N_ANSWER;
    params.ignore_eos = true;
    params.n_logprobs = 2;
    params.seed = i;
    return params;
}

/* Device blocks for little more than one sequence, host memory for most of all. */
static struct setup setup_of(const struct machine *m, const struct engine_tier_source *tier) {
    late_plan_set(&(struct late_plan){.seed = support_seed()});
    return (struct setup){.machine = *m,
                          .n_blocks = 30,
                          .host_blocks = 80,
                          .budget = 64,
                          .max_seqs = 8,
                          .tier = tier};
}

static void run_all(struct engine_fixture *w, const struct prompts *p, struct answer *answers) {
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct request_params params = params_of(p, i);

        submit(w, &params, &answers[i]);
    }
    fixture_run(w);
}

/* The same, each on an idle engine. */
static void run_each(struct engine_fixture *w, const struct prompts *p, struct answer *answers) {
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct request_params params = params_of(p, i);

        submit(w, &params, &answers[i]);
        fixture_run(w);
    }
}

static void compute_answers(const struct machine *m, struct prompts *p) {
    struct setup s = setup_of(m, NULL);
    struct engine_fixture w;

    fixture_open(&w, &s);
    run_all(&w, p, p->answer);
    fixture_close(&w);
}

static void assert_answers(const struct prompts *p, const struct answer *answers, const char *how) {
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_same(&p->answer[i], &answers[i], how, i);
}

/* No block of the device or of host memory is anybody's: late jobs have come back. */
static void assert_at_rest(struct engine_fixture *w) {
    WAIT_UNTIL(stats_of(w).host_held == 0);
    assert_idle(w);
}

/* Each prompt twice: met once, nothing would be written. */
static void write_all(const struct machine *m, const struct prompts *p,
                      struct memory_store *store) {
    struct engine_tier_source tier = memory_store_source(store);
    struct setup s = setup_of(m, &tier);
    struct engine_fixture w;

    fixture_open(&w, &s);
    for (int round = 0; round < 2; round++) {
        struct answer answers[N_PROMPTS] = {{.n = 0}};

        run_each(&w, p, answers);
        assert_answers(p, answers, "while writing");
    }
    WAIT_UNTIL(memory_store_n_units(store) >= p->n_blocks);
    assert_at_rest(&w);
    fixture_close(&w);
    memory_store_check(store);
}

static void restored_answers_are_those_computed(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(machines); m++) {
        struct memory_store *store = memory_store_create();
        struct engine_tier_source tier = memory_store_source(store);
        struct setup s = setup_of(&machines[m], &tier);
        struct answer answers[N_PROMPTS] = {{.n = 0}};
        struct engine_fixture w;
        static struct prompts p;
        uint64_t n_cached = 0, n_could = 0;

        draw_prompts(&p, support_seed() + m);
        compute_answers(&machines[m], &p);
        write_all(&machines[m], &p, store);
        fixture_open(&w, &s);
        run_each(&w, &p, answers);
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            n_cached += answers[i].cached_tokens;
            n_could += (p.n[i] - 1) / BLOCK * BLOCK;
        }
        assert_answers(&p, answers, "restored");
        assert_int_equal(n_cached, n_could);
        assert_int_equal(stats_of(&w).tiers[0].restored_tokens, p.n_blocks * BLOCK);
        assert_at_rest(&w);
        fixture_close(&w);
        memory_store_destroy(store);
    }
}

static void every_fault_gives_the_answer_computed(void **state) {
    static const uint32_t percents[] = {100, 20};
    static struct prompts p;

    (void)state;
    for (size_t m = 1; m < ARRAY_LEN(machines); m += 3) { /* ref, and late */
        struct memory_store *store = memory_store_create();
        struct engine_tier_source tier = memory_store_source(store);

        draw_prompts(&p, support_seed() + 100 + m);
        compute_answers(&machines[m], &p);
        write_all(&machines[m], &p, store);
        for (int k = 0; k < 2 * FAULT_COUNT; k++) {
            struct memory_plan plan = {.fault = (enum memory_fault)(k / 2),
                                       .percent = percents[k % 2],
                                       .seed = support_seed() + (uint64_t)k};
            struct setup s = setup_of(&machines[m], &tier);
            struct answer answers[N_PROMPTS] = {{.n = 0}};
            struct engine_fixture w;

            s.tier_wait_us = plan.fault == FAULT_NEVER ? 2000 : 0;
            memory_store_plan(store, &plan);
            fixture_open(&w, &s);
            run_all(&w, &p, answers);
            assert_answers(&p, answers, "with a fault");
            assert_true(stats_of(&w).tiers[0].n_awaited > 0);
            if (plan.fault != FAULT_NEVER) assert_at_rest(&w);
            fixture_close(&w);
        }
        memory_store_destroy(store);
    }
}

/* --- one restore ------------------------------------------------------------------------------ */

struct waiting_fixture {
    struct memory_store *store;
    struct engine_tier_source tier;
    struct engine_fixture w;
    struct prompts p;
};

/* An engine whose loads do not come until release(). */
static void waiting_open(struct waiting_fixture *f, uint64_t wait_us) {
    struct setup s;

    f->store = memory_store_create();
    f->tier = memory_store_source(f->store);
    draw_prompts(&f->p, support_seed() + 200);
    compute_answers(&machines[1], &f->p);
    write_all(&machines[1], &f->p, f->store);
    memory_store_plan(f->store, &(struct memory_plan){.fault = FAULT_NEVER});
    s = setup_of(&machines[1], &f->tier);
    s.tier_wait_us = wait_us;
    fixture_open(&f->w, &s);
}

static void release(struct waiting_fixture *f) {
    memory_store_plan(f->store, &(struct memory_plan){.fault = FAULT_NONE});
}

static void waiting_close(struct waiting_fixture *f) {
    fixture_close(&f->w);
    memory_store_destroy(f->store);
}

static void await_awaited(struct waiting_fixture *f, uint64_t n) {
    WAIT_UNTIL(stats_of(&f->w).tiers[0].n_awaited >= n);
}

static void two_requests_for_one_content_share_a_restore(void **state) {
    static struct waiting_fixture f;
    struct answer answers[2] = {{.n = 0}};
    struct request_params params;
    uint32_t n_loads;

    (void)state;
    waiting_open(&f, 0);
    params = params_of(&f.p, 0);
    submit(&f.w, &params, &answers[0]);
    await_awaited(&f, 1);
    n_loads = memory_store_n_loads(f.store);
    submit(&f.w, &params, &answers[1]);
    await_awaited(&f, 2);
    assert_int_equal(memory_store_n_loads(f.store), n_loads);
    assert_int_equal(stats_of(&f.w).running, 0);
    assert_int_equal(stats_of(&f.w).kv_free, stats_of(&f.w).kv_total);
    release(&f);
    fixture_run(&f.w);
    for (int i = 0; i < 2; i++) {
        assert_same(&f.p.answer[0], &answers[i], "shared", 0);
        assert_true(answers[i].cached_tokens > 0);
    }
    assert_at_rest(&f.w);
    waiting_close(&f);
}

static void others_run_while_one_waits(void **state) {
    static struct waiting_fixture f;
    struct answer answers[2] = {{.n = 0}};
    struct request_params params, other;
    uint32_t unknown[20] = {120, 121};

    (void)state;
    waiting_open(&f, 0);
    params = params_of(&f.p, 0);
    submit(&f.w, &params, &answers[0]);
    await_awaited(&f, 1);
    other = params;
    other.prompt = unknown;
    other.n_prompt = 20;
    submit(&f.w, &other, &answers[1]);
    while (f.w.n_open > 1)
        loop_turn(f.w.loop, 1000000);
    assert_int_equal(answers[1].n, N_ANSWER);
    assert_int_equal(answers[0].n, 0);
    release(&f);
    fixture_run(&f.w);
    assert_same(&f.p.answer[0], &answers[0], "waited", 0);
    waiting_close(&f);
}

static void a_request_that_ends_leaves_its_restore_behind(void **state) {
    static struct waiting_fixture f;
    struct answer answer = {.n = 0};
    struct request_params params;
    struct request *r;

    (void)state;
    waiting_open(&f, 0);
    params = params_of(&f.p, 0);
    r = submit(&f.w, &params, &answer);
    await_awaited(&f, 1);
    engine_cancel(f.w.e, r);
    fixture_run(&f.w);
    assert_int_equal(answer.finish, FINISH_ABORT);
    assert_true(stats_of(&f.w).host_held > 0);
    release(&f);
    assert_at_rest(&f.w);
    params = params_of(&f.p, 0); /* what came late was kept */
    submit(&f.w, &params, &answer);
    fixture_run(&f.w);
    assert_same(&f.p.answer[0], &answer, "after a cancelled one", 0);
    assert_true(answer.cached_tokens > 0);
    waiting_close(&f);
}

static void at_the_deadline_it_is_computed(void **state) {
    static struct waiting_fixture f;
    struct answer answer = {.n = 0};
    struct request_params params;

    (void)state;
    waiting_open(&f, 1000);
    params = params_of(&f.p, 0);
    submit(&f.w, &params, &answer);
    fixture_run(&f.w);
    assert_same(&f.p.answer[0], &answer, "late", 0);
    assert_int_equal(answer.cached_tokens, 0);
    assert_int_equal(stats_of(&f.w).tiers[0].n_late, 1);
    waiting_close(&f); /* jobs never came back: destroy ends them */
}

/* A tier that hangs delays one request, not each. */
static void while_a_restore_is_late_others_are_computed(void **state) {
    static struct waiting_fixture f;
    struct answer answers[N_PROMPTS] = {{.n = 0}};

    (void)state;
    waiting_open(&f, 1000);
    run_each(&f.w, &f.p, answers);
    assert_answers(&f.p, answers, "behind a late one");
    assert_int_equal(stats_of(&f.w).tiers[0].n_late, 1);
    assert_int_equal(stats_of(&f.w).tiers[0].n_awaited, 1);
    assert_true(stats_of(&f.w).tiers[0].n_dearer >= 1);
    release(&f);
    assert_at_rest(&f.w);
    waiting_close(&f);
}

static void after_a_reset_nothing_older_is_found(void **state) {
    static struct waiting_fixture f;
    struct answer answers[2] = {{.n = 0}};
    struct request_params params;

    (void)state;
    waiting_open(&f, 0);
    params = params_of(&f.p, 0);
    submit(&f.w, &params, &answers[0]);
    await_awaited(&f, 1);
    reset_cache(&f.w, 0);
    fixture_run(&f.w);
    assert_same(&f.p.answer[0], &answers[0], "reset", 0);
    assert_int_equal(answers[0].cached_tokens, 0);
    release(&f);
    assert_at_rest(&f.w);
    params = params_of(&f.p, 1);
    submit(&f.w, &params, &answers[1]);
    fixture_run(&f.w);
    assert_same(&f.p.answer[1], &answers[1], "behind a reset", 1);
    assert_true(answers[1].cached_tokens <= COMMON); /* of the first one, computed since */
    assert_int_equal(stats_of(&f.w).tiers[0].restored_tokens, 0);
    waiting_close(&f);
}

/* --- what is written -------------------------------------------------------------------------- */

static void prompts_that_do_not_return_write_nothing(void **state) {
    struct memory_store *store = memory_store_create();
    struct engine_tier_source tier = memory_store_source(store);
    struct setup s = setup_of(&machines[1], &tier);
    struct engine_fixture w;

    (void)state;
    fixture_open(&w, &s);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t prompt[100] = {i, i + 1, i + 2};
        struct request_params params = request_params_default;
        struct answer answer = {.n = 0};

        params.prompt = prompt;
        params.n_prompt = 100;
        params.max_tokens = 1;
        submit(&w, &params, &answer);
        fixture_run(&w);
    }
    assert_true(stats_of(&w).moved_out > 0);
    assert_at_rest(&w);
    fixture_close(&w);
    assert_int_equal(memory_store_n_units(store), 0);
    memory_store_destroy(store);
}

/* Salted contents stay private; the logprobs of a prompt must be computed. */
static void salted_and_scored_prompts_stay_out(void **state) {
    static struct waiting_fixture f;
    uint32_t n_units, n_loads;

    (void)state;
    waiting_open(&f, 0);
    release(&f);
    n_units = memory_store_n_units(f.store);
    n_loads = memory_store_n_loads(f.store);
    for (int i = 0; i < 6; i++) {
        struct request_params params = params_of(&f.p, 0);
        uint32_t unknown[90] = {1, 2, 3};
        struct answer answer = {.n = 0};

        if (i < 3) {
            params.prompt = unknown;
            params.n_prompt = 90;
            params.cache_salt = "tenant";
            params.cache_salt_len = 6;
        } else {
            params.prompt_logprobs = 0;
        }
        submit(&f.w, &params, &answer);
        fixture_run(&f.w);
        assert_at_rest(&f.w);
        if (i == 2) assert_int_equal(memory_store_n_units(f.store), n_units);
    }
    assert_int_equal(memory_store_n_loads(f.store), n_loads);
    waiting_close(&f);
}

/* A store that others write to knows only after a load. */
static void what_a_tier_may_have_is_tried(void **state) {
    static struct prompts p;
    struct memory_store *store = memory_store_create();
    struct engine_tier_source tier = memory_store_source(store);
    struct setup s = setup_of(&machines[1], &tier);
    struct answer answers[N_PROMPTS] = {{.n = 0}};
    struct engine_fixture w;
    uint64_t n_cached = 0, n_could = 0;

    (void)state;
    draw_prompts(&p, support_seed() + 400);
    compute_answers(&machines[1], &p);
    memory_store_plan(store, &(struct memory_plan){.only_guesses = true});
    fixture_open(&w, &s); /* which has nothing yet: all is computed */
    run_each(&w, &p, answers);
    assert_answers(&p, answers, "guessed wrongly");
    assert_true(stats_of(&w).tiers[0].loads[TIER_ABSENT] >= 1);
    assert_at_rest(&w);
    fixture_close(&w);
    memory_store_plan(store, &(struct memory_plan){.fault = FAULT_NONE});
    write_all(&machines[1], &p, store);
    memory_store_plan(store, &(struct memory_plan){.only_guesses = true});
    fixture_open(&w, &s);
    memset(answers, 0, sizeof(answers));
    run_each(&w, &p, answers);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        n_cached += answers[i].cached_tokens;
        n_could += (p.n[i] - 1) / BLOCK * BLOCK;
    }
    assert_answers(&p, answers, "guessed");
    assert_int_equal(n_cached, n_could);
    assert_at_rest(&w);
    fixture_close(&w);
    memory_store_destroy(store);
}

static void a_tier_that_refuses_half_gets_all_in_the_end(void **state) {
    static struct prompts p;
    struct memory_store *store = memory_store_create();
    struct engine_tier_source tier = memory_store_source(store);
    struct setup s = setup_of(&machines[1], &tier);
    struct engine_fixture w;

    (void)state;
    draw_prompts(&p, support_seed() + 300);
    compute_answers(&machines[1], &p);
    memory_store_plan(store, &(struct memory_plan){.stores_fail = true});
    fixture_open(&w, &s);
    for (int round = 0; round < 2; round++) {
        struct answer answers[N_PROMPTS] = {{.n = 0}};

        run_each(&w, &p, answers);
        assert_answers(&p, answers, "while refused");
    }
    WAIT_UNTIL(stats_of(&w).tiers[0].stores[TIER_BUSY] > 0);
    memory_store_plan(store, &(struct memory_plan){.fault = FAULT_NONE});
    WAIT_UNTIL(memory_store_n_units(store) >= COMMON / BLOCK);
    assert_at_rest(&w);
    fixture_close(&w);
    memory_store_check(store);
    memory_store_destroy(store);
}

/* --- the end of a worker ---------------------------------------------------------------------- */

static void drain(struct engine_fixture *w) {
    engine_drain(w->e);
    while (!w->is_drained)
        loop_turn(w->loop, 1000000);
}

/* What was met once is on the device alone, or in host memory: more than that holds, or less. */
static void a_drained_engine_leaves_what_it_had(void **state) {
    static const struct {
        uint32_t n_blocks, host_blocks;
    } sizes[] = {{400, 10}, {400, 200}, {30, 80}};
    static struct prompts p;

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(sizes) * 2; k++) {
        const struct machine *m = &machines[k % 2 ? 4 : 1];
        struct memory_store *store = memory_store_create();
        struct engine_tier_source tier = memory_store_source(store);
        struct setup s = setup_of(m, &tier);
        struct answer answers[N_PROMPTS] = {{.n = 0}};
        struct engine_fixture w;

        s.n_blocks = sizes[k / 2].n_blocks;
        s.host_blocks = sizes[k / 2].host_blocks;
        draw_prompts(&p, support_seed() + 500 + k);
        compute_answers(m, &p);
        fixture_open(&w, &s);
        run_each(&w, &p, answers);
        assert_at_rest(&w);
        assert_true(memory_store_n_units(store) <= COMMON / BLOCK); /* which returned */
        drain(&w);
        assert_true(memory_store_n_units(store) >= p.n_blocks);
        memory_store_check(store);
        fixture_close(&w);
        s = setup_of(m, &tier);
        fixture_open(&w, &s);
        memset(answers, 0, sizeof(answers));
        run_each(&w, &p, answers);
        assert_answers(&p, answers, "restored");
        for (uint32_t i = 0; i < N_PROMPTS; i++)
            assert_int_equal(answers[i].cached_tokens, (p.n[i] - 1) / BLOCK * BLOCK);
        fixture_close(&w);
        memory_store_destroy(store);
    }
}

/* Room is kept for what returns: a full tier would evict it. */
static void a_drained_engine_leaves_what_returned_where_there_is_no_room(void **state) {
    static struct prompts p;
    struct memory_store *store = memory_store_create();
    struct engine_tier_source tier = memory_store_source(store);
    struct setup s = setup_of(&machines[1], &tier);
    struct answer answers[N_PROMPTS + 1] = {{.n = 0}};
    struct request_params params;
    struct engine_fixture w;

    (void)state;
    s.n_blocks = 400;
    draw_prompts(&p, support_seed() + 600);
    params = params_of(&p, 0);
    memory_store_plan(store, &(struct memory_plan){.is_full = true});
    fixture_open(&w, &s);
    run_each(&w, &p, answers);
    submit(&w, &params, &answers[N_PROMPTS]);
    fixture_run(&w);
    drain(&w);
    assert_true(memory_store_n_units(store) >= (p.n[0] - 1) / BLOCK);
    assert_true(memory_store_n_units(store) < (p.n[0] + N_ANSWER) / BLOCK + COMMON / BLOCK);
    fixture_close(&w);
    memory_store_destroy(store);
}

static void a_drain_does_not_wait_for_a_tier_that_fails(void **state) {
    static const struct memory_plan plans[] = {{.is_read_only = true}, {.stores_fail = true}};
    static struct prompts p;

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(plans); k++) {
        struct memory_store *store = memory_store_create();
        struct engine_tier_source tier = memory_store_source(store);
        struct setup s = setup_of(&machines[1], &tier);
        struct answer answers[N_PROMPTS] = {{.n = 0}};
        struct engine_fixture w;

        draw_prompts(&p, support_seed() + 700 + k);
        memory_store_plan(store, &plans[k]);
        fixture_open(&w, &s);
        run_each(&w, &p, answers);
        drain(&w);
        memory_store_check(store);
        assert_true(memory_store_n_units(store) < p.n_blocks);
        fixture_close(&w);
        memory_store_destroy(store);
    }
}

/* Blocks of two tokens: a prompt is ten times what host memory holds, of which a quarter stays for
 * what others wait for. It comes up in runs, each moved to the device before the next. */
static void a_prefix_longer_than_host_memory_streams(void **state) {
    static struct prompts p;

    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(machines); m++) {
        struct memory_store *store = memory_store_create();
        struct engine_tier_source tier = memory_store_source(store);
        struct setup s = setup_of(&machines[m], &tier);
        struct answer answers[N_PROMPTS] = {{.n = 0}};
        struct engine_fixture w;
        uint32_t n_units = COMMON / 2;

        draw_prompts(&p, support_seed() + 500 + m);
        compute_answers(&machines[m], &p);
        s.block_size = 2;
        s.n_blocks = 110;
        s.host_blocks = 700;
        fixture_open(&w, &s);
        run_each(&w, &p, answers);
        for (uint32_t i = 0; i < N_PROMPTS; i++)
            n_units += (p.n[i] - 1) / 2 - COMMON / 2;
        while (memory_store_n_units(store) < n_units)
            run_each(&w, &p, answers);
        fixture_close(&w);
        s.host_blocks = 8;
        fixture_open(&w, &s);
        for (uint32_t i = N_PROMPTS; i-- > 0;) {
            struct request_params params = params_of(&p, i);

            submit(&w, &params, &answers[i]);
            fixture_run(&w);
            assert_same(&p.answer[i], &answers[i], "streamed", i);
            assert_int_equal(answers[i].cached_tokens, (p.n[i] - 1) / 2 * 2);
        }
        memset(answers, 0, sizeof(answers));
        run_all(&w, &p, answers);
        assert_answers(&p, answers, "streamed together");
        assert_at_rest(&w);
        fixture_close(&w);
        memory_store_destroy(store);
    }
}

static void what_cannot_have_a_tier_is_refused_by_name(void **state) {
    struct memory_store *store = memory_store_create();
    struct engine_tier_source tier = memory_store_source(store);
    static const struct {
        struct setup s;
        const char *says;
    } cases[] = {
        {{.host_blocks = 0}, "--kv-offload-bytes"},
        {{.host_blocks = 10, .window = 32}, "sliding window"},
        {{.host_blocks = 10, .no_caching = true}, "prefix caching is off"},
        {{.host_blocks = 10, .machine = {.ops = &backend_tp, .ranks = &backend_cpu}}, "address"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct setup s = cases[i].s;
        float inv_freq[128];
        uint8_t kinds[8];
        struct engine_options o;
        struct engine *e = NULL;
        struct error err = {0};
        struct loop *loop;

        s.tier = &tier;
        o = tiny_options(&s, inv_freq, kinds);
        assert_int_equal(loop_create(&loop, NULL), ST_OK);
        assert_int_equal(engine_create(&e, &o, loop, &err), ST_UNSUPPORTED);
        assert_non_null(strstr(err.message, cases[i].says));
        loop_destroy(loop);
    }
    memory_store_destroy(store);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_answers_are_those_computed),
        cmocka_unit_test(every_fault_gives_the_answer_computed),
        cmocka_unit_test(two_requests_for_one_content_share_a_restore),
        cmocka_unit_test(others_run_while_one_waits),
        cmocka_unit_test(a_request_that_ends_leaves_its_restore_behind),
        cmocka_unit_test(at_the_deadline_it_is_computed),
        cmocka_unit_test(while_a_restore_is_late_others_are_computed),
        cmocka_unit_test(what_a_tier_may_have_is_tried),
        cmocka_unit_test(after_a_reset_nothing_older_is_found),
        cmocka_unit_test(prompts_that_do_not_return_write_nothing),
        cmocka_unit_test(salted_and_scored_prompts_stay_out),
        cmocka_unit_test(a_tier_that_refuses_half_gets_all_in_the_end),
        cmocka_unit_test(a_drained_engine_leaves_what_it_had),
        cmocka_unit_test(a_drained_engine_leaves_what_returned_where_there_is_no_room),
        cmocka_unit_test(a_drain_does_not_wait_for_a_tier_that_fails),
        cmocka_unit_test(a_prefix_longer_than_host_memory_streams),
        cmocka_unit_test(what_cannot_have_a_tier_is_refused_by_name),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
