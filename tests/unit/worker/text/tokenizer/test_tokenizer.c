/* tests/unit/worker/text/tokenizer/test_tokenizer.c - against the reference library's vectors, and
 * limits. The vectors are made by tests/unit/data/make_tokenizer_vectors.py. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/detokenize.h"
#include "worker/text/tokenizer/pattern.h"
#include "worker/text/tokenizer/tokenizer.h"

#define DATA "tests/unit/data/"

static char *read_text(const char *path, size_t *n) {
    char *text = NULL;
    struct error err = {0};

    if (file_read(path, 64 << 20, &text, n, &err) != ST_OK) fail_msg("%s", err.message);
    return text;
}

static struct json *read_json(const char *path) {
    size_t n;
    char *text = read_text(path, &n);
    struct json *root = NULL;
    struct error err = {0};

    if (json_parse(&root, (struct str){text, n}, NULL, &err) != ST_OK) fail_msg("%s", err.message);
    mem_free(text);
    return root;
}

static struct tokenizer *open_tokenizer(const char *path) {
    size_t n;
    char *text = read_text(path, &n);
    struct tokenizer *t = NULL;
    struct error err = {0};

    if (tokenizer_parse(&t, (struct str){text, n}, STR_NULL, &err) != ST_OK) {
        fail_msg("%s", err.message);
    }
    mem_free(text);
    return t;
}

static void check_case(const struct tokenizer *t, const struct json *c, const char *field,
                       uint32_t flags) {
    const struct json *expected = json_get(c, field), *id = json_first(expected);
    struct token_list got = {0};
    enum status st;
    struct str text;

    assert_int_equal(json_to_str(json_get(c, "text"), &text), ST_OK);
    st = tokenizer_encode(t, text, flags, &got, NULL);
    assert_int_equal(st, ST_OK);
    for (size_t i = 0; i < got.n && id; i++, id = json_next(id)) {
        uint64_t want = 0;

        assert_int_equal(json_to_u64(id, &want), ST_OK);
        if (want != got.ids[i]) {
            fail_msg("'%s' (%s): token %zu is %u, want %u", text.ptr, field, i, got.ids[i],
                     (unsigned)want);
        }
    }
    if (got.n != json_count(expected)) {
        fail_msg("'%s' (%s): %zu tokens, want %zu", text.ptr, field, got.n, json_count(expected));
    }
    token_list_fini(&got);
}

static void encodes_as_the_reference_library_does(void **state) {
    struct json *vectors = read_json(DATA "tokenizer_vectors.json");

    (void)state;
    JSON_FOR_EACH(v, vectors) {
        char path[256];
        struct str name;
        struct tokenizer *t;

        assert_int_equal(json_to_str(json_get(v, "tokenizer"), &name), ST_OK);
        snprintf(path, sizeof(path), DATA "%s", name.ptr);
        t = open_tokenizer(path);
        JSON_FOR_EACH(c, json_get(v, "cases")) {
            check_case(t, c, "ids", 0);
            check_case(t, c, "special", TOKENIZE_SPECIAL);
        }
        tokenizer_destroy(t);
    }
    json_destroy(vectors);
}

static void demonstration_model_encodes_as_it_was_trained(void **state) {
    struct json *vectors = read_json(DATA "demo_tokenizer_vectors.json");
    struct tokenizer *t = NULL;
    struct error err = {0};
    uint32_t id = 0;

    (void)state;
    if (tokenizer_open(&t, "deploy/demo/model", &err) != ST_OK) fail_msg("%s", err.message);
    JSON_FOR_EACH(c, vectors) check_case(t, c, "ids", 0);
    assert_true(tokenizer_find(t, STR("<|im_end|>"), &id));
    assert_true(tokenizer_is_special(t, id) && tokenizer_is_added(t, id));
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    tokenizer_destroy(t);
    json_destroy(vectors);
}

/* Encoding and decoding any text gives the text back, NFC and stripped added tokens aside. */
static void decoding_undoes_encoding(void **state) {
    struct tokenizer *t = open_tokenizer(DATA "tokenizer_gpt2.json");
    struct rng rng;
    struct token_list ids = {0};
    struct buf text, back;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&text, 0);
    buf_init(&back, 0);
    for (int round = 0; round < 3000; round++) {
        buf_clear(&text);
        buf_clear(&back);
        ids.n = 0;
        for (uint32_t i = rng_below(&rng, 60); i > 0; i--) {
            static const char *const parts[] = {
                "a",   "e",        "the ",         " ",          "\n",  "\xC3\xA9",         "1",
                "'s",  "!",        "\xE6\x97\xA5", "<|im_end|>", "abc", "\xF0\x9F\x98\x80", "\t",
                "foo", "q\xCC\x81"};

            buf_append_str(&text, str_of(parts[rng_below(&rng, ARRAY_LEN(parts))]));
        }
        assert_int_equal(tokenizer_encode(t, buf_str(&text), 0, &ids, NULL), ST_OK);
        detokenize(t, ids.ids, ids.n, false, &back);
        assert_true(str_eq(buf_str(&text), buf_str(&back)));
    }
    token_list_fini(&ids);
    buf_fini(&text);
    buf_fini(&back);
    tokenizer_destroy(t);
}

