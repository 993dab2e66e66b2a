/* tests/unit/cuda/shim/test_ops_rope.c - bias, norm of heads, rotation, and K and V into the paged
 * pool. */
#include "kernels/cuda/ops/ops.h"
#include "kernels/ref/ops.h"
#include "tests/support/kernel_fixture.h"

#define MAX_CONTEXT 300u
#define N_BLOCKS    24u
#define N_LAYERS    3u
#define LAYER       1u

struct rope_shape {
    uint32_t T, hd, n_heads, n_kv_heads;
    bool has_bias, has_norm;
    uint32_t spare; /* elements between the blocks of the pool, a multiple of 8 */
};

struct rope_case {
    struct kernel_fixture fixture;
    struct rope_args a;
};

static void run_rope(const void *args) {
    ops_rope(NULL, args);
}

static float *make_turn(struct kernel_fixture *k, const float *inv_freq, float scale, uint32_t hd) {
    float *turn = kernel_fixture_room(k, (size_t)MAX_CONTEXT * hd * sizeof(float));

    for (uint32_t p = 0; p < MAX_CONTEXT; p++) {
        for (uint32_t i = 0; i < hd / 2; i++) {
            float angle = (float)p * inv_freq[i];

            turn[(size_t)p * hd + 2 * i] = cosf(angle) * scale;
            turn[(size_t)p * hd + 2 * i + 1] = sinf(angle) * scale;
        }
    }
    return turn;
}

/* Slots of the pool in disorder, none twice, every sixth token nowhere. */
static void make_slots(struct kernel_fixture *k, int64_t *slot, uint32_t T) {
    int64_t all[N_BLOCKS * OPS_BLOCK_SIZE];

    for (uint32_t i = 0; i < ARRAY_LEN(all); i++) {
        uint32_t j = (uint32_t)rng_below(&k->rng, i + 1);

        all[i] = all[j];
        all[j] = i;
    }
    for (uint32_t t = 0; t < T; t++)
        slot[t] = t % 6 == 2 ? -1 : all[t];
}

/* Each head of each token as ref would have it: x (T, heads, hd). */
static void compute_heads(float *x, const struct rope_args *a, const float *bias,
                          const float *q_norm, const float *k_norm, const float *inv_freq,
                          float scale) {
    uint32_t n = a->n_heads + 2 * a->n_kv_heads, hd = a->hd, n_turned = a->n_heads + a->n_kv_heads;

    for (uint32_t t = 0; t < a->n_tokens; t++) {
        float *row = x + (size_t)t * n * hd;

        for (uint32_t i = 0; i < n * hd && bias; i++)
            row[i] += bias[i];
        if (q_norm) ref_rmsnorm(row, row, q_norm, a->n_heads, hd, a->eps);
        if (k_norm)
            ref_rmsnorm(row + a->n_heads * hd, row + a->n_heads * hd, k_norm, a->n_kv_heads, hd,
                        a->eps);
    }
    ref_rope(x, a->position, inv_freq, scale, a->n_tokens, n_turned, hd, (size_t)n * hd);
}

/* The pool after ref_kv_write: its fp32 picture, NaN where nothing was written. */
static float *compute_pool(const struct rope_args *a, const float *x, uint64_t n_elements) {
    uint32_t n = a->n_heads + 2 * a->n_kv_heads, hd = a->hd;
    size_t tile = (size_t)a->n_kv_heads * OPS_BLOCK_SIZE * hd;
    float *pool = malloc(n_elements * sizeof(float));
    struct ref_pool p = {.k = (uint8_t *)(pool + (size_t)a->layer * 2 * tile),
                         .v = (uint8_t *)(pool + ((size_t)a->layer * 2 + 1) * tile),
                         .dtype = DTYPE_F32,
                         .block_stride =
                             (uint64_t)a->block_stride * 2, /* of f32 in place of bf16 */
                         .block_size = OPS_BLOCK_SIZE,
                         .n_kv_heads = a->n_kv_heads,
                         .hd = hd};

    memset(pool, 0xFF, n_elements * sizeof(float));
    ref_kv_write(&p, x + a->n_heads * hd, x + (size_t)(a->n_heads + a->n_kv_heads) * hd, a->kv_slot,
                 a->n_tokens, (size_t)n * hd);
    return pool;
}

