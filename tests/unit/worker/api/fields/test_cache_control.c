/* tests/unit/worker/api/fields/test_cache_control.c - what is marked, and how wrong marks are
 * refused. */
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/fields/cache_control.h"

#define M5   "\"cache_control\":{\"type\":\"ephemeral\"}"
#define M1H  "\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\",\"scope\":\"x\"}"
#define TOOL "{\"name\":\"f\"," M5 "}"
#define TEXT "{\"type\":\"text\",\"text\":\"a\"}"
#define ALL  CACHE_CONTROL_ALL

static enum status read_text(const char *text, struct cache_control *out, uint32_t *n,
                             struct error *err) {
    struct json *body;
    enum status st;

    assert_int_equal(json_parse(&body, str_of(text), NULL, NULL), ST_OK);
    st = cache_control_read(body, out, n, err);
    json_destroy(body);
    return st;
}

static void marks_are_the_beginnings_that_count(void **state) {
    static const struct {
        const char *body;
        uint32_t n;
        struct cache_control want[CACHE_CONTROL_MAX];
    } rows[] = {
        {"{\"messages\":[{\"content\":[" TEXT "]}],\"system\":\"s\",\"tools\":[]}", 0, {{0}}},
        {"{\"tools\":[{\"name\":\"g\",\"cache_control\":null}," TOOL "],\"messages\":[{}]}",
         1,
         {{0, 300}}},
        {"{\"system\":[" TEXT ",{\"type\":\"text\"," M1H "}],\"messages\":[{}]}", 1, {{0, 3600}}},
        {"{\"messages\":[{\"content\":[{" M5 "}," TEXT "]},{\"content\":\"b\"}]}", 1, {{1, 300}}},
        {"{\"messages\":[{\"content\":\"a\"},{\"content\":[" TEXT ",{" M5 "}]}]}", 1, {{ALL, 300}}},
        {"{\"messages\":[{\"content\":[{\"type\":\"tool_result\",\"content\":[{" M5 "}]}]},{}]}",
         1,
         {{1, 300}}},
        {"{" M5 ",\"messages\":[{}]}", 1, {{ALL, 300}}},
        /* A larger beginning of an equal or longer time contains the others. */
        {"{\"tools\":[" TOOL "],\"system\":[{" M5 "}],\"messages\":[{\"content\":[{" M5 "}]},{}]}",
         1,
         {{1, 300}}},
        {"{\"system\":[{" M5 "}],\"messages\":[{\"content\":[{" M1H "}]}]}", 1, {{ALL, 3600}}},
        {"{\"system\":[{" M1H "}],\"messages\":[{\"content\":[{" M5 "}]},{},{\"content\":[{" M5
         "}]}]}",
         2,
         {{ALL, 300}, {0, 3600}}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct cache_control out[CACHE_CONTROL_MAX];
        uint32_t n = 99;

        assert_int_equal(read_text(rows[i].body, out, &n, NULL), ST_OK);
        assert_int_equal(n, rows[i].n);
        for (uint32_t k = 0; k < n; k++) {
            assert_true(out[k].n_messages == rows[i].want[k].n_messages);
            assert_int_equal(out[k].ttl_s, rows[i].want[k].ttl_s);
        }
    }
}

static void wrong_marks_are_refused_by_their_place(void **state) {
    static const struct {
        const char *body, *message;
    } rows[] = {
        {"{\"tools\":[{},{\"cache_control\":{\"type\":\"persistent\"}}]}",
         "tools[1].cache_control must be an object of the type \"ephemeral\": set its type, or "
         "leave it out"},
        {"{\"system\":[{\"cache_control\":true}]}",
         "system[0].cache_control must be an object of the type \"ephemeral\": set its type, or "
         "leave it out"},
        {"{\"messages\":[{},{\"content\":[{},{\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":"
         "\"2h\"}}]}]}",
         "messages[1].content[1].cache_control.ttl is \"2h\": send \"5m\" or \"1h\""},
        {"{\"messages\":[{\"content\":[{\"content\":[{\"cache_control\":{\"type\":\"ephemeral\","
         "\"ttl\":300}}]}]}]}",
         "messages[0].content[0].content[0].cache_control.ttl is a number: send \"5m\" or \"1h\""},
        {"{\"cache_control\":{}}", "cache_control must be an object of the type \"ephemeral\": set "
                                   "its type, or leave it out"},
        {"{\"tools\":[" TOOL "," TOOL "],\"system\":[{" M5 "},{" M5
         "}],\"messages\":[{\"content\":["
         "{" M5 "}]}]}",
         "cache_control is set in more than 4 places, at messages[0].content[0].cache_control too: "
         "set it in at most 4"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct cache_control out[CACHE_CONTROL_MAX];
        struct error err = {0};
        uint32_t n = 99;

        assert_int_equal(read_text(rows[i].body, out, &n, &err), ST_INVALID);
        assert_string_equal(err.message, rows[i].message);
        assert_string_equal(err.param, "cache_control");
        assert_int_equal(n, 99);
    }
}

static void times_of_openai_are_for_the_whole_prompt(void **state) {
    static const struct {
        const char *body;
        uint32_t ttl_s;
        const char *param; /* of the refusal */
    } rows[] = {
        {"{}", 0, NULL},
        {"{\"prompt_cache_options\":{\"mode\":\"explicit\"},\"prompt_cache_retention\":null}", 0,
         NULL},
        {"{\"prompt_cache_options\":{\"ttl\":\"30m\"}}", 1800, NULL},
        {"{\"prompt_cache_options\":{\"ttl\":\"12h\"},\"prompt_cache_retention\":\"in_memory\"}",
         43200, NULL},
        {"{\"prompt_cache_options\":{\"ttl\":\"12h\"},\"prompt_cache_retention\":\"24h\"}", 86400,
         NULL},
        {"{\"prompt_cache_retention\":\"in-memory\"}", 0, NULL},
        {"{\"prompt_cache_options\":{\"ttl\":\"5m\"}}", 0, "prompt_cache_options.ttl"},
        {"{\"prompt_cache_options\":{\"ttl\":30}}", 0, "prompt_cache_options.ttl"},
        {"{\"prompt_cache_options\":\"30m\"}", 0, "prompt_cache_options"},
        {"{\"prompt_cache_retention\":\"30m\"}", 0, "prompt_cache_retention"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct error err = {0};
        struct json *body;
        uint32_t ttl_s = 0;
        enum status st;

        assert_int_equal(json_parse(&body, str_of(rows[i].body), NULL, NULL), ST_OK);
        st = cache_control_read_ttl(body, &ttl_s, &err);
        assert_int_equal(st, rows[i].param ? ST_INVALID : ST_OK);
        assert_int_equal(ttl_s, rows[i].ttl_s);
        assert_string_equal(err.param, rows[i].param ? rows[i].param : "");
        json_destroy(body);
    }
}

static void time_of_a_call_is_one_of_five(void **state) {
    static const struct {
        const char *body;
        uint32_t ttl_s; /* 0: refused */
    } rows[] = {{"{}", 7},
                {"{\"ttl\":null}", 7},
                {"{\"ttl\":\"5m\"}", 300},
                {"{\"ttl\":\"30m\"}", 1800},
                {"{\"ttl\":\"1h\"}", 3600},
                {"{\"ttl\":\"12h\"}", 43200},
                {"{\"ttl\":\"24h\"}", 86400},
                {"{\"ttl\":\"2h\"}", 0},
                {"{\"ttl\":3600}", 0}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct error err = {0};
        struct json *body;
        uint32_t ttl_s = 7;
        enum status st;

        assert_int_equal(json_parse(&body, str_of(rows[i].body), NULL, NULL), ST_OK);
        st = cache_control_read_time(body, &ttl_s, &err);
        assert_int_equal(st, rows[i].ttl_s ? ST_OK : ST_INVALID);
        assert_int_equal(ttl_s, rows[i].ttl_s ? rows[i].ttl_s : 7);
        assert_string_equal(err.param, rows[i].ttl_s ? "" : "ttl");
        json_destroy(body);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_the_beginnings_that_count),
        cmocka_unit_test(wrong_marks_are_refused_by_their_place),
        cmocka_unit_test(times_of_openai_are_for_the_whole_prompt),
        cmocka_unit_test(time_of_a_call_is_one_of_five),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
