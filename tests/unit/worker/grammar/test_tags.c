/* tests/unit/worker/grammar/test_tags.c - structural tags: what they accept, as text and as tokens.
 *
 * In answers a marker that is one token stands between U+27E6 and U+27E7: ⟦<tool_call>⟧. All else
 * is spelt byte by byte. */
#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/grammar_fixture.h"
#include "tests/support/support.h"

/* --- a vocabulary ----------------------------------------------------------------------------- */

static const char *const words[] = {"<tool",         "_call>",
                                    "tool_call",     "a<",
                                    "abc",           "<tool_c",
                                    "x</tool_call>", "all>{\"",
                                    "\n</",          "\n<",
                                    "</parameter",   "{\"name",
                                    "        ",      "a long word of text",
                                    "<tool_call>",   "</tool_call>",
                                    "<|call|>",      "<|end|>"};
#define N_WORDS    ((uint32_t)ARRAY_LEN(words))
#define N_SPECIALS 2u /* the last ones, behind as many markers that are not */
#define N_TOKENS   (256 + N_WORDS)

static struct str bytes_of(const void *arg, uint32_t id) {
    static char bytes[256];

    (void)arg;
    if (id >= 256) return str_of(words[id - 256]);
    bytes[id] = (char)id;
    return (struct str){bytes + id, 1};
}

static bool is_special(const void *arg, uint32_t id) {
    (void)arg;
    return id >= N_TOKENS - N_SPECIALS;
}

static bool is_marker(const void *arg, uint32_t id) {
    (void)arg;
    return id >= N_TOKENS - 2 * N_SPECIALS;
}

static struct vocabulary *create(void) {
    struct vocabulary_source source = {
        .n_tokens = N_TOKENS, .bytes = bytes_of, .is_special = is_special, .is_marker = is_marker};
    struct vocabulary *v = vocabulary_create(&source);

    vocabulary_check(v);
    return v;
}

/* --- answers ---------------------------------------------------------------------------------- */

#define OPEN "\xE2\x9F\xA6"
#define SHUT "\xE2\x9F\xA7"

/* The next token of an answer, which is cut by it. */
static uint32_t next_token(const struct vocabulary *v, struct str *text) {
    uint32_t id = (uint8_t)*text->ptr;
    size_t len = 1;

    if (str_starts(*text, STR(OPEN))) {
        struct str name = {text->ptr + strlen(OPEN), 0};
        const struct vocabulary_marker *m;

        name.len = (size_t)str_find(*text, STR(SHUT)) - strlen(OPEN);
        m = vocabulary_find_marker(v, name);
        assert_non_null(m);
        id = m->id;
        len = name.len + strlen(OPEN SHUT);
    }
    text->ptr += len;
    text->len -= len;
    return id;
}

/* Each token of the mask, and no other, can be taken. */
static void check_mask(struct grammar_matcher *m, const struct vocabulary *v) {
    uint32_t kept[CEIL_DIV(N_TOKENS, 32)];
    const uint32_t *mask;
    bool is_new;

    assert_int_equal(grammar_mask(m, &mask, &is_new), ST_OK);
    memcpy(kept, mask, sizeof(kept));
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        struct grammar_matcher fork;
        enum status st;

        grammar_matcher_fork(&fork, m);
        st = grammar_take(&fork, id);
        if ((st == ST_OK) != (kept[id / 32] >> (id % 32) & 1))
            fail_msg("token %u: taken %d", id, st == ST_OK);
        grammar_matcher_fini(&fork);
    }
}

static bool accepts(struct grammar *g, const struct vocabulary *v, const char *answer,
                    bool checks_masks) {
    struct grammar_matcher m;
    struct str rest = str_of(answer);
    bool is_accepted = true;

    grammar_matcher_init(&m, g);
    while (rest.len > 0 && is_accepted) {
        if (checks_masks) check_mask(&m, v);
        is_accepted = grammar_take(&m, next_token(v, &rest)) == ST_OK;
    }
    is_accepted = is_accepted && grammar_is_accepting(&m);
    if (checks_masks && is_accepted) check_mask(&m, v);
    grammar_matcher_fini(&m);
    return is_accepted;
}

