/* worker/api/events/request_log.h - the last of what happened to requests, numbered, in a ring.
 *
 * Each event is encoded once, as a frame (common/protocol/request_events.h), into memory of a fixed
 * size; the oldest make room. Every follower is sent the same bytes, and reads them by number:
 *
 *                 frames, one behind the other, around the end of the memory
 *      | ... 1041 |1042 .......... |1043 . |1044 ............. |   free   | 1040 | 1041 ...
 *                                                              next = 1045  oldest = 1040
 *
 * Frames differ in length, so the place of every STRIDE-th is kept; one between is found by
 * walking. Numbers begin with 1 and are never used twice.
 *
 * Appending allocates nothing once the longest event has been seen, takes no lock and costs 50 ns
 * and the copy of the event. Thread: worker loop. */
#ifndef WORKER_API_EVENTS_REQUEST_LOG_H
#define WORKER_API_EVENTS_REQUEST_LOG_H

#include "common/protocol/request_events.h"

#define REQUEST_LOG_BYTES_MIN (64u << 10) /* a few of the longest events */

struct request_log;

/* `bytes`: at least REQUEST_LOG_BYTES_MIN, which smaller ones are raised to. The system gives the
 * memory as it is first written. ST_NOMEM. */
MUST_USE enum status request_log_create(struct request_log **out, uint64_t bytes,
                                        struct error *err);
void request_log_destroy(struct request_log *log); /* NULL is fine */

/* Numbers the event and keeps it. An event that cannot be encoded for lack of memory is lost
 * together with all before it, so that a follower sees a gap instead of a missing event. */
void request_log_append(struct request_log *log, const struct request_event *e);

/* Appends to `out` the frames from number `from` on, whole ones, until they are `max_bytes`, or
 * there are no more; at least one when there is one. *next is the number to read next.
 *
 * ST_OK; ST_AGAIN: nothing from there on exists yet; ST_NOT_FOUND: it has made room for others, or
 * cannot have come from this log. *next is then the oldest number. ST_NOMEM: `out` is failed. */
MUST_USE enum status request_log_read(const struct request_log *log, uint64_t from,
                                      size_t max_bytes, struct buf *out, uint64_t *next);

struct request_log_stats {
    uint64_t next,
        oldest;     /* numbers: of the event to come, of the first that is kept; equal: none */
    uint64_t bytes; /* that the kept ones take */
    uint64_t n_appended;
};
struct request_log_stats request_log_stats(const struct request_log *log);

void request_log_check(const struct request_log *log); /* asserts what must hold; slow */

#endif
