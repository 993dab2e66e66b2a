/* tests/unit/worker/output/test_output_tag.c - what a constraint generates is what a reader reads.
 *
 * Random walks under the grammar of each format's structural tag, markers as tokens and as text:
 * what comes out is read as whole calls of the tools whose arguments obey their schemas, and what
 * custom tools get, decoded, obeys their grammars. */
#include <stdio.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/reader_fixture.h"
#include "tests/support/support.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"
#include "worker/output/output_internal.h"
#include "worker/output/output_tag.h"

#define N_BYTES   256u
#define STEPS     1500u
#define WALKS     6u
#define MAX_HINTS 32u

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],"
    "\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"strict\":true,\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"s\":{\"type\":\"string\"}},\"required\":[\"s\"],"
    "\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"h\"}}]";

static const char named_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"}},\"required\":[\"s\"],"
    "\"additionalProperties\":false}}}]";

/* --- a vocabulary: bytes, then the fixture's tokens ------------------------------------------- */

static char all_bytes[N_BYTES];

static struct str bytes_of(const void *arg, uint32_t id) {
    const struct reader_fixture *f = arg;

    all_bytes[id % N_BYTES] = (char)(id % N_BYTES);
    return id < N_BYTES ? (struct str){&all_bytes[id], 1} : str_of(f->token[id - N_BYTES]);
}

static bool is_special(const void *arg, uint32_t id) {
    (void)arg;
    return id >= N_BYTES;
}

/* --- walks ------------------------------------------------------------------------------------ */

struct walk {
    struct reader_fixture f;
    struct vocabulary *vocabulary;
    struct grammar *grammar;
    struct rng rng;
    struct buf written;
    struct buf character;        /* not yet whole */
    const char *hint[MAX_HINTS]; /* texts that end what would go on */
    uint32_t n_hints;
    struct grammar *input; /* of a custom tool; NULL: the tools are f, g and h */
};

static void add_hint(struct walk *w, const char *text) {
    if (!text || !*text) return;
    assert_true(w->n_hints < MAX_HINTS);
    w->hint[w->n_hints++] = text;
}

static void add_hints(struct walk *w) {
    static const char *const ends[] = {"\n</parameter>\n",
                                       "</arg_value>",
                                       "\"",
                                       "}",
                                       "\"}",
                                       "</parameter>\n",
                                       "\xEF\xBD\x9C"
                                       "DSML\xEF\xBD\x9C"};
    const struct call_format *c = w->f.setup.calls;
    const struct reasoning_format *r = w->f.setup.reasoning;

    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        add_hint(w, ends[i]);
    add_hint(w, c->section);
    add_hint(w, c->section_end);
    add_hint(w, c->open);
    add_hint(w, c->close);
    add_hint(w, c->arguments_end);
    add_hint(w, c->spelling.quote);
    add_hint(w, c->spelling.end);
    add_hint(w, c->spelling.key);
    add_hint(w, c->spelling.text);
    add_hint(w, r ? r->begin : NULL);
    add_hint(w, r ? r->end : NULL);
}

static void open_walk(struct walk *w, const struct call_format *c, const char *reasoning,
                      bool has_tokens, struct str tools) {
    struct vocabulary_source source = {.bytes = bytes_of, .is_special = is_special};

    *w = (struct walk){0};
    reader_fixture_init(&w->f, c->name, reasoning, has_tokens);
    json_destroy(w->f.tools);
    assert_int_equal(json_parse(&w->f.tools, tools, NULL, NULL), ST_OK);
    w->f.setup.tools = w->f.tools;
    source.n_tokens = N_BYTES + w->f.n_tokens;
    source.arg = &w->f;
    w->vocabulary = vocabulary_create(&source);
    buf_init(&w->written, 0);
    buf_init(&w->character, 0);
    add_hints(w);
}

static void close_walk(struct walk *w) {
    grammar_unref(w->grammar);
    grammar_unref(w->input);
    vocabulary_destroy(w->vocabulary);
    buf_fini(&w->written);
    buf_fini(&w->character);
    reader_fixture_fini(&w->f);
}

