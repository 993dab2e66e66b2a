/* router/routing/sorted_work.h - the pending work of one worker, sorted: how much of it is shorter
 * than a prompt, and how many are longer, in a binary search.
 *
 * A multiset of seconds. The shortest SORTED_WORK_MAX are kept in order with their running sums;
 * beyond those only the number is known, and they count as longer than anything: so many shorter
 * ones are a wait that no price of one more changes. When fewer than half are kept while others are
 * not, the owner puts all in again (sorted_work_is_thin). Inserting and removing move at most
 * SORTED_WORK_MAX numbers. No allocation. Owner: one worker of `struct load`. */
#ifndef ROUTER_ROUTING_SORTED_WORK_H
#define ROUTER_ROUTING_SORTED_WORK_H

#include <assert.h>
#include <string.h>

#include "common/base/base.h"

#define SORTED_WORK_MAX 64

struct sorted_work {
    uint32_t n;                      /* kept */
    uint32_t n_beyond;               /* longer than all that are kept */
    double work_s[SORTED_WORK_MAX];  /* ascending */
    double until_s[SORTED_WORK_MAX]; /* sum of work_s up to and with this one */
};

/* How many kept are at most `s`. */
static inline uint32_t sorted_work_rank(const struct sorted_work *q, double s) {
    uint32_t low = 0, n = q->n;

    while (n) {
        uint32_t half = n / 2;
        bool is_right = q->work_s[low + half] <= s;

        low = is_right ? low + half + 1 : low;
        n = is_right ? n - half - 1 : half;
    }
    return low;
}

static inline double sorted_work_sum(const struct sorted_work *q, uint32_t rank) {
    return rank ? q->until_s[rank - 1] : 0;
}

static inline void sorted_work_sum_from(struct sorted_work *q, uint32_t at) {
    for (double sum = sorted_work_sum(q, at); at < q->n; at++)
        q->until_s[at] = sum += q->work_s[at];
}

static inline void sorted_work_add(struct sorted_work *q, double s) {
    uint32_t at = sorted_work_rank(q, s);

    if (q->n_beyond && at == q->n) { /* it may be longer than one of those beyond */
        q->n_beyond++;
        return;
    }
    if (q->n == SORTED_WORK_MAX) {
        q->n_beyond++;
        if (at == q->n) return;
        q->n--;
    }
    memmove(q->work_s + at + 1, q->work_s + at, (q->n - at) * sizeof(*q->work_s));
    q->work_s[at] = s;
    q->n++;
    sorted_work_sum_from(q, at);
}

/* `s` was added and not removed yet. */
static inline void sorted_work_remove(struct sorted_work *q, double s) {
    uint32_t rank = sorted_work_rank(q, s);

    if (!rank || q->work_s[rank - 1] != s) {
        assert(q->n_beyond);
        q->n_beyond--;
        return;
    }
    q->n--;
    memmove(q->work_s + rank - 1, q->work_s + rank, (q->n - (rank - 1)) * sizeof(*q->work_s));
    sorted_work_sum_from(q, rank - 1);
}

static inline bool sorted_work_is_thin(const struct sorted_work *q) {
    return q->n_beyond && q->n < SORTED_WORK_MAX / 2;
}

#endif
