/* tests/unit/router/proxy/test_retry.c - the words of --retry-on. */
#include <string.h>

#include "router/proxy/retry.h"
#include "tests/support/cm.h"

static void names_of_retry_on_are_bits(void **state) {
    static const char *const some[] = {"connect", "503"}, *const all[] = {"all"},
                             *const none[] = {"none"}, *const wrong[] = {"500", "501"},
                             *const both[] = {"none", "500"};
    struct error err;

    (void)state;
    assert_int_equal(retry_causes(&(struct option_list){some, 2}), RETRY_CONNECT | RETRY_503);
    assert_int_equal(retry_causes(&(struct option_list){all, 1}), RETRY_ALL);
    assert_int_equal(retry_causes(&(struct option_list){none, 1}), 0);
    assert_int_equal(retry_check(&(struct option_list){none, 1}, NULL), ST_OK);
    error_init(&err);
    assert_int_equal(retry_check(&(struct option_list){wrong, 2}, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "'501'"));
    assert_int_equal(retry_check(&(struct option_list){both, 2}, NULL), ST_INVALID);
    for (int code = 200; code < 600; code++) {
        uint32_t cause = retry_cause_of_status(code);

        assert_int_equal(cause != 0, code == 500 || (code >= 502 && code <= 504));
        if (cause) assert_int_equal(retry_name(cause)[2], '0' + code % 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_retry_on_are_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
