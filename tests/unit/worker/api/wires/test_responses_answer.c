/* tests/unit/worker/api/wires/test_responses_answer.c - an answer as Responses has it. */
#include <stdio.h>
#include <string.h>

#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/api/wires/responses_answer.h"

struct setup {
    struct answer answer;
    struct answer_mark mark;
    struct json *asked;
    struct responses_answer r;
    struct responses_stream stream;
    struct buf out;
};

static void setup_open(struct setup *s, const char *asked) {
    memset(s, 0, sizeof(*s));
    answer_init(&s->answer, 10000);
    buf_init(&s->out, 0);
    assert_int_equal(json_parse(&s->asked, str_of(asked), NULL, NULL), ST_OK);
    s->r = (struct responses_answer){.id = "resp_7",
                                     .model = "m",
                                     .asked = s->asked,
                                     .answer = &s->answer,
                                     .created_s = 5,
                                     .prompt_tokens = 812,
                                     .cached_tokens = 800,
                                     .output_tokens = 41,
                                     .reasoning_tokens = 3};
    s->stream.mark = &s->mark;
}

static void setup_close(struct setup *s) {
    json_destroy(s->asked);
    answer_fini(&s->answer);
    buf_fini(&s->out);
}

static void look(void *arg) {
    struct setup *s = arg;

    responses_put_more(&s->r, &s->stream, &s->out);
}

static void assert_has(const struct setup *s, const char *want) {
    if (str_find(buf_str(&s->out), str_of(want)) >= 0) return;
    fail_msg("\n" STR_FMT "\nhas not\n%s", STR_ARG(buf_str(&s->out)), want);
}

/* The types of the events, without "response.", one a line. */
static void assert_types(const struct setup *s, const char *want) {
    struct str left = buf_str(&s->out);
    struct buf types;

    buf_init(&types, 0);
    while (left.len) {
        struct str prefix = STR("event: response.");
        ptrdiff_t end = str_find(left, STR("\n")), next = str_find(left, STR("\n\n"));

        assert_true(str_starts(left, prefix) && end > 0 && next > 0);
        buf_append(&types, left.ptr + prefix.len, (size_t)end + 1 - prefix.len);
        left = (struct str){left.ptr + next + 2, left.len - (size_t)next - 2};
    }
    if (!str_eq(buf_str(&types), str_of(want)))
        fail_msg("\n" STR_FMT "not\n%s", STR_ARG(buf_str(&types)), want);
    buf_fini(&types);
}

#define TOOLS                                                                                      \
    "{\"tools\":[{\"type\":\"function\",\"name\":\"find\"},{\"type\":\"namespace\",\"name\":"      \
    "\"mcp\",\"tools\":[{\"type\":\"custom\",\"name\":\"patch\"}]}]}"

static void events_are_in_order_one_item_at_a_time(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s, TOOLS);
    responses_put_start(&s.r, &s.stream, &s.out);
    answer_add(&s.answer, PART_REASONING, STR("Look"));
    look(&s);
    answer_add(&s.answer, PART_TEXT, STR("\n\n"));
    look(&s);
    answer_begin_call(&s.answer, STR("find"), STR("call_1"));
    answer_add_arguments(&s.answer, STR("{\"x\": 1}"));
    answer_end_call(&s.answer, false);
    answer_begin_call(&s.answer, STR("mcp__patch"), STR("call_2"));
    answer_add_arguments(&s.answer, STR("{\"input\": "));
    look(&s);
    answer_add_arguments(&s.answer, STR("\"a\\nb\"}"));
    answer_end_call(&s.answer, false);
    answer_add(&s.answer, PART_TEXT, STR("Done."));
    answer_end(&s.answer);
    look(&s);
    responses_put_end(&s.r, &s.stream, &s.out);
    assert_types(&s, "created\nin_progress\n"
                     "output_item.added\ncontent_part.added\nreasoning_text.delta\n"
                     "reasoning_text.done\ncontent_part.done\noutput_item.done\n"
                     "output_item.added\nfunction_call_arguments.delta\n"
                     "function_call_arguments.done\noutput_item.done\n"
                     "output_item.added\ncustom_tool_call_input.delta\n"
                     "custom_tool_call_input.done\noutput_item.done\n"
                     "output_item.added\ncontent_part.added\noutput_text.delta\n"
                     "output_text.done\ncontent_part.done\noutput_item.done\ncompleted\n");
    assert_has(&s, "{\"type\":\"response.function_call_arguments.done\",\"sequence_number\":10,"
                   "\"item_id\":\"fc_7_1\",\"output_index\":1,\"arguments\":\"{\\\"x\\\": 1}\","
                   "\"name\":\"find\"}");
    assert_has(&s, "\"item\":{\"id\":\"ctc_7_2\",\"type\":\"custom_tool_call\",\"status\":"
                   "\"completed\",\"call_id\":\"call_2\",\"name\":\"patch\",\"namespace\":\"mcp\","
                   "\"input\":\"a\\nb\"}");
    assert_has(&s, "\"usage\":{\"input_tokens\":812,\"input_tokens_details\":{\"cached_tokens\":"
                   "800,\"cache_write_tokens\":0},\"output_tokens\":41,\"output_tokens_details\":"
                   "{\"reasoning_tokens\":3},\"total_tokens\":853}");
    setup_close(&s);
}

