/* kernels/cuda/sampling/sampling_internal.h - what the passes of sampling leave for each other.
 *
 * Everything lies in the scratch, one struct sampling_state for an output and one struct
 * sampling_tile for each tile of each output. A pass is one kernel; what its blocks write, the
 * block of the row that ends last reads and joins into the state, and later passes read only that.
 *
 * A *key* is 64 bits: a logit, mapped so that it falls as the key rises, above the token's id.
 * Rising keys are falling ranks, ties included, as rank_key of kernels/sample.c. */
#ifndef KERNELS_CUDA_SAMPLING_SAMPLING_INTERNAL_H
#define KERNELS_CUDA_SAMPLING_SAMPLING_INTERNAL_H

#include "kernels/cuda/sampling/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SAMPLING_THREADS 256u  /* of every block; also the most tiles of a row */
#define SAMPLING_TILE    4096u /* logits of one block in one pass: 16 of each thread, in registers */
#define SAMPLING_BINS    2048u
#define SAMPLING_GATHER  4096u /* keys that one block sorts: 32 KiB of shared memory */
#define SAMPLING_SEGMENTS                                                                          \
    256u /* blocks that make histograms, over all outputs; at most 8 of a row */

/* The two selections of an output: the n best raw logits, and what top-k and top-p keep. */
enum { SAMPLING_OF_TOP, SAMPLING_OF_FILTER, SAMPLING_SELECTIONS };

/* What a block found in its tile. */
struct sampling_tile {
    uint64_t best;   /* lowest key */
    uint64_t mass;   /* draw: of the tokens that the filters keep */
    float sum;       /* survey: of exp(x - best of the tile) */
    uint32_t better; /* survey, rank: logits of a better rank than the token's */
    uint32_t n_bad;  /* NaNs and infinities */
    uint32_t reserved;
};

/* Where a selection ends, in bins of the histogram; bins rise as logits fall. */
struct sampling_select {
    uint64_t mass_before_low; /* of the bins before `low` */
    uint64_t mass_before_k;   /* of the bins before `k_bin` */
    uint64_t mass;            /* of all bins */
    uint32_t low, high;       /* the bins in which the last token of top-p, or of the n best, is */
    uint32_t k_bin;           /* the bin of the last token of top-k, or SAMPLING_BINS */
    uint32_t k_first, k_last; /* indices among the gathered, sorted: first of k_bin; k-th of all */
    uint32_t n_gathered;      /* keys of the bins above, so far */
    uint32_t is_settled;      /* nothing to gather */
    uint32_t ended;           /* blocks of the row that are through; 0 between kernels */
};

struct sampling_state {
    double log_mass; /* of the raw logits */
    float last_kept; /* filters keep logits above this, and equal ones of ids up to last_id */
    uint32_t last_id;
    float raw_max;   /* best raw logit */
    float max;       /* best of what is drawn from */
    float top_scale; /* brings the distances of the n best from the maximum to about 4 */
    uint32_t token, flags, needs;
    uint32_t bias_first, bias_end; /* of this output in the step's list */
    uint32_t ended;                /* blocks of the row that are through; 0 between kernels */
    struct sampling_select select[SAMPLING_SELECTIONS];
};

/* One launch: the caller's arrays and the scratch, laid out. */
struct sampling_pass {
    struct sampling_args a;
    uint32_t n_tiles;    /* of a row */
    uint32_t n_segments; /* of a row in the histograms */
    uint64_t adjusted_stride;
    uint32_t needs; /* of the launch: at least those of its outputs */

    uint32_t *n_finished;         /* rows that are through; 0 between steps */
    struct sampling_state *state; /* (n_bucket) */
    struct sampling_tile *tile;   /* (n_bucket, n_tiles) */
    float *adjusted;              /* (n_bucket, adjusted_stride); counts of tokens until `adjust` */
    uint64_t *bin_mass;           /* (n_bucket, SAMPLING_SELECTIONS, n_segments, SAMPLING_BINS) */
    uint32_t *bin_count;          /* the same */
    uint64_t *gathered; /* (n_bucket, SAMPLING_SELECTIONS, SAMPLING_GATHER) keys in any order */
};

/* Blocks of a grid in the direction of selections. */
static inline uint32_t n_selections(const struct sampling_pass *p) {
    return (p->needs & SAMPLING_FILTER) && (p->needs & SAMPLING_TOP) ? SAMPLING_SELECTIONS : 1;
}

/* Lays the arrays out in the scratch, or in none (NULL), and returns its size. */
uint64_t sampling_lay_out(struct sampling_pass *p, uint32_t max_outputs, uint32_t vocab,
                          void *scratch);

/* The passes, in their order; sampling.h describes each. */
void sampling_survey(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_count(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_adjust(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_histogram(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_gather(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_search(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_draw(struct gpu_stream *stream, const struct sampling_pass *p);
void sampling_rank(struct gpu_stream *stream, const struct sampling_pass *p);

#ifdef __cplusplus
}
#endif
#endif
