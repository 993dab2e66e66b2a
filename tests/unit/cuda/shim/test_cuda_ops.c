/* tests/unit/cuda/shim/test_cuda_ops.c - every operator of kernels/README.md, the CUDA kernels
 * against ref.
 *
 * Activations are bf16 on the device: inputs are rounded beforehand, so that both begin with the
 * same numbers, and a result may differ by its own rounding. Outputs begin as NaN. */
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "tests/support/quant_matrix.h"
#include "tests/unit/cuda/shim/cuda_fixture.h"

struct diff {
    struct rng rng;
    struct backend_device *ref, *cuda;
    struct backend_tensor in[5], want, got;
    uint32_t n_in;
};

static float *new_f32(struct diff *b, struct backend_tensor *t, uint32_t n_dims, uint64_t s0,
                      uint64_t s1, uint64_t s2, float scale) {
    uint64_t n = s0 * (n_dims > 1 ? s1 : 1) * (n_dims > 2 ? s2 : 1);
    float *x = mem_calloc(n, sizeof(float));

    *t = (struct backend_tensor){.dtype = DTYPE_F32,
                                 .n_dims = n_dims,
                                 .shape = {s0, s1, s2},
                                 .data = x,
                                 .n_bytes = n * sizeof(float)};
    for (uint64_t i = 0; i < n; i++)
        x[i] = f32_of_bf16(bf16_of_f32(
            scale * (float)(rng_f64(&b->rng) + rng_f64(&b->rng) + rng_f64(&b->rng) - 1.5) * 2));
    return x;
}

static int32_t *new_i32(struct backend_tensor *t, uint64_t n) {
    int32_t *x = mem_calloc(n, sizeof(*x));

    *t = (struct backend_tensor){
        .dtype = DTYPE_I32, .n_dims = 1, .shape = {n}, .data = x, .n_bytes = n * sizeof(*x)};
    return x;
}

/* A pool, or weights, in bf16: the values are bf16 already. */
static void narrow(struct backend_tensor *t) {
    uint64_t n = t->n_bytes / sizeof(float);
    float *x = t->data;

    for (uint64_t i = 0; i < n; i++)
        dtype_put(DTYPE_BF16, x, i, x[i]); /* in place: it shrinks */
    t->dtype = DTYPE_BF16;
    t->n_bytes = n * 2;
}

static void make_outputs(struct diff *b, uint32_t n_dims, uint64_t s0, uint64_t s1, uint64_t s2) {
    float *x = new_f32(b, &b->want, n_dims, s0, s1, s2, 1),
          *y = new_f32(b, &b->got, n_dims, s0, s1, s2, 1);

    for (uint64_t i = 0; i < b->want.n_bytes / sizeof(float); i++)
        x[i] = y[i] = NAN;
}

static void free_all(struct diff *b) {
    for (uint32_t i = 0; i < b->n_in; i++)
        mem_free(b->in[i].data);
    mem_free(b->want.data);
    mem_free(b->got.data);
}

/* The difference may be `bound` times (scale + |want|). */
static void compare(struct diff *b, const char *op, double bound, double scale) {
    struct error err = {0};
    enum dtype t = b->want.dtype;

    if (backend_ref.op(b->ref, op, b->in, b->n_in, &b->want, 1, &err) != ST_OK)
        fail_msg("ref %s: %s", op, err.message);
    if (backend_cuda.op(b->cuda, op, b->in, b->n_in, &b->got, 1, &err) != ST_OK)
        fail_msg("cuda %s: %s", op, err.message);
    if (dtype_bytes(t) == 1) { /* a quantised pool */
        assert_memory_equal(b->got.data, b->want.data, b->want.n_bytes);
        free_all(b);
        return;
    }
    for (uint64_t i = 0; i < b->want.n_bytes / dtype_bytes(t); i++) {
        double want = (double)dtype_get(t, b->want.data, i),
               got = (double)dtype_get(t, b->got.data, i);

        if (!(fabs(got - want) <= bound * (scale + fabs(want))))
            fail_msg("%s (%u, %u): element %u is %g, reference %g", op, (unsigned)b->in[0].shape[0],
                     (unsigned)b->in[0].shape[1], (unsigned)i, got, want);
    }
    free_all(b);
}

static void diff_embed(struct diff *b, uint32_t T) {
    int32_t *id;

    b->n_in = 2;
    new_f32(b, &b->in[0], 2, 50, 72, 0, 1);
    id = new_i32(&b->in[1], T);
    for (uint32_t i = 0; i < T; i++)
        id[i] = (int32_t)rng_below(&b->rng, 50);
    make_outputs(b, 2, T, 72, 0);
    compare(b, "embed", 0, 0);
}

static void diff_rmsnorm(struct diff *b, uint32_t T, uint32_t d) {
    b->n_in = 3;
    new_f32(b, &b->in[0], 2, T, d, 0, 3);
    new_f32(b, &b->in[1], 1, d, 0, 0, 1);
    *new_f32(b, &b->in[2], 1, 1, 0, 0, 1) = 1e-5f;
    make_outputs(b, 2, T, d, 0);
    compare(b, "rmsnorm", 0x1.04p-8, 0.01);
}

