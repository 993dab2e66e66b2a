/* worker/output/output_format.c - the table of formats, in the order in which they are looked for.
 *
 * Names are those of engines' parsers. A format whose signs another one has too stands before
 * it. */
#include "worker/output/output_format.h"

#include "worker/output/output_internal.h"

#define TEMPLATE(text)                                                                             \
    { SIGN_TEMPLATE, text }
#define VOCABULARY(text)                                                                           \
    { SIGN_VOCABULARY, text }
#define EITHER(text)                                                                               \
    { SIGN_EITHER, text }

#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML\xEF\xBD\x9C" /* full-width bars */
#define DEEPSEEK(is) "<\xEF\xBD\x9C" is "\xEF\xBD\x9C>"
#define BLANK        "\xE2\x96\x81"

#define DEEPSEEK_TOKENS                                                                            \
    {                                                                                              \
        DEEPSEEK("tool" BLANK "calls" BLANK "begin"), DEEPSEEK("tool" BLANK "calls" BLANK "end"),  \
            DEEPSEEK("tool" BLANK "call" BLANK "begin"),                                           \
            DEEPSEEK("tool" BLANK "call" BLANK "end"), DEEPSEEK("tool" BLANK "sep")                \
    }

#define QWEN_XML_BODY(style, newline)                                                              \
    .body = BODY_NAMED, .arguments = style, .arguments_end = "</function>",                        \
    .spelling = {.key = "<parameter=",                                                             \
                 .text = ">" newline,                                                              \
                 .end = newline "</parameter>\n",                                                  \
                 .has_python = true},                                                              \
    .before = "\n", .name_after = ">\n", .between = "\n", .also = {"<function=", STEP_BODY}

#define DSML_BODY                                                                                  \
    .body = BODY_NAMED, .arguments = "deepseek_xml", .arguments_end = "</" DSML "invoke>",         \
    .spelling = {.key = "<" DSML "parameter name=\"",                                              \
                 .text = "\" string=\"true\">",                                                    \
                 .json = "\" string=\"false\">",                                                   \
                 .end = "</" DSML "parameter>\n"},                                                 \
    .before = "\n\n", .open = "<" DSML "invoke name=\"", .name_after = "\">\n", .between = "\n",   \
    .tokens = {DSML}

