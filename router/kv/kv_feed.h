/* router/kv/kv_feed.h - one connection to an Incipit worker's GET /kv_events.
 *
 *      open ─▶ on_up ─▶ on_frame: (gap,) batch ..., digest, batch ... ─▶ on_lost
 *
 * The worker numbers its batches and keeps the latest. A connection asks for those from a number
 * on; when the worker no longer has them, or is another run of it, its first frame is a gap and all
 * that it holds follows. So there is no second socket for replays as there is with ZeroMQ.
 *
 * Every DIGEST_S seconds the worker sends a digest, so a silent connection is a dead one. A frame
 * has at most 8 MiB, and frames above 64 KiB share the memory of all connections (kv_stream.h).
 * Thread: that of its loop. */
#ifndef ROUTER_KV_KV_FEED_H
#define ROUTER_KV_KV_FEED_H

#include "router/kv/kv_frame.h"
#include "router/kv/kv_stream.h"

struct http_call;
struct http_client;

#define KV_FEED_SNAPSHOT UINT64_MAX /* from: all that is held */

/* From inside any of them the feed may be closed, and opened again. */
struct kv_feed_events {
    void (*on_up)(void *arg);
    void (*on_frame)(const struct kv_frame *frame, void *arg);
    /* It is closed. is_wrong: this worker publishes no events, and will hardly begin to. */
    void (*on_lost)(const char *why, bool is_wrong, void *arg);
};

struct kv_feed {
    const struct kv_feed_events *events;
    void *arg;
    struct http_client *client;
    struct kv_stream_room *room;
    struct http_call *call; /* NULL: closed */
    struct buf rest;        /* frames; the last is incomplete */
    bool is_up;
    uint32_t n_opened;
    uint64_t charged; /* to `room` */
};

void kv_feed_init(struct kv_feed *f, struct http_client *client, struct kv_stream_room *room,
                  const struct kv_feed_events *events, void *arg);
void kv_feed_fini(struct kv_feed *f); /* a zeroed one is fine */

/* Closes what is open, and connects to the worker's URL at `address`. `generation`: the run that
 * batch `from` is of, or "". Nothing is called before it returns; ST_INVALID: the URL is none. */
MUST_USE enum status kv_feed_open(struct kv_feed *f, const char *url, const struct address *address,
                                  uint64_t from, const char *generation, struct error *err);
void kv_feed_close(struct kv_feed *f); /* nothing is called */

#endif
