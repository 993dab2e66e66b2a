/* tests/gpu/random_model.h - a decoder of a well-known shape with random weights, on any backend.
 *
 * For what is measured or compared without a checkpoint: speed does not depend on what the weights
 * are, only that they are not zeros (a GPU multiplies zeros faster). Equal seeds give two backends
 * the same weights. Everything aborts with a sentence on failure: these are programs, not
 * libraries. */
#ifndef TESTS_GPU_RANDOM_MODEL_H
#define TESTS_GPU_RANDOM_MODEL_H

#include "kernels/backend.h"

struct random_shape {
    const char *name;
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab;
    bool has_qkv_bias, is_tied;
    float theta;        /* of RoPE */
    float matrix_scale; /* deviation of the weights; 0: 1 / sqrt(inputs), so that logits differ */
};

/* "llama-3.1-8b", "qwen2.5-1.5b", "slice" (two layers of the first), "small",
 * "tiny"; NULL when unknown. */
const struct random_shape *random_shape_find(const char *name);

struct random_limits {
    uint32_t max_rows, max_step_tokens, max_context, n_blocks, n_host_blocks;
    bool is_deterministic;
    enum dtype matrices; /* of the layers: e4m3 with a scale for each output, int4 in groups of 128;
                          * any other: bf16 */
    enum dtype kv;       /* e4m3 or int8; any other: bf16 */
};

struct random_model {
    const struct backend_ops *ops;
    const struct random_shape *shape;
    struct backend_limits limits;
    struct backend_device *dev;
    struct backend_model *model;
    struct backend_kv_info kv;
    enum dtype kv_dtype;
    struct backend_stage stage[2];
    double load_s;  /* load_begin to load_end */
    double alloc_s; /* kv_alloc, with the graphs recorded there */
};

void random_model_open(struct random_model *m, const struct backend_ops *ops,
                       const struct random_shape *shape, const struct random_limits *limits,
                       uint64_t seed);
void random_model_close(struct random_model *m);

/* Fills blocks [0, n) of the pool with random keys and values. */
void random_model_fill_pool(struct random_model *m, uint32_t n_blocks, uint64_t seed);

/* What such programs do when a call fails. */
NORETURN void random_fail(const char *doing, enum status st, const struct error *err);

/* The type behind a name: bf16, e4m3, int8, int4. Ends the program with `usage` when unknown. */
enum dtype random_dtype(const char *name, const char *usage);

double clock_s(void);

#endif
