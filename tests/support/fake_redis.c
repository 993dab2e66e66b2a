/* tests/support/fake_redis.c - commands taken off a buffer, one stream, readers that wait. */
#include "tests/support/fake_redis.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/cm.h"

#define WORDS 12

static void answer(struct fake_redis_peer *p, const char *text) {
    assert_int_equal(send(p->watch.fd, text, strlen(text), MSG_NOSIGNAL), (int)strlen(text));
}

static void answer_entries(struct fake_redis_peer *p, const char *after) {
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

void fake_redis_add(struct fake_redis *s, struct str bytes) {
    buf_append_str(&s->entries[s->n_entries++], bytes);
    for (int i = 0; i < FAKE_REDIS_CONNECTIONS; i++) {
        if (!s->peers[i].is_open || !s->peers[i].is_waiting) continue;
        s->peers[i].is_waiting = false;
        answer_entries(&s->peers[i], s->peers[i].waiting_from);
    }
}

static void execute(struct fake_redis_peer *p, const struct str *w, uint32_t n) {
    struct fake_redis *s = p->server;

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
        fake_redis_add(s, w[7]);
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
static bool take_command(struct fake_redis_peer *p) {
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

static void peer_close(struct fake_redis_peer *p) {
    int fd = p->watch.fd;

    if (!p->is_open) return;
    p->is_open = p->is_waiting = false;
    loop_fd_fini(&p->watch);
    close(fd);
    buf_fini(&p->in);
}

static void on_bytes(unsigned ready, void *arg) {
    struct fake_redis_peer *p = arg;
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
    struct fake_redis *s = arg;
    int fd = accept4(s->watch.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)ready;
    if (fd < 0) return;
    s->n_accepted++;
    for (int i = 0; i < FAKE_REDIS_CONNECTIONS; i++) {
        struct fake_redis_peer *p = &s->peers[i];

        if (p->is_open) continue;
        *p = (struct fake_redis_peer){.server = s, .is_open = true};
        buf_init(&p->in, 0);
        loop_fd_init(&p->watch, s->loop, fd, on_bytes, p);
        loop_fd_watch(&p->watch, LOOP_READ);
        return;
    }
    fail_msg("too many connections");
}

void fake_redis_start(struct fake_redis *s, struct loop *loop) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memset(s, 0, sizeof(*s));
    s->loop = loop;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 16), 0);
    getsockname(fd, (struct sockaddr *)&addr, &len);
    s->port = ntohs(addr.sin_port);
    for (int i = 0; i < FAKE_REDIS_ENTRIES; i++)
        buf_init(&s->entries[i], 0);
    loop_fd_init(&s->watch, loop, fd, on_connection, s);
    loop_fd_watch(&s->watch, LOOP_READ);
}

void fake_redis_cut(struct fake_redis *s) {
    for (int i = 0; i < FAKE_REDIS_CONNECTIONS; i++)
        peer_close(&s->peers[i]);
}

void fake_redis_stop(struct fake_redis *s) {
    int fd = s->watch.fd;

    fake_redis_cut(s);
    loop_fd_fini(&s->watch);
    close(fd);
    for (int i = 0; i < FAKE_REDIS_ENTRIES; i++)
        buf_fini(&s->entries[i]);
}
