/* tests/support/tiny_model.c - see tiny_model.h. */
#include "tests/support/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/dtype.h"
#include "tests/support/quant_matrix.h"

static void must(enum status st, const struct error *err, const char *what) {
    if (st == ST_OK) return;
    fprintf(stderr, "tiny model: %s: %s: %s\n", what, status_name(st), err->message);
    abort();
}

const struct tiny_shape tiny_many_heads = {.n_layers = 2,
                                           .d_model = 64,
                                           .n_heads = 8,
                                           .n_kv_heads = 4,
                                           .head_dim = 16,
                                           .d_ff = 88,
                                           .vocab = 250,
                                           .max_context = 128,
                                           .is_tied = true,
                                           .weight_dtype = DTYPE_BF16,
                                           .kv_dtype = DTYPE_BF16};

struct geometry tiny_geometry(const struct tiny_shape *s, float *inv_freq, uint8_t *layer_kind) {
    struct geometry g = {.n_layers = s->n_layers,
                         .d_model = s->d_model,
                         .n_heads = s->n_heads,
                         .n_kv_heads = s->n_kv_heads,
                         .head_dim = s->head_dim,
                         .d_ff = s->d_ff,
                         .vocab = s->vocab,
                         .max_context = s->max_context,
                         .rms_eps = 1e-5f,
                         .inv_freq = inv_freq,
                         .rope_scale = 1.0f,
                         .weight_dtype = s->weight_dtype,
                         .kv_dtype = s->kv_dtype,
                         .quant_types = s->quant ? QUANT_TYPE(s->quant->dtype) |
                                                       s->is_quant_mixed * QUANT_TYPE(DTYPE_F8E4M3)
                                                 : 0,
                         .has_qkv_bias = s->has_qkv_bias,
                         .has_o_bias = s->has_o_bias,
                         .has_qk_norm = s->has_qk_norm,
                         .is_tied = s->is_tied,
                         .sliding_window = s->sliding_window,
                         .layer_kind = s->sliding_window ? layer_kind : NULL};

    for (uint32_t i = 0; i < s->head_dim / 2; i++)
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)s->head_dim);
    for (uint32_t i = 0; i < s->n_layers; i++)
        layer_kind[i] = i % 2;
    return g;
}

struct backend_limits tiny_limits(const struct tiny_setup *setup, const struct tiny_shape *s) {
    return (struct backend_limits){.max_rows = setup->max_rows,
                                   .max_step_tokens = setup->max_step_tokens,
                                   .max_blocks_per_row =
                                       CEIL_DIV(s->max_context, setup->block_size),
                                   .max_outputs = setup->max_rows,
                                   .max_logprobs = 5,
                                   .n_slots = 1,
                                   .block_size = setup->block_size,
                                   .max_bias = 64,
                                   .max_masks = 4};
}

