/* tests/support/fake_store.c - commands are arrays of bulks, which the reader of replies reads as
 * well. */
#include "tests/support/fake_store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/tls.h"
#include "tests/support/cm.h"

/* --- values ----------------------------------------------------------------------------------- */

static void free_value(struct buf *value) {
    if (!value) return;
    buf_fini(value);
    mem_free(value);
}

struct buf *fake_store_find(struct fake_store *s, const char *name) {
    return strmap_find(&s->values, str_of(name));
}

void fake_store_put(struct fake_store *s, const char *name, struct str value) {
    struct buf *copy = mem_zalloc(sizeof(*copy));

    buf_init(copy, 0);
    buf_append_str(copy, value);
    free_value(strmap_insert(&s->values, str_of(name), copy));
}

void fake_store_flush(struct fake_store *s) {
    const struct strmap_slot *slot;

    for (size_t i = 0; (slot = strmap_next(&s->values, &i));)
        free_value(slot->value);
    strmap_clear(&s->values);
}

/* --- replies ---------------------------------------------------------------------------------- */

static void close_peer(struct fake_store_peer *p) {
    if (!p->is_open) return;
    conn_reset_on_close(&p->conn);
    conn_fini(&p->conn);
    loop_defer_cancel(&p->later);
    for (int i = 0; i < FAKE_STORE_ARGS; i++)
        buf_release(&p->args[i]);
    buf_release(&p->rest);
    p->is_open = false;
}

static void send_rest(void *arg) {
    struct fake_store_peer *p = arg;

    conn_write(&p->conn, buf_ptr(&p->rest), buf_len(&p->rest));
    buf_clear(&p->rest);
}

void fake_store_release(struct fake_store *s) {
    for (int i = 0; i < FAKE_STORE_PEERS; i++)
        if (s->peers[i].is_open && buf_len(&s->peers[i].rest)) send_rest(&s->peers[i]);
}

/* The fault of this command, if it has one. */
static enum fake_fault take_fault(struct fake_store *s, const char *command) {
    bool is_data = strcmp(command, "GET") == 0 || strcmp(command, "SET") == 0 ||
                   strcmp(command, "EXISTS") == 0;
    enum fake_fault fault = s->fault;

    if (fault == FAULT_NONE) return FAULT_NONE;
    if (s->fault_command ? strcmp(command, s->fault_command) != 0 : !is_data) return FAULT_NONE;
    if (s->fault_at > 1) {
        s->fault_at--;
        return FAULT_NONE;
    }
    if (!s->fault_lasts) s->fault = FAULT_NONE;
    return fault;
}

/* Sends the reply, or what the fault makes of it. False: the peer is gone. */
static bool answer(struct fake_store_peer *p, enum fake_fault fault, struct str reply) {
    struct fake_store *s = p->server;
    size_t n = reply.len;

    switch (fault) {
    case FAULT_CUT: close_peer(p); return false;
    case FAULT_HALF:
        conn_write(&p->conn, reply.ptr, n / 2);
        p->is_stuck = true;
        return true;
    case FAULT_SPLIT:
        n = MIN(n, s->split_at);
        conn_write(&p->conn, reply.ptr, n);
        conn_flush(&p->conn);
        buf_append(&p->rest, reply.ptr + n, reply.len - n);
        loop_defer(s->loop, &p->later);
        return true;
    case FAULT_HOLD: buf_append_str(&p->rest, reply); return true;
    case FAULT_LONGER: conn_write(&p->conn, "$400\r\n", 6); break;
    case FAULT_HUGE: conn_write(&p->conn, "$629145600\r\n", 12); break;
    default: break;
    }
    if (buf_len(&p->rest)) {
        buf_append_str(&p->rest, reply);
    } else {
        conn_write(&p->conn, reply.ptr, reply.len);
    }
    return true;
}

/* --- commands --------------------------------------------------------------------------------- */

static const char *arg_of(struct fake_store_peer *p, uint32_t i) {
    return i < p->n_args ? buf_ptr(&p->args[i]) : ""; /* terminated */
}

static void get(struct fake_store *s, struct fake_store_peer *p, struct buf *out) {
    struct buf *value = fake_store_find(s, arg_of(p, 1));

    s->n_gets++;
    if (value) {
        resp_put_argument(out, buf_str(value));
    } else {
        buf_append_str(out, STR("$-1\r\n"));
    }
}

static void set(struct fake_store *s, struct fake_store_peer *p, struct buf *out) {
    bool is_new = strcmp(arg_of(p, 5), "NX") == 0;

    s->n_sets++;
    for (uint32_t i = 0; i < p->n_args; i++)
        if (i != 2) snprintf(s->last_set[i], sizeof(s->last_set[i]), "%s", arg_of(p, i));
    if (is_new && fake_store_find(s, arg_of(p, 1))) {
        buf_append_str(out, STR("$-1\r\n"));
        return;
    }
    fake_store_put(s, arg_of(p, 1), (struct str){buf_ptr(&p->args[2]), buf_len(&p->args[2]) - 1});
    buf_append_str(out, STR("+OK\r\n"));
}

static uint64_t count_bytes(struct fake_store *s) {
    const struct strmap_slot *slot;
    uint64_t sum = 0;

    for (size_t i = 0; (slot = strmap_next(&s->values, &i));)
        sum += buf_len(slot->value);
    return s->used_bytes ? s->used_bytes : sum;
}

