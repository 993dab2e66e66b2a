/* tests/unit/worker/output/test_reader_styles.c - formats whose arguments are no JSON. */
#include <stdio.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/reader_check.h"
#include "worker/output/reader_internal.h"

static void cases_65_to_67_qwen_values_are_raw(void **state) {
    (void)state;
    check("qwen3_coder",
          "hi\n<tool_call>\n<function=g>\n<parameter=s>\n\nline1\nline2\n\n</parameter>\n</"
          "function>\n"
          "</tool_call>",
          "text hi\ncall g {\"s\": \"\\nline1\\nline2\\n\"}\n");
    check("qwen3_coder",
          "<tool_call>\n<function=g>\n<parameter=s>\nline1\nline2\n</parameter>\n</function>\n"
          "</tool_call>\n<tool_call>\n<function=f>\n<parameter=x>\n5\n</parameter>\n</function>\n"
          "</tool_call>",
          "call g {\"s\": \"line1\\nline2\"}\ncall f {\"x\": 5}\n");
    check("qwen3_coder",
          "<tool_call><function=g><parameter=s>a</parameter> "
          "b\n</parameter>\n</function></tool_call>",
          "call g {\"s\": \"a</parameter> b\"}\n");
    check("qwen3_coder",
          "<tool_call>\n<function=f>\n<parameter=x>\nabc\n</parameter>\n</function>\n</tool_call>.",
          "call f {\"x\": \"abc\"}\ntext .\n");
    check("qwen3_coder", "<tool_call>\n<function=h>\n</function>\n</tool_call>", "call h {}\n");
}

static void qwen_calls_may_lack_markers(void **state) {
    (void)state;
    check("qwen3_coder", "<function=f>\n<parameter=x>\n5\n</parameter>\n</function>",
          "call f {\"x\": 5}\n");
    check("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n5\n</parameter>\n",
          "call f {\"x\": 5}\n");
    check("qwen3_coder", "<function=f<tool_call>\n<function=h>\n</function>\n</tool_call>",
          "text <function=f\ncall h {}\n");
    check("qwen3_coder", "<tool_call> is a marker", "text <tool_call> is a marker\n");
    check("qwen3_coder", "<function=f> is one too", "text <function=f> is one too\n");
    check_cut("qwen3_coder", "<tool_call>\n<function=g>\n<parameter=s>\nab",
              "cut g {\"s\": \"ab\n");
}

static void pythonic_calls_are_read(void **state) {
    (void)state;
    check("pythonic", "[f(x=1), g(s='a, b)')]", "call f {\"x\": 1}\ncall g {\"s\": \"a, b)\"}\n");
    check("pythonic", "[h()]", "call h {}\n");
    check("pythonic", "[f(x=1+1)]", "text [f(x=1+1)]\n");
    check("pythonic", "[f(x=[1, {'a': None}], y=True)]",
          "call f {\"x\": [1, {\"a\": null}], \"y\": true}\n");
    check("pythonic", "see [1](url)", "text see [1](url)\n");
    check("pythonic", "[1](url)", "text [1](url)\n");
    check("llama4_pythonic", "a<|python_start|>[f(x=1), h()]<|python_end|>b",
          "text a\ncall f {\"x\": 1}\ncall h {}\ntext b\n");
    check("llama4_pythonic", "[f(x=1)]", "call f {\"x\": 1}\n");
}

static void glm_is_read_with_and_without_newlines(void **state) {
    (void)state;
    check("glm45",
          "a\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>5</arg_value>\n</tool_call>\n"
          "<tool_call>h\n</tool_call>",
          "text a\ncall f {\"x\": 5}\ncall h {}\n");
    check("glm47",
          "<tool_call>g<arg_key>s</arg_key><arg_value>a b</arg_value></tool_call><tool_call>h"
          "</tool_call>",
          "call g {\"s\": \"a b\"}\ncall h {}\n");
    check("glm45", "<tool_call>hello world", "text <tool_call>hello world\n");
    check_one("glm45", NULL, false, false, false, STR("<tool_call>f <tool_call>h\n</tool_call>"),
              "text <tool_call>f \ncall h {}\n");
    check_one("glm45", NULL, true, false, false, STR("<tool_call>f <tool_call>h\n</tool_call>"),
              "call f {}\ncall h {}\n"); /* a token is certain */
}

#define BAR                                                                                        \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML\xEF\xBD\x9C"