static float normal(struct rng *r) {
    double u = 1.0 - rng_f64(r), v = rng_f64(r);

    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static enum status load_quantised(const struct backend_ops *ops, struct backend_model *model,
                                  enum tensor_role role, uint32_t layer, uint32_t n, uint32_t k,
                                  const struct quant_kind *kind, uint64_t seed, struct error *err) {
    /* those that are multiplied at once have one order */
    uint32_t order_of = role == ROLE_K || role == ROLE_V ? ROLE_Q
                        : role == ROLE_UP                ? ROLE_GATE
                                                         : role;
    struct quant_matrix m, ordered;
    struct rng r;
    enum status st;

    rng_seed(&r, rng_mix(seed) ^ (uint64_t)(order_of * 1000u + layer));
    quant_matrix_fill(&ordered, kind, 1, k, &r);
    rng_seed(&r, rng_mix(seed) ^ (uint64_t)(role * 1000u + layer));
    quant_matrix_fill(&m, kind, n, k, &r);
    m.tensor.role = role;
    m.tensor.layer = layer;
    if (kind->has_order)
        memcpy((void *)(uintptr_t)m.quant.order, ordered.quant.order, k * sizeof(uint32_t));
    st = ops->load_tensor(model, &m.tensor, err);
    quant_matrix_free(&ordered);
    quant_matrix_free(&m);
    return st;
}

static enum status load_one(const struct backend_ops *ops, struct backend_model *model,
                            enum tensor_role role, uint32_t layer, uint64_t n, uint64_t k,
                            enum dtype dtype, float mean, float scale, uint64_t seed,
                            struct error *err) {
    struct rng r;
    uint64_t count = n * MAX(k, 1);
    void *data = mem_calloc(count, dtype_bytes(dtype));
    struct backend_tensor t = {
        role, layer, dtype, k ? 2 : 1, {n, k}, data, count * dtype_bytes(dtype)};
    enum status st;

    rng_seed(&r, rng_mix(seed) ^ (uint64_t)(role * 1000u + layer));
    for (uint64_t i = 0; i < count; i++)
        dtype_put(dtype, data, i, mean + scale * normal(&r));
    st = ops->load_tensor(model, &t, err);
    mem_free(data);
    return st;
}

/* How a matrix is quantised, or NULL. */
static const struct quant_kind *kind_of(const struct tiny_shape *s, enum tensor_role role) {
    if (!s->quant || role == ROLE_EMBED || s->plain_roles >> role & 1) return NULL;
    if (!s->is_quant_mixed) return s->quant;
    if (role == ROLE_K || role == ROLE_UP || role == ROLE_LM_HEAD) return NULL;
    return role == ROLE_V ? &quant_kinds[0] : s->quant;
}

enum status tiny_load(const struct backend_ops *ops, struct backend_model *model,
                      const struct tiny_shape *s, uint64_t seed, enum tensor_role skip,
                      struct error *err) {
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    enum dtype file_dtype = s->file_dtype ? *s->file_dtype : s->weight_dtype;
    struct {
        enum tensor_role role;
        bool is_wanted;
        uint32_t n, k;
    } all[] = {
        {ROLE_DOWN, true, s->d_model, s->d_ff},
        {ROLE_EMBED, true, s->vocab, s->d_model},
        {ROLE_LM_HEAD, !s->is_tied, s->vocab, s->d_model},
        {ROLE_FINAL_NORM, true, s->d_model, 0},
        {ROLE_ATTN_NORM, true, s->d_model, 0},
        {ROLE_V, true, kv, s->d_model},
        {ROLE_K, true, kv, s->d_model},
        {ROLE_Q, true, q, s->d_model},
        {ROLE_O, true, s->d_model, q},
        {ROLE_Q_BIAS, s->has_qkv_bias, q, 0},
        {ROLE_K_BIAS, s->has_qkv_bias, kv, 0},
        {ROLE_V_BIAS, s->has_qkv_bias, kv, 0},
        {ROLE_O_BIAS, s->has_o_bias, s->d_model, 0},
        {ROLE_Q_NORM, s->has_qk_norm, s->head_dim, 0},
        {ROLE_K_NORM, s->has_qk_norm, s->head_dim, 0},
        {ROLE_FFN_NORM, true, s->d_model, 0},
        {ROLE_GATE, true, s->d_ff, s->d_model},
        {ROLE_UP, true, s->d_ff, s->d_model},
    };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        uint32_t n_layers = all[i].role > ROLE_LM_HEAD ? s->n_layers : 1;

        for (uint32_t l = 0; l < n_layers && all[i].is_wanted && all[i].role != skip; l++) {
            bool is_matrix = all[i].k > 0, is_embed = all[i].role == ROLE_EMBED;
            bool is_norm = !is_matrix && (all[i].role < ROLE_Q || all[i].role >= ROLE_Q_NORM);
            float scale = is_embed ? 0.3f : is_matrix ? 1.0f / sqrtf((float)all[i].k) : 0.1f;
            const struct quant_kind *kind = is_matrix ? kind_of(s, all[i].role) : NULL;
            enum status st = kind ? load_quantised(ops, model, all[i].role, l, all[i].n, all[i].k,
                                                   kind, seed, err)
                                  : load_one(ops, model, all[i].role, l, all[i].n, all[i].k,
                                             is_matrix ? file_dtype : DTYPE_F32,
                                             is_norm ? 1.0f : 0.0f, scale, seed, err);

            if (st != ST_OK) return st;
        }
    }
    return ST_OK;
}

void tiny_open(struct tiny_model *m, const struct tiny_setup *setup, const struct tiny_shape *shape,
               uint64_t seed) {
    float inv_freq[256];
    uint8_t layer_kind[64];
    struct geometry g = tiny_geometry(shape, inv_freq, layer_kind);
    struct backend_limits limits = tiny_limits(setup, shape);
    struct backend_config config = {.path = setup->path,
                                    .n_threads = setup->n_threads,
                                    .ranks = setup->ranks,
                                    .tp_size = setup->tp_size};
    struct backend_kv_info kv;
    struct error err = {0};

    *m = (struct tiny_model){.setup = *setup, .shape = *shape};
    m->blocks_per_row = limits.max_blocks_per_row;
    must(setup->ops->open(&m->dev, &config, &err), &err, "open");
    must(setup->ops->load_begin(m->dev, &m->model, &g, &limits, &err), &err, "load_begin");
    must(tiny_load(setup->ops, m->model, shape, seed, ROLE_COUNT, &err), &err, "load_tensor");
    must(setup->ops->load_end(m->model, &err), &err, "load_end");
    must(setup->ops->kv_alloc(m->model, setup->max_rows * m->blocks_per_row + 1,
                              setup->n_host_blocks, &kv, &err),
         &err, "kv_alloc");
    m->host_pool = kv.host_pool;
    setup->ops->stage(m->model, 0, &m->stage);
}

