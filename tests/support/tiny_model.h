/* tests/support/tiny_model.h - a random decoder of any geometry, and a driver that runs requests
 * through a backend in a chosen manner (chunk size, batch, block size).
 *
 * The weights depend on the geometry and a seed alone, so two backends given the same ones must
 * agree. The driver is the smallest possible engine: every request has its own blocks, in a
 * shuffled order; requests that decode come first in a step, as the interface asks. */
#ifndef TESTS_SUPPORT_TINY_MODEL_H
#define TESTS_SUPPORT_TINY_MODEL_H

#include "kernels/backend.h"
#include "tests/support/quant_matrix.h"

struct tiny_shape {
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab, max_context;
    bool has_qkv_bias, has_o_bias, has_qk_norm, is_tied;
    uint32_t sliding_window; /* odd layers are sliding when not 0 */
    enum dtype weight_dtype, kv_dtype;
    const enum dtype *file_dtype;   /* in which matrices are given; NULL: weight_dtype */
    const struct quant_kind *quant; /* how matrices but the embedding are quantised; NULL: not */
    uint32_t plain_roles;           /* 1 << role: these are not */
    bool is_quant_mixed;            /* and k, up and the head are not, v is of e4m3 */
};

/* Eight heads on four KV heads, and sizes that four ranks can divide. */
extern const struct tiny_shape tiny_many_heads;

struct tiny_setup {
    const struct backend_ops *ops;
    const char *path; /* NULL: the best */
    uint32_t n_threads, block_size, max_rows, max_step_tokens;
    uint32_t n_host_blocks;
    const struct backend_ops *ranks; /* with ops = &backend_tp: what the ranks run */
    uint32_t tp_size;
};

struct tiny_model {
    struct tiny_setup setup;
    struct tiny_shape shape;
    struct backend_device *dev;
    struct backend_model *model;
    struct backend_stage stage;
    uint32_t blocks_per_row;
    uint8_t *host_pool; /* struct backend_kv_info has it */
};

/* Opens the device, loads random weights, allocates the pool. Aborts with the message
 * on failure. */
void tiny_open(struct tiny_model *m, const struct tiny_setup *setup, const struct tiny_shape *shape,
               uint64_t seed);
void tiny_close(struct tiny_model *m);

/* The weights only, into a model between load_begin and load_end. `skip` leaves one role out. */
enum status tiny_load(const struct backend_ops *ops, struct backend_model *model,
                      const struct tiny_shape *shape, uint64_t seed, enum tensor_role skip,
                      struct error *err);
struct geometry tiny_geometry(const struct tiny_shape *shape, float *inv_freq, uint8_t *layer_kind);
struct backend_limits tiny_limits(const struct tiny_setup *setup, const struct tiny_shape *shape);

struct tiny_request {
    const uint32_t *prompt;
    uint32_t n_prompt, n_new;
    struct backend_output how; /* sampling; row, token_index and position are filled in */
    int32_t *token;            /* (n_new) results */
    float *logprob;            /* (n_new) */
};

/* Runs all requests together, request i in row i. At most `chunk` prompt tokens of a request
 * enter a step. Aborts on a failed step. */
void tiny_run(struct tiny_model *m, struct tiny_request *requests, uint32_t n, uint32_t chunk);

#endif
