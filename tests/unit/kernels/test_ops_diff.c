/* tests/unit/kernels/test_ops_diff.c - every operator of every cpu path against the reference.
 *
 * Inputs are random, of several shapes and types; outputs begin as NaN, so that an element not
 * wrote is seen. The bound of an operator is relative to the size of what it sums. The bf16 path
 * rounds activations on the way in and on the way out: inputs are rounded beforehand, so that
 * they are the same for both, and results may differ by 2^-8; elsewhere only the order of sums
 * differs. Weights and pools of f16 and f32 hold values that bf16 cannot. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/dtype.h"
#include "kernels/kv_quant.h"
#include "tests/support/cm.h"
#include "tests/support/quant_matrix.h"
#include "tests/support/support.h"
#include "tests/support/tiny_model.h"

static const char *const paths[] = {"avx512bf16", "avx512", "avx2", "neon", "plain"};

struct bench {
    struct rng rng;
    struct backend_device *ref, *cpu;
    const char *path;
    bool is_bf16;
    struct backend_tensor in[5], want, got;
    uint32_t n_in;
};

static float *new_f32(struct bench *b, struct backend_tensor *t, uint32_t n_dims, uint64_t s0,
                      uint64_t s1, uint64_t s2, float scale) {
    uint64_t n = s0 * (n_dims > 1 ? s1 : 1) * (n_dims > 2 ? s2 : 1);
    float *x = mem_calloc(n, sizeof(float));

    *t = (struct backend_tensor){.dtype = DTYPE_F32,
                                 .n_dims = n_dims,
                                 .shape = {s0, s1, s2},
                                 .data = x,
                                 .n_bytes = n * sizeof(float)};
    for (uint64_t i = 0; i < n; i++) /* sums of uniforms: near enough to normal */
        x[i] = scale * (float)(rng_f64(&b->rng) + rng_f64(&b->rng) + rng_f64(&b->rng) - 1.5) * 2;
    return x;
}

/* What the bf16 path would make of an input. */
static void round_input(struct bench *b, struct backend_tensor *t) {
    float *x = t->data;

    for (uint64_t i = 0; b->is_bf16 && i < t->n_bytes / sizeof(float); i++)
        x[i] = f32_of_bf16(bf16_of_f32(x[i]));
}

static int32_t *new_i32(struct backend_tensor *t, uint64_t n) {
    int32_t *x = mem_calloc(n, sizeof(*x));

    *t = (struct backend_tensor){
        .dtype = DTYPE_I32, .n_dims = 1, .shape = {n}, .data = x, .n_bytes = n * sizeof(*x)};
    return x;
}

static void narrow(struct backend_tensor *t, enum dtype dtype) {
    uint64_t n = t->n_bytes / sizeof(float);
    float *x = t->data;

    if (dtype == DTYPE_F32) return;
    for (uint64_t i = 0; i < n; i++)
        dtype_put(dtype, x, i, x[i]); /* in place: it shrinks */
    t->dtype = dtype;
    t->n_bytes = n * 2;
}

static void make_outputs(struct bench *b, uint32_t n_dims, uint64_t s0, uint64_t s1, uint64_t s2) {
    float *x = new_f32(b, &b->want, n_dims, s0, s1, s2, 1),
          *y = new_f32(b, &b->got, n_dims, s0, s1, s2, 1);

    for (uint64_t i = 0; i < b->want.n_bytes / sizeof(float); i++)
        x[i] = y[i] = NAN;
}

/* Runs both; the difference may be `bound` times (scale + |want|). Frees everything. */
static void compare(struct bench *b, const char *op, double bound, double scale) {
    struct error err = {0};
    const float *want = b->want.data, *got = b->got.data;

    if (backend_ref.op(b->ref, op, b->in, b->n_in, &b->want, 1, &err) != ST_OK)
        fail_msg("ref %s: %s", op, err.message);
    if (backend_cpu.op(b->cpu, op, b->in, b->n_in, &b->got, 1, &err) != ST_OK)
        fail_msg("%s %s: %s", b->path, op, err.message);
    for (uint64_t i = 0; i < b->want.n_bytes / sizeof(float); i++) {
        if (!(fabs((double)got[i] - want[i]) <= bound * (scale + fabs((double)want[i]))))
            fail_msg("%s %s (%u, %u, %u): element %u is %g, reference %g", b->path, op,
                     (unsigned)b->in[0].shape[0], (unsigned)b->in[0].shape[1],
                     (unsigned)b->in[1].shape[0], (unsigned)i, (double)got[i], (double)want[i]);
    }
    for (uint32_t i = 0; i < b->n_in; i++)
        mem_free(b->in[i].data);
    mem_free(b->want.data);
    mem_free(b->got.data);
}

