/* tests/support/reader_texts.c - see reader_texts.h. */
#include "tests/support/reader_texts.h"

#include <stdlib.h>

#include "worker/output/output_internal.h"
#include "worker/output/reader_internal.h"

#define TOKEN_BASE 100u
#define MUTATE_MAX 3u

void reader_text_init(struct reader_text *t) {
    *t = (struct reader_text){0};
    buf_init(&t->bytes, 0);
}

void reader_text_fini(struct reader_text *t) {
    buf_fini(&t->bytes);
}

void reader_text_clear(struct reader_text *t) {
    buf_clear(&t->bytes);
    t->n = 0;
}

size_t reader_text_length(const struct reader_text *t) {
    return buf_len(&t->bytes);
}

static void add_bytes(struct reader_text *t, struct str text) {
    struct reader_piece *p = t->n > 0 ? &t->piece[t->n - 1] : NULL;

    if (!p || p->is_token) {
        if (t->n == TEXT_MAX_PIECES) return;
        p = &t->piece[t->n++];
        *p = (struct reader_piece){.at = buf_len(&t->bytes)};
    }
    buf_append_str(&t->bytes, text);
    p->len += text.len;
}

void reader_text_add(struct reader_text *t, const struct reader_fixture *f, struct str text,
                     struct rng *rng, uint32_t spelt_of) {
    while (text.len > 0) {
        size_t n = str_utf8_len(text);
        uint32_t i = 0;

        while (i < f->n_tokens && !str_starts(text, str_of(f->token[i])))
            i++;
        if (i < f->n_tokens && t->n < TEXT_MAX_PIECES &&
            !(spelt_of > 0 && rng_below(rng, spelt_of) == 0)) {
            t->piece[t->n++] = (struct reader_piece){.is_token = true, .token = i};
            n = strlen(f->token[i]);
        } else if (n > 0) {
            add_bytes(t, (struct str){text.ptr, n});
        } else {
            add_bytes(t, STR("?"));
            n = 1;
        }
        text.ptr += n;
        text.len -= n;
    }
}

/* --- random answers --------------------------------------------------------------------------- */

static const char *pick(struct rng *rng, const char *const *list, size_t n) {
    return list[rng_below(rng, n)];
}

static void put(struct buf *to, const char *z) {
    if (z) buf_append_str(to, str_of(z));
}

static void draw_prose(struct buf *to, struct rng *rng) {
    static const char *const words[] = {"a",
                                        "Hi there. ",
                                        "\n",
                                        "\n\n",
                                        " ",
                                        "\xE2\x82\xAC",
                                        "\xF0\x9F\x98\x80",
                                        "<",
                                        "[",
                                        "{",
                                        "</",
                                        "x < y",
                                        "<tool",
                                        "\xE2\x97\x81",
                                        "\xEF\xBD\x9C",
                                        "code `<tool_call>`",
                                        ", ",
                                        ";"};

    for (uint64_t n = rng_below(rng, 4); n > 0; n--)
        buf_append_str(to, str_of(pick(rng, words, ARRAY_LEN(words))));
}

static void draw_json(struct buf *to, struct rng *rng) {
    static const char *const objects[] = {"{}",
                                          "{\"x\": 1}",
                                          "{\"x\":[1, {\"y\": null}]}",
                                          "{ \"s\" : \"a\\\"}\" }",
                                          "{\"s\": \"</tool_call> [TOOL_CALLS] \xE2\x82\xAC\"}",
                                          "{\"s\": \"a\nb\\\\\"}",
                                          "{\"s\": \"\\ud83d\\ude00 \\ud83d \\u0000\"}",
                                          "{\"input\": \"x\\n\"}",
                                          "{\n  \"x\": -1.5e3\n}",
                                          "{\"x\": 1",
                                          "{\"s\": \"open",
                                          "{\"x\": 1}}"};

    buf_append_str(to, str_of(pick(rng, objects, ARRAY_LEN(objects))));
}

static void draw_value(struct buf *to, struct rng *rng) {
    static const char *const values[] = {"5",
                                         "abc",
                                         "\nline1\nline2\n",
                                         "True",
                                         "null",
                                         "{\"a\": [1]}",
                                         "\xF0\x9F\x98\x80",
                                         "",
                                         "a </parameter> b",
                                         "\"q\"",
                                         "'",
                                         "<",
                                         "\n\n"};

    buf_append_str(to, str_of(pick(rng, values, ARRAY_LEN(values))));
}

struct spelling {
    const char *style, *open, *after_key, *close, *between;
};

