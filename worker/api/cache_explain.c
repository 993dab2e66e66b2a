/* worker/api/cache_explain.c - see the header; and POST /cache/explain. */
#include "worker/api/cache_explain.h"

#include <stdio.h>

#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/text/detokenize.h"

#define TEXT_MAX       (64u << 20)
#define SNIPPET_TOKENS 8u

/* --- one explanation -------------------------------------------------------------------------- */

/* Is the first token one that the tokenizer put before the text? */
static bool has_leading_token(const struct choice *ch) {
    const struct prompt *p = call_prompt_of(ch);
    struct buf first;
    bool is_leading;

    if (!p->is_text) return false;
    buf_init(&first, 0);
    detokenize_one(ch->call->api->tokenizer, ch->request->tokens[0], &first);
    is_leading = buf_len(&first) > 0 && !str_starts(buf_str(&p->text), buf_str(&first));
    buf_fini(&first);
    return is_leading;
}

/* Characters of the prompt's text before token `n`. */
static uint64_t text_offset(const struct choice *ch, uint32_t n) {
    uint32_t first = n > 0 && has_leading_token(ch);
    uint64_t n_chars = 0;
    struct buf text;

    buf_init(&text, TEXT_MAX);
    detokenize(ch->call->api->tokenizer, ch->request->tokens + first, n - first, false, &text);
    for (size_t i = 0; i < buf_len(&text); i++)
        n_chars += ((uint8_t)buf_ptr(&text)[i] & 0xc0) != 0x80;
    buf_fini(&text);
    return n_chars;
}

static void put_text(struct json_writer *w, const struct call *c, const char *key,
                     const uint32_t *ids, uint32_t n) {
    struct buf text;

    buf_init(&text, TEXT_MAX);
    for (uint32_t i = 0; i < n; i++)
        detokenize_one(c->api->tokenizer, ids[i], &text);
    json_field_str(w, key, buf_str(&text));
    buf_fini(&text);
}

static const char *message_of(enum kv_miss cause) {
    switch (cause) {
    case KV_MISS_NONE: return "all full blocks before the last token were found";
    case KV_MISS_NEVER_SEEN:
        return "no prompt that continues like this one is cached or was cached recently";
    case KV_MISS_SHORT:
        return "only full blocks are cached, and this prompt has no full block before its last "
               "token";
    case KV_MISS_DIFFERS:
        return "the nearest cached prompt differs at this token; the block of this token and all "
               "later blocks are computed";
    case KV_MISS_EVICTED:
        return "the prefix was cached and has been evicted: more KV memory, --kv-offload-bytes or "
               "another worker would have kept it";
    case KV_MISS_ADAPTER: return "the prefix is cached for another adapter";
    case KV_MISS_MEDIA: return "the cached tokens belong to other media";
    case KV_MISS_OFF: return "prefix caching is disabled on this worker";
    case KV_MISS_LOGPROBS:
        return "prompt logprobs need every position computed, so the cache is not used";
    case KV_MISS_SALT: /* is counted, and in no explanation */
    case KV_MISS_COUNT: break;
    }
    return "";
}

/* Where it is that the hit ends. */
static void put_place(struct json_writer *w, const struct choice *ch,
                      const struct kv_explanation *x) {
    const struct request *r = ch->request;

    json_field_u64(w, "block", x->block);
    json_field_u64(w, "token", x->token);
    json_field_u64(w, "text_offset", text_offset(ch, x->token));
    put_text(w, ch->call, "text", r->tokens + x->token,
             MIN(SNIPPET_TOKENS, r->n_prompt - x->token));
}

static bool has_place(enum kv_miss cause) {
    return cause == KV_MISS_NEVER_SEEN || cause == KV_MISS_DIFFERS || cause == KV_MISS_EVICTED ||
           cause == KV_MISS_ADAPTER || cause == KV_MISS_MEDIA;
}

