/* kernels/cuda/forward.c - one step through the decoder, as launches on the compute stream.
 *
 * A layer is nine launches. Attention is one of them: of a step with prompts it is one for them and
 * one for the other rows, and a merge where ranges of prompts are split (deterministic: always):
 *
 *      x += y (of the layer before), h = norm(x) ─▶ qkv ─▶ rope, KV write ─▶ attention: mix ─▶ o: y
 *      x += y,                       h = norm(x) ─▶ gate_up ─▶ swiglu: act ─▶ down: y
 *
 * and with at most GEMV_MAX_ROWS tokens six, where that was measured to be faster (graph.c):
 * norms, swiglu and the additions to x happen inside the products. With several ranks y is a part,
 * summed over the ranks before it is added, so the nine are kept.
 *
 * Nothing here looks at contents or allocates, so the same calls run a step at once or record it
 * into a graph. All shapes are of this rank; T is f->n_tokens. */
#include <math.h>

#include "kernels/cuda/cuda_internal.h"

/* --- products --------------------------------------------------------------------------------- */

static bool takes_gemv(const struct backend_model *m, uint32_t n_rows) {
    return !m->is_deterministic && n_rows <= GEMV_MAX_ROWS && !m->takes_library[n_rows];
}

/* Are this step's layers the short ones? */
static bool is_fused(const struct backend_model *m, uint32_t n_tokens) {
    return takes_gemv(m, n_tokens) && m->shard.size == 1;
}

static struct gemm_args product_args(const uint16_t *x, const uint16_t *w, void *y, uint32_t n,
                                     uint32_t k) {
    return (struct gemm_args){
        .shape = {.n = n, .k = k}, .x = x, .x_stride = k, .w = w, .y = y, .y_stride = n};
}

static struct gemm_args qkv_args(const struct backend_model *m, const struct cuda_layer *l) {
    return product_args(m->h, l->qkv, m->qkv, m->qkv_width, m->g.d_model);
}

static struct gemm_args o_args(const struct backend_model *m, const struct cuda_layer *l) {
    return product_args(m->mix, l->o, m->y, m->g.d_model, m->q_width);
}

static struct gemm_args gate_up_args(const struct backend_model *m, const struct cuda_layer *l) {
    return product_args(m->h, l->gate_up, m->gate_up, 2 * m->g.d_ff, m->g.d_model);
}

static struct gemm_args down_args(const struct backend_model *m, const struct cuda_layer *l) {
    return product_args(m->act, l->down, m->y, m->g.d_model, m->g.d_ff);
}

static struct gemm_args head_args(const struct backend_model *m) {
    struct gemm_args a =
        product_args(m->head_x, m->head, m->shard.size > 1 ? m->logits_part : m->logits,
                     m->head_width, m->g.d_model);

    a.shape.is_f32_out = true;
    a.y_stride = m->shard.vocab_stride;
    return a;
}

static void multiply(struct backend_model *m, struct gemm_args a, uint32_t n_rows) {
    a.m = n_rows;
    if (takes_gemv(m, n_rows)) {
        ops_gemv(m->dev->compute, &(struct gemv_args){.x = a.x,
                                                      .w = a.w,
                                                      .y = a.y,
                                                      .m = n_rows,
                                                      .n = a.shape.n,
                                                      .k = a.shape.k,
                                                      .x_stride = a.x_stride,
                                                      .y_stride = a.y_stride,
                                                      .is_f32_out = a.shape.is_f32_out});
    } else {
        gemm_run(m->gemm, m->dev->compute, &a);
    }
}

/* Plans on the first layer's weights: the shapes are those of all. */
enum status cuda_tune(struct backend_model *m, struct error *err) {
    const struct cuda_layer *l = &m->layers[0];
    uint32_t T = m->host.limits.max_step_tokens;
    struct {
        struct gemm_args args;
        uint32_t max_rows;
    } all[] = {
        {qkv_args(m, l), T},          {o_args(m, l), T},
        {gate_up_args(m, l), T},      {down_args(m, l), T},
        {head_args(m), m->head_rows},
    };
    enum status st = ST_OK;

