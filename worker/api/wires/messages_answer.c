/* worker/api/wires/messages_answer.c - events first, then the whole. */
#include "worker/api/wires/messages_answer.h"

#include "common/text/json.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/api/wires/call_arguments.h"
#include "worker/api/wires/shown_parts.h"

#define SIGNATURE "incipit"

static const char *stop_reason(const struct messages_answer *m) {
    const struct answer *a = m->answer;
    bool is_cut = false;

    for (uint32_t i = 0; i < a->n; i++)
        is_cut = is_cut || a->part[i].is_cut;
    if (m->is_limited) return "max_tokens";
    if (a->n_calls > 0 && !is_cut) return "tool_use";
    return m->stop.ptr ? "stop_sequence" : "end_turn";
}

static void put_stop(struct json_writer *w, const struct messages_answer *m) {
    const char *reason = stop_reason(m);

    json_field_z(w, "stop_reason", reason);
    if (strcmp(reason, "stop_sequence") == 0) {
        json_field_str(w, "stop_sequence", m->stop);
    } else {
        json_field_null(w, "stop_sequence");
    }
}

static void put_usage(struct json_writer *w, const struct messages_answer *m) {
    json_put_key(w, "usage");
    json_begin_object(w);
    json_field_u64(w, "input_tokens", m->prompt_tokens - m->cached_tokens);
    json_field_u64(w, "cache_creation_input_tokens", 0);
    json_field_u64(w, "cache_read_input_tokens", m->cached_tokens);
    json_field_u64(w, "output_tokens", m->output_tokens);
    json_end_object(w);
}

/* The reason as Anthropic's clients know it. What they have no name for is "unavailable", with our
 * cause beside it. */
static void put_miss_reason(struct json_writer *w, const struct prompt_diagnosis *d) {
    static const char *const types[] = {[PROMPT_NOT_FOUND] = "previous_message_not_found",
                                        [PROMPT_SYSTEM] = "system_changed",
                                        [PROMPT_TOOLS] = "tools_changed",
                                        [PROMPT_EFFORT] = "unavailable",
                                        [PROMPT_SETTINGS] = "unavailable",
                                        [PROMPT_MESSAGES] = "messages_changed",
                                        [PROMPT_TEMPLATE] = "unavailable",
                                        [PROMPT_EVICTED] = "unavailable"};

    json_begin_object(w);
    json_field_z(w, "type", types[d->change]);
    if (d->change != PROMPT_NOT_FOUND) {
        json_field_u64(w, "cache_missed_input_tokens", d->n_missed);
        json_field_z(w, "cause", prompt_change_name(d->change));
    }
    json_end_object(w);
}

static void put_diagnosis(struct json_writer *w, const struct messages_answer *m) {
    const struct prompt_diagnosis *d = m->diagnosis;

    if (!d) return;
    json_put_key(w, "diagnostics");
    if (d->change == PROMPT_NOT_COMPARED || d->change == PROMPT_REUSED) {
        json_put_null(w);
        return;
    }
    json_begin_object(w);
    json_put_key(w, "cache_miss_reason");
    put_miss_reason(w, d);
    json_end_object(w);
}

static void begin_message(struct json_writer *w, const struct messages_answer *m) {
    json_begin_object(w);
    json_field_z(w, "id", m->id);
    json_field_z(w, "type", "message");
    json_field_z(w, "role", "assistant");
    json_field_z(w, "model", m->model);
    json_put_key(w, "content");
    json_begin_array(w);
}

/* --- events ----------------------------------------------------------------------------------- */

static void begin_event(struct json_writer *w, struct buf *out, const char *type) {
    buf_append_str(out, STR("event: "));
    buf_append_str(out, str_of(type));
    buf_append_str(out, STR("\ndata: "));
    json_writer_init(w, out);
    json_begin_object(w);
    json_field_z(w, "type", type);
}

static void end_event(struct json_writer *w) {
    json_end_object(w);
    buf_append_str(w->out, STR("\n\n"));
}

void messages_put_start(const struct messages_answer *m, struct buf *out) {
    struct json_writer w;

    begin_event(&w, out, "message_start");
    json_put_key(&w, "message");
    begin_message(&w, m);
    json_end_array(&w);
    json_field_null(&w, "stop_reason");
    json_field_null(&w, "stop_sequence");
    put_usage(&w, m);
    put_diagnosis(&w, m);
    json_end_object(&w);
    end_event(&w);
}

