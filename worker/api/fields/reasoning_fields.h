/* worker/api/fields/reasoning_fields.h - the fields of reasoning, under the names of vLLM and
 * SGLang: whether clients see it, and how long it may be. How hard the model thinks is a variable
 * of its template: reasoning_effort, which is read where the prompt is rendered.
 *
 * Thread: worker loop. */
#ifndef WORKER_API_FIELDS_REASONING_FIELDS_H
#define WORKER_API_FIELDS_REASONING_FIELDS_H

#include "common/base/base.h"
#include "common/base/status.h"

struct json;

struct reasoning_fields {
    bool is_hidden; /* include_reasoning false: computed and counted, not shown */
    bool is_text;   /* separate_reasoning false: it stays in the text, markers and all */
    bool has_budget;
    uint32_t budget; /* thinking_token_budget */
};

MUST_USE enum status reasoning_fields_parse(struct reasoning_fields *f, const struct json *o,
                                            struct error *err);

#endif
