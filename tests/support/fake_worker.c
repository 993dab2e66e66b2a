/* tests/support/fake_worker.c - listeners, connections, and a very small reader of requests. */
#include "tests/support/fake_worker.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"

struct fake_conn {
    struct conn conn;
    struct list link;
    struct fake_worker *worker;
    struct loop_task reap;
    uint64_t flood_left;
};

static void reap(void *arg) {
    mem_free(arg);
}

static void drop(struct fake_conn *f) {
    struct fake_script *s = f->worker->script;

    if (!list_is_linked(&f->link)) return;
    list_remove(&f->link);
    s->n_open--;
    conn_fini(&f->conn);
    loop_defer(s->loop, &f->reap);
}

static void flood(struct fake_conn *f) {
    static const char piece[16384] = {[0 ... 16383] = 'x'};

    while (f->flood_left && conn_is_open(&f->conn) && conn_pending(&f->conn) < 100000) {
        size_t n = (size_t)MIN(f->flood_left, sizeof(piece));

        conn_write(&f->conn, piece, n);
        f->flood_left -= n;
        f->worker->script->sent_bytes += n;
    }
}

static void answer(struct fake_conn *f) {
    struct fake_script *s = f->worker->script;
    const struct fake_step *step = &s->steps[MIN(s->n_requests, s->n_steps - 1)];

    s->served_by[s->n_requests % ARRAY_LEN(s->served_by)] = f->worker->index;
    s->n_requests++;
    if (step->bytes) conn_write(&f->conn, step->bytes, strlen(step->bytes));
    f->flood_left = step->flood_bytes;
    flood(f);
    if (step->then == FAKE_KEEP) return;
    conn_flush(&f->conn);
    if (step->then == FAKE_RESET) conn_reset_on_close(&f->conn);
    drop(f);
}

/* Bytes of the request that begins the input; 0 while it is incomplete. */
static size_t request_len(struct conn_bytes in) {
    ptrdiff_t head = str_find((struct str){in.ptr, in.len}, STR("\r\n\r\n"));
    ptrdiff_t length = str_find((struct str){in.ptr, in.len}, STR("content-length: "));
    size_t n;

    if (head < 0) return 0;
    assert_true(length > 0 && length < head);
    n = (size_t)head + 4 + strtoul(in.ptr + length + strlen("content-length: "), NULL, 10);
    return n <= in.len ? n : 0;
}

static void on_data(struct conn *c, void *owner) {
    struct fake_conn *f = owner;
    struct fake_script *s = f->worker->script;
    struct conn_bytes in = conn_input(c);
    size_t n = request_len(in);

    conn_want_input(c, n ? 0 : in.len + 65536);
    if (n == 0) return;
    buf_clear(&s->last_request);
    buf_append(&s->last_request, in.ptr, n);
    conn_consume(c, n);
    list_remove(&f->link); /* the one used last is the first */
    list_push_front(&s->conns, &f->link);
    answer(f);
}

static void on_drain(struct conn *c, void *owner) {
    (void)c;
    flood(owner);
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    (void)c;
    (void)end;
    drop(owner);
}

static const struct conn_events events = {
    .on_data = on_data, .on_drain = on_drain, .on_closed = on_closed};

static void on_accept(unsigned ready, void *arg) {
    struct fake_worker *w = arg;
    int fd = accept4(w->watch.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct fake_conn *f;

    (void)ready;
    if (fd < 0) return;
    f = mem_zalloc(sizeof(*f));
    f->worker = w;
    loop_task_init(&f->reap, reap, f);
    conn_init(&f->conn, w->script->loop, fd, &events, f);
    list_push_front(&w->script->conns, &f->link);
    w->script->n_accepted++;
    w->script->n_open++;
}

static void listen_on_loopback(struct fake_worker *w) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&addr, n), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &n), 0);
    w->port = ntohs(addr.sin_port);
    loop_fd_init(&w->watch, w->script->loop, fd, on_accept, w);
    loop_fd_watch(&w->watch, LOOP_READ);
}

void fake_start(struct fake_script *s, struct loop *loop, uint32_t n_workers) {
    *s = (struct fake_script){.loop = loop, .n_workers = n_workers};
    list_init(&s->conns);
    buf_init(&s->last_request, 0);
    for (uint32_t i = 0; i < n_workers; i++) {
        s->workers[i].script = s;
        s->workers[i].index = i;
        listen_on_loopback(&s->workers[i]);
    }
}

void fake_play(struct fake_script *s, const struct fake_step *steps, uint32_t n_steps) {
    s->steps = steps;
    s->n_steps = n_steps;
    s->n_requests = 0;
}

void fake_deafen(struct fake_script *s, uint32_t worker) {
    struct loop_fd *watch = &s->workers[worker].watch;

    if (watch->fd < 0) return;
    loop_fd_fini(watch);
    close(watch->fd);
    watch->fd = -1;
}

void fake_drop_all(struct fake_script *s) {
    LIST_FOR_EACH(it, &s->conns) {
        drop(LIST_ENTRY(it, struct fake_conn, link));
    }
}

void fake_send(struct fake_script *s, struct str bytes) {
    struct list *first = list_first(&s->conns);
    struct conn *c;

    assert_non_null(first);
    c = &LIST_ENTRY(first, struct fake_conn, link)->conn;
    conn_write(c, bytes.ptr, bytes.len);
    conn_flush(c);
}

void fake_stop(struct fake_script *s) {
    fake_drop_all(s);
    for (uint32_t i = 0; i < s->n_workers; i++)
        fake_deafen(s, i);
    buf_fini(&s->last_request);
}
