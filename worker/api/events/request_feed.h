/* worker/api/events/request_feed.h - publishes this worker's requests to every router.
 *
 *      call.c ──accepted, first, ended──▶ log ──within 2 to 20 ms──▶ GET /request_events
 *      timer  ──load──────────────────▶ (request_log.h)              one stream for each follower
 *
 * The events and their purpose: common/protocol/request_events.h. Each accepted request is ended
 * exactly once.
 *
 * The chain header is accepted from any client. A false one makes routers expect blocks that are
 * not here, which costs precision only, and at most as many as were sent: the prompt is never
 * longer than its body, nor has it more blocks than bytes. Without a valid header the chain is
 * empty and the length is the worker's own.
 *
 * Load is published while there are followers: every 100 ms if it has changed, at once when
 * draining begins, and after 5 s in any case, so that silence means a fault.
 *
 * A feed may be NULL: switched off, and every function does nothing. Thread: worker loop. */
#ifndef WORKER_API_EVENTS_REQUEST_FEED_H
#define WORKER_API_EVENTS_REQUEST_FEED_H

#include "common/base/list.h"
#include "common/net/loop.h"
#include "worker/api/events/request_log.h"

struct http_request;
struct request_feed;
struct wire_load;

struct request_feed_config {
    struct loop *loop;
    uint64_t generation;                                 /* of this worker: engine_info */
    void (*read_load)(void *arg, struct wire_load *out); /* the worker's load now */
    void *arg;
    uint64_t buffer_bytes; /* of the log */
    uint32_t max_followers;
};

/* The loop and `arg` must outlive it. ST_NOMEM. */
MUST_USE enum status request_feed_create(struct request_feed **out,
                                         const struct request_feed_config *config,
                                         struct error *err);

/* After the HTTP server, with which its streams have gone. NULL is fine. */
void request_feed_destroy(struct request_feed *feed);

/* Publishes an accepted request; returns the number for the calls below, or 0. prompt_bytes: the
 * prompt's length when the header lacks it. */
uint64_t request_feed_accepted(struct request_feed *feed, const struct http_request *req,
                               uint64_t prompt_bytes);
/* Number 0 is ignored: its arrival was not published. */
void request_feed_first(struct request_feed *feed, uint64_t request, uint64_t prompt_tokens,
                        uint64_t cached_tokens, int64_t host_tokens);
void request_feed_ended(struct request_feed *feed, uint64_t request, uint64_t output_tokens,
                        bool is_aborted);

void request_feed_cleared(struct request_feed *feed);
void request_feed_load(struct request_feed *feed); /* publishes it now */

/* No request will end any more: each stream ends when it has all that there is. */
void request_feed_end(struct request_feed *feed);

struct request_feed_stats {
    struct request_log_stats log;
    uint32_t n_followers;
    uint64_t sent_bytes; /* to all of them */
    uint64_t n_gaps;     /* followers that had to start over */
};
struct request_feed_stats request_feed_stats(const struct request_feed *feed); /* zeros for NULL */

/* Answers GET /request_events: the stream lives until the client, the server or the feed ends
 * it. */
void request_feed_follow(struct request_feed *feed, struct http_request *req);

#endif
