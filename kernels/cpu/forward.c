/* kernels/cpu/forward.c - one step through the decoder.
 *
 *      embed ─▶ ┌ norm ─▶ q,k,v ─▶ rope, write K and V ─▶ attention ─▶ o ─▶ x += ┐
 *               └ norm ─▶ gate,up ─▶ swiglu ─▶ down ─▶ x += ─────────────────────┘ per layer
 *      rows with an output ─▶ norm ─▶ head ─▶ sample
 *
 * Each arrow is a region of the thread pool. A matrix product is cut into chunks of panels by
 * rows, and what follows it elementwise (bias, residual, SwiGLU) is done by the chunk while its
 * results are in cache. All K and V of a layer are in the pool before its attention starts, so a
 * query finds those of its own step where it finds all others. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu_internal.h"
#include "kernels/kv_quant.h"
#include "kernels/quant.h"

#define ROWS_PER_CHUNK 16u    /* of norm, rope and embed */
#define SMALL_WORK     400000 /* multiply-adds: 10 us of one thread, less than waking another */

static const void *act_row(const struct backend_model *m, const void *x, size_t stride,
                           size_t row) {
    return (const char *)x + row * stride * m->path->act_bytes;
}

static void *act_at(const struct backend_model *m, void *x, size_t stride, size_t row,
                    size_t column) {
    return (char *)x + (row * stride + column) * m->path->act_bytes;
}

/* --- matrix products ------------------------------------------------------------------------- */

enum epilogue {
    TO_QKV,    /* qkv = y + bias */
    TO_X,      /* x += y + bias */
    TO_SUM,    /* a rank's turn: the running sums go on */
    TO_SWIGLU, /* ff = silu(gate) * up, from alternating panels */
    TO_LOGITS,
};

struct product {
    struct backend_model *m;
    const struct cpu_weights *w;
    const void *x; /* act (n_rows, stride) */
    const float *bias;
    enum epilogue epilogue;
    uint32_t n_rows, rows_per_chunk, panels_per_chunk, n_panel_chunks;
    size_t stride; /* acts */
    float *sums;   /* (n_rows, d_width) of TO_SUM */
};

struct preparation {
    struct backend_model *m;
    const struct cpu_matrix *w;
    const void *x;
    size_t stride;
    char *rows;
    uint32_t n_rows;
};

static void run_prepare(void *arg, uint32_t chunk, uint32_t worker) {
    const struct preparation *j = arg;
    const struct cpu_path *path = j->m->path;
    size_t row_bytes = cpu_inputs_bytes(j->w, path->act_bytes);
    uint32_t end = MIN((chunk + 1) * ROWS_PER_CHUNK, j->n_rows);

    (void)worker;
    for (uint32_t t = chunk * ROWS_PER_CHUNK; t < end; t++)
        path->prepare(j->rows + t * row_bytes, j->w, act_row(j->m, j->x, j->stride, t));
}

void cpu_prepare_inputs(struct backend_model *m, const struct cpu_weights *w, const void *x,
                        size_t x_stride, uint32_t n_rows) {
    uint32_t n_chunks = CEIL_DIV(n_rows, ROWS_PER_CHUNK);

    for (uint32_t i = 0; i <= w->n_parts; i++) {
        const struct cpu_matrix *own = i ? &w->own[i - 1] : &w->all;
        struct preparation j = {m, own, x, x_stride, m->prepared[i], n_rows};

        if (own->w && quant_is_type(own->dtype))
            cpu_pool_run(m->dev->pool, n_chunks, n_chunks < 2, run_prepare, &j);
    }
}

static bool is_one_matrix(const struct cpu_weights *w) {
    for (uint32_t i = 0; i < w->n_parts; i++) {
        if (w->own[i].w) return false;
    }
    return true;
}

/* Which matrix has panel *p of the product: 0 `all`, else own[it - 1]. *p becomes its panel, *n how
 * many lie there from that on, at most *n. */
