/* common/net/conn.c - a TCP or TLS byte stream on a loop.
 *
 * One function derives from the state what is watched (watch): reading unless paused or full,
 * writing only while connecting or after the kernel refused bytes. Once watched, reading stays
 * watched until bytes arrive that may not be read: a body that fills its buffer and is consumed in
 * the same turn changes nothing in the kernel.
 *
 * A receive uses a large buffer from the slab, the same hot one for all connections of a loop while
 * owners consume what they get; bytes that an owner keeps are copied to a small buffer if they fit.
 * Bytes move only then: when they are pinned, after on_data, and when more is received.
 *
 * A transport that decrypts may hold bytes behind the descriptor (has_more): the deferred task
 * reads them a turn later, so that one busy stream does not starve the others.
 *
 * Failures inside conn_write or conn_flush are reported by the deferred task: the owner is never
 * called from inside its own call. */
#include "common/net/conn.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/mem.h"

/* A write at least this big is sent at once from the caller's memory instead of being copied. */
#define DIRECT_BYTES 16384u

/* Room behind a pinned request: enough to see that its sender has closed or has sent more. */
#define PIN_ROOM_BYTES 256u

/* Less room than this is not worth a receive when a bigger buffer may be had. */
#define MIN_ROOM_BYTES 1024u

/* What a receive has room for, when a connection receives much. */
#define MUCH_BYTES (256u << 10)

/* So much is reserved for what a peer has announced, however little of it has come; pages that are
 * not touched cost nothing. Beyond it, a multiple of what has come. */
#define TRUSTED_BYTES   (1u << 20)
#define GROWTH_PER_STEP 4

/* The beginning of a message that waits for the rest moves to a buffer of its size, up to this. */
#define REST_BYTES 4096u

/* Not through recv(3) and sendmsg(3): those are points where a thread may be cancelled, and pay for
 * it with two atomic operations each, 1 % of a proxied request. No thread is cancelled here. */
static ssize_t tcp_recv(struct conn *c, void *to, size_t n) {
    return syscall(SYS_recvfrom, c->watch.fd, to, n, 0, NULL, NULL);
}

static ssize_t tcp_send(struct conn *c, struct iovec *iov, int n) {
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};

    if (n == 1) { /* nothing to gather: the kernel has less to fetch */
        return syscall(SYS_sendto, c->watch.fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL, NULL, 0);
    }
    return syscall(SYS_sendmsg, c->watch.fd, &msg, MSG_NOSIGNAL);
}

static const struct conn_transport tcp_transport = {.recv = tcp_recv, .send = tcp_send};

static const char *const end_names[] = {
    [CONN_EOF] = "eof",         [CONN_RESET] = "reset",
    [CONN_REFUSED] = "refused", [CONN_TIMED_OUT] = "timed_out",
    [CONN_TLS] = "tls",         [CONN_NOMEM] = "nomem",
};

const char *conn_end_name(enum conn_end end) {
    return (unsigned)end < ARRAY_LEN(end_names) ? end_names[end] : "unknown";
}

static struct iobuf_slab *slab(struct conn *c) {
    return loop_slab(c->watch.loop);
}

static bool input_is_full(const struct conn *c) {
    size_t len = iobuf_len(&c->in);

    if (c->is_pinned) return c->in.data && iobuf_room(&c->in) == 0;
    return len >= IOBUF_LARGE_BYTES && len >= c->in_want;
}

static bool may_read(const struct conn *c) {
    return !c->is_connecting && !c->is_paused && !input_is_full(c);
}

static void watch(struct conn *c) {
    unsigned conditions = 0;

    if (c->watch.fd < 0) return;
    if (!c->has_failed) {
        if (c->is_connecting ? !c->is_shaking_in : c->was_blocked) conditions |= LOOP_WRITE;
        if (c->is_shaking_in || may_read(c)) conditions |= LOOP_READ;
        if (!c->is_connecting) conditions |= c->watch.watched & LOOP_READ; /* see is_ready */
        if (c->has_more && may_read(c)) loop_defer_last(c->watch.loop, &c->flush);
    }
    if (conditions != c->watch.watched) loop_fd_watch(&c->watch, conditions);
}

static void drop_out(struct conn *c) {
    if (c->out_is_lent) c->out = (struct iobuf){0};
    c->out_is_lent = false;
    iobuf_release(&c->out, slab(c));
}

