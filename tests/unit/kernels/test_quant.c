/* tests/unit/kernels/test_quant.c - quantised matrices: what is refused, the reference's product
 * beside float64, and what ranks take of them. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/host/host.h"
#include "kernels/ref/ops.h"
#include "tests/support/cm.h"
#include "tests/support/quant_matrix.h"
#include "tests/support/support.h"

static float *random_inputs(uint64_t n, struct rng *rng) {
    float *x = mem_calloc(n, sizeof(*x));

    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)rng_below(rng, 4001) / 1000 - 2;
    return x;
}

/* Sum and sum of magnitudes of output n, the inputs in int8 where the matrix has them so. */
static void dot(const struct backend_tensor *t, const float *x, uint64_t n, double *sum,
                double *size) {
    float max = 0, scale;

    for (uint64_t i = 0; i < t->shape[1]; i++)
        max = fmaxf(max, fabsf(x[i]));
    scale = max > 0 ? max / 127 : 1;
    *sum = *size = 0;
    for (uint64_t i = 0; i < t->shape[1]; i++) {
        double w = quant_matrix_weight(t, n, i), in = (double)x[i];

        if (t->quant->inputs == QUANT_INPUTS_I8) in = (double)(rintf(x[i] / scale) * scale);
        *sum += in * w;
        *size += fabs(in * w);
    }
}

static void run_linear(const struct backend_tensor *w, const float *x, float *y, uint64_t n_tokens,
                       struct backend_device *dev) {
    struct backend_tensor in[2] = {{.dtype = DTYPE_F32,
                                    .n_dims = 2,
                                    .shape = {n_tokens, w->shape[1]},
                                    .data = (void *)(uintptr_t)x,
                                    .n_bytes = n_tokens * w->shape[1] * 4},
                                   *w};
    struct backend_tensor out = {.dtype = DTYPE_F32,
                                 .n_dims = 2,
                                 .shape = {n_tokens, w->shape[0]},
                                 .data = y,
                                 .n_bytes = n_tokens * w->shape[0] * 4};
    struct error err = {0};

    assert_int_equal(backend_ref.op(dev, "linear", in, 2, &out, 1, &err), ST_OK);
}

static void the_reference_multiplies_as_float64_does(void **state) {
    static const uint32_t ns[] = {1, 17, 130, 64}, ks[] = {129, 64, 300, 256};
    struct backend_device *dev;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, NULL), ST_OK);
    for (uint32_t i = 0; i < QUANT_KINDS * ARRAY_LEN(ns); i++) {
        uint32_t n = ns[i / QUANT_KINDS], k = ks[i / QUANT_KINDS];
        struct quant_matrix m;
        float *x, *y = mem_calloc(2ull * n, sizeof(*y));

        quant_matrix_fill(&m, &quant_kinds[i % QUANT_KINDS], n, k, &rng);
        x = random_inputs(2ull * k, &rng);
        run_linear(&m.tensor, x, y, 2, dev);
        for (uint32_t j = 0; j < 2 * n; j++) {
            double sum, size;

            dot(&m.tensor, x + j / n * k, j % n, &sum, &size);
            assert_true(fabs((double)y[j] - sum) <= 1e-6 * size);
        }
        mem_free(x);
        mem_free(y);
        quant_matrix_free(&m);
    }
    backend_ref.close(dev);
}

/* Columns in an order of their own, and inputs put into that order: one sum. */
static void an_order_is_a_permutation_of_the_inputs(void **state) {
    struct backend_device *dev;
    struct quant_matrix m;
    struct rng rng;
    float *x, turned[256], y[2][70];

    (void)state;
    rng_seed(&rng, support_seed());
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, NULL), ST_OK);
    quant_matrix_fill(&m, &quant_kinds[11], 70, 256, &rng);
    x = random_inputs(256, &rng);
    for (uint32_t i = 0; i < 256; i++)
        turned[i] = x[m.quant.order[i]];
    run_linear(&m.tensor, x, y[0], 1, dev);
    mem_free((void *)(uintptr_t)m.quant.order);
    m.quant.order = NULL;
    run_linear(&m.tensor, turned, y[1], 1, dev);
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    mem_free(x);
    quant_matrix_free(&m);
    backend_ref.close(dev);
}

