/* worker/kv/kv_stats.c - a ring of batches and their sum. */
#include "worker/kv/kv_stats.h"

#include <assert.h>

#include "common/base/mem.h"

void hit_window_init(struct hit_window *w, uint32_t max_requests) {
    assert(max_requests >= 1);
    *w = (struct hit_window){
        .batches = mem_calloc((size_t)max_requests + 1, sizeof(*w->batches)),
        .max_requests = max_requests,
    };
}

void hit_window_fini(struct hit_window *w) {
    mem_free(w->batches);
    *w = (struct hit_window){0};
}

static void drop_oldest(struct hit_window *w) {
    struct kv_counts *b = &w->batches[w->first];

    w->sum.requests -= b->requests;
    w->sum.queries -= b->queries;
    w->sum.hits -= b->hits;
    w->first = (w->first + 1) % (w->max_requests + 1);
    w->n_batches--;
}

void hit_window_add(struct hit_window *w, struct kv_counts batch) {
    if (batch.requests == 0) return;
    w->batches[(w->first + w->n_batches) % (w->max_requests + 1)] = batch;
    w->n_batches++;
    w->sum.requests += batch.requests;
    w->sum.queries += batch.queries;
    w->sum.hits += batch.hits;
    while (w->sum.requests > w->max_requests && w->n_batches > 1)
        drop_oldest(w);
}

void hit_window_reset(struct hit_window *w) {
    w->first = w->n_batches = 0;
    w->sum = (struct kv_counts){0};
}

double hit_window_rate(const struct hit_window *w) {
    return w->sum.queries ? (double)w->sum.hits / (double)w->sum.queries : 0.0;
}