    for (size_t i = 0; i < ARRAY_LEN(all) && st == ST_OK; i++) {
        all[i].args.m = all[i].max_rows;
        st = gemm_tune(m->gemm, m->dev->compute, &all[i].args, all[i].max_rows, err);
    }
    return st;
}

/* --- the parts of a layer --------------------------------------------------------------------- */

static void embed(struct backend_model *m, const struct cuda_forward *f) {
    ops_embed(m->dev->compute, &(struct embed_args){.table = m->embed,
                                                    .token = f->token,
                                                    .previous = m->out,
                                                    .x = m->x,
                                                    .n_tokens = f->n_tokens,
                                                    .d = m->g.d_model,
                                                    .vocab = m->g.vocab,
                                                    .n_previous = m->host.limits.max_outputs});
}

/* x += y + bias, h = norm(x); y NULL: nothing is added. */
static void norm(struct backend_model *m, const struct cuda_forward *f, const uint16_t *y,
                 const uint16_t *bias, const uint16_t *weight) {
    ops_norm(m->dev->compute, &(struct norm_args){.x = m->x,
                                                  .y = y,
                                                  .bias = bias,
                                                  .weight = weight,
                                                  .h = m->h,
                                                  .n = f->n_tokens,
                                                  .d = m->g.d_model,
                                                  .eps = m->g.rms_eps});
}

static void rope(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct cuda_layer *l = &m->layers[layer];

    ops_rope(m->dev->compute, &(struct rope_args){.qkv = m->qkv,
                                                  .bias = l->qkv_bias,
                                                  .q_norm = l->q_norm,
                                                  .k_norm = l->k_norm,
                                                  .position = f->position,
                                                  .kv_slot = f->kv_slot,
                                                  .turn = m->turn,
                                                  .kv = m->kv,
                                                  .block_stride = (int64_t)m->host.block_bytes,
                                                  .scales_at = (int64_t)kv_scales_at(
                                                      &m->g, OPS_BLOCK_SIZE, layer, 0, 0),
                                                  .kv_dtype = m->g.kv_dtype,
                                                  .layer = layer,
                                                  .n_tokens = f->n_tokens,
                                                  .n_heads = m->g.n_heads,
                                                  .n_kv_heads = m->g.n_kv_heads,
                                                  .hd = m->g.head_dim,
                                                  .eps = m->g.rms_eps});
}

static void attend(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct geometry *g = &m->g;
    bool has_window = cuda_has_window(g, layer);

    attend_layer(m->dev->compute,
                 &(struct attend_args){
                     .qkv = m->qkv,
                     .k = m->kv + kv_tile_at(g, OPS_BLOCK_SIZE, layer, 0, 0),
                     .v = m->kv + kv_tile_at(g, OPS_BLOCK_SIZE, layer, 1, 0),
                     .scales = m->kv + kv_scales_at(g, OPS_BLOCK_SIZE, layer, 0, 0),
                     .kv_dtype = g->kv_dtype,
                     .table = (const int32_t *)m->table,
                     .partial = m->partial,
                     .partial_state = m->partial_state,
                     .ended = m->ended,
                     .mix = m->mix,
                     .qkv_stride = m->qkv_width,
                     .block_stride = (int64_t)m->host.block_bytes,
                     .table_stride = (int32_t)m->host.limits.max_blocks_per_row,
                     .n_heads = (int32_t)g->n_heads,
                     .n_kv_heads = (int32_t)g->n_kv_heads,
                     .head_dim = (int32_t)g->head_dim,
                     .window = has_window ? (int32_t)g->sliding_window : 0,
                     .scale_log2 = (float)(1.4426950408889634 / sqrt((double)g->head_dim)),
                 },
                 f->list[has_window], &f->grid[has_window]);
}

static void sum_over_ranks(struct backend_model *m, uint16_t *y, uint64_t n) {
    if (m->dev->comm) comm_sum(m->dev->comm, m->dev->compute, y, n);
}

/* --- layers ----------------------------------------------------------------------------------- */

