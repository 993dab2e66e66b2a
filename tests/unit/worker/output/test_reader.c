/* tests/unit/worker/output/test_reader.c - what models write, by format, against the parts that are
 * expected: hermes, and reasoning. */
#include <stdio.h>

#include "tests/support/cm.h"
#include "tests/support/reader_check.h"
#include "worker/output/output_internal.h"

static void without_formats_all_is_text(void **state) {
    (void)state;
    check(NULL, "<think>a</think> <tool_call>\n", "text <think>a</think> <tool_call>\\n\n");
    check(NULL, "\n\n a", "text \\n\\n a\n");
    check(NULL, "\n\n", "text \\n\\n\n");
    check(NULL, "", "");
}

static void hermes_call_is_read(void **state) {
    (void)state;
    check("hermes", "hi <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
          "text hi \ncall f {\"x\": 1}\n");
}

static void two_calls_are_read(void **state) {
    (void)state;
    check("hermes",
          "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
          "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"s\": \"a\"}}\n</tool_call>",
          "call f {\"x\": 1}\ncall g {\"s\": \"a\"}\n");
}

static void missing_arguments_are_an_empty_object(void **state) {
    (void)state;
    check("hermes", "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>",
          "call h {}\n");
    check("hermes", "<tool_call>{\"name\": \"h\"}</tool_call>", "call h {}\n");
    check("hermes", "<tool_call>{\"name\": \"h\", \"arguments\": null}</tool_call>", "call h {}\n");
    check("hermes", "<tool_call>{\"arguments\": null, \"name\": \"h\"}", "call h {}\n");
}

static void a_marker_that_ends_early_is_text(void **state) {
    (void)state;
    check_one("hermes", NULL, false, false, false, STR("<tool_"), "text <tool_\n");
    check_one("hermes", NULL, false, false, true, STR("a\n<tool_"), "text a\\n<tool_\n");
}

static void a_marker_in_prose_is_text(void **state) {
    (void)state;
    check("hermes", "Use <tool_call> to call.", "text Use <tool_call> to call.\n");
    check("hermes", "a <tool_call>{\"a\": 1} b", "text a <tool_call>{\"a\": 1} b\n");
    check("hermes", "a <tool_call>\n {]", "text a <tool_call>\\n {]\n");
}

static void a_stray_marker_before_a_call_is_text(void **state) {
    const char *call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    char text[200];

    (void)state;
    snprintf(text, sizeof(text), "<tool_call>%s", call);
    check("hermes", text, "text <tool_call>\ncall f {\"x\": 1}\n");
    snprintf(text, sizeof(text), "<tool_call>\n{\"na %s", call);
    check_one("hermes", NULL, true, false, false, str_of(text),
              "text <tool_call>\\n{\"na \ncall f {\"x\": 1}\n");
    snprintf(text, sizeof(text), "<tool_call> prose %s", call);
    check("hermes", text, "text <tool_call> prose \ncall f {\"x\": 1}\n");
}

static void strings_hold_anything(void **state) {
    (void)state;
    check("hermes",
          "<tool_call>{\"name\": \"g\", \"arguments\": {\"s\": "
          "\"</tool_call> } \\\" [TOOL_CALLS]\"}}</tool_call>",
          "call g {\"s\": \"</tool_call> } \\\" [TOOL_CALLS]\"}\n");
    check("hermes", "<tool_call>{\"name\": \"g\", \"arguments\": {\"s\": \"a\nb\"}}</tool_call>",
          "call g {\"s\": \"a\\nb\"}\n");
}

