/* kernels/cuda/matrix.c - the matrices of a quantised model: their memory, and how they come to it.
 *
 * What type a matrix has is known when its first tensor arrives: then it takes its memory, of bf16
 * for a matrix that the checkpoint left plain, else of codes, scales, zeros and order, packed as
 * kernels/cuda/products/quant.h has it. q, k and v lie under each other as one matrix, gate and up
 * another; each keeps its own scales, but they must agree in type, groups of inputs, zeros and
 * order, as they do where one program wrote them.
 *
 * A tensor goes row block by row block through the two pinned buffers of model.c: sixteen rows are
 * packed while others are copied. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/quant.h"

/* Where a tensor lies in its matrix, and how large that is. */
struct place {
    struct packed_matrix *packed;
    uint16_t **plain;
    uint32_t n, k; /* of the matrix */
    uint32_t first;
    uint32_t part_end[3]; /* as struct packed_matrix has it */
};

static uint32_t inputs_to(const struct geometry *g, enum tensor_role role) {
    if (role == ROLE_O) return g->n_heads * g->head_dim;
    return role == ROLE_DOWN ? g->d_ff : g->d_model;
}
static uint32_t first_row_of(const struct geometry *g, enum tensor_role role) {
    switch (role) {
    case ROLE_K: return g->n_heads * g->head_dim;
    case ROLE_V: return (g->n_heads + g->n_kv_heads) * g->head_dim;
    case ROLE_UP: return g->d_ff;
    default: return 0;
    }
}

static bool find_place(struct backend_model *m, enum tensor_role role, uint32_t layer,
                       struct place *p) {
    struct cuda_layer *l = &m->layers[host_role_is_per_layer(role) ? layer : 0];
    uint32_t d = m->g.d_model, f = m->g.d_ff, q = m->q_width, kv = m->kv_width;
    const struct place qkv = {&l->packed[CUDA_QKV],   &l->qkv, m->qkv_width, d, 0,
                              {q, q + kv, q + 2 * kv}};
    const struct place gate_up = {&l->packed[CUDA_GATE_UP], &l->gate_up, 2 * f, d, 0, {f, 2 * f}};

    switch (role) {
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V: *p = qkv; break;
    case ROLE_O: *p = (struct place){&l->packed[CUDA_O], &l->o, d, q, 0, {d}}; break;
    case ROLE_GATE:
    case ROLE_UP: *p = gate_up; break;
    case ROLE_DOWN: *p = (struct place){&l->packed[CUDA_DOWN], &l->down, d, f, 0, {d}}; break;
    case ROLE_LM_HEAD:
        *p = (struct place){&m->packed_head, &m->head, m->head_width, d, 0, {0}};
        break;
    default: return false;
    }
    p->first = first_row_of(&m->g, role);
    return true;
}

/* --- what is taken ---------------------------------------------------------------------------- */

struct name {
    enum tensor_role role;
    uint32_t layer;
};

static enum status refused(struct name name, const char *what, struct error *err) {
    return error_set(err, ST_UNSUPPORTED, "weight %s, layer %u: %s: use --backend cpu",
                     host_role_name(name.role), name.layer, what);
}

/* A tensor that begins at row `first` of its matrix. */
static enum status check_format(struct name name, const struct matrix_format *f, uint32_t first,
                                uint32_t k, struct error *err) {
    if (f->group_k < k && f->group_k % QUANT_STEP)
        return refused(name, "the cuda backend takes groups of a multiple of 32 inputs", err);
    if (f->group_k && first % QUANT_ROWS)
        return refused(name, "the cuda backend takes gate and up of a multiple of 16 rows", err);
    return ST_OK;
}

