/* worker/api/handlers.h - one handler per path; server.c has the table. Each answers its request.
 * The first three, and health_generate_get, wait for the engine. */
#ifndef WORKER_API_HANDLERS_H
#define WORKER_API_HANDLERS_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct api;
struct call;
struct http_request;
struct json;

void completions_post(struct http_request *req, void *api);
void chat_post(struct http_request *req, void *api);
void generate_post(struct http_request *req, void *api);
void messages_post(struct http_request *req, void *api);
void tokenize_post(struct http_request *req, void *api);
void detokenize_post(struct http_request *req, void *api);
void responses_post(struct http_request *req, void *api);
void response_get(struct http_request *req, void *api);
void response_delete(struct http_request *req, void *api);
void count_tokens_post(struct http_request *req, void *api);
void models_get(struct http_request *req, void *api);

/* Logs a change by a client: one line, at any log level. `code`: of the response. */
void api_log_change(const struct api *api, const char *call, struct str client, int code);

/* drain.c */
void admin_drain_post(struct http_request *req, void *api);

/* kv_events.c */
void kv_events_get(struct http_request *req, void *api);
void kv_events_digest_get(struct http_request *req, void *api);

/* cache_explain.c */
void cache_explain_post(struct http_request *req, void *api);

/* cache_hold.c */
void cache_prewarm_post(struct http_request *req, void *api);
void cache_get(struct http_request *req, void *api);
void cache_hold_post(struct http_request *req, void *api);
void cache_release_post(struct http_request *req, void *api);

/* sglang.c */
void model_info_get(struct http_request *req, void *api);
void sglang_server_info_get(struct http_request *req, void *api);
void abort_request_post(struct http_request *req, void *api);
void health_generate_get(struct http_request *req, void *api);

/* Reads parameters and prompts of such a body into a new call. */
MUST_USE enum status completions_read(struct call *c, const struct json *root, struct error *err);
MUST_USE enum status chat_read(struct call *c, const struct json *root, struct error *err);

#endif
