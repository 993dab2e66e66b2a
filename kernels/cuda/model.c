/* kernels/cuda/model.c - a model on its device: weights, buffers, plans.
 *
 * All weights are bf16 in one allocation, in the order of use; q, k and v lie under each other as
 * one matrix, gate and up another, so that a layer is four products. A rank of a tensor-parallel
 * model takes its part of each tensor as it arrives (kernels/tp/shard.h).
 *
 * A tensor may be a mapped file, which a device cannot read: its rows go, converted where they are
 * not bf16, into one of two pinned buffers, while the copy out of the other is under way. So
 * loading runs at the speed of the slower of memory and bus.
 *
 * load_end leaves nothing for later but the pool and the graphs: buffers of the largest step there
 * can be, GEMM plans for all of its sizes, and one such step run, so that what the driver takes
 * behind the scenes has been taken. The memory free then is what KV may have. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/quant.h"

#define LOAD_ELEMENTS                                                                              \
    ((uint64_t)16 << 20) /* of a buffer, at most: 32 MiB, some hundred copies for 8B */

void cuda_unload(struct backend_model *m) {
    if (!m) return;
    if (m->dev->gpu) (void)cuda_settle(m->dev, NULL); /* nothing may still use what goes now */
    cuda_load_stop(m);
    cuda_step_fini(m);
    cuda_kv_fini(m);
    gemm_close(m->gemm);
    for (uint32_t i = 0; i < m->n_owned; i++)
        gpu_free(m->dev->gpu, m->owned[i]);
    mem_free(m->owned);
    m->dev->bytes -= m->host.bytes;
    m->dev->is_invariant = false;
    m->dev->has_own_products = m->dev->has_f8_products = false;
    m->dev->why_own = (struct error){0};
    mem_free(m->layers);
    host_fini(&m->host);
    mem_free(m);
}

/* --- what is taken ---------------------------------------------------------------------------- */

static enum status check_geometry(const struct geometry *g, const struct backend_limits *l,
                                  struct error *err) {
    if (g->d_model % 8 || g->d_ff % 8 || g->d_model > OPS_MAX_WIDTH)
        return error_set(
            err, ST_UNSUPPORTED,
            "d_model %u, d_ff %u (of a rank): the cuda backend takes multiples of 8, and "
            "d_model up to %u",
            g->d_model, g->d_ff, OPS_MAX_WIDTH);
    if (!ops_has_head_dim(g->head_dim)) /* attend_check knows what else it must be */
        return error_set(err, ST_UNSUPPORTED, "head_dim %u: the cuda backend has 64, 96 and 128",
                         g->head_dim);
    if (g->vocab > SAMPLING_MAX_VOCAB)
        return error_set(err, ST_UNSUPPORTED,
                         "a vocabulary of %u: the cuda backend samples from %u", g->vocab,
                         SAMPLING_MAX_VOCAB);
    if (!dtype_is_float(g->weight_dtype))
        return error_set(err, ST_UNSUPPORTED,
                         "weight type %s: the cuda backend takes f32, f16 and bf16, and keeps bf16",
                         dtype_name(g->weight_dtype));
    if (quant_check_types(g, QUANT_ALL_TYPES, "cuda", err) != ST_OK) return ST_UNSUPPORTED;
    if (g->kv_dtype != DTYPE_BF16 && !kv_scale_bytes(g->kv_dtype))
        return error_set(err, ST_UNSUPPORTED,
                         "KV type %s: the cuda backend keeps bfloat16, fp8_e4m3 or int8; use "
                         "--kv-cache-dtype auto, or --backend cpu",
                         dtype_long_name(g->kv_dtype));
    if (l->block_size != OPS_BLOCK_SIZE)
        return error_set(
            err, ST_UNSUPPORTED,
            "block size %u: the cuda backend has blocks of %u tokens: use --block-size "
            "%u",
            l->block_size, OPS_BLOCK_SIZE, OPS_BLOCK_SIZE);
    return ST_OK;
}

/* --- weights ---------------------------------------------------------------------------------- */

