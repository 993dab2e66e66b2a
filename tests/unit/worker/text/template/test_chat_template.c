/* tests/unit/worker/text/template/test_chat_template.c - against what the reference Jinja renders,
 * and what a hostile template may not do. The vectors are made by
 * tests/unit/data/make_chat_template_vectors.py. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/template/chat_template.h"
#include "worker/text/template/jinja.h"

static struct json *vectors;

static struct json *parse(const char *text) {
    struct json *root = NULL;
    struct error err = {0};

    if (json_parse(&root, str_of(text), NULL, &err) != ST_OK) fail_msg("%s", err.message);
    return root;
}

static int load_vectors(void **state) {
    char *text = NULL;
    size_t n;

    (void)state;
    if (file_read("tests/unit/data/chat_template_vectors.json", 16 << 20, &text, &n, NULL) !=
        ST_OK) {
        return -1;
    }
    vectors = parse(text);
    mem_free(text);
    return 0;
}

static int drop_vectors(void **state) {
    (void)state;
    json_destroy(vectors);
    return 0;
}

static struct str text_of(const struct json *v, const char *name) {
    struct str s = STR_NULL;

    return json_to_str(json_get(v, name), &s) == ST_OK ? s : STR_NULL;
}

/* A folder with a tokenizer_config.json, as a model has it. */
static struct chat_template *open_with_config(const char *config, const char **fallback) {
    char folder[] = "/tmp/incipit-chat-XXXXXX", path[64];
    struct chat_template *t = NULL;
    struct error err = {0};
    FILE *f;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", folder);
    f = fopen(path, "wb");
    fputs(config, f);
    fclose(f);
    if (chat_template_open(&t, folder, NULL, fallback, &err) != ST_OK) fail_msg("%s", err.message);
    unlink(path);
    rmdir(folder);
    return t;
}

static struct chat_template *template_named(const char *name) {
    struct buf config;
    struct json_writer w;
    struct chat_template *t;
    const char *fallback;
    char *text;

    buf_init(&config, 0);
    json_writer_init(&w, &config);
    json_begin_object(&w);
    json_field_str(&w, "chat_template", text_of(json_get(vectors, "templates"), name));
    json_field_z(&w, "bos_token", "<s>");
    json_put_key(&w, "eos_token");
    json_begin_object(&w);
    json_field_z(&w, "content", "</s>");
    json_end_object(&w);
    json_end_object(&w);
    text = buf_strdup(&config);
    t = open_with_config(text, &fallback);
    assert_null(fallback);
    mem_free(text);
    buf_fini(&config);
    return t;
}

static void check_result(const struct json *c, const char *what, enum status st,
                         const struct buf *out, const struct error *err) {
    struct str expected, raises = text_of(c, "raises");

    if (json_to_str(json_get(c, "expected"), &expected) == ST_OK) {
        if (st != ST_OK) fail_msg("%s: %s", what, err->message);
        if (!str_eq(expected, buf_str(out))) {
            fail_msg("%s\n--- want\n%s\n--- got\n" STR_FMT, what, expected.ptr,
                     STR_ARG(buf_str(out)));
        }
        return;
    }
    if (st == ST_OK) fail_msg("%s: rendered: " STR_FMT, what, STR_ARG(buf_str(out)));
    assert_int_equal(st, ST_INVALID);
    if (raises.len) {
        assert_string_equal(err->message, raises.ptr);
        assert_string_equal(err->param, "messages");
    } else {
        assert_non_null(strstr(err->message, "line "));
    }
}

static void chats_render_as_the_reference_does(void **state) {
    struct chat_template *t = NULL;
    struct str current = STR_NULL;

    (void)state;
    JSON_FOR_EACH(c, json_get(vectors, "chats")) {
        struct str name = text_of(c, "name");
        bool adds = false;
        struct chat_input in = {.messages = json_get(c, "messages"),
                                .tools = json_get(c, "tools"),
                                .kwargs = json_get(c, "kwargs"),
                                .now_s = 1700000000};
        struct error err = {0};
        struct buf out;
        enum status st;

        assert_int_equal(json_to_bool(json_get(c, "add_generation_prompt"), &adds), ST_OK);
        in.add_generation_prompt = adds;
        if (!str_eq(name, current)) {
            chat_template_destroy(t);
            t = template_named(name.ptr);
            current = name;
        }
        buf_init(&out, 0);
        st = chat_template_render(t, &in, &out, &err);
        check_result(c, name.ptr, st, &out, &err);
        buf_fini(&out);
    }
    chat_template_destroy(t);
}

