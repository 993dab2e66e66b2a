/* tests/unit/worker/output/arguments/test_arguments.c - each style's arguments as JSON, whole and
 * in every division over pushes. */
#include "worker/output/arguments/arguments.h"
#include "tests/fuzz/fuzz_arguments.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#include <stdio.h>

#define QWEN   ARGUMENTS_QWEN_XML
#define SEED   ARGUMENTS_SEED_XML
#define GLM    ARGUMENTS_GLM_XML
#define MINI   ARGUMENTS_MINIMAX_XML
#define DEEP   ARGUMENTS_DEEPSEEK_XML
#define PYTHON ARGUMENTS_PYTHONIC
#define GEMMA  ARGUMENTS_GEMMA
#define FGEMMA ARGUMENTS_FUNCTIONGEMMA

#define DONE   ARGUMENTS_DONE
#define CUT    ARGUMENTS_CUT
#define BROKEN ARGUMENTS_BROKEN

#define BARS "\xEF\xBD\x9C"
#define DSML BARS "DSML" BARS

/* Arguments, and what is left of the text behind them. In `text` the bytes 1 to 8 are tokens
 * (fuzz_tokens) when has_tokens. */
struct sample {
    enum arguments_style style;
    const char *text;
    const char *json;
    enum arguments_state state;
    const char *left;
    bool has_tokens;
};

static struct json *schema(void) {
    struct json *s = NULL;

    assert_int_equal(json_parse(&s, str_of(fuzz_schema), NULL, NULL), ST_OK);
    return s;
}

static void check_run(const struct sample *c, const struct json *s, bool is_cut, size_t most) {
    struct str text = str_of(c->text);
    struct fuzz_end end;
    struct buf json;

    buf_init(&json, 0);
    end = fuzz_run(c->style, s, text, c->has_tokens, is_cut, most, NULL, &json);
    if (end.state != c->state || !str_eq(buf_str(&json), str_of(c->json)) ||
        (c->state != BROKEN && strcmp(c->text + end.n_used, c->left) != 0))
        fail_msg("'%s' in pieces of %zu: expected %d '%s' and '%s', got %d '" STR_FMT "' and '%s'",
                 c->text, most, c->state, c->json, c->left, end.state, STR_ARG(buf_str(&json)),
                 c->text + end.n_used);
    buf_fini(&json);
}

/* Every size of piece, so every place of a cut. */
static void check_samples(const struct sample *samples, size_t n, bool is_cut) {
    struct json *s = schema();

    for (size_t i = 0; i < n; i++)
        for (size_t most = 1; most <= strlen(samples[i].text) + 1; most++)
            check_run(&samples[i], s, is_cut, most);
    json_destroy(s);
}

#define CHECK(samples) check_samples(samples, ARRAY_LEN(samples), false)

#define P(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"

static void qwen_values_lose_one_newline_at_each_end(void **state) { /* case 65 */
    static const struct sample samples[] = {
        {QWEN, P("s", "a") "</function>\n</tool_call>", "{\"s\": \"a\"}", DONE, "\n</tool_call>"},
        {QWEN, P("s", "line1\nline2\n") "</function>", "{\"s\": \"line1\\nline2\\n\"}", DONE, ""},
        {QWEN, P("s", "\n\na\n\n") "</function>", "{\"s\": \"\\n\\na\\n\\n\"}", DONE, ""},
        {QWEN, P("s", "") "</function>", "{\"s\": \"\"}", DONE, ""},
        {QWEN, "<parameter=s>\n</parameter></function>", "{\"s\": \"\"}", DONE, ""},
        {QWEN, "<parameter=s>a</parameter></function>", "{\"s\": \"a\"}", DONE, ""},
        {QWEN, P("s", "a") P("x", "5") "</function>", "{\"s\": \"a\", \"x\": 5}", DONE, ""},
        {QWEN, "</function>x", "{}", DONE, "x"},
        {QWEN, "\n\n</function>", "{}", DONE, ""},
        {QWEN, P("s", "\"\\\t") "</function>", "{\"s\": \"\\\"\\\\\\t\"}", DONE, ""},
    };

    (void)state;
    CHECK(samples);
}