static void place(struct backend_model *m, uint16_t **w, uint64_t n, uint64_t *at) {
    if (m->weights && n) *w = m->weights + *at;
    *at += ALIGN_UP(n, 128); /* 256 bytes */
}

/* A matrix of a model with quantised ones takes its memory when it comes: matrix.c. */
static void place_matrix(struct backend_model *m, uint16_t **w, uint64_t n, uint64_t *at) {
    if (!m->g.quant_types) place(m, w, n, at);
}

/* Gives each weight its place once there is one; elements of all. Products take multiples of 8, so
 * the vocabulary is a few rows longer; their logits are never read. */
static uint64_t place_weights(struct backend_model *m) {
    const struct geometry *g = &m->g;
    uint64_t d = g->d_model, q = m->q_width, qkv = m->qkv_width, f = g->d_ff, hd = g->head_dim;
    uint64_t at = 0;

    place(m, &m->embed, ALIGN_UP(g->vocab, 8u) * d, &at);
    for (uint32_t i = 0; i < g->n_layers; i++) {
        struct cuda_layer *l = &m->layers[i];

        place(m, &l->attn_norm, d, &at);
        place_matrix(m, &l->qkv, qkv * d, &at);
        place(m, &l->qkv_bias, g->has_qkv_bias ? qkv : 0, &at);
        place(m, &l->q_norm, g->has_qk_norm ? hd : 0, &at);
        place(m, &l->k_norm, g->has_qk_norm ? hd : 0, &at);
        place_matrix(m, &l->o, d * q, &at);
        place(m, &l->o_bias, g->has_o_bias ? d : 0, &at);
        place(m, &l->ffn_norm, d, &at);
        place_matrix(m, &l->gate_up, 2 * f * d, &at);
        place_matrix(m, &l->down, d * f, &at);
    }
    place(m, &m->final_norm, d, &at);
    if (g->is_tied)
        m->head = m->embed ? m->embed + m->shard.first_token * d : NULL;
    else
        place_matrix(m, &m->head, m->head_width * d, &at);
    return at;
}

/* The first element of a role's place. */
static uint16_t *place_of(const struct backend_model *m, enum tensor_role role, uint32_t layer) {
    const struct cuda_layer *l = &m->layers[host_role_is_per_layer(role) ? layer : 0];
    uint64_t d = m->g.d_model, q = m->q_width, kv = m->kv_width;

    switch (role) {
    case ROLE_EMBED: return m->embed;
    case ROLE_FINAL_NORM: return m->final_norm;
    case ROLE_LM_HEAD: return m->head;
    case ROLE_ATTN_NORM: return l->attn_norm;
    case ROLE_Q: return l->qkv;
    case ROLE_K: return l->qkv + q * d;
    case ROLE_V: return l->qkv + (q + kv) * d;
    case ROLE_O: return l->o;
    case ROLE_Q_BIAS: return l->qkv_bias;
    case ROLE_K_BIAS: return l->qkv_bias + q;
    case ROLE_V_BIAS: return l->qkv_bias + q + kv;
    case ROLE_O_BIAS: return l->o_bias;
    case ROLE_Q_NORM: return l->q_norm;
    case ROLE_K_NORM: return l->k_norm;
    case ROLE_FFN_NORM: return l->ffn_norm;
    case ROLE_GATE: return l->gate_up;
    case ROLE_UP: return l->gate_up + (uint64_t)m->g.d_ff * d;
    case ROLE_DOWN: return l->down;
    case ROLE_COUNT: break;
    }
    return NULL;
}

static void convert(uint16_t *dst, const struct backend_tensor *t, uint64_t first, uint64_t n) {
    if (t->dtype == DTYPE_BF16) {
        memcpy(dst, (const char *)t->data + first * 2, n * 2);
    } else if (t->dtype == DTYPE_F32) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = bf16_of_f32(dtype_get(DTYPE_F32, t->data, first + i));
    } else {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = bf16_of_f32(dtype_get(DTYPE_F16, t->data, first + i));
    }
}

