/* router/queue/admission.c - bands of flows of tickets.
 *
 * A flow is a tenant within a band. While it has tickets it is in two heaps of its band: by
 * `start`, the virtual time at which its first ticket's service begins, and by its number of
 * tickets. So each event costs O(log flows), full queue or not. A pop moves the band's time to that
 * start, and the flow's next start behind the ticket's work. A flow that runs empty keeps its
 * start, on the list of idle flows, until the band's time has passed it: otherwise a tenant with
 * one request at a time would always be served at once. A new tenant takes the oldest idle flow
 * when none is spare. */
#include "router/queue/admission.h"

#include <assert.h>
#include <math.h>

#include "common/base/heap.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define SPARE_FLOWS  64    /* idle tenants kept beyond the queue size */
#define WORK_MIN_S   0.001 /* a fully cached request still counts */
#define PACE_WEIGHT  0.05  /* of the latest gap between two pops */
#define PACE_GAP_MAX 60e6  /* us: longer gaps are ignored */
#define BAND_MIDDLE  (ADMISSION_BANDS / 2)

struct admission_flow {
    struct heap_link in_turn, in_length; /* of its band, while it has tickets */
    struct list link;                    /* on `idle` while it has none */
    struct list tickets;
    uint64_t key; /* of the map: tenant and band; 0: never used */
    double start;
    uint64_t seq; /* orders equal starts by arrival */
    uint32_t n;
    uint32_t band;
};

struct band {
    struct heap flows;   /* by start: the next to be served */
    struct heap longest; /* by number of tickets: the next to give way */
    double now;          /* virtual time: start of the last ticket popped */
    uint32_t n;
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
    struct list idle; /* longest empty first */
    uint64_t n_pushed;
    uint64_t popped_us; /* last; 0: the queue has been empty since */
    double gap_us;      /* between two pops, running mean */
    uint32_t n_gaps;
};

static bool starts_before(const struct heap_link *a, const struct heap_link *b) {
    const struct admission_flow *x = HEAP_ENTRY_CONST(a, struct admission_flow, in_turn);
    const struct admission_flow *y = HEAP_ENTRY_CONST(b, struct admission_flow, in_turn);

    return x->start != y->start ? x->start < y->start : x->seq < y->seq;
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
        heap_reserve(&a->bands[i].longest, n);
    }
}

struct admission *admission_create(const struct admission_options *options) {
    struct admission *a = mem_zalloc(sizeof(*a));

    map_init(&a->flows, rng_mix((uint64_t)(uintptr_t)a));
    list_init(&a->idle);
    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        heap_init(&a->bands[i].flows, starts_before);
        heap_init(&a->bands[i].longest, is_longer);
    }
    admission_configure(a, options);
    return a;
}

void admission_configure(struct admission *a, const struct admission_options *options) {
    a->options = *options;
    a->options.queue_size = MIN(options->queue_size, (uint32_t)ADMISSION_SIZE_MAX);
    grow(a, a->options.queue_size + SPARE_FLOWS);
}

