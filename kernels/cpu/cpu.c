/* kernels/cpu/cpu.c - the CPU backend's table of operations: open, load, step.
 *
 * Weights are packed as they arrive, in geometry.weight_dtype or as they are quantised, and the
 * originals are not kept, so a model takes its size in that type plus working memory. A tied
 * embedding is stored once, as the panels of the head. submit runs the step to its end. Thread:
 * the engine's; the pool's threads work inside submit only. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/processors.h"
#include "kernels/quant.h"

#define CALIBRATION_US                                                                             \
    8000 /* for each of the two measurements at load_end; the best round counts, so
                              * that a busy machine does not pass for a slow one */

/* --- device ---------------------------------------------------------------------------------- */

/* Ranks share the processors. */
static uint32_t threads_of(const struct backend_config *config) {
    uint32_t n = config->n_threads;

    if (config->tp_size <= 1) return n;
    return MAX((n ? n : cpu_processors("")) / config->tp_size, 1u);
}

static enum status cpu_probe(const struct backend_config *config, struct backend_info *info,
                             struct error *err) {
    const struct cpu_path *path;
    enum status st = cpu_path_find(&path, config->path, err);

    if (st != ST_OK) return st;
    memset(info, 0, sizeof(*info));
    host_describe(info);
    snprintf(info->path, sizeof(info->path), "%s", path->name);
    info->n_threads = threads_of(config);
    info->flags = BACKEND_INVARIANT;
    return ST_OK;
}

static void cpu_close(struct backend_device *dev) {
    if (!dev) return;
    cpu_pool_destroy(dev->pool);
    mem_free(dev);
}

static enum status cpu_open(struct backend_device **out, const struct backend_config *config,
                            struct error *err) {
    struct backend_device *dev = mem_zalloc(sizeof(*dev));
    struct backend_info info = {0};
    enum status st = cpu_path_find(&dev->path, config->path, err);

    if (st == ST_OK) st = cpu_pool_create(&dev->pool, threads_of(config), err);
    if (st != ST_OK) {
        cpu_close(dev);
        return st;
    }
    host_describe(&info);
    host_device_init(&dev->host, config, info.memory_free);
    *out = dev;
    return ST_OK;
}

static void cpu_info(struct backend_device *dev, struct backend_info *info) {
    size_t used;

    memset(info, 0, sizeof(*info));
    host_describe(info);
    info->n_threads = cpu_pool_threads(dev->pool);
    used = strlen(info->device);
    snprintf(info->device + used, sizeof(info->device) - used, ", %u threads", info->n_threads);
    snprintf(info->path, sizeof(info->path), "%s", (dev->used ? dev->used : dev->path)->name);
    info->flags = BACKEND_INVARIANT;
    info->prefill_tokens_per_s = dev->prefill_tokens_per_s;
    info->attn_context = dev->attn_context;
}

/* --- loading --------------------------------------------------------------------------------- */

/* The backend whose memory carries what ranks exchange. */
static bool is_first_rank(const struct backend_model *m) {
    return m->host.shard.rank == 0;
}

static void free_weights(struct cpu_weights *w) {
    for (uint32_t i = 0; i <= CPU_PARTS; i++) {
        struct cpu_matrix *own = i ? &w->own[i - 1] : &w->all;

        mem_free(own->w);
        mem_free((void *)(uintptr_t)own->order);
    }
}

static void cpu_unload(struct backend_model *m) {
    if (!m) return;
    for (uint32_t i = 0; m->layers && i < m->host.g.n_layers; i++) {
        struct cpu_layer *l = &m->layers[i];
        void *all[] = {l->attn_norm, l->ffn_norm, l->qkv_bias, l->o_bias, l->q_norm, l->k_norm};

        for (size_t j = 0; j < ARRAY_LEN(all); j++)
            mem_free(all[j]);
        if (m->weights) continue;
        free_weights(&l->qkv);
        free_weights(&l->o);
        free_weights(&l->gate_up);
        free_weights(&l->down);
    }
    if (!m->weights) free_weights(&m->head);
    for (uint32_t i = 0; m->workers && i < cpu_pool_threads(m->dev->pool); i++) {
        mem_free(m->workers[i].y);
        mem_free(m->workers[i].attend);
        mem_free(m->workers[i].quant);
        sample_scratch_destroy(m->workers[i].sample);
    }
    void *all[] = {m->weights, m->embed, m->final_norm, m->layers, m->x,      m->qkv,   m->cos,
                   m->sin,     m->h,     m->mix,        m->ff,     m->head_x, m->tiles, m->workers};

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        mem_free(all[i]);
    for (size_t i = 0; i <= CPU_PARTS; i++)
        mem_free(m->prepared[i]);
    if (is_first_rank(m)) mem_free(m->logits);
    mem_free(m->sums[0]);
    mem_free(m->sums[1]);
    host_fini(&m->host);
    mem_free(m);
}

