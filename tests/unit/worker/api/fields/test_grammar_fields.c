/* tests/unit/worker/api/fields/test_grammar_fields.c - which field asks for which grammar. */
#include <string.h>

#include "common/text/json.h"
#include "tests/support/cm.h"
#include "worker/api/fields/grammar_fields.h"

struct parsed {
    struct json *body;
    struct grammar_fields f;
    enum status status;
    struct error err;
};

static struct parsed parse(const char *body) {
    struct parsed p = {0};

    assert_int_equal(json_parse(&p.body, str_of(body), NULL, NULL), ST_OK);
    p.status = grammar_fields_parse(&p.f, p.body, &p.err);
    return p;
}

static void finish(struct parsed *p) {
    grammar_fields_fini(&p->f);
    json_destroy(p->body);
}

static void each_field_becomes_its_kind_of_grammar(void **state) {
    static const struct {
        const char *body, *field;
        enum grammar_kind kind;
        const char *text;
    } cases[] = {
        {"{\"response_format\":{\"type\":\"json_object\"}}", "response_format", GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"object\"}"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
         "\"null\"}}}}",
         "response_format", GRAMMAR_JSON_SCHEMA, "{\"type\":\"null\"}"},
        {"{\"guided_json\":{\"const\":9007199254740993}}", "guided_json", GRAMMAR_JSON_SCHEMA,
         "{\"const\":9007199254740993}"},
        {"{\"json_schema\":\"{ }\"}", "json_schema", GRAMMAR_JSON_SCHEMA, "{ }"},
        {"{\"guided_regex\":\"a+\"}", "guided_regex", GRAMMAR_REGEX, "a+"},
        {"{\"regex\":\"a+\"}", "regex", GRAMMAR_REGEX, "a+"},
        {"{\"guided_choice\":[\"a\",\"b\"]}", "guided_choice", GRAMMAR_CHOICE, "[\"a\",\"b\"]"},
        {"{\"ebnf\":\"root ::= x\"}", "ebnf", GRAMMAR_EBNF, "root ::= x"},
        {"{\"guided_grammar\":\"root ::= x\"}", "guided_grammar", GRAMMAR_EBNF, "root ::= x"},
        {"{\"guided_grammar\":\"start: x\"}", "guided_grammar", GRAMMAR_LARK, "start: x"},
        {"{\"structured_outputs\":{\"json\":true}}", "structured_outputs.json", GRAMMAR_JSON_SCHEMA,
         "true"},
        {"{\"structured_outputs\":{\"regex\":\"a\",\"json\":null}}", "structured_outputs.regex",
         GRAMMAR_REGEX, "a"},
        {"{\"structured_outputs\":{\"json_object\":true}}", "structured_outputs.json_object",
         GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}"},
        {"{\"structured_outputs\":{\"structural_tag\":\"{}\"}}",
         "structured_outputs.structural_tag", GRAMMAR_TAG, "{}"},
        {"{\"structural_tag\":{\"format\":{\"type\":\"any_text\"}}}", "structural_tag", GRAMMAR_TAG,
         "{\"format\":{\"type\":\"any_text\"}}"},
        {"{\"response_format\":{\"type\":\"structural_tag\",\"structures\":[]}}", "response_format",
         GRAMMAR_TAG, "{\"type\":\"structural_tag\",\"structures\":[]}"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p = parse(cases[i].body);

        if (p.status != ST_OK) fail_msg("%s: %s", cases[i].body, p.err.message);
        assert_string_equal(p.f.field, cases[i].field);
        assert_int_equal(p.f.spec.kind, cases[i].kind);
        assert_true(str_eq(p.f.spec.text, str_of(cases[i].text)));
        assert_false(p.f.spec.is_closed);
        assert_int_equal(p.f.spec.spaces, GRAMMAR_SPACES_FREE);
        finish(&p);
    }
}

static void options_go_with_the_grammar(void **state) {
    struct parsed p =
        parse("{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
              "\"schema\":{},\"strict\":true}},\"guided_whitespace_pattern\":\" ?\"}");

    (void)state;
    assert_int_equal(p.status, ST_OK);
    assert_true(p.f.spec.is_closed);
    assert_int_equal(p.f.spec.spaces, GRAMMAR_SPACES_PATTERN);
    assert_true(str_eq(p.f.spec.spaces_pattern, STR(" ?")));
    finish(&p);
    p = parse("{\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":true,"
              "\"disable_additional_properties\":true}}");
    assert_int_equal(p.status, ST_OK);
    assert_true(p.f.spec.is_closed);
    assert_int_equal(p.f.spec.spaces, GRAMMAR_SPACES_COMPACT);
    finish(&p);
}

static void nothing_asks_for_nothing(void **state) {
    static const char *const bodies[] = {
        "{}", "{\"response_format\":null,\"structured_outputs\":null,\"guided_json\":null}",
        "{\"response_format\":{\"type\":\"text\"},\"regex\":\"\",\"ebnf\":\"\",\"json_schema\":"
        "\"\"}"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        struct parsed p = parse(bodies[i]);

        assert_int_equal(p.status, ST_OK);
        assert_null(p.f.field);
        finish(&p);
    }
}

static void a_wrong_value_names_its_field(void **state) {
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{\"response_format\":{\"type\":\"json_schema\"}}", "response_format"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":5}}}",
         "response_format"},
        {"{\"response_format\":{\"type\":\"xml\"}}", "response_format"},
        {"{\"response_format\":{}}", "response_format"},
        {"{\"guided_json\":5}", "guided_json"},
        {"{\"guided_choice\":[]}", "guided_choice"},
        {"{\"regex\":5}", "regex"},
        {"{\"structured_outputs\":{}}", "structured_outputs"},
        {"{\"structured_outputs\":{\"json_object\":false}}", "structured_outputs.json_object"},
        {"{\"structured_outputs\":{\"grammar\":\"\"}}", "structured_outputs.grammar"},
        {"{\"structured_outputs\":{\"json\":{},\"structural_tag\":\"x\"}}",
         "structured_outputs.structural_tag"},
        {"{\"structured_outputs\":{\"structural_tag\":5}}", "structured_outputs.structural_tag"},
        {"{\"structural_tag\":true}", "structural_tag"},
        {"{\"structured_outputs\":{\"json\":{},\"choice\":[\"a\"]}}", "structured_outputs.choice"},
        {"{\"regex\":\"a\",\"ebnf\":\"root ::= x\"}", "ebnf"},
        {"{\"guided_json\":{},\"guided_whitespace_pattern\":5}", "guided_whitespace_pattern"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p = parse(cases[i].body);

        assert_int_equal(p.status, ST_INVALID);
        assert_string_equal(p.err.param, cases[i].param);
        finish(&p);
    }
}

static void a_spec_over_the_limit_is_refused(void **state) {
    struct parsed p = {0};
    struct buf body;

    (void)state;
    buf_init(&body, 0);
    buf_append_str(&body, STR("{\"regex\":\""));
    for (uint32_t i = 0; i <= GRAMMAR_TEXT_MAX; i++)
        buf_append_char(&body, 'a');
    buf_append(&body, "\"}", 3);
    p = parse(buf_ptr(&body));
    assert_int_equal(p.status, ST_INVALID);
    assert_non_null(strstr(p.err.message, "more than 262144 bytes"));
    finish(&p);
    buf_fini(&body);
}

static void constraint_becomes_a_format_of_a_tag(void **state) {
    static const struct {
        const char *body, *format;
    } cases[] = {
        {"{\"guided_json\":{\"type\":\"null\"}}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"null\"}}"},
        {"{\"guided_regex\":\"a\\n\"}", "{\"type\":\"regex\",\"pattern\":\"a\\n\"}"},
        {"{\"guided_choice\":[\"a\",\"b\"]}",
         "{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\",\"value\":\"a\"},"
         "{\"type\":\"const_string\",\"value\":\"b\"}]}"},
        {"{\"guided_grammar\":\"start: x\"}", "{\"type\":\"grammar\",\"grammar\":\"start: x\"}"},
        {"{\"ebnf\":\"root ::= x\"}", "{\"type\":\"grammar\",\"grammar\":\"root ::= x\"}"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p = parse(cases[i].body);
        struct buf out;

        buf_init(&out, 0);
        grammar_fields_put_format(&p.f, &out);
        buf_append(&out, "", 1);
        assert_string_equal(buf_str(&out).ptr, cases[i].format);
        buf_fini(&out);
        finish(&p);
    }
}

static void tag_takes_the_place_of_a_constraint_and_keeps_its_field(void **state) {
    static const struct {
        const char *body, *field;
    } cases[] = {{"{}", "tools"}, {"{\"guided_regex\":\"a\"}", "guided_regex"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p = parse(cases[i].body);

        assert_int_equal(grammar_fields_set_tag(&p.f, STR("{}"), &p.err), ST_OK);
        assert_string_equal(p.f.field, cases[i].field);
        assert_int_equal(p.f.spec.kind, GRAMMAR_TAG);
        assert_true(str_eq(p.f.spec.text, STR("{}")));
        finish(&p);
    }
}

static void tag_that_is_too_long_names_what_most_of_it_is_of(void **state) {
    static const char *const words[] = {"", "regex"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        struct buf body, tag;
        struct parsed p;

        buf_init(&body, 0);
        buf_init(&tag, 0);
        buf_appendf(&body, "{\"%s\":\"", words[i]);
        for (uint32_t n = 0; n < GRAMMAR_TEXT_MAX - 10; n++)
            buf_append_char(&body, 'a');
        buf_append(&body, "\"}", 3);
        p = parse(buf_str(&body).ptr);
        for (uint32_t n = 0; n <= GRAMMAR_TEXT_MAX; n++)
            buf_append_char(&tag, 'a');
        assert_int_equal(grammar_fields_set_tag(&p.f, buf_str(&tag), &p.err), ST_INVALID);
        assert_string_equal(p.err.param, *words[i] ? words[i] : "tools");
        assert_non_null(strstr(p.err.message, "shorten"));
        finish(&p);
        buf_fini(&body);
        buf_fini(&tag);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field_becomes_its_kind_of_grammar),
        cmocka_unit_test(options_go_with_the_grammar),
        cmocka_unit_test(nothing_asks_for_nothing),
        cmocka_unit_test(a_wrong_value_names_its_field),
        cmocka_unit_test(a_spec_over_the_limit_is_refused),
        cmocka_unit_test(constraint_becomes_a_format_of_a_tag),
        cmocka_unit_test(tag_takes_the_place_of_a_constraint_and_keeps_its_field),
        cmocka_unit_test(tag_that_is_too_long_names_what_most_of_it_is_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