static const char hermes[] =
    "{\"type\":\"structural_tag\",\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<tool_"
    "call>\"],\"tags\":[{\"begin\":\"<tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \","
    "\"content\":{\"type\":\"json_schema\",\"whitespace\":\"compact\",\"json_schema\":{\"type\":"
    "\"object\",\"properties\":{\"x\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\"}},"
    "\"required\":[\"x\"]}},\"end\":\"}\\n</"
    "tool_call>\"},{\"begin\":\"<tool_call>\\n{\\\"name\\\": "
    "\\\"go\\\", \\\"arguments\\\": \",\"content\":{\"type\":\"json_schema\",\"json_schema\":{"
    "\"type\":\"object\",\"additionalProperties\":false}},\"end\":\"}\\n</tool_call>\"}]%s}}";

#define CALL_F                                                                                     \
    OPEN "<tool_call>" SHUT "\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n" OPEN                \
         "</tool_call>" SHUT
#define CALL_GO                                                                                    \
    OPEN "<tool_call>" SHUT "\n{\"name\": \"go\", \"arguments\": {}}\n" OPEN "</tool_call>" SHUT

struct sample {
    const char *format; /* of a tag */
    const char *yes[6], *no[8];
};

static void check_sample(const struct vocabulary *v, const char *text, const struct sample *s,
                         bool checks_masks) {
    struct grammar *g = fixture_grammar(GRAMMAR_TAG, text, false, v);

    for (size_t i = 0; i < ARRAY_LEN(s->yes) && s->yes[i]; i++)
        if (!accepts(g, v, s->yes[i], checks_masks)) fail_msg("%s refuses %s", text, s->yes[i]);
    for (size_t i = 0; i < ARRAY_LEN(s->no) && s->no[i]; i++)
        if (accepts(g, v, s->no[i], false)) fail_msg("%s accepts %s", text, s->no[i]);
    grammar_check(g);
    grammar_unref(g);
}

static void calls_stand_in_free_text(void **state) {
    static const struct sample cases[] = {
        {"",
         {"", "hi <tool_ <b> " CALL_F "and " CALL_GO CALL_F " bye", CALL_F, CALL_GO},
         {"a <tool_call> b", OPEN "<tool_call>" SHUT, CALL_F OPEN "</tool_call>" SHUT,
          "a" OPEN "<|call|>" SHUT, "<tool_call>\n{\"name\": \"go\", \"arguments\": {}}"}},
        {",\"at_least_one\":true",
         {CALL_F, "a" CALL_GO "b" CALL_F "c"},
         {"", "a", OPEN "<tool_call>" SHUT}},
        {",\"stop_after_first\":true", {"", "a" CALL_F, "abc"}, {CALL_F CALL_F, CALL_F "a"}},
        {",\"at_least_one\":true,\"stop_after_first\":true",
         {CALL_F, "a" CALL_GO},
         {"", "a", CALL_F CALL_F}},
        {",\"excludes\":[\"no\"]", {"n o" CALL_GO "n"}, {"no", "a" CALL_GO "no"}},
    };
    struct vocabulary *v = create();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf text;

        buf_init(&text, 0);
        buf_appendf(&text, hermes, cases[i].format);
        buf_append_char(&text, '\0');
        check_sample(v, buf_ptr(&text), &cases[i], true);
        buf_fini(&text);
    }
    vocabulary_destroy(v);
}

