/* worker/output/output_tag_internal.h - what the files that write a constraint share: output_tag.c
 * has the answer and its calls, output_tag_arguments.c what a call is given. */
#ifndef WORKER_OUTPUT_OUTPUT_TAG_INTERNAL_H
#define WORKER_OUTPUT_OUTPUT_TAG_INTERNAL_H

#include "common/text/json.h"
#include "worker/output/output_internal.h"
#include "worker/output/output_tag.h"

struct tag_writer {
    const struct output_tag *t;
    const struct call_format *f;
    struct json_writer w;
    bool is_harmony;
};

/* Formats of structural tags. A list is an object with an array: tag_end_list ends both. */
void tag_begin_format(struct tag_writer *x, const char *type);
void tag_begin_list(struct tag_writer *x, const char *type, const char *list);
void tag_end_list(struct tag_writer *x);
void tag_put_text(struct tag_writer *x, const char *text); /* NULL, "": nothing */
void tag_put_regex(struct tag_writer *x, const char *pattern);
void tag_put_any_text(struct tag_writer *x, const char *without); /* NULL: any */

/* --- output_tag_arguments.c ------------------------------------------------------------------- */

const struct json *tag_function_of(const struct json *tool);
bool tag_is_strict(const struct json *tool); /* arguments are constrained where calls are free */

/* The format of the tool's arguments, what stands around them left out. */
void tag_put_arguments(struct tag_writer *x, const struct json *tool);

#endif
