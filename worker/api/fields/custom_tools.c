/* worker/api/fields/custom_tools.c - see custom_tools.h. */
#include "worker/api/fields/custom_tools.h"

#include "common/base/buf.h"
#include "common/text/json.h"

static bool is_custom(const struct json *tool) {
    struct str type;

    return json_to_str(json_get(tool, "type"), &type) == ST_OK && str_eq(type, STR("custom"));
}

static struct str text_of(const struct json *object, const char *name) {
    struct str text = STR_NULL;

    return json_to_str(json_get(object, name), &text) == ST_OK ? text : STR_NULL;
}

/* --- formats ---------------------------------------------------------------------------------- */

struct format {
    struct str syntax, definition; /* STR_NULL: any text */
};

static enum status read_format(const struct json *custom, struct format *out, struct error *err) {
    const struct json *format = json_get(custom, "format"), *grammar = json_get(format, "grammar");
    struct str name = text_of(custom, "name"), type = text_of(format, "type");

    *out = (struct format){STR_NULL, STR_NULL};
    if (json_is_null(format) || str_eq(type, STR("text"))) return ST_OK;
    if (json_is_null(grammar)) grammar = format;
    out->syntax = text_of(grammar, "syntax");
    out->definition = text_of(grammar, "definition");
    if (str_eq(type, STR("grammar")) && out->definition.len > 0 &&
        (str_eq(out->syntax, STR("lark")) || str_eq(out->syntax, STR("regex"))))
        return ST_OK;
    return error_set_param(
        err, ST_INVALID, "tools",
        "the format of the custom tool \"%.*s\" must be {\"type\": \"text\"}, or "
        "{\"type\": \"grammar\"} with a syntax, \"lark\" or \"regex\", and a "
        "definition that is not empty",
        (int)MIN(name.len, 64), name.ptr);
}

/* --- functions -------------------------------------------------------------------------------- */

static void put_description(struct json_writer *w, const struct json *custom,
                            const struct format *format) {
    struct buf text;

    buf_init(&text, 0);
    buf_append_str(&text, text_of(custom, "description"));
    if (format->definition.ptr) {
        if (buf_len(&text)) buf_append_char(&text, '\n');
        buf_appendf(&text, "The input must match this %s:\n",
                    str_eq(format->syntax, STR("lark")) ? "Lark grammar" : "regular expression");
        buf_append_str(&text, format->definition);
    }
    if (buf_len(&text)) json_field_str(w, "description", buf_str(&text));
    if (text.has_failed) w->out->has_failed = true;
    buf_fini(&text);
}

static void put_function(struct json_writer *w, const struct json *custom,
                         const struct format *format) {
    json_put_key(w, "function");
    json_begin_object(w);
    json_put_key(w, "name");
    json_put_tree(w, json_get(custom, "name"));
    put_description(w, custom, format);
    json_put_key(w, "parameters");
    json_put_raw(w, STR("{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},"
                        "\"required\":[\"input\"],\"additionalProperties\":false}"));
    json_end_object(w);
}

static enum status put_custom(struct json_writer *w, const struct json *tool, size_t i,
                              bool has_formats, struct error *err) {
    const struct json *custom = json_get(tool, "custom");
    struct format format;
    enum status st;

    if (!text_of(custom, "name").ptr) {
        return error_set_param(err, ST_INVALID, "tools",
                               "tools[%zu] must be {\"type\": \"custom\", \"custom\": {\"name\", "
                               "\"description\", \"format\"}}",
                               i);
    }
    if ((st = read_format(custom, &format, err)) != ST_OK) return st;
    json_begin_object(w);
    json_field_z(w, "type", "function");
    put_function(w, custom, &format);
    if (has_formats && format.definition.ptr) {
        json_put_key(w, "format");
        json_begin_object(w);
        json_field_str(w, "syntax", format.syntax);
        json_field_str(w, "definition", format.definition);
        json_end_object(w);
    }
    json_end_object(w);
    return ST_OK;
}

static bool has_any(const struct json *tools) {
    JSON_FOR_EACH(tool, tools) {
        if (is_custom(tool)) return true;
    }
    return false;
}

enum status custom_tools_read(struct json **out, const struct json *tools, bool has_formats,
                              struct error *err) {
    struct json_limits limits = {.max_depth = 512};
    struct json_writer w;
    struct buf text;
    size_t i = 0;
    enum status st = ST_OK;

    *out = NULL;
    if (!has_any(tools)) return ST_OK;
    buf_init(&text, 0);
    json_writer_init(&w, &text);
    json_begin_array(&w);
    JSON_FOR_EACH(tool, tools) {
        if (st == ST_OK && is_custom(tool)) {
            st = put_custom(&w, tool, i, has_formats, err);
        } else if (st == ST_OK) {
            json_put_tree(&w, tool);
        }
        i++;
    }
    json_end_array(&w);
    limits.max_bytes = buf_len(&text) + 1;
    if (st == ST_OK) st = json_parse(out, buf_str(&text), &limits, err);
    buf_fini(&text);
    return st;
}

bool custom_tools_has(const struct json *tools, struct str name) {
    JSON_FOR_EACH(tool, tools) {
        if (is_custom(tool) && str_eq(text_of(json_get(tool, "custom"), "name"), name)) return true;
    }
    return false;
}
