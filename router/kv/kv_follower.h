/* router/kv/kv_follower.h - follows one publisher: stream, replays, and what they add up to.
 *
 *      stream ──▶ kv_sequence ──▶ kv_picture ──▶ on_change, once a turn
 *      replay ──▶     │  ▲            ▲
 *        ▲───── ask ──┘  │            └── batches, gaps and digests ── feed, of a worker of ours
 *                        └── each replay has a connection of its own, closed at its end
 *
 * A feed resumes behind its last batch. A gap empties the picture, and what the worker holds
 * follows; a digest proves the picture, or shows that it is wrong, and then all is asked for again.
 *
 * A lost stream is connected again after 100 ms, then more, up to 5 s; after 60 s when the peer is
 * none that can be followed. Without a stream the picture stays: engines that are silent and
 * engines that are gone look alike. Thread: control. */
#ifndef ROUTER_KV_KV_FOLLOWER_H
#define ROUTER_KV_KV_FOLLOWER_H

#include "router/kv/kv_feed.h"
#include "router/kv/kv_picture.h"
#include "router/kv/kv_sequence.h"
#include "router/kv/kv_stream.h"

struct http_client;
struct log;

/* Shared by all followers of a thread. */
struct kv_shared {
    struct loop *loop;
    struct log *log;
    struct http_client *client;
    struct kv_budget ledgers;
    struct kv_stream_room room;
    uint64_t seed;
};

struct kv_follower_config {
    uint32_t worker, rank;         /* for the log */
    const char *url;               /* of a worker of ours, copied by kv_follower_start; else NULL */
    struct address stream, replay; /* stream: of ours, that of the URL */
    bool has_replay;
};

struct kv_follower {
    struct kv_shared *shared;
    struct kv_follower_config config;
    void (*on_change)(struct kv_follower *f);
    void *owner;
    struct kv_stream stream, replay;
    struct kv_sequence sequence;
    struct kv_feed feed;
    char url[ADDRESS_URL_MAX];            /* "": not of ours */
    char generation[WIRE_GENERATION_MAX]; /* of a feed: the run that the picture is of, or "" */
    bool has_place;                       /* and its `next` is known */
    bool wants_snapshot;
    uint64_t next;
    uint64_t n_gaps, n_lost; /* of a feed: gaps; pictures that a digest proved wrong */
    struct kv_picture picture;
    struct loop_timer retry;
    struct loop_task change;
    uint32_t n_failures;
    bool is_connected, was_reported_wrong;
    bool was_cleared;     /* the cache was emptied since on_change was last called */
    uint64_t live_tokens; /* stored while the picture was complete, and not heard of by a replay */
    uint64_t n_restarts, n_unreadable; /* processes after the first; batches */
};

/* Starts to connect. `on_change` is called at the end of a turn, and may not free it. */
void kv_follower_start(struct kv_follower *f, struct kv_shared *shared,
                       const struct kv_follower_config *config,
                       void (*on_change)(struct kv_follower *f), void *owner);
void kv_follower_stop(struct kv_follower *f); /* a zeroed one is fine */

/* Gaps seen; of these, and of other losses, those that were not closed by a replay. */
uint64_t kv_follower_n_gaps(const struct kv_follower *f);
uint64_t kv_follower_n_lost(const struct kv_follower *f);

void kv_follower_tick(struct kv_follower *f); /* about once a second */
void kv_follower_check(const struct kv_follower *f);

#endif
