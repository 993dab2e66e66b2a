/* kernels/backend.h - the narrow door between the engine and a device.
 *
 * The engine decides what runs; a backend computes it. Nothing else crosses this line: no request,
 * no prompt text, no scheduling. A backend is one table of functions (struct backend_ops). `ref`
 * defines every result in plain loops, `cpu` is fast, `sim` only pretends to take time, and `cuda`
 * is a loadable object that exports `incipit_backend`. One ABI number, equal or refused.
 *
 * Order of calls: probe, open, load_begin, load_tensor for every weight, load_end, kv_alloc; then
 * steps; then unload, close. A step is four moves, so that a device can run it while the engine
 * prepares the next:
 *
 *      stage(slot)   the arrays of this slot, filled in place by the engine
 *      submit(slot)  the device may start; asks for masks that are late; returns a fence
 *      poll / wait   the fence is done, the slot's out_* arrays hold the results
 *
 * A *row* is a place for a running sequence: its block table and its token history live in the
 * backend under the row's number, from row_bind to row_free. A step lists rows with new tokens; the
 * backend writes the K and V of those tokens into the paged pool at `kv_slot` = block * block_size
 * + offset, and every query reads K and V from the pool only, through the row's block table.
 *
 * Identity: a backend with BACKEND_INVARIANT gives, for one instruction path, bit-identical
 * outputs for a position whatever else is in the step, however the prompt was chunked, and however
 * many threads there are.
 *
 * Threads: all calls on one device come from one thread (the engine's); event_fd may be watched by
 * another. Nothing allocates between kv_alloc and unload. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "common/base/base.h"
#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BACKEND_ABI 8u
/* Raised by who changes a bit that any backend computes: KV of before is not restored. */
#define BACKEND_NUMERICS 1u

struct backend_device; /* one device, or one pool of CPU threads */
struct backend_model;  /* weights, KV pool and rows on one device */
struct tp_group;       /* kernels/tp/group.h */
struct backend_ops;

/* DTYPE_U4: two codes of 0 to 15 in a byte, the even element in the low half; rows begin at
 * bytes. */
enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8E4M3,
    DTYPE_I8,
    DTYPE_U4,
    DTYPE_I32,
    DTYPE_COUNT
};

/* What a weight is for; worker/model maps checkpoint names to these. Shapes are row-major, outputs
 * first, as checkpoints store them: y = x W^T + b. */
enum tensor_role {
    ROLE_EMBED,      /* (vocab, d_model) */
    ROLE_FINAL_NORM, /* (d_model) */
    ROLE_LM_HEAD,    /* (vocab, d_model); absent when tied to ROLE_EMBED */
    ROLE_ATTN_NORM,  /* (d_model); this and all below once per layer */
    ROLE_Q,          /* (n_heads * head_dim, d_model) */
    ROLE_K,          /* (n_kv_heads * head_dim, d_model) */
    ROLE_V,          /* (n_kv_heads * head_dim, d_model) */
    ROLE_O,          /* (d_model, n_heads * head_dim) */
    ROLE_Q_BIAS,     /* (n_heads * head_dim) */
    ROLE_K_BIAS,     /* (n_kv_heads * head_dim) */
    ROLE_V_BIAS,     /* (n_kv_heads * head_dim) */
    ROLE_O_BIAS,     /* (d_model) */
    ROLE_Q_NORM,     /* (head_dim) */
    ROLE_K_NORM,     /* (head_dim) */
    ROLE_FFN_NORM,   /* (d_model) */
    ROLE_GATE,       /* (d_ff, d_model) */
    ROLE_UP,         /* (d_ff, d_model) */
    ROLE_DOWN,       /* (d_model, d_ff) */
    ROLE_COUNT
};

/* What becomes of the inputs of a quantised product. The rule is the checkpoint's, and the same for
 * every number of rows: else the bits of a token would depend on its batch. */
