/* tests/unit/worker/api/wires/test_messages_request.c - what a body of Messages is for chat. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/fuzz/fuzz_messages_request.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static enum status convert(const char *body, bool late, bool is_count, struct buf *out,
                           struct error *err) {
    struct messages_asked asked = {
        .is_count = is_count, .takes_late_system = late, .limits_thinking = late};
    struct json *root = NULL;
    enum status st;

    assert_int_equal(json_parse(&root, str_of(body), NULL, err), ST_OK);
    st = messages_to_chat(root, &asked, out, err);
    json_destroy(root);
    return st;
}

static void assert_chat(const char *body, bool late, const char *want) {
    struct error err = {0};
    struct buf out;

    buf_init(&out, 0);
    if (convert(body, late, false, &out, &err) != ST_OK) fail_msg("%s: %s", body, err.message);
    if (!str_eq(buf_str(&out), str_of(want)))
        fail_msg("%s\n becomes " STR_FMT "\n not     %s", body, STR_ARG(buf_str(&out)), want);
    buf_fini(&out);
}

#define ASK(messages, more) "{\"messages\":" messages ",\"max_tokens\":9" more "}"
#define HI                  "[{\"role\":\"user\",\"content\":\"hi\"}]"

/* `more`: fields of the body beside HI; `want`: what they add to the chat body. */
static void assert_fields(const char *more, const char *want) {
    char body[1024], chat[1024];

    snprintf(body, sizeof(body), "{\"messages\":" HI "%s}", more);
    snprintf(chat, sizeof(chat), "{\"messages\":" HI "%s}", want);
    assert_chat(body, true, chat);
}

static void assert_refused(const char *body, const char *param, const char *text) {
    struct error err = {0};
    struct buf out;

    buf_init(&out, 0);
    assert_int_equal(convert(body, true, false, &out, &err), ST_INVALID);
    assert_string_equal(err.param, param);
    if (!strstr(err.message, text)) fail_msg("%s: %s", body, err.message);
    buf_fini(&out);
}

static void string_is_a_block_of_text(void **state) {
    static const char want[] =
        ASK("[{\"role\":\"system\",\"content\":\"be\\nbrief\"},{\"role\":\"user\",\"content\":"
            "\"hi\"}]",
            "");

    (void)state;
    assert_chat("{\"system\":\"be\\nbrief\",\"max_tokens\":9,\"messages\":" HI "}", true, want);
    assert_chat("{\"system\":[{\"type\":\"text\",\"text\":\"be\",\"cache_control\":{\"type\":"
                "\"ephemeral\"}},{\"type\":\"text\",\"text\":\"brief\"}],\"max_tokens\":9,"
                "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}"
                "]}]}",
                true, want);
}

static void billing_header_is_left_out(void **state) {
    static const char want[] =
        ASK("[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"hi\"}"
            "]",
            "");

    (void)state;
    for (int i = 0; i < 2; i++) {
        char body[512];

        snprintf(body, sizeof(body),
                 "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
                 "cc_version=2.1; cch=%05d;\"},{\"type\":\"text\",\"text\":\"be brief\"}],"
                 "\"max_tokens\":9,\"messages\":" HI "}",
                 i);
        assert_chat(body, true, want);
    }
    assert_chat("{\"system\":\"x-anthropic-billing-header: cch=1;\\nbe brief\",\"max_tokens\":9,"
                "\"messages\":" HI "}",
                true, want);
}

#define TURN_1                                                                                     \
    "{\"role\":\"user\",\"content\":\"go\"},"                                                      \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\","    \
    "\"input\":{\"x\":1}}]},"                                                                      \
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\","            \
    "\"content\":\"ok\"}]},"                                                                       \
    "{\"role\":\"system\",\"content\":\"9 left\"}"
#define CALLED                                                                                     \
    "{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":null,"             \
    "\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"f\","           \
    "\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":"  \
    "\"ok\"},"
#define TURN_2                                                                                     \
    ",{\"role\":\"assistant\",\"content\":\"done\"},{\"role\":\"user\",\"content\":\"more\"}"

/* So the prompt of the first turn is the beginning of the second turn's. */
static void late_system_stays_in_place(void **state) {
    (void)state;
    assert_chat(ASK("[" TURN_1 "]", ""), true,
                ASK("[" CALLED "{\"role\":\"system\",\"content\":\"9 left\"}]", ""));
    assert_chat(ASK("[" TURN_1 TURN_2 "]", ""), true,
                ASK("[" CALLED "{\"role\":\"system\",\"content\":\"9 left\"}" TURN_2 "]", ""));
    assert_chat(ASK("[" TURN_1 "]", ""), false,
                ASK("[" CALLED "{\"role\":\"user\",\"content\":\"9 left\"}]", ""));
    assert_chat(ASK("[" TURN_1 TURN_2 "]", ""), false,
                ASK("[" CALLED "{\"role\":\"user\",\"content\":\"9 left\"}" TURN_2 "]", ""));
}