/* Of a tensor and of the first in its matrix, which has k inputs. */
static enum status check_alike(struct name name, const struct matrix_format *f,
                               const struct matrix_format *first, uint32_t k, struct error *err) {
    if (!f->group_k != !first->group_k || f->dtype != first->dtype)
        return refused(name, "it has another type than the matrix it is multiplied with at once",
                       err);
    if (MIN(f->group_k, k) != MIN(first->group_k, k) ||
        (f->inputs == QUANT_INPUTS_I8) != (first->inputs == QUANT_INPUTS_I8))
        return refused(name, "it has other groups than the matrix it is multiplied with at once",
                       err);
    return ST_OK;
}

static struct matrix_format format_of(const struct backend_tensor *t) {
    if (!t->quant) return (struct matrix_format){0};
    return (struct matrix_format){t->dtype, t->quant->inputs, t->quant->group_k};
}
static struct matrix_format format_of_packed(const struct packed_matrix *w) {
    if (!w->codes) return (struct matrix_format){0};
    return (struct matrix_format){w->dtype, w->inputs, w->group_k};
}

enum status cuda_check_formats(const struct geometry *g, const struct matrix_format *format,
                               struct error *err) {
    static const struct {
        enum tensor_role role, first;
    } matrices[] = {{ROLE_Q, ROLE_Q},       {ROLE_K, ROLE_Q},
                    {ROLE_V, ROLE_Q},       {ROLE_O, ROLE_O},
                    {ROLE_GATE, ROLE_GATE}, {ROLE_UP, ROLE_GATE},
                    {ROLE_DOWN, ROLE_DOWN}, {ROLE_LM_HEAD, ROLE_LM_HEAD}};
    enum status st = ST_OK;

    if (!format) return ST_OK;
    for (size_t i = 0; i < g->n_layers * ARRAY_LEN(matrices) && st == ST_OK; i++) {
        uint32_t layer = (uint32_t)(i / ARRAY_LEN(matrices));
        enum tensor_role role = matrices[i % ARRAY_LEN(matrices)].role;
        const struct matrix_format *of_layer = format + (size_t)layer * ROLE_COUNT;
        const struct matrix_format *first = of_layer + matrices[i % ARRAY_LEN(matrices)].first;
        uint32_t k = inputs_to(g, role);

        st = check_format((struct name){role, layer}, of_layer + role, first_row_of(g, role), k,
                          err);
        if (st == ST_OK)
            st = check_alike((struct name){role, layer}, of_layer + role, first, k, err);
    }
    return st;
}

static enum status check_new(const struct backend_tensor *t, const struct place *p,
                             struct error *err) {
    struct matrix_format f = format_of(t);

    return check_format((struct name){t->role, t->layer}, &f, p->first, p->k, err);
}

/* Orders are compared by hash: the first is on the device. */
static uint64_t order_hash(const struct backend_quant *q, uint64_t k) {
    uint64_t hash = 14695981039346656037ull;

    for (uint64_t i = 0; q->order && i < k; i++)
        hash = (hash ^ q->order[i]) * 1099511628211ull;
    return hash;
}

static enum quant_grain grain_of(const struct backend_tensor *t) {
    return quant_grain_of(t->quant, t->dtype, (uint32_t)t->shape[0], (uint32_t)t->shape[1]);
}

static enum quant_inputs inputs_of(const struct backend_tensor *t) {
    return t->quant->inputs == QUANT_INPUTS_I8 ? QUANT_INPUTS_I8 : QUANT_INPUTS_PLAIN;
}

