/* worker/api/events/request_feed.h - telling every router of the requests that this worker was given.
 *
 *      call.c ──accepted, first, ended──▶ log ──within 2 to 20 ms──▶ GET /request_events
 *      timer  ──load──────────────────▶ (request_log.h)              one stream for each follower
 *
 * What is told and why: common/protocol/request_events.h. Each accepted request is ended exactly once,
 * whatever becomes of it.
 *
 * The chain header is believed from anybody, router or not. A false one makes routers expect blocks
 * here that are not, which costs precision, and they cannot be made to expect more than was sent: the
 * prompt is never longer than the body that it came in, nor are there more blocks than bytes. Without
 * the header (or with one that cannot be read) the chain is empty and the length our own.
 *
 * Load is told while there are followers: every 100 ms if it has changed, at once when draining
 * begins, and after 5 s in any case, so that silence means that something is wrong.
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

/* A request is accepted; returns its number, for the others, or 0. prompt_bytes: what the caller knows
 * of the prompt's length when the header does not say. */
uint64_t request_feed_accepted(struct request_feed *feed, const struct http_request *req,
                               uint64_t prompt_bytes);
/* Number 0 is fine: nobody was told that it came. */
void request_feed_first(struct request_feed *feed, uint64_t request, uint64_t prompt_tokens,
                        uint64_t cached_tokens);
void request_feed_ended(struct request_feed *feed, uint64_t request, uint64_t output_tokens,
                        bool is_aborted);

void request_feed_cleared(struct request_feed *feed);
void request_feed_load(struct request_feed *feed); /* tells it now */

/* No request will end any more: each stream ends when it has all that there is. */
void request_feed_end(struct request_feed *feed);

struct request_feed_stats {
    struct request_log_stats log;
    uint32_t n_followers;
    uint64_t sent_bytes; /* to all of them */
    uint64_t n_gaps;     /* followers that had to be told to begin anew */
};
struct request_feed_stats request_feed_stats(const struct request_feed *feed); /* zeros for NULL */

/* Answers GET /request_events: the stream lives until the client, the server or the feed ends it. */
void request_feed_follow(struct request_feed *feed, struct http_request *req);

#endif
