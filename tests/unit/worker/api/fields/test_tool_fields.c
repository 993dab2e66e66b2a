/* tests/unit/worker/api/fields/test_tool_fields.c - what the model may call, and whether it
 * must. */
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "worker/api/fields/custom_tools.h"
#include "worker/api/fields/tool_fields.h"

#define F "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
#define G                                                                                          \
    "{\"type\":\"function\",\"function\":{\"name\":\"g.h-1\",\"parameters\":{},\"strict\":true}}"
#define LARK                                                                                       \
    "{\"type\":\"custom\",\"custom\":{\"name\":\"l\",\"description\":\"Edits.\",\"format\":{"      \
    "\"type\":"                                                                                    \
    "\"grammar\",\"grammar\":{\"syntax\":\"lark\",\"definition\":\"start: \\\"a\\\"\"}}}}"
#define REGEX                                                                                      \
    "{\"type\":\"custom\",\"custom\":{\"name\":\"r\",\"format\":{\"type\":\"grammar\",\"syntax\":" \
    "\"regex\",\"definition\":\"[ab]\"}}}"
#define PLAIN "{\"type\":\"custom\",\"custom\":{\"name\":\"p\",\"format\":{\"type\":\"text\"}}}"
#define CUSTOM(format)                                                                             \
    "{\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"c\",\"format\":" format "}}]}"
#define TOOLS "\"tools\":[" F "," G "]"

struct parsed {
    struct json *body;
    struct tool_fields f;
    enum status status;
    struct error err;
};

static struct parsed parse(const char *body) {
    struct parsed p = {0};

    assert_int_equal(json_parse(&p.body, str_of(body), NULL, NULL), ST_OK);
    p.status = tool_fields_parse(&p.f, p.body, &p.err);
    return p;
}

static void finish(struct parsed *p) {
    tool_fields_fini(&p->f);
    json_destroy(p->body);
}

/* The names of what may be called, joined by commas. */
static void names(const struct json *tools, char *out, size_t size) {
    size_t n = 0;

    out[0] = '\0';
    JSON_FOR_EACH(it, tools) {
        struct str name = STR_NULL;

        assert_int_equal(json_to_str(json_get(json_get(it, "function"), "name"), &name), ST_OK);
        n += (size_t)snprintf(out + n, size - n, "%s" STR_FMT, n ? "," : "", STR_ARG(name));
    }
}

static void each_choice_is_read(void **state) {
    static const struct {
        const char *body;
        enum tool_choice choice;
        const char *callable;
        bool is_single;
    } cases[] = {
        {"{}", TOOLS_NONE, "", false},
        {"{\"tools\":[]}", TOOLS_NONE, "", false},
        {"{\"tool_choice\":\"none\"}", TOOLS_NONE, "", false},
        {"{" TOOLS "}", TOOLS_AUTO, "f,g.h-1", false},
        {"{" TOOLS ",\"tool_choice\":\"auto\"}", TOOLS_AUTO, "f,g.h-1", false},
        {"{" TOOLS ",\"tool_choice\":\"none\"}", TOOLS_NONE, "f,g.h-1", false},
        {"{" TOOLS ",\"tool_choice\":\"required\"}", TOOLS_REQUIRED, "f,g.h-1", false},
        {"{" TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false}", TOOLS_REQUIRED,
         "f,g.h-1", true},
        {"{" TOOLS ",\"tool_choice\":" F "}", TOOLS_NAMED, "f", true},
        {"{" TOOLS
         ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
         "\"tools\":[" G "]}}}",
         TOOLS_AUTO, "g.h-1", false},
        {"{" TOOLS
         ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\","
         "\"tools\":[" G "," F "]}}}",
         TOOLS_REQUIRED, "g.h-1,f", false},
        {"{\"tools\":[" F "," LARK "]}", TOOLS_AUTO, "f,l", false},
        {"{\"tools\":[" F "," LARK "],\"tool_choice\":" LARK "}", TOOLS_NAMED, "l", true},
        {"{\"tools\":[" F "," LARK "," PLAIN
         "],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"tools\":[" PLAIN "," F
         "]}}}",
         TOOLS_AUTO, "p,f", false},
    };
    char text[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p = parse(cases[i].body);

        if (p.status != ST_OK) fail_msg("%s: %s", cases[i].body, p.err.message);
        assert_int_equal(p.f.choice, cases[i].choice);
        assert_int_equal(p.f.is_single, cases[i].is_single);
        names(p.f.callable, text, sizeof(text));
        assert_string_equal(text, cases[i].callable);
        finish(&p);
    }
}