static void each_format_accepts_its_texts(void **state) {
    static const struct sample cases[] = {
        {"{\"type\":\"const_string\",\"value\":\"a<|call|>b\"}",
         {"a" OPEN "<|call|>" SHUT "b"},
         {"a<|call|>b", "ab", ""}},
        {"{\"type\":\"const_string\",\"value\":\"\"}", {""}, {"a"}},
        {"{\"type\":\"regex\",\"pattern\":\"[a-z]+\",\"excludes\":[\"bad\"]}",
         {"ba", "abab"},
         {"", "A", "xbadx"}},
        {"{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"(\\\" root \\\")\\\" | \\\"x\\\"\"}",
         {"x", "((x))"},
         {"(x"}},
        {"{\"type\":\"grammar\",\"grammar\":\"start: \\\"a\\\" <|call|>\"}",
         {"a" OPEN "<|call|>" SHUT},
         {"a"}},
        {"{\"type\":\"any_text\"}", {"", "\xFF<|call|>\n"}, {OPEN "<|call|>" SHUT}},
        {"{\"type\":\"any_text\",\"excludes\":[\"ab\",\"abc\",\"x\"]}", {"a b"}, {"cab", "x"}},
        {"{\"type\":\"any_tokens\",\"exclude_tokens\":[\"<|call|>\"]}",
         {"a"},
         {"<|call|>", OPEN "<|call|>" SHUT}},
        {"{\"type\":\"sequence\",\"elements\":[{\"type\":\"any_text\"},{\"type\":\"token\","
         "\"token\":"
         "\"<|end|>\"},{\"type\":\"const_string\",\"value\":\"ok\"}]}",
         {OPEN "<|end|>" SHUT "ok", "a <|en" OPEN "<|end|>" SHUT "ok"},
         {"ok", "<|end|>" OPEN "<|end|>" SHUT "ok", "a" OPEN "<|end|>" SHUT}},
        {"{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\",\"value\":\"a\"},{\"type\":"
         "\"token\",\"token\":270}]}", /* <tool_call> */
         {"a", OPEN "<tool_call>" SHUT},
         {"", "b", "<tool_call>"}},
        {"{\"type\":\"optional\",\"content\":{\"type\":\"const_string\",\"value\":\"a\"}}",
         {"", "a"},
         {"aa"}},
        {"{\"type\":\"plus\",\"content\":{\"type\":\"const_string\",\"value\":\"ab\"}}",
         {"ab", "abab"},
         {"", "aba"}},
        {"{\"type\":\"star\",\"content\":{\"type\":\"token\",\"token\":\"<|call|>\"}}",
         {"", OPEN "<|call|>" SHUT OPEN "<|call|>" SHUT},
         {"a"}},
        {"{\"type\":\"repeat\",\"min\":2,\"max\":3,\"content\":{\"type\":\"const_string\","
         "\"value\":"
         "\"a\"}}",
         {"aa", "aaa"},
         {"a", "aaaa"}},
        {"{\"type\":\"repeat\",\"min\":1,\"max\":-1,\"content\":{\"type\":\"regex\",\"pattern\":"
         "\"[a-c]\"}}",
         {"a", "abcabc"},
         {"", "d"}},
        {"{\"type\":\"tag\",\"begin\":\"<b>\",\"content\":{\"type\":\"any_text\"},\"end\":[\"</"
         "b>\","
         "{\"type\":\"token\",\"token\":\"<|end|>\"},\"!\"]}",
         {"<b>a</b>", "<b>a" OPEN "<|end|>" SHUT, "<b>a</!"},
         {"<b>a</b></b>", "<b>a!!", "a</b>", "<b>a<|end|>" OPEN "<|end|>" SHUT}},
        {"{\"type\":\"tag\",\"begin\":{\"type\":\"token\",\"token\":\"<tool_call>\"},\"content\":{"
         "\"type\":\"json_schema\",\"json_schema\":{\"type\":\"string\"}},\"end\":\"\"}",
         {OPEN "<tool_call>" SHUT "\"</tool_call> <tool_call>\""},
         {"<tool_call>\"a\"", OPEN "<tool_call>" SHUT "\"" OPEN "<tool_call>" SHUT "\""}},
        {"{\"type\":\"tags_with_separator\",\"separator\":\"; \",\"tags\":[{\"begin\":\"a\","
         "\"content\":{\"type\":\"regex\",\"pattern\":\"[0-9]\"},\"end\":\"\"},{\"begin\":\"ab\","
         "\"content\":{\"type\":\"const_string\",\"value\":\"\"},\"end\":\"\"}]}",
         {"", "a1", "ab; a2; a3"},
         {"; a1", "a1;", "a1a2"}},
        {"{\"type\":\"tags_with_separator\",\"separator\":\"<|call|>\",\"at_least_one\":true,"
         "\"stop_after_first\":true,\"tags\":[{\"begin\":\"a\",\"content\":{\"type\":\"regex\","
         "\"pattern\":\"[0-9]\"},\"end\":\"\"}]}",
         {"a1"},
         {"", "a1" OPEN "<|call|>" SHUT "a1"}},
        {"{\"type\":\"token_triggered_tags\",\"trigger_tokens\":[\"<|call|>\"],\"tags\":[{"
         "\"begin\":"
         "{\"type\":\"token\",\"token\":\"<|call|>\"},\"content\":{\"type\":\"any_text\"},\"end\":{"
         "\"type\":\"token\",\"token\":\"<|end|>\"}}]}",
         {"a" OPEN "<|call|>" SHUT "x" OPEN "<|end|>" SHUT "b"},
         {"<|call|>", "a" OPEN "<|call|>" SHUT "x"}},
    };
    struct vocabulary *v = create();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf text;

        buf_init(&text, 0);
        buf_appendf(&text, "{\"type\":\"structural_tag\",\"format\":%s}", cases[i].format);
        buf_append_char(&text, '\0');
        check_sample(v, buf_ptr(&text), &cases[i], true);
        buf_fini(&text);
    }
    vocabulary_destroy(v);
}

