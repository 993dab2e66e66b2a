/* tests/unit/worker/engine/test_engine_sim.c - a crowd on the simulated backend: hundreds of
 * requests over a pool that is too small for them, with cancels and resets at random, ends with
 * every block free and every answer the one that its request has alone. With grammars too, which
 * are compiled again and again, so that their masks are computed by several threads; what they
 * force is not sampled, but for the answers that all are compared with. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "tests/support/cm.h"
#include "tests/support/grammar_fixture.h"
#include "tests/support/support.h"
#include "worker/engine/engine.h"
#include "worker/model/model.h"

#define N_PROMPTS  12
#define MAX_PROMPT 400u
#define MAX_OUT    80u
#define N_GRAMMARS 4u

struct crowd {
    struct loop *loop;
    struct model *model;
    struct engine *e;
    struct rng rng;
    uint32_t prompt[N_PROMPTS][MAX_PROMPT], n_prompt[N_PROMPTS];
    uint32_t expected[N_PROMPTS][MAX_OUT], n_expected[N_PROMPTS];
    uint32_t n_open, n_whole, n_cut, n_resets;
    bool is_learning;
    struct vocabulary *v; /* NULL: no grammars */
    struct grammar *g[N_GRAMMARS];
    struct request *open[64];
};

static void on_progress(void *arg, struct request *r, const struct request_progress *progress) {
    struct crowd *c = arg;
    uint32_t *which = r->owner, i = *which, n = progress->first + progress->n;

    if (c->is_learning) {
        memcpy(c->expected[i], request_output(r), n * sizeof(uint32_t));
        c->n_expected[i] = n;
    } else {
        assert_true(n <= c->n_expected[i]);
        assert_memory_equal(c->expected[i], request_output(r), n * sizeof(uint32_t));
    }
    if (!progress->is_finished) return;
    if (r->finish == FINISH_ABORT) {
        c->n_cut++;
    } else {
        assert_int_equal(n, c->n_expected[i]);
        c->n_whole++;
    }
    for (uint32_t k = 0; k < c->n_open; k++)
        if (c->open[k] == r) {
            c->open[k] = c->open[--c->n_open];
            break;
        }
    mem_free(r->owner);
    request_unref(r);
}

static void compile(struct crowd *c, uint32_t number) {
    static const char *const schemas[N_GRAMMARS] = {
        "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"
        "\"integer\"}},\"required\":[\"city\",\"days\"],\"additionalProperties\":false}",
        "{\"type\":\"array\",\"items\":{\"enum\":[\"north\",\"south\",\"east\"]},\"minItems\":3}",
        "{\"type\":\"object\",\"properties\":{\"a_long_name\":{\"const\":\"and a long value\"},"
        "\"b\":{\"type\":\"boolean\"}},\"required\":[\"a_long_name\",\"b\"]}",
        "{\"type\":\"string\",\"maxLength\":40}"};

    grammar_unref(c->g[number]);
    c->g[number] = fixture_grammar(GRAMMAR_JSON_SCHEMA, schemas[number], false, c->v);
}

static void submit(struct crowd *c, uint32_t which) {
    struct request_params p = request_params_default;
    uint32_t *owner = mem_alloc(sizeof(*owner));
    struct request *r;

    *owner = which;
    p.prompt = c->prompt[which];
    p.n_prompt = c->n_prompt[which];
    p.max_tokens = MAX_OUT;
    p.seed = which;
    p.ignore_eos = which % 2;
    if (c->v && which % 3 > 0) {
        if (!c->is_learning && rng_below(&c->rng, 4) == 0) compile(c, which % N_GRAMMARS);
        p.grammar = c->g[which % N_GRAMMARS];
        p.n_logprobs = c->is_learning ? 0 : -1; /* each of its tokens has a step, or not */
    }
    assert_int_equal(request_create(&r, &p, &engine_info(c->e)->limits, NULL), ST_OK);
    r->owner = owner;
    assert_int_equal(engine_submit(c->e, r, NULL), ST_OK);
    c->open[c->n_open++] = r;
}

