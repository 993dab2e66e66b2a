/* worker/output/output_tag.c - the constraint of an answer, from the rows that a reader reads.
 *
 *      sequence
 *          reasoning, if any: free text up to its end
 *          TOOLS_REQUIRED, TOOLS_NAMED      calls
 *          TOOLS_AUTO                       free text; where a call begins, that call
 *          TOOLS_AUTO and text_format       calls or that format
 *          TOOLS_NONE                       that format
 *
 *      calls    section, then a tag for each tool with what is between two, section_end
 *
 * A tag begins with all that stands before the arguments and ends with all that stands after. */
#include "worker/output/output_tag.h"

#include "common/text/json.h"
#include "worker/output/output_internal.h"

#define NEWLINES_AFTER_REASONING "[\\n]{0,2}"

struct tag_writer {
    const struct output_tag *t;
    const struct call_format *f;
    struct json_writer w;
    bool is_harmony;
};

/* --- formats of structural tags --------------------------------------------------------------- */

static void begin_format(struct tag_writer *x, const char *type) {
    json_begin_object(&x->w);
    json_field_z(&x->w, "type", type);
}

static void begin_list(struct tag_writer *x, const char *type, const char *list) {
    begin_format(x, type);
    json_put_key(&x->w, list);
    json_begin_array(&x->w);
}

static void end_list(struct tag_writer *x) {
    json_end_array(&x->w);
    json_end_object(&x->w);
}

static void put_text(struct tag_writer *x, const char *text) {
    if (!text || !*text) return;
    begin_format(x, "const_string");
    json_field_z(&x->w, "value", text);
    json_end_object(&x->w);
}

static void put_regex(struct tag_writer *x, const char *pattern) {
    begin_format(x, "regex");
    json_field_z(&x->w, "pattern", pattern);
    json_end_object(&x->w);
}

static void put_any_text(struct tag_writer *x, const char *without) {
    begin_list(x, "any_text", "excludes");
    if (without) json_put_str(&x->w, str_of(without));
    end_list(x);
}

/* --- arguments -------------------------------------------------------------------------------- */

static const struct json *function_of(const struct json *tool) {
    const struct json *function = json_get(tool, "function");

    return function ? function : tool;
}

static bool is_strict(const struct json *tool) {
    bool strict = false;

    return json_to_bool(json_get(function_of(tool), "strict"), &strict) == ST_OK && strict;
}

/* Arguments obey the tool's schema where a call was asked for, or the tool asks for it. */
static bool is_by_schema(const struct tag_writer *x, const struct json *tool) {
    return x->t->choice == TOOLS_REQUIRED || x->t->choice == TOOLS_NAMED || is_strict(tool);
}

static void put_schema(struct tag_writer *x, const struct json *tool) {
    const struct json *schema = json_get(function_of(tool), "parameters");

    json_put_key(&x->w, "json_schema");
    if (!is_by_schema(x, tool))
        json_put_raw(&x->w, STR("{\"type\":\"object\"}"));
    else if (json_type(schema) == JSON_OBJECT && json_first(schema))
        json_put_tree(&x->w, schema);
    else
        json_put_raw(&x->w, STR("{\"type\":\"object\",\"properties\":{},"
                                "\"additionalProperties\":false}"));
}

/* Readers find the end of a value where the next one or the end of the call follows, and forgive
 * what is missing between: so text holds none of these. */
static void put_excludes(struct tag_writer *x) {
    const struct call_format *f = x->f;
    const char *const texts[] = {f->spelling.key, f->arguments_end, f->close, f->section_end};

    json_put_key(&x->w, "excludes");
    json_begin_array(&x->w);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        const char *text = texts[i];

        while (text && *text == '\n')
            text++;
        if (text && *text) json_put_str(&x->w, str_of(text));
    }
    json_end_array(&x->w);
}