/* The buffer that is free first, and once its last copy is out. */
enum status cuda_load_buffer(struct backend_model *m, uint16_t **buffer, struct error *err) {
    struct cuda_loader *l = &m->loader;

    l->turn ^= 1;
    *buffer = l->buffer[l->turn];
    if (gpu_event_wait(l->event[l->turn], CUDA_PATIENCE_US) == ST_OK) return ST_OK;
    return error_set(err, ST_CLOSED, "the device does not take the weights");
}

void cuda_load_send(struct backend_model *m, void *dst, uint64_t n_bytes) {
    gpu_copy(m->dev->copy_in, dst, m->loader.buffer[m->loader.turn], n_bytes);
    gpu_event_record(m->loader.event[m->loader.turn], m->dev->copy_in);
}

/* The slice of a tensor to dst, without gaps. A row fits a buffer: host_init_checks bounds it. */
static enum status send_slice(struct backend_model *m, uint16_t *dst,
                              const struct backend_tensor *t, struct tp_slice s,
                              struct error *err) {
    uint64_t width = t->n_dims > 1 ? t->shape[1] : 1, rows = m->loader.n_elements / s.n_columns, n;
    enum status st;

    for (uint64_t r = 0; r < s.n; r += n) {
        uint16_t *buffer;
        uint64_t from = (s.first + r) * width + s.first_column;

        n = MIN(rows, s.n - r);
        if ((st = cuda_load_buffer(m, &buffer, err)) != ST_OK) return st;
        if (s.n_columns == width) {
            convert(buffer, t, from, n * width);
        } else {
            for (uint64_t i = 0; i < n; i++)
                convert(buffer + i * s.n_columns, t, from + i * width, s.n_columns);
        }
        cuda_load_send(m, dst + r * s.n_columns, n * s.n_columns * sizeof(*dst));
    }
    return gpu_status(m->dev->gpu, err);
}

/* This rank's part of a tensor. Matrices whose K is sliced lie slice after slice. */
static enum status send_part(struct backend_model *m, uint16_t *dst, const struct backend_tensor *t,
                             struct error *err) {
    struct tp_slice s = tp_shard_slice(&m->shard, t);
    bool is_sliced = m->n_slices && (t->role == ROLE_O || t->role == ROLE_DOWN);
    uint32_t n = is_sliced ? m->n_slices : 1;
    enum status st = ST_OK;

    s.n_columns /= n;
    for (uint32_t i = 0; i < n && st == ST_OK; i++, s.first_column += s.n_columns)
        st = send_slice(m, dst + i * s.n * s.n_columns, t, s, err);
    return st;
}

enum status cuda_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                             struct error *err) {
    enum status st = host_take_tensor(&m->host, t, err);
    bool is_plain = true;

    if (st == ST_OK && m->g.quant_types) st = cuda_matrix_load(m, t, &is_plain, err);
    if (st != ST_OK || !is_plain) return st;
    return send_part(m, place_of(m, t->role, t->layer), t, err);
}

static enum status load_start(struct backend_model *m, struct error *err) {
    struct cuda_loader *l = &m->loader;
    enum status st = ST_OK;

    l->n_elements = MIN(LOAD_ELEMENTS, place_weights(m));
    if (m->g.quant_types)
        l->n_elements = MAX(l->n_elements, cuda_matrix_buffer_bytes(&m->g) / sizeof(uint16_t));
    for (int i = 0; i < 2 && st == ST_OK; i++) {
        st = gpu_alloc_pinned(m->dev->gpu, (void **)&l->buffer[i], l->n_elements * 2,
                              "a buffer to load through", err);
        if (st == ST_OK) st = gpu_event_open(m->dev->gpu, &l->event[i], err);
    }
    return st;
}

void cuda_load_stop(struct backend_model *m) {
    for (int i = 0; i < 2; i++) {
        gpu_event_close(m->loader.event[i]);
        gpu_free(m->dev->gpu, m->loader.buffer[i]);
    }
    m->loader = (struct cuda_loader){0};
}

