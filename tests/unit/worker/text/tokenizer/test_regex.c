/* tests/unit/worker/text/tokenizer/test_regex.c - the small engine: what it matches, what it
 * refuses, that it ends. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/tokenizer/regex.h"
#include "worker/text/tokenizer/split_builtin.h"

#define PLENTY 1000000

/* The matches of `source` in `text`, with a bar between them. */
static void assert_matches(const char *source, const char *text, const char *want) {
    uint64_t steps = PLENTY;
    struct regex *r = NULL;
    size_t begin, end = 0;
    struct buf out;

    if (regex_compile(&r, str_of(source)) != ST_OK) fail_msg("'%s' is refused", source);
    buf_init(&out, 0);
    while (regex_find(r, str_of(text), end, &steps, &begin, &end)) {
        if (buf_len(&out)) buf_append_char(&out, '|');
        buf_append(&out, text + begin, end - begin);
    }
    if (!str_eq(buf_str(&out), str_of(want))) {
        fail_msg("'%s' in '%s': '" STR_FMT "', want '%s'", source, text, STR_ARG(buf_str(&out)),
                 want);
    }
    buf_fini(&out);
    regex_destroy(r);
}

static void expressions_of_tokenizers_are_matched(void **state) {
    (void)state;
    assert_matches("a", "banana", "a|a|a");
    assert_matches("[a-c]+", "abxcab", "ab|cab");
    assert_matches("[^a-c]+", "abxycd", "xy|d");
    assert_matches("\\p{Lu}\\p{Ll}*", "CamelCaseX \xC3\x84h", "Camel|Case|X|\xC3\x84h");
    assert_matches("\\p{N}{1,3}", "12345 6", "123|45|6");
    assert_matches("\\p{N}{2}", "12345", "12|34");
    assert_matches("\\p{N}{1,3}+", "12345", "12345"); /* a repetition repeated */
    assert_matches("(?i:'s|'ll)", "'s'S'LL'\xC5\xBF", "'s|'S|'LL|'\xC5\xBF");
    assert_matches("x(?:a|bc)?y", "xy xay xbcy xby", "xy|xay|xbcy");
    assert_matches("x(a|ab)c", "xabc", "xabc");
    assert_matches("\\s+(?!\\S)", "a   b  ", "  |  ");
    assert_matches("a(?=b)", "abac", "a");
    assert_matches("\\s+$", "a  \nb \t", "  | \t"); /* at every line end */
    assert_matches("^a", "ab\nab", "a|a");
    assert_matches("a?+ab|b", "aab", "aab");
    assert_matches("a++b", "aaab", "aaab");
    assert_matches("[\\]\\-x]+", "a]-x", "]-x");
    assert_matches(".+", "ab\ncd", "ab|cd");
    assert_matches("\\u00e9|\\x41", "\xC3\xA9 A", "\xC3\xA9|A");
}

static void unsupported_expressions_are_refused(void **state) {
    static const char *const sources[] = {
        "",         "a*",    "(?:a|b*)",  "(a|)",        "(?<=a)b", "(?<!a)b",  "a+?",
        "\\bx",     "(ab)+", "(?:ab){2}", "[[:alpha:]]", "[a&&b]",  "a{2,3}+",  "[b-a]",
        "[a",       "(a",    "a)",        "*a",          "a**",     "\\p{Han}", "\\k",
        "(?P<n>a)", "[\\S]", "a{0}",      "(?i:[a-z])",  "\\"};
    struct regex *r = NULL;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        if (regex_compile(&r, str_of(sources[i])) != ST_UNSUPPORTED) {
            fail_msg("'%s' is taken", sources[i]);
        }
    }
}

/* The same cut by the matcher written by hand and by the engine, over any text. */
static void it_cuts_as_the_matchers_by_hand(void **state) {
    static const char *const parts[] = {
        "a",       "B", "'s", "'LL",      " ",        "  ", "\n",           "\r", "1",
        "23",      "!", "-",  "\xC3\xA9", "\xCC\x81", "\t", "\xE3\x80\x80", "'",  "\xE6\x97\xA5",
        "\xC2\xB2"};
    struct regex *r = NULL;
    struct rng rng;
    struct buf text;

    (void)state;
    rng_seed(&rng, support_seed());
    assert_int_equal(regex_compile(&r, STR(BUILTIN_GPT2_REGEX)), ST_OK);
    buf_init(&text, 0);
    for (int round = 0; round < 20000; round++) {
        uint64_t steps = PLENTY;
        size_t begin, end = 0;

        buf_clear(&text);
        for (uint64_t i = rng_below(&rng, 12) + 1; i > 0; i--)
            buf_append_str(&text, str_of(parts[rng_below(&rng, ARRAY_LEN(parts))]));
        while (end < buf_len(&text)) {
            const char *p = buf_ptr(&text) + end;
            size_t want =
                       end + split_builtin_next(BUILTIN_GPT2, p, buf_ptr(&text) + buf_len(&text)),
                   from = end;

            assert_true(regex_find(r, buf_str(&text), from, &steps, &begin, &end));
            assert_int_equal(begin, from);
            assert_int_equal(end, want);
        }
    }
    buf_fini(&text);
    regex_destroy(r);
}

static void a_text_made_to_cost_meets_the_budget(void **state) {
    struct regex *r = NULL;
    uint64_t steps = 100000;
    char text[4000];
    size_t begin, end;

    (void)state;
    memset(text, 'a', sizeof(text));
    assert_int_equal(regex_compile(&r, STR("a*a*a*a*a*b")), ST_OK);
    assert_false(regex_find(r, (struct str){text, sizeof(text)}, 0, &steps, &begin, &end));
    assert_int_equal(steps, 0);
    regex_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_of_tokenizers_are_matched),
        cmocka_unit_test(unsupported_expressions_are_refused),
        cmocka_unit_test(it_cuts_as_the_matchers_by_hand),
        cmocka_unit_test(a_text_made_to_cost_meets_the_budget),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
