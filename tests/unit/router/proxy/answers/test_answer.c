/* tests/unit/router/proxy/answers/test_answer.c - what is an answer, and what is none. */
#include "router/proxy/answers/answer.h"
#include "tests/support/cm.h"

static void answers_are_distinguished_from_errors(void **state) {
    static const struct {
        const char *body;
        enum answer_fault fault, of_completion;
    } cases[] = {
        {"", ANSWER_EMPTY, ANSWER_EMPTY},
        {" \r\n", ANSWER_EMPTY, ANSWER_EMPTY},
        {"{\"choices\":[{}]}", ANSWER_FINE, ANSWER_FINE},
        {" {\"id\":1, \"choices\" : [ {} ] }\n", ANSWER_FINE, ANSWER_FINE},
        {"{\"choices\":[]}", ANSWER_FINE, ANSWER_EMPTY},
        {"{\"choices\": [], \"usage\":{}}", ANSWER_FINE, ANSWER_EMPTY},
        {"{\"choices\" : [ ] }", ANSWER_FINE, ANSWER_EMPTY},
        {"{\"id\":\"choices\",\"choices\":[{}]}", ANSWER_FINE, ANSWER_FINE},
        {"{\"id\":\"\\\"choices\\\":[]\",\"choices\":[{\"text\":\"\\\"choices\\\":[]\"}]}",
         ANSWER_FINE, ANSWER_FINE},
        {"{\"ok\":true}", ANSWER_FINE, ANSWER_EMPTY},
        {"[1,2]", ANSWER_FINE, ANSWER_EMPTY},
        {"[1,2", ANSWER_CUT, ANSWER_CUT},
        {"{\"choices\":[{", ANSWER_CUT, ANSWER_CUT},
        {"{", ANSWER_CUT, ANSWER_CUT},
        {"{\"error\":{\"message\":\"x\"}}", ANSWER_ERROR, ANSWER_ERROR},
        {"{ \"error\" : \"x\"", ANSWER_ERROR, ANSWER_ERROR},
        {"{\"object\":\"error\",\"message\":\"x\"}", ANSWER_ERROR, ANSWER_ERROR},
        {"{\"error\":null,\"choices\":[{}]}", ANSWER_FINE, ANSWER_FINE},
        {"{\"object\":\"chat.completion\",\"choices\":[{}],\"error\":{}}", ANSWER_FINE,
         ANSWER_FINE},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str body = str_of(cases[i].body);

        assert_int_equal(answer_judge(body, false), cases[i].fault);
        assert_int_equal(answer_judge(body, true), cases[i].of_completion);
        for (size_t n = 0; n <= body.len; n++) /* cut anywhere: no byte beyond it is read */
            (void)answer_is_error((struct str){body.ptr, n});
    }
}

static void errors_of_the_request_are_distinguished_from_those_of_the_worker(void **state) {
    static const struct {
        const char *error;
        bool blames_request;
    } cases[] = {
        {"{\"error\":{\"code\":400}}", true},
        {"{\"error\":{\"code\" : 422, \"message\":\"x\"}}", true},
        {"{\"error\":{\"code\":500}}", false},
        {"{\"error\":{\"code\":\"worker_lost\"}}", false},
        {"{\"error\":{\"code\":40", false},
        {"{\"object\":\"error\",\"type\":\"BadRequestError\"}", true},
        {"{\"error\":{\"type\":\"invalid_request_error\"}}", true},
        {"{\"error\":\"out of memory\"}", false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(answer_blames_request(str_of(cases[i].error)), cases[i].blames_request);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_distinguished_from_errors),
        cmocka_unit_test(errors_of_the_request_are_distinguished_from_those_of_the_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
