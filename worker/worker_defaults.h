/* worker/worker_defaults.h - what requests that are silent get: sampling, and variables of the chat
 * template.
 *
 * Thread: the main thread, before the loop runs. */
#ifndef WORKER_WORKER_DEFAULTS_H
#define WORKER_WORKER_DEFAULTS_H

#include "worker/model/config.h"
#include "worker/worker_options.h"

struct json;
struct log;

/* --generation-config and --override-generation-config over what the model's makers recommend. */
MUST_USE enum status worker_generation_defaults(const struct worker_options *o,
                                                const struct model_config *model, struct log *log,
                                                struct generation_config *out, struct error *err);

/* --default-chat-template-kwargs; *out is NULL without, else the caller's to json_destroy. */
MUST_USE enum status worker_template_defaults(const struct worker_options *o, struct json **out,
                                              struct error *err);

#endif
