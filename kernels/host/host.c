/* kernels/host/host.c - see host.h: checks, slots, rows, fences. The pool is in host_kv.c. */
#include "kernels/host/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "kernels/host/host_memory.h"
#include "kernels/quant.h"

#define HUGE_PAGE  ((uint64_t)2 << 20)
#define MIB(bytes) ((double)(bytes) / (1024.0 * 1024.0))

/* --- memory ---------------------------------------------------------------------------------- */

static enum status refuse(const struct host_model *h, uint64_t n_bytes, const char *what,
                          struct error *err) {
    return error_set(err, ST_NOMEM,
                     "%s: %.1f MiB wanted, %.1f MiB already taken, %.1f MiB allowed in all: use a "
                     "smaller model or pool, or give more memory",
                     what, MIB(n_bytes), MIB(h->bytes), MIB(h->dev->memory_limit));
}

enum status host_alloc(struct host_model *h, void **out, uint64_t n_bytes, const char *what,
                       struct error *err) {
    bool is_large = n_bytes >= 2 * HUGE_PAGE;
    uint64_t align = is_large ? HUGE_PAGE : CACHE_LINE, size = ALIGN_UP(n_bytes, align);

    if (n_bytes > h->dev->memory_limit - MIN(h->bytes, h->dev->memory_limit))
        return refuse(h, n_bytes, what, err);
    *out = mem_try_aligned((size_t)align, (size_t)size);
    if (!*out) return refuse(h, n_bytes, what, err);
    if (is_large) (void)madvise(*out, (size_t)size, MADV_HUGEPAGE); /* a wish */
    h->bytes += n_bytes;
    return ST_OK;
}

enum status host_zalloc(struct host_model *h, void **out, uint64_t n_bytes, const char *what,
                        struct error *err) {
    if (n_bytes > h->dev->memory_limit - MIN(h->bytes, h->dev->memory_limit))
        return refuse(h, n_bytes, what, err);
    *out = mem_try_zalloc((size_t)n_bytes);
    return *out ? ST_OK : refuse(h, n_bytes, what, err);
}

enum status host_take_pool(struct host_model *h, uint32_t n_host_blocks, struct error *err) {
    static const char what[] = "the KV swap space";
    uint64_t n_bytes = n_host_blocks * h->block_bytes;

    if (n_host_blocks == 0) return ST_OK;
    if (!h->lent) return host_alloc(h, (void **)&h->host_pool, n_bytes, what, err);
    if (n_bytes > h->dev->memory_limit - MIN(h->bytes, h->dev->memory_limit))
        return refuse(h, n_bytes, what, err);
    h->host_pool = h->lent;
    h->bytes += n_bytes;
    return ST_OK;
}

void host_describe(struct backend_info *info) {
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256], *colon;

    snprintf(info->device, sizeof(info->device), "CPU");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "model name", 10) != 0 || !(colon = strchr(line, ':'))) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(info->device, sizeof(info->device), "%.60s", colon + 2);
        break;
    }
    if (f) fclose(f);
    info->memory_total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    info->memory_free = host_memory_available("");
}

/* --- geometry and limits --------------------------------------------------------------------- */

struct range {
    const char *name;
    uint32_t value, low, high;
};

static enum status check_ranges(const struct range *r, size_t n, struct error *err) {
    for (size_t i = 0; i < n; i++) {
        if (r[i].value < r[i].low || r[i].value > r[i].high)
            return error_set(err, ST_INVALID, "%s is %u: give %u to %u", r[i].name, r[i].value,
                             r[i].low, r[i].high);
    }
    return ST_OK;
}

/* Kinds are an index into nothing: a wrong one would be an answer that is quietly wrong. */
static enum status check_windows(const struct geometry *g, struct error *err) {
    for (uint32_t i = 0; g->layer_kind && i < g->n_layers; i++) {
        if (g->layer_kind[i] > 1)
            return error_set(err, ST_UNSUPPORTED,
                             "layer %u is of kind %u: 0 is full attention, 1 a sliding window", i,
                             g->layer_kind[i]);
        if (g->layer_kind[i] == 1 && g->sliding_window == 0)
            return error_set(err, ST_INVALID,
                             "layer %u has a sliding window, but sliding_window is 0", i);
    }
    return ST_OK;
}