/* Small templates over one context, which goes in as kwargs. */
static void every_corner_is_as_the_reference_has_it(void **state) {
    struct json *messages = parse("[]");

    (void)state;
    JSON_FOR_EACH(c, json_get(vectors, "small")) {
        struct str source = text_of(c, "template");
        struct chat_input in = {
            .messages = messages, .kwargs = json_get(vectors, "context"), .now_s = 1700000000};
        struct chat_template *t = NULL;
        struct error err = {0};
        struct buf out;
        enum status st;

        buf_init(&out, 0);
        st = chat_template_compile(&t, source, &err);
        if (st == ST_OK) st = chat_template_render(t, &in, &out, &err);
        check_result(c, source.ptr, st, &out, &err);
        chat_template_destroy(t);
        buf_fini(&out);
    }
    json_destroy(messages);
}

/* --- what requests hold ------------------------------------------------------------------------*/
static enum status render(struct chat_template *t, const char *messages, struct buf *out,
                          struct error *err) {
    struct json *root = parse(messages);
    struct chat_input in = {.messages = root, .add_generation_prompt = true};
    enum status st;

    buf_clear(out);
    memset(err, 0, sizeof(*err));
    st = chat_template_render(t, &in, out, err);
    json_destroy(root);
    return st;
}

static void assert_renders(struct chat_template *t, const char *messages, const char *want) {
    struct buf out;
    struct error err;

    buf_init(&out, 0);
    if (render(t, messages, &out, &err) != ST_OK) fail_msg("%s", err.message);
    if (!str_eq(buf_str(&out), str_of(want))) {
        fail_msg("want '%s', got '" STR_FMT "'", want, STR_ARG(buf_str(&out)));
    }
    buf_fini(&out);
}

#define CHAT                                                                                       \
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"U\"},"              \
    "{\"role\":\"assistant\",\"content\":\"A\"},{\"role\":\"user\",\"content\":\"V\"}]"

static void built_in_templates_render(void **state) {
    struct chat_template *t = chat_template_builtin("chatml");

    (void)state;
    assert_renders(
        t, "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":null}]",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>assistant\n");
    chat_template_destroy(t);
    t = chat_template_builtin("llama3");
    assert_renders(t, "[{\"role\":\"user\",\"content\":\" Hi \"}]",
                   "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n");
    chat_template_destroy(t);
    t = chat_template_builtin("llama2");
    assert_renders(t, CHAT,
                   "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]");
    chat_template_destroy(t);
    t = chat_template_builtin("mistral");
    assert_renders(t, CHAT, "<s>[INST] S\n\nU[/INST] A</s>[INST] V[/INST]");
    chat_template_destroy(t);
    t = chat_template_builtin("deepseek");
    assert_renders(t, CHAT,
                   "S<\xEF\xBD\x9CUser\xEF\xBD\x9C>U<\xEF\xBD\x9C"
                   "Assistant\xEF\xBD\x9C>A<\xEF\xBD\x9CUser\xEF\xBD\x9C>V<\xEF\xBD\x9C"
                   "Assistant\xEF\xBD\x9C>");
    chat_template_destroy(t);
    t = chat_template_builtin("deepseek-llm");
    assert_renders(t, CHAT, "S\n\nUser: U\n\nAssistant: AUser: V\n\nAssistant:");
    chat_template_destroy(t);
    t = chat_template_builtin("zephyr");
    assert_renders(t, CHAT,
                   "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n"
                   "<|user|>\nV</s>\n<|assistant|>\n");
    chat_template_destroy(t);
    assert_null(chat_template_builtin("other"));
}