static void qwen_closing_tags_in_a_value_are_kept(void **state) { /* case 66 */
    static const struct sample samples[] = {
        {QWEN, P("s", "print('</parameter>')") "</function>", "{\"s\": \"print('</parameter>')\"}",
         DONE, ""},
        {QWEN, P("s", "a\n</parameter>\nb") "</function>", "{\"s\": \"a\\n</parameter>\\nb\"}",
         DONE, ""},
        {QWEN, P("s", "a\n</function>\nb") "</function>", "{\"s\": \"a\\n</function>\\nb\"}", DONE,
         ""},
        {QWEN, P("s", "</tool_call><tool_call>") "</function>",
         "{\"s\": \"</tool_call><tool_call>\"}", DONE, ""},
        {QWEN, P("s", "</para</parameter></parameter") "</function>",
         "{\"s\": \"</para</parameter></parameter\"}", DONE, ""},
        {QWEN, P("s", "if a <parameter=b>") "</function>", "{\"s\": \"if a <parameter=b>\"}", DONE,
         ""},
    };

    (void)state;
    CHECK(samples);
}

static void values_are_of_their_types(void **state) { /* case 67 */
    static const struct sample samples[] = {
        {QWEN, P("x", "5") "</function>", "{\"x\": 5}", DONE, ""},
        {QWEN, P("x", "abc") "</function>", "{\"x\": \"abc\"}", DONE, ""},
        {QWEN, P("x", "null") "</function>", "{\"x\": \"null\"}", DONE, ""},
        {QWEN, P("x", "12345678901234567890123") "</function>", "{\"x\": 12345678901234567890123}",
         DONE, ""},
        {QWEN, P("x", "007") "</function>", "{\"x\": \"007\"}", DONE, ""},
        {QWEN, P("s", "5") "</function>", "{\"s\": \"5\"}", DONE, ""},
        {QWEN, P("s", "null") "</function>", "{\"s\": \"null\"}", DONE, ""},
        {QWEN, P("n", "null") "</function>", "{\"n\": null}", DONE, ""},
        {QWEN, P("n", "nullify") "</function>", "{\"n\": \"nullify\"}", DONE, ""},
        {QWEN, P("n", "nul") "</function>", "{\"n\": \"nul\"}", DONE, ""},
        {QWEN, P("n", "") "</function>", "{\"n\": \"\"}", DONE, ""},
        {QWEN, P("b", "True") "</function>", "{\"b\": true}", DONE, ""},
        {QWEN, P("b", "false") "</function>", "{\"b\": false}", DONE, ""},
        {QWEN, P("b", "yes") "</function>", "{\"b\": \"yes\"}", DONE, ""},
        {QWEN, P("u", "5") "</function>", "{\"u\": 5}", DONE, ""},
        {QWEN, P("u", "5a") "</function>", "{\"u\": \"5a\"}", DONE, ""},
        {QWEN, P("u", "\"q\"") "</function>", "{\"u\": \"\\\"q\\\"\"}", DONE, ""},
        {QWEN, P("u", "[1]") "</function>", "{\"u\": \"[1]\"}", DONE, ""},
        {QWEN, P("o", "{\"a\":1,\n \"a\":[true,null]}") "</function>",
         "{\"o\": {\"a\": 1, \"a\": [true, null]}}", DONE, ""},
        {QWEN, P("o", "{\"a\":1") "</function>", "{\"o\": \"{\\\"a\\\":1\"}", DONE, ""},
        {QWEN, P("o", "{\"a\": \"\\u00e9\\ud83d\\ude00\\u0041\\/\"}") "</function>",
         "{\"o\": {\"a\": \"\xC3\xA9\xF0\x9F\x98\x80"
         "A/\"}}",
         DONE, ""},
        {QWEN, P("o", "[\"\\ude00\"]") "</function>", "{\"o\": \"[\\\"\\\\ude00\\\"]\"}", DONE, ""},
        {QWEN, P("unknown", "5") "</function>", "{\"unknown\": 5}", DONE, ""},
        {QWEN, P("unknown", "a b") "</function>", "{\"unknown\": \"a b\"}", DONE, ""},
    };

    (void)state;
    CHECK(samples);
}