/* Does the tensor fit the matrix that another of its parts began? */
static enum status check_part(const struct backend_tensor *t, const struct packed_matrix *w,
                              uint64_t hash, struct error *err) {
    const struct backend_quant *q = t->quant;
    struct matrix_format f = format_of(t), first = format_of_packed(w);
    struct name name = {t->role, t->layer};
    enum status st = check_alike(name, &f, &first, w->k, err);

    if (st != ST_OK) return st;
    if ((q->zero && !w->zero) || (quant_has_row_scales(q) && !w->has_row_scales))
        return refused(name, "it has zeros or scales that the matrix beside it lacks", err);
    if (hash != w->order_hash)
        return refused(name, "its inputs have another order (desc_act) than those beside it", err);
    return ST_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

struct sizes { /* bytes of a row block, and how many there are */
    uint64_t codes, scales, zeros;
    uint32_t n;
};

static struct sizes sizes_of(const struct packed_matrix *w, bool has_zeros) {
    uint64_t n_groups = quant_groups(w->k, w->group_k);

    return (struct sizes){.codes = quant_block_bytes(w->dtype, w->k),
                          .scales = n_groups * (w->has_row_scales ? QUANT_ROWS : 1) * sizeof(float),
                          .zeros = has_zeros ? n_groups * QUANT_ROWS * sizeof(int16_t) : 0,
                          .n = CEIL_DIV(w->n, QUANT_ROWS)};
}

static enum status open_plain(struct backend_model *m, const struct place *p, struct error *err) {
    uint64_t n_bytes = (uint64_t)p->n * p->k * sizeof(uint16_t);
    enum status st = cuda_take(m, p->plain, n_bytes, "weights", err);

    if (st == ST_OK) gpu_fill(m->dev->copy_in, *p->plain, 0, n_bytes);
    return st;
}

/* One piece of memory: codes, scales, zeros, order. Rows that no tensor fills are zeros. */
static enum status open_packed(struct backend_model *m, const struct place *p,
                               const struct backend_tensor *t, struct error *err) {
    const struct backend_quant *q = t->quant;
    struct packed_matrix w = {.dtype = t->dtype,
                              .inputs = inputs_of(t),
                              .n = p->n,
                              .k = p->k,
                              .group_k = q->group_k,
                              .has_row_scales = quant_has_row_scales(q),
                              .order_hash = order_hash(q, p->k),
                              .grain = grain_of(t)};
    struct sizes s = sizes_of(&w, q->zero);
    uint64_t scales_at = s.n * s.codes, zeros_at = ALIGN_UP(scales_at + s.n * s.scales, 256);
    uint64_t order_at = ALIGN_UP(zeros_at + s.n * s.zeros, 256);
    uint64_t n_bytes = order_at + (q->order ? p->k * sizeof(uint32_t) : 0);
    uint8_t *at;
    enum status st = cuda_take(m, &at, n_bytes, "quantised weights", err);

    if (st != ST_OK) return st;
    gpu_fill(m->dev->copy_in, at, 0, n_bytes);
    w.codes = at;
    w.scale = (const float *)(const void *)(at + scales_at);
    if (s.zeros) w.zero = (const int16_t *)(const void *)(at + zeros_at);
    if (q->order) w.order = (const uint32_t *)(const void *)(at + order_at);
    memcpy(w.part_end, p->part_end, sizeof(w.part_end));
    *p->packed = w;
    return ST_OK;
}

/* --- sending ---------------------------------------------------------------------------------- */

/* A tensor's row blocks on their way: `fill` writes one of them as it is on the device. */
struct sending {
    const struct backend_tensor *t;
    const struct packed_matrix *w;
    void (*fill)(uint8_t *dst, const struct sending *s, uint64_t first, uint32_t n_rows);
};

static void fill_codes(uint8_t *dst, const struct sending *s, uint64_t first, uint32_t n_rows) {
    uint64_t pitch = dtype_row_bytes(s->t->dtype, s->t->shape[1]);

    quant_pack_codes(dst, s->t->dtype, (const uint8_t *)s->t->data + first * pitch, pitch, n_rows,
                     s->w->k);
}

static void fill_scales(uint8_t *dst, const struct sending *s, uint64_t first, uint32_t n_rows) {
    quant_pack_scales((float *)(void *)dst, s->t->quant, s->w->has_row_scales, first, n_rows,
                      s->w->k);
}

static void fill_zeros(uint8_t *dst, const struct sending *s, uint64_t first, uint32_t n_rows) {
    quant_pack_zeros((int16_t *)(void *)dst, s->t->quant, s->t->dtype, first, n_rows, s->w->k);
}

/* The tensor's row blocks, each of block_bytes, to `dst`, the first one's place. */
static enum status send_blocks(struct backend_model *m, const struct sending *s, uint8_t *dst,
                               uint64_t block_bytes, struct error *err) {
    uint64_t n_blocks = CEIL_DIV(s->t->shape[0], (uint64_t)QUANT_ROWS), n;
    uint64_t most = m->loader.n_elements * sizeof(uint16_t) / MAX(block_bytes, 1u);
    enum status st;

    for (uint64_t b = 0; block_bytes && b < n_blocks; b += n) {
        uint16_t *buffer;

        n = MIN(most, n_blocks - b);
        if ((st = cuda_load_buffer(m, &buffer, err)) != ST_OK) return st;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t first = (b + i) * QUANT_ROWS;

            s->fill((uint8_t *)buffer + i * block_bytes, s, first,
                    (uint32_t)MIN(s->t->shape[0] - first, (uint64_t)QUANT_ROWS));
        }
        cuda_load_send(m, dst + b * block_bytes, n * block_bytes);
    }
    return ST_OK;
}

