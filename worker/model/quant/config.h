/* worker/model/quant/config.h - quantization_config: which modules of a checkpoint are quantised,
 * and how.
 *
 * Read are the methods of the table `methods` in config.c, each with the kinds of it that the
 * kernels can compute; others are refused by name. A module is asked for by its name in the
 * checkpoint, "model.layers.3.mlp.up_proj". Lists of exceptions follow the rules of their writers;
 * some leave a module open: then what the file has decides (module.h). */
#ifndef WORKER_MODEL_QUANT_CONFIG_H
#define WORKER_MODEL_QUANT_CONFIG_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "kernels/backend.h"

struct quant_config;

/* How the tensors of a module are laid out. */
enum quant_form {
    QUANT_FORM_F8,     /* weight F8_E4M3, weight_scale or weight_scale_inv */
    QUANT_FORM_I8,     /* weight I8, weight_scale */
    QUANT_FORM_PACKED, /* weight_packed, weight_scale (compressed-tensors) */
    QUANT_FORM_AWQ,    /* qweight, qzeros, scales */
    QUANT_FORM_GPTQ    /* qweight, qzeros, scales, g_idx */
};

struct quant_scheme {
    enum quant_form form;
    uint32_t bits;       /* 4 or 8 */
    uint32_t group_size; /* inputs that share a scale; 0: all of a row */
    uint32_t block_n,
        block_k;       /* of FORM_F8 with a scale for each block; 0: for rows or one in all */
    bool is_symmetric; /* the file may leave out zeros */
    bool is_v1;        /* FORM_GPTQ: zeros are stored minus one */
    enum quant_inputs inputs;
};

enum quant_want {
    QUANT_WANT_PLAIN,
    QUANT_WANT_SCHEME,
    QUANT_WANT_EITHER /* the configuration leaves it open: scheme, if it is quantised */
};

/* Of the texts of config.json and hf_quant_config.json, the latter STR_NULL where there is none.
 * *out is NULL for a model that is not quantised. ST_UNSUPPORTED names what is not read. */
MUST_USE enum status quant_config_parse(struct quant_config **out, struct str config,
                                        struct str hf_quant_config, struct error *err);
void quant_config_free(struct quant_config *c); /* NULL is fine */

const char *quant_config_method(const struct quant_config *c); /* "awq"; NULL of NULL */

/* Of a linear layer. `c` may be NULL: plain. */
MUST_USE enum status quant_config_find(const struct quant_config *c, const char *module,
                                       enum quant_want *want, struct quant_scheme *scheme,
                                       struct error *err);

#endif