enum quant_inputs {
    QUANT_INPUTS_PLAIN,     /* as they are: W4A16, W8A16 */
    QUANT_INPUTS_I8,        /* int8 for each token: scale max|x| / 127 */
    QUANT_INPUTS_F8,        /* e4m3 for each token: scale max|x| / 448 */
    QUANT_INPUTS_F8_GROUPS, /* e4m3 for each token and 128 inputs */
    QUANT_INPUTS_F8_STATIC  /* e4m3 by `input_scale` */
};

/* How the codes of a (N, K) matrix become weights: (code - zero) * scale, one scale for group_n
 * outputs and group_k inputs. worker/model brings every checkpoint format into this form without
 * rounding; codes and scales stay what the checkpoint has. */
struct backend_quant {
    enum quant_inputs inputs;
    uint32_t group_n, group_k; /* the last group of a row or column may be shorter */
    const float *scale;  /* (ceil(N / group_n), ceil(K / group_k)) finite, not 0; of either sign */
    const int16_t *zero; /* (N, ceil(K / group_k)); NULL: 8 of DTYPE_U4, 0 of the others */
    const uint32_t *order; /* (K) column i multiplies input order[i]; NULL: input i */
    float input_scale;     /* of QUANT_INPUTS_F8_STATIC */
};

struct backend_tensor {
    enum tensor_role role; /* ignored by op */
    uint32_t layer;        /* 0 for the first three roles */
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[4];
    void *data; /* load_tensor only reads it, and only during the call: it may be a mapped file */
    uint64_t n_bytes;
    const struct backend_quant *quant; /* of DTYPE_F8E4M3, DTYPE_I8, DTYPE_U4 matrices; else NULL */
};

/* What is known of a matrix before its weights are read. */
struct matrix_format {
    enum dtype dtype; /* of codes */
    enum quant_inputs inputs;
    uint32_t group_k; /* as struct backend_quant has it; 0: the matrix is plain */
};

/* The shape of a decoder: embed, n_layers x (norm, attention, norm, SwiGLU), norm, head. */
struct geometry {
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab;
    uint32_t max_context; /* longest sequence, prompt and output together */
    float rms_eps;
    const float *inv_freq;   /* (head_dim / 2), computed by the engine from the RoPE settings;
                                * rotates half-split pairs (i, i + head_dim/2). Copied. */
    float rope_scale;        /* multiplies cos and sin (YaRN); 1 otherwise */
    enum dtype weight_dtype; /* how the device keeps matrices: f32, f16 or bf16; what comes in
                              * another type is converted, rounded where that is narrower;
                              * quantised matrices stay as they are */
    enum dtype kv_dtype;     /* how the pool keeps K and V: f32, f16, bf16, or e4m3 or int8 with
                              * scales (kernels/kv_layout.h) */
    uint32_t quant_types;    /* of its quantised matrices: 1 << DTYPE_F8E4M3, DTYPE_I8, DTYPE_U4 */
    uint32_t o_group, down_group; /* ranks may cut the inputs of its quantised o and down matrices
                                   * at multiples of these; 0: anywhere; all inputs: nowhere, for
                                   * they have an order */
    const struct matrix_format *format; /* (n_layers, ROLE_COUNT), a head's in layer 0; read during
                                         * the call only. NULL: known when tensors come */
    bool has_qkv_bias, has_o_bias, has_qk_norm, is_tied;
    uint32_t sliding_window;   /* tokens a layer of that kind sees; 0: none does */
    const uint8_t *layer_kind; /* (n_layers) 0 full, 1 sliding; NULL: all full. Copied. */
};

/* Fixed at load; every buffer and graph is sized by them once. */
struct backend_limits {
    uint32_t max_rows;           /* sequences resident at once */
    uint32_t max_step_tokens;    /* token budget of one step */
    uint32_t max_blocks_per_row; /* length of a block table */
    uint32_t max_outputs;        /* positions sampled or scored in one step */
    uint32_t max_logprobs;       /* alternatives per output, 0..256 */
    uint32_t n_slots;            /* steps in flight: 1 or 2 */
    uint32_t block_size;         /* tokens per KV block; a backend refuses those it lacks */
    uint32_t max_bias;           /* (token, bias) pairs in one step */
    uint32_t max_masks;          /* grammar masks in one step */
    bool is_deterministic;       /* fixed plans whatever the batch (backends that have a choice) */
};

