/* worker/model/architecture.h - the table of one model architecture.
 *
 * All built architectures are the decoder of struct geometry. They differ in which of its optional
 * parts they have (biases, norms of Q and K, windows), in the keys of config.json that decide that,
 * and possibly in the names of their tensors. So an architecture is a file of its own with one
 * constant: how its keys are read, and which names it has. Shapes follow from role and geometry. */
#ifndef WORKER_MODEL_ARCHITECTURE_H
#define WORKER_MODEL_ARCHITECTURE_H

#include "kernels/backend.h"
#include "worker/model/config.h"

struct json;

struct tensor_name {
    enum tensor_role role;
    const char *name; /* with one %u, the layer, where the role is per layer */
};

struct architecture {
    const char *name; /* in config.json's `architectures` */
    const struct tensor_name *names;
    size_t n_names;
    /* Reads the keys that are this architecture's own; what all share is in *m already. Sets the
     * has_* fields, and sliding_window with layer_kind. */
    enum status (*read)(const struct json *config, struct model_config *m, struct error *err);
};

extern const struct architecture architecture_llama;
extern const struct architecture architecture_mistral;
extern const struct architecture architecture_qwen2;
extern const struct architecture architecture_qwen3;

/* ST_UNSUPPORTED, naming those that are built. */
MUST_USE enum status architecture_find(const struct architecture **out, const char *name,
                                       struct error *err);

/* --- for the files of the architectures */

/* The names that checkpoints of the Llama family have for all roles. */
#define DECODER_TENSORS 18
extern const struct tensor_name decoder_tensors[DECODER_TENSORS];

/* Makes layers from `first` on see `window` tokens. Nothing, when no sequence is that long. */
void architecture_slide_from(struct model_config *m, uint32_t window, uint32_t first);

/* Qwen's rule: no window unless use_sliding_window; then layers from max_window_layers on, or as
 * the list layer_types has it. */
MUST_USE enum status architecture_read_qwen_window(const struct json *config,
                                                   struct model_config *m, struct error *err);

#endif