static void run_layer(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct cuda_layer *l = &m->layers[layer];
    uint64_t n = (uint64_t)f->n_tokens * m->g.d_model;

    norm(m, f, layer ? m->y : NULL, NULL, l->attn_norm);
    multiply(m, qkv_args(m, l), f->n_tokens);
    rope(m, f, layer);
    attend(m, f, layer);
    multiply(m, o_args(m, l), f->n_tokens);
    sum_over_ranks(m, m->y, n);
    norm(m, f, m->y, l->o_bias, l->ffn_norm);
    multiply(m, gate_up_args(m, l), f->n_tokens);
    ops_swiglu(m->dev->compute,
               &(struct swiglu_args){
                   .gate_up = m->gate_up, .act = m->act, .n_tokens = f->n_tokens, .f = m->g.d_ff});
    multiply(m, down_args(m, l), f->n_tokens);
    sum_over_ranks(m, m->y, n);
}

/* A product that takes the norm of x on the way. */
static void normed_gemv(struct backend_model *m, const struct cuda_forward *f,
                        const uint16_t *norm_weight, const uint16_t *w, uint16_t *y, uint32_t n,
                        bool is_swiglu) {
    ops_gemv(m->dev->compute, &(struct gemv_args){.x = m->x,
                                                  .w = w,
                                                  .norm_weight = norm_weight,
                                                  .y = y,
                                                  .m = f->n_tokens,
                                                  .n = n,
                                                  .k = m->g.d_model,
                                                  .x_stride = m->g.d_model,
                                                  .y_stride = n,
                                                  .eps = m->g.rms_eps,
                                                  .is_swiglu = is_swiglu});
}

/* A product that is added to x. */
static void adding_gemv(struct backend_model *m, const struct cuda_forward *f, const uint16_t *x,
                        const uint16_t *w, const uint16_t *bias, uint32_t k) {
    ops_gemv(m->dev->compute, &(struct gemv_args){.x = x,
                                                  .w = w,
                                                  .bias = bias,
                                                  .y = m->x,
                                                  .m = f->n_tokens,
                                                  .n = m->g.d_model,
                                                  .k = k,
                                                  .x_stride = k,
                                                  .y_stride = m->g.d_model,
                                                  .accumulates = true});
}

static void run_fused_layer(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct cuda_layer *l = &m->layers[layer];

    normed_gemv(m, f, l->attn_norm, l->qkv, m->qkv, m->qkv_width, false);
    rope(m, f, layer);
    attend(m, f, layer);
    adding_gemv(m, f, m->mix, l->o, l->o_bias, m->q_width);
    normed_gemv(m, f, l->ffn_norm, l->gate_up, m->act, m->g.d_ff, true);
    adding_gemv(m, f, m->act, l->down, NULL, m->g.d_ff);
}

void cuda_decode(struct backend_model *m, const struct cuda_forward *f) {
    bool fused = is_fused(m, f->n_tokens);

    if (f->n_tokens == 0) return;
    embed(m, f);
    for (uint32_t i = 0; i < m->g.n_layers; i++) {
        if (fused)
            run_fused_layer(m, f, i);
        else
            run_layer(m, f, i);
    }
}

/* --- logits ----------------------------------------------------------------------------------- */

/* Every rank has the logits of its part of the vocabulary, and gets those of all. */
static void gather_logits(struct backend_model *m, uint32_t n) {
    uint64_t piece = m->shard.vocab_stride * sizeof(float);

    comm_gather(m->dev->comm, m->dev->compute, m->logits_part, m->logits_parts, n * piece);
    for (uint32_t r = 0; r < m->shard.size; r++)
        gpu_copy_2d(m->dev->compute, m->logits + (uint64_t)r * m->shard.vocab_stride,
                    m->vocab_stride * sizeof(float),
                    m->logits_parts + (uint64_t)r * n * m->shard.vocab_stride, piece, piece, n);
}

void cuda_head(struct backend_model *m, const struct cuda_forward *f, uint32_t first, uint32_t n) {
    ops_norm(m->dev->compute,
             &(struct norm_args){.x = m->x,
                                 .y = is_fused(m, f->n_tokens) ? NULL : m->y,
                                 .weight = m->final_norm,
                                 .h = m->head_x,
                                 .row = &f->output[first].token_index,
                                 .row_stride = sizeof(*f->output) / sizeof(uint32_t),
                                 .n = n,
                                 .d = m->g.d_model,
                                 .eps = m->g.rms_eps});
    multiply(m, head_args(m), n);
    if (m->dev->comm) gather_logits(m, n);
}
