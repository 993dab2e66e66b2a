/* kernels/ref/matrix.h - the matrices that the reference keeps. */
#ifndef KERNELS_REF_MATRIX_H
#define KERNELS_REF_MATRIX_H

#include "kernels/host/host.h"
#include "kernels/ref/ops.h"

/* Copies a matrix: plain ones in geometry.weight_dtype, as every backend does; quantised ones as
 * they are, with scales, zeros and order. Its one allocation is w->data, freed by mem_free.
 * ST_NOMEM. */
MUST_USE enum status ref_matrix_keep(struct host_model *h, struct ref_matrix *w,
                                     const struct backend_tensor *t, struct error *err);

#endif
