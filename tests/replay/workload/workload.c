/* tests/replay/workload/workload.c - what generated and recorded workloads have in common. */
#include "tests/replay/workload/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/prompt/prompt_hash.h"
#include "router/routing/prefix_index.h"
#include "router/routing/prefix_lru.h"
#include "tests/replay/worker_model.h"
#include "tests/replay/workload/crowd.h"

#define CLIP_SHARE   0.9  /* of the cache: one request */
#define OUTPUT_SHARE 0.25 /* of that: its output */
#define COPY_LOAD    0.8  /* copies bring this load at the recorded pace, */
#define COPY_WORKERS 4    /* with a cache of so many workers */

void workload_add(struct workload *w, struct workload_request q) {
    if (w->n == w->n_max) {
        w->n_max = MAX(2 * w->n_max, 1024u);
        w->requests = mem_realloc(w->requests, w->n_max * sizeof(*w->requests));
    }
    w->requests[w->n++] = q;
}

uint64_t *workload_new_chain(struct workload *w, uint32_t n_blocks) {
    if (w->n_chains == w->n_chains_max) {
        w->n_chains_max = MAX(2 * w->n_chains_max, 1024u);
        w->chains = mem_realloc(w->chains, w->n_chains_max * sizeof(*w->chains));
    }
    return w->chains[w->n_chains++] = mem_calloc((size_t)n_blocks + 1, sizeof(uint64_t));
}

static int by_arrival(const void *a, const void *b) {
    const struct workload_request *x = a, *y = b;

    return (x->arrival_s > y->arrival_s) - (x->arrival_s < y->arrival_s);
}

void workload_sort(struct workload *w) {
    if (w->n) qsort(w->requests, w->n, sizeof(*w->requests), by_arrival);
}

void workload_free(struct workload *w) {
    for (uint32_t i = 0; i < w->n_chains; i++)
        mem_free(w->chains[i]);
    mem_free(w->chains);
    mem_free(w->requests);
    *w = (struct workload){0};
}

uint64_t workload_name(uint64_t x) {
    return rng_mix(x) & PROMPT_HASH_MASK;
}

double workload_span_s(const struct workload *w) {
    if (w->end_s > 0) return w->end_s;
    return w->n ? w->requests[w->n - 1].arrival_s - w->requests[0].arrival_s : 0;
}

/* --- load ------------------------------------------------------------------------------------ */

static void copy_chain(struct workload *w, struct workload_request *q, uint32_t copy) {
    uint64_t *own = workload_new_chain(w, q->n_names);

    for (uint32_t i = 0; i < q->n_names; i++)
        own[i] = i ? workload_name(q->chain[i] ^ copy) : q->chain[i];
    q->chain = own;
}

/* A round of the workload. */
struct round {
    double first_s, span_s;
};

/* Begins its round so much later. */
static void shift(struct workload_request *q, uint32_t n, double shift_s,
                  const struct round *round) {
    for (uint32_t i = 0; i < n; i++) {
        double t = fmax(q[i].arrival_s - round->first_s + shift_s, 0);

        q[i].arrival_s = round->first_s + (t >= round->span_s ? t - round->span_s : t);
    }
}

static void add_copy(struct workload *w, uint32_t n, uint32_t copy) {
    for (uint32_t i = 0; i < n; i++) {
        struct workload_request q = w->requests[i];

        if (q.session) q.session = rng_at(q.session, copy) | 1;
        q.tenant = copy;
        copy_chain(w, &q, copy);
        workload_add(w, q);
    }
}

static int by_line(const void *a, const void *b) {
    const struct workload_request *x = a, *y = b;

    return x->line != y->line ? (x->line < y->line ? -1 : 1) : by_arrival(a, b);
}

/* In the order of lines, so that the lots are those of crowd.h. */
void workload_overlay(struct workload *w, uint32_t copies, const struct crowd *crowd) {
    uint64_t lots = crowd_seed_of_copies(crowd->draw);
    uint32_t n = w->n;
    struct round round;

    if (!n) return;
    qsort(w->requests, n, sizeof(*w->requests), by_line);
    round.first_s = w->requests[0].arrival_s;
    round.span_s = w->requests[n - 1].arrival_s - round.first_s + 1e-3;
    for (uint32_t copy = 1; copy < copies; copy++)
        add_copy(w, n, copy);
    for (uint32_t copy = 0; copy < copies; copy++) {
        double share = crowd->draw ? crowd_lot(&lots) : (double)copy / copies;

        shift(w->requests + copy * n, n, round.span_s * share, &round);
        crowd_replace(w, copy * n, n, round.first_s + round.span_s / 2, crowd, &lots);
    }
    workload_sort(w);
}

