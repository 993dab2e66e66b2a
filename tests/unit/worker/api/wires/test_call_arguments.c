/* tests/unit/worker/api/wires/test_call_arguments.c - what no request can hold is replaced, and
 * nothing else. */
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/wires/call_arguments.h"

static void assert_read(const char *text, const char *want) {
    struct json *v;
    struct buf out;

    buf_init(&out, 0);
    v = call_arguments_read(str_of(text), &out);
    assert_int_equal(v != NULL, want != NULL);
    if (!str_eq(buf_str(&out), str_of(want ? want : "")))
        fail_msg("%s became " STR_FMT, text, STR_ARG(buf_str(&out)));
    json_destroy(v);
    buf_fini(&out);
}

static void characters_that_no_request_holds_are_replaced(void **state) {
    (void)state;
    assert_read("{\"a\":\"x\\u0000y\"}", "{\"a\":\"x\\ufffdy\"}");
    assert_read("{\"a\":\"\\uD800\"}", "{\"a\":\"\\ufffd\"}");
    assert_read("{\"a\":\"\\udc00\\ud800\\u0041\"}", "{\"a\":\"\\ufffd\\ufffd\\u0041\"}");
    assert_read("{\"\\u0000\":1}", "{\"\\ufffd\":1}");
}

static void other_text_stays(void **state) {
    static const char *const texts[] = {"{}", "{\"a\": \"\\ud83d\\uDE00\"}",
                                        "{\"a\":\"\\\\u0000 \\\\\\\"\"}", "{\"a\":[1, null]}"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        assert_read(texts[i], texts[i]);
}

static void what_is_no_object_is_nothing(void **state) {
    static const char *const texts[] = {
        "", "[]", "{\"a\":", "{\"a\":\"\\", "{\"a\":\"\\u00", "\\u0000", "{\"a\":1,\"a\":2}"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        assert_read(texts[i], NULL);
}

/* Any string of escapes is read, and what is read is read again as it is. */
static void any_escapes_are_an_object_that_stays(void **state) {
    static const char *const escapes[] = {"\\u0000", "\\ud800", "\\uDFFF", "\\u0041",
                                          "\\\\",    "\\n",     "u0000"};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 2000; round++) {
        struct buf text, once, twice;
        struct json *v;

        buf_init(&text, 0);
        buf_init(&once, 0);
        buf_init(&twice, 0);
        buf_append_str(&text, STR("{\"a\":\""));
        for (uint64_t n = rng_below(&rng, 8); n > 0; n--)
            buf_append_str(&text, str_of(escapes[rng_below(&rng, ARRAY_LEN(escapes))]));
        buf_append_str(&text, STR("\"}"));
        v = call_arguments_read(buf_str(&text), &once);
        assert_non_null(v);
        json_destroy(v);
        v = call_arguments_read(buf_str(&once), &twice);
        assert_non_null(v);
        json_destroy(v);
        assert_true(str_eq(buf_str(&once), buf_str(&twice)));
        buf_fini(&text);
        buf_fini(&once);
        buf_fini(&twice);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_that_no_request_holds_are_replaced),
        cmocka_unit_test(other_text_stays),
        cmocka_unit_test(what_is_no_object_is_nothing),
        cmocka_unit_test(any_escapes_are_an_object_that_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