static void qwen_calls_without_closing_tags_are_read(void **state) { /* case 68 */
    static const struct sample samples[] = {
        {QWEN, "<parameter=s>\na\n<parameter=x>\n1\n</parameter>\n</function>",
         "{\"s\": \"a\", \"x\": 1}", DONE, ""},
        {QWEN, P("s", "a"), "{\"s\": \"a\"}", DONE, ""},
        {QWEN, "<parameter=s>\na", "{\"s\": \"a\"}", DONE, ""},
        {QWEN, "<parameter=s>\na\n", "{\"s\": \"a\"}", DONE, ""},
        {QWEN, "<parameter=s>\na\n</para", "{\"s\": \"a\\n</para\"}", DONE, ""},
        {QWEN, "<parameter=s>\na\n</function>\n", "{\"s\": \"a\"}", DONE, ""},
        {QWEN, "<parameter=s>\na\n</function>\n</tool_call>b", "{\"s\": \"a\"}", DONE, "b"},
        {QWEN, "<parameter=s>\na\n</function>\n\2", "{\"s\": \"a\"}", DONE, "\2", true},
        {QWEN, "<parameter=s>\na\n</parameter>\n\2", "{\"s\": \"a\"}", DONE, "\2", true},
        {QWEN, "<parameter=x>\n1\n\1\n<function=g>", "{\"x\": 1}", DONE, "\1\n<function=g>", true},
        {QWEN, "\1", "{}", DONE, "\1", true},
        {QWEN, "", "{}", DONE, ""},
        {QWEN, "</tool_call>", "{}", DONE, ""},
    };

    (void)state;
    CHECK(samples);
}

static void what_begins_with_no_key_is_no_call(void **state) {
    static const struct sample samples[] = {
        {QWEN, "is how it looks", "", BROKEN, ""},
        {QWEN, "<parameter", "{}", DONE, ""},
        {QWEN, "<parameter=a", "", BROKEN, ""},
        {QWEN, "<parameters>", "", BROKEN, ""},
        {GLM, "<arg_key>a</arg_key>b", "", BROKEN, ""},
        {GLM, "\3a\4b", "", BROKEN, "", true},
        {GLM, "\3s\4\5a\6\3x\4 b", "{\"s\": \"a\"", CUT, "b", true},
        {GEMMA, "(x=1)", "", BROKEN, ""},
        {PYTHON, "1, 2)", "", BROKEN, ""},
    };

    (void)state;
    CHECK(samples);
}

static void seed_values_stand_on_their_line(void **state) {
    static const struct sample samples[] = {
        {SEED, "<parameter=s>a</parameter>\n<parameter=x>5</parameter>\n</function>\n",
         "{\"s\": \"a\", \"x\": 5}", DONE, "\n"},
        {SEED, "<parameter=s>\na\n</parameter>\n</function>", "{\"s\": \"\\na\\n\"}", DONE, ""},
        {SEED, "<parameter=s></parameter></parameter>\n\2", "{\"s\": \"</parameter>\"}", DONE, "\2",
         true},
    };

    (void)state;
    CHECK(samples);
}

static void a_repeated_key_is_passed_on(void **state) { /* case 84 */
    static const struct sample samples[] = {
        {QWEN, P("s", "a") P("x", "1") P("s", "b") "</function>",
         "{\"s\": \"a\", \"x\": 1, \"s\": \"b\"}", DONE, ""},
        {GEMMA, "{a:1,a:2}", "{\"a\": 1, \"a\": 2}", DONE, ""},
    };

    (void)state;
    CHECK(samples);
}

#define A(k, v)  "<arg_key>" k "</arg_key>" v
#define V(v)     "<arg_value>" v "</arg_value>"
#define AT(k, v) "\3" k "\4\5" v "\6"

