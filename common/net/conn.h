/* common/net/conn.h - a TCP or TLS byte stream on a loop.
 *
 * One receive and one send per small request and answer. Write readiness is watched only after the
 * kernel refused bytes. TCP_NODELAY is always on. An idle connection owns no buffer.
 *
 * In:  readable -> one recv -> on_data. The callback reads conn_input and consumes what it has
 * used; the rest stays
 *      in front of the next bytes. Bytes move only after on_data, when they are pinned or more is received, and
 *      never while they are pinned.
 * Out: conn_write queues; the queue is sent once, at the end of the turn, or at once by conn_flush
 * or when it is
 *      large. So many small writes of a turn leave in one send.
 *
 * Back-pressure: the writer reads conn_pending and stops above its high-water mark; on_drain
 * reports that the queue has fallen to CONN_LOW_WATER_BYTES. The reader stops with conn_pause.
 *
 * A struct conn is embedded in its owner. Inside any callback the owner may call conn_fini, but the
 * memory must stay valid until the end of the turn: free it with loop_defer.
 *
 * TLS (tls.h) is another transport below the same stream: bytes wait for the handshake as they wait
 * for a connect.
 *
 * LIMITS. No half-open streams: when the peer closes its side, the connection is closed. Names are
 * not resolved here: addresses are numeric. */
#ifndef COMMON_NET_CONN_H
#define COMMON_NET_CONN_H

#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/net/iobuf.h"
#include "common/net/loop.h"

#define CONN_CONNECT_TIMEOUT_US 250000u
#define CONN_LOW_WATER_BYTES    65536u /* on_drain comes when the queue falls to this */
#define CONN_IOV_MAX            16     /* most pieces of one conn_writev */

struct conn;

enum conn_end {
    CONN_EOF,       /* the peer closed in order */
    CONN_RESET,     /* broken by the peer or the network; see last_errno */
    CONN_REFUSED,   /* connect failed; see last_errno */
    CONN_TIMED_OUT, /* connect or handshake took longer than allowed */
    CONN_TLS,       /* the handshake failed before any data; see tls_failure */
    CONN_NOMEM,     /* a large buffer was refused */
};

const char *conn_end_name(enum conn_end end); /* "refused" */

/* The owner's side; one constant table per kind of connection. Only on_data and on_closed are
 * required. `owner` is what was given at init. */
struct conn_events {
    /* Bytes have arrived: see conn_input. */
    void (*on_data)(struct conn *c, void *owner);
    /* A connection started with conn_connect is up, or the handshake of an accepted one is over. */
    void (*on_connected)(struct conn *c, void *owner);
    /* The output queue was above the low-water mark and has fallen to it. */
    void (*on_drain)(struct conn *c, void *owner);
    /* The queue is empty again after the kernel had refused some of it. (When it takes all at once,
     * conn_pending is 0 after conn_flush and nothing is called.) */
    void (*on_flushed)(struct conn *c, void *owner);
    /* The stream has ended; queued bytes are lost. Input received before stays readable. Nothing
     * more is called; the owner calls conn_fini, here or later. */
    void (*on_closed)(struct conn *c, enum conn_end end, void *owner);
};

enum conn_handshake {
    CONN_HANDSHAKE_DONE,
    CONN_HANDSHAKE_WANTS_READ,
    CONN_HANDSHAKE_WANTS_WRITE,
    CONN_HANDSHAKE_FAILED, /* errno is set */
};

/* The transport, plain or TLS. As recv(2) and sendmsg(2): -1 and errno. After EAGAIN a send is
 * repeated with the same bytes in front. A receive that keeps bytes for lack of room sets has_more,
 * since the descriptor will not become readable. The rest is NULL on a plain stream. */
struct conn_transport {
    ssize_t (*recv)(struct conn *c, void *to, size_t n);
    ssize_t (*send)(struct conn *c, struct iovec *iov, int n);
    enum conn_handshake (*handshake)(struct conn *c); /* until done, before any byte */
    void (*shutdown_write)(struct conn *c);           /* notifies the peer before the FIN */
    void (*close)(struct conn *c, bool is_orderly);   /* frees c->session; the socket is open */
};

struct conn {
    struct loop_fd watch; /* .fd is the socket, -1 once closed */
    const struct conn_events *events;
    void *owner;
    const struct conn_transport *transport;
    void *session; /* the transport's */
    struct iobuf in, out;
    struct loop_task flush;           /* deferred while writes are unsent or news is undelivered */
    struct loop_timer *connect_timer; /* only while connecting */
    size_t in_want;                   /* the owner needs this many contiguous bytes */
    uint32_t expected_bytes;          /* see conn_expect_input */
    uint64_t sent_bytes; /* taken by the kernel so far: distinguishes slow from stuck readers */
    int last_errno;
    uint8_t end;                        /* enum conn_end, once has_failed */
    bool is_connecting;                 /* not up yet, handshake included */
    bool is_handshaking, is_shaking_in; /* and waiting for input of it, not for room */
    bool is_paused, is_pinned;
    bool receives_much;
    bool has_more;    /* the transport holds received bytes back */
    bool out_is_lent; /* `out` is memory of the owner's */
    bool resets_on_close;
    bool has_failed;                       /* on_closed is due */
    bool is_closed;                        /* on_closed was called */
    bool was_above_low_water, was_blocked; /* on_drain, on_flushed are due when it empties */
};

