/* kernels/host/host_part.c - a rank's part of a weight; see host.h.
 *
 * Plain tensors are sliced as kernels/tp/shard.h has it. Of a quantised matrix the scales and zeros
 * are sliced too: a cut through the outputs of a scale group gives every output a scale of its own,
 * which changes no weight; a cut through inputs lies between groups, or the rows have one group. */
#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/host/host.h"
#include "kernels/quant.h"

static enum status no_memory(struct error *err, uint64_t n_bytes) {
    return error_set(err, ST_NOMEM,
                     "a rank's part of a weight: no memory for its %" PRIu64 " bytes", n_bytes);
}

static enum status plain_part(const struct tp_slice *slice, const struct backend_tensor *t,
                              struct backend_tensor *part, void **scratch, struct error *err) {
    struct backend_tensor own = tp_slice_take(slice, t, NULL);

    *scratch = NULL;
    if (!own.data) {
        *scratch = mem_try(own.n_bytes);
        if (!*scratch) return no_memory(err, own.n_bytes);
        own = tp_slice_take(slice, t, *scratch);
    }
    *part = own;
    return ST_OK;
}

static enum status check_cut(const struct tp_slice *s, const struct backend_tensor *t,
                             struct error *err) {
    const struct backend_quant *q = t->quant;
    uint64_t k = t->shape[1], ends[] = {s->first_column, s->first_column + s->n_columns};
    bool is_cut = s->n_columns < k;

    if (is_cut && q->order)
        return error_set(err, ST_UNSUPPORTED,
                         "weight %s, layer %u has its inputs in an order of its own (desc_act), "
                         "which ranks cannot divide: use --tensor-parallel-size 1",
                         host_role_name(t->role), t->layer);
    for (int i = 0; i < 2 && is_cut; i++) {
        bool is_border = ends[i] == k || quant_row_groups(q, k) == 1 || ends[i] % q->group_k == 0;

        if (is_border && (ends[i] == k || t->dtype != DTYPE_U4 || ends[i] % 2 == 0)) continue;
        return error_set(err, ST_UNSUPPORTED,
                         "weight %s, layer %u has groups of %u inputs, and a rank's part begins or "
                         "ends at input %" PRIu64 ", inside a group: choose a smaller "
                         "--tensor-parallel-size",
                         host_role_name(t->role), t->layer, q->group_k, ends[i]);
    }
    return ST_OK;
}

/* One row of scales for `unit` outputs. */
static void take_scales(float *dst, const struct backend_tensor *t, const struct tp_slice *s,
                        uint32_t unit, uint64_t row_groups) {
    const struct backend_quant *q = t->quant;
    uint64_t all = quant_row_groups(q, t->shape[1]);
    uint64_t first = all == 1 ? 0 : s->first_column / q->group_k;

    for (uint64_t n = 0; n < s->n; n += unit, dst += row_groups)
        memcpy(dst, q->scale + (s->first + n) / q->group_n * all + first,
               row_groups * sizeof(*dst));
}

static void take_zeros(int16_t *dst, const struct backend_tensor *t, const struct tp_slice *s,
                       uint64_t row_groups) {
    const struct backend_quant *q = t->quant;
    uint64_t all = quant_row_groups(q, t->shape[1]);
    uint64_t first = all == 1 ? 0 : s->first_column / q->group_k;

    for (uint64_t n = 0; n < s->n; n++, dst += row_groups)
        memcpy(dst, q->zero + (s->first + n) * all + first, row_groups * sizeof(*dst));
}

/* scratch: struct backend_quant, scales, zeros, codes. */
static enum status quant_part(const struct tp_slice *s, const struct backend_tensor *t,
                              struct backend_tensor *part, void **scratch, struct error *err) {
    struct backend_quant q = *t->quant;
    struct backend_tensor own = tp_slice_take(s, t, NULL);
    uint64_t row_groups = quant_row_groups(&q, s->n_columns), n_scales, n_zeros, n_bytes;
    enum status st = check_cut(s, t, err);
    char *at;

    if (st != ST_OK) return st;
    if (s->first % q.group_n) q.group_n = 1;
    n_scales = CEIL_DIV(s->n, (uint64_t)q.group_n) * row_groups;
    n_zeros = q.zero ? s->n * row_groups : 0;
    n_bytes = sizeof(q) + n_scales * sizeof(float) + n_zeros * sizeof(int16_t);
    at = mem_try(n_bytes + (own.data ? 0 : own.n_bytes));
    if (!at) return no_memory(err, n_bytes + own.n_bytes);
    *scratch = at;
    take_scales((float *)(void *)(at + sizeof(q)), t, s, q.group_n, row_groups);
    q.scale = (const float *)(const void *)(at + sizeof(q));
    if (n_zeros) {
        int16_t *zero = (int16_t *)(void *)(at + sizeof(q) + n_scales * sizeof(float));

        take_zeros(zero, t, s, row_groups);
        q.zero = zero;
    }
    memcpy(at, &q, sizeof(q));
    if (!own.data) own = tp_slice_take(s, t, at + n_bytes);
    own.quant = (const struct backend_quant *)(const void *)at;
    *part = own;
    return ST_OK;
}

enum status host_rank_part(const struct host_model *h, const struct backend_tensor *t,
                           struct backend_tensor *part, void **scratch, struct error *err) {
    struct tp_slice slice = tp_shard_slice(&h->shard, t);

    *scratch = NULL;
    if (t->quant && h->shard.size > 1) return quant_part(&slice, t, part, scratch, err);
    return plain_part(&slice, t, part, scratch, err);
}