static void glm_is_read_with_and_without_newlines(void **state) { /* case 78 */
    static const struct sample samples[] = {
        {GLM, A("s", "\n" V("a")) "\n" A("x", "\n" V("5")) "\n</tool_call>",
         "{\"s\": \"a\", \"x\": 5}", DONE, ""},
        {GLM, A("s", V("a")) A("x", V("5")) "</tool_call>", "{\"s\": \"a\", \"x\": 5}", DONE, ""},
        {GLM, "</tool_call>", "{}", DONE, ""},
        {GLM, "\n</tool_call>", "{}", DONE, ""},
        {GLM, "\n\2b", "{}", DONE, "b", true},
        {GLM, AT("s", "\na\n") AT("x", "5") "\2\n", "{\"s\": \"\\na\\n\", \"x\": 5}", DONE, "\n",
         true},
        {GLM, AT("s", "</arg_value></tool_call>") "\n\2", "{\"s\": \"</arg_value></tool_call>\"}",
         DONE, "", true},
        {GLM, "\3s\4\5a\3x\4\0055\6\2", "{\"s\": \"a\", \"x\": 5}", DONE, "", true},
        {GLM, "\3s\4\5a\1f", "{\"s\": \"a\"}", DONE, "\1f", true},
        {GLM, "\3s\4\5a\2", "{\"s\": \"a\"}", DONE, "", true},
        {GLM, "\3s\4\5a\5b\6\2", "{\"s\": \"a<arg_value>b\"}", DONE, "", true},
        {GLM, AT("s", "a") "junk" AT("x", "1") "\2", "{\"s\": \"a\", \"x\": 1}", DONE, "", true},
        {GLM, "\3s</arg_key>\4\5a\6\2", "{\"s</arg_key>\": \"a\"}", DONE, "", true},
    };

    (void)state;
    CHECK(samples);
}

#define M(k, v) "<parameter name=" k ">" v "</parameter>\n"

static void minimax_names_are_quoted_twice_once_or_not(void **state) { /* case 79 */
    static const struct sample samples[] = {
        {MINI, M("\"s\"", "a") M("'x'", "5") M("b", "true") "</invoke>\n",
         "{\"s\": \"a\", \"x\": 5, \"b\": true}", DONE, "\n"},
        {MINI, M("\"s\"", "\na\n") "</invoke>", "{\"s\": \"\\na\\n\"}", DONE, ""},
        {MINI, M("\"s\"", "</parameter>") "</invoke>", "{\"s\": \"</parameter>\"}", DONE, ""},
        {MINI, "</invoke>", "{}", DONE, ""},
        {MINI, "<parameter name=\"s\">a\n</invoke>\n</minimax:tool_call>", "{\"s\": \"a\"}", DONE,
         ""},
    };

    (void)state;
    CHECK(samples);
}

#define D(k, is, v)                                                                                \
    "<" DSML "parameter name=\"" k "\" string=\"" is "\">" v "</" DSML "parameter>\n"
#define T(k, is, v) "<\1parameter name=\"" k "\" string=\"" is "\">" v "</\1parameter>\n"

static void deepseek_attributes_tell_strings(void **state) {
    static const struct sample samples[] = {
        {DEEP, D("s", "true", "a") D("x", "false", "5") "</" DSML "invoke>\n",
         "{\"s\": \"a\", \"x\": 5}", DONE, "\n"},
        {DEEP, D("x", "true", "5") D("l", "false", "[1,{}]") "</" DSML "invoke>",
         "{\"x\": \"5\", \"l\": [1, {}]}", DONE, ""},
        {DEEP, D("s", "false", "oh no") "</" DSML "invoke>", "{\"s\": \"oh no\"}", DONE, ""},
        {DEEP, T("s", "true", "</\1pa</" DSML "parameter>") "</\1invoke>",
         "{\"s\": \"</" DSML "pa</" DSML "parameter>\"}", DONE, "", true},
        {DEEP, "</\1invoke>", "{}", DONE, "", true},
    };

    (void)state;
    CHECK(samples);
}

