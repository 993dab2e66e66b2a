/* worker/model/weights.h - all the tensors of a model folder, whatever files they are in.
 *
 * A checkpoint is one model.safetensors, or shards named by model.safetensors.index.json. Either
 * way the rest of the house asks for a tensor by name. The index is only a claim: each shard says
 * itself what it holds, and a name that two shards hold, or that the index promises and no shard
 * has, is an error at open. */
#ifndef WORKER_MODEL_WEIGHTS_H
#define WORKER_MODEL_WEIGHTS_H

#include "worker/model/safetensors.h"

struct weights;

#define WEIGHTS_MAX_INDEX_BYTES ((size_t)64 << 20)
#define WEIGHTS_MAX_SHARDS      1000 /* files that an index names */

/* Reads a model.safetensors.index.json: `on_entry` hears each tensor and the file that has it, which
 * is a plain name: no path leads out of the folder. What it returns, if not ST_OK, is the result. */
MUST_USE enum status weights_index_read(struct str text,
                                        enum status (*on_entry)(void *arg, struct str tensor,
                                                                const char *file,
                                                                struct error *err),
                                        void *arg, struct error *err);

/* ST_NOT_FOUND with a sentence when the folder holds no safetensors, and what to do when it holds
 * PyTorch or GGUF files instead. */
MUST_USE enum status weights_open(struct weights **out, const char *folder, struct error *err);
void weights_close(struct weights *w); /* NULL is fine */

const struct safetensor *weights_find(const struct weights *w, const char *name);
void weights_forget(const struct weights *w, const struct safetensor *t);

/* Tensors in all, in name order, to say which of them nobody asked for. */
uint32_t weights_count(const struct weights *w);
const struct safetensor *weights_at(const struct weights *w, uint32_t i);

#endif