static void consume_out(struct conn *c, size_t n) {
    if (n == iobuf_len(&c->out)) {
        drop_out(c);
    } else {
        c->out.start += (uint32_t)n;
    }
}

/* Behind what is lent comes more: all of it is copied after all. */
static enum status take_over_lent(struct conn *c) {
    struct iobuf own = {0};

    if (!c->out_is_lent) return ST_OK;
    if (iobuf_append(&own, slab(c), c->out.data + c->out.start, iobuf_len(&c->out)) != ST_OK)
        return ST_NOMEM;
    c->out = own;
    c->out_is_lent = false;
    return ST_OK;
}

/* The input has got shorter, or may get longer: what was full may be read again. */
static inline void input_has_room(struct conn *c) {
    if (UNLIKELY(!(c->watch.watched & LOOP_READ) || c->has_more)) watch(c);
}

static void fail_later(struct conn *c, enum conn_end end, int error) {
    if (c->has_failed) return;
    c->has_failed = true;
    c->end = (uint8_t)end;
    c->last_errno = error;
    drop_out(c);
    loop_defer_last(c->watch.loop, &c->flush);
    watch(c);
}

/* Notifies the owner; the last thing that happens to a connection. */
static void report_closed(struct conn *c) {
    loop_defer_cancel(&c->flush);
    c->is_closed = true;
    c->events->on_closed(c, (enum conn_end)c->end, c->owner);
}

static void fail_now(struct conn *c, enum conn_end end, int error) {
    fail_later(c, end, error);
    if (!c->is_closed) report_closed(c);
}

/* --- out ------------------------------------------------------------------------------------ */

