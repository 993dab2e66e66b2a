/* tests/unit/common/text/test_msgpack.c - shortest forms, and readers that survive any input. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/text/msgpack.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void assert_bytes(const struct buf *b, const char *hex) {
    char text[256] = "";

    assert_true(buf_len(b) < sizeof(text) / 2);
    for (size_t i = 0; i < buf_len(b); i++)
        snprintf(text + 2 * i, 3, "%02x", (uint8_t)buf_ptr(b)[i]);
    assert_string_equal(text, hex);
}

static void numbers_take_their_shortest_form(void **state) {
    static const struct {
        int64_t value;
        const char *hex;
    } cases[] = {
        {0, "00"},
        {127, "7f"},
        {128, "cc80"},
        {255, "ccff"},
        {256, "cd0100"},
        {65535, "cdffff"},
        {65536, "ce00010000"},
        {4294967295, "ceffffffff"},
        {4294967296, "cf0000000100000000"},
        {-1, "ff"},
        {-32, "e0"},
        {-33, "d0df"},
        {-128, "d080"},
        {-129, "d1ff7f"},
        {-32768, "d18000"},
        {-32769, "d2ffff7fff"},
        {INT32_MIN, "d280000000"},
        {INT64_MIN, "d38000000000000000"},
    };
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_clear(&b);
        msgpack_put_i64(&b, cases[i].value);
        assert_bytes(&b, cases[i].hex);
    }
    buf_clear(&b);
    msgpack_put_u64(&b, UINT64_MAX);
    msgpack_put_f64(&b, 1.5);
    msgpack_put_nil(&b);
    msgpack_put_bool(&b, true);
    assert_bytes(&b, "cfffffffffffffffffcb3ff8000000000000c0c3");
    buf_fini(&b);
}

static void lengths_take_their_shortest_form(void **state) {
    static char bytes[70000];
    static const struct {
        size_t n;
        uint8_t str, bin, array, map;
    } cases[] = {
        {0, 0xa0, 0xc4, 0x90, 0x80},     {15, 0xaf, 0xc4, 0x9f, 0x8f},
        {16, 0xb0, 0xc4, 0xdc, 0xde},    {31, 0xbf, 0xc4, 0xdc, 0xde},
        {32, 0xd9, 0xc4, 0xdc, 0xde},    {255, 0xd9, 0xc4, 0xdc, 0xde},
        {256, 0xda, 0xc5, 0xdc, 0xde},   {65535, 0xda, 0xc5, 0xdc, 0xde},
        {65536, 0xdb, 0xc6, 0xdd, 0xdf},
    };
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_clear(&b);
        msgpack_put_str(&b, (struct str){bytes, cases[i].n});
        assert_int_equal((uint8_t)buf_ptr(&b)[0], cases[i].str);
        buf_clear(&b);
        msgpack_put_bin(&b, bytes, cases[i].n);
        assert_int_equal((uint8_t)buf_ptr(&b)[0], cases[i].bin);
        buf_clear(&b);
        msgpack_begin_array(&b, (uint32_t)cases[i].n);
        assert_int_equal((uint8_t)buf_ptr(&b)[0], cases[i].array);
        buf_clear(&b);
        msgpack_begin_map(&b, (uint32_t)cases[i].n);
        assert_int_equal((uint8_t)buf_ptr(&b)[0], cases[i].map);
    }
    buf_fini(&b);
}

/* Of any magnitude, at most 2^63. */
static uint64_t draw(struct rng *rng) {
    uint64_t v = rng_u64(rng);

    return v >> (1 + rng_below(rng, 63));
}

/* A random value of at most `depth` containers; the same draws read it back. */
static void put_random(struct buf *b, struct rng *rng, int depth) {
    uint32_t n = (uint32_t)rng_below(rng, 20), kind = (uint32_t)rng_below(rng, depth > 0 ? 9 : 7);
    char bytes[20];

    memset(bytes, 'x', sizeof(bytes));
    switch (kind) {
    case 0: msgpack_put_nil(b); break;
    case 1: msgpack_put_bool(b, n & 1); break;
    case 2: msgpack_put_u64(b, draw(rng)); break;
    case 3: msgpack_put_i64(b, -(int64_t)draw(rng)); break;
    case 4: msgpack_put_f64(b, (double)rng_u64(rng)); break;
    case 5: msgpack_put_str(b, (struct str){bytes, n}); break;
    case 6: msgpack_put_bin(b, bytes, n); break;
    case 7:
        msgpack_begin_array(b, n);
        for (uint32_t i = 0; i < n; i++)
            put_random(b, rng, depth - 1);
        break;
    default:
        msgpack_begin_map(b, n);
        for (uint32_t i = 0; i < 2 * n; i++)
            put_random(b, rng, depth - 1);
    }
}