static void put_style(struct tag_writer *x) {
    json_put_key(&x->w, "style");
    json_begin_object(&x->w);
    json_field_z(&x->w, "key", x->f->spelling.key);
    json_field_z(&x->w, "text", x->f->spelling.text);
    if (x->f->spelling.json) json_field_z(&x->w, "json", x->f->spelling.json);
    json_field_z(&x->w, "end", x->f->spelling.end);
    put_excludes(x);
    json_end_object(&x->w);
}

static bool is_string(const struct json *schema) {
    struct str type;

    return json_to_str(json_get(schema, "type"), &type) == ST_OK && str_eq(type, STR("string")) &&
           !json_get(schema, "enum") && !json_get(schema, "const");
}

static void put_literal(struct tag_writer *x, const struct json *schema) {
    json_put_key(&x->w, "content");
    if (x->f->spelling.quote && is_string(schema)) {
        begin_list(x, "sequence", "elements");
        put_text(x, x->f->spelling.quote);
        put_any_text(x, x->f->spelling.quote);
        put_text(x, x->f->spelling.quote);
        end_list(x);
        return;
    }
    begin_format(x, "json_schema");
    json_put_key(&x->w, "json_schema");
    json_put_tree(&x->w, schema);
    json_end_object(&x->w);
}

/* Notations of literals: each property's value obeys its schema; which are there, and how often, is
 * left to the model. Literals of JSON are theirs too. */
static void put_literals(struct tag_writer *x, const struct json *tool) {
    const struct json *list = json_get(json_get(function_of(tool), "parameters"), "properties");

    if (json_type(list) != JSON_OBJECT || !json_first(list)) {
        begin_format(x, "optional"); /* nothing */
        json_put_key(&x->w, "content");
        put_regex(x, "[ ]");
        json_end_object(&x->w);
        return;
    }
    begin_list(x, "tags_with_separator", "tags");
    JSON_FOR_EACH(it, list) {
        struct buf begin;

        buf_init(&begin, 0);
        buf_append_str(&begin, json_key(it));
        buf_append_str(&begin, str_of(x->f->spelling.text));
        begin_format(x, "tag");
        json_put_key(&x->w, "begin");
        json_put_str(&x->w, buf_str(&begin));
        put_literal(x, it);
        json_field_z(&x->w, "end", "");
        json_end_object(&x->w);
        buf_fini(&begin);
    }
    json_end_array(&x->w);
    json_field_z(&x->w, "separator", x->f->spelling.end);
    json_field_bool(&x->w, "at_least_one", false);
    json_end_object(&x->w);
}

static void put_arguments(struct tag_writer *x, const struct json *tool) {
    if (x->f->spelling.is_literal) {
        put_literals(x, tool);
    } else {
        begin_format(x, "json_schema");
        put_schema(x, tool);
        if (x->f->arguments) put_style(x);
        json_end_object(&x->w);
    }
}

/* --- calls ------------------------------------------------------------------------------------ */

static struct str name_of(const struct json *tool) {
    struct str name = STR_NULL;

    (void)(json_to_str(json_get(function_of(tool), "name"), &name) == ST_OK);
    return name;
}

static void append(struct buf *to, const char *text) {
    if (text) buf_append_str(to, str_of(text));
}

/* All of a call before its arguments; of kimi-k2, before its number. */
static void append_begin(const struct call_format *f, struct str name, struct buf *to) {
    append(to, f->open);
    if (f->body == BODY_OBJECT) append(to, "{\"name\": \"");
    append(to, f->name_before);
    buf_append_str(to, name);
    if (f->body == BODY_OBJECT)
        buf_appendf(to, "\", \"%s\": ", f->key ? f->key : "arguments");
    else
        append(to, f->ids == IDS_KIMI ? ":" : f->name_after);
    append(to, f->arguments_begin);
}

