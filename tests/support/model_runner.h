/* tests/support/model_runner.h - a model folder, run through a backend without the engine: what it
 * log-probability of each token at each position, to be compared with a reference.
 *
 * A backend returns logprobs and no logits, so every token of the vocabulary is scored at every
 * position asked for: exact, and slow in proportion to the vocabulary. For models of a few hundred
 * tokens.
 *
 * Block 0, the null block, is filled with NaN: who reads it shows. When all layers slide, the
 * entries of the table below the window are made null as the engine makes them. */
#ifndef TESTS_SUPPORT_MODEL_RUNNER_H
#define TESTS_SUPPORT_MODEL_RUNNER_H

#include "kernels/backend.h"
#include "worker/model/model.h"

struct model_runner_config {
    const struct backend_ops *ops;
    const char *path;                   /* instruction path, NULL: the best */
    enum dtype weight_dtype, kv_dtype;  /* how the device keeps them */
    uint32_t block_size, n_step_tokens; /* 0: 16; 0: 24 */
};

struct model_runner {
    struct model_runner_config config;
    struct model *model;
    struct geometry g;
    struct backend_limits limits;
    struct backend_device *dev;
    struct backend_model *loaded;
    struct backend_stage stage;
    uint32_t n_done; /* tokens in the cache */
    bool all_slide;
};

/* `max_tokens`: of the longest sequence that will be run. */
MUST_USE enum status model_runner_open(struct model_runner *r, const char *folder,
                                       const struct model_runner_config *config,
                                       uint32_t max_tokens, struct error *err);
void model_runner_close(struct model_runner *r); /* also after a failed open */

/* Forgets the sequence. */
void model_runner_reset(struct model_runner *r);

/* Appends n tokens. Of the last n_scored of them out gets (n_scored, vocab) logprobs of what
 * follows; n_scored <= n. */
MUST_USE enum status model_runner_score(struct model_runner *r, const uint32_t *tokens, uint32_t n,
                                        uint32_t n_scored, float *out, struct error *err);

/* Appends one token: the likeliest that follows. */
MUST_USE enum status model_runner_next(struct model_runner *r, uint32_t token, uint32_t *next,
                                       struct error *err);

#endif
