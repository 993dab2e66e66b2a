/* worker/worker_defaults.c - see the header. */
#include "worker/worker_defaults.h"

#include <stdio.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/text/json.h"

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
