/* worker/output/output_tag_arguments.c - the arguments of a call: by the tool's schema, or by the
 * grammar of a custom tool.
 *
 *      JSON       {"x": 5}
 *      styles     <parameter=x>\n5\n</parameter>\n      strings as they are
 *      literals   x=5                                  values one by one */
#include "worker/output/output_tag_internal.h"

#define CUSTOM_INPUT "input" /* the one argument of a custom tool */

/* --- arguments -------------------------------------------------------------------------------- */

const struct json *tag_function_of(const struct json *tool) {
    const struct json *function = json_get(tool, "function");

    return function ? function : tool;
}

/* Of a custom tool: {"syntax", "definition"}. */
static const struct json *format_of(const struct json *tool) {
    return json_get(tool, "format");
}

bool tag_is_strict(const struct json *tool) {
    bool strict = false;

    if (format_of(tool)) return true;
    return json_to_bool(json_get(tag_function_of(tool), "strict"), &strict) == ST_OK && strict;
}

/* Arguments obey the tool's schema where a call was asked for, or the tool asks for it. */
static bool is_by_schema(const struct tag_writer *x, const struct json *tool) {
    return x->t->choice == TOOLS_REQUIRED || x->t->choice == TOOLS_NAMED || tag_is_strict(tool);
}

static void put_schema(struct tag_writer *x, const struct json *tool) {
    const struct json *schema = json_get(tag_function_of(tool), "parameters");

    json_put_key(&x->w, "json_schema");
    if (!is_by_schema(x, tool))
        json_put_raw(&x->w, STR("{\"type\":\"object\"}"));
    else if (json_type(schema) == JSON_OBJECT && json_first(schema))
        json_put_tree(&x->w, schema);
    else
        json_put_raw(&x->w, STR("{\"type\":\"object\",\"properties\":{},"
                                "\"additionalProperties\":false}"));
}

/* Without the newlines around it, which models leave out. */
static void put_exclude(struct tag_writer *x, const char *text) {
    struct str s = str_of(text);

    while (s.len > 0 && *s.ptr == '\n')
        s = (struct str){s.ptr + 1, s.len - 1};
    if (s.len > 0) json_put_str(&x->w, s);
}

/* Readers find the end of a value where the next one or the end of the call follows, and forgive
 * what is missing between: so text holds none of these. */
static void put_excludes(struct tag_writer *x, const char *more) {
    const struct call_format *f = x->f;
    const char *const texts[] = {f->spelling.key, f->arguments_end, f->close, f->section_end};

    json_put_key(&x->w, "excludes");
    json_begin_array(&x->w);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        put_exclude(x, texts[i]);
    if (more) put_exclude(x, more);
    json_end_array(&x->w);
}

static void put_style(struct tag_writer *x) {
    json_put_key(&x->w, "style");
    json_begin_object(&x->w);
    json_field_z(&x->w, "key", x->f->spelling.key);
    json_field_z(&x->w, "text", x->f->spelling.text);
    if (x->f->spelling.json) json_field_z(&x->w, "json", x->f->spelling.json);
    json_field_z(&x->w, "end", x->f->spelling.end);
    put_excludes(x, NULL);
    json_end_object(&x->w);
}

static bool is_string(const struct json *schema) {
    struct str type;

    return json_to_str(json_get(schema, "type"), &type) == ST_OK && str_eq(type, STR("string")) &&
           !json_get(schema, "enum") && !json_get(schema, "const");
}

static void put_value_schema(struct tag_writer *x, const char *keyword, const struct json *value) {
    tag_begin_format(x, "json_schema");
    json_put_key(&x->w, "json_schema");
    if (keyword) {
        json_begin_object(&x->w);
        json_put_key(&x->w, keyword);
    }
    json_put_tree(&x->w, value);
    if (keyword) json_end_object(&x->w);
    json_end_object(&x->w);
}

/* A string between its quotes, which are no JSON's; of another value the literal is JSON. */
static void put_quoted(struct tag_writer *x, const struct json *value) {
    struct str s;
    struct buf text;

    if (json_to_str(value, &s) != ST_OK) {
        put_value_schema(x, "const", value);
        return;
    }
    buf_init(&text, 0);
    buf_append_str(&text, str_of(x->f->spelling.quote));
    buf_append_str(&text, s);
    buf_append_str(&text, str_of(x->f->spelling.quote));
    tag_begin_format(x, "const_string");
    json_put_key(&x->w, "value");
    json_put_str(&x->w, buf_str(&text));
    json_end_object(&x->w);
    buf_fini(&text);
}

static void put_literal(struct tag_writer *x, const struct json *schema) {
    const struct json *constant = json_get(schema, "const"), *choices = json_get(schema, "enum");

    json_put_key(&x->w, "content");
    if (!x->f->spelling.quote) {
        put_value_schema(x, NULL, schema);
    } else if (constant) {
        put_quoted(x, constant);
    } else if (json_first(choices)) {
        tag_begin_list(x, "or", "elements");
        JSON_FOR_EACH(it, choices) put_quoted(x, it);
        tag_end_list(x);
    } else if (is_string(schema)) {
        tag_begin_list(x, "sequence", "elements");
        tag_put_text(x, x->f->spelling.quote);
        tag_put_any_text(x, x->f->spelling.quote);
        tag_put_text(x, x->f->spelling.quote);
        tag_end_list(x);
    } else {
        put_value_schema(x, NULL, schema);
    }
}