static void compile(struct walk *w, const struct output_tag *tag) {
    struct grammar_spec spec = {.kind = GRAMMAR_TAG, .spaces = GRAMMAR_SPACES_COMPACT};
    struct error err = {0};
    struct buf text;

    buf_init(&text, 0);
    if (output_tag_write(tag, &text, &err) != ST_OK) fail_msg("%s", err.message);
    spec.text = buf_str(&text);
    if (grammar_compile(&w->grammar, &spec, w->vocabulary, &err) != ST_OK)
        fail_msg("%s: %s\n%.*s", call_format_name(tag->calls), err.message,
                 STR_ARG(buf_str(&text)));
    buf_fini(&text);
}

/* As a detokenizer passes bytes on: whole characters; what is none as U+FFFD. */
static void flush_broken(struct walk *w) {
    if (buf_len(&w->character) > 0) reader_push(w->f.reader, STR("\xEF\xBF\xBD"));
    buf_clear(&w->character);
}

static void take_byte(struct walk *w, char c) {
    bool is_lead = (unsigned char)c >= 0xC2 && (unsigned char)c < 0xF5;

    if (((unsigned char)c & 0xC0) != 0x80) flush_broken(w);
    buf_append_char(&w->character, c);
    if (str_is_utf8(buf_str(&w->character))) {
        reader_push(w->f.reader, buf_str(&w->character));
        buf_clear(&w->character);
    } else if (buf_len(&w->character) == 4 || (buf_len(&w->character) == 1 && !is_lead)) {
        flush_broken(w);
    }
}

/* Returns false if the token may not come next. */
static bool take(struct walk *w, struct grammar_matcher *m, uint32_t token) {
    if (grammar_take(m, token) != ST_OK) return false;
    if (token < N_BYTES) {
        buf_append_char(&w->written, (char)token);
        take_byte(w, (char)token);
    } else {
        uint32_t id = 0;

        flush_broken(w);
        buf_append_str(&w->written, str_of(w->f.token[token - N_BYTES]));
        assert_true(w->f.model.find_token(&w->f, str_of(w->f.token[token - N_BYTES]), &id));
        if (reader_is_marker(w->f.reader, id))
            reader_push_token(w->f.reader, id);
        else
            reader_push(w->f.reader, str_of(w->f.token[token - N_BYTES]));
    }
    return true;
}

/* A text that ends something, as far as it may come next. */
static bool take_hint(struct walk *w, struct grammar_matcher *m) {
    struct str rest = str_of(w->hint[rng_below(&w->rng, w->n_hints)]);
    bool is_taken = false;

    while (rest.len > 0) {
        uint32_t i = 0;
        size_t n = 1;

        while (i < w->f.n_tokens && !str_starts(rest, str_of(w->f.token[i])))
            i++;
        if (i < w->f.n_tokens) n = strlen(w->f.token[i]);
        if (!take(w, m, i < w->f.n_tokens ? N_BYTES + i : (unsigned char)*rest.ptr)) break;
        is_taken = true;
        rest = (struct str){rest.ptr + n, rest.len - n};
    }
    return is_taken;
}

static uint32_t draw_token(struct walk *w, struct grammar_matcher *m) {
    const uint32_t *mask;
    uint32_t allowed[N_BYTES + FIXTURE_MAX_TOKENS], n = 0;
    bool is_new;

    assert_int_equal(grammar_mask(m, &mask, &is_new), ST_OK);
    for (uint32_t id = 0; id < w->vocabulary->n_tokens; id++)
        if (mask[id / 32] >> (id % 32) & 1) allowed[n++] = id;
    assert_true(n > 0);
    if (allowed[n - 1] >= N_BYTES && rng_below(&w->rng, 4) == 0) return allowed[n - 1];
    return allowed[rng_below(&w->rng, n)];
}

/* Returns false if the answer was not over in time. */
static bool walk(struct walk *w) {
    struct grammar_matcher m = {0};
    bool is_over = false;

    buf_clear(&w->written);
    buf_clear(&w->character);
    reader_fixture_begin(&w->f);
    grammar_matcher_init(&m, w->grammar);
    for (uint32_t i = 0; i < STEPS && !is_over; i++) {
        if (grammar_is_accepting(&m) && (!grammar_continues(&m) || rng_below(&w->rng, 6) == 0))
            is_over = true;
        else if (rng_below(&w->rng, 3) > 0 || !take_hint(w, &m))
            assert_true(take(w, &m, draw_token(w, &m)));
    }
    is_over |= grammar_is_accepting(&m);
    grammar_matcher_fini(&m);
    flush_broken(w);
    reader_fixture_end(&w->f, !is_over);
    return is_over;
}

