/* tests/unit/common/telemetry/test_log.c - lines as they arrive at the other end of a pipe. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "tests/support/cm.h"

static uint64_t now_us = 1763632943123456; /* 2025-11-20T10:02:23.123456Z */

static uint64_t fake_wall_us(void) {
    return now_us;
}

struct fixture {
    int fds[2];
    struct log *log;
    char text[1 << 16];
};

static struct fixture fx;

static void start(struct log_config config) {
    assert_int_equal(pipe2(fx.fds, O_NONBLOCK), 0);
    config.fd = fx.fds[1];
    config.wall_us = fake_wall_us;
    fx.log = log_create(&config);
}

/* What was written since the last call. */
static const char *lines(void) {
    ssize_t n = read(fx.fds[0], fx.text, sizeof(fx.text) - 1);

    fx.text[n > 0 ? n : 0] = '\0';
    return fx.text;
}

static void finish(void) {
    log_destroy(fx.log);
    close(fx.fds[0]);
    close(fx.fds[1]);
}

static void a_line_is_time_level_event_and_fields(void **state) {
    (void)state;
    start((struct log_config){.level = LOG_INFO});
    log_event(fx.log, LOG_INFO, "worker_ready", log_z("url", "http://127.0.0.1:31000"),
              log_u64("blocks", 512), log_i64("delta", -3), log_f64("load", 0.25),
              log_bool("warm", true));
    assert_string_equal(lines(), "2025-11-20T10:02:23.123Z info worker_ready "
                                 "url=http://127.0.0.1:31000 blocks=512 delta=-3 load=0.25 "
                                 "warm=true\n");
    log_event(fx.log, LOG_ERROR, "bare");
    assert_string_equal(lines(), "2025-11-20T10:02:23.123Z error bare\n");
    finish();
}

static void values_are_quoted_when_they_must_be(void **state) {
    (void)state;
    start((struct log_config){.level = LOG_INFO});
    log_event(fx.log, LOG_WARN, "x", log_z("a", "two words"), log_z("b", ""),
              log_z("c", "q\"uote\n"), log_z("d", "k=v"), log_z("e", "caf\xC3\xA9"),
              log_z("f", "\xFF"), log_z("g", NULL), log_str("h", STR("in\0side")));
    assert_non_null(strstr(lines(), " warn x a=\"two words\" b=\"\" c=\"q\\\"uote\\n\" d=\"k=v\" "
                                    "e=\"caf\xC3\xA9\" f=\"\xEF\xBF\xBD\" g=\"\" "
                                    "h=\"in\\u0000side\"\n"));
    finish();
}

/* What would end a line, turn it around or hide in it. */
static void control_characters_are_escaped(void **state) {
    static const struct {
        const char *raw, *shown;
    } cases[] = {
        {"a\xC2\x85z", "a\\u0085z"}, /* next line */
        {"a\xC2\x9B"
         "31mz",
         "a\\u009b31mz"}, /* a colour, in one byte of Latin-1 */
        {"a\x7Fz", "a\\u007fz"},
        {"a\xE2\x80\xAEz", "a\\u202ez"}, /* from right to left */
        {"a\xE2\x81\xA6z", "a\\u2066z"},
        {"\xD8\x9C", "\\u061c"},
        {"a\xE2\x80\xA8"
         "b\xE2\x80\xA9",
         "a\\u2028b\\u2029"},
        {"a\xE2\x80\x8Bz\xEF\xBB\xBF", "a\\u200bz\\ufeff"},
        {"\xF3\xA0\x81\x81", "\\udb40\\udc41"}, /* a letter as a tag */
        {"\xFF\xC2\x85\n", "\xEF\xBF\xBD\\u0085\\n"},
        {"caf\xC3\xA9 \xE2\x80\xA6 \xF0\x9F\x98\x80", "caf\xC3\xA9 \xE2\x80\xA6 \xF0\x9F\x98\x80"},
    };

    (void)state;
    for (int format = LOG_TEXT; format <= LOG_JSON; format++) {
        start((struct log_config){.format = (enum log_format)format});
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            char expected[64];

            log_event(fx.log, LOG_INFO, "x", log_z("v", cases[i].raw));
            snprintf(expected, sizeof(expected),
                     format == LOG_JSON ? "\"v\":\"%s\"}" : " v=\"%s\"\n", cases[i].shown);
            if (!strstr(lines(), expected)) fail_msg("%s: not %s", fx.text, expected);
        }
        finish();
    }
}

static void json_lines_are_json(void **state) {
    struct json *root = NULL;
    struct error err = {0};
    struct str s;

    (void)state;
    start((struct log_config){.level = LOG_INFO, .format = LOG_JSON});
    log_event(fx.log, LOG_INFO, "e", log_z("s", "a\"b\n\xFF"), log_u64("n", UINT64_MAX),
              log_f64("nan", 0.0 / 0.0), log_bool("no", false));
    lines();
    assert_int_equal(json_parse(&root, str_of(fx.text), NULL, &err), ST_OK);
    assert_int_equal(json_to_str(json_get(root, "ts"), &s), ST_OK);
    assert_true(str_eq(s, STR("2025-11-20T10:02:23.123Z")));
    assert_int_equal(json_to_str(json_get(root, "s"), &s), ST_OK);
    assert_true(str_eq(s, STR("a\"b\n\xEF\xBF\xBD")));
    assert_int_equal(json_type(json_get(root, "nan")), JSON_NULL);
    json_destroy(root);
    finish();
}

