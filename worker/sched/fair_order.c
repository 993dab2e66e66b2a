/* worker/sched/fair_order.c - see the header. */
#include "worker/sched/fair_order.h"

#include <assert.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

struct fair_tenant {
    uint64_t number, epoch;
    uint32_t n_joined, n_active; /* turns; of them, waiting or in progress */
    double served;               /* 0 in another epoch */
    struct heap turns;           /* that wait */
    struct heap_link order;      /* in `clear` or `indebted` while turns wait */
    struct heap_link rank;       /* in `served` while it is active, in `idle` without turns */
    bool is_indebted;
};

static struct fair_turn *turn_of(struct heap_link *link) {
    return link ? HEAP_ENTRY(link, struct fair_turn, link) : NULL;
}

static struct fair_tenant *by_order(struct heap_link *link) {
    return link ? HEAP_ENTRY(link, struct fair_tenant, order) : NULL;
}

static struct fair_tenant *by_rank(struct heap_link *link) {
    return link ? HEAP_ENTRY(link, struct fair_tenant, rank) : NULL;
}

/* --- comparisons ------------------------------------------------------------------------------ */

/* With what is added to each key. Answers that have begun go by arrival. */
static bool precedes(const struct fair_turn *a, double add_a, const struct fair_turn *b,
                     double add_b) {
    double key_a = a->key + add_a, key_b = b->key + add_b;

    if (a->band != b->band) return a->band < b->band;
    if (a->has_begun != b->has_begun) return a->has_begun;
    if (a->has_begun) return a->seq < b->seq;
    if (key_a < key_b || key_a > key_b) return key_a < key_b;
    if (a->is_resumed != b->is_resumed) return a->is_resumed;
    return a->seq < b->seq;
}

static bool turn_before(const struct heap_link *a, const struct heap_link *b) {
    return precedes(HEAP_ENTRY_CONST(a, struct fair_turn, link), 0,
                    HEAP_ENTRY_CONST(b, struct fair_turn, link), 0);
}

static bool clear_before(const struct heap_link *a, const struct heap_link *b) {
    return turn_before(heap_first(&HEAP_ENTRY_CONST(a, struct fair_tenant, order)->turns),
                       heap_first(&HEAP_ENTRY_CONST(b, struct fair_tenant, order)->turns));
}

/* Debts less what they have in common. */
static bool indebted_before(const struct heap_link *a, const struct heap_link *b) {
    const struct fair_tenant *x = HEAP_ENTRY_CONST(a, struct fair_tenant, order);
    const struct fair_tenant *y = HEAP_ENTRY_CONST(b, struct fair_tenant, order);

    return precedes(turn_of(heap_first(&x->turns)), FAIR_WEIGHT * x->served,
                    turn_of(heap_first(&y->turns)), FAIR_WEIGHT * y->served);
}

static bool rank_before(const struct heap_link *a, const struct heap_link *b) {
    const struct fair_tenant *x = HEAP_ENTRY_CONST(a, struct fair_tenant, rank);
    const struct fair_tenant *y = HEAP_ENTRY_CONST(b, struct fair_tenant, rank);

    return x->served < y->served || (x->served <= y->served && x->number < y->number);
}

/* --- tenants ---------------------------------------------------------------------------------- */

void fair_order_init(struct fair_order *o) {
    uint64_t seed;

    *o = (struct fair_order){.epoch = 1};
    heap_init(&o->clear, clear_before);
    heap_init(&o->indebted, indebted_before);
    heap_init(&o->served, rank_before);
    heap_init(&o->idle, rank_before);
    hash_random(&seed, sizeof(seed));
    map_init(&o->tenants, seed);
}

static void forget(struct fair_order *o, struct fair_tenant *t) {
    map_erase(&o->tenants, t->number);
    heap_fini(&t->turns);
    mem_free(t);
}

