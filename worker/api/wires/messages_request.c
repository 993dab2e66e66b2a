/* worker/api/wires/messages_request.c - the conversation first, then the other fields. */
#include "worker/api/wires/messages_request.h"

#include "common/protocol/api.h"
#include "common/text/json.h"
#include "worker/api/wires/conversation.h"
#include "worker/api/wires/members.h"

#define THINKING_MIN_TOKENS 1024 /* of budget_tokens, as Anthropic has it */

/* --- text ------------------------------------------------------------------------------------- */

static enum status append_document(const struct json *block, const struct place *at,
                                   struct buf *to);

/* A block that is text for the model; ignores what it does not know. */
static enum status append_block(const struct json *block, const struct place *at, struct buf *to) {
    struct str type = member_text(block, "type"), text = STR_NULL;

    if (json_to_str(block, &text) == ST_OK) {
        append_line(to, text);
    } else if (str_eq(type, STR("text"))) {
        append_line(to, member_text(block, "text"));
    } else if (str_eq(type, STR("tool_reference"))) {
        append_line(to, member_text(block, "tool_name"));
    } else if (str_eq(type, STR("document"))) {
        return append_document(block, at, to);
    } else if (str_eq(type, STR("search_result"))) {
        append_line(to, member_text(block, "title"));
        append_line(to, member_text(block, "source"));
        JSON_FOR_EACH(it, json_get(block, "content")) append_line(to, member_text(it, "text"));
    } else if (str_eq(type, STR("image"))) {
        return place_refuse(at, "this model reads no images: send text");
    }
    return ST_OK;
}

static enum status append_document(const struct json *block, const struct place *at,
                                   struct buf *to) {
    const struct json *source = json_get(block, "source");
    struct str type = member_text(source, "type");

    append_line(to, member_text(block, "title"));
    append_line(to, member_text(block, "context"));
    if (str_eq(type, STR("text"))) {
        append_line(to, member_text(source, "data"));
    } else if (str_eq(type, STR("content"))) {
        struct str text;

        if (json_to_str(json_get(source, "content"), &text) == ST_OK) append_line(to, text);
        JSON_FOR_EACH(it, json_get(source, "content")) append_line(to, member_text(it, "text"));
    } else {
        return place_refuse(at,
                            "a document must have a source of type \"text\" or \"content\": this "
                            "worker reads text only");
    }
    return ST_OK;
}

/* Without the line of a nonce at its beginning. */
static struct str without_billing(struct str text) {
    const char *end;

    if (!str_starts(text, STR(API_BILLING_HEADER))) return text;
    end = memchr(text.ptr, '\n', text.len);
    if (!end) return STR_NULL;
    return (struct str){end + 1, (size_t)(text.ptr + text.len - end - 1)};
}

static void read_system_text(struct conversation *c, struct str text) {
    text = without_billing(text);
    if (text.len) conversation_text(c, SPEAKER_SYSTEM, text);
}

/* A string or blocks of text. */
static void read_system(struct conversation *c, const struct json *content) {
    struct str text;

    if (json_to_str(content, &text) == ST_OK) read_system_text(c, text);
    JSON_FOR_EACH(it, content) {
        if (member_is(it, "type", "text")) read_system_text(c, member_text(it, "text"));
    }
}

/* --- messages --------------------------------------------------------------------------------- */

static enum status read_result(struct conversation *c, const struct json *block,
                               const struct place *at) {
    struct str id = member_text(block, "tool_use_id");
    struct buf text;
    enum status st;

    if (!id.ptr) return place_refuse(at, "a tool_result must have a \"tool_use_id\" string");
    buf_init(&text, 0);
    st = append_content(json_get(block, "content"), append_block, at, &text);
    if (st == ST_OK) conversation_result(c, id, buf_str(&text));
    buf_fini(&text);
    return st;
}

/* Results first, wherever they are in the message. */
static enum status read_user(struct conversation *c, const struct json *content,
                             const struct place *at) {
    struct buf text;
    enum status st = ST_OK;

    buf_init(&text, 0);
    JSON_FOR_EACH(it, content) {
        if (st == ST_OK && member_is(it, "type", "tool_result")) {
            st = read_result(c, it, at);
        } else if (st == ST_OK) {
            st = append_block(it, at, &text);
        }
    }
    if (st == ST_OK) st = buf_status(&text);
    if (st == ST_OK && buf_len(&text)) conversation_text(c, SPEAKER_USER, buf_str(&text));
    buf_fini(&text);
    return st;
}

