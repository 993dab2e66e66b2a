/* worker/text/template/chat_template.c - finding a model's template, and giving it what a request
 * holds.
 *
 * What clients write into messages is brought to what templates expect by chat_messages.c. */
#include "worker/text/template/chat_template.h"

#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/text/template/chat_fallback.h"
#include "worker/text/template/chat_messages.h"
#include "worker/text/template/jinja.h"

#define MAX_CONFIG_BYTES ((size_t)16 << 20)

/* A run may use BASE_MEMORY bytes and MEMORY_FACTOR times the size of its input. */
#define BASE_MEMORY   ((size_t)32 << 20)
#define MEMORY_FACTOR 24

struct chat_template {
    struct jinja_program *program;
    char *source;
    bool has_developer;               /* it names the role `developer` */
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
                               "the chat template has %zu bytes: use at most %u", source.len,
                               CHAT_TEMPLATE_MAX_BYTES);
    }
    if (!str_is_utf8(source)) {
        return error_set_param(err, ST_INVALID, "chat_template",
                               "the chat template is not UTF-8: convert it");
    }
    st = jinja_compile(&program, source, err);
    if (st != ST_OK) {
        if (err) snprintf(err->param, sizeof(err->param), "chat_template");
        return st;
    }
    t = mem_zalloc(sizeof(*t));
    t->program = program;
    t->source = mem_strndup(source.ptr, source.len);
    t->has_developer = str_find(source, STR("developer")) >= 0;
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
    mem_free(t->source);
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

/* Compiles the file `name` of the folder, else the template `named` so in its configuration. *out
 * stays NULL when there is neither. */
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
        if (!*out)
            return error_set(err, ST_INTERNAL,
                             "a built-in chat template does not parse: report a bug");
    }
    return compile_found(&(*out)->with_tools, folder, "additional_chat_templates/tool_use.jinja",
                         config, "tool_use", err);
}

struct str chat_template_source(const struct chat_template *t) {
    return str_of(t->with_tools ? t->with_tools->source : t->source);
}

/* A template on a command line has no line ends: \\n stands for one. */
static char *unescape(const char *text, size_t *n) {
    char *out = mem_alloc(strlen(text) + 1);

    for (*n = 0; *text; text++) {
        if (text[0] == '\\' && text[1] == 'n') {
            out[(*n)++] = '\n';
            text++;
        } else if (text[0] == '\\' && text[1] == 't') {
            out[(*n)++] = '\t';
            text++;
        } else {
            out[(*n)++] = *text;
        }
    }
    return out;
}

static enum status compile_given(struct chat_template **out, const char *given, struct error *err) {
    char *text = NULL;
    size_t n = 0;
    enum status st = ST_OK;

    if (file_exists(given)) {
        st = file_read(given, CHAT_TEMPLATE_MAX_BYTES, &text, &n, err);
        if (st == ST_OK && str_ends(str_of(given), STR(".json")))
            st = error_set(err, ST_INVALID, "the file is JSON: use a chat template in Jinja");
        if (st == ST_OK) st = chat_template_compile(out, (struct str){text, n}, err);
        if (st != ST_OK) error_prefix(err, "--chat-template %s", given);
    } else if (strpbrk(given, "{}\n")) {
        text = unescape(given, &n);
        st = chat_template_compile(out, (struct str){text, n}, err);
        if (st != ST_OK) error_prefix(err, "--chat-template");
    } else {
        *out = chat_template_builtin(given);
        if (!*out)
            st = error_set_param(err, ST_INVALID, "chat-template",
                                 "--chat-template %s is neither a file nor a template nor a "
                                 "built-in name (" CHAT_FALLBACK_NAMES "): name a Jinja file",
                                 given);
    }
    mem_free(text);
    return st;
}