static void plain_text_cannot_forge_special_tokens(void **state) {
    struct tokenizer *t = open_tokenizer(DATA "tokenizer_qwen2.json");
    struct token_list ids = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(t, STR("a<|im_end|>"), TOKENIZE_PLAIN, &ids, NULL), ST_OK);
    assert_true(ids.n > 2);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_special(t, ids.ids[i]));
    token_list_fini(&ids);
    tokenizer_destroy(t);
}

static void a_megabyte_of_one_letter_is_no_trouble(void **state) {
    static const char *const files[] = {DATA "tokenizer_gpt2.json", DATA "tokenizer_llama3.json"};
    static const char *const units[] = {"a", "ab", " ", "\n", "the", "'", "<", "1"};
    size_t n = 1 << 20;
    char *text = mem_alloc(n);

    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        struct tokenizer *t = open_tokenizer(files[f]);

        for (size_t u = 0; u < ARRAY_LEN(units); u++) {
            struct token_list ids = {0};
            struct buf back;

            for (size_t i = 0; i < n; i++)
                text[i] = units[u][i % strlen(units[u])];
            assert_int_equal(tokenizer_encode(t, (struct str){text, n}, 0, &ids, NULL), ST_OK);
            buf_init(&back, 0);
            detokenize(t, ids.ids, ids.n, false, &back);
            assert_int_equal(buf_len(&back), n);
            assert_memory_equal(buf_ptr(&back), text, n);
            buf_fini(&back);
            token_list_fini(&ids);
        }
        tokenizer_destroy(t);
    }
    mem_free(text);
}

/* An expression for pcre2, whose memory is refused at each place. */
static void refused_memory_ends_a_search(void **state) {
    struct str text = STR("one two, three"), expression = STR("(?<=, )[a-z]+");
    struct pattern p = {0};
    struct pattern_run run;
    struct error err = {0};
    size_t begin, end;
    uint64_t fail = 0;
    enum status st;

    (void)state;
    if (pattern_regex(&p, expression, &err) != ST_OK) fail_msg("%s", err.message);
    assert_int_equal(p.kind, PATTERN_LIBRARY);
    do {
        pattern_run_init(&run, text.len);
        mem_fail_at(++fail);
        st = pattern_find(&p, &run, text, 0, &begin, &end, &err);
        mem_fail_at(0);
        if (st != ST_OK) {
            assert_int_equal(st, ST_NOMEM);
            assert_string_equal(err.message, "out of memory for searching text");
            st = pattern_find(&p, &run, text, 0, &begin, &end, &err); /* of the same run */
            assert_int_equal(st, ST_OK);
            st = ST_NOMEM;
        }
        assert_true(begin == 9 && end == 14);
        pattern_run_fini(&run);
    } while (st != ST_OK);
    assert_true(fail > 2);
    pattern_fini(&p);
}

