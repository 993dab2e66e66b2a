/* tests/unit/common/http/test_http_fetch.c - what an origin is. Transfers, cuts and redirects are
 * driven through a whole download in tests/integration/test_download.py. */
#include "common/http/http_fetch.h"
#include "tests/support/cm.h"

static void an_origin_is_scheme_host_and_port(void **state) {
    static const struct {
        const char *url, *text;
        bool is_https, is_loopback;
    } cases[] = {
        {"https://huggingface.co/a/b?c=d", "https://huggingface.co:443", true, false},
        {"https://huggingface.co:444", "https://huggingface.co:444", true, false},
        {"http://127.0.0.1:8000/x", "http://127.0.0.1:8000", false, true},
        {"http://127.1.2.3/", "http://127.1.2.3:80", false, true},
        {"http://localhost", "http://localhost:80", false, true},
        {"http://[::1]:9/", "http://[::1]:9", false, true},
        {"http://127.0.0.1.example.org/", "http://127.0.0.1.example.org:80", false, false},
        {"http://localhost.example.org/", "http://localhost.example.org:80", false, false},
    };
    struct http_origin o;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(http_origin_of(&o, cases[i].url, NULL), ST_OK);
        assert_string_equal(o.text, cases[i].text);
        assert_int_equal(o.is_https, cases[i].is_https);
        assert_int_equal(o.is_loopback, cases[i].is_loopback);
    }
}

static void an_invalid_url_is_refused(void **state) {
    static const char *const bad[] = {
        "",         "huggingface.co",    "ftp://host/",        "file:///x", "https://user@host/",
        "https://", "https://a:b@host/", "https://host:99999/"};
    struct http_origin o;
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (http_origin_of(&o, bad[i], &err) != ST_INVALID) fail_msg("%s is taken", bad[i]);
        assert_non_null(strstr(err.message, "https://host/path"));
    }
    assert_int_equal(http_origin_of(&o, "https://me:secret@host:99999/", &err), ST_INVALID);
    assert_null(strstr(err.message, "secret"));
    assert_int_equal(http_origin_of(&o, "ftp://host/?signature=secret", &err), ST_INVALID);
    assert_null(strstr(err.message, "secret"));
}

static void a_closed_port_is_tried_again(void **state) {
    struct http_fetch_request request = {.url = "http://127.0.0.1:9/x?signature=secret",
                                         .allows_http = true};
    struct http_fetch *f = NULL;
    struct error err = {0};
    int code;

    (void)state;
    assert_int_equal(http_fetch_create(&f, &err), ST_OK);
    assert_int_equal(http_fetch_run(f, &request, &code, &err), ST_IO);
    assert_non_null(strstr(err.message, "127.0.0.1:9"));
    assert_null(strstr(err.message, "secret"));
    request.allows_http = false;
    assert_int_equal(http_fetch_run(f, &request, &code, &err), ST_IO);
    http_fetch_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_origin_is_scheme_host_and_port),
        cmocka_unit_test(an_invalid_url_is_refused),
        cmocka_unit_test(a_closed_port_is_tried_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