/* Takes a connected non-blocking socket, e.g. from accept4. Starts reading. */
void conn_init(struct conn *c, struct loop *loop, int fd, const struct conn_events *events,
               void *owner);

/* Starts to connect; on_connected or on_closed follows, never before this returns. Writes made
 * meanwhile are sent when it is up. ST_IO when no socket could be made: then nothing is held. */
MUST_USE enum status conn_connect(struct conn *c, struct loop *loop, const struct sockaddr *addr,
                                  socklen_t addr_len, uint64_t timeout_us,
                                  const struct conn_events *events, void *owner, struct error *err);

/* Speaks through `transport` from now on; before any byte has moved. Its handshake begins now, or
 * when the connection is up; the owner or the transport bounds its time. `listens`: the other side
 * speaks first. For tls.c. */
void conn_use_transport(struct conn *c, const struct conn_transport *transport, void *session,
                        bool listens);

/* Removes the session and continues without it: called inside `handshake`, which then returns
 * done. */
void conn_use_plain(struct conn *c);

/* Closes the socket, gives the buffers back. Queued bytes that were not flushed are lost. Nothing
 * is called afterwards. Fine inside a callback (see above) and on a zeroed struct. */
void conn_fini(struct conn *c);

/* --- in ------------------------------------------------------------------------------------- */

/* The bytes received and not consumed. May be changed in place by the owner. Valid until the next
 * receive, consume or fini. */
struct conn_bytes {
    char *ptr;
    size_t len;
};
struct conn_bytes conn_input(struct conn *c);

void conn_consume(struct conn *c, size_t n); /* from the front; none left gives the buffer back */

/* Drops bytes from the end, so that `len` are left: for in-place decoding. */
void conn_input_truncate(struct conn *c, size_t len);

/* Reading stops when the input holds 64 KiB unconsumed. This raises the limit to `n` bytes in one
 * piece, without consumed ones: up to 1 MiB there is room for all of them at once, above that for
 * four times what has arrived. 0 restores the default. Without memory the stream ends with
 * CONN_NOMEM. */
void conn_want_input(struct conn *c, size_t n);

/* One receive takes up to 256 KiB instead of 64, for large messages. */
void conn_receive_much(struct conn *c);

/* The next message is likely as long as this, its beginning included: the first receive has room
 * for so much and need not be copied. 0: nothing is known. */
void conn_expect_input(struct conn *c, size_t n);

/* What has come waits for more: it moves to a buffer that has room for `spare` bytes more, if that
 * is smaller than the one it lies in. Not while pinned. */
void conn_shrink_input(struct conn *c, size_t spare);

/* While pinned, the input stays where it is, whatever is received behind it: so a request can be
 * pointed into while its sender is still watched. Pinning makes some room first, and may move the
 * bytes then; when that room is full, reading stops until the pin is taken away. */
void conn_pin_input(struct conn *c);
void conn_unpin_input(struct conn *c);

void conn_pause(struct conn *c);  /* stops reading; a close is then not noticed either */
void conn_resume(struct conn *c); /* on_data is not called for input already there */

/* --- out ------------------------------------------------------------------------------------ */

/* Queues the bytes (copied, unless large and sent at once); nothing after a failure. Errors come as
 * on_closed, and room as on_drain, but never from inside these calls. */
void conn_write(struct conn *c, const void *data, size_t n);
void conn_writev(struct conn *c, const struct iovec *iov, int n);

/* The same and conn_flush in one, without a copy of what the kernel takes at once. */
void conn_sendv(struct conn *c, const struct iovec *iov, int n);

/* The same, but what the kernel does not take of the last piece is not copied either: it stays as
 * it is, where it is, until conn_pending is 0 or the connection finished. */
void conn_sendv_lent(struct conn *c, const struct iovec *iov, int n);

void conn_flush(struct conn *c);           /* sends now what the kernel takes */
size_t conn_pending(const struct conn *c); /* bytes queued and not yet with the kernel */

/* Ends the stream from this side, e.g. for want of memory: on_closed follows on a later turn. */
void conn_fail(struct conn *c, enum conn_end end);

/* Closing will be a reset: the peer cannot take what it has for a complete, orderly end. */
void conn_reset_on_close(struct conn *c);

/* Sends a FIN behind what was flushed: the peer sees the end, we still read. */
void conn_shutdown_write(struct conn *c);

/* Whether the peer has sent something that was not received yet. Asks the kernel: for connections
 * that are about to be closed. */
bool conn_has_unread(const struct conn *c);

static inline bool conn_is_open(const struct conn *c) {
    return c->watch.loop && c->watch.fd >= 0 && !c->has_failed;
}

static inline bool conn_is_paused(const struct conn *c) {
    return c->is_paused;
}

/* Not up yet: what is written now is copied, and sent when on_connected has been called. */
static inline bool conn_is_connecting(const struct conn *c) {
    return c->is_connecting;
}

#endif
