/* worker/model/quant/module.c - see module.h: binding. Loading is in module_load.c. */
#include "worker/model/quant/module.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/dtype.h"

#define NAME_BYTES 256

/* While a module is bound. */
struct finder {
    const struct weights *w;
    const struct quant_config *c;
    const char *module;
    struct quant_module *m;
    struct error *err;
};

static const struct safetensor *get(const struct finder *f, const char *suffix) {
    char name[NAME_BYTES];

    snprintf(name, sizeof(name), "%s.%s", f->module, suffix);
    return weights_find(f->w, name);
}

/* The same, and the module accounts for it. */
static const struct safetensor *take(const struct finder *f, const char *suffix) {
    const struct safetensor *t = get(f, suffix);

    if (t && f->m->n_all < QUANT_MODULE_TENSORS) f->m->all[f->m->n_all++] = t;
    return t;
}

/* --- shapes -----------------------------------------------------------------------------------*/
static uint64_t n_elements(const struct safetensor *t) {
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims && i < SAFETENSORS_MAX_DIMS; i++)
        n *= t->shape[i];
    return n;
}

static bool is_float(const struct safetensor *t) {
    return t->type == FILE_F32 || t->type == FILE_F16 || t->type == FILE_BF16;
}

/* "(4, 128) of F16" */
static const char *describe(const struct safetensor *t, char text[96]) {
    int n = snprintf(text, 96, "(");

    for (uint32_t i = 0; i < t->n_dims && i < SAFETENSORS_MAX_DIMS; i++)
        n += snprintf(text + n, 96 - (size_t)n, "%s%" PRIu64, i ? ", " : "", t->shape[i]);
    snprintf(text + n, 96 - (size_t)n, ") of %.10s", t->type_name.ptr);
    return text;
}

static enum status wrong_shape(const struct finder *f, const struct safetensor *t, uint64_t rows,
                               uint64_t columns, const char *types) {
    char text[96];

    return error_set(f->err, ST_INVALID,
                     "tensor %.120s is %s: the geometry and %s want (%" PRIu64 ", %" PRIu64
                     ") of %s; download the model again",
                     t->name.ptr, describe(t, text), quant_config_method(f->c), rows, columns,
                     types);
}

static enum status check_matrix(const struct finder *f, const struct safetensor *t,
                                enum file_type type, uint64_t rows, uint64_t columns) {
    static const char *const names[] = {
        [FILE_F8_E4M3] = "F8_E4M3", [FILE_I8] = "I8", [FILE_I32] = "I32"};

    if (t->type == type && t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == columns)
        return ST_OK;
    return wrong_shape(f, t, rows, columns, names[type]);
}

static enum status missing(const struct finder *f, const char *suffix) {
    return error_set(f->err, ST_INVALID,
                     "module %.120s is quantised (%s) and has no tensor %s.%s: download the model "
                     "again",
                     f->module, quant_config_method(f->c), f->module, suffix);
}

static enum status check_group(const struct finder *f) {
    const struct quant_module *m = f->m;

    if (!m->scheme.group_size || m->k % m->scheme.group_size == 0) return ST_OK;
    return error_set(f->err, ST_UNSUPPORTED,
                     "module %.120s has %" PRIu64
                     " inputs, which do not divide into groups of group_size %u: use another "
                     "checkpoint of this model",
                     f->module, m->k, m->scheme.group_size);
}

static uint64_t row_groups(const struct quant_module *m) {
    return m->scheme.group_size ? CEIL_DIV(m->k, (uint64_t)m->scheme.group_size) : 1;
}

/* --- scales -----------------------------------------------------------------------------------*/
/* One for all, or one for each output: (), (1), (1, 1), (n), (n, 1). */
static bool is_row_scale(const struct quant_module *m, const struct safetensor *t) {
    uint64_t n = n_elements(t);

    for (uint32_t i = 1; i < t->n_dims; i++) {
        if (t->shape[i] != 1) return false;
    }
    return n == 1 || n == m->n;
}

/* (rows, columns), ones between and behind them as in (n, 1, k, 1). */
static bool is_scale_grid(const struct safetensor *t, uint64_t rows, uint64_t columns) {
    uint64_t dim[SAFETENSORS_MAX_DIMS] = {t->shape[0], 1};
    uint32_t last = t->n_dims;

    if (t->n_dims == 4 && t->shape[1] == 1 && t->shape[3] == 1)
        return t->shape[0] == rows && t->shape[2] == columns;
    if (last < 1 || last > 2) return false;
    if (last == 2) dim[1] = t->shape[1];
    return dim[0] == rows && dim[1] == columns;
}