/* cos and sin of every position, as kernels/ref computes them: (max_context, hd / 2, 2). */
static enum status send_turns(struct backend_model *m, struct error *err) {
    const struct geometry *g = &m->g;
    uint32_t half = g->head_dim / 2, rows = (uint32_t)(m->loader.n_elements / 2 / g->head_dim), n;
    enum status st;

    for (uint32_t p = 0; p < g->max_context; p += n) {
        uint16_t *buffer;
        float *turn;

        n = MIN(rows, g->max_context - p);
        if ((st = cuda_load_buffer(m, &buffer, err)) != ST_OK) return st;
        turn = (float *)(void *)buffer;
        for (uint32_t i = 0; i < n * half; i++) {
            float angle = (float)(p + i / half) * g->inv_freq[i % half];

            turn[2 * i] = cosf(angle) * g->rope_scale;
            turn[2 * i + 1] = sinf(angle) * g->rope_scale;
        }
        cuda_load_send(m, m->turn + (uint64_t)p * g->head_dim,
                       (uint64_t)n * g->head_dim * sizeof(*turn));
    }
    return ST_OK;
}

/* --- buffers of a step ------------------------------------------------------------------------ */

/* QKV and the mix of attention are dead when gate and up are computed: they share their place. */
static enum status alloc_activations(struct backend_model *m, struct error *err) {
    const struct geometry *g = &m->g;
    const struct backend_limits *l = &m->host.limits;
    uint64_t T = ALIGN_UP(l->max_step_tokens, GEMM_CODE_ROWS), d = g->d_model, f = g->d_ff;
    uint64_t mix_at = ALIGN_UP(T * m->qkv_width, 128), act_at = ALIGN_UP(T * 2 * f, 128);
    uint64_t work = MAX(mix_at + T * m->q_width, act_at + T * f);
    uint64_t n_head = m->head_rows;
    char what[96];
    enum status st;

    snprintf(what, sizeof(what), "activations of steps of up to %u tokens (max_step_tokens)",
             l->max_step_tokens);
    st = cuda_take(m, &m->x, T * d * 2, what, err);
    if (st == ST_OK) st = cuda_take(m, &m->h, T * d * 2, what, err);
    if (st == ST_OK) st = cuda_take(m, &m->y, T * d * 2, what, err);
    if (st == ST_OK) st = cuda_take(m, &m->qkv, work * 2, what, err);
    for (uint32_t i = 0; i < CEIL_DIV(m->n_slices, 2u) && st == ST_OK; i++)
        st = cuda_take(m, &m->parts[i], T * d * sizeof(float), "sums of slices", err);
    if (st != ST_OK) return st;
    m->gate_up = m->qkv;
    m->mix = m->qkv + mix_at;
    m->act = m->qkv + act_at;
    st = cuda_take(m, &m->head_x, n_head * d * 2, "the hidden states of outputs", err);
    if (st == ST_OK)
        st = cuda_take(m, &m->logits, n_head * m->vocab_stride * sizeof(float), "logits", err);
    if (st == ST_OK && m->shard.size > 1) {
        st = cuda_take(m, &m->logits_part, n_head * m->shard.vocab_stride * sizeof(float),
                       "this rank's logits", err);
        if (st == ST_OK)
            st = cuda_take(m, &m->logits_parts, n_head * m->vocab_stride * sizeof(float),
                           "the ranks' logits", err);
    }
    return st;
}

static enum status alloc_weights(struct backend_model *m, struct error *err) {
    enum status st;
    char what[64];

    m->layers = mem_calloc(m->g.n_layers, sizeof(*m->layers));
    snprintf(what, sizeof(what), "weights of %u layers", m->g.n_layers);
    st = cuda_take(m, &m->weights, place_weights(m) * sizeof(uint16_t), what, err);
    if (st != ST_OK) return st;
    gpu_fill(m->dev->copy_in, m->weights, 0, place_weights(m) * sizeof(uint16_t));
    return cuda_take(m, &m->turn, (uint64_t)m->g.max_context * m->g.head_dim * sizeof(float),
                     "the angles of positions", err);
}

