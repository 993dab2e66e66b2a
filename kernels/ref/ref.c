/* kernels/ref/ref.c - the reference backend: a decoder, one token after another.
 *
 * Every token of a step goes through all layers before the next one begins, so there is nothing
 * to get wrong about batches: the answer of a position cannot depend on what else is in the step.
 * It is slow (a second per few hundred tokens of a small model) and it is the definition. Thread:
 * the engine's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "kernels/host.h"
#include "kernels/ref/ref_op.h"

struct backend_device {
    struct host_device host; /* first */
};

struct ref_layer {
    struct ref_matrix q, k, v, o, gate, up, down;
    float *attn_norm, *ffn_norm, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
};

struct backend_model {
    struct host_model host; /* first */
    struct ref_matrix embed, head;
    float *final_norm;
    struct ref_layer *layers;
    float *x, *h, *q, *k, *v, *mix, *gate, *up, *scores, *logits;
    struct sample_scratch *scratch;
};

static enum status ref_probe(const struct backend_config *config, struct backend_info *info,
                             struct error *err) {
    if (config->path && strcmp(config->path, "auto") != 0 && strcmp(config->path, "plain") != 0)
        return error_set(err, ST_UNSUPPORTED,
                         "no such instruction set: %s: the ref backend has plain", config->path);
    memset(info, 0, sizeof(*info));
    host_describe(info);
    snprintf(info->path, sizeof(info->path), "plain");
    info->n_threads = 1;
    info->flags = BACKEND_INVARIANT;
    return ST_OK;
}

static enum status ref_open(struct backend_device **out, const struct backend_config *config,
                            struct error *err) {
    struct backend_info info;
    enum status st = ref_probe(config, &info, err);

    if (st != ST_OK) return st;
    *out = mem_zalloc(sizeof(**out));
    (*out)->host.memory_limit = config->memory_bytes ? config->memory_bytes : info.memory_free;
    return ST_OK;
}

static void ref_close(struct backend_device *dev) {
    mem_free(dev);
}

static void ref_info(struct backend_device *dev, struct backend_info *info) {
    (void)dev;
    if (ref_probe(&(struct backend_config){0}, info, NULL) != ST_OK) return;
    info->prefill_tokens_per_s = 100; /* not worth measuring */
    info->attn_context = 1000;
}

/* --- weights --------------------------------------------------------------------------------- */

static void ref_unload(struct backend_model *m) {
    if (!m) return;
    for (uint32_t i = 0; m->layers && i < m->host.g.n_layers; i++) {
        struct ref_layer *l = &m->layers[i];
        const void *all[] = {l->q.data,  l->k.data,    l->v.data,    l->o.data,   l->gate.data,
                             l->up.data, l->down.data, l->attn_norm, l->ffn_norm, l->q_bias,
                             l->k_bias,  l->v_bias,    l->o_bias,    l->q_norm,   l->k_norm};

        for (size_t j = 0; j < ARRAY_LEN(all); j++)
            mem_free((void *)(uintptr_t)all[j]);
    }
    mem_free((void *)(uintptr_t)m->embed.data);
    mem_free((void *)(uintptr_t)m->head.data);
    float *work[] = {m->final_norm, m->x,    m->h,  m->q,      m->k,     m->v,
                     m->mix,        m->gate, m->up, m->scores, m->logits};
    for (size_t i = 0; i < ARRAY_LEN(work); i++)
        mem_free(work[i]);
    mem_free(m->layers);
    sample_scratch_destroy(m->scratch);
    host_fini(&m->host);
    mem_free(m);
}

static enum status ref_load_begin(struct backend_device *dev, struct backend_model **out,
                                  const struct geometry *g, const struct backend_limits *limits,
                                  struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    enum status st = host_init(&m->host, &dev->host, g, limits, true, err);

    if (st == ST_OK && !dtype_is_float(g->weight_dtype))
        st = error_set(err, ST_UNSUPPORTED, "weight type %s: the ref backend has f32, f16, bf16",
                       dtype_name(g->weight_dtype));
    if (st != ST_OK) goto fail;
    m->layers = mem_calloc(g->n_layers, sizeof(*m->layers));
    m->x = mem_calloc(g->d_model, sizeof(float));
    m->h = mem_calloc(g->d_model, sizeof(float));
    m->q = mem_calloc((size_t)g->n_heads * g->head_dim, sizeof(float));
    m->k = mem_calloc((size_t)g->n_kv_heads * g->head_dim, sizeof(float));
    m->v = mem_calloc((size_t)g->n_kv_heads * g->head_dim, sizeof(float));
    m->mix = mem_calloc((size_t)g->n_heads * g->head_dim, sizeof(float));
    m->gate = mem_calloc(g->d_ff, sizeof(float));
    m->up = mem_calloc(g->d_ff, sizeof(float));
    m->scores = mem_calloc(g->max_context, sizeof(float));
    m->logits = mem_calloc(g->vocab, sizeof(float));
    m->scratch = sample_scratch_create(g->vocab);
    if (!m->scratch) {
        st = error_set(err, ST_NOMEM, "no memory to sample from %u tokens", g->vocab);
        goto fail;
    }
    *out = m;
    return ST_OK;
fail:
    ref_unload(m);
    return st;
}

