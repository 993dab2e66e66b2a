/* tests/unit/common/protocol/test_api.c - paths, errors and marks of the three APIs. */
#include "common/protocol/api.h"
#include "tests/support/cm.h"

static void a_path_has_one_api(void **state) {
    (void)state;
    assert_int_equal(api_of(STR("/v1/chat/completions")), API_OPENAI);
    assert_int_equal(api_of(STR("/v1/messages")), API_MESSAGES);
    assert_int_equal(api_of(STR("/v1/messages/count_tokens")), API_MESSAGES);
    assert_int_equal(api_of(STR("/v1/messagesx")), API_OPENAI);
    assert_int_equal(api_of(STR("/v1/responses")), API_RESPONSES);
    assert_int_equal(api_of(STR("/v1/responses/resp_1/cancel")), API_RESPONSES);
    assert_int_equal(api_of(STR("/v1")), API_OPENAI);
    assert_int_equal(api_of(STR_NULL), API_OPENAI);
}

static const char *error_of(struct buf *out, enum api_form api, enum status st, int code) {
    struct error err = {0};

    buf_clear(out);
    error_set(&err, st, "too \"busy\"\nnow");
    api_append_error(out, api, st, code, &err);
    buf_append_char(out, '\0');
    return buf_ptr(out);
}

static const char *event_of(struct buf *out, const struct api_stream *stream, enum status st) {
    struct error err = {0};

    buf_clear(out);
    error_set(&err, st, "too \"busy\"\nnow");
    api_append_error_event(out, stream, st, status_http_code(st), &err);
    buf_append_char(out, '\0');
    return buf_ptr(out);
}

#define MESSAGE "\"message\":\"too \\\"busy\\\"\\nnow\""

static void each_api_has_its_form_of_an_error(void **state) {
    static const char openai[] =
        "{\"error\":{" MESSAGE ",\"type\":\"RateLimitError\",\"param\":null,\"code\":429}}";
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_string_equal(error_of(&out, API_OPENAI, ST_BUSY, 0), openai);
    assert_string_equal(error_of(&out, API_RESPONSES, ST_BUSY, 429), openai);
    assert_string_equal(error_of(&out, API_MESSAGES, ST_BUSY, 0),
                        "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\"," MESSAGE
                        "}}");
    buf_clear(&out);
    api_append_error(&out, API_MESSAGES, ST_NOT_FOUND, 0, NULL);
    buf_append_char(&out, '\0');
    assert_non_null(strstr(buf_ptr(&out), status_name(ST_NOT_FOUND)));
    assert_string_equal(event_of(&out, &(struct api_stream){.api = API_OPENAI}, ST_BUSY),
                        "data: {\"error\":{" MESSAGE
                        ",\"type\":\"RateLimitError\",\"param\":null,\"code\":429}}\n\n"
                        "data: [DONE]\n\n");
    assert_string_equal(event_of(&out, &(struct api_stream){.api = API_MESSAGES}, ST_UNAVAILABLE),
                        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                        "\"overloaded_error\"," MESSAGE "}}\n\n");
    assert_string_equal(
        event_of(&out, &(struct api_stream){API_RESPONSES, 3, STR("resp_a")}, ST_INVALID),
        "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":3,"
        "\"response\":{\"id\":\"resp_a\",\"object\":\"response\",\"status\":\"failed\",\"error\":{"
        "\"code\":\"invalid_prompt\"," MESSAGE "},\"output\":[]}}\n\n");
    buf_fini(&out);
}

static void messages_name_errors_by_status(void **state) {
    static const struct {
        int code;
        const char *type;
    } cases[] = {{400, "invalid_request_error"},
                 {401, "authentication_error"},
                 {403, "permission_error"},
                 {404, "not_found_error"},
                 {405, "invalid_request_error"},
                 {413, "request_too_large"},
                 {429, "rate_limit_error"},
                 {500, "api_error"},
                 {502, "api_error"},
                 {503, "overloaded_error"},
                 {504, "api_error"},
                 {529, "overloaded_error"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_string_equal(api_messages_error_type(cases[i].code), cases[i].type);
}

static void an_id_has_the_mark_of_its_worker(void **state) {
    (void)state;
    assert_true(str_eq(api_mark_of(STR("resp_0123456789ab0")), STR("0123456789ab")));
    assert_null(api_mark_of(STR("resp_")).ptr);
    assert_null(api_mark_of(STR("resp_0123456789ab")).ptr);  /* nothing behind it */
    assert_null(api_mark_of(STR("resp_0123456789aBc")).ptr); /* no mark of ours */
    assert_null(api_mark_of(STR("chat_0123456789abc")).ptr);
    assert_null(api_mark_of(STR_NULL).ptr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_has_one_api),
        cmocka_unit_test(each_api_has_its_form_of_an_error),
        cmocka_unit_test(messages_name_errors_by_status),
        cmocka_unit_test(an_id_has_the_mark_of_its_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