static void pythonic_literals_become_json(void **state) { /* case 71 */
    static const struct sample samples[] = {
        {PYTHON, "x=1), g(", "{\"x\": 1}", DONE, "), g("},
        {PYTHON, "s='a, b)')]", "{\"s\": \"a, b)\"}", DONE, ")]"},
        {PYTHON, ")", "{}", DONE, ")"},
        {PYTHON, "a=None, b = True,c=[1, -2.5, [ ], {'k': {\"l\": false}}],)",
         "{\"a\": null, \"b\": true, \"c\": [1, -2.5, [], {\"k\": {\"l\": false}}]}", DONE, ")"},
        {PYTHON, "a=.5, b=+1., c=1e5)", "{\"a\": 0.5, \"b\": 1.0, \"c\": 1e5}", DONE, ")"},
        {PYTHON, "a='it\\'s \\x41\\u00e9\\U0001F600\\101\\d\\n')",
         "{\"a\": \"it's A\xC3\xA9\xF0\x9F\x98\x80"
         "A\\\\d\\n\"}",
         DONE, ")"},
        {PYTHON, "a='\\1", "", BROKEN, ""},
        {PYTHON, "x=1+1)", "", BROKEN, ""},
        {PYTHON, "x=1 + 1)", "", BROKEN, ""},
        {PYTHON, "s='a' + 'b')", "", BROKEN, ""},
        {PYTHON, "x=y)", "", BROKEN, ""},
        {PYTHON, "x=y())", "", BROKEN, ""},
        {PYTHON, "x=[1)", "", BROKEN, ""},
        {PYTHON, "x=01)", "", BROKEN, ""},
        {PYTHON, "1x=1)", "", BROKEN, ""},
        {PYTHON, "x==1)", "", BROKEN, ""},
        {PYTHON, "'x'=1)", "", BROKEN, ""},
        {PYTHON, "x=1", "", BROKEN, ""},
    };

    (void)state;
    CHECK(samples);
}

static void gemma_strings_stand_between_marks(void **state) { /* case 80 */
    static const struct sample samples[] = {
        {GEMMA, "{s:<|\"|>a, \"b\"}<|\"|>,n:42}<", "{\"s\": \"a, \\\"b\\\"}\", \"n\": 42}", DONE,
         "<"},
        {GEMMA, "{}", "{}", DONE, ""},
        {GEMMA, "{s:<|\"|><|\"<|\"|>}", "{\"s\": \"<|\\\"\"}", DONE, ""},
        {GEMMA, "{a:{b:[1,true,null,<|\"|>x<|\"|>]},c d:-1.5}",
         "{\"a\": {\"b\": [1, true, null, \"x\"]}, \"c d\": -1.5}", DONE, ""},
        {GEMMA, "{city:New York, l:[a,b ]}", "{\"city\": \"New York\", \"l\": [\"a\", \"b\"]}",
         DONE, ""},
        {GEMMA, "{n:None,b:True}", "{\"n\": null, \"b\": true}", DONE, ""},
        {GEMMA, "{\"k\":1,<|\"|>l<|\"|>:2}", "{\"k\": 1, \"l\": 2}", DONE, ""},
        {GEMMA, "{s:\1<|\"|>}\1,t:<|\"|>}", "{\"s\": \"<|\\\"|>}\", \"t\": \"<|\\\"|>\"}", DONE, "",
         true},
        {GEMMA, "{s:\1a\2", "{\"s\": \"a", CUT, "\2", true},
        {GEMMA, "{s:1]", "{\"s\": 1", CUT, "]"},
        {GEMMA, "", "{}", DONE, ""},
        {GEMMA, "\2", "{}", DONE, "\2", true},
        {FGEMMA, "{s:<escape>a\n<b><escape>,x:5}", "{\"s\": \"a\\n<b>\", \"x\": 5}", DONE, ""},
        {FGEMMA, "{s:\1<escape>\1}\2", "{\"s\": \"<escape>\"}", DONE, "\2", true},
    };

    (void)state;
    CHECK(samples);
}

