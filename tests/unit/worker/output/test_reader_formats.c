/* tests/unit/worker/output/test_reader_formats.c - formats whose arguments are JSON, and which
 * format a model has. */
#include <stdio.h>

#include "tests/support/cm.h"
#include "tests/support/reader_check.h"
#include "worker/output/output_internal.h"

#define DS(is) "<\xEF\xBD\x9C" is "\xEF\xBD\x9C>"
#define B      "\xE2\x96\x81"

#define CALLS     DS("tool" B "calls" B "begin")
#define CALLS_END DS("tool" B "calls" B "end")
#define CALL      DS("tool" B "call" B "begin")
#define CALL_END  DS("tool" B "call" B "end")
#define SEP       DS("tool" B "sep")

static void cases_69_and_70_llama3_begins_with_its_calls(void **state) {
    (void)state;
    check("llama3_json",
          "{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\":\"h\",\"parameters\":{}}",
          "call f {\"x\": 1}\ncall h {}\n");
    check("llama3_json", "<|python_tag|>{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
          "call f {\"x\": 1}\n");
    check("llama3_json", "<|python_tag|>{\"name\": \"h\"}", "call h {}\n");
    check("llama3_json", "{\"type\": \"function\", \"name\": \"h\", \"parameters\": {}}",
          "call h {}\n");
    check("llama3_json", "{\"a\": 1}", "text {\"a\": 1}\n");
    check("llama3_json", "\n{\"name\": \"Bob\", \"age\": 3}",
          "text \\n{\"name\": \"Bob\", \"age\": 3}\n");
    check("llama3_json", "{\"name\": \"Bob\"}", "text {\"name\": \"Bob\"}\n");
    check("llama3_json", "So {\"name\": \"f\", \"parameters\": {}}",
          "text So {\"name\": \"f\", \"parameters\": {}}\n");
    check("llama3_json", "{\"name\": \"h\", \"parameters\": {}} done", "call h {}\ntext  done\n");
    check_cut("llama3_json", "{\"name\": \"f\", \"parameters\": {\"x\"", "cut f {\"x\"\n");
}

static void mistral_is_read_old_and_new(void **state) {
    (void)state;
    check("mistral_v3",
          "[TOOL_CALLS] [ {\"name\": \"f\", \"arguments\": {\"x\": 1}}\n, {\"name\": \"h\", "
          "\"arguments\": {}} ]\nbye",
          "call f {\"x\": 1}\ncall h {}\ntext bye\n");
    check("mistral_v3", "a[TOOL_CALLS][{\"name\": \"h\", \"arguments\": {}}]",
          "text a\ncall h {}\n");
    check("mistral_v3", "a[TOOL_CALLS]b", "text a[TOOL_CALLS]b\n");
    check("mistral", "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]h[ARGS]{}",
          "call f {\"x\": 1}\ncall h {}\n");
    check("mistral", "hi[TOOL_CALLS]f{\"x\":1}", "text hi\ncall f {\"x\":1}\n");
    check("mistral", "[TOOL_CALLS]f[ARGS]", "call f {}\n");
    check_cut("mistral", "[TOOL_CALLS]f[ARGS]", "cut f \n");
    check("mistral", "[TOOL_CALLS]f", "text [TOOL_CALLS]f\n");
    check_one("mistral", NULL, false, false, false, STR("[TOOL_CALLS] [ARGS]{}"),
              "text [TOOL_CALLS] [ARGS]{}\n");
    check_one("mistral", NULL, true, false, false, STR("[TOOL_CALLS] [ARGS]{}"),
              "text [TOOL_CALLS] {}\n"); /* a token in the wrong place is dropped */
}

