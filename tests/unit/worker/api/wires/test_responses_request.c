/* tests/unit/worker/api/wires/test_responses_request.c - what a body of Responses is for chat. */
#include <string.h>

#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/fuzz/fuzz_responses_request.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/wires/conversation.h"
#include "worker/api/wires/sealed_text.h"

static enum status convert(const char *body, const char *earlier, bool late, struct buf *out,
                           struct error *err) {
    struct json *root = NULL, *items = NULL;
    struct responses_asked asked = {.takes_late_system = late};
    enum status st;

    assert_int_equal(json_parse(&root, str_of(body), NULL, err), ST_OK);
    if (earlier) assert_int_equal(json_parse(&items, str_of(earlier), NULL, err), ST_OK);
    asked.earlier = items;
    st = responses_to_chat(root, &asked, out, err);
    json_destroy(root);
    json_destroy(items);
    return st;
}

static void assert_chat_after(const char *body, const char *earlier, bool late, const char *want) {
    struct error err = {0};
    struct buf out;

    buf_init(&out, 0);
    if (convert(body, earlier, late, &out, &err) != ST_OK) fail_msg("%s: %s", body, err.message);
    if (!str_eq(buf_str(&out), str_of(want)))
        fail_msg("%s\n becomes " STR_FMT "\n not     %s", body, STR_ARG(buf_str(&out)), want);
    buf_fini(&out);
}

static void assert_chat(const char *body, bool late, const char *want) {
    assert_chat_after(body, NULL, late, want);
}

static void assert_refused(const char *body, const char *param, const char *text) {
    struct error err = {0};
    struct buf out;

    buf_init(&out, 0);
    assert_int_equal(convert(body, NULL, true, &out, &err), ST_INVALID);
    assert_string_equal(err.param, param);
    if (!strstr(err.message, text)) fail_msg("%s: %s", body, err.message);
    buf_fini(&out);
}