static enum status send_order(struct backend_model *m, const struct packed_matrix *w,
                              const uint32_t *order, struct error *err) {
    uint16_t *buffer;
    enum status st;

    if (!order) return ST_OK;
    if ((st = cuda_load_buffer(m, &buffer, err)) != ST_OK) return st;
    memcpy(buffer, order, w->k * sizeof(*order));
    cuda_load_send(m, (void *)(uintptr_t)w->order, w->k * sizeof(*order));
    return ST_OK;
}

static enum status send_packed(struct backend_model *m, const struct place *p,
                               const struct backend_tensor *t, struct error *err) {
    const struct packed_matrix *w = p->packed;
    struct sizes s = sizes_of(w, w->zero);
    uint64_t first = p->first / QUANT_ROWS;
    uint8_t *codes = (uint8_t *)(uintptr_t)w->codes + first * s.codes;
    uint8_t *scales = (uint8_t *)(uintptr_t)w->scale + first * s.scales;
    uint8_t *zeros = (uint8_t *)(uintptr_t)w->zero + first * s.zeros;
    enum status st = send_blocks(m, &(struct sending){t, w, fill_codes}, codes, s.codes, err);

    if (st == ST_OK)
        st = send_blocks(m, &(struct sending){t, w, fill_scales}, scales, s.scales, err);
    if (st == ST_OK && s.zeros)
        st = send_blocks(m, &(struct sending){t, w, fill_zeros}, zeros, s.zeros, err);
    return st == ST_OK ? send_order(m, w, t->quant->order, err) : st;
}

/* This rank's part of a quantised tensor. */
static enum status take_packed(struct backend_model *m, const struct place *p,
                               const struct backend_tensor *part, struct error *err) {
    enum status st = check_new(part, p, err);

    if (st != ST_OK) return st;
    if (*p->plain) return check_part(part, &(struct packed_matrix){.dtype = DTYPE_BF16}, 0, err);
    if (!p->packed->codes) {
        st = open_packed(m, p, part, err);
    } else {
        st = check_part(part, p->packed, order_hash(part->quant, p->k), err);
        if (st == ST_OK)
            p->packed->grain = quant_grain_join(p->packed->grain, grain_of(part), p->first);
    }
    return st == ST_OK ? send_packed(m, p, part, err) : st;
}

enum status cuda_matrix_load(struct backend_model *m, const struct backend_tensor *t,
                             bool *is_plain, struct error *err) {
    struct host_model whole = m->host;
    struct backend_tensor part;
    struct place p;
    void *scratch;
    enum status st;

    *is_plain = !t->quant;
    if (!find_place(m, t->role, t->layer, &p)) return ST_OK;
    if (!t->quant) {
        if (p.packed->codes) return check_part(t, p.packed, 0, err);
        return *p.plain ? ST_OK : open_plain(m, &p, err);
    }
    whole.shard = m->shard; /* the host's own is the whole model */
    if ((st = host_rank_part(&whole, t, &part, &scratch, err)) != ST_OK) return st;
    st = take_packed(m, &p, &part, err);
    mem_free(scratch);
    return st == ST_OK ? gpu_status(m->dev->gpu, err) : st;
}

