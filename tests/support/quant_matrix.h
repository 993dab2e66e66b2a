/* tests/support/quant_matrix.h - random quantised matrices, and their weights in float64. */
#ifndef TESTS_SUPPORT_QUANT_MATRIX_H
#define TESTS_SUPPORT_QUANT_MATRIX_H

#include "common/base/rng.h"
#include "kernels/quant.h"

struct quant_matrix {
    struct backend_tensor tensor; /* .quant is &quant; all of it on the heap */
    struct backend_quant quant;
};

/* What is drawn. group_k 0: whole rows; group_n 0: one scale for all outputs, copied for each. */
struct quant_kind {
    enum dtype dtype;
    uint32_t group_n, group_k;
    bool has_zeros, has_order;
    enum quant_inputs inputs;
};

/* The kinds that checkpoints have, for loops over all. */
#define QUANT_KINDS 12
extern const struct quant_kind quant_kinds[QUANT_KINDS];

/* Every code but NaN, scales of about 1 / sqrt(k) of the code's range, zeros over the whole range.
 * The matrix must not move: its tensor points into it. */
void quant_matrix_fill(struct quant_matrix *m, const struct quant_kind *kind, uint32_t n,
                       uint32_t k, struct rng *rng);
void quant_matrix_free(struct quant_matrix *m);

/* The weight between output n and input i. */
double quant_matrix_weight(const struct backend_tensor *t, uint64_t n, uint64_t i);

#endif
