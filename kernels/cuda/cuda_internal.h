/* kernels/cuda/cuda_internal.h - what the files of the CUDA backend share: device, model, step.
 *
 * Memory of a model on its device, all of it taken before the first step:
 *
 *      weights      bf16, one allocation: embedding, layers, last norm, head
 *      turn         cos and sin of every position
 *      panels       of e4m3 weights, and inputs rounded, where the library multiplies those
 *      activations  x, h, y and one place for qkv + mix, gate_up + act
 *      logits       of CUDA_HEAD_ROWS outputs at a time
 *      step         the staged arrays of the step that runs, block tables, histories, outputs
 *      pool         the KV blocks, (n_blocks, n_layers, 2, n_kv_heads, 16, head_dim)
 *
 * and pinned on the host: two slots (the arrays that the engine fills, the same packed for one
 * copy, and the outputs), a small buffer for histories, and the blocks that were swapped out. */
#ifndef KERNELS_CUDA_CUDA_INTERNAL_H
#define KERNELS_CUDA_CUDA_INTERNAL_H

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/device/comm.h"
#include "kernels/cuda/device/gemm.h"
#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/products/product.h"
#include "kernels/cuda/products/quant.h"
#include "kernels/cuda/products/quant_library.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/host/host.h"
#include "kernels/tp/shard.h"

#define CUDA_HEAD_ROWS   256u /* outputs whose logits are held at a time: 131 MB for 128k tokens */
#define CUDA_FENCES      64u  /* that are distinct at a time */
#define CUDA_MAX_BUCKETS 35u  /* 1, 2, 4, 8, 16, 24 ... 256 rows */
#define CUDA_MAX_SPANS   8u   /* 64, 128 ... 512 tokens */
#define CUDA_RING_BYTES  ((uint64_t)1 << 20)
#define CUDA_PATIENCE_US (600ull * 1000 * 1000) /* a device that takes longer is hung */
#define CUDA_MIB(bytes)  ((double)(bytes) / (1024.0 * 1024.0))

extern const struct backend_ops backend_cuda;

/* How ranks sum through each other's memory: peers.c. */
struct cuda_peers {
    bool is_there;        /* every rank reaches all others, and reads what they have written */
    uint8_t *memory;      /* this rank's slots, flags and epochs; what it tries them with, */
    uint8_t *trial;       /* pinned */
    struct error why_not; /* "": they serve, or there is one rank */
    struct sum_args args;
};

struct backend_device {
    struct host_device host; /* first; memory_limit UINT64_MAX: what there is */
    struct gpu *gpu;
    struct gpu_stream *compute, *copy_in, *copy_out;
    struct gpu_event *compute_now; /* where it was when another stream began to wait */
    struct gpu_stream *beside;     /* of `compute`, within a step: */
    struct gpu_event *parted, *joined;
    struct gpu_event *fence[CUDA_FENCES];
    struct comm *comm; /* NULL with one rank; */
    struct cuda_peers peers;
    struct tp_group *group; /* NULL for one rank */
    uint32_t n_devices, tp_rank, tp_size;
    uint64_t bytes; /* taken by its models */
    bool is_watched, is_invariant;
    bool has_own_products; /* instead of cuBLASLt's, of at least one shape: other bits; */
    struct error why_own;  /* "": it has none */
    bool has_f8_products;  /* cuBLASLt's of e4m3 codes, of at least one matrix: other bits */
    double prefill_tokens_per_s, attn_context; /* of the model loaded last; 0 before */
    struct error fault;                        /* what cuda_fault reported last */
};

/* The products of a layer. */
enum cuda_matrix { CUDA_QKV, CUDA_O, CUDA_GATE_UP, CUDA_DOWN, CUDA_MATRICES };

struct cuda_layer {
    uint16_t *attn_norm, *ffn_norm; /* (d) */
    uint16_t *qkv;                  /* (q + 2 kv, d) */
    uint16_t *qkv_bias;             /* (q + 2 kv) or NULL */
    uint16_t *q_norm, *k_norm;      /* (head_dim) or NULL */
    uint16_t *o;                    /* (d, q) */
    uint16_t *o_bias;               /* (d) or NULL */
    uint16_t *gate_up;              /* (2 f, d) gate, then up */
    uint16_t *down;                 /* (d, f) */
    /* of quantised matrices, instead of qkv, o, gate_up, down; codes NULL: plain */
    struct packed_matrix packed[CUDA_MATRICES];
};

