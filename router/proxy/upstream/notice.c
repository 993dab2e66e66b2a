/* router/proxy/upstream/notice.c - calls to workers whose answers are not read.
 *
 * Each has a connection and NOTICE_MS; it is over when the worker answers anything, closes, or the
 * time is up. A notice that finds no room or no connection is dropped: what it asks for, that a
 * request ends, the worker does by itself some time later. */
#include "router/proxy/upstream/notice.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "router/registry/registry_route.h"

#define NOTICE_US 5000000u

struct notice {
    struct list link; /* on notices->open */
    struct notices *notices;
    struct upstream *up;
    struct buf out;
    struct loop_task send, reap;
    struct loop_timer timer;
};

static void notice_free(void *arg) {
    struct notice *n = arg;

    loop_timer_fini(&n->timer);
    buf_fini(&n->out);
    mem_free(n);
}

/* Freed at the end of the turn: a callback of its own may be on the stack. */
static void notice_end(struct notice *n) {
    loop_defer_cancel(&n->send);
    loop_timer_stop(&n->timer);
    upstream_discard(n->up);
    list_remove(&n->link);
    n->notices->n--;
    loop_defer(n->notices->loop, &n->reap);
}

static void on_data(void *arg) {
    notice_end(arg);
}

static void on_closed(enum conn_end end, void *arg) {
    (void)end;
    notice_end(arg);
}

static void send_notice(void *arg) {
    struct notice *n = arg;
    struct iovec piece = {buf_ptr(&n->out), buf_len(&n->out)};

    if (!conn_is_connecting(&n->up->conn)) conn_sendv(&n->up->conn, &piece, 1);
}

static void on_connected(void *arg) {
    struct notice *n = arg;

    loop_defer_last(n->notices->loop, &n->send);
}

static const struct upstream_user notice_user = {
    .on_data = on_data, .on_connected = on_connected, .on_closed = on_closed};

void notices_init(struct notices *all, struct loop *loop, struct upstream_pool *pool) {
    *all = (struct notices){.loop = loop, .pool = pool};
    list_init(&all->open);
}

static void write_call(struct buf *out, const struct registry_target *target, const char *path,
                       struct str key, struct str json) {
    buf_appendf(out,
                "POST %s HTTP/1.1\r\nhost: %.*s\r\ncontent-type: application/json\r\n"
                "content-length: %zu\r\n",
                path, (int)target->authority_len, target->authority, json.len);
    if (key.len) buf_appendf(out, "authorization: Bearer " STR_FMT "\r\n", STR_ARG(key));
    buf_append_str(out, STR("connection: close\r\n\r\n"));
    buf_append_str(out, json);
}

void notices_send(struct notices *all, const struct registry_target *target, const char *path,
                  struct str key, struct str json) {
    struct notice *n;

    if (all->n >= NOTICES_MAX) return;
    n = mem_try_zalloc(sizeof(*n));
    if (!n) return;
    n->notices = all;
    buf_init(&n->out, 0);
    loop_task_init(&n->send, send_notice, n);
    loop_task_init(&n->reap, notice_free, n);
    loop_timer_init(&n->timer, all->loop, on_data, n);
    write_call(&n->out, target, path, key, json);
    if (buf_status(&n->out) != ST_OK ||
        upstream_acquire(all->pool, target, true, &notice_user, n, &n->up, NULL) != ST_OK) {
        notice_free(n);
        return;
    }
    list_push_back(&all->open, &n->link);
    all->n++;
    loop_timer_start(&n->timer, NOTICE_US);
    loop_defer_last(all->loop, &n->send);
}

void notices_fini(struct notices *all) {
    struct list *link;

    while ((link = list_pop_front(&all->open)) != NULL) {
        struct notice *n = LIST_ENTRY(link, struct notice, link);

        loop_defer_cancel(&n->send);
        upstream_discard(n->up);
        notice_free(n);
    }
}
