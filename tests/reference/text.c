/* tests/reference/text.c - a tokenizer or a chat template on a line of JSON each, for tokenizers.py
 * and templates.py.
 *
 *      text tokenize FOLDER < lines > lines     {"text": t}  or  {"ids": [...]}
 *      text render < lines > lines              {"template": t, "messages": [...], ...}
 *
 * A text is answered by {"ids": without, "framed": with what the post-processor adds, "decoded":
 * the text of the framed ids, "plain": without special tokens}; ids by {"decoded":, "plain":}. What
 * is streamed is checked here: always UTF-8, and joined the same as at once; otherwise we abort. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/text/detokenize.h"
#include "worker/text/template/chat_template.h"
#include "worker/text/tokenizer/tokenizer.h"

static void put_ids(struct json_writer *w, const char *name, const struct token_list *ids) {
    json_put_key(w, name);
    json_begin_array(w);
    for (size_t i = 0; i < ids->n; i++)
        json_put_u64(w, ids->ids[i]);
    json_end_array(w);
}

static void put_text(struct json_writer *w, const char *name, const struct tokenizer *t,
                     const struct token_list *ids, bool skip_special) {
    struct detokenizer d;
    struct buf whole, stream;

    buf_init(&whole, 0);
    buf_init(&stream, 0);
    detokenize(t, ids->ids, ids->n, skip_special, &whole);
    detokenizer_init(&d, t, skip_special);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = buf_len(&stream);

        detokenizer_push(&d, ids->ids[i], &stream);
        if (!str_is_utf8((struct str){buf_ptr(&stream) + before, buf_len(&stream) - before})) {
            abort();
        }
    }
    detokenizer_finish(&d, &stream);
    if (!str_eq(buf_str(&whole), buf_str(&stream))) abort();
    json_put_key(w, name);
    json_put_str(w, buf_str(&whole));
    buf_fini(&whole);
    buf_fini(&stream);
}

static void read_ids(const struct json *array, struct token_list *ids) {
    JSON_FOR_EACH(v, array) {
        uint64_t id = 0;

        if (json_to_u64(v, &id) != ST_OK || token_list_push(ids, (uint32_t)id) != ST_OK) abort();
    }
}

static void tokenize_line(const void *arg, const struct json *in, struct json_writer *w) {
    const struct tokenizer *t = arg;
    struct token_list ids = {0}, framed = {0};
    struct error err = {0};
    struct str text;

    if (json_to_str(json_get(in, "text"), &text) != ST_OK) {
        read_ids(json_get(in, "ids"), &framed);
    } else if (tokenizer_encode(t, text, 0, &ids, &err) == ST_OK &&
               tokenizer_encode(t, text, TOKENIZE_SPECIAL, &framed, &err) == ST_OK) {
        put_ids(w, "ids", &ids);
        put_ids(w, "framed", &framed);
    } else {
        json_put_key(w, "error");
        json_put_str(w, str_of(err.message));
    }
    put_text(w, "decoded", t, &framed, false);
    put_text(w, "plain", t, &framed, true);
    token_list_fini(&ids);
    token_list_fini(&framed);
}

static void render_line(const void *arg, const struct json *in, struct json_writer *w) {
    struct chat_input input = {.messages = json_get(in, "messages"),
                               .tools = json_get(in, "tools"),
                               .documents = json_get(in, "documents"),
                               .kwargs = json_get(in, "kwargs"),
                               .now_s = 1700000000};
    struct chat_template *t = NULL;
    struct str source = STR_NULL;
    struct error err = {0};
    struct buf out;
    enum status st;

    (void)arg;
    buf_init(&out, 0);
    if (json_is_null(input.tools)) input.tools = NULL;
    if (json_is_null(input.documents)) input.documents = NULL;
    if (json_to_bool(json_get(in, "add_generation_prompt"), &input.add_generation_prompt) !=
        ST_OK) {
        input.add_generation_prompt = false;
    }
    st = json_to_str(json_get(in, "template"), &source);
    if (st == ST_OK) st = chat_template_compile(&t, source, &err);
    if (st == ST_OK) st = chat_template_render(t, &input, &out, &err);
    json_put_key(w, st == ST_OK ? "text" : "error");
    json_put_str(w, st == ST_OK ? buf_str(&out) : str_of(err.message));
    chat_template_destroy(t);
    buf_fini(&out);
}

static int each_line(void (*answer)(const void *, const struct json *, struct json_writer *),
                     const void *arg) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct json *in = NULL;
        struct json_writer w;
        struct error err = {0};
        struct buf out;

        if (json_parse(&in, (struct str){line, (size_t)n}, NULL, &err) != ST_OK) {
            fprintf(stderr, "text: %s\n", err.message);
            return 1;
        }
        buf_init(&out, 0);
        json_writer_init(&w, &out);
        json_begin_object(&w);
        answer(arg, in, &w);
        json_end_object(&w);
        buf_append_char(&out, '\n');
        fwrite(buf_ptr(&out), 1, buf_len(&out), stdout);
        fflush(stdout);
        buf_fini(&out);
        json_destroy(in);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv) {
    struct tokenizer *t = NULL;
    struct error err = {0};
    int rc;

    if (argc == 2 && strcmp(argv[1], "render") == 0) return each_line(render_line, NULL);
    if (argc != 3 || strcmp(argv[1], "tokenize") != 0) {
        fprintf(stderr, "usage: text tokenize FOLDER | text render\n");
        return 2;
    }
    if (tokenizer_open(&t, argv[2], &err) != ST_OK) {
        fprintf(stderr, "text: %s\n", err.message);
        return 1;
    }
    rc = each_line(tokenize_line, t);
    tokenizer_destroy(t);
    return rc;
}
