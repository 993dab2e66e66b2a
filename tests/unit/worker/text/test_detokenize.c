/* tests/unit/worker/text/test_detokenize.c - whatever the tokens, what comes out is UTF-8. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/detokenize.h"
#include "worker/text/tokenizer/tokenizer.h"

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

/* --- a vocabulary of characters --------------------------------------------------------------- */
#define BYTE(b) (10 + (b))

/* unk 0, <s> 1, words, and the byte tokens from 10 on. */
static struct tokenizer *make_characters(const char *decoder) {
    struct tokenizer *t = NULL;
    struct error err = {0};
    struct buf file;

    buf_init(&file, 0);
    buf_appendf(
        &file,
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}],\"decoder\":%s,"
        "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"merges\":[],\"vocab\":{"
        "\"<unk>\":0,\"\\u2581\":2,\"\\u2581the\":3,\"x\":4,\"\\u2581\\u2581\":5,\"a\\u2581b\":6",
        decoder);
    for (int b = 0; b < 256; b++)
        buf_appendf(&file, ",\"<0x%02X>\":%d", b, BYTE(b));
    buf_append_str(&file, STR("}}}"));
    if (tokenizer_parse(&t, buf_str(&file), STR_NULL, &err) != ST_OK) fail_msg("%s", err.message);
    buf_fini(&file);
    return t;
}

#define LLAMA2                                                                                     \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"          \
    "\"\\u2581\"},"                                                                                \
    "\"content\":\" "                                                                              \
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":"         \
    "\" \",\"start\":1,\"stop\":0}]}"

static void assert_decodes(const struct tokenizer *t, const uint32_t *ids, size_t n,
                           const char *want) {
    struct buf text;

    buf_init(&text, 0);
    detokenize(t, ids, n, true, &text);
    if (!str_eq(buf_str(&text), str_of(want))) {
        fail_msg("'" STR_FMT "', want '%s'", STR_ARG(buf_str(&text)), want);
    }
    buf_fini(&text);
}

static void a_run_of_byte_tokens_is_text_or_is_replaced_byte_by_byte(void **state) {
    struct tokenizer *t = make_characters(LLAMA2);
    const uint32_t whole[] = {4, BYTE(0xC3), 1, BYTE(0xA9), BYTE('!'), 4};
    const uint32_t broken[] = {4, BYTE('a'), BYTE(0xC3), BYTE('b'), 4};
    const uint32_t open[] = {BYTE(0xE2), BYTE(0x82)};

    (void)state;
    assert_decodes(t, whole, ARRAY_LEN(whole), "x\xC3\xA9!x");
    assert_decodes(t, broken, ARRAY_LEN(broken), "x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx");
    assert_decodes(t, open, ARRAY_LEN(open), "\xEF\xBF\xBD\xEF\xBF\xBD");
    tokenizer_destroy(t);
}

static void the_first_space_goes_unless_a_prompt_came_before(void **state) {
    struct tokenizer *t = make_characters(LLAMA2), *m = make_characters("{\"type\":\"Metaspace\"}");
    const uint32_t ids[] = {1, 5, 3, 6};
    struct detokenizer d;
    struct buf out;

    (void)state;
    assert_decodes(t, ids, ARRAY_LEN(ids), "  thea b");
    assert_decodes(m, ids, ARRAY_LEN(ids), " thea b"); /* drops all blanks of the first token */
    buf_init(&out, 0);
    detokenizer_init_after(&d, t, true);
    detokenizer_push(&d, 3, &out);
    detokenizer_finish(&d, &out);
    assert_true(str_eq(buf_str(&out), STR(" the")));
    assert_true(str_eq(tokenizer_bytes(t, 3), STR(" the")));
    assert_true(str_eq(tokenizer_bytes(t, BYTE(0xC3)), STR("\xC3")));
    buf_fini(&out);
    tokenizer_destroy(t);
    tokenizer_destroy(m);
}

/* Any ids: each part is UTF-8, the parts join to the whole, and what is UTF-8 is not replaced. */
static void any_tokens_stream_to_what_they_are_at_once(void **state) {
    static const uint8_t common[] = {'a', 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80};
    struct tokenizer *t = make_characters(LLAMA2);
    struct rng rng;
    struct buf out, whole;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&out, 0);
    buf_init(&whole, 0);
    for (int round = 0; round < 5000; round++) {
        uint32_t ids[200];
        size_t n = rng_below(&rng, round % 10 ? 12 : ARRAY_LEN(ids));
        struct detokenizer d;

        for (size_t i = 0; i < n; i++) {
            ids[i] = rng_below(&rng, 4) ? BYTE((uint32_t)common[rng_below(&rng, sizeof(common))])
                                        : (uint32_t)rng_below(&rng, BYTE(260));
        }
        buf_clear(&out);
        buf_clear(&whole);
        detokenize(t, ids, n, false, &whole);
        detokenizer_init(&d, t, false);
        for (size_t i = 0; i < n; i++) {
            detokenizer_push(&d, ids[i], &out);
            assert_true(str_is_utf8(buf_str(&out)));
        }
        detokenizer_finish(&d, &out);
        assert_true(str_eq(buf_str(&out), buf_str(&whole)));
    }
    buf_fini(&out);
    buf_fini(&whole);
    tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_comes_out_whole),
        cmocka_unit_test(broken_parts_are_replaced_once_each),
        cmocka_unit_test(special_tokens_are_skipped_or_shown),
        cmocka_unit_test(pieces_join_to_the_whole),
        cmocka_unit_test(a_run_of_byte_tokens_is_text_or_is_replaced_byte_by_byte),
        cmocka_unit_test(the_first_space_goes_unless_a_prompt_came_before),
        cmocka_unit_test(any_tokens_stream_to_what_they_are_at_once),
    };

    return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
