/* tests/unit/router/test_redis_stream.c - against a server of a hundred lines, on the same loop. */
#include "router/redis_stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/loop.h"
#include "common/mem.h"
#include "tests/support/cm.h"

#define CONNECTIONS 8
#define ENTRIES     64
#define WORDS       12

/* --- the server -------------------------------------------------------------------------------- */

struct server;
struct peer {
    struct server *server;
    struct loop_fd watch;
    struct buf in;
    char waiting_from[48]; /* the id of a blocked XREAD */
    bool is_open, is_waiting;
};

struct server {
    struct loop *loop;
    struct loop_fd watch;
    struct peer peers[CONNECTIONS];
    uint16_t port;
    struct buf entries[ENTRIES];
    uint32_t n_entries, n_accepted;
    const char *password;   /* asked for */
    const char *odd_answer; /* to XREAD, once */
    bool is_full;           /* refuses XADD */
    char seen_max_entries[16];
    uint32_t seen_database;
};

static void answer(struct peer *p, const char *text) {
    assert_int_equal(send(p->watch.fd, text, strlen(text), MSG_NOSIGNAL), (int)strlen(text));
}

static void answer_entries(struct peer *p, const char *after) {
    uint32_t from = (uint32_t)atoi(strchr(after, '-') ? strchr(after, '-') + 1 : "0");
    struct buf out;

    if (from >= p->server->n_entries) {
        answer(p, "*-1\r\n");
        return;
    }
    buf_init(&out, 0);
    buf_appendf(&out, "*1\r\n*2\r\n$1\r\nk\r\n*%u\r\n", p->server->n_entries - from);
    for (uint32_t i = from; i < p->server->n_entries; i++) {
        char id[48];

        snprintf(id, sizeof(id), "1000-%u", i + 1);
        buf_appendf(&out, "*2\r\n$%zu\r\n%s\r\n*2\r\n$1\r\nb\r\n$%zu\r\n", strlen(id), id,
                    buf_len(&p->server->entries[i]));
        buf_append_str(&out, buf_str(&p->server->entries[i]));
        buf_append_str(&out, STR("\r\n"));
    }
    assert_int_equal(send(p->watch.fd, buf_ptr(&out), buf_len(&out), MSG_NOSIGNAL),
                     (int)buf_len(&out));
    buf_fini(&out);
}

static void add_entry(struct server *s, struct str bytes) {
    buf_append_str(&s->entries[s->n_entries++], bytes);
    for (int i = 0; i < CONNECTIONS; i++) {
        if (!s->peers[i].is_open || !s->peers[i].is_waiting) continue;
        s->peers[i].is_waiting = false;
        answer_entries(&s->peers[i], s->peers[i].waiting_from);
    }
}

static void execute(struct peer *p, const struct str *w, uint32_t n) {
    struct server *s = p->server;

    if (str_eq(w[0], STR("AUTH"))) {
        bool is_right = s->password && str_eq(w[1], str_of(s->password));

        answer(p, is_right ? "+OK\r\n" : "-WRONGPASS no\r\n");
    } else if (str_eq(w[0], STR("SELECT"))) {
        s->seen_database = (uint32_t)atoi(w[1].ptr);
        answer(p, "+OK\r\n");
    } else if (str_eq(w[0], STR("TIME"))) {
        answer(p, "*2\r\n$2\r\n11\r\n$6\r\n000000\r\n"); /* ten seconds after all entries */
    } else if (str_eq(w[0], STR("XADD"))) {
        assert_int_equal(n, 8);
        snprintf(s->seen_max_entries, sizeof(s->seen_max_entries), STR_FMT, STR_ARG(w[4]));
        if (s->is_full) {
            answer(p, "-OOM no memory\r\n");
            return;
        }
        add_entry(s, w[7]);
        answer(p, "$6\r\n1000-1\r\n");
    } else {
        assert_true(str_eq(w[0], STR("XREAD")));
        if (s->odd_answer) {
            answer(p, s->odd_answer);
            s->odd_answer = NULL;
            return;
        }
        snprintf(p->waiting_from, sizeof(p->waiting_from), STR_FMT, STR_ARG(w[n - 1]));
        p->is_waiting = str_eq(w[1], STR("BLOCK")) &&
                        atoi(strchr(p->waiting_from, '-') ? strchr(p->waiting_from, '-') + 1
                                                          : "0") >= (int)s->n_entries;
        if (!p->is_waiting) answer_entries(p, p->waiting_from);
    }
}