static uint32_t matrix_of(const struct cpu_weights *w, uint32_t *p, uint32_t *n) {
    uint32_t part = 0, next = 1;

    if (is_one_matrix(w)) return 0;
    if (w->is_alternating) {
        part = *p % 2;
        *n = 1;
        if (w->own[part].w) *p /= 2;
    } else {
        while (next < w->n_parts && w->first_panel[next] <= *p)
            part = next++;
        if (next < w->n_parts) *n = MIN(*n, w->first_panel[next] - *p);
        if (w->own[part].w) *p -= w->first_panel[part];
    }
    return w->own[part].w ? part + 1 : 0;
}

void cpu_multiply(const struct backend_model *m, const struct cpu_weights *w, uint32_t p,
                  uint32_t n_panels, const void *x, size_t x_stride, uint32_t r, uint32_t n_rows,
                  float *y, size_t y_stride, bool continues, uint32_t worker) {
    const struct cpu_path *path = m->path;

    for (uint32_t end = p + n_panels, n; p < end; p += n, y += n * PANEL) {
        uint32_t at = p, which;
        const struct cpu_matrix *own;

        n = end - p;
        which = matrix_of(w, &at, &n);
        own = which ? &w->own[which - 1] : &w->all;
        if (quant_is_type(own->dtype))
            path->quant(own, at, n, m->prepared[which] + r * cpu_inputs_bytes(own, path->act_bytes),
                        n_rows, y, y_stride, continues, m->workers[worker].quant);
        else
            path->gemm[own->dtype](cpu_matrix_panel(own, at), n, own->k_pairs,
                                   act_row(m, x, x_stride, r), x_stride, n_rows, y, y_stride,
                                   continues);
    }
}

/* Rows [r, r + n_rows) of panels [p, p + n_panels) into the place they belong. */
static void finish_product(const struct product *j, const float *y, size_t stride, uint32_t r,
                           uint32_t n_rows, uint32_t p, uint32_t n_panels) {
    struct backend_model *m = j->m;
    const struct cpu_path *path = m->path;

    for (uint32_t i = 0; i < n_rows; i++) {
        const float *row = y + i * stride;

        if (j->epilogue == TO_SWIGLU) {
            for (uint32_t q = 0; q < n_panels; q += 2)
                path->swiglu(act_at(m, m->ff, m->ff_stride, r + i, (p + q) / 2 * PANEL),
                             row + q * PANEL, row + (q + 1) * PANEL, PANEL);
        } else if (j->epilogue == TO_X) {
            float *x = m->x + (size_t)(r + i) * m->d_width + p * PANEL;

            path->add(x, row, n_panels * PANEL);
            if (j->bias) path->add(x, j->bias + p * PANEL, n_panels * PANEL);
        } else if (j->bias) {
            path->add(m->qkv + (size_t)(r + i) * m->qkv_width + p * PANEL, j->bias + p * PANEL,
                      n_panels * PANEL);
        }
    }
}

static void run_product(void *arg, uint32_t chunk, uint32_t worker) {
    const struct product *j = arg;
    struct backend_model *m = j->m;
    uint32_t p = chunk % j->n_panel_chunks * j->panels_per_chunk;
    uint32_t r = chunk / j->n_panel_chunks * j->rows_per_chunk;
    uint32_t n_panels = MIN(j->panels_per_chunk, j->w->all.n_panels - p);
    uint32_t n_rows = MIN(j->rows_per_chunk, j->n_rows - r);
    float *y = m->workers[worker].y;
    size_t stride = (size_t)j->panels_per_chunk * PANEL;

    if (j->epilogue == TO_QKV) {
        stride = m->qkv_width;
        y = m->qkv + r * stride + p * PANEL;
    } else if (j->epilogue == TO_SUM) {
        stride = m->d_width;
        y = j->sums + r * stride + p * PANEL;
    } else if (j->epilogue == TO_LOGITS) {
        stride = m->vocab_width;
        y = m->logits + r * stride + m->host.shard.first_token + p * PANEL;
    }
    cpu_multiply(m, j->w, p, n_panels, j->x, j->stride, r, n_rows, y, stride,
                 j->epilogue == TO_SUM && m->host.shard.rank > 0, worker);
    if (j->epilogue == TO_SUM || j->epilogue == TO_LOGITS) return; /* they are where they belong */
    finish_product(j, y, stride, r, n_rows, p, n_panels);
}

