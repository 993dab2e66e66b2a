/* worker/api/body.h - the first steps of every POST: its JSON, its model. */
#ifndef WORKER_API_BODY_H
#define WORKER_API_BODY_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct api;
struct chat_input;
struct http_request;
struct json;

/* Parses req->body, which must be a JSON object, and checks that its model, if it names one, is
 * ours: ST_NOT_FOUND otherwise. Free *out with json_destroy. */
MUST_USE enum status body_parse(struct json **out, const struct api *api,
                                const struct http_request *req, struct error *err);

/* Renders "messages" with the template into `text`, as the chat call and /tokenize do. */
MUST_USE enum status body_render_chat(const struct api *api, const struct json *body,
                                      struct buf *text, struct error *err);

/* Calls in the conversation so far. */
uint32_t body_count_calls(const struct json *chat);

/* The body of a message as that of a chat (wires/messages_request.h). Free *out with
 * json_destroy. */
MUST_USE enum status body_from_messages(struct json **out, const struct api *api,
                                        const struct json *body, bool is_count, struct error *err);

/* The bytes at the beginning of a message's rendered text that its first n_messages messages have
 * written, behind tools and system. 0: the template does not render them alone. */
size_t body_beginning_of_messages(const struct api *api, const struct json *body, size_t n_messages,
                                  struct str rendered);

/* The same of a chat. */
size_t body_beginning_of_chat(const struct api *api, const struct json *chat, size_t n_messages,
                              struct str rendered);

/* Parses the text of a translated body. */
MUST_USE enum status body_translated(struct json **out, const struct buf *chat, struct error *err);

#endif