void tiny_close(struct tiny_model *m) {
    m->setup.ops->unload(m->model);
    m->setup.ops->close(m->dev);
}

/* Blocks of different rows are interleaved, so that neighbours in a sequence are not in
 * the pool. */
static uint32_t block_of(const struct tiny_model *m, uint32_t row, uint32_t index) {
    return 1 + (m->blocks_per_row - 1 - index) * m->setup.max_rows + row;
}

static void add_row(struct tiny_model *m, struct backend_step *step, struct tiny_request *q,
                    uint32_t row, uint32_t done, uint32_t n) {
    struct backend_stage *s = &m->stage;
    uint32_t size = m->setup.block_size;

    s->row[step->n_rows++] = (struct backend_row){row, step->n_tokens, n, done + n};
    for (uint32_t i = done; i < done + n; i++) {
        s->token[step->n_tokens] =
            i < q->n_prompt ? (int32_t)q->prompt[i] : q->token[i - q->n_prompt];
        s->position[step->n_tokens] = i;
        s->kv_slot[step->n_tokens++] = (int64_t)block_of(m, row, i / size) * size + i % size;
    }
    if (done + n < q->n_prompt) return;
    s->output[step->n_outputs] = q->how;
    s->output[step->n_outputs].row = row;
    s->output[step->n_outputs].token_index = step->n_tokens - 1;
    s->output[step->n_outputs++].position = done + n;
}

void tiny_run(struct tiny_model *m, struct tiny_request *requests, uint32_t n, uint32_t chunk) {
    const struct backend_ops *ops = m->setup.ops;
    uint32_t *done = mem_calloc(n, sizeof(*done)), *row_of = mem_calloc(n, sizeof(*row_of));
    struct error err = {0};

    for (uint32_t r = 0; r < n; r++) {
        must(ops->row_bind(m->model, r, requests[r].prompt, requests[r].n_prompt, NULL, 0), &err,
             "row_bind");
    }
    for (bool is_first = true;; is_first = false) {
        struct backend_step step = {0};
        backend_fence fence;
        uint32_t wave_limit = m->setup.max_step_tokens;

        for (uint32_t r = 0; r < n && is_first; r++) {
            for (uint32_t i = 0; i < m->blocks_per_row; i++)
                m->stage.update[step.n_updates++] =
                    (struct backend_table_update){r, i, block_of(m, r, i)};
        }
        for (int is_prefill = 0; is_prefill < 2; is_prefill++) {
            for (uint32_t r = 0; r < n; r++) {
                struct tiny_request *q = &requests[r];
                uint32_t left = done[r] < q->n_prompt ? q->n_prompt - done[r] : 1;
                uint32_t take = MIN(MIN(left, chunk), wave_limit - step.n_tokens);

                if (done[r] + 1 >= q->n_prompt + q->n_new || (take > 1) != is_prefill || !take)
                    continue;
                if (is_prefill == 0 && left > 1 && chunk > 1) continue;
                if (done[r] + take >= q->n_prompt) row_of[step.n_outputs] = r;
                add_row(m, &step, q, r, done[r], take);
                done[r] += take;
            }
        }
        if (step.n_tokens == 0) break;
        must(ops->submit(m->model, 0, &step, &fence, &err), &err, "submit");
        must(ops->wait(m->dev, fence, 1000000), &err, "wait");
        for (uint32_t i = 0; i < step.n_outputs; i++) {
            struct tiny_request *q = &requests[row_of[i]];
            uint32_t at = done[row_of[i]] - q->n_prompt;

            q->token[at] = m->stage.out_token[i];
            q->logprob[at] = m->stage.out_logprob[i];
            if (m->stage.out_flags[i]) must(ST_INTERNAL, &err, "output flags are set");
        }
    }
    for (uint32_t r = 0; r < n; r++)
        ops->row_free(m->model, r);
    mem_free(done);
    mem_free(row_of);
}
