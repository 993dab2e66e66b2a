/* worker/api/shapes/responses.c - POST /v1/responses, as OpenAI's clients and Codex speak it.
 *
 *      body ─ responses_request ─▶ body of a chat ─ chat_read ─▶ call ─▶ answer ─ responses_answer ─▶
 */
#include <stdio.h>

#include "common/http/http_server.h"
#include "common/protocol/api.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/api/wires/responses_answer.h"
#include "worker/api/wires/responses_request.h"

static struct responses_answer answer_of(const struct call *c) {
    const struct choice *ch = &c->choices[0];
    struct call_usage usage = call_usage(c);

    return (struct responses_answer){.id = c->id,
                                     .model = c->api->model_name,
                                     .asked = c->asked,
                                     .answer = &ch->answer,
                                     .created_s = c->created_s,
                                     .prompt_tokens = usage.prompt_tokens,
                                     .cached_tokens = usage.cached_tokens,
                                     .output_tokens = usage.completion_tokens,
                                     .reasoning_tokens = ch->n_reasoning,
                                     .is_limited = ch->is_done && ch->finish == FINISH_LENGTH};
}

static struct responses_stream stream_of(const struct call *c) {
    return (struct responses_stream){
        .mark = &c->choices[0].sent, .n_items = c->n_blocks, .sequence = c->n_events};
}

static void send_events(struct call *c, const struct responses_stream *stream) {
    c->n_blocks = stream->n_items;
    c->n_events = stream->sequence;
    call_send_events(c);
}

static void open_stream(struct call *c) {
    struct responses_answer r = answer_of(c);
    struct responses_stream stream = stream_of(c);

    buf_clear(&c->out);
    responses_put_start(&r, &stream, &c->out);
    send_events(c, &stream);
}

static void send(struct call *c, struct choice *ch) {
    struct responses_answer r = answer_of(c);
    struct responses_stream stream = stream_of(c);

    buf_clear(&c->out);
    responses_put_more(&r, &stream, &c->out);
    if (ch->is_done) responses_put_end(&r, &stream, &c->out);
    send_events(c, &stream);
}

static void body(struct call *c, struct buf *out) {
    struct responses_answer r = answer_of(c);

    responses_put_whole(&r, out);
}

static const struct call_shape shape = {
    .id_prefix = API_RESPONSE_ID_PREFIX,
    .prompt_field = "input",
    .length_field = "max_output_tokens",
    .reads_answer = true,
    .names_events = true,
    .open_stream = open_stream,
    .send = send,
    .body = body,
};

static enum status responses_read(struct call *c, const struct json *root, struct error *err) {
    struct responses_asked asked = {.takes_late_system = c->api->takes_late_system};
    struct buf chat;
    enum status st;

    c->asked = c->json;
    c->json = NULL;
    buf_init(&chat, 0);
    st = responses_to_chat(root, &asked, &chat, err);
    if (st == ST_OK) st = body_translated(&c->json, &chat, err);
    buf_fini(&chat);
    return st == ST_OK ? chat_read(c, c->json, err) : st;
}

void responses_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, responses_read);

    if (c) call_start(c);
}
