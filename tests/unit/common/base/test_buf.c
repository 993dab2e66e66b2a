/* tests/unit/common/base/test_buf.c - views and growing buffers. */
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "tests/support/cm.h"

static void append_and_consume_keep_order(void **state) {
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    for (int i = 0; i < 1000; i++) {
        buf_appendf(&b, "%03d,", i);
        if (i % 3 == 2) buf_consume(&b, 4);
    }
    assert_int_equal(buf_len(&b), 4 * (1000 - 333));
    assert_memory_equal(buf_ptr(&b), "333,", 4);
    buf_fini(&b);
}

static void the_limit_marks_failure_and_keeps_the_bytes(void **state) {
    struct buf b;

    (void)state;
    buf_init(&b, 10);
    buf_append(&b, "0123456789", 10);
    assert_int_equal(buf_status(&b), ST_OK);
    buf_append_char(&b, 'x');
    assert_int_equal(buf_status(&b), ST_NOMEM);
    assert_int_equal(buf_len(&b), 10);
    buf_fini(&b);
}

static void refused_memory_makes_it_failed(void **state) {
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    mem_fail_at(1);
    buf_append(&b, "x", 1);
    mem_fail_at(0);
    assert_int_equal(buf_status(&b), ST_NOMEM);
    buf_fini(&b);
}

static void numbers_are_strict(void **state) {
    uint64_t v;

    (void)state;
    assert_int_equal(str_to_u64(STR("18446744073709551615"), &v), ST_OK);
    assert_true(v == UINT64_MAX);
    assert_int_equal(str_to_u64(STR("18446744073709551616"), &v), ST_INVALID);
    assert_int_equal(str_to_u64(STR("+1"), &v), ST_INVALID);
    assert_int_equal(str_to_u64(STR(""), &v), ST_INVALID);
    assert_int_equal(str_to_u64(STR("1 "), &v), ST_INVALID);
}

static void percent_is_decoded_or_refused(void **state) {
    static const char *const wrong[] = {"%", "a%4", "%4g", "%g4", "a%00b", "longer than it"};
    char out[12];

    (void)state;
    assert_int_equal(str_percent_decode(STR("org%2Fname%2d1"), out, sizeof(out)), ST_OK);
    assert_string_equal(out, "org/name-1");
    assert_int_equal(str_percent_decode(STR("eleven-long"), out, sizeof(out)), ST_OK);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_int_equal(str_percent_decode(str_of(wrong[i]), out, sizeof(out)), ST_INVALID);
}

static void utf8_is_strict(void **state) {
    (void)state;
    assert_true(str_is_utf8(STR("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80")));
    assert_false(str_is_utf8(STR("\xC0\xAF")));
    assert_false(str_is_utf8(STR("\xED\xA0\x80")));
    assert_false(str_is_utf8(STR("\xF4\x90\x80\x80")));
    assert_false(str_is_utf8(STR("\xE2\x82")));
}

static void utf8_characters_have_a_length(void **state) {
    (void)state;
    assert_int_equal(str_utf8_len(STR("a\xC3")), 1);
    assert_int_equal(str_utf8_len(STR("\xC3\xA9x")), 2);
    assert_int_equal(str_utf8_len(STR("\xE2\x82\xAC")), 3);
    assert_int_equal(str_utf8_len(STR("\xF0\x9F\x98\x80")), 4);
    assert_int_equal(str_utf8_len(STR("\xA9")), 0);
    assert_int_equal(str_utf8_len(STR("")), 0);
}

static void doubles_are_the_shortest_decimal(void **state) {
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    buf_append_f64(&b, 0.1);
    buf_append_char(&b, ' ');
    buf_append_f64(&b, 2560);
    buf_append_char(&b, ' ');
    buf_append_f64(&b, 1.0 / 3);
    assert_true(str_eq(buf_str(&b), STR("0.1 2560 0.3333333333333333")));
    buf_fini(&b);
}

static void an_empty_buf_has_no_bytes_and_may_be_asked(void **state) {
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    assert_null(buf_ptr(&b));
    assert_int_equal(buf_str(&b).len, 0);
    buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_and_consume_keep_order),
        cmocka_unit_test(the_limit_marks_failure_and_keeps_the_bytes),
        cmocka_unit_test(refused_memory_makes_it_failed),
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(percent_is_decoded_or_refused),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(utf8_characters_have_a_length),
        cmocka_unit_test(doubles_are_the_shortest_decimal),
        cmocka_unit_test(an_empty_buf_has_no_bytes_and_may_be_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