/* --- what was generated ----------------------------------------------------------------------- */

static void fail_walk(const struct walk *w, const char *what) {
    struct buf parts;

    buf_init(&parts, 0);
    reader_fixture_print(&w->f, &parts);
    fwrite(buf_ptr(&w->written), 1, buf_len(&w->written), stderr); /* cmocka's lines are short */
    fprintf(stderr, "\nread as:\n");
    fwrite(buf_ptr(&parts), 1, buf_len(&parts), stderr);
    fail_msg("%s, %u tokens: %s", call_format_name(w->f.setup.calls), w->f.n_tokens, what);
}

/* The keys that must be there are, and no others. */
static bool obeys_schema(const struct output_tag *tag, struct str name,
                         const struct json *arguments) {
    const struct json *x = json_get(arguments, "x"), *s = json_get(arguments, "s");

    if (json_type(arguments) != JSON_OBJECT) return false;
    if (str_eq(name, STR("f"))) return !s && json_type(x) == JSON_NUMBER;
    if (str_eq(name, STR("g"))) return !x && json_type(s) == JSON_STRING;
    return str_eq(name, STR("h")) && (tag->choice == TOOLS_AUTO || !json_first(arguments));
}

/* A limit of the tree, not of the answer: a NUL, a number beyond a double, two keys that are equal
 * where the format cannot forbid it. */
static bool is_beyond_tree(const struct error *err) {
    return strstr(err->message, "\\u0000") || strstr(err->message, "number") ||
           strstr(err->message, "twice") || strstr(err->message, "duplicate");
}

/* The one string that a custom tool gets. */
static void check_input(const struct walk *w, const struct json *arguments) {
    struct grammar_matcher m = {0};
    struct str input;
    bool is_allowed = true;

    if (json_count(arguments) != 1 || json_to_str(json_get(arguments, "input"), &input) != ST_OK)
        fail_walk(w, "a custom tool gets no input");
    grammar_matcher_init(&m, w->input);
    for (size_t i = 0; i < input.len && is_allowed; i++)
        is_allowed = grammar_take(&m, (unsigned char)input.ptr[i]) == ST_OK;
    is_allowed = is_allowed && grammar_is_accepting(&m);
    grammar_matcher_fini(&m);
    if (!is_allowed) fail_walk(w, "the grammar of a custom tool is not obeyed");
}

static void check_call(const struct walk *w, const struct output_tag *tag,
                       const struct answer_part *p) {
    struct error err = {0};
    struct json *arguments;

    if (p->is_cut) fail_walk(w, "a call is cut");
    if (json_parse(&arguments, buf_str(&p->text), NULL, &err) != ST_OK) {
        if (!is_beyond_tree(&err)) fail_walk(w, err.message);
        return;
    }
    if (w->input)
        check_input(w, arguments);
    else if (!obeys_schema(tag, buf_str(&p->name), arguments))
        fail_walk(w, "the schema is not obeyed");
    json_destroy(arguments);
}

static bool is_json(const struct answer_part *p) {
    struct json *v;

    if (json_parse(&v, buf_str(&p->text), NULL, NULL) != ST_OK) return false;
    json_destroy(v);
    return true;
}

static void check_answer(const struct walk *w, const struct output_tag *tag) {
    bool is_forced = tag->choice == TOOLS_REQUIRED || tag->choice == TOOLS_NAMED;
    bool is_json_text = tag->text_format.len > 0;

    if (is_forced && w->f.answer.n_calls == 0) fail_walk(w, "no call");
    if (tag->choice == TOOLS_NAMED && w->f.answer.n_calls > 1) fail_walk(w, "several calls");
    if (tag->is_single && w->f.answer.n_calls > 1) fail_walk(w, "several calls");
    for (uint32_t i = 0; i < w->f.answer.n; i++) {
        const struct answer_part *p = &w->f.answer.part[i];

        if (p->kind == PART_CALL)
            check_call(w, tag, p);
        else if (p->kind == PART_TEXT && is_forced)
            fail_walk(w, "text");
        else if (p->kind == PART_TEXT && is_json_text && !is_json(p))
            fail_walk(w, "text is no JSON");
    }
}

