/* worker/api/chat.c - POST /v1/chat/completions. */
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/api/logprobs.h"
#include "worker/api/samples.h"

#define RENDERED_MAX (64u << 20) /* bytes of a rendered conversation */

static void begin(struct json_writer *w, const struct call *c, const char *object,
                  struct buf *out) {
    json_writer_init(w, out);
    json_begin_object(w);
    json_field_z(w, "id", c->id);
    json_field_z(w, "object", object);
    json_field_u64(w, "created", c->created_s);
    json_field_z(w, "model", c->api->model_name);
    json_put_key(w, "choices");
    json_begin_array(w);
}

static void put_logprobs(struct json_writer *w, const struct choice *ch, uint32_t first) {
    json_put_key(w, "logprobs");
    if (ch->call->n_logprobs >= 0) {
        logprobs_put_chat(w, ch, first, ch->n_used);
    } else {
        json_put_null(w);
    }
}

static void put_token_ids(struct json_writer *w, const struct choice *ch, uint32_t first) {
    if (!ch->call->params.return_token_ids) return;
    json_put_key(w, "token_ids");
    json_begin_array(w);
    for (uint32_t i = first; i < ch->n_used; i++)
        json_put_u64(w, request_output(ch->request)[i]);
    json_end_array(w);
}

/* A chunk without tokens: the role with no text, or the text that an echo puts before the
 * answer. */
static void send_opening(struct call *c, const struct choice *ch, bool is_role, struct str text) {
    struct json_writer w;

    buf_clear(&c->out);
    begin(&w, c, "chat.completion.chunk", &c->out);
    json_begin_object(&w);
    json_field_u64(&w, "index", ch->shown);
    json_put_key(&w, "delta");
    json_begin_object(&w);
    if (is_role) json_field_str(&w, "role", c->role);
    json_field_str(&w, "content", text);
    json_end_object(&w);
    json_field_null(&w, "logprobs");
    json_field_null(&w, "finish_reason");
    json_end_object(&w);
    json_end_array(&w);
    if (is_role && c->params.return_token_ids) call_put_prompt_ids(&w, ch);
    call_put_chunk_usage(&w, c);
    json_end_object(&w);
    if (buf_status(&c->out) == ST_OK) {
        http_sse_event(c->req, buf_str(&c->out));
    } else {
        c->is_incomplete = true;
    }
}

static void open_stream(struct call *c) {
    for (uint32_t i = 0; i < samples_n_shown(c); i++)
        send_opening(c, samples_shown(c, i), true, STR(""));
    for (uint32_t i = 0; i < samples_n_shown(c) && c->echo.len; i++)
        send_opening(c, samples_shown(c, i), false, c->echo);
}

static void chunk(struct call *c, struct choice *ch, struct buf *out) {
    struct json_writer w;

    begin(&w, c, "chat.completion.chunk", out);
    json_begin_object(&w);
    json_field_u64(&w, "index", ch->shown);
    json_put_key(&w, "delta");
    json_begin_object(&w);
    if (buf_len(&ch->delta)) json_field_str(&w, "content", buf_str(&ch->delta));
    json_end_object(&w);
    put_logprobs(&w, ch, ch->n_reported);
    json_field_z(&w, "finish_reason", call_finish_name(ch));
    if (ch->is_done) {
        json_put_key(&w, "stop_reason");
        call_put_stop_reason(&w, ch);
    }
    put_token_ids(&w, ch, ch->n_reported);
    json_end_object(&w);
    json_end_array(&w);
    call_put_chunk_usage(&w, c);
    json_end_object(&w);
}

static void usage_chunk(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;

    begin(&w, c, "chat.completion.chunk", out);
    json_end_array(&w);
    call_put_usage(&w, &usage);
    json_end_object(&w);
}

static void put_message(struct json_writer *w, const struct choice *ch) {
    json_put_key(w, "message");
    json_begin_object(w);
    json_field_str(w, "role", ch->call->role);
    json_field_str(w, "content", buf_str(&ch->text));
    json_field_null(w, "refusal");
    json_field_null(w, "reasoning");
    json_end_object(w);
}