static void the_older_form_is_read(void **state) {
    static const struct sample sample = {
        NULL, {"", "a <f=1>{\"x\":1}</f> b"}, {"<f=1>{}</f>", "<f=2>", "<f=1>{\"x\":1}"}};
    struct vocabulary *v = create();

    (void)state;
    check_sample(
        v,
        "{\"structures\":[{\"begin\":\"<f=1>\",\"schema\":{\"type\":\"object\",\"required\":"
        "[\"x\"],\"properties\":{\"x\":{\"type\":\"integer\"}}},\"end\":\"</f>\"}],"
        "\"triggers\":[\"<f=\"]}",
        &sample, true);
    vocabulary_destroy(v);
}

static void styles_write_parameters(void **state) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":"
        "\"integer\"}"
        ",\"e\":{\"enum\":[\"on\",1,\"a\\\"b\"]},\"p\":{\"type\":\"string\",\"pattern\":\"^[a-"
        "z\\\"]+$\"},"
        "\"m\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"any\":{},\"o\":{\"type\":"
        "\"object\"}},\"required\":[\"n\"]}";
    static const struct sample cases[] = {
        {"\"qwen_xml\"",
         {"<parameter=n>\n5\n</parameter>\n",
          "<parameter=s>\na \"q\" </parameter> "
          "\\\nb\n\n</parameter>\n<parameter=n>\n5\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=e>\non\n</parameter>\n<parameter=p>\nab\n"
          "</parameter>\n<parameter=m>\nnull\n</parameter>\n<parameter=any>\n[1\n</parameter>\n"
          "<parameter=o>\n{\"a\":1}\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=e>\na\"b\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=e>\n1\n</parameter>\n"},
         {"", "<parameter=n>\nx\n</parameter>\n", "<parameter=s>\na\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=z>\na\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=e>\noff\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=p>\na1\n</parameter>\n",
          "<parameter=s>\na\n</parameter>\nb\n</parameter>\n<parameter=n>\n5\n</parameter>\n",
          "<parameter=n>\n5\n</parameter>\n<parameter=o>\n[]\n</parameter>\n"}},
        {"\"minimax_xml\"",
         {"<parameter name=\"s\">x</parameter>\n<parameter name=\"n\">5</parameter>\n"},
         {"<parameter name=\"n\">\"5\"</parameter>\n"}},
        {"\"deepseek_xml\"",
         {"<\xEF\xBD\x9C"
          "DSML\xEF\xBD\x9Cparameter name=\"s\" string=\"true\">5</\xEF\xBD\x9C"
          "DSML\xEF\xBD\x9Cparameter>\n<\xEF\xBD\x9C"
          "DSML\xEF\xBD\x9Cparameter name=\"n\" "
          "string=\"false\">5</\xEF\xBD\x9C"
          "DSML\xEF\xBD\x9Cparameter>\n"},
         {"<\xEF\xBD\x9C"
          "DSML\xEF\xBD\x9Cparameter name=\"n\" string=\"true\">5</\xEF\xBD\x9C"
          "DSML\xEF\xBD\x9Cparameter>\n"}},
        {"\"glm_xml\"",
         {"<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n"},
         {"<arg_key>n</arg_key><arg_value>5</arg_value>\n"}},
        {"{\"key\":\"<tool_call>\",\"text\":\"=\",\"end\":\"<|end|> \"}",
         {OPEN "<tool_call>" SHUT "n=5" OPEN "<|end|>" SHUT " ",
          OPEN "<tool_call>" SHUT "s=<tool_call>" OPEN "<|end|>" SHUT " " OPEN "<tool_call>" SHUT
               "n=5" OPEN "<|end|>" SHUT " "},
         {"<tool_call>n=5" OPEN "<|end|>" SHUT " ",
          OPEN "<tool_call>" SHUT "s=<|end|>" OPEN "<|end|>" SHUT " " OPEN "<tool_call>" SHUT
               "n=5" OPEN "<|end|>" SHUT " "}},
        {"{\"text\":\"=\",\"between\":\", \"}",
         {"n=5", "s=\"a\", n=5, any=[1]", "n=5, e=\"on\"", "n=5, o={\"a\":1}"},
         {"", "s=\"a\"", "n=5, ", "n=5, n=5", "n=5, s=\"a\"", "n=5, z=1", "s=a, n=5"}},
        {"{\"quote\":\"<|end|>\"}",
         {"{n:5}", "{s:" OPEN "<|end|>" SHUT "a\"\n" OPEN "<|end|>" SHUT ",n:5,m:None}",
          "{n:5,any:{k:[" OPEN "<|end|>" SHUT OPEN "<|end|>" SHUT ",1.5]},o:{}}", "{n:5,zz:true}",
          "{n:5,e:" OPEN "<|end|>" SHUT "a\"b" OPEN "<|end|>" SHUT "}", "{n:5,e:1}"},
         {"{}", "{n: 5}", "{n:5,n:5}", "{\"n\":5}", "{n:5,s:\"a\"}", "{n:5,m:null}",
          "{n:5,any:{\"k\":1}}", "{n:5,e:" OPEN "<|end|>" SHUT "b" OPEN "<|end|>" SHUT "}"}},
    };
    struct vocabulary *v = create();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf text;

        buf_init(&text, 0);
        buf_appendf(&text,
                    "{\"format\":{\"type\":\"json_schema\",\"style\":%s,\"json_schema\":%s}}",
                    cases[i].format, schema);
        buf_append_char(&text, '\0');
        check_sample(v, buf_ptr(&text), &cases[i], true);
        buf_fini(&text);
    }
    vocabulary_destroy(v);
}

