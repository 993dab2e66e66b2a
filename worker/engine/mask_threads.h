/* worker/engine/mask_threads.h - threads that compute masks of grammars beside the engine's.
 *
 * Work is a number of parts. The caller takes parts too and can finish all of them alone: it never
 * waits for a thread to start, only for parts that a thread has begun. Between two calls the
 * threads sleep, and touch nothing. What a part computes may not depend on who computes it.
 * Thread: one caller, the engine's. */
#ifndef WORKER_ENGINE_MASK_THREADS_H
#define WORKER_ENGINE_MASK_THREADS_H

#include "common/base/base.h"
#include "common/base/status.h"

struct mask_threads;

/* The most that are chosen: 256 new masks, of 20 us each, take less than a millisecond then. */
#define MASK_THREADS_MAX 8u

/* `n` counts the caller; 0: as many as the process may use, at most MASK_THREADS_MAX. */
MUST_USE enum status mask_threads_start(struct mask_threads **out, uint32_t n, struct error *err);
void mask_threads_stop(struct mask_threads *t); /* joins; NULL is fine */

/* Calls run(arg, part) once for each part in [0, n_parts), and returns when all are done. */
void mask_threads_run(struct mask_threads *t, uint32_t n_parts,
                      void (*run)(void *arg, uint32_t part), void *arg);

#endif