/* One whole command at the front: "*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n". */
static bool take_command(struct peer *p) {
    struct str words[WORDS];
    char *at = buf_ptr(&p->in), *end = at + buf_len(&p->in), *line;
    uint32_t n;

    if (!at || !(line = memchr(at, '\n', (size_t)(end - at)))) return false;
    n = (uint32_t)atoi(at + 1);
    assert_in_range(n, 1, WORDS);
    at = line + 1;
    for (uint32_t i = 0; i < n; i++) {
        size_t len;

        if (at >= end || !(line = memchr(at, '\n', (size_t)(end - at)))) return false;
        len = (size_t)atoi(at + 1);
        if ((size_t)(end - line) < len + 3) return false;
        words[i] = (struct str){line + 1, len};
        at = line + 1 + len + 2;
    }
    execute(p, words, n);
    buf_consume(&p->in, (size_t)(at - buf_ptr(&p->in)));
    return true;
}

static void peer_close(struct peer *p) {
    int fd = p->watch.fd;

    if (!p->is_open) return;
    p->is_open = p->is_waiting = false;
    loop_fd_fini(&p->watch);
    close(fd);
    buf_fini(&p->in);
}

static void on_bytes(unsigned ready, void *arg) {
    struct peer *p = arg;
    char bytes[4096];
    ssize_t n = recv(p->watch.fd, bytes, sizeof(bytes), MSG_DONTWAIT);

    (void)ready;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        peer_close(p);
        return;
    }
    buf_append(&p->in, bytes, (size_t)n);
    while (p->is_open && take_command(p)) {
    }
}

static void on_connection(unsigned ready, void *arg) {
    struct server *s = arg;
    int fd = accept4(s->watch.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)ready;
    if (fd < 0) return;
    s->n_accepted++;
    for (int i = 0; i < CONNECTIONS; i++) {
        struct peer *p = &s->peers[i];

        if (p->is_open) continue;
        *p = (struct peer){.server = s, .is_open = true};
        buf_init(&p->in, 0);
        loop_fd_init(&p->watch, s->loop, fd, on_bytes, p);
        loop_fd_watch(&p->watch, LOOP_READ);
        return;
    }
    fail_msg("too many connections");
}

static void server_start(struct server *s, struct loop *loop) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memset(s, 0, sizeof(*s));
    s->loop = loop;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 16), 0);
    getsockname(fd, (struct sockaddr *)&addr, &len);
    s->port = ntohs(addr.sin_port);
    for (int i = 0; i < ENTRIES; i++)
        buf_init(&s->entries[i], 0);
    loop_fd_init(&s->watch, loop, fd, on_connection, s);
    loop_fd_watch(&s->watch, LOOP_READ);
}

static void cut_all(struct server *s) {
    for (int i = 0; i < CONNECTIONS; i++)
        peer_close(&s->peers[i]);
}

static void server_stop(struct server *s) {
    int fd = s->watch.fd;

    cut_all(s);
    loop_fd_fini(&s->watch);
    close(fd);
    for (int i = 0; i < ENTRIES; i++)
        buf_fini(&s->entries[i]);
}

/* --- who reads and writes ------------------------------------------------------------------------ */

struct stand {
    struct loop *loop;
    struct server server;
    struct redis_stream *stream;
    char url[64], heard[512];
    uint64_t age_us;
    int n_synced, n_lost;
};

static void on_entry(struct str bytes, uint64_t age_us, void *arg) {
    struct stand *s = arg;
    size_t n = strlen(s->heard);

    s->age_us = age_us;
    snprintf(s->heard + n, sizeof(s->heard) - n, STR_FMT ";", STR_ARG(bytes));
}

static void on_synced(void *arg) {
    ((struct stand *)arg)->n_synced++;
}

static void on_lost(void *arg) {
    ((struct stand *)arg)->n_lost++;
}