static void run(struct product *j) {
    struct backend_model *m = j->m;
    const struct cpu_matrix *w = &j->w->all;
    uint32_t n_threads = cpu_pool_threads(m->dev->pool);
    uint32_t n_row_chunks = CEIL_DIV(j->n_rows, ROW_BLOCK);

    /* Runs of panels, as long as every thread gets some. */
    j->panels_per_chunk = MIN(CHUNK_PANELS, w->n_panels * n_row_chunks / (2 * n_threads)) / 2 * 2;
    j->panels_per_chunk = MAX(j->panels_per_chunk, j->epilogue == TO_SWIGLU ? 2u : 1u);
    j->n_panel_chunks = CEIL_DIV(w->n_panels, j->panels_per_chunk);
    j->rows_per_chunk = CEIL_DIV(j->n_rows, n_row_chunks);
    cpu_pool_run(m->dev->pool, j->n_panel_chunks * CEIL_DIV(j->n_rows, j->rows_per_chunk),
                 (uint64_t)j->n_rows * w->n * w->k < SMALL_WORK, run_product, j);
}

static void product(struct backend_model *m, const struct cpu_weights *w, const void *x,
                    size_t x_stride, uint32_t n_rows, const float *bias, enum epilogue epilogue) {
    struct product j = {.m = m,
                        .w = w,
                        .x = x,
                        .bias = bias,
                        .epilogue = epilogue,
                        .n_rows = n_rows,
                        .stride = x_stride};

    cpu_prepare_inputs(m, w, x, x_stride, n_rows);
    run(&j);
}

struct addition {
    struct backend_model *m;
    const float *sums, *bias;
    uint32_t n_rows;
};

static void run_addition(void *arg, uint32_t chunk, uint32_t worker) {
    const struct addition *j = arg;
    const struct cpu_path *path = j->m->path;
    uint32_t width = j->m->d_width, end = MIN((chunk + 1) * ROWS_PER_CHUNK, j->n_rows);

    (void)worker;
    for (size_t t = chunk * ROWS_PER_CHUNK; t < end; t++) {
        path->add(j->m->x + t * width, j->sums + t * width, width);
        if (j->bias) path->add(j->m->x + t * width, j->bias, width);
    }
}

/* x += in W^T + bias. The inputs of W are divided over the ranks: kernels/tp/sum.h. */
static enum status add_product(struct backend_model *m, const struct cpu_weights *w, const void *in,
                               size_t stride, uint32_t n_rows, const float *bias) {
    struct product j = {.m = m, .w = w, .x = in, .epilogue = TO_SUM, .n_rows = n_rows};
    struct addition addition = {.m = m, .bias = bias, .n_rows = n_rows};
    uint32_t n_chunks = CEIL_DIV(n_rows, ROWS_PER_CHUNK);

    if (m->host.shard.size == 1) {
        product(m, w, in, stride, n_rows, bias, TO_X);
        return ST_OK;
    }
    j.stride = stride;
    cpu_prepare_inputs(m, w, in, stride, n_rows);
    if (!(j.sums = tp_sum_begin(&m->sum))) return ST_CLOSED;
    run(&j);
    if (!(addition.sums = tp_sum_end(&m->sum))) return ST_CLOSED;
    cpu_pool_run(m->dev->pool, n_chunks, n_chunks < 4, run_addition, &addition);
    return ST_OK;
}