static void expect_random(struct msgpack_reader *r, struct rng *rng, int depth) {
    uint32_t n = (uint32_t)rng_below(rng, 20), kind = (uint32_t)rng_below(rng, depth > 0 ? 9 : 7);
    struct msgpack_value v;
    int64_t negative;

    assert_int_equal(msgpack_next(r, &v), ST_OK);
    switch (kind) {
    case 0: assert_int_equal(v.type, MSGPACK_NIL); break;
    case 1: assert_true(v.type == MSGPACK_BOOL && v.boolean == (n & 1)); break;
    case 2: assert_true(v.type == MSGPACK_U64 && v.u64 == draw(rng)); break;
    case 3:
        negative = -(int64_t)draw(rng);
        assert_int_equal(v.type, negative < 0 ? MSGPACK_I64 : MSGPACK_U64);
        assert_true(v.i64 == negative);
        break;
    case 4: assert_true(v.type == MSGPACK_F64 && v.f64 == (double)rng_u64(rng)); break;
    case 5: assert_true(v.type == MSGPACK_STR && v.bytes.len == n); break;
    case 6: assert_true(v.type == MSGPACK_BIN && v.bytes.len == n); break;
    case 7:
        assert_true(v.type == MSGPACK_ARRAY && v.n == n);
        for (uint32_t i = 0; i < n; i++)
            expect_random(r, rng, depth - 1);
        break;
    default:
        assert_true(v.type == MSGPACK_MAP && v.n == n);
        for (uint32_t i = 0; i < 2 * n; i++)
            expect_random(r, rng, depth - 1);
    }
}

static void written_values_are_read_back(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 300; i++) {
        struct msgpack_reader reader, skipper;
        struct rng rng;
        struct buf b;

        buf_init(&b, 0);
        rng_seed(&rng, support_seed() + i);
        put_random(&b, &rng, 3);
        reader = skipper = msgpack_reader_of(buf_str(&b));
        rng_seed(&rng, support_seed() + i);
        expect_random(&reader, &rng, 3);
        assert_ptr_equal(reader.at, reader.end);
        assert_int_equal(msgpack_skip(&skipper), ST_OK);
        assert_ptr_equal(skipper.at, skipper.end);
        for (size_t n = 0; n < MIN(buf_len(&b), 200); n++) { /* cut anywhere: refused */
            skipper = msgpack_reader_of((struct str){buf_ptr(&b), n});
            assert_int_equal(msgpack_skip(&skipper), ST_INVALID);
        }
        buf_fini(&b);
    }
}

static void an_array_of_numbers_is_its_numbers(void **state) {
    uint32_t values[400];
    struct buf one, each;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&one, 0);
    buf_init(&each, 0);
    for (uint32_t n = 0; n < ARRAY_LEN(values); n++) {
        buf_clear(&one);
        buf_clear(&each);
        values[n] = (uint32_t)(draw(&rng) >> 31);
        values[n] >>= rng_below(&rng, 32);
        msgpack_put_u32_array(&one, values, n);
        msgpack_begin_array(&each, n);
        for (uint32_t i = 0; i < n; i++)
            msgpack_put_u64(&each, values[i]);
        assert_int_equal(buf_len(&one), buf_len(&each));
        assert_memory_equal(buf_ptr(&one), buf_ptr(&each), buf_len(&one));
    }
    buf_fini(&one);
    buf_fini(&each);
}

static void a_container_larger_than_its_bytes_is_refused(void **state) {
    static const struct str lies[] = {STR("\xdd\xff\xff\xff\xff\x01"),
                                      STR("\xdf\x00\x00\x00\x02\x01\x01"),
                                      STR("\xc6\xff\xff\xff\xff\x01"),
                                      STR("\xc1"),
                                      STR("\xd4\x01\x01"),
                                      STR("\xc7\x01\x01\x01"),
                                      STR("")};
    struct msgpack_value v;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        struct msgpack_reader r = msgpack_reader_of(lies[i]);

        assert_int_equal(msgpack_next(&r, &v), ST_INVALID);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_take_their_shortest_form),
        cmocka_unit_test(lengths_take_their_shortest_form),
        cmocka_unit_test(written_values_are_read_back),
        cmocka_unit_test(an_array_of_numbers_is_its_numbers),
        cmocka_unit_test(a_container_larger_than_its_bytes_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
