/* worker/model/model.c - a folder opened, bound to roles, and streamed into a backend.
 *
 * Binding is done at open: each (role, layer) of the geometry finds its tensor, with the shape that
 * the role implies, and each tensor must belong to a role. A tensor without a role means a
 * computation that this worker lacks, so the checkpoint is refused. */
#include "worker/model/model.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "worker/model/architecture.h"
#include "worker/model/checkpoint/weights.h"
#include "worker/model/digest.h"
#include "worker/model/quant/module.h"

#define MAX_CONFIG_BYTES ((size_t)4 << 20)

struct bound_tensor {
    enum tensor_role role;
    uint32_t layer;
    const struct safetensor *tensor; /* of codes, when quantised */
    struct quant_module *module;     /* NULL: plain */
};

struct model {
    char *folder, *name;
    struct model_config config;
    struct geometry geometry;
    float *inv_freq;
    struct matrix_format *format; /* the geometry's */
    struct weights *weights;
    struct quant_config *quant; /* NULL: plain */
    struct bound_tensor *bound; /* in load order */
    uint32_t n_bound;
    const struct safetensor **used; /* all that roles account for */
    uint32_t n_used, n_kv_scales;   /* scales of a KV cache, which are not used */
};

/* --- shapes ------------------------------------------------------------------------------------*/
static bool is_per_layer(enum tensor_role role) {
    return role != ROLE_EMBED && role != ROLE_FINAL_NORM && role != ROLE_LM_HEAD;
}

static bool is_wanted(const struct geometry *g, enum tensor_role role) {
    switch (role) {
    case ROLE_LM_HEAD: return !g->is_tied;
    case ROLE_Q_BIAS:
    case ROLE_K_BIAS:
    case ROLE_V_BIAS: return g->has_qkv_bias;
    case ROLE_O_BIAS: return g->has_o_bias;
    case ROLE_Q_NORM:
    case ROLE_K_NORM: return g->has_qk_norm;
    default: return true;
    }
}

/* Rows and columns; a vector has 0 columns. */
struct extent {
    uint64_t rows, cols;
};

static struct extent extent_of(const struct geometry *g, enum tensor_role role) {
    uint64_t q = (uint64_t)g->n_heads * g->head_dim, kv = (uint64_t)g->n_kv_heads * g->head_dim;

    switch (role) {
    case ROLE_EMBED:
    case ROLE_LM_HEAD: return (struct extent){g->vocab, g->d_model};
    case ROLE_Q: return (struct extent){q, g->d_model};
    case ROLE_K:
    case ROLE_V: return (struct extent){kv, g->d_model};
    case ROLE_O: return (struct extent){g->d_model, q};
    case ROLE_GATE:
    case ROLE_UP: return (struct extent){g->d_ff, g->d_model};
    case ROLE_DOWN: return (struct extent){g->d_model, g->d_ff};
    case ROLE_Q_BIAS: return (struct extent){q, 0};
    case ROLE_K_BIAS:
    case ROLE_V_BIAS: return (struct extent){kv, 0};
    case ROLE_Q_NORM:
    case ROLE_K_NORM: return (struct extent){g->head_dim, 0};
    default: return (struct extent){g->d_model, 0};
    }
}

/* Elements of matrices and of vectors, all layers. */
static void count_elements(const struct geometry *g, uint64_t *matrices, uint64_t *vectors) {
    *matrices = *vectors = 0;
    for (uint32_t role = 0; role < ROLE_COUNT; role++) {
        struct extent e = extent_of(g, role);
        uint64_t n = is_per_layer(role) ? g->n_layers : 1;

        if (!is_wanted(g, role)) continue;
        if (e.cols) {
            *matrices += n * e.rows * e.cols;
        } else {
            *vectors += n * e.rows;
        }
    }
}

