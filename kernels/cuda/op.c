/* kernels/cuda/op.c - backend_ops.op of the CUDA backend: the kernels of a step on host tensors.
 *
 * For tests: it allocates, copies and waits for each call. What is f32 outside becomes bf16 on the
 * device and f32 again; rope and the KV write, one kernel here, are called for one half each. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/kv_layout.h"
#include "kernels/op_args.h"

/* Memory of one call. After the first failure nothing more is done. */
struct bench {
    struct backend_device *dev;
    void *taken[24];
    uint32_t n_taken;
    enum status st;
    struct error *err;
};

static void *take(struct bench *b, uint64_t n_bytes) {
    void *p = NULL;

    if (b->st != ST_OK) return NULL;
    b->st = gpu_alloc(b->dev->gpu, &p, MAX(n_bytes, 16u), "an operator", b->err);
    if (b->st == ST_OK) b->taken[b->n_taken++] = p;
    return p;
}

static void *take_pinned(struct bench *b, uint64_t n_bytes) {
    void *p = NULL;

    if (b->st != ST_OK) return NULL;
    b->st = gpu_alloc_pinned(b->dev->gpu, &p, MAX(n_bytes, 16u), "an operator", b->err);
    if (b->st == ST_OK) b->taken[b->n_taken++] = p;
    return p;
}

static void move(struct bench *b, void *dst, const void *src, uint64_t n_bytes) {
    if (b->st != ST_OK) return;
    gpu_copy(b->dev->compute, dst, src, n_bytes);
    b->st = gpu_stream_wait(b->dev->compute, b->err);
}

static void *send(struct bench *b, const void *x, uint64_t n_bytes) {
    void *pinned = take_pinned(b, n_bytes), *p = take(b, n_bytes);

    if (pinned) memcpy(pinned, x, n_bytes);
    move(b, p, pinned, n_bytes);
    return p;
}

/* n elements of any floating type, as bf16. */
static uint16_t *send_bf16(struct bench *b, enum dtype t, const void *x, uint64_t n) {
    uint16_t *narrow = mem_calloc(MAX(n, 1u), sizeof(*narrow)), *p;

    for (uint64_t i = 0; i < n; i++)
        narrow[i] = bf16_of_f32(dtype_get(t, x, i));
    p = send(b, narrow, n * sizeof(*narrow));
    mem_free(narrow);
    return p;
}

static uint16_t *send_floats(struct bench *b, const float *x, uint64_t n) {
    return send_bf16(b, DTYPE_F32, x, n);
}

static void fetch(struct bench *b, void *y, const void *p, uint64_t n_bytes) {
    void *pinned = take_pinned(b, n_bytes);

    move(b, pinned, p, n_bytes);
    if (b->st == ST_OK) memcpy(y, pinned, n_bytes);
}

/* The first row_bytes of each row, without gaps. */
static void fetch_rows(struct bench *b, void *y, const void *p, uint64_t n_rows, uint64_t row_bytes,
                       uint64_t pitch) {
    void *dense = take(b, n_rows * row_bytes);

    if (b->st == ST_OK) gpu_copy_2d(b->dev->compute, dense, row_bytes, p, pitch, row_bytes, n_rows);
    fetch(b, y, dense, n_rows * row_bytes);
}

static void fetch_floats(struct bench *b, float *y, const uint16_t *p, uint64_t n) {
    uint16_t *narrow = mem_calloc(MAX(n, 1u), sizeof(*narrow));

    fetch(b, narrow, p, n * sizeof(*narrow));
    for (uint64_t i = 0; b->st == ST_OK && i < n; i++)
        y[i] = f32_of_bf16(narrow[i]);
    mem_free(narrow);
}

static void refuse(struct bench *b, const char *what, uint64_t value, const char *allowed) {
    if (b->st == ST_OK)
        b->st = error_set(b->err, ST_UNSUPPORTED, "%s %llu: the cuda backend takes %s", what,
                          (unsigned long long)value, allowed);
}

/* --- the operators ---------------------------------------------------------------------------- */