/* --- every format ----------------------------------------------------------------------------- */

static void check_tag(const struct call_format *c, struct output_tag tag, uint64_t seed) {
    uint32_t n_over = 0;

    for (uint32_t variant = 0; variant < 6; variant++) { /* tokens, and three states of reasoning */
        const char *reasoning = c->body == BODY_HARMONY ? "openai" : "deepseek_r1";
        struct walk w;

        if (c->body == BODY_HARMONY && variant % 2 == 0) continue; /* it has tokens always */
        open_walk(&w, c, variant / 2 > 0 ? reasoning : NULL, variant % 2,
                  str_of(tag.choice == TOOLS_NAMED ? named_text : tools_text));
        rng_seed(&w.rng, seed + variant);
        tag.calls = c;
        tag.reasoning = w.f.setup.reasoning;
        tag.tools = w.f.tools;
        tag.begins_in_reasoning = w.f.setup.begins_in_reasoning = variant / 2 == 2;
        compile(&w, &tag);
        for (uint32_t i = 0; i < WALKS; i++) {
            if (walk(&w)) {
                check_answer(&w, &tag);
                n_over++;
            }
            answer_fini(&w.f.answer);
        }
        close_walk(&w);
    }
    if (n_over < WALKS) fail_msg("%s: %u answers came to an end", c->name, n_over);
}

static void check_all(struct output_tag tag) {
    const struct call_format *c;

    for (uint32_t i = 0; (c = call_format_at(i)); i++)
        check_tag(c, tag, support_seed() * 1000 + i);
}

static void required_calls_are_read(void **state) {
    (void)state;
    check_all((struct output_tag){.choice = TOOLS_REQUIRED});
}

static void single_calls_are_single(void **state) {
    (void)state;
    check_all((struct output_tag){.choice = TOOLS_REQUIRED, .is_single = true});
}

static void a_named_tool_is_called_once(void **state) {
    (void)state;
    check_all((struct output_tag){.choice = TOOLS_NAMED});
}

static void strict_tools_are_obeyed_where_calls_are_free(void **state) {
    (void)state;
    check_all((struct output_tag){.choice = TOOLS_AUTO});
}

static void text_obeys_its_format_beside_calls(void **state) {
    (void)state;
    check_all((struct output_tag){
        .choice = TOOLS_AUTO,
        .text_format = STR("{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\","
                           "\"properties\":{\"a\":{\"type\":\"boolean\"}},\"required\":[\"a\"],"
                           "\"additionalProperties\":false}}")});
}

static void text_obeys_its_format_without_tools(void **state) {
    (void)state;
    check_all((struct output_tag){
        .choice = TOOLS_NONE,
        .text_format = STR("{\"type\":\"regex\",\"pattern\":\"-?[1-9][0-9]{0,3}\"}")});
}

/* --- texts of one format ---------------------------------------------------------------------- */

/* Does the grammar of the tools generate this text? Tokens are spelt by their names. */
static bool generates(struct walk *w, const struct output_tag *tag, const char *text) {
    struct grammar_matcher m = {0};
    struct str rest = str_of(text);
    bool is_allowed = true;

    grammar_unref(w->grammar);
    compile(w, tag);
    reader_fixture_begin(&w->f);
    grammar_matcher_init(&m, w->grammar);
    while (rest.len > 0 && is_allowed) {
        uint32_t i = 0;
        size_t n = 1;

        while (i < w->f.n_tokens && !str_starts(rest, str_of(w->f.token[i])))
            i++;
        if (i < w->f.n_tokens) n = strlen(w->f.token[i]);
        is_allowed = take(w, &m, i < w->f.n_tokens ? N_BYTES + i : (unsigned char)*rest.ptr);
        rest = (struct str){rest.ptr + n, rest.len - n};
    }
    is_allowed = is_allowed && grammar_is_accepting(&m);
    grammar_matcher_fini(&m);
    reader_fixture_end(&w->f, false);
    answer_fini(&w->f.answer);
    return is_allowed;
}