/* How to open a device. Zero means "choose". */
struct backend_config {
    uint32_t ordinal;          /* which GPU */
    uint32_t n_threads;        /* CPU threads, the caller's included */
    const char *path;          /* instruction path to force ("avx512bf16", "avx512", "avx2", "neon",
                              * "plain"), NULL or "auto" for the best one here */
    uint64_t memory_bytes;     /* most it may allocate for weights and KV */
    double sim_speed;          /* sim: simulated seconds per real second; 0 means 1 */
    const char *sim_profile;   /* sim: name of a fitted latency model, NULL for the default */
    const char *device_id;     /* GPU by UUID, or the beginning of one; NULL: by ordinal */
    uint32_t tp_rank, tp_size; /* one rank of a tensor-parallel model; size 0 or 1: all of it */
    struct tp_group *group;    /* the ranks; NULL when there is one */
    const struct backend_ops *ranks; /* tp: the backend of each rank */
};

#define BACKEND_INVARIANT 1u /* outputs do not depend on batch, chunking or threads */
#define BACKEND_SYNTHETIC 2u /* computes nothing real: no weights wanted */
#define BACKEND_BF16_ONLY 8u /* keeps weights and KV in bf16, whatever they come in */
#define BACKEND_OWN_MEMORY                                                                         \
    4u /* the figures are of the device's own memory: ask again after load_end,
                               * when all that is not KV has been taken */

struct backend_info {
    char device[64];    /* for people: "Intel Xeon ..., 2 threads" */
    char path[16];      /* instruction path: identity holds within one */
    char uuid[48];      /* of a GPU, "GPU-..."; else "" */
    uint32_t n_devices; /* that `ordinal` may name; 0: the machine is the device */
    uint32_t n_threads;
    uint32_t flags;
    uint64_t memory_total, memory_free;
    double prefill_tokens_per_s; /* estimate at short context; 0 before a model is in */
    double attn_context; /* tokens of context at which attention costs as much as the rest */
    char note[1024];     /* for the log: why it works more slowly than it could; "" */
};

struct backend_kv_info {
    uint64_t block_bytes; /* all layers, K and V, once: what kv_read reads */
    uint32_t n_blocks, n_host_blocks;
    /* (n_host_blocks, block_bytes) host memory for KV, each block in the layout of kv_read. While
     * no swap of a block is under way the engine may read it, and fill it for a swap in. NULL: this
     * backend's host blocks have no address. */
    uint8_t *host_pool;
};

/* One row of a step: tokens [first_token, first_token + n_tokens) of the stage belong to it. Rows
 * with one token come first. */
struct backend_row {
    uint32_t row;
    uint32_t first_token, n_tokens;
    uint32_t context_len; /* tokens of the sequence once this step has run */
};

struct backend_table_update { /* block_table[row][index] = block; sticks until changed */
    uint32_t row, index, block;
};

struct backend_copy {
    uint32_t src, dst;
};

struct backend_bias { /* added to the logit of `token`, at output `output` */
    uint32_t output, token;
    float bias;
};

enum backend_want {
    WANT_SAMPLE, /* choose a token */
    WANT_SCORE,  /* logprob of `score_token` at this position, and the alternatives */
};

/* One output position. Order of work on the logits: biases, penalties, mask; logprobs are of the
 * *raw* logits (as other engines report them); then temperature, top-k, top-p, min-p, draw. The
 * draw is rng_at(seed, position) of common/base/rng.h, so it depends on nothing else. Ties go to
 * the smaller token id. */
