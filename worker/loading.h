/* worker/loading.h - from --model to weights on a device, with progress lines.
 *
 * Loading may take minutes, so a line reports bytes, percent and rate, every second on a terminal
 * and every ten in a log. Used while starting, from the thread that starts; the engine's thread
 * calls loading_on_weights while that one waits. */
#ifndef WORKER_LOADING_H
#define WORKER_LOADING_H

#include "worker/model/hub_cache.h"

struct log;
struct worker_options;

struct loading {
    struct log *log;
    uint64_t interval_us;
    uint64_t began_us, reported_us; /* of the phase that is under way */
    uint64_t first_bytes;           /* that were there when it began */
};

void loading_init(struct loading *l, struct log *log);

/* Where the model `name` lies: a folder of that name, else the hub's, fetched if it must be.
 * *is_hubs: it was named as the hub names models. */
MUST_USE enum status loading_find(struct loading *l, const struct worker_options *options,
                                  const char *name, char folder[HUB_PATH_MAX], bool *is_hubs,
                                  struct error *err);

/* A model_progress_fn, once loading_begin_weights was called; `arg` is the struct loading. */
void loading_begin_weights(struct loading *l);
void loading_on_weights(void *arg, uint64_t done_bytes, uint64_t total_bytes);

#endif
