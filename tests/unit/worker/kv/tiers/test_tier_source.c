/* tests/unit/worker/kv/tiers/test_tier_source.c - the worker that a request names is read, or what
 * stands there is refused. */
#include <string.h>

#include "tests/support/cm.h"
#include "worker/kv/tiers/tier_source.h"

static void a_source_is_read(void **state) {
    static const struct {
        const char *value, *authority;
        uint32_t n_tokens;
    } all[] = {
        {"10.0.0.7:31000;tokens=4096", "10.0.0.7:31000", 4096},
        {"worker-3.fleet:80; tokens=1", "worker-3.fleet:80", 1},
        {"[::1]:8000;gen=7;tokens=2147483647;more", "[::1]:8000", 2147483647},
        {"GPU-7:9;tokens=5", "gpu-7:9", 5},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        struct tier_source source = {.n_tokens = 0};
        struct error err = {0};

        if (tier_source_parse(str_of(all[i].value), &source, &err) != ST_OK)
            fail_msg("%s", err.message);
        assert_string_equal(source.authority, all[i].authority);
        assert_int_equal(source.n_tokens, all[i].n_tokens);
    }
}

static void what_is_no_source_is_refused(void **state) {
    static const char *const all[] = {
        "",
        ";",
        "tokens=4",
        "a:1",
        "a:1;",
        "a:1;tokens=",
        "a:1;tokens=0",
        "a:1;tokens=-1",
        "a:1;tokens=2147483648",
        "a:1;tokens=4x",
        "a:1/x;tokens=4",
        "u@a:1;tokens=4",
        "http://a:1;tokens=4",
        "a:70000;tokens=4",
        "a b:1;tokens=4",
        ":1;tokens=4",
    };
    char longer[400];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        struct tier_source source = {.authority = "as it was"};
        struct error err = {0};

        if (tier_source_parse(str_of(all[i]), &source, &err) != ST_INVALID)
            fail_msg("'%s' was taken for a source", all[i]);
        assert_non_null(strstr(err.message, "HOST:PORT;tokens=N"));
        assert_string_equal(source.authority, "as it was");
    }
    memset(longer, 'a', sizeof(longer));
    memcpy(longer + sizeof(longer) - 13, ":80;tokens=4", 13);
    assert_int_equal(tier_source_parse(str_of(longer), &(struct tier_source){0}, NULL), ST_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_source_is_read),
        cmocka_unit_test(what_is_no_source_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
