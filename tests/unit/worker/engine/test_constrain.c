/* tests/unit/worker/engine/test_constrain.c - masks of a request's places, and the tokens that end
 * it. */
#include <string.h>

#include "tests/support/grammar_fixture.h"
#include "tests/support/sched_fixture.h"
#include "tests/support/support.h"
#include "worker/engine/constrain.h"

#define MORE_EOS 51u /* beside FIXTURE_EOS: ordinary bytes, 2 and 3 */
#define WORDS    16u

static const uint32_t eos[] = {FIXTURE_EOS, MORE_EOS};
static const struct constrain_ends ends = {eos, 2};

struct setup {
    struct sched_fixture f;
    struct vocabulary *v;
    struct grammar *g;
    struct request *r;
    struct constrain_stats stats;
    uint32_t mask[WORDS];
};

static void setup_open(struct setup *s, const char *pattern, struct request_params p) {
    struct fixture_options o = fixture_defaults();
    struct rng rng;

    memset(s, 0, sizeof(*s));
    rng_seed(&rng, support_seed());
    s->v = fixture_vocabulary(&rng, 0, "");
    fixture_open(&s->f, &o);
    s->f.limits.vocab = s->v->n_tokens;
    s->g = fixture_grammar(GRAMMAR_REGEX, pattern, false, s->v);
    p.grammar = s->g;
    p.max_tokens = 20;
    s->r = fixture_request(&s->f, 3, 'p', &p);
    constrain_begin(s->r);
}

static void setup_close(struct setup *s) {
    constrain_end(s->r);
    request_unref(s->r);
    grammar_unref(s->g);
    fixture_close(&s->f);
    vocabulary_destroy(s->v);
}

static void fill(struct setup *s) {
    constrain_fill(s->r, &ends, s->mask, s->v->n_tokens, &s->stats);
}

static bool allows(const struct setup *s, uint32_t token) {
    return s->mask[token / 32] >> (token % 32) & 1;
}

static uint32_t n_allowed(const struct setup *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->v->n_words; i++)
        n += (uint32_t)__builtin_popcount(s->mask[i]);
    return n;
}

/* Takes a text that is allowed, byte by byte. */
static void take(struct setup *s, const char *text) {
    for (; *text != '\0'; text++) {
        fill(s);
        assert_true(allows(s, (uint8_t)*text));
        assert_int_equal(constrain_take(s->r, &ends, (uint8_t)*text), ST_OK);
        request_append(s->r, (uint8_t)*text);
    }
}

static void ends_are_allowed_exactly_where_the_answer_may_end(void **state) {
    const uint32_t stop[] = {7, 'a'};
    struct request_params p = request_params_default;
    struct setup s;

    (void)state;
    p.stop_ids = stop;
    p.n_stop_ids = 2;
    setup_open(&s, "[ab]{2,3}", p);
    fill(&s);
    assert_false(allows(&s, FIXTURE_EOS) || allows(&s, MORE_EOS) || allows(&s, 7));
    assert_int_equal(n_allowed(&s), 2); /* a is text here, and a stop id: it may cut */
    take(&s, "bb");
    fill(&s);
    assert_true(allows(&s, FIXTURE_EOS) && allows(&s, MORE_EOS) && allows(&s, 7));
    assert_int_equal(n_allowed(&s), 5);
    assert_int_equal(constrain_take(s.r, &ends, FIXTURE_EOS), ST_OK);
    assert_false(s.r->is_complete); /* the token ends it, and is no text */
    assert_int_equal(constrain_take(s.r, &ends, 'b'), ST_OK);
    assert_true(s.r->is_complete);
    setup_close(&s);
}

static void ends_wait_for_min_tokens_and_yield_to_a_complete_answer(void **state) {
    struct request_params p = request_params_default;
    struct setup s;

    (void)state;
    p.min_tokens = 3;
    setup_open(&s, "[ab]*", p);
    fill(&s);
    assert_int_equal(n_allowed(&s), 2);
    take(&s, "aba");
    fill(&s);
    assert_int_equal(n_allowed(&s), 4);
    setup_close(&s);
    setup_open(&s, "", p);
    fill(&s);
    assert_int_equal(n_allowed(&s), 2); /* the ends alone */
    setup_close(&s);
}

