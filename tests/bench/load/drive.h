/* tests/bench/load/drive.h - sends requests when they are due and notes what became of them.
 *
 * Open loop: arrivals are a Poisson stream from the seed and wait for no answer; each takes an idle
 * connection or opens one, and its times count from the moment it was due, so that a stalled server
 * cannot make its clients more patient. Closed loop: each of `connections` connections sends its
 * next request when the last was answered.
 *
 * A request on a kept-alive connection that closes before its first byte is sent once more on a
 * fresh one, as HTTP clients do; that is counted (n_resent). */
#ifndef TESTS_BENCH_LOAD_DRIVE_H
#define TESTS_BENCH_LOAD_DRIVE_H

#include "common/base/buf.h"
#include "tests/bench/load/endpoints.h"
#include "tests/bench/load/traffic.h"

struct loop;
struct tls;
struct drive;

enum outcome {
    OUTCOME_OK,
    OUTCOME_HTTP,      /* an answer with code >= 400 */
    OUTCOME_CONNECT,   /* no connection */
    OUTCOME_BROKEN,    /* the answer ended before its end */
    OUTCOME_MALFORMED, /* not HTTP */
    OUTCOME_STREAM,    /* an error event, or no [DONE] at the end */
    OUTCOME_TIMEOUT,
    OUTCOME_ABORTED, /* by us, as was asked for */
    OUTCOME_COUNT
};
extern const char *const outcome_names[OUTCOME_COUNT];

struct record { /* of one request; times in us since the start */
    uint64_t due_us, sent_us;
    uint64_t first_us; /* first event of a stream, head of a whole answer; 0: never */
    uint64_t end_us;
    uint64_t answer_bytes;
    uint32_t session, turn, body_bytes, max_tokens, n_events;
    int32_t prompt_tokens, cached_tokens; /* from the answer's usage, or -1 */
    uint16_t code;
    uint8_t outcome; /* enum outcome */
};

struct drive_config {
    struct endpoints *endpoints;
    struct tls *tls; /* NULL: plain */
    const char *authority, *path;
    const char *const *headers; /* "name: value" */
    uint32_t n_headers;
    bool is_open;
    double rps;
    uint64_t seed, n_requests, duration_us, timeout_us; /* n_requests 0: by time alone */
    uint32_t connections;
    double abort_share; /* of the requests are left ... */
    uint64_t abort_us;  /* ... within this time */
};

struct drive *drive_create(struct loop *loop, const struct drive_config *config,
                           struct traffic *traffic);
void drive_destroy(struct drive *d);
void drive_start(struct drive *d); /* the loop is stopped when all is answered */

const struct record *drive_records(const struct drive *d, uint64_t *n);
uint64_t drive_n_resent(const struct drive *d);
uint64_t drive_n_resets(const struct drive *d); /* connections that were reset, idle ones too */
uint32_t drive_n_connections(const struct drive *d);

#endif
