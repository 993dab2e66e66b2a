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
    return takes_gemv(m, n_tokens) && m->shard.size == 1 && !m->has_own_inputs;
}

/* W: bf16, or packed codes. */
struct product {
    struct gemm_args args;
    const struct packed_matrix *packed; /* its codes are NULL when it is bf16 */
};

static struct product product_of(const uint16_t *x, const uint16_t *w,
                                 const struct packed_matrix *packed, void *y, uint32_t n,
                                 uint32_t k) {
    return (struct product){
        {.shape = {.n = n, .k = k}, .x = x, .x_stride = k, .w = w, .y = y, .y_stride = n}, packed};
}

static struct product qkv_product(const struct backend_model *m, const struct cuda_layer *l) {
    return product_of(m->h, l->qkv, &l->packed[CUDA_QKV], m->qkv, m->qkv_width, m->g.d_model);
}

static struct product o_product(const struct backend_model *m, const struct cuda_layer *l) {
    return product_of(m->mix, l->o, &l->packed[CUDA_O], m->y, m->g.d_model, m->q_width);
}

static struct product gate_up_product(const struct backend_model *m, const struct cuda_layer *l) {
    return product_of(m->h, l->gate_up, &l->packed[CUDA_GATE_UP], m->gate_up, 2 * m->g.d_ff,
                      m->g.d_model);
}

static struct product down_product(const struct backend_model *m, const struct cuda_layer *l) {
    return product_of(m->act, l->down, &l->packed[CUDA_DOWN], m->y, m->g.d_model, m->g.d_ff);
}

static struct product head_product(const struct backend_model *m) {
    struct product p =
        product_of(m->head_x, m->head, &m->packed_head,
                   m->shard.size > 1 ? m->logits_part : m->logits, m->head_width, m->g.d_model);

    p.args.shape.is_f32_out = true;
    p.args.y_stride = m->shard.vocab_stride;
    return p;
}

/* Own kernels for few rows; of codes, those for all. */
static void run_own(struct backend_model *m, struct gemv_args a,
                    const struct packed_matrix *packed) {
    if (packed->codes)
        quant_run(m->dev->compute, &(struct quant_args){.a = a,
                                                        .w = *packed,
                                                        .scratch = m->quant_scratch,
                                                        .is_deterministic = m->is_deterministic});
    else
        ops_gemv(m->dev->compute, &a);
}

static struct gemv_args own_args(const struct gemm_args *a, uint32_t n_rows) {
    return (struct gemv_args){.x = a->x,
                              .w = a->w,
                              .y = a->y,
                              .m = n_rows,
                              .n = a->shape.n,
                              .k = a->shape.k,
                              .x_stride = a->x_stride,
                              .y_stride = a->y_stride,
                              .is_f32_out = a->shape.is_f32_out};
}

static struct quant_args quant_args_of(const struct backend_model *m, const struct product *p,
                                       uint32_t n_rows) {
    return (struct quant_args){
        .a = own_args(&p->args, n_rows), .w = *p->packed, .scratch = m->quant_scratch};
}

/* Codes by the library, where that was measured to be faster; false: own kernels must. */
static bool run_library(struct backend_model *m, const struct product *p, uint32_t n_rows) {
    struct quant_args a;

    if (!p->packed->library_rows || n_rows < p->packed->library_rows) return false;
    a = quant_args_of(m, p, n_rows);
    return quant_library_run(&m->library, &a);
}

static void multiply(struct backend_model *m, struct product p, uint32_t n_rows) {
    p.args.m = n_rows;
    if (p.packed->codes && run_library(m, &p, n_rows)) return;
    if (takes_gemv(m, n_rows) || p.packed->codes)
        run_own(m, own_args(&p.args, n_rows), p.packed);
    else
        gemm_run(m->gemm, m->dev->compute, &p.args);
}

/* Slice i of K of a product that is summed over the ranks: two of them make a part (peers.c). */
static struct product slice_of(const struct backend_model *m, struct product p, uint32_t i) {
    struct gemm_args *a = &p.args;

    a->shape.k /= m->n_slices;
    a->shape.is_f32_out = true;
    a->shape.accumulates = i % 2 == 1;
    a->x += (uint64_t)i * a->shape.k;
    a->w += (uint64_t)i * a->shape.n * a->shape.k;
    a->y = m->parts[i / 2];
    return p;
}

