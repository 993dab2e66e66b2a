/* tests/unit/worker/grammar/test_expr.c - expressions and patterns against sets of strings worked
 * out by their definition. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/regex_expr.h"

#define LETTERS 3u /* a, b, c */
#define LONGEST 4u
#define N_WORDS 121u /* of up to LONGEST letters */

/* A language as the set of its short words. */
struct words {
    bool has[N_WORDS];
};

static uint32_t word_number(const char *s) {
    uint32_t n = 0, first = 0, count = 1;

    for (size_t i = 0; s[i] != '\0'; i++) {
        first += count;
        count *= LETTERS;
        n = n * LETTERS + (uint32_t)(s[i] - 'a');
    }
    return first + n;
}

static void word_at(uint32_t number, char out[LONGEST + 1]) {
    uint32_t len = 0, count = 1;

    while (number >= count) {
        number -= count;
        count *= LETTERS;
        len++;
    }
    out[len] = '\0';
    for (uint32_t i = len; i-- > 0; number /= LETTERS)
        out[i] = (char)('a' + number % LETTERS);
}

static struct words join(const struct words *a, const struct words *b) {
    struct words out = {{false}};
    char p[LONGEST + 1], q[LONGEST + 1], both[2 * LONGEST + 1];

    for (uint32_t i = 0; i < N_WORDS; i++)
        for (uint32_t k = 0; a->has[i] && k < N_WORDS; k++) {
            if (!b->has[k]) continue;
            word_at(i, p);
            word_at(k, q);
            snprintf(both, sizeof(both), "%s%s", p, q);
            if (strlen(both) <= LONGEST) out.has[word_number(both)] = true;
        }
    return out;
}

static struct words repeat(const struct words *a, uint32_t min, uint32_t max) {
    struct words out = {{false}}, power = {{true}};

    for (uint32_t n = 0; n <= max && n <= LONGEST + min; n++) {
        for (uint32_t i = 0; n >= min && i < N_WORDS; i++)
            out.has[i] |= power.has[i];
        power = join(&power, a);
    }
    return out;
}

/* A random expression, and its words. */
static expr_id draw(struct exprs *x, struct rng *rng, uint32_t depth, struct words *words) {
    struct words a, b;
    expr_id p, q;
    uint32_t kind = (uint32_t)rng_below(rng, depth == 0 ? 2 : 8), min, max;
    char letter[2] = {(char)('a' + rng_below(rng, LETTERS)), '\0'};

    memset(words, 0, sizeof(*words));
    if (kind == 0) {
        words->has[word_number(letter)] = true;
        return expr_byte(x, (uint8_t)letter[0]);
    }
    if (kind == 1) {
        words->has[0] = true;
        return EXPR_EMPTY;
    }
    p = draw(x, rng, depth - 1, &a);
    if (kind == 2) {
        min = (uint32_t)rng_below(rng, 3);
        max = rng_below(rng, 2) ? EXPR_FOREVER : min + (uint32_t)rng_below(rng, 3);
        *words = repeat(&a, min, max);
        return expr_repeat(x, p, min, max);
    }
    if (kind == 3) {
        for (uint32_t i = 0; i < N_WORDS; i++)
            words->has[i] = !a.has[i];
        return expr_not(x, p);
    }
    q = draw(x, rng, depth - 1, &b);
    if (kind <= 5) {
        *words = join(&a, &b);
        return expr_concat(x, p, q);
    }
    for (uint32_t i = 0; i < N_WORDS; i++)
        words->has[i] = kind == 6 ? a.has[i] || b.has[i] : a.has[i] && b.has[i];
    return kind == 6 ? expr_alt(x, p, q) : expr_and(x, p, q);
}

static void check_words(struct exprs *x, expr_id e, const struct words *words) {
    char word[LONGEST + 1];

    for (uint32_t i = 0; i < N_WORDS; i++) {
        word_at(i, word);
        if (expr_matches(x, e, str_of(word)) != words->has[i])
            fail_msg("\"%s\" is %sa member", word, words->has[i] ? "" : "not ");
        if (words->has[i]) assert_true(expr_is_alive(x, e));
    }
}

