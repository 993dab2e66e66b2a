/* worker/output/output_format.h - how models write reasoning and tool calls: a table.
 *
 * Each family of models was trained to one way of writing. A row of the table has the markers
 * and what stands between them; from the same row the reader (reader.h) takes an answer
 * apart, and the writer of grammars (output_tag.h) makes the constraint. So what is constrained is
 * what is read.
 *
 * Markers are tokens where the vocabulary has them, and then never spelt from others (neither read
 * nor generated); else text. Immutable. */
#ifndef WORKER_OUTPUT_OUTPUT_FORMAT_H
#define WORKER_OUTPUT_OUTPUT_FORMAT_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct call_format;      /* a row: how tool calls are written */
struct reasoning_format; /* a row: how reasoning is */

/* What is known of a model: its chat template's source, and which texts are one token. */
struct output_model {
    struct str chat_template;
    const void *arg;
    bool (*find_token)(const void *arg, struct str text, uint32_t *id);
};

/* By name: hermes, qwen3, llama3_json, pythonic, ... Engines' names of the same format are known
 * too. "auto" is by output_formats_detect. NULL: unknown, *err lists the names. */
const struct call_format *call_format_find(struct str name, struct error *err);
const struct reasoning_format *reasoning_format_find(struct str name, struct error *err);
const char *call_format_name(const struct call_format *f);           /* NULL: "none" */
const char *reasoning_format_name(const struct reasoning_format *f); /* NULL: "none" */

/* The token that calls begin with. False where that is text. */
bool call_format_begin_token(const struct call_format *f, const struct output_model *m,
                             uint32_t *id);

/* The markers around reasoning, as models write them. */
struct str reasoning_format_open(const struct reasoning_format *f);
struct str reasoning_format_close(const struct reasoning_format *f);

/* What to write in the model's stead to end its reasoning, so that the answer comes next. As a
 * template has it: with markers that may be tokens. STR_NULL without a format. */
struct str reasoning_format_end(const struct reasoning_format *f);

/* The first rows whose signs are in the template and the vocabulary; NULL where none is. */
const struct call_format *call_format_detect(const struct output_model *m);
const struct reasoning_format *reasoning_format_detect(const struct output_model *m);

#endif
