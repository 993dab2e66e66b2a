/* tests/unit/worker/test_worker_defaults.c - the template's switches that keep reasoning, and
 * the formats of answers. */
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "worker/worker_defaults.h"

static void reasoning_is_kept_by_the_switch_that_the_template_has(void **state) {
    static const struct {
        const char *source, *before, *after; /* before: of --default-chat-template-kwargs */
    } cases[] = {
        {"{{ preserve_thinking }}", NULL, "{\"preserve_thinking\":true}"},
        {"{% if clear_thinking %}", "{\"a\":[1]}", "{\"a\":[1],\"clear_thinking\":false}"},
        {"truncate_history_thinking", NULL, "{\"truncate_history_thinking\":false}"},
        {"preserve_thinking clear_thinking", "{\"preserve_thinking\":false}",
         "{\"preserve_thinking\":false,\"clear_thinking\":false}"},
        {"{{ messages }}", "{\"a\":1}", "{\"a\":1}"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json *kwargs = NULL;
        struct error err = {0};
        struct json_writer w;
        struct buf text;

        buf_init(&text, 0);
        json_writer_init(&w, &text);
        if (cases[i].before)
            assert_int_equal(json_parse(&kwargs, str_of(cases[i].before), NULL, NULL), ST_OK);
        assert_int_equal(worker_keep_reasoning(&kwargs, str_of(cases[i].source), NULL, &err),
                         ST_OK);
        json_put_tree(&w, kwargs);
        buf_append(&text, "", 1);
        assert_string_equal(buf_str(&text).ptr, cases[i].after);
        json_destroy(kwargs);
        buf_fini(&text);
    }
}

static void without_a_switch_nothing_is_set(void **state) {
    struct json *kwargs = NULL;

    (void)state;
    assert_int_equal(worker_keep_reasoning(&kwargs, STR("{{ messages }}"), NULL, NULL), ST_OK);
    assert_null(kwargs);
}

static bool find_nothing(const void *arg, struct str text, uint32_t *id) {
    (void)arg;
    (void)text;
    (void)id;
    return false;
}

static void formats_are_named_or_recognised(void **state) {
    static const struct {
        const char *calls, *reasoning; /* of the options */
        const char *found_calls, *found_reasoning;
    } cases[] = {
        {"auto", "auto", "hermes", "deepseek_r1"},
        {"none", "none", "none", "none"},
        {"llama3_json", "granite", "llama3_json", "granite"},
        {"of_tomorrow", "of_tomorrow", "hermes", "deepseek_r1"},
        {"none", "qwen3", "none", "deepseek_r1"},
    };
    struct output_model model = {.chat_template = STR("<tool_call></tool_call> <think></think>"),
                                 .find_token = find_nothing};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct worker_options o = {.tool_call_parser = cases[i].calls,
                                   .reasoning_parser = cases[i].reasoning};
        const struct call_format *calls;
        const struct reasoning_format *reasoning;

        worker_output_formats(&o, &model, NULL, &calls, &reasoning);
        assert_string_equal(call_format_name(calls), cases[i].found_calls);
        assert_string_equal(reasoning_format_name(reasoning), cases[i].found_reasoning);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_is_kept_by_the_switch_that_the_template_has),
        cmocka_unit_test(without_a_switch_nothing_is_set),
        cmocka_unit_test(formats_are_named_or_recognised),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
