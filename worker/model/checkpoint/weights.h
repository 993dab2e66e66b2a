/* worker/model/checkpoint/weights.h - all tensors of a model folder, over all its files.
 *
 * A checkpoint is one model.safetensors, or shards named by model.safetensors.index.json. Callers
 * find a tensor by name in either case. The shards' own headers decide: a name in two shards, or
 * one in the index that its shard lacks, is an error at open. */
#ifndef WORKER_MODEL_CHECKPOINT_WEIGHTS_H
#define WORKER_MODEL_CHECKPOINT_WEIGHTS_H

#include "worker/model/checkpoint/safetensors.h"

struct weights;

#define WEIGHTS_MAX_INDEX_BYTES ((size_t)64 << 20)
#define WEIGHTS_MAX_SHARDS      1000 /* files that an index names */

/* Reads a model.safetensors.index.json: calls `on_entry` with each tensor and its file, a plain
 * name without a path. Its first status other than ST_OK is the result. */
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

/* All tensors, in name order, to find those without a role. */
uint32_t weights_count(const struct weights *w);
const struct safetensor *weights_at(const struct weights *w, uint32_t i);

#endif