static void diff_linear(struct diff *b, uint32_t T, uint32_t n, uint32_t k) {
    b->n_in = 2 + T % 2;
    new_f32(b, &b->in[0], 2, T, k, 0, 1);
    new_f32(b, &b->in[1], 2, n, k, 0, 1 / sqrtf((float)k));
    if (T % 3) narrow(&b->in[1]);
    if (b->n_in == 3) new_f32(b, &b->in[2], 1, n, 0, 0, 1);
    make_outputs(b, 2, T, n, 0);
    compare(b, "linear", 1e-5, 1.5);
}

/* In float32 inputs that are bf16 already; of int8 inputs sums are whole on both sides. */
static void diff_linear_quant(struct diff *b, uint32_t T, uint32_t n, uint32_t k,
                              const struct quant_kind *kind) {
    struct quant_matrix m;

    b->n_in = 2 + T % 2;
    new_f32(b, &b->in[0], 2, T, k, 0, 1);
    quant_matrix_fill(&m, kind, n, k, &b->rng);
    b->in[1] = m.tensor;
    m.tensor.data = NULL; /* freed with the inputs */
    if (b->n_in == 3) new_f32(b, &b->in[2], 1, n, 0, 0, 1);
    make_outputs(b, 2, T, n, 0);
    compare(b, "linear", kind->inputs == QUANT_INPUTS_I8 ? 1e-7 : 1e-5, 1.5);
    quant_matrix_free(&m);
}

static void diff_rope(struct diff *b, uint32_t T, uint32_t heads, uint32_t hd) {
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
    compare(b, "rope", 0x1.04p-8, 0.01);
}

/* Any code but NaN, and scales with which numbers are about as large as in bf16. */
static void fill_codes(struct diff *b, struct backend_tensor *t, const struct geometry *g) {
    uint64_t block_bytes = kv_layout_block_bytes(g, 16), tiles = kv_tiles_bytes(g, 16);
    uint8_t *p = t->data;

    for (uint64_t i = 0; i < t->n_bytes; i++) {
        p[i] = (uint8_t)rng_u64(&b->rng);
        if (i % block_bytes >= tiles)
            p[i] = (uint8_t)((t->dtype == DTYPE_I8 ? 119 : 117) + p[i] % 3);
        else if (t->dtype == DTYPE_I8 ? p[i] == 0x80 : (p[i] & 0x7F) == 0x7F)
            p[i] = 1;
    }
}

static void new_pool(struct diff *b, struct backend_tensor *t, enum dtype dtype, uint32_t n_blocks,
                     uint32_t kv_heads, uint32_t hd) {
    struct geometry g = {.n_layers = 1, .n_kv_heads = kv_heads, .head_dim = hd, .kv_dtype = dtype};

    if (dtype != DTYPE_BF16) {
        *t = (struct backend_tensor){.dtype = dtype,
                                     .n_dims = 4,
                                     .shape = {n_blocks, kv_heads, 16, hd},
                                     .n_bytes = n_blocks * kv_layout_block_bytes(&g, 16)};
        t->data = mem_alloc(t->n_bytes);
        fill_codes(b, t, &g);
        return;
    }
    new_f32(b, t, 1, 2ull * n_blocks * kv_heads * 16 * hd, 0, 0, 1);
    t->n_dims = 4;
    t->shape[0] = n_blocks, t->shape[1] = kv_heads, t->shape[2] = 16, t->shape[3] = hd;
    narrow(t);
}

/* Of quantised pools the same codes and scales, and no other byte. */
static void diff_kv_write(struct diff *b, enum dtype dtype, uint32_t T, uint32_t kv_heads,
                          uint32_t hd) {
    int32_t *slot;

    b->n_in = 3;
    new_f32(b, &b->in[0], 3, T, kv_heads, hd, 1);
    new_f32(b, &b->in[1], 3, T, kv_heads, hd, 1);
    slot = new_i32(&b->in[2], T);
    for (uint32_t i = 0; i < T; i++)
        slot[i] = i % 4 == 3 ? -1 : (int32_t)(5 * i % 48);
    new_pool(b, &b->want, dtype, 3, kv_heads, hd);
    new_pool(b, &b->got, dtype, 3, kv_heads, hd);
    memcpy(b->got.data, b->want.data, b->want.n_bytes);
    compare(b, "kv_write", 0, 0);
}

/* T queries that end a context, blocks in reverse; every other case their positions do not follow
 * each other. */
static void diff_attention(struct diff *b, enum dtype dtype, uint32_t T, uint32_t context,
                           uint32_t heads, uint32_t kv_heads, uint32_t hd, uint32_t window) {
    uint32_t n_table = CEIL_DIV(context, 16u), n_blocks = n_table + 3;
    int32_t *table, *position;

    b->n_in = 5;
    new_f32(b, &b->in[0], 3, T, heads, hd, 1);
    new_pool(b, &b->in[1], dtype, n_blocks, kv_heads, hd);
    table = new_i32(&b->in[2], n_table);
    for (uint32_t i = 0; i < n_table; i++)
        table[i] = (int32_t)(n_blocks - 1 - i);
    position = new_i32(&b->in[3], T);
    for (uint32_t i = 0; i < T; i++)
        position[i] = (int32_t)(context - 1 - (context % 2 ? T - 1 - i : i));
    *new_i32(&b->in[4], 1) = (int32_t)window;
    make_outputs(b, 3, T, heads, hd);
    compare(b, "attention", 0x1p-6, 0.5);
}