static void eos_is_ignored_while_more_can_come(void **state) {
    struct request_params p = request_params_default;
    struct setup s;

    (void)state;
    p.ignore_eos = true;
    setup_open(&s, "a?", p);
    fill(&s);
    assert_int_equal(n_allowed(&s), 1);
    setup_close(&s);
    setup_open(&s, "", p);
    fill(&s);
    assert_int_equal(n_allowed(&s), 2);
    setup_close(&s);
}

static void what_is_banned_is_left_out_and_nothing_left_is_an_error(void **state) {
    const uint32_t words[] = {1, 'a', 2, 'b', 'c'};
    uint32_t allowed[WORDS] = {0};
    struct request_params p = request_params_default;
    struct setup s;

    (void)state;
    p.bad_words = words;
    p.n_bad_words = ARRAY_LEN(words);
    setup_open(&s, "[abc][c]", p);
    fill(&s);
    assert_false(allows(&s, 'a'));
    assert_int_equal(n_allowed(&s), 2);
    take(&s, "b");
    fill(&s);
    assert_int_equal(n_allowed(&s), 0);
    assert_int_equal(constrain_take(s.r, &ends, 'c'), ST_INVALID);
    assert_string_equal(s.r->error.param, "bad_words");
    setup_close(&s);

    p = request_params_default;
    allowed['x' / 32] = 1u << ('x' % 32);
    p.allowed = allowed;
    setup_open(&s, "[xy]y", p);
    take(&s, "x");
    fill(&s);
    assert_int_equal(constrain_take(s.r, &ends, 'y'), ST_INVALID);
    assert_string_equal(s.r->error.param, "allowed_token_ids");
    setup_close(&s);
}

static void a_token_outside_is_an_error_of_the_device(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s, "ab", request_params_default);
    fill(&s);
    assert_int_equal(constrain_take(s.r, &ends, 'z'), ST_INTERNAL);
    assert_non_null(strstr(s.r->error.message, "token 122"));
    setup_close(&s);
}

static void masks_are_counted_by_where_they_come_from(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s, "(ab)*", request_params_default);
    take(&s, "abababab");
    assert_int_equal(s.stats.n_new,
                     1); /* behind an a; the first was computed when it was compiled */
    assert_int_equal(s.stats.n_known, 7);
    setup_close(&s);
}

static void budget_forces_the_end_of_reasoning_and_nothing_else(void **state) {
    for (uint32_t budget = 0; budget < 4; budget++) {
        struct request_params p = request_params_default;
        struct setup s;

        (void)state;
        p.thinking = (struct thinking_limit){
            .budget = budget, .is_open = true, .end = {2, {'<', '>'}}, .forced = {2, {'<', '>'}}};
        setup_open(&s, "[a-z]*<>[0-9]", p);
        for (uint32_t i = 0; i < budget; i++) {
            fill(&s);
            assert_true(n_allowed(&s) > 1);
            take(&s, "a");
        }
        for (uint32_t i = 0; i < 2; i++) {
            const char *want = i == 0 ? "<" : ">";

            fill(&s);
            assert_int_equal(n_allowed(&s), 1);
            take(&s, want);
        }
        fill(&s);
        assert_true(n_allowed(&s) >= 10); /* the digits: nothing is forced any more */
        setup_close(&s);
    }
}

static void end_of_reasoning_that_the_grammar_refuses_is_the_budgets_error(void **state) {
    struct request_params p = request_params_default;
    struct setup s;

    (void)state;
    p.thinking = (struct thinking_limit){
        .budget = 1, .is_open = true, .end = {1, {'<'}}, .forced = {1, {'<'}}};
    setup_open(&s, "abc", p);
    take(&s, "a");
    fill(&s);
    assert_true(allows(&s, '<'));
    assert_int_equal(constrain_take(s.r, &ends, '<'), ST_INVALID);
    assert_string_equal(s.r->error.param, "thinking_token_budget");
    setup_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_allowed_exactly_where_the_answer_may_end),
        cmocka_unit_test(ends_wait_for_min_tokens_and_yield_to_a_complete_answer),
        cmocka_unit_test(eos_is_ignored_while_more_can_come),
        cmocka_unit_test(what_is_banned_is_left_out_and_nothing_left_is_an_error),
        cmocka_unit_test(a_token_outside_is_an_error_of_the_device),
        cmocka_unit_test(masks_are_counted_by_where_they_come_from),
        cmocka_unit_test(budget_forces_the_end_of_reasoning_and_nothing_else),
        cmocka_unit_test(end_of_reasoning_that_the_grammar_refuses_is_the_budgets_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
