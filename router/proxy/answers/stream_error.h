/* router/proxy/answers/stream_error.h - an error as the last event of a stream, in the form of its
 * API (common/protocol/api.h).
 *
 * Once a client has the head of a stream, an error can no longer be a status. Pure; any thread. */
#ifndef ROUTER_PROXY_STREAM_ERROR_H
#define ROUTER_PROXY_STREAM_ERROR_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/protocol/api.h"

/* An error of the router's that has no number: OpenAI's clients read its type and its name. */
struct stream_break {
    int code; /* the status that it would have been */
    const char *type, *name, *message;
};

/* Ends an answer that is incomplete, which has no [DONE]. */
void stream_error_break(struct buf *out, const struct api_stream *stream,
                        const struct stream_break *why);

/* The event for the body of a worker's error: OpenAI's as it is if that is one JSON object, on one
 * line; of the others its message. Else an error that names the code. */
void stream_error_relay(struct buf *out, const struct api_stream *stream, int code,
                        struct str body);

#endif
