/* worker/model/model.h - a model folder: what it is, what it needs, and how it gets into a backend.
 *
 *      model_open      reads and checks the small files and the tensor headers: milliseconds
 *      model_geometry  the shape a backend wants; the engine sets types and context
 *      model_*_bytes   what it will cost, before anything is allocated
 *      model_load      streams every tensor into a backend, in the order of the layers
 *
 * One file per architecture (llama.c, qwen2.c ...) defines its own keys of config.json and the
 * names of its tensors; the rest is common. A pseudo-model without files serves backends that
 * compute nothing. The object is constant once open, except that model_load advises the system
 * about pages: load from one thread. */
#ifndef WORKER_MODEL_MODEL_H
#define WORKER_MODEL_MODEL_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "kernels/backend.h"
#include "worker/model/config.h"

struct model;

/* A wrong folder gets a sentence: which file is missing and what a model folder holds. */
MUST_USE enum status model_open(struct model **out, const char *folder, struct error *err);

/* The pseudo-model: 8B-like geometry, the byte tokenizer's vocabulary, no weights, a context of
 * 131,072 tokens or, up to a million, of so many. For backends with BACKEND_SYNTHETIC. */
struct model *model_create_synthetic(uint32_t context);
void model_close(struct model *m); /* NULL is fine */

bool model_is_synthetic(const struct model *m);
const char *model_name(const struct model *m); /* last part of the folder's path */
const struct model_config *model_config(const struct model *m);

/* The narrowest type in which all plain matrices of the checkpoint can be kept as they are: theirs,
 * or float32 where they differ. The dtype in config.json is ignored. */
enum dtype model_dtype(const struct model *m);

/* Fills *out. Arrays in it belong to the model. weight_dtype and kv_dtype are model_dtype; those
 * and max_context are the engine's to change before model_load. */
void model_geometry(const struct model *m, struct geometry *out);

/* "fp8", "gptq"; NULL for a checkpoint that is not quantised. */
const char *model_quantization(const struct model *m);

/* Scales for a KV cache in the checkpoint. They are not used: a cache has scales of each token. */
uint32_t model_n_kv_scales(const struct model *m);

/* Bytes of the weights when the device keeps plain matrices as `matrix_dtype`; quantised ones stay
 * as they are. */
uint64_t model_weight_bytes(const struct model *m, enum dtype matrix_dtype);

/* Bytes of K and V of one token, all layers. */
uint64_t model_kv_bytes_per_token(const struct model *m, enum dtype kv_dtype);

uint64_t model_n_params(const struct model *m);

/* SHA-256 of all that decides what this model computes (digest.h). Reads the whole checkpoint, at
 * some 1.5 GB/s. Zeros for a synthetic model, which has no weights. */
MUST_USE enum status model_digest(const struct model *m, uint8_t out[32], struct error *err);

/* Called now and then during model_load, from the same thread. */
typedef void (*model_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/* What became of the weights of matrices; norms and biases are kept in float32 and not counted. */
struct model_rounding {
    uint64_t n_weights, n_rounded;
    uint64_t n_wrapped_zeros; /* GPTQ zeros of -1, which a file cannot have: read as 0 */
};

/* load_begin, load_tensor for each weight, load_end. On success *out is the backend's model; on
 * failure it was unloaded. `progress` and `rounding` may be NULL. ST_INVALID when a weight is too
 * large for g->weight_dtype. Reads the whole checkpoint: seconds. */
MUST_USE enum status model_load(const struct model *m, const struct backend_ops *ops,
                                struct backend_device *dev, const struct geometry *g,
                                const struct backend_limits *limits, model_progress_fn progress,
                                void *arg, struct model_rounding *rounding,
                                struct backend_model **out, struct error *err);

#endif
