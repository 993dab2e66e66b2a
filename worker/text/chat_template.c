/* worker/text/chat_template.c - finding a model's template, and giving it what a request holds.
 *
 * Two courtesies that other engines show, and templates rely on: a list of text parts becomes one
 * string, joined by line ends, unless the template loops over content itself; and the arguments of
 * an earlier tool call, which clients send as a string of JSON, become the value they spell. */
#include "worker/text/chat_template.h"

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "worker/text/chat_fallback.h"
#include "worker/text/jinja.h"

#include <stdio.h>

#define MAX_CONFIG_BYTES ((size_t)16 << 20)

/* A run may use this much, and so many times the size of what it renders. */
#define BASE_MEMORY   ((size_t)32 << 20)
#define MEMORY_FACTOR 24

struct chat_template {
    struct jinja_program *program;
    struct chat_template *with_tools; /* the one named "tool_use", where a model has two; or NULL */
    char *bos, *eos;                  /* NULL: not defined */
};

/* --- where a template comes from ---------------------------------------------------------------*/
enum status chat_template_compile(struct chat_template **out, struct str source,
                                  struct error *err) {
    struct jinja_program *program = NULL;
    struct chat_template *t;
    enum status st;

    if (source.len > CHAT_TEMPLATE_MAX_BYTES) {
        return error_set_param(err, ST_TOO_LARGE, "chat_template",
                               "the chat template has %zu bytes; at most %u are read", source.len,
                               CHAT_TEMPLATE_MAX_BYTES);
    }
    if (!str_is_utf8(source)) {
        return error_set_param(err, ST_INVALID, "chat_template", "the chat template is not UTF-8");
    }
    st = jinja_compile(&program, source, err);
    if (st != ST_OK) {
        if (err) snprintf(err->param, sizeof(err->param), "chat_template");
        return st;
    }
    t = mem_zalloc(sizeof(*t));
    t->program = program;
    *out = t;
    return ST_OK;
}

struct chat_template *chat_template_builtin(const char *name) {
    struct str source = chat_fallback_source(name);
    struct chat_template *t = NULL;

    if (source.len && chat_template_compile(&t, source, NULL) != ST_OK) return NULL;
    return t;
}

void chat_template_destroy(struct chat_template *t) {
    if (!t) return;
    chat_template_destroy(t->with_tools);
    jinja_destroy(t->program);
    mem_free(t->bos);
    mem_free(t->eos);
    mem_free(t);
}

/* "bos_token" is a string, or an object with the string as content. */
static char *token_text(const struct json *config, const char *name) {
    const struct json *v = json_get(config, name);
    struct str s;

    if (json_type(v) == JSON_OBJECT) v = json_get(v, "content");
    return json_to_str(v, &s) == ST_OK ? mem_strndup(s.ptr, s.len) : NULL;
}

/* The template of that name in tokenizer_config.json, which has one string, or a list of {"name",
 * "template"}. */
static bool find_source(const struct json *config, const char *wanted, struct str *source) {
    const struct json *v = json_get(config, "chat_template");
    struct str name;

    if (json_to_str(v, source) == ST_OK) return strcmp(wanted, "default") == 0;
    JSON_FOR_EACH(item, v) {
        if (json_to_str(json_get(item, "name"), &name) == ST_OK && str_eq(name, str_of(wanted))) {
            return json_to_str(json_get(item, "template"), source) == ST_OK;
        }
    }
    return false;
}

static enum status read_config(const char *folder, struct json **config, struct error *err) {
    char path[4096], *text = NULL;
    size_t n = 0;
    enum status st;

    *config = NULL;
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", folder);
    if (!file_exists(path)) return ST_OK;
    st = file_read(path, MAX_CONFIG_BYTES, &text, &n, err);
    if (st == ST_OK) {
        st = json_parse(config, (struct str){text, n}, NULL, err);
        if (st != ST_OK) error_prefix(err, "%s", path);
    }
    mem_free(text);
    return st;
}

/* Compiles the file `name` of the folder, else the template `named` so in its configuration. *out stays
 * NULL when there is neither. */
static enum status compile_found(struct chat_template **out, const char *folder, const char *name,
                                 const struct json *config, const char *named, struct error *err) {
    char path[4096], *text = NULL;
    struct str source = STR_NULL;
    enum status st = ST_OK;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (file_exists(path)) {
        st = file_read(path, CHAT_TEMPLATE_MAX_BYTES, &text, &source.len, err);
        source.ptr = text;
    } else if (!find_source(config, named, &source)) {
        return ST_OK;
    }
    if (st == ST_OK) {
        st = chat_template_compile(out, source, err);
        if (st != ST_OK) error_prefix(err, "%s", folder);
    }
    mem_free(text);
    return st;
}

