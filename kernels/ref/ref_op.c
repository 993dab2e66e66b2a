/* kernels/ref/ref_op.c - see ref_op.h. */
#include "kernels/ref/ref_op.h"

#include <string.h>

#include "common/base/mem.h"
#include "kernels/kv_layout.h"
#include "kernels/op_args.h"

static struct ref_pool pool_of(const struct op_args *a) {
    struct geometry g = op_pool_geometry(a);
    uint32_t size = a->block_size;
    uint8_t *pool = a->pool;

    return (struct ref_pool){pool,
                             pool + kv_tile_at(&g, size, 0, 1, 0),
                             pool + kv_scales_at(&g, size, 0, 0, 0),
                             pool + kv_scales_at(&g, size, 0, 1, 0),
                             a->pool_dtype,
                             kv_layout_block_bytes(&g, size),
                             size,
                             a->n_kv_heads,
                             a->head_dim};
}

static void run_attention(const struct op_args *a) {
    struct ref_pool pool = pool_of(a);
    size_t row = (size_t)a->n_heads * a->head_dim;

    for (uint32_t t = 0; t < a->n_tokens; t++) {
        uint32_t last = (uint32_t)a->index[t];
        uint32_t first = a->window && last >= a->window ? last - a->window + 1 : 0;
        float *scores = mem_calloc(last + 1ull, sizeof(float));

        ref_attention(a->y + t * row, a->x + t * row, &pool, (const uint32_t *)a->table, a->n_heads,
                      first, last, scores);
        mem_free(scores);
    }
}

static void run_kv_write(const struct op_args *a) {
    struct ref_pool pool = pool_of(a);
    size_t row = (size_t)a->n_kv_heads * a->head_dim;

    for (size_t t = 0; t < a->n_tokens; t++) {
        int64_t slot = a->index[t];

        ref_kv_write(&pool, a->x + t * row, a->x2 + t * row, &slot, 1, 0);
    }
}

enum status ref_run_op(const char *name, const struct backend_tensor *in, uint32_t n_in,
                       struct backend_tensor *out, uint32_t n_out, struct error *err) {
    struct op_args a;
    struct ref_matrix w;
    enum status st = op_args_read(&a, name, in, n_in, out, n_out, err);

    if (st != ST_OK) return st;
    if (a.matrix)
        w = (struct ref_matrix){a.matrix->data, a.matrix->dtype, (uint32_t)a.matrix->shape[0],
                                (uint32_t)a.matrix->shape[1], a.matrix->quant};
    switch (a.kind) {
    case OP_EMBED: ref_embed(a.y, &w, (const uint32_t *)a.index, a.n_tokens); break;
    case OP_RMSNORM:
        ref_rmsnorm(a.y, a.x, a.vector, a.n_tokens, (uint32_t)in[0].shape[1], a.scalar);
        break;
    case OP_LINEAR: ref_linear(a.y, a.x, &w, a.vector, a.n_tokens); break;
    case OP_ROPE:
        memcpy(a.y, a.x, in[0].n_bytes);
        ref_rope(a.y, (const uint32_t *)a.index, a.vector, a.scalar, a.n_tokens, a.n_heads,
                 a.head_dim, (size_t)a.n_heads * a.head_dim);
        break;
    case OP_KV_WRITE: run_kv_write(&a); break;
    case OP_ATTENTION: run_attention(&a); break;
    case OP_SWIGLU: ref_swiglu(a.y, a.x, a.x2, in[0].shape[0] * in[0].shape[1]); break;
    }
    return ST_OK;
}
