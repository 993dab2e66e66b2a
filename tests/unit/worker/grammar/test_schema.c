/* tests/unit/worker/grammar/test_schema.c - which answers a schema accepts, keyword by keyword. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/grammar_fixture.h"
#include "tests/support/support.h"

static struct vocabulary *vocabulary;

static int set_up(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    vocabulary = fixture_vocabulary(&rng, 0, "");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    vocabulary_destroy(vocabulary);
    return 0;
}

struct answers {
    const char *schema;
    bool is_closed;
    const char *yes[8], *no[9];
};

static void check(const struct answers *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct answers *c = &cases[i];
        struct grammar *g =
            fixture_grammar(GRAMMAR_JSON_SCHEMA, c->schema, c->is_closed, vocabulary);

        for (size_t k = 0; k < ARRAY_LEN(c->yes) && c->yes[k]; k++)
            if (!grammar_accepts(g, str_of(c->yes[k])))
                fail_msg("%s refuses %s", c->schema, c->yes[k]);
        for (size_t k = 0; k < ARRAY_LEN(c->no) && c->no[k]; k++)
            if (grammar_accepts(g, str_of(c->no[k])))
                fail_msg("%s accepts %s", c->schema, c->no[k]);
        grammar_check(g);
        grammar_unref(g);
    }
}

#define A_INTEGER                                                                                  \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}"
#define ABC "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}"

static void objects_have_their_properties_in_order(void **state) {
    static const struct answers cases[] = {
        {A_INTEGER,
         false,
         {"{\"a\":1}", "{ \"a\" : 1 }", "{\"a\":1,\"b\":true}", "{\n  \"a\": -0\n}"},
         {" {\"a\":1}", "{\"a\":1} ", "{\"a\":1.0}", "{\"a\":01}", "{}", "{\"b\":1,\"a\":1}"}},
        {A_INTEGER, true, {"{\"a\":1}"}, {"{\"a\":1,\"b\":true}"}},
        {ABC,
         false,
         {"{}", "{\"c\":1}", "{\"a\":1,\"c\":1}", "{\"a\":1,\"x\":1,\"x\":2}"},
         {"{\"c\":1,\"a\":1}", "{\"a\":1,\"a\":1}", "{\"x\":1,\"b\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"z\"]}",
         false,
         {"{\"z\":1,\"a\":1}"},
         {"{}", "{\"a\":1,\"z\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":"
         "\"null\"}}",
         false,
         {"{\"b\":null}", "{\"a\":1,\"b\":null,\"c\":null}"},
         {"{\"b\":1}", "{\"ab\":0}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^k\"},\"x-other\":1}",
         false,
         {"{\"k1\":2}", "{}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"k\":{}},\"propertyNames\":{\"enum\":["
         "\"k\","
         "\"l\"]}}",
         false,
         {"{\"k\":1}", "{\"l\":1}", "{}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"patternProperties\":{\"^s_\":{\"type\":\"string\"}},"
         "\"additionalProperties\":false}",
         false,
         {"{\"s_a\":\"x\"}", "{}", "{\"s_\":\"\",\"s_b\":\"\"}"},
         {"{\"t\":1}", "{\"s_a\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"s_a\":{\"minLength\":2}},\"patternProperties\":{"
         "\"^s_\":{\"type\":\"string\"},\"^n_\":{\"type\":\"integer\"}}}",
         false,
         {"{\"s_a\":\"xy\"}", "{\"n_a\":1,\"s_b\":\"\",\"other\":null}"},
         {"{\"s_a\":\"x\"}", "{\"s_a\":12}", "{\"n_a\":\"\"}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":1}",
         false,
         {"{\"a\":1}", "{\"b\":1}", "{\"q\":1}"},
         {"{}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":2,"
         "\"maxProperties\":3}",
         false,
         {"{\"a\":1,\"b\":1}", "{\"b\":1,\"q\":1}", "{\"p\":1,\"q\":1,\"r\":1}"},
         {"{\"a\":1}", "{\"q\":1}", "{\"a\":1,\"b\":1,\"p\":1,\"q\":1}", "{}"}},
        {"{\"type\":\"object\",\"maxProperties\":0}", false, {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"not_a_keyword\":1}},"
         "\"unevaluatedProperties\":false}",
         false,
         {"{\"a\":1}"},
         {"{\"b\":1}"}},
        {"{\"properties\":{\"a\":{\"type\":\"null\"}}}",
         false,
         {"1", "[]", "{\"a\":null}"},
         {"{\"a\":1}"}}, /* without a type all others pass */
        {"{\"type\":\"object\",\"properties\":{\"a\\\"\\n\":{}},\"additionalProperties\":false}",
         false,
         {"{\"a\\\"\\n\":1}"},
         {"{\"a\":1}"}},
    };

    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void numbers_keep_to_their_bounds(void **state) {
    static const struct answers cases[] = {
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":17}",
         false,
         {"5", "9", "10", "17"},
         {"4", "18", "170", "-5", "5.0", "05"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}",
         false,
         {"0.001", "1", "0.10", "120.5"},
         {"0", "0.0", "-0", "1e-3", "-1"}},
        {"{\"type\":\"number\",\"exclusiveMaximum\":0}",
         false,
         {"-0.1", "-12"},
         {"0", "-0", "-0.0"}},
        {"{\"type\":\"number\",\"minimum\":-1.25,\"maximum\":3.5}",
         false,
         {"-1.25", "-1.250", "-1.2", "0", "3.5", "3.49", "3"},
         {"-1.26", "3.51", "4", "-2", "35"}},
        {"{\"type\":\"integer\",\"minimum\":-120,\"exclusiveMaximum\":-9}",
         false,
         {"-120", "-10", "-99"},
         {"-121", "-9", "0", "10"}},
        {"{\"type\":\"integer\",\"minimum\":0.5}", false, {"1", "10"}, {"0", "-1"}},
        {"{\"type\":\"integer\",\"multipleOf\":3}", false, {"9", "0", "-3", "123"}, {"10", "-1"}},
        {"{\"multipleOf\":4,\"allOf\":[{\"multipleOf\":6}],\"type\":\"number\"}",
         false,
         {"12", "0", "-24"},
         {"4", "6", "12.0"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", false, {"1.25", "3", "-0.1"}, {"1.255"}},
        {"{\"type\":\"integer\",\"minimum\":9007199254740993,\"maximum\":9007199254740995}",
         false,
         {"9007199254740993", "9007199254740995"},
         {"9007199254740992", "9007199254740996"}},
        {"{\"type\":\"number\"}", false, {"1e5", "-1.5E-3", "0.5", "-0"}, {"1.", ".5", "+1", "1e"}},
        {"{\"type\":\"integer\"}", false, {"0", "-12"}, {"1e2", "1.0", "--1"}},
    };

    (void)state;
    check(cases, ARRAY_LEN(cases));
}

/* Every pair of bounds near zero, compared as integers of hundredths. */
static void bounds_agree_with_comparison(void **state) {
    static const int bounds[] = {-1110, -100, -99, -5, 0, 5, 10, 99, 100, 105, 1000};
    char schema[128], text[32];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
        for (size_t k = i; k < ARRAY_LEN(bounds); k++) {
            struct grammar *g;

            snprintf(schema, sizeof(schema), "{\"type\":\"number\",\"minimum\":%g,\"maximum\":%g}",
                     bounds[i] / 100.0, bounds[k] / 100.0);
            g = fixture_grammar(GRAMMAR_JSON_SCHEMA, schema, false, vocabulary);
            for (int n = -1205; n <= 1205; n += n > -130 && n < 130 ? 1 : 5) {
                bool is_inside = n >= bounds[i] && n <= bounds[k];

                snprintf(text, sizeof(text), "%s%d.%02d", n < 0 ? "-" : "", abs(n) / 100,
                         abs(n) % 100);
                if (grammar_accepts(g, str_of(text)) != is_inside)
                    fail_msg("%s: %s is %sinside", schema, text, is_inside ? "" : "not ");
            }
            grammar_unref(g);
        }
}

static void strings_are_counted_in_characters(void **state) {
    static const struct answers cases[] = {
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         false,
         {"\"\xC3\xA9\xE2\x82\xAC\"", "\"\\n\\n\"", "\"\\u0000ab\""},
         {"\"a\"", "\"\xF0\x9F\x98\x80\xF0\x9F\x98\x80\xF0\x9F\x98\x80\xF0\x9F\x98\x80\"",
          "\"\\u00e9\\u00e9\""}},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", false, {"\"abc\"", "\"b\""}, {"\"a\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"^b$\"}", false, {"\"b\""}, {"\"abc\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\d+$\"}", false, {"\"12\""}, {"\"\xD9\xA3\""}},
        {"{\"type\":\"string\",\"pattern\":\"\\\"\"}",
         false,
         {"\"\\\"\"", "\"a\\\"b\""},
         {"\"\\u0022\"", "\"a\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a\",\"maxLength\":2,\"allOf\":[{\"pattern\":\"b$\"}]"
         "}",
         false,
         {"\"ab\""},
         {"\"acb\"", "\"a\"", "\"b\""}},
        {"{\"type\":\"string\"}",
         false,
         {"\"\"", "\"\\u0000\"", "\"\\u001f\"", "\"/\"", "\"\\\\\""},
         {"\"a\nb\"", "\"\\ud800\"", "\"\\/\"", "\"\\u0041\"", "\"\x7F\"", "\"\xFF\""}},
    };

    (void)state;
    check(cases, ARRAY_LEN(cases));
}

#define A_61 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A_63 "aa" A_61

static void formats_are_enforced(void **state) {
    static const struct answers cases[] = {
        {"{\"format\":\"date\",\"type\":\"string\"}",
         false,
         {"\"2024-02-29\"", "\"2000-02-29\"", "\"2023-12-31\""},
         {"\"2024-02-30\"", "\"2023-02-29\"", "\"1900-02-29\"", "\"2023-13-01\"", "\"2023-1-1\""}},
        {"{\"format\":\"date-time\",\"type\":\"string\"}",
         false,
         {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01t00:00:00.5+01:00\""},
         {"\"2024-02-29\"", "\"2024-02-29T24:00:00Z\"", "\"2024-02-29T00:00:00\""}},
        {"{\"format\":\"time\",\"type\":\"string\"}", false, {"\"12:00:00Z\""}, {"\"12:60:00Z\""}},
        {"{\"format\":\"duration\",\"type\":\"string\"}",
         false,
         {"\"P1Y2M\"", "\"PT5M\"", "\"P2W\"", "\"P1DT1H\""},
         {"\"P\"", "\"PT\"", "\"P1W2D\"", "\"1D\""}},
        {"{\"format\":\"ipv4\",\"type\":\"string\"}",
         false,
         {"\"127.0.0.1\"", "\"255.255.255.255\""},
         {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
        {"{\"format\":\"ipv6\",\"type\":\"string\"}",
         false,
         {"\"::1\"", "\"::\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:1.2.3.4\"", "\"1::8\""},
         {"\"1::2::3\"", "\"1:2:3\"", "\":1\"", "\"12345::\""}},
        {"{\"format\":\"uuid\",\"type\":\"string\"}",
         false,
         {"\"2EB8AA08-aa98-11ea-b4aa-73b441d16380\""},
         {"\"2eb8aa08aa9811eab4aa73b441d16380\""}},
        {"{\"format\":\"email\",\"type\":\"string\"}",
         false,
         {"\"joe.b@example.com\""},
         {"\"joe\"", "\".joe@example.com\"", "\"joe@\""}},
        {"{\"format\":\"hostname\",\"type\":\"string\"}",
         false,
         {"\"www.example.com\"", "\"a.b.c.d.e.f.g\"", "\"" A_63 ".b\"",
          "\"" A_63 "." A_63 "." A_63 "." A_61 "\""},
         {"\"-bad\"", "\"a..b\"", "\"" A_63 "a\"", "\"" A_63 "." A_63 "." A_63 "." A_61 "a\"",
          "\"" A_63 "." A_63 "." A_63 "." A_61 ".\""}},
        {"{\"format\":\"email\",\"type\":\"string\"}",
         false,
         {"\"a@b.c.d.e.f.g\""},
         {"\"a@b.\"", "\"a@" A_63 "." A_63 "." A_63 "." A_61 "a\""}},
        {"{\"format\":\"uri\",\"type\":\"string\"}",
         false,
         {"\"http://a.b/c?d=e#f\"", "\"urn:x:y\"", "\"mailto:a@b\""},
         {"\"//a/b\"", "\"abc\"", "\"http://a b\""}},
        {"{\"format\":\"iri\",\"type\":\"string\"}", false, {"\"anything at all\""}, {"1"}},
        {"{\"format\":\"date\"}", false, {"1", "null"}, {"\"x\""}},
    };

    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void listed_values_are_all_there_is(void **state) {
    static const struct answers cases[] = {
        {"{\"enum\":[\"a\",1,null,{\"k\":[1]}]}",
         false,
         {"\"a\"", "1", "null", "{\"k\":[1]}", "{ \"k\" : [ 1 ] }"},
         {"2", "\"b\"", "{\"k\":[2]}", "{}"}},
        {"{\"const\":1.0}", false, {"1"}, {"1.0"}},
        {"{\"const\":\"a\\\"b\"}", false, {"\"a\\\"b\""}, {"\"a\""}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1,\"abc\"],\"maxLength\":1}",
         false,
         {"\"a\""},
         {"1", "\"abc\""}},
        {"{\"enum\":[1,2,3],\"allOf\":[{\"enum\":[3,4,1]}],\"minimum\":2}",
         false,
         {"3"},
         {"1", "2", "4"}},
        {"{\"enum\":[true,false],\"allOf\":[{\"const\":false}]}", false, {"false"}, {"true"}},
    };

    (void)state;
    check(cases, ARRAY_LEN(cases));
}

static void combinations_are_intersected(void **state) {
    static const struct answers cases[] = {
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", false, {"\"\"", "null"}, {"1"}},
        {"{\"type\":[\"string\",\"null\"]}", false, {"\"\"", "null"}, {"1"}},
        {"{\"anyOf\":[{\"minLength\":2},{\"enum\":[\"a\"]}],\"type\":\"string\"}",
         false,
         {"\"a\"", "\"bc\""},
         {"\"b\"", "1"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
         false,
         {"1", "\"\""},
         {"null"}},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":["
         "\"k\"]},"
         "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"},\"n\":{\"type\":\"integer\"}"
         "},"
         "\"required\":[\"k\"]}]}",
         false,
         {"{\"k\":\"a\"}", "{\"k\":\"b\",\"n\":1}", "{\"k\":\"a\",\"n\":\"\"}"},
         {"{\"k\":\"b\",\"n\":\"\"}", "{\"k\":\"c\"}"}},
        {"{\"oneOf\":[{\"maximum\":3,\"type\":\"integer\"},{\"minimum\":4,\"type\":\"integer\"}]}",
         false,
         {"3", "4"},
         {"3.5"}},
        {"{\"allOf\":[" A_INTEGER
         ",{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\"},"
         "\"a\":{\"minimum\":2}},\"required\":[\"b\"]}]}",
         false,
         {"{\"a\":2,\"b\":\"\"}"},
         {"{\"b\":\"\",\"a\":2}", "{\"a\":1,\"b\":\"\"}", "{\"a\":2}"}},
        {"{\"allOf\":[{\"type\":\"string\"},{\"enum\":[\"a\",1]}]}", false, {"\"a\""}, {"1"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
         "\"b\":{}}}],\"type\":\"object\"}",
         false,
         {"{\"a\":1}", "{}"},
         {"{\"b\":1}", "{\"a\":1,\"b\":1}"}},
        {"{\"$ref\":\"#/$defs/s\",\"minLength\":2,\"$defs\":{\"s\":{\"type\":\"string\","
         "\"maxLength\":3}}}",
         false,
         {"\"ab\""},
         {"\"a\"", "\"abcd\""}},
        {"{\"$ref\":\"#/$defs/a~1b%25\",\"$defs\":{\"a/b%\":{\"type\":\"null\"}}}",
         false,
         {"null"},
         {"1"}},
        {"{\"$ref\":\"#here\",\"$defs\":{\"x\":{\"$anchor\":\"here\",\"type\":\"null\"}}}",
         false,
         {"null"},
         {"1"}},
        {"{\"$ref\":\"#a\",\"$defs\":{\"const\":{\"enum\":[{\"$anchor\":\"a\"}],\"x\":[{\"$"
         "anchor\":"
         "\"a\",\"const\":1}]}}}",
         false,
         {"1"},
         {"{\"$anchor\":\"a\"}"}},
        {"{\"items\":{\"type\":\"null\"},\"type\":\"array\",\"minItems\":1,\"maxItems\":2}",
         false,
         {"[null]", "[ null , null ]"},
         {"[]", "[null,null,null]", "[1]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],"
         "\"items\":false}",
         false,
         {"[1,\"a\"]", "[1]", "[]"},
         {"[1,\"a\",2]", "[\"a\"]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{}],\"items\":false,"
         "\"minItems\":2}",
         false,
         {"[1,2]"},
         {"[1]", "[]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":"
         "\"null\"}}",
         false,
         {"[1,null,null]", "[]"},
         {"[null]", "[1,1]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", false, {"[]", "[ ]"}, {"[1]"}},
        {"true", false, {"1", "{\"a\":[]}", "null"}, {""}},
        {"{}", false, {"1", "[[[]]]"}, {"x"}},
    };

    (void)state;
    check(cases, ARRAY_LEN(cases));
}

#define TREE                                                                                       \
    "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"c\":{\"type\":\"array\"," \
    "\"items\":{\"$ref\":\"#\"}}},\"additionalProperties\":false}"

static void recursion_has_any_depth(void **state) {
    struct grammar *g = fixture_grammar(GRAMMAR_JSON_SCHEMA, TREE, false, vocabulary);
    struct grammar *object =
        fixture_grammar(GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", false, vocabulary);
    struct buf text;

    (void)state;
    buf_init(&text, 0);
    for (uint32_t i = 0; i < 50; i++)
        buf_appendf(&text, "{\"v\":%u,\"c\":[", i);
    for (uint32_t i = 0; i < 50; i++)
        buf_appendf(&text, "]}");
    assert_true(grammar_accepts(g, buf_str(&text)));
    assert_false(grammar_accepts(g, STR("{\"c\":[1]}")));
    buf_clear(&text);
    buf_appendf(&text, "{\"a\":");
    for (uint32_t i = 0; i < 200; i++)
        buf_append_char(&text, '[');
    for (uint32_t i = 0; i < 200; i++)
        buf_append_char(&text, ']');
    buf_append_char(&text, '}');
    assert_true(grammar_accepts(object, buf_str(&text)));
    assert_false(grammar_accepts(object, STR("[]")));
    buf_fini(&text);
    grammar_unref(g);
    grammar_unref(object);
}

static void what_cannot_be_enforced_is_refused(void **state) {
    static const struct {
        const char *schema, *message;
    } cases[] = {
        {"{\"minimum\":5,\"maximum\":4}", "#: minimum > maximum"},
        {"{\"properties\":{\"a\":{\"not\":{}}}}",
         "#/properties/a: the keyword \"not\" is not supported"},
        {"{\"items\":{\"if\":{}}}", "#/items: the keyword \"if\" is not supported"},
        {"{\"uniqueItems\":true}", "#: the keyword \"uniqueItems\" is not supported"},
        {"{\"contains\":{}}", "#: the keyword \"contains\" is not supported"},
        {"{\"anyOf\":[{\"dependentRequired\":{}}]}",
         "#/anyOf/0: the keyword \"dependentRequired\" is not supported"},
        {"{\"$ref\":\"#\"}", "#: the references lead back here"},
        {"{\"$ref\":\"http://a/b\"}", "#: $ref \"http://a/b\" is not local"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#/$defs/x\"}}}",
         "#/properties/a: $ref \"#/$defs/x\" does not exist"},
        {"{\"$ref\":\"#a\",\"enum\":[{\"$anchor\":\"a\"}]}", "#: $ref \"#a\" does not exist"},
        {"{\"$ref\":\"#/$defs/"
         "a\",\"$defs\":{\"t\":{},\"a\":{\"$id\":\"a\",\"$defs\":{\"t\":{}},\"$ref\":"
         "\"#/$defs/t\"}}}",
         "#: $ref is not supported in a schema with an $id inside"},
        {"{\"enum\":[]}", "#/enum: enum must be an array of values, one at least"},
        {"{\"type\":\"strin\"}", "#/type: unknown type \"strin\""},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
         "#/oneOf: alternatives 0 and 1 of oneOf may both hold"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)b\"}",
         "#/pattern: the pattern \"(?=a)b\" has look-ahead"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "has a back-reference"},
        {"{\"type\":\"integer\",\"multipleOf\":0.3}", "#/multipleOf: multipleOf is supported"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}",
         "no text satisfies it"},
        {"{\"type\":\"string\",\"pattern\":\"^a\",\"allOf\":[{\"pattern\":\"^b\"}]}",
         "no text satisfies it"},
        {"{\"patternProperties\":{\"a\":{},\"b\":{}}}", "may match names of another pattern"},
        {"{\"propertyNames\":{\"$ref\":\"#\"}}", "nested in their own schemas"},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#\"}},\"required\":["
         "\"k\"]},"
         "{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#\"}},\"required\":[\"k\"]}]}",
         "may both hold"},
        {"[]", "#: a schema is an object or a boolean, not an array"},
        {"{\"a\"", "the schema (at most 64 levels): "},
        {"false", "no text satisfies it"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *message = fixture_refusal(GRAMMAR_JSON_SCHEMA, cases[i].schema, vocabulary);

        if (!strstr(message, cases[i].message)) fail_msg("%s: %s", cases[i].schema, message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_have_their_properties_in_order),
        cmocka_unit_test(numbers_keep_to_their_bounds),
        cmocka_unit_test(bounds_agree_with_comparison),
        cmocka_unit_test(strings_are_counted_in_characters),
        cmocka_unit_test(formats_are_enforced),
        cmocka_unit_test(listed_values_are_all_there_is),
        cmocka_unit_test(combinations_are_intersected),
        cmocka_unit_test(recursion_has_any_depth),
        cmocka_unit_test(what_cannot_be_enforced_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
