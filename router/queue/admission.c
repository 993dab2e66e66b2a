/* router/queue/admission.c - who waits, who gives way, and the order by turn. */
#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "router/queue/admission_internal.h"

#define PACE_WEIGHT  0.05 /* of the latest gap between two pops */
#define PACE_GAP_MAX 60e6 /* us: longer gaps are ignored */

static bool is_sooner(const struct heap_link *a, const struct heap_link *b) {
    const struct admission_flow *x = HEAP_ENTRY_CONST(a, struct admission_flow, in_turn);
    const struct admission_flow *y = HEAP_ENTRY_CONST(b, struct admission_flow, in_turn);

    return x->order != y->order ? x->order < y->order : x->order_seq < y->order_seq;
}

static bool starts_before(const struct heap_link *a, const struct heap_link *b) {
    return HEAP_ENTRY_CONST(a, struct admission_flow, in_start)->start <
           HEAP_ENTRY_CONST(b, struct admission_flow, in_start)->start;
}

static bool starts_after(const struct heap_link *a, const struct heap_link *b) {
    return HEAP_ENTRY_CONST(a, struct admission_flow, in_most)->start >
           HEAP_ENTRY_CONST(b, struct admission_flow, in_most)->start;
}

/* Orders equals by latest arrival. */
static bool is_longer(const struct heap_link *a, const struct heap_link *b) {
    const struct admission_flow *x = HEAP_ENTRY_CONST(a, struct admission_flow, in_length);
    const struct admission_flow *y = HEAP_ENTRY_CONST(b, struct admission_flow, in_length);

    return x->n != y->n ? x->n > y->n : x->seq > y->seq;
}

/* Adds flows until there are n. */
static void grow(struct admission *a, uint32_t n) {
    struct pool *pool;

    if (n <= a->n_pool) return;
    pool = mem_zalloc(sizeof(*pool) + (n - a->n_pool) * sizeof(pool->flows[0]));
    pool->next = a->pools;
    a->pools = pool;
    for (uint32_t i = 0; i < n - a->n_pool; i++) {
        list_init(&pool->flows[i].tickets);
        list_push_back(&a->idle, &pool->flows[i].link);
    }
    a->n_pool = n;
    map_reserve(&a->flows, n);
    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        heap_reserve(&a->bands[i].flows, n);
        heap_reserve(&a->bands[i].debtors, n);
        heap_reserve(&a->bands[i].longest, n);
        heap_reserve(&a->bands[i].least, n);
        heap_reserve(&a->bands[i].most, n);
        heap_reserve(&a->bands[i].relief, n);
        heap_reserve(&a->bands[i].guests, n);
    }
}

struct admission *admission_create(const struct admission_options *options) {
    struct admission *a = mem_zalloc(sizeof(*a));

    map_init(&a->flows, rng_mix((uint64_t)(uintptr_t)a));
    list_init(&a->idle);
    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        heap_init(&a->bands[i].flows, is_sooner);
        heap_init(&a->bands[i].debtors, is_sooner);
        heap_init(&a->bands[i].longest, is_longer);
        heap_init(&a->bands[i].least, starts_before);
        heap_init(&a->bands[i].most, starts_after);
        heap_init(&a->bands[i].relief, starts_before);
        heap_init(&a->bands[i].guests, starts_before);
    }
    a->options = *options;
    admission_configure(a, options);
    return a;
}

void admission_destroy(struct admission *a) {
    if (!a) return;
    assert(!a->n);
    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        heap_fini(&a->bands[i].flows);
        heap_fini(&a->bands[i].debtors);
        heap_fini(&a->bands[i].longest);
        heap_fini(&a->bands[i].least);
        heap_fini(&a->bands[i].most);
        heap_fini(&a->bands[i].relief);
        heap_fini(&a->bands[i].guests);
    }
    map_fini(&a->flows);
    for (struct pool *pool = a->pools; pool;) {
        struct pool *next = pool->next;

        mem_free(pool);
        pool = next;
    }
    mem_free(a);
}

/* --- options ---------------------------------------------------------------------------------- */

