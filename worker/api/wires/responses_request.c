/* worker/api/wires/responses_request.c - the conversation first, then the other fields. */
#include "worker/api/wires/responses_request.h"

#include "common/text/json.h"
#include "worker/api/wires/conversation.h"
#include "worker/api/wires/members.h"
#include "worker/api/wires/responses_tools.h"
#include "worker/api/wires/sealed_text.h"

/* --- items ------------------------------------------------------------------------------------ */

/* A part of a content; ignores what it does not know. */
static enum status append_part(const struct json *part, const struct place *at, struct buf *to) {
    static const char *const texts[] = {"input_text", "output_text", "text", "reasoning_text"};
    static const char *const refused[] = {"input_image", "input_file", "input_audio"};
    struct str type = member_text(part, "type");

    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (str_eq(type, str_of(texts[i]))) append_line(to, member_text(part, "text"));
    }
    if (str_eq(type, STR("refusal"))) append_line(to, member_text(part, "refusal"));
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (!str_eq(type, str_of(refused[i]))) continue;
        return place_refuse(at, "this model reads no images, files or audio: send input_text");
    }
    return ST_OK;
}

static bool speaker_of(struct str role, enum speaker *out) {
    if (str_eq(role, STR("user"))) {
        *out = SPEAKER_USER;
    } else if (str_eq(role, STR("assistant"))) {
        *out = SPEAKER_ASSISTANT;
    } else if (str_eq(role, STR("system")) || str_eq(role, STR("developer"))) {
        *out = SPEAKER_SYSTEM;
    } else {
        return false;
    }
    return true;
}

static enum status read_message(struct conversation *c, const struct json *item,
                                const struct place *at, struct buf *text) {
    enum speaker speaker;
    enum status st;

    if (!speaker_of(member_text(item, "role"), &speaker)) {
        return place_refuse(at,
                            "the role of a message must be \"user\", \"assistant\", \"system\" or "
                            "\"developer\"");
    }
    st = append_content(json_get(item, "content"), append_part, at, text);
    if (st == ST_OK) conversation_text(c, speaker, buf_str(text));
    return st;
}

/* The text, or ours of what the client could not read. */
static enum status read_reasoning(struct conversation *c, const struct json *item,
                                  const struct place *at, struct buf *text) {
    enum status st;

    if (!sealed_text_open(member_text(item, "encrypted_content"), text)) {
        st = append_content(json_get(item, "content"), append_part, at, text);
        if (st != ST_OK) return st;
    }
    if (buf_len(text)) conversation_reasoning(c, buf_str(text));
    return ST_OK;
}

static enum status read_call(struct conversation *c, const struct json *item,
                             const struct place *at, struct buf *function) {
    bool is_custom = member_is(item, "type", "custom_tool_call");
    struct str id = member_text(item, "call_id"), name = member_text(item, "name");
    struct json_writer w;
    struct buf arguments;

    if (!id.ptr || !name.ptr)
        return place_refuse(at, "a call must have the strings \"call_id\" and \"name\"");
    responses_append_function(function, member_text(item, "namespace"), name);
    buf_init(&arguments, 0);
    if (is_custom) {
        json_writer_init(&w, &arguments);
        json_begin_object(&w);
        json_field_str(&w, "input", member_text(item, "input"));
        json_end_object(&w);
    } else {
        buf_append_str(&arguments, member_text(item, "arguments"));
    }
    conversation_call(c, id, buf_str(function), buf_str(&arguments));
    buf_fini(&arguments);
    return ST_OK;
}

static enum status read_output(struct conversation *c, const struct json *item,
                               const struct place *at, struct buf *text) {
    struct str id = member_text(item, "call_id");
    enum status st;

    if (!id.ptr) return place_refuse(at, "an output must have a \"call_id\" string");
    st = append_content(json_get(item, "output"), append_part, at, text);
    if (st == ST_OK) conversation_result(c, id, buf_str(text));
    return st;
}

static enum status read_item(struct conversation *c, const struct json *item,
                             const struct place *at, struct buf *scratch) {
    struct str type = member_text(item, "type");

    buf_clear(scratch);
    if (json_type(item) != JSON_OBJECT) return place_refuse(at, "an item must be an object");
    if (str_eq(type, STR("message")) || (!type.ptr && json_get(item, "role")))
        return read_message(c, item, at, scratch);
    if (str_eq(type, STR("reasoning"))) return read_reasoning(c, item, at, scratch);
    if (str_eq(type, STR("function_call")) || str_eq(type, STR("custom_tool_call")))
        return read_call(c, item, at, scratch);
    if (str_eq(type, STR("function_call_output")) || str_eq(type, STR("custom_tool_call_output")))
        return read_output(c, item, at, scratch);
    if (str_eq(type, STR("item_reference"))) {
        return place_refuse(at, "item_reference is not supported: send the item itself");
    }
    return type.ptr ? ST_OK : place_refuse(at, "an item must have a \"type\"");
}

/* `is_dropped`: of each of them; NULL: all are read. */
static enum status read_items(struct conversation *c, const struct json *items,
                              const bool *is_dropped, struct place *at) {
    struct buf scratch;
    enum status st = ST_OK;

    buf_init(&scratch, 0);
    at->i = 0;
    JSON_FOR_EACH(it, items) {
        if (st == ST_OK && !(is_dropped && is_dropped[at->i])) st = read_item(c, it, at, &scratch);
        at->i++;
    }
    buf_fini(&scratch);
    return st;
}