static void put_info(struct fake_store *s, struct buf *out) {
    struct buf info;

    buf_init(&info, 0);
    buf_appendf(&info, "# Memory\r\nused_memory:%llu\r\nused_memory_human:1M\r\n",
                (unsigned long long)count_bytes(s));
    resp_put_argument(out, buf_str(&info));
    buf_fini(&info);
}

static void compose(struct fake_store *s, struct fake_store_peer *p, struct buf *out) {
    const char *command = arg_of(p, 0);

    if (strcmp(command, "AUTH") == 0) {
        p->is_known = s->password && strcmp(arg_of(p, p->n_args - 1), s->password) == 0;
        buf_append_str(out, p->is_known ? STR("+OK\r\n") : STR("-WRONGPASS invalid pair\r\n"));
    } else if (s->password && !p->is_known) {
        buf_append_str(out, STR("-NOAUTH Authentication required.\r\n"));
    } else if (strcmp(command, "GET") == 0) {
        get(s, p, out);
    } else if (strcmp(command, "SET") == 0) {
        set(s, p, out);
    } else if (strcmp(command, "EXISTS") == 0) {
        s->n_asks++;
        buf_appendf(out, ":%d\r\n", fake_store_find(s, arg_of(p, 1)) != NULL);
    } else if (strcmp(command, "INFO") == 0) {
        put_info(s, out);
    } else if (strcmp(command, "CLUSTER") == 0) {
        buf_append_str(out, s->slots ? str_of(s->slots)
                                     : STR("-ERR This instance has cluster support disabled\r\n"));
    } else {
        s->n_asking += strcmp(command, "ASKING") == 0;
        buf_append_str(out, STR("+OK\r\n")); /* SELECT, ASKING */
    }
}

/* False: the peer is gone. */
static bool run_command(struct fake_store_peer *p) {
    enum fake_fault fault = take_fault(p->server, arg_of(p, 0));
    struct buf reply;
    bool is_there;

    buf_init(&reply, 0);
    if (fault == FAULT_ERROR) {
        buf_appendf(&reply, "%s\r\n", p->server->fault_text);
    } else {
        compose(p->server, p, &reply);
    }
    is_there = answer(p, fault, buf_str(&reply));
    buf_fini(&reply);
    return is_there;
}

static void on_data(struct conn *c, void *owner) {
    struct fake_store_peer *p = owner;
    struct conn_bytes in = conn_input(c);
    struct resp_item item;
    size_t at = 0;

    for (;;) {
        if (resp_read(&p->resp, (struct str){in.ptr + at, in.len - at}, &item, NULL) != ST_OK) {
            close_peer(p); /* TLS to one that speaks none */
            return;
        }
        if (item.kind == RESP_NONE) break;
        at += item.n_taken;
        if (item.kind == RESP_ARRAY) continue;
        assert_int_equal(item.kind, RESP_BULK);
        assert_true(p->n_args < FAKE_STORE_ARGS);
        buf_clear(&p->args[p->n_args]);
        buf_append_str(&p->args[p->n_args], item.text);
        buf_append(&p->args[p->n_args++], "", 1);
        if (item.ends_reply && p->is_stuck) p->server->n_unanswered++;
        if (item.ends_reply && !p->is_stuck && !run_command(p)) return;
        if (item.ends_reply) p->n_args = 0;
    }
    conn_consume(c, at);
    conn_want_input(c, item.wanted > IOBUF_LARGE_BYTES ? item.wanted : 0);
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    (void)c;
    (void)end;
    close_peer(owner);
}

static const struct conn_events events = {.on_data = on_data, .on_closed = on_closed};

/* --- life ------------------------------------------------------------------------------------- */

static void on_accept(unsigned ready, void *arg) {
    struct fake_store *s = arg;
    int fd = accept4(s->watch.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)ready;
    if (fd < 0) return;
    s->n_accepted++;
    for (int i = 0; i < FAKE_STORE_PEERS; i++) {
        struct fake_store_peer *p = &s->peers[i];

        if (p->is_open) continue;
        *p = (struct fake_store_peer){.server = s, .is_open = true};
        p->resp.max_bulk_bytes = 8u << 20;
        buf_init(&p->rest, 0);
        for (int k = 0; k < FAKE_STORE_ARGS; k++)
            buf_init(&p->args[k], 0);
        loop_task_init(&p->later, send_rest, p);
        conn_init(&p->conn, s->loop, fd, &events, p);
        if (s->tls) tls_accept(&p->conn, s->tls);
        return;
    }
    close(fd);
}

void fake_store_init(struct fake_store *s, struct loop *loop) {
    memset(s, 0, sizeof(*s));
    s->loop = loop;
    strmap_init(&s->values, 1);
}

void fake_store_start(struct fake_store *s) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(s->port)};
    socklen_t n = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &n), 0);
    s->port = ntohs(addr.sin_port);
    loop_fd_init(&s->watch, s->loop, fd, on_accept, s);
    loop_fd_watch(&s->watch, LOOP_READ);
}

void fake_store_stop(struct fake_store *s) {
    if (!s->watch.loop) return;
    for (int i = 0; i < FAKE_STORE_PEERS; i++)
        close_peer(&s->peers[i]);
    loop_fd_fini(&s->watch);
    close(s->watch.fd);
    s->watch.loop = NULL;
}

void fake_store_fini(struct fake_store *s) {
    fake_store_stop(s);
    fake_store_flush(s);
    strmap_fini(&s->values);
}

void fake_store_fail(struct fake_store *s, enum fake_fault fault, const char *command,
                     uint32_t at) {
    s->fault = fault;
    s->fault_command = command;
    s->fault_at = at;
    s->fault_lasts = false;
}
