/* worker/worker.h - the worker process: its objects, start, drain and exit. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "common/base/base.h"
#include "common/base/status.h"

struct log;
struct loop;
struct options;
struct worker;
struct worker_options;

/* Listens, loads the model, starts the engine. Takes as long as the weights do. `live` fills
 * *options, and on SIGHUP changes those that are live; NULL: none. ST_INVALID, ST_NOT_FOUND and
 * ST_UNSUPPORTED: trying again would fail again. */
MUST_USE enum status worker_create(struct worker **out, const struct worker_options *options,
                                   struct options *live, struct error *err);

/* Serves until SIGTERM or SIGINT and everything open is finished; a second signal does not wait.
 * ST_INTERNAL when the device was lost. */
MUST_USE enum status worker_run(struct worker *w, struct error *err);
void worker_destroy(struct worker *w); /* NULL is fine */

/* --- for a program that is its own worker's client: batch ------------------------------------- */
struct loop *worker_loop(struct worker *w);
struct log *worker_log(struct worker *w);
uint16_t worker_port(const struct worker *w);
uint64_t worker_generated_tokens(struct worker *w); /* since it started */
uint32_t worker_max_num_seqs(const struct worker *w);
void worker_stop(struct worker *w); /* as SIGTERM does */

/* The first signal calls `fn` and does nothing else. */
void worker_on_signal(struct worker *w, void (*fn)(void *arg), void *arg);

#endif
