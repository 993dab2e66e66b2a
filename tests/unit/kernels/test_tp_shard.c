/* tests/unit/kernels/test_tp_shard.c - what the ranks take, put together, is the model: every
 * element of every tensor, over random geometries; and what does not divide is refused. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/dtype.h"
#include "kernels/host/host.h"
#include "kernels/tp/shard.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static struct geometry random_geometry(struct rng *rng, uint32_t size) {
    uint32_t kv = size > 1 && rng_below(rng, 3) == 0 ? size / 2 /* fewer than ranks */
                                                     : size * (1 + (uint32_t)rng_below(rng, 3));
    uint32_t heads = kv * (1 + (uint32_t)rng_below(rng, 4));

    heads = ALIGN_UP(heads, size);
    if (heads % kv) heads = kv * size;
    return (struct geometry){.n_layers = 1,
                             .d_model = 8 * (1 + (uint32_t)rng_below(rng, 8)),
                             .n_heads = heads,
                             .n_kv_heads = kv,
                             .head_dim = 4 * (1 + (uint32_t)rng_below(rng, 4)),
                             .d_ff = size * (1 + (uint32_t)rng_below(rng, 40)),
                             .vocab = 64 * size - (uint32_t)rng_below(rng, 64),
                             .has_qkv_bias = true,
                             .has_o_bias = true,
                             .has_qk_norm = true};
}

static struct backend_tensor random_tensor(struct rng *rng, const struct geometry *g,
                                           enum tensor_role role, enum dtype dtype) {
    struct host_shape shape = host_role_shape(g, role);
    struct backend_tensor t = {.role = role,
                               .dtype = dtype,
                               .n_dims = shape.n_dims,
                               .shape = {shape.dim[0], shape.n_dims > 1 ? shape.dim[1] : 0}};

    t.n_bytes = t.shape[0] * (t.n_dims > 1 ? t.shape[1] : 1) * dtype_bytes(dtype);
    t.data = mem_alloc(t.n_bytes);
    for (uint64_t i = 0; i < t.n_bytes; i++)
        ((uint8_t *)t.data)[i] = (uint8_t)rng_u64(rng);
    return t;
}

static bool is_divided(enum tensor_role role) {
    return role == ROLE_LM_HEAD || (role >= ROLE_Q && role <= ROLE_V_BIAS) || role >= ROLE_GATE;
}

/* Puts a rank's part where it was; counts how often each element came. */
static void put_back(const struct tp_slice *p, const struct backend_tensor *part,
                     const struct backend_tensor *whole, uint8_t *together, uint32_t *times) {
    uint64_t width = whole->n_dims > 1 ? whole->shape[1] : 1, size = dtype_bytes(whole->dtype);

    assert_int_equal(part->n_bytes, p->n * p->n_columns * size);
    for (uint64_t r = 0; r < p->n; r++) {
        for (uint64_t c = 0; c < p->n_columns; c++) {
            uint64_t at = (p->first + r) * width + p->first_column + c;

            assert_true(at * size < whole->n_bytes);
            memcpy(together + at * size, (char *)part->data + (r * p->n_columns + c) * size, size);
            times[at]++;
        }
    }
}

static void check_role(struct rng *rng, const struct geometry *g, uint32_t size,
                       enum tensor_role role) {
    struct backend_tensor whole =
        random_tensor(rng, g, role, rng_below(rng, 2) ? DTYPE_F32 : DTYPE_BF16);
    uint64_t n = whole.n_bytes / dtype_bytes(whole.dtype);
    uint32_t *times = mem_calloc(n, sizeof(*times)), wanted = is_divided(role) ? 1 : size;
    uint8_t *together = mem_zalloc(whole.n_bytes), *scratch;

    for (uint32_t rank = 0; rank < size; rank++) {
        struct tp_shard s;
        struct geometry own;
        struct tp_slice p;
        struct backend_tensor part;
        struct host_shape shape;

        assert_int_equal(tp_shard_init(&s, g, rank, size, NULL), ST_OK);
        own = tp_shard_geometry(&s, g);
        p = tp_shard_slice(&s, &whole);
        scratch = mem_alloc(tp_slice_take(&p, &whole, NULL).n_bytes);
        part = tp_slice_take(&p, &whole, scratch);
        put_back(&p, &part, &whole, together, times);
        shape = host_role_shape(&own, role); /* but the head, whose geometry stays whole */
        if (role != ROLE_LM_HEAD) assert_int_equal(part.shape[0], shape.dim[0]);
        if (part.n_dims > 1) assert_int_equal(part.shape[1], shape.dim[1]);
        mem_free(scratch);
        if (role >= ROLE_K && role <= ROLE_V) wanted = s.kv_copies;
        if (role == ROLE_K_BIAS || role == ROLE_V_BIAS) wanted = s.kv_copies;
    }
    assert_memory_equal(together, whole.data, whole.n_bytes);
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(times[i], wanted);
    mem_free(times);
    mem_free(together);
    mem_free(whole.data);
}

