/* tests/unit/worker/text/test_stop.c - stop strings across token boundaries, against a plain
 * search. */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/stop.h"

static struct stop_set *set_of(const struct str *strings, size_t n) {
    struct stop_set *set = NULL;
    struct error err = {0};

    if (stop_set_create(&set, strings, n, &err) != ST_OK) fail_msg("%s", err.message);
    return set;
}

static void a_possible_beginning_is_held_back(void **state) {
    struct stop_set *set = set_of((struct str[]){STR("User:"), STR("\n\n")}, 2);
    struct stop_matcher m;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stop_matcher_init(&m, set, false);
    assert_false(stop_matcher_push(&m, STR("Hello\n"), &out));
    assert_true(str_eq(buf_str(&out), STR("Hello")));
    assert_false(stop_matcher_push(&m, STR("Us"), &out));
    assert_true(str_eq(buf_str(&out), STR("Hello\n")));
    assert_false(stop_matcher_push(&m, STR("ual Use"), &out));
    assert_true(str_eq(buf_str(&out), STR("Hello\nUsual ")));
    assert_true(stop_matcher_push(&m, STR("r: more"), &out));
    assert_true(str_eq(buf_str(&out), STR("Hello\nUsual ")));
    assert_int_equal(m.matched, 0);
    assert_true(stop_matcher_push(&m, STR("more"), &out));
    stop_matcher_finish(&m, &out);
    assert_true(str_eq(buf_str(&out), STR("Hello\nUsual ")));
    stop_matcher_fini(&m);
    stop_set_destroy(set);
    buf_fini(&out);
}

static void the_stop_string_may_be_included(void **state) {
    struct stop_set *set = set_of((struct str[]){STR("END")}, 1);
    struct stop_matcher m;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stop_matcher_init(&m, set, true);
    assert_false(stop_matcher_push(&m, STR("aE"), &out));
    assert_true(stop_matcher_push(&m, STR("NDz"), &out));
    assert_true(str_eq(buf_str(&out), STR("aEND")));
    stop_matcher_fini(&m);
    stop_set_destroy(set);
    buf_fini(&out);
}

static void held_text_is_returned_at_the_end(void **state) {
    struct stop_set *set = set_of((struct str[]){STR("abcd")}, 1);
    struct stop_matcher m, none;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stop_matcher_init(&m, set, false);
    assert_false(stop_matcher_push(&m, STR("xabc"), &out));
    assert_int_equal(buf_len(&out), 1);
    stop_matcher_finish(&m, &out);
    assert_true(str_eq(buf_str(&out), STR("xabc")));
    stop_matcher_fini(&m);
    buf_clear(&out);
    stop_matcher_init(&none, NULL, false);
    assert_false(stop_matcher_push(&none, STR("abcd"), &out));
    assert_int_equal(buf_len(&out), 4);
    stop_matcher_fini(&none);
    stop_set_destroy(set);
    buf_fini(&out);
}

static void limits_are_named(void **state) {
    static char long_text[STOP_MAX_BYTES + 1];
    struct str many[STOP_MAX_STRINGS + 1];
    struct stop_set *set = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(stop_set_create(&set, (struct str[]){STR("a"), STR("")}, 2, &err), ST_INVALID);
    assert_string_equal(err.param, "stop");
    memset(long_text, 'x', sizeof(long_text));
    assert_int_equal(stop_set_create(&set, (struct str[]){{long_text, sizeof(long_text)}}, 1, &err),
                     ST_INVALID);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = STR("a");
    assert_int_equal(stop_set_create(&set, many, ARRAY_LEN(many), &err), ST_INVALID);
    assert_null(set);
}

static void the_first_in_the_list_wins_among_those_of_a_token(void **state) {
    struct stop_set *set = set_of((struct str[]){STR("world"), STR("o w"), STR("!")}, 3);
    struct stop_matcher m;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stop_matcher_init(&m, set, false);
    assert_false(stop_matcher_push(&m, STR("Hello"), &out));
    assert_true(stop_matcher_push(&m, STR(" world!"), &out));
    assert_int_equal(m.matched, 0);
    assert_true(str_eq(buf_str(&out), STR("Hello ")));
    stop_matcher_fini(&m);
    stop_set_destroy(set);
    buf_fini(&out);
}