static void put_explanation(struct json_writer *w, const struct choice *ch) {
    const struct kv_explanation *x = &ch->request->explanation;
    const struct api *api = ch->call->api;
    enum kv_miss cause = x->cause;

    json_begin_object(w);
    json_field_z(w, "cause", kv_miss_name(cause));
    json_field_u64(w, "prompt_tokens", x->n_tokens);
    json_field_u64(w, "cached_tokens", x->n_hit_tokens);
    json_field_u64(w, "host_tokens", x->n_host_tokens);
    json_field_u64(w, "block_size", engine_info(api->engine)->block_size);
    if (has_place(cause)) put_place(w, ch, x);
    if (cause == KV_MISS_EVICTED) {
        json_field_f64(w, "evicted_s_ago", (double)(x->now_us - x->evicted_us) * 1e-6);
    }
    if (cause == KV_MISS_ADAPTER) {
        json_field_u64(w, "tokens_under_other_key", x->n_other_tokens);
    }
    if (cause == KV_MISS_DIFFERS && api->cache_explain == EXPLAIN_FULL) {
        put_text(w, ch->call, "cached_text", &x->cached_token_id, 1);
    }
    json_field_z(w, "message", message_of(cause));
    json_end_object(w);
}

static void put_of_prompt(struct json_writer *w, const struct call *c, uint32_t i) {
    const struct choice *ch = &c->choices[i * c->params.n];

    if (ch->has_begun && ch->request->explanation.n_tokens > 0) {
        put_explanation(w, ch);
    } else {
        json_put_null(w);
    }
}

void cache_explain_put(struct json_writer *w, const struct call *c) {
    json_put_key(w, "cache_explain");
    if (c->n_prompts == 1) {
        put_of_prompt(w, c, 0);
        return;
    }
    json_begin_array(w);
    for (uint32_t i = 0; i < c->n_prompts; i++)
        put_of_prompt(w, c, i);
    json_end_array(w);
}

enum status cache_explain_check(const struct call *c, struct error *err) {
    const struct request_params *r = &c->params.request;

    if (!r->explains_cache || c->api->cache_explain >= EXPLAIN_POSITION) return ST_OK;
    if (c->api->cache_explain == EXPLAIN_OFF) {
        return error_set_param(err, ST_INVALID, "cache_explain",
                               "cache_explain is disabled on this worker: leave it out, or start "
                               "the worker with --cache-explain own");
    }
    if (r->cache_salt_len > 0) return ST_OK;
    return error_set_param(
        err, ST_INVALID, "cache_explain",
        "cache_explain needs a cache_salt in the request: add one, or start the worker with "
        "--cache-explain position, which reveals prompts of other clients");
}

/* --- POST /cache/explain ---------------------------------------------------------------------- */

static void body(struct call *c, struct buf *out) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.explanation");
    json_field_z(&w, "model", c->api->model_name);
    cache_explain_put(&w, c);
    json_end_object(&w);
}

static const struct call_shape shape = {
    .id_prefix = "explain-",
    .prompt_field = "prompt",
    .length_field = "max_tokens",
    .body = body,
};

void api_on_explained(struct api *api, struct request *r) {
    struct choice *ch = r->owner;
    struct http_request *req;
    struct call *c;

    (void)api;
    if (!ch) return; /* the client has left */
    c = ch->call;
    ch->has_begun = true;
    if (--c->n_open > 0) return;
    req = c->req;
    buf_clear(&c->out);
    body(c, &c->out);
    http_reply(req, 200, OPENAI_JSON, buf_str(&c->out));
    call_release(c);
}

static enum status explain_read(struct call *c, const struct json *root, struct error *err) {
    return json_is_null(json_get(root, "messages")) ? completions_read(c, root, err)
                                                    : chat_read(c, root, err);
}

void cache_explain_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, explain_read);

    if (!c) return;
    c->is_dry_run = c->params.request.explains_cache = true;
    c->params.n = c->params.n_shown = 1;
    c->params.is_beam = c->params.stream = false;
    call_start(c);
}