static enum status check_weight_scale(const struct finder *f) {
    const struct quant_module *m = f->m;
    const struct quant_scheme *s = &m->scheme;
    bool is_e8m0 = m->scale->type == FILE_F8_E8M0 && s->form == QUANT_FORM_F8;
    uint64_t rows = s->block_n ? CEIL_DIV(m->n, (uint64_t)s->block_n) : m->n;
    uint64_t columns = s->block_k ? CEIL_DIV(m->k, (uint64_t)s->block_k) : row_groups(m);

    if (is_float(m->scale) || is_e8m0) {
        if (is_scale_grid(m->scale, rows, columns)) return ST_OK;
        if (!s->block_n && columns == 1 && is_row_scale(m, m->scale)) return ST_OK;
    }
    return wrong_shape(f, m->scale, rows, columns, "BF16, F16 or F32");
}

/* (groups, n) of AWQ and GPTQ */
static enum status check_column_scales(const struct finder *f) {
    const struct quant_module *m = f->m;
    const struct safetensor *t = m->scale;
    uint64_t groups = row_groups(m);

    if (is_float(t) && t->n_dims == 2 && t->shape[0] == groups && t->shape[1] == m->n) return ST_OK;
    return wrong_shape(f, t, groups, m->n, "F16, BF16 or F32");
}

/* --- one form after the other -----------------------------------------------------------------*/
static bool is_all_zero(const struct safetensor *t) {
    for (uint64_t i = 0; i < t->n_bytes; i++) {
        if (t->data[i]) return false;
    }
    return true;
}

/* Tensors beside a symmetric weight that hold only zeros change nothing. */
static enum status take_zero_point(const struct finder *f) {
    const struct safetensor *t = take(f, "weight_zero_point");

    if (!t) return f->m->scheme.is_symmetric ? ST_OK : missing(f, "weight_zero_point");
    if (f->m->scheme.is_symmetric)
        return is_all_zero(t)
                   ? ST_OK
                   : error_set(f->err, ST_UNSUPPORTED,
                               "tensor %.120s is not zero, and config.json has symmetric "
                               "weights: use another checkpoint of this model",
                               t->name.ptr);
    f->m->zero = t;
    return ST_OK;
}

static enum status take_input_scale(const struct finder *f) {
    struct quant_module *m = f->m;
    const struct safetensor *t = take(f, "input_scale");

    take(f, "input_zero_point"); /* of inputs in int8: they get scales of their own */
    if (m->scheme.inputs != QUANT_INPUTS_F8_STATIC) return ST_OK;
    if (!t) return missing(f, "input_scale");
    if (!is_float(t) || n_elements(t) != 1) return wrong_shape(f, t, 1, 1, "F32");
    m->input_scale = t;
    return ST_OK;
}

static enum status find_bytes(const struct finder *f) {
    struct quant_module *m = f->m;
    bool is_f8 = m->scheme.form == QUANT_FORM_F8;
    enum status st = check_matrix(f, m->codes, is_f8 ? FILE_F8_E4M3 : FILE_I8, m->n, m->k);

    m->dtype = is_f8 ? DTYPE_F8E4M3 : DTYPE_I8;
    m->scale = take(f, "weight_scale_inv");
    if (!m->scale) m->scale = take(f, "weight_scale");
    if (st == ST_OK && !m->scale) st = missing(f, "weight_scale");
    if (st == ST_OK) st = check_group(f);
    if (st == ST_OK) st = check_weight_scale(f);
    if (st == ST_OK) st = take_zero_point(f);
    if (st == ST_OK && m->zero) st = check_matrix(f, m->zero, FILE_I8, m->n, row_groups(m));
    if (st == ST_OK) st = take_input_scale(f);
    return st;
}

static enum status check_weight_shape(const struct finder *f) {
    const struct safetensor *t = take(f, "weight_shape");
    uint64_t bytes = t && t->type == FILE_I64 ? 8 : 4, dim[2] = {0};

