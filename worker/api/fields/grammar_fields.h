/* worker/api/fields/grammar_fields.h - the fields that constrain an answer, under the names of
 * OpenAI, vLLM and SGLang.
 *
 *      response_format     {"type": "json_object" | "json_schema" | "structural_tag", ...}
 *      structured_outputs  {"json" | "regex" | "choice" | "grammar" | "json_object" |
 *                           "structural_tag": ...}
 *      guided_json, _regex, _choice, _grammar, _whitespace_pattern
 *      json_schema, regex, ebnf, structural_tag
 *
 * One of them at most. What they hold is checked when it is compiled (worker/grammar), on a thread
 * of its own; here only their shape is. Thread: worker loop. */
#ifndef WORKER_API_FIELDS_GRAMMAR_FIELDS_H
#define WORKER_API_FIELDS_GRAMMAR_FIELDS_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/grammar/grammar.h"

struct json;

struct grammar_fields {
    const char *field;        /* the one that was given, as an error names it; NULL: none */
    struct grammar_spec spec; /* its text is in `text`, its pattern with the body */
    struct buf text;
};

/* Reads the fields of `o` into a zeroed struct; grammar_fields_fini frees, after a failure too.
 * ST_INVALID names the field. */
MUST_USE enum status grammar_fields_parse(struct grammar_fields *f, const struct json *o,
                                          struct error *err);

/* The constraint as a format of a structural tag, JSON, appended to `out`. Needs `field`. */
void grammar_fields_put_format(const struct grammar_fields *f, struct buf *out);

/* Puts a structural tag in the place of what was there: errors name its field, "tools" if there was
 * none. ST_INVALID if it is too long, which names the field that most of it is of. */
MUST_USE enum status grammar_fields_set_tag(struct grammar_fields *f, struct str json,
                                            struct error *err);
void grammar_fields_fini(struct grammar_fields *f);

#endif