/* `name=value`. */
static void put_property(struct tag_writer *x, const struct json *property) {
    struct buf begin;

    buf_init(&begin, 0);
    buf_append_str(&begin, json_key(property));
    buf_append_str(&begin, str_of(x->f->spelling.text));
    tag_begin_format(x, "tag");
    json_put_key(&x->w, "begin");
    json_put_str(&x->w, buf_str(&begin));
    put_literal(x, property);
    json_field_z(&x->w, "end", "");
    json_end_object(&x->w);
    buf_fini(&begin);
}

static bool is_required(const struct json *schema, struct str name) {
    struct str s;

    JSON_FOR_EACH(it, json_get(schema, "required")) {
        if (json_to_str(it, &s) == ST_OK && str_eq(s, name)) return true;
    }
    return false;
}

/* Those that are required, then others as the model likes; each once. */
static void put_required_first(struct tag_writer *x, const struct json *schema) {
    const struct json *list = json_get(schema, "properties");
    bool is_first = true;

    tag_begin_list(x, "sequence", "elements");
    JSON_FOR_EACH(it, list) {
        if (!is_required(schema, json_key(it))) continue;
        if (!is_first) tag_put_text(x, x->f->spelling.end);
        is_first = false;
        put_property(x, it);
    }
    JSON_FOR_EACH(it, list) {
        if (is_required(schema, json_key(it))) continue;
        tag_begin_format(x, "optional");
        json_put_key(&x->w, "content");
        tag_begin_list(x, "sequence", "elements");
        tag_put_text(x, x->f->spelling.end);
        put_property(x, it);
        tag_end_list(x);
        json_end_object(&x->w);
    }
    tag_end_list(x);
}

/* Notations of literals: each property's value obeys its schema. Where none is required, which are
 * there, and how often, is left to the model. Literals of JSON are theirs too. */
static void put_literals(struct tag_writer *x, const struct json *tool) {
    const struct json *schema = json_get(tag_function_of(tool), "parameters");
    const struct json *list = json_get(schema, "properties");

    if (json_type(list) != JSON_OBJECT || !json_first(list)) {
        tag_begin_format(x, "optional"); /* nothing */
        json_put_key(&x->w, "content");
        tag_put_regex(x, "[ ]");
        json_end_object(&x->w);
        return;
    }
    JSON_FOR_EACH(it, list) {
        if (!is_required(schema, json_key(it))) continue;
        put_required_first(x, schema);
        return;
    }
    tag_begin_list(x, "tags_with_separator", "tags");
    JSON_FOR_EACH(it, list) put_property(x, it);
    json_end_array(&x->w);
    json_field_z(&x->w, "separator", x->f->spelling.end);
    json_field_bool(&x->w, "at_least_one", false);
    json_end_object(&x->w);
}

/* --- custom tools ----------------------------------------------------------------------------- */

/* The text that a custom tool gets, between what the format of calls has around a string: escaped
 * where that is JSON, else as it is. Then no terminal holds what ends the string. */
static void put_input(struct tag_writer *x, const struct json *tool, bool is_json,
                      const char *end) {
    const struct json *format = format_of(tool), *name = json_get(tag_function_of(tool), "name");
    bool is_regex = false;
    struct str syntax;

    if (json_to_str(json_get(format, "syntax"), &syntax) == ST_OK)
        is_regex = str_eq(syntax, STR("regex"));
    tag_begin_format(x, is_regex ? "regex" : "grammar");
    json_put_key(&x->w, is_regex ? "pattern" : "grammar");
    json_put_tree(&x->w, json_get(format, "definition"));
    if (!is_regex) json_field_z(&x->w, "syntax", "lark");
    if (is_json) {
        json_field_z(&x->w, "inside", "json_string");
    } else {
        put_excludes(x, end);
    }
    json_put_key(&x->w, "tool");
    json_put_tree(&x->w, name);
    json_end_object(&x->w);
}

static void put_custom(struct tag_writer *x, const struct json *tool) {
    const struct call_format *f = x->f;
    const char *quote = f->spelling.quote ? f->spelling.quote : "\"";

    tag_begin_list(x, "sequence", "elements");
    if (f->spelling.is_literal) {
        tag_put_text(x, CUSTOM_INPUT);
        tag_put_text(x, f->spelling.text);
        tag_put_text(x, quote);
        put_input(x, tool, !f->spelling.quote, quote);
        tag_put_text(x, quote);
    } else if (f->arguments) {
        tag_put_text(x, f->spelling.key);
        tag_put_text(x, CUSTOM_INPUT);
        tag_put_text(x, f->spelling.text);
        put_input(x, tool, false, f->spelling.end);
        tag_put_text(x, f->spelling.end);
    } else {
        tag_put_text(x, "{\"" CUSTOM_INPUT "\": \"");
        put_input(x, tool, true, NULL);
        tag_put_text(x, "\"}");
    }
    tag_end_list(x);
}

void tag_put_arguments(struct tag_writer *x, const struct json *tool) {
    if (format_of(tool)) {
        put_custom(x, tool);
    } else if (x->f->spelling.is_literal) {
        put_literals(x, tool);
    } else {
        tag_begin_format(x, "json_schema");
        put_schema(x, tool);
        json_field_z(&x->w, "whitespace", "compact"); /* as templates print arguments again */
        if (x->f->arguments) put_style(x);
        json_end_object(&x->w);
    }
}