static void string_is_a_message_of_the_user(void **state) {
    (void)state;
    assert_chat("{\"input\":\"hi\"}", true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_chat("{\"input\":[{\"role\":\"user\",\"content\":[{"
                "\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_text\","
                "\"text\":\"b\"}]}]}",
                true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\nb\"}]}");
}

static void instructions_and_developers_are_one_message_of_the_system(void **state) {
    (void)state;
    assert_chat("{\"instructions\":\"be brief\",\"input\":[{\"type\":\"message\","
                "\"role\":\"developer\",\"content\":[{\"type\":\"input_text\","
                "\"text\":\"no net\"}]},{\"type\":\"message\",\"role\":\"user\","
                "\"content\":\"hi\"},{\"role\":\"developer\",\"content\":\"now\"}]}",
                true,
                "{\"messages\":[{\"role\":\"system\","
                "\"content\":\"be brief\\nno net\"},{\"role\":\"user\","
                "\"content\":\"hi\"},{\"role\":\"system\",\"content\":\"now\"}]}");
    assert_chat("{\"instructions\":\"be brief\",\"input\":[{\"role\":\"user\","
                "\"content\":\"hi\"},{\"role\":\"developer\",\"content\":\"now\"}]}",
                false,
                "{\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},{"
                "\"role\":\"user\",\"content\":\"hi\\nnow\"}]}");
}

static void neighbouring_calls_are_one_message_with_reasoning(void **state) {
    (void)state;
    assert_chat("{\"input\":[{\"role\":\"user\",\"content\":\"go\"},{"
                "\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{"
                "\"type\":\"reasoning_text\",\"text\":\"hm\"}],"
                "\"encrypted_content\":null},{\"type\":\"message\","
                "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
                "\"text\":\"On it.\",\"annotations\":[]}]},{"
                "\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\","
                "\"arguments\":\"{\\\"x\\\":1}\"},{\"type\":\"web_search_call\","
                "\"id\":\"ws\",\"status\":\"completed\"},{"
                "\"type\":\"custom_tool_call\",\"call_id\":\"b\","
                "\"name\":\"apply_patch\",\"input\":\"*** \\\"x\\\"\"},{"
                "\"type\":\"function_call\",\"call_id\":\"c\",\"namespace\":\"mcp\","
                "\"name\":\"g\",\"arguments\":\"{}\"},{"
                "\"type\":\"function_call_output\",\"call_id\":\"a\","
                "\"output\":\"1\"},{\"type\":\"custom_tool_call_output\","
                "\"call_id\":\"b\",\"output\":[{\"type\":\"input_text\","
                "\"text\":\"ok\"}]},{\"role\":\"user\",\"content\":\"so?\"}]}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"go\"},{"
                "\"role\":\"assistant\",\"content\":\"On it.\",\"reasoning\":\"hm\","
                "\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{"
                "\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}},{\"id\":\"b\","
                "\"type\":\"function\",\"function\":{\"name\":\"apply_patch\","
                "\"arguments\":\"{\\\"input\\\":\\\"*** \\\\\\\"x\\\\\\\"\\\"}\"}},{\"id\":\"c\","
                "\"type\":\"function\",\"function\":{\"name\":\"mcp__g\","
                "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\","
                "\"content\":\"1\"},{\"role\":\"tool\",\"tool_call_id\":\"b\","
                "\"content\":\"ok\"},{\"role\":\"user\",\"content\":\"so?\"}]}");
}

static void encrypted_reasoning_is_read_where_it_is_ours(void **state) {
    (void)state;
    assert_chat("{\"input\":[{\"role\":\"user\",\"content\":\"go\"},{"
                "\"type\":\"reasoning\",\"summary\":[],"
                "\"encrypted_content\":\"incipit1.aG0\"},{\"role\":\"assistant\","
                "\"content\":\"a\"},{\"type\":\"reasoning\",\"summary\":[{"
                "\"type\":\"summary_text\",\"text\":\"s\"}],"
                "\"encrypted_content\":\"gAAAAABo\"},{\"role\":\"assistant\","
                "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"x\"}]}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"go\"},{"
                "\"role\":\"assistant\",\"content\":\"a\\nb\",\"reasoning\":\"hm\"},{"
                "\"role\":\"user\",\"content\":\"x\"}]}");
}

static void tools_are_those_of_chat(void **state) {
    (void)state;
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
                "\"description\":\"d\",\"strict\":false,\"parameters\":{"
                "\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}},"
                "{\"type\":\"custom\",\"name\":\"apply_patch\","
                "\"description\":\"Edits.\",\"format\":{\"type\":\"grammar\","
                "\"syntax\":\"lark\",\"definition\":\"start: \\\"a\\\"\"}},{"
                "\"type\":\"custom\",\"name\":\"code\",\"format\":{"
                "\"type\":\"grammar\",\"syntax\":\"regex\",\"definition\":\"a|b\"}},{"
                "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                "\"type\":\"function\",\"name\":\"g\",\"parameters\":{"
                "\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}},"
                "\"strict\":true}]},{\"type\":\"web_search\"},{"
                "\"type\":\"image_generation\"}],\"tool_choice\":\"auto\","
                "\"parallel_tool_calls\":false}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\","
                "\"description\":\"d\",\"parameters\":{\"type\":\"object\","
                "\"properties\":{\"x\":{\"type\":\"integer\"}}}}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"apply_patch\","
                "\"description\":\"Edits.\",\"format\":{\"type\":\"grammar\","
                "\"syntax\":\"lark\",\"definition\":\"start: \\\"a\\\"\"}}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"code\",\"format\":{"
                "\"type\":\"grammar\",\"syntax\":\"regex\",\"definition\":\"a|b\"}}},{"
                "\"type\":\"function\",\"function\":{\"name\":\"mcp__g\","
                "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{"
                "\"type\":\"integer\"}}},\"strict\":true}}],"
                "\"parallel_tool_calls\":false,\"tool_choice\":\"auto\"}");
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"web_search\"}],"
                "\"tool_choice\":\"auto\",\"parallel_tool_calls\":false}",
                true, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_chat("{\"input\":[{\"role\":\"user\",\"content\":\"hi\"},{"
                "\"type\":\"additional_tools\",\"role\":\"developer\",\"tools\":[{"
                "\"type\":\"function\",\"name\":\"h\"}]}],\"tools\":[]}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"h\"}}]}");
}

static void choices_name_functions(void **state) {
    (void)state;
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
                "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                "\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":\"required\"}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"mcp__g\"}}],"
                "\"tool_choice\":\"required\"}");
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
                "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                "\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":{"
                "\"type\":\"function\",\"name\":\"f\"}}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"mcp__g\"}}],\"tool_choice\":{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}}}");
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
                "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                "\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":{"
                "\"type\":\"custom\",\"name\":\"g\",\"namespace\":\"mcp\"}}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"mcp__g\"}}],\"tool_choice\":{"
                "\"type\":\"function\",\"function\":{\"name\":\"mcp__g\"}}}");
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
                "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                "\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":{"
                "\"type\":\"custom\",\"name\":\"mcp__g\"}}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"mcp__g\"}}],\"tool_choice\":{"
                "\"type\":\"function\",\"function\":{\"name\":\"mcp__g\"}}}");
    assert_chat("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
                "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                "\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":{"
                "\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{"
                "\"type\":\"function\",\"name\":\"f\"},{\"type\":\"web_search\"}]}}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\"}},{"
                "\"type\":\"custom\",\"custom\":{\"name\":\"mcp__g\"}}],\"tool_choice\":{"
                "\"type\":\"allowed_tools\",\"allowed_tools\":{"
                "\"mode\":\"required\",\"tools\":[{\"type\":\"function\","
                "\"function\":{\"name\":\"f\"}}]}}}");
}

