/* tests/support/client.c - a raw loopback client. */
#include "tests/support/client.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/loop.h"
#include "tests/support/cm.h"

void client_open(struct client *c, uint16_t port) {
    client_open_from(c, port, 1);
}

void client_open_from(struct client *c, uint16_t port, uint8_t source) {
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + source)};

    *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    buf_init(&c->got, 0);
    if (source != 1) {
        assert_int_equal(bind(c->fd, (struct sockaddr *)&from, sizeof(from)), 0);
    }
    assert_int_equal(connect(c->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
}

void client_close(struct client *c) {
    close(c->fd);
    buf_fini(&c->got);
}

size_t client_read(struct client *c) {
    char *to = buf_reserve(&c->got, 65536);
    ssize_t n = recv(c->fd, to, 65536, 0);

    if (n > 0) {
        buf_commit(&c->got, (size_t)n);
        return (size_t)n;
    }
    if (n == 0) c->is_closed = true;
    if (n < 0 && errno == ECONNRESET) c->is_closed = c->was_reset = true;
    return 0;
}

void client_send(struct client *c, struct loop *loop, struct str s) {
    uint64_t until_us = clock_now_us() + CLIENT_TIMEOUT_US;

    while (s.len && clock_now_us() < until_us) {
        ssize_t n = send(c->fd, s.ptr, s.len, MSG_NOSIGNAL);

        if (n > 0) s = (struct str){s.ptr + n, s.len - (size_t)n};
        if (n < 0 && errno != EAGAIN) return;
        if (s.len) loop_turn(loop, 1000);
    }
}

void client_expect(struct client *c, struct loop *loop, const char *needle) {
    uint64_t until_us = clock_now_us() + CLIENT_TIMEOUT_US;

    while (str_find(buf_str(&c->got), str_of(needle)) < 0) {
        loop_turn(loop, 1000);
        client_read(c);
        if (clock_now_us() > until_us) {
            fail_msg("waited for '%s', got '%.*s'", needle, (int)buf_len(&c->got),
                     c->got.data ? buf_ptr(&c->got) : "");
        }
    }
}

void client_expect_close(struct client *c, struct loop *loop) {
    uint64_t until_us = clock_now_us() + CLIENT_TIMEOUT_US;

    while (!c->is_closed) {
        loop_turn(loop, 1000);
        client_read(c);
        if (clock_now_us() > until_us) fail_msg("the connection stays open");
    }
}

int client_count(const struct client *c, const char *needle) {
    struct str rest = buf_str(&c->got);
    int n = 0;
    ptrdiff_t at;

    while ((at = str_find(rest, str_of(needle))) >= 0) {
        rest = (struct str){rest.ptr + at + 1, rest.len - (size_t)at - 1};
        n++;
    }
    return n;
}
