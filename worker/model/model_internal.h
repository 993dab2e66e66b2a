/* worker/model/model_internal.h - what an architecture says about itself.
 *
 * All built architectures are the decoder of struct geometry; they differ in names and in which of
 * its optional parts they have. So an architecture is a row of this table plus its names, and the
 * shapes follow from role and geometry. */
#ifndef WORKER_MODEL_MODEL_INTERNAL_H
#define WORKER_MODEL_MODEL_INTERNAL_H

#include "worker/model/config.h"

struct tensor_name {
    enum tensor_role role;
    const char *name; /* with one %u, the layer, where the role is per layer */
};

struct architecture {
    const char *name; /* in config.json's `architectures` */
    const struct tensor_name *names;
    size_t n_names;
    /* Sets the has_* fields of *g, whose sizes are filled in already. */
    void (*describe)(const struct model_config *c, struct geometry *g);
};

extern const struct architecture architecture_llama;
extern const struct architecture architecture_qwen2;

#endif