static void make_rope(struct rope_case *c, const struct rope_shape *s) {
    uint32_t n = s->n_heads + 2 * s->n_kv_heads, hd = s->hd;
    size_t n_qkv = (size_t)s->T * n * hd;
    uint64_t stride = (uint64_t)N_LAYERS * 2 * s->n_kv_heads * OPS_BLOCK_SIZE * hd + s->spare;
    float *x = kernel_fixture_floats(n_qkv), *bias = kernel_fixture_floats((size_t)n * hd), *pool;
    float q_norm[256], k_norm[256], inv_freq[128], scale = 1.2f;
    uint32_t position[64];
    int64_t slot[64];
    struct kernel_fixture *k = &c->fixture;

    kernel_fixture_init(k, n_qkv + s->has_bias * 2 + s->has_norm);
    for (uint32_t i = 0; i < hd / 2; i++)
        inv_freq[i] = powf(10000, -2.0f * (float)i / (float)hd);
    for (uint32_t t = 0; t < s->T; t++)
        position[t] = t ? (uint32_t)rng_below(&k->rng, MAX_CONTEXT) : MAX_CONTEXT - 1;
    make_slots(k, slot, s->T);
    c->a = (struct rope_args){.qkv = kernel_fixture_draw_bf16(k, n_qkv, 0, 1, x),
                              .position = kernel_fixture_put(k, position, s->T * sizeof(*position)),
                              .kv_slot = kernel_fixture_put(k, slot, s->T * sizeof(*slot)),
                              .turn = make_turn(k, inv_freq, scale, hd),
                              .kv = kernel_fixture_room(k, N_BLOCKS * stride * 2),
                              .block_stride = (int64_t)stride * 2,
                              .kv_dtype = DTYPE_BF16,
                              .layer = LAYER,
                              .n_tokens = s->T,
                              .n_heads = s->n_heads,
                              .n_kv_heads = s->n_kv_heads,
                              .hd = hd,
                              .eps = 1e-6f};
    if (s->has_bias) c->a.bias = kernel_fixture_draw_bf16(k, (size_t)n * hd, 0, 1, bias);
    if (s->has_norm) c->a.q_norm = kernel_fixture_draw_bf16(k, hd, 1, 0.3f, q_norm);
    if (s->has_norm) c->a.k_norm = kernel_fixture_draw_bf16(k, hd, 1, 0.3f, k_norm);

    compute_heads(x, &c->a, s->has_bias ? bias : NULL, s->has_norm ? q_norm : NULL,
                  s->has_norm ? k_norm : NULL, inv_freq, scale);
    pool = compute_pool(&c->a, x, N_BLOCKS * stride);
    for (size_t i = 0; i < n_qkv; i++) /* K and V of qkv stay as they were */
        if (i / hd % n >= s->n_heads) x[i] = NAN;
    kernel_fixture_want(k, c->a.qkv, DTYPE_BF16, x);
    kernel_fixture_want(k, c->a.kv, DTYPE_BF16, pool);
    free(bias);
}

static void check_rope(const struct rope_shape *s) {
    struct rope_case c;

    make_rope(&c, s);
    kernel_fixture_check(&c.fixture, run_rope, &c.a);
    kernel_fixture_fini(&c.fixture);
}

static void rope_turns_and_writes_for_all_head_dims(void **state) {
    static const uint32_t head_dims[] = {64, 96, 128, 256}, token_counts[] = {1, 3, 17, 64};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(head_dims); i++) {
        assert_true(ops_has_head_dim(head_dims[i]));
        for (size_t j = 0; j < ARRAY_LEN(token_counts); j++)
            check_rope(&(struct rope_shape){token_counts[j], head_dims[i], 4, 2});
    }
    assert_false(ops_has_head_dim(80));
}

static void rope_takes_bias_and_norm_of_heads(void **state) {
    static const uint32_t head_dims[] = {64, 96, 128, 256};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(head_dims); i++) {
        check_rope(&(struct rope_shape){17, head_dims[i], 3, 1, .has_bias = true});
        check_rope(&(struct rope_shape){17, head_dims[i], 3, 1, .has_norm = true});
        check_rope(&(struct rope_shape){5, head_dims[i], 3, 1, true, true});
    }
}

static void rope_takes_any_number_of_heads(void **state) {
    (void)state;
    check_rope(&(struct rope_shape){3, 128, 32, 8});
    check_rope(&(struct rope_shape){3, 128, 12, 2, .has_bias = true});
    check_rope(&(struct rope_shape){3, 64, 14, 2, .has_norm = true});
    check_rope(&(struct rope_shape){3, 96, 1, 1, .has_norm = true});
    check_rope(&(struct rope_shape){3, 64, 71, 1});
}

static void rope_keeps_to_the_stride_of_blocks(void **state) {
    (void)state;
    check_rope(&(struct rope_shape){17, 64, 4, 2, .spare = 8});
    check_rope(&(struct rope_shape){17, 128, 4, 2, .spare = 4096});
}

static void rope_planted_bugs_are_caught(void **state) {
    static const char *const plants[] = {"rope_wrong_half", "rope_slot_off_by_one",
                                         "rope_padding_written", "rope_half_a_norm"};
    struct rope_case c;

    (void)state;
    make_rope(&c, &(struct rope_shape){17, 128, 4, 2, .has_norm = true});
    for (size_t i = 0; i < ARRAY_LEN(plants); i++) {
        if (!kernel_fixture_catches(&c.fixture, plants[i], run_rope, &c.a))
            fail_msg("%s", plants[i]);
    }
    kernel_fixture_fini(&c.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_turns_and_writes_for_all_head_dims),
        cmocka_unit_test(rope_takes_bias_and_norm_of_heads),
        cmocka_unit_test(rope_takes_any_number_of_heads),
        cmocka_unit_test(rope_keeps_to_the_stride_of_blocks),
        cmocka_unit_test(rope_planted_bugs_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
