/* kernels/op_args.c - see op_args.h. One row per operator: how many inputs, and of what rank. */
#include "kernels/op_args.h"

#include <string.h>

#include "kernels/kv_layout.h"
#include "kernels/quant.h"

#define OP_MAX_INPUTS 5

/* What an input may be: f32, i32, a weight of any float type, a pool of any type. */
enum { F = 1, I, W, P };

struct op_def {
    const char *name;
    enum op_kind kind;
    uint32_t min_in, n_in;
    struct {
        uint8_t type, n_dims;
    } in[OP_MAX_INPUTS];
    uint32_t out_dims; /* rank of the output; the output of kv_write is the pool */
};

static const struct op_def op_defs[] = {
    {"embed", OP_EMBED, 2, 2, {{W, 2}, {I, 1}}, 2},
    {"rmsnorm", OP_RMSNORM, 3, 3, {{F, 2}, {F, 1}, {F, 1}}, 2},
    {"linear", OP_LINEAR, 2, 3, {{F, 2}, {W, 2}, {F, 1}}, 2},
    {"rope", OP_ROPE, 4, 4, {{F, 3}, {I, 1}, {F, 1}, {F, 1}}, 3},
    {"kv_write", OP_KV_WRITE, 3, 3, {{F, 3}, {F, 3}, {I, 1}}, 5},
    {"attention", OP_ATTENTION, 5, 5, {{F, 3}, {P, 5}, {I, 1}, {I, 1}, {I, 1}}, 3},
    {"swiglu", OP_SWIGLU, 2, 2, {{F, 2}, {F, 2}}, 2},
};

static bool has_type(const struct backend_tensor *t, uint8_t type) {
    switch (type) {
    case F: return t->dtype == DTYPE_F32;
    case I: return t->dtype == DTYPE_I32;
    case W: return dtype_is_float(t->dtype) || quant_is_type(t->dtype);
    case P: return dtype_is_float(t->dtype) || kv_scale_bytes(t->dtype);
    default: return false;
    }
}

static uint64_t n_elements(const struct backend_tensor *t) {
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims && i < 4; i++)
        n *= t->shape[i];
    return n;
}

static enum status wrong(struct error *err, const char *name, const char *what) {
    return error_set(err, ST_INVALID, "operator %s: %s: see kernels/README.md", name, what);
}

/* A pool is given as rank 5 in four numbers: (n_blocks, n_kv_heads, block_size, head_dim), each
 * block as in kv_layout.h with one layer. */
static uint64_t pool_bytes(const struct backend_tensor *t) {
    uint64_t n_vectors = 2 * t->shape[0] * t->shape[1] * t->shape[2];

    return n_vectors * (t->shape[3] * dtype_bytes(t->dtype) + kv_scale_bytes(t->dtype));
}

static bool is_sound(const struct backend_tensor *t, uint8_t type, uint32_t n_dims) {
    if (!has_type(t, type) || t->n_dims != MIN(n_dims, 4u) || !t->data) return false;
    if (type == P) return t->n_bytes == pool_bytes(t);
    if (quant_is_type(t->dtype)) return quant_check(t, "of an operator", NULL) == ST_OK;
    return t->n_bytes == n_elements(t) * dtype_bytes(t->dtype);
}

struct geometry op_pool_geometry(const struct op_args *a) {
    return (struct geometry){.n_layers = 1,
                             .n_kv_heads = a->n_kv_heads,
                             .head_dim = a->head_dim,
                             .kv_dtype = a->pool_dtype};
}

static bool same(uint64_t a, uint64_t b) {
    return a == b;
}

static void take_pool(struct op_args *a, const struct backend_tensor *t) {
    a->pool = t->data;
    a->pool_dtype = t->dtype;
    a->n_blocks = (uint32_t)t->shape[0];
    a->n_kv_heads = (uint32_t)t->shape[1];
    a->block_size = (uint32_t)t->shape[2];
    a->head_dim = (uint32_t)t->shape[3];
}

static bool take_heads(struct op_args *a, const struct backend_tensor *t) {
    a->x = t->data;
    a->n_tokens = (uint32_t)t->shape[0];
    a->n_heads = (uint32_t)t->shape[1];
    a->head_dim = (uint32_t)t->shape[2];
    return a->n_tokens && a->n_heads && a->head_dim && a->head_dim % 2 == 0;
}

static bool indices_below(const int32_t *index, uint64_t n, int64_t low, int64_t limit) {
    for (uint64_t i = 0; i < n; i++) {
        if (index[i] < low || index[i] >= limit) return false;
    }
    return true;
}

