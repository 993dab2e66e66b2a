/* tests/unit/router/sharing/test_redis_stream.c - a stream of a Redis server of a hundred lines. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/net/loop.h"
#include "router/sharing/redis_stream.h"
#include "tests/support/cm.h"
#include "tests/support/fake_redis.h"

/* --- who reads and writes --------------------------------------------------------------------- */

struct redis_fixture {
    struct loop *loop;
    struct fake_redis server;
    struct redis_stream *stream;
    char url[64], received[512];
    uint64_t age_us;
    int n_synced, n_lost;
};

static void on_entry(struct str bytes, uint64_t age_us, void *arg) {
    struct redis_fixture *s = arg;
    size_t n = strlen(s->received);

    s->age_us = age_us;
    snprintf(s->received + n, sizeof(s->received) - n, STR_FMT ";", STR_ARG(bytes));
}

static void on_synced(void *arg) {
    ((struct redis_fixture *)arg)->n_synced++;
}

static void on_lost(void *arg) {
    ((struct redis_fixture *)arg)->n_lost++;
}

static void begin(struct redis_fixture *s) {
    struct error err = {0};

    memset(s, 0, sizeof(*s));
    assert_int_equal(loop_create(&s->loop, &err), ST_OK);
    fake_redis_start(&s->server, s->loop);
}

static void connect_to_it(struct redis_fixture *s, const char *path, const char *password) {
    struct redis_stream_config config = {.url = s->url,
                                         .password = password,
                                         .key = "k",
                                         .max_entries = 777,
                                         .on_entry = on_entry,
                                         .on_synced = on_synced,
                                         .on_lost = on_lost,
                                         .arg = s};
    struct error err = {0};
    enum status st;

    snprintf(s->url, sizeof(s->url), "redis://127.0.0.1:%u%s", s->server.port, path);
    st = redis_stream_create(&s->stream, s->loop, NULL, &config, &err);
    if (st == ST_OK) redis_stream_read(s->stream);
    if (st == ST_UNAVAILABLE) {
        print_message("%s\n", err.message);
        fake_redis_stop(&s->server);
        loop_destroy(s->loop);
        skip();
    }
    assert_int_equal(st, ST_OK);
}

static void end(struct redis_fixture *s) {
    redis_stream_destroy(s->stream);
    fake_redis_stop(&s->server);
    loop_destroy(s->loop);
}