void fair_order_fini(struct fair_order *o) {
    struct heap_link *link;

    while ((link = heap_pop(&o->idle)) != NULL)
        forget(o, by_rank(link));
    assert(o->tenants.n == 0);
    heap_fini(&o->clear);
    heap_fini(&o->indebted);
    heap_fini(&o->served);
    heap_fini(&o->idle);
    map_fini(&o->tenants);
}

uint32_t fair_order_n_tenants(const struct fair_order *o) {
    return (uint32_t)o->tenants.n;
}

static double least_served(const struct fair_order *o) {
    return o->served.n > 0 ? by_rank(heap_first(&o->served))->served : o->virtual_s;
}

static double debt_of(const struct fair_order *o, const struct fair_tenant *t) {
    double over = t->served - least_served(o) - FAIR_QUANTUM_S;

    return over > 0 ? FAIR_WEIGHT * over : 0;
}

/* Idle tenants that are known no better than unknown ones. */
static void forget_idle(struct fair_order *o) {
    struct fair_tenant *t;

    while ((t = by_rank(heap_first(&o->idle))) != NULL &&
           (o->idle.n > FAIR_IDLE_MAX || t->epoch != o->epoch || t->served <= o->virtual_s)) {
        heap_pop(&o->idle);
        forget(o, t);
    }
}

/* All active tenants are gone: all are equal from now on. */
static void begin_epoch(struct fair_order *o) {
    struct heap_link *link;

    o->epoch++;
    o->virtual_s = 0;
    while ((link = heap_pop(&o->idle)) != NULL)
        forget(o, by_rank(link));
}

void fair_order_join(struct fair_order *o, struct fair_turn *t, uint64_t number) {
    struct fair_tenant *tenant = map_find(&o->tenants, number);

    assert(!t->tenant);
    if (!tenant) {
        tenant = mem_zalloc(sizeof(*tenant));
        tenant->number = number;
        tenant->epoch = o->epoch;
        heap_init(&tenant->turns, turn_before);
        map_insert(&o->tenants, number, tenant);
    } else if (tenant->n_joined == 0) {
        heap_remove(&o->idle, &tenant->rank);
    }
    tenant->n_joined++;
    t->tenant = tenant;
}

void fair_order_leave(struct fair_order *o, struct fair_turn *t) {
    struct fair_tenant *tenant = t->tenant;

    if (!tenant) return;
    fair_order_remove(o, t);
    fair_order_end(o, t);
    t->tenant = NULL;
    if (--tenant->n_joined > 0) return;
    if (tenant->epoch != o->epoch) {
        forget(o, tenant);
        return;
    }
    heap_push(&o->idle, &tenant->rank);
    forget_idle(o);
}

/* --- which tenants are active, and where ------------------------------------------------------ */

static void activate(struct fair_order *o, struct fair_tenant *t) {
    if (t->n_active++ > 0) return;
    if (t->epoch != o->epoch) t->served = 0;
    t->epoch = o->epoch;
    o->virtual_s = MAX(o->virtual_s, least_served(o));
    t->served = MAX(t->served, o->virtual_s);
    heap_push(&o->served, &t->rank);
}

static void deactivate(struct fair_order *o, struct fair_tenant *t) {
    if (--t->n_active > 0) return;
    o->virtual_s = MAX(o->virtual_s, least_served(o));
    heap_remove(&o->served, &t->rank);
    if (o->served.n == 0) begin_epoch(o);
}

static struct heap *heap_of(struct fair_order *o, const struct fair_tenant *t) {
    return t->is_indebted ? &o->indebted : &o->clear;
}

static void unplace(struct fair_order *o, struct fair_tenant *t) {
    if (heap_is_linked(&t->order)) heap_remove(heap_of(o, t), &t->order);
}

static void place(struct fair_order *o, struct fair_tenant *t) {
    if (t->turns.n == 0) return;
    t->is_indebted = debt_of(o, t) > 0;
    heap_push(heap_of(o, t), &t->order);
}

/* --- turns ------------------------------------------------------------------------------------ */

void fair_order_push(struct fair_order *o, struct fair_turn *t) {
    struct fair_tenant *tenant = t->tenant;

    activate(o, tenant);
    unplace(o, tenant);
    heap_push(&tenant->turns, &t->link);
    place(o, tenant);
}