#define PLAN                                                                                       \
    "[{\"function\":{\"name\":\"plan\","                                                           \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{"     \
    "\"enum\":[\"x\",7]},\"c\":{\"type\":[\"string\",\"null\"]},\"d\":{\"$ref\":\"#/$defs/d\"}},"  \
    "\"required\":[\"b\"],\"$defs\":{\"d\":{\"type\":\"boolean\"}}}}},"                            \
    "{\"function\":{\"name\":\"other\",\"strict\":true}}]"

struct text_case {
    const char *format, *text;
    bool is_generated;
};

static void check_texts(const char *tools, enum tool_choice choice, const struct text_case *cases,
                        size_t n) {
    for (size_t i = 0; i < n; i++)
        for (uint32_t has_tokens = 0; has_tokens < 2; has_tokens++) {
            const struct text_case *c = &cases[i];
            struct output_tag tag = {.choice = choice, .is_single = true};
            struct walk w;

            tag.calls = call_format_find(str_of(c->format), NULL);
            open_walk(&w, tag.calls, NULL, has_tokens, str_of(tools));
            tag.tools = w.f.tools;
            if (generates(&w, &tag, c->text) != c->is_generated)
                fail_msg("%s %s: %s", c->format, c->is_generated ? "refuses" : "generates",
                         c->text);
            close_walk(&w);
        }
}

#define GEMMA(arguments) "<|tool_call>call:plan{" arguments "}<tool_call|>"
#define QUOTE            "<|\"|>"

static void literals_have_what_the_schema_requires_each_once_and_in_its_order(void **state) {
    static const struct text_case cases[] = {
        {"pythonic", "[plan(b=\"x\")]", true},
        {"pythonic", "[plan(a=1, b=7, c=\"q\", d=true)]", true},
        {"pythonic", "[plan(b=7, d=false)]", true},
        {"pythonic", "[plan(b=7, c=null)]", true},
        {"pythonic", "[plan()]", false},
        {"pythonic", "[plan(a=1)]", false},
        {"pythonic", "[plan(b=7, b=7)]", false},
        {"pythonic", "[plan(b=7, a=1)]", false},
        {"pythonic", "[plan(b=8)]", false},
        {"pythonic", "[plan(b=7, e=1)]", false},
        {"pythonic", "[plan(b=7,a=1)]", false},
        {"pythonic", "[other()]", true},
        {"pythonic", "[other( )]", false},
        {"llama4_pythonic", "<|python_start|>[plan(b=7)]<|python_end|>", true},
        {"llama4_pythonic", "<|python_start|>[plan(d=true)]<|python_end|>", false},
        {"gemma4", GEMMA("b:" QUOTE "x" QUOTE), true},
        {"gemma4", GEMMA("a:1,b:7,c:" QUOTE "q" QUOTE ",d:true"), true},
        {"gemma4", GEMMA("b:7,c:None"), true},
        {"gemma4", GEMMA(""), false},
        {"gemma4", GEMMA("c:None"), false},
        {"gemma4", GEMMA("b:7,b:7"), false},
        {"gemma4", GEMMA("b:\"x\""), false},
        {"functiongemma",
         "<start_function_call>call:plan{b:<escape>x<escape>,c:<escape><escape>}<end_function_"
         "call>",
         true},
        {"functiongemma", "<start_function_call>call:plan{a:1}<end_function_call>", false},
    };

    (void)state;
    check_texts(PLAN, TOOLS_REQUIRED, cases, ARRAY_LEN(cases));
}

/* One strict tool constrains all calls; the others keep their freedom. */
static void arguments_of_a_tool_that_is_not_strict_are_free(void **state) {
    static const struct text_case cases[] = {
        {"pythonic", "[plan(z=[1], y=\"q\")]", true},
        {"pythonic", "[plan()]", true},
        {"pythonic", "[other(z=1)]", false},
        {"gemma4", GEMMA("z:" QUOTE "q" QUOTE ",y:{k:[1," QUOTE QUOTE "]}"), true},
        {"gemma4", GEMMA("z:{\"k\":1}"), false},
        {"qwen3_coder",
         "<tool_call>\n<function=plan>\n<parameter=z>\n{1\n</parameter>\n</function>\n</tool_call>",
         true},
        {"qwen3_coder",
         "<tool_call>\n<function=other>\n<parameter=z>\n1\n</parameter>\n</function>\n</tool_call>",
         false},
        {"glm47", "<tool_call>plan<arg_key>z</arg_key><arg_value>q</arg_value></tool_call>", true},
        {"minimax_m2",
         "<minimax:tool_call>\n<invoke name=\"plan\">\n<parameter name=\"z\">q</parameter>\n"
         "</invoke>\n</minimax:tool_call>",
         true},
        {"hermes", "<tool_call>\n{\"name\": \"plan\", \"arguments\": {\"z\": \"q\"}}\n</tool_call>",
         true},
    };

    (void)state;
    check_texts(PLAN, TOOLS_AUTO, cases, ARRAY_LEN(cases));
}

/* --- custom tools ----------------------------------------------------------------------------- */

/* The tool "edit", whose input the grammar describes. */
static void write_custom(struct buf *out, const char *syntax, struct str definition) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_array(&w);
    json_begin_object(&w);
    json_put_key(&w, "function");
    json_put_raw(&w, STR("{\"name\":\"edit\",\"parameters\":{\"type\":\"object\",\"properties\":{"
                         "\"input\":{\"type\":\"string\"}},\"required\":[\"input\"]}}"));
    json_put_key(&w, "format");
    json_begin_object(&w);
    json_field_z(&w, "syntax", syntax);
    json_field_str(&w, "definition", definition);
    json_end_object(&w);
    json_end_object(&w);
    json_end_array(&w);
}