static void refused_memory_leaves_the_list_as_it_was(void **state) {
    struct tokenizer *t = open_tokenizer(DATA "tokenizer_gpt2.json");
    struct token_list ids = {0};
    struct error err = {0};
    char text[4000];

    (void)state;
    memset(text, 'x', sizeof(text));
    for (uint64_t fail = 1;; fail++) {
        enum status st;

        token_list_fini(&ids);
        assert_int_equal(token_list_push(&ids, 7), ST_OK);
        mem_fail_at(fail);
        st = tokenizer_encode(t, (struct str){text, sizeof(text)}, 0, &ids, &err);
        mem_fail_at(0);
        assert_int_equal(ids.ids[0], 7);
        if (st == ST_OK) break;
        assert_int_equal(st, ST_NOMEM);
        assert_int_equal(ids.n, 1);
    }
    token_list_fini(&ids);
    tokenizer_destroy(t);
}

/* A file of byte tokens with that normalizer, that pre-tokenizer and those added tokens. */
static uint64_t most_bytes(const char *normalizer, const char *pre_tokenizer, const char *added) {
    struct tokenizer *t = NULL;
    struct error err = {0};
    struct json_writer w;
    struct buf file;
    uint64_t most;

    buf_init(&file, 0);
    buf_appendf(&file,
                "{\"decoder\":{\"type\":\"Fuse\"},\"normalizer\":%s,\"pre_tokenizer\":%s,\"added_"
                "tokens\":[%s],\"model\":{\"type\":"
                "\"BPE\",\"merges\":[],\"byte_fallback\":true,\"vocab\":",
                normalizer, pre_tokenizer, added);
    json_writer_init(&w, &file);
    json_begin_object(&w);
    for (uint32_t i = 0; i < 256; i++) {
        char key[16];

        snprintf(key, sizeof(key), "<0x%02X>", i);
        json_field_u64(&w, key, i);
    }
    json_field_u64(&w, "abcdefghij", 256); /* 10 bytes */
    json_end_object(&w);
    buf_append_str(&file, STR("}}"));
    if (tokenizer_parse(&t, buf_str(&file), STR_NULL, &err) != ST_OK) fail_msg("%s", err.message);
    most = tokenizer_max_bytes_per_token(t);
    tokenizer_destroy(t);
    buf_fini(&file);
    return most;
}

/* What may drop text has no bound, and so refuses nothing by its length. */
static void bytes_of_a_token_are_bounded_unless_text_is_dropped(void **state) {
    struct tokenizer *bytes = tokenizer_create_bytes();

    (void)state;
    assert_int_equal(tokenizer_max_bytes_per_token(bytes), strlen("<|endoftext|>"));
    tokenizer_destroy(bytes);
    assert_int_equal(most_bytes("null", "null", ""), 10);
    assert_int_equal(most_bytes("{\"type\":\"NFC\"}", "null", ""), 40);
    assert_int_equal(most_bytes("{\"type\":\"Strip\"}", "null", ""), 0);
    assert_int_equal(most_bytes("{\"type\":\"StripAccents\"}", "null", ""), 0);
    assert_int_equal(
        most_bytes("{\"type\":\"Replace\",\"pattern\":{\"String\":\"abc\"},\"content\":"
                   "\"x\"}",
                   "null", ""),
        30);
    assert_int_equal(
        most_bytes("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\"}", "null",
                   ""),
        0);
    assert_int_equal(
        most_bytes("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\" "
                   "\"}",
                   "null", ""),
        0);
    assert_int_equal(most_bytes("null", "{\"type\":\"WhitespaceSplit\"}", ""), 0);
    assert_int_equal(
        most_bytes("null", "null",
                   "{\"id\":257,\"content\":\"<mask>\",\"lstrip\":true,\"rstrip\":false,"
                   "\"normalized\":false,\"single_word\":false,\"special\":true}"),
        0);
}

static void broken_text_is_refused(void **state) {
    struct tokenizer *t = tokenizer_create_bytes();
    struct token_list ids = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(t, STR("a\xFF"), 0, &ids, &err), ST_INVALID);
    assert_int_equal(ids.n, 0);
    tokenizer_destroy(t);
}

