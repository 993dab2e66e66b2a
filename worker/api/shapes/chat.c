/* worker/api/shapes/chat.c - POST /v1/chat/completions: its answers. chat_request.c reads its
 * bodies. */
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/api/samples.h"
#include "worker/api/shapes/logprobs.h"
#include "worker/api/wires/call_arguments.h"
#include "worker/output/answer_events.h"

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

static bool is_custom(const struct choice *ch, const struct answer_part *part) {
    return part->kind == PART_CALL && tool_fields_is_custom(&ch->call->tools, buf_str(&part->name));
}

/* What a custom tool gets. */
static void put_input(struct json_writer *w, struct str arguments) {
    struct buf input;

    buf_init(&input, 0);
    call_arguments_append_input(arguments, &input);
    json_field_str(w, "input", buf_str(&input));
    if (input.has_failed) w->out->has_failed = true;
    buf_fini(&input);
}

/* Of a custom tool's call the input comes at once, with its end. */
static void put_call(struct json_writer *w, const struct answer_event *e, bool is_custom) {
    bool begins = e->kind == ANSWER_BEGIN;
    const char *type = is_custom ? "custom" : "function";

    json_put_key(w, "tool_calls");
    json_begin_array(w);
    json_begin_object(w);
    json_field_u64(w, "index", e->part->call);
    if (begins) {
        json_field_z(w, "id", e->part->id);
        json_field_z(w, "type", type);
    }
    json_put_key(w, type);
    json_begin_object(w);
    if (begins) json_field_str(w, "name", buf_str(&e->part->name));
    if (!is_custom) {
        json_field_str(w, "arguments", begins ? STR("") : e->text);
    } else if (begins) {
        json_field_str(w, "input", STR(""));
    } else {
        put_input(w, buf_str(&e->part->text));
    }
    json_end_object(w);
    json_end_object(w);
    json_end_array(w);
}

/* `e` NULL: nothing. */
static void put_delta(struct json_writer *w, const struct choice *ch,
                      const struct answer_event *e) {
    json_put_key(w, "delta");
    json_begin_object(w);
    if (e && e->part->kind == PART_CALL) put_call(w, e, is_custom(ch, e->part));
    if (e && e->part->kind == PART_TEXT) json_field_str(w, "content", e->text);
    if (e && e->part->kind == PART_REASONING) {
        json_field_str(w, "reasoning", e->text);
        json_field_str(w, "reasoning_content", e->text);
    }
    json_end_object(w);
}

/* The last event of what is new has what belongs to its tokens, and the end. */
static void send_event(struct call *c, struct choice *ch, const struct answer_event *e,
                       bool is_last) {
    struct json_writer w;

    buf_clear(&c->out);
    begin(&w, c, "chat.completion.chunk", &c->out);
    json_begin_object(&w);
    json_field_u64(&w, "index", ch->shown);
    put_delta(&w, ch, e);
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

/* The next one that a chat client sees: of text and reasoning there is no beginning and no end. */
static bool next_event(struct choice *ch, struct answer_event *e) {
    while (answer_next(&ch->answer, &ch->sent, e)) {
        if (e->part->kind == PART_REASONING && ch->call->reasoning.is_hidden) continue;
        if (e->kind == (is_custom(ch, e->part) ? ANSWER_END : ANSWER_TEXT)) return true;
        if (e->kind == ANSWER_BEGIN && e->part->kind == PART_CALL) return true;
    }
    return false;
}

static void send(struct call *c, struct choice *ch) {
    struct answer_event e, next;
    bool has_event = next_event(ch, &e);

    while (has_event && next_event(ch, &next)) {
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

static void put_calls(struct json_writer *w, const struct choice *ch) {
    const struct answer *a = &ch->answer;

    if (a->n_calls == 0) return;
    json_put_key(w, "tool_calls");
    json_begin_array(w);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct answer_part *part = &a->part[i];
        const char *type = is_custom(ch, part) ? "custom" : "function";

        if (part->kind != PART_CALL) continue;
        json_begin_object(w);
        json_field_z(w, "id", part->id);
        json_field_z(w, "type", type);
        json_put_key(w, type);
        json_begin_object(w);
        json_field_str(w, "name", buf_str(&part->name));
        if (is_custom(ch, part)) {
            put_input(w, buf_str(&part->text));
        } else {
            json_field_str(w, "arguments", buf_str(&part->text));
        }
        json_end_object(w);
        json_end_object(w);
    }
    json_end_array(w);
}

/* No content beside calls or reasoning is null. */
static void put_message(struct json_writer *w, struct choice *ch, struct buf *scratch) {
    const struct answer *a = &ch->answer;
    bool has_text;

    json_put_key(w, "message");
    json_begin_object(w);
    json_field_str(w, "role", ch->call->role);
    buf_clear(scratch);
    buf_append_str(scratch, ch->call->echo);
    has_text = answer_join(a, PART_TEXT, scratch) || buf_len(scratch) > 0 || a->n == 0;
    if (has_text) {
        json_field_str(w, "content", buf_str(scratch));
    } else {
        json_field_null(w, "content");
    }
    json_field_null(w, "refusal");
    buf_clear(scratch);
    if (answer_join(a, PART_REASONING, scratch) && !ch->call->reasoning.is_hidden) {
        json_field_str(w, "reasoning", buf_str(scratch));
        json_field_str(w, "reasoning_content", buf_str(scratch));
    } else {
        json_field_null(w, "reasoning");
    }
    put_calls(w, ch);
    json_end_object(w);
}

static void body(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;
    struct buf scratch;

    buf_init(&scratch, 0);
    begin(&w, c, "chat.completion", out);
    for (uint32_t i = 0; i < samples_n_shown(c); i++) {
        struct choice *ch = samples_shown(c, i);

        json_begin_object(&w);
        json_field_u64(&w, "index", ch->shown);
        put_message(&w, ch, &scratch);
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
    c->is_incomplete = c->is_incomplete || buf_status(&scratch) != ST_OK;
    buf_fini(&scratch);
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
