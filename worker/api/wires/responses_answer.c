/* worker/api/wires/responses_answer.c - the response, then its events. */
#include "worker/api/wires/responses_answer.h"

#include "common/text/json.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/api/wires/call_arguments.h"
#include "worker/api/wires/responses_items.h"
#include "worker/api/wires/shown_parts.h"

static const struct answer_part empty_text = {.kind = PART_TEXT, .is_whole = true};

/* --- the response ----------------------------------------------------------------------------- */

/* A field of the request as the client sent it. */
static void repeat(struct json_writer *w, const struct responses_answer *r, const char *name,
                   const char *otherwise) {
    const struct json *v = json_get(r->asked, name);

    json_put_key(w, name);
    if (json_is_null(v)) {
        json_put_raw(w, str_of(otherwise));
    } else {
        json_put_tree(w, v);
    }
}

static void repeat_all(struct json_writer *w, const struct responses_answer *r) {
    static const char *const fields[][2] = {{"context_management", "null"},
                                            {"instructions", "null"},
                                            {"max_output_tokens", "null"},
                                            {"max_tool_calls", "null"},
                                            {"metadata", "{}"},
                                            {"parallel_tool_calls", "true"},
                                            {"previous_response_id", "null"},
                                            {"prompt_cache_key", "null"},
                                            {"prompt_cache_options", "null"},
                                            {"prompt_cache_retention", "null"},
                                            {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                            {"safety_identifier", "null"},
                                            {"temperature", "null"},
                                            {"text", "{\"format\":{\"type\":\"text\"}}"},
                                            {"tool_choice", "\"auto\""},
                                            {"tools", "[]"},
                                            {"top_p", "null"},
                                            {"truncation", "\"disabled\""},
                                            {"user", "null"}};

    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        repeat(w, r, fields[i][0], fields[i][1]);
    json_field_z(w, "service_tier", "default");
    json_field_u64(w, "top_logprobs", 0);
    json_field_bool(w, "background", false);
    json_field_bool(w, "store", r->is_stored);
}

static void put_item(const struct responses_item *item, struct buf *out) {
    struct json_writer w;

    if (item->n > 0) buf_append_char(out, ',');
    json_writer_init(&w, out);
    responses_item_put(&w, item);
}

void responses_put_output(const struct responses_answer *r, struct buf *out) {
    const struct answer *a = r->answer;
    struct responses_item item;
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->n; i++) {
        if (shown_is_blank(&a->part[i])) continue;
        item = responses_item_of(r, &a->part[i], n++);
        put_item(&item, out);
    }
    if (n > 0) return;
    item = responses_item_of(r, &empty_text, 0);
    put_item(&item, out);
}

static void put_count(struct json_writer *w, const char *name, const char *part, uint64_t n,
                      const char *details) {
    json_put_key(w, details);
    json_begin_object(w);
    json_field_u64(w, part, n);
    if (name) json_field_u64(w, name, 0);
    json_end_object(w);
}

static void put_usage(struct json_writer *w, const struct responses_answer *r) {
    json_put_key(w, "usage");
    json_begin_object(w);
    json_field_u64(w, "input_tokens", r->prompt_tokens);
    put_count(w, "cache_write_tokens", "cached_tokens", r->cached_tokens, "input_tokens_details");
    json_field_u64(w, "output_tokens", r->output_tokens);
    put_count(w, NULL, "reasoning_tokens", r->reasoning_tokens, "output_tokens_details");
    json_field_u64(w, "total_tokens", r->prompt_tokens + r->output_tokens);
    json_end_object(w);
}

/* As OpenAI's clients know it. What they have no name for is "unavailable", with our cause beside
 * it. */
