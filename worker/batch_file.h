/* worker/batch_file.h - many requests from a file: `incipit-worker batch`.
 *
 *      input    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *      output   {"id": ..., "custom_id": "a", "response": {"status_code", "request_id", "body"},
 *                "error": null}
 *
 * The lines are those of OpenAI's batch files. The whole input is checked before the first request
 * is sent, and an invalid line is named. Each request goes to this worker's own API on loopback,
 * enough at a time to keep the engine busy; each response is written as one line when it ends. A
 * request with a line in the output is not sent again, so the same command continues an interrupted
 * run and loses at most the requests in flight.
 *
 * Thread: the loop's. LIMITS: a line of 32 MiB; an answer of 64 MiB; custom ids must differ. */
#ifndef WORKER_BATCH_FILE_H
#define WORKER_BATCH_FILE_H

#include "common/base/base.h"
#include "common/base/status.h"

struct batch_file;
struct log;
struct loop;

struct batch_counts {
    uint64_t total, before; /* requests in the input; of these, answered by earlier runs */
    uint64_t written;       /* lines of this run ... */
    uint64_t refused;       /* ... and those of them whose status is not 200 */
};

/* Reads all of the input, and of the output what is there; a line cut off at its end is removed.
 * ST_NOT_FOUND, ST_IO; ST_INVALID names the line and what is wrong with it. */
MUST_USE enum status batch_file_open(struct batch_file **out, const char *input, const char *output,
                                     struct error *err);
void batch_file_close(struct batch_file *b); /* NULL is fine; calls under way are dropped */

struct batch_file_run {
    struct loop *loop;
    struct log *log;
    uint16_t port;                           /* where the worker listens, on 127.0.0.1 */
    uint32_t max_in_flight;                  /* calls at once */
    uint64_t (*generated_tokens)(void *arg); /* so far, for the line of progress */
    void (*on_done)(void *arg);              /* the last line is written, or none ever will be */
    void *arg;
};
MUST_USE enum status batch_file_start(struct batch_file *b, const struct batch_file_run *run,
                                      struct error *err);

/* Sends no more requests; on_done once those in flight are written. */
void batch_file_stop(struct batch_file *b);

/* ST_OK when every request of the input has its line. Otherwise why not, and what to do. */
MUST_USE enum status batch_file_outcome(const struct batch_file *b, struct error *err);

#endif