static void run_embed(struct bench *b, const struct op_args *a) {
    uint64_t V = a->matrix->shape[0], d = a->matrix->shape[1], T = a->n_tokens;
    struct embed_args e = {.n_tokens = a->n_tokens, .d = (uint32_t)d, .vocab = (uint32_t)V};

    if (d % 8) refuse(b, "a width of", d, "multiples of 8");
    e.table = send_bf16(b, a->matrix->dtype, a->matrix->data, V * d);
    e.token = send(b, a->index, T * sizeof(*a->index));
    e.x = take(b, T * d * 2);
    if (b->st == ST_OK) ops_embed(b->dev->compute, &e);
    fetch_floats(b, a->y, e.x, T * d);
}

static void run_rmsnorm(struct bench *b, const struct op_args *a, uint32_t d) {
    uint64_t n = (uint64_t)a->n_tokens * d;
    struct norm_args e = {.n = a->n_tokens, .d = d, .eps = a->scalar};

    if (d % 8 || d > OPS_MAX_WIDTH) refuse(b, "a width of", d, "multiples of 8 up to 16384");
    e.x = send_floats(b, a->x, n);
    e.weight = send_floats(b, a->vector, d);
    e.h = take(b, n * 2);
    if (b->st == ST_OK) ops_norm(b->dev->compute, &e);
    fetch_floats(b, a->y, e.h, n);
}

/* As in a step: gemv for a few rows, a tuned plan for more. */
static void multiply(struct bench *b, const struct gemm_args *e) {
    struct gemm *gemm = NULL;

    if (b->st != ST_OK) return;
    if (e->m <= GEMV_MAX_ROWS) {
        ops_gemv(b->dev->compute, &(struct gemv_args){.x = e->x,
                                                      .w = e->w,
                                                      .bias = e->bias,
                                                      .y = e->y,
                                                      .m = e->m,
                                                      .n = e->shape.n,
                                                      .k = e->shape.k,
                                                      .x_stride = e->x_stride,
                                                      .y_stride = e->y_stride,
                                                      .is_f32_out = true});
        return;
    }
    b->st = gemm_open(&gemm, b->dev->gpu, &product_own, false, b->err);
    if (b->st == ST_OK) b->st = gemm_tune(gemm, b->dev->compute, e, e->m, b->err);
    if (b->st == ST_OK) gemm_run(gemm, b->dev->compute, e);
    if (b->st == ST_OK) b->st = gpu_stream_wait(b->dev->compute, b->err);
    gemm_close(gemm);
}

/* Codes, scales and zeros of a matrix, row block by row block. */
static struct packed_matrix send_packed(struct bench *b, const struct backend_tensor *t) {
    const struct backend_quant *q = t->quant;
    uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    uint64_t n_blocks = CEIL_DIV(n, QUANT_ROWS), n_groups = quant_groups(k, q->group_k);
    uint64_t code_bytes = quant_block_bytes(t->dtype, k), pitch = dtype_row_bytes(t->dtype, k);
    struct packed_matrix w = {.dtype = t->dtype,
                              .inputs =
                                  q->inputs == QUANT_INPUTS_I8 ? q->inputs : QUANT_INPUTS_PLAIN,
                              .n = n,
                              .k = k,
                              .group_k = q->group_k,
                              .has_row_scales = quant_has_row_scales(q)};
    uint64_t n_scales = n_groups * (w.has_row_scales ? QUANT_ROWS : 1);
    uint64_t n_zeros = n_groups * QUANT_ROWS;
    uint8_t *codes = mem_calloc(n_blocks, code_bytes);
    float *scale = mem_calloc(n_blocks, n_scales * sizeof(*scale));
    int16_t *zero = mem_calloc(n_blocks, n_zeros * sizeof(*zero));

    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t first = i * QUANT_ROWS, n_rows = MIN(n - first, QUANT_ROWS);

        quant_pack_codes(codes + i * code_bytes, t->dtype, (uint8_t *)t->data + first * pitch,
                         pitch, n_rows, k);
        quant_pack_scales(scale + i * n_scales, q, w.has_row_scales, first, n_rows, k);
        quant_pack_zeros(zero + i * n_zeros, q, t->dtype, first, n_rows, k);
    }
    w.codes = send(b, codes, n_blocks * code_bytes);
    w.scale = send(b, scale, n_blocks * n_scales * sizeof(*scale));
    if (q->zero) w.zero = send(b, zero, n_blocks * n_zeros * sizeof(*zero));
    if (q->order) w.order = send(b, q->order, k * sizeof(*q->order));
    mem_free(codes);
    mem_free(scale);
    mem_free(zero);
    return w;
}

