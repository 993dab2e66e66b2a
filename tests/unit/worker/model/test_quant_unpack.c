/* tests/unit/worker/model/test_quant_unpack.c - packed words: values that the writing packages gave
 * for small ones, and random matrices packed here element by element. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/model/quant/unpack.h"

static void words(uint8_t *to, const uint32_t *word, size_t n) {
    memcpy(to, word, n * 4); /* the tests run on little-endian machines */
}

static int nibble(const uint8_t *row, uint64_t k) {
    return row[k / 2] >> k % 2 * 4 & 15;
}

/* --- values of the packages ------------------------------------------------------------------- */
static void compressed_tensors_rows(void **state) {
    static const int want4[] = {-8, -7, -1, 0, 1, 2, 6, 7}, want8[] = {-128, -1, 0, 127};
    uint8_t packed[4], code[4];

    (void)state;
    words(packed, (uint32_t[]){0xfea98710}, 1);
    unpack_rows(code, packed, 4, 1, 8, NULL);
    for (int i = 0; i < 8; i++)
        assert_int_equal(nibble(code, (uint64_t)i) - 8, want4[i]);
    words(packed, (uint32_t[]){0x76543210}, 1);
    unpack_rows(code, packed, 4, 1, 8, NULL);
    for (int i = 0; i < 8; i++)
        assert_int_equal(nibble(code, (uint64_t)i), i);
    words(packed, (uint32_t[]){0xffffffff}, 1);
    unpack_rows(code, packed, 4, 1, 3, NULL);
    assert_int_equal(code[1], 0x0f); /* what follows a row's last code is 0 */
    words(packed, (uint32_t[]){0xff807f00}, 1);
    unpack_rows(code, packed, 8, 1, 4, NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal((int8_t)code[i], want8[i]);
}

static void compressed_tensors_zeros(void **state) {
    static const int want[] = {0, 1, -8, 7, 2, -1, -3, 5};
    uint8_t packed[8];
    int16_t zero[12];

    (void)state;
    words(packed, (uint32_t[]){0xd57af098}, 1);
    unpack_rows_zeros(zero, packed, 4, 8, 1);
    for (int i = 0; i < 8; i++)
        assert_int_equal(zero[i] - 8, want[i]);
    words(packed, (uint32_t[]){0x76543210, 0x0000ba98}, 2); /* 12 rows fill one and a half words */
    unpack_rows_zeros(zero, packed, 4, 12, 1);
    for (int i = 0; i < 12; i++)
        assert_int_equal(zero[i], i);
}

static void awq_words(void **state) {
    static const int want[] = {0, 4, 1, 5, 2, 6, 3, 7}, zeros[] = {8, 8, 0, 0, 8, 8, 0, 0};
    static const double value[] = {-4, -2, .5, 2.5, -3, -1, 1.5, 3.5};
    uint8_t packed[4], code[8];
    int16_t zero[8];

    (void)state;
    words(packed, (uint32_t[]){0x76543210}, 1);
    unpack_awq(code, packed, 8, 1);
    for (int n = 0; n < 8; n++)
        assert_int_equal(code[n], want[n]);
    words(packed, (uint32_t[]){0x75316420}, 1);
    unpack_awq(code, packed, 8, 1);
    for (int n = 0; n < 8; n++)
        assert_int_equal(code[n], n);
    words(packed, (uint32_t[]){0x76543210}, 1);
    unpack_awq_zeros(zero, packed, 8, 1);
    for (int n = 0; n < 8; n++)
        assert_int_equal(zero[n], want[n]);
    words(packed, (uint32_t[]){0x08080808}, 1);
    unpack_awq_zeros(zero, packed, 8, 1);
    for (int n = 0; n < 8; n++) {
        assert_int_equal(zero[n], zeros[n]);
        assert_true((want[n] - zero[n]) * 0.5 == value[n]);
    }
}

static void gptq_words(void **state) {
    uint8_t packed[4], code[4];
    int16_t zero[8];

    (void)state;
    words(packed, (uint32_t[]){0x76543210}, 1);
    unpack_gptq(code, packed, 4, 1, 8, NULL);
    for (int k = 0; k < 8; k++)
        assert_int_equal(nibble(code, (uint64_t)k), k);
    words(packed, (uint32_t[]){0x77777777}, 1);
    assert_int_equal(unpack_gptq_zeros(zero, packed, 4, 8, 1, true), 0);
    for (int n = 0; n < 8; n++)
        assert_int_equal(zero[n], 8);
    words(packed, (uint32_t[]){0x88888888}, 1);
    assert_int_equal(unpack_gptq_zeros(zero, packed, 4, 8, 1, false), 0);
    for (int n = 0; n < 8; n++)
        assert_int_equal(zero[n], 8);
    words(packed, (uint32_t[]){0xffffffff}, 1); /* -1 in each: no carry reaches a neighbour */
    assert_int_equal(unpack_gptq_zeros(zero, packed, 4, 8, 1, true), 8);
    for (int n = 0; n < 8; n++)
        assert_int_equal(zero[n], 0);
    words(packed, (uint32_t[]){0x7f7f7fffu}, 1);
    assert_int_equal(unpack_gptq_zeros(zero, packed, 8, 4, 1, true), 1);
    assert_int_equal(zero[0], -128);
    assert_int_equal(zero[1], 0);
}

/* --- random matrices -------------------------------------------------------------------------- */
struct plain {
    uint64_t n, k;
    uint8_t *u; /* (n, k) unsigned codes */
};

static struct plain random_plain(struct rng *rng, uint64_t n, uint64_t k, uint32_t bits) {
    struct plain p = {n, k, mem_alloc(n * k)};

    for (uint64_t i = 0; i < n * k; i++)
        p.u[i] = (uint8_t)(rng_u64(rng) & ((1u << bits) - 1));
    return p;
}

/* Field i of a bit string of 32-bit words, whose bit b is bit b of the bytes. */
static void set_field(uint8_t *packed, uint64_t i, uint32_t bits, uint8_t code) {
    if (bits == 8) {
        packed[i] = code;
    } else {
        packed[i / 2] = (uint8_t)(packed[i / 2] | code << i % 2 * 4);
    }
}

static void same(const struct plain *p, const uint8_t *codes, uint32_t bits,
                 const uint32_t *order) {
    for (uint64_t n = 0; n < p->n; n++) {
        for (uint64_t k = 0; k < p->k; k++) {
            uint8_t want = p->u[n * p->k + (order ? order[k] : k)];

            if (bits == 4) {
                assert_int_equal(nibble(codes + n * ((p->k + 1) / 2), k), want);
            } else {
                assert_int_equal((int8_t)codes[n * p->k + k], want - 128);
            }
        }
    }
}

static uint32_t *random_order(struct rng *rng, uint64_t k) {
    uint32_t *order = mem_calloc(k, sizeof(*order));

    for (uint32_t i = 0; i < k; i++) {
        uint32_t j = (uint32_t)rng_below(rng, i + 1ull);

        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

enum kind { ROWS, AWQ, GPTQ };

static void check_random(struct rng *rng, enum kind kind, uint32_t bits, uint64_t n, uint64_t k,
                         bool has_order) {
    static const int awq[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    struct plain p = random_plain(rng, n, k, bits);
    uint64_t f = 32 / bits, row_words = CEIL_DIV(k * bits, (uint64_t)32);
    uint8_t *packed = mem_zalloc(n * row_words * 4 + k * n), *codes = mem_alloc(n * k + 1);
    uint32_t *order = has_order ? random_order(rng, k) : NULL;

    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t i = 0; i < k; i++) {
            uint8_t u = p.u[r * k + i];

            if (kind == ROWS) set_field(packed, r * row_words * f + i, bits, u);
            if (kind == GPTQ) set_field(packed, (i / f * n + r) * f + i % f, bits, u);
            for (uint64_t j = 0; kind == AWQ && j < 8; j++) {
                if (awq[j] == (int)(r % 8)) set_field(packed, i * n + r / 8 * 8 + j, 4, u);
            }
        }
    }
    if (kind == ROWS) unpack_rows(codes, packed, bits, n, k, order);
    if (kind == GPTQ) unpack_gptq(codes, packed, bits, n, k, order);
    if (kind == AWQ) unpack_awq(codes, packed, n, k);
    same(&p, codes, bits, order);
    mem_free(order);
    mem_free(codes);
    mem_free(packed);
    mem_free(p.u);
}

static void random_matrices_come_out_as_they_went_in(void **state) {
    static const uint64_t ns[] = {8, 24, 136, 1024}, ks[] = {8, 128, 72, 4096};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 4; i++) {
        check_random(&rng, AWQ, 4, ns[i], ks[i], false);
        for (int j = 0; j < 4; j++) {
            check_random(&rng, ROWS, j % 2 ? 4 : 8, ns[i], ks[i] + (uint64_t)(j < 2 ? i : 0),
                         j / 2);
            check_random(&rng, GPTQ, j % 2 ? 4 : 8, ns[i], ks[i], j / 2);
        }
    }
    check_random(&rng, ROWS, 4, 3, 100, false);
    check_random(&rng, ROWS, 4, 3, 99, true);
    check_random(&rng, AWQ, 4, 16, 33, false);
}

/* --- groups ----------------------------------------------------------------------------------- */
static void inputs_are_sorted_by_group_and_stay_in_order_within(void **state) {
    static const uint32_t group_of[] = {1, 0, 2, 1, 0, 0, 1, 2},
                          sorted[] = {0, 0, 0, 1, 1, 1, 2, 2};
    static const uint32_t want[] = {1, 4, 5, 0, 3, 6, 2, 7};
    static const uint32_t crowded[] = {0, 0, 0, 0, 1, 1, 2, 2},
                          outside[] = {0, 0, 0, 1, 1, 1, 2, 3};
    uint32_t order[8];
    struct error err;

    (void)state;
    assert_int_equal(unpack_order(order, (const void *)group_of, 8, 3, &err), ST_OK);
    assert_false(unpack_is_sorted((const void *)group_of, 8, 3));
    assert_memory_equal(order, want, sizeof(want));
    assert_int_equal(unpack_order(order, (const void *)sorted, 8, 3, &err), ST_OK);
    assert_true(unpack_is_sorted((const void *)sorted, 8, 3));
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(order[i], i);
    assert_int_equal(unpack_order(order, (const void *)crowded, 8, 3, &err), ST_INVALID);
    assert_string_equal(err.message, "input 3 is in group 0: there are 3 groups of 3 inputs");
    assert_int_equal(unpack_order(order, (const void *)outside, 8, 3, &err), ST_INVALID);
    assert_string_equal(err.message, "input 7 is in group 3: there are 3 groups of 3 inputs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compressed_tensors_rows),
        cmocka_unit_test(compressed_tensors_zeros),
        cmocka_unit_test(awq_words),
        cmocka_unit_test(gptq_words),
        cmocka_unit_test(random_matrices_come_out_as_they_went_in),
        cmocka_unit_test(inputs_are_sorted_by_group_and_stay_in_order_within),
    };

    return cmocka_run_group_tests_name("worker/model/quant/unpack", tests, NULL, NULL);
}