static void the_ranks_parts_are_the_model(void **state) {
    static const uint32_t sizes[] = {1, 2, 4, 8};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 40; round++) {
        uint32_t size = sizes[round % 4];
        struct geometry g = random_geometry(&rng, size);

        for (uint32_t role = 0; role < ROLE_COUNT; role++)
            check_role(&rng, &g, size, (enum tensor_role)role);
    }
}

/* A query head finds its KV head on its own rank, at the index the rank's own geometry gives. */
static void query_heads_are_where_their_kv_heads_are(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 200; round++) {
        uint32_t size = 1u << rng_below(&rng, 4);
        struct geometry g = random_geometry(&rng, size);

        for (uint32_t rank = 0; rank < size; rank++) {
            struct tp_shard s;

            assert_int_equal(tp_shard_init(&s, &g, rank, size, NULL), ST_OK);
            assert_int_equal(s.n_heads % s.n_kv_heads, 0);
            for (uint32_t h = 0; h < s.n_heads; h++)
                assert_int_equal((s.first_head + h) / (g.n_heads / g.n_kv_heads),
                                 s.first_kv_head + h / (s.n_heads / s.n_kv_heads));
        }
    }
}

static void indivisible_shapes_are_refused_with_their_numbers(void **state) {
    const struct geometry good = {
        .n_heads = 12, .n_kv_heads = 4, .head_dim = 8, .d_ff = 64, .vocab = 1000};
    struct {
        uint32_t size, n_heads, n_kv_heads, d_ff, vocab;
        const char *message;
        uint32_t o_group, down_group;
    } cases[] = {
        {8, 12, 4, 64, 1000, "12 attention heads do not divide over 8 ranks"},
        {3, 12, 4, 66, 1000, "4 KV heads and 3 ranks"},
        {4, 12, 4, 66, 1000, "66 inner features"},
        {4, 12, 4, 64, 190, "vocabulary of 190 in 4 pieces of 64"},
        {6, 12, 4, 60, 1000, "4 KV heads and 6 ranks"},
        {4, 12, 4, 64, 1000, "down matrices have groups of 32 inputs, and each of 4 ranks takes 16",
         24, 32},
        {2, 12, 4, 64, 1000, "quantised o matrices have groups of 32 inputs", 32, 32},
        {2, 12, 4, 64, 1000, "down matrices have their inputs in an order", 48, 64},
    };
    struct tp_shard s;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct geometry g = good;
        struct error err;

        g.n_heads = cases[i].n_heads, g.n_kv_heads = cases[i].n_kv_heads;
        g.d_ff = cases[i].d_ff, g.vocab = cases[i].vocab;
        g.o_group = cases[i].o_group, g.down_group = cases[i].down_group;
        assert_int_equal(tp_shard_init(&s, &g, 0, cases[i].size, &err), ST_UNSUPPORTED);
        assert_non_null(strstr(err.message, cases[i].message));
    }
    assert_int_equal(tp_shard_init(&s,
                                   &(struct geometry){.n_heads = 12,
                                                      .n_kv_heads = 4,
                                                      .head_dim = 8,
                                                      .d_ff = 64,
                                                      .vocab = 1000,
                                                      .o_group = 24,
                                                      .down_group = 16},
                                   3, 4, NULL),
                     ST_OK);
    assert_int_equal(tp_shard_init(&s, &good, 4, 4, NULL), ST_INVALID);
    assert_int_equal(tp_shard_init(&s, &good, 0, 0, NULL), ST_OK);
    assert_int_equal(s.size, 1);
    assert_int_equal(s.vocab, 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ranks_parts_are_the_model),
        cmocka_unit_test(query_heads_are_where_their_kv_heads_are),
        cmocka_unit_test(indivisible_shapes_are_refused_with_their_numbers),
    };

    return cmocka_run_group_tests_name("kernels/tp/shard", tests, NULL, NULL);
}