static void fill_geometry(struct model *m) {
    const struct model_config *c = &m->config;

    m->inv_freq = mem_calloc(c->head_dim / 2, sizeof(*m->inv_freq));
    m->geometry = (struct geometry){
        .n_layers = c->n_layers,
        .d_model = c->d_model,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .d_ff = c->d_ff,
        .vocab = c->vocab,
        .max_context = c->max_context,
        .rms_eps = (float)c->rms_eps,
        .inv_freq = m->inv_freq,
        .is_tied = c->is_tied,
        .has_qkv_bias = c->has_qkv_bias,
        .has_o_bias = c->has_o_bias,
        .has_qk_norm = c->has_qk_norm,
        .sliding_window = c->sliding_window,
        .layer_kind = c->sliding_window ? c->layer_kind : NULL,
    };
    rope_table(&c->rope, c->head_dim, m->inv_freq, &m->geometry.rope_scale);
}

/* --- opening -----------------------------------------------------------------------------------*/
static enum status check_folder(const char *folder, struct error *err) {
    static const char holds[] = "a model folder, as downloaded from Hugging Face, holds "
                                "config.json, tokenizer.json and *.safetensors";
    static const char *const needed[] = {"config.json", "tokenizer.json"};
    struct stat sb;
    char path[PATH_MAX];

    if (stat(folder, &sb) != 0) {
        return error_set(err, ST_NOT_FOUND, "cannot open the model folder %s: %s; %s", folder,
                         strerror(errno), holds);
    }
    if (!S_ISDIR(sb.st_mode)) {
        return error_set(err, ST_INVALID, "the model %s is a file, not a folder; %s", folder,
                         holds);
    }
    for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, needed[i]);
        if (file_exists(path)) continue;
        return error_set(err, ST_NOT_FOUND, "the model folder %s has no %s; %s", folder, needed[i],
                         holds);
    }
    return ST_OK;
}

static enum status read_config(struct model *m, struct error *err) {
    char path[PATH_MAX], *config = NULL, *generation = NULL, *quant = NULL;
    size_t n = 0, n_generation = 0, n_quant = 0;
    enum status st;

    snprintf(path, sizeof(path), "%s/config.json", m->folder);
    st = file_read(path, MAX_CONFIG_BYTES, &config, &n, err);
    snprintf(path, sizeof(path), "%s/generation_config.json", m->folder);
    if (st == ST_OK && file_exists(path)) {
        st = file_read(path, MAX_CONFIG_BYTES, &generation, &n_generation, err);
    }
    snprintf(path, sizeof(path), "%s/hf_quant_config.json", m->folder);
    if (st == ST_OK && file_exists(path)) {
        st = file_read(path, MAX_CONFIG_BYTES, &quant, &n_quant, err);
    }
    if (st == ST_OK) {
        st = config_parse(&m->config, (struct str){config, n},
                          (struct str){generation, n_generation}, err);
        if (st == ST_OK)
            st = quant_config_parse(&m->quant, (struct str){config, n},
                                    (struct str){quant, n_quant}, err);
        if (st != ST_OK) error_prefix(err, "%s", m->folder);
    }
    mem_free(config);
    mem_free(generation);
    mem_free(quant);
    return st;
}

static bool has_shape(const struct safetensor *t, struct extent e) {
    if (e.cols) return t->n_dims == 2 && t->shape[0] == e.rows && t->shape[1] == e.cols;
    return t->n_dims == 1 && t->shape[0] == e.rows;
}

/* The least common multiple of the groups of all layers, or k where that is more. */
static void add_group(uint32_t *group, const struct quant_module *q) {
    uint64_t a = MAX(*group, 1u), b = quant_module_input_group(q), multiple = a;

    while (multiple % b && multiple < q->k)
        multiple += a;
    *group = (uint32_t)MIN(multiple, q->k);
}