static void minimax_and_deepseek_are_read(void **state) {
    static const char *const quotes[] = {"\"f\"", "'f'", "f"};
    char text[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(quotes); i++) {
        snprintf(text, sizeof(text),
                 "<minimax:tool_call>\n<invoke name=%s>\n<parameter name=\"x\">5</parameter>\n"
                 "</invoke>\n</minimax:tool_call>",
                 quotes[i]);
        check("minimax_m2", text, "call f {\"x\": 5}\n");
    }
    check("deepseek_v32",
          "a\n\n<" BAR "function_calls>\n<" BAR "invoke name=\"g\">\n<" BAR
          "parameter name=\"s\" string=\"true\">5</" BAR "parameter>\n</" BAR "invoke>\n<" BAR
          "invoke name=\"f\">\n<" BAR "parameter name=\"x\" string=\"false\">5</" BAR
          "parameter>\n</" BAR "invoke>\n</" BAR "function_calls>b",
          "text a\ncall g {\"s\": \"5\"}\ncall f {\"x\": 5}\ntext b\n");
    check("deepseek_v4",
          "<" BAR "tool_calls>\n<" BAR "invoke name=\"h\">\n</" BAR "invoke>\n</" BAR "tool_calls>",
          "call h {}\n");
}

static void gemma_strings_have_delimiters(void **state) {
    (void)state;
    check("gemma4", "<|tool_call>call:g{s:<|\"|>a, \"b\"}<|\"|>}<tool_call|>",
          "call g {\"s\": \"a, \\\"b\\\"}\"}\n");
    check("gemma4", "<|tool_call>call:f{x:42}<tool_call|><|tool_call>call:h{}<tool_call|>",
          "call f {\"x\": 42}\ncall h {}\n");
    check("gemma4", "<|tool_call>call:g{x:[1]\xF0\x9F\x98\x80}",
          "cut g {\"x\": [1]\ntext \xF0\x9F\x98\x80}\n");
    check("functiongemma", "<start_function_call>call:g{s:<escape>a<escape>}<end_function_call>",
          "call g {\"s\": \"a\"}\n");
}

/* A try that never ends is text once it is too long, at one place however it is cut. */
static void held_text_is_bounded(void **state) {
    static const char *const starts[][2] = {
        {"pythonic", "[g(s='"},
        {"hermes", "<tool_call>{\"arguments\": {\"x\": \""},
        {"llama3_json", "{\"parameters\": {\"x\": \""},
        {"glm45", "<tool_call>f\n"},
    };
    size_t n = READER_HELD_MAX + 100;
    char *text = mem_alloc(n + 1);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        size_t start = strlen(starts[i][1]);

        memset(text, i == 3 ? ' ' : 'a', n);
        memcpy(text, starts[i][1], start);
        memcpy(text + n - 3, "\xE2\x82\xAC", 3);
        for (size_t piece = 1; piece <= n; piece += piece == 1 ? 99 : n / 2) {
            struct reader_fixture f;

            reader_fixture_init(&f, starts[i][0], NULL, false);
            reader_fixture_begin(&f);
            reader_fixture_push(&f, (struct str){text, n}, piece);
            assert_true(buf_len(&f.reader->held) == 0);
            reader_fixture_end(&f, false);
            assert_int_equal(f.answer.n, 1);
            assert_true(str_eq(buf_str(&f.answer.part[0].text), (struct str){text, n}));
            answer_fini(&f.answer);
            reader_fixture_fini(&f);
        }
    }
    mem_free(text);
}

/* 85: each byte of a long argument is read once. */
static void long_arguments_are_linear(void **state) {
    static const char *const starts[][2] = {
        {"qwen3_coder", "<tool_call>\n<function=g>\n<parameter=s>\n"},
        {"hermes", "<tool_call>{\"name\": \"g\", \"arguments\": {\"s\": \""},
        {"glm45", "<tool_call>g\n<arg_key>s</arg_key><arg_value>"},
    };
    enum { N = 1000000 };
    char *text = mem_alloc(N);

    (void)state;
    memset(text, 'a', N);
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        struct reader_fixture f;

        reader_fixture_init(&f, starts[i][0], NULL, false);
        reader_fixture_begin(&f);
        reader_push(f.reader, str_of(starts[i][1]));
        reader_fixture_push(&f, (struct str){text, N}, 7);
        assert_true(f.reader->n_read <= N + 200);
        assert_true(buf_len(&f.answer.part[0].text) >= N - 100);
        reader_fixture_end(&f, true);
        assert_true(f.answer.part[0].is_cut);
        answer_fini(&f.answer);
        reader_fixture_fini(&f);
    }
    mem_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_65_to_67_qwen_values_are_raw),
        cmocka_unit_test(qwen_calls_may_lack_markers),
        cmocka_unit_test(pythonic_calls_are_read),
        cmocka_unit_test(glm_is_read_with_and_without_newlines),
        cmocka_unit_test(minimax_and_deepseek_are_read),
        cmocka_unit_test(gemma_strings_have_delimiters),
        cmocka_unit_test(held_text_is_bounded),
        cmocka_unit_test(long_arguments_are_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
