/* tests/unit/common/text/test_json.c - the strict reader, exact integers, the streaming writer. */
#include "common/text/json.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/fuzz/fuzz_json.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define U(lit) STR(lit)

static struct json *parse(struct str text) {
    struct error err = {0};
    struct json *root = NULL;

    if (json_parse(&root, text, NULL, &err) != ST_OK) {
        fail_msg("'" STR_FMT "' refused: %s", STR_ARG(text), err.message);
    }
    return root;
}

static void accepts_what_rfc_8259_accepts(void **state) {
    static const struct str texts[] = {
        U("0"),
        U("-0"),
        U("\"\""),
        U(" [ ] "),
        U("{}"),
        U("null"),
        U("\t\r\n true \n"),
        U("[1,2,[3,{\"a\":[]}]]"),
        U("-1.5e+10"),
        U("1E-2"),
        U("1e308"),
        U("1e-400"),
        U("{\"\":0}"),
        U("{\"a\":1,\"A\":2}"),
        U("\"\\u0001\\\"\\\\\\/\\b\\f\\n\\r\\t\""),
        U("\"\\ud83d\\ude00\""),
        U("\"\x7F\""),
        U("\"\xF0\x9F\x98\x80\""),
        U("\"\\uFFFF\""),
        U("123456789012345678901234567890"),
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        json_destroy(parse(texts[i]));
}

static void refuses_the_rest_and_names_the_position(void **state) {
    static const struct {
        struct str text;
        const char *message; /* a part of it */
    } cases[] = {
        {U(""), "the text is empty"},
        {U(" "), "column 2: expected a value, found the end"},
        {U("01"), "column 2: a number must not start with 0"},
        {U("-"), "column 2: expected a digit, found the end"},
        {U("+1"), "found '+'"},
        {U(".5"), "expected a value, found '.'"},
        {U("1."), "expected a digit"},
        {U("1e"), "expected a digit"},
        {U("0x10"), "expected nothing after the value, found 'x'"},
        {U("1e999"), "the number is too large"},
        {U("NaN"), "expected a value, found 'N'"},
        {U("-Infinity"), "expected a digit, found 'I'"},
        {U("True"), "expected a value"},
        {U("tru"), "expected true, false or null"},
        {U("nul"), "expected true, false or null"},
        {U("[1,]"), "column 4: expected a value, found ']'"},
        {U("[1 2]"), "column 4: expected ',' or ']', found '2'"},
        {U("[,1]"), "found ','"},
        {U("[1"), "expected ',' or ']', found the end"},
        {U("{\"a\":1,}"), "expected a key in double quotes, found '}'"},
        {U("{a:1}"), "expected a key in double quotes, found 'a'"},
        {U("{\"a\" 1}"), "expected ':' after the key, found '1'"},
        {U("{\"a\":1"), "expected ',' or '}', found the end"},
        {U("{\n  \"a\": 1,\n  \"b\": ]\n}"), "line 3, column 8: expected a value, found ']'"},
        {U("1 2"), "expected nothing after the value"},
        {U("{}\0"), "expected nothing after the value, found byte 0x00"},
        {U("[1]\xC2\xA0"), "expected nothing after the value"},
        {U("[1]//x"), "expected nothing after the value, found '/'"},
        {U("\"a"), "expected '\"' at the end of the string"},
        {U("\"a\nb\""), "control character"},
        {U("\"\0\""), "control character"},
        {U("\"\\x41\""), "after a backslash, found 'x'"},
        {U("\"\\\0\""), "after a backslash, found byte 0x00"},
        {U("\"\\u12G4\""), "four hexadecimal digits"},
        {U("\"\\u0000\""), "a NUL (\\u0000) inside a string is not supported"},
        {U("\"\\ud83d\""), "half of a surrogate pair"},
        {U("\"\\ud83d\\u0041\""), "half of a surrogate pair"},
        {U("\"\\ude00\""), "half of a surrogate pair"},
        {U("\"\xC0\xAF\""), "valid UTF-8, found byte 0xC0"},
        {U("\"\xED\xA0\x80\""), "valid UTF-8"},
        {U("\"\xE2\x82"), "valid UTF-8"},
        {U("'a'"), "expected a value, found '''"},
        {U("\xEF\xBB\xBF{}"), "byte order mark"},
        {U("{\"a\":1,\"b\":2,\"a\":3}"), "the key \"a\" appears twice"},
        {U("{\"a\":1,\"\\u0061\":2}"), "the key \"a\" appears twice"},
        {U("[[{\"x\":{\"y\":0,\"y\":0}}]]"), "the key \"y\" appears twice"},
        {U("{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,\"9\":0,\"3\":0}"),
         "the key \"3\" appears twice"},
        {U("0.1234567890123456789012345678901234567890123456789012345678901234567890"),
         "more than 63 characters"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {0};
        struct json *root = NULL;

        if (json_parse(&root, cases[i].text, NULL, &err) != ST_INVALID ||
            !strstr(err.message, cases[i].message)) {
            fail_msg("'" STR_FMT "': expected '%s', got '%s'", STR_ARG(cases[i].text),
                     cases[i].message, err.message);
        }
        assert_null(root);
    }
}

static void keeps_to_the_limits(void **state) {
    const struct json_limits limits = {.max_bytes = 20, .max_depth = 3, .max_values = 5};
    struct error err = {0};
    struct json *root = NULL;

    (void)state;
    assert_int_equal(json_parse(&root, STR("[[[1,2]]]"), &limits, &err), ST_OK);
    json_destroy(root);
    root = NULL;
    assert_int_equal(json_parse(&root, STR("[[[[]]]]"), &limits, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "deeper than 3 levels"));
    assert_int_equal(json_parse(&root, STR("[1,2,3,4,5]"), &limits, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "more than 5 values"));
    assert_int_equal(json_parse(&root, STR("\"12345678901234567890\""), &limits, &err),
                     ST_TOO_LARGE);
    assert_non_null(strstr(err.message, "22 bytes: at most 20"));
    assert_null(root);
}

static void deep_nesting_ends_at_the_limit(void **state) {
    enum { DEPTH = 600 };
    const struct json_limits limits = {.max_depth = 100000};
    char text[2 * DEPTH];
    struct json *root = NULL;

    (void)state;
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    assert_int_equal(json_parse(&root, (struct str){text, 2 * DEPTH}, &limits, NULL), ST_INVALID);
    assert_int_equal(json_parse(&root, (struct str){text + DEPTH - 512, 1024}, &limits, NULL),
                     ST_OK);
    json_destroy(root);
}

static void walks_and_asks(void **state) {
    struct json *root = parse(STR("{\"a\":[1,\"x\",null],\"b\":{\"c\":true},\"d\":\"e\\u00e9\"}"));
    const struct json *a = json_get(root, "a"), *it;
    struct str s;
    bool b = false;

    (void)state;
    assert_int_equal(json_count(root), 3);
    assert_int_equal(json_type(a), JSON_ARRAY);
    assert_int_equal(json_count(a), 3);
    it = json_first(a);
    assert_int_equal(json_type(it), JSON_NUMBER);
    it = json_next(it);
    assert_int_equal(json_to_str(it, &s), ST_OK);
    assert_true(str_eq(s, STR("x")));
    assert_true(json_is_null(json_next(it)));
    assert_null(json_next(json_next(it)));
    assert_true(str_eq(json_key(json_first(root)), STR("a")));
    assert_null(json_key(json_first(a)).ptr);
    assert_int_equal(json_to_bool(json_get(json_get(root, "b"), "c"), &b), ST_OK);
    assert_true(b);
    assert_int_equal(json_to_str(json_get(root, "d"), &s), ST_OK);
    assert_true(str_eq(s, STR("e\xC3\xA9")));
    assert_null(json_get(root, "A"));
    assert_null(json_get(a, "a"));
    assert_int_equal(json_type(json_get(root, "zz")), JSON_ABSENT);
    assert_true(json_is_null(NULL));
    assert_int_equal(json_count(NULL), 0);
    assert_int_equal(json_to_str(root, &s), ST_INVALID);
    json_destroy(root);
}

static void integers_are_exact(void **state) {
    static const struct {
        struct str text;
        bool is_u64, is_i64;
        uint64_t u;
        int64_t i;
    } cases[] = {
        {U("0"), true, true, 0, 0},
        {U("-0"), true, true, 0, 0},
        {U("16.0"), true, true, 16, 16},
        {U("1e3"), true, true, 1000, 1000},
        {U("-1"), false, true, 0, -1},
        {U("9007199254740993"), true, true, 9007199254740993u, 9007199254740993},
        {U("9223372036854775807"), true, true, INT64_MAX, INT64_MAX},
        {U("9223372036854775808"), true, false, 9223372036854775808u, 0},
        {U("-9223372036854775808"), false, true, 0, INT64_MIN},
        {U("-9223372036854775809"), false, false, 0, 0},
        {U("18446744073709551615"), true, false, UINT64_MAX, 0},
        {U("18446744073709551616"), false, false, 0, 0},
        {U("1e300"), false, false, 0, 0},
        {U("1.5"), false, false, 0, 0},
        {U("true"), false, false, 0, 0},
        {U("\"1\""), false, false, 0, 0},
    };
    const struct json *it;
    struct buf text;
    struct json *root;

    (void)state;
    buf_init(&text, 0);
    buf_append_char(&text, '[');
    for (size_t n = 0; n < ARRAY_LEN(cases); n++) {
        buf_appendf(&text, "%s{\"x\":" STR_FMT "}", n ? "," : "", STR_ARG(cases[n].text));
    }
    buf_append_char(&text, ']');
    root = parse(buf_str(&text));
    it = json_first(root);
    for (size_t n = 0; n < ARRAY_LEN(cases); n++, it = json_next(it)) {
        const struct json *x = json_get(it, "x");
        uint64_t u = 0;
        int64_t i = 0;

        assert_int_equal(json_to_u64(x, &u), cases[n].is_u64 ? ST_OK : ST_INVALID);
        assert_int_equal(json_to_i64(x, &i), cases[n].is_i64 ? ST_OK : ST_INVALID);
        assert_true(u == cases[n].u && i == cases[n].i);
    }
    json_destroy(root);
    buf_fini(&text);
}

static void fields_are_read_within_their_range(void **state) {
    struct json *root = parse(STR("{\"n\":17,\"neg\":-3,\"f\":0.5,\"big\":18446744073709551615,"
                                  "\"s\":\"text\",\"b\":true,\"nul\":null,\"a\":[1],\"o\":{}}"));
    const struct json *sub = NULL;
    struct str s = STR_NULL;
    struct error err = {0};
    bool is_present = true, b = false;
    uint32_t u32 = 7;
    uint64_t u = 7;
    int64_t i = 7;
    double f = 7;

    (void)state;
    assert_int_equal(json_get_u32(root, "absent", 0, 9, &u32, &is_present, &err), ST_OK);
    assert_false(is_present);
    assert_int_equal(json_get_u64(root, "nul", 0, 9, &u, &is_present, &err), ST_OK);
    assert_false(is_present);
    assert_true(u32 == 7 && u == 7);
    assert_int_equal(json_get_u32(root, "n", 1, 17, &u32, &is_present, &err), ST_OK);
    assert_true(is_present && u32 == 17);
    assert_int_equal(json_get_u64(root, "big", 0, UINT64_MAX, &u, NULL, &err), ST_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(json_get_i64(root, "neg", -3, 3, &i, NULL, &err), ST_OK);
    assert_int_equal(i, -3);
    assert_int_equal(json_get_f64(root, "f", 0, 1, &f, NULL, &err), ST_OK);
    assert_true(f == 0.5);
    assert_int_equal(json_get_f64(root, "n", 0, 20, &f, NULL, &err), ST_OK);
    assert_int_equal(json_get_bool(root, "b", &b, NULL, &err), ST_OK);
    assert_true(b);
    assert_int_equal(json_get_str(root, "s", 4, &s, NULL, &err), ST_OK);
    assert_true(str_eq(s, STR("text")));
    assert_int_equal(json_get_array(root, "a", &sub, &err), ST_OK);
    assert_int_equal(json_type(sub), JSON_ARRAY);
    assert_int_equal(json_get_object(root, "o", &sub, &err), ST_OK);
    assert_int_equal(json_type(sub), JSON_OBJECT);
    assert_int_equal(json_get_object(root, "nul", &sub, &err), ST_OK);
    assert_null(sub);
    json_destroy(root);
}

static void a_value_has_a_pointer(void **state) {
    struct json *root = NULL, *other = NULL;
    const struct json *a, *node;
    struct buf pointer;

    (void)state;
    assert_int_equal(json_parse(&root, STR("{\"x\":1,\"a\":[0,{\"b/c~\":[5]}]}"), NULL, NULL),
                     ST_OK);
    assert_int_equal(json_parse(&other, STR("5"), NULL, NULL), ST_OK);
    buf_init(&pointer, 0);
    buf_append_char(&pointer, '#');
    a = json_get(root, "a");
    node = json_first(json_first(json_next(json_first(a))));
    assert_true(json_find(root, node, &pointer));
    assert_true(str_eq(buf_str(&pointer), STR("#/a/1/b~1c~0/0")));
    buf_truncate(&pointer, 1);
    assert_true(json_find(root, root, &pointer));
    assert_false(json_find(root, other, &pointer));
    assert_true(str_eq(buf_str(&pointer), STR("#")));
    buf_fini(&pointer);
    json_destroy(root);
    json_destroy(other);
}

static void a_wrong_field_is_named_with_value_and_range(void **state) {
    struct json *root =
        parse(STR("{\"n\":17,\"s\":\"text\",\"big\":18446744073709551616,\"t\":1.5}"));
    const struct json *sub = NULL;
    struct str s = STR("before");
    struct error err = {0};
    uint64_t u = 7;
    int64_t i = 7;
    double f = 7;
    bool b = false;

    (void)state;
    assert_int_equal(json_get_u64(root, "n", 1, 16, &u, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "n must be an integer from 1 to 16, not 17");
    assert_string_equal(err.param, "n");
    assert_int_equal(json_get_u64(root, "s", 1, 16, &u, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "s must be an integer from 1 to 16, not a string");
    assert_int_equal(json_get_u64(root, "big", 0, 16, &u, NULL, &err), ST_INVALID);
    assert_string_equal(err.message,
                        "big must be an integer from 0 to 16, not 18446744073709551616");
    assert_int_equal(json_get_i64(root, "t", -1, 1, &i, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "t must be an integer from -1 to 1, not 1.5");
    assert_int_equal(json_get_f64(root, "t", 0, 1, &f, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "t must be a number from 0 to 1, not 1.5");
    assert_int_equal(json_get_f64(root, "s", 0, DBL_MAX, &f, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "s must be a number of at least 0, not a string");
    assert_int_equal(json_get_bool(root, "n", &b, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "n must be true or false, not 17");
    assert_int_equal(json_get_str(root, "s", 3, &s, NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "s must be a string of at most 3 bytes, not 4");
    assert_int_equal(json_get_array(root, "s", &sub, &err), ST_INVALID);
    assert_string_equal(err.message, "s must be an array, not a string");
    assert_true(u == 7 && i == 7 && f == 7 && !b && str_eq(s, STR("before")) && !sub);
    json_destroy(root);
}

static void writes_the_given_values(void **state) {
    struct json_writer w;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    json_writer_init(&w, &out);
    assert_false(json_writer_is_done(&w));
    json_begin_object(&w);
    json_field_str(&w, "s", STR("a\"\\\n\x01\x1F/\xE2\x82\xAC\x7F"));
    json_field_str(&w, "bad", STR("x\xC0\xAFy\xF0\x9F\x98"));
    json_field_z(&w, "z", "z");
    json_field_z(&w, "null", NULL);
    json_put_key(&w, "a");
    json_begin_array(&w);
    json_put_u64(&w, UINT64_MAX);
    json_put_i64(&w, INT64_MIN);
    json_begin_object(&w);
    json_end_object(&w);
    json_begin_array(&w);
    json_end_array(&w);
    json_put_raw(&w, STR("{\"raw\":1}"));
    json_put_bool(&w, true);
    json_put_bool(&w, false);
    json_put_null(&w);
    json_end_array(&w);
    json_field_u64(&w, "u", 1);
    json_field_i64(&w, "i", -1);
    json_field_bool(&w, "b", true);
    json_field_null(&w, "n");
    json_field_f64(&w, "f", 0.1);
    json_end_object(&w);
    assert_true(json_writer_is_done(&w));
    buf_append_char(&out, '\0');
    assert_string_equal(
        buf_ptr(&out), "{\"s\":\"a\\\"\\\\\\n\\u0001\\u001f/\xE2\x82\xAC\x7F\","
                       "\"bad\":\"x\xEF\xBF\xBD\xEF\xBF\xBDy\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\","
                       "\"z\":\"z\",\"null\":null,"
                       "\"a\":[18446744073709551615,-9223372036854775808,{},[],{\"raw\":1},"
                       "true,false,null],\"u\":1,\"i\":-1,\"b\":true,\"n\":null,\"f\":0.1}");
    buf_fini(&out);
}

/* Objects and arrays in turn, as deep as a tree may be, inside a writer that is in something. */
static void the_deepest_tree_can_be_written(void **state) {
    const struct json_limits limits = {.max_depth = 512};
    struct json *root = NULL;
    struct buf text, out;
    struct json_writer w;

    (void)state;
    buf_init(&text, 0);
    buf_init(&out, 0);
    for (int i = 0; i < 512; i++)
        buf_append_str(&text, i % 3 ? STR("[") : STR("{\"k\":"));
    buf_append_str(&text, STR("1"));
    for (int i = 511; i >= 0; i--)
        buf_append_str(&text, i % 3 ? STR("]") : STR("}"));
    assert_int_equal(json_parse(&root, buf_str(&text), &limits, NULL), ST_OK);
    json_writer_init(&w, &out);
    json_begin_array(&w);
    json_put_tree(&w, root);
    json_end_array(&w);
    assert_true(json_writer_is_done(&w));
    buf_consume(&out, 1);
    assert_memory_equal(buf_ptr(&out), buf_ptr(&text), buf_len(&text));
    json_destroy(root);
    buf_fini(&text);
    buf_fini(&out);
}

static void doubles_are_short_and_read_back(void **state) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},      {-0.0, "-0"},       {1, "1"},
                 {0.1, "0.1"},  {1e100, "1e+100"},  {-2.5, "-2.5"},
                 {NAN, "null"}, {INFINITY, "null"}, {5e-324, "4.94065645841247e-324"}};
    struct json_writer w;
    struct rng rng;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_clear(&out);
        json_writer_init(&w, &out);
        json_put_f64(&w, cases[i].value);
        assert_true(str_eq(buf_str(&out), str_of(cases[i].text)));
    }
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 5000; i++) {
        union {
            uint64_t u;
            double d;
        } bits = {.u = rng_u64(&rng)};
        double want = i ? bits.d : 1.0 / 3, got = 0;
        struct json *root;

        if (!isfinite(want)) continue;
        buf_clear(&out);
        json_writer_init(&w, &out);
        json_put_f64(&w, want);
        root = parse(buf_str(&out));
        assert_int_equal(json_to_f64(root, &got), ST_OK);
        assert_memory_equal(&got, &want, sizeof(got));
        json_destroy(root);
    }
    buf_clear(&out);
    json_writer_init(&w, &out);
    json_begin_array(&w);
    json_put_f32(&w, 0.1f);
    json_put_f32(&w, -1.0f / 3);
    json_put_f32(&w, 16777216.0f);
    json_put_f32(&w, -INFINITY);
    json_end_array(&w);
    assert_true(str_eq(buf_str(&out), STR("[0.1,-0.33333334,16777216,null]")));
    buf_fini(&out);
}

static void refused_memory_is_an_answer(void **state) {
    struct str text = STR("{\"1\":1,\"2\":2,\"3\":3,\"4\":4,\"5\":5,\"6\":6,\"7\":7,\"8\":8,"
                          "\"9\":9007199254740993}");
    enum status st = ST_NOMEM;

    (void)state;
    for (uint64_t n = 1; st == ST_NOMEM; n++) {
        struct json *root = NULL;

        assert_true(n < 10);
        mem_fail_at(n);
        st = json_parse(&root, text, NULL, NULL);
        mem_fail_at(0);
        if (st != ST_OK) assert_null(root);
        json_destroy(root);
    }
    assert_int_equal(st, ST_OK);
}

static void mutated_documents_never_break_it(void **state) {
    static const char *const seeds[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"caf\\u00e9 "
        "\\ud83d\\ude00\"}],\"seed\":18446744073709551615,\"t\":0.7,\"stop\":null}",
        "[-0,0.5,1e3,-1.25E-2,9007199254740993,true,false,null,[],{},\"\\/\\b\\f\"]",
    };
    static const char alphabet[] = "{}[]:,\"\\u0019dD8e.-+ \n\xC3\xA9\x01tfn";
    struct rng rng;
    char text[256];

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 20000; i++) {
        const char *seed = seeds[rng_below(&rng, ARRAY_LEN(seeds))];
        size_t len = strlen(seed);

        memcpy(text, seed, len);
        for (uint64_t n = 1 + rng_below(&rng, 3); n > 0; n--) {
            text[rng_below(&rng, len)] = alphabet[rng_below(&rng, sizeof(alphabet))];
        }
        LLVMFuzzerTestOneInput((const uint8_t *)text,
                               rng_below(&rng, 4) ? len : rng_below(&rng, len));
    }
}

/* Strings are read and written by words of eight bytes: each byte at each place of two of them. */
static void every_byte_is_read_and_written_wherever_it_stands(void **state) {
    (void)state;
    for (unsigned c = 1; c < 0x80; c++) {
        for (size_t n = 1; n <= 17; n++) {
            for (size_t at = 0; at < n; at++) {
                char text[18] = "aaaaaaaaaaaaaaaaa";
                struct json_limits limits = {.max_bytes = 64};
                struct json *v = NULL;
                struct buf json;
                struct str back;

                text[at] = (char)c;
                buf_init(&json, 0);
                buf_append_char(&json, '"');
                json_escape(&json, (struct str){text, n});
                buf_append_char(&json, '"');
                assert_int_equal(json_parse(&v, buf_str(&json), &limits, NULL), ST_OK);
                assert_int_equal(json_to_str(v, &back), ST_OK);
                assert_true(str_eq(back, (struct str){text, n}));
                json_destroy(v);
                v = NULL;
                buf_clear(&json);
                buf_append_char(&json, '"');
                buf_append(&json, text, n);
                buf_append_char(&json, '"');
                assert_int_equal(json_parse(&v, buf_str(&json), &limits, NULL) == ST_OK,
                                 c >= 0x20 && c != '"' && c != '\\');
                json_destroy(v);
                buf_fini(&json);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_read_and_written_wherever_it_stands),
        cmocka_unit_test(accepts_what_rfc_8259_accepts),
        cmocka_unit_test(refuses_the_rest_and_names_the_position),
        cmocka_unit_test(keeps_to_the_limits),
        cmocka_unit_test(deep_nesting_ends_at_the_limit),
        cmocka_unit_test(walks_and_asks),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(fields_are_read_within_their_range),
        cmocka_unit_test(a_value_has_a_pointer),
        cmocka_unit_test(a_wrong_field_is_named_with_value_and_range),
        cmocka_unit_test(writes_the_given_values),
        cmocka_unit_test(the_deepest_tree_can_be_written),
        cmocka_unit_test(doubles_are_short_and_read_back),
        cmocka_unit_test(refused_memory_is_an_answer),
        cmocka_unit_test(mutated_documents_never_break_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