static void texts_are_spelled_as_inside_of_a_json_string(void **state) {
    static const struct sample grammar = {
        "{\"format\":{\"type\":\"grammar\",\"inside\":\"json_string\",\"syntax\":\"lark\","
        "\"grammar\":"
        "\"start: A (\\\"\\\\\\\"\\\" | \\\"::=\\\") /.\\\\t?/\\nA: \\\"a\\\" LF # a "
        "comment\\n%import common.LF\"}}",
        {"a\\n\\\"b", "a\\n::=\\\\\\t", "a\\n::=\\u0001"},
        {"a\n\"b", "a\\n\"b", "a\\n::=\\n", "a\\n::=\\"}};
    static const struct sample regex = {"{\"format\":{\"type\":\"regex\",\"inside\":\"json_"
                                        "string\",\"pattern\":\"[\\\"\\\\\\\\]{2}\"}}",
                                        {"\\\"\\\\", "\\\\\\\\"},
                                        {"\"\\", "\\\"", "\\\\"}};
    struct vocabulary *v = create();

    (void)state;
    check_sample(v, grammar.format, &grammar, true);
    check_sample(v, regex.format, &regex, true);
    vocabulary_destroy(v);
}

/* No terminal does; a text of several may. */
static void terminals_hold_none_of_what_is_excluded(void **state) {
    static const struct sample sample = {"{\"format\":{\"type\":\"grammar\",\"excludes\":[\"</"
                                         "p>\"],\"grammar\":\"start: (/.*/ LF)+\\n"
                                         "%import common.LF\"}}",
                                         {"</p\n", "a</q>\n</\np>\n"},
                                         {"</p>\n", "a\nb</p>c\n", "a"}};
    struct vocabulary *v = create();

    (void)state;
    check_sample(v, sample.format, &sample, true);
    vocabulary_destroy(v);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void what_cannot_be_kept_is_refused_with_its_place(void **state) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[]", "#: a structural tag is an object, not an array"},
        {"{}", "#: a structural tag needs a format"},
        {"{\"type\":\"x\",\"format\":{}}", "#: its type must be structural_tag"},
        {"{\"format\":5}", "#/format: a format is an object with a type"},
        {"{\"format\":{\"type\":\"dispatch\"}}", "#/format: unsupported type \"dispatch\""},
        {"{\"format\":{\"type\":\"exclude_token\"}}",
         "#/format: unsupported type \"exclude_token\""},
        {"{\"format\":{\"type\":\"sequence\",\"elements\":[]}}",
         "#/format/elements: elements must be an array that is not empty"},
        {"{\"format\":{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\"}]}}",
         "#/format/elements/0: value must be a string"},
        {"{\"format\":{\"type\":\"any_text\",\"max_tokens\":3}}",
         "#/format/max_tokens: max_tokens is not supported"},
        {"{\"format\":{\"type\":\"any_text\",\"excludes\":[\"\"]}}",
         "#/format/excludes: excludes must not be empty"},
        {"{\"format\":{\"type\":\"regex\",\"pattern\":\"(\"}}", NULL},
        {"{\"format\":{\"type\":\"grammar\",\"grammar\":\"root ::= x\"}}",
         "#/format/grammar: line 1 of the grammar: the rule \"x\" is used, but not defined"},
        {"{\"format\":{\"type\":\"grammar\",\"syntax\":\"yacc\",\"grammar\":\"start: \"}}",
         "#/format/syntax: syntax must be \"lark\" or \"ebnf\""},
        {"{\"format\":{\"type\":\"regex\",\"inside\":5,\"pattern\":\"a\"}}",
         "#/format/inside: inside must be \"json_string\""},
        {"{\"format\":{\"type\":\"grammar\",\"inside\":\"json_string\",\"grammar\":\"start: "
         "<|end|>\"}}",
         "#/format/grammar: line 1 of the grammar: a special token cannot stand in a JSON string"},
        {"{\"format\":{\"type\":\"json_schema\",\"style\":{\"key\":\"\"},\"json_schema\":{}}}",
         "#/format/style: a style needs key, text and end, or text and between, or quote, which "
         "are "
         "strings"},
        {"{\"format\":{\"type\":\"json_schema\",\"style\":{\"quote\":\"'\"},\"json_schema\":{"
         "\"enum\":"
         "[[1]]}}}",
         "#/format/json_schema/enum/0: arrays and objects in enum or const are supported in JSON "
         "alone"},
        {"{\"format\":{\"type\":\"json_schema\"}}", "#/format: json_schema is missing"},
        {"{\"format\":{\"type\":\"json_schema\",\"json_schema\":{\"properties\":{\"a\":{\"not\":{}}"
         "}}}}",
         "#/format/json_schema/properties/a: the keyword \"not\" is not supported"},
        {"{\"format\":{\"type\":\"json_schema\",\"style\":\"yaml\",\"json_schema\":{}}}", NULL},
        {"{\"format\":{\"type\":\"json_schema\",\"style\":\"qwen_xml\",\"json_schema\":{\"type\":"
         "\"string\"}}}",
         "#/format/json_schema: parameters are an object: its type must allow one"},
        {"{\"format\":{\"type\":\"token\",\"token\":\"<|none|>\"}}",
         "#/format/token: the model has no token \"<|none|>\""},
        {"{\"format\":{\"type\":\"token\",\"token\":100000}}",
         "#/format/token: there is no such token"},
        {"{\"format\":{\"type\":\"token\",\"token\":97}}",
         "#/format/token: a token of one byte is text: use const_string"},
        {"{\"format\":{\"type\":\"token\"}}", NULL},
        {"{\"format\":{\"type\":\"repeat\",\"min\":3,\"max\":2,\"content\":{}}}", NULL},
        {"{\"format\":{\"type\":\"tag\",\"begin\":\"a\",\"end\":\"b\"}}",
         "#/format: a tag needs its content"},
        {"{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<x\"],\"tags\":[{\"begin\":\"<y>"
         "\","
         "\"content\":{\"type\":\"any_text\"},\"end\":\"b\"}]}}",
         "#/format/tags/0: the tag begins with no trigger"},
        {"{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[],\"tags\":[]}}",
         "#/format: triggers are missing"},
    };
    struct vocabulary *v = create();
    struct buf deep;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *message = fixture_refusal(GRAMMAR_TAG, cases[i].text, v);

        if (cases[i].message) assert_string_equal(message, cases[i].message);
        assert_int_equal(message[0], '#');
    }
    buf_init(&deep, 0);
    buf_appendf(&deep, "{\"format\":");
    for (uint32_t i = 0; i < 40; i++)
        buf_appendf(&deep, "{\"type\":\"star\",\"content\":");
    buf_appendf(&deep, "{\"type\":\"any_text\"}%.*s}", 40,
                "}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}");
    buf_append_char(&deep, '\0');
    assert_non_null(strstr(fixture_refusal(GRAMMAR_TAG, buf_ptr(&deep), v),
                           "more than 32 formats inside each other"));
    buf_fini(&deep);
    vocabulary_destroy(v);
}

