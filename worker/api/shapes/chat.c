/* worker/api/shapes/chat.c - POST /v1/chat/completions: its answers. chat_request.c reads its
 * bodies. */
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/api/samples.h"
#include "worker/api/shapes/chat_answer.h"
#include "worker/api/shapes/logprobs.h"

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

/* Calls are the reason where they are whole and the model chose to call; a limit comes first. */
static const char *finish_name(const struct choice *ch) {
    const struct answer *a = &ch->answer;

    if (ch->is_done && ch->finish == FINISH_STOP && a->n_calls > 0 && !a->part[a->n - 1].is_cut &&
        ch->call->tools.choice != TOOLS_NAMED)
        return "tool_calls";
    return call_finish_name(ch);
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

/* --- a stream --------------------------------------------------------------------------------- */

static struct chat_answer answer_of(const struct choice *ch) {
    return (struct chat_answer){.answer = &ch->answer,
                                .tools = &ch->call->tools,
                                .role = ch->call->role,
                                .echo = ch->call->echo,
                                .hides_reasoning = ch->call->reasoning.is_hidden};
}

/* The last event of what is new has what belongs to its tokens, and the end. */
static void send_event(struct call *c, struct choice *ch, const struct answer_event *e,
                       bool is_last) {
    struct chat_answer a = answer_of(ch);
    struct json_writer w;

    buf_clear(&c->out);
    begin(&w, c, "chat.completion.chunk", &c->out);
    json_begin_object(&w);
    json_field_u64(&w, "index", ch->shown);
    chat_put_delta(&w, &a, e);
    if (is_last) {
        put_logprobs(&w, ch, ch->n_reported);
        json_field_z(&w, "finish_reason", finish_name(ch));
        if (ch->is_done) {
            json_put_key(&w, "stop_reason");
            call_put_stop_reason(&w, ch);
        }
        put_token_ids(&w, ch, ch->n_reported);
    } else {
        json_field_null(&w, "logprobs");
        json_field_null(&w, "finish_reason");
    }
    json_end_object(&w);
    json_end_array(&w);
    call_put_chunk_usage(&w, c);
    json_end_object(&w);
    call_send_event(c);
}

static void send(struct call *c, struct choice *ch) {
    struct chat_answer a = answer_of(ch);
    struct answer_event e, next;
    bool has_event = chat_next(&a, &ch->sent, &e);

    while (has_event && chat_next(&a, &ch->sent, &next)) {
        send_event(c, ch, &e, false);
        e = next;
    }
    if (has_event || ch->is_done || c->n_logprobs >= 0 || c->params.return_token_ids)
        send_event(c, ch, has_event ? &e : NULL, true);
}

static void usage_chunk(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;

    begin(&w, c, "chat.completion.chunk", out);
    json_end_array(&w);
    call_put_usage(&w, &usage);
    json_end_object(&w);
}

/* --- the whole -------------------------------------------------------------------------------- */

static void body(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;

    begin(&w, c, "chat.completion", out);
    for (uint32_t i = 0; i < samples_n_shown(c); i++) {
        struct choice *ch = samples_shown(c, i);
        struct chat_answer a = answer_of(ch);

        json_begin_object(&w);
        json_field_u64(&w, "index", ch->shown);
        chat_put_message(&w, &a);
        put_logprobs(&w, ch, 0);
        json_field_z(&w, "finish_reason", finish_name(ch));
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
    .reads_answer = true,
    .send = send,
    .usage_chunk = usage_chunk,
    .body = body,
};

void chat_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, chat_read);

    if (c) call_start(c);
}