void admission_destroy(struct admission *a) {
    if (!a) return;
    assert(!a->n);
    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        heap_fini(&a->bands[i].flows);
        heap_fini(&a->bands[i].longest);
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

/* The tenant's flow. A new one reuses the longest idle flow when none is spare. */
static struct admission_flow *flow_get(struct admission *a, uint64_t key, uint32_t band) {
    struct admission_flow *f = map_find(&a->flows, key);

    if (f) return f;
    f = LIST_ENTRY(list_first(&a->idle), struct admission_flow, link);
    if (f->key) map_erase(&a->flows, f->key);
    f->key = key;
    f->band = band;
    f->start = 0;
    map_insert(&a->flows, key, f);
    return f;
}

static void take_out(struct admission *a, struct admission_ticket *t) {
    struct admission_flow *f = t->flow;
    struct band *b = &a->bands[f->band];

    list_remove(&t->link);
    t->flow = NULL;
    f->n--;
    b->n--;
    a->n--;
    if (f->n > 0) {
        heap_update(&b->longest, &f->in_length);
    } else {
        heap_remove(&b->flows, &f->in_turn);
        heap_remove(&b->longest, &f->in_length);
        list_push_back(&a->idle, &f->link);
    }
    if (a->n == 0) a->popped_us = 0;
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

/* Predicted wait of one more ticket in flow `f` (NULL: a new flow) of `band`: tickets before it
 * times the pace. Flows take turns, so each flow ahead counts at most as many tickets as `f`
 * has. */
static uint64_t predict_wait_us(const struct admission *a, const struct admission_flow *f,
                                uint32_t band) {
    const struct band *b = &a->bands[band];
    uint64_t n_own = f ? f->n : 0, n_flows = b->flows.n + (n_own == 0), n_ahead;

    if (a->n_gaps < ADMISSION_PACE_FROM) return 0;
    n_ahead = MIN((uint64_t)b->n, (n_own + 1) * n_flows - 1);
    for (uint32_t i = 0; i < band; i++)
        n_ahead += a->bands[i].n;
    return (uint64_t)((double)(n_ahead + 1) * a->gap_us);
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

enum admission_verdict admission_push(struct admission *a, struct admission_ticket *t,
                                      const struct admission_claim *claim, uint64_t *wait_us,
                                      struct admission_ticket **displaced) {
    uint32_t band = band_of(claim->priority);
    struct band *b = &a->bands[band];
    uint64_t key = flow_key(claim->tenant, band);
    struct admission_flow *f = map_find(&a->flows, key);

    assert(!admission_is_waiting(t));
    *displaced = NULL;
    *wait_us = predict_wait_us(a, f, band);
    if (a->options.max_wait_us && *wait_us > a->options.max_wait_us) return ADMISSION_TOO_LONG;
    if (a->n >= a->options.queue_size) {
        *displaced = a->n ? find_displaced(a, band, f ? f->n : 0) : NULL;
        if (!*displaced) return ADMISSION_FULL;
        take_out(a, *displaced);
    }
    f = flow_get(a, key, band);
    *t = (struct admission_ticket){
        .flow = f, .work_s = fmax(claim->work_s, WORK_MIN_S), .home = claim->home};
    list_push_back(&f->tickets, &t->link);
    b->n++;
    a->n++;
    if (f->n++ > 0) {
        heap_update(&b->longest, &f->in_length);
    } else {
        list_remove(&f->link);
        f->start = fmax(f->start, b->now);
        f->seq = a->n_pushed;
        heap_push(&b->flows, &f->in_turn);
        heap_push(&b->longest, &f->in_length);
    }
    a->n_pushed++;
    return ADMISSION_WAITS;
}

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
        f->start += t->work_s;
        learn_pace(a, now_us);
        take_out(a, t);
        if (f->n) heap_update(&b->flows, &f->in_turn);
        return t;
    }
    return NULL;
}

void admission_remove(struct admission *a, struct admission_ticket *t) {
    assert(admission_is_waiting(t));
    take_out(a, t);
}

uint32_t admission_n_waiting(const struct admission *a) {
    return a->n;
}

void admission_check(const struct admission *a) {
    uint32_t n = 0, n_idle = 0, n_flows = 0;

    for (uint32_t i = 0; i < ADMISSION_BANDS; i++) {
        const struct band *b = &a->bands[i];
        uint32_t n_band = 0;

        heap_check(&b->flows);
        heap_check(&b->longest);
        assert(b->longest.n == b->flows.n);
        n_flows += (uint32_t)b->flows.n;
        for (size_t j = 0; j < b->flows.n; j++) {
            const struct admission_flow *f =
                HEAP_ENTRY(b->flows.items[j], struct admission_flow, in_turn);
            uint32_t n_tickets = 0;

            assert(heap_is_linked(&f->in_length) && f->band == i && f->start >= b->now &&
                   map_find(&a->flows, f->key) == f);
            LIST_FOR_EACH(it, &f->tickets) {
                assert(LIST_ENTRY(it, struct admission_ticket, link)->flow == f);
                n_tickets++;
            }
            assert(n_tickets == f->n && n_tickets > 0);
            n_band += n_tickets;
        }
        assert(n_band == b->n);
        n += n_band;
    }
    LIST_FOR_EACH(it, &a->idle) {
        const struct admission_flow *f = LIST_ENTRY(it, struct admission_flow, link);

        assert(f->n == 0 && list_is_empty(&f->tickets) && !heap_is_linked(&f->in_turn) &&
               !heap_is_linked(&f->in_length));
        assert(!f->key || map_find(&a->flows, f->key) == f);
        n_idle++;
    }
    map_check(&a->flows);
    assert(n == a->n && n + SPARE_FLOWS <= a->n_pool && n_idle + n_flows == a->n_pool);
}
