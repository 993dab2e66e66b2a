/* tests/unit/worker/api/test_drain.c - which addresses may drain a worker. */
#include "tests/support/cm.h"
#include "worker/api/api.h"

static void only_the_machine_itself_may_drain_it(void **state) {
    static const char *const here[] = {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"};
    static const char *const elsewhere[] = {
        "",        "10.0.0.7",        "128.0.0.1",  "12.7.0.1",    "::",     "::11",
        "fe80::1", "::ffff:10.0.0.7", "2001:db8::", "::127.0.0.1", "1270::1"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(here); i++)
        assert_true(api_is_loopback(str_of(here[i])));
    for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++)
        assert_false(api_is_loopback(str_of(elsewhere[i])));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_the_machine_itself_may_drain_it)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
