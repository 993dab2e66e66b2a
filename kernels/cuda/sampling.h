/* kernels/cuda/sampling.h - from logits to tokens on the device: kernels/sample.h for a whole step.
 *
 * The rules are those of kernels/sample.h to the letter: with equal logits the same token, rank,
 * alternatives and flags; log-probabilities agree to 1e-6. The logits never leave the device. What an
 * output gets depends on nothing but its own logits, settings and history: not on its place in the
 * step, nor on who else is in it.
 *
 * Every pass is a grid of (tiles of the vocabulary, outputs); the block of a row that ends last joins
 * what the others found. An output takes part in the passes it needs and no others:
 *
 *      survey      all       maximum, log-sum-exp, argmax; rank of a scored token     level 0
 *      count       adjusted  occurrences of each token in the history                       2
 *      adjust      adjusted  penalties, biases, mask; maximum and argmax again              2
 *      histogram   ranked    tokens and mass by distance from the maximum                   2
 *      gather      ranked    the bins where top-k or top-p end, sorted: the last key kept   2
 *      search      ranked    the same, for rows with too many tokens in those bins          2
 *      draw        drawn     mass of each tile, then the token                           1, 2
 *      rank        the rest  how many raw logits are better; histories grow              1, 2
 *
 * "Adjusted" has penalties, biases or a mask; "ranked" has top-k, top-p or alternatives. Which
 * outputs need what is read on the device, and so are the numbers of outputs and biases: one
 * launch, recorded in a graph, serves any step of up to `n_bucket` outputs of its level or below.
 *
 * LIMITS. Above GATHER tokens in the bin where a filter ends (rows of equal logits) one block looks
 * through the row alone, in fixed passes: exact, but some 0.2 ms slower. */
#ifndef KERNELS_CUDA_SAMPLING_H
#define KERNELS_CUDA_SAMPLING_H

#include "kernels/backend.h"
#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SAMPLING_MAX_VOCAB (1u << 20) /* masses of more could leave 64 bits */

/* What the outputs of a step ask for. A level does all that the levels below it do. */
enum sampling_level {
    SAMPLING_GREEDY,      /* temperature 0 or scored; nothing adjusted, no alternatives: one pass */
    SAMPLING_TEMPERATURE, /* also temperature and min-p: three passes */
    SAMPLING_FULL,        /* everything: eight passes */
    SAMPLING_LEVELS
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

/* Working memory of one step at a time. It must be all zero before the first launch (gpu_fill); each
 * launch leaves it ready for the next. */
uint64_t sampling_scratch_bytes(uint32_t max_outputs, uint32_t vocab);

/* The lowest level that serves these outputs (host memory). */
enum sampling_level sampling_level_of(const struct backend_output *output, uint32_t n_outputs,
                                      uint32_t n_bias);

/* Puts the passes of a level on the stream: samples and scores every output, then appends the
 * sampled tokens to the histories in the order of the outputs. With n_outputs = 0, nothing happens. */
void sampling_launch(struct gpu_stream *stream, const struct sampling_args *args,
                     enum sampling_level level);

#ifdef __cplusplus
}
#endif
#endif
