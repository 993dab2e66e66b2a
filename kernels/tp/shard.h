/* kernels/tp/shard.h - which part of a model one tensor-parallel rank holds.
 *
 * Megatron's split (Shoeybi et al., 2019). A matrix is (outputs, inputs), y = x W^T + b:
 *
 *      q k v gate up, biases of q k v           by outputs: a rank's heads, its part of d_ff
 *      o down                                   by inputs: the same; their products are summed
 *      head (the embedding when tied)           by outputs: a rank's part of the vocabulary
 *      norms, embedding, bias of o              whole on every rank; the bias is added once, after
 *                                               the sum
 *
 * So a layer needs two sums over the ranks and a step one gather of logits. Query heads go to ranks
 * in order, and KV heads with them; with fewer KV heads than ranks, size / n_kv_heads neighbours
 * hold the same one. The vocabulary goes in equal pieces of a multiple of 64, which the last rank
 * need not fill.
 *
 * Pure: cpu, ref and cuda load by it, and tp.c takes KV blocks apart by it. */
#ifndef KERNELS_TP_SHARD_H
#define KERNELS_TP_SHARD_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TP_VOCAB_UNIT 64u /* tokens: a panel of the CPU, a tile of a GPU's product */

/* Counts are this rank's; `first_` are indices in the whole model. */
struct tp_shard {
    uint32_t rank, size, head_dim;
    uint32_t n_heads, first_head;
    uint32_t n_kv_heads, first_kv_head;
    uint32_t kv_copies; /* ranks that hold the same KV heads; 1 unless n_kv_heads < size */
    uint32_t d_ff, first_ff;
    uint32_t vocab, first_token; /* of the head */
    uint32_t vocab_stride;       /* every rank's piece with its padding: first_token = rank *
                                  * vocab_stride, vocab <= vocab_stride */
};

/* Size 0 means 1. ST_UNSUPPORTED with a sentence that names the numbers when they do not divide. */
MUST_USE enum status tp_shard_init(struct tp_shard *out, const struct geometry *whole,
                                   uint32_t rank, uint32_t size, struct error *err);

/* The geometry that a rank computes with: heads, KV heads and d_ff are its own, all else is the
 * whole model's, the vocabulary too: tokens are ids of the whole. Pointers are the whole's. */
struct geometry tp_shard_geometry(const struct tp_shard *s, const struct geometry *whole);

/* A part of a tensor: n rows from `first` on, and of each row n_columns from first_column on. A
 * vector has one column. */
struct tp_slice {
    uint64_t first, n, first_column, n_columns;
};

/* What the rank takes of a tensor whose shape has been found to be the whole geometry's. */
struct tp_slice tp_shard_slice(const struct tp_shard *s, const struct backend_tensor *whole);

/* The slice as a tensor of its own, `quant` left as it is: kernels/host cuts that. DTYPE_U4 is cut
 * at even columns. Where it is whole rows its data points into `whole` and nothing
 * is copied; otherwise (o and down) into `scratch`, of n_bytes, which is filled. With `scratch`
 * NULL the data of such a slice is NULL: ask so for n_bytes first. */
struct backend_tensor tp_slice_take(const struct tp_slice *slice,
                                    const struct backend_tensor *whole, void *scratch);

#ifdef __cplusplus
}
#endif
#endif
