/* tests/unit/common/base/test_status.c - the table has no holes, and messages are put together. */
#include <string.h>

#include "common/base/status.h"
#include "tests/support/cm.h"

static void every_status_has_a_name_and_a_code(void **state) {
    (void)state;
    for (enum status st = ST_OK; st < ST_COUNT; st++) {
        assert_non_null(status_name(st));
        assert_in_range(status_http_code(st), 200, 508);
        assert_non_null(status_api_type(st));
        for (enum status other = ST_OK; other < st; other++) {
            assert_string_not_equal(status_name(st), status_name(other));
        }
    }
    assert_int_equal(status_http_code(ST_COUNT), 500);
    assert_string_equal(status_name(ST_COUNT), "unknown");
}

static void a_message_names_what_and_where(void **state) {
    struct error err = {0};

    (void)state;
    assert_int_equal(error_set_param(&err, ST_INVALID, "n", "n is %d", 7), ST_INVALID);
    assert_string_equal(err.param, "n");
    assert_int_equal(error_prefix(&err, "line %d", 3), ST_INVALID);
    assert_string_equal(err.message, "line 3: n is 7");
    assert_int_equal(error_set(&err, ST_BUSY, "full"), ST_BUSY);
    assert_string_equal(err.param, "");
    assert_string_equal(err.message, "full");
}

static void a_member_is_named_with_its_object(void **state) {
    struct error err = {0};

    (void)state;
    error_set_param(&err, ST_INVALID, "n", "n is %d", 7);
    assert_int_equal(error_within(&err, ST_INVALID, "o"), ST_INVALID);
    assert_string_equal(err.param, "o.n");
    assert_string_equal(err.message, "o.n is 7");
    assert_int_equal(error_within(&err, ST_OK, "o"), ST_OK);
    assert_string_equal(err.param, "o.n");
    error_set_param(&err, ST_INVALID, "n", "there is no n");
    error_within(&err, ST_INVALID, "o");
    assert_string_equal(err.param, "o.n");
    assert_string_equal(err.message, "there is no n");
    error_set(&err, ST_NOMEM, "out of memory");
    assert_int_equal(error_within(&err, ST_NOMEM, "o"), ST_NOMEM);
    assert_string_equal(err.param, "");
    assert_string_equal(err.message, "out of memory");
}

static void long_messages_are_cut_and_terminated(void **state) {
    char big[2 * ERROR_MESSAGE_MAX];
    struct error err = {0};

    (void)state;
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    error_set_param(&err, ST_INVALID, big, "%s", big);
    assert_int_equal(strlen(err.message), ERROR_MESSAGE_MAX - 1);
    assert_int_equal(strlen(err.param), ERROR_PARAM_MAX - 1);
    error_within(&err, ST_INVALID, big);
    assert_int_equal(strlen(err.message), ERROR_MESSAGE_MAX - 1);
    assert_int_equal(strlen(err.param), ERROR_PARAM_MAX - 1);
    error_prefix(&err, "%s", big);
    assert_int_equal(strlen(err.message), ERROR_MESSAGE_MAX - 1);
}

static void no_record_is_fine(void **state) {
    (void)state;
    assert_int_equal(error_set(NULL, ST_IO, "x"), ST_IO);
    assert_int_equal(error_set_param(NULL, ST_IO, "p", "x"), ST_IO);
    assert_int_equal(error_within(NULL, ST_IO, "x"), ST_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_and_a_code),
        cmocka_unit_test(a_message_names_what_and_where),
        cmocka_unit_test(a_member_is_named_with_its_object),
        cmocka_unit_test(long_messages_are_cut_and_terminated),
        cmocka_unit_test(no_record_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
