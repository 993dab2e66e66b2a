/* worker/api/tokenize.c - POST /tokenize and /detokenize. */
#include "common/http_server.h"
#include "common/json.h"
#include "common/openai.h"
#include "worker/api/api.h"
#include "worker/api/body.h"
#include "worker/api/handlers.h"
#include "worker/text/detokenize.h"
#include "worker/text/tokenizer.h"

#define TEXT_MAX (64u << 20)

/* {"prompt": ...} or {"messages": ...} into ids. */
static enum status tokenize(const struct api *api, const struct json *root,
                            struct token_list *ids, struct error *err) {
    bool is_chat = !json_is_null(json_get(root, "messages")), add_special = !is_chat, is_present;
    struct str text = STR_NULL;
    struct buf rendered;
    enum status st = json_get_bool(root, "add_special_tokens", &add_special, NULL, err);

    buf_init(&rendered, TEXT_MAX);
    if (st == ST_OK && is_chat) {
        st = body_render_chat(api, root, &rendered, err);
        text = buf_str(&rendered);
    } else if (st == ST_OK) {
        st = json_get_str(root, "prompt", TEXT_MAX, &text, &is_present, err);
        if (st == ST_OK && !is_present) {
            st = error_set_param(err, ST_INVALID, "prompt",
                                 "send \"prompt\": a string, or \"messages\"");
        }
    }
    if (st == ST_OK) {
        st = tokenizer_encode(api->tokenizer, text, add_special ? TOKENIZE_SPECIAL : 0, ids, err);
    }
    buf_fini(&rendered);
    return st;
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

void tokenize_post(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct token_list ids = {0};
    struct json *root = NULL;
    struct json_writer w;
    struct error err = {0};
    struct buf out;
    bool wants_strings = false;
    enum status st = body_parse(&root, api, req, &err);

    if (st == ST_OK) st = json_get_bool(root, "return_token_strs", &wants_strings, NULL, &err);
    if (st == ST_OK) st = tokenize(api, root, &ids, &err);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
    } else {
        buf_init(&out, 0);
        json_writer_init(&w, &out);
        json_begin_object(&w);
        json_field_u64(&w, "count", ids.n);
        json_field_u64(&w, "max_model_len", engine_info(api->engine)->max_model_len);
        json_put_key(&w, "tokens");
        json_begin_array(&w);
        for (size_t i = 0; i < ids.n; i++) json_put_u64(&w, ids.ids[i]);
        json_end_array(&w);
        json_put_key(&w, "token_strs");
        if (wants_strings) {
            put_token_strings(&w, api, &ids);
        } else {
            json_put_null(&w);
        }
        json_end_object(&w);
        http_reply(req, 200, OPENAI_JSON, buf_str(&out));
        buf_fini(&out);
    }
    token_list_fini(&ids);
    json_destroy(root);
}

static enum status read_tokens(const struct json *root, struct token_list *ids,
                               struct error *err) {
    const struct json *list;
    uint64_t id;
    enum status st = json_get_array(root, "tokens", &list, err);

    if (st == ST_OK && !list) {
        st = error_set_param(err, ST_INVALID, "tokens", "tokens is required: an array of ids");
    }
    if (st != ST_OK) return st;
    JSON_FOR_EACH(it, list) {
        if (json_to_u64(it, &id) != ST_OK || id > UINT32_MAX) {
            return error_set_param(err, ST_INVALID, "tokens", "tokens must hold token ids");
        }
        st = token_list_push(ids, (uint32_t)id);
        if (st != ST_OK) return error_set(err, st, "out of memory for the tokens");
    }
    return ST_OK;
}

void detokenize_post(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct token_list ids = {0};
    struct json *root = NULL;
    struct json_writer w;
    struct error err = {0};
    struct buf bytes, text, out;
    enum status st = body_parse(&root, api, req, &err);

    if (st == ST_OK) st = read_tokens(root, &ids, &err);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
    } else {
        buf_init(&bytes, TEXT_MAX);
        buf_init(&text, 3 * TEXT_MAX);
        buf_init(&out, 0);
        tokenizer_decode(api->tokenizer, ids.ids, ids.n, false, &bytes);
        if (buf_len(&bytes)) detokenize_repair(buf_str(&bytes), &text);
        json_writer_init(&w, &out);
        json_begin_object(&w);
        json_field_str(&w, "prompt", buf_str(&text));
        json_end_object(&w);
        http_reply(req, 200, OPENAI_JSON, buf_str(&out));
        buf_fini(&bytes);
        buf_fini(&text);
        buf_fini(&out);
    }
    token_list_fini(&ids);
    json_destroy(root);
}
