/* tests/unit/worker/text/tokenizer/test_text_reference.c - tokenizers and chat templates beside
 * what the reference libraries made of the same; tests/reference/tokenization.py, templates.py and
 * histories.py wrote it down. */
#include <dirent.h>
#include <stdio.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/detokenize.h"
#include "worker/text/template/chat_template.h"
#include "worker/text/tokenizer/tokenizer.h"

#define TOKENIZERS "tests/data/tokenizers"

static struct json *read_json(const char *path) {
    struct json *root = NULL;
    struct error err = {0};
    char *text = NULL;
    size_t n = 0;

    if (file_read(path, 64 << 20, &text, &n, &err) != ST_OK) fail_msg("%s", err.message);
    if (json_parse(&root, (struct str){text, n}, NULL, &err) != ST_OK) fail_msg("%s", err.message);
    mem_free(text);
    return root;
}

static struct str string_of(const struct json *object, const char *name) {
    struct str s = STR_NULL;

    if (json_to_str(json_get(object, name), &s) != ST_OK) fail_msg("no string '%s'", name);
    return s;
}

/* --- tokenizers --------------------------------------------------------------------------------*/
static void assert_ids(const char *style, const struct json *c, const char *field,
                       const struct token_list *got) {
    size_t i = 0;

    JSON_FOR_EACH(v, json_get(c, field)) {
        uint64_t want = 0;

        assert_int_equal(json_to_u64(v, &want), ST_OK);
        if (i >= got->n || got->ids[i] != want) {
            fail_msg("%s, '%s': %s[%zu] is %d, want %u", style, string_of(c, "text").ptr, field, i,
                     i < got->n ? (int)got->ids[i] : -1, (unsigned)want);
        }
        i++;
    }
    assert_int_equal(got->n, i);
}

/* At once, and as a stream whose parts are each UTF-8. */
static void assert_text(const char *style, const struct tokenizer *t, const struct json *c,
                        const char *field, const struct token_list *ids, bool skip_special) {
    struct str want = string_of(c, field);
    struct detokenizer d;
    struct buf text;

    buf_init(&text, 0);
    detokenize(t, ids->ids, ids->n, skip_special, &text);
    if (!str_eq(buf_str(&text), want)) {
        fail_msg("%s, %s: '" STR_FMT "', want '%s'", style, field, STR_ARG(buf_str(&text)),
                 want.ptr);
    }
    buf_clear(&text);
    detokenizer_init(&d, t, skip_special);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = buf_len(&text);

        detokenizer_push(&d, ids->ids[i], &text);
        assert_true(str_is_utf8((struct str){buf_ptr(&text) + before, buf_len(&text) - before}));
    }
    detokenizer_finish(&d, &text);
    assert_true(str_eq(buf_str(&text), want));
    buf_fini(&text);
}

static void check_style(const char *style, const struct json *data) {
    struct json_writer w;
    struct tokenizer *t = NULL;
    struct error err = {0};
    struct buf file;
    uint64_t most;
    enum status st;

    buf_init(&file, 0);
    json_writer_init(&w, &file);
    json_put_tree(&w, json_get(data, "tokenizer"));
    st = tokenizer_parse(&t, buf_str(&file), STR_NULL, &err);
    buf_fini(&file);
    if (st != ST_OK) fail_msg("%s: %s", style, err.message);
    most = tokenizer_max_bytes_per_token(t);
    JSON_FOR_EACH(c, json_get(data, "cases")) {
        struct token_list ids = {0}, framed = {0};
        struct str text = string_of(c, "text");

        st = tokenizer_encode(t, text, 0, &ids, &err);
        assert_int_equal(st, ST_OK);
        assert_int_equal(tokenizer_encode(t, text, TOKENIZE_SPECIAL, &framed, &err), ST_OK);
        assert_ids(style, c, "ids", &ids);
        assert_ids(style, c, "framed", &framed);
        if (text.len > most * ids.n && most > 0) {
            fail_msg("%s, '%s': %zu bytes are %zu tokens, which hold at most %llu each", style,
                     text.ptr, text.len, ids.n, (unsigned long long)most);
        }
        assert_text(style, t, c, "decoded", &framed, false);
        assert_text(style, t, c, "plain", &framed, true);
        token_list_fini(&ids);
        token_list_fini(&framed);
    }
    tokenizer_destroy(t);
}

static void tokenizers_of_all_styles_do_as_the_library(void **state) {
    DIR *dir = opendir(TOKENIZERS);
    struct dirent *entry;
    int n = 0;

    (void)state;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char path[512];
        struct json *data;

        if (!str_ends(str_of(entry->d_name), STR(".json"))) continue;
        snprintf(path, sizeof(path), TOKENIZERS "/%s", entry->d_name);
        data = read_json(path);
        check_style(entry->d_name, data);
        json_destroy(data);
        n++;
    }
    closedir(dir);
    assert_true(n >= 20);
}