static enum status put_messages(struct json_writer *w, const struct json *body,
                                const struct responses_asked *asked, struct error *err) {
    const struct json *input = json_get(body, "input");
    struct str instructions = STR_NULL, text = STR_NULL;
    bool is_text = json_to_str(input, &text) == ST_OK;
    const bool *dropped = asked->is_dropped;
    struct place at = {.list = "input", .member = "", .err = err};
    struct conversation c;
    enum status st = json_get_str(body, "instructions", SIZE_MAX, &instructions, NULL, err), ended;

    if (st != ST_OK) return st;
    if (!is_text && (json_type(input) != JSON_ARRAY || json_count(input) == 0)) {
        return error_set_param(err, ST_INVALID, "input",
                               "input is required: a string, or an array of at least one item");
    }
    conversation_begin(&c, w, asked->takes_late_system);
    if (instructions.len) conversation_text(&c, SPEAKER_SYSTEM, instructions);
    st = read_items(&c, asked->earlier, dropped, &at);
    if (dropped) dropped += json_count(asked->earlier);
    if (is_text) conversation_text(&c, SPEAKER_USER, text);
    if (st == ST_OK && !is_text) st = read_items(&c, input, dropped, &at);
    ended = conversation_end(&c, "input", st == ST_OK ? err : NULL);
    if (st == ST_OK) st = ended;
    return st;
}

/* --- the other fields ------------------------------------------------------------------------- */

static enum status check_unsupported(const struct json *body, struct error *err) {
    static const char *const refused[] = {"conversation", "prompt"};
    bool is_background = false;
    uint32_t n_logprobs = 0;
    enum status st = json_get_bool(body, "background", &is_background, NULL, err);

    if (st == ST_OK) st = json_get_u32(body, "top_logprobs", 0, 20, &n_logprobs, NULL, err);
    if (st != ST_OK) return st;
    if (is_background || n_logprobs) {
        const char *name = is_background ? "background" : "top_logprobs";

        return error_set_param(err, ST_INVALID, name,
                               "%s is not supported in /v1/responses: leave it out", name);
    }
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (json_is_null(json_get(body, refused[i]))) continue;
        return error_set_param(err, ST_INVALID, refused[i],
                               "%s is not supported: send the whole input", refused[i]);
    }
    if (json_is_null(json_get(body, "truncation")) || member_is(body, "truncation", "auto") ||
        member_is(body, "truncation", "disabled"))
        return ST_OK;
    return error_set_param(err, ST_INVALID, "truncation",
                           "truncation must be \"disabled\" or \"auto\"");
}

static enum status put_length(struct json_writer *w, const struct json *body, struct error *err) {
    uint32_t n;
    bool is_present;
    enum status st = json_get_u32(body, "max_output_tokens", 1, UINT32_MAX, &n, &is_present, err);

    if (st == ST_OK && is_present) json_field_u64(w, "max_tokens", n);
    return st;
}

static enum status put_reasoning(struct json_writer *w, const struct json *body,
                                 struct error *err) {
    const struct json *reasoning, *kwargs;
    struct str effort;
    enum status st = json_get_object(body, "reasoning", &reasoning, err);

    if (st == ST_OK) st = json_get_object(body, "chat_template_kwargs", &kwargs, err);
    if (st != ST_OK) return st;
    effort = member_text(reasoning, "effort");
    if (effort.ptr) json_field_str(w, "reasoning_effort", effort);
    if (kwargs) {
        json_put_key(w, "chat_template_kwargs");
        json_put_tree(w, kwargs);
    }
    return ST_OK;
}

/* {"type": "json_schema", "name", "schema", "strict", "description"}: chat has the last four in an
 * object of their own. */
static enum status put_format(struct json_writer *w, const struct json *body, struct error *err) {
    const struct json *text, *format;
    struct str type;
    enum status st = json_get_object(body, "text", &text, err);

    if (st == ST_OK) st = json_get_object(text, "format", &format, err);
    if (st != ST_OK || !format) return st;
    type = member_text(format, "type");
    json_put_key(w, "response_format");
    json_begin_object(w);
    json_field_str(w, "type", type);
    if (str_eq(type, STR("json_schema"))) {
        json_put_key(w, "json_schema");
        json_begin_object(w);
        JSON_FOR_EACH(it, format) {
            if (str_eq(json_key(it), STR("type"))) continue;
            json_put_key_str(w, json_key(it));
            json_put_tree(w, it);
        }
        json_end_object(w);
    }
    json_end_object(w);
    return ST_OK;
}

enum status responses_to_chat(const struct json *body, const struct responses_asked *asked,
                              struct buf *out, struct error *err) {
    bool has_tools = false;
    struct json_writer w;
    enum status st = check_unsupported(body, err);

    if (st != ST_OK) return st;
    json_writer_init(&w, out);
    json_begin_object(&w);
    st = put_messages(&w, body, asked, err);
    if (st == ST_OK) st = responses_put_tools(&w, body, &has_tools, err);
    if (st == ST_OK) st = responses_put_tool_choice(&w, body, has_tools, err);
    if (st == ST_OK) st = put_length(&w, body, err);
    if (st == ST_OK) st = put_reasoning(&w, body, err);
    if (st == ST_OK) st = put_format(&w, body, err);
    if (st != ST_OK) return st;
    members_copy(&w, body);
    json_end_object(&w);
    if (buf_status(out) != ST_OK)
        return error_set(err, ST_NOMEM, "out of memory for the conversation");
    return ST_OK;
}