static void multiply_packed(struct bench *b, const struct backend_tensor *t,
                            const struct gemm_args *e) {
    uint32_t group_k = t->quant->group_k;
    struct quant_args q = {.a = {.x = e->x,
                                 .bias = e->bias,
                                 .y = e->y,
                                 .m = e->m,
                                 .n = e->shape.n,
                                 .k = e->shape.k,
                                 .x_stride = e->x_stride,
                                 .y_stride = e->y_stride,
                                 .is_f32_out = true}};

    if (e->shape.n % 8) refuse(b, "a quantised product of", e->shape.n, "multiples of 8");
    if (group_k < e->shape.k && group_k % QUANT_STEP)
        refuse(b, "groups of inputs of", group_k, "multiples of 32");
    q.w = send_packed(b, t);
    q.scratch = take(b, quant_scratch_bytes(&q.w, e->m));
    if (b->st != ST_OK) return;
    quant_prepare();
    quant_run(b->dev->compute, &q);
}

static void run_linear(struct bench *b, const struct op_args *a) {
    uint64_t n = a->matrix->shape[0], k = a->matrix->shape[1], T = a->n_tokens;
    struct gemm_args e = {
        .shape = {.n = (uint32_t)n, .k = (uint32_t)k, .is_f32_out = true, .has_bias = a->vector},
        .m = a->n_tokens,
        .x_stride = (uint32_t)k,
        .y_stride = (uint32_t)ALIGN_UP(n, TP_VOCAB_UNIT)};

    if (k % 8) refuse(b, "a product over", k, "multiples of 8");
    e.x = send_floats(b, a->x, T * k);
    if (!a->matrix->quant) e.w = send_bf16(b, a->matrix->dtype, a->matrix->data, n * k);
    if (a->vector) e.bias = send_floats(b, a->vector, n);
    e.y = take(b, T * e.y_stride * sizeof(float));
    if (a->matrix->quant)
        multiply_packed(b, a->matrix, &e);
    else
        multiply(b, &e);
    fetch_rows(b, a->y, e.y, T, n * sizeof(float), e.y_stride * sizeof(float));
}

static void run_swiglu(struct bench *b, const struct op_args *a, uint32_t f) {
    uint64_t T = a->n_tokens;
    float *both = mem_calloc(MAX(T * 2 * f, 1u), sizeof(*both));
    struct swiglu_args e = {.n_tokens = a->n_tokens, .f = f};

    if (f % 8) refuse(b, "a width of", f, "multiples of 8");
    for (uint64_t t = 0; t < T; t++) {
        memcpy(both + t * 2 * f, a->x + t * f, f * sizeof(float));
        memcpy(both + t * 2 * f + f, a->x2 + t * f, f * sizeof(float));
    }
    e.gate_up = send_floats(b, both, T * 2 * f);
    e.act = take(b, T * f * 2);
    if (b->st == ST_OK) ops_swiglu(b->dev->compute, &e);
    fetch_floats(b, a->y, e.act, T * f);
    mem_free(both);
}

/* Rows of parts beside each other: (T, n) floats to column `at` of (T, width). */
static void lay_beside(float *rows, const float *x, uint64_t T, uint64_t n, uint64_t width,
                       uint64_t at) {
    for (uint64_t t = 0; t < T; t++)
        memcpy(rows + t * width + at, x + t * n, n * sizeof(float));
}

/* Token t has "position" t, with the angles of its true position. */
static void run_rope(struct bench *b, const struct op_args *a) {
    uint64_t T = a->n_tokens, hd = a->head_dim, q = a->n_heads * hd, width = q + 2 * hd;
    float *qkv = mem_calloc(T * width, sizeof(*qkv)), *turn = mem_calloc(T * hd, sizeof(*turn));
    uint32_t *position = mem_calloc(T, sizeof(*position));
    int64_t *slot = mem_calloc(T, sizeof(*slot));
    uint16_t *turned = mem_calloc(T * q, sizeof(*turned));
    struct rope_args e = {.kv_dtype = DTYPE_BF16,
                          .n_tokens = a->n_tokens,
                          .n_heads = a->n_heads,
                          .n_kv_heads = 1,
                          .hd = a->head_dim};

    if (!ops_has_head_dim(a->head_dim)) refuse(b, "head_dim", hd, "64, 96 and 128");
    lay_beside(qkv, a->x, T, q, width, 0);
    for (uint32_t t = 0; t < T; t++) {
        position[t] = t;
        slot[t] = -1;
        for (uint64_t i = 0; i < hd / 2; i++) {
            float angle = (float)a->index[t] * a->vector[i];

            turn[t * hd + 2 * i] = cosf(angle) * a->scalar;
            turn[t * hd + 2 * i + 1] = sinf(angle) * a->scalar;
        }
    }
    e.qkv = send_floats(b, qkv, T * width);
    e.turn = send(b, turn, T * hd * sizeof(*turn));
    e.position = send(b, position, T * sizeof(*position));
    e.kv_slot = send(b, slot, T * sizeof(*slot));
    e.kv = take(b, 16);
    if (b->st == ST_OK) ops_rope(b->dev->compute, &e);
    fetch_rows(b, turned, e.qkv, T, q * 2, width * 2);
    for (uint64_t i = 0; b->st == ST_OK && i < T * q; i++)
        a->y[i] = f32_of_bf16(turned[i]);
    mem_free(qkv);
    mem_free(turn);
    mem_free(position);
    mem_free(slot);
    mem_free(turned);
}