static enum status open_all(struct chat_template **out, const char *folder,
                            const struct json *config, const char **fallback, struct error *err) {
    enum status st = compile_found(out, folder, "chat_template.jinja", config, "default", err);

    *fallback = NULL;
    if (st != ST_OK) return st;
    if (!*out) {
        *fallback = chat_fallback_choose(folder);
        *out = chat_template_builtin(*fallback);
        if (!*out) return error_set(err, ST_INTERNAL, "a built-in chat template is broken");
    }
    return compile_found(&(*out)->with_tools, folder, "additional_chat_templates/tool_use.jinja",
                         config, "tool_use", err);
}

enum status chat_template_open(struct chat_template **out, const char *folder,
                               const char **fallback, struct error *err) {
    struct chat_template *t = NULL;
    struct json *config = NULL;
    enum status st = read_config(folder, &config, err);

    if (st == ST_OK) st = open_all(&t, folder, config, fallback, err);
    if (st == ST_OK) {
        t->bos = token_text(config, "bos_token");
        t->eos = token_text(config, "eos_token");
        *out = t;
    } else {
        chat_template_destroy(t);
    }
    json_destroy(config);
    return st;
}

/* --- from JSON to the template's values --------------------------------------------------------*/
struct converting {
    struct jinja_run *run;
    bool copies; /* strings: the JSON will not outlive the run */
    struct error *err;
};

static enum status convert(struct converting *c, const struct json *v, struct jv *out);

/* The reader keeps numbers by value: 1.0 arrives as 1. */
static enum status convert_number(const struct json *v, struct jv *out) {
    int64_t i;
    double f;

    if (json_to_i64(v, &i) == ST_OK) {
        *out = jv_int(i);
        return ST_OK;
    }
    if (json_to_f64(v, &f) != ST_OK) return ST_INTERNAL;
    *out = jv_float(f);
    return ST_OK;
}

static enum status convert_text(struct converting *c, struct str s, struct jv *out) {
    if (c->copies) return jv_copy(c->run, s, out);
    *out = jv_string(s);
    return ST_OK;
}

static enum status convert_list(struct converting *c, const struct json *v, struct jv *out) {
    enum status st = jv_new_list(c->run, json_count(v), out);

    for (const struct json *item = json_first(v); item && st == ST_OK; item = json_next(item)) {
        struct jv one;

        st = convert(c, item, &one);
        if (st == ST_OK) st = jv_push(c->run, *out, one);
    }
    return st;
}

static enum status convert_dict(struct converting *c, const struct json *v, struct jv *out) {
    enum status st = jv_new_dict(c->run, json_count(v), out);

    for (const struct json *item = json_first(v); item && st == ST_OK; item = json_next(item)) {
        struct jv key, one;

        st = convert_text(c, json_key(item), &key);
        if (st == ST_OK) st = convert(c, item, &one);
        if (st == ST_OK) st = jv_add(c->run, *out, key.as.string, one);
    }
    return st;
}

/* The JSON reader has limited the nesting. */
static enum status convert(struct converting *c, const struct json *v, struct jv *out) {
    struct str s;
    bool b = false;

    switch (json_type(v)) {
    case JSON_BOOL:
        if (json_to_bool(v, &b) != ST_OK) return ST_INTERNAL;
        *out = jv_bool(b);
        return ST_OK;
    case JSON_NUMBER: return convert_number(v, out);
    case JSON_STRING:
        if (json_to_str(v, &s) != ST_OK) return ST_INTERNAL;
        return convert_text(c, s, out);
    case JSON_ARRAY: return convert_list(c, v, out);
    case JSON_OBJECT: return convert_dict(c, v, out);
    default: *out = jv_none(); return ST_OK;
    }
}

/* --- messages ----------------------------------------------------------------------------------*/
/* The texts of a list of parts, a line end between them. */
static enum status join_parts(struct converting *c, const struct json *parts, struct jv *out) {
    struct buf text;
    enum status st = ST_OK;
    size_t i = 0;

    buf_init(&text, 0);
    JSON_FOR_EACH(part, parts) {
        struct str s = STR_NULL, type = STR("?");

        if (json_to_str(part, &s) != ST_OK && json_to_str(json_get(part, "text"), &s) != ST_OK) {
            if (json_to_str(json_get(part, "type"), &type) != ST_OK) type = STR("?");
            st =
                error_set_param(c->err, ST_INVALID, "messages",
                                "a content part of type '%.40s' has no text: this model takes text "
                                "only",
                                type.ptr);
            break;
        }
        if (i++) buf_append_char(&text, '\n');
        buf_append_str(&text, s);
    }
    if (st == ST_OK && buf_status(&text) != ST_OK) {
        st = error_set(c->err, ST_NOMEM, "no memory for the content of a message");
    }
    if (st == ST_OK) st = jv_copy(c->run, buf_str(&text), out);
    buf_fini(&text);
    return st;
}