static void set_widths(struct backend_model *m) {
    m->q_width = m->g.n_heads * m->g.head_dim;
    m->kv_width = m->g.n_kv_heads * m->g.head_dim;
    m->qkv_width = m->q_width + 2 * m->kv_width;
    m->vocab_stride = m->shard.vocab_stride * m->shard.size;
    m->head_width = ALIGN_UP(m->shard.vocab, 8u);
    m->head_rows = MIN(CUDA_HEAD_ROWS, m->host.limits.max_outputs);
    m->host.block_bytes = kv_layout_block_bytes(&m->g, OPS_BLOCK_SIZE);
    m->is_deterministic = m->host.limits.is_deterministic;
    m->n_slices = cuda_sum_slices(m);
    for (uint32_t i = 0; i < m->g.n_layers; i++)
        m->has_kind[cuda_has_window(&m->g, i)] = true;
}

static enum status check_own(const struct host_model *h, struct error *err) {
    return check_geometry(&h->g, &h->limits, err);
}

enum status cuda_check_model(const struct backend_config *config, const struct geometry *g,
                             const struct backend_limits *limits, uint32_t n_sm,
                             struct error *err) {
    struct attend_shape shape;
    struct tp_shard shard;
    struct geometry own;
    enum status st = host_check(config, g, limits, check_own, err);

    if (st == ST_OK) st = tp_shard_init(&shard, g, config->tp_rank, config->tp_size, err);
    if (st != ST_OK) return st;
    own = tp_shard_geometry(&shard, g);
    shape = cuda_attend_shape(&own, limits, n_sm);
    st = attend_check(&shape, err);
    return st == ST_OK ? cuda_check_formats(&own, g->format, err) : st;
}

enum status cuda_load_begin(struct backend_device *dev, struct backend_model **out,
                            const struct geometry *g, const struct backend_limits *limits,
                            struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    enum status st;

    m->dev = dev;
    st = host_init_checks(&m->host, &dev->host, g, limits, err);
    if (st == ST_OK) st = tp_shard_init(&m->shard, &m->host.g, dev->tp_rank, dev->tp_size, err);
    if (st == ST_OK) {
        m->g = tp_shard_geometry(&m->shard, &m->host.g);
        st = check_geometry(&m->g, &m->host.limits, err);
    }
    if (st == ST_OK) st = cuda_check_formats(&m->g, g->format, err);
    if (st != ST_OK) goto fail;
    set_widths(m);
    if (m->g.quant_types) quant_prepare();
    if ((st = alloc_weights(m, err)) != ST_OK) goto fail;
    if ((st = alloc_activations(m, err)) != ST_OK) goto fail;
    if ((st = cuda_step_init(m, err)) != ST_OK) goto fail;
    if ((st = gemm_open(&m->gemm, dev->gpu, &product_own, m->is_deterministic, err)) != ST_OK)
        goto fail;
    if ((st = load_start(m, err)) != ST_OK) goto fail;
    if ((st = send_turns(m, err)) != ST_OK) goto fail;
    *out = m;
    return ST_OK;
fail:
    cuda_unload(m);
    return st;
}

enum status cuda_load_end(struct backend_model *m, struct error *err) {
    enum status st = host_check_loaded(&m->host, err);

    if (st == ST_OK) st = gpu_stream_wait(m->dev->copy_in, err);
    if (st != ST_OK) return st;
    cuda_load_stop(m);
    if ((st = cuda_matrix_load_end(m, err)) != ST_OK) return st;
    if ((st = cuda_tune(m, err)) != ST_OK) return st;
    if ((st = cuda_profile(m, err)) != ST_OK) return st;
    /* two parts have one sum; of more, NCCL may choose the order by their length */
    m->dev->is_invariant = m->is_deterministic && (m->shard.size <= 2 || m->dev->peers.is_there);
    m->dev->has_own_products = gemm_n_own(m->gemm) > 0;
    m->dev->has_f8_products = m->library.scratch != NULL;
    if (gemm_note(m->gemm)) (void)error_set(&m->dev->why_own, ST_OK, "%s", gemm_note(m->gemm));
    return ST_OK;
}
