/* kernels/sample.h - from logits to a token: the one sampler of every backend on the host.
 *
 * The order of work is the one documented at struct backend_output:
 *
 *      raw logits ──▶ logprob, rank, alternatives (of the raw logits)
 *          │
 *      biases; repetition, frequency, presence penalty; mask
 *          │
 *      temperature 0 ──▶ argmax (ties to the smaller id)
 *      temperature   ──▶ top-k ──▶ top-p ──▶ min-p ──▶ draw
 *
 * Tokens are ranked by (logit falling, id rising), a strict order, so a filter keeps the same set
 * however it is computed. Top-p looks at the distribution that top-k left, and keeps the shortest
 * run of it whose mass reaches top_p. The draw walks the kept tokens by rising id with
 * u = rng_at(seed, position) in [0, 1).
 *
 * The result is a function of the arguments alone, to the bit and on every machine: the exponential
 * is ours, nothing is fused, and what is compared with top_p and with u is a sum of integers, each
 * weight in units of 2^-42 of the best token's. So a device that adds in another order chooses the
 * same token. Any thread, with a scratch of its own.
 *
 * LIMITS. A top_p within 1e-7 of a boundary may fall on either side of it (always the same side). A
 * token less likely than 2^-42 of the best is never drawn: together they have less than 2^-24 of
 * its probability in a vocabulary of 2^18. At most 2^20 tokens. */
#ifndef KERNELS_SAMPLE_H
#define KERNELS_SAMPLE_H

#include "kernels/backend.h"

struct sample_scratch; /* working arrays for one vocabulary; one per thread */

struct sample_scratch *sample_scratch_create(uint32_t vocab); /* NULL when memory is refused */
void sample_scratch_destroy(struct sample_scratch *s);        /* NULL is fine */

/* What belongs to one output besides struct backend_output. */
struct sample_input {
    const float *logits; /* (vocab) */
    const struct backend_output *output;
    const uint32_t *history; /* (n_history) prompt first; ids below vocab */
    uint32_t n_prompt, n_history;
    const struct backend_bias *bias; /* (n_bias) those of this output; tokens below vocab */
    uint32_t n_bias;
    const uint32_t *mask; /* (ceil(vocab / 32)) NULL: all allowed */
    uint32_t n_top;       /* length of the two arrays of the result: max_logprobs */
};

struct sample_result {
    int32_t token;
    float logprob;
    uint32_t rank, flags;
    int32_t *top_token; /* (n_top) the first output->n_logprobs are filled, -1 past the end */
    float *top_logprob; /* (n_top) */
};

/* The pointers of *r are the caller's, the rest is filled. Where a logit is a NaN or an infinity,
 * OUT_NOT_FINITE is set and it counts as minus infinity. */
void sample(const struct sample_input *in, struct sample_scratch *s, struct sample_result *r);

#endif
