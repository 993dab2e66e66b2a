/* worker/output/output_tag_arguments.c - the arguments of a call: by the tool's schema, or by the
 * grammar of a custom tool.
 *
 *      JSON       {"x": 5}
 *      styles     <parameter=x>\n5\n</parameter>\n      strings as they are
 *      literals   x=5, y="q"                           JSON one by one
 *      quotes     {x:5,y:<|"|>q<|"|>}                  JSON with bare names and such strings
 *
 * A tool that is not strict has any arguments where calls are free. */
#include <string.h>

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

/* Without the newlines around it and the quote behind it, which models leave out. */
static void put_exclude(struct tag_writer *x, const char *text) {
    struct str s = str_of(text);

    while (s.len > 0 && *s.ptr == '\n')
        s = (struct str){s.ptr + 1, s.len - 1};
    while (s.len > 0 && strchr("\n\"", s.ptr[s.len - 1]))
        s.len--;
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
    const struct call_format *f = x->f;

    json_put_key(&x->w, "style");
    json_begin_object(&x->w);
    if (f->spelling.quote) {
        json_field_z(&x->w, "quote", f->spelling.quote);
    } else if (f->spelling.is_literal) {
        json_field_z(&x->w, "text", f->spelling.text);
        json_field_z(&x->w, "between", f->spelling.end);
    } else {
        json_field_z(&x->w, "key", f->spelling.key);
        json_field_z(&x->w, "text", f->spelling.text);
        if (f->spelling.json) json_field_z(&x->w, "json", f->spelling.json);
        json_field_z(&x->w, "end", f->spelling.end);
        if (f->spelling.has_python) json_field_z(&x->w, "words", "python");
        put_excludes(x, NULL);
    }
    json_end_object(&x->w);
}

/* --- without a schema ------------------------------------------------------------------------- */

#define ANY_NAME       "[^\\s<>\"'=]{1,128}"
#define ANY_IDENTIFIER "[A-Za-z_][A-Za-z0-9_]{0,127}"

static void put_any_json(struct tag_writer *x) {
    tag_begin_format(x, "json_schema");
    json_put_key(&x->w, "json_schema");
    json_put_raw(&x->w, STR("{}"));
    json_field_z(&x->w, "whitespace", "compact");
    json_end_object(&x->w);
}

static void put_any_text(struct tag_writer *x, const char *begin) {
    tag_begin_list(x, "sequence", "elements");
    tag_put_text(x, begin);
    tag_begin_format(x, "any_text");
    put_excludes(x, x->f->spelling.end);
    json_end_object(&x->w);
    tag_put_text(x, x->f->spelling.end);
    tag_end_list(x);
}

static void put_any_value(struct tag_writer *x) {
    const struct call_format *f = x->f;

    if (f->spelling.is_literal) {
        tag_put_text(x, f->spelling.text);
        put_any_json(x);
        return;
    }
    tag_begin_list(x, "or", "elements");
    put_any_text(x, f->spelling.text);
    if (f->spelling.json) put_any_text(x, f->spelling.json);
    tag_end_list(x);
}

/* Behind `before`. */
static void put_any_parameter(struct tag_writer *x, const char *before) {
    tag_begin_list(x, "sequence", "elements");
    tag_put_text(x, before);
    tag_put_regex(x, x->f->spelling.is_literal ? ANY_IDENTIFIER : ANY_NAME);
    put_any_value(x);
    tag_end_list(x);
}

static void put_any_parameters(struct tag_writer *x, const char *before) {
    tag_begin_format(x, "star");
    json_put_key(&x->w, "content");
    put_any_parameter(x, before);
    json_end_object(&x->w);
}

/* Parameters of any names and values, in the notation that the reader reads. */
static void put_any_arguments(struct tag_writer *x) {
    if (!x->f->spelling.is_literal) {
        put_any_parameters(x, x->f->spelling.key);
        return;
    }
    tag_begin_format(x, "optional");
    json_put_key(&x->w, "content");
    tag_begin_list(x, "sequence", "elements");
    put_any_parameter(x, NULL);
    put_any_parameters(x, x->f->spelling.end);
    tag_end_list(x);
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

    tag_begin_list(x, "sequence", "elements");
    if (f->spelling.quote) {
        tag_put_text(x, "{" CUSTOM_INPUT ":");
        tag_put_text(x, f->spelling.quote);
        put_input(x, tool, false, f->spelling.quote);
        tag_put_text(x, f->spelling.quote);
        tag_put_text(x, "}");
    } else if (f->spelling.is_literal) {
        tag_put_text(x, CUSTOM_INPUT);
        tag_put_text(x, f->spelling.text);
        tag_put_text(x, "\"");
        put_input(x, tool, true, NULL);
        tag_put_text(x, "\"");
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
    } else if (x->f->arguments && !x->f->spelling.quote && !is_by_schema(x, tool)) {
        put_any_arguments(x);
    } else {
        tag_begin_format(x, "json_schema");
        put_schema(x, tool);
        json_field_z(&x->w, "whitespace", "compact"); /* as templates print arguments again */
        if (x->f->arguments) put_style(x);
        json_end_object(&x->w);
    }
}
