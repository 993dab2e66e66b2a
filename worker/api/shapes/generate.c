/* worker/api/shapes/generate.c - POST /generate, SGLang's native call.
 *
 * `text` or `input_ids`, one or several; everything else is optional. Streams carry all text so far
 * in each event, as SGLang's do. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/text/stop.h"

static void put_finish_reason(struct json_writer *w, const struct choice *ch) {
    json_put_key(w, "finish_reason");
    if (!ch->is_done) {
        json_put_null(w);
        return;
    }
    json_begin_object(w);
    json_field_z(w, "type", finish_reason_name(ch->finish));
    if (ch->finish == FINISH_LENGTH) {
        json_field_u64(w, "length", ch->n_used);
    } else if (ch->finish == FINISH_STOP) {
        json_put_key(w, "matched");
        if (ch->stop.matched < 0 && ch->request->stop_token == REQUEST_NO_TOKEN && ch->n_used) {
            json_put_u64(w, request_output(ch->request)[ch->n_used - 1]); /* EOS */
        } else {
            call_put_stop_reason(w, ch);
        }
    }
    json_end_object(w);
}

/* [logprob, token id, null] as SGLang writes it. */
static void put_logprob(struct json_writer *w, float logprob, uint32_t token) {
    json_begin_array(w);
    json_put_f32(w, logprob);
    json_put_u64(w, token);
    json_put_null(w);
    json_end_array(w);
}

static void put_top_logprobs(struct json_writer *w, const struct request *r, uint32_t i) {
    uint32_t n = (uint32_t)r->params.n_logprobs;

    json_begin_array(w);
    for (size_t k = (size_t)i * n; k < (size_t)(i + 1) * n && r->top_token[k] >= 0; k++) {
        put_logprob(w, r->top_logprob[k], (uint32_t)r->top_token[k]);
    }
    json_end_array(w);
}

/* Of the prompt, from the requested position; the first token has none. */
static void put_input_logprobs(struct json_writer *w, const struct choice *ch) {
    const struct call *c = ch->call;
    const struct request *r = c->choices[ch->index - ch->index % c->params.n].request;
    uint32_t n = (uint32_t)MAX(c->n_logprobs, 0), first = MIN(c->logprob_start, r->n_prompt);

    json_put_key(w, "input_token_logprobs");
    json_begin_array(w);
    for (uint32_t i = first; i < r->n_prompt; i++) {
        if (i > 0) {
            put_logprob(w, r->prompt_logprob[i], r->tokens[i]);
            continue;
        }
        json_begin_array(w);
        json_put_null(w);
        json_put_u64(w, r->tokens[i]);
        json_put_null(w);
        json_end_array(w);
    }
    json_end_array(w);
    if (n == 0) return;
    json_put_key(w, "input_top_logprobs");
    json_begin_array(w);
    for (uint32_t i = first; i < r->n_prompt; i++) {
        const int32_t *token = r->prompt_top_token + (size_t)i * n;
        const float *logprob = r->prompt_top_logprob + (size_t)i * n;

        if (i == 0) {
            json_put_null(w);
            continue;
        }
        json_begin_array(w);
        for (uint32_t k = 0; k < n && token[k] >= 0; k++)
            put_logprob(w, logprob[k], (uint32_t)token[k]);
        json_end_array(w);
    }
    json_end_array(w);
}

static void put_logprobs(struct json_writer *w, const struct choice *ch) {
    const struct request *r = ch->request;

    if (ch->call->n_logprobs < 0) return;
    if (ch->call->params.request.prompt_logprobs >= 0) put_input_logprobs(w, ch);
    json_put_key(w, "output_token_logprobs");
    json_begin_array(w);
    for (uint32_t i = 0; i < ch->n_used; i++)
        put_logprob(w, r->logprob[i], request_output(r)[i]);
    json_end_array(w);
    if (ch->call->n_logprobs == 0) return;
    json_put_key(w, "output_top_logprobs");
    json_begin_array(w);
    for (uint32_t i = 0; i < ch->n_used; i++)
        put_top_logprobs(w, r, i);
    json_end_array(w);
}

static void put_answer(struct json_writer *w, const struct choice *ch) {
    const struct call *c = ch->call;
    const struct request *r = ch->request;
    uint64_t end_us = ch->is_engine_done ? r->finished_us : clock_now_us();

    json_begin_object(w);
    json_field_str(w, "text", buf_str(&ch->text));
    json_put_key(w, "output_ids");
    json_begin_array(w);
    for (uint32_t i = 0; i < ch->n_used; i++)
        json_put_u64(w, request_output(r)[i]);
    json_end_array(w);
    json_put_key(w, "meta_info");
    json_begin_object(w);
    json_field_z(w, "id", c->id);
    put_finish_reason(w, ch);
    json_field_u64(w, "prompt_tokens", r->n_prompt);
    json_field_u64(w, "completion_tokens", ch->n_used);
    json_field_u64(w, "cached_tokens", request_hit_tokens(r));
    put_logprobs(w, ch);
    json_field_f64(w, "e2e_latency", (double)(end_us - c->arrival_us) * 1e-6);
    json_end_object(w);
    if (c->n_choices > 1) json_field_u64(w, "index", ch->shown);
    json_end_object(w);
}

static void chunk(struct call *c, struct choice *ch, struct buf *out) {
    struct json_writer w;

    (void)c;
    json_writer_init(&w, out);
    put_answer(&w, ch);
}