static void put_diagnosis(struct json_writer *w, const struct responses_answer *r) {
    static const char *const reasons[] = {[PROMPT_SYSTEM] = "input_changed",
                                          [PROMPT_TOOLS] = "tools_changed",
                                          [PROMPT_EFFORT] = "reasoning_effort_changed",
                                          [PROMPT_MESSAGES] = "input_changed",
                                          [PROMPT_EVICTED] = NULL};
    const struct prompt_diagnosis *d = r->diagnosis;
    const char *reason = d ? reasons[d->change] : NULL;

    json_put_key(w, "prompt_cache_diagnostics");
    if (!d || d->change == PROMPT_NOT_COMPARED) {
        json_put_null(w);
        return;
    }
    json_begin_object(w);
    if (d->change == PROMPT_NOT_FOUND) {
        json_field_z(w, "type", "comparison_response_not_found");
    } else if (d->change == PROMPT_REUSED) {
        json_field_z(w, "type", "cache_hit");
    } else {
        json_field_z(w, "type", reason ? "cache_miss" : "unavailable");
        if (reason) json_field_z(w, "reason", reason);
        json_field_u64(w, "cache_missed_tokens", d->n_missed);
        json_field_u64(w, "comparison_reusable_tokens", d->n_equal);
        json_field_z(w, "cause", prompt_change_name(d->change));
    }
    json_end_object(w);
}

static void put_response(struct json_writer *w, const struct responses_answer *r, bool is_done) {
    const char *status = r->is_limited ? "incomplete" : "completed";

    json_begin_object(w);
    json_field_z(w, "id", r->id);
    json_field_z(w, "object", "response");
    json_field_u64(w, "created_at", r->created_s);
    json_field_z(w, "status", is_done ? status : "in_progress");
    json_field_null(w, "error");
    json_put_key(w, "incomplete_details");
    if (is_done && r->is_limited) {
        json_put_raw(w, STR("{\"reason\":\"max_output_tokens\"}"));
    } else {
        json_put_null(w);
    }
    json_field_z(w, "model", r->model);
    json_put_key(w, "output");
    json_begin_array(w);
    if (is_done) responses_put_output(r, w->out);
    json_end_array(w);
    repeat_all(w, r);
    put_diagnosis(w, r);
    if (is_done) {
        put_usage(w, r); /* behind what the client wrote: routers count the last numbers */
    } else {
        json_field_null(w, "usage");
    }
    json_end_object(w);
}

void responses_put_whole(const struct responses_answer *r, struct buf *out) {
    struct json_writer w;

    json_writer_init(&w, out);
    put_response(&w, r, true);
}

/* --- events ----------------------------------------------------------------------------------- */

static void begin_event(struct json_writer *w, struct responses_stream *s, const char *type,
                        struct buf *out) {
    buf_append_str(out, STR("event: "));
    buf_append_str(out, str_of(type));
    buf_append_str(out, STR("\ndata: "));
    json_writer_init(w, out);
    json_begin_object(w);
    json_field_z(w, "type", type);
    json_field_u64(w, "sequence_number", s->sequence++);
}

static void end_event(struct json_writer *w) {
    json_end_object(w);
    buf_append_str(w->out, STR("\n\n"));
}

static void put_state(const struct responses_answer *r, struct responses_stream *s,
                      const char *type, bool is_done, struct buf *out) {
    struct json_writer w;

    begin_event(&w, s, type, out);
    json_put_key(&w, "response");
    put_response(&w, r, is_done);
    end_event(&w);
}

void responses_put_start(const struct responses_answer *r, struct responses_stream *s,
                         struct buf *out) {
    put_state(r, s, "response.created", false, out);
    put_state(r, s, "response.in_progress", false, out);
}

/* output_item.added and .done */
static void put_item_event(const struct responses_item *item, struct responses_stream *s,
                           bool begins, struct buf *out) {
    struct json_writer w;

    begin_event(&w, s, begins ? "response.output_item.added" : "response.output_item.done", out);
    json_field_u64(&w, "output_index", item->n);
    json_put_key(&w, "item");
    begins ? responses_item_put_begin(&w, item) : responses_item_put(&w, item);
    end_event(&w);
}

static void begin_of_item(struct json_writer *w, struct responses_stream *s, const char *type,
                          const struct responses_item *item, struct buf *out) {
    begin_event(w, s, type, out);
    json_field_z(w, "item_id", item->id);
    json_field_u64(w, "output_index", item->n);
    if (item->part->kind != PART_CALL) json_field_u64(w, "content_index", 0);
}

