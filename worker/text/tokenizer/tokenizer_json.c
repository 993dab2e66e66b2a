/* worker/text/tokenizer/tokenizer_json.c - small readers over common/text/json.h. */
#include "worker/text/tokenizer/tokenizer_json.h"

#include "common/text/json.h"
#include "worker/text/tokenizer/pattern.h"

bool tokenizer_json_is(const struct json *object, const char *type) {
    struct str name;

    return json_to_str(json_get(object, "type"), &name) == ST_OK && str_eq(name, str_of(type));
}

const char *tokenizer_json_type(const struct json *object) {
    struct str name;

    return json_to_str(json_get(object, "type"), &name) == ST_OK ? name.ptr : "(none)";
}

bool tokenizer_json_true(const struct json *object, const char *name, bool when_absent) {
    bool value = when_absent;

    return json_to_bool(json_get(object, name), &value) == ST_OK ? value : when_absent;
}

enum status tokenizer_json_pattern(const struct json *object, struct pattern *out,
                                   struct error *err) {
    const struct json *v = json_get(object, "pattern");
    struct str text;

    if (json_to_str(json_get(v, "String"), &text) == ST_OK && text.len) {
        pattern_literal(out, text);
        return ST_OK;
    }
    if (json_to_str(json_get(v, "Regex"), &text) == ST_OK) return pattern_regex(out, text, err);
    return error_set(err, ST_INVALID,
                     "unsupported pattern of %.40s: supported are String and Regex",
                     tokenizer_json_type(object));
}