static void lines_below_the_level_are_not_written(void **state) {
    (void)state;
    start((struct log_config){.level = LOG_WARN});
    log_event(fx.log, LOG_INFO, "x");
    assert_string_equal(lines(), "");
    assert_false(log_is_on(fx.log, LOG_INFO));
    log_set_level(fx.log, LOG_DEBUG);
    log_event(fx.log, LOG_DEBUG, "x");
    assert_non_null(strstr(lines(), "debug x\n"));
    finish();
}

static void a_flood_is_limited_per_event_and_counted(void **state) {
    const char *text;

    (void)state;
    start((struct log_config){.level = LOG_INFO, .max_per_s = 3});
    for (int i = 0; i < 10; i++)
        log_event(fx.log, LOG_INFO, "flood", log_i64("i", i));
    log_event(fx.log, LOG_INFO, "other");
    text = lines();
    assert_non_null(strstr(text, "flood i=2\n"));
    assert_null(strstr(text, "flood i=3"));
    assert_non_null(strstr(text, "other\n"));
    now_us += 1000000;
    log_event(fx.log, LOG_INFO, "flood", log_i64("i", 10));
    assert_non_null(strstr(lines(), "flood i=10 suppressed=7\n"));
    for (int i = 0; i < 5; i++)
        log_event(fx.log, LOG_INFO, "flood");
    lines();
    log_destroy(fx.log);
    assert_non_null(strstr(lines(), "warn log_suppressed name=flood suppressed=3\n"));
    close(fx.fds[0]);
    close(fx.fds[1]);
}

static void one_event_may_have_a_limit_of_its_own(void **state) {
    int n = 0;

    (void)state;
    start((struct log_config){.max_per_s = 2, .other = {"many", 20}});
    for (int i = 0; i < 30; i++) {
        log_event(fx.log, LOG_INFO, "few");
        log_event(fx.log, LOG_INFO, "many");
    }
    for (const char *p = lines(); (p = strchr(p, '\n')); p++)
        n++;
    assert_int_equal(n, 22);
    now_us += 1000000;
    log_event(fx.log, LOG_INFO, "many");
    assert_non_null(strstr(lines(), "many suppressed=10\n"));
    log_destroy(fx.log);
    close(fx.fds[0]);
    close(fx.fds[1]);
}

static void other_rates_hold_for_events_that_were_there(void **state) {
    int n_few = 0, n_many = 0;

    (void)state;
    start((struct log_config){.max_per_s = 1, .other = {"many", 1}});
    log_event(fx.log, LOG_INFO, "few");
    log_event(fx.log, LOG_INFO, "many");
    log_set_rates(fx.log, 3, 5);
    for (int i = 0; i < 10; i++) {
        log_event(fx.log, LOG_INFO, "few");
        log_event(fx.log, LOG_INFO, "many");
    }
    for (const char *p = lines(); (p = strchr(p, '\n')); p++) {
        n_few += strncmp(p - 3, "few", 3) == 0;
        n_many += strncmp(p - 4, "many", 4) == 0;
    }
    assert_int_equal(n_few, 3);
    assert_int_equal(n_many, 5);
    log_destroy(fx.log);
    close(fx.fds[0]);
    close(fx.fds[1]);
}

static void unconditional_lines_pass_limit_and_level(void **state) {
    int n = 0;

    (void)state;
    start((struct log_config){.max_per_s = 2, .level = LOG_ERROR});
    for (int i = 0; i < 10; i++)
        log_always(fx.log, LOG_INFO, "admin_change", log_i64("i", i));
    for (const char *p = lines(); (p = strstr(p, " info admin_change i=")); p++)
        n++;
    assert_int_equal(n, 10);
    log_always(NULL, LOG_INFO, "admin_change");
    finish();
}

static void long_values_and_lines_are_cut(void **state) {
    static char big[3000];
    const char *text;

    (void)state;
    memset(big, 'x', sizeof(big) - 1);
    start((struct log_config){.level = LOG_INFO});
    log_event(fx.log, LOG_INFO, "big", log_z("a", big), log_u64("n", 1));
    text = lines();
    assert_non_null(strstr(text, "xxx...\" n=1\n"));
    assert_in_range(strlen(text), 1024, 1200);
    log_event(fx.log, LOG_INFO, "big", log_z("a", big), log_z("b", big), log_z("c", big),
              log_z("d", big), log_z("e", big), log_u64("n", 1));
    text = lines();
    assert_non_null(strstr(text, " c=\"xxx"));
    assert_null(strstr(text, " d="));
    assert_non_null(strstr(text, "...\" cut=true\n"));
    assert_in_range(strlen(text), 3000, 4096);
    finish();
}