uint64_t cuda_matrix_buffer_bytes(const struct geometry *g) {
    uint64_t k = MAX(MAX(g->d_model, g->d_ff), g->n_heads * g->head_dim);

    return QUANT_ROWS * ALIGN_UP(k, 64);
}

/* --- when all are there ----------------------------------------------------------------------- */

static void look_at(struct backend_model *m, const struct packed_matrix *w, uint64_t n_rows,
                    uint64_t *scratch_bytes) {
    if (!w->codes) return;
    *scratch_bytes = MAX(*scratch_bytes, quant_scratch_bytes(w, n_rows));
    if (!quant_takes_fusions(w, 1, false)) m->has_own_inputs = true;
}

static enum status take_scratch(struct backend_model *m, struct error *err) {
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < m->g.n_layers; i++) {
        for (uint32_t j = 0; j < CUDA_MATRICES; j++)
            look_at(m, &m->layers[i].packed[j], m->host.limits.max_step_tokens, &n_bytes);
    }
    look_at(m, &m->packed_head, m->head_rows, &n_bytes);
    if (!n_bytes) return ST_OK;
    return cuda_take(m, &m->quant_scratch, n_bytes, "the inputs of quantised products", err);
}

/* The library's: panels and rounded inputs, where a clock can find that it is faster. The head's
 * products are few rows. Own kernels serve where it does not fit. */
static enum status take_library_scratch(struct backend_model *m, struct error *err) {
    uint32_t T = m->host.limits.max_step_tokens;
    uint64_t n_bytes = 0;
    enum status st;

    m->library = (struct quant_library){.gemm = m->gemm, .stream = m->dev->compute};
    if (T <= GEMV_MAX_ROWS || !gpu_properties(m->dev->gpu)->is_timed) return ST_OK;
    for (uint32_t i = 0; i < m->g.n_layers; i++) {
        for (uint32_t j = 0; j < CUDA_MATRICES; j++)
            n_bytes = MAX(n_bytes, quant_library_bytes(m->gemm, &m->layers[i].packed[j], T));
    }
    m->library_bytes = n_bytes;
    if (!n_bytes) return ST_OK;
    st = cuda_take(m, &m->library.scratch, n_bytes, "panels of e4m3 weights, rounded inputs",
                   &m->dev->why_own);
    if (st == ST_NOMEM) return ST_OK;
    if (st != ST_OK) (void)error_set(err, st, "%s", m->dev->why_own.message);
    return st;
}

/* Before steps are recorded. The estimate of how fast prompts are stays the library's: another
 * run of it would need all ranks, and those may not all have scratch. */
bool cuda_give_room(struct backend_model *m) {
    if (!m->library.scratch || m->kv) return false;
    for (uint32_t i = 0; i < m->g.n_layers * CUDA_MATRICES; i++)
        m->layers[i / CUDA_MATRICES].packed[i % CUDA_MATRICES].library_rows = 0;
    cuda_give_back(m, m->library.scratch, m->library_bytes);
    m->library.scratch = NULL;
    m->dev->has_f8_products = false;
    (void)error_set(&m->dev->why_own, ST_OK,
                    "own kernels compute products of e4m3 codes: beside the %.1f MiB that "
                    "cuBLASLt's need there is no room for the KV cache; lower "
                    "--kv-cache-memory-bytes, --max-model-len or --max-num-batched-tokens",
                    CUDA_MIB(m->library_bytes));
    return true;
}

enum status cuda_matrix_load_end(struct backend_model *m, struct error *err) {
    enum status st = take_scratch(m, err);

    return st == ST_OK ? take_library_scratch(m, err) : st;
}
