/* tests/unit/worker/text/tokenizer/test_split_builtin.c - cuts by hand; test_tokenizer compares
 * with the reference library over many more texts. Classes and composition are tried here too. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/tokenizer/split_builtin.h"
#include "worker/text/unicode/unicode.h"

/* The pieces of `text`, with a bar between them. */
static void assert_cut(enum builtin_split kind, const char *text, const char *want) {
    const char *p = text, *end = text + strlen(text);
    struct buf out;

    buf_init(&out, 0);
    while (p < end) {
        size_t n = split_builtin_next(kind, p, end);

        if (p > text) buf_append_char(&out, '|');
        buf_append(&out, p, n);
        p += n;
    }
    if (!str_eq(buf_str(&out), str_of(want))) {
        fail_msg("want '%s', got '" STR_FMT "'", want, STR_ARG(buf_str(&out)));
    }
    buf_fini(&out);
}

static void words_digits_and_white_space_are_cut(void **state) {
    (void)state;
    assert_cut(BUILTIN_GPT2, "It's 1234 o'clock!!  ok\n\n x",
               "It|'s| 1234| o|'|clock|!!| | ok|\n\n| x");
    assert_cut(BUILTIN_QWEN2, "IT'S 12 a.b\n\n  x", "IT|'S| |1|2| a|.b|\n\n| | x");
    assert_cut(BUILTIN_LLAMA3, "12345 ...\r\n\ny", "123|45| ...\r\n\n|y");
    assert_cut(BUILTIN_QWEN35, "\xE0\xA4\xB9\xE0\xA4\xBF!", "\xE0\xA4\xB9\xE0\xA4\xBF|!");
    assert_cut(BUILTIN_QWEN2, "\xE0\xA4\xB9\xE0\xA4\xBF!", "\xE0\xA4\xB9|\xE0\xA4\xBF!");
}

/* The alternatives tried one after the other, straight from the expression
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ over ASCII. */
static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

static bool space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool line_end(char c) {
    return c == '\r' || c == '\n';
}

static size_t match_plainly(const char *p, size_t n) {
    static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    size_t i, k;

    for (i = 0; p[0] == '\'' && i < ARRAY_LEN(tails); i++) {
        size_t len = strlen(tails[i]);

        if (n > len && str_eq_nocase((struct str){p + 1, len}, str_of(tails[i]))) return len + 1;
    }
    i = !letter(p[0]) && !digit(p[0]) && !line_end(p[0]);
    for (k = i; k < n && letter(p[k]); k++)
        continue;
    if (k > i) return k;
    for (k = 0; k < n && k < 3 && digit(p[k]); k++)
        continue;
    if (k) return k;
    i = p[0] == ' ';
    for (k = i; k < n && !space(p[k]) && !letter(p[k]) && !digit(p[k]); k++)
        continue;
    if (k > i) {
        while (k < n && line_end(p[k]))
            k++;
        return k;
    }
    for (k = 0; k < n && space(p[k]); k++)
        continue;
    for (i = k; i > 0; i--) {
        if (line_end(p[i - 1])) return i;
    }
    return k == n || k == 1 ? k : k - 1;
}

static void every_short_text_is_cut_as_by_the_expression(void **state) {
    static const char alphabet[] = "sLe '1. \n\r\t";
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 200000; round++) {
        char text[12];
        size_t n = (size_t)rng_below(&rng, sizeof(text)) + 1, at = 0;

        for (size_t i = 0; i < n; i++)
            text[i] = alphabet[rng_below(&rng, sizeof(alphabet) - 1)];
        while (at < n) {
            size_t want = match_plainly(text + at, n - at);
            size_t got = split_builtin_next(BUILTIN_LLAMA3, text + at, text + n);

            if (got != want) fail_msg("'%.*s' at %zu: %zu, want %zu", (int)n, text, at, got, want);
            at += got;
        }
    }
}

