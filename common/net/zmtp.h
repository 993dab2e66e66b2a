/* common/net/zmtp.h - ZMTP 3, the protocol of ZeroMQ over TCP: the side that connects.
 *
 *      greeting (64 bytes), READY          both ways, neither waits for the other
 *      frame ... frame                     a message of one part or several, or a command
 *
 * For sockets that read what another publishes (SUB), and that ask and are answered (DEALER). The
 * mechanism is NULL: no encryption, no names. What libzmq does beyond this (reconnecting, queues,
 * high-water marks) is its caller's business here: a library with threads of its own and queues in
 * messages would hide their bytes from this program's limits. Nothing is allocated: a frame points
 * into the bytes received.
 *
 * Pure; any thread. Follows: RFC 23 and 37 of ZeroMQ (ZMTP 3.0, 3.1). */
#ifndef COMMON_NET_ZMTP_H
#define COMMON_NET_ZMTP_H

#include "common/base/buf.h"
#include "common/base/status.h"

enum zmtp_socket { ZMTP_SUB, ZMTP_DEALER };

/* One connection. Zero it, set `socket` and `max_frame_bytes`. */
struct zmtp {
    enum zmtp_socket socket;
    uint64_t max_frame_bytes;
    bool has_greeting, is_ready; /* of the peer */
    bool has_more;               /* a message has begun */
    bool may_ping;               /* the peer speaks 3.1: it answers pings */
};

enum zmtp_kind {
    ZMTP_NONE,    /* bytes that only this module needs, or none yet: see `wanted` */
    ZMTP_READY,   /* the peer's socket fits ours: messages may go both ways */
    ZMTP_FRAME,   /* of a message */
    ZMTP_PINGED,  /* answer with zmtp_put_pong */
    ZMTP_COMMAND, /* another one; a pong, for instance */
};

struct zmtp_item {
    enum zmtp_kind kind;
    struct str body;  /* of a FRAME; the context of a PINGED; within the bytes given */
    bool has_more;    /* of a FRAME: the message goes on */
    uint64_t n_taken; /* bytes to drop from the front; 0: come again with more */
    uint64_t wanted;  /* then: how many there must be at least */
};

void zmtp_put_greeting(const struct zmtp *z, struct buf *out); /* and READY */
void zmtp_put_subscription(struct buf *out);                   /* SUB: to everything */
void zmtp_put_frame(struct buf *out, struct str body, bool has_more);
void zmtp_put_ping(struct buf *out);
void zmtp_put_pong(struct buf *out, struct str context);

/* The first item of what has come. ST_INVALID: not ZMTP, or not such a peer; ST_TOO_LARGE: a frame
 * above the limit. The connection is of no more use then. */
MUST_USE enum status zmtp_read(struct zmtp *z, struct str in, struct zmtp_item *out,
                               struct error *err);

#endif
