/* kernels/ref/ref.c - the reference backend: a decoder, one token after another.
 *
 * Every token of a step goes through all layers before the next one begins, so there is nothing
 * to get wrong about batches: the answer of a position cannot depend on what else is in the step.
 * It is slow (a second per few hundred tokens of a small model) and it is the definition. Thread:
 * the engine's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "kernels/host/host.h"
#include "kernels/ref/matrix.h"
#include "kernels/ref/ref_op.h"
#include "kernels/tp/sum.h"

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
    float *x, *h, *q, *k, *v, *mix, *gate, *up, *scores;
    float *logits;     /* (vocab); of rank 0, where each rank writes its tokens' */
    float *sums[2];    /* (d_model) of rank 0; one rank has none */
    struct tp_sum sum; /* over the ranks */
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
    host_device_init(&(*out)->host, config, info.memory_free);
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
    if (!m->host.g.is_tied) mem_free((void *)(uintptr_t)m->head.data);
    float *work[] = {m->final_norm, m->x,    m->h,  m->q,      m->k,       m->v,
                     m->mix,        m->gate, m->up, m->scores, m->sums[0], m->sums[1]};
    for (size_t i = 0; i < ARRAY_LEN(work); i++)
        mem_free(work[i]);
    if (m->host.shard.rank == 0) mem_free(m->logits);
    mem_free(m->layers);
    sample_scratch_destroy(m->scratch);
    host_fini(&m->host);
    mem_free(m);
}

static enum status check_model(const struct host_model *h, struct error *err) {
    if (dtype_is_float(h->g.weight_dtype)) return ST_OK;
    return error_set(err, ST_UNSUPPORTED,
                     "weight type %s: the ref backend has float32, float16 and bfloat16",
                     dtype_long_name(h->g.weight_dtype));
}

static enum status ref_check(const struct backend_config *config, const struct geometry *g,
                             const struct backend_limits *limits, struct error *err) {
    return host_check(config, g, limits, check_model, err);
}

static enum status ref_load_begin(struct backend_device *dev, struct backend_model **out,
                                  const struct geometry *g, const struct backend_limits *limits,
                                  struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    enum status st = host_init(&m->host, &dev->host, g, limits, true, err);

    if (st == ST_OK) st = check_model(&m->host, err);
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
    if (m->host.shard.rank == 0) m->logits = mem_calloc(g->vocab, sizeof(float));
    for (uint32_t i = 0; i < 2 && m->host.shard.size > 1 && m->host.shard.rank == 0; i++)
        m->sums[i] = mem_calloc(g->d_model, sizeof(float));
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

static void copy_vector(float **v, const struct backend_tensor *t) {
    *v = mem_calloc(t->shape[0], sizeof(float));
    for (size_t i = 0; i < t->shape[0]; i++)
        (*v)[i] = dtype_get(t->dtype, t->data, i);
}

static enum status keep(struct backend_model *m, const struct backend_tensor *t,
                        struct error *err) {
    struct ref_layer *l = &m->layers[host_role_is_per_layer(t->role) ? t->layer : 0];
    struct ref_matrix *matrix = NULL;
    float **vector = NULL;

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
    if (matrix) return ref_matrix_keep(&m->host, matrix, t, err);
    copy_vector(vector, t);
    return ST_OK;
}

static enum status ref_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                                   struct error *err) {
    enum status st = host_take_tensor(&m->host, t, err);
    struct backend_tensor part;
    void *scratch;

    if (st == ST_OK) st = host_rank_part(&m->host, t, &part, &scratch, err);
    if (st != ST_OK) return st;
    st = keep(m, &part, err);
    mem_free(scratch);
    return st;
}

/* The rows of the head that are this rank's. */
static struct ref_matrix head_of(const struct backend_model *m) {
    const struct tp_shard *s = &m->host.shard;
    struct ref_matrix w = m->embed;

    if (!m->host.g.is_tied) return m->head;
    w.data = (const char *)w.data + (size_t)s->first_token * w.k * dtype_bytes(w.dtype);
    w.n = s->vocab;
    return w;
}

static enum status ref_load_end(struct backend_model *m, struct error *err) {
    struct tp_group *group = m->host.dev->group;
    enum status st = host_check_loaded(&m->host, err);

    if (st != ST_OK) return st;
    m->head = head_of(m);
    if (m->host.shard.size == 1) return ST_OK;
    st = tp_sum_join(&m->sum, group, m->host.shard.rank, m->sums);
    if (st == ST_OK) st = group->share(group, m->host.shard.rank, &m->logits, sizeof(m->logits));
    return st == ST_OK ? ST_OK : host_rank_lost(err);
}

/* --- a step ---------------------------------------------------------------------------------- */

/* x += in W^T + bias, over the inputs of all ranks. */
static enum status add_linear(struct backend_model *m, const float *in, const struct ref_matrix *w,
                              const float *bias) {
    size_t d = m->host.g.d_model;

    if (m->host.shard.size == 1) {
        ref_linear(m->h, in, w, bias, 1);
    } else {
        float *running = tp_sum_begin(&m->sum);
        const float *sums;

        if (!running) return ST_CLOSED;
        if (m->host.shard.rank == 0) memset(running, 0, d * sizeof(*running));
        ref_linear_on(running, in, w, 1);
        if (!(sums = tp_sum_end(&m->sum))) return ST_CLOSED;
        for (size_t i = 0; i < d; i++)
            m->h[i] = bias ? sums[i] + bias[i] : sums[i];
    }
    for (size_t i = 0; i < d; i++)
        m->x[i] += m->h[i];
    return ST_OK;
}

