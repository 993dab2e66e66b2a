/* worker/api/shapes/completions.c - POST /v1/completions. */
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/api/samples.h"
#include "worker/api/shapes/logprobs.h"

static void begin(struct json_writer *w, const struct call *c, struct buf *out) {
    json_writer_init(w, out);
    json_begin_object(w);
    json_field_z(w, "id", c->id);
    json_field_z(w, "object", "text_completion");
    json_field_u64(w, "created", c->created_s);
    json_field_z(w, "model", c->api->model_name);
    json_put_key(w, "choices");
    json_begin_array(w);
}

/* The prompt's come with the first of them. */
static void put_token_ids(struct json_writer *w, const struct choice *ch, uint32_t first) {
    if (!ch->call->params.return_token_ids) {
        json_field_null(w, "token_ids");
        json_field_null(w, "prompt_token_ids");
        return;
    }
    if (first == 0) call_put_prompt_ids(w, ch);
    json_put_key(w, "token_ids");
    json_begin_array(w);
    for (uint32_t i = first; i < ch->n_used; i++)
        json_put_u64(w, request_output(ch->request)[i]);
    json_end_array(w);
}

/* One element of "choices": the text after `prefix`, tokens from `first` on. */
static void put_choice(struct json_writer *w, struct choice *ch, struct str text, uint32_t first,
                       bool echo, struct buf *scratch) {
    struct call *c = ch->call;

    json_begin_object(w);
    json_field_u64(w, "index", ch->shown);
    buf_clear(scratch);
    if (echo) call_append_prompt_text(ch, scratch);
    buf_append_str(scratch, text);
    json_field_str(w, "text", buf_str(scratch));
    json_put_key(w, "logprobs");
    if (c->n_logprobs >= 0) {
        logprobs_put_completion(w, ch, first, ch->n_used, echo, &ch->text_offset);
    } else {
        json_put_null(w);
    }
    json_field_z(w, "finish_reason", call_finish_name(ch));
    json_put_key(w, "stop_reason");
    call_put_stop_reason(w, ch);
    put_token_ids(w, ch, first);
    if (!c->params.stream) logprobs_put_prompt(w, ch);
    json_end_object(w);
}

static void chunk(struct call *c, struct choice *ch, struct buf *out) {
    bool echo = c->params.echo && !ch->is_echoed;
    struct json_writer w;
    struct buf scratch;

    buf_init(&scratch, 0);
    begin(&w, c, out);
    put_choice(&w, ch, buf_str(&ch->delta), ch->n_reported, echo, &scratch);
    ch->is_echoed = true;
    json_end_array(&w);
    call_put_chunk_usage(&w, c);
    json_end_object(&w);
    buf_fini(&scratch);
}

static void usage_chunk(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;

    begin(&w, c, out);
    json_end_array(&w);
    call_put_usage(&w, &usage);
    json_end_object(&w);
}

static void body(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;
    struct buf scratch;

    buf_init(&scratch, 0);
    begin(&w, c, out);
    for (uint32_t i = 0; i < samples_n_shown(c); i++) {
        struct choice *ch = samples_shown(c, i);

        put_choice(&w, ch, buf_str(&ch->text), 0, c->params.echo, &scratch);
    }
    json_end_array(&w);
    json_field_null(&w, "service_tier");
    json_field_null(&w, "system_fingerprint");
    call_put_usage(&w, &usage);
    json_end_object(&w);
    buf_fini(&scratch);
}

static const struct call_shape shape = {
    .id_prefix = "cmpl-",
    .prompt_field = "prompt",
    .length_field = "max_tokens",
    .chunk = chunk,
    .usage_chunk = usage_chunk,
    .body = body,
};

/* string | [string] | [int] | [[int]] */
static enum status read_prompt(struct call *c, const struct json *root, struct error *err) {
    const struct json *prompt = json_get(root, "prompt"), *first = json_first(prompt);
    bool add_special = true;
    struct str text;
    uint32_t i = 0;
    enum status st = json_get_bool(root, "add_special_tokens", &add_special, NULL, err);
    uint32_t flags = add_special ? TOKENIZE_SPECIAL : 0;

    if (st != ST_OK) return st;
    if (json_to_str(prompt, &text) == ST_OK) {
        st = call_set_prompts(c, 1, err);
        return st == ST_OK ? call_prompt_text(c, 0, text, flags, err) : st;
    }
    if (json_type(first) == JSON_NUMBER) {
        st = call_set_prompts(c, 1, err);
        return st == ST_OK ? call_prompt_ids(c, 0, prompt, err) : st;
    }
    if (json_type(first) != JSON_STRING && json_type(first) != JSON_ARRAY) {
        return error_set_param(err, ST_INVALID, "prompt",
                               "prompt is required: a string, an array of strings, an array of "
                               "token ids, or an array of those; got %s%s",
                               json_type_name(prompt),
                               json_type(prompt) == JSON_ARRAY && !first ? " without elements"
                                                                         : "");
    }
    st = call_set_prompts(c, (uint32_t)MIN(json_count(prompt), UINT32_MAX), err);
    if (st != ST_OK) return st;
    JSON_FOR_EACH(it, prompt) {
        if (json_to_str(it, &text) == ST_OK) {
            st = call_prompt_text(c, i, text, flags, err);
        } else if (json_type(it) == JSON_ARRAY) {
            st = call_prompt_ids(c, i, it, err);
        } else {
            st = error_set_param(err, ST_INVALID, "prompt",
                                 "prompt[%u] is %s: send a string or an array of token ids", i,
                                 json_type_name(it));
        }
        if (st != ST_OK) return st;
        i++;
    }
    return ST_OK;
}

static enum status read_options(struct call *c, const struct json *root, struct error *err) {
    uint32_t limit = engine_info(c->api->engine)->limits.max_logprobs, n = 0;
    bool is_present;
    enum status st = json_get_u32(root, "logprobs", 0, limit, &n, &is_present, err);

    if (st != ST_OK) return st;
    if (is_present) {
        c->n_logprobs = (int32_t)n;
        c->params.request.n_logprobs = (int32_t)n;
        if (c->params.echo) {
            c->params.request.prompt_logprobs = MAX(c->params.request.prompt_logprobs, (int32_t)n);
        }
    }
    if (!c->params.has_max_tokens) c->params.request.max_tokens = 16;
    return ST_OK;
}

enum status completions_read(struct call *c, const struct json *root, struct error *err) {
    enum status st = call_read_params(c, false, err);

    if (st == ST_OK && c->params.prefix_messages > 0)
        st = error_set_param(err, ST_INVALID, "prefix_pos",
                             "prefix_pos names a message, and the request has none: name a number "
                             "of tokens");

    if (st == ST_OK) st = read_options(c, root, err);
    return st == ST_OK ? read_prompt(c, root, err) : st;
}

void completions_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, completions_read);

    if (c) call_start(c);
}