static enum status read_call(struct conversation *c, const struct json *block,
                             const struct place *at) {
    const struct json *input = json_get(block, "input");
    struct str id = member_text(block, "id"), name = member_text(block, "name");
    struct json_writer w;
    struct buf arguments;
    enum status st;

    if (!id.ptr || !name.ptr)
        return place_refuse(at, "a tool_use must have the strings \"id\" and \"name\"");
    if (!json_is_null(input) && json_type(input) != JSON_OBJECT)
        return place_refuse(at, "the input of a tool_use must be an object");
    buf_init(&arguments, 0);
    json_writer_init(&w, &arguments);
    if (json_is_null(input)) {
        json_put_raw(&w, STR("{}"));
    } else {
        json_put_tree(&w, input);
    }
    st = buf_status(&arguments);
    if (st == ST_OK) conversation_call(c, id, name, buf_str(&arguments));
    buf_fini(&arguments);
    return st;
}

static enum status read_assistant(struct conversation *c, const struct json *content,
                                  const struct place *at) {
    enum status st = ST_OK;

    conversation_turn(c, SPEAKER_ASSISTANT);
    JSON_FOR_EACH(it, content) {
        struct str type = member_text(it, "type");

        if (str_eq(type, STR("text"))) {
            struct str text = member_text(it, "text");

            if (text.len) conversation_text(c, SPEAKER_ASSISTANT, text);
        } else if (str_eq(type, STR("thinking"))) {
            conversation_reasoning(c, member_text(it, "thinking"));
        } else if (str_eq(type, STR("tool_use"))) {
            st = read_call(c, it, at);
        }
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static enum status read_message(struct conversation *c, const struct json *message,
                                const struct place *at) {
    const struct json *content = json_get(message, "content");
    struct str role = member_text(message, "role"), text;
    bool is_system = str_eq(role, STR("system")), is_user = str_eq(role, STR("user"));
    bool is_text = json_to_str(content, &text) == ST_OK;

    if (!is_system && !is_user && !str_eq(role, STR("assistant"))) {
        return error_set_param(at->err, ST_INVALID, "messages",
                               "messages[%zu].role must be \"user\", \"assistant\" or \"system\"",
                               at->i);
    }
    if (!is_text && json_type(content) != JSON_ARRAY)
        return place_refuse(at, "the content must be a string or an array of blocks");
    if (is_system) {
        read_system(c, content);
        return ST_OK;
    }
    if (is_text) {
        conversation_text(c, is_user ? SPEAKER_USER : SPEAKER_ASSISTANT, text);
        return ST_OK;
    }
    conversation_turn(c, is_user ? SPEAKER_USER : SPEAKER_ASSISTANT);
    return is_user ? read_user(c, content, at) : read_assistant(c, content, at);
}

static enum status put_messages(struct json_writer *w, const struct json *body,
                                const struct messages_asked *asked, struct error *err) {
    const struct json *messages;
    struct place at = {.list = "messages", .member = ".content", .err = err};
    struct conversation c;
    const struct json *system = json_get(body, "system");
    struct str text;
    bool is_continued;
    enum status st = json_get_array(body, "messages", &messages, err), ended;

    if (st != ST_OK) return st;
    if (!json_is_null(system) && json_type(system) != JSON_ARRAY &&
        json_to_str(system, &text) != ST_OK) {
        return error_set_param(err, ST_INVALID, "system",
                               "system must be a string or an array of blocks, not %s",
                               json_type_name(system));
    }
    if (json_count(messages) == 0) {
        return error_set_param(err, ST_INVALID, "messages",
                               "messages is required: an array of {\"role\", \"content\"}, of at "
                               "least one");
    }
    conversation_begin(&c, w, asked->takes_late_system);
    read_system(&c, system);
    JSON_FOR_EACH(it, messages) {
        if (asked->is_beginning && at.i == asked->n_messages) break;
        if (st == ST_OK) st = read_message(&c, it, &at);
        at.i++;
    }
    if (asked->is_beginning && at.i == 0) conversation_turn(&c, SPEAKER_USER);
    is_continued = conversation_ends_in_answer(&c);
    ended = conversation_end(&c, "messages", st == ST_OK ? err : NULL);
    if (st == ST_OK) st = ended;
    if (is_continued) json_field_bool(w, "continue_final_message", true);
    return st;
}

/* --- tools ------------------------------------------------------------------------------------ */

/* One that Anthropic's servers run, or whose schema only its models know. */
static bool is_foreign(const struct json *tool) {
    struct str type = member_text(tool, "type");

    return type.len && !str_eq(type, STR("custom")) && json_is_null(json_get(tool, "input_schema"));
}

static enum status put_tool(struct json_writer *w, const struct json *tool, size_t i,
                            struct error *err) {
    const struct json *schema = json_get(tool, "input_schema");
    struct str name = member_text(tool, "name");
    bool is_strict = false;

    if (!name.ptr || json_type(schema) != JSON_OBJECT) {
        return error_set_param(
            err, ST_INVALID, "tools",
            "tools[%zu] must have a \"name\" string and an \"input_schema\" object", i);
    }
    json_begin_object(w);
    json_field_z(w, "type", "function");
    json_put_key(w, "function");
    json_begin_object(w);
    json_field_str(w, "name", name);
    if (member_text(tool, "description").ptr)
        json_field_str(w, "description", member_text(tool, "description"));
    json_put_key(w, "parameters");
    json_put_tree(w, schema);
    if (json_to_bool(json_get(tool, "strict"), &is_strict) == ST_OK && is_strict)
        json_field_bool(w, "strict", true);
    json_end_object(w);
    json_end_object(w);
    return ST_OK;
}

/* *has_any: a tool is left. */
static enum status put_tools(struct json_writer *w, const struct json *body, bool *has_any,
                             struct error *err) {
    const struct json *tools;
    size_t i = 0;
    enum status st = json_get_array(body, "tools", &tools, err);

    *has_any = false;
    if (st != ST_OK) return st;
    JSON_FOR_EACH(it, tools) *has_any = *has_any || !is_foreign(it);
    if (!*has_any) return ST_OK;
    json_put_key(w, "tools");
    json_begin_array(w);
    JSON_FOR_EACH(it, tools) {
        if (st == ST_OK && !is_foreign(it)) st = put_tool(w, it, i, err);
        i++;
    }
    json_end_array(w);
    return st;
}

static enum status check_named(const struct json *body, struct str name, struct error *err) {
    JSON_FOR_EACH(it, json_get(body, "tools")) {
        if (!str_eq(member_text(it, "name"), name)) continue;
        if (!is_foreign(it)) return ST_OK;
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "tool_choice names the server tool %.*s, which this worker cannot "
                               "run: choose another tool",
                               (int)MIN(name.len, 64), name.ptr);
    }
    return error_set_param(err, ST_INVALID, "tool_choice",
                           "tool_choice names the tool \"%.*s\", which is not in tools",
                           (int)MIN(name.len, 64), name.ptr);
}

static enum status put_tool_choice(struct json_writer *w, const struct json *body, bool has_tools,
                                   struct error *err) {
    const struct json *choice;
    struct str type, name;
    bool is_single = false;
    enum status st = json_get_object(body, "tool_choice", &choice, err);

    if (st != ST_OK || !choice) return st;
    type = member_text(choice, "type");
    name = member_text(choice, "name");
    st = json_get_bool(choice, "disable_parallel_tool_use", &is_single, NULL, err);
    if (st != ST_OK) return error_within(err, st, "tool_choice");
    if (is_single && has_tools) json_field_bool(w, "parallel_tool_calls", false);
    if (str_eq(type, STR("auto")) || str_eq(type, STR("none"))) {
        if (has_tools) json_field_str(w, "tool_choice", type);
        return ST_OK;
    }
    if (str_eq(type, STR("tool")) && name.ptr) {
        members_put_choice(w, name);
        return check_named(body, name, err);
    }
    if (!str_eq(type, STR("any"))) {
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "tool_choice.type must be \"auto\", \"any\", \"none\", or \"tool\" "
                               "with a \"name\"");
    }
    if (!has_tools) {
        return error_set_param(
            err, ST_INVALID, "tool_choice",
            "tool_choice \"any\" needs a tool that the client runs: send \"tools\"");
    }
    json_field_z(w, "tool_choice", "required");
    return ST_OK;
}