static enum status check_geometry(const struct geometry *g, struct error *err) {
    const struct range ranges[] = {
        {"n_layers", g->n_layers, 1, 1024},
        {"d_model", g->d_model, 1, 1u << 16},
        {"n_heads", g->n_heads, 1, 1024},
        {"n_kv_heads", g->n_kv_heads, 1, g->n_heads},
        {"d_ff", g->d_ff, 1, 1u << 18},
        {"vocab", g->vocab, 1, 1u << 20},
        {"max_context", g->max_context, 1, 1u << 24},
    };
    enum status st = check_ranges(ranges, ARRAY_LEN(ranges), err);

    if (st != ST_OK) return st;
    if (g->n_heads % g->n_kv_heads)
        return error_set(err, ST_INVALID, "%u heads do not divide over %u KV heads", g->n_heads,
                         g->n_kv_heads);
    if (g->head_dim % 2 || g->head_dim < 2 || g->head_dim > HOST_MAX_HEAD_DIM)
        return error_set(
            err, ST_UNSUPPORTED,
            "unsupported head_dim %u: RoPE turns the two halves of a head, so it must be even, "
            "from 2 to %u",
            g->head_dim, HOST_MAX_HEAD_DIM);
    if (!g->inv_freq) return error_set(err, ST_INVALID, "RoPE needs inv_freq");
    if (!dtype_is_float(g->kv_dtype) && !kv_scale_bytes(g->kv_dtype))
        return error_set(err, ST_UNSUPPORTED,
                         "KV type %s: a host backend has float32, float16, bfloat16, fp8_e4m3 and "
                         "int8",
                         dtype_long_name(g->kv_dtype));
    return check_windows(g, err);
}

static enum status check_limits(const struct backend_limits *l, struct error *err) {
    const struct range ranges[] = {
        {"max_rows", l->max_rows, 1, 1u << 16},
        {"max_step_tokens", l->max_step_tokens, 1, 1u << 20},
        {"max_blocks_per_row", l->max_blocks_per_row, 1, 1u << 24},
        {"max_outputs", l->max_outputs, 1, 1u << 20},
        {"max_logprobs", l->max_logprobs, 0, HOST_MAX_LOGPROBS},
        {"n_slots", l->n_slots, 1, 2},
        {"block_size", l->block_size, 1, HOST_MAX_BLOCK_SIZE},
        {"max_bias", l->max_bias, 0, 1u << 24},
        {"max_masks", l->max_masks, 0, 1u << 16},
    };

    return check_ranges(ranges, ARRAY_LEN(ranges), err);
}

static enum status alloc_slot(struct host_model *h, struct backend_stage *s, struct error *err) {
    const struct backend_limits *l = &h->limits;
    uint64_t mask_words = CEIL_DIV(h->g.vocab, 32), n_top = MAX(l->max_logprobs, 1);
    struct {
        void **out;
        uint64_t n_bytes;
    } arrays[] = {
        {(void **)&s->token, l->max_step_tokens * sizeof(*s->token)},
        {(void **)&s->position, l->max_step_tokens * sizeof(*s->position)},
        {(void **)&s->kv_slot, l->max_step_tokens * sizeof(*s->kv_slot)},
        {(void **)&s->row, l->max_rows * sizeof(*s->row)},
        {(void **)&s->update, (uint64_t)l->max_rows * l->max_blocks_per_row * sizeof(*s->update)},
        {(void **)&s->output, l->max_outputs * sizeof(*s->output)},
        {(void **)&s->bias, l->max_bias * sizeof(*s->bias)},
        {(void **)&s->mask, l->max_masks * mask_words * sizeof(*s->mask)},
        {(void **)&s->out_token, l->max_outputs * sizeof(*s->out_token)},
        {(void **)&s->out_logprob, l->max_outputs * sizeof(*s->out_logprob)},
        {(void **)&s->out_rank, l->max_outputs * sizeof(*s->out_rank)},
        {(void **)&s->out_top_token, l->max_outputs * n_top * sizeof(*s->out_top_token)},
        {(void **)&s->out_top_logprob, l->max_outputs * n_top * sizeof(*s->out_top_logprob)},
        {(void **)&s->out_flags, l->max_outputs * sizeof(*s->out_flags)},
    };

