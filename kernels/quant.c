/* kernels/quant.c - see quant.h. */
#include "kernels/quant.h"

#include <inttypes.h>
#include <math.h>

#include "common/base/mem.h"

static enum status wrong(struct error *err, const char *name, const char *what) {
    return error_set(err, ST_INVALID, "quantised matrix %s: %s", name, what);
}

static enum status check_inputs(const struct backend_tensor *t, const char *name,
                                struct error *err) {
    const struct backend_quant *q = t->quant;

    switch (q->inputs) {
    case QUANT_INPUTS_PLAIN: return ST_OK;
    case QUANT_INPUTS_I8:
        if (t->dtype == DTYPE_I8 && !q->zero && !q->order) return ST_OK;
        return wrong(err, name, "inputs in int8 are for int8 codes without zeros and order");
    case QUANT_INPUTS_F8_STATIC:
        if (!(q->input_scale > 0) || !isfinite(q->input_scale))
            return wrong(err, name, "input_scale is not positive and finite");
        break;
    case QUANT_INPUTS_F8:
    case QUANT_INPUTS_F8_GROUPS: break;
    default: return wrong(err, name, "unknown rule for the inputs");
    }
    if (t->dtype == DTYPE_F8E4M3) return ST_OK;
    return wrong(err, name, "inputs in e4m3 are for codes in e4m3");
}

static enum status check_scales(const struct backend_tensor *t, const char *name,
                                struct error *err) {
    const struct backend_quant *q = t->quant;
    uint64_t row_groups = quant_row_groups(q, t->shape[1]);
    uint64_t n = CEIL_DIV(t->shape[0], (uint64_t)q->group_n) * row_groups;

    for (uint64_t i = 0; i < n; i++) {
        if (q->scale[i] != 0 && isfinite(q->scale[i])) continue;
        return error_set(err, ST_INVALID,
                         "quantised matrix %s: scale %" PRIu64
                         " is %g: scales are finite and not 0",
                         name, i, (double)q->scale[i]);
    }
    return ST_OK;
}

static enum status check_zeros(const struct backend_tensor *t, const char *name,
                               struct error *err) {
    const struct backend_quant *q = t->quant;
    uint64_t n = t->shape[0] * quant_row_groups(q, t->shape[1]);
    int low = t->dtype == DTYPE_U4 ? 0 : -128, high = t->dtype == DTYPE_U4 ? 15 : 127;

    if (!q->zero) return ST_OK;
    if (t->dtype == DTYPE_F8E4M3) return wrong(err, name, "codes in e4m3 have no zeros");
    for (uint64_t i = 0; i < n; i++) {
        if (q->zero[i] >= low && q->zero[i] <= high) continue;
        return error_set(err, ST_INVALID,
                         "quantised matrix %s: zero %" PRIu64 " is %d: %s has codes of %d to %d",
                         name, i, q->zero[i], dtype_name(t->dtype), low, high);
    }
    return ST_OK;
}

static enum status check_order(const struct backend_tensor *t, const char *name,
                               struct error *err) {
    const uint32_t *order = t->quant->order;
    uint64_t k = t->shape[1];
    bool is_permutation = true;
    uint8_t *is_used;

    if (!order) return ST_OK;
    if (!(is_used = mem_try_zalloc(k))) return error_set(err, ST_NOMEM, "no memory for %s", name);
    for (uint64_t i = 0; i < k && is_permutation; i++) {
        is_permutation = order[i] < k && !is_used[order[i]];
        if (is_permutation) is_used[order[i]] = 1;
    }
    mem_free(is_used);
    return is_permutation ? ST_OK : wrong(err, name, "its order is not a permutation of inputs");
}

enum status quant_check(const struct backend_tensor *t, const char *name, struct error *err) {
    const struct backend_quant *q = t->quant;
    enum status st;

    if (!quant_is_type(t->dtype) || t->n_dims != 2 || !t->shape[0] || !t->shape[1])
        return wrong(err, name, "it is no matrix of f8e4m3, i8 or u4");
    if (t->n_bytes != t->shape[0] * dtype_row_bytes(t->dtype, t->shape[1]))
        return error_set(err, ST_INVALID,
                         "quantised matrix %s: %" PRIu64 " bytes for %" PRIu64 " x %" PRIu64
                         " codes of %s",
                         name, t->n_bytes, t->shape[0], t->shape[1], dtype_name(t->dtype));
    if (!q || !q->scale) return wrong(err, name, "it has no scales");
    if (!q->group_n || !q->group_k) return wrong(err, name, "a group has no elements");
    if ((st = check_inputs(t, name, err)) != ST_OK) return st;
    if ((st = check_scales(t, name, err)) != ST_OK) return st;
    if ((st = check_zeros(t, name, err)) != ST_OK) return st;
    return check_order(t, name, err);
}

enum status quant_check_types(const struct geometry *g, uint32_t have, const char *backend,
                              struct error *err) {
    for (uint32_t t = 0; t < DTYPE_COUNT; t++) {
        if (!(g->quant_types & ~have & QUANT_TYPE(t))) continue;
        return error_set(err, ST_UNSUPPORTED,
                         "weights quantised to %s: the %s backend has no product for them; use "
                         "the checkpoint that is not quantised, or another --backend",
                         dtype_long_name((enum dtype)t), backend);
    }
    return ST_OK;
}