/* Nothing is turned: cos 1, sin 0. One query head, unused. */
static void run_kv_write(struct bench *b, const struct op_args *a) {
    uint64_t T = a->n_tokens, hd = a->head_dim, kv = a->n_kv_heads * hd, width = hd + 2 * kv;
    struct geometry g = op_pool_geometry(a);
    uint64_t block_bytes = kv_layout_block_bytes(&g, a->block_size);
    float *qkv = mem_calloc(T * width, sizeof(*qkv)), *turn = mem_calloc(hd, sizeof(*turn));
    uint32_t *position = mem_calloc(T, sizeof(*position));
    int64_t *slot = mem_calloc(T, sizeof(*slot));
    struct rope_args e = {.block_stride = (int64_t)block_bytes,
                          .scales_at = (uint32_t)kv_scales_at(&g, a->block_size, 0, 0, 0),
                          .kv_dtype = a->pool_dtype,
                          .n_tokens = a->n_tokens,
                          .n_heads = 1,
                          .n_kv_heads = a->n_kv_heads,
                          .hd = a->head_dim};

    if (!ops_has_head_dim(a->head_dim)) refuse(b, "head_dim", hd, "64, 96 and 128");
    lay_beside(qkv, a->x, T, kv, width, hd);
    lay_beside(qkv, a->x2, T, kv, width, hd + kv);
    for (uint64_t i = 0; i < hd; i += 2)
        turn[i] = 1;
    for (uint64_t t = 0; t < T; t++)
        slot[t] = a->index[t];
    e.qkv = send_floats(b, qkv, T * width);
    e.turn = send(b, turn, hd * sizeof(*turn));
    e.position = send(b, position, T * sizeof(*position));
    e.kv_slot = send(b, slot, T * sizeof(*slot));
    e.kv = send(b, a->pool, a->n_blocks * block_bytes);
    if (b->st == ST_OK) ops_rope(b->dev->compute, &e);
    fetch(b, a->pool, e.kv, a->n_blocks * block_bytes);
    mem_free(qkv);
    mem_free(turn);
    mem_free(position);
    mem_free(slot);
}

/* The rows of a step: one when the tokens follow each other, else one for each. */
static uint32_t make_rows(const struct op_args *a, struct backend_row *rows) {
    bool follow = true;

    for (uint32_t t = 1; t < a->n_tokens; t++)
        follow &= a->index[t] == a->index[t - 1] + 1;
    for (uint32_t t = 0; t < a->n_tokens; t++)
        rows[t] = (struct backend_row){0, t, 1, (uint32_t)a->index[t] + 1};
    if (!follow) return a->n_tokens;
    rows[0] = (struct backend_row){0, 0, a->n_tokens, (uint32_t)a->index[a->n_tokens - 1] + 1};
    return 1;
}

