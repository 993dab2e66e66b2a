/* kernels/quant.h - quantised matrices, one element at a time, and what they must be.
 *
 * A weight is (code - zero) * scale; struct backend_quant has the groups. Codes minus zeros are
 * exact in bf16: a product adds input * (code - zero) over a group, in fp32 or in whole numbers,
 * multiplies the group's sum by the scale, and adds the groups in order; no rounded weight exists
 * anywhere. Pure. */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool quant_is_type(enum dtype t) {
    return t == DTYPE_F8E4M3 || t == DTYPE_I8 || t == DTYPE_U4;
}

/* A set of types, as in geometry.quant_types. */
#define QUANT_TYPE(dtype) (1u << (dtype))
#define QUANT_ALL_TYPES   (QUANT_TYPE(DTYPE_F8E4M3) | QUANT_TYPE(DTYPE_I8) | QUANT_TYPE(DTYPE_U4))

/* Groups in each row of k inputs. */
static inline uint64_t quant_row_groups(const struct backend_quant *q, uint64_t k) {
    return CEIL_DIV(k, (uint64_t)q->group_k);
}

static inline float quant_scale(const struct backend_quant *q, uint64_t row_groups, uint64_t n,
                                uint64_t group) {
    return q->scale[n / q->group_n * row_groups + group];
}

static inline int quant_zero(const struct backend_quant *q, enum dtype t, uint64_t row_groups,
                             uint64_t n, uint64_t group) {
    if (q->zero) return q->zero[n * row_groups + group];
    return t == DTYPE_U4 ? 8 : 0;
}

/* Element k of a row. */
static inline float quant_code(enum dtype t, const uint8_t *row, uint64_t k) {
    if (t == DTYPE_F8E4M3) return f32_of_e4m3(row[k]);
    if (t == DTYPE_I8) return (float)(int8_t)row[k];
    return (float)(row[k / 2] >> k % 2 * 4 & 15);
}

/* Checks type, sizes, groups, scales, zeros and order of a tensor of a quantised type. `name` is
 * for the sentence. Reads all scales and zeros, and no codes: worker/model looks for NaN. */
MUST_USE enum status quant_check(const struct backend_tensor *t, const char *name,
                                 struct error *err);

/* ST_UNSUPPORTED when the model has quantised matrices of types that `have` lacks. */
MUST_USE enum status quant_check_types(const struct geometry *g, uint32_t have, const char *backend,
                                       struct error *err);

#ifdef __cplusplus
}
#endif
#endif
