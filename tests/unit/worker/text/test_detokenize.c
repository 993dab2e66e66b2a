/* tests/unit/worker/text/test_detokenize.c - whatever the tokens, what comes out is UTF-8. */
#include "worker/text/detokenize.h"

#include "common/mem.h"
#include "common/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/tokenizer.h"

/* The built-in tokenizer: a byte is a token. */
static struct tokenizer *bytes;

static int make_tokenizer(void **state) {
    (void)state;
    bytes = tokenizer_create_bytes();
    return 0;
}

static int drop_tokenizer(void **state) {
    (void)state;
    tokenizer_destroy(bytes);
    return 0;
}

/* All of `s`, a byte at a time. */
static void stream(struct str s, struct buf *out) {
    struct detokenizer d;

    detokenizer_init(&d, bytes, true);
    for (size_t i = 0; i < s.len; i++) {
        detokenizer_push(&d, (uint8_t)s.ptr[i], out);
        assert_true(str_is_utf8(buf_str(out)));
    }
    detokenizer_finish(&d, out);
}

static void a_character_comes_out_whole(void **state) {
    static const size_t want[] = {1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    struct str s = STR("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
    struct detokenizer d;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    detokenizer_init(&d, bytes, true);
    for (size_t i = 0; i < s.len; i++) {
        detokenizer_push(&d, (uint8_t)s.ptr[i], &out);
        assert_int_equal(buf_len(&out), want[i]);
    }
    detokenizer_finish(&d, &out);
    assert_true(str_eq(buf_str(&out), s));
    buf_fini(&out);
}

/* As Python's bytes.decode('utf-8', 'replace') gives it. */
static void broken_parts_are_replaced_once_each(void **state) {
    static const struct {
        struct str in, out;
    } cases[] = {
        {{"\x80", 1}, {"\xEF\xBF\xBD", 3}},
        {{"a\xC3", 2}, {"a\xEF\xBF\xBD", 4}},
        {{"\xC3\x28", 2}, {"\xEF\xBF\xBD\x28", 4}},
        {{"\xE2\x82\x28", 3}, {"\xEF\xBF\xBD\x28", 4}},
        {{"\xF0\x9F\x98", 3}, {"\xEF\xBF\xBD", 3}},
        {{"\xF0\x9F\x98\xF0\x9F\x98\x80", 7}, {"\xEF\xBF\xBD\xF0\x9F\x98\x80", 7}},
        {{"\xED\xA0\x80", 3}, {"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9}},
        {{"\xC0\xAF", 2}, {"\xEF\xBF\xBD\xEF\xBF\xBD", 6}},
        {{"\xF4\x90\x80\x80", 4}, {"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 12}},
        {{"\xE0\x80\x80x", 4}, {"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx", 10}},
    };
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_clear(&out);
        stream(cases[i].in, &out);
        if (!str_eq(buf_str(&out), cases[i].out)) fail_msg("case %zu, streamed", i);
        buf_clear(&out);
        detokenize_repair(cases[i].in, &out);
        if (!str_eq(buf_str(&out), cases[i].out)) fail_msg("case %zu, at once", i);
    }
    buf_fini(&out);
}

static void special_tokens_are_skipped_or_shown(void **state) {
    struct detokenizer d;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    detokenizer_init(&d, bytes, true);
    detokenizer_push(&d, 0xC3, &out);
    detokenizer_push(&d, 258, &out); /* in the middle of a character */
    detokenizer_push(&d, 0xA9, &out);
    assert_true(str_eq(buf_str(&out), STR("\xC3\xA9")));
    buf_clear(&out);
    detokenizer_init(&d, bytes, false);
    detokenizer_push(&d, 0xC3, &out);
    detokenizer_push(&d, 258, &out);
    detokenizer_push(&d, 1u << 30, &out); /* no such token */
    detokenizer_finish(&d, &out);
    assert_true(str_eq(buf_str(&out), STR("\xEF\xBF\xBD<|im_end|>")));
    buf_clear(&out);
    detokenize_one(bytes, 0xC3, &out);
    assert_true(str_eq(buf_str(&out), STR("\xEF\xBF\xBD")));
    buf_fini(&out);
}

/* Streamed in pieces of any size, random bytes become what they become at once. */
static void pieces_join_to_the_whole(void **state) {
    struct rng rng;
    struct buf out, whole;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&out, 0);
    buf_init(&whole, 0);
    for (int round = 0; round < 20000; round++) {
        static const uint8_t common[] = {'a', 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80};
        char s[24];
        size_t n = (size_t)rng_below(&rng, sizeof(s) + 1);

        for (size_t i = 0; i < n; i++) {
            s[i] = (char)(rng_below(&rng, 3) ? common[rng_below(&rng, sizeof(common))]
                                             : rng_below(&rng, 256));
        }
        buf_clear(&out);
        buf_clear(&whole);
        stream((struct str){s, n}, &out);
        detokenize_repair((struct str){s, n}, &whole);
        assert_true(str_is_utf8(buf_str(&whole)));
        assert_true(str_eq(buf_str(&out), buf_str(&whole)));
        if (str_is_utf8((struct str){s, n})) assert_true(str_eq(buf_str(&out), (struct str){s, n}));
    }
    buf_fini(&out);
    buf_fini(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_comes_out_whole),
        cmocka_unit_test(broken_parts_are_replaced_once_each),
        cmocka_unit_test(special_tokens_are_skipped_or_shown),
        cmocka_unit_test(pieces_join_to_the_whole),
    };

    return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
