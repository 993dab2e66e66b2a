/* worker/worker_defaults.c - see the header. */
#include "worker/worker_defaults.h"

#include <stdio.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "worker/text/tokenizer/tokenizer.h"

#define FILE_MAX_BYTES ((size_t)1 << 20)

static enum status read_folder(const char *folder, struct generation_config *out,
                               struct error *err) {
    char path[4096], ignored[64], *text = NULL;
    size_t n = 0;
    enum status st;

    snprintf(path, sizeof(path), "%s/generation_config.json", folder);
    if (!file_exists(path))
        return error_set_param(
            err, ST_NOT_FOUND, "generation-config",
            "--generation-config %s has no generation_config.json: name a folder "
            "that has one, auto for the model's, or vllm for none",
            folder);
    st = file_read(path, FILE_MAX_BYTES, &text, &n, err);
    if (st == ST_OK) st = generation_config_merge(out, (struct str){text, n}, ignored, err);
    if (st != ST_OK) error_prefix(err, "--generation-config: %s", path);
    mem_free(text);
    return st;
}

enum status worker_generation_defaults(const struct worker_options *o,
                                       const struct model_config *model, struct log *log,
                                       struct generation_config *out, struct error *err) {
    char ignored[64];
    enum status st = ST_OK;

    *out = (struct generation_config){0};
    if (strcmp(o->generation_config, "auto") == 0)
        *out = model->generation;
    else if (strcmp(o->generation_config, "vllm") != 0)
        st = read_folder(o->generation_config, out, err);
    if (st != ST_OK || !o->generation_overrides) return st;
    st = generation_config_merge(out, str_of(o->generation_overrides), ignored, err);
    if (st != ST_OK) return error_prefix(err, "--override-generation-config");
    if (ignored[0] && log)
        log_event(log, LOG_WARN, "generation_override_ignored", log_z("member", ignored));
    return ST_OK;
}

enum status worker_template_defaults(const struct worker_options *o, struct json **out,
                                     struct error *err) {
    enum status st;

    *out = NULL;
    if (!o->chat_template_kwargs) return ST_OK;
    st = json_parse(out, str_of(o->chat_template_kwargs), NULL, err);
    if (st == ST_OK && json_type(*out) != JSON_OBJECT) {
        st = error_set(err, ST_INVALID, "an object is expected, not %s", json_type_name(*out));
        json_destroy(*out);
        *out = NULL;
    }
    return st == ST_OK ? ST_OK : error_prefix(err, "--default-chat-template-kwargs");
}

/* --- how answers are read --------------------------------------------------------------------- */

static bool find_token(const void *arg, struct str text, uint32_t *id) {
    return tokenizer_find(arg, text, id);
}

struct output_model worker_output_model(const struct tokenizer *tokenizer,
                                        struct str chat_template) {
    return (struct output_model){
        .chat_template = chat_template, .arg = tokenizer, .find_token = find_token};
}

/* Command lines of other engines name formats of models that came after this worker: what the
 * template has is then the best that can be known. */
static void report_unknown(struct log *log, const char *option, const struct error *err) {
    if (log)
        log_event(log, LOG_WARN, "format_unknown", log_z("option", option),
                  log_z("why", err->message));
}

void worker_output_formats(const struct worker_options *o, const struct output_model *model,
                           struct log *log, const struct call_format **calls,
                           const struct reasoning_format **reasoning) {
    struct str call_name = str_of(o->tool_call_parser);
    struct str reasoning_name = str_of(o->reasoning_parser);
    bool is_auto = str_eq(call_name, STR("auto"));
    struct error err = {0};

    *calls = NULL;
    *reasoning = NULL;
    if (!is_auto && !str_eq(call_name, STR("none"))) {
        *calls = call_format_find(call_name, &err);
        is_auto = !*calls;
        if (is_auto) report_unknown(log, "tool-call-parser", &err);
    }
    if (is_auto) *calls = call_format_detect(model);
    is_auto = str_eq(reasoning_name, STR("auto"));
    if (!is_auto && !str_eq(reasoning_name, STR("none"))) {
        *reasoning = reasoning_format_find(reasoning_name, &err);
        is_auto = !*reasoning;
        if (is_auto) report_unknown(log, "reasoning-parser", &err);
    }
    if (is_auto) *reasoning = reasoning_format_detect(model);
}

/* Switches of published templates that drop the reasoning of earlier turns, and what keeps it. */
static const struct {
    const char *name; /* of the variable */
    bool value;
} reasoning_switches[] = {{"preserve_thinking", true},           /* Qwen */
                          {"clear_thinking", false},             /* GLM */
                          {"truncate_history_thinking", false}}; /* Nemotron, Granite */

enum status worker_keep_reasoning(struct json **kwargs, struct str chat_template, struct log *log,
                                  struct error *err) {
    struct json_writer w;
    struct buf text;
    uint32_t n = 0;
    enum status st = ST_OK;

    buf_init(&text, 0);
    json_writer_init(&w, &text);
    json_begin_object(&w);
    JSON_FOR_EACH(it, *kwargs) {
        json_put_key_str(&w, json_key(it));
        json_put_tree(&w, it);
    }
    for (size_t i = 0; i < ARRAY_LEN(reasoning_switches); i++) {
        const char *name = reasoning_switches[i].name;

        if (str_find(chat_template, str_of(name)) < 0) continue;
        n++;
        if (!json_get(*kwargs, name)) json_field_bool(&w, name, reasoning_switches[i].value);
    }
    json_end_object(&w);
    if (n == 0) {
        if (log) log_event(log, LOG_WARN, "reasoning_not_kept");
    } else {
        json_destroy(*kwargs);
        st = json_parse(kwargs, buf_str(&text), NULL, err);
    }
    buf_fini(&text);
    return st;
}
