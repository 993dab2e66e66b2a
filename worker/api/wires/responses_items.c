/* worker/api/wires/responses_items.c - see responses_items.h. */
#include "worker/api/wires/responses_items.h"

#include <stdio.h>

#include "common/protocol/api.h"
#include "common/text/json.h"
#include "worker/api/wires/call_arguments.h"
#include "worker/api/wires/members.h"
#include "worker/api/wires/sealed_text.h"

static const char *prefix_of(const struct responses_item *item) {
    switch (item->part->kind) {
    case PART_REASONING: return "rs_";
    case PART_TEXT: return "msg_";
    case PART_CALL: break;
    }
    return item->tool.is_custom ? "ctc_" : "fc_";
}

struct responses_item responses_item_of(const struct responses_answer *r,
                                        const struct answer_part *part, uint32_t n) {
    struct responses_item item = {.of = r, .part = part, .n = n};
    struct str id = str_of(r->id), prefix = STR(API_RESPONSE_ID_PREFIX);

    if (str_starts(id, prefix)) id = (struct str){id.ptr + prefix.len, id.len - prefix.len};
    if (part->kind == PART_CALL) item.tool = responses_tool_of(r->asked, buf_str(&part->name));
    snprintf(item.id, sizeof(item.id), "%s%.*s_%u", prefix_of(&item), (int)MIN(id.len, 64), id.ptr,
             n);
    return item;
}

/* What the limit has cut. A call knows it; of the rest it is the last part. */
static bool is_incomplete(const struct responses_item *item) {
    const struct answer *a = item->of->answer;

    if (item->part->kind == PART_CALL) return item->part->is_cut;
    return item->of->is_limited && (a->n == 0 || item->part == &a->part[a->n - 1]);
}

static bool wants_sealed(const struct json *asked) {
    struct str name;

    JSON_FOR_EACH(it, json_get(asked, "include")) {
        if (json_to_str(it, &name) == ST_OK && str_eq(name, STR("reasoning.encrypted_content")))
            return true;
    }
    return false;
}

void responses_item_put_content(struct json_writer *w, const struct responses_item *item,
                                struct str text) {
    bool is_reasoning = item->part->kind == PART_REASONING;

    json_begin_object(w);
    json_field_z(w, "type", is_reasoning ? "reasoning_text" : "output_text");
    json_field_str(w, "text", text);
    if (!is_reasoning) {
        json_put_key(w, "annotations");
        json_begin_array(w);
        json_end_array(w);
        json_put_key(w, "logprobs");
        json_begin_array(w);
        json_end_array(w);
    }
    json_end_object(w);
}

/* "content"; of one that begins, none. */
static void put_contents(struct json_writer *w, const struct responses_item *item, bool begins) {
    json_put_key(w, "content");
    json_begin_array(w);
    if (!begins) responses_item_put_content(w, item, buf_str(&item->part->text));
    json_end_array(w);
}

static void put_reasoning(struct json_writer *w, const struct responses_item *item, bool begins) {
    struct buf sealed;

    json_put_key(w, "summary");
    json_begin_array(w);
    json_end_array(w);
    put_contents(w, item, begins);
    if (begins || !wants_sealed(item->of->asked)) return;
    buf_init(&sealed, 0);
    sealed_text_put(&sealed, buf_str(&item->part->text));
    json_field_str(w, "encrypted_content", buf_str(&sealed));
    if (sealed.has_failed) w->out->has_failed = true;
    buf_fini(&sealed);
}

static void put_call(struct json_writer *w, const struct responses_item *item, bool begins) {
    struct buf input;

    json_field_z(w, "call_id", item->part->id);
    json_field_str(w, "name", item->tool.name);
    if (item->tool.space.len) json_field_str(w, "namespace", item->tool.space);
    if (!item->tool.is_custom) {
        json_field_str(w, "arguments", begins ? STR("") : buf_str(&item->part->text));
        return;
    }
    buf_init(&input, 0);
    if (!begins) call_arguments_append_input(buf_str(&item->part->text), &input);
    json_field_str(w, "input", buf_str(&input));
    if (input.has_failed) w->out->has_failed = true;
    buf_fini(&input);
}

static void put(struct json_writer *w, const struct responses_item *item, bool begins) {
    static const char *const types[] = {"reasoning", "message", "function_call"};
    enum part_kind kind = item->part->kind;
    bool is_custom = kind == PART_CALL && item->tool.is_custom;

    json_begin_object(w);
    json_field_z(w, "id", item->id);
    json_field_z(w, "type", is_custom ? "custom_tool_call" : types[kind]);
    json_field_z(w, "status",
                 begins ? "in_progress" : (is_incomplete(item) ? "incomplete" : "completed"));
    switch (kind) {
    case PART_REASONING: put_reasoning(w, item, begins); break;
    case PART_TEXT:
        json_field_z(w, "role", "assistant");
        put_contents(w, item, begins);
        break;
    case PART_CALL: put_call(w, item, begins); break;
    }
    json_end_object(w);
}

void responses_item_put_begin(struct json_writer *w, const struct responses_item *item) {
    put(w, item, true);
}

void responses_item_put(struct json_writer *w, const struct responses_item *item) {
    put(w, item, false);
}

/* --- what was asked --------------------------------------------------------------------------- */

static void put_input_id(struct json_writer *w, const struct responses_answer *r, uint32_t n) {
    char id[128];

    snprintf(id, sizeof(id), "in_%.96s_%u", r->id + sizeof(API_RESPONSE_ID_PREFIX) - 1, n);
    json_field_z(w, "id", id);
}

static void put_input_text(struct json_writer *w, const struct responses_answer *r,
                           struct str text) {
    json_begin_object(w);
    put_input_id(w, r, 0);
    json_field_z(w, "type", "message");
    json_field_z(w, "role", "user");
    json_put_key(w, "content");
    json_begin_array(w);
    json_begin_object(w);
    json_field_z(w, "type", "input_text");
    json_field_str(w, "text", text);
    json_end_object(w);
    json_end_array(w);
    json_end_object(w);
}

void responses_put_input(const struct responses_answer *r, struct buf *out) {
    const struct json *input = json_get(r->asked, "input");
    struct json_writer w;
    struct str text;
    uint32_t n = 0;

    json_writer_init(&w, out);
    if (json_to_str(input, &text) == ST_OK) put_input_text(&w, r, text);
    JSON_FOR_EACH(it, input) {
        if (n > 0) buf_append_char(out, ',');
        json_writer_init(&w, out);
        json_begin_object(&w);
        if (!member_text(it, "id").ptr) put_input_id(&w, r, n);
        JSON_FOR_EACH(m, it) {
            if (str_eq(json_key(m), STR("id")) && !member_text(it, "id").ptr) continue;
            json_put_key_str(&w, json_key(m));
            json_put_tree(&w, m);
        }
        json_end_object(&w);
        n++;
    }
}
