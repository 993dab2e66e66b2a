/* kernels/tp/shard.c - see shard.h. */
#include "kernels/tp/shard.h"

#include "kernels/dtype.h"

static enum status check_divides(const char *what, uint32_t n, uint32_t size, struct error *err) {
    if (n % size == 0) return ST_OK;
    return error_set(err, ST_UNSUPPORTED,
                     "%u %s do not divide over %u ranks: choose a --tensor-parallel-size that "
                     "divides them",
                     n, what, size);
}

/* k inputs of o or down, quantised in every layer by groups that divide `group`. */
static enum status check_groups(const char *what, uint32_t k, uint32_t group, uint32_t size,
                                struct error *err) {
    if (size == 1 || group == 0 || k / size % group == 0) return ST_OK;
    if (group == k)
        return error_set(err, ST_UNSUPPORTED,
                         "quantised %s matrices have their inputs in an order of their own "
                         "(desc_act), which ranks cannot divide: use --tensor-parallel-size 1",
                         what);
    return error_set(err, ST_UNSUPPORTED,
                     "quantised %s matrices have groups of %u inputs, and each of %u ranks takes "
                     "%u inputs, which cuts a group: choose a smaller --tensor-parallel-size",
                     what, group, size, k / size);
}

static enum status shard_kv_heads(struct tp_shard *s, const struct geometry *g, struct error *err) {
    bool is_shared = g->n_kv_heads < s->size;

    if (is_shared ? s->size % g->n_kv_heads : g->n_kv_heads % s->size)
        return error_set(err, ST_UNSUPPORTED,
                         "%u KV heads and %u ranks: one must divide the other; choose another "
                         "--tensor-parallel-size",
                         g->n_kv_heads, s->size);
    s->kv_copies = is_shared ? s->size / g->n_kv_heads : 1;
    s->n_kv_heads = is_shared ? 1 : g->n_kv_heads / s->size;
    s->first_kv_head = s->rank / s->kv_copies * s->n_kv_heads;
    return ST_OK;
}

static enum status shard_vocab(struct tp_shard *s, const struct geometry *g, struct error *err) {
    s->vocab_stride = ALIGN_UP(CEIL_DIV(g->vocab, s->size), TP_VOCAB_UNIT);
    if ((uint64_t)s->vocab_stride * (s->size - 1) >= g->vocab)
        return error_set(err, ST_UNSUPPORTED,
                         "a vocabulary of %u in %u pieces of %u leaves the last rank nothing: "
                         "choose a smaller --tensor-parallel-size",
                         g->vocab, s->size, s->vocab_stride);
    s->first_token = s->rank * s->vocab_stride;
    s->vocab = MIN(s->vocab_stride, g->vocab - s->first_token);
    return ST_OK;
}

enum status tp_shard_init(struct tp_shard *out, const struct geometry *whole, uint32_t rank,
                          uint32_t size, struct error *err) {
    struct tp_shard s = {.rank = rank, .size = MAX(size, 1u), .head_dim = whole->head_dim};
    enum status st;

    if (rank >= s.size) return error_set(err, ST_INVALID, "rank %u of %u", rank, s.size);
    if (whole->n_kv_heads == 0 || whole->n_heads % whole->n_kv_heads)
        return error_set(err, ST_INVALID, "%u heads do not divide over %u KV heads", whole->n_heads,
                         whole->n_kv_heads);
    if ((st = check_divides("attention heads", whole->n_heads, s.size, err)) != ST_OK) return st;
    if ((st = check_divides("inner features (d_ff)", whole->d_ff, s.size, err)) != ST_OK) return st;
    st = check_groups("o", whole->n_heads * whole->head_dim, whole->o_group, s.size, err);
    if (st == ST_OK) st = check_groups("down", whole->d_ff, whole->down_group, s.size, err);
    if (st != ST_OK) return st;
    if ((st = shard_kv_heads(&s, whole, err)) != ST_OK) return st;
    if ((st = shard_vocab(&s, whole, err)) != ST_OK) return st;
    s.n_heads = whole->n_heads / s.size;
    s.first_head = rank * s.n_heads;
    s.d_ff = whole->d_ff / s.size;
    s.first_ff = rank * s.d_ff;
    *out = s;
    return ST_OK;
}

struct geometry tp_shard_geometry(const struct tp_shard *s, const struct geometry *whole) {
    struct geometry g = *whole;

    g.n_heads = s->n_heads;
    g.n_kv_heads = s->n_kv_heads;
    g.d_ff = s->d_ff;
    return g;
}

static struct tp_slice rows(struct tp_slice whole, uint32_t first, uint32_t n, uint32_t unit) {
    whole.first = (uint64_t)first * unit;
    whole.n = (uint64_t)n * unit;
    return whole;
}

static struct tp_slice columns(struct tp_slice whole, uint32_t first, uint32_t n, uint32_t unit) {
    whole.first_column = (uint64_t)first * unit;
    whole.n_columns = (uint64_t)n * unit;
    return whole;
}

struct tp_slice tp_shard_slice(const struct tp_shard *s, const struct backend_tensor *t) {
    struct tp_slice whole = {.n = t->shape[0], .n_columns = t->n_dims > 1 ? t->shape[1] : 1};

    switch (t->role) {
    case ROLE_Q:
    case ROLE_Q_BIAS: return rows(whole, s->first_head, s->n_heads, s->head_dim);
    case ROLE_K:
    case ROLE_V:
    case ROLE_K_BIAS:
    case ROLE_V_BIAS: return rows(whole, s->first_kv_head, s->n_kv_heads, s->head_dim);
    case ROLE_GATE:
    case ROLE_UP: return rows(whole, s->first_ff, s->d_ff, 1);
    case ROLE_LM_HEAD: return rows(whole, s->first_token, s->vocab, 1);
    case ROLE_O: return columns(whole, s->first_head, s->n_heads, s->head_dim);
    case ROLE_DOWN: return columns(whole, s->first_ff, s->d_ff, 1);
    default: return whole;
    }
}

struct backend_tensor tp_slice_take(const struct tp_slice *p, const struct backend_tensor *whole,
                                    void *scratch) {
    uint64_t width = whole->n_dims > 1 ? whole->shape[1] : 1;
    uint64_t pitch = dtype_row_bytes(whole->dtype, width);
    uint64_t row_bytes = dtype_row_bytes(whole->dtype, p->n_columns);
    char *from =
        (char *)whole->data + p->first * pitch + dtype_row_bytes(whole->dtype, p->first_column);
    struct backend_tensor t = *whole;

    t.shape[0] = p->n;
    if (t.n_dims > 1) t.shape[1] = p->n_columns;
    t.n_bytes = p->n * row_bytes;
    t.data = from;
    if (p->n_columns == width) return t;
    for (uint64_t r = 0; scratch && r < p->n; r++)
        memcpy((char *)scratch + r * row_bytes, from + r * pitch, row_bytes);
    t.data = scratch;
    return t;
}
