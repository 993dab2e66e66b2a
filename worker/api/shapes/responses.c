/* worker/api/shapes/responses.c - POST /v1/responses, as OpenAI's clients and Codex speak it.
 *
 *      body ─ responses_request ─▶ body of a chat ─ chat_read ─▶ call ─▶ answer ─ responses_answer ─▶
 *        │ previous_response_id                                               │
 *        └───────────────── responses_store ◀─────────────────────────────────┘ unless "store": false
 *
 * GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items look at the store. */
#include <stdio.h>

#include "common/http/http_server.h"
#include "common/protocol/api.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/api/stores/responses_store.h"
#include "worker/api/truncation.h"
#include "worker/api/wires/members.h"
#include "worker/api/wires/responses_answer.h"
#include "worker/api/wires/responses_items.h"
#include "worker/api/wires/responses_request.h"

static bool is_stored(const struct call *c) {
    bool wants = true;

    (void)!json_to_bool(json_get(c->asked, "store"), &wants);
    return wants && c->api->responses;
}

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
                                     .diagnosis = c->compared.len ? &c->diagnosis : NULL,
                                     .is_limited = ch->is_done && ch->finish == FINISH_LENGTH,
                                     .is_stored = is_stored(c)};
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

/* `response`: the whole, or NULL if it was streamed. */
static void store(struct call *c, const struct responses_answer *r, const struct buf *response) {
    struct buf whole, input, output;

    if (!r->is_stored) return;
    buf_init(&whole, CALL_OUT_LIMIT);
    buf_init(&input, CALL_OUT_LIMIT);
    buf_init(&output, CALL_OUT_LIMIT);
    if (!response) responses_put_whole(r, &whole);
    responses_put_input(r, &input);
    responses_put_output(r, &output);
    if (buf_status(&whole) == ST_OK && buf_status(&input) == ST_OK &&
        buf_status(&output) == ST_OK) {
        struct stored_response entry = {
            .id = str_of(r->id),
            .previous = member_text(c->asked, "previous_response_id"),
            .tenant = call_owner(c),
            .holder = c->params.request.tenant,
            .input = buf_str(&input),
            .output = buf_str(&output),
            .response = response ? buf_str(response) : buf_str(&whole),
        };

        responses_store_put(c->api->responses, &entry, loop_now_us(c->api->loop));
    }
    buf_fini(&whole);
    buf_fini(&input);
    buf_fini(&output);
}

static void open_stream(struct call *c) {
    struct responses_answer r = answer_of(c);
    struct responses_stream stream = stream_of(c);

    call_diagnose(c);
    buf_clear(&c->out);
    responses_put_start(&r, &stream, &c->out);
    send_events(c, &stream);
}

static void send(struct call *c, struct choice *ch) {
    struct responses_answer r = answer_of(c);
    struct responses_stream stream = stream_of(c);

    buf_clear(&c->out);
    responses_put_more(&r, &stream, &c->out);
    if (ch->is_done) {
        store(c, &r, NULL);
        responses_put_end(&r, &stream, &c->out);
    }
    send_events(c, &stream);
}

static void body(struct call *c, struct buf *out) {
    struct responses_answer r = answer_of(c);

    call_diagnose(c);
    responses_put_whole(&r, out);
    if (buf_status(out) == ST_OK) store(c, &r, out);
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

/* resp_ MARK REST (common/protocol/api.h) */
static void draw_id(struct call *c) {
    struct rng *rng = &c->api->rng;

    snprintf(c->id, sizeof(c->id), API_RESPONSE_ID_PREFIX "%s%016llx%016llx", c->api->response_mark,
             (unsigned long long)rng_u64(rng), (unsigned long long)rng_u64(rng));
}

static enum status not_stored(struct str id, struct error *err) {
    return error_set_param(err, ST_NOT_FOUND, "previous_response_id",
                           "the response '%.*s' is not stored here: send the whole input",
                           (int)MIN(id.len, 100), id.ptr);
}

/* The items that precede the input: an array, or NULL. */
static enum status read_previous(const struct call *c, struct json **out, struct error *err) {
    struct json_limits limits = {.max_bytes = CALL_OUT_LIMIT, .max_depth = 512};
    struct api *api = c->api;
    struct buf items;
    struct str id;
    bool is_present;
    enum status st = json_get_str(c->asked, "previous_response_id", 256, &id, &is_present, err);

    if (st != ST_OK || !is_present) return st;
    if (!api->responses) return not_stored(id, err);
    buf_init(&items, CALL_OUT_LIMIT);
    st = responses_store_items(api->responses, id, call_owner(c), loop_now_us(api->loop), &items);
    if (st == ST_OK) st = json_parse(out, buf_str(&items), &limits, err);
    buf_fini(&items);
    return st == ST_NOT_FOUND ? not_stored(id, err) : st;
}

/* "prompt_cache_options": {"comparison_response_id"} */
static enum status read_compared(struct call *c, struct error *err) {
    const struct json *options;
    enum status st = json_get_object(c->asked, "prompt_cache_options", &options, err);

    if (st != ST_OK) return st;
    st = json_get_str(options, "comparison_response_id", 256, &c->compared, NULL, err);
    return error_within(err, st, "prompt_cache_options");
}

static enum status responses_read(struct call *c, const struct json *root, struct error *err) {
    struct responses_asked asked = {.takes_late_system = c->api->takes_late_system};
    struct json *earlier = NULL;
    struct buf chat;
    bool store = true; /* read by is_stored once there is an answer */
    enum status st;

    c->asked = c->json;
    c->json = NULL;
    buf_init(&chat, 0);
    st = json_get_bool(c->asked, "store", &store, NULL, err);
    if (st == ST_OK) st = read_compared(c, err);
    if (st == ST_OK) st = read_previous(c, &earlier, err);
    asked.earlier = earlier;
    if (st == ST_OK) st = responses_to_chat(root, &asked, &chat, err);
    if (st == ST_OK) st = body_translated(&c->json, &chat, err);
    buf_fini(&chat);
    if (st == ST_OK) st = chat_read(c, c->json, err);
    if (st == ST_OK) st = call_read_ttl(c, c->asked, err);
    if (st == ST_OK && member_is(c->asked, "truncation", "auto")) {
        c->truncation = truncation_create(c, earlier);
    } else {
        json_destroy(earlier);
    }
    draw_id(c);
    return st;
}

void responses_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, responses_read);

    if (c) call_start(c);
}