static const struct call_format call_formats[] = {
    {.name = "openai",
     .aliases = "gpt-oss gpt_oss harmony",
     .signs = {TEMPLATE("<|channel|>")},
     .body = BODY_HARMONY,
     .open = " to=", /* of two places for it the one that templates print */
     .name_before = "functions.",
     .name_after = "<|channel|>commentary json<|message|>",
     .tokens = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>",
                "<|call|>"}},
    {.name = "kimi_k2",
     .aliases = "kimi-k2",
     .signs = {EITHER("<|tool_calls_section_begin|>")},
     .body = BODY_NAMED,
     .ids = IDS_KIMI,
     .section = "<|tool_calls_section_begin|>",
     .open = "<|tool_call_begin|>",
     .name_before = "functions.",
     .name_after = "<|tool_call_argument_begin|>",
     .close = "<|tool_call_end|>",
     .section_end = "<|tool_calls_section_end|>",
     .tokens = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_end|>", "<|tool_call_argument_begin|>"}},
    {.name = "minimax_m2",
     .aliases = "minimax-m2 minimax",
     .signs = {EITHER("<minimax:tool_call>")},
     .body = BODY_NAMED,
     .arguments = "minimax_xml",
     .arguments_end = "</invoke>",
     .spelling = {.key = "<parameter name=\"", .text = "\">", .end = "</parameter>\n"},
     .before = "\n",
     .section = "<minimax:tool_call>\n",
     .open = "<invoke name=\"",
     .name_after = "\">\n",
     .between = "\n",
     .section_end = "\n</minimax:tool_call>",
     .tokens = {"<minimax:tool_call>", "</minimax:tool_call>"}},
    {.name = "mistral",
     .aliases = "mistral_v11 mistral-v11",
     .signs = {EITHER("[TOOL_CALLS]"), EITHER("[ARGS]")},
     .body = BODY_NAMED,
     .ids = IDS_MISTRAL,
     .open = "[TOOL_CALLS]",
     .name_after = "[ARGS]",
     .tokens = {"[TOOL_CALLS]", "[ARGS]"}},
    {.name = "mistral_v3",
     .aliases = "mistral-v3 mistral_v7",
     .signs = {EITHER("[TOOL_CALLS]")},
     .body = BODY_OBJECT,
     .ids = IDS_MISTRAL,
     .section = "[TOOL_CALLS] [",
     .between = ", ",
     .section_end = "]",
     .is_list = true,
     .tokens = {"[TOOL_CALLS]"}},
    {.name = "deepseek_v4",
     .aliases = "deepseekv4 deepseek-v4",
     .signs = {TEMPLATE(DSML), TEMPLATE("<" DSML "tool_calls>")},
     .section = "<" DSML "tool_calls>\n",
     .section_end = "\n</" DSML "tool_calls>",
     DSML_BODY},
    {.name = "deepseek_v32",
     .aliases = "deepseekv32 deepseek-v32",
     .signs = {TEMPLATE(DSML)},
     .section = "<" DSML "function_calls>\n",
     .section_end = "\n</" DSML "function_calls>",
     DSML_BODY},
    {.name = "deepseek_v3",
     .aliases = "deepseekv3 deepseek-v3 deepseek_r1 deepseek",
     .signs = {EITHER(DEEPSEEK("tool" BLANK "calls" BLANK "begin")), TEMPLATE("```json")},
     .body = BODY_NAMED,
     .section = DEEPSEEK("tool" BLANK "calls" BLANK "begin"),
     .open = DEEPSEEK("tool" BLANK "call" BLANK "begin") "function" DEEPSEEK("tool" BLANK "sep"),
     .name_after = "\n```json\n",
     .close = "\n```" DEEPSEEK("tool" BLANK "call" BLANK "end"),
     .between = "\n",
     .section_end = DEEPSEEK("tool" BLANK "calls" BLANK "end"),
     .tokens = DEEPSEEK_TOKENS},
    {.name = "deepseek_v31",
     .aliases = "deepseekv31 deepseek-v31",
     .signs = {EITHER(DEEPSEEK("tool" BLANK "calls" BLANK "begin"))},
     .body = BODY_NAMED,
     .section = DEEPSEEK("tool" BLANK "calls" BLANK "begin"),
     .open = DEEPSEEK("tool" BLANK "call" BLANK "begin"),
     .name_after = DEEPSEEK("tool" BLANK "sep"),
     .close = DEEPSEEK("tool" BLANK "call" BLANK "end"),
     .section_end = DEEPSEEK("tool" BLANK "calls" BLANK "end"),
     .tokens = DEEPSEEK_TOKENS},
    {.name = "glm47",
     .aliases = "glm-4.7 glm-5",
     .signs = {TEMPLATE("<arg_key>"), TEMPLATE("</arg_key><arg_value>")},
     .body = BODY_NAMED,
     .arguments = "glm_xml",
     .arguments_end = "</tool_call>",
     .spelling = {.key = "<arg_key>", .text = "</arg_key><arg_value>", .end = "</arg_value>"},
     .open = "<tool_call>",
     .tokens = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                "</arg_value>"}},
    {.name = "glm45",
     .aliases = "glm glm-4.5",
     .signs = {TEMPLATE("<arg_key>")},
     .body = BODY_NAMED,
     .arguments = "glm_xml",
     .arguments_end = "</tool_call>",
     .spelling = {.key = "<arg_key>", .text = "</arg_key>\n<arg_value>", .end = "</arg_value>\n"},
     .before = "\n",
     .open = "<tool_call>",
     .name_after = "\n",
     .between = "\n",
     .tokens = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                "</arg_value>"}},
    {.name = "seed_oss",
     .aliases = "seed-oss",
     .signs = {EITHER("<seed:tool_call>")},
     .open = "<seed:tool_call>\n<function=",
     .close = "\n</seed:tool_call>",
     .tokens = {"<seed:tool_call>", "</seed:tool_call>"},
     QWEN_XML_BODY("seed_xml", "")},
    {.name = "qwen3_coder",
     .aliases = "qwen3_xml qwen3-coder nemotron_v3 step3p5 granite4_2",
     .signs = {TEMPLATE("<function="), TEMPLATE("<parameter=")},
     .open = "<tool_call>\n<function=",
     .close = "\n</tool_call>",
     .tokens = {"<tool_call>", "</tool_call>"},
     QWEN_XML_BODY("qwen_xml", "\n")},
    {.name = "llama4_pythonic",
     .aliases = "llama4",
     .signs = {EITHER("<|python_start|>")},
     .body = BODY_NAMED,
     .arguments = "pythonic",
     .spelling = {.text = "=", .end = ", ", .is_literal = true},
     .section = "<|python_start|>[",
     .name_after = "(",
     .close = ")",
     .between = ", ",
     .section_end = "]<|python_end|>",
     .is_list = true,
     .is_bare = true,
     .tokens = {"<|python_start|>", "<|python_end|>"}},
    {.name = "llama3_json",
     .aliases = "llama3 llama4_json",
     .signs = {EITHER("<|python_tag|>")},
     .body = BODY_OBJECT,
     .key = "parameters",
     .between = "; ",
     .is_list = true,
     .is_bare = true,
     .also = {"<|python_tag|>", STEP_BODY},
     .tokens = {"<|python_tag|>"}},
    {.name = "pythonic",
     .aliases = "llama3_pythonic",
     .body = BODY_NAMED,
     .arguments = "pythonic",
     .spelling = {.text = "=", .end = ", ", .is_literal = true},
     .section = "[",
     .name_after = "(",
     .close = ")",
     .between = ", ",
     .section_end = "]",
     .is_list = true,
     .is_bare = true},
    {.name = "gemma4",
     .aliases = "gemma",
     .signs = {EITHER("<|tool_call>")},
     .body = BODY_NAMED,
     .arguments = "gemma",
     .spelling = {.quote = "<|\"|>"},
     .open = "<|tool_call>call:",
     .close = "<tool_call|>",
     .tokens = {"<|tool_call>", "<tool_call|>", "<|\"|>"}},
    {.name = "functiongemma",
     .aliases = "function_gemma",
     .signs = {EITHER("<start_function_call>")},
     .body = BODY_NAMED,
     .arguments = "functiongemma",
     .spelling = {.quote = "<escape>"},
     .open = "<start_function_call>call:",
     .close = "<end_function_call>",
     .tokens = {"<start_function_call>", "<end_function_call>", "<escape>"}},
    {.name = "granite",
     .aliases = "granite3",
     .signs = {TEMPLATE("<|start_of_role|>"), EITHER("<|tool_call|>")},
     .body = BODY_OBJECT,
     .section = "<tool_call>[",
     .between = ", ",
     .section_end = "]",
     .is_list = true,
     .also = {"<|tool_call|>", STEP_SECTION},
     .tokens = {"<|tool_call|>"}},
    {.name = "granite-20b-fc",
     .aliases = "granite_20b_fc",
     .signs = {TEMPLATE("<function_call>")},
     .body = BODY_OBJECT,
     .open = "<function_call> ",
     .between = "\n"},
    {.name = "hunyuan_a13b",
     .aliases = "hunyuan jamba",
     .signs = {EITHER("<tool_calls>")},
     .body = BODY_OBJECT,
     .section = "<tool_calls>[",
     .between = ", ",
     .section_end = "]</tool_calls>",
     .is_list = true,
     .tokens = {"<tool_calls>", "</tool_calls>"}},
    {.name = "phi4_mini_json",
     .aliases = "phi4",
     .signs = {TEMPLATE("functools[")},
     .body = BODY_OBJECT,
     .section = "functools[",
     .between = ", ",
     .section_end = "]",
     .is_list = true},
    {.name = "hermes",
     .aliases = "qwen qwen25 qwen3 granite4",
     .signs = {EITHER("<tool_call>")},
     .body = BODY_OBJECT,
     .before = "\n",
     .open = "<tool_call>\n",
     .close = "\n</tool_call>",
     .between = "\n",
     .tokens = {"<tool_call>", "</tool_call>"}},
};