static void other_fields_have_chats_names(void **state) {
    (void)state;
    assert_chat("{\"input\":\"hi\",\"max_output_tokens\":7,\"reasoning\":{"
                "\"effort\":\"low\",\"summary\":\"auto\"},\"text\":{\"format\":{"
                "\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{"
                "\"type\":\"null\"},\"strict\":true},\"verbosity\":\"low\"},"
                "\"truncation\":\"auto\",\"store\":false,\"include\":["
                "\"reasoning.encrypted_content\"],\"prompt_cache_key\":\"k\","
                "\"client_metadata\":{\"a\":\"b\"},\"temperature\":0.5,"
                "\"stream\":true,\"cache_salt\":\"s\",\"service_tier\":\"auto\","
                "\"user\":\"u\"}",
                true,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                "\"max_tokens\":7,\"reasoning_effort\":\"low\","
                "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
                "\"name\":\"n\",\"schema\":{\"type\":\"null\"},\"strict\":true}},"
                "\"temperature\":0.5,\"stream\":true,\"cache_salt\":\"s\"}");
}

static void what_would_be_lost_is_refused(void **state) {
    (void)state;
    assert_refused("{\"model\":\"m\"}", "input", "required");
    assert_refused("{\"input\":{\"a\":{\"role\":\"user\",\"content\":\"b\"}}}", "input",
                   "an array");
    assert_refused("{\"input\":\"hi\",\"instructions\":[\"x\"]}", "instructions", "a string");
    assert_refused("{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\","
                   "\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}]}",
                   "input[1]", "images");
    assert_refused("{\"input\":[{\"type\":\"item_reference\",\"id\":\"rs_1\"}]}", "input[0]",
                   "item_reference");
    assert_refused("{\"input\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "input[0]", "role");
    assert_refused("{\"input\":\"hi\",\"background\":true}", "background", "not supported");
    assert_refused("{\"input\":\"hi\",\"conversation\":\"conv_1\"}", "conversation", "whole input");
    assert_refused("{\"input\":\"hi\",\"top_logprobs\":3}", "top_logprobs", "not supported");
    assert_refused("{\"input\":\"hi\",\"truncation\":\"middle\"}", "truncation", "auto");
    assert_refused("{\"input\":\"hi\",\"truncation\":5}", "truncation", "auto");
    assert_refused("{\"input\":\"hi\",\"tools\":[{\"type\":\"web_search\"}],"
                   "\"tool_choice\":{\"type\":\"web_search\"}}",
                   "tool_choice", "web_search");
    assert_refused("{\"input\":\"hi\",\"tools\":[{\"type\":\"web_search\"}],"
                   "\"tool_choice\":\"required\"}",
                   "tool_choice", "hosted");
    assert_refused("{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
                   "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
                   "\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":{"
                   "\"type\":\"function\",\"name\":\"g\"}}",
                   "tool_choice", "g");
}

static void conversation_of_too_many_messages_is_refused(void **state) {
    (void)state;
    for (unsigned n = CONVERSATION_MAX; n <= CONVERSATION_MAX + 1; n++) {
        struct error err = {0};
        struct buf body, out;
        enum status st;

        buf_init(&body, 0);
        buf_init(&out, 0);
        buf_appendf(&body, "{\"truncation\":\"auto\",\"input\":[");
        for (unsigned i = 0; i < n; i++)
            buf_appendf(&body, "%s{\"role\":\"%s\",\"content\":\"a\"}", i ? "," : "",
                        i % 2 ? "assistant" : "user");
        buf_append(&body, "]}", 3);
        st = convert(buf_str(&body).ptr, NULL, true, &out, &err);
        assert_int_equal(st, n > CONVERSATION_MAX ? ST_INVALID : ST_OK);
        assert_string_equal(err.param, n > CONVERSATION_MAX ? "input" : "");
        buf_fini(&body);
        buf_fini(&out);
    }
}

/* Instructions are of one call; earlier items stand behind them. */
static void earlier_items_equal_items_of_the_input(void **state) {
    static const char want[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"new\"},{"
                               "\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                               "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}";

    (void)state;
    assert_chat("{\"instructions\":\"new\",\"input\":[{\"role\":\"user\","
                "\"content\":\"a\"},{\"type\":\"message\",\"role\":\"assistant\","
                "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}",
                true, want);
    assert_chat_after("{\"instructions\":\"new\",\"input\":\"c\"}",
                      "[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"message\","
                      "\"role\":\"assistant\",\"content\":\"b\"}]",
                      true, want);
}

static void assert_tool(const struct json *body, const char *function, const char *space,
                        const char *name, bool is_custom) {
    struct responses_tool t = responses_tool_of(body, str_of(function));

    assert_true(str_eq(t.space, str_of(space)));
    assert_true(str_eq(t.name, str_of(name)));
    assert_int_equal(t.is_custom, is_custom);
}

static void functions_are_tools_again(void **state) {
    static const char text[] =
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
        "\"type\":\"namespace\",\"name\":\"mcp\",\"tools\":[{"
        "\"type\":\"custom\",\"name\":\"g\"}]}]}";
    struct json *body = NULL;

    (void)state;
    assert_int_equal(json_parse(&body, str_of(text), NULL, NULL), ST_OK);
    assert_tool(body, "f", NULL, "f", false);
    assert_tool(body, "mcp__g", "mcp", "g", true);
    assert_tool(body, "g", NULL, "g", false);
    assert_tool(body, "unknown", NULL, "unknown", false);
    json_destroy(body);
}

static void sealed_text_is_opened_as_it_was(void **state) {
    struct buf sealed, text;

    (void)state;
    buf_init(&sealed, 0);
    buf_init(&text, 0);
    for (size_t n = 0; n < 12; n++) {
        struct str part = {"h\xc3\xa9\xe2\x82\xac\n\"z\xf0\x9f\x98\x80", n};

        buf_clear(&sealed);
        buf_clear(&text);
        sealed_text_put(&sealed, part);
        if (str_is_utf8(part)) {
            assert_true(sealed_text_open(buf_str(&sealed), &text));
            assert_true(str_eq(buf_str(&text), part));
        } else {
            assert_false(sealed_text_open(buf_str(&sealed), &text));
            assert_int_equal(buf_len(&text), 0);
        }
    }
    assert_false(sealed_text_open(STR("incipit1.a*"), &text));
    assert_false(sealed_text_open(STR("gAAAA"), &text));
    assert_false(sealed_text_open(STR("incipit1.AG0"), &text)); /* NUL */
    assert_false(sealed_text_open(STR_NULL, &text));
    buf_fini(&sealed);
    buf_fini(&text);
}

static void mutated_bodies_never_break_it(void **state) {
    static const char seed[] =
        "{\"instructions\":\"i\",\"input\":[{\"role\":\"developer\","
        "\"content\":[{\"type\":\"input_text\",\"text\":\"d\"}]},{"
        "\"role\":\"user\",\"content\":\"go\"},{\"type\":\"reasoning\","
        "\"encrypted_content\":\"incipit1.aG0\",\"summary\":[]},{"
        "\"type\":\"function_call\",\"call_id\":\"a\",\"namespace\":\"n\","
        "\"name\":\"g\",\"arguments\":\"{}\"},{\"type\":\"custom_tool_call\","
        "\"call_id\":\"b\",\"name\":\"c\",\"input\":\"x\"},{"
        "\"type\":\"function_call_output\",\"call_id\":\"a\","
        "\"output\":\"1\"},{\"type\":\"additional_tools\",\"tools\":[{"
        "\"type\":\"custom\",\"name\":\"c\"}]}],\"tools\":[{"
        "\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{"
        "\"type\":\"function\",\"name\":\"g\",\"parameters\":{}}]},{"
        "\"type\":\"web_search\"}],\"tool_choice\":{"
        "\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{"
        "\"type\":\"function\",\"name\":\"g\",\"namespace\":\"n\"}]},\"text\":{"
        "\"format\":{\"type\":\"json_object\"}},\"earlier\":[{"
        "\"role\":\"user\",\"content\":\"a\"}]}";
    static const char digits[] = "0123456789-.e\"[]{},:truefalsn";
    char text[sizeof(seed)];
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 20000; i++) {
        memcpy(text, seed, sizeof(seed));
        for (uint64_t k = 1 + rng_below(&rng, 3); k > 0; k--)
            text[rng_below(&rng, sizeof(seed) - 1)] = digits[rng_below(&rng, sizeof(digits) - 1)];
        LLVMFuzzerTestOneInput((const uint8_t *)text, sizeof(seed) - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(string_is_a_message_of_the_user),
        cmocka_unit_test(instructions_and_developers_are_one_message_of_the_system),
        cmocka_unit_test(neighbouring_calls_are_one_message_with_reasoning),
        cmocka_unit_test(encrypted_reasoning_is_read_where_it_is_ours),
        cmocka_unit_test(tools_are_those_of_chat),
        cmocka_unit_test(choices_name_functions),
        cmocka_unit_test(other_fields_have_chats_names),
        cmocka_unit_test(what_would_be_lost_is_refused),
        cmocka_unit_test(conversation_of_too_many_messages_is_refused),
        cmocka_unit_test(earlier_items_equal_items_of_the_input),
        cmocka_unit_test(functions_are_tools_again),
        cmocka_unit_test(sealed_text_is_opened_as_it_was),
        cmocka_unit_test(mutated_bodies_never_break_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