/* Takes every flow out of the order that was, or puts it into the one that is. */
static void reorder(struct admission *a, bool is_in) {
    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        const struct heap *all = &a->bands[i].longest;

        while (!is_in && heap_first(&a->bands[i].guests))
            heap_pop(&a->bands[i].guests);

        for (size_t j = 0; j < all->n; j++) {
            struct admission_flow *f = HEAP_ENTRY(all->items[j], struct admission_flow, in_length);

            if (!is_in) flow_displace(a, f);
            f->in_debt = false;
            LIST_FOR_EACH(it, &f->tickets) {
                struct admission_ticket *t = LIST_ENTRY(it, struct admission_ticket, link);

                if (is_in && by_price(a)) tree_heap_push(&f->first, &t->in_flow, ticket_is_cheaper);
                if (!is_in) t->in_flow = (struct tree_link){0};
            }
            if (!is_in) f->first.root = NULL;
            if (is_in) flow_arrive(a, f);
        }
    }
}

void admission_configure(struct admission *a, const struct admission_options *options) {
    enum admission_order was = a->options.order;

    if (was != options->order) reorder(a, false);
    a->options = *options;
    a->options.queue_size = MIN(options->queue_size, (uint32_t)ADMISSION_SIZE_MAX);
    grow(a, a->options.queue_size + SPARE_FLOWS);
    if (was != options->order) reorder(a, true);
}

/* --- the pace --------------------------------------------------------------------------------- */

void admission_learn_pace(struct admission *a, uint64_t now_us) {
    double gap_us = (double)(now_us - MIN(a->popped_us, now_us));

    if (a->popped_us && gap_us < PACE_GAP_MAX) {
        a->gap_us += (gap_us - a->gap_us) * fmax(PACE_WEIGHT, 1.0 / (a->n_gaps + 1));
        if (a->n_gaps < UINT32_MAX) a->n_gaps++;
    }
    a->popped_us = now_us;
}

/* Tickets before one more of this price in flow `f` (NULL: a new flow) of `band`. Flows take turns,
 * so each flow ahead counts at most as many tickets as `f` has. */
static uint64_t count_before(const struct admission *a, const struct admission_flow *f,
                             uint32_t band, double work_s) {
    const struct band *b = &a->bands[band];
    uint64_t n_own = f ? f->n : 0, n_flows = b->longest.n + (n_own == 0);
    uint64_t n_before = by_price(a) ? 0 : b->n;
    uint32_t n_bins = by_price(a) ? admission_bin(work_s) + 1 : 0;

    for (uint32_t i = 0; i < n_bins; i++)
        n_before += b->n_of_price[i];
    n_before = MIN(n_before, (n_own + 1) * n_flows - 1);
    for (uint32_t i = 0; i < band; i++)
        n_before += a->bands[i].n;
    return n_before;
}

/* Of a newcomer: what is before it, times the pace. */
static uint64_t predict_wait_us(const struct admission *a, uint64_t n_before) {
    if (a->n_gaps < ADMISSION_PACE_FROM) return 0;
    return (uint64_t)((double)(n_before + 1) * a->gap_us);
}

uint32_t admission_n_before(const struct admission *a, const struct admission_claim *claim) {
    uint32_t band = band_of(claim->priority);

    return (uint32_t)count_before(a, map_find(&a->flows, flow_key(claim->tenant, band)), band,
                                  fmax(claim->work_s, WORK_MIN_S));
}

double admission_fair_share(const struct admission *a, const struct admission_claim *claim) {
    uint32_t band = band_of(claim->priority);
    const struct band *b = &a->bands[band];
    const struct admission_flow *f = map_find(&a->flows, flow_key(claim->tenant, band));
    uint64_t n_own = f ? f->n : 0, n_turns = (n_own + 1) * (b->longest.n + (n_own == 0)) - 1;

    return b->n > n_turns ? (double)n_turns / b->n : 1;
}

/* It is counted itself, once more than those before it. */
uint32_t admission_position(const struct admission *a, const struct admission_ticket *t) {
    uint64_t n = count_before(a, t->flow, t->flow->band, t->work_s);

    return (uint32_t)MAX(1, MIN(n, a->n));
}

/* --- who waits -------------------------------------------------------------------------------- */

/* The ticket that gives way to a newcomer of `band` with n_own waiting: the last of the longest
 * flow in the last band that has any. */
static struct admission_ticket *find_displaced(const struct admission *a, uint32_t band,
                                               uint32_t n_own) {
    const struct admission_flow *longest;
    uint32_t last = ADMISSION_BANDS;

    while (last > band && a->bands[last - 1].n == 0)
        last--;
    if (last <= band) return NULL;
    last--;
    longest = HEAP_ENTRY(heap_first(&a->bands[last].longest), struct admission_flow, in_length);
    if (last == band && longest->n <= n_own + 1) return NULL;
    return LIST_ENTRY(list_last(&longest->tickets), struct admission_ticket, link);
}