static const struct spelling spellings[] = {
    {"qwen_xml", "<parameter=", ">\n", "\n</parameter>\n", ""},
    {"seed_xml", "<parameter=", ">", "</parameter>\n", ""},
    {"glm_xml", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", ""},
    {"minimax_xml", "<parameter name=\"", "\">", "</parameter>\n", ""},
    {"deepseek_xml",
     "<\xEF\xBD\x9C"
     "DSML\xEF\xBD\x9Cparameter name=\"",
     "\" string=\"true\">",
     "</\xEF\xBD\x9C"
     "DSML\xEF\xBD\x9Cparameter>\n",
     ""},
    {"pythonic", "", "='", "'", ", "},
    {"gemma", "", ":<|\"|>", "<|\"|>", ","},
    {"functiongemma", "", ":<escape>", "<escape>", ","},
};

static void draw_styled(struct buf *to, const char *style, struct rng *rng) {
    static const char *const keys[] = {"x", "s", "k"};
    for (size_t i = 0; i < ARRAY_LEN(spellings); i++) {
        const struct spelling *s = &spellings[i];

        if (strcmp(s->style, style) != 0) continue;
        for (uint64_t n = rng_below(rng, 3); n > 0; n--) {
            buf_appendf(to, "%s%s%s", s->open, pick(rng, keys, ARRAY_LEN(keys)), s->after_key);
            draw_value(to, rng);
            buf_appendf(to, "%s%s", s->close, n > 1 ? s->between : "");
        }
    }
}

static void draw_arguments(struct buf *to, const struct call_format *f, struct rng *rng) {
    put(to, f->spelling.quote ? "{" : NULL);
    if (!f->arguments)
        draw_json(to, rng);
    else
        draw_styled(to, f->arguments, rng);
    put(to, f->spelling.quote ? "}" : f->arguments_end);
}

static void draw_object(struct buf *to, const struct call_format *f, const char *name,
                        struct rng *rng) {
    const char *key = f->key ? f->key : "arguments";

    switch (rng_below(rng, 4)) {
    case 0: buf_appendf(to, "{\"name\": \"%s\"}", name); break;
    case 1:
        buf_appendf(to, "{\"%s\": ", key);
        draw_json(to, rng);
        buf_appendf(to, ", \"name\": \"%s\"}", name);
        break;
    default:
        buf_appendf(to, "{\"name\": \"%s\", \"%s\": ", name, key);
        draw_json(to, rng);
        buf_append_char(to, '}');
    }
}

static void draw_harmony(struct buf *to, const char *name, struct rng *rng) {
    static const char *const ends[] = {"<|end|>", "<|return|>", "<|call|>", ""};
    static const char *const heads[] = {"<|channel|>analysis<|message|>",
                                        "<|channel|>final<|message|>",
                                        "<|channel|>commentary<|message|>", " to=", ""};

    if (rng_below(rng, 3) > 0) put(to, "<|start|>assistant");
    if (rng_below(rng, 2) == 0) {
        buf_appendf(to, "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>", name);
        draw_json(to, rng);
    } else {
        put(to, pick(rng, heads, ARRAY_LEN(heads)));
        draw_prose(to, rng);
    }
    put(to, pick(rng, ends, ARRAY_LEN(ends)));
}

static void draw_call(struct buf *to, const struct call_format *f, struct rng *rng) {
    static const char *const names[] = {"f", "g", "h", "functions.f:3", "a.b_c-d", "0", ""};
    const char *name = pick(rng, names, ARRAY_LEN(names));

    if (f->body == BODY_HARMONY) {
        draw_harmony(to, name, rng);
        return;
    }
    put(to, f->open);
    if (f->body == BODY_OBJECT) {
        draw_object(to, f, name, rng);
    } else {
        put(to, name);
        put(to, f->name_after);
        draw_arguments(to, f, rng);
    }
    put(to, f->close);
}

static void draw_reasoning(struct buf *to, const struct reasoning_format *f, struct rng *rng) {
    if (f->is_harmony) return;
    if (rng_below(rng, 4) > 0) put(to, f->begin);
    draw_prose(to, rng);
    if (rng_below(rng, 4) > 0) put(to, f->end);
    put(to, f->answer);
}

static void draw_whole(struct buf *to, const struct reader_fixture *f, struct rng *rng) {
    const struct call_format *c = f->setup.calls;

    if (f->setup.reasoning && rng_below(rng, 2) == 0) draw_reasoning(to, f->setup.reasoning, rng);
    if (!c || !c->is_bare || rng_below(rng, 2) == 0) draw_prose(to, rng);
    if (c) {
        put(to, c->section);
        for (uint64_t n = 1 + rng_below(rng, 3); n > 0; n--) {
            draw_call(to, c, rng);
            if (n > 1) put(to, c->between);
        }
        put(to, c->section_end);
    }
    draw_prose(to, rng);
}

/* --- and broken ones -------------------------------------------------------------------------- */

/* A piece of what the rows have. */
static const char *draw_part(const struct reader_fixture *f, struct rng *rng) {
    const struct call_format *c = f->setup.calls;
    const struct reasoning_format *t = f->setup.reasoning;
    const char *parts[] = {c ? c->section : "",
                           c ? c->open : "",
                           c ? c->name_after : "",
                           c ? c->close : "",
                           c ? c->section_end : "",
                           c ? c->also.text : "",
                           t ? t->begin : "",
                           t ? t->end : "",
                           c ? c->tokens[rng_below(rng, FORMAT_MAX_TOKENS)] : "",
                           "{\"name\": \"",
                           "\"",
                           "}",
                           "\n",
                           "\xE2\x82\xAC"};

    return pick(rng, parts, ARRAY_LEN(parts));
}

static void mutate(struct buf *text, const struct reader_fixture *f, struct rng *rng) {
    struct str old = buf_str(text);
    size_t at = (size_t)rng_below(rng, old.len + 1);
    size_t skip = (size_t)rng_below(rng, MIN(old.len - at, 12u) + 1);
    struct buf made;

    buf_init(&made, 0);
    buf_append(&made, old.ptr, at);
    if (rng_below(rng, 2)) put(&made, draw_part(f, rng));
    if (rng_below(rng, 2)) at += skip;
    buf_append(&made, old.ptr + at, old.len - at);
    buf_fini(text);
    *text = made;
}

void reader_text_draw(struct reader_text *t, const struct reader_fixture *f, struct rng *rng) {
    struct buf text;
    uint32_t kind = (uint32_t)rng_below(rng, 3);

    buf_init(&text, 0);
    draw_whole(&text, f, rng);
    if (kind == 1) buf_truncate(&text, (size_t)rng_below(rng, buf_len(&text) + 1));
    for (uint64_t n = kind == 2 ? 1 + rng_below(rng, MUTATE_MAX) : 0; n > 0; n--)
        mutate(&text, f, rng);
    reader_text_clear(t);
    reader_text_add(t, f, buf_str(&text), rng, rng_below(rng, 4) == 0 ? 4 : 0);
    t->is_cut = rng_below(rng, 2);
    buf_fini(&text);
}

/* --- reading ---------------------------------------------------------------------------------- */

static void check_characters(const struct answer *a) {
    for (uint32_t i = 0; i < a->n; i++)
        if (!str_is_utf8(buf_str(&a->part[i].text)) || !str_is_utf8(buf_str(&a->part[i].name)))
            abort();
}

static void look(const struct reader_fixture *f) {
    check_characters(&f->answer);
    if (f->look) f->look(f->look_arg);
}

static void push_text(const struct reader_text *t, const struct reader_piece *p,
                      struct reader_fixture *f, bool (*is_cut_at)(void *, size_t), void *arg) {
    const char *bytes = buf_ptr(&t->bytes);
    size_t from = p->at;

    for (size_t at = p->at + 1; at <= p->at + p->len; at++) {
        bool is_end = at == p->at + p->len;

        if (!is_end && (((unsigned char)bytes[at] & 0xC0) == 0x80 || !is_cut_at(arg, at))) continue;
        reader_push(f->reader, (struct str){bytes + from, at - from});
        look(f);
        from = at;
    }
}

void reader_text_push(const struct reader_text *t, struct reader_fixture *f,
                      bool (*is_cut_at)(void *arg, size_t at), void *arg) {
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->piece[i].is_token) {
            push_text(t, &t->piece[i], f, is_cut_at, arg);
            continue;
        }
        reader_push_token(f->reader, TOKEN_BASE + t->piece[i].token);
        look(f);
    }
}

uint64_t reader_text_read(const struct reader_text *t, struct reader_fixture *f,
                          bool (*is_cut_at)(void *arg, size_t at), void *arg, struct buf *out) {
    uint64_t n_read;

    reader_fixture_begin(f);
    reader_text_push(t, f, is_cut_at, arg);
    n_read = f->reader->n_read;
    reader_fixture_end(f, t->is_cut);
    check_characters(&f->answer);
    reader_fixture_print(f, out);
    answer_fini(&f->answer);
    return n_read;
}
