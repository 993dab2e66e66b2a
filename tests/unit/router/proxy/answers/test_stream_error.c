/* tests/unit/router/proxy/answers/test_stream_error.c - errors as events, in each API's form. */
#include "router/proxy/answers/stream_error.h"
#include "tests/support/cm.h"

static const struct api_stream of_api[] = {
    [API_OPENAI] = {API_OPENAI, 0, {NULL, 0}},
    [API_MESSAGES] = {API_MESSAGES, 0, {NULL, 0}},
    [API_RESPONSES] = {API_RESPONSES, 7, {"resp_1", 6}},
};

static const char *relayed(struct buf *out, enum api_form api, int code, struct str body) {
    buf_clear(out);
    stream_error_relay(out, &of_api[api], code, body);
    buf_append_char(out, '\0');
    return buf_ptr(out);
}

#define FAILED(sequence, id, code, message)                                                        \
    "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":" sequence    \
    ",\"response\":{\"id\":\"" id "\",\"object\":\"response\",\"status\":\"failed\",\"error\":{"   \
    "\"code\":\"" code "\",\"message\":\"" message "\"},\"output\":[]}}\n\n"

static void a_broken_answer_ends_in_its_form(void **state) {
    const struct stream_break why = {502, "upstream_error", "worker_lost", "Lost."};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    stream_error_break(&out, &of_api[API_OPENAI], &why);
    stream_error_break(&out, &of_api[API_MESSAGES], &why);
    stream_error_break(&out, &of_api[API_RESPONSES], &why);
    buf_append_char(&out, '\0');
    assert_string_equal(
        buf_ptr(&out),
        "data: {\"error\":{\"message\":\"Lost.\",\"type\":\"upstream_error\","
        "\"param\":null,\"code\":\"worker_lost\"}}\n\n"
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","
        "\"message\":\"Lost.\"}}\n\n" FAILED("7", "resp_1", "server_error", "Lost."));
    buf_fini(&out);
}

static void a_workers_error_is_one_event_whatever_its_line_breaks(void **state) {
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_string_equal(relayed(&out, API_OPENAI, 400, STR(" {\"error\":\r\n{\"a\":1}\n}\n")),
                        "data: {\"error\":  {\"a\":1} }\n\ndata: [DONE]\n\n");
    assert_string_equal(
        relayed(&out, API_MESSAGES, 400,
                STR("{\"type\":\"error\",\n\"error\":{\"message\":\"a\\nb\",\"type\":\"x\"}}")),
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
        "\"message\":\"a\\nb\"}}\n\n");
    assert_string_equal(
        relayed(&out, API_RESPONSES, 429, STR("{\"error\":{\"message\":\"slow\"}}")),
        FAILED("7", "resp_1", "rate_limit_exceeded", "slow"));
    buf_fini(&out);
}

static void a_body_without_a_message_is_named_by_its_code(void **state) {
    static const struct str bodies[] = {STR(""),
                                        STR("{"),
                                        STR("<html>"),
                                        STR("[1]"),
                                        STR("{\n\ndata: x"),
                                        STR("{\"error\":\"data: x\"}"),
                                        STR("{\"error\":{\"message\":7}}"),
                                        STR("{\"error\":{\"message\":\"\"}}")};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (int api = API_OPENAI; api <= API_RESPONSES; api++) {
        for (size_t i = 0; i < (api == API_OPENAI ? 5 : ARRAY_LEN(bodies)); i++) {
            assert_non_null(strstr(relayed(&out, api, 500, bodies[i]), "answered 500"));
            assert_null(strstr(buf_ptr(&out), "data: x"));
        }
    }
    assert_non_null(strstr(relayed(&out, API_OPENAI, 200, STR("[]")), "no stream"));
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_answer_ends_in_its_form),
        cmocka_unit_test(a_workers_error_is_one_event_whatever_its_line_breaks),
        cmocka_unit_test(a_body_without_a_message_is_named_by_its_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
