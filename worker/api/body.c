/* worker/api/body.c - what all POSTs check alike. */
#include "worker/api/body.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/api.h"
#include "worker/api/fields/custom_tools.h"
#include "worker/api/wires/conversation.h"
#include "worker/api/wires/messages_request.h"
#include "worker/text/template/chat_template.h"

/* Schemas of 64 levels have twice as many in JSON. */
#define BODY_MAX_DEPTH 192u

/* What a translation puts around values of the body. */
#define TRANSLATED_MORE_DEPTH 8u

static enum status check_model(const struct api *api, const struct json *root, struct error *err) {
    struct str model;
    bool is_present;
    enum status st = json_get_str(root, "model", 1024, &model, &is_present, err);

    if (st != ST_OK || !is_present || api_serves(api, model) || str_eq(model, STR("default"))) {
        return st;
    }
    return error_set_param(err, ST_NOT_FOUND, "model",
                           "The model `%.*s` does not exist. This worker serves `%s`.",
                           (int)MIN(model.len, 128), model.ptr, api->model_name);
}

enum status body_parse(struct json **out, const struct api *api, const struct http_request *req,
                       struct error *err) {
    struct json_limits limits = {.max_bytes = req->body.len, /* the server has its own */
                                 .max_depth = BODY_MAX_DEPTH};
    struct json *root = NULL;
    enum status st;

    *out = NULL;
    if (req->body.len == 0) {
        return error_set(err, ST_INVALID, "the body is empty: send a JSON object");
    }
    st = json_parse(&root, req->body, &limits, err);
    if (st != ST_OK) return st;
    if (json_type(root) != JSON_OBJECT) {
        st = error_set(err, ST_INVALID, "the body must be a JSON object, not %s",
                       json_type_name(root));
    }
    if (st == ST_OK) st = check_model(api, root, err);
    if (st != ST_OK) {
        json_destroy(root);
        return st;
    }
    *out = root;
    return ST_OK;
}

static enum status check_messages(const struct json *messages, struct error *err) {
    size_t i = 0;

    if (!messages) {
        return error_set_param(err, ST_INVALID, "messages",
                               "messages is required: an array of {\"role\", \"content\"}");
    }
    JSON_FOR_EACH(it, messages) {
        if (json_type(it) != JSON_OBJECT || json_type(json_get(it, "role")) != JSON_STRING) {
            return error_set_param(err, ST_INVALID, "messages",
                                   "messages[%zu] must be an object with a \"role\" string", i);
        }
        if (++i > CONVERSATION_MAX) {
            return error_set_param(err, ST_INVALID, "messages",
                                   "messages has more than %u messages: send fewer",
                                   CONVERSATION_MAX);
        }
    }
    if (i > 0) return ST_OK;
    return error_set_param(err, ST_INVALID, "messages", "messages is empty: send at least one");
}

static struct str trim(struct str s, bool left, bool right) {
    static const char blank[] = " \t\r\n\v\f";

    while (left && s.len > 0 && memchr(blank, s.ptr[0], sizeof(blank) - 1))
        s = (struct str){s.ptr + 1, s.len - 1};
    while (right && s.len > 0 && memchr(blank, s.ptr[s.len - 1], sizeof(blank) - 1))
        s.len--;
    return s;
}

/* The text of the last message: its content, or the last part of that. */
static struct str final_text(const struct json *messages) {
    const struct json *last = NULL, *part = NULL;
    struct str text = STR_NULL;

    JSON_FOR_EACH(it, messages) last = it;
    last = json_get(last, "content");
    if (json_to_str(last, &text) == ST_OK) return text;
    JSON_FOR_EACH(it, last) part = it;
    return json_to_str(json_get(part, "text"), &text) == ST_OK ? text : STR_NULL;
}

/* Removes what the template wrote after the last message, so that the model continues that message.
 * If the template trimmed the text, the trimmed text counts. */
static enum status cut_after_final(const struct json *messages, struct buf *text,
                                   struct error *err) {
    struct str final = final_text(messages), core = trim(final, true, true);
    struct str shown = trim(final, true, false), all = buf_str(text);

    for (size_t at = all.len; core.len > 0 && at-- > 0;) {
        if (core.len > all.len - at || memcmp(all.ptr + at, core.ptr, core.len) != 0) continue;
        if (shown.len <= all.len - at && memcmp(all.ptr + at, shown.ptr, shown.len) == 0) {
            core = shown;
        }
        buf_truncate(text, at + core.len);
        return ST_OK;
    }
    return error_set_param(err, ST_INVALID, "continue_final_message",
                           "continue_final_message needs a last message whose text the chat "
                           "template prints unchanged");
}

/* {"add_generation_prompt", "continue_final_message"}: the second turns the first off. */
static enum status read_ending(const struct json *body, struct chat_input *in, bool *continues,
                               struct error *err) {
    bool is_present;
    enum status st = json_get_bool(body, "continue_final_message", continues, NULL, err);

    if (st == ST_OK) {
        st = json_get_bool(body, "add_generation_prompt", &in->add_generation_prompt, &is_present,
                           err);
    }
    if (st != ST_OK || !*continues) return st;
    if (is_present && in->add_generation_prompt) {
        return error_set_param(err, ST_INVALID, "continue_final_message",
                               "continue_final_message and add_generation_prompt cannot both be "
                               "true: set one of them to false");
    }
    in->add_generation_prompt = false;
    return ST_OK;
}