static bool read_attention(struct op_args *a, const struct backend_tensor *in,
                           const struct backend_tensor *out) {
    uint32_t head_dim;

    if (!take_heads(a, &in[0])) return false;
    head_dim = a->head_dim;
    take_pool(a, &in[1]);
    a->table = in[2].data;
    a->index = in[3].data;
    a->window = (uint32_t) * (const int32_t *)in[4].data;
    a->y = out->data;
    return head_dim == a->head_dim && same(in[3].shape[0], a->n_tokens) && a->n_kv_heads &&
           a->block_size && a->n_heads % a->n_kv_heads == 0 && in[4].shape[0] == 1 &&
           n_elements(out) == n_elements(&in[0]) &&
           indices_below(a->table, in[2].shape[0], 0, a->n_blocks) &&
           indices_below(a->index, a->n_tokens, 0, (int64_t)(in[2].shape[0] * a->block_size));
}

static bool read_by_kind(struct op_args *a, const struct backend_tensor *in, uint32_t n_in,
                         const struct backend_tensor *out) {
    uint64_t t = in[0].shape[0], d = in[0].shape[1];

    a->x = in[0].data;
    a->n_tokens = (uint32_t)t;
    a->y = out->data;
    switch (a->kind) {
    case OP_EMBED:
        a->matrix = &in[0];
        a->index = in[1].data;
        a->n_tokens = (uint32_t)in[1].shape[0];
        return !in[0].quant && same(out->shape[0], a->n_tokens) && same(out->shape[1], d) &&
               indices_below(a->index, a->n_tokens, 0, (int64_t)t);
    case OP_RMSNORM:
        a->vector = in[1].data;
        a->scalar = *(const float *)in[2].data;
        return same(in[1].shape[0], d) && same(in[2].shape[0], 1) && same(n_elements(out), t * d);
    case OP_LINEAR:
        a->matrix = &in[1];
        a->vector = n_in > 2 ? in[2].data : NULL;
        return same(in[1].shape[1], d) && same(out->shape[0], t) &&
               same(out->shape[1], in[1].shape[0]) &&
               (n_in < 3 || same(in[2].shape[0], in[1].shape[0]));
    case OP_ROPE:
        a->index = in[1].data;
        a->vector = in[2].data;
        a->scalar = *(const float *)in[3].data;
        return take_heads(a, &in[0]) && same(in[1].shape[0], t) &&
               same(in[2].shape[0] * 2, a->head_dim) && same(in[3].shape[0], 1) &&
               same(n_elements(out), n_elements(&in[0])) &&
               indices_below(a->index, t, 0, INT32_MAX);
    case OP_KV_WRITE:
        if (!take_heads(a, &in[0])) return false;
        a->x2 = in[1].data;
        a->index = in[2].data;
        a->y = NULL;
        take_pool(a, out);
        return same(in[0].shape[1], a->n_kv_heads) && same(in[0].shape[2], a->head_dim) &&
               same(n_elements(&in[1]), n_elements(&in[0])) && same(in[2].shape[0], t) &&
               indices_below(a->index, t, -1, (int64_t)a->n_blocks * a->block_size);
    case OP_ATTENTION: return read_attention(a, in, out);
    default:
        a->x2 = in[1].data;
        return same(n_elements(&in[1]), t * d) && same(n_elements(out), t * d);
    }
}

enum status op_args_read(struct op_args *a, const char *name, const struct backend_tensor *in,
                         uint32_t n_in, struct backend_tensor *out, uint32_t n_out,
                         struct error *err) {
    const struct op_def *def = NULL;

    for (size_t i = 0; i < ARRAY_LEN(op_defs); i++) {
        if (strcmp(op_defs[i].name, name) == 0) def = &op_defs[i];
    }
    if (!def) return error_set(err, ST_UNSUPPORTED, "no operator %s: see kernels/README.md", name);
    if (n_in < def->min_in || n_in > def->n_in || n_out != 1)
        return wrong(err, name, "wrong number of inputs or outputs");
    for (uint32_t i = 0; i < n_in; i++) {
        if (!is_sound(&in[i], def->in[i].type, def->in[i].n_dims))
            return wrong(err, name, "an input has the wrong type, rank or size");
    }
    if (!is_sound(out, def->out_dims == 5 ? P : F, def->out_dims))
        return wrong(err, name, "the output has the wrong type, rank or size");
    memset(a, 0, sizeof(*a));
    a->kind = def->kind;
    if (!read_by_kind(a, in, n_in, out)) return wrong(err, name, "the shapes do not fit together");
    return ST_OK;
}