/* Three matrices of one scale each, and the three as one with a scale for each row. */
static void fused_matrices_keep_their_own_scales(void **state) {
    static const struct quant_kind kind = {DTYPE_F8E4M3, 1, 0, false, false, QUANT_INPUTS_PLAIN};
    struct backend_device *dev;
    struct quant_matrix m;
    struct rng rng;
    float *x, y[48], part[16], *scale;

    (void)state;
    rng_seed(&rng, support_seed());
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, NULL), ST_OK);
    quant_matrix_fill(&m, &kind, 48, 200, &rng);
    scale = (float *)(uintptr_t)m.quant.scale;
    for (uint32_t i = 0; i < 48; i++)
        scale[i] = scale[i / 16 * 16];
    x = random_inputs(200, &rng);
    run_linear(&m.tensor, x, y, 1, dev);
    for (uint32_t i = 0; i < 3; i++) {
        struct backend_quant q = m.quant;
        struct backend_tensor t = m.tensor;

        q.group_n = 16, q.scale = &scale[i * 16];
        t.quant = &q, t.shape[0] = 16, t.n_bytes = 16 * 200;
        t.data = (uint8_t *)m.tensor.data + i * 16 * 200;
        run_linear(&t, x, part, 1, dev);
        assert_memory_equal(part, y + i * 16, sizeof(part));
    }
    mem_free(x);
    quant_matrix_free(&m);
    backend_ref.close(dev);
}

static void inputs_that_are_not_finite_or_all_zero(void **state) {
    struct quant_matrix m;
    struct backend_device *dev;
    struct rng rng;
    float x[64] = {0}, y[3];

    (void)state;
    rng_seed(&rng, 1);
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, NULL), ST_OK);
    for (int i = 0; i < QUANT_KINDS; i++) {
        quant_matrix_fill(&m, &quant_kinds[i], 3, 64, &rng);
        memset(m.tensor.data, 1, m.tensor.n_bytes); /* no code that makes 0 of infinity */
        x[5] = 0;
        run_linear(&m.tensor, x, y, 1, dev);
        assert_true(y[0] == 0 && y[2] == 0);
        x[5] = 0x1p-149f;
        run_linear(&m.tensor, x, y, 1, dev);
        assert_true(isfinite(y[0]));
        x[5] = INFINITY;
        run_linear(&m.tensor, x, y, 1, dev);
        if (!m.quant.zero) assert_false(isfinite(y[0]));
        quant_matrix_free(&m);
    }
    backend_ref.close(dev);
}