/* Does a derivative hold the empty string? Each is looked at, in the order in which it is met. */
static bool has_member(struct exprs *x, expr_id e) {
    expr_id met[2000];
    uint32_t n = 0;

    met[n++] = e;
    for (uint32_t i = 0; i < n; i++) {
        if (expr_is_nullable(x, met[i])) return true;
        for (uint32_t class = 0; class < exprs_n_classes(x); class ++) {
            expr_id d = expr_derive(x, met[i], class);
            uint32_t k = 0;

            while (k < n && met[k] != d)
                k++;
            assert_true(k < ARRAY_LEN(met));
            if (k == n) met[n++] = d;
        }
    }
    return false;
}

static void derivatives_decide_membership(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 2000; round++) {
        struct exprs *x = exprs_create(1 << 24);
        struct words words;
        expr_id e = draw(x, &rng, 3, &words);

        exprs_freeze(x);
        assert_int_equal(expr_is_alive(x, e), has_member(x, e));
        check_words(x, e, &words);
        exprs_check(x);
        exprs_destroy(x);
    }
}

/* What is kept means the same afterwards. */
static void collecting_keeps_what_is_live(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 300; round++) {
        struct exprs *x = exprs_create(1 << 24);
        struct words words, ignored;
        uint8_t *is_live;
        expr_id *moved, e = draw(x, &rng, 3, &words);
        size_t bytes;

        for (uint32_t i = 0; i < 20; i++)
            (void)draw(x, &rng, 3, &ignored);
        exprs_freeze(x);
        check_words(x, e, &words);
        bytes = exprs_bytes(x);
        is_live = mem_calloc(exprs_count(x), 1);
        moved = mem_calloc(exprs_count(x), sizeof(*moved));
        is_live[e] = 1;
        exprs_collect(x, is_live, moved);
        exprs_check(x);
        assert_true(exprs_bytes(x) <= bytes);
        check_words(x, moved[e], &words);
        mem_free(is_live);
        mem_free(moved);
        exprs_destroy(x);
    }
}

static void an_empty_intersection_is_dead(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    expr_id a = expr_byte(x, 'a'), b = expr_byte(x, 'b'), any, ends_a, ends_b;

    (void)state;
    any = expr_repeat(x, expr_alt(x, a, b), 0, EXPR_FOREVER);
    ends_a = expr_concat(x, any, a);
    ends_b = expr_concat(x, any, b);
    exprs_freeze(x);
    assert_false(expr_is_alive(x, expr_and(x, ends_a, ends_b)));
    assert_true(expr_is_alive(x, expr_and(x, ends_a, expr_not(x, ends_b))));
    assert_false(expr_continues(x, expr_and(x, expr_optional(x, a), expr_not(x, a))));
    exprs_destroy(x);
}

static expr_id pattern_of(struct exprs *x, const char *text) {
    struct regex_rules rules = {.form = CHARS_IN_JSON};
    expr_id e;
    struct error err;

    assert_int_equal(regex_expr_parse(&e, x, str_of(text), &rules, &err), ST_OK);
    return e;
}

/* A long string is found by going where every part of an intersection gets nearer to its end. */
static void a_long_member_is_found_at_once(void **state) {
    static const char *const patterns[] = {"\\d-\\d", "^[a-z]+$", "^(.*a.*b.*c)$", "(a+)+$",
                                           "^(a|b)*a(a|b){20}$"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        struct exprs *x = exprs_create(1 << 24);
        expr_id e = expr_repeat(x, char_any_expr(x, CHARS_IN_JSON), 5000, 100000);

        e = expr_concat(x, expr_and(x, e, pattern_of(x, patterns[i])), expr_byte(x, '"'));
        exprs_freeze(x);
        exprs_set_fuel(x, 500000);
        if (!expr_is_alive(x, e)) fail_msg("%s is not found", patterns[i]);
        exprs_destroy(x);
    }
}

static void lengths_that_exclude_each_other_are_none(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    expr_id a = expr_byte(x, 'a'), digit = EXPR_NONE, digits, multiple;

    (void)state;
    for (uint8_t c = '0'; c <= '9'; c++)
        digit = expr_alt(x, digit, expr_byte(x, c));
    assert_int_equal(expr_and(x, expr_repeat(x, a, 3, 5), expr_repeat(x, a, 6, EXPR_FOREVER)),
                     EXPR_NONE);
    digits = expr_concat(x, expr_byte(x, '1'), expr_repeat(x, digit, 3, 3));
    multiple = expr_and(x, expr_multiple(x, 10000), digits); /* 1000 to 1999 */
    exprs_freeze(x);
    assert_int_equal(expr_derive(x, multiple, exprs_class_of(x)['1']), EXPR_NONE);
    assert_true(expr_matches(x, expr_multiple(x, 10000), STR("20000")));
    exprs_destroy(x);
}

