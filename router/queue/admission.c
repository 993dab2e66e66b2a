/* router/queue/admission.c - bands of flows of tickets.
 *
 * A flow is a tenant within a band. While it has tickets it is in several heaps of its band, so
 * that each event costs O(log flows) and, by price, O(log tickets), full queue or not:
 *
 *     by turn    `flows`, by start: the virtual time at which its first ticket's service begins
 *     by price   `flows` or, when the flow is in debt, `debtors`: by the key of its first ticket,
 *                which is that of a heap of tickets. All debts of a band change by as much when
 *                its least start does, so that no key does: only `debtors` as a whole moves
 *                against `flows`. `least`, `most` and `relief` find the flows that cross the line.
 *     both       `longest`, by the number of tickets: who gives way
 *
 * Service moves the band's time, and the flow's next start behind the ticket's work. A flow that
 * runs empty keeps its start, on the list of idle flows, until the band's time has passed it:
 * otherwise a tenant with one request at a time would always be served at once. A new tenant takes
 * the oldest idle flow when none is spare. */
#include "router/queue/admission.h"

#include <assert.h>
#include <math.h>

#include "common/base/heap.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define WEIGHT_LEAST 1e-6
#define SPARE_FLOWS  64    /* idle tenants kept beyond the queue size */
#define WORK_MIN_S   0.001 /* a fully cached request still counts */
#define PACE_WEIGHT  0.05  /* of the latest gap between two pops */
#define PACE_GAP_MAX 60e6  /* us: longer gaps are ignored */
#define BAND_MIDDLE  (ADMISSION_BANDS / 2)
#define N_BINS       64 /* of half an octave, from */
#define BIN_LEAST_S  0.0005

struct admission_flow {
    struct heap_link in_length;         /* of its band, while it has tickets */
    struct heap_link in_turn;           /* in flows or debtors, while it has tickets in place */
    struct heap_link in_start, in_most; /* by price: in least and most, in relief, or in guests */
    struct list link;                   /* on `idle` while it has no tickets */
    struct list tickets;                /* oldest first */
    struct tree_heap first;             /* by price: those in place */
    uint64_t key;                       /* of the map: tenant and band; 0: never used */
    double start;
    double order;       /* in flows or debtors; the least is next */
    uint64_t order_seq; /* decides between equals */
    uint64_t seq;       /* of its oldest ticket's arrival when it began to wait */
    double weight, max_share;
    uint64_t guest_us; /* when it was last served elsewhere after waiting there */
    uint32_t n;        /* tickets, those taken off for a try included */
    uint32_t band;
    bool in_debt;
    bool has_claimed; /* its weight is of a ticket from here */
};

struct band {
    struct heap flows;   /* by order: the next to be served */
    struct heap debtors; /* too; their orders include ADMISSION_DEBT x start */
    struct heap longest; /* by number of tickets: the next to give way */
    struct heap least;   /* not in debt, by start: the least served */
    struct heap most;    /* not in debt: the first to fall into it */
    struct heap relief;  /* in debt: the first to leave it */
    struct heap guests;  /* without tickets, by start: wait elsewhere, or did a while ago */
    double now;          /* virtual time: see admission.h */
    uint64_t last_key;   /* of the flow that began to wait last */
    uint64_t shared_us;  /* when another began to wait than the one before it */
    bool is_shared;      /* that was no longer ago than ADMISSION_ALONE_US, or several wait */
    double most_start;   /* of any flow, ever */
    double weights;      /* sum of those of its flows with tickets */
    uint32_t n;
    uint32_t n_of_price[N_BINS]; /* tickets by price */
};

struct pool { /* of flows, which never move */
    struct pool *next;
    struct admission_flow flows[];
};

struct admission {
    struct admission_options options;
    struct band bands[ADMISSION_BANDS];
    struct map flows; /* by key: flows with tickets, and idle ones */
    struct pool *pools;
    uint32_t n_pool; /* flows in all pools: enough for the longest queue so far */
    uint32_t n;
    double work_s;    /* of all tickets */
    struct list idle; /* longest empty first */
    uint64_t n_pushed;
    uint64_t popped_us; /* last; 0: the queue has been empty since */
    double gap_us;      /* between two pops, running mean */
    uint32_t n_gaps;
};

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

/* A ticket's place by price: what all of them gain by waiting is left out. */
static double key_of(const struct admission_ticket *t) {
    return t->work_s + ADMISSION_AGING * 1e-6 * (double)(int64_t)t->since_us;
}