/* Matrices keep geometry.weight_dtype: a wider checkpoint is rounded, as the device would. */
static enum status copy_matrix(struct host_model *h, struct ref_matrix *w,
                               const struct backend_tensor *t, struct error *err) {
    size_t n = (size_t)(t->shape[0] * t->shape[1]);
    bool narrows = h->g.weight_dtype == DTYPE_BF16 && t->dtype != DTYPE_BF16;
    enum dtype kept = narrows ? DTYPE_BF16 : t->dtype;
    void *data;
    enum status st = host_alloc(h, &data, n * dtype_bytes(kept), "weights", err);

    if (st != ST_OK) return st;
    if (narrows) {
        for (size_t i = 0; i < n; i++)
            dtype_put(DTYPE_BF16, data, i, dtype_get(t->dtype, t->data, i));
    } else {
        memcpy(data, t->data, t->n_bytes);
    }
    *w = (struct ref_matrix){data, kept, (uint32_t)t->shape[0], (uint32_t)t->shape[1]};
    return ST_OK;
}

static void copy_vector(float **v, const struct backend_tensor *t) {
    *v = mem_calloc(t->shape[0], sizeof(float));
    for (size_t i = 0; i < t->shape[0]; i++)
        (*v)[i] = dtype_get(t->dtype, t->data, i);
}

static enum status ref_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                                   struct error *err) {
    enum status st = host_take_tensor(&m->host, t, err);
    struct ref_layer *l;
    struct ref_matrix *matrix = NULL;
    float **vector = NULL;

    if (st != ST_OK) return st;
    l = &m->layers[host_role_is_per_layer(t->role) ? t->layer : 0];
    switch (t->role) {
    case ROLE_EMBED: matrix = &m->embed; break;
    case ROLE_LM_HEAD: matrix = &m->head; break;
    case ROLE_Q: matrix = &l->q; break;
    case ROLE_K: matrix = &l->k; break;
    case ROLE_V: matrix = &l->v; break;
    case ROLE_O: matrix = &l->o; break;
    case ROLE_GATE: matrix = &l->gate; break;
    case ROLE_UP: matrix = &l->up; break;
    case ROLE_DOWN: matrix = &l->down; break;
    case ROLE_FINAL_NORM: vector = &m->final_norm; break;
    case ROLE_ATTN_NORM: vector = &l->attn_norm; break;
    case ROLE_FFN_NORM: vector = &l->ffn_norm; break;
    case ROLE_Q_BIAS: vector = &l->q_bias; break;
    case ROLE_K_BIAS: vector = &l->k_bias; break;
    case ROLE_V_BIAS: vector = &l->v_bias; break;
    case ROLE_O_BIAS: vector = &l->o_bias; break;
    case ROLE_Q_NORM: vector = &l->q_norm; break;
    case ROLE_K_NORM: vector = &l->k_norm; break;
    case ROLE_COUNT: break;
    }
    if (matrix) return copy_matrix(&m->host, matrix, t, err);
    copy_vector(vector, t);
    return ST_OK;
}

static enum status ref_load_end(struct backend_model *m, struct error *err) {
    return host_check_loaded(&m->host, err);
}

/* --- a step ---------------------------------------------------------------------------------- */

static void attention_block(struct backend_model *m, uint32_t layer, uint32_t row,
                            uint32_t position, int64_t kv_slot) {
    const struct geometry *g = &m->host.g;
    const struct ref_layer *l = &m->layers[layer];
    struct ref_pool pool = {host_kv(&m->host, 0, layer, 0, 0),
                            host_kv(&m->host, 0, layer, 1, 0),
                            g->kv_dtype,
                            m->host.block_bytes,
                            m->host.limits.block_size,
                            g->n_kv_heads,
                            g->head_dim};

    ref_rmsnorm(m->h, m->x, l->attn_norm, 1, g->d_model, g->rms_eps);
    ref_linear(m->q, m->h, &l->q, l->q_bias, 1);
    ref_linear(m->k, m->h, &l->k, l->k_bias, 1);
    ref_linear(m->v, m->h, &l->v, l->v_bias, 1);
    if (g->has_qk_norm) {
        ref_rmsnorm(m->q, m->q, l->q_norm, g->n_heads, g->head_dim, g->rms_eps);
        ref_rmsnorm(m->k, m->k, l->k_norm, g->n_kv_heads, g->head_dim, g->rms_eps);
    }
    ref_rope(m->q, &position, g->inv_freq, g->rope_scale, 1, g->n_heads, g->head_dim, 0);
    ref_rope(m->k, &position, g->inv_freq, g->rope_scale, 1, g->n_kv_heads, g->head_dim, 0);
    ref_kv_write(&pool, m->k, m->v, &kv_slot, 1, 0);
    ref_attention(m->mix, m->q, &pool,
                  m->host.table + (size_t)row * m->host.limits.max_blocks_per_row, g->n_heads,
                  host_window_start(g, layer, position), position, m->scores);
    ref_linear(m->h, m->mix, &l->o, l->o_bias, 1);
    for (size_t i = 0; i < g->d_model; i++)
        m->x[i] += m->h[i];
}

