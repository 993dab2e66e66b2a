/* tests/unit/cuda/shim/attend_case.h - rows with random queries, keys and values, for the attention
 * tests.
 *
 * The pool has two layers; the second counts. Blocks are dealt in random order. All that no
 * query may see is NaN: free blocks, slots past a row's context, the null block, which stands in
 * the table for blocks below a window. Of a quantised pool these are NaN codes, and all bytes of
 * scales that were never written are ff, which is a NaN. The outputs begin as NaN, too. */
#ifndef TESTS_UNIT_CUDA_SHIM_ATTEND_CASE_H
#define TESTS_UNIT_CUDA_SHIM_ATTEND_CASE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/kv_quant.h"
#include "tests/shim/shim_control.h"

#define CASE_BOUND 4e-3 /* of |out - exact| / |exact|, over the heads of a token */
#define CASE_LAYER 1    /* of two */

static enum dtype case_kv_dtype = DTYPE_BF16; /* of cases that are made from now on */

struct attend_case {
    struct attend_shape shape;
    uint32_t window;
    const struct backend_row *rows;
    uint32_t n_rows, n_tokens;
    uint32_t n_blocks, table_stride;
    struct geometry g; /* of the pool */
    uint16_t *qkv, *mix;
    uint8_t *pool;
    int32_t *table;
    float *partial, *partial_state;
    uint32_t *ended;
    uint32_t n_partials;
};

static inline float case_normal(struct rng *rng) {
    float sum = 0;

    for (int i = 0; i < 6; i++)
        sum += (float)(rng_u64(rng) >> 40) / (float)(1 << 24) - 0.5f;
    return sum * 1.4142f;
}

static inline uint16_t case_nan(struct rng *rng) {
    return (uint16_t)(0x7F80 | (rng_u64(rng) & 0x8000) | (1 + rng_u64(rng) % 0x7F));
}

static inline uint32_t case_window_start(const struct attend_case *c, uint32_t position) {
    return c->window && position >= c->window ? position - c->window + 1 : 0;
}

/* First position that the row's first query sees. */
static inline uint32_t case_row_start(const struct attend_case *c, const struct backend_row *row) {
    return case_window_start(c, row->context_len - row->n_tokens);
}

static inline uint64_t case_block_bytes(const struct attend_case *c) {
    return kv_layout_block_bytes(&c->g, ATTEND_PAGE);
}

static inline uint8_t *case_block(const struct attend_case *c, uint32_t row, uint32_t position) {
    size_t block = (size_t)c->table[(size_t)row * c->table_stride + position / ATTEND_PAGE];

    return c->pool + block * case_block_bytes(c);
}

/* K (which 0) or V of a row's position, in the layer that counts: its elements, its scale. */
static inline uint8_t *case_at(const struct attend_case *c, uint32_t row, uint32_t position,
                               uint32_t which, uint32_t kv_head) {
    return case_block(c, row, position) +
           kv_tile_at(&c->g, ATTEND_PAGE, CASE_LAYER, which, kv_head) +
           (size_t)position % ATTEND_PAGE * c->g.head_dim * dtype_bytes(c->g.kv_dtype);
}
static inline uint8_t *case_scale_at(const struct attend_case *c, uint32_t row, uint32_t position,
                                     uint32_t which, uint32_t kv_head) {
    return case_block(c, row, position) +
           kv_scales_at(&c->g, ATTEND_PAGE, CASE_LAYER, which, kv_head) +
           (size_t)position % ATTEND_PAGE;
}

/* Stores a vector of bf16 there. */
static inline void case_put(const struct attend_case *c, uint32_t row, uint32_t position,
                            uint32_t which, uint32_t kv_head, const uint16_t *vector) {
    uint8_t *to = case_at(c, row, position, which, kv_head);
    float x[128];

    if (!kv_is_quantised(c->g.kv_dtype)) {
        memcpy(to, vector, c->g.head_dim * sizeof(*vector));
        return;
    }
    for (uint32_t i = 0; i < c->g.head_dim; i++)
        x[i] = f32_of_bf16(vector[i]);
    kv_quantise(c->g.kv_dtype, x, c->g.head_dim, to,
                case_scale_at(c, row, position, which, kv_head));
}

/* What is stored there. */
static inline void case_get(const struct attend_case *c, uint32_t row, uint32_t position,
                            uint32_t which, uint32_t kv_head, double *x) {
    const uint8_t *from = case_at(c, row, position, which, kv_head);
    const uint8_t *scale = case_scale_at(c, row, position, which, kv_head);
    enum dtype kv = c->g.kv_dtype;

    for (uint32_t i = 0; i < c->g.head_dim; i++)
        x[i] = kv_is_quantised(kv)
                   ? (double)kv_code_value(kv, from, i) * (double)kv_scale_of_e8m0(*scale)
                   : (double)dtype_get(kv, from, i);
}

