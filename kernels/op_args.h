/* kernels/op_args.h - the arguments of backend_ops.op, checked once for every host backend.
 *
 * kernels/README.md lists the operators; this turns a name and host tensors into a typed struct
 * or a sentence. A backend then only computes. */
#ifndef KERNELS_OP_ARGS_H
#define KERNELS_OP_ARGS_H

#include "kernels/backend.h"

enum op_kind { OP_EMBED, OP_RMSNORM, OP_LINEAR, OP_ROPE, OP_KV_WRITE, OP_ATTENTION, OP_SWIGLU };

struct op_args {
    enum op_kind kind;
    uint32_t n_tokens, n_heads, n_kv_heads, head_dim; /* as far as the operator has them */
    uint32_t block_size, n_blocks, window;
    const struct backend_tensor *matrix; /* (n, k): embedding or weights, quantised ones too */
    const float *x;                      /* first activation: x, q, k or gate */
    const float *x2;                     /* second: v or up */
    const float *vector;                 /* norm weight, bias (may be NULL) or inv_freq */
    const int32_t *index;                /* ids, positions or slots (T) */
    const int32_t *table;                /* block table */
    void *pool;                          /* (n_blocks) as in kv_layout.h, with one layer */
    enum dtype pool_dtype;
    float scalar; /* eps or scale */
    float *y;     /* result; NULL for kv_write, which changes the pool */
};

MUST_USE enum status op_args_read(struct op_args *a, const char *name,
                                  const struct backend_tensor *in, uint32_t n_in,
                                  struct backend_tensor *out, uint32_t n_out, struct error *err);

/* As much of a geometry as kv_layout.h reads, for the pool. */
struct geometry op_pool_geometry(const struct op_args *a);

#endif