/* --- the other fields ------------------------------------------------------------------------- */

static enum status put_length(struct json_writer *w, const struct json *body,
                              const struct messages_asked *asked, uint32_t *max_tokens,
                              struct error *err) {
    bool is_present;
    enum status st = json_get_u32(body, "max_tokens", 1, UINT32_MAX, max_tokens, &is_present, err);

    if (st != ST_OK || asked->is_count) return st;
    if (!is_present) {
        return error_set_param(err, ST_INVALID, "max_tokens",
                               "max_tokens is required: the most tokens of the answer");
    }
    json_field_u64(w, "max_tokens", *max_tokens);
    return ST_OK;
}

static enum status put_budget(struct json_writer *w, const struct json *thinking,
                              const struct messages_asked *asked, uint32_t max_tokens,
                              struct error *err) {
    uint32_t budget = 0;
    bool is_present;
    enum status st = json_get_u32(thinking, "budget_tokens", THINKING_MIN_TOKENS, UINT32_MAX,
                                  &budget, &is_present, err);

    if (st != ST_OK || asked->is_count) return error_within(err, st, "thinking");
    if (!is_present || budget >= max_tokens) {
        return error_set_param(err, ST_INVALID, "thinking",
                               "thinking.budget_tokens must be an integer from %d to below "
                               "max_tokens, which is %u",
                               THINKING_MIN_TOKENS, max_tokens);
    }
    if (asked->limits_thinking) json_field_u64(w, "thinking_token_budget", budget);
    return ST_OK;
}