static void a_byte_is_a_token_in_the_built_in_one(void **state) {
    struct tokenizer *t = tokenizer_create_bytes();
    struct token_list ids = {0};
    struct buf back;

    (void)state;
    assert_int_equal(tokenizer_encode(t, STR("h\xC3\xA9<|im_end|>!"), 0, &ids, NULL), ST_OK);
    assert_int_equal(ids.n, 5);
    assert_int_equal(ids.ids[0], 'h');
    assert_int_equal(ids.ids[2], 0xA9);
    assert_int_equal(ids.ids[3], 258);
    assert_int_equal(ids.ids[4], '!');
    buf_init(&back, 0);
    detokenize(t, ids.ids, ids.n, true, &back);
    assert_true(str_eq(buf_str(&back), STR("h\xC3\xA9!")));
    assert_int_equal(tokenizer_vocab(t), TOKENIZER_BYTES_VOCAB);
    assert_int_equal(tokenizer_bytes(t, 400).len, 0);
    assert_int_equal(tokenizer_bytes(t, 1u << 31).len, 0);
    buf_fini(&back);
    token_list_fini(&ids);
    tokenizer_destroy(t);
}

/* Replaces the first `from` in the GPT-2 style file by `to` and loads that. */
static enum status parse_changed(const char *from, const char *to, struct error *err) {
    size_t n;
    char *text = read_text(DATA "tokenizer_gpt2.json", &n);
    ptrdiff_t at = str_find((struct str){text, n}, str_of(from));
    struct tokenizer *t = NULL;
    struct buf changed;
    enum status st;

    if (at < 0) fail_msg("no '%s' in the file", from);
    buf_init(&changed, 0);
    buf_append(&changed, text, (size_t)at);
    buf_append_str(&changed, str_of(to));
    buf_append_str(&changed, str_of(text + at + strlen(from)));
    memset(err, 0, sizeof(*err));
    st = tokenizer_parse(&t, buf_str(&changed), STR_NULL, err);
    tokenizer_destroy(t);
    buf_fini(&changed);
    mem_free(text);
    return st;
}

static void unsupported_parts_are_refused_by_name(void **state) {
    static const struct {
        const char *from, *to, *message;
        enum status st;
    } cases[] = {
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "WordPiece", ST_UNSUPPORTED},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}", "Precompiled",
         ST_UNSUPPORTED},
        {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"",
         "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"", "UnicodeScripts", ST_UNSUPPORTED},
        {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"",
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"[a-z&&[b]]+\"},\"behavior\":\"Isolated\",\"invert\":false},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]",
         "[a-z&&[b]]+", ST_UNSUPPORTED},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", "WordPiece",
         ST_UNSUPPORTED},
        {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Digits\"",
         "ByteLevel", ST_UNSUPPORTED},
        {"\"dropout\":null", "\"dropout\":0.1", "dropout", ST_UNSUPPORTED},
        {"\"merges\":[", "\"merges\":[[\"a\",\"zzzz\"],", "merge 0", ST_INVALID},
        {"\"merges\":[", "\"merges\":[\"ab\",", "merge 0", ST_INVALID},
        {"\"!\":", "\"!\":99999999,\"!!!!!!!\":", "an invalid id", ST_INVALID},
        {"\"vocab\":{", "\"vocab\":{\"zzzzzz\":0,", "id 0", ST_INVALID},
        {"{", "[", "", ST_INVALID},
    };
    struct error err;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        enum status st = parse_changed(cases[i].from, cases[i].to, &err);

        if (st != cases[i].st || !strstr(err.message, cases[i].message)) {
            fail_msg("case %zu: %s: %s", i, status_name(st), err.message);
        }
    }
    assert_int_equal(parse_changed("{", "{", &err), ST_OK);
}

/* Each Replace of the decoder lengthens what the one before made: 8 make 31^8 bytes of one. */
static void a_decoder_that_multiplies_meets_a_limit(void **state) {
    static const char head[] =
        "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":"
        "\"Sequence\",\"decoders\":[";
    static const char step[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                               "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}";

    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        struct tokenizer *t = NULL;
        struct error err = {0};
        struct buf text;
        enum status st;

        buf_init(&text, 0);
        buf_append_str(&text, str_of(head));
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(&text, "%s%s", i ? "," : "", step);
        buf_append_str(&text, STR("]}}"));
        st = tokenizer_parse(&t, buf_str(&text), STR_NULL, &err);
        if (n <= 4) { /* 31^4 bytes are under a MiB */
            if (st != ST_OK) fail_msg("%s", err.message);
            assert_int_equal(tokenizer_bytes(t, 0).len, n == 1   ? 31
                                                        : n == 2 ? 961
                                                        : n == 3 ? 29791
                                                                 : 923521);
        } else {
            assert_int_equal(st, ST_TOO_LARGE);
            assert_non_null(strstr(err.message, "the decoded token 'a' is too long"));
        }
        tokenizer_destroy(t);
        buf_fini(&text);
    }
}

