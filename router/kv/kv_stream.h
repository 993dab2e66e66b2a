/* router/kv/kv_stream.h - one connection to a publisher of KV events: its stream, or one replay.
 *
 *      connect ─▶ greetings, READY ─▶ SUB: subscribes ─▶ on_up ─▶ on_batch ...
 *                                     DEALER: asks   ─▶ on_up ─▶ on_batch ..., number KV_SEQUENCE_END
 *
 * A message is [topic, number, batch] on the stream, and [empty, (topic,) number, batch] in a
 * replay: the last part is the batch and the one before it the number, whatever precedes them.
 *
 * A peer may be anything, since an operator's port number may be wrong: a handshake has 5 s, a
 * frame 30 s and 8 MiB, and frames above 64 KiB share 64 MiB of all connections. Publishers that
 * answer pings are lost after 30 s of silence. Thread: that of its loop. */
#ifndef ROUTER_KV_KV_STREAM_H
#define ROUTER_KV_KV_STREAM_H

#include "common/net/address.h"
#include "common/net/conn.h"
#include "common/net/zmtp.h"

#define KV_STREAM_FRAME_MAX (UINT64_C(8) << 20)

/* Memory for large frames, shared by the streams of a thread. */
struct kv_stream_room {
    uint64_t used, max;
};

/* From inside any of them the stream may be closed, and opened again. */
struct kv_stream_events {
    void (*on_up)(void *arg);
    void (*on_batch)(uint64_t number, struct str batch, void *arg);
    /* It is closed. is_wrong: the peer is not what is looked for, and will hardly become it. */
    void (*on_lost)(const char *why, bool is_wrong, void *arg);
};

struct kv_stream {
    const struct kv_stream_events *events;
    void *arg;
    struct loop *loop;
    struct kv_stream_room *room;
    struct conn conn;
    struct zmtp zmtp;
    struct loop_timer timer;
    struct loop_task connect; /* put off: the owner may be inside a callback of this connection */
    struct address to;
    bool is_open;
    uint32_t n_opened;
    uint64_t from;     /* DEALER: the first batch wanted */
    uint64_t charged;  /* to `room` */
    uint64_t heard_us; /* a whole item came */
    uint32_t n_parts;  /* of the message so far */
    bool has_number;   /* the last part may be one */
    uint64_t number;
};

void kv_stream_init(struct kv_stream *s, struct loop *loop, struct kv_stream_room *room,
                    const struct kv_stream_events *events, void *arg);
void kv_stream_fini(struct kv_stream *s);

/* Closes what is open, and connects. Nothing is called before it returns. */
void kv_stream_open(struct kv_stream *s, enum zmtp_socket socket, const struct address *to,
                    uint64_t from);
void kv_stream_close(struct kv_stream *s); /* nothing is called */

#endif
