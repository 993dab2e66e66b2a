/* tests/unit/common/http/test_http_large.c - large bodies: what they cost, and what they leave
 * behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/iobuf.h"
#include "tests/support/client.h"
#include "tests/unit/common/http/http_fixture.h"

/* In place of the library's: libevent calls this one. */
static uint32_t n_epoll_ctl;

int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event) {
    n_epoll_ctl++;
    return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

static size_t rss_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long size, resident;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void send_head(struct fixture *fx, struct client *c, const char *line, size_t length) {
    char head[200];

    snprintf(head, sizeof(head), "%s HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", line,
             length);
    client_send(c, fx->loop, str_of(head));
}

static void a_large_body_changes_nothing_that_is_watched(void **state) {
    static char body[200000];
    struct fixture fx;
    struct client c;

    (void)state;
    memset(body, 'x', sizeof(body));
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    for (int i = 0; i < 20; i++) {
        if (i == 1) n_epoll_ctl = 0; /* the connection is watched by now */
        send_head(&fx, &c, "GET /none", sizeof(body));
        client_send(&c, fx.loop, (struct str){body, sizeof(body)});
        TURN_UNTIL(fx.loop, (client_read(&c), client_count(&c, "204") == i + 1));
    }
    assert_true(buf_len(&fx.seen) > sizeof(body)); /* it came, whole */
    assert_int_equal(n_epoll_ctl, 0);
    client_close(&c);
    finish(&fx);
}

#define N_BODIES   8
#define BODY_BYTES (24u << 20)

/* Sends N_BODIES requests side by side and answers them when all are there. */
static void send_bodies(struct fixture *fx, const char *body) {
    struct client clients[N_BODIES];

    for (int i = 0; i < N_BODIES; i++) {
        client_open(&clients[i], http_server_port(fx->server));
        send_head(fx, &clients[i], "POST /keep", BODY_BYTES);
    }
    for (size_t at = 0; at < BODY_BYTES; at += 1u << 20) {
        for (int i = 0; i < N_BODIES; i++)
            client_send(&clients[i], fx->loop, (struct str){body + at, 1u << 20});
    }
    TURN_UNTIL(fx->loop, fx->n_kept == N_BODIES);
    for (int i = 0; i < N_BODIES; i++) {
        assert_int_equal(fx->kept[i]->body.len, BODY_BYTES);
        assert_memory_equal(fx->kept[i]->body.ptr, body, BODY_BYTES);
        http_reply(fx->kept[i], 200, "text/plain", STR("ok"));
    }
    fx->n_kept = 0;
    for (int i = 0; i < N_BODIES; i++) {
        client_expect(&clients[i], fx->loop, "ok");
        client_close(&clients[i]);
    }
}

static void memory_of_large_bodies_is_given_back(void **state) {
    char *body = malloc(BODY_BYTES);
    struct fixture fx;
    size_t before;

    (void)state;
    assert_non_null(body);
    for (size_t i = 0; i < BODY_BYTES; i++)
        body[i] = (char)(i ^ i >> 12);
    start(&fx);
    memset(buf_reserve(&fx.seen, BODY_BYTES + 200), 0, BODY_BYTES); /* a copy of the last one */
    before = rss_bytes();
    for (int i = 0; i < 3; i++)
        send_bodies(&fx, body);
    /* As before a burst, once a second or two have passed without one. */
    TURN_UNTIL(fx.loop, rss_bytes() < before + BODY_BYTES / 4);
    finish(&fx);
    free(body);
}

/* What the free buffers of a loop hold is given back as well. */
static void memory_of_many_small_bodies_is_given_back(void **state) {
    static struct client clients[200];
    static char body[60000];
    struct fixture fx;
    size_t before;

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a sanitizer keeps what is freed */
#endif
    memset(body, 'x', sizeof(body));
    start(&fx);
    loop_turn(fx.loop, 0);
    before = rss_bytes();
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        client_open(&clients[i], http_server_port(fx.server));
        send_head(&fx, &clients[i], "POST /echo", sizeof(body) + 1);
        client_send(&clients[i], fx.loop, (struct str){body, sizeof(body)});
    }
    TURN_UNTIL(fx.loop, rss_bytes() > before + ARRAY_LEN(clients) * sizeof(body) / 2);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        client_close(&clients[i]);
    TURN_UNTIL(fx.loop, rss_bytes() < before + ARRAY_LEN(clients) * sizeof(body) / 4);
    finish(&fx);
}

static void an_announced_body_takes_memory_as_it_arrives(void **state) {
    static struct client clients[100];
    static char body[20000];
    struct fixture fx;
    size_t before;

    (void)state;
    memset(body, 'x', sizeof(body));
    start(&fx);
    loop_turn(fx.loop, 0);
    before = rss_bytes();
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        client_open(&clients[i], http_server_port(fx.server));
        send_head(&fx, &clients[i], "POST /echo", 30u << 20);
        client_send(&clients[i], fx.loop, (struct str){body, sizeof(body)});
    }
    loop_turn(fx.loop, 0);
    assert_true(rss_bytes() < before + ARRAY_LEN(clients) * 65536);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        client_close(&clients[i]);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_many_small_bodies_is_given_back),
        cmocka_unit_test(a_large_body_changes_nothing_that_is_watched),
        cmocka_unit_test(memory_of_large_bodies_is_given_back),
        cmocka_unit_test(an_announced_body_takes_memory_as_it_arrives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