static bool is_cheaper(const struct tree_link *a, const struct tree_link *b) {
    const struct admission_ticket *x = HEAP_ENTRY_CONST(a, struct admission_ticket, in_flow);
    const struct admission_ticket *y = HEAP_ENTRY_CONST(b, struct admission_ticket, in_flow);
    double kx = key_of(x), ky = key_of(y);

    return kx != ky ? kx < ky : x->seq < y->seq;
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

/* --- flows ------------------------------------------------------------------------------------ */

static uint32_t band_of(int32_t priority) {
    return (uint32_t)(MIN(MAX(priority, -BAND_MIDDLE), BAND_MIDDLE - 1) + BAND_MIDDLE);
}

static uint64_t flow_key(uint64_t tenant, uint32_t band) {
    return rng_mix(tenant ^ rng_mix(band + 1)) | 1;
}

static void leave_guests(struct admission *a, struct admission_flow *f) {
    if (!f->n && heap_is_linked(&f->in_start)) heap_remove(&a->bands[f->band].guests, &f->in_start);
}

/* The tenant's flow. A new one reuses the longest idle flow when none is spare. */
static struct admission_flow *flow_get(struct admission *a, uint64_t key, uint32_t band) {
    struct admission_flow *f = map_find(&a->flows, key);

    if (f) return f;
    f = LIST_ENTRY(list_first(&a->idle), struct admission_flow, link);
    leave_guests(a, f);
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

static bool by_price(const struct admission *a) {
    return a->options.order == ADMISSION_BY_PRICE;
}

/* --- a flow's place in its band --------------------------------------------------------------- */

static struct heap *turns_of(struct band *b, const struct admission_flow *f) {
    return f->in_debt ? &b->debtors : &b->flows;
}

/* After its first ticket, its start or its debt changed. */
static void place(struct admission *a, struct admission_flow *f) {
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

/* Takes the flow out of all that orders flows, except `longest`. */
static void displace(struct admission *a, struct admission_flow *f) {
    struct band *b = &a->bands[f->band];

    if (heap_is_linked(&f->in_turn)) heap_remove(turns_of(b, f), &f->in_turn);
    if (heap_is_linked(&f->in_start))
        heap_remove(f->in_debt ? &b->relief : &b->least, &f->in_start);
    if (heap_is_linked(&f->in_most)) heap_remove(&b->most, &f->in_most);
}

static void enter_group(struct admission *a, struct admission_flow *f, bool in_debt) {
    struct band *b = &a->bands[f->band];

    displace(a, f);
    f->in_debt = in_debt;
    heap_push(in_debt ? &b->relief : &b->least, &f->in_start);
    if (!in_debt) heap_push(&b->most, &f->in_most);
    place(a, f);
}

static struct admission_flow *first_of(const struct heap *starts) {
    struct heap_link *link = heap_first(starts);

    return link ? HEAP_ENTRY(link, struct admission_flow, in_start) : NULL;
}

/* Where debt begins. Who alone has been here for a while owes nothing. */
static double debt_line(const struct band *b) {
    return b->is_shared ? b->now + ADMISSION_FREE_S : HUGE_VAL;
}

/* A flow has its first ticket, another than the one before it. */
static void note_other(struct band *b, const struct admission_flow *f, uint64_t now_us) {
    if (b->last_key && b->last_key != f->key) {
        b->shared_us = now_us;
        b->is_shared = true;
    }
    b->last_key = f->key;
}

static void note_sharing(struct band *b, uint64_t now_us) {
    b->is_shared = b->longest.n > 1 || (b->shared_us && now_us < b->shared_us + ADMISSION_ALONE_US);
}

/* Moves flows over the line of debt until all are on their side of it. */
static void settle_debts(struct admission *a, struct band *b) {
    while (b->least.n || b->relief.n) {
        struct admission_flow *f = first_of(&b->relief);

        if (f && f->start <= debt_line(b)) {
            enter_group(a, f, false);
            continue;
        }
        if (!b->most.n) return;
        f = HEAP_ENTRY(heap_first(&b->most), struct admission_flow, in_most);
        if (f->start <= debt_line(b)) return;
        enter_group(a, f, true);
    }
}

/* The flow has its first ticket. */
static void arrive(struct admission *a, struct admission_flow *f) {
    if (!by_price(a)) {
        place(a, f);
        return;
    }
    enter_group(a, f, false);
    settle_debts(a, &a->bands[f->band]);
}

/* The flow has no ticket any more, or the order changes. */
static void depart(struct admission *a, struct admission_flow *f) {
    displace(a, f);
    f->in_debt = false;
    if (by_price(a)) settle_debts(a, &a->bands[f->band]);
}

/* Puts it in its place among the tickets of its flow. */
static void put_in(struct admission *a, struct admission_ticket *t) {
    if (!by_price(a)) return;
    tree_heap_push(&t->flow->first, &t->in_flow, is_cheaper);
    place(a, t->flow);
}

void admission_take_off(struct admission *a, struct admission_ticket *t) {
    if (!tree_heap_is_linked(&t->in_flow)) return;
    tree_heap_remove(&t->flow->first, &t->in_flow, is_cheaper);
    place(a, t->flow);
}

static uint32_t bin_of(double work_s) {
    double bin = 2 * log2(fmax(work_s, BIN_LEAST_S) / BIN_LEAST_S);

    return (uint32_t)MIN(bin, N_BINS - 1.0);
}

static void set_price(struct admission *a, struct admission_ticket *t, double work_s) {
    struct band *b = &a->bands[t->flow->band];

    b->n_of_price[bin_of(t->work_s)]--;
    a->work_s -= t->work_s;
    t->work_s = fmax(work_s, WORK_MIN_S);
    a->work_s += t->work_s;
    b->n_of_price[bin_of(t->work_s)]++;
}

static void take_out(struct admission *a, struct admission_ticket *t) {
    struct admission_flow *f = t->flow;
    struct band *b = &a->bands[f->band];

    admission_take_off(a, t);
    list_remove(&t->link);
    t->flow = NULL;
    f->n--;
    b->n--;
    a->n--;
    a->work_s = a->n ? a->work_s - t->work_s : 0;
    b->n_of_price[bin_of(t->work_s)]--;
    if (f->n > 0) {
        heap_update(&b->longest, &f->in_length);
    } else {
        b->weights = b->n ? b->weights - f->weight : 0;
        depart(a, f);
        heap_remove(&b->longest, &f->in_length);
        list_push_back(&a->idle, &f->link);
    }
    if (by_price(a) && b->n == 0) b->now = fmax(b->now, b->most_start); /* all are equal */
    if (a->n == 0) a->popped_us = 0;
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

            if (!is_in) displace(a, f);
            f->in_debt = false;
            LIST_FOR_EACH(it, &f->tickets) {
                struct admission_ticket *t = LIST_ENTRY(it, struct admission_ticket, link);

                if (is_in && by_price(a)) tree_heap_push(&f->first, &t->in_flow, is_cheaper);
                if (!is_in) t->in_flow = (struct tree_link){0};
            }
            if (!is_in) f->first.root = NULL;
            if (is_in) arrive(a, f);
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

static void learn_pace(struct admission *a, uint64_t now_us) {
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
    uint32_t n_bins = by_price(a) ? bin_of(work_s) + 1 : 0;

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

/* That of the tenant, or less, with which it gets max_share beside all others that wait. */
static double weight_of(const struct band *b, const struct admission_flow *f) {
    double others = b->weights - (f->n ? f->weight : 0);

    if (f->max_share >= 1 || others < WEIGHT_LEAST) return f->weight;
    return fmin(f->weight, f->max_share / (1 - f->max_share) * others);
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
        take_out(a, *displaced);
    }
    f = flow_get(a, key, band);
    leave_guests(a, f);
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
    b->n_of_price[bin_of(t->work_s)]++;
    if (f->n++ > 0) {
        heap_update(&b->longest, &f->in_length);
        put_in(a, t);
    } else {
        list_remove(&f->link);
        f->start = fmax(f->start, b->now);
        f->seq = a->n_pushed;
        note_other(b, f, claim->since_us);
        heap_push(&b->longest, &f->in_length);
        if (by_price(a)) tree_heap_push(&f->first, &t->in_flow, is_cheaper);
        arrive(a, f);
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
        f->start += t->work_s / weight_of(b, f);
        b->most_start = fmax(b->most_start, f->start);
        learn_pace(a, now_us);
        take_out(a, t);
        if (f->n) place(a, f);
        return t;
    }
    return NULL;
}

/* --- by price --------------------------------------------------------------------------------- */

/* The key of a flow in debt counts from the line, that of the others has no debt in it. */
static double debt_of(const struct band *b, const struct admission_flow *f) {
    return f->in_debt ? ADMISSION_DEBT * debt_line(b) : 0;
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
    put_in(a, t);
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

static double least_start(struct band *b, uint64_t now_us) {
    const struct admission_flow *f = first_of(&b->least), *g = first_of(&b->relief), *guest;

    while ((guest = first_of(&b->guests)) && now_us > guest->guest_us + ADMISSION_GUEST_US)
        heap_pop(&b->guests);
    return fmin(guest ? guest->start : HUGE_VAL,
                fmin(f ? f->start : HUGE_VAL, g ? g->start : HUGE_VAL));
}

/* After the start of a flow in the order by price changed. */
static void move_start(struct admission *a, struct admission_flow *f) {
    struct band *b = &a->bands[f->band];

    heap_update(f->in_debt ? &b->relief : &b->least, &f->in_start);
    if (!f->in_debt) heap_update(&b->most, &f->in_most);
    place(a, f);
}

static void charge(struct admission *a, struct admission_flow *f, double work_s, uint64_t now_us) {
    struct band *b = &a->bands[f->band];

    note_sharing(b, now_us);
    b->now = fmax(b->now, least_start(b, now_us));
    f->start += work_s / weight_of(b, f);
    b->most_start = fmax(b->most_start, f->start);
    move_start(a, f);
    settle_debts(a, b);
}

void admission_take(struct admission *a, struct admission_ticket *t, double work_s,
                    uint64_t now_us) {
    assert(admission_is_waiting(t) && !tree_heap_is_linked(&t->in_flow));
    charge(a, t->flow, fmax(work_s, WORK_MIN_S), now_us);
    learn_pace(a, now_us);
    take_out(a, t);
}

void admission_reprice(struct admission *a, struct admission_ticket *t, double work_s) {
    bool is_in_place = tree_heap_is_linked(&t->in_flow);

    assert(admission_is_waiting(t));
    if (fmax(work_s, WORK_MIN_S) == t->work_s) return;
    admission_take_off(a, t);
    set_price(a, t, work_s);
    if (is_in_place) admission_put_back(a, t);
}

/* --- elsewhere -------------------------------------------------------------------------------- */

/* Its start is as far ahead as service here has put it, or as reports may. */
static double start_after(const struct band *b, const struct admission_flow *f, double work_s) {
    double start = fmax(f->start, b->now);

    return fmin(start + work_s / weight_of(b, f), fmax(start, b->now + ADMISSION_AHEAD_S));
}

/* Of a flow without tickets. */
static void enter_guests(struct admission *a, struct admission_flow *f, uint64_t now_us) {
    struct heap *guests = &a->bands[f->band].guests;

    f->guest_us = now_us;
    if (!heap_is_linked(&f->in_start)) heap_push(guests, &f->in_start);
}

void admission_served(struct admission *a, const struct admission_claim *claim, bool has_waited,
                      uint64_t now_us) {
    uint32_t band = band_of(claim->priority);
    struct band *b = &a->bands[band];
    struct admission_flow *f;

    if (!b->n) return;
    f = flow_get(a, flow_key(claim->tenant, band), band);
    if (!f->has_claimed && claim->weight > 0) f->weight = claim->weight;
    if (has_waited) note_other(b, f, now_us);
    note_sharing(b, now_us);
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
        place(a, f);
    }
    if (by_price(a)) settle_debts(a, b);
}

bool admission_in_debt(const struct admission_ticket *t) {
    return t->flow->in_debt;
}

void admission_remove(struct admission *a, struct admission_ticket *t) {
    assert(admission_is_waiting(t));
    take_out(a, t);
}

uint32_t admission_n_waiting(const struct admission *a) {
    return a->n;
}

double admission_work_s(const struct admission *a) {
    return a->work_s;
}

/* What is asked of a flow with tickets. Returns their number. */
static uint32_t check_flow(const struct admission *a, const struct band *b,
                           const struct admission_flow *f) {
    uint32_t n = 0, n_off = 0;

    assert(f->start >= b->now && map_find(&a->flows, f->key) == f && f->weight > 0);
    assert(heap_is_linked(&f->in_start) == by_price(a));
    assert(heap_is_linked(&f->in_turn) == (!by_price(a) || f->first.root));
    assert(heap_is_linked(&f->in_most) == (by_price(a) && !f->in_debt));
    if (by_price(a)) assert(f->in_debt == (f->start > debt_line(b)));
    LIST_FOR_EACH(it, &f->tickets) {
        const struct admission_ticket *t = LIST_ENTRY(it, struct admission_ticket, link);

        assert(t->flow == f && (by_price(a) || !tree_heap_is_linked(&t->in_flow)));
        n_off += !tree_heap_is_linked(&t->in_flow);
        n++;
    }
    assert(n == f->n && n > 0);
    assert(tree_heap_check(&f->first, is_cheaper) == n - n_off);
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