static void put_part_event(const struct responses_item *item, struct responses_stream *s,
                           bool begins, struct buf *out) {
    struct json_writer w;

    begin_of_item(&w, s, begins ? "response.content_part.added" : "response.content_part.done",
                  item, out);
    json_put_key(&w, "part");
    responses_item_put_content(&w, item, begins ? STR("") : buf_str(&item->part->text));
    end_event(&w);
}

/* The names of what grows in an item: its deltas, its end, and the field that has the whole. */
static const char *const *growth_of(const struct responses_item *item) {
    static const char *const names[][3] = {
        {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
        {"response.output_text.delta", "response.output_text.done", "text"},
        {"response.function_call_arguments.delta", "response.function_call_arguments.done",
         "arguments"},
        {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", "input"}};

    return names[item->part->kind == PART_CALL && item->tool.is_custom ? 3 : item->part->kind];
}

static void put_logprobs(struct json_writer *w, const struct responses_item *item) {
    if (item->part->kind != PART_TEXT) return;
    json_put_key(w, "logprobs");
    json_begin_array(w);
    json_end_array(w);
}

static void put_delta(const struct responses_item *item, struct responses_stream *s,
                      struct str text, struct buf *out) {
    struct json_writer w;

    begin_of_item(&w, s, growth_of(item)[0], item, out);
    json_field_str(&w, "delta", text);
    put_logprobs(&w, item);
    end_event(&w);
}

static void put_done(const struct responses_item *item, struct responses_stream *s,
                     struct str whole, struct buf *out) {
    struct json_writer w;

    begin_of_item(&w, s, growth_of(item)[1], item, out);
    json_field_str(&w, growth_of(item)[2], whole);
    if (item->part->kind == PART_CALL && !item->tool.is_custom)
        json_field_str(&w, "name", item->tool.name);
    put_logprobs(&w, item);
    end_event(&w);
}

static void put_begin(const struct responses_item *item, struct responses_stream *s,
                      struct buf *out) {
    put_item_event(item, s, true, out);
    if (item->part->kind != PART_CALL) put_part_event(item, s, true, out);
}

static void put_custom_input(const struct responses_item *item, struct responses_stream *s,
                             struct buf *out) {
    struct buf input;

    buf_init(&input, 0);
    call_arguments_append_input(buf_str(&item->part->text), &input);
    put_delta(item, s, buf_str(&input), out);
    put_done(item, s, buf_str(&input), out);
    if (input.has_failed) out->has_failed = true;
    buf_fini(&input);
}

static void put_item_end(const struct responses_item *item, struct responses_stream *s,
                         struct buf *out) {
    if (item->part->kind == PART_CALL && item->tool.is_custom) {
        put_custom_input(item, s, out);
    } else {
        put_done(item, s, buf_str(&item->part->text), out);
    }
    if (item->part->kind != PART_CALL) put_part_event(item, s, false, out);
    put_item_event(item, s, false, out);
}

void responses_put_more(const struct responses_answer *r, struct responses_stream *s,
                        struct buf *out) {
    struct answer_event e;

    while (shown_next(r->answer, s->mark, &e)) {
        struct responses_item item;

        if (e.kind == ANSWER_BEGIN) s->n_items++;
        item = responses_item_of(r, e.part, s->n_items - 1);
        if (e.kind == ANSWER_BEGIN) {
            put_begin(&item, s, out);
        } else if (e.kind == ANSWER_END) {
            put_item_end(&item, s, out);
        } else if (!item.tool.is_custom) {
            put_delta(&item, s, e.text, out);
        }
    }
}

void responses_put_end(const struct responses_answer *r, struct responses_stream *s,
                       struct buf *out) {
    if (s->n_items == 0) {
        struct responses_item item = responses_item_of(r, &empty_text, s->n_items++);

        put_begin(&item, s, out);
        put_item_end(&item, s, out);
    }
    put_state(r, s, r->is_limited ? "response.incomplete" : "response.completed", true, out);
}