static void text_parts_are_joined(void **state) {
    struct chat_template *t = chat_template_builtin("chatml");
    struct buf out;
    struct error err;

    (void)state;
    assert_renders(t,
                   "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                   "{\"type\":\"text\",\"text\":\"b\"}]}]",
                   "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n");
    buf_init(&out, 0);
    assert_int_equal(render(t,
                            "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
                            "\"image_url\":{}}]}]",
                            &out, &err),
                     ST_INVALID);
    assert_non_null(strstr(err.message, "'image_url'"));
    assert_string_equal(err.param, "messages");
    assert_int_equal(render(t, "[{\"content\":\"x\"}]", &out, &err), ST_INVALID);
    assert_int_equal(render(t, "[3]", &out, &err), ST_INVALID);
    assert_int_equal(render(t, "{}", &out, &err), ST_INVALID);
    buf_fini(&out);
    chat_template_destroy(t);
}

static void tool_arguments_become_what_they_spell(void **state) {
    static const char source[] =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
        "{% endfor %}{% endfor %}";
    struct chat_template *t = NULL;

    (void)state;
    assert_int_equal(chat_template_compile(&t, str_of(source), NULL), ST_OK);
    assert_renders(t,
                   "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                   "\"arguments\":\"{\\\"a\\\":[1,\\\"x\\\"]}\"}}]}]",
                   "{\"a\": [1, \"x\"]}");
    assert_renders(t,
                   "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"no "
                   "json\"}},{\"function\":{\"arguments\":3}}]}]",
                   "\"no json\"{}");
    chat_template_destroy(t);
}

/* DeepSeek-V3.1's does so. */
static void call_of_a_custom_tool_is_that_of_a_function(void **state) {
    static const char source[] =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c | tojson }}"
        "{% endfor %}{% endfor %}";
    struct chat_template *t = NULL;

    (void)state;
    assert_int_equal(chat_template_compile(&t, str_of(source), NULL), ST_OK);
    assert_renders(t,
                   "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"custom\","
                   "\"custom\":{\"name\":\"edit\",\"input\":\"+\\\"x\\\"\\n\"}}]}]",
                   "{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"edit\", "
                   "\"arguments\": {\"input\": \"+\\\"x\\\"\\n\"}}}");
    assert_renders(t, "[{\"role\":\"assistant\",\"tool_calls\":[{\"custom\":{}}, 7]}]",
                   "{\"id\": null, \"type\": \"function\", \"function\": {\"name\": null, "
                   "\"arguments\": {\"input\": null}}}7");
    chat_template_destroy(t);
}

static void a_template_that_joins_arguments_to_text_gets_their_text(void **state) {
    static const char source[] =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ m.content is none }}"
        "{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}";
    struct chat_template *t = NULL;
    struct error err = {0};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(chat_template_compile(&t, str_of(source), NULL), ST_OK);
    assert_renders(
        t,
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"arguments\":"
        "\"{\\\"a\\\":1}\"}},{\"function\":{\"arguments\":\"\"}},{\"function\":{}}]}]",
        "True<{\"a\":1}>True<{}>True<{}>");
    assert_int_equal(
        render(
            t,
            "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":{\"a\":1}}}]}]",
            &out, &err),
        ST_INVALID);
    assert_non_null(strstr(err.message, "a string and a mapping"));
    buf_fini(&out);
    chat_template_destroy(t);
}

static void a_folder_without_template_gets_a_built_in_one(void **state) {
    const char *fallback = NULL;
    struct chat_template *t = open_with_config("{}", &fallback);

    (void)state;
    assert_string_equal(fallback, "chatml");
    chat_template_destroy(t);
}

static void a_template_for_tools_is_used_with_tools(void **state) {
    const char *fallback = "none";
    struct chat_template *t = open_with_config(
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"{{ tools[0] }}\"},"
        "{\"name\":\"default\",\"template\":\"yes\"}]}",
        &fallback);
    struct json *messages = parse("[]"), *tools = parse("[\"hammer\"]");
    struct chat_input in = {.messages = messages, .tools = tools};
    struct buf out;

    (void)state;
    assert_null(fallback);
    assert_renders(t, "[]", "yes");
    buf_init(&out, 0);
    assert_int_equal(chat_template_render(t, &in, &out, NULL), ST_OK);
    assert_true(str_eq(buf_str(&out), STR("hammer")));
    buf_fini(&out);
    json_destroy(tools);
    json_destroy(messages);
    chat_template_destroy(t);
}

