/* tests/unit/router/access/test_isolation.c - salts that differ when they must, and the one
 * rewrite. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "router/access/isolation.h"
#include "tests/support/cm.h"

static struct isolation make(const char *secret) {
    struct isolation s;

    assert_int_equal(isolation_init(&s, NULL, secret, NULL), ST_OK);
    return s;
}

static void salts_differ_by_secret_tenant_and_client_salt(void **state) {
    const char *const secrets[] = {"0123456789abcdef", "0123456789abcdeF"};
    const char *const tenants[] = {"", "a", "b", "ab"};
    const char *const given[] = {NULL, "\"\"", "\"a\"", "\"b\"", "null"};
    char seen[64][ISOLATION_SALT_CHARS + 1], again[ISOLATION_SALT_CHARS + 1];
    int n = 0;

    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(secrets); s++) {
        struct isolation iso = make(secrets[s]);

        assert_false(iso.is_random);
        for (size_t t = 0; t < ARRAY_LEN(tenants); t++) {
            for (size_t g = 0; g < ARRAY_LEN(given); g++) {
                isolation_salt(&iso, str_of(tenants[t]), str_of(given[g]), seen[n]);
                isolation_salt(&iso, str_of(tenants[t]), str_of(given[g]), again);
                assert_int_equal(strlen(seen[n]), ISOLATION_SALT_CHARS);
                assert_string_equal(seen[n], again);
                for (int i = 0; i < n; i++)
                    assert_string_not_equal(seen[i], seen[n]);
                n++;
            }
        }
    }
}

static void replicas_with_one_secret_make_one_salt(void **state) {
    char path[] = "/tmp/test_isolation_XXXXXX", a[ISOLATION_SALT_CHARS + 1];
    char b[ISOLATION_SALT_CHARS + 1];
    struct isolation text = make("correct horse battery"), file, random, other;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "correct horse battery\n", 22), 22);
    close(fd);
    assert_int_equal(isolation_init(&file, path, NULL, NULL), ST_OK);
    unlink(path);
    isolation_salt(&text, STR("t"), STR_NULL, a);
    isolation_salt(&file, STR("t"), STR_NULL, b);
    assert_string_equal(a, b);
    assert_int_equal(isolation_init(&random, NULL, NULL, NULL), ST_OK);
    assert_int_equal(isolation_init(&other, NULL, NULL, NULL), ST_OK);
    assert_true(random.is_random);
    isolation_salt(&random, STR("t"), STR_NULL, a);
    isolation_salt(&other, STR("t"), STR_NULL, b);
    assert_string_not_equal(a, b);
    isolation_derive(&random, "0123456789abcdef", 16); /* what two routers have in common */
    isolation_derive(&other, "0123456789abcdef", 16);
    assert_false(random.is_random || other.is_random);
    isolation_salt(&random, STR("t"), STR_NULL, a);
    isolation_salt(&other, STR("t"), STR_NULL, b);
    assert_string_equal(a, b);
    text = make("0123456789abcdef"); /* a seed is no secret of the same text */
    isolation_salt(&text, STR("t"), STR_NULL, b);
    assert_string_not_equal(a, b);
}

static void a_secret_that_can_be_guessed_is_refused(void **state) {
    struct isolation s;
    struct error err = {0};

    (void)state;
    assert_int_equal(isolation_init(&s, NULL, "brief", &err), ST_INVALID);
    assert_non_null(strstr(err.message, "5 bytes"));
    assert_null(strstr(err.message, "brief"));
    assert_int_equal(isolation_init(&s, "/no/such", NULL, &err), ST_NOT_FOUND);
    assert_int_equal(isolation_init(&s, "/no/such", "0123456789abcdef", &err), ST_INVALID);
}

static void the_body_changes_in_its_salt_alone(void **state) {
    static const struct {
        const char *body;
        bool is_generate;
        const char *wanted; /* S: the salt */
    } cases[] = {
        {"{\"prompt\":\"a\"}", false, "{\"cache_salt\":\"S\",\"prompt\":\"a\"}"},
        {" \n{ \"prompt\":\"a\"} ", false, " \n{\"cache_salt\":\"S\", \"prompt\":\"a\"} "},
        {"{}", false, "{\"cache_salt\":\"S\"}"},
        {"{ \t}", false, "{\"cache_salt\":\"S\" \t}"},
        {"{\"a\":1,\"cache_salt\" : \"mine\" ,\"b\":2}", false,
         "{\"a\":1,\"cache_salt\" : \"S\" ,\"b\":2}"},
        {"{\"cache_salt\":null}", false, "{\"cache_salt\":\"S\"}"},
        {"{\"cache_salt\":{\"a\":[1]},\"b\":2}", false, "{\"cache_salt\":\"S\",\"b\":2}"},
        {"{\"cache\\u005fsalt\":\"mine\"}", false, "{\"cache\\u005fsalt\":\"S\"}"},
        {"{\"m\":{\"cache_salt\":\"x\"}}", false,
         "{\"cache_salt\":\"S\",\"m\":{\"cache_salt\":\"x\"}}"},
        {"{\"text\":\"a\",\"extra_key\":\"mine\"}", true, "{\"text\":\"a\",\"extra_key\":\"S\"}"},
        {"{\"text\":\"a\"}", true, "{\"extra_key\":\"S\",\"text\":\"a\"}"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str body = str_of(cases[i].body);
        struct isolation_splice s;
        struct body_scan scan;
        char got[256];

        assert_int_equal(body_scan(body, &scan, NULL), ST_OK);
        isolation_splice(&s, body, &scan, cases[i].is_generate, "S");
        snprintf(got, sizeof(got), "%.*s%.*s%s", (int)s.at, body.ptr, (int)s.len, s.text,
                 body.ptr + s.at + s.removed);
        assert_string_equal(got, cases[i].wanted);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(salts_differ_by_secret_tenant_and_client_salt),
        cmocka_unit_test(replicas_with_one_secret_make_one_salt),
        cmocka_unit_test(a_secret_that_can_be_guessed_is_refused),
        cmocka_unit_test(the_body_changes_in_its_salt_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
