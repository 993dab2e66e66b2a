/* tests/unit/worker/api/wires/test_messages_answer.c - an answer as Messages has it. */
#include <stdio.h>
#include <string.h>

#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/api/wires/messages_answer.h"

struct setup {
    struct answer answer;
    struct answer_mark mark;
    struct messages_answer m;
    struct messages_stream stream;
    struct buf out;
};

static void setup_open(struct setup *s) {
    memset(s, 0, sizeof(*s));
    answer_init(&s->answer, 10000);
    buf_init(&s->out, 0);
    s->m = (struct messages_answer){.id = "msg_1",
                                    .model = "m",
                                    .answer = &s->answer,
                                    .prompt_tokens = 812,
                                    .cached_tokens = 800,
                                    .output_tokens = 1};
    s->stream.mark = &s->mark;
}

static void setup_close(struct setup *s) {
    answer_fini(&s->answer);
    buf_fini(&s->out);
}

static void look(void *arg) {
    struct setup *s = arg;

    messages_put_more(&s->m, &s->stream, &s->out);
}

static void assert_out(const struct setup *s, const char *want) {
    if (str_eq(buf_str(&s->out), str_of(want))) return;
    fail_msg("\n" STR_FMT "\nnot\n%s", STR_ARG(buf_str(&s->out)), want);
}

#define EVENT(type, more) "event: " type "\ndata: {\"type\":\"" type "\"" more "}\n\n"
#define USAGE(n)                                                                                   \
    "\"usage\":{\"input_tokens\":12,\"cache_creation_input_tokens\":0,"                            \
    "\"cache_read_input_tokens\":800,\"output_tokens\":" n "}"

static void events_are_in_order_one_block_at_a_time(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s);
    messages_put_start(&s.m, &s.out);
    answer_add(&s.answer, PART_REASONING, STR("Look"));
    look(&s);
    answer_add(&s.answer, PART_TEXT, STR("\n\n"));
    look(&s);
    answer_begin_call(&s.answer, STR("f"), STR("toolu_1"));
    answer_add_arguments(&s.answer, STR("{\"x\": 1}"));
    answer_end_call(&s.answer, false);
    answer_end(&s.answer);
    s.m.output_tokens = 41;
    look(&s);
    messages_put_end(&s.m, &s.stream, &s.out);
    assert_out(
        &s,
        EVENT("message_start",
              ",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\","
              "\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null," USAGE(
                  "1") "}") EVENT("content_block_start",
                                  ",\"index\":0,\"content_block\":{\"type\":\"thinking\","
                                  "\"thinking\":\"\",\"signature\":\"\"}")
            EVENT("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\","
                                         "\"thinking\":\"Look\"}")
                EVENT("content_block_delta",
                      ",\"index\":0,\"delta\":{\"type\":\"signature_delta\","
                      "\"signature\":\"incipit\"}") EVENT("content_block_stop", ",\"index\":0")
                    EVENT("content_block_start",
                          ",\"index\":1,\"content_block\":{\"type\":\"tool_use\","
                          "\"id\":\"toolu_1\",\"name\":\"f\",\"input\":{}}")
                        EVENT("content_block_delta",
                              ",\"index\":1,\"delta\":{\"type\":\"input_json_delta\","
                              "\"partial_json\":\"{\\\"x\\\": 1}\"}")
                            EVENT("content_block_stop", ",\"index\":1")
                                EVENT("message_delta", ",\"delta\":{\"stop_reason\":\"tool_use\","
                                                       "\"stop_sequence\":null}," USAGE("41"))
                                    EVENT("message_stop", ""));
    setup_close(&s);
}

static void empty_answer_has_one_empty_text(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s);
    answer_add(&s.answer, PART_TEXT, STR(" \n"));
    answer_end(&s.answer);
    look(&s);
    messages_put_end(&s.m, &s.stream, &s.out);
    assert_out(&s, EVENT("content_block_start",
                         ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")
                       EVENT("content_block_stop", ",\"index\":0")
                           EVENT("message_delta", ",\"delta\":{\"stop_reason\":\"end_turn\","
                                                  "\"stop_sequence\":null}," USAGE("1"))
                               EVENT("message_stop", ""));
    buf_clear(&s.out);
    messages_put_whole(&s.m, &s.out);
    assert_out(&s, "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\","
                   "\"content\":[{\"type\":\"text\",\"text\":\"\"}],\"stop_reason\":\"end_turn\","
                   "\"stop_sequence\":null," USAGE("1") "}");
    setup_close(&s);
}