static void work_and_memory_are_limited(void **state) {
    struct exprs *x = exprs_create(1 << 16);
    expr_id e = EXPR_EMPTY;

    (void)state;
    for (uint32_t i = 0; i < 100000; i++)
        e = expr_concat(x, expr_byte(x, (uint8_t)i), e);
    assert_int_equal(exprs_failure(x), EXPRS_OUT_OF_MEMORY);
    assert_int_equal(expr_byte(x, 'q'), EXPR_NONE);
    exprs_destroy(x);
    x = exprs_create(1 << 24);
    exprs_set_fuel(x, 1000);
    for (uint32_t i = 0; i < 100000; i++)
        e = expr_concat(x, expr_byte(x, (uint8_t)i), i == 0 ? EXPR_EMPTY : e);
    assert_int_equal(exprs_failure(x), EXPRS_OUT_OF_WORK);
    exprs_forgive(x);
    exprs_set_fuel(x, 1000);
    assert_int_not_equal(expr_byte(x, 'q'), EXPR_NONE);
    exprs_destroy(x);
}

/* --- patterns --------------------------------------------------------------------------------- */

static bool parse(struct exprs *x, const char *pattern, bool is_whole, enum char_form form,
                  expr_id *e) {
    struct regex_rules rules = {.form = form, .is_whole = is_whole};
    struct error err;
    bool is_ok = regex_expr_parse(e, x, str_of(pattern), &rules, &err) == ST_OK;

    exprs_freeze(x);
    return is_ok;
}