static enum status alloc_zeroed(struct backend_model *m, void *out, uint64_t n_bytes,
                                const char *what, struct error *err) {
    void *p;
    enum status st = host_alloc(&m->host, &p, n_bytes, what, err);

    if (st != ST_OK) return st;
    memset(p, 0, n_bytes);
    memcpy(out, &p, sizeof(p));
    return ST_OK;
}

static struct cpu_weights one_tensor(enum dtype dtype, uint32_t n, uint32_t k) {
    return (struct cpu_weights){.all = cpu_matrix_shape(dtype, n, k), .n_parts = 1};
}

static void shape_layer(struct backend_model *m, struct cpu_layer *l) {
    const struct geometry *g = &m->host.g;
    uint32_t q = g->n_heads * g->head_dim, kv = g->n_kv_heads * g->head_dim;

    l->qkv = one_tensor(g->weight_dtype, m->v_at + kv, g->d_model);
    l->qkv.n_parts = 3;
    l->qkv.first_panel[1] = m->k_at / PANEL;
    l->qkv.first_panel[2] = m->v_at / PANEL;
    l->o = one_tensor(g->weight_dtype, g->d_model, q);
    l->gate_up = one_tensor(g->weight_dtype, 2 * m->ff_width, g->d_model);
    l->gate_up.n_parts = 2;
    l->gate_up.first_panel[1] = 1;
    l->gate_up.is_alternating = true;
    l->down = one_tensor(g->weight_dtype, g->d_model, g->d_ff);
}

static void shape_matrices(struct backend_model *m) {
    const struct geometry *g = &m->host.g;
    uint32_t q = g->n_heads * g->head_dim, kv = g->n_kv_heads * g->head_dim;

    m->d_width = ALIGN_UP(g->d_model, PANEL);
    m->k_at = ALIGN_UP(q, PANEL);
    m->v_at = m->k_at + ALIGN_UP(kv, PANEL);
    m->qkv_width = m->v_at + ALIGN_UP(kv, PANEL);
    m->ff_width = ALIGN_UP(g->d_ff, PANEL);
    m->h_stride = m->d_width + ROW_PAD;
    m->mix_stride = ALIGN_UP(q, PANEL) + ROW_PAD;
    m->ff_stride = m->ff_width + ROW_PAD;
    m->vocab_width = ALIGN_UP(g->vocab, PANEL);
    m->head = one_tensor(g->weight_dtype, g->is_tied ? g->vocab : m->host.shard.vocab, g->d_model);
    for (uint32_t i = 0; i < g->n_layers; i++)
        shape_layer(m, &m->layers[i]);
}

/* A tied head is whole, for its rows are the embedding; pieces of a vocabulary are whole panels. */
static struct cpu_weights head_part(const struct backend_model *m) {
    const struct tp_shard *s = &m->host.shard;
    struct cpu_weights part = m->head;

    if (!m->host.g.is_tied) return part;
    part = one_tensor(m->host.g.weight_dtype, s->vocab, m->host.g.d_model);
    part.all.w = cpu_matrix_panel(&m->head.all, s->first_token / PANEL);
    return part;
}

static void place(struct backend_model *m, struct cpu_weights *w, uint64_t *n_bytes) {
    if (m->weights) w->all.w = m->weights + *n_bytes;
    *n_bytes += cpu_matrix_bytes(&w->all);
}

