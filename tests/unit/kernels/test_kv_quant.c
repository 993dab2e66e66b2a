/* tests/unit/kernels/test_kv_quant.c - the rule of a quantised KV cache, and what holds of pools
 * that keep it, on ref and every path of cpu.
 *
 * The rule is compared with one made of doubles and of a list of all codes. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/kv_quant.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static const char *const paths[] = {NULL, "avx512bf16", "avx512", "avx2", "neon", "plain"};
static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};

/* --- codes ----------------------------------------------------------------------------------- */

/* Magnitude of a code, by its definition; 127 is the NaN. */
static double e4m3_magnitude(uint32_t c) {
    uint32_t exponent = c >> 3, mantissa = c & 7;

    return exponent ? ldexp(8 + mantissa, (int)exponent - 10) : ldexp(mantissa, -9);
}

/* The code nearest to |x|, at a tie the even one. */
static uint32_t nearest_e4m3(double x) {
    uint32_t best = 0;

    for (uint32_t c = 1; c < E4M3_NAN; c++) {
        double d = fabs(e4m3_magnitude(c) - x), least = fabs(e4m3_magnitude(best) - x);

        if (d < least || (d == least && c % 2 == 0)) best = c;
    }
    return best;
}

static void every_code_of_e4m3_is_its_definition(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 256; c++) {
        float f = f32_of_e4m3((uint8_t)c);

        if ((c & 0x7F) == E4M3_NAN) {
            assert_true(isnan(f));
            continue;
        }
        assert_true(fabs((double)f) == e4m3_magnitude(c & 0x7F));
        assert_int_equal(signbit(f) != 0, c >> 7);
        assert_int_equal(e4m3_of_f32(f), c);
    }
}

static void floats_become_the_nearest_code(void **state) {
    (void)state;
    for (uint32_t u = 0; u < 0x7F800000u;
         u += u < 0x38000000u || u > 0x45000000u ? 1u << 20 : 1u << 12) {
        float f = f32_of_bits(u);
        uint32_t want = nearest_e4m3(f);

        if (e4m3_of_f32(f) != want || e4m3_of_f32(-f) != (want | 0x80))
            fail_msg("%a is %02x, not %02x", (double)f, e4m3_of_f32(f), want);
    }
}

static void ties_and_ends_of_e4m3(void **state) {
    static const struct {
        float from, to;
    } ties[] = {
        {17, 16},  {19, 20}, {27, 28}, {464, 448}, {1e9f, 448}, {0x1p-10f, 0}, {0x3p-10f, 0x1p-8f},
        {-19, -20}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ties); i++)
        assert_true(f32_of_e4m3(e4m3_of_f32(ties[i].from)) == ties[i].to);
    assert_int_equal(e4m3_of_f32(INFINITY), 0x7F);
    assert_int_equal(e4m3_of_f32(-INFINITY), 0xFF);
    assert_int_equal(e4m3_of_f32(NAN) & 0x7F, 0x7F);
    assert_int_equal(e4m3_of_f32(-0.0f), 0x80);
    assert_true(kv_scale_of_e8m0(0) == 0x1p-127f && kv_scale_of_e8m0(254) == 0x1p127f);
    assert_true(kv_scale_of_e8m0(127) == 1 && isnan(kv_scale_of_e8m0(255)));
}

/* --- vectors --------------------------------------------------------------------------------- */

static void scales_of_the_ends(void **state) {
    static const struct {
        float max;
        uint8_t e4m3, i8; /* their scales */
    } cases[] = {{0, 127, 127},         {0x1p-133f, 0, 0},      {0x1p-126f, 0, 0},
                 {0x1p-121f, 0, 0},     {0x1.FEp-121f, 0, 1},   {1, 119, 121},
                 {-1, 119, 121},        {1.75f, 119, 121},      {1.7578125f, 120, 121},
                 {1.984375f, 120, 121}, {1.9921875f, 120, 122}, {127, 126, 127},
                 {127.5f, 126, 128},    {254, 127, 128},        {448, 127, 129},
                 {450, 128, 129},       {3e38f, 247, 248},      {0x1.FEp127f, 247, 249},
                 {INFINITY, 127, 255},  {NAN, 127, 255},        {-INFINITY, 127, 255}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        float x[4] = {0, cases[i].max, -0.0f, cases[i].max / 2};
        bool is_marked = !isfinite(cases[i].max);
        uint8_t codes[4], scale[2];

        kv_quantise(DTYPE_F8E4M3, x, 4, codes, &scale[0]);
        assert_int_equal(codes[0], is_marked ? E4M3_NAN : 0);
        kv_quantise(DTYPE_I8, x, 4, codes, &scale[1]);
        assert_int_equal(codes[0], is_marked ? KV_I8_MARK : 0);
        if (scale[0] != cases[i].e4m3 || scale[1] != cases[i].i8)
            fail_msg("%a: scales %u of e4m3, %u of int8, not %u, %u", (double)cases[i].max,
                     scale[0], scale[1], cases[i].e4m3, cases[i].i8);
    }
}

