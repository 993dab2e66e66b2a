/* worker/api/cache_prewarm.c - POST /cache/prewarm: computes a prompt before its clients come.
 *
 * The body is that of a completion or of a chat, with a time to keep the prompt. It runs as a
 * request of one token, which is not shown, behind all others where priorities count; its blocks
 * are kept like those of a prompt that its client marks. A second call finds them, computes the
 * last block at most, and starts the time again. */
#include "common/http/http_server.h"
#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/api/fields/cache_control.h"
#include "worker/api/handlers.h"

static void body(struct call *c, struct buf *out) {
    struct call_usage usage = call_usage(c);
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.prewarm");
    json_field_z(&w, "model", c->api->model_name);
    json_field_u64(&w, "prompt_tokens", usage.prompt_tokens);
    json_field_u64(&w, "cached_tokens", usage.cached_tokens);
    json_field_u64(&w, "ttl_s", c->keep[0].ttl_s);
    json_end_object(&w);
}

static const struct call_shape shape = {
    .id_prefix = "prewarm-",
    .prompt_field = "prompt",
    .length_field = "max_tokens",
    .body = body,
};

/* One token of the most likely answer, and nothing else that an answer could have. */
static void set_params(struct call *c, uint32_t ttl_s) {
    struct call_params *p = &c->params;

    p->n = p->n_shown = 1;
    p->is_beam = p->stream = p->echo = false;
    p->has_max_tokens = true;
    p->request.max_tokens = 1;
    p->request.min_tokens = 0;
    p->request.prompt_logprobs = p->prompt_logprobs = -1;
    if (engine_info(c->api->engine)->is_by_priority) p->request.priority = INT32_MAX;
    c->keep[0] = (struct call_keep){SIZE_MAX, ttl_s};
    c->n_keep = retention_of_seconds(ttl_s) != RETAIN_NONE;
}

enum status prewarm_read_prompt(struct call *c, const struct json *root, uint32_t ttl_s,
                                struct error *err) {
    enum status st = json_is_null(json_get(root, "messages")) ? completions_read(c, root, err)
                                                              : chat_read(c, root, err);

    if (st != ST_OK) return st;
    if (c->n_prompts > 1) {
        return error_set_param(err, ST_INVALID, "prompt",
                               "the request has %u prompts: prewarm them one by one", c->n_prompts);
    }
    set_params(c, ttl_s);
    return ST_OK;
}

static enum status prewarm_read(struct call *c, const struct json *root, struct error *err) {
    uint32_t ttl_s = 3600;
    enum status st = cache_control_read_time(root, &ttl_s, err);

    return st == ST_OK ? prewarm_read_prompt(c, root, ttl_s, err) : st;
}

void cache_prewarm_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, prewarm_read);

    if (c) call_start(c);
}