static void what_is_wrong_is_named(void **state) {
    static const struct {
        const char *body, *param, *part;
    } cases[] = {
        {"{\"tool_choice\":\"auto\"}", "tool_choice",
         "When using `tool_choice`, `tools` must be set."},
        {"{\"tool_choice\":" F "}", "tool_choice", "`tools` must be set"},
        {"{" TOOLS ",\"tool_choice\":\"any\"}", "tool_choice", "any"},
        {"{" TOOLS ",\"tool_choice\":7}", "tool_choice", "supported are"},
        {"{" TOOLS ",\"tool_choice\":{\"type\":\"custom\"}}", "tool_choice", "does not match"},
        {"{" TOOLS ",\"tool_choice\":{\"type\":\"mcp\"}}", "tool_choice", "mcp"},
        {CUSTOM("7"), "tools", "custom tool \"c\""},
        {CUSTOM("{}"), "tools", "custom tool \"c\""},
        {CUSTOM("{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"\"}"), "tools",
         "not empty"},
        {CUSTOM("{\"type\":\"grammar\",\"syntax\":\"ebnf\",\"definition\":\"a\"}"), "tools",
         "\"lark\""},
        {"{" TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"nothing\"}}}",
         "tool_choice",
         "The tool specified in `tool_choice` does not match any of the specified `tools`"},
        {"{" TOOLS
         ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"tools\":[]}}}",
         "tool_choice", "allowed_tools"},
        {"{\"tools\":[7]}", "tools", "tools[0]"},
        {"{\"tools\":[" F ",{\"type\":\"custom\",\"function\":{\"name\":\"f\"}}]}", "tools",
         "tools[1]"},
        {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}", "tools",
         "letters"},
        {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}", "tools", "letters"},
        {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]}",
         "tools", "JSON Schema"},
        {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":1}}]}",
         "tools", "strict"},
        {"{" TOOLS ",\"parallel_tool_calls\":1}", "parallel_tool_calls", "parallel_tool_calls"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p = parse(cases[i].body);

        assert_int_equal(p.status, ST_INVALID);
        assert_string_equal(p.err.param, cases[i].param);
        if (!strstr(p.err.message, cases[i].part)) fail_msg("%s: %s", cases[i].body, p.err.message);
        finish(&p);
    }
}

static void tools_have_a_limit(void **state) {
    for (uint32_t n = TOOLS_MAX; n <= TOOLS_MAX + 1; n++) {
        struct parsed p;
        struct buf body;

        (void)state;
        buf_init(&body, 0);
        buf_append_str(&body, STR("{\"tools\":["));
        for (uint32_t i = 0; i < n; i++)
            buf_append_str(&body, i ? STR("," F) : STR(F));
        buf_append(&body, "]}", 3);
        p = parse(buf_str(&body).ptr);
        assert_int_equal(p.status, n > TOOLS_MAX ? ST_INVALID : ST_OK);
        finish(&p);
        buf_fini(&body);
    }
}

static void assert_tree(const struct json *v, const char *expected) {
    struct json_writer w;
    struct buf text;

    buf_init(&text, 0);
    json_writer_init(&w, &text);
    json_put_tree(&w, v);
    assert_int_equal(buf_len(&text), strlen(expected));
    assert_memory_equal(buf_ptr(&text), expected, strlen(expected));
    buf_fini(&text);
}

#define INPUT                                                                                      \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},"        \
    "\"required\":"                                                                                \
    "[\"input\"],\"additionalProperties\":false}"
#define LARK_FUNCTION                                                                              \
    "\"function\":{\"name\":\"l\",\"description\":\"Edits.\\nThe input must match this Lark "      \
    "grammar:\\nstart: \\\"a\\\"\"," INPUT "}"
#define REGEX_FUNCTION                                                                             \
    "\"function\":{\"name\":\"r\",\"description\":\"The input must match this regular "            \
    "expression:\\n[ab]\"," INPUT "}"
#define PLAIN_FUNCTION "\"function\":{\"name\":\"p\"," INPUT "}"

static void custom_tools_are_functions_with_one_string(void **state) {
    struct parsed p = parse("{\"tools\":[" F "," LARK "," REGEX "," PLAIN "]}");
    struct json *shown = NULL;

    (void)state;
    assert_int_equal(p.status, ST_OK);
    assert_tree(p.f.tools, "[" F ",{\"type\":\"function\"," LARK_FUNCTION
                           ",\"format\":{\"syntax\":\"lark\",\"definition\":\"start: \\\"a\\\"\"}},"
                           "{\"type\":\"function\"," REGEX_FUNCTION
                           ",\"format\":{\"syntax\":\"regex\",\"definition\":\"[ab]\"}},"
                           "{\"type\":\"function\"," PLAIN_FUNCTION "}]");
    assert_int_equal(custom_tools_read(&shown, p.f.given, false, NULL), ST_OK);
    assert_tree(shown, "[" F ",{\"type\":\"function\"," LARK_FUNCTION
                       "},{\"type\":\"function\"," REGEX_FUNCTION
                       "},{\"type\":\"function\"," PLAIN_FUNCTION "}]");
    assert_true(tool_fields_is_custom(&p.f, STR("p")));
    assert_false(tool_fields_is_custom(&p.f, STR("f")));
    json_destroy(shown);
    finish(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_choice_is_read),
        cmocka_unit_test(custom_tools_are_functions_with_one_string),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(tools_have_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