static void draw_vector(struct rng *rng, float *x, uint32_t n) {
    float size = ldexpf(1, (int)rng_below(rng, 60) - 30);

    for (uint32_t i = 0; i < n; i++) {
        x[i] = size * (float)(rng_f64(rng) + rng_f64(rng) + rng_f64(rng) - 1.5);
        if (rng_below(rng, 50) == 0) x[i] = 0;
        if (rng_below(rng, 50) == 0) x[i] *= 30; /* an outlier */
    }
}

/* The code of v, as a byte, by rounding in double. */
static uint32_t nearest_code(enum dtype type, double v) {
    if (type == DTYPE_I8) return (uint8_t)(int8_t)nearbyint(v);
    return nearest_e4m3(fabs(v)) | (signbit(v) ? 0x80 : 0);
}

static void check_vector(enum dtype type, const float *x, uint32_t n, const uint8_t *codes,
                         uint8_t scale) {
    double max = 0;
    int e = -127;

    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)kv_input(x[i])));
    while (max > ldexp(type == DTYPE_I8 ? 127 : 448, e))
        e++;
    assert_int_equal(scale, max == 0 ? 127 : e + 127);
    for (uint32_t i = 0; i < n; i++) {
        double v = kv_input(x[i]);
        uint32_t want = nearest_code(type, ldexp(v, -e));

        if (codes[i] != want)
            fail_msg("%s of %a: code %02x, not %02x", dtype_name(type), v, codes[i], want);
        assert_true(codes[i] != (type == DTYPE_I8 ? KV_I8_MARK : E4M3_NAN));
    }
}

static void inputs_are_what_a_pool_of_bf16_holds(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1ull << 32; i += 4099) {
        float x = f32_of_bits((uint32_t)i), want = f32_of_bf16(bf16_of_f32(x));

        assert_int_equal(bits_of_f32(kv_input(x)), bits_of_f32(want));
    }
}

/* No finite vector has the code of a NaN. */
static void vectors_follow_the_rule(void **state) {
    struct rng rng;
    float x[128];

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 600; round++) {
        enum dtype type = types[round % 2];
        uint32_t n = 2 + 2 * (uint32_t)rng_below(&rng, 64);
        uint8_t codes[128], scale;

        draw_vector(&rng, x, n);
        kv_quantise(type, x, n, codes, &scale);
        check_vector(type, x, n, codes, scale);
    }
}

/* A change of these bytes is a change of KV_QUANT_VERSION, or an old block is taken for a new. */
static void bytes_of_version_2(void **state) {
    static const float x[] = {0.3f, -1, 0, 100, -37.5f, 0x1p-9f, 1.75f, 250};
    static const uint8_t want[2][9] = {{0x2A, 0xB8, 0x00, 0x6C, 0xE1, 0x01, 0x3E, 0x78, 127},
                                       {0x00, 0x00, 0x00, 0x32, 0xED, 0x00, 0x01, 0x7D, 128}};
    uint8_t bytes[9];

    (void)state;
    assert_int_equal(KV_QUANT_VERSION, 2);
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        kv_quantise(types[t], x, 8, bytes, bytes + 8);
        assert_memory_equal(bytes, want[t], sizeof(bytes));
    }
}

/* --- pools ----------------------------------------------------------------------------------- */