static inline void case_deal_blocks(struct attend_case *c, struct rng *rng) {
    uint32_t *deck = mem_calloc(c->n_blocks, sizeof(*deck)), next = 0;

    for (uint32_t i = 1; i < c->n_blocks; i++) {
        uint32_t j = (uint32_t)(rng_u64(rng) % i);

        deck[i - 1] = deck[j];
        deck[j] = i;
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        uint32_t from = case_row_start(c, &c->rows[r]) / ATTEND_PAGE;

        for (uint32_t i = from; i < CEIL_DIV(c->rows[r].context_len, ATTEND_PAGE); i++)
            c->table[c->rows[r].row * c->table_stride + i] = (int32_t)deck[next++];
    }
    mem_free(deck);
}

/* Of a quantised pool vectors have sizes of their own: a neighbour's scale is a wrong one. */
static inline float case_size(const struct attend_case *c, uint32_t position, uint32_t which) {
    static const float k[] = {0.5f, 1.0f, 0.75f, 1.25f, 0.9f},
                       v[] = {0.125f, 3.0f, 1.0f, 9.0f, 0.5f, 0.04f};

    if (!kv_is_quantised(c->g.kv_dtype)) return 1.0f;
    return which ? v[position % ARRAY_LEN(v)] : k[position % ARRAY_LEN(k)];
}

static inline void case_fill(struct attend_case *c, struct rng *rng) {
    uint32_t hd = c->shape.head_dim, width = (c->shape.n_heads + 2 * c->shape.n_kv_heads) * hd;

    uint16_t vector[128];

    memset(c->pool, 0xFF, c->n_blocks * case_block_bytes(c)); /* bf16, e4m3, scales: NaN */
    for (size_t i = 0; !kv_is_quantised(c->g.kv_dtype) && i < c->n_blocks * case_block_bytes(c) / 2;
         i++)
        ((uint16_t *)(void *)c->pool)[i] = case_nan(rng);
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t t = case_row_start(c, &c->rows[r]); t < c->rows[r].context_len; t++)
            for (uint32_t h = 0; h < 2 * c->shape.n_kv_heads; h++) {
                float size = case_size(c, t, h & 1);

                for (uint32_t i = 0; i < hd; i++)
                    vector[i] = bf16_of_f32(case_normal(rng) * size);
                case_put(c, c->rows[r].row, t, h & 1, h >> 1, vector);
            }
    for (size_t i = 0; i < (size_t)c->n_tokens * width; i++)
        c->qkv[i] = case_nan(rng);
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t t = 0; t < c->rows[r].n_tokens; t++)
            for (uint32_t i = 0; i < c->shape.n_heads * hd; i++)
                c->qkv[(c->rows[r].first_token + t) * width + i] = bf16_of_f32(case_normal(rng));
}

/* The rows stay the caller's. max_rows, max_step_tokens: of the shape, or as the rows need. */
static inline void case_init(struct attend_case *c, const struct attend_shape *shape,
                             const struct backend_row *rows, uint32_t n_rows, uint32_t n_tokens,
                             uint32_t window, uint32_t n_partials, uint64_t seed) {
    struct rng rng;
    size_t hd = shape->head_dim, heads = shape->n_heads;

    rng_seed(&rng, seed);
    *c = (struct attend_case){.shape = *shape,
                              .window = window,
                              .rows = rows,
                              .n_rows = n_rows,
                              .n_tokens = n_tokens,
                              .n_blocks = 3,
                              .g = {.n_layers = 2,
                                    .n_kv_heads = shape->n_kv_heads,
                                    .head_dim = shape->head_dim,
                                    .kv_dtype = case_kv_dtype},
                              .n_partials = n_partials};
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t n = CEIL_DIV(rows[r].context_len, ATTEND_PAGE);

        c->n_blocks += n;
        c->table_stride = MAX(c->table_stride, n + 1);
    }
    c->qkv = mem_calloc(n_tokens * (heads + 2 * shape->n_kv_heads) * hd, 2);
    c->mix = mem_calloc(n_tokens * heads * hd, 2);
    c->pool = mem_calloc(c->n_blocks, case_block_bytes(c));
    c->table = mem_calloc((size_t)shape->max_rows * c->table_stride, sizeof(*c->table));
    c->partial = mem_calloc(MAX(n_partials, 1) * heads * hd, sizeof(float));
    c->partial_state = mem_calloc(MAX(n_partials, 1) * heads * 2, sizeof(float));
    c->ended = mem_calloc(MAX(n_partials, 1) * shape->n_kv_heads, sizeof(*c->ended));
    case_deal_blocks(c, &rng);
    case_fill(c, &rng);
}

static inline void case_fini(struct attend_case *c) {
    mem_free(c->qkv);
    mem_free(c->mix);
    mem_free(c->pool);
    mem_free(c->table);
    mem_free(c->partial);
    mem_free(c->partial_state);
    mem_free(c->ended);
}

static inline void case_poison(struct attend_case *c) {
    size_t heads = c->shape.n_heads, hd = c->shape.head_dim;

    memset(c->mix, 0xFF, c->n_tokens * heads * hd * 2);
    memset(c->partial, 0xFF, c->n_partials * heads * hd * sizeof(float));
    memset(c->partial_state, 0xFF, c->n_partials * heads * 2 * sizeof(float));
}