struct backend_output {
    uint32_t row;
    uint32_t token_index; /* in the stage: whose hidden state */
    uint32_t want;        /* enum backend_want */
    uint32_t score_token;
    uint64_t seed;
    uint32_t position;        /* of the token to be produced, from the start of the sequence */
    float temperature;        /* 0: greedy, and the rest of the filters is skipped */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 1: all */
    float min_p;              /* 0: all */
    float repetition_penalty; /* 1: none; over prompt and output */
    float frequency_penalty, presence_penalty; /* 0: none; over output only */
    uint32_t n_logprobs;                       /* alternatives wanted */
    uint32_t mask;                             /* which grammar mask, BACKEND_NO_MASK for none */
};
#define BACKEND_NO_MASK 0xFFFFFFFFu

/* The arrays of one slot. The pointers stay the same for the life of the model. */
struct backend_stage {
    /* filled by the engine */
    int32_t *token;     /* (max_step_tokens) id, or -1 - k: output k of the step in flight before */
    uint32_t *position; /* (max_step_tokens) from the start of the sequence */
    int64_t *kv_slot;   /* (max_step_tokens) where K and V go; -1: nowhere (padding) */
    struct backend_row *row;             /* (max_rows) */
    struct backend_table_update *update; /* (max_rows * max_blocks_per_row) */
    struct backend_output *output;       /* (max_outputs) */
    struct backend_bias *bias;           /* (max_bias), sorted by output */
    uint32_t *mask; /* (max_masks, ceil(vocab / 32)) one bit per allowed token */
    /* filled by the backend, valid once the fence is done */
    int32_t *out_token;     /* (max_outputs) chosen, or the scored one */
    float *out_logprob;     /* (max_outputs) of out_token */
    uint32_t *out_rank;     /* (max_outputs) of out_token among raw logits, from 1 */
    int32_t *out_top_token; /* (max_outputs, max_logprobs) the n_logprobs wanted, best first;
                            * -1 past the end of the vocabulary */
    float *out_top_logprob; /* (max_outputs, max_logprobs) */
    uint32_t *out_flags;    /* (max_outputs) OUT_* */
};
#define OUT_NOT_FINITE   1u /* a NaN or an infinity was met: the answer cannot be trusted */
#define OUT_NONE_ALLOWED 2u /* mask and biases left no token: out_token is the best of all */

/* How much of the stage counts. */
struct backend_step {
    uint32_t n_tokens, n_rows, n_updates, n_outputs, n_bias, n_masks;
    uint32_t prefix_rows, prefix_blocks; /* so many rows share so many leading blocks; 0: unknown */
    /* Masks may be late: submit calls this once, on the caller's thread, before it reads masks, and
     * behind what the device can begin without them. NULL: they are there. */
    void (*fill_masks)(void *arg);
    void *fill_arg;
};

typedef uint64_t backend_fence; /* increases by one with each submit, copy or swap; 0: none */

struct backend_ops {
    uint32_t abi;         /* BACKEND_ABI */
    uint32_t struct_size; /* sizeof(struct backend_ops) */
    const char *name;     /* "ref", "cpu", "sim", "cuda" */

    /* Can it run here? ST_UNSUPPORTED with a sentence when not. Never aborts, never prints. */
    enum status (*probe)(const struct backend_config *config, struct backend_info *info,
                         struct error *err);
    enum status (*open)(struct backend_device **out, const struct backend_config *config,
                        struct error *err);
    void (*close)(struct backend_device *dev); /* NULL is fine */
    /* With a model loaded, the estimates are of that model. */
    void (*info)(struct backend_device *dev, struct backend_info *info);

    /* Weights arrive in any order; the backend fuses, packs and converts. load_end names the role
     * and layer that is missing. Memory that is refused is ST_NOMEM with the figure. */
    enum status (*load_begin)(struct backend_device *dev, struct backend_model **out,
                              const struct geometry *g, const struct backend_limits *limits,
                              struct error *err);
    enum status (*load_tensor)(struct backend_model *m, const struct backend_tensor *t,
                               struct error *err);
    enum status (*load_end)(struct backend_model *m, struct error *err);
    void (*unload)(struct backend_model *m); /* NULL and half-loaded are fine */

