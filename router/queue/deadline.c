/* router/queue/deadline.c - bins of work, and a heap by the time of the latest start. */
#include "router/queue/deadline.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/heap.h"

#define LEAST_S       0.0005 /* of the first bin */
#define PER_OCTAVE    2
#define FORGET_US     100000 /* sums are brought up to date when they are older */
#define SHARE_HALF_S  60.0   /* of busy time */
#define SHARE_PRIOR_S 30.0
#define SHARE_LEAST   0.1
#define SHARE_MOST    2.0

/* --- bins ------------------------------------------------------------------------------------- */

/* Its bin, and with *within how far into the bin it is. */
static uint32_t bin_of(double work_s, double *within) {
    double at = fmax(PER_OCTAVE * log2(fmax(work_s, LEAST_S) / LEAST_S), 0);
    uint32_t bin = (uint32_t)fmin(at, DEADLINE_BINS - 1);

    *within = fmin(at - bin, 1);
    return bin;
}

static uint32_t place_of(double work_s) {
    double within;

    return bin_of(work_s, &within);
}

static double sum(const double *bins, uint32_t n) {
    double s = 0;

    for (uint32_t i = 0; i < n; i++)
        s += bins[i];
    return s;
}

/* Work in all earlier bands, and in its own what is not longer. */
static void sum_before(const struct deadlines *d, const struct deadline_claim *c, double *waiting_s,
                       double *arriving_s) {
    const struct deadline_bins *own = &d->bands[c->band];
    double within;
    uint32_t bin = bin_of(c->work_s, &within);

    *waiting_s = sum(own->waiting_s, bin) + within * own->waiting_s[bin];
    *arriving_s = sum(own->arriving_s, bin) + within * own->arriving_s[bin];
    for (uint32_t i = 0; i < c->band; i++) {
        *waiting_s += sum(d->bands[i].waiting_s, DEADLINE_BINS);
        *arriving_s += sum(d->bands[i].arriving_s, DEADLINE_BINS);
    }
}

/* --- what arrives ----------------------------------------------------------------------------- */

static void forget(struct deadlines *d, uint64_t now_us) {
    double keep;

    if (now_us < d->as_of_us + FORGET_US) return;
    keep = exp2(-(double)(now_us - d->as_of_us) * 1e-6 / DEADLINE_HALF_LIFE_S);
    for (uint32_t i = 0; i < DEADLINE_BANDS; i++) {
        for (uint32_t k = 0; k < DEADLINE_BINS; k++)
            d->bands[i].arriving_s[k] *= keep;
    }
    d->as_of_us = now_us;
}

void deadlines_init(struct deadlines *d) {
    memset(d, 0, sizeof(*d));
}

void deadlines_arrived(struct deadlines *d, uint32_t band, double work_s, uint64_t now_us) {
    forget(d, now_us);
    d->bands[band].arriving_s[place_of(work_s)] += work_s;
}

/* --- capacity --------------------------------------------------------------------------------- */

void deadlines_learn(struct deadlines *d, double work_s, double busy_s, bool counts) {
    double more_work_s = fmax(work_s - d->seen_work_s, 0),
           more_s = fmax(busy_s - d->seen_busy_s, 0);
    double keep = exp2(-more_s / SHARE_HALF_S);

    d->seen_work_s = work_s;
    d->seen_busy_s = busy_s;
    if (!counts) return;
    d->work_s = d->work_s * keep + more_work_s;
    d->busy_s = d->busy_s * keep + more_s;
}

double deadlines_share(const struct deadlines *d) {
    double share = (d->work_s + DEADLINE_SHARE * SHARE_PRIOR_S) / (d->busy_s + SHARE_PRIOR_S);

    return fmin(fmax(share, SHARE_LEAST), SHARE_MOST);
}

double deadlines_wait_s(const struct deadlines *d, const struct deadline_claim *claim) {
    double capacity = fmax(claim->n_workers, 1) * deadlines_share(d), waiting_s, arriving_s, rho;

    sum_before(d, claim, &waiting_s, &arriving_s);
    rho = claim->fair * arriving_s * M_LN2 / DEADLINE_HALF_LIFE_S / capacity;
    return claim->fair * waiting_s / capacity / (1 - fmin(rho, DEADLINE_RHO_MAX));
}

/* --- what waits ------------------------------------------------------------------------------- */

/* When it must be started, at the latest; before time began for one that is longer than that. */
static double latest_us(const struct deadline_entry *e) {
    return (double)e->by_us - e->work_s * 1e6;
}

static bool is_earlier(const struct tree_link *a, const struct tree_link *b) {
    const struct deadline_entry *x = HEAP_ENTRY_CONST(a, struct deadline_entry, in_time);
    const struct deadline_entry *y = HEAP_ENTRY_CONST(b, struct deadline_entry, in_time);

    return latest_us(x) != latest_us(y) ? latest_us(x) < latest_us(y) : x < y;
}

static void put(struct deadlines *d, struct deadline_entry *e, double work_s) {
    struct deadline_bins *b = &d->bands[e->band];
    uint32_t bin = place_of(work_s);

    e->work_s = work_s;
    b->waiting_s[bin] += work_s;
    b->n_waiting[bin]++;
    if (e->by_us) tree_heap_push(&d->by_time, &e->in_time, is_earlier);
}

static void take(struct deadlines *d, struct deadline_entry *e) {
    struct deadline_bins *b = &d->bands[e->band];
    uint32_t bin = place_of(e->work_s);

    b->waiting_s[bin] = --b->n_waiting[bin] ? fmax(b->waiting_s[bin] - e->work_s, 0) : 0;
    if (e->by_us) tree_heap_remove(&d->by_time, &e->in_time, is_earlier);
}

void deadlines_enter(struct deadlines *d, struct deadline_entry *e, uint32_t band, double work_s,
                     uint64_t by_us) {
    assert(!e->is_waiting && band < DEADLINE_BANDS);
    *e = (struct deadline_entry){.band = band, .by_us = by_us, .is_waiting = true};
    put(d, e, work_s);
}

void deadlines_reprice(struct deadlines *d, struct deadline_entry *e, double work_s) {
    assert(e->is_waiting);
    if (work_s == e->work_s) return;
    take(d, e);
    put(d, e, work_s);
}

void deadlines_leave(struct deadlines *d, struct deadline_entry *e) {
    assert(e->is_waiting);
    take(d, e);
    e->is_waiting = false;
}

struct deadline_entry *deadlines_hopeless(const struct deadlines *d, uint64_t now_us) {
    struct deadline_entry *e;

    if (!d->by_time.root) return NULL;
    e = CONTAINER_OF(d->by_time.root, struct deadline_entry, in_time);
    return latest_us(e) < (double)now_us ? e : NULL;
}

void deadlines_check(const struct deadlines *d, uint32_t n_waiting) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < DEADLINE_BANDS; i++) {
        for (uint32_t k = 0; k < DEADLINE_BINS; k++) {
            const struct deadline_bins *b = &d->bands[i];

            assert(b->waiting_s[k] >= 0 && b->arriving_s[k] >= 0 && isfinite(b->arriving_s[k]));
            assert(b->n_waiting[k] || b->waiting_s[k] == 0);
            n += b->n_waiting[k];
        }
    }
    assert(n == n_waiting && tree_heap_check(&d->by_time, is_earlier) <= n);
    assert(deadlines_share(d) >= SHARE_LEAST && deadlines_share(d) <= SHARE_MOST);
    (void)n;
    (void)n_waiting;
}