static void too_many_names_share_one_limit(void **state) {
    static char names[400][16];

    (void)state;
    start((struct log_config){.level = LOG_INFO, .max_per_s = 100});
    for (int i = 0; i < 400; i++) {
        snprintf(names[i], sizeof(names[i]), "event_%d", i);
        log_event(fx.log, LOG_INFO, names[i]);
        lines();
    }
    finish();
}

static void *write_many(void *arg) {
    for (int i = 0; i < 300; i++) {
        log_event(fx.log, LOG_INFO, arg, log_i64("i", i), log_z("pad", "0123456789 0123456789"));
        if (i == 100) log_set_level(fx.log, LOG_INFO);
    }
    return NULL;
}

static void lines_of_threads_do_not_mix(void **state) {
    static char names[3][8] = {"one", "two", "three"};
    pthread_t threads[3];
    int n = 0;

    (void)state;
    start((struct log_config){.level = LOG_INFO, .max_per_s = 1000000});
    fcntl(fx.fds[1], F_SETPIPE_SZ, 1 << 20);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, names[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (const char *text = lines(); *text; text = lines()) {
        for (const char *p = text; (p = strchr(p, '\n')); p++)
            n++;
    }
    assert_int_equal(n, 900);
    finish();
}

static void asynchronous_lines_come_whole_and_in_order(void **state) {
    char expected[64];
    size_t n = 0;

    (void)state;
    start((struct log_config){.level = LOG_INFO, .is_async = true, .max_per_s = 100000});
    for (uint64_t i = 0; i < 500; i++)
        log_event(fx.log, LOG_INFO, "step", log_u64("i", i));
    log_destroy(fx.log); /* writes what is left */
    fx.log = NULL;
    lines();
    for (const char *at = fx.text; *at; at = strchr(at, '\n') + 1) {
        snprintf(expected, sizeof(expected), "Z info step i=%zu\n", n++);
        assert_memory_equal(at + strlen("2025-11-20T10:02:23.123"), expected, strlen(expected));
    }
    assert_int_equal(n, 500);
    finish();
}

/* No reader: what the buffer cannot hold is dropped and counted, and no writer waits forever. */
static void a_slow_reader_costs_lines_not_time(void **state) {
    char text[1000];
    uint64_t n_dropped;

    (void)state;
    memset(text, 'x', sizeof(text));
    start((struct log_config){.level = LOG_INFO, .is_async = true, .max_per_s = 100000});
    assert_int_equal(fcntl(fx.fds[1], F_SETFL, 0), 0); /* its writer blocks */
    for (int i = 0; i < 1000; i++)
        log_event(fx.log, LOG_INFO, "step", log_str("text", (struct str){text, sizeof(text)}));
    n_dropped = log_n_dropped(fx.log);
    assert_true(n_dropped > 500 && n_dropped < 1000);
    for (uint64_t n = 0; n < 1000 - n_dropped;) { /* those that were kept all come */
        for (const char *at = lines(); (at = strchr(at, '\n')) != NULL; at++)
            n++;
    }
    finish();
}

static void no_log_is_fine(void **state) {
    (void)state;
    log_event(NULL, LOG_ERROR, "x", log_u64("n", 1));
    log_set_level(NULL, LOG_INFO);
    log_destroy(NULL);
}

static void a_renamed_event_has_its_former_name_too(void **state) {
    static const struct log_renamed renamed[] = {{"index_restored", "index_recalled"},
                                                 {NULL, NULL}};
    (void)state;

    start((struct log_config){.level = LOG_INFO, .renamed = renamed});
    log_event(fx.log, LOG_INFO, "index_restored", log_u64("workers", 2));
    log_event(fx.log, LOG_INFO, "worker_ready");
    assert_string_equal(lines(), "2025-11-20T10:02:23.123Z info index_restored "
                                 "event_was=index_recalled workers=2\n"
                                 "2025-11-20T10:02:23.123Z info worker_ready\n");
    finish();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_time_level_event_and_fields),
        cmocka_unit_test(a_renamed_event_has_its_former_name_too),
        cmocka_unit_test(values_are_quoted_when_they_must_be),
        cmocka_unit_test(json_lines_are_json),
        cmocka_unit_test(lines_below_the_level_are_not_written),
        cmocka_unit_test(a_flood_is_limited_per_event_and_counted),
        cmocka_unit_test(control_characters_are_escaped),
        cmocka_unit_test(one_event_may_have_a_limit_of_its_own),
        cmocka_unit_test(other_rates_hold_for_events_that_were_there),
        cmocka_unit_test(unconditional_lines_pass_limit_and_level),
        cmocka_unit_test(long_values_and_lines_are_cut),
        cmocka_unit_test(too_many_names_share_one_limit),
        cmocka_unit_test(lines_of_threads_do_not_mix),
        cmocka_unit_test(asynchronous_lines_come_whole_and_in_order),
        cmocka_unit_test(a_slow_reader_costs_lines_not_time),
        cmocka_unit_test(no_log_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