/* y = the product of all ranks; p.y is m->y. */
static void multiply_and_sum(struct backend_model *m, struct product p, uint32_t n_rows) {
    uint64_t n = (uint64_t)n_rows * m->g.d_model;

    if (m->n_slices == 0) {
        multiply(m, p, n_rows);
        cuda_sum_ranks(m, m->y, n);
        return;
    }
    for (uint32_t i = 0; i < m->n_slices; i++)
        multiply(m, slice_of(m, p, i), n_rows);
    cuda_sum_parts(m, m->y, n);
}

static enum status tune(struct backend_model *m, struct product p, uint32_t max_rows,
                        struct error *err) {
    if (p.packed->codes) return ST_OK;
    p.args.m = max_rows;
    return gemm_tune(m->gemm, m->dev->compute, &p.args, max_rows, err);
}

static enum status tune_summed(struct backend_model *m, struct product p, uint32_t max_rows,
                               struct error *err) {
    enum status st = ST_OK;

    if (m->n_slices == 0) return tune(m, p, max_rows, err);
    for (uint32_t i = 0; i < MIN(m->n_slices, 2u) && st == ST_OK; i++)
        st = tune(m, slice_of(m, p, i), max_rows, err);
    return st;
}

/* Would both be multiplied by the same calls? */
static bool is_alike(const struct packed_matrix *a, const struct packed_matrix *b) {
    return a->codes && b->codes && a->grain == b->grain && a->dtype == b->dtype &&
           a->group_k == b->group_k && a->inputs == b->inputs;
}

static enum status tune_matrix(struct backend_model *m, uint32_t layer, enum cuda_matrix which,
                               struct error *err) {
    struct cuda_layer *l = &m->layers[layer];
    struct packed_matrix *w = &l->packed[which];
    const struct packed_matrix *before = layer ? &m->layers[layer - 1].packed[which] : w;
    uint32_t T = m->host.limits.max_step_tokens;
    struct product p;
    struct quant_args a;

    if (layer && is_alike(w, before)) {
        w->library_rows = before->library_rows;
        return ST_OK;
    }
    if (!quant_library_bytes(m->gemm, w, T)) return ST_OK;
    switch (which) {
    case CUDA_QKV: p = qkv_product(m, l); break;
    case CUDA_O: p = o_product(m, l); break;
    case CUDA_GATE_UP: p = gate_up_product(m, l); break;
    default: p = down_product(m, l); break;
    }
    a = quant_args_of(m, &p, T);
    return quant_library_tune(&m->library, &a, T, &w->library_rows, err);
}

/* Which products of e4m3 codes the library makes. */
static enum status tune_codes(struct backend_model *m, struct error *err) {
    enum status st = ST_OK;
    bool is_used = false;

    if (!m->library.scratch) return ST_OK;
    for (uint32_t i = 0; i < m->g.n_layers * CUDA_MATRICES && st == ST_OK; i++) {
        st = tune_matrix(m, i / CUDA_MATRICES, (enum cuda_matrix)(i % CUDA_MATRICES), err);
        is_used |= m->layers[i / CUDA_MATRICES].packed[i % CUDA_MATRICES].library_rows > 0;
    }
    if (st != ST_OK || is_used) return st;
    cuda_give_back(m, m->library.scratch, m->library_bytes);
    m->library.scratch = NULL;
    return ST_OK;
}

/* Plans on the weights of the first layer where they are bf16: the shapes are those of all. */
enum status cuda_tune(struct backend_model *m, struct error *err) {
    uint32_t T = m->host.limits.max_step_tokens;
    enum status st = ST_OK;

    for (uint32_t i = 0; i < m->g.n_layers && st == ST_OK; i++) {
        const struct cuda_layer *l = &m->layers[i];

        st = tune(m, qkv_product(m, l), T, err);
        if (st == ST_OK) st = tune_summed(m, o_product(m, l), T, err);
        if (st == ST_OK) st = tune(m, gate_up_product(m, l), T, err);
        if (st == ST_OK) st = tune_summed(m, down_product(m, l), T, err);
    }
    if (st == ST_OK) st = tune(m, head_product(m), m->head_rows, err);
    return st == ST_OK ? tune_codes(m, err) : st;
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
                                                  .scales_at = (uint32_t)kv_scales_at(
                                                      &m->g, OPS_BLOCK_SIZE, layer, 0, 0),
                                                  .kv_dtype = m->g.kv_dtype,
                                                  .layer = layer,
                                                  .n_tokens = f->n_tokens,
                                                  .n_heads = m->g.n_heads,
                                                  .n_kv_heads = m->g.n_kv_heads,
                                                  .hd = m->g.head_dim,
                                                  .eps = m->g.rms_eps});
}

/* Rows of one token beside rows of several: the one reads memory, the other computes, so they run
 * at the same time. They write different rows of mix, and different parts. */