/* --- rows ------------------------------------------------------------------------------------ */

struct rows {
    struct backend_model *m;
    const struct backend_stage *s;
    const float *weight;
    uint32_t n_rows, layer;
};

static void run_embed(void *arg, uint32_t chunk, uint32_t worker) {
    const struct rows *j = arg;
    struct backend_model *m = j->m;
    const struct geometry *g = &m->host.g;
    uint32_t half = g->head_dim / 2, end = MIN((chunk + 1) * ROWS_PER_CHUNK, j->n_rows);

    (void)worker;
    for (uint32_t t = chunk * ROWS_PER_CHUNK; t < end; t++) {
        float *x = m->x + (size_t)t * m->d_width;
        size_t first = (size_t)m->host.ids[t] * g->d_model;

        if (!m->embed) cpu_unpack_row(x, &m->head.all, m->host.ids[t]);
        for (uint32_t i = 0; m->embed && i < g->d_model; i++)
            x[i] = dtype_get(g->weight_dtype, m->embed, first + i);
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float)j->s->position[t] * g->inv_freq[i];

            m->cos[(size_t)t * half + i] = cosf(angle) * g->rope_scale;
            m->sin[(size_t)t * half + i] = sinf(angle) * g->rope_scale;
        }
    }
}

static void run_norm(void *arg, uint32_t chunk, uint32_t worker) {
    const struct rows *j = arg;
    struct backend_model *m = j->m;
    uint32_t end = MIN((chunk + 1) * ROWS_PER_CHUNK, j->n_rows);

    (void)worker;
    for (uint32_t t = chunk * ROWS_PER_CHUNK; t < end; t++)
        m->path->rmsnorm(act_at(m, m->h, m->h_stride, t, 0), m->x + (size_t)t * m->d_width,
                         j->weight, m->d_width, m->host.g.d_model, m->host.g.rms_eps);
}

void cpu_rope_head(float *x, const float *cos, const float *sin, uint32_t head_dim) {
    uint32_t half = head_dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];

        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

/* RMSNorm of one head, where the model has it. */
static void norm_head(float *x, const float *w, uint32_t head_dim, float eps) {
    float sum = 0, scale;

    for (uint32_t i = 0; i < head_dim; i++)
        sum += x[i] * x[i];
    scale = 1.0f / sqrtf(sum / (float)head_dim + eps);
    for (uint32_t i = 0; i < head_dim; i++)
        x[i] = x[i] * scale * w[i];
}

static void write_kv(struct backend_model *m, uint32_t layer, int64_t slot, const float *k,
                     const float *v) {
    const struct geometry *g = &m->host.g;
    uint32_t size = m->host.limits.block_size, hd = g->head_dim;
    uint32_t block = (uint32_t)((uint64_t)slot / size), offset = (uint32_t)((uint64_t)slot % size);

    for (uint32_t h = 0; h < 2 * g->n_kv_heads; h++) { /* K and V of each head */
        const float *x = (h % 2 ? v : k) + h / 2 * hd;
        uint8_t *to = host_kv(&m->host, block, layer, h % 2, h / 2) +
                      (size_t)offset * hd * dtype_bytes(g->kv_dtype);

        if (kv_is_quantised(g->kv_dtype))
            kv_quantise(g->kv_dtype, x, hd, to,
                        host_kv_scales(&m->host, block, layer, h % 2, h / 2) + offset);
        else
            for (uint32_t i = 0; i < hd; i++)
                dtype_put(g->kv_dtype, to, i, x[i]);
    }
}

