/* worker/engine/sampler.h - a request's sampling parameters in, its tokens' logprobs out.
 *
 * The device samples; this module only translates. A draw depends only on the request's seed, the
 * position, the request's parameters and its own tokens, so the rest of the batch does not change
 * the output. Before min_tokens, EOS and the stop ids are banned by a bias that no logit outweighs;
 * so is a token that would complete a bad word. Allowed tokens are a mask of the step, and so are
 * those of a grammar (constrain.h), from which all that is banned is left out. Thread: engine. */
#ifndef WORKER_ENGINE_SAMPLER_H
#define WORKER_ENGINE_SAMPLER_H

#include "common/base/base.h"
#include "worker/engine/masks.h"
#include "worker/sched/batch.h"

/* Most (token, bias) pairs that one request may need in a step. */
static inline uint32_t sampler_max_bias(uint32_t n_eos) {
    return REQUEST_BIAS_MAX + REQUEST_STOP_IDS_MAX + REQUEST_BAD_WORDS_MAX / 2 + n_eos;
}

/* Completes the outputs of a step that was laid out. The masks that are new are added to `masks`,
 * for masks_compute. */
void sampler_fill(struct batch_step *b, struct masks *masks);

/* Copies the logprobs of a row's outputs to its request, where they are requested, and gives the
 * sampled token (0 for a beam). Before scheduler_take. ST_INTERNAL when the numbers were not
 * finite. */
MUST_USE enum status sampler_take(const struct batch_step *b, const struct batch_row *row,
                                  uint32_t max_logprobs, uint32_t *token);

#endif