static void the_demonstration_model_has_its_template(void **state) {
    struct chat_template *t = NULL;
    const char *fallback = "none";
    struct error err = {0};

    (void)state;
    if (chat_template_open(&t, "deploy/demo/model", NULL, &fallback, &err) != ST_OK) {
        fail_msg("%s", err.message);
    }
    assert_null(fallback);
    assert_renders(t, "[{\"role\":\"user\",\"content\":\"Hi\"}]",
                   "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    chat_template_destroy(t);
}

/* Conversations, with tools and without, and the prompts of its training (make_vectors.py). */
static void the_demonstration_model_reads_what_it_was_trained_on(void **state) {
    struct chat_template *t = NULL;
    const char *fallback;
    struct error err = {0};
    struct json *conversations;
    char *file = NULL;
    size_t n, n_with_tools = 0;

    (void)state;
    if (file_read("tests/unit/data/demo_template_vectors.json", 1 << 20, &file, &n, &err) !=
            ST_OK ||
        chat_template_open(&t, "deploy/demo/model", NULL, &fallback, &err) != ST_OK) {
        fail_msg("%s", err.message);
    }
    conversations = parse(file);
    JSON_FOR_EACH(c, conversations) {
        struct chat_input in = {.messages = json_get(c, "messages"),
                                .tools = json_get(c, "tools"),
                                .add_generation_prompt = true};
        struct str want = text_of(c, "text");
        struct buf out;

        buf_init(&out, 0);
        if (chat_template_render(t, &in, &out, &err) != ST_OK) fail_msg("%s", err.message);
        if (!str_eq(want, buf_str(&out))) {
            fail_msg("--- want\n%s\n--- got\n" STR_FMT, want.ptr, STR_ARG(buf_str(&out)));
        }
        n_with_tools += in.tools != NULL;
        buf_fini(&out);
    }
    assert_true(n_with_tools > 0);
    json_destroy(conversations);
    mem_free(file);
    chat_template_destroy(t);
}

/* --- hostile templates -------------------------------------------------------------------------*/
static void hostile_templates_meet_a_limit(void **state) {
    static const char *const sources[] = {
        "{% for a in range(1000000000) %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% "
        "endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{{ 'ab' * 9223372036854775807 }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = [ns.l] %}{% endfor "
        "%}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for a in range(100) %}{% set ns.l = ns.l + ns.l %}{% "
        "endfor %}",
        "{% set ns = namespace(d={}) %}{% for a in range(1000000) %}{% set ns.d = dict(ns.d, "
        "a=ns.d) %}{% endfor %}{{ ns.d }}",
        "{{ range(3000) | map('string') | join | replace('1', 'x' * 100000) }}",
        /* cheap to write, and each step looks at megabytes */
        "{% set s = 'x' * 8000000 %}{% for a in range(1000) %}{{ s[9000000] }}{% endfor %}",
        "{% set s = ' ' * 8000000 %}{% for a in range(1000) %}{{ s | trim }}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{{ s.strip('y' * 100000 ~ 'x') }}",
        "{% set s = 'x' * 8000000 %}{% set t = 'x' * 8000000 %}{% for a in range(1000) %}{{ s == t "
        "}}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% set t = 'x' * 8000000 %}{% for a in range(1000) %}{{ s < t "
        "}}{% endfor %}",
        "{% set l = (',' * 100000).split(',') %}{% for a in range(1000) %}{{ ''.join(l) }}{% "
        "endfor "
        "%}",
        "{% set s = 'x' * 1000000 %}{% set ns = namespace(l=[s ~ 'y']) %}{% for a in range(16) "
        "%}{% "
        "set ns.l = ns.l + ns.l %}{% endfor %}{{ (s ~ 'z').startswith(ns.l) }}",
    };
    struct json *messages = parse("[]");

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        struct chat_input in = {.messages = messages};
        struct chat_template *t = NULL;
        struct error err = {0};
        struct buf out;
        enum status st;

        buf_init(&out, 0);
        if (chat_template_compile(&t, str_of(sources[i]), &err) != ST_OK) {
            fail_msg("%s: %s", sources[i], err.message);
        }
        st = chat_template_render(t, &in, &out, &err);
        if (st != ST_TOO_LARGE && st != ST_INVALID) fail_msg("%s: %s", sources[i], status_name(st));
        chat_template_destroy(t);
        buf_fini(&out);
    }
    json_destroy(messages);
}