    for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
        enum status st =
            host_zalloc(h, arrays[i].out, arrays[i].n_bytes, "the arrays of a step", err);

        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static void free_slot(struct backend_stage *s) {
    void *arrays[] = {s->token,           s->position,    s->kv_slot,  s->row,
                      s->update,          s->output,      s->bias,     s->mask,
                      s->out_token,       s->out_logprob, s->out_rank, s->out_top_token,
                      s->out_top_logprob, s->out_flags};

    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        mem_free(arrays[i]);
}

enum status host_init_checks(struct host_model *h, struct host_device *dev,
                             const struct geometry *g, const struct backend_limits *limits,
                             struct error *err) {
    float *inv_freq;
    enum status st;

    if ((st = check_geometry(g, err)) != ST_OK) return st;
    if ((st = check_limits(limits, err)) != ST_OK) return st;
    if ((st = tp_shard_init(&h->shard, g, dev->tp_rank, dev->tp_size, err)) != ST_OK) return st;
    h->dev = dev;
    h->g = tp_shard_geometry(&h->shard, g);
    h->limits = *limits;
    h->block_bytes = kv_layout_block_bytes(&h->g, limits->block_size);
    h->g.inv_freq = inv_freq = mem_calloc(g->head_dim / 2, sizeof(float));
    memcpy(inv_freq, g->inv_freq, g->head_dim / 2 * sizeof(float));
    h->g.layer_kind = NULL;
    h->g.format = NULL;
    if (g->layer_kind) {
        uint8_t *kind = mem_alloc(g->n_layers);

        memcpy(kind, g->layer_kind, g->n_layers);
        h->g.layer_kind = kind;
    }
    h->whole = *g;
    h->whole.inv_freq = h->g.inv_freq;
    h->whole.layer_kind = h->g.layer_kind;
    h->is_loaded = mem_calloc(ROLE_COUNT, g->n_layers);
    h->rows = mem_calloc(limits->max_rows, sizeof(*h->rows));
    return ST_OK;
}

enum status host_check(const struct backend_config *config, const struct geometry *g,
                       const struct backend_limits *limits,
                       enum status (*own)(const struct host_model *h, struct error *err),
                       struct error *err) {
    struct host_model h = {0};
    struct host_device dev = {.tp_rank = config->tp_rank, .tp_size = MAX(config->tp_size, 1u)};
    enum status st = host_init_checks(&h, &dev, g, limits, err);