static void a_string_that_begins_in_passed_text_is_found(void **state) {
    struct stop_set *set = set_of((struct str[]){STR("abab")}, 1);
    struct stop_matcher m;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stop_matcher_init(&m, set, false);
    stop_matcher_pass(&m, STR("xabab"), &out); /* complete too early: text, and a beginning */
    assert_true(str_eq(buf_str(&out), STR("xab")));
    assert_true(stop_matcher_push(&m, STR("ab."), &out));
    assert_true(str_eq(buf_str(&out), STR("xab")));
    stop_matcher_fini(&m);
    stop_set_destroy(set);
    buf_fini(&out);
}

/* After each piece, the first string of the list that ends in it, where it first does; -1: none. */
static ptrdiff_t search(struct str text, size_t from, const struct str *stops, size_t n,
                        int32_t *which) {
    for (size_t i = 0; i < n; i++) {
        for (size_t end = from + 1; end <= text.len; end++) {
            if (!str_ends((struct str){text.ptr, end}, stops[i])) continue;
            *which = (int32_t)i;
            return (ptrdiff_t)(end - stops[i].len);
        }
    }
    return -1;
}

static void any_pieces_give_what_a_search_gives(void **state) {
    struct rng rng;
    struct buf out;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&out, 0);
    for (int round = 0; round < 20000; round++) {
        char text[32], stop_text[4][6];
        struct str stops[4], s = {text, (size_t)rng_below(&rng, sizeof(text) + 1)};
        size_t n = (size_t)rng_below(&rng, 4) + 1, at = 0, passed = (size_t)rng_below(&rng, 8);
        struct stop_matcher m;
        struct stop_set *set;
        bool is_done = false;
        ptrdiff_t want = -1;
        int32_t which = -1;

        for (size_t i = 0; i < s.len; i++)
            text[i] = (char)('a' + rng_below(&rng, 2));
        for (size_t i = 0; i < n; i++) {
            stops[i] = (struct str){stop_text[i], (size_t)rng_below(&rng, 6) + 1};
            for (size_t k = 0; k < stops[i].len; k++)
                stop_text[i][k] = (char)('a' + rng_below(&rng, 2));
        }
        set = set_of(stops, n);
        stop_matcher_init(&m, set, false);
        buf_clear(&out);
        while (at < s.len && !is_done) {
            size_t piece = (size_t)rng_below(&rng, 5);

            piece = MIN(piece, s.len - at);
            if (at < passed) {
                stop_matcher_pass(&m, (struct str){text + at, piece}, &out);
            } else {
                want = search((struct str){text, at + piece}, at, stops, n, &which);
                is_done = stop_matcher_push(&m, (struct str){text + at, piece}, &out);
                assert_int_equal(is_done, want >= 0);
            }
            at += piece;
            if (!is_done) assert_int_equal(buf_len(&out) + m.held.len, at);
        }
        stop_matcher_finish(&m, &out);
        if (!str_eq(buf_str(&out), (struct str){text, want < 0 ? s.len : (size_t)want})) {
            fail_msg("text %.*s, want %td, got " STR_FMT, (int)s.len, text, want,
                     STR_ARG(buf_str(&out)));
        }
        if (is_done) assert_int_equal(m.matched, which);
        stop_matcher_fini(&m);
        stop_set_destroy(set);
    }
    buf_fini(&out);
}

static void text_after_the_end_is_another_one(void **state) {
    struct stop_set *set = set_of((struct str[]){STR("ab"), STR("aab")}, 2);
    struct stop_matcher m;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stop_matcher_init(&m, set, false);
    assert_false(stop_matcher_push(&m, STR("xaa"), &out));
    stop_matcher_finish(&m, &out);
    assert_false(stop_matcher_push(&m, STR("b"), &out));
    assert_true(str_eq(buf_str(&out), STR("xaab")));
    assert_true(stop_matcher_push(&m, STR("yab"), &out));
    assert_true(str_eq(buf_str(&out), STR("xaaby")));
    stop_matcher_fini(&m);
    stop_set_destroy(set);
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_possible_beginning_is_held_back),
        cmocka_unit_test(the_stop_string_may_be_included),
        cmocka_unit_test(held_text_is_returned_at_the_end),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(the_first_in_the_list_wins_among_those_of_a_token),
        cmocka_unit_test(a_string_that_begins_in_passed_text_is_found),
        cmocka_unit_test(any_pieces_give_what_a_search_gives),
        cmocka_unit_test(text_after_the_end_is_another_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
