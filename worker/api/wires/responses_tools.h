/* worker/api/wires/responses_tools.h - the tools of Responses as those of chat, and back.
 *
 *      function          the function
 *      custom            the custom tool (worker/api/fields/custom_tools.h)
 *      namespace NS      its tools as NS__NAME
 *      hosted ones       left out: web_search, image_generation, mcp ...
 *
 * Tools stand in `tools`, and in items `additional_tools` of the input. Choices and calls name a
 * custom tool as a function. Pure. */
#ifndef WORKER_API_WIRES_RESPONSES_TOOLS_H
#define WORKER_API_WIRES_RESPONSES_TOOLS_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct json;
struct json_writer;

#define RESPONSES_FUNCTION_MAX 192 /* bytes of NS__NAME */

struct responses_tool {
    struct str space, name; /* space: of its namespace, or STR_NULL. They live with the body */
    bool is_custom;
};

/* Writes "tools" unless there are none; *has_any: there are. ST_INVALID names the tool. */
MUST_USE enum status responses_put_tools(struct json_writer *w, const struct json *body,
                                         bool *has_any, struct error *err);

/* Writes "tool_choice" and "parallel_tool_calls". ST_INVALID: it forces a tool that is not there,
 * or is hosted. */
MUST_USE enum status responses_put_tool_choice(struct json_writer *w, const struct json *body,
                                               bool has_tools, struct error *err);

/* The tool of a function that the model has called; a function if there is none of that name. */
struct responses_tool responses_tool_of(const struct json *body, struct str function);

/* Appends NS__NAME, or the name. */
void responses_append_function(struct buf *out, struct str space, struct str name);

#endif
