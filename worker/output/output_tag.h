/* worker/output/output_tag.h - the constraint of an answer with tools or reasoning, as a structural
 * tag (worker/grammar: GRAMMAR_TAG).
 *
 *      required, hermes, reasoning open
 *        {"type": "structural_tag", "format": {"type": "sequence", "elements": [
 *           {"type": "any_text", ...}, {"type": "token", "token": "</think>"}, {"type": "tag", ...}]}}
 *
 * Written from the rows of output_format.h that the reader reads.
 *
 * CUSTOM TOOLS. A tool is {"type": "function", "function": {...}}; one with a member "format":
 * {"syntax": "lark" or "regex", "definition"} beside its function has one argument, the string
 * "input", and the grammar describes it. Where the format of calls carries it as JSON, each
 * terminal is spelled as inside of a JSON string, so that the decoded text is what is described.
 * Where it is raw text, terminals that hold the marks of the call's end are left out. LIMIT: there
 * the marks are found in a terminal, not in several that stand side by side. */
#ifndef WORKER_OUTPUT_OUTPUT_TAG_H
#define WORKER_OUTPUT_OUTPUT_TAG_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/output/output_format.h"

struct json;

enum tool_choice { TOOLS_NONE, TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_NAMED };

struct output_tag {
    const struct call_format *calls;
    const struct reasoning_format *reasoning;
    const struct json *tools; /* those that may be called */
    enum tool_choice choice;
    bool is_single; /* at most one call */
    bool begins_in_reasoning;
    /* What text outside of calls must be: a format of a structural tag, as JSON ("json_schema",
     * "regex", "grammar"), or STR_NULL. */
    struct str text_format;
};

/* Does that need a grammar? TOOLS_AUTO does where a tool is strict or has a format; text_format
 * does. */
bool output_tag_is_needed(const struct output_tag *t);
/* ST_INVALID names the tool. */
MUST_USE enum status output_tag_write(const struct output_tag *t, struct buf *json,
                                      struct error *err);

#endif
