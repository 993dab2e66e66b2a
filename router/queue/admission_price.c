/* router/queue/admission_price.c - the order by price, and what other routers serve. */
#include <assert.h>
#include <math.h>

#include "router/queue/admission_internal.h"

/* The key of a flow in debt counts from the line, that of the others has no debt in it. */
static double debt_of(const struct band *b, const struct admission_flow *f) {
    return f->in_debt ? ADMISSION_DEBT * band_debt_line(b) : 0;
}

/* The flow with the first ticket in place of a band; NULL: none is in place. */
static struct admission_flow *first_flow(const struct band *b) {
    struct heap_link *x = heap_first(&b->flows), *y = heap_first(&b->debtors);
    struct admission_flow *f = x ? HEAP_ENTRY(x, struct admission_flow, in_turn) : NULL;
    struct admission_flow *g = y ? HEAP_ENTRY(y, struct admission_flow, in_turn) : NULL;

    if (!f || !g) return f ? f : g;
    return g->order - debt_of(b, g) < f->order ? g : f;
}

static struct admission_ticket *first_ticket(const struct admission_flow *f) {
    return HEAP_ENTRY(f->first.root, struct admission_ticket, in_flow);
}

struct admission_ticket *admission_first(const struct admission *a) {
    for (uint32_t i = 0; a->n && i < ADMISSION_BANDS; i++) {
        struct admission_flow *f = a->bands[i].n ? first_flow(&a->bands[i]) : NULL;

        if (f) return first_ticket(f);
    }
    return NULL;
}

struct admission_ticket *admission_first_free(const struct admission *a) {
    for (uint32_t i = 0; a->n && i < ADMISSION_BANDS; i++) {
        struct heap_link *first = heap_first(&a->bands[i].flows);

        if (first) return first_ticket(HEAP_ENTRY(first, struct admission_flow, in_turn));
    }
    return NULL;
}

void admission_put_back(struct admission *a, struct admission_ticket *t) {
    assert(admission_is_waiting(t) && !tree_heap_is_linked(&t->in_flow));
    ticket_put_in(a, t);
}

double admission_order(const struct admission_ticket *t) {
    return key_of(t) + (t->flow->in_debt ? ADMISSION_DEBT * t->flow->start : 0);
}

bool admission_precedes(const struct admission *a, const struct admission_ticket *t,
                        const struct admission_ticket *u) {
    const struct band *b = &a->bands[t->flow->band];
    double x, y;

    if (t->flow->band != u->flow->band) return t->flow->band < u->flow->band;
    x = admission_order(t) - debt_of(b, t->flow);
    y = admission_order(u) - debt_of(b, u->flow);
    return x != y ? x < y : t->seq < u->seq;
}

bool admission_in_debt(const struct admission_ticket *t) {
    return t->flow->in_debt;
}

static double least_start(struct band *b, uint64_t now_us) {
    const struct admission_flow *f = flow_least_of(&b->least), *g = flow_least_of(&b->relief),
                                *guest;

    while ((guest = flow_least_of(&b->guests)) && now_us > guest->guest_us + ADMISSION_GUEST_US)
        heap_pop(&b->guests);
    return fmin(guest ? guest->start : HUGE_VAL,
                fmin(f ? f->start : HUGE_VAL, g ? g->start : HUGE_VAL));
}

/* After the start of a flow in the order by price changed. */
static void move_start(struct admission *a, struct admission_flow *f) {
    struct band *b = &a->bands[f->band];

    heap_update(f->in_debt ? &b->relief : &b->least, &f->in_start);
    if (!f->in_debt) heap_update(&b->most, &f->in_most);
    flow_place(a, f);
}

static void charge(struct admission *a, struct admission_flow *f, double work_s, uint64_t now_us) {
    struct band *b = &a->bands[f->band];

    band_note_sharing(b, now_us);
    b->now = fmax(b->now, least_start(b, now_us));
    f->start += work_s / flow_weight(b, f);
    b->most_start = fmax(b->most_start, f->start);
    move_start(a, f);
    band_settle_debts(a, b);
}

void admission_take(struct admission *a, struct admission_ticket *t, double work_s,
                    uint64_t now_us) {
    assert(admission_is_waiting(t) && !tree_heap_is_linked(&t->in_flow));
    charge(a, t->flow, fmax(work_s, WORK_MIN_S), now_us);
    admission_learn_pace(a, now_us);
    ticket_take_out(a, t);
}

void admission_reprice(struct admission *a, struct admission_ticket *t, double work_s) {
    bool is_in_place = tree_heap_is_linked(&t->in_flow);

    assert(admission_is_waiting(t));
    if (fmax(work_s, WORK_MIN_S) == t->work_s) return;
    admission_take_off(a, t);
    ticket_set_price(a, t, work_s);
    if (is_in_place) admission_put_back(a, t);
}

/* --- elsewhere -------------------------------------------------------------------------------- */

/* Its start is as far ahead as service here has put it, or as reports may. */
static double start_after(const struct band *b, const struct admission_flow *f, double work_s) {
    double start = fmax(f->start, b->now);

    return fmin(start + work_s / flow_weight(b, f), fmax(start, b->now + ADMISSION_AHEAD_S));
}

/* Of a flow without tickets. */
static void enter_guests(struct admission *a, struct admission_flow *f, uint64_t now_us) {
    struct heap *guests = &a->bands[f->band].guests;

    f->guest_us = now_us;
    if (!heap_is_linked(&f->in_start)) heap_push(guests, &f->in_start);
}

bool admission_served(struct admission *a, const struct admission_claim *claim, bool has_waited,
                      uint64_t now_us) {
    uint32_t band = band_of(claim->priority);
    struct band *b = &a->bands[band];
    struct admission_flow *f;

    if (!b->n) return false;
    f = flow_get(a, flow_key(claim->tenant, band), band);
    if (!f->has_claimed && claim->weight > 0) f->weight = claim->weight;
    if (has_waited) band_note_other(b, f, now_us);
    band_note_sharing(b, now_us);
    if (by_price(a)) b->now = fmax(b->now, least_start(b, now_us));
    f->start = start_after(b, f, fmax(claim->work_s, WORK_MIN_S));
    b->most_start = fmax(b->most_start, f->start);
    if (!f->n) {
        list_remove(&f->link); /* the last to be reused */
        list_push_back(&a->idle, &f->link);
        if (by_price(a) && has_waited) enter_guests(a, f, now_us);
        if (heap_is_linked(&f->in_start)) heap_update(&b->guests, &f->in_start);
    } else if (by_price(a)) {
        move_start(a, f);
    } else {
        flow_place(a, f);
    }
    if (by_price(a)) band_settle_debts(a, b);
    return f->start > band_debt_line(b);
}
