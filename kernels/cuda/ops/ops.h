/* kernels/cuda/ops/ops.h - the operators of a decoder step that are neither products by cuBLASLt,
 * nor attention, nor sampling.
 *
 * Each is one launch: a struct of arguments, whose pointers are device memory, and a function that
 * puts the kernel on a stream. All can be captured into a graph; none allocates, waits or fails.
 * Shapes stand beside the pointers, last dimension fastest; T is the number of tokens of the step,
 * and 0 of anything launches nothing. bf16 is uint16_t here.
 *
 * What all ask: pointers are multiples of 16 bytes, d and f and k are multiples of 8 (every access
 * is of 16 bytes), and no two pointers of one call overlap unless its comment allows it.
 *
 * What all promise: sums are fp32 and taken in an order that depends on the shape of a row and of
 * the weights alone, so a row's result is the same bits whatever the other rows are and however
 * many (for products: among one to four of them, and among five to sixteen). */
#ifndef KERNELS_CUDA_OPS_OPS_H
#define KERNELS_CUDA_OPS_OPS_H

#include "kernels/backend.h"
#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPS_MAX_WIDTH  16384u /* of a row that is normalised */
#define OPS_BLOCK_SIZE 16u    /* tokens of a KV block */

/* --- embed.cu: x[t] = table[id[t]] */
struct embed_args {
    const uint16_t *table;   /* (vocab, d) */
    const int32_t *token;    /* (T) an id, or -1 - k: output k of the step before */
    const int32_t *previous; /* (n_previous) what that step put out */
    int32_t *id;             /* (T) the tokens so resolved; NULL: not wanted */
    uint16_t *x;             /* (T, d) */
    uint32_t n_tokens, d, vocab, n_previous;
};

/* A token or a reference that names nothing becomes id -1 and a row of zeros. */
void ops_embed(struct gpu_stream *s, const struct embed_args *a);

/* --- norm.cu: the residual stream and its norm
 *
 *      x += y + bias                     rounded to bf16 and stored
 *      h  = x / sqrt(mean(x^2) + eps) * weight       of what was stored
 *
 * With `row`, h[i] is the norm of row row[i * row_stride] of x + y + bias, and x is not written:
 * the last norm, of the tokens that have an output. The stride lets it read the token_index of an
 * array of struct backend_output. A row may be listed twice. */
struct norm_args {
    uint16_t *x;            /* (T, d) */
    const uint16_t *y;      /* (T, d) or NULL: nothing is added, x is not written */
    const uint16_t *bias;   /* (d) or NULL; only with y */
    const uint16_t *weight; /* (d) */
    uint16_t *h;            /* (n, d); n = T without `row` */
    const uint32_t *row;    /* (n, row_stride), its first column; or NULL */
    uint32_t row_stride;    /* in uint32_t */
    uint32_t n, d;          /* d <= OPS_MAX_WIDTH */
    float eps;
};

void ops_norm(struct gpu_stream *s, const struct norm_args *a);

/* --- rope.cu: from the QKV product to what attention reads
 *
 * For each token: bias; norm of each head of Q and K; rotation of their pairs (i, i + hd/2); Q back
 * in place; K and V into the pool at kv_slot. The K and V in qkv are left as they were.
 *
 * A block of the pool is as in kernels/kv_layout.h, of OPS_BLOCK_SIZE tokens, and slot = block *
 * OPS_BLOCK_SIZE + offset. A quantised pool gets what kernels/kv_quant.h defines. */
struct rope_args {
    uint16_t *qkv;            /* (T, n_heads + 2 * n_kv_heads, hd) */
    const uint16_t *bias;     /* (n_heads + 2 * n_kv_heads, hd); NULL: none, or the product's */
    const uint16_t *q_norm;   /* (hd) or NULL */
    const uint16_t *k_norm;   /* (hd) or NULL */
    const uint32_t *position; /* (T) below max_context */
    const int64_t *kv_slot;   /* (T) -1: K and V go nowhere */
    const float *turn;    /* (max_context, hd / 2, 2) cos and sin of position * inv_freq[i], both
                               * times rope_scale, computed in fp32 as kernels/ref does */
    void *kv;             /* the pool */
    int64_t block_stride; /* bytes from block to block, a multiple of 16 */
    uint32_t scales_at;   /* bytes from a block's first to this layer's first scale; if quantised */
    enum dtype kv_dtype;  /* bf16, e4m3 or int8 */
    uint32_t layer, n_tokens, n_heads, n_kv_heads;
    uint32_t hd; /* ops_has_head_dim() */
    float eps;   /* of the norms */
};

bool ops_has_head_dim(uint32_t hd); /* 64, 96, 128, 256 */
void ops_rope(struct gpu_stream *s, const struct rope_args *a);

/* --- swiglu.cu: act = gate / (1 + exp(-gate)) * up */
struct swiglu_args {
    const uint16_t *gate_up; /* (T, 2 * f) gate, then up */
    uint16_t *act;           /* (T, f) */
    uint32_t n_tokens, f;
};

void ops_swiglu(struct gpu_stream *s, const struct swiglu_args *a);