/* The variables of templates that switch reasoning on and off; a client's own win. */
static enum status put_thinking(struct json_writer *w, const struct json *body,
                                const struct messages_asked *asked, uint32_t max_tokens,
                                struct error *err) {
    const struct json *thinking, *kwargs;
    bool is_on;
    struct str type;
    enum status st = json_get_object(body, "thinking", &thinking, err);

    if (st == ST_OK) st = json_get_object(body, "chat_template_kwargs", &kwargs, err);
    if (st != ST_OK || (!thinking && !kwargs)) return st;
    type = member_text(thinking, "type");
    is_on = !str_eq(type, STR("disabled"));
    if (thinking && is_on && !str_eq(type, STR("enabled")) && !str_eq(type, STR("adaptive"))) {
        return error_set_param(err, ST_INVALID, "thinking",
                               "thinking.type must be \"enabled\", \"disabled\" or \"adaptive\"");
    }
    json_put_key(w, "chat_template_kwargs");
    json_begin_object(w);
    if (thinking && !json_get(kwargs, "enable_thinking"))
        json_field_bool(w, "enable_thinking", is_on);
    if (thinking && !json_get(kwargs, "thinking")) json_field_bool(w, "thinking", is_on);
    JSON_FOR_EACH(it, kwargs) {
        json_put_key_str(w, json_key(it));
        json_put_tree(w, it);
    }
    json_end_object(w);
    if (!str_eq(type, STR("enabled"))) return ST_OK;
    return put_budget(w, thinking, asked, max_tokens, err);
}

static enum status put_stops(struct json_writer *w, const struct json *body, struct error *err) {
    const struct json *stops;
    enum status st = json_get_array(body, "stop_sequences", &stops, err);

    if (st != ST_OK || json_count(stops) == 0) return st;
    JSON_FOR_EACH(it, stops) {
        if (json_type(it) == JSON_STRING) continue;
        return error_set_param(err, ST_INVALID, "stop_sequences",
                               "stop_sequences must be an array of strings, but holds %s",
                               json_type_name(it));
    }
    json_put_key(w, "stop");
    json_put_tree(w, stops);
    return ST_OK;
}

/* output_config, or output_format, its older name. */
static enum status put_output(struct json_writer *w, const struct json *body, struct error *err) {
    const struct json *config, *format;
    struct str effort;
    enum status st = json_get_object(body, "output_config", &config, err);

    if (st != ST_OK) return st;
    effort = member_text(config, "effort");
    if (effort.len) json_field_str(w, "reasoning_effort", effort);
    format = json_get(config, "format");
    if (json_is_null(format)) format = json_get(body, "output_format");
    if (json_is_null(format)) return ST_OK;
    if (!member_is(format, "type", "json_schema") ||
        json_type(json_get(format, "schema")) != JSON_OBJECT) {
        return error_set_param(err, ST_INVALID, "output_config",
                               "output_config.format must be {\"type\": \"json_schema\", "
                               "\"schema\": {...}}");
    }
    json_put_key(w, "response_format");
    json_begin_object(w);
    json_field_z(w, "type", "json_schema");
    json_put_key(w, "json_schema");
    json_begin_object(w);
    json_field_z(w, "name", "output");
    json_put_key(w, "schema");
    json_put_tree(w, json_get(format, "schema"));
    json_end_object(w);
    json_end_object(w);
    return ST_OK;
}

enum status messages_to_chat(const struct json *body, const struct messages_asked *asked,
                             struct buf *out, struct error *err) {
    uint32_t max_tokens = 0;
    bool has_tools = false;
    struct json_writer w;
    enum status st;

    json_writer_init(&w, out);
    json_begin_object(&w);
    st = put_messages(&w, body, asked, err);
    if (st == ST_OK) st = put_tools(&w, body, &has_tools, err);
    if (st == ST_OK) st = put_tool_choice(&w, body, has_tools, err);
    if (st == ST_OK) st = put_length(&w, body, asked, &max_tokens, err);
    if (st == ST_OK) st = put_thinking(&w, body, asked, max_tokens, err);
    if (st == ST_OK) st = put_stops(&w, body, err);
    if (st == ST_OK) st = put_output(&w, body, err);
    if (st != ST_OK) return st;
    members_copy(&w, body);
    json_end_object(&w);
    if (buf_status(out) != ST_OK)
        return error_set(err, ST_NOMEM, "out of memory for the conversation");
    return ST_OK;
}