static bool is_temporary(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Sends the queue and then `more` pieces; returns the bytes sent of the pieces. */
static size_t send_some(struct conn *c, const struct iovec *more, int n_more) {
    struct iovec iov[CONN_IOV_MAX + 1];
    size_t queued = iobuf_len(&c->out), sent;
    ssize_t rc;
    int n = 0;

    if (queued) iov[n++] = (struct iovec){c->out.data + c->out.start, queued};
    for (int i = 0; i < n_more; i++)
        iov[n++] = more[i];
    if (n == 0) return 0;
    rc = c->transport->send(c, iov, n);
    if (rc < 0) {
        if (is_temporary(errno)) {
            c->was_blocked = true;
        } else {
            fail_later(c, CONN_RESET, errno);
        }
        return 0;
    }
    sent = (size_t)rc;
    c->sent_bytes += sent;
    if (queued) consume_out(c, MIN(sent, queued));
    return sent > queued ? sent - queued : 0;
}

/* Sends what is queued, unless the kernel is known to be full. */
static void send_queue(struct conn *c) {
    size_t queued = iobuf_len(&c->out);

    if (queued == 0 || c->is_connecting || c->has_failed) return;
    send_some(c, NULL, 0);
    if (!c->has_failed && iobuf_len(&c->out)) c->was_blocked = true;
    if (c->was_blocked) watch(c);
}

/* News that waited for a moment when the owner may be called. */
static void report_writable(struct conn *c) {
    if (c->was_above_low_water && conn_pending(c) <= CONN_LOW_WATER_BYTES) {
        c->was_above_low_water = false;
        if (c->events->on_drain) c->events->on_drain(c, c->owner);
    }
}

static void can_read(struct conn *c);

static void at_end_of_turn(void *arg) {
    struct conn *c = arg;

    if (!c->was_blocked) send_queue(c);
    if (c->has_failed) {
        report_closed(c);
        return;
    }
    report_writable(c);
    if (c->has_more && conn_is_open(c) && may_read(c)) can_read(c);
}

static void can_write(struct conn *c) {
    c->was_blocked = false;
    send_queue(c);
    watch(c);
    if (c->has_failed) {
        report_closed(c);
        return;
    }
    report_writable(c);
    if (conn_is_open(c) && !c->was_blocked && conn_pending(c) == 0 && c->events->on_flushed) {
        c->events->on_flushed(c, c->owner);
    }
}

/* What is left of the pieces, `left` bytes, without their first `sent` ones. */
static void queue_rest(struct conn *c, const struct iovec *iov, int n, size_t sent, size_t left) {
    if (take_over_lent(c) != ST_OK || iobuf_reserve(&c->out, slab(c), left) != ST_OK) {
        fail_later(c, CONN_NOMEM, ENOMEM);
        return;
    }
    for (int i = 0; i < n; i++) {
        size_t skip = MIN(sent, iov[i].iov_len), len = iov[i].iov_len - skip;

        sent -= skip;
        if (len) memcpy(c->out.data + c->out.end, (const char *)iov[i].iov_base + skip, len);
        c->out.end += (uint32_t)len;
    }
}

/* The rest of a piece that stays where it is. */
static void lend(struct conn *c, const struct iovec *piece, size_t left) {
    assert(left <= IOBUF_MAX_BYTES);
    c->out = (struct iobuf){.data = (char *)piece->iov_base + piece->iov_len - left,
                            .end = (uint32_t)left,
                            .cap = (uint32_t)left};
    c->out_is_lent = true;
}

/* Queues the pieces; from `direct_bytes` on they are sent first, and only the rest is queued. */
static void write_pieces(struct conn *c, const struct iovec *iov, int n, size_t direct_bytes,
                         bool lends) {
    size_t total = 0, sent = 0;

    assert(n <= CONN_IOV_MAX);
    if (!conn_is_open(c)) return;
    for (int i = 0; i < n; i++)
        total += iov[i].iov_len;
    if (total == 0) return;
    if (total >= direct_bytes && !c->was_blocked && !c->is_connecting) {
        sent = send_some(c, iov, n);
        if (sent < total && !c->has_failed) c->was_blocked = true;
        if (c->was_blocked) watch(c);
    }
    if (sent < total && !c->has_failed) {
        if (lends && iobuf_len(&c->out) == 0 && total - sent <= iov[n - 1].iov_len) {
            lend(c, &iov[n - 1], total - sent);
        } else {
            queue_rest(c, iov, n, sent, total - sent);
        }
    }
    if (iobuf_len(&c->out) > CONN_LOW_WATER_BYTES) c->was_above_low_water = true;
    if (iobuf_len(&c->out) && !c->was_blocked) loop_defer_last(c->watch.loop, &c->flush);
}

void conn_writev(struct conn *c, const struct iovec *iov, int n) {
    write_pieces(c, iov, n, DIRECT_BYTES, false);
}

void conn_sendv(struct conn *c, const struct iovec *iov, int n) {
    write_pieces(c, iov, n, 1, false);
    conn_flush(c);
}

void conn_sendv_lent(struct conn *c, const struct iovec *iov, int n) {
    write_pieces(c, iov, n, 1, true);
    conn_flush(c);
}

void conn_write(struct conn *c, const void *data, size_t n) {
    struct iovec iov = {(void *)(uintptr_t)data, n};

    conn_writev(c, &iov, 1);
}

void conn_flush(struct conn *c) {
    if (!conn_is_open(c) || c->was_blocked) return;
    send_queue(c);
    if (c->has_failed || c->has_more ||
        (c->was_above_low_water && conn_pending(c) <= CONN_LOW_WATER_BYTES)) {
        loop_defer_last(c->watch.loop, &c->flush);
    } else {
        loop_defer_cancel(&c->flush);
    }
}

size_t conn_pending(const struct conn *c) {
    return iobuf_len(&c->out);
}

void conn_fail(struct conn *c, enum conn_end end) {
    if (conn_is_open(c)) fail_later(c, end, 0);
}

void conn_reset_on_close(struct conn *c) {
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};

    if (c->watch.loop && c->watch.fd >= 0) {
        c->resets_on_close = true;
        setsockopt(c->watch.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
}

void conn_shutdown_write(struct conn *c) {
    if (!conn_is_open(c)) return;
    if (c->transport->shutdown_write) c->transport->shutdown_write(c);
    shutdown(c->watch.fd, SHUT_WR);
}

/* --- in ------------------------------------------------------------------------------------- */

/* Room for the next receive. What was announced is reserved at once, within limits; so it is copied
 * at most once, out of the buffer of the first receive. */
static enum status make_room(struct conn *c) {
    size_t len = iobuf_len(&c->in), room = iobuf_room(&c->in), whole;

    if (c->is_pinned) return ST_OK;
    if (len == 0) {
        whole = c->receives_much ? MUCH_BYTES : IOBUF_LARGE_BYTES;
        if (c->expected_bytes) whole = MIN(whole, (size_t)c->expected_bytes);
        return iobuf_reserve(&c->in, slab(c), whole);
    }
    if (room >= MIN_ROOM_BYTES) return ST_OK;
    if (len < c->in_want) {
        whole = MIN(c->in_want, MAX(len * GROWTH_PER_STEP, (size_t)TRUSTED_BYTES));
        return iobuf_reserve(&c->in, slab(c), whole - len + PIN_ROOM_BYTES);
    }
    if (room && c->in.start == 0 && c->in.cap >= IOBUF_LARGE_BYTES) return ST_OK;
    return iobuf_reserve(&c->in, slab(c), IOBUF_LARGE_BYTES - len);
}

static void can_read(struct conn *c) {
    size_t room;
    ssize_t n;

    if (make_room(c) != ST_OK) {
        fail_now(c, CONN_NOMEM, ENOMEM);
        return;
    }
    room = iobuf_room(&c->in);
    assert(room > 0); /* or it would not be watched */
    n = c->transport->recv(c, c->in.data + c->in.end, room);
    if (n <= 0) {
        int error = errno;

        if (iobuf_len(&c->in) == 0) iobuf_release(&c->in, slab(c));
        if (n == 0) {
            fail_now(c, CONN_EOF, 0);
        } else if (!is_temporary(error)) {
            fail_now(c, CONN_RESET, error);
        } else {
            watch(c); /* TLS may have to write before it can read */
        }
        return;
    }
    c->in.end += (uint32_t)n;
    if (c->has_more) watch(c);
    c->events->on_data(c, c->owner);
    if (c->watch.fd >= 0 && !c->is_pinned && c->in_want <= REST_BYTES &&
        iobuf_len(&c->in) <= REST_BYTES) {
        iobuf_shrink(&c->in, slab(c), 0); /* what is left waits */
    }
}

bool conn_has_unread(const struct conn *c) {
    char byte;

    if (!conn_is_open(c)) return false;
    return c->has_more || recv(c->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

struct conn_bytes conn_input(struct conn *c) {
    return (struct conn_bytes){c->in.data ? c->in.data + c->in.start : NULL, iobuf_len(&c->in)};
}

void conn_consume(struct conn *c, size_t n) {
    if (iobuf_len(&c->in)) iobuf_consume(&c->in, slab(c), n);
    input_has_room(c);
}

void conn_input_truncate(struct conn *c, size_t len) {
    assert(len <= iobuf_len(&c->in));
    c->in.end = c->in.start + (uint32_t)len;
    if (len == 0) iobuf_release(&c->in, slab(c));
    input_has_room(c);
}

void conn_want_input(struct conn *c, size_t n) {
    c->in_want = n;
    input_has_room(c);
}

void conn_receive_much(struct conn *c) {
    c->receives_much = true;
}

void conn_expect_input(struct conn *c, size_t n) {
    c->expected_bytes = n <= REST_BYTES ? 0 : (uint32_t)MIN(n + PIN_ROOM_BYTES, MUCH_BYTES);
}

void conn_shrink_input(struct conn *c, size_t spare) {
    assert(!c->is_pinned);
    iobuf_shrink(&c->in, slab(c), spare);
}

void conn_pin_input(struct conn *c) {
    iobuf_shrink(&c->in, slab(c), PIN_ROOM_BYTES);
    if (iobuf_room(&c->in) < PIN_ROOM_BYTES &&
        iobuf_reserve(&c->in, slab(c), PIN_ROOM_BYTES) != ST_OK) {
        fail_later(c, CONN_NOMEM, ENOMEM);
    }
    c->is_pinned = true;
}

void conn_unpin_input(struct conn *c) {
    c->is_pinned = false;
    input_has_room(c);
}

void conn_pause(struct conn *c) {
    c->is_paused = true; /* see is_ready */
}

void conn_resume(struct conn *c) {
    c->is_paused = false;
    watch(c);
}

/* --- connecting and life ---------------------------------------------------------------------- */

static void end_connecting(struct conn *c) {
    c->is_connecting = c->is_handshaking = c->is_shaking_in = false;
    if (!c->connect_timer) return;
    loop_timer_fini(c->connect_timer);
    mem_free(c->connect_timer);
    c->connect_timer = NULL;
}

static void come_up(struct conn *c) {
    end_connecting(c);
    watch(c);
    if (c->events->on_connected) c->events->on_connected(c, c->owner);
    if (conn_is_open(c) && conn_pending(c)) loop_defer_last(c->watch.loop, &c->flush);
}

static void shake_hands(struct conn *c) {
    enum conn_handshake at = c->transport->handshake(c);
    int error = errno;

    if (at == CONN_HANDSHAKE_FAILED) {
        end_connecting(c);
        fail_now(c, CONN_TLS, error);
    } else if (at == CONN_HANDSHAKE_DONE) {
        come_up(c);
    } else {
        c->is_shaking_in = at == CONN_HANDSHAKE_WANTS_READ;
        watch(c);
    }
}

static void connect_ended(struct conn *c) {
    int error = 0;
    socklen_t n = sizeof(error);

    if (getsockopt(c->watch.fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0) error = errno;
    if (error) {
        end_connecting(c);
        fail_now(c, CONN_REFUSED, error);
    } else if (c->transport->handshake) {
        c->is_handshaking = true;
        shake_hands(c);
    } else {
        come_up(c);
    }
}

static void connect_took_too_long(void *arg) {
    struct conn *c = arg;

    end_connecting(c);
    fail_now(c, CONN_TIMED_OUT, ETIMEDOUT);
}

static void is_ready(unsigned ready, void *arg) {
    struct conn *c = arg;

    if (c->has_failed) return; /* the flush task reports it */
    if (c->is_handshaking) {
        shake_hands(c);
    } else if (c->is_connecting) {
        connect_ended(c);
    } else if (!(ready & LOOP_READ)) {
        can_write(c);
    } else if (may_read(c)) {
        can_read(c);
    } else {
        loop_fd_watch(&c->watch, c->watch.watched & LOOP_WRITE); /* until it may be read again */
    }
}

static void setup(struct conn *c, struct loop *loop, int fd, const struct conn_events *events,
                  void *owner) {
    const int on = 1;

    *c = (struct conn){.events = events, .owner = owner, .transport = &tcp_transport};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* fails on AF_UNIX: not needed */
    loop_fd_init(&c->watch, loop, fd, is_ready, c);
    loop_task_init(&c->flush, at_end_of_turn, c);
}

void conn_init(struct conn *c, struct loop *loop, int fd, const struct conn_events *events,
               void *owner) {
    setup(c, loop, fd, events, owner);
    watch(c);
}

enum status conn_connect(struct conn *c, struct loop *loop, const struct sockaddr *addr,
                         socklen_t addr_len, uint64_t timeout_us, const struct conn_events *events,
                         void *owner, struct error *err) {
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) return error_set(err, ST_IO, "cannot open a socket: %s", strerror(errno));
    setup(c, loop, fd, events, owner);
    c->is_connecting = true;
    if (connect(fd, addr, addr_len) == 0) {
        watch(c); /* writable at once: on_connected comes from the loop like any other */
    } else if (errno != EINPROGRESS) {
        c->is_connecting = false;
        fail_later(c, CONN_REFUSED, errno);
        return ST_OK;
    }
    c->connect_timer = mem_alloc(sizeof(*c->connect_timer));
    loop_timer_init(c->connect_timer, loop, connect_took_too_long, c);
    loop_timer_start(c->connect_timer, timeout_us);
    watch(c);
    return ST_OK;
}

void conn_use_transport(struct conn *c, const struct conn_transport *transport, void *session,
                        bool listens) {
    c->transport = transport;
    c->session = session;
    if (c->is_connecting || c->has_failed) return;
    c->is_connecting = c->is_handshaking = true;
    c->is_shaking_in = listens;
    watch(c);
}

void conn_use_plain(struct conn *c) {
    c->transport->close(c, false);
    c->transport = &tcp_transport;
    c->session = NULL;
}

void conn_fini(struct conn *c) {
    bool is_orderly = !c->is_connecting && !c->has_failed && !c->resets_on_close;

    if (!c->watch.loop || c->watch.fd < 0) return;
    if (c->transport->close) c->transport->close(c, is_orderly && conn_pending(c) == 0);
    end_connecting(c);
    loop_defer_cancel(&c->flush);
    loop_fd_fini(&c->watch);
    close(c->watch.fd);
    c->watch.fd = -1;
    iobuf_release(&c->in, slab(c));
    drop_out(c);
}