static void ffn_block(struct backend_model *m, uint32_t layer) {
    const struct geometry *g = &m->host.g;
    const struct ref_layer *l = &m->layers[layer];

    ref_rmsnorm(m->h, m->x, l->ffn_norm, 1, g->d_model, g->rms_eps);
    ref_linear(m->gate, m->h, &l->gate, NULL, 1);
    ref_linear(m->up, m->h, &l->up, NULL, 1);
    ref_swiglu(m->gate, m->gate, m->up, g->d_ff);
    ref_linear(m->h, m->gate, &l->down, NULL, 1);
    for (size_t i = 0; i < g->d_model; i++)
        m->x[i] += m->h[i];
}

static void compute_outputs(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                            uint32_t token) {
    const struct geometry *g = &m->host.g;
    bool is_ready = false;

    for (uint32_t i = 0; i < step->n_outputs; i++) {
        if (m->host.slot[slot].output[i].token_index != token) continue;
        if (!is_ready) {
            ref_rmsnorm(m->h, m->x, m->final_norm, 1, g->d_model, g->rms_eps);
            ref_linear(m->logits, m->h, g->is_tied ? &m->embed : &m->head, NULL, 1);
            is_ready = true;
        }
        host_step_sample(&m->host, slot, step, i, m->logits, m->scratch);
    }
}

/* All layers of one token. */
static void run_token(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                      uint32_t row, uint32_t t) {
    const struct backend_stage *s = &m->host.slot[slot];

    ref_embed(m->x, &m->embed, &m->host.ids[t], 1);
    for (uint32_t layer = 0; layer < m->host.g.n_layers; layer++) {
        attention_block(m, layer, row, s->position[t], s->kv_slot[t]);
        ffn_block(m, layer);
    }
    compute_outputs(m, slot, step, t);
}

/* The smallest position from `from` on that any row computes; UINT32_MAX: none. */
static uint32_t next_position(const struct backend_stage *s, const struct backend_step *step,
                              uint32_t from) {
    uint32_t next = UINT32_MAX;

    for (uint32_t r = 0; r < step->n_rows; r++) {
        const struct backend_row *row = &s->row[r];

        if (row->context_len > from) next = MIN(next, MAX(from, row->context_len - row->n_tokens));
    }
    return next;
}

/* By rising position, whatever the row: a token looks at smaller positions only, so all that it sees
 * is there even when it lies in a block that another row of this step fills. */
static enum status ref_submit(struct backend_model *m, uint32_t slot,
                              const struct backend_step *step, backend_fence *out,
                              struct error *err) {
    enum status st = host_step_begin(&m->host, slot, step, err);
    const struct backend_stage *s;

    if (st != ST_OK) return st;
    s = &m->host.slot[slot];
    for (uint32_t p = 0; (p = next_position(s, step, p)) != UINT32_MAX; p++) {
        for (uint32_t r = 0; r < step->n_rows; r++) {
            const struct backend_row *row = &s->row[r];
            uint32_t first = row->context_len - row->n_tokens;

            if (p >= first && p < row->context_len)
                run_token(m, slot, step, row->row, row->first_token + p - first);
        }
    }
    host_step_end(&m->host, slot, step);
    *out = ++m->host.dev->last;
    return ST_OK;
}

static enum status ref_op(struct backend_device *dev, const char *name,
                          const struct backend_tensor *in, uint32_t n_in,
                          struct backend_tensor *out, uint32_t n_out, struct error *err) {
    (void)dev;
    return ref_run_op(name, in, n_in, out, n_out, err);
}

const struct backend_ops backend_ref = {
    .abi = BACKEND_ABI,
    .struct_size = sizeof(struct backend_ops),
    .name = "ref",
    .probe = ref_probe,
    .open = ref_open,
    .close = ref_close,
    .info = ref_info,
    .load_begin = ref_load_begin,
    .load_tensor = ref_load_tensor,
    .load_end = ref_load_end,
    .unload = ref_unload,
    .kv_block_bytes = host_kv_block_bytes,
    .kv_alloc = host_kv_alloc,
    .kv_copy = host_kv_copy,
    .kv_swap_out = host_kv_swap_out,
    .kv_swap_in = host_kv_swap_in,
    .kv_read = host_kv_read,
    .kv_write = host_kv_write,
    .row_bind = host_row_bind,
    .row_free = host_row_free,
    .stage = host_stage,
    .submit = ref_submit,
    .poll = host_poll,
    .wait = host_wait,
    .event_fd = host_event_fd,
    .lora_load = host_lora_load,
    .lora_drop = host_lora_drop,
    .op = ref_op,
};