static void unclosed_calls_are_whole_or_cut(void **state) {
    (void)state;
    check("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
          "call f {\"x\": 1}\n");
    check("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}",
          "call f {\"x\": 1}\n");
    check_cut("hermes",
              "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": ", "cut f {\"x\": \n");
    check_cut("hermes", "<tool_call>\n{\"name\": \"f\", \"argum", "cut f \n");
    check_one("hermes", NULL, false, false, true,
              STR("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool"), "call f {}\n");
}

static void a_surplus_brace_is_of_the_call(void **state) {
    (void)state;
    check("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}}\n</tool_call>b",
          "call f {\"x\": 1}\ntext b\n");
    check("hermes", "<tool_call>{\"name\": \"h\"} } b", "call h {}\ntext  } b\n");
}

static void unknown_tools_are_calls(void **state) {
    (void)state;
    check("hermes", "<tool_call>{\"name\": \"nix\", \"arguments\": {}}</tool_call>",
          "call nix {}\n");
}

static void arguments_may_come_first(void **state) {
    (void)state;
    check("hermes", "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call>.",
          "call f {\"x\": 1}\ntext .\n");
    check("hermes",
          "<tool_call>{\"id\": [1, \"}\"], \"parameters\": {\"x\": 1}, \"name\": \"f\", "
          "\"more\": 5}</tool_call>",
          "call f {\"x\": 1}\n");
}

static void text_after_calls_is_text(void **state) {
    (void)state;
    check("hermes", "<tool_call>{\"name\": \"h\"}</tool_call> done.", "call h {}\ntext  done.\n");
    check("hermes", "a\n<tool_call>{\"name\": \"h\"}</tool_call>\n\ndone.\n",
          "text a\ncall h {}\ntext done.\\n\n");
    check("hermes", "\n\n<tool_call>{\"name\": \"h\"}</tool_call>\n \n", "call h {}\n");
}

static void spelt_markers_are_text_where_a_token_exists(void **state) {
    const char *text = "<tool_call>{\"name\": \"h\"}</tool_call><think>";
    struct reader_fixture f;
    struct buf got;

    (void)state;
    buf_init(&got, 0);
    reader_fixture_init(&f, "hermes", "qwen3", true);
    reader_fixture_begin(&f);
    reader_push(f.reader, str_of(text));
    reader_fixture_end(&f, false);
    reader_fixture_print(&f, &got);
    buf_append_char(&got, '\0');
    assert_string_equal(buf_ptr(&got), "text <tool_call>{\"name\": \"h\"}</tool_call><think>\n");
    answer_fini(&f.answer);
    reader_fixture_fini(&f);
    buf_fini(&got);
}

static void characters_are_whole(void **state) {
    (void)state;
    check("hermes",
          "\xE2\x82\xAC<tool_call>{\"name\": \"g\", \"arguments\": {\"s\": "
          "\"\xF0\x9F\x98\x80\xE2\x82\xAC\"}}</tool_call>",
          "text \xE2\x82\xAC\ncall g {\"s\": \"\xF0\x9F\x98\x80\xE2\x82\xAC\"}\n");
}

static void arguments_are_passed_unchanged(void **state) {
    (void)state;
    check("hermes",
          "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\":1,  \"x\" : [2]}}</tool_call>",
          "call f {\"x\":1,  \"x\" : [2]}\n");
}

static void one_call_at_most_where_calls_are_not_parallel(void **state) {
    struct reader_fixture f;

    (void)state;
    reader_fixture_init(&f, "hermes", NULL, false);
    f.setup.is_single = true;
    reader_fixture_begin(&f);
    reader_push(f.reader, STR("<tool_call>{\"name\": \"h\"}</tool_call>"
                              "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}"));
    reader_fixture_end(&f, false);
    assert_int_equal(f.answer.n, 1);
    answer_fini(&f.answer);
    reader_fixture_fini(&f);
}

/* --- reasoning -------------------------------------------------------------------------------- */

static void cases_90_to_95_reasoning_ends_at_its_marker(void **state) {
    (void)state;
    check_reasoning("deepseek_r1", true, "a</think>b", "reasoning a\ntext b\n");
    check_reasoning("deepseek_r1", true, "a b", "reasoning a b\n");
    check_reasoning("qwen3", false, "b", "text b\n");
    check_reasoning("qwen3", false, "<think>\na\n\nb\n</think>\n\nc\n",
                    "reasoning a\\n\\nb\ntext c\\n\n");
    check_reasoning("qwen3", false, "<think></think>b", "text b\n");
    check_reasoning("qwen3", false, "<think>\n\n</think>\n\nb", "text b\n");
    check_reasoning("qwen3", true, "a</think>b</think>c", "reasoning a\ntext bc\n");
    check_reasoning("qwen3", true, "<think>a</think>b", "reasoning a\ntext b\n");
}

static void other_reasoning_is_read(void **state) {
    (void)state;
    check_reasoning("mistral", false, "[THINK]a[/THINK]b", "reasoning a\ntext b\n");
    check_reasoning("granite", false, "Here is my thought process: a Here is my response: b",
                    "reasoning  a \ntext  b\n");
    check_reasoning("hunyuan", false, "<think>\na\n</think>\n<answer>\nb\n</answer>",
                    "reasoning a\ntext b\n");
    check_reasoning("seed_oss", false, "<seed:think>a</seed:think>b", "reasoning a\ntext b\n");
    check_reasoning("kimi", false,
                    "\xE2\x97\x81think\xE2\x96\xB7"
                    "a\xE2\x97\x81/think\xE2\x96\xB7"
                    "b",
                    "reasoning a\ntext b\n");
}

static void a_token_of_a_call_ends_reasoning(void **state) {
    const char *call = "a <tool_call>{\"name\": \"h\"}</tool_call>b";

    (void)state;
    check_one("hermes", "qwen3", true, true, false, str_of(call),
              "reasoning a \ncall h {}\ntext b\n");
    check_one("hermes", "qwen3", true, true, false,
              STR("a<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"),
              "reasoning a\ncall f {\"x\": 1}\n");
    check_one("hermes", "qwen3", true, true, false, STR("a <tool_call> b</think>c"),
              "reasoning a <tool_call> b\ntext c\n");
    check_one("hermes", "qwen3", false, true, false, STR("a <tool_call>{\"name\": \"h\"}</think>c"),
              "reasoning a <tool_call>{\"name\": \"h\"}\ntext c\n");
}

/* 97: what ends a budget of reasoning is read as its end, in every format. */
static void forced_ends_end_reasoning(void **state) {
    const struct reasoning_format *r;

    (void)state;
    assert_null(reasoning_format_end(NULL).ptr);
    for (uint32_t i = 0; (r = reasoning_format_at(i)); i++)
        for (int has_tokens = 0; has_tokens < 2; has_tokens++) {
            struct buf text;

            buf_init(&text, 0);
            buf_appendf(&text, "a%.*sb", STR_ARG(reasoning_format_end(r)));
            check_one(r->is_harmony ? "openai" : NULL, r->name, has_tokens, true, false,
                      (buf_append_char(&text, '\0'), str_of(buf_ptr(&text))),
                      "reasoning a\ntext b\n");
            buf_fini(&text);
        }
}

static void prompts_show_whether_reasoning_is_open(void **state) {
    static const struct {
        const char *prompt;
        bool is_open;
    } cases[] = {
        {"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n", true},
        {"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", false},
        {"<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", false},
        {"<|im_start|>assistant\n<think>\nI was thinking", true},
        {"<\xEF\xBD\x9C"
         "User\xEF\xBD\x9C>q<\xEF\xBD\x9C"
         "Assistant\xEF\xBD\x9C></think>",
         false},
        {"<think>", true},
        {"q", false},
        {"", false},
    };
    const struct reasoning_format *f = reasoning_format_find(STR("qwen3"), NULL);

    (void)state;
    assert_false(reader_begins_in_reasoning(NULL, STR("<think>")));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(reader_begins_in_reasoning(f, str_of(cases[i].prompt)), cases[i].is_open);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_formats_all_is_text),
        cmocka_unit_test(hermes_call_is_read),
        cmocka_unit_test(two_calls_are_read),
        cmocka_unit_test(missing_arguments_are_an_empty_object),
        cmocka_unit_test(a_marker_that_ends_early_is_text),
        cmocka_unit_test(a_marker_in_prose_is_text),
        cmocka_unit_test(a_stray_marker_before_a_call_is_text),
        cmocka_unit_test(strings_hold_anything),
        cmocka_unit_test(unclosed_calls_are_whole_or_cut),
        cmocka_unit_test(a_surplus_brace_is_of_the_call),
        cmocka_unit_test(unknown_tools_are_calls),
        cmocka_unit_test(arguments_may_come_first),
        cmocka_unit_test(text_after_calls_is_text),
        cmocka_unit_test(spelt_markers_are_text_where_a_token_exists),
        cmocka_unit_test(characters_are_whole),
        cmocka_unit_test(arguments_are_passed_unchanged),
        cmocka_unit_test(one_call_at_most_where_calls_are_not_parallel),
        cmocka_unit_test(cases_90_to_95_reasoning_ends_at_its_marker),
        cmocka_unit_test(other_reasoning_is_read),
        cmocka_unit_test(a_token_of_a_call_ends_reasoning),
        cmocka_unit_test(forced_ends_end_reasoning),
        cmocka_unit_test(prompts_show_whether_reasoning_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