static void attend_beside(struct backend_model *m, const struct attend_args *a, const void *list,
                          const struct attend_grid *grid) {
    struct backend_device *dev = m->dev;
    uint32_t list_bytes = grid->n_decode * (uint32_t)sizeof(struct attend_item);
    struct attend_grid decode = *grid, rest = *grid;

    decode.n_prefill = decode.n_merge = rest.n_decode = 0;
    rest.merge_offset -= list_bytes;
    gpu_event_record(dev->parted, dev->compute);
    gpu_stream_wait_event(dev->beside, dev->parted);
    attend_layer(dev->beside, a, list, &decode);
    gpu_event_record(dev->joined, dev->beside);
    attend_layer(dev->compute, a, (const uint8_t *)list + list_bytes, &rest);
    gpu_stream_wait_event(dev->compute, dev->joined);
}

static void attend(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct geometry *g = &m->g;
    bool has_window = cuda_has_window(g, layer);
    const struct attend_grid *grid = &f->grid[has_window];
    const struct attend_args a = {
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
    };

    if (grid->n_decode && grid->n_prefill)
        attend_beside(m, &a, f->list[has_window], grid);
    else
        attend_layer(m->dev->compute, &a, f->list[has_window], grid);
}

/* --- layers ----------------------------------------------------------------------------------- */

static void run_layer(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct cuda_layer *l = &m->layers[layer];

    norm(m, f, layer ? m->y : NULL, NULL, l->attn_norm);
    multiply(m, qkv_product(m, l), f->n_tokens);
    rope(m, f, layer);
    attend(m, f, layer);
    multiply_and_sum(m, o_product(m, l), f->n_tokens);
    norm(m, f, m->y, l->o_bias, l->ffn_norm);
    multiply(m, gate_up_product(m, l), f->n_tokens);
    ops_swiglu(m->dev->compute,
               &(struct swiglu_args){
                   .gate_up = m->gate_up, .act = m->act, .n_tokens = f->n_tokens, .f = m->g.d_ff});
    multiply_and_sum(m, down_product(m, l), f->n_tokens);
}

/* A product that takes the norm of x on the way. */
static void normed_gemv(struct backend_model *m, const struct product *p, uint32_t n_rows,
                        const uint16_t *norm_weight) {
    run_own(m,
            (struct gemv_args){.x = m->x,
                               .w = p->args.w,
                               .norm_weight = norm_weight,
                               .y = p->args.y,
                               .m = n_rows,
                               .n = p->args.shape.n,
                               .k = p->args.shape.k,
                               .x_stride = m->g.d_model,
                               .y_stride = p->args.y_stride,
                               .eps = m->g.rms_eps},
            p->packed);
}

/* The same of gate and up, with SwiGLU. */
static void gated_gemv(struct backend_model *m, const struct product *p, uint32_t n_rows,
                       const uint16_t *norm_weight) {
    run_own(m,
            (struct gemv_args){.x = m->x,
                               .w = p->args.w,
                               .norm_weight = norm_weight,
                               .y = m->act,
                               .m = n_rows,
                               .n = m->g.d_ff,
                               .k = m->g.d_model,
                               .x_stride = m->g.d_model,
                               .y_stride = m->g.d_ff,
                               .eps = m->g.rms_eps,
                               .is_swiglu = true},
            p->packed);
}

/* A product that is added to x. */
static void adding_gemv(struct backend_model *m, const struct product *p, uint32_t n_rows,
                        const uint16_t *bias) {
    run_own(m,
            (struct gemv_args){.x = p->args.x,
                               .w = p->args.w,
                               .bias = bias,
                               .y = m->x,
                               .m = n_rows,
                               .n = m->g.d_model,
                               .k = p->args.shape.k,
                               .x_stride = p->args.x_stride,
                               .y_stride = m->g.d_model,
                               .accumulates = true},
            p->packed);
}

static void run_fused_layer(struct backend_model *m, const struct cuda_forward *f, uint32_t layer) {
    const struct cuda_layer *l = &m->layers[layer];
    const struct product qkv = qkv_product(m, l), o = o_product(m, l),
                         gate_up = gate_up_product(m, l), down = down_product(m, l);

    normed_gemv(m, &qkv, f->n_tokens, l->attn_norm);
    rope(m, f, layer);
    attend(m, f, layer);
    adding_gemv(m, &o, f->n_tokens, l->o_bias);
    gated_gemv(m, &gate_up, f->n_tokens, l->ffn_norm);
    adding_gemv(m, &down, f->n_tokens, NULL);
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
    multiply(m, head_product(m), n);
    if (m->dev->comm) gather_logits(m, n);
}