void workload_clip(struct workload *w, uint32_t cache_tokens) {
    uint32_t most = (uint32_t)(CLIP_SHARE * cache_tokens);

    for (uint32_t i = 0; i < w->n; i++) {
        struct workload_request *q = &w->requests[i];

        q->n_output = MIN(q->n_output, (uint32_t)(OUTPUT_SHARE * most));
        q->n_prompt = MIN(q->n_prompt, most - q->n_output);
        q->n_blocks = MIN(q->n_blocks, q->n_prompt / w->block_tokens);
        q->n_names = MIN(q->n_names, CEIL_DIV(q->n_prompt, w->block_tokens));
    }
}

static double request_work_s(const struct workload_request *q, double cached) {
    double n_new = q->n_prompt - cached;

    return worker_prefill_s(cached, q->n_prompt) + n_new / WORKER_CHUNK * WORKER_STEP_S / 2 +
           q->n_output * (WORKER_STEP_S / 32 + WORKER_SEQ_S +
                          WORKER_CONTEXT_S * (q->n_prompt + q->n_output / 2.0));
}

void workload_bound(const struct workload *w, uint64_t cache_tokens, struct workload_bound *bound) {
    uint64_t capacity = cache_tokens / w->block_tokens;
    struct prefix_index *index = prefix_index_create(4 * capacity, 1);
    struct prefix_lru *lru = prefix_lru_create(index, 1);

    *bound = (struct workload_bound){.cached_blocks = mem_calloc(w->n + 1, sizeof(uint32_t))};
    prefix_lru_set_capacity(lru, 0, capacity);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct workload_request *q = &w->requests[i];
        uint32_t bt = w->block_tokens, depth, n_sent;
        uint64_t mask = 1;

        prefix_index_match(index, q->chain, q->n_blocks, &mask, &depth, NULL);
        bound->cached_blocks[i] = MIN(depth, (q->n_prompt - 1) / bt);
        bound->work_s += request_work_s(q, (double)bound->cached_blocks[i] * bt);
        n_sent = prefix_lru_sent(lru, 0, q->chain, q->n_blocks, NULL);
        prefix_lru_ended(lru, 0, q->chain, n_sent, NULL,
                         (q->n_prompt + q->n_output) / bt - q->n_prompt / bt);
    }
    prefix_lru_destroy(lru);
    prefix_index_destroy(index);
}

void workload_bound_free(struct workload_bound *bound) {
    mem_free(bound->cached_blocks);
    bound->cached_blocks = NULL;
}

void workload_stretch(struct workload *w, double factor) {
    double first_s = w->n ? w->requests[0].arrival_s : 0;

    for (uint32_t i = 0; i < w->n; i++)
        w->requests[i].arrival_s = (w->requests[i].arrival_s - first_s) * factor;
}

void workload_cut(struct workload *w, double since_s, double until_s) {
    uint32_t n = 0;

    if (w->end_s > 0) {
        w->end_s = fmin(w->end_s, until_s);
        return;
    }
    for (uint32_t i = 0; i < w->n; i++) {
        struct workload_request q = w->requests[i];

        if (q.arrival_s < since_s || q.arrival_s > until_s) continue;
        q.arrival_s -= since_s;
        w->requests[n++] = q;
    }
    w->n = n;
}

/* As a share of the span, times a number of workers. */
static double work_by_span(const struct workload *w, uint64_t cache_tokens) {
    struct workload_bound bound;

    workload_bound(w, cache_tokens, &bound);
    workload_bound_free(&bound);
    return bound.work_s / (workload_span_s(w) + 1e-3);
}

void workload_load(struct workload *w, const struct workload_target *target) {
    uint32_t cache_tokens = target->cache_tokens, copies = 1;
    double work;

    workload_clip(w, cache_tokens);
    if (target->has_copies && target->load > 0) {
        work = work_by_span(w, (uint64_t)COPY_WORKERS * cache_tokens) / target->n_workers;
        copies = (uint32_t)fmax(1, COPY_LOAD / work + 0.5);
    }
    if (!(w->end_s > 0)) workload_overlay(w, copies, &target->crowd);
    if (target->load > 0) {
        work = work_by_span(w, (uint64_t)target->n_workers * cache_tokens);
        workload_stretch(w, work / target->speed / target->load);
    }
    crowd_burst(w, &target->crowd);
}