static void characters_stay_whole(void **state) { /* case 83; check_run looks at each delta */
    static const struct sample samples[] = {
        {QWEN, P("s", "\xF0\x9F\x98\x80\xE2\x82\xAC") "</function>",
         "{\"s\": \"\xF0\x9F\x98\x80\xE2\x82\xAC\"}", DONE, ""},
        {QWEN, P("s", "\xFF\xE2\x82z\xC0\x80\xED\xA0\x80\xF8") "</function>",
         "{\"s\": \"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
         "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"}",
         DONE, ""},
        {QWEN, P("n", "\xC3\xA9") P("n", "nu\xE2\x82\xAC") "</function>",
         "{\"n\": \"\xC3\xA9\", \"n\": \"nu\xE2\x82\xAC\"}", DONE, ""},
        {QWEN, "<parameter=s>\n\xE2\x82", "{\"s\": \"\xEF\xBF\xBD\xEF\xBF\xBD\"}", DONE, ""},
        {PYTHON, "\xC3\xA9='\xE2\x82\xAC')", "{\"\xC3\xA9\": \"\xE2\x82\xAC\"}", DONE, ")"},
        {GEMMA, "{\xC3\xA9:<|\"|>\xE2\x82\xAC<|\"|>}", "{\"\xC3\xA9\": \"\xE2\x82\xAC\"}", DONE,
         ""},
    };

    (void)state;
    CHECK(samples);
}

static void what_came_before_a_limit_stays(void **state) {
    static const struct sample samples[] = {
        {QWEN, "", "", CUT, ""},
        {QWEN, "<parameter=s>\nab\nc", "{\"s\": \"ab\\nc", CUT, ""},
        {QWEN, "<parameter=s>\na\n</parameter>\n", "{\"s\": \"a\"", CUT, ""},
        {QWEN, "<parameter=s>\na\n</par", "{\"s\": \"a\\n</par", CUT, ""},
        {QWEN, P("s", "a") "<parameter=x>\n12", "{\"s\": \"a\"", CUT, ""},
        {PYTHON, "x=1, s='ab", "{\"x\": 1, \"s\": \"ab", CUT, ""},
        {PYTHON, "", "", CUT, ""},
        {GEMMA, "{s:<|\"|>ab", "{\"s\": \"ab", CUT, ""},
    };

    (void)state;
    check_samples(samples, ARRAY_LEN(samples), true);
}

/* A string's text comes as it is written, all but what may be of its end. */
static void strings_stream(void **state) {
    static const struct {
        const char *push, *json;
    } steps[] = {
        {"<parameter=s", ""}, {">", "{\"s\": \""},  {"\n", ""},  {"ab", "ab"},
        {"\n", ""},           {"c", "\\nc"},        {"\n<", ""}, {"/parameter>\n", ""},
        {"</", ""},           {"function>", "\"}"},
    };
    struct json *s = schema();
    struct arguments *a = arguments_create(QWEN, s, NULL, 0);
    struct buf json;
    size_t n_used;

    (void)state;
    buf_init(&json, 0);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        (void)arguments_push(a, str_of(steps[i].push), &n_used, &json);
        if (!str_eq(buf_str(&json), str_of(steps[i].json)))
            fail_msg("step %zu: expected '%s', got '" STR_FMT "'", i, steps[i].json,
                     STR_ARG(buf_str(&json)));
        buf_clear(&json);
    }
    buf_fini(&json);
    arguments_destroy(a);
    json_destroy(s);
}

static void nesting_is_limited(void **state) {
    char text[400] = "x=";
    struct sample sample = {PYTHON, text, "", BROKEN, ""};
    struct json *s = schema();

    (void)state;
    memset(text + 2, '[', ARGUMENTS_MAX_DEPTH);
    memset(text + 2 + ARGUMENTS_MAX_DEPTH, ']', ARGUMENTS_MAX_DEPTH);
    strcpy(text + 2 + 2 * ARGUMENTS_MAX_DEPTH, ")");
    check_run(&sample, s, false, 1);
    text[2] = text[1 + 2 * ARGUMENTS_MAX_DEPTH] = ' ';
    {
        struct buf json;

        buf_init(&json, 0);
        assert_int_equal(fuzz_run(PYTHON, s, str_of(text), false, false, 1, NULL, &json).state,
                         DONE);
        buf_fini(&json);
    }
    json_destroy(s);
}