    if (st == ST_OK && own) st = own(&h, err);
    host_fini(&h);
    return st;
}

enum status host_init(struct host_model *h, struct host_device *dev, const struct geometry *g,
                      const struct backend_limits *limits, bool keeps_history, struct error *err) {
    uint64_t n_tables = (uint64_t)limits->max_rows * limits->max_blocks_per_row;
    uint64_t n_history = (uint64_t)limits->max_rows * (g->max_context + 1ull);
    enum status st = host_init_checks(h, dev, g, limits, err);

    if (st != ST_OK) return st;
    h->ids = mem_calloc(limits->max_step_tokens, sizeof(*h->ids));
    st = host_zalloc(h, (void **)&h->table, n_tables * sizeof(*h->table), "block tables", err);
    if (st == ST_OK && keeps_history)
        st = host_zalloc(h, (void **)&h->history, n_history * sizeof(*h->history),
                         "token histories", err);
    for (uint32_t i = 0; i < limits->n_slots && st == ST_OK; i++)
        st = alloc_slot(h, &h->slot[i], err);
    return st;
}

void host_fini(struct host_model *h) {
    for (int i = 0; i < 2; i++)
        free_slot(&h->slot[i]);
    mem_free((void *)(uintptr_t)h->g.inv_freq);
    mem_free((void *)(uintptr_t)h->g.layer_kind);
    mem_free(h->is_loaded);
    mem_free(h->rows);
    mem_free(h->ids);
    mem_free(h->table);
    mem_free(h->history);
    mem_free(h->pool);
    if (!h->lent) mem_free(h->host_pool);
}

/* --- weights --------------------------------------------------------------------------------- */

static const char *const role_names[ROLE_COUNT] = {
    "embedding", "final norm", "output head", "attention norm", "q",      "k",
    "v",         "o",          "q bias",      "k bias",         "v bias", "o bias",
    "q norm",    "k norm",     "ffn norm",    "gate",           "up",     "down"};

const char *host_role_name(enum tensor_role role) {
    return (unsigned)role < ROLE_COUNT ? role_names[role] : "unknown";
}

bool host_role_is_per_layer(enum tensor_role role) {
    return role > ROLE_LM_HEAD;
}

static struct host_shape vector_of(bool is_wanted, uint64_t n) {
    return (struct host_shape){is_wanted ? 1 : 0, {n, 0}};
}

static struct host_shape matrix_of(uint64_t n, uint64_t k) {
    return (struct host_shape){2, {n, k}};
}

struct host_shape host_role_shape(const struct geometry *g, enum tensor_role role) {
    uint64_t q = (uint64_t)g->n_heads * g->head_dim, kv = (uint64_t)g->n_kv_heads * g->head_dim;

    switch (role) {
    case ROLE_EMBED: return matrix_of(g->vocab, g->d_model);
    case ROLE_LM_HEAD: return g->is_tied ? (struct host_shape){0} : matrix_of(g->vocab, g->d_model);
    case ROLE_FINAL_NORM:
    case ROLE_ATTN_NORM:
    case ROLE_FFN_NORM: return vector_of(true, g->d_model);
    case ROLE_Q: return matrix_of(q, g->d_model);
    case ROLE_K:
    case ROLE_V: return matrix_of(kv, g->d_model);
    case ROLE_O: return matrix_of(g->d_model, q);
    case ROLE_Q_BIAS: return vector_of(g->has_qkv_bias, q);
    case ROLE_K_BIAS:
    case ROLE_V_BIAS: return vector_of(g->has_qkv_bias, kv);
    case ROLE_O_BIAS: return vector_of(g->has_o_bias, g->d_model);
    case ROLE_Q_NORM:
    case ROLE_K_NORM: return vector_of(g->has_qk_norm, g->head_dim);
    case ROLE_GATE:
    case ROLE_UP: return matrix_of(g->d_ff, g->d_model);
    case ROLE_DOWN: return matrix_of(g->d_model, g->d_ff);
    default: return (struct host_shape){0};
    }
}

/* Products can be: a row of the embedding is looked up. */
static bool role_may_be_quantised(enum tensor_role role) {
    return role == ROLE_LM_HEAD || (role >= ROLE_Q && role <= ROLE_O) || role >= ROLE_GATE;
}

static enum status check_quant(const struct host_model *h, const struct backend_tensor *t,
                               uint32_t layer, struct error *err) {
    char name[64];

    snprintf(name, sizeof(name), "%s, layer %u", host_role_name(t->role), layer);
    if (h->g.quant_types & QUANT_TYPE(t->dtype)) return quant_check(t, name, err);
    return error_set(err, ST_INVALID,
                     "weight %s is %s, which the geometry's quant_types does not announce", name,
                     dtype_name(t->dtype));
}

enum status host_take_tensor(struct host_model *h, const struct backend_tensor *t,
                             struct error *err) {
    const char *name = host_role_name(t->role);
    struct host_shape want = host_role_shape(&h->whole, t->role);
    uint32_t layer = host_role_is_per_layer(t->role) ? t->layer : 0;
    uint64_t n_bytes = want.n_dims == 2 ? want.dim[0] * dtype_row_bytes(t->dtype, want.dim[1])
                                        : dtype_row_bytes(t->dtype, want.dim[0]);
    enum status st;
    uint8_t *mark;