/* A flow without tickets is not in the sum. */
static void set_weight(struct band *b, struct admission_flow *f,
                       const struct admission_claim *claim) {
    if (f->n) b->weights -= f->weight;
    f->weight = claim->weight > 0 ? claim->weight : 1;
    f->max_share = claim->max_share > 0 ? fmin(claim->max_share, 1) : 1;
    f->has_claimed = true;
    b->weights += f->weight;
}

enum admission_verdict admission_push(struct admission *a, struct admission_ticket *t,
                                      const struct admission_claim *claim, uint64_t *wait_us,
                                      struct admission_ticket **displaced) {
    uint32_t band = band_of(claim->priority);
    struct band *b = &a->bands[band];
    uint64_t key = flow_key(claim->tenant, band);
    struct admission_flow *f = map_find(&a->flows, key);

    assert(!admission_is_waiting(t));
    *displaced = NULL;
    *wait_us = predict_wait_us(a, count_before(a, f, band, fmax(claim->work_s, WORK_MIN_S)));
    if (a->options.max_wait_us && *wait_us > a->options.max_wait_us) return ADMISSION_TOO_LONG;
    if (a->n >= a->options.queue_size) {
        *displaced = a->n ? find_displaced(a, band, f ? f->n : 0) : NULL;
        if (!*displaced) return ADMISSION_FULL;
        ticket_take_out(a, *displaced);
    }
    f = flow_get(a, key, band);
    flow_leave_guests(a, f);
    set_weight(b, f, claim);
    *t = (struct admission_ticket){.flow = f,
                                   .work_s = fmax(claim->work_s, WORK_MIN_S),
                                   .since_us = claim->since_us,
                                   .seq = a->n_pushed,
                                   .home = claim->home};
    list_push_back(&f->tickets, &t->link);
    b->n++;
    a->n++;
    a->work_s += t->work_s;
    b->n_of_price[admission_bin(t->work_s)]++;
    if (f->n++ > 0) {
        heap_update(&b->longest, &f->in_length);
        ticket_put_in(a, t);
    } else {
        list_remove(&f->link);
        f->start = fmax(f->start, b->now);
        f->seq = a->n_pushed;
        band_note_other(b, f, claim->since_us);
        heap_push(&b->longest, &f->in_length);
        if (by_price(a)) tree_heap_push(&f->first, &t->in_flow, ticket_is_cheaper);
        flow_arrive(a, f);
    }
    a->n_pushed++;
    return ADMISSION_WAITS;
}

/* --- by turn ---------------------------------------------------------------------------------- */

/* The flow's first ticket, or one of the next whose prompt is cached where there is room, or has no
 * home. */
static struct admission_ticket *choose_ticket(const struct admission_flow *f,
                                              const struct worker_mask *room) {
    struct admission_ticket *first =
        LIST_ENTRY(list_first(&f->tickets), struct admission_ticket, link);
    struct admission_ticket *chosen = first;
    uint32_t n = 0;

    if (first->n_passed >= ADMISSION_PASSED) return first;
    LIST_FOR_EACH(it, &f->tickets) {
        struct admission_ticket *t = LIST_ENTRY(it, struct admission_ticket, link);

        if (t->home == WORKER_NONE || worker_mask_has(room->words, t->home)) {
            chosen = t;
            break;
        }
        if (++n == ADMISSION_LOOK) return first;
    }
    for (struct list *it = &first->link; it != &chosen->link; it = it->next)
        LIST_ENTRY(it, struct admission_ticket, link)->n_passed++;
    return chosen;
}

struct admission_ticket *admission_pop(struct admission *a, const struct worker_mask *room,
                                       uint64_t now_us) {
    for (uint32_t i = 0; a->n && i < ADMISSION_BANDS; i++) {
        struct band *b = &a->bands[i];
        struct admission_ticket *t;
        struct admission_flow *f;

        if (b->n == 0) continue;
        f = HEAP_ENTRY(heap_first(&b->flows), struct admission_flow, in_turn);
        t = choose_ticket(f, room);
        b->now = f->start;
        f->start += t->work_s / flow_weight(b, f);
        b->most_start = fmax(b->most_start, f->start);
        admission_learn_pace(a, now_us);
        ticket_take_out(a, t);
        if (f->n) flow_place(a, f);
        return t;
    }
    return NULL;
}

void admission_remove(struct admission *a, struct admission_ticket *t) {
    assert(admission_is_waiting(t));
    ticket_take_out(a, t);
}

uint32_t admission_n_waiting(const struct admission *a) {
    return a->n;
}

double admission_work_s(const struct admission *a) {
    return a->work_s;
}