static enum status attention_block(struct backend_model *m, uint32_t layer, uint32_t row,
                                   uint32_t position, int64_t kv_slot) {
    const struct geometry *g = &m->host.g;
    const struct ref_layer *l = &m->layers[layer];
    struct ref_pool pool = {host_kv(&m->host, 0, layer, 0, 0),
                            host_kv(&m->host, 0, layer, 1, 0),
                            host_kv_scales(&m->host, 0, layer, 0, 0),
                            host_kv_scales(&m->host, 0, layer, 1, 0),
                            g->kv_dtype,
                            m->host.block_bytes,
                            m->host.limits.block_size,
                            g->n_kv_heads,
                            g->head_dim};

    ref_rmsnorm(m->h, m->x, l->attn_norm, 1, g->d_model, g->rms_eps); /* x, h: (d_model) */
    ref_linear(m->q, m->h, &l->q, l->q_bias, 1);                      /* q: (n_heads, hd) */
    ref_linear(m->k, m->h, &l->k, l->k_bias, 1);                      /* k, v: (n_kv_heads, hd) */
    ref_linear(m->v, m->h, &l->v, l->v_bias, 1);
    if (g->has_qk_norm) {
        ref_rmsnorm(m->q, m->q, l->q_norm, g->n_heads, g->head_dim, g->rms_eps);
        ref_rmsnorm(m->k, m->k, l->k_norm, g->n_kv_heads, g->head_dim, g->rms_eps);
    }
    ref_rope(m->q, &position, g->inv_freq, g->rope_scale, 1, g->n_heads, g->head_dim, 0);
    ref_rope(m->k, &position, g->inv_freq, g->rope_scale, 1, g->n_kv_heads, g->head_dim, 0);
    ref_kv_write(&pool, m->k, m->v, &kv_slot, 1, 0);
    /* scores: (position + 1) of one head; mix: (n_heads, hd) */
    ref_attention(m->mix, m->q, &pool,
                  m->host.table + (size_t)row * m->host.limits.max_blocks_per_row, g->n_heads,
                  host_window_start(g, layer, position), position, m->scores);
    return add_linear(m, m->mix, &l->o, l->o_bias); /* x (d_model) += mix o^T */
}

static enum status ffn_block(struct backend_model *m, uint32_t layer) {
    const struct geometry *g = &m->host.g;
    const struct ref_layer *l = &m->layers[layer];

    ref_rmsnorm(m->h, m->x, l->ffn_norm, 1, g->d_model, g->rms_eps);
    ref_linear(m->gate, m->h, &l->gate, NULL, 1); /* gate, up: (d_ff) */
    ref_linear(m->up, m->h, &l->up, NULL, 1);
    ref_swiglu(m->gate, m->gate, m->up, g->d_ff);
    return add_linear(m, m->gate, &l->down, NULL); /* x (d_model) += gate down^T */
}

/* Each rank's tokens into their place, and no rank continues before all are there. */
static enum status compute_logits(struct backend_model *m) {
    const struct geometry *g = &m->host.g;
    const struct tp_shard *s = &m->host.shard;

    ref_rmsnorm(m->h, m->x, m->final_norm, 1, g->d_model, g->rms_eps);
    ref_linear(m->logits + s->first_token, m->h, &m->head, NULL, 1);
    return s->size == 1 ? ST_OK : m->host.dev->group->meet(m->host.dev->group, s->rank);
}

static enum status compute_outputs(struct backend_model *m, uint32_t slot,
                                   const struct backend_step *step, uint32_t token) {
    enum status st = ST_OK;
    bool is_ready = false;

    for (uint32_t i = 0; i < step->n_outputs; i++) {
        if (m->host.slot[slot].output[i].token_index != token) continue;
        if (!is_ready && (st = compute_logits(m)) != ST_OK) return st;
        is_ready = true;
        if (m->host.shard.rank == 0)
            host_step_sample(&m->host, slot, step, i, m->logits, m->scratch);
        if ((st = host_share_tokens(&m->host, slot, i, 1)) != ST_OK) return st;
    }
    return ST_OK;
}

/* All layers of one token. */
static enum status run_token(struct backend_model *m, uint32_t slot,
                             const struct backend_step *step, uint32_t row, uint32_t t) {
    const struct backend_stage *s = &m->host.slot[slot];
    enum status st = ST_OK;

    ref_embed(m->x, &m->embed, &m->host.ids[t], 1);
    for (uint32_t layer = 0; layer < m->host.g.n_layers && st == ST_OK; layer++) {
        st = attention_block(m, layer, row, s->position[t], s->kv_slot[t]);
        if (st == ST_OK) st = ffn_block(m, layer);
    }
    return st == ST_OK ? compute_outputs(m, slot, step, t) : st;
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

/* By rising position, whatever the row: a token looks at smaller positions only, so all that it
 * sees is there even when it lies in a block that another row of this step fills. */
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

            if (p < first || p >= row->context_len) continue;
            st = run_token(m, slot, step, row->row, row->first_token + p - first);
            if (st != ST_OK) return host_rank_lost(err);
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
    .kv_lend = host_kv_lend,
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
    .op = ref_op,
    .check = ref_check,
};