static void deepseek_is_read_fenced_and_bare(void **state) {
    (void)state;
    check("deepseek_v3",
          "a" CALLS CALL "function" SEP "f\n```json\n{\n  \"x\": 1\n}\n```" CALL_END "\n" CALL
          "function" SEP "h\n```json\n{}\n```" CALL_END CALLS_END,
          "text a\ncall f {\\n  \"x\": 1\\n}\ncall h {}\n");
    check("deepseek_v31",
          CALLS CALL "f" SEP "{\"x\": 1}" CALL_END CALL "h" SEP "{}" CALL_END CALLS_END,
          "call f {\"x\": 1}\ncall h {}\n");
    check("deepseek_v31", CALLS CALL "h" SEP CALL_END CALLS_END "b", "call h {}\ntext b\n");
    check("deepseek_v31", CALLS "oops", "text " CALLS "oops\n");
    check_cut("deepseek_v3", CALLS CALL "function" SEP "f\n```json\n{\"x\": 1}\n``",
              "call f {\"x\": 1}\n");
}

static void harmony_calls_have_their_recipient_in_two_places(void **state) {
    (void)state;
    check_one("openai", "openai", true, false, false,
              STR("<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>"
                  "commentary<|message|>On it.<|end|><|start|>assistant<|channel|>"
                  "commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>"),
              "reasoning think\ntext On it.\ncall f {\"x\": 1}\n");
    check_one("openai", "openai", false, false, false,
              STR(" to=functions.f<|channel|>commentary json<|message|>{\"x\": 1} "),
              "call f {\"x\": 1}\n");
    check_one("openai", "openai", true, false, false,
              STR("<|channel|>commentary to=functions.h<|message|><|call|>"), "call h {}\n");
    check_one("openai", "openai", true, false, true,
              STR("<|channel|>commentary to=functions.f<|message|>{\"x\""), "cut f {\"x\"\n");
    check_one("openai", "openai", true, false, false,
              STR("<|channel|>commentary to=python<|message|>print(1)<|call|>"),
              "call python print(1)\n");
}

static void harmony_channels_are_reasoning_and_text(void **state) {
    (void)state;
    check_one("openai", "openai", true, false, false,
              STR("<|channel|>final<|message|>Hi.<|return|>"), "text Hi.\n");
    check_one("openai", "openai", true, false, true, STR("<|channel|>analysis<|message|>Hm"),
              "reasoning Hm\n");
    check_one("openai", "openai", true, true, false,
              STR("Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi."),
              "reasoning Hm\ntext Hi.\n");
    check_one("openai", NULL, true, false, false, STR("Hello, to=functions.f"),
              "text Hello, to=functions.f\n");
    check_one(NULL, "openai", true, false, false,
              STR("<|channel|>commentary to=functions.f<|message|>{}<|call|>"), "text {}\n");
    check_one("openai", "openai", true, false, true, STR("<|channel|>comment"), "");
    check_one("openai", "openai", true, false, false, STR("<|call|> <|constrain|>json"),
              "text  json\n"); /* a marker where no header is */
}

#define K_SECTION "<|tool_calls_section_begin|>"
#define K_CALL    "<|tool_call_begin|>"
#define K_ARGS    "<|tool_call_argument_begin|>"
#define K_END     "<|tool_call_end|>"
#define K_OVER    "<|tool_calls_section_end|>"

static void cases_76_and_77_kimi_has_ids_and_bare_numbers(void **state) {
    (void)state;
    check("kimi_k2",
          "a" K_SECTION K_CALL "functions.f:0" K_ARGS "{\"x\": 1}" K_END K_CALL
          "functions.h:1" K_ARGS "{}" K_END K_OVER "b",
          "text a\ncall f {\"x\": 1}\ncall h {}\ntext b\n");
    check("kimi_k2", K_SECTION K_CALL "f" K_ARGS "{}" K_END, "call f {}\n");
    check_one("kimi_k2", NULL, true, false, false,
              STR(K_SECTION K_CALL "0" K_ARGS "{}" K_END K_OVER), "text " K_SECTION K_CALL "0{}\n");
}

static void read_calls(struct reader_fixture *f, struct str text) {
    reader_fixture_begin(f);
    reader_fixture_push(f, text, SIZE_MAX);
    reader_fixture_end(f, false);
}

