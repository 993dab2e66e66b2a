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

#include "worker/output/output_tag_internal.h"

#define NEWLINES_AFTER_REASONING "[\\n]{0,2}"

/* --- formats of structural tags --------------------------------------------------------------- */

void tag_begin_format(struct tag_writer *x, const char *type) {
    json_begin_object(&x->w);
    json_field_z(&x->w, "type", type);
}

void tag_begin_list(struct tag_writer *x, const char *type, const char *list) {
    tag_begin_format(x, type);
    json_put_key(&x->w, list);
    json_begin_array(&x->w);
}

void tag_end_list(struct tag_writer *x) {
    json_end_array(&x->w);
    json_end_object(&x->w);
}

void tag_put_text(struct tag_writer *x, const char *text) {
    if (!text || !*text) return;
    tag_begin_format(x, "const_string");
    json_field_z(&x->w, "value", text);
    json_end_object(&x->w);
}

void tag_put_regex(struct tag_writer *x, const char *pattern) {
    tag_begin_format(x, "regex");
    json_field_z(&x->w, "pattern", pattern);
    json_end_object(&x->w);
}

void tag_put_any_text(struct tag_writer *x, const char *without) {
    tag_begin_list(x, "any_text", "excludes");
    if (without) json_put_str(&x->w, str_of(without));
    tag_end_list(x);
}

/* --- calls ------------------------------------------------------------------------------------ */

static struct str name_of(const struct json *tool) {
    struct str name = STR_NULL;

    (void)(json_to_str(json_get(tag_function_of(tool), "name"), &name) == ST_OK);
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
}

static void put_call(struct tag_writer *x, const struct json *tool) {
    struct buf text;

    buf_init(&text, 0);
    append_begin(x->f, name_of(tool), &text);
    tag_begin_format(x, "tag");
    json_put_key(&x->w, "begin");
    json_put_str(&x->w, buf_str(&text));
    json_put_key(&x->w, "content");
    if (x->f->ids == IDS_KIMI) {
        tag_begin_list(x, "sequence", "elements");
        tag_put_regex(x, "0|[1-9][0-9]{0,5}");
        tag_put_text(x, x->f->name_after);
        tag_put_arguments(x, tool);
        tag_end_list(x);
    } else {
        tag_put_arguments(x, tool);
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
    tag_begin_format(x, "tags_with_separator");
    put_call_tags(x);
    json_field_z(&x->w, "separator", x->f->between ? x->f->between : "");
    json_field_bool(&x->w, "at_least_one", true);
    json_field_bool(&x->w, "stop_after_first", is_one_call(x));
    json_end_object(&x->w);
}

static void put_calls(struct tag_writer *x) {
    tag_begin_list(x, "sequence", "elements");
    tag_put_text(x, x->f->section);
    put_calls_alone(x);
    tag_put_text(x, x->f->section_end);
    tag_end_list(x);
}

/* Text that is no call, because a call begins with the answer. */
static void put_text_without_calls(struct tag_writer *x) {
    tag_begin_format(x, "optional");
    json_put_key(&x->w, "content");
    tag_begin_list(x, "sequence", "elements");
    tag_put_regex(x, "[^\\s\\[{]");
    tag_put_any_text(x, x->f->also.text ? x->f->also.text : x->f->section);
    tag_end_list(x);
    json_end_object(&x->w);
}

static void put_call_or_text(struct tag_writer *x) {
    tag_begin_list(x, "or", "elements");
    put_calls(x);
    put_text_without_calls(x);
    tag_end_list(x);
}

/* Calls of a section, as one tag. */
static void put_section_tag(struct tag_writer *x) {
    json_put_key(&x->w, "tags");
    json_begin_array(&x->w);
    tag_begin_format(x, "tag");
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

    tag_begin_list(x, "triggered_tags", "triggers");
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
        tag_put_any_text(x, NULL);
}

/* What stands around the final text. */
static void put_answer(struct tag_writer *x) {
    tag_begin_list(x, "sequence", "elements");
    if (x->is_harmony) tag_put_text(x, "<|channel|>final<|message|>");
    put_text_format(x);
    tag_end_list(x);
}

static void put_rest_of_reasoning(struct tag_writer *x) {
    const struct reasoning_format *r = x->t->reasoning;

    tag_put_any_text(x, r->end);
    tag_put_text(x, r->end);
    tag_put_text(x, r->next);
    if (!r->next) tag_put_regex(x, NEWLINES_AFTER_REASONING);
}

/* Open in the prompt, or as the model likes. */
static void put_reasoning(struct tag_writer *x) {
    const struct reasoning_format *r = x->t->reasoning;

    if (!r) return;
    if (x->t->begins_in_reasoning) {
        put_rest_of_reasoning(x);
        return;
    }
    tag_begin_format(x, r->next ? "star" : "optional");
    json_put_key(&x->w, "content");
    tag_begin_list(x, "sequence", "elements");
    tag_put_text(x, r->begin);
    put_rest_of_reasoning(x);
    tag_end_list(x);
    json_end_object(&x->w);
}

static void put_calls_or_answer(struct tag_writer *x) {
    tag_begin_list(x, "or", "elements");
    put_calls(x);
    put_answer(x);
    tag_end_list(x);
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
    JSON_FOR_EACH(tool, t->tools) if (tag_is_strict(tool)) return true;
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
    tag_begin_list(&x, "sequence", "elements");
    put_reasoning(&x);
    put_content(&x);
    tag_end_list(&x);
    json_end_object(&x.w);
    return buf_status(json);
}
