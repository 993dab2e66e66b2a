/* tests/unit/worker/engine/test_engine_forced.c - tokens that a grammar forces are not sampled, and
 * each answer is the one that samples them: with penalties, budgets, limits and stop ids, alone and
 * in a crowd. */
#include "tests/support/grammar_fixture.h"
#include "tests/support/support.h"
#include "tests/support/tiny_model.h"

#define FORCED_MORE 60u
#define LONG_OUT    1100u
static const struct tiny_shape shape = {.n_layers = 2,
                                        .d_model = 32,
                                        .n_heads = 2,
                                        .n_kv_heads = 1,
                                        .head_dim = 16,
                                        .d_ff = 48,
                                        .vocab = 256 + FORCED_MORE + FIXTURE_SPECIALS,
                                        .max_context = LONG_OUT + 8,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};
#define ENGINE_FIXTURE_SHAPE
#define MAX_OUT LONG_OUT
#include "tests/support/engine_fixture.h"

#define N_CASES    64u
#define N_GRAMMARS 4u

struct cases {
    struct vocabulary *v;
    struct grammar *g[N_GRAMMARS];
    struct request_params p[N_CASES];
    uint32_t grammar[N_CASES]; /* N_GRAMMARS: none */
    uint32_t prompt[N_CASES][12], stop_id[N_CASES], bad_word[N_CASES][2];
};

static void compile_all(struct cases *c) {
    static const char *const schemas[N_GRAMMARS] = {
        "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":3},"
        "\"temperature\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99}},"
        "\"required\":[\"city\",\"temperature\"],\"additionalProperties\":false}",
        "{\"type\":\"array\",\"items\":{\"enum\":[\"nearly\",\"never\",\"east\"]},\"minItems\":2,"
        "\"maxItems\":4}",
        "{\"const\":[\"this text\",\"has no choice\",12345]}",
        "{\"type\":\"object\",\"properties\":{\"yes\":{\"type\":\"boolean\"}},"
        "\"required\":[\"yes\"],\"additionalProperties\":false}"};

    for (uint32_t i = 0; i < N_GRAMMARS; i++)
        c->g[i] = fixture_grammar(GRAMMAR_JSON_SCHEMA, schemas[i], true, c->v);
}

/* Half of the answers reason first, within a budget. */
static struct thinking_limit budget_of(struct rng *rng) {
    if (rng_below(rng, 2)) return (struct thinking_limit){0};
    return (struct thinking_limit){.budget = (uint32_t)rng_below(rng, 5),
                                   .is_open = true,
                                   .end = {3, {'<', '/', '>'}},
                                   .forced = {3, {'<', '/', '>'}}};
}

static void draw(struct cases *c, struct rng *rng, uint32_t i) {
    struct request_params *p = &c->p[i];

    *p = request_params_default;
    for (uint32_t k = 0; k < ARRAY_LEN(c->prompt[i]); k++)
        c->prompt[i][k] = (uint32_t)rng_below(rng, 256);
    p->prompt = c->prompt[i];
    p->n_prompt = 1 + (uint32_t)rng_below(rng, ARRAY_LEN(c->prompt[i]));
    p->max_tokens = 1 + (uint32_t)rng_below(rng, 64);
    p->temperature = rng_below(rng, 3) ? 1.5f : 0;
    p->seed = rng_u64(rng);
    if (rng_below(rng, 2)) p->repetition_penalty = 1.8f;
    if (rng_below(rng, 2)) p->frequency_penalty = 0.9f;
    p->ignore_eos = rng_below(rng, 2);
    p->min_tokens = rng_below(rng, 2) ? 0 : (uint32_t)rng_below(rng, p->max_tokens);
    c->grammar[i] = (uint32_t)rng_below(rng, N_GRAMMARS + 1);
    if (c->grammar[i] == N_GRAMMARS) p->thinking = budget_of(rng);
    c->stop_id[i] = (uint32_t) "e,ty:\""[rng_below(rng, 6)];
    p->stop_ids = &c->stop_id[i];
    p->n_stop_ids = rng_below(rng, 4) == 0;
    c->bad_word[i][0] = 1;
    c->bad_word[i][1] = (uint32_t)rng_below(rng, 128);
    p->bad_words = c->bad_word[i];
    p->n_bad_words = rng_below(rng, 6) == 0 ? 2 : 0;
}

/* All at once, or each when the one before has ended. Returns how many tokens were forced. */
static uint64_t answer_all(struct cases *c, bool has_steps, bool is_crowd,
                           const struct setup *setup, struct answer *a) {
    struct engine_fixture w;
    uint64_t n_forced;

    memset(a, 0, N_CASES * sizeof(*a));
    compile_all(c);
    fixture_open(&w, setup);
    for (uint32_t i = 0; i < N_CASES; i++) {
        struct request_params p = c->p[i];

        if (c->grammar[i] < N_GRAMMARS) p.grammar = c->g[c->grammar[i]];
        p.n_logprobs = has_steps ? 0 : -1; /* with them each token has a step */
        (void)submit(&w, &p, &a[i]);
        if (!is_crowd) fixture_run(&w);
    }
    fixture_run(&w);
    n_forced = stats_of(&w).forced_tokens;
    assert_idle(&w);
    fixture_close(&w);
    for (uint32_t i = 0; i < N_CASES; i++)
        memset(a[i].logprob, 0, sizeof(a[i].logprob));
    for (uint32_t i = 0; i < N_GRAMMARS; i++)
        grammar_unref(c->g[i]);
    return n_forced;
}

