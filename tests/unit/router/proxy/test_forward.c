/* tests/unit/router/proxy/test_forward.c - which paths and fields go on, and what opens the
 * others. */
#include <string.h>

#include "router/proxy/forward.h"
#include "tests/support/cm.h"

#define ALL                                                                                        \
    (WORKER_KIND_BIT(WORKER_OURS) | WORKER_KIND_BIT(WORKER_VLLM) |                                 \
     WORKER_KIND_BIT(WORKER_SGLANG) | WORKER_KIND_BIT(WORKER_OTHER))

static const struct forward none = {{NULL, 0}, {NULL, 0}};

static void calls_of_every_worker_go_to_all(void **state) {
    static const char *const paths[] = {
        "/v1/completions", "/v1/chat/completions",      "/generate",    "/tokenize", "/detokenize",
        "/v1/messages",    "/v1/messages/count_tokens", "/v1/responses"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        assert_int_equal(forward_find(&none, str_of(paths[i])).kinds, ALL);
}

static void calls_differ_in_their_work(void **state) {
    (void)state;
    assert_int_equal(forward_find(&none, STR("/v1/messages")).work, WORK_PROMPT);
    assert_int_equal(forward_find(&none, STR("/v1/responses")).work, WORK_PROMPT);
    assert_int_equal(forward_find(&none, STR("/v1/embeddings")).work, WORK_PROMPT);
    assert_int_equal(forward_find(&none, STR("/v1/messages/count_tokens")).work, WORK_TOKENS);
    assert_int_equal(forward_find(&none, STR("/tokenize")).work, WORK_TOKENS);
    assert_int_equal(forward_find(&none, STR("/v1/audio/speech")).work, WORK_OTHER);
    assert_true(forward_find(&none, STR("/v1/messages")).is_listed);
}

static void calls_of_some_go_to_those(void **state) {
    (void)state;
    assert_int_equal(forward_find(&none, STR("/v1/embeddings")).kinds,
                     ALL & ~WORKER_KIND_BIT(WORKER_OURS));
    assert_int_equal(forward_find(&none, STR("/pooling")).kinds, WORKER_KIND_BIT(WORKER_VLLM));
    assert_int_equal(forward_find(&none, STR("/encode")).kinds, WORKER_KIND_BIT(WORKER_SGLANG));
}

static void a_path_in_another_spelling_is_not_forwarded(void **state) {
    static const char *const paths[] = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter",
                                        "/v1/completions/",      "/v1//completions",
                                        "/v1/completion%73",     "/V1/completions",
                                        "/v1/completions\\",     "/reset_prefix_cache",
                                        "/cache/explain",        "/v1/",
                                        "/update_weights",       "/"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        assert_int_equal(forward_find(&none, str_of(paths[i])).kinds, 0);
}

static void the_operator_adds_paths(void **state) {
    static const char *const paths[] = {"/v1/things/*", "/pooling"};
    const struct forward f = {.paths = {paths, 2}};

    (void)state;
    assert_int_equal(forward_find(&f, STR("/pooling")).kinds, ALL);
    assert_int_equal(forward_find(&f, STR("/v1/things/a/b")).kinds, ALL);
    assert_int_equal(forward_find(&f, STR("/v1/things/")).kinds, 0);
    assert_int_equal(forward_find(&f, STR("/v1/thing")).kinds, 0);
    assert_int_equal(forward_find(&f, STR("/v1/things/%2e%2e/x")).kinds, 0);
    assert_int_equal(forward_find(&f, STR("/v1/things/..\\x")).kinds, 0);
}

static void options_that_name_nothing_are_refused(void **state) {
    static const char *const wrong[] = {"v1/x", "/a*", "/a/*/b", "/a%2fb", "/a?b", ""};
    static const char *const right[] = {"/v1/x", "/v1/*", "/*"};
    static const char *const field[] = {"model"};
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        const struct forward f = {.paths = {&wrong[i], 1}};

        assert_int_equal(forward_check_options(&f, &err), ST_INVALID);
        assert_non_null(strstr(err.message, "--forward-path"));
    }
    assert_int_equal(forward_check_options(&(struct forward){.paths = {right, 3}}, &err), ST_OK);
    assert_int_equal(forward_check_options(&(struct forward){.fields = {field, 1}}, &err),
                     ST_INVALID);
    assert_non_null(strstr(err.message, "kv_transfer_params"));
}

static enum status check(const struct forward *f, const char *body, struct error *err) {
    struct body_scan scan;

