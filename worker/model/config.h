/* worker/model/config.h - config.json and generation_config.json, typed and checked.
 *
 * The two files are read once, every value against a range, and everything that would change the
 * arithmetic and is unsupported is refused by naming key and value. Keys that do not matter to
 * inference are not looked at. Pure, apart from reading the files. */
#ifndef WORKER_MODEL_CONFIG_H
#define WORKER_MODEL_CONFIG_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "kernels/backend.h"
#include "worker/model/rope.h"

#define CONFIG_MAX_EOS    16
#define CONFIG_MAX_LAYERS 1024

struct architecture;

/* Sampling defaults of the model's makers, used where a request is silent. */
struct generation_config {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    double temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};

struct model_config {
    const struct architecture *architecture; /* NULL for the pseudo-model alone */
    char model_type[32];                     /* "llama" */
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab, max_context;
    double rms_eps;
    struct rope_config rope;
    enum dtype dtype; /* torch_dtype */
    bool is_tied, has_qkv_bias, has_o_bias, has_qk_norm;
    uint32_t sliding_window;               /* tokens that a layer of kind 1 sees; 0: none does */
    uint8_t layer_kind[CONFIG_MAX_LAYERS]; /* 0 full, 1 sliding */
    uint32_t n_eos;
    uint32_t eos[CONFIG_MAX_EOS]; /* generation_config.json wins over config.json */
    bool has_bos;
    uint32_t bos;
    struct generation_config generation;
};

/* Parses the texts of the files; `generation` may be STR_NULL. ST_INVALID for a broken file or a
 * value out of range, ST_UNSUPPORTED for one we do not build, with one sentence that names the key,
 * its value and what to do. */
MUST_USE enum status config_parse(struct model_config *out, struct str config,
                                  struct str generation, struct error *err);

/* Sampling defaults that win over those in *g: a JSON object with any of its members. `ignored`
 * gets the first member that is none of them, "" when there is none. */
MUST_USE enum status generation_config_merge(struct generation_config *g, struct str text,
                                             char ignored[64], struct error *err);

#endif