static void put_call(struct tag_writer *x, const struct json *tool) {
    struct buf text;

    buf_init(&text, 0);
    append_begin(x->f, name_of(tool), &text);
    begin_format(x, "tag");
    json_put_key(&x->w, "begin");
    json_put_str(&x->w, buf_str(&text));
    json_put_key(&x->w, "content");
    if (x->f->ids == IDS_KIMI) {
        begin_list(x, "sequence", "elements");
        put_regex(x, "0|[1-9][0-9]{0,5}");
        put_text(x, x->f->name_after);
        put_arguments(x, tool);
        end_list(x);
    } else {
        put_arguments(x, tool);
    }
    buf_clear(&text);
    if (x->f->body == BODY_OBJECT) append(&text, "}");
    append(&text, x->f->arguments_end);
    append(&text, x->f->close);
    json_put_key(&x->w, "end");
    json_put_str(&x->w, buf_str(&text));
    json_end_object(&x->w);
    buf_fini(&text);
}

static void put_call_tags(struct tag_writer *x) {
    json_put_key(&x->w, "tags");
    json_begin_array(&x->w);
    JSON_FOR_EACH(tool, x->t->tools) put_call(x, tool);
    json_end_array(&x->w);
}

static bool is_one_call(const struct tag_writer *x) {
    return x->t->is_single || x->t->choice == TOOLS_NAMED || x->f->body == BODY_HARMONY;
}

/* One call or several, without their section. */
static void put_calls_alone(struct tag_writer *x) {
    begin_format(x, "tags_with_separator");
    put_call_tags(x);
    json_field_z(&x->w, "separator", x->f->between ? x->f->between : "");
    json_field_bool(&x->w, "at_least_one", true);
    json_field_bool(&x->w, "stop_after_first", is_one_call(x));
    json_end_object(&x->w);
}

static void put_calls(struct tag_writer *x) {
    begin_list(x, "sequence", "elements");
    put_text(x, x->f->section);
    put_calls_alone(x);
    put_text(x, x->f->section_end);
    end_list(x);
}

/* Text that is no call, because a call begins with the answer. */
static void put_text_without_calls(struct tag_writer *x) {
    begin_format(x, "optional");
    json_put_key(&x->w, "content");
    begin_list(x, "sequence", "elements");
    put_regex(x, "[^\\s\\[{]");
    put_any_text(x, x->f->also.text ? x->f->also.text : x->f->section);
    end_list(x);
    json_end_object(&x->w);
}

static void put_call_or_text(struct tag_writer *x) {
    begin_list(x, "or", "elements");
    put_calls(x);
    put_text_without_calls(x);
    end_list(x);
}

/* Calls of a section, as one tag. */
static void put_section_tag(struct tag_writer *x) {
    json_put_key(&x->w, "tags");
    json_begin_array(&x->w);
    begin_format(x, "tag");
    json_field_z(&x->w, "begin", x->f->section);
    json_put_key(&x->w, "content");
    put_calls_alone(x);
    json_field_z(&x->w, "end", x->f->section_end);
    json_end_object(&x->w);
    json_end_array(&x->w);
}

/* By which a reader knows that a call begins. */
static struct str first_word(const char *text) {
    return (struct str){text, strcspn(text, " \n")};
}

/* Free text, and calls in it; it holds nothing else that a reader takes for a call. */
static void put_text_with_calls(struct tag_writer *x) {
    const struct call_format *f = x->f;

    begin_list(x, "triggered_tags", "triggers");
    json_put_str(&x->w, first_word(f->section ? f->section : f->open));
    json_end_array(&x->w);
    if (f->section)
        put_section_tag(x);
    else
        put_call_tags(x);
    json_field_bool(&x->w, "stop_after_first", is_one_call(x));
    json_put_key(&x->w, "excludes");
    json_begin_array(&x->w);
    if (f->also.text) json_put_str(&x->w, str_of(f->also.text));
    if (f->section && f->open) json_put_str(&x->w, first_word(f->open));
    json_end_array(&x->w);
    json_end_object(&x->w);
}