/* Gives each matrix its place, in the order of use, once there is one; bytes of all. */
static uint64_t place_matrices(struct backend_model *m) {
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < m->host.g.n_layers; i++) {
        place(m, &m->layers[i].qkv, &n_bytes);
        place(m, &m->layers[i].o, &n_bytes);
        place(m, &m->layers[i].gate_up, &n_bytes);
        place(m, &m->layers[i].down, &n_bytes);
    }
    place(m, &m->head, &n_bytes);
    return n_bytes;
}

/* One piece, so that all of it lies in huge pages: with small ones a product was measured to read
 * at 80 % of the speed. Which matrices are quantised is not known before they arrive: then each
 * gets its memory in take_matrix. */
static enum status alloc_weights(struct backend_model *m, struct error *err) {
    const struct geometry *g = &m->host.g;
    enum status st = ST_OK;

    m->layers = mem_calloc(g->n_layers, sizeof(*m->layers));
    shape_matrices(m);
    m->final_norm = mem_calloc(m->d_width, sizeof(float));
    if (!g->quant_types) {
        st = alloc_zeroed(m, &m->weights, place_matrices(m), "weights", err);
        if (st != ST_OK) return st;
        (void)place_matrices(m);
    }
    for (uint32_t i = 0; i < g->n_layers; i++) {
        struct cpu_layer *l = &m->layers[i];

        l->attn_norm = mem_calloc(m->d_width, sizeof(float));
        l->ffn_norm = mem_calloc(m->d_width, sizeof(float));
        if (g->has_qkv_bias) l->qkv_bias = mem_calloc(m->qkv_width, sizeof(float));
        if (g->has_o_bias) l->o_bias = mem_calloc(m->d_width, sizeof(float));
        if (g->has_qk_norm) l->q_norm = mem_calloc(g->head_dim, sizeof(float));
        if (g->has_qk_norm) l->k_norm = mem_calloc(g->head_dim, sizeof(float));
    }
    if (g->is_tied) return ST_OK;
    return alloc_zeroed(m, &m->embed,
                        (uint64_t)g->vocab * g->d_model * dtype_bytes(g->weight_dtype),
                        "the embedding", err);
}

static enum status alloc_work(struct backend_model *m, struct error *err) {
    const struct geometry *g = &m->host.g;
    uint64_t T = m->host.limits.max_step_tokens, act = m->path->act_bytes;
    uint32_t n_head = MIN(HEAD_ROWS, m->host.limits.max_outputs);
    uint32_t n_threads = cpu_pool_threads(m->dev->pool);
    uint64_t n_logits = is_first_rank(m) ? (uint64_t)n_head * m->vocab_width : 0;
    uint64_t n_sums = is_first_rank(m) && m->host.shard.size > 1 ? T * m->d_width : 0;
    struct {
        void *out;
        uint64_t n_bytes;
    } arrays[] = {
        {&m->x, T * m->d_width * sizeof(float)},
        {&m->qkv, T * m->qkv_width * sizeof(float)},
        {&m->cos, T * g->head_dim / 2 * sizeof(float)},
        {&m->sin, T * g->head_dim / 2 * sizeof(float)},
        {&m->h, T * m->h_stride * act},
        {&m->mix, T * m->mix_stride * act},
        {&m->ff, T * m->ff_stride * act},
        {&m->logits, n_logits * sizeof(float)},
        {&m->sums[0], n_sums * sizeof(float)},
        {&m->sums[1], n_sums * sizeof(float)},
        {&m->head_x, (uint64_t)n_head * m->h_stride * act},
        {&m->tiles, T * sizeof(*m->tiles)},
    };
    enum status st = ST_OK;

    for (size_t i = 0; i < ARRAY_LEN(arrays) && st == ST_OK; i++) {
        if (arrays[i].n_bytes)
            st = alloc_zeroed(m, arrays[i].out, arrays[i].n_bytes, "working memory", err);
    }
    m->workers = mem_calloc(n_threads, sizeof(*m->workers));
    for (uint32_t i = 0; i < n_threads && st == ST_OK; i++) {
        struct cpu_worker *w = &m->workers[i];

        st = alloc_zeroed(m, &w->y, ROW_BLOCK * CHUNK_PANELS * PANEL * sizeof(float),
                          "working memory", err);
        if (st == ST_OK)
            st = alloc_zeroed(m, &w->attend,
                              attend_scratch_bytes(g->n_heads / g->n_kv_heads, g->head_dim),
                              "working memory", err);
        if (st == ST_OK && g->quant_types)
            st = alloc_zeroed(m, &w->quant, QUANT_SCRATCH, "working memory", err);
        if (st == ST_OK && !(w->sample = sample_scratch_create(g->vocab)))
            st = error_set(err, ST_NOMEM, "no memory to sample from %u tokens", g->vocab);
    }
    return st;
}