static void plan_and_attend(struct bench *b, const struct op_args *a, struct attend_args *e,
                            const struct attend_shape *shape) {
    struct attend_planner *planner = attend_planner_create(shape);
    struct backend_row *rows = mem_calloc(a->n_tokens, sizeof(*rows));
    uint64_t n_partials = (uint64_t)attend_max_partials(planner) * a->n_heads;
    void *list = take_pinned(b, attend_list_bytes(planner)), *sent;
    struct attend_grid grid;

    e->partial = take(b, n_partials * a->head_dim * sizeof(float));
    e->partial_state = take(b, n_partials * 2 * sizeof(float));
    e->ended = take(b, n_partials * sizeof(*e->ended));
    if (b->st == ST_OK) gpu_fill(b->dev->compute, e->ended, 0, n_partials * sizeof(*e->ended));
    sent = take(b, attend_list_bytes(planner));
    if (b->st == ST_OK) {
        attend_plan(planner, rows, make_rows(a, rows), a->n_tokens, a->n_tokens, 0, a->window, list,
                    &grid);
        move(b, sent, list, grid.n_bytes);
        attend_layer(b->dev->compute, e, sent, &grid);
    }
    mem_free(rows);
    attend_planner_destroy(planner);
}

static void run_attention(struct bench *b, const struct op_args *a, uint64_t n_table) {
    uint64_t T = a->n_tokens, hd = a->head_dim, q = a->n_heads * hd;
    struct geometry g = op_pool_geometry(a);
    const uint8_t *pool;
    struct attend_shape shape = {.n_heads = a->n_heads,
                                 .n_kv_heads = a->n_kv_heads,
                                 .head_dim = a->head_dim,
                                 .max_rows = a->n_tokens,
                                 .max_step_tokens = a->n_tokens,
                                 .n_sm = gpu_properties(b->dev->gpu)->n_sm};
    struct attend_args e = {.qkv_stride = (int64_t)q,
                            .block_stride = (int64_t)kv_layout_block_bytes(&g, a->block_size),
                            .kv_dtype = a->pool_dtype,
                            .table_stride = (int32_t)n_table,
                            .n_heads = (int32_t)a->n_heads,
                            .n_kv_heads = (int32_t)a->n_kv_heads,
                            .head_dim = (int32_t)hd,
                            .window = (int32_t)a->window,
                            .scale_log2 = (float)(1.4426950408889634 / sqrt((double)hd))};

    if (b->st == ST_OK) b->st = attend_check(&shape, b->err);
    if (b->st != ST_OK) return;
    e.qkv = send_floats(b, a->x, T * q);
    pool = send(b, a->pool, a->n_blocks * kv_layout_block_bytes(&g, a->block_size));
    if (pool) {
        e.k = pool + kv_tile_at(&g, a->block_size, 0, 0, 0);
        e.v = pool + kv_tile_at(&g, a->block_size, 0, 1, 0);
        e.scales = pool + kv_scales_at(&g, a->block_size, 0, 0, 0);
    }
    e.table = send(b, a->table, n_table * sizeof(*a->table));
    e.mix = take(b, T * q * 2);
    plan_and_attend(b, a, &e, &shape);
    fetch_floats(b, a->y, e.mix, T * q);
}

static void check_pool(struct bench *b, const struct op_args *a) {
    if (a->block_size != OPS_BLOCK_SIZE) refuse(b, "a block size of", a->block_size, "16");
    if (a->pool_dtype != DTYPE_BF16 && !kv_scale_bytes(a->pool_dtype))
        refuse(b, "a pool of type", a->pool_dtype, "bf16, e4m3 and int8");
}

enum status cuda_op(struct backend_device *dev, const char *name, const struct backend_tensor *in,
                    uint32_t n_in, struct backend_tensor *out, uint32_t n_out, struct error *err) {
    struct bench b = {.dev = dev, .err = err};
    struct op_args a;

    b.st = op_args_read(&a, name, in, n_in, out, n_out, err);
    if (b.st == ST_OK && (a.kind == OP_ATTENTION || a.kind == OP_KV_WRITE)) check_pool(&b, &a);
    if (b.st != ST_OK) return b.st;
    switch (a.kind) {
    case OP_EMBED: run_embed(&b, &a); break;
    case OP_RMSNORM: run_rmsnorm(&b, &a, (uint32_t)in[0].shape[1]); break;
    case OP_LINEAR: run_linear(&b, &a); break;
    case OP_ROPE: run_rope(&b, &a); break;
    case OP_KV_WRITE: run_kv_write(&b, &a); break;
    case OP_ATTENTION: run_attention(&b, &a, in[2].shape[0]); break;
    case OP_SWIGLU: run_swiglu(&b, &a, (uint32_t)in[0].shape[1]); break;
    }
    for (uint32_t i = 0; i < b.n_taken; i++)
        gpu_free(dev->gpu, b.taken[i]);
    return b.st;
}