/* Codes of a layer that is quantised; *is_bound is false for what is plain. */
static enum status bind_quantised(struct model *m, enum tensor_role role, uint32_t layer,
                                  const char *name, bool *is_bound, struct error *err) {
    struct extent e = extent_of(&m->geometry, role);
    struct quant_module found;
    size_t n = strlen(name), n_suffix = strlen(".weight");
    char module[128];
    enum status st;

    *is_bound = false;
    if (!e.cols || role == ROLE_EMBED || n <= n_suffix) return ST_OK;
    snprintf(module, sizeof(module), "%.*s", (int)(n - n_suffix), name);
    st = quant_module_find(&found, is_bound, m->weights, m->quant, module, e.rows, e.cols, err);
    if (st != ST_OK) return error_prefix(err, "%s", m->folder), st;
    if (!*is_bound) return ST_OK;
    m->bound[m->n_bound] =
        (struct bound_tensor){role, layer, found.codes, mem_alloc(sizeof(found))};
    *m->bound[m->n_bound++].module = found;
    for (uint32_t i = 0; i < found.n_all; i++)
        m->used[m->n_used++] = found.all[i];
    m->geometry.quant_types |= 1u << found.dtype;
    m->format[layer * ROLE_COUNT + role] = quant_module_format(&found);
    if (role == ROLE_O) add_group(&m->geometry.o_group, &found);
    if (role == ROLE_DOWN) add_group(&m->geometry.down_group, &found);
    return ST_OK;
}

static enum status bind(struct model *m, const struct tensor_name *n, uint32_t layer,
                        struct error *err) {
    struct extent e = extent_of(&m->geometry, n->role);
    const struct safetensor *t;
    char name[128], shape[64];
    bool is_bound;
    enum status st;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof(name), n->name, layer); /* the formats are in the architecture's table */
#pragma GCC diagnostic pop
    st = bind_quantised(m, n->role, layer, name, &is_bound, err);
    if (st != ST_OK || is_bound) return st;
    t = weights_find(m->weights, name);
    if (!t) {
        return error_set(err, ST_INVALID,
                         "%s: the checkpoint has no tensor %s, which config.json (%s, %u layers) "
                         "implies",
                         m->folder, name, m->config.architecture->name, m->config.n_layers);
    }
    if (!t->is_usable) {
        return error_set(err, ST_UNSUPPORTED,
                         "%s: unsupported type of tensor %s, %s: supported are BF16, F16 and F32",
                         m->folder, name, t->type_name.ptr);
    }
    if (!has_shape(t, e)) {
        if (e.cols) {
            snprintf(shape, sizeof(shape), "%llu x %llu", (unsigned long long)e.rows,
                     (unsigned long long)e.cols);
        } else {
            snprintf(shape, sizeof(shape), "%llu", (unsigned long long)e.rows);
        }
        return error_set(err, ST_INVALID,
                         "%s: the shape of tensor %s is not %s, which config.json implies: "
                         "download the model again",
                         m->folder, name, shape);
    }
    m->bound[m->n_bound++] = (struct bound_tensor){n->role, layer, t, NULL};
    m->used[m->n_used++] = t;
    return ST_OK;
}

/* Embedding, layer after layer, what follows: the order of use, and nearly that of the files. */
static enum status bind_all(struct model *m, struct error *err) {
    const struct architecture *a = m->config.architecture;

    m->bound = mem_calloc((size_t)ROLE_COUNT * m->config.n_layers, sizeof(*m->bound));
    m->format = mem_calloc((size_t)ROLE_COUNT * m->config.n_layers, sizeof(*m->format));
    m->geometry.format = m->format;
    m->used = mem_calloc((size_t)ROLE_COUNT * m->config.n_layers * QUANT_MODULE_TENSORS,
                         sizeof(const struct safetensor *));
    for (uint32_t layer = 0; layer < m->config.n_layers; layer++) {
        for (size_t i = 0; i < a->n_names; i++) {
            const struct tensor_name *n = &a->names[i];
            uint32_t when = n->role == ROLE_EMBED ? 0 : m->config.n_layers - 1;
            enum status st;

            if (!is_wanted(&m->geometry, n->role)) continue;
            if (!is_per_layer(n->role) && layer != when) continue;
            st = bind(m, n, is_per_layer(n->role) ? layer : 0, err);
            if (st != ST_OK) return st;
        }
    }
    return ST_OK;
}

static int by_tensor(const void *a, const void *b) {
    const struct safetensor *x = *(const struct safetensor *const *)a;
    const struct safetensor *y = *(const struct safetensor *const *)b;

    return (x > y) - (x < y);
}