/* --- stored ones ------------------------------------------------------------------------------ */

/* The id of the path. *wants_input: /input_items stands behind it. */
static struct str id_of(const struct http_request *req, bool *wants_input) {
    struct str tail = STR("/input_items"), id = req->path;

    id.ptr += sizeof(API_RESPONSES_PATH);
    id.len -= sizeof(API_RESPONSES_PATH);
    *wants_input = str_ends(id, tail);
    if (*wants_input) id.len -= tail.len;
    return id;
}

static void reply_not_stored(struct http_request *req, struct str id) {
    struct error err = {0};

    error_set(&err, ST_NOT_FOUND, "the response '%.*s' is not stored here", (int)MIN(id.len, 100),
              id.ptr);
    http_reply_error(req, ST_NOT_FOUND, &err);
}

static void reply_input(struct http_request *req, struct str items) {
    struct json *list = NULL;
    struct json_writer w;
    struct buf text, body;
    const struct json *last = NULL;

    buf_init(&text, 0);
    buf_init(&body, 0);
    buf_append_char(&text, '[');
    buf_append_str(&text, items);
    buf_append_char(&text, ']');
    if (json_parse(&list, buf_str(&text), &(struct json_limits){.max_depth = 512}, NULL) == ST_OK)
        JSON_FOR_EACH(it, list) last = it;
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "object", "list");
    json_put_key(&w, "data");
    json_put_raw(&w, buf_str(&text));
    json_put_key(&w, "first_id");
    json_put_tree(&w, json_get(json_first(list), "id"));
    json_put_key(&w, "last_id");
    json_put_tree(&w, json_get(last, "id"));
    json_field_bool(&w, "has_more", false);
    json_end_object(&w);
    http_reply(req, 200, OPENAI_JSON, buf_str(&body));
    json_destroy(list);
    buf_fini(&text);
    buf_fini(&body);
}

void response_get(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct stored_response r;
    bool wants_input;
    struct str id = id_of(req, &wants_input);

    if (!api->responses || !responses_store_get(api->responses, id, call_holder(api, req),
                                                loop_now_us(api->loop), &r)) {
        reply_not_stored(req, id);
    } else if (wants_input) {
        reply_input(req, r.input);
    } else {
        http_reply(req, 200, OPENAI_JSON, r.response);
    }
}

static void reply_items_stay(struct http_request *req) {
    struct error err = {0};

    error_set(&err, ST_METHOD, "the items of a response cannot be deleted: delete the response");
    http_add_header(req, STR("allow"), STR("GET, HEAD"));
    http_reply_error(req, ST_METHOD, &err);
}

void response_delete(struct http_request *req, void *arg) {
    struct api *api = arg;
    bool is_of_input;
    struct str id = id_of(req, &is_of_input);
    struct json_writer w;
    struct buf body;

    if (is_of_input) {
        reply_items_stay(req);
        return;
    }
    if (!api->responses ||
        !responses_store_erase(api->responses, id, call_holder(api, req), loop_now_us(api->loop))) {
        reply_not_stored(req, id);
        return;
    }
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_str(&w, "id", id);
    json_field_z(&w, "object", "response");
    json_field_bool(&w, "deleted", true);
    json_end_object(&w);
    http_reply(req, 200, OPENAI_JSON, buf_str(&body));
    buf_fini(&body);
}