static void deep_sources_are_refused_not_followed(void **state) {
    static const char *const opening[] = {"(",   "[",  "-",  "not ",         "{% if 1 %}",
                                          "{1:", "x[", "f(", "1 if 1 else ", "[]|map('map',"};
    size_t n = 20000;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(opening); i++) {
        struct chat_template *t = NULL;
        struct error err = {0};
        struct buf source;

        buf_init(&source, 0);
        if (opening[i][0] != '{' || opening[i][1] != '%') buf_append_str(&source, STR("{{ "));
        for (size_t k = 0; k < n && buf_len(&source) < CHAT_TEMPLATE_MAX_BYTES - 64; k++) {
            buf_append_str(&source, str_of(opening[i]));
        }
        assert_int_equal(chat_template_compile(&t, buf_str(&source), &err), ST_INVALID);
        buf_fini(&source);
    }
}

static void long_chains_are_followed_or_refused(void **state) {
    static const char *const links[] = {" + 1", "|abs", ".x", " ~ 1", " and 1", " if 1"};
    struct json *messages = parse("[]");

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(links); i++) {
        struct chat_input in = {.messages = messages};
        struct chat_template *t = NULL;
        struct error err = {0};
        struct buf source, out;

        buf_init(&source, 0);
        buf_init(&out, 0);
        buf_append_str(&source, STR("{{ 1"));
        for (size_t k = 0; k < 10000; k++)
            buf_append_str(&source, str_of(links[i]));
        buf_append_str(&source, STR(" }}"));
        if (chat_template_compile(&t, buf_str(&source), &err) == ST_OK) {
            enum status st = chat_template_render(t, &in, &out, &err);

            assert_true(st == ST_TOO_LARGE || st == ST_INVALID);
        }
        chat_template_destroy(t);
        buf_fini(&source);
        buf_fini(&out);
    }
    json_destroy(messages);
}

/* Changed, cut and spliced templates: any result will do, but no crash and no endless run. */
static void damaged_templates_do_no_harm(void **state) {
    const struct json *templates = json_get(vectors, "templates"),
                      *small = json_get(vectors, "small");
    struct json *messages = parse("[{\"role\":\"user\",\"content\":\"Hi\"},"
                                  "{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]");
    struct rng rng;
    const struct json *pool[256];
    size_t n = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    JSON_FOR_EACH(v, templates) pool[n++] = v;
    JSON_FOR_EACH(v, small) pool[n++] = json_get(v, "template");
    for (int round = 0; round < 4000; round++) {
        struct chat_input in = {.messages = messages, .kwargs = json_get(vectors, "context")};
        struct chat_template *t = NULL;
        struct str a, b;
        struct buf source, out;

        assert_int_equal(json_to_str(pool[rng_below(&rng, n)], &a), ST_OK);
        assert_int_equal(json_to_str(pool[rng_below(&rng, n)], &b), ST_OK);
        buf_init(&source, 0);
        buf_init(&out, 0);
        buf_append(&source, a.ptr, (size_t)rng_below(&rng, a.len + 1));
        a.len = (size_t)rng_below(&rng, b.len + 1);
        buf_append(&source, b.ptr + a.len, b.len - a.len);
        for (uint64_t i = rng_below(&rng, 3); i > 0 && buf_len(&source); i--) {
            static const char bytes[] = "{}%#()[]|.,:=+-*/~<>'\"\n ax1";

            buf_ptr(&source)[rng_below(&rng, buf_len(&source))] =
                bytes[rng_below(&rng, sizeof(bytes) - 1)];
        }
        if (chat_template_compile(&t, buf_str(&source), NULL) == ST_OK) {
            if (chat_template_render(t, &in, &out, NULL) != ST_OK) buf_clear(&out);
        }
        chat_template_destroy(t);
        buf_fini(&source);
        buf_fini(&out);
    }
    json_destroy(messages);
}

