/* worker/text/template/chat_messages.h - the messages of a request as chat templates expect them.
 *
 * Clients write a conversation in many ways: a text, a list of parts or null for the content, nulls
 * for every field that a library knows, the arguments of an earlier tool call as a string of JSON.
 * Templates expect one of these forms. A template gets the form that vLLM and SGLang pass:
 *
 *      content      null or absent -> "". But null, absent or "" beside tool calls -> none where the template
 *                   tests content for none, as DeepSeek's does to find the calls. Parts of text -> one string, joined by line ends; a template that
 *                   loops over parts gets them as {"type": "text", "text"}, but a tool's result, which
 *                   templates print, is always a string
 *      parts        text, input_text, output_text, refusal, thinking, or a bare string; one whose text is
 *                   null is left out; any other is refused, for this worker reads text only
 *      null fields  left out, so that `name is defined` and `'tool_calls' in message` are right
 *      tool_calls   an empty list is left out. Arguments: the value that the string spells; {} for an empty
 *                   one, for null and for other types; a string that is no JSON is kept as it is. A
 *                   template that joins them to text, as DeepSeek-V3.1's does, gets the string. A call
 *                   of a custom tool is that of a function: its arguments are {"input": its text}
 *      reasoning    under both of its names, `reasoning` and `reasoning_content`
 *
 * Two older or newer words than most templates have are brought to theirs: the role `developer` is
 * `system` unless the template names it; `function_call` and the role `function` are `tool_calls`
 * and `tool`. */
#ifndef WORKER_TEXT_TEMPLATE_CHAT_MESSAGES_H
#define WORKER_TEXT_TEMPLATE_CHAT_MESSAGES_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "worker/text/template/jinja.h"

struct json;

struct chat_conversion {
    struct jinja_run *run;
    const struct jinja_program *program;
    bool has_developer; /* the template names that role */
    bool is_plain;      /* no content is none, no arguments are a string: for a second attempt */
    bool was_generous;  /* out: is_plain would have made a difference */
    bool has_spelt;     /* arguments stay the text that the client sent: for a last attempt */
    bool was_parsed;    /* out: has_spelt would have made a difference */
    bool copies;        /* strings: the JSON will not outlive the run */
    struct error *err;
};

/* Any value. The JSON must outlive the run unless `copies`. */
MUST_USE enum status chat_convert(struct chat_conversion *c, const struct json *v, struct jv *out);

/* The array of messages. ST_INVALID (param "messages") names the message that is not one. */
MUST_USE enum status chat_convert_messages(struct chat_conversion *c, const struct json *v,
                                           struct jv *out);

#endif
