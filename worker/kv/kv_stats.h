/* worker/kv/kv_stats.h - how often the prefix cache helped.
 *
 * Recorded once per admission, never per lookup: a request that waits is looked up at every step,
 * and counting those would report hits that never happened. A request resumed after preemption hits
 * its own blocks, which is no sharing, so it has a triple of its own. The hit rate is that of the
 * last N admissions. Thread: engine. */
#ifndef WORKER_KV_KV_STATS_H
#define WORKER_KV_KV_STATS_H

#include "common/base/base.h"
#include "worker/kv/kv_explain.h"

struct kv_counts {
    uint64_t requests;
    uint64_t queries; /* tokens looked up */
    uint64_t hits;    /* tokens found */
};

#define KV_STATS_WINDOW 1000 /* admissions; enough to be steady, few enough to follow a change */

/* A sliding window over batches of admissions. */
struct hit_window {
    struct kv_counts *batches; /* ring (max_requests + 1): a batch has at least one request */
    uint32_t max_requests, first, n_batches;
    struct kv_counts sum;
};

void hit_window_init(struct hit_window *w, uint32_t max_requests);
void hit_window_fini(struct hit_window *w);
/* Empty batches are ignored. Whole batches leave, oldest first, while more than max_requests are
 * in; the newest always stays. */
void hit_window_add(struct hit_window *w, struct kv_counts batch);
void hit_window_reset(struct hit_window *w);
double hit_window_rate(const struct hit_window *w); /* hits / queries; 0 when empty */

struct kv_stats {
    struct kv_counts admitted;  /* first admissions, since start */
    struct kv_counts preempted; /* admissions after a preemption */
    struct kv_counts host;      /* admissions that went on to look in host memory: tokens behind the
                                 * device's hits, and those found there */
    struct hit_window window;   /* of first admissions */
    uint64_t misses[KV_MISS_COUNT]; /* first admissions, by why they found no more */
    uint64_t moved_out, moved_in;   /* blocks, to and from host memory */
};

#endif