/* Two pinned buffers, filled and sent in turn. */
struct cuda_loader {
    uint16_t *buffer[2];
    struct gpu_event *event[2]; /* the buffer's last copy */
    uint64_t n_elements;        /* of a buffer */
    uint32_t turn;
};

/* Pinned bytes for what is small and sent at once: two halves, used in turn. */
struct cuda_ring {
    uint8_t *half[2];
    struct gpu_event *left[2]; /* after the last use of a half */
    uint64_t half_bytes, used;
    uint32_t turn;
};

struct cuda_slot {
    uint8_t *packed;                   /* pinned: what is sent of the engine's arrays */
    void *out;                         /* pinned, (4, max_outputs): as `out` on the device */
    struct gpu_event *started, *ended; /* of its last step */
    bool is_timed;                     /* ended has not been looked at yet */
    double us;                         /* of the last step that was seen to end */
};

/* What a recorded step is padded to: places in the staged arrays and grids depend on nothing
 * else. */
enum cuda_bucket_kind {
    CUDA_EXACT,   /* not padded: launched call by call */
    CUDA_ROWS,    /* so many rows of one token, and as many outputs; the graph has the head */
    CUDA_PROMPTS, /* so many tokens, of few rows of several; the head is launched behind */
    CUDA_MIXED    /* the same, beside rows of one token */
};
struct cuda_bucket {
    enum cuda_bucket_kind kind;
    uint32_t n; /* rows or tokens */
};

/* A step as the device sees it, run at once or recorded. Pointers are of the device, into the
 * packed arrays that were sent. Padding included. */
struct cuda_forward {
    uint32_t n_tokens, n_outputs;
    const int32_t *token;
    const uint32_t *position;
    const int64_t *kv_slot;
    const struct backend_output *output;
    const void *list[2]; /* [0] of layers that see everything, [1] of those with a window */
    struct attend_grid grid[2];
};

/* What stage.c makes of a step: the packed arrays, and what to launch. */
struct cuda_packed {
    uint64_t n_bytes;
    struct cuda_forward forward;
    const struct backend_step *piece; /* (n_pieces) on the device, of head_rows outputs each */
    const struct backend_table_update *update;
    const struct backend_bias *bias;
};

struct backend_model {
    struct host_model host; /* first; its geometry is the whole model's */
    struct backend_device *dev;
    struct geometry g; /* of this rank */
    struct tp_shard shard;
    struct gemm *gemm;
    bool is_deterministic;
    bool has_kind[2]; /* of layers: that see everything, that see a window */
    uint32_t q_width, kv_width, qkv_width;
    uint32_t vocab_stride; /* of logits: the ranks' pieces beside each other */
    uint32_t head_width;   /* columns of this rank's product: its vocabulary in eights */
    uint32_t head_rows;    /* outputs whose logits are held */

    uint16_t *weights; /* all of them */
    uint16_t *embed;   /* (vocab, d) */
    uint16_t *head;    /* (shard.vocab, d); within the embedding when tied */
    uint16_t *final_norm;
    float *turn; /* (max_context, hd / 2, 2) */
    struct cuda_layer *layers;
    struct packed_matrix packed_head; /* instead of `head`, when it is quantised */
    bool has_own_inputs; /* quantised matrices want inputs gathered or rounded: nothing is fused */
    void *quant_scratch; /* for those inputs */
    struct quant_library library; /* of e4m3 matrices; without scratch it serves none */
    uint64_t library_bytes;       /* of its scratch */
    struct cuda_loader loader;

    /* T = max_step_tokens */
    uint32_t n_slices;       /* of K in o and down: cuda_sum_slices */
    float *parts[2];         /* (T, d) sums of two slices, or of one; NULL: there are none */
    uint16_t *x, *h, *y;     /* (T, d) the residual; normalised; what is added next */
    uint16_t *qkv, *mix;     /* (T, q + 2 kv), (T, q) */
    uint16_t *gate_up, *act; /* (T, 2 f), (T, f): in the same place */
    uint16_t *head_x;        /* (head_rows, d) */
    float *logits;           /* (head_rows, vocab_stride) */
    float *logits_part;      /* (head_rows, shard.vocab_stride); NULL with one rank */
    float *logits_parts;     /* (size, head_rows, shard.vocab_stride); several ranks */
    struct attend_planner *planner;
    float *partial, *partial_state; /* of attention */
    uint32_t *ended;                /* counters of its last blocks */
    void *sampling_scratch;