static void begin(struct stand *s) {
    struct error err = {0};

    memset(s, 0, sizeof(*s));
    assert_int_equal(loop_create(&s->loop, &err), ST_OK);
    server_start(&s->server, s->loop);
}

static void connect_to_it(struct stand *s, const char *path, const char *password) {
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
    if (st == ST_UNAVAILABLE) {
        print_message("%s\n", err.message);
        server_stop(&s->server);
        loop_destroy(s->loop);
        skip();
    }
    assert_int_equal(st, ST_OK);
}

static void end(struct stand *s) {
    redis_stream_destroy(s->stream);
    server_stop(&s->server);
    loop_destroy(s->loop);
}

#define UNTIL(s, condition)                                                                        \
    for (uint64_t until_us = clock_now_us() + 10000000u; !(condition);) {                          \
        loop_turn((s)->loop, 10000);                                                               \
        if (clock_now_us() > until_us) fail_msg("never: %s", #condition);                          \
    }

static bool is_up(const struct stand *s) {
    struct redis_stream_stats stats;

    redis_stream_stats(s->stream, &stats);
    return stats.is_reading && stats.is_writing;
}

static void what_there_was_is_told_and_then_what_comes(void **state) {
    struct stand s;

    (void)state;
    begin(&s);
    add_entry(&s.server, STR("old"));
    add_entry(&s.server, STR("older"));
    connect_to_it(&s, "", NULL);
    UNTIL(&s, s.n_synced == 1 && is_up(&s));
    assert_string_equal(s.heard, "old;older;");
    assert_in_range(s.age_us, 9900000, 11000000);
    redis_stream_append(s.stream, STR("new"));
    UNTIL(&s, strcmp(s.heard, "old;older;new;") == 0);
    assert_string_equal(s.server.seen_max_entries, "777");
    end(&s);
}

static void a_lost_connection_goes_on_behind_the_last_entry(void **state) {
    struct redis_stream_stats stats;
    struct stand s;

    (void)state;
    begin(&s);
    connect_to_it(&s, "", NULL);
    UNTIL(&s, s.n_synced == 1 && is_up(&s));
    redis_stream_append(s.stream, STR("one"));
    UNTIL(&s, strcmp(s.heard, "one;") == 0);
    cut_all(&s.server);
    UNTIL(&s, s.n_lost == 1 && !is_up(&s));
    redis_stream_append(s.stream, STR("nowhere"));
    add_entry(&s.server, STR("two"));
    UNTIL(&s, s.n_synced == 2 && is_up(&s));
    assert_string_equal(s.heard, "one;two;");
    redis_stream_stats(s.stream, &stats);
    assert_int_equal(stats.n_dropped, 1);
    assert_int_equal(stats.n_lost, 2);
    end(&s);
}

static void a_password_and_a_database_are_given(void **state) {
    struct stand s;

    (void)state;
    begin(&s);
    s.server.password = "open";
    connect_to_it(&s, "/5", "open");
    UNTIL(&s, is_up(&s));
    assert_int_equal(s.server.seen_database, 5);
    end(&s);
}

static void a_wrong_password_is_tried_again_later(void **state) {
    struct stand s;

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
    struct stand s;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        begin(&s);
        s.server.odd_answer = odd[i];
        connect_to_it(&s, "", NULL);
        UNTIL(&s, !s.server.odd_answer && s.n_synced && is_up(&s));
        add_entry(&s.server, STR("fine"));
        add_entry(&s.server, STR("fine"));
        UNTIL(&s, strstr(s.heard, "fine;"));
        end(&s);
    }
}

static void a_server_that_refuses_entries_loses_nothing_else(void **state) {
    struct redis_stream_stats stats;
    struct stand s;

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
    UNTIL(&s, strcmp(s.heard, "y;") == 0);
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
        cmocka_unit_test(what_there_was_is_told_and_then_what_comes),
        cmocka_unit_test(a_lost_connection_goes_on_behind_the_last_entry),
        cmocka_unit_test(a_password_and_a_database_are_given),
        cmocka_unit_test(a_wrong_password_is_tried_again_later),
        cmocka_unit_test(odd_answers_do_no_harm),
        cmocka_unit_test(a_server_that_refuses_entries_loses_nothing_else),
        cmocka_unit_test(urls_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