static void effort_is_a_variable_between_defaults_and_kwargs(void **state) {
    const struct str source = STR("{{ reasoning_effort }} {{ enable_thinking }} {{ thinking }}");
    static const struct {
        const char *defaults, *effort, *kwargs, *text;
    } cases[] = {
        {NULL, "high", NULL, "high  "},
        {NULL, "none", NULL, "none False False"},
        {"{\"enable_thinking\": true}", "none", NULL, "none False False"},
        {NULL, "none", "{\"enable_thinking\": true}", "none True False"},
        {"{\"reasoning_effort\": \"low\"}", NULL, NULL, "low  "},
        {NULL, "low", "{\"reasoning_effort\": \"max\"}", "max  "},
    };
    struct json *messages = parse("[]");
    struct chat_template *t = NULL;

    (void)state;
    assert_int_equal(chat_template_compile(&t, source, NULL), ST_OK);
    assert_true(str_eq(chat_template_source(t), source));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json *defaults = cases[i].defaults ? parse(cases[i].defaults) : NULL;
        struct json *kwargs = cases[i].kwargs ? parse(cases[i].kwargs) : NULL;
        struct chat_input in = {.messages = messages, .defaults = defaults, .kwargs = kwargs};
        struct buf out;

        if (cases[i].effort) in.effort = str_of(cases[i].effort);
        buf_init(&out, 0);
        assert_int_equal(chat_template_render(t, &in, &out, NULL), ST_OK);
        assert_true(str_eq(buf_str(&out), str_of(cases[i].text)));
        buf_fini(&out);
        json_destroy(defaults);
        json_destroy(kwargs);
    }
    chat_template_destroy(t);
    json_destroy(messages);
}

static void late_message_of_the_system_is_probed(void **state) {
    static const struct {
        const char *source;
        bool takes;
    } rows[] = {
        {"{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", true},
        {"{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
         "{{ raise_exception('system must be first') }}{% endif %}{{ m.content }}{% endfor %}",
         false},
        {"{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif "
         "%}"
         "{% endfor %}",
         false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct chat_template *t = NULL;

        assert_int_equal(chat_template_compile(&t, str_of(rows[i].source), NULL), ST_OK);
        assert_int_equal(chat_template_takes_late_system(t), rows[i].takes);
        chat_template_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chats_render_as_the_reference_does),
        cmocka_unit_test(every_corner_is_as_the_reference_has_it),
        cmocka_unit_test(built_in_templates_render),
        cmocka_unit_test(text_parts_are_joined),
        cmocka_unit_test(tool_arguments_become_what_they_spell),
        cmocka_unit_test(call_of_a_custom_tool_is_that_of_a_function),
        cmocka_unit_test(a_template_that_joins_arguments_to_text_gets_their_text),
        cmocka_unit_test(a_folder_without_template_gets_a_built_in_one),
        cmocka_unit_test(a_template_for_tools_is_used_with_tools),
        cmocka_unit_test(the_demonstration_model_has_its_template),
        cmocka_unit_test(the_demonstration_model_reads_what_it_was_trained_on),
        cmocka_unit_test(hostile_templates_meet_a_limit),
        cmocka_unit_test(deep_sources_are_refused_not_followed),
        cmocka_unit_test(long_chains_are_followed_or_refused),
        cmocka_unit_test(damaged_templates_do_no_harm),
        cmocka_unit_test(effort_is_a_variable_between_defaults_and_kwargs),
        cmocka_unit_test(late_message_of_the_system_is_probed),
    };

    return cmocka_run_group_tests(tests, load_vectors, drop_vectors);
}
