/* tests/unit/worker/engine/test_engine_models.c - the models of tests/data/models through a whole
 * engine: the tokens that transformers chose, cold, cached and beside others; and a model whose
 * layers all slide, in a pool that does not hold one sequence. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "worker/model/checkpoint/safetensors.h"
#include "worker/model/model.h"

#define DATA "tests/data/models/"

static const char *const names[] = {"llama",          "llama3",       "llama-linear", "llama-yarn",
                                    "mistral-window", "qwen2-window", "qwen2-yarn",   "qwen3",
                                    "llama-f32",      "qwen3-f16"};

struct subject {
    struct model *model;
    struct safetensors *expected;
    const uint32_t *prompt, *greedy;
    uint32_t n_prompt, n_greedy;
};

static const void *part(const struct subject *s, const char *name, uint32_t *n) {
    const struct safetensor *t = safetensors_find(s->expected, str_of(name));

    assert_non_null(t);
    *n = (uint32_t)(t->n_bytes / 4);
    return t->data;
}

static void subject_open(struct subject *s, const char *name) {
    struct error err = {0};
    char path[256];

    snprintf(path, sizeof(path), DATA "%s", name);
    if (model_open(&s->model, path, &err) != ST_OK) fail_msg("%s", err.message);
    snprintf(path, sizeof(path), DATA "%s.expected.safetensors", name);
    if (safetensors_open(&s->expected, path, &err) != ST_OK) fail_msg("%s", err.message);
    s->prompt = part(s, "prompt", &s->n_prompt);
    s->greedy = part(s, "greedy", &s->n_greedy);
}

static void subject_close(struct subject *s) {
    safetensors_close(s->expected);
    model_close(s->model);
}

/* KV in f32, where every token must be the reference's. */
static void open_engine(struct engine_fixture *w, const struct subject *s,
                        const struct machine *machine, uint32_t block_size, uint32_t n_blocks,
                        uint32_t budget) {
    struct engine_options o = engine_options_default;
    struct error err = {0};

    *w = (struct engine_fixture){0};
    engine_options_set_model(&o, s->model);
    o.backend = machine->ops;
    o.device = (struct backend_config){.path = machine->path, .n_threads = 1};
    o.geometry.kv_dtype = DTYPE_F32;
    o.max_model_len = s->n_prompt + s->n_greedy;
    o.block_size = block_size;
    o.n_blocks = n_blocks;
    o.scheduler.max_num_seqs = 4;
    o.scheduler.max_num_batched_tokens = budget;
    o.callbacks = (struct engine_callbacks){.on_progress = on_progress, .arg = w};
    assert_int_equal(loop_create(&w->loop, NULL), ST_OK);
    if (engine_create(&w->e, &o, w->loop, &err) != ST_OK) fail_msg("%s", err.message);
}

static struct request_params greedy_params(const struct subject *s) {
    struct request_params p = request_params_default;

    p.prompt = s->prompt;
    p.n_prompt = s->n_prompt;
    p.max_tokens = s->n_greedy;
    p.temperature = 0;
    p.ignore_eos = true;
    return p;
}

static void check_answer(const struct answer *a, const struct subject *s, const char *what) {
    assert_int_equal(a->n, s->n_greedy);
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->token[i] != s->greedy[i])
            fail_msg("%s: token %u is %u, not %u", what, i, a->token[i], s->greedy[i]);
    }
}

static void check_subject(const char *name, const struct machine *machine) {
    static struct answer a, b;
    struct subject s;
    struct engine_fixture w;
    struct request_params p;

    subject_open(&s, name);
    p = greedy_params(&s);
    open_engine(&w, &s, machine, 4, 80, 20);
    submit(&w, &p, &a);
    fixture_run(&w);
    check_answer(&a, &s, name);
    memset(&a, 0, sizeof(a));
    submit(&w, &p, &a); /* warm, and two at once */
    submit(&w, &p, &b);
    fixture_run(&w);
    check_answer(&a, &s, name);
    check_answer(&b, &s, name);
    assert_true(a.cached_tokens > 0);
    assert_idle(&w);
    fixture_close(&w);
    subject_close(&s);
}

static void models_answer_through_the_engine(void **state) {
    static const struct machine machines[] = {{&backend_ref, NULL}, {&backend_cpu, "plain"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (size_t m = 0; m < ARRAY_LEN(machines); m++)
            check_subject(names[i], &machines[m]);
    }
}

/* 64 tokens are 16 blocks of 4; the window of 16 and a step of 8 need 7, and there are 10. */
static void a_window_needs_no_room_for_the_rest(void **state) {
    static const struct machine machines[] = {{&backend_ref, NULL}, {&backend_cpu, "plain"}};

    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(machines); m++) {
        struct answer a = {.n = 0};
        struct request_params p;
        struct subject s;
        struct engine_fixture w;

        subject_open(&s, "mistral-window");
        p = greedy_params(&s);
        open_engine(&w, &s, &machines[m], 4, 11, 8);
        for (int round = 0; round < 2; round++) {
            memset(&a, 0, sizeof(a));
            submit(&w, &p, &a);
            fixture_run(&w);
            check_answer(&a, &s, "in 10 blocks");
        }
        assert_idle(&w);
        fixture_close(&w);
        subject_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_answer_through_the_engine),
        cmocka_unit_test(a_window_needs_no_room_for_the_rest),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
