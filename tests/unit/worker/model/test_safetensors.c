/* tests/unit/worker/model/test_safetensors.c - what a header may claim, and what it may not. */
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/model/checkpoint/safetensors.h"

#define TENSOR(name, type, shape, begin, end)                                                      \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

/* A file of this header and n bytes of data: 0, 1, 2 ... */
static void make_file(struct buf *file, const char *header, size_t n_data) {
    uint64_t n = strlen(header);

    buf_clear(file);
    for (int i = 0; i < 8; i++)
        buf_append_char(file, (char)(n >> (8 * i)));
    buf_append(file, header, n);
    for (size_t i = 0; i < n_data; i++)
        buf_append_char(file, (char)i);
}

static enum status parse(struct safetensors **out, const char *header, size_t n_data,
                         struct buf *file, struct error *err) {
    make_file(file, header, n_data);
    memset(err, 0, sizeof(*err));
    return safetensors_parse(out, buf_ptr(file), buf_len(file), "x.safetensors", err);
}

static void tensors_are_found_by_name(void **state) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "F32", "[2,1]", "6", "14") "," TENSOR(
            "a", "BF16", "[3]", "0", "6") "," TENSOR("empty", "F16", "[0,4]", "14",
                                                     "14") "," TENSOR("scalar", "I64", "[]", "14",
                                                                      "22") "}   ";
    struct safetensors *f = NULL;
    const struct safetensor *t;
    struct buf file;
    struct error err;

    (void)state;
    buf_init(&file, 0);
    if (parse(&f, header, 22, &file, &err) != ST_OK) fail_msg("%s", err.message);
    assert_int_equal(safetensors_count(f), 4);
    t = safetensors_find(f, STR("b"));
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->n_bytes, 8);
    assert_int_equal(t->data[0], 6);
    assert_ptr_equal(safetensors_at(f, 0), safetensors_find(f, STR("a")));
    assert_false(safetensors_find(f, STR("scalar"))->is_usable);
    assert_null(safetensors_find(f, STR("c")));
    safetensors_close(f);
    buf_fini(&file);
}

static void false_claims_are_refused(void **state) {
    static const struct {
        const char *header;
        size_t n_data;
        const char *message;
    } cases[] = {
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 7, "beyond the end"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 9, "follow the last"},
        {"{" TENSOR("a", "F32", "[3]", "0", "8") "}", 8, "do not fit"},
        {"{" TENSOR("a", "F32", "[2]", "8", "0") "}", 8, "data_offsets"},
        {"{" TENSOR("a", "F32", "[2]", "-8", "0") "}", 8, "data_offsets"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8,9") "}", 8, "data_offsets"},
        {"{" TENSOR("a", "Q4", "[2]", "0", "8") "}", 8, "dtype"},
        {"{" TENSOR("a", "F32", "[-2]", "0", "8") "}", 8, "shape"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296,2]", "0", "8") "}", 8, "shape"},
        {"{" TENSOR("a", "F32", "[1152921504606846976]", "0", "0") "}", 0, "shape"},
        {"{" TENSOR("a", "F32", "\"2\"", "0", "8") "}", 8, "shape"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "4", "12") "}", 12,
         "overlaps"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[1]", "9", "13") "}", 13,
         "gap"},
        {"{" TENSOR("a", "F32", "[1]", "4", "8") "}", 8, "gap"},
        {"{" TENSOR("a", "U8", "[1]", "0", "1") "," TENSOR("a", "U8", "[1]", "1", "2") "}", 2, ""},
        {"{\"a\":3}", 0, "dtype"},
        {"{\"a\":{\"dtype\":\"U8\"}}", 0, "shape"},
        {"[]", 0, "object"},
        {"{", 0, "header"},
        {"", 0, "header"},
    };
    struct buf file;

    (void)state;
    buf_init(&file, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct safetensors *f = NULL;
        struct error err;
        enum status st = parse(&f, cases[i].header, cases[i].n_data, &file, &err);

        if (st != ST_INVALID || !strstr(err.message, cases[i].message)) {
            fail_msg("case %zu: %s: %s", i, status_name(st), err.message);
        }
        assert_null(f);
    }
    buf_fini(&file);
}

static void a_header_longer_than_the_file_is_refused(void **state) {
    static const uint8_t sizes[][8] = {{255, 255, 255, 255, 255, 255, 255, 255},
                                       {3, 0, 0, 0, 0, 0, 0, 0},
                                       {0, 0, 0, 0, 0, 0, 0, 0x80}};
    struct safetensors *f = NULL;
    struct error err;
    char file[10] = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        memcpy(file, sizes[i], 8);
        assert_int_equal(safetensors_parse(&f, file, sizeof(file), "x", &err), ST_INVALID);
        assert_non_null(strstr(err.message, "declares a header"));
    }
    for (size_t n = 0; n < 8; n++) {
        assert_int_equal(safetensors_parse(&f, file, n, "x", &err), ST_INVALID);
    }
    assert_int_equal(safetensors_open(&f, "/nonexistent", &err), ST_IO);
    assert_int_equal(safetensors_open(&f, "/dev/null", &err), ST_INVALID);
}

/* With any damaged header, a tensor that is found lies in the file. */
static void damage_never_points_outside(void **state) {
    static const char header[] =
        "{" TENSOR("a", "F32", "[2,3]", "0", "24") "," TENSOR("bb", "BF16", "[4]", "24", "32") "}";
    struct buf file;
    struct rng rng;

    (void)state;
    buf_init(&file, 0);
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 20000; round++) {
        struct safetensors *f = NULL;
        size_t n;

        make_file(&file, header, 32);
        n = buf_len(&file);
        for (uint64_t i = rng_below(&rng, 3) + 1; i > 0; i--) {
            buf_ptr(&file)[rng_below(&rng, 8 + sizeof(header))] =
                rng_below(&rng, 2) ? (char)('0' + rng_below(&rng, 10)) : (char)rng_below(&rng, 256);
        }
        if (safetensors_parse(&f, buf_ptr(&file), n, "x", NULL) != ST_OK) continue;
        for (uint32_t i = 0; i < safetensors_count(f); i++) {
            const struct safetensor *t = safetensors_at(f, i);

            assert_true((const char *)t->data >= buf_ptr(&file));
            assert_true((const char *)t->data + t->n_bytes <= buf_ptr(&file) + n);
        }
        safetensors_close(f);
    }
    buf_fini(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(false_claims_are_refused),
        cmocka_unit_test(a_header_longer_than_the_file_is_refused),
        cmocka_unit_test(damage_never_points_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