static const struct reasoning_format reasoning_formats[] = {
    {.name = "openai_gptoss",
     .aliases = "gpt-oss gpt_oss openai harmony",
     .signs = {TEMPLATE("<|channel|>")},
     .begin = "<|channel|>analysis<|message|>",
     .end = "<|end|>",
     .next = "<|start|>assistant",
     .forced = "<|end|><|start|>assistant<|channel|>final<|message|>",
     .is_harmony = true},
    {.name = "mistral",
     .aliases = "magistral",
     .signs = {EITHER("[THINK]")},
     .begin = "[THINK]",
     .end = "[/THINK]"},
    {.name = "gemma4",
     .aliases = "gemma",
     .signs = {EITHER("<|channel>")},
     .begin = "<|channel>thought\n",
     .end = "<channel|>"},
    {.name = "seed_oss",
     .aliases = "seed-oss",
     .signs = {EITHER("<seed:think>")},
     .begin = "<seed:think>",
     .end = "</seed:think>"},
    {.name = "granite",
     .aliases = "granite3",
     .signs = {TEMPLATE("Here is my thought process:")},
     .begin = "Here is my thought process:",
     .end = "Here is my response:"},
    {.name = "kimi",
     .aliases = "kimi-vl",
     .signs = {EITHER("\xE2\x97\x81think\xE2\x96\xB7")},
     .begin = "\xE2\x97\x81think\xE2\x96\xB7",
     .end = "\xE2\x97\x81/think\xE2\x96\xB7"},
    {.name = "hunyuan_a13b",
     .aliases = "hunyuan",
     .signs = {TEMPLATE("<think>"), TEMPLATE("<answer>")},
     .begin = "<think>",
     .end = "</think>",
     .forced = "\n</think>\n<answer>\n",
     .answer = "<answer>",
     .answer_end = "</answer>"},
    {.name = "deepseek_r1",
     .aliases = "deepseek-r1 deepseek_v3 deepseek-v3 deepseek_v31 deepseek_v32 deepseek_v4 qwen3 "
                "qwen3-thinking qwq glm glm45 glm47 kimi_k2 minimax_m2 nemotron_v3 step3p5 think",
     .signs = {EITHER("</think>")},
     .begin = "<think>",
     .end = "</think>",
     .forced = "\n</think>\n\n"},
};