/* --- chat templates ----------------------------------------------------------------------------*/
static void check_case(const struct json *data, const struct json *c) {
    struct str name = string_of(c, "template");
    struct chat_input in = {
        .messages = json_get(json_get(data, "conversations"), string_of(c, "conversation").ptr),
        .kwargs = json_get(c, "kwargs"),
        .now_s = 1700000000};
    bool has_tools = false, has_documents = false, fails = !json_is_null(json_get(c, "failed"));
    struct chat_template *t = NULL;
    struct error err = {0};
    struct buf out;
    enum status st;

    assert_int_equal(json_to_bool(json_get(c, "has_tools"), &has_tools), ST_OK);
    assert_int_equal(json_to_bool(json_get(c, "has_documents"), &has_documents), ST_OK);
    assert_int_equal(json_to_bool(json_get(c, "add_generation_prompt"), &in.add_generation_prompt),
                     ST_OK);
    if (has_tools) in.tools = json_get(data, "tools");
    if (has_documents) in.documents = json_get(data, "documents");
    st = chat_template_compile(&t, string_of(json_get(data, "templates"), name.ptr), &err);
    if (st != ST_OK) fail_msg("%s: %s", name.ptr, err.message);
    buf_init(&out, 0);
    st = chat_template_render(t, &in, &out, &err);
    if (!json_is_null(json_get(c, "text"))) {
        if (st != ST_OK) fail_msg("%s: %s", name.ptr, err.message);
        if (!str_eq(buf_str(&out), string_of(c, "text"))) {
            fail_msg("%s: got\n" STR_FMT "\nwant\n%s", name.ptr, STR_ARG(buf_str(&out)),
                     string_of(c, "text").ptr);
        }
    } else if (fails) {
        assert_int_not_equal(st, ST_OK);
    } else {
        assert_int_equal(st, ST_INVALID);
        assert_string_equal(err.message, string_of(c, "raised").ptr);
    }
    buf_fini(&out);
    chat_template_destroy(t);
}

static void templates_render_as_jinja_does(void **state) {
    struct json *data = read_json("tests/data/templates.json");

    (void)state;
    JSON_FOR_EACH(c, json_get(data, "cases")) check_case(data, c);
    json_destroy(data);
}

/* What clients put on the wire in the middle of a conversation. */
static void check_history(const struct json *templates, const struct json *history) {
    const char *client = string_of(history, "client").ptr;
    const struct json *body = json_get(history, "body");
    struct chat_input in = {.messages = json_get(body, "messages"),
                            .tools = json_get(body, "tools"),
                            .add_generation_prompt = true,
                            .now_s = 1700000000};
    struct json *kwargs = NULL;

    assert_int_equal(
        json_parse(&kwargs, STR("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}"), NULL, NULL),
        ST_OK);
    in.kwargs = kwargs;
    JSON_FOR_EACH(prompt, json_get(history, "prompts")) {
        struct str name = json_key(prompt), want;
        struct chat_template *t = NULL;
        struct error err = {0};
        struct buf out;
        enum status st;

        buf_init(&out, 0);
        assert_int_equal(chat_template_compile(&t, string_of(templates, name.ptr), &err), ST_OK);
        st = chat_template_render(t, &in, &out, &err);
        if (json_to_str(json_get(prompt, "raised"), &want) == ST_OK) {
            assert_int_equal(st, ST_INVALID);
            assert_string_equal(err.message, want.ptr);
        } else if (st != ST_OK) {
            fail_msg("%s, %s: %s", client, name.ptr, err.message);
        } else if (!str_eq(buf_str(&out), string_of(prompt, "text"))) {
            fail_msg("%s, %s: got\n" STR_FMT "\nwant\n%s", client, name.ptr, STR_ARG(buf_str(&out)),
                     string_of(prompt, "text").ptr);
        }
        buf_fini(&out);
        chat_template_destroy(t);
    }
    json_destroy(kwargs);
}

static void histories_of_clients_render_as_jinja_does(void **state) {
    struct json *data = read_json("tests/data/histories.json");

    (void)state;
    assert_true(json_count(json_get(data, "histories")) >= 20);
    JSON_FOR_EACH(history, json_get(data, "histories")) {
        check_history(json_get(data, "templates"), history);
    }
    json_destroy(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizers_of_all_styles_do_as_the_library),
        cmocka_unit_test(templates_render_as_jinja_does),
        cmocka_unit_test(histories_of_clients_render_as_jinja_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