static void compile_input(struct walk *w, bool is_regex, struct str definition) {
    struct grammar_spec spec = {.kind = is_regex ? GRAMMAR_REGEX : GRAMMAR_LARK,
                                .text = definition};
    struct error err = {0};

    if (grammar_compile(&w->input, &spec, w->vocabulary, &err) != ST_OK)
        fail_msg("%s", err.message);
}

/* Returns how many of the walks came to an end. */
static uint32_t walk_custom(const struct call_format *c, bool is_regex, struct str definition,
                            bool has_tokens, enum tool_choice choice) {
    static const char *const hints[] = {"*** Begin Patch\n*** Add File: a\n+b\n*** End Patch",
                                        "*** Begin Patch\\n*** Add File: a\\n+b\\n*** End Patch",
                                        "\n*** End Patch\n",
                                        "\\n*** End Patch",
                                        "+<b> \"c\" \\ \xE2\x82\xAC\n",
                                        "\n</parameter>\n</function>"};
    struct output_tag tag = {.calls = c, .choice = choice};
    uint32_t n_over = 0;
    struct buf tools;
    struct walk w;

    buf_init(&tools, 0);
    write_custom(&tools, is_regex ? "regex" : "lark", definition);
    open_walk(&w, c, NULL, has_tokens, buf_str(&tools));
    for (size_t i = 0; i < ARRAY_LEN(hints); i++)
        add_hint(&w, hints[i]);
    rng_seed(&w.rng, support_seed() * 100 + has_tokens);
    tag.tools = w.f.tools;
    assert_true(output_tag_is_needed(&tag));
    compile(&w, &tag);
    compile_input(&w, is_regex, definition);
    for (uint32_t i = 0; i < WALKS; i++) {
        if (walk(&w)) {
            check_answer(&w, &tag);
            n_over += w.f.answer.n_calls > 0;
        }
        answer_fini(&w.f.answer);
    }
    close_walk(&w);
    buf_fini(&tools);
    return n_over;
}

static void check_custom(bool is_regex, struct str definition) {
    const struct call_format *c;

    for (uint32_t i = 0; (c = call_format_at(i)); i++) {
        uint32_t n_over = 0;

        for (uint32_t has_tokens = c->body == BODY_HARMONY; has_tokens < 2; has_tokens++) {
            n_over += walk_custom(c, is_regex, definition, has_tokens, TOOLS_NAMED);
            n_over += walk_custom(c, is_regex, definition, has_tokens, TOOLS_AUTO);
        }
        if (n_over == 0) fail_msg("%s: no call came to an end", c->name);
    }
}

