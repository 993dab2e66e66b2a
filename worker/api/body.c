/* worker/api/body.c - what all POSTs check alike. */
#include "worker/api/body.h"

#include "common/clock.h"
#include "common/http_server.h"
#include "common/json.h"
#include "worker/api/api.h"
#include "worker/text/chat_template.h"

#define MESSAGES_MAX 10000

static enum status check_model(const struct api *api, const struct json *root, struct error *err) {
    struct str model;
    bool is_present;
    enum status st = json_get_str(root, "model", 1024, &model, &is_present, err);

    if (st != ST_OK || !is_present || str_eq(model, str_of(api->model_name)) ||
        str_eq(model, STR("default"))) {
        return st;
    }
    return error_set_param(err, ST_NOT_FOUND, "model",
                           "The model `%.*s` does not exist. This worker serves `%s`.",
                           (int)MIN(model.len, 128), model.ptr, api->model_name);
}

enum status body_parse(struct json **out, const struct api *api, const struct http_request *req,
                       struct error *err) {
    struct json_limits limits = {.max_bytes = req->body.len}; /* the server has its own */
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
        if (++i > MESSAGES_MAX) {
            return error_set_param(err, ST_INVALID, "messages", "more than %u messages",
                                   MESSAGES_MAX);
        }
    }
    if (i > 0) return ST_OK;
    return error_set_param(err, ST_INVALID, "messages", "messages is empty: send at least one");
}

enum status body_render_chat(const struct api *api, const struct json *body, struct buf *text,
                             struct error *err) {
    struct chat_input in = {.add_generation_prompt = true,
                            .now_s = (int64_t)(clock_wall_us() / 1000000)};
    bool continues = false;
    enum status st = json_get_array(body, "messages", &in.messages, err);

    if (st == ST_OK) st = check_messages(in.messages, err);
    if (st == ST_OK) st = json_get_array(body, "tools", &in.tools, err);
    if (st == ST_OK) st = json_get_array(body, "documents", &in.documents, err);
    if (st == ST_OK) st = json_get_object(body, "chat_template_kwargs", &in.kwargs, err);
    if (st == ST_OK) {
        st = json_get_bool(body, "add_generation_prompt", &in.add_generation_prompt, NULL, err);
    }
    if (st == ST_OK) st = json_get_bool(body, "continue_final_message", &continues, NULL, err);
    if (st == ST_OK && continues) {
        st = error_set_param(err, ST_INVALID, "continue_final_message",
                             "continue_final_message is not supported by this worker: use "
                             "/v1/completions with the rendered prompt");
    }
    if (st == ST_OK && !json_is_null(json_get(body, "chat_template"))) {
        st = error_set_param(err, ST_INVALID, "chat_template",
                             "chat_template is not taken from requests by this worker");
    }
    return st == ST_OK ? chat_template_render(api->chat_template, &in, text, err) : st;
}