static void a_folder_without_tokenizer_gets_a_sentence(void **state) {
    struct tokenizer *t = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(tokenizer_open(&t, "/nonexistent", &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent has no tokenizer.json"));
}

static void other_tokenizers_are_refused_with_the_command_that_converts_them(void **state) {
    char folder[] = "/tmp/incipit-tokenizer-XXXXXX", path[64], want[128];
    struct tokenizer *t = NULL;
    struct error err = {0};
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/tokenizer.model", folder);
    f = fopen(path, "wb");
    fputs("\n\x0e\n\x05<unk>", f);
    fclose(f);
    assert_int_equal(tokenizer_open(&t, folder, &err), ST_NOT_FOUND);
    snprintf(want, sizeof(want),
             "no tokenizer.json, only tokenizer.model. Create tokenizer.json: cd '%s' &&", folder);
    assert_non_null(strstr(err.message, want));
    assert_non_null(strstr(err.message, "from_pretrained('.').save_pretrained('.')"));
    unlink(path);
    rmdir(folder);
}

/* Any byte string: refused as not UTF-8, or encoded so that it decodes to itself. And any damage
 * to the file: refused, or loaded. */
static void damaged_files_and_texts_do_no_harm(void **state) {
    struct tokenizer *t = open_tokenizer(DATA "tokenizer_gpt2.json");
    struct rng rng;
    size_t n;
    char *file = read_text(DATA "tokenizer_gpt2.json", &n);

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 3000; round++) {
        struct token_list ids = {0};
        char text[64];
        size_t len = rng_below(&rng, sizeof(text));

        for (size_t i = 0; i < len; i++) {
            text[i] = (char)(rng_below(&rng, 4) ? rng_below(&rng, 128) : rng_below(&rng, 256));
        }
        if (tokenizer_encode(t, (struct str){text, len}, 0, &ids, NULL) != ST_OK) {
            assert_int_equal(ids.n, 0);
        }
        token_list_fini(&ids);
    }
    for (int round = 0; round < 300; round++) {
        struct tokenizer *damaged = NULL;
        char *copy = mem_strndup(file, n);

        for (int i = 0; i < 3; i++)
            copy[rng_below(&rng, (uint32_t)n)] = (char)rng_below(&rng, 128);
        if (tokenizer_parse(&damaged, (struct str){copy, n}, STR_NULL, NULL) == ST_OK) {
            tokenizer_destroy(damaged);
        }
        mem_free(copy);
    }
    mem_free(file);
    tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_as_the_reference_library_does),
        cmocka_unit_test(demonstration_model_encodes_as_it_was_trained),
        cmocka_unit_test(decoding_undoes_encoding),
        cmocka_unit_test(plain_text_cannot_forge_special_tokens),
        cmocka_unit_test(a_megabyte_of_one_letter_is_no_trouble),
        cmocka_unit_test(refused_memory_leaves_the_list_as_it_was),
        cmocka_unit_test(refused_memory_ends_a_search),
        cmocka_unit_test(bytes_of_a_token_are_bounded_unless_text_is_dropped),
        cmocka_unit_test(broken_text_is_refused),
        cmocka_unit_test(a_byte_is_a_token_in_the_built_in_one),
        cmocka_unit_test(unsupported_parts_are_refused_by_name),
        cmocka_unit_test(a_decoder_that_multiplies_meets_a_limit),
        cmocka_unit_test(a_folder_without_tokenizer_gets_a_sentence),
        cmocka_unit_test(other_tokenizers_are_refused_with_the_command_that_converts_them),
        cmocka_unit_test(damaged_files_and_texts_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