enum status chat_template_open(struct chat_template **out, const char *folder, const char *given,
                               const char **fallback, struct error *err) {
    struct chat_template *t = NULL;
    struct json *config = NULL;
    enum status st = read_config(folder, &config, err);

    *fallback = NULL;
    if (st == ST_OK)
        st = given ? compile_given(&t, given, err) : open_all(&t, folder, config, fallback, err);
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

/* --- rendering ---------------------------------------------------------------------------------*/
static enum status set_members(struct chat_conversion *c, const struct json *object) {
    enum status st = ST_OK;
    struct jv v;

    for (const struct json *k = json_first(object); k && st == ST_OK; k = json_next(k)) {
        st = chat_convert(c, k, &v);
        if (st == ST_OK) st = jinja_run_set(c->run, json_key(k).ptr, v);
    }
    return st;
}

/* "none" turns reasoning off, under the names that templates have for it. */
static enum status set_effort(struct chat_conversion *c, struct str effort) {
    bool is_off = str_eq(effort, STR("none"));
    enum status st = jinja_run_set(c->run, "reasoning_effort", jv_string(effort));

    if (st == ST_OK && is_off) st = jinja_run_set(c->run, "enable_thinking", jv_bool(false));
    if (st == ST_OK && is_off) st = jinja_run_set(c->run, "thinking", jv_bool(false));
    return st;
}

static enum status set_variables(const struct chat_template *t, struct chat_conversion *c,
                                 const struct chat_input *in) {
    const struct {
        const char *name;
        const struct json *value;
    } optional[] = {{"tools", in->tools}, {"documents", in->documents}};
    struct jv v;
    enum status st = chat_convert_messages(c, in->messages, &v);

    if (st == ST_OK) st = jinja_run_set(c->run, "messages", v);
    for (size_t i = 0; i < ARRAY_LEN(optional) && st == ST_OK; i++) {
        st = chat_convert(c, optional[i].value, &v); /* none when absent, as transformers has it */
        if (st == ST_OK) st = jinja_run_set(c->run, optional[i].name, v);
    }
    if (st == ST_OK) {
        st = jinja_run_set(c->run, "add_generation_prompt", jv_bool(in->add_generation_prompt));
    }
    if (st == ST_OK && t->bos) st = jinja_run_set(c->run, "bos_token", jv_string(str_of(t->bos)));
    if (st == ST_OK && t->eos) st = jinja_run_set(c->run, "eos_token", jv_string(str_of(t->eos)));
    if (st == ST_OK) st = set_members(c, in->defaults);
    if (st == ST_OK && in->effort.ptr) st = set_effort(c, in->effort);
    return st == ST_OK ? set_members(c, in->kwargs) : st;
}

/* Bytes of text and structure in a tree, roughly. */
static size_t weigh(const struct json *v) {
    struct str s = STR_NULL;
    size_t n = 64;

    if (json_to_str(v, &s) == ST_OK) n += s.len;
    JSON_FOR_EACH(item, v) n += weigh(item);
    return n;
}

static enum status render_once(const struct chat_template *t, const struct chat_input *in,
                               struct chat_conversion *c, struct buf *out) {
    size_t n_input = weigh(in->messages) + weigh(in->tools) + weigh(in->documents);
    struct jinja_limits limits = {.max_memory_bytes = BASE_MEMORY + MEMORY_FACTOR * n_input};
    const struct chat_template *chosen = t->with_tools && json_first(in->tools) ? t->with_tools : t;
    enum status st;

    c->run = jinja_run_create(chosen->program, &limits, in->now_s, c->err);
    c->program = chosen->program;
    c->has_developer = chosen->has_developer;
    st = set_variables(t, c, in);
    if (st == ST_OK) st = jinja_run_render(c->run, out);
    jinja_run_destroy(c->run);
    return st;
}

/* Once more, with messages converted in another way. */
static enum status render_again(const struct chat_template *t, const struct chat_input *in,
                                struct chat_conversion *c, size_t n_before, struct buf *out) {
    buf_truncate(out, n_before);
    if (c->err) *c->err = (struct error){0};
    return render_once(t, in, c, out);
}

/* A template that tests content for none may still not accept null everywhere, and one that reads
 * arguments as a mapping accepts no string, which a truncated tool call leaves. Some join them to
 * text and accept nothing else; if that fails too, the reason before it is the better one. */
enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct buf *out, struct error *err) {
    struct chat_conversion c = {.err = err};
    size_t n_before = buf_len(out);
    enum status st = render_once(t, in, &c, out);
    struct error before;

    if (st == ST_INVALID && c.was_generous) {
        c.is_plain = true;
        st = render_again(t, in, &c, n_before, out);
    }
    if (st != ST_INVALID || !c.was_parsed) return st;
    before = err ? *err : (struct error){0};
    c.is_plain = false;
    c.has_spelt = true;
    st = render_again(t, in, &c, n_before, out);
    if (st == ST_INVALID && err) *err = before;
    return st;
}

bool chat_template_takes_late_system(const struct chat_template *t) {
    static const char messages[] = "[{\"role\":\"system\",\"content\":\"probe 1\"},"
                                   "{\"role\":\"user\",\"content\":\"probe 2\"},"
                                   "{\"role\":\"system\",\"content\":\"probe 3\"},"
                                   "{\"role\":\"user\",\"content\":\"probe 4\"}]";
    struct chat_input in = {.add_generation_prompt = true};
    struct json *root = NULL;
    struct buf text;
    bool takes;

    buf_init(&text, 0);
    takes = json_parse(&root, str_of(messages), NULL, NULL) == ST_OK;
    in.messages = root;
    takes = takes && chat_template_render(t, &in, &text, NULL) == ST_OK &&
            str_find(buf_str(&text), STR("probe 3")) >= 0;
    json_destroy(root);
    buf_fini(&text);
    return takes;
}