static void names_of_styles_are_found(void **state) {
    enum arguments_style style;

    (void)state;
    assert_true(arguments_style_find(STR("glm_xml"), &style));
    assert_int_equal(style, GLM);
    assert_true(arguments_style_find(STR("functiongemma"), &style));
    assert_int_equal(style, FGEMMA);
    assert_false(arguments_style_find(STR("json"), &style));
}

/* Types behind references and alternatives. */
static void schemas_are_followed(void **state) {
    static const struct {
        const char *schema, *value, *json;
    } cases[] = {
        {"{\"const\":\"a\"}", "5", "\"5\""},
        {"{\"enum\":[1,2]}", "2", "2"},
        {"{\"enum\":[\"1\",\"2\"]}", "2", "\"2\""},
        {"{\"type\":\"string\",\"nullable\":true}", "null", "null"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "5.5", "\"5.5\""},
        {"{\"anyOf\":[{\"type\":\"string\"},{}]}", "5", "5"},
        {"{\"allOf\":[{\"type\":[\"string\",\"null\"]},{\"type\":\"string\"}]}", "null",
         "\"null\""},
        {"{\"$ref\":\"#/$defs/t\"}", "5", "\"5\""},
        {"{\"$ref\":\"#/$defs/loop\"}", "5", "5"},
        {"{\"$ref\":\"#/$defs/none\"}", "a", "\"a\""},
        {"{\"type\":[\"integer\",\"null\"]}", "None", "null"},
        {"{\"type\":[\"string\",\"null\"]}", "None", "\"None\""},
        {"true", "5", "5"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[512], push[128], json[128];
        struct sample sample = {QWEN, push, json, DONE, ""};
        struct json *s = NULL;

        snprintf(text, sizeof(text),
                 "{\"properties\":{\"k\":%s},\"$defs\":{\"t\":{\"type\":\"string\"},"
                 "\"loop\":{\"$ref\":\"#/$defs/loop\"}}}",
                 cases[i].schema);
        snprintf(push, sizeof(push), P("k", "%s") "</function>", cases[i].value);
        snprintf(json, sizeof(json), "{\"k\": %s}", cases[i].json);
        assert_int_equal(json_parse(&s, str_of(text), NULL, NULL), ST_OK);
        check_run(&sample, s, false, 1);
        json_destroy(s);
    }
}

/* Texts that are held and released most often. Time that grows with the square of the length
 * would pass the limit of a test's time. */
static void long_arguments_are_read(void **state) { /* case 85 */
    static const char *const units[] = {
        "x", "\n",           "</parameter>", "</parameter>\n \n", "\n</function>\n ",
        "<", "\n<parameter", "\xE2\x82\xAC"};
    struct json *s = schema();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        struct arguments *a = arguments_create(QWEN, s, NULL, 0);
        struct str unit = str_of(units[i]);
        struct buf json;
        size_t n_used;

        buf_init(&json, 0);
        assert_int_equal(arguments_push(a, STR("<parameter=s>\nb"), &n_used, &json),
                         ARGUMENTS_MORE);
        for (size_t n = 0; n < 200000; n += unit.len)
            assert_int_equal(arguments_push(a, unit, &n_used, &json), ARGUMENTS_MORE);
        assert_int_equal(arguments_push(a, STR("e\n</parameter>\n</function>"), &n_used, &json),
                         DONE);
        assert_in_range(buf_len(&json), 200000, 500000);
        buf_fini(&json);
        arguments_destroy(a);
    }
    json_destroy(s);
}

