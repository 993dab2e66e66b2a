/* worker/api/shapes/chat_answer.c - deltas first, then the whole. */
#include "worker/api/shapes/chat_answer.h"

#include "worker/api/fields/tool_fields.h"
#include "worker/api/wires/call_arguments.h"

static bool is_custom(const struct chat_answer *a, const struct answer_part *part) {
    return part->kind == PART_CALL && tool_fields_is_custom(a->tools, buf_str(&part->name));
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

/* --- deltas ----------------------------------------------------------------------------------- */

bool chat_next(const struct chat_answer *a, struct answer_mark *mark, struct answer_event *e) {
    while (answer_next(a->answer, mark, e)) {
        if (e->part->kind == PART_REASONING && a->hides_reasoning) continue;
        if (e->kind == (is_custom(a, e->part) ? ANSWER_END : ANSWER_TEXT)) return true;
        if (e->kind == ANSWER_BEGIN && e->part->kind == PART_CALL) return true;
    }
    return false;
}

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

void chat_put_delta(struct json_writer *w, const struct chat_answer *a,
                    const struct answer_event *e) {
    json_put_key(w, "delta");
    json_begin_object(w);
    if (e && e->part->kind == PART_CALL) put_call(w, e, is_custom(a, e->part));
    if (e && e->part->kind == PART_TEXT) json_field_str(w, "content", e->text);
    if (e && e->part->kind == PART_REASONING) {
        json_field_str(w, "reasoning", e->text);
        json_field_str(w, "reasoning_content", e->text);
    }
    json_end_object(w);
}

/* --- the whole -------------------------------------------------------------------------------- */

static void put_calls(struct json_writer *w, const struct chat_answer *a) {
    if (a->answer->n_calls == 0) return;
    json_put_key(w, "tool_calls");
    json_begin_array(w);
    for (uint32_t i = 0; i < a->answer->n; i++) {
        const struct answer_part *part = &a->answer->part[i];
        const char *type = is_custom(a, part) ? "custom" : "function";

        if (part->kind != PART_CALL) continue;
        json_begin_object(w);
        json_field_z(w, "id", part->id);
        json_field_z(w, "type", type);
        json_put_key(w, type);
        json_begin_object(w);
        json_field_str(w, "name", buf_str(&part->name));
        if (is_custom(a, part)) {
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
void chat_put_message(struct json_writer *w, const struct chat_answer *a) {
    struct buf text;

    buf_init(&text, 0);
    buf_append_str(&text, a->echo);
    json_put_key(w, "message");
    json_begin_object(w);
    json_field_str(w, "role", a->role);
    if (answer_join(a->answer, PART_TEXT, &text) || buf_len(&text) > 0 || a->answer->n == 0) {
        json_field_str(w, "content", buf_str(&text));
    } else {
        json_field_null(w, "content");
    }
    json_field_null(w, "refusal");
    buf_clear(&text);
    if (answer_join(a->answer, PART_REASONING, &text) && !a->hides_reasoning) {
        json_field_str(w, "reasoning", buf_str(&text));
        json_field_str(w, "reasoning_content", buf_str(&text));
    } else {
        json_field_null(w, "reasoning");
    }
    put_calls(w, a);
    json_end_object(w);
    if (text.has_failed) w->out->has_failed = true;
    buf_fini(&text);
}
