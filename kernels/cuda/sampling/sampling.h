/* kernels/cuda/sampling/sampling.h - from logits to tokens on the device: kernels/sample.h for a
 * whole step.
 *
 * The rules are those of kernels/sample.h to the letter: with equal logits the same token, rank,
 * alternatives and flags; log-probabilities agree to 1e-6. The logits never leave the device. What
 * an output gets depends on nothing but its own logits, settings and history: not on its place in
 * the step, nor on who else is in it.
 *
 * Every pass is a grid of (tiles of the vocabulary, outputs); the block of a row that ends last
 * joins what the others found. An output takes part in the passes that it needs:
 *
 *      survey                  maximum, log-sum-exp, argmax; rank of a scored token
 *      count      COUNT        occurrences of each token in the history
 *      adjust     ADJUST       biases, penalties, mask; maximum and argmax again
 *      histogram  FILTER, TOP  tokens and mass by distance from the maximum
 *      gather     FILTER, TOP  the bins where top-k, top-p or the n best end, sorted
 *      search     FILTER, TOP  the same, for rows with too many tokens in those bins
 *      draw       DRAW         mass of each tile, then the token
 *      rank       RANK         how many raw logits are better than the token's
 *
 * The last of survey and rank appends what was sampled to the histories. Greedy and scored outputs
 * need one pass, temperature and min-p three, everything at once eight.
 *
 * A launch puts the passes on the stream that the outputs of a step need together; which output
 * needs which is read on the device, and so are the numbers of outputs and biases. So a launch with
 * more needs than a step has, or with a larger grid, gives the same bits: a graph
 * may be recorded with both at their largest.
 *
 * LIMITS. Above 4,096 tokens in the bins where a filter ends (rows of equal logits) one block looks
 * through the row alone, in fixed passes: exact, but some 0.4 ms slower [estimated]. */
#ifndef KERNELS_CUDA_SAMPLING_SAMPLING_H
#define KERNELS_CUDA_SAMPLING_SAMPLING_H

#include "kernels/backend.h"
#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SAMPLING_MAX_VOCAB (1u << 20) /* masses of more could leave 64 bits */
#define SAMPLING_MAX_TOP   256u       /* alternatives: the limit of max_logprobs */

/* What an output takes part in besides the survey, and the outputs of a step together. */
enum sampling_need {
    SAMPLING_COUNT = 1, /* a penalty looks at the history */
    SAMPLING_ADJUST =
        2,            /* biases, penalties or a mask: the token is not chosen from the raw logits */
    SAMPLING_TOP = 4, /* alternatives */
    SAMPLING_FILTER = 8, /* top-k or top-p */
    SAMPLING_DRAW = 16,  /* a temperature */
    SAMPLING_RANK = 32,  /* the token may not be the best of the raw logits */
    SAMPLING_ALL = 63
};

/* The history of a row, beside its tokens. row_bind writes both; sampling appends. */
struct sampling_row {
    uint32_t n_prompt, n_history; /* n_history counts both kinds */
};

/* All pointers are device memory. */
struct sampling_args {
    uint32_t vocab;
    uint32_t vocab_stride; /* columns of `logits`; those from vocab on are never read */
    uint32_t max_context;
    uint32_t max_logprobs;
    uint32_t max_outputs; /* what the scratch was made for */
    uint32_t
        n_bucket; /* outputs the grids are made for, <= max_outputs; step->n_outputs <= n_bucket */

    const struct backend_step *step; /* as staged; n_outputs and n_bias are read */
    const float *logits; /* (n_bucket, vocab_stride) aligned to 16 bytes, the stride to 4 */
    const struct backend_output *output; /* (n_outputs) as staged; checked by the host */
    const struct backend_bias *bias;     /* (n_bias) sorted by output */
    const uint32_t *mask;                /* (max_masks, ceil(vocab / 32)) */
    uint32_t *history;                   /* (max_rows, max_context + 1) prompt, then outputs */
    struct sampling_row *row;            /* (max_rows) */

    int32_t *out_token;     /* (n_bucket) stays for the embedding of the next step */
    float *out_logprob;     /* (n_bucket) */
    uint32_t *out_rank;     /* (n_bucket) */
    uint32_t *out_flags;    /* (n_bucket) */
    int32_t *out_top_token; /* (n_bucket, max_logprobs) the first n_logprobs are written */
    float *out_top_logprob; /* (n_bucket, max_logprobs) */

    void *scratch; /* sampling_scratch_bytes(max_outputs, vocab) */
};

/* Working memory of one step at a time. It must be all zero before the first launch (gpu_fill);
 * each launch leaves it ready for the next. */
uint64_t sampling_scratch_bytes(uint32_t max_outputs, uint32_t vocab);

/* What these outputs need together (host memory). */
uint32_t sampling_needs(const struct backend_output *output, uint32_t n_outputs, uint32_t n_bias);

/* Puts the passes on the stream that `needs`, a set of enum sampling_need, requires: samples and
 * scores every output, then appends the sampled tokens to the histories in the order of the
 * outputs. With n_outputs = 0, nothing happens. */
void sampling_launch(struct gpu_stream *stream, const struct sampling_args *args, uint32_t needs);

#ifdef __cplusplus
}
#endif
#endif