static void run_rope(void *arg, uint32_t chunk, uint32_t worker) {
    const struct rows *j = arg;
    struct backend_model *m = j->m;
    const struct geometry *g = &m->host.g;
    const struct cpu_layer *l = &m->layers[j->layer];
    uint32_t hd = g->head_dim, end = MIN((chunk + 1) * ROWS_PER_CHUNK, j->n_rows);

    (void)worker;
    for (uint32_t t = chunk * ROWS_PER_CHUNK; t < end; t++) {
        float *row = m->qkv + (size_t)t * m->qkv_width, *k = row + m->k_at;

        for (uint32_t h = 0; h < g->n_heads + g->n_kv_heads; h++) {
            const float *w = h < g->n_heads ? l->q_norm : l->k_norm;
            float *x = h < g->n_heads ? row + h * hd : k + (h - g->n_heads) * hd;

            if (w) norm_head(x, w, hd, g->rms_eps);
            cpu_rope_head(x, m->cos + (size_t)t * hd / 2, m->sin + (size_t)t * hd / 2, hd);
        }
        if (j->s->kv_slot[t] >= 0) write_kv(m, j->layer, j->s->kv_slot[t], k, row + m->v_at);
    }
}

/* --- attention ------------------------------------------------------------------------------- */

static uint32_t cut_tiles(struct backend_model *m, const struct backend_stage *s,
                          const struct backend_step *step) {
    uint32_t most = attend_queries(m->host.g.n_heads / m->host.g.n_kv_heads), n = 0;

    for (uint32_t r = 0; r < step->n_rows; r++) {
        for (uint32_t at = 0; at < s->row[r].n_tokens; at += most)
            m->tiles[n++] = (struct attend_tile){s->row[r].row, s->row[r].first_token + at,
                                                 MIN(most, s->row[r].n_tokens - at)};
    }
    return n;
}

struct attention {
    struct backend_model *m;
    const struct backend_stage *s;
    uint32_t layer, n_tiles;
};

static void run_attention(void *arg, uint32_t chunk, uint32_t worker) {
    const struct attention *j = arg;
    struct backend_model *m = j->m;
    const struct geometry *g = &m->host.g;
    uint32_t kv_head = chunk % g->n_kv_heads, heads = g->n_heads / g->n_kv_heads;
    /* the last tiles of a prompt see most positions: they go first */
    const struct attend_tile *t = &m->tiles[j->n_tiles - 1 - chunk / g->n_kv_heads];
    size_t column = (size_t)kv_head * heads * g->head_dim;
    struct attend a = {
        .q = m->qkv + (size_t)t->first_token * m->qkv_width + column,
        .q_stride = m->qkv_width,
        .out = act_at(m, m->mix, m->mix_stride, t->first_token, column),
        .out_stride = m->mix_stride,
        .position = j->s->position + t->first_token,
        .n_queries = t->n_queries,
        .heads = heads,
        .head_dim = g->head_dim,
        .window = g->layer_kind && g->layer_kind[j->layer] ? g->sliding_window : 0,
        .k = host_kv(&m->host, 0, j->layer, 0, kv_head),
        .v = host_kv(&m->host, 0, j->layer, 1, kv_head),
        .k_scales = host_kv_scales(&m->host, 0, j->layer, 0, kv_head),
        .v_scales = host_kv_scales(&m->host, 0, j->layer, 1, kv_head),
        .block_stride = m->host.block_bytes,
        .block_size = m->host.limits.block_size,
        .table = m->host.table + (size_t)t->row * m->host.limits.max_blocks_per_row,
        .scratch = m->workers[worker].attend,
    };

    m->path->attend[g->kv_dtype](&a);
}

static void attention(struct backend_model *m, const struct backend_stage *s,
                      const struct backend_step *step, uint32_t layer, uint32_t n_tiles) {
    const struct geometry *g = &m->host.g;
    struct attention j = {m, s, layer, n_tiles};
    uint64_t work = 0;

    for (uint32_t r = 0; r < step->n_rows; r++)
        work += (uint64_t)s->row[r].n_tokens * s->row[r].context_len * g->n_heads * g->head_dim * 2;
    cpu_pool_run(m->dev->pool, n_tiles * g->n_kv_heads, work < SMALL_WORK, run_attention, &j);
}