    if (!t) return ST_OK;
    if ((t->type != FILE_I64 && t->type != FILE_I32) || t->n_bytes != 2 * bytes)
        return wrong_shape(f, t, 2, 1, "I64");
    memcpy(&dim[0], t->data, bytes); /* little-endian: the rest stays 0 */
    memcpy(&dim[1], t->data + bytes, bytes);
    if (dim[0] == f->m->n && dim[1] == f->m->k) return ST_OK;
    return error_set(f->err, ST_INVALID,
                     "tensor %.120s is (%" PRIu64 ", %" PRIu64 "): config.json implies (%" PRIu64
                     ", %" PRIu64 "); download the model again",
                     t->name.ptr, dim[0], dim[1], f->m->n, f->m->k);
}

static enum status take_groups(const struct finder *f, const char *suffix) {
    struct quant_module *m = f->m;
    const struct safetensor *t = take(f, suffix);

    if (!t) return ST_OK;
    if (t->type != FILE_I32 || t->n_dims != 1 || t->shape[0] != m->k)
        return wrong_shape(f, t, m->k, 1, "I32");
    if (m->scheme.group_size) m->group_of = t;
    return ST_OK;
}

static enum status find_packed(const struct finder *f) {
    struct quant_module *m = f->m;
    uint64_t bits = m->scheme.bits;
    enum status st;

    m->dtype = bits == 4 ? DTYPE_U4 : DTYPE_I8;
    m->scale = take(f, "weight_scale");
    st = check_matrix(f, m->codes, FILE_I32, m->n, CEIL_DIV(m->k * bits, (uint64_t)32));
    if (st == ST_OK && !m->scale) st = missing(f, "weight_scale");
    if (st == ST_OK) st = check_group(f);
    if (st == ST_OK) st = check_weight_scale(f);
    if (st == ST_OK) st = check_weight_shape(f);
    if (st == ST_OK) st = take_zero_point(f);
    if (st == ST_OK && m->zero)
        st = check_matrix(f, m->zero, FILE_I32, CEIL_DIV(m->n * bits, (uint64_t)32), row_groups(m));
    if (st == ST_OK) st = take_groups(f, "weight_g_idx");
    return st;
}

static enum status check_divides(const struct finder *f, const char *what, uint64_t value,
                                 uint64_t unit) {
    if (value % unit == 0) return ST_OK;
    return error_set(f->err, ST_UNSUPPORTED,
                     "module %.120s has %" PRIu64 " %s, which do not fill words of %" PRIu64
                     " codes: use another checkpoint of this model",
                     f->module, value, what, unit);
}

/* AWQ and GPTQ, whose names are equal. */
static enum status find_columns(const struct finder *f) {
    struct quant_module *m = f->m;
    bool is_gptq = m->scheme.form == QUANT_FORM_GPTQ;
    uint64_t fields = 32 / m->scheme.bits, n = m->n, k = m->k;
    const struct safetensor *bias = get(f, "bias");
    enum status st = check_divides(f, "outputs", n, fields);

    m->dtype = m->scheme.bits == 4 ? DTYPE_U4 : DTYPE_I8;
    m->scale = take(f, "scales");
    m->zero = take(f, "qzeros");
    if (bias && is_all_zero(bias)) take(f, "bias"); /* writers of GPTQ add it to every layer */
    if (st == ST_OK && is_gptq) st = check_divides(f, "inputs", k, fields);
    if (st == ST_OK)
        st = is_gptq ? check_matrix(f, m->codes, FILE_I32, k / fields, n)
                     : check_matrix(f, m->codes, FILE_I32, k, n / fields);
    if (st == ST_OK && !m->scale) st = missing(f, "scales");
    if (st == ST_OK && !m->zero && !m->scheme.is_symmetric) st = missing(f, "qzeros");
    if (st == ST_OK) st = check_group(f);
    if (st == ST_OK) st = check_column_scales(f);
    if (st == ST_OK && m->zero) st = check_matrix(f, m->zero, FILE_I32, row_groups(m), n / fields);
    if (st == ST_OK && is_gptq) st = take_groups(f, "g_idx");
    return st;
}

/* --- which form -------------------------------------------------------------------------------*/
/* Forms that only their names or types give away. */
static enum status refuse_strangers(const struct finder *f, const struct safetensor *weight) {
    static const struct {
        const char *suffix, *what;
    } names[] = {{"weight_global_scale", "NVFP4"},
                 {"weight_scale_2", "NVFP4"},
                 {"weight.absmax", "bitsandbytes"},
                 {"weight_packed_24", "marlin-24"},
                 {"meta", "marlin-24"},
                 {"B", "marlin"},
                 {"SCB", "bitsandbytes"},
                 {"workspace", "marlin"}};
    const char *what = NULL;