static void open_crowd(struct crowd *c, bool has_grammars) {
    struct engine_options o = engine_options_default;
    struct error err = {0};

    memset(c, 0, sizeof(*c));
    rng_seed(&c->rng, support_seed());
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        c->n_prompt[i] = 1 + (uint32_t)rng_below(&c->rng, MAX_PROMPT);
        for (uint32_t k = 0; k < c->n_prompt[i]; k++)
            c->prompt[i][k] = k < 100 ? 'a' + k % 20 : 'a' + (uint32_t)rng_below(&c->rng, 20);
    }
    assert_int_equal(loop_create(&c->loop, NULL), ST_OK);
    c->model = model_create_synthetic(0);
    o.backend = &backend_sim;
    o.device.sim_profile = "instant";
    engine_options_set_model(&o, c->model);
    if (has_grammars) {
        c->v = fixture_vocabulary(&c->rng, 400, "aest_:\", {");
        fixture_vocabulary_encodes(c->v);
        for (uint32_t i = 0; i < N_GRAMMARS; i++)
            compile(c, i);
        o.geometry.vocab = c->v->n_tokens;
        o.mask_threads = 4;
    }
    o.weight_bytes = 0;
    o.max_model_len = 512;
    o.n_blocks = 50;
    o.scheduler.max_num_seqs = 16;
    o.scheduler.max_num_batched_tokens = 256;
    o.callbacks = (struct engine_callbacks){.on_progress = on_progress, .arg = c};
    if (engine_create(&c->e, &o, c->loop, &err) != ST_OK) fail_msg("%s", err.message);
}

static void learn_each_alone(struct crowd *c) {
    struct engine_stats s;

    c->is_learning = true;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        submit(c, i);
        while (c->n_open > 0)
            loop_turn(c->loop, 1000000);
    }
    c->is_learning = false;
    c->n_whole = 0;
    engine_stats(c->e, &s);
    assert_int_equal(s.forced_tokens, 0);
}

struct counted_reset {
    struct engine_reset reset;
    struct crowd *crowd;
};

static void count_reset(struct engine_reset *reset) {
    struct counted_reset *r = CONTAINER_OF(reset, struct counted_reset, reset);

    r->crowd->n_resets--;
    mem_free(r);
}

static void send_reset(struct crowd *c) {
    struct counted_reset *r = mem_zalloc(sizeof(*r));

    r->crowd = c;
    r->reset.reset_running = rng_below(&c->rng, 2);
    r->reset.on_done = count_reset;
    c->n_resets++;
    engine_reset_prefix_cache(c->e, &r->reset);
}

static void close_crowd(struct crowd *c) {
    engine_destroy(c->e);
    model_close(c->model);
    loop_destroy(c->loop);
    for (uint32_t i = 0; i < N_GRAMMARS; i++)
        grammar_unref(c->g[i]);
    vocabulary_destroy(c->v);
}

static void get_answers_and_leave_nothing(bool has_grammars) {
    struct crowd c;
    struct engine_stats s;

    open_crowd(&c, has_grammars);
    learn_each_alone(&c);
    while (c.n_whole < 150 || c.n_cut < 15) {
        uint64_t dice = rng_below(&c.rng, 100);

        if (dice < 10) { /* many at once: the device takes no time, so they would never meet */
            while (c.n_open < ARRAY_LEN(c.open) && rng_below(&c.rng, 12) > 0)
                submit(&c, (uint32_t)rng_below(&c.rng, N_PROMPTS));
        } else if (dice < 35 && c.n_open > 0) {
            engine_cancel(c.e, c.open[rng_below(&c.rng, c.n_open)]);
        } else if (dice < 36) {
            send_reset(&c);
        } else {
            loop_turn(c.loop, 200);
        }
    }
    while (c.n_open > 0 || c.n_resets > 0)
        loop_turn(c.loop, 1000000);
    engine_stats(c.e, &s);
    assert_int_equal(s.kv_free, s.kv_total);
    assert_int_equal(s.running + s.waiting, 0);
    assert_true(s.preemptions > 0 && s.prefix_hits > 0);
    assert_int_equal(s.finished[FINISH_ERROR], 0);
    assert_int_equal(s.finished[FINISH_STOP] + s.finished[FINISH_LENGTH], c.n_whole + N_PROMPTS);
    assert_int_equal(s.masks_new > 0 && s.forced_tokens > 0, has_grammars);
    close_crowd(&c);
}

static void a_crowd_gets_its_answers_and_leaves_nothing(void **state) {
    (void)state;
    get_answers_and_leave_nothing(false);
}

static void a_crowd_with_grammars_gets_its_answers_too(void **state) {
    (void)state;
    get_answers_and_leave_nothing(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_gets_its_answers_and_leaves_nothing),
        cmocka_unit_test(a_crowd_with_grammars_gets_its_answers_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