static void results_come_before_the_text_of_their_message(void **state) {
    (void)state;
    assert_chat(
        ASK("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},"
            "{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"text\","
            "\"text\":\"1\"},{\"type\":\"text\",\"text\":\"2\"}]},"
            "{\"type\":\"tool_result\",\"tool_use_id\":\"b\",\"is_error\":true}]},"
            "{\"role\":\"user\",\"content\":\"and go on\"}]",
            ""),
        true,
        ASK("[{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\\n2\"},"
            "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"\"},"
            "{\"role\":\"user\",\"content\":\"see\\nand go on\"}]",
            ""));
}

static void assistant_has_reasoning_text_and_calls(void **state) {
    (void)state;
    assert_chat(
        ASK("[{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":["
            "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},"
            "{\"type\":\"redacted_thinking\",\"data\":\"zz\"},"
            "{\"type\":\"text\",\"text\":\"On it.\"},"
            "{\"type\":\"server_tool_use\",\"id\":\"s\",\"name\":\"web_search\",\"input\":{}},"
            "{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"h\",\"input\":{}},"
            "{\"type\":\"tool_use\",\"id\":\"b\",\"name\":\"h\"}]},"
            "{\"role\":\"user\",\"content\":\"so?\"}]",
            ""),
        true,
        ASK("[{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":\"On "
            "it.\",\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
            "\"function\":{\"name\":\"h\",\"arguments\":\"{}\"}},{\"id\":\"b\",\"type\":"
            "\"function\",\"function\":{\"name\":\"h\",\"arguments\":\"{}\"}}]},"
            "{\"role\":\"user\",\"content\":\"so?\"}]",
            ""));
}

static void last_message_of_the_assistant_is_continued(void **state) {
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
                                   "\"assistant\",\"content\":\"We\"}]";
    char body[256], want[256];

    (void)state;
    snprintf(body, sizeof(body), "{\"messages\":%s,\"max_tokens\":9}", messages);
    snprintf(want, sizeof(want),
             "{\"messages\":%s,\"continue_final_message\":true,\"max_tokens\":9}", messages);
    assert_chat(body, true, want);
}

static void documents_are_text_and_images_are_refused(void **state) {
    (void)state;
    assert_chat(ASK("[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"title\":\"A\","
                    "\"source\":{\"type\":\"text\",\"media_type\":\"text/plain\",\"data\":\"b\"}},"
                    "{\"type\":\"new_in_2027\",\"x\":1},{\"type\":\"text\",\"text\":\"c\"}]}]",
                    ""),
                true, ASK("[{\"role\":\"user\",\"content\":\"A\\nb\\nc\"}]", ""));
    assert_refused(ASK("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[{"
                       "\"type\":\"image\",\"source\":{}}]}]",
                       ""),
                   "messages[1].content", "no images");
    assert_refused(ASK("[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{"
                       "\"type\":\"base64\",\"data\":\"\"}}]}]",
                       ""),
                   "messages[0].content", "text");
}

#define F_GIVEN                                                                                    \
    "{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"                \
    "\"cache_control\":{\"type\":\"ephemeral\"},\"defer_loading\":true}"
#define SEARCH "{\"type\":\"web_search_20250305\",\"name\":\"web_search\",\"max_uses\":5}"
#define F_WANTED                                                                                   \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","        \
    "\"parameters\":{\"type\":\"object\"}}}]"

static void tools_are_functions_and_choices_are_chats(void **state) {
    (void)state;
    assert_fields(",\"max_tokens\":9,\"tools\":[" SEARCH "," F_GIVEN "]",
                  "," F_WANTED ",\"max_tokens\":9");
    assert_fields(",\"max_tokens\":9,\"tools\":[" SEARCH "],\"tool_choice\":{\"type\":\"auto\"}",
                  ",\"max_tokens\":9");
    assert_fields(",\"max_tokens\":9,\"tools\":[" F_GIVEN "],\"tool_choice\":{\"type\":\"any\","
                  "\"disable_parallel_tool_use\":true}",
                  "," F_WANTED
                  ",\"parallel_tool_calls\":false,\"tool_choice\":\"required\",\"max_tokens\":9");
    assert_fields(
        ",\"max_tokens\":9,\"tools\":[" F_GIVEN
        "],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}",
        "," F_WANTED
        ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"max_tokens\":9");
    assert_fields(",\"max_tokens\":9,\"tools\":[" F_GIVEN "],\"tool_choice\":{\"type\":\"none\"}",
                  "," F_WANTED ",\"tool_choice\":\"none\",\"max_tokens\":9");
    assert_refused(ASK(HI, ",\"tools\":[" SEARCH "],\"tool_choice\":{\"type\":\"any\"}"),
                   "tool_choice", "tools");
    assert_refused(ASK(HI, ",\"tools\":[" SEARCH
                           "],\"tool_choice\":{\"type\":\"tool\",\"name\":\"web_search\"}"),
                   "tool_choice", "server tool");
}

static void thinking_is_a_variable_and_a_budget(void **state) {
    (void)state;
    assert_fields(",\"max_tokens\":2000,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}",
                  ",\"max_tokens\":2000,\"chat_template_kwargs\":{\"enable_thinking\":true,"
                  "\"thinking\":true},\"thinking_token_budget\":1024");
    assert_fields(",\"max_tokens\":9,\"thinking\":{\"type\":\"disabled\"}",
                  ",\"max_tokens\":9,\"chat_template_kwargs\":{\"enable_thinking\":false,"
                  "\"thinking\":false}");
    assert_fields(",\"max_tokens\":9,\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"},"
                  "\"chat_template_kwargs\":{\"enable_thinking\":false}",
                  ",\"max_tokens\":9,\"chat_template_kwargs\":{\"thinking\":true,"
                  "\"enable_thinking\":false}");
    assert_chat("{\"messages\":" HI ",\"max_tokens\":2000,\"thinking\":{\"type\":\"enabled\","
                "\"budget_tokens\":1024}}",
                false,
                "{\"messages\":" HI ",\"max_tokens\":2000,\"chat_template_kwargs\":{"
                "\"enable_thinking\":true,\"thinking\":true}}");
    assert_refused("{\"messages\":" HI ",\"max_tokens\":1024,\"thinking\":{\"type\":\"enabled\","
                   "\"budget_tokens\":1024}}",
                   "thinking", "below max_tokens");
    assert_refused("{\"messages\":" HI ",\"max_tokens\":9,\"thinking\":{\"type\":\"enabled\","
                   "\"budget_tokens\":8}}",
                   "thinking.budget_tokens", "thinking.budget_tokens must be");
}