static void more_blocks_in_the_same_bytes(void **state) {
    struct geometry g = {.n_layers = 32, .n_kv_heads = 8, .kv_dtype = DTYPE_BF16};
    double plain;

    (void)state;
    for (uint32_t hd = 64; hd <= 128; hd += 64) {
        g.head_dim = hd;
        g.kv_dtype = DTYPE_BF16;
        plain = (double)kv_layout_block_bytes(&g, 16);
        assert_true(plain == 16384.0 * hd);
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            g.kv_dtype = types[t];
            assert_int_equal(kv_layout_block_bytes(&g, 16), 8192 * (hd + 1));
            assert_true(plain / (double)kv_layout_block_bytes(&g, 16) >= (hd == 128 ? 1.98 : 1.96));
        }
    }
}

struct pool {
    struct geometry g;
    uint32_t block_size, n_blocks;
    uint64_t block_bytes;
    uint8_t *bytes;
};

static void pool_init(struct pool *p, enum dtype type, uint32_t kv_heads, uint32_t hd,
                      uint32_t block_size, uint32_t n_blocks) {
    *p = (struct pool){
        .g = {.n_layers = 1, .n_kv_heads = kv_heads, .head_dim = hd, .kv_dtype = type},
        .block_size = block_size,
        .n_blocks = n_blocks};
    p->block_bytes = kv_layout_block_bytes(&p->g, block_size);
    p->bytes = mem_alloc(n_blocks * p->block_bytes);
    memset(p->bytes, 0xFF, n_blocks * p->block_bytes);
}

static struct backend_tensor pool_tensor(const struct pool *p) {
    return (struct backend_tensor){
        .dtype = p->g.kv_dtype,
        .n_dims = 4,
        .shape = {p->n_blocks, p->g.n_kv_heads, p->block_size, p->g.head_dim},
        .data = p->bytes,
        .n_bytes = p->n_blocks * p->block_bytes};
}

static uint8_t *codes_of(const struct pool *p, uint32_t slot, uint32_t which, uint32_t head) {
    return p->bytes + slot / p->block_size * p->block_bytes +
           kv_tile_at(&p->g, p->block_size, 0, which, head) +
           (uint64_t)(slot % p->block_size) * p->g.head_dim;
}

static uint8_t *scale_of(const struct pool *p, uint32_t slot, uint32_t which, uint32_t head) {
    return p->bytes + slot / p->block_size * p->block_bytes +
           kv_scales_at(&p->g, p->block_size, 0, which, head) + slot % p->block_size;
}

static struct backend_tensor floats(float *x, uint64_t s0, uint64_t s1, uint64_t s2) {
    return (struct backend_tensor){.dtype = DTYPE_F32,
                                   .n_dims = 3,
                                   .shape = {s0, s1, s2},
                                   .data = x,
                                   .n_bytes = s0 * s1 * s2 * sizeof(float)};
}

static struct backend_tensor numbers(int32_t *x, uint64_t n) {
    return (struct backend_tensor){
        .dtype = DTYPE_I32, .n_dims = 1, .shape = {n}, .data = x, .n_bytes = n * sizeof(*x)};
}

/* K and V of one token into a slot, by ref's operator. */
static void write_token(const struct pool *p, float *k, float *v, int32_t slot) {
    struct backend_tensor in[3] = {floats(k, 1, p->g.n_kv_heads, p->g.head_dim),
                                   floats(v, 1, p->g.n_kv_heads, p->g.head_dim), numbers(&slot, 1)};
    struct backend_tensor out = pool_tensor(p);
    struct error err = {0};

    if (backend_ref.op(NULL, "kv_write", in, 3, &out, 1, &err) != ST_OK)
        fail_msg("%s", err.message);
}

/* A token changes the bytes that are its own, codes and scales, and no others. */
static void a_token_touches_its_own_bytes_alone(void **state) {
    enum { HEADS = 3, HD = 10, SIZE = 5 };
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct pool p;

        pool_init(&p, types[t], HEADS, HD, SIZE, 3);
        for (int32_t slot = 0; slot < 3 * SIZE; slot++) {
            float k[HEADS * HD], v[HEADS * HD];
            uint8_t *want = mem_alloc(p.n_blocks * p.block_bytes);
            struct pool copy = p;

            memcpy(want, p.bytes, p.n_blocks * p.block_bytes);
            copy.bytes = want;
            draw_vector(&rng, k, HEADS * HD);
            draw_vector(&rng, v, HEADS * HD);
            for (uint32_t h = 0; h < HEADS; h++) {
                uint8_t codes[HD];

                for (uint32_t which = 0; which < 2; which++) {
                    kv_quantise(types[t], (which ? v : k) + h * HD, HD, codes,
                                scale_of(&copy, (uint32_t)slot, which, h));
                    memcpy(codes_of(&copy, (uint32_t)slot, which, h), codes, HD);
                }
            }
            write_token(&p, k, v, slot);
            assert_memory_equal(p.bytes, want, p.n_blocks * p.block_bytes);
            write_token(&p, v, k, -1); /* nowhere */
            assert_memory_equal(p.bytes, want, p.n_blocks * p.block_bytes);
            mem_free(want);
        }
        mem_free(p.bytes);
    }
}

