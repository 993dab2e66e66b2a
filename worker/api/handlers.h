/* worker/api/handlers.h - one handler per path; server.c has the table. Each answers its request.
 * The first three wait for the engine. */
#ifndef WORKER_API_HANDLERS_H
#define WORKER_API_HANDLERS_H

struct http_request;

void completions_post(struct http_request *req, void *api);
void chat_post(struct http_request *req, void *api);
void generate_post(struct http_request *req, void *api);
void tokenize_post(struct http_request *req, void *api);
void detokenize_post(struct http_request *req, void *api);
void models_get(struct http_request *req, void *api);

#endif