/* ARGUMENTS_RANDOM_CALLS texts, made of the pieces that mean something; most begin as calls do. */
static void random_calls_do_not_depend_on_their_division(void **state) {
    static const char *const pieces[] = {"<parameter=",
                                         "s>",
                                         "x>",
                                         "n>",
                                         "o>",
                                         "\n",
                                         "</parameter>",
                                         "</function>",
                                         "</tool_call>",
                                         "\1",
                                         "\2",
                                         "\3",
                                         "\4",
                                         "\5",
                                         "\6",
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         "<parameter name=\"",
                                         "s\">",
                                         "u\" string=\"true\">",
                                         "</invoke>",
                                         "<" DSML "parameter name=\"",
                                         "</" DSML "parameter>",
                                         "</" DSML "invoke>",
                                         "<\1parameter name=\"",
                                         "</\1parameter>",
                                         "</\1invoke>",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "(",
                                         ")",
                                         "s=",
                                         "x:",
                                         ", ",
                                         ",",
                                         "'",
                                         "\"",
                                         "<|\"|>",
                                         "<escape>",
                                         "\\",
                                         "\\u00e9",
                                         "\\ud83d\\ude00",
                                         "1",
                                         "-2.5e3",
                                         "True",
                                         "null",
                                         "n",
                                         "u",
                                         "l",
                                         "a",
                                         " ",
                                         "\xE2\x82\xAC",
                                         "\xF0\x9F",
                                         "\xFF",
                                         "<",
                                         "</"};
    static const char *const beginnings[][2] = {
        [QWEN] = {"<parameter=s>\n", "<parameter=n>\n"},
        [SEED] = {"<parameter=s>", "<parameter=x>"},
        [GLM] = {"<arg_key>s</arg_key><arg_value>", "\3s\4\5"},
        [MINI] = {"<parameter name=\"s\">", "<parameter name='o'>"},
        [DEEP] = {"<" DSML "parameter name=\"s\" string=\"true\">", "<\1parameter name=\"x\">"},
        [PYTHON] = {"s='", "x=[1, "},
        [GEMMA] = {"{s:<|\"|>", "{s:\1"},
        [FGEMMA] = {"{s:<escape>", "{s:\1"}};
    const char *given = getenv("ARGUMENTS_RANDOM_CALLS");
    long n_calls = given ? atol(given) : 20000;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (long i = 0; i < n_calls; i++) {
        uint8_t text[1024];
        size_t len = 2;

        text[0] = (uint8_t)rng_below(&rng, ARRAY_LEN(beginnings));
        text[1] = (uint8_t)rng_below(&rng, 256);
        if (rng_below(&rng, 8)) { /* the second ones have tokens */
            const char *beginning = beginnings[text[0]][text[1] & 1];

            memcpy(text + len, beginning, strlen(beginning));
            len += strlen(beginning);
        }
        for (uint64_t n = rng_below(&rng, 24); n > 0; n--) {
            struct str piece = str_of(pieces[rng_below(&rng, ARRAY_LEN(pieces))]);

            memcpy(text + len, piece.ptr, piece.len);
            len += piece.len;
        }
        LLVMFuzzerTestOneInput(text, len);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_values_lose_one_newline_at_each_end),
        cmocka_unit_test(qwen_closing_tags_in_a_value_are_kept),
        cmocka_unit_test(values_are_of_their_types),
        cmocka_unit_test(qwen_calls_without_closing_tags_are_read),
        cmocka_unit_test(what_begins_with_no_key_is_no_call),
        cmocka_unit_test(seed_values_stand_on_their_line),
        cmocka_unit_test(a_repeated_key_is_passed_on),
        cmocka_unit_test(glm_is_read_with_and_without_newlines),
        cmocka_unit_test(minimax_names_are_quoted_twice_once_or_not),
        cmocka_unit_test(deepseek_attributes_tell_strings),
        cmocka_unit_test(pythonic_literals_become_json),
        cmocka_unit_test(gemma_strings_stand_between_marks),
        cmocka_unit_test(characters_stay_whole),
        cmocka_unit_test(what_came_before_a_limit_stays),
        cmocka_unit_test(strings_stream),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(names_of_styles_are_found),
        cmocka_unit_test(schemas_are_followed),
        cmocka_unit_test(long_arguments_are_read),
        cmocka_unit_test(random_calls_do_not_depend_on_their_division),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