    /* The pool. Bytes one block takes, before anything is allocated; all copies of it, where ranks
     * hold some: */
    uint64_t (*kv_block_bytes)(const struct backend_model *m);
    enum status (*kv_alloc)(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                            struct backend_kv_info *out, struct error *err);
    /* Whole blocks, in order: behind the steps submitted before, before those that are later. */
    enum status (*kv_copy)(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                           backend_fence *out);
    enum status (*kv_swap_out)(struct backend_model *m, const struct backend_copy *device_to_host,
                               uint32_t n, backend_fence *out);
    enum status (*kv_swap_in)(struct backend_model *m, const struct backend_copy *host_to_device,
                              uint32_t n, backend_fence *out);
    /* One block as in kernels/kv_layout.h, scales included; for tests and moves. */
    enum status (*kv_read)(struct backend_model *m, uint32_t block, void *dst, uint64_t n_bytes);
    enum status (*kv_write)(struct backend_model *m, uint32_t block, const void *src,
                            uint64_t n_bytes);

    /* The token history that penalties count: the whole prompt, cached part included. Generated
     * tokens are added by the backend itself; a beam, which has no penalties, may take up the
     * blocks of another and keep its own history. Both calls take their turn behind the steps
     * submitted before, which still know the row as it was; the arrays are read during the call. */
    enum status (*row_bind)(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                            uint32_t n_prompt, const uint32_t *output, uint32_t n_output);
    void (*row_free)(struct backend_model *m, uint32_t row);

    /* Steps. */
    void (*stage)(struct backend_model *m, uint32_t slot, struct backend_stage *out);
    enum status (*submit)(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                          backend_fence *out, struct error *err);
    enum status (*poll)(struct backend_device *dev, backend_fence f); /* ST_OK, ST_AGAIN, or lost */
    enum status (*wait)(struct backend_device *dev, backend_fence f,
                        uint64_t timeout_us); /* ST_OK, ST_TIMEOUT, or lost */
    /* Becomes readable when a fence is done; 8 bytes read from it take the signal away, and never
     * block. It may be for another fence than the one wanted, and fences that were waited for need
     * not be reported: poll afterwards. Call it again before each sleep. -1: none, the step has run
     * when submit returns. */
    int (*event_fd)(struct backend_device *dev);
    /* Microseconds that the device worked on the step of this slot that was waited for last. NULL:
     * the device is the host, all of submit and wait is its time. */
    double (*step_us)(struct backend_model *m, uint32_t slot);

    /* Runs one operator on host tensors, so that one differential test covers every backend. Names,
     * inputs and outputs are listed in kernels/README.md. ST_UNSUPPORTED when it has none. */
    enum status (*op)(struct backend_device *dev, const char *name, const struct backend_tensor *in,
                      uint32_t n_in, struct backend_tensor *out, uint32_t n_out, struct error *err);

    /* What is wrong with a device that poll, wait or a copy found lost: one sentence, or NULL. The
     * entry itself may be NULL. */
    const char *(*fault)(struct backend_device *dev);

    /* Would a device so opened take this model? The sentence is the one that load_begin would give,
     * memory apart, and nothing is opened. The entry itself may be NULL: only load_begin knows. */
    enum status (*check)(const struct backend_config *config, const struct geometry *g,
                         const struct backend_limits *limits, struct error *err);

    /* Between load_end and kv_alloc: gives back memory of the device that only makes steps faster,
     * for a pool that does not fit beside it; `note` has what is slower then. false: there is none.
     * The entry itself may be NULL. */
    bool (*give_room)(struct backend_model *m);

    /* Between load_end and kv_alloc: memory of the host, zeroed and page-aligned, for all of
     * kv_alloc's n_host_blocks, which stays until after unload; it becomes the host_pool. The entry
     * itself may be NULL: this backend takes its own. */
    void (*kv_lend)(struct backend_model *m, void *memory);
};

/* The only symbol a loadable backend exports. The linked ones are below. */
const struct backend_ops *incipit_backend(void);

extern const struct backend_ops backend_ref;
extern const struct backend_ops backend_cpu;
extern const struct backend_ops backend_sim;
extern const struct backend_ops backend_tp; /* kernels/tp/tp.h */

#ifdef __cplusplus
}
#endif
#endif