#define UNTIL(s, condition)                                                                        \
    for (uint64_t until_us = clock_now_us() + 10000000u; !(condition);) {                          \
        loop_turn((s)->loop, 10000);                                                               \
        if (clock_now_us() > until_us) fail_msg("never: %s", #condition);                          \
    }

static bool is_up(const struct redis_fixture *s) {
    struct redis_stream_stats stats;

    redis_stream_stats(s->stream, &stats);
    return stats.is_reading && stats.is_writing;
}

static void old_entries_are_delivered_before_new_ones(void **state) {
    struct redis_fixture s;

    (void)state;
    begin(&s);
    fake_redis_add(&s.server, STR("old"));
    fake_redis_add(&s.server, STR("older"));
    connect_to_it(&s, "", NULL);
    UNTIL(&s, s.n_synced == 1 && is_up(&s));
    assert_string_equal(s.received, "old;older;");
    assert_in_range(s.age_us, 9900000, 11000000);
    redis_stream_append(s.stream, STR("new"));
    UNTIL(&s, strcmp(s.received, "old;older;new;") == 0);
    assert_string_equal(s.server.seen_max_entries, "777");
    end(&s);
}

static void a_lost_connection_goes_on_behind_the_last_entry(void **state) {
    struct redis_stream_stats stats;
    struct redis_fixture s;

    (void)state;
    begin(&s);
    connect_to_it(&s, "", NULL);
    UNTIL(&s, s.n_synced == 1 && is_up(&s));
    redis_stream_append(s.stream, STR("one"));
    UNTIL(&s, strcmp(s.received, "one;") == 0);
    fake_redis_cut(&s.server);
    UNTIL(&s, s.n_lost == 1 && !is_up(&s));
    redis_stream_append(s.stream, STR("nowhere"));
    fake_redis_add(&s.server, STR("two"));
    UNTIL(&s, s.n_synced == 2 && is_up(&s));
    assert_string_equal(s.received, "one;two;");
    redis_stream_stats(s.stream, &stats);
    assert_int_equal(stats.n_dropped, 1);
    assert_int_equal(stats.n_lost, 2);
    end(&s);
}

static void a_password_and_a_database_are_given(void **state) {
    struct redis_fixture s;

    (void)state;
    begin(&s);
    s.server.password = "open";
    connect_to_it(&s, "/5", "open");
    UNTIL(&s, is_up(&s));
    assert_int_equal(s.server.seen_database, 5);
    end(&s);
}

static void a_wrong_password_is_tried_again_later(void **state) {
    struct redis_fixture s;

    (void)state;
    begin(&s);
    s.server.password = "open";
    connect_to_it(&s, "", "shut");
    UNTIL(&s, s.server.n_accepted >= 4);
    assert_false(is_up(&s));
    s.server.password = "shut";
    UNTIL(&s, is_up(&s));
    end(&s);
}

static void odd_answers_do_no_harm(void **state) {
    static const char *const odd[] = {"*1\r\n:5\r\n",
                                      "*1\r\n*2\r\n$1\r\nk\r\n*1\r\n*1\r\n:1\r\n",
                                      "*1\r\n*2\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-1\r\n:7\r\n",
                                      "-ERR what\r\n",
                                      "+OK\r\n",
                                      "nonsense\r\n"};
    struct redis_fixture s;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        begin(&s);
        s.server.odd_answer = odd[i];
        connect_to_it(&s, "", NULL);
        UNTIL(&s, !s.server.odd_answer && s.n_synced && is_up(&s));
        fake_redis_add(&s.server, STR("fine"));
        fake_redis_add(&s.server, STR("fine"));
        UNTIL(&s, strstr(s.received, "fine;"));
        end(&s);
    }
}

static void a_server_that_refuses_entries_loses_nothing_else(void **state) {
    struct redis_stream_stats stats;
    struct redis_fixture s;

    (void)state;
    begin(&s);
    s.server.is_full = true;
    connect_to_it(&s, "", NULL);
    UNTIL(&s, is_up(&s) && s.n_synced);
    redis_stream_append(s.stream, STR("x"));
    UNTIL(&s, !is_up(&s));
    redis_stream_stats(s.stream, &stats);
    assert_int_equal(stats.n_dropped, 1);
    s.server.is_full = false;
    UNTIL(&s, is_up(&s));
    redis_stream_append(s.stream, STR("y"));
    UNTIL(&s, strcmp(s.received, "y;") == 0);
    end(&s);
}

static void urls_are_checked(void **state) {
    static const char *const good[] = {"redis://h", "redis://h:1/0", "redis://[::1]:6379/3",
                                       "redis://[::1]", "redis://10.0.0.1/"};
    static const char *const bad[] = {"redis:/h",       "http://h",       "redis://",
                                      "redis://h/x",    "redis://h/5000", "redis://u:p@h",
                                      "redis://h:99999"};
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_int_equal(redis_stream_check_url(good[i], &err), ST_OK);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(redis_stream_check_url(bad[i], &err), ST_INVALID);
        assert_non_null(strstr(err.message, "redis://HOST"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_entries_are_delivered_before_new_ones),
        cmocka_unit_test(a_lost_connection_goes_on_behind_the_last_entry),
        cmocka_unit_test(a_password_and_a_database_are_given),
        cmocka_unit_test(a_wrong_password_is_tried_again_later),
        cmocka_unit_test(odd_answers_do_no_harm),
        cmocka_unit_test(a_server_that_refuses_entries_loses_nothing_else),
        cmocka_unit_test(urls_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
