/* worker/api/wires/responses_request.h - the body of POST /v1/responses as the body of a chat call.
 *
 *      instructions, input       messages (conversation.h); instructions are the system's first
 *      message                   of user, system, developer, assistant
 *      reasoning                 the reasoning of the assistant's message that follows: its text, or
 *                                what of encrypted_content is ours (sealed_text.h)
 *      function_call,            tool_calls of one message; custom_tool_call: {"input": its input}
 *      custom_tool_call
 *      ..._output                messages of the role tool
 *      tools, tool_choice        functions (responses_tools.h)
 *      reasoning.effort          reasoning_effort; text.format: response_format;
 *                                max_output_tokens: max_tokens
 *
 * Items of other types are of tools that others host, and are ignored, as are unknown fields. What
 * would be lost to the model, or cannot be done, is refused: images, references to items, a call in
 * the background. Pure. */
#ifndef WORKER_API_WIRES_RESPONSES_REQUEST_H
#define WORKER_API_WIRES_RESPONSES_REQUEST_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct json;

struct responses_asked {
    bool takes_late_system;     /* conversation.h */
    const struct json *earlier; /* array of items that precede the input; NULL: none */
    const bool *is_dropped;     /* of each of them, then of the input: left out; NULL: none is */
};

/* Appends the body of the chat call to `out`. ST_INVALID names the field. */
MUST_USE enum status responses_to_chat(const struct json *body, const struct responses_asked *asked,
                                       struct buf *out, struct error *err);

#endif