static void diff_rmsnorm(struct bench *b, uint32_t T, uint32_t d) {
    b->n_in = 3;
    new_f32(b, &b->in[0], 2, T, d, 0, 3);
    new_f32(b, &b->in[1], 1, d, 0, 0, 1);
    *new_f32(b, &b->in[2], 1, 1, 0, 0, 1) = 1e-5f;
    make_outputs(b, 2, T, d, 0);
    compare(b, "rmsnorm", b->is_bf16 ? 0x1.04p-8 : 3e-6, 0.01);
}

static void diff_linear(struct bench *b, uint32_t T, uint32_t n, uint32_t k, enum dtype dtype) {
    b->n_in = 2 + T % 2;
    new_f32(b, &b->in[0], 2, T, k, 0, 1);
    round_input(b, &b->in[0]);
    new_f32(b, &b->in[1], 2, n, k, 0, 1 / sqrtf((float)k));
    if (dtype == DTYPE_F16) ((float *)b->in[1].data)[0] = 3e-6f; /* a subnormal */
    narrow(&b->in[1], dtype);
    if (b->n_in == 3) new_f32(b, &b->in[2], 1, n, 0, 0, 1);
    make_outputs(b, 2, T, n, 0);
    compare(b, "linear", 3e-6, 1.5);
}

static void diff_linear_quant(struct bench *b, uint32_t T, uint32_t n, uint32_t k,
                              const struct quant_kind *kind) {
    /* Inputs in int16 are off by 2^-15 of the largest of their block, here in all directions. */
    double bound = kind->inputs == QUANT_INPUTS_I8 ? 1e-7
                   : kind->dtype == DTYPE_F8E4M3   ? 3e-6
                                                   : 1e-4;
    struct quant_matrix m;

    b->n_in = 2;
    new_f32(b, &b->in[0], 2, T, k, 0, 1);
    round_input(b, &b->in[0]);
    quant_matrix_fill(&m, kind, n, k, &b->rng);
    b->in[1] = m.tensor;
    make_outputs(b, 2, T, n, 0);
    compare(b, "linear", bound, 1.5);
    m.tensor.data = NULL;
    quant_matrix_free(&m);
}

static void diff_rope(struct bench *b, uint32_t T, uint32_t heads, uint32_t hd) {
    int32_t *position;
    float *freq;

    b->n_in = 4;
    new_f32(b, &b->in[0], 3, T, heads, hd, 1);
    position = new_i32(&b->in[1], T);
    for (uint32_t i = 0; i < T; i++)
        position[i] = (int32_t)rng_below(&b->rng, 5000);
    freq = new_f32(b, &b->in[2], 1, hd / 2, 0, 0, 1);
    for (uint32_t i = 0; i < hd / 2; i++)
        freq[i] = powf(10000, -2.0f * (float)i / (float)hd);
    *new_f32(b, &b->in[3], 1, 1, 0, 0, 1) = 1.1f;
    make_outputs(b, 3, T, heads, hd);
    compare(b, "rope", 1e-6, 1);
}

static void diff_swiglu(struct bench *b, uint32_t T, uint32_t n) {
    b->n_in = 2;
    new_f32(b, &b->in[0], 2, T, n, 0, 8);
    new_f32(b, &b->in[1], 2, T, n, 0, 1);
    ((float *)b->in[0].data)[0] = -100; /* both ends of the exponential */
    ((float *)b->in[0].data)[1] = 100;
    make_outputs(b, 2, T, n, 0);
    compare(b, "swiglu", b->is_bf16 ? 0x1.04p-8 : 2e-6, 1e-3);
}

