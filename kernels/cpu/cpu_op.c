/* kernels/cpu/cpu_op.c - backend_ops.op of the CPU backend: the inner loops on host tensors.
 *
 * For tests: it packs and pads for each call, and allocates. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/dtype.h"
#include "kernels/op_args.h"

/* Rows of `from` floats copied to rows of `to` floats; what is longer is zero. */
static float *padded(const float *x, size_t n_rows, size_t from, size_t to) {
    float *y = mem_calloc(n_rows * to, sizeof(*y));

    for (size_t i = 0; i < n_rows; i++)
        memcpy(y + i * to, x + i * from, MIN(from, to) * sizeof(*y));
    return y;
}

static void unpad(float *y, const float *x, size_t n_rows, size_t from, size_t to) {
    for (size_t i = 0; i < n_rows; i++)
        memcpy(y + i * to, x + i * from, to * sizeof(*y));
}

static void *new_acts(const struct cpu_path *path, size_t n) {
    return mem_calloc(n, path->act_bytes);
}

static void run_rmsnorm(const struct cpu_path *path, const struct op_args *a, uint32_t d) {
    uint32_t width = ALIGN_UP(d, PANEL);
    float *x = padded(a->x, a->n_tokens, d, width), *w = padded(a->vector, 1, d, width);
    void *h = new_acts(path, width);

    for (uint32_t t = 0; t < a->n_tokens; t++) {
        path->rmsnorm(h, x + (size_t)t * width, w, width, d, a->scalar);
        path->from_act(x + (size_t)t * width, h, width);
    }
    unpad(a->y, x, a->n_tokens, width, d);
    mem_free(x);
    mem_free(w);
    mem_free(h);
}

/* Each row of inputs is prepared, each block of outputs multiplied with, as a step does. */
static void multiply_quant(const struct cpu_path *path, const struct cpu_matrix *w, const char *h,
                           size_t width, uint32_t n_rows, float *y) {
    size_t row_bytes = cpu_inputs_bytes(w, path->act_bytes), stride = (size_t)w->n_panels * PANEL;
    char *rows = mem_calloc(n_rows, row_bytes);
    void *scratch = mem_try_aligned(CACHE_LINE, QUANT_SCRATCH);

    for (uint32_t t = 0; t < n_rows; t++)
        path->prepare(rows + t * row_bytes, w, h + t * width * path->act_bytes);
    for (uint32_t t = 0; t < n_rows; t += QUANT_ROWS) {
        for (uint32_t p = 0; p < w->n_panels; p += QUANT_PANELS)
            path->quant(w, p, MIN(QUANT_PANELS, w->n_panels - p), rows + t * row_bytes,
                        MIN(QUANT_ROWS, n_rows - t), y + t * stride + p * PANEL, stride, false,
                        scratch);
    }
    mem_free(rows);
    mem_free(scratch);
}

static enum status shape_weights(struct cpu_matrix *w, const struct cpu_path *path,
                                 const struct backend_tensor *t, struct error *err) {
    uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    struct cpu_format format;
    enum status st = ST_OK;

    *w = cpu_matrix_shape(t->dtype, n, k);
    if (t->quant && (st = cpu_format_of(&format, path, t, err)) == ST_OK) {
        *w = cpu_matrix_quant(&format, n, k);
        w->order = t->quant->order;
    }
    return st;
}

static enum status run_linear(const struct cpu_path *chosen, const struct op_args *a,
                              struct error *err) {
    const struct cpu_path *path =
        a->matrix->quant ? chosen : cpu_path_for(chosen, a->matrix->dtype);
    struct cpu_matrix w;
    enum status st = shape_weights(&w, path, a->matrix, err);
    size_t width, n_width, T = a->n_tokens;
    float *x, *y;
    void *h;

    if (st != ST_OK) return st;
    width = ALIGN_UP(w.k, PANEL), n_width = w.n_panels * PANEL;
    x = padded(a->x, T, w.k, width), y = mem_calloc(T * n_width, sizeof(*y));
    h = new_acts(path, T * width);
    w.w = mem_try_aligned(CACHE_LINE, cpu_matrix_bytes(&w));
    memset(w.w, 0, cpu_matrix_bytes(&w));
    cpu_pack(&w, a->matrix, 0, 1);
    path->to_act(h, x, (uint32_t)(T * width));
    if (a->matrix->quant)
        multiply_quant(path, &w, h, width, (uint32_t)T, y);
    else
        path->gemm[w.dtype](w.w, w.n_panels, w.k_pairs, h, width, (uint32_t)T, y, n_width, false);
    unpad(a->y, y, T, n_width, w.n);
    for (size_t i = 0; a->vector && i < T * w.n; i++)
        a->y[i] += a->vector[i % w.n];
    mem_free(x);
    mem_free(y);
    mem_free(h);
    mem_free(w.w);
    return ST_OK;
}