static void reasons_to_stop_have_an_order(void **state) {
    static const struct {
        bool is_limited, has_call, is_cut, has_stop;
        const char *want;
    } rows[] = {
        {false, false, false, false, "\"end_turn\",\"stop_sequence\":null"},
        {false, false, false, true, "\"stop_sequence\",\"stop_sequence\":\"END\""},
        {false, true, false, false, "\"tool_use\",\"stop_sequence\":null"},
        {false, true, false, true, "\"tool_use\",\"stop_sequence\":null"},
        {false, true, true, true, "\"stop_sequence\",\"stop_sequence\":\"END\""},
        {false, true, true, false, "\"end_turn\",\"stop_sequence\":null"},
        {true, true, false, false, "\"max_tokens\",\"stop_sequence\":null"},
        {true, true, true, false, "\"max_tokens\",\"stop_sequence\":null"},
        {true, false, false, false, "\"max_tokens\",\"stop_sequence\":null"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char want[128];
        struct setup s;

        setup_open(&s);
        if (rows[i].has_call) {
            answer_begin_call(&s.answer, STR("f"), STR("t"));
            answer_add_arguments(&s.answer, STR("{}"));
            answer_end_call(&s.answer, rows[i].is_cut);
        }
        answer_end(&s.answer);
        s.m.is_limited = rows[i].is_limited;
        if (rows[i].has_stop) s.m.stop = STR("END");
        messages_put_whole(&s.m, &s.out);
        snprintf(want, sizeof(want), "\"stop_reason\":%s,", rows[i].want);
        if (str_find(buf_str(&s.out), str_of(want)) < 0)
            fail_msg("row %zu: " STR_FMT, i, STR_ARG(buf_str(&s.out)));
        setup_close(&s);
    }
}

static void input_of_a_call_is_always_an_object(void **state) {
    static const char *const rows[][2] = {
        {"{\"x\": 1}", "{\"x\": 1}"}, {"[1]", "{}"}, {"\"s\"", "{}"}, {"{\"x\":", "{}"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char want[128];
        struct setup s;

        setup_open(&s);
        answer_begin_call(&s.answer, STR("f"), STR("t"));
        answer_add_arguments(&s.answer, str_of(rows[i][0]));
        answer_end_call(&s.answer, false);
        messages_put_whole(&s.m, &s.out);
        snprintf(want, sizeof(want), "\"name\":\"f\",\"input\":%s}", rows[i][1]);
        assert_true(str_find(buf_str(&s.out), str_of(want)) >= 0);
        setup_close(&s);
    }
}

static void diagnosis_has_the_names_of_messages(void **state) {
    static const struct {
        enum prompt_change change;
        const char *want;
    } rows[] = {
        {PROMPT_NOT_COMPARED, "null"},
        {PROMPT_REUSED, "null"},
        {PROMPT_NOT_FOUND, "{\"cache_miss_reason\":{\"type\":\"previous_message_not_found\"}}"},
        {PROMPT_SYSTEM, "{\"cache_miss_reason\":{\"type\":\"system_changed\","
                        "\"cache_missed_input_tokens\":48,\"cause\":\"system\"}}"},
        {PROMPT_TOOLS, "{\"cache_miss_reason\":{\"type\":\"tools_changed\","
                       "\"cache_missed_input_tokens\":48,\"cause\":\"tools\"}}"},
        {PROMPT_EFFORT, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                        "\"cache_missed_input_tokens\":48,\"cause\":\"effort\"}}"},
        {PROMPT_SETTINGS, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                          "\"cache_missed_input_tokens\":48,\"cause\":\"settings\"}}"},
        {PROMPT_MESSAGES, "{\"cache_miss_reason\":{\"type\":\"messages_changed\","
                          "\"cache_missed_input_tokens\":48,\"cause\":\"messages\"}}"},
        {PROMPT_TEMPLATE, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                          "\"cache_missed_input_tokens\":48,\"cause\":\"template\"}}"},
        {PROMPT_EVICTED, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                         "\"cache_missed_input_tokens\":48,\"cause\":\"evicted\"}}"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct prompt_diagnosis d = {.change = rows[i].change, .n_equal = 16, .n_missed = 48};
        char want[256];
        struct setup s;

        setup_open(&s);
        messages_put_whole(&s.m, &s.out);
        assert_true(str_find(buf_str(&s.out), STR("diagnostics")) < 0); /* it is not asked for */
        buf_clear(&s.out);
        s.m.diagnosis = &d;
        messages_put_whole(&s.m, &s.out);
        snprintf(want, sizeof(want), "\"output_tokens\":1},\"diagnostics\":%s}", rows[i].want);
        assert_true(str_ends(buf_str(&s.out), str_of(want)));
        setup_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_in_order_one_block_at_a_time), /* 103, 104 */
        cmocka_unit_test(empty_answer_has_one_empty_text),         /* 111 */
        cmocka_unit_test(reasons_to_stop_have_an_order),           /* 105 */
        cmocka_unit_test(input_of_a_call_is_always_an_object),
        cmocka_unit_test(diagnosis_has_the_names_of_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