static void wrong_matrices_are_refused_with_a_sentence(void **state) {
    struct quant_matrix m;
    struct backend_quant good;
    struct error err;
    float bad_scale[64];
    int16_t bad_zero[64] = {0};
    uint32_t bad_order[64] = {0};
    struct rng rng;
    struct backend_tensor t;

    (void)state;
    rng_seed(&rng, 1);
    quant_matrix_fill(&m, &quant_kinds[9], 8, 64, &rng);
    memcpy(bad_scale, m.quant.scale, 16 * sizeof(float));
    good = m.quant;
    assert_int_equal(quant_check(&m.tensor, "w", &err), ST_OK);
#define REFUSED(change, sentence)                                                                  \
    do {                                                                                           \
        m.quant = good, t = m.tensor;                                                              \
        change;                                                                                    \
        assert_int_equal(quant_check(&t, "w", &err), ST_INVALID);                                  \
        assert_string_equal(err.message, "quantised matrix w: " sentence);                         \
    } while (0)
    REFUSED(t.n_bytes--, "255 bytes for 8 x 64 codes of u4");
    REFUSED(t.dtype = DTYPE_F32, "it is no matrix of f8e4m3, i8 or u4");
    REFUSED(t.n_dims = 1, "it is no matrix of f8e4m3, i8 or u4");
    REFUSED(t.quant = NULL, "it has no scales");
    REFUSED(m.quant.scale = NULL, "it has no scales");
    REFUSED(m.quant.group_k = 0, "a group has no elements");
    REFUSED(m.quant.inputs = QUANT_INPUTS_I8,
            "inputs in int8 are for int8 codes without zeros and order");
    REFUSED(m.quant.inputs = QUANT_INPUTS_F8, "inputs in e4m3 are for codes in e4m3");
    REFUSED((m.quant.inputs = QUANT_INPUTS_F8_STATIC, m.quant.input_scale = 0),
            "input_scale is not positive and finite");
    bad_zero[3] = 16;
    REFUSED(m.quant.zero = bad_zero, "zero 3 is 16: u4 has codes of 0 to 15");
    REFUSED(m.quant.order = bad_order, "its order is not a permutation of inputs");
    bad_order[1] = 64;
    REFUSED(m.quant.order = bad_order, "its order is not a permutation of inputs");
    bad_scale[15] = INFINITY;
    REFUSED(m.quant.scale = bad_scale, "scale 15 is inf: scales are finite and not 0");
    bad_scale[15] = 0;
    REFUSED(m.quant.scale = bad_scale, "scale 15 is 0: scales are finite and not 0");
    bad_scale[15] = NAN;
    m.quant.scale = bad_scale;
    assert_int_equal(quant_check(&m.tensor, "w", &err), ST_INVALID);
    m.quant = good;
    quant_matrix_free(&m);
}

/* --- ranks */

static const struct geometry whole = {.n_layers = 1,
                                      .d_model = 192,
                                      .n_heads = 8,
                                      .n_kv_heads = 4,
                                      .head_dim = 24,
                                      .d_ff = 256,
                                      .vocab = 1000,
                                      .quant_types = QUANT_ALL_TYPES};

static struct host_model rank_of(uint32_t rank, uint32_t size) {
    struct host_model h = {.g = whole, .whole = whole};

    assert_int_equal(tp_shard_init(&h.shard, &whole, rank, size, NULL), ST_OK);
    return h;
}

static void check_parts(enum tensor_role role, const struct quant_kind *kind, uint32_t size,
                        struct rng *rng) {
    struct host_shape shape = host_role_shape(&whole, role);
    struct quant_matrix m;
    struct backend_tensor part;
    void *scratch;
    struct error err;

    quant_matrix_fill(&m, kind, (uint32_t)shape.dim[0], (uint32_t)shape.dim[1], rng);
    m.tensor.role = role;
    for (uint32_t rank = 0; rank < size; rank++) {
        struct host_model h = rank_of(rank, size);
        struct tp_slice s = tp_shard_slice(&h.shard, &m.tensor);

        assert_int_equal(host_rank_part(&h, &m.tensor, &part, &scratch, &err), ST_OK);
        assert_int_equal(quant_check(&part, "part", &err), ST_OK);
        assert_int_equal(part.quant->inputs, kind->inputs);
        for (uint64_t n = 0; n < s.n; n += 5) {
            for (uint64_t k = 0; k < s.n_columns; k += 3)
                assert_true(quant_matrix_weight(&part, n, k) ==
                            quant_matrix_weight(&m.tensor, s.first + n, s.first_column + k));
        }
        mem_free(scratch);
    }
    quant_matrix_free(&m);
}