/* --- outputs --------------------------------------------------------------------------------- */

struct outputs {
    struct backend_model *m;
    const struct backend_step *step;
    uint32_t slot, first;
};

static void run_sample(void *arg, uint32_t chunk, uint32_t worker) {
    const struct outputs *j = arg;
    struct backend_model *m = j->m;

    host_step_sample(&m->host, j->slot, j->step, j->first + chunk,
                     m->logits + (size_t)chunk * m->vocab_width, m->workers[worker].sample);
}

/* The logits of all ranks are there; rank 0 chooses, and all hear what. */
static enum status sample_outputs(struct backend_model *m, struct outputs *j, uint32_t n) {
    const struct tp_shard *s = &m->host.shard;
    struct tp_group *group = m->host.dev->group;

    if (s->size > 1 && group->meet(group, s->rank) != ST_OK) return ST_CLOSED;
    if (s->rank == 0)
        cpu_pool_run(m->dev->pool, n, (uint64_t)n * m->host.g.vocab < 30000, run_sample, j);
    return host_share_tokens(&m->host, j->slot, j->first, n);
}

static enum status compute_outputs(struct backend_model *m, uint32_t slot,
                                   const struct backend_step *step) {
    const struct backend_stage *s = &m->host.slot[slot];
    const struct geometry *g = &m->host.g;
    enum status st = ST_OK;

    for (uint32_t first = 0; first < step->n_outputs && st == ST_OK; first += HEAD_ROWS) {
        uint32_t n = MIN(HEAD_ROWS, step->n_outputs - first);
        struct outputs j = {m, step, slot, first};

        for (uint32_t i = 0; i < n; i++)
            m->path->rmsnorm(act_at(m, m->head_x, m->h_stride, i, 0),
                             m->x + (size_t)s->output[first + i].token_index * m->d_width,
                             m->final_norm, m->d_width, g->d_model, g->rms_eps);
        product(m, &m->head_part, m->head_x, m->h_stride, n, NULL, TO_LOGITS);
        st = sample_outputs(m, &j, n);
    }
    return st;
}

enum status cpu_forward(struct backend_model *m, uint32_t slot, const struct backend_step *step) {
    const struct backend_stage *s = &m->host.slot[slot];
    uint32_t T = step->n_tokens, n_chunks = CEIL_DIV(T, ROWS_PER_CHUNK);
    uint32_t n_tiles = cut_tiles(m, s, step);
    struct rows j = {.m = m, .s = s, .n_rows = T};
    struct cpu_pool *pool = m->dev->pool;
    enum status st;

    if (T) cpu_pool_run(pool, n_chunks, n_chunks < 2, run_embed, &j);
    for (uint32_t i = 0; i < m->host.g.n_layers && T; i++) {
        struct cpu_layer *l = &m->layers[i];

        j.layer = i;
        j.weight = l->attn_norm;
        cpu_pool_run(pool, n_chunks, n_chunks < 4, run_norm, &j);
        product(m, &l->qkv, m->h, m->h_stride, T, l->qkv_bias, TO_QKV);
        cpu_pool_run(pool, n_chunks, n_chunks < 2, run_rope, &j);
        attention(m, s, step, i, n_tiles);
        if ((st = add_product(m, &l->o, m->mix, m->mix_stride, T, l->o_bias)) != ST_OK) return st;
        j.weight = l->ffn_norm;
        cpu_pool_run(pool, n_chunks, n_chunks < 4, run_norm, &j);
        product(m, &l->gate_up, m->h, m->h_stride, T, NULL, TO_SWIGLU);
        if ((st = add_product(m, &l->down, m->ff, m->ff_stride, T, NULL)) != ST_OK) return st;
    }
    return compute_outputs(m, slot, step);
}