/* --- names ------------------------------------------------------------------------------------ */

static bool is_among(struct str name, const char *aliases) {
    for (struct str rest = str_of(aliases); rest.len > 0;) {
        const char *blank = memchr(rest.ptr, ' ', rest.len);
        size_t len = blank ? (size_t)(blank - rest.ptr) : rest.len;

        if (str_eq_nocase(name, (struct str){rest.ptr, len})) return true;
        len += blank != NULL;
        rest = (struct str){rest.ptr + len, rest.len - len};
    }
    return false;
}

static void refuse(struct error *err, struct str name, const char *what, struct buf *names) {
    error_set(err, ST_INVALID, "there is no %s format '%.*s': use auto, none%.*s", what,
              (int)MIN(name.len, 40u), name.ptr, STR_ARG(buf_str(names)));
    buf_fini(names);
}

const struct call_format *call_format_find(struct str name, struct error *err) {
    struct buf names;

    for (size_t i = 0; i < ARRAY_LEN(call_formats); i++)
        if (str_eq_nocase(name, str_of(call_formats[i].name)) ||
            is_among(name, call_formats[i].aliases))
            return &call_formats[i];
    buf_init(&names, 0);
    for (size_t i = 0; i < ARRAY_LEN(call_formats); i++)
        buf_appendf(&names, ", %s", call_formats[i].name);
    refuse(err, name, "tool call", &names);
    return NULL;
}

