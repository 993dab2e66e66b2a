/* tests/unit/cuda/shim/test_kv_codes.c - codes and scales of a quantised pool: what the kernel
 * writes beside kernels/kv_quant.h, from the same bf16, to the bit. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/kv_quant.h"
#include "tests/shim/shim_control.h"
#include "tests/support/cm.h"

#define N_TOKENS 40u
#define N_BLOCKS 4u
#define N_LAYERS 2u
#define LAYER    1u

static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};

/* One layer of a pool that the kernel fills from random K and V; nothing is rotated. */
struct codes_case {
    struct geometry g;
    uint16_t *qkv;      /* (N_TOKENS, 1 + 2 n_kv_heads, hd) */
    int64_t *slot;      /* (N_TOKENS) */
    uint32_t *position; /* (N_TOKENS) */
    float *turn;
    uint8_t *got, *want;
    uint64_t block_bytes;
};

static float draw(struct rng *rng) {
    float x = (float)(rng_u64(rng) >> 40) / (float)(1 << 23) - 1.0f;

    return rng_below(rng, 30) ? x : 0.0f;
}

/* Vectors of every magnitude; some of zeros, one with an infinity, one with a NaN. */
static void fill_vector(uint16_t *x, uint32_t hd, struct rng *rng) {
    float size = ldexpf(1.0f, (int)rng_below(rng, 270) - 140);
    uint32_t kind = (uint32_t)rng_below(rng, 20);

    for (uint32_t i = 0; i < hd; i++) { /* no -0: turning by nothing makes it 0 */
        x[i] = bf16_of_f32(kind == 0 ? 0.0f : draw(rng) * (kind < 10 ? size : 3.0f));
        if (x[i] == 0x8000) x[i] = 0;
    }
    if (kind == 18) x[rng_below(rng, hd)] = 0xFF80;
    if (kind == 19) x[rng_below(rng, hd)] = 0x7FC1;
}

static void codes_init(struct codes_case *c, enum dtype kv, uint32_t hd, uint32_t n_kv,
                       uint64_t seed) {
    uint32_t n_heads = 1 + 2 * n_kv;
    struct rng rng;

    rng_seed(&rng, seed);
    *c = (struct codes_case){
        .g = {.n_layers = N_LAYERS, .n_kv_heads = n_kv, .head_dim = hd, .kv_dtype = kv}};
    c->block_bytes = kv_layout_block_bytes(&c->g, OPS_BLOCK_SIZE);
    c->qkv = mem_calloc((size_t)N_TOKENS * n_heads * hd, 2);
    c->turn = mem_calloc(hd, sizeof(float));
    c->slot = mem_calloc(N_TOKENS, sizeof(*c->slot));
    c->position = mem_calloc(N_TOKENS, sizeof(*c->position));
    c->got = mem_alloc(N_BLOCKS * c->block_bytes);
    c->want = mem_alloc(N_BLOCKS * c->block_bytes);
    for (uint32_t i = 0; i < hd; i += 2)
        c->turn[i] = 1;
    for (uint32_t t = 0; t < N_TOKENS; t++)
        c->slot[t] = t % 7 == 3 ? -1 : (int64_t)(t * 11 % 64);
    for (uint32_t i = 0; i < N_TOKENS * n_heads; i++)
        fill_vector(c->qkv + (size_t)i * hd, hd, &rng);
}

static void codes_fini(struct codes_case *c) {
    mem_free(c->qkv);
    mem_free(c->turn);
    mem_free(c->slot);
    mem_free(c->position);
    mem_free(c->got);
    mem_free(c->want);
}

static const uint16_t *vector_of(const struct codes_case *c, uint32_t t, uint32_t which,
                                 uint32_t head) {
    uint32_t n_kv = c->g.n_kv_heads;

    return c->qkv + ((size_t)t * (1 + 2 * n_kv) + 1 + which * n_kv + head) * c->g.head_dim;
}

/* The pool as the rules have it; what is not written keeps its bytes. */
static void compute_want(struct codes_case *c) {
    uint32_t hd = c->g.head_dim;
    float x[256];

    memset(c->want, 0xFF, N_BLOCKS * c->block_bytes);
    for (uint32_t t = 0; t < N_TOKENS; t++)
        for (uint32_t i = 0; i < 2 * c->g.n_kv_heads && c->slot[t] >= 0; i++) {
            uint32_t offset = (uint32_t)c->slot[t] % OPS_BLOCK_SIZE, which = i & 1, head = i / 2;
            uint8_t *block = c->want + (uint64_t)c->slot[t] / OPS_BLOCK_SIZE * c->block_bytes;

            for (uint32_t e = 0; e < hd; e++)
                x[e] = f32_of_bf16(vector_of(c, t, which, head)[e]);
            kv_quantise(c->g.kv_dtype, x, hd,
                        block + kv_tile_at(&c->g, OPS_BLOCK_SIZE, LAYER, which, head) +
                            (size_t)offset * hd,
                        block + kv_scales_at(&c->g, OPS_BLOCK_SIZE, LAYER, which, head) + offset);
        }
}