/* "{\"city\": \"Rome\"}" becomes the mapping; what is no JSON stays the string it was. */
static enum status read_arguments(struct converting *c, struct jv function) {
    struct jv arguments = jv_get(c->run, function, STR("arguments")), value;
    struct converting copying = *c;
    struct json *root = NULL;
    enum status st;

    if (arguments.type != JV_STRING) return ST_OK;
    if (json_parse(&root, arguments.as.string, NULL, NULL) != ST_OK) return ST_OK;
    copying.copies = true;
    st = convert(&copying, root, &value);
    json_destroy(root);
    return st == ST_OK ? jv_set(c->run, function, jv_string(STR("arguments")), value) : st;
}

static enum status read_tool_calls(struct converting *c, struct jv message) {
    struct jv calls = jv_get(c->run, message, STR("tool_calls"));
    enum status st = ST_OK;

    if (calls.type != JV_LIST) return ST_OK;
    for (size_t i = 0; i < jv_list_count(calls) && st == ST_OK; i++) {
        st = read_arguments(c, jv_get(c->run, jv_list_at(calls, i), STR("function")));
    }
    return st;
}

static enum status convert_message(struct converting *c, const struct json *v, bool joins_parts,
                                   struct jv *out) {
    const struct json *content = json_get(v, "content");
    struct jv text;
    enum status st;

    if (json_type(v) != JSON_OBJECT || json_type(json_get(v, "role")) != JSON_STRING) {
        return error_set_param(c->err, ST_INVALID, "messages",
                               "each message is an object with a 'role' that is a string");
    }
    st = convert(c, v, out);
    if (st == ST_OK && joins_parts && json_type(content) == JSON_ARRAY) {
        st = join_parts(c, content, &text);
        if (st == ST_OK) st = jv_set(c->run, *out, jv_string(STR("content")), text);
    }
    return st == ST_OK ? read_tool_calls(c, *out) : st;
}

static enum status convert_messages(struct converting *c, const struct json *v, bool joins_parts,
                                    struct jv *out) {
    enum status st;

    if (json_type(v) != JSON_ARRAY) {
        return error_set_param(c->err, ST_INVALID, "messages", "messages must be an array");
    }
    st = jv_new_list(c->run, json_count(v), out);
    for (const struct json *item = json_first(v); item && st == ST_OK; item = json_next(item)) {
        struct jv message;

        st = convert_message(c, item, joins_parts, &message);
        if (st == ST_OK) st = jv_push(c->run, *out, message);
    }
    return st;
}

/* --- rendering ---------------------------------------------------------------------------------*/
static enum status set_variables(const struct chat_template *t, const struct jinja_program *program,
                                 struct converting *c, const struct chat_input *in) {
    const struct {
        const char *name;
        const struct json *value;
    } optional[] = {{"tools", in->tools}, {"documents", in->documents}};
    struct jv v;
    enum status st = convert_messages(c, in->messages, !jinja_reads_parts(program), &v);

    if (st == ST_OK) st = jinja_run_set(c->run, "messages", v);
    for (size_t i = 0; i < ARRAY_LEN(optional) && st == ST_OK; i++) {
        st = convert(c, optional[i].value, &v); /* none when absent, as transformers has it */
        if (st == ST_OK) st = jinja_run_set(c->run, optional[i].name, v);
    }
    if (st == ST_OK) {
        st = jinja_run_set(c->run, "add_generation_prompt", jv_bool(in->add_generation_prompt));
    }
    if (st == ST_OK && t->bos) st = jinja_run_set(c->run, "bos_token", jv_string(str_of(t->bos)));
    if (st == ST_OK && t->eos) st = jinja_run_set(c->run, "eos_token", jv_string(str_of(t->eos)));
    for (const struct json *k = json_first(in->kwargs); k && st == ST_OK; k = json_next(k)) {
        st = convert(c, k, &v);
        if (st == ST_OK) st = jinja_run_set(c->run, json_key(k).ptr, v);
    }
    return st;
}

/* Bytes of text and structure in a tree, roughly. */
static size_t weigh(const struct json *v) {
    struct str s = STR_NULL;
    size_t n = 64;

    if (json_to_str(v, &s) == ST_OK) n += s.len;
    JSON_FOR_EACH(item, v) n += weigh(item);
    return n;
}

enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct buf *out, struct error *err) {
    size_t n_input = weigh(in->messages) + weigh(in->tools) + weigh(in->documents);
    struct jinja_limits limits = {.max_memory_bytes = BASE_MEMORY + MEMORY_FACTOR * n_input};
    bool has_tools = t->with_tools && json_first(in->tools);
    const struct jinja_program *program = has_tools ? t->with_tools->program : t->program;
    struct jinja_run *run = jinja_run_create(program, &limits, in->now_s, err);
    struct converting c = {.run = run, .err = err};
    enum status st = set_variables(t, program, &c, in);

    if (st == ST_OK) st = jinja_run_render(run, out);
    jinja_run_destroy(run);
    return st;
}
