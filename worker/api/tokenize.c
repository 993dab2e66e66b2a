/* worker/api/tokenize.c - POST /tokenize, /detokenize and /v1/messages/count_tokens.
 *
 * A text may be as long as a body may be, so it goes through the text thread like a prompt; the
 * job outlives a client that leaves. */
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "worker/api/api.h"
#include "worker/api/body.h"
#include "worker/api/handlers.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/text/detokenize.h"
#include "worker/text/text_thread.h"
#include "worker/text/tokenizer/tokenizer.h"

#define TEXT_MAX (64u << 20)

static void reply(struct http_request *req, const struct buf *body) {
    struct error err = {0};

    if (buf_status(body) == ST_OK) {
        http_reply(req, 200, OPENAI_JSON, buf_str(body));
        return;
    }
    error_set(&err, ST_NOMEM, "out of memory for the response: send less text in one request");
    http_reply_error(req, ST_NOMEM, &err);
}

/* --- /tokenize -------------------------------------------------------------------------------- */

struct tokenize {
    struct text_job job;
    const struct api *api;
    struct http_request *req; /* NULL when the client left */
    struct buf text;
    bool wants_strings;
    bool is_count; /* of a message: the number alone */
};

static void tokenize_free(struct tokenize *t) {
    token_list_fini(&t->job.tokens);
    buf_fini(&t->text);
    mem_free(t);
}

static void on_abort(struct http_request *req) {
    struct tokenize *t = req->user;

    t->req = NULL;
    atomic_store(&t->job.is_cancelled, true);
}

static void put_token_strings(struct json_writer *w, const struct api *api,
                              const struct token_list *ids) {
    struct buf text;

    buf_init(&text, 0);
    json_begin_array(w);
    for (size_t i = 0; i < ids->n; i++) {
        buf_clear(&text);
        detokenize_one(api->tokenizer, ids->ids[i], &text);
        json_put_str(w, buf_str(&text));
    }
    json_end_array(w);
    buf_fini(&text);
}

static void put_count(const struct tokenize *t, struct buf *out) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_u64(&w, "input_tokens", t->job.tokens.n);
    json_end_object(&w);
}

static void put_tokens(const struct tokenize *t, struct buf *out) {
    const struct token_list *ids = &t->job.tokens;
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_u64(&w, "count", ids->n);
    json_field_u64(&w, "max_model_len", engine_info(t->api->engine)->max_model_len);
    json_put_key(&w, "tokens");
    json_begin_array(&w);
    for (size_t i = 0; i < ids->n; i++)
        json_put_u64(&w, ids->ids[i]);
    json_end_array(&w);
    json_put_key(&w, "token_strs");
    if (t->wants_strings) {
        put_token_strings(&w, t->api, ids);
    } else {
        json_put_null(&w);
    }
    json_end_object(&w);
}

static void on_tokenized(struct text_job *job) {
    struct tokenize *t = CONTAINER_OF(job, struct tokenize, job);
    struct buf out;

    worker_metrics_observe_text(t->api->metrics, job->submitted_us, job->waited_us);
    if (t->req && job->status != ST_OK) {
        api_add_retry(t->api, t->req, job->status);
        http_reply_error(t->req, job->status, &job->err);
    } else if (t->req) {
        buf_init(&out, 0);
        t->is_count ? put_count(t, &out) : put_tokens(t, &out);
        reply(t->req, &out);
        buf_fini(&out);
    }
    tokenize_free(t);
}

/* {"prompt": ...} or {"messages": ...} */
static enum status read_text(struct tokenize *t, const struct json *root, struct error *err) {
    bool is_chat = !json_is_null(json_get(root, "messages")), add_special = !is_chat, is_present;
    struct str prompt = STR_NULL;
    enum status st = json_get_bool(root, "add_special_tokens", &add_special, NULL, err);

