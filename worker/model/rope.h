/* worker/model/rope.h - rotary positions: settings of config.json, and the table of frequencies.
 *
 * A backend rotates the pair (i, i + head_dim / 2) of a head at position p by the angle p *
 * inv_freq[i], and multiplies cos and sin by one factor. Each scaling computes these head_dim / 2
 * numbers and the factor once, at load; backends see only the result.
 *
 * Both spellings are read: `rope_scaling` beside a `rope_theta`, its kind under `rope_type` or
 * `type`; and `rope_parameters` with everything inside. Pure. */
#ifndef WORKER_MODEL_ROPE_H
#define WORKER_MODEL_ROPE_H

#include "common/base/base.h"
#include "common/base/status.h"

struct json;

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_config {
    enum rope_type type;
    double theta;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_context;                  /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    bool is_exact;                            /* yarn: correction dimensions are not rounded */
    double attention_factor;                  /* yarn; always set */
};

/* Reads the settings out of a whole config.json. *max_context comes in as
 * max_position_embeddings, and goes out longer when the scaling stretches it. ST_INVALID for a
 * value out of range, ST_UNSUPPORTED, naming key and value, for a scaling that is unsupported. */
MUST_USE enum status rope_read(struct rope_config *out, const struct json *config,
                               uint32_t *max_context, struct error *err);

/* inv_freq[head_dim / 2], and the factor on cos and sin. */
void rope_table(const struct rope_config *r, uint32_t head_dim, float *inv_freq, float *scale);

#endif