/* --- the whole -------------------------------------------------------------------------------- */

static void put_text_format(struct tag_writer *x) {
    if (x->t->text_format.len > 0)
        json_put_raw(&x->w, x->t->text_format);
    else
        put_any_text(x, NULL);
}

/* What stands around the final text. */
static void put_answer(struct tag_writer *x) {
    begin_list(x, "sequence", "elements");
    if (x->is_harmony) put_text(x, "<|channel|>final<|message|>");
    put_text_format(x);
    end_list(x);
}

static void put_rest_of_reasoning(struct tag_writer *x) {
    const struct reasoning_format *r = x->t->reasoning;

    put_any_text(x, r->end);
    put_text(x, r->end);
    put_text(x, r->next);
    if (!r->next) put_regex(x, NEWLINES_AFTER_REASONING);
}

/* Open in the prompt, or as the model likes. */
static void put_reasoning(struct tag_writer *x) {
    const struct reasoning_format *r = x->t->reasoning;

    if (!r) return;
    if (x->t->begins_in_reasoning) {
        put_rest_of_reasoning(x);
        return;
    }
    begin_format(x, r->next ? "star" : "optional");
    json_put_key(&x->w, "content");
    begin_list(x, "sequence", "elements");
    put_text(x, r->begin);
    put_rest_of_reasoning(x);
    end_list(x);
    json_end_object(&x->w);
}

static void put_calls_or_answer(struct tag_writer *x) {
    begin_list(x, "or", "elements");
    put_calls(x);
    put_answer(x);
    end_list(x);
}

static void put_content(struct tag_writer *x) {
    bool has_calls = x->f && x->t->choice != TOOLS_NONE;

    if (!has_calls)
        put_answer(x);
    else if (x->t->choice != TOOLS_AUTO)
        put_calls(x);
    else if (x->is_harmony || x->t->text_format.len > 0)
        put_calls_or_answer(x);
    else if (x->f->is_bare)
        put_call_or_text(x);
    else
        put_text_with_calls(x);
}

bool output_tag_is_needed(const struct output_tag *t) {
    if (t->text_format.len > 0) return true;
    if (t->choice == TOOLS_REQUIRED || t->choice == TOOLS_NAMED) return true;
    if (!t->calls || t->choice == TOOLS_NONE) return false;
    JSON_FOR_EACH(tool, t->tools) if (is_strict(tool)) return true;
    return false;
}

static enum status check_tools(const struct output_tag *t, struct error *err) {
    size_t i = 0;

    if (t->choice == TOOLS_NONE) return ST_OK;
    if (t->choice != TOOLS_AUTO && !t->calls)
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "the model has no format of tool calls: set --tool-call-parser");
    if (t->choice != TOOLS_AUTO && !json_first(t->tools))
        return error_set_param(err, ST_INVALID, "tools",
                               "When using `tool_choice`, `tools` must be set.");
    JSON_FOR_EACH(tool, t->tools) {
        if (name_of(tool).len == 0)
            return error_set_param(err, ST_INVALID, "tools", "tools[%zu] has no name", i);
        i++;
    }
    return ST_OK;
}

enum status output_tag_write(const struct output_tag *t, struct buf *json, struct error *err) {
    struct tag_writer x = {.t = t, .f = t->calls};
    enum status st = check_tools(t, err);

    if (st != ST_OK) return st;
    if (!json_first(t->tools)) x.f = NULL;
    x.is_harmony = (x.f && x.f->body == BODY_HARMONY) || (t->reasoning && t->reasoning->is_harmony);
    json_writer_init(&x.w, json);
    json_begin_object(&x.w);
    json_field_z(&x.w, "type", "structural_tag");
    json_put_key(&x.w, "format");
    begin_list(&x, "sequence", "elements");
    put_reasoning(&x);
    put_content(&x);
    end_list(&x);
    json_end_object(&x.w);
    return buf_status(json);
}