/* --- gemv.cu, gemv_tiles.cu: products of few rows, at the speed of reading W once
 *
 *      y (m, n) = norm(x) (m, k) W (n, k)^T [+ bias] [+ y]
 *
 * Arguments are those of struct gemm_args, and two fusions more. With `norm_weight`, x is the
 * residual and its RMSNorm is taken on the way, so that no ops_norm is needed before it: x times
 * weight is rounded to bf16 of more than two rows, else never; the scale is not. With `is_swiglu`,
 * W is (2 * n, k), gate rows and then up rows, and y (m, n) = silu(gate) * up; y is bf16, without
 * bias or accumulation.
 *
 * A layer of the smallest steps is then gemv(norm) qkv, rope, attention, gemv(+=) o, gemv(norm,
 * swiglu), gemv(+=) down; with x (T, d) as y of the two that accumulate. */
#define GEMV_MAX_ROWS 16u

struct gemv_args {
    const uint16_t *x;           /* (m, x_stride) */
    const uint16_t *w;           /* (n, k), or (2 * n, k) */
    const uint16_t *bias;        /* (n) or NULL */
    const uint16_t *norm_weight; /* (k) or NULL: x is taken as it is */
    void *y;                     /* (m, y_stride) bf16 or fp32; not x */
    uint32_t m;                  /* 1..GEMV_MAX_ROWS */
    uint32_t n, k;               /* any n; k a multiple of 8 */
    uint32_t x_stride, y_stride; /* elements; x_stride a multiple of 8 */
    float eps;                   /* of the norm */
    bool is_f32_out, accumulates, is_swiglu;
};

void ops_gemv(struct gpu_stream *s, const struct gemv_args *a);

/* --- sum.cu: y (n) bf16 = the sum over the ranks of their x (n), bf16 or fp32, in one launch on
 * each rank, through memory that all can read. In fp32, by pairs of neighbours (two ranks: r0 + r1;
 * four: (r0 + r1) + (r2 + r3)), rounded once: every rank gets the same bits.
 *
 * All ranks launch with the same n in the same order; it can be captured into a graph. Slots,
 * flags and epochs are zero before the first sum, and touched by nothing else. */
#define OPS_SUM_BLOCKS     128u
#define OPS_SUM_PIECE      2048u                            /* elements of a block */
#define OPS_SUM_MOST       (OPS_SUM_BLOCKS * OPS_SUM_PIECE) /* elements: 512 KiB of bf16 */
#define OPS_SUM_SLOT_BYTES ((size_t)OPS_SUM_MOST * 4)
#define OPS_SUM_RANKS      8u

struct sum_args {
    void *slots[OPS_SUM_RANKS];    /* of each rank, 2 * OPS_SUM_SLOT_BYTES */
    uint32_t *flag[OPS_SUM_RANKS]; /* of each rank (size, OPS_SUM_BLOCKS), set by the others */
    uint32_t *epoch;               /* own (OPS_SUM_BLOCKS) */
    const void *x;                 /* (n) at a multiple of 16 bytes */
    uint16_t *y;                   /* (n) the same; may be x */
    uint64_t timeout_ns;           /* for a rank that does not come; then the device fails, */
    uint32_t *late;                /* or without y is done, and *late is 1; NULL: it fails */
    uint32_t n;                    /* at most OPS_SUM_MOST */
    uint32_t rank, size;           /* ops_can_sum(size) */
    bool is_f32;
};

/* The same of two parts of one rank, fp32: y (n) = part[0] (n) + part[1] (n). */
struct sum_parts_args {
    const float *part[2]; /* at multiples of 16 bytes */
    uint16_t *y;
    uint64_t n; /* a multiple of 8 */
};

void ops_sum_parts(struct gpu_stream *s, const struct sum_parts_args *a);

bool ops_can_sum(uint32_t size); /* 2, 4, 8 */
void ops_sum(struct gpu_stream *s, const struct sum_args *a);

/* --- blocks.cu */

/* Whole blocks within the pool, one launch for all pairs, in no order: no block may be the dst of
 * two pairs, nor the dst of one and the src of another. Who has such pairs splits the list there,
 * into launches on one stream. */
struct copy_blocks_args {
    void *kv;                         /* (n_blocks, block_bytes) */
    const struct backend_copy *pairs; /* (n_pairs) */
    uint64_t block_bytes;             /* a multiple of 16 */
    uint32_t n_pairs;
};

void ops_copy_blocks(struct gpu_stream *s, const struct copy_blocks_args *a);

/* --- edges.cu */

/* to = from, and table[row][index] = block for each update, in no order: no (row, index) twice in
 * one call. `from` and `update` are pinned memory of the host, which stays as it is until this is
 * done. */
struct stage_args {
    const void *from; /* (n_bytes) at a multiple of 16 */
    void *to;
    uint64_t n_bytes;                          /* a multiple of 16 */
    uint32_t *table;                           /* (max_rows, table_stride) */
    const struct backend_table_update *update; /* (n_updates) */
    uint32_t n_updates, table_stride;
};

void ops_stage(struct gpu_stream *s, const struct stage_args *a);

/* Up to six arrays of 32-bit numbers to pinned memory of the host. */
struct fetch_piece {
    const uint32_t *from;
    uint32_t *to;
    uint32_t n;
};
struct fetch_args {
    struct fetch_piece piece[6];
    uint32_t n_pieces;
};

void ops_fetch(struct gpu_stream *s, const struct fetch_args *a);

#ifdef __cplusplus
}
#endif
#endif