/* Left by converters, and without meaning: a table we compute, and a copy of the embedding. */
static bool is_harmless(const struct model *m, const struct safetensor *t) {
    return str_ends(t->name, STR(".rotary_emb.inv_freq")) ||
           (m->geometry.is_tied && t->is_usable && str_eq(t->name, STR("lm_head.weight")));
}

/* A head that is quantised is no copy of the embedding. */
static enum status refuse_unused(const struct model *m, const struct safetensor *t,
                                 struct error *err) {
    if (m->geometry.is_tied && str_starts(t->name, STR("lm_head.")))
        return error_set(err, ST_UNSUPPORTED,
                         "%s: unsupported tensor %.100s of %.10s beside a tied embedding: "
                         "config.json makes the embedding the head, and ignoring the tensor would "
                         "change the results; set tie_word_embeddings to false, or use another "
                         "checkpoint of this model",
                         m->folder, t->name.ptr, t->type_name.ptr);
    return error_set(err, ST_UNSUPPORTED,
                     "%s: unsupported tensor %.100s in the checkpoint: architecture %s does not "
                     "have it, and ignoring it would change the results",
                     m->folder, t->name.ptr, m->config.architecture->name);
}

/* Scales for a quantised KV cache, per tensor: ours are per token, so these are not used. */
static bool is_kv_scale(struct str name) {
    static const char *const suffixes[] = {".k_scale",          ".v_scale",      ".q_scale",
                                           ".kv_scale",         ".k_zero_point", ".v_zero_point",
                                           ".prob_output_scale"};

    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        if (str_ends(name, str_of(suffixes[i]))) return true;
    }
    return false;
}

static enum status check_all_used(struct model *m, struct error *err) {
    enum status st = ST_OK;

    qsort(m->used, m->n_used, sizeof(*m->used), by_tensor);
    for (uint32_t i = 0; i < weights_count(m->weights) && st == ST_OK; i++) {
        const struct safetensor *t = weights_at(m->weights, i);

        if (bsearch(&t, m->used, m->n_used, sizeof(*m->used), by_tensor)) continue;
        if (is_harmless(m, t)) continue;
        if (is_kv_scale(t->name)) {
            m->n_kv_scales++;
            continue;
        }
        st = refuse_unused(m, t, err);
    }
    return st;
}

static char *last_part(const char *folder) {
    char *full = realpath(folder, NULL);
    const char *path = full ? full : folder, *slash = strrchr(path, '/');
    char *name = mem_strdup(slash && slash[1] ? slash + 1 : path);

    free(full); /* realpath's malloc */
    return name;
}

enum status model_open(struct model **out, const char *folder, struct error *err) {
    struct model *m;
    enum status st = check_folder(folder, err);

    if (st != ST_OK) return st;
    m = mem_zalloc(sizeof(*m));
    m->folder = mem_strdup(folder);
    m->name = last_part(folder);
    st = read_config(m, err);
    if (st != ST_OK) goto fail;
    fill_geometry(m);
    st = weights_open(&m->weights, folder, err);
    if (st == ST_OK) st = bind_all(m, err);
    if (st == ST_OK) st = check_all_used(m, err);
    if (st != ST_OK) goto fail;
    m->geometry.weight_dtype = m->geometry.kv_dtype = model_dtype(m);
    *out = m;
    return ST_OK;
fail:
    model_close(m);
    return st;
}

enum status model_digest(const struct model *m, uint8_t out[SHA256_BYTES], struct error *err) {
    if (model_is_synthetic(m)) {
        memset(out, 0, SHA256_BYTES); /* no weights: all are alike */
        return ST_OK;
    }
    return digest_checkpoint(m->folder, m->weights, out, err);
}

struct model *model_create_synthetic(uint32_t context) {
    struct model *m = mem_zalloc(sizeof(*m));