/* What of a model this backend lacks. */
static enum status check_model(const struct host_model *h, struct error *err) {
    if (!dtype_is_float(h->g.weight_dtype))
        return error_set(err, ST_UNSUPPORTED,
                         "weight type %s: the cpu backend has float32, float16 and bfloat16",
                         dtype_long_name(h->g.weight_dtype));
    if (h->shard.size > 1 && h->shard.d_ff % 2)
        return error_set(err, ST_UNSUPPORTED,
                         "d_ff %u over %u ranks is %u each: the cpu backend takes inputs in pairs; "
                         "choose another --tensor-parallel-size",
                         h->whole.d_ff, h->shard.size, h->shard.d_ff);
    return ST_OK;
}

static enum status cpu_check(const struct backend_config *config, const struct geometry *g,
                             const struct backend_limits *limits, struct error *err) {
    return host_check(config, g, limits, check_model, err);
}

static enum status cpu_load_begin(struct backend_device *dev, struct backend_model **out,
                                  const struct geometry *g, const struct backend_limits *limits,
                                  struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    enum status st = host_init(&m->host, &dev->host, g, limits, true, err);

    m->dev = dev;
    if (st == ST_OK) st = check_model(&m->host, err);
    if (st == ST_OK) {
        m->path = dev->used = cpu_path_for(dev->path, g->weight_dtype);
        st = alloc_weights(m, err);
    }
    if (st == ST_OK) st = alloc_work(m, err);
    if (st != ST_OK) {
        cpu_unload(m);
        return st;
    }
    *out = m;
    return ST_OK;
}

static void copy_vector(float *v, const struct backend_tensor *t) {
    for (size_t i = 0; i < t->shape[0]; i++)
        v[i] = dtype_get(t->dtype, t->data, i);
}

static enum status take_order(struct backend_model *m, struct cpu_matrix *to, const uint32_t *order,
                              struct error *err) {
    uint64_t n_bytes = to->k * sizeof(*order);
    enum status st;

    if (!order) return ST_OK;
    st = alloc_zeroed(m, &to->order, n_bytes, "weights", err);
    if (st == ST_OK) memcpy((void *)(uintptr_t)to->order, order, n_bytes);
    return st;
}

static enum status move_part(struct backend_model *m, struct cpu_weights *w, uint32_t part,
                             struct error *err) {
    const struct cpu_matrix *all = &w->all;
    uint32_t first = w->first_panel[part], step = w->is_alternating ? 2 : 1;
    uint32_t end = step == 1 && part + 1 < w->n_parts ? w->first_panel[part + 1] : all->n_panels;
    struct cpu_matrix *own = &w->own[part];
    enum status st;

    *own = *all;
    own->w = NULL;
    own->order = NULL;
    own->n_panels = CEIL_DIV(end - first, step);
    own->n = own->n_panels * PANEL;
    st = alloc_zeroed(m, &own->w, cpu_matrix_bytes(own), "weights", err);
    if (st == ST_OK) st = take_order(m, own, all->order, err);
    for (uint32_t i = 0; i < own->n_panels && st == ST_OK; i++)
        memcpy(cpu_matrix_panel(own, i), cpu_matrix_panel(all, first + i * step),
               cpu_matrix_bytes(own) / own->n_panels);
    return st;
}

/* `all` has room for every part: those that came move out of it, and it is given back. */
static enum status take_apart(struct backend_model *m, struct cpu_weights *w, struct error *err) {
    struct cpu_matrix *all = &w->all;
    enum status st = ST_OK;

