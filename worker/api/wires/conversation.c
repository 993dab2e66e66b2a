/* worker/api/wires/conversation.c - one message is open at a time; it is written when another
 * speaker begins. Results are written at once: they come before the text of their message. */
#include "worker/api/wires/conversation.h"

#include "worker/api/wires/members.h"

static void put_text(struct json_writer *w, const struct conversation *c) {
    static const char *const roles[] = {"system", "user", "assistant"};

    json_field_z(w, "role", roles[c->speaker]);
    if (c->n_texts == 0 && c->n_calls > 0) {
        json_field_null(w, "content");
    } else {
        json_field_str(w, "content", buf_str(&c->text));
    }
}

static void put_calls(struct json_writer *w, const struct conversation *c) {
    if (c->n_calls == 0) return;
    json_put_key(w, "tool_calls");
    json_begin_array(w);
    json_put_raw(w, buf_str(&c->calls));
    json_end_array(w);
}

static void close_turn(struct conversation *c) {
    struct json_writer *w = c->w;

    if (c->is_open && (c->n_texts > 0 || c->n_results == 0)) {
        c->n_messages++;
        json_begin_object(w);
        put_text(w, c);
        if (buf_len(&c->reasoning)) json_field_str(w, "reasoning", buf_str(&c->reasoning));
        put_calls(w, c);
        json_end_object(w);
    }
    c->is_open = false;
}

static void note_failure(struct conversation *c) {
    if (c->text.has_failed || c->reasoning.has_failed || c->calls.has_failed)
        c->w->out->has_failed = true;
}

void conversation_begin(struct conversation *c, struct json_writer *w, bool takes_late_system) {
    *c = (struct conversation){.w = w, .takes_late_system = takes_late_system};
    buf_init(&c->text, 0);
    buf_init(&c->reasoning, 0);
    buf_init(&c->calls, 0);
    json_put_key(w, "messages");
    json_begin_array(w);
}

enum status conversation_end(struct conversation *c, const char *field, struct error *err) {
    close_turn(c);
    note_failure(c);
    json_end_array(c->w);
    buf_fini(&c->text);
    buf_fini(&c->reasoning);
    buf_fini(&c->calls);
    if (buf_status(c->w->out) != ST_OK)
        return error_set(err, ST_NOMEM, "out of memory for the conversation");
    if (c->n_messages <= CONVERSATION_MAX) return ST_OK;
    return error_set_param(err, ST_INVALID, field, "%s has more than %u messages: send fewer",
                           field, CONVERSATION_MAX);
}

void conversation_turn(struct conversation *c, enum speaker speaker) {
    if (speaker == SPEAKER_SYSTEM && c->has_begun && !c->takes_late_system) speaker = SPEAKER_USER;
    if (c->is_open && c->speaker == speaker) return;
    close_turn(c);
    note_failure(c);
    buf_clear(&c->text);
    buf_clear(&c->reasoning);
    buf_clear(&c->calls);
    c->n_texts = c->n_calls = c->n_results = 0;
    c->is_open = true;
    c->speaker = speaker;
    c->has_begun = c->has_begun || speaker != SPEAKER_SYSTEM;
}

void conversation_text(struct conversation *c, enum speaker speaker, struct str text) {
    conversation_turn(c, speaker);
    append_line(&c->text, text);
    c->n_texts++;
}

void conversation_reasoning(struct conversation *c, struct str text) {
    conversation_turn(c, SPEAKER_ASSISTANT);
    append_line(&c->reasoning, text);
}

void conversation_call(struct conversation *c, struct str id, struct str name,
                       struct str arguments) {
    struct json_writer w;

    conversation_turn(c, SPEAKER_ASSISTANT);
    if (c->n_calls++ > 0) buf_append_char(&c->calls, ',');
    json_writer_init(&w, &c->calls);
    json_begin_object(&w);
    json_field_str(&w, "id", id);
    json_field_z(&w, "type", "function");
    json_put_key(&w, "function");
    json_begin_object(&w);
    json_field_str(&w, "name", name);
    json_field_str(&w, "arguments", arguments);
    json_end_object(&w);
    json_end_object(&w);
}

void conversation_result(struct conversation *c, struct str id, struct str text) {
    struct json_writer *w = c->w;

    conversation_turn(c, SPEAKER_USER);
    json_begin_object(w);
    json_field_z(w, "role", "tool");
    json_field_str(w, "tool_call_id", id);
    json_field_str(w, "content", text);
    json_end_object(w);
    c->n_results++;
    c->n_messages++;
}

bool conversation_ends_in_answer(const struct conversation *c) {
    return c->is_open && c->speaker == SPEAKER_ASSISTANT && c->n_calls == 0 && buf_len(&c->text);
}