static void diff_swiglu(struct diff *b, uint32_t T, uint32_t n) {
    b->n_in = 2;
    new_f32(b, &b->in[0], 2, T, n, 0, 8);
    new_f32(b, &b->in[1], 2, T, n, 0, 1);
    ((float *)b->in[0].data)[0] = -100; /* both ends of the exponential */
    ((float *)b->in[0].data)[1] = 100;
    make_outputs(b, 2, T, n, 0);
    compare(b, "swiglu", 0x1.04p-8, 1e-3);
}

static void open_both(struct diff *b) {
    rng_seed(&b->rng, support_seed());
    shim_set(support_seed(), SHIM_COPIES_LATE);
    assert_int_equal(backend_ref.open(&b->ref, &(struct backend_config){0}, NULL), ST_OK);
    assert_int_equal(backend_cuda.open(&b->cuda, &(struct backend_config){0}, NULL), ST_OK);
}

static void close_both(struct diff *b) {
    backend_ref.close(b->ref);
    backend_cuda.close(b->cuda);
}

static void every_operator_agrees_with_the_reference(void **state) {
    static const uint32_t rows[] = {1, 3, 5, 16, 17, 33};
    static const uint32_t contexts[] = {1, 16, 17, 63, 64, 200, 333};
    static const enum dtype pools[] = {DTYPE_BF16, DTYPE_F8E4M3, DTYPE_I8};
    struct diff b = {0};

    (void)state;
    open_both(&b);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        diff_embed(&b, rows[i]);
        diff_rmsnorm(&b, rows[i], 8 * (1 + (uint32_t)rng_below(&b.rng, 40)));
        diff_linear(&b, rows[i], 8 * (1 + (uint32_t)rng_below(&b.rng, 20)),
                    8 * (1 + (uint32_t)rng_below(&b.rng, 40)));
        diff_rope(&b, rows[i], 1 + (uint32_t)i, i % 2 ? 64 : 128);
        for (size_t p = 0; p < ARRAY_LEN(pools); p++)
            diff_kv_write(&b, pools[p], MIN(rows[i], 9u), 1 + i % 3, i % 2 ? 128 : 64);
        diff_swiglu(&b, rows[i], 8 * (1 + (uint32_t)rng_below(&b.rng, 20)));
    }
    for (size_t i = 0; i < ARRAY_LEN(contexts) * ARRAY_LEN(pools); i++) {
        uint32_t c = contexts[i / ARRAY_LEN(pools)];
        enum dtype pool = pools[i % ARRAY_LEN(pools)];

        diff_attention(&b, pool, 1, c, 4, 2, 64, 0);
        diff_attention(&b, pool, MIN(c, 20u), c, 4, 1, 128, 0);
        diff_attention(&b, pool, MIN(c, 40u), c, 2, 2, 64, 30);
    }
    close_both(&b);
}

/* Whatever the rule of a checkpoint for inputs of e4m3 codes: both take them as they are. */
static void quantised_products_agree_with_the_reference(void **state) {
    static const uint32_t rows[] = {1, 9, 17, 40};
    struct diff b = {0};

    (void)state;
    open_both(&b);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (size_t kind = 0; kind < QUANT_KINDS; kind++)
            diff_linear_quant(&b, rows[i], 8 * (1 + (uint32_t)rng_below(&b.rng, 20)),
                              8 * (1 + (uint32_t)rng_below(&b.rng, 40)), &quant_kinds[kind]);
    }
    close_both(&b);
}

static void unsupported_shapes_are_refused_with_a_sentence(void **state) {
    struct diff b = {0};
    struct error err = {0};

    (void)state;
    open_both(&b);
    b.n_in = 3;
    new_f32(&b, &b.in[0], 2, 2, 12, 0, 1);
    new_f32(&b, &b.in[1], 1, 12, 0, 0, 1);
    new_f32(&b, &b.in[2], 1, 1, 0, 0, 1);
    make_outputs(&b, 2, 2, 12, 0);
    assert_int_equal(backend_cuda.op(b.cuda, "rmsnorm", b.in, 3, &b.got, 1, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "12"));
    assert_int_equal(backend_cuda.op(b.cuda, "conv", b.in, 3, &b.got, 1, &err), ST_UNSUPPORTED);
    assert_int_equal(backend_cuda.op(b.cuda, "rmsnorm", b.in, 2, &b.got, 1, &err), ST_INVALID);
    free_all(&b);
    close_both(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_agrees_with_the_reference),
        cmocka_unit_test(quantised_products_agree_with_the_reference),
        cmocka_unit_test(unsupported_shapes_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
