/* worker/api/handlers.h - one handler per path; server.c has the table. Each answers its request.
 * The first three, and health_generate_get, wait for the engine. */
#ifndef WORKER_API_HANDLERS_H
#define WORKER_API_HANDLERS_H

struct http_request;

void completions_post(struct http_request *req, void *api);
void chat_post(struct http_request *req, void *api);
void generate_post(struct http_request *req, void *api);
void tokenize_post(struct http_request *req, void *api);
void detokenize_post(struct http_request *req, void *api);
void models_get(struct http_request *req, void *api);

/* sglang.c */
void model_info_get(struct http_request *req, void *api);
void sglang_server_info_get(struct http_request *req, void *api);
void abort_request_post(struct http_request *req, void *api);
void health_generate_get(struct http_request *req, void *api);

#endif
