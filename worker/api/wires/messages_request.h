/* worker/api/wires/messages_request.h - the body of POST /v1/messages as the body of a chat call.
 *
 *      system, messages    messages (conversation.h). A line of the system prompt that begins with
 *                          API_BILLING_HEADER has a nonce for each request and is left out
 *      tool_use            tool_calls; thinking: reasoning; redacted_thinking: left out
 *      tool_result         messages of the role tool, before the rest of theirs
 *      a last message of   is continued (continue_final_message)
 *      the assistant
 *      tools               functions. What only Anthropic's servers can run is left out
 *      tool_choice         auto, any: required, tool: the function, none
 *      thinking            enable_thinking, thinking_token_budget; output_config.effort: the effort
 *      stop_sequences      stop; output_config.format: response_format
 *
 * The same conversation is then the same text for the template, whichever call it came by. Unknown
 * fields and blocks of unknown types are ignored, for agents send new ones before anyone knows
 * them; content that would be lost to the model is refused: images, documents that are no text.
 * Pure. */
#ifndef WORKER_API_WIRES_MESSAGES_REQUEST_H
#define WORKER_API_WIRES_MESSAGES_REQUEST_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct json;

struct messages_asked {
    bool is_count;          /* of /v1/messages/count_tokens: what is of the answer may be absent */
    bool takes_late_system; /* conversation.h */
    bool limits_thinking;   /* or else a budget is checked, and has no effect */
    /* Only system, tools and the first n_messages messages, and of the user that there is one: the
     * beginning of a body that is read as a whole, too. */
    bool is_beginning;
    size_t n_messages;
};

/* Appends the body of the chat call to `out`. ST_INVALID names the field. */
MUST_USE enum status messages_to_chat(const struct json *body, const struct messages_asked *asked,
                                      struct buf *out, struct error *err);

#endif