static void other_fields_have_chats_names(void **state) {
    (void)state;
    assert_fields(",\"max_tokens\":9,\"stop_sequences\":[\"END\"],\"temperature\":0.5,\"top_k\":3,"
                  "\"stream\":true,\"metadata\":{\"user_id\":\"u\"},\"context_management\":{"
                  "\"edits\":[]},\"output_config\":{\"effort\":\"high\",\"format\":{\"type\":"
                  "\"json_schema\",\"schema\":{\"type\":\"null\"}}},\"service_tier\":\"auto\","
                  "\"stop\":\"not a field\"",
                  ",\"max_tokens\":9,\"stop\":[\"END\"],\"reasoning_effort\":\"high\","
                  "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":"
                  "\"output\",\"schema\":{\"type\":\"null\"}}},\"temperature\":0.5,\"top_k\":3,"
                  "\"stream\":true");
}

static void max_tokens_is_required_of_a_message_alone(void **state) {
    struct error err = {0};
    struct buf out;

    (void)state;
    assert_refused("{\"messages\":" HI "}", "max_tokens", "required");
    assert_refused("{\"max_tokens\":1}", "messages", "required");
    assert_refused(ASK(HI, ",\"system\":{\"type\":\"text\",\"text\":\"x\"}"), "system",
                   "not an object");
    assert_refused(ASK("[{\"role\":\"tool\",\"content\":\"x\"}]", ""), "messages", "role");
    buf_init(&out, 0);
    assert_int_equal(convert("{\"messages\":" HI "}", true, true, &out, &err), ST_OK);
    buf_fini(&out);
}

static void mutated_bodies_never_break_it(void **state) {
    static const char seed[] =
        ASK("[" TURN_1 TURN_2 ",{\"role\":\"assistant\",\"content\":\"x\"}]",
            ",\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: a\\nb\"}],"
            "\"tools\":[" SEARCH "," F_GIVEN "],\"tool_choice\":{\"type\":\"any\"},\"thinking\":{"
            "\"type\":\"disabled\"},\"output_config\":{\"effort\":\"low\"},\"stop_sequences\":[]");
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
        cmocka_unit_test(string_is_a_block_of_text),                     /* 112 */
        cmocka_unit_test(billing_header_is_left_out),                    /* 100 */
        cmocka_unit_test(late_system_stays_in_place),                    /* 101 */
        cmocka_unit_test(results_come_before_the_text_of_their_message), /* 102 */
        cmocka_unit_test(assistant_has_reasoning_text_and_calls),
        cmocka_unit_test(last_message_of_the_assistant_is_continued),
        cmocka_unit_test(documents_are_text_and_images_are_refused),
        cmocka_unit_test(tools_are_functions_and_choices_are_chats),
        cmocka_unit_test(thinking_is_a_variable_and_a_budget),       /* 109 */
        cmocka_unit_test(other_fields_have_chats_names),             /* 106 */
        cmocka_unit_test(max_tokens_is_required_of_a_message_alone), /* 107 */
        cmocka_unit_test(mutated_bodies_never_break_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