static void only_known_expressions_are_recognised(void **state) {
    enum builtin_split kind;

    (void)state;
    assert_true(split_builtin_find(
        STR("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
        &kind));
    assert_int_equal(kind, BUILTIN_GPT2);
    assert_false(split_builtin_find(STR("\\p{L}+"), &kind));
    assert_false(split_builtin_find(STR(""), &kind));
}

static void classes_are_those_of_unicode(void **state) {
    (void)state;
    assert_int_equal(unicode_class('a'), UC_LL | UC_WORD);
    assert_int_equal(unicode_class('7'), UC_ND | UC_WORD);
    assert_int_equal(unicode_class('$'), UC_S);
    assert_int_equal(unicode_class('!'), UC_P);
    assert_int_equal(unicode_class('\n'), UC_SPACE);
    assert_int_equal(unicode_class(0x301), UC_M | UC_WORD);
    assert_int_equal(unicode_class(0x3000), UC_SPACE);
    assert_int_equal(unicode_class(0x65E5), UC_LO | UC_WORD);
    assert_int_equal(unicode_class(0x1F600), UC_S);
    assert_int_equal(unicode_class(0x2161), UC_NO | UC_WORD);
    assert_int_equal(unicode_class(0x110000), 0);
    assert_int_equal(unicode_class(UINT32_MAX), 0);
}

static void characters_survive_coding(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char text[4];
        uint32_t n = unicode_encode(cp, text), n_back;

        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        assert_int_equal(unicode_decode(text, text + n, &n_back), cp);
        assert_int_equal(n_back, n);
        if (n > 1) assert_int_equal(unicode_decode(text, text + n - 1, &n_back), 0xFFFD);
    }
}

static void assert_normal(enum unicode_form form, const char *text, const char *want) {
    struct error err = {0};
    struct buf out;

    buf_init(&out, 0);
    if (unicode_normalize(form, str_of(text), &out, &err) != ST_OK) fail_msg("%s", err.message);
    if (!str_eq(buf_str(&out), str_of(want))) {
        fail_msg("'%s' becomes '" STR_FMT "', want '%s'", text, STR_ARG(buf_str(&out)), want);
    }
    buf_fini(&out);
}

static void composition_is_done_where_it_matters(void **state) {
    (void)state;
    assert_true(unicode_is_nfc_quick(STR("abc \xC3\xA9 \xE6\x97\xA5")));
    assert_false(unicode_is_nfc_quick(STR("e\xCC\x81")));
    assert_normal(UNICODE_NFC, "", "");
    assert_normal(UNICODE_NFC, "cafe\xCC\x81 bar", "caf\xC3\xA9 bar");
    assert_normal(UNICODE_NFC, "A\xCC\x8A", "\xC3\x85");
    assert_normal(UNICODE_NFC, "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C");
    assert_normal(UNICODE_NFC, "e\xCC\x81\xCC\xA3",
                  "\xE1\xBA\xB9\xCC\x81"); /* the lower one first */
    assert_normal(UNICODE_NFD, "\xED\x95\x9C x", "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB x");
    assert_normal(UNICODE_NFKC, "\xEF\xBD\x86\xEF\xAC\x81n \xC2\xBD",
                  "ffin 1\xE2\x81\x84"
                  "2");
    assert_normal(UNICODE_NFKD, "\xC3\xA9", "e\xCC\x81");
}

/* U+1ABF, a mark of Unicode 13, and U+1FBF1, a digit with a decomposition from there. */
static void characters_newer_than_the_reference_stay(void **state) {
    (void)state;
    assert_normal(UNICODE_NFC, "a\xCC\x81\xE1\xAA\xBF\xCC\xA3", "\xC3\xA1\xE1\xAA\xBF\xCC\xA3");
    assert_normal(UNICODE_NFKC, "\xF0\x9F\xAF\xB1\xCC\x81", "\xF0\x9F\xAF\xB1\xCC\x81");
}

/* Marks above and below by turns: in their order, the first above joins the letter; however many
 * there are. */
static void any_number_of_marks_is_put_in_order(void **state) {
    static const size_t lengths[] = {1, 2, 31, 32, 33, 64, 1000, 100000};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct error err = {0};
        struct buf text, want, out;

        buf_init(&text, 0);
        buf_init(&want, 0);
        buf_init(&out, 0);
        buf_append_char(&text, 'q');
        buf_append_char(&want, 'q');
        for (size_t k = 0; k < lengths[i]; k++) {
            buf_append_str(&text, STR("\xCC\x81\xCC\xA3"));
            buf_append_str(&want, STR("\xCC\xA3"));
        }
        for (size_t k = 0; k < lengths[i]; k++)
            buf_append_str(&want, STR("\xCC\x81"));
        assert_int_equal(unicode_normalize(UNICODE_NFC, buf_str(&text), &out, &err), ST_OK);
        assert_true(str_eq(buf_str(&out), buf_str(&want)));
        buf_fini(&text);
        buf_fini(&want);
        buf_fini(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_digits_and_white_space_are_cut),
        cmocka_unit_test(every_short_text_is_cut_as_by_the_expression),
        cmocka_unit_test(only_known_expressions_are_recognised),
        cmocka_unit_test(classes_are_those_of_unicode),
        cmocka_unit_test(characters_survive_coding),
        cmocka_unit_test(composition_is_done_where_it_matters),
        cmocka_unit_test(characters_newer_than_the_reference_stay),
        cmocka_unit_test(any_number_of_marks_is_put_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