    for (uint32_t part = 0; part < w->n_parts && st == ST_OK; part++)
        if (w->taken & 1u << part) st = move_part(m, w, part, err);
    m->host.bytes -= cpu_matrix_bytes(all) + (all->order ? all->k * sizeof(*all->order) : 0);
    mem_free(all->w);
    mem_free((void *)(uintptr_t)all->order);
    all->w = NULL;
    all->order = NULL;
    return st;
}

/* The matrix that takes a tensor: that of the product, while all are kept alike. */
static enum status find_matrix(struct cpu_matrix **out, struct backend_model *m,
                               struct cpu_weights *w, uint32_t part, const struct backend_tensor *t,
                               struct error *err) {
    const uint32_t *order = t->quant ? t->quant->order : NULL;
    struct cpu_format f = {.dtype = m->host.g.weight_dtype};
    struct cpu_matrix *all = &w->all;
    enum status st;

    if (t->quant && (st = cpu_format_of(&f, m->path, t, err)) != ST_OK) return st;
    *out = all;
    if (!w->taken) {
        *all = t->quant ? cpu_matrix_quant(&f, all->n, all->k)
                        : cpu_matrix_shape(f.dtype, all->n, all->k);
        return ST_OK;
    }
    if (all->w && (t->quant ? cpu_format_equal(&f, &all->format) : all->dtype == f.dtype)) {
        if (!order && !all->order) return ST_OK;
        if (order && all->order && memcmp(order, all->order, all->k * sizeof(*order)) == 0)
            return ST_OK;
    }
    if (all->w && (st = take_apart(m, w, err)) != ST_OK) return st;
    *out = &w->own[part];
    **out = t->quant ? cpu_matrix_quant(&f, (uint32_t)t->shape[0], all->k)
                     : cpu_matrix_shape(f.dtype, (uint32_t)t->shape[0], all->k);
    return ST_OK;
}

/* Packs a tensor into its product's weights, as part 0, 1 or 2. */
static enum status take_matrix(struct backend_model *m, struct cpu_weights *w, uint32_t part,
                               const struct backend_tensor *t, struct error *err) {
    struct cpu_matrix *to = &w->all;
    bool is_apart;
    enum status st = ST_OK;

    if (m->host.g.quant_types) st = find_matrix(&to, m, w, part, t, err);
    if (st == ST_OK && !to->w) {
        st = alloc_zeroed(m, &to->w, cpu_matrix_bytes(to), "weights", err);
        if (st == ST_OK && t->quant) st = take_order(m, to, t->quant->order, err);
    }
    if (st != ST_OK) return st;
    is_apart = to != &w->all;
    w->taken |= 1u << part;
    cpu_pack(to, t, is_apart ? 0 : w->first_panel[part] * PANEL,
             w->is_alternating && !is_apart ? 2 : 1);
    return ST_OK;
}

static enum status take_embedding(struct backend_model *m, const struct backend_tensor *t,
                                  struct error *err) {
    size_t n = (size_t)(t->shape[0] * t->shape[1]);
    enum dtype to = m->host.g.weight_dtype;

    if (m->host.g.is_tied) return take_matrix(m, &m->head, 0, t, err);
    if (t->dtype == to)
        memcpy(m->embed, t->data, n * dtype_bytes(to));
    else
        for (size_t i = 0; i < n; i++)
            dtype_put(to, m->embed, i, dtype_get(t->dtype, t->data, i));
    return ST_OK;
}