    assert_int_equal(body_scan(str_of(body), &scan, err), ST_OK);
    return forward_check_fields(f, &scan, err);
}

static void fields_that_steer_a_worker_are_refused(void **state) {
    static const char *const allowed[] = {"kv_transfer_params"};
    const struct forward f = {.fields = {allowed, 1}};
    struct error err = {0};

    (void)state;
    assert_int_equal(check(&none, "{\"prompt\":\"kv_transfer_params\"}", &err), ST_OK);
    assert_int_equal(check(&none, "{\"kv_transfer_params\":null}", &err), ST_OK);
    assert_int_equal(check(&none, "{\"x\":{\"kv_transfer_params\":{}}}", &err), ST_OK);
    assert_int_equal(check(&none, "{\"kv_transfer_params\":{}}", &err), ST_FORBIDDEN);
    assert_string_equal(err.param, "kv_transfer_params");
    assert_int_equal(check(&none, "{\"kv_\\u0074ransfer_params\":{}}", &err), ST_FORBIDDEN);
    assert_int_equal(check(&none, "{\"bootstrap_host\":\"10.0.0.1\"}", &err), ST_FORBIDDEN);
    assert_int_equal(check(&none, "{\"custom_logit_processor\":\"x\"}", &err), ST_FORBIDDEN);
    assert_int_equal(check(&f, "{\"kv_transfer_params\":{}}", &err), ST_OK);
    assert_int_equal(check(&f, "{\"session_params\":{\"id\":1}}", &err), ST_FORBIDDEN);
}

static void kinds_are_recognized_by_owned_by(void **state) {
    (void)state;
    assert_int_equal(worker_kind_of(false, "cpu"), WORKER_OURS);
    assert_int_equal(worker_kind_of(true, "vllm"), WORKER_VLLM);
    assert_int_equal(worker_kind_of(true, "sglang"), WORKER_SGLANG);
    assert_int_equal(worker_kind_of(true, "foreign"), WORKER_OTHER);
}

static void only_listed_paths_may_be_sent_twice(void **state) {
    (void)state;
    assert_true(forward_find(&none, STR("/v1/chat/completions")).is_listed);
    assert_true(forward_find(&none, STR("/generate")).is_listed);
    assert_true(forward_find(&none, STR("/v1/embeddings")).is_listed);
    assert_false(forward_find(&none, STR("/v1/files")).is_listed);
    assert_false(forward_find(&none, STR("/v1/load_lora_adapter")).is_listed);
    assert_false(forward_find(&none, STR("/v1/chat/completions/")).is_listed);
}

static void stored_responses_are_named_by_their_path(void **state) {
    static const struct {
        enum http_method method;
        const char *path, *id; /* "": not forwarded */
    } cases[] = {
        {HTTP_GET, "/v1/responses/resp_1", "resp_1"},
        {HTTP_DELETE, "/v1/responses/resp_1", "resp_1"},
        {HTTP_GET, "/v1/responses/resp_1/input_items", "resp_1"},
        {HTTP_GET, "/v1/responses/other", "other"},
        {HTTP_DELETE, "/v1/responses/resp_1/input_items", ""}, /* would delete the response */
        {HTTP_POST, "/v1/responses/resp_1", ""},
        {HTTP_HEAD, "/v1/responses/resp_1", ""},
        {HTTP_GET, "/v1/responses/resp_1/cancel", ""},
        {HTTP_GET, "/v1/responses/resp_1/../x", ""},
        {HTTP_GET, "/v1/responses/resp_1%2f..%2fx", ""},
        {HTTP_GET, "/v1/responses/resp_1\\x", ""},
        {HTTP_GET, "/v1/responses//input_items", ""},
        {HTTP_GET, "/v1/responses/", ""},
        {HTTP_GET, "/v1/responses", ""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str id = forward_stored_id(cases[i].method, str_of(cases[i].path));

        assert_true(str_eq(id, str_of(cases[i].id)));
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_every_worker_go_to_all),
        cmocka_unit_test(calls_differ_in_their_work),
        cmocka_unit_test(calls_of_some_go_to_those),
        cmocka_unit_test(a_path_in_another_spelling_is_not_forwarded),
        cmocka_unit_test(the_operator_adds_paths),
        cmocka_unit_test(options_that_name_nothing_are_refused),
        cmocka_unit_test(fields_that_steer_a_worker_are_refused),
        cmocka_unit_test(kinds_are_recognized_by_owned_by),
        cmocka_unit_test(only_listed_paths_may_be_sent_twice),
        cmocka_unit_test(stored_responses_are_named_by_their_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
