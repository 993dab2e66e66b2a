/* kernels/ref/matrix.c - see matrix.h. A quantised matrix is one block: codes, struct
 * backend_quant, scales, order, zeros. */
#include "kernels/ref/matrix.h"

#include <string.h>

#include "kernels/quant.h"

static enum status keep_plain(struct host_model *h, struct ref_matrix *w,
                              const struct backend_tensor *t, struct error *err) {
    size_t n = (size_t)(t->shape[0] * t->shape[1]);
    enum dtype kept = h->g.weight_dtype;
    void *data;
    enum status st = host_alloc(h, &data, n * dtype_bytes(kept), "weights", err);

    if (st != ST_OK) return st;
    if (t->dtype == kept) {
        memcpy(data, t->data, t->n_bytes);
    } else {
        for (size_t i = 0; i < n; i++)
            dtype_put(kept, data, i, dtype_get(t->dtype, t->data, i));
    }
    *w = (struct ref_matrix){data, kept, (uint32_t)t->shape[0], (uint32_t)t->shape[1], NULL};
    return ST_OK;
}

/* Copies n bytes to *at and moves it on; NULL stays NULL. */
static const void *put(char **at, const void *from, uint64_t n) {
    const void *to = *at;

    if (!from) return NULL;
    memcpy(*at, from, n);
    *at += n;
    return to;
}

static enum status keep_quant(struct host_model *h, struct ref_matrix *w,
                              const struct backend_tensor *t, struct error *err) {
    struct backend_quant q = *t->quant, *kept;
    uint64_t n = t->shape[0], k = t->shape[1], row_groups = quant_row_groups(&q, k);
    uint64_t n_scales = CEIL_DIV(n, (uint64_t)q.group_n) * row_groups * sizeof(*q.scale);
    uint64_t n_order = q.order ? k * sizeof(*q.order) : 0;
    uint64_t n_zeros = q.zero ? n * row_groups * sizeof(*q.zero) : 0;
    uint64_t n_codes = ALIGN_UP(t->n_bytes, (uint64_t)16);
    void *data;
    char *at;
    enum status st =
        host_alloc(h, &data, n_codes + sizeof(q) + n_scales + n_order + n_zeros, "weights", err);

    if (st != ST_OK) return st;
    memcpy(data, t->data, t->n_bytes);
    at = (char *)data + n_codes;
    kept = (struct backend_quant *)(void *)at;
    at += sizeof(q);
    q.scale = put(&at, q.scale, n_scales);
    q.order = put(&at, q.order, n_order);
    q.zero = put(&at, q.zero, n_zeros);
    *kept = q;
    *w = (struct ref_matrix){data, t->dtype, (uint32_t)n, (uint32_t)k, kept};
    return ST_OK;
}

enum status ref_matrix_keep(struct host_model *h, struct ref_matrix *w,
                            const struct backend_tensor *t, struct error *err) {
    return (t->quant ? keep_quant : keep_plain)(h, w, t, err);
}