/* --- attention ------------------------------------------------------------------------------- */

struct attention {
    struct pool pool;
    uint32_t heads, n_context, window;
    int32_t *table; /* of n_context positions, rounded up to blocks */
    float *q;       /* (heads, hd), as bf16 keeps it */
};

/* A context of random vectors; around it, all bytes are ff: NaNs as codes and as scales. */
static void attention_init(struct attention *a, struct rng *rng, enum dtype type, uint32_t heads,
                           uint32_t kv_heads, uint32_t hd, uint32_t n_context) {
    uint32_t n_table = CEIL_DIV(n_context, 16);

    *a = (struct attention){.heads = heads, .n_context = n_context};
    pool_init(&a->pool, type, kv_heads, hd, 16, n_table + 1);
    a->table = mem_calloc(n_table, sizeof(*a->table));
    for (uint32_t i = 0; i < n_table; i++)
        a->table[i] = (int32_t)(n_table - i);
    a->q = mem_calloc((size_t)heads * hd, sizeof(float));
    for (uint32_t i = 0; i < heads * hd; i++)
        a->q[i] = kv_input((float)(rng_f64(rng) * 4 - 2));
    for (uint32_t i = 0; i < n_context; i++) {
        uint32_t slot = (uint32_t)a->table[i / 16] * 16 + i % 16;

        for (uint32_t v = 0; v < 2 * kv_heads; v++) {
            float x[256];

            for (uint32_t j = 0; j < hd; j++)
                x[j] = (float)((rng_f64(rng) + rng_f64(rng) - 1) * (1 + v % 3));
            kv_quantise(type, x, hd, codes_of(&a->pool, slot, v % 2, v / 2),
                        scale_of(&a->pool, slot, v % 2, v / 2));
        }
    }
}

static void attention_fini(struct attention *a) {
    mem_free(a->pool.bytes);
    mem_free(a->table);
    mem_free(a->q);
}

/* By a path, or by ref where it is NULL. False: this machine lacks the path. */
static bool attend(const struct attention *a, const char *path, float *y) {
    int32_t position = (int32_t)a->n_context - 1, window = (int32_t)a->window;
    struct backend_tensor in[5] = {
        floats(a->q, 1, a->heads, a->pool.g.head_dim), pool_tensor(&a->pool),
        numbers(a->table, CEIL_DIV(a->n_context, 16)), numbers(&position, 1), numbers(&window, 1)};
    struct backend_tensor out = floats(y, 1, a->heads, a->pool.g.head_dim);
    const struct backend_ops *ops = path ? &backend_cpu : &backend_ref;
    struct backend_config config = {.path = path, .n_threads = 1};
    struct backend_device *dev;
    struct error err = {0};

    if (ops->open(&dev, &config, NULL) != ST_OK) return false;
    if (ops->op(dev, "attention", in, 5, &out, 1, &err) != ST_OK) fail_msg("%s", err.message);
    ops->close(dev);
    return true;
}

/* Of one query head, in doubles, from the codes. */
static void attend_exactly(const struct attention *a, uint32_t h, double *y) {
    const struct pool *p = &a->pool;
    uint32_t hd = p->g.head_dim, head = h / (a->heads / p->g.n_kv_heads);
    uint32_t first = a->window && a->n_context > a->window ? a->n_context - a->window : 0;
    double sum = 0, *s = mem_calloc(a->n_context, sizeof(*s)), max = -DBL_MAX;

    for (uint32_t i = first; i < a->n_context; i++) {
        uint32_t slot = (uint32_t)a->table[i / 16] * 16 + i % 16;
        const uint8_t *k = codes_of(p, slot, 0, head);

        for (uint32_t j = 0; j < hd; j++)
            s[i] += (double)a->q[h * hd + j] * kv_code_value(p->g.kv_dtype, k, j);
        s[i] *= kv_scale_of_e8m0(*scale_of(p, slot, 0, head)) / sqrt(hd);
        max = fmax(max, s[i]);
    }
    memset(y, 0, hd * sizeof(*y));
    for (uint32_t i = first; i < a->n_context; i++) {
        uint32_t slot = (uint32_t)a->table[i / 16] * 16 + i % 16;
        double w = exp(s[i] - max), scale = kv_scale_of_e8m0(*scale_of(p, slot, 1, head));

        sum += w;
        for (uint32_t j = 0; j < hd; j++)
            y[j] += w * scale * kv_code_value(p->g.kv_dtype, codes_of(p, slot, 1, head), j);
    }
    for (uint32_t j = 0; j < hd; j++)
        y[j] /= sum;
    mem_free(s);
}

