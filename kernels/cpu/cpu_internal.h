/* kernels/cpu/cpu_internal.h - what the files of the CPU backend share: device and model.
 *
 * Widths are padded to multiples of 64 and the padding holds zeros, so that no loop has a tail.
 * Activations keep ROW_PAD more between rows: widths are often powers of two, and the rows of a
 * tile would then fall into one set of the cache. */
#ifndef KERNELS_CPU_CPU_INTERNAL_H
#define KERNELS_CPU_CPU_INTERNAL_H

#include "kernels/cpu/pack.h"
#include "kernels/cpu/path.h"
#include "kernels/cpu/pool.h"
#include "kernels/host/host.h"
#include "kernels/tp/sum.h"

#define ROW_BLOCK    240u /* rows of a chunk of a matrix product: with a block of K they fit the L2 */
#define HEAD_ROWS    64u /* outputs whose logits are held at a time */
#define ROW_PAD      32u /* acts */
#define CHUNK_PANELS 4u  /* of a matrix product, at most: they share what is read of the rows */

struct backend_device {
    struct host_device host;     /* first */
    const struct cpu_path *path; /* as chosen; a model may compute with its exact one */
    const struct cpu_path *used; /* by the model loaded last */
    struct cpu_pool *pool;
    double prefill_tokens_per_s, attn_context; /* of the model loaded last; 0 before */
};

/* The weights of one product: one tensor, q, k and v one behind the other, or gate and up with
 * their panels in turns. They are one matrix when all are quantised alike, or as little, else each
 * is its own. */
#define CPU_PARTS 3u
struct cpu_weights {
    struct cpu_matrix all;            /* w is NULL when the tensors are kept apart */
    struct cpu_matrix own[CPU_PARTS]; /* then each of them; else w is NULL */
    uint32_t first_panel[CPU_PARTS];  /* of each tensor */
    uint32_t n_parts;
    uint32_t taken; /* while loading: 1 << each part that is in `all` */
    bool is_alternating;
};

struct cpu_layer {
    struct cpu_weights qkv, o, gate_up, down;
    float *attn_norm, *ffn_norm; /* (d_width) */
    float *qkv_bias, *o_bias;    /* (qkv_width), (d_width); NULL when there is none */
    float *q_norm, *k_norm;      /* (head_dim) or NULL */
};

struct attend_tile {
    uint32_t row;         /* index of its block table */
    uint32_t first_token; /* in the step */
    uint32_t n_queries;
};

struct cpu_worker {
    float *y;     /* (ROW_BLOCK, CHUNK_PANELS * PANEL) results before they go where they belong */
    void *attend; /* attend_scratch_bytes */
    void *quant;  /* QUANT_SCRATCH; NULL where no weights are quantised */
    struct sample_scratch *sample;
};

struct backend_model {
    struct host_model host; /* first */
    struct backend_device *dev;
    const struct cpu_path *path; /* the device's, or the exact one where the weights want it */
    uint32_t d_width, qkv_width, ff_width, vocab_width;
    uint32_t k_at, v_at;                    /* in a row of qkv: panels begin with a tensor */
    size_t h_stride, mix_stride, ff_stride; /* acts from row to row */
    char *weights;                          /* all matrices, in one piece; NULL where some are
                                             * quantised: each is a piece of its own */
    struct cpu_weights head;                /* the embedding when tied; else this rank's part */
    struct cpu_weights head_part;           /* this rank's part: the panels it multiplies with */
    void *
        embed; /* (vocab, d_model) as the matrices; NULL when tied: rows are read from the panels */
    float *final_norm;
    struct cpu_layer *layers;

    /* T = max_step_tokens */
    float *x;                      /* (T, d_width) the residual stream */
    float *qkv;                    /* (T, qkv_width) */
    float *cos, *sin;              /* (T, head_dim / 2) */
    void *h;                       /* act (T, h_stride) normalised */
    void *mix;                     /* act (T, mix_stride) result of attention */
    void *ff;                      /* act (T, ff_stride) */
    float *logits;                 /* (HEAD_ROWS, vocab_width); rank 0's, each writes its tokens' */
    float *sums[2];                /* (T, d_width) of rank 0; one rank has none */
    struct tp_sum sum;             /* o and down over the ranks */
    void *head_x;                  /* act (HEAD_ROWS, h_stride) */
    char *prepared[CPU_PARTS + 1]; /* (T, ...) inputs as `all` and `own` of a product want them */
    struct attend_tile *tiles;     /* (T) */
    struct cpu_worker *workers;    /* (n_threads) */
};

/* Runs a checked step; all results are in the slot when it returns. ST_CLOSED when another rank has
 * failed. */
MUST_USE enum status cpu_forward(struct backend_model *m, uint32_t slot,
                                 const struct backend_step *step);

MUST_USE enum status cpu_run_op(struct backend_device *dev, const char *name,
                                const struct backend_tensor *in, uint32_t n_in,
                                struct backend_tensor *out, uint32_t n_out, struct error *err);

/* Prepares n_rows rows of inputs where a matrix is quantised, for cpu_multiply. */
void cpu_prepare_inputs(struct backend_model *m, const struct cpu_weights *w, const void *x,
                        size_t x_stride, uint32_t n_rows);
/* Rows [r, r + n_rows) times panels [p, p + n_panels) of the weights, at most QUANT_PANELS and
 * QUANT_ROWS of them, as cpu_gemm_fn. */
void cpu_multiply(const struct backend_model *m, const struct cpu_weights *w, uint32_t p,
                  uint32_t n_panels, const void *x, size_t x_stride, uint32_t r, uint32_t n_rows,
                  float *y, size_t y_stride, bool continues, uint32_t worker);

/* Turns the pairs (i, i + hd/2) of one head. */
void cpu_rope_head(float *x, const float *cos, const float *sin, uint32_t head_dim);

#endif
