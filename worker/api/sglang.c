/* worker/api/sglang.c - the small endpoints of SGLang that its clients and operators call;
 * /generate has a file of its own. */
#include <stdio.h>

#include "common/base/buf.h"
#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "worker/api/api.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"

static void reply_writer(struct http_request *req, struct buf *body) {
    http_reply(req, 200, OPENAI_JSON, buf_str(body));
    buf_fini(body);
}

void model_info_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "model_path", api->model_root);
    json_field_z(&w, "tokenizer_path", api->model_root);
    json_field_bool(&w, "is_generation", true);
    json_field_null(&w, "preferred_sampling_params");
    json_end_object(&w);
    reply_writer(req, &body);
}

void sglang_server_info_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    const struct engine_info *info = engine_info(api->engine);
    struct engine_stats stats;
    struct json_writer w;
    struct buf body;

    engine_stats(api->engine, &stats);
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "model_path", api->model_root);
    json_field_z(&w, "served_model_name", api->model_name);
    json_field_z(&w, "version", INCIPIT_VERSION);
    json_field_u64(&w, "tp_size", info->n_ranks);
    json_field_u64(&w, "page_size", info->block_size);
    json_field_u64(&w, "max_total_num_tokens", (uint64_t)info->n_blocks * info->block_size);
    json_field_u64(&w, "context_length", info->max_model_len);
    json_field_u64(&w, "max_running_requests", api->max_num_seqs);
    json_field_u64(&w, "num_running_reqs", stats.running);
    json_field_u64(&w, "num_waiting_reqs", stats.waiting);
    json_end_object(&w);
    reply_writer(req, &body);
}

/* {"rid": ID} or {"abort_all": true}. Requests that have ended are ignored. */
void abort_request_post(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct json *root = NULL;
    struct error err = {0};
    struct str rid = STR_NULL;
    bool all = false, has_rid = false;
    enum status st = body_parse(&root, api, req, &err);

    if (st == ST_OK) st = json_get_bool(root, "abort_all", &all, NULL, &err);
    if (st == ST_OK) st = json_get_str(root, "rid", CALL_ID_MAX - 1, &rid, &has_rid, &err);
    if (st == ST_OK && !all && (!has_rid || rid.len == 0)) {
        st = error_set_param(&err, ST_INVALID, "rid",
                             "rid is required: the id of the request to abort, or \"abort_all\": "
                             "true");
    }
    if (st == ST_OK) {
        char answer[48];
        int n =
            snprintf(answer, sizeof(answer), "{\"aborted\":%u}", api_abort_calls(api, rid, all));

        if (all) api_log_change(api, "abort_all", http_request_client(req), 200);
        http_reply(req, 200, OPENAI_JSON, (struct str){answer, (size_t)n});
    } else {
        http_reply_error(req, st, &err);
    }
    json_destroy(root);
}

/* --- GET /health_generate: 200 once the model has made a token -------------------------------- */

static void write_nothing(struct call *c, struct buf *out) {
    (void)c;
    (void)out;
}

static const struct call_shape probe = {.id_prefix = "health-",
                                        .prompt_field = "prompt",
                                        .length_field = "max_tokens",
                                        .body = write_nothing};

void health_generate_get(struct http_request *req, void *arg) {
    struct token_list *tokens;
    struct error err = {0};
    struct call *c;
    enum status st;

    if (api_refuses_new(arg, req)) return;
    c = call_create(arg, req, &probe, NULL);
    c->params.n = c->params.n_shown = 1;
    c->params.request = request_params_default;
    c->params.request.temperature = 0;
    c->params.request.max_tokens = 1;
    st = call_set_prompts(c, 1, &err);
    if (st == ST_OK) {
        tokens = &c->prompts[0].job.tokens;
        st = token_list_push(tokens, 0);
        if (st != ST_OK) error_set(&err, st, "out of memory for a token");
    }
    if (st != ST_OK) {
        call_fail(c, st, &err);
        return;
    }
    call_start(c);
}