static void the_ranks_parts_have_the_weights_of_the_matrix(void **state) {
    static const enum tensor_role roles[] = {ROLE_Q,    ROLE_V,    ROLE_O,
                                             ROLE_GATE, ROLE_DOWN, ROLE_LM_HEAD};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t i = 0; i < ARRAY_LEN(roles) * QUANT_KINDS; i++) {
        enum tensor_role role = roles[i / QUANT_KINDS];
        struct quant_kind kind = quant_kinds[i % QUANT_KINDS];
        bool is_cut_by_inputs = role == ROLE_O || role == ROLE_DOWN;

        if (is_cut_by_inputs && kind.has_order) continue;
        if (role == ROLE_O && kind.group_k > 32) kind.group_k = 48; /* two heads of 24 */
        if (role == ROLE_O && kind.group_k == 32) kind.group_k = 16;
        check_parts(role, &kind, 1, &rng);
        check_parts(role, &kind, 2, &rng);
        if (role != ROLE_DOWN || kind.group_k < 128) check_parts(role, &kind, 4, &rng);
    }
}

static void refused_cut(enum tensor_role role, const struct quant_kind *kind, uint32_t size,
                        const char *sentence) {
    struct host_shape shape = host_role_shape(&whole, role);
    struct host_model h = rank_of(0, size);
    struct quant_matrix m;
    struct backend_tensor part;
    void *scratch;
    struct error err;
    struct rng rng;

    rng_seed(&rng, 1);
    quant_matrix_fill(&m, kind, (uint32_t)shape.dim[0], (uint32_t)shape.dim[1], &rng);
    m.tensor.role = role;
    assert_int_equal(host_rank_part(&h, &m.tensor, &part, &scratch, &err), ST_UNSUPPORTED);
    assert_string_equal(err.message, sentence);
    quant_matrix_free(&m);
}

static void a_cut_through_a_group_or_an_order_is_refused(void **state) {
    (void)state;
    refused_cut(ROLE_O, &quant_kinds[8], 2,
                "weight o, layer 0 has groups of 128 inputs, and a rank's part begins or ends at "
                "input 96, inside a group: choose a smaller --tensor-parallel-size");
    refused_cut(ROLE_DOWN, &quant_kinds[2], 4,
                "weight down, layer 0 has groups of 128 inputs, and a rank's part begins or ends "
                "at input 64, inside a group: choose a smaller --tensor-parallel-size");
    refused_cut(ROLE_DOWN, &quant_kinds[11], 2,
                "weight down, layer 0 has its inputs in an order of its own (desc_act), which "
                "ranks cannot divide: use --tensor-parallel-size 1");
}

/* The sum goes on from rank to rank: cut between groups, its bits are those of one rank. */
static void products_of_parts_add_up_to_the_bit(void **state) {
    static const struct quant_kind kind = {DTYPE_U4, 1, 32, true, false, QUANT_INPUTS_PLAIN};
    struct host_shape shape = host_role_shape(&whole, ROLE_DOWN);
    uint32_t n = (uint32_t)shape.dim[0], k = (uint32_t)shape.dim[1];
    float *one = mem_calloc(n, sizeof(*one)), *sum = mem_calloc(n, sizeof(*sum)), *x;
    struct quant_matrix m;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    quant_matrix_fill(&m, &kind, n, k, &rng);
    x = random_inputs(k, &rng);
    m.tensor.role = ROLE_DOWN;
    ref_linear(one, x, &(struct ref_matrix){m.tensor.data, DTYPE_U4, n, k, &m.quant}, NULL, 1);
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct host_model h = rank_of(rank, 4);
        struct backend_tensor part;
        void *scratch;

        assert_int_equal(host_rank_part(&h, &m.tensor, &part, &scratch, NULL), ST_OK);
        ref_linear_on(sum, x + (size_t)rank * 64,
                      &(struct ref_matrix){part.data, DTYPE_U4, n, 64, part.quant}, 1);
        mem_free(scratch);
    }
    assert_memory_equal(one, sum, n * sizeof(*one));
    mem_free(one);
    mem_free(sum);
    mem_free(x);
    quant_matrix_free(&m);
}