static void ids_are_as_models_expect_them(void **state) {
    struct reader_fixture f;
    char id[ANSWER_ID_MAX];

    (void)state;
    reader_fixture_init(&f, "kimi_k2", NULL, true);
    f.setup.n_earlier_calls = 5;
    read_calls(&f, STR(K_CALL "functions.f:3" K_ARGS "{}" K_END K_CALL "g" K_ARGS "{}" K_END));
    assert_string_equal(f.answer.part[0].id, "functions.f:3");
    assert_string_equal(f.answer.part[1].id, "functions.g:6");
    answer_fini(&f.answer);
    read_calls(
        &f, STR(K_CALL "functions.f:3" K_ARGS "{}" K_END K_CALL "functions.f:3" K_ARGS "{}" K_END));
    assert_string_equal(f.answer.part[0].id, "functions.f:3");
    assert_memory_equal(f.answer.part[1].id, "call_", 5);
    answer_fini(&f.answer);
    reader_fixture_fini(&f);

    reader_fixture_init(&f, "mistral", NULL, true);
    read_calls(&f, STR("[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}"));
    assert_int_equal(strlen(f.answer.part[0].id), 9);
    assert_int_equal(strspn(f.answer.part[0].id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"
                                                 "WXYZ0123456789"),
                     9);
    assert_string_not_equal(f.answer.part[0].id, f.answer.part[1].id);
    answer_fini(&f.answer);
    reader_fixture_fini(&f);

    reader_fixture_init(&f, "hermes", NULL, true);
    read_calls(&f, STR("<tool_call>{\"name\": \"h\"}</tool_call>"));
    strcpy(id, f.answer.part[0].id);
    answer_fini(&f.answer);
    assert_int_equal(strlen(id), 29);
    assert_memory_equal(id, "call_", 5);
    read_calls(&f, STR("<tool_call>{\"name\": \"h\"}</tool_call>"));
    assert_string_equal(f.answer.part[0].id, id); /* of the seed */
    answer_fini(&f.answer);
    reader_fixture_fini(&f);
}

static void a_bare_number_is_the_only_tool(void **state) {
    struct reader_fixture f;
    struct json *one;

    (void)state;
    reader_fixture_init(&f, "kimi_k2", NULL, true);
    assert_int_equal(json_parse(&one,
                                STR("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"),
                                NULL, NULL),
                     ST_OK);
    f.setup.tools = one;
    read_calls(&f, STR(K_SECTION K_CALL "0" K_ARGS "{}" K_END K_OVER));
    assert_int_equal(f.answer.n, 1);
    assert_true(str_eq(buf_str(&f.answer.part[0].name), STR("f")));
    assert_string_equal(f.answer.part[0].id, "functions.f:0");
    answer_fini(&f.answer);
    json_destroy(one);
    reader_fixture_fini(&f);
}

static void lists_of_calls_are_read(void **state) {
    static const char *const marks[][3] = {{"granite", "<tool_call>", ""},
                                           {"granite", "<|tool_call|>", ""},
                                           {"hunyuan", "<tool_calls>", "</tool_calls>"},
                                           {"phi4", "functools", ""}};
    char text[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        snprintf(text, sizeof(text),
                 "%s [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"h\"}]%s\nbye",
                 marks[i][1], marks[i][2]);
        check(marks[i][0], text, "call f {\"x\": 1}\ncall h {}\ntext bye\n");
    }
    check("granite", "<tool_call>[1]", "text <tool_call>[1]\n");
    check("granite-20b-fc", "<function_call> {\"name\": \"h\"}\n<function_call> {\"name\": \"h\"}",
          "call h {}\ncall h {}\n");
}

/* --- which format ----------------------------------------------------------------------------- */

static bool find_in_list(const void *arg, struct str text, uint32_t *id) {
    *id = 0;
    return arg && str_find(str_of(arg), text) >= 0;
}