/* A pool of random vectors of all sizes; scales of the quantised types as their rules make them. */
static void new_pool(struct bench *b, struct backend_tensor *t, uint32_t n_blocks,
                     uint32_t kv_heads, uint32_t block_size, uint32_t hd, enum dtype dtype) {
    uint64_t per_block = 2ull * kv_heads * block_size, n = n_blocks * per_block;
    float *x = new_f32(b, t, 1, n * hd, 0, 0, 1);

    if (!kv_is_quantised(dtype)) {
        narrow(t, dtype);
    } else {
        struct geometry g = {
            .n_layers = 1, .n_kv_heads = kv_heads, .head_dim = hd, .kv_dtype = dtype};
        uint64_t block_bytes = kv_layout_block_bytes(&g, block_size);
        uint8_t *pool = mem_calloc(n_blocks, block_bytes);

        for (uint64_t v = 0; v < n; v++) {
            uint32_t which = v / block_size / kv_heads % 2, head = v / block_size % kv_heads;
            uint8_t *block = pool + v / per_block * block_bytes;

            kv_quantise(dtype, x + v * hd, hd,
                        block + kv_tile_at(&g, block_size, 0, which, head) + v % block_size * hd,
                        block + kv_scales_at(&g, block_size, 0, which, head) + v % block_size);
        }
        mem_free(x);
        t->data = pool;
        t->dtype = dtype;
        t->n_bytes = n_blocks * block_bytes;
    }
    t->n_dims = 4;
    t->shape[0] = n_blocks, t->shape[1] = kv_heads, t->shape[2] = block_size, t->shape[3] = hd;
}

/* T queries that end a context, blocks in random order; `sharp` scales q. */
static void diff_attention(struct bench *b, uint32_t T, uint32_t context, uint32_t heads,
                           uint32_t kv_heads, uint32_t hd, uint32_t block_size, uint32_t window,
                           enum dtype dtype, float sharp) {
    uint32_t n_table = CEIL_DIV(context, block_size), n_blocks = n_table + 3;
    int32_t *table, *position;

    b->n_in = 5;
    new_f32(b, &b->in[0], 3, T, heads, hd, sharp);
    round_input(b, &b->in[0]);
    new_pool(b, &b->in[1], n_blocks, kv_heads, block_size, hd, dtype);
    table = new_i32(&b->in[2], n_table);
    for (uint32_t i = 0; i < n_table; i++)
        table[i] = (int32_t)(n_blocks - 1 - i);
    for (uint32_t i = n_table; i > 1; i--) {
        uint64_t j = rng_below(&b->rng, i);
        int32_t swap = table[j];

        table[j] = table[i - 1];
        table[i - 1] = swap;
    }
    position = new_i32(&b->in[3], T);
    for (uint32_t i = 0; i < T; i++)
        position[i] = (int32_t)(context - T + i);
    *new_i32(&b->in[4], 1) = (int32_t)window;
    make_outputs(b, 3, T, heads, hd);
    compare(b, "attention", b->is_bf16 ? 0x1p-7 : sharp > 1 ? 5e-5 : 1e-5, 0.5);
}

