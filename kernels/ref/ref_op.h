/* kernels/ref/ref_op.h - backend_ops.op of the reference: one operator on host tensors. */
#ifndef KERNELS_REF_REF_OP_H
#define KERNELS_REF_REF_OP_H

#include "kernels/ref/ops.h"

MUST_USE enum status ref_run_op(const char *name, const struct backend_tensor *in, uint32_t n_in,
                                struct backend_tensor *out, uint32_t n_out, struct error *err);

#endif