static void formats_are_known_by_their_signs(void **state) {
    static const struct {
        const char *chat_template, *vocabulary, *calls, *reasoning;
    } cases[] = {
        {"{{ '<tool_call>' }}", NULL, "hermes", "none"},
        {"<tool_call> <think></think>", NULL, "hermes", "deepseek_r1"},
        {"<tool_call>\n<function=f><parameter=x>", NULL, "qwen3_coder", "none"},
        {"<seed:tool_call><function=f><parameter=x><seed:think>", NULL, "seed_oss", "seed_oss"},
        {"<tool_call>f\n<arg_key>", NULL, "glm45", "none"},
        {"<tool_call>f<arg_key>k</arg_key><arg_value>", NULL, "glm47", "none"},
        {"<|start|><|channel|>analysis", NULL, "openai", "openai_gptoss"},
        {"x", "<|tool_calls_section_begin|> <think> </think>", "kimi_k2", "deepseek_r1"},
        {"[TOOL_CALLS]", "[TOOL_CALLS][ARGS][THINK]", "mistral", "mistral"},
        {"[TOOL_CALLS]", "[TOOL_CALLS]", "mistral_v3", "none"},
        {CALLS "```json", NULL, "deepseek_v3", "none"},
        {CALLS, NULL, "deepseek_v31", "none"},
        {"<\xEF\xBD\x9C"
         "DSML\xEF\xBD\x9C"
         "function_calls>",
         NULL, "deepseek_v32", "none"},
        {"<\xEF\xBD\x9C"
         "DSML\xEF\xBD\x9C"
         "tool_calls>",
         NULL, "deepseek_v4", "none"},
        {"<minimax:tool_call>", NULL, "minimax_m2", "none"},
        {"x", "<|python_tag|>", "llama3_json", "none"},
        {"x", "<|python_tag|><|python_start|>", "llama4_pythonic", "none"},
        {"<|start_of_role|><|tool_call|>", NULL, "granite", "none"},
        {"<|start_of_role|><tool_call>", NULL, "hermes", "none"},
        {"<tool_calls><think><answer></think>", NULL, "hunyuan_a13b", "hunyuan_a13b"},
        {"<|tool_call><|channel>", NULL, "gemma4", "gemma4"},
        {"Here is my thought process:", NULL, "none", "granite"},
        {"{{ messages }}", NULL, "none", "none"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct output_model m = {str_of(cases[i].chat_template), cases[i].vocabulary, find_in_list};

        assert_string_equal(call_format_name(call_format_detect(&m)), cases[i].calls);
        assert_string_equal(reasoning_format_name(reasoning_format_detect(&m)), cases[i].reasoning);
    }
}

static void names_of_engines_are_known(void **state) {
    static const char *const names[][2] = {{"hermes", "hermes"},         {"qwen25", "hermes"},
                                           {"qwen3_xml", "qwen3_coder"}, {"llama3", "llama3_json"},
                                           {"gpt-oss", "openai"},        {"Granite", "granite"}};
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_string_equal(call_format_name(call_format_find(str_of(names[i][0]), NULL)),
                            names[i][1]);
    assert_null(call_format_find(STR("herme"), &err));
    assert_non_null(strstr(err.message, "'herme'"));
    assert_non_null(strstr(err.message, ", hermes"));
    assert_string_equal(reasoning_format_name(reasoning_format_find(STR("glm45"), NULL)),
                        "deepseek_r1");
    assert_null(reasoning_format_find(STR("x"), &err));
}

/* No two rows have a name in common, and each is found by its own. */
static void rows_have_names_of_their_own(void **state) {
    const struct call_format *c;
    const struct reasoning_format *r;

    (void)state;
    for (uint32_t i = 0; (c = call_format_at(i)); i++)
        assert_ptr_equal(call_format_find(str_of(c->name), NULL), c);
    for (uint32_t i = 0; (r = reasoning_format_at(i)); i++)
        assert_ptr_equal(reasoning_format_find(str_of(r->name), NULL), r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_69_and_70_llama3_begins_with_its_calls),
        cmocka_unit_test(mistral_is_read_old_and_new),
        cmocka_unit_test(deepseek_is_read_fenced_and_bare),
        cmocka_unit_test(harmony_calls_have_their_recipient_in_two_places),
        cmocka_unit_test(harmony_channels_are_reasoning_and_text),
        cmocka_unit_test(cases_76_and_77_kimi_has_ids_and_bare_numbers),
        cmocka_unit_test(ids_are_as_models_expect_them),
        cmocka_unit_test(a_bare_number_is_the_only_tool),
        cmocka_unit_test(lists_of_calls_are_read),
        cmocka_unit_test(formats_are_known_by_their_signs),
        cmocka_unit_test(names_of_engines_are_known),
        cmocka_unit_test(rows_have_names_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