const struct reasoning_format *reasoning_format_find(struct str name, struct error *err) {
    struct buf names;

    for (size_t i = 0; i < ARRAY_LEN(reasoning_formats); i++)
        if (str_eq_nocase(name, str_of(reasoning_formats[i].name)) ||
            is_among(name, reasoning_formats[i].aliases))
            return &reasoning_formats[i];
    buf_init(&names, 0);
    for (size_t i = 0; i < ARRAY_LEN(reasoning_formats); i++)
        buf_appendf(&names, ", %s", reasoning_formats[i].name);
    refuse(err, name, "reasoning", &names);
    return NULL;
}

const char *call_format_name(const struct call_format *f) {
    return f ? f->name : "none";
}

const char *reasoning_format_name(const struct reasoning_format *f) {
    return f ? f->name : "none";
}

struct str reasoning_format_open(const struct reasoning_format *f) {
    return str_of(f->begin);
}

struct str reasoning_format_close(const struct reasoning_format *f) {
    return str_of(f->end);
}

struct str reasoning_format_end(const struct reasoning_format *f) {
    if (!f) return STR_NULL;
    return str_of(f->forced ? f->forced : f->end);
}

const struct call_format *call_format_at(uint32_t i) {
    return i < ARRAY_LEN(call_formats) ? &call_formats[i] : NULL;
}

const struct reasoning_format *reasoning_format_at(uint32_t i) {
    return i < ARRAY_LEN(reasoning_formats) ? &reasoning_formats[i] : NULL;
}

/* --- signs ------------------------------------------------------------------------------------ */

bool output_model_find(const struct output_model *m, const char *text, uint32_t *id) {
    return m && m->find_token && m->find_token(m->arg, str_of(text), id);
}

bool call_format_begin_token(const struct call_format *f, const struct output_model *m,
                             uint32_t *id) {
    struct str begin = str_of(f->section ? f->section : f->open ? f->open : "");

    for (uint32_t i = 0; i < FORMAT_MAX_TOKENS && f->tokens[i]; i++)
        if (str_starts(begin, str_of(f->tokens[i])) && output_model_find(m, f->tokens[i], id))
            return true;
    return false;
}

static bool has_sign(const struct output_model *m, const struct sign *s) {
    uint32_t id;

    if ((s->place == SIGN_TEMPLATE || s->place == SIGN_EITHER) &&
        str_find(m->chat_template, str_of(s->text)) >= 0)
        return true;
    return s->place != SIGN_TEMPLATE && output_model_find(m, s->text, &id);
}

static bool has_signs(const struct output_model *m, const struct sign *signs) {
    for (uint32_t i = 0; i < FORMAT_MAX_SIGNS && signs[i].text; i++)
        if (!has_sign(m, &signs[i])) return false;
    return signs[0].text != NULL;
}

const struct call_format *call_format_detect(const struct output_model *m) {
    for (size_t i = 0; i < ARRAY_LEN(call_formats); i++)
        if (has_signs(m, call_formats[i].signs)) return &call_formats[i];
    return NULL;
}

const struct reasoning_format *reasoning_format_detect(const struct output_model *m) {
    for (size_t i = 0; i < ARRAY_LEN(reasoning_formats); i++)
        if (has_signs(m, reasoning_formats[i].signs)) return &reasoning_formats[i];
    return NULL;
}