static enum status keep(struct backend_model *m, const struct backend_tensor *t,
                        struct error *err) {
    struct cpu_layer *l = &m->layers[host_role_is_per_layer(t->role) ? t->layer : 0];

    switch (t->role) {
    case ROLE_EMBED: return take_embedding(m, t, err);
    case ROLE_LM_HEAD: return take_matrix(m, &m->head, 0, t, err);
    case ROLE_FINAL_NORM: copy_vector(m->final_norm, t); break;
    case ROLE_ATTN_NORM: copy_vector(l->attn_norm, t); break;
    case ROLE_FFN_NORM: copy_vector(l->ffn_norm, t); break;
    case ROLE_Q: return take_matrix(m, &l->qkv, 0, t, err);
    case ROLE_K: return take_matrix(m, &l->qkv, 1, t, err);
    case ROLE_V: return take_matrix(m, &l->qkv, 2, t, err);
    case ROLE_O: return take_matrix(m, &l->o, 0, t, err);
    case ROLE_Q_BIAS: copy_vector(l->qkv_bias, t); break;
    case ROLE_K_BIAS: copy_vector(l->qkv_bias + m->k_at, t); break;
    case ROLE_V_BIAS: copy_vector(l->qkv_bias + m->v_at, t); break;
    case ROLE_O_BIAS: copy_vector(l->o_bias, t); break;
    case ROLE_Q_NORM: copy_vector(l->q_norm, t); break;
    case ROLE_K_NORM: copy_vector(l->k_norm, t); break;
    case ROLE_GATE: return take_matrix(m, &l->gate_up, 0, t, err);
    case ROLE_UP: return take_matrix(m, &l->gate_up, 1, t, err);
    case ROLE_DOWN: return take_matrix(m, &l->down, 0, t, err);
    case ROLE_COUNT: break;
    }
    return ST_OK;
}