static void answers_are_those_that_sample_each_token(void **state) {
    static const struct setup setups[] = {
        {.max_seqs = 8},
        {.max_seqs = 8,
         .n_blocks = 28,
         .block_size = 8,
         .max_len = CONTEXT,
         .budget = 12,
         .policy = POLICY_SRPT},
        {.max_seqs = 6,
         .n_blocks = 30,
         .max_len = CONTEXT,
         .block_size = 8,
         .host_blocks = 20,
         .preemption = PREEMPT_SWAP},
        {.max_seqs = 64, .no_caching = true, .policy = POLICY_PRIORITY},
    };
    struct cases *c = mem_zalloc(sizeof(*c));
    struct answer *sampled = mem_calloc(N_CASES, sizeof(*sampled));
    struct answer *forced = mem_calloc(N_CASES, sizeof(*forced));
    uint32_t n_finished[FINISH_ERROR + 1] = {0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    c->v = fixture_vocabulary(&rng, FORCED_MORE, "aceinrtvy\"{:");
    fixture_vocabulary_encodes(c->v);
    for (uint32_t i = 0; i < N_CASES; i++)
        draw(c, &rng, i);
    assert_int_equal(answer_all(c, true, false, &setups[0], sampled), 0);
    for (uint32_t k = 0; k < ARRAY_LEN(setups); k++) {
        assert_true(answer_all(c, false, k > 0, &setups[k], forced) > N_CASES);
        for (uint32_t i = 0; i < N_CASES; i++) {
            assert_same(&sampled[i], &forced[i], "forced", i);
            n_finished[forced[i].finish]++;
        }
    }
    assert_true(n_finished[FINISH_STOP] > 0 && n_finished[FINISH_LENGTH] > 0);
    vocabulary_destroy(c->v);
    mem_free(c);
    mem_free(sampled);
    mem_free(forced);
}

/* The 33 bytes of a constant are a step each where each is sampled. */
static void forced_tokens_take_no_steps_of_their_own(void **state) {
    struct setup setup = {0};
    struct request_params p = request_params_default;
    uint32_t prompt = 'x';
    struct engine_stats s;

    (void)state;
    for (int has_steps = 0; has_steps < 2; has_steps++) {
        struct vocabulary *v;
        struct engine_fixture w;
        struct answer a = {0};
        struct rng rng;

        rng_seed(&rng, 1);
        v = fixture_vocabulary(&rng, FORCED_MORE, "#"); /* bytes spell all else */
        fixture_vocabulary_encodes(v);
        fixture_open(&w, &setup);
        p.prompt = &prompt;
        p.n_prompt = 1;
        p.max_tokens = 60;
        p.n_logprobs = has_steps ? 0 : -1;
        p.grammar = fixture_grammar(GRAMMAR_REGEX, "abcdefghijklmnopqrstuvwxyz1234567", false, v);
        (void)submit(&w, &p, &a);
        fixture_run(&w);
        s = stats_of(&w);
        assert_int_equal(a.n, 33);
        assert_int_equal(a.finish, FINISH_STOP);
        assert_int_equal(s.generated_tokens, 33);
        assert_int_equal(s.steps, has_steps ? 33 : 1);
        assert_int_equal(s.forced_tokens, has_steps ? 0 : 32);
        fixture_close(&w);
        grammar_unref(p.grammar);
        vocabulary_destroy(v);
    }
}

/* A text that is longer than what one outcome may force: the second step computes the
 * first part, samples one token and takes the rest. */
static void long_forced_text_is_taken_in_parts(void **state) {
    struct setup setup = {.budget = ENGINE_MAX_FORCED + 1};
    struct request_params p = request_params_default;
    static struct answer a;
    uint32_t prompt = 'x';
    struct vocabulary *v;
    struct engine_fixture w;
    struct engine_stats s;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 1);
    v = fixture_vocabulary(&rng, FORCED_MORE, "#");
    fixture_vocabulary_encodes(v);
    fixture_open(&w, &setup);
    p.prompt = &prompt;
    p.n_prompt = 1;
    p.max_tokens = LONG_OUT;
    p.grammar = fixture_grammar(GRAMMAR_REGEX, "a{1100}", false, v);
    (void)submit(&w, &p, &a);
    fixture_run(&w);
    s = stats_of(&w);
    assert_int_equal(a.n, LONG_OUT);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_int_equal(s.steps, 2);
    assert_int_equal(s.forced_tokens, LONG_OUT - 2);
    fixture_close(&w);
    grammar_unref(p.grammar);
    vocabulary_destroy(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_that_sample_each_token),
        cmocka_unit_test(forced_tokens_take_no_steps_of_their_own),
        cmocka_unit_test(long_forced_text_is_taken_in_parts),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
