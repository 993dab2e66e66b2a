/* worker/worker_defaults.h - what requests that are silent get: sampling, variables of the chat
 * template, and how answers are read.
 *
 * Thread: the main thread, before the loop runs. */
#ifndef WORKER_WORKER_DEFAULTS_H
#define WORKER_WORKER_DEFAULTS_H

#include "worker/model/config.h"
#include "worker/output/output_format.h"
#include "worker/worker_options.h"

struct json;
struct log;
struct tokenizer;

/* --generation-config and --override-generation-config over what the model's makers recommend. */
MUST_USE enum status worker_generation_defaults(const struct worker_options *o,
                                                const struct model_config *model, struct log *log,
                                                struct generation_config *out, struct error *err);

/* --default-chat-template-kwargs; *out is NULL without, else the caller's to json_destroy. */
MUST_USE enum status worker_template_defaults(const struct worker_options *o, struct json **out,
                                              struct error *err);

/* --keep-reasoning: adds to *kwargs the template's own switch for it, unless it is set there.
 * *kwargs is as worker_template_defaults made it. */
MUST_USE enum status worker_keep_reasoning(struct json **kwargs, struct str chat_template,
                                           struct log *log, struct error *err);

/* --tool-call-parser and --reasoning-parser; NULL for formats that the model has not. An unknown
 * name is logged, and counts as auto. */
void worker_output_formats(const struct worker_options *o, const struct output_model *model,
                           struct log *log, const struct call_format **calls,
                           const struct reasoning_format **reasoning);

/* `tokenizer`: must outlive it. */
struct output_model worker_output_model(const struct tokenizer *tokenizer,
                                        struct str chat_template);

#endif
