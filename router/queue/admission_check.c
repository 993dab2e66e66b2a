/* router/queue/admission_check.c - the invariants of the queue. */
#include <assert.h>
#include <math.h>

#include "router/queue/admission_internal.h"

/* What is asked of a flow with tickets. Returns their number. */
static uint32_t check_flow(const struct admission *a, const struct band *b,
                           const struct admission_flow *f) {
    uint32_t n = 0, n_off = 0;

    assert(f->start >= b->now && map_find(&a->flows, f->key) == f && f->weight > 0);
    assert(heap_is_linked(&f->in_start) == by_price(a));
    assert(heap_is_linked(&f->in_turn) == (!by_price(a) || f->first.root));
    assert(heap_is_linked(&f->in_most) == (by_price(a) && !f->in_debt));
    if (by_price(a)) assert(f->in_debt == (f->start > band_debt_line(b)));
    LIST_FOR_EACH(it, &f->tickets) {
        const struct admission_ticket *t = LIST_ENTRY(it, struct admission_ticket, link);

        assert(t->flow == f && (by_price(a) || !tree_heap_is_linked(&t->in_flow)));
        n_off += !tree_heap_is_linked(&t->in_flow);
        n++;
    }
    assert(n == f->n && n > 0);
    assert(tree_heap_check(&f->first, ticket_is_cheaper) == n - n_off);
    return n;
}

static uint32_t check_band(const struct admission *a, uint32_t band) {
    const struct band *b = &a->bands[band];
    uint32_t n = 0, n_priced = 0;
    double weights = 0;

    heap_check(&b->flows);
    heap_check(&b->debtors);
    heap_check(&b->longest);
    heap_check(&b->least);
    heap_check(&b->most);
    heap_check(&b->relief);
    heap_check(&b->guests);
    assert(by_price(a) || !b->guests.n);
    for (size_t j = 0; j < b->guests.n; j++)
        assert(!HEAP_ENTRY(b->guests.items[j], struct admission_flow, in_start)->n);
    assert(b->longest.n >= b->flows.n + b->debtors.n); /* of some all tickets are off */
    assert(b->least.n == b->most.n && b->debtors.n <= b->relief.n);
    assert(b->least.n + b->relief.n == (by_price(a) ? b->longest.n : 0));
    for (size_t j = 0; j < b->longest.n; j++) {
        const struct admission_flow *f =
            HEAP_ENTRY(b->longest.items[j], struct admission_flow, in_length);

        assert(f->band == band);
        n += check_flow(a, b, f);
        weights += f->weight;
    }
    for (uint32_t i = 0; i < N_BINS; i++)
        n_priced += b->n_of_price[i];
    assert(n == b->n && n_priced == n && fabs(weights - b->weights) < 1e-6 * (1 + weights));
    (void)n_priced;
    return n;
}

static double work_of_all(const struct admission *a) {
    double work_s = 0;

    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        for (size_t j = 0; j < a->bands[i].longest.n; j++) {
            const struct admission_flow *f =
                HEAP_ENTRY(a->bands[i].longest.items[j], struct admission_flow, in_length);

            LIST_FOR_EACH(it, &f->tickets)
            work_s += LIST_ENTRY(it, struct admission_ticket, link)->work_s;
        }
    }
    return work_s;
}

void admission_check(const struct admission *a) {
    uint32_t n = 0, n_idle = 0, n_flows = 0, n_guests = 0;

    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        n += check_band(a, i);
        n_guests -= (uint32_t)a->bands[i].guests.n;
        n_flows += (uint32_t)a->bands[i].longest.n;
    }
    LIST_FOR_EACH(it, &a->idle) {
        const struct admission_flow *f = LIST_ENTRY(it, struct admission_flow, link);

        assert(f->n == 0 && list_is_empty(&f->tickets) && !f->first.root && !f->in_debt);
        assert(!heap_is_linked(&f->in_turn) && !heap_is_linked(&f->in_length) &&
               !heap_is_linked(&f->in_most));
        n_guests += heap_is_linked(&f->in_start);
        assert(!f->key || map_find(&a->flows, f->key) == f);
        n_idle++;
    }
    map_check(&a->flows);
    assert(fabs(work_of_all(a) - a->work_s) <= 1e-6 * (1 + a->work_s));
    assert(n_guests == 0); /* each is in the heap of its band */
    assert(n == a->n && n + SPARE_FLOWS <= a->n_pool && n_idle + n_flows == a->n_pool);
}