    for (size_t i = 0; i < ARRAY_LEN(names) && !what; i++) {
        if (get(f, names[i].suffix)) what = names[i].what;
    }
    if (!what && weight && !is_float(weight) && weight->type != FILE_F8_E4M3 &&
        weight->type != FILE_I8)
        what = weight->type_name.ptr;
    if (!what) return ST_OK;
    return error_set(f->err, ST_UNSUPPORTED,
                     "unsupported weights of module %.120s: %s; supported are e4m3, int8 and int4 "
                     "of fp8, compressed-tensors, awq and gptq: use a checkpoint of one of these",
                     f->module, what);
}

/* The tensor of codes for a form. */
static const struct safetensor *codes_of(const struct finder *f, enum quant_form form) {
    const struct safetensor *t;

    switch (form) {
    case QUANT_FORM_PACKED: return get(f, "weight_packed");
    case QUANT_FORM_AWQ:
    case QUANT_FORM_GPTQ: return get(f, "qweight");
    case QUANT_FORM_F8:
    case QUANT_FORM_I8:
        t = get(f, "weight");
        return t && t->type == (form == QUANT_FORM_F8 ? FILE_F8_E4M3 : FILE_I8) ? t : NULL;
    }
    return NULL;
}

/* What of any form is there, so that a file that disagrees with its configuration is seen. */
static const struct safetensor *any_codes(const struct finder *f) {
    for (int form = QUANT_FORM_F8; form <= QUANT_FORM_GPTQ; form++) {
        const struct safetensor *t = codes_of(f, (enum quant_form)form);

        if (t) return t;
    }
    return NULL;
}

static enum status disagree(const struct finder *f, const struct safetensor *t, const char *why) {
    return error_set(
        f->err, ST_INVALID,
        "module %.120s has the tensor %.140s of %.10s, but %s: config.json and weights "
        "are of different checkpoints; download the model again",
        f->module, t->name.ptr, t->type_name.ptr, why);
}

static enum status find_form(const struct finder *f) {
    take(f, f->m->scheme.form == QUANT_FORM_PACKED ? "weight_packed"
            : f->m->scheme.form == QUANT_FORM_AWQ || f->m->scheme.form == QUANT_FORM_GPTQ
                ? "qweight"
                : "weight");
    switch (f->m->scheme.form) {
    case QUANT_FORM_PACKED: return find_packed(f);
    case QUANT_FORM_AWQ:
    case QUANT_FORM_GPTQ: return find_columns(f);
    default: return find_bytes(f);
    }
}

enum status quant_module_find(struct quant_module *out, bool *is_quantised, const struct weights *w,
                              const struct quant_config *c, const char *module, uint64_t n,
                              uint64_t k, struct error *err) {
    struct quant_module m = {.n = n, .k = k};
    struct finder f = {w, c, module, &m, err};
    enum quant_want want;
    const struct safetensor *plain = get(&f, "weight"), *found = any_codes(&f);
    enum status st = quant_config_find(c, module, &want, &m.scheme, err);

    if (st == ST_OK) st = refuse_strangers(&f, plain);
    if (st != ST_OK) return st;
    if (!found && plain && want == QUANT_WANT_SCHEME)
        return disagree(&f, plain, "config.json has the module quantised");
    *is_quantised = found != NULL;
    if (!found) return ST_OK;
    if (!c) return disagree(&f, found, "config.json has no quantization_config");
    if (want == QUANT_WANT_PLAIN)
        return disagree(&f, found, "quantization_config leaves the module plain");
    m.codes = codes_of(&f, m.scheme.form);
    if (!m.codes) return disagree(&f, found, "quantization_config has it of another kind");
    st = find_form(&f);
    if (st == ST_OK) *out = m;
    return st;
}

uint64_t quant_module_bytes(const struct quant_module *m) {
    uint64_t groups =
        m->scheme.block_k ? CEIL_DIV(m->k, (uint64_t)m->scheme.block_k) : row_groups(m);
    uint64_t rows = m->scheme.block_n ? CEIL_DIV(m->n, (uint64_t)m->scheme.block_n) : m->n;

    return m->n * dtype_row_bytes(m->dtype, m->k) + rows * groups * sizeof(float) +
           (m->zero ? m->n * groups * sizeof(int16_t) : 0) +
           (m->group_of ? m->k * sizeof(uint32_t) : 0);
}