    struct cuda_slot slot[2];
    struct cuda_ring ring;
    uint64_t packed_bytes;    /* at most */
    uint8_t *staged;          /* on the device: the packed arrays of the step that runs */
    uint32_t *mask;           /* (max_masks, ceil(vocab / 32)) */
    uint32_t *table;          /* (max_rows, max_blocks_per_row) */
    uint32_t *history;        /* (max_rows, max_context + 1) */
    struct sampling_row *row; /* (max_rows) */
    int32_t *out;             /* (4, max_outputs): token, logprob, rank, flags */
    int32_t *out_top_token;   /* (max_outputs, max_logprobs) */
    float *out_top_logprob;   /* (max_outputs, max_logprobs) */
    struct gpu_graph *graph[CUDA_MAX_BUCKETS]; /* NULL before kv_alloc */
    uint32_t bucket[CUDA_MAX_BUCKETS], n_buckets;
    struct gpu_graph *span_graph[2][CUDA_MAX_SPANS]; /* [1]: with rows of one token */
    uint32_t span[CUDA_MAX_SPANS], n_spans;          /* tokens */
    bool takes_library[GEMV_MAX_ROWS + 1]; /* of so many rows: measured to be faster than gemv */

    uint8_t *kv;        /* the pool */
    uint8_t *host_pool; /* pinned */
    struct cuda_moves *moves;

    void **owned; /* (n_owned) device and pinned memory, freed by unload */
    uint32_t n_owned, owned_room;
};

/* --- cuda.c */
/* The number of what was put on `s` last. */
MUST_USE enum status cuda_fence(struct backend_device *dev, struct gpu_stream *s,
                                backend_fence *out);
/* Blocks until all streams are done. */
enum status cuda_settle(struct backend_device *dev, struct error *err);

/* Before sums over the ranks are begun and waited for: all ranks have come so far. A device that
 * waits for another in a sum keeps busy, and taking or freeing memory may wait for every device of
 * the process; so the one must not begin while a rank is still at the other. */
MUST_USE enum status cuda_meet(struct backend_device *dev, struct error *err);

/* --- memory.c */
/* Device memory within the limit, and pinned host memory; both freed by unload. */
MUST_USE enum status cuda_take(struct backend_model *m, void *out, uint64_t n_bytes,
                               const char *what, struct error *err);
MUST_USE enum status cuda_take_pinned(struct backend_model *m, void *out, uint64_t n_bytes,
                                      const char *what, struct error *err);
/* Gives back what cuda_take took. */
void cuda_give_back(struct backend_model *m, void *p, uint64_t n_bytes);

/* --- model.c */
enum status cuda_check_model(const struct backend_config *config, const struct geometry *g,
                             const struct backend_limits *limits, uint32_t n_sm, struct error *err);
struct attend_shape cuda_attend_shape(const struct geometry *g, const struct backend_limits *l,
                                      uint32_t n_sm);
enum status cuda_load_begin(struct backend_device *dev, struct backend_model **out,
                            const struct geometry *g, const struct backend_limits *limits,
                            struct error *err);
enum status cuda_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                             struct error *err);
enum status cuda_load_end(struct backend_model *m, struct error *err);
void cuda_unload(struct backend_model *m);
/* Frees the buffers that weights came through. */
void cuda_load_stop(struct backend_model *m);
/* The buffer to fill next; and its copy to dst, of the device. */
MUST_USE enum status cuda_load_buffer(struct backend_model *m, uint16_t **buffer,
                                      struct error *err);
void cuda_load_send(struct backend_model *m, void *dst, uint64_t n_bytes);

/* --- matrix.c: of models with quantised matrices */
/* Would a rank of this geometry take matrices of these formats (NULL: yes, as far as is known)? */
MUST_USE enum status cuda_check_formats(const struct geometry *g,
                                        const struct matrix_format *format, struct error *err);
/* A checked tensor: a quantised one is packed and sent; *is_plain: another, whose matrix now has
 * memory, is for the caller to send. */
MUST_USE enum status cuda_matrix_load(struct backend_model *m, const struct backend_tensor *t,
                                      bool *is_plain, struct error *err);
MUST_USE enum status cuda_matrix_load_end(struct backend_model *m, struct error *err);
bool cuda_give_room(struct backend_model *m); /* what cuBLASLt's products of codes take */
/* What a buffer to load through must hold. */
uint64_t cuda_matrix_buffer_bytes(const struct geometry *g);