static enum status cpu_load_tensor(struct backend_model *m, const struct backend_tensor *t,
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

/* The longest row that each place for prepared inputs is asked for. */
static void measure_rows(const struct backend_model *m, const struct cpu_weights *w,
                         uint64_t *row_bytes) {
    for (uint32_t i = 0; i <= CPU_PARTS; i++) {
        const struct cpu_matrix *own = i ? &w->own[i - 1] : &w->all;

        if (own->w && quant_is_type(own->dtype))
            row_bytes[i] = MAX(row_bytes[i], cpu_inputs_bytes(own, m->path->act_bytes));
    }
}

static enum status alloc_prepared(struct backend_model *m, struct error *err) {
    uint64_t n_rows = MAX(m->host.limits.max_step_tokens, HEAD_ROWS),
             row_bytes[CPU_PARTS + 1] = {0};
    enum status st = ST_OK;

    for (uint32_t i = 0; i < m->host.g.n_layers; i++) {
        measure_rows(m, &m->layers[i].qkv, row_bytes);
        measure_rows(m, &m->layers[i].o, row_bytes);
        measure_rows(m, &m->layers[i].gate_up, row_bytes);
        measure_rows(m, &m->layers[i].down, row_bytes);
    }
    measure_rows(m, &m->head, row_bytes);
    for (uint32_t i = 0; i <= CPU_PARTS && st == ST_OK; i++) {
        if (row_bytes[i])
            st = alloc_zeroed(m, &m->prepared[i], n_rows * row_bytes[i], "working memory", err);
    }
    return st;
}

/* --- how fast is it here --------------------------------------------------------------------- */

/* Multiply-adds per second of one thread in a matrix product of the first layer. */
static double measure_product(struct backend_model *m) {
    const struct cpu_weights *w = &m->layers[0].gate_up;
    uint32_t n_rows = MIN(48u, m->host.limits.max_step_tokens),
             n_panels = MIN(w->all.n_panels, CHUNK_PANELS);
    uint64_t start_us = clock_now_us(), round_us, best_us = UINT64_MAX, now_us = start_us;
    uint32_t repeats = 1 + (uint32_t)(20000000 / ((uint64_t)n_rows * n_panels * PANEL * w->all.k));

    cpu_prepare_inputs(m, w, m->h, m->h_stride, n_rows);
    while (now_us < start_us + CALIBRATION_US) {
        round_us = now_us;
        for (uint32_t i = 0; i < repeats; i++)
            cpu_multiply(m, w, 0, n_panels, m->h, m->h_stride, 0, n_rows, m->workers[0].y,
                         CHUNK_PANELS * PANEL, false, 0);
        now_us = clock_now_us();
        best_us = MIN(best_us, MAX(now_us - round_us, 1u));
    }
    return (double)repeats * n_rows * n_panels * PANEL * w->all.k * 1e6 / (double)best_us;
}

/* Multiply-adds per second of one thread in attention, on a pool of zeros. */
static double measure_attention(struct backend_model *m) {
    enum { CONTEXT = 512 };
    const struct geometry *g = &m->host.g;
    uint32_t heads = g->n_heads / g->n_kv_heads;
    uint32_t n = MIN(attend_queries(heads), m->host.limits.max_step_tokens);
    uint32_t *position = mem_calloc(n, sizeof(*position)), table[1] = {0};
    uint8_t *zeros = mem_calloc((size_t)CONTEXT * g->head_dim, sizeof(float));
    struct attend a = {.q = m->qkv,
                       .q_stride = m->qkv_width,
                       .out = m->mix,
                       .out_stride = m->mix_stride,
                       .position = position,
                       .n_queries = n,
                       .heads = heads,
                       .head_dim = g->head_dim,
                       .k = zeros,
                       .v = zeros,
                       .k_scales = zeros,
                       .v_scales = zeros,
                       .block_size = CONTEXT,
                       .table = table,
                       .scratch = m->workers[0].attend};
    uint64_t start_us = clock_now_us(), round_us, best_us = UINT64_MAX, now_us = start_us;

    for (uint32_t i = 0; i < n; i++)
        position[i] = CONTEXT - n + i;
    while (now_us < start_us + CALIBRATION_US) {
        round_us = now_us;
        m->path->attend[g->kv_dtype](&a);
        now_us = clock_now_us();
        best_us = MIN(best_us, MAX(now_us - round_us, 1u));
    }
    mem_free(position);
    mem_free(zeros);
    return 2.0 * n * heads * g->head_dim * CONTEXT * 1e6 / (double)best_us;
}

static double weights_of(const struct cpu_weights *w) {
    return (double)w->all.n * w->all.k;
}

/* The buffers are all zeros here and are zeros again after; only the two estimates remain. */
static void calibrate(struct backend_model *m) {
    const struct geometry *g = &m->host.g;
    const struct cpu_layer *l = &m->layers[0];
    double weights = (double)g->n_layers * (weights_of(&l->qkv) + weights_of(&l->o) +
                                            weights_of(&l->gate_up) + weights_of(&l->down));
    double per_context = 2.0 * g->n_layers * g->n_heads * g->head_dim;
    double product_rate = measure_product(m), attention_rate = measure_attention(m);

    m->dev->prefill_tokens_per_s = product_rate * cpu_pool_threads(m->dev->pool) / weights;
    m->dev->attn_context = weights / product_rate * attention_rate / per_context;
}

/* Where the ranks meet first: rank 0's memory becomes known to all. */
static enum status join_ranks(struct backend_model *m, struct error *err) {
    struct tp_group *group = m->host.dev->group;
    uint32_t rank = m->host.shard.rank;
    enum status st = tp_sum_join(&m->sum, group, rank, m->sums);

    if (st == ST_OK) st = group->share(group, rank, &m->logits, sizeof(m->logits));
    return st == ST_OK ? ST_OK : host_rank_lost(err);
}

static enum status cpu_load_end(struct backend_model *m, struct error *err) {
    enum status st = host_check_loaded(&m->host, err);

    if (st == ST_OK) st = alloc_prepared(m, err);
    if (st != ST_OK) return st;
    m->head_part = head_part(m);
    calibrate(m);
    return m->host.shard.size > 1 ? join_ranks(m, err) : ST_OK;
}

/* --- steps ----------------------------------------------------------------------------------- */

static enum status cpu_submit(struct backend_model *m, uint32_t slot,
                              const struct backend_step *step, backend_fence *out,
                              struct error *err) {
    enum status st = host_step_begin(&m->host, slot, step, err);

    if (st != ST_OK) return st;
    cpu_pool_adapt(m->dev->pool, clock_now_us());
    if ((st = cpu_forward(m, slot, step)) != ST_OK) return host_rank_lost(err);
    host_step_end(&m->host, slot, step);
    *out = ++m->host.dev->last;
    return ST_OK;
}

const struct backend_ops backend_cpu = {
    .abi = BACKEND_ABI,
    .struct_size = sizeof(struct backend_ops),
    .name = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .load_begin = cpu_load_begin,
    .load_tensor = cpu_load_tensor,
    .load_end = cpu_load_end,
    .unload = cpu_unload,
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
    .submit = cpu_submit,
    .poll = host_poll,
    .wait = host_wait,
    .event_fd = host_event_fd,
    .op = cpu_run_op,
    .check = cpu_check,
};
