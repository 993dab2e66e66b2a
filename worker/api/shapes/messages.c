/* worker/api/shapes/messages.c - POST /v1/messages, as Anthropic's clients speak it.
 *
 *      body ─ messages_request ─▶ body of a chat ─ chat_read ─▶ call ─▶ answer ─ messages_answer ─▶
 *
 * What a conversation is for the model, its template and the cache does not depend on the call by
 * which it comes. */
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/fields/cache_control.h"
#include "worker/api/handlers.h"
#include "worker/api/wires/messages_answer.h"
#include "worker/text/stop.h"

static bool wants_diagnosis(const struct call *c) {
    return !json_is_null(json_get(c->asked, "diagnostics"));
}

static struct messages_answer answer_of(const struct call *c) {
    const struct choice *ch = &c->choices[0];
    struct call_usage usage = call_usage(c);
    struct messages_answer m = {.id = c->id,
                                .model = c->api->model_name,
                                .answer = &ch->answer,
                                .prompt_tokens = usage.prompt_tokens,
                                .cached_tokens = usage.cached_tokens,
                                .output_tokens = usage.completion_tokens,
                                .is_limited = ch->is_done && ch->finish == FINISH_LENGTH};

    if (wants_diagnosis(c)) m.diagnosis = &c->diagnosis;
    if (ch->is_done && ch->stop.matched >= 0)
        m.stop = stop_set_string(ch->stop.set, (size_t)ch->stop.matched);
    return m;
}

static void open_stream(struct call *c) {
    struct messages_answer m = answer_of(c);

    if (m.diagnosis) call_diagnose(c);
    buf_clear(&c->out);
    messages_put_start(&m, &c->out);
    call_send_events(c);
}

static void send(struct call *c, struct choice *ch) {
    struct messages_answer m = answer_of(c);
    struct messages_stream stream = {.mark = &ch->sent, .n_blocks = c->n_blocks};

    buf_clear(&c->out);
    messages_put_more(&m, &stream, &c->out);
    if (ch->is_done) messages_put_end(&m, &stream, &c->out);
    c->n_blocks = stream.n_blocks;
    call_send_events(c);
}

static void body(struct call *c, struct buf *out) {
    struct messages_answer m = answer_of(c);

    if (m.diagnosis) call_diagnose(c);
    messages_put_whole(&m, out);
}

static const struct call_shape shape = {
    .id_prefix = "msg_",
    .prompt_field = "messages",
    .length_field = "max_tokens",
    .reads_answer = true,
    .names_events = true,
    .open_stream = open_stream,
    .send = send,
    .body = body,
};

/* {"previous_message_id"} */
static enum status read_diagnostics(struct call *c, struct error *err) {
    const struct json *diagnostics;
    enum status st = json_get_object(c->asked, "diagnostics", &diagnostics, err);

    if (st != ST_OK) return st;
    st = json_get_str(diagnostics, "previous_message_id", 256, &c->compared, NULL, err);
    return error_within(err, st, "diagnostics");
}

_Static_assert(CACHE_CONTROL_MAX <= KV_RETAIN_MAX, "each mark is one for the engine");

/* What cache_control marks, in the rendered prompt. */
static enum status read_cache_control(struct call *c, const struct json *root, struct error *err) {
    struct cache_control marks[CACHE_CONTROL_MAX];
    struct str rendered = buf_str(&c->prompts[0].text);
    uint32_t n;
    enum status st = cache_control_read(root, marks, &n, err);

    for (uint32_t i = 0; st == ST_OK && i < n; i++) {
        struct call_keep keep = {SIZE_MAX, marks[i].ttl_s};

        if (marks[i].n_messages != CACHE_CONTROL_ALL)
            keep.n_bytes = body_beginning_of_messages(c->api, root, marks[i].n_messages, rendered);
        c->keep[c->n_keep++] = keep;
    }
    return st;
}

static enum status messages_read(struct call *c, const struct json *root, struct error *err) {
    enum status st;

    c->asked = c->json;
    c->json = NULL;
    st = read_diagnostics(c, err);
    if (st == ST_OK) st = body_from_messages(&c->json, c->api, root, false, err);
    if (st == ST_OK) st = chat_read(c, c->json, err);
    return st == ST_OK ? read_cache_control(c, root, err) : st;
}

void messages_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, messages_read);

    if (c) call_start(c);
}