    if (st == ST_OK) st = json_get_bool(root, "return_token_strs", &t->wants_strings, NULL, err);
    if (st == ST_OK && is_chat) {
        st = body_render_chat(t->api, root, &t->text, err);
    } else if (st == ST_OK) {
        st = json_get_str(root, "prompt", TEXT_MAX, &prompt, &is_present, err);
        if (st == ST_OK && !is_present) {
            st = error_set_param(
                err, ST_INVALID, "prompt",
                "the request has no text: send \"prompt\", a string, or \"messages\"");
        }
        buf_append_str(&t->text, prompt);
    }
    if (st == ST_OK && buf_status(&t->text) != ST_OK) {
        st = error_set(err, ST_NOMEM,
                       "out of memory for the text: send fewer tokens in one request");
    }
    t->job.text = buf_str(&t->text);
    t->job.flags = add_special ? TOKENIZE_SPECIAL : 0;
    return st;
}

/* The prompt of a message: no device computes anything. */
static enum status read_message(struct tokenize *t, const struct json *root, struct error *err) {
    struct json *chat = NULL;
    enum status st = body_from_messages(&chat, t->api, root, true, err);

    if (st == ST_OK) st = read_text(t, chat, err);
    json_destroy(chat);
    return st;
}

static void start(struct http_request *req, const struct api *api, bool is_count) {
    struct json *root = NULL;
    struct error err = {0};
    struct tokenize *t;
    enum status st = body_parse(&root, api, req, &err);

    if (st != ST_OK) {
        http_reply_error(req, st, &err);
        return;
    }
    t = mem_zalloc(sizeof(*t));
    t->api = api;
    t->is_count = is_count;
    t->job.on_done = on_tokenized;
    buf_init(&t->text, TEXT_MAX);
    st = is_count ? read_message(t, root, &err) : read_text(t, root, &err);
    json_destroy(root);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
        tokenize_free(t);
        return;
    }
    t->req = req;
    req->user = t;
    req->on_abort = on_abort;
    text_thread_submit(api->text_thread, &t->job);
}

void tokenize_post(struct http_request *req, void *arg) {
    start(req, arg, false);
}

void count_tokens_post(struct http_request *req, void *arg) {
    start(req, arg, true);
}

/* --- /detokenize ------------------------------------------------------------------------------ */

static enum status read_tokens(const struct api *api, const struct json *root,
                               struct token_list *ids, struct error *err) {
    uint32_t vocab = engine_info(api->engine)->limits.vocab;
    const struct json *list;
    uint64_t id;
    enum status st = json_get_array(root, "tokens", &list, err);

    if (st == ST_OK && !list) {
        st = error_set_param(err, ST_INVALID, "tokens", "tokens is required: an array of ids");
    }
    if (st != ST_OK) return st;
    JSON_FOR_EACH(it, list) {
        if (json_to_u64(it, &id) != ST_OK || id >= vocab) {
            return error_set_param(err, ST_INVALID, "tokens",
                                   "tokens must hold token ids: integers below %u", vocab);
        }
        st = token_list_push(ids, (uint32_t)id);
        if (st != ST_OK) return error_set(err, st, "out of memory for the tokens");
    }
    return ST_OK;
}

static void put_text(const struct api *api, const struct token_list *ids, struct buf *out) {
    struct json_writer w;
    struct buf text;

    buf_init(&text, 3 * TEXT_MAX);
    detokenize(api->tokenizer, ids->ids, ids->n, false, &text);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "prompt", buf_str(&text));
    json_end_object(&w);
    if (buf_status(&text) != ST_OK) out->has_failed = true;
    buf_fini(&text);
}

void detokenize_post(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct token_list ids = {0};
    struct json *root = NULL;
    struct error err = {0};
    struct buf out;
    enum status st = body_parse(&root, api, req, &err);

    if (st == ST_OK) st = read_tokens(api, root, &ids, &err);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
    } else {
        buf_init(&out, 0);
        put_text(api, &ids, &out);
        reply(req, &out);
        buf_fini(&out);
    }
    token_list_fini(&ids);
    json_destroy(root);
}