static void body(struct call *c, struct buf *out) {
    bool is_list = c->is_list || c->n_choices > 1;
    struct json_writer w;

    json_writer_init(&w, out);
    if (is_list) json_begin_array(&w);
    for (uint32_t i = 0; i < c->n_choices; i++)
        put_answer(&w, &c->choices[i]);
    if (is_list) json_end_array(&w);
}

static const struct call_shape shape = {
    .id_prefix = "",
    .prompt_field = "text",
    .length_field = "max_new_tokens",
    .is_cumulative = true,
    .chunk = chunk,
    .body = body,
};

static enum status read_texts(struct call *c, const struct json *text, struct error *err) {
    struct str one;
    uint32_t i = 0;
    enum status st;

    c->is_list = json_type(text) == JSON_ARRAY;
    st = call_set_prompts(c, c->is_list ? (uint32_t)MIN(json_count(text), UINT32_MAX) : 1, err);
    if (st != ST_OK) return st;
    if (!c->is_list && json_to_str(text, &one) == ST_OK) {
        return call_prompt_text(c, 0, one, TOKENIZE_SPECIAL, err);
    }
    JSON_FOR_EACH(it, text) {
        if (json_to_str(it, &one) != ST_OK) {
            return error_set_param(err, ST_INVALID, "text", "text[%u] must be a string, not %s", i,
                                   json_type_name(it));
        }
        st = call_prompt_text(c, i++, one, TOKENIZE_SPECIAL, err);
        if (st != ST_OK) return st;
    }
    if (i > 0) return ST_OK;
    return error_set_param(err, ST_INVALID, "text",
                           "text must be a string or an array of strings, not %s",
                           json_type_name(text));
}

/* The shape's name of a prompt is "text"; this one has another. */
static enum status add_ids(struct call *c, uint32_t i, const struct json *ids, struct error *err) {
    enum status st = call_prompt_ids(c, i, ids, err);

    if (st == ST_INVALID) snprintf(err->param, sizeof(err->param), "input_ids");
    return st;
}

static enum status read_ids(struct call *c, const struct json *ids, struct error *err) {
    enum status st;
    uint32_t i = 0;

    c->is_list = json_type(json_first(ids)) == JSON_ARRAY;
    st = call_set_prompts(c, c->is_list ? (uint32_t)MIN(json_count(ids), UINT32_MAX) : 1, err);
    if (st != ST_OK) return st;
    if (!c->is_list) return add_ids(c, 0, ids, err);
    JSON_FOR_EACH(it, ids) {
        if (json_type(it) != JSON_ARRAY) {
            return error_set_param(err, ST_INVALID, "input_ids",
                                   "input_ids[%u] must be an array of token ids, not %s", i,
                                   json_type_name(it));
        }
        st = add_ids(c, i++, it, err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static enum status read_prompt(struct call *c, const struct json *root, struct error *err) {
    const struct json *text = json_get(root, "text"), *ids = json_get(root, "input_ids");
    enum status st;

    if (!json_is_null(text) && !json_is_null(ids)) {
        return error_set_param(err, ST_INVALID, "text", "send either text or input_ids, not both");
    }
    if (!json_is_null(text)) return read_texts(c, text, err);
    st = json_get_array(root, "input_ids", &ids, err);
    if (st != ST_OK) return st;
    if (ids) return read_ids(c, ids, err);
    return error_set_param(err, ST_INVALID, "text",
                           "text is required: {\"text\": \"...\"}, or input_ids: an array of "
                           "token ids");
}

static enum status read_options(struct call *c, const struct json *root, struct error *err) {
    uint32_t limit = engine_info(c->api->engine)->limits.max_logprobs, n = 0;
    int64_t start = -1;
    bool wants = false;
    struct str rid;
    bool has_rid;
    enum status st = json_get_bool(root, "return_logprob", &wants, NULL, err);

    if (st == ST_OK) st = json_get_u32(root, "top_logprobs_num", 0, limit, &n, NULL, err);
    if (st == ST_OK) {
        st = json_get_i64(root, "logprob_start_len", -1, INT64_MAX, &start, NULL, err);
    }
    if (st == ST_OK && wants) c->n_logprobs = c->params.request.n_logprobs = (int32_t)n;
    if (st == ST_OK && wants && start >= 0) { /* -1: of the answer alone */
        c->params.request.prompt_logprobs = (int32_t)n;
        c->logprob_start = (uint32_t)MIN(start, UINT32_MAX);
    }
    if (st == ST_OK) st = json_get_str(root, "rid", CALL_ID_MAX - 1, &rid, &has_rid, err);
    if (st == ST_OK && has_rid && str_is_utf8(rid)) {
        snprintf(c->id, sizeof(c->id), "%.*s", STR_ARG(rid));
    }
    return st;
}

static enum status generate_read(struct call *c, const struct json *root, struct error *err) {
    struct params_context ctx = call_params_context(c->api);
    const struct json *sampling = NULL;
    enum status st = json_get_object(root, "sampling_params", &sampling, err);

    if (st == ST_OK) st = call_params_parse_sglang(&c->params, root, sampling, &ctx, err);
    if (st == ST_OK) st = read_options(c, root, err);
    return st == ST_OK ? read_prompt(c, root, err) : st;
}

void generate_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, generate_read);

    if (c) call_start(c);
}
