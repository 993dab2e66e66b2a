/* tests/unit/worker/sched/test_thinking.c - budgets of reasoning, against a plain search for the
 * markers. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/sched/thinking.h"

#define MOST 64u

static const struct thinking_limit closed = {
    .budget = 3, .begin = {1, {10}}, .end = {2, {11, 12}}, .forced = {2, {11, 12}}};

/* Takes n tokens, each `token` unless one is forced; the output. */
static void run(const struct thinking_limit *limit, uint32_t token, uint32_t *out, uint32_t n) {
    struct thinking t;

    thinking_init(&t, limit);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = token;
        (void)thinking_forces(&t, limit, &out[i]);
        thinking_take(&t, limit, out[i]);
    }
}

static void budget_of_an_open_prompt_counts_from_the_first_token(void **state) {
    struct thinking_limit limit = closed;

    (void)state;
    limit.is_open = true;
    for (limit.budget = 0; limit.budget < 5; limit.budget++) {
        uint32_t out[10];

        run(&limit, 1, out, 10);
        for (uint32_t i = 0; i < 10; i++) {
            uint32_t want = i == limit.budget ? 11 : i == limit.budget + 1 ? 12 : 1;

            assert_int_equal(out[i], want);
        }
    }
}

static void without_the_begin_marker_nothing_is_forced(void **state) {
    uint32_t out[MOST];

    (void)state;
    run(&closed, 1, out, MOST);
    for (uint32_t i = 0; i < MOST; i++)
        assert_int_equal(out[i], 1);
}

static void begin_marker_of_the_answer_starts_the_count(void **state) {
    static const uint32_t want[] = {1, 10, 1, 1, 1, 11, 12, 1};
    struct thinking t;

    (void)state;
    thinking_init(&t, &closed);
    for (uint32_t i = 0; i < ARRAY_LEN(want); i++) {
        uint32_t token = i == 1 ? 10 : 1;

        (void)thinking_forces(&t, &closed, &token);
        assert_int_equal(token, want[i]);
        thinking_take(&t, &closed, token);
    }
    assert_int_equal(t.phase, THINKING_AFTER);
}

static void a_call_ends_reasoning_too(void **state) {
    static const uint32_t want[] = {1, 20, 1, 1, 1, 1, 1, 1};
    struct thinking_limit limit = closed;
    struct thinking t;

    (void)state;
    limit.is_open = limit.has_other_end = true;
    limit.other_end = 20;
    thinking_init(&t, &limit);
    for (uint32_t i = 0; i < ARRAY_LEN(want); i++) {
        uint32_t token = i == 1 ? 20 : 1;

        (void)thinking_forces(&t, &limit, &token);
        assert_int_equal(token, want[i]);
        thinking_take(&t, &limit, token);
    }
}

/* Tokens of a vocabulary whose markers are text: punctuation and the line's end are one. */
static struct str bytes_of(const void *arg, uint32_t token) {
    static const char *const spelt[] = {"x",     "<", "think", ">\n",   "</",
                                        ">\n\n", " ", "<t",    "hink>", "<<"};

    (void)arg;
    return str_of(spelt[token]);
}

static struct thinking_limit spelt_limit(void) {
    return (struct thinking_limit){.budget = 3,
                                   .begin_text = STR("<think>"),
                                   .end_text = STR("</think>"),
                                   .bytes = bytes_of,
                                   .end = {1, {90}}, /* the run that no one writes */
                                   .forced = {1, {91}}};
}

/* How many of the tokens come before one is forced; n: none is. */
static uint32_t until_forced(const uint32_t *token, uint32_t n) {
    struct thinking_limit limit = spelt_limit();
    struct thinking t;
    uint32_t forced, i = 0;

    thinking_init(&t, &limit);
    while (i < n && !thinking_forces(&t, &limit, &forced))
        thinking_take(&t, &limit, token[i++]);
    return i;
}

static void a_marker_that_is_text_is_found_however_it_is_spelt(void **state) {
    static const struct {
        uint32_t token[12], want;
    } cases[] = {
        {{1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 6},  /* begun, and three more */
        {{6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 6},  /* behind a blank, of other tokens */
        {{0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0}, 12}, /* behind text it is text */
        {{1, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0}, 12}, /* the text began as the marker does */
        {{1, 2, 3, 4, 2, 5, 0, 0, 0, 0, 0, 0}, 12}, /* ended within the budget */
        {{1, 2, 3, 1, 4, 2, 5, 0, 0, 0, 0, 0}, 6},  /* ended behind it */
        {{7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 5},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(until_forced(cases[i].token, 12), cases[i].want);
}

static bool ends_with(const uint32_t *out, uint32_t n, const uint32_t *marker, uint32_t n_marker) {
    return n >= n_marker && memcmp(out + n - n_marker, marker, n_marker * sizeof(*marker)) == 0;
}

static struct thinking_run random_run(struct rng *rng) {
    struct thinking_run run = {.n = 1 + (uint32_t)rng_below(rng, 4)};

    for (uint32_t i = 0; i < run.n; i++)
        run.token[i] = (uint32_t)rng_below(rng, 2);
    return run;
}

/* How much of the marker the output ends with. */
static uint32_t begun(const uint32_t *out, uint32_t n, const struct thinking_run *marker) {
    uint32_t k = marker->n - 1;

    while (k > 0 && !ends_with(out, n, marker->token, k))
        k--;
    return k;
}

/* The model reads the whole output again for each token. */
static void any_output_is_counted_as_by_a_search(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 20000; round++) {
        struct thinking_limit limit = {.budget = (uint32_t)rng_below(&rng, 12),
                                       .is_open = rng_below(&rng, 2),
                                       .begin = random_run(&rng),
                                       .end = random_run(&rng),
                                       .forced = random_run(&rng)};
        uint32_t out[MOST], n = 0, from = 0, n_forced = 0, at = 0;
        bool is_inside = limit.is_open, is_over = false;
        struct thinking t;

        thinking_init(&t, &limit);
        while (n < MOST) {
            uint32_t token = (uint32_t)rng_below(&rng, 3), forced;
            bool must = is_inside && !is_over && n - from >= limit.budget;

            assert_int_equal(thinking_forces(&t, &limit, &forced), must);
            if (must) {
                if (n_forced == 0) at = begun(out + from, n - from, &limit.end);
                token = at > 0 ? limit.end.token[at + n_forced] : limit.forced.token[n_forced];
                n_forced++;
                assert_int_equal(forced, token);
            }
            out[n++] = token;
            thinking_take(&t, &limit, token);
            if (is_over) continue;
            if (n_forced > 0) {
                is_over = n_forced == (at > 0 ? limit.end.n - at : limit.forced.n);
            } else if (is_inside) {
                is_over = ends_with(out + from, n - from, limit.end.token, limit.end.n);
            } else if (ends_with(out, n, limit.begin.token, limit.begin.n)) {
                is_inside = true;
                from = n;
            }
        }
        assert_int_equal(t.phase == THINKING_AFTER, is_over);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_of_an_open_prompt_counts_from_the_first_token),
        cmocka_unit_test(without_the_begin_marker_nothing_is_forced),
        cmocka_unit_test(begin_marker_of_the_answer_starts_the_count),
        cmocka_unit_test(a_call_ends_reasoning_too),
        cmocka_unit_test(a_marker_that_is_text_is_found_however_it_is_spelt),
        cmocka_unit_test(any_output_is_counted_as_by_a_search),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
