/* tests/support/reader_fixture.c - see reader_fixture.h. */
#include "tests/support/reader_fixture.h"

#include <assert.h>
#include <stdlib.h>

#include "worker/output/output_internal.h"

#define TOKEN_BASE 100u

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"x\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"h\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{}}}}]";

static bool find_token(const void *arg, struct str text, uint32_t *id) {
    const struct reader_fixture *f = arg;

    for (uint32_t i = 0; i < f->n_tokens; i++)
        if (str_eq(text, str_of(f->token[i]))) {
            *id = TOKEN_BASE + i;
            return true;
        }
    return false;
}

static void add_token(struct reader_fixture *f, const char *text) {
    uint32_t id;

    if (!text || find_token(f, str_of(text), &id)) return;
    assert(f->n_tokens < FIXTURE_MAX_TOKENS);
    f->token[f->n_tokens++] = text;
}

void reader_fixture_init(struct reader_fixture *f, const char *calls, const char *reasoning,
                         bool has_tokens) {
    *f = (struct reader_fixture){.model = {.find_token = find_token}};
    f->model.arg = f;
    if (json_parse(&f->tools, str_of(tools), NULL, NULL) != ST_OK) abort();
    f->setup = (struct reader_setup){.model = &f->model, .tools = f->tools, .id_seed = 7};
    if (calls && !(f->setup.calls = call_format_find(str_of(calls), NULL))) abort();
    if (reasoning && !(f->setup.reasoning = reasoning_format_find(str_of(reasoning), NULL)))
        abort();
    for (uint32_t i = 0; has_tokens && calls && i < FORMAT_MAX_TOKENS; i++)
        add_token(f, f->setup.calls->tokens[i]);
    if (has_tokens && reasoning && !f->setup.reasoning->is_harmony) {
        add_token(f, f->setup.reasoning->begin);
        add_token(f, f->setup.reasoning->end);
    }
}

void reader_fixture_fini(struct reader_fixture *f) {
    json_destroy(f->tools);
}

void reader_fixture_begin(struct reader_fixture *f) {
    answer_init(&f->answer, 1u << 24);
    f->reader = reader_create(&f->setup, &f->answer);
}

/* The token that the text begins with. */
static bool token_at(const struct reader_fixture *f, struct str text, uint32_t *i) {
    for (*i = 0; *i < f->n_tokens; ++*i)
        if (str_starts(text, str_of(f->token[*i]))) return true;
    return false;
}

void reader_fixture_push(struct reader_fixture *f, struct str text, size_t piece) {
    while (text.len > 0) {
        size_t n = 0;
        uint32_t token;

        if (token_at(f, text, &token)) {
            n = strlen(f->token[token]);
            if (reader_is_marker(f->reader, TOKEN_BASE + token))
                reader_push_token(f->reader, TOKEN_BASE + token);
            else
                reader_push(f->reader, (struct str){text.ptr, n});
        } else {
            do
                n++;
            while (n < text.len &&
                   (((unsigned char)text.ptr[n] & 0xC0) == 0x80 ||
                    (n < piece && !token_at(f, (struct str){text.ptr + n, text.len - n}, &token))));
            reader_push(f->reader, (struct str){text.ptr, n});
        }
        text.ptr += n;
        text.len -= n;
    }
}

void reader_fixture_end(struct reader_fixture *f, bool is_cut) {
    reader_finish(f->reader, is_cut);
    answer_check(&f->answer);
    reader_destroy(f->reader);
    f->reader = NULL;
}

static void print_text(struct buf *out, struct str text) {
    for (size_t i = 0; i < text.len; i++)
        if (text.ptr[i] == '\n')
            buf_append_str(out, STR("\\n"));
        else
            buf_append_char(out, text.ptr[i]);
}

void reader_fixture_print(const struct reader_fixture *f, struct buf *out) {
    for (uint32_t i = 0; i < f->answer.n; i++) {
        const struct answer_part *p = &f->answer.part[i];

        if (p->kind == PART_CALL)
            buf_appendf(out, "%s %.*s ", p->is_cut ? "cut" : "call", STR_ARG(buf_str(&p->name)));
        else
            buf_appendf(out, p->kind == PART_TEXT ? "text " : "reasoning ");
        print_text(out, buf_str(&p->text));
        buf_append_char(out, '\n');
    }
}
