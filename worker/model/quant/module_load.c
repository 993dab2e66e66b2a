/* worker/model/quant/module_load.c - see module.h: one matrix out of the file. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "worker/model/quant/module.h"
#include "worker/model/quant/unpack.h"

static enum status no_memory(const struct quant_module *m, uint64_t n_bytes, struct error *err) {
    return error_set(err, ST_NOMEM, "out of memory for the %" PRIu64 " bytes of %.120s", n_bytes,
                     m->codes->name.ptr);
}

static enum status alloc(void **out, const struct quant_module *m, uint64_t n_bytes,
                         struct error *err) {
    *out = mem_try(n_bytes);
    return *out ? ST_OK : no_memory(m, n_bytes, err);
}

/* --- scales -----------------------------------------------------------------------------------*/
static uint64_t n_elements(const struct safetensor *t) {
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

/* E8M0 is 2^(byte - 127); 255 is its NaN. */
static float scale_at(const struct safetensor *t, uint64_t i) {
    if (t->type == FILE_F8_E8M0) return t->data[i] == 255 ? NAN : ldexpf(1, (int)t->data[i] - 127);
    return dtype_get(t->dtype, t->data, i);
}

/* Those of weights may be negative: AutoRound writes such, whose codes count downwards. */
static enum status check_scale(const struct safetensor *t, uint64_t i, float s, bool is_of_inputs,
                               struct error *err) {
    if (isfinite(s) && (is_of_inputs ? s > 0 : s != 0)) return ST_OK;
    return error_set(err, ST_INVALID,
                     "element %" PRIu64 " of %.120s is %g: scales are %s; download the model "
                     "again, or use another checkpoint of it",
                     i, t->name.ptr, (double)s,
                     is_of_inputs ? "positive and finite" : "finite and not 0");
}

/* (n, groups) from the file's order; one for all becomes n equal ones. */
static enum status load_scales(const struct quant_module *m, struct quant_matrix_data *d,
                               uint64_t rows, uint64_t groups, struct error *err) {
    bool is_column = m->scheme.form == QUANT_FORM_AWQ || m->scheme.form == QUANT_FORM_GPTQ;
    bool is_single = n_elements(m->scale) == 1;
    enum status st = alloc(&d->scale, m, rows * groups * sizeof(float), err);

    for (uint64_t r = 0; r < rows && st == ST_OK; r++) {
        for (uint64_t g = 0; g < groups && st == ST_OK; g++) {
            uint64_t from = is_single ? 0 : is_column ? g * rows + r : r * groups + g;
            float s = scale_at(m->scale, from);

            ((float *)d->scale)[r * groups + g] = s;
            st = check_scale(m->scale, from, s, false, err);
        }
    }
    return st;
}

/* --- codes ------------------------------------------------------------------------------------*/
static enum status check_codes(const struct quant_module *m, struct error *err) {
    const uint8_t *code = m->codes->data;
    uint64_t n = m->codes->n_bytes, i = 0;
    unsigned has_nan = 0;

    for (uint64_t j = 0; j < n; j++)
        has_nan |= (code[j] & 0x7Fu) == E4M3_NAN;
    if (!has_nan) return ST_OK;
    while ((code[i] & 0x7Fu) != E4M3_NAN)
        i++;
    return error_set(err, ST_INVALID,
                     "element %" PRIu64 " of %.120s is NaN (code %02x): download the model again, "
                     "or use another checkpoint of it",
                     i, m->codes->name.ptr, code[i]);
}

static enum status load_codes(const struct quant_module *m, struct quant_matrix_data *d,
                              struct backend_tensor *t, struct error *err) {
    const struct quant_scheme *s = &m->scheme;
    const uint8_t *from = m->codes->data;
    enum status st;

    t->data = (void *)(uintptr_t)from;
    if (s->form == QUANT_FORM_I8) return ST_OK;
    if (s->form == QUANT_FORM_F8) return check_codes(m, err);
    if (s->form == QUANT_FORM_PACKED && s->bits == 4 && !d->order && m->k % 8 == 0) return ST_OK;
    st = alloc(&d->codes, m, t->n_bytes, err);
    if (st != ST_OK) return st;
    t->data = d->codes;
    if (s->form == QUANT_FORM_PACKED) {
        unpack_rows(d->codes, from, s->bits, m->n, m->k, d->order);
    } else if (s->form == QUANT_FORM_AWQ) {
        unpack_awq(d->codes, from, m->n, m->k);
    } else {
        unpack_gptq(d->codes, from, s->bits, m->n, m->k, d->order);
    }
    return ST_OK;
}

/* --- zeros and order --------------------------------------------------------------------------*/
/* Zeros that are all the type's own are left out: products are faster without. */
static void drop_equal_zeros(const struct quant_module *m, struct quant_matrix_data *d,
                             uint64_t n) {
    int16_t own = m->dtype == DTYPE_U4 ? 8 : 0;
    const int16_t *zero = d->zero;

    for (uint64_t i = 0; i < n; i++) {
        if (zero[i] != own) return;
    }
    mem_free(d->zero);
    d->zero = NULL;
}

static enum status load_zeros(const struct quant_module *m, struct quant_matrix_data *d,
                              uint64_t groups, struct error *err) {
    const struct quant_scheme *s = &m->scheme;
    const uint8_t *from = m->zero ? m->zero->data : NULL;
    uint64_t n = m->n * groups;
    enum status st;

    if (!from) return ST_OK;
    st = alloc(&d->zero, m, n * sizeof(int16_t), err);
    if (st != ST_OK) return st;
    if (s->form == QUANT_FORM_PACKED) {
        unpack_rows_zeros(d->zero, from, s->bits, m->n, groups);
    } else if (s->form == QUANT_FORM_AWQ) {
        unpack_awq_zeros(d->zero, from, m->n, groups);
    } else if (s->form == QUANT_FORM_GPTQ) {
        d->n_wrapped = unpack_gptq_zeros(d->zero, from, s->bits, m->n, groups, s->is_v1);
    } else {
        for (uint64_t i = 0; i < n; i++)
            ((int16_t *)d->zero)[i] = (int8_t)from[i];
    }
    drop_equal_zeros(m, d, n);
    return ST_OK;
}

/* compressed-tensors writes -1 where the groups were never assigned. */
static bool has_no_groups(const struct safetensor *t) {
    static const uint8_t unset[4] = {255, 255, 255, 255};

    for (uint64_t i = 0; i < t->n_bytes; i += sizeof(unset)) {
        if (memcmp(t->data + i, unset, sizeof(unset)) == 0) return true;
    }
    return false;
}

static bool has_order(const struct quant_module *m) {
    const struct safetensor *t = m->group_of;

    if (!t || (m->scheme.form == QUANT_FORM_PACKED && has_no_groups(t))) return false;
    return !unpack_is_sorted(t->data, m->k, m->scheme.group_size);
}

static enum status load_order(const struct quant_module *m, struct quant_matrix_data *d,
                              struct error *err) {
    enum status st;

    if (!has_order(m)) return ST_OK;
    st = alloc(&d->order, m, m->k * sizeof(uint32_t), err);
    if (st != ST_OK) return st;
    st = unpack_order(d->order, m->group_of->data, m->k, m->scheme.group_size, err);
    return st == ST_OK ? ST_OK : (error_prefix(err, "%.120s", m->group_of->name.ptr), st);
}

static uint32_t inputs_in_group(const struct quant_module *m) {
    const struct quant_scheme *s = &m->scheme;

    return s->block_k ? s->block_k : s->group_size ? s->group_size : (uint32_t)m->k;
}

struct matrix_format quant_module_format(const struct quant_module *m) {
    return (struct matrix_format){m->dtype, m->scheme.inputs, inputs_in_group(m)};
}

uint32_t quant_module_input_group(const struct quant_module *m) {
    uint32_t group = inputs_in_group(m);

    if (has_order(m)) return (uint32_t)m->k;
    if (group >= m->k) group = 1;
    return m->dtype == DTYPE_U4 && group % 2 ? 2 * group : group; /* bytes hold two codes */
}

enum status quant_module_load(const struct quant_module *m, struct quant_matrix_data *d,
                              struct backend_tensor *t, struct error *err) {
    const struct quant_scheme *s = &m->scheme;
    uint32_t group_n = s->block_n ? s->block_n : 1;
    uint32_t group_k = inputs_in_group(m);
    uint64_t rows = CEIL_DIV(m->n, (uint64_t)group_n), groups = CEIL_DIV(m->k, (uint64_t)group_k);
    float input_scale = m->input_scale ? scale_at(m->input_scale, 0) : 0;
    enum status st =
        m->input_scale ? check_scale(m->input_scale, 0, input_scale, true, err) : ST_OK;

    *d = (struct quant_matrix_data){0};
    t->dtype = m->dtype;
    t->n_dims = 2;
    t->shape[0] = m->n, t->shape[1] = m->k;
    t->n_bytes = m->n * dtype_row_bytes(m->dtype, m->k);
    if (st == ST_OK) st = load_order(m, d, err);
    if (st == ST_OK) st = load_scales(m, d, rows, groups, err);
    if (st == ST_OK) st = load_zeros(m, d, groups, err);
    if (st == ST_OK) st = load_codes(m, d, t, err);
    if (st != ST_OK) {
        quant_matrix_fini(d);
        return st;
    }
    d->quant = (struct backend_quant){.inputs = s->inputs,
                                      .group_n = group_n,
                                      .group_k = group_k,
                                      .scale = d->scale,
                                      .zero = d->zero,
                                      .order = d->order,
                                      .input_scale = input_scale};
    t->quant = &d->quant;
    return ST_OK;
}

void quant_matrix_fini(struct quant_matrix_data *d) {
    mem_free(d->codes);
    mem_free(d->scale);
    mem_free(d->zero);
    mem_free(d->order);
    *d = (struct quant_matrix_data){0};
}
