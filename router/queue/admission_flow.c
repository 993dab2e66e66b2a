/* router/queue/admission_flow.c - the places of a flow in its band, and of a ticket in its flow. */
#include <assert.h>
#include <math.h>

#include "router/queue/admission_internal.h"

#define WEIGHT_LEAST 1e-6

bool ticket_is_cheaper(const struct tree_link *a, const struct tree_link *b) {
    const struct admission_ticket *x = HEAP_ENTRY_CONST(a, struct admission_ticket, in_flow);
    const struct admission_ticket *y = HEAP_ENTRY_CONST(b, struct admission_ticket, in_flow);
    double kx = key_of(x), ky = key_of(y);

    return kx != ky ? kx < ky : x->seq < y->seq;
}

struct admission_flow *flow_get(struct admission *a, uint64_t key, uint32_t band) {
    struct admission_flow *f = map_find(&a->flows, key);

    if (f) return f;
    f = LIST_ENTRY(list_first(&a->idle), struct admission_flow, link);
    flow_leave_guests(a, f);
    if (f->key) map_erase(&a->flows, f->key);
    f->key = key;
    f->band = band;
    f->start = 0;
    f->weight = f->max_share = 1;
    f->has_claimed = false;
    f->in_debt = false;
    map_insert(&a->flows, key, f);
    return f;
}

void flow_leave_guests(struct admission *a, struct admission_flow *f) {
    if (!f->n && heap_is_linked(&f->in_start)) heap_remove(&a->bands[f->band].guests, &f->in_start);
}

static struct heap *turns_of(struct band *b, const struct admission_flow *f) {
    return f->in_debt ? &b->debtors : &b->flows;
}

void flow_place(struct admission *a, struct admission_flow *f) {
    struct heap *turns = turns_of(&a->bands[f->band], f);
    const struct admission_ticket *t;

    if (by_price(a) && !f->first.root) {
        if (heap_is_linked(&f->in_turn)) heap_remove(turns, &f->in_turn);
        return;
    }
    f->order = f->start;
    f->order_seq = f->seq;
    if (by_price(a)) {
        t = HEAP_ENTRY(f->first.root, struct admission_ticket, in_flow);
        f->order = key_of(t) + (f->in_debt ? ADMISSION_DEBT * f->start : 0);
        f->order_seq = t->seq;
    }
    if (heap_is_linked(&f->in_turn)) {
        heap_update(turns, &f->in_turn);
    } else {
        heap_push(turns, &f->in_turn);
    }
}

void flow_displace(struct admission *a, struct admission_flow *f) {
    struct band *b = &a->bands[f->band];

    if (heap_is_linked(&f->in_turn)) heap_remove(turns_of(b, f), &f->in_turn);
    if (heap_is_linked(&f->in_start))
        heap_remove(f->in_debt ? &b->relief : &b->least, &f->in_start);
    if (heap_is_linked(&f->in_most)) heap_remove(&b->most, &f->in_most);
}

static void enter_group(struct admission *a, struct admission_flow *f, bool in_debt) {
    struct band *b = &a->bands[f->band];

    flow_displace(a, f);
    f->in_debt = in_debt;
    heap_push(in_debt ? &b->relief : &b->least, &f->in_start);
    if (!in_debt) heap_push(&b->most, &f->in_most);
    flow_place(a, f);
}

void band_note_other(struct band *b, const struct admission_flow *f, uint64_t now_us) {
    if (b->last_key && b->last_key != f->key) {
        b->shared_us = now_us;
        b->is_shared = true;
    }
    b->last_key = f->key;
}

void band_note_sharing(struct band *b, uint64_t now_us) {
    b->is_shared = b->longest.n > 1 || (b->shared_us && now_us < b->shared_us + ADMISSION_ALONE_US);
}

void band_settle_debts(struct admission *a, struct band *b) {
    while (b->least.n || b->relief.n) {
        struct admission_flow *f = flow_least_of(&b->relief);

        if (f && f->start <= band_debt_line(b)) {
            enter_group(a, f, false);
            continue;
        }
        if (!b->most.n) return;
        f = HEAP_ENTRY(heap_first(&b->most), struct admission_flow, in_most);
        if (f->start <= band_debt_line(b)) return;
        enter_group(a, f, true);
    }
}

void flow_arrive(struct admission *a, struct admission_flow *f) {
    if (!by_price(a)) {
        flow_place(a, f);
        return;
    }
    enter_group(a, f, false);
    band_settle_debts(a, &a->bands[f->band]);
}

void flow_depart(struct admission *a, struct admission_flow *f) {
    flow_displace(a, f);
    f->in_debt = false;
    if (by_price(a)) band_settle_debts(a, &a->bands[f->band]);
}

void ticket_put_in(struct admission *a, struct admission_ticket *t) {
    if (!by_price(a)) return;
    tree_heap_push(&t->flow->first, &t->in_flow, ticket_is_cheaper);
    flow_place(a, t->flow);
}

void admission_take_off(struct admission *a, struct admission_ticket *t) {
    if (!tree_heap_is_linked(&t->in_flow)) return;
    tree_heap_remove(&t->flow->first, &t->in_flow, ticket_is_cheaper);
    flow_place(a, t->flow);
}

uint32_t admission_bin(double work_s) {
    double bin = 2 * log2(fmax(work_s, BIN_LEAST_S) / BIN_LEAST_S);

    return (uint32_t)MIN(bin, N_BINS - 1.0);
}

void ticket_set_price(struct admission *a, struct admission_ticket *t, double work_s) {
    struct band *b = &a->bands[t->flow->band];

    b->n_of_price[admission_bin(t->work_s)]--;
    a->work_s -= t->work_s;
    t->work_s = fmax(work_s, WORK_MIN_S);
    a->work_s += t->work_s;
    b->n_of_price[admission_bin(t->work_s)]++;
}

void ticket_take_out(struct admission *a, struct admission_ticket *t) {
    struct admission_flow *f = t->flow;
    struct band *b = &a->bands[f->band];

    admission_take_off(a, t);
    list_remove(&t->link);
    t->flow = NULL;
    f->n--;
    b->n--;
    a->n--;
    a->work_s = a->n ? a->work_s - t->work_s : 0;
    b->n_of_price[admission_bin(t->work_s)]--;
    if (f->n > 0) {
        heap_update(&b->longest, &f->in_length);
    } else {
        b->weights = b->n ? b->weights - f->weight : 0;
        flow_depart(a, f);
        heap_remove(&b->longest, &f->in_length);
        list_push_back(&a->idle, &f->link);
    }
    if (by_price(a) && b->n == 0) b->now = fmax(b->now, b->most_start); /* all are equal */
    if (a->n == 0) a->popped_us = 0;
}

double flow_weight(const struct band *b, const struct admission_flow *f) {
    double others = b->weights - (f->n ? f->weight : 0);

    if (f->max_share >= 1 || others < WEIGHT_LEAST) return f->weight;
    return fmin(f->weight, f->max_share / (1 - f->max_share) * others);
}