static inline struct attend_args case_args(const struct attend_case *c) {
    const struct attend_shape *s = &c->shape;

    return (struct attend_args){
        .qkv = c->qkv,
        .k = c->pool + kv_tile_at(&c->g, ATTEND_PAGE, CASE_LAYER, 0, 0),
        .v = c->pool + kv_tile_at(&c->g, ATTEND_PAGE, CASE_LAYER, 1, 0),
        .scales = c->pool + kv_scales_at(&c->g, ATTEND_PAGE, CASE_LAYER, 0, 0),
        .table = c->table,
        .partial = c->partial,
        .partial_state = c->partial_state,
        .ended = c->ended,
        .mix = c->mix,
        .qkv_stride = (int64_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim,
        .block_stride = (int64_t)case_block_bytes(c),
        .kv_dtype = c->g.kv_dtype,
        .table_stride = (int32_t)c->table_stride,
        .n_heads = (int32_t)s->n_heads,
        .n_kv_heads = (int32_t)s->n_kv_heads,
        .head_dim = (int32_t)s->head_dim,
        .window = (int32_t)c->window,
        .scale_log2 = (float)(1.4426950408889634 / sqrt(s->head_dim)),
    };
}

/* Plans and runs the layer; bucket as in attend_plan. The partials must be as many as the planner
 * of given by the case's shape. */
static inline void case_run(struct attend_case *c, struct attend_planner *p, uint32_t n_real,
                            uint32_t bucket) {
    struct attend_args args = case_args(c);
    struct attend_grid grid;
    void *list = mem_alloc(attend_list_bytes(p));

    memset(list, 0xA5, attend_list_bytes(p));
    case_poison(c);
    attend_plan(p, c->rows, c->n_rows, n_real, c->n_tokens, bucket, c->window, list, &grid);
    attend_layer(NULL, &args, list, &grid);
    mem_free(list);
}

/* Exact attention of one head of one token, in double. */
static inline void case_exact(const struct attend_case *c, const struct backend_row *row,
                              uint32_t i, uint32_t head, double *o, double *weight) {
    uint32_t hd = c->shape.head_dim, kv_head = head / (c->shape.n_heads / c->shape.n_kv_heads);
    uint32_t last = row->context_len - row->n_tokens + i, first = case_window_start(c, last);
    const uint16_t *q =
        c->qkv +
        (size_t)(row->first_token + i) * (c->shape.n_heads + 2 * c->shape.n_kv_heads) * hd +
        (size_t)head * hd;
    double max = -INFINITY, sum = 0, x[128];

    for (uint32_t t = first; t <= last; t++) {
        double dot = 0;

        case_get(c, row->row, t, 0, kv_head, x);
        for (uint32_t e = 0; e < hd; e++)
            dot += (double)f32_of_bf16(q[e]) * x[e];
        weight[t - first] = dot / sqrt(hd);
        max = weight[t - first] > max ? weight[t - first] : max;
    }
    memset(o, 0, hd * sizeof(*o));
    for (uint32_t t = first; t <= last; t++) {
        double w = exp(weight[t - first] - max);

        case_get(c, row->row, t, 1, kv_head, x);
        sum += w;
        for (uint32_t e = 0; e < hd; e++)
            o[e] += w * x[e];
    }
    for (uint32_t e = 0; e < hd; e++)
        o[e] /= sum;
}

/* All exact results, (n_tokens, n_heads, hd); tokens of no row are 0. */
static inline double *case_reference(const struct attend_case *c) {
    size_t hd = c->shape.head_dim, heads = c->shape.n_heads;
    double *exact = mem_calloc(c->n_tokens * heads * hd, sizeof(*exact)), *weight;

    weight = mem_calloc((size_t)c->table_stride * ATTEND_PAGE, sizeof(*weight));
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t i = 0; i < c->rows[r].n_tokens; i++)
            for (uint32_t h = 0; h < heads; h++)
                case_exact(c, &c->rows[r], i, h,
                           exact + ((c->rows[r].first_token + i) * heads + h) * hd, weight);
    mem_free(weight);
    return exact;
}

/* The worst relative error of a token; infinite where there is a NaN, or padding is not zero. */
static inline double case_error(const struct attend_case *c, const double *exact) {
    size_t width = (size_t)c->shape.n_heads * c->shape.head_dim;
    double worst = 0;

    for (size_t t = 0; t < c->n_tokens; t++) {
        double error = 0, size = 0;

        for (size_t i = t * width; i < (t + 1) * width; i++) {
            double delta = (double)f32_of_bf16(c->mix[i]) - exact[i];

            error += delta * delta;
            size += exact[i] * exact[i];
        }
        error = size > 0 ? sqrt(error / size) : error > 0 ? INFINITY : error;
        if (!(error <= worst)) worst = error;
        if (isnan(worst)) return INFINITY;
    }
    return worst;
}

#endif