    m->folder = mem_strdup("");
    m->name = mem_strdup("synthetic");
    m->config = (struct model_config){
        .model_type = "synthetic",
        .n_layers = 32,
        .d_model = 4096,
        .n_heads = 32,
        .n_kv_heads = 8,
        .head_dim = 128,
        .d_ff = 14336,
        .vocab = 512,
        .max_context = MIN(MAX(context, 1u << 17), 1u << 20),
        .rms_eps = 1e-5,
        .rope = {.theta = 500000, .factor = 1},
        .dtype = DTYPE_BF16,
        .n_eos = 2,
        .eos = {256, 258},
    };
    fill_geometry(m);
    m->geometry.weight_dtype = m->geometry.kv_dtype = model_dtype(m);
    return m;
}

void model_close(struct model *m) {
    if (!m) return;
    for (uint32_t i = 0; i < m->n_bound; i++)
        mem_free(m->bound[i].module);
    weights_close(m->weights);
    quant_config_free(m->quant);
    mem_free(m->bound);
    mem_free(m->used);
    mem_free(m->inv_freq);
    mem_free(m->format);
    mem_free(m->folder);
    mem_free(m->name);
    mem_free(m);
}

/* --- questions ---------------------------------------------------------------------------------*/
bool model_is_synthetic(const struct model *m) {
    return !m->config.architecture;
}

const char *model_name(const struct model *m) {
    return m->name;
}

const struct model_config *model_config(const struct model *m) {
    return &m->config;
}

enum dtype model_dtype(const struct model *m) {
    enum dtype dtype = m->config.dtype;
    bool is_first = true;

    for (uint32_t i = 0; i < m->n_bound; i++) {
        const struct safetensor *t = m->bound[i].tensor;

        if (t->n_dims < 2 || m->bound[i].module) continue;
        if (!is_first && t->dtype != dtype) return DTYPE_F32;
        dtype = t->dtype;
        is_first = false;
    }
    return dtype;
}

void model_geometry(const struct model *m, struct geometry *out) {
    *out = m->geometry;
}

uint64_t model_weight_bytes(const struct model *m, enum dtype matrix_dtype) {
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < m->n_bound; i++) {
        const struct bound_tensor *b = &m->bound[i];
        struct extent e = extent_of(&m->geometry, b->role);

        if (b->module) {
            n_bytes += quant_module_bytes(b->module);
        } else if (e.cols) {
            n_bytes += e.rows * e.cols * dtype_bytes(matrix_dtype);
        } else {
            n_bytes += e.rows * dtype_bytes(DTYPE_F32);
        }
    }
    return n_bytes;
}

const char *model_quantization(const struct model *m) {
    return quant_config_method(m->quant);
}

uint32_t model_n_kv_scales(const struct model *m) {
    return m->n_kv_scales;
}

uint64_t model_kv_bytes_per_token(const struct model *m, enum dtype kv_dtype) {
    const struct geometry *g = &m->geometry;

    return 2ull * g->n_layers * g->n_kv_heads *
           (g->head_dim * dtype_bytes(kv_dtype) + kv_scale_bytes(kv_dtype));
}

uint64_t model_n_params(const struct model *m) {
    uint64_t matrices, vectors;

    count_elements(&m->geometry, &matrices, &vectors);
    return matrices + vectors;
}

/* --- loading -----------------------------------------------------------------------------------*/
/* The data of `t`, copied to *copy when the file has it at an address its type cannot have. */
static enum status aligned_data(const struct safetensor *t, void **data, void **copy,
                                struct error *err) {
    *data = (void *)(uintptr_t)t->data;
    *copy = NULL;
    if ((uintptr_t)t->data % dtype_bytes(t->dtype) == 0) return ST_OK;
    *copy = *data = mem_try(t->n_bytes);
    if (!*copy) {
        return error_set(err, ST_NOMEM, "out of memory for the %llu bytes of tensor %.100s",
                         (unsigned long long)t->n_bytes, t->name.ptr);
    }
    memcpy(*copy, t->data, t->n_bytes);
    return ST_OK;
}

