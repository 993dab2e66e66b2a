/* tests/replay/fleet_bound.c - each prompt alone, and all of them on one fast worker. */
#include "tests/replay/fleet_bound.h"

#include <math.h>

#include "common/base/heap.h"
#include "common/base/map.h"
#include "common/base/mem.h"

/* Of the pooled fleet. */
struct job {
    struct heap_link by_left;
    double arrival_s, left_s;
    uint32_t number;
};

struct sums {
    double alone_s, pooled_s;
};

static bool is_shorter(const struct heap_link *a, const struct heap_link *b) {
    const struct job *x = HEAP_ENTRY_CONST(a, struct job, by_left);
    const struct job *y = HEAP_ENTRY_CONST(b, struct job, by_left);

    return x->left_s != y->left_s ? x->left_s < y->left_s : x->number < y->number;
}

/* Computes until then, the shortest remaining first. Returns how long those that ended took. */
static double compute(struct heap *waiting, double *now_s, double until_s) {
    double sum_s = 0;

    while (*now_s < until_s && heap_first(waiting)) {
        struct job *j = HEAP_ENTRY(heap_pop(waiting), struct job, by_left);

        if (*now_s + j->left_s > until_s) {
            j->left_s -= until_s - *now_s;
            *now_s = until_s;
            heap_push(waiting, &j->by_left);
            break;
        }
        *now_s += j->left_s;
        sum_s += *now_s - j->arrival_s;
    }
    *now_s = fmax(*now_s, until_s);
    return sum_s;
}

/* Leading blocks that an earlier prompt has: a name stands for all before it too. */
static uint32_t n_known_before(struct map *names, struct workload_request *q,
                               uint32_t block_tokens) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->n_blocks; i++)
        n += map_insert(names, q->chain[i], q) != NULL;
    return MIN(n, (q->n_prompt - 1) / block_tokens);
}

static void add_up(const struct workload *w, const struct fleet_options *o, struct job *jobs,
                   struct sums *sums) {
    double warm_s = o->warm_share * workload_span_s(w), speed = fleet_speed(o), now_s = 0;
    double fastest = o->slow_odd > 0 && o->slow_odd < 1 ? 1 / o->slow_odd : 1;
    struct heap waiting;
    struct map names;

    heap_init(&waiting, is_shorter);
    map_init(&names, 1);
    for (uint32_t i = 0; i < w->n; i++) {
        struct workload_request *q = &w->requests[i];
        double cached = (double)n_known_before(&names, q, w->block_tokens) * w->block_tokens;
        double work_s = worker_prefill_s(cached, q->n_prompt), n_new = q->n_prompt - cached;
        struct job *j = &jobs[i];

        if (q->arrival_s < warm_s) continue;
        sums->alone_s += (work_s + ceil(n_new / WORKER_CHUNK) * WORKER_STEP_S) / fastest;
        sums->pooled_s += compute(&waiting, &now_s, q->arrival_s);
        *j = (struct job){.arrival_s = q->arrival_s,
                          .left_s = (work_s + n_new / WORKER_CHUNK * WORKER_STEP_S) / speed,
                          .number = i};
        heap_push(&waiting, &j->by_left);
    }
    sums->pooled_s += compute(&waiting, &now_s, INFINITY);
    heap_fini(&waiting);
    map_fini(&names);
}

double fleet_bound_s(const struct workload *workload, const struct fleet_options *options) {
    double warm_s = options->warm_share * workload_span_s(workload);
    struct sums sums = {0};
    struct job *jobs;
    uint32_t n = 0;

    if (workload->end_s > 0) return 0;
    for (uint32_t i = 0; i < workload->n; i++)
        n += workload->requests[i].arrival_s >= warm_s;
    jobs = mem_calloc((size_t)workload->n + 1, sizeof(*jobs));
    add_up(workload, options, jobs, &sums);
    mem_free(jobs);
    return fmax(sums.alone_s, sums.pooled_s) / MAX(n, 1u);
}