static void run_rope(const struct op_args *a) {
    uint32_t half = a->head_dim / 2;
    float *c = mem_calloc(half, sizeof(*c)), *s = mem_calloc(half, sizeof(*s));

    for (uint32_t t = 0; t < a->n_tokens; t++) {
        float *row = a->y + (size_t)t * a->n_heads * a->head_dim;

        for (uint32_t i = 0; i < half; i++) {
            c[i] = cosf((float)a->index[t] * a->vector[i]) * a->scalar;
            s[i] = sinf((float)a->index[t] * a->vector[i]) * a->scalar;
        }
        memcpy(row, a->x + (size_t)t * a->n_heads * a->head_dim,
               (size_t)a->n_heads * a->head_dim * sizeof(float));
        for (uint32_t h = 0; h < a->n_heads; h++)
            cpu_rope_head(row + h * a->head_dim, c, s, a->head_dim);
    }
    mem_free(c);
    mem_free(s);
}

/* Tile by tile, as a step does; positions need not follow each other here, so tiles are cut where
 * they fall. */
static void run_attention(const struct cpu_path *path, const struct op_args *a) {
    uint32_t heads = a->n_heads / a->n_kv_heads, most = attend_queries(heads), n;
    size_t row = (size_t)a->n_heads * a->head_dim;
    struct geometry g = op_pool_geometry(a);
    uint32_t size = a->block_size;
    uint8_t *pool = a->pool;
    uint32_t n_all = (uint32_t)(a->n_tokens * row), n_padded = ALIGN_UP(n_all, PANEL);
    float *y = mem_calloc(n_padded, sizeof(*y));
    void *out = new_acts(path, n_padded);
    void *scratch = mem_calloc(attend_scratch_bytes(heads, a->head_dim), 1);

    for (uint32_t t = 0; t < a->n_tokens; t += n) {
        for (n = 1; n < most && t + n < a->n_tokens && a->index[t + n] >= a->index[t + n - 1];)
            n++;
        for (uint32_t h = 0; h < a->n_kv_heads; h++) {
            size_t at = t * row + (size_t)h * heads * a->head_dim;
            struct attend job = {.q = a->x + at,
                                 .q_stride = row,
                                 .out = (char *)out + at * path->act_bytes,
                                 .out_stride = row,
                                 .position = (const uint32_t *)a->index + t,
                                 .n_queries = n,
                                 .heads = heads,
                                 .head_dim = a->head_dim,
                                 .window = a->window,
                                 .k = pool + kv_tile_at(&g, size, 0, 0, h),
                                 .v = pool + kv_tile_at(&g, size, 0, 1, h),
                                 .k_scales = pool + kv_scales_at(&g, size, 0, 0, h),
                                 .v_scales = pool + kv_scales_at(&g, size, 0, 1, h),
                                 .block_stride = kv_layout_block_bytes(&g, size),
                                 .block_size = size,
                                 .table = (const uint32_t *)a->table,
                                 .scratch = scratch};

            path->attend[a->pool_dtype](&job);
        }
    }
    path->from_act(y, out, n_padded);
    unpad(a->y, y, 1, n_padded, n_all);
    mem_free(y);
    mem_free(out);
    mem_free(scratch);
}

static void run_swiglu(const struct cpu_path *path, const struct op_args *a, size_t n) {
    size_t width = ALIGN_UP(n, PANEL);
    float *gate = padded(a->x, 1, n, width), *up = padded(a->x2, 1, n, width);
    void *y = new_acts(path, width);

    path->swiglu(y, gate, up, (uint32_t)width);
    path->from_act(gate, y, (uint32_t)width);
    unpad(a->y, gate, 1, width, n);
    mem_free(gate);
    mem_free(up);
    mem_free(y);
}

enum status cpu_run_op(struct backend_device *dev, const char *name,
                       const struct backend_tensor *in, uint32_t n_in, struct backend_tensor *out,
                       uint32_t n_out, struct error *err) {
    struct op_args a;
    enum status st = op_args_read(&a, name, in, n_in, out, n_out, err);

    if (st != ST_OK) return st;
    switch (a.kind) {
    case OP_RMSNORM: run_rmsnorm(dev->path, &a, (uint32_t)in[0].shape[1]); break;
    case OP_LINEAR: return run_linear(dev->path, &a, err);
    case OP_ROPE: run_rope(&a); break;
    case OP_SWIGLU: run_swiglu(dev->path, &a, in[0].shape[0] * in[0].shape[1]); break;
    case OP_ATTENTION:
        if (a.head_dim % 2 || a.head_dim > HOST_MAX_HEAD_DIM)
            return error_set(err, ST_UNSUPPORTED, "attention with head_dim %u: even numbers to %u",
                             a.head_dim, HOST_MAX_HEAD_DIM);
        run_attention(dev->path, &a);
        break;
    case OP_EMBED:
    case OP_KV_WRITE:
        return error_set(err, ST_UNSUPPORTED, "operator %s: cpu copies, as ref does", name);
    }
    return ST_OK;
}