    if ((unsigned)t->role >= ROLE_COUNT || layer >= h->g.n_layers)
        return error_set(err, ST_INVALID, "weight of role %u in layer %u: there are %u layers",
                         (unsigned)t->role, t->layer, h->g.n_layers);
    if (!want.n_dims)
        return error_set(err, ST_INVALID, "weight %s, layer %u: this geometry has none", name,
                         layer);
    if (!dtype_is_float(t->dtype) && (!quant_is_type(t->dtype) || !role_may_be_quantised(t->role)))
        return error_set(err, ST_UNSUPPORTED,
                         "weight %s, layer %u is %s: f32, f16 and bf16 are read", name, layer,
                         dtype_name(t->dtype));
    if (dtype_is_float(t->dtype) && t->quant)
        return error_set(err, ST_INVALID, "weight %s, layer %u is %s and has scales", name, layer,
                         dtype_name(t->dtype));
    if (t->n_dims != want.n_dims || t->shape[0] != want.dim[0] ||
        (want.n_dims == 2 && t->shape[1] != want.dim[1]) || t->n_bytes != n_bytes)
        return error_set(err, ST_INVALID,
                         "weight %s, layer %u has shape (%" PRIu64 ", %" PRIu64 ") in %" PRIu64
                         " bytes: the geometry wants (%" PRIu64 ", %" PRIu64 ")",
                         name, layer, t->shape[0], t->n_dims > 1 ? t->shape[1] : 1, t->n_bytes,
                         want.dim[0], want.n_dims > 1 ? want.dim[1] : 1);
    if (quant_is_type(t->dtype) && (st = check_quant(h, t, layer, err)) != ST_OK) return st;
    mark = &h->is_loaded[(uint32_t)t->role * h->g.n_layers + layer];
    if (*mark) return error_set(err, ST_EXISTS, "weight %s, layer %u was given twice", name, layer);
    *mark = 1;
    return ST_OK;
}

enum status host_check_loaded(const struct host_model *h, struct error *err) {
    for (uint32_t role = 0; role < ROLE_COUNT; role++) {
        uint32_t n = host_role_is_per_layer((enum tensor_role)role) ? h->g.n_layers : 1;

        if (!host_role_shape(&h->g, (enum tensor_role)role).n_dims) continue;
        for (uint32_t layer = 0; layer < n; layer++) {
            if (!h->is_loaded[role * h->g.n_layers + layer])
                return error_set(err, ST_INVALID, "weight %s, layer %u is missing from the model",
                                 host_role_name((enum tensor_role)role), layer);
        }
    }
    return ST_OK;
}

/* --- the device ------------------------------------------------------------------------------ */

void host_device_init(struct host_device *dev, const struct backend_config *config,
                      uint64_t memory_free) {
    uint64_t limit = config->memory_bytes ? config->memory_bytes : memory_free;

    dev->tp_rank = config->tp_rank;
    dev->tp_size = MAX(config->tp_size, 1u);
    dev->group = config->group;
    dev->memory_limit = limit / dev->tp_size; /* the ranks are on one machine */
}

/* --- fences: all work is done when submit returns -------------------------------------------- */

enum status host_poll(struct backend_device *dev, backend_fence f) {
    return f <= ((struct host_device *)dev)->last ? ST_OK : ST_INVALID;
}

enum status host_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    (void)timeout_us;
    return host_poll(dev, f);
}

int host_event_fd(struct backend_device *dev) {
    (void)dev;
    return -1;
}