static void patterns_match_what_they_describe(void **state) {
    static const struct {
        const char *pattern;
        bool is_whole;
        const char *yes[4], *no[4];
    } cases[] = {
        {"a+", true, {"a", "aa"}, {"", "ab", "ba"}},
        {"a+",
         false,
         {"a", "xay",
          "\xE2\x82\xAC"
          "a"},
         {"", "b"}},
        {"^a|b$", false, {"ax", "xb", "ab"}, {"xa", "bx", ""}},
        {"^(a|b)$", false, {"a", "b"}, {"ab", "xa", ""}},
        {"(^a)b|c", false, {"ab", "abx", "xc"}, {"xab", "b"}},
        {"^$", false, {""}, {"a"}},
        {"a^b", false, {NULL}, {"ab", "a^b", ""}},
        {"[^a-c]", true, {"d", "\xC3\xA9", "\n"}, {"a", "dd", ""}},
        {".", true, {"a", "\xF0\x9F\x98\x80"}, {"\n", "\xF0\x9F", "ab"}},
        {"\\d{2,3}", true, {"12", "123"}, {"1", "1234", "\xD9\xA3\xD9\xA3"}},
        {"\\u00e9\\x41\\u{1F600}",
         true,
         {"\xC3\xA9"
          "A\xF0\x9F\x98\x80"},
         {"eA"}},
        {"\\uD83D\\uDE00", true, {"\xF0\x9F\x98\x80"}, {"x"}},
        {"(?:ab)*?c??", true, {"", "abab", "abc"}, {"ba"}},
        {"(?<n>a)(?P<m>b)", true, {"ab"}, {"a"}},
        {"[\\w-]+", true, {"a-b_9"}, {"a b"}},
        {"[]a]", true, {NULL}, {"]a"}},
        {"x{,3}", true, {"x{,3}"}, {"xx"}},
        {"\\S\\s", true, {"a ", "a\xE2\x80\x83"}, {"  "}},
        {"\\.\\/\\-", true, {"./-"}, {"a/-"}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct exprs *x = exprs_create(1 << 24);
        expr_id e;

        assert_true(parse(x, cases[i].pattern, cases[i].is_whole, CHARS_PLAIN, &e));
        for (size_t k = 0; k < 4 && cases[i].yes[k]; k++)
            if (!expr_matches(x, e, str_of(cases[i].yes[k])))
                fail_msg("%s does not match \"%s\"", cases[i].pattern, cases[i].yes[k]);
        for (size_t k = 0; k < 4 && cases[i].no[k]; k++)
            if (expr_matches(x, e, str_of(cases[i].no[k])))
                fail_msg("%s matches \"%s\"", cases[i].pattern, cases[i].no[k]);
        exprs_destroy(x);
    }
}

static void each_character_has_one_spelling_in_json(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    expr_id e;

    (void)state;
    assert_true(parse(x, "[\\s\\S]", true, CHARS_IN_JSON, &e));
    assert_true(expr_matches(x, e, STR("\\n")));
    assert_true(expr_matches(x, e, STR("\\\"")));
    assert_true(expr_matches(x, e, STR("\\u0000")));
    assert_true(expr_matches(x, e, STR("/")));
    assert_true(expr_matches(x, e, STR("\xE2\x82\xAC")));
    assert_false(expr_matches(x, e, STR("\n")));
    assert_false(expr_matches(x, e, STR("\"")));
    assert_false(expr_matches(x, e, STR("\\/")));
    assert_false(expr_matches(x, e, STR("\\u0041")));
    assert_false(expr_matches(x, e, STR("\\u000a")));
    assert_false(expr_matches(x, e, STR("\xED\xA0\x80"))); /* a surrogate */
    exprs_destroy(x);
}

static void unsupported_patterns_are_named(void **state) {
    static const struct {
        const char *pattern, *what;
    } cases[] = {
        {"(?=a)", "look-ahead"},   {"(?<!a)", "look-behind"},   {"(a)\\1", "back-reference"},
        {"\\bx", "word boundary"}, {"\\p{L}", "property"},      {"(?i)a", "flags"},
        {"a**", "nothing"},        {"(a", "without its )"},     {"a)", "without its group"},
        {"[a", "without its ]"},   {"[b-a]", "wrong order"},    {"a{3,2}", "above"},
        {"(^a){2}", "anchor"},     {"(.{1,99}){99}", "states"}, {"\\", "backslash"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct exprs *x = exprs_create(1 << 24);
        struct regex_rules rules = {.form = CHARS_PLAIN};
        struct error err = {0};
        expr_id e;

        assert_int_equal(regex_expr_parse(&e, x, str_of(cases[i].pattern), &rules, &err),
                         ST_INVALID);
        if (!strstr(err.message, cases[i].what)) fail_msg("%s: %s", cases[i].pattern, err.message);
        exprs_destroy(x);
    }
}

static void free_text_is_recognised(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    expr_id any = char_any_expr(x, CHARS_IN_JSON), quote = expr_byte(x, '"'), e;
    struct str keys[] = {STR("a"), STR("bc")};

    (void)state;
    e = expr_concat(x, expr_repeat(x, any, 0, 7), quote);
    exprs_freeze(x);
    assert_int_equal(expr_free_chars(x, e), 7);
    e = expr_concat(x, expr_repeat(x, any, 0, EXPR_FOREVER), quote);
    assert_int_equal(expr_free_chars(x, e), EXPR_FOREVER);
    e = expr_and(x, e, expr_not(x, expr_concat(x, expr_one_of(x, keys, 2), quote)));
    assert_int_equal(expr_free_chars(x, e), EXPR_FOREVER);
    assert_int_equal(expr_free_chars(x, expr_literal(x, STR("abc"))), 0);
    assert_true(parse(x, "^[a-z]*$", false, CHARS_IN_JSON, &e));
    assert_int_equal(expr_free_chars(x, e), 0);
    exprs_destroy(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derivatives_decide_membership),
        cmocka_unit_test(collecting_keeps_what_is_live),
        cmocka_unit_test(an_empty_intersection_is_dead),
        cmocka_unit_test(a_long_member_is_found_at_once),
        cmocka_unit_test(lengths_that_exclude_each_other_are_none),
        cmocka_unit_test(work_and_memory_are_limited),
        cmocka_unit_test(patterns_match_what_they_describe),
        cmocka_unit_test(each_character_has_one_spelling_in_json),
        cmocka_unit_test(unsupported_patterns_are_named),
        cmocka_unit_test(free_text_is_recognised),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