/* The block as it is at its beginning; `part` NULL: a text. */
static void put_begin(const struct answer_part *part, uint32_t index, struct buf *out) {
    enum part_kind kind = part ? part->kind : PART_TEXT;
    struct json_writer w;

    begin_event(&w, out, "content_block_start");
    json_field_u64(&w, "index", index);
    json_put_key(&w, "content_block");
    json_begin_object(&w);
    if (kind == PART_REASONING) {
        json_field_z(&w, "type", "thinking");
        json_field_z(&w, "thinking", "");
        json_field_z(&w, "signature", "");
    } else if (kind == PART_TEXT) {
        json_field_z(&w, "type", "text");
        json_field_z(&w, "text", "");
    } else {
        json_field_z(&w, "type", "tool_use");
        json_field_z(&w, "id", part->id);
        json_field_str(&w, "name", buf_str(&part->name));
        json_put_key(&w, "input");
        json_begin_object(&w);
        json_end_object(&w);
    }
    json_end_object(&w);
    end_event(&w);
}

static void put_delta(const char *type, const char *field, struct str text, uint32_t index,
                      struct buf *out) {
    struct json_writer w;

    begin_event(&w, out, "content_block_delta");
    json_field_u64(&w, "index", index);
    json_put_key(&w, "delta");
    json_begin_object(&w);
    json_field_z(&w, "type", type);
    json_field_str(&w, field, text);
    json_end_object(&w);
    end_event(&w);
}

static void put_block_end(uint32_t index, struct buf *out) {
    struct json_writer w;

    begin_event(&w, out, "content_block_stop");
    json_field_u64(&w, "index", index);
    end_event(&w);
}

static void put_text(const struct answer_event *e, uint32_t index, struct buf *out) {
    switch (e->part->kind) {
    case PART_REASONING: put_delta("thinking_delta", "thinking", e->text, index, out); break;
    case PART_TEXT: put_delta("text_delta", "text", e->text, index, out); break;
    case PART_CALL: put_delta("input_json_delta", "partial_json", e->text, index, out); break;
    }
}

void messages_put_more(const struct messages_answer *m, struct messages_stream *s,
                       struct buf *out) {
    struct answer_event e;

    while (shown_next(m->answer, s->mark, &e)) {
        if (e.kind == ANSWER_BEGIN) {
            put_begin(e.part, s->n_blocks++, out);
        } else if (e.kind == ANSWER_TEXT) {
            put_text(&e, s->n_blocks - 1, out);
        } else {
            if (e.part->kind == PART_REASONING)
                put_delta("signature_delta", "signature", STR(SIGNATURE), s->n_blocks - 1, out);
            put_block_end(s->n_blocks - 1, out);
        }
    }
}

void messages_put_end(const struct messages_answer *m, struct messages_stream *s, struct buf *out) {
    struct json_writer w;

    if (s->n_blocks == 0) {
        put_begin(NULL, 0, out);
        put_block_end(s->n_blocks++, out);
    }
    begin_event(&w, out, "message_delta");
    json_put_key(&w, "delta");
    json_begin_object(&w);
    put_stop(&w, m);
    json_end_object(&w);
    put_usage(&w, m);
    end_event(&w);
    begin_event(&w, out, "message_stop");
    end_event(&w);
}

/* --- the whole -------------------------------------------------------------------------------- */

static void put_call(struct json_writer *w, const struct answer_part *part) {
    struct json *object;
    struct buf arguments;

    buf_init(&arguments, 0);
    object = call_arguments_read(buf_str(&part->text), &arguments);
    json_field_z(w, "type", "tool_use");
    json_field_z(w, "id", part->id);
    json_field_str(w, "name", buf_str(&part->name));
    json_put_key(w, "input");
    json_put_raw(w, object ? buf_str(&arguments) : STR("{}"));
    if (arguments.has_failed) w->out->has_failed = true;
    json_destroy(object);
    buf_fini(&arguments);
}

static void put_block(struct json_writer *w, const struct answer_part *part) {
    json_begin_object(w);
    switch (part->kind) {
    case PART_REASONING:
        json_field_z(w, "type", "thinking");
        json_field_str(w, "thinking", buf_str(&part->text));
        json_field_z(w, "signature", SIGNATURE);
        break;
    case PART_TEXT:
        json_field_z(w, "type", "text");
        json_field_str(w, "text", buf_str(&part->text));
        break;
    case PART_CALL: put_call(w, part); break;
    }
    json_end_object(w);
}

void messages_put_whole(const struct messages_answer *m, struct buf *out) {
    const struct answer_part empty = {.kind = PART_TEXT};
    const struct answer *a = m->answer;
    struct json_writer w;
    uint32_t n = 0;

    json_writer_init(&w, out);
    begin_message(&w, m);
    for (uint32_t i = 0; i < a->n; i++) {
        if (shown_is_blank(&a->part[i]) || a->part[i].is_cut) continue;
        put_block(&w, &a->part[i]);
        n++;
    }
    if (n == 0) put_block(&w, &empty);
    json_end_array(&w);
    put_stop(&w, m);
    put_usage(&w, m);
    put_diagnosis(&w, m);
    json_end_object(&w);
}