static enum status read_effort(const struct json *body, struct str *effort, struct error *err) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    bool is_present;
    enum status st = json_get_str(body, "reasoning_effort", 64, effort, &is_present, err);

    if (st != ST_OK || !is_present) return st;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (str_eq(*effort, str_of(words[i]))) return ST_OK;
    return error_set_param(err, ST_INVALID, "reasoning_effort",
                           "unsupported reasoning_effort \"%.*s\": supported are \"none\", "
                           "\"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" and \"max\"",
                           STR_ARG(*effort));
}

enum status body_render_chat(const struct api *api, const struct json *body, struct buf *text,
                             struct error *err) {
    struct chat_input in = {.add_generation_prompt = true,
                            .defaults = api->template_kwargs,
                            .now_s = (int64_t)(clock_wall_us() / 1000000)};
    struct json *functions = NULL;
    bool continues = false;
    enum status st = json_get_array(body, "messages", &in.messages, err);

    if (st == ST_OK) st = check_messages(in.messages, err);
    if (st == ST_OK) st = json_get_array(body, "tools", &in.tools, err);
    if (st == ST_OK) st = custom_tools_read(&functions, in.tools, false, err);
    if (functions) in.tools = functions;
    if (st == ST_OK) st = json_get_array(body, "documents", &in.documents, err);
    if (st == ST_OK) st = json_get_object(body, "chat_template_kwargs", &in.kwargs, err);
    if (st == ST_OK) st = read_effort(body, &in.effort, err);
    if (st == ST_OK) st = read_ending(body, &in, &continues, err);
    if (st == ST_OK && !json_is_null(json_get(body, "chat_template"))) {
        st = error_set_param(
            err, ST_INVALID, "chat_template",
            "chat_template in a request is not supported: start the worker with --chat-template");
    }
    if (st == ST_OK) st = chat_template_render(api->chat_template, &in, text, err);
    if (st == ST_OK && continues) st = cut_after_final(in.messages, text, err);
    json_destroy(functions);
    return st;
}

uint32_t body_count_calls(const struct json *chat) {
    size_t n = 0;

    JSON_FOR_EACH(message, json_get(chat, "messages")) {
        n += json_count(json_get(message, "tool_calls"));
    }
    return (uint32_t)n;
}

enum status body_translated(struct json **out, const struct buf *chat, struct error *err) {
    struct json_limits limits = {.max_bytes = buf_len(chat) + 1,
                                 .max_depth = BODY_MAX_DEPTH + TRANSLATED_MORE_DEPTH};

    return json_parse(out, buf_str(chat), &limits, err);
}

static enum status from_messages(struct json **out, const struct api *api, const struct json *body,
                                 struct messages_asked *asked, struct error *err) {
    struct buf chat;
    enum status st;

    asked->takes_late_system = api->takes_late_system;
    asked->limits_thinking =
        api->reasoning_format && reasoning_format_end(api->reasoning_format).len;
    buf_init(&chat, 0);
    st = messages_to_chat(body, asked, &chat, err);
    if (st == ST_OK) st = body_translated(out, &chat, err);
    buf_fini(&chat);
    return st;
}

enum status body_from_messages(struct json **out, const struct api *api, const struct json *body,
                               bool is_count, struct error *err) {
    struct messages_asked asked = {.is_count = is_count};

    return from_messages(out, api, body, &asked, err);
}

static size_t n_common(struct str a, struct str b) {
    size_t n = 0;

    while (n < MIN(a.len, b.len) && a.ptr[n] == b.ptr[n])
        n++;
    return n;
}

/* The chat with its first n messages alone, and no beginning of an answer. */
static void put_beginning(struct buf *out, const struct json *chat, size_t n_messages) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    JSON_FOR_EACH(field, chat) {
        struct str name = json_key(field);

        if (str_eq(name, STR("add_generation_prompt")) ||
            str_eq(name, STR("continue_final_message")))
            continue;
        json_put_key_str(&w, name);
        if (!str_eq(name, STR("messages"))) {
            json_put_tree(&w, field);
            continue;
        }
        json_begin_array(&w);
        for (const struct json *it = json_first(field); it && n_messages > 0; it = json_next(it)) {
            json_put_tree(&w, it);
            n_messages--;
        }
        json_end_array(&w);
    }
    json_field_bool(&w, "add_generation_prompt", false);
    json_end_object(&w);
}

size_t body_beginning_of_chat(const struct api *api, const struct json *chat, size_t n_messages,
                              struct str rendered) {
    struct json *beginning = NULL;
    struct buf body, text;
    size_t n = 0;

    buf_init(&body, 0);
    buf_init(&text, rendered.len + 65536);
    put_beginning(&body, chat, n_messages);
    if (buf_status(&body) == ST_OK && body_translated(&beginning, &body, NULL) == ST_OK &&
        body_render_chat(api, beginning, &text, NULL) == ST_OK && buf_status(&text) == ST_OK)
        n = n_common(buf_str(&text), rendered);
    json_destroy(beginning);
    buf_fini(&body);
    buf_fini(&text);
    return n;
}

size_t body_beginning_of_messages(const struct api *api, const struct json *body, size_t n_messages,
                                  struct str rendered) {
    struct messages_asked asked = {.is_beginning = true, .n_messages = n_messages};
    struct json *chat = NULL;
    struct buf text;
    size_t n = 0;

    buf_init(&text, rendered.len + 65536);
    if (from_messages(&chat, api, body, &asked, NULL) == ST_OK &&
        body_render_chat(api, chat, &text, NULL) == ST_OK && buf_status(&text) == ST_OK)
        n = n_common(buf_str(&text), rendered);
    json_destroy(chat);
    buf_fini(&text);
    return n;
}