/* Counts what will be rounded, and refuses what would become infinite. */
static enum status count_rounded(const struct safetensor *t, enum dtype to,
                                 struct model_rounding *rounding, struct error *err) {
    uint64_t n = t->n_dims < 2 ? 0 : t->shape[0] * t->shape[1], n_infinite = 0;

    rounding->n_weights += n;
    if (to == DTYPE_F32 || to == t->dtype) return ST_OK;
    for (uint64_t i = 0; i < n; i++) {
        float from = dtype_get(t->dtype, t->data, i), kept;

        dtype_put(to, &kept, 0, from);
        kept = dtype_get(to, &kept, 0);
        rounding->n_rounded += kept != from;
        n_infinite += isinf(kept) && !isinf(from);
    }
    if (n_infinite == 0) return ST_OK;
    return error_set_param(err, ST_INVALID, "dtype",
                           "%llu weights of %.100s exceed the range of %s: use --dtype %s",
                           (unsigned long long)n_infinite, t->name.ptr, dtype_long_name(to),
                           to == DTYPE_F16 ? "float32 or bfloat16" : "float32");
}

static enum status load_quantised(const struct model *m, const struct backend_ops *ops,
                                  struct backend_model *to, const struct bound_tensor *b,
                                  struct model_rounding *rounding, struct error *err) {
    struct backend_tensor tensor = {.role = b->role, .layer = b->layer};
    struct quant_matrix_data data;
    enum status st = quant_module_load(b->module, &data, &tensor, err);

    if (st == ST_OK) {
        st = ops->load_tensor(to, &tensor, err);
        if (st != ST_OK) error_prefix(err, "loading %.100s", b->tensor->name.ptr);
        rounding->n_weights += tensor.shape[0] * tensor.shape[1];
        rounding->n_wrapped_zeros += data.n_wrapped;
        quant_matrix_fini(&data);
    }
    for (uint32_t i = 0; i < b->module->n_all; i++)
        weights_forget(m->weights, b->module->all[i]);
    return st;
}

static enum status load_one(const struct model *m, const struct backend_ops *ops,
                            struct backend_model *to, const struct bound_tensor *b,
                            struct error *err) {
    const struct safetensor *t = b->tensor;
    struct backend_tensor tensor = {.role = b->role,
                                    .layer = b->layer,
                                    .dtype = t->dtype,
                                    .n_dims = t->n_dims,
                                    .n_bytes = t->n_bytes};
    void *copy;
    enum status st;

    memcpy(tensor.shape, t->shape, sizeof(tensor.shape));
    st = aligned_data(t, &tensor.data, &copy, err);
    if (st != ST_OK) return st;
    st = ops->load_tensor(to, &tensor, err);
    if (st != ST_OK) error_prefix(err, "loading %.100s", t->name.ptr);
    mem_free(copy);
    weights_forget(m->weights, t);
    return st;
}

enum status model_load(const struct model *m, const struct backend_ops *ops,
                       struct backend_device *dev, const struct geometry *g,
                       const struct backend_limits *limits, model_progress_fn progress, void *arg,
                       struct model_rounding *rounding, struct backend_model **out,
                       struct error *err) {
    struct backend_model *to = NULL;
    struct model_rounding counted = {0};
    uint64_t total = 0, done = 0;
    enum status st = ops->load_begin(dev, &to, g, limits, err);

    if (st != ST_OK) return st;
    for (uint32_t i = 0; i < m->n_bound; i++)
        total += m->bound[i].tensor->n_bytes;
    for (uint32_t i = 0; i < m->n_bound && st == ST_OK; i++) {
        const struct bound_tensor *b = &m->bound[i];

        if (b->module) {
            st = load_quantised(m, ops, to, b, &counted, err);
        } else {
            st = count_rounded(b->tensor, g->weight_dtype, &counted, err);
            if (st == ST_OK) st = load_one(m, ops, to, b, err);
        }
        done += m->bound[i].tensor->n_bytes;
        if (progress && st == ST_OK) progress(arg, done, total);
    }
    if (st == ST_OK) st = ops->load_end(to, err);
    if (st != ST_OK) {
        ops->unload(to);
        return st;
    }
    if (rounding) *rounding = counted;
    *out = to;
    return ST_OK;
}
