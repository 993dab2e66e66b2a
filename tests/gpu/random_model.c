/* tests/gpu/random_model.c - see random_model.h. */
#include "tests/gpu/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/kv_layout.h"
#include "kernels/quant.h"

#define PATTERN       (1u << 24) /* random numbers, repeated: 32 MiB as bf16 */
#define SMALL_PATTERN (1u << 18) /* for shapes that are small themselves */
#define NORMALS       (1u << 16)
#define BLOCK_SIZE    16u

static const struct random_shape shapes[] = {
    {"llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, false, false, 5e5f, 0.02f},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, true, true, 1e6f, 0.02f},
    {"slice", 2, 4096, 32, 8, 128, 14336, 8192, false, false, 5e5f, 0},
    {"small", 2, 256, 4, 2, 64, 512, 2048, false, true, 1e4f, 0.02f},
    {"tiny", 2, 128, 4, 2, 64, 256, 512, true, false, 1e4f, 0},
};

const struct random_shape *random_shape_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

void random_fail(const char *doing, enum status st, const struct error *err) {
    fprintf(stderr, "%s: %s: %s\n", doing, status_name(st), err ? err->message : "");
    exit(1);
}

enum dtype random_dtype(const char *name, const char *usage) {
    static const struct {
        const char *name;
        enum dtype type;
    } types[] = {
        {"bf16", DTYPE_BF16}, {"e4m3", DTYPE_F8E4M3}, {"int8", DTYPE_I8}, {"int4", DTYPE_U4}};

    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (strcmp(types[i].name, name) == 0) return types[i].type;
    fprintf(stderr, "%s\n", usage);
    exit(2);
}

double clock_s(void) {
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- random numbers, quickly: 8 billion of them are wanted ------------------------------------ */

static uint64_t pattern_of(const struct random_shape *s) {
    return s->vocab <= 1024 ? SMALL_PATTERN : PATTERN;
}

/* (n + pattern) numbers of mean 0 and deviation 1 as bf16: one pattern, again and again. */
static uint16_t *draw(uint64_t n, uint64_t pattern, uint64_t seed) {
    uint16_t *normals = mem_alloc(NORMALS * sizeof(*normals));
    uint64_t n_all = n + pattern, n_drawn = pattern, i;
    uint16_t *out = mem_alloc(n_all * sizeof(*out));
    struct rng rng;

    rng_seed(&rng, seed);
    for (i = 0; i < NORMALS; i++) {
        double u = 1.0 - rng_f64(&rng), v = rng_f64(&rng);

        normals[i] = bf16_of_f32((float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v)));
    }
    for (i = 0; i < n_drawn; i += 4) {
        uint64_t bits = rng_u64(&rng);

        for (uint32_t j = 0; j < 4; j++, bits >>= 16)
            out[i + j] = normals[bits & (NORMALS - 1)];
    }
    for (i = n_drawn; i < n_all; i += n_drawn)
        memcpy(out + i, out, MIN(n_drawn, n_all - i) * sizeof(*out));
    mem_free(normals);
    return out;
}

/* n bytes, none of them a NaN of e4m3; repeated as above. */
static uint8_t *draw_codes(uint64_t n, uint64_t seed) {
    uint8_t *out = mem_alloc(n);
    struct rng rng;

    rng_seed(&rng, seed);
    for (uint64_t i = 0; i < MIN(n, SMALL_PATTERN); i++) {
        out[i] = (uint8_t)rng_u64(&rng);
        if ((out[i] & 0x7F) == E4M3_NAN) out[i] ^= 1;
    }
    for (uint64_t i = SMALL_PATTERN; i < n; i += SMALL_PATTERN)
        memcpy(out + i, out, MIN(SMALL_PATTERN, n - i));
    return out;
}

/* --- loading ---------------------------------------------------------------------------------- */

struct loader {
    struct random_model *m;
    uint16_t *numbers; /* of deviation 1 */
    uint16_t *scaled;  /* of deviation `scale` */
    float scale;
    uint64_t n_numbers, pattern, seed;
    enum dtype matrices; /* of the layers */
    uint8_t *codes;      /* of quantised ones: widest_tensor() bytes and a pattern; or NULL */
};

static uint64_t widest_tensor(const struct random_shape *s) {
    return (uint64_t)MAX(s->vocab, s->d_ff) * s->d_model;
}

static void rescale(struct loader *l, float scale) {
    if (l->scale == scale) return;
    l->scale = scale;
    for (uint64_t i = 0; i < l->pattern; i++)
        l->scaled[i] = bf16_of_f32(f32_of_bf16(l->numbers[i]) * scale);
    for (uint64_t i = l->pattern; i < l->n_numbers; i += l->pattern)
        memcpy(l->scaled + i, l->scaled, MIN(l->pattern, l->n_numbers - i) * sizeof(*l->scaled));
}

static void give(struct loader *l, enum tensor_role role, uint32_t layer, uint64_t n, uint64_t k,
                 const uint16_t *data) {
    struct backend_tensor t = {.role = role,
                               .layer = layer,
                               .dtype = DTYPE_BF16,
                               .n_dims = k ? 2 : 1,
                               .shape = {n, k},
                               .n_bytes = n * MAX(k, 1) * 2};
    struct error err;
    enum status st;

    t.data = (void *)(uintptr_t)data;
    st = l->m->ops->load_tensor(l->m->model, &t, &err);
    if (st != ST_OK) random_fail("loading a tensor", st, &err);
}

static const uint16_t *somewhere(const struct loader *l, enum tensor_role role, uint32_t layer) {
    uint64_t at = rng_mix(l->seed + role * 4099u + layer) % (l->pattern - 64);

    return l->scaled + at / 8 * 8;
}

#define DEVIATION_E4M3 130.0f /* of codes that are drawn alike */
#define DEVIATION_INT4 4.6f
#define INT4_GROUP     128u

static void give_codes(struct loader *l, enum tensor_role role, uint32_t layer, uint64_t n,
                       uint64_t k, float deviation) {
    bool is_int4 = l->matrices == DTYPE_U4;
    uint32_t group_k = is_int4 ? INT4_GROUP : (uint32_t)k;
    uint64_t n_scales = n * CEIL_DIV(k, (uint64_t)group_k);
    float *scale = mem_alloc(n_scales * sizeof(*scale));
    struct backend_quant q = {.group_n = 1, .group_k = group_k, .scale = scale, .input_scale = 1};
    struct backend_tensor t = {.role = role,
                               .layer = layer,
                               .dtype = l->matrices,
                               .n_dims = 2,
                               .shape = {n, k},
                               .data = l->codes + rng_mix(l->seed + role * 4099u + layer) %
                                                      SMALL_PATTERN / 16 * 16,
                               .n_bytes = n * dtype_row_bytes(l->matrices, k),
                               .quant = &q};
    struct error err;
    enum status st;

    for (uint64_t i = 0; i < n_scales; i++)
        scale[i] = deviation / (is_int4 ? DEVIATION_INT4 : DEVIATION_E4M3) *
                   (0.75f + 0.5f * (float)(i * 7 % 64) / 64);
    st = l->m->ops->load_tensor(l->m->model, &t, &err);
    if (st != ST_OK) random_fail("loading a quantised tensor", st, &err);
    mem_free(scale);
}

static void give_matrix(struct loader *l, enum tensor_role role, uint32_t layer, uint64_t n,
                        uint64_t k) {
    float scale = l->m->shape->matrix_scale;

    if (l->codes && role != ROLE_EMBED && role != ROLE_LM_HEAD) {
        give_codes(l, role, layer, n, k, scale > 0 ? scale : 1.0f / sqrtf((float)k));
        return;
    }
    rescale(l, scale > 0 ? scale : 1.0f / sqrtf((float)k));
    give(l, role, layer, n, k, somewhere(l, role, layer));
}

/* Norms: all ones. */
static void give_ones(struct loader *l, enum tensor_role role, uint32_t layer, uint64_t n) {
    uint16_t *ones = mem_alloc(n * sizeof(*ones));

    for (uint64_t i = 0; i < n; i++)
        ones[i] = bf16_of_f32(1.0f);
    give(l, role, layer, n, 0, ones);
    mem_free(ones);
}

static void give_layer(struct loader *l, uint32_t layer) {
    const struct random_shape *s = l->m->shape;
    uint64_t q = (uint64_t)s->n_heads * s->head_dim, kv = (uint64_t)s->n_kv_heads * s->head_dim;

    give_ones(l, ROLE_ATTN_NORM, layer, s->d_model);
    give_ones(l, ROLE_FFN_NORM, layer, s->d_model);
    give_matrix(l, ROLE_Q, layer, q, s->d_model);
    give_matrix(l, ROLE_K, layer, kv, s->d_model);
    give_matrix(l, ROLE_V, layer, kv, s->d_model);
    give_matrix(l, ROLE_GATE, layer, s->d_ff, s->d_model);
    give_matrix(l, ROLE_UP, layer, s->d_ff, s->d_model);
    if (s->has_qkv_bias) {
        give(l, ROLE_Q_BIAS, layer, q, 0, somewhere(l, ROLE_Q_BIAS, layer));
        give(l, ROLE_K_BIAS, layer, kv, 0, somewhere(l, ROLE_K_BIAS, layer));
        give(l, ROLE_V_BIAS, layer, kv, 0, somewhere(l, ROLE_V_BIAS, layer));
    }
}

/* By number of inputs, so that the numbers are scaled three times and not once for every layer. */
static void give_all(struct loader *l) {
    const struct random_shape *s = l->m->shape;

    give_ones(l, ROLE_FINAL_NORM, 0, s->d_model);
    give_matrix(l, ROLE_EMBED, 0, s->vocab, s->d_model);
    if (!s->is_tied) give_matrix(l, ROLE_LM_HEAD, 0, s->vocab, s->d_model);
    for (uint32_t i = 0; i < s->n_layers; i++)
        give_layer(l, i);
    for (uint32_t i = 0; i < s->n_layers; i++)
        give_matrix(l, ROLE_O, i, s->d_model, (uint64_t)s->n_heads * s->head_dim);
    for (uint32_t i = 0; i < s->n_layers; i++)
        give_matrix(l, ROLE_DOWN, i, s->d_model, s->d_ff);
}

static void load(struct random_model *m, const struct geometry *g, enum dtype matrices,
                 uint64_t seed) {
    struct loader l = {
        .m = m, .pattern = pattern_of(m->shape), .seed = seed, .scale = -1, .matrices = matrices};
    struct error err;
    double start_s;
    enum status st;

    l.n_numbers = widest_tensor(m->shape) + l.pattern;
    l.numbers = draw(0, l.pattern, seed);
    l.scaled = mem_alloc(l.n_numbers * sizeof(*l.scaled));
    if (quant_is_type(matrices))
        l.codes = draw_codes(widest_tensor(m->shape) + SMALL_PATTERN, seed);
    start_s = clock_s();
    st = m->ops->load_begin(m->dev, &m->model, g, &m->limits, &err);
    if (st != ST_OK) random_fail("load_begin", st, &err);
    give_all(&l);
    st = m->ops->load_end(m->model, &err);
    if (st != ST_OK) random_fail("load_end", st, &err);
    m->load_s = clock_s() - start_s;
    mem_free(l.numbers);
    mem_free(l.scaled);
    mem_free(l.codes);
}

static struct backend_limits limits_of(const struct random_limits *l) {
    return (struct backend_limits){.max_rows = l->max_rows,
                                   .max_step_tokens = l->max_step_tokens,
                                   .max_blocks_per_row = CEIL_DIV(l->max_context, BLOCK_SIZE),
                                   .max_outputs = l->max_rows,
                                   .max_logprobs = 4,
                                   .n_slots = 2,
                                   .block_size = BLOCK_SIZE,
                                   .max_bias = 64,
                                   .max_masks = 4,
                                   .is_deterministic = l->is_deterministic};
}

void random_model_open(struct random_model *m, const struct backend_ops *ops,
                       const struct random_shape *s, const struct random_limits *limits,
                       uint64_t seed) {
    const struct backend_config config = {.ordinal = 0};
    float *inv_freq = mem_calloc(s->head_dim / 2, sizeof(*inv_freq));
    struct geometry g = {.n_layers = s->n_layers,
                         .d_model = s->d_model,
                         .n_heads = s->n_heads,
                         .n_kv_heads = s->n_kv_heads,
                         .head_dim = s->head_dim,
                         .d_ff = s->d_ff,
                         .vocab = s->vocab,
                         .max_context = limits->max_context,
                         .rms_eps = 1e-5f,
                         .inv_freq = inv_freq,
                         .rope_scale = 1,
                         .weight_dtype = DTYPE_BF16,
                         .kv_dtype = kv_scale_bytes(limits->kv) ? limits->kv : DTYPE_BF16,
                         .quant_types =
                             quant_is_type(limits->matrices) ? QUANT_TYPE(limits->matrices) : 0,
                         .has_qkv_bias = s->has_qkv_bias,
                         .is_tied = s->is_tied};
    struct error err;
    enum status st;
    double start_s;

    *m = (struct random_model){.ops = ops, .shape = s, .limits = limits_of(limits)};
    m->kv_dtype = g.kv_dtype;
    for (uint32_t i = 0; i < s->head_dim / 2; i++)
        inv_freq[i] = powf(s->theta, -2.0f * (float)i / (float)s->head_dim);
    st = ops->open(&m->dev, &config, &err);
    if (st != ST_OK) random_fail("open", st, &err);
    load(m, &g, limits->matrices, seed);
    start_s = clock_s();
    st = ops->kv_alloc(m->model, limits->n_blocks, limits->n_host_blocks, &m->kv, &err);
    if (st != ST_OK) random_fail("kv_alloc", st, &err);
    m->alloc_s = clock_s() - start_s;
    for (uint32_t slot = 0; slot < 2; slot++)
        ops->stage(m->model, slot, &m->stage[slot]);
    mem_free(inv_freq);
}

void random_model_close(struct random_model *m) {
    m->ops->unload(m->model);
    m->ops->close(m->dev);
}

#define SOME_SCALE 119u /* 2^-8: codes of e4m3 are then below 2 */

static void fill_quantised(struct random_model *m, uint32_t n_blocks, uint64_t seed) {
    uint64_t n_bytes = m->kv.block_bytes, n_scales;
    struct geometry g = {.n_layers = m->shape->n_layers,
                         .n_kv_heads = m->shape->n_kv_heads,
                         .head_dim = m->shape->head_dim,
                         .kv_dtype = m->kv_dtype};
    uint8_t *codes = draw_codes(n_bytes + SMALL_PATTERN, seed), *block = mem_alloc(n_bytes);

    n_scales = n_bytes - kv_tiles_bytes(&g, BLOCK_SIZE);
    for (uint32_t i = 0; i < n_blocks; i++) {
        enum status st;

        memcpy(block, codes + rng_mix(seed + i) % SMALL_PATTERN, n_bytes);
        memset(block + n_bytes - n_scales, SOME_SCALE, n_scales);
        st = m->ops->kv_write(m->model, i, block, n_bytes);
        if (st != ST_OK) random_fail("kv_write", st, NULL);
    }
    mem_free(codes);
    mem_free(block);
}

static void fill_plain(struct random_model *m, uint32_t n_blocks, uint64_t seed) {
    uint64_t n = m->kv.block_bytes / 2, pattern = pattern_of(m->shape);
    uint16_t *numbers = draw(n, pattern, seed);

    for (uint32_t i = 0; i < n_blocks; i++) {
        uint64_t at = rng_mix(seed + i) % (pattern - 64) / 8 * 8;
        enum status st = m->ops->kv_write(m->model, i, numbers + at, m->kv.block_bytes);

        if (st != ST_OK) random_fail("kv_write", st, NULL);
    }
    mem_free(numbers);
}

void random_model_fill_pool(struct random_model *m, uint32_t n_blocks, uint64_t seed) {
    if (m->kv_dtype == DTYPE_BF16)
        fill_plain(m, n_blocks, seed);
    else
        fill_quantised(m, n_blocks, seed);
}