/* By the size of the difference to that of the answer, all heads together. */
static void check_attention(const struct attention *a, const char *path) {
    uint32_t hd = a->pool.g.head_dim;
    double bound = path && strcmp(path, "avx512bf16") == 0 ? 4e-3 : 1e-5, error = 0, size = 0;
    float *got = mem_calloc((size_t)a->heads * hd, sizeof(*got));
    double *want = mem_calloc(hd, sizeof(*want));

    for (uint32_t h = 0; attend(a, path, got) && h < a->heads; h++) {
        attend_exactly(a, h, want);
        for (uint32_t j = 0; j < hd; j++) {
            error += pow(got[h * hd + j] - want[j], 2);
            size += pow(want[j], 2);
        }
    }
    if (!(sqrt(error) <= bound * sqrt(size)))
        fail_msg("%s, %s, head_dim %u: off by %g of %g", path ? path : "ref",
                 dtype_name(a->pool.g.kv_dtype), hd, sqrt(error), sqrt(size));
    mem_free(got);
    mem_free(want);
}

/* Head_dims, groups, windows, and NaNs behind the context. */
static void attention_on_given_codes(void **state) {
    static const uint32_t head_dims[] = {64, 96, 128, 10}, groups[] = {1, 4, 6, 7, 16};
    static const uint32_t contexts[] = {1, 17, 64, 200};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t hd = head_dims[i % 4], group = groups[i % 5];
        struct attention a;

        attention_init(&a, &rng, types[i / 20], 2 * group, 2, hd, contexts[i / 5 % 4]);
        a.window = i % 3 ? 0 : 40;
        for (size_t p = 0; p < ARRAY_LEN(paths); p++)
            check_attention(&a, paths[p]);
        attention_fini(&a);
    }
}

/* Where a query looks, a vector that is not finite makes the answer so; `which`: K or V. */
static void what_is_not_finite_is_seen(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < 3 * 2 * 2 * ARRAY_LEN(paths); i++) {
        const char *path = paths[i / 12];
        uint32_t which = i % 2, at[] = {0, 65, 79}, position = at[i / 4 % 3], slot;
        float x[64] = {1, 2, i % 5 ? INFINITY : NAN}, y[64];
        struct attention a;

        attention_init(&a, &rng, types[i / 2 % 2], 1, 1, 64, 80);
        slot = (uint32_t)a.table[position / 16] * 16 + position % 16;
        kv_quantise(types[i / 2 % 2], x, 64, codes_of(&a.pool, slot, which, 0),
                    scale_of(&a.pool, slot, which, 0));
        if (attend(&a, path, y)) assert_true(!isfinite(y[0]) && !isfinite(y[63]));
        a.window = position < 65 ? 64 : 0;
        if (a.window && attend(&a, path, y)) assert_true(isfinite(y[0]) && isfinite(y[63]));
        attention_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_of_e4m3_is_its_definition),
        cmocka_unit_test(floats_become_the_nearest_code),
        cmocka_unit_test(ties_and_ends_of_e4m3),
        cmocka_unit_test(scales_of_the_ends),
        cmocka_unit_test(inputs_are_what_a_pool_of_bf16_holds),
        cmocka_unit_test(vectors_follow_the_rule),
        cmocka_unit_test(bytes_of_version_2),
        cmocka_unit_test(more_blocks_in_the_same_bytes),
        cmocka_unit_test(a_token_touches_its_own_bytes_alone),
        cmocka_unit_test(attention_on_given_codes),
        cmocka_unit_test(what_is_not_finite_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