static void run_all(struct bench *b) {
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 13, 50};
    static const uint32_t contexts[] = {1, 15, 63, 64, 65, 200, 333};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        diff_rmsnorm(b, rows[i], 1 + (uint32_t)rng_below(&b->rng, 300));
        diff_linear(b, rows[i], 64, 128, DTYPE_BF16);
        diff_linear(b, rows[i], 1 + (uint32_t)rng_below(&b->rng, 200),
                    1 + (uint32_t)rng_below(&b->rng, 300), DTYPE_F32);
        diff_linear(b, rows[i], 1 + (uint32_t)rng_below(&b->rng, 200),
                    1 + (uint32_t)rng_below(&b->rng, 300), DTYPE_F16);
        diff_rope(b, rows[i], 3, 32);
        diff_swiglu(b, rows[i], 2 + (uint32_t)rng_below(&b->rng, 200));
        for (size_t kind = 0; kind < QUANT_KINDS; kind++)
            diff_linear_quant(b, rows[i], 1 + (uint32_t)rng_below(&b->rng, 200),
                              1 + (uint32_t)rng_below(&b->rng, 300), &quant_kinds[kind]);
    }
    diff_linear(b, 9, 70, 2100, DTYPE_BF16); /* more than one block of K */
    diff_linear(b, 30, 70, 500, DTYPE_F16);
    diff_linear(b, 30, 70, 500, DTYPE_F32);
    for (size_t i = 0; i < ARRAY_LEN(contexts); i++) {
        uint32_t c = contexts[i];

        diff_attention(b, 1, c, 4, 2, 64, 16, 0, DTYPE_BF16, 1);
        diff_attention(b, MIN(c, 40u), c, 6, 1, 16, 1, 0, DTYPE_F32, 1);
        diff_attention(b, MIN(c, 60u), c, 2, 2, 80, 128, 0, DTYPE_BF16, 1);
        diff_attention(b, c, c, 4, 2, 128, 5, 30, DTYPE_BF16, 1);
        diff_attention(b, c, c, 2, 1, 32, 64, 100, DTYPE_F32, 10);
        diff_attention(b, c, c, 2, 1, 64, 16, 0, DTYPE_BF16, 10);
        diff_attention(b, 1, c, 4, 1, 128, 16, 0, DTYPE_F8E4M3, 1);
        diff_attention(b, c, c, 6, 1, 64, 5, 30, DTYPE_F8E4M3, 10);
        diff_attention(b, MIN(c, 60u), c, 7, 1, 96, 16, 0, DTYPE_I8, 1);
        diff_attention(b, c, c, 16, 1, 64, 128, 100, DTYPE_I8, 10);
    }
}

/* One vector and many, parts of vectors, parts of panels, both ends. */
static void run_head_dims(struct bench *b) {
    static const uint32_t head_dims[] = {2,   4,   6,   8,   10,  12,  14,  18,  20,  24,
                                         40,  48,  72,  80,  96,  100, 112, 120, 128, 136,
                                         160, 192, 250, 256, 320, 384, 510, 512};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_F8E4M3, DTYPE_I8};

    for (size_t i = 0; i < ARRAY_LEN(head_dims); i++) {
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            diff_attention(b, 1, 70, 2, 1, head_dims[i], 16, 0, types[t], 1);
            diff_attention(b, 9, 130, 4, 2, head_dims[i], 5, t == 1 ? 20 : 0, types[t], 1);
        }
    }
}

static void every_operator_agrees_with_the_reference(void **state) {
    struct backend_info info;

    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend_config config = {.path = paths[p], .n_threads = 1};
        struct bench b = {.path = paths[p], .is_bf16 = p == 0};

        if (backend_cpu.probe(&config, &info, NULL) != ST_OK) continue;
        rng_seed(&b.rng, support_seed());
        assert_int_equal(backend_ref.open(&b.ref, &(struct backend_config){0}, NULL), ST_OK);
        assert_int_equal(backend_cpu.open(&b.cpu, &config, NULL), ST_OK);
        run_all(&b);
        run_head_dims(&b);
        backend_ref.close(b.ref);
        backend_cpu.close(b.cpu);
    }
}

static void wrong_operators_get_a_sentence(void **state) {
    float x[4] = {1, 2, 3, 4}, y[4];
    struct backend_tensor in[2] = {
        {.dtype = DTYPE_F32, .n_dims = 2, .shape = {2, 2}, .data = x, .n_bytes = 16},
        {.dtype = DTYPE_F32, .n_dims = 2, .shape = {1, 2}, .data = x, .n_bytes = 8}};
    struct backend_tensor out = {
        .dtype = DTYPE_F32, .n_dims = 2, .shape = {2, 2}, .data = y, .n_bytes = 16};
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_ref.op(NULL, "conv", in, 2, &out, 1, &err), ST_UNSUPPORTED);
    assert_string_equal(err.message, "no operator conv: see kernels/README.md");
    assert_int_equal(backend_ref.op(NULL, "swiglu", in, 2, &out, 1, &err), ST_INVALID);
    assert_int_equal(backend_ref.op(NULL, "swiglu", in, 1, &out, 1, &err), ST_INVALID);
    in[1].dtype = DTYPE_I32;
    assert_int_equal(backend_ref.op(NULL, "swiglu", in, 2, &out, 1, &err), ST_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_agrees_with_the_reference),
        cmocka_unit_test(wrong_operators_get_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
