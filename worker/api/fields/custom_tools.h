/* worker/api/fields/custom_tools.h - custom tools of chat as functions: a model knows no other.
 *
 *      {"type": "custom", "custom": {"name", "description", "format"}}
 *
 *      {"type": "function", "function": {"name", "description", "parameters": an object with one
 *       string, "input"}, "format": {"syntax", "definition"}}
 *
 * The model reads the definition in the description. `format` is for the constraint
 * (worker/output/output_tag.h), and no template gets it. In a body it is {"type": "text"}, or
 * {"type": "grammar", "grammar": {"syntax": "lark" or "regex", "definition"}}; Responses has the
 * members of "grammar" beside the type. Pure. */
#ifndef WORKER_API_FIELDS_CUSTOM_TOOLS_H
#define WORKER_API_FIELDS_CUSTOM_TOOLS_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct json;

/* *out: `tools` with each custom tool as a function, which json_destroy frees; NULL if none is
 * custom. ST_INVALID names the tool. */
MUST_USE enum status custom_tools_read(struct json **out, const struct json *tools,
                                       bool has_formats, struct error *err);

/* The tool of that name is custom. */
bool custom_tools_has(const struct json *tools, struct str name);

#endif