static void body(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;

    begin(&w, c, "chat.completion", out);
    for (uint32_t i = 0; i < samples_n_shown(c); i++) {
        const struct choice *ch = samples_shown(c, i);

        json_begin_object(&w);
        json_field_u64(&w, "index", ch->shown);
        put_message(&w, ch);
        put_logprobs(&w, ch, 0);
        json_field_z(&w, "finish_reason", call_finish_name(ch));
        json_put_key(&w, "stop_reason");
        call_put_stop_reason(&w, ch);
        put_token_ids(&w, ch, 0);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_field_null(&w, "service_tier");
    json_field_null(&w, "system_fingerprint");
    call_put_usage(&w, &usage);
    logprobs_put_prompt(&w, &c->choices[0]);
    if (c->params.return_token_ids) call_put_prompt_ids(&w, &c->choices[0]);
    json_end_object(&w);
}

static const struct call_shape shape = {
    .id_prefix = "chatcmpl-",
    .prompt_field = "messages",
    .length_field = "max_tokens",
    .open_stream = open_stream,
    .chunk = chunk,
    .usage_chunk = usage_chunk,
    .body = body,
};

/* Tools are shown to the model; nothing forces it to call one. */
static enum status check_tool_choice(const struct json *root, struct error *err) {
    const struct json *choice = json_get(root, "tool_choice");
    struct str name = STR("object");

    if (json_is_null(choice)) return ST_OK;
    if (json_to_str(choice, &name) == ST_OK && str_eq(name, STR("none"))) return ST_OK;
    if (json_count(json_get(root, "tools")) == 0) {
        return error_set_param(
            err, ST_INVALID, "tool_choice",
            "tool_choice is set without tools: send \"tools\" too, or leave both out");
    }
    if (str_eq(name, STR("auto"))) return ST_OK;
    return error_set_param(err, ST_INVALID, "tool_choice",
                           "unsupported tool_choice %.*s: supported are \"auto\" and \"none\"",
                           (int)MIN(name.len, 40), name.ptr);
}

/* The role of the answer: assistant, or the role of a last message that is continued. With "echo",
 * that message's text comes before the answer if its role is the answer's. */
static void read_role(struct call *c, const struct json *root) {
    const struct json *last = NULL;
    bool is_new = true;
    struct str role = STR_NULL;

    JSON_FOR_EACH(message, json_get(root, "messages")) last = message;
    c->role = STR("assistant");
    if (json_to_str(json_get(last, "role"), &role) != ST_OK) return;
    if (json_to_bool(json_get(root, "add_generation_prompt"), &is_new) == ST_OK && !is_new) {
        c->role = role;
    }
    if (!c->params.echo || !str_eq(role, c->role)) return;
    if (json_to_str(json_get(last, "content"), &c->echo) != ST_OK) c->echo = STR_NULL;
}

static enum status read_options(struct call *c, const struct json *root, struct error *err) {
    uint32_t limit = engine_info(c->api->engine)->limits.max_logprobs, n = 0;
    bool wants = false, has_top;
    enum status st = json_get_bool(root, "logprobs", &wants, NULL, err);

    if (st == ST_OK) st = check_tool_choice(root, err);
    if (st == ST_OK) st = json_get_u32(root, "top_logprobs", 0, limit, &n, &has_top, err);
    if (st != ST_OK) return st;
    if (has_top && n > 0 && !wants) {
        return error_set_param(err, ST_INVALID, "top_logprobs",
                               "top_logprobs requires \"logprobs\": true");
    }
    if (wants) c->n_logprobs = c->params.request.n_logprobs = (int32_t)n;
    if (!c->params.has_max_tokens) c->params.request.max_tokens = UINT32_MAX; /* what is left */
    return ST_OK;
}

static enum status read_messages(struct call *c, const struct json *root, struct error *err) {
    bool add_special = false; /* the template has written what the model wants */
    struct buf text;
    enum status st = call_set_prompts(c, 1, err);

    if (st == ST_OK) st = json_get_bool(root, "add_special_tokens", &add_special, NULL, err);
    if (st != ST_OK) return st;
    buf_init(&text, RENDERED_MAX);
    st = body_render_chat(c->api, root, &text, err);
    if (st == ST_OK && buf_status(&text) != ST_OK) {
        st = error_set(err, ST_NOMEM, "out of memory for the rendered conversation");
    }
    if (st == ST_OK)
        st = call_prompt_text(c, 0, buf_str(&text), add_special ? TOKENIZE_SPECIAL : 0, err);
    buf_fini(&text);
    return st;
}

enum status chat_read(struct call *c, const struct json *root, struct error *err) {
    enum status st = call_read_params(c, err);

    if (st == ST_OK) st = read_options(c, root, err);
    if (st == ST_OK) read_role(c, root);
    return st == ST_OK ? read_messages(c, root, err) : st;
}

void chat_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, chat_read);

    if (c) call_start(c);
}
