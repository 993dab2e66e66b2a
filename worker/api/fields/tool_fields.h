/* worker/api/fields/tool_fields.h - the fields of tools, as chat has them: what the model may call,
 * and whether it must.
 *
 *      tools                [{"type": "function", "function": {"name", "description", "parameters", "strict"}}],
 *                           or {"type": "custom", "custom": {"name", "description", "format"}}
 *      tool_choice          "auto" (the default with tools), "none", "required",
 *                           {"type": "function", "function": {"name"}}, or custom: exactly that one,
 *                           {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}: of these alone
 *      parallel_tool_calls  false: at most one call
 *
 * With "none", and for tools that are not allowed, the prompt is still that of all tools: the
 * choice changes no cached block. Schemas are checked where they are compiled.
 *
 * LIMITS. TOOLS_MAX tools; a name has 1 to TOOL_NAME_MAX letters, digits, "_", "-" and ".".
 * Thread: worker loop. */
#ifndef WORKER_API_FIELDS_TOOL_FIELDS_H
#define WORKER_API_FIELDS_TOOL_FIELDS_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/output/output_tag.h"

struct json;

#define TOOLS_MAX     512u /* agents with several tool servers send some hundred */
#define TOOL_NAME_MAX 128u

struct tool_fields {
    enum tool_choice choice;     /* TOOLS_NONE without tools */
    const struct json *given;    /* of the body, all */
    const struct json *tools;    /* all, as functions: `given` or `functions`; NULL: none */
    const struct json *callable; /* those that may be called: `tools`, or `chosen` */
    struct json *functions;      /* owned: where a tool is custom (custom_tools.h) */
    struct json *chosen;         /* owned: a part of them; NULL: all may be called */
    bool is_single;              /* at most one call */
};

/* Reads the fields of `o` into a zeroed struct; tool_fields_fini frees, after a failure too.
 * ST_INVALID names the field. */
MUST_USE enum status tool_fields_parse(struct tool_fields *f, const struct json *o,
                                       struct error *err);

/* The tool of that name is custom: its calls have a text, not arguments. */
bool tool_fields_is_custom(const struct tool_fields *f, struct str name);
void tool_fields_fini(struct tool_fields *f);

#endif
