/* tests/unit/router/proxy/answers/test_stream_error.c - errors as events, in each API's form. */
#include "router/proxy/answers/stream_error.h"
#include "tests/support/cm.h"

static const char *event_of(struct buf *out, const char *path, enum status st, int code) {
    struct error err = {0};

    buf_clear(out);
    error_set(&err, st, "too \"busy\"\nnow");
    stream_error_append(out, str_of(path), st, code, &err);
    buf_append_char(out, '\0');
    return buf_ptr(out);
}

static const char *relayed(struct buf *out, const char *path, int code, struct str body) {
    buf_clear(out);
    stream_error_relay(out, str_of(path), code, body);
    buf_append_char(out, '\0');
    return buf_ptr(out);
}

static void each_api_gets_its_form(void **state) {
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_string_equal(event_of(&out, "/v1/chat/completions", ST_BUSY, 429),
                        "data: {\"error\":{\"message\":\"too \\\"busy\\\"\\nnow\",\"type\":"
                        "\"RateLimitError\",\"param\":null,\"code\":429}}\n\ndata: [DONE]\n\n");
    assert_string_equal(event_of(&out, "/v1/messages", ST_BUSY, 429),
                        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                        "\"rate_limit_error\",\"message\":\"too \\\"busy\\\"\\nnow\"}}\n\n");
    assert_string_equal(event_of(&out, "/v1/responses", ST_UNAVAILABLE, 503),
                        "event: error\ndata: {\"type\":\"error\",\"code\":\"503\",\"message\":"
                        "\"too \\\"busy\\\"\\nnow\",\"param\":null}\n\n");
    buf_fini(&out);
}

static void a_workers_error_is_one_event_whatever_its_line_breaks(void **state) {
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_string_equal(
        relayed(&out, "/v1/completions", 400, STR(" {\"error\":\r\n{\"a\":1}\n}\n")),
        "data: {\"error\":  {\"a\":1} }\n\ndata: [DONE]\n\n");
    assert_string_equal(relayed(&out, "/v1/messages", 400, STR("{\"type\":\"error\"}")),
                        "event: error\ndata: {\"type\":\"error\"}\n\n");
    buf_fini(&out);
}

static void a_body_that_is_no_object_is_named_by_its_code(void **state) {
    static const struct str bodies[] = {STR(""), STR("{"), STR("<html>"), STR("[1]"),
                                        STR("{\n\ndata: x")};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        assert_non_null(strstr(relayed(&out, "/generate", 500, bodies[i]), "answered 500"));
        assert_null(strstr(buf_ptr(&out), "data: x"));
    }
    assert_non_null(strstr(relayed(&out, "/generate", 200, STR("[]")), "no stream"));
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_api_gets_its_form),
        cmocka_unit_test(a_workers_error_is_one_event_whatever_its_line_breaks),
        cmocka_unit_test(a_body_that_is_no_object_is_named_by_its_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