/* Hundreds of tools, as agents have: a grammar, and memory within the limits. */
static void hundreds_of_tags_are_served(void **state) {
    struct vocabulary *v = create();
    struct grammar *g;
    struct buf text;

    (void)state;
    buf_init(&text, 0);
    buf_appendf(&text, "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<tool_call>\"],"
                       "\"tags\":[");
    for (uint32_t i = 0; i < 300; i++)
        buf_appendf(
            &text,
            "%s{\"begin\":\"<tool_call>{\\\"name\\\": \\\"tool_%u\\\", \\\"arguments\\\": \","
            "\"content\":{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\","
            "\"properties\":{\"path_%u\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}"
            "},\"end\":\"}</tool_call>\"}",
            i > 0 ? "," : "", i, i);
    buf_appendf(&text, "]}}");
    buf_append_char(&text, '\0');
    g = fixture_grammar(GRAMMAR_TAG, buf_ptr(&text), false, v);
    assert_true(grammar_bytes(g) < GRAMMAR_MAX_BYTES / 4);
    assert_true(accepts(g, v,
                        "a" OPEN "<tool_call>" SHUT
                        "{\"name\": \"tool_299\", \"arguments\": {\"path_299\": \"x\"}}" OPEN
                        "</tool_call>" SHUT "b",
                        true));
    assert_false(accepts(g, v,
                         OPEN "<tool_call>" SHUT "{\"name\": \"tool_300\", \"arguments\": {}}" OPEN
                              "</tool_call>" SHUT,
                         false));
    grammar_unref(g);
    buf_fini(&text);
    vocabulary_destroy(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_stand_in_free_text),
        cmocka_unit_test(each_format_accepts_its_texts),
        cmocka_unit_test(the_older_form_is_read),
        cmocka_unit_test(styles_write_parameters),
        cmocka_unit_test(texts_are_spelled_as_inside_of_a_json_string),
        cmocka_unit_test(terminals_hold_none_of_what_is_excluded),
        cmocka_unit_test(what_cannot_be_kept_is_refused_with_its_place),
        cmocka_unit_test(hundreds_of_tags_are_served),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