static bool codes_agree(struct codes_case *c) {
    struct rope_args a = {.qkv = c->qkv,
                          .position = c->position,
                          .kv_slot = c->slot,
                          .turn = c->turn,
                          .kv = c->got,
                          .block_stride = (int64_t)c->block_bytes,
                          .scales_at = (uint32_t)kv_scales_at(&c->g, OPS_BLOCK_SIZE, LAYER, 0, 0),
                          .kv_dtype = c->g.kv_dtype,
                          .layer = LAYER,
                          .n_tokens = N_TOKENS,
                          .n_heads = 1,
                          .n_kv_heads = c->g.n_kv_heads,
                          .hd = c->g.head_dim};

    compute_want(c);
    memset(c->got, 0xFF, N_BLOCKS * c->block_bytes);
    ops_rope(NULL, &a);
    return memcmp(c->got, c->want, N_BLOCKS * c->block_bytes) == 0;
}

static void codes_and_scales_are_those_of_the_rules(void **state) {
    static const uint32_t head_dims[] = {64, 96, 128, 256};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++)
        for (uint32_t j = 0; j < ARRAY_LEN(head_dims); j++)
            for (uint64_t seed = 1; seed <= 3; seed++) {
                struct codes_case c;

                shim_set(seed, SHIM_COPIES_LATE);
                codes_init(&c, types[i], head_dims[j], 1 + (uint32_t)seed % 3, seed * 10 + i + j);
                assert_true(codes_agree(&c));
                codes_fini(&c);
            }
}

/* Elements between two codes, ties among them, at every scale. */
static void ties_go_to_even_codes(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct codes_case c;

        codes_init(&c, types[i], 128, 1, 5);
        for (uint32_t t = 0; t < N_TOKENS; t++)
            for (uint32_t e = 0; e < 2 * 128; e++)
                c.qkv[t * 3 * 128 + 128 + e] =
                    (uint16_t)((e & 1 ? 0x8000 : 0) | (0x3F80 + t * 3 - (e % 128) * 9));
        assert_true(codes_agree(&c));
        codes_fini(&c);
    }
}

/* A vector is marked whole, or not at all. */
static void check_marks(const uint8_t *codes, uint8_t mark, uint8_t bits, bool is_marked) {
    for (uint32_t e = 0; e < 64; e++)
        assert_int_equal((codes[e] & bits) == mark, is_marked);
}

static void scales_of_given_magnitudes(void **state) {
    static const struct {
        float magnitude;
        uint8_t scale[2]; /* of e4m3, of int8 */
    } cases[] = {{0.0f, {127, 127}},      {0x1p-126f, {0, 0}},      {0x1.FEp-121f, {0, 1}},
                 {1.0f, {119, 121}},      {1.75f, {119, 121}},      {1.7578125f, {120, 121}},
                 {1.984375f, {120, 121}}, {1.9921875f, {120, 122}}, {448.0f, {127, 129}},
                 {450.0f, {128, 129}},    {3e38f, {247, 248}},      {0x1.FEp127f, {247, 249}},
                 {INFINITY, {127, 255}},  {NAN, {127, 255}},        {0x1p-133f, {0, 0}}};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        struct codes_case c;

        codes_init(&c, types[i], 64, 1, 3);
        for (uint32_t t = 0; t < N_TOKENS; t++) {
            uint16_t *k = c.qkv + (size_t)t * 3 * 64 + 64;

            c.slot[t] = t < ARRAY_LEN(cases) ? (int64_t)t : -1;
            if (t >= ARRAY_LEN(cases)) continue;
            memset(k, 0, 64 * 2);
            k[t] = bf16_of_f32(-cases[t].magnitude);
        }
        assert_true(codes_agree(&c));
        for (uint32_t t = 0; t < ARRAY_LEN(cases); t++) {
            const uint8_t *codes = c.got + kv_tile_at(&c.g, OPS_BLOCK_SIZE, LAYER, 0, 0) + t * 64;

            assert_int_equal(c.got[kv_scales_at(&c.g, OPS_BLOCK_SIZE, LAYER, 0, 0) + t],
                             cases[t].scale[i]);
            check_marks(codes, i ? KV_I8_MARK : E4M3_NAN, i ? 0xFF : 0x7F,
                        !isfinite(cases[t].magnitude));
        }
        codes_fini(&c);
    }
}

static void planted_bugs_are_caught(void **state) {
    static const struct {
        const char *name;
        bool is_of_e4m3; /* alone */
    } bugs[] = {{"codes_half_a_max", false},
                {"scale_at_the_edge", false},
                {"codes_tie_up", true},
                {"rope_slot_off_by_one", false}};

    (void)state;
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(bugs); i++) {
        float max = i & 1 ? 1.984375f : 1.75f; /* the largest code times a power of two */
        struct codes_case c;

        if (i & 1 && bugs[i / 2].is_of_e4m3) continue;
        codes_init(&c, types[i & 1], 128, 2, 7);
        for (uint32_t e = 0; e < 128; e++) /* of slot 0 */
            c.qkv[128 + e] = bf16_of_f32(e == 5 ? max : 0.01f * (float)e);
        shim_plant(bugs[i / 2].name);
        if (codes_agree(&c))
            fail_msg("%s was not caught, %s", bugs[i / 2].name, dtype_name(types[i & 1]));
        shim_plant(NULL);
        codes_fini(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_and_scales_are_those_of_the_rules),
        cmocka_unit_test(ties_go_to_even_codes),
        cmocka_unit_test(scales_of_given_magnitudes),
        cmocka_unit_test(planted_bugs_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
