/* worker/inspect.h - what a model folder holds, for a person: `incipit-worker inspect`. */
#ifndef WORKER_INSPECT_H
#define WORKER_INSPECT_H

#include "common/base/status.h"

struct worker_options;

/* Reads the small files and the tensors' headers, and writes to stdout what the model is, what its
 * tokenizer and template are, and what weights and KV cache would take with these options. What
 * cannot be served fails as it would when serving, with the same sentence. */
MUST_USE enum status inspect_model(struct worker_options *options, struct error *err);

#endif
