/* router/proxy/answers/stream_error.h - an error as the last event of a stream.
 *
 * Once a client has the head of a stream, an error can no longer be a status. Each API has a form
 * for it that its clients know:
 *
 *      OpenAI, SGLang     data: {"error":{"message":...,"type":...,"param":null,"code":429}}
 *                         data: [DONE]
 *      /v1/messages       event: error
 *                         data: {"type":"error","error":{"type":"rate_limit_error","message":...}}
 *      /v1/responses      event: error
 *                         data: {"type":"error","code":"429","message":...,"param":null}
 *
 * Pure; any thread. */
#ifndef ROUTER_PROXY_STREAM_ERROR_H
#define ROUTER_PROXY_STREAM_ERROR_H

#include "common/base/buf.h"
#include "common/base/status.h"

/* Appends the event for a client of `path`. `code`: the status that the error would have been. */
void stream_error_append(struct buf *out, struct str path, enum status st, int code,
                         const struct error *err);

/* The same from the body of a worker's error: as it is if that is one JSON object, on one line;
 * else an error that names the code. */
void stream_error_relay(struct buf *out, struct str path, int code, struct str body);

#endif