static void limit_makes_it_incomplete(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s, TOOLS);
    s.r.is_limited = true;
    answer_add(&s.answer, PART_REASONING, STR("Look"));
    answer_begin_call(&s.answer, STR("find"), STR("call_1"));
    answer_add_arguments(&s.answer, STR("{\"x\":"));
    answer_end_call(&s.answer, true);
    look(&s);
    responses_put_end(&s.r, &s.stream, &s.out);
    assert_has(&s, "event: response.incomplete\n");
    assert_has(&s, "\"type\":\"reasoning\",\"status\":\"completed\"");
    assert_has(&s, "\"type\":\"function_call\",\"status\":\"incomplete\",\"call_id\":\"call_1\","
                   "\"name\":\"find\",\"arguments\":\"{\\\"x\\\":\"}");
    buf_clear(&s.out);
    responses_put_whole(&s.r, &s.out);
    assert_has(&s, "\"status\":\"incomplete\",\"error\":null,\"incomplete_details\":{\"reason\":"
                   "\"max_output_tokens\"}");
    setup_close(&s);
}

static void empty_answer_is_one_empty_message(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s, "{\"input\":\"x\"}");
    responses_put_end(&s.r, &s.stream, &s.out);
    assert_types(&s, "output_item.added\ncontent_part.added\noutput_text.done\ncontent_part.done\n"
                     "output_item.done\ncompleted\n");
    buf_clear(&s.out);
    responses_put_whole(&s.r, &s.out);
    assert_has(&s, "\"output\":[{\"id\":\"msg_7_0\",\"type\":\"message\",\"status\":\"completed\","
                   "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"\","
                   "\"annotations\":[],\"logprobs\":[]}]}]");
    setup_close(&s);
}

static void fields_of_the_request_are_repeated(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s, "{\"instructions\":\"be brief\",\"metadata\":{\"a\":\"b\"},\"tools\":[{\"type\":"
                   "\"web_search\"}],\"temperature\":0.5,\"include\":[\"reasoning.encrypted_content"
                   "\"]}");
    answer_add(&s.answer, PART_REASONING, STR("ho"));
    answer_end(&s.answer);
    responses_put_whole(&s.r, &s.out);
    assert_has(&s, "\"instructions\":\"be brief\"");
    assert_has(&s, "\"metadata\":{\"a\":\"b\"}");
    assert_has(&s, "\"tools\":[{\"type\":\"web_search\"}]");
    assert_has(&s, "\"temperature\":0.5");
    assert_has(&s, "\"tool_choice\":\"auto\"");
    assert_has(&s, "\"encrypted_content\":\"incipit1.aG8\"");
    setup_close(&s);
}

/* Routers count the last of several numbers, and tools may have any name with any number. */
static void usage_follows_what_is_repeated(void **state) {
    ptrdiff_t usage, forged;
    struct setup s;

    (void)state;
    setup_open(&s, "{\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"default\":{"
                   "\"output_tokens\":2000000000}}}],\"tool_choice\":\"none\"}");
    responses_put_whole(&s.r, &s.out);
    usage = str_find(buf_str(&s.out), STR("\"usage\":{\"input_tokens\""));
    forged = str_find(buf_str(&s.out), STR("\"output_tokens\":2000000000"));
    assert_true(forged >= 0 && usage > forged);
    setup_close(&s);
}

static void diagnosis_has_the_names_of_responses(void **state) {
#define MISS(type, cause)                                                                          \
    "{\"type\":" type ",\"cache_missed_tokens\":48,\"comparison_reusable_tokens\":16,"             \
    "\"cause\":\"" cause "\"}"
    static const struct {
        enum prompt_change change;
        const char *want;
    } rows[] = {
        {PROMPT_NOT_COMPARED, "null"},
        {PROMPT_NOT_FOUND, "{\"type\":\"comparison_response_not_found\"}"},
        {PROMPT_REUSED, "{\"type\":\"cache_hit\"}"},
        {PROMPT_SYSTEM, MISS("\"cache_miss\",\"reason\":\"input_changed\"", "system")},
        {PROMPT_TOOLS, MISS("\"cache_miss\",\"reason\":\"tools_changed\"", "tools")},
        {PROMPT_EFFORT, MISS("\"cache_miss\",\"reason\":\"reasoning_effort_changed\"", "effort")},
        {PROMPT_SETTINGS, MISS("\"unavailable\"", "settings")},
        {PROMPT_MESSAGES, MISS("\"cache_miss\",\"reason\":\"input_changed\"", "messages")},
        {PROMPT_TEMPLATE, MISS("\"unavailable\"", "template")},
        {PROMPT_EVICTED, MISS("\"unavailable\"", "evicted")},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct prompt_diagnosis d = {.change = rows[i].change, .n_equal = 16, .n_missed = 48};
        char want[256];
        struct setup s;

        setup_open(&s, "{}");
        s.r.diagnosis = &d;
        responses_put_whole(&s.r, &s.out);
        snprintf(want, sizeof(want), "\"prompt_cache_diagnostics\":%s,\"usage\":", rows[i].want);
        assert_has(&s, want);
        setup_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_in_order_one_item_at_a_time), /* 113 */
        cmocka_unit_test(limit_makes_it_incomplete),              /* 116 */
        cmocka_unit_test(empty_answer_is_one_empty_message),
        cmocka_unit_test(fields_of_the_request_are_repeated),
        cmocka_unit_test(usage_follows_what_is_repeated),
        cmocka_unit_test(diagnosis_has_the_names_of_responses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