/* --- forward.c: the decoder, as launches on `compute` */
void cuda_decode(struct backend_model *m, const struct cuda_forward *f);
/* Logits of outputs [first, first + n) into m->logits. `y` as cuda_decode left it. */
void cuda_head(struct backend_model *m, const struct cuda_forward *f, uint32_t first, uint32_t n);
/* Plans of every product, on the buffers of the step. */
MUST_USE enum status cuda_tune(struct backend_model *m, struct error *err);

/* --- stage.c: the arrays of a step, and how they are packed for one copy */
MUST_USE enum status cuda_stage_init(struct backend_model *m, struct error *err);
/* Packs a checked step into the slot's pinned buffer, padded to the bucket of the graph that shall
 * run it. `step` NULL: nothing but padding. */
void cuda_pack(struct backend_model *m, uint32_t slot, const struct backend_step *step,
               struct cuda_bucket bucket, struct cuda_packed *out);
/* Of outputs [first, first + n): how many biases lie before them, and how many are theirs. */
uint32_t cuda_biases_before(const struct backend_bias *bias, uint32_t n_bias, uint32_t output);

/* --- rows.c */
MUST_USE enum status cuda_rows_init(struct backend_model *m, struct error *err);
void cuda_rows_fini(struct backend_model *m);
enum status cuda_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output);
void cuda_row_free(struct backend_model *m, uint32_t row);
/* Pinned bytes that stay as they are until what is put on `compute` now is done. At most
 * CUDA_RING_BYTES, or what a history takes. NULL when the device is lost. */
void *cuda_borrow(struct backend_model *m, uint64_t n_bytes);

/* --- peers.c: sums over the ranks */
/* All ranks call, once there is `comm`. */
MUST_USE enum status cuda_peers_open(struct backend_device *dev, uint32_t ordinal,
                                     struct error *err);
void cuda_peers_close(struct backend_device *dev);
/* y (n) becomes, at every rank, the sum over the ranks; of one rank it stays. */
void cuda_sum_ranks(struct backend_model *m, uint16_t *y, uint64_t n);
/* How many slices of K this rank has of the products that are summed; 0: they are not sliced. */
uint32_t cuda_sum_slices(const struct backend_model *m);
/* y (n) = the sum over all slices of all ranks, whose pairs are in m->parts. */
void cuda_sum_parts(struct backend_model *m, uint16_t *y, uint64_t n);

/* --- step.c */
MUST_USE enum status cuda_step_init(struct backend_model *m, struct error *err);
void cuda_step_fini(struct backend_model *m);
enum status cuda_submit(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                        backend_fence *out, struct error *err);
double cuda_step_us(struct backend_model *m, uint32_t slot);

/* --- graph.c */
void cuda_graphs_init(struct backend_model *m); /* which buckets there will be */
void cuda_graphs_fini(struct backend_model *m);
/* Records the graphs of all buckets; the pool is there, and no step under way. */
MUST_USE enum status cuda_capture(struct backend_model *m, struct error *err);
/* The graph of the smallest bucket that holds the step, and that bucket; NULL and CUDA_EXACT: none
 * does. */
struct gpu_graph *cuda_graph_of(const struct backend_model *m, uint32_t slot,
                                const struct backend_step *step, struct cuda_bucket *bucket);

/* --- profile.c: the largest step, run once without a pool */
MUST_USE enum status cuda_profile(struct backend_model *m, struct error *err);

/* --- kv.c */
void cuda_kv_fini(struct backend_model *m);
enum status cuda_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                          struct backend_kv_info *out, struct error *err);
enum status cuda_kv_copy(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                         backend_fence *out);
enum status cuda_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                             backend_fence *out);
enum status cuda_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                            backend_fence *out);
enum status cuda_kv_read(struct backend_model *m, uint32_t block, void *dst, uint64_t n_bytes);
enum status cuda_kv_write(struct backend_model *m, uint32_t block, const void *src,
                          uint64_t n_bytes);
/* Makes `compute` wait for the moves that this step must come after, and for no others. */
void cuda_kv_before_step(struct backend_model *m, const struct backend_stage *s,
                         const struct backend_step *step);

/* --- op.c */
enum status cuda_op(struct backend_device *dev, const char *name, const struct backend_tensor *in,
                    uint32_t n_in, struct backend_tensor *out, uint32_t n_out, struct error *err);

static inline bool cuda_has_window(const struct geometry *g, uint32_t layer) {
    return g->layer_kind && g->layer_kind[layer] && g->sliding_window;
}

#endif
