/* common/protocol/api.h - the three APIs of one model, and the shape of an error in each.
 *
 *      OpenAI     every other path   {"error":{"message","type","param","code"}}      openai.h
 *      Responses  /v1/responses      the same; behind the head of a stream the event
 *                                    response.failed, with the error in the response
 *      Messages   /v1/messages       {"type":"error","error":{"type","message"}}; behind the head
 *                                    of a stream the same as the event error
 *
 * Paths below (/v1/messages/count_tokens, /v1/responses/ID) are of the same API. What both
 * processes must know of Responses and Messages is here too:
 *
 * The id of a stored response names the worker that stores it, and that start of it:
 *
 *      resp_ MARK REST      MARK: API_MARK_CHARS lower-case hexadecimal digits, random at each start
 *                           of the worker, which reports them as `response_mark` in /server_info
 *
 * So every router that knows the worker finds it for previous_response_id, and none keeps a table.
 * A restarted worker has another mark, as it has lost its responses. A request whose mark is of no
 * worker here goes anywhere, and that worker answers 404 and asks for the whole input. A worker
 * that stores nothing reports no mark.
 *
 * A salt keeps tenants apart in all three: x-incipit-salt, or the field cache_salt in bodies for
 * workers that do not trust the router. It is that of what they store, too.
 *
 * Claude Code writes a block that begins with API_BILLING_HEADER first into `system`, with a nonce
 * for each request: it is no part of the prompt, for the router's hashes and for the worker. Pure;
 * any thread. */
#ifndef COMMON_PROTOCOL_API_H
#define COMMON_PROTOCOL_API_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define API_MESSAGES_PATH      "/v1/messages"
#define API_COUNT_TOKENS_PATH  "/v1/messages/count_tokens"
#define API_RESPONSES_PATH     "/v1/responses"
#define API_BILLING_HEADER     "x-anthropic-billing-header:"
#define API_RESPONSE_ID_PREFIX "resp_"
#define API_MARK_CHARS         12

enum api_form { API_OPENAI, API_MESSAGES, API_RESPONSES };

/* Of a path without its query. */
enum api_form api_of(struct str path);

/* The body of an error with a status of its own. `code` and `err` as in openai.h. */
void api_append_error(struct buf *out, enum api_form api, enum status st, int code,
                      const struct error *err);

/* The name that Anthropic's API has for an error with this status. */
const char *api_messages_error_type(int code);

/* A stream's last event after an error, with its blank line; for OpenAI also [DONE]. `code`: the
 * status that the error would have been. `sequence`: of Responses, the number of the event; `id`
 * that of the response, or empty. */
struct api_stream {
    enum api_form api;
    uint64_t sequence;
    struct str id;
};
void api_append_error_event(struct buf *out, const struct api_stream *stream, enum status st,
                            int code, const struct error *err);

/* The mark in the id of a response; STR_NULL when the id is of another kind. */
struct str api_mark_of(struct str response_id);

#endif