void fair_order_remove(struct fair_order *o, struct fair_turn *t) {
    struct fair_tenant *tenant = t->tenant;

    if (!heap_is_linked(&t->link)) return;
    unplace(o, tenant);
    heap_remove(&tenant->turns, &t->link);
    place(o, tenant);
    deactivate(o, tenant);
}

void fair_order_update(struct fair_order *o, struct fair_turn *t) {
    struct fair_tenant *tenant = t->tenant;

    unplace(o, tenant);
    heap_update(&tenant->turns, &t->link);
    place(o, tenant);
}

/* The head of the debtors may have paid while the least served grew. */
static struct fair_tenant *first_debtor(struct fair_order *o) {
    struct fair_tenant *t;

    while ((t = by_order(heap_first(&o->indebted))) != NULL && debt_of(o, t) <= 0) {
        unplace(o, t);
        place(o, t);
    }
    return t;
}

struct fair_turn *fair_order_first(struct fair_order *o) {
    struct fair_tenant *debtor = first_debtor(o), *t = by_order(heap_first(&o->clear));
    struct fair_turn *a = t ? turn_of(heap_first(&t->turns)) : NULL;
    struct fair_turn *b = debtor ? turn_of(heap_first(&debtor->turns)) : NULL;

    if (!a || !b) return a ? a : b;
    return precedes(b, debt_of(o, debtor), a, 0) ? b : a;
}

void fair_order_begin(struct fair_order *o, struct fair_turn *t) {
    if (t->is_in_progress) return;
    t->is_in_progress = true;
    o->n_in_progress++;
    activate(o, t->tenant);
}

void fair_order_end(struct fair_order *o, struct fair_turn *t) {
    if (!t->is_in_progress) return;
    t->is_in_progress = false;
    o->n_in_progress--;
    deactivate(o, t->tenant);
}

void fair_order_charge(struct fair_order *o, struct fair_turn *t, double seconds) {
    struct fair_tenant *tenant = t->tenant;

    if (tenant->epoch != o->epoch) return; /* no prompt waits: all begin as equals */
    unplace(o, tenant);
    tenant->served += seconds;
    if (tenant->n_active > 0) heap_update(&o->served, &tenant->rank);
    place(o, tenant);
}

double fair_order_debt(const struct fair_order *o, const struct fair_turn *t) {
    return t->has_begun || t->tenant->n_active == 0 ? 0 : debt_of(o, t->tenant);
}

bool fair_order_before(const struct fair_order *o, const struct fair_turn *a,
                       const struct fair_turn *b) {
    return precedes(a, fair_order_debt(o, a), b, fair_order_debt(o, b));
}

/* --- check ------------------------------------------------------------------------------------ */

void fair_order_check(const struct fair_order *o) {
    const struct map_slot *slot;
    size_t n_placed = 0, n_active = 0, n_idle = 0;

    heap_check(&o->clear);
    heap_check(&o->indebted);
    heap_check(&o->served);
    heap_check(&o->idle);
    for (size_t i = 0; (slot = map_next(&o->tenants, &i)) != NULL;) {
        const struct fair_tenant *t = slot->value;

        heap_check(&t->turns);
        assert(t->number == slot->key && t->turns.n <= t->n_active &&
               t->n_active <= 2 * t->n_joined);
        assert(heap_is_linked(&t->order) == (t->turns.n > 0));
        assert(heap_is_linked(&t->rank) == (t->n_active > 0 || t->n_joined == 0));
        assert(t->turns.n == 0 || t->is_indebted || debt_of(o, t) <= 0);
        n_placed += t->turns.n > 0;
        n_active += t->n_active > 0;
        n_idle += t->n_joined == 0;
    }
    assert(n_placed == o->clear.n + o->indebted.n);
    assert(n_active == o->served.n && n_idle == o->idle.n && n_idle <= FAIR_IDLE_MAX);
}