static void tensors_are_checked_as_they_arrive(void **state) {
    struct geometry g = whole;
    float inv_freq[12] = {0};
    struct backend_limits limits = {.max_rows = 1,
                                    .max_step_tokens = 16,
                                    .max_blocks_per_row = 4,
                                    .max_outputs = 1,
                                    .n_slots = 1,
                                    .block_size = 16};
    struct backend_device *dev;
    struct backend_model *model;
    struct quant_matrix m;
    struct error err = {0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, 1);
    g.inv_freq = inv_freq, g.max_context = 64, g.rms_eps = 1e-5f, g.rope_scale = 1;
    g.weight_dtype = g.kv_dtype = DTYPE_F32;
    g.quant_types = QUANT_TYPE(DTYPE_U4);
    assert_int_equal(backend_ref.open(&dev, &(struct backend_config){0}, NULL), ST_OK);
    assert_int_equal(backend_ref.load_begin(dev, &model, &g, &limits, &err), ST_OK);
    quant_matrix_fill(&m, &quant_kinds[8], 192, 192, &rng);
    m.tensor.role = ROLE_Q;
    assert_int_equal(backend_ref.load_tensor(model, &m.tensor, &err), ST_OK);
    assert_int_equal(backend_ref.load_tensor(model, &m.tensor, &err), ST_EXISTS);
    m.tensor.role = ROLE_O, m.tensor.dtype = DTYPE_I8;
    assert_int_equal(backend_ref.load_tensor(model, &m.tensor, &err), ST_INVALID);
    m.tensor.n_bytes *= 2;
    assert_int_equal(backend_ref.load_tensor(model, &m.tensor, &err), ST_INVALID);
    assert_string_equal(err.message, "weight o, layer 0 is i8, which the geometry's quant_types "
                                     "does not announce");
    quant_matrix_free(&m);
    quant_matrix_fill(&m, &quant_kinds[8], 1000, 192, &rng);
    m.tensor.role = ROLE_EMBED;
    assert_int_equal(backend_ref.load_tensor(model, &m.tensor, &err), ST_UNSUPPORTED);
    assert_string_equal(err.message, "weight embedding, layer 0 is u4: f32, f16 and bf16 are read");
    quant_matrix_free(&m);
    backend_ref.unload(model);
    backend_ref.close(dev);
}

static void a_backend_without_the_type_refuses_the_model(void **state) {
    struct geometry g = {.quant_types = QUANT_TYPE(DTYPE_I8) | QUANT_TYPE(DTYPE_U4)};
    struct error err;

    (void)state;
    assert_int_equal(quant_check_types(&g, QUANT_ALL_TYPES, "x", &err), ST_OK);
    assert_int_equal(quant_check_types(&g, QUANT_TYPE(DTYPE_I8), "x", &err), ST_UNSUPPORTED);
    assert_string_equal(err.message,
                        "weights quantised to int4: the x backend has no product for them; use "
                        "the checkpoint that is not quantised, or another --backend");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_multiplies_as_float64_does),
        cmocka_unit_test(an_order_is_a_permutation_of_the_inputs),
        cmocka_unit_test(fused_matrices_keep_their_own_scales),
        cmocka_unit_test(inputs_that_are_not_finite_or_all_zero),
        cmocka_unit_test(wrong_matrices_are_refused_with_a_sentence),
        cmocka_unit_test(the_ranks_parts_have_the_weights_of_the_matrix),
        cmocka_unit_test(a_cut_through_a_group_or_an_order_is_refused),
        cmocka_unit_test(products_of_parts_add_up_to_the_bit),
        cmocka_unit_test(tensors_are_checked_as_they_arrive),
        cmocka_unit_test(a_backend_without_the_type_refuses_the_model),
    };

    return cmocka_run_group_tests_name("kernels/quant", tests, NULL, NULL);
}