static void input_of_a_custom_tool_obeys_its_grammar(void **state) {
    char *text = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(file_read("tests/data/apply_patch.lark", 1u << 16, &text, &n, NULL), ST_OK);
    check_custom(false, (struct str){text, n});
    mem_free(text);
}

/* What JSON escapes, what ends a string of each format, and white space around it. */
static void input_of_a_custom_tool_obeys_its_pattern(void **state) {
    (void)state;
    check_custom(
        true,
        STR("\\s{0,2}[\"\\\\\\t\\x01/ a-c\\n\xE2\x82\xAC<>|p]{0,9}</?(parameter|x)>\\n{0,2}"));
}

static void grammar_that_does_not_compile_is_refused_with_tool_and_line(void **state) {
    const struct call_format *hermes = call_format_find(STR("hermes"), NULL);
    struct output_tag tag = {.calls = hermes, .choice = TOOLS_AUTO};
    struct grammar_spec spec = {.kind = GRAMMAR_TAG};
    struct error err = {0};
    struct buf tools, text;
    struct walk w;

    (void)state;
    buf_init(&tools, 0);
    buf_init(&text, 0);
    write_custom(&tools, "lark", STR("start: line+\nline: /(?=a)/ LF\n%import common.LF"));
    open_walk(&w, hermes, NULL, true, buf_str(&tools));
    tag.tools = w.f.tools;
    assert_int_equal(output_tag_write(&tag, &text, &err), ST_OK);
    spec.text = buf_str(&text);
    assert_int_equal(grammar_compile(&w.grammar, &spec, w.vocabulary, &err), ST_INVALID);
    if (!strstr(err.message, "the tool \"edit\": line 2 of the grammar: ") ||
        !strstr(err.message, ": correct its definition, or leave the format out"))
        fail_msg("%s", err.message);
    close_walk(&w);
    buf_fini(&tools);
    buf_fini(&text);
}

static void grammars_are_needed_where_something_is_forced(void **state) {
    const struct call_format *hermes = call_format_find(STR("hermes"), NULL);
    struct output_tag tag = {.calls = hermes, .choice = TOOLS_AUTO};
    struct json *strict, *loose;
    struct error err = {0};
    struct buf out;

    (void)state;
    assert_int_equal(json_parse(&strict, str_of(tools_text), NULL, NULL), ST_OK);
    assert_int_equal(json_parse(&loose, STR("[{\"function\":{\"name\":\"a\"}}, {}]"), NULL, NULL),
                     ST_OK);
    tag.tools = strict;
    assert_true(output_tag_is_needed(&tag));
    tag.tools = loose;
    assert_false(output_tag_is_needed(&tag));
    tag.choice = TOOLS_REQUIRED;
    assert_true(output_tag_is_needed(&tag));
    buf_init(&out, 0);
    assert_int_equal(output_tag_write(&tag, &out, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "tools[1]"));
    tag.calls = NULL;
    assert_int_equal(output_tag_write(&tag, &out, &err), ST_INVALID);
    tag.choice = TOOLS_NONE;
    assert_false(output_tag_is_needed(&tag));
    tag.text_format = STR("{}");
    assert_true(output_tag_is_needed(&tag));
    buf_fini(&out);
    json_destroy(strict);
    json_destroy(loose);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(required_calls_are_read),
        cmocka_unit_test(single_calls_are_single),
        cmocka_unit_test(a_named_tool_is_called_once),
        cmocka_unit_test(strict_tools_are_obeyed_where_calls_are_free),
        cmocka_unit_test(text_obeys_its_format_beside_calls),
        cmocka_unit_test(text_obeys_its_format_without_tools),
        cmocka_unit_test(literals_have_what_the_schema_requires_each_once_and_in_its_order),
        cmocka_unit_test(arguments_of_a_tool_that_is_not_strict_are_free),
        cmocka_unit_test(input_of_a_custom_tool_obeys_its_grammar),
        cmocka_unit_test(input_of_a_custom_tool_obeys_its_pattern),
        cmocka_unit_test(grammar_that_does_not_compile_is_refused_with_tool_and_line),
        cmocka_unit_test(grammars_are_needed_where_something_is_forced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
