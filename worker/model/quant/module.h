/* worker/model/quant/module.h - the tensors of one quantised linear layer, and its matrix.
 *
 * What the file has decides how a module is stored; the configuration must agree. Finding binds and
 * checks types and shapes, and reads no weights; loading brings one matrix into the form of struct
 * backend_quant, so that memory for one matrix at a time is enough. Codes that lie in the file as
 * the kernels want them stay there. */
#ifndef WORKER_MODEL_QUANT_MODULE_H
#define WORKER_MODEL_QUANT_MODULE_H

#include "kernels/backend.h"
#include "worker/model/checkpoint/weights.h"
#include "worker/model/quant/config.h"

#define QUANT_MODULE_TENSORS 8

struct quant_module {
    struct quant_scheme scheme;
    uint64_t n, k;                                      /* outputs, inputs */
    const struct safetensor *codes;                     /* weight, weight_packed or qweight */
    const struct safetensor *scale;                     /* each group's */
    const struct safetensor *zero;                      /* NULL: the middle of the codes */
    const struct safetensor *group_of;                  /* g_idx; NULL: inputs are in order */
    const struct safetensor *input_scale;               /* of QUANT_INPUTS_F8_STATIC */
    const struct safetensor *all[QUANT_MODULE_TENSORS]; /* every tensor it accounts for */
    uint32_t n_all;
    enum dtype dtype; /* of the codes on a device */
};

/* Binds `module` ("model.layers.0.mlp.up_proj"), of n outputs and k inputs. *is_quantised is false,
 * and *out untouched, when its weight is plain or missing: the caller binds that. ST_INVALID and
 * ST_UNSUPPORTED name module, tensor and value. */
MUST_USE enum status quant_module_find(struct quant_module *out, bool *is_quantised,
                                       const struct weights *w, const struct quant_config *c,
                                       const char *module, uint64_t n, uint64_t k,
                                       struct error *err);

/* For a backend that is asked before the weights are read. */
struct matrix_format quant_module_format(const struct quant_module *m);

/* Bytes on a device: codes, scales, zeros. */
uint64_t quant_module_bytes(const struct quant_module *m);

/* Inputs between two places where a rank's part may begin: a group of them, or all where they have
 * an order of their own. Reads g_idx alone. */
uint32_t quant_module_input_group(const struct quant_module *m);

/* A loaded matrix; free with quant_matrix_fini. The tensor points into it. */
struct quant_matrix_data {
    struct backend_quant quant;
    void *codes, *scale, *zero, *order; /* NULL: in the file, or none */
    uint64_t n_wrapped;                 /* zeros of a GPTQ file of version 1 that were -1 */
};

/* Reads and checks all of it: ST_INVALID for a NaN among the codes, and for scales that are 0
 * or not finite. Fills dtype, shape, data and quant of *t. */
MUST_USE enum status quant_module_load(const struct quant_module *m, struct quant_matrix_data *data,
                                       struct backend_tensor *t, struct error *err);
void quant_matrix_fini(struct quant_matrix_data *data);

#endif
